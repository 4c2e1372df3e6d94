"""The `gpuscale` command: its subcommands, and errors as one message on stderr with an exit code."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpuscale.arguments import ALIASES
from gpuscale.cli import (  # noqa: F401 - gpu adds a command
    collectives,
    explain,
    fleets,
    gate,
    gpu,
    jobs,
    machine,
    measurements,
    presets,
    questions,
    reliability,
    scaling,
    schedule,
    studies,
    training,
)
from gpuscale.cli.options import with_flags
from gpuscale.cli.streams import OutputError
from gpuscale.errors import GpuscaleError, InputError, did_you_mean, shown
from gpuscale.file_kinds import kind_of, use_of
from gpuscale.files import begin_command, printable

INTERRUPTED, CRASHED = 130, 3
"""Exit codes after Ctrl-C, and after a defect of gpuscale itself or for lack of memory."""

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""`ClickException`, base of every usage error; newer versions of Typer carry their own copy of Click."""


class Grouped(TyperCommand):
    """A command whose help page lists options by their panel, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each group of options under its own title."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            lines = param.get_help_record(ctx)
            if lines is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(lines)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an argument too many, and say what it is where it is a file."""
        ctx.allow_extra_args = True
        stray = list(super().parse_args(ctx, args))
        if stray and not ctx.resilient_parsing:
            kind = kind_of(Path(stray[0]))
            hint = use_of(kind, Path(stray[0])) if kind else f"`{ctx.command_path} --help` lists what it takes"
            raise InputError(f"{shown(stray[0])} is an argument too many", hint=hint)
        return stray


class Commands(TyperGroup):
    """All commands, of which some are named by two words beside one of the first alone: `sweep` and `sweep show`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take two words for one name where they are one; say what is near to a name that there is not."""
        two = " ".join(args[:2])
        if two in self.commands:
            args = [two, *args[2:]]
        elif not (args[0] in self.commands or args[0].startswith("-") or ctx.resilient_parsing):
            hint = did_you_mean(args[0], self.commands) + f"`{ctx.command_path} --help` lists what there is"
            raise InputError(f"no such command {shown(args[0])}", hint=hint)
        return super().resolve_command(ctx, args)


class TakesFlags(Grouped):
    """A command whose arguments may be quoted strings of flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take an argument of several words for one value, also where it begins like a flag."""
        return list(super().parse_args(ctx, [f" {one}" if one.startswith("-") and " " in one else one for one in args]))


app = typer.Typer(
    name="gpuscale",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Plan the parallelism of LLM training: the best layouts for a model on a cluster, ranked, with reasons.",
    epilog="Exit codes: 0 an answer, 1 no answer (nothing fits), 2 unusable input, 3 a defect of gpuscale.",
)


def _add(command: Callable[..., None], line: str, kind: type[Grouped] = Grouped) -> None:
    app.command(cls=kind, short_help=line)(command)


_add(jobs.plan, "Find the best layouts of a training job.")
_add(jobs.estimate, "Evaluate one layout in seconds and GiB.")
_add(explain.explain, "Explain one plan: time and memory as trees.")
_add(explain.compare, "Compare two plans: where the difference comes from.", TakesFlags)
_add(training.train_time, "Say what a whole training takes.")
_add(fleets.fleet, "Compare ways to use a cluster of unlike nodes.")
_add(scaling.batch_size, "Say which batch to train with.")
_add(scaling.size, "Say which model, or how many GPUs.")
_add(gate.check, "Say whether a job may launch: a gate for CI.")
_add(jobs.export, "Write what a framework launches for a plan.")
_add(questions.memory, "Show what fills a GPU, and what would fill it less.")
_add(questions.advise, "Say what to see to before a launch.")
_add(reliability.goodput, "Say how often to checkpoint, and what failures cost.")
_add(reliability.stragglers, "Say what slow GPUs, nodes and links cost.")
_add(studies.sweep, "Answer all questions of a study; resumes where it stopped.")
app.command("sweep show", cls=Grouped, short_help="Show the results of a study.")(studies.show)
_add(jobs.placement, "Place ranks and groups on nodes and rails.")
_add(schedule.schedule, "Draw the pipeline of a plan, slot by slot.")
_add(collectives.collective, "Evaluate one collective operation.")
_add(collectives.roofline, "Show from where on compute binds.")
_add(measurements.validate, "Hold predictions against measured runs.")
measurements.calibrate.command("run")(measurements.calibrate_run)
for _group, _name, _line in (
    (measurements.calibrate, "calibrate", "Fit a cluster to your own measurements."),
    (presets.models, "models", "List and show models."),
    (presets.hardware, "hardware", "List and show GPUs."),
    (presets.clusters, "clusters", "List, show and import clusters."),
    (presets.frameworks, "frameworks", "List and show framework profiles."),
):
    for _command in _group.registered_commands:
        _command.cls = Grouped
    app.add_typer(_group, name=_name, short_help=_line, cls=Commands)
