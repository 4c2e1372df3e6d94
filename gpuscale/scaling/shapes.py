"""Dense models in the proportions of Llama 3 by their number of parameters, and presets of about that size."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.models import all_models

VOCAB, HEADS_KV = 128256, 8
WIDTH_PER_LAYER = (64, 160)
"""Width over layers: 64 in Llama 3.2 1B, 107 (3B), 128 (8B), 102 (70B), 130 (405B)."""

USUAL_ASPECT = 128
SMALL_WIDTH, SMALL_HEAD, HEAD = 2560, 64, 128
TIED_WIDTH = 3072
"""Llama 3.2 1B (2,048 wide, heads of 64) and 3B (3,072 wide) share embedding and head; from 8B on they are apart."""

LEAST_PARAMETERS, MOST_PARAMETERS = 7e7, 2e13


class Shape(NamedTuple):
    """A dense model."""

    layers: int  #: depth.
    hidden: int  #: width.
    parameters: int  #: all, embeddings included.
    stated: str  #: the model in a line, as `--model` and `gpuscale.load_model` take it.


def dense_shape(parameters: float) -> Shape:
    """Return the shape whose parameters are nearest to a number.

    It has the proportions of Llama 3 (arXiv 2407.21783, table 3): heads of 128 (64 up to 2,560 wide), 8 of them for
    keys and values, gated MLPs of 3.5 times the width, a vocabulary of 128,256, an even number of layers (a multiple of
    4 above 32), and a width that is a multiple of 1,024 (512 up to 2,560): 8-way tensor parallelism and pipelines
    divide it. Of the shapes within 2 % of the nearest it is the one whose width is nearest to 128 times its layers.

    Raises:
        InputError: the number is out of range.
    """
    if not LEAST_PARAMETERS <= parameters <= MOST_PARAMETERS:
        message = f"a model of {parameters:.3g} parameters is out of range"
        raise InputError(message, hint=f"models have {LEAST_PARAMETERS:.0e} to {MOST_PARAMETERS:.0e} here")
    off = {shape: abs(math.log(shape.parameters / parameters)) for shape in _shapes()}
    least = min(off.values()) + 0.02
    aspect = {shape: abs(math.log(shape.hidden / shape.layers / USUAL_ASPECT)) for shape in off if off[shape] <= least}
    return min(aspect, key=lambda shape: (aspect[shape], off[shape]))


@cache
def _shapes() -> tuple[Shape, ...]:
    narrow, wide = WIDTH_PER_LAYER
    return tuple(
        _shape(layers, hidden)
        for hidden in (*range(512, SMALL_WIDTH + 1, 512), *range(TIED_WIDTH, 65537, 1024))
        for layers in range(2, 1025, 2)
        if narrow * layers <= hidden <= wide * layers and (layers <= 32 or layers % 4 == 0)
    )


def _shape(layers: int, hidden: int) -> Shape:
    heads = hidden // (SMALL_HEAD if hidden <= SMALL_WIDTH else HEAD)
    tied, ffn, kv_width = hidden <= TIED_WIDTH, 7 * hidden // 2, HEADS_KV * (hidden // heads)
    matrices = 2 * hidden * hidden + 2 * hidden * kv_width + 3 * hidden * ffn
    total = layers * (matrices + 2 * hidden) + (1 if tied else 2) * VOCAB * hidden + hidden
    stated = f"layers={layers},hidden={hidden},heads={heads},kv_heads={HEADS_KV},ffn={ffn},vocab={VOCAB}"
    return Shape(layers, hidden, total, f"{stated},tied_embeddings=true" if tied else stated)


def presets_near(parameters: float, within: float = 0.2) -> tuple[str, ...]:
    """Return the dense presets whose parameters are within a share of a number, the nearest first."""
    near = [(abs(math.log(total / parameters)), name) for name, total in _dense_presets()]
    return tuple(name for off, name in sorted(near) if off <= math.log(1.0 + within))


@cache
def _dense_presets() -> tuple[tuple[str, int], ...]:
    return tuple((one.name, model_parameters(one).total) for one in all_models() if not one.is_moe)
