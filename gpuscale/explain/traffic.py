"""Strategy -> traffic -> network: what every axis sends over which level, what shows, what the network must give.

The collectives are those that the step-time model prices (`gpuscale.steptime.components`); what of them shows is what
it says of their component and pass, shared in proportion to their times.

Bytes on the wire are the least that moves: an AllGather or ReduceScatter of b bytes over n GPUs sends b (n-1)/n from
each, an AllReduce twice that, or b where switches add up, an AllToAll b (n-1)/n of each GPU's send buffer b, a
transfer b. Of what n GPUs on k units of a level (and k' instances of it) send, the part (k - k') / (n - 1) passes the
level and none above: a ring has so many hops there. All that is sent is received, in the same group.

| axis | what is called | source |
|---|---|---|
| tp | AllReduce of b s h after each block, both passes; with sequence parallelism AllGather and ReduceScatter, and the block's input gathered once more | Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 |
| cp | keys and values around a ring, gathered, or exchanged with the queries over the heads | Liu et al. 2023, arXiv 2310.01889; Jacobs et al. 2023, arXiv 2309.14509 |
| ep | tokens to their experts and back, both passes | Lepikhin et al. 2020, arXiv 2006.16668; DeepSeek-V3, arXiv 2412.19437, section 3.2.2 |
| pp | b s h to the next stage, its gradient back | Narayanan et al. 2021, arXiv 2104.04473, section 3.2 |
| dp, edp | psi parameters: gradients reduced, parameters gathered, 2 psi on the wire up to stage 2 and 3 psi at stage 3 | Rajbhandari et al. 2020, arXiv 1910.02054, section 7 |
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from gpuscale.arguments import public
from gpuscale.arrays import only
from gpuscale.calibration.factors import with_network
from gpuscale.collectives import ideal
from gpuscale.collectives.groups import place
from gpuscale.display import displayed
from gpuscale.launch.subject import Subject
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.stages import FIRST, LAST, share_of_end
from gpuscale.placement import rail
from gpuscale.search.evaluation import Evaluation, evaluate, placed
from gpuscale.specs.cluster import INSIDE, ClusterSpec, LevelSpec
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime.components import (
    COMMUNICATION,
    IN_LAYERS,
    Breakdown,
    GroupCall,
    Segment,
    Sent,
    added,
    contention,
    scaled,
    total_s,
)
from gpuscale.steptime.data_parallel import (
    Cover,
    Transfers,
    gathered_again,
    gradient_norm,
    reductions,
    shards,
    state_calls,
    state_transfers,
    teacher_gather,
    tied_embedding,
    unhidden_s,
)  # fmt: skip
from gpuscale.steptime.layer import embedding_sent, layer_segments, lm_head_sent, stops_before
from gpuscale.steptime.step import Passes, StepTime, filling_hops, hop, hop_times, recomputed_share
from gpuscale.steptime.tensor_parallel import TensorParallelTime, tensor_parallel_time
from gpuscale.training.stragglers import SELECTIVE, go_back_n_share, loss_window

PHASES = ("forward", "backward", "synchronisation", "update")
"""Phases of a step: both passes (recomputation is backward), the reduction of gradients behind them, the optimizer."""

ENDS = frozenset({"embedding", "LM head", "loss"})
"""What is called once for each microbatch at both ends of the model."""

REPLICAS = "gradients of replicas"
"""What the copies of a shard reduce, of hybrid sharding."""

FILLING = "filling and draining the pipeline"
"""Transfers between other stages, for which the stage waits; it sends nothing."""


@dataclass(frozen=True)
class Call:
    """One collective of a plan, called several times in a step by each group of an axis."""

    #: as in `AxisTraffic`, likewise what has the same name.
    axis: str
    purpose: str
    collective: str  #: one of `gpuscale.collectives.ideal.OPERATIONS`.
    phase: str
    bytes_per_call: float
    calls: float  #: in a step, of each group.
    group_size: int
    stride: int
    component: str
    ends: bool = False  #: it belongs to the embedding or the LM head.
    pair: int = 0  #: GPUs between the two of a transfer, of which the group is a chain; 0 for collectives.
    time_s: float = 0.0  #: of a call [s].
    hidden: bool = False


@dataclass(frozen=True)
class StagePlan:
    """One plan as seen from one GPU of its slowest stage."""

    job: JobSpec
    rows: Candidates  #: the plan as the only candidate.
    place: int  #: column of the stage among the evaluated ones.
    stage: int
    layers: tuple[tuple[LayerSpec, float], ...]  #: (kind of layer, how many of them the stage runs).

    def __getattr__(self, name: str) -> int:
        """Return one degree of the layout."""
        if name.startswith("_") or name not in Candidates.__dataclass_fields__:
            raise AttributeError(name)
        return int(getattr(self.rows, name)[0])

    @cached_property
    def recomputed(self) -> float:
        """Share of the stage's layers that are recomputed whole."""
        return min(self.recompute_layers / max(math.fsum(count for _, count in self.layers), 1), 1.0)

    def end(self, place: int) -> float:
        """Return the share of the embedding (`FIRST`) or LM head (`LAST`) that the stage runs."""
        return only(share_of_end(self.rows, place, np.array([self.place])))


