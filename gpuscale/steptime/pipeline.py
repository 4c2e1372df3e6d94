"""Seconds of one microbatch: forward and backward pass on each pipeline stage, and a pipeline that fills and drains."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpuscale.architecture.parameters import dense_linears, expert_linears
from gpuscale.arrays import FloatArray
from gpuscale.collectives import collective_time_s
from gpuscale.layouts.arrays import (
    DUALPIPE,
    GPIPE,
    ONE_F_ONE_B,
    ZB_2P,
    ZB_H1,
    ZB_V,
    Candidates,
    Cases,
    summed,
    unique_rows,
)
from gpuscale.layouts.ranks import stride_fields, strides
from gpuscale.layouts.stages import FIRST, LAST, StageTable, at_place, largest_place, place_of_end, places
from gpuscale.memory.activations import LAYER_KEY, routed_tokens, tokens
from gpuscale.memory.states import padded_vocabulary
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime.components import Breakdown, in_all_s, scaled, taken
from gpuscale.steptime.kernels import gemm_time_s, stream_time_s
from gpuscale.steptime.layer import SHARED_KEY, LayerTime, layer_times
from gpuscale.steptime.tensor_parallel import ACT_BYTES, TensorParallelTime, linear_times, tensor_parallel_time

LOSS_BYTES = {"standard": (14, 10), "fused": (4, 4), "eager": (38, 22)}
"""Memory traffic of the cross entropy per logit, forward and backward. standard (Megatron-LM, in place): cast reads 2
and writes 4, maximum reads 4, exponential reads and writes 4; backward reads and writes 4 and casts to 2. fused: one
kernel each way on 16-bit logits. eager (every step its own tensor): cast 6, maximum 4, subtraction 8, exponential 8,
sum 4, division 8; backward 8, 8 and 6."""


LOSS_SUMS = 3
"""AllReduces over TP, of one fp32 number per token, in the loss of a vocabulary cut over TP: largest logit, logit of
the label, sum of exponentials (Megatron-LM, vocab_parallel_cross_entropy; nanotron, sharded_cross_entropy)."""


@dataclass(frozen=True)
class Passes:
    """One microbatch through the layers and both ends of the model, priced once for each distinct way to cut them.

    Attributes:
        cut: the way in which each candidate cuts its layers.
        layers: by kind, one layer and one microbatch, for each way.
        whole_s: by kind, forward and backward pass of all its layers, and their recomputation.
        ends: place -> forward and backward pass of embedding (first stage) and LM head with loss (last stage).
        ends_s: place -> their sums.
    """

    cut: Cases
    layers: tuple[LayerTime, ...]
    whole_s: tuple[tuple[FloatArray, FloatArray], ...]
    ends: dict[int, tuple[Breakdown, Breakdown]]
    ends_s: dict[int, tuple[FloatArray, FloatArray]]


def cut_key(c: Candidates, job: JobSpec) -> tuple[str, ...]:
    """Fields on which time and memory of one layer and one microbatch depend."""
    beside = job.runtime.overlap_ep or bool(c.schedule.any())  # what runs beside one another depends on the pipeline
    more = ("pp", "vpp", "num_microbatches") if beside else ()
    return (*LAYER_KEY, "schedule", *dict.fromkeys((*stride_fields(job), *more)))


def price_passes(cuts: Candidates, cut: Cases, job: JobSpec) -> Passes:
    """Price one microbatch for candidates that cut the model in one of the ways `cuts`, of `cut_key`."""
    rows, row = unique_rows(cuts, (*SHARED_KEY, *stride_fields(job)))
    tp = tensor_parallel_time(rows, job)
    layers = layer_times(cuts, job, rows, row, tp)
    passes = {FIRST: _embedding(rows, job, tp), LAST: _head(rows, job, tp)}
    ends = {place: (taken(forward, row), taken(backward, row)) for place, (forward, backward) in passes.items()}
    return Passes(
        cut=cut,
        layers=layers,
        whole_s=tuple(
            (number * (layer.forward_s + layer.backward_s), number * layer.recompute_s)
            for layer, number in zip(layers, job.model.trained_counts, strict=True)
        ),
        ends=ends,
        ends_s={place: (in_all_s(forward), in_all_s(backward)) for place, (forward, backward) in ends.items()},
    )


@dataclass(frozen=True)
class PipelineTime:
    """The microbatches of a step in a pipeline whose stages do nothing else, each (N,).

    Attributes:
        bottleneck: which of the priced stages is the slowest.
        forward_s, backward_s: one microbatch on that stage.
        bubble_s: its idle time per step.
        counts: layers by kind on each of the P priced stages, (P, N) each.
    """

    bottleneck: npt.NDArray[np.intp]
    forward_s: FloatArray
    backward_s: FloatArray
    bubble_s: FloatArray
    counts: tuple[FloatArray, ...]

    @cached_property
    def slowest_s(self) -> FloatArray:
        """One microbatch on the slowest stage, forward and backward."""
        return self.forward_s + self.backward_s

    def step_s(self, c: Candidates) -> FloatArray:
        """All microbatches of a step, and the bubble."""
        microbatches = c.num_microbatches.astype(np.float64)  # mixed types take NumPy longer
        return summed(self.slowest_s * microbatches, self.bubble_s)


def pipeline_time(
    c: Candidates, job: JobSpec, stages: StageTable, stage_row: npt.NDArray[np.intp], passes: Passes
) -> PipelineTime:
    """Time the pipeline of each candidate.

    The slowest stage works through all microbatches; before and after it the others fill and drain the pipeline
    once, or less with other schedules than 1F1B (`idle_s`).
    """
    counts = stages.layers(stage_row)
    forward, backward = _stage_seconds(c, counts, passes)
    bottleneck = largest_place(forward + backward)
    forward_s, backward_s = at_place(forward, bottleneck), at_place(backward, bottleneck)
    bubble_s: FloatArray = np.zeros(())
    if (c.pp > 1).any():
        slowest_s = forward_s + backward_s
        others_s = np.maximum(_whole_model_s(c, job, passes) - slowest_s, 0.0)
        bubble_s = idle_s(c, job, others_s, backward_s / slowest_s)
    return PipelineTime(bottleneck, forward_s, backward_s, bubble_s, counts)


def recomputed_share(c: Candidates, counts: Sequence[FloatArray]) -> FloatArray:
    """Share of a stage's layers under full recomputation, given its layers of each kind."""
    whole = c.recompute_layers.astype(np.float64)
    return np.minimum(whole / np.maximum(functools.reduce(np.add, counts), 1), 1.0)


