"""Batches per pool: every pool trains whole replicas of the model in its own layout, on as much of the batch as it can
(docs/fleet.md).

step_time_s = max over pools of T_i(B_i) + sync_s, with the B_i adding up to the global batch, and T_i(B) the step time
of pool i alone on B sequences. sync_s: each pool's sum of the gradients, spread over all its GPUs, is added to the
others' over the level that joins the pools, by AllReduces over one GPU of each pool, as many at a time as the smallest
pool has GPUs, behind which nothing is hidden. Where pools cut the model differently, what one GPU holds travels in as
many messages as GPUs of the other pool have it, copied together before and apart after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, IndexArray, IntArray
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import NoAnswerError
from gpuscale.fleets.ways import Fleet, FleetPlan, Pool, PoolPlan
from gpuscale.layouts.arrays import FIELDS, Candidates, combined_key, distinct
from gpuscale.layouts.stages import at_place
from gpuscale.planning.describe import describe
from gpuscale.results import PlanRow
from gpuscale.rules.check import ALL_RULES, mark
from gpuscale.search.evaluation import evaluate, placed
from gpuscale.search.loop import search
from gpuscale.search.ordering import joined
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.kernels import stream_time_s
from gpuscale.steptime.step import slowest_share
from gpuscale.uncertainty import UNLIKE_NODES

NEAR = 0.1
"""Layouts of a pool that take up to this share longer than its fastest are tried with every share of the batch."""

EACH = 3
"""Layouts kept of those whose ranks take equally many sequences at a time: other shares rank much the same."""

OF_WHOLE_BATCH = ("batch_not_divisible_by_dp", "batch_not_divisible")
"""Rules on the global batch, which a pool has a part of."""

MOST_SHARES = 2048
"""Shares of the batch that are tried of each pool, those around its share of the speed."""

AT_ONCE = 1 << 16
"""Layouts with their shares of the batch that are evaluated together."""

RUNS_WITH = (
    "not unmodified Megatron-LM, DeepSpeed or torchtitan: their data-parallel ranks all take the same batch in the "
    "same layout; research systems do (Sailor, arXiv 2504.17096; HexiScale, 2409.01143; Hetu v2, 2504.20490)"
)
"""Megatron-LM: `global_batch_size // (micro_batch_size * data_parallel_size)` microbatches for every rank
(core/num_microbatches_calculator.py), and mixed GPUs are not on its roadmap (issue 922, July 2024)."""


class Shares(NamedTuple):
    """What a pool takes for S different parts of the batch, each in its best layout."""

    sequences: IntArray  #: of the part, ascending, shape (S,).
    time_s: FloatArray  #: step time of the pool without the exchange with others, shape (S,) [s].
    rows: Candidates  #: the layouts, S of them.


class Dealt(NamedTuple):
    """A way to deal the batch out."""

    time_s: float  #: the longest step of a pool, without the exchange [s].
    chosen: tuple[int, ...]  #: for each pool the index into its `Shares`.


def batches(fleet: Fleet) -> FleetPlan:
    """Return the fastest way to deal the batch out to pools in their own layouts.

    Raises:
        NoAnswerError: a pool cannot hold the model, or no parts that the ranks of the pools divide make up the batch.
    """
    whole = fleet.spec.global_batch_size
    shares = part_times(fleet)
    dealt = deal(whole, shares)
    if dealt is None:
        message = f"no parts of {whole:,} sequences are whole microbatches of every pool's ranks"
        raise NoAnswerError(message, hint="give `gbs` with more small factors")
    rows = [own.rows.take(np.array([index])) for own, index in zip(shares, dealt.chosen, strict=True)]
    sync_s = gradient_sync_s(fleet, rows)
    step_time_s = dealt.time_s + sync_s
    sequences = [int(own.sequences[index]) for own, index in zip(shares, dealt.chosen, strict=True)]
    parts, plans = list[PoolPlan](), list[PlanRow]()
    for pool, row, count in zip(fleet.pools, rows, sequences, strict=True):
        spec = replace(pool.spec, global_batch_size=count)
        found = describe(pool.variant.job._replace(spec=spec), row, evaluate(row, spec), unseen=(UNLIKE_NODES,)).plan
        plans.append(found)
        tokens_per_s = spec.tokens_per_step / step_time_s
        busy_s = float(shares[len(parts)].time_s[dealt.chosen[len(parts)]])
        parts.append(replace(fleet.part(pool, found, spec, count, tokens_per_s), busy_s=busy_s))
    text = "batches split by speed: " + ", ".join(f"{part.sequences:,} sequences on {part.pool}" for part in parts)
    return fleet.way("batches", text, parts, step_time_s, plans, RUNS_WITH, sync_s=sync_s)


def part_times(fleet: Fleet) -> list[Shares]:
    """Return what each pool takes for the parts of the batch that it may get."""
    whole = fleet.spec.global_batch_size
    found = [layouts_of(pool, whole) for pool in fleet.pools]
    rates = [rate for _, rate in found]
    return [
        shares_of(pool, rows, whole, rate / math.fsum(rates), fleet.spec.gpus)
        for pool, (rows, rate) in zip(fleet.pools, found, strict=True)
    ]


def layouts_of(pool: Pool, whole: int) -> tuple[Candidates, float]:
    """Return layouts of a pool that are about as fast as its fastest, and sequences per second of that; they are
    searched for with a batch, near the `whole`, that any number of its ranks divides."""
    gpus = pool.spec.gpus
    spec = replace(pool.spec, global_batch_size=gpus * max(1, round(whole / gpus)))
    found = search(spec, pool.variant.pins, near=NEAR)
    if not found.feasible:
        raise NoAnswerError(f"{pool.name} cannot hold the model: no layout fits on {gpus:,} of its GPUs")
    every = joined([found.leaders, found.families])
    first, _ = distinct(combined_key(every.rows, FIELDS))
    every = every.take(first)
    rows = every.rows
    _, group = distinct(combined_key(replace(rows, dp=rows.dp * rows.micro_batch_size), ("dp", "pp", "vpp")))
    order = np.lexsort((every.score, group))
    start = np.searchsorted(group[order], group[order], side="left")
    kept = order[np.arange(len(order)) - start < EACH]
    return rows.take(np.sort(kept)), spec.global_batch_size / float(every.score.min())


def shares_of(pool: Pool, rows: Candidates, whole: int, share: float, gpus: int) -> Shares:
    """Return the best of some layouts (whatever their microbatches) for each part of the `whole` batch that a pool may
    get: its `share` of the speed of all pools, whose `gpus` wait for the slowest."""
    at_once = rows.dp * rows.micro_batch_size
    usual = (share * whole / at_once).astype(np.int64)
    most = np.minimum(whole // at_once, np.minimum(2 * usual + 1, usual + MOST_SHARES // 2))
    least = np.maximum(1, np.maximum(usual // 2, usual - MOST_SHARES // 2))
    count = np.maximum(most - least + 1, 0)
    index = np.repeat(np.arange(len(rows)), count)
    microbatches = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count) + least[index]
    tried = replace(rows.take(index), num_microbatches=microbatches)
    rules = [rule for rule in ALL_RULES if rule.code not in OF_WHOLE_BATCH]
    legal = np.broadcast_to(mark(rules, tried, pool.spec, {}).legal, len(tried))
    tried = tried.take(np.asarray(legal))
    times = [np.zeros(0)]
    for start in range(0, len(tried), AT_ONCE):
        found = evaluate(tried.take(slice(start, start + AT_ONCE)), pool.spec)
        room = found.memory_bytes <= pool.spec.plans_limit_bytes
        if pool.spec.offload.any:
            room &= found.memory.host_bytes <= pool.spec.host_limit_bytes
        step_s = found.step.step_time_s + found.step.beside["waiting"] * waiting_more(pool.spec.gpus, gpus)
        times.append(np.where(room, step_s, np.inf))
    time_s = np.concatenate(times)
    fits = np.flatnonzero(time_s < np.inf)
    tried, time_s = tried.take(fits), time_s[fits]
    sequences = tried.dp * tried.micro_batch_size * tried.num_microbatches
    order = np.lexsort((time_s, sequences))
    best = order[np.unique(sequences[order], return_index=True)[1]]
    return Shares(sequences[best], time_s[best], tried.take(best))


def waiting_more(gpus: int, whole: int) -> float:
    """Return how much longer a part waits for the slowest GPU of all than for its own, as a share."""
    return slowest_share(whole, 1.0) / slowest_share(gpus, 1.0) - 1.0 if gpus > 1 else 0.0


def deal(whole: int, shares: Sequence[Shares]) -> Dealt | None:
    """Return the parts, one per pool, that make up the batch and whose longest step is the shortest; exact. Pools are
    added one after the other; of all ways to the same sum that with the shortest longest step is kept, then that with
    the shortest sum of steps."""
    sums, worst, total = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1)
    chosen: IndexArray = np.zeros((1, 0), dtype=np.intp)
    for pool in shares:
        count = len(pool.sequences)
        grid = (sums[:, None] + pool.sequences).ravel()
        longest = np.maximum(worst[:, None], pool.time_s).ravel()
        added = (total[:, None] + pool.time_s).ravel()
        within = np.flatnonzero(grid <= whole)
        order = within[np.lexsort((added[within], longest[within], grid[within]))]
        best = order[np.unique(grid[order], return_index=True)[1]]
        sums, worst, total = grid[best], longest[best], added[best]
        chosen = np.column_stack([chosen[best // count], best % count])
    at = np.flatnonzero(sums == whole)
    if not len(at):
        return None
    return Dealt(float(worst[at[0]]), tuple(chosen[at[0]].tolist()))


def gradient_sync_s(fleet: Fleet, rows: Sequence[Candidates]) -> float:
    """Return the time in which the pools, each with the layout of a single row, add up their gradients [s]."""
    specs = [pool.spec for pool in fleet.pools]
    view, apart = joining_view(fleet.spec.cluster, [spec.gpus for spec in specs])
    pools = len(specs)
    held = max(gradient_bytes(row, spec) for row, spec in zip(rows, specs, strict=True))
    exchange_s, norm_s = collective_time_s(view, "allreduce", [held, 4.0], pools, apart).tolist()
    pieces = max((messages(one, other) for one in rows for other in rows if one is not other), default=1)
    if pieces == 1:
        return float(exchange_s + norm_s)
    latency_s = float(collective_time_s(view, "sendrecv", 1.0, 2, apart))
    copied = max(float(stream_time_s(spec.cluster.gpu, np.array(4.0 * held), pieces)) for spec in specs)
    return float(exchange_s + norm_s + (pieces - 1) * latency_s + copied)


def joining_view(cluster: ClusterSpec, pools: Sequence[int]) -> tuple[ClusterSpec, int]:
    """Return a fleet as groups of one GPU of each pool (of so many GPUs) see it, and the stride of such groups. As many
    groups as the smallest pool has GPUs use the joining level at a time; the other GPUs of larger pools send nothing
    meanwhile, so that the switches are for these alone."""
    least, top = min(pools), cluster.levels[-1]
    below = tuple(level for level in cluster.levels[:-1] if level.gpus <= least)
    levels = (*below, replace(top, gpus=len(pools) * least))
    return replace(cluster, levels=levels, pools=(), mixture=""), least


def gradient_bytes(row: Candidates, job: JobSpec) -> float:
    """Return what a GPU holds of its pool's reduced gradients [bytes]."""
    _, _, held = placed(row, job)
    heaviest = held.whole.argmax(axis=0)
    group, expert_group = row.dp * row.cp, np.maximum(row.expert_dp, 1)
    numbers = at_place(held.dense, heaviest) / group + at_place(held.expert, heaviest) / expert_group
    return float(numbers[0]) * job.reduced_gradient_bytes


def messages(one: Candidates, other: Candidates) -> int:
    """Return the GPUs of another pool that hold parts of the gradients of one GPU, at most; 1 where both cut alike. The
    cuts of TP, of the pipeline's chunks, and of the data-parallel ranks each meet so many of the other pool's."""
    a, b = (row.row(0) for row in (one, other))
    if all(a[name] == b[name] for name in ("tp", "pp", "vpp", "ep", "etp")) and a["dp"] * a["cp"] == b["dp"] * b["cp"]:
        return 1

    def cuts(row: dict[str, int]) -> tuple[int, ...]:
        return row["tp"], row["pp"] * row["vpp"], row["ep"] * row["etp"]

    ranges = [mine // math.gcd(mine, theirs) for theirs, mine in zip(cuts(a), cuts(b), strict=True)]
    return math.prod(ranges) * (-(-b["dp"] * b["cp"] // (a["dp"] * a["cp"])) + 1)
