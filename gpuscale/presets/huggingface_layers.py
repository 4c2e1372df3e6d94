"""The layers of a Hugging Face config, composed of the mixers and feed-forward blocks that its family names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpuscale.presets.huggingface_config import Config
from gpuscale.presets.huggingface_families import Family, Pattern
from gpuscale.specs import model as specs
from gpuscale.specs.model import BesideSpec, LayerSpec

# -- What families have beside their usual blocks, the embedding and the LM head: small products, vectors and tables. --

NO_LAYER = LayerSpec(None, None, None)


def beside(  # noqa: C901 - a list, not a flow
    name: str, config: Config, hidden: int, layer: LayerSpec = NO_LAYER, place: int = 0
) -> Iterator[BesideSpec]:
    """Yield what a name in a family's `beside`, `at_embedding` or `at_head` stands for.

    Args:
        hidden: width of the model.
        layer: what the layer is made of so far; nothing at the ends of the model.
        place: its number, from 0.
    """
    attention, moe, size = layer.attention, layer.moe, config.integer

    def low_rank(what: str, rank: int) -> tuple[BesideSpec, BesideSpec]:
        return BesideSpec(f"{what} down", rank, hidden), BesideSpec(f"{what} up", hidden, rank)

    match name:
        case "head gate" | "either gate" | "output gate" if attention:
            per_head = name == "head gate"
            if name == "either gate":  # Laguna's `gating`
                per_head = config.value("gating", default=True) in (True, "per-head")
            if not per_head:
                yield BesideSpec("output gate", attention.output_width, hidden)
            elif config.flag("use_attention_gate", default=True):
                yield BesideSpec("gate per head", attention.heads, hidden)
        case "gate bias":
            yield BesideSpec("bias of head gates", attention.heads if attention else 0)
        case "router bias" if moe:  # a parameter of the class, though no gradient reaches it
            yield BesideSpec("load-balancing bias", moe.experts)
        case "norm behind experts" if moe:
            yield BesideSpec("norm behind experts", hidden)
        case "zero experts":  # that compute nothing (LongCat-Flash): transformers' class has their gates too
            zero = config.optional("zero_expert_num", low=0) or 0
            if moe and zero:
                yield BesideSpec("router of zero experts", zero, hidden)
                yield BesideSpec("unused weights of zero experts", zero * 2 * moe.ffn * hidden)
        case "activation" if layer.mlp:
            yield BesideSpec("slopes of the activation", 2)
        case "inner norms":  # before the output projection and inside the MLP (BitNet)
            yield BesideSpec("norms inside the blocks", hidden + (layer.mlp.ffn if layer.mlp else 0))
        case "differential" if attention:
            yield BesideSpec("weights of the difference", 4 * attention.head_dim)
        case "dynamic mask":  # that Doge makes of values, and its scales of residuals
            yield BesideSpec("scales of residuals", 2 * hidden)
            if attention:
                keys = attention.kv_heads
                yield BesideSpec("slopes of the mask", keys)
                yield BesideSpec("mask", keys, attention.value_width, bias=config.flag("attention_bias"))
        case "norm biases" if attention and attention.qk_norm == "head":
            yield BesideSpec("biases of query and key norms", 2 * attention.head_dim)
        case "last output bias" if place == size("num_hidden_layers") - 1:
            yield BesideSpec("bias of the attention output", hidden)
        case "channel mixing":  # of RWKV
            yield BesideSpec("receptance", hidden, hidden)
            yield BesideSpec("token shift", 2 * hidden)
        case "altup":  # alternating updates and the low-rank residual of Gemma 3n
            streams, rank = size("altup_num_inputs"), size("laurel_rank")
            scaled = config.flag("altup_correct_scale", default=True)
            yield BesideSpec("modality router", streams, hidden)
            yield BesideSpec("prediction of streams", streams**2, streams)
            yield BesideSpec("correction of streams", streams, streams)
            yield BesideSpec("norm and scale of streams", hidden * (2 if scaled else 1))
            yield from low_rank("low-rank residual", rank)
            yield BesideSpec("norm of the residual", hidden)
        case "per-layer input":
            width = config.optional("hidden_size_per_layer_input", low=0)
            if width:
                yield from low_rank("per-layer embedding", width)
            if width or config.optional("altup_num_inputs"):  # Gemma 3n keeps the norm of what it lacks
                yield BesideSpec("norm of the per-layer embedding", hidden)
        case "experts beside" if moe:  # Gemma 4's dense block
            yield BesideSpec("norms of dense and routed output", 3 * hidden)
            yield BesideSpec("scales of the router", hidden + moe.experts)
        case "low-rank norms":  # with a gate (A.X K2)
            rank = size("gated_norm_rank")
            yield from low_rank("gate of the attention norm", rank)
            if moe:
                yield from low_rank("gate of the experts' norm", rank)
        case "gated queries" if attention and attention.latent and attention.latent.query_rank:
            # A.X K2 makes queries and output gates of two compressed vectors, where other latent attention has one
            more = attention.query_width + 2 * attention.output_width
            yield BesideSpec("gates and second half of queries", more, attention.latent.query_rank)
        case "rotary norm" if attention and attention.latent:
            yield BesideSpec("norm of rotary keys", attention.latent.rope_dim)
        case "hyper-connections":  # Zhu et al. 2024, arXiv 2409.19606; with a doubly stochastic mix in DeepSeek-V4
            streams = size("hc_mult")
            doubly = config.optional("hc_sinkhorn_iters")
            mixes, scales = (streams * (streams + 2), 3) if doubly else (2 * streams, 2)
            for block in ("attention", "feed-forward"):
                yield BesideSpec(f"hyper-connection of {block}", mixes, streams * hidden)
                yield BesideSpec(f"base and scales of {block}", mixes + scales)
        case "compressor" if attention:
            yield from _compressor(config, hidden, attention)
        case "relative" if attention:  # positions, and short convolutions, of Inkling
            rank, taps, window = size("d_rel"), size("conv_kernel_size"), size("sliding_window")
            reach = size("rel_extent") if attention.window is None else window
            yield BesideSpec("relative positions", attention.heads * rank, hidden)
            yield BesideSpec("relative logits", rank * reach)
            yield BesideSpec("convolutions", taps * (attention.key_width + attention.value_width + 2 * hidden))
        case "expert sinks" if moe:  # shared experts that the router weighs too, and the scale of all (Inkling)
            yield BesideSpec("router of shared experts", size("n_shared_experts"), hidden)
            yield BesideSpec("scale of the router", 1)
        case "layer norm":
            yield BesideSpec("norm of the embedding", 2 * hidden)
        case "norm":
            yield BesideSpec("norm of the embedding", hidden * (2 if config.flag("norm_bias") else 1))
        case "per-layer tables":  # embeddings of each layer (Gemma 3n)
            width = config.optional("hidden_size_per_layer_input", low=0)
            if width:
                every = width * size("num_hidden_layers")
                yield BesideSpec("per-layer embeddings", every, size("vocab_size_per_layer_input"), lookup=True)
                yield BesideSpec("projection to all layers", every, hidden)
                yield BesideSpec("norm of per-layer embeddings", width)
        case "streams":
            for stream in range(1, size("altup_num_inputs")):
                yield BesideSpec(f"stream {stream}", hidden, hidden)
        case "joined streams":
            streams = size("hc_mult")
            yield BesideSpec("hyper-connection of the head", streams, streams * hidden)
            yield BesideSpec("base and scale of the head", streams + 1)
        case "head dense":  # in front of ModernBERT's decoder
            yield BesideSpec("dense layer of the head", hidden, hidden, bias=config.flag("classifier_bias"))
            yield BesideSpec("norm of the head", hidden * (2 if config.flag("norm_bias") else 1))


def _compressor(config: Config, hidden: int, attention: specs.AttentionSpec) -> Iterator[BesideSpec]:
    """What makes DeepSeek-V4's compressed keys, and its indexer's; the norm of plain keys."""
    dim, overlap = attention.head_dim, 2 if attention.indexer else 1  # chosen keys overlap, so that each has two parts
    yield BesideSpec("norms of keys", 2 * dim if attention.compression else dim)
    if not attention.compression:
        return
    yield BesideSpec("compressor", 2 * overlap * dim, hidden)
    yield BesideSpec("positions in a compressed key", attention.compression * overlap * dim)
    if attention.indexer:
        heads, own = config.integer("index_n_heads"), config.integer("index_head_dim")
        yield BesideSpec("compressor of the indexer", 2 * overlap * own, hidden)
        yield BesideSpec("positions and norm of the indexer", attention.compression * overlap * own + own)
        yield BesideSpec("queries of the indexer", heads * own, attention.query_rank)
        yield BesideSpec("weights of the indexer", heads, hidden)


FULL, WINDOW, LINEAR, BOTH, INDEXED, SPARSE = "full", "window", "linear", "both", "indexed", "sparse"
MIXERS = {
    "full_attention": FULL, "attention": FULL, "global": FULL, "indexed_attention": INDEXED,
    "deepseek_sparse_attention": INDEXED,
    "sliding_attention": WINDOW, "chunked_attention": WINDOW, "local": WINDOW,
    "linear_attention": LINEAR, "mamba": LINEAR, "mamba2": LINEAR, "conv": LINEAR, "recurrent": LINEAR,
    "hybrid": BOTH,
    "compressed_sparse_attention": "csa", "heavily_compressed_attention": "hca",
    "mlp": "none", "moe": "none",
}  # fmt: skip
"""Word of a list of layers -> what mixes tokens in such a layer."""

COMPRESSION = {"csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}
"""Mixer with compressed keys -> its key in `compress_rates`."""

FEED_FORWARDS = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}
"""Word of a list of feed-forward blocks -> whether it has experts; in `hash_moe` an untrained table chooses them."""


def layers_of(config: Config, family: Family) -> tuple[list[specs.LayerSpec], specs.MtpSpec | None]:
    """Build the layers, first to last, and the multi-token-prediction modules."""
    if family.blocks:
        return _single_blocks(config, family)
    count = config.integer("num_hidden_layers")
    usual = [word for word, mixer in MIXERS.items() if _has(family, mixer)]
    words = _words(config, family.layers, "layer_types", count, (*usual, *family.words))
    mixers = [family.words.get(word) or MIXERS[word] for word in words]
    routed = [FEED_FORWARDS[word] for word in _feed_forwards(config, family, count)]
    known: dict[Any, specs.LayerSpec] = {}
    layers = []
    for index, (mixer, experts) in enumerate(zip(mixers, routed, strict=True)):
        own = config.at(index)
        layer = _layer(own, family, mixer, experts, _reuses_keys(config, family, mixers, index), index)
        layers.append(known.setdefault(layer, layer))
    layers = _repeated(config, family, layers, words)
    key = family.mtp_key or ("num_nextn_predict_layers" if family.correction_bias else "")
    depth = config.optional(key, 0) or 0
    if not depth:
        return layers, None
    last = next((one for one in reversed(layers) if one.attention), layers[-1])  # of layers with attention each
    return layers, specs.MtpSpec(depth, specs.mtp_module((last,)))


def _has(family: Family, mixer: str) -> bool:
    if mixer in (LINEAR, BOTH):
        return bool(family.state)
    return family.compressed if mixer in COMPRESSION else mixer != "none"


def _words(config: Config, pattern: Pattern, key: str, count: int, known: Sequence[str]) -> list[str]:
    """One word per layer, as a list states them or as the pattern repeats them."""
    words = config.words(key, None, known)
    if words is not None and len(words) != count and pattern.repeats:
        words = (words * count)[:count]
    if words is not None:
        if len(words) != count:
            raise config.error(key, f"has {len(words)} entries for {count} layers")
        return [*words[:-1], pattern.last] if pattern.always_last else words
    return pattern_words(config, pattern, count)


def pattern_words(config: Config, pattern: Pattern, count: int) -> list[str]:
    """Words of layers that are not listed: most have the first word of the cycle, some the last."""
    cycle = pattern.cycle
    most, special = cycle[0], cycle[-1]
    if not config.flag(pattern.switch, default=True):
        return [special if pattern.off_is_last else most] * count
    listed = config.items(pattern.listed, None, int)
    if listed is not None:
        found = {index - pattern.counted_from for index in listed}
        return [special if index in found else most for index in range(count)]
    flags = config.items(pattern.flags, None, int)
    if flags and len(flags) == count:
        return [most if flag else special for flag in flags]
    if pattern.otherwise:
        return [pattern.otherwise] * count
    every = _every(config, pattern)
    if every is None:
        words = [cycle[index % len(cycle)] for index in range(count)]
    else:
        at = config.integer(pattern.offset, low=0) if pattern.offset else pattern.at % every if every else 0
        words = [special if every and index % every == at else most for index in range(count)]
    if pattern.begin:
        first = config.integer(pattern.begin, count, low=0)
        words = [most if index < first else special for index in range(count)]
    words = [*pattern.first, *words[0 if pattern.counted_behind else len(pattern.first) :]][:count]
    if pattern.last or (pattern.at_least_one and special not in words):
        words[-1] = pattern.last or special
    return words


def _every(config: Config, pattern: Pattern) -> int | None:
    """Return the period of a pattern, or None where its cycle is repeated."""
    if not pattern.every and not pattern.every_key:
        return None
    written = config.value(pattern.every_key, None)
    if isinstance(written, str):  # EXAONE 4 writes the pattern out: LLLG
        return len(written)
    return config.integer(pattern.every_key, pattern.every, low=0) if written is not None else pattern.every


def _feed_forwards(config: Config, family: Family, count: int) -> list[str]:
    experts = family.experts
    if experts is None or (experts.switch and not config.flag(experts.switch)):
        return ["dense"] * count
    number = config.value("num_experts", None) if experts.optional else 1
    if number is None or (number == 0 and experts.optional == "zero"):
        return ["dense"] * count
    words = config.words("mlp_layer_types", count, tuple(FEED_FORWARDS))
    if words is not None:
        return words
    step = config.value(experts.frequency, None)
    if isinstance(step, list):
        flags = config.items(experts.frequency, count, int) or []
        return ["sparse" if flag else "dense" for flag in flags]
    listed = config.items(experts.listed, None, int)
    dense = set(config.items(experts.dense, None, int) or ())
    if listed is not None:
        return ["sparse" if index in listed else "dense" for index in range(count)]
    first = config.integer(experts.first_key, experts.first, low=0)
    until = config.integer(experts.until, -1, low=-1)
    until = count - 1 if until == -1 else until
    every = config.integer(experts.every, 1)
    often = config.integer(experts.frequency, 1)
    offset = config.integer(experts.offset, low=0) if experts.offset else 0
    return [
        "sparse"
        if first <= index <= until and (index + 1) % every == 0 and index % often == offset and index not in dense
        else "dense"
        for index in range(count)
    ]


def _reuses_keys(config: Config, family: Family, mixers: Sequence[str], index: int) -> bool:
    """Whether a layer takes its keys and values from an earlier one: the last ones do, of those of the same kind."""
    shared = config.optional("num_kv_shared_layers", low=0) if family.shares_keys else 0
    return bool(shared) and index >= len(mixers) - (shared or 0) > 0


def _layer(config: Config, family: Family, mixer: str, experts: bool, reuses_keys: bool, index: int) -> specs.LayerSpec:
    hidden = config.integer("hidden_size")
    attends = mixer not in (LINEAR, "none")
    attention = _attention(config, family, mixer, index) if attends else None
    if attention is not None and reuses_keys:
        attention = replace(attention, keys="shared")
    state = _state_space(config, family) if mixer in (LINEAR, BOTH) else None
    moe = _moe(config, family) if experts else None
    mlp = None
    if moe is None or family.dense_beside_experts:
        ffn = _width(config, family, reuses_keys, moe is None)
        mlp = specs.MlpSpec(ffn, family.gated, config.setting(family.mlp_bias)) if ffn else None
    parallel = config.setting(family.parallel)
    norms = family.norms[parallel] if isinstance(family.norms, tuple) else family.norms
    if isinstance(norms, str):
        norms = config.integer(norms, low=0)
    if config.flag(family.more_norms):
        norms += 2
    if not config.flag(family.norm_switch, default=True):
        norms = 0
    if family.first_norms is not None and index == 0:
        norms = family.first_norms
    layer = specs.LayerSpec(
        attention, mlp, moe, norms, config.setting(family.norm_bias), state, parallel_blocks=parallel
    )
    return replace(
        layer, beside=tuple(one for name in family.beside for one in beside(name, config, hidden, layer, index))
    )


def _width(config: Config, family: Family, reuses_keys: bool, alone: bool) -> int:
    hidden = config.integer("hidden_size")
    name = family.ffn if alone or not family.ffn_beside else family.ffn_beside
    match name:
        case "four":
            return config.optional("intermediate_size") or 4 * hidden
        case "ratio":
            return config.integer("expansion_ratio", 4) * hidden
        case "half":
            return config.integer("intermediate_size") // 2
        case "none":
            return 0
        case "double":  # twice as wide in layers that reuse keys
            wide = reuses_keys and config.flag("use_double_wide_mlp")
            return config.integer("intermediate_size") * (2 if wide else 1)
        case "lfm2":
            return _lfm2_width(config)
        case "xlstm":
            multiple = config.integer("ffn_round_up_to_multiple_of", 64)
            return -(-int(hidden * config.number("ffn_proj_factor", 2.667)) // multiple) * multiple
        case _:
            return config.integer(name, low=0 if name.startswith("shared") else 1)


def _lfm2_width(config: Config) -> int:
    width = config.optional("block_ff_dim") or config.integer("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    multiple = config.integer("block_multiple_of", 256)
    return -(-int(config.number("block_ffn_dim_multiplier", 1.0) * width) // multiple) * multiple


def _attention(config: Config, family: Family, mixer: str, index: int) -> specs.AttentionSpec:
    if config.value("per_layer_config", None) is None:
        if mixer == WINDOW and family.window_prefix:
            config = _windowed(config, family)
        if mixer == FULL and family.whole_keys:
            config = _of_whole(config, family)
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    latent = _latent(config) if family.latent else None
    kv_heads = heads if latent else _kv_heads(config, family, heads, mixer)
    head_dim = latent.nope_dim + latent.rope_dim if latent else config.optional("head_dim")
    if head_dim is None:
        if hidden % heads and not family.uneven_heads:
            raise config.error("hidden_size", f"= {hidden} is not a multiple of num_attention_heads = {heads}")
        head_dim = hidden // heads
    if heads % kv_heads:
        raise config.error("num_attention_heads", f"= {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    own_values = latent or family.value_dim
    window = _window(config, family) if mixer in (WINDOW, "csa", "hca") else None
    attention = specs.AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=(config.optional("v_head_dim") or head_dim) if own_values else head_dim,
        latent=latent,
        chunked=family.chunks and window is not None,
        window=window,
        qkv_bias=config.setting(family.qkv_bias),
        output_bias=config.setting(family.output_bias),
        qk_norm=family.qk_norm if family.qk_norm_key is None or config.flag(family.qk_norm_key) else "none",
        sinks=_sinks(config, family, mixer),
        output_gate=config.setting(family.output_gate),
    )
    if mixer == FULL and config.flag(family.keys_as_values):
        attention = replace(attention, keys="values")
    if mixer in (INDEXED, SPARSE):
        attention = replace(attention, indexer=_indexer(config, index, weighted=mixer == INDEXED))
    if family.square and attention.output_width != hidden:
        raise config.error("head_dim", f"= {head_dim} of {heads} heads does not make up hidden_size = {hidden}")
    return _compressed(config, attention, mixer) if family.compressed else attention


def _of_whole(config: Config, family: Family) -> Config:
    """Return the config of a layer that sees all keys, whose heads are its own; fewer keys where they are values."""
    shared = config.flag(family.keys_as_values)
    stated = {key: config.value(own, None) for key, own in family.whole_keys.items() if key == "head_dim" or shared}
    return config.having(**{key: value for key, value in stated.items() if value is not None})


WINDOW_KEYS = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim",
)  # fmt: skip
"""Keys that layers with a window may have of their own, behind a prefix."""


def _windowed(config: Config, family: Family) -> Config:
    stated = {key: config.value(f"{family.window_prefix}{key}", None) for key in WINDOW_KEYS}
    return config.having(**{key: value for key, value in stated.items() if value is not None})


def _latent(config: Config) -> specs.LatentSpec:
    nope_dim, rope_dim = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    stated = config.value("qk_head_dim", None)
    if stated is not None and stated != nope_dim + rope_dim:
        raise config.error("qk_head_dim", f"is not qk_nope_head_dim + qk_rope_head_dim = {nope_dim + rope_dim}")
    return specs.LatentSpec(config.optional("q_lora_rank"), config.integer("kv_lora_rank"), nope_dim, rope_dim)


def _kv_heads(config: Config, family: Family, heads: int, mixer: str) -> int:
    if config.setting(family.one_kv_head):
        return 1
    if family.multi_head:
        return heads
    found = config.optional("num_key_value_heads") or heads
    twice = mixer == WINDOW and family.twice_kv_in_windows and config.value("swa_num_key_value_heads", None) is None
    return found * (2 if twice else 1)


def _window(config: Config, family: Family) -> int | None:
    """Length of the window [tokens]; none where it is null or 0, or switched off."""
    if not config.flag("use_sliding_window", default=True) and not family.chunks:
        return None
    return config.optional(family.window, low=0) or None


def _sinks(config: Config, family: Family, mixer: str) -> bool:
    if family.sinks != "window":
        return family.sinks == "all"
    key = "add_swa_attention_sink_bias" if mixer == WINDOW else "add_full_attention_sink_bias"
    return config.flag(key, default=mixer == WINDOW)


def _indexer(config: Config, index: int, *, weighted: bool) -> specs.IndexerSpec:
    """DeepSeek sparse attention; `shared` layers reuse an earlier one's choice. MiniMax-M3 chooses whole blocks."""
    types = config.words("indexer_types", None, ("full", "shared"))
    if types is not None and index >= len(types):
        raise config.error("indexer_types", f"has {len(types)} entries, none for layer {index}")
    often, skipped = config.integer("index_topk_freq", 1), config.integer("index_skip_topk_offset", 2)
    shared = max(index - skipped + 1, 0) % often != 0 if types is None else types[index] == "shared"
    heads, head_dim = config.integer("index_n_heads"), config.integer("index_head_dim")
    top_k = config.optional("index_topk")
    if top_k is None:  # whole blocks are chosen
        top_k = config.integer("index_topk_blocks") * config.integer("index_block_size")
    return specs.IndexerSpec(heads, head_dim, top_k, shared=shared, weighted=weighted)


