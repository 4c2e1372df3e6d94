"""What to see to before a launch: the tables by which one decides before there is a plan, and the checklist.

Sources: Shoeybi et al. 2019 (arXiv 1909.08053), Rajbhandari et al. 2020 (arXiv 1910.02054), Narayanan et al. 2021
(arXiv 2104.04473), Korthikanti et al. 2022 (arXiv 2205.05198).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpuscale.architecture.parameters import model_parameters
from gpuscale.arguments import public, taking
from gpuscale.display import displayed
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.explain.budget import MemoryBudget, memory_budget
from gpuscale.explain.changes import Changes, change_text, changes_of
from gpuscale.explain.checklist import Benchmark, Item, Sign, benchmarks, checklist, signs, tuning
from gpuscale.explain.traffic import AxisTraffic, TrafficReport, traffic_of
from gpuscale.launch.cluster_files import environment, with_cluster
from gpuscale.launch.export import written
from gpuscale.launch.subject import Subject
from gpuscale.launch.targets import targets
from gpuscale.launch.writing import Writing
from gpuscale.placement import AxisSpan
from gpuscale.planning.describe import bound_text
from gpuscale.planning.jobs import Presets, settle
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.neighbours import Neighbour, remedies
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
from gpuscale.planning.plans import job_of
from gpuscale.presets.hardware import load_cluster
from gpuscale.ratios import share_text, signed
from gpuscale.request import JobOptions, read, taken
from gpuscale.results import PlanRow
from gpuscale.rules.check import broken_rules
from gpuscale.search.evaluation import memory_of
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import JobSpec, OffloadSpec
from gpuscale.steptime.components import COMMUNICATION, INDEX
from gpuscale.units import GIB, format_bytes, format_seconds, plural


@dataclass(frozen=True)
class UsualAnswer:
    """What usually answers a pressure."""

    pressure: str  #: `memory`, `network`, `batch`, `sequence` or `experts`
    shows: str  #: how one sees it
    answers: str  #: what is tried, what costs least first


@dataclass(frozen=True)
class Demand:
    """What a strategy asks of the network."""

    strategy: str  #: an axis, or `zero`
    splits: str  #: what it splits
    pattern: str  #: its collectives, and how often
    stresses: str  #: the property of the network that it depends on


@dataclass(frozen=True)
class Situation:
    """A situation, and the strategy that is for it."""

    situation: str  #: what is the case
    strategy: str  #: what is for it
    network: str  #: what it asks of the network
    holds: bool | None  #: whether it is so of the job; null where too little of it is known
    now: str  #: the numbers that say so; empty where nothing is known


@displayed
@dataclass(frozen=True)
class Decisions:
    """The tables by which one decides before there is a plan."""

    model: str | None  #: name of the model; null without one
    cluster: str | None  #: name of the cluster; null where neither it nor a model is given
    gpus: int | None  #: GPUs of the job; null where they are open
    pressures: tuple[UsualAnswer, ...]  #: which answers are usual to which pressure
    situations: tuple[Situation, ...]  #: which strategy is for which situation, and which of them hold of the job
    strategies: tuple[Demand, ...]  #: what each strategy asks of the network
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`


PRESSURES = {
    one.pressure: one
    for one in (
        UsualAnswer("memory", "a step does not fit, or leaves no room for fragmentation",
            "shard optimizer states (`zero=1`); sequence parallelism with TP; `recompute=selective`; more TP, then PP; "
            "`zero=3`; `recompute=full`, a third more FLOPs; `offload=optimizer`"),
        UsualAnswer("network", "communication is exposed in the step",
            "the busiest groups into the fastest domain: TP in a node, PP on a rail; overlap; more tokens per GPU and "
            "step; a lower ZeRO stage; gradients of 16 bits (`grad_dtype=bf16`)"),
        UsualAnswer("batch", "the pipeline idles, or each GPU has few tokens per step",
            "more microbatches; fewer stages or interleaved ones (`vpp`); a larger batch, as far as the loss allows "
            "(`gpuscale size batch`)"),
        UsualAnswer("sequence", "attention and what is kept of it grow with the sequence",
                    "sequence parallelism with TP; context parallelism (`cp`) in a node first; `recompute=selective`"),
        UsualAnswer("experts", "AllToAll shows, or ranks wait for that with the most tokens",
                    "experts inside one node, then over as few as memory needs (`ep`); AllToAll under compute "
                    "(`overlap=dp+tp+ep`); balanced routing; DP of the experts outside"),
    )
}  # fmt: skip

STRATEGIES = {
    one.strategy: one
    for one in (
        Demand("dp", "the batch", "AllReduce of gradients, once per step", "bandwidth in bursts, and stragglers"),
        Demand("zero", "states", "AllGather of parameters and ReduceScatter of gradients, under ZeRO-3 in each layer",
               "bandwidth all the time; what overlap hides"),
        Demand("tp", "matrices", "AllReduce, or AllGather and ReduceScatter, in each layer, forward and backward",
               "latency and bandwidth: NVLink or the like"),
        Demand("cp", "sequences", "keys and values around a ring, or AllToAll of heads, in each layer", "bandwidth"),
        Demand("pp", "layers", "activations and their gradients from stage to stage, each microbatch",
               "little of it; latency where microbatches are small"),
        Demand("ep", "experts", "AllToAll of tokens, twice in each layer of experts, forward and backward",
               "congestion and expert balance: all-to-all"),
    )
}  # fmt: skip


class Footing(NamedTuple):
    """A job on a single GPU: what situations are judged by."""

    job: JobSpec  #: with one GPU and one sequence.
    held: Mapping[str, float]  #: memory of it by component [GiB].

    @property
    def total(self) -> float:
        """All of it [GiB]."""
        return sum(self.held.values())

    @property
    def states(self) -> float:
        """Weights, gradients, master weights and moments [GiB]."""
        return self.part("weights", "gradients", "master_weights", "optimizer_state")

    @property
    def limit(self) -> float:
        """Memory of the GPU [GiB]."""
        return self.job.memory_limit_bytes / GIB

    def part(self, *names: str) -> float:
        """Some components [GiB]."""
        return sum(self.held[name] for name in names)

    def of(self, size: float, what: str) -> str:
        """Say how large something is beside one GPU."""
        return f"{what}: {size:,.1f} of {self.limit:,.1f} GiB of one GPU"


def _footing(job: JobSpec) -> Footing:
    """Put a job on a single GPU, nothing sharded, recomputed or offloaded."""
    alone = replace(job, gpus=1, global_batch_size=1, offload=OffloadSpec())
    held = memory_of(fixed_layout(alone, {}), alone).at_peak(0)
    return Footing(alone, {name: size / GIB for name, size in held.items()})


Judged = tuple[bool, str]
LONG = 16384
"""Sequences from which attention is looked at (a choice)."""

MUCH = 0.5
"""Share of the memory from which something fills it (a choice)."""


def _fits(one: Footing) -> Judged:
    return one.total <= one.limit, one.of(one.total, "a step of one sequence")


def _optimizer(one: Footing) -> Judged:
    size = one.part("master_weights", "optimizer_state")
    return size >= MUCH * one.total, f"master weights and moments: {size:,.1f} of {one.total:,.1f} GiB"


def _parameters(one: Footing) -> Judged:
    size = one.part("weights")
    return size > one.limit, one.of(size, "weights")


def _layer(one: Footing) -> Judged:
    counted = model_parameters(one.job.model)
    size = one.states * max(kind.dense_params for kind in counted.kinds) / counted.total
    return size > MUCH * one.limit, one.of(size, "states of the largest layer, without routed experts")


def _layers(one: Footing) -> Judged:
    cluster = one.job.cluster
    room = one.limit * cluster.node_gpus
    node = f"one {cluster.levels[cluster.domain_index].name} of {cluster.node_gpus}"
    states = f"states of {one.job.model.layers} layers"
    return one.states > room, f"{states}: {one.states:,.0f} of {room:,.0f} GiB of {node}"


def _activations(one: Footing) -> Judged:
    size = one.part("activations", "logits")
    return size > MUCH * one.limit, one.of(size, "activations of one sequence")


def _sequence(one: Footing) -> Judged:
    return one.job.sequence >= LONG, f"{one.job.sequence:,} tokens"


def _experts(one: Footing) -> Judged:
    experts = max((kind.moe.experts for kind in one.job.model.kinds if kind.moe), default=0)
    return experts > 0, f"{plural(experts, 'expert')} in a layer" if experts else "no experts"


def _nodes(cluster: ClusterSpec, gpus: int) -> Judged:
    nodes = -(-gpus // cluster.node_gpus)
    return nodes > 1, f"{plural(nodes, cluster.levels[cluster.domain_index].name)} of {cluster.node_gpus} GPUs"


SITUATIONS: tuple[tuple[str, str, str, Callable[[Footing], Judged] | None], ...] = (
    ("much data, and a step fits on one GPU", "data parallelism (`dp`)", "bandwidth for AllReduce of gradients", _fits),
    ("optimizer states fill the memory", "ZeRO-1, or 2 without a pipeline (`zero=1`)",
     "ReduceScatter and AllGather in place of AllReduce, as many bytes", _optimizer),
    ("not even the weights fit", "ZeRO-3 / FSDP (`zero=3`), or TP with PP",
     "AllGather of parameters in each layer and pass, one and a half times the bytes", _parameters),
    ("a single layer is too large", "tensor parallelism (`tp`)", "NVLink, or a network of very low latency", _layer),
    ("the layers are too many for one node", "pipeline parallelism (`pp`)",
     "activations and gradients from stage to stage", _layers),
    ("activations fill the memory", "sequence parallelism with TP, `recompute=selective`",
     "the bytes of TP: ReduceScatter and AllGather in place of AllReduce", _activations),
    ("sequences are long", "context parallelism (`cp`)", "keys and values in each layer", _sequence),
    ("a mixture of many experts", "expert parallelism (`ep`)", "AllToAll, and balance of the experts", _experts),
    ("training over several nodes", "a hybrid: TP in the node, PP and DP over the network",
     "placement on nodes and rails, and settings of NCCL", None),
)  # fmt: skip
"""Situation, strategy, what that asks of the network, and how a job is judged; the last by its nodes."""


def situations(job: JobSpec | None, cluster: ClusterSpec | None = None, gpus: int | None = None) -> Iterator[Situation]:
    """Yield every situation, judged where enough is known."""
    alone = None if job is None else _footing(job)
    for situation, strategy, network, judge in SITUATIONS:
        holds, now = None, ""
        if judge is None and cluster is not None and gpus is not None:
            holds, now = _nodes(cluster, gpus)
        elif judge is not None and alone is not None:
            holds, now = judge(alone)
        yield Situation(situation, strategy, network, holds, now)


@taking(taken(JobOptions, beside_files=True))
def decide(**options: Any) -> Decisions:
    """Return the tables by which one decides before there is a plan, judged as far as the job is known.

    Args:
        options: of the job; without a model only its GPUs and cluster.

    Raises:
        InputError: options of a job without a model, or unusable input.
    """
    job = cluster = None
    notes: tuple[str, ...] = ()
    gpus = options.get("gpus")
    stray = next((name for name in options if name not in {"gpus", "cluster"}), None)
    if "model" in options:
        made = job_of({**options, "gpus": gpus or 1}, {})
        job, cluster, notes = made.spec, made.spec.cluster, made.notes
    elif stray is not None:
        raise InputError("has no effect without `model`", field=stray, hint="add `model`")
    elif options:
        named, short = settle(read(JobOptions, {"model": "", "gpus": 1, **options}), Presets())
        cluster, notes = load_cluster(named.cluster), tuple(short)
    return Decisions(
        model=None if job is None else job.model.name,
        cluster=None if cluster is None else cluster.name,
        gpus=gpus,
        pressures=tuple(PRESSURES.values()),
        situations=tuple(situations(job, cluster, gpus)),
        strategies=tuple(STRATEGIES.values()),
        notes=notes,
    )


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
    """What makes a plan fit that does not, or only just (`remedies`); else what the room left buys."""
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
    """Return a pressure with the change that saves most, mainly of these components."""
    found = changes.subject.estimate
    share = math.fsum(found.breakdown[one] for one in components) / found.plan.step_time_s
    state = "high" if share >= HIGH_SHARE else "some" if share >= SOME_SHARE else "low"
    places = [INDEX[one] for one in components]

    def relieves(one: Neighbour) -> bool:
        """Whether at least half of what a change saves per token is of these components."""
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


def _strategies(subject: Subject, found: TrafficReport, to_measure: Sequence[Benchmark]) -> Iterator[Strategy]:
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
    one = next((each for each in to_measure if (each.axis, each.collective) == (axis, row.collective)), None)
    latency = one.latency_share if one else 0.0
    hidden = f"{row.hidden_share:.0%} hidden"
    if latency > 0.5:
        return f"latency: {latency:.0%} of a call; {hidden}"
    what = STRATEGIES[axis].stresses if axis == "ep" else f"bandwidth of the {row.busiest_level}"
    busy = f"{row.busiest_link_utilisation:.0%} of its wire rate in use"
    return f"{what}: {busy}, {hidden}" + (f", latency {latency:.0%}" if latency >= 0.05 else "")


def _places(subject: Subject, placed: PlacedOrder) -> Iterator[AxisPlace]:
    """Hold every axis against the rule: TP in the node, PP on a rail, DP on the fabric, EP near."""
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
    if not placed.spans or broken_rules(subject.rows, subject.spec):
        return ""
    degrees = degrees_of(subject.estimate.plan)
    best = best_order(subject.spec.cluster, degrees, placed, subject.job, subject.layout)
    if best.better:
        return f"order {order_text(best.best.order)} would be better: {best.reason}"
    return f"order {order_text(placed.order)}: {best.reason}"


def _settings(subject: Subject, traffic: TrafficReport) -> Iterator[Variable]:
    writing, name = Writing(subject.job, subject.estimate.plan), subject.spec.runtime.name.partition("@")[0]
    found = environment(writing)
    target = next((one for one in targets().values() if one.write and name in one.frameworks), None)
    if target is not None:
        with suppress(NoAnswerError, InputError):
            found = dict(with_cluster(written(target, writing), writing).environment)
    yield from (Variable(variable, value, reason) for variable, (value, reason) in found.items())
    yield from (Variable(*one) for one in tuning(subject, traffic))