def stage_plan(rows: Candidates, job: JobSpec, evaluation: Evaluation) -> StagePlan:
    """Return a plan as seen from its slowest stage."""
    place = int(evaluation.step.bottleneck[0])
    counts = (float(count[place, 0]) for count in evaluation.stages.layers(evaluation.stage_row))
    stage = int(evaluation.stages.position[evaluation.stage_row[0], place])
    return StagePlan(job, rows, place, stage, tuple(zip(job.model.trained_kinds, counts, strict=True)))


def inventory(plan: StagePlan) -> tuple[Call, ...]:
    """Return all collectives that a GPU takes part in during one step."""
    found = (*_layer_calls(plan), *_pipeline_calls(plan), *_state_calls_of(plan), *_gradient_calls(plan))
    return tuple(one for one in found if one.group_size > 1 and one.calls > 0 and one.bytes_per_call > 0)


def _call(axis: str, purpose: str, one: GroupCall, phase: str, calls: float, component: str, **more: Any) -> Call:
    size, ranks, stride, time_s = map(only, (one.bytes, one.size, one.stride, one.time_s))
    named = f"{purpose}, {one.where}" if one.where else purpose
    call = Call(axis, named, one.operation, phase, size, calls, int(ranks), int(stride), component, time_s=time_s)
    return replace(call, **more)


# -- layers and both ends of the model --


def _layer_calls(plan: StagePlan) -> Iterator[Call]:
    tp = tensor_parallel_time(plan.rows, plan.job)
    layers = layer_segments(plan.rows, plan.job, plan.rows, np.arange(1), tp)
    for component in IN_LAYERS:
        for (_, count), blocks in zip(plan.layers, layers, strict=True):
            last = stops_before(blocks, plan.job)
            for block in blocks:
                mine = [one for one in block.sent if one.component == component]
                calls = [call for one in mine for call in _sent_calls(plan, one, count, block, stops=block is last)]
                yield from sorted(calls, key=lambda one: PHASES.index(one.phase)) if component == "tp_comm" else calls
        if component == "tp_comm":
            yield from _end_calls(plan, tp)
    if (own := plan.job.teaching) is not None:
        layers_of = zip(own.model.trained_kinds, own.model.trained_counts, strict=True)
        taught = _layer_calls(replace(plan, job=own, layers=tuple((kind, float(count)) for kind, count in layers_of)))
        yield from (replace(one, purpose=f"{one.purpose}, teacher") for one in taught if one.phase == "forward")


def _sent_calls(plan: StagePlan, one: Sent, count: float, block: Segment, *, stops: bool) -> Iterator[Call]:
    """Calls of both passes; the backward one repeats the forward's as often as the block, but for what follows its last
    product if it `stops`."""
    forward, backward = only(one.forward), only(one.backward)
    whole = 0.0 if stops and one.last else plan.recomputed
    again = forward * (whole + bool(plan.recompute_modules & block.modules))
    longest = int(np.argmax([only(part.time_s) for part in one.parts]))
    ahead = forward * (1 + plan.job.method.forwards)
    counted = [(one.purpose, "forward", ahead), (one.again or one.purpose, "backward", backward + again)]
    for purpose, phase, calls in counted:
        for index, part in enumerate(one.parts):
            times = count * calls * plan.num_microbatches
            yield _call(one.axis, purpose, part, phase, times, one.component, hidden=index != longest)


def _end_calls(plan: StagePlan, tp: TensorParallelTime) -> Iterator[Call]:
    embedding, first = embedding_sent(tp), plan.end(FIRST)
    heads = plan.end(LAST) * (1 + plan.job.model.mtp_depth)
    due = [(one, first) for one in embedding if one.forward]
    due += [(one, heads) for one in lm_head_sent(plan.rows, plan.job, tp)]
    due += [(one, first) for one in embedding if one.backward]
    for one, count in due:
        for phase, calls in (("forward", one.forward), ("backward", one.backward)):
            times = float(calls) * count * plan.num_microbatches
            times *= 1 + plan.job.method.forwards * (phase == "forward")
            yield _call(one.axis, one.purpose, one.parts[0], phase, times, one.component, ends=True)


# -- pipeline --


