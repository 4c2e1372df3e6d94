"""Seconds per optimizer step: layers on stages, stages in a pipeline, the pipeline beside data parallelism."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, Cases, spread, summed, unique_rows
from gpuscale.candidates.order import stride_fields, strides
from gpuscale.candidates.stages import FIRST, LAST, StageTable, at_place, largest_place, place_of_end, places
from gpuscale.collectives import collective_time_s
from gpuscale.memory.activations import LAYER_KEY, tokens
from gpuscale.memory.states import StageParameters, padded_vocabulary
from gpuscale.records import record
from gpuscale.specs.job import JobSpec
from gpuscale.steptime import schedules
from gpuscale.steptime.components import INDEX, Breakdown, added, in_all_s, scaled, stacked, taken
from gpuscale.steptime.dataparallel import DataParallelTime, Transfers, data_parallel_time, price_transfers
from gpuscale.steptime.kernels import gemm_time_s, stream_time_s
from gpuscale.steptime.layers import SHARED_KEY, LayerTime, layer_times
from gpuscale.steptime.offload import exposed_activations_s
from gpuscale.steptime.parts import ACT_BYTES, TensorParallelTime, tensor_parallel_time

FloatArray = npt.NDArray[np.float64]

LOSS_BYTES = {"standard": (14, 10), "fused": (4, 4), "eager": (38, 22)}
"""Memory traffic of the cross entropy per logit, forward and backward. standard (Megatron-LM, in place): cast reads 2
and writes 4, maximum reads 4, exponential reads and writes 4; backward reads and writes 4 and casts to 2. fused: one
kernel each way on 16-bit logits. eager (every step its own tensor): cast 6, maximum 4, subtraction 8, exponential 8,
sum 4, division 8; backward 8, 8 and 6."""


LOSS_SUMS = 3
"""AllReduces over TP, of one fp32 number per token, in the loss of a vocabulary cut over TP: largest logit, logit of
the label, sum of exponentials (Megatron-LM, vocab_parallel_cross_entropy; nanotron, sharded_cross_entropy)."""


@record
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
    _prices: Prices

    def components(self) -> FloatArray:
        """Break `step_time_s` down, shape (components, N); the second route to the total."""
        return self._components

    @cached_property
    def _components(self) -> FloatArray:
        c, prices = self._candidates, self._prices
        counts = [at_place(count, self.bottleneck) for count in self._counts]
        share = _recomputed_share(c, counts)
        cost: Breakdown = {}
        for layer, number in zip(prices.layers, counts, strict=True):
            passes = taken(added(layer.forward, layer.backward), prices.cut.row)
            again = scaled(taken(layer.recompute, prices.cut.row), share)
            cost = added(cost, scaled(added(passes, again), number))
        for place, (forward, backward) in prices.ends.items():
            mine = (c.pp == 1) | (self.bottleneck == place_of_end(c, place))
            cost = added(cost, scaled(taken(added(forward, backward), prices.cut.row), mine))
        out = stacked(scaled(cost, c.num_microbatches), len(c))
        out[INDEX["launch"]] += self.retry_s
        out[INDEX["bubble"]] += self.bubble_s
        out[INDEX["pp_comm"]] += self.pp_comm_s
        out[INDEX["dp_comm"]] += self.data.exposed_s
        out[INDEX["optimizer"]] += self.data.optimizer_s
        out[INDEX["offload"]] += self.activation_copies_s + self.data.offload_s
        return out


@record
class Prices:
    """What recurs among candidates, priced once for each distinct case, and which case each candidate is.

    Attributes:
        cut: the way in which each candidate cuts its layers.
        layers: by kind, one layer and one microbatch, for each way.
        whole_s: by kind, forward and backward pass of all its layers, and their recomputation.
        ends: place -> forward and backward pass of embedding (first stage) and LM head with loss (last stage).
        ends_s: place -> their sums.
        hop: the transfer between stages of each candidate.
        hops: the distinct ones.
    """

    cut: Cases
    layers: tuple[LayerTime, ...]
    whole_s: tuple[tuple[FloatArray, FloatArray], ...]
    ends: dict[int, tuple[Breakdown, Breakdown]]
    ends_s: dict[int, tuple[FloatArray, FloatArray]]
    hop: npt.NDArray[np.intp]
    hops: Hops


def cut_key(c: Candidates, job: JobSpec) -> tuple[str, ...]:
    """Fields on which time and memory of one layer and one microbatch depend."""
    beside = job.runtime.overlap_ep or bool(c.schedule.any())  # what runs beside one another depends on the pipeline
    more = ("pp", "vpp", "num_microbatches") if beside else ()
    return (*LAYER_KEY, "schedule", *dict.fromkeys((*stride_fields(job), *more)))


def price(c: Candidates, job: JobSpec, cuts: Candidates | None = None, cut: Cases | None = None) -> Prices:
    """Price what candidates are made of, each distinct case once.

    Args:
        cuts, cut: the distinct ways in which the candidates are cut (`cut_key`), and which each has, where at hand.
    """
    if cuts is None or cut is None:
        cuts, index = unique_rows(c, cut_key(c, job))
        cut = Cases(index)
    rows, row = unique_rows(cuts, (*SHARED_KEY, *stride_fields(job)))
    tp = tensor_parallel_time(rows, job)
    layers = layer_times(cuts, job, rows, row, tp)
    passes = {FIRST: _embedding(rows, job, tp), LAST: _head(rows, job, tp)}
    ends = {place: (taken(forward, row), taken(backward, row)) for place, (forward, backward) in passes.items()}
    hop, hops = priced_hops(c, job)
    return Prices(
        cut=cut,
        layers=layers,
        whole_s=tuple(
            (number * (layer.forward_s + layer.backward_s), number * layer.recompute_s)
            for layer, number in zip(layers, job.model.trained_counts, strict=True)
        ),
        ends=ends,
        ends_s={place: (in_all_s(forward), in_all_s(backward)) for place, (forward, backward) in ends.items()},
        hop=hop,
        hops=hops,
    )


def priced_hops(c: Candidates, job: JobSpec) -> tuple[npt.NDArray[np.intp], Hops]:
    """Price the distinct transfers between stages, and find that of each candidate."""
    hops, hop = unique_rows(c, HOP_KEY)
    return hop, price_hops(hops, job)


def step_time(
    c: Candidates,
    job: JobSpec,
    stages: StageTable,
    stage_row: npt.NDArray[np.intp],
    parameters: StageParameters,
    prices: Prices | None = None,
    transfers: Transfers | None = None,
    allocator_retries: FloatArray | float = 0.0,
) -> StepTime:
    """Seconds per optimizer step of each candidate.

    The slowest stage works through all microbatches; before and after it the others fill and drain the pipeline
    once, or less with other schedules than 1F1B (`gpuscale.steptime.schedules`).

    Args:
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: for each candidate the row of its pair in `stages`.
        parameters: parameters on one GPU of each stage.
        prices: `price` of the candidates, where it is at hand.
        transfers: `price_transfers` of the candidates, where it is at hand.
        allocator_retries: how often in a microbatch the allocator starts anew (`Memory.allocator_retries`).
    """
    prices = prices or price(c, job)
    transfers = transfers or price_transfers(c, job, parameters)
    counts = stages.layers(stage_row)
    forward, backward = _stage_seconds(c, counts, prices)
    bottleneck = largest_place(forward + backward)
    forward_s, backward_s = at_place(forward, bottleneck), at_place(backward, bottleneck)
    slowest_s = forward_s + backward_s
    bubble_s: FloatArray = np.zeros(())
    pp_comm_s: FloatArray = np.zeros(())
    if (c.pp > 1).any():
        others_s = np.maximum(_whole_model_s(c, job, prices) - slowest_s, 0.0)
        bubble_s = schedules.bubble_s(c, job, others_s, backward_s / slowest_s)
        pp_comm_s = _pipeline_transfers_s(c, prices.hops, prices.hop, slowest_s)
    data = data_parallel_time(c, job, parameters, transfers, forward_s, backward_s)
    copies_s: FloatArray = np.zeros(())
    retry_s: FloatArray = np.zeros(())
    if job.offload.activations:
        each_s = exposed_activations_s(c, job, stages, stage_row, bottleneck, forward_s, backward_s)
        copies_s = each_s * c.num_microbatches
    if job.runtime.allocator_retry_s:
        retry_s = np.asarray(allocator_retries * job.runtime.allocator_retry_s * c.num_microbatches)
    microbatches = c.num_microbatches.astype(np.float64)  # mixed types take NumPy longer
    total_s = summed(slowest_s * microbatches, bubble_s, pp_comm_s, copies_s, retry_s)
    total_s = summed(total_s, data.exposed_s, data.optimizer_s, data.offload_s)
    return StepTime(total_s, bottleneck, bubble_s, pp_comm_s, copies_s, retry_s, data, c, counts, prices)


def _recomputed_share(c: Candidates, counts: Sequence[FloatArray]) -> FloatArray:
    """Share of a stage's layers under full recomputation, given its layers of each kind."""
    whole = c.recompute_layers.astype(np.float64)
    return np.minimum(whole / np.maximum(functools.reduce(np.add, counts), 1), 1.0)


