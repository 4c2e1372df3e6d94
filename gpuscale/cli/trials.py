"""`gpuscale tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import option

if TYPE_CHECKING:
    from gpuscale.trials.tuning import Tuning


@answers("tune")
def tune(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="A study of trials.", show_default=False)],
    run: Annotated[
        bool,
        option("Run the study's command for trial after trial, until they end.", "", flags="--run", panel="Running"),
    ] = False,
) -> Answer:
    """Find the fastest layout on your machine: propose the next one to try, by predictions and by the logs so far.

    Example: gpuscale tune study.toml, with format = "gpuscale.trials/1" and a table [job] in it

    Each call reads the logs of the trials, calibrates to them, and writes the plan of the next into the study's folder;
    with --run, which runs the command in [trials] of the study, it goes on until trials end.
    """
    from gpuscale.trials.tuning import run_trials
    from gpuscale.trials.tuning import tune as propose

    state = run_trials(study, _tell) if run else propose(study)
    return Answer(state, then=_none_ran if state.stopped and state.best is None else None)


def _none_ran() -> None:
    raise typer.Exit(1)


def _tell(state: Tuning) -> None:
    from gpuscale.files import printable
    from gpuscale.render.trials import trial_line

    typer.echo(printable(trial_line(state)), err=True)
