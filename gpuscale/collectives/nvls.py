"""Reduction in switches: NVLS in an NVLink domain, a tree of domains, and SHARP across the network."""

from __future__ import annotations

import numpy as np

from gpuscale.collectives import constants as c
from gpuscale.collectives.groups import Bools, Floats
from gpuscale.collectives.network import Network, network_hops_s, network_top_s, positive
from gpuscale.collectives.rings import messages, stored, tree_steps
from gpuscale.collectives.terms import Fixed, Moved, Over, Route, Steps, Term, Total


def bus_bytes_per_s(net: Network) -> Floats:
    """AllReduce bus bandwidth of NVLink switch reduction: each GPU moves (g+1)/g of the data (search.cc)."""
    g = net.local
    spread = np.minimum((g - 1) / (g + 1) * (9 / 7), 1.0)
    return net.generation.nvls_share * net.wire_bytes_per_s * spread


def allreduce(net: Network) -> list[Route]:
    """Return NVLS (a tree of domains where there are several) and NVLS with SHARP; none where switches do not add."""
    if not net.nvls or net.generation.nvls_share == 0:
        return []
    n, inter, switch = net.groups.size, net.inter_bytes_per_s, bus_bytes_per_s(net)
    moved = Moved(2 * (n - 1), n)
    hop_factor, base = net.generation.hop_factor, net.generation.nvls_latency_s
    possible = (net.local > 1) & (net.local * net.nodes == n)
    steps = Steps(2 * tree_steps(net))
    overhead = (steps, *messages(net, Moved(1.0), 2 * net.rounds), *stored(net, np.minimum(switch, inter)))

    two, more = (cap * net.wire_bytes_per_s for cap in net.generation.nvls_tree_cap)
    bound = np.where(net.nodes <= 2, np.minimum(2 * inter, two), np.minimum(inter, more))
    bus = np.where(net.nodes <= 1, switch, np.minimum(switch, bound))
    latency = base + hop_factor * 2 * network_hops_s(net, c.NVLS_TREE_NET_HOP_S)
    tree = _where(possible, "NVLS", latency, (Over(moved, positive(bus)), Total(overhead)))

    # With SHARP each NIC sends its part once instead of twice; the NVLink phases then bind.
    bus = np.minimum(switch, 2 * inter)
    latency = base + hop_factor * network_top_s(net, c.NVLS_NET_HOP_S)
    short = Steps(2 * (net.local - 1) + 2 * c.TREE_STEPS_PER_LEVEL)
    added = possible & (net.nodes > 1) & net.network_adds
    if not added.any():
        return [tree]
    return [tree, _where(added, "NVLS+SHARP", latency, (Over(moved, positive(bus)), short))]


def gather(net: Network) -> list[Route]:
    """Return AllGather / ReduceScatter through the switches of one domain; none where they do not add."""
    if not net.nvls or net.generation.nvls_share == 0:
        return []
    possible = (net.nodes <= 1) & (net.local > 2)
    latency = np.full_like(net.nodes, net.generation.nvls_latency_s)
    bandwidth = c.NVLS_GATHER_SHARE * net.wire_bytes_per_s
    return [_where(possible, "NVLS", latency, (Over(Moved(1.0), bandwidth), Steps(net.local - 1)))]


def _where(possible: Bools, algorithm: str, latency_s: Floats, terms: tuple[Term, ...]) -> Route:
    return Route(algorithm, "Simple", Fixed(np.where(possible, latency_s, np.inf)), terms)
