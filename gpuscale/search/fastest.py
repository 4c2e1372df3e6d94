"""The fastest plan of each of several jobs, where only the best of these jobs matter.

Jobs that share layers are searched together (`gpuscale.search.job_groups`). Of their rows only those are looked at
(`gpuscale.search.look`) whose bound (`gpuscale.search.lower_bound`) does not exceed the best plan so far, least bound
first. What is left out is counted as `CANNOT_WIN`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.layouts.pins import Pins
from gpuscale.layouts.space import ways_to_recompute
from gpuscale.search.accumulator import Tally
from gpuscale.search.job_groups import Group, Kind, kinds
from gpuscale.search.look import Look
from gpuscale.search.loop import SearchResult
from gpuscale.search.lower_bound import CANNOT_WIN, Bounded, bounded_blocks, least_beside_s
from gpuscale.search.objectives import Constraints
from gpuscale.search.ordering import nothing
from gpuscale.search.timing import current_watch
from gpuscale.specs.job import JobSpec

FIRST_RUN, GROWTH, RUN = 128, 8, 2048
"""Rows that are looked at together: at first, how many times more while a job has no plan yet, and at most."""

REACH = 1.25
"""How many times as long as the best plan so far a step may take to be looked at. The best jobs are mostly near one
another; where too few of them are, those of which something was left out begin anew without this limit."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One job that takes part: the pins on its plans, and the constraints that these must meet."""

    job: JobSpec
    pins: Pins
    limits: Constraints | None


@dataclass(frozen=True, eq=False)
class Fastest:
    """What was found of one job.

    Attributes:
        found: its best plan among what was priced, and how the search went.
        beaten: its best plan, if it has one, is not among those wanted, and was not looked for any further.
    """

    found: SearchResult
    beaten: bool


def fastest(entries: Sequence[Entry], top: int) -> list[Fastest]:
    """Find the best plan of each of those jobs that are among the `top` best by the time of a step.

    All jobs have the same GPUs and tokens per step. Plans are those that a search of everything would find.
    """
    sorted_out = kinds([(one.job, one.pins) for one in entries])
    race = _Race(entries, top, REACH if len(entries) > top else np.inf)
    for kind in sorted_out:
        race.search_kind(kind, kind.groups)
    if not race.is_decided:
        race.reach = np.inf
        for kind in sorted_out:
            race.search_kind(kind, race.forget_incomplete(kind))
    return race.results()


class _Race:
    """Searches of several jobs that go on together, and what each has found so far.

    Attributes:
        tallies: what each job has found.
        reach: how many times as long as the best plan so far a step may take to be looked at.
    """

    def __init__(self, entries: Sequence[Entry], top: int, reach: float) -> None:
        self._entries = entries
        self.tallies = [Tally(one.job, one.limits) for one in entries]
        self.watch = current_watch()
        self._top = top
        self.reach = reach
        self._elapsed_s = [0.0] * len(entries)

    @property
    def ceiling_s(self) -> float:
        """The step time of the last of the best jobs so far; infinity where fewer have a plan."""
        best = sorted(tally.best for tally in self.tallies)
        return best[self._top - 1] if len(best) >= self._top else np.inf

    @property
    def reached_s(self) -> float:
        """The step time beyond which nothing is looked at, however few plans there are below it."""
        return self.reach * min(tally.best for tally in self.tallies)

    @property
    def is_decided(self) -> bool:
        """Whether nothing that was left out can be among the best jobs."""
        return self.ceiling_s <= self.reached_s

    def limit_s(self, group: Group) -> float:
        """What microbatches and bubble of a plan of interest in a group of jobs do not exceed."""
        own_s = max(self.tallies[member.index].best for member in group.members)
        return min(self.ceiling_s, self.reached_s, own_s) - least_beside_s(group.job)

    def forget_incomplete(self, kind: Kind) -> list[Group]:
        """Forget what was found of those groups of which something was left out, and return them."""
        incomplete = []
        for group in kind.groups:
            members = [member.index for member in group.members]
            if any(CANNOT_WIN in self.tallies[index].rejected for index in members):
                incomplete.append(group)
                for index in members:
                    self.tallies[index] = Tally(self._entries[index].job, self._entries[index].limits)
        return incomplete

    def search_kind(self, kind: Kind, groups: Sequence[Group]) -> None:
        """Search some jobs of one kind; the time that they share is booked under the first."""
        if not groups:
            return
        start, first = time.perf_counter(), groups[0].members[0].index
        counted = self.tallies[first].rejected if groups[0] is kind.groups[0] else {}
        for block in bounded_blocks(kind.job, kind.pins, counted, self.watch):
            for group in groups:
                self._search_block(group, kind, block)
        self._elapsed_s[first] += time.perf_counter() - start

    def _search_block(self, group: Group, kind: Kind, block: Bounded) -> None:
        """Look at the rows of a block that may win in a group of jobs, those with the least bound first."""
        left, size = np.ones(len(block.least_s), dtype=bool), FIRST_RUN
        while True:
            limit_s = self.limit_s(group)
            chosen = block.best(left, limit_s, min(size, RUN) if limit_s == np.inf else RUN)
            if not len(chosen):
                break
            Look(kind, group, block.layers, self.tallies, self.watch).at(block.grid.take(chosen), chosen, limit_s)
            left[chosen], size = False, GROWTH * size
        left_out = ways_to_recompute(kind.job, kind.pins) * left * block.choices
        for member in group.members:
            count = int(left_out[member.allows(block.grid.rows)].sum())
            self.tallies[member.index].reject(CANNOT_WIN, count)

    def results(self) -> list[Fastest]:
        """Return what was found, job by job."""
        ceiling_s, out = self.ceiling_s, []
        for tally, elapsed_s in zip(self.tallies, self._elapsed_s, strict=True):
            beaten = CANNOT_WIN in tally.rejected and tally.best > ceiling_s
            out.append(Fastest(_result(tally, elapsed_s), beaten))
        self.watch.lap("ranking")
        return out


def _result(tally: Tally, elapsed_s: float) -> SearchResult:
    families, variants = tally.families()
    scores = tally.scores()
    return SearchResult(
        leaders=nothing(),
        families=families,
        family_variants=variants,
        scores=scores,
        generated=len(scores) + sum(tally.rejected.values()),
        evaluated=tally.evaluated,
        feasible=len(scores),
        rejected=dict(sorted(tally.rejected.items())),
        nearest_miss=tally.nearest_miss,
        elapsed_s=elapsed_s,
    )


__all__ = ["Entry", "Fastest", "fastest"]
