"""What recurs among candidates, measured and priced once.

Layers that are cut alike take the same time and memory whatever pipeline they are in; groups of the same GPUs reduce
the same gradients whatever the microbatch. `share` finds what recurs in any set of candidates, `share_branches` in all
branches of a block of the search space at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, Cases, IntArray, combined_key, concatenate, distinct, unique_rows
from gpuscale.candidates.numbers import Numbers
from gpuscale.candidates.stages import StageTable, stage_table
from gpuscale.memory import LayerSizes, measure_layers
from gpuscale.memory.states import StageParameters, stage_parameters, with_shards
from gpuscale.ranking.blocks import Branch
from gpuscale.records import record
from gpuscale.specs.job import JobSpec
from gpuscale.steptime import Prices, cut_key, price, priced_hops
from gpuscale.steptime.dataparallel import TRANSFER_KEY, Transfers, price_transfers

IndexArray = npt.NDArray[np.intp]


@record
class Shared:
    """What recurs, and for each of N rows of candidates which of it they have.

    Attributes:
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: row of each candidate's pair in `stages`.
        parameters: parameters on one GPU of each priced stage.
        sizes: bytes of one layer and one microbatch.
        prices: seconds of one layer, of both ends of the model, of a transfer between stages.
        transfers: data-parallel transfers.
        transfer: index of each candidate's in `transfers`.
    """

    stages: StageTable
    stage_row: IndexArray
    parameters: StageParameters
    sizes: LayerSizes
    prices: Prices
    transfers: Transfers
    transfer: IndexArray


def share(c: Candidates, job: JobSpec) -> Shared:
    """Measure and price what recurs among candidates."""
    stages, row = tabulated(c, job)
    parameters = stage_parameters(c, job, stages, row)
    first, transfer = distinct(combined_key(c, TRANSFER_KEY))
    transfers = price_transfers(c.take(first), job, parameters.take(first))
    cuts, index = unique_rows(c, cut_key(c, job))
    cut = Cases(index)
    sizes, prices = measure_layers(cuts, cut, job), price(c, job, cuts, cut)
    return Shared(stages, row, parameters, sizes, prices, transfers, transfer)


def tabulated(c: Candidates, job: JobSpec) -> tuple[StageTable, IndexArray]:
    """Tabulate the stages of all (pp, vpp) pairs, and find the row of each candidate's."""
    pairs, row = unique_rows(c, ("pp", "vpp", "schedule", "split"))
    names = list(zip(pairs.pp.tolist(), pairs.vpp.tolist(), strict=True))
    splits = [job.pipeline_splits[one] for one in np.broadcast_to(pairs.split, pairs.pp.shape).tolist()]
    return stage_table(job.model, names, splits, pairs.schedule.tolist()), _lifted(row, c)


def _lifted(by_row: npt.NDArray[Any], c: Candidates) -> npt.NDArray[Any]:
    """Give an array over the rows of a grid the axes of its choices: (..., N) to (..., 1, 1, N)."""
    return by_row.reshape(*by_row.shape[:-1], *[1] * (len(c.shape) - 1), by_row.shape[-1])


@record
class SharedByBranches:
    """What recurs among several branches.

    Attributes:
        every: for the rows of all branches, one after the other, under a single choice of ZeRO.
        starts: the first row of each branch.
        modules: the selections of modules to recompute that `every` knows, ascending.
        cuts: the ways to cut layers that `every` knows, one row each.
        key: the fields that tell them apart.
        transfer: for each branch the index of each candidate in `every.transfers`, shape (choices of ZeRO, 1, rows).
    """

    every: Shared
    starts: list[int]
    modules: IntArray
    cuts: Candidates
    key: tuple[str, ...]
    transfer: list[IndexArray]

    def of(self, branch: int, rows: slice | IndexArray, c: Candidates) -> Shared:
        """Return what some rows of a branch have; `c` is a grid of these rows."""
        every, start = self.every, self.starts[branch]
        here = slice(start + rows.start, start + rows.stop) if isinstance(rows, slice) else start + rows
        row = every.sizes.cut.row[here]
        cut = Cases(row, np.searchsorted(self.modules, c.recompute_modules) * len(self.cuts) + row)
        stage_row, held = every.stage_row[here], every.parameters
        width = every.stages.width(stage_row)
        dense, expert = (_lifted(part[:width, here], c) for part in (held.dense, held.expert))
        return Shared(
            every.stages.narrowed(width),
            _lifted(stage_row, c),
            with_shards(dense, expert, c),
            replace(every.sizes, cut=cut),
            replace(every.prices, cut=cut, hop=every.prices.hop[here]),
            every.transfers,
            self.transfer[branch][..., rows],
        )

    def book(self) -> Book:
        """Write the layers down for other jobs."""
        return Book(
            self.modules, self.cuts, self.key, Numbers.of(self.cuts, self.key), self.every.sizes, self.every.prices
        )


