"""A look at some rows of the search space for several jobs at once, each of which keeps what it finds in its tally.

First the pipeline is timed for each way to recompute, then memory is computed for each choice of ZeRO, then the whole
step is timed, each only for what is still among those that may win. What is left out is counted as `CANNOT_WIN`, what
does not fit for its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.space import Grid, recomputed, ways_to_recompute
from gpuscale.layouts.stages import StageTable
from gpuscale.memory.model import evaluate_memory, states_bytes
from gpuscale.memory.states import StageParameters, stage_parameters, with_shards
from gpuscale.rules.check import LAYOUT_RULES, MICROBATCH_RULES, RECOMPUTE_RULES, SHAPE_RULES, SHARDING_RULES, mark
from gpuscale.search.accumulator import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, Tally
from gpuscale.search.enumeration import CHUNK_CANDIDATES, USUAL_STAGES
from gpuscale.search.job_groups import Group, Kind, Member
from gpuscale.search.layer_cache import Layers, lifted, share_transfers, tabulated
from gpuscale.search.lower_bound import CANNOT_WIN, without_zero
from gpuscale.search.ordering import Scored
from gpuscale.search.timing import Stopwatch
from gpuscale.steptime.pipeline import hop_times, pipeline_time
from gpuscale.steptime.step import SharedTimes, step_time

ROW_RULES = (*SHAPE_RULES, *LAYOUT_RULES, *SHARDING_RULES, *MICROBATCH_RULES)
"""What rows of a kind have been checked for, as rows of a job that offloads nothing and whose order tears no stages."""


@dataclass(frozen=True, eq=False)
class Placed:
    """N rows, each under one way to deal out layers.

    Attributes:
        rows: with the axes (choices of ZeRO, 1, rows).
        legal: under each order of the axes, shape (orders, choices of ZeRO, rows).
        own: for each job of the group the rows that are its own, shape (rows,).
        of_block: their numbers in the block.
        stages, stage_row, parameters: layers and parameters of their stages.
    """

    rows: Candidates
    legal: BoolArray
    own: tuple[BoolArray, ...]
    of_block: IndexArray
    stages: StageTable
    stage_row: IndexArray
    parameters: StageParameters


@dataclass(frozen=True, eq=False)
class Ways:
    """L ways to recompute a row.

    Attributes:
        row: the row of each.
        modules, layers: what is recomputed.
        legal: for which choices of ZeRO, shape (choices, L).
    """

    row: IndexArray
    modules: IntArray
    layers: IntArray
    legal: BoolArray

    def cut(self, size: int) -> Iterator[Ways]:
        """Yield them, at most so many at a time."""
        for part in (slice(start, start + size) for start in range(0, len(self.row), size)):
            yield Ways(self.row[part], self.modules[part], self.layers[part], self.legal[:, part])


@dataclass(frozen=True, eq=False)
class Look:
    """Whom rows are looked at for.

    Attributes:
        layers: those of the block that the rows are of.
        tallies: of all jobs, by their index.
    """

    kind: Kind
    group: Group
    layers: Layers
    tallies: Sequence[Tally]
    watch: Stopwatch

    def at(self, grid: Grid, of_block: IndexArray, limit_s: float) -> None:
        """Price what may take no longer than a limit beside what every plan of the group takes.

        Args:
            grid: rows with their choices of ZeRO, and `of_block` their numbers in the block.
        """
        placed = self._light(self._placed(grid, of_block))
        self.watch.lap("memory")
        if not placed.legal.size:
            return
        ways = self._hopeful(placed, limit_s)
        self.watch.lap("step time")
        stages = max(placed.stages.counts.shape[1], USUAL_STAGES)
        for part in ways.cut(max(1, CHUNK_CANDIDATES * USUAL_STAGES // stages // len(ways.legal))):
            self._price(placed, part)

    def _placed(self, grid: Grid, of_block: IndexArray) -> Placed:
        """Cross rows with the ways to deal out layers, and check them for the jobs of the group."""
        job, members = self.group.job, self.group.members
        which, split = _under_splits(members, grid.rows)
        grid = grid.take(which)
        grid = replace(grid, rows=replace(grid.rows, split=split))
        own = tuple(member.allows(grid.rows) & (split == member.split) for member in members)
        legal = self._legal(grid)
        self.watch.lap("rules")
        plain = without_zero(grid.rows)
        stages, stage_row = tabulated(plain, job)
        parameters = stage_parameters(plain, job, stages, stage_row)
        return Placed(grid.rows, legal, own, of_block[which], stages, stage_row, parameters)

    def _legal(self, grid: Grid) -> BoolArray:
        """Check rows under each order; what a rule cuts is counted for the first job that has the order."""
        job, out = self.group.job, []
        rules = [rule for rule in ROW_RULES if rule.of_order or (rule.applies(job) and not rule.applies(self.kind.job))]
        for order in range(len(job.axis_orders)):
            first = next(member for member in self.group.members if member.order == order)
            ordered = Grid(replace(grid.rows, order=np.array([order])), grid.legal)
            out.append(mark(rules, ordered, job, self.tallies[first.index].rejected).marked()[:, 0])
        return np.stack(out)

    def _light(self, placed: Placed) -> Placed:
        """Leave out choices of ZeRO whose states alone do not fit, nor take less than what came closest to fitting."""
        job, c, parameters = self.group.job, placed.rows, placed.parameters
        parameters = with_shards(lifted(parameters.dense, c), lifted(parameters.expert, c), c)
        states = np.broadcast_to(states_bytes(c, job, parameters), c.shape)[:, 0]
        ways = ways_to_recompute(job, self.kind.pins)
        light = np.zeros(placed.legal.shape, dtype=bool)
        for member, own in self._members(placed):
            tally = self.tallies[member.index]
            mine = placed.legal[member.order] & own
            enough = job.memory_limit_bytes
            if tally.best == np.inf:
                enough = np.inf if tally.nearest_miss is None else max(enough, tally.nearest_miss.memory_bytes[0])
            tally.reject(OUT_OF_MEMORY, ways * int(np.count_nonzero(mine & (states > enough))))
            light[member.order] |= mine & (states <= enough)
        choices = np.flatnonzero(light.any(axis=(0, 2)))
        return replace(placed, rows=replace(c, zero=c.zero[choices], shard=c.shard[choices]), legal=light[:, choices])

    def _hopeful(self, placed: Placed, limit_s: float) -> Ways:
        """Choose the ways to recompute whose pipelines alone take no longer than a limit."""
        job, found = self.group.job, []
        first, in_any = self.tallies[self.group.members[0].index], np.asarray(placed.legal.any(axis=0))
        for grid in recomputed(job, self.kind.pins, Grid(placed.rows, in_any[:, None])):
            marked = mark(RECOMPUTE_RULES, grid, job, first.rejected).marked()
            c = without_zero(grid.rows)
            _, passes = self.layers.of(placed.of_block, c)
            pipeline = pipeline_time(c, job, placed.stages, lifted(placed.stage_row, c), passes)
            hope = (np.broadcast_to(pipeline.step_s(c), c.shape) <= limit_s) & marked.any(axis=0)
            lost = np.asarray(np.sum(marked & ~hope, axis=(0, 1)))
            for member, own in self._members(placed):
                self.tallies[member.index].reject(CANNOT_WIN, int(lost[own].sum()))
            way, row = np.nonzero(hope)
            columns = (np.broadcast_to(one, c.shape)[way, row] for one in (c.recompute_modules, c.recompute_layers))
            found.append((row, *columns, marked[:, way, row]))
        return Ways(*(np.concatenate(parts, axis=-1) for parts in zip(*found, strict=True)))

    def _price(self, placed: Placed, ways: Ways) -> None:
        """Compute memory under each choice of ZeRO, and step times of what fits."""
        job, row, dense, expert = self.group.job, ways.row, placed.parameters.dense, placed.parameters.expert
        c = replace(placed.rows.take(row), recompute_modules=ways.modules, recompute_layers=ways.layers)
        sizes, _ = self.layers.of(placed.of_block[row], c)
        parameters = with_shards(lifted(dense[:, row], c), lifted(expert[:, row], c), c)
        used = evaluate_memory(c, job, placed.stages, lifted(placed.stage_row[row], c), parameters, sizes)
        shape = c.shape
        memory_bytes, host_bytes = (np.broadcast_to(one, shape)[:, 0] for one in (used.peak_bytes, used.host_bytes))
        self.watch.lap("memory")
        order, zero, way = np.nonzero(self._wanted(placed, ways, memory_bytes, host_bytes))
        if not len(way):
            return
        flat = replace(c.picked((zero, np.zeros_like(zero), way)), order=order)
        at = row[way]
        parameters = with_shards(dense[:, at], expert[:, at], flat)
        _, passes = self.layers.of(placed.of_block[at], flat)
        shared = SharedTimes(passes, hop_times(flat, job), share_transfers(flat, job, parameters))
        self.watch.lap("prices")
        retries: FloatArray | float = 0.0
        if job.runtime.allocator_retry_s:
            every = used.allocator_retries(job.cluster.gpu.memory_bytes)
            retries = np.broadcast_to(every, shape)[zero, 0, way]
        step = step_time(flat, job, placed.stages, placed.stage_row[at], parameters, shared, retries).step_time_s
        self.watch.lap("step time")
        rows = replace(flat, order=_ZERO, split=_ZERO)
        scored = Scored(rows, step, memory_bytes[zero, way], step, host_bytes[zero, way])
        self._tally([own[at] & (order == member.order) for member, own in self._members(placed)], scored)

    def _members(self, placed: Placed) -> Iterator[tuple[Member, BoolArray]]:
        """Yield each job of the group with the rows that are its own."""
        return zip(self.group.members, placed.own, strict=True)

    def _wanted(self, placed: Placed, ways: Ways, memory_bytes: FloatArray, host_bytes: FloatArray) -> BoolArray:
        """Mark what is to be timed, shape (orders, choices of ZeRO, ways): what fits, and where nothing did yet what
        comes closest; the rest is counted."""
        job = self.group.job
        on_gpu = memory_bytes <= job.memory_limit_bytes
        fits = on_gpu & (host_bytes <= job.host_limit_bytes)
        wanted = np.zeros((len(job.axis_orders), *fits.shape), dtype=bool)
        for member, own in self._members(placed):
            tally = self.tallies[member.index]
            mine = ways.legal & placed.legal[member.order][:, ways.row] & own[ways.row]
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

    def _tally(self, own: Sequence[BoolArray], scored: Scored) -> None:
        """Hand each job of the group the candidates that are its own."""
        for member, mine in zip(self.group.members, own, strict=True):
            if mine.any():
                self.tallies[member.index].add(scored.take(np.flatnonzero(mine)), np.ones(np.count_nonzero(mine), bool))
        self.watch.lap("ranking")


_ZERO = np.zeros(1, dtype=np.int64)


def _under_splits(members: Sequence[Member], rows: Candidates) -> tuple[IndexArray, IntArray]:
    """Cross rows with the ways to deal out layers, as far as a job allows both: index of the row, and the way."""
    wanted: dict[int, BoolArray] = {}
    for member in members:
        allowed = member.allows(rows)
        wanted[member.split] = wanted[member.split] | allowed if member.split in wanted else allowed
    which = [np.flatnonzero(wanted[split]) for split in sorted(wanted)]
    return np.concatenate(which), np.repeat(sorted(wanted), [len(one) for one in which])


__all__ = ["Look"]
