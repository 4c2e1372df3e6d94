"""Where the groups of an axis sit on the levels of a cluster, counted group by group: nothing is rounded.

Rank r runs on GPU r. `gpuscale.collectives.groups` prices groups by their size and stride alone; here a group that
begins in the middle of a node, and one that lies on two nodes unevenly, count as what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import IntArray
from gpuscale.collectives.topology import mesh_share
from gpuscale.placement.groups import AxisGroups
from gpuscale.placement.rails import NODE, RailUse, rail_use
from gpuscale.placement.wiring import wired_rate
from gpuscale.specs.cluster import INSIDE, ClusterSpec

Indices = npt.NDArray[np.intp]

POINT_TO_POINT = frozenset({"ep", "pp"})
"""Axes whose ranks send to one another directly; the others form rings."""


@dataclass(frozen=True)
class LevelSpan:
    """The groups of one axis on one level.

    Attributes:
        units_min, units_max: instances of the level that a group has members in.
        members_min, members_max: members of a group in one of these instances.
        crossing: groups whose members talk across the level: several units of the level below, in one instance.
        straddling: groups on several instances that would fit in one, or (but for PP) hold unequal numbers of members
            in them.
        parts: members per instance of the first such group.
        sharing_unit: most groups that leave one unit of the level below across this level.
        sharing_link: most groups on one network card (inside a box: on one GPU's links) across this level.
        egress_bytes_per_s: what each GPU sends across the level when all do [bytes/s].
        rate_bytes_per_s: what the worst placed group gets: a ring its bus bandwidth (egress times the members in its
            thinnest unit), EP bytes per GPU of an alltoall over the time, PP the egress; 0 where no group crosses.
    """

    name: str
    units_min: int
    units_max: int
    members_min: int
    members_max: int
    crossing: int
    straddling: int
    parts: tuple[int, ...]
    sharing_unit: int
    sharing_link: int
    egress_bytes_per_s: float
    rate_bytes_per_s: float


@dataclass(frozen=True)
class AxisSpan:
    """The groups of one axis on all levels.

    Attributes:
        busiest: index of the crossed level with the lowest rate, the outermost of equals.
        one_rail: every group keeps to one rail: its members use network cards of the same number.
        rails: how the groups use the rails that the cluster file states, one of `gpuscale.placement.rails`; None where
            it states none, or no group leaves its node.
        strays: groups that leave their rails.
    """

    groups: AxisGroups
    levels: tuple[LevelSpan, ...]
    busiest: int
    one_rail: bool
    rails: str | None = None
    strays: int = 0

    @property
    def worst(self) -> LevelSpan:
        """The busiest level."""
        return self.levels[self.busiest]


def span(cluster: ClusterSpec, groups: AxisGroups) -> AxisSpan:
    """Count the units, the crossings and the sharing of all groups of an axis (of at least two ranks) per level."""
    members = groups.members()
    flat = members.reshape(-1)
    edges = np.arange(flat.size + 1)  # where the runs of members in one unit begin: at first every GPU is a unit
    levels = []
    for index in range(len(cluster.levels)):
        outer = _runs(members, cluster.levels[index].gpus)
        levels.append(_level(cluster, index, groups, flat, edges, outer))
        edges = outer
    rails = rail(cluster, members)
    use = rail_use(cluster, groups, members, rails)
    if use is not None and use.strays.any():
        _let_stray(cluster, groups, members, use, levels)
    crossed = [(level.rate_bytes_per_s, -index) for index, level in enumerate(levels) if level.crossing]
    busiest = -min(crossed)[1]
    one_rail = bool((rails == rails[:, :1]).all())
    return AxisSpan(
        groups, tuple(levels), busiest, one_rail, use.kind if use else None, int(use.strays.sum()) if use else 0
    )


def rail(cluster: ClusterSpec, ranks: IntArray) -> IntArray:
    """Number of the network card of each rank within its machine; with several cards per GPU that of the GPU."""
    return nic(cluster, ranks % cluster.host_gpus)


def nic(cluster: ClusterSpec, gpus: IntArray) -> IntArray:
    """Number of the network card of each GPU; GPUs that share one are neighbours."""
    network = cluster.levels[cluster.domain_index + 1 :]
    return gpus // max(round(1 / network[0].nics_per_gpu), 1) if network else gpus


def _runs(members: IntArray, gpus: int) -> Indices:
    """Edges of the runs of members that share a group and a unit of `gpus`, in the flattened members."""
    units = members // gpus
    new = np.ones(members.shape, dtype=bool)
    new[:, 1:] = units[:, 1:] != units[:, :-1]
    return np.append(np.flatnonzero(new), members.size)


def _level(
    cluster: ClusterSpec, index: int, groups: AxisGroups, flat: IntArray, inner: Indices, outer: Indices
) -> LevelSpan:
    """Describe one level from the runs of members in the units below it (`inner`) and in its instances (`outer`)."""
    level, size, count = cluster.levels[index], groups.size, groups.count
    in_units, in_instances = np.diff(inner), np.diff(outer)
    parent = np.searchsorted(outer, inner[:-1], side="right") - 1
    leaves = np.bincount(parent, minlength=in_instances.size)[parent] > 1  # a run with another unit in its instance
    group_of_instance = outer[:-1] // size
    units = np.bincount(group_of_instance, minlength=count)
    least, most = _extremes(in_instances, group_of_instance, count)
    unequal = (least != most) & (groups.axis != "pp")  # stages send to their neighbours only
    uneven = (units > 1) & (unequal | (groups.reach <= level.gpus))
    below = cluster.levels[index - 1].gpus if index else 1
    leaving = np.bincount(flat[inner[:-1]][leaves] // below) if leaves.any() else np.zeros(1, dtype=np.int64)
    first = int(uneven.argmax())
    return LevelSpan(
        name=level.name,
        units_min=int(units.min()),
        units_max=int(units.max()),
        members_min=int(in_instances.min()),
        members_max=int(in_instances.max()),
        crossing=_different(inner[:-1][leaves] // size).size,
        straddling=int(uneven.sum()),
        parts=tuple(in_instances[group_of_instance == first].tolist()) if uneven.any() else (),
        sharing_unit=int(leaving.max()),
        sharing_link=_sharing_link(cluster, index, flat, np.repeat(leaves, in_units), size),
        egress_bytes_per_s=level.egress_bytes_per_s,
        rate_bytes_per_s=_rate(cluster, index, groups, in_units[leaves], in_instances),
    )


def _extremes(values: Indices, group: Indices, count: int) -> tuple[Indices, Indices]:
    least, most = np.full(count, np.iinfo(np.intp).max), np.zeros(count, dtype=np.intp)
    np.minimum.at(least, group, values)
    np.maximum.at(most, group, values)
    return least, most


def _sharing_link(cluster: ClusterSpec, index: int, flat: IntArray, leaves: npt.NDArray[np.bool_], size: int) -> int:
    """Most groups on one network card; a GPU inside its box has its links to itself."""
    if not leaves.any():
        return 0
    if cluster.levels[index].fabric in INSIDE:
        return 1
    return _most(nic(cluster, flat[leaves]), np.flatnonzero(leaves) // size)


def _let_stray(
    cluster: ClusterSpec, groups: AxisGroups, members: IntArray, use: RailUse, levels: list[LevelSpan]
) -> None:
    """Count groups that leave their rails where they pass: the level that joins the rails, or the links of a node."""
    node = cluster.domain_index
    thinnest = int(np.diff(_runs(members[use.strays], cluster.levels[node].gpus)).min())
    if use.above is None:
        if use.kind == NODE:
            most = cluster.levels[node].egress_bytes_per_s / 2 * (1 if groups.axis in POINT_TO_POINT else thinnest)
            for index in range(use.level, len(levels)):
                rate = levels[index].rate_bytes_per_s
                levels[index] = replace(levels[index], rate_bytes_per_s=min(rate, most))
        return
    level, below = cluster.levels[use.above], members // cluster.levels[use.above - 1].gpus
    inside = members // level.gpus
    apart = (below[:, 1:] != below[:, :-1]) & (inside[:, 1:] == inside[:, :-1])
    passing = np.flatnonzero(apart.any(axis=1) | use.strays)
    number = np.broadcast_to(passing[:, None], (passing.size, groups.size))
    rate = level.egress_bytes_per_s * (1 if groups.axis in POINT_TO_POINT else thinnest)
    if groups.axis == "ep":
        rate /= (1 - thinnest / groups.size) * use.share
    before = levels[use.above]
    levels[use.above] = replace(
        before,
        crossing=passing.size,
        sharing_unit=_most(below[passing], number),
        sharing_link=_most(nic(cluster, members[passing]), number),
        rate_bytes_per_s=min(rate, before.rate_bytes_per_s) if before.crossing else rate,
    )


def _most(places: IntArray, number: IntArray) -> int:
    """Most groups, by number, that have a member at one place."""
    base = int(number.max()) + 1
    pairs = np.sort(places.reshape(-1).astype(np.int64) * base + number.reshape(-1))  # as one number: quick to sort
    return int(np.bincount(_different(pairs) // base).max())


def _different(ascending: Indices) -> Indices:
    """Return the different ones of numbers that do not fall; `np.unique` of a million is many times slower."""
    return ascending[np.append(True, ascending[1:] != ascending[:-1])] if ascending.size else ascending


def _rate(cluster: ClusterSpec, index: int, groups: AxisGroups, leaving: Indices, in_instances: Indices) -> float:
    """Rate of the worst placed group across a level [bytes/s].

    Args:
        leaving: members of a group in each unit that its traffic leaves across the level.
    """
    if not leaving.size:
        return 0.0
    egress = cluster.levels[index].egress_bytes_per_s
    if index == 0:
        egress *= float(mesh_share(cluster, in_instances[in_instances > 1].astype(np.float64)).min())
    thinnest = int(leaving.min())
    wired = wired_rate(cluster, index, groups, thinnest)
    if wired is not None:
        return wired
    if groups.axis == "ep":
        return egress / (1 - thinnest / groups.size)
    return egress if groups.axis in POINT_TO_POINT else egress * thinnest


__all__ = ["AxisSpan", "LevelSpan", "nic", "rail", "span"]
