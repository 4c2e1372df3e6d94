"""The price of one collective in full, for people: the time, what binds, and the choice that was made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives import dispatch, ideal, realistic
from gpuscale.collectives.arrange import arranged
from gpuscale.collectives.channels import channels_of, check_channels
from gpuscale.collectives.choice import ALGORITHMS, Option, choose, known
from gpuscale.collectives.estimate import CollectiveEstimate, LevelEstimate, Siblings
from gpuscale.collectives.formula import deduplicated_formula, formula
from gpuscale.collectives.groups import Groups, place
from gpuscale.collectives.network import Network, network
from gpuscale.collectives.operations import bus_factor, operation_named
from gpuscale.collectives.times import collective_time_s
from gpuscale.collectives.tuning import AUTOMATIC, Tuning, version_text
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.units import MAX_BYTES

DISPATCHES = ("hierarchical", "deepep")
"""Algorithms of `dispatch`: for AllToAll only, and only when asked for."""

_NEXT_TO_NOTHING = 1e-6
"""A millionth of a byte: what it takes is latency alone."""


@dataclass(frozen=True)
class _Case:
    """One collective of one group on its cluster, as the groups share it."""

    cluster: ClusterSpec
    op: str
    bytes: int
    groups: Groups
    stride: int
    in_network_reduction: bool
    tuning: Tuning

    @property
    def gpus(self) -> int:
        """GPUs of the group."""
        return int(self.groups.size[0])

    @property
    def data(self) -> FloatArray:
        """Bytes as the models take them, (1,)."""
        return np.array([float(self.bytes)])


@dataclass(frozen=True)
class _Answer:
    """What a model says of a case: the choice, the next best, and times by level, (L,) [s].

    `floor` and `formula` are the ideal model's where the choice moves fewer bytes than the operation would.
    """

    model: str
    option: Option
    other: Option | None
    level_times: FloatArray
    floor: FloatArray | None = None
    formula: str = ""


def price_collective(  # noqa: PLR0913 - what a user can say of a collective
    cluster: ClusterSpec,
    operation: str,
    bytes_: int,
    *,
    level: str | None = None,
    gpus: int | None = None,
    in_network_reduction: bool = True,
    ideal: bool = False,
    siblings: Siblings | None = None,
    forced: tuple[str | None, str | None] = (None, None),
    tuning: Tuning = AUTOMATIC,
    tokens: dispatch.Tokens | None = None,
) -> CollectiveEstimate:
    """Price one collective and say which level binds.

    Args:
        cluster: the hierarchy of levels.
        operation: any spelling of one of `operations.OPERATIONS`.
        bytes_: the whole tensor; for alltoall the send buffer of one GPU.
        level: name of a level; default the innermost that holds `gpus`, or the top one.
        gpus: GPUs of the group, default all under the level; for sendrecv two, in neighbouring units of the level, and
            otherwise as many as send to the next one.
        in_network_reduction: use NVLS / SHARP where the cluster has it.
        ideal: the latency-free model.
        siblings: stride of the group, and how many of its kind run at once.
        forced: one of `choice.ALGORITHMS` and one of `choice.PROTOCOLS`; None: the fastest, as NCCL chooses.
        tuning: NCCL's version and channels, how it is launched, and how uneven an AllToAll is.
        tokens: how tokens choose their experts, for `deepep`.

    Raises:
        InputError: unknown operation or level, sizes out of range, more GPUs than the level holds, fewer than 2, an
            algorithm, protocol or version that cannot run there.
    """
    op = operation_named(operation)
    if not 1 <= bytes_ <= MAX_BYTES:
        raise InputError(f"{bytes_} bytes is out of range", place="--bytes", hint="sizes go from 1 byte to 2^60 bytes")
    shared, chosen, (count, stride) = arranged(cluster, op, level, gpus, siblings or Siblings())
    case = _Case(shared, op, bytes_, place(shared, [count], [stride]), stride, in_network_reduction, tuning)
    wanted = known("--algo", forced[0], ALGORITHMS)
    _check(case, wanted, tokens, ideal=ideal, forced=any(forced))
    floor = _floor(case)
    if ideal:
        answer = _Answer("ideal", Option("bytes / bandwidth", "", 0.0, float(floor.max())), None, floor)
    elif wanted in DISPATCHES:
        answer = _dispatched(case, floor, (wanted, forced[1]), tokens or dispatch.Tokens())
    else:
        answer = _chosen(case, floor, forced)
    return _estimate(case, answer, floor, level=chosen.name, siblings=siblings or Siblings())


def _check(case: _Case, wanted: str | None, tokens: dispatch.Tokens | None, *, ideal: bool, forced: bool) -> None:
    """Refuse what contradicts itself.

    Raises:
        InputError: what does.
    """
    if ideal and (forced or replace(case.tuning, imbalance=1.0) != AUTOMATIC):
        hint = "leave out --algo, --proto, --channels, --nccl and --launch"
        raise InputError("the ideal model has no algorithms, channels or launches", place="--ideal", hint=hint)
    if case.tuning.imbalance != 1 and case.op != "alltoall":
        raise InputError(f"{case.op} moves the same from every GPU", place="--imbalance", hint="it is for alltoall")
    if case.tuning.imbalance > case.gpus:
        raise InputError(
            f"one of {case.gpus:,} GPUs cannot have {case.tuning.imbalance:g} times the mean",
            place="--imbalance",
            hint=f"give 1 to {case.gpus:,}",
        )
    if tokens is not None and wanted != "deepep":
        raise InputError("only an exchange token by token knows of experts", place="--topk", hint="add --algo deepep")
    check_channels(case.cluster, case.tuning)


def _floor(case: _Case) -> FloatArray:
    """Return what each level takes by the ideal model, (L,) [s]."""
    return ideal.level_times_s(
        case.cluster,
        case.op,
        case.data,
        case.groups,
        in_network_reduction=case.in_network_reduction,
        imbalance=case.tuning.imbalance,
    )[:, 0]


def _chosen(case: _Case, floor: FloatArray, forced: tuple[str | None, str | None]) -> _Answer:
    """Return NCCL's choice, or the one asked for; as measured where the cluster file has measurements."""
    net = _net(case)
    option, other = choose(net, case.op, float(case.bytes), *forced)
    level_times = realistic.level_times_s(net, case.op, case.data, option.algorithm)[:, 0]
    least = float(floor.max())
    option = replace(option, time_s=max(option.time_s, least))
    other = other and replace(other, time_s=max(other.time_s, least))
    if any(forced) or not _has_calibration(case):
        return _Answer("nccl", option, other, level_times)
    latency_s, time_s = collective_time_s(
        case.cluster,
        case.op,
        [1.0, float(case.bytes)],
        case.gpus,
        case.stride,
        in_network_reduction=case.in_network_reduction,
        tuning=case.tuning,
    ).tolist()
    scale = time_s / option.time_s
    option = replace(option, latency_s=latency_s, time_s=time_s, channels_s=option.channels_s * scale)
    other = other and replace(other, time_s=other.time_s * scale)  # as far off as the one that was measured
    return _Answer("calibrated", option, other, level_times * scale)


