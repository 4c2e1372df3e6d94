"""Which groups each instance of the first network level (a leaf) holds members of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscale.placement.groups import AxisGroups
from gpuscale.records import record
from gpuscale.specs.cluster import ClusterSpec


@record
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


@record
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
    ids = {axis: groups.group_ids() for axis, groups in axes.items()}
    found = []
    for number, first in enumerate(range(0, ranks, gpus)):
        last = min(first + gpus, ranks)
        held = {axis: _held(ids[axis][first:last], groups.size) for axis, groups in axes.items()}
        found.append(Holding(number, first // hosts, (last - 1) // hosts, held))
    return found


def _held(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]], size: int) -> Held:
    groups, counts = np.unique(numbers, return_counts=True)
    breaks = np.flatnonzero(np.diff(groups) > 1)
    firsts, lasts = groups[np.append(0, breaks + 1)], groups[np.append(breaks, groups.size - 1)]
    ranges = tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
    return Held(ranges, int(counts.min()), int(counts.max()), size)


__all__ = ["Held", "Holding", "holdings", "network_level"]
