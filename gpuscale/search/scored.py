"""Candidates with what they are ordered by, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import FIELDS, Candidates, concatenate, distinct, pick
from gpuscale.specs.job import JobSpec

FAMILY = ("tp", "pp", "cp", "ep", "etp", "parameters_sharded", "layers_recomputed")
"""Layouts that agree in these are variants of one another; the table shows the best of each family
(`gpuscale.search.families` folds more)."""

TIE_ORDER = (
    "pp", "vpp", "cp", "tp", "ep", "etp", "zero", "shard", "recompute_layers", "recompute_modules",
    "micro_batch_size", "sp",
)  # fmt: skip
"""Among equal scores the candidate with less of these, in this order, comes first: the simpler one."""

MEASURES = ("step_time_s", "memory_bytes", "score", "host_bytes")


@dataclass(frozen=True)
class Scored:
    """Candidates with what they are ordered by; arrays of shape (N,), or of the shape of a grid.

    Attributes:
        score: the objective, smaller is better.
        host_bytes: what is offloaded, per host.
    """

    rows: Candidates
    step_time_s: FloatArray
    memory_bytes: FloatArray
    score: FloatArray
    host_bytes: FloatArray

    def fits(self, job: JobSpec) -> npt.NDArray[np.bool_]:
        """Mark the candidates that fit on the GPUs and, with what is offloaded, in the hosts."""
        return (self.memory_bytes <= job.memory_limit_bytes) & (self.host_bytes <= job.host_limit_bytes)

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice) -> Scored:
        """Return the rows chosen by an index array, a mask or a slice."""
        return Scored(self.rows.take(index), *(getattr(self, name)[..., index] for name in MEASURES))

    def listed(self, chosen: npt.NDArray[np.bool_]) -> Scored:
        """Return those candidates of a grid that a mask of its shape marks, one after the other."""
        where = np.nonzero(chosen)
        return Scored(self.rows.listed(chosen), *(pick(getattr(self, name), where) for name in MEASURES))


def nothing() -> Scored:
    """No candidates."""
    none = Candidates(**{name: np.zeros(0, dtype=np.int64) for name in FIELDS})
    return Scored(none, *(np.zeros(0) for _ in MEASURES))


def joined(parts: Sequence[Scored]) -> Scored:
    """Stack several sets of scored candidates."""
    if not parts:
        return nothing()
    rows = concatenate([part.rows for part in parts])
    return Scored(rows, *(np.concatenate([getattr(part, name) for part in parts]) for name in MEASURES))


def rank_order(scored: Scored) -> npt.NDArray[np.intp]:
    """Return the order by score, then by time and memory, then by `TIE_ORDER`."""
    ties = [getattr(scored.rows, name) for name in reversed(TIE_ORDER)]
    return np.lexsort([*ties, scored.memory_bytes, scored.step_time_s, scored.score])


def ordered(scored: Scored) -> Scored:
    """Sort by score, then by time and memory, then by `TIE_ORDER`."""
    return scored.take(rank_order(scored))


def best_of_each(scored: Scored, group: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the index of the first candidate in rank order of each group, by ascending number of the group."""
    order = rank_order(scored)
    first, _ = distinct(group[order])
    return order[first]


def least_memory(scored: Scored) -> Scored:
    """Return the one candidate with the least memory (ties: the faster, then `TIE_ORDER`)."""
    least = scored.take(scored.memory_bytes == scored.memory_bytes.min())
    ties = [getattr(least.rows, name) for name in reversed(TIE_ORDER)]
    return least.take(np.lexsort([*ties, least.step_time_s])[:1])
