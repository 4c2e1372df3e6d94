"""Groups on a cluster, reduced to what the algorithms ask for: nodes, bandwidths, the latency of hops and of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, log2
from gpuscale.collectives import nccl_constants as c
from gpuscale.collectives.groups import Groups
from gpuscale.collectives.ideal import busiest_factors
from gpuscale.collectives.nccl_constants import AUTOMATIC, Tuning
from gpuscale.collectives.topology import cube_mesh_share, path_share
from gpuscale.specs.cluster import INSIDE, WAN, ClusterSpec, LevelSpec


class Network(NamedTuple):
    """N groups on a cluster; arrays are (N,) unless stated."""

    cluster: ClusterSpec
    groups: Groups  #: where the groups lie on them.
    tuning: Tuning | None  #: how NCCL is run; None: as part of a training step.
    generation: c.Generation
    transport: c.Transport
    domain: int  #: index of the level that is the NVLink domain or box.
    nodes: FloatArray  #: NVLink domains or boxes that the group spans.
    rounds: FloatArray  #: levels of a tree of them: log2.
    local: FloatArray  #: members in one of them.
    #: (L, N) bus bandwidth across each level, link efficiency included; inf where not crossed.
    level_bytes_per_s: FloatArray
    bus_bytes_per_s: FloatArray  #: flat-ring bandwidth: the slowest level crossed.
    intra_bytes_per_s: FloatArray  #: the slowest level crossed inside a domain; inf when nothing passes there.
    inter_bytes_per_s: FloatArray  #: the slowest level crossed between domains; inf when the group stays inside one.
    links: tuple[tuple[str, float], ...]  #: per level, its row of the hop tables and the factor on it.
    nvls: bool  #: the domain's switches add and multicast.
    network_adds: BoolArray  #: every network level crossed can add (SHARP).
    exchange_s_per_byte: FloatArray | None  #: (L, N) as `Groups` has it, with the efficiency of links and transport.
    copy_bytes_per_s: float  #: rate at which a GPU handles its own block.
    stripes: float  #: cards over which the transport spreads each message of a GPU; 1 where it does not.
    busiest: FloatArray  #: (L, N) by how much the busiest GPU of an AllToAll takes longer at each level.

    @property
    def nccl(self) -> tuple[int, int]:
        """Version of NCCL."""
        return (self.tuning or AUTOMATIC).nccl

    @property
    def alone(self) -> bool:
        """Whether the collective runs on its own, as in nccl-tests, and not as part of a training step."""
        return self.tuning is not None

    @property
    def wire_bytes_per_s(self) -> float:
        """One GPU's links into the innermost level."""
        return self.cluster.levels[0].egress_bytes_per_s

    @property
    def ring_steps(self) -> FloatArray:
        """Hops of one pass around the ring: one per GPU, fewer on a torus, where both directions are used."""
        return self.groups.steps.sum(axis=0)

    def by_nodes(self, one: float, two: float, more: float) -> FloatArray:
        """Pick a value for groups in one node, on two, on more."""
        return np.where(self.nodes <= 1, one, np.where(self.nodes <= 2, two, more))

    def call_s(self, base_s: float, hops_s: FloatArray, across_s: FloatArray | None = None) -> FloatArray:
        """Fixed cost of a call and its hops, as measured on this generation [s]: NCCL's table value `base_s` and all
        hops one after the other (`hops_s`); of trees with LL the network hops `across_s` do not depend on the GPU."""
        latency_s = base_s * self.generation.base_factor + hops_s * self.generation.hop_factor
        if across_s is not None:
            latency_s = latency_s + across_s * self.transport.hop_factor
        return self.launched_s(latency_s)

    def launched_s(self, latency_s: FloatArray, messages: FloatArray | float = 0.0) -> FloatArray:
        """Latency of a call that is launched as `Tuning.launch` says, of so many grouped messages if any [s]."""
        if self.tuning is None or self.tuning.launch == "processes":
            return latency_s
        if self.tuning.launch == "graph":
            return np.maximum(latency_s - self.generation.launch_s, c.LEAST_LATENCY_S)
        return np.maximum(latency_s, self.local * (c.LAUNCH_S + messages * c.MESSAGE_LAUNCH_S))

    def ring_hops_s(self, protocol: int) -> FloatArray:
        """Latency of one pass around the ring [s]: the sum of its hops."""
        return (self.groups.steps * self._ring_hop_s(protocol)).sum(axis=0)

    def longest_hop_s(self, protocol: int) -> FloatArray:
        """Latency of the longest hop between neighbours on the ring [s]."""
        return np.where(self.groups.steps > 0, self._ring_hop_s(protocol), 0.0).max(axis=0)

    def _ring_hop_s(self, protocol: int) -> FloatArray:
        """Latency of a ring's hop at each level, (L, N) [s]; across nodes none is faster than the CPU proxy."""
        table_s = np.array([[self.table_hop_s(row, protocol) * factor] for row, factor in self.links])
        if self.transport.step_s:  # as measured on trees: what the plugin adds is not in the ring's table
            tree_s = c.TREE_HOP_S["net"][protocol] * self.transport.hop_factor / self.generation.hop_factor
            posted_s = [[tree_s * factor if row == "net" else 0.0] for row, factor in self.links]
            table_s = np.maximum(table_s, posted_s)
        return np.maximum(table_s, np.where(self.nodes > 1, c.NET_OVERHEAD_S[protocol], 0.0))

    def table_hop_s(self, row: str, protocol: int, *, tree: bool = False) -> float:
        """Latency of one hop over a kind of link by the library's table [s]; over PCIe a hop with Simple is known
        better than by the factor of all hops."""
        if row == "pcie" and self.alone and protocol == c.SIMPLE and self.generation.simple_hop_factor and not tree:
            return c.RING_HOP_S[row][protocol] * self.generation.simple_hop_factor / self.generation.hop_factor
        if row == "net" and self.alone:
            return (self.generation.tree_net_hop_s if tree else self.generation.ring_net_hop_s)[protocol]
        return (c.TREE_HOP_S if tree else c.RING_HOP_S)[row][protocol]

    def tree_hops_s(self, protocol: int) -> tuple[FloatArray, FloatArray]:
        """Latency up the tree [s]: of a chain inside the domain, and of log2 of the domains across the network."""
        inside, across = np.zeros_like(self.nodes), np.zeros_like(self.nodes)
        for index, (row, factor) in enumerate(self.links):
            hop_s = self.table_hop_s(row, protocol, tree=True) * factor
            if index <= self.domain:
                inside = inside + self.groups.steps[index] / np.maximum(self.nodes, 1) * hop_s
            else:
                across = across + self.groups.rises[index] * hop_s
        return inside, across

    def network_hops_s(self, hop_s: float) -> FloatArray:
        """Latency of log2(nodes) network hops whose table value is `hop_s` [s]."""
        return (self.groups.rises * self._hops_s(hop_s))[self.domain + 1 :].sum(axis=0)

    def longest_network_hop_s(self, hop_s: float) -> FloatArray:
        """One network hop at the outermost level crossed, whose table value is `hop_s` [s]."""
        hops_s = np.where(self.groups.rises > 0, self._hops_s(hop_s), 0.0)
        return hops_s[self.domain + 1 :].max(axis=0, initial=0.0)

    def _hops_s(self, hop_s: float) -> list[list[float]]:
        return [[factor if row == WAN else hop_s * factor] for row, factor in self.links]


