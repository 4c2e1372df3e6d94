"""What a search may leave unpriced because it cannot win.

A step takes at least as long as its microbatches take for the layers and both ends of the model on a stage of average
load, without recomputation, bubble, and communication between stages and data-parallel ranks:

    step_time_s >= microbatches * (layers_s + ends_s) / pp

This bound is the same for all choices of ZeRO and recomputation of a row of the search space, and in all jobs that
differ in offloading, in how layers are dealt out to stages and in where stages and data-parallel ranks lie: what is
priced for one of these jobs tells which rows of the others cannot beat a plan that was found already. Nothing that
could win is left out (tests/test_cuts.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, combined_key, concatenate, distinct
from gpuscale.candidates.numbers import Numbers
from gpuscale.candidates.pins import Pins
from gpuscale.candidates.space import Grid
from gpuscale.ranking.blocks import CANNOT_WIN, LAYOUT, ROW, SHAPE, Branch
from gpuscale.ranking.scored import Scored
from gpuscale.ranking.sharing import Book, SharedByBranches
from gpuscale.ranking.tally import Tally
from gpuscale.records import record
from gpuscale.specs.job import JobSpec, OffloadSpec

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

BELOW = 1 - 1e-9
"""What a bound is lowered by, for the rounding of sums that are formed in another order."""

FIRST_RUN, GROWTH = 32, 8
"""Rows that are priced at first, and how many times more in each run after it until a plan is found."""


def least_step_s(shared: SharedByBranches, branches: Sequence[Branch]) -> list[FloatArray]:
    """Return what a step of each row of each branch takes at least, shape (rows,) each [s]."""
    prices = shared.every.prices
    ends = (forward_s + backward_s for forward_s, backward_s in prices.ends_s.values())
    once_s = np.asarray(sum((passes_s for passes_s, _ in prices.whole_s), start=sum(ends, start=np.zeros(()))))
    if once_s.ndim > 1:  # by selection of modules to recompute
        once_s = once_s.min(axis=0)
    cut = shared.every.sizes.cut.row
    bounds = []
    for start, rows in zip(shared.starts, (branch.rows for branch in branches), strict=False):
        each_s = once_s[cut[start : start + len(rows)]] if once_s.size > 1 else once_s
        bounds.append(each_s * rows.num_microbatches / rows.pp * BELOW)
    return bounds


@record(eq=False)
class Level:
    """What is known of the rows of a table.

    Attributes:
        numbers: finds a row.
        least_s: what a step of any of its candidates takes at least.
    """

    numbers: Numbers
    least_s: FloatArray

    @classmethod
    def of(cls, rows: Candidates, names: tuple[str, ...], least_s: FloatArray) -> Level:
        """Sum up rows that agree in some fields."""
        first, group = distinct(combined_key(rows, names))
        least = np.full(len(first), np.inf)
        np.minimum.at(least, group, least_s)
        return cls(Numbers.of(rows.take(first), names), least)


@record(eq=False)
class Known:
    """What one job tells of others that have the same layers.

    Attributes:
        levels: by the fields that tell rows apart.
        book: their layers.
    """

    levels: Mapping[tuple[str, ...], Level]
    book: Book


class Cut:
    """Leaves out of one search what cannot beat what is known.

    Attributes:
        ceiling_s: a step time that a plan of interest does not exceed.
        known: bounds of rows from a job that has the same ones.
    """

    def __init__(self, ceiling_s: float = np.inf, known: Known | None = None) -> None:
        self.ceiling_s = ceiling_s
        self.known = known
        self._tables: list[Candidates] = []
        self._bounds: list[FloatArray] = []
        self._book: Book | None = None

    @property
    def book(self) -> Book | None:
        """Layers that are priced already."""
        return self.known.book if self.known else None

    def hopeful(self, rows: Candidates, fields: tuple[str, ...], rejected: dict[str, int]) -> IndexArray | slice:
        """Return the rows of a table that may win by what is known; the others are counted as `CANNOT_WIN`."""
        level = self.known.levels.get(fields) if self.known else None
        if level is None or self.ceiling_s == np.inf:
            return slice(None)
        place, known = level.numbers.find(rows)
        lost = known & (level.least_s[place] > self.ceiling_s)
        if not lost.any():
            return slice(None)
        rejected[CANNOT_WIN] = rejected.get(CANNOT_WIN, 0) + int(np.count_nonzero(lost))
        return np.flatnonzero(~lost)

    def bounds(self, shared: SharedByBranches, branches: Sequence[Branch]) -> list[FloatArray]:
        """Bound the rows of branches that are priced, and remember the bounds."""
        bounds = least_step_s(shared, branches)
        if self.known is None:
            self._tables += [replace(branch.rows, zero=_ZERO, shard=_ZERO) for branch in branches]
            self._bounds += bounds
            self._book = shared.book()
        return bounds

    def runs(
        self, grid: Grid, step: int, least_s: FloatArray, tally: Tally, rejected: dict[str, int]
    ) -> Iterator[IndexArray]:
        """Yield the rows of a grid that may win, at most `step` at a time, those with the least bound first.

        Until there is a plan to beat, few rows are yielded at a time. The candidates of rows that are left out are
        counted as `CANNOT_WIN`.

        Args:
            least_s: bounds of all rows of the grid.
            tally: told of each run before the next is asked for.
        """
        order = np.argsort(least_s, kind="stable")
        ascending_s = least_s[order]
        start, size = 0, FIRST_RUN
        while start < len(order):
            limit_s = min(self.ceiling_s, tally.best)
            hope = int(np.searchsorted(ascending_s, limit_s, side="right"))
            end = min(start + (min(size, step) if limit_s == np.inf else step), hope)
            if end <= start:
                break
            yield np.sort(order[start:end])
            start, size = end, GROWTH * size
        left_out = order[start:]
        if len(left_out):
            count = int(np.count_nonzero(grid.take(left_out).marked()))
            rejected[CANNOT_WIN] = rejected.get(CANNOT_WIN, 0) + count

    def learned(self, job: JobSpec) -> Known | None:
        """What the search of a job found out about the rows that it priced."""
        if self._book is None:
            return None
        rows = concatenate([one.listed(np.ones(len(one), dtype=bool)) for one in self._tables])
        least_s = np.concatenate(self._bounds)
        has_all = not job.offload.any and job.axis_order[-1] == "pp"  # other jobs of its kind have no more rows
        levels: dict[tuple[str, ...], Level] = {ROW: Level(Numbers.of(rows, ROW), least_s)}
        if has_all:
            levels[SHAPE], levels[LAYOUT] = Level.of(rows, SHAPE, least_s), Level.of(rows, LAYOUT, least_s)
        return Known(levels, self._book)


_ZERO = np.zeros(1, dtype=np.int64)


class Cuts:
    """Cuts for searches of several jobs, of which the best plans of the best `top` jobs are wanted.

    All jobs have the same GPUs and tokens per step, and are compared by step time.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._best_s: list[float] = []
        self._known: dict[int, Known | None] = {}

    @property
    def ceiling_s(self) -> float:
        """The step time of the last of the best jobs so far; infinity where fewer have a plan."""
        return sorted(self._best_s)[self._top - 1] if len(self._best_s) >= self._top else np.inf

    def start(self, kind: int) -> Cut:
        """Prepare the search of a job of some kind (`kinds`)."""
        return Cut(self.ceiling_s, self._known.get(kind))

    def finish(self, kind: int, job: JobSpec, cut: Cut, leaders: Scored) -> None:
        """Take in what a search found."""
        if cut.known is None:
            self._known[kind] = cut.learned(job)
        if len(leaders.score):
            self._best_s.append(float(leaders.step_time_s[0]))


def kinds(jobs: Sequence[tuple[JobSpec, Pins]]) -> list[int]:
    """Number the kinds of jobs: those of one kind have the same layers.

    They may differ in offloading, in the split of the layers, and in the order of the axes outside tp, cp and ep.
    """
    known: list[tuple[JobSpec, int]] = []
    numbers = []
    for job, pins in jobs:
        order = job.axis_order
        inside = order[: min(order.index("dp"), order.index("pp"))]
        if {"tp", "cp", "ep"} <= set(inside):
            order = inside
        runtime = replace(job.runtime, pipeline_split="")
        own = (replace(job, offload=OffloadSpec(), axis_order=order, runtime=runtime), pins.schedule)
        if own not in known:
            known.append(own)
        numbers.append(known.index(own))
    return numbers


def in_order(numbers: Sequence[int]) -> list[int]:
    """Return the order in which jobs are best searched: first one of each kind, which tells of the others."""
    first = [numbers.index(number) for number in sorted(set(numbers))]
    return [*first, *(index for index in range(len(numbers)) if index not in first)]


__all__ = ["CANNOT_WIN", "Cut", "Cuts", "Known", "in_order", "kinds", "least_step_s"]