def _pipeline_calls(plan: StagePlan) -> Iterator[Call]:
    """The hidden state to the next chunk of the model and its gradient back: 2 m v transfers, and filling."""
    sent, gathered = hop(plan.rows, plan.job)
    trips, distance = plan.num_microbatches * float(plan.vpp), int(sent.stride[0])
    ways = [("forward", "hidden state", trips), ("backward", "its gradient", trips)]
    for phase, purpose, calls in (*ways, ("forward", FILLING, only(filling_hops(plan.rows)))):
        yield _call("pp", purpose, sent, phase, calls, "pp_comm", group_size=plan.pp, pair=distance)
        yield _call("pp", purpose, gathered, phase, calls, "pp_comm")


# -- data parallelism --


def _state_calls_of(plan: StagePlan) -> Iterator[Call]:
    """Gradients and parameters of the stage that has the most, of the experts apart: ZeRO 0 AllReduces; 1 and 2
    ReduceScatter (2 maybe in every microbatch) and AllGather; 3 gathers in both passes of every microbatch. Replicas
    of the shards AllReduce their part."""
    *_, parameters = placed(plan.rows, plan.job)
    for axis, one in shards(plan.rows, plan.job, parameters).items():
        calls = state_calls(plan.job, one)
        repeats = only(reductions(plan.rows, plan.job))
        again = only(gathered_again(plan.rows, plan.job))
        passes = zip(PHASES[:2], (1 + plan.job.method.forwards, 1 + again), strict=True)
        gathers = [("update", 1.0)] if plan.zero < 3 else [(due, float(n * plan.num_microbatches)) for due, n in passes]
        for purpose, (sent, pieces), due in (
            ("gradients", calls.reduce, [("synchronisation", repeats)]),
            ("gradients", calls.all_reduce, [("synchronisation", repeats)]),
            ("parameters", calls.gather, gathers),
            (REPLICAS, calls.replica, [("synchronisation", 1.0)]),
        ):
            for phase, times in due:
                yield _call(axis, purpose, sent, phase, times * only(pieces), "dp_comm")
    if plan.job.teacher is not None and plan.zero == 3:
        taught = teacher_gather(plan.rows, plan.job)
        yield _call("dp", "parameters", taught, "forward", float(plan.num_microbatches), "dp_comm")


def _gradient_calls(plan: StagePlan) -> Iterator[Call]:
    """The gradients of a tied embedding, and the norm of all gradients, that of the experts' apart; none with the
    optimizer on CPUs."""
    model = plan.job.model
    if plan.job.trains_tied_embedding:
        tied = tied_embedding(plan.rows, plan.job)
        yield _call("embedding", "tied embedding", tied, "synchronisation", 1.0, "dp_comm")
    if not plan.job.offload.optimizer:
        norm = gradient_norm(plan.rows, plan.job)
        yield _call("norm", "gradient norm", norm, "update", 1.0 + model.is_moe, "optimizer")


SIDES = ("node", "network")
"""Links inside a node (or rack), and what is beyond."""

IDLE = "waiting"
"""What of a step is in none of `PHASES`: bubble of the pipeline, the slowest GPU, the allocator."""


@dataclass(frozen=True)
class AxisTraffic:
    """One collective of one axis in one phase of a step, as one GPU of the slowest stage sees it."""

    #: `tp`, `cp`, `ep`, `etp`, `pp`, `dp`, `edp` (data parallelism of the routed experts), `embedding` (tied) or `norm`
    #: (of the gradients)
    axis: str
    purpose: str  #: what is sent
    collective: str  #: `allreduce`, `allgather`, `reducescatter`, `alltoall` or `sendrecv`
    phase: str  #: `forward`, `backward` (with recomputation), `synchronisation` or `update`: when it is due
    level: str  #: outermost level that the group crosses
    group_size: int  #: GPUs of the group; of a ring or a pipeline all that send to a neighbour
    stride: int  #: GPUs from one member to the next
    nodes: int  #: nodes (or NVLink domains) that a group spans
    ranks_per_node: int  #: members of the group in one of them
    rails: int  #: network cards of different number that its members in all nodes use
    #: message as nccl-tests counts it: the whole tensor of the group (gathered, or before it is scattered), of an
    #: AllToAll the send buffer of one GPU, of a transfer what is sent
    bytes_per_call: float
    calls_per_step: float  #: how often a GPU takes part in a step; one evaluated call may be several buckets in fact
    bytes_per_step: float  #: `bytes_per_call` x `calls_per_step`
    sent_bytes_per_call: float  #: what one GPU puts on the wire in a call, mean of the group
    sent_bytes_per_step: float  #: what one GPU puts on the wire in a step
    level_bytes: Mapping[str, float]  #: level -> bytes of `sent_bytes_per_step` that cross it and none above
    time_per_call_s: float  #: seconds of one call
    time_s: float  #: seconds in a step before overlap
    #: seconds of it that show in the step, with what the hidden part takes from the computation beside it
    exposed_s: float
    hidden_s: float  #: seconds that run beside computation, or beside a longer part of the same exchange
    hidden_share: float  #: `hidden_s` over `time_s`
    busiest_level: str  #: level whose links are the busiest while it runs
    busiest_link_utilisation: float  #: share of these links' wire rate that it uses while it runs
    component: str  #: under which component of the step `exposed_s` counts


