"""Hugging Face `config.json` -> `ModelSpec`, for the model types of `huggingface_families.FAMILIES`.

Keys that do not change the shape (dropout, quantisation, token ids) are not read, those of `NumericsSpec` for exports
alone. A top-level config must state hidden_size, num_hidden_layers, num_attention_heads and vocab_size; other missing
keys have the defaults of the class in the transformers library, as may all in a nested `text_config`, which is saved
without defaults. Layers are read as that library (5.24) does or, for model types that it does not have, the modeling
file beside the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError, nearest, shown
from gpuscale.files import read_text, refuse_irregular
from gpuscale.presets.files import short
from gpuscale.presets.hub import source_of
from gpuscale.presets.huggingface_config import LIMITS, NO_SHAPE, SIZE, STATED, SYNONYMS, Config, class_defaults
from gpuscale.presets.huggingface_families import FAMILIES, TEXT_TYPES, UNSUPPORTED, Experts, Family, Pattern
from gpuscale.presets.huggingface_layers import WINDOW_KEYS, beside, layers_of
from gpuscale.presets.huggingface_numerics import numerics_of
from gpuscale.presets.towers import FROZEN, NOT_TRAINED, TRAINED, towers_of
from gpuscale.specs import model as specs
from gpuscale.units import MIB

MAX_CONFIG_BYTES = 4 * MIB
"""Quantisation sections that list every layer reach about 1 MB."""


def load_config(path: Path) -> specs.ModelSpec:
    """Read a Hugging Face config.json, or the one in a folder."""
    with suppress(OSError):  # too long a name: refused where it is opened
        path = path / "config.json" if path.is_dir() else path
    refuse_irregular(path, "a config.json", "give a config.json, or a folder that holds one")
    cached = source_of(path)  # named by its id in the cache, else by the folder of a config.json or by the file
    label = cached[0] if cached else path.resolve().parent.name if path.name == "config.json" else path.stem
    model = read_config(_read_file(path), label[:80] or "config")
    note = cached and f"{model.source}, in the Hugging Face cache at commit {cached[1][:12]}"
    return replace(model, source=note) if note else model


def _read_file(file: Path) -> Config:
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
    if any(model_type in types for types in UNSUPPORTED.values()):
        _family(config, model_type)
    notes: list[str] = []
    config, model_type, towers_at = _language_model(config, model_type)
    family = _family(config, model_type)
    of_class = class_defaults().get(family.class_of or model_type, {})
    config = config._replace(defaults={**of_class, **family.defaults}, names=family.keys)
    for key, times in family.per_head.items():
        if config.value(key, None) is None:
            width = times * config.integer("hidden_size") // config.integer("num_attention_heads")
            config = config.having(**{family.keys.get(key, key): width})
    if "quantization_config" in config.data:
        notes.append("quantization_config is not read: parameters are counted, not bytes")
    _refuse_unmodelled(config, family)
    _refuse_unread(config, model_type)
    config = _in_usual_keys(config, model_type)
    layers, mtp = layers_of(config, family)
    kinds = tuple(dict.fromkeys(layers))
    sequence, hidden = config.integer("max_position_embeddings"), config.integer("hidden_size")
    if towers := towers_at(hidden):
        notes.insert(0, f"the text backbone ({model_type}) of a multimodal model")
    return specs.ModelSpec(
        name=name,
        title=name,
        family=family.title,
        hidden=hidden,
        vocab=config.integer("vocab_size"),
        kinds=kinds,
        pattern=tuple(kinds.index(layer) for layer in layers),
        tied_embeddings=config.flag("tie_word_embeddings") and not family.untied,
        learned_positions=0 if family.positions is None else sequence + family.positions,
        max_sequence=sequence,
        mtp=mtp,
        head_bias=config.setting(family.head_bias),
        final_norm=config.setting(family.final_norm) and config.flag(family.norm_switch, default=True),
        at_embedding=tuple(one for end in family.at_embedding for one in beside(end, config, hidden)),
        at_head=tuple(one for end in family.at_head for one in beside(end, config, hidden)),
        numerics=numerics_of(config.data, model_type),
        source=f"Hugging Face config.json, model_type {model_type}",
        notes=tuple(notes),
        towers=towers,
    )


def _refuse_unmodelled(config: Config, family: Family) -> None:
    refused = next((key for key in family.refused if config.setting(key)), None)
    if refused:
        state = "false" if refused.startswith("!") else "true"
        key = refused.removeprefix("!")
        raise config.error(key, f"is {state}, which is not supported for this model type")
    for key, only in family.fixed.items():
        if (stated := config.value(key, None)) not in (None, only):
            raise config.error(key, f"= {short(stated)} is not {only}, which is all that the model's class builds")
    for key, other in family.equal.items():
        stated = config.value(key, None)
        if stated is not None and stated != config.value(other):
            raise config.error(key, f"= {short(stated)} differs from {other}, which is not supported")


LAYERS_OF_RATIO = {
    0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention",
}  # fmt: skip

SPARSE_KEYS = {
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
}  # fmt: skip


def _in_usual_keys(config: Config, model_type: str) -> Config:
    """Return a config with what it says in keys of its own in the usual ones."""
    match model_type:
        case "chatglm" if config.flag("multi_query_attention"):
            return config.having(num_key_value_heads=config.integer("multi_query_group_num"))
        case "deepseek_v4" if config.value("layer_types", None) is None:  # DeepSeek lists tokens in a compressed key
            ratios, layers = config.items("compress_ratios", None, int), config.integer("num_hidden_layers")
            if ratios is None:
                return config
            if len(ratios) < layers or not LAYERS_OF_RATIO.keys() >= set(ratios):
                text = f"holds {len(ratios)} ratios of {layers} layers, or not 0, 4 and 128"
                raise config.error("compress_ratios", text)
            return config.having(layer_types=[LAYERS_OF_RATIO[ratio] for ratio in ratios[:layers]])
        case "falcon":  # two architectures: how many key and value heads, and norms before parallel blocks
            new, parallel = config.flag("new_decoder_architecture"), config.flag("parallel_attn")
            heads = config.integer("num_attention_heads")
            kv_heads = config.optional("num_key_value_heads") if new else 1 if config.flag("multi_query") else heads
            norms = config.optional("num_ln_in_parallel_attn") or (2 if new else 1)
            return config.having(
                num_key_value_heads=kv_heads or heads, num_ln_in_parallel_attn=1 + (norms == 2), parallel_attn=parallel
            )
        case "minimax_m3" | "minimax_m3_vl_text":  # the choice of keys
            table = config.table("sparse_attention_config")
            return config.having(**{key: table.integer(own) for key, own in SPARSE_KEYS.items() if own in table.data})
    return config


def _language_model(
    config: Config, model_type: str
) -> tuple[Config, str, Callable[[int], tuple[specs.TowerSpec, ...]]]:
    """Return the config of the language model inside one, its model type, and the towers beside it by its width."""
    whole, whole_type, beside = config, model_type, dict(config.data)
    for keys in (("thinker_config",), ("text_config", "llm_config", "language_config")):
        key = next((key for key in keys if isinstance(config.data.get(key), dict)), None)
        if key is not None:
            config = config.table(key)
            beside |= config.data if key == "thinker_config" else {}
    if config is not whole:
        if whole.data.get("tie_word_embeddings") is not None:  # the whole model's word counts
            config = config.having(tie_word_embeddings=whole.data["tie_word_embeddings"])
        model_type = config.data.get("model_type") or model_type
    for key, frozen in FROZEN.items():
        if whole.data.get(key) is frozen:
            raise whole.error(key, f"is {str(frozen).lower()}: {NOT_TRAINED}", TRAINED)
    multimodal = config is not whole or model_type in TEXT_TYPES
    model_type = TEXT_TYPES.get(model_type, model_type)
    unknown = specs.TowerSpec("vision" if whole_type in TEXT_TYPES else "multimodal", None, whole_type)
    return config, model_type, lambda width: towers_of(beside, whole_type, width) or ((unknown,) if multimodal else ())


def _refuse_unread(config: Config, model_type: str) -> None:
    """Refuse a key that names a size and that is not read: the count would silently be another model's."""
    for key, value in config.data.items():
        size = isinstance(value, int) and not isinstance(value, bool) and value > 1
        if size and SIZE.search(key) and key not in NO_SHAPE and key not in _known_keys(model_type):
            hint = "write a model file (docs/models.md), or delete the key where it does not change the shape"
            raise config.error(key, f"= {short(value)} names a size that is not read", hint)


@cache
def _known_keys(model_type: str) -> frozenset[str]:
    """Return the keys that are read: those of the model type's class, and those that any row names."""
    found = {*LIMITS, *STATED, *SYNONYMS, *chain.from_iterable(SYNONYMS.values())}
    found |= class_defaults().get(FAMILIES[model_type].class_of or model_type, {}).keys()
    found |= {f"{family.window_prefix}{key}" for family in FAMILIES.values() for key in WINDOW_KEYS}
    left: list[Any] = [vars(family) for family in FAMILIES.values()]
    for one in left:
        if isinstance(one, str):
            found.add(one)
        elif isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, tuple):
            left += one
        elif isinstance(one, Pattern | Experts):
            left.append(vars(one))
    return frozenset(found)


def _family(config: Config, model_type: Any) -> Family:
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    shown = short(model_type)
    close = nearest(str(model_type)[:60], FAMILIES, 1)
    reason = next((why for why, types in UNSUPPORTED.items() if model_type in types), None)
    hint = "" if reason or not close else f"the nearest that is: {close[0]}; "
    why = f"is {shown}, a model with {reason}: not supported" if reason else f"is {shown}, which is not supported"
    raise config.error("model_type", why, f"{hint}docs/models.md lists those that are; or write a model file")
