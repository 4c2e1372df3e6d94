"""`gpuscale train-time`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import LaunchFiles, Variables, option, takes, variables
from gpuscale.request import (
    COMPARED,
    OPTIONS,
    SEVERAL_PLANS,
    JobOptions,
    Layout,
    Length,
    Question,
    Recovery,
    Sites,
    Slow,
    declared,
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
