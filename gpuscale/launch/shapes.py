"""Models as launch files state them, by their shape: found among the presets, or written in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gpuscale.choices import PIPELINE_SPLITS
from gpuscale.errors import GpuscaleError, InputError
from gpuscale.layouts.stages import stage_sizes
from gpuscale.presets.models import all_models, load_model
from gpuscale.specs.model import ModelSpec


def model_line(keys: Mapping[str, Any]) -> str:
    """Return a model in a line, as `model` takes it, from keys of a model file; those of tables as `moe.top_k`."""
    return ",".join(f"{key}={_text(value)}" for key, value in keys.items() if value is not None)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def named_shape(keys: Mapping[str, Any]) -> str:
    """Return the preset that has this very shape, or the model in a line where there is none.

    Of several presets (a model and its instruction-tuned twin) the first by name counts whose longest sequence is the
    same, else the first by name; one that sees images comes after those that do not.

    Raises:
        InputError: the keys make no model.
    """
    line = model_line(keys)
    made = load_model(line)
    found = [one for one in all_models_once() if same_shape(one, made)]
    found.sort(key=lambda one: (bool(one.towers), one.max_sequence != made.max_sequence, one.name))
    return found[0].name if found else line


def named_spec(spec: ModelSpec) -> str:
    """Return a model as `model` takes it: the preset that has its shape, else the model in a line.

    Raises:
        InputError: no line says all of it.
    """
    attention, kind = spec.attentions[0], spec.kinds[spec.pattern[-1]]
    experts, mlp = kind.moe, next((one.mlp for one in spec.kinds if one.mlp), None)
    block = mlp or experts
    keys: dict[str, Any] = {
        "layers": spec.layers, "hidden": spec.hidden, "heads": attention.heads, "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim, "ffn": mlp.ffn if mlp else None, "vocab": spec.vocab,
        "sequence": spec.max_sequence, "tied_embeddings": spec.tied_embeddings,
        "gated": None if block is None or block.gated else False, "learned_positions": spec.learned_positions or None,
        "qkv_bias": attention.qkv_bias or None, "output_bias": attention.output_bias or None,
        "mlp_bias": bool(mlp and mlp.bias) or None, "norm_bias": kind.norm_bias or None,
        "head_bias": spec.head_bias or None, "parallel_blocks": kind.parallel_blocks or None,
        "qk_norm": None if attention.qk_norm == "none" else attention.qk_norm, "window.length": attention.window,
    }  # fmt: skip
    if experts is not None:
        dense = [spec.kinds[index].moe is None for index in spec.pattern].count(True)
        keys |= {
            "moe.experts": experts.experts, "moe.top_k": experts.top_k, "moe.ffn": experts.ffn,
            "moe.shared_ffn": experts.shared_ffn or None, "moe.dense_layers": dense or None,
        }  # fmt: skip
    found = named_shape(keys)
    if not same_shape(load_model(found), spec):
        raise InputError("this shape is more than a line says", hint="give `model=NAME`, or a config.json of it")
    return found


def shape_but_vocabulary(keys: Mapping[str, Any]) -> list[ModelSpec]:
    """Return the presets that have a shape whose vocabulary is not known, one of each vocabulary, likeliest first.

    Raises:
        InputError: the keys make no model.
    """
    made = load_model(model_line({**keys, "vocab": 1}))
    found = [one for one in all_models_once() if same_shape(replace(one, vocab=1), made)]
    found.sort(key=lambda one: (bool(one.towers), one.max_sequence != made.max_sequence, one.name))
    return list({one.vocab: one for one in reversed(found)}.values())[::-1]


def nearest_split(model: ModelSpec, sizes: Sequence[int], pp: int, vpp: int) -> tuple[str, tuple[int, ...], int]:
    """Return the way to deal out layers that comes nearest to stages, what it deals out, and how far that is off."""
    dealt = {split: tuple(stage_sizes(model, pp, vpp, split)) for split in PIPELINE_SPLITS}
    far = {
        split: max(abs(one - other) for one, other in zip(sizes, own, strict=True))
        for split, own in dealt.items()
        if len(own) == len(sizes)
    }
    best = min(far, key=far.__getitem__, default="even")
    return best, dealt[best], far.get(best, 1)


def same_shape(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether two models train alike, whatever they are called and however long a sequence they are made for."""
    return _physics(one) == _physics(other)


def _physics(model: ModelSpec) -> tuple[Any, ...]:
    layers = tuple(model.kinds[index] for index in model.pattern)
    modules = model.mtp if model.mtp_depth else None
    return (
        model.hidden, model.vocab, layers, model.tied_embeddings, model.learned_positions, modules, model.head_bias,
        model.final_norm, model.at_embedding, model.at_head,
    )  # fmt: skip


@cache
def all_models_once() -> tuple[ModelSpec, ...]:
    """Every preset model; those that cannot be read are left to the command that asks for them."""
    try:
        return tuple(all_models())
    except GpuscaleError:
        return ()
