"""How many channels (CTAs, thread blocks on SMs) NCCL gives a collective or a pair of GPUs, and what they move.

Counted as NCCL's logs and NCCL_MAX_NCHANNELS do: the communicator runs every ring and tree of its graph twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives import constants as c
from gpuscale.collectives.tuning import MOST_CHANNELS, NET_CHANNELS_SINCE, Tuning
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    from gpuscale.collectives.network import Network

PEERS_PER_ROUND = 8
"""device.h, NCCL_MAX_DEV_WORK_P2P_PER_BATCH: peers that one channel serves at the same time."""

PART_BYTES = 2.0**24
"""enqueue.cc: largest part of a message inside a node that NCCL leaves to one channel while there are more [bytes]."""

NET_PART_BYTES = 2.0**19
"""enqueue.cc: the same across nodes: one step of the buffer [bytes]."""


def check_channels(cluster: ClusterSpec, tuning: Tuning | None) -> None:
    """Refuse channels on GPUs of which nobody has said how many they take of their own accord.

    Raises:
        InputError: such GPUs.
    """
    if tuning is not None and tuning.channels is not None and not knows_channels(cluster):
        raise InputError(
            f"how many channels {cluster.gpu.title} takes is not known",
            place="--channels",
            hint="the model has NCCL's numbers, for NVIDIA GPUs",
        )


def knows_channels(cluster: ClusterSpec) -> bool:
    """Return whether the model knows how many channels a cluster's GPUs take of their own accord."""
    return c.generation_of(cluster.gpu.architecture).channels > 0


def ring_channels(net: Network) -> FloatArray:
    """Return the channels of rings and trees, (G,): those of search.cc's graph, twice."""
    if net.tuning is not None and net.tuning.channels is not None:
        return np.full_like(net.nodes, float(net.tuning.channels))
    return graph_channels(net)


def graph_channels(net: Network) -> FloatArray:
    """Return the channels that NCCL takes of its own accord, (G,).

    In a node search.cc finds as many as the links carry; across nodes one per network card, two from Hopper on where
    there are no more than four cards. It knows nothing of other groups, so that cards which they use too count whole.
    """
    inside = 2.0 * (c.PCIE_CHANNELS if net.links[0][0] == "pcie" else net.generation.channels)
    cards = np.maximum(net.local * np.minimum(net.planned_cards, 1.0), 1.0)
    if net.generation.splits_cards:
        cards = np.where(cards <= 4, 2 * cards, cards)
    return np.where(net.nodes <= 1, inside, np.minimum(2 * cards, MOST_CHANNELS))


def share_of_channels(net: Network) -> FloatArray | float:
    """Return the channels that the user gives over those that NCCL takes, (G,) or 1.

    Rings and trees with fewer channels than the graph has carry as much less; more do not carry more than the wire.
    """
    if net.tuning is None or net.tuning.channels is None:
        return 1.0
    return net.tuning.channels / graph_channels(net)


def held(net: Network, bus_bytes_per_s: FloatArray, slowest: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return what the channels that the user gives leave of the bandwidth of rings and trees, (G,) [bytes/s].

    Each drives its part of the links, whether other groups use these too or not, so that a group with few channels
    takes as long alone as beside others until the links are full.

    Args:
        slowest: from the bandwidth of each level, (L, G), to that of the algorithm.
    """
    if net.tuning is None or net.tuning.channels is None:
        return bus_bytes_per_s
    return np.minimum(bus_bytes_per_s, slowest(net.links_bytes_per_s) * np.minimum(share_of_channels(net), 1.0))


def counts_channels(net: Network) -> bool:
    """Return whether channels bound grouped sends and receives, and what they move is known.

    In a training step they are not counted: DeepEP and its like exchange tokens with kernels of their own, and
    pipelines send beside other work.
    """
    known = bool(np.isfinite(net.generation.channel_bytes_per_s)) and net.links[0][0] != "pcie"
    return net.alone and known


def channels_of(net: Network, algorithm: str, message: float | None = None) -> int:
    """Return the channels that an algorithm takes over the first kind of group; 0 where the model does not know.

    NVLS has one for each GPU of the domain, the head of its part; RCCL's numbers are not NCCL's.

    Args:
        message: bytes of the only message that a GPU sends; None where it sends to all.
    """
    if net.generation.channels == 0:
        return 0
    if algorithm == "NVLS" and net.nodes[0] <= 1:
        given = net.tuning.channels if net.tuning else None
        return int(given or net.local[0])
    if algorithm != "point-to-point":
        return int(ring_channels(net)[0])
    found = peer_channels(net)
    if message is None:
        return int(found.total[0])
    return int(np.clip(np.ceil(message / found.part_bytes[0]), found.least[0], found.most[0]))


@dataclass(frozen=True)
class PeerChannels:
    """Channels of grouped sends and receives, (G,) each (paths.cc, ncclTopoComputeP2pChannels; enqueue.cc).

    Attributes:
        total: all that a GPU runs.
        least: those of one message; more where its parts would be larger than `part_bytes`.
        most: those of one large message.
        part_bytes: where parts become too large.
    """

    total: FloatArray
    least: FloatArray
    most: FloatArray
    part_bytes: FloatArray


def peer_channels(net: Network) -> PeerChannels:
    """Return the channels that grouped sends and receives of each kind of group get."""
    n, alone = net.groups.size, net.nodes <= 1
    total = _power_above(ring_channels(net))
    inside = np.minimum(_power_above(np.full_like(n, 2.0 * net.links_per_peer)), total)
    across = _across(net, total)
    most = np.where(alone, inside, across)
    least = np.minimum(most, np.maximum(_power_below(total / n), 1.0))
    return PeerChannels(total, least, most, np.where(alone, PART_BYTES, NET_PART_BYTES))


def _across(net: Network, total: FloatArray) -> FloatArray:
    """Return the channels per peer where some peers are across the network."""
    n, cards = net.groups.size, max(net.cards, 1.0)
    if net.nccl < NET_CHANNELS_SINCE:
        crowded = 2 * n > 4 * total  # more than eight messages on a channel, and it loses a warp to waiting
        return np.minimum(np.maximum(np.where(crowded, 1.0, 2.0), cards), total)
    needed = _power_above(np.maximum(cards, np.ceil(net.card_bytes_per_s / c.NET_CHANNEL_BYTES_PER_S)))
    rounds = np.ceil(n / PEERS_PER_ROUND)
    return np.maximum(np.minimum(needed, _power_below(total / rounds)), 1.0)


def _power_above(count: FloatArray) -> FloatArray:
    return np.exp2(np.ceil(np.log2(count)))


def _power_below(count: FloatArray) -> FloatArray:
    return np.exp2(np.floor(np.log2(np.maximum(count, 1.0))))
