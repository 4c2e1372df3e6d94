"""Plots of characters, of at most as many columns as an output has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import log
from gpuscale.files import printable
from gpuscale.render.document import WIDTH

ROWS = 14
LABEL = 11
"""Columns left of the plot."""

LOGARITHMIC = 6.0
"""Ratio of values from which on an axis of characters is logarithmic."""


class Axis(NamedTuple):
    """An axis: its title, how values are written, and on a page whether logarithmic, of bytes, and its beginning."""

    title: str
    text: Callable[[float], str]
    log: bool = False
    of_bytes: bool = False
    least: float | None = None


def plot_columns(width: int) -> int:
    """Return the columns of a plot for an output of this width."""
    return max(20, min(width, WIDTH) - LABEL)


def framed(title: str, names: Sequence[str], rows: Sequence[str], columns: int, ends: tuple[str, str]) -> str:
    """Draw the rows of a plot, lowest first, with their names, and the ends of the axis below."""
    drawn = [f"{name:>{LABEL - 2}} |{row}".rstrip() for name, row in zip(names, rows, strict=True)]
    axis = " " * (LABEL - 2) + " +" + "-" * columns
    low, high = ends
    return "\n".join([title, *reversed(drawn), axis, " " * LABEL + low + high.rjust(columns - len(low))])


def numbered(levels: Sequence[float]) -> list[str]:
    """Name levels by their numbers, with as many digits as tell them apart."""
    digits = next((n for n in range(4, LABEL - 2) if len({f"{level:.{n}g}" for level in levels}) == len(levels)), 4)
    return [f"{level:.{digits}g}" for level in levels]


def scaled(values: Sequence[float], count: int) -> tuple[bool, list[int], list[float]]:
    """Return whether a scale is logarithmic, each value's cell, 0 to count - 1, and the value at each cell."""
    low, high = min(values), max(values)
    logarithmic = bool(low > 0 and high / low >= LOGARITHMIC)
    at = log(values) if logarithmic else np.array(values)
    cells = np.rint((at - at.min()) / ((at.max() - at.min()) or 1) * (count - 1)).astype(int)
    levels = (np.geomspace if logarithmic else np.linspace)(low, high, count)
    return logarithmic, cells.tolist(), levels.tolist()


def scatter(across: Axis, xs: Sequence[float], up: Axis, ys: Sequence[float], marks: Sequence[str], width: int) -> str:
    """Plot points, one mark each; in one cell the first one's shows."""
    columns = plot_columns(width)
    grid = [[" "] * columns for _ in range(ROWS)]
    (log_x, at, (low, *_, high)), (log_y, heights, levels) = scaled(xs, columns), scaled(ys, ROWS)
    for column, row, mark in reversed(list(zip(at, heights, marks, strict=True))):
        grid[row][column] = mark
    titles = [f"{axis.title}{', logarithmic' * scale}" for axis, scale in ((up, log_y), (across, log_x))]
    names = [up.text(level) for level in levels]
    if len({*names}) < len(names) or max(map(len, names)) > LABEL - 2:
        names = numbered(levels)
    rows, ends = ["".join(row) for row in grid], (across.text(low), across.text(high))
    return framed(", over ".join(titles), names, rows, columns, ends)


LONGEST_NAME, LEAST_BAR = 40, 10
"""Columns of the name of a bar at most, and of the bars together at least."""


def bars_text(
    title: str, names: Sequence[str], spans: Sequence[tuple[float, float, str]], texts: Sequence[str], width: int
) -> str:
    """Draw bars from start to end, of one sign each, with names and texts."""
    names = [printable(name.replace("\n", " "))[:LONGEST_NAME] for name in names]
    label, told = max(map(len, names)), max(map(len, texts))
    low, high = min(start for start, _, _ in spans), max(end for _, end, _ in spans)
    room = max(LEAST_BAR, min(width, WIDTH) - label - told - 4)
    lines = [title]
    for name, (start, end, sign), text in zip(names, spans, texts, strict=True):
        first, last = (round((at - low) / ((high - low) or 1.0) * (room - 1)) for at in (start, end))
        lines.append(f"{name:{label}}  {' ' * first + sign * (last - first + 1):{room}}  {text:>{told}}".rstrip())
    return "\n".join(lines)


SHADES = " .:*#"


def heat_text(
    title: str, names: tuple[str, str], rows: Sequence[str], columns: Sequence[str],
    values: Sequence[Sequence[float | None]], axis: Axis, width: int,
) -> str:  # fmt: skip
    """Write values with shades over two lists of names, in blocks of as many columns as fit."""
    known = [one for row in values for one in row if one is not None]
    least, span = min(known, default=0.0), (max(known, default=0.0) - min(known, default=0.0)) or 1.0

    def cell(value: float | None) -> str:
        if value is None:
            return "- " + SHADES[0]
        return f"{axis.text(value)} {SHADES[min(int((value - least) / span * len(SHADES)), len(SHADES) - 1)]}"

    shown = [[head, *(cell(row[at]) for row in values)] for at, head in enumerate(columns)]
    corner = [" / ".join(names), *rows]
    blocks, line = [], [corner]
    for column in shown:
        if len(line) > 1 and sum(max(map(len, one)) + 2 for one in [*line, column]) - 2 > width:
            blocks.append(line)
            line = [corner]
        line.append(column)
    texts = [f"{title.rstrip('.')}; shaded by {' '.join(SHADES.strip())}"]
    for block in [*blocks, line]:
        first, *others = ([f"{one:>{max(map(len, column))}}" for one in column] for column in block)
        first = [f"{name:{len(first[0])}}" for name in corner]
        texts.append("\n".join("  ".join(row).rstrip() for row in zip(first, *others, strict=True)))
    return "\n\n".join(texts)
