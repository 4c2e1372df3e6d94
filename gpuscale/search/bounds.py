"""Constraints on plans beyond what the hardware sets: `--max-memory`, `--min-mfu`, `--max-days`, ..."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.search.goals import MEMORY, Goal, Terms
from gpuscale.search.scored import Scored
from gpuscale.specs.job import JobSpec


@dataclass(frozen=True)
class Bound:
    """One constraint.

    Attributes:
        code: its name as an option, with underscores; reason code of what it cuts.
        goal: what it bounds.
        limit: the worst value allowed, in the unit of the goal.
    """

    code: str
    goal: Goal
    limit: float

    @property
    def flag(self) -> str:
        """The option that sets it."""
        return f"--{self.code.replace('_', '-')}"


@dataclass(frozen=True)
class Limits:
    """The constraints of one job."""

    bounds: tuple[Bound, ...]
    job: JobSpec
    terms: Terms

    def meets(self, scored: Scored, among: BoolArray, rejected: dict[str, int]) -> BoolArray:
        """Return which of the candidates marked in `among` meet all constraints.

        Each of the others is counted in `rejected` under the first constraint that it breaks.
        """
        for bound in self.bounds:
            bad = among & (self._excess(bound, scored) > 0)
            count = int(np.count_nonzero(bad))
            if count:
                rejected[bound.code] = rejected.get(bound.code, 0) + count
                among = among & ~bad
        return among

    def keep(self, scored: Scored, rejected: dict[str, int]) -> Scored:
        """Drop the rows that break a constraint; each is counted in `rejected` under the first that it breaks."""
        return scored.take(self.meets(scored, np.ones(len(scored.score), dtype=bool), rejected))

    def excess(self, scored: Scored) -> FloatArray:
        """By what factor each row misses the constraint that it misses most, less 1; 0 or less where it meets all."""
        worst = np.full(len(scored.score), -1.0)
        for bound in self.bounds:
            worst = np.maximum(worst, self._excess(bound, scored))
        return worst

    def value(self, bound: Bound, scored: Scored) -> FloatArray:
        """What a constraint bounds, of each row, in the unit of its goal."""
        basis = scored.memory_bytes if bound.goal.basis == MEMORY else scored.step_time_s
        return bound.goal.value(basis, self.job, self.terms)

    def _excess(self, bound: Bound, scored: Scored) -> FloatArray:
        value = self.value(bound, scored)
        ratio = bound.limit / value if bound.goal.rising else value / bound.limit
        return ratio - 1.0


__all__ = ["Bound", "Limits"]