def _compressed(config: Config, attention: specs.AttentionSpec, mixer: str) -> specs.AttentionSpec:
    """Attention of DeepSeek-V4: one head of keys that are values too, compressed ones beside a window."""
    rate = config.table("compress_rates").integer(COMPRESSION[mixer]) if mixer in COMPRESSION else 0
    chosen = specs.IndexerSpec(1, 1, config.integer("index_topk"), shared=True) if mixer == "csa" else None
    return replace(
        attention,
        keys="values",
        query_rank=config.integer("q_lora_rank"),
        output_rank=config.integer("o_lora_rank"),
        output_groups=config.integer("o_groups"),
        compression=rate,
        indexer=chosen,  # its own weights stand beside, with the compressor's
    )


def _moe(config: Config, family: Family) -> specs.MoeSpec:
    facts = family.experts
    assert facts is not None
    experts, top_k = config.integer("num_experts"), config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.error("num_experts_per_tok", f"= {top_k} is more than the {experts} experts")
    width = config.integer(facts.width)
    shared = 0
    if facts.shared_width:
        shared = config.optional(facts.shared_width, low=max(facts.shared_least, family.shared_gate)) or 0
    elif facts.shared_count:
        count = facts.shared_count
        number = count if isinstance(count, int) else config.optional(count, low=facts.shared_least) or 0
        shared = number * (config.integer(facts.shared_each) if facts.shared_each else width)
    groups, top_groups = config.optional("n_group", 0) or 1, config.optional("topk_group", 0) or 1
    if experts % groups or top_groups > groups:
        raise config.error("n_group", f"= {groups} must divide the {experts} experts and be at least topk_group")
    return specs.MoeSpec(
        experts=experts,
        top_k=top_k,
        ffn=width,
        gated=family.gated,
        shared_ffn=shared,
        shared_gate=family.shared_gate and shared > 0,
        router_bias=family.router_bias,
        correction_bias=family.correction_bias,
        expert_bias=family.expert_bias,
        latent=config.optional("moe_latent_size", low=0) or 0,
        groups=groups,
        top_groups=top_groups,
    )


