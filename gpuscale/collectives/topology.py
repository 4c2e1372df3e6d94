"""What switchless meshes, tori, dragonflies and rails carry: pure functions of where the members of groups lie
(docs/hardware.md).

Sources: Dally and Towles, *Principles and Practices of Interconnection Networks* (2004), chapters 3 and 5, and Austin
et al., *How to Scale Your Model* (2025), chapter "Sharded Matrices" (torus); Kim, Dally, Scott, Abts,
"Technology-Driven, Highly-Scalable Dragonfly Topology" (ISCA 2008), and for the same with leaves and spines in a group
Shpiner et al., HiPINEB 2017; NVIDIA DGX SuperPOD reference architecture RA-11333 (2023), compute fabric (rails).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.specs.cluster import ClusterSpec


def mesh_share(cluster: ClusterSpec, members: FloatArray) -> FloatArray:
    """Share of its links that a GPU can use towards `members` - 1 peers of a switchless all-to-all mesh.

    In a full mesh (MI300X xGMI, 4-GPU NVLink nodes) a pair of GPUs has only its own share. A GPU with fewer links than
    peers (DGX-1's cube mesh) keeps all.
    """
    share = (members - 1) / max(cluster.levels[0].gpus - 1, 1)
    return np.where((members > 1) & is_full_mesh(cluster), share, 1.0)


def path_share(cluster: ClusterSpec, members: FloatArray, nodes: FloatArray) -> FloatArray:
    """What rings across nodes carry in a full mesh of m GPUs, over what rings that close inside it do: m of them fill
    its links, or m - 1."""
    through = (members > 1) & (nodes > 1) & is_full_mesh(cluster)
    return np.where(through, members / np.maximum(members - 1, 1.0), 1.0)


def is_full_mesh(cluster: ClusterSpec) -> bool:
    """Whether every GPU of the innermost level has links of its own to each of the others."""
    first = cluster.levels[0]
    if first.topology:
        return first.topology == "mesh"
    return not first.switches and first.fabric in {"nvlink", "xgmi"} and 1 < first.gpus <= cluster.gpu.links + 1


def cube_mesh_share(cluster: ClusterSpec, members: FloatArray) -> FloatArray:
    """Share of its links that a GPU of a hybrid cube mesh can use towards few members: two of six lead to the other
    quad of four (NVIDIA DGX-1 with Tesla V100 system architecture, 2017)."""
    first = cluster.levels[0]
    if first.switches or first.fabric != "nvlink" or not 0 < cluster.gpu.links < first.gpus - 1:
        return np.ones_like(members)
    return np.minimum(members / cluster.gpu.links, 1.0)


class Extent(NamedTuple):
    """Where N groups lie on the J axes of a torus."""

    shape: FloatArray  #: (J, 1) units along each axis.
    members: FloatArray  #: (J, N) coordinates along each axis that a group has members at.
    gap: FloatArray  #: (J, N) units from one of them to the next; the groups in between share the links.
    pair: BoolArray  #: (N,) groups of two units, which may lie apart along several axes at once.

    @property
    def wraps(self) -> BoolArray:
        """Whether a group goes all around the axis, so that both directions serve every pair, (J, N)."""
        around = self.members * self.gap
        return np.where(self.members == 2, around == self.shape, around >= self.shape)

    @property
    def hops(self) -> FloatArray:
        """Links from one member to the next: for two members the shorter way around, (J, N)."""
        around = np.maximum(self.shape - self.gap, 1.0)
        return np.where(self.members == 2, np.minimum(self.gap, around), self.gap)

    @property
    def links(self) -> FloatArray:
        """Links of one unit along each axis that serve a group, shares of interleaved groups, (J, N)."""
        return np.where(self.wraps, 2.0, 1.0) / self.hops


def extent(shape: Sequence[int], size: FloatArray, stride: FloatArray) -> Extent:
    """Lay groups of `size` units, `stride` apart, (N,), on a torus of J axes; units are numbered along the first axis
    first.

    Along an axis whose step is at least as long as the stride, a group has members at every coordinate that it reaches;
    along a shorter one at as many as it takes strides to go around. What does not divide evenly is rounded to more gap.
    """
    members, gaps, inside, pair = [], [], 1.0, size == 2
    for length in shape:
        reached = np.floor((size - 1) * stride / inside) + 1
        around = np.minimum(size, np.ceil(inside * length / stride))
        count = np.minimum(np.where(stride <= inside, reached, around), float(length))
        gap = np.where(count > 1, np.clip(np.ceil(stride / inside), 1.0, length), 1.0)
        apart = np.floor(stride / inside) % length
        members.append(np.where(pair, 1.0 + (apart > 0), count))
        gaps.append(np.where(pair, np.maximum(apart, 1.0), gap))
        inside *= length
    return Extent(np.array(shape, dtype=np.float64)[:, None], np.array(members), np.array(gaps), pair)


def torus_ring(where: Extent) -> FloatArray:
    """Links of one unit that a ring (AllGather, ReduceScatter, AllReduce, a send) keeps busy in one direction, (N,):
    both directions of an axis that the group goes around, one of an axis that it covers a part of, all axes at once.
    Two units send along one axis after the other."""
    used = where.members > 1
    busy: FloatArray = np.where(used, where.links, 0.0).sum(axis=0)
    return np.where(where.pair, np.where(used, where.links, np.inf).min(axis=0), busy)


def torus_exchange(where: Extent) -> FloatArray:
    """Time of an all-to-all exchange, along one axis after the other, in bytes of a unit's send buffer over bytes/s of
    one link, (N,): floor(e^2 / 4) / e is the mean distance in a ring of e members, and what crosses the middle of a
    line."""
    crossing = np.floor(where.members**2 / 4) / where.members
    return (crossing / where.links).max(axis=0)


def torus_hops(where: Extent) -> FloatArray:
    """Links from a member to the one furthest from it, (N,): steps of a ring that uses both directions."""
    steps = np.where(where.wraps, np.floor(where.members / 2), where.members - 1)
    return (steps * where.hops).sum(axis=0)


def dragonfly_share(groups: float, peers: FloatArray, minimal_share: float | None) -> FloatArray:
    """What a group of a dragonfly sends to others at most, over the rate of all its global links together, (N,): of the
    bytes to `peers` others, the share that goes straight loads the links to these, 1 / (groups - 1) each; the rest goes
    over two, spread over all.

    Args:
        peers: (N,) groups that one sends to at the same time: 1 in a ring, all others that take part in an all-to-all.
        minimal_share: share that goes straight; None: 1 or 0, whichever carries more (adaptive routing).
    """
    others = groups - 1.0
    if groups <= 2:  # there is no third group to go through
        return np.ones_like(peers)
    if minimal_share is None:
        return np.maximum(peers / others, 0.5)
    return 1.0 / (minimal_share * others / peers + 2.0 * (1.0 - minimal_share))


def on_rails(cluster: ClusterSpec, members: FloatArray, step: FloatArray) -> BoolArray:
    """Whether every node (or NVLink domain) that a group spans holds members on the same rails, (N,): where these,
    `step` ranks apart, lie alike in all of them, or a domain of several hosts holds enough (`members` in the thinnest)
    for each rail that the spacing leads to, p / gcd(step, p) of p."""
    node, period = cluster.levels[cluster.domain_index].gpus, cluster.host_gpus
    alike: BoolArray = (node % step == 0) | (step % node == 0)
    if period == node or alike.all():
        return alike
    return alike | (members >= period / np.gcd(step.astype(np.int64), period))


def rails_of(cluster: ClusterSpec, members: FloatArray, step: FloatArray, cards: float) -> FloatArray:
    """Rails that `members` members of a node use, `step` GPUs apart, (N,); with fewer than one of the `cards` for each
    GPU neighbouring GPUs share one."""
    period, sharing = cluster.host_gpus, max(round(1 / cards), 1) if cards > 0 else 1
    reach = np.minimum(members * step, period)
    return np.maximum(np.ceil(reach / np.maximum(step, sharing)), 1.0)


def joining_level(cluster: ClusterSpec, index: int) -> int | None:
    """Return the first level above `index` that joins rails; None where the file has none."""
    above = range(index + 1, len(cluster.levels))
    return next((one for one in above if cluster.levels[one].rails == "none"), None)
