"""Which layers land on which pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.specs.model import ModelSpec

FIRST, MIDDLE, LAST = range(3)
"""The three stages that are priced: the first, the heaviest in between, the last."""


def chunk_sizes(layers: int, chunks: int) -> npt.NDArray[np.int64]:
    """Layers of each of `chunks` model chunks, as even as possible.

    Where the layers do not divide, the chunks in the middle get one more first, then the first chunk (which also
    holds the embedding), the last one (which also holds the LM head) at the very end.
    """
    base, extra = divmod(layers, chunks)
    sizes = np.full(chunks, base, dtype=np.int64)
    order = [*range(1, chunks - 1), 0, chunks - 1] if chunks > 1 else [0]
    sizes[order[:extra]] += 1
    return sizes


def splits_evenly_enough(layers: int, chunks: int) -> bool:
    """Whether every chunk but the first and the last has at least one layer."""
    return chunks <= 1 or layers >= max(chunks - 2, 1)


@dataclass(frozen=True, slots=True)
class StageTable:
    """Layers per kind of the three priced stages, for each (pp, vpp) pair.

    Attributes:
        counts: shape (pairs, 3, kinds): layers of each kind at the first, heaviest middle and last stage.
        position: shape (pairs, 3): index of that stage in the pipeline (0-based).
    """

    counts: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


def stage_counts(model: ModelSpec, pp: int, vpp: int) -> npt.NDArray[np.int64]:
    """Layers of each kind on each pipeline rank, shape (pp, kinds); chunk c lives on rank c mod pp."""
    sizes = chunk_sizes(model.layers, pp * vpp)
    ends = np.cumsum(sizes)
    pattern = np.asarray(model.pattern)
    counts = np.zeros((pp, len(model.kinds)), dtype=np.int64)
    for kind in range(len(model.kinds)):
        before = np.concatenate(([0], np.cumsum(pattern == kind)))
        per_chunk = before[ends] - before[ends - sizes]
        counts[:, kind] = per_chunk.reshape(vpp, pp).sum(axis=0)
    return counts


def stage_table(
    model: ModelSpec, pairs: list[tuple[int, int]], weights: npt.NDArray[np.float64] | None = None
) -> StageTable:
    """Tabulate the priced stages of each (pp, vpp) pair.

    Args:
        weights: shape (kinds,), the weight of one layer of each kind when the heaviest middle stage is chosen
            (its parameters, say); ties go to the earlier stage, which holds more microbatches. Default: all 1.
    """
    kinds = len(model.kinds)
    weight = np.ones(kinds) if weights is None else weights
    counts = np.zeros((len(pairs), 3, kinds), dtype=np.int64)
    position = np.zeros((len(pairs), 3), dtype=np.int64)
    for row, (pp, vpp) in enumerate(pairs):
        stages = stage_counts(model, pp, vpp)
        middle = 1 + int(np.argmax(stages[1 : pp - 1] @ weight)) if pp > 2 else 0
        position[row] = (0, middle, pp - 1)
        counts[row] = stages[position[row]]
    return StageTable(counts, position)
