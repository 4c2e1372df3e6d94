"""Stages per pool: one pipeline crosses the pools, with as many layers on a stage as its GPUs are fast and have memory
(docs/fleet.md). With m microbatches, stage times t_s, transfers h between stages and everything after the microbatches
in e,

    step_time_s = m max_s (t_s + 2 h_s) + sum of the other t_s + 2 sum of h + max over pools of e

The layers are dealt out by an exact search: under a bound T of all stage times and each stage's memory, a stage that
starts with a given layer can take so many at most; the cuts between pools with the least sum of stage times follow by
dynamic programming; T runs over all stage times that there are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray
from gpuscale.errors import NoAnswerError
from gpuscale.fleets.batches import joining_view
from gpuscale.fleets.ways import Fleet, FleetPlan, Pool, PoolPlan
from gpuscale.layouts.arrays import ONE_F_ONE_B, Candidates, Cases, concatenate, unique_rows
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.layouts.space import recomputed
from gpuscale.layouts.stages import FIRST, LAST, StageTable
from gpuscale.memory.model import evaluate_memory, measure_layers
from gpuscale.memory.states import stage_parameters
from gpuscale.planning.describe import describe
from gpuscale.planning.layouts import layout_text
from gpuscale.rules.check import RECOMPUTE_RULES, mark
from gpuscale.rules.rule import FRAMEWORKS
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import ROW_RULES, legal_rows
from gpuscale.search.ordering import nothing
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.data_parallel import data_parallel_time, gradient_sums_s, optimizer_issue_s, tied_embedding_s
from gpuscale.steptime.step import (
    covered,
    cut_key,
    evaluate_passes,
    gpu_spread,
    hop_times,
    site_factor,
    slowest_of,
    stage_seconds,
)
from gpuscale.uncertainty import UNLIKE_NODES
from gpuscale.units import GIB

MOST_POOLS = 4

CLOSE = 16
"""Pipelines whose layers are dealt out exactly and that are evaluated: the best by their microbatches alone."""

MARGIN = 0.05
"""What a pipeline may lose to the best in its microbatches and still be looked at: what comes after them differs."""

AT_ONCE = 128
"""Layouts whose least bounds are found together at first; then twice as many, and so on, as few of them fit."""

MOST_NUMBERS = 2**24
"""Of stages x layers x layouts that are looked at together: 128 MiB an array."""

BISECTIONS = 18
"""Halvings of the bound on stage times, which begin with that of a stage of all layers."""

CLOSE_TO = 1e-3
"""How far the bound that is found may be above the least stage time, as a share of it: 2^-18 of all layers' time on the
slowest pool, which has at most 2^8 times that of the slowest stage."""

MOST_BOUNDS = 200
"""Bounds on the stage times that are tried of a layout, from the least upwards; hardly any has so many that may pay."""

RUNS_WITH = (
    "Megatron-LM with the layers of each stage given (`--pipeline-model-parallel-layout`) if NCCL agrees across the "
    "GPUs; FlagScale (`hetero_process_meshes`, `hetero_pipeline_layer_split`)"
)
"""Megatron-LM's user guide calls the option experimental. NCCL chooses algorithms by the GPU: between A100 and H100 it
has hung (NVIDIA/nccl, issue 1184). FlagScale also lets TP and DP differ by mesh (its pull requests 180 and 215)."""


class Order(NamedTuple):
    """Pools one after the other along a pipeline."""

    pools: tuple[Pool, ...]  #: in order.
    stages: tuple[int, ...]  #: of each.

    @property
    def pool_of(self) -> IntArray:
        """Index of the pool of each stage."""
        return np.repeat(np.arange(len(self.pools)), self.stages)


class Evaluated(NamedTuple):
    """One pipeline over pools, evaluated."""

    order: Order  #: its pools.
    row: Candidates  #: its layout, a single candidate.
    layers: tuple[int, ...]  #: on each stage.
    step_time_s: float  #: seconds per step.
    hops_s: float  #: of that, transfers between stages.
    busy_s: tuple[float, ...]  #: of each pool, the microbatches on its slowest stage [s].
    share: tuple[float, ...]  #: of each pool, the share of the model's FLOPs.
    memory_bytes: tuple[float, ...]  #: of each pool, at its fullest stage.
    fits: bool  #: whether every stage fits on its own GPUs.


def stages(fleet: Fleet) -> FleetPlan:
    """Return the fastest pipeline that crosses all pools; a NoAnswerError where there is none."""
    _refuse(fleet)
    found = [evaluated(fleet, one) for one in pipelines(fleet)]
    best = min((one for one in found if one.fits), key=lambda one: one.step_time_s, default=None)
    if best is None:
        raise NoAnswerError("no pipeline over all pools fits on their GPUs")
    layout, parts, plans = layout_text(best.row.row(0)), [], []
    tokens_per_s = fleet.spec.tokens_per_step / best.step_time_s
    ends = np.cumsum([0, *best.order.stages])
    layers = [best.layers[start:end] for start, end in pairwise(ends)]  # of each pool, in the order of the pipeline
    for pool in fleet.pools:
        at = best.order.pools.index(pool)
        flops = fleet.flops_per_token * best.share[at]
        parts.append(
            PoolPlan(
                pool=pool.name,
                gpus=pool.spec.gpus,
                layout=layout,
                num_microbatches=int(best.row.num_microbatches[0]),
                sequences=fleet.spec.global_batch_size,
                layers=layers[at],
                busy_s=best.busy_s[at],
                memory_gib=best.memory_bytes[at] / GIB,
                memory_limit_gib=pool.spec.memory_limit_bytes / GIB,
                gpu_power_w=fleet.gpu_power_w(pool, flops, tokens_per_s),
                usd_per_gpu_hour=pool.usd_per_gpu_hour,
            )
        )
        wide = spanning(pool.spec, fleet.spec.gpus)
        job = pool.variant.job._replace(spec=wide)
        plans.append(describe(job, best.row, evaluate(best.row, wide), unseen=(UNLIKE_NODES,)).plan)
    by_pool = (f"{sum(own)} layers on {pool.name}" for pool, own in zip(best.order.pools, layers, strict=True))
    text = f"stages by speed: {' then '.join(by_pool)}"
    return fleet.way("stages", text, parts, best.step_time_s, plans, RUNS_WITH, sync_s=best.hops_s)


def _refuse(fleet: Fleet) -> None:
    spec, pins = fleet.spec, fleet.whole.pins
    if len(fleet.pools) > MOST_POOLS:
        raise NoAnswerError(f"orders of more than {MOST_POOLS} pools are not tried")
    if spec.offload.any:
        raise NoAnswerError("stages of different GPUs are not modelled with offloading")
    if FRAMEWORKS[spec.runtime.rule_set].even_chunks:
        raise NoAnswerError(f"{spec.runtime.name} splits the layers evenly")
    if any(level.torus_shape for pool in fleet.pools for level in pool.spec.cluster.levels):
        raise NoAnswerError("pipelines do not leave a torus")
    if pins.schedule != ONE_F_ONE_B or not pins.allows("vpp", np.ones(1, dtype=np.int64))[0]:
        raise NoAnswerError("stages of different GPUs are modelled for 1F1B without interleaving")
    if spec.axis_order[-1] != "pp":
        raise NoAnswerError("stages of different GPUs need `axis_order` to end with pp")


def stage_sizes(fleet: Fleet) -> list[int]:
    """Return how many GPUs a stage may have: they divide those of every pool."""
    gpus = [pool.spec.gpus for pool in fleet.pools]
    layers, every = len(fleet.spec.model.trained_pattern), math.gcd(*gpus)
    sizes = [each for each in range(1, every + 1) if every % each == 0 and sum(gpus) // each <= layers]
    return [each for each in sizes if fleet.whole.pins.allows("pp", np.array([sum(gpus) // each]))[0]]


def spanning(job: JobSpec, gpus: int) -> JobSpec:
    """Return the job of a pool as if the pool had the GPUs of all: what a pipeline that goes on elsewhere is there, its
    stages as far apart and as fast as they are in the pool."""
    levels = job.cluster.levels
    wide = replace(job.cluster, levels=(*levels[:-1], levels[-1].resized(gpus)))
    return replace(job, gpus=gpus, cluster=wide)


class Pipeline(NamedTuple):
    """One pipeline over pools."""

    order: Order  #: its pools.
    jobs: tuple[JobSpec, ...]  #: `spanning` of each.
    row: Candidates  #: its layout, a single candidate.
    layers: tuple[int, ...]  #: of each stage.


class Timed(NamedTuple):
    """N layouts of pipelines whose stages have equally many GPUs, and how long layers take on the P pools."""

    jobs: tuple[JobSpec, ...]  #: `spanning` of each pool, in the order of the fleet.
    stages: tuple[int, ...]  #: of each pool.
    rows: Candidates  #: the layouts.
    layer_s: FloatArray  #: forward and backward pass of a layer by pool and kind, shape (P, kinds, N) [s].
    ends_s: FloatArray  #: those of embedding and LM head by pool, shape (P, 2, N) [s].
    floor_s: FloatArray  #: what the microbatches take at least, if layers could be cut anywhere, shape (N,) [s].

    def take(self, rows: IndexArray) -> Timed:
        """Return some of the layouts."""
        return Timed(self.jobs, self.stages, self.rows.take(rows), *(one[..., rows] for one in self[3:]))


def pipelines(fleet: Fleet) -> list[Pipeline]:
    """Return the pipelines that may be the fastest, their layers dealt out. Of every layout the least bound on its
    stage times is found, unless a perfectly even dealing were slower than the best so far by more than `MARGIN`; of the
    `CLOSE` best by that the layers are dealt out exactly."""
    listed, best = list[tuple[float, float, Order, Timed, Costs]](), np.inf
    timed = [timed_layouts(fleet, each) for each in stage_sizes(fleet)]
    for one in sorted(timed, key=lambda one: float(one.floor_s.min(initial=np.inf))):
        by_floor = np.argsort(one.floor_s, kind="stable")
        most = MOST_NUMBERS // (sum(one.stages) * len(fleet.spec.model.trained_pattern))
        for rows in _growing(len(by_floor), most):
            block = one.take(by_floor[rows])
            if block.floor_s[0] > (1 + MARGIN) * best:
                break
            sizes = [stage_bytes(block.rows, job, sum(one.stages)) for job in one.jobs]
            for pools in permutations(range(len(fleet.pools))):
                order = Order(tuple(fleet.pools[at] for at in pools), tuple(one.stages[at] for at in pools))
                own, costs = block, _costs(block, sizes, pools)
                possible = np.flatnonzero(dealt(costs)[0])
                own, costs = own.take(possible), costs.take(possible)
                bound_s, score_s = least_bound(costs, own.rows.num_microbatches)
                best = min(best, float(score_s.min(initial=np.inf)))
                for at in np.flatnonzero(score_s <= (1 + MARGIN) * best).tolist():
                    row = np.array([at])
                    listed.append((float(score_s[at]), float(bound_s[at]), order, own.take(row), costs.take(row)))
    found = []
    for _, bound, order, own, costs in sorted(listed, key=lambda one: one[0])[:CLOSE]:
        layers = deal_layers(costs, order.stages, int(own.rows.num_microbatches[0]), bound)
        jobs = tuple(own.jobs[fleet.pools.index(pool)] for pool in order.pools)
        found += [Pipeline(order, jobs, own.rows, layers)] if layers else []
    return found


def _growing(count: int, most: int) -> Iterator[slice]:
    """Cut `count` rows into parts, each twice as long as the one before, but none longer than `most`."""
    start, size = 0, min(AT_ONCE, most)
    while start < count:
        yield slice(start, start + size)
        start, size = start + size, min(2 * size, most)


def timed_layouts(fleet: Fleet, each: int) -> Timed:
    """Return the layouts of pipelines with so many GPUs on each stage, and time their layers on every pool; of layers
    that are recomputed whole the share is that of an even split."""
    jobs = tuple(spanning(pool.spec, fleet.spec.gpus) for pool in fleet.pools)
    counts = tuple(pool.spec.gpus // each for pool in fleet.pools)
    rows, model = _rows(fleet, jobs, sum(counts)), jobs[0].model
    share = np.minimum(rows.recompute_layers / (len(model.trained_pattern) / sum(counts)), 1.0)
    layer_s = np.zeros((len(jobs), len(model.trained_kinds), len(rows)))
    ends_s = np.zeros((len(jobs), 2, len(rows)))
    for at, job in enumerate(jobs):
        cuts, index = unique_rows(rows, cut_key(rows, job))
        passes = evaluate_passes(cuts, Cases(index), job)
        for kind, layer in enumerate(passes.layers):
            again_s = passes.cut.of(layer.recompute_s) * share
            layer_s[at, kind] = passes.cut.of(layer.forward_s) + passes.cut.of(layer.backward_s) + again_s
        for end in (FIRST, LAST):
            ends_s[at, end] = sum(passes.cut.of(one) for one in passes.ends_s[end])
    whole_s = np.einsum("pkn,k->pn", layer_s, np.array(model.trained_counts, dtype=np.float64))
    bound_s = 1.0 / (np.array(counts)[:, None] / np.maximum(whole_s, 1e-300)).sum(axis=0)
    floor_s = (rows.num_microbatches - 1) * bound_s + whole_s.min(axis=0)
    return Timed(jobs, counts, rows, layer_s, ends_s, floor_s)


def _rows(fleet: Fleet, jobs: Sequence[JobSpec], pp: int) -> Candidates:
    one = Pin(((1, 1),))
    pins: Pins = replace(fleet.whole.pins, degrees={**fleet.whole.pins.degrees, "pp": Pin(((pp, pp),)), "vpp": one})
    found = [nothing().rows]
    for rows in legal_rows(jobs[0], pins, {}):
        tried = recomputed(jobs[0], pins, rows)
        for job in jobs:
            tried = mark((*ROW_RULES, *RECOMPUTE_RULES), tried, job, {})
        found.append(tried.listed())
    return concatenate(found)


class Costs(NamedTuple):
    """What layers cost on each of p stages, for N layouts of a pipeline over P pools."""

    before: FloatArray  #: layers of each kind before each layer, shape (kinds, layers + 1).
    layer_s: FloatArray  #: forward and backward pass of a layer by pool and kind, shape (P, kinds, N) [s].
    end_s: FloatArray  #: those of embedding and LM head by stage, shape (p, N) [s].
    layer_bytes: FloatArray  #: of a layer by stage and kind, shape (p, kinds, N).
    fixed_bytes: FloatArray  #: of the rest by stage, shape (p, N).
    limit_bytes: FloatArray  #: by stage, shape (p,).
    pool_of: IntArray  #: pool of each stage, shape (p,).

    def take(self, rows: IndexArray) -> Costs:
        """Return those of some layouts."""
        columns = {name: getattr(self, name)[..., rows] for name in ("layer_s", "end_s", "layer_bytes", "fixed_bytes")}
        return self._replace(**columns)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.before.shape[1] - 1

    def passed(self) -> _Passed:
        """What all layers before each take."""

        def before_each(of_layers: FloatArray) -> FloatArray:
            """Add up what layers have, by kind, over those before each: (X, kinds, N) to (X, layers + 1, N)."""
            return functools.reduce(
                np.add, (of_layers[:, kind, None] * count[:, None] for kind, count in enumerate(self.before))
            )

        return _Passed(before_each(self.layer_s), before_each(self.layer_bytes))


class _Passed(NamedTuple):
    """What all layers before each take."""

    time_s: FloatArray  #: by pool, shape (P, layers + 1, N) [s].
    size: FloatArray  #: by stage, shape (p, layers + 1, N) [bytes].


def _costs(timed: Timed, sizes: Sequence[tuple[FloatArray, FloatArray]], pools: Sequence[int]) -> Costs:
    """Return what layers cost on the stages of pools of the fleet (by index) in an order; `sizes`: `stage_bytes` of
    each."""
    model = timed.jobs[0].model
    pattern, kinds = np.array(model.trained_pattern), np.arange(len(model.trained_kinds))
    before = np.zeros((len(kinds), len(pattern) + 1))
    np.cumsum(pattern == kinds[:, None], axis=1, out=before[:, 1:])
    pool_of = np.repeat(np.arange(len(pools)), [timed.stages[at] for at in pools])
    at_stage = np.array(pools)[pool_of]
    end_s = np.zeros((len(pool_of), len(timed.rows)))
    end_s[0] += timed.ends_s[pools[0], FIRST]
    end_s[-1] += timed.ends_s[pools[-1], LAST]
    places = list(enumerate(at_stage.tolist()))
    layer_bytes, fixed = (np.stack([sizes[pool][part][stage] for stage, pool in places]) for part in (0, 1))
    limits = np.array([job.plans_limit_bytes for job in timed.jobs])[at_stage]
    return Costs(before, timed.layer_s[list(pools)], end_s, layer_bytes, fixed, limits, pool_of)


def stage_bytes(rows: Candidates, job: JobSpec, pp: int) -> tuple[FloatArray, FloatArray]:
    """Return the memory of a layer by stage and kind, (p, kinds, N), and of the rest by stage, (p, N) [bytes], taken as
    linear in the layers around an even split; what is chosen is evaluated as it is."""
    counts = np.array(job.model.trained_counts, dtype=np.float64)
    even = np.repeat(counts[None] / pp, pp, axis=0)
    usual = _memory_bytes(rows, job, even)
    of_kinds = []
    for kind in range(len(counts)):
        more = even.copy()
        more[:, kind] += 1
        of_kinds.append(_memory_bytes(rows, job, more) - usual)
    layer_bytes = np.stack(of_kinds, axis=1)
    return layer_bytes, usual - np.einsum("skn,sk->sn", layer_bytes, even)


def stage_columns(pp: int) -> IntArray:
    """Return the column of each stage in a table of stages: first and last come before those in between."""
    columns = np.arange(1, pp + 1)
    columns[0], columns[-1] = FIRST, LAST
    return columns


def table_of(counts: FloatArray) -> StageTable:
    """Return a table of all stages of one pipeline; `counts`: layers by stage and kind, (p, kinds)."""
    pp = len(counts)
    stage = np.array([0, pp - 1, *(range(1, pp - 1) if pp > 2 else [0])])
    return StageTable(counts[stage][None], stage[None])


def _memory_bytes(rows: Candidates, job: JobSpec, counts: FloatArray) -> FloatArray:
    """Return the memory of each stage, (p, N) [bytes]; `counts`: layers by stage and kind, (p, kinds)."""
    table, row = table_of(counts), np.zeros(len(rows), dtype=np.intp)
    cuts, index = unique_rows(rows, cut_key(rows, job))
    sizes = measure_layers(cuts, Cases(index), job)
    parameters = stage_parameters(rows, job, table, row)
    found = evaluate_memory(rows, job, table, row, parameters, sizes).by_stage
    return np.asarray(np.broadcast_to(found, (table.counts.shape[1], len(rows)))[stage_columns(len(counts))])


def _reach(costs: Costs, stage: int, start: IndexArray, bound_s: FloatArray | float, passed: _Passed) -> IndexArray:
    """Return the layer before which a stage ends at the latest if it starts with a given one and its time is bounded;
    `start` has one layer for each of N layouts, or several of a single one."""
    time_s, size = passed.time_s[costs.pool_of[stage]], passed.size[stage]
    layout = np.minimum(np.arange(len(start)), time_s.shape[1] - 1)
    until = bound_s - costs.end_s[stage] + time_s[start, layout]
    room = costs.limit_bytes[stage] - costs.fixed_bytes[stage] + size[start, layout]
    return np.asarray(((time_s <= until) & (size <= room)).sum(axis=0) - 1)


def dealt(
    costs: Costs, bound_s: FloatArray | None = None, passed: _Passed | None = None
) -> tuple[BoolArray, FloatArray]:
    """Say whether all layers can be dealt out under a bound on stage times, and the sum of stage times then, each (N,).
    Stage by stage as many layers are taken as possible; if some dealing keeps the bound, this one does."""
    passed = passed or costs.passed()
    bound_s = _no_bound_s(costs, passed) if bound_s is None else bound_s
    pp, count = costs.end_s.shape
    start, columns, sum_s = np.zeros(count, dtype=np.intp), np.arange(count), costs.end_s.sum(axis=0)
    alive, ends = _ends(costs, range(pp), passed, start, costs.layers, bound_s)
    for stage, end in enumerate(ends):
        time_s = passed.time_s[costs.pool_of[stage]]
        sum_s = sum_s + time_s[end, columns] - time_s[start, columns]
        start = end
    return alive, sum_s


def _ends(
    costs: Costs, own: range, passed: _Passed, start: IndexArray, stop: int, bound_s: FloatArray | float
) -> tuple[BoolArray, list[IndexArray]]:
    """Say whether some stages can take the layers from `start` to `stop` under a bound on their times, and where each
    ends, as late as it can."""
    alive, ends = np.ones(len(start), dtype=bool), []
    for stage in own:
        end = np.minimum(_reach(costs, stage, start, bound_s, passed), stop - (own.stop - 1 - stage))
        alive &= end > start
        start = np.maximum(end, start)
        ends.append(start)
    return alive & (start == stop), ends


def _no_bound_s(costs: Costs, passed: _Passed) -> FloatArray:
    """Return a time that no stage takes, shape (N,) [s]."""
    return np.asarray((passed.time_s[:, -1].max(axis=0) + costs.end_s.max(axis=0)) * (1 + 1e-9))


def least_bound(costs: Costs, microbatches: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the least bound on stage times that some dealing keeps (at most `CLOSE_TO` too high), and (m - 1) times it
    plus all stage times, each (N,) [s]; without a bound some dealing must be possible."""
    passed = costs.passed()
    low, high = np.zeros(len(microbatches)), _no_bound_s(costs, passed)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        enough, _ = dealt(costs, middle, passed)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    _, sum_s = dealt(costs, high, passed)
    return high, (microbatches - 1) * high + sum_s


