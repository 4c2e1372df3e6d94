"""Shapes of every model type that transformers builds as a causal language model, with the parameters of its class.

`shapes(model_type)` changes each key of a small config that no name says is without shape, one after the other and a
few together; the class is built on the meta device, which holds no weights.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging
from update_transformers import KEPT, NO_SHAPE

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
    warnings.simplefilter("ignore")
    try:
        config = CONFIG_MAPPING[model_type](**json.loads(json.dumps(given)))
        saved = json.loads(json.dumps(config.to_dict(), default=str))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
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