@record(eq=False)
class Book:
    """Layers that were measured and priced, to look up in jobs whose layers are the same.

    Attributes:
        modules: the selections of modules to recompute, ascending.
        cuts, key: the ways to cut layers, and the fields that tell them apart.
        numbers: finds them.
        sizes: bytes of one layer and one microbatch, for each of them.
        prices: seconds, likewise.
    """

    modules: IntArray
    cuts: Candidates
    key: tuple[str, ...]
    numbers: Numbers
    sizes: LayerSizes
    prices: Prices

    def find(self, rows: Candidates, modules: IntArray) -> IndexArray | None:
        """Find how each row cuts its layers; None where one of them is not in the book."""
        if not np.array_equal(modules, self.modules):
            return None
        place, known = self.numbers.find(rows)
        return place if known.all() else None


def share_branches(branches: Sequence[Branch], job: JobSpec, book: Book | None = None) -> SharedByBranches:
    """Measure and price what recurs among branches of the search space.

    Args:
        book: layers of a job whose layers are the same.
    """
    plain = [replace(branch.rows, zero=_NONE, shard=_NONE + 1) for branch in branches]
    rows = concatenate([one.listed(np.ones(len(one), dtype=bool)) for one in plain])
    starts = np.cumsum([0, *(len(branch.rows) for branch in branches)]).tolist()
    stages, row = tabulated(rows, job)
    parameters = stage_parameters(rows, job, stages, row)
    transfers, transfer = _share_transfers(branches, job, parameters, starts)
    masks = (grid.rows.recompute_modules.ravel().tolist() for branch in branches for grid in branch.tried)
    modules = np.array(sorted(set().union(*masks)), dtype=np.int64)
    found = None if book is None else book.find(rows, modules)
    if book is None or found is None:
        recomputed = replace(rows, recompute_modules=modules[:, None])
        key = tuple(name for name in cut_key(recomputed, job) if name != "recompute_modules")
        cuts, index = unique_rows(recomputed, key)
        cut = Cases(index)
        sizes, prices = measure_layers(cuts, cut, job), price(recomputed, job, cuts, cut)
    else:
        cuts, key, cut = book.cuts, book.key, Cases(found)
        hop, hops = priced_hops(rows, job)
        sizes, prices = replace(book.sizes, cut=cut), replace(book.prices, cut=cut, hop=hop, hops=hops)
    every = Shared(stages, row, parameters, sizes, prices, transfers, transfer[0])
    return SharedByBranches(every, starts, modules, cuts, key, transfer)


def _share_transfers(
    branches: Sequence[Branch], job: JobSpec, parameters: StageParameters, starts: Sequence[int]
) -> tuple[Transfers, list[IndexArray]]:
    """Price all data-parallel transfers, and find those of each branch's candidates.

    Args:
        parameters: of the rows of all branches, one after the other.
        starts: the first row of each branch.
    """
    cases: list[Candidates] = []
    held: list[IndexArray] = []
    transfer: list[IndexArray] = []
    count = 0
    for branch, start in zip(branches, starts, strict=False):
        first, index = distinct(combined_key(branch.rows, TRANSFER_KEY))
        choices = len(branch.rows.zero)
        cases.append(branch.rows.take(first).listed(np.ones((choices, 1, len(first)), dtype=bool)))
        held.append(np.tile(start + first, choices))
        transfer.append(count + np.arange(choices)[:, None, None] * len(first) + index)
        count += choices * len(first)
    every = concatenate(cases)
    of_cases = parameters.take(np.concatenate(held))
    return price_transfers(every, job, with_shards(of_cases.dense, of_cases.expert, every)), transfer


_NONE = np.zeros(1, dtype=np.int64)
