"""`gpuscale explain`, `compare`, `memory` and `schedule`: what a plan is made of, and its checklist."""

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
    files_wanted,
    fills_stdout,
    flags_of,
    of_recipe,
    option,
    refuse_two,
    takes,
    whole,
    with_flags,
)
from gpuscale.errors import InputError, shown
from gpuscale.request import OPTIONS, JobOptions, Layout, part, without

if TYPE_CHECKING:
    from gpuscale.launch.subject import Subject

view = partial(option, metavar="", panel="Views")


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
    from gpuscale.explain.choice import compare as compare_plans

    _check_depth(depth)
    subjects = []
    for name, text in (("A", a), ("B", b)):
        try:
            subjects.append(_asked(context, text, despite_rules=despite_rules))
        except InputError as error:
            if error.field in OPTIONS and not error.place:
                error.field = flags_of(error.field)[0]
            error.place = f"plan {name}: {error.place}" if error.place else f"plan {name}"
            raise
    return Answer(compare_plans(*subjects), view={"depth": depth, "verbose": verbose})


def _check_depth(depth: int | None) -> None:
    if depth is not None and depth < 0:
        raise InputError(f"{depth} is out of range", field="depth", hint="give 0 or more")


def _asked(context: typer.Context, text: str, *, despite_rules: bool) -> Subject:
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
    for name in without(given, JobOptions, Layout).keys() - {"plan_file", "launch_files", "var", "despite_rules"}:
        raise InputError(f"{flags_of(name)[0]} is of an answer, not of a plan", hint="give it outside of the quotes")
    return AskedPlan(
        given, given.get("plan_file"), given.get("launch_files"), given.get("var"), despite_rules
    ).subject()


def _flags(context: typer.Context, command: str, text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{shown(text)}: {error}", hint="close the quotes in it") from None
    root = context.find_root()  # as parent: a command keeps the help option of its first context
    params = root.obj(command).make_context(command, words, parent=root).params
    return {name: value for name, value in params.items() if value or (value == 0 and value is not False)}


@takes(JobOptions, Layout, optional=True)
@answers("memory")
def memory(
    asked: AskedPlan,
    timeline: Annotated[
        bool, option("Show the memory of one stage over a step instead.", "", flags="--timeline")
    ] = False,
    stage: Annotated[int | None, whole("With --timeline: the stage, counted from 0.", default="the fullest")] = None,
) -> Answer:
    """Show what fills a GPU: by component, over ZeRO stage, recomputation, and TP with and without SP.

    Examples: gpuscale memory plan.toml; gpuscale memory --model llama3-70b --gpus 640 --tp 8 --pp 4
    --timeline
    """
    from gpuscale.explain.budget import memory_budget, memory_timeline

    subject = asked.subject()
    if stage is not None and not timeline:
        raise InputError("has no effect without `timeline`", field="stage", hint="add `timeline`")
    followed = memory_timeline(subject, stage) if timeline else None
    return Answer(memory_budget(subject, followed))


@takes(JobOptions, Layout, optional=True)
@answers("advise")
def advise(
    asked: AskedPlan,
    output: Annotated[Path | None, option("Write it as Markdown.", "FILE", flags="--output -o", panel=OUTPUT)] = None,
    markdown: bool = False,
    json: bool = False,
) -> Answer:
    """Print the pre-launch checklist of one plan: benchmarks, settings and signs of trouble.

    Without a plan, a model with its GPUs or launch files: the tables of what answers which pressure, and which
    strategy which situation; with a model alone, which situations are its own.

    Examples: gpuscale explain checklist plan.toml -o advise.md;
    gpuscale explain checklist --model llama3-70b --gpus 640 --tp 8 --pp 4
    """
    from gpuscale.explain.advice import advise as find_advice
    from gpuscale.explain.advice import decide
    from gpuscale.render.answers import report

    streamed = fills_stdout(output, other=json or markdown)
    given = asked.given
    files = asked.plan_file or asked.launch_files or asked.var
    stated = files or part(given, Layout) or {"model", "gpus"} <= given.keys()
    found: Any = find_advice(asked.subject()) if stated else decide(**given)
    if output is not None:
        report(found, output, form="markdown", spell=with_flags)
    return Answer(found, streamed=streamed, name=None if stated else "decisions")


GIVEN = "Durations, without a model"


@takes(JobOptions, Layout, optional=True)
@answers("schedule")
def schedule(
    asked: AskedPlan,
    microbatches: Annotated[
        int | None, whole("Number of microbatches, without a model: only with --pp, --vpp, --schedule.", panel=GIVEN)
    ] = None,
    forward: Annotated[
        str | None,
        option("Duration of a microbatch's forward pass on a rank; 1,1,2,1 by rank.", "TIME", "1", panel=GIVEN),
    ] = None,
    backward: Annotated[
        str | None,
        option("Duration of the backward pass, both gradients.", "TIME", "twice the forward pass", panel=GIVEN),
    ] = None,
    weight: Annotated[
        str | None,
        option("Duration of the weight gradients within the backward pass.", "TIME", "half of it", panel=GIVEN),
    ] = None,
    transfer: Annotated[str | None, option("Duration of a transfer between ranks.", "TIME", "0", panel=GIVEN)] = None,
    jitter: Annotated[str, option("Random slowdown of each slot, up to this share.", "SHARE", "0")] = "0",
    seed: Annotated[int, whole("Seed of the jitter.", default="0")] = 0,
    trace: Annotated[
        Path | None, option("Write a trace for Perfetto or chrome://tracing.", "FILE", panel=OUTPUT)
    ] = None,
    svg: Annotated[Path | None, option("Write a picture.", "FILE", panel=OUTPUT)] = None,
    json: bool = False,
) -> Answer:
    """Simulate the pipeline of a plan, or of given durations, slot by slot, and draw it.

    Examples: gpuscale schedule plan.toml; gpuscale schedule --pp 4 --microbatches 8 --schedule zb-h1;
    gpuscale schedule --model llama3-70b --gpus 640 --tp 8 --pp 4 --trace trace.json
    """
    from gpuscale.explain.schedule import schedule as schedule_of_plan
    from gpuscale.explain.schedule import schedule_of_durations
    from gpuscale.files import write_texts

    durations = {"forward": forward, "backward": backward, "weight": weight, "transfer": transfer}
    wanted, streamed = files_wanted(trace=trace, svg=svg, json=json)
    noise: dict[str, Any] = {"jitter": jitter, "seed": seed}
    if microbatches is None:
        own = next((name for name, value in durations.items() if value is not None), None)
        if own:
            raise InputError("a plan has its own durations", field=own, hint="add `microbatches=8`")
        if not (asked.plan_file or asked.launch_files or "model" in asked.given):
            hint = "give `model` and `gpus`, or a plan file, or `microbatches=8` for a pipeline without a model"
            raise InputError("nothing to simulate", hint=hint)
        found = schedule_of_plan(asked.subject(), **noise)
    elif asked.plan_file or asked.launch_files or asked.var or part(asked.given, JobOptions):
        hint = "leave it out; or give `pp`, `vpp` and `schedule` alone"
        raise InputError("the batch of a plan says how many", field="microbatches", hint=hint)
    else:
        found = schedule_of_durations(part(asked.given, Layout), microbatches, durations, **noise)
    if wanted:
        from gpuscale.render.schedule import WRITERS

        write_texts([(path, WRITERS[kind](found)) for kind, path in wanted.items()])
    return Answer(found, streamed=streamed)