@dataclass(frozen=True)
class LevelTraffic:
    """What a step sends over one level."""

    level: str  #: its name
    fabric: str  #: what carries the traffic
    gpus: int  #: GPUs of the job under one instance
    egress_bytes_per_s: float  #: what each GPU can send across it when all do [bytes/s]
    sent_bytes: float  #: bytes per GPU and step that cross the level and none above
    passing_bytes: float  #: bytes per GPU and step that cross it; on networks with what goes on to the levels above
    switch_bytes: float  #: bytes per step that pass one instance of the level, of all its GPUs together
    utilisation: float  #: `passing_bytes` over what the links carry in a step


@dataclass(frozen=True)
class Activity:
    """One phase of a step."""

    phase: str  #: `forward`, `backward`, `synchronisation`, `update`, or `waiting` (bubble, slowest GPU, allocator)
    seconds: float  #: how long it takes; all phases add up to the step time [s]
    #: level -> bytes that one GPU sends across it in the phase; what runs beside a pass counts in that pass
    bytes: Mapping[str, float]
    bytes_per_s: Mapping[str, float]  #: level -> bytes per second in the phase [bytes/s]


@dataclass(frozen=True)
class NetworkNeed:
    """What the network must give for the communication of one component to cost little."""

    component: str  #: of the step time, as `gpuscale.steptime.components.COMMUNICATION` names it
    where: str  #: `node` (links inside the node) or `network` (beyond it): what is changed
    level: str  #: the slowest level of it that the axis crosses
    exposed_s: float  #: seconds of a step that show now
    floor_s: float  #: seconds that show however fast it is: latency, and what waits for nothing but the call itself
    bytes_per_s: float  #: bandwidth of the level per GPU now [bytes/s]
    #: least bandwidth at which at most `tolerance` of the step shows beyond `floor_s`; a quarter of `bytes_per_s` where
    #: that or less is enough, null where 16 times as much is not [bytes/s]
    needed_bytes_per_s: float | None
    tolerance: float  #: share of the step


@dataclass(frozen=True)
class NetworkFault:
    """What a fault of the network makes of the step."""

    name: str  #: `loss`, `congestion`, ...
    meaning: str  #: what is wrong
    slower_bytes: float  #: what a byte takes longer by
    step_time_s: float  #: seconds per step with it
    factor: float  #: `step_time_s` over that without it
    source: str  #: where `slower_bytes` comes from


@dataclass(frozen=True)
class TrafficTotals:
    """Sums over the traffic of one GPU in a step."""

    stage: int  #: pipeline stage of the numbers, from 0: the slowest; of the states the one with the most parameters
    stages: int  #: pipeline stages
    layers: float  #: layers that the stage runs; of DualPipe the mean of both directions
    microbatches: int  #: per step
    step_time_s: float  #: seconds per step
    node_bytes: float  #: bytes that a GPU sends over links inside its node
    network_bytes: float  #: bytes that it sends over the network
    time_s: float  #: communication before overlap, seconds
    exposed_s: float  #: communication that shows in the step, seconds
    exposed_share: float  #: of the step
    beside_wire_s: float  #: seconds that count as communication and pass no link: CPU and copies of sharded states
    levels: tuple[LevelTraffic, ...]  #: sums for each level


@displayed
@dataclass(frozen=True)
class TrafficReport:
    """The traffic of one plan."""

    traffic: tuple[AxisTraffic, ...]  #: each collective of each axis and phase
    traffic_totals: TrafficTotals  #: sums over one GPU and step, and by level
    network_activity: tuple[Activity, ...]  #: bytes by phase of the step
    network_needs: tuple[NetworkNeed, ...]  #: what the network must give for the communication to cost little
    network_faults: tuple[NetworkFault, ...]  #: what loss, congestion or one slow rail costs

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@public
def traffic_of(subject: Subject) -> TrafficReport:
    """Return what a plan sends over which level, what of it shows, and what the network must give for it.

    Args:
        subject: `gpuscale.read_subject` makes one of a plan file, of launch files or of arguments.
    """
    job, step = subject.spec, subject.evaluation.step
    plan = stage_plan(subject.rows, job, subject.evaluation)
    exposure = _exposure(plan, step)
    rows = _rows(plan, exposure)
    levels = _levels(plan, rows, exposure.step_time_s)
    inside, network = (
        math.fsum(level.sent_bytes for level in levels if level_side(level.fabric) == where) for where in SIDES
    )
    seconds = step.seconds()
    exposed_s = math.fsum(seconds[name] for name in COMMUNICATION)
    totals = TrafficTotals(
        stage=plan.stage,
        stages=plan.pp,
        layers=math.fsum(count for _, count in plan.layers),
        microbatches=plan.num_microbatches,
        step_time_s=exposure.step_time_s,
        node_bytes=inside,
        network_bytes=network,
        time_s=math.fsum(one.time_s for one in rows if one.component != "optimizer"),
        exposed_s=exposed_s,
        exposed_share=exposed_s / exposure.step_time_s,
        beside_wire_s=exposure.beside_wire_s,
        levels=levels,
    )
    rerun, activity = _Rerun(plan), _activity(plan, rows, exposure)
    return TrafficReport(rows, totals, activity, tuple(_needs(plan, rows, rerun)), tuple(_faults(plan, rerun)))


