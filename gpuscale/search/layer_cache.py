"""What recurs among candidates, measured and priced once.

Layers that are cut alike take the same time and memory whatever pipeline they are in; groups of the same GPUs reduce
the same gradients whatever the microbatch. `share` finds what recurs in any set of candidates, `share_branches` in all
branches of a block of the search space at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import Candidates, Cases, combined_key, concatenate, distinct, unique_rows
from gpuscale.layouts.stages import StageTable, stage_table
from gpuscale.memory.model import LayerSizes, measure_layers
from gpuscale.memory.states import StageParameters, stage_parameters, with_shards
from gpuscale.search.enumeration import Branch
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.data_parallel import TRANSFER_KEY, Transfers, state_transfers
from gpuscale.steptime.pipeline import Passes, cut_key, evaluate_passes, hop_times
from gpuscale.steptime.step import SharedTimes


@dataclass(frozen=True)
class Shared:
    """What recurs, and for each of N candidates which of it they have.

    Attributes:
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: row of each candidate's pair in `stages`.
        parameters: parameters on one GPU of each priced stage.
        sizes: bytes of one layer and one microbatch.
        times: seconds of one microbatch, of its way between stages, of data-parallel transfers.
    """

    stages: StageTable
    stage_row: IndexArray
    parameters: StageParameters
    sizes: LayerSizes
    times: SharedTimes


def share(c: Candidates, job: JobSpec, layers: tuple[LayerSizes, Passes] | None = None) -> Shared:
    """Measure and price what recurs among candidates.

    Args:
        layers: their layers, where they are at hand.
    """
    stages, row = tabulated(c, job)
    parameters = stage_parameters(c, job, stages, row)
    sizes, passes = layers or distinct_layers(c, job)
    return Shared(
        stages, row, parameters, sizes, SharedTimes(passes, hop_times(c, job), share_transfers(c, job, parameters))
    )


def distinct_layers(c: Candidates, job: JobSpec) -> tuple[LayerSizes, Passes]:
    """Measure and price layers, each distinct way to cut them once."""
    cuts, index = unique_rows(c, cut_key(c, job))
    return measure_layers(cuts, Cases(index), job), evaluate_passes(cuts, Cases(index), job)


def share_transfers(c: Candidates, job: JobSpec, parameters: StageParameters) -> Transfers:
    """Price data-parallel transfers, each distinct one once."""
    first, index = distinct(combined_key(c, TRANSFER_KEY))
    return state_transfers(c.take(first), job, parameters.take(first)).take(index)


def tabulated(c: Candidates, job: JobSpec) -> tuple[StageTable, IndexArray]:
    """Tabulate the stages of all (pp, vpp) pairs, and find the row of each candidate's."""
    pairs, row = unique_rows(c, ("pp", "vpp", "schedule", "split"))
    names = list(zip(pairs.pp.tolist(), pairs.vpp.tolist(), strict=True))
    splits = [job.pipeline_splits[one] for one in np.broadcast_to(pairs.split, pairs.pp.shape).tolist()]
    return stage_table(job.model, names, splits, pairs.schedule.tolist()), lifted(row, c)


def lifted(by_row: npt.NDArray[Any], c: Candidates) -> npt.NDArray[Any]:
    """Give an array over the rows of a grid the axes of its choices: (..., N) to (..., 1, 1, N)."""
    return by_row.reshape(*by_row.shape[:-1], *[1] * (len(c.shape) - 1), by_row.shape[-1])


@dataclass(frozen=True, eq=False)
class Layers:
    """Layers of rows of the search space, measured and priced under each selection of modules to recompute.

    Attributes:
        modules: the selections, ascending.
        cuts: the distinct ways to cut layers, one row each.
        row: for each row of the search space the number of its way.
        sizes: bytes of one layer and one microbatch, by selection and way.
        passes: seconds of one microbatch, likewise.
    """

    modules: IntArray
    cuts: Candidates
    row: IndexArray
    sizes: LayerSizes
    passes: Passes

    def of(self, rows: slice | IndexArray, c: Candidates) -> tuple[LayerSizes, Passes]:
        """Return those of some rows, of which `c` is a grid; it chooses the modules."""
        row = self.row[rows]
        cut = Cases(row, np.searchsorted(self.modules, c.recompute_modules) * len(self.cuts) + row)
        return replace(self.sizes, cut=cut), replace(self.passes, cut=cut)


def share_layers(rows: Candidates, modules: IntArray, job: JobSpec) -> Layers:
    """Measure and price the layers of rows, each way to cut them once.

    Args:
        modules: selections of modules to recompute, ascending.
    """
    recomputed = replace(rows, recompute_modules=modules[:, None])
    cuts, row = unique_rows(recomputed, [name for name in cut_key(rows, job) if name != "recompute_modules"])
    cut = Cases(row)
    return Layers(modules, cuts, row, measure_layers(cuts, cut, job), evaluate_passes(cuts, cut, job))


@dataclass(frozen=True, eq=False)
class SharedByBranches:
    """What recurs among several branches; rows are those of all branches, one after the other.

    Attributes:
        starts: the first row of each branch.
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: row of each row's pair in `stages`.
        parameters: parameters on one GPU of each priced stage, of each row under a single choice of ZeRO.
        layers: their layers.
        hops: their transfers between stages.
        transfers: data-parallel transfers.
        transfer: for each branch the index of each candidate in `transfers`, shape (choices of ZeRO, 1, rows).
    """

    starts: list[int]
    stages: StageTable
    stage_row: IndexArray
    parameters: StageParameters
    layers: Layers
    hops: tuple[FloatArray, FloatArray]
    transfers: Transfers
    transfer: list[IndexArray]

    def of(self, branch: int, rows: slice, c: Candidates) -> Shared:
        """Return what some rows of a branch have; `c` is a grid of these rows."""
        here = slice(self.starts[branch] + rows.start, self.starts[branch] + rows.stop)
        stage_row = self.stage_row[here]
        width = self.stages.width(stage_row)
        dense, expert = (lifted(part[:width, here], c) for part in (self.parameters.dense, self.parameters.expert))
        sizes, passes = self.layers.of(here, c)
        transfers = self.transfers.take(self.transfer[branch][..., rows])
        return Shared(
            self.stages.narrowed(width),
            lifted(stage_row, c),
            with_shards(dense, expert, c),
            sizes,
            SharedTimes(passes, (self.hops[0][here], self.hops[1][here]), transfers),
        )


def share_branches(branches: Sequence[Branch], job: JobSpec) -> SharedByBranches:
    """Measure and price what recurs among branches of the search space."""
    plain = [replace(branch.rows, zero=_NONE, shard=_NONE + 1) for branch in branches]
    rows = concatenate([one.listed(np.ones(len(one), dtype=bool)) for one in plain])
    starts = np.cumsum([0, *(len(branch.rows) for branch in branches)]).tolist()
    stages, row = tabulated(rows, job)
    parameters = stage_parameters(rows, job, stages, row)
    transfers, transfer = _share_transfers(branches, job, parameters, starts)
    masks = (grid.rows.recompute_modules.ravel().tolist() for branch in branches for grid in branch.tried)
    modules = np.array(sorted(set().union(*masks)), dtype=np.int64)
    layers = share_layers(rows, modules, job)
    return SharedByBranches(starts, stages, row, parameters, layers, hop_times(rows, job), transfers, transfer)


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
    return state_transfers(every, job, with_shards(of_cases.dense, of_cases.expert, every)), transfer


_NONE = np.zeros(1, dtype=np.int64)
