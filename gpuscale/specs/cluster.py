"""A cluster as a hierarchy of levels: node, leaf, spine, ... each with its size and what it carries.

A level joins several units of the level below (GPUs at the first level). Bandwidths are per direction and per GPU:
`egress_bytes_per_s` is what each GPU can send across the level when all of them send at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Annotated

import numpy as np
from pydantic import Field

from gpuscale.arrays import BoolArray
from gpuscale.choices import MAX_GPUS
from gpuscale.display import displayed
from gpuscale.errors import InputError, did_you_mean
from gpuscale.specs.fields import Name, Source, Text, among, nothing_or
from gpuscale.specs.gpu import PRECISIONS, GpuSpec
from gpuscale.units import GB, GBIT, GIB, MAX_BYTES, MB, MS, US

SCALE_UP = ("nvlink", "xgmi", "ici")
INSIDE = frozenset({*SCALE_UP, "pcie"})
"""Fabrics inside a box or rack: memory semantics, microsecond hops. Everything else is a network behind NICs."""

IBVERBS = ("infiniband", "roce")
"""Networks that NCCL drives itself, through ibverbs; the others need a plugin or sockets."""

NETWORKS = (*IBVERBS, "efa", "eni", "slingshot", "ethernet")
WAN = "wan"
"""Long lines between sites: one rate for all GPUs of a site, and milliseconds each way."""

FABRICS = (*SCALE_UP, "pcie", *NETWORKS, WAN)
FABRIC_NAMES = {
    "nvlink": "NVLink", "xgmi": "xGMI", "ici": "ICI", "pcie": "PCIe", "infiniband": "InfiniBand", "roce": "RoCE",
    "efa": "EFA", "eni": "ENI", "slingshot": "Slingshot", "ethernet": "Ethernet", WAN: "WAN",
}  # fmt: skip

RAILS = ("none", "optimised", "only")
"""How network cards of one number are wired: to any leaf switch, to one leaf under a common spine, to their own
network."""

TOPOLOGIES = ("switched", "mesh", "torus", "dragonfly")
"""How the units of a level are joined: by switches, each to each, to neighbours along axes, or as groups of switches
that global links join each to each."""

OPERATIONS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv")

LEAST_TIME_US, MOST_TIME_US = 0.01, 1e9
"""Of a collective that is believed."""

MAX_CURVES, MAX_POINTS = 256, 64
"""Most measured collectives of a cluster, and most sizes of one of them."""

Gpus = Annotated[int, Field(ge=1, le=MAX_GPUS)]

LARGEST_BOX = 16
"""Most GPUs in one box (NVIDIA DGX-2); a larger NVLink domain is a rack of several."""


@dataclass(frozen=True)
class HostSpec:
    """One host (CPUs, memory, one operating system) and what its GPUs share."""

    gpus: Annotated[int, Field(ge=1, le=1024)]  #: GPUs of one host: 8 in an HGX box, 4 in a tray of an NVL72 rack.
    #: GPUs that share one link to the host's memory (two behind one PCIe switch: 2).
    gpus_per_uplink: Annotated[int, Field(ge=1, le=64)]
    memory_bytes: Annotated[float, Field(alias="memory_gib", ge=GIB, le=1e6 * GIB)]  #: DRAM of one host [bytes].
    #: peak bandwidth of that DRAM, all sockets together [bytes/s].
    memory_bytes_per_s: Annotated[float, Field(alias="memory_gb_per_s", ge=5 * GB, le=1e5 * GB)]
    #: what one such link carries, one direction, where the CPUs or a switch are slower than the GPU's own end of it; 0:
    #: as much as that [bytes/s].
    uplink_bytes_per_s: Annotated[float, Field(alias="uplink_gb_per_s", ge=0, le=1e5 * GB), nothing_or(MB / GB)] = 0.0
    #: CPU threads that the offloaded optimizer of one GPU has (OMP_NUM_THREADS); 0: as many as feed on the memory.
    threads_per_gpu: Annotated[int, Field(ge=0, le=1024)] = 0


@dataclass(frozen=True)
class LevelSpec:
    """One level of the network hierarchy."""

    name: Name  #: `node`, `leaf`, `spine`, ...
    fabric: Annotated[str, among(*FABRICS)]  #: what carries the traffic, one of `FABRICS`.
    gpus: Gpus  #: GPUs under one instance of the level.
    #: what one GPU's own links into the level carry, one direction [bytes/s].
    link_bytes_per_s: Annotated[float, Field(alias="link_gb_per_s_per_gpu_per_direction", ge=MB, le=1e5 * GB)]
    #: switches (NVSwitch chips, leaf or spine switches) of one instance; 0 for a switchless mesh.
    switches: Annotated[int, Field(ge=0, le=MAX_GPUS)]
    #: what one of those switches forwards at this level, one direction [bytes/s].
    switch_bytes_per_s: Annotated[
        float, Field(alias="switch_gb_per_s_per_direction", ge=0, le=1e6 * GB), nothing_or(MB / GB)
    ]
    #: latency of one hop at this level, one direction [s].
    hop_latency_s: Annotated[float, Field(alias="hop_latency_us", ge=0.05 * US, le=1000 * US)]
    in_network_reduction: bool  #: switches add up AllReduce payloads (NVLS, SHARP).
    #: share of the wire rate that a large transfer reaches [0-1].
    link_efficiency: Annotated[float, Field(ge=0.05, le=1)]
    #: network cards of one GPU; below 1 several GPUs share one.
    nics_per_gpu: Annotated[float, Field(ge=1e-3, le=16)] = 1.0
    #: wire rate of one network card, one direction; 0 where not known [bytes/s].
    nic_bytes_per_s: Annotated[float, Field(alias="nic_gbit_per_s", ge=GBIT, le=10000 * GBIT)] = 0.0
    rails: Annotated[str, among(*RAILS)] = "none"  #: one of `RAILS`; networks alone.
    #: traffic to a GPU of another rail goes over NVLink to the GPU with that card first (NCCL's PXN).
    pxn: bool = False
    #: one of `TOPOLOGIES`; empty where the file does not say: switched, or on the innermost level without switches a
    #: mesh if each GPU has a link for every other.
    topology: Annotated[str, among(*TOPOLOGIES)] = ""
    #: units along each axis of a torus, neighbours first; empty unless a torus.
    torus_shape: Annotated[tuple[Annotated[int, Field(ge=2, le=65536)], ...], Field(min_length=1, max_length=6)] = ()
    #: global links of one dragonfly group together, one direction, over its GPUs [bytes/s].
    global_bytes_per_s: Annotated[float, Field(alias="global_gb_per_s_per_group_per_direction", ge=MB, le=1e7 * GB)] = (
        0.0
    )
    #: share of the traffic between groups of a dragonfly that goes straight, the rest over a third group. None: all of
    #: it or none, whichever carries more.
    minimal_share: Annotated[float | None, Field(ge=0, le=1)] = None
    path: str = ""  #: what the data takes, as NCCL names its transports; empty where the file does not say.
    gpus_per_pcie_switch: Annotated[int, Field(ge=1, le=64)] = 0  #: GPUs behind one PCIe switch; 0 where not known.
    #: network cards behind one PCIe switch; 0 where not known.
    nics_per_pcie_switch: Annotated[int, Field(ge=1, le=64)] = 0
    #: what the long lines of one site carry, one direction, all its GPUs together; `WAN` alone [bytes/s].
    wan_bytes_per_s: Annotated[float, Field(alias="wan_gbit_per_s", ge=0.01 * GBIT, le=1e7 * GBIT)] = 0.0
    #: from one site to another and back; `WAN` alone [s].
    round_trip_s: Annotated[float, Field(alias="round_trip_ms", ge=0.05 * MS, le=2000 * MS)] = 0.0

    @property
    def total_bytes_per_s(self) -> float:
        """Aggregate bandwidth of one instance: of the GPUs' links, or of switches or global links if less."""
        links = self.gpus * self.link_bytes_per_s
        if self.global_bytes_per_s:
            # global links that a byte takes on average when all groups talk evenly to all others
            detour = 1.0 if self.minimal_share is None else 2.0 - self.minimal_share
            return min(links, self.gpus * self.global_bytes_per_s / detour)
        switches = self.switches * self.switch_bytes_per_s
        return min(links, switches) if switches else links

    @property
    def is_plain(self) -> bool:
        """Whether size and stride of a group say all: no rails, torus or dragonfly."""
        return self.rails == "none" and not self.torus_shape and not self.global_bytes_per_s

    @property
    def egress_bytes_per_s(self) -> float:
        """What each GPU sends across the level when all do, one direction [bytes/s]."""
        return self.total_bytes_per_s / self.gpus

    def resized(self, gpus: int) -> "LevelSpec":
        """Return the level with another number of GPUs, and switches in proportion."""
        switches = ceil(self.switches * gpus / self.gpus)
        each = self.switches * self.switch_bytes_per_s * gpus / self.gpus / switches if switches else 0.0
        return replace(self, gpus=gpus, switches=switches, switch_bytes_per_s=each)


