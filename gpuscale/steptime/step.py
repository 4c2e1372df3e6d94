"""Seconds per optimizer step: layers on stages, stages in a pipeline, the pipeline beside data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.collectives import collective_time_s
from gpuscale.layouts.arrays import Candidates, Cases, spread, summed, unique_rows
from gpuscale.layouts.ranks import strides
from gpuscale.layouts.stages import StageTable, at_place, place_of_end
from gpuscale.memory.activations import tokens
from gpuscale.memory.states import StageParameters
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import INDEX, Breakdown, added, scaled, stacked, taken
from gpuscale.steptime.data_parallel import DataParallelTime, Transfers, data_parallel_time, price_transfers
from gpuscale.steptime.offload import exposed_activations_s
from gpuscale.steptime.pipeline import Passes, cut_key, pipeline_time, price_passes, recomputed_share
from gpuscale.steptime.tensor_parallel import ACT_BYTES


@dataclass(frozen=True)
class StepTime:
    """Step time of N candidates, with what its breakdown is made from.

    Attributes:
        step_time_s: seconds per optimizer step, shape (N,).
        bottleneck: which of the priced stages is the slowest, shape (N,).
        bubble_s, pp_comm_s: idle time and exposed transfers of the pipeline, shape (N,).
        activation_copies_s: what copies of activations to and from host memory add, shape (N,).
        retry_s: waiting for the allocator where memory is short, booked as `launch`, shape (N,).
        data: data parallelism and optimizer.
    """

    step_time_s: FloatArray
    bottleneck: npt.NDArray[np.intp]
    bubble_s: FloatArray
    pp_comm_s: FloatArray
    activation_copies_s: FloatArray
    retry_s: FloatArray
    data: DataParallelTime
    _candidates: Candidates
    _counts: tuple[FloatArray, ...]
    _passes: Passes

    def components(self) -> FloatArray:
        """Break `step_time_s` down, shape (components, N); the second route to the total."""
        return self._components

    @cached_property
    def _components(self) -> FloatArray:
        c, passes = self._candidates, self._passes
        counts = [at_place(count, self.bottleneck) for count in self._counts]
        share = recomputed_share(c, counts)
        cost: Breakdown = {}
        for layer, number in zip(passes.layers, counts, strict=True):
            both = taken(added(layer.forward, layer.backward), passes.cut.row)
            again = scaled(taken(layer.recompute, passes.cut.row), share)
            cost = added(cost, scaled(added(both, again), number))
        for place, (forward, backward) in passes.ends.items():
            mine = (c.pp == 1) | (self.bottleneck == place_of_end(c, place))
            cost = added(cost, scaled(taken(added(forward, backward), passes.cut.row), mine))
        out = stacked(scaled(cost, c.num_microbatches), len(c))
        out[INDEX["launch"]] += self.retry_s
        out[INDEX["bubble"]] += self.bubble_s
        out[INDEX["pp_comm"]] += self.pp_comm_s
        out[INDEX["dp_comm"]] += self.data.exposed_s
        out[INDEX["optimizer"]] += self.data.optimizer_s
        out[INDEX["offload"]] += self.activation_copies_s + self.data.offload_s
        return out


@dataclass(frozen=True)
class Prices:
    """What recurs among candidates, priced once for each distinct case, and which case each candidate is.

    Attributes:
        passes: one microbatch through the model.
        hops: its transfer from a stage to the next one.
        transfers: data-parallel transfers.
    """

    passes: Passes
    hops: Hops
    transfers: Transfers


def price(c: Candidates, job: JobSpec, parameters: StageParameters) -> Prices:
    """Price what candidates are made of, each distinct case once.

    Args:
        parameters: parameters on one GPU of each stage.
    """
    cuts, index = unique_rows(c, cut_key(c, job))
    return Prices(price_passes(cuts, Cases(index), job), price_hops(c, job), price_transfers(c, job, parameters))


def step_time(
    c: Candidates,
    job: JobSpec,
    stages: StageTable,
    stage_row: npt.NDArray[np.intp],
    parameters: StageParameters,
    prices: Prices | None = None,
    allocator_retries: FloatArray | float = 0.0,
) -> StepTime:
    """Seconds per optimizer step of each candidate.

    Args:
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: for each candidate the row of its pair in `stages`.
        parameters: parameters on one GPU of each stage.
        prices: `price` of the candidates, where it is at hand.
        allocator_retries: how often in a microbatch the allocator starts anew (`Memory.allocator_retries`).
    """
    prices = prices or price(c, job, parameters)
    pipeline = pipeline_time(c, job, stages, stage_row, prices.passes)
    forward_s, backward_s = pipeline.forward_s, pipeline.backward_s
    pp_comm_s: FloatArray = np.zeros(())
    if (c.pp > 1).any():
        pp_comm_s = _pipeline_transfers_s(c, prices.hops, pipeline.slowest_s)
    data = data_parallel_time(c, job, parameters, prices.transfers, forward_s, backward_s)
    copies_s: FloatArray = np.zeros(())
    retry_s: FloatArray = np.zeros(())
    if job.offload.activations:
        each_s = exposed_activations_s(c, job, stages, stage_row, pipeline.bottleneck, forward_s, backward_s)
        copies_s = each_s * c.num_microbatches
    if job.runtime.allocator_retry_s:
        retry_s = np.asarray(allocator_retries * job.runtime.allocator_retry_s * c.num_microbatches)
    total_s = summed(pipeline.step_s(c), pp_comm_s, copies_s, retry_s)
    total_s = summed(total_s, data.exposed_s, data.optimizer_s, data.offload_s)
    return StepTime(
        step_time_s=total_s,
        bottleneck=pipeline.bottleneck,
        bubble_s=pipeline.bubble_s,
        pp_comm_s=pp_comm_s,
        activation_copies_s=copies_s,
        retry_s=retry_s,
        data=data,
        _candidates=c,
        _counts=pipeline.counts,
        _passes=prices.passes,
    )


HOP_KEY = ("tp", "sp", "cp", "dp", "pp", "micro_batch_size", "order")
"""Fields of a candidate on which a transfer between two stages depends."""


@dataclass(frozen=True)
class Hops:
    """Transfers between neighbouring stages [s].

    Attributes:
        row: for each candidate the number of its transfer.
        time_s: activations of one microbatch, for each distinct transfer.
        latency_s: the part that does not depend on their size, likewise.
    """

    row: npt.NDArray[np.intp]
    time_s: FloatArray
    latency_s: FloatArray


def price_hops(candidates: Candidates, job: JobSpec) -> Hops:
    """Price the transfer of one microbatch's hidden state to the next stage, each distinct one once.

    Where TP ranks hold copies of what is sent, each may send its part only, which is gathered on the other side
    (Narayanan et al. 2021, section 4.1, scatter/gather).
    """
    c, row = unique_rows(candidates, HOP_KEY)
    whole = tokens(c, job) * job.model.hidden * ACT_BYTES
    scattered = np.where((c.sp == 0) & job.runtime.scatter_pipeline, c.tp, 1)
    apart = strides(c, job)
    pair, distance = np.minimum(c.pp, 2), apart.pp
    hop = collective_time_s(job.cluster, "sendrecv", whole / c.sequence_split / scattered, pair, distance)
    gathering = np.where(c.pp > 1, scattered, 1)
    hop = hop + collective_time_s(job.cluster, "allgather", whole, gathering, apart.tp)
    return Hops(row, hop, collective_time_s(job.cluster, "sendrecv", np.ones(len(c)), pair, distance))


def _pipeline_transfers_s(c: Candidates, hops: Hops, microbatch_s: FloatArray) -> FloatArray:
    """Exposed activation and gradient transfers between stages [s].

    Without interleaving every microbatch waits for one transfer in each direction. With it Megatron-LM runs the
    transfers under the computation of the next chunk: what shows is the latency of each, whatever outlasts a chunk,
    and filling and draining.

    Args:
        microbatch_s: forward and backward of one microbatch on the slowest stage.
    """
    hop, latency = spread(hops.time_s, hops.row), spread(hops.latency_s, hops.row)
    filling = np.where(c.pp > 1, 2 * (c.pp - 1) * hop, 0.0)
    trips = np.where(c.pp > 1, 2.0 * c.num_microbatches, 0.0)
    if (c.vpp == 1).all():
        return trips * hop + filling
    vpp = c.vpp.astype(np.float64)
    hidden = latency + np.maximum(hop - latency - microbatch_s / vpp / 2, 0.0)
    return trips * np.where(vpp == 1, hop, hidden * vpp) + filling


__all__ = ["Prices", "StepTime", "price", "step_time"]
