"""Time of one microbatch in one layer, in the embedding and in the LM head: forward, backward, and recomputation.

A layer is a list of segments (norms, attention projections, attention core, MLP, experts, ...), so that selective
recomputation can repeat just its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpuscale.architecture.parameters import joint_linears
from gpuscale.arrays import FloatArray, IndexArray, IntArray, norm
from gpuscale.layouts.arrays import LAYERNORM, MLP, MOE, Candidates, summed
from gpuscale.layouts.ranks import strides
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import BesideSpec, LayerSpec, MoeSpec
from gpuscale.steptime.blocks import (
    attention_segments,
    beside_another_microbatch,
    beside_segments,
    indexer_segments,
    mlp_segments,
    moe_segments,
    shared_expert_segments,
    state_space_segments,
)
from gpuscale.steptime.components import (
    COMMUNICATION,
    WAYS,
    Breakdown,
    Segment,
    Sent,
    added,
    collective,
    contention,
    exposed_beside,
    scaled,
    sent_s,
    total_s,
)
from gpuscale.steptime.kernels import gemm_time_s
from gpuscale.steptime.tensor_parallel import (
    TensorParallelTime,
    beside_products,
    gemm_breakdown,
    linear_times,
    stream,
    tensor_parallel_time,
    wgrad_output_bytes,
)

EAGER_NORM_PASSES = 4
"""Passes of an unfused norm over its input: cast up, square and mean, scale, cast down; a fused one takes one."""

STREAM_SWITCH_S = 8e-6
"""Gap around a collective, whose stream waits for the computation before it and is waited for (fitted to whole runs,
docs/model.md)."""

JITTER_NORM = 6
"""How the times of CPU and GPU combine under TP, as (cpu^p + gpu^p)^(1/p): each collective waits for the slowest rank
(fitted to whole runs, docs/model.md)."""

DENSE_KERNELS = 20
"""Kernels of the forward pass of a dense layer, the unit of `RuntimeSpec.host_layer_s`."""

NOT_RECOMPUTE = (*COMMUNICATION, "launch")
"""Components of a repeated forward pass that count as what they are, rather than as recomputation."""

MASK_BYTES = 1
"""Mask of the dropout of a block's output, per element: written by the residual add; the backward pass reads it and the
gradient and writes the gradient of the block (Megatron-LM, fused bias-dropout-add)."""

LOSS_BYTES = {"standard": (38, 14), "compiled": (14, 10), "fused": (4, 4), "eager": (38, 22), "again": (54, 58)}
"""Memory traffic of the cross entropy per logit, forward and backward (docs/model.md, "Bytes that kernels move"):
Megatron-LM core/tensor_parallel/cross_entropy.py, the same compiled, one kernel each way, eager, and prime-rl
trainer/models/layers/lm_head.py."""

LOSS_SUMS = 3
"""AllReduces of one fp32 number per token in the loss of a vocabulary cut over TP: largest logit, logit of the label,
sum of exponentials (Megatron-LM, vocab_parallel_cross_entropy; nanotron, sharded_cross_entropy)."""

SHARED_KEY = ("tp", "sp", "cp", "micro_batch_size")
"""Fields of a candidate on which all of a layer but its routed experts depends, in the usual order of the axes."""


class LayerTime(NamedTuple):
    """Breakdowns of one layer and one microbatch, each component of shape (N,), and their sums."""

    forward: Breakdown
    backward: Breakdown  #: backward pass, with the forward pass of selectively recomputed modules.
    recompute: Breakdown  #: what full recomputation adds: the forward pass once more.
    forward_s: FloatArray  #: sum of the forward pass [s].
    backward_s: FloatArray
    recompute_s: FloatArray
    #: what of each of the three the GPU waits for the CPU, beyond the gaps between kernels [s].
    waiting_s: tuple[FloatArray, FloatArray, FloatArray]

    def with_forwards(self, more: int) -> LayerTime:
        """Return it with more forward passes, whose gradients nobody needs."""
        if not more:
            return self
        ahead_s, back_s, again_s = self.waiting_s
        return self._replace(
            forward=scaled(self.forward, 1 + more),
            forward_s=self.forward_s * (1 + more),
            waiting_s=(ahead_s * (1 + more), back_s, again_s),
        )

    @property
    def weight_waiting_s(self) -> FloatArray:
        """What of it falls to weight gradients [s]: their products are half of those of the backward pass."""
        return self.waiting_s[1] / 2


def layer_times(
    c: Candidates, job: JobSpec, rows: Candidates, index: IndexArray, tp: TensorParallelTime
) -> tuple[LayerTime, ...]:
    """Time one layer of each kind of the model for each candidate; arguments as those of `layer_segments`."""
    times = (_layer_time(segments, c, job) for segments in layer_segments(c, job, rows, index, tp))
    return tuple(one.with_forwards(job.method.forwards) for one in times)


def layer_segments(
    c: Candidates, job: JobSpec, rows: Candidates, index: IndexArray, tp: TensorParallelTime
) -> tuple[list[Segment], ...]:
    """Time the segments of one layer of each kind of the model for each candidate.

    Args:
        rows, index: the distinct combinations of `SHARED_KEY` among the candidates, and which each of them has.
        tp: `tensor_parallel_time` of `rows`.
    """
    of_kind = _segments_by_kind(c, job, rows, index, tp)
    sixteen = replace(job, precision=job.attention_precision)
    wide_of_kind = _segments_by_kind(c, sixteen, rows, index, tp._replace(gather=tp.wide_gather))
    return tuple(
        (wide_of_kind if job.precision in kind.wide_under else of_kind)(kind) for kind in job.model.trained_kinds
    )


def _segments_by_kind(
    c: Candidates, job: JobSpec, rows: Candidates, index: IndexArray, tp: TensorParallelTime
) -> Callable[[LayerSpec], list[Segment]]:
    attention, state_space, mlp, shared_experts = (
        partial(one, tp=tp) for one in (attention_segments, state_space_segments, mlp_segments, shared_expert_segments)
    )

    @cache  # kinds of layers share most of what they are made of
    def shared(segments_of: Callable[..., Sequence[Segment]], *spec: Any) -> list[Segment]:
        return [segment.take(index) for segment in segments_of(*spec, rows, job)]

    @cache
    def routed(spec: MoeSpec) -> list[Segment]:
        return moe_segments(spec, c, job)

    def segments(kind: LayerSpec) -> list[Segment]:
        out = shared(_norms, kind.norms, kind.blocks).copy()
        if kind.joins_embedding:
            out += shared(_joint_projection)
        if kind.attention is not None:
            out += [*shared(attention, kind.attention), *shared(indexer_segments, kind.attention)]
        if kind.state_space is not None:
            out += shared(state_space, kind.state_space)
        if kind.mlp is not None:
            dense = shared(mlp, kind.mlp)
            out += [without_tp(segment) for segment in dense] if kind.parallel_blocks else dense
        if kind.moe is not None:
            out += [*routed(kind.moe), *shared(shared_experts, kind.moe)]
        return out + shared(beside_segments, kind.beside)

    return segments


def without_tp(segment: Segment) -> Segment:
    """A block beside another one, with which it shares what TP gathers and reduces (GPT-NeoX `gpt_j_residual`; PaLM,
    Chowdhery et al. 2022, section 2)."""
    forward, backward = (
        {name: value for name, value in one.items() if name != "tp_comm"} for one in (segment.forward, segment.backward)
    )
    return segment._replace(forward=forward, backward=backward, collectives=0.0, sent=())


def _layer_time(segments: Sequence[Segment], c: Candidates, job: JobSpec) -> LayerTime:
    backwards: list[Breakdown] = []
    again: list[Breakdown] = []
    repeated: list[Segment] = []
    for segment in segments:
        backward, once_more = segment.backward, repeated_forward(segment)
        again.append(once_more)
        if segment.modules and (c.recompute_modules & segment.modules).any():
            chosen = (c.recompute_modules & segment.modules > 0) * 1.0
            backward = added(backward, scaled(once_more, chosen))
            repeated.append(
                segment._replace(
                    kernels=chosen * segment.kernels,
                    collectives=chosen * segment.collectives,
                    issue_s=chosen * segment.issue_s,
                )
            )
        backwards.append(backward)
    again.append(_not_again(segments, job))
    both = _with_hidden_exchange(segments, [segment.forward for segment in segments], backwards, c, job)
    passes, waiting_s = _with_launches(segments, repeated, (*both, added(*again)), c, job)
    forward_s, backward_s, again_s = (total_s(one) for one in passes)
    return LayerTime(*passes, forward_s, backward_s, again_s, waiting_s)


def repeated_forward(segment: Segment) -> Breakdown:
    """Break down a repeated forward pass: the arithmetic counts as `recompute`, the rest as what it was."""
    kept = {name: value for name, value in segment.forward.items() if name in NOT_RECOMPUTE}
    return {**kept, "recompute": total_s(segment.forward) - total_s(kept)}


def stops_before(segments: Sequence[Segment], job: JobSpec) -> Segment | None:
    """Return the segment whose tail a repeated forward pass leaves out, if it stops early."""
    ends = [segment for segment in segments if segment.tail]
    stops = {"yes": True, "compiled": bool(job.runtime.compile), "no": False}[job.runtime.recompute_stops_early]
    if not (ends and stops):
        return None
    return next((segment for segment in ends if segment.modules == MOE), ends[-1])  # shared experts come before


def _not_again(segments: Sequence[Segment], job: JobSpec) -> Breakdown:
    """What a repeated forward pass leaves out where it stops early, negative: the last product of the layer, whose
    result no gradient needs, and what follows it (torch.utils.checkpoint, `early_stop`)."""
    last = stops_before(segments, job)
    tail = (last and last.tail) or {}
    kept = {name: -value for name, value in tail.items() if name in NOT_RECOMPUTE}
    return {**kept, "recompute": -total_s(tail) - total_s(kept)} if tail else {}


def _with_hidden_exchange(
    segments: Sequence[Segment],
    forwards: Sequence[Breakdown],
    backwards: Sequence[Breakdown],
    c: Candidates,
    job: JobSpec,
) -> tuple[Breakdown, Breakdown]:
    """Add the passes of all segments up, and hide the exchange of one microbatch beside the computation of another,
    each part of it in its place (docs/model.md; Megatron-LM, `TransformerLayerSchedulePlan.run`; DeepSeek-V3, arXiv
    2412.19437, figure 4)."""
    forward, backward = added(*forwards), added(*backwards)
    beside = beside_another_microbatch(c, job)
    if "ep_comm" not in forward or not beside.any():
        return forward, backward
    there_s, back_s = forward["ep_comm"], backward["ep_comm"]
    exchange_s = there_s + back_s
    (attention_s, experts_s), (attention_back_s, experts_back_s) = (
        _beside_exchange_s(segments, parts) for parts in (forwards, backwards)
    )
    exposed_s = exposed_beside(back_s / 2, attention_s) + exposed_beside(there_s / 2, attention_back_s)
    exposed_s = exposed_s + exposed_beside(exchange_s / 2, experts_s + experts_back_s)
    contended_s = contention(exchange_s - exposed_s, job.cluster.gpu.sm_count)
    exposed_s = exposed_beside(exposed_s, forward["launch"] + backward["launch"]) + contended_s
    shown = beside & (exchange_s > 0)
    others = 1.0 - 1.0 / np.maximum(c.num_microbatches, 1)  # the last microbatch has no other beside it
    hidden = np.where(shown, 1.0 - exposed_s / np.where(shown, exchange_s, 1.0), 0.0) * others
    return forward | {"ep_comm": there_s * (1.0 - hidden)}, backward | {"ep_comm": back_s * (1.0 - hidden)}


HIDES_NOTHING = frozenset({"ep_comm", "tp_comm", "launch"})
"""What an exchange of experts is not hidden by: itself, transfers over the same links, and the CPU's delay, which
counts apart."""


def _beside_exchange_s(segments: Sequence[Segment], parts: Sequence[Breakdown]) -> tuple[FloatArray, FloatArray]:
    both_s: tuple[list[FloatArray], list[FloatArray]] = [np.zeros(())], [np.zeros(())]
    for segment, part in zip(segments, parts, strict=True):
        hides = {name: value for name, value in part.items() if name not in HIDES_NOTHING}
        both_s[segment.modules & MOE > 0].append(total_s(hides))
    return summed(*both_s[0]), summed(*both_s[1])


class Launches(NamedTuple):
    """What the CPU launches for some segments of a layer in one pass, and how long that takes it, each (N,) [s]."""

    kernels: FloatArray
    collectives: FloatArray
    issue_s: FloatArray


def _launches(segments: Sequence[Segment], c: Candidates, job: JobSpec) -> Launches:
    """Partial CUDA graphs replay all but feed-forward blocks and experts, full ones all."""
    runtime = job.runtime
    kernels, collectives = (
        np.asarray(sum(getattr(segment, name) for segment in segments), dtype=np.float64)
        for name in ("kernels", "collectives")
    )
    if runtime.cuda_graphs == "full":
        return Launches(kernels, collectives, np.zeros(()))
    graphs = runtime.cuda_graphs == "partial"
    eager = [segment for segment in segments if not graphs or segment.modules & (MLP | MOE)]
    issued = np.asarray(sum(segment.kernels for segment in eager), dtype=np.float64)
    each_s = runtime.host_collective_s + c.tp * job.cluster.rank_overhead_s
    layer_s = runtime.host_layer_s * issued / DENSE_KERNELS
    layer_s = np.maximum(layer_s, sum(segment.issue_s for segment in segments))  # more launches than kernels that count
    return Launches(kernels, collectives, layer_s + collectives * each_s)


def _with_launches(
    segments: Sequence[Segment],
    repeated: Sequence[Segment],
    passes: tuple[Breakdown, Breakdown, Breakdown],
    c: Candidates,
    job: JobSpec,
) -> tuple[tuple[Breakdown, Breakdown, Breakdown], tuple[FloatArray, FloatArray, FloatArray]]:
    """Add the gaps between kernels, or the time that the GPU waits for the CPU if that is longer over both passes
    together.

    Args:
        repeated: segments whose forward pass is done again as modules in the backward pass.
        passes: forward pass, backward pass and recomputation of the whole layer; they come back with `launch`, and what
            of that is waiting beyond the gaps [s].
    """
    runtime, gap = job.runtime, job.cluster.gpu.kernels.launch_s
    once, more = _launches(segments, c, job), _launches(repeated, c, job)
    switches = once.collectives, once.collectives + more.collectives, once.collectives
    kernels = once.kernels, 2 * once.kernels + more.kernels, once.kernels
    forward, backward, again = (
        added(each, {"launch": number * STREAM_SWITCH_S + count * gap})
        for each, number, count in zip(passes, switches, kernels, strict=True)
    )
    forward_s, backward_s, again_s = (total_s(each) for each in (forward, backward, again))
    both_s, issue_s = forward_s + backward_s, 2 * once.issue_s + more.issue_s
    behind = waiting_for_cpu_s(issue_s, both_s, c.tp)
    in_forward = behind * kernels[0] / (kernels[0] + kernels[1])
    again_issue_s = once.issue_s + runtime.host_checkpoint_s * (runtime.cuda_graphs != "full")
    all_behind = waiting_for_cpu_s(issue_s + again_issue_s, both_s + again_s, c.tp)
    waiting_s = in_forward, behind - in_forward, np.maximum(all_behind - behind, 0.0)
    forward, backward, again = (
        added(each, {"launch": waits_s}) for each, waits_s in zip((forward, backward, again), waiting_s, strict=True)
    )
    return (forward, backward, again), waiting_s


def waiting_for_cpu_s(issue_s: FloatArray, gpu_s: FloatArray, tp: IntArray) -> FloatArray:
    """Time that the GPU waits: for its own CPU if that takes longer, and under TP for the CPUs of the other ranks."""
    return np.where(tp > 1, norm(issue_s, gpu_s, JITTER_NORM), np.maximum(issue_s, gpu_s)) - gpu_s


def _norms(norms: int, blocks: int, c: Candidates, job: JobSpec) -> list[Segment]:
    """Norms (read, write; backward read x and dy, write dx) and residual adds with dropout, onto whose gradient that of
    a norm's input is added by the same kernel only where a compiler sees both."""
    passes = EAGER_NORM_PASSES if "norm" in job.runtime.unfused else 1
    rows = tokens(c, job) / c.sequence_split * job.model.hidden * job.activation_bytes
    kernels = norms * passes + blocks
    dropped, mask = blocks * job.runtime.dropout, MASK_BYTES / job.activation_bytes
    apart = 0 if job.runtime.compile else 2 * blocks
    forward = stream(job, rows * (2 * norms * passes + 3 * blocks + mask * dropped), kernels)
    backward = stream(job, rows * (4 * norms * passes + apart + (2 + mask) * dropped), kernels)
    return [Segment({"elementwise": forward}, {"elementwise": backward}, kernels, modules=LAYERNORM, name="norms")]


