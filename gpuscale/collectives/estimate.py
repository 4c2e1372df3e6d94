"""One collective in full, for people: its time, what limits it, and which algorithm runs it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuscale.arguments import public
from gpuscale.arrays import FloatArray
from gpuscale.collectives import alltoall, nccl
from gpuscale.collectives import ideal as textbook
from gpuscale.collectives import nccl_constants as c
from gpuscale.collectives.channels import channels_of, check_channels
from gpuscale.collectives.groups import place, shared_by
from gpuscale.collectives.network import Network, network_of
from gpuscale.collectives.times import collective_time_s
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.tables import made
from gpuscale.specs.cluster import IBVERBS, SCALE_UP, ClusterSpec, LevelSpec
from gpuscale.units import KIB, MAX_BYTES, MIB, parse_bytes, plural

SMALL_BYTES, LARGE_BYTES = 64 * KIB, 64 * MIB
"""Ends of the classes of sizes: below the first latency decides, from the second on bandwidth."""

MESSAGES = frozenset({"alltoall", "sendrecv"})
"""Operations of grouped sends; the others run on rings, trees and switches."""

HALF_WIDTHS = {
    ("links", False): (0.10, 0.13, 0.07), ("links", True): (0.15, 0.13, 0.09),
    ("xgmi", False): (0.64, 0.37, 0.06), ("xgmi", True): (0.64, 0.37, 0.09),
    ("pcie", False): (0.12, 0.24, 0.31), ("pcie", True): (0.25, 0.24, 0.21),
    ("verbs", False): (1.20, 0.42, 0.12), ("verbs", True): (0.20, 0.20, 0.12),
    ("plugin", False): (0.18, 0.28, 0.13), ("plugin", True): (0.18, 0.28, 0.16),
}  # fmt: skip
"""(way over the outermost level crossed, whether grouped sends) -> half width of the 80 % interval below `SMALL_BYTES`,
between, and from `LARGE_BYTES` on: 80 % quantiles of |log(measured / predicted)| over the published results that
docs/collectives.md counts (`benchmarks/compare_collectives.py --intervals`); where fewer than eight, or those of one
source, were measured, at least as for the other kind or the next size."""

CALIBRATED = 0.06
"""The same where the cluster's own curves count: at sizes held out (docs/collectives.md, "Your measurements")."""


def way_of(level: LevelSpec) -> str:
    """Return what a group goes over: `links` of a switched or NVLink domain, `xgmi`, `pcie`, `verbs`, `plugin`."""
    if level.fabric in {"pcie", "xgmi"}:
        return level.fabric
    if level.fabric in SCALE_UP:
        return "links"
    return "verbs" if level.fabric in IBVERBS else "plugin"


def interval(time_s: float, level: LevelSpec, operation: str, size: float, *, calibrated: bool) -> tuple[float, float]:
    """Return both ends of the 80 % interval of a predicted time over `level` [s]."""
    widths = HALF_WIDTHS[way_of(level), operation in MESSAGES]
    width = CALIBRATED if calibrated else widths[(size >= SMALL_BYTES) + (size >= LARGE_BYTES)]
    return time_s * math.exp(-width), time_s * math.exp(width)


ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "nvls": "NVLS",
    "nvls-tree": "NVLS tree",
    "collnet": "SHARP",
    "pat": "PAT",
    "pairwise": "point-to-point",
    "hierarchical": "hierarchical",
    "deepep": "DeepEP",
}
"""What `NCCL_ALGO` calls it (pairwise: grouped sends and receives) -> algorithm of the model; the last two are none of
NCCL's and never chosen by themselves: `gpuscale.collectives.alltoall`."""

SINCE = {"nvls": c.NVLS_SINCE, "nvls-tree": c.NVLS_TREE_SINCE, "pat": c.PAT_SINCE}
"""The version of NCCL that brought an algorithm."""

_NEXT_TO_NOTHING = 1e-6
"""A millionth of a byte: what it takes is latency alone."""


