"""Attention: projections, rotary embedding, the core, fused or not, and the indexer of sparse attention.

What context-parallel ranks send one another follows the kinds of exchange that `gpuscale.layouts.ranks` describes.
"""

from __future__ import annotations

import numpy as np

from gpuscale.architecture.flops import average_keys
from gpuscale.architecture.parameters import attention_linears, indexer_linears
from gpuscale.arrays import FloatArray
from gpuscale.collectives import collective_time_s
from gpuscale.layouts.arrays import CORE_ATTN, MLA_UP_PROJ, Candidates
from gpuscale.layouts.ranks import ContextSplit, context_split, strides
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import AttentionSpec
from gpuscale.steptime.components import Segment, contention, exposed_beside
from gpuscale.steptime.kernels import attention_time_s, gemm_time_s
from gpuscale.steptime.tensor_parallel import (
    ACT_BYTES,
    TensorParallelTime,
    gemm_breakdown,
    linear_times,
    stream,
    tp_block,
    tp_collectives,
)

EAGER_ROTARY_PASSES = 5
"""Unfused rotary embedding reads and writes queries and keys this many times (chunk, negate, concatenate, two products
and a sum in the usual PyTorch code), a fused kernel once."""

ALIGNED_HEAD = 8
"""Rows of 16-bit operands must be multiples of 16 bytes for the tensor cores (NVIDIA, "Matrix Multiplication Background
User's Guide", section 2.2); batched products with other widths run on the CUDA cores, at the rate of fp32."""

SOFTMAX_BYTES = (4, 6)
"""Bytes that scaling, mask and softmax in one kernel move per score of unfused attention. Forward: read 2, write 2;
backward: read 2 x 2, write 2. The batched GEMMs come on top."""

EAGER_SOFTMAX_BYTES = (37, 41)
"""The same for a chain of PyTorch operations in fp32: cast (6), scale (8), mask (9), softmax (8), cast (6); backward
casts (6, 6), softmax (12), mask (9), scale (8) (Megatron-LM model/fused_softmax.py, forward_torch_softmax)."""

UNFUSED_KERNELS, EAGER_SOFTMAX_KERNELS = 8, 4
"""Kernels of unfused attention, and how many more the chain of operations takes than one softmax kernel."""

SOFTMAX_HEADS = 4
"""Megatron-LM's fused kernel takes four heads at a time: it is used only where sequences x heads of a rank are a
multiple of this (model/fused_softmax.py, is_kernel_available)."""

DROPOUT_BYTES = (5, 5)
"""Dropout of the probabilities, forward and backward: read 2, write 2, and one byte of mask."""

INDEX_SCORE_BYTES = 8
"""Per score of the indexer, summed over heads: written and read once in fp32 (top-k takes one pass)."""


