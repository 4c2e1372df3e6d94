"""Groups on a cluster, reduced to what the algorithms ask for: hops, bandwidths, levels that add."""

from dataclasses import dataclass

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.collectives import constants as c
from gpuscale.collectives.concurrency import cards_reached
from gpuscale.collectives.groups import INSIDE, Groups
from gpuscale.collectives.imbalance import busiest_factors
from gpuscale.collectives.tuning import AUTOMATIC, Tuning
from gpuscale.specs.cluster import ClusterSpec


@dataclass(frozen=True)
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
        exchange_s_per_byte: as `Groups` has it, with the efficiency of links and transport.
        copy_bytes_per_s: rate at which a GPU handles its own block.
        transport: what the kind of the network adds.
        cards: network cards of one GPU; below 1 several GPUs share one.
        card_bytes_per_s: what they carry for one GPU.
        planned_cards: network cards of one GPU as NCCL plans with them, which knows nothing of other groups.
        links_bytes_per_s: (L, G) as `level_bytes_per_s`, of the links alone, used by no other group; the same where
            NCCL chooses its channels, for which it does not count.
        links_per_peer: NVLinks from a GPU to each of its peers in a node; all of them through a switch.
        busiest: (L, G) by how much the busiest GPU of an AllToAll takes longer at each level.
        tuning: how NCCL is run; None: as part of a training step.
    """

    groups: Groups
    generation: c.Generation
    nodes: FloatArray
    rounds: FloatArray
    local: FloatArray
    level_bytes_per_s: FloatArray
    bus_bytes_per_s: FloatArray
    intra_bytes_per_s: FloatArray
    inter_bytes_per_s: FloatArray
    crossings: FloatArray
    depth: FloatArray
    links: tuple[tuple[str, float], ...]
    domain: int
    nvls: bool
    network_adds: BoolArray
    wire_bytes_per_s: float
    exchange_s_per_byte: FloatArray | None
    copy_bytes_per_s: float
    transport: c.Transport
    cards: float
    card_bytes_per_s: float
    planned_cards: FloatArray
    links_bytes_per_s: FloatArray
    links_per_peer: int
    busiest: FloatArray | float
    tuning: Tuning | None

    @property
    def nccl(self) -> tuple[int, int]:
        """Version of NCCL."""
        return (self.tuning or AUTOMATIC).nccl

    @property
    def steps(self) -> FloatArray:
        """Hops of one pass around the ring: one per GPU, fewer on a torus, where both directions are used."""
        hops: FloatArray = self.crossings.sum(axis=0)
        return hops

    @property
    def alone(self) -> bool:
        """Whether the collective runs on its own, as in nccl-tests, and not as part of a training step."""
        return self.tuning is not None


def network(
    cluster: ClusterSpec, groups: Groups, *, in_network_reduction: bool = True, tuning: Tuning | None = None
) -> Network:
    """Gather what the algorithms need from the placement of the groups."""
    levels = cluster.levels
    domain = cluster.domain_index
    efficiency = np.array([level.link_efficiency for level in levels])[:, None]
    real = np.where(groups.crossed, groups.wire_bytes_per_s * efficiency, np.inf)
    real[0] *= _quad_share(cluster, groups.members[0])
    adds = np.array([level.in_network_reduction for level in levels])[:, None] | ~groups.crossed
    inside = domain + 1
    transport = next((c.TRANSPORTS[one.fabric] for one in levels if one.fabric in c.TRANSPORTS), c.VERBS)
    outer = levels[min(inside, len(levels) - 1)]
    return Network(
        groups=groups,
        generation=c.generation_of(cluster.gpu.architecture),
        nodes=groups.instances[inside],
        rounds=np.log2(groups.instances[inside]),
        local=groups.members[domain],
        level_bytes_per_s=real,
        bus_bytes_per_s=least(real),
        intra_bytes_per_s=least(real[:inside]),
        inter_bytes_per_s=least(real[inside:]),
        crossings=groups.steps,
        depth=groups.rises,
        links=tuple(_link(level.fabric, level.hop_latency_s) for level in levels),
        domain=domain,
        nvls=in_network_reduction and levels[domain].in_network_reduction,
        network_adds=np.logical_and.reduce(adds[inside:], axis=0) & np.bool_(in_network_reduction),
        wire_bytes_per_s=levels[0].egress_bytes_per_s,
        exchange_s_per_byte=_exchange(groups, efficiency, inside, transport),
        copy_bytes_per_s=c.SELF_COPY_HBM_SHARE * cluster.gpu.memory_bandwidth_bytes_per_s,
        transport=transport,
        cards=outer.nics_per_gpu,
        card_bytes_per_s=outer.link_bytes_per_s,
        planned_cards=_cards_alone(cluster, min(inside, len(levels) - 1), groups),
        links_bytes_per_s=real if tuning is None or tuning.channels is None else _of_links(cluster, groups, real),
        links_per_peer=_links_per_peer(cluster),
        busiest=1.0 if tuning is None or tuning.imbalance == 1 else busiest_factors(cluster, groups, tuning.imbalance),
        tuning=tuning,
    )


def _exchange(groups: Groups, efficiency: FloatArray, inside: int, transport: c.Transport) -> FloatArray | None:
    if groups.exchange_s_per_byte is None:
        return None
    per_byte: FloatArray = groups.exchange_s_per_byte / efficiency
    per_byte[inside:] /= transport.p2p_share
    return per_byte


def _quad_share(cluster: ClusterSpec, members: FloatArray) -> FloatArray | float:
    """Share of its links that a GPU of a hybrid cube mesh (DGX-1) can use towards few members.

    Two of its six links lead to the other quad of four; NVIDIA DGX-1 with Tesla V100 system architecture (2017).
    """
    first = cluster.levels[0]
    if first.switches or first.fabric != "nvlink" or not 0 < cluster.gpu.links < first.gpus - 1:
        return 1.0
    return np.minimum(members / cluster.gpu.links, 1.0)


def _links_per_peer(cluster: ClusterSpec) -> int:
    first = cluster.levels[0]
    if first.fabric == "pcie":
        return 1
    return max(cluster.gpu.links if first.switches else cluster.gpu.links // max(first.gpus - 1, 1), 1)


def _cards_alone(cluster: ClusterSpec, index: int, groups: Groups) -> FloatArray:
    """Return the cards of level `index` that a GPU has where no other group runs, (G,)."""
    whole = cluster.whole or cluster
    level = whole.levels[index]
    return level.nics_per_gpu * cards_reached(whole, level, groups.members[0])


def _of_links(cluster: ClusterSpec, groups: Groups, real: FloatArray) -> FloatArray:
    """Return what the links of each level carry for a group that runs alone, whatever the switches do, (L, G)."""
    rows = []
    for index, level in enumerate(cluster.levels):
        own = groups.inner[index] * level.link_efficiency if index else real[0] / level.egress_bytes_per_s
        gained = _cards_alone(cluster, index, groups) / level.nics_per_gpu
        rows.append(own * level.link_bytes_per_s * gained)
    return np.where(groups.crossed, np.array(rows), np.inf)


def least(levels: FloatArray) -> FloatArray:
    """Return the slowest of some levels, (G,); inf of none."""
    slowest: FloatArray = levels.min(axis=0, initial=np.inf)
    return slowest


def _link(fabric: str, hop_latency_s: float) -> tuple[str, float]:
    row = "pcie" if fabric == "pcie" else "nvlink" if fabric in INSIDE else "net"
    return row, hop_latency_s / c.HOP_NOMINAL_S[row]


def ring_hops_s(net: Network, protocol: int) -> FloatArray:
    """Latency of one pass around the ring, n-1 hops [s]; no hop is faster than the network's pace."""
    total = np.zeros_like(net.nodes)
    for crossing, hop_s in zip(net.crossings, _ring_hop_s(net, protocol), strict=True):
        total = total + crossing * hop_s
    return total