def _has_calibration(case: _Case) -> bool:
    level = case.cluster.level_of_group(case.gpus, case.stride).name
    return any(one.operation == case.op and one.level == level for one in case.cluster.calibration)


def _dispatched(case: _Case, floor: FloatArray, forced: tuple[str, str | None], tokens: dispatch.Tokens) -> _Answer:
    """Price an AllToAll that is not NCCL's own.

    Raises:
        InputError: another operation, a group inside one node, a protocol.
    """
    wanted, protocol = forced
    nodes = int(dispatch.units(case.cluster, case.gpus, case.stride)[1])
    if case.op != "alltoall" or (wanted == "hierarchical" and nodes == 1) or protocol:
        where = f"{nodes:,} nodes" if nodes > 1 else "one node"
        asked = f"{wanted} with {protocol.upper()}"[:60] if protocol else wanted
        raise InputError(
            f"{asked} cannot run {case.op} over {case.gpus:,} GPUs in {where}",
            place="--algo",
            hint="it is a way to do alltoall across nodes, with no protocol of NCCL",
        )
    if wanted == "deepep":
        return _deepep(case, nodes, tokens)
    return _hierarchical(case, floor)


def _hierarchical(case: _Case, floor: FloatArray) -> _Answer:
    both = np.array([float(case.bytes), _NEXT_TO_NOTHING])
    phases = dispatch.hierarchical_s(case.cluster, both, case.gpus, case.stride, tuning=case.tuning)
    time_s, latency_s = (phases.inside_s + phases.across_s).tolist()
    time_s = max(time_s, float(floor.max()))  # a GPU that is alone in its node sends more than its two phases say
    option = Option("hierarchical", "", latency_s, time_s, channels_of(_net(case), "point-to-point"))
    return _Answer("nccl", option, _plain(case), _by_level(case, phases))


def _deepep(case: _Case, nodes: int, tokens: dispatch.Tokens) -> _Answer:
    copies = np.array([float(case.bytes), 0.0]) * case.tuning.imbalance / tokens.experts_per_token
    copies[1] = _NEXT_TO_NOTHING
    routing, sms = tokens.routing(nodes), case.tuning.channels
    phases = dispatch.deduplicated_s(case.cluster, copies, case.gpus, case.stride, routing, sms=sms)
    time_s, latency_s = np.maximum(phases.inside_s, phases.across_s).tolist()
    option = Option("DeepEP", "", latency_s, time_s, sms or 0)
    ideal_s = dispatch.deduplicated_s(case.cluster, copies, case.gpus, case.stride, routing, ideal=True)
    floor = _by_level(case, ideal_s)
    text = _deepep_formula(case, routing, across=bool(ideal_s.across_s[0] >= ideal_s.inside_s[0]))
    return _Answer("deepep", option, _plain(case), _by_level(case, phases), floor, text)