# -- what of it shows: the step-time model's components, by pass --

CostKey = tuple[str | bool, ...]
"""Collectives of which the step-time model says one number."""


@dataclass(frozen=True)
class _Exposure:
    """What the step-time model says of the slowest stage [s]."""

    step_time_s: float
    factor: float  #: what measured runs of a site make of all times; 1 without.
    shown: Mapping[CostKey, float]  #: what shows of the collectives of each part in a step, before that factor.
    seconds: Mapping[str, float]  #: phase -> how long it takes in a step, with the factor.
    beside_wire_s: float  #: what counts as communication of the states and passes no link, with the factor.


def _part(call: Call) -> CostKey:
    if call.component in IN_LAYERS:
        return call.component, call.phase, call.ends
    return (call.component, call.purpose == FILLING) if call.component == "pp_comm" else (call.purpose, call.phase)


def _exposure(plan: StagePlan, step: StepTime) -> _Exposure:
    parts = _microbatch(plan, step.passes)
    beside = {name: only(value) for name, value in step.beside.items()}
    shown: dict[CostKey, float] = {
        (name, phase, ends): plan.num_microbatches * only(cost[name])
        for (phase, ends), cost in parts.items()
        for name in IN_LAYERS
        if name in cost
    }
    forward, backward = (math.fsum(only(total_s(parts[phase, ends])) for ends in (False, True)) for phase in PHASES[:2])
    of_states = _states_shown(plan, step.cover)
    filling_s = min(only(filling_hops(plan.rows) * hop_times(plan.rows, plan.job)[0]), beside["pp_comm"])
    shown |= of_states | {("pp_comm", False): beside["pp_comm"] - filling_s, ("pp_comm", True): filling_s}
    beside_wire_s = max(beside["dp_comm"] - math.fsum(of_states.values()), 0.0)
    due = {phase: math.fsum(size for (_, when), size in of_states.items() if when == phase) for phase in PHASES}
    m, trips_s = plan.num_microbatches, (beside["pp_comm"] - filling_s) / 2
    seconds = {
        "forward": m * forward + due["forward"] + trips_s,
        "backward": m * backward + due["backward"] + trips_s + beside["elementwise"],
        "synchronisation": due["synchronisation"] + beside_wire_s,
        "update": due["update"] + beside["optimizer"] + beside["offload"],
        IDLE: beside["bubble"] + beside["waiting"] + beside["launch"] + filling_s,
    }
    step_time_s = float(step.step_time_s[0])
    factor = step_time_s / math.fsum(seconds.values()) if plan.job.site else 1.0
    scaled_s = {name: size * factor for name, size in seconds.items()}
    return _Exposure(step_time_s, factor, shown, scaled_s, beside_wire_s * factor)


def _microbatch(plan: StagePlan, passes: Passes) -> dict[tuple[str, bool], Breakdown]:
    """Break one microbatch down: (pass, ends of the model or layers) -> breakdown."""
    counts = [np.array([count]) for _, count in plan.layers]
    share = recomputed_share(plan.rows, counts)
    layers, ends = list(zip(passes.layers, counts, strict=True)), list(passes.ends.items())
    back = (scaled(added(one.backward, scaled(one.recompute, share)), number) for one, number in layers)
    return {
        ("forward", False): added(*(scaled(one.forward, number) for one, number in layers)),
        ("backward", False): added(*back),
        ("forward", True): added(*(scaled(both[0], plan.end(end)) for end, both in ends)),
        ("backward", True): added(*(scaled(both[1], plan.end(end)) for end, both in ends)),
    }


EVER = 1e9
"""Seconds behind which any transfer hides."""


