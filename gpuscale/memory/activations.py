"""Activations saved for the backward pass, itemised by operator.

Follows Korthikanti et al. 2022 (arXiv 2205.05198, section 4) with fused attention (no softmax matrix is saved), gated
MLPs and routed experts; 16-bit activations, no dropout. Sequence parallelism splits what lies outside the
tensor-parallel region (section 4.2.2).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import (
    CORE_ATTN,
    LAYERNORM,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    SHARED_EXPERTS,
    Candidates,
    unique_rows,
)
from gpuscale.candidates.stages import LAST, StageTable
from gpuscale.memory.states import padded_vocabulary
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec, MoeSpec

FloatArray = npt.NDArray[np.float64]

ACTIVATION_BYTES = 2
"""Activations are saved in 16 bits, also under fp8 (inputs of fp8 GEMMs would take 1; see docs/model.md)."""

STATISTICS_BYTES = 4
"""Per row and head, the log-sum-exp that fused attention saves (Dao 2023, FlashAttention-2, section 3.1)."""

LOGITS_BYTES = 8
"""Per logit: 16-bit output, fp32 copy that becomes the softmax, 16-bit gradient (Megatron-LM cross entropy)."""

LAYER_KEY = ("tp", "sp", "cp", "ep", "etp", "micro_batch_size", "recompute_modules")
"""Fields of a candidate on which the activations of one layer depend."""


def tokens(candidates: Candidates, job: JobSpec) -> FloatArray:
    """Tokens of one microbatch on one context-parallel rank."""
    return candidates.micro_batch_size * (job.sequence / candidates.cp)


def layer_activation_bytes(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Bytes saved for one layer and one microbatch, after selective recomputation; shape (N,)."""
    token_count = tokens(c, job)
    outside = token_count / c.sequence_split
    modules = c.recompute_modules
    hidden_bytes = ACTIVATION_BYTES * job.model.hidden
    kept_norms = np.where(modules & LAYERNORM, 0, 2)
    total = outside * hidden_bytes * (2 + kept_norms)  # inputs of both norms, and their outputs
    total = total + token_count * _attention_bytes(kind, c)
    if kind.mlp is not None:
        width = (kind.mlp.input_matrices + 1) * kind.mlp.ffn / c.tp
        total = total + np.where(modules & MLP, 0, token_count * ACTIVATION_BYTES * width)
    if kind.moe is not None:
        total = total + _moe_bytes(kind, c, job)
    return total


def _attention_bytes(kind: LayerSpec, c: Candidates) -> FloatArray:
    """Per token: queries, keys, values (and compressed ones), attention output and its statistics."""
    attention = kind.attention
    kv_heads = np.maximum(attention.kv_heads / c.tp, 1.0)
    width = (attention.query_width + attention.output_width) / c.tp
    width = width + kv_heads * (attention.head_dim + attention.value_head_dim)
    latent = attention.latent
    if latent is not None:
        width = np.where(c.recompute_modules & MLA_UP_PROJ, attention.output_width / c.tp, width)
        width = width + ((latent.query_rank or 0) + latent.kv_rank + latent.rope_dim) * 2 / c.sequence_split
    statistics = np.where(c.recompute_modules & CORE_ATTN, 0, STATISTICS_BYTES * attention.heads / c.tp)
    return np.asarray(ACTIVATION_BYTES * width + statistics, dtype=np.float64)


