"""Hugging Face `config.json` -> `ModelSpec`, for the model types of `huggingface_families.FAMILIES`.

Nothing in the file is trusted: its size is bounded, every value is checked for type and range before use, and what
is not understood is refused with the key's name. Keys that do not change the shape (rope, dropout, quantisation,
token ids) are not read.

A top-level config must state hidden_size, num_hidden_layers, num_attention_heads and vocab_size; other missing keys
have the defaults of the transformers library's class. In the nested `text_config` of a multimodal model, which
transformers saves without defaults, every key may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError, nearest
from gpuscale.presets.huggingface_families import FAMILIES, TEXT_TYPES, UNSUPPORTED, Family, Setting
from gpuscale.presets.huggingface_hybrids import (
    linear_attention,
    linear_layers,
    nemotron_h_layers,
    with_linear_attention,
)
from gpuscale.presets.text import read_text
from gpuscale.specs import (
    AttentionSpec,
    IndexerSpec,
    LatentSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    mtp_module,
)
from gpuscale.specs.model import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_MTP,
    MAX_SEQUENCE,
    MAX_VOCAB,
)
from gpuscale.units import MIB

MAX_CONFIG_BYTES = 4 * MIB
"""Largest config.json read: quantisation sections that list every layer reach about 1 MB."""

LIMITS = {
    "hidden_size": MAX_HIDDEN, "num_hidden_layers": MAX_LAYERS, "num_attention_heads": MAX_HEADS,
    "num_key_value_heads": MAX_HEADS, "swa_num_key_value_heads": MAX_HEADS, "swa_num_attention_heads": MAX_HEADS,
    "head_dim": MAX_HEAD_DIM, "v_head_dim": MAX_HEAD_DIM, "swa_head_dim": MAX_HEAD_DIM, "swa_v_head_dim": MAX_HEAD_DIM,
    "qk_nope_head_dim": MAX_HEAD_DIM, "qk_rope_head_dim": MAX_HEAD_DIM, "q_lora_rank": MAX_HIDDEN,
    "kv_lora_rank": MAX_HIDDEN, "vocab_size": MAX_VOCAB, "max_position_embeddings": MAX_SEQUENCE,
    "n_routed_experts": MAX_EXPERTS, "num_experts": MAX_EXPERTS, "num_local_experts": MAX_EXPERTS,
    "n_group": MAX_EXPERTS, "topk_group": MAX_EXPERTS,
    "num_experts_per_tok": MAX_EXPERTS, "n_shared_experts": MAX_EXPERTS, "num_nextn_predict_layers": MAX_MTP,
    "mtp_num_hidden_layers": MAX_MTP, "mamba_num_heads": MAX_HEADS, "mamba_head_dim": MAX_HEAD_DIM,
    "n_groups": MAX_HEADS,
    "ssm_state_size": MAX_HEAD_DIM, "conv_kernel": 64, "linear_conv_kernel_dim": 64, "short_conv_kernel_size": 64,
    "linear_num_key_heads": MAX_HEADS, "linear_num_value_heads": MAX_HEADS, "linear_key_head_dim": MAX_HEAD_DIM,
    "linear_value_head_dim": MAX_HEAD_DIM, "num_heads": MAX_HEADS, "linear_num_heads": MAX_HEADS,
    "linear_head_dim": MAX_HEAD_DIM, "index_n_heads": MAX_HEADS,
    "index_head_dim": MAX_HEAD_DIM, "index_topk": MAX_SEQUENCE, "moe_latent_size": MAX_HIDDEN,
    "sliding_window": MAX_SEQUENCE, "attention_chunk_size": MAX_SEQUENCE,
}  # fmt: skip
"""Largest value of each key; widths of MLPs and experts, and everything else, at most MAX_FFN."""

SYNONYMS = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "model_max_length"),
    "vocab_size": ("padded_vocab_size",),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "num_local_experts": ("num_experts",),
    "num_experts": ("num_local_experts",),
    "n_routed_experts": ("num_experts", "num_local_experts"),
    "n_shared_experts": ("num_shared_experts",),
    "num_experts_per_tok": ("num_experts_per_token",),
}
"""Other spellings of a key, as older or sibling model types have them."""

STATED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys that a top-level config must state itself."""

_MISSING: Any = object()


