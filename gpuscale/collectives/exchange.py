"""Sends and receives: AllToAll as grouped point-to-point messages, SendRecv, and the chains of Broadcast and Reduce."""

from __future__ import annotations

import numpy as np

from gpuscale.collectives import constants as c
from gpuscale.collectives.network import Network, by_nodes, latency_s, ring_hops_s
from gpuscale.collectives.terms import Fixed, Moved, Over, Route, Slowest, Steps, Term, Total, UpTo


def all_to_all(net: Network) -> list[Route]:
    """Grouped point-to-point; NCCL has no cost table for it. One launch, one more hop per peer across the network."""
    n, groups = net.groups.size, net.groups
    per_gpu = net.level_bytes_per_s / groups.inner
    per_gpu[net.domain + 1 :] *= net.transport.p2p_share
    levels: list[Term] = [Over(Moved(share), rate) for share, rate in zip(1 - groups.inner / n, per_gpu, strict=True)]
    levels[0] = Total((levels[0], Over(Moved(1.0, n), net.copy_bytes_per_s)))
    remote = np.zeros_like(n)
    for index in range(net.domain + 1, len(net.links)):
        row, factor = net.links[index]
        peers = groups.members[index] - groups.members[index - 1]
        remote = remote + peers * (c.RING_HOP_S[row][0] * factor + net.transport.message_s)
    row, factor = net.links[0]
    low, high = (latency_s(net, c.RING_BASE_S[2], hop * factor + remote) for hop in c.RING_HOP_S[row][::2])
    latency = UpTo(c.P2P_LL_BYTES * n, low, high)
    return [Route("point-to-point", "Simple", latency, (Slowest(tuple(levels)), Steps(n - 1)))]


def point_to_point(net: Network, *, is_ring: bool) -> list[Route]:
    """Broadcast and Reduce as a pipelined ring, or one send and receive across the outermost level crossed."""
    n, bus, data = net.groups.size, net.bus_bytes_per_s, Moved(1.0)
    found = []
    for index, share in enumerate((c.LL_SHARE, c.LL128_SHARE, 1.0)):
        latency = Fixed(latency_s(net, c.RING_BASE_S[index], ring_hops_s(net, index)))
        cap = by_nodes(net, *net.generation.ll_max_bytes_per_s) if index == 0 else np.inf
        terms: list[Term] = [Over(data, np.minimum(cap, share * bus))]
        if share == 1.0:
            terms.append(Steps(n - 1))
        found.append(Route("ring" if is_ring else "point-to-point", c.PROTOCOLS[index], latency, tuple(terms)))
    return found
