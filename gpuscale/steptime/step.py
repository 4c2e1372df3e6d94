"""Seconds per optimizer step: layers on stages, stages in a pipeline, the pipeline beside data parallelism."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, unique_rows
from gpuscale.candidates.order import stride_fields, strides
from gpuscale.candidates.stages import FIRST, LAST, StageTable, place_of_end
from gpuscale.collectives import collective_time_s
from gpuscale.memory.activations import LAYER_KEY, tokens
from gpuscale.memory.states import StageParameters, padded_vocabulary
from gpuscale.specs.job import JobSpec
from gpuscale.steptime import schedules
from gpuscale.steptime.components import INDEX, breakdown, in_all_s, zeros
from gpuscale.steptime.dataparallel import DataParallelTime, data_parallel_time
from gpuscale.steptime.kernels import gemm_time_s, stream_time_s
from gpuscale.steptime.layers import LayerTime, layer_time
from gpuscale.steptime.offload import exposed_activations_s
from gpuscale.steptime.parts import ACT_BYTES

FloatArray = npt.NDArray[np.float64]

LOSS_BYTES = {"standard": (14, 10), "fused": (4, 4), "eager": (38, 22)}
"""Memory traffic of the cross entropy per logit, forward and backward. standard (Megatron-LM, in place): cast reads 2
and writes 4, maximum reads 4, exponential reads and writes 4; backward reads and writes 4 and casts to 2. fused: one
kernel each way on 16-bit logits. eager (every step its own tensor): cast 6, maximum 4, subtraction 8, exponential 8,
sum 4, division 8; backward 8, 8 and 6."""


LOSS_SUMS = 3
"""AllReduces over TP, of one fp32 number per token, in the loss of a vocabulary cut over TP: largest logit, logit of
the label, sum of exponentials (Megatron-LM, vocab_parallel_cross_entropy; nanotron, sharded_cross_entropy)."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """Embedding (first stage) and LM head with loss (last stage) for one microbatch, over distinct ways to cut them.

    Attributes:
        times: place -> (forward, backward) breakdowns, shape (components, distinct).
        back: for each candidate its row there.
    """

    times: dict[int, tuple[FloatArray, FloatArray]]
    back: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
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
    _counts: npt.NDArray[np.int64]
    _layers: tuple[LayerTime, ...]
    _back: npt.NDArray[np.intp]
    _ends: _Ends

    def components(self) -> FloatArray:
        """Break `step_time_s` down, shape (components, N); the second route to the total."""
        c = self._candidates
        rows = np.arange(len(c))
        counts = self._counts[rows, self.bottleneck]
        share = _recomputed_share(c, counts)
        out = zeros(len(c))
        for kind, layer in enumerate(self._layers):
            each = (layer.forward + layer.backward)[:, self._back] + layer.recompute[:, self._back] * share
            out += each * counts[:, kind]
        for place, (forward, backward) in self._ends.times.items():
            mine = (c.pp == 1) | (self.bottleneck == place_of_end(c, place))
            out += (forward + backward)[:, self._ends.back] * mine
        out *= c.num_microbatches
        out[INDEX["launch"]] += self.retry_s
        out[INDEX["bubble"]] += self.bubble_s
        out[INDEX["pp_comm"]] += self.pp_comm_s
        out[INDEX["dp_comm"]] += self.data.exposed_s
        out[INDEX["optimizer"]] += self.data.optimizer_s
        out[INDEX["offload"]] += self.activation_copies_s + self.data.offload_s
        return out


def step_time(
    c: Candidates,
    job: JobSpec,
    stages: StageTable,
    stage_row: npt.NDArray[np.intp],
    parameters: StageParameters,
    allocator_retries: FloatArray | float = 0.0,
) -> StepTime:
    """Seconds per optimizer step of each candidate.

    The slowest stage works through all microbatches; before and after it the others fill and drain the pipeline
    once, or less with other schedules than 1F1B (`gpuscale.steptime.schedules`).

    Args:
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: for each candidate the row of its pair in `stages`.
        parameters: parameters on one GPU of each stage.
        allocator_retries: how often in a microbatch the allocator starts anew (`Memory.allocator_retries`).
    """
    layers, back = _layer_times(c, job)
    ends = _ends(c, job)
    counts = stages.counts[stage_row]
    forward, backward = _stage_seconds(c, counts, layers, back, ends)
    bottleneck = (forward + backward).argmax(axis=0)
    rows = np.arange(len(c))
    forward_s, backward_s = forward[bottleneck, rows], backward[bottleneck, rows]
    slowest_s = forward_s + backward_s
    others_s = np.maximum(_whole_model_s(c, job, layers, back, ends) - slowest_s, 0.0)
    bubble_s = schedules.bubble_s(c, job, others_s, backward_s / slowest_s)
    pp_comm_s = _pipeline_transfers_s(c, job, slowest_s)
    data = data_parallel_time(c, job, parameters, forward_s, backward_s)
    copies_s = np.zeros(len(c))
    if job.offload.activations:
        each_s = exposed_activations_s(c, job, stages, stage_row, bottleneck, forward_s, backward_s)
        copies_s = each_s * c.num_microbatches
    retry_s = np.zeros(len(c)) + allocator_retries * job.runtime.allocator_retry_s * c.num_microbatches
    total_s = slowest_s * c.num_microbatches + bubble_s + pp_comm_s + copies_s + retry_s
    total_s = total_s + data.exposed_s + data.optimizer_s + data.offload_s
    return StepTime(total_s, bottleneck, bubble_s, pp_comm_s, copies_s, retry_s, data, c, counts, layers, back, ends)


def _layer_times(c: Candidates, job: JobSpec) -> tuple[tuple[LayerTime, ...], npt.NDArray[np.intp]]:
    """Price each kind of layer once for each distinct way to cut it."""
    beside = job.runtime.overlap_ep or bool(c.schedule.any())  # what runs beside one another depends on the pipeline
    more = ("pp", "vpp", "num_microbatches") if beside else ()
    rows, back = unique_rows(c, (*LAYER_KEY, "schedule", *dict.fromkeys((*stride_fields(job), *more))))
    return tuple(layer_time(kind, rows, job) for kind in job.model.trained_kinds), back


def _ends(c: Candidates, job: JobSpec) -> _Ends:
    rows, back = unique_rows(c, ("tp", "sp", "cp", "micro_batch_size", *stride_fields(job)))
    return _Ends({FIRST: _embedding(rows, job), LAST: _head(rows, job)}, back)


def _recomputed_share(c: Candidates, counts: npt.NDArray[np.int64]) -> FloatArray:
    """Share of a stage's layers under full recomputation."""
    return np.minimum(c.recompute_layers / np.maximum(counts.sum(axis=-1), 1), 1.0)


