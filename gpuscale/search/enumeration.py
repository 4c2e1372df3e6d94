"""The legal part of the search space, cut into blocks and chunks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.pins import Pins
from gpuscale.layouts.space import (
    Grid,
    by_choices,
    layouts,
    micro_batch_sizes,
    microbatched,
    plain,
    recomputed,
    shapes,
    sharded,
)
from gpuscale.rules.check import (
    LAYOUT_RULES,
    MICROBATCH_RULES,
    RECOMPUTE_RULES,
    SHAPE_RULES,
    SHARDING_RULES,
    mark,
    restrict,
)
from gpuscale.rules.rule import Rule
from gpuscale.search.timing import Stopwatch
from gpuscale.specs.job import JobSpec

BLOCK_ROWS = 1 << 17
"""Rows of the search space whose common parts are priced at once; bounds what a search keeps in memory."""

CHUNK_CANDIDATES = 1 << 17
"""Candidates combined at a time: enough for NumPy's calls to take little of the time, few enough for its caches."""

USUAL_STAGES = 3
"""Priced stages of a pipeline of equal layers; where there are more, fewer candidates are combined at a time."""


@dataclass(frozen=True)
class Branch:
    """Rows of the search space, for each of which the same choices of ZeRO are tried.

    Attributes:
        rows: the rows, with the axes (choices of ZeRO, 1, rows).
        tried: the same rows with ways to recompute, for each a grid with the axes (ZeRO, ways, rows).
    """

    rows: Candidates
    tried: tuple[Grid, ...]


class Checks:
    """Rules applied to the tables of one search, in the order in which these are formed."""

    def __init__(self, job: JobSpec, rejected: dict[str, int], watch: Stopwatch) -> None:
        """Count what each rule cuts in `rejected`, by its code."""
        self._rejected = rejected
        self._job = job
        self._watch = watch

    def restrict(self, rules: Sequence[Rule], grid: Grid) -> Grid:
        """Mark what breaks a rule, and drop the rows without any legal choice (`gpuscale.rules.restrict`)."""
        return self._timed(restrict, rules, grid)

    def mark(self, rules: Sequence[Rule], grid: Grid) -> Grid:
        """Mark what breaks a rule (`gpuscale.rules.mark`)."""
        return self._timed(mark, rules, grid)

    def _timed(self, check: Callable[..., Grid], rules: Sequence[Rule], grid: Grid) -> Grid:
        self._watch.lap("enumerate")
        legal = check(rules, grid, self._job, self._rejected)
        self._watch.lap("rules")
        return legal


def legal_layouts(job: JobSpec, pins: Pins, checks: Checks, block_rows: int = BLOCK_ROWS) -> Iterator[Grid]:
    """Yield the legal layouts with their choices of ZeRO, so many at a time that at most `block_rows` rows come of
    them."""
    table = checks.restrict(SHAPE_RULES, plain(shapes(job, pins))).rows
    table = checks.restrict(LAYOUT_RULES, plain(layouts(job, pins, table))).rows
    step = max(1, block_rows // max(1, len(micro_batch_sizes(job, pins))))
    for start in range(0, len(table), step):
        yield checks.restrict(SHARDING_RULES, sharded(job, pins, table.take(slice(start, start + step))))


def legal_blocks(
    job: JobSpec, pins: Pins, rejected: dict[str, int], watch: Stopwatch | None = None
) -> Iterator[list[Branch]]:
    """Yield the legal candidates, several branches to a block; what a rule cuts is counted in `rejected`."""
    checks = Checks(job, rejected, watch or Stopwatch())
    for offered in legal_layouts(job, pins, checks):
        branches = []
        for grid in by_choices(offered):
            part = checks.restrict(MICROBATCH_RULES, microbatched(job, pins, grid))
            tried = tuple(checks.mark(RECOMPUTE_RULES, one) for one in recomputed(job, pins, part))
            if any(one.legal.any() for one in tried) and len(part.rows):
                branches.append(Branch(part.rows, tried))
        if branches:
            yield branches


def rows_at_a_time(grid: Grid, stages: int = USUAL_STAGES) -> int:
    """Return how many rows of a grid have `CHUNK_CANDIDATES` candidates, at least one.

    Args:
        stages: priced stages of each candidate, at most.
    """
    choices = max(1, int(np.prod(grid.rows.shape[:-1])))
    return max(1, CHUNK_CANDIDATES * USUAL_STAGES // max(stages, USUAL_STAGES) // choices)


def chunks(grid: Grid, step: int) -> Iterator[slice]:
    """Cut a grid into runs of `step` rows."""
    count = len(grid.rows)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def legal_candidates(job: JobSpec, pins: Pins, rejected: dict[str, int]) -> Iterator[Candidates]:
    """Yield the legal candidates one after the other, a bounded number at a time."""
    for block in legal_blocks(job, pins, rejected):
        for grid in (grid for branch in block for grid in branch.tried):
            for rows in chunks(grid, rows_at_a_time(grid)):
                yield grid.take(rows).listed()
