"""Hugging Face `config.json` -> `ModelSpec`, for the model types of `huggingface_families.FAMILIES`.

Keys that do not change the shape (dropout, quantisation, token ids) are not read, those of `NumericsSpec` (rope) for
exports alone. A top-level config must state hidden_size, num_hidden_layers, num_attention_heads and vocab_size; other
missing keys have the defaults of the transformers library's class. In the nested `text_config` of a multimodal model,
which transformers saves without defaults, every key may be missing.

How layers that mix state spaces with attention (Nemotron-H, Qwen3-Next, Kimi-Linear) are read follows the config and
model classes of the transformers library (5.x) and, for Kimi-Linear, the modeling file in
moonshotai/Kimi-Linear-48B-A3B-Base.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.errors import InputError, nearest, shown
from gpuscale.files import read_text, refuse_irregular
from gpuscale.presets.files import short
from gpuscale.presets.hub import source_of
from gpuscale.presets.huggingface_families import FAMILIES, TEXT_TYPES, UNSUPPORTED, Family
from gpuscale.presets.huggingface_numerics import numerics_of
from gpuscale.presets.towers import FROZEN, NOT_TRAINED, TRAINED, towers_of
from gpuscale.specs import model as specs
from gpuscale.units import MIB

MAX_CONFIG_BYTES = 4 * MIB
"""Largest config.json read: quantisation sections that list every layer reach about 1 MB."""

_LARGEST = {
    specs.MAX_EXPERTS: (
        "n_routed_experts", "num_experts", "num_local_experts", "num_experts_per_tok", "n_shared_experts", "n_group",
        "topk_group"),
    specs.MAX_HEADS: (
        "num_attention_heads", "num_key_value_heads", "swa_num_attention_heads", "swa_num_key_value_heads",
        "mamba_num_heads", "n_groups", "num_heads", "linear_num_heads", "linear_num_key_heads",
        "linear_num_value_heads", "index_n_heads"),
    specs.MAX_HEAD_DIM: (
        "head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
        "mamba_head_dim", "ssm_state_size", "linear_head_dim", "linear_key_head_dim", "linear_value_head_dim",
        "index_head_dim"),
    specs.MAX_HIDDEN: ("hidden_size", "q_lora_rank", "kv_lora_rank", "moe_latent_size"),
    specs.MAX_LAYERS: ("num_hidden_layers",),
    specs.MAX_MTP: ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    specs.MAX_SEQUENCE: ("max_position_embeddings", "sliding_window", "attention_chunk_size", "index_topk"),
    specs.MAX_VOCAB: ("vocab_size",),
    64: ("conv_kernel", "linear_conv_kernel_dim", "short_conv_kernel_size"),
}  # fmt: skip
LIMITS = {key: largest for largest, keys in _LARGEST.items() for key in keys}
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


NO_SHAPE = frozenset({
    "n_ctx", "context_window_size", "sliding_window_size", "prefill_chunk_size", "attention_sink_size", "rotary_dim",
    "qk_head_dim", "n_group", "chunk_size", "time_step_rank",
})  # fmt: skip
"""Keys that name a size and change none, or that follow from others that are read."""

_SIZE = re.compile(r"(_size|_dim|_rank|_heads|_layers|_experts|_groups|_width|^dim|^d_\w+|^n_\w+)$")


class Config(NamedTuple):
    """A config.json, or its nested text config, read key by key with checks."""

    place: str  #: the file, for messages.
    data: Mapping[str, Any]  #: the JSON object.
    defaults: Mapping[str, Any]  #: values of keys that are missing or null.
    prefix: str = ""  #: `text_config.` inside a multimodal config.

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
        raise self.needed(key)

    def optional(self, key: str, low: int = 1) -> int | None:
        """Return an integer from `low` to the key's limit, or None where it is missing and has no default."""
        return None if self.value(key, None) is None else self.integer(key, low=low)

    def integer(self, key: str, default: Any = _MISSING, low: int = 1) -> int:
        """Return an integer from `low` to the key's limit.

        Raises:
            InputError: missing, not an integer, or out of range.
        """
        found = self.value(key, default)
        if found is None:
            raise self.needed(key)
        high = LIMITS.get(key, specs.MAX_FFN)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.error(key, f"is {short(found)}, not a whole number")
        if not low <= found <= high:
            raise self.error(key, f"is {short(found)}, out of range", f"{key} goes from {low} to {high:,}")
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean; missing and without a class default it is `default`."""
        found = self.value(key, default)
        if not isinstance(found, bool):
            raise self.error(key, f"is {short(found)}, not true or false")
        return found

    def setting(self, setting: bool | str) -> bool:
        """Return a family's constant, or the flag that it names."""
        return self.flag(setting) if isinstance(setting, str) else setting

    def items(self, key: str, layers: int | None, of: type) -> list[Any] | None:
        """Return a list of `of` (with one entry per layer where `layers` is given), or None where it is missing."""
        found = self.value(key, None)
        if found is None:
            return None
        good = isinstance(found, list) and all(isinstance(item, of) and not isinstance(item, bool) for item in found)
        if not good:
            raise self.error(key, f"is {short(found)}, not a list of {'words' if of is str else 'whole numbers'}")
        if layers is not None and len(found) != layers:
            raise self.error(key, f"has {len(found)} entries for {layers} layers")
        return list(found)

    def words(self, key: str, layers: int | None, known: Sequence[str]) -> list[str] | None:
        """Return a list of `known` words, one per layer where `layers` is given, or None where it is missing."""
        found = self.items(key, layers, str)
        strange = next((word for word in found or () if word not in known), None)
        if strange is not None:
            raise self.error(key, f"holds {short(strange)}, not {' or '.join(known)}: not supported")
        return found

    def needed(self, key: str) -> InputError:
        """Build the error for a key that is missing and has no default."""
        return self.error(key, "is missing", f"a config of this model type needs {key}")

    def table(self, key: str) -> Config:
        """Return a nested object as a config of its own (empty where it is missing)."""
        found = self.value(key, {})
        if not isinstance(found, dict):
            raise self.error(key, f"is {short(found)}, not an object")
        return Config(self.place, found, {}, f"{self.prefix}{key}.")

    def having(self, **values: Any) -> Config:
        """Return the config with the given keys set."""
        return self._replace(data={**self.data, **values})


