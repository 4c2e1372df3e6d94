"""`gpuscale memory`: what fills a GPU."""

from __future__ import annotations

from typing import Annotated, Any

from gpuscale.cli.options import Json, LaunchFiles, PlanFile, Variables, option, part, takes, variables
from gpuscale.render.output import print_json
from gpuscale.request import JobOptions, Layout

DespiteRules = Annotated[
    bool, option("Also a layout that the framework's rules refuse, as a fork may run.", "", flags="--despite-rules")
]


@takes(JobOptions, Layout, optional=True)
def memory(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    despite_rules: DespiteRules = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    json: Json = False,
) -> None:
    """Show what fills a GPU: by component, over ZeRO stage, recomputation, and TP with and without SP.

    Examples: gpuscale memory plan.toml; gpuscale memory --model llama3-70b --gpus 640 --tp 8 --pp 4
    """
    from gpuscale.explain.budget import memory_budget
    from gpuscale.launch.subject import read_subject
    from gpuscale.render.memory import draw_memory

    values = variables(var, launch_files)
    job = part(given, JobOptions), part(given, Layout)
    subject = read_subject(plan_file, *job, launch_files, values, despite_rules=despite_rules)
    found = memory_budget(subject)
    if json:
        print_json("memory", found)
    else:
        draw_memory(found)
