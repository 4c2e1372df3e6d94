"""Families of plans as people see them: what differs in nothing that matters is folded under the best of its kind.

A search keeps the best plan of each family: equal TP, PP, CP, EP, ETP, parameters sharded (ZeRO-3) or not, whole layers
recomputed or not. The last two, and context parallelism, buy memory with time. A family is folded once more where they
buy nothing: under one of the same TP, PP, EP and ETP that is at least as good with no more of any of the three.
Otherwise half of a table would be copies of better plans, their sequences split and microbatches larger in proportion.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates
from gpuscale.ranking.scored import FAMILY, Scored
from gpuscale.ranking.search import SearchResult
from gpuscale.records import record

IndexArray = npt.NDArray[np.intp]
Key = tuple[int, ...]

SAVES_MEMORY = ("cp", "parameters_sharded", "layers_recomputed")
"""Members of `FAMILY` that a plan does not need where one without them is at least as good."""


@record
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
    keys = family_keys(found.families.rows)
    savings = list(zip(*(getattr(found.families.rows, name).tolist() for name in SAVES_MEMORY), strict=True))
    kin: dict[Key, list[tuple[int, Key]]] = defaultdict(list)
    listed: list[int] = []
    listed_as: dict[Key, int] = {}
    for index, (key, saving) in enumerate(zip(keys, savings, strict=True)):
        same = kin[tuple(value for name, value in zip(FAMILY, key, strict=True) if name not in SAVES_MEMORY)]
        better = (at for at, known in same if all(one <= other for one, other in zip(known, saving, strict=True)))
        listed_as[key] = next(better, len(listed))
        if listed_as[key] == len(listed):
            same.append((len(listed), saving))
            listed.append(index)
    variants = np.zeros(len(listed), dtype=np.int64)
    np.add.at(variants, [listed_as[key] for key in keys], found.family_variants)
    return Families(found.families.take(np.array(listed, dtype=np.intp)), variants, listed_as)


def family_keys(rows: Candidates) -> list[Key]:
    """Return the values of `FAMILY` of each candidate."""
    return list(zip(*(getattr(rows, name).tolist() for name in FAMILY), strict=True))
