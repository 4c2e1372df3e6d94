"""The groups of each parallel axis for any order of the axes, and what levels, rails and links they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, IndexArray, IntArray
from gpuscale.choices import AXES
from gpuscale.collectives.topology import Extent, dragonfly_share, joining_level, mesh_share, torus_exchange, torus_ring
from gpuscale.errors import InputError, did_you_mean
from gpuscale.layouts.ranks import DENSE_GRID, EXPERT_GRID, grid_strides
from gpuscale.specs.cluster import INSIDE, SCALE_UP, ClusterSpec


class Degrees(NamedTuple):
    """Parallel degrees; tp * cp * dp * pp ranks, of which etp * ep * edp * pp is another grid."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Data-parallel degree of the routed experts."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    def sizes(self) -> dict[str, int]:
        """Return every axis with its size."""
        return {**self._asdict(), "edp": self.edp}


@dataclass(frozen=True)
class AxisGroups:
    """The groups of one axis: together they hold every rank once."""

    axis: str  #: `tp`, `cp`, `dp`, `pp`, `etp`, `ep`, `edp`, or `dp_cp`, over which the dense states are shared.
    factors: tuple[tuple[int, int], ...]  #: (size, stride) of each axis that the group is made of, by ascending stride.
    ranks: int  #: ranks of the job.

    @property
    def size(self) -> int:
        """Ranks of one group."""
        return int(np.prod([size for size, _ in self.factors]))

    @property
    def count(self) -> int:
        """Groups of the axis."""
        return self.ranks // self.size

    @property
    def stride(self) -> int | None:
        """Ranks from one member to the next; None where members are not evenly spaced."""
        even = all(inner[0] * inner[1] == outer[1] for inner, outer in pairwise(self.factors))
        return self.factors[0][1] if even else None

    @property
    def reach(self) -> int:
        """Ranks from the first to the last member of a group, both counted."""
        return sum((size - 1) * stride for size, stride in self.factors) + 1

    def offsets(self) -> IntArray:
        """Members of a group relative to its first, ascending, shape (size,)."""
        out = np.zeros(1, dtype=np.int64)
        for size, stride in self.factors:
            out = (np.arange(size, dtype=np.int64)[:, None] * stride + out[None, :]).reshape(-1)
        return out

    def positions(self) -> IntArray:
        """Place of every rank in its group, from 0, shape (ranks,)."""
        ranks, out, inner = np.arange(self.ranks, dtype=np.int64), np.zeros(self.ranks, dtype=np.int64), 1
        for size, stride in self.factors:
            out += ranks // stride % size * inner
            inner *= size
        return out

    def firsts(self) -> IntArray:
        """First member of every group, ascending, shape (count,)."""
        return np.flatnonzero(self.positions() == 0).astype(np.int64)

    def members(self) -> IntArray:
        """Ranks of every group, ascending, shape (count, size)."""
        return self.firsts()[:, None] + self.offsets()[None, :]

    def group_ids(self) -> IntArray:
        """Number of the group of every rank, shape (ranks,); groups count by their first members."""
        first = np.arange(self.ranks, dtype=np.int64) - self.offsets()[self.positions()]
        return np.searchsorted(self.firsts(), first).astype(np.int64)


def parse_order(text: str) -> tuple[str, ...]:
    """Parse `tp-cp-ep-dp-pp`: names of axes, neighbours first; those left out follow in their usual order.

    Raises:
        InputError: an unknown axis, or one given twice.
    """
    names = [part.strip().lower() for part in text[:200].replace(",", "-").split("-")]
    for name in names:
        if name not in AXES:
            hint = f"{did_you_mean(name, AXES)}order {'-'.join(AXES)}, neighbours first"
            raise InputError(f"unknown axis {name[:40]!r}", field="axis_order", hint=hint)
        if names.count(name) > 1:
            message = f"{name} is given {names.count(name)} times"
            raise InputError(message, field="axis_order", hint="give each axis once")
    return (*names, *(name for name in AXES if name not in names))


