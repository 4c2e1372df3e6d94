"""A page of any answer that has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpuscale.arguments import public
from gpuscale.collectives.estimate import CollectiveEstimate
from gpuscale.explain.comparison import PlanComparison
from gpuscale.explain.explanation import Explanation
from gpuscale.files import write_text
from gpuscale.launch.subject import Subject
from gpuscale.render.html.comparisons import compare_page
from gpuscale.render.html.goodputs import goodput_page
from gpuscale.render.html.page import Page, html
from gpuscale.render.html.plans import plan_page
from gpuscale.render.html.studies import study_page
from gpuscale.render.html.subjects import explain_page
from gpuscale.render.html.sweeps import sweep_page
from gpuscale.render.html.trainings import training_page
from gpuscale.render.html.validations import validation_page
from gpuscale.results import PlanResult
from gpuscale.studies.summary import Summary
from gpuscale.training.goodput import Goodput
from gpuscale.training.totals import TrainTime
from gpuscale.validation.scores import Validation

Reported = (
    PlanResult | Subject | PlanComparison | Validation | Goodput | TrainTime | Summary | Sequence[CollectiveEstimate]
)
"""Answers that have a page; collectives are those of a sweep."""


@public
def report(
    result: Reported,
    path: str | Path | None = None,
    *,
    note: str | None = None,
    said: Explanation | None = None,
    spell: Callable[[str], str] = str,
) -> str:
    """Return an answer as one HTML page with charts, which needs no network; the same bytes for the same answer.

    Args:
        result: what `plan`, `read_subject`, `compare`, `goodput`, `train_time` or `validate` returned, or a list of
            what `price_collective` did.
        path: a file to write it to as well.
        note: of a sweep: what to know of its cluster.
        said: of a plan to explain: its explanation, where it is at hand.
        spell: from options in backticks, such as `grad_dtype=bf16`, to how they are given.

    Raises:
        InputError: the file cannot be written.
    """
    made = html(_page(result, note, said, spell))
    if path is not None:
        write_text(Path(path), made)
    return made


def _page(result: Reported, note: str | None, said: Explanation | None, spell: Callable[[str], str]) -> Page:
    if isinstance(result, Subject):
        return explain_page(result, said, spell)
    if isinstance(result, PlanResult):
        return plan_page(result, spell)
    if isinstance(result, PlanComparison):
        return compare_page(result)
    if isinstance(result, Goodput):
        return goodput_page(result)
    if isinstance(result, TrainTime):
        return training_page(result)
    if isinstance(result, Summary):
        return study_page(result)
    if isinstance(result, Validation):
        return validation_page(result)
    return sweep_page(result, note)
