"""Plots in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

ROWS = 14
LABEL = 11
"""Columns left of the plot."""

WIDEST = 100
LOGARITHMIC = 6.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""


def plot_columns(width: int) -> int:
    """Return the columns of a plot for an output of this width."""
    return max(20, min(width, WIDEST) - LABEL)


def framed(title: str, levels: Sequence[float], rows: Sequence[str], columns: int, ends: tuple[str, str]) -> str:
    """Draw the rows of a plot, lowest first, with their levels, and the ends of the axis below them."""
    drawn = [f"{level:{LABEL - 2}.4g} |{row}".rstrip() for level, row in zip(levels, rows, strict=True)]
    axis = " " * (LABEL - 2) + " +" + "-" * columns
    low, high = ends
    return "\n".join([title, *reversed(drawn), axis, " " * LABEL + low + high.rjust(columns - len(low))])


class Axis(NamedTuple):
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
    columns = plot_columns(width)
    grid = [[" "] * columns for _ in range(ROWS)]
    points = zip(across.cells(columns), up.cells(ROWS), marks, strict=True)
    for column, row, mark in reversed(list(points)):
        grid[row][column] = mark
    levels = [up.value(row, ROWS) for row in range(ROWS)]
    ends = f"{min(across.values):.4g}", f"{max(across.values):.4g}"
    return framed(f"{up.text}, over {across.text}", levels, ["".join(row) for row in grid], columns, ends)
