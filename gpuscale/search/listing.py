"""Which plans may be shown, and in which order: from the result of a search to the rows of a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, IndexArray, IntArray, log
from gpuscale.layouts.arrays import FIELDS, Candidates, combined_key, distinct
from gpuscale.search import ties
from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.search.loop import SearchResult
from gpuscale.search.ordering import family_of, joined
from gpuscale.specs.job import JobSpec

TIMES = ("step_time", "tokens_per_s", "mfu")
"""Objectives that come down to the step time; nothing is known of ties in others, and their order is that of the
score."""


COMPARED_LEADERS, COMPARED_FAMILIES = 400, 100
"""Leaders near the fastest, and families with their best plan, among which the first choice is looked for."""


class Shortlist(NamedTuple):
    """P plans that may be shown: those close to the fastest, and the best of the leading families."""

    rows: Candidates  #: the plans, in order of their scores.
    score: FloatArray  #: what they are ordered by, shape (P,).
    evaluation: Evaluation  #: their memory and step time.
    traits: ties.Traits  #: what decides between equals.
    family: IndexArray  #: index of the listed family that stands for each, shape (P,).
    variants: IntArray  #: how many feasible candidates that family stands for, shape (P,).

    @property
    def fastest(self) -> int:
        """Index of the plan with the least predicted step time."""
        return int(self.evaluation.step.step_time_s.argmin())

    def every(self, objective: str, score: FloatArray | None = None) -> IndexArray:
        """Return the indices of all plans, the first choice first.

        Args:
            score: what to order by instead of the own score, shape (P,).
        """
        by = self.score if score is None else score
        return np.argsort(by, kind="stable") if objective not in TIMES else ties.arranged(by, self.traits)

    def listed(self, in_order: IndexArray, *, unfold: bool) -> IndexArray:
        """Return of all plans in order those that are listed: the first of each family, or (`unfold`) each."""
        return in_order if unfold else in_order[np.sort(distinct(self.family[in_order])[0])]

    def order(self, objective: str, top: int, *, unfold: bool, score: FloatArray | None = None) -> IndexArray:
        """Return the indices of the plans to show, at most `top`, the first choice first."""
        return self.listed(self.every(objective, score), unfold=unfold)[:top]

    def behind_fastest(self, order: IndexArray) -> tuple[FloatArray, FloatArray]:
        """Return of some plans log(step time over the fastest's), and up to what they are a tie with the fastest."""
        times, shares = self.evaluation.step.step_time_s, ties.step_shares(self.evaluation)
        unlike = ties.unlike(shares[:, order], shares[:, [self.fastest]])
        return log(times[order] / times[self.fastest]), ties.tie_window(unlike)


def shortlist(job: JobSpec, found: SearchResult, leaders: int, best: int) -> Shortlist:
    """Evaluate the first `leaders` candidates of a search and the best of its first `best` families."""
    chosen, rest = found.leaders.take(slice(leaders)), found.families.take(slice(best))
    plans = joined([chosen, rest])
    plans = plans.take(np.sort(distinct(combined_key(plans.rows, FIELDS))[0]))  # the best of a family may be a leader
    plans = plans.take(np.argsort(plans.score, kind="stable"))
    evaluation = evaluate(plans.rows, job)
    family = family_of(plans.rows, found.families.rows)
    traits = ties.traits(plans.rows, evaluation, job)
    return Shortlist(plans.rows, plans.score, evaluation, traits, family, found.family_variants[family])


def near_leaders(found: SearchResult) -> int:
    """Number of leaders whose score is at most `ties.NEAR` above the best, at most `COMPARED_LEADERS`."""
    scores = found.leaders.score
    near = scores[:1] * (1 + ties.NEAR)  # none where nothing fits
    return min(int(np.searchsorted(scores, near, side="right").sum()), COMPARED_LEADERS)
