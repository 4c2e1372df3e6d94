"""Models as launch files state them, by their shape: found among the presets, or written in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gpuscale.choices import PIPELINE_SPLITS
from gpuscale.errors import GpuscaleError
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
    same, else the first by name.

    Raises:
        InputError: the keys make no model.
    """
    line = model_line(keys)
    made = load_model(line)
    found = [one for one in all_models_once() if same_shape(one, made)]
    found.sort(key=lambda one: (one.max_sequence != made.max_sequence, one.name))
    return found[0].name if found else line


def shape_but_vocabulary(keys: Mapping[str, Any]) -> list[ModelSpec]:
    """Return the presets that have a shape whose vocabulary is not known, one of each vocabulary, likeliest first.

    Raises:
        InputError: the keys make no model.
    """
    made = load_model(model_line({**keys, "vocab": 1}))
    found = [one for one in all_models_once() if same_shape(replace(one, vocab=1), made)]
    found.sort(key=lambda one: (one.max_sequence != made.max_sequence, one.name))
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
