"""What a Hugging Face config.json says of a model beside its shape -> `NumericsSpec`.

No time hangs on it: a value that is missing, or that no model could have, is one that nobody stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gpuscale.presets.tables import Table
from gpuscale.specs.model import NumericsSpec

TABLE = Table(NumericsSpec)

KEYS = {
    "rotary_base": ("rope_theta", "rotary_emb_base", "rope_parameters.rope_theta"),
    "rotary_share": ("partial_rotary_factor", "rotary_pct", "rope_parameters.partial_rotary_factor"),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "init_std": ("initializer_range",),
    "activation": ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"),
    "attention_softcap": ("attn_logit_softcapping",),
    "logit_softcap": ("final_logit_softcapping",),
    "router_score": ("scoring_func", "moe_router_activation_func"),
    "router_normalised": ("norm_topk_prob",),
    "router_scale": ("routed_scaling_factor",),
    "router_aux_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
}
"""Field -> keys that state it, in the order in which they count; those of a table with a dot."""

SCALING = {
    "scaling_factor": ("factor",),
    "scaling_sequence": ("original_max_position_embeddings",),
    "scaling_low": ("low_freq_factor", "beta_slow"),
    "scaling_high": ("high_freq_factor", "beta_fast"),
    "scaling_mscale": ("mscale",),
    "scaling_mscale_all": ("mscale_all_dim",),
}
"""The same for keys of `rope_scaling` or `rope_parameters`."""

ACTIVATIONS = {"swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
"""Names of transformers' activations that are called otherwise here."""

OF_CLASSES: Mapping[str, Mapping[str, Any]] = {
    **{kind: {"router_score": "softmax", "router_normalised": True} for kind in ("mixtral", "gpt_oss")},
    **{kind: {"router_score": "softmax"} for kind in ("qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe")},
    **{kind: {"router_score": "sigmoid"} for kind in ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa")},
    **{kind: {"rotary_base": 10000.0} for kind in ("llama", "falcon")},
}
"""Model type -> what its class does where its config does not say (transformers 5.x, models/*/modeling_*.py)."""


def numerics_of(data: Mapping[str, Any], model_type: str) -> NumericsSpec:
    """Return what a config states; the rotary scaling is none where it has no word of it."""
    usual = OF_CLASSES.get(model_type, {})
    found = {field: _first(data, keys, usual.get(field)) for field, keys in KEYS.items()}
    found["activation"] = ACTIVATIONS.get(str(found["activation"]), found["activation"])
    if data.get("swiglu_limit") is not None:
        found["activation"] = "swigluoai"
    tables = [one for key in ("rope_parameters", "rope_scaling") if isinstance(one := data.get(key), Mapping)]
    scaling: Mapping[str, Any] = tables[-1] if tables else {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    found["rotary_scaling"] = "none" if kind == "default" and found["rotary_base"] else kind
    if found["rotary_scaling"] != "none":
        found |= {field: _first(scaling, keys) for field, keys in SCALING.items()}
    stated = {field: value for field, value in found.items() if value is not None}
    try:
        TABLE.model.model_validate(stated)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            stated.pop(str(one["loc"][0]), None)
    return NumericsSpec(**stated)


def _first(data: Mapping[str, Any], keys: tuple[str, ...], usual: Any = None) -> Any:
    """Return the first value that is stated, or the usual one."""
    for key in keys:
        table, _, inner = key.rpartition(".")
        inside = data.get(table) if table else data
        if isinstance(inside, Mapping) and inside.get(inner) is not None:
            return inside[inner]
    return usual
