"""Rings, trees and PAT: the algorithms of tuning.cc that run on every GPU."""

from __future__ import annotations

import numpy as np

from gpuscale.collectives import constants as c
from gpuscale.collectives.groups import Floats
from gpuscale.collectives.network import (
    Network,
    by_nodes,
    latency_s,
    network_hops_s,
    positive,
    ring_hops_s,
    tree_hops_s,
)
from gpuscale.collectives.terms import Fixed, Messages, Moved, Over, Route, Steps, Stored, Term


def messages(net: Network, message: Moved, hops: Floats) -> list[Term]:
    """Return what the size of their messages adds to network hops."""
    rendezvous_s = net.transport.rendezvous_s
    return [Messages(message, hops, rendezvous_s)] if rendezvous_s else []


def stored(net: Network, bandwidth: Floats) -> list[Term]:
    """Return what the nodes of a tree wait for data to pass on."""
    stored_s = net.transport.stored_s
    return [Stored(net.rounds, 2 * stored_s * bandwidth, stored_s)] if stored_s else []


def ring(net: Network, passes: int) -> list[Route]:
    """Return the ring with each protocol: once around for a gather or scatter, twice for AllReduce."""
    n, bus = net.groups.size, net.bus_bytes_per_s
    caps = (np.minimum(by_nodes(net, *net.generation.ll_max_bytes_per_s), c.LL_SHARE * bus), c.LL128_SHARE * bus, bus)
    moved, block = Moved(passes * (n - 1), n), Moved(1.0, n)
    common: list[Term] = [Over(block, net.copy_bytes_per_s), *messages(net, block, passes * (net.nodes - 1))]
    found = []
    for index, (protocol, bandwidth) in enumerate(zip(c.PROTOCOLS, caps, strict=True)):
        latency = latency_s(net, c.RING_BASE_S[index], passes * ring_hops_s(net, index))
        terms: list[Term] = [Over(moved, bandwidth), *common]
        if protocol == "Simple":
            latency = latency * np.where(net.nodes > 1, c.RING_PLATEAU if passes == 2 else 1.0, 1.0)
            terms.append(Steps(passes * (n - 1)))
        found.append(Route("ring", protocol, Fixed(latency), tuple(terms)))
    return found


def tree(net: Network) -> list[Route]:
    """Return the tree of AllReduce with each protocol."""
    # On two nodes each sends its sum up or the result down, not both, so that the NICs do not halve the rate
    # (tuning.cc takes the intra-node speed there); beyond, an inner node of the double tree passes everything twice.
    edge = np.minimum(net.intra_bytes_per_s, np.where(net.nodes <= 2, 2.0, 1.0) * net.inter_bytes_per_s)
    cap = np.where(net.local > 1, by_nodes(net, *net.generation.tree_cap) * net.wire_bytes_per_s, np.inf)
    bus = np.minimum(c.TREE_SHARE * edge, cap)
    low = np.minimum(c.TREE_LL_SHARE * bus, by_nodes(net, *net.generation.ll_max_bytes_per_s))
    moved = Moved(2.0)
    common = [*messages(net, Moved(1.0), 2 * net.rounds), *stored(net, bus)]
    found = []
    for index, (protocol, bandwidth) in enumerate(zip(c.PROTOCOLS, (low, c.TREE_LL128_SHARE * bus, bus), strict=True)):
        latency = latency_s(net, c.TREE_BASE_S[index], 2 * tree_hops_s(net, index))
        terms: list[Term] = [Over(moved, bandwidth), *common]
        if protocol == "Simple":
            terms.append(Steps(2 * tree_steps(net)))
        found.append(Route("tree", protocol, Fixed(latency), tuple(terms)))
    return found


def tree_steps(net: Network) -> Floats:
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
    possible = (net.local <= 1) & (net.nodes > 1)
    bandwidth = c.PAT_BANDWIDTH * positive(net.inter_bytes_per_s)
    terms = (Over(Moved(n - 1, n), bandwidth), Steps(np.log2(n)))
    return [Route("PAT", "Simple", Fixed(np.where(possible, latency, np.inf)), terms)]
