"""Orders of the axes: where each puts its groups, how orders rank without a model, and how that is said in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from gpuscale.errors import InputError
from gpuscale.placement.groups import AxisGroups, Degrees, axis_groups, megatron_accepts
from gpuscale.placement.levels import NODE, ONE, OWN, PXN, AxisSpan, LevelSpan, span
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import AXES

TALKATIVE = ("tp", "etp", "ep", "cp", "dp_cp", "dp", "edp", "pp")
"""Axes by how much they send in a step, most first: TP, ETP, EP and CP in every layer of every microbatch, DP once or
twice all parameters, PP one activation per microbatch."""

RULE = "the highest rate for TP; among equals for ETP, EP, CP, DP with CP, DP, the experts' DP, then PP"

SHOWN_PARTS = 4


@dataclass(frozen=True)
class PlacedOrder:
    """One order of the axes with where it puts the groups.

    Attributes:
        order: the axes, neighbours first.
        spans: axis -> where its groups lie.
        megatron: Megatron-LM takes the order.
        step_time_s: step time of a model in this order; None without a model [s].
        comm_s: communication component -> its exposed time in a step [s].
    """

    order: tuple[str, ...]
    spans: dict[str, AxisSpan]
    megatron: bool = True
    step_time_s: float | None = None
    comm_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def straddling(self) -> int:
        """Groups that lie on several nodes unevenly, or on more nodes than they need."""
        return sum(one.levels[0].straddling for one in self.spans.values())

    @property
    def rates(self) -> dict[str, float]:
        """Axis -> rate of its worst placed group at its busiest level [bytes/s]."""
        return {axis: one.worst.rate_bytes_per_s for axis, one in self.spans.items()}

    @property
    def slowness(self) -> tuple[float, ...]:
        """Sorts orders by `RULE`, best first."""
        rates = self.rates
        return tuple(-rates[axis] for axis in TALKATIVE if axis in rates)


def place_order(cluster: ClusterSpec, degrees: Degrees, order: Sequence[str]) -> PlacedOrder:
    """Place the groups of one order.

    Raises:
        InputError: the experts' pipelines would not be those of the other layers.
    """
    spans = {axis: span(cluster, found) for axis, found in axis_groups(degrees, order).items()}
    return PlacedOrder(tuple(order), spans, megatron_accepts(degrees, order))


def other_orders(cluster: ClusterSpec, degrees: Degrees, given: PlacedOrder) -> list[PlacedOrder]:
    """Return the given order and all that form other groups, each set of groups once."""
    spans: dict[AxisGroups, AxisSpan] = {one.groups: one for one in given.spans.values()}
    found = {tuple(spans): given}
    sizes, routed = degrees.sizes(), degrees.ep * degrees.etp > 1
    twins = {"tp": "etp", "dp": "edp"}
    used = [name for name in AXES if sizes[name] > 1 or (routed and sizes[twins.get(name, name)] > 1)]
    for chosen in permutations(used):
        order = list(chosen)
        for index, name in enumerate(AXES):  # axes that are not used stand behind the one before them, as usually
            if name not in order:
                order.insert(order.index(AXES[index - 1]) + 1 if index else 0, name)
        try:
            groups = axis_groups(degrees, order)
        except InputError:
            continue  # the experts' pipelines would not be those of the other layers
        if tuple(groups.values()) in found:
            continue
        for one in groups.values():
            if one not in spans:
                spans[one] = span(cluster, one)
        placed = {axis: spans[one] for axis, one in groups.items()}
        found[tuple(groups.values())] = PlacedOrder(tuple(order), placed, megatron_accepts(degrees, order))
    return list(found.values())


# -- in words ----------------------------------------------------------------------------------------------------------


def axis_name(axis: str) -> str:
    """Name an axis for people."""
    return {"dp_cp": "DP with CP", "edp": "expert DP"}.get(axis, axis.upper())


def order_text(order: Sequence[str]) -> str:
    """Write an order as `axis_order` reads it."""
    return "-".join(order)


def verdict(cluster: ClusterSpec, placed: PlacedOrder) -> str:
    """Say where every axis lies, and whether groups straddle a node."""
    if not placed.spans:
        return "one GPU: there are no groups"
    axes = ", ".join(_lies(cluster, one) for axis, one in placed.spans.items() if axis != "dp_cp")
    uneven = [straddling_text(one, 0) for one in placed.spans.values() if one.levels[0].straddling]
    return f"{axes}; {'; '.join(uneven)}" if uneven else f"{axes}: nothing straddles {_one(cluster.levels[0].name)}"


def _lies(cluster: ClusterSpec, one: AxisSpan) -> str:
    """Say where an axis lies."""
    name, node = axis_name(one.groups.axis), one.levels[0]
    if node.units_max == 1:
        return f"{name} inside {_one(node.name)}"
    if one.groups.axis == "pp":
        stride, gpus = one.groups.stride or 1, cluster.node_gpus
        if stride < gpus:
            return f"{name} within {_plural(node.name)} and between neighbouring ones"
        if stride == gpus:
            return f"{name} between neighbouring {_plural(node.name)}"
        nodes = f"{stride / gpus:,.1f}" if stride % gpus else f"{stride // gpus:,}"
        return f"{name} between {_plural(node.name)} {nodes} apart"
    over = f"{name} over {units_text(node)}"
    if node.members_max > 1:
        return f"{over} of {_range(node.members_min, node.members_max)} GPUs each"
    return f"{over} on one rail each" if one.one_rail and len(cluster.levels) > 1 else over


def straddling_text(one: AxisSpan, index: int) -> str:
    """Say how many groups of an axis straddle a level, and how the first of them lies."""
    level = one.levels[index]
    parts = " + ".join(str(part) for part in level.parts[:SHOWN_PARTS])
    more = " + ..." if len(level.parts) > SHOWN_PARTS else ""
    groups = f"{level.straddling:,} of {one.groups.count:,} {axis_name(one.groups.axis)} groups"
    return f"{groups} straddle {_plural(level.name)} ({parts}{more} GPUs)"


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
