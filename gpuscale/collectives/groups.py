"""Where the members of a communication group sit on the levels of a cluster, and what bandwidth they share.

A group is `n` GPUs with `stride` Rank stride between members. All sibling groups run the same operation at the same
time, so every GPU counts with its own `egress_bytes_per_s`; `shared_by` says what is left to fewer groups. Rounding
goes to the slower side (docs/collectives.md); a group that does not fit its top level is taken to be inside it.

A group whose nodes all hold members on the same rails keeps to these (alltoall by PXN; NCCL 2.12): the level as it
stands. Others take the first level above that joins the rails, or with rails "only" another GPU of the node: a hop of
its links before each hop of the network, and half of them at most (docs/hardware.md, "Rails").
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, log2
from gpuscale.collectives import topology
from gpuscale.errors import InputError
from gpuscale.specs.cluster import INSIDE, ClusterSpec, LevelSpec

SPINE_HOP_S = 0.5e-6
"""guesstimate: what leaf, spine and leaf take more than one leaf where no level above says it: two switches of 0.25 us
with their cables."""


class Groups(NamedTuple):
    """Placement of N groups on the L levels of one cluster."""

    size: FloatArray  #: (N,) GPUs per group.
    members: FloatArray  #: (L, N) GPUs of a group in one full instance of each level.
    #: (L, N) GPUs of a group in the thinnest unit that the level joins (1 at the first level, whose units are GPUs).
    inner: FloatArray
    crossed: BoolArray  #: (L, N) whether traffic of the group crosses the level.
    #: (L, N) what one such unit sends across the level for this group, at wire rate [bytes/s].
    wire_bytes_per_s: FloatArray
    instances: FloatArray  #: (L + 1, N) units that the group spans: GPUs first, then instances of each level.
    steps: FloatArray  #: (L, N) ring hops that cross each level in one pass around the ring.
    rises: FloatArray  #: (L, N) tree hops that cross each level on the way up: log2 of the units that are joined.
    #: (L, N) time of an alltoall over the send buffer of a GPU at wire rate, where it is not what leaves a unit over
    #: what the unit sends [s/byte]; 0 elsewhere. None: nowhere.
    exchange_s_per_byte: FloatArray | None = None

    def take(self, of: IndexArray) -> Groups:
        """Return the groups with these indices, one by one; they may repeat."""
        return Groups(**{name: rows.take(of, axis=-1) for name, rows in self._asdict().items() if rows is not None})


def place(cluster: ClusterSpec, group_size: ArrayLike, stride: ArrayLike) -> Groups:
    """Place (N,) groups of `group_size` GPUs, `stride` apart, on the L levels of a cluster.

    Raises:
        InputError: a size or stride below 1, or a group that reaches beyond the cluster.
    """
    size, step = np.broadcast_arrays(np.atleast_1d(group_size), np.atleast_1d(stride))
    if size.size and (np.min(size) < 1 or np.min(step) < 1):
        raise InputError("group size and stride must be at least 1", place="collective")
    n, step = size.astype(np.float64), step.astype(np.float64)
    reach = np.max((n - 1) * step + 1, initial=1.0)
    if reach > cluster.gpus:
        message = f"a group reaches over {int(reach):,} GPUs, {cluster.name} has {cluster.gpus:,}"
        hint = "give fewer GPUs or a larger cluster"
        raise InputError(message, place="collective", hint=hint)
    sizes = np.array([level.gpus for level in cluster.levels])[:, None]
    capacity = np.maximum(sizes // step, 1)
    capacity[-1] = np.maximum(capacity[-1], n)
    members = np.minimum(n, capacity)
    rest = n % capacity
    thinnest = np.where((rest == 0) | (n <= capacity), members, rest)
    one = np.ones((1, n.size))
    inner = np.concatenate([one, thinnest[:-1]])
    wire = np.array([level.egress_bytes_per_s for level in cluster.levels])[:, None] * inner
    wire[0] *= topology.mesh_share(cluster, members[0])
    instances = np.concatenate([n[None], np.ceil(n / capacity)])
    groups = Groups(
        size=n,
        members=members,
        inner=inner,
        crossed=members > np.concatenate([one, members[:-1]]),
        wire_bytes_per_s=wire,
        instances=instances,
        steps=instances[:-1] - instances[1:],
        rises=log2(instances[:-1] / instances[1:]),
    )
    return groups if cluster.is_plain else _wired(cluster, groups, step)


def exchanged(data: FloatArray, s_per_byte: FloatArray | None, times_s: FloatArray) -> FloatArray:
    """Return the times of an alltoall per level, (L, N): `times_s`, but where the wiring of a level says otherwise."""
    return times_s if s_per_byte is None else np.where(s_per_byte > 0, data * s_per_byte, times_s)


def shared_by(cluster: ClusterSpec, gpus: int, stride: int, concurrent: int) -> ClusterSpec:
    """Return the cluster as `concurrent` neighbouring groups of `gpus` GPUs, `stride` apart, see it when no other runs:
    switches, and network cards that GPUs share, serve fewer of them.

    Raises:
        InputError: the groups have more GPUs than the cluster.
    """
    cluster = cluster.whole or cluster
    if concurrent < 1:
        raise InputError(f"{concurrent} is out of range", field="concurrent", hint="give at least 1")
    if concurrent * gpus > cluster.gpus:
        needed = f"{concurrent:,} groups of {gpus:,} GPUs at once need {concurrent * gpus:,}"
        hint = f"give 1 to {max(cluster.gpus // gpus, 1):,}"
        raise InputError(f"{needed}, {cluster.name} has {cluster.gpus:,}", field="concurrent", hint=hint)
    members = place(cluster, [gpus], [stride]).members[:, 0]
    busy = [min(level.gpus, int(held) * concurrent) for level, held in zip(cluster.levels, members, strict=True)]
    levels = []
    for level, active in zip(cluster.levels, busy, strict=True):
        cards = float(cards_reached(cluster, level, np.array(float(busy[0]))))
        levels.append(
            replace(
                level,
                link_bytes_per_s=level.link_bytes_per_s * cards,
                nics_per_gpu=level.nics_per_gpu * cards,
                switch_bytes_per_s=level.switch_bytes_per_s * level.gpus / active,
                global_bytes_per_s=level.global_bytes_per_s * level.gpus / active,
            )
        )
    return replace(cluster, levels=tuple(levels), whole=cluster)


def cards_reached(cluster: ClusterSpec, level: LevelSpec, busy: FloatArray) -> FloatArray:
    """Return the network cards that a GPU has to itself over those of `level.nics_per_gpu`, shaped as `busy`, >= 1: of
    a cluster with all of its groups, whose `busy` GPUs of the innermost level send."""
    if level.fabric in INSIDE or level.nics_per_gpu >= 1:
        return np.ones_like(busy)
    return np.minimum(cluster.node_gpus / busy, 1 / level.nics_per_gpu)


def _wired(cluster: ClusterSpec, groups: Groups, step: FloatArray) -> Groups:
    """Write into placed groups what tori, dragonflies and rails make of their bandwidth, hops and exchange; `step`:
    (N,) Rank stride between members."""
    first = next((index for index, level in enumerate(cluster.levels) if level.rails != "none"), None)
    exchange = np.zeros_like(groups.wire_bytes_per_s)
    for index, level in enumerate(cluster.levels):
        crossed, inner, wire = groups.crossed[index], groups.inner[index], groups.wire_bytes_per_s[index]
        below = groups.members[index - 1] if index else np.ones_like(groups.size)
        units = np.ceil(groups.members[index] / below)  # that a group has members in, in one instance of the level
        if level.torus_shape:
            unit_gpus = cluster.levels[index - 1].gpus if index else 1
            where = topology.extent(level.torus_shape, units, np.maximum(step / unit_gpus, 1.0))
            link = level.egress_bytes_per_s / (2 * len(level.torus_shape))  # of a unit, over its GPUs
            hops = topology.torus_hops(where)
            np.copyto(wire, topology.torus_ring(where) * link * inner, where=crossed)
            np.copyto(groups.steps[index], hops * groups.instances[index + 1], where=crossed)
            np.copyto(groups.rises[index], hops, where=crossed)
            np.copyto(exchange[index], topology.torus_exchange(where) / link, where=crossed)
        elif level.global_bytes_per_s:
            children = float(cluster.children(index))
            ring, others = (
                np.minimum(
                    level.link_bytes_per_s,
                    level.global_bytes_per_s * topology.dragonfly_share(children, peers, level.minimal_share),
                )
                for peers in (np.ones_like(inner), np.maximum(units - 1, 1.0))
            )
            np.copyto(wire, ring * inner, where=crossed)
            np.copyto(exchange[index], (1 - inner / groups.size) / others, where=crossed)
    if first is not None:
        _keep_to_rails(cluster, groups, step, first, exchange)
    return groups._replace(exchange_s_per_byte=exchange) if exchange.any() else groups


def _strays(cluster: ClusterSpec, groups: Groups, step: FloatArray, first: int) -> BoolArray:
    """Groups that leave their rails, (N,): one that a node can hold only for its worst place; of two that send to each
    other, mostly a part of something larger, none."""
    reach = (groups.size - 1) * step + 1
    beyond = groups.crossed[first] & (reach > cluster.levels[cluster.domain_index].gpus)
    if cluster.levels[first].pxn:
        beyond &= groups.size > 2
    return beyond & ~topology.on_rails(cluster, groups.inner[first], step) if beyond.any() else beyond


def _keep_to_rails(cluster: ClusterSpec, groups: Groups, step: FloatArray, first: int, exchange: FloatArray) -> None:
    level, inner = cluster.levels[first], groups.inner[first].copy()
    strays = _strays(cluster, groups, step, first)
    if level.pxn and not strays.any():
        return  # nothing leaves its rails: the usual case
    target = None if level.rails == "only" else topology.joining_level(cluster, first)
    if target is not None and not level.pxn:
        away = 1 - 1 / topology.rails_of(cluster, inner, step, level.nics_per_gpu)
        above_s = (1 - inner / groups.size) * away / cluster.levels[target].egress_bytes_per_s
        plain_s = (1 - groups.inner[target] / groups.size) / cluster.levels[target].egress_bytes_per_s
        longest_s = np.maximum(above_s, np.where(groups.crossed[target], plain_s, 0.0))
        np.copyto(exchange[target], longest_s, where=groups.crossed[first] & ~strays & (away > 0))
    if not strays.any():
        return
    if level.rails == "only":  # other GPUs of a node pass on what has to change rails: no switch does
        domain = cluster.domain_index
        links = cluster.levels[domain].egress_bytes_per_s / 2
        for index in range(first, len(cluster.levels)):
            here = strays & groups.crossed[index]
            wire = np.minimum(groups.wire_bytes_per_s[index], links * groups.inner[index])
            np.copyto(groups.wire_bytes_per_s[index], wire, where=here)
            for rows in (groups.steps, groups.rises):
                np.copyto(rows[domain], rows[domain] + rows[index], where=here)
    elif target is None:
        for rows in (groups.steps, groups.rises):
            np.copyto(rows[first], rows[first] * (1 + SPINE_HOP_S / level.hop_latency_s), where=strays)
    else:  # through the level that joins the rails: its hops in the place of the lower level's, and its bandwidth
        own = np.where(groups.crossed[target], groups.wire_bytes_per_s[target], np.inf)
        wire = np.minimum(own, cluster.levels[target].egress_bytes_per_s * inner)
        np.copyto(groups.wire_bytes_per_s[target], wire, where=strays)
        np.copyto(groups.inner[target], inner, where=strays)
        groups.crossed[target] |= strays
        for rows in (groups.steps, groups.rises):
            np.copyto(rows[target], rows[target] + rows[first], where=strays)
            np.copyto(rows[first], 0.0, where=strays)
