"""What a multimodal config.json has beside its language model: towers for images and sounds, with their parameters.

The parameters are those of the tower and of what joins it to the language model, as the model's class of the
transformers library has them (Llama4VisionModel, Qwen2_5_VisionTransformerPretrainedModel, ...; of Kimi K2.5 and
InternVL the modeling file beside the weights). They are counted where the config states all that they follow from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gpuscale.specs.model import MAX_FFN, MAX_PARAMS, TowerSpec

KINDS = {"vision": r"vis(ion|ual)|image|img", "audio": r"audio|speech|sound", "speech": r"talker|wav|vocoder"}
"""Kind of tower -> what the key of its config contains."""

FROZEN = {
    **dict.fromkeys(("freeze_llm", "freeze_lm", "freeze_language_model", "freeze_language", "freeze_text_model"), True),
    **dict.fromkeys(("freeze_backbone", "llm.freeze", "language_model.freeze"), True),
    **dict.fromkeys(("train_mm_proj_only", "train_mm_projector_only", "train_projector_only"), True),
    **dict.fromkeys(("tune_mm_mlp_adapter", "only_tune_projector"), True),
    **dict.fromkeys(("tune_mm_llm", "tune_llm", "tune_language_model", "train_llm"), False),
}
"""Switch, by the last part of its name or the last two, in lower case -> the value with which the language model is not
trained, but a tower or its projector (ms-swift, Megatron-LM's --freeze-LM, LLaMA-Factory, NeMo; LLaVA; Qwen2.5-VL's own
scripts)."""

NOT_TRAINED = "the language model is not trained, but towers beside it, which are not modelled"
TRAINED = "gpuscale predicts training of the language model"
"""What is said of them, and the hint."""

Sizes = Callable[[str], int]
"""Reads a whole number of a tower's config by its key; `text` is the width of the language model, `deepstack` the
layers whose output enters it by a merger of their own."""


def towers_of(data: Mapping[str, Any], model_type: str, text_hidden: Any) -> tuple[TowerSpec, ...]:
    """Return the towers that a config has, one of each kind.

    Args:
        data: the config that has them beside its language model.
        model_type: of the whole.
        text_hidden: width of the language model, as the config states it.
    """
    found: dict[str, TowerSpec] = {}
    for key, value in data.items():
        kind = next((kind for kind, words in KINDS.items() if re.search(words, key.lower())), None)
        named = isinstance(value, str) and "tower" in key.lower()
        if kind and value and kind not in found and (named or isinstance(value, dict)):
            count = _count(model_type, kind, value, text_hidden) if isinstance(value, dict) else None
            found[kind] = TowerSpec(kind, count)
    return tuple(found.values())


def _count(model_type: str, kind: str, config: Mapping[str, Any], text_hidden: Any) -> int | None:
    deepstack = config.get("deepstack_visual_indexes")
    own = {"text": text_hidden, "deepstack": len(deepstack) if isinstance(deepstack, list) else 0}
    stated = {"num_channels": 3, **config, **own}

    def size(key: str) -> int:
        value = stated.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_FFN:
            raise KeyError(key)
        return value

    with suppress(KeyError, ZeroDivisionError):
        return min(COUNTS[model_type, kind](size), MAX_PARAMS)
    return None


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + bias * outputs


def _layers(size: Sizes, ffn: int, names: tuple[str, str] = ("hidden_size", "num_hidden_layers"), **plain: Any) -> int:
    """Attention of four projections, an MLP and two norms per layer; LayerNorm and biases where nothing else is said.

    Args:
        size: reads the tower's config.
        ffn: width of the MLP.
        names: keys of the width and of the number of layers.
        plain: `gated`, `bias`, `norm` (weights of a norm per element of the width), `extra` (weights of a layer beside
            these, per element).
    """
    width, layers = size(names[0]), size(names[1])
    bias, gated = plain.get("bias", True), plain.get("gated", False)
    attention = _linear(width, 3 * width, bias=bias) + _linear(width, width, bias=bias)
    mlp = (1 + gated) * _linear(width, ffn, bias=bias) + _linear(ffn, width, bias=bias)
    return layers * (attention + mlp + (2 * plain.get("norm", 2) + plain.get("extra", 0)) * width)


def _patches(size: Sizes, width: int, frames: int = 1, *, bias: bool = True) -> int:
    """The embedding of a square patch of each colour, of as many frames."""
    return _linear(size("num_channels") * frames * size("patch_size") ** 2, width, bias=bias)


def _grid(size: Sizes) -> int:
    return int((size("image_size") // size("patch_size")) ** 2)


def _merger(width: int, out: int) -> int:
    """Two products that make one token of four patches."""
    return _linear(4 * width, 4 * width) + _linear(4 * width, out)


def _siglip(size: Sizes) -> int:
    width = size("hidden_size")
    tower = _patches(size, width) + _grid(size) * width + _layers(size, size("intermediate_size")) + 2 * width
    return tower + width * size("text") + width


def _clip(size: Sizes) -> int:
    width = size("hidden_size")
    positions = (_grid(size) + 2) * width  # and the class, which is a vector and a position
    tower = _patches(size, width, bias=False) + positions + _layers(size, size("intermediate_size")) + 4 * width
    return tower + _linear(width, size("text")) + _linear(size("text"), size("text"))


def _llama4(size: Sizes) -> int:
    width, ffn, out = size("hidden_size"), size("intermediate_size"), size("projector_output_dim")
    tower = _patches(size, width, bias=False) + (_grid(size) + 2) * width + _layers(size, ffn) + 4 * width
    return tower + ffn * size("projector_input_dim") + size("projector_input_dim") * out + out * size("text")


def _pixtral(size: Sizes) -> int:
    width = size("hidden_size")
    layers = _layers(size, size("intermediate_size"), bias=False, gated=True, norm=1)
    projector = width + 4 * width**2 + width * size("text") + size("text") ** 2
    return _patches(size, width, bias=False) + width + layers + projector


def _qwen2(size: Sizes) -> int:
    width = size("embed_dim")
    layers = _layers(size, size("mlp_ratio") * width, ("embed_dim", "depth"))
    return _patches(size, width, 2, bias=False) + layers + 2 * width + _merger(width, size("text"))


def _qwen2_5(size: Sizes) -> int:
    width = size("hidden_size")
    layers = _layers(size, size("intermediate_size"), ("hidden_size", "depth"), gated=True, norm=1)
    return _patches(size, width, 2, bias=False) + layers + width + _merger(width, size("out_hidden_size"))


def _qwen3(size: Sizes) -> int:
    width, out = size("hidden_size"), size("out_hidden_size")
    layers = _layers(size, size("intermediate_size"), ("hidden_size", "depth"))
    tower = _patches(size, width, size("temporal_patch_size")) + size("num_position_embeddings") * width + layers
    return tower + 2 * width + _merger(width, out) + size("deepstack") * (8 * width + _merger(width, out))


def _kimi(size: Sizes) -> int:
    width = size("vt_hidden_size")
    layers = _layers(size, size("vt_intermediate_size"), ("vt_hidden_size", "vt_num_hidden_layers"))
    positions = size("init_pos_emb_height") * size("init_pos_emb_width") * width
    return _patches(size, width) + positions + layers + 4 * width + _merger(width, size("text"))


def _intern(size: Sizes) -> int:
    width = size("hidden_size")
    positions = (_grid(size) + 2) * width
    tower = _patches(size, width) + positions + _layers(size, size("intermediate_size"), extra=2)
    return tower + 8 * width + _linear(4 * width, size("text")) + _linear(size("text"), size("text"))


def _whisper(size: Sizes) -> int:
    width, ffn = size("d_model"), size("encoder_ffn_dim")
    ends = _linear(3 * size("num_mel_bins"), width) + _linear(3 * width, width) + size("max_source_positions") * width
    keys = size("encoder_layers") * width  # whose projection has no bias
    layers = _layers(size, ffn, ("d_model", "encoder_layers")) - keys
    return ends + layers + 2 * width + _linear(width, size("text"))


COUNTS: dict[tuple[str, str], Callable[[Sizes], int]] = {
    ("gemma3", "vision"): _siglip, ("llava", "vision"): _clip, ("llama4", "vision"): _llama4,
    ("mistral3", "vision"): _pixtral, ("qwen2_vl", "vision"): _qwen2, ("qwen2_5_vl", "vision"): _qwen2_5,
    ("qwen3_vl", "vision"): _qwen3, ("qwen3_vl_moe", "vision"): _qwen3, ("qwen3_5", "vision"): _qwen3,
    ("qwen3_5_moe", "vision"): _qwen3, ("kimi_k25", "vision"): _kimi, ("internvl_chat", "vision"): _intern,
    ("qwen2_audio", "audio"): _whisper,
}  # fmt: skip
"""Model type and kind of tower -> its parameters; others are not counted."""
