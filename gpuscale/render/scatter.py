"""A scatter plot in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ROWS = 14
LABEL = 11
"""Columns left of the plot."""

WIDEST = 100
LOGARITHMIC = 6.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""


@dataclass(frozen=True)
class Axis:
    """One axis: its name with the unit, and the value of each point."""

    name: str
    values: Sequence[float]

    @property
    def logarithmic(self) -> bool:
        """The values lie too far apart for a linear axis."""
        low, high = min(self.values), max(self.values)
        return low > 0 and high / low >= LOGARITHMIC

    @property
    def text(self) -> str:
        """The name, with the scale if it is not linear."""
        return f"{self.name}, logarithmic" if self.logarithmic else self.name

    def cells(self, count: int) -> list[int]:
        """Return the cell of each point, 0 to count - 1."""
        at = [math.log(value) for value in self.values] if self.logarithmic else list(self.values)
        low, span = min(at), max(at) - min(at)
        return [round((one - low) / span * (count - 1)) if span else 0 for one in at]

    def value(self, cell: int, count: int) -> float:
        """Return the value at a cell."""
        low, high, share = min(self.values), max(self.values), cell / (count - 1)
        return low * (high / low) ** share if self.logarithmic else low + (high - low) * share


def scatter(across: Axis, up: Axis, marks: Sequence[str], width: int) -> str:
    """Plot points, one mark each; where several share a cell, the first one's mark shows."""
    columns = max(20, min(width, WIDEST) - LABEL)
    grid = [[" "] * columns for _ in range(ROWS)]
    points = zip(across.cells(columns), up.cells(ROWS), marks, strict=True)
    for column, row, mark in reversed(list(points)):
        grid[row][column] = mark
    drawn = [f"{up.value(row, ROWS):{LABEL - 2}.4g} |{''.join(grid[row])}".rstrip() for row in range(ROWS)]
    lines = [f"{up.text}, over {across.text}", *reversed(drawn)]
    lines.append(" " * (LABEL - 2) + " +" + "-" * columns)
    low, high = (f"{end(across.values):.4g}" for end in (min, max))
    lines.append(" " * LABEL + low + " " * (columns - len(low) - len(high)) + high)
    return "\n".join(lines)


__all__ = ["Axis", "scatter"]
