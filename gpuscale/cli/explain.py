"""`gpuscale explain` and `compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuscale.cli.options import (
    OUTPUT,
    DespiteRules,
    Html,
    Json,
    LaunchFiles,
    PlanFile,
    Variables,
    Verbose,
    arguments,
    asked_plan,
    option,
    page_fills_stdout,
    save_page,
    takes,
    whole,
    with_flags,
)
from gpuscale.errors import InputError, shown
from gpuscale.render.output import print_json
from gpuscale.request import JobOptions, Layout

if TYPE_CHECKING:
    from gpuscale.launch.subject import Subject


@takes(JobOptions, Layout, optional=True)
def explain(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    despite_rules: DespiteRules = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    traffic: Annotated[
        bool,
        option("What travels over which level, and what the network must give.", "", panel=OUTPUT, flags="--traffic"),
    ] = False,
    depth: Annotated[int | None, whole("Levels of the trees.", default="4", panel=OUTPUT)] = None,
    html: Html = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Explain one plan: what binds it, what would help, what would flip the choice; step and memory as trees.

    Examples: gpuscale explain plan.toml; gpuscale explain --model llama3-70b --gpus 640 --tp 8 --pp 4;
    gpuscale explain --from run.sh
    """
    from gpuscale.explain.explanation import explain_subject

    _check_depth(depth)
    streamed = page_fills_stdout(html, other=json)
    subject = asked_plan(given, plan_file, launch_files, var, despite_rules=despite_rules)
    words = traffic and not json
    found = None
    if html is not None or not (words or streamed):
        found = explain_subject(subject, lambda made: arguments("estimate", made), traffic=json)
    save_page(html, subject, said=found)
    if streamed:
        return
    if words or found is None:
        from gpuscale.explain.traffic import traffic_of
        from gpuscale.render.traffic import draw_traffic

        draw_traffic(subject, traffic_of(subject), with_flags)
        return
    if json:
        print_json("explain", found)
    else:
        from gpuscale.render.explain import draw_explanation

        draw_explanation(found, depth=depth, verbose=verbose, spell=with_flags)


Asked = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="A plan file, a launch file or folder, or the flags of `estimate` in quotes."),
]


def compare(
    context: typer.Context,
    a: Asked,
    b: Asked,
    despite_rules: DespiteRules = False,
    depth: Annotated[int | None, whole("Levels of the tree.", default="5", panel=OUTPUT)] = None,
    html: Html = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare two plans: which is faster, and where the time and the memory went.

    Examples: gpuscale compare a.toml b.toml; gpuscale compare run.sh "--from run.sh --tp 4";
    gpuscale compare "--model llama3-70b --gpus 640 --tp 8 --pp 4" "--model llama3-70b --gpus 640 --tp 4 --pp 8"
    """
    from gpuscale.explain.comparison import compare as compare_plans

    _check_depth(depth)
    streamed = page_fills_stdout(html, other=json)
    subjects = []
    for name, text in (("A", a), ("B", b)):
        try:
            subjects.append(_asked(context, text, despite_rules=despite_rules))
        except InputError as error:
            error.place = f"plan {name}: {error.place}" if error.place else f"plan {name}"
            raise
    found = compare_plans(*subjects)
    save_page(html, found)
    if streamed:
        return
    if json:
        print_json("compare", found)
    else:
        from gpuscale.render.comparison import draw_comparison

        draw_comparison(found, depth=depth, verbose=verbose, spell=with_flags)


def _check_depth(depth: int | None) -> None:
    if depth is not None and depth < 0:
        raise InputError(f"{depth} is out of range", field="depth", hint="give 0 or more")


def _asked(context: typer.Context, text: str, *, despite_rules: bool) -> Subject:
    """Read the plan that an argument of `compare` means."""
    from gpuscale.file_kinds import kind_of
    from gpuscale.launch.subject import read_subject

    words, path = text.strip(), Path(text)
    if not words:
        raise InputError("nothing is given", hint="give a plan file, a launch file or folder, or flags in quotes")
    if not words.startswith("-"):
        if kind_of(path) in {"plan", "training", "study", "results", "answer", "cluster"}:  # the last are refused
            return read_subject(path, despite_rules=despite_rules)
        return read_subject(launch_files=[text], despite_rules=despite_rules)
    given = _flags(context, "explain", words)
    despite_rules |= "despite_rules" in given
    return asked_plan(
        given, given.get("plan_file"), given.get("launch_files"), given.get("var"), despite_rules=despite_rules
    )


def _flags(context: typer.Context, command: str, text: str) -> dict[str, Any]:
    """Return the options that a string of flags gives, as a command takes them."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{shown(text)}: {error}", hint="close what is quoted in it") from None
    root = context.find_root()  # as parent: a command keeps the help option of its first context
    params = root.obj(command).make_context(command, words, parent=root).params
    return {name: value for name, value in params.items() if value not in (None, False, [], ())}
