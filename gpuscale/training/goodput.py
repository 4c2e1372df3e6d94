"""Goodput: the share of a training's time that counts, and where the rest goes (docs/goodput.md).

Closed forms (`expected`) give the answer, a seeded Monte Carlo of whole runs (`simulated`) the interval around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from gpuscale.arguments import taking
from gpuscale.arrays import BoolArray, FloatArray, exp, log
from gpuscale.display import displayed
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.subject import Subject
from gpuscale.layouts.arrays import Candidates
from gpuscale.planning.layouts import layout_text
from gpuscale.presets.rates import Rate, given, load_rates
from gpuscale.request import Length, Recovery, read, taken
from gpuscale.specs.job import JobSpec
from gpuscale.training.checkpoints import (
    STORAGE,
    Checkpoint,
    best_interval_s,
    checkpoint_of,
    downtime_s,
    worked_share,
    young_interval_s,
)
from gpuscale.training.failures import FailureRate, failure_rate
from gpuscale.units import DAY_S, GB, HOUR_S, format_duration, plural

RUNS, SEED = 400, 17
"""Runs of the Monte Carlo, and the seed of its PCG64."""

MOST_FAILURES = 400
"""Mean failures of a run that are simulated: what is longer is as its beginning."""

LOW, HIGH = 0.1, 0.9
"""The interval holds 80 % of runs, as those of step times do."""

USUAL_RUN_S = 30 * DAY_S
MOST_SPARES = 100_000
LOSSES = ("checkpoints", "lost_work", "detection", "restart", "waiting")


@dataclass(frozen=True)
class Conditions:
    """What a job meets, in SI units."""

    mtbf_s: float  #: mean time between its failures, while it runs or starts.
    takes_a_node: float  #: share of failures that takes a node away for `repair_s`.
    detection_s: float  #: from a failure until it is noticed [s].
    restart_s: float  #: from there until the job runs again [s].
    repair_s: float
    spares: int  #: nodes that stand by.
    checkpoint: Checkpoint  #: what one takes.
    #: data-parallel ones, of which missing nodes take some away where the job is elastic; 0: it waits.
    replicas: int = 0
    nodes_per_replica: float = 1.0  #: how many nodes a replica is spread over; less than 1 where a node has several.

    @property
    def in_repair(self) -> float:
        """Nodes in repair, on average, if the job never waits."""
        return self.repair_s * self.takes_a_node / self.mtbf_s

    @property
    def rolled_back_s(self) -> float:
        """Time since the last copy in storage was begun, on average, where those in host memory are lost: 1 to 2 times
        what one takes, as they are written one after the other."""
        return 1.5 * self.checkpoint.storage_s

    def lost_share(self, repaired: FloatArray | float) -> FloatArray:
        """Return the share of the replicas that do not run while so many nodes are in repair."""
        missing = np.maximum(repaired - self.spares, 0.0)
        return np.minimum(np.ceil(missing / self.nodes_per_replica), self.replicas) / self.replicas


def expected(conditions: Conditions, interval_s: float) -> dict[str, float]:
    """Return which share of its time a job works on what counts (`effective`), and which it loses, by `LOSSES`.

    A job with S spare nodes waits while S + 1 are in repair: the Erlang loss formula, which holds for any distribution
    of repair times (Erlang 1917). An elastic one loses the replicas of the nodes that are missing, a Poisson number
    (Palm's theorem).
    """
    one, mtbf_s = conditions.checkpoint, conditions.mtbf_s
    down_s = downtime_s(mtbf_s, conditions.detection_s, conditions.restart_s)
    worked = worked_share(interval_s, one.blocking_s, one.commit_s, mtbf_s, down_s)
    if one.survival < 1:
        again = (1 - one.survival) * conditions.rolled_back_s * interval_s / (interval_s + one.blocking_s)
        worked = max(worked - again / (mtbf_s + down_s), 0.0)
    noticed_s = down_s - downtime_s(mtbf_s, 0.0, conditions.restart_s)
    shares = {"checkpoints": worked * one.blocking_s / interval_s, "detection": noticed_s / (mtbf_s + down_s)}
    shares["restart"] = down_s / (mtbf_s + down_s) - shares["detection"]
    shares["lost_work"] = max(1 - math.fsum((worked, *shares.values())), 0.0)
    waiting = waiting_share(conditions, 1 - shares["detection"])
    found = {name: shares.get(name, 0.0) * (1 - waiting) for name in LOSSES} | {"waiting": waiting}
    return {"effective": 1 - math.fsum(found.values()), **found}


def waiting_share(conditions: Conditions, exposed: float = 1.0) -> float:
    """Return which share of its time a job waits for nodes; of an elastic one which share of its replicas is missing on
    average. It may fail in the `exposed` share of the time."""
    offered = conditions.in_repair * exposed
    if not conditions.replicas:
        return erlang_loss(conditions.spares + 1, offered)
    if offered > MOST_REPAIRS:  # their number hardly varies
        return float(conditions.lost_share(offered))
    parts, first = [], max(conditions.spares + 1, math.floor(offered - 12 * math.sqrt(offered)))
    for count in range(first, math.ceil(offered + 12 * math.sqrt(offered)) + 60):
        chance = math.exp(count * math.log(offered) - offered - math.lgamma(count + 1)) if offered > 0 else 0.0
        parts.append(chance * float(conditions.lost_share(count)))
    return min(math.fsum(parts), 1.0)


def erlang_loss(servers: int, offered: float) -> float:
    """Return the share of time in which all servers are busy, by the recursion of the Erlang loss formula."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
        if blocked < 1e-300:
            return 0.0
    return blocked


def worthwhile_spares(conditions: Conditions, nodes: int) -> int:
    """Return the number of spares for a job's `nodes` that makes least of all nodes' time idle."""
    offered, waiting = conditions.in_repair, erlang_loss(1, conditions.in_repair)
    for spares in range(MOST_SPARES):
        less = offered * waiting / (spares + 2 + offered * waiting)
        if (nodes + spares) * (1 - less) <= (nodes + spares + 1) * (1 - waiting):
            return spares
        waiting = less
    return MOST_SPARES


def best_interval(conditions: Conditions, step_s: float, run_s: float) -> float:
    """Return the seconds of work between two checkpoints that lose least: from one step, or as long as the last
    checkpoint takes to be complete, to the whole run."""
    one = conditions.checkpoint
    least = max(step_s, one.commit_s - one.blocking_s)
    most = min(2 * conditions.mtbf_s, max(run_s, step_s))
    return best_interval_s(lambda tau: expected(conditions, tau)["effective"], least, most)


def simulated(
    conditions: Conditions,
    interval_s: float,
    run_s: float,
    *,
    runs: int = RUNS,
    rate_spread: float = 0.0,
    recovery_spread: float = 0.0,
) -> FloatArray:
    """Simulate runs of a job; return the share of each one's time that counts, shape (runs,).

    Args:
        run_s: how long a run lasts [s]; of long ones the first `MOST_FAILURES` mean times between failures.
        rate_spread, recovery_spread: standard deviations of the logs of failure rate, and of detection and restart
            times, over runs.
    """
    random = np.random.Generator(np.random.PCG64(SEED))
    middle = [(run + 0.5) / runs for run in range(runs)]
    normal = np.array([NormalDist().inv_cdf(one) for one in middle])
    mtbf_s = conditions.mtbf_s * exp(-rate_spread * normal)
    slower = exp(recovery_spread * normal[np.argsort(random.random(runs), kind="stable")])
    detection_s, restart_s = conditions.detection_s * slower, conditions.restart_s * slower
    end_s = min(run_s, MOST_FAILURES * conditions.mtbf_s)
    one = conditions.checkpoint
    period_s = interval_s + one.blocking_s
    repairs = _Repairs(conditions, runs)
    now_s, worked_s, starting_s = np.zeros(runs), np.zeros(runs), np.zeros(runs)
    while (now_s < end_s).any():
        alive = now_s < end_s
        chance = random.random((4, runs))
        until_s = -mtbf_s * log(1 - chance[0])
        fails = now_s + until_s < end_s
        until_s = np.minimum(until_s, end_s - now_s)
        running_s = np.maximum(until_s - starting_s, 0.0)
        whole = np.floor(running_s / period_s)
        saved = np.maximum(np.floor((running_s - one.commit_s) / period_s), 0.0)
        at_end = whole * interval_s + np.minimum(running_s - whole * period_s, interval_s)
        rolled_s = (chance[1] >= one.survival) * (1 + chance[2]) * one.storage_s
        gained = np.where(fails, saved * interval_s - rolled_s * interval_s / period_s, at_end)
        gained = gained * repairs.running(now_s + until_s / 2)
        worked_s = worked_s + np.where(alive, gained, 0.0)
        now_s = np.where(alive, now_s + until_s, now_s)
        fails &= alive
        ready_s = repairs.failed(now_s, fails & (chance[3] < conditions.takes_a_node))
        now_s = np.where(fails, np.maximum(now_s + detection_s, ready_s), now_s)
        starting_s = restart_s
    return np.asarray(np.maximum(worked_s, 0.0) / np.maximum(now_s, end_s))


class _Repairs:
    """When nodes come back, in each of the runs that are simulated."""

    def __init__(self, conditions: Conditions, runs: int) -> None:
        self._conditions, self._runs = conditions, np.arange(runs)
        most = 50 + math.ceil(8 * min(conditions.in_repair, MOST_REPAIRS)) if conditions.replicas else 1
        self._slots = min(conditions.spares + most, MOST_REPAIRS)
        self._back_s = np.full((self._slots, runs), -np.inf)
        self._count = np.zeros(runs, dtype=np.intp)

    def failed(self, now_s: FloatArray, fails: BoolArray) -> FloatArray:
        """Take a node away from some runs; return when each may go on: one that waits, when the failure before the last
        S ones, or with no spare this one, is repaired."""
        where = np.flatnonzero(fails)
        self._back_s[self._count[where] % self._slots, where] = now_s[where] + self._conditions.repair_s
        self._count[where] += 1
        if self._conditions.replicas or self._slots < self._conditions.spares + 1:
            return now_s
        return np.where(fails, self._back_s[self._count % self._slots, self._runs], now_s)

    def running(self, now_s: FloatArray) -> FloatArray | float:
        if not self._conditions.replicas:
            return 1.0
        return np.asarray(1 - self._conditions.lost_share((self._back_s > now_s).sum(axis=0)))


MOST_REPAIRS = 4000
"""Nodes in repair that are kept account of."""


@dataclass(frozen=True)
class Point:
    """A checkpoint interval and what it leads to."""

    interval_s: float  #: seconds of work between two checkpoints.
    effective_ratio: float  #: share of the wall time in which steps are made that count.


@displayed
@dataclass(frozen=True)
class Goodput:
    """Which share of a training's time counts, and where the rest goes."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job, spare nodes not among them
    layout: str  #: of the plan, in words
    step_time_s: float  #: seconds per optimizer step
    effective_ratio: float  #: share of the wall time in which steps are made that count
    effective_ratio_low: float  #: its 10th percentile, over runs of this length
    effective_ratio_high: float  #: its 90th percentile
    #: what takes the rest: `checkpoints`, `lost_work` (done again), `detection`, `restart`, `waiting` (for nodes in
    #: repair, or replicas that are missing) -> share of the wall time
    lost: Mapping[str, float]
    checkpoint: str  #: `sync`, `async`, `memory` or `peer`
    checkpoint_interval_s: float  #: seconds of work between two checkpoints
    checkpoint_interval_steps: int  #: the same in steps
    young_interval_s: float  #: the first-order optimum sqrt(2 x MTBF x `checkpoint_blocking_s`)
    checkpoint_bytes: float  #: size of one checkpoint [bytes]
    checkpoint_bytes_per_gpu: float  #: what the fullest GPU writes of it [bytes]
    checkpoint_blocking_s: float  #: seconds for which the job waits for one
    checkpoint_write_s: float  #: seconds until it is in storage
    mtbf_s: float  #: mean time between interruptions of the job [s]
    interruptions_per_day: float  #: interruptions in a day
    spares: int  #: spare nodes
    node_gpus: int  #: GPUs of one node
    elastic: bool  #: whether the job goes on with fewer replicas while nodes are missing
    run_s: float  #: length of the runs that the interval is about [s]
    curve: tuple[Point, ...]  #: the effective ratio over the checkpoint interval, up to ten times longer and shorter
    assumptions: Mapping[str, Rate] = field(default_factory=dict)  #: rate -> value, source and date
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`


@taking(taken(Recovery))
def goodput(
    subject: Subject, *, run_days: float | str | None = None, rates: Mapping[str, float] | None = None, **options: Any
) -> Goodput:
    """Find how often to write checkpoints, and which share of the time counts then.

    Args:
        subject: a plan, as `gpuscale.read_subject` reads it.
        run_days: length of the training; 30 by default.
        rates: rates of `presets/rates/recovery.toml` to replace, by name.

    Raises:
        InputError: unusable options.
        NoAnswerError: the job fails before it gets anywhere.
    """
    days = read(Length, {"days": run_days}).days
    run_s = USUAL_RUN_S if days is None else days * DAY_S
    found = goodput_of(
        subject.spec, subject.rows, subject.estimate.plan.step_time_s, read(Recovery, options), run_s, rates
    )
    return replace(found, notes=subject.estimate.notes)


def goodput_of(
    job: JobSpec,
    plan: Candidates,
    step_s: float,
    asked: Recovery,
    run_s: float,
    rates: Mapping[str, float] | None = None,
) -> Goodput:
    """Return the goodput of one plan (one row) of a job; as `goodput`."""
    known = load_rates(rates)
    failures, said = failure_rate(asked.failure_rate), _stated(asked, known, job)
    conditions = _conditions(job, plan, asked, failures, said)
    if asked.checkpoint_interval is None:
        interval_s = best_interval(conditions, step_s, run_s)
    else:
        interval_s = asked.checkpoint_interval
    steps = max(1, round(interval_s / step_s))
    interval_s = steps * step_s
    shares = expected(conditions, interval_s)
    ratio = shares.pop("effective")
    if ratio < LEAST_RATIO:
        every = format_duration(conditions.mtbf_s)
        message = f"a job of {plural(job.gpus, 'GPU')} that fails every {every} makes no progress"
        raise NoAnswerError(message, hint="give a lower `failure_rate`, or faster checkpoints and restarts")
    spread = known["recovery_spread"].value if None in (asked.detection_time, asked.restart_time) else 0.0
    runs = np.sort(simulated(conditions, interval_s, run_s, rate_spread=failures.spread, recovery_spread=spread))
    low, high = (float(runs[int(share * (len(runs) - 1))]) for share in (LOW, HIGH))
    one = conditions.checkpoint
    around = (interval_s * 10 ** ((point - POINTS // 2) * 0.05) for point in range(POINTS))  # a decade on either side
    return Goodput(
        model=job.model.name,
        cluster=job.cluster.name,
        gpus=job.gpus,
        layout=layout_text(plan.row(0)),
        step_time_s=step_s,
        effective_ratio=ratio,
        effective_ratio_low=min(low, ratio),
        effective_ratio_high=max(high, ratio),
        lost=shares,
        checkpoint=one.kind,
        checkpoint_interval_s=interval_s,
        checkpoint_interval_steps=steps,
        young_interval_s=young_interval_s(one.blocking_s, conditions.mtbf_s),
        checkpoint_bytes=one.bytes,
        checkpoint_bytes_per_gpu=one.bytes_per_gpu,
        checkpoint_blocking_s=one.blocking_s,
        checkpoint_write_s=one.storage_s,
        mtbf_s=conditions.mtbf_s,
        interruptions_per_day=DAY_S / conditions.mtbf_s,
        spares=conditions.spares,
        node_gpus=node_gpus(job),
        elastic=bool(conditions.replicas),
        run_s=run_s,
        curve=tuple(Point(tau, expected(conditions, tau)["effective"]) for tau in around if tau >= step_s * 0.99),
        assumptions={"failures_per_gpu_day": failures.per_gpu_day, **said},
    )


LEAST_RATIO = 1e-6


def node_gpus(job: JobSpec) -> int:
    """Return the GPUs that go when one node does."""
    return min(job.cluster.host_gpus, job.gpus)


def _stated(asked: Recovery, known: Mapping[str, Rate], job: JobSpec) -> dict[str, Rate]:
    each = known["checkpoint_gb_per_s_per_gpu"]
    storage = Rate(each.value * job.gpus, each.source, each.date)
    options = {
        "detection_time_s": (asked.detection_time, known["detection_time_s"]),
        "restart_time_s": (asked.restart_time, known["restart_time_s"]),
        "repair_time_h": (asked.repair_time, known["repair_time_h"]),
        "checkpoint_gb_per_s": (asked.checkpoint_bandwidth, storage),
    }
    said = {name: rate if value is None else given(value) for name, (value, rate) in options.items()}
    if asked.checkpoint in STORAGE:
        said["checkpoint_stall_s"] = known["checkpoint_stall_s"]
    if asked.checkpoint == "peer":
        said["peer_survival"] = known["peer_survival"]
    return said


def _conditions(
    job: JobSpec, plan: Candidates, asked: Recovery, failures: FailureRate, said: Mapping[str, Rate]
) -> Conditions:
    survival = {
        "memory": failures.keeps_memory,
        "peer": said["peer_survival"].value if "peer_survival" in said else 1.0,
    }
    share = survival.get(asked.checkpoint, 1.0)
    one = checkpoint_of(asked.checkpoint, plan, job, said["checkpoint_gb_per_s"].value * GB, share)
    if "checkpoint_stall_s" in said:
        one = replace(one, blocking_s=one.blocking_s + said["checkpoint_stall_s"].value)
    read_s = one.storage_s if one.kind in STORAGE else share * one.blocking_s + (1 - share) * one.storage_s
    dp = int(plan.dp[0])
    if asked.elastic and dp == 1:
        raise InputError("there is one replica only", field="elastic", hint="leave it out")
    found = Conditions(
        mtbf_s=failures.mtbf_s(job.gpus),
        takes_a_node=failures.takes_a_node,
        detection_s=said["detection_time_s"].value,
        restart_s=said["restart_time_s"].value + read_s,
        repair_s=said["repair_time_h"].value * HOUR_S,
        spares=asked.spares or 0,
        checkpoint=one,
        replicas=dp if asked.elastic else 0,
        nodes_per_replica=job.gpus / dp / node_gpus(job),
    )
    if asked.spares is not None:
        return found
    worse = replace(found, mtbf_s=found.mtbf_s * math.exp(-failures.spread * NormalDist().inv_cdf(HIGH)))
    return replace(found, spares=0 if asked.elastic else worthwhile_spares(worse, math.ceil(job.gpus / node_gpus(job))))


POINTS = 41
"""Intervals of the curve."""
