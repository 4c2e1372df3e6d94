"""Hugging Face `config.json` -> `ModelSpec`, for the model types of `huggingface_families.FAMILIES`.

Keys that do not change the shape (rope, dropout, quantisation, token ids) are not read. A top-level config must state
hidden_size, num_hidden_layers, num_attention_heads and vocab_size; other missing keys have the defaults of the
transformers library's class. In the nested `text_config` of a multimodal model, which transformers saves without
defaults, every key may be missing.

How layers that mix state spaces with attention (Nemotron-H, Qwen3-Next, Kimi-Linear) are read follows the config and
model classes of the transformers library (5.x) and, for Kimi-Linear, the modeling file in
moonshotai/Kimi-Linear-48B-A3B-Base.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuscale.errors import nearest
from gpuscale.presets.files import short
from gpuscale.presets.huggingface_config import Config, find_config, read_config_file
from gpuscale.presets.huggingface_families import FAMILIES, TEXT_TYPES, UNSUPPORTED, Family
from gpuscale.specs.model import (
    AttentionSpec,
    IndexerSpec,
    LatentSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    StateSpaceSpec,
    mtp_module,
)


def load_config(path: Path) -> ModelSpec:
    """Read a Hugging Face config.json, or the one in a folder.

    Raises:
        InputError: no such file, not JSON, a model type that is not read, or a key that is missing or wrong.
    """
    file = find_config(path)
    label = file.resolve().parent.name if file.name == "config.json" else file.stem
    return read_config(read_config_file(file), label[:80] or "config")


def read_config(config: Config, name: str) -> ModelSpec:
    """Turn a parsed config into a `ModelSpec` called `name`."""
    model_type = _model_type(config)
    notes: list[str] = []
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.data.get(key), dict):
            outer, config = config, config.table(key)
            config = config._replace(defaults={"tie_word_embeddings": outer.data.get("tie_word_embeddings")})
            model_type = config.data.get("model_type") or TEXT_TYPES.get(model_type, model_type)
            notes.append(f"the text backbone ({model_type}) of a multimodal model; other towers are not counted")
            break
    else:
        if model_type in TEXT_TYPES and TEXT_TYPES[model_type] in FAMILIES:
            model_type = TEXT_TYPES[model_type]
            notes.append("the text backbone of a multimodal model; other towers are not counted")
    family = _family(config, model_type)
    known = {key: value for key, value in config.defaults.items() if value is not None}
    config = config._replace(defaults={**family.defaults, **known})
    if "quantization_config" in config.data:
        notes.append("quantization_config is not read: parameters are counted, not bytes")
    config, family = _canonical(config, family, model_type)
    return _spec(config, family, name, model_type, tuple(notes))


def _model_type(config: Config) -> str:
    found = config.value("model_type")
    if not isinstance(found, str):
        raise config.error("model_type", f"is {short(found)}, not a word")
    return found


def _family(config: Config, model_type: Any) -> Family:
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    shown = short(model_type)
    close = nearest(str(model_type)[:60], FAMILIES, 1)
    reason = next((why for why, types in UNSUPPORTED.items() if model_type in types), None)
    known = f"supported: {', '.join(FAMILIES)}"
    hint = known if reason or not close else f"nearest: {close[0]}; {known}"
    why = f"is {shown}, a model with {reason}: not supported" if reason else f"is {shown}, which is not supported"
    raise config.error("model_type", why, f"{hint}; or describe the model in a file of its own (docs/models.md)")


def _canonical(config: Config, family: Family, model_type: str) -> tuple[Config, Family]:
    """Rewrite the keys of older families in the words of Llama's config, so that one reader serves all."""
    for key in family.refused:
        if config.flag(key):
            raise config.error(key, "is true, which is not supported for this model type")
    reader = {
        "falcon": _falcon, "mpt": _mpt, "dbrx": _dbrx, "chatglm": _chatglm, "gpt2": _four_wide,
        "gptj": _four_wide, "gpt_bigcode": _bigcode, "phi": _four_wide, "phi-msft": _four_wide, "stablelm": _stablelm,
    }.get(model_type)  # fmt: skip
    return reader(config, family) if reader else (config, family)


