"""The command line's options, made from the declarations in `gpuscale.request`; here alone options have flags."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gpuscale.errors import InputError, shown
from gpuscale.files import is_stdout, printable
from gpuscale.request import (
    OPTIONS,
    Declared,
    JobOptions,
    Layout,
    Length,
    Means,
    Noise,
    Options,
    Question,
    Recovery,
    Sites,
    Slow,
    declared,
    part,
    read_plain,
)
from gpuscale.units import NUMBER

if TYPE_CHECKING:
    from gpuscale.launch.subject import Subject

OF_RECIPE = "of_recipe"
"""Parameter of a command whose function takes no recipe, but its options."""

FLAGS = {
    "model": "--model -m",
    "gpus": "--gpus -n",
    "cluster": "--cluster -c --gpu",
    "memory_limit_gib": "--memory-limit",
    "axis_order": "--order",
    "micro_batch_size": "--mbs",
    "unfold": "--all",
    "train_tokens": "--train-tokens --tokens",
    OF_RECIPE: "--recipe",
}
"""Flags that are not the option's name with dashes."""

PANELS: dict[type[Options], str] = {
    JobOptions: "Job",
    Layout: "Layout",
    Question: "Question",
    Length: "Question",
    Means: "Question",
    Noise: "Question",
    Recovery: "Failures",
    Slow: "Slow parts",
    Sites: "Sites",
}
OUTPUT = "Output"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=OUTPUT)]
Toml = Annotated[
    bool, typer.Option("--toml", help="Print the file itself, as a start for your own.", rich_help_panel=OUTPUT)
]
PlanFile = Annotated[
    Path | None, typer.Argument(metavar="PLAN.toml", help="A plan saved by `gpuscale plan -o`.", show_default=False)
]
LaunchFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        help="A launch file of a framework, or a folder of them; repeatable. Other options override it.",
        metavar="PATH[:LINE]", rich_help_panel=PANELS[JobOptions], show_default=False,
    ),
]  # fmt: skip
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--var", "--arg",
        help="With --from: value of a variable that the script does not set, or of its first argument (1); repeatable.",
        metavar="NAME=VALUE", rich_help_panel=PANELS[JobOptions], show_default=False,
    ),
]  # fmt: skip


def variables(given: list[str] | None, launch_files: list[str] | None) -> dict[str, str]:
    """Return the variables that are given for launch files."""
    if given and not launch_files:
        from gpuscale.launch.subject import refuse_variables

        refuse_variables(given, launch_files)
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w[\w.]{0,99}|[@*]", name, re.ASCII):
            raise InputError(f"{shown(text)} is not NAME=VALUE", field="var", hint="write `var=NODES=16`")
        if name in found:
            raise InputError(f"{name} is given twice", field="var", hint="give each variable once")
        found[name] = value
    return found


class AskedPlan(NamedTuple):
    """The plan that a command is about: of a file, of launch files or of flags."""

    given: Mapping[str, Any]  #: options of the job and its layout, and others of the command.
    plan_file: Path | None
    launch_files: list[str] | None
    var: list[str] | None
    despite_rules: bool

    def subject(self) -> Subject:
        """Read it."""
        from gpuscale.launch.subject import read_subject

        job, values = (part(self.given, JobOptions), part(self.given, Layout)), variables(self.var, self.launch_files)
        return read_subject(self.plan_file, *job, self.launch_files, values, despite_rules=self.despite_rules)


