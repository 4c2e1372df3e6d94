"""Layers of Hugging Face configs that mix state spaces with attention: Nemotron-H, Qwen3-Next, Kimi-Linear.

The facts are those of the config and model classes of the transformers library (5.x) and, for Kimi-Linear, of the
modeling file in moonshotai/Kimi-Linear-48B-A3B-Base.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscale.specs import AttentionSpec, LayerSpec, MlpSpec, MoeSpec, MtpSpec, StateSpaceSpec, mtp_module

if TYPE_CHECKING:
    from gpuscale.presets.huggingface import Config

LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
"""Words of `layers_block_type` -> letters of `hybrid_override_pattern`."""


def linear_layers(config: Config, hybrid: str, layers: int) -> list[bool]:
    """Tell for each layer of a Qwen3-Next or Kimi-Linear config whether it has linear attention.

    Raises:
        InputError: the keys that say so are missing or wrong.
    """
    types = config.items("layer_types", layers, str)
    if types is None and hybrid == "kimi":
        full = config.table("linear_attn_config").items("full_attn_layers", None, int)
        if full is None:
            raise config.error("linear_attn_config.full_attn_layers", "is missing", "a config of this model needs it")
        return [index + 1 not in full for index in range(layers)]
    if types is None:
        every = config.integer("full_attention_interval", 4)
        return [(index + 1) % every != 0 for index in range(layers)]
    strange = next((kind for kind in types if kind not in ("linear_attention", "full_attention")), None)
    if strange is not None:
        raise config.error("layer_types", f"holds {strange[:40]!r}, not linear_attention or full_attention")
    return [kind == "linear_attention" for kind in types]


def linear_attention(config: Config, hybrid: str) -> StateSpaceSpec:
    """Read the delta net of a Qwen3-Next or Kimi-Linear config.

    Raises:
        InputError: a key is missing or wrong, or heads do not divide.
    """
    if hybrid == "kimi":
        table = config.table("linear_attn_config")
        heads = table.optional("num_heads") or config.integer("linear_num_heads", 32)
        dim = table.optional("head_dim") or config.integer("linear_head_dim", 128)
        conv = table.optional("short_conv_kernel_size") or config.integer("linear_conv_kernel_dim", 4)
        return StateSpaceSpec("kda", heads, dim, heads, dim, conv, 64)
    groups, heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if heads % groups:
        raise config.error("linear_num_value_heads", f"= {heads} is not a multiple of linear_num_key_heads = {groups}")
    return StateSpaceSpec(
        "gdn",
        heads,
        config.integer("linear_value_head_dim"),
        groups,
        config.integer("linear_key_head_dim"),
        config.integer("linear_conv_kernel_dim", 4),
        64,
    )


def mamba(config: Config) -> StateSpaceSpec:
    """Read the Mamba-2 block of a Nemotron-H config.

    Raises:
        InputError: a key is missing or wrong, or heads do not divide.
    """
    heads, groups = config.integer("mamba_num_heads"), config.integer("n_groups")
    if heads % groups:
        raise config.error("mamba_num_heads", f"= {heads} is not a multiple of n_groups = {groups}")
    return StateSpaceSpec(
        "mamba2",
        heads,
        config.integer("mamba_head_dim"),
        groups,
        config.integer("ssm_state_size"),
        config.integer("conv_kernel", 4),
        config.integer("chunk_size", 128),
        conv_bias=config.flag("use_conv_bias", default=True),
    )


def block_pattern(config: Config, text_key: str, list_key: str) -> str | None:
    """Return one letter per block (M, *, -, E) from a pattern or a list of words, or None where both are missing.

    Raises:
        InputError: another letter or word.
    """
    text = config.value(text_key, None)
    if text is not None:
        if not isinstance(text, str) or not text or set(text) - set(LETTERS.values()):
            raise config.error(text_key, "is not a pattern of M, *, - and E")
        return text
    words = config.items(list_key, None, str)
    if words is None:
        return None
    strange = next((word for word in words if word not in LETTERS), None)
    if strange is not None or not words:
        raise config.error(list_key, f"holds {str(strange)[:40]!r}, not {', '.join(LETTERS)}")
    return "".join(LETTERS[word] for word in words)


def nemotron_h_layers(config: Config, attention: AttentionSpec) -> tuple[list[LayerSpec], MtpSpec | None]:
    """Read the layers of a Nemotron-H config, each of a single block, and its multi-token prediction.

    Raises:
        InputError: a key is missing or wrong.
    """
    pattern = block_pattern(config, "hybrid_override_pattern", "layers_block_type")
    if pattern is None:
        raise config.error("hybrid_override_pattern", "is missing", "a config of this model type needs it")
    layers = config.optional("num_hidden_layers")
    if layers is not None and layers != len(pattern):
        raise config.error("hybrid_override_pattern", f"has {len(pattern)} letters for {layers} layers")
    module = block_pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E"
    depth = config.optional("num_nextn_predict_layers", 0) or 0
    kinds = _blocks(config, attention, set(pattern) | set(module if depth else ""))
    mtp = MtpSpec(depth, mtp_module(tuple(kinds[letter] for letter in module)), shared=True) if depth else None
    return [kinds[letter] for letter in pattern], mtp


def _blocks(config: Config, attention: AttentionSpec, letters: set[str]) -> dict[str, LayerSpec]:
    kinds: dict[str, LayerSpec] = {}
    if "M" in letters:
        kinds["M"] = LayerSpec(None, None, None, 1, state_space=mamba(config))
    if "*" in letters:
        kinds["*"] = LayerSpec(attention, None, None, 1)
    if "-" in letters:
        mlp = MlpSpec(config.integer("intermediate_size"), gated=False, bias=config.flag("mlp_bias"))
        kinds["-"] = LayerSpec(None, mlp, None, 1)
    if "E" in letters:
        kinds["E"] = LayerSpec(None, None, _experts(config), 1)
    return kinds


def _experts(config: Config) -> MoeSpec:
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


def with_linear_attention(layers: Sequence[LayerSpec], linear: Sequence[bool], spec: StateSpaceSpec) -> list[LayerSpec]:
    """Put the state space in the place of attention in the marked layers."""
    return [
        LayerSpec(None, layer.mlp, layer.moe, layer.norms, layer.norm_bias, spec) if swap else layer
        for layer, swap in zip(layers, linear, strict=True)
    ]