def load_config(path: Path) -> specs.ModelSpec:
    """Read a Hugging Face config.json, or the one in a folder.

    Raises:
        InputError: no such file, not JSON, a model type that is not read, or a key that is missing or wrong.
    """
    with suppress(OSError):  # too long a name: refused where it is opened
        path = path / "config.json" if path.is_dir() else path
    refuse_irregular(path, "a config.json", "give a config.json, or a folder that holds one")
    cached = source_of(path)  # named by its id in the cache, else by the folder of a config.json or by the file
    label = cached[0] if cached else path.resolve().parent.name if path.name == "config.json" else path.stem
    model = read_config(_read_file(path), label[:80] or "config")
    note = cached and f"{model.source}, in the Hugging Face cache at commit {cached[1][:12]}"
    return replace(model, source=note) if note else model


def _read_file(file: Path) -> Config:
    """Read a config.json of at most 4 MiB."""
    place = str(file)[:300]
    hint = "give a model's config.json, or a model file that ends in .toml"
    text = read_text(file, MAX_CONFIG_BYTES, "a config.json", hint=hint)
    try:
        data = json.loads(text)
    except RecursionError:
        raise InputError("nested too deep for a config.json", place=place) from None
    except json.JSONDecodeError as error:
        stray = text[error.pos : error.pos + 1]
        what = f"{shown(stray)} at column {error.colno} is out of place" if stray else "it ends too early"
        raise InputError(f"not valid JSON: {what}", place=f"{place}:{error.lineno}", hint=hint) from None
    except ValueError:  # an integer of thousands of digits
        raise InputError("not valid JSON: a number is too long", place=place, hint=hint) from None
    if not isinstance(data, dict):
        raise InputError(f"is {short(data)}, not an object of keys", place=place, hint=hint)
    return Config(place, data, {})