@dataclass(frozen=True)
class Config:
    """A config.json, or its nested text config, read key by key with checks.

    Attributes:
        place: the file, for messages.
        data: the JSON object.
        defaults: values of keys that are missing or null.
        prefix: `text_config.` inside a multimodal config.
    """

    place: str
    data: Mapping[str, Any]
    defaults: Mapping[str, Any]
    prefix: str = ""

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """Build the error for something wrong at `key`."""
        return InputError(f"{self.prefix}{key} {message}", place=self.place, hint=hint)

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """Return the value of `key` or of a synonym; null counts as missing.

        Raises:
            InputError: missing, and there is no default.
        """
        for name in (key, *SYNONYMS.get(key, ())):
            if self.data.get(name) is not None:
                return self.data[name]
        if key in self.defaults and (self.prefix or key not in STATED):
            return self.defaults[key]
        if default is not _MISSING:
            return default
        raise self.error(key, "is missing", f"a config of this model type needs {key}")

    def optional(self, key: str, low: int = 1) -> int | None:
        """Return an integer from `low` to the key's limit, or None where it is missing and has no default."""
        found = self.value(key, None)
        return None if found is None else self._checked(key, found, low)

    def integer(self, key: str, default: Any = _MISSING, low: int = 1) -> int:
        """Return an integer from `low` to the key's limit.

        Raises:
            InputError: missing, not an integer, or out of range.
        """
        found = self.value(key, default)
        if found is None:
            raise self.error(key, "is missing", f"a config of this model type needs {key}")
        return self._checked(key, found, low)

    def _checked(self, key: str, found: Any, low: int) -> int:
        high = LIMITS.get(key, MAX_FFN)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.error(key, f"is {_short(found)}, not a whole number")
        if not low <= found <= high:
            raise self.error(key, f"is {_short(found)}, out of range", f"{key} goes from {low} to {high:,}")
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean; missing and without a class default it is `default`."""
        found = self.value(key, default)
        if not isinstance(found, bool):
            raise self.error(key, f"is {_short(found)}, not true or false")
        return found

    def setting(self, setting: Setting) -> bool:
        """Return a family's constant, or the flag that it names."""
        return self.flag(setting) if isinstance(setting, str) else setting

    def items(self, key: str, layers: int | None, of: type) -> list[Any] | None:
        """Return a list of `of` (with one entry per layer where `layers` is given), or None where it is missing."""
        found = self.value(key, None)
        if found is None:
            return None
        good = isinstance(found, list) and all(isinstance(item, of) and not isinstance(item, bool) for item in found)
        if not good:
            raise self.error(key, f"is {_short(found)}, not a list of {'words' if of is str else 'whole numbers'}")
        if layers is not None and len(found) != layers:
            raise self.error(key, f"has {len(found)} entries for {layers} layers")
        return list(found)

    def table(self, key: str) -> Config:
        """Return a nested object as a config of its own (empty where it is missing)."""
        found = self.value(key, {})
        if not isinstance(found, dict):
            raise self.error(key, f"is {_short(found)}, not an object")
        return Config(self.place, found, {}, f"{self.prefix}{key}.")

    def having(self, **values: Any) -> Config:
        """Return the config with the given keys set."""
        return replace(self, data={**self.data, **values})


def load_config(path: Path) -> ModelSpec:
    """Read a Hugging Face config.json, or the one in a folder.

    Raises:
        InputError: no such file, not JSON, a model type that is not read, or a key that is missing or wrong.
    """
    file = _config_file(path)
    data = _parse(file)
    config = Config(str(file)[:300], data, {})
    label = file.resolve().parent.name if file.name == "config.json" else file.stem
    return read_config(config, label[:80] or "config")


def read_config(config: Config, name: str) -> ModelSpec:
    """Turn a parsed config into a `ModelSpec` called `name`."""
    model_type = _model_type(config)
    notes: list[str] = []
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.data.get(key), dict):
            outer, config = config, config.table(key)
            config = replace(config, defaults={"tie_word_embeddings": outer.data.get("tie_word_embeddings")})
            model_type = config.data.get("model_type") or TEXT_TYPES.get(model_type, model_type)
            notes.append(f"the text backbone ({model_type}) of a multimodal model; other towers are not counted")
            break
    else:
        if model_type in TEXT_TYPES and TEXT_TYPES[model_type] in FAMILIES:
            model_type = TEXT_TYPES[model_type]
            notes.append("the text backbone of a multimodal model; other towers are not counted")
    family = _family(config, model_type)
    known = {key: value for key, value in config.defaults.items() if value is not None}
    config = replace(config, defaults={**family.defaults, **known})
    if "quantization_config" in config.data:
        notes.append("quantization_config is not read: parameters are counted, not bytes")
    config, family = _canonical(config, family, model_type)
    return _spec(config, family, name, model_type, tuple(notes))


def _config_file(path: Path) -> Path:
    try:
        if path.is_dir():
            path = path / "config.json"
        if path.is_file():
            return path
        exists = path.exists()
    except (OSError, ValueError):  # too long a name, a NUL byte
        exists = False
    what = "is not a regular file" if exists else "no such file"
    raise InputError(what, place=repr(str(path)[:300]), hint="give a config.json, or a folder that holds one")