def _stage_seconds(c: Candidates, counts: Sequence[FloatArray], prices: Prices) -> tuple[FloatArray, FloatArray]:
    """Forward and backward pass of one microbatch on each of the P priced stages, shape (P, N) [s]."""
    again = c.recompute_layers.any()
    share = _recomputed_share(c, counts) if again else np.zeros(())
    forward: list[FloatArray] = []
    backward: list[FloatArray] = []
    for layer, number in zip(prices.layers, counts, strict=True):
        back_s = prices.cut.of(layer.backward_s)
        if again:
            recompute_s = prices.cut.of(layer.recompute_s) * share
            back_s = np.add(back_s, recompute_s, out=recompute_s)
        forward.append(prices.cut.of(layer.forward_s) * number)
        backward.append(back_s * number)
    place = places(counts[0])
    for end, (end_forward_s, end_backward_s) in prices.ends_s.items():
        mine = (c.pp == 1) | (place_of_end(c, end) == place)
        forward.append(prices.cut.of(end_forward_s) * mine)
        backward.append(prices.cut.of(end_backward_s) * mine)
    return summed(*forward), summed(*backward)


def _whole_model_s(c: Candidates, job: JobSpec, prices: Prices) -> FloatArray:
    """One microbatch through all stages [s]: what filling and draining the pipeline costs with the slowest stage."""
    parts: list[FloatArray] = []
    share = np.minimum(c.recompute_layers * c.pp / len(job.model.trained_pattern), 1.0)
    for passes_s, again_s in prices.whole_s:
        parts.append(prices.cut.of(passes_s))
        if share.any():
            parts.append(prices.cut.of(again_s) * share)
    both_s = (forward_s + backward_s for forward_s, backward_s in prices.ends_s.values())
    return summed(*parts, prices.cut.of(summed(*both_s)))