def _joint_projection(c: Candidates, job: JobSpec) -> list[Segment]:
    """The 2h x h projection at the entry of a multi-token-prediction module; its output is gathered over TP."""
    times = {linear.name: linear_times(linear, c, job) for linear in joint_linears(job.model.hidden)}
    size = tokens(c, job) * job.model.hidden * job.activation_bytes
    gather = collective(job, "allgather", size, c.tp, strides(c, job).tp)
    forward, backward = (gemm_breakdown([*times.values()], way, tp_comm=gather.time_s) for way in WAYS)
    own = Segment(forward, backward, 2, 1.0 * (c.tp > 1), name="joint projection", products=tuple(times.items()))
    return [own._replace(sent=(Sent("tp", "token prediction", (gather,), 1.0, 1.0),))]


def embedding_sent(tp: TensorParallelTime) -> tuple[Sent, ...]:
    """Return what TP ranks send around the embedding: its rows summed, their gradient gathered."""
    summed_up = (Sent("tp", "embedding", (one,), 1.0) for one in (tp.scatter, tp.reduce))
    return *summed_up, Sent("tp", "embedding", (tp.wide_gather,), backward=1.0)


def lm_head_sent(c: Candidates, job: JobSpec, tp: TensorParallelTime) -> tuple[Sent, ...]:
    """Return what TP ranks send around one LM head: its input gathered, and again for the weights' gradient, the
    input's gradient summed, and the sums of the loss."""
    sums = collective(job, "allreduce", tokens(c, job) * 4, c.tp, strides(c, job).tp)
    summed_up = (Sent("tp", "LM head", (one,), backward=1.0) for one in (tp.scatter, tp.reduce))
    return (
        *summed_up,
        Sent("tp", "loss", (sums,), float(LOSS_SUMS)),
        Sent("tp", "LM head", (tp.wide_gather,), 1.0, 1.0),
    )


