"""The fastest plan of each of several jobs, where only the best of these jobs matter.

Jobs that share layers are searched together (`gpuscale.ranking.kinds`). Of their rows only those are looked at whose
bound (`gpuscale.ranking.cuts`) does not exceed the best plan so far, least bound first; of these first the pipeline is
timed for each way to recompute, then memory for each choice of ZeRO, then the whole step, each only for what is still
among those that may win. What is left out is counted as `CANNOT_WIN`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, IntArray
from gpuscale.candidates.pins import Pins
from gpuscale.candidates.space import Grid, recomputed, ways_to_recompute
from gpuscale.memory import memory, states_bytes
from gpuscale.memory.states import stage_parameters, with_shards
from gpuscale.ranking.blocks import CHUNK_CANDIDATES, USUAL_STAGES
from gpuscale.ranking.bounds import Limits
from gpuscale.ranking.cuts import CANNOT_WIN, Bounded, bounded_blocks, least_beside_s, without_zero
from gpuscale.ranking.kinds import Group, Kind, Member, kinds
from gpuscale.ranking.scored import Scored, nothing
from gpuscale.ranking.search import SearchResult
from gpuscale.ranking.sharing import lifted, share_transfers, tabulated
from gpuscale.ranking.tally import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, Tally
from gpuscale.ranking.timing import current_watch
from gpuscale.records import record
from gpuscale.rules import LAYOUT_RULES, MICROBATCH_RULES, RECOMPUTE_RULES, SHAPE_RULES, SHARDING_RULES, mark
from gpuscale.specs.job import JobSpec
from gpuscale.steptime import Prices, pipeline_time, price_hops, step_time

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.intp]

FIRST_RUN, GROWTH, RUN = 128, 8, 2048
"""Rows that are looked at together: at first, how many times more while a job has no plan yet, and at most."""

REACH = 1.25
"""How many times as long as the best plan so far a step may take to be looked at. The best jobs are mostly near one
another; where too few of them are, those of which something was left out begin anew without this limit."""

ROW_RULES = (*SHAPE_RULES, *LAYOUT_RULES, *SHARDING_RULES, *MICROBATCH_RULES)
"""What rows of a kind have been checked for, as rows of a job that offloads nothing and whose order tears no stages."""


@record(eq=False)
class Asked:
    """One job: the pins on its plans, and the constraints that these must meet."""

    job: JobSpec
    pins: Pins
    limits: Limits | None


@record(eq=False)
class Fastest:
    """What was found of one job.

    Attributes:
        found: its best plan among what was priced, and how the search went.
        beaten: its best plan, if it has one, is not among those wanted, and was not looked for any further.
    """

    found: SearchResult
    beaten: bool


def fastest(asked: Sequence[Asked], top: int) -> list[Fastest]:
    """Find the best plan of each of those jobs that are among the `top` best by the time of a step.

    All jobs have the same GPUs and tokens per step. Plans are those that a search of everything would find.
    """
    sorted_out = kinds([(one.job, one.pins) for one in asked])
    race = _Race(asked, top, REACH if len(asked) > top else np.inf)
    for kind in sorted_out:
        race.run(kind, kind.groups)
    if not race.is_decided:
        for kind in sorted_out:
            race.run(kind, race.to_repeat(kind))
    return race.results()


class _Race:
    """Searches of several jobs that go on together, and what each has found so far."""

    def __init__(self, asked: Sequence[Asked], top: int, reach: float) -> None:
        self._asked = asked
        self.tallies = [Tally(one.job, one.limits) for one in asked]
        self.watch = current_watch()
        self._top = top
        self._reach = reach
        self._elapsed_s = [0.0] * len(asked)

    @property
    def ceiling_s(self) -> float:
        """The step time of the last of the best jobs so far; infinity where fewer have a plan."""
        best = sorted(tally.best for tally in self.tallies)
        return best[self._top - 1] if len(best) >= self._top else np.inf

    @property
    def reached_s(self) -> float:
        """What is slower than this was left out, whatever else was found."""
        return self._reach * min(tally.best for tally in self.tallies)

    @property
    def is_decided(self) -> bool:
        """Whether nothing that was left out can be among the best jobs."""
        return self.ceiling_s <= self.reached_s

    def limit_s(self, group: Group) -> float:
        """What microbatches and bubble of a plan of interest in a group of jobs do not exceed."""
        own_s = max(self.tallies[member.index].best for member in group.members)
        return min(self.ceiling_s, self.reached_s, own_s) - least_beside_s(group.job)

    def to_repeat(self, kind: Kind) -> list[Group]:
        """Forget what was found of those groups of which something was left out, and from here on leave out less."""
        self._reach = np.inf
        incomplete = [
            group
            for group in kind.groups
            if any(CANNOT_WIN in self.tallies[member.index].rejected for member in group.members)
        ]
        for index in [member.index for group in incomplete for member in group.members]:
            self.tallies[index] = Tally(self._asked[index].job, self._asked[index].limits)
        return incomplete

    def run(self, kind: Kind, groups: Sequence[Group]) -> None:
        """Search some jobs of one kind; the time that they share is booked under the first."""
        if not groups:
            return
        start, first = time.perf_counter(), groups[0].members[0].index
        counted = self.tallies[first].rejected if groups[0] is kind.groups[0] else {}
        for block in bounded_blocks(kind.job, kind.pins, counted, self.watch):
            for group in groups:
                self._run(group, kind, block)
        self._elapsed_s[first] += time.perf_counter() - start

    def _run(self, group: Group, kind: Kind, block: Bounded) -> None:
        """Look at the rows of a block that may win in a group of jobs, those with the least bound first."""
        left, size = np.ones(len(block.least_s), dtype=bool), FIRST_RUN
        while True:
            limit_s = self.limit_s(group)
            chosen = block.best(left, limit_s, min(size, RUN) if limit_s == np.inf else RUN)
            if not len(chosen):
                break
            heat = _Heat(self, group, kind, block, chosen)
            if heat.legal.size:
                heat.run(limit_s)
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


class _Heat:
    """Some rows of a block, priced for the jobs of a group.

    Attributes:
        rows: the rows under each way to deal out layers, with the axes (choices of ZeRO, 1, rows).
        legal: under each order of the axes, shape (orders, choices of ZeRO, rows).
        own: for each job of the group the rows that are its own, shape (rows,).
        stages, stage_row, parameters, row_of_block: what is known of each row.
    """

    def __init__(self, race: _Race, group: Group, kind: Kind, block: Bounded, chosen: IndexArray) -> None:
        self.race, self.group, self.kind, self.layers = race, group, kind, block.layers
        grid = block.grid.take(chosen)
        which, split = _under_splits(group.members, grid.rows)
        grid = grid.take(which)
        self.rows = rows = replace(grid.rows, split=split)
        self.own = [member.allows(rows) & (split == member.split) for member in group.members]
        self.row_of_block = chosen[which]
        self.legal = self._legal(Grid(rows, grid.legal))
        race.watch.lap("rules")
        plain = without_zero(rows)
        self.stages, self.stage_row = tabulated(plain, group.job)
        self.parameters = stage_parameters(plain, group.job, self.stages, self.stage_row)
        self._leave_out_heavy()
        race.watch.lap("memory")

    def _legal(self, grid: Grid) -> BoolArray:
        """Check the rows for the jobs of the group; what a rule cuts is counted under the first job of each order."""
        job, out = self.group.job, []
        rules = [rule for rule in ROW_RULES if rule.of_order or (rule.applies(job) and not rule.applies(self.kind.job))]
        for order in range(len(job.axis_orders)):
            first = next(member for member in self.group.members if member.order == order)
            ordered = Grid(replace(grid.rows, order=np.array([order])), grid.legal)
            out.append(mark(rules, ordered, job, self.race.tallies[first.index].rejected).marked()[:, 0])
        return np.stack(out)

    def _leave_out_heavy(self) -> None:
        """Leave out choices of ZeRO whose states alone do not fit, nor take less than what came closest to fitting."""
        job, c = self.group.job, self.rows
        parameters = with_shards(lifted(self.parameters.dense, c), lifted(self.parameters.expert, c), c)
        states = np.broadcast_to(states_bytes(c, job, parameters), c.shape)[:, 0]
        ways = ways_to_recompute(job, self.kind.pins)
        light = np.zeros(self.legal.shape, dtype=bool)
        for member, own in zip(self.group.members, self.own, strict=True):
            tally = self.race.tallies[member.index]
            mine = self.legal[member.order] & own
            enough = job.memory_limit_bytes
            if tally.best == np.inf:
                enough = np.inf if tally.nearest_miss is None else max(enough, tally.nearest_miss.memory_bytes[0])
            tally.reject(OUT_OF_MEMORY, ways * int(np.count_nonzero(mine & (states > enough))))
            light[member.order] |= mine & (states <= enough)
        choices = np.flatnonzero(light.any(axis=(0, 2)))
        self.rows = replace(c, zero=c.zero[choices], shard=c.shard[choices])
        self.legal = light[:, choices]

    def run(self, limit_s: float) -> None:
        """Price what may take no longer than `limit_s`."""
        row, modules, layers, legal = self._ways(limit_s)
        self.race.watch.lap("step time")
        stages = self.stages.counts.shape[1]
        step = max(1, CHUNK_CANDIDATES * USUAL_STAGES // max(stages, USUAL_STAGES) // legal.shape[0])
        for part in (slice(start, start + step) for start in range(0, len(row), step)):
            rows = replace(self.rows.take(row[part]), recompute_modules=modules[part], recompute_layers=layers[part])
            self._price(row[part], Grid(rows, legal[:, None, part]))

    def _ways(self, limit_s: float) -> tuple[IndexArray, IntArray, IntArray, BoolArray]:
        """Choose ways to recompute whose pipelines alone take no longer than `limit_s`.

        Returns:
            The row, the modules and the layers of each, and for which choices of ZeRO it is legal.
        """
        job, found = self.group.job, []
        first, in_any = self.race.tallies[self.group.members[0].index], np.asarray(self.legal.any(axis=0))
        for grid in recomputed(job, self.kind.pins, Grid(self.rows, in_any[:, None])):
            marked = mark(RECOMPUTE_RULES, grid, job, first.rejected).marked()
            c = without_zero(grid.rows)
            _, passes = self.layers.of(self.row_of_block, c)
            pipeline = pipeline_time(c, job, self.stages, lifted(self.stage_row, c), passes)
            hope = (np.broadcast_to(pipeline.step_s(c), c.shape) <= limit_s) & marked.any(axis=0)
            lost = np.asarray(np.sum(marked & ~hope, axis=(0, 1)))
            for member, own in zip(self.group.members, self.own, strict=True):
                self.race.tallies[member.index].reject(CANNOT_WIN, int(lost[own].sum()))
            way, row = np.nonzero(hope)
            columns = (np.broadcast_to(one, c.shape)[way, row] for one in (c.recompute_modules, c.recompute_layers))
            found.append((row, *columns, marked[:, way, row]))
        rows, modules, layers, legal = (np.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
        return rows, modules, layers, legal

    def _price(self, row: IndexArray, grid: Grid) -> None:
        """Compute memory of a grid with the axes (choices of ZeRO, 1, ways), and step times of what fits.

        Args:
            row: the row of each way.
        """
        job, c, dense, expert = self.group.job, grid.rows, self.parameters.dense, self.parameters.expert
        sizes, _ = self.layers.of(self.row_of_block[row], c)
        parameters = with_shards(lifted(dense[:, row], c), lifted(expert[:, row], c), c)
        used = memory(c, job, self.stages, lifted(self.stage_row[row], c), parameters, sizes)
        shape = c.shape
        memory_bytes, host_bytes = (np.broadcast_to(one, shape)[:, 0] for one in (used.peak_bytes, used.host_bytes))
        self.race.watch.lap("memory")
        wanted = self._wanted(row, grid.legal[:, 0], memory_bytes, host_bytes)
        order, zero, way = np.nonzero(wanted)
        if not len(way):
            return
        flat = replace(c.picked((zero, np.zeros_like(zero), way)), order=order)
        at = row[way]
        parameters = with_shards(dense[:, at], expert[:, at], flat)
        _, passes = self.layers.of(self.row_of_block[at], flat)
        prices = Prices(passes, price_hops(flat, job), share_transfers(flat, job, parameters))
        self.race.watch.lap("prices")
        retries: FloatArray | float = 0.0
        if job.runtime.allocator_retry_s:
            every = used.allocator_retries(job.cluster.gpu.memory_bytes)
            retries = np.broadcast_to(every, shape)[zero, 0, way]
        step = step_time(flat, job, self.stages, self.stage_row[at], parameters, prices, retries)
        self.race.watch.lap("step time")
        times = step.step_time_s
        rows = replace(flat, order=_ZERO, split=_ZERO)
        self._tally(at, order, Scored(rows, times, memory_bytes[zero, way], times, host_bytes[zero, way]))

    def _wanted(self, row: IndexArray, legal: BoolArray, memory_bytes: FloatArray, host_bytes: FloatArray) -> BoolArray:
        """Mark what is to be timed, shape (orders, choices of ZeRO, ways): what fits, and where nothing did yet what
        comes closest; the rest is counted."""
        job = self.group.job
        on_gpu = memory_bytes <= job.memory_limit_bytes
        fits = on_gpu & (host_bytes <= job.host_limit_bytes)
        wanted = np.zeros((len(job.axis_orders), *fits.shape), dtype=bool)
        for member, own in zip(self.group.members, self.own, strict=True):
            tally = self.race.tallies[member.index]
            mine = legal & self.legal[member.order][:, row] & own[row]
            timed, misses = mine & fits, mine & ~fits
            if tally.best == np.inf and not timed.any() and misses.any():
                least = memory_bytes[misses].min()
                if tally.nearest_miss is None or least <= tally.nearest_miss.memory_bytes[0]:
                    timed = misses & (memory_bytes == least)
            wanted[member.order] |= timed
            uncounted = misses & ~timed
            on_host = int(np.count_nonzero(uncounted & on_gpu))
            tally.reject(OUT_OF_MEMORY, int(np.count_nonzero(uncounted)) - on_host)
            tally.reject(OUT_OF_HOST_MEMORY, on_host)
        return wanted

    def _tally(self, row: IndexArray, order: IndexArray, measured: Scored) -> None:
        """Hand each job of the group its candidates, of which the row and the order of the axes are given."""
        for member, own in zip(self.group.members, self.own, strict=True):
            mine = measured.take(np.flatnonzero(own[row] & (order == member.order)))
            if len(mine.score):
                self.race.tallies[member.index].add(mine, np.ones(len(mine.score), dtype=bool))
        self.race.watch.lap("ranking")


_ZERO = np.zeros(1, dtype=np.int64)


def _under_splits(members: Sequence[Member], rows: Candidates) -> tuple[IndexArray, IntArray]:
    """Cross rows with the ways to deal out layers, as far as a job allows both: index of the row, and the way."""
    wanted: dict[int, BoolArray] = {}
    for member in members:
        allowed = member.allows(rows)
        wanted[member.split] = wanted[member.split] | allowed if member.split in wanted else allowed
    which = [np.flatnonzero(wanted[split]) for split in sorted(wanted)]
    return np.concatenate(which), np.repeat(sorted(wanted), [len(one) for one in which])


__all__ = ["Asked", "Fastest", "fastest"]