def _embedding(c: Candidates, job: JobSpec, tp: TensorParallelTime) -> tuple[Breakdown, Breakdown]:
    """Look-up of the input embedding: reads and writes one row per token; backward adds onto fp32 gradients.

    Under TP each rank looks up its part of the vocabulary and the ranks' rows are added up (Shoeybi et al. 2019).
    """
    rows = tokens(c, job) / c.sequence_split * job.model.hidden
    gpu = job.cluster.gpu
    forward_s, backward_s = stream_time_s(gpu, rows * 2 * ACT_BYTES, 2), stream_time_s(gpu, rows * (ACT_BYTES + 8), 2)
    return (
        {"elementwise": forward_s, "tp_comm": tp.scatter + tp.reduce},
        {"elementwise": backward_s, "tp_comm": tp.gather},
    )


def _head(c: Candidates, job: JobSpec, tp: TensorParallelTime) -> tuple[Breakdown, Breakdown]:
    """LM head (16-bit GEMM, vocabulary cut over TP), cross entropy, and the synchronisation of each microbatch."""
    gpu, precision = job.cluster.gpu, job.attention_precision
    rows = tokens(c, job)
    vocabulary = padded_vocabulary(job.model, job.vocab_multiple, c.tp) / c.tp
    hidden = job.model.hidden
    forward = gemm_time_s(gpu, precision, rows, vocabulary, hidden)
    backward = gemm_time_s(gpu, precision, rows, hidden, vocabulary)
    backward = backward + gemm_time_s(gpu, precision, hidden, vocabulary, rows, 1, 8)
    sums = LOSS_SUMS * collective_time_s(job.cluster, "allreduce", rows * 4, c.tp, strides(c, job).tp)
    logits = rows * vocabulary
    loss_forward, loss_backward = LOSS_BYTES["eager" if "loss" in job.runtime.eager else job.runtime.loss]
    waiting = np.full(len(c), job.runtime.host_microbatch_s)
    loss_s, loss_back_s = stream_time_s(gpu, logits * loss_forward, 4), stream_time_s(gpu, logits * loss_backward, 2)
    heads = 1 + job.model.mtp_depth  # one set of logits per multi-token-prediction module
    return (
        scaled({"gemm": forward, "elementwise": loss_s, "tp_comm": tp.gather + sums}, heads) | {"launch": waiting},
        scaled({"gemm": backward, "elementwise": loss_back_s, "tp_comm": tp.scatter + tp.reduce}, heads),
    )