def longest_hop_s(net: Network, protocol: int) -> FloatArray:
    """Latency of the longest hop between neighbours on the ring [s]."""
    longest = np.zeros_like(net.nodes)
    for crossing, hop_s in zip(net.crossings, _ring_hop_s(net, protocol), strict=True):
        longest = np.where(crossing > 0, np.maximum(longest, hop_s), longest)
    return longest


def _ring_hop_s(net: Network, protocol: int) -> list[FloatArray]:
    """Latency of a hop of a ring at each level, (G,) each [s]."""
    slowest = max(factor if row == "net" else 0.0 for row, factor in net.links)
    paced = slowest >= c.PACED_FACTOR
    pace_s = (
        c.RING_HOP_S["net"][c.PROTOCOLS.index("Simple")] * min(slowest, c.PACED_MOST)
        if paced
        else c.NET_OVERHEAD_S[protocol]
    )
    overhead = np.where(net.nodes > 1, pace_s, 0.0)
    return [np.maximum(c.RING_HOP_S[row][protocol] * factor, overhead) for row, factor in net.links]


def tree_hops_s(net: Network, protocol: int) -> tuple[FloatArray, FloatArray]:
    """Latency up the tree [s]: of a chain inside the domain, and of log2 of the domains across the network."""
    inside, across = np.zeros_like(net.nodes), np.zeros_like(net.nodes)
    for index, (row, factor) in enumerate(net.links):
        hop_s = c.TREE_HOP_S[row][protocol] * factor
        if index <= net.domain:
            inside = inside + net.crossings[index] / np.maximum(net.nodes, 1) * hop_s
        else:
            across = across + net.depth[index] * hop_s
    return inside, across


