"""`gpuscale explain` and `compare`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import (
    OF_RECIPE,
    OUTPUT,
    AskedPlan,
    DespiteRules,
    arguments,
    of_recipe,
    option,
    refuse_two,
    takes,
    whole,
)
from gpuscale.errors import InputError, shown
from gpuscale.request import JobOptions, Layout

if TYPE_CHECKING:
    from gpuscale.launch.subject import Subject


view = partial(option, metavar="", panel="Views")
"""Declare a switch that shows one side of a plan."""


@takes(JobOptions, Layout, optional=True)
@answers("explain")
def explain(
    asked: AskedPlan,
    traffic: Annotated[
        bool, view("Traffic by parallel axis and network level, and the bandwidth it needs.", flags="--traffic")
    ] = False,
    memory: Annotated[bool, view("What `gpuscale memory` shows of the plan.", flags="--memory")] = False,
    pipeline: Annotated[bool, view("What `gpuscale schedule` draws of the plan.", flags="--pipeline")] = False,
    placement: Annotated[bool, view("What `gpuscale placement` shows of the plan.", flags="--placement")] = False,
    depth: Annotated[int | None, whole("Depth of the trees.", default="4", panel=OUTPUT)] = None,
    json: bool = False,
    verbose: bool = False,
) -> Answer:
    """Explain one plan: what bounds it, what would speed it up or flip the choice; step and memory as trees.

    Examples: gpuscale explain plan.toml; gpuscale explain --model llama3-70b --gpus 640 --tp 8 --pp 4;
    gpuscale explain --from run.sh

    A view shows one side of the plan, in every format; the --html page without one has them all.
    """
    from gpuscale.explain.explanation import explain_subject

    _check_depth(depth)
    views = {"traffic": traffic, "memory": memory, "pipeline": pipeline, "placement": placement}
    wanted = [name for name, shown in views.items() if shown]
    if len(wanted) > 1:
        raise InputError(f"`{wanted[0]}` and `{wanted[1]}` are two views of a plan", hint="give one of them")
    if placement:
        from gpuscale.cli.jobs import placement_of

        return placement_of(asked)
    subject = asked.subject()
    if memory:
        from gpuscale.explain.budget import memory_budget

        return Answer(memory_budget(subject), name="memory")
    if pipeline:
        from gpuscale.explain.schedule import schedule

        return Answer(schedule(subject), name="schedule")
    if traffic and not json:
        from gpuscale.explain.traffic import traffic_of

        return Answer(traffic_of(subject), view={"subject": subject})
    found = explain_subject(subject, lambda made: arguments("estimate", made), traffic=json)
    return Answer(found, view={"subject": subject, "depth": depth, "verbose": verbose})


Asked = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="A plan file, a launch file or folder, or the flags of `estimate` in quotes."),
]


@answers("compare")
def compare(
    context: typer.Context,
    a: Asked,
    b: Asked,
    despite_rules: DespiteRules = False,
    depth: Annotated[int | None, whole("Depth of the tree.", default="5", panel=OUTPUT)] = None,
    verbose: bool = False,
) -> Answer:
    """Compare two plans: which is faster, and where the time and the memory went.

    Examples: gpuscale compare a.toml b.toml; gpuscale compare run.sh "--from run.sh --tp 4";
    gpuscale compare "--model llama3-70b --gpus 640 --tp 8 --pp 4" "--model llama3-70b --gpus 640 --tp 4 --pp 8"
    """
    from gpuscale.explain.comparison import compare as compare_plans

    _check_depth(depth)
    subjects = []
    for name, text in (("A", a), ("B", b)):
        try:
            subjects.append(_asked(context, text, despite_rules=despite_rules))
        except InputError as error:
            error.place = f"plan {name}: {error.place}" if error.place else f"plan {name}"
            raise
    return Answer(compare_plans(*subjects), view={"depth": depth, "verbose": verbose})


def _check_depth(depth: int | None) -> None:
    if depth is not None and depth < 0:
        raise InputError(f"{depth} is out of range", field="depth", hint="give 0 or more")


def _asked(context: typer.Context, text: str, *, despite_rules: bool) -> Subject:
    """Read the plan that an argument of `compare` means."""
    from gpuscale.files import kind_of
    from gpuscale.launch.subject import read_subject

    words, path = text.strip(), Path(text)
    if not words:
        raise InputError("nothing is given", hint="give a plan file, a launch file or folder, or flags in quotes")
    if not words.startswith("-"):
        if kind_of(path) in {"plan", "training", "study", "results", "answer", "cluster"}:  # the last are refused
            return read_subject(path, despite_rules=despite_rules)
        return read_subject(launch_files=[text], despite_rules=despite_rules)
    given = _flags(context, "explain", words)
    if OF_RECIPE in given:
        refuse_two(plan_file=given.get("plan_file"), launch_files=given.get("launch_files"))
        given = of_recipe(given, given.pop(OF_RECIPE))
    despite_rules |= "despite_rules" in given
    return AskedPlan(
        given, given.get("plan_file"), given.get("launch_files"), given.get("var"), despite_rules
    ).subject()


def _flags(context: typer.Context, command: str, text: str) -> dict[str, Any]:
    """Return the options that a string of flags gives, as a command takes them."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{shown(text)}: {error}", hint="close the quotes in it") from None
    root = context.find_root()  # as parent: a command keeps the help option of its first context
    params = root.obj(command).make_context(command, words, parent=root).params
    return {name: value for name, value in params.items() if value not in (None, False, [], ())}
