"""FLOPs per token, itemised. One multiply-add is 2 FLOPs; only matrix products are counted: no norms, activations,
softmax, rotary embedding, lookup, optimizer or recomputation. The backward pass costs twice the forward pass: 3 x
forward are the *model* FLOPs of an MFU (PaLM, arXiv 2204.02311, appendix B).

How many keys a query meets is a convention, which the caller chooses and says. `causal` counts the pairs that a causal
mask leaves, (S+1)/2 keys on average, or exactly those inside a window, as Megatron-LM since core 0.12 (2025),
Megatron-Bridge and NeMo 25.09+ do (as S/2). `full` counts all S keys, or the whole window, as PaLM's appendix B,
Narayanan et al. 2021 (eq. 3), Korthikanti et al. 2022 (appendix A), Megatron-LM up to core 0.11 and nanotron do.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from gpuscale.architecture.parameters import beside_linears, count_adapters, dense_linears, expert_linears
from gpuscale.arrays import FloatArray, added_up
from gpuscale.errors import InputError
from gpuscale.specs.model import MAX_SEQUENCE, AttentionSpec, LayerSpec, ModelSpec
from gpuscale.specs.tuning import TuningSpec

Number: TypeAlias = FloatArray | float
Convention: TypeAlias = Literal["causal", "full"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


class FlopsPerToken(NamedTuple):
    """FLOPs per token [FLOP/token] of one pass, numbers or arrays over sequence lengths."""

    qkv: Number  #: query, key and value projections (with latent attention: all down- and up-projections).
    attention_core: Number  #: query x key and attention x value, by the convention of the call.
    attention_output: Number  #: output projection.
    indexer: Number  #: choice of keys in DeepSeek sparse attention: its projections and scores.
    state_space: Number  #: a state space in the place of attention: projections, convolution and recurrence.
    mlp: Number  #: dense feed-forward blocks.
    router: Number  #: router and shared-expert gate.
    routed_experts: Number  #: the `top_k` experts that a token visits.
    shared_experts: Number  #: the experts that every token visits.
    expert_latent: Number  #: projections into and out of the latent width of the routed experts.
    beside: Number  #: small products beside the blocks of a layer, the embedding and the LM head.
    lm_head: Number = 0.0  #: logits.
    mtp: Number = 0.0  #: multi-token-prediction modules that training runs have, with their logits.

    @property
    def total(self) -> Number:
        """Sum of all items."""
        return added_up(self)


DEFAULT_SEQUENCE = 4096


def checked_sequence(model: ModelSpec, sequence: int | None) -> int:
    """Return `sequence` [tokens], or where it is None 4096 or the model's longest, whichever is less. A longer one is
    allowed (long-context training), unless positions are learned.

    Raises:
        InputError: not in 1..2^31, or longer than the learned positions.
    """
    if sequence is None:
        return min(DEFAULT_SEQUENCE, model.max_sequence)
    if not 1 <= sequence <= MAX_SEQUENCE:
        raise InputError(f"{sequence} tokens is out of range", field="seq", hint=f"give 1 to {MAX_SEQUENCE:,}")
    if model.learned_positions and sequence > model.learned_positions:
        message = f"{model.name} has {model.learned_positions} learned positions, fewer than {sequence} tokens"
        hint = f"give at most {model.learned_positions}"
        raise InputError(message, field="seq", hint=hint)
    return sequence


def training_flops_per_token(
    model: ModelSpec, sequence: Number, convention: Convention, tuning: TuningSpec | None = None
) -> Number:
    """Model FLOPs of forward and backward per token [FLOP/token], for an MFU: trained multi-token-prediction modules
    included, recomputation not; of frozen weights without their gradients, with those of adapters."""
    forward = forward_flops(model, sequence, convention)
    if tuning is None:
        return 3.0 * forward.total
    scores = forward.attention_core + forward.indexer + forward.state_space
    weights = forward.total - scores - forward.lm_head * ("head" in tuning.trained)
    return 3.0 * forward.total - weights + 6.0 * count_adapters(model, tuning).active


def forward_flops(model: ModelSpec, sequence: Number, convention: Convention) -> FlopsPerToken:
    """Itemise the forward pass of `model` per token; the items have the shape of `sequence` [tokens]. `convention` is
    `causal` or `full`, see the module."""
    kinds = [layer_forward_flops(kind, model.hidden, sequence, convention) for kind in model.kinds]
    counts, items = model.layer_counts, zip(*kinds, strict=True)
    sums = (added_up(count * one for count, one in zip(counts, item, strict=True)) for item in items)
    mtp = mtp_forward_flops(model, sequence, convention) if model.mtp_depth else 0.0
    found = FlopsPerToken(*sums)
    ends = 2.0 * sum(one.weights for one in beside_linears((*model.at_embedding, *model.at_head)))
    return found._replace(lm_head=2.0 * model.hidden * model.vocab, mtp=mtp, beside=found.beside + ends)


def mtp_forward_flops(model: ModelSpec, sequence: Number, convention: Convention) -> Number:
    """Forward FLOPs per token of all multi-token-prediction modules, trained or not: each has its layers, a 2h x h
    projection and logits (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
    if model.mtp is None:
        return 0.0
    layers = added_up(layer_forward_flops(kind, model.hidden, sequence, convention).total for kind in model.mtp.layers)
    return model.mtp.depth * (layers + 4.0 * model.hidden**2 + 2.0 * model.hidden * model.vocab)


def layer_forward_flops(layer: LayerSpec, hidden: int, sequence: Number, convention: Convention) -> FlopsPerToken:
    """Itemise the forward pass of one layer of width `hidden` per token; `lm_head` and `mtp` are 0."""
    attention, moe, spec = layer.attention, layer.moe, layer.state_space
    linears = dense_linears(hidden, layer)

    def products(module: str) -> float:
        return 2.0 * sum(linear.weights for linear in linears if linear.module == module)

    output = 2.0 * sum(linear.weights for linear in linears if linear.name in {"out_down", "out_proj"})
    gate = 2.0 * sum(linear.weights for linear in linears if linear.name == "shared_gate")
    core: Number = 0.0
    indexer: Number = 0.0
    if attention:
        keys = attended_keys(sequence, attention, convention)
        core = 2.0 * attention.heads * (attention.head_dim + attention.value_head_dim) * keys
        if attention.indexer and not attention.indexer.shared:  # and the scores of all earlier tokens
            scores = 2.0 * attention.indexer.heads * attention.indexer.head_dim
            indexer = products("indexer") + scores * average_keys(sequence, None, convention)
    # convolution (2 FLOPs per tap) and recurrence, which does not grow with the sequence
    recurrence = 2.0 * spec.conv * spec.conv_width + STATE_FLOPS[spec.kind] * spec.width * spec.state if spec else 0.0
    return FlopsPerToken(
        qkv=products("attention") - output,
        attention_core=core,
        attention_output=output,
        indexer=indexer,
        state_space=products("state_space") + recurrence,
        mlp=products("mlp"),
        router=products("router") + gate,
        routed_experts=2.0 * moe.top_k * sum(one.weights for one in expert_linears(hidden, moe)) if moe else 0.0,
        shared_experts=products("shared_experts") - gate,
        expert_latent=products("expert_latent"),
        beside=products("beside"),
    )


STATE_FLOPS = {
    "mamba2": 7.0, "gdn": 8.0, "kda": 8.0,
    "mamba1": 9.0, "conv": 2.0, "rglru": 8.0, "rwkv4": 12.0, "mlstm": 6.0, "lightning": 6.0,
}  # fmt: skip
"""FLOPs per element of the state and token. mamba2, gdn, kda: as Megatron-LM counts them
(`num_floating_point_operations`). mamba1: 9 (state-spaces/mamba issue 110: decay 3, input 3, state 2, output 1).
Lightning attention and the mLSTM: decay, outer product and read-out, 2 each. Where the state is one number per channel:
operations of the step as published (conv: two gates; RG-LRU: De et al. 2024, eq. 1 to 4; RWKV-4: Peng et al. 2023,
eq. 16)."""


def attended_keys(sequence: Number, attention: AttentionSpec, convention: Convention) -> Number:
    """Keys per query of one attention, averaged: those of its window, and compressed ones."""
    if not attention.compression:
        return average_keys(sequence, attention.reach, convention, chunked=attention.chunked)
    near = average_keys(sequence, attention.window, convention)
    blocks = np.maximum(np.asarray(sequence, dtype=np.float64) / attention.compression, 1.0)
    return near + average_keys(blocks, attention.indexer.top_k if attention.indexer else None, convention)


def average_keys(sequence: Number, window: int | None, convention: Convention, *, chunked: bool = False) -> Number:
    """Keys per query, averaged over the sequence [tokens]. `causal`: query i (from 1) meets min(i, window) keys, or its
    place inside its chunk; `full`: min(S, window)."""
    if convention not in CONVENTIONS:
        raise InputError(
            f"unknown attention convention {str(convention)[:40]!r}", hint=f"choose {' or '.join(CONVENTIONS)}"
        )
    length = np.asarray(sequence, dtype=np.float64)
    reach = length if window is None else np.minimum(length, float(window))
    if convention == "full":
        return reach[()]
    if not chunked or window is None:
        return (reach * (reach + 1) / 2 + (length - reach) * reach) / length
    rest = length % window
    return ((length - rest) * (window + 1) / 2 + rest * (rest + 1) / 2) / length
