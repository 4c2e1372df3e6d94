"""Dense feed-forward blocks and mixtures of experts."""

from __future__ import annotations

import numpy as np

from gpuscale.architecture.parameters import expert_linears, latent_linears, mlp_linears, moe_dense_linears
from gpuscale.arrays import FloatArray, IntArray
from gpuscale.collectives import collective_time_s
from gpuscale.collectives.alltoall import Routing, deduplicated_s
from gpuscale.layouts.arrays import MLP, MOE, MOE_ACT, SHARED_EXPERTS, Candidates
from gpuscale.layouts.ranks import strides
from gpuscale.memory.activations import routed_tokens, tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import MlpSpec, MoeSpec
from gpuscale.steptime.components import Segment
from gpuscale.steptime.tensor_parallel import (
    ACT_BYTES,
    GemmTimes,
    TensorParallelTime,
    gemm_breakdown,
    linear_times,
    stream,
    tp_block,
    tp_collectives,
)

C2C_BYTES_PER_S = 200e9
"""Host links of this rate or more are NVLink-C2C, over which a CPU reads GPU memory directly; PCIe 6.0 has 126 GB/s."""

ROUTING_KERNELS = 12
"""Kernels of routing and permutation: softmax, top-k, sorting, counting, permute and unpermute (Megatron-LM)."""

CLAMP_BYTES = (16, 20)
"""What clamping a gated activation moves per element of its output, forward and backward, outside the fused kernel
(experts with biases, gpt-oss): both halves are clamped (8), then concatenated (8); backward clamps both (12) and
concatenates (8) (Megatron-LM core/fusions/fused_bias_geglu.py, `weighted_bias_quick_geglu_impl`)."""

BIAS_BYTES = (28, 40)
"""What adding the bias of an expert's output, scaled by the routing probability in 32 bits, moves per element, forward
and backward: product (4), sum (10), concatenation of the experts (8), cast (6); backward the casts (12), the split (4)
and the gradients of bias and of probability, a product and a sum each (24) (Megatron-LM
core/transformer/moe/experts.py, `TEGroupedMLP._apply_bias`)."""


