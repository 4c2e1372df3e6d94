"""What one layer and one microbatch take, once for each distinct way to cut them, and on stages of several layers."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, Candidates, Cases, unique_rows
from gpuscale.layouts.stages import StageTable
from gpuscale.memory.activations import (
    LAYER_KEY,
    hidden_bytes,
    layer_activation_bytes,
    widest_gradient_bytes,
)
from gpuscale.memory.states import largest_layer, placeholder_bytes
from gpuscale.specs.job import JobSpec


@dataclass(frozen=True)
class LayerSizes:
    """Sizes by distinct way to cut a layer (`LAYER_KEY`), each of shape (ways,) [bytes].

    Attributes:
        cut: which of the ways each candidate has.
        saved: by kind of layer, what one saves for the backward pass, after selective recomputation.
        whole: the largest layer, saved whole.
        gradients: gradients at the widest point of a layer's backward pass.
        largest: parameters of the largest layer on one GPU (a number, not bytes).
        placeholders: placeholders of weight gradients that are kept for good.
    """

    cut: Cases
    saved: tuple[FloatArray, ...]
    whole: FloatArray
    gradients: FloatArray
    largest: FloatArray
    placeholders: FloatArray


def measure_layers(cuts: Candidates, cut: Cases, job: JobSpec) -> LayerSizes:
    """Measure one layer and one microbatch of candidates that are cut in one of the ways `cuts`."""
    kept = replace(cuts, recompute_modules=np.zeros(1, dtype=np.int64))
    kinds = job.model.trained_kinds
    few, of_cut = unique_rows(cuts, ("tp", "ep", "etp"))
    return LayerSizes(
        cut=cut,
        saved=tuple(layer_activation_bytes(kind, cuts, job) for kind in kinds),
        whole=functools.reduce(np.maximum, (layer_activation_bytes(kind, kept, job) for kind in kinds)),
        gradients=widest_gradient_bytes(cuts, job) + hidden_bytes(cuts, job),
        largest=largest_layer(few, job)[of_cut],
        placeholders=placeholder_bytes(few, job)[of_cut],
    )


def layer_sizes(c: Candidates, job: JobSpec) -> LayerSizes:
    """Measure one layer and one microbatch of each candidate."""
    cuts, index = unique_rows(c, LAYER_KEY)
    return measure_layers(cuts, Cases(index), job)


def microbatch_bytes(
    c: Candidates, job: JobSpec, stages: StageTable, stage_row: npt.NDArray[np.intp], sizes: LayerSizes
) -> FloatArray:
    """Activations of one microbatch on each stage, shape (P, N)."""
    counts = stages.layers(stage_row)
    saved = zip(counts, sizes.saved, strict=True)
    stage_bytes = functools.reduce(np.add, (number * sizes.cut.of(size) for number, size in saved))
    if not c.recompute_layers.any():
        return stage_bytes
    layers = functools.reduce(np.add, counts)
    by_operator = c.recompute_modules & EVERY_OTHER_MATMUL > 0
    whole = np.minimum(np.where(by_operator, 0.0, c.recompute_layers), layers)
    share = whole / np.maximum(layers, 1)
    inputs = hidden_bytes(c, job) / c.sequence_split
    return np.asarray(stage_bytes * (1 - share) + inputs * whole, dtype=np.float64)