@dataclass(frozen=True)
class LevelEstimate:
    """One level of the cluster in the estimate of one collective."""

    name: str  #: `node`, `leaf`, `spine`, ...
    fabric: str  #: what carries the traffic: nvlink, xgmi, ici, pcie, infiniband, roce, efa, eni, slingshot, ethernet.
    gpus: int  #: GPUs under one instance of the level.
    members: int  #: GPUs of the group in one instance.
    egress_bytes_per_s: float  #: per GPU and direction, at wire rate [bytes/s].
    #: time of the bytes that cross the level under the chosen algorithm, without latency; 0 when none do [s].
    time_s: float
    ideal_time_s: float  #: the same at wire rate by the ideal model [s].
    binds: bool  #: whether this level sets the time of the bytes.


@displayed
@dataclass(frozen=True)
class CollectiveEstimate:
    """Time of one collective, and where it goes."""

    op: str  #: one of `OPERATIONS`.
    bytes: int  #: the whole tensor (gathered, pre-scatter); for alltoall the send buffer of one GPU.
    gpus: int  #: GPUs of the group.
    level: str  #: the level asked about, or the innermost that holds all GPUs.
    time_s: float  #: time of the collective [s].
    algbw_bytes_per_s: float  #: bytes / time [bytes/s].
    busbw_bytes_per_s: float  #: algbw times nccl-tests' factor [bytes/s].
    bound_by: str  #: name of the level that limits it, `latency`, or `channels`.
    levels: tuple[LevelEstimate, ...]  #: what each level takes, innermost first.
    cluster: str  #: name of the cluster.
    model: str  #: `ideal`, `nccl`, `deepep`, or `calibrated` where the cluster file has measurements of the level.
    algorithm: str  #: `ring LL128`, `NVLS Simple`, ... ; `bytes / bandwidth` for the ideal model.
    latency_s: float  #: part of the time that does not depend on the bytes [s].
    ideal_time_s: float  #: the latency-free model's time of the same collective [s].
    formula: str  #: the ideal model's term of the slowest level, written out with its numbers.
    #: what of that level limits it: `links`, `switches` or `global links` of a dragonfly; or `latency`, or `channels`.
    bound_part: str = "latency"
    stride: int = 1  #: GPUs from one member of the group to the next.
    concurrent: int | None = None  #: groups that run at once; None for all that fit.
    next_best: str = ""  #: the fastest other algorithm and protocol, empty where there is none.
    next_best_time_s: float = 0.0  #: its time, where calibrated by the same factor; 0 where there is none [s].
    #: CTAs that NCCL takes for the chosen algorithm, SMs of DeepEP; 0 where the model does not know, and when ideal.
    channels: int = 0
    nccl: str = ""  #: version of NCCL that chose, empty for the ideal model and DeepEP.
    imbalance: float = 1.0  #: bytes of the busiest GPU of an AllToAll over the mean.
    #: lower end of the 80 % interval, by how far published measurements are off; 0 when ideal [s].
    time_low_s: float = 0.0
    time_high_s: float = 0.0  #: its upper end [s].


class Siblings(NamedTuple):
    """How the groups of a kind lie among each other."""

    #: GPUs from one member of a group to the next; None for 1, for sendrecv for a unit of the level.
    stride: int | None = None
    #: groups that run at once, 1 for a group alone; None for all that fit, as in a training step.
    concurrent: int | None = None

    def reach(self, gpus: int) -> int:
        """Return how many GPUs in a row hold such groups of so many members."""
        return max((gpus - 1) * (self.stride or 1) + 1, gpus * (self.concurrent or 1))


class Option(NamedTuple):
    """One way to run one collective."""

    name: str
    latency_s: float  #: part of the time that does not depend on the bytes [s].
    time_s: float  #: all of it [s].
    channels: int = 0  #: CTAs that it takes; 0 where the model does not know.
    channels_s: float = 0.0  #: what these channels alone need for the bytes; 0 where they are no limit [s].