@dataclass(frozen=True)
class CalibrationSpec:
    """What one collective was measured to take, over one group, alone."""

    operation: Annotated[str, among(*OPERATIONS)]  #: as in `collectives.OPERATIONS`.
    level: Name  #: outermost level that the group crosses.
    #: GPUs of the group; for sendrecv those that send to their neighbours at the same time, 2 for a pair.
    gpus: Annotated[int, Field(ge=2, le=MAX_GPUS)]
    stride: Gpus  #: rank stride between members.
    #: sizes, rising; those of the whole tensor, as nccl-tests prints them.
    bytes: Annotated[
        tuple[Annotated[float, Field(ge=1, le=MAX_BYTES)], ...], Field(min_length=1, max_length=MAX_POINTS)
    ]
    #: time of each, never falling [s].
    time_s: Annotated[
        tuple[Annotated[float, Field(ge=LEAST_TIME_US * US, le=MOST_TIME_US * US)], ...],
        Field(alias="time_us", min_length=1, max_length=MAX_POINTS),
    ]
    source: Source  #: log, date and number of points.


@displayed
@dataclass(frozen=True)
class ClusterSpec:
    """GPUs of one type on a hierarchy of levels, innermost first."""

    name: str  #: slug, or the file's name.
    title: Text  #: name for people.
    gpu: GpuSpec  #: the GPU, the slowest of several types.
    levels: tuple[LevelSpec, ...]  #: innermost first.
    #: whether the top level may be widened for more GPUs (a switched network may, a single box may not).
    extendable: bool
    sources: Mapping[str, str]  #: field -> source of the number.
    aliases: Annotated[tuple[Name, ...], Field(max_length=16)] = ()  #: other names.
    host: HostSpec | None = None  #: what the GPUs of one host share; None when the file does not say.
    #: time that each collective of a job over several nodes waits per rank of its group, whatever the bytes (0: none)
    #: [s].
    rank_overhead_s: float = 0.0
    #: measured collectives, which go before the model's; none in the presets.
    calibration: tuple[CalibrationSpec, ...] = ()
    #: the parts of a cluster of unlike nodes; `gpu`, `levels` and `host` are then the least of theirs (`joined`).
    pools: tuple["PoolSpec", ...] = ()
    mixture: str = ""  #: what that costs, in words.
    #: the cluster itself, where this one is what some of its groups see while the others are idle.
    whole: "ClusterSpec | None" = None
    #: switches between nodes add up where they can. None: not by NCCL, which needs a plugin and NCCL_COLLNET_ENABLE for
    #: it, but ideally.
    sharp: bool | None = None
    nvls: bool = True  #: the same of the switches inside a node, which NCCL uses of its own accord.

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.levels[-1].gpus

    @property
    def node_gpus(self) -> int:
        """GPUs of the innermost level (one NVLink domain or one box)."""
        return self.levels[0].gpus

    @property
    def caveats(self) -> tuple[str, ...]:
        """What an answer should say of its GPUs: that they are announced and not measured."""
        gpus = [pool.cluster.gpu for pool in self.pools] or [self.gpu]
        return tuple(dict.fromkeys(gpu.announced for gpu in gpus if gpu.announced))

    @property
    def switches(self) -> dict[str, int]:
        """Switches of all units of each level that has any."""
        return {one.name: ceil(one.switches * self.gpus / one.gpus) for one in self.levels if one.switches}

    @property
    def domain_index(self) -> int:
        """Index of the outermost level inside a box or rack; 0 where there is none."""
        index = 0
        while index + 1 < len(self.levels) and self.levels[index + 1].fabric in INSIDE:
            index += 1
        return index

    @property
    def peer_gpus(self) -> int:
        """GPUs of the largest domain of NVLink and its like; 1 without."""
        return max((level.gpus for level in self.levels if level.fabric in SCALE_UP), default=1)

    @property
    def host_gpus(self) -> int:
        """GPUs of one machine (one operating system), after which ranks' hosts and network cards' numbers begin anew:
        those that the file states of a host, else of the last level inside the box. That is neither always the
        innermost level (GPUs linked in pairs, pairs joined by PCIe) nor always the last one inside (trays of four in an
        NVLink rack of 72)."""
        domain = self.levels[self.domain_index].gpus
        return self.host.gpus if self.host and domain % self.host.gpus == 0 else domain

    @property
    def is_plain(self) -> bool:
        """Whether every level is: groups are placed by size and stride alone."""
        return all(level.is_plain for level in self.levels)

    def adding_up(self, *, sharp: bool | None, nvls: bool) -> "ClusterSpec":
        """Return the cluster with the switches that are to add up; refuse SHARP where none can."""
        if sharp and not any(level.in_network_reduction for level in self.levels if level.fabric not in INSIDE):
            raise InputError(f"no switches between nodes of {self.name} add up", field="sharp", hint="leave it out")
        return replace(self, sharp=sharp, nvls=nvls)

    def adding(self, *, ideal: bool) -> BoolArray:
        """Return at which levels switches add up payloads, (L, 1): NVLS inside a node, SHARP between nodes."""
        sharp = ideal if self.sharp is None else self.sharp
        used = np.array([self.nvls if level.fabric in INSIDE else sharp for level in self.levels])
        return (used & [level.in_network_reduction for level in self.levels])[:, None]

    def children(self, index: int) -> int:
        """Units of the level below that one instance of a level joins (GPUs at level 0)."""
        below = self.levels[index - 1].gpus if index else 1
        return -(-self.levels[index].gpus // below)

    def level_index(self, name: str) -> int:
        """Return the index of the level called `name`, or refuse."""
        for index, level in enumerate(self.levels):
            if level.name == name.lower():
                return index
        hint = did_you_mean(name, [level.name for level in self.levels], "its levels are")
        raise InputError(f"{self.name} has no level {name[:40]!r}", hint=hint)

    def level_of_group(self, gpus: int, stride: int) -> LevelSpec:
        """Return the outermost level that a group of `gpus` GPUs, `stride` apart, crosses."""
        return next((level for level in self.levels if level.gpus // stride >= gpus), self.levels[-1])

    def usual_gpus_per_node(self, gpus: int, groups: Sequence[int] = ()) -> int:
        """Return how many GPUs of each node a job takes where nobody says: all, but of several racks of 72 each 64 (the
        largest power of two, of any domain larger than a box), the others being spares, unless the job fills whole
        racks; where only one of the two counts holds all `groups` evenly, that one (NVIDIA-NeMo/Megatron-Bridge,
        scripts/performance, for GB200 and GB300)."""
        node = self.levels[self.domain_index].gpus
        part = 1 << (node.bit_length() - 1)
        if node <= LARGEST_BOX or gpus <= node or self._refused_part(part, node):
            return node
        counts = (node, part) if gpus % node == 0 else (part, node)
        return next((one for one in counts if all(size > one or one % size == 0 for size in groups)), counts[0])

    def with_gpus_per_node(self, gpus_per_node: int) -> "ClusterSpec":
        """Return the cluster when a job takes only some GPUs of each node. The innermost level shrinks to them; above
        it there are as many nodes as before. The GPUs left over have the node's network cards to themselves, as far as
        each reaches: a GPU that shares a card gets it whole, one that has cards of its own keeps those.

        Raises:
            InputError: the number neither divides the GPUs of a node nor fills whole hosts, or a node has several
                levels inside (GPUs linked in pairs), so that it depends on which of them the job takes.
        """
        node, inner = self.levels[self.domain_index].gpus, self.levels[0]
        if gpus_per_node == node:
            return self
        refusal = self._refused_part(gpus_per_node, node)
        if refusal is not None:
            raise InputError(refusal[0], field="gpus_per_node", hint=refusal[1])
        reach = 1.0 if inner.switches else (gpus_per_node - 1) / (node - 1)  # a mesh has a link to each of the others
        levels = [replace(inner, gpus=gpus_per_node, link_bytes_per_s=inner.link_bytes_per_s * (reach or 1.0))]
        cards = self.levels[1].nics_per_gpu if len(self.levels) > 1 else 1.0
        gain = min(node / gpus_per_node, max(1.0 / cards, 1.0))
        for level in self.levels[1:]:
            fewer, links = level.gpus * gpus_per_node // node, level.global_bytes_per_s * node / gpus_per_node
            link = level.link_bytes_per_s * gain
            narrower = replace(level, gpus=fewer, link_bytes_per_s=link, global_bytes_per_s=links)
            levels.append(replace(narrower, gpus_per_pcie_switch=0))
        host = self.host and replace(self.host, gpus=min(self.host.gpus, gpus_per_node))
        return replace(self, levels=tuple(levels), host=host, calibration=self._calibration_of(gpus_per_node))

    def _refused_part(self, part: int, node: int) -> tuple[str, str] | None:
        if self.pools:
            pools = ", ".join(f"`cluster={pool.cluster.name}`" for pool in self.pools)
            return f"the nodes of {self.name} are not alike", f"name one pool: {pools}"
        host = self.host_gpus
        hint = f"give a divisor of {node}{f' up to {host}, or a multiple of {host}' if host < node else ''}"
        if not 1 <= part < node or (node % part and part % host):
            return f"{part} GPUs per node do not divide the {node} of {self.name}", hint
        if part > host and part % host:
            return f"{part} GPUs do not fill whole hosts of {self.name}, which have {host} each", hint
        if self.domain_index:
            inside = ", ".join(f"{level.name} of {level.gpus}" for level in self.levels[: self.domain_index + 1])
            which = f"({inside}), so that it matters which of them a job takes"
            hint = f"leave it out, or write a cluster file whose nodes have {part} GPUs"
            return f"the GPUs of a node of {self.name} are not all joined alike {which}", hint
        if self.levels[0].torus_shape:
            message = f"the {self.levels[0].name} of {self.name} is a torus; a job takes whole units of it"
            return message, "leave it out, and give fewer `gpus`"
        return None

    def _calibration_of(self, gpus_per_node: int) -> tuple[CalibrationSpec, ...]:
        """Return the measurements that fit nodes of fewer GPUs: as many members in each as there were."""
        node, kept = self.levels[0].gpus, []
        for one in self.calibration:
            stride, rest = divmod(one.stride * gpus_per_node, node)
            if one.level == self.levels[0].name and (one.gpus - 1) * one.stride < gpus_per_node:
                kept.append(one)
            elif one.level != self.levels[0].name and rest == 0 and stride >= 1:
                kept.append(replace(one, stride=stride))
        return tuple(kept)

    def mixture_note(self, gpus: int) -> str | None:
        """Say what a job over unlike pools wastes, and which pool holds it; None of alike ones."""
        if not self.pools:
            return None
        fitting = [pool for pool in self.pools if pool.cluster.gpus >= gpus]
        if not fitting:
            return self.mixture
        names = " or ".join(f"`cluster={pool.cluster.name}`" for pool in fitting)
        return f"{self.mixture}; a job of {gpus:,} GPUs fits into one pool: {names}"

    def sized_for(self, gpus: int) -> tuple["ClusterSpec", str | None]:
        """Return the cluster with at least so many GPUs, and a note when the preset had to be extended: the top level
        is widened to the next whole number of its units, with as many more switches, so that bandwidth per GPU,
        oversubscription and latency stay as they are.

        Raises:
            InputError: not in 1..MAX_GPUS, or the preset is a single box that cannot grow.
        """
        if not 1 <= gpus <= MAX_GPUS:
            raise InputError(f"{gpus} GPUs is out of range", field="gpus", hint=f"give 1 to {MAX_GPUS:,}")
        if gpus <= self.gpus:
            return self, self.mixture_note(gpus)
        top = self.levels[-1]
        if not self.extendable:
            message = f"{self.name} has {self.gpus} GPUs and cannot be extended to {gpus}"
            hint = f"give at most {self.gpus}, or a cluster with a network (`gpuscale show clusters`)"
            raise InputError(message, field="gpus", hint=hint)
        unit = self.levels[-2].gpus if len(self.levels) > 1 else top.gpus
        wider = ceil(gpus / unit) * unit
        each = f"{top.egress_bytes_per_s / 1e9:.3g} GB/s per GPU"
        note = f"{self.name} has {top.gpus:,} GPUs: {top.name} widened to {wider:,} at the same {each}"
        return replace(self, levels=(*self.levels[:-1], top.resized(wider))), note


@dataclass(frozen=True)
class PoolSpec:
    """One part of a cluster of unlike nodes, of alike ones in itself."""

    name: Name  #: by which it is chosen: `fleet.toml:name`.
    cluster: ClusterSpec  #: the part as a cluster of its own.


_COMPARED = ("bf16", "fp16", "fp32")
"""Precisions by which GPUs are compared: the first that all have."""


def cut(cluster: ClusterSpec, gpus: int, name: str) -> ClusterSpec:
    """Return the first `gpus` GPUs of a cluster as one of their own, which cannot be extended.

    Raises:
        InputError: no whole nodes, a part of a torus, or more than a single box has.
    """
    whole, _ = cluster.sized_for(gpus)
    if gpus % cluster.node_gpus:
        hint = f"give a multiple of {cluster.node_gpus}"
        raise InputError(f"{gpus:,} GPUs do not fill whole nodes of {cluster.node_gpus}", hint=hint)
    below = [level for level in whole.levels if level.gpus < gpus]
    top = whole.levels[len(below)]
    if top.torus_shape and top.gpus != gpus:
        hint = f"give all {top.gpus:,} GPUs of it"
        raise InputError(f"{gpus:,} GPUs are only a part of the torus {top.name}", hint=hint)
    levels = (*below, top.resized(gpus))
    names = {level.name for level in levels}
    curves = tuple(one for one in cluster.calibration if one.level in names and (one.gpus - 1) * one.stride < gpus)
    return replace(cluster, name=name, levels=levels, extendable=False, aliases=(), calibration=curves)


def joined(whole: ClusterSpec, pools: Sequence[PoolSpec]) -> ClusterSpec:
    """Return the cluster that the pools (two or more, in any order) make up, bound by the slowest of them: a
    synchronous job waits for its slowest part. It counts as alike nodes with the least of what the pools have: FLOP/s
    and memory of a GPU, bandwidth and latency of each level that all have. Levels are paired by what they are (inside a
    box or rack from the outermost inwards, networks from the innermost outwards) and have the largest size that divides
    all of them, so that they tile every pool. `whole` has the name, title, sources and the level that joins the pools;
    its GPU does not count."""
    top = whole.levels[-1]
    common = common_levels([pool.cluster for pool in pools])
    link = min(top.link_bytes_per_s, common[-1].egress_bytes_per_s) if common else top.link_bytes_per_s
    clusters = [pool.cluster for pool in pools]
    return replace(
        whole,
        gpu=slowest_gpu([one.gpu for one in clusters]),
        levels=(*common, replace(top, link_bytes_per_s=link)),
        extendable=False,
        host=_host([one.host for one in clusters]),
        pools=tuple(pools),
        mixture=_mixture(pools, top),
    )


def common_levels(clusters: Sequence[ClusterSpec]) -> tuple[LevelSpec, ...]:
    """Return the levels that all clusters have, innermost first, each as slow as the slowest."""
    inside = [[level for level in one.levels if level.fabric in INSIDE] for one in clusters]
    outside = [[level for level in one.levels if level.fabric not in INSIDE] for one in clusters]
    boxes = list(zip(*(reversed(levels) for levels in inside), strict=False))[::-1]
    totals = [one.gpus for one in clusters]
    found: list[LevelSpec] = []
    for alike in (*boxes, *zip(*outside, strict=False)):
        size = gcd(*(level.gpus for level in alike), *totals)
        if not found or size > found[-1].gpus:
            found.append(_slowest(alike, size, innermost=not found))
    return tuple(found)


def _slowest(levels: Sequence[LevelSpec], size: int, *, innermost: bool) -> LevelSpec:
    def egress(level: LevelSpec) -> float:
        """Of a mesh that loses members, the links to those that stay."""
        meshed = innermost and not level.switches and level.fabric in {"nvlink", "xgmi"} and level.gpus > size > 1
        return level.egress_bytes_per_s * ((size - 1) / (level.gpus - 1) if meshed else 1.0)

    def slowness(level: LevelSpec) -> tuple[float | str, ...]:
        return egress(level), level.link_efficiency, -level.hop_latency_s, level.name, level.fabric, level.switches

    slow = min(levels, key=slowness)
    return LevelSpec(
        name=slow.name,
        fabric=slow.fabric,
        gpus=size,
        link_bytes_per_s=egress(slow),
        switches=0,
        switch_bytes_per_s=0.0,
        hop_latency_s=max(level.hop_latency_s for level in levels),
        in_network_reduction=all(level.in_network_reduction for level in levels),
        link_efficiency=min(level.link_efficiency for level in levels),
        nics_per_gpu=min(level.nics_per_gpu for level in levels),
        rails=_same([level.rails for level in levels], "none"),
        pxn=all(level.pxn for level in levels),
        topology="switched" if slow.switches else "",
        path=_same([level.path for level in levels], ""),
    )


def _same(values: Sequence[str], otherwise: str) -> str:
    return values[0] if len(set(values)) == 1 else otherwise


def slowest_gpu(gpus: Sequence[GpuSpec]) -> GpuSpec:
    """Return the GPU with the fewest FLOP/s, with no more memory, bandwidth or precisions than others."""
    compared = compared_precision(gpus)
    slow = min(gpus, key=lambda gpu: (gpu.peak_flops_per_s[compared] * gpu.kernels.gemm_fraction[compared], gpu.name))
    kinds = {gpu.name for gpu in gpus}
    if len(kinds) == 1:
        return slow
    common = [name for name in PRECISIONS if all(name in gpu.peak_flops_per_s for gpu in gpus)]
    least = {
        name: min(getattr(gpu, name) for gpu in gpus)
        for name in ("memory_bytes", "memory_datasheet_bytes", "memory_bandwidth_bytes_per_s", "host_link_bytes_per_s")
    }
    return replace(
        slow,
        title=f"{slow.title} (the slowest of {len(kinds)} GPUs)",
        peak_flops_per_s={name: min(gpu.peak_flops_per_s[name] for gpu in gpus) for name in common},
        **least,
    )


def compared_precision(gpus: Sequence[GpuSpec]) -> str:
    """Return the precision by which GPUs are compared; an InputError where they have none in common."""
    for name in _COMPARED:
        if all(name in gpu.peak_flops_per_s for gpu in gpus):
            return name
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    raise InputError(f"{names} have no precision in common", hint=f"pools need one of {', '.join(_COMPARED)}")


def _host(hosts: Sequence[HostSpec | None]) -> HostSpec | None:
    """Return the least host, where all have as many GPUs; else nothing is known of one."""
    known = [host for host in hosts if host is not None]
    if len(known) < len(hosts) or len({host.gpus for host in known}) > 1:
        return None
    return HostSpec(
        gpus=known[0].gpus,
        gpus_per_uplink=max(host.gpus_per_uplink for host in known),
        memory_bytes=min(host.memory_bytes for host in known),
        memory_bytes_per_s=min(host.memory_bytes_per_s for host in known),
        uplink_bytes_per_s=min((host.uplink_bytes_per_s for host in known if host.uplink_bytes_per_s), default=0.0),
        threads_per_gpu=min((host.threads_per_gpu for host in known if host.threads_per_gpu), default=0),
    )


def _mixture(pools: Sequence[PoolSpec], top: LevelSpec) -> str:
    precision = compared_precision([pool.cluster.gpu for pool in pools])
    ordered = sorted(pools, key=lambda pool: (pool.cluster.gpu.peak_flops_per_s[precision], pool.name))
    slow = ordered[0]
    least = slow.cluster.gpu.peak_flops_per_s[precision]
    small = min(pools, key=lambda pool: (pool.cluster.gpu.memory_bytes, pool.name))
    memory = f"{small.cluster.gpu.memory_bytes / GIB:.1f} GiB of {small.name}"
    text = f"every part runs as the slowest: {precision} FLOP/s of {slow.name}, {memory}"
    for pool in ordered[1:]:
        idle = 1 - least / pool.cluster.gpu.peak_flops_per_s[precision]
        if idle > 0:
            text += f"; the {pool.cluster.gpus:,} {pool.name} wait for the {slow.cluster.gpus:,} {slow.name}: "
            text += f"{idle:.0%} of their FLOP/s idle"
    if top.fabric == WAN:
        return f"{text}; not all that crosses {top.name} is priced here: `gpuscale fleet` says how to train over it"
    return f"{text}; `gpuscale fleet` compares this with work split by speed"