def network_hops_s(net: Network, hop_s: float) -> FloatArray:
    """Latency of log2(nodes) network hops whose table value is `hop_s` [s]."""
    total = np.zeros_like(net.nodes)
    for depth, (_, factor) in zip(net.depth[net.domain + 1 :], net.links[net.domain + 1 :], strict=True):
        total = total + depth * hop_s * factor
    return total


def network_top_s(net: Network, hop_s: float) -> FloatArray:
    """One network hop at the outermost level crossed, whose table value is `hop_s` [s]."""
    worst = np.zeros_like(net.nodes)
    for depth, (_, factor) in zip(net.depth[net.domain + 1 :], net.links[net.domain + 1 :], strict=True):
        worst = np.where(depth > 0, np.maximum(worst, hop_s * factor), worst)
    return worst


def latency_s(net: Network, base_s: float, hops_s: FloatArray, across_s: FloatArray | None = None) -> FloatArray:
    """Fixed cost of a call and its hops, as measured on this generation [s].

    Args:
        across_s: network hops whose cost does not depend on the GPU, of LL.
    """
    latency = base_s * net.generation.base_factor + hops_s * net.generation.hop_factor
    if across_s is not None:
        latency = latency + across_s * net.transport.hop_factor
    return launched_s(net, latency)


def launched_s(net: Network, latency_s: FloatArray, messages: FloatArray | float = 0.0) -> FloatArray:
    """Latency of a call that is launched as `Tuning.launch` says, of so many grouped messages if any [s]."""
    if net.tuning is None or net.tuning.launch == "processes":
        return latency_s
    if net.tuning.launch == "graph":
        return np.maximum(latency_s - net.generation.launch_s, c.LEAST_LATENCY_S)
    return np.maximum(latency_s, net.local * (c.LAUNCH_S + messages * c.MESSAGE_LAUNCH_S))


def by_nodes(net: Network, one: float, two: float, more: float) -> FloatArray:
    """Pick a value for groups in one node, on two, on more."""
    return np.where(net.nodes <= 1, one, np.where(net.nodes <= 2, two, more))


def positive(bandwidth: FloatArray) -> FloatArray:
    """Keep a bandwidth that nothing uses from being 0."""
    return np.maximum(bandwidth, 1.0)
