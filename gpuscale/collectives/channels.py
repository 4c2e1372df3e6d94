"""How many channels (CTAs, thread blocks on SMs) NCCL gives a collective or a pair of GPUs, and what they move.

Counted as NCCL's logs and NCCL_MAX_NCHANNELS do: the communicator runs every ring and tree of its graph twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives import nccl_constants as c
from gpuscale.collectives.groups import cards_reached
from gpuscale.collectives.network import Network
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec, LevelSpec

PEERS_PER_ROUND = 8
"""device.h, NCCL_MAX_DEV_WORK_P2P_PER_BATCH: peers that one channel serves at the same time."""

PART_BYTES = 2.0**24
"""enqueue.cc: largest part of a message inside a node that NCCL leaves to one channel while there are more [bytes]."""

SMALLEST_PART_BYTES = 2.0**16
"""enqueue.cc: smallest part of a message, an eighth of a step of the buffer: up to it a message has one channel
[bytes]."""

NET_PART_BYTES = 2.0**19
"""enqueue.cc: the same across nodes: one step of the buffer [bytes]."""


def check_channels(cluster: ClusterSpec, tuning: c.Tuning | None) -> None:
    """Refuse, by an `InputError`, channels on GPUs for which NCCL's own number of them is not known."""
    if tuning is not None and tuning.channels is not None and not knows_channels(cluster):
        hint = "the model has NCCL's numbers, for NVIDIA GPUs"
        raise InputError(f"how many channels {cluster.gpu.title} takes is not known", field="channels", hint=hint)


def knows_channels(cluster: ClusterSpec) -> bool:
    """Return whether the model knows how many channels NCCL takes on a cluster's GPUs."""
    return c.generation_of(cluster.gpu.architecture).channels > 0


def graph_channels(net: Network) -> FloatArray:
    """Return the channels that NCCL takes of its own accord, (N,): those of search.cc's graph, twice; across nodes one
    per network card, two from Hopper on where there are no more than four."""
    inside = 2.0 * (c.PCIE_CHANNELS if net.links[0][0] == "pcie" else net.generation.channels)
    cards = np.maximum(net.local * np.minimum(_cards_alone(net, net.domain + 1), 1.0), 1.0)
    if net.generation.splits_cards:
        cards = np.where(cards <= 4, 2 * cards, cards)
    return np.where(net.nodes <= 1, inside, np.minimum(2 * cards, c.MOST_CHANNELS))


def ring_channels(net: Network) -> FloatArray:
    """Return the channels of rings and trees, (N,): those that the user gives, or NCCL's own."""
    if net.tuning is None or net.tuning.channels is None:
        return graph_channels(net)
    return np.full_like(net.nodes, float(net.tuning.channels))


def share_of_channels(net: Network) -> FloatArray | float:
    """Return the channels that the user gives over those that NCCL takes, (N,) or 1: rings and trees with fewer carry
    as much less, with more no more."""
    if net.tuning is None or net.tuning.channels is None:
        return 1.0
    return net.tuning.channels / graph_channels(net)


