"""The search: enumerate, cut what is illegal, count what fits, time what may lead, keep the best in order, list some.

One loop serves one job and many. Of every legal candidate memory is computed, and a lower bound of its step time, which
is the same for all choices of ZeRO. Of those that fit only those are timed whose lower bound allows them to be the best
of their family, or near the best of all. Where only the best of many jobs matter (`search_best`), jobs that share
layers share rows and layers, and what cannot win is only counted (`CANNOT_WIN`); nothing that could is left out
(tests/test_cuts.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray, log
from gpuscale.layouts.arrays import FIELDS, Candidates, combined_key, concatenate, distinct
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.layouts.space import (
    layouts,
    micro_batch_sizes,
    microbatched,
    modules_tried,
    recomputed,
    shapes,
    sharded,
    ways_to_recompute,
    without_zero,
)
from gpuscale.layouts.stages import at_place
from gpuscale.memory.model import evaluate_memory, states_bytes
from gpuscale.rules.check import (
    LAYOUT_RULES,
    MICROBATCH_RULES,
    RECOMPUTE_RULES,
    SHAPE_RULES,
    SHARDING_RULES,
    mark,
    restrict,
)
from gpuscale.rules.rule import Rule
from gpuscale.search import ties
from gpuscale.search.evaluation import (
    Evaluation,
    LayerCache,
    evaluate,
    lap,
    least_beside_s,
    measure_distinct_layers,
    placed,
)
from gpuscale.search.objectives import MEMORY, STEP_TIME, Constraints
from gpuscale.search.ordering import (
    FAMILY,
    ROW_FAMILY,
    Scored,
    best_of_each,
    family_of,
    folded,
    joined,
    nothing,
    ordered,
    rank_order,
    staircase,
)
from gpuscale.search.ties import NEAR
from gpuscale.specs.job import JobSpec, OffloadSpec
from gpuscale.steptime.step import step_time

BLOCK_ROWS = 1 << 15
"""Rows whose layers are measured at once; bounds the memory of a search."""

ROW_RULES = (*SHAPE_RULES, *LAYOUT_RULES, *SHARDING_RULES, *MICROBATCH_RULES)


def legal_rows(job: JobSpec, pins: Pins, rejected: dict[str, int]) -> Iterator[Candidates]:
    """Yield the legal rows with the axes (choices of ZeRO, 1, rows), at most `BLOCK_ROWS` at a time; how they recompute
    is not chosen yet. What a rule cuts is counted in `rejected`, by its code."""

    def checked(rules: Sequence[Rule], table: Candidates) -> Candidates:
        lap("enumerate")
        legal = restrict(rules, table, job, rejected)
        lap("rules")
        return legal

    table = checked(SHAPE_RULES, shapes(job, pins))
    table = checked(LAYOUT_RULES, layouts(job, pins, table))
    step = max(1, BLOCK_ROWS // max(1, len(micro_batch_sizes(job, pins))))
    for start in range(0, len(table), step):
        rows = checked(SHARDING_RULES, sharded(job, pins, table.take(slice(start, start + step))))
        rows = checked(MICROBATCH_RULES, microbatched(job, pins, rows))
        if len(rows):
            yield rows


def rules_beyond(job: JobSpec, group: JobSpec) -> list[Rule]:
    """Return the rules that may cut rows of a job which are legal in another that stands for it: those on what is
    offloaded, and, if it has another order of the axes, on layouts."""
    reordered = job.axis_order != group.axis_order
    return [rule for rule in ROW_RULES if not rule.applies(group) or (reordered and rule in LAYOUT_RULES)]


class Task(NamedTuple):
    """One job to search: the pins on its plans, and the constraints that these must meet."""

    job: JobSpec
    pins: Pins
    constraints: Constraints | None = None

    def allows(self, rows: Candidates) -> BoolArray:
        """Mark the rows that the pins allow, shape (N,); ZeRO and its shards are not looked at."""
        allowed = self.pins.allows("tp", rows.tp)
        for name in self.pins.degrees:
            if name not in SHARDING:
                allowed &= self.pins.allows(name, getattr(rows, name))
        return allowed


class JobGroup(NamedTuple):
    """Jobs that share layers, and legal rows: each has some of those of the group."""

    #: one of them with nothing offloaded and, where its layers do not depend on that, the stages outermost.
    job: JobSpec
    pins: Pins  #: what allows whatever any of them does.
    members: list[int]


SHARDING = ("zero", "shard")
"""Fields that say how states are sharded; jobs of a group are pinned alike in them."""


def job_groups(tasks: Sequence[Task]) -> list[JobGroup]:
    """Sort jobs into groups; those with the fastest arithmetic come first, then by their first jobs."""
    groups: list[tuple[tuple[object, ...], JobGroup]] = []
    for index, (job, pins, _) in enumerate(tasks):
        inside = job.axis_order[:3]  # without DP and PP, strides inside a stage do not depend on the order of these
        usual = (*inside, "dp", "pp") if {"tp", "cp", "ep"} == set(inside) else job.axis_order
        layers = replace(job, offload=OffloadSpec(), axis_order=usual)
        sharded = tuple(pins.degrees.get(name) for name in SHARDING)
        states = replace(job.states, moments=0.0, second_moment=0.0)  # no part of a layer
        alike = replace(layers, states=states, runtime=replace(job.runtime, pipeline_split=""))
        # what differs often comes first: whole jobs compare slowly
        key = (job.precision, pins.schedule, pins.recompute, pins.cp_elsewhere, sharded, alike)
        group = next((group for other, group in groups if other == key), None)
        if group is None:
            group = JobGroup(layers, pins, [])
            groups.append((key, group))
        group.members.append(index)
    found = [group._replace(pins=_all_that([tasks[index].pins for index in group.members])) for _, group in groups]
    return sorted(found, key=lambda group: -group.job.cluster.gpu.peak(group.job.precision))


def _all_that(each: Sequence[Pins]) -> Pins:
    first, degrees = each[0], {}
    for name, pin in first.degrees.items():
        pins = [one.degrees.get(name, Pin()) for one in each]
        ranges = pin.ranges if all(one.ranges == pin.ranges for one in pins) else ()
        degrees[name] = Pin(ranges, tuple(one for one in pin.excluded if all(one in pin.excluded for pin in pins)))
    return replace(first, degrees=degrees)


OUT_OF_MEMORY, OUT_OF_HOST_MEMORY = "out_of_memory", "out_of_host_memory"

CANNOT_WIN = "slower_than_best"
"""Reason of what is not looked at because it cannot be among the best."""

KEEP_VARIANTS = 2000
"""Leaders kept besides the best of every family."""

CHUNK_CANDIDATES = 1 << 17
"""Candidates combined at a time: many enough for NumPy's calls, few enough for its caches."""