def _four_wide(config: Config, family: Family) -> tuple[Config, Family]:
    width = config.optional("intermediate_size") or 4 * config.integer("hidden_size")
    return config.having(intermediate_size=width), family


def _bigcode(config: Config, family: Family) -> tuple[Config, Family]:
    heads = 1 if config.flag("multi_query") else config.integer("num_attention_heads")
    return _four_wide(config.having(num_key_value_heads=heads), family)


def _falcon(config: Config, family: Family) -> tuple[Config, Family]:
    new, parallel = config.flag("new_decoder_architecture"), config.flag("parallel_attn")
    heads = config.integer("num_attention_heads")
    kv_heads = config.optional("num_key_value_heads") if new else 1 if config.flag("multi_query") else heads
    norms = (config.optional("num_ln_in_parallel_attn") or 2) if new else 1 if parallel else 2
    config, family = _four_wide(config.having(num_key_value_heads=kv_heads or heads), family)
    return config, replace(family, norms=norms)


def _mpt(config: Config, family: Family) -> tuple[Config, Family]:
    if not config.flag("no_bias") or config.table("attn_config").value("attn_type", "") == "multiquery_attention":
        raise config.error("no_bias", "is false or attn_type is multiquery_attention, which is not supported")
    width = config.integer("expansion_ratio", 4) * config.integer("hidden_size")
    return config.having(intermediate_size=width), family


def _dbrx(config: Config, family: Family) -> tuple[Config, Family]:
    attention, ffn = config.table("attn_config"), config.table("ffn_config")
    return config.having(
        num_key_value_heads=attention.integer("kv_n_heads", 1),
        intermediate_size=ffn.integer("ffn_hidden_size", 3584),
        num_local_experts=ffn.integer("moe_num_experts", 4),
        num_experts_per_tok=ffn.integer("moe_top_k", 1),
    ), family


def _chatglm(config: Config, family: Family) -> tuple[Config, Family]:
    if not config.flag("multi_query_attention"):
        return config, family
    return config.having(num_key_value_heads=config.integer("multi_query_group_num")), family


def _stablelm(config: Config, family: Family) -> tuple[Config, Family]:
    return config, replace(family, norms=1 if config.flag("use_parallel_residual") else 2)


def _spec(config: Config, family: Family, name: str, model_type: str, notes: tuple[str, ...]) -> ModelSpec:
    layers, mtp = _layers(config, family, model_type)
    kinds = tuple(dict.fromkeys(layers))
    sequence = config.integer("max_position_embeddings")
    return ModelSpec(
        name=name,
        title=name,
        family=family.title,
        hidden=config.integer("hidden_size"),
        vocab=config.integer("vocab_size"),
        kinds=kinds,
        pattern=tuple(kinds.index(layer) for layer in layers),
        tied_embeddings=config.flag("tie_word_embeddings"),
        learned_positions=sequence if family.title in ("gpt2", "gpt_bigcode") else 0,
        max_sequence=sequence,
        mtp=mtp,
        head_bias=config.setting(family.head_bias),
        source=f"Hugging Face config.json, model_type {model_type}",
        notes=notes,
    )


def _layers(config: Config, family: Family, model_type: str) -> tuple[list[LayerSpec], MtpSpec | None]:
    """Build the layers, first to last, and the multi-token-prediction modules."""
    if family.hybrid == "nemotron_h":
        return _nemotron_h_layers(config, _attentions(config, family, 1)[0])
    count = config.integer("num_hidden_layers")
    mimo = model_type == "mimo_v2_flash"
    attentions = _mimo_attentions(config, count) if mimo else _attentions(config, family, count)
    sparse = _sparse_layers(config, family, count)
    moe = _moe(config, family) if any(sparse) else None
    width = None if all(sparse) else config.integer("intermediate_size_mlp" if family.experts == "llama4" else _FFN)
    mlp = None if width is None else MlpSpec(width, family.gated, config.setting(family.mlp_bias))
    layers = [
        LayerSpec(attention, None if routed else mlp, moe if routed else None, family.norms, family.norm_bias)
        for attention, routed in zip(attentions, sparse, strict=True)
    ]
    key = family.mtp_key or "num_nextn_predict_layers"
    depth = (config.optional(key, 0) or 0) if family.correction_bias or family.mtp_key else 0
    mtp = MtpSpec(depth, mtp_module((layers[-1],))) if depth else None  # of a layer with attention each
    if family.hybrid:
        linear, spec = _linear_layers(config, family.hybrid, count), _linear_attention(config, family.hybrid)
        layers = [
            replace(layer, attention=None, state_space=spec) if swap else layer
            for layer, swap in zip(layers, linear, strict=True)
        ]
    return layers, mtp