def mlp_segments(mlp: MlpSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time a dense feed-forward block."""
    times = [linear_times(linear, c, job) for linear in mlp_linears(job.model.hidden, mlp)]
    return [_block(times, (mlp.ffn / c.tp, mlp.input_matrices), c, job, tp, MLP)]


def shared_expert_segments(moe: MoeSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time the experts that every token goes through, a dense feed-forward block; nothing where there are none."""
    if not moe.shared_ffn:
        return []
    linears = {linear.name: linear for linear in moe_dense_linears(job.model.hidden, moe)}
    times = [linear_times(linears[name], c, job) for name in ("shared_fc1", "shared_fc2")]
    return [_block(times, (moe.shared_ffn / c.tp, moe.input_matrices), c, job, tp, MOE | SHARED_EXPERTS)]


def _block(
    times: list[GemmTimes],
    inner: tuple[FloatArray, int],
    c: Candidates,
    job: JobSpec,
    tp: TensorParallelTime,
    modules: int,
) -> Segment:
    """Two projections with an activation between, cut over TP; `inner` is its width on one rank and its operands."""
    act_forward, act_backward = _activation_s(job, tokens(c, job), *inner)
    tp_forward, tp_backward = tp_block(times[:1], times[1], c, job, tp)
    return Segment(
        gemm_breakdown(times, "forward", act_forward, tp_comm=tp_forward),
        gemm_breakdown(times, "backward", act_backward, tp_comm=tp_backward),
        3 + (inner[1] if "activation" in job.runtime.eager else 0),
        tp_collectives(c),
        modules,
    )


def _activation_s(job: JobSpec, rows: FloatArray, width: FloatArray, inputs: int) -> tuple[FloatArray, FloatArray]:
    """Gated or plain activation: reads `inputs` operands and writes one; backward reads one more, writes `inputs`.

    Unfused and gated, the activation is written and read once more in each direction.
    """
    element = rows * width * ACT_BYTES
    extra = 2 if "activation" in job.runtime.eager and inputs > 1 else 0
    return stream(job, element * (inputs + 1 + extra), 1), stream(job, element * (2 * inputs + 1 + extra), 1)


def moe_segments(moe: MoeSpec, c: Candidates, job: JobSpec) -> list[Segment]:
    """Time the routed experts: router and permutation, AllToAll, grouped experts; then their activation."""
    hidden = job.model.hidden
    routed = routed_tokens(moe, c, job)
    local_experts = moe.experts // c.ep
    router = moe_dense_linears(hidden, moe)[0]
    times = [linear_times(linear, c, job) for linear in (router, *latent_linears(hidden, moe))]
    each = routed / local_experts
    times += [linear_times(linear, c, job, each, local_experts) for linear in expert_linears(hidden, moe)]
    copies = (tokens(c, job) / c.sequence_split * moe.top_k + routed) * moe.expert_width(hidden)
    permute = stream(job, copies * ACT_BYTES * 4, 4)  # in and out, read and write
    biased = routed * moe.expert_width(hidden) * moe.expert_bias
    bias_forward, bias_backward = (stream(job, biased * moved, 4) for moved in BIAS_BYTES)
    exchange, waiting = _expert_exchange_s(moe, c, job), _waiting_s(local_experts, job)
    experts = Segment(
        gemm_breakdown(times, "forward", permute + bias_forward, launch=waiting, ep_comm=exchange),
        gemm_breakdown(times, "backward", permute + bias_backward, launch=waiting, ep_comm=exchange),
        ROUTING_KERNELS,
        2.0 * (c.ep > 1),
        MOE,
    )
    forward, backward = _activation_s(job, routed, moe.ffn / c.etp, moe.input_matrices)
    if moe.expert_bias:
        clamped = routed * moe.ffn / c.etp
        clamp_forward, clamp_backward = (stream(job, clamped * moved, 4) for moved in CLAMP_BYTES)
        forward, backward = forward + clamp_forward, backward + clamp_backward
    return [experts, Segment({"elementwise": forward}, {"elementwise": backward}, 1, modules=MOE | MOE_ACT)]


def _waiting_s(local_experts: IntArray, job: JobSpec) -> FloatArray:
    """GPU time lost to the CPU in one pass: waiting for the token counts, then issuing expert after expert [s].

    A graph of the whole iteration loses none of it (its experts read their sizes from GPU memory).
    """
    if job.runtime.cuda_graphs == "full":
        return np.zeros(len(local_experts))
    direct = job.cluster.gpu.host_link_bytes_per_s >= C2C_BYTES_PER_S
    sync_s = job.runtime.host_moe_sync_c2c_s if direct else job.runtime.host_moe_sync_s
    return np.asarray(sync_s + local_experts * job.runtime.host_expert_s, dtype=np.float64)


def _expert_exchange_s(moe: MoeSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Dispatch and combine: two exchanges over EP, and gathering over ETP where experts are cut."""
    own = tokens(c, job) / c.sequence_split
    imbalance, apart = job.busiest_expert_rank(c.ep), strides(c, job)
    copy_bytes = own * moe.expert_width(job.model.hidden) * ACT_BYTES * imbalance
    send = copy_bytes * moe.top_k
    if job.runtime.expert_dispatch == "deduplicated":
        routing = Routing(moe.top_k, moe.groups, moe.top_groups)
        phases = deduplicated_s(job.cluster, copy_bytes, c.ep, apart.ep, routing)
        exchange = np.maximum(phases.inside_s, phases.across_s)
    else:
        exchange = collective_time_s(job.cluster, "alltoall", send, c.ep, apart.ep)
    etp = np.where(c.sp == 1, c.etp, 1)
    gather = collective_time_s(job.cluster, "allgather", send * etp, etp, apart.etp)
    scatter = collective_time_s(job.cluster, "reducescatter", send * etp, etp, apart.etp)
    reduce = collective_time_s(job.cluster, "allreduce", send, np.where(c.sp == 1, 1, c.etp), apart.etp)
    return np.asarray(2 * exchange + gather + scatter + reduce, dtype=np.float64)
