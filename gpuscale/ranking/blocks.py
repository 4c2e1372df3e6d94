"""The legal part of the search space, cut into blocks and chunks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

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
from gpuscale.records import record
from gpuscale.rules import (
    LAYOUT_RULES,
    MICROBATCH_RULES,
    RECOMPUTE_RULES,
    SHAPE_RULES,
    SHARDING_RULES,
    Rule,
    mark,
    restrict,
)
from gpuscale.specs.job import JobSpec

IndexArray = npt.NDArray[np.intp]

SHAPE = ("tp", "pp", "cp", "dp")
LAYOUT = (*SHAPE, "sp", "vpp", "ep", "etp", "schedule")
ROW = (*LAYOUT, "micro_batch_size")
"""Fields that tell the rows of a table apart: shapes, layouts, and rows that ZeRO and recomputation are chosen for."""

CANNOT_WIN = "slower_than_best"
"""Reason code of what is left unpriced because it cannot be among the best (`gpuscale.ranking.cuts`)."""

BLOCK_ROWS = 1 << 17
"""Rows of the search space whose common parts are priced at once; bounds what a search keeps in memory."""

SHARED_BLOCK_ROWS = 1 << 18
"""The same where other jobs look up what was priced, which they can in a single block."""

CHUNK_CANDIDATES = 1 << 17
"""Candidates combined at a time: enough for NumPy's calls to take little of the time, few enough for its caches."""

USUAL_STAGES = 3
"""Priced stages of a pipeline of equal layers; where there are more, fewer candidates are combined at a time."""


@record
class Branch:
    """Rows of the search space, for each of which the same choices of ZeRO are tried.

    Attributes:
        rows: the rows, with the axes (choices of ZeRO, 1, rows).
        tried: the same rows with ways to recompute, for each a grid with the axes (ZeRO, ways, rows).
    """

    rows: Candidates
    tried: tuple[Grid, ...]


def legal_blocks(
    job: JobSpec,
    pins: Pins,
    rejected: dict[str, int],
    watch: Stopwatch | None = None,
    hopeful: Callable[[Candidates, tuple[str, ...], dict[str, int]], IndexArray | slice] | None = None,
) -> Iterator[list[Branch]]:
    """Yield the legal candidates, several branches to a block; what a rule cuts is counted in `rejected`.

    Args:
        hopeful: returns those rows of a table, told apart by some of their fields, that are of interest.
    """
    watch = watch or Stopwatch()

    def checked(check: Callable[..., Grid], rules: Sequence[Rule], grid: Grid) -> Grid:
        watch.lap("enumerate")
        legal = check(rules, grid, job, rejected)
        watch.lap("rules")
        return legal

    def of_interest(grid: Grid, fields: tuple[str, ...]) -> Grid:
        return grid if hopeful is None else grid.take(hopeful(grid.rows, fields, rejected))

    table = of_interest(checked(restrict, SHAPE_RULES, plain(shapes(job, pins))), SHAPE).rows
    table = of_interest(checked(restrict, LAYOUT_RULES, plain(layouts(job, pins, table))), LAYOUT).rows
    rows = BLOCK_ROWS if hopeful is None else SHARED_BLOCK_ROWS
    step = max(1, rows // max(1, len(micro_batch_sizes(job, pins))))
    for start in range(0, len(table), step):
        offered = checked(restrict, SHARDING_RULES, sharded(job, pins, table.take(slice(start, start + step))))
        branches = []
        for grid in by_choices(offered):
            part = of_interest(checked(restrict, MICROBATCH_RULES, microbatched(job, pins, grid)), ROW)
            tried = tuple(checked(mark, RECOMPUTE_RULES, one) for one in recomputed(job, pins, part))
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