def read_config(config: Config, name: str) -> specs.ModelSpec:
    """Turn a parsed config into a `ModelSpec` called `name`."""
    model_type = config.value("model_type")
    if not isinstance(model_type, str):
        raise config.error("model_type", f"is {short(model_type)}, not a word")
    notes: list[str] = []
    config, model_type, towers = _language_model(config, model_type)
    if towers:
        notes.append(f"the text backbone ({model_type}) of a multimodal model")
    family = _family(config, model_type)
    known = {key: value for key, value in config.defaults.items() if value is not None}
    config = config._replace(defaults={**family.defaults, **known})
    if "quantization_config" in config.data:
        notes.append("quantization_config is not read: parameters are counted, not bytes")
    refused = next((key for key in family.refused if config.flag(key)), None)
    if refused:
        raise config.error(refused, "is true, which is not supported for this model type")
    _refuse_unread(config)
    config, family = _canonical(config, family, model_type)
    layers, mtp = _layers(config, family, model_type)
    kinds = tuple(dict.fromkeys(layers))
    sequence = config.integer("max_position_embeddings")
    return specs.ModelSpec(
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
        numerics=numerics_of(config.data, model_type),
        source=f"Hugging Face config.json, model_type {model_type}",
        notes=tuple(notes),
        towers=towers,
    )


def _language_model(config: Config, model_type: str) -> tuple[Config, str, tuple[specs.TowerSpec, ...]]:
    """Return the config of the language model inside one, its model type, and the towers beside it."""
    whole, whole_type, beside = config, model_type, dict(config.data)
    for keys in (("thinker_config",), ("text_config", "llm_config", "language_config")):
        key = next((key for key in keys if isinstance(config.data.get(key), dict)), None)
        if key is not None:
            config = config.table(key)
            beside |= config.data if key == "thinker_config" else {}
    if config is not whole:
        config = config._replace(defaults={"tie_word_embeddings": whole.data.get("tie_word_embeddings")})
        model_type = config.data.get("model_type") or model_type
    for key, frozen in FROZEN.items():
        if whole.data.get(key) is frozen:
            raise whole.error(key, f"is {str(frozen).lower()}: {NOT_TRAINED}", TRAINED)
    multimodal = config is not whole or model_type in TEXT_TYPES
    model_type = TEXT_TYPES.get(model_type, model_type)
    towers = towers_of(beside, whole_type, config.value("hidden_size", None))
    unknown = specs.TowerSpec("vision" if whole_type in TEXT_TYPES else "multimodal")
    return config, model_type, towers or ((unknown,) if multimodal else ())


def _refuse_unread(config: Config) -> None:
    """Refuse a key that names a size and that no family reads: the count would silently be another model's."""
    for key, value in config.data.items():
        size = isinstance(value, int) and not isinstance(value, bool) and value > 1
        if size and _SIZE.search(key) and key not in NO_SHAPE and key not in _known_keys():
            hint = "write a model file (docs/models.md), or delete the key where it does not change the shape"
            raise config.error(key, f"= {short(value)} names a size that is not read", hint)


