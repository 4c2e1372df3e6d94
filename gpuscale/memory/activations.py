"""Activations saved for the backward pass, itemised by operator as by Korthikanti et al. 2022 (arXiv 2205.05198,
section 4), with fused attention (no score matrix is saved), gated MLPs, latent attention, state spaces and routed
experts added. What frameworks do differently is in `MemoryProfile`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from gpuscale.architecture.parameters import (
    Linear,
    adapters,
    attention_linears,
    dense_linears,
    expert_linears,
    mlp_linears,
    moe_dense_linears,
    state_space_linears,
)
from gpuscale.arrays import BoolArray, FloatArray, IntArray
from gpuscale.layouts import arrays
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import context_split
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import AttentionSpec, LayerSpec, MlpSpec, MoeSpec, StateSpaceSpec
from gpuscale.specs.tuning import BITSANDBYTES, MATRICES

STATISTICS_BYTES = 4
"""Per row and head, the log-sum-exp that fused attention saves (Dao 2023, FlashAttention-2, section 3.1)."""

FP32 = 4

WEIGHTED_BYTES = 4
"""Outputs of experts that are weighted by an operation of its own are in fp32 (torchtitan, models/common/moe)."""

WIDE_NORM_READS = {False: 2, True: 3}
"""Hidden states of 16 bits that a chain of operations for an RMSNorm saves, by whether its weight is trained: its input
in 32, and what it multiplies (transformers, LlamaRMSNorm; PyTorch's composite rms_norm)."""

LAYER_KEY = ("tp", "sp", "cp", "ep", "etp", "micro_batch_size", "recompute_modules")
"""Fields of a candidate on which the activations of one layer depend."""


def tokens(candidates: Candidates, job: JobSpec) -> FloatArray:
    """Tokens of one microbatch on one context-parallel rank."""
    return candidates.micro_batch_size * (job.sequence / candidates.cp)


def hidden_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """The hidden state of one microbatch, gathered over TP; shape (N,)."""
    return tokens(c, job) * (job.activation_bytes * job.model.hidden)


def layer_activation_bytes(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Bytes saved for one layer and one microbatch, after selective recomputation; shape (N,)."""
    job = job.of_layer(kind)
    total = functools.reduce(np.add, block_activation_bytes(kind, c, job).values())
    chosen = (c.recompute_modules & arrays.EVERY_OTHER_MATMUL) > 0
    return np.where(chosen, _every_other_matmul_bytes(kind, c, job), total) if chosen.any() else total


def block_activation_bytes(kind: LayerSpec, c: Candidates, job: JobSpec) -> dict[str, FloatArray]:
    """Bytes saved for the blocks of one layer and one microbatch, and for what their norms read (of parallel blocks one
    hidden state, and one norm's output where they share it); each (N,)."""
    read = hidden_bytes(c, job) / c.sequence_split * (1 if kind.parallel_blocks else kind.blocks)
    if job.runtime.memory.wide_chains and "norm" in job.runtime.unfused and not kind.norm_bias:
        read = read * WIDE_NORM_READS[job.trains("norms")]
    if kind.parallel_blocks and kind.norms == 1:
        read = read - _norm_output_bytes(c, job)
    blocks = {"inputs of norms": read}
    if kind.attention is not None:
        blocks["attention"] = _attention_bytes(kind.attention, c, job)
    if kind.state_space is not None:
        alone = kind.blocks == 1  # a MambaLayer of Megatron-LM, which recomputes nothing
        blocks["state space"] = _state_space_bytes(kind.state_space, c, job, norm_stays=alone)
    if kind.mlp is not None:
        blocks["feed-forward"] = _mlp_bytes(kind.mlp, c, job)
    if kind.moe is not None:
        blocks["experts"] = _moe_bytes(kind.moe, c, job)
    if job.tuning is not None and job.tuning.base in job.runtime.unpacked_bytes:
        blocks["weights made 16-bit"] = _unpacked_weights(kind, c, job) * job.activation_bytes
    if width := sum(one.outputs for one in kind.beside if one.is_product):  # what each product gives is used once more
        blocks["beside"] = tokens(c, job) / c.sequence_split * (job.activation_bytes * width)
    return blocks


def _unpacked_weights(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Weights that operations of PyTorch make 16-bit before their product, which keeps them for its backward pass."""

    def weights(linears: Iterable[Linear], split: IntArray) -> FloatArray:
        kept = (one for one in linears if one.module != "router")
        return np.zeros(len(c)) + sum(one.local_inputs(split) * one.local_outputs(split) for one in kept)

    dense = weights(dense_linears(job.model.hidden, kind), c.tp)
    if kind.moe is None:
        return dense
    return dense + kind.moe.experts / c.ep * weights(expert_linears(job.model.hidden, kind.moe), c.etp)


def _narrow(job: JobSpec) -> float:
    low = job.precision in {"fp8", "fp4"} and job.runtime.memory.fp8_activations
    return 1.0 if low else float(job.activation_bytes)


def _inner_bytes(mlp: MlpSpec | MoeSpec, job: JobSpec) -> float:
    """Per element of the feed-forward width."""
    narrow = mlp.gated and job.runtime.swiglu_input_dtype == "fp8"
    return mlp.input_matrices * (1.0 if narrow else float(job.activation_bytes))


def _leaving_bytes(moe: MoeSpec, job: JobSpec) -> float:
    """One token's output of an expert, or its gradient, where it is weighted behind the expert."""
    eager = job.runtime.memory.expert_outputs and "activation" in job.runtime.unfused
    return moe.expert_width(job.model.hidden) * float(WEIGHTED_BYTES if eager else job.activation_bytes)


def _weights_learn(job: JobSpec, *operators: str) -> bool:
    """Whether inputs of operators wait for gradients of weights: theirs, or those of adapters beside them."""
    targets = None if job.tuning is None else job.tuning.targets
    if job.tuning and job.tuning.base in BITSANDBYTES and job.runtime.keeps_quantised_inputs:
        return True
    return targets is None or any(not targets.isdisjoint(MATRICES[name]) for name in operators)


def _adapter_bytes(linears: Sequence[Linear], rows: FloatArray, c: Candidates, job: JobSpec) -> FloatArray | float:
    """What adapters save of `rows` tokens: inputs of their second product, and with dropout what each reads, with a
    mask."""
    if job.tuning is None:
        return 0.0
    dropped = (job.activation_bytes + 1.0) * job.tuning.dropout
    split = c.etp if linears[0].module == "experts" else c.tp
    found = (one for linear in linears for one in adapters(linear, job.tuning, split))
    return rows * sum(job.activation_bytes * one.rank + dropped * one.inputs for one in found)


def _norm_output_bytes(c: Candidates, job: JobSpec, *, stays: BoolArray | bool = False) -> FloatArray:
    """The output of a norm, which a column-parallel product saves as its input: a shard, or whole as gathered; `stays`:
    though norms are recomputed."""
    split = 1 if job.runtime.memory.saves_gathered_inputs else c.sequence_split
    kept = hidden_bytes(c, job) / split * (_narrow(job) / job.activation_bytes)
    return np.where(((c.recompute_modules & arrays.LAYERNORM) > 0) & ~np.asarray(stays), 0.0, kept)


def _leaves_a_graph(moe: MoeSpec, c: Candidates, job: JobSpec) -> BoolArray:
    """Whether the output of the norm before experts stays in a CUDA graph's buffer: where graphs end at the router, all
    but alltoall and latent experts take it as it is (Megatron-LM, transformer_layer,
    can_recompute_pre_mlp_layernorm_for_cudagraph)."""
    takes = job.runtime.cuda_graphs == "partial" and job.runtime.dispatcher != "alltoall" and not moe.latent
    return takes & ((c.recompute_modules & arrays.MOE) == 0)


def _dropout_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    return tokens(c, job) / c.sequence_split * (job.model.hidden if job.runtime.dropout else 0)


def _attention_bytes(attention: AttentionSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Norm output, queries, keys, values (and compressed ones), core attention, its output, dropout mask."""
    heads = attention.heads / c.tp
    kv_heads = np.maximum(attention.kv_heads / c.tp, 1.0)
    if job.runtime.memory.expands_kv:
        kv_heads = heads
    multi_head = attention.heads == attention.kv_heads
    copies = 1 + job.runtime.memory.saved_kv_copies * multi_head
    width = attention.query_width / c.tp
    width = width + copies * kv_heads * (attention.head_dim + attention.value_head_dim)
    if attention.qk_norm != "none":  # what the norms of queries and keys read
        width = width + attention.query_width / c.tp + kv_heads * attention.head_dim
    latent = attention.latent
    if latent is not None:
        width = np.where(c.recompute_modules & arrays.MLA_UP_PROJ, 0.0, width)
        width = width + ((latent.query_rank or 0) + latent.kv_rank + latent.rope_dim) * 2 / c.sequence_split
    output = attention.output_width / c.tp
    # ring attention keeps its own layout of the output, besides what the projection reads
    ring = (context_split(c, job).blocks > 1) * job.activation_bytes
    # what core attention saves per head: statistics, or a row of scores where it is not fused; per score the softmax
    # takes 2 bytes, with dropout its mask 1 and its output 2 (Korthikanti et al. 2022, eq. 1), and where it works in
    # fp32 its result in that too (transformers, eager_attention_forward: softmax with dtype float32, cast back)
    row: FloatArray | float = STATISTICS_BYTES
    if job.attention == "unfused":
        wide = FP32 * job.runtime.memory.wide_chains
        row = job.sequence / c.cp * (job.activation_bytes * (1 + job.runtime.dropout) + job.runtime.dropout + wide)
    core = heads * np.where(c.recompute_modules & arrays.CORE_ATTN, 0.0, row)
    per_token = job.activation_bytes * width + output * (job.activation_bytes + ring) + core
    if attention.output_gate:
        per_token = per_token + 2 * job.activation_bytes * output
    total = tokens(c, job) * per_token + _dropout_bytes(c, job)
    if _weights_learn(job, "qkv", "q_down", "kv_down"):
        total = total + _norm_output_bytes(c, job)
    linears = attention_linears(job.model.hidden, attention)
    return total + _adapter_bytes(linears, tokens(c, job), c, job)


def _mlp_bytes(mlp: MlpSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Norm output, inputs of the activation function, its output (the last product's input), dropout mask."""
    wide = _inner_bytes(mlp, job) + _narrow(job) * _weights_learn(job, "fc2")
    if mlp.gated and "activation" in job.runtime.unfused:
        wide += job.activation_bytes  # the activated gate, before the product with the other half
    inner = np.where(c.recompute_modules & arrays.MLP, 0.0, tokens(c, job) * wide * mlp.ffn / c.tp)
    read = _norm_output_bytes(c, job) if _weights_learn(job, "fc1") else 0.0
    beside = _adapter_bytes(mlp_linears(job.model.hidden, mlp), tokens(c, job), c, job)
    return inner + read + beside + _dropout_bytes(c, job)


def _state_space_bytes(spec: StateSpaceSpec, c: Candidates, job: JobSpec, *, norm_stays: bool) -> FloatArray:
    """Norm output, input projection, output of the recurrence and the gated norm behind it; the fused kernel of Mamba-2
    recomputes the rest (state-spaces/mamba, ssd_combined.py)."""
    own_maps = 0 if spec.conv_width > spec.width else 2 * spec.key_width
    width = (3 * spec.width + spec.conv_width + spec.heads + own_maps) / c.tp
    beside = _adapter_bytes(state_space_linears(job.model.hidden, spec), tokens(c, job), c, job)
    read = _norm_output_bytes(c, job, stays=norm_stays) if _weights_learn(job, "state_in") else 0.0
    return tokens(c, job) * job.activation_bytes * width + beside + read


def _moe_bytes(moe: MoeSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Norm output, routed tokens as they enter the experts, inner activations, shared experts, router logits."""
    modules = c.recompute_modules
    routed = routed_tokens(moe, c, job)
    adapted = job.tuning is None or job.tuning.experts
    into, out = (adapted and _weights_learn(job, name) for name in ("expert_fc1", "expert_fc2"))
    entering = moe.expert_width(job.model.hidden) * _narrow(job) * into
    inner = _inner_bytes(moe, job) + np.where(modules & arrays.MOE_ACT, 0.0, _narrow(job) * out)
    if moe.gated and "activation" in job.runtime.unfused:
        # the activated gate; in gpt-oss the clamped gate, its sigmoid and the other half clamped as well
        inner = inner + job.activation_bytes * (4 if moe.expert_bias else 1)
    entering += _leaving_bytes(moe, job) * job.runtime.memory.expert_outputs
    experts = routed * (entering + inner * moe.ffn / c.etp)
    experts = experts + _adapter_bytes(expert_linears(job.model.hidden, moe), routed, c, job)
    token_count = tokens(c, job)
    wide = _inner_bytes(moe, job) + _narrow(job) * _weights_learn(job, "shared_fc2")
    beside = _adapter_bytes(moe_dense_linears(job.model.hidden, moe), token_count, c, job)
    shared = np.where(modules & arrays.SHARED_EXPERTS, 0.0, token_count * wide * moe.shared_ffn / c.tp + beside)
    router = token_count / c.sequence_split * STATISTICS_BYTES * moe.experts
    kept = np.where(modules & arrays.MOE, 0.0, experts + shared + router)
    learns = into or (moe.shared_ffn > 0 and _weights_learn(job, "shared_fc1"))
    read = _norm_output_bytes(c, job, stays=_leaves_a_graph(moe, c, job)) if learns else 0.0
    return kept + read


def _every_other_matmul_bytes(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """torchtitan's selective checkpointing by operator: layer input, every other product (queries, values, first half
    of the MLP, and its output, which compiled code drops), attention output.

    Projections with biases (`addmm`) are not counted and all saved; grouped products of experts are not on the list,
    nor was the attention of cuDNN while that was for Blackwell only (torchtitan distributed/activation_checkpoint.py;
    pull requests 2095 and 2357).
    """
    width = np.zeros(len(c))
    if kind.attention is not None:
        attention = kind.attention
        width = width + (attention.query_width + attention.value_width) / c.tp
        if attention.qkv_bias and attention.output_bias:
            width = width + attention.key_width / c.tp + job.model.hidden / c.sequence_split
        if (job.runtime.attention, job.attention) != ("sdpa2025", "native"):
            width = width + attention.output_width / c.tp
    if kind.mlp is not None:
        width = width + kind.mlp.ffn / c.tp
        if kind.mlp.gated and job.runtime.compile is False:
            width = width + job.model.hidden
    if kind.moe is not None:
        width = width + kind.moe.shared_ffn / c.tp
    return hidden_bytes(c, job) / c.sequence_split + tokens(c, job) * job.activation_bytes * width


def routed_tokens(moe: MoeSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Token copies that the busiest expert-parallel rank processes in one layer of one microbatch; experts cut
    `etp`-fold see the tokens of `etp` GPUs."""
    own = tokens(c, job) / c.sequence_split
    imbalance = job.busiest_expert_rank(c.ep)
    sharers = np.where(c.sp == 1, c.etp, 1)
    return own * moe.top_k * sharers * imbalance


def microbatches_in_flight(c: Candidates, position: FloatArray) -> FloatArray:
    """Microbatches whose activations a stage holds at its peak, in whole-stage units; shape (P, N); `position`: index
    of each evaluated stage in the pipeline.

    1F1B: pp - s at stage s (Narayanan et al. 2021, arXiv 2104.04473, section 2.2). Interleaved: (pp - s - 1) * 2 + (vpp
    - 1) * pp + 1 chunks of 1/vpp stage each (Megatron-LM schedules). GPipe: all. ZB-H1 and ZB-V: pp; ZB-2P: 2 pp - 1
    (Qi et al. 2024, arXiv 2401.10241, table 2 and section 6). DualPipe: pp + 1 (DeepSeek-V3, arXiv 2412.19437, table
    2).
    """
    pp, vpp, count = c.pp, c.vpp, c.num_microbatches
    held = pp - position
    if c.schedule.any():
        held = np.choose(c.schedule, (held, count, pp, 2 * pp - 1, pp, pp + 1))
    chunks = np.minimum((pp - position - 1) * 2 + (vpp - 1) * pp + 1, count * vpp)
    interleaved = (vpp > 1) & (c.schedule == arrays.ONE_F_ONE_B)
    return np.where(interleaved, chunks / vpp, np.minimum(held, count))


def widest_gradient_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Gradients at the widest point inside a layer's backward pass, besides that of the hidden state; (N,): of the
    activation function's inputs (of eager gating, of each of its operations), or of the scores. An adapter, but for
    fused kernels, has those of its output, scaled, and of its input (y = W x + s B A x)."""
    widest, eager = np.zeros(len(c)), 2 if "activation" in job.runtime.unfused else 0
    for kind in job.model.trained_kinds:
        if kind.mlp is not None:
            matrices = kind.mlp.input_matrices + (eager if kind.mlp.gated else 0)
            width = matrices * kind.mlp.ffn / c.tp
            if job.tuning and job.runtime.adapters != "fused" and job.tuning.targets & {"gate", "up"}:
                width = width + kind.mlp.ffn / c.tp + job.model.hidden
            widest = np.maximum(widest, tokens(c, job) * job.activation_bytes * width)
        elif kind.moe is not None:
            matrices = kind.moe.input_matrices + (eager if kind.moe.gated else 0)
            width = job.activation_bytes * matrices * kind.moe.ffn / c.etp + _leaving_bytes(kind.moe, job)
            widest = np.maximum(widest, routed_tokens(kind.moe, c, job) * width)
        if kind.attention is not None and job.attention == "unfused":
            scores = tokens(c, job) * (job.sequence / c.cp) * kind.attention.heads / c.tp
            widest = np.maximum(widest, 2 * job.activation_bytes * scores)
    return widest
