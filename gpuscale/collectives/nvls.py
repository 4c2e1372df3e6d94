"""Reduction in switches: NVLS in an NVLink domain, a tree of domains, and SHARP across the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.collectives import constants as c
from gpuscale.collectives.channels import share_of_channels
from gpuscale.collectives.network import Network, launched_s, network_hops_s, network_top_s, positive
from gpuscale.collectives.rings import messages, stored, tree_steps
from gpuscale.collectives.terms import Fixed, Moved, Over, Route, Steps, Term, Total
from gpuscale.collectives.tuning import NVLS_MODEL_SINCE, NVLS_SINCE, NVLS_TREE_SINCE


def bus_bytes_per_s(net: Network) -> FloatArray:
    """AllReduce bus bandwidth of NVLink switch reduction: each GPU moves (g+1)/g of the data (search.cc)."""
    g = net.local
    spread = np.minimum((g - 1) / (g + 1) * (9 / 7), 1.0)
    reached = net.generation.nvls_share * net.wire_bytes_per_s * spread
    if net.nccl >= NVLS_MODEL_SINCE:
        return reached
    return np.minimum(reached, c.OLD_NVLS_SHARE * _heads_bytes_per_s(net) * 2 * (g - 1) / g)


def _heads_bytes_per_s(net: Network) -> FloatArray:
    """Bandwidth of the graph: every GPU of the domain heads a channel as fast as its links carry g + 1 of (search.cc).

    Domains of more GPUs than a node of eight have no such graph; they keep what their links carry.
    """
    g, speeds = net.local, net.generation.nvls_speeds_bytes_per_s
    link = net.intra_bytes_per_s / (g + 1)
    found = np.zeros_like(g)
    for speed in sorted(speeds):
        found = np.where(link >= speed, speed, found)
    return np.where(g <= 8, g * found, np.inf)


def allreduce(net: Network) -> list[Route]:
    """Return NVLS (a tree of domains where there are several) and NVLS with SHARP; none where switches do not add."""
    if not _available(net):
        return []
    n, inter, switch = net.groups.size, net.inter_bytes_per_s, bus_bytes_per_s(net) * _heads(net)
    moved = Moved(2 * (n - 1), n)
    hop_factor, base = net.generation.hop_factor, net.generation.nvls_latency_s
    possible = (net.local > 1) & (net.local * net.nodes == n)
    if net.nccl < NVLS_TREE_SINCE:
        possible &= net.nodes <= 1
    steps = Steps(2 * tree_steps(net))
    overhead = (steps, *messages(net, Moved(1.0), 2 * net.rounds), *stored(net, np.minimum(switch, inter)))

    share = share_of_channels(net)
    two, more = (cap * net.wire_bytes_per_s * share for cap in net.generation.nvls_tree_cap)
    bound = np.where(net.nodes <= 2, np.minimum(2 * inter, two), np.minimum(inter, more))
    if net.nccl < NVLS_MODEL_SINCE:
        planned = np.minimum(_heads_bytes_per_s(net), np.where(net.nodes <= 2, inter, inter / 2))
        bound = np.minimum(bound, c.OLD_NVLS_SHARE * planned * 2 * (n - 1) / n)
    bus = np.where(net.nodes <= 1, switch, np.minimum(switch, bound))
    latency = base + hop_factor * 2 * network_hops_s(net, c.NVLS_TREE_NET_HOP_S)
    tree = _where(net, possible, "NVLS", latency, (Over(moved, positive(bus)), Total(overhead)))
    tree = replace(tree, channels=Over(moved, positive(np.where(bound < np.minimum(switch, inter), bound, np.inf))))

    # With SHARP each NIC sends its part once instead of twice; the NVLink phases then bind.
    bus = np.minimum(switch, 2 * inter)
    latency = base + hop_factor * network_top_s(net, c.NVLS_NET_HOP_S)
    short = Steps(2 * (net.local - 1) + 2 * c.TREE_STEPS_PER_LEVEL)
    added = possible & (net.nodes > 1) & net.network_adds
    if not added.any():
        return [tree]
    return [tree, _where(net, added, "NVLS+SHARP", latency, (Over(moved, positive(bus)), short))]


def gather(net: Network) -> list[Route]:
    """Return AllGather / ReduceScatter through the switches of one domain; none where they do not add."""
    if not _available(net):
        return []
    possible = (net.nodes <= 1) & (net.local > 2)
    latency = np.full_like(net.nodes, net.generation.nvls_latency_s)
    bandwidth = c.NVLS_GATHER_SHARE * net.wire_bytes_per_s * _heads(net)
    return [_where(net, possible, "NVLS", latency, (Over(Moved(1.0), bandwidth), Steps(net.local - 1)))]


def _available(net: Network) -> bool:
    return net.nvls and net.generation.nvls_share > 0 and net.nccl >= NVLS_SINCE


def _heads(net: Network) -> FloatArray | float:
    """Return the share of the switches' bandwidth that is left with few channels; each GPU of the domain heads one."""
    if net.tuning is None or net.tuning.channels is None:
        return 1.0
    return np.minimum(net.tuning.channels / net.local, 1.0)


def _where(net: Network, possible: BoolArray, algorithm: str, latency_s: FloatArray, moving: tuple[Term, ...]) -> Route:
    fixed = Fixed(np.where(possible, launched_s(net, latency_s), np.inf))
    return Route(algorithm, "Simple", fixed, (*moving, fixed))
