"""The `gpuscale` command: its subcommands by name, whose modules are loaded when called, and errors as one message on
stderr with an exit code.
"""

import contextlib
import os
import sys
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from gpuscale.cli.streams import OutputError
from gpuscale.errors import GpuscaleError, InputError, did_you_mean, shown
from gpuscale.files import begin_command, kind_of, printable, use_of
from gpuscale.version import __version__


class Entry(NamedTuple):
    """A command."""

    name: str  #: one word or two.
    home: str  #: module of `gpuscale.cli` and function.
    line: str  #: what it is for.
    grouped: bool = False  #: the first of its two words is a group, not a command.
    takes_flags: bool = False  #: its arguments may be quoted strings of flags.


JOBS = {
    "Find and inspect a plan": (
        Entry("plan", "jobs:plan", "Find the best layouts of a training job."),
        Entry("estimate", "jobs:estimate", "Evaluate one layout: step time and memory."),
        Entry("explain", "explain:explain", "Explain one plan: time and memory as trees."),
        Entry("explain checklist", "explain:advise", "Print the checklist before a launch."),
        Entry("compare", "explain:compare", "Compare two plans: where the difference comes from.", takes_flags=True),
        Entry("memory", "explain:memory", "Break down peak memory, and show what reduces it."),
        Entry("schedule", "explain:schedule", "Draw the pipeline schedule of a plan."),
        Entry("placement", "jobs:placement", "Map ranks and groups to nodes and rails."),
    ),
    "Launch it": (
        Entry("check", "gate:check", "Check a job before launch: a gate for CI."),
        Entry("export", "jobs:export", "Write the launch files of a plan."),
        Entry("tune", "measurements:tune", "Propose the next layout to try, by what was measured so far."),
    ),
    "Plan a whole training run": (
        Entry("train-time", "training:train_time", "Estimate time, cost and energy of a training run."),
        Entry("size", "training:size", "Choose a model size, or the number of GPUs."),
        Entry("size batch", "training:batch_size", "Choose a batch size."),
        Entry("fleet", "training:fleet", "Compare ways to use a heterogeneous cluster."),
        Entry("reliability", "training:goodput", "Estimate goodput, and when to checkpoint."),
        Entry("reliability stragglers", "training:stragglers", "Estimate what slow GPUs, nodes and links cost."),
    ),
    "Study parts, or thousands of jobs": (
        Entry("collective", "collectives:collective", "Evaluate one collective operation."),
        Entry("roofline", "collectives:roofline", "Show where training becomes compute-bound."),
        Entry("sweep", "studies:sweep", "Run a study; resumes where it stopped."),
        Entry("sweep show", "studies:show", "Show the results of a study."),
    ),
    "Validate, calibrate and look up": (
        Entry("validate", "measurements:validate", "Compare predictions with measured runs."),
        Entry("calibrate nccl", "measurements:calibrate_nccl", "Fit a cluster's collectives to nccl-tests logs.", True),
        Entry("calibrate gpu", "measurements:calibrate_gpu", "Measure a GPU's kernels, and fit its constants.", True),
        Entry("calibrate run", "measurements:calibrate_run", "Fit predictions to your training runs.", True),
        Entry("calibrate topology", "presets:import_cluster_files", "Make a cluster file from what other tools report.",
              True),
        Entry("show models", "presets:models", "List the models, or show one: shape, parameters, FLOPs.", True),
        Entry("show hardware", "presets:hardware", "List the GPUs, or show one, with sources.", True),
        Entry("show clusters", "presets:clusters", "List the clusters, or show one, level by level.", True),
        Entry("show frameworks", "presets:frameworks", "List the framework profiles, or show one.", True),
        Entry("show recipes", "presets:recipes", "List the published recipes, or show one, with its source.", True),
        Entry("show skill", "presets:skill", "Print a skill for coding agents.", True),
        Entry("doctor", "presets:doctor", "Show what this machine offers for planning."),
        Entry("mcp", "agents:mcp", "Serve these commands as tools to coding agents."),
    ),
}  # fmt: skip
"""What one comes for -> its commands."""

COMMON = {
    "model", "gpus", "cluster", "framework", "precision", "seq", "gbs", "launch_files", "tp", "pp", "ep", "zero",
    "micro_batch_size", "recompute", "top", "why", "train_tokens", "days", "spares", "output", "html", "json",
}  # fmt: skip
"""Options that most people need, which `--help` of a command with many lists alone."""

COMMON_OF = {
    "plan": COMMON - {"tp", "pp", "ep", "zero", "micro_batch_size", "recompute", "train_tokens", "days", "spares"}
}
"""The same of commands where fewer will do: `plan` finds the layout by itself."""

MANY = 30
"""Options from which on a command has many."""

