"""Which rails the groups of an axis use, counted member by member.

The rules are those of `gpuscale.collectives.groups`, which knows size and stride of a group alone. A ring keeps to the
rails on which every node that it spans has a member. Alltoall needs a member on the card's rail in the sender's node
(PXN), and so does a stage that sends to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscale.arrays import BoolArray, IntArray
from gpuscale.collectives.topology import joining_level
from gpuscale.placement.groups import AxisGroups
from gpuscale.specs.cluster import ClusterSpec

ONE, OWN, PXN, ABOVE, NODE = "one", "own", "pxn", "above", "node"
"""One rail per group; several, each with a ring of its own; changed over NVLink; over the level above; in a node."""


@dataclass(frozen=True)
class RailUse:
    """How the groups of an axis use the rails of a cluster that has some.

    Attributes:
        kind: `ONE`, `OWN` or `PXN` where every group keeps to the first level with rails; else `ABOVE` (some pass the
            level above) or `NODE` (some are passed on by other GPUs of their node, as no level joins the rails).
        strays: groups that leave their rails, (count,).
        level: index of the first level with rails.
        above: index of the level that joins the rails; None where the file has none.
        share: share of an alltoall's bytes between nodes that changes rails over the level above; 1 for strays.
    """

    kind: str
    strays: BoolArray
    level: int
    above: int | None
    share: float


def rail_use(cluster: ClusterSpec, groups: AxisGroups, members: IntArray, rails: IntArray) -> RailUse | None:
    """Return how groups use rails; None where the file states none, or no group leaves its node.

    Args:
        members: (count, size) ranks of every group, ascending.
        rails: (count, size) rail of each.
    """
    first = next((index for index, level in enumerate(cluster.levels) if level.rails != "none"), None)
    if first is None:
        return None
    level, domains = cluster.levels[first], members // cluster.levels[cluster.domain_index].gpus
    over = (domains != domains[:, :1]).any(axis=1)
    if not over.any():
        return None
    above = None if level.rails == "only" else joining_level(cluster, first)
    talks = groups.axis in {"ep", "pp"}
    strays = over & (_missing_peer(domains, rails, groups.axis) if talks else _nothing_common(domains, rails))
    several = bool((rails != rails[:, :1]).any())
    if strays.any():
        return RailUse(ABOVE if level.rails == "optimised" else NODE, strays, first, above, 1.0)
    if several and talks and not level.pxn:
        count = min(len(set(row)) for row in rails[over][:1].tolist())
        return RailUse(ABOVE if level.rails == "optimised" else NODE, over, first, above, 1 - 1 / count)
    kind = ONE if not several else PXN if talks else OWN
    return RailUse(kind, strays, first, above, 0.0)


def _used(domains: IntArray, rails: IntArray) -> tuple[BoolArray, IntArray, IntArray]:
    """Return the rails that each run of members in one domain uses, the run of each member, and each group's first."""
    new = np.ones(domains.shape, dtype=bool)
    new[:, 1:] = domains[:, 1:] != domains[:, :-1]
    run = np.cumsum(new.reshape(-1)).reshape(domains.shape) - 1
    used = np.zeros((int(run[-1, -1]) + 1, int(rails.max()) + 1), dtype=bool)
    used[run.reshape(-1), rails.reshape(-1)] = True
    return used, run, run[:, 0]


def _nothing_common(domains: IntArray, rails: IntArray) -> BoolArray:
    """Groups without a rail on which every node that they span has a member."""
    used, _, first = _used(domains, rails)
    common: BoolArray = np.logical_and.reduceat(used, first, axis=0)
    return np.logical_not(common.any(axis=1))


def _missing_peer(domains: IntArray, rails: IntArray, axis: str) -> BoolArray:
    """Groups in which a member sends to a rail that no member of its node is on."""
    used, run, first = _used(domains, rails)
    if axis == "ep":
        every, some = np.logical_and.reduceat(used, first, axis=0), np.logical_or.reduceat(used, first, axis=0)
        unlike: BoolArray = (every != some).any(axis=1)
        return unlike
    sends = domains[:, 1:] != domains[:, :-1]
    reached = used[run[:, :-1], rails[:, 1:]]
    missing: BoolArray = (sends & ~reached).any(axis=1)
    return missing


__all__ = ["ABOVE", "NODE", "ONE", "OWN", "PXN", "RailUse", "rail_use"]
