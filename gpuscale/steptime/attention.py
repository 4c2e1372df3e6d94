"""Attention: projections, rotary embedding, and the core, fused or not, over a ring of context-parallel ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscale.architecture.flops import average_keys
from gpuscale.architecture.operators import attention_linears
from gpuscale.candidates.arrays import CORE_ATTN, MLA_UP_PROJ, Candidates
from gpuscale.collectives import collective_time_s
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import AttentionSpec
from gpuscale.steptime.components import breakdown
from gpuscale.steptime.kernels import attention_time_s, gemm_time_s
from gpuscale.steptime.overlap import contention, exposed_beside
from gpuscale.steptime.parts import (
    ACT_BYTES,
    GemmTimes,
    Part,
    gemm_breakdown,
    linear_times,
    stream,
    tp_block,
    tp_collectives,
)

FloatArray = npt.NDArray[np.float64]

EAGER_ROTARY_PASSES = 5
"""How often unfused rotary embedding reads and writes queries and keys (chunk, negate, concatenate, two products and
a sum of the usual PyTorch code), against once fused."""

ALIGNED_HEAD = 8
"""Rows of 16-bit operands must come in 16 bytes for the tensor cores (NVIDIA, "Matrix Multiplication Background User's
Guide", section 2.2); batched products of others run on the CUDA cores, at the rate of fp32."""

SCORE_BYTES_FORWARD = {True: 9, False: 4}
"""Per score of unfused attention, with and without dropout: softmax reads and writes 2 each; dropout reads and writes
2 each and a mask byte. The two batched GEMMs are priced apart."""

SCORE_BYTES_BACKWARD = {True: 11, False: 6}
"""The same backward: softmax reads 2 x 2 and writes 2; dropout reads 2 and the mask byte and writes 2."""


def attention_parts(attention: AttentionSpec, c: Candidates, job: JobSpec) -> list[Part]:
    """Price the attention block of one layer."""
    rows = tokens(c, job)
    linears = attention_linears(job.model.hidden, attention)
    times: dict[str, GemmTimes] = {}
    for linear in linears:
        local = rows / c.sequence_split if linear.split == "replicated" else rows
        times[linear.name] = linear_times(linear, local, c, job)
    first = [times[linear.name] for linear in linears if linear.split == "column"]
    tp_forward, tp_backward = tp_block(first, times["out_proj"], c, job)
    up_names = {"q_up", "kv_up"}
    ups = [value for name, value in times.items() if name in up_names]
    others = [value for name, value in times.items() if name not in up_names]
    rotary = _rotary(attention, c, job)
    projections = _gemm_part(others, c, len(others) + 2, rotary)
    projections = Part(
        projections.forward + breakdown(len(c), tp_comm=tp_forward),
        projections.backward + breakdown(len(c), tp_comm=tp_backward),
        projections.kernels,
        tp_collectives(c),
    )
    up_projections = _gemm_part(ups, c, len(ups), np.zeros(len(c)), MLA_UP_PROJ)
    core = _unfused_core if job.runtime.attention == "unfused" else _fused_core
    return [projections, up_projections, core(attention, c, job)]


def _gemm_part(times: list[GemmTimes], c: Candidates, kernels: int, extra: FloatArray, modules: int = 0) -> Part:
    count = len(c)
    return Part(
        gemm_breakdown(times, "forward", count, extra),
        gemm_breakdown(times, "backward", count, extra),
        kernels,
        modules=modules,
    )


def _rotary(attention: AttentionSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Rotary embedding of queries and keys, in one pass; nothing with learned positions."""
    if job.model.learned_positions:
        return np.zeros(len(c))
    passes = EAGER_ROTARY_PASSES if "rotary" in job.runtime.eager else 1
    width = attention.query_width / c.tp + np.maximum(attention.kv_heads / c.tp, 1.0) * attention.head_dim
    return stream(job, tokens(c, job) * width * 2 * ACT_BYTES * passes, 2 * passes)


def _fused_core(attention: AttentionSpec, c: Candidates, job: JobSpec) -> Part:
    """Fused attention; under context parallelism a ring of `cp` smaller kernels, each on one block of keys.

    Blocks of keys and values (backward: and their gradients) travel one rank further while the last block is worked
    on; partial outputs are merged in fp32 (Liu et al. 2023, Ring Attention, arXiv 2310.01889).
    """
    keys = average_keys(job.sequence, attention.reach, "causal", chunked=attention.chunked)
    heads = attention.heads / c.tp
    gpu, precision = job.cluster.gpu, job.attention_precision
    sizes = (c.micro_batch_size, heads, job.sequence / c.cp, keys / c.cp, attention.head_dim, attention.value_head_dim)
    generation = job.runtime.attention
    block_forward = attention_time_s(gpu, precision, *sizes, backward=False, generation=generation)
    block_backward = attention_time_s(gpu, precision, *sizes, backward=True, generation=generation)
    ring_forward, ring_backward = _ring(attention, c, job, block_forward, block_backward)
    output = tokens(c, job) * heads * attention.value_head_dim
    merge = stream(job, (c.cp - 1) * output * 3 * 4, 1) * (c.cp > 1)  # read two partial outputs, write one, in fp32
    count = len(c)
    return Part(
        breakdown(count, attention=block_forward * c.cp, elementwise=merge, cp_comm=ring_forward),
        breakdown(count, attention=block_backward * c.cp, cp_comm=ring_backward),
        1,
        c.cp - 1.0,
        CORE_ATTN,
    )


def _ring(
    attention: AttentionSpec, c: Candidates, job: JobSpec, block_forward: FloatArray, block_backward: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Exposed time of passing keys and values (and back their gradients) around the ring."""
    kv_width = np.maximum(attention.kv_heads / c.tp, 1.0) * (attention.head_dim + attention.value_head_dim)
    block = tokens(c, job) * kv_width * ACT_BYTES
    pair, distance = np.minimum(c.cp, 2), c.tp * np.maximum(c.cp - 1, 1)
    hop = collective_time_s(job.cluster, "sendrecv", block, pair, distance)
    hop_back = collective_time_s(job.cluster, "sendrecv", 2 * block, pair, distance)
    steps = c.cp - 1
    if not job.runtime.overlap_cp:
        return steps * hop, steps * hop_back
    sms = job.cluster.gpu.sm_count
    forward, backward = exposed_beside(hop, block_forward), exposed_beside(hop_back, block_backward)
    return steps * (forward + contention(hop - forward, sms)), steps * (backward + contention(hop_back - backward, sms))


def _unfused_core(attention: AttentionSpec, c: Candidates, job: JobSpec) -> Part:
    """Scores in memory: two batched GEMMs and a softmax over the whole square, causal or not (backward: four GEMMs).

    As in Megatron-LM before fused attention (Korthikanti et al. 2022, section 4.1: the 5as/h term). Heads of another
    width than a multiple of `ALIGNED_HEAD` miss the tensor cores.
    """
    queries = c.micro_batch_size * attention.heads / c.tp * job.sequence / c.cp
    gpu, precision = job.cluster.gpu, job.attention_precision
    if attention.head_dim % ALIGNED_HEAD:
        precision = "fp32"
    keys = np.full(len(c), float(job.sequence))
    scores = gemm_time_s(gpu, precision, queries, keys, attention.head_dim)
    values = gemm_time_s(gpu, precision, queries, attention.value_head_dim, keys)
    dropout = job.runtime.dropout
    softmax = stream(job, queries * keys * SCORE_BYTES_FORWARD[dropout], 2)
    softmax_back = stream(job, queries * keys * SCORE_BYTES_BACKWARD[dropout], 2)
    count = len(c)
    return Part(
        breakdown(count, attention=scores + values, elementwise=softmax),
        breakdown(count, attention=2 * (scores + values), elementwise=softmax_back),
        8,
        modules=CORE_ATTN,
    )
