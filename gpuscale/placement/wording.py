"""Where the groups of a layout lie, in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscale.placement.levels import AxisSpan, LevelSpan
from gpuscale.placement.orders import PlacedOrder
from gpuscale.placement.rails import NODE, ONE, OWN, PXN
from gpuscale.specs.cluster import ClusterSpec

SHOWN_PARTS = 4

NAMES = {"dp_cp": "DP with CP", "edp": "expert DP"}


def axis_name(axis: str) -> str:
    """Name an axis for people."""
    return NAMES.get(axis, axis.upper())


def order_text(order: Sequence[str]) -> str:
    """Write an order as `--order` reads it."""
    return "-".join(order)


def verdict(cluster: ClusterSpec, placed: PlacedOrder) -> str:
    """Say where every axis lies, and whether groups straddle a node."""
    if not placed.spans:
        return "one GPU: there are no groups"
    axes = ", ".join(_axis(cluster, one) for axis, one in placed.spans.items() if axis != "dp_cp")
    uneven = [straddling_text(one, 0) for one in placed.spans.values() if one.levels[0].straddling]
    if not uneven:
        return f"{axes}: nothing straddles {_one(cluster.levels[0].name)}"
    return f"{axes}; " + "; ".join(uneven)


def straddling_text(one: AxisSpan, index: int) -> str:
    """Say how many groups of an axis straddle a level, and how the first of them lies."""
    level = one.levels[index]
    parts = " + ".join(str(part) for part in level.parts[:SHOWN_PARTS])
    more = " + ..." if len(level.parts) > SHOWN_PARTS else ""
    return (
        f"{level.straddling:,} of {one.groups.count:,} {axis_name(one.groups.axis)} groups straddle "
        f"{_plural(level.name)} ({parts}{more} GPUs)"
    )


def _axis(cluster: ClusterSpec, one: AxisSpan) -> str:
    name, node = axis_name(one.groups.axis), one.levels[0]
    if node.units_max == 1:
        return f"{name} inside {_one(node.name)}"
    if one.groups.axis == "pp":
        return f"{name} {_hops(cluster.node_gpus, one.groups.stride or 1, node.name)}"
    over = f"{name} over {units_text(node)}"
    if node.members_max > 1:
        return f"{over} of {_range(node.members_min, node.members_max)} GPUs each"
    return f"{over} on one rail each" if one.one_rail and len(cluster.levels) > 1 else over


def _hops(node_gpus: int, stride: int, name: str) -> str:
    if stride < node_gpus:
        return f"within {_plural(name)} and between neighbouring ones"
    if stride == node_gpus:
        return f"between neighbouring {_plural(name)}"
    nodes = stride / node_gpus
    return f"between {_plural(name)} {f'{nodes:,.0f}' if nodes.is_integer() else f'{nodes:,.1f}'} apart"


def rails_text(one: AxisSpan, above: str | None) -> str:
    """Say how the groups of an axis use the rails; `above` names the level that joins these."""
    name, how = axis_name(one.groups.axis), {ONE: "one rail each, one hop", OWN: "a ring on each rail, one hop"}
    if one.rails in how:
        return f"{name} {how[one.rails]}"
    if one.rails == PXN:
        return f"{name} to other rails over NVLink first (PXN)"
    some = "all" if one.strays == one.groups.count else f"{one.strays:,} of {one.groups.count:,}"
    where = "passed on by other GPUs of the node" if one.rails == NODE else f"over {above or 'a level not described'}"
    return f"{some} {name} groups leave their rails, {where}"


def units_text(level: LevelSpan) -> str:
    """How many instances of a level a group has members in."""
    return f"{_range(level.units_min, level.units_max)} {_plural(level.name) if level.units_max > 1 else level.name}"


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _one(name: str) -> str:
    return f"a {name}" if name in {"node", "box", "leaf", "spine", "pod", "rack"} else f"one {name}"


def _plural(name: str) -> str:
    return {"leaf": "leaves", "box": "boxes"}.get(name, f"{name}s" if name.isalpha() else f"{name} domains")


__all__ = ["axis_name", "order_text", "rails_text", "straddling_text", "units_text", "verdict"]