@cache
def _known_keys() -> frozenset[str]:
    """Return all keys that some family reads."""
    found = {*LIMITS, *STATED, *SYNONYMS, *chain.from_iterable(SYNONYMS.values())}
    left: list[Any] = [vars(family) for family in FAMILIES.values()]
    for one in left:
        if isinstance(one, str):
            found.add(one)
        elif isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, tuple | list | set | frozenset):
            left += one
    return frozenset(found)


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
    match model_type:
        case "gpt2" | "gptj" | "phi" | "phi-msft":
            config = _four_wide(config)
        case "gpt_bigcode":
            heads = 1 if config.flag("multi_query") else config.integer("num_attention_heads")
            config = _four_wide(config.having(num_key_value_heads=heads))
        case "falcon":
            new, parallel = config.flag("new_decoder_architecture"), config.flag("parallel_attn")
            heads = config.integer("num_attention_heads")
            kv_heads = config.optional("num_key_value_heads") if new else 1 if config.flag("multi_query") else heads
            norms = (config.optional("num_ln_in_parallel_attn") or 2) if new else 1 if parallel else 2
            config = _four_wide(config.having(num_key_value_heads=kv_heads or heads))
            family = replace(family, norms=norms, parallel=new or parallel)
        case "mpt":
            attention = config.table("attn_config").value("attn_type", "")
            if not config.flag("no_bias") or attention == "multiquery_attention":
                message = "is false or attn_type is multiquery_attention, which is not supported"
                raise config.error("no_bias", message)
            width = config.integer("expansion_ratio", 4) * config.integer("hidden_size")
            config = config.having(intermediate_size=width)
        case "dbrx":
            ffn = config.table("ffn_config")
            config = config.having(
                num_key_value_heads=config.table("attn_config").integer("kv_n_heads", 1),
                intermediate_size=ffn.integer("ffn_hidden_size", 3584),
                num_local_experts=ffn.integer("moe_num_experts", 4),
                num_experts_per_tok=ffn.integer("moe_top_k", 1),
            )
        case "chatglm" if config.flag("multi_query_attention"):
            config = config.having(num_key_value_heads=config.integer("multi_query_group_num"))
        case "stablelm":
            parallel = config.flag("use_parallel_residual")
            family = replace(family, norms=1 if parallel else 2, parallel=parallel)
        case "gpt_neox":
            family = replace(family, parallel=config.flag("use_parallel_residual"))
    return config, family


def _four_wide(config: Config) -> Config:
    """Say the width of the MLP: four times that of the model where the config does not."""
    return config.having(intermediate_size=config.optional("intermediate_size") or 4 * config.integer("hidden_size"))


def _layers(config: Config, family: Family, model_type: str) -> tuple[list[specs.LayerSpec], specs.MtpSpec | None]:
    """Build the layers, first to last, and the multi-token-prediction modules."""
    if family.hybrid == "nemotron_h":
        return _nemotron_h_layers(config, family)
    count = config.integer("num_hidden_layers")
    mimo = model_type == "mimo_v2_flash"
    attentions = _mimo_attentions(config, count) if mimo else _attentions(config, family, count)
    sparse = _sparse_layers(config, family, count)
    moe = _moe(config, family) if any(sparse) else None
    mlp = None
    if not all(sparse):
        width = config.integer("intermediate_size_mlp" if family.experts == "llama4" else "intermediate_size")
        mlp = specs.MlpSpec(width, family.gated, config.setting(family.mlp_bias))
    layers = [
        specs.LayerSpec(
            attention,
            None if routed else mlp,
            moe if routed else None,
            family.norms,
            family.norm_bias,
            parallel_blocks=family.parallel,
        )
        for attention, routed in zip(attentions, sparse, strict=True)
    ]
    key = family.mtp_key or "num_nextn_predict_layers"
    depth = (config.optional(key, 0) or 0) if family.correction_bias or family.mtp_key else 0
    mtp = specs.MtpSpec(depth, specs.mtp_module((layers[-1],))) if depth else None  # of a layer with attention each
    if family.hybrid:
        linear, spec = _linear_attention(config, family.hybrid, count)
        layers = [
            replace(layer, attention=None, state_space=spec) if swap else layer
            for layer, swap in zip(layers, linear, strict=True)
        ]
    return layers, mtp