def _stage_seconds(
    c: Candidates,
    counts: npt.NDArray[np.int64],
    layers: tuple[LayerTime, ...],
    back: npt.NDArray[np.intp],
    ends: _Ends,
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward pass of one microbatch on each of the P priced stages, shape (P, N) [s]."""
    places = counts.shape[1]
    forward, backward = np.zeros((places, len(c))), np.zeros((places, len(c)))
    seconds = [
        (in_all_s(layer.forward)[back], in_all_s(layer.backward)[back], in_all_s(layer.recompute)[back])
        for layer in layers
    ]
    end_seconds = {place: tuple(in_all_s(part)[ends.back] for part in pair) for place, pair in ends.times.items()}
    for place in range(places):
        share = _recomputed_share(c, counts[:, place])
        for kind, (once, back_once, again) in enumerate(seconds):
            number = counts[:, place, kind]
            forward[place] += once * number
            backward[place] += (back_once + again * share) * number
        for end, (end_forward, end_backward) in end_seconds.items():
            mine = (c.pp == 1) | (place_of_end(c, end) == place)
            forward[place] += end_forward * mine
            backward[place] += end_backward * mine
    return forward, backward


def _whole_model_s(
    c: Candidates, job: JobSpec, layers: tuple[LayerTime, ...], back: npt.NDArray[np.intp], ends: _Ends
) -> FloatArray:
    """One microbatch through all stages [s]: what filling and draining the pipeline costs with the slowest stage."""
    share = np.minimum(c.recompute_layers * c.pp / len(job.model.trained_pattern), 1.0)
    total = np.zeros(len(c))
    for layer, number in zip(layers, job.model.trained_counts, strict=True):
        total += number * (in_all_s(layer.forward) + in_all_s(layer.backward))[back]
        total += number * in_all_s(layer.recompute)[back] * share
    ends_s = sum(in_all_s(forward) + in_all_s(backward) for forward, backward in ends.times.values())
    return np.asarray(total + np.asarray(ends_s)[ends.back], dtype=np.float64)


def _embedding(c: Candidates, job: JobSpec) -> tuple[FloatArray, FloatArray]:
    """Look-up of the input embedding: reads and writes one row per token; backward adds onto fp32 gradients.

    Under TP each rank looks up its part of the vocabulary and the ranks' rows are added up (Shoeybi et al. 2019).
    """
    rows = tokens(c, job) / c.sequence_split * job.model.hidden
    gpu = job.cluster.gpu
    gather, scatter, reduce = _hidden_collectives_s(c, job)
    return (
        breakdown(len(c), elementwise=stream_time_s(gpu, rows * 2 * ACT_BYTES, 2), tp_comm=scatter + reduce),
        breakdown(len(c), elementwise=stream_time_s(gpu, rows * (ACT_BYTES + 8), 2), tp_comm=gather),
    )


def _hidden_collectives_s(c: Candidates, job: JobSpec) -> tuple[FloatArray, FloatArray, FloatArray]:
    """AllGather and ReduceScatter (with SP), AllReduce (without) of one microbatch's hidden state over TP [s]."""
    size, with_sp = tokens(c, job) * job.model.hidden * ACT_BYTES, c.sp == 1
    operations = (("allgather", with_sp), ("reducescatter", with_sp), ("allreduce", ~with_sp))
    step = strides(c, job).tp
    gather, scatter, reduce = (
        collective_time_s(job.cluster, name, size * used, c.tp, step) for name, used in operations
    )
    return gather, scatter, reduce


def _head(c: Candidates, job: JobSpec) -> tuple[FloatArray, FloatArray]:
    """LM head (16-bit GEMM, vocabulary cut over TP), cross entropy, and the synchronisation of each microbatch."""
    gpu, precision = job.cluster.gpu, job.attention_precision
    rows = tokens(c, job)
    vocabulary = padded_vocabulary(job.model, job.vocab_multiple, c.tp) / c.tp
    hidden = job.model.hidden
    forward = gemm_time_s(gpu, precision, rows, vocabulary, hidden)
    backward = gemm_time_s(gpu, precision, rows, hidden, vocabulary)
    backward = backward + gemm_time_s(gpu, precision, hidden, vocabulary, rows, 1, 8)
    gather, scatter, reduce = _hidden_collectives_s(c, job)
    sums = LOSS_SUMS * collective_time_s(job.cluster, "allreduce", rows * 4, c.tp, strides(c, job).tp)
    logits = rows * vocabulary
    loss_forward, loss_backward = LOSS_BYTES["eager" if "loss" in job.runtime.eager else job.runtime.loss]
    count, waiting = len(c), np.full(len(c), job.runtime.host_microbatch_s)
    loss_s, loss_back_s = stream_time_s(gpu, logits * loss_forward, 4), stream_time_s(gpu, logits * loss_backward, 2)
    heads = 1 + job.model.mtp_depth  # one set of logits per multi-token-prediction module
    return (
        breakdown(
            count, gemm=heads * forward, elementwise=heads * loss_s, launch=waiting, tp_comm=heads * (gather + sums)
        ),
        breakdown(count, gemm=heads * backward, elementwise=heads * loss_back_s, tp_comm=heads * (scatter + reduce)),
    )


def _pipeline_transfers_s(c: Candidates, job: JobSpec, microbatch_s: FloatArray) -> FloatArray:
    """Exposed activation and gradient transfers between stages [s].

    Without interleaving every microbatch waits for one transfer in each direction. With it Megatron-LM runs the
    transfers under the computation of the next chunk: what shows is the latency of each, whatever outlasts a chunk,
    and filling and draining. Where TP ranks hold copies of what is sent, each may send its part only, which is gathered
    on the other side (Narayanan et al. 2021, section 4.1, scatter/gather).

    Args:
        microbatch_s: forward and backward of one microbatch on the slowest stage.
    """
    rows, back = unique_rows(c, ("tp", "sp", "cp", "dp", "pp", "micro_batch_size"))
    whole = tokens(rows, job) * job.model.hidden * ACT_BYTES
    scattered = np.where((rows.sp == 0) & job.runtime.scatter_pipeline, rows.tp, 1)
    apart = strides(rows, job)
    pair, distance = np.minimum(rows.pp, 2), apart.pp
    size = whole / rows.sequence_split / scattered
    hop = collective_time_s(job.cluster, "sendrecv", size, pair, distance)
    gathering = np.where(rows.pp > 1, scattered, 1)
    hop = (hop + collective_time_s(job.cluster, "allgather", whole, gathering, apart.tp))[back]
    latency = collective_time_s(job.cluster, "sendrecv", np.ones(len(rows)), pair, distance)[back]
    chunk_s = microbatch_s / c.vpp / 2
    hidden = latency + np.maximum(hop - latency - chunk_s, 0.0)
    steady = 2 * c.num_microbatches * np.where(c.vpp == 1, hop, hidden * c.vpp)
    return np.where(c.pp > 1, steady + 2 * (c.pp - 1) * hop, 0.0)


__all__ = ["StepTime", "step_time"]