def deal_layers(costs: Costs, stages: Sequence[int], microbatches: int, bound_s: float) -> tuple[int, ...]:
    """Return the layers of each stage that make (m - 1) max t + sum t the least; exact for the given costs of a single
    layout, whose stage times have the least bound `bound_s`."""
    passed = costs.passed()
    time_s = passed.time_s[..., 0]
    least_sum_s = float(np.diff(time_s, axis=1).min(axis=0).sum() + costs.end_s.sum())
    best, chosen = np.inf, tuple[int, ...]()
    for bound in _bounds(costs, time_s, bound_s):
        if (microbatches - 1) * bound + least_sum_s >= best:
            break
        cuts, sum_s = _best_cuts(costs, stages, passed, bound)
        if cuts and (microbatches - 1) * bound + sum_s < best:
            best, chosen = (microbatches - 1) * bound + sum_s, cuts
    return _balanced(costs, stages, passed, chosen) if chosen else ()


def _bounds(costs: Costs, time_s: FloatArray, least_s: float) -> list[float]:
    """Return the stage times that there are, from the least bound upwards."""
    found = []
    ends = {(int(costs.pool_of[stage]), float(costs.end_s[stage, 0])) for stage in range(len(costs.end_s))}
    for pool, end_s in sorted(ends):
        found.append((time_s[pool][None, :] - time_s[pool][:, None]).ravel() + end_s)
    every = np.unique(np.round(np.concatenate(found) / least_s, 9))
    return [least_s * one * (1 + 1e-9) for one in every[every >= 1 - CLOSE_TO][:MOST_BOUNDS].tolist()]