# -- state spaces --


def _heads_in_groups(config: Config, heads_key: str, groups_key: str) -> tuple[int, int]:
    groups, heads = config.integer(groups_key), config.integer(heads_key)
    if heads % groups:
        raise config.error(heads_key, f"= {heads} is not a multiple of {groups_key} = {groups}")
    return groups, heads


def _state_space(config: Config, family: Family) -> specs.StateSpaceSpec:  # noqa: C901 - a list, not a flow
    size, optional, flag = config.integer, config.optional, config.flag
    match family.state:
        case "gdn":
            for key in ("linear_num_key_heads", "linear_num_value_heads"):
                if config.value(key, None) is None:
                    config = config.having(**{key: optional("num_attention_heads")})
            groups, heads = _heads_in_groups(config, "linear_num_value_heads", "linear_num_key_heads")
            state = optional("linear_key_head_dim") or int(0.75 * size("hidden_size") / groups)
            dim, conv = optional("linear_value_head_dim") or 2 * state, size("linear_conv_kernel_dim", 4)
            return specs.StateSpaceSpec("gdn", heads, dim, groups, state, conv, 64)
        case "kda":
            table = config.table("linear_attn_config")
            heads = table.optional("num_heads") or size("linear_num_heads")
            dim = table.optional("head_dim") or size("linear_head_dim")
            conv = table.optional("short_conv_kernel_size") or size("linear_conv_kernel_dim", 4)
            return specs.StateSpaceSpec("kda", heads, dim, heads, dim, conv, 64)
        case "ling":  # Kimi delta attention whose decay and output gate are projected directly (Ling 2.5)
            heads = optional("linear_num_heads") or size("num_attention_heads")
            dim = optional("linear_head_dim") or size("state_head_dim")
            conv = optional("linear_conv_kernel_dim") or size("short_conv_kernel_size", 4)
            return specs.StateSpaceSpec("kda", heads, dim, heads, dim, conv, 64, rank=0)
        case "mamba2":
            groups, heads = _heads_in_groups(config, "mamba_num_heads", "n_groups")
            inner = optional("mamba_d_ssm") or size("mamba_expand", 2) * size("hidden_size")
            dim = inner // heads if config.value("mamba_head_dim", None) in (None, "auto") else size("mamba_head_dim")
            return specs.StateSpaceSpec(
                "mamba2", heads, dim, groups, size("ssm_state_size"), size("conv_kernel", 4), size("chunk_size", 128),
                conv_bias=flag("use_conv_bias", default=True), norm=flag("mamba_rms_norm", default=True),
                bias=flag("mamba_proj_bias"),
            )  # fmt: skip
        case "mamba1":
            hidden, rank = size("hidden_size"), config.value("mamba_dt_rank", None)
            width = optional("mamba_width") or size("expand", 2) * hidden
            return specs.StateSpaceSpec(
                "mamba1", width, 1, 1, size("ssm_state_size"), size("conv_kernel", 4), 256,
                conv_bias=flag("use_conv_bias", default=True),
                rank=-(-hidden // 16) if rank in (None, "auto") else size("mamba_dt_rank"), norm=flag("mamba_norms"),
                bias=flag("mamba_proj_bias"),
            )  # fmt: skip
        case "conv":
            bias = flag("conv_bias")
            width, conv = size("hidden_size"), size("conv_L_cache", 3)
            return specs.StateSpaceSpec("conv", width, 1, 1, 1, conv, conv_bias=bias, bias=bias)
        case "rglru":
            width, heads = optional("lru_width") or size("hidden_size"), size("num_attention_heads")
            if width % heads:
                raise config.error("lru_width", f"= {width} is not a multiple of num_attention_heads = {heads}")
            conv = size("conv1d_width", 4)
            return specs.StateSpaceSpec("rglru", heads, width // heads, 1, 1, conv, conv_bias=True, bias=True)
        case "rwkv4":
            return specs.StateSpaceSpec("rwkv4", optional("attention_hidden_size") or size("hidden_size"), 1, 1, 1)
        case "mlstm":
            hidden, heads = size("hidden_size"), size("num_heads")
            keys = int(hidden * config.number("qk_dim_factor", 0.5))
            values = int(hidden * config.number("v_dim_factor", 1.0))
            if keys % heads or values % heads:
                raise config.error("num_heads", f"= {heads} does not divide queries of {keys} and values of {values}")
            chunk = size("chunk_size", 64)
            return specs.StateSpaceSpec("mlstm", heads, values // heads, heads, keys // heads, chunk=chunk)
        case _:
            heads = size("num_attention_heads")
            dim = optional("head_dim") or size("hidden_size") // heads
            return specs.StateSpaceSpec("lightning", heads, dim, heads, dim, chunk=size("block_size", 256))


# -- layers of a single block --

LETTERS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip
"""Words of `layers_block_type` -> letters of `hybrid_override_pattern`."""


def _block_pattern(config: Config, text_key: str, list_key: str) -> str | None:
    """Return one letter per block (M, *, -, E) from a pattern or a list of words, or None where both are missing."""
    text = config.value(text_key, None)
    if text is None:
        words = config.words(list_key, None, tuple(LETTERS))
        text = None if words is None else "".join(LETTERS[word] for word in words)
    if text is not None and (not isinstance(text, str) or not text or set(text) - set(LETTERS.values())):
        raise config.error(text_key, "is not a pattern of M, *, - and E")
    return text


def _single_blocks(config: Config, family: Family) -> tuple[list[specs.LayerSpec], specs.MtpSpec | None]:
    """Read layers of a single block each (Nemotron-H, Mamba), and multi-token prediction made of such layers."""
    if family.blocks != "pattern":
        pattern: str | None = family.blocks * config.integer("num_hidden_layers")
    else:
        pattern = _block_pattern(config, "hybrid_override_pattern", "layer_types")
    if pattern is None:
        raise config.needed("hybrid_override_pattern")
    layers = config.optional("num_hidden_layers")
    if layers is not None and layers != len(pattern):
        raise config.error("hybrid_override_pattern", f"has {len(pattern)} letters for {layers} layers")
    depth = (config.optional("num_nextn_predict_layers", 0) or 0) if family.mtp_key else 0
    module = (_block_pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E") if depth else ""
    makers: dict[str, Callable[[], specs.LayerSpec]] = {
        "*": lambda: specs.LayerSpec(_attention(config, family, FULL, 0), None, None, norms=1),
        "-": lambda: specs.LayerSpec(None, specs.MlpSpec(config.integer("intermediate_size"), family.gated,
                                     config.setting(family.mlp_bias)), None, norms=1),
        "E": lambda: specs.LayerSpec(None, None, _moe(config, family), norms=1),
        "M": lambda: specs.LayerSpec(None, None, None, norms=1, state_space=_state_space(config, family)),
    }  # fmt: skip
    kinds = {letter: makers[letter]() for letter in dict.fromkeys(pattern + module)}
    after = tuple(kinds[letter] for letter in module)
    mtp = specs.MtpSpec(depth, specs.mtp_module(after), shared=True) if depth else None
    return [kinds[letter] for letter in pattern], mtp


def _repeated(
    config: Config, family: Family, layers: list[specs.LayerSpec], words: Sequence[str]
) -> list[specs.LayerSpec]:
    match family.repeats:
        case "longcat":
            return list(_longcat(config, layers))
        case "zamba":
            return list(_shared_block(config, layers, words))
    return layers


def _longcat(config: Config, layers: Sequence[specs.LayerSpec]) -> Iterable[specs.LayerSpec]:
    """Each layer has two attentions with a dense block each, and experts beside the second (LongCat-Flash)."""
    ffn = specs.MlpSpec(config.integer("intermediate_size"))
    for layer in layers:
        yield replace(layer, moe=None, mlp=ffn, beside=())
        yield replace(layer, mlp=ffn)


def _shared_block(config: Config, layers: Sequence[specs.LayerSpec], words: Sequence[str]) -> Iterable[specs.LayerSpec]:
    """Zamba: before some Mamba layers a transformer block on hidden state and embedding, always of the same weights."""
    hidden = config.integer("hidden_size")
    if config.value("attention_hidden_size", None) not in (None, 2 * hidden):
        raise config.error("attention_hidden_size", f"is not 2 x hidden_size = {2 * hidden}")
    blocks = config.optional("num_mem_blocks") or 1
    uses = sum(word == "hybrid" for word in words)
    seen = 0
    for layer, word in zip(layers, words, strict=True):
        mamba = replace(layer, attention=None, mlp=None, norms=1, beside=())
        width = config.integer("mamba_expand", 2) * hidden
        if mamba.state_space and mamba.state_space.width != width:
            raise config.error("mamba_num_heads", f"of such a width do not make up {width}")
        if word != "hybrid":
            yield mamba
            continue
        adapters = _adapters(config, uses, seen, blocks)
        attention = layer.attention
        assert attention is not None
        wide = replace(attention, input_width=2 * hidden)
        norms = (specs.BesideSpec("norm of hidden state and embedding", 2 * hidden), *adapters)
        yield replace(layer, attention=wide, state_space=None, norms=1, beside=norms, reused=seen >= blocks)
        seen += 1
        yield replace(mamba, beside=(specs.BesideSpec("down-projection", hidden, hidden),))


def _adapters(config: Config, uses: int, seen: int, blocks: int) -> tuple[specs.BesideSpec, ...]:
    """Low-rank adapters that each use of a shared block has, all held with the block (Zamba 2)."""
    rank = config.optional("adapter_rank")
    if rank is None or seen >= blocks:
        return ()
    hidden, ffn = config.integer("hidden_size"), config.integer("intermediate_size")
    return tuple(
        specs.BesideSpec(f"adapter {use}", size) for use in range(uses) for size in (rank * (hidden + 2 * ffn),)
    )
