"""Time of one layer for one microbatch on one GPU: forward, backward and what recomputation repeats.

A layer is a list of parts (norms, attention projections, attention core, MLP, experts, ...). Each part has the
breakdown of its forward and of its backward pass, so that selective recomputation can repeat just its own parts.
Exposed communication is charged where it happens; how much of it is hidden is in `gpuscale.steptime.overlap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.architecture.flops import average_keys
from gpuscale.architecture.operators import Linear, attention_linears, expert_linears, mlp_linears, moe_dense_linears
from gpuscale.candidates.arrays import (
    CORE_ATTN,
    LAYERNORM,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    SHARED_EXPERTS,
    Candidates,
)
from gpuscale.collectives import collective_time_s
from gpuscale.memory.activations import routed_tokens, tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import AttentionSpec, LayerSpec
from gpuscale.steptime.components import COMMUNICATION, INDEX, breakdown, in_all_s, zeros
from gpuscale.steptime.kernels import attention_time_s, gemm_time_s, stream_time_s
from gpuscale.steptime.overlap import exposed_beside, exposed_pipelined

FloatArray = npt.NDArray[np.float64]

ACT_BYTES = 2
"""Bytes of an activation or of its gradient."""

WGRAD_OUTPUT_BYTES = 8
"""Traffic per element of a weight gradient that is added onto an fp32 buffer: read 4, write 4."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a layer.

    Attributes:
        forward, backward: breakdowns, shape (components, N).
        kernels: kernels launched in the forward pass.
        modules: bits of the recomputation modules that repeat this part's forward pass.
    """

    forward: FloatArray
    backward: FloatArray
    kernels: int
    modules: int = 0


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
    parts = [_norms(kind, c, job), *_attention(kind.attention, c, job)]
    parts += [_mlp(kind, c, job)] if kind.mlp is not None else _moe(kind, c, job)
    forward, backward, recompute = zeros(len(c)), zeros(len(c)), zeros(len(c))
    for part in parts:
        once_more = _as_recompute(part.forward)
        forward = forward + part.forward
        backward = backward + part.backward + np.where(c.recompute_modules & part.modules, once_more, 0.0)
        recompute = recompute + once_more
    kernels = sum(part.kernels for part in parts)
    return LayerTime(_with_launches(forward, kernels, job), _with_launches(backward, 2 * kernels, job), recompute)


def _as_recompute(forward: FloatArray) -> FloatArray:
    """Book the arithmetic of a repeated forward pass under `recompute`, its communication where it was."""
    out = np.zeros_like(forward)
    for name in COMMUNICATION:
        out[INDEX[name]] = forward[INDEX[name]]
    out[INDEX["recompute"]] = in_all_s(forward) - in_all_s(out)
    return out


def _with_launches(cost: FloatArray, kernels: int, job: JobSpec) -> FloatArray:
    """Add the gaps between kernels, or the time the CPU needs to launch them where that is longer."""
    out = cost.copy()
    gaps = kernels * job.cluster.gpu.kernels.launch_s
    behind = kernels * job.runtime.host_launch_s - in_all_s(cost)
    out[INDEX["launch"]] += np.maximum(gaps, behind)
    return out


def _stream(job: JobSpec, bytes_moved: FloatArray, kernels: int) -> FloatArray:
    return stream_time_s(job.cluster.gpu, bytes_moved, kernels)


def _norms(kind: LayerSpec, c: Candidates, job: JobSpec) -> Part:
    """Norms (read, write; backward reads x and dy, writes dx, adds onto the residual gradient) and residual adds."""
    rows = tokens(c, job) / c.sequence_split * job.model.hidden * ACT_BYTES
    forward = _stream(job, rows * (2 * kind.norms + 2 * 3), kind.norms + 2)
    backward = _stream(job, rows * 4 * kind.norms, kind.norms)
    count = len(c)
    return Part(
        breakdown(count, elementwise=forward), breakdown(count, elementwise=backward), kind.norms + 2, LAYERNORM
    )


@dataclass(frozen=True, slots=True)
class _GemmTimes:
    """Forward, input-gradient and weight-gradient time of one linear operator, each (N,) [s]."""

    forward: FloatArray
    dgrad: FloatArray
    wgrad: FloatArray

    @property
    def backward(self) -> FloatArray:
        return self.dgrad + self.wgrad


def _linear(linear: Linear, rows: FloatArray, c: Candidates, job: JobSpec, groups: npt.ArrayLike = 1) -> _GemmTimes:
    """Price one operator on `rows` tokens (per group, for grouped experts)."""
    gpu = job.cluster.gpu
    split = c.etp if linear.module == "experts" else c.tp
    precision = job.attention_precision if linear.module == "router" else job.precision
    inputs, outputs = linear.local_inputs(split), linear.local_outputs(split)
    return _GemmTimes(
        gemm_time_s(gpu, precision, rows, outputs, inputs, groups),
        gemm_time_s(gpu, precision, rows, inputs, outputs, groups),
        gemm_time_s(gpu, precision, inputs, outputs, rows, groups, WGRAD_OUTPUT_BYTES),
    )


def _tp_block(
    first: Sequence[_GemmTimes], last: _GemmTimes, c: Candidates, job: JobSpec
) -> tuple[FloatArray, FloatArray]:
    """Exposed tensor-parallel communication around a block of column- then row-parallel GEMMs, forward and backward.

    With SP: AllGather before, ReduceScatter after; backward AllGathers the output gradient, ReduceScatters the input
    gradient and gathers the block's input again (Korthikanti et al. 2022, section 4.2.2). Without: one AllReduce in
    each pass (Shoeybi et al. 2019). The backward reduction runs beside the weight gradient.
    """
    size = tokens(c, job) * job.model.hidden * ACT_BYTES
    cluster = job.cluster
    gather = collective_time_s(cluster, "allgather", size, c.tp, 1)
    scatter = collective_time_s(cluster, "reducescatter", size, c.tp, 1)
    reduce = collective_time_s(cluster, "allreduce", size, c.tp, 1)
    column_forward = np.asarray(sum(times.forward for times in first))
    column_dgrad = np.asarray(sum(times.dgrad for times in first))
    column_wgrad = np.asarray(sum(times.wgrad for times in first))
    if job.runtime.overlap_tp:
        forward = exposed_pipelined(gather, column_forward, c.tp) + exposed_pipelined(scatter, last.forward, c.tp)
        backward = exposed_pipelined(gather, last.dgrad, c.tp)
    else:
        forward = gather + scatter
        backward = gather
    backward = backward + exposed_beside(gather, column_dgrad) + exposed_beside(scatter, column_wgrad)
    without = exposed_beside(reduce, column_wgrad)
    return np.where(c.sp == 1, forward, reduce), np.where(c.sp == 1, backward, without)


def _attention(attention: AttentionSpec, c: Candidates, job: JobSpec) -> list[Part]:
    """Projections, rotary embedding and the fused attention core."""
    rows = tokens(c, job)
    linears = attention_linears(job.model.hidden, attention)
    times = {}
    for linear in linears:
        replicated = linear.split == "replicated"
        times[linear.name] = _linear(linear, rows / c.sequence_split if replicated else rows, c, job)
    first = [times[linear.name] for linear in linears if linear.split == "column"]
    tp_forward, tp_backward = _tp_block(first, times["out_proj"], c, job)
    ups = {"q_up", "kv_up"}
    count, none = len(c), np.zeros(len(c))
    others = [value for name, value in times.items() if name not in ups]
    width = attention.query_width / c.tp + np.maximum(attention.kv_heads / c.tp, 1.0) * attention.head_dim
    rotary = _stream(job, rows * width * 2 * ACT_BYTES, 2)
    projections = Part(
        breakdown(count, gemm=sum((t.forward for t in others), none), elementwise=rotary, tp_comm=tp_forward),
        breakdown(count, gemm=sum((t.backward for t in others), none), elementwise=rotary, tp_comm=tp_backward),
        len(others) + 2,
    )
    up_times = [times[name] for name in times if name in ups]
    up_projections = Part(
        breakdown(count, gemm=sum((t.forward for t in up_times), none)),
        breakdown(count, gemm=sum((t.backward for t in up_times), none)),
        len(up_times),
        MLA_UP_PROJ,
    )
    return [projections, up_projections, _attention_core(attention, c, job)]


def _attention_core(attention: AttentionSpec, c: Candidates, job: JobSpec) -> Part:
    """Fused attention; under context parallelism a ring of `cp` smaller kernels, each on one block of keys.

    Blocks of keys and values (backward: and their gradients) travel one rank further while the last block is worked
    on; partial outputs are merged in fp32 (Liu et al. 2023, Ring Attention, arXiv 2310.01889).
    """
    keys = average_keys(job.sequence, attention.window, "causal")
    heads = attention.heads / c.tp
    gpu, precision = job.cluster.gpu, job.attention_precision
    sizes = (c.micro_batch_size, heads, job.sequence / c.cp, keys / c.cp, attention.head_dim, attention.value_head_dim)
    block_forward = attention_time_s(gpu, precision, *sizes, backward=False)
    block_backward = attention_time_s(gpu, precision, *sizes, backward=True)
    kv_width = np.maximum(attention.kv_heads / c.tp, 1.0) * (attention.head_dim + attention.value_head_dim)
    block = tokens(c, job) * kv_width * ACT_BYTES
    pair, distance = np.minimum(c.cp, 2), c.tp * np.maximum(c.cp - 1, 1)
    hop = collective_time_s(job.cluster, "sendrecv", block, pair, distance)
    hop_back = collective_time_s(job.cluster, "sendrecv", 2 * block, pair, distance)
    beside = (block_forward, block_backward) if job.runtime.overlap_cp else (np.zeros(len(c)), np.zeros(len(c)))
    steps = c.cp - 1
    output = tokens(c, job) * heads * attention.value_head_dim
    merge = _stream(job, steps * output * 3 * 4, 1) * (c.cp > 1)  # read two partial outputs, write one, in fp32
    count = len(c)
    return Part(
        breakdown(
            count, attention=block_forward * c.cp, elementwise=merge, cp_comm=steps * exposed_beside(hop, beside[0])
        ),
        breakdown(count, attention=block_backward * c.cp, cp_comm=steps * exposed_beside(hop_back, beside[1])),
        1,
        CORE_ATTN,
    )


def _activation(job: JobSpec, rows: FloatArray, width: FloatArray, inputs: int) -> tuple[FloatArray, FloatArray]:
    """Gated or plain activation: reads `inputs` operands and writes one; backward reads one more, writes `inputs`."""
    element = rows * width * ACT_BYTES
    return _stream(job, element * (inputs + 1), 1), _stream(job, element * (2 * inputs + 1), 1)


def _mlp(kind: LayerSpec, c: Candidates, job: JobSpec) -> Part:
    assert kind.mlp is not None
    rows = tokens(c, job)
    fc1, fc2 = (_linear(linear, rows, c, job) for linear in mlp_linears(job.model.hidden, kind.mlp))
    act_forward, act_backward = _activation(job, rows, kind.mlp.ffn / c.tp, kind.mlp.input_matrices)
    tp_forward, tp_backward = _tp_block([fc1], fc2, c, job)
    count = len(c)
    return Part(
        breakdown(count, gemm=fc1.forward + fc2.forward, elementwise=act_forward, tp_comm=tp_forward),
        breakdown(count, gemm=fc1.backward + fc2.backward, elementwise=act_backward, tp_comm=tp_backward),
        3,
        MLP,
    )


def _moe(kind: LayerSpec, c: Candidates, job: JobSpec) -> list[Part]:
    """Router and permutation, AllToAll, grouped experts with their activation, shared experts."""
    return [_experts(kind, c, job), _expert_activation(kind, c, job), *_shared_experts(kind, c, job)]


def _experts(kind: LayerSpec, c: Candidates, job: JobSpec) -> Part:
    moe = kind.moe
    assert moe is not None
    hidden = job.model.hidden
    own = tokens(c, job) / c.sequence_split
    routed = routed_tokens(kind, c, job)
    local_experts = moe.experts // c.ep
    router = _linear(moe_dense_linears(hidden, moe)[0], own, c, job)
    fc1, fc2 = (
        _linear(linear, routed / local_experts, c, job, local_experts) for linear in expert_linears(hidden, moe)
    )
    permute = _stream(job, (own * moe.top_k + routed) * hidden * ACT_BYTES * 4, 4)  # in and out, read and write
    exchange = _expert_exchange_s(kind, c, job)
    gemm = router.forward + fc1.forward + fc2.forward
    gemm_backward = router.backward + fc1.backward + fc2.backward
    count = len(c)
    return Part(
        breakdown(count, gemm=gemm, elementwise=permute, ep_comm=exchange),
        breakdown(count, gemm=gemm_backward, elementwise=permute, ep_comm=exchange),
        12,
        MOE,
    )


def _expert_exchange_s(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Dispatch and combine: two AllToAlls over EP, and gathering over ETP where experts are cut."""
    assert kind.moe is not None
    own = tokens(c, job) / c.sequence_split
    imbalance = np.where(c.ep > 1, job.moe_imbalance, 1.0)
    send = own * kind.moe.top_k * job.model.hidden * ACT_BYTES * imbalance
    all_to_all = collective_time_s(job.cluster, "alltoall", send, c.ep, c.etp)
    etp = np.where(c.sp == 1, c.etp, 1)
    gather = collective_time_s(job.cluster, "allgather", send * etp, etp, 1)
    scatter = collective_time_s(job.cluster, "reducescatter", send * etp, etp, 1)
    reduce = collective_time_s(job.cluster, "allreduce", send, np.where(c.sp == 1, 1, c.etp), 1)
    return np.asarray(2 * all_to_all + gather + scatter + reduce, dtype=np.float64)