MERGE_FAMILIES = 1 << 14
"""Candidates kept as the best of their families before families found more than once are merged."""

FIRST_RUN, GROWTH = 512, 8
"""Where only the best matter: rows that are looked at first, by lower bound, and how many times more come next."""


@dataclass(slots=True)
class SearchResult:
    """What a search found."""

    #: the best candidates, in order, at most `KEEP_VARIANTS`: those within a share of the best score, or of all.
    leaders: Scored
    families: Scored  #: the best candidate of each family, in order; families are `folded`.
    family_variants: IntArray  #: how many feasible candidates each of those stands for.
    scores: FloatArray  #: of all feasible candidates, ascending, where every candidate was timed; else empty.
    frontier: Scored  #: where asked for, the candidates than which none is faster and as small, or smaller and as fast.
    generated: int  #: rows formed, those that a rule cut included; feasible + all rejected.
    evaluated: int  #: legal candidates whose memory was compared with what there is.
    feasible: int  #: those that fit and meet the constraints.
    rejected: dict[str, int]  #: reason code -> rows.
    nearest_miss: Scored | None  #: where nothing fits, the candidate that takes the least memory.
    elapsed_s: float  #: wall time; what jobs share is booked under the first.
    beaten: bool = False  #: its best plan, if any, is not among those wanted, and was not looked for any further.


