"""What a search keeps of the candidates that it has seen: the best, counts and scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.layouts.arrays import distinct, grid_key
from gpuscale.search.objectives import Constraints
from gpuscale.search.ordering import FAMILY, Scored, best_of_each, joined, least_memory, nothing, ordered, rank_order
from gpuscale.specs.job import JobSpec

OUT_OF_MEMORY, OUT_OF_HOST_MEMORY = "out_of_memory", "out_of_host_memory"

KEEP_VARIANTS = 2000
"""Leaders kept besides the best of every family, for `--all` and `--rank`."""

MERGE_FAMILIES = 1 << 14
"""Candidates that may be kept as the best of their family in some part before the parts are merged."""


class Tally:
    """Sees scored candidates part by part, in any order, and keeps what is asked for at the end.

    Of every part it looks up only those that may be among the best so far; the result is the same as that of ordering
    all of them.

    Attributes:
        evaluated: candidates seen.
        rejected: reason -> those that do not fit on the GPUs, that do but not in the hosts, and that fit but break a
            constraint; and whatever else is counted there.
        best: the least score of those that fit; infinity where none does.
        nearest_miss: of those that do not fit the one with the least memory.
    """

    def __init__(self, job: JobSpec, limits: Constraints | None = None) -> None:
        self.evaluated = 0
        self.best = np.inf
        self.rejected: dict[str, int] = {}
        self.nearest_miss: Scored | None = None
        self._job = job
        self._limits = limits
        self._scores: list[FloatArray] = []
        self._leaders: list[Scored] = []
        self._threshold = np.inf  # what is above it is not among the leaders
        self._families: list[Scored] = []
        self._members: list[npt.NDArray[Any]] = []

    def add(self, scored: Scored, legal: BoolArray) -> None:
        """Take in a grid of candidates, of which those marked `legal` count."""
        fits = scored.fits(self._job) & legal
        count, feasible = int(np.count_nonzero(legal)), int(np.count_nonzero(fits))
        self.evaluated += count
        if feasible < count:
            self._add_misses(scored, legal & ~fits)
        if self._limits is not None:
            fits = self._limits.meets(scored, fits, self.rejected)
            feasible = int(np.count_nonzero(fits))
        if feasible:
            self._scores.append(np.compress(fits.ravel(), np.broadcast_to(scored.score, fits.shape).ravel()))
            rows = np.flatnonzero(fits.any(axis=tuple(range(fits.ndim - 1))))
            if 2 * len(rows) < fits.shape[-1]:
                scored, fits = scored.take(rows), fits[..., rows]
            score = _or_infinity(scored.score, fits)
            self.best = min(self.best, float(score.min()))
            self._add_leaders(scored, score)
            self._add_families(scored, score, fits)

    def _add_misses(self, scored: Scored, misses: BoolArray) -> None:
        """Count those that do not fit, and keep the one that comes closest."""
        memory = _or_infinity(scored.memory_bytes, misses)
        on_host = int(np.count_nonzero(memory <= self._job.memory_limit_bytes)) if self._job.offload.any else 0
        self.reject(OUT_OF_MEMORY, int(np.count_nonzero(misses)) - on_host)
        self.reject(OUT_OF_HOST_MEMORY, on_host)
        least = memory.min()
        if self.nearest_miss is None or least <= self.nearest_miss.memory_bytes[0]:
            earlier = [self.nearest_miss] if self.nearest_miss else []
            self.nearest_miss = least_memory(joined([*earlier, scored.listed(memory == least)]))

    def reject(self, reason: str, count: int) -> None:
        """Count candidates that are rejected for a reason."""
        if count:
            self.rejected[reason] = self.rejected.get(reason, 0) + count

    def _add_leaders(self, scored: Scored, score: FloatArray) -> None:
        """Keep those that may be among the leaders, given the score of each or infinity where it does not fit."""
        if self._threshold == np.inf:
            self._threshold = _nth(self._scores[-1])
        rows = np.flatnonzero(score.min(axis=tuple(range(score.ndim - 1))) <= self._threshold)
        if len(rows):
            some = score[..., rows]
            self._leaders.append(scored.take(rows).listed((some <= self._threshold) & (some < np.inf)))
        if sum(len(part.score) for part in self._leaders) > 4 * KEEP_VARIANTS:
            every = joined(self._leaders)
            self._threshold = _nth(every.score)
            self._leaders = [every.take(every.score <= self._threshold)]

    def leaders(self) -> Scored:
        """Return the best candidates in order, at most `KEEP_VARIANTS`."""
        return ordered(joined(self._leaders)).take(slice(KEEP_VARIANTS))

    def _add_families(self, scored: Scored, score: FloatArray, fits: BoolArray) -> None:
        """Keep the best of each family in this part, and count its members."""
        key = grid_key(scored.rows, FAMILY)
        key = key.reshape(*[1] * (score.ndim - key.ndim), *key.shape)
        alike = tuple(axis for axis, size in enumerate(key.shape) if size == 1)  # choices that stay in a family
        least, number = score.min(axis=alike, keepdims=True), fits.sum(axis=alike, keepdims=True)
        best = np.full(int(key.max()) + 1, np.inf)
        np.minimum.at(best, key.ravel(), least.ravel())
        members = np.bincount(key.ravel(), weights=number.ravel())
        rows = np.flatnonzero(((least == best[key]) & (least < np.inf)).any(axis=tuple(range(key.ndim - 1))))
        key, some = key[..., rows], score[..., rows]
        leads = (some == best[key]) & (some < np.inf)
        tied, group = scored.take(rows).listed(leads), np.broadcast_to(key, leads.shape)[leads]
        self._families.append(tied.take(best_of_each(tied, group)))
        self._members.append(members[members > 0])
        if sum(len(part.score) for part in self._families) > MERGE_FAMILIES:
            merged, counts = self.families()
            self._families, self._members = [merged], [counts]

    def families(self) -> tuple[Scored, npt.NDArray[np.int64]]:
        """Return the best candidate of each family, in order, and the number of feasible candidates of each."""
        if not self._families:
            return nothing(), np.zeros(0, dtype=np.int64)
        every = joined(self._families)
        _, group = distinct(grid_key(every.rows, FAMILY))
        members = np.bincount(group, weights=np.concatenate(self._members)).astype(np.int64)
        best = every.take(best_of_each(every, group))
        order = rank_order(best)
        return best.take(order), members[order]

    def scores(self) -> FloatArray:
        """Return the scores of all feasible candidates, ascending."""
        return np.sort(np.concatenate(self._scores)) if self._scores else np.zeros(0)


def _or_infinity(values: FloatArray, marked: BoolArray) -> FloatArray:
    """Values above 0 where they are marked, infinity elsewhere.

    Divided by 1 or 0: choosing takes up to seven times as long, as processors guess wrong which of two it will be.
    """
    with np.errstate(divide="ignore"):
        return values / marked


def _nth(score: FloatArray) -> float:
    """The score of the last of `KEEP_VARIANTS` leaders; infinity when there are fewer."""
    return float(np.partition(score, KEEP_VARIANTS - 1)[KEEP_VARIANTS - 1]) if len(score) >= KEEP_VARIANTS else np.inf