_FFN = "intermediate_size"


def _attentions(config: Config, family: Family, layers: int) -> list[AttentionSpec]:
    """Build the attention of each layer, which differ only in their windows."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    latent = _latent(config) if family.latent else None
    kv_heads = heads if latent else config.optional("num_key_value_heads") or heads
    head_dim = latent.nope_dim + latent.rope_dim if latent else config.optional("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise config.error("hidden_size", f"= {hidden} is not a multiple of num_attention_heads = {heads}")
        head_dim = hidden // heads
    if heads % kv_heads:
        raise config.error("num_attention_heads", f"= {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    with_norm = family.qk_norm_key is None or config.flag(family.qk_norm_key)
    base = AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=config.integer("v_head_dim") if latent else head_dim,
        latent=latent,
        chunked=family.windows == "chunks",
        qkv_bias=config.setting(family.qkv_bias),
        output_bias=config.setting(family.output_bias),
        qk_norm=family.qk_norm if with_norm else "none",
        sinks=family.sinks,
        output_gate=config.setting(family.output_gate),
    )
    whole = replace(base, chunked=False)
    if family.indexer:
        return [replace(whole, indexer=indexer) for indexer in _indexers(config, layers)]
    return [replace(base, window=window) if window else whole for window in _windows(config, family, layers)]


def _indexers(config: Config, layers: int) -> list[IndexerSpec]:
    """Indexer of each layer of DeepSeek sparse attention; `shared` layers reuse an earlier one's choice."""
    own = IndexerSpec(config.integer("index_n_heads"), config.integer("index_head_dim"), config.integer("index_topk"))
    types = config.words("indexer_types", layers, ("full", "shared")) or ["full"] * layers
    return [own if kind == "full" else replace(own, shared=True) for kind in types]


def _latent(config: Config) -> LatentSpec:
    explicit = "q_lora_rank" in config.data
    rank = config.data["q_lora_rank"] if explicit else config.optional("q_lora_rank")
    return LatentSpec(
        query_rank=None if rank is None else config.integer("q_lora_rank"),
        kv_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
    )


def _windows(config: Config, family: Family, layers: int) -> list[int | None]:
    """Window or chunk length of each layer; None for full attention."""
    if family.hybrid:
        return [None] * layers
    key = "attention_chunk_size" if family.windows == "chunks" else "sliding_window"
    null = config.data.get(key, ...) is None  # which turns a class default off
    length = None if null or family.windows == "none" else config.optional(key)
    known = ("full_attention", *(("sliding_attention", "chunked_attention") if family.windows != "none" else ()))
    types = config.words("layer_types", layers, known)
    if types is not None and family.windows in ("pattern", "chunks", "upper"):
        return [None if kind == "full_attention" else length for kind in types]
    full_every = _full_every(config, family)
    if family.windows == "upper":
        first = config.integer("max_window_layers", layers, low=0) if config.flag("use_sliding_window") else layers
        return [length if index >= first else None for index in range(layers)]
    rope = config.items("no_rope_layers", None, int) if family.windows == "chunks" else None
    if rope and len(rope) == layers:
        return [length if flag else None for flag in rope]
    return [None if full_every and (index + 1) % full_every == 0 else length for index in range(layers)]


