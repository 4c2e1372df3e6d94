"""The default model: NCCL's own cost structure, with latency, link efficiency and measured corrections.

For each algorithm (ring, tree, NVLS, tree of NVLS domains, switch reduction across the network, PAT) and protocol (LL,
LL128, Simple)

    time = latency(steps, hops) + bus bytes / bandwidth + steps * overhead * S / (S + knee)

and the least of them is taken, as NCCL's tuner does. The first two terms are NCCL's (src/graph/tuning.cc); the last is
the measured excess of Simple-protocol pipelines between 1 MiB and 1 GiB, which NCCL's selector leaves out. Every term
rises with the bytes and falls with bandwidth, so the minimum does too. All functions work on (N,) arrays of groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscale.collectives import constants as c
from gpuscale.collectives.groups import INSIDE, Bools, Floats, Groups, exchanged
from gpuscale.collectives.operations import bus_factor
from gpuscale.specs.cluster import ClusterSpec

_AR = "allreduce"


@dataclass(frozen=True, slots=True)
class Route:
    """What one algorithm with one protocol would take: (N,) seconds, of which `latency_s` do not depend on bytes."""

    algorithm: str
    protocol: str
    latency_s: Floats
    time_s: Floats


@dataclass(frozen=True, slots=True)
class Network:
    """Groups on a cluster, reduced to what the algorithms ask for; arrays are (N,) unless stated.

    Attributes:
        nodes: NVLink domains or boxes that the group spans.
        rounds: log2 of the nodes.
        local: members in one of them.
        level_bytes_per_s: (L, N) bus bandwidth across each level, link efficiency included; inf where not crossed.
        crossings: (L, N) ring hops that cross each level, in one pass around the ring.
        depth: (L, N) log2 of the units joined at each level: tree hops.
        links: per level, its row of the hop tables and the factor on it.
        domain: index of the level that is the NVLink domain or box.
        nvls: the domain's switches add and multicast.
        network_adds: every network level crossed can add (SHARP); shape (N,).
        wire_bytes_per_s: one GPU's links into the innermost level.
        exchange_s_per_byte: as `Groups` has it, with the efficiency of links and transport.
        copy_bytes_per_s: rate at which a GPU handles its own block.
        transport: what the kind of the network adds.
    """

    groups: Groups
    generation: c.Generation
    nodes: Floats
    rounds: Floats
    local: Floats
    level_bytes_per_s: Floats
    crossings: Floats
    depth: Floats
    links: tuple[tuple[str, float], ...]
    domain: int
    nvls: bool
    network_adds: Bools
    wire_bytes_per_s: float
    exchange_s_per_byte: Floats | None
    copy_bytes_per_s: float
    transport: c.Transport

    @property
    def steps(self) -> Floats:
        """Hops of one pass around the ring: one per GPU, fewer on a torus, where both directions are used."""
        hops: Floats = self.crossings.sum(axis=0)
        return hops

    @property
    def bus_bytes_per_s(self) -> Floats:
        """Flat-ring bandwidth: the slowest level crossed."""
        return _least(self.level_bytes_per_s)

    @property
    def intra_bytes_per_s(self) -> Floats:
        """The slowest level crossed inside a domain; inf when nothing passes there."""
        return _least(self.level_bytes_per_s[: self.domain + 1])

    @property
    def inter_bytes_per_s(self) -> Floats:
        """The slowest level crossed between domains; inf when the group stays inside one."""
        return _least(self.level_bytes_per_s[self.domain + 1 :])


def _least(levels: Floats) -> Floats:
    least: Floats = levels.min(axis=0, initial=np.inf)
    return least


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
    transport = next((c.TRANSPORTS[one.fabric] for one in levels if one.fabric in c.TRANSPORTS), c.VERBS)
    return Network(
        groups=groups,
        generation=c.generation_of(cluster.gpu.architecture),
        nodes=groups.instances[inside],
        rounds=np.log2(groups.instances[inside]),
        local=groups.members[domain],
        level_bytes_per_s=real,
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
    )


def _exchange(groups: Groups, efficiency: Floats, inside: int, transport: c.Transport) -> Floats | None:
    if groups.exchange_s_per_byte is None:
        return None
    per_byte: Floats = groups.exchange_s_per_byte / efficiency
    per_byte[inside:] /= transport.p2p_share
    return per_byte


def _link(fabric: str, hop_latency_s: float) -> tuple[str, float]:
    row = "pcie" if fabric == "pcie" else "nvlink" if fabric in INSIDE else "net"
    return row, hop_latency_s / c.HOP_NOMINAL_S[row]


def routes(net: Network, operation: str, data: Floats) -> list[Route]:
    """Return every algorithm and protocol that can run `operation` on `data` bytes per group; inf where one cannot."""
    if operation == _AR:
        found = _ring(net, data, passes=2) + _tree(net, data) + _nvls_allreduce(net, data)
    elif operation in {"allgather", "reducescatter"}:
        found = _ring(net, data, passes=1) + _nvls_gather(net, data) + _pat(net, data)
    elif operation == "alltoall":
        found = _all_to_all(net, data)
    else:
        found = _point_to_point(net, data, is_ring=operation != "sendrecv")
    return found


def level_times_s(net: Network, operation: str, data: Floats, algorithm: str) -> Floats:
    """Return what the bytes of `algorithm` alone take at each level [s], shape (L, N); 0 where none cross."""
    n, groups, network = net.groups.size, net.groups, slice(net.domain + 1, None)
    if operation == "alltoall":
        leaving: Floats = data * (groups.inner - groups.inner**2 / n) / net.level_bytes_per_s
        return exchanged(data, net.exchange_s_per_byte, leaving)
    times = data * bus_factor(operation, n) / net.level_bytes_per_s
    if algorithm.startswith("NVLS") and operation == _AR:
        times[: net.domain + 1] = data * bus_factor(operation, n) / _positive(_nvls_bus_bytes_per_s(net))
    if algorithm == "NVLS+SHARP" or (operation == _AR and algorithm != "ring" and net.nodes.max() <= 2):
        times[network] /= 2
    return times


def step_overhead_s(data: Floats, steps: Floats) -> Floats:
    """Measured excess of a Simple pipeline of `steps` steps [s]; nothing for small messages, constant for large."""
    knee_bytes = np.maximum(data + c.STEP_KNEE_BYTES * steps, 1.0)  # 0 only where nothing is sent
    return c.STEP_OVERHEAD_S * steps * data / knee_bytes


def _ring_hops_s(net: Network, protocol: int) -> Floats:
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


def _tree_hops_s(net: Network, protocol: int) -> Floats:
    """Latency up the tree: a chain inside the domain, log2 of the domains across the network [s]."""
    total = np.zeros_like(net.nodes)
    for index, (row, factor) in enumerate(net.links):
        hops = net.crossings[index] / np.maximum(net.nodes, 1) if index <= net.domain else net.depth[index]
        total = total + hops * c.TREE_HOP_S[row][protocol] * factor
    return total


def _network_hops_s(net: Network, hop_s: float) -> Floats:
    """Latency of log2(nodes) network hops whose table value is `hop_s` [s]."""
    total = np.zeros_like(net.nodes)
    for depth, (_, factor) in zip(net.depth[net.domain + 1 :], net.links[net.domain + 1 :], strict=True):
        total = total + depth * hop_s * factor
    return total


def _network_top_s(net: Network, hop_s: float) -> Floats:
    """One network hop at the outermost level crossed, whose table value is `hop_s` [s]."""
    worst = np.zeros_like(net.nodes)
    for depth, (_, factor) in zip(net.depth[net.domain + 1 :], net.links[net.domain + 1 :], strict=True):
        worst = np.where(depth > 0, np.maximum(worst, hop_s * factor), worst)
    return worst


def _messages_s(net: Network, message: Floats, hops: Floats) -> Floats:
    """What the size of their messages adds to network hops [s]: handshakes of libfabric."""
    if not net.transport.rendezvous_s:
        return np.zeros(1)
    doublings = np.log2(1 + np.minimum(message, c.RENDEZVOUS_BYTES) / c.EAGER_BYTES)
    return hops * net.transport.rendezvous_s * doublings


def _stored_s(net: Network, data: Floats, bandwidth: Floats) -> Floats:
    """What the nodes of a tree wait for data to pass on, up and down [s]."""
    if not net.transport.stored_s:
        return np.zeros_like(data)
    waiting = np.maximum(data - c.STREAMED_BYTES, 0.0)
    longest = 2 * net.transport.stored_s * bandwidth
    return 2 * net.rounds * net.transport.stored_s * waiting / _positive(waiting + longest)


def _latency_s(net: Network, base_s: float, hops_s: Floats) -> Floats:
    return base_s * net.generation.base_factor + hops_s * net.generation.hop_factor


def _by_nodes(net: Network, one: float, two: float, more: float) -> Floats:
    return np.where(net.nodes <= 1, one, np.where(net.nodes <= 2, two, more))


def _ring(net: Network, data: Floats, passes: int) -> list[Route]:
    n, bus = net.groups.size, net.bus_bytes_per_s
    bus_bytes, own_s = data * passes * (n - 1) / n, data / n / net.copy_bytes_per_s
    caps = (np.minimum(_by_nodes(net, *net.generation.ll_max_bytes_per_s), c.LL_SHARE * bus), c.LL128_SHARE * bus, bus)
    found = []
    for index, (protocol, bandwidth) in enumerate(zip(c.PROTOCOLS, caps, strict=True)):
        latency = _latency_s(net, c.RING_BASE_S[index], passes * _ring_hops_s(net, index))
        time = bus_bytes / bandwidth + own_s + _messages_s(net, data / n, passes * (net.nodes - 1))
        if protocol == "Simple":
            plateau = np.where(net.nodes > 1, c.RING_PLATEAU if passes == 2 else 1.0, 1.0)
            latency, time = latency * plateau, time + step_overhead_s(data, passes * net.steps)
        found.append(Route("ring", protocol, latency, latency + time))
    return found


def _tree(net: Network, data: Floats) -> list[Route]:
    # On two nodes each sends its sum up or the result down, not both, so that the NICs do not halve the rate
    # (tuning.cc takes the intra-node speed there); beyond, an inner node of the double tree passes everything twice.
    edge = np.minimum(net.intra_bytes_per_s, np.where(net.nodes <= 2, 2.0, 1.0) * net.inter_bytes_per_s)
    cap = np.where(net.local > 1, _by_nodes(net, *net.generation.tree_cap) * net.wire_bytes_per_s, np.inf)
    bus = np.minimum(c.TREE_SHARE * edge, cap)
    low = np.minimum(c.TREE_LL_SHARE * bus, _by_nodes(net, *net.generation.ll_max_bytes_per_s))
    rendezvous_s = _messages_s(net, data, 2 * net.rounds)
    found = []
    for index, (protocol, bandwidth) in enumerate(zip(c.PROTOCOLS, (low, c.TREE_LL128_SHARE * bus, bus), strict=True)):
        latency = _latency_s(net, c.TREE_BASE_S[index], 2 * _tree_hops_s(net, index))
        time = 2 * data / bandwidth + rendezvous_s + _stored_s(net, data, bus)
        if protocol == "Simple":
            time = time + step_overhead_s(data, 2 * _tree_steps(net))
        found.append(Route("tree", protocol, latency, latency + time))
    return found


def _tree_steps(net: Network) -> Floats:
    """Pipeline steps up a tree: the chain in the domain, the first exchange of domains, and the inner nodes above it.

    An inner node passes on what its own domain has added up, so each level above the first waits for the domain too.
    """
    first = np.minimum(net.rounds, 1.0)
    above = np.maximum(c.TREE_STEPS_PER_LEVEL, net.local) * (net.rounds - first)
    return net.local - 1 + c.TREE_STEPS_PER_LEVEL * first + above


def _nvls_bus_bytes_per_s(net: Network) -> Floats:
    """AllReduce bus bandwidth of NVLink switch reduction: each GPU moves (g+1)/g of the data (search.cc)."""
    g = net.local
    spread = np.minimum((g - 1) / (g + 1) * (9 / 7), 1.0)
    return net.generation.nvls_share * net.wire_bytes_per_s * spread


def _nvls_allreduce(net: Network, data: Floats) -> list[Route]:
    if not net.nvls or net.generation.nvls_share == 0:
        return []
    n, inter, switch = net.groups.size, net.inter_bytes_per_s, _nvls_bus_bytes_per_s(net)
    bus_bytes = data * 2 * (n - 1) / n
    hop_factor, base = net.generation.hop_factor, net.generation.nvls_latency_s
    possible = (net.local > 1) & (net.local * net.nodes == n)
    overhead = step_overhead_s(data, 2 * _tree_steps(net)) + _messages_s(net, data, 2 * net.rounds)
    overhead = overhead + _stored_s(net, data, np.minimum(switch, inter))

    two, more = (cap * net.wire_bytes_per_s for cap in net.generation.nvls_tree_cap)
    bound = np.where(net.nodes <= 2, np.minimum(2 * inter, two), np.minimum(inter, more))
    bus = np.where(net.nodes <= 1, switch, np.minimum(switch, bound))
    latency = base + hop_factor * 2 * _network_hops_s(net, c.NVLS_TREE_NET_HOP_S)
    tree = _possible(possible, "NVLS", latency, bus_bytes / _positive(bus) + overhead)

    # With SHARP each NIC sends its part once instead of twice; the NVLink phases then bind.
    bus = np.minimum(switch, 2 * inter)
    latency = base + hop_factor * _network_top_s(net, c.NVLS_NET_HOP_S)
    overhead = step_overhead_s(data, 2 * (net.local - 1) + 2 * c.TREE_STEPS_PER_LEVEL)
    added = possible & (net.nodes > 1) & net.network_adds
    return [tree, _possible(added, "NVLS+SHARP", latency, bus_bytes / _positive(bus) + overhead)]


def _nvls_gather(net: Network, data: Floats) -> list[Route]:
    if not net.nvls or net.generation.nvls_share == 0:
        return []
    possible = (net.nodes <= 1) & (net.local > 2)
    latency = np.full_like(net.nodes, net.generation.nvls_latency_s)
    time = data / (c.NVLS_GATHER_SHARE * net.wire_bytes_per_s) + step_overhead_s(data, net.local - 1)
    return [_possible(possible, "NVLS", latency, time)]


def _pat(net: Network, data: Floats) -> list[Route]:
    """AllGather / ReduceScatter in log2(n) network steps, for groups with one GPU per node (NCCL 2.23 and later)."""
    n = net.groups.size
    hops = _network_hops_s(net, c.TREE_HOP_S["net"][2]) / c.PAT_NET_DIVISOR + c.PAT_PER_RANK_S * n
    latency = _latency_s(net, c.PAT_BASE_S, hops)
    time = data * (n - 1) / n / (c.PAT_BANDWIDTH * net.inter_bytes_per_s)
    return [_possible((net.local <= 1) & (net.nodes > 1), "PAT", latency, time + step_overhead_s(data, np.log2(n)))]


def _possible(possible: Bools, algorithm: str, latency_s: Floats, bytes_s: Floats) -> Route:
    return Route(algorithm, "Simple", latency_s, np.where(possible, latency_s + bytes_s, np.inf))


def _positive(bandwidth: Floats) -> Floats:
    return np.maximum(bandwidth, 1.0)


def _all_to_all(net: Network, data: Floats) -> list[Route]:
    """Grouped point-to-point; NCCL has no cost table for it. One launch, one more hop per peer across the network."""
    n, groups = net.groups.size, net.groups
    per_gpu = net.level_bytes_per_s / groups.inner
    per_gpu[net.domain + 1 :] *= net.transport.p2p_share
    levels = exchanged(data, net.exchange_s_per_byte, data * (1 - groups.inner / n) / per_gpu)
    levels[0] += data / n / net.copy_bytes_per_s
    remote = np.zeros_like(n)
    for index in range(net.domain + 1, len(net.links)):
        row, factor = net.links[index]
        peers = groups.members[index] - groups.members[index - 1]
        remote = remote + peers * (c.RING_HOP_S[row][0] * factor + net.transport.message_s)
    row, factor = net.links[0]
    low, _, simple = c.RING_HOP_S[row]
    first = np.where(data <= c.P2P_LL_BYTES * n, low, simple) * factor
    latency = _latency_s(net, c.RING_BASE_S[2], first + remote)
    return [Route("point-to-point", "Simple", latency, latency + levels.max(axis=0) + step_overhead_s(data, n - 1))]


def _point_to_point(net: Network, data: Floats, *, is_ring: bool) -> list[Route]:
    """Broadcast and Reduce as a pipelined ring, or one send and receive across the outermost level crossed."""
    bus = net.bus_bytes_per_s
    found = []
    for index, share in enumerate((c.LL_SHARE, c.LL128_SHARE, 1.0)):
        latency = _latency_s(net, c.RING_BASE_S[index], _ring_hops_s(net, index))
        cap = _by_nodes(net, *net.generation.ll_max_bytes_per_s) if index == 0 else np.inf
        time = data / np.minimum(cap, share * bus)
        if share == 1.0:
            time = time + step_overhead_s(data, net.steps)
        found.append(Route("ring" if is_ring else "point-to-point", c.PROTOCOLS[index], latency, latency + time))
    return found