class _Case(NamedTuple):
    """One collective of one group on its cluster, as the groups share it; (L,) ideal times of the levels."""

    net: Network
    op: str
    bytes: int
    gpus: int
    level: str
    stride: int
    concurrent: int | None
    tuning: c.Tuning
    ideal_s: FloatArray


@public
def price_collective(  # noqa: PLR0913 - what a user can say of a collective
    cluster: ClusterSpec | str | Path,
    operation: str,
    bytes_: int,
    *,
    level: str | None = None,
    gpus: int | None = None,
    ideal: bool = False,
    siblings: Siblings | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    tuning: c.Tuning = c.AUTOMATIC,
    experts_per_token: int | None = None,
    nodes_per_token: int | None = None,
) -> CollectiveEstimate:
    """Estimate the time of one collective and say what limits it.

    Args:
        cluster: a preset's name, a file, or what `load_cluster` made of one.
        operation: any spelling of one of `OPERATIONS`.
        bytes_: the whole tensor; for alltoall the send buffer of one GPU.
        level: name of a level; default the innermost that holds `gpus`, or the top one.
        gpus: GPUs of the group, default all under the level; for sendrecv two, in neighbouring units of the level, and
            otherwise as many as send to the next one.
        ideal: the latency-free model.
        siblings: stride of the group, and how many of its kind run at once.
        algorithm: one of `ALGORITHMS`; None: the fastest, as NCCL chooses.
        protocol: `ll`, `ll128` or `simple`; None likewise.
        tuning: NCCL's version and channels, how it is launched, and how uneven an AllToAll is.
        experts_per_token: for `deepep`: copies of a token that a plain AllToAll would send; default 8.
        nodes_per_token: for `deepep`: nodes among which the experts of a token lie (DeepSeek-V3: 4); default any.

    Raises:
        InputError: unknown operation or level, sizes out of range, more GPUs than the level holds, fewer than 2, an
            algorithm, protocol or version that cannot run there.
    """
    cluster, op, siblings = load_cluster(cluster), textbook.operation_named(operation), siblings or Siblings()
    if not 1 <= bytes_ <= MAX_BYTES:
        raise InputError(f"{bytes_} bytes is out of range", field="bytes", hint="sizes go from 1 byte to 2^60 bytes")
    algorithm = _known("algorithm", algorithm, ALGORITHMS)
    if algorithm == "collnet" and cluster.sharp is None:
        cluster = replace(cluster, sharp=True)
    chosen, count, stride = _located(cluster, op, level, gpus, siblings)
    if siblings.concurrent is not None:
        cluster = shared_by(cluster, count, stride, siblings.concurrent)
    groups, data = place(cluster, [count], [stride]), np.array([float(bytes_)])
    levels_s = textbook.level_times_s(cluster, op, data, groups, imbalance=tuning.imbalance)
    net = network_of(cluster, groups, tuning=tuning)
    case = _Case(net, op, bytes_, count, chosen.name, stride, siblings.concurrent, tuning, levels_s[:, 0])
    protocol = _known("protocol", protocol, [name.lower() for name in c.PROTOCOLS])
    _refuse(case, algorithm, protocol, experts_per_token, nodes_per_token, ideal=ideal)
    check_channels(cluster, tuning)
    if ideal:
        return _estimate(case, "ideal", Option("bytes / bandwidth", 0.0, float(case.ideal_s.max())), None, case.ideal_s)
    if algorithm == "deepep":
        return _deepep(case, experts_per_token, nodes_per_token)
    return _hierarchical(case) if algorithm == "hierarchical" else _by_nccl(case, algorithm, protocol)


