"""Shapes of every model type that transformers builds as a causal language model, with the parameters of its class.

`shapes(model_type)` changes each key of a small config that no name says is without shape, one after the other and a
few together; the class is built on the meta device, which holds no weights.
"""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging
from update_transformers import KEPT, NO_SHAPE, SUMS

from gpuscale.presets.towers import sums

logging.set_verbosity_error()

MODEL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

LAYERS = {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
EXPERTS = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2}
BASES: dict[str, dict[str, Any]] = {
    "dots1": EXPERTS, "hunyuan_v1_dense": ROPE | {"head_dim": 64}, "hunyuan_v1_moe": ROPE | {"head_dim": 64},
    "ministral": ROPE | {"head_dim": 64}, "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3},
    "nemotron": {"num_key_value_heads": 8}, "deepseek_v2": {"num_experts_per_tok": 2},
    "mamba": {"num_hidden_layers": 4}, "gpt_neo": {"attention_types": [[["global", "local"], 3]]},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "bamba": {"attn_layer_indices": [2, 5]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 3},
    "gemma3n_text": {"intermediate_size": 96, "activation_sparsity_pattern": [0.0] * 15,
                     "num_hidden_layers": 15, "num_kv_shared_layers": 5},
    "zamba": {"num_hidden_layers": 12},
}  # fmt: skip
"""What a class needs beyond its defaults to be built, or to have all that it can have."""


class Shape(NamedTuple):
    """A config and what its class counts."""

    given: dict[str, Any]  #: keys that differ from the class's defaults.
    config: dict[str, Any]  #: what transformers saves.
    params: int


def built(model_type: str, given: dict[str, Any]) -> Shape | None:
    """Build the class of a config on the meta device; None where transformers does not."""
    return _built(AutoModelForCausalLM, model_type, given)


def _built(auto: Any, model_type: str, given: dict[str, Any]) -> Shape | None:
    warnings.simplefilter("ignore")
    try:
        config = CONFIG_MAPPING[model_type](**json.loads(json.dumps(given)))
        saved = json.loads(json.dumps(config.to_dict(), default=str))
        with torch.device("meta"):
            model = auto.from_config(config)
    except Exception:  # noqa: BLE001 - whatever a class says of a shape that it does not build
        return None
    return Shape(given, saved, sum(one.numel() for one in model.parameters()))


def base(model_type: str) -> dict[str, Any]:
    """A small config: few layers, and what the class needs."""
    fields = CONFIG_MAPPING[model_type]().to_dict()
    few = {key: 6 for key in LAYERS if isinstance(fields.get(key), int)}
    return {**few, "pad_token_id": 0, **BASES.get(model_type, {})}


def _changes(key: str, value: Any, fields: dict[str, Any]) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from dict.fromkeys(one for one in (2 * value, value // 2, value + 1, 0) if one != value)
    elif value is None:
        yield from (1, 2, 64, True)
    elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        yield value[::-1]
        yield [value[0]] * len(value)


def shapes(model_type: str, seed: int = 0, pairs: int = 12) -> Iterator[Shape]:
    """Shapes of one model type: the base, each key changed alone, and some changed together."""
    try:
        start = base(model_type)
    except Exception:  # noqa: BLE001
        return
    first = built(model_type, start)
    if first is None:
        return
    yield first
    fields = {key: value for key, value in first.config.items() if key in KEPT or not NO_SHAPE.search(key)}
    changes = [(key, one) for key, value in fields.items() for one in _changes(key, value, fields)]
    chosen = random.Random(f"{model_type} {seed}")
    together = [dict(chosen.sample(changes, min(3, len(changes)))) for _ in range(pairs)]
    for given in [*({key: one} for key, one in changes), *together]:
        shape = built(model_type, {**start, **given})
        if shape is not None:
            yield shape


# -- language models with towers --

OUTSIDE = {"internvl_chat", "kimi_vl"}
"""Multimodal model types whose towers are counted and of which transformers has no class."""

MULTIMODAL = tuple(
    f"{name}_thinker" if name.endswith(("_omni", "_omni_moe")) else name
    for name in sorted(sums()["models"])
    if name not in OUTSIDE
)

NAMED = {*re.findall(r"\w+", SUMS.read_text(encoding="utf-8"))}
"""Keys that a sum names."""

TEXT = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
TEXT_OF = {
    "gemma4": {"num_hidden_layers": 30},
    "minimax_m3_vl": {"num_local_experts": 8, "layer_types": ["full_attention"] * 2},
}
TOWER = {
    "num_hidden_layers": 3, "depth": 3, "encoder_layers": 3, "hidden_size": 48, "embed_dim": 48, "d_model": 48,
    "intermediate_size": 80, "encoder_ffn_dim": 80, "num_attention_heads": 4, "encoder_attention_heads": 4,
    "num_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "out_hidden_size": 64, "output_dim": 64,
}  # fmt: skip
"""Sizes of small language models and towers, by all the names that classes have for them."""


def small_whole(model_type: str) -> dict[str, Any]:
    """A small config as people write one: sizes, and the types of its parts."""
    kinds = {f"{kind}_config": {"model_type": rows[0]} for kind, rows in _towers(model_type).items()}
    fields = CONFIG_MAPPING[model_type](**kinds).to_dict()
    small: dict[str, Any] = {"model_type": model_type, "tie_word_embeddings": False}  # classes differ in who says so
    if "projection_dim" in fields:
        small["projection_dim"] = TEXT["hidden_size"]
    for key in ("text_config", *kinds):
        sizes = {**TEXT, **TEXT_OF.get(model_type, {})} if key == "text_config" else TOWER
        kept = {name: value for name, value in sizes.items() if name in fields[key]}
        small[key] = {"model_type": fields[key]["model_type"], **kept}
    return small


def _towers(model_type: str) -> dict[str, Any]:
    return sums()["models"][model_type.removesuffix("_thinker")]


def whole(given: dict[str, Any]) -> Shape | None:
    """Build the class of a multimodal config; None where transformers does not."""
    return _built(AutoModelForMultimodalLM, given["model_type"], given)


def whole_shapes(model_type: str) -> Iterator[Shape]:
    """The small config of a multimodal model type, and each key that a sum names changed alone."""
    start = small_whole(model_type)
    first = whole(start)
    assert first is not None, model_type
    yield first
    changed = [{**start, key: one} for key, value in first.config.items() for one in _other(key, value)]
    for part in start:
        if part.endswith("_config") and part != "text_config":
            values = first.config[part].items()
            changed += [
                {**start, part: {**start[part], key: one}} for key, value in values for one in _other(key, value)
            ]
    yield from filter(None, map(whole, changed))


def _other(key: str, value: Any) -> Iterator[Any]:
    if key not in NAMED or key == "model_type":
        return
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield 2 * value
    elif isinstance(value, list) and value:
        yield from (value[:-1], [2 * one for one in value])
    elif key == "norm_type":
        yield "rms_norm"
