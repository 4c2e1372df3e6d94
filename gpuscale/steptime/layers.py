"""Time of one layer for one microbatch on one GPU: forward, backward and what recomputation repeats.

A layer is a list of parts (norms, attention projections, attention core, MLP, experts, ...). Each part has the
breakdown of its forward and of its backward pass, so that selective recomputation can repeat just its own parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import DUALPIPE, LAYERNORM, Candidates, IntArray
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime.attention import attention_parts
from gpuscale.steptime.components import COMMUNICATION, INDEX, breakdown, in_all_s, zeros
from gpuscale.steptime.feedforward import mlp_part, moe_parts
from gpuscale.steptime.overlap import contention, exposed_beside
from gpuscale.steptime.parts import ACT_BYTES, Part, stream
from gpuscale.steptime.sparse import indexer_parts
from gpuscale.steptime.statespace import joint_part, state_space_parts

FloatArray = npt.NDArray[np.float64]

EAGER_NORM_PASSES = 4
"""How often an unfused norm passes over its input (cast up, square and mean, scale, cast down), against once."""


STREAM_SWITCH_S = 8e-6
"""Gap around a collective: it runs on a stream of its own, which waits for the computation before it and is waited for
(fitted to whole runs, docs/model.md; AllReduces of 1 to 64 MB over 2 GPUs of vTrain's machine take 15-23 us longer than
the collective model says, and runs with tensor parallelism of most sources agree better with it)."""

JITTER_NORM = 6.0
"""How the times of CPU and GPU combine under TP, as (cpu^p + gpu^p)^(1/p): every collective waits for the slowest rank,
so that ranks which are now bound by their CPU, now by their GPU, take longer than either: 12 % where both are equal
(fitted to whole runs, docs/model.md)."""

DENSE_KERNELS = 20
"""Kernels of the forward pass of a dense layer, the unit of `RuntimeSpec.host_layer_s`."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Breakdowns of one layer and one microbatch, each of shape (components, N).

    Attributes:
        forward: forward pass.
        backward: backward pass, with the forward pass of selectively recomputed modules.
        recompute: what full recomputation adds: the forward pass once more.
    """

    forward: FloatArray
    backward: FloatArray
    recompute: FloatArray


def layer_time(kind: LayerSpec, c: Candidates, job: JobSpec) -> LayerTime:
    """Price one layer of `kind` for each candidate."""
    parts = [_norms(kind, c, job)]
    if kind.joins_embedding:
        parts.append(joint_part(c, job))
    if kind.attention is not None:
        parts += [*attention_parts(kind.attention, c, job), *indexer_parts(kind.attention, c, job)]
    if kind.state_space is not None:
        parts += state_space_parts(kind.state_space, c, job)
    if kind.mlp is not None:
        parts.append(mlp_part(kind.mlp, c, job))
    if kind.moe is not None:
        parts += moe_parts(kind.moe, c, job)
    forward, backward, recompute = zeros(len(c)), zeros(len(c)), zeros(len(c))
    for part in parts:
        once_more = _as_recompute(part.forward)
        forward = forward + part.forward
        backward = backward + part.backward + np.where(c.recompute_modules & part.modules, once_more, 0.0)
        recompute = recompute + once_more
    _add_launches(parts, forward, backward, recompute, c, job)
    _hide_expert_exchange(forward, backward, c, job)
    return LayerTime(forward, backward, recompute)


def _hide_expert_exchange(forward: FloatArray, backward: FloatArray, c: Candidates, job: JobSpec) -> None:
    """Hide the exchange of one microbatch beside the computation of another; it keeps SMs busy.

    So under DualPipe, where the other travels the other way (DeepSeek-V3, arXiv 2412.19437, section 3.2.1), and in
    Megatron-LM (`RuntimeSpec.overlap_ep`), but only where CUDA graphs relieve the CPU: eager runs with the overlap are
    no faster than without (gpt-oss 120b on GB200, Megatron-Bridge 26.02 and 26.04).
    """
    always = job.runtime.overlap_ep and job.runtime.cuda_graphs != "none"
    beside = (c.schedule == DUALPIPE) | (always & ((c.pp == 1) | (c.vpp > 1)))  # 1F1B has no other one at hand
    if not beside.any():
        return
    row = INDEX["ep_comm"]
    exchange_s = forward[row] + backward[row]
    compute_s = in_all_s(forward) + in_all_s(backward) - exchange_s
    exposed_s = exposed_beside(exchange_s, compute_s)
    exposed_s = exposed_s + contention(exchange_s - exposed_s, job.cluster.gpu.sm_count)
    shown = beside & (exchange_s > 0)
    others = 1.0 - 1.0 / np.maximum(c.num_microbatches, 1)  # the last microbatch has no other beside it
    hidden = np.where(shown, 1.0 - exposed_s / np.where(shown, exchange_s, 1.0), 0.0) * others
    factor = 1.0 - hidden
    forward[row] *= factor
    backward[row] *= factor


def _as_recompute(forward: FloatArray) -> FloatArray:
    """Book the arithmetic of a repeated forward pass under `recompute`, its communication where it was."""
    out = np.zeros_like(forward)
    for name in COMMUNICATION:
        out[INDEX[name]] = forward[INDEX[name]]
    out[INDEX["recompute"]] = in_all_s(forward) - in_all_s(out)
    return out


def _add_launches(
    parts: Sequence[Part],
    forward: FloatArray,
    backward: FloatArray,
    recompute: FloatArray,
    c: Candidates,
    job: JobSpec,
) -> None:
    """Add the gaps between kernels, or how far the GPU waits for the CPU where that is more.

    The CPU issues ahead of the GPU, so both are compared over the forward and backward pass together.
    """
    runtime, gap = job.runtime, job.cluster.gpu.kernels.launch_s
    kernels = sum(part.kernels for part in parts)
    collectives = sum((part.collectives for part in parts), np.zeros(forward.shape[1]))
    issue = runtime.host_layer_s * np.maximum(kernels / DENSE_KERNELS, 1.0) + collectives * runtime.host_collective_s
    issue = issue + collectives * c.tp * job.cluster.rank_overhead_s
    issue = issue * (runtime.cuda_graphs != "full")
    for each in (forward, backward, recompute):
        each[INDEX["launch"]] += collectives * STREAM_SWITCH_S
    gpu_forward, gpu_backward, gpu_again = (in_all_s(part) for part in (forward, backward, recompute))
    behind = _waiting_s(2 * issue, gpu_forward + gpu_backward, c.tp)
    forward[INDEX["launch"]] += np.maximum(kernels * gap, behind / 2)
    backward[INDEX["launch"]] += np.maximum(2 * kernels * gap, behind / 2)
    all_issue = 3 * issue + runtime.host_checkpoint_s * (runtime.cuda_graphs != "full")
    all_behind = _waiting_s(all_issue, gpu_forward + gpu_backward + gpu_again, c.tp)
    recompute[INDEX["launch"]] += np.maximum(kernels * gap, all_behind - behind)


def _waiting_s(issue_s: FloatArray, gpu_s: FloatArray, tp: IntArray) -> FloatArray:
    """Time that the GPU waits for the CPU: what that takes longer, and under TP for the CPUs of the other ranks."""
    longer = (issue_s**JITTER_NORM + gpu_s**JITTER_NORM) ** (1 / JITTER_NORM)
    return np.where(tp > 1, longer, np.maximum(issue_s, gpu_s)) - gpu_s


def _norms(kind: LayerSpec, c: Candidates, job: JobSpec) -> Part:
    """Norms (read, write; backward reads x and dy, writes dx, adds onto the residual gradient) and residual adds."""
    passes = EAGER_NORM_PASSES if "norm" in job.runtime.eager else 1
    rows = tokens(c, job) / c.sequence_split * job.model.hidden * ACT_BYTES
    kernels = kind.norms * passes + kind.blocks
    forward = stream(job, rows * (2 * kind.norms * passes + 3 * kind.blocks), kernels)
    backward = stream(job, rows * 4 * kind.norms * passes, kernels)
    count = len(c)
    return Part(
        breakdown(count, elementwise=forward), breakdown(count, elementwise=backward), kernels, modules=LAYERNORM
    )
