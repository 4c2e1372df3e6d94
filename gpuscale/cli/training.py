"""`gpuscale train-time`, `size`, `fleet` and `reliability`: a whole training, its failures, and on what it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import AskedPlan, LaunchFiles, Variables, option, takes, variables
from gpuscale.errors import InputError
from gpuscale.request import (
    COMPARED,
    OF_FLEETS,
    OPTIONS,
    SEVERAL_PLANS,
    JobOptions,
    Layout,
    Length,
    Means,
    Noise,
    Question,
    Recovery,
    Sites,
    Slow,
    declared,
    part,
    read,
)

ASKED = dict.fromkeys((name for name in OPTIONS if name not in (*SEVERAL_PLANS, *declared(Slow), *declared(Sites))), "")


@takes(JobOptions, Layout, Question, Length, Recovery, several=COMPARED, optional=True, only=ASKED)
@answers("train-time")
def train_time(
    given: dict[str, Any],
    plan_file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.toml", help="A plan, or a training of several phases.", show_default=False),
    ] = None,
    as_given: Annotated[
        bool,
        option("Take the layout as given, like `estimate`, without a search.", "", flags="--as-given", panel="Layout"),
    ] = False,
    despite_rules: Annotated[
        bool, option("As --as-given, even if the framework's rules refuse it.", "", flags="--despite-rules")
    ] = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    verbose: bool = False,
) -> Answer:
    """Estimate a whole training run: days, GPU-hours, cost, energy, carbon.

    Examples: gpuscale train-time --model llama3.1-405b --gpus 16384 --tokens 15T;
    gpuscale train-time plan.toml --tokens 15T

    Without a file it uses the best plan, as `gpuscale plan` finds it.
    """
    from gpuscale.render.machine import progress_bar
    from gpuscale.training.totals import train_time as find

    with progress_bar() as progress:
        result = find(
            as_given=as_given, plan_file=plan_file, launch_files=launch_files, despite_rules=despite_rules,
            variables=variables(var, launch_files), progress=progress, **given,
        )  # fmt: skip
    return Answer(result, view={"verbose": verbose})


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


FOR_EACH = {name: "" for name in ASKED if name not in {"risk", "days"}}
"""Options of many plans that are compared; noise is of one, and for `gpuscale plan` to say."""

BATCH = FOR_EACH | {
    "train_tokens": "Training tokens at small batch sizes, such as 15T.",
    "gbs": "Batch sizes to compare: 512,1024 or 4Mtok..64Mtok.",
    "noise_scale": "",
}


@takes(JobOptions, Layout, Question, Noise, Recovery, several=COMPARED, optional=True, only=BATCH)
@answers("batch-size")
def batch_size(
    given: dict[str, Any],
    gradient_norm: Annotated[
        list[str] | None,
        option("Batch size in tokens and the gradient norm at it: 512k=0.9; give two.", "BATCH=NORM", panel="Question"),
    ] = None,
    verbose: bool = False,
) -> Answer:
    """Find the critical batch size, and the batch size that trains fastest and costs least.

    Examples: gpuscale size batch --model llama3-70b --gpus 1024 --tokens 15T;
    gpuscale size batch --model llama3-8b --gpus 64,256 --tokens 1T --gradient-norm 512k=0.9 --gradient-norm 4M=0.5
    """
    from gpuscale.render.machine import progress_bar
    from gpuscale.scaling.batches import batch_size as find

    with progress_bar() as progress:
        result = find(gradient_norm=gradient_norm, progress=progress, **given)
    return Answer(result, view={"verbose": verbose})


SIZED = FOR_EACH | {
    "model": "The model, to find the fewest GPUs that meet a deadline.",
    "gpus": "Available GPUs, to find the model to train on them.",
    "train_tokens": "Tokens to train the model on, such as 15T.",
    "days": "Days that the GPUs are available, or the deadline.",
    "budget": "",
    "gbs": "Global batch size in sequences; chosen by GPUs and tokens if not given.",
}


@takes(JobOptions, Layout, Question, Length, Means, Recovery, optional=True, only=SIZED)
@answers("size")
def size(given: dict[str, Any], verbose: bool = False) -> Answer:
    """Find the best model to train on some GPUs and days, or a budget; or the GPUs that meet a deadline.

    Examples: gpuscale size --gpus 64 --days 14; gpuscale size --budget 1M;
    gpuscale size --model llama3-70b --tokens 15T --days 60
    """
    from gpuscale.render.machine import progress_bar
    from gpuscale.scaling.sizing import size as find

    with progress_bar() as progress:
        result = find(progress=progress, **given)
    return Answer(result, view={"verbose": verbose})


FLEET = dict.fromkeys(
    (*(name for name in declared(JobOptions) if name != "gpus"), *declared(Layout),
     *OF_FLEETS, *declared(Sites)), ""
) | {"gpu_hour_price": "Price of a GPU-hour, for all pools or one; repeatable."}  # fmt: skip


@takes(JobOptions, Layout, Question, Sites, several=COMPARED, optional=True, only=FLEET)
@answers("fleet")
def fleet(given: dict[str, Any], verbose: bool = False) -> Answer:
    """Compare ways to use a heterogeneous cluster: all paced by the slowest, some idle, or work split by speed.

    Example: gpuscale fleet --model llama3-70b --cluster fleet.toml

    The cluster is a file with [[pools]]; all of its GPUs may be used.
    """
    from gpuscale.fleets.comparing import fleet as find

    clusters = given.pop("cluster", None)
    for name, value in (("model", given.get("model")), ("cluster", clusters)):
        if not value:
            raise InputError(f"`{name}` is missing", hint="give a model, and a cluster file with [[pools]]")
    if len(clusters) > 1:
        raise InputError("is one file", field="cluster", hint="ask about one fleet at a time")
    return Answer(find(cluster=clusters[0], **given), view={"verbose": verbose})