def _best_cuts(costs: Costs, stages: Sequence[int], passed: _Passed, bound_s: float) -> tuple[tuple[int, ...], float]:
    """Return the layers at which pools end that make the sum of stage times the least under a bound, and that sum; from
    the last pool to the first, the least sum of all from a given layer on."""
    layers = costs.layers
    begins = np.cumsum([0, *stages])
    rest = np.full(layers + 1, np.inf)
    rest[layers] = 0.0
    steps = []
    for at in range(len(stages) - 1, -1, -1):
        count, time_s = stages[at], passed.time_s[at, :, 0]
        reach = np.arange(layers + 1)
        for stage in range(begins[at], begins[at + 1]):
            further = _reach(costs, stage, reach, bound_s, passed)
            reach = np.where(reach >= 0, np.where(further > reach, further, -1), -1)
        start, end = np.arange(layers + 1)[:, None], np.arange(layers + 1)
        ends_s = costs.end_s[begins[at] : begins[at + 1]].sum()
        possible = (end >= start + count) & (end <= reach[:, None])
        sums = np.where(possible, time_s - time_s[:, None] + ends_s, np.inf) + rest
        steps.append(sums.argmin(axis=1))
        rest = sums.min(axis=1)
    if not np.isfinite(rest[0]):
        return (), np.inf
    cuts, at_layer = [], 0
    for step in reversed(steps):
        at_layer = int(step[at_layer])
        cuts.append(at_layer)
    return tuple(cuts), float(rest[0])