def embedding(c: Candidates, job: JobSpec, tp: TensorParallelTime) -> tuple[Breakdown, Breakdown]:
    """Look-up of the input embedding: reads and writes one row per token; backward adds onto fp32 gradients.

    Under TP the rows of the ranks' parts of the vocabulary are added up (Shoeybi et al. 2019).
    """
    sent = embedding_sent(tp)
    rows = tokens(c, job) / c.sequence_split * job.model.hidden
    moved = job.activation_bytes
    forward_s, backward_s = stream(job, rows * 2 * moved, 2), stream(job, rows * (moved + 8), 2)
    backward_s = backward_s * job.trains("embeddings")
    forward, backward = (sent_s(sent, way) for way in WAYS)
    return (
        added({"elementwise": forward_s, "tp_comm": forward}, *_beside(job.model.at_embedding, "forward", c, job)),
        added({"elementwise": backward_s, "tp_comm": backward}, *_beside(job.model.at_embedding, "backward", c, job)),
    )


def _beside(beside: tuple[BesideSpec, ...], way: str, c: Candidates, job: JobSpec) -> list[Breakdown]:
    return [getattr(segment, way) for segment in beside_segments(beside, c, job)]


def lm_head(c: Candidates, job: JobSpec, tp: TensorParallelTime) -> tuple[Breakdown, Breakdown]:
    """LM head (16-bit GEMM, vocabulary cut over TP), cross entropy, and the synchronisation of each microbatch."""
    gpu, precision = job.cluster.gpu, job.attention_precision
    rows = tokens(c, job)
    vocabulary = job.vocabulary_rows(c.tp)
    hidden = job.model.hidden
    forward = gemm_time_s(gpu, precision, rows, vocabulary, hidden)
    dgrad = gemm_time_s(gpu, precision, rows, hidden, vocabulary)
    again = job.runtime.loss_kernels == "again"
    wgrad = gemm_time_s(gpu, precision, hidden, vocabulary, rows, 1, wgrad_output_bytes(job))
    wgrad = wgrad * (again or job.trains("head"))
    sent = sent_s(lm_head_sent(c, job, tp), "forward")
    sent_back = beside_products(c, job, tp.wide_gather, tp, dgrad, wgrad)
    logits = rows * vocabulary
    loss_forward, loss_backward = job.method.loss_bytes or LOSS_BYTES[job.runtime.loss_kernels]
    waiting = job.runtime.host_microbatch_s + rows * job.runtime.host_token_s
    loss_s, loss_back_s = stream(job, logits * loss_forward, 4), stream(job, logits * loss_backward, 2)
    heads = 1 + job.model.mtp_depth  # one set of logits per multi-token-prediction module
    there = scaled({"gemm": forward, "elementwise": loss_s, "tp_comm": sent}, heads) | {"launch": waiting}
    back = scaled({"gemm": dgrad + wgrad + forward * again, "elementwise": loss_back_s, "tp_comm": sent_back}, heads)
    beside = job.model.at_head
    return added(there, *_beside(beside, "forward", c, job)), added(back, *_beside(beside, "backward", c, job))


def teacher_forward(c: Candidates, job: JobSpec) -> Breakdown:
    """Forward pass of one microbatch through the whole teacher; nothing without one."""
    own = job.teaching
    if own is None:
        return {}
    tp = tensor_parallel_time(c, own)
    layers = zip(layer_times(c, own, c, np.arange(len(c)), tp), own.model.trained_counts, strict=True)
    parts = (scaled(layer.forward, count) for layer, count in layers)
    return added(embedding(c, own, tp)[0], *parts, lm_head(c, own, tp)[0])
