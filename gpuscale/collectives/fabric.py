"""What tori, dragonflies and rails do to groups that are placed by size and stride.

Rails. Network card k of every node is wired to leaf switch k of its unit (NVIDIA DGX SuperPOD reference architecture
RA-11333 (2023), compute fabric: traffic of one rail is one hop away within a scalable unit, traffic between rails
traverses the spine). A group whose nodes all hold members on the same rails keeps to these: every channel of a ring
enters and leaves through one card number, and alltoall passes a message to the GPU with the right card over NVLink
first (PXN; NCCL 2.12). That is the level as it stands, and what latencies and efficiencies of presets were measured on.
Else

- rails "optimised": traffic goes up to the first level above that joins the rails: its bandwidth, its hops;
- rails "only": there is no such level, and another GPU of the node passes it on (Wang et al., "Rail-only", arXiv
  2307.12169): a hop of the node's links before each hop of the network, and half of these links at most;
- without PXN an alltoall sends 1 - 1/r of what leaves a node over the level above, for members on r rails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.collectives.shapes import dragonfly_share, extent, torus_exchange, torus_hops, torus_ring
from gpuscale.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    from gpuscale.collectives.groups import Groups


SPINE_HOP_S = 0.5e-6
"""guesstimate: what leaf, spine and leaf take more than one leaf: two switches of 0.25 us with their cables, as between
the leaf and the spine level of the presets. Used where no level above says it."""


def shaped(cluster: ClusterSpec, groups: Groups, step: FloatArray) -> Groups:
    """Return the groups with what the wiring of the levels makes of their bandwidth, hops and exchange.

    Args:
        cluster: at least one of its levels is not plain.
        groups: placed by size and stride alone.
        step: (N,) GPUs from one member to the next.
    """
    first = next((index for index, level in enumerate(cluster.levels) if level.rails != "none"), None)
    wired = any(level.torus_shape or level.global_bytes_per_s for level in cluster.levels)
    if (
        not wired
        and first is not None
        and cluster.levels[first].pxn
        and not _strays(cluster, groups, step, first).any()
    ):
        return groups  # nothing leaves its rails: the usual case, and a hot one
    exchange = np.zeros_like(groups.wire_bytes_per_s)
    groups = replace(
        groups,
        inner=groups.inner.copy(),
        crossed=groups.crossed.copy(),
        wire_bytes_per_s=groups.wire_bytes_per_s.copy(),
        steps=groups.steps.copy(),
        rises=groups.rises.copy(),
    )
    for index, level in enumerate(cluster.levels):
        if level.torus_shape:
            _lay_on_torus(cluster, groups, step, index, exchange)
        elif level.global_bytes_per_s:
            _join_by_global_links(cluster, groups, index, exchange)
    if first is not None:
        _keep_to_rails(cluster, groups, step, first, exchange)
    return replace(groups, exchange_s_per_byte=exchange) if exchange.any() else groups


def _units(groups: Groups, index: int) -> FloatArray:
    """Units of the level below that a group has members in, in one full instance of level `index`, (N,)."""
    below = groups.members[index - 1] if index else np.ones_like(groups.size)
    return np.ceil(groups.members[index] / below)


def _set(rows: FloatArray, index: int, where: BoolArray, values: FloatArray) -> None:
    rows[index] = np.where(where, values, rows[index])


def _lay_on_torus(cluster: ClusterSpec, groups: Groups, step: FloatArray, index: int, exchange: FloatArray) -> None:
    level = cluster.levels[index]
    below = cluster.levels[index - 1].gpus if index else 1
    where = extent(level.torus_shape, _units(groups, index), np.maximum(step / below, 1.0))
    link = level.egress_bytes_per_s / (2 * len(level.torus_shape))  # of a unit, over its GPUs
    crossed, hops = groups.crossed[index], torus_hops(where)
    _set(groups.wire_bytes_per_s, index, crossed, torus_ring(where) * link * groups.inner[index])
    _set(groups.steps, index, crossed, hops * groups.instances[index + 1])
    _set(groups.rises, index, crossed, hops)
    _set(exchange, index, crossed, torus_exchange(where) / link)


def _join_by_global_links(cluster: ClusterSpec, groups: Groups, index: int, exchange: FloatArray) -> None:
    level, inner = cluster.levels[index], groups.inner[index]
    count = float(cluster.children(index))

    def egress(peers: FloatArray) -> FloatArray:
        share = dragonfly_share(count, peers, level.minimal_share)
        return np.minimum(level.link_bytes_per_s, level.global_bytes_per_s * share)

    crossed, peers = groups.crossed[index], np.maximum(_units(groups, index) - 1, 1.0)
    _set(groups.wire_bytes_per_s, index, crossed, egress(np.ones_like(inner)) * inner)
    _set(exchange, index, crossed, (1 - inner / groups.size) / egress(peers))


def on_rails(cluster: ClusterSpec, members: FloatArray, step: FloatArray) -> BoolArray:
    """Whether every node (or NVLink domain) that groups span holds members on the same rails, (N,).

    It does where the members lie alike in all of them, and where a domain of several hosts holds enough of them to use
    each rail that the spacing leads to: p / gcd(step, p) rails of p.

    Args:
        members: (N,) members in the thinnest of these nodes.
        step: (N,) GPUs from one member to the next.
    """
    node, period = cluster.levels[cluster.domain_index].gpus, cluster.host_gpus
    alike: BoolArray = (node % step == 0) | (step % node == 0)
    if period == node or alike.all():
        return alike
    return alike | (members >= period / np.gcd(step.astype(np.int64), period))


def rails_of(cluster: ClusterSpec, members: FloatArray, step: FloatArray, cards: float) -> FloatArray:
    """Rails that `members` members of a node use, `step` GPUs apart, (N,).

    Args:
        cards: network cards of one GPU; below 1 neighbouring GPUs share one.
    """
    period, sharing = cluster.host_gpus, max(round(1 / cards), 1) if cards > 0 else 1
    reach = np.minimum(members * step, period)
    return np.maximum(np.ceil(reach / np.maximum(step, sharing)), 1.0)


def joining_level(cluster: ClusterSpec, index: int) -> int | None:
    """Return the first level above `index` that joins rails; None where the file has none."""
    above = range(index + 1, len(cluster.levels))
    return next((one for one in above if cluster.levels[one].rails == "none"), None)


def _strays(cluster: ClusterSpec, groups: Groups, step: FloatArray, first: int) -> BoolArray:
    """Groups that leave their rails, (N,).

    A group that a node can hold is priced as crossing for its worst place alone. Two GPUs that send to each other are
    mostly a part of something larger (stages, a ring of context), whose members in the node have the card for PXN.
    """
    reach = (groups.size - 1) * step + 1
    beyond = groups.crossed[first] & (reach > cluster.levels[cluster.domain_index].gpus)
    if cluster.levels[first].pxn:
        beyond &= groups.size > 2
    return beyond & ~on_rails(cluster, groups.inner[first], step) if beyond.any() else beyond


def _keep_to_rails(cluster: ClusterSpec, groups: Groups, step: FloatArray, first: int, exchange: FloatArray) -> None:
    """Send what leaves its rail over the level above (or another GPU of the node), from the first level with rails."""
    level, inner = cluster.levels[first], groups.inner[first].copy()
    strays = _strays(cluster, groups, step, first)
    target = None if level.rails == "only" else joining_level(cluster, first)
    if target is not None and not level.pxn:
        away = 1 - 1 / rails_of(cluster, inner, step, level.nics_per_gpu)
        above_s = (1 - inner / groups.size) * away / cluster.levels[target].egress_bytes_per_s
        plain_s = (1 - groups.inner[target] / groups.size) / cluster.levels[target].egress_bytes_per_s
        here = groups.crossed[first] & ~strays & (away > 0)
        _set(exchange, target, here, np.maximum(above_s, np.where(groups.crossed[target], plain_s, 0.0)))
    if not strays.any():
        return
    if level.rails == "only":
        _pass_on(cluster, groups, first, strays)
    elif target is None:
        for rows in (groups.steps, groups.rises):
            _set(rows, first, strays, rows[first] * (1 + SPINE_HOP_S / level.hop_latency_s))
    else:
        _send_up(cluster, groups, (first, target), strays)


def _send_up(cluster: ClusterSpec, groups: Groups, way: tuple[int, int], strays: BoolArray) -> None:
    """Let strays pass the level that joins the rails: its hops in the place of the lower level's, and its bandwidth."""
    first, target = way
    inner = groups.inner[first]
    own = np.where(groups.crossed[target], groups.wire_bytes_per_s[target], np.inf)
    wire = np.minimum(own, cluster.levels[target].egress_bytes_per_s * inner)
    _set(groups.wire_bytes_per_s, target, strays, wire)
    _set(groups.inner, target, strays, inner)
    groups.crossed[target] |= strays
    for rows in (groups.steps, groups.rises):
        _set(rows, target, strays, rows[target] + rows[first])
        _set(rows, first, strays, np.zeros_like(rows[first]))


def _pass_on(cluster: ClusterSpec, groups: Groups, first: int, strays: BoolArray) -> None:
    """Let other GPUs of a node pass on what has to change rails: no switch does."""
    domain = cluster.domain_index
    links = cluster.levels[domain].egress_bytes_per_s / 2
    for index in range(first, len(cluster.levels)):
        here = strays & groups.crossed[index]
        wire = np.minimum(groups.wire_bytes_per_s[index], links * groups.inner[index])
        _set(groups.wire_bytes_per_s, index, here, wire)
        for rows in (groups.steps, groups.rises):
            _set(rows, domain, here, rows[domain] + rows[index])


__all__ = ["SPINE_HOP_S", "joining_level", "on_rails", "rails_of", "shaped"]
