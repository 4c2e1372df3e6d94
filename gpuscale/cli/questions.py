"""`gpuscale memory` and `advise`: what fills a GPU, and what to see to before a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import OUTPUT, AskedPlan, fills_stdout, option, takes, whole, with_flags
from gpuscale.errors import InputError
from gpuscale.request import JobOptions, Layout, part


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
    from gpuscale.explain.budget import memory_budget
    from gpuscale.explain.timeline import memory_timeline

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
    from gpuscale.explain.decisions import decide
    from gpuscale.render.answers import report

    streamed = fills_stdout(output, other=json or markdown)
    given = asked.given
    files = asked.plan_file or asked.launch_files or asked.var
    stated = files or part(given, Layout) or {"model", "gpus"} <= given.keys()
    found: Any = find_advice(asked.subject()) if stated else decide(**given)
    if output is not None:
        report(found, output, form="markdown", spell=with_flags)
    return Answer(found, streamed=streamed, name=None if stated else "decisions")
