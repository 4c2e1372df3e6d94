"""What families have beside their usual blocks: small products, vectors and tables, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpuscale.presets.huggingface_config import Config
from gpuscale.specs.model import BesideSpec, LayerSpec

NO_LAYER = LayerSpec(None, None, None)


class Place(NamedTuple):
    """Where something stands beside the usual blocks."""

    config: Config  #: of the layer.
    hidden: int  #: width of the model.
    layer: LayerSpec = NO_LAYER  #: what the layer is made of so far; nothing at the embedding and the LM head.
    place: int = 0  #: its number, from 0.


Maker = Callable[[Place], Iterable[BesideSpec]]


def _product(name: str, inputs: int, outputs: int, *, bias: bool = False) -> BesideSpec:
    return BesideSpec(name, outputs, inputs, bias)


def _both(name: str, width: int, rank: int) -> tuple[BesideSpec, BesideSpec]:
    """A product through a low rank and back."""
    return _product(f"{name} down", width, rank), _product(f"{name} up", rank, width)


def _heads(at: Place) -> int:
    return at.layer.attention.heads if at.layer.attention else 0


def _head_gate(at: Place) -> Iterable[BesideSpec]:
    """One gate per head on the output of attention, where the family has it or its config says so."""
    if _heads(at) and at.config.flag("use_attention_gate", default=True):
        yield _product("gate per head", at.hidden, _heads(at))


def _either_gate(at: Place) -> Iterable[BesideSpec]:
    """One gate per head, or one on each of its outputs (Laguna's `gating`)."""
    per_head = at.config.value("gating", default=True) in (True, "per-head")
    return (_head_gate if per_head else _output_gate)(at)


def _output_gate(at: Place) -> Iterable[BesideSpec]:
    """A gate on all of the attention's output, of a projection of its own."""
    if at.layer.attention:
        yield _product("output gate", at.hidden, at.layer.attention.output_width)


def _gate_bias(at: Place) -> Iterable[BesideSpec]:
    yield BesideSpec("bias of head gates", _heads(at))


def _router_bias(at: Place) -> Iterable[BesideSpec]:
    """A load-balancing bias that the class holds among its parameters, though no gradient reaches it."""
    if at.layer.moe:
        yield BesideSpec("load-balancing bias", at.layer.moe.experts)


def _after_experts(at: Place) -> Iterable[BesideSpec]:
    if at.layer.moe:
        yield BesideSpec("norm behind experts", at.hidden)


def _zero_experts(at: Place) -> Iterable[BesideSpec]:
    """Experts that compute nothing (LongCat-Flash): the router has them, and transformers' class their gates too."""
    zero = at.config.optional("zero_expert_num", low=0) or 0
    if at.layer.moe and zero:
        yield _product("router of zero experts", at.hidden, zero)
        yield BesideSpec("unused weights of zero experts", zero * 2 * at.layer.moe.ffn * at.hidden)


def _activation(at: Place) -> Iterable[BesideSpec]:
    if at.layer.mlp:
        yield BesideSpec("slopes of the activation", 2)


def _inner_norms(at: Place) -> Iterable[BesideSpec]:
    """Norms before the output projection and inside the MLP (BitNet)."""
    yield BesideSpec("norms inside the blocks", at.hidden + (at.layer.mlp.ffn if at.layer.mlp else 0))


def _differential(at: Place) -> Iterable[BesideSpec]:
    if at.layer.attention:
        yield BesideSpec("weights of the difference", 4 * at.layer.attention.head_dim)


def _dynamic_mask(at: Place) -> Iterable[BesideSpec]:
    """The mask that Doge makes of values, and its scales of residuals."""
    yield BesideSpec("scales of residuals", 2 * at.hidden)
    if at.layer.attention:
        keys = at.layer.attention.kv_heads
        yield BesideSpec("slopes of the mask", keys)
        yield _product("mask", at.layer.attention.value_width, keys, bias=at.config.flag("attention_bias"))


def _norm_biases(at: Place) -> Iterable[BesideSpec]:
    if at.layer.attention and at.layer.attention.qk_norm == "head":
        yield BesideSpec("biases of query and key norms", 2 * at.layer.attention.head_dim)


def _last_output_bias(at: Place) -> Iterable[BesideSpec]:
    if at.place == at.config.integer("num_hidden_layers") - 1:
        yield BesideSpec("bias of the attention output", at.hidden)


def _mixing(at: Place) -> Iterable[BesideSpec]:
    """The receptance and the token shift of RWKV's channel mixing."""
    yield _product("receptance", at.hidden, at.hidden)
    yield BesideSpec("token shift", 2 * at.hidden)


def _altup(at: Place) -> Iterable[BesideSpec]:
    """Alternating updates and the low-rank residual of Gemma 3n."""
    streams, rank = at.config.integer("altup_num_inputs"), at.config.integer("laurel_rank")
    yield _product("modality router", at.hidden, streams)
    yield _product("prediction of streams", streams, streams**2)
    yield _product("correction of streams", streams, streams)
    yield BesideSpec(
        "norm and scale of streams", at.hidden * (2 if at.config.flag("altup_correct_scale", default=True) else 1)
    )
    yield from _both("low-rank residual", at.hidden, rank)
    yield BesideSpec("norm of the residual", at.hidden)


def _per_layer_input(at: Place) -> Iterable[BesideSpec]:
    width = at.config.optional("hidden_size_per_layer_input", low=0)
    if width:
        yield from _both("per-layer embedding", at.hidden, width)
        yield BesideSpec("norm of the per-layer embedding", at.hidden)


def _experts_beside(at: Place) -> Iterable[BesideSpec]:
    """Norms of the experts beside Gemma 4's dense block, scales of their router."""
    if at.layer.moe:
        yield BesideSpec("norms of dense and routed output", 3 * at.hidden)
        yield BesideSpec("scales of the router", at.hidden + at.layer.moe.experts)


def _low_rank_norms(at: Place) -> Iterable[BesideSpec]:
    """Norms with a low-rank gate (A.X K2): that of attention, and that of experts."""
    rank = at.config.integer("gated_norm_rank")
    yield from _both("gate of the attention norm", at.hidden, rank)
    if at.layer.moe:
        yield from _both("gate of the experts' norm", at.hidden, rank)


def _gated_queries(at: Place) -> Iterable[BesideSpec]:
    """A.X K2 makes queries and output gates of two compressed vectors, where other latent attention has one."""
    attention = at.layer.attention
    if attention and attention.latent and attention.latent.query_rank:
        more = attention.query_width + 2 * attention.output_width
        yield _product("gates and second half of queries", attention.latent.query_rank, more)


def _rotary_norm(at: Place) -> Iterable[BesideSpec]:
    if at.layer.attention and at.layer.attention.latent:
        yield BesideSpec("norm of rotary keys", at.layer.attention.latent.rope_dim)


def _connections(at: Place) -> Iterable[BesideSpec]:
    """Hyper-connections (Zhu et al. 2024, arXiv 2409.19606; with a doubly stochastic mix in DeepSeek-V4): in front of
    each of both blocks."""
    streams = at.config.integer("hc_mult")
    mixes, scales = (streams * (streams + 2), 3) if at.config.optional("hc_sinkhorn_iters") else (2 * streams, 2)
    for block in ("attention", "feed-forward"):
        yield _product(f"hyper-connection of {block}", streams * at.hidden, mixes)
        yield BesideSpec(f"base and scales of {block}", mixes + scales)


def _compressor(at: Place) -> Iterable[BesideSpec]:
    """What makes DeepSeek-V4's compressed keys, and its indexer's; the norm of plain keys."""
    attention = at.layer.attention
    if attention is None:
        return
    dim, overlap = attention.head_dim, 2 if attention.indexer else 1  # chosen keys overlap, so that each has two parts
    yield BesideSpec("norms of keys", 2 * dim if attention.compression else dim)
    if not attention.compression:
        return
    yield _product("compressor", at.hidden, 2 * overlap * dim)
    yield BesideSpec("positions in a compressed key", attention.compression * overlap * dim)
    if attention.indexer:
        heads, own = at.config.integer("index_n_heads"), at.config.integer("index_head_dim")
        yield _product("compressor of the indexer", at.hidden, 2 * overlap * own)
        yield BesideSpec("positions and norm of the indexer", attention.compression * overlap * own + own)
        yield _product("queries of the indexer", attention.query_rank, heads * own)
        yield _product("weights of the indexer", at.hidden, heads)


def _relative(at: Place) -> Iterable[BesideSpec]:
    """Relative positions and short convolutions of Inkling."""
    attention = at.layer.attention
    if attention is None:
        return
    rank, taps = at.config.integer("d_rel"), at.config.integer("conv_kernel_size")
    window = at.config.integer("sliding_window")
    reach = at.config.integer("rel_extent") if attention.window is None else window
    yield _product("relative positions", at.hidden, attention.heads * rank)
    yield BesideSpec("relative logits", rank * reach)
    yield BesideSpec("convolutions", taps * (attention.key_width + attention.value_width + 2 * at.hidden))


def _expert_sinks(at: Place) -> Iterable[BesideSpec]:
    """Shared experts that the router weighs too, and the scale of all (Inkling)."""
    if at.layer.moe:
        yield _product("router of shared experts", at.hidden, at.config.integer("n_shared_experts"))
        yield BesideSpec("scale of the router", 1)


BESIDE: dict[str, Maker] = {
    "head gate": _head_gate, "either gate": _either_gate,
    "output gate": _output_gate, "gate bias": _gate_bias, "router bias": _router_bias,
    "norm behind experts": _after_experts, "zero experts": _zero_experts, "activation": _activation,
    "inner norms": _inner_norms, "differential": _differential, "dynamic mask": _dynamic_mask,
    "norm biases": _norm_biases, "last output bias": _last_output_bias, "channel mixing": _mixing, "altup": _altup,
    "per-layer input": _per_layer_input, "experts beside": _experts_beside, "low-rank norms": _low_rank_norms,
    "rotary norm": _rotary_norm, "hyper-connections": _connections, "compressor": _compressor, "relative": _relative,
    "expert sinks": _expert_sinks, "gated queries": _gated_queries,
}  # fmt: skip
"""Name in a family's `beside` -> its maker."""


# -- beside the embedding and the LM head --


def _layer_norm(at: Place) -> Iterable[BesideSpec]:
    yield BesideSpec("norm of the embedding", 2 * at.hidden)


def _plain_norm(at: Place) -> Iterable[BesideSpec]:
    yield BesideSpec("norm of the embedding", at.hidden * (2 if at.config.flag("norm_bias") else 1))


def _per_layer_tables(at: Place) -> Iterable[BesideSpec]:
    """Embeddings of each layer (Gemma 3n): one table of all, a projection of the hidden state, and a norm."""
    width = at.config.optional("hidden_size_per_layer_input", low=0)
    if width:
        every = width * at.config.integer("num_hidden_layers")
        yield BesideSpec("per-layer embeddings", every, at.config.integer("vocab_size_per_layer_input"), lookup=True)
        yield _product("projection to all layers", at.hidden, every)
        yield BesideSpec("norm of per-layer embeddings", width)


def _streams(at: Place) -> Iterable[BesideSpec]:
    for stream in range(1, at.config.integer("altup_num_inputs")):
        yield _product(f"stream {stream}", at.hidden, at.hidden)


def _joined_streams(at: Place) -> Iterable[BesideSpec]:
    streams = at.config.integer("hc_mult")
    yield _product("hyper-connection of the head", streams * at.hidden, streams)
    yield BesideSpec("base and scale of the head", streams + 1)


def _head_dense(at: Place) -> Iterable[BesideSpec]:
    """The dense layer and norm in front of ModernBERT's decoder."""
    yield _product("dense layer of the head", at.hidden, at.hidden, bias=at.config.flag("classifier_bias"))
    yield BesideSpec("norm of the head", at.hidden * (2 if at.config.flag("norm_bias") else 1))


AT_ENDS: dict[str, Maker] = {
    "layer norm": _layer_norm, "norm": _plain_norm, "per-layer tables": _per_layer_tables, "streams": _streams,
    "joined streams": _joined_streams, "head dense": _head_dense,
}  # fmt: skip
"""Name in a family's `at_embedding` and `at_head` -> its maker."""