def attention_segments(attention: AttentionSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time the attention block of one layer: projections, up-projections of latent attention, core."""
    linears = attention_linears(job.model.hidden, attention)
    times = {linear.name: linear_times(linear, c, job) for linear in linears}
    first = [times[linear.name] for linear in linears if linear.split == "column"]
    tp_forward, tp_backward = tp_block(first, times["out_proj"], c, job, tp)
    ups = [time for name, time in times.items() if name in {"q_up", "kv_up"}]
    others = [time for name, time in times.items() if name not in {"q_up", "kv_up"}]
    rotary = _rotary_s(attention, c, job)
    projections = Segment(
        gemm_breakdown(others, "forward", rotary, tp_comm=tp_forward),
        gemm_breakdown(others, "backward", rotary, tp_comm=tp_backward),
        len(others) + 2,
        tp_collectives(c),
    )
    up_forward, up_backward = gemm_breakdown(ups, "forward"), gemm_breakdown(ups, "backward")
    up_projections = [Segment(up_forward, up_backward, len(ups), modules=MLA_UP_PROJ)] if ups else []
    core = _unfused_core if job.runtime.attention == "unfused" else _fused_core
    return [projections, *up_projections, core(attention, c, job)]


def _rotary_s(attention: AttentionSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Rotary embedding of queries and keys, in one pass; nothing with learned positions."""
    if job.model.learned_positions:
        return np.zeros(len(c))
    passes = EAGER_ROTARY_PASSES if "rotary" in job.runtime.eager else 1
    width = attention.query_width / c.tp + np.maximum(attention.kv_heads / c.tp, 1.0) * attention.head_dim
    return stream(job, tokens(c, job) * width * 2 * ACT_BYTES * passes, 2 * passes)


def _fused_core(attention: AttentionSpec, c: Candidates, job: JobSpec) -> Segment:
    """Fused attention; under context parallelism on this rank's share of heads, queries and blocks of keys.

    Partial outputs of the blocks are merged in fp32 (Liu et al. 2023, Ring Attention, arXiv 2310.01889).
    """
    keys = average_keys(job.sequence, attention.reach, "causal", chunked=attention.chunked)
    split = context_split(c, job)
    heads = attention.heads / c.tp / split.heads
    queries = job.sequence / split.queries
    gpu, precision = job.cluster.gpu, job.attention_precision
    sizes = (c.micro_batch_size, heads, queries, keys / split.blocks, attention.head_dim, attention.value_head_dim)
    generation = job.runtime.attention
    block_forward = attention_time_s(gpu, precision, *sizes, backward=False, generation=generation)
    block_backward = attention_time_s(gpu, precision, *sizes, backward=True, generation=generation)
    comm_forward, comm_backward = context_comm_s(attention, c, job, block_forward, block_backward)
    output = c.micro_batch_size * queries * heads * attention.value_head_dim
    steps = split.blocks - 1
    merge = stream(job, steps * output * 3 * 4, 1) * (steps > 0)  # read two partial outputs, write one, in fp32
    gathered = (split.queries > 1) & (split.blocks == 1)
    collectives = (split.blocks - 1.0) + 2.0 * (split.heads > 1) + 1.0 * gathered
    return Segment(
        {"attention": block_forward * split.blocks, "elementwise": merge, "cp_comm": comm_forward},
        {"attention": block_backward * split.blocks, "cp_comm": comm_backward},
        1,
        collectives,
        CORE_ATTN,
    )


def _unfused_core(attention: AttentionSpec, c: Candidates, job: JobSpec) -> Segment:
    """Scores in memory: two batched GEMMs and a softmax over the whole square, causal or not (backward: four GEMMs).

    As in Megatron-LM before fused attention (Korthikanti et al. 2022, section 4.1: the 5as/h term). Heads whose width
    is no multiple of `ALIGNED_HEAD` miss the tensor cores.
    """
    queries = c.micro_batch_size * attention.heads / c.tp * job.sequence / c.cp
    gpu, precision = job.cluster.gpu, job.attention_precision
    if attention.head_dim % ALIGNED_HEAD:
        precision = "fp32"
    keys = np.full(len(c), float(job.sequence))
    scores = gemm_time_s(gpu, precision, queries, keys, attention.head_dim)
    values = gemm_time_s(gpu, precision, queries, attention.value_head_dim, keys)
    whole = (c.micro_batch_size * attention.heads // c.tp) % SOFTMAX_HEADS == 0
    softmax, softmax_back = (
        stream(job, queries * keys * (np.where(whole, fused, eager) + dropped * job.runtime.dropout), 2)
        for fused, eager, dropped in zip(SOFTMAX_BYTES, EAGER_SOFTMAX_BYTES, DROPOUT_BYTES, strict=True)
    )
    return Segment(
        {"attention": scores + values, "elementwise": softmax},
        {"attention": 2 * (scores + values), "elementwise": softmax_back},
        np.where(whole, UNFUSED_KERNELS, UNFUSED_KERNELS + EAGER_SOFTMAX_KERNELS),
        modules=CORE_ATTN,
    )


def context_comm_s(
    attention: AttentionSpec, c: Candidates, job: JobSpec, block_forward_s: FloatArray, block_backward_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Exposed time of what context-parallel ranks send in the forward and in the backward pass of a layer, each (N,).

    Args:
        block_forward_s, block_backward_s: attention over one block of keys, during which a ring passes on the next one.
    """
    split = context_split(c, job)
    kv_heads = np.maximum(attention.kv_heads / c.tp, split.heads)  # if there are fewer, they are copied
    kv_bytes = tokens(c, job) * kv_heads * (attention.head_dim + attention.value_head_dim) * ACT_BYTES
    if job.runtime.cp_comm == "all_gather":
        whole, step = kv_bytes * c.cp, strides(c, job).cp
        gather_s = collective_time_s(job.cluster, "allgather", whole, c.cp, step)
        return gather_s, gather_s + collective_time_s(job.cluster, "reducescatter", whole, c.cp, step)
    steps = split.blocks - 1  # of a ring: keys and values, backward with their gradients, move one rank further
    pair, distance = np.minimum(split.blocks, 2), strides(c, job).cp * split.heads * np.maximum(steps, 1)
    hop_s = collective_time_s(job.cluster, "sendrecv", kv_bytes, pair, distance)
    hop_back_s = collective_time_s(job.cluster, "sendrecv", 2 * kv_bytes, pair, distance)
    sms = job.cluster.gpu.sm_count
    forward, backward = exposed_beside(hop_s, block_forward_s), exposed_beside(hop_back_s, block_backward_s)
    forward = steps * (forward + contention(hop_s - forward, sms))
    backward = steps * (backward + contention(hop_back_s - backward, sms))
    if (split.heads > 1).any():
        exchange_s = _exchange_s(attention, kv_bytes, split, c, job)
        forward, backward = forward + exchange_s, backward + exchange_s
    return forward, backward


def _exchange_s(
    attention: AttentionSpec, kv_bytes: FloatArray, split: ContextSplit, c: Candidates, job: JobSpec
) -> FloatArray:
    """Queries, keys and values to the owners of their heads, the output back; backward the gradients the other way."""
    row, step = tokens(c, job) / c.tp * ACT_BYTES, strides(c, job).cp
    there = collective_time_s(job.cluster, "alltoall", row * attention.query_width + kv_bytes, split.heads, step)
    back = collective_time_s(job.cluster, "alltoall", row * attention.output_width, split.heads, step)
    return there + back


def indexer_segments(attention: AttentionSpec, c: Candidates, job: JobSpec) -> list[Segment]:
    """Time the indexer of DeepSeek sparse attention: its projections, the scores of all earlier tokens, the choice of
    keys; nothing where a layer has none of its own.

    Scores are a matrix product of every head's queries with the shared key, reduced over heads as they are made
    (DeepSeek-V3.2 report, eq. 1). The indexer is trained like the rest, so the backward pass takes two products. TP
    ranks that share the sequence split the queries.
    """
    indexer = attention.indexer
    if indexer is None or indexer.shared:
        return []
    rows = tokens(c, job) / c.sequence_split
    times = [linear_times(linear, c, job) for linear in indexer_linears(job.model.hidden, attention)]
    keys = average_keys(job.sequence, None, "causal")
    scores_s = gemm_time_s(job.cluster.gpu, job.attention_precision, rows * indexer.heads, keys, indexer.head_dim, 1, 0)
    choice_s = stream(job, rows * keys * INDEX_SCORE_BYTES, 2)
    return [
        Segment(
            gemm_breakdown(times, "forward", choice_s, attention=scores_s),
            gemm_breakdown(times, "backward", choice_s, attention=2 * scores_s),
            len(times) + 4,
        )
    ]