HIDDEN = (Entry("bench", "jobs:bench", "Measure how fast plans are found on this machine."),)
"""Commands that help does not list."""

COMMANDS = (*(entry for entries in JOBS.values() for entry in entries), *HIDDEN)

GROUPS = (
    ("calibrate", "Calibrate to your own measurements.", "Calibrate predictions to your own measurements."),
    ("show", "List models, GPUs, clusters, frameworks and recipes.",
     "List the presets, or show one with the source of every number."),
)  # fmt: skip
"""First words of names that are no command: what all commands' help says of it, and its own."""

ALIASES = {
    "goodput": "reliability", "stragglers": "reliability stragglers", "batch-size": "size batch",
    "advise": "explain checklist", "skill": "show skill", "clusters import": "calibrate topology",
    **{f"{kind}{verb}": f"show {kind}" for kind in ("models", "hardware", "clusters", "frameworks")
       for verb in ("", " list", " show")},
}  # fmt: skip
"""Names that commands had before, which go on for one release -> their names."""


INTERRUPTED, CRASHED = 130, 3
"""Exit codes after Ctrl-C, and after a defect of gpuscale itself or for lack of memory."""

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""`ClickException`, of which newer versions of Typer carry a copy."""


class Grouped(TyperCommand):
    """A command whose help lists options by their panel; of many those that most people need."""

    whole_help = False

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by their panel."""
        groups: dict[str, list[tuple[str, str]]] = {}
        declared = {param.name for param in self.params if param.param_type_name == "option"}
        few = self.whole_help or len(declared) < MANY
        left_out = set() if few else declared - COMMON_OF.get(str(self.name), COMMON)
        for param in self.get_params(ctx):
            lines = param.get_help_record(ctx)
            if lines is not None and param.name not in left_out:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(lines)
        if left_out:
            groups.setdefault("Options", []).append(("--help-all", f"Show the {len(left_out)} other options too."))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an argument too many; say what it is where it is a file."""
        if "--help-all" in args:
            self.whole_help, args = True, ["--help"]
        ctx.allow_extra_args = True
        stray = list(super().parse_args(ctx, args))
        if stray and not ctx.resilient_parsing:
            kind = kind_of(Path(stray[0]))
            hint = use_of(kind, Path(stray[0])) if kind else f"`{ctx.command_path} --help` lists what it takes"
            raise InputError(f"{shown(stray[0])} is an argument too many", hint=hint)
        return stray


class Named(TyperCommand):
    """A command known by name and line; its module is loaded when needed."""

    def __init__(self, entry: Entry) -> None:
        name = entry.name.split()[-1] if entry.grouped else entry.name
        super().__init__(name, short_help=entry.line, hidden=entry in HIDDEN)
        self.entry = entry

    def loaded(self) -> Any:
        """Return the command itself."""
        module, function = self.entry.home.split(":")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        kind = TakesFlags if self.entry.takes_flags else Grouped
        make = alone.command(self.name, cls=kind, short_help=self.entry.line, hidden=self.hidden)
        make(getattr(import_module(f"gpuscale.cli.{module}"), function))
        return typer.main.get_command(alone)


class Commands(TyperGroup):
    """Commands by name, also of two words: `sweep` and `sweep show`."""

    whole_help = False

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Take --help-all for the help of every command."""
        self.whole_help = args[:1] == ["--help-all"]
        return super().parse_args(ctx, ["--help"] if self.whole_help else args)

    def get_params(self, ctx: Any) -> Any:
        """Return the switches; for one without a default Typer would load pydantic."""
        switches = super().get_params(ctx)
        for one in switches:
            one.default = False
        return switches

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take two words for one name where they are one."""
        for count in (2, 1):
            renamed = ALIASES.get(" ".join(args[:count])) if ctx.parent is None else None
            if renamed:
                args = [*renamed.split(), *args[count:]]
                break
        two = " ".join(args[:2])
        if two in self.commands:
            args = [two, *args[2:]]
        elif not (args[0] in self.commands or args[0].startswith("-") or ctx.resilient_parsing):
            hint = did_you_mean(args[0], self.commands) + f"`{ctx.command_path} --help` lists all"
            raise InputError(f"no such command {shown(args[0])}", hint=hint)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.loaded() if isinstance(command, Named) else command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by what one comes for; those of a group as they come."""
        if ctx.parent is not None:
            super().format_commands(ctx, formatter)
            return
        words = {name: line for name, line, _ in GROUPS}
        for title, entries in (JOBS | {"Beside these": HIDDEN} if self.whole_help else JOBS).items():
            whole = self.whole_help
            lines = {one.name.split()[0] if one.grouped and not whole else one.name: one.line for one in entries}
            with formatter.section(title):
                formatter.write_dl([(name, words.get(name, line)) for name, line in lines.items()])


