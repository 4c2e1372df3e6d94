"""What to see to before a launch: the tables of decisions and the checklist, filled with the numbers of one job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.explain.benchmarks import Benchmark, benchmarks
from gpuscale.explain.budget import MemoryBudget, memory_budget
from gpuscale.explain.changes import Changes, change_text, changes_of
from gpuscale.explain.checklist import Item, checklist, tuning
from gpuscale.explain.decisions import LONG, PRESSURES, STRATEGIES, Situation, situations
from gpuscale.explain.signs import Sign, signs
from gpuscale.explain.traffic import AxisTraffic, TrafficReport, traffic_of
from gpuscale.launch.export import written
from gpuscale.launch.subject import Subject
from gpuscale.launch.writing import Writing, environment, targets, with_cluster
from gpuscale.placement.groups import AxisSpan
from gpuscale.planning.describe import bound_text
from gpuscale.planning.neighbours import Neighbour
from gpuscale.planning.placement import (
    PlacedOrder,
    best_order,
    degrees_of,
    leaving_text,
    level_plural,
    order_text,
    place_order,
    rails_text,
    straddling_text,
    units_text,
)
from gpuscale.planning.remedies import remedies
from gpuscale.ratios import share_text, signed
from gpuscale.results import PlanRow
from gpuscale.rules.check import broken_rules
from gpuscale.steptime.components import COMMUNICATION, INDEX
from gpuscale.units import format_bytes, format_seconds, plural


@dataclass(frozen=True)
class Pressure:
    """What presses on a plan, and which strategy answers it."""

    name: str  #: `memory`, `network`, `batch`, `sequence` or `experts`
    now: str  #: how things stand, with the numbers of the job
    share: float  #: of the step what is lost, of the GPU what is in use, 0 to 1 or, where it does not fit, more
    state: str  #: `low`, `some` or `high`
    strategy: str  #: what answers it, with what that would change, evaluated; empty where nothing was found that helps
    change: Mapping[str, str | int | bool]  #: the options of that strategy: option -> value
    step_time_s: float | None  #: seconds per step with it; null without one

    @property
    def usual(self) -> str:
        """What usually answers it, whatever the job."""
        return PRESSURES[self.name].answers


@dataclass(frozen=True)
class Strategy:
    """One parallel axis and what it asks of the network."""

    axis: str  #: as in `gpuscale.explain/1`
    splits: str  #: what it splits
    pattern: str  #: collectives with their sizes and groups
    level: str  #: outermost level that it crosses
    stresses: str  #: which property of the network: `latency`, `bandwidth` or `congestion`, and why
    bytes_per_step: float  #: what one GPU sends in a step [bytes]
    exposed_s: float  #: seconds of it that show in a step
    exposed_share: float  #: of the step, 0 to 1


@dataclass(frozen=True)
class AxisPlace:
    """Where an axis should be and where it is."""

    axis: str  #: as in `gpuscale.placement/1`
    rule: str  #: where it belongs
    plan: str  #: where this plan has it
    kept: bool  #: whether that is so


@dataclass(frozen=True)
class Variable:
    """One variable of the environment."""

    variable: str  #: its name
    value: str  #: what to set
    reason: str  #: why, for this job


@displayed
@dataclass(frozen=True)
class Advice:
    """What to see to before a plan is launched."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    plan: PlanRow  #: the layout, as in `gpuscale.estimate/1`
    verdict: str  #: what matters most, in a line
    pressures: tuple[Pressure, ...]  #: which strategy answers which pressure, the highest first
    #: which property of the network each parallel axis stresses, that which shows most first
    strategies: tuple[Strategy, ...]
    situations: tuple[Situation, ...]  #: which strategy is for which situation, and which of them hold of the job
    placement: tuple[AxisPlace, ...]  #: where each axis should be and where it is
    order: str  #: whether another order of the axes would be faster
    checklist: tuple[Item, ...]  #: what to check before the launch
    benchmarks: tuple[Benchmark, ...]  #: collectives to measure, and the bandwidth to expect
    settings: tuple[Variable, ...]  #: variables of the environment that matter on this cluster
    signs: tuple[Sign, ...]  #: what a step takes where something is wrong, and what to suspect first
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`


@public
def advise(subject: Subject) -> Advice:
    """Fill the tables of strategies, networks and placement, and the checklist before a launch, with a plan's numbers.

    Args:
        subject: the plan, from `gpuscale.read_subject`.
    """
    estimate, spec = subject.estimate, subject.spec
    found, budget = traffic_of(subject), memory_budget(subject)
    to_measure = benchmarks(spec, found.traffic, estimate.plan.step_time_s)
    placed = place_order(spec.cluster, degrees_of(estimate.plan), spec.axis_order)

    def order(one: Pressure) -> tuple[int, float]:
        """The highest first; memory that is full but fits costs nothing."""
        costs = one.name != "memory" or one.state == "high"
        return ("high", "some", "low").index(one.state), -one.share if costs else 0.0

    pressures = tuple(sorted(_pressures(subject, budget), key=order))
    slips = signs(subject, found.network_faults)
    return Advice(
        model=estimate.model,
        cluster=estimate.cluster,
        gpus=estimate.gpus,
        plan=estimate.plan,
        verdict=_verdict(subject, pressures, to_measure),
        pressures=pressures,
        strategies=tuple(_strategies(subject, found, to_measure)),
        situations=tuple(situations(spec, spec.cluster, spec.gpus)),
        placement=tuple(_places(subject, placed)),
        order=_order(subject, placed),
        checklist=tuple(checklist(subject, found, placed, to_measure)),
        benchmarks=to_measure,
        settings=tuple(_settings(subject, found)),
        signs=slips,
        notes=estimate.notes,
    )


def _verdict(subject: Subject, pressures: Sequence[Pressure], to_measure: Sequence[Benchmark]) -> str:
    plan = subject.estimate.plan
    worst = next((one for one in pressures if one.state != "low"), None)
    pressing = f"main pressure {worst.name}" if worst else "no pressure"
    measure = f"{plural(len(to_measure), 'collective')} to measure first" if to_measure else "nothing to measure"
    head = f"{format_seconds(plan.step_time_s)}/step, {plan.memory_gib:.1f} GiB, bound by {bound_text(plan)}"
    return f"{head}; {pressing}; {measure}"


HIGH_SHARE, SOME_SHARE = 0.10, 0.03
"""Shares of the step from which what is lost presses much, or some (a choice)."""

NOTABLE = 0.005
"""Share of the time of a token from which a change is worth naming (a choice)."""


def _pressures(subject: Subject, budget: MemoryBudget) -> Iterator[Pressure]:
    plan, spec, seconds = subject.estimate.plan, subject.spec, subject.estimate.breakdown
    changes, takes = changes_of(subject), {name: seconds[name] / plan.step_time_s for name in seconds}
    yield _memory_pressure(subject, budget)
    if spec.gpus > 1:
        shown = sorted((name for name in COMMUNICATION if takes[name] >= 0.001), key=lambda name: -takes[name])
        parts = ", ".join(f"{name.removesuffix('_comm').upper()} {takes[name]:.1%}" for name in shown)
        shows = f"exposed communication is {share_text(plan.exposed_comm_fraction)} of the step"
        now = f"{shows}: {parts}" if parts else shows if plan.exposed_comm_fraction else "all communication is hidden"
        yield _answered(changes, "network", now, *COMMUNICATION)
    if plan.pp > 1:
        idles = f"the pipeline idles {share_text(takes['bubble'])} of the step"
        now = f"{idles}: PP {plan.pp}, {plan.num_microbatches:,} microbatches"
        yield _answered(changes, "batch", now, "bubble")
    else:
        now = f"{spec.tokens_per_step / spec.gpus:,.0f} tokens per GPU and step, microbatch {plan.micro_batch_size}"
        yield _answered(changes, "batch", now, "launch", "optimizer", "dp_comm")
    if spec.sequence >= LONG or plan.cp > 1:
        now = f"attention takes {takes['attention']:.1%} of the step: sequences of {spec.sequence:,}, CP {plan.cp}"
        yield _answered(changes, "sequence", now, "attention", "cp_comm")
    if spec.model.is_moe:
        now = f"exposed AllToAll takes {share_text(takes['ep_comm'])} of the step: EP {plan.ep}"
        now = now if takes["ep_comm"] else f"no AllToAll: EP {plan.ep}"
        if spec.moe_imbalance > 1:
            now += f", the busiest rank has {spec.moe_imbalance:g} x the mean"
        yield _answered(changes, "experts", now, "ep_comm")


def _memory_pressure(subject: Subject, budget: MemoryBudget) -> Pressure:
    """What makes a plan fit that does not or only just does (`remedies`); else what the room left buys."""
    asked = budget.asked
    share = asked.memory_gib / asked.memory_limit_gib
    now = f"{share:.0%} of the GPU: {asked.memory_gib:.1f} of {asked.memory_limit_gib:.1f} GiB"
    if asked.fit != "fits":
        now += ", which does not fit" if asked.fit == "no" else ", which leaves no room for fragmentation"
        legal = not broken_rules(subject.rows, subject.spec)
        for remedy in remedies(subject.job, subject.layout)[:1] if legal else ():
            options = " ".join(f"`{name}={value}`" for name, value in remedy.change.items())
            told = f"{options}: {signed(remedy.slower)} time, {remedy.memory_gib:.1f} GiB"
            if remedy.fit == "no":
                told = f"no single change or pair of changes is enough; nearest {told}"
            return Pressure("memory", now, share, "high", told, remedy.change, remedy.step_time_s)
        return Pressure("memory", now, share, "high", "", {}, None)
    state = "some" if share > 0.7 else "low"
    best = min((row for row in budget.rows if row.fit == "fits"), key=lambda row: row.step_time_s)
    if best.slower > -NOTABLE:
        return Pressure("memory", now, share, state, "", {}, None)
    told = f"{best.name(asked)}: {signed(best.slower)} time, {best.memory_gib:.1f} GiB"
    return Pressure("memory", now, share, state, told, best.change, best.step_time_s)


def _answered(changes: Changes, name: str, now: str, *components: str) -> Pressure:
    """Return a pressure with the change that saves most, of those that save more of these components than of others."""
    found = changes.subject.estimate
    share = math.fsum(found.breakdown[one] for one in components) / found.plan.step_time_s
    state = "high" if share >= HIGH_SHARE else "some" if share >= SOME_SHARE else "low"
    places = [INDEX[one] for one in components]

    def relieves(one: Neighbour) -> bool:
        """Whether at least half of the time per token that a change saves is saved of these components."""
        per_token = changes.now.spec.tokens_per_step / one.spec.tokens_per_step
        saved = changes.now.seconds - one.seconds * per_token
        return bool(saved[places].sum() >= 0.5 * saved.sum())

    able = (one for one in changes.every if changes.may_run(one) and one.fit == "fits")
    worth = [one for one in able if changes.gain(one) > NOTABLE and relieves(one)]
    if not worth:
        return Pressure(name, now, share, state, "", {}, None)
    best = max(worth, key=changes.gain)
    most = changes.gain(best)
    told = f"{change_text(changes, best)}: {signed(1 / (1 + most) - 1)} time per token, {best.memory_gib:.1f} GiB"
    return Pressure(name, now, share, state, told, best.options, best.step_time_s)


SPLITS = {
    **{name: one.splits for name, one in STRATEGIES.items()},
    "edp": "the batch of the experts", "etp": "matrices of experts",
}  # fmt: skip
"""Axis -> what it splits."""


def _strategies(subject: Subject, found: TrafficReport, to_measure: Sequence[Benchmark]) -> Iterator[Strategy]:
    """One row per axis, the one that shows most in the step first."""
    plan = subject.estimate.plan
    by_axis: dict[str, list[AxisTraffic]] = {}
    for row in found.traffic:
        by_axis.setdefault(row.axis, []).append(row)
    axes = [axis for axis in by_axis if axis in SPLITS]
    for axis in sorted(axes, key=lambda axis: -math.fsum(row.exposed_s for row in by_axis[axis])):
        rows = by_axis[axis]
        shown_s = math.fsum(row.exposed_s for row in rows)
        largest = max(rows, key=lambda row: row.time_s)
        kinds = " + ".join(dict.fromkeys(row.collective for row in sorted(rows, key=lambda row: -row.time_s)))
        calls = math.fsum(row.calls_per_step for row in rows)
        domain = subject.spec.cluster.levels[0].name
        where = f"one {domain}" if largest.nodes == 1 else f"{largest.nodes} {level_plural(domain)}"
        states = "dp" in axis and plan.zero
        yield Strategy(
            axis=axis,
            splits=SPLITS[axis] + (f" and states (ZeRO-{plan.zero})" if states else ""),
            pattern=(
                f"{kinds} of {format_bytes(largest.bytes_per_call)} over {largest.group_size} GPUs of {where}, "
                f"{calls:,.0f} calls per step"
            ),
            level=largest.level,
            stresses=_stresses(axis, largest, to_measure),
            bytes_per_step=math.fsum(row.sent_bytes_per_step for row in rows),
            exposed_s=shown_s,
            exposed_share=shown_s / plan.step_time_s,
        )


def _stresses(axis: str, row: AxisTraffic, to_measure: Sequence[Benchmark]) -> str:
    """Say which property of the network a collective depends on, by what its time is made of."""
    one = next((each for each in to_measure if (each.axis, each.collective) == (axis, row.collective)), None)
    latency = one.latency_share if one else 0.0
    hidden = f"{row.hidden_share:.0%} hidden"
    if latency > 0.5:
        return f"latency: {latency:.0%} of a call; {hidden}"
    what = STRATEGIES[axis].stresses if axis == "ep" else f"bandwidth of the {row.busiest_level}"
    busy = f"{row.busiest_link_utilisation:.0%} of its wire rate in use"
    return f"{what}: {busy}, {hidden}" + (f", latency {latency:.0%}" if latency >= 0.05 else "")


def _places(subject: Subject, placed: PlacedOrder) -> Iterator[AxisPlace]:
    """Hold every axis against the reference's rule: TP in the node, PP on a rail, DP on the fabric, EP near."""
    cluster = subject.spec.cluster
    domain = cluster.levels[0].name
    for axis, one in placed.spans.items():
        said, inside = _where(subject, one), one.beyond is None
        rails = one.rails is not None
        if axis in {"tp", "etp"}:
            yield AxisPlace(axis, f"inside one {domain}, where links are fastest", said, inside)
        elif axis == "ep":
            rule = f"inside one {domain}, or over as few as the experts need"
            few = one.levels[0].members_min >= min(one.groups.size, cluster.node_gpus)
            yield AxisPlace(axis, rule, said, inside or few)
        elif axis == "pp":
            rule = "between GPUs of one rail" if rails else "over the network, the least bytes"
            yield AxisPlace(axis, "inside one " + domain if inside else rule, said, inside or one.one_rail or not rails)
        elif axis == "cp":
            yield AxisPlace(axis, f"inside one {domain}, or on one rail", said, inside or one.one_rail)
        elif axis in {"dp", "edp"}:
            over = f"inside one {domain}" if inside else "over the fabric, evenly on all nodes"
            rule = "over the fabric, each group on its rails" if rails else over
            yield AxisPlace(axis, rule, said, not one.strays and not one.levels[0].straddling)


def _where(subject: Subject, one: AxisSpan) -> str:
    cluster = subject.spec.cluster
    said = f"{plural(one.groups.count, 'group')} of {one.groups.size} over {units_text(one.levels[0])}"
    notes = []
    if one.groups.axis in {"tp", "etp"} and one.beyond:
        notes.append(leaving_text(cluster, one))
    if one.rails is not None:
        notes.append(rails_text(cluster, one))
    if one.levels[0].straddling:
        notes.append(straddling_text(one, 0))
    return "; ".join([said, *notes])


def _order(subject: Subject, placed: PlacedOrder) -> str:
    """Say whether another order of the axes makes the step shorter."""
    if not placed.spans or broken_rules(subject.rows, subject.spec):
        return ""
    degrees = degrees_of(subject.estimate.plan)
    best = best_order(subject.spec.cluster, degrees, placed, subject.job, subject.layout)
    if best.better:
        return f"order {order_text(best.best.order)} would be better: {best.reason}"
    return f"order {order_text(placed.order)}: {best.reason}"


def _settings(subject: Subject, traffic: TrafficReport) -> Iterator[Variable]:
    """The environment that an export of the plan sets, each with its reason, and what NCCL may gain by."""
    writing, name = Writing(subject.job, subject.estimate.plan), subject.spec.runtime.name.partition("@")[0]
    found = environment(writing)
    target = next((one for one in targets().values() if one.write and name in one.frameworks), None)
    if target is not None:
        with suppress(NoAnswerError, InputError):
            found = dict(with_cluster(written(target, writing), writing).environment)
    yield from (Variable(variable, value, reason) for variable, (value, reason) in found.items())
    yield from (Variable(*one) for one in tuning(subject, traffic))