def driven(net: Network, bus_bytes_per_s: FloatArray, algorithm: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return what the channels that the user gives leave of the bandwidth of rings and trees, (N,) [bytes/s], whether
    other groups use the links too or not.

    Args:
        bus_bytes_per_s: that with all channels.
        algorithm: from the bandwidth of each level, (L, N), to that of the algorithm.
    """
    if net.tuning is None or net.tuning.channels is None:
        return bus_bytes_per_s
    return np.minimum(bus_bytes_per_s, algorithm(links_bytes_per_s(net)) * np.minimum(share_of_channels(net), 1.0))


def links_bytes_per_s(net: Network) -> FloatArray:
    """Return what the links of each level carry for a group that runs alone, whatever the switches do, (L, N)."""
    rows = []
    for index, level in enumerate(net.cluster.levels):
        own = net.groups.inner[index] * level.link_efficiency
        if index == 0:
            own = net.level_bytes_per_s[0] / level.egress_bytes_per_s
        rows.append(own * level.link_bytes_per_s * (_cards_alone(net, index) / level.nics_per_gpu))
    return np.where(net.groups.crossed, np.array(rows), np.inf)


def _cards_alone(net: Network, index: int) -> FloatArray:
    """Of level `index`, where no other group runs, (N,)."""
    whole = net.cluster.whole or net.cluster
    level = whole.levels[min(index, len(whole.levels) - 1)]
    return level.nics_per_gpu * cards_reached(whole, level, net.groups.members[0])


def channels_of(net: Network, algorithm: str, message: float | None = None) -> int:
    """Return the channels that an algorithm (as `nccl.Timing` has it) takes over the first group, for the only message
    of a GPU of so many bytes or for one to each; 0 where the model does not know."""
    if net.generation.channels == 0:
        return 0
    if algorithm == "NVLS":
        return int((net.tuning and net.tuning.channels) or net.local[0])
    if algorithm != "point-to-point":
        return int(ring_channels(net)[0])
    found = peer_channels(net)
    if message is None:
        return int(found.total[0])
    return int(np.clip(np.ceil(message / found.part_bytes[0]), found.least[0], found.most[0]))


def counts_channels(net: Network) -> bool:
    """Return whether what channels of grouped sends and receives move is known."""
    return bool(np.isfinite(net.generation.channel_bytes_per_s)) and net.links[0][0] != "pcie"


class PeerChannels(NamedTuple):
    """Channels of grouped sends and receives, (N,) each (paths.cc, ncclTopoComputeP2pChannels; enqueue.cc)."""

    total: FloatArray  #: all that a GPU runs.
    least: FloatArray  #: those of one message; more where its parts would be larger than `part_bytes`.
    most: FloatArray  #: those of one large message.
    part_bytes: FloatArray  #: where parts become too large.

    def part_of(self, message: FloatArray) -> FloatArray:
        """Return the bytes of a message that each of its channels moves. NCCL doubles the channels until a part is no
        larger than `part_bytes`; between its steps the time would fall with the bytes, here it stays."""
        return np.minimum(message / self.least, np.maximum(message / self.most, self.part_bytes))


def peer_channels(net: Network) -> PeerChannels:
    """Return the channels that grouped sends and receives of each group get."""
    n, alone, first = net.groups.size, net.nodes <= 1, net.cluster.levels[0]
    links_per_peer = net.cluster.gpu.links if first.switches else net.cluster.gpu.links // max(first.gpus - 1, 1)
    if first.fabric == "pcie":
        links_per_peer = 1
    total = _power_above(ring_channels(net))
    inside = np.minimum(_power_above(np.full_like(n, 2.0 * max(links_per_peer, 1))), total)
    outer = net.cluster.levels[min(net.domain + 1, len(net.cluster.levels) - 1)]
    most = np.where(alone, inside, _channels_across(net, total, outer))
    least = np.minimum(most, np.maximum(_power_below(total / n), 1.0))
    return PeerChannels(total, least, most, np.where(alone, PART_BYTES, NET_PART_BYTES))


def _channels_across(net: Network, total: FloatArray, level: LevelSpec) -> FloatArray:
    n, cards = net.groups.size, max(level.nics_per_gpu, 1.0)
    if net.nccl < c.NET_CHANNELS_SINCE:
        crowded = 2 * n > 4 * total  # more than eight messages on a channel, and it loses a warp to waiting
        return np.minimum(np.maximum(np.where(crowded, 1.0, 2.0), cards), total)
    needed = _power_above(np.array(max(cards, np.ceil(level.link_bytes_per_s / c.NET_CHANNEL_BYTES_PER_S))))
    rounds = np.ceil(n / PEERS_PER_ROUND)
    return np.maximum(np.minimum(needed, _power_below(total / rounds)), 1.0)


def _power_above(count: FloatArray) -> FloatArray:
    mantissa, exponent = np.frexp(count)  # 0.5 is a power of 2 itself
    return np.ldexp(1.0, exponent - (mantissa == 0.5))


def _power_below(count: FloatArray) -> FloatArray:
    return np.ldexp(1.0, np.frexp(np.maximum(count, 1.0))[1] - 1)
