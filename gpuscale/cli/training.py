"""`gpuscale train-time`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuscale.cli.options import (
    Html,
    Json,
    LaunchFiles,
    Variables,
    Verbose,
    option,
    page_fills_stdout,
    save_page,
    takes,
    variables,
    with_flags,
)
from gpuscale.render.output import print_json
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
)

ASKED = dict.fromkeys(
    (name for name in OPTIONS if name not in (*SEVERAL_PLANS, *Slow.model_fields, *Sites.model_fields)), ""
)


@takes(JobOptions, Layout, Question, Length, Recovery, several=COMPARED, optional=True, only=ASKED)
def train_time(
    given: dict[str, Any],
    plan_file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.toml", help="A plan, or a training of several phases.", show_default=False),
    ] = None,
    as_given: Annotated[
        bool, option("Take the layout as `estimate` does; search nothing.", "", flags="--as-given", panel="Layout")
    ] = False,
    despite_rules: Annotated[
        bool, option("As --as-given, also where the framework's rules refuse it.", "", flags="--despite-rules")
    ] = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    html: Html = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say what a whole training takes: days, GPU-hours, money, energy, carbon.

    Examples: gpuscale train-time --model llama3.1-405b --gpus 16384 --tokens 15T;
    gpuscale train-time plan.toml --tokens 15T

    Without a file the best plan is taken, as `gpuscale plan` finds it.
    """
    from gpuscale.render.gpubench import progress_bar
    from gpuscale.render.training import draw_train_time
    from gpuscale.training.totals import train_time as find

    streamed = page_fills_stdout(html, other=json)
    with progress_bar() as progress:
        result = find(
            as_given=as_given, plan_file=plan_file, launch_files=launch_files, despite_rules=despite_rules,
            variables=variables(var, launch_files), progress=progress, **given,
        )  # fmt: skip
    save_page(html, result)
    if streamed:
        return
    if json:
        print_json("train-time", result)
    else:
        draw_train_time(result, verbose=verbose, spell=with_flags)
