"""The default model: how long NCCL takes with each algorithm and protocol: latency, link efficiency and channels.

Every algorithm (ring, tree, NVLS, tree of NVLS domains, switch reduction across the network, PAT, point-to-point) has a
function of its own with its formula,

    time = latency of call and hops + bytes moved / bandwidth + what its pipeline steps cost beyond NCCL's tables

for each protocol (LL, LL128, Simple) that it has, and the least of them counts, as NCCL's tuner has it
(src/graph/tuning.cc); the last term is measured. Every term rises with the bytes and falls with bandwidth, so the least
does too. docs/collectives.md says where NCCL goes by its tables instead (`Timing.chosen`).

Names in the formulas: n GPUs of the group, S its bytes (`data`). All arrays are (N,): one collective per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, log2, norm
from gpuscale.collectives import nccl_constants as c
from gpuscale.collectives.channels import (
    SMALLEST_PART_BYTES,
    counts_channels,
    driven,
    links_bytes_per_s,
    peer_channels,
    share_of_channels,
)
from gpuscale.collectives.groups import exchanged
from gpuscale.collectives.ideal import bus_factor
from gpuscale.collectives.network import Network, slowest


class Timing(NamedTuple):
    """What one algorithm with one protocol takes."""

    algorithm: str  #: as NCCL calls it, `point-to-point` for grouped sends and receives.
    protocol: str  #: LL, LL128 or Simple.
    latency_s: FloatArray  #: (N,) the part that does not depend on the bytes; inf where the algorithm cannot run [s].
    time_s: FloatArray  #: (N,) all of it; inf where the algorithm cannot run [s].
    #: (N,) what its channels alone need for the bytes; 0 where they are no limit; None: nowhere [s].
    channels_s: FloatArray | None = None
    chosen: BoolArray | None = None  #: (N,) whether NCCL's tuner may take it; None: wherever it is the fastest.


def taken_s(found: Sequence[Timing]) -> FloatArray:
    """Return the time of what NCCL takes out of these, (N,) [s]: the fastest of those that its tuner may choose; where
    it would choose none, the fastest of all."""
    fastest: FloatArray = np.minimum.reduce([one.time_s for one in found])
    if all(one.chosen is None for one in found):
        return fastest
    times = [one.time_s if one.chosen is None else np.where(one.chosen, one.time_s, np.inf) for one in found]
    left = np.minimum.reduce(times)
    return np.where(np.isfinite(left), left, fastest)


def timings(net: Network, operation: str, data: FloatArray) -> list[Timing]:
    """Return every algorithm and protocol for `operation`, each of `data` bytes, (N,)."""
    found, able = _of_operation(net, operation, data), _writes_ll128(net)
    if able.all():
        return found
    absent = np.where(able, 0.0, np.inf)
    return [one._replace(time_s=one.time_s + absent) if one.protocol == "LL128" else one for one in found]


def _writes_ll128(net: Network) -> BoolArray:
    """Whether groups have LL128, (N,), whose stores of 128 bytes must arrive whole: across nodes not where cards write
    out of order, inside a node, of a collective on its own, not over PCIe (tuning.cc: `typeIntra <= PATH_NVB`)."""
    across = net.transport.ll128 and (net.generation.ll128_across or not net.alone)
    able: BoolArray = np.full(net.nodes.shape, True) if across else net.nodes <= 1
    if not net.alone:
        return able
    slots = [index for index, (row, _) in enumerate(net.links[: net.domain + 1]) if row == "pcie"]
    return able & ~net.groups.crossed[slots].any(axis=0)


def _of_operation(net: Network, operation: str, data: FloatArray) -> list[Timing]:
    if operation == "allreduce":
        return [*ring(net, data, passes=2), *tree(net, data), *nvls_allreduce(net, data), *collnet(net, data)]
    if operation in {"allgather", "reducescatter"}:
        return [*ring(net, data, passes=1), *nvls_gather(net, data), *pat(net, data)]
    if operation == "alltoall":
        return [all_to_all(net, data)]
    return send_receive(net, data) if operation == "sendrecv" else chain(net, data)


def ring(net: Network, data: FloatArray, passes: int) -> list[Timing]:
    """Return the ring (of 1 or 2 `passes`), alone in a node with the protocol that NCCL's tables say for the size, or
    the time of the next one there, so that time never falls with bytes."""
    found = _ring(net, data, passes)
    if not planned_bytes_per_s(net):
        return found
    in_node, able = net.nodes <= 1, _writes_ll128(net)
    ll_end, ll128_end = protocol_ends(net, passes)
    after_ll, after_ll128 = (_ring(net, end, passes) for end in (ll_end, ll128_end))
    between = able & (ll128_end > ll_end)
    simple_s = np.where(between, after_ll128[c.SIMPLE].time_s, after_ll[c.SIMPLE].time_s)
    next_s = np.minimum(simple_s, np.where(between, after_ll[c.LL128].time_s, np.inf))
    is_ll = data <= ll_end
    is_ll128 = between & ~is_ll & (data <= ll128_end)
    windows = (is_ll, next_s), (is_ll128, simple_s), (~(is_ll | is_ll128), np.full_like(data, np.inf))
    planned = []
    for one, (here, most_s) in zip(found, windows, strict=True):
        time_s = np.where(in_node & here, np.minimum(one.time_s, most_s), one.time_s)
        planned.append(one._replace(time_s=time_s, chosen=~in_node | here))
    return planned


def planned_bytes_per_s(net: Network) -> float:
    """Return the bandwidth that NCCL plans rings of a node with; 0 where it is not known, and in a training step."""
    row = net.links[0][0]
    mixed = any(other != row for other, _ in net.links[: net.domain + 1])
    if not net.alone or mixed or net.generation.channels == 0:
        return 0.0
    return c.PCIE_GRAPH_BYTES_PER_S if row == "pcie" else net.generation.graph_bytes_per_s


def protocol_ends(net: Network, passes: int) -> tuple[FloatArray, FloatArray]:
    """Return the bytes up to which NCCL plans a ring of one node with LL, and with LL128, (N,) each: where the lines of
    its tables cross; LL128 never where the second is not above the first."""
    n, generation, graph, row = net.groups.size, net.generation, planned_bytes_per_s(net), net.links[0][0]
    hops = passes * np.maximum(n - 1, 1.0)
    rates = (
        min(generation.ll_max_bytes_per_s[0], c.LL_SHARE * graph),
        min(generation.ring_ll128_bytes_per_s, c.LL128_SHARE * graph),
        graph,
    )
    fixed_s = [base_s + hops * hop_s for base_s, hop_s in zip(c.RING_BASE_S, c.RING_HOP_S[row], strict=True)]

    def crossing(one: int, other: int) -> FloatArray:
        per_byte_s = hops / n * (1 / rates[one] - 1 / rates[other])
        return np.maximum(fixed_s[other] - fixed_s[one], 0.0) / per_byte_s

    ll128, simple = crossing(c.LL, c.LL128), crossing(c.LL, c.SIMPLE)
    return np.where(_writes_ll128(net), np.minimum(ll128, simple), simple), crossing(c.LL128, c.SIMPLE)


def _ring(net: Network, data: FloatArray, passes: int) -> list[Timing]:
    """Return the ring: n - 1 steps of S/n bytes for AllGather and ReduceScatter, 2 (n - 1) for AllReduce (2 `passes`).

    time = latency + 2 (n - 1)/n S / bandwidth + S/n / copy rate + overhead of the steps
    """
    n = net.groups.size
    moved = passes * (n - 1) / n * data
    block = data / n
    own_s = block / net.copy_bytes_per_s
    # A ring that gathers or scatters waits for handshakes of blocks beyond those in its slots.
    queued = net.transport.block_s > 0 and passes == 1 and net.alone
    waiting = np.maximum(1 - c.SLOTS / np.maximum(n - 1, 1.0), 0.0) if queued else 1.0
    messages_s = waiting * _messages_s(net, data if queued else block, passes * (net.nodes - 1))
    messages_s = messages_s + passes * _posted_s(net, block)
    share = share_of_channels(net)
    bandwidths = _ring_bandwidths(net, driven(net, net.bus_bytes_per_s, slowest))
    channels_s: list[FloatArray | None] = [None, None, None]
    if np.any(share < 1):
        limits = _ring_bandwidths(net, slowest(links_bytes_per_s(net)) * share)
        channels_s = [moved / np.where(share < 1, limit, np.inf) for limit in limits]
    found = []
    for index, bandwidth in enumerate(bandwidths):
        latency_s = net.call_s(c.RING_BASE_S[index], passes * net.ring_hops_s(index))
        bytes_s = moved / bandwidth + own_s
        time_s = np.maximum(bytes_s, _lines_s(net, data) if index == c.LL else 0.0) + messages_s + latency_s
        if index == c.SIMPLE:
            if passes == 2:
                latency_s = latency_s * np.where(net.nodes > 1, c.RING_PLATEAU, 1.0)
            steps_s = step_overhead_s(data, passes * net.ring_steps)
            time_s = bytes_s + messages_s + steps_s + latency_s
            if net.alone:  # across nodes hops are under way while the next chunks are sent
                across_s = np.hypot(bytes_s, latency_s + messages_s + steps_s)
                time_s = np.where(net.nodes > 1, across_s, _in_node_s(net, bytes_s, latency_s, passes, time_s))
        found.append(Timing("ring", c.PROTOCOLS[index], latency_s, time_s, channels_s[index]))
    return found


def _lines_s(net: Network, data: FloatArray) -> FloatArray | float:
    """Return the least that LL takes for the bytes of a ring in a node, alone [s]: one channel up to a line per step
    for each of its threads, then more in proportion (enqueue.cc)."""
    if not net.alone or net.generation.channels == 0:
        return 0.0
    n = net.groups.size
    return np.where(net.nodes > 1, 0.0, c.LL_LINES_S * n * np.minimum(data / (c.LL_CHANNEL_BYTES * n), 1.0))


def _in_node_s(
    net: Network, bytes_s: FloatArray, latency_s: FloatArray, passes: int, added_s: FloatArray
) -> FloatArray:
    """Return what a ring with Simple takes in a node, alone [s]: `added_s` where its hops are not hidden; from Hopper
    on what is left of bytes and of all hops but the first is the root of their squares."""
    if not net.generation.hides_hops or net.links[0][0] != "nvlink":
        return added_s
    steps = passes * net.ring_steps
    start_s = net.launched_s(np.full_like(bytes_s, c.RING_BASE_S[c.SIMPLE] * net.generation.base_factor))
    hops_s = latency_s - start_s + c.STEP_OVERHEAD_S * steps
    first_s = hops_s / np.maximum(steps, 1.0)
    return start_s + first_s + np.hypot(bytes_s, hops_s - first_s)


def _ring_bandwidths(net: Network, bus: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    ll_most = net.by_nodes(*net.generation.ll_max_bytes_per_s) * np.minimum(share_of_channels(net), 1.0)
    return np.minimum(ll_most, c.LL_SHARE * bus), c.LL128_SHARE * bus, bus


def chain(net: Network, data: FloatArray) -> list[Timing]:
    """Return Broadcast and Reduce: a ring that is cut open.

    time = latency + S / bandwidth + overhead of the steps
    """
    found = []
    for index, bandwidth in enumerate(_ring_bandwidths(net, driven(net, net.bus_bytes_per_s, slowest))):
        latency_s = net.call_s(c.RING_BASE_S[index], net.ring_hops_s(index))
        steps_s = step_overhead_s(data, net.ring_steps) if index == c.SIMPLE else 0.0
        time_s = data / bandwidth + steps_s + latency_s
        found.append(Timing("ring", c.PROTOCOLS[index], latency_s, time_s))
    return found


def pat(net: Network, data: FloatArray) -> list[Timing]:
    """Return AllGather / ReduceScatter in log2(n) network steps, for groups with one GPU per node.

    time = latency + (n - 1)/n S / bandwidth + overhead of log2(n) steps
    """
    n = net.groups.size
    possible = (net.local <= 1) & (net.nodes > 1)
    if net.nccl < c.PAT_SINCE or not possible.any():
        return []
    hops_s = net.network_hops_s(c.TREE_HOP_S["net"][c.SIMPLE] / c.PAT_NET_DIVISOR) + c.PAT_PER_RANK_S * n
    latency_s = np.where(possible, net.call_s(c.PAT_BASE_S, hops_s), np.inf)
    bytes_s = (n - 1) / n * data / (c.PAT_BANDWIDTH * net.inter_bytes_per_s)
    return [Timing("PAT", "Simple", latency_s, bytes_s + step_overhead_s(data, log2(n)) + latency_s)]


def tree(net: Network, data: FloatArray) -> list[Timing]:
    """Return the tree: all S bytes go up and down every edge.

    time = latency + 2 S / bandwidth + waits of its nodes + overhead of the steps
    """
    pairs = np.where(net.nodes <= 2, 2.0 if net.transport.tree_of_two or not net.alone else 1.0, 1.0)
    # On two nodes each sends its sum up or the result down, so that the NICs do not halve the rate (tuning.cc takes the
    # intra-node speed there); beyond, an inner node of the double tree passes everything twice.
    edge = np.minimum(net.intra_bytes_per_s, pairs * net.inter_bytes_per_s)
    inside, share = net.domain + 1, share_of_channels(net)
    links = driven(net, edge, lambda levels: np.minimum(slowest(levels[:inside]), pairs * slowest(levels[inside:])))
    cap = np.where(net.local > 1, net.by_nodes(*net.generation.tree_cap) * net.wire_bytes_per_s * share, np.inf)
    bus = np.minimum(c.TREE_SHARE * links, cap)
    ll_most = net.by_nodes(*net.generation.ll_max_bytes_per_s) * np.minimum(share, 1.0)
    bandwidths = np.minimum(c.TREE_LL_SHARE * bus, ll_most), c.TREE_LL128_SHARE * bus, bus
    messages_s, stored_s = _messages_s(net, data, 2 * net.rounds), _stored_s(net, data)
    limited = np.minimum(cap, links) < edge
    # In a node a tree is a chain: by the tables no faster than the ring with LL, and half as fast beyond.
    chosen = net.nodes > 1 if planned_bytes_per_s(net) and net.links[0][0] == "nvlink" else None
    found = []
    for index, bandwidth in enumerate(bandwidths):
        inside_s, across_s = net.tree_hops_s(index)
        hops_s = (2 * inside_s, 2 * across_s) if net.alone and index == c.LL else (2 * (inside_s + across_s),)
        latency_s = net.call_s(c.TREE_BASE_S[index], *hops_s)
        steps_s = step_overhead_s(data, 2 * tree_steps(net)) if index == c.SIMPLE else 0.0
        time_s = 2 * data / bandwidth + messages_s + stored_s + steps_s + latency_s
        channels_s = 2 * data / np.where(limited, bandwidth, np.inf)
        found.append(Timing("tree", c.PROTOCOLS[index], latency_s, time_s, channels_s, chosen))
    return found


def tree_steps(net: Network) -> FloatArray:
    """Pipeline steps up a tree: the chain in the domain, the first exchange, and the inner nodes above it, which wait
    for their own domain."""
    first = np.minimum(net.rounds, 1.0)
    above = np.maximum(c.TREE_STEPS_PER_LEVEL, net.local) * (net.rounds - first)
    return net.local - 1 + c.TREE_STEPS_PER_LEVEL * first + above


def nvls_allreduce(net: Network, data: FloatArray) -> list[Timing]:
    """Return NVLS in one domain and the tree of domains; none where switches do not add.

    time = latency + 2 (n - 1)/n S / bandwidth + overhead of the steps
    """
    if not _has_nvls(net):
        return []
    n, inter, base_s = net.groups.size, net.inter_bytes_per_s, net.generation.nvls_latency_s
    one_node, even = net.nodes <= 1, (net.local > 1) & (net.local * net.nodes == n)
    moved = 2 * (n - 1) / n * data
    switch = nvls_bus_bytes_per_s(net) * _heads_share(net)
    tree_cap = _domain_tree_cap(net)
    bandwidth = np.where(one_node, switch, np.minimum(switch, tree_cap))
    steps_s = step_overhead_s(data, 2 * tree_steps(net))
    waits_s = _messages_s(net, data, 2 * net.rounds) + _stored_s(net, data)
    latency_s = base_s + net.generation.hop_factor * 2 * net.network_hops_s(c.NVLS_TREE_NET_HOP_S)
    time_s = moved / bandwidth + (steps_s + waits_s)
    channels_s = moved / np.where(tree_cap < np.minimum(switch, inter), tree_cap, np.inf)
    # By the tables rings are faster where few GPUs head few channels (tuning.cc, nvlsEfficiency).
    chosen = (n > c.NVLS_BEYOND_GPUS) | ~one_node if planned_bytes_per_s(net) else None
    found = [_where(net, even & one_node, Timing("NVLS", "Simple", latency_s, time_s, channels_s, chosen))]
    if net.nccl >= c.NVLS_TREE_SINCE:
        found.append(_where(net, even & ~one_node, Timing("NVLS tree", "Simple", latency_s, time_s, channels_s)))
    return found


def collnet(net: Network, data: FloatArray) -> list[Timing]:
    """Return SHARP: the switches between nodes add up what each node has added up, through NVLS where it has it.

    time = latency + S / what the switches take + overhead of the steps; bound inside by NVLS, or the GPUs' links
    """
    possible = net.network_adds & (net.nodes > 1) & (net.local * net.nodes == net.groups.size)
    if not possible.any():
        return []
    n, inside, hop_factor = net.groups.size, net.local > 1, net.generation.hop_factor
    if _has_nvls(net) and net.nccl >= c.NVLS_TREE_SINCE:
        bus, hop_s = nvls_bus_bytes_per_s(net) * _heads_share(net), c.NVLS_NET_HOP_S
        inside_s = np.full_like(n, net.generation.nvls_latency_s)
    else:
        bus, hop_s = net.intra_bytes_per_s, c.COLLNET_NET_HOP_S
        inside_s = hop_factor * (2 * c.COLLNET_HOP_S + c.COLLNET_PER_GPU_S * (net.local - 1))
    moved = np.where(inside, 2 * (n - 1) / n * data, 0.0)
    bytes_s = np.maximum(moved / bus, data / (c.SHARP_SHARE * net.inter_bytes_per_s))
    latency_s = np.where(inside, inside_s, 0.0) + hop_factor * net.longest_network_hop_s(hop_s)
    time_s = bytes_s + step_overhead_s(data, 2 * (net.local - 1) + 2 * c.TREE_STEPS_PER_LEVEL)
    return [_where(net, possible, Timing("SHARP", "Simple", latency_s, time_s))]


def nvls_gather(net: Network, data: FloatArray) -> list[Timing]:
    """Return AllGather / ReduceScatter through the switches of one domain; none where they do not add.

    time = latency + S / bandwidth + overhead of n - 1 steps
    """
    possible = (net.nodes <= 1) & (net.local > 2)
    if not _has_nvls(net) or not possible.any():
        return []
    latency_s = np.full_like(net.nodes, net.generation.nvls_latency_s)
    bandwidth = c.NVLS_GATHER_SHARE * net.wire_bytes_per_s * _heads_share(net)
    time_s = data / bandwidth + step_overhead_s(data, net.local - 1)
    # By the tables rings are faster in a node of eight, whatever the size.
    chosen = net.groups.size > c.NODE_GPUS if planned_bytes_per_s(net) else None
    return [_where(net, possible, Timing("NVLS", "Simple", latency_s, time_s, chosen=chosen))]


def nvls_bus_bytes_per_s(net: Network) -> FloatArray:
    """AllReduce bus bandwidth of NVLink switch reduction: each GPU moves (g+1)/g of the data (search.cc)."""
    g = net.local
    spread = np.minimum((g - 1) / (g + 1) * (9 / 7), 1.0)
    reached = net.generation.nvls_share * net.wire_bytes_per_s * spread
    if net.nccl < c.NVLS_MODEL_SINCE:
        reached = np.minimum(reached, c.OLD_NVLS_SHARE * _heads_bytes_per_s(net) * 2 * (g - 1) / g)
    return np.maximum(reached, 1.0)  # 0 only where there is no NVLS


def _domain_tree_cap(net: Network) -> FloatArray:
    """What the channels and cards of a tree of domains carry; on two nodes cards send once, beyond twice [bytes/s]."""
    n, inter = net.groups.size, net.inter_bytes_per_s
    two, more = (cap * net.wire_bytes_per_s * share_of_channels(net) for cap in net.generation.nvls_tree_cap)
    cap = np.where(net.nodes <= 2, np.minimum(2 * inter, two), np.minimum(inter, more))
    if net.nccl < c.NVLS_MODEL_SINCE:
        planned = np.minimum(_heads_bytes_per_s(net), np.where(net.nodes <= 2, inter, inter / 2))
        cap = np.minimum(cap, c.OLD_NVLS_SHARE * planned * 2 * (n - 1) / n)
    return np.maximum(cap, 1.0)


def _heads_bytes_per_s(net: Network) -> FloatArray:
    """Bandwidth of the graph: every GPU of the domain heads a channel as fast as its links carry g + 1 of (search.cc);
    in domains beyond a node of eight what their links carry."""
    g = net.local
    link = net.intra_bytes_per_s / (g + 1)
    found = np.zeros_like(g)
    for speed in sorted(net.generation.nvls_speeds_bytes_per_s):
        found = np.where(link >= speed, speed, found)
    return np.where(g <= c.NODE_GPUS, g * found, np.inf)


def _has_nvls(net: Network) -> bool:
    return net.nvls and net.generation.nvls_share > 0 and net.nccl >= c.NVLS_SINCE


def _heads_share(net: Network) -> FloatArray | float:
    """With few channels: each GPU of the domain heads one."""
    if net.tuning is None or net.tuning.channels is None:
        return 1.0
    return np.minimum(net.tuning.channels / net.local, 1.0)


def _where(net: Network, possible: BoolArray, bytes_alone: Timing) -> Timing:
    """Add the latency of the call; inf where the algorithm cannot run."""
    latency_s = np.where(possible, net.launched_s(bytes_alone.latency_s), np.inf)
    return bytes_alone._replace(latency_s=latency_s, time_s=bytes_alone.time_s + latency_s)


def all_to_all(net: Network, data: FloatArray) -> Timing:
    """Return grouped sends and receives, for which NCCL has no cost table; one launch, and a message per remote peer.

        time = latency + (1 - m/n) S / bandwidth per GPU, of the slowest level + messages + overhead of the steps

    with m members in each unit that the level joins; S is the send buffer of one GPU.
    """
    n, groups, inside = net.groups.size, net.groups, net.domain + 1
    per_gpu = net.level_bytes_per_s / groups.inner
    per_gpu[inside:] *= net.transport.message_share(alone=net.alone)
    even_s = (1 - groups.inner / n) * data / per_gpu
    levels_s = exchanged(data, net.exchange_s_per_byte, even_s) * net.busiest
    if net.alone and counts_channels(net):  # in a training step DeepEP and its like exchange tokens on their own
        found, imbalance = peer_channels(net), net.tuning.imbalance if net.tuning else 1.0
        rate = np.where(net.local > 1, net.generation.channel_bytes_per_s, np.inf) / imbalance
        part_s = np.maximum(found.part_of(data / n) / rate, smallest_part_s(net, data / n) * imbalance)
        channels_s = np.maximum(part_s, (n - 1) / n * data / (found.total * rate))
        moved_s, steps = blended_s(levels_s.max(axis=0), channels_s), (n - 1) * c.PEER_STEPS
    else:
        levels_s[0] += data / n / net.copy_bytes_per_s
        channels_s, moved_s, steps = None, levels_s.max(axis=0), n - 1
    row, factor = net.links[0]
    small_s, large_s = (
        net.call_s(c.RING_BASE_S[c.SIMPLE], np.full_like(n, c.RING_HOP_S[row][protocol] * factor))
        for protocol in (c.LL, c.SIMPLE)
    )
    if _knows_parts(net):
        large_s = _local_simple_s(net, small_s, factor)
    local_s = np.where(data <= c.P2P_LL_BYTES * n, small_s, large_s)
    across_s = remote_send_s(net) + (n - net.local) * net.transport.message_s
    latency_s = net.launched_s(np.where(net.nodes > 1, across_s, local_s), n)
    time_s = latency_s + moved_s + (n - net.local) * _sent_s(net, data / n) + step_overhead_s(data, steps)
    time_s = time_s + _local_lines_s(net, data / n)
    return Timing("point-to-point", "Simple", latency_s, time_s, channels_s)


def _knows_parts(net: Network) -> bool:
    """Whether it is known how NCCL cuts messages in a node, of a collective on its own."""
    return net.alone and net.links[0][0] != "net" and net.generation.channels > 0


def _local_simple_s(net: Network, small_s: FloatArray, factor: float) -> FloatArray:
    """Return base and hop of messages with Simple in a node, alone [s]: not before the longest with LL is there."""
    generation, row = net.generation, net.links[0][0]
    hop_s = c.RING_HOP_S[row][c.SIMPLE] * factor * (generation.simple_hop_factor or generation.hop_factor)
    start_s = np.full_like(small_s, c.RING_BASE_S[c.SIMPLE] * generation.base_factor + hop_s)
    return np.maximum(net.launched_s(start_s), small_s + c.P2P_LL_BYTES / c.P2P_LL_BYTES_PER_S)


def _local_lines_s(net: Network, message: FloatArray) -> FloatArray | float:
    if not _knows_parts(net):
        return 0.0
    here = (net.nodes <= 1) & (message <= c.P2P_LL_BYTES)
    return np.where(here, message / c.P2P_LL_BYTES_PER_S, 0.0)


def smallest_part_s(net: Network, message: FloatArray) -> FloatArray:
    """Return what one channel takes for the smallest part that NCCL cuts a message in a node into, alone [s]."""
    if not net.alone:
        return np.zeros_like(message)
    rate = max(net.generation.channel_bytes_per_s, c.PART_BYTES_PER_S)
    return np.where(net.nodes > 1, 0.0, np.minimum(message, SMALLEST_PART_BYTES) / rate)


def send_receive(net: Network, data: FloatArray) -> list[Timing]:
    """Return SendRecv: every GPU sends to the next of its group and receives from the one before; two are a pair.

    time = latency + S / bandwidth per GPU + overhead of one step
    """
    wire = slowest(net.level_bytes_per_s / net.groups.inner)
    one_node = net.nodes <= 1
    remote_s = net.launched_s(remote_send_s(net) + _sent_s(net, data))
    found = []
    for index, share in enumerate((c.LL_SHARE, c.LL128_SHARE, 1.0)):
        local_s = net.call_s(c.RING_BASE_S[index], net.longest_hop_s(index))
        latency_s = np.where(one_node, local_s, remote_s if index == c.SIMPLE else np.inf)
        cap = net.by_nodes(*net.generation.ll_max_bytes_per_s) if index == c.LL else np.inf
        moved_s = data / np.minimum(cap, share * wire)
        channels_s = None
        if counts_channels(net):
            channels = peer_channels(net)
            inside_s = channels.part_of(data) / np.where(one_node, net.generation.channel_bytes_per_s * share, np.inf)
            inside_s = np.maximum(inside_s, smallest_part_s(net, data) / share)
            card_rate = channels.most * c.NET_CHANNEL_BYTES_PER_S * share
            across_s = data / np.where(one_node, np.inf, card_rate)
            channels_s = np.maximum(inside_s, across_s)
            moved_s = np.maximum(blended_s(moved_s, inside_s), across_s)
        steps_s = step_overhead_s(data, np.minimum(net.groups.size - 1, 1.0)) if index == c.SIMPLE else 0.0
        time_s = moved_s + steps_s + latency_s
        found.append(Timing("point-to-point", c.PROTOCOLS[index], latency_s, time_s, channels_s))
    return found


def remote_send_s(net: Network) -> FloatArray:
    """Return base and hop of a send across nodes, whose shared buffers only Simple has (src/transport/net.cc) [s]."""
    hop_s = net.longest_network_hop_s(c.RING_HOP_S["net"][c.SIMPLE])
    return c.RING_BASE_S[c.SIMPLE] * net.generation.base_factor + hop_s * net.transport.hop_factor


def _sent_s(net: Network, message: FloatArray) -> FloatArray:
    """What the CPU takes: for the parts of a message, or a copy of a tiny one [s]."""
    kind = net.transport
    parts_s = kind.posted_s * net.stripes * message / (message + kind.posted_half_bytes)
    return np.where(net.nodes > 1, parts_s + np.where(message <= kind.inlined_bytes, kind.inlined_s, 0.0), 0.0)


def step_overhead_s(data: FloatArray, steps: FloatArray) -> FloatArray:
    """Measured excess of a Simple pipeline of `steps` steps [s]; nothing for small messages, constant for large."""
    knee_bytes = np.maximum(data + c.STEP_KNEE_BYTES * steps, 1.0)  # 0 only where nothing is sent
    return c.STEP_OVERHEAD_S * steps * data / knee_bytes


def _messages_s(net: Network, message: FloatArray, hops: FloatArray) -> FloatArray | float:
    """Handshakes of libfabric [s]."""
    if not net.transport.rendezvous_s:
        return 0.0
    doublings = log2(1 + np.minimum(message, c.RENDEZVOUS_BYTES) / c.EAGER_BYTES)
    return hops * net.transport.rendezvous_s * doublings


def _posted_s(net: Network, block: FloatArray) -> FloatArray:
    """Return what the blocks of one pass of a ring across nodes take beside their hops [s]: in every step, where the
    CPU posts them; for every node, where the card follows a handshake."""
    kind, doublings = net.transport, log2(1 + np.minimum(block, c.CHUNK_BYTES) / c.EAGER_BYTES)
    step_s = kind.step_s * net.stripes * block / np.maximum(block + kind.step_half_bytes, 1.0)
    nodes_s = (net.nodes - 1) * kind.block_s * doublings if net.alone else 0.0
    return np.where(net.nodes > 1, (net.groups.size - 1) * step_s + nodes_s, 0.0)


def _stored_s(net: Network, data: FloatArray) -> FloatArray:
    """What the nodes of a tree wait for data to pass on, up and down, beyond the first exchange [s]."""
    first = np.where(net.nodes > 2, 1.0, 0.0) if net.transport.tree_of_two else 1.0
    levels, waiting = np.maximum(2 * net.rounds - 1, 0.0) * first, np.maximum(data - c.STREAMED_BYTES, 0.0)
    return levels * net.transport.stored_s * waiting / (waiting + net.transport.stored_half_bytes)


def blended_s(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the time of two limits that hold at the same time and slow each other down where they are close [s].

    time = (one^4 + other^4)^(1/4)
    """
    return norm(one, other, c.CHANNEL_BLEND)


def level_times_s(net: Network, operation: str, data: FloatArray, algorithm: str) -> FloatArray:
    """Return what the bytes of `algorithm` alone take at each level [s], shape (L, N); 0 where none cross."""
    n, m, rate = net.groups.size, net.groups.inner, net.level_bytes_per_s
    if operation == "alltoall":
        return exchanged(data, net.exchange_s_per_byte, data * (m - m**2 / n) / rate) * net.busiest
    if operation == "sendrecv":
        return data * m / rate
    times = data * bus_factor(operation, n) / rate
    if operation == "allreduce" and (algorithm.startswith("NVLS") or (algorithm == "SHARP" and _has_nvls(net))):
        inside = net.groups.crossed[: net.domain + 1]
        times[: net.domain + 1] = np.where(inside, data * bus_factor(operation, n) / nvls_bus_bytes_per_s(net), 0.0)
    if algorithm == "SHARP":
        times[net.domain + 1 :] = data / (c.SHARP_SHARE * rate[net.domain + 1 :])
    elif operation == "allreduce" and algorithm != "ring" and net.nodes.max() <= 2:
        times[net.domain + 1 :] /= 2
    return times
