"""Time of collectives: arrays of groups for the step-time model, one group in full for people."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.collectives import ideal as ideal_model
from gpuscale.collectives import realistic
from gpuscale.collectives.calibrated import Batch, Models, calibrated_time_s
from gpuscale.collectives.choice import Option, choose
from gpuscale.collectives.concurrency import shared_by
from gpuscale.collectives.groups import Floats, Groups, place
from gpuscale.collectives.kinds import kinds, spread
from gpuscale.collectives.network import network
from gpuscale.collectives.operations import OPERATIONS, bus_factor, operation_named
from gpuscale.collectives.realistic import routes
from gpuscale.collectives.terms import BLOCK, Block, Ints, Slowest, fastest_s
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec, LevelSpec
from gpuscale.units import MAX_BYTES


@dataclass(frozen=True, slots=True)
class LevelEstimate:
    """One level of the cluster in the estimate of one collective.

    Attributes:
        gpus: GPUs under one instance of the level.
        members: GPUs of the group in one instance.
        egress_bytes_per_s: per GPU and direction, at wire rate [bytes/s].
        time_s: time of the bytes that cross the level under the chosen algorithm, without latency; 0 when none do.
        ideal_time_s: the same at wire rate by the ideal model.
        binds: whether this level sets the time of the bytes.
    """

    name: str
    fabric: str
    gpus: int
    members: int
    egress_bytes_per_s: float
    time_s: float
    ideal_time_s: float
    binds: bool


@dataclass(frozen=True, slots=True)
class CollectiveEstimate:
    """The price of one collective.

    Attributes:
        bytes: the whole tensor (gathered, pre-scatter); for alltoall the send buffer of one GPU.
        stride: GPUs from one member of the group to the next.
        concurrent: groups that run at once; None for all that fit.
        level: the level asked about, or the innermost that holds all GPUs.
        algbw_bytes_per_s: bytes / time.
        busbw_bytes_per_s: algbw times nccl-tests' factor.
        bound_by: name of the binding level, or `latency`.
        bound_part: what of that level binds: `links` or `switches`; or `latency`.
        latency_s: part of the time that does not depend on the bytes.
        ideal_time_s: the latency-free model's time of the same collective.
        model: `ideal`, `nccl`, or `calibrated` where the cluster file has measurements of the level.
        algorithm: `ring LL128`, `NVLS Simple`, ... ; `bytes / bandwidth` for the ideal model.
        next_best: the fastest other algorithm and protocol, empty where there is none.
        next_best_time_s: its time; 0 where there is none.
    """

    op: str
    bytes: int
    gpus: int
    cluster: str
    level: str
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    bound_by: str
    latency_s: float
    ideal_time_s: float
    model: str
    algorithm: str
    formula: str
    levels: tuple[LevelEstimate, ...]
    stride: int = 1
    concurrent: int | None = None
    bound_part: str = "latency"
    next_best: str = ""
    next_best_time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Siblings:
    """How the groups of a kind lie among each other.

    Attributes:
        stride: GPUs from one member of a group to the next; None for 1, for sendrecv for a unit of the level.
        concurrent: groups that run at once, 1 for a group alone; None for all that fit, as in a training step.
    """

    stride: int | None = None
    concurrent: int | None = None


def collective_time_s(
    cluster: ClusterSpec,
    operation: str,
    bytes_: ArrayLike,
    group_size: ArrayLike,
    stride: ArrayLike = 1,
    *,
    in_network_reduction: bool = True,
    ideal: bool = False,
) -> Floats:
    """Return the time of one collective per group [s]; the arguments broadcast, a group of one takes 0 s.

    Args:
        cluster: the hierarchy of levels.
        operation: one of `operations.OPERATIONS`.
        bytes_: whole tensor of each group (gathered, pre-scatter); for alltoall the send buffer of one GPU.
        group_size: GPUs per group; 2 for sendrecv.
        stride: GPUs from one member to the next; for sendrecv the distance of the two.
        in_network_reduction: use NVLS / SHARP at the levels that have it.
        ideal: the latency-free model of `ideal` instead of the NCCL-like one of `realistic`.

    Returns:
        Seconds, in the broadcast shape of `bytes_`, `group_size` and `stride`.

    Raises:
        InputError: unknown operation, a size or stride below 1, a group that reaches beyond the cluster.
    """
    if operation not in OPERATIONS:
        operation = operation_named(operation)
    data, size, step = np.broadcast_arrays(bytes_, group_size, stride)
    flat, strides = data.astype(np.float64).ravel(), step.ravel()
    found = kinds(size.ravel(), strides)
    groups = place(cluster, found.size, found.stride)
    if not (groups.size > 1).any() or not (flat > 0).any():
        return np.zeros(data.shape)
    best = _model_s(cluster, operation, flat, groups, found.of, in_network_reduction=in_network_reduction, ideal=ideal)
    if cluster.calibration and not ideal:
        models = Models(partial(_model_s, in_network_reduction=in_network_reduction), _model_s)
        best = calibrated_time_s(cluster, operation, Batch(flat, spread(groups, found.of), strides, best), models)
    moves = (groups.size > 1)[found.of] & (flat > 0)
    return np.where(moves, best, 0.0).reshape(data.shape)


def _model_s(
    cluster: ClusterSpec,
    operation: str,
    data: Floats,
    groups: Groups,
    of: Ints | slice = slice(None),
    *,
    in_network_reduction: bool = True,
    ideal: bool = False,
) -> Floats:
    """Return what the models say without measurements, (N,) [s], for G kinds of groups and the kind of each of N."""
    floor = Slowest(ideal_model.level_terms(cluster, operation, groups, in_network_reduction=in_network_reduction))
    able = [] if ideal else routes(network(cluster, groups, in_network_reduction=in_network_reduction), operation)
    found = np.empty(data.size)
    for start in range(0, data.size, BLOCK):
        here = slice(start, start + BLOCK)
        block = Block(data[here], here if isinstance(of, slice) else of[here])
        found[here] = block.once(floor)
        if able:
            np.maximum(found[here], fastest_s(able, block), out=found[here])
    return found


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
) -> CollectiveEstimate:
    """Price one collective and say which level binds.

    Args:
        cluster: the hierarchy of levels.
        operation: any spelling of one of `operations.OPERATIONS`.
        bytes_: the whole tensor; for alltoall the send buffer of one GPU.
        level: name of a level; default the innermost that holds `gpus`, or the top one.
        gpus: GPUs of the group, default all under the level; for sendrecv two, in neighbouring units of the level.
        in_network_reduction: use NVLS / SHARP where the cluster has it.
        ideal: the latency-free model.
        siblings: stride of the group, and how many of its kind run at once.
        forced: one of `choice.ALGORITHMS` and one of `choice.PROTOCOLS`; None: the fastest, as NCCL chooses.

    Raises:
        InputError: unknown operation or level, sizes out of range, more GPUs than the level holds, fewer than 2, an
            algorithm or protocol that cannot run there.
    """
    op = operation_named(operation)
    if not 1 <= bytes_ <= MAX_BYTES:
        raise InputError(f"{bytes_} bytes is out of range", place="--bytes", hint="sizes go from 1 byte to 2^60 bytes")
    cluster, chosen, (count, stride) = _arranged(cluster, op, level, gpus, siblings or Siblings())
    groups = place(cluster, [count], [stride])
    data = np.array([float(bytes_)])
    ideal_levels = ideal_model.level_times_s(cluster, op, data, groups, in_network_reduction=in_network_reduction)[:, 0]
    floor_s = float(ideal_levels.max())
    option, other, level_times = Option("bytes / bandwidth", "", 0.0, floor_s), None, ideal_levels
    if not ideal:
        net = network(cluster, groups, in_network_reduction=in_network_reduction)
        option, other = choose(net, op, float(bytes_), *forced)
        level_times = realistic.level_times_s(net, op, data, option.algorithm)[:, 0]
    elif any(forced):
        raise InputError("the ideal model has no algorithms", place="--ideal", hint="leave out --algo and --proto")
    latency_s, time_s = option.latency_s, max(option.time_s, floor_s)
    measured = not ideal and not any(forced) and _has_calibration(cluster, op, count, stride)
    if measured:
        found_s = collective_time_s(
            cluster, op, [1.0, float(bytes_)], count, stride, in_network_reduction=in_network_reduction
        )
        level_times = level_times * (float(found_s[1]) / time_s)
        latency_s, time_s = float(found_s[0]), float(found_s[1])
    level_rows = _level_rows(cluster, groups, level_times, ideal_levels)
    bound_by = "latency" if latency_s > time_s / 2 else next(row.name for row in level_rows if row.binds)
    return CollectiveEstimate(
        op=op,
        bytes=bytes_,
        gpus=count,
        cluster=cluster.name,
        level=chosen.name,
        time_s=time_s,
        algbw_bytes_per_s=bytes_ / time_s,
        busbw_bytes_per_s=bytes_ / time_s * float(bus_factor(op, groups.size)[0]),
        bound_by=bound_by,
        latency_s=latency_s,
        ideal_time_s=floor_s,
        model="ideal" if ideal else "calibrated" if measured else "nccl",
        algorithm=option.name.strip(),
        formula=_formula(_binding(cluster, groups, ideal_levels), op, bytes_, in_network_reduction),
        levels=level_rows,
        stride=stride,
        concurrent=siblings.concurrent if siblings else None,
        bound_part=_bound_part(cluster, bound_by),
        next_best=other.name if other else "",
        next_best_time_s=max(other.time_s, floor_s) if other else 0.0,
    )


def _has_calibration(cluster: ClusterSpec, op: str, gpus: int, stride: int) -> bool:
    level = cluster.level_of_group(gpus, stride).name
    return any(one.operation == op and one.level == level for one in cluster.calibration)


def _bound_part(cluster: ClusterSpec, bound_by: str) -> str:
    """Say what of the binding level is the bottleneck: the GPUs' own links or the switches."""
    if bound_by == "latency":
        return bound_by
    level = cluster.levels[cluster.level_index(bound_by)]
    return "switches" if level.total_bytes_per_s < level.gpus * level.link_bytes_per_s else "links"


