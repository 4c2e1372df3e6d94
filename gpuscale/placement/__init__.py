"""Which ranks form a group along each parallel axis, and where on the levels of a cluster its members sit."""

from gpuscale.placement.groups import AxisGroups, Degrees, axis_groups, coordinates, parse_order
from gpuscale.placement.levels import AxisSpan, LevelSpan, span

__all__ = ["AxisGroups", "AxisSpan", "Degrees", "LevelSpan", "axis_groups", "coordinates", "parse_order", "span"]
