"""`gpuscale goodput` and `gpuscale stragglers`: what failures and slow parts cost."""

from __future__ import annotations

from typing import Any

from gpuscale.cli.options import (
    DespiteRules,
    Html,
    Json,
    LaunchFiles,
    PlanFile,
    Variables,
    Verbose,
    asked_plan,
    page_fills_stdout,
    save_page,
    takes,
    with_flags,
)
from gpuscale.render.output import print_json
from gpuscale.request import JobOptions, Layout, Length, Question, Recovery, Slow, part, read

JOB = dict.fromkeys((*JobOptions.model_fields, *Layout.model_fields), "")
RELIABILITY = (
    JOB | dict.fromkeys((*Recovery.model_fields, "rate"), "") | {"days": "Length of the training, else 30 days."}
)
SLOW = JOB | dict.fromkeys((*Slow.model_fields, "restart_time"), "")


@takes(JobOptions, Layout, Question, Length, Recovery, optional=True, only=RELIABILITY)
def goodput(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    despite_rules: DespiteRules = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    html: Html = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Say how often to write checkpoints, and which share of the time counts: failures, restarts, repairs.

    Examples: gpuscale goodput plan.toml; gpuscale goodput plan.toml --failure-rate rsc-1 --checkpoint sync --spares 8
    """
    from gpuscale.render.reliability import draw_goodput
    from gpuscale.training.goodput import goodput as find

    subject = asked_plan(given, plan_file, launch_files, var, despite_rules=despite_rules)
    rates = read(Question, part(given, Question)).rate
    streamed = page_fills_stdout(html, other=json)
    result = find(subject, run_days=given.get("days"), rates=rates, **part(given, Recovery))
    save_page(html, result)
    if streamed:
        return
    if json:
        print_json("goodput", result)
    else:
        draw_goodput(result, subject.estimate.plan, verbose=verbose, spell=with_flags)


@takes(JobOptions, Layout, Slow, Recovery, optional=True, only=SLOW)
def stragglers(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    despite_rules: DespiteRules = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Say what a slow GPU, node, host or link costs a job, and whether it is cheaper to leave it out.

    Examples: gpuscale stragglers plan.toml; gpuscale stragglers plan.toml --slow-node 0.9
    """
    from gpuscale.render.reliability import draw_stragglers
    from gpuscale.training.stragglers import stragglers as find

    subject = asked_plan(given, plan_file, launch_files, var, despite_rules=despite_rules)
    result = find(subject, restart_time=given.get("restart_time"), **part(given, Slow))
    if json:
        print_json("stragglers", result)
    else:
        draw_stragglers(result, subject.estimate.plan, verbose=verbose, spell=with_flags)
