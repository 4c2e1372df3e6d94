"""Rings, trees and PAT: the algorithms of tuning.cc that run on every GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives import constants as c
from gpuscale.collectives.channels import held, share_of_channels
from gpuscale.collectives.network import (
    Network,
    by_nodes,
    latency_s,
    least,
    network_hops_s,
    ring_hops_s,
    tree_hops_s,
)
from gpuscale.collectives.terms import Fixed, Hidden, Messages, Moved, Over, Route, Steps, Stored, Term
from gpuscale.collectives.tuning import PAT_SINCE


def messages(net: Network, message: Moved, hops: FloatArray) -> list[Term]:
    """Return what the size of their messages adds to network hops."""
    rendezvous_s = net.transport.rendezvous_s
    return [Messages(message, hops, rendezvous_s)] if rendezvous_s else []


def stored(net: Network, bandwidth: FloatArray) -> list[Term]:
    """Return what the nodes of a tree wait for data to pass on."""
    stored_s = net.transport.stored_s
    return [Stored(net.rounds, 2 * stored_s * bandwidth, stored_s)] if stored_s else []


def ring(net: Network, passes: int) -> list[Route]:
    """Return the ring with each protocol: once around for a gather or scatter, twice for AllReduce."""
    n, share = net.groups.size, share_of_channels(net)
    caps = _by_protocol(net, held(net, net.bus_bytes_per_s, least))
    moved, block = Moved(passes * (n - 1), n), Moved(1.0, n)
    own = Over(block, net.copy_bytes_per_s)
    queued = net.transport.ring_blocks_queue and passes == 1 and net.alone
    waiting = messages(net, Moved(1.0) if queued else block, passes * (net.nodes - 1))
    found = []
    for index, (protocol, bandwidth) in enumerate(zip(c.PROTOCOLS, caps, strict=True)):
        latency = latency_s(net, c.RING_BASE_S[index], passes * ring_hops_s(net, index))
        bytes_s: list[Term] = [Over(moved, bandwidth), own]
        if protocol == "Simple":
            latency = latency * np.where(net.nodes > 1, c.RING_PLATEAU if passes == 2 else 1.0, 1.0)
            found.append(_simple_ring(net, bytes_s, waiting, (Fixed(latency), Steps(passes * net.steps))))
        else:
            fixed = Fixed(latency)
            found.append(Route("ring", protocol, fixed, (*bytes_s, *waiting, fixed)))
    return _limited(net, found, moved, share) if np.any(share < 1) else found


def _limited(net: Network, found: list[Route], moved: Moved, share: FloatArray | float) -> list[Route]:
    """Note where too few channels bind, not the wire."""
    caps = _by_protocol(net, least(net.links_bytes_per_s) * share)
    limits = (Over(moved, np.where(share < 1, cap, np.inf)) for cap in caps)
    return [replace(route, channels=limit) for route, limit in zip(found, limits, strict=True)]


def _by_protocol(net: Network, bus: FloatArray) -> tuple[FloatArray, ...]:
    """Return what each protocol makes of the bandwidth of a ring."""
    most = by_nodes(net, *net.generation.ll_max_bytes_per_s) * np.minimum(share_of_channels(net), 1.0)
    return np.minimum(most, c.LL_SHARE * bus), c.LL128_SHARE * bus, bus


def _simple_ring(net: Network, bytes_s: list[Term], waiting: list[Term], hops_s: tuple[Fixed, Steps]) -> Route:
    fixed, steps = hops_s
    if not net.alone:
        return Route("ring", "Simple", fixed, (*bytes_s, *waiting, steps, fixed))
    return Route("ring", "Simple", fixed, (Hidden(tuple(bytes_s), (fixed, *waiting, steps), net.nodes),))


def tree(net: Network) -> list[Route]:
    """Return the tree of AllReduce with each protocol."""
    pairs = np.where(net.nodes <= 2, 2.0 if net.transport.tree_of_two or not net.alone else 1.0, 1.0)
    # On two nodes each sends its sum up or the result down, not both, so that the NICs do not halve the rate
    # (tuning.cc takes the intra-node speed there); beyond, an inner node of the double tree passes everything twice.
    edge = np.minimum(net.intra_bytes_per_s, pairs * net.inter_bytes_per_s)
    inside = net.domain + 1
    driven = held(net, edge, lambda links: np.minimum(least(links[:inside]), pairs * least(links[inside:])))
    share = share_of_channels(net)
    cap = np.where(net.local > 1, by_nodes(net, *net.generation.tree_cap) * net.wire_bytes_per_s * share, np.inf)
    bus = np.minimum(c.TREE_SHARE * driven, cap)
    low = np.minimum(c.TREE_LL_SHARE * bus, by_nodes(net, *net.generation.ll_max_bytes_per_s) * np.minimum(share, 1.0))
    moved = Moved(2.0)
    common = [*messages(net, Moved(1.0), 2 * net.rounds), *stored(net, bus)]
    found = []
    for index, (protocol, bandwidth) in enumerate(zip(c.PROTOCOLS, (low, c.TREE_LL128_SHARE * bus, bus), strict=True)):
        fixed = Fixed(_tree_latency_s(net, index))
        moving: list[Term] = [Over(moved, bandwidth), *common]
        if protocol == "Simple":
            moving.append(Steps(2 * tree_steps(net)))
        limit = Over(moved, np.where(np.minimum(cap, driven) < edge, bandwidth, np.inf))
        found.append(Route("tree", protocol, fixed, (*moving, fixed), limit))
    return found


def _tree_latency_s(net: Network, protocol: int) -> FloatArray:
    inside, across = tree_hops_s(net, protocol)
    if not net.alone or c.PROTOCOLS[protocol] != "LL":
        return latency_s(net, c.TREE_BASE_S[protocol], 2 * (inside + across))
    return latency_s(net, c.TREE_BASE_S[protocol], 2 * inside, 2 * across)


def tree_steps(net: Network) -> FloatArray:
    """Pipeline steps up a tree: the chain in the domain, the first exchange of domains, and the inner nodes above it.

    An inner node passes on what its own domain has added up, so each level above the first waits for the domain too.
    """
    first = np.minimum(net.rounds, 1.0)
    above = np.maximum(c.TREE_STEPS_PER_LEVEL, net.local) * (net.rounds - first)
    return net.local - 1 + c.TREE_STEPS_PER_LEVEL * first + above


def pat(net: Network) -> list[Route]:
    """Return AllGather / ReduceScatter in log2(n) network steps, for groups with one GPU per node."""
    n = net.groups.size
    hops = network_hops_s(net, c.TREE_HOP_S["net"][2]) / c.PAT_NET_DIVISOR + c.PAT_PER_RANK_S * n
    latency = latency_s(net, c.PAT_BASE_S, hops)
    possible = (net.local <= 1) & (net.nodes > 1) & np.bool_(net.nccl >= PAT_SINCE)
    bandwidth = c.PAT_BANDWIDTH * net.inter_bytes_per_s
    fixed = Fixed(np.where(possible, latency, np.inf))
    return [Route("PAT", "Simple", fixed, (Over(Moved(n - 1, n), bandwidth), Steps(np.log2(n)), fixed))]
