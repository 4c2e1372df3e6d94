"""Where the members of a communication group sit on the levels of a cluster, and what bandwidth they share.

A group is `n` GPUs with `stride` GPUs from one member to the next. All sibling groups (the other GPUs in between, and
the groups after it) run the same operation at the same time, so a group gets the share of each link that its own
members bring: every GPU counts with its `egress_bytes_per_s`.

Rounding, always to the slower side:
- an instance of a level with S GPUs holds floor(S / stride) members, at least 1, at most n;
- when n is no multiple of that, one instance holds only the remainder; data enters and leaves it through those few
  members alone, and this thinnest instance sets the bandwidth;
- a group that does not fit its top level is taken to be inside it.

`fabric` adds what size and stride alone do not say: tori, dragonflies and rails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.collectives.fabric import shaped
from gpuscale.errors import InputError
from gpuscale.specs.cluster import INSIDE, ClusterSpec

_MESH = frozenset({"nvlink", "xgmi"})


@dataclass(frozen=True)
class Groups:
    """Placement of N groups on the L levels of one cluster.

    Attributes:
        size: (N,) GPUs per group.
        members: (L, N) GPUs of a group in one full instance of each level.
        inner: (L, N) GPUs of a group in the thinnest unit that the level joins (1 at the first level, whose units are
            GPUs).
        crossed: (L, N) whether traffic of the group crosses the level.
        wire_bytes_per_s: (L, N) what one such unit sends across the level for this group, at wire rate [bytes/s].
        instances: (L + 1, N) units that the group spans: GPUs first, then instances of each level.
        steps: (L, N) ring hops that cross each level in one pass around the ring.
        rises: (L, N) tree hops that cross each level on the way up: log2 of the units that are joined.
        exchange_s_per_byte: (L, N) time of an alltoall over the send buffer of a GPU at wire rate, where it is not what
            leaves a unit over what the unit sends [s/byte]; 0 elsewhere. None: nowhere.
    """

    size: FloatArray
    members: FloatArray
    inner: FloatArray
    crossed: BoolArray
    wire_bytes_per_s: FloatArray
    instances: FloatArray
    steps: FloatArray
    rises: FloatArray
    exchange_s_per_byte: FloatArray | None = None


def place(cluster: ClusterSpec, group_size: ArrayLike, stride: ArrayLike) -> Groups:
    """Place groups of `group_size` GPUs, `stride` apart, on the levels of `cluster`.

    Args:
        cluster: L levels.
        group_size: (N,) GPUs per group, >= 1.
        stride: (N,) distance between neighbours in GPUs, >= 1.

    Raises:
        InputError: a size or stride below 1, or a group that reaches beyond the cluster.
    """
    size, step = np.broadcast_arrays(np.atleast_1d(np.asarray(group_size)), np.atleast_1d(np.asarray(stride)))
    _check(cluster, size, step)
    n = size.astype(np.float64)
    sizes = np.array([level.gpus for level in cluster.levels])[:, None]
    capacity = np.maximum(sizes // np.maximum(step, 1), 1).astype(np.float64)
    capacity[-1] = np.maximum(capacity[-1], n)
    members = np.minimum(n, capacity)
    rest = n % capacity
    thinnest = np.where((rest == 0) | (n <= capacity), members, rest)
    one = np.ones((1, n.size))
    inner = np.concatenate([one, thinnest[:-1]])
    crossed = members > np.concatenate([one, members[:-1]])
    egress = np.array([level.egress_bytes_per_s for level in cluster.levels])[:, None]
    wire = egress * inner
    wire[0] *= mesh_share(cluster, members[0])
    instances = np.concatenate([n[None], np.ceil(n / capacity)])
    steps, rises = instances[:-1] - instances[1:], np.log2(instances[:-1] / instances[1:])
    groups = Groups(n, members, inner, crossed, wire, instances, steps, rises)
    return groups if cluster.is_plain else shaped(cluster, groups, step.astype(np.float64))


def _check(cluster: ClusterSpec, size: NDArray[np.generic], step: NDArray[np.generic]) -> None:
    if size.size and (np.min(size) < 1 or np.min(step) < 1):
        raise InputError("group size and stride must be at least 1", place="collective")
    reach = (size.astype(np.float64) - 1) * step.astype(np.float64) + 1
    if size.size and np.max(reach) > cluster.gpus:
        raise InputError(
            f"a group reaches over {int(np.max(reach)):,} GPUs, {cluster.name} has {cluster.gpus:,}",
            place="collective",
            hint="give fewer GPUs or a larger cluster",
        )


def exchanged(data: FloatArray, s_per_byte: FloatArray | None, times_s: FloatArray) -> FloatArray:
    """Return the times of an alltoall per level, (L, N): `times_s`, but where the wiring of a level says otherwise."""
    return times_s if s_per_byte is None else np.where(s_per_byte > 0, data * s_per_byte, times_s)


def is_mesh(cluster: ClusterSpec) -> bool:
    """Whether the GPUs of the innermost level are joined each to each, without switches."""
    first = cluster.levels[0]
    if first.topology:
        return first.topology == "mesh"
    return not first.switches and first.fabric in _MESH and 1 < first.gpus <= cluster.gpu.links + 1


def mesh_share(cluster: ClusterSpec, members: FloatArray) -> FloatArray:
    """Share of its links that a GPU can use towards `members` - 1 peers of a switchless all-to-all mesh.

    In a full mesh (MI300X xGMI, 4-GPU NVLink nodes) the links are dealt out evenly over the peers, so that a pair of
    GPUs has its share only. A GPU with fewer links than peers (DGX-1's cube mesh) is no full mesh and keeps them all.
    """
    first = cluster.levels[0]
    if not is_mesh(cluster):
        return np.ones_like(members)
    return np.where(members > 1, (members - 1) / (first.gpus - 1), 1.0)


__all__ = ["INSIDE", "BoolArray", "FloatArray", "Groups", "exchanged", "is_mesh", "mesh_share", "place"]
