"""`gpuscale plan`, `estimate`, `placement` and `bench`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuscale.cli.answering import Answer, answers, apart
from gpuscale.cli.options import (
    OUTPUT,
    AskedPlan,
    Json,
    LaunchFiles,
    PlanFile,
    Variables,
    files_wanted,
    fills_stdout,
    flags_of,
    option,
    stated_job,
    takes,
    variables,
    whole,
    with_flags,
)
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.files import is_stdout, printable
from gpuscale.render.output import print_json
from gpuscale.request import COMPARED, DEFAULT_TOP, MAX_TOP, PLACING, JobOptions, Layout, Question, part

if TYPE_CHECKING:
    from gpuscale.launch.export import Export
    from gpuscale.launch.improve import Improvement
    from gpuscale.planning.placement import Placement
    from gpuscale.results import PlanResult


WHY_TOP = 3
"""Plans that the text answer to `why` shows if nothing is said."""


@takes(JobOptions, Layout, Question, several=COMPARED, optional=True)
@answers("plan", csv=True, link=True)
def plan(
    given: dict[str, Any],
    launch_files: LaunchFiles = None,
    var: Variables = None,
    output: Annotated[
        Path | None, option("Save a plan as a TOML file.", "FILE", flags="--output -o", panel=OUTPUT)
    ] = None,
    rank: Annotated[int, whole("Rank of the plan that -o saves.", default="1", panel=OUTPUT)] = 1,
    export: Annotated[
        str | None,
        option("Print the launch files of the plan, or write them into the folder -o.", "TARGET", panel=OUTPUT),
    ] = None,
    html: Path | None = None,
    json: bool = False,
    csv: bool = False,
    timing: Annotated[bool, option("Also print how long the search took.", "", flags="--timing", panel=OUTPUT)] = False,
    markdown: bool = False,
    verbose: bool = False,
) -> Answer | None:
    """Find the best parallel layouts to train a model on a cluster.

    Example: gpuscale plan --model llama3-70b --gpus 640

    A SET of values pins a dimension: 8, 4..8, 1,2,4, or !16 for all but 16.
    """
    given = _with_launch_files(given, launch_files, variables(var, launch_files))
    if export is not None and html is not None:
        raise InputError("`export` and `html` are two answers", hint="give one of them")
    if export is not None:
        _plan_export(given, export, output, rank, json=json)
        return None
    apart(html, output)
    streamed = fills_stdout(output, other=json or csv or markdown or is_stdout(html))
    if rank != 1 and output is None:
        raise InputError("only a plan that is saved has a rank", field="rank", hint="add `output=plan.toml`")
    if "pareto" not in given and 0 < given.get("top", DEFAULT_TOP) < rank:
        given["top"] = min(rank, MAX_TOP)
    result = _find_or_say(given, json=json)
    if output is not None:
        from gpuscale.planning.plans import save_plan

        save_plan(output, result, rank)
    if not timing:  # the same question has the same answer, byte for byte
        result = replace(result, search=replace(result.search, elapsed_s=None))
    shown = WHY_TOP if "why" in given and "top" not in given and not verbose else None
    rows = partial(_rows, result)
    return Answer(result, view={"verbose": verbose, "shown": shown}, rows=rows, streamed=streamed)


def _find_or_say(given: dict[str, Any], *, json: bool) -> PlanResult:
    from gpuscale.planning.plans import plan as find_plans

    try:
        return find_plans(**given)
    except NoAnswerError as error:
        if json:
            said = {"message": with_flags(error.message), "hint": with_flags(error.hint or "")}
            print_json("plan", {"plans": [], "nearest_miss": error.nearest_miss, **said})
        raise


def _rows(result: PlanResult) -> list[dict[str, Any]]:
    from gpuscale.render.compared import csv_rows

    for note in result.notes:  # for which no row of a plan has a column
        typer.echo(f"note: {printable(with_flags(note))}", err=True)
    return csv_rows(result)


def _plan_export(given: dict[str, Any], target: str, output: Path | None, rank: int, *, json: bool) -> None:
    from gpuscale.launch.export import exported, writable
    from gpuscale.launch.writing import LaunchFile
    from gpuscale.planning.planfile import plan_file_text
    from gpuscale.planning.plans import chosen_plan
    from gpuscale.planning.plans import plan as find_plans

    given.setdefault("framework", writable(target).frameworks[0])
    result = find_plans(**given)
    chosen = chosen_plan(result, rank)
    made = exported(chosen, target)
    if output is not None:
        plan_file = LaunchFile("plan.toml", plan_file_text(output, chosen.job, chosen.plan))
        made = replace(made, files=(*made.files, plan_file))
    _show_export(made, output, json=json, force=None)


def export(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="A plan saved by `gpuscale plan -o`.")],
    to: Annotated[str, option(
        "Target: megatron-lm, megatron-bridge, nemo, primus, torchtitan, nanotron, deepspeed, accelerate.", "TARGET",
    )],
    output: Annotated[
        Path | None, option("Write the files into a folder.", "DIR", flags="--output -o", panel=OUTPUT)
    ] = None,
    force: Annotated[bool, option("Overwrite existing files.", "", flags="--force", panel=OUTPUT)] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Write what a framework launches for a plan: its options, a script, the cluster's files.

    Example: gpuscale export plan.toml --to megatron-lm -o launch
    """
    from gpuscale.launch.export import export as export_plan

    _show_export(export_plan(plan_file, to), output, json=json, force=force)