def axis_groups(degrees: Degrees, order: Sequence[str]) -> dict[str, AxisGroups]:
    """Return the groups of every axis that is used (more than one rank per group), the most talkative first.

    Raises:
        InputError: the pipelines of the experts would not be those of the other layers.
    """
    sizes = degrees.sizes()
    dense, expert = grid_strides(order, sizes, DENSE_GRID), grid_strides(order, sizes, EXPERT_GRID)
    routed = degrees.ep * degrees.etp > 1
    if routed and degrees.pp > 1 and dense["pp"] != expert["pp"]:
        raise InputError(
            f"the pipeline stages of the experts would be {expert['pp']} ranks apart, those of the other layers "
            f"{dense['pp']}",
            field="axis_order",
            hint="put pp last, or choose EP x ETP so that as many ranks stand before pp in both grids",
        )
    found: dict[str, AxisGroups] = {}
    for name in ("tp", "etp", "cp", "ep", "dp", "edp", "pp"):
        of_experts = name in {"etp", "ep", "edp"}
        if sizes[name] > 1 and (routed or not of_experts):
            factor = sizes[name], (expert if of_experts else dense)[name]
            found[name] = AxisGroups(name, (factor,), degrees.ranks)
        if name == "dp" and degrees.dp > 1 and degrees.cp > 1:
            pair = sorted(((degrees.dp, dense["dp"]), (degrees.cp, dense["cp"])), key=lambda factor: factor[1])
            found["dp_cp"] = AxisGroups("dp_cp", tuple(pair), degrees.ranks)
    return found


def megatron_accepts(degrees: Degrees, order: Sequence[str]) -> bool:
    """Whether Megatron-LM takes the order: with stages not outermost it wants as many expert-DP as DP ranks, in a dense
    model CP ranks among them (megatron/core/parallel_state.py, `initialize_model_parallel`)."""
    sizes = degrees.sizes()
    routed = degrees.ep * degrees.etp > 1
    expert_dp = degrees.edp if routed else degrees.cp * degrees.dp
    used = [name for name in order if sizes[name] > 1 or (name == "dp" and routed and degrees.edp > 1)]
    return degrees.pp == 1 or used[-1] == "pp" or expert_dp == degrees.dp


