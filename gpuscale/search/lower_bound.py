"""What a search may leave unpriced because it cannot win.

A step takes at least as long as its microbatches take for the layers and both ends of the model on a stage of average
load, without recomputation and communication between stages and data-parallel ranks, and as the pipeline takes to fill
and drain:

    step_time_s >= microbatches * model_s / pp + idle * (model_s - model_s / pp)

with one microbatch through the whole model in model_s, and idle = 1 / vpp under 1F1B, 1 under GPipe, and 0 where other
schedules may fill all of the wait. (The slowest stage takes model_s / pp or more, and what it takes more shortens the
bubble by less than it lengthens the work.) This bound is the same for all choices of ZeRO and recomputation of a row of
the search space, and in all jobs that differ in offloading, in how layers are dealt out to stages and in where stages
and data-parallel ranks lie. Where the optimizer runs on CPUs, what that takes at least comes on top. Nothing that could
win is left out (tests/test_cuts.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import GPIPE, ONE_F_ONE_B, Candidates
from gpuscale.layouts.pins import Pins
from gpuscale.layouts.space import Grid, microbatched, modules_tried
from gpuscale.rules.check import MICROBATCH_RULES
from gpuscale.search.enumeration import Checks, legal_layouts
from gpuscale.search.layer_cache import Layers, share_layers
from gpuscale.search.timing import Stopwatch
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.offload import least_cpu_optimizer_time_s

CANNOT_WIN = "slower_than_best"
"""Reason code of what is left unpriced because it cannot be among the best."""

BELOW = 1 - 1e-9
"""What a bound is lowered by, for the rounding of sums that are formed in another order."""

BOUNDED_ROWS = 1 << 18
"""Rows that are bounded at once: more than are priced at once, because most of them never are."""


def least_step_s(rows: Candidates, layers: Layers) -> FloatArray:
    """Return what a step of each row takes at least, whatever is recomputed and sharded; shape (N,) [s]."""
    passes = layers.passes
    ends = (forward_s + backward_s for forward_s, backward_s in passes.ends_s.values())
    model_s = np.asarray(sum((whole_s for whole_s, _ in passes.whole_s), start=sum(ends, start=np.zeros(()))))
    if model_s.ndim > 1:  # by selection of modules to recompute
        model_s = model_s.min(axis=0)
    model_s = model_s[layers.row] if model_s.size > 1 else model_s
    idle = np.where(rows.schedule == ONE_F_ONE_B, 1.0 / rows.vpp, rows.schedule == GPIPE)
    share = 1.0 / rows.pp
    return np.asarray(model_s * (rows.num_microbatches * share + idle * (1.0 - share)) * BELOW)


def without_zero(rows: Candidates) -> Candidates:
    """Rows for what does not depend on the choice of ZeRO."""
    return replace(rows, zero=np.zeros(1, dtype=np.int64), shard=np.ones(1, dtype=np.int64))


def least_beside_s(job: JobSpec) -> float:
    """Return what a step of any plan takes at least besides its microbatches and the bubble [s]."""
    return least_cpu_optimizer_time_s(job) * BELOW


@dataclass(frozen=True, eq=False)
class Bounded:
    """Legal rows of the search space, with their layers and bounds.

    Attributes:
        grid: the rows, with the axes (choices of ZeRO, 1, rows); how they recompute is not chosen yet.
        layers: their layers.
        least_s: their bounds.
    """

    grid: Grid
    layers: Layers
    least_s: FloatArray

    @cached_property
    def choices(self) -> IntArray:
        """Legal choices of ZeRO of each row."""
        legal = np.broadcast_to(self.grid.legal, self.grid.rows.shape)
        return np.asarray(np.count_nonzero(legal, axis=(0, 1)), dtype=np.int64)

    def best(self, left: BoolArray, limit_s: float, count: int) -> IndexArray:
        """Return at most `count` of the rows that are left and may meet a limit, those with the least bound."""
        hopeful = np.flatnonzero(left & (self.least_s <= limit_s))
        if len(hopeful) > count:
            hopeful = hopeful[np.argpartition(self.least_s[hopeful], count)[:count]]
        return np.sort(hopeful)


def bounded_blocks(job: JobSpec, pins: Pins, rejected: dict[str, int], watch: Stopwatch) -> Iterator[Bounded]:
    """Yield the legal rows of a job, many at a time; what a rule cuts is counted in `rejected`."""
    checks = Checks(job, rejected, watch)
    for offered in legal_layouts(job, pins, checks, BOUNDED_ROWS):
        grid = checks.restrict(MICROBATCH_RULES, microbatched(job, pins, offered))
        if len(grid.rows):
            layers = share_layers(without_zero(grid.rows), modules_tried(job, pins), job)
            least_s = least_step_s(grid.rows, layers)
            watch.lap("prices")
            yield Bounded(grid, layers, least_s)


__all__ = ["CANNOT_WIN", "Bounded", "bounded_blocks", "least_beside_s", "least_step_s", "without_zero"]