def _full_every(config: Config, family: Family) -> int:
    if not family.full_every:
        return 0
    key = "no_rope_layer_interval" if family.windows == "chunks" else "sliding_window_pattern"
    if isinstance(config.value(key, None), str):  # EXAONE 4 writes the pattern out: LLLG
        return len(config.value(key))
    return config.optional(key, low=0) or family.full_every


def _sparse_layers(config: Config, family: Family, layers: int) -> list[bool]:
    """Tell for each layer whether it has routed experts."""
    types = config.words("mlp_layer_types", layers, ("sparse", "dense")) if family.experts else None
    if types is not None:
        return [kind == "sparse" for kind in types]
    if family.experts == "qwen":
        step, dense = config.integer("decoder_sparse_step", 1), set(config.items("mlp_only_layers", None, int) or ())
        return [(index + 1) % step == 0 and index not in dense for index in range(layers)]
    if family.experts == "llama4":
        step, listed = config.integer("interleave_moe_layer_step", 1), config.items("moe_layers", None, int)
        routed = set(range(step - 1, layers, step) if listed is None else listed)
        return [index in routed for index in range(layers)]
    if family.experts == "deepseek":
        return _after_dense(config, layers)
    return [family.experts == "all"] * layers


def _after_dense(config: Config, layers: int) -> list[bool]:
    if config.optional("n_routed_experts") is None:
        return [False] * layers
    if isinstance(config.data.get("moe_layer_freq"), list):
        return [bool(flag) for flag in config.items("moe_layer_freq", layers, int) or ()]
    first, step = config.integer("first_k_dense_replace", 0, low=0), config.integer("moe_layer_freq", 1)
    return [index >= first and index % step == 0 for index in range(layers)]


def _moe(config: Config, family: Family) -> MoeSpec:
    experts = config.integer(
        {"qwen": "num_experts", "deepseek": "n_routed_experts"}.get(family.experts, "num_local_experts")
    )
    top_k = config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.error("num_experts_per_tok", f"= {top_k} is more than the {experts} experts")
    width = config.integer("moe_intermediate_size" if family.experts in ("qwen", "deepseek") else _FFN)
    shared = 0
    if family.experts == "qwen" and family.shared_gate:
        shared = config.integer("shared_expert_intermediate_size", 0, low=0)
    elif family.experts == "deepseek":
        shared = width * (config.optional("n_shared_experts", 0) or 0)
    elif family.experts == "llama4":
        shared = width
    groups, top_groups = config.optional("n_group", 0) or 1, config.optional("topk_group", 0) or 1
    if experts % groups or top_groups > groups:
        raise config.error("n_group", f"= {groups} must divide the {experts} experts and be at least topk_group")
    return MoeSpec(
        experts=experts,
        top_k=top_k,
        ffn=width,
        gated=family.gated,
        shared_ffn=shared,
        shared_gate=family.shared_gate and shared > 0,
        router_bias=family.router_bias,
        correction_bias=family.correction_bias,
        expert_bias=family.expert_bias,
        groups=groups,
        top_groups=top_groups,
    )


def _mimo_attentions(config: Config, layers: int) -> list[AttentionSpec]:
    """MiMo-V2: layers with a window have their own numbers of heads and may have sinks."""
    pattern = config.items("hybrid_layer_pattern", layers, int)
    if pattern is None:
        raise config.needed("hybrid_layer_pattern")

    def attention(prefix: str, window: int | None, sinks: str) -> AttentionSpec:
        return AttentionSpec(
            heads=config.integer(f"{prefix}num_attention_heads"),
            kv_heads=config.integer(f"{prefix}num_key_value_heads"),
            head_dim=config.integer(f"{prefix}head_dim"),
            value_head_dim=config.integer(f"{prefix}v_head_dim"),
            window=window,
            sinks=config.flag(sinks),
        )

    whole = attention("", None, "add_full_attention_sink_bias")
    windowed = attention("swa_", config.integer("sliding_window"), "add_swa_attention_sink_bias")
    return [windowed if flag else whole for flag in pattern]


