"""Which plans are listed, and in which order: from the result of a search to the rows of a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import BoolArray, FloatArray, IndexArray
from gpuscale.layouts.arrays import FIELDS, Candidates, concatenate, distinct
from gpuscale.search import ties
from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.search.loop import SearchResult
from gpuscale.search.ordering import Families, listed_families
from gpuscale.specs.job import JobSpec

TIMES = ("step_time", "tokens_per_s", "mfu")
"""Objectives that come down to the step time; nothing is known of ties in others, and their order is that of the
score."""


class Pool(NamedTuple):
    """P plans that may be listed: those close to the fastest, and the best of the leading families.

    Attributes:
        rows: the plans, in order of their scores.
        score: what they are ordered by, shape (P,).
        evaluation: their memory and step time.
        traits: what decides between equals.
        family: index in `families` of each, shape (P,).
        families: all listed families.
    """

    rows: Candidates
    score: FloatArray
    evaluation: Evaluation
    traits: ties.Traits
    family: IndexArray
    families: Families


class Listing(NamedTuple):
    """Plans in the order in which they are shown; arrays of shape (R,).

    Attributes:
        order: index of each in the pool.
        variants: how many feasible candidates each stands for.
        fastest: index in the pool of the plan with the least predicted step time.
        behind: log(step time over the fastest's).
        window: log of the ratio up to which the plan is a tie with the fastest.
        because: the criterion of `ties.CRITERIA` by which the first goes before the fastest; None where it is the
            fastest, or better by what plans are ordered by.
    """

    order: IndexArray
    variants: npt.NDArray[np.int64]
    fastest: int
    behind: FloatArray
    window: FloatArray
    because: str | None

    @property
    def tied(self) -> BoolArray:
        """Whether the model cannot tell each plan from the fastest."""
        found: BoolArray = np.abs(self.behind) <= self.window
        return found


def near_leaders(found: SearchResult, share: float) -> int:
    """Number of leaders whose score is at most `share` above the best."""
    scores = found.leaders.score
    return int(np.searchsorted(scores, scores[0] * (1 + share), side="right"))


def make_pool(job: JobSpec, found: SearchResult, families: Families, leaders: int, best: int) -> Pool:
    """Evaluate the first `leaders` candidates of a search and the best of its first `best` families."""
    chosen = found.leaders.take(np.arange(min(leaders, len(found.leaders.score))))
    rest = families.best.take(np.arange(min(best, len(families.variants))))
    known = set(_tuples(chosen.rows))
    rest = rest.take(np.array([row not in known for row in _tuples(rest.rows)], dtype=bool))
    rows, score = concatenate([chosen.rows, rest.rows]), np.concatenate([chosen.score, rest.score])
    in_order = np.argsort(score, kind="stable")
    rows = rows.take(in_order)
    evaluation = evaluate(rows, job)
    return Pool(
        rows=rows,
        score=score[in_order],
        evaluation=evaluation,
        traits=ties.traits(rows, evaluation, job),
        family=families.index_of(rows),
        families=families,
    )


def _tuples(rows: Candidates) -> list[tuple[int, ...]]:
    columns = (np.broadcast_to(getattr(rows, name), rows.tp.shape).tolist() for name in FIELDS)
    return list(zip(*columns, strict=True))


def listed(pool: Pool, objective: str, top: int, *, unfold: bool, score: FloatArray | None = None) -> Listing:
    """Order the plans of a pool, and fold the variants of a family unless they are to be shown one by one.

    Args:
        score: what to order by instead of the pool's own score, shape (P,).
    """
    by = pool.score if score is None else score
    in_order = np.argsort(by, kind="stable") if objective not in TIMES else ties.arranged(by, pool.traits)
    if not unfold:
        best, _ = distinct(pool.family[in_order])
        in_order = in_order[np.sort(best)]
    order = in_order[:top]
    fastest = int(pool.evaluation.step.step_time_s.argmin())
    times, shares = pool.evaluation.step.step_time_s, ties.step_shares(pool.evaluation)
    first = int(order[0])
    because = None if first == fastest or objective not in TIMES else ties.deciding(by, pool.traits, first, fastest)
    return Listing(
        order=order,
        variants=np.ones(len(order), dtype=np.int64) if unfold else pool.families.variants[pool.family[order]],
        fastest=fastest,
        behind=np.log(times[order] / times[fastest]),
        window=ties.tie_window(ties.unlike(shares[:, order], shares[:, [fastest]])),
        because=because,
    )


__all__ = [
    "TIMES",
    "Families",
    "Listing",
    "Pool",
    "listed",
    "listed_families",
    "make_pool",
    "near_leaders",
]