def _show_export(made: Export, output: Path | None, *, json: bool, force: bool | None) -> None:
    from gpuscale.launch.export import save_export
    from gpuscale.render.launch import draw_export

    if output is not None:
        save_export(made, output, force=force)
    if json:
        print_json("export", made)
    else:
        draw_export(made, output)


def _with_launch_files(
    options: dict[str, Any], launch_files: list[str] | None, values: Mapping[str, str]
) -> dict[str, Any]:
    if launch_files:
        from gpuscale.launch.read import read_launch
        from gpuscale.request import first_of

        single = {name: first_of(name, value) for name, value in part(options, JobOptions).items()}
        options = {**read_launch(launch_files, values, single).options, **options}
    missing = [flags_of(name)[0] for name in ("model", "gpus") if not {name, "recipe"} & options.keys()]
    if missing:
        raise InputError(f"missing option {missing[0]}", hint="`gpuscale plan --help` lists what it takes")
    return options


@takes(JobOptions, Layout, optional=True)
@answers("estimate", link=True)
def estimate(
    asked: AskedPlan,
    require_fit: Annotated[
        bool, option("Exit with 1 if the layout does not fit.", "", flags="--require-fit", panel=OUTPUT)
    ] = False,
    improve: Annotated[
        bool, option("With --from: faster plans nearby, as changes to these files.", "", flags="--improve")
    ] = False,
    json: bool = False,
    verbose: bool = False,
) -> Answer:
    """Evaluate one layout: step time and peak memory by component.

    Examples: gpuscale estimate plan.toml; gpuscale estimate --model llama3-70b --gpus 640 --tp 8 --pp 4;
    gpuscale estimate --from run.sh

    What --from reads is never executed (docs/launch-files.md).
    """
    from gpuscale.launch.subject import LaunchEstimate, stated_plan

    given, plan_file, launch_files, var, despite_rules = asked
    options, layout, values = part(given, JobOptions), part(given, Layout), variables(var, launch_files)
    if improve and not launch_files:
        raise InputError("changes launch files, and none is given", field="improve", hint="add `launch_files=PATH`")
    stated = stated_plan(plan_file, options, layout, launch_files, values)
    result = stated.estimate(despite_rules=despite_rules)
    read = stated.launch and LaunchEstimate(result, stated.launch)
    better: Sequence[Improvement] = ()
    if improve and read and launch_files:
        from gpuscale.launch.improve import improvements

        better = improvements(read, launch_files, options, layout, values)

    def then() -> None:
        if improve and not json:
            from gpuscale.render.launch import draw_improvements

            draw_improvements(better, result, spell=with_flags)
        if require_fit and not result.plan.fits:
            needed = f"it needs {result.plan.memory_gib:.1f} GiB"
            raise NoAnswerError(f"the layout does not fit: {needed}", hint="`gpuscale plan` finds layouts that do")

    found = {"improvements": [one.to_dict() for one in better]} if improve else {}
    return Answer(read or result, view={"verbose": verbose}, more=found, then=then)


