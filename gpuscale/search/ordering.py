"""The order of candidates, and their families: what differs in nothing that matters is folded under the best.

A search keeps the best plan of each family: equal TP, PP, CP, EP, ETP, parameters sharded (ZeRO-3) or not, whole layers
recomputed or not. The last two, and context parallelism, buy memory with time. A family is folded once more where they
buy nothing: under one of the same TP, PP, EP and ETP that is at least as good with no more of any of the three.
Otherwise half of a table would be copies of better plans, their sequences split and microbatches larger in proportion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import FIELDS, Candidates, combined_key, concatenate, distinct, pick
from gpuscale.layouts.pins import MAX_DEGREE
from gpuscale.search.evaluation import Evaluation
from gpuscale.specs.job import JobSpec

STEP_TIME, MEMORY = "step_time", "memory"
"""What candidates can be ordered by."""

FAMILY = ("tp", "pp", "cp", "ep", "etp", "parameters_sharded", "layers_recomputed")
"""Layouts that agree in these are variants of one another; the table shows the best of each family
(`gpuscale.search.ordering` folds more)."""

ROW_FAMILY = FAMILY[:5]
"""Those of `FAMILY` that do not depend on ZeRO and recomputation."""

TIE_ORDER = (
    "pp", "vpp", "cp", "tp", "ep", "etp", "zero", "shard", "recompute_layers", "recompute_modules",
    "micro_batch_size", "sp",
)  # fmt: skip
"""Among equal scores the candidate with less of these, in this order, comes first: the simpler one."""

MEASURES = ("step_time_s", "memory_bytes", "score", "host_bytes")


class Scored(NamedTuple):
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


def scored(rows: Candidates, evaluation: Evaluation, basis: str) -> Scored:
    """Score candidates by `step_time` or `memory`."""
    step_time_s, memory_bytes = evaluation.step.step_time_s, evaluation.memory_bytes
    objective = memory_bytes if basis == MEMORY else step_time_s
    return Scored(rows, step_time_s, memory_bytes, objective, evaluation.memory.host_bytes)


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


Key = tuple[int, ...]

SAVES_MEMORY = ("cp", "parameters_sharded", "layers_recomputed")
"""Members of `FAMILY` that a plan does not need where one without them is at least as good."""


class Families(NamedTuple):
    """The families that are listed, best first.

    Attributes:
        best: the best plan of each, in order.
        variants: how many feasible candidates each stands for, those folded under it included.
        listed_as: family (values of `FAMILY`) -> index of the listed family that stands for it.
    """

    best: Scored
    variants: npt.NDArray[np.int64]
    listed_as: dict[Key, int]

    def index_of(self, rows: Candidates) -> IndexArray:
        """Return for each candidate the index of the listed family that stands for it."""
        return np.array([self.listed_as[key] for key in family_keys(rows)], dtype=np.intp)


def listed_families(families: Scored, variants: IntArray) -> Families:
    """Fold families.

    Args:
        families: the best plan of each, in order of their scores.
        variants: how many feasible candidates each stands for.
    """
    rows = families.rows
    keys, savings = family_keys(rows), list(zip(*(getattr(rows, name).tolist() for name in SAVES_MEMORY), strict=True))
    listed = np.flatnonzero(are_listed(rows))
    kin: dict[Key, list[tuple[int, Key]]] = defaultdict(list)
    for at, index in enumerate(listed.tolist()):
        kin[_kin(keys[index])].append((at, savings[index]))
    listed_as = {
        key: next(
            at for at, known in kin[_kin(key)] if all(one <= other for one, other in zip(known, own, strict=True))
        )
        for key, own in zip(keys, savings, strict=True)
    }
    folded = np.zeros(len(listed), dtype=np.int64)
    np.add.at(folded, [listed_as[key] for key in keys], variants)
    return Families(families.take(listed), folded, listed_as)


def _kin(key: Key) -> Key:
    """What of a family may not differ from that of the one that it is folded under."""
    return tuple(value for name, value in zip(FAMILY, key, strict=True) if name not in SAVES_MEMORY)


def are_listed(rows: Candidates) -> npt.NDArray[np.bool_]:
    """Mark the families that are not folded under a better one.

    Args:
        rows: the best plan of each family, in order of their scores; shape (N,).
    """
    kin = combined_key(rows, [name for name in FAMILY if name not in SAVES_MEMORY])
    order = np.argsort(kin, kind="stable")
    below = np.int64(2 * MAX_DEGREE) * kin[order]  # the least CP so far starts anew with each kin
    cp, saved = rows.cp[order] - below, (rows.parameters_sharded + 2 * rows.layers_recomputed)[order]
    listed = np.ones(len(rows), dtype=bool)
    for one in range(4):
        least = np.minimum.accumulate(np.where(saved & ~one, MAX_DEGREE - below, cp))
        listed[order[1:]] &= (saved[1:] != one) | (least[:-1] > cp[1:])
    return listed


def family_keys(rows: Candidates) -> list[Key]:
    """Return the values of `FAMILY` of each candidate."""
    return list(zip(*(getattr(rows, name).tolist() for name in FAMILY), strict=True))