def search(
    job: JobSpec,
    pins: Pins,
    basis: str = STEP_TIME,
    *,
    constraints: Constraints | None = None,
    near: float = NEAR,
    every: bool = False,
    frontier: bool = False,
) -> SearchResult:
    """Search the whole space of one job; counts and the best of every family are exact.

    Args:
        basis: what candidates are ordered by, `step_time` or `memory`.
        constraints: on plans, beyond memory; what breaks one is rejected under its code.
        near: share of the best score within which all candidates are among the leaders.
        every: time every candidate that fits, and keep all scores; so it is with constraints and for a frontier.
    """
    every = every or frontier or constraints is not None
    one = _JobSearch(Task(job, pins, constraints), basis, near=near, every=every, frontier=frontier)
    _search_group(JobGroup(job, pins, [0]), [one])
    if one.evaluated and not one.fitting:
        (one.nearest_miss,) = _nearest_misses([one.task])
    return one.result()


def search_near(job: JobSpec, pins: Pins, share: float, memory: float = 1.0) -> tuple[SearchResult, SearchResult]:
    """Find the plans of a job that take at most `share` longer than its best, and those that are as fast as its best or
    faster with `memory` times the memory; what is slower is not looked at. The best of every family that has such a
    plan are those that `search` finds; all counts are of what was looked at."""
    roomy = replace(job, memory_limit_bytes=memory * job.memory_limit_bytes)
    found = _JobSearch(Task(job, pins, None), STEP_TIME, near=share, ceiling=lambda: np.inf)
    faster = _JobSearch(Task(roomy, pins, None), STEP_TIME, near=np.inf, ceiling=lambda: found.best)
    _search_group(JobGroup(job, pins, [0, 1]), [found, faster] if memory > 1 else [found])
    return found.result(), faster.result()


def anything_fits(job: JobSpec, pins: Pins) -> bool:
    """Whether any candidate of a job fits."""
    one = _JobSearch(Task(job, pins, None), MEMORY)
    _search_group(JobGroup(job, pins, [0]), [one])
    return bool(one.fitting)


def search_best(tasks: Sequence[Task], top: int) -> list[SearchResult]:
    """Find the best plan of each of those jobs, all of the same GPUs and tokens per step, that are among the `top` best
    by the time of a step. Plans are those that a search of everything would find; families and counts are those of what
    was looked at."""
    found = _search_tasks(tasks, top, STEP_TIME)
    ceiling = _ceiling(found, top)
    beaten = [CANNOT_WIN in one.rejected and one.best > ceiling for one in found]
    missed = [one for one, lost in zip(found, beaten, strict=True) if one.evaluated and not one.fitting and not lost]
    for one, miss in zip(missed, _nearest_misses([one.task for one in missed]), strict=True):
        one.nearest_miss = miss
    return [replace(one.result(), beaten=lost) for one, lost in zip(found, beaten, strict=True)]


def _nearest_misses(tasks: Sequence[Task]) -> list[Scored]:
    """Find of each job the candidate that takes the least memory, whatever there is."""
    found = _search_tasks([task._replace(constraints=None) for task in tasks], len(tasks), MEMORY)
    return [one.result().leaders.take(slice(1)) for one in found]


def _search_tasks(tasks: Sequence[Task], top: int, basis: str) -> list[_JobSearch]:
    """Search jobs for the best plans of the best of them, by step time, or by memory as if there were enough of it."""
    found: list[_JobSearch] = []
    found += [_JobSearch(task, basis, ceiling=lambda: _ceiling(found, top)) for task in tasks]
    for group in job_groups(tasks):
        _search_group(group, [found[index] for index in group.members])
    return found


def _ceiling(found: Sequence[_JobSearch], top: int) -> float:
    """The score of the last of the best jobs so far; infinity where fewer have a plan."""
    best = sorted(one.best for one in found)
    return best[top - 1] if len(best) >= top else np.inf


def _search_group(group: JobGroup, found: Sequence[_JobSearch]) -> None:
    start, first = time.perf_counter(), found[0]
    lap("presets")
    own_rules = [rules_beyond(one.task.job, group.job) for one in found]
    for rows in legal_rows(group.job, group.pins, first.rejected):
        layers = measure_distinct_layers(without_zero(rows), modules_tried(group.job, group.pins), group.job)
        least_s = layers.least_row_s(rows)
        lap("layers")
        for one, rules in zip(found, own_rules, strict=True):
            one.search_block(rows, layers, least_s, rules)
    first.elapsed_s += time.perf_counter() - start