def _states_shown(plan: StagePlan, cover: Cover) -> dict[CostKey, float]:
    """Return what shows of the states in a step, by purpose and phase [s]; beside the same pass gathers count first,
    then reductions, then replicas."""
    c, job = plan.rows, plan.job
    _, _, parameters = placed(c, job)
    t, none = state_transfers(c, job, parameters), np.zeros(1)

    def shown_s(part: Transfers, behind: Cover = cover) -> float:
        shown, waited = unhidden_s(c, job, part, behind)
        return only(shown) - only(waited)

    gathers = t._replace(reduce_s=none, all_reduce_s=none, replica_s=none)
    gather_s, without_s, whole_s = shown_s(gathers), shown_s(t._replace(replica_s=none)), shown_s(t)
    in_backward_s = gather_s / 2
    if job.runtime.overlap_param_gather:
        in_backward_s = shown_s(gathers, cover._replace(forward_s=np.array([EVER])))
    purposes: dict[CostKey, float] = {
        ("gradients", "synchronisation"): without_s - gather_s,
        (REPLICAS, "synchronisation"): whole_s - without_s,
    }
    if plan.zero == 3:
        purposes |= {("parameters", "forward"): gather_s - in_backward_s, ("parameters", "backward"): in_backward_s}
    else:
        purposes["parameters", "update"] = gather_s
    times = dict.fromkeys(purposes, 0.0)
    calls = [one for one in inventory(plan) if one.component == "dp_comm" and one.axis != "embedding"]
    for one in calls:
        times[_part(one)] += one.calls * one.time_s
    hidden = {name: max(times[name] - size, 0.0) for name, size in purposes.items()}
    behind_s = max(math.fsum(times.values()) - only(unhidden_s(c, job, t, cover)[0]), 0.0)
    slowed = only(contention(np.array([behind_s]), job.cluster.gpu.sm_count))
    share = slowed / (math.fsum(hidden.values()) or 1.0)
    purposes = {name: size + share * hidden[name] for name, size in purposes.items()}
    return purposes | {("tied embedding", "synchronisation"): only(t.tied_s)}


# -- each collective: its time, its place, its bytes on the wire --