def _linear_layers(config: Config, hybrid: str, layers: int) -> list[bool]:
    """Tell for each layer of a Qwen3-Next or Kimi-Linear config whether it has linear attention."""
    types = config.words("layer_types", layers, ("linear_attention", "full_attention"))
    if types is not None:
        return [kind == "linear_attention" for kind in types]
    if hybrid == "kimi":
        table = config.table("linear_attn_config")
        full = table.items("full_attn_layers", None, int)
        if full is None:
            raise table.needed("full_attn_layers")
        return [index + 1 not in full for index in range(layers)]
    every = config.integer("full_attention_interval", 4)
    return [(index + 1) % every != 0 for index in range(layers)]


def _linear_attention(config: Config, hybrid: str) -> StateSpaceSpec:
    """Read the delta net of a Qwen3-Next or Kimi-Linear config."""
    if hybrid == "kimi":
        table = config.table("linear_attn_config")
        heads = table.optional("num_heads") or config.integer("linear_num_heads", 32)
        dim = table.optional("head_dim") or config.integer("linear_head_dim", 128)
        conv = table.optional("short_conv_kernel_size") or config.integer("linear_conv_kernel_dim", 4)
        return StateSpaceSpec("kda", heads, dim, heads, dim, conv, 64)
    groups, heads = _heads_in_groups(config, "linear_num_value_heads", "linear_num_key_heads")
    dim, state = config.integer("linear_value_head_dim"), config.integer("linear_key_head_dim")
    return StateSpaceSpec("gdn", heads, dim, groups, state, config.integer("linear_conv_kernel_dim", 4), 64)


def _mamba(config: Config) -> StateSpaceSpec:
    """Read the Mamba-2 block of a Nemotron-H config."""
    groups, heads = _heads_in_groups(config, "mamba_num_heads", "n_groups")
    dim, state = config.integer("mamba_head_dim"), config.integer("ssm_state_size")
    conv, chunk = config.integer("conv_kernel", 4), config.integer("chunk_size", 128)
    bias = config.flag("use_conv_bias", default=True)
    return StateSpaceSpec("mamba2", heads, dim, groups, state, conv, chunk, conv_bias=bias)


def _heads_in_groups(config: Config, heads_key: str, groups_key: str) -> tuple[int, int]:
    groups, heads = config.integer(groups_key), config.integer(heads_key)
    if heads % groups:
        raise config.error(heads_key, f"= {heads} is not a multiple of {groups_key} = {groups}")
    return groups, heads


LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
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


def _nemotron_h_layers(config: Config, attention: AttentionSpec) -> tuple[list[LayerSpec], MtpSpec | None]:
    """Read the layers of a Nemotron-H config, each of a single block, and its multi-token prediction."""
    pattern = _block_pattern(config, "hybrid_override_pattern", "layers_block_type")
    if pattern is None:
        raise config.needed("hybrid_override_pattern")
    layers = config.optional("num_hidden_layers")
    if layers is not None and layers != len(pattern):
        raise config.error("hybrid_override_pattern", f"has {len(pattern)} letters for {layers} layers")
    depth = config.optional("num_nextn_predict_layers", 0) or 0
    module = (_block_pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E") if depth else ""
    kinds: dict[str, LayerSpec] = {}
    for letter in {*pattern, *module}:
        kinds[letter] = LayerSpec(
            attention if letter == "*" else None,
            MlpSpec(config.integer("intermediate_size"), gated=False) if letter == "-" else None,
            _latent_experts(config) if letter == "E" else None,
            norms=1,
            state_space=_mamba(config) if letter == "M" else None,
        )
    mtp = MtpSpec(depth, mtp_module(tuple(kinds[letter] for letter in module)), shared=True) if depth else None
    return [kinds[letter] for letter in pattern], mtp


def _latent_experts(config: Config) -> MoeSpec:
    experts, top_k = config.integer("n_routed_experts"), config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.error("num_experts_per_tok", f"= {top_k} is more than the {experts} experts")
    return MoeSpec(
        experts,
        top_k,
        config.integer("moe_intermediate_size"),
        gated=False,
        shared_ffn=config.integer("moe_shared_expert_intermediate_size", 0, low=0),
        correction_bias=True,
        latent=config.optional("moe_latent_size", low=0) or 0,
    )
