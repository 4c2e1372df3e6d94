"""`gpuscale memory` and `advise`: what fills a GPU, and what to see to before a launch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from gpuscale.cli.options import (
    OUTPUT,
    DespiteRules,
    Json,
    LaunchFiles,
    PlanFile,
    Variables,
    asked_plan,
    fills_stdout,
    option,
    takes,
    whole,
    with_flags,
)
from gpuscale.errors import InputError
from gpuscale.files import write_text
from gpuscale.render.output import print_json
from gpuscale.request import JobOptions, Layout


@takes(JobOptions, Layout, optional=True)
def memory(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    despite_rules: DespiteRules = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    timeline: Annotated[bool, option("Follow one stage over a step instead.", "", flags="--timeline")] = False,
    stage: Annotated[int | None, whole("With --timeline: the stage, from 0.", default="the fullest")] = None,
    json: Json = False,
) -> None:
    """Show what fills a GPU: by component, over ZeRO stage, recomputation, and TP with and without SP.

    Examples: gpuscale memory plan.toml; gpuscale memory --model llama3-70b --gpus 640 --tp 8 --pp 4
    --timeline
    """
    from gpuscale.explain.budget import memory_budget
    from gpuscale.explain.timeline import memory_timeline
    from gpuscale.render.memory import draw_memory, draw_timeline

    subject = asked_plan(given, plan_file, launch_files, var, despite_rules=despite_rules)
    if stage is not None and not timeline:
        raise InputError("says nothing without `timeline`", field="stage", hint="add `timeline`")
    followed = memory_timeline(subject, stage) if timeline else None
    found = memory_budget(subject, followed)
    if json:
        print_json("memory", found)
    elif timeline:
        draw_timeline(found, with_flags)
    else:
        draw_memory(found, with_flags)


@takes(JobOptions, Layout, optional=True)
def advise(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    despite_rules: DespiteRules = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    output: Annotated[Path | None, option("Write it as Markdown.", "FILE", flags="--output -o", panel=OUTPUT)] = None,
    markdown: Annotated[bool, option("Print Markdown.", "", flags="--markdown", panel=OUTPUT)] = False,
    json: Json = False,
) -> None:
    """Say what to see to before a launch: the checklist, benchmarks, settings and signs of trouble of one plan.

    Examples: gpuscale advise plan.toml -o advise.md; gpuscale advise --model llama3-70b --gpus 640 --tp 8 --pp 4
    """
    from gpuscale.explain.advice import advise as find_advice
    from gpuscale.render import advise as render

    if json and markdown:
        raise InputError("`json` and `markdown` are two formats of the same answer", hint="give one of them")
    streamed = fills_stdout(output, other=json or markdown)
    found = find_advice(asked_plan(given, plan_file, launch_files, var, despite_rules=despite_rules))
    if output is not None:
        write_text(output, render.markdown(found, with_flags))
    if streamed:
        return
    if json:
        print_json("advise", found)
    elif markdown:
        sys.stdout.write(render.markdown(found, with_flags))
    else:
        render.draw_advice(found, with_flags)
