"""Search: enumerate, cut what is illegal, price the rest, keep what fits, order it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.pins import Pins
from gpuscale.search.accumulator import Tally
from gpuscale.search.enumeration import chunks, legal_blocks, rows_at_a_time
from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.search.layer_cache import share_branches
from gpuscale.search.objectives import Constraints
from gpuscale.search.ordering import Scored
from gpuscale.search.timing import Stopwatch, current_watch
from gpuscale.specs.job import JobSpec

OBJECTIVES = ("step_time", "tokens_per_s", "mfu", "memory")
"""What `--objective` takes. At a fixed batch the first three give the same order; `memory` prefers the least peak."""


@dataclass(slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        leaders: the best candidates, in order, at most `KEEP_VARIANTS`.
        families: the best candidate of each family, in order.
        family_variants: how many feasible candidates each of those stands for.
        scores: the scores of all feasible candidates, ascending.
        generated: rows formed, those that a rule cut included; feasible + all rejected.
        evaluated: candidates whose memory and step time were computed.
        rejected: reason code -> rows.
        nearest_miss: the candidate that came closest to fitting, when some did not fit.
    """

    leaders: Scored
    families: Scored
    family_variants: npt.NDArray[np.int64]
    scores: FloatArray
    generated: int
    evaluated: int
    feasible: int
    rejected: dict[str, int] = field(default_factory=dict)
    nearest_miss: Scored | None = None
    elapsed_s: float = 0.0


def search(
    job: JobSpec,
    pins: Pins,
    objective: str = "step_time",
    *,
    limits: Constraints | None = None,
    collect: Callable[[Scored], None] | None = None,
    watch: Stopwatch | None = None,
) -> SearchResult:
    """Score the whole space, a bounded number of candidates at a time. Nothing legal is left out.

    Args:
        limits: constraints beyond memory; what breaks one is rejected under its code, after `OUT_OF_MEMORY`.
        collect: called with every part of the scored candidates, those that do not fit included.
        watch: told when each stage of the flow ends (`gpuscale.search.timing`); default that of `watched`.
    """
    start = time.perf_counter()
    watch = watch or current_watch()
    watch.lap("presets")
    rejected: dict[str, int] = {}
    tally = Tally(job, limits)
    for block in legal_blocks(job, pins, rejected, watch):
        shared = share_branches(block, job)
        watch.lap("prices")
        for number, grid in ((number, grid) for number, branch in enumerate(block) for grid in branch.tried):
            for rows in chunks(grid, rows_at_a_time(grid, shared.stages.counts.shape[1])):
                part = grid.take(rows)
                evaluation = evaluate(part.rows, job, shared.of(number, rows, part.rows), watch)
                measured, legal = scored(part.rows, evaluation, objective), part.marked()
                if collect is not None:
                    collect(measured.listed(legal))
                tally.add(measured, legal)
                watch.lap("ranking")
    rejected |= tally.rejected
    families, variants = tally.families()
    leaders, scores = tally.leaders(), tally.scores()
    watch.lap("ranking")
    return SearchResult(
        leaders=leaders,
        families=families,
        family_variants=variants,
        scores=scores,
        generated=len(scores) + sum(rejected.values()),
        evaluated=tally.evaluated,
        feasible=len(scores),
        rejected=dict(sorted(rejected.items())),
        nearest_miss=tally.nearest_miss,
        elapsed_s=time.perf_counter() - start,
    )


def score(rows: Candidates, job: JobSpec, objective: str) -> Scored:
    """Compute memory and step time of each candidate and the score by `objective`."""
    return scored(rows, evaluate(rows, job), objective)


def scored(rows: Candidates, evaluation: Evaluation, objective: str) -> Scored:
    """Score candidates whose memory and step time are at hand."""
    step_time_s, memory_bytes = evaluation.step.step_time_s, evaluation.memory_bytes
    objective_value = memory_bytes if objective == "memory" else step_time_s
    return Scored(rows, step_time_s, memory_bytes, objective_value, evaluation.memory.host_bytes)


__all__ = ["OBJECTIVES", "SearchResult", "score", "scored", "search"]