def stated_job(
    given: Mapping[str, Any], plan_file: Path | None, launch_files: list[str] | None, var: list[str] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a job and its layout: those given, then those of launch files."""
    options, layout, values = part(given, JobOptions), part(given, Layout), variables(var, launch_files)
    if not launch_files:
        return options, layout
    from gpuscale.launch.subject import stated_plan

    stated = stated_plan(plan_file, options, layout, launch_files, values)
    return dict(stated.options), dict(stated.layout)


def fills_stdout(output: Path | None, *, other: bool, field: str = "output") -> bool:
    """Whether a file to write (`field`) is the standard output, where `other` documents may not go then."""
    if not is_stdout(output):
        return False
    if other:
        raise InputError("two documents on one stream", field=field, hint="give a file")
    return True


def files_wanted(*, json: bool, **files: Path | None) -> tuple[dict[str, Path], bool]:
    """Return the files that are to be written, by option, and whether one is the standard output."""
    wanted, streamed = {kind: path for kind, path in files.items() if path is not None}, False
    for kind, path in wanted.items():
        streamed |= fills_stdout(path, other=json or streamed, field=kind)
    return wanted, streamed


def known(kind: str, name: str) -> str:
    """Return a preset's own name; say on stderr what a short one means."""
    from gpuscale.presets.files import settled

    own, note = settled(kind, name)
    if note:
        typer.echo(f"note: {printable(note)}", err=True)
    return own


def option(
    help_text: str,
    metavar: str = "N",
    default: str = "",
    flags: str = "",
    panel: str | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """Declare an option of one command; `flags` if they are not its name with dashes."""
    text = f"{help_text}  [default: {default}]" if default else help_text
    return typer.Option(
        *flags.split(), help=text, metavar=metavar or None, rich_help_panel=panel, show_default=False, parser=parser
    )


def plain(kind: type, low: float = -math.inf, high: float = math.inf) -> Callable[[Any], Any]:
    """Return what reads a number without a unit, within limits."""

    def parse(given: Any) -> Any:
        try:
            value = read_plain(given, kind) if isinstance(given, str) else given
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if not low <= value <= high:
            raise typer.BadParameter(f"{value:,} is out of range: give {low:,} to {high:,}")
        return value

    return parse


whole, number = (partial(option, parser=plain(kind)) for kind in (int, float))
"""Declare an option of one command that takes a number without a unit."""

DespiteRules = Annotated[
    bool, option("Evaluate the layout even if the framework's rules refuse it, as a fork may allow it.", "",
                 flags="--despite-rules"),
]  # fmt: skip

_OF_PLAN = [
    Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    for name, kind, default in (
        ("plan_file", PlanFile, None), ("despite_rules", DespiteRules, False), ("launch_files", LaunchFiles, None),
        ("var", Variables, None),
    )
]  # fmt: skip
"""Parameters of a command that is about one plan."""


def takes(
    *kinds: type[Options], several: Collection[str] = (), optional: bool = False, only: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these kinds; it receives those that were given, by name, as its first argument, or
    where that is an `AskedPlan`, with the options that say of which plan.

    One that reads launch files takes a recipe too, whose options stand among those that were given; where it has a
    parameter of that name, it is told which.

    Args:
        several: options that take several values; those of a layout then take a set of them.
        optional: none is required, as a file may hold them.
        only: the options wanted, and what to say of them where that is not what they are declared with.
    """
    build = partial(_parameter, several=several, optional=optional)
    made = [
        build(name, one, PANELS[JobOptions if name == "recipe" else kind], said=(only or {}).get(name, ""))
        for kind in kinds
        for name, one in declared(kind).items()
        if (only is None or name in only)
    ]

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        first, *own = signature(command, eval_str=True).parameters.values()
        of_plan = _OF_PLAN if first.annotation is AskedPlan else []
        own = [*of_plan, *own]
        told = any(one.name == "recipe" for one in own)
        own = [one for one in own if one.name != "recipe"]
        files = [one.name for one in own if one.name in {"plan_file", "launch_files"}]
        ranks = any(one.name == "recipe" for one in made)  # and takes the job of a recipe itself
        recipes = [_recipe()] if "launch_files" in files and not ranks else []
        beside = _BESIDE if "launch_files" in files else []

        def run(**values: Any) -> None:
            given = {one.name: values.pop(one.name) for one in made}
            absent = [name for name, value in given.items() if value is None or value is False or value == []]
            given = {name: value for name, value in given.items() if name not in absent}
            recipe = values.pop(OF_RECIPE, None) if recipes else given.get("recipe")
            if beside:
                values["var"] = _with_beside(values)
            if recipe:
                refuse_two(**{name: values[name] for name in files})
            if recipe and recipes:
                given = {name: one for name, one in of_recipe(given, recipe).items() if name in {*given, *absent}}
            stated = recipe or any(values.get(name) for name in files) or given.get("find") == "gpus"
            if only is None and "gpus" in absent and not stated and _is_card(given.get("cluster")):
                given["gpus"] = 1
            asked = AskedPlan(given, **{one.name: values.pop(one.name) for one in of_plan}) if of_plan else given
            command(asked, **values, **({"recipe": recipe} if told else {}))

        every = [*made, *recipes, *beside, *(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own)]
        run.__signature__ = Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in every}
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        return run

    return wrap


def _is_card(cluster: Any) -> bool:
    """Whether a cluster is named by a card, of which its users have one unless they say how many."""
    names = cluster if isinstance(cluster, list) else [cluster]
    if len(names) != 1 or not isinstance(names[0], str) or names[0].startswith("box-"):
        return False
    from gpuscale.presets.files import card_named

    return card_named(names[0]) is not None


_BESIDE = [
    Parameter(
        "args", Parameter.KEYWORD_ONLY, default=None,
        annotation=Annotated[str | None, typer.Option(
            "--args", help='With --from: the arguments of the script, as they stand behind it: "dsw 70B".',
            metavar="TEXT", rich_help_panel=PANELS[JobOptions], show_default=False,
        )],
    ),
    Parameter(
        "assume", Parameter.KEYWORD_ONLY, default=False,
        annotation=Annotated[bool, typer.Option(
            "--assume", help="With --from: take what the files suggest for what they do not state.",
            rich_help_panel=PANELS[JobOptions], show_default=False,
        )],
    ),
]  # fmt: skip
"""Parameters of commands that read launch files, which say more of variables."""


def _with_beside(values: dict[str, Any]) -> list[str] | None:
    arguments, assume = values.pop("args", None), values.pop("assume", False)
    more = [*([f"@={arguments}"] if arguments is not None else []), *(["*=suggested"] if assume else [])]
    return [*(values.get("var") or ()), *more] or None


def _recipe() -> Parameter:
    declaration = declared(Question)["recipe"]
    return _parameter(OF_RECIPE, declaration, PANELS[JobOptions], several=(), optional=True, said="")


def of_recipe(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return options, with a recipe's where they are not given."""
    from gpuscale.planning.recipes import find_recipe, with_recipe

    options, layout = with_recipe(find_recipe(name), part(given, JobOptions), part(given, Layout))
    return {**given, **options, **layout}


def refuse_two(**sources: object) -> None:
    """Refuse a recipe beside a file that states a job."""
    words = {"plan_file": "a plan file", "launch_files": "launch files"}
    other = next((words[name] for name, value in sources.items() if value), None)
    if other:
        raise InputError(f"a recipe and {other} are two jobs", field="recipe", hint="give one of them")


def _parameter(
    name: str, one: Declared, panel: str, *, several: Collection[str], optional: bool, said: str
) -> Parameter:
    option, kinds = one.option, one.kinds
    compared = name in several and bool not in kinds
    made: Any = next((kind for kind in (bool, int, float) if kind in kinds), str)
    if panel == PANELS[Layout] or compared or str in kinds or option.normal or option.quantity is not NUMBER:
        made = str
    if name == "gpu_hour_price" or option.repeatable or (name == "cluster" and compared):
        made = list[str]
    metavar = f"{option.metavar}|LIST" if compared and made is str else option.metavar
    metavar = "SET" if several and panel == PANELS[Layout] and not compared else metavar
    help_text = said or option.help
    if option.choices:
        *most, last = option.choices
        help_text = f"{help_text.removesuffix('.')}: {', '.join(most)} or {last}."
    default = option.default or ("" if one.default in (None, (), {}) else f"{one.default}")
    if default and made is not bool and metavar != "SET":
        help_text += f"  [default: {default}]"
    flags = flags_of(name)
    info = typer.Option(
        *flags, help=help_text, rich_help_panel=panel, metavar=None if made is bool else metavar, show_default=False,
        parser=plain(made) if made in {int, float} else None,
    )  # fmt: skip
    required = one.required and not optional
    absent = Parameter.empty if required else False if made is bool else None
    value = made if absent is not None else made | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=absent, annotation=Annotated[value, info])


def arguments(command: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a command's arguments for these options."""
    found = [command]
    for name, value in options.items():
        found.append(flags_of(name)[0])
        if name in OPTIONS:  # the others are switches
            found.append({True: "on", False: "off"}[value] if isinstance(value, bool) else str(value))
    return tuple(found)


def flags_of(name: str) -> list[str]:
    """Return the flags of an option, the long one first."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}").split()


def with_flags(text: str, flags: Mapping[str, str] | None = None) -> str:
    """Write options as flags, of jobs, layouts and questions if no others are given: `seq` as --seq, `grad_dtype=bf16`
    as --grad-dtype bf16; other words keep their quotes."""

    spelling = {name: flags_of(name)[0] for name in OPTIONS} if flags is None else flags

    def spelled(match: re.Match[str]) -> str:
        own = spelling.get(match[1])
        words = [own, match[2]]
        return " ".join(word for word in words if word is not None) if own else match[0]

    return re.sub(r"`(\w+)(?:=([^`]*))?`", spelled, text)
