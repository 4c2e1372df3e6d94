"""Other orders of the axes: which there are, and how they rank without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from gpuscale.errors import InputError
from gpuscale.placement.groups import AxisGroups, Degrees, axis_groups, megatron_accepts
from gpuscale.placement.levels import AxisSpan, span
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import AXES

TALKATIVE = ("tp", "etp", "ep", "cp", "dp_cp", "dp", "edp", "pp")
"""Axes by how much they send in a step, most first: TP, ETP, EP and CP in every layer of every microbatch, DP once or
twice all parameters, PP one activation per microbatch."""

RULE = "the highest rate for TP; among equals for ETP, EP, CP, DP with CP, DP, the experts' DP, then PP"

Signature = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True)
class PlacedOrder:
    """One order of the axes with where it puts the groups; `megatron`: Megatron-LM takes it."""

    order: tuple[str, ...]
    spans: dict[str, AxisSpan]
    megatron: bool = True

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
    groups = axis_groups(degrees, order)
    spans = {axis: span(cluster, found) for axis, found in groups.items()}
    return PlacedOrder(tuple(order), spans, megatron_accepts(degrees, order))


def other_orders(cluster: ClusterSpec, degrees: Degrees, given: PlacedOrder) -> list[PlacedOrder]:
    """Return the given order and all that form other groups, each set of groups once."""
    spans = {_key(one.groups): one for one in given.spans.values()}
    found = {_signature({axis: one.groups for axis, one in given.spans.items()}): given}
    used = [name for name in AXES if _used(name, degrees)]
    for chosen in permutations(used):
        order = _completed(chosen)
        try:
            groups = axis_groups(degrees, order)
        except InputError:
            continue  # the experts' pipelines would not be those of the other layers
        signature = _signature(groups)
        if signature in found:
            continue
        for one in groups.values():
            if _key(one) not in spans:
                spans[_key(one)] = span(cluster, one)
        placed = {axis: spans[_key(one)] for axis, one in groups.items()}
        found[signature] = PlacedOrder(order, placed, megatron_accepts(degrees, order))
    return list(found.values())


def _completed(chosen: Sequence[str]) -> tuple[str, ...]:
    """Put axes that are not used where they stand in the usual order: behind the one before them."""
    order = list(chosen)
    for index, name in enumerate(AXES):
        if name not in order:
            order.insert(order.index(AXES[index - 1]) + 1 if index else 0, name)
    return tuple(order)


def _used(name: str, degrees: Degrees) -> bool:
    sizes, routed = degrees.sizes(), degrees.ep * degrees.etp > 1
    twin = {"tp": "etp", "dp": "edp"}.get(name, name)
    return sizes[name] > 1 or (routed and sizes[twin] > 1)


def _key(groups: AxisGroups) -> tuple[str, tuple[tuple[int, int], ...]]:
    return groups.axis, groups.factors


def _signature(groups: dict[str, AxisGroups]) -> Signature:
    return tuple(_key(one) for one in groups.values())


__all__ = ["RULE", "TALKATIVE", "PlacedOrder", "other_orders", "place_order"]