def _stage_seconds(c: Candidates, counts: Sequence[FloatArray], passes: Passes) -> tuple[FloatArray, FloatArray]:
    """Forward and backward pass of one microbatch on each of the P priced stages, shape (P, N) [s]."""
    again = c.recompute_layers.any()
    share = recomputed_share(c, counts) if again else np.zeros(())
    forward: list[FloatArray] = []
    backward: list[FloatArray] = []
    for layer, number in zip(passes.layers, counts, strict=True):
        back_s = passes.cut.of(layer.backward_s)
        if again:
            recompute_s = passes.cut.of(layer.recompute_s) * share
            back_s = np.add(back_s, recompute_s, out=recompute_s)
        forward.append(passes.cut.of(layer.forward_s) * number)
        backward.append(back_s * number)
    place = places(counts[0])
    for end, (end_forward_s, end_backward_s) in passes.ends_s.items():
        mine = (c.pp == 1) | (place_of_end(c, end) == place)
        forward.append(passes.cut.of(end_forward_s) * mine)
        backward.append(passes.cut.of(end_backward_s) * mine)
    return summed(*forward), summed(*backward)


def _whole_model_s(c: Candidates, job: JobSpec, passes: Passes) -> FloatArray:
    """One microbatch through all stages [s]: what filling and draining the pipeline costs with the slowest stage."""
    parts: list[FloatArray] = []
    share = np.minimum(c.recompute_layers * c.pp / len(job.model.trained_pattern), 1.0)
    for passes_s, again_s in passes.whole_s:
        parts.append(passes.cut.of(passes_s))
        if share.any():
            parts.append(passes.cut.of(again_s) * share)
    both_s = (forward_s + backward_s for forward_s, backward_s in passes.ends_s.values())
    return summed(*parts, passes.cut.of(summed(*both_s)))


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


def idle_s(c: Candidates, job: JobSpec, others_s: FloatArray, backward_share: FloatArray) -> FloatArray:
    """Idle time of the slowest stage per step, shape (N,) [s].

    Args:
        others_s: forward and backward pass of one microbatch on all other stages together.
        backward_share: backward pass, with both gradients, over forward and backward pass together.
    """
    plain = np.where(c.pp > 1, others_s / c.vpp.astype(np.float64), 0.0)
    if not c.schedule.any():
        return plain
    weights_s = weight_gradients_s(c, job) * (c.pp - 1) / c.pp
    pairs = np.maximum(c.pp / 2 - 1, 0.0) / np.maximum(c.pp - 1, 1)
    by_code = {
        ONE_F_ONE_B: plain,
        GPIPE: others_s,
        ZB_H1: others_s - 2 * weights_s,
        ZB_2P: others_s - 3 * weights_s,
        ZB_V: others_s - 3 * weights_s,
        DUALPIPE: pairs * (others_s * (1 + backward_share) - 3 * weights_s),
    }
    idle = np.choose(c.schedule, [by_code[code] for code in range(len(by_code))])
    return np.where(c.pp > 1, np.maximum(idle, 0.0), 0.0)


def weight_gradients_s(c: Candidates, job: JobSpec) -> FloatArray:
    """Weight gradients of one microbatch of the whole model, LM head included, shape (N,) [s]."""
    rows, back = unique_rows(c, LAYER_KEY)
    model = job.model
    total = np.zeros(len(rows))
    for kind, count in zip(model.trained_kinds, model.trained_counts, strict=True):
        total = total + count * _layer_weight_gradients_s(kind, rows, job)
    vocabulary = padded_vocabulary(model, job.vocab_multiple, rows.tp) / rows.tp
    head = gemm_time_s(job.cluster.gpu, job.attention_precision, model.hidden, vocabulary, tokens(rows, job), 1, 8)
    return np.asarray((total + (1 + model.mtp_depth) * head)[back], dtype=np.float64)


def _layer_weight_gradients_s(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    hidden = job.model.hidden
    rows = tokens(c, job)
    total = np.zeros(len(c))
    for linear in dense_linears(hidden, kind):
        local = rows / c.sequence_split if linear.split == "replicated" else rows
        total = total + linear_times(linear, local, c, job).wgrad
    if kind.moe is not None:
        experts = kind.moe.experts // c.ep
        per_expert = routed_tokens(kind.moe, c, job) / experts
        for linear in expert_linears(hidden, kind.moe):
            total = total + linear_times(linear, per_expert, c, job, experts).wgrad
    return np.asarray(total, dtype=np.float64)