_add(machine.doctor, "Show what there is on this machine to plan with.")
_add(machine.skill, "Print a skill for coding agents.")
_add(jobs.bench, "Measure how fast plans are found here.")


def _version(value: bool) -> None:
    if value:
        from gpuscale import __version__

        typer.echo(f"gpuscale {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has done it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    begin_command()
    context.obj = commands  # for arguments that are flags of another command


@cache
def commands(asked: str = "") -> Any:
    """Return all commands as Click has them, or those alone that begin with a word, as all take a while to build."""
    chosen = copy(app)
    chosen.registered_commands = [one for one in app.registered_commands if _word(one) == asked]
    chosen.registered_groups = [one for one in app.registered_groups if one.name == asked]
    found = chosen.registered_commands or chosen.registered_groups
    return typer.main.get_command(chosen if found else app)


def _word(command: Any) -> str:
    """Return the first word of a command's name."""
    return str(command.name or command.callback.__name__.replace("_", "-")).split()[0]


def run() -> int:
    """Run the command line; turn errors into one message on stderr and an exit code."""
    try:
        code = commands(*sys.argv[1:2]).main(prog_name="gpuscale", standalone_mode=False)
    except GpuscaleError as error:
        code = _report_error(error)
    except USAGE_ERROR as error:
        code = _report_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except OutputError as error:
        code = _report(f"cannot write the output: {error.strerror}", 2)
    except MemoryError:
        hint = "ask for less at once: fewer GPU counts or batches, or a smaller file"
        code = _report("out of memory", CRASHED, hint=hint)
    except Exception as error:  # noqa: BLE001 - whatever it is, scripts must not take it for an answer
        code = _report_defect(error)
    try:
        sys.stdout.flush()
    except OutputError as error:
        code = _report(f"cannot write the output: {error.strerror}", 2)
    return code if isinstance(code, int) else 0


def _report_defect(error: Exception) -> int:
    """Say that gpuscale failed where it should not, and where that was."""
    if os.environ.get("GPUSCALE_DEBUG"):
        traceback.print_exception(error)
        return CRASHED
    *_, last = traceback.extract_tb(error.__traceback__)
    at = f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}"
    hint = "this is a defect of gpuscale, not of the input: please report it with the command and its files;"
    return _report(
        f"{type(error).__name__} at {at}: {str(error)[:300]}",
        CRASHED,
        hint=f"{hint} GPUSCALE_DEBUG=1 shows the traceback",
    )


def _report_error(error: GpuscaleError) -> int:
    """Say what the library refused, with options by their flags; in a file they go by their names."""
    known = flags()
    field = known.get(error.field or "", error.field) if error.place is None else error.field
    where = ": ".join(part for part in (with_flags(error.place or "", known), field) if part)
    hint = None if error.hint is None else with_flags(error.hint, known)
    return _report(with_flags(error.message, known), error.exit_code, place=where, hint=hint)


@cache
def flags() -> dict[str, str]:
    """Return the long flag of every option of every command by the option's name."""
    found: dict[str, str] = {}
    walked: list[Any] = [commands()]
    for command in walked:
        walked += getattr(command, "commands", {}).values()
        found |= {one.name: max(one.opts, key=len) for one in command.params if one.param_type_name == "option"}
    return found


def _report(message: str, exit_code: int, *, place: str | None = None, hint: str | None = None) -> int:
    said = f"error: {place}: {message}" if place else f"error: {message}"
    with contextlib.suppress(OSError):  # nowhere to say it: the exit code does
        sys.stderr.write(printable(said) + (f"\n\nhint: {printable(hint)}\n" if hint else "\n"))
        sys.stderr.flush()
    return exit_code


def _report_usage(error: Any) -> int:
    """Say what Typer found wrong with an option, by the kind of error and what it holds: its words change."""
    kind, param = type(error).__name__, getattr(error, "param", None)
    message, place, hint = str(error.format_message()), None, ""
    exit_code = int(getattr(error, "exit_code", 2))
    if kind == "NoArgsIsHelpError":
        sys.stderr.write(message + "\n")
        return exit_code
    if kind == "NoSuchOption":
        message, near = f"no such option: {error.option_name}", sorted(error.possibilities or ())
        hint = f"did you mean {', '.join(near)}? " if near else ""
        name = str(error.option_name).lstrip("-").lower().replace("-", "_")
        meant = flags().get(ALIASES.get(name, name))
        if meant in {flag for one in error.ctx.command.params for flag in one.opts}:
            hint = f"it is {meant} here; "
    elif param is not None:
        name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or param.name.upper()
        missing = kind == "MissingParameter"
        message, place = (f"missing {param.param_type_name} {name}", None) if missing else (str(error.message), name)
    said = message[:1].lower() + message[1:300].rstrip(".\n ")
    path = getattr(getattr(error, "ctx", None), "command_path", "gpuscale")
    return _report(" ".join(said.split()), exit_code, place=place, hint=f"{hint}`{path} --help` lists what it takes")