class _Fitting(NamedTuple):
    """Those N candidates of a grid that fit."""

    grid: Candidates  #: with the axes (choices of ZeRO, ways to recompute, rows).
    of_block: IndexArray  #: numbers of the rows in the block that layers were measured for.
    where: IndexArray  #: index of each in the flattened grid, shape (N,), as all others.
    family: IndexArray
    least: FloatArray  #: lower bound of its score.
    memory_bytes: FloatArray  #: at the fullest stage [bytes].
    host_bytes: FloatArray  #: what is offloaded, per host [bytes].
    retries: FloatArray  #: how often in a microbatch the allocator starts anew.


class _JobSearch:
    """The search of one job, and what it has found so far: candidates looked at (`evaluated`), that fit (`fitting`),
    that meet the constraints too (`feasible`); and the least score of these (`best`)."""

    def __init__(
        self,
        task: Task,
        basis: str,
        *,
        near: float = 0.0,
        every: bool = False,
        frontier: bool = False,
        ceiling: Callable[[], float] | None = None,
    ) -> None:
        """Search all, or, with a ceiling, what may be the best plan of the job and score no more than that; the best by
        memory is looked for whether it fits or not."""
        self.task, self.basis, self.near, self.every, self.ceiling = task, basis, near, every, ceiling
        limits = task.job.plans_limit_bytes, task.job.host_limit_bytes
        self._memory_limit_bytes, self._host_limit_bytes = (np.inf, np.inf) if ceiling and basis == MEMORY else limits
        self.rejected: dict[str, int] = {}
        self.evaluated = self.fitting = self.feasible = 0
        self.best, self.elapsed_s = np.inf, 0.0
        self.nearest_miss: Scored | None = None
        self._frontier = nothing() if frontier else None
        self._scores: list[FloatArray] = []
        self._leaders: list[Scored] = []
        self._families: list[Scored] = []
        self._members: list[IntArray] = []

    def _reject(self, reason: str, count: int, *, evaluated: bool = True) -> None:
        self.evaluated += count * evaluated
        if count:
            self.rejected[reason] = self.rejected.get(reason, 0) + count

    def search_block(self, block: Candidates, layers: LayerCache, least_s: FloatArray, rules: Sequence[Rule]) -> None:
        """Look at those rows of a block that the pins allow: at all of them, or, where only the best plan matters, at
        those that may be it, the ones with the least lower bound (`least_s`) first; `rules` may cut them too."""
        left, size = self.task.allows(block), FIRST_RUN
        if self.ceiling is None:
            rows = np.flatnonzero(left)
            self._look(block.take(rows), rows, layers, np.inf)
            return
        beside_s = least_beside_s(self.task.job) if self.basis == STEP_TIME else -np.inf
        while True:
            limit = min((1 + self.near) * self.best, self.ceiling())
            rows = np.flatnonzero(left & (least_s <= limit - beside_s))
            if not len(rows):
                break
            if len(rows) > size:
                of_rows = least_s[rows]
                rows = rows[of_rows <= np.partition(of_rows, size - 1)[size - 1]]  # and all that equal the last
            left[rows], size = False, GROWTH * size
            self._look(mark(rules, block.take(rows), self.task.job, self.rejected), rows, layers, limit)
        choices = int(np.count_nonzero(block.marked()[..., left]))
        self._reject(CANNOT_WIN, choices * len(ways_to_recompute(self.task.job, self.task.pins)), evaluated=False)

    def _look(self, some: Candidates, of_block: IndexArray, layers: LayerCache, limit: float) -> None:
        """Find what fits of some rows, by their numbers in the block that the layers are of, and time what may lead;
        beyond the score `limit` nothing is of interest."""
        job, timing = self.task.job, self.basis == STEP_TIME
        all_stages, all_row, held = placed(without_zero(some), job)
        longest = all_stages.counts.sum(axis=2).max(axis=1)[all_row]
        _, families = distinct(combined_key(some, ROW_FAMILY))
        tried = mark(RECOMPUTE_RULES, recomputed(job, self.task.pins, some), job, self.rejected)
        lap("rules")
        fullest = held.whole.argmax(axis=0)
        there = held.each(lambda part: at_place(part, fullest)[None, None, None]).shared_by(some)
        states = states_bytes(some, job, there)  # part of the memory, whatever is recomputed
        legal = tried.legal & (states <= min(self._memory_limit_bytes, np.inf if timing else limit))
        self._reject(OUT_OF_MEMORY, int(np.count_nonzero(tried.legal)) - int(np.count_nonzero(legal)))
        if timing and limit < np.inf:
            hopeful = legal & (layers.least_step_s(of_block, tried, longest) <= limit)
            self._reject(CANNOT_WIN, int(np.count_nonzero(legal)) - int(np.count_nonzero(hopeful)), evaluated=False)
            legal = hopeful
        found: list[_Fitting] = []
        for c, rows in _chunks(replace(tried, legal=legal)):
            own, row = of_block[rows], all_row[None, None, rows]
            stages = all_stages.narrowed(all_stages.width(row))
            mine = held.each(itemgetter(np.s_[: stages.counts.shape[1], None, None, rows])).shared_by(c)
            used = evaluate_memory(c, job, stages, row, mine, layers.of(own, c)[0])
            fits = on_gpu = c.legal & (used.peak_bytes <= self._memory_limit_bytes)
            if job.offload.any:
                fits = on_gpu & (used.host_bytes <= self._host_limit_bytes)
            fitting, count = int(np.count_nonzero(fits)), int(np.count_nonzero(on_gpu))
            self._reject(OUT_OF_MEMORY, int(np.count_nonzero(c.legal)) - count)
            self._reject(OUT_OF_HOST_MEMORY, count - fitting)
            if fitting:
                family = 4 * families[rows] + 2 * (c.zero == 3) + (c.recompute_layers > 0)
                least = layers.least_step_s(own, c, longest[rows]) if timing else used.peak_bytes
                retries = np.zeros(1)
                if job.runtime.allocator_retry_s:
                    retries = used.allocator_retries(job.cluster.gpu.memory_bytes)
                columns = (family, least, used.peak_bytes, used.host_bytes, retries)
                flat = (np.broadcast_to(column, c.shape)[fits] for column in columns)
                found.append(_Fitting(c, own, np.flatnonzero(fits), *flat))
            lap("memory")
        if found:
            self._time(found, layers)

    def _time(self, found: Sequence[_Fitting], layers: LayerCache) -> None:
        """Time what fits: all of it, or what may lead its family or be near the best."""
        family, least = np.concatenate([one.family for one in found]), np.concatenate([one.least for one in found])
        self.fitting += len(family)
        self.evaluated += len(family)
        if self.every or self.ceiling is not None:
            for timed, own in self._timed(found, np.ones(len(family), dtype=bool), layers):
                self._keep(timed, own)
            return
        members = np.bincount(family)
        first, best = np.full(len(members), np.inf), np.full(len(members), np.inf)
        np.minimum.at(first, family, least)
        is_first = least == first[family]
        found_first = list(self._timed(found, is_first, layers))
        for timed, own in found_first:
            np.minimum.at(best, own, timed.score)
        most = np.maximum(best, (1 + self.near) * min(self.best, best.min()))
        every = [*found_first, *self._timed(found, ~is_first & (least <= most[family]), layers)]
        self._keep(joined([timed for timed, _ in every]), np.concatenate([own for _, own in every]), members)

    def _timed(
        self, found: Sequence[_Fitting], wanted: BoolArray, layers: LayerCache
    ) -> Iterator[tuple[Scored, IndexArray]]:
        """Yield the wanted ones of candidates with their scores and the numbers of their families, some at a time."""
        job, listed = self.task.job, list[tuple[Candidates, tuple[IndexArray | FloatArray, ...]]]()
        starts = np.cumsum([0, *(len(one.where) for one in found)]).tolist()
        for one, start, end in zip(found, starts, starts[1:], strict=False):
            chosen = np.flatnonzero(wanted[start:end])
            if len(chosen):
                where = np.unravel_index(one.where[chosen], one.grid.shape)
                columns = (one.family, one.memory_bytes, one.host_bytes, one.retries)
                beside = one.of_block[where[2]], *(column[chosen] for column in columns)
                listed.append((one.grid.picked(where), beside))
            if listed and (one is found[-1] or sum(len(c) for c, _ in listed) >= CHUNK_CANDIDATES):
                c = concatenate([c for c, _ in listed])
                of_block, family, memory_bytes, host_bytes, retries = (
                    np.concatenate(columns) for columns in zip(*(beside for _, beside in listed), strict=True)
                )
                listed = []
                stages, row, parameters = placed(c, job)
                time_s = step_time(c, job, stages, row, parameters, layers.of(of_block, c)[1], retries).step_time_s
                score = time_s if self.basis == STEP_TIME else memory_bytes
                lap("step time")
                yield Scored(c, time_s, memory_bytes, score, host_bytes), family

    def _keep(self, timed: Scored, family: IndexArray, members: IntArray | None = None) -> None:
        """Keep the best of candidates that fit, of the families with these numbers; `members`: feasible candidates of
        each family, where not all of them are given."""
        if self.task.constraints is not None:
            meets = self.task.constraints.keep(timed.step_time_s, timed.memory_bytes, self.rejected)
            timed, family = timed.take(meets), family[meets]
        if not len(family):
            return
        members = np.bincount(family) if members is None else members
        self.feasible += int(members.sum())
        self.best = min(self.best, float(timed.score.min()))
        if self.every:
            self._scores.append(timed.score)
        if self._frontier is not None:
            self._frontier = staircase(joined([self._frontier, timed]))
        self._leaders.append(self._leading(timed))
        if sum(len(one.score) for one in self._leaders) > 4 * KEEP_VARIANTS:
            self._leaders = [self._leading(joined(self._leaders))]
        best = np.full(len(members), np.inf)
        np.minimum.at(best, family, timed.score)
        leads = timed.score == best[family]
        tied, family = timed.take(leads), family[leads]
        self._families.append(tied.take(best_of_each(tied, family)))
        self._members.append(members[best < np.inf])
        if sum(len(one.score) for one in self._families) > MERGE_FAMILIES:
            merged, counts = self._merged_families()
            self._families, self._members = [merged], [counts]
        lap("ranking")

    def _leading(self, timed: Scored) -> Scored:
        scores, threshold = timed.score, (1 + self.near) * self.best
        if self.every:
            few = len(scores) < KEEP_VARIANTS
            threshold = np.inf if few else np.partition(scores, KEEP_VARIANTS - 1)[KEEP_VARIANTS - 1]
        return timed.take(scores <= threshold)

    def _merged_families(self) -> tuple[Scored, IntArray]:
        every = joined(self._families)
        _, group = distinct(combined_key(every.rows, FAMILY))
        members = np.bincount(group, weights=np.concatenate(self._members)).astype(np.int64)
        best = every.take(best_of_each(every, group))
        order = rank_order(best)
        return best.take(order), members[order]

    def result(self) -> SearchResult:
        """Return what was found."""
        no_members = np.zeros(0, dtype=np.int64)
        families, variants = folded(*self._merged_families()) if self._families else (nothing(), no_members)
        leaders = ordered(self._leading(joined(self._leaders))).take(slice(KEEP_VARIANTS))
        scores = np.sort(np.concatenate(self._scores)) if self._scores else np.zeros(0)
        lap("ranking")
        return SearchResult(
            leaders=leaders,
            families=families,
            family_variants=variants,
            scores=scores,
            frontier=self._frontier or nothing(),
            generated=self.feasible + sum(self.rejected.values()),
            evaluated=self.evaluated,
            feasible=self.feasible,
            rejected=dict(sorted(self.rejected.items())),
            nearest_miss=self.nearest_miss,
            elapsed_s=self.elapsed_s,
        )