def coordinates(degrees: Degrees, order: Sequence[str]) -> dict[str, IntArray]:
    """Return the coordinate of every rank along each axis, shape (ranks,)."""
    sizes = degrees.sizes()
    apart = {**grid_strides(order, sizes, EXPERT_GRID), **grid_strides(order, sizes, DENSE_GRID)}
    ranks = np.arange(degrees.ranks, dtype=np.int64)
    return {name: ranks // apart[name] % size for name, size in sizes.items()}


POINT_TO_POINT = frozenset({"ep", "pp"})
"""Axes whose ranks send to one another directly; the others form rings."""

ONE, OWN, PXN, ABOVE, NODE = "one", "own", "pxn", "above", "node"
"""One rail per group; several, each with a ring of its own; changed over NVLink; over the level above; in a node."""

SHOWN_PARTS = 16


class LevelSpan(NamedTuple):
    """The groups of one axis on one level."""

    name: str
    units_min: int  #: instances of the level that a group has members in.
    units_max: int  #: instances of the level that a group has members in.
    members_min: int  #: members of a group in one of these instances.
    members_max: int  #: members of a group in one of these instances.
    crossing: int  #: groups whose members talk across the level: several units of the level below, in one instance.
    #: groups on several instances that would fit in one, or (but for PP) hold unequal numbers of members in them.
    straddling: int
    parts: tuple[int, ...]  #: members per instance of the first such group, at most `SHOWN_PARTS`.
    groups_per_unit: int  #: most groups that leave one unit of the level below across this level.
    groups_per_link: int  #: most groups on one network card (inside a box: on one GPU's links) across this level.
    egress_bytes_per_s: float  #: what each GPU sends across the level when all do [bytes/s].
    #: what the worst placed group gets: a ring its bus bandwidth (egress times the members in its thinnest unit), EP
    #: bytes per GPU of an alltoall over the time, PP the egress; 0 where no group crosses.
    rate_bytes_per_s: float


class AxisSpan(NamedTuple):
    """The groups of one axis on all levels."""

    groups: AxisGroups
    levels: tuple[LevelSpan, ...]
    busiest: int  #: index of the crossed level with the lowest rate, the outermost of equals.
    one_rail: bool  #: every group keeps to one rail: its members use network cards of the same number.
    #: how the groups use the rails that the cluster file states, `ONE` to `NODE`; None where it states none, or no
    #: group leaves its node.
    rails: str | None = None
    strays: int = 0  #: groups that leave their rails.
    #: fabric of the outermost level that groups cross outside their domain of NVLink or its like; None where all stay
    #: inside.
    beyond: str | None = None

    @property
    def worst(self) -> LevelSpan:
        """The busiest level."""
        return self.levels[self.busiest]


def span(cluster: ClusterSpec, groups: AxisGroups) -> AxisSpan:
    """Count the units, the crossings and the sharing of all groups of an axis (of at least two ranks) per level."""
    members = groups.members()
    edges = np.arange(members.size + 1)  # where the runs of members in one unit begin: at first every GPU is a unit
    levels = []
    for index, level in enumerate(cluster.levels):
        outer = _runs(members, level.gpus)
        levels.append(_level(cluster, index, groups, members.reshape(-1), edges, outer))
        edges = outer
    rails = rail(cluster, members)
    use = _rail_use(cluster, groups, members, rails)
    if use is not None and use.strays.any():
        _let_stray(cluster, groups, members, use, levels)
    busiest = -min((level.rate_bytes_per_s, -index) for index, level in enumerate(levels) if level.crossing)[1]
    one_rail = bool((rails == rails[:, :1]).all())
    kind, strays = (use.kind, int(use.strays.sum())) if use else (None, 0)
    crossed = [one.fabric for one, level in zip(cluster.levels, levels, strict=True) if level.crossing]
    beyond = next((fabric for fabric in reversed(crossed) if fabric not in SCALE_UP), None)
    return AxisSpan(groups, tuple(levels), busiest, one_rail, kind, strays, beyond)


def rail(cluster: ClusterSpec, ranks: IntArray) -> IntArray:
    """Number of the network card of each rank within its machine; with several cards per GPU that of the GPU."""
    return nic(cluster, ranks % cluster.host_gpus)


def nic(cluster: ClusterSpec, gpus: IntArray) -> IntArray:
    """Number of the network card of each GPU; GPUs that share one are neighbours."""
    network = cluster.levels[cluster.domain_index + 1 :]
    return gpus // max(round(1 / network[0].nics_per_gpu), 1) if network else gpus


def _runs(members: IntArray, gpus: int) -> IndexArray:
    """Edges of the runs of members that share a group and a unit of `gpus`, in the flattened members."""
    return np.append(np.flatnonzero(_begins(members // gpus)), members.size)


def _begins(units: IntArray) -> BoolArray:
    """Whether each member is the first of its group in its unit, (count, size)."""
    new = np.ones(units.shape, dtype=bool)
    new[:, 1:] = units[:, 1:] != units[:, :-1]
    return new


def _level(
    cluster: ClusterSpec, index: int, groups: AxisGroups, flat: IntArray, inner: IndexArray, outer: IndexArray
) -> LevelSpan:
    """`inner`, `outer`: runs of members in the units below the level and in its instances."""
    level, size, count = cluster.levels[index], groups.size, groups.count
    in_units, in_instances = np.diff(inner), np.diff(outer)
    parent = np.searchsorted(outer, inner[:-1], side="right") - 1
    leaves = np.bincount(parent, minlength=in_instances.size)[parent] > 1  # a run with another unit in its instance
    group_of_instance = outer[:-1] // size
    units = np.bincount(group_of_instance, minlength=count)
    least, most = np.full(count, size), np.zeros(count, dtype=np.intp)
    np.minimum.at(least, group_of_instance, in_instances)
    np.maximum.at(most, group_of_instance, in_instances)
    unequal = (least != most) & (groups.axis != "pp")  # stages send to their neighbours only
    uneven = (units > 1) & (unequal | (groups.reach <= level.gpus))
    parts = in_instances[group_of_instance == int(uneven.argmax())].tolist() if uneven.any() else []
    below = cluster.levels[index - 1].gpus if index else 1
    crossing = per_unit = per_link = 0
    if leaves.any():
        crossing = _different(inner[:-1][leaves] // size).size
        per_unit = int(np.bincount(flat[inner[:-1]][leaves] // below).max())
        left = np.repeat(leaves, in_units)
        inside = level.fabric in INSIDE  # where a GPU has its links to itself
        per_link = 1 if inside else _most(nic(cluster, flat[left]), np.flatnonzero(left) // size)
    return LevelSpan(
        name=level.name,
        units_min=int(units.min()),
        units_max=int(units.max()),
        members_min=int(in_instances.min()),
        members_max=int(in_instances.max()),
        crossing=crossing,
        straddling=int(uneven.sum()),
        parts=tuple(parts[:SHOWN_PARTS]),
        groups_per_unit=per_unit,
        groups_per_link=per_link,
        egress_bytes_per_s=level.egress_bytes_per_s,
        rate_bytes_per_s=_rate(cluster, index, groups, in_units[leaves], in_instances),
    )


def _most(places: IntArray, number: IntArray) -> int:
    base = int(number.max()) + 1
    pairs = np.sort(places.reshape(-1).astype(np.int64) * base + number.reshape(-1))  # as one number: quick to sort
    return int(np.bincount(_different(pairs) // base).max())


def _different(ascending: IndexArray) -> IndexArray:
    """As `np.unique` of numbers that do not fall, which of a million is many times slower."""
    return ascending[np.append(True, ascending[1:] != ascending[:-1])] if ascending.size else ascending


def _rate(cluster: ClusterSpec, index: int, groups: AxisGroups, leaving: IndexArray, in_instances: IndexArray) -> float:
    """Rate of the worst placed group across a level [bytes/s]; `leaving`: members of a group in each unit that its
    traffic leaves across it, `in_instances`: in each instance."""
    if not leaving.size:
        return 0.0
    level, thinnest = cluster.levels[index], int(leaving.min())
    if level.torus_shape:
        return _torus_rate(cluster, index, groups, thinnest)
    egress = level.egress_bytes_per_s
    if level.global_bytes_per_s:
        egress = _dragonfly_egress(cluster, index, groups)
    elif index == 0:
        egress *= float(mesh_share(cluster, in_instances[in_instances > 1].astype(np.float64)).min())
    if groups.axis == "ep":
        return egress / (1 - thinnest / groups.size)
    return egress if groups.axis in POINT_TO_POINT else egress * thinnest


def extents(shape: tuple[int, ...], units: IntArray) -> Extent:
    """Return where groups lie on a torus, from the units of their members, (count, size)."""
    members, gaps, inside = [], [], 1
    for length in shape:
        at = np.sort(units // inside % length, axis=1)
        steps = np.diff(at, axis=1)
        members.append(1.0 + (steps > 0).sum(axis=1))
        nearest = np.where(steps > 0, steps, length).min(axis=1, initial=length)
        reach = at[:, -1] - at[:, 0] + nearest
        gaps.append(np.where(members[-1] > 1, np.ceil(reach / members[-1]), 1.0))  # what siblings in between leave
        inside *= length
    pair = np.full(len(units), units.shape[1] == 2)
    return Extent(np.array(shape, dtype=np.float64)[:, None], np.array(members), np.array(gaps), pair)


def _torus_rate(cluster: ClusterSpec, index: int, groups: AxisGroups, thinnest: int) -> float:
    level = cluster.levels[index]
    below = cluster.levels[index - 1].gpus if index else 1
    units = groups.members() // below
    link = level.egress_bytes_per_s / (2 * len(level.torus_shape))
    if groups.axis == "pp":
        pairs = np.stack([units[:, :-1].reshape(-1), units[:, 1:].reshape(-1)], axis=1)
        units, thinnest = pairs[pairs[:, 0] != pairs[:, 1]], 1
    where = extents(level.torus_shape, units)
    if groups.axis == "ep":
        return float(link / torus_exchange(where).max())
    return float(link * torus_ring(where).min()) * thinnest


def _dragonfly_egress(cluster: ClusterSpec, index: int, groups: AxisGroups) -> float:
    level, peers = cluster.levels[index], np.ones(1)
    if groups.axis == "ep":
        spanned = _begins(groups.members() // cluster.levels[index - 1].gpus).sum(axis=1)
        peers = np.maximum(spanned - 1.0, 1.0)[spanned > 1]
    share = dragonfly_share(float(cluster.children(index)), peers, level.minimal_share)
    return float(np.minimum(level.link_bytes_per_s, level.global_bytes_per_s * share).min())


class _RailUse(NamedTuple):
    """How the groups of an axis use the rails of a cluster that has some; rules as in `gpuscale.collectives.groups`,
    but by member: alltoall, and a stage that sends to the next, need one on the card's rail in the sender's node."""

    #: `ONE`, `OWN` or `PXN` where every group keeps to the first level with rails; else `ABOVE` (some pass the level
    #: above) or `NODE` (some are passed on by other GPUs of their node, as no level joins the rails).
    kind: str
    strays: BoolArray  #: groups that leave their rails, (count,).
    level: int  #: index of the first level with rails.
    above: int | None  #: index of the level that joins the rails; None where the file has none.
    share: float  #: share of an alltoall's bytes between nodes that changes rails over the level above; 1 for strays.


def _rail_use(cluster: ClusterSpec, groups: AxisGroups, members: IntArray, rails: IntArray) -> _RailUse | None:
    """None where the file states no rails, or no group leaves its node; members and rail of each: (count, size),
    ascending."""
    first = next((index for index, level in enumerate(cluster.levels) if level.rails != "none"), None)
    if first is None:
        return None
    level, domains = cluster.levels[first], members // cluster.levels[cluster.domain_index].gpus
    over = (domains != domains[:, :1]).any(axis=1)
    if not over.any():
        return None
    above = None if level.rails == "only" else joining_level(cluster, first)
    strays = over & _off_rail(domains, rails, groups.axis)
    talks, several = groups.axis in POINT_TO_POINT, bool((rails != rails[:, :1]).any())
    beyond = ABOVE if level.rails == "optimised" else NODE
    if strays.any():
        return _RailUse(beyond, strays, first, above, 1.0)
    if several and talks and not level.pxn:
        count = min(len(set(row)) for row in rails[over][:1].tolist())
        return _RailUse(beyond, over, first, above, 1 - 1 / count)
    return _RailUse(ONE if not several else PXN if talks else OWN, strays, first, above, 0.0)


def _off_rail(domains: IntArray, rails: IntArray, axis: str) -> BoolArray:
    """Groups that cannot keep to rails, (count,): rings without a rail on which every node that they span has a member;
    alltoalls and stages in which a member sends to a rail that no member of its node is on."""
    run = np.cumsum(_begins(domains).reshape(-1)).reshape(domains.shape) - 1  # of members in one domain
    used = np.zeros((int(run[-1, -1]) + 1, int(rails.max()) + 1), dtype=bool)
    used[run.reshape(-1), rails.reshape(-1)] = True
    if axis == "pp":
        sends = domains[:, 1:] != domains[:, :-1]
        return (sends & ~used[run[:, :-1], rails[:, 1:]]).any(axis=1)
    common = np.logical_and.reduceat(used, run[:, 0], axis=0)
    some = np.logical_or.reduceat(used, run[:, 0], axis=0)
    return (common != some).any(axis=1) if axis == "ep" else np.logical_not(common.any(axis=1))


def _let_stray(
    cluster: ClusterSpec, groups: AxisGroups, members: IntArray, use: _RailUse, levels: list[LevelSpan]
) -> None:
    """Count strays where they pass: the level that joins the rails, or the links of a node."""
    node = cluster.domain_index
    thinnest = int(np.diff(_runs(members[use.strays], cluster.levels[node].gpus)).min())
    rings = 1 if groups.axis in POINT_TO_POINT else thinnest
    if use.above is None:
        most = cluster.levels[node].egress_bytes_per_s / 2 * rings
        for index in range(use.level, len(levels)) if use.kind == NODE else ():
            rate = min(levels[index].rate_bytes_per_s, most)
            levels[index] = levels[index]._replace(rate_bytes_per_s=rate)
        return
    level, below = cluster.levels[use.above], members // cluster.levels[use.above - 1].gpus
    inside = members // level.gpus
    apart = (below[:, 1:] != below[:, :-1]) & (inside[:, 1:] == inside[:, :-1])
    passing = np.flatnonzero(apart.any(axis=1) | use.strays)
    number = np.broadcast_to(passing[:, None], (passing.size, groups.size))
    rate = level.egress_bytes_per_s * rings
    if groups.axis == "ep":
        rate /= (1 - thinnest / groups.size) * use.share
    before = levels[use.above]
    levels[use.above] = before._replace(
        crossing=passing.size,
        groups_per_unit=_most(below[passing], number),
        groups_per_link=_most(nic(cluster, members[passing]), number),
        rate_bytes_per_s=min(rate, before.rate_bytes_per_s) if before.crossing else rate,
    )


class Held(NamedTuple):
    """The groups of one axis that have members in an instance of a level."""

    ranges: tuple[tuple[int, int], ...]  #: (first, last) numbers of the groups, both counted, ascending.
    members_min: int  #: members of one of these groups in the instance.
    members_max: int  #: members of one of these groups in the instance.
    size: int  #: members of a group in all.


class Holding(NamedTuple):
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
    """Return what each instance of the first network level (a leaf) holds, in order; empty in a single box."""
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
    """What each instance of `gpus` ranks holds of one axis; numbers: (ranks,) group of each rank."""
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