def _balanced(costs: Costs, stages: Sequence[int], passed: _Passed, cuts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers of each stage with the shortest slowest stage in every pool, given where pools end."""
    found: list[int] = []
    begins, start = np.cumsum([0, *stages]), 0
    for at, end in enumerate(cuts):
        own = range(begins[at], begins[at + 1])
        time_s = passed.time_s[at, :, 0]
        low, high = 0.0, float(time_s[end] - time_s[start] + costs.end_s.max()) * (1 + 1e-9)  # for rounding
        for _ in range(2 * BISECTIONS):
            middle = (low + high) / 2
            enough, _ = _ends(costs, own, passed, np.array([start]), end, middle)
            low, high = (low, middle) if enough[0] else (middle, high)
        _, ends = _ends(costs, own, passed, np.array([start]), end, high)
        found += np.diff([start, *(int(one[0]) for one in ends)]).tolist()
        start = end
    return tuple(found)


def _counts(job: JobSpec, layers: Sequence[int]) -> FloatArray:
    """Return the layers of each kind on each stage, shape (p, kinds)."""
    kinds, ends = len(job.model.trained_kinds), np.cumsum(layers).tolist()
    pattern = np.array(job.model.trained_pattern)
    own = [pattern[end - count : end] for end, count in zip(ends, layers, strict=True)]
    return np.array([np.bincount(one, minlength=kinds) for one in own], dtype=np.float64)


def evaluated(fleet: Fleet, pipeline: Pipeline) -> Evaluated:
    """Evaluate one pipeline, each stage on the GPUs of its pool."""
    order, jobs, row, layers = pipeline
    pp, pool_of = len(layers), order.pool_of
    table = table_of(_counts(jobs[0], layers))
    first, columns = np.zeros(1, dtype=np.intp), stage_columns(pp)
    forward, backward, after, memory = np.zeros(pp), np.zeros(pp), [], []
    reference = np.zeros(pp)
    fits = True
    for at, job in enumerate(jobs):
        mine = np.flatnonzero(pool_of == at)
        passes = evaluate_passes(row, Cases(first), job)
        counts = table.layers(first)
        both = [one[columns, 0] for one in stage_seconds(row, counts, passes)]
        forward[mine], backward[mine] = both[0][mine], both[1][mine]
        if at == 0:
            reference = both[0] + both[1]
        parameters = stage_parameters(row, job, table, first)
        used = evaluate_memory(row, job, table, first, parameters)
        bytes_ = np.broadcast_to(used.by_stage, (table.counts.shape[1], 1))[columns[mine], 0]
        memory.append(float(bytes_.max()))
        fits &= memory[-1] <= job.plans_limit_bytes
        at_own = columns[mine]
        own = parameters.each(itemgetter(at_own))
        slow = mine[(forward + backward)[mine].argmax()]
        cover = covered(row, [one[columns[slow]] for one in counts], passes, forward[[slow]], backward[[slow]])
        _, exposed, optimizer, offload = data_parallel_time(row, job, own, cover)
        retries = used.allocator_retries(job.cluster.gpu.memory_bytes) * job.runtime.allocator_retry_s
        again = (retries * row.num_microbatches) if job.runtime.allocator_retry_s else np.zeros(1)
        again = again + gradient_sums_s(row, job, own) + optimizer_issue_s(row, job)
        after.append(float(np.sum(exposed + optimizer + offload + again)))
    both_s, count = forward + backward, int(row.num_microbatches[0])
    hops = _hops_s(fleet, order, jobs, row)
    beside = np.maximum(np.append(hops, 0.0), np.append(0.0, hops))  # the longer of a stage's two
    slowest = int((both_s + 2 * beside).argmax())
    busy_s = count * both_s[slowest]
    hops_s = 2 * (count * beside[slowest] + math.fsum(hops))
    waiting = float(slowest_of(row, max(gpu_spread(one.cluster.gpu) for one in jobs))[0])
    parts = [busy_s, busy_s * waiting, both_s.sum() - both_s[slowest], hops_s, max(after)]
    if jobs[0].trains_tied_embedding:  # what its gradients take longer between pools than inside one
        inside_s = max(float(tied_embedding_s(row, job)[0]) for job in jobs)
        parts.append(max(0.0, float(tied_embedding_s(*_over_the_join(fleet, jobs, row))[0]) - inside_s))
    factor = float(site_factor(row, jobs[0].site)[0]) if jobs[0].site else 1.0
    return Evaluated(
        order=order,
        row=row,
        layers=layers,
        step_time_s=math.fsum(parts) * factor,
        hops_s=hops_s,
        busy_s=tuple(count * float(both_s[pool_of == at].max()) for at in range(len(jobs))),
        share=tuple(float(reference[pool_of == at].sum() / reference.sum()) for at in range(len(jobs))),
        memory_bytes=tuple(memory),
        fits=fits,
    )


def _hops_s(fleet: Fleet, order: Order, jobs: Sequence[JobSpec], row: Candidates) -> FloatArray:
    """Return the transfer of a microbatch from each stage to the next, shape (p - 1,) [s]."""
    inside = [float(hop_times(row, job)[0][0]) for job in jobs]
    pair, job = _over_the_join(fleet, jobs, row)
    between = float(hop_times(pair, job)[0][0])
    pools = order.pool_of
    return np.array([inside[a] if a == b else between for a, b in pairwise(pools.tolist())])


def _over_the_join(fleet: Fleet, jobs: Sequence[JobSpec], row: Candidates) -> tuple[Candidates, JobSpec]:
    """Return two stages of a layout on both sides of the level that joins the pools."""
    each = int((row.tp * row.cp * row.dp)[0])
    view, _ = joining_view(fleet.spec.cluster, [each, each])
    cluster: ClusterSpec = replace(view, gpu=jobs[0].cluster.gpu)
    return replace(row, pp=np.full(1, 2)), replace(jobs[0], gpus=2 * each, cluster=cluster)
