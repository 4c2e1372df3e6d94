"""Families of plans as people see them: what differs in nothing that matters is folded under the best of its kind.

A search keeps the best plan of each family: equal TP, PP, CP, EP, ETP, parameters sharded (ZeRO-3) or not, whole layers
recomputed or not. The last two, and context parallelism, buy memory with time. A family is folded once more where they
buy nothing: under one of the same TP, PP, EP and ETP that is at least as good with no more of any of the three.
Otherwise half of a table would be copies of better plans, their sequences split and microbatches larger in proportion.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import IndexArray
from gpuscale.layouts.arrays import Candidates, combined_key
from gpuscale.layouts.pins import MAX_DEGREE
from gpuscale.search.scored import FAMILY, Scored
from gpuscale.search.search import SearchResult

Key = tuple[int, ...]

SAVES_MEMORY = ("cp", "parameters_sharded", "layers_recomputed")
"""Members of `FAMILY` that a plan does not need where one without them is at least as good."""


@dataclass(frozen=True)
class Families:
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


def listed_families(found: SearchResult) -> Families:
    """Fold the families of a search, which are in order of their scores."""
    rows = found.families.rows
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
    variants = np.zeros(len(listed), dtype=np.int64)
    np.add.at(variants, [listed_as[key] for key in keys], found.family_variants)
    return Families(found.families.take(listed), variants, listed_as)


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
