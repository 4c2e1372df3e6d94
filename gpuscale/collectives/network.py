"""Groups on a cluster, reduced to what the algorithms ask for: hops, bandwidths, levels that add."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscale.collectives import constants as c
from gpuscale.collectives.groups import INSIDE, Bools, Floats, Groups
from gpuscale.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True)
class Network:
    """G kinds of groups on a cluster; arrays are (G,) unless stated.

    Attributes:
        nodes: NVLink domains or boxes that the group spans.
        rounds: log2 of the nodes.
        local: members in one of them.
        level_bytes_per_s: (L, G) bus bandwidth across each level, link efficiency included; inf where not crossed.
        bus_bytes_per_s: flat-ring bandwidth: the slowest level crossed.
        intra_bytes_per_s: the slowest level crossed inside a domain; inf when nothing passes there.
        inter_bytes_per_s: the slowest level crossed between domains; inf when the group stays inside one.
        crossings: (L, G) ring hops that cross each level, in one pass around the ring.
        depth: (L, G) log2 of the units joined at each level: tree hops.
        links: per level, its row of the hop tables and the factor on it.
        domain: index of the level that is the NVLink domain or box.
        nvls: the domain's switches add and multicast.
        network_adds: every network level crossed can add (SHARP).
        wire_bytes_per_s: one GPU's links into the innermost level.
        copy_bytes_per_s: rate at which a GPU handles its own block.
        transport: what the kind of the network adds.
    """

    groups: Groups
    generation: c.Generation
    nodes: Floats
    rounds: Floats
    local: Floats
    level_bytes_per_s: Floats
    bus_bytes_per_s: Floats
    intra_bytes_per_s: Floats
    inter_bytes_per_s: Floats
    crossings: Floats
    depth: Floats
    links: tuple[tuple[str, float], ...]
    domain: int
    nvls: bool
    network_adds: Bools
    wire_bytes_per_s: float
    copy_bytes_per_s: float
    transport: c.Transport


def network(cluster: ClusterSpec, groups: Groups, *, in_network_reduction: bool = True) -> Network:
    """Gather what the algorithms need from the placement of the groups."""
    levels = cluster.levels
    domain = 0
    while domain + 1 < len(levels) and levels[domain + 1].fabric in INSIDE:
        domain += 1
    efficiency = np.array([level.link_efficiency for level in levels])[:, None]
    real = np.where(groups.crossed, groups.wire_bytes_per_s * efficiency, np.inf)
    adds = np.array([level.in_network_reduction for level in levels])[:, None] | ~groups.crossed
    inside = domain + 1
    return Network(
        groups=groups,
        generation=c.generation_of(cluster.gpu.architecture),
        nodes=groups.instances[inside],
        rounds=np.log2(groups.instances[inside]),
        local=groups.members[domain],
        level_bytes_per_s=real,
        bus_bytes_per_s=_least(real),
        intra_bytes_per_s=_least(real[:inside]),
        inter_bytes_per_s=_least(real[inside:]),
        crossings=groups.instances[:-1] - groups.instances[1:],
        depth=np.log2(groups.instances[:-1] / groups.instances[1:]),
        links=tuple(_link(level.fabric, level.hop_latency_s) for level in levels),
        domain=domain,
        nvls=in_network_reduction and levels[domain].in_network_reduction,
        network_adds=np.logical_and.reduce(adds[inside:], axis=0) & np.bool_(in_network_reduction),
        wire_bytes_per_s=levels[0].egress_bytes_per_s,
        copy_bytes_per_s=c.SELF_COPY_HBM_SHARE * cluster.gpu.memory_bandwidth_bytes_per_s,
        transport=next((c.TRANSPORTS[one.fabric] for one in levels if one.fabric in c.TRANSPORTS), c.VERBS),
    )


def _least(levels: Floats) -> Floats:
    least: Floats = levels.min(axis=0, initial=np.inf)
    return least


def _link(fabric: str, hop_latency_s: float) -> tuple[str, float]:
    row = "pcie" if fabric == "pcie" else "nvlink" if fabric in INSIDE else "net"
    return row, hop_latency_s / c.HOP_NOMINAL_S[row]


def ring_hops_s(net: Network, protocol: int) -> Floats:
    """Latency of one pass around the ring, n-1 hops [s]; no hop is faster than the network's pace."""
    slowest = max(factor if row == "net" else 0.0 for row, factor in net.links)
    paced = slowest >= c.PACED_FACTOR
    pace_s = (
        c.RING_HOP_S["net"][c.PROTOCOLS.index("Simple")] * min(slowest, c.PACED_MOST)
        if paced
        else c.NET_OVERHEAD_S[protocol]
    )
    overhead = np.where(net.nodes > 1, pace_s, 0.0)
    total = np.zeros_like(net.nodes)
    for crossing, (row, factor) in zip(net.crossings, net.links, strict=True):
        total = total + crossing * np.maximum(c.RING_HOP_S[row][protocol] * factor, overhead)
    return total


def tree_hops_s(net: Network, protocol: int) -> Floats:
    """Latency up the tree: a chain inside the domain, log2 of the domains across the network [s]."""
    total = np.zeros_like(net.nodes)
    for index, (row, factor) in enumerate(net.links):
        hops = net.crossings[index] / np.maximum(net.nodes, 1) if index <= net.domain else net.depth[index]
        total = total + hops * c.TREE_HOP_S[row][protocol] * factor
    return total


def network_hops_s(net: Network, hop_s: float) -> Floats:
    """Latency of log2(nodes) network hops whose table value is `hop_s` [s]."""
    total = np.zeros_like(net.nodes)
    for depth, (_, factor) in zip(net.depth[net.domain + 1 :], net.links[net.domain + 1 :], strict=True):
        total = total + depth * hop_s * factor
    return total


def network_top_s(net: Network, hop_s: float) -> Floats:
    """One network hop at the outermost level crossed, whose table value is `hop_s` [s]."""
    worst = np.zeros_like(net.nodes)
    for depth, (_, factor) in zip(net.depth[net.domain + 1 :], net.links[net.domain + 1 :], strict=True):
        worst = np.where(depth > 0, np.maximum(worst, hop_s * factor), worst)
    return worst


def latency_s(net: Network, base_s: float, hops_s: Floats) -> Floats:
    """Fixed cost of a call and its hops, as measured on this generation [s]."""
    return base_s * net.generation.base_factor + hops_s * net.generation.hop_factor


def by_nodes(net: Network, one: float, two: float, more: float) -> Floats:
    """Pick a value for groups in one node, on two, on more."""
    return np.where(net.nodes <= 1, one, np.where(net.nodes <= 2, two, more))


def positive(bandwidth: Floats) -> Floats:
    """Keep a bandwidth that nothing uses from being 0."""
    return np.maximum(bandwidth, 1.0)
