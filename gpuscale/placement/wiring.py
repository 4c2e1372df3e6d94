"""Rates of groups on levels that are tori or dragonflies, counted member by member."""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.collectives.topology import Extent, dragonfly_share, torus_exchange, torus_ring
from gpuscale.placement.groups import AxisGroups
from gpuscale.specs.cluster import ClusterSpec


def wired_rate(cluster: ClusterSpec, index: int, groups: AxisGroups, thinnest: int) -> float | None:
    """Return the rate of the worst placed group across a torus or dragonfly [bytes/s]; None for other levels.

    Args:
        thinnest: members of a group in the thinnest unit that its traffic leaves.
    """
    level = cluster.levels[index]
    if level.torus_shape:
        return _torus_rate(cluster, index, groups, thinnest)
    if level.global_bytes_per_s:
        return _dragonfly_rate(cluster, index, groups, thinnest)
    return None


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
    shape, members = level.torus_shape, groups.members()
    link = level.egress_bytes_per_s / (2 * len(shape))
    if groups.axis == "pp":
        pairs = np.stack([members[:, :-1].reshape(-1), members[:, 1:].reshape(-1)], axis=1)
        pairs = pairs[pairs[:, 0] // below != pairs[:, 1] // below]
        return float(link * torus_ring(extents(shape, pairs // below)).min())
    where = extents(shape, members // below)
    if groups.axis == "ep":
        return float(link / torus_exchange(where).max())
    return float(link * torus_ring(where).min()) * thinnest


def _dragonfly_rate(cluster: ClusterSpec, index: int, groups: AxisGroups, thinnest: int) -> float:
    level = cluster.levels[index]
    below = cluster.levels[index - 1].gpus

    def egress(peers: FloatArray) -> float:
        share = dragonfly_share(float(cluster.children(index)), peers, level.minimal_share)
        return float(np.minimum(level.link_bytes_per_s, level.global_bytes_per_s * share).min())

    if groups.axis != "ep":
        return egress(np.ones(1)) * (1 if groups.axis == "pp" else thinnest)
    units = groups.members() // below
    spanned = 1 + (units[:, 1:] != units[:, :-1]).sum(axis=1)
    return egress(np.maximum(spanned - 1.0, 1.0)[spanned > 1]) / (1 - thinnest / groups.size)


__all__ = ["extents", "wired_rate"]