PLACED_BY = ("gpus", *PLACING, "tp", "pp", "cp", "ep", "etp", "dp")
"""Options that say where ranks run; a search for a better order asks for more."""

PLACED = (*PLACED_BY, "seq", "gbs", "calibration")
PLACEMENT = dict.fromkeys(PLACED, "") | {"model": "With --best: rank axis orders by the step time of this model."}


@takes(JobOptions, Layout, optional=True, only=PLACEMENT)
@answers("placement")
def placement(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    best: Annotated[bool, option("Search for a better axis order.", "", flags="--best")] = False,
    ranks: Annotated[
        Path | None, option("Write a CSV: node, GPU, rail, coordinates and groups of each rank.", "FILE")
    ] = None,
    groups: Annotated[
        Path | None, option("Write a CSV: every group of every axis with its nodes, rails and ranks.", "FILE")
    ] = None,
    hostfile: Annotated[Path | None, option("Write a hostfile (Open MPI, DeepSpeed).", "FILE")] = None,
    rankfile: Annotated[Path | None, option("Write a rankfile (Open MPI).", "FILE")] = None,
    slurm: Annotated[
        Path | None, option("Write a SLURM_HOSTFILE, for `srun --distribution=arbitrary`.", "FILE")
    ] = None,
    hosts: Annotated[Path | None, option("Names of nodes, one per line.", "FILE", "node0001, node0002, ...")] = None,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    recipe: str | None = None,
    json: bool = False,
) -> Answer:
    """Show the ranks of each group, the network levels that they span and the links that they share.

    Examples: gpuscale placement plan.toml; gpuscale placement --gpus 640 --tp 8 --pp 4 --best
    """
    from gpuscale.render.placement import placement_json

    wanted, streamed = files_wanted(
        ranks=ranks, groups=groups, hostfile=hostfile, rankfile=rankfile, slurm=slurm, json=json
    )
    result = _placed(given, plan_file, launch_files, var, best=best, hosts=hosts, recipe=recipe)
    if wanted:
        from gpuscale.planning.placement import export_placement

        export_placement(result, wanted)
    return Answer(result, body=lambda: placement_json(result), streamed=streamed)


def _placed(
    given: dict[str, Any],
    plan_file: Path | None,
    launch_files: list[str] | None,
    var: list[str] | None,
    *,
    best: bool = False,
    hosts: Path | None = None,
    recipe: str | None = None,
) -> Placement:
    from gpuscale.planning.placement import place_ranks

    options, layout = stated_job(given, plan_file, launch_files, var)
    if (launch_files or recipe) and not best:
        options = {name: one for name, one in options.items() if name in {"gpus", *PLACING}}
    return place_ranks(layout=layout, plan_file=plan_file, best=best, hosts=hosts, **options)


def placement_of(asked: AskedPlan) -> Answer:
    """Return what `placement` answers of a plan."""
    from gpuscale.render.placement import placement_json

    given = {name: one for name, one in asked.given.items() if name in PLACED_BY}
    found = _placed(given, asked.plan_file, asked.launch_files, asked.var)
    return Answer(found, body=lambda: placement_json(found), name="placement")


@takes(JobOptions, optional=True, only=dict.fromkeys(("model", "gpus"), ""))
@answers("bench")
def bench(
    given: dict[str, Any], runs: Annotated[int, whole("Repetitions; the fastest counts.", default="5")] = 5
) -> Answer:
    """Measure how fast plans are found on this machine: candidates per second, time by stage, memory.

    Example: gpuscale bench --model deepseek-v3 --gpus 2048
    """
    from gpuscale.planning.plans import bench as measure
    from gpuscale.render.measurements import draw_into_nothing

    return Answer(measure(**given, runs=runs, startup_s=time.process_time(), draw=draw_into_nothing))