def sweep_sizes(text: str, factor: int) -> list[int]:
    """Return the sizes of `8B..8GB` as nccl-tests counts them: 8G and 8GB are 2^33. Each is `factor` times the last.

    Raises:
        InputError: no such range, a size or factor out of range, or the last size below the first.
    """
    first, dots, last = text.partition("..")
    if not dots:
        raise InputError(f"{text[:40]!r} is not a range of sizes", field="sweep", hint="write 8B..8GB or ..8GB")
    if not 2 <= factor <= 2**20:
        raise InputError(f"{factor} is out of range", field="factor", hint="give 2 to 1048576")
    binary = [re.sub(r"(?i)([kmgt])b?$", r"\1iB", one.strip()[:64]) for one in (first or "8", last)]
    low, high = (parse_bytes(one, "sweep") for one in binary)
    if low > high:
        raise InputError(f"{text[:40]!r} runs backwards", field="sweep", hint="give the smaller size first")
    sizes = [low]
    while sizes[-1] * factor <= high:  # at most 61: sizes go to 2^60
        sizes.append(sizes[-1] * factor)
    return sizes


def _located(
    cluster: ClusterSpec, op: str, level: str | None, gpus: int | None, siblings: Siblings
) -> tuple[LevelSpec, int, int]:
    """Level, size of the group, and its stride."""
    if siblings.stride is not None and not 1 <= siblings.stride <= cluster.gpus:
        raise InputError(f"{siblings.stride} is out of range", field="stride", hint=f"give 1 to {cluster.gpus:,}")
    stride = siblings.stride or 1
    pair = op == "sendrecv" and gpus in {None, 2}
    if pair:
        gpus = 2
    if level is not None:
        chosen = cluster.levels[cluster.level_index(level)]
    else:
        chosen = cluster.levels[-1] if gpus is None else cluster.level_of_group(gpus, stride)
    if pair and siblings.stride is None:
        index = cluster.levels.index(chosen)
        stride = cluster.levels[index - 1].gpus if index else 1  # neighbouring units of the level
    count = chosen.gpus // stride if gpus is None else gpus
    if count < 2:
        message = f"{plural(count, 'GPU')} exchange{'s' * (count == 1)} nothing"
        raise InputError(message, field="gpus", hint="give at least 2")
    reach = 2 if pair else (count - 1) * stride + 1
    if reach > chosen.gpus:
        wider = next((one.name for one in cluster.levels if one.gpus // stride >= count), None)
        apart = f", {stride:,} apart," if stride > 1 else ""
        what = f"do not fit under one {chosen.name} of {cluster.name}, which has {chosen.gpus:,}"
        hint = f"`level={wider}` holds them" if wider else f"{cluster.name} has {cluster.gpus:,} in all"
        raise InputError(f"{count:,} GPUs{apart} {what}", field="gpus", hint=hint)
    return chosen, count, stride


def options(net: Network, operation: str, data: float) -> list[Option]:
    """Return the ways to run one collective of `data` bytes over one group, fastest first; those that NCCL would not
    choose come last."""
    able = [one for one in nccl.timings(net, operation, np.array([data])) if np.isfinite(one.time_s[0])]
    able.sort(key=lambda one: (one.chosen is not None and not one.chosen[0], float(one.time_s[0])))
    return [
        Option(
            name=f"{one.algorithm} {one.protocol}",
            latency_s=float(one.latency_s[0]),
            time_s=float(one.time_s[0]),
            channels=channels_of(net, one.algorithm, data if operation == "sendrecv" else None),
            channels_s=0.0 if one.channels_s is None else float(one.channels_s[0]),
        )
        for one in able
    ]


def _choose(case: _Case, algorithm: str | None, protocol: str | None) -> tuple[Option, Option | None]:
    """Return what runs, of that algorithm and protocol, and the fastest of the others, if there are any."""
    able = options(case.net, case.op, float(case.bytes))
    for option in able:
        name, _, spoken = option.name.rpartition(" ")
        if algorithm in {None, *(key for key, value in ALGORITHMS.items() if value == name)} and (
            protocol in {None, spoken.lower()}
        ):
            return option, next((other for other in able if other is not option), None)
    message, since = _cannot_run(case, algorithm, protocol, int(case.net.nodes[0])), SINCE.get(algorithm or "")
    if since and case.tuning.nccl < since:
        message = f"{algorithm} came with NCCL {c.version_text(since)}, this is {c.version_text(case.tuning.nccl)}"
    hint = f"possible are {', '.join(option.name for option in able)}"
    raise InputError(message, field="algorithm" if algorithm else "protocol", hint=hint)


def _cannot_run(case: _Case, algorithm: str | None, protocol: str | None, nodes: int) -> str:
    spoken = next((name for name in c.PROTOCOLS if name.lower() == protocol), None)
    asked = " with ".join(part for part in (algorithm, spoken) if part)
    where = f"{nodes:,} nodes" if nodes > 1 else "one node"
    return f"{asked} cannot run {case.op} over {case.gpus:,} GPUs in {where}"


def _refuse(
    case: _Case, algorithm: str | None, protocol: str | None, experts: int | None, nodes: int | None, *, ideal: bool
) -> None:
    imbalance, units = case.tuning.imbalance, int(alltoall.units(case.net.cluster, case.gpus, case.stride)[1])
    if ideal and (algorithm or protocol or c.Tuning(imbalance=imbalance) != case.tuning):
        hint = "leave out `algorithm`, `protocol`, `channels`, `nccl` and `launch`"
        raise InputError("the ideal model has no algorithms, channels or launches", field="ideal", hint=hint)
    if imbalance != 1 and case.op != "alltoall":
        raise InputError(f"{case.op} moves the same from every GPU", field="imbalance", hint="it is for alltoall")
    if imbalance > case.gpus:
        message = f"one of {case.gpus:,} GPUs cannot have {imbalance:g} times the mean"
        raise InputError(message, field="imbalance", hint=f"give 1 to {case.gpus:,}")
    for field, value in (("experts_per_token", experts), ("nodes_per_token", nodes)):
        if value is not None and not 1 <= value <= alltoall.MOST_EXPERTS:
            raise InputError(f"{value} is out of range", field=field, hint=f"give 1 to {alltoall.MOST_EXPERTS:,}")
        if value is not None and algorithm != "deepep":
            message = "only an exchange token by token knows of experts"
            raise InputError(message, field=field, hint="add `algorithm=deepep`")
    if algorithm == "deepep" and units > 1 and not alltoall.writes_remotely(case.net.cluster):
        message = f"deepep writes into the memory of other nodes, which no network of {case.net.cluster.name} can"
        raise InputError(message, field="algorithm", hint="leave it out, or stay in one node")
    only = algorithm in {"hierarchical", "deepep"}
    if only and (case.op != "alltoall" or protocol or (algorithm == "hierarchical" and units == 1)):
        hint = "it is a way to do alltoall across nodes, with no protocol of NCCL"
        raise InputError(_cannot_run(case, algorithm, protocol, units), field="algorithm", hint=hint)


def _known(field: str, text: str | None, names: Collection[str]) -> str | None:
    if text is None or text.lower() in names:
        return text.lower() if text else None
    raise InputError(f"unknown name {text[:40]!r}", field=field, hint=f"there are {', '.join(names)}")


def _by_nccl(case: _Case, algorithm: str | None, protocol: str | None) -> CollectiveEstimate:
    """NCCL's choice, or the one asked for; as measured where the cluster file has measurements."""
    cluster, least_s = case.net.cluster, float(case.ideal_s.max())
    chosen, other = _choose(case, algorithm, protocol)
    name = chosen.name.rpartition(" ")[0]
    levels_s = nccl.level_times_s(case.net, case.op, np.array([float(case.bytes)]), name)[:, 0]
    chosen = chosen._replace(time_s=max(chosen.time_s, least_s))
    other = other and other._replace(time_s=max(other.time_s, least_s))
    level = cluster.level_of_group(case.gpus, case.stride).name
    measured = any(one.operation == case.op and one.level == level for one in cluster.calibration)
    if algorithm or protocol or not measured:
        return _estimate(case, "nccl", chosen, other, levels_s)
    sizes = [1.0, float(case.bytes)]
    latency_s, time_s = collective_time_s(cluster, case.op, sizes, case.gpus, case.stride, tuning=case.tuning).tolist()
    scale = time_s / chosen.time_s
    chosen = chosen._replace(latency_s=latency_s, time_s=time_s, channels_s=chosen.channels_s * scale)
    other = other and other._replace(time_s=other.time_s * scale)  # as far off as the one that was measured
    return _estimate(case, "calibrated", chosen, other, levels_s * scale)


def _hierarchical(case: _Case) -> CollectiveEstimate:
    both = np.array([float(case.bytes), _NEXT_TO_NOTHING])
    phases = alltoall.hierarchical_s(case.net.cluster, both, case.gpus, case.stride, tuning=case.tuning)
    time_s, latency_s = (phases.inside_s + phases.across_s).tolist()
    least_s = float(case.ideal_s.max())  # a GPU that is alone in its node sends more than its two phases say
    chosen = Option("hierarchical", latency_s, max(time_s, least_s), channels_of(case.net, "point-to-point"))
    return _estimate(case, "nccl", chosen, _choose(case, None, None)[0], _by_level(case, phases))


def _deepep(case: _Case, experts_per_token: int | None, nodes_per_token: int | None) -> CollectiveEstimate:
    cluster, sms = case.net.cluster, case.tuning.channels
    inside, nodes = alltoall.units(cluster, case.gpus, case.stride)
    experts = alltoall.EXPERTS_PER_TOKEN if experts_per_token is None else experts_per_token
    routing = alltoall.Routing(experts)
    if nodes_per_token is not None:
        routing = alltoall.Routing(experts, int(nodes), min(nodes_per_token, int(nodes)))
    copies = np.array([case.bytes * case.tuning.imbalance / experts, _NEXT_TO_NOTHING])
    phases = alltoall.deduplicated_s(cluster, copies, case.gpus, case.stride, routing, sms=sms)
    ideal = alltoall.deduplicated_s(cluster, copies, case.gpus, case.stride, routing, ideal=True)
    time_s, latency_s = np.maximum(phases.inside_s, phases.across_s).tolist()
    chosen, other = Option("DeepEP", latency_s, time_s, sms or 0), _choose(case, None, None)[0]

    groups, across = case.net.groups, bool(ideal.across_s[0] >= ideal.inside_s[0])
    units, joined = (int(nodes), nodes) if across else (int(inside), np.asarray(case.gpus))
    targets = float(alltoall.distinct_targets(joined, routing)[0])
    index = int(np.flatnonzero(groups.crossed[:, 0])[-1]) if across else 0
    egress = float(groups.wire_bytes_per_s[index, 0] / groups.inner[index, 0])
    formula = (
        f"bytes / topk x targets x (1 - 1/k) / egress = {round(case.bytes * case.tuning.imbalance):,} B / {experts} "
        f"x {targets:.3g} x (1 - 1/{units}) / {egress / 1e9:.4g} GB/s"
    )
    return _estimate(case, "deepep", chosen, other, _by_level(case, phases), _by_level(case, ideal), formula)


def _by_level(case: _Case, phases: alltoall.Phases) -> FloatArray:
    """Return what the bytes take at the node and the outermost level, (L,) [s]; phases: of all bytes, of none."""
    crossed = case.net.groups.crossed[:, 0]
    found, outermost = np.zeros(crossed.size), np.flatnonzero(crossed)[-1]
    found[0] = phases.inside_s[0] - phases.inside_s[1]
    if outermost > 0:
        found[outermost] = phases.across_s[0] - phases.across_s[1]
    return found


def _formula(case: _Case) -> str:
    """The ideal model's term of the slowest level with its numbers."""
    groups, index = case.net.groups, int(case.ideal_s.argmax())
    inner, wire = int(groups.inner[index, 0]), float(groups.wire_bytes_per_s[index, 0])
    rate = f"{wire / inner / 1e9:.4g} GB/s"
    shared = f"({rate} x {inner})" if inner > 1 else rate
    data, share = f"{case.bytes:,} B", f"(1 - {inner}/{case.gpus})"
    if case.op == "sendrecv":
        return f"bytes / egress = {data} / {rate}"
    if case.op == "alltoall":
        exchange = groups.exchange_s_per_byte
        exchange_s = 0.0 if exchange is None else float(exchange[index, 0])
        busy = float(np.broadcast_to(case.net.busiest, groups.inner.shape)[index, 0])
        name, times = (" x busiest / mean", f" x {busy:.4g}") if round(busy, 6) != 1 else ("", "")
        if exchange_s:
            return f"bytes{name} / exchange = {data}{times} / {1e-9 / exchange_s:.4g} GB/s (bisection)"
        return f"bytes x (1 - m/n){name} / egress = {data} x {share}{times} / {rate}"
    adds = case.net.cluster.adding(ideal=True)[index, 0]
    if case.op in {"broadcast", "reduce"} or (case.op == "allreduce" and adds):
        return f"bytes / (egress x m) = {data} / {shared}"
    twice = "2 x " if case.op == "allreduce" else ""
    return f"{twice}bytes x (1 - m/n) / (egress x m) = {twice}{data} x {share} / {shared}"


def _limit(case: _Case, chosen: Option, binding: LevelEstimate) -> tuple[str, str]:
    if chosen.latency_s > chosen.time_s / 2:
        return "latency", "latency"
    if chosen.channels_s > binding.time_s:
        return "channels", "channels"
    level = case.net.cluster.levels[case.net.cluster.level_index(binding.name)]
    if level.global_bytes_per_s:
        return binding.name, "global links"
    switched = level.total_bytes_per_s < level.gpus * level.link_bytes_per_s
    return binding.name, "switches" if switched else "links"


def _estimate(
    case: _Case,
    model: str,
    chosen: Option,
    other: Option | None,
    levels_s: FloatArray,
    ideal_s: FloatArray | None = None,
    formula: str = "",
) -> CollectiveEstimate:
    """Put together what a model says: the choice, the next best, (L,) times of the levels; what is ideal, if not as in
    the case."""
    slowest, ideal_s = int(levels_s.argmax()), case.ideal_s if ideal_s is None else ideal_s
    rows = tuple(
        made(
            LevelEstimate,
            vars(one),
            members=int(case.net.groups.members[index, 0]),
            egress_bytes_per_s=one.egress_bytes_per_s,
            time_s=float(levels_s[index]),
            ideal_time_s=float(ideal_s[index]),
            binds=index == slowest,
        )
        for index, one in enumerate(case.net.cluster.levels)
    )
    bound_by, bound_part = _limit(case, chosen, rows[slowest])
    outer = case.net.cluster.levels[int(np.flatnonzero(case.net.groups.crossed[:, 0])[-1])]
    ends = interval(chosen.time_s, outer, case.op, case.bytes, calibrated=model == "calibrated")
    low_s, high_s = (0.0, 0.0) if model == "ideal" else (max(ends[0], float(ideal_s.max())), ends[1])
    algbw = case.bytes / chosen.time_s
    return made(
        CollectiveEstimate,
        case._asdict() | chosen._asdict(),
        cluster=case.net.cluster.name,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * float(textbook.bus_factor(case.op, case.net.groups.size)[0]),
        bound_by=bound_by,
        ideal_time_s=float(ideal_s.max()),
        model=model,
        algorithm=chosen.name,
        formula=formula or _formula(case),
        levels=rows,
        bound_part=bound_part,
        next_best=other.name if other else "",
        next_best_time_s=other.time_s if other else 0.0,
        nccl="" if model in {"ideal", "deepep"} else c.version_text(case.tuning.nccl),
        imbalance=case.tuning.imbalance,
        time_low_s=low_s,
        time_high_s=high_s,
    )
