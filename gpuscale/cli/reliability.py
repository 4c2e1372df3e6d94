"""`gpuscale reliability` and `gpuscale reliability stragglers`: what failures and slow parts cost."""

from __future__ import annotations

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import AskedPlan, takes
from gpuscale.request import JobOptions, Layout, Length, Question, Recovery, Slow, declared, part, read

JOB = dict.fromkeys((*declared(JobOptions), *declared(Layout)), "")
RELIABILITY = (
    JOB | dict.fromkeys((*declared(Recovery), "rate"), "") | {"days": "Length of the training; 30 days if not given."}
)
SLOW = JOB | dict.fromkeys((*declared(Slow), "restart_time"), "")


@takes(JobOptions, Layout, Question, Length, Recovery, optional=True, only=RELIABILITY)
@answers("goodput")
def goodput(asked: AskedPlan, verbose: bool = False) -> Answer:
    """Estimate goodput and the best checkpoint interval, from failures, restarts and repairs.

    Examples: gpuscale reliability plan.toml;
    gpuscale reliability plan.toml --failure-rate rsc-1 --checkpoint sync --spares 8
    """
    from gpuscale.training.goodput import goodput as find

    subject, given = asked.subject(), asked.given
    rates = read(Question, part(given, Question)).rate
    result = find(subject, run_days=given.get("days"), rates=rates, **part(given, Recovery))
    return Answer(result, view={"plan": subject.estimate.plan, "verbose": verbose})


@takes(JobOptions, Layout, Slow, Recovery, optional=True, only=SLOW)
@answers("stragglers")
def stragglers(asked: AskedPlan, verbose: bool = False) -> Answer:
    """Estimate what a slow GPU, node, host or link costs a job, and whether to leave it out.

    Examples: gpuscale reliability stragglers plan.toml; gpuscale reliability stragglers plan.toml --slow-node 0.9
    """
    from gpuscale.training.stragglers import stragglers as find

    subject = asked.subject()
    result = find(subject, restart_time=asked.given.get("restart_time"), **part(asked.given, Slow))
    return Answer(result, view={"plan": subject.estimate.plan, "verbose": verbose})