def _parse(file: Path) -> dict[str, Any]:
    place = str(file)[:300]
    hint = "give a model's config.json, or a model file that ends in .toml"
    text = read_text(file, MAX_CONFIG_BYTES, "a config.json", hint=hint)
    try:
        data = json.loads(text)
    except RecursionError:
        raise InputError("nested too deep for a config.json", place=place) from None
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", place=f"{place}:{error.lineno}", hint=hint) from None
    except ValueError:  # an integer of thousands of digits
        raise InputError("not valid JSON: a number is too long", place=place, hint=hint) from None
    if not isinstance(data, dict):
        raise InputError(f"is {_short(data)}, not an object of keys", place=place, hint=hint)
    return data


def _model_type(config: Config) -> str:
    found = config.value("model_type")
    if not isinstance(found, str):
        raise config.error("model_type", f"is {_short(found)}, not a word")
    return found


def _family(config: Config, model_type: Any) -> Family:
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    shown = _short(model_type)
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
        return nemotron_h_layers(config, _attentions(config, family, 1)[0])
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
        linear = linear_layers(config, family.hybrid, count)
        spec = linear_attention(config, family.hybrid)
        return with_linear_attention(layers, linear, spec), mtp
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
    types = config.items("indexer_types", layers, str) or ["full"] * layers
    strange = next((kind for kind in types if kind not in ("full", "shared")), None)
    if strange is not None:
        raise config.error("indexer_types", f"holds {_short(strange)}, not full or shared")
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
    length = None if family.windows == "none" or _is_null(config, key) else config.optional(key)
    types = config.items("layer_types", layers, str)
    if types is not None:
        _check_layer_types(config, types, windowed=family.windows != "none")
        if family.windows in ("pattern", "chunks", "upper"):
            return [None if kind == "full_attention" else length for kind in types]
    full_every = _full_every(config, family)
    if family.windows == "upper":
        first = config.integer("max_window_layers", layers, low=0) if config.flag("use_sliding_window") else layers
        return [length if index >= first else None for index in range(layers)]
    rope = config.items("no_rope_layers", None, int) if family.windows == "chunks" else None
    if rope and len(rope) == layers:
        return [length if flag else None for flag in rope]
    return [None if full_every and (index + 1) % full_every == 0 else length for index in range(layers)]


def _is_null(config: Config, key: str) -> bool:
    """Whether the config says null, which turns a class default off."""
    return key in config.data and config.data[key] is None


def _check_layer_types(config: Config, types: Sequence[str], *, windowed: bool) -> None:
    known = {"full_attention", *(("sliding_attention", "chunked_attention") if windowed else ())}
    for kind in types:
        if kind not in known:
            raise config.error("layer_types", f"holds {_short(kind)}, which is not supported for this model type")


def _full_every(config: Config, family: Family) -> int:
    if not family.full_every:
        return 0
    key = "no_rope_layer_interval" if family.windows == "chunks" else "sliding_window_pattern"
    if isinstance(config.value(key, None), str):  # EXAONE 4 writes the pattern out: LLLG
        return len(config.value(key))
    return config.optional(key, low=0) or family.full_every


def _sparse_layers(config: Config, family: Family, layers: int) -> list[bool]:
    """Tell for each layer whether it has routed experts."""
    types = config.items("mlp_layer_types", layers, str) if family.experts else None
    if types is not None:
        strange = next((kind for kind in types if kind not in ("sparse", "dense")), None)
        if strange is not None:
            raise config.error("mlp_layer_types", f"holds {_short(strange)}, not sparse or dense")
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
    experts = config.integer({"qwen": "num_experts", "deepseek": "n_routed_experts"}.get(family.experts, _EXPERTS))
    top_k = config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.error("num_experts_per_tok", f"= {top_k} is more than the {experts} experts")
    width = config.integer("moe_intermediate_size" if family.experts in ("qwen", "deepseek") else _FFN)
    shared = _shared_ffn(config, family, width)
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


_EXPERTS = "num_local_experts"


def _shared_ffn(config: Config, family: Family, width: int) -> int:
    if family.experts == "qwen":
        return config.integer("shared_expert_intermediate_size", 0, low=0) if family.shared_gate else 0
    if family.experts == "deepseek":
        return width * (config.optional("n_shared_experts", 0) or 0)
    return width if family.experts == "llama4" else 0


def _mimo_attentions(config: Config, layers: int) -> list[AttentionSpec]:
    """MiMo-V2: layers with a window have their own numbers of heads and may have sinks."""
    pattern = config.items("hybrid_layer_pattern", layers, int)
    if pattern is None:
        raise config.error("hybrid_layer_pattern", "is missing", "a config of this model type needs it")

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


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "an integer of more than 38 digits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."
