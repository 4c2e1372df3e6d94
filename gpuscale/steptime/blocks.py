"""The blocks of a layer: attention, state spaces in its place, dense feed-forward blocks and mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuscale.architecture.flops import STATE_FLOPS, attended_keys, average_keys
from gpuscale.architecture.parameters import (
    Linear,
    attention_linears,
    beside_linears,
    expert_linears,
    indexer_linears,
    latent_linears,
    mlp_linears,
    moe_dense_linears,
    state_space_linears,
)
from gpuscale.arrays import BoolArray, FloatArray, IntArray
from gpuscale.collectives.alltoall import Routing, deduplicated_s, distinct_targets, units, writes_remotely
from gpuscale.layouts.arrays import CORE_ATTN, DUALPIPE, MLA_UP_PROJ, MLP, MOE, MOE_ACT, SHARED_EXPERTS, Candidates
from gpuscale.layouts.ranks import context_split, strides
from gpuscale.memory.activations import routed_tokens, tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import TIMED_STATE_SPACES, AttentionSpec, BesideSpec, MlpSpec, MoeSpec, StateSpaceSpec
from gpuscale.steptime.components import GroupCall, Segment, Sent, collective, contention, exposed_beside, sent_s
from gpuscale.steptime.kernels import RECIPES, attention_time_s, gemm_flops_per_s, gemm_time_s
from gpuscale.steptime.tensor_parallel import (
    TensorParallelTime,
    gemm_breakdown,
    launched,
    linear_times,
    stream,
    tp_block,
    tp_collectives,
)


def _products(
    name: str,
    linears: Sequence[Linear],
    c: Candidates,
    job: JobSpec,
    tp: TensorParallelTime,
    kernels: int,
    beside: tuple[FloatArray | float, FloatArray | float] = (0.0, 0.0),
    modules: int = 0,
) -> Segment:
    """The products of a block, cut over TP by columns, the last one by rows; `beside`: element-wise work each way."""
    times = [linear_times(linear, c, job) for linear in linears]
    first = [time for time, linear in zip(times, linears, strict=True) if linear.split == "column"]
    tp_forward, tp_backward, sent = tp_block(first, times[-1], c, job, tp)
    return Segment(
        gemm_breakdown(times, "forward", beside[0], tp_comm=tp_forward),
        gemm_breakdown(times, "backward", beside[1], tp_comm=tp_backward),
        kernels + launched(times) - len(times),
        tp_collectives(c),
        modules,
        gemm_breakdown(times[-1:], "forward"),
        name=name,
        products=tuple((linear.name, time) for linear, time in zip(linears, times, strict=True)),
        sent=sent,
    )


EAGER_ROTARY_PASSES = 5
"""Reads and writes of queries and keys by unfused rotary embedding (chunk, negate, concatenate, two products and a sum
in the usual PyTorch code); a fused kernel takes one."""

ALIGNED_HEAD = 8
"""Width of a head of which batched products need multiples to run on the tensor cores (NVIDIA, "Matrix Multiplication
Background User's Guide", section 2.2), not at the rate of fp32."""

SOFTMAX_BYTES = (4, 6)
"""Bytes per score of unfused attention that scaling, mask and softmax in one kernel move, forward (read 2, write 2) and
backward (read 2 x 2, write 2)."""

EAGER_SOFTMAX_BYTES = (37, 41)
"""The same for a chain of PyTorch operations in fp32: cast (6), scale (8), mask (9), softmax (8), cast (6); backward
casts (6, 6), softmax (12), mask (9), scale (8) (Megatron-LM model/fused_softmax.py, forward_torch_softmax)."""

CASTS = 12
"""What of it are casts between 16 and 32 bits, in each direction."""

UNFUSED_KERNELS, EAGER_SOFTMAX_KERNELS = 8, 4
"""Kernels of unfused attention, and how many more the chain of operations takes than one softmax kernel."""

SOFTMAX_HEADS = 4
"""Megatron-LM's fused kernel takes so many heads at a time (model/fused_softmax.py, is_kernel_available)."""

DROPOUT_BYTES = (5, 5)
"""Dropout of the probabilities, forward and backward: read 2, write 2, and one byte of mask."""

INDEX_SCORE_BYTES = 8
"""Per score of the indexer, summed over heads: written and read once in fp32 (top-k takes one pass)."""


def attention_segments(attention: AttentionSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time the attention block of one layer: projections, up-projections of latent attention, core."""
    linears = attention_linears(job.model.hidden, attention)
    times = {linear.name: linear_times(linear, c, job) for linear in linears}
    first = [times[linear.name] for linear in linears if linear.split == "column"]
    tp_forward, tp_backward, sent = tp_block(first, times["out_proj"], c, job, tp)
    of_ups = {name: time for name, time in times.items() if name in {"q_up", "kv_up"}}
    of_others = {name: time for name, time in times.items() if name not in of_ups}
    ups, others = list(of_ups.values()), list(of_others.values())
    rotary = _rotary_s(attention, c, job)
    projections = Segment(
        gemm_breakdown(others, "forward", rotary, tp_comm=tp_forward),
        gemm_breakdown(others, "backward", rotary, tp_comm=tp_backward),
        launched(others) + 2,
        tp_collectives(c),
        tail=gemm_breakdown([times["out_proj"]], "forward"),
        name="attention projections",
        products=tuple(of_others.items()),
        sent=sent,
    )
    up_forward, up_backward = gemm_breakdown(ups, "forward"), gemm_breakdown(ups, "backward")
    latent = Segment(up_forward, up_backward, launched(ups), modules=MLA_UP_PROJ, name="latent up-projections")
    up_projections = [latent._replace(products=tuple(of_ups.items()))] if ups else []
    core = _unfused_core if job.attention == "unfused" else _fused_core
    return [projections, *up_projections, core(attention, c, job)]


def _rotary_s(attention: AttentionSpec, c: Candidates, job: JobSpec) -> FloatArray:
    if job.model.learned_positions:
        return np.zeros(len(c))
    passes = EAGER_ROTARY_PASSES if "rotary" in job.runtime.unfused else 1
    width = attention.query_width / c.tp + np.maximum(attention.kv_heads / c.tp, 1.0) * attention.head_dim
    return stream(job, tokens(c, job) * width * 2 * job.activation_bytes * passes, 2 * passes)


def _fused_core(attention: AttentionSpec, c: Candidates, job: JobSpec) -> Segment:
    """Fused attention; under context parallelism on this rank's share of heads, queries and blocks of keys.

    Partial outputs of the blocks are merged in fp32 (Liu et al. 2023, Ring Attention, arXiv 2310.01889).
    """
    keys = attended_keys(job.attended_sequence, attention, "causal")
    split = context_split(c, job)
    heads = attention.heads / c.tp / split.heads
    queries = job.sequence / split.queries
    gpu, precision = job.cluster.gpu, job.attention_precision
    sizes = (c.micro_batch_size, heads, queries, keys / split.blocks, attention.head_dim, attention.value_head_dim)
    generation = job.attention_of(attention)
    block_forward = attention_time_s(gpu, precision, *sizes, backward=False, generation=generation)
    block_backward = attention_time_s(gpu, precision, *sizes, backward=True, generation=generation)
    comm_forward, comm_backward, sent = context_comm_s(attention, c, job, block_forward, block_backward)
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
        name="attention core",
        sent=sent,
    )


def _unfused_core(attention: AttentionSpec, c: Candidates, job: JobSpec) -> Segment:
    """Scores in memory: two batched GEMMs and a softmax over the whole square, causal or not (backward: four GEMMs).

    As in Megatron-LM before fused attention (Korthikanti et al. 2022, section 4.1: the 5as/h term). 32-bit scores take
    the chain of operations without casts. The output is copied from the order of heads into that of tokens, its
    gradient back, and the gradients of queries, keys and values are joined (model/transformer.py, CoreAttention and
    ParallelAttention).
    """
    wide = job.activation_bytes == 4
    queries = c.micro_batch_size * attention.heads / c.tp * job.sequence / c.cp
    gpu, precision = job.cluster.gpu, job.attention_precision
    if attention.head_dim % ALIGNED_HEAD:
        precision = "fp32"
    keys = np.full(len(c), float(job.sequence))
    scores = gemm_time_s(gpu, precision, queries, keys, attention.head_dim)
    values = gemm_time_s(gpu, precision, queries, attention.value_head_dim, keys)
    whole = ((c.micro_batch_size * attention.heads // c.tp) % SOFTMAX_HEADS == 0) & (not wide)
    softmax, softmax_back = (
        stream(job, queries * keys * (np.where(whole, fused, eager - CASTS * wide) + dropped * job.runtime.dropout), 2)
        for fused, eager, dropped in zip(SOFTMAX_BYTES, EAGER_SOFTMAX_BYTES, DROPOUT_BYTES, strict=True)
    )
    ordered = 2 * job.activation_bytes * tokens(c, job) / c.tp
    joined = attention.query_width + attention.kv_heads * (attention.head_dim + attention.value_head_dim)
    output_s = stream(job, ordered * attention.output_width, 1)
    joined_s = stream(job, ordered * joined, 1)
    return Segment(
        {"attention": scores + values, "elementwise": softmax + output_s},
        {"attention": 2 * (scores + values), "elementwise": softmax_back + output_s + joined_s},
        np.where(whole, UNFUSED_KERNELS, UNFUSED_KERNELS + EAGER_SOFTMAX_KERNELS),
        modules=CORE_ATTN,
        name="attention core",
    )


def context_comm_s(
    attention: AttentionSpec, c: Candidates, job: JobSpec, block_forward_s: FloatArray, block_backward_s: FloatArray
) -> tuple[FloatArray, FloatArray, tuple[Sent, ...]]:
    """Exposed time of what context-parallel ranks send in the forward and in the backward pass of a layer, each (N,)
    [s]; then what it is.

    Args:
        block_forward_s, block_backward_s: attention over one block of keys, during which a ring passes on the next one.
    """
    sent, sms = _context_sent(attention, c, job), job.cluster.gpu.sm_count

    def shown_s(way: str, block_s: FloatArray) -> FloatArray:
        alone_s = sent_s([one for one in sent if one.parts[0].operation != "sendrecv"], way)
        for one in sent:
            if one.parts[0].operation == "sendrecv":
                exposed_s = exposed_beside(one.time_s, block_s)
                alone_s = getattr(one, way) * (exposed_s + contention(one.time_s - exposed_s, sms)) + alone_s
        return alone_s

    return shown_s("forward", block_forward_s), shown_s("backward", block_backward_s), sent


def _context_sent(attention: AttentionSpec, c: Candidates, job: JobSpec) -> tuple[Sent, ...]:
    """Keys and values gathered, around a ring, or with the queries over the heads."""
    split, apart = context_split(c, job), strides(c, job).cp
    kv_heads = np.maximum(attention.kv_heads / c.tp, split.heads)  # if there are fewer, they are copied
    kv_bytes = tokens(c, job) * kv_heads * (attention.head_dim + attention.value_head_dim) * job.activation_bytes

    def of(purpose: str, operation: str, size: FloatArray, ranks: IntArray, stride: IntArray, *calls: Any) -> Sent:
        return Sent("cp", purpose, (collective(job, operation, size, ranks, stride),), *calls)

    if job.runtime.cp_comm == "all_gather":
        gathered = kv_bytes * c.cp
        return (
            of("keys and values", "allgather", gathered, c.cp, apart, 1.0, 1.0),
            of("their gradients", "reducescatter", gathered, c.cp, apart, 0.0, 1.0),
        )
    steps, distance = split.blocks - 1.0, apart * split.heads  # of a ring: all move one rank further
    ring = (
        of("keys and values", "sendrecv", kv_bytes, split.blocks, distance, steps),
        of("keys, values, gradients", "sendrecv", 2 * kv_bytes, split.blocks, distance, 0.0, steps),
    )
    if not (split.heads > 1).any():
        return ring
    # queries, keys and values to the owners of their heads, the output back; backward the gradients the other way
    row = tokens(c, job) / c.tp * job.activation_bytes
    return (
        *ring,
        of("queries, keys, values", "alltoall", row * attention.query_width + kv_bytes, split.heads, apart, 1.0, 1.0),
        of("outputs", "alltoall", row * attention.output_width, split.heads, apart, 1.0, 1.0),
    )


def indexer_segments(attention: AttentionSpec, c: Candidates, job: JobSpec) -> list[Segment]:
    """Time the indexer of DeepSeek sparse attention: projections, scores of all earlier tokens, choice of keys; nothing
    where a layer has none of its own. Scores are a matrix product of every head's queries with the shared key, reduced
    over heads (DeepSeek-V3.2 report, eq. 1). TP ranks that share the sequence split the queries."""
    indexer = attention.indexer
    if indexer is None or indexer.shared:
        return []
    rows = tokens(c, job) / c.sequence_split
    linears = indexer_linears(job.model.hidden, attention)
    times = [linear_times(linear, c, job) for linear in linears]
    keys = average_keys(job.sequence, None, "causal")
    scores_s = gemm_time_s(job.cluster.gpu, job.attention_precision, rows * indexer.heads, keys, indexer.head_dim, 1, 0)
    choice_s = stream(job, rows * keys * INDEX_SCORE_BYTES, 2)
    return [
        Segment(
            gemm_breakdown(times, "forward", choice_s, attention=scores_s),
            gemm_breakdown(times, "backward", choice_s, attention=2 * scores_s),
            launched(times) + 4,
            name="indexer",
            products=tuple((linear.name, time) for linear, time in zip(linears, times, strict=True)),
        )
    ]


def beside_segments(beside: tuple[BesideSpec, ...], c: Candidates, job: JobSpec) -> list[Segment]:
    """Time the small products beside the blocks of a layer, on the tokens of one rank, each with an element-wise use of
    its output; vectors go with other kernels."""
    linears = beside_linears(beside)
    if not linears:
        return []
    times = [linear_times(linear, c, job) for linear in linears]
    width = sum(linear.outputs for linear in linears)
    used_s = stream(job, tokens(c, job) / c.sequence_split * width * 3 * job.activation_bytes, len(linears))
    return [
        Segment(
            gemm_breakdown(times, "forward", used_s),
            gemm_breakdown(times, "backward", 2 * used_s),
            2 * len(linears),
            name="beside the blocks",
            products=tuple((linear.name, time) for linear, time in zip(linears, times, strict=True)),
        )
    ]


# -- state spaces: projections, convolution, recurrence in chunks, gated norm --
#
# Of the chain of kernels traffic and arithmetic add up: short products between them hide little.

FORWARD = {
    "mamba2": {"conv": 4, "value": 12, "key": 8, "state": 12, "score": 8, "kernels": 8},
    "gdn": {"conv": 4, "value": 18, "key": 22, "state": 4, "score": 12, "kernels": 11},
    "kda": {"conv": 4, "value": 18, "key": 34, "state": 4, "score": 12, "kernels": 13},
    "mamba1": {"conv": 4, "value": 8, "key": 4, "state": 4, "score": 0, "kernels": 3},
    "conv": {"conv": 4, "value": 10, "key": 0, "state": 0, "score": 0, "kernels": 3},
    "rglru": {"conv": 4, "value": 14, "key": 0, "state": 0, "score": 0, "kernels": 6},
    "rwkv4": {"conv": 0, "value": 22, "key": 0, "state": 0, "score": 0, "kernels": 8},
    "mlstm": {"conv": 0, "value": 12, "key": 4, "state": 8, "score": 0, "kernels": 6},
    "lightning": {"conv": 0, "value": 12, "key": 4, "state": 8, "score": 0, "kernels": 6},
}
"""Bytes that the kernels of the forward pass move per token, and how many kernels there are.

`conv`: per channel of the convolution. `value`: per element of the heads' inputs and outputs. `key`: per element of the
B and C maps (delta nets: of queries and keys, one set per head). `state`: per element of the states kept at chunk
boundaries, width x state / chunk per token. `score`: per score inside a chunk, groups (delta nets: heads) x chunk per
token.

Sums over the operands of the training kernels (Mamba-2: github.com/state-spaces/mamba, ops/triton/ssd_combined.py;
delta nets: github.com/fla-org/flash-linear-attention, ops/gated_delta_rule and ops/kda, chunk.py); estimates where
there are none (all but `TIMED_STATE_SPACES`; docs/model.md).
"""

BACKWARD_TRAFFIC = 2
"""Traffic of the backward pass over the forward pass where it is an estimate: operands and gradients."""

BACKWARD: dict[str, dict[str, int]] = {
    "mamba2": {"conv": 10, "value": 34, "key": 30, "state": 30, "score": 24, "kernels": 18},
    "gdn": {"conv": 6, "value": 50, "key": 40, "state": 10, "score": 20, "kernels": 22},
    "kda": {"conv": 6, "value": 50, "key": 64, "state": 10, "score": 20, "kernels": 26},
} | {
    kind: {what: BACKWARD_TRAFFIC * moved for what, moved in FORWARD[kind].items()}
    for kind in FORWARD.keys() - set(TIMED_STATE_SPACES)
}  # fmt: skip
"""Backward pass of the same kernels, which recompute convolution (Mamba-2), states and products first."""

BACKWARD_ARITHMETIC = 3.5
"""Arithmetic backward over forward: two products for each one, and what is recomputed."""

ARITHMETIC_FRACTION = 0.13
"""Share of the rate of a large matrix product that the short products of a chunk reach: the chunk scan of Mamba-2 on
H200 takes 0.64 ms for 16384 tokens of 80 heads, 0.94 ms for 32768 of 64 (64 wide, state 128, chunk 256), 43 and 69
GFLOPs (github.com/tile-ai/TileOPs, pull request 1608)."""


def state_space_segments(spec: StateSpaceSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time the state-space block of one layer: projections with their TP communication, and the recurrence."""
    linears = state_space_linears(job.model.hidden, spec)
    return [_products("state-space projections", linears, c, job, tp, len(linears)), _recurrence(spec, c, job)]


def _recurrence(spec: StateSpaceSpec, c: Candidates, job: JobSpec) -> Segment:
    """Convolution, recurrence and gated norm; context-parallel ranks have all tokens of their share of the heads, by
    AllToAlls (Megatron-LM `MambaContextParallel`)."""
    heads, _ = _local_heads(spec, c)
    rows, step = tokens(c, job), strides(c, job).cp
    into = (2 * heads * spec.head_dim + 2 * np.maximum(spec.groups / c.tp, 1.0) * spec.state) * job.activation_bytes
    out = heads * spec.head_dim * job.activation_bytes
    sent = tuple(
        Sent("cp", purpose, (collective(job, "alltoall", rows * width, c.cp, step),), 1.0, 1.0)
        for purpose, width in (("state-space inputs", into), ("state-space outputs", out))
    )
    exchange = sent_s(sent, "forward")
    arithmetic_s = _arithmetic_s(spec, c, job)
    forward_s = _traffic_s(spec, FORWARD[spec.kind], c, job) + arithmetic_s
    backward_s = _traffic_s(spec, BACKWARD[spec.kind], c, job) + BACKWARD_ARITHMETIC * arithmetic_s
    return Segment(
        {"elementwise": forward_s, "cp_comm": exchange},
        {"elementwise": backward_s, "cp_comm": exchange},
        FORWARD[spec.kind]["kernels"],
        2.0 * (c.cp > 1),
        name="recurrence",
        sent=sent,
    )


ELEMENTWISE = ("mamba1", "conv", "rglru", "rwkv4")
"""State spaces that are scanned channel by channel, without matrix products."""


def _arithmetic_s(spec: StateSpaceSpec, c: Candidates, job: JobSpec) -> FloatArray:
    gpu = job.cluster.gpu
    if spec.kind in ELEMENTWISE:
        flops = tokens(c, job) * STATE_FLOPS[spec.kind] * spec.width * spec.state / c.tp
        return flops / gemm_flops_per_s(gpu, "fp32")
    return _chunk_flops(spec, c, job) / (ARITHMETIC_FRACTION * gemm_flops_per_s(gpu, job.attention_precision))


def _traffic_s(spec: StateSpaceSpec, moved: Mapping[str, int], c: Candidates, job: JobSpec) -> FloatArray:
    heads, sets = _local_heads(spec, c)
    width, key = heads * spec.head_dim, sets * spec.state
    maps = 2 * np.maximum(spec.groups / c.tp, 1.0) * spec.state if spec.kind in TIMED_STATE_SPACES else 0.0
    conv = width + maps
    per_token = moved["conv"] * conv + moved["value"] * width + moved["key"] * key
    per_token = per_token + moved["state"] * width * spec.state / spec.chunk + moved["score"] * sets * spec.chunk
    return stream(job, tokens(c, job) * per_token, moved["kernels"])


def _local_heads(spec: StateSpaceSpec, c: Candidates) -> tuple[FloatArray, FloatArray]:
    """Heads of one rank, and sets of maps of its kernels: groups, or one per head in delta nets."""
    heads = spec.heads / c.tp
    return heads, heads if spec.kind in ("gdn", "kda") else np.maximum(spec.groups / c.tp, 1.0)


def _chunk_flops(spec: StateSpaceSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Scores and their products inside a chunk, states in and out.

    Mamba-2: 2 Q N per group, Q P (half is masked) + 4 N P per head and token (Dao & Gu 2024, section 6). Delta nets:
    three products with keys, two with values inside the chunk, three with the state (Yang et al. 2024, section 3.3).
    """
    heads, sets = _local_heads(spec, c)
    state, dim, chunk = spec.state, spec.head_dim, spec.chunk
    if spec.kind not in ("gdn", "kda"):
        per_token = 2 * chunk * state * sets + (chunk * dim + 4 * state * dim) * heads
    else:
        per_token = (6 * chunk * state + 4 * chunk * dim + 6 * state * dim) * heads
    return tokens(c, job) * per_token


UNGRAPHED_SHARE = 0.35
"""Share of `host_moe_s` that partial CUDA graphs leave: permutation and exchange (fitted to whole runs,
docs/model.md)."""

ROUTING_KERNELS = 12
"""Kernels of routing and permutation: softmax, top-k, sorting, counting, permute and unpermute (Megatron-LM)."""


PROBABILITY_BYTES, ROUTING_BYTES = 4, 1
"""What HybridEP sends beside a token for each expert, and before that of the choices of all (docs/model.md;
deepseek-ai/DeepEP, branch hybrid-ep, csrc/hybrid_ep: expert_output_prob, allgather_routing_map)."""


DEEPEP_SMS = 20
"""SMs that copy for DeepEP (`Buffer.num_sms`; Megatron-LM `moe_deepep_num_sms`), which bound its rate over NVLink
(deepseek-ai/DeepEP, branch hybrid-ep, Hybrid-EP_Implementation.md)."""


SUM_PASSES = 3
"""Reads and writes of adding two tensors up where no compiler sees both: outputs of routed and shared experts,
gradients of their common input (Megatron-LM core/transformer/moe/moe_layer.py)."""


class ExpertTraffic(NamedTuple):
    """What the element-wise work of routed experts moves, forward and backward [bytes]."""

    #: per element of the rows that leave a rank, where these are sorted for the exchange (AllToAll), and of those that
    #: arrive: sorting by expert, and weighting and adding up what comes back. DeepEP's and HybridEP's kernels read
    #: tokens as they lie, and add them up (Megatron-LM `_DeepepManager`, `_HybridEPManager`).
    permute: tuple[float, float]
    #: per element of a clamped gated activation, beyond a plain one, with the first product's bias (gpt-oss).
    clamp: tuple[float, float]
    bias: tuple[float, float]  #: per element of the experts' output, where they have a bias.


EXPERT_TRAFFIC = {
    None: ExpertTraffic((8, 8), (16, 20), (28, 40)),
    True: ExpertTraffic((8, 8), (0, 4), (0, 2)),
    False: ExpertTraffic((15, 23), (36, 76), (8, 4)),
}
"""By `RuntimeSpec.compile` (docs/model.md, "Bytes that kernels move"): kernels of the framework (Megatron-LM
core/fusions, --moe-permute-fusion; fused_bias_geglu.py, `weighted_bias_quick_geglu_impl`;
core/transformer/moe/experts.py, `TEGroupedMLP._apply_bias`), compiled (one kernel between two products, and sums for
the gradients of the biases), a chain of eager operations (torchtitan, models/common/token_dispatcher.py and
models/gpt_oss/moe.py)."""


def mlp_segments(mlp: MlpSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time a dense feed-forward block."""
    linears = mlp_linears(job.model.hidden, mlp)
    return [_feed_forward("feed-forward", linears, (mlp.ffn, mlp.input_matrices), c, job, tp, MLP)]


def shared_expert_segments(moe: MoeSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time the experts that every token goes through, a dense feed-forward block; nothing where there are none."""
    if not moe.shared_ffn:
        return []
    linears = [one for one in moe_dense_linears(job.model.hidden, moe) if one.name in {"shared_fc1", "shared_fc2"}]
    inner = moe.shared_ffn, moe.input_matrices
    return [_feed_forward("shared experts", linears, inner, c, job, tp, MOE | SHARED_EXPERTS)]


def _feed_forward(
    name: str,
    linears: Sequence[Linear],
    inner: tuple[int, int],
    c: Candidates,
    job: JobSpec,
    tp: TensorParallelTime,
    modules: int,
) -> Segment:
    """Two projections with an activation between; `inner` is its width and its operands."""
    width, inputs = inner
    kernels = 3 + (inputs if "activation" in job.runtime.unfused else 0)
    beside = _activation_s(job, tokens(c, job), width / c.tp, inputs)
    return _products(name, linears, c, job, tp, kernels, beside, modules)


def _activation_s(job: JobSpec, rows: FloatArray, width: FloatArray, inputs: int) -> tuple[FloatArray, FloatArray]:
    """Reads `inputs` operands and writes one; backward reads one more, writes `inputs`. Unfused and gated, the
    activation is written and read once more in each direction."""
    element = rows * width * job.activation_bytes
    extra = 2 if "activation" in job.runtime.unfused and inputs > 1 else 0
    return stream(job, element * (inputs + 1 + extra), 1), stream(job, element * (2 * inputs + 1 + extra), 1)


def moe_segments(moe: MoeSpec, c: Candidates, job: JobSpec) -> list[Segment]:
    """Time the routed experts: router, permutation, exchange, grouped experts; then their activation."""
    hidden = job.model.hidden
    routed = routed_tokens(moe, c, job)
    local_experts = moe.experts // c.ep
    router = moe_dense_linears(hidden, moe)[0]
    of_all = {linear.name: linear_times(linear, c, job) for linear in (router, *latent_linears(hidden, moe))}
    each = routed / local_experts
    of_all |= {one.name: linear_times(one, c, job, each, local_experts) for one in expert_linears(hidden, moe)}
    times = list(of_all.values())
    sorted_first = _by_nccl(c, job) | (c.ep == 1)  # DeepEP and HybridEP pick tokens as they lie
    own = tokens(c, job) / c.sequence_split
    leaving = np.where(sorted_first, own * moe.top_k, 0.0)
    arriving = np.where(sorted_first & (local_experts == 1), 0.0, routed)  # those of one expert are in order
    copies = (leaving + arriving) * moe.expert_width(hidden)
    traffic, wide = EXPERT_TRAFFIC[job.runtime.compile], job.activation_bytes / 2
    biased = routed * moe.expert_width(hidden) * moe.expert_bias
    moved_forward, moved_backward = (
        stream(job, copies * wide * permuted, 4) + stream(job, biased * bias, 4)
        for permuted, bias in zip(traffic.permute, traffic.bias, strict=True)
    )
    if not job.runtime.compile:
        shared, summed = int(moe.shared_ffn > 0), SUM_PASSES * job.activation_bytes * own * hidden
        moved_forward = moved_forward + stream(job, shared * summed, shared)
        moved_backward = moved_backward + stream(job, (1 + shared) * summed, 1 + shared)
    issue_s = moe_issue_s(moe, c, job)
    sent, waiting = _expert_exchange(moe, c, job), _without_lead_s(issue_s, c, job)
    exchange, exchange_back = sent_s(sent, "forward"), sent_s(sent, "backward")
    both = beside_another_microbatch(c, job) & (c.ep > 1)  # then the CPU issues both passes between two counts
    experts = Segment(
        gemm_breakdown(times, "forward", moved_forward, launch=waiting, ep_comm=exchange),
        gemm_breakdown(times, "backward", moved_backward, launch=waiting * both, ep_comm=exchange_back),
        ROUTING_KERNELS + launched(times) - len(times),
        2.0 * (c.ep > 1),
        MOE,
        gemm_breakdown(times[-1:], "forward", moved_forward / 2, ep_comm=exchange_back / 2),
        issue_s,
        "experts",
        tuple(of_all.items()),
        sent,
    )
    forward, backward = _activation_s(job, routed, moe.ffn / c.etp, moe.input_matrices)
    if moe.expert_bias:
        clamped = routed * moe.ffn / c.etp
        clamp_forward, clamp_backward = (stream(job, clamped * moved, 4) for moved in traffic.clamp)
        forward, backward = forward + clamp_forward, backward + clamp_backward
    activation = Segment({"elementwise": forward}, {"elementwise": backward}, 1, modules=MOE | MOE_ACT)
    return [experts, activation._replace(name="expert activation")]


def _without_lead_s(issue_s: FloatArray, c: Candidates, job: JobSpec) -> FloatArray:
    """Time that the GPU waits in the forward pass of a layer with experts, because the CPU has waited for the counts of
    tokens (docs/model.md; Megatron-LM `MoEAlltoAllTokenDispatcher.cuda_sync_point`)."""
    known = (c.ep == 1) & job.runtime.sizes_on_gpu | (job.runtime.routing == "dropping")
    return np.where(known, 0.0, issue_s)


def moe_issue_s(moe: MoeSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Time that the CPU takes to issue one pass of a layer with experts, shape (N,) [s] (docs/model.md); partial graphs
    replay `cuda_graph_scope` of attn, moe_router and moe_preprocess (NVIDIA's recipes)."""
    runtime = job.runtime
    if runtime.cuda_graphs == "full":
        return np.zeros(len(c))
    casts = RECIPES[job.recipe][2] if job.precision in {"fp8", "fp4"} else 0
    experts_s = 2 * (1 + casts) * runtime.host_expert_s * moe.experts / c.ep
    return runtime.host_moe_s * (UNGRAPHED_SHARE if runtime.cuda_graphs == "partial" else 1.0) + experts_s


def beside_another_microbatch(c: Candidates, job: JobSpec) -> BoolArray:
    """Whether each candidate's expert exchange runs beside the computation of another microbatch, shape (N,): of
    DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1), and of Megatron-LM under `RuntimeSpec.overlap_ep`, for
    which 1F1B has none at hand."""
    return (c.schedule == DUALPIPE) | (job.runtime.overlap_ep & ((c.pp == 1) | (c.vpp > 1)))


def _expert_exchange(moe: MoeSpec, c: Candidates, job: JobSpec) -> tuple[Sent, ...]:
    """Dispatch and combine, forward and backward, and gathering over ETP where experts are cut; HybridEP first gathers
    the choices of all ranks, and sends probabilities (`PROBABILITY_BYTES`)."""
    own = tokens(c, job) / c.sequence_split
    imbalance, apart = job.busiest_expert_rank(c.ep), strides(c, job)
    copy_bytes = own * moe.expert_width(job.model.hidden) * job.activation_bytes * imbalance
    exchange = weighted = _exchange(moe, copy_bytes, c, job)
    choices: tuple[Sent, ...] = ()
    if job.runtime.dispatcher == "hybridep":
        in_domain = units(job.cluster, c.ep, apart.ep)[0] * (moe.experts // c.ep)
        weighted = _exchange(moe, copy_bytes + own * imbalance * in_domain * PROBABILITY_BYTES, c, job)
        routing = collective(job, "allgather", own * c.ep * moe.experts * ROUTING_BYTES, c.ep, apart.ep)
        choices = (Sent("ep", "choices of experts", (routing,), 1.0),)  # the backward pass knows them
    send, sp = copy_bytes * moe.top_k, c.sp == 1
    etp = np.where(sp, c.etp, 1)
    gather = collective(job, "allgather", send * etp, etp, apart.etp)
    scatter = collective(job, "reducescatter", send * etp, etp, apart.etp)
    reduce = collective(job, "allreduce", send, np.where(sp, 1, c.etp), apart.etp)
    return (
        *choices,
        Sent("ep", "tokens to experts", weighted, 1.0),
        Sent("ep", "tokens back", exchange, 1.0, last=True),
        Sent("ep", "gradients to experts", exchange, backward=1.0),
        Sent("ep", "gradients back", weighted, backward=1.0),
        Sent("etp", "tokens of an expert", (gather,), 1.0, 1.0),
        Sent("etp", "outputs of an expert", (scatter,), 1.0, 1.0, last=True),
        Sent("etp", "outputs of an expert", (reduce,), 1.0, 1.0, last=True),
    )


def _by_nccl(c: Candidates, job: JobSpec) -> BoolArray:
    """It was chosen, or others would have to write into the memory of other nodes."""
    across = units(job.cluster, c.ep, strides(c, job).ep)[1] > 1
    return (across & (not writes_remotely(job.cluster))) | (job.runtime.dispatcher == "alltoall")


def _exchange(moe: MoeSpec, copy_bytes: FloatArray, c: Candidates, job: JobSpec) -> tuple[GroupCall, ...]:
    """Every copy of a token by NCCL, or one for each node and, beside it, one for each GPU in it."""
    apart, dispatcher = strides(c, job).ep, job.runtime.dispatcher
    parts: tuple[GroupCall, ...] = ()
    by_nccl = _by_nccl(c, job)
    if by_nccl.any() or not writes_remotely(job.cluster):
        parts = (collective(job, "alltoall", copy_bytes * moe.top_k * by_nccl, c.ep, apart),)
    if dispatcher == "alltoall":
        return parts
    routing = Routing(moe.top_k, moe.groups, moe.top_groups, moe.experts)
    sms, by = (DEEPEP_SMS, job.runtime.transport) if dispatcher == "deepep" else (None, "nvshmem")
    inside, nodes = units(job.cluster, c.ep, apart)
    once = copy_bytes * ~by_nccl
    times = deduplicated_s(job.cluster, copy_bytes, c.ep, apart, routing, sms=sms, transport=by)
    in_node, between = (once * distinct_targets(targets, routing) for targets in (c.ep, nodes))
    return (
        *parts,
        GroupCall("alltoall", in_node, inside, apart, times.inside_s * ~by_nccl, "in the node"),
        GroupCall("alltoall", between, nodes, inside * apart, times.across_s * ~by_nccl, "between nodes"),
    )