def _moe_bytes(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Routed tokens as they enter the experts, the experts' inner activations, shared experts, router logits."""
    moe = kind.moe
    assert moe is not None
    token_count = tokens(c, job)
    routed = routed_tokens(moe, c, job)
    modules = c.recompute_modules
    inner = (moe.input_matrices + np.where(modules & MOE_ACT, 0, 1)) * moe.ffn / c.etp
    experts = routed * ACTIVATION_BYTES * (job.model.hidden + inner)
    shared = token_count * ACTIVATION_BYTES * (moe.input_matrices + 1) * moe.shared_ffn / c.tp
    router = token_count / c.sequence_split * 4 * moe.experts
    kept = experts + np.where(modules & SHARED_EXPERTS, 0, shared) + router
    return np.where(modules & MOE, 0.0, kept)


def routed_tokens(moe: MoeSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Token copies that the busiest expert-parallel rank processes in one layer of one microbatch.

    Each GPU of the stage owns tokens / sequence_split tokens and sends top_k copies of each; experts cut `etp`-fold
    see the tokens of `etp` GPUs.
    """
    own = tokens(c, job) / c.sequence_split
    imbalance = np.where(c.ep > 1, job.moe_imbalance, 1.0)
    sharers = np.where(c.sp == 1, c.etp, 1)
    return np.asarray(own * moe.top_k * sharers * imbalance, dtype=np.float64)


def microbatches_in_flight(c: Candidates, position: npt.NDArray[np.int64]) -> FloatArray:
    """Microbatches whose activations a stage holds at its peak, in whole-stage units; shape (N, P).

    1F1B: pp - s at stage s (Narayanan et al. 2021, arXiv 2104.04473, section 2.2). Interleaved: (pp - s - 1) * 2 +
    (vpp - 1) * pp + 1 chunks of 1/vpp stage each (Megatron-LM schedules).
    """
    pp, vpp, count = c.pp[:, None], c.vpp[:, None], c.num_microbatches[:, None]
    plain = np.minimum(pp - position, count)
    chunks = np.minimum((pp - position - 1) * 2 + (vpp - 1) * pp + 1, count * vpp)
    return np.where(vpp > 1, chunks / vpp, plain)


def activation_bytes(c: Candidates, job: JobSpec, stages: StageTable, stage_row: npt.NDArray[np.intp]) -> FloatArray:
    """Activations of all microbatches in flight at each stage, shape (N, P)."""
    per_layer, back = _per_layer(c, job)
    counts = stages.counts[stage_row]
    layers = counts.sum(axis=2)
    stage_bytes = np.einsum("nsk,nk->ns", counts, per_layer[back])
    inputs = _layer_input_bytes(c, job)[:, None]
    whole = np.minimum(c.recompute_layers[:, None], layers)
    share = whole / np.maximum(layers, 1)
    kept = stage_bytes * (1 - share) + inputs * whole
    in_flight = microbatches_in_flight(c, stages.position[stage_row])
    return np.asarray(kept * in_flight, dtype=np.float64)


def _per_layer(c: Candidates, job: JobSpec) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    rows, back = unique_rows(c, LAYER_KEY)
    return np.stack([layer_activation_bytes(kind, rows, job) for kind in job.model.kinds], axis=1), back


def _layer_input_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """The input of one layer: all that full recomputation keeps of it."""
    return np.asarray(tokens(c, job) / c.sequence_split * ACTIVATION_BYTES * job.model.hidden, dtype=np.float64)


def logits_bytes(c: Candidates, job: JobSpec, stages: int) -> FloatArray:
    """Logits and loss of one microbatch, at the last of the priced `stages` only; shape (N, stages)."""
    vocabulary = padded_vocabulary(job.model, job.vocab_multiple, c.tp) / c.tp
    size = tokens(c, job) * vocabulary * LOGITS_BYTES
    out = np.where((c.pp == 1)[:, None], size[:, None], np.zeros((1, stages)))
    out[:, LAST] = size
    return out


def workspace_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Gradients of the largest activations of one layer, and that layer itself when it is recomputed; shape (N,)."""
    token_count = tokens(c, job)
    widest = np.zeros(len(c))
    for kind in job.model.kinds:
        if kind.mlp is not None:
            inner = token_count * (kind.mlp.input_matrices + 1) * kind.mlp.ffn / c.tp
        else:
            assert kind.moe is not None
            inner = routed_tokens(kind.moe, c, job) * (
                (kind.moe.input_matrices + 1) * kind.moe.ffn / c.etp + job.model.hidden
            )
        widest = np.maximum(widest, inner)
    gradients = ACTIVATION_BYTES * (widest + 2 * token_count * job.model.hidden)
    per_layer, back = _per_layer(c, job)
    whole = np.where(c.recompute_layers > 0, per_layer.max(axis=1)[back], 0.0)
    return np.asarray(gradients + whole, dtype=np.float64)