def _deepep_formula(case: _Case, routing: dispatch.Routing, *, across: bool) -> str:
    inside, nodes = dispatch.units(case.cluster, case.gpus, case.stride)
    units, unit = (int(nodes), nodes) if across else (int(inside), np.asarray(case.gpus))
    targets = float(dispatch.distinct_targets(unit, routing.choices, routing.groups, routing.top_groups)[0])
    index = int(np.flatnonzero(case.groups.crossed[:, 0])[-1]) if across else 0
    per_gpu = float(case.groups.wire_bytes_per_s[index, 0] / case.groups.inner[index, 0])
    size = round(case.bytes * case.tuning.imbalance)
    return deduplicated_formula(size, routing.choices, targets, units, per_gpu)


def _plain(case: _Case) -> Option:
    """Return what NCCL's own AllToAll takes."""
    return choose(_net(case), case.op, float(case.bytes))[0]


def _net(case: _Case) -> Network:
    return network(case.cluster, case.groups, in_network_reduction=case.in_network_reduction, tuning=case.tuning)


def _by_level(case: _Case, phases: dispatch.Phases) -> FloatArray:
    """Return what the bytes take inside nodes and across them, at the node and the outermost level crossed, (L,) [s].

    Args:
        phases: times of the bytes, and of next to none.
    """
    found = np.zeros(len(case.cluster.levels))
    found[0] = phases.inside_s[0] - phases.inside_s[1]
    crossed = np.flatnonzero(case.groups.crossed[:, 0])
    if crossed[-1] > 0:
        found[crossed[-1]] = phases.across_s[0] - phases.across_s[1]
    return found


def _estimate(case: _Case, answer: _Answer, floor: FloatArray, *, level: str, siblings: Siblings) -> CollectiveEstimate:
    option, other = answer.option, answer.other
    least = floor if answer.floor is None else answer.floor
    rows = _level_rows(case, answer.level_times, least)
    bound_by, part = _bound(case, option, rows)
    return CollectiveEstimate(
        op=case.op,
        bytes=case.bytes,
        gpus=case.gpus,
        cluster=case.cluster.name,
        level=level,
        time_s=option.time_s,
        algbw_bytes_per_s=case.bytes / option.time_s,
        busbw_bytes_per_s=case.bytes / option.time_s * float(bus_factor(case.op, case.groups.size)[0]),
        bound_by=bound_by,
        latency_s=option.latency_s,
        ideal_time_s=float(least.max()),
        model=answer.model,
        algorithm=option.name,
        formula=answer.formula
        or formula(
            case.cluster, case.groups, floor, case.op, case.bytes, in_network_reduction=case.in_network_reduction
        ),
        levels=rows,
        stride=case.stride,
        concurrent=siblings.concurrent,
        bound_part=part,
        next_best=other.name if other else "",
        next_best_time_s=other.time_s if other else 0.0,
        channels=option.channels,
        nccl="" if answer.model in {"ideal", "deepep"} else version_text(case.tuning.nccl),
        imbalance=case.tuning.imbalance,
    )


def _bound(case: _Case, option: Option, rows: tuple[LevelEstimate, ...]) -> tuple[str, str]:
    """Say what sets the time: latency, NCCL's channels, or a level's links, switches or global links."""
    if option.latency_s > option.time_s / 2:
        return "latency", "latency"
    binding = next(row for row in rows if row.binds)
    if option.channels_s > binding.time_s:
        return "channels", "channels"
    level = case.cluster.levels[case.cluster.level_index(binding.name)]
    if level.global_bytes_per_s:
        return binding.name, "global links"
    switched = level.total_bytes_per_s < level.gpus * level.link_bytes_per_s
    return binding.name, "switches" if switched else "links"


def _level_rows(case: _Case, times_s: FloatArray, ideal_times_s: FloatArray) -> tuple[LevelEstimate, ...]:
    return tuple(
        LevelEstimate(
            name=one.name,
            fabric=one.fabric,
            gpus=one.gpus,
            members=int(case.groups.members[index, 0]),
            egress_bytes_per_s=one.egress_bytes_per_s,
            time_s=float(times_s[index]),
            ideal_time_s=float(ideal_times_s[index]),
            binds=index == int(times_s.argmax()),
        )
        for index, one in enumerate(case.cluster.levels)
    )