def _chunks(grid: Candidates) -> Iterator[tuple[Candidates, IndexArray]]:
    """Cut a grid into parts of bounded size, each with the indices of its rows, without rows and choices of ZeRO that
    are not legal at all. Rows of a part have the same legal choices of ZeRO, as far as many rows do; neighbours have
    the same pipeline, so that few stages need to be evaluated."""
    legal, ways = np.asarray(grid.legal.any(axis=1)), grid.legal.shape[1]
    rows = np.flatnonzero(legal.any(axis=0))
    pattern = (1 << np.arange(len(legal))) @ legal[:, rows]
    few = np.bincount(pattern)[pattern] * len(legal) * ways < CHUNK_CANDIDATES // 8
    pattern[few] = 0
    order = np.lexsort((grid.vpp[rows], grid.pp[rows], pattern))
    rows, pattern = rows[order], pattern[order]
    for alike in np.split(rows, np.flatnonzero(np.diff(pattern)) + 1):
        choices = np.flatnonzero(legal[:, alike].any(axis=1))
        step = max(1, CHUNK_CANDIDATES // max(1, len(choices) * ways))
        for start in range(0, len(alike), step):
            chunk = alike[start : start + step]
            part = replace(grid, legal=grid.legal[choices]).take(chunk)
            yield replace(part, zero=part.zero[choices], shard=part.shard[choices]), chunk


TIMES = ("step_time", "tokens_per_s", "mfu")
"""Objectives that come down to the step time; nothing is known of ties in others."""


COMPARED_LEADERS, COMPARED_FAMILIES = 400, 100
"""Leaders near the fastest, and families with their best plan, among which the first choice is looked for."""


class Shortlist(NamedTuple):
    """P plans that may be shown: those close to the fastest, and the best of the leading families."""

    rows: Candidates  #: the plans, in order of their scores.
    score: FloatArray  #: what they are ordered by, shape (P,).
    evaluation: Evaluation
    traits: ties.Traits  #: what decides between equals.
    family: IndexArray  #: index of the listed family that stands for each, (P,).
    variants: IntArray  #: how many feasible candidates that family stands for, shape (P,).

    @property
    def fastest(self) -> int:
        """Index of the plan with the least predicted step time."""
        return int(self.evaluation.step.step_time_s.argmin())

    def every(self, objective: str, score: FloatArray | None = None) -> IndexArray:
        """Return the indices of all plans, the first choice first, by their own score or another, shape (P,)."""
        by = self.score if score is None else score
        return np.argsort(by, kind="stable") if objective not in TIMES else ties.arranged(by, self.traits)

    def listed(self, in_order: IndexArray, *, unfold: bool) -> IndexArray:
        """Return of all plans in order the first of each family, or (`unfold`) each."""
        return in_order if unfold else in_order[np.sort(distinct(self.family[in_order])[0])]

    def order(self, objective: str, top: int, *, unfold: bool, score: FloatArray | None = None) -> IndexArray:
        """Return the indices of the plans to show, at most `top`, in order."""
        return self.listed(self.every(objective, score), unfold=unfold)[:top]

    def behind_fastest(self, order: IndexArray) -> tuple[FloatArray, FloatArray]:
        """Return of plans log(step time over the fastest's), and up to what they tie with it."""
        times, shares = self.evaluation.step.step_time_s, ties.step_shares(self.evaluation)
        unlike = ties.unlike(shares[:, order], shares[:, [self.fastest]])
        return log(times[order] / times[self.fastest]), ties.tie_window(unlike)


def shortlist(job: JobSpec, found: SearchResult, leaders: int, best: int) -> Shortlist:
    """Evaluate the first `leaders` candidates of a search and the best of its first families."""
    chosen, rest = found.leaders.take(slice(leaders)), found.families.take(slice(best))
    plans = joined([chosen, rest])
    plans = plans.take(np.sort(distinct(combined_key(plans.rows, FIELDS))[0]))  # the best of a family may be a leader
    plans = plans.take(np.argsort(plans.score, kind="stable"))
    evaluation = evaluate(plans.rows, job)
    family = family_of(plans.rows, found.families.rows)
    traits = ties.traits(plans.rows, evaluation, job)
    return Shortlist(plans.rows, plans.score, evaluation, traits, family, found.family_variants[family])


def near_leaders(found: SearchResult) -> int:
    """Number of leaders within `ties.NEAR` of the best, at most `COMPARED_LEADERS`."""
    scores = found.leaders.score
    near = scores[:1] * (1 + ties.NEAR)  # none where nothing fits
    return min(int(np.searchsorted(scores, near, side="right").sum()), COMPARED_LEADERS)