def wire_bytes(cluster: ClusterSpec, call: Call, chunks: int = 1) -> list[float]:
    """Return what a GPU sends in a call across each level and none above, the mean of its group [bytes]; with model
    `chunks` a chain goes on from the last to the first."""
    if call.collective != "alltoall":
        groups = place(cluster, [call.group_size], [call.stride])
        units = groups.instances[:, 0]  # that the group spans: GPUs, then instances of each level
        hops = units[:-1] - units[1:]
        if call.collective == "sendrecv":  # a chain, or a ring, which its last member closes
            outermost = np.arange(len(hops)) == np.flatnonzero(hops).max()
            closing = (chunks - 1) / chunks if call.pair else 1.0
            return [float(one) for one in (hops + closing * outermost) / call.group_size * call.bytes_per_call]
        sent = hops / call.group_size * call.bytes_per_call
        if call.collective == "allreduce":
            added_up = units[:-1] / call.group_size * call.bytes_per_call
            adding = cluster.adding(ideal=False)[:, 0] & (hops > 0)
            sent = np.where(adding, np.minimum(2 * sent, added_up), 2 * sent)
        return [float(one) for one in sent]
    members = place(cluster, [call.group_size], [call.stride]).members[:, 0]
    n, per_unit = call.group_size, [1.0, *members.tolist()]
    near = [(n // m * m**2 + (n % m) ** 2) / n for m in per_unit]  # GPUs of the group in the same unit, mean of all
    near[-1] = float(n)
    return [(outer - inner) / n * call.bytes_per_call for inner, outer in pairwise(near)]


def _rows(plan: StagePlan, exposure: _Exposure) -> tuple[AxisTraffic, ...]:
    counted: dict[Call, float] = {}  # calls that are otherwise alike are one
    for one in inventory(plan):
        alike = replace(one, calls=1.0)
        counted[alike] = counted.get(alike, 0.0) + one.calls
    calls = [replace(one, calls=count) for one, count in counted.items()]
    of_part: dict[CostKey, float] = {}
    for one in calls:
        if not one.hidden:
            of_part[_part(one)] = of_part.get(_part(one), 0.0) + one.calls * one.time_s
    rows = []
    for one in calls:
        whole_s = one.calls * one.time_s
        shown_s = whole_s  # of the norm
        if one.component != "optimizer":
            shown_s = exposure.shown.get(_part(one), 0.0) * whole_s / (of_part.get(_part(one)) or 1.0)
        rows.append(_row(plan, one, one.time_s * exposure.factor, 0.0 if one.hidden else shown_s * exposure.factor))
    return tuple(rows)


def _row(plan: StagePlan, call: Call, each_s: float, exposed_s: float) -> AxisTraffic:
    cluster, made = plan.job.cluster, 0.0 if call.purpose == FILLING else call.calls
    size, stride = (2, call.pair) if call.pair else (call.group_size, call.stride)
    groups = place(cluster, [size], [stride])
    wired = replace(cluster, sharp=bool(cluster.sharp))
    links_s = ideal.level_times_s(wired, call.collective, np.array([call.bytes_per_call]), groups)[:, 0]
    names = _names(cluster)
    chunks = plan.vpp if call.component == "pp_comm" else 1
    sent = [one * made for one in wire_bytes(cluster, call, chunks)]
    ranks = np.arange(call.group_size, dtype=np.int64) * call.stride
    nodes, members = np.unique(ranks // cluster.levels[cluster.domain_index].gpus, return_counts=True)
    time_s, sent_bytes = call.calls * each_s, math.fsum(sent)
    hidden_s = max(time_s - exposed_s, 0.0)
    return AxisTraffic(
        **{name: getattr(call, name) for name in SAME},
        level=names[int(np.flatnonzero(groups.crossed[:, 0]).max())],
        nodes=len(nodes),
        ranks_per_node=int(members.max()),
        rails=len(np.unique(rail(cluster, ranks))),
        calls_per_step=made,
        bytes_per_step=call.bytes_per_call * made,
        sent_bytes_per_call=sent_bytes / made if made else 0.0,
        sent_bytes_per_step=sent_bytes,
        level_bytes={name: size for name, size in zip(names, sent, strict=True) if size},
        time_per_call_s=each_s,
        time_s=time_s,
        exposed_s=exposed_s,
        hidden_s=hidden_s,
        hidden_share=hidden_s / time_s if time_s else 0.0,
        busiest_level=names[int(links_s.argmax())],
        busiest_link_utilisation=min(float(links_s.max()) / each_s, 1.0) if each_s else 0.0,
    )


SAME = ("axis", "purpose", "collective", "phase", "group_size", "stride", "bytes_per_call", "component")
"""What a row of the traffic has of its call as it is."""


# -- sums: by level, by phase --


def _levels(plan: StagePlan, rows: Sequence[AxisTraffic], step_time_s: float) -> tuple[LevelTraffic, ...]:
    cluster, out, below = plan.job.cluster, [], 1
    sent = {name: math.fsum(one.level_bytes.get(name, 0.0) for one in rows) for name in _names(cluster)}
    passing = _passing(cluster, sent)
    for level in cluster.levels:
        if below < plan.job.gpus or sent[level.name]:
            gpus = min(level.gpus, plan.job.gpus)
            out.append(
                LevelTraffic(
                    level=level.name,
                    fabric=level.fabric,
                    gpus=gpus,
                    egress_bytes_per_s=level.egress_bytes_per_s,
                    sent_bytes=sent[level.name],
                    passing_bytes=passing[level.name],
                    switch_bytes=passing[level.name] * gpus,
                    utilisation=passing[level.name] / (level.egress_bytes_per_s * step_time_s),
                )
            )
        below = level.gpus
    return tuple(out)


def _names(cluster: ClusterSpec) -> list[str]:
    return [level.name for level in cluster.levels]


def _passing(cluster: ClusterSpec, sent: Mapping[str, float]) -> dict[str, float]:
    """Return what passes each level: in networks also what goes on above it."""
    out: dict[str, float] = {}
    above = 0.0
    for level in reversed(cluster.levels):
        own = sent[level.name]
        above += 0.0 if level.fabric in INSIDE else own
        out[level.name] = own if level.fabric in INSIDE else above
    return out


def _activity(plan: StagePlan, rows: Sequence[AxisTraffic], exposure: _Exposure) -> tuple[Activity, ...]:
    """Count bytes in the phase in which they travel: what hides beside a pass in that pass."""
    cluster = plan.job.cluster
    sent: dict[str, dict[str, float]] = {phase: dict.fromkeys(_names(cluster), 0.0) for phase in exposure.seconds}
    for one in rows:
        beside = {"synchronisation": "backward", "update": "forward"}.get(one.phase, one.phase)
        for name, size in one.level_bytes.items():
            sent[beside][name] += size * one.hidden_share
            sent[one.phase][name] += size * (1 - one.hidden_share)
    out = []
    for phase, seconds in exposure.seconds.items():
        bytes_ = {name: size for name, size in _passing(cluster, sent[phase]).items() if size}
        rates = {name: size / seconds for name, size in bytes_.items() if seconds}
        out.append(Activity(phase, seconds, bytes_, rates))
    return tuple(out)


# -- what the network must give, and what its faults cost: by evaluating the plan anew --

TOLERANCE = 0.01
"""Share of a step that communication may show and still be called hidden."""

LEAST_FACTOR, MOST_FACTOR = 0.25, 16.0
"""Factors on bandwidths between which the needed one is looked for."""

FALSE_POSITIONS = 2
"""Evaluations between two factors that differ by two: what more is needed is then known to about a percent."""

UNBOUND = 1e4
"""Factor on bandwidths from which on latency is all that is left."""


def level_side(fabric: str) -> str:
    """Return which of `SIDES` links of a fabric belong to."""
    return "node" if fabric in INSIDE else "network"


class _Rerun:
    """Step time and components of the plan on changed networks, each evaluated once."""

    def __init__(self, plan: StagePlan) -> None:
        self._plan = plan
        self._known: dict[tuple[float, ...], tuple[float, Mapping[str, float]]] = {}

    def slower(self, factors: Sequence[float]) -> tuple[float, Mapping[str, float]]:
        """Return them where a byte takes longer on each level by a factor [s]."""
        key = tuple(factors)
        if key not in self._known:
            job = self._plan.job
            step = evaluate(self._plan.rows, replace(job, cluster=with_network(job.cluster, key))).step
            self._known[key] = only(step.step_time_s), step.seconds()
        return self._known[key]

    def faster(self, where: str, factor: float) -> tuple[float, Mapping[str, float]]:
        """Return them with so much more bandwidth on one of `SIDES` [s]."""
        levels = self._plan.job.cluster.levels
        return self.slower([1 / factor if level_side(level.fabric) == where else 1.0 for level in levels])


def _needs(plan: StagePlan, rows: Sequence[AxisTraffic], rerun: _Rerun) -> Iterator[NetworkNeed]:
    for component in COMMUNICATION:
        crossed = {name for one in rows if one.component == component for name in one.level_bytes}
        used = [level for level in plan.job.cluster.levels if level.name in crossed]
        for where in SIDES:
            here = [level for level in used if level_side(level.fabric) == where]
            if here:
                slowest = min(here, key=lambda level: level.egress_bytes_per_s)
                yield _need(component, where, slowest, rerun)


def _need(component: str, where: str, level: LevelSpec, rerun: _Rerun) -> NetworkNeed:
    step_s, now = rerun.faster(where, 1.0)
    floor_s = rerun.faster(where, UNBOUND)[1][component]

    def excess_s(factor: float) -> float:
        return rerun.faster(where, factor)[1][component] - floor_s - TOLERANCE * step_s

    factor = _crossing(excess_s)
    return NetworkNeed(
        component=component,
        where=where,
        level=level.name,
        exposed_s=now[component],
        floor_s=min(floor_s, now[component]),
        bytes_per_s=level.egress_bytes_per_s,
        needed_bytes_per_s=None if factor is None else level.egress_bytes_per_s * factor,
        tolerance=TOLERANCE,
    )


def _crossing(excess: Callable[[float], float]) -> float | None:
    """Return the factor, `LEAST_FACTOR` to `MOST_FACTOR`, from which on nothing is in excess, or None. Excess falls
    about as 1 / factor, in which the false position is taken."""
    low = high = 1.0  # factors with and without excess
    if excess(1.0) <= 0:
        while excess(low) <= 0:
            if low <= LEAST_FACTOR:
                return LEAST_FACTOR
            high, low = low, low / 2
        return _false_position(excess, low, high)
    while excess(high) > 0:
        if high >= MOST_FACTOR:
            return None
        low, high = high, 2 * high
    for _ in range(FALSE_POSITIONS):
        middle = _false_position(excess, low, high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return _false_position(excess, low, high)


def _false_position(excess: Callable[[float], float], low: float, high: float) -> float:
    share = excess(low) / (excess(low) - excess(high))
    return 1 / ((1 - share) / low + share / high)


HALF = 2.0

LOSS = 1e-3


def _faults(plan: StagePlan, rerun: _Rerun) -> Iterator[NetworkFault]:
    """Evaluate the plan with each fault that its network can have."""
    levels, first, gpus = plan.job.cluster.levels, plan.job.cluster.domain_index + 1, plan.job.gpus
    reached = [index for index in range(len(levels)) if not index or levels[index - 1].gpus < gpus]
    step_s, _ = rerun.slower([1.0] * len(levels))

    def fault(
        name: str, meaning: str, slower: float, begins: int, source: str, ends: int = len(levels)
    ) -> NetworkFault:
        time_s, _ = rerun.slower([slower if begins <= index < ends else 1.0 for index in range(len(levels))])
        return NetworkFault(name, meaning, slower, time_s, time_s / step_s, source)

    if plan.job.network is not None:
        top = min(first + 1, reached[-1])
        meaning = "one network card at half its rate: its rail waits, and all GPUs with it"
        yield fault("slow_rail", meaning, HALF, first, "rings and exchanges use all rails evenly")
        meaning = f"half of the {levels[top].name} bandwidth lost to other traffic or hash collisions"
        yield fault("congestion", meaning, HALF, top, "guesstimate")
        window = loss_window(plan.job)
        again, source = "each with all behind it", f"go-back-N with {window:.0f} packets in flight"
        if plan.job.network.fabric in SELECTIVE:
            again, source = "each", "selective retransmission"
        slower = 1 / go_back_n_share(LOSS, window)
        yield fault("loss", f"{LOSS:.1%} of packets lost, {again} retransmitted", slower, first, source)
    if gpus > 1:
        meaning = f"half of one GPU's links in its {levels[0].name} lost"
        yield fault("node_links", meaning, HALF, 0, "rings use all links evenly", first)