def _attentions(config: Config, family: Family, layers: int) -> list[specs.AttentionSpec]:
    """Build the attention of each layer, which differ only in their windows."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    latent = None
    if family.latent:
        latent = specs.LatentSpec(
            query_rank=config.data.get("q_lora_rank", config.optional("q_lora_rank")),  # null: none, against the class
            kv_rank=config.integer("kv_lora_rank"),
            nope_dim=config.integer("qk_nope_head_dim"),
            rope_dim=config.integer("qk_rope_head_dim"),
        )
    kv_heads = heads if latent else config.optional("num_key_value_heads") or heads
    head_dim = latent.nope_dim + latent.rope_dim if latent else config.optional("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise config.error("hidden_size", f"= {hidden} is not a multiple of num_attention_heads = {heads}")
        head_dim = hidden // heads
    if heads % kv_heads:
        raise config.error("num_attention_heads", f"= {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    with_norm = family.qk_norm_key is None or config.flag(family.qk_norm_key)
    base = specs.AttentionSpec(
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
    if family.indexer:  # DeepSeek sparse attention; `shared` layers reuse an earlier one's choice
        heads, head_dim = config.integer("index_n_heads"), config.integer("index_head_dim")
        indexer = specs.IndexerSpec(heads, head_dim, config.integer("index_topk"))
        own, shared = replace(whole, indexer=indexer), replace(whole, indexer=replace(indexer, shared=True))
        types = config.words("indexer_types", layers, ("full", "shared")) or ["full"] * layers
        return [own if kind == "full" else shared for kind in types]
    return [replace(base, window=window) if window else whole for window in _windows(config, family, layers)]


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
    if family.windows == "upper":
        first = config.integer("max_window_layers", layers, low=0) if config.flag("use_sliding_window") else layers
        return [length if index >= first else None for index in range(layers)]
    if not family.full_every:
        return [length] * layers
    chunks = family.windows == "chunks"
    rope = config.items("no_rope_layers", None, int) if chunks else None
    if rope and len(rope) == layers:
        return [length if flag else None for flag in rope]
    every_key = "no_rope_layer_interval" if chunks else "sliding_window_pattern"
    written = config.value(every_key, None)  # EXAONE 4 writes the pattern out: LLLG
    every = len(written) if isinstance(written, str) else config.optional(every_key, low=0) or family.full_every
    return [None if every and (index + 1) % every == 0 else length for index in range(layers)]


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
    if family.experts != "deepseek" or config.optional("n_routed_experts") is None:
        return [family.experts == "all"] * layers
    if isinstance(config.data.get("moe_layer_freq"), list):
        return [bool(flag) for flag in config.items("moe_layer_freq", layers, int) or ()]
    first, step = config.integer("first_k_dense_replace", 0, low=0), config.integer("moe_layer_freq", 1)
    return [index >= first and index % step == 0 for index in range(layers)]


def _moe(config: Config, family: Family) -> specs.MoeSpec:
    names = {"qwen": "num_experts", "deepseek": "n_routed_experts", "nemotron": "n_routed_experts"}
    experts = config.integer(names.get(family.experts, "num_local_experts"))
    top_k = config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.error("num_experts_per_tok", f"= {top_k} is more than the {experts} experts")
    width = config.integer("moe_intermediate_size" if family.experts in names else "intermediate_size")
    shared = 0
    if family.experts == "qwen" and family.shared_gate:
        shared = config.integer("shared_expert_intermediate_size", 0, low=0)
    elif family.experts == "deepseek":
        shared = width * (config.optional("n_shared_experts", 0) or 0)
    elif family.experts == "nemotron":
        shared = config.integer("moe_shared_expert_intermediate_size", 0, low=0)
    elif family.experts == "llama4":
        shared = width
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


def _mimo_attentions(config: Config, layers: int) -> list[specs.AttentionSpec]:
    """MiMo-V2: layers with a window have their own numbers of heads and may have sinks."""
    pattern = config.items("hybrid_layer_pattern", layers, int)
    if pattern is None:
        raise config.needed("hybrid_layer_pattern")

    def attention(prefix: str, window: int | None, sinks: str) -> specs.AttentionSpec:
        keys = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
        heads, kv_heads, head_dim, value_head_dim = (config.integer(prefix + key) for key in keys)
        return specs.AttentionSpec(heads, kv_heads, head_dim, value_head_dim, window=window, sinks=config.flag(sinks))

    whole = attention("", None, "add_full_attention_sink_bias")
    windowed = attention("swa_", config.integer("sliding_window"), "add_swa_attention_sink_bias")
    return [windowed if flag else whole for flag in pattern]


def _linear_attention(config: Config, hybrid: str, layers: int) -> tuple[list[bool], specs.StateSpaceSpec]:
    """Return which layers of a Qwen3-Next or Kimi-Linear config have linear attention, and their delta net."""
    types = config.words("layer_types", layers, ("linear_attention", "full_attention"))
    linear = None if types is None else [kind == "linear_attention" for kind in types]
    if hybrid == "kimi":
        table = config.table("linear_attn_config")
        if linear is None:
            full = table.items("full_attn_layers", None, int)
            if full is None:
                raise table.needed("full_attn_layers")
            linear = [index + 1 not in full for index in range(layers)]
        heads = table.optional("num_heads") or config.integer("linear_num_heads", 32)
        dim = table.optional("head_dim") or config.integer("linear_head_dim", 128)
        conv = table.optional("short_conv_kernel_size") or config.integer("linear_conv_kernel_dim", 4)
        return linear, specs.StateSpaceSpec("kda", heads, dim, heads, dim, conv, 64)
    if linear is None:
        every = config.integer("full_attention_interval", 4)
        linear = [(index + 1) % every != 0 for index in range(layers)]
    groups, heads = _heads_in_groups(config, "linear_num_value_heads", "linear_num_key_heads")
    dim, state = config.integer("linear_value_head_dim"), config.integer("linear_key_head_dim")
    return linear, specs.StateSpaceSpec(
        "gdn", heads, dim, groups, state, config.integer("linear_conv_kernel_dim", 4), 64
    )


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


def _nemotron_h_layers(config: Config, family: Family) -> tuple[list[specs.LayerSpec], specs.MtpSpec | None]:
    """Read the layers of a Nemotron-H config, each of a single block, and its multi-token prediction."""
    pattern = _block_pattern(config, "hybrid_override_pattern", "layers_block_type")
    if pattern is None:
        raise config.needed("hybrid_override_pattern")
    layers = config.optional("num_hidden_layers")
    if layers is not None and layers != len(pattern):
        raise config.error("hybrid_override_pattern", f"has {len(pattern)} letters for {layers} layers")
    depth = config.optional("num_nextn_predict_layers", 0) or 0
    module = (_block_pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E") if depth else ""
    used = {*pattern, *module}
    kinds = {"*": specs.LayerSpec(_attentions(config, family, 1)[0], None, None, norms=1)}
    if "-" in used:
        mlp = specs.MlpSpec(config.integer("intermediate_size"), gated=False)
        kinds["-"] = specs.LayerSpec(None, mlp, None, norms=1)
    if "E" in used:
        kinds["E"] = specs.LayerSpec(None, None, _moe(config, family), norms=1)
    if "M" in used:
        groups, heads = _heads_in_groups(config, "mamba_num_heads", "n_groups")
        dim, state = config.integer("mamba_head_dim"), config.integer("ssm_state_size")
        conv, chunk = config.integer("conv_kernel", 4), config.integer("chunk_size", 128)
        bias = config.flag("use_conv_bias", default=True)
        mamba = specs.StateSpaceSpec("mamba2", heads, dim, groups, state, conv, chunk, conv_bias=bias)
        kinds["M"] = specs.LayerSpec(None, None, None, norms=1, state_space=mamba)
    after = tuple(kinds[letter] for letter in module)
    mtp = specs.MtpSpec(depth, specs.mtp_module(after), shared=True) if depth else None
    return [kinds[letter] for letter in pattern], mtp