class TakesFlags(Grouped):
    """A command whose arguments may be quoted strings of flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take an argument of several words for one value."""
        return list(super().parse_args(ctx, [f" {one}" if one.startswith("-") and " " in one else one for one in args]))


def _version(value: bool) -> None:
    if value:
        typer.echo(f"gpuscale {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="gpuscale",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Plan the parallelism of LLM training: rank the layouts of a model on a cluster, with reasons.",
    epilog="--help-all lists every command, and after a command all of its options. "
    "Exit codes: 0 an answer, 1 no answer (nothing fits), 2 unusable input, 3 a bug in gpuscale.",
)


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has done it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    begin_command()
    context.obj = lambda name: commands().commands[name].loaded()  # for arguments that are flags of another command


@cache
def commands() -> Any:
    """Return the root of all commands, none of them loaded."""
    root: Any = typer.main.get_command(app)
    for name, line, text in GROUPS:
        below = [Named(one) for one in COMMANDS if one.grouped and one.name.split()[0] == name]
        root.commands[name] = Commands(
            name=name, short_help=line, help=text, no_args_is_help=True, rich_markup_mode=None,
            commands={str(one.name): one for one in below},
        )  # fmt: skip
    root.commands |= {one.name: Named(one) for one in COMMANDS if not one.grouped}
    order = list(dict.fromkeys(one.name.split()[0] if one.grouped else one.name for one in COMMANDS))
    root.commands = {name: root.commands[name] for name in order}
    return root


@cache
def named() -> dict[str, Any]:
    """Return every command by its whole name, loaded; groups too."""
    found: dict[str, Any] = {}
    for name, command in commands().commands.items():
        found[name] = command.loaded() if isinstance(command, Named) else command
        found |= {f"{name} {one}": below.loaded() for one, below in getattr(command, "commands", {}).items()}
    return found


def run() -> int:
    """Run the command line; errors become one message on stderr and an exit code."""
    try:
        code = commands().main(prog_name="gpuscale", standalone_mode=False)
    except GpuscaleError as error:
        code = _report_error(error)
    except USAGE_ERROR as error:
        code = _report_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except OutputError as error:
        code = _report(f"cannot write the output: {error.strerror}", 2)
    except MemoryError:
        hint = "ask for less at a time: fewer GPU counts or batches, or a smaller file"
        code = _report("out of memory", CRASHED, hint=hint)
    except Exception as error:  # noqa: BLE001 - whatever it is, scripts must not take it for an answer
        code = _report_defect(error)
    try:
        sys.stdout.flush()
    except OutputError as error:
        code = _report(f"cannot write the output: {error.strerror}", 2)
    return code if isinstance(code, int) else 0


def _report_defect(error: Exception) -> int:
    if os.environ.get("GPUSCALE_DEBUG"):
        traceback.print_exception(error)
        return CRASHED
    *_, last = traceback.extract_tb(error.__traceback__)
    at = f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}"
    hint = "this is a bug in gpuscale, not in the input: please report it with the command and its files;"
    what = f"{type(error).__name__} at {at}: {str(error)[:300]}"
    return _report(what, CRASHED, hint=f"{hint} GPUSCALE_DEBUG=1 shows the traceback")


def _report_error(error: GpuscaleError) -> int:
    """Say what the library refused, options by their flags, but in a file by their names."""
    from gpuscale.cli.options import with_flags

    known = flags()
    field = known.get(error.field or "", error.field) if error.place is None else error.field
    where = ": ".join(part for part in (with_flags(error.place or "", known), field) if part)
    hint = None if error.hint is None else with_flags(error.hint, known)
    return _report(with_flags(error.message, known), error.exit_code, place=where, hint=hint)


@cache
def flags() -> dict[str, str]:
    """Return the long flag of every option of every command."""
    found: dict[str, str] = {}
    for command in (commands(), *named().values()):
        found |= {one.name: max(one.opts, key=len) for one in command.params if one.param_type_name == "option"}
    return found


def _report(message: str, exit_code: int, *, place: str | None = None, hint: str | None = None) -> int:
    said = f"error: {place}: {message}" if place else f"error: {message}"
    with contextlib.suppress(OSError):  # nowhere to say it: the exit code does
        sys.stderr.write(printable(said) + (f"\n\nhint: {printable(hint)}\n" if hint else "\n"))
        sys.stderr.flush()
    return exit_code


def _report_usage(error: Any) -> int:
    """Say what Typer refused, by the kind of error: its words change."""
    kind, param = type(error).__name__, getattr(error, "param", None)
    message, place, hint = str(error.format_message()), None, ""
    exit_code = int(getattr(error, "exit_code", 2))
    if kind == "NoArgsIsHelpError":
        sys.stderr.write(message + "\n")
        return exit_code
    if kind == "NoSuchOption":
        from gpuscale.arguments import ALIASES

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
