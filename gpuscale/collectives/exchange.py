"""Sends and receives: AllToAll as grouped point-to-point messages, SendRecv, and the chains of Broadcast and Reduce."""

from __future__ import annotations

import numpy as np

from gpuscale.collectives import constants as c
from gpuscale.collectives.channels import counts_channels, held, peer_channels, share_of_channels
from gpuscale.collectives.network import Network, by_nodes, latency_s, launched_s, least, longest_hop_s, ring_hops_s
from gpuscale.collectives.terms import Blend, Fixed, Moved, Over, Parts, Route, Slowest, Steps, Term, Total, UpTo


def all_to_all(net: Network) -> list[Route]:
    """Grouped point-to-point; NCCL has no cost table for it. One launch, one more hop per peer across the network."""
    n, groups = net.groups.size, net.groups
    per_gpu = net.level_bytes_per_s / groups.inner
    per_gpu[net.domain + 1 :] *= net.transport.p2p_share
    shares = 1 - groups.inner / n
    if net.exchange_s_per_byte is not None:
        wired = net.exchange_s_per_byte > 0
        shares = np.where(wired, 1.0, shares)
        per_gpu = np.where(wired, 1 / np.where(wired, net.exchange_s_per_byte, 1.0), per_gpu)
    shares = shares * net.busiest
    levels: list[Term] = [Over(Moved(share), rate) for share, rate in zip(shares, per_gpu, strict=True)]
    channels: Term | None = None
    moved: Term
    steps = n - 1
    if counts_channels(net):
        channels, steps = _channels_s(net), (n - 1) * c.PEER_STEPS
        moved = Blend(Slowest(tuple(levels)), channels)
    else:
        levels[0] = Total((levels[0], Over(Moved(1.0, n), net.copy_bytes_per_s)))
        moved = Slowest(tuple(levels))
    remote = np.zeros_like(n)
    for index in range(net.domain + 1, len(net.links)):
        row, factor = net.links[index]
        others = groups.members[index] - groups.members[index - 1]
        remote = remote + others * (c.RING_HOP_S[row][0] * factor + net.transport.message_s)
    row, factor = net.links[0]
    hops = (hop * factor + remote for hop in c.RING_HOP_S[row][::2])
    low, high = (launched_s(net, latency_s(net, c.RING_BASE_S[2], hop), messages=n) for hop in hops)
    latency = UpTo(c.P2P_LL_BYTES * n, low, high)
    return [Route("point-to-point", "Simple", latency, (latency, moved, Steps(steps)), channels)]


def _channels_s(net: Network) -> Term:
    """Return what NCCL's channels take for the messages to all peers at the same time."""
    n, found = net.groups.size, peer_channels(net)
    imbalance = net.tuning.imbalance if net.tuning else 1.0
    rate = np.where(net.local > 1, net.generation.channel_bytes_per_s, np.inf) / imbalance
    parts = Parts(Moved(1.0, n), found.least, found.most, found.part_bytes, rate)
    return Slowest((parts, Over(Moved(n - 1, n), found.total * rate)))


def send_receive(net: Network) -> list[Route]:
    """Every GPU sends to the next of its group and receives from the one before; two of them are a pair."""
    n = net.groups.size
    wire = (net.level_bytes_per_s / net.groups.inner).min(axis=0, initial=np.inf)
    data = Moved(1.0)
    routes = []
    for index, share in enumerate((c.LL_SHARE, c.LL128_SHARE, 1.0)):
        latency = Fixed(latency_s(net, c.RING_BASE_S[index], longest_hop_s(net, index)))
        cap = by_nodes(net, *net.generation.ll_max_bytes_per_s) if index == 0 else np.inf
        moving: list[Term] = [Over(data, np.minimum(cap, share * wire))]
        channels: Term | None = None
        if counts_channels(net):
            parts, cards = _pair_channels_s(net, share)
            channels = Slowest((parts, cards))
            moving = [Slowest((Blend(moving[0], parts), cards))]
        if share == 1.0:
            moving.append(Steps(np.minimum(n - 1, 1.0)))
        routes.append(Route("point-to-point", c.PROTOCOLS[index], latency, (*moving, latency), channels))
    return routes


def _pair_channels_s(net: Network, share: float) -> tuple[Term, Term]:
    """Return what NCCL's channels take for one message inside a node, and across nodes, with a protocol's share."""
    found, alone, data = peer_channels(net), net.nodes <= 1, Moved(1.0)
    inside = np.where(alone, net.generation.channel_bytes_per_s * share, np.inf)
    across = np.where(alone, np.inf, found.most * c.NET_CHANNEL_BYTES_PER_S * share)
    return Parts(data, found.least, found.most, found.part_bytes, inside), Over(data, across)


def chain(net: Network) -> list[Route]:
    """Broadcast and Reduce: a ring that is cut open, every GPU passing on what arrives."""
    data, fewer = Moved(1.0), np.minimum(share_of_channels(net), 1.0)
    bus = held(net, net.bus_bytes_per_s, least)
    most = by_nodes(net, *net.generation.ll_max_bytes_per_s) * fewer
    found = []
    for index, share in enumerate((c.LL_SHARE, c.LL128_SHARE, 1.0)):
        latency = Fixed(latency_s(net, c.RING_BASE_S[index], ring_hops_s(net, index)))
        cap = most if index == 0 else np.inf
        moving: list[Term] = [Over(data, np.minimum(cap, share * bus))]
        if share == 1.0:
            moving.append(Steps(net.steps))
        found.append(Route("ring", c.PROTOCOLS[index], latency, (*moving, latency)))
    return found
