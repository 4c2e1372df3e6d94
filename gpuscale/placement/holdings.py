"""Which groups each instance of the first network level (a leaf) holds members of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuscale.arrays import IntArray
from gpuscale.placement.groups import AxisGroups
from gpuscale.specs.cluster import ClusterSpec


@dataclass(frozen=True)
class Held:
    """The groups of one axis that have members in an instance.

    Attributes:
        ranges: (first, last) numbers of the groups, both counted, ascending.
        members_min, members_max: members of one of these groups in the instance.
        size: members of a group in all.
    """

    ranges: tuple[tuple[int, int], ...]
    members_min: int
    members_max: int
    size: int


@dataclass(frozen=True)
class Holding:
    """One instance of a level: its machines, from 0, both counted, and the groups of each axis."""

    number: int
    first_host: int
    last_host: int
    axes: Mapping[str, Held]


def network_level(cluster: ClusterSpec) -> int | None:
    """Return the index of the first level beyond a box or rack; None for a single one."""
    index = cluster.domain_index + 1
    return index if index < len(cluster.levels) else None


def holdings(cluster: ClusterSpec, axes: Mapping[str, AxisGroups], ranks: int) -> list[Holding]:
    """Return what each instance of the first network level that the job takes holds, in order; empty without one."""
    index = network_level(cluster)
    if index is None:
        return []
    gpus, hosts = cluster.levels[index].gpus, cluster.host_gpus
    held = {axis: _held(groups.group_ids()[:ranks], gpus, groups.size) for axis, groups in axes.items()}
    found = []
    for number, first in enumerate(range(0, ranks, gpus)):
        last = min(first + gpus, ranks)
        here = {axis: instances[number] for axis, instances in held.items()}
        found.append(Holding(number, first // hosts, (last - 1) // hosts, here))
    return found


def _held(numbers: IntArray, gpus: int, size: int) -> list[Held]:
    """Return what each instance holds of one axis.

    Args:
        numbers: (ranks,) group of each rank.
        gpus: ranks of an instance.
    """
    base = int(numbers.max()) + 1
    keys, counts = np.unique(np.arange(numbers.size) // gpus * base + numbers, return_counts=True)
    instance, group = np.divmod(keys, base)
    new = np.append(True, instance[1:] != instance[:-1])
    starts = np.flatnonzero(new)  # of each instance, in `keys`
    least, most = (pick.reduceat(counts, starts).tolist() for pick in (np.minimum, np.maximum))
    begins = np.flatnonzero(new | np.append(True, np.diff(group) > 1))  # of each range
    ends = np.append(begins[1:], keys.size) - 1
    ranges = list(zip(group[begins].tolist(), group[ends].tolist(), strict=True))
    cuts = [*np.searchsorted(begins, starts).tolist(), len(ranges)]
    own = (tuple(ranges[first:last]) for first, last in pairwise(cuts))
    return [Held(one, low, high, size) for one, low, high in zip(own, least, most, strict=True)]


__all__ = ["Held", "Holding", "holdings", "network_level"]