def _arranged(
    cluster: ClusterSpec, op: str, level: str | None, gpus: int | None, siblings: Siblings
) -> tuple[ClusterSpec, LevelSpec, tuple[int, int]]:
    """Return the cluster as the groups share it, the level that is meant, and size and stride of the group."""
    if siblings.stride is not None and not 1 <= siblings.stride <= cluster.gpus:
        raise InputError(
            f"{siblings.stride} is out of range", place="--group-stride", hint=f"give 1 to {cluster.gpus:,}"
        )
    if op == "sendrecv":
        chosen, count = _pair(cluster, level, gpus)
        stride = siblings.stride or _unit_below(cluster, chosen)
        if siblings.stride is not None and level is None:
            chosen = cluster.level_of_group(count, stride)
    else:
        stride = siblings.stride or 1
        chosen, count = _scope(cluster, level, gpus, stride)
    if siblings.concurrent is None:
        return cluster, chosen, (count, stride)
    return shared_by(cluster, count, stride, siblings.concurrent), chosen, (count, stride)


def _scope(cluster: ClusterSpec, level: str | None, gpus: int | None, stride: int = 1) -> tuple[LevelSpec, int]:
    """Return the level and the number of GPUs that the user means."""
    if level is not None:
        chosen = cluster.levels[cluster.level_index(level)]
    elif gpus is None:
        chosen = cluster.levels[-1]
    else:
        chosen = cluster.level_of_group(gpus, stride)
    count = chosen.gpus // stride if gpus is None else gpus
    if count < 2:
        raise InputError(f"{count} GPUs exchange nothing", place="--gpus", hint="give at least 2")
    if (count - 1) * stride + 1 > chosen.gpus:
        wider = next((one.name for one in cluster.levels if one.gpus // stride >= count), None)
        hint = f"`--level {wider}` holds them" if wider else f"{cluster.name} has {cluster.gpus:,} in all"
        apart = f", {stride:,} apart," if stride > 1 else ""
        raise InputError(
            f"{count:,} GPUs{apart} do not fit under one {chosen.name} of {cluster.name}, which has {chosen.gpus:,}",
            place="--gpus",
            hint=hint,
        )
    return chosen, count


def _pair(cluster: ClusterSpec, level: str | None, gpus: int | None) -> tuple[LevelSpec, int]:
    """Return the level that the two GPUs of a send and receive are apart."""
    if gpus not in {None, 2}:
        raise InputError(
            f"sendrecv joins 2 GPUs, not {gpus}", place="--gpus", hint="say how far apart they are with --level"
        )
    return _scope(cluster, level, 2)


def _unit_below(cluster: ClusterSpec, level: LevelSpec) -> int:
    index = cluster.levels.index(level)
    return cluster.levels[index - 1].gpus if index else 1


def _level_rows(
    cluster: ClusterSpec, groups: Groups, times_s: Floats, ideal_times_s: Floats
) -> tuple[LevelEstimate, ...]:
    return tuple(
        LevelEstimate(
            name=one.name,
            fabric=one.fabric,
            gpus=one.gpus,
            members=int(groups.members[index, 0]),
            egress_bytes_per_s=one.egress_bytes_per_s,
            time_s=float(times_s[index]),
            ideal_time_s=float(ideal_times_s[index]),
            binds=index == int(times_s.argmax()),
        )
        for index, one in enumerate(cluster.levels)
    )


@dataclass(frozen=True, slots=True)
class _Binding:
    """The level that binds in the ideal model, with the numbers of its formula."""

    adds: bool
    size: int
    inner: int
    gb_per_s: float


def _binding(cluster: ClusterSpec, groups: Groups, level_times: Floats) -> _Binding:
    index = int(level_times.argmax())
    inner = int(groups.inner[index, 0])
    per_gpu = float(groups.wire_bytes_per_s[index, 0]) / inner / 1e9
    return _Binding(cluster.levels[index].in_network_reduction, int(groups.size[0]), inner, per_gpu)


def _formula(level: _Binding, op: str, bytes_: int, in_network_reduction: bool) -> str:
    """Write the ideal model's term of the binding level with its numbers put in."""
    rate = f"{level.gb_per_s:.4g} GB/s"
    shared = f"({rate} x {level.inner})" if level.inner > 1 else rate
    data, share = f"{bytes_:,} B", f"(1 - {level.inner}/{level.size})"
    if op == "sendrecv":
        return f"bytes / egress = {data} / {rate}"
    if op == "alltoall":
        return f"bytes x (1 - m/n) / egress = {data} x {share} / {rate}"
    if op in {"broadcast", "reduce"} or (op == "allreduce" and level.adds and in_network_reduction):
        return f"bytes / (egress x m) = {data} / {shared}"
    twice = "2 x " if op == "allreduce" else ""
    return f"{twice}bytes x (1 - m/n) / (egress x m) = {twice}{data} x {share} / {shared}"