HOP_KEY = ("tp", "sp", "cp", "dp", "pp", "micro_batch_size", "order")
"""Fields of a candidate on which a transfer between two stages depends."""


@record
class Hops:
    """One transfer between neighbouring stages, each (N,) [s].

    Attributes:
        time_s: activations of one microbatch.
        latency_s: the part that does not depend on their size.
    """

    time_s: FloatArray
    latency_s: FloatArray


def price_hops(c: Candidates, job: JobSpec) -> Hops:
    """Price the transfer of one microbatch's hidden state to the next stage.

    Where TP ranks hold copies of what is sent, each may send its part only, which is gathered on the other side
    (Narayanan et al. 2021, section 4.1, scatter/gather).
    """
    whole = tokens(c, job) * job.model.hidden * ACT_BYTES
    scattered = np.where((c.sp == 0) & job.runtime.scatter_pipeline, c.tp, 1)
    apart = strides(c, job)
    pair, distance = np.minimum(c.pp, 2), apart.pp
    hop = collective_time_s(job.cluster, "sendrecv", whole / c.sequence_split / scattered, pair, distance)
    gathering = np.where(c.pp > 1, scattered, 1)
    hop = hop + collective_time_s(job.cluster, "allgather", whole, gathering, apart.tp)
    return Hops(hop, collective_time_s(job.cluster, "sendrecv", np.ones(len(c)), pair, distance))


def _pipeline_transfers_s(c: Candidates, hops: Hops, row: npt.NDArray[np.intp], microbatch_s: FloatArray) -> FloatArray:
    """Exposed activation and gradient transfers between stages [s].

    Without interleaving every microbatch waits for one transfer in each direction. With it Megatron-LM runs the
    transfers under the computation of the next chunk: what shows is the latency of each, whatever outlasts a chunk,
    and filling and draining.

    Args:
        row: for each candidate its row in `hops`.
        microbatch_s: forward and backward of one microbatch on the slowest stage.
    """
    hop, latency = spread(hops.time_s, row), spread(hops.latency_s, row)
    filling = np.where(c.pp > 1, 2 * (c.pp - 1) * hop, 0.0)
    trips = np.where(c.pp > 1, 2.0 * c.num_microbatches, 0.0)
    if (c.vpp == 1).all():
        return trips * hop + filling
    vpp = c.vpp.astype(np.float64)
    hidden = latency + np.maximum(hop - latency - microbatch_s / vpp / 2, 0.0)
    return trips * np.where(vpp == 1, hop, hidden * vpp) + filling


__all__ = ["Prices", "StepTime", "price", "step_time"]
