"""The legal part of the search space, cut into blocks and chunks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscale.candidates.arrays import Candidates
from gpuscale.candidates.pins import Pins
from gpuscale.candidates.space import (
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
from gpuscale.ranking.timing import Stopwatch
from gpuscale.rules import (
    LAYOUT_RULES,
    MICROBATCH_RULES,
    RECOMPUTE_RULES,
    SHAPE_RULES,
    SHARDING_RULES,
    Rule,
    restrict,
)
from gpuscale.specs.job import JobSpec

BLOCK_ROWS = 1 << 17
"""Rows of the search space whose common parts are priced at once; bounds what a search keeps in memory."""

CHUNK_CANDIDATES = 1 << 17
"""Candidates combined at a time: enough for NumPy's calls to take little of the time, few enough for its caches."""


def legal_blocks(
    job: JobSpec, pins: Pins, rejected: dict[str, int], watch: Stopwatch | None = None
) -> Iterator[list[Grid]]:
    """Yield the legal candidates as grids, several to a block; what a rule cuts is counted in `rejected`."""
    watch = watch or Stopwatch()

    def checked(rules: Sequence[Rule], grid: Grid) -> Grid:
        watch.lap("enumerate")
        legal = restrict(rules, grid, job, rejected)
        watch.lap("rules")
        return legal

    table = checked(SHAPE_RULES, plain(shapes(job, pins))).rows
    table = checked(LAYOUT_RULES, plain(layouts(job, pins, table))).rows
    step = max(1, BLOCK_ROWS // max(1, len(micro_batch_sizes(job, pins))))
    for start in range(0, len(table), step):
        offered = checked(SHARDING_RULES, sharded(job, pins, table.take(slice(start, start + step))))
        grids = []
        for grid in by_choices(offered):
            part = checked(MICROBATCH_RULES, microbatched(job, pins, grid))
            part = checked(RECOMPUTE_RULES, recomputed(job, pins, part))
            if len(part.rows):
                grids.append(part)
        if grids:
            yield grids


def chunks(grid: Grid) -> Iterator[slice]:
    """Cut a grid into runs of rows of at most `CHUNK_CANDIDATES` candidates, or of one row."""
    count = len(grid.rows)
    choices = max(1, int(np.prod(grid.rows.shape[:-1])))
    step = max(1, CHUNK_CANDIDATES // choices)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def legal_candidates(job: JobSpec, pins: Pins, rejected: dict[str, int]) -> Iterator[Candidates]:
    """Yield the legal candidates one after the other, a bounded number at a time."""
    for block in legal_blocks(job, pins, rejected):
        for grid in block:
            for rows in chunks(grid):
                yield grid.take(rows).listed()
