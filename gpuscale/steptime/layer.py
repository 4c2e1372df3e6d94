"""Time of one layer for one microbatch on one GPU: forward, backward and what recomputation repeats.

A layer is a list of parts (norms, attention projections, attention core, MLP, experts, ...). Each part has the
breakdown of its forward and of its backward pass, so that selective recomputation can repeat just its own parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.layouts.arrays import DUALPIPE, LAYERNORM, Candidates
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec, MoeSpec
from gpuscale.steptime.attention import attention_parts, indexer_parts
from gpuscale.steptime.components import COMMUNICATION, Breakdown, added, contention, exposed_beside, in_all_s
from gpuscale.steptime.feedforward import mlp_parts, moe_parts, shared_expert_parts
from gpuscale.steptime.state_space import joint_parts, state_space_parts
from gpuscale.steptime.tensor_parallel import ACT_BYTES, Part, TensorParallelTime, stream

EAGER_NORM_PASSES = 4
"""How often an unfused norm passes over its input (cast up, square and mean, scale, cast down), against once."""


STREAM_SWITCH_S = 8e-6
"""Gap around a collective: it runs on a stream of its own, which waits for the computation before it and is waited for
(fitted to whole runs, docs/model.md; AllReduces of 1 to 64 MB over 2 GPUs of vTrain's machine take 15-23 us longer than
the collective model says, and runs with tensor parallelism of most sources agree better with it)."""

JITTER_NORM = 6
"""How the times of CPU and GPU combine under TP, as (cpu^p + gpu^p)^(1/p), p even: each collective waits for the
slowest rank, so that ranks which are now bound by their CPU, now by their GPU, take longer than either: 12 % where both
are equal (fitted to whole runs, docs/model.md)."""

DENSE_KERNELS = 20
"""Kernels of the forward pass of a dense layer, the unit of `RuntimeSpec.host_layer_s`."""


SHARED_KEY = ("tp", "sp", "cp", "micro_batch_size")
"""Fields of a candidate on which all of a layer but its routed experts depends, in the usual order of the axes."""


@dataclass(frozen=True)
class LayerTime:
    """Breakdowns of one layer and one microbatch, each component of shape (N,), and their sums.

    Attributes:
        forward: forward pass.
        backward: backward pass, with the forward pass of selectively recomputed modules.
        recompute: what full recomputation adds: the forward pass once more.
    """

    forward: Breakdown
    backward: Breakdown
    recompute: Breakdown
    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray


def layer_times(
    c: Candidates, job: JobSpec, rows: Candidates, index: npt.NDArray[np.intp], tp: TensorParallelTime
) -> tuple[LayerTime, ...]:
    """Price one layer of each kind of the model for each candidate.

    Args:
        rows, index: the distinct combinations of `SHARED_KEY` among the candidates, and which each of them has.
        tp: `tensor_parallel_time` of `rows`.
    """

    @cache  # kinds of layers share most of what they are made of
    def shared(price: Callable[..., Sequence[Part]], *spec: Any) -> list[Part]:
        return [part.spread(index) for part in price(*spec, rows, job)]

    @cache
    def shared_tp(price: Callable[..., Sequence[Part]], spec: Any) -> list[Part]:
        return [part.spread(index) for part in price(spec, rows, job, tp)]

    @cache
    def routed(spec: MoeSpec) -> list[Part]:
        return moe_parts(spec, c, job)

    def parts(kind: LayerSpec) -> list[Part]:
        out = [*shared(norm_parts, kind.norms, kind.blocks), *(shared(joint_parts) if kind.joins_embedding else [])]
        if kind.attention is not None:
            out += [*shared_tp(attention_parts, kind.attention), *shared(indexer_parts, kind.attention)]
        if kind.state_space is not None:
            out += shared_tp(state_space_parts, kind.state_space)
        if kind.mlp is not None:
            out += shared_tp(mlp_parts, kind.mlp)
        if kind.moe is not None:
            out += [*routed(kind.moe), *shared_tp(shared_expert_parts, kind.moe)]
        return out

    return tuple(_layer_time(parts(kind), c, job) for kind in job.model.trained_kinds)


def _layer_time(parts: Sequence[Part], c: Candidates, job: JobSpec) -> LayerTime:
    """Add up the parts of one layer."""
    again = [_as_recompute(part.forward) for part in parts]
    forward = added(*(part.forward for part in parts))
    backward: Breakdown = {}
    for part, once_more in zip(parts, again, strict=True):
        backward = added(backward, part.backward)
        if part.modules and (c.recompute_modules & part.modules).any():
            chosen = c.recompute_modules & part.modules > 0
            backward = added(backward, {name: np.where(chosen, value, 0.0) for name, value in once_more.items()})
    passes = _with_launches(parts, (forward, backward, added(*again)), c, job)
    forward, backward = _with_hidden_exchange(passes[0], passes[1], c, job)
    return LayerTime(forward, backward, passes[2], in_all_s(forward), in_all_s(backward), in_all_s(passes[2]))


def _with_hidden_exchange(
    forward: Breakdown, backward: Breakdown, c: Candidates, job: JobSpec
) -> tuple[Breakdown, Breakdown]:
    """Hide the exchange of one microbatch beside the computation of another; it keeps SMs busy.

    So under DualPipe, where the other travels the other way (DeepSeek-V3, arXiv 2412.19437, section 3.2.1), and in
    Megatron-LM (`RuntimeSpec.overlap_ep`), but only where CUDA graphs relieve the CPU: eager runs with the overlap are
    no faster than without (gpt-oss 120b on GB200, Megatron-Bridge 26.02 and 26.04).
    """
    always = job.runtime.overlap_ep and job.runtime.cuda_graphs != "none"
    beside = (c.schedule == DUALPIPE) | (always & ((c.pp == 1) | (c.vpp > 1)))  # 1F1B has no other one at hand
    if "ep_comm" not in forward or not beside.any():
        return forward, backward
    exchange_s = forward["ep_comm"] + backward["ep_comm"]
    compute_s = in_all_s(forward) + in_all_s(backward) - exchange_s
    exposed_s = exposed_beside(exchange_s, compute_s)
    exposed_s = exposed_s + contention(exchange_s - exposed_s, job.cluster.gpu.sm_count)
    shown = beside & (exchange_s > 0)
    others = 1.0 - 1.0 / np.maximum(c.num_microbatches, 1)  # the last microbatch has no other beside it
    hidden = np.where(shown, 1.0 - exposed_s / np.where(shown, exchange_s, 1.0), 0.0) * others
    factor = 1.0 - hidden
    return (
        {**forward, "ep_comm": forward["ep_comm"] * factor},
        {**backward, "ep_comm": backward["ep_comm"] * factor},
    )


def _as_recompute(forward: Breakdown) -> Breakdown:
    """Book the arithmetic of a repeated forward pass under `recompute`, its communication where it was."""
    sent = {name: value for name, value in forward.items() if name in COMMUNICATION}
    return {**sent, "recompute": in_all_s(forward) - in_all_s(sent)}


def _with_launches(
    parts: Sequence[Part], passes: tuple[Breakdown, Breakdown, Breakdown], c: Candidates, job: JobSpec
) -> tuple[Breakdown, Breakdown, Breakdown]:
    """Add the gaps between kernels, or how far the GPU waits for the CPU where that is more.

    The CPU issues ahead of the GPU, so both are compared over the forward and backward pass together.

    Args:
        passes: forward pass, backward pass and recomputation.
    """
    runtime, gap = job.runtime, job.cluster.gpu.kernels.launch_s
    kernels = sum(part.kernels for part in parts)
    collectives = np.asarray(sum(part.collectives for part in parts), dtype=np.float64)
    issue = runtime.host_layer_s * np.maximum(kernels / DENSE_KERNELS, 1.0) + collectives * runtime.host_collective_s
    issue = issue + collectives * c.tp * job.cluster.rank_overhead_s
    issue = issue * (runtime.cuda_graphs != "full")
    forward, backward, again = (added(each, {"launch": collectives * STREAM_SWITCH_S}) for each in passes)
    gpu_forward, gpu_backward, gpu_again = (in_all_s(each) for each in (forward, backward, again))
    behind = _waiting_s(2 * issue, gpu_forward + gpu_backward, c.tp)
    all_issue = 3 * issue + runtime.host_checkpoint_s * (runtime.cuda_graphs != "full")
    all_behind = _waiting_s(all_issue, gpu_forward + gpu_backward + gpu_again, c.tp)
    return (
        added(forward, {"launch": np.maximum(kernels * gap, behind / 2)}),
        added(backward, {"launch": np.maximum(2 * kernels * gap, behind / 2)}),
        added(again, {"launch": np.maximum(kernels * gap, all_behind - behind)}),
    )


def _waiting_s(issue_s: FloatArray, gpu_s: FloatArray, tp: IntArray) -> FloatArray:
    """Time that the GPU waits for the CPU: what that takes longer, and under TP for the CPUs of the other ranks."""
    longer = (_even_power(issue_s, JITTER_NORM) + _even_power(gpu_s, JITTER_NORM)) ** (1 / JITTER_NORM)
    return np.where(tp > 1, longer, np.maximum(issue_s, gpu_s)) - gpu_s


def _even_power(value: FloatArray, exponent: int) -> FloatArray:
    """Multiply out: NumPy's own power takes several times as long."""
    square = value * value
    return functools.reduce(np.multiply, [square] * (exponent // 2))


def norm_parts(norms: int, blocks: int, c: Candidates, job: JobSpec) -> list[Part]:
    """Norms (read, write; backward reads x and dy, writes dx, adds onto the residual gradient) and residual adds."""
    passes = EAGER_NORM_PASSES if "norm" in job.runtime.eager else 1
    rows = tokens(c, job) / c.sequence_split * job.model.hidden * ACT_BYTES
    kernels = norms * passes + blocks
    forward = stream(job, rows * (2 * norms * passes + 3 * blocks), kernels)
    backward = stream(job, rows * 4 * norms * passes, kernels)
    return [Part({"elementwise": forward}, {"elementwise": backward}, kernels, modules=LAYERNORM)]