def _expert_activation(kind: LayerSpec, c: Candidates, job: JobSpec) -> Part:
    assert kind.moe is not None
    routed = routed_tokens(kind, c, job)
    forward, backward = _activation(job, routed, kind.moe.ffn / c.etp, kind.moe.input_matrices)
    count = len(c)
    return Part(breakdown(count, elementwise=forward), breakdown(count, elementwise=backward), 1, MOE | MOE_ACT)


def _shared_experts(kind: LayerSpec, c: Candidates, job: JobSpec) -> list[Part]:
    moe = kind.moe
    assert moe is not None
    if not moe.shared_ffn:
        return []
    rows = tokens(c, job)
    linears = {linear.name: linear for linear in moe_dense_linears(job.model.hidden, moe)}
    fc1, fc2 = (_linear(linears[name], rows, c, job) for name in ("shared_fc1", "shared_fc2"))
    act_forward, act_backward = _activation(job, rows, moe.shared_ffn / c.tp, moe.input_matrices)
    tp_forward, tp_backward = _tp_block([fc1], fc2, c, job)
    count = len(c)
    return [
        Part(
            breakdown(count, gemm=fc1.forward + fc2.forward, elementwise=act_forward, tp_comm=tp_forward),
            breakdown(count, gemm=fc1.backward + fc2.backward, elementwise=act_backward, tp_comm=tp_backward),
            3,
            MOE | SHARED_EXPERTS,
        )
    ]