def network_of(cluster: ClusterSpec, groups: Groups, *, tuning: Tuning | None = None) -> Network:
    """Gather what the algorithms need from the placement of the groups."""
    levels, domain = cluster.levels, cluster.domain_index
    inside = domain + 1
    transport = next((c.transport_of(one.fabric, one.path) for one in levels[inside:]), c.VERBS)
    efficiency = np.array([level.link_efficiency for level in levels])[:, None]
    real = np.where(groups.crossed, groups.wire_bytes_per_s * efficiency, np.inf)
    real[0] *= cube_mesh_share(cluster, groups.members[0])
    exchange = None if groups.exchange_s_per_byte is None else groups.exchange_s_per_byte / efficiency
    if exchange is not None:
        exchange[inside:] /= transport.message_share(alone=tuning is not None)
    along = real.copy()
    along[0] *= path_share(cluster, groups.members[0], groups.instances[inside])
    adds = cluster.adding(ideal=False)
    inside_rows = dict.fromkeys(INSIDE, "nvlink") | {"pcie": "pcie"}
    rows = [WAN if one.fabric == WAN else inside_rows.get(one.fabric, "net") for one in levels]
    return Network(
        cluster=cluster,
        groups=groups,
        tuning=tuning,
        generation=c.generation_of(cluster.gpu.architecture),
        transport=transport,
        domain=domain,
        nodes=groups.instances[inside],
        rounds=log2(groups.instances[inside]),
        local=groups.members[domain],
        level_bytes_per_s=real,
        bus_bytes_per_s=slowest(along),
        intra_bytes_per_s=slowest(along[:inside]),
        inter_bytes_per_s=slowest(real[inside:]),
        links=tuple((row, one.hop_latency_s / c.HOP_NOMINAL_S[row]) for row, one in zip(rows, levels, strict=True)),
        nvls=bool(adds[domain, 0]),
        network_adds=np.logical_and.reduce(adds[inside:] | ~groups.crossed[inside:], axis=0),
        exchange_s_per_byte=exchange,
        copy_bytes_per_s=c.SELF_COPY_HBM_SHARE * cluster.gpu.memory_bandwidth_bytes_per_s,
        stripes=_stripes(levels[inside:]) if transport.striped else 1.0,
        busiest=busiest_factors(cluster, groups, tuning.imbalance if tuning else 1.0),
    )


def slowest(levels: FloatArray) -> FloatArray:
    """Return the bandwidth of the slowest of some levels, (N,); inf of none."""
    return levels.min(axis=0, initial=np.inf)


EFA_CARD_BYTES_PER_S = 50e9
"""Fastest card of EFA (400 Gbit/s, third generation): GPUs with more bandwidth have several."""


def _stripes(levels: Sequence[LevelSpec]) -> float:
    return max((max(one.nics_per_gpu, one.link_bytes_per_s / EFA_CARD_BYTES_PER_S, 1.0) for one in levels), default=1.0)
