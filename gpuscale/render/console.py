"""The terminal: one console, tables that fit it, and names beside texts. What is drawn has 100 columns by default."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar

import numpy as np
from rich.box import SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table

from gpuscale.arrays import log
from gpuscale.files import NO_BREAK, printable

WIDTH = 100
"""Columns that every table fits, used when the output is not a terminal and COLUMNS is not set."""

LEAST_WIDTH = 40
NARROW_TEXT = 8
"""Columns that text may be folded to before numbers are."""

LEAST_TEXT = 20
"""Columns of a text beside its name, at least."""

ASCII_HEAD = Box("    \n    \n -- \n" + "    \n" * 5, ascii=True)
"""`SIMPLE_HEAD` where the output has no line but hyphens."""

Block = str | Table | list[tuple[str, str]]
"""What is drawn in one piece: text, a table, or names beside texts."""


_page: ContextVar[tuple[list[Block], int] | None] = ContextVar("page", default=None)
"""Where blocks go instead of the terminal, and its columns."""


def drawn(drawing: Callable[[], None], width: int) -> list[Block]:
    """Return the blocks that a function draws on stdout, for an output of this width, instead of printing them."""
    blocks: list[Block] = []
    token = _page.set((blocks, width))
    try:
        drawing()
    finally:
        _page.reset(token)
    return blocks


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout (or stderr) that honours NO_COLOR, COLUMNS and pipes."""
    stream, columns = sys.stderr if stderr else sys.stdout, os.environ.get("COLUMNS", "")
    page = _page.get()
    if page is not None:
        return Console(file=stream, width=page[1], highlight=False, emoji=False, markup=False)
    width = None if stream.isatty() else WIDTH
    if columns.isdigit() and int(columns) > 0:
        width = max(LEAST_WIDTH, int(columns))
    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def output_width() -> int:
    """Return the columns of stdout."""
    return console().width


def draw(*blocks: Block, stderr: bool = False) -> None:
    """Print blocks with an empty line between them; empty blocks are left out, and no line ends in a space."""
    page = _page.get()
    if page is not None:
        page[0].extend(block for block in blocks if block and not stderr)
        return
    out = console(stderr=stderr)
    texts = [_text(out, block) for block in blocks if block]
    out.file.write("\n\n".join(texts) + "\n")


def _text(out: Console, block: Block) -> str:
    if isinstance(block, str):
        return "\n".join(_wrapped(printable(line), out.width) for line in block.split("\n"))
    if isinstance(block, list):
        return _facts(block, out.width)
    block.box = ASCII_HEAD if out.options.ascii_only else SIMPLE_HEAD
    with out.capture() as captured:
        out.print(block)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _wrapped(line: str, width: int) -> str:
    """Break a line between words where it is too long; an indented one goes on two columns further in."""
    indent = len(line) - len(line.lstrip())
    further = " " * (indent + 2 if indent else 0)
    broken = textwrap.wrap(line, width, subsequent_indent=further, break_on_hyphens=False)
    return "\n".join(broken) if len(line) > width else line


def _facts(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Names beside texts, or above them where that leaves too little room; further lines of a text are indented too."""
    indent = 4 + max(len(name) for name, _ in rows)
    above = width - indent < LEAST_TEXT
    indent = 4 if above else indent
    lines = []
    for name, text in rows:
        said = textwrap.wrap(printable(text.replace("\n", " ")), width - indent, break_on_hyphens=False) or [""]
        first = "" if above else said.pop(0)
        lines += [f"  {name:{indent - 4}}  {first}".rstrip(), *(" " * indent + line for line in said)]
    return "\n".join(lines).replace(NO_BREAK, " ")


def note_rows(notes: Iterable[str], spell: Callable[[str], str] = str) -> list[tuple[str, str]]:
    """Return the notes of an answer as names beside texts.

    Args:
        spell: from options in backticks to how they are given.
    """
    return [("note", spell(note)) for note in notes]


def as_many_as_fit(head: str, parts: Iterable[str], width: int) -> str:
    """Append parts, separated by commas, for as long as the line has at most `width` columns."""
    line, comma = head, ""
    for part in parts:
        if len(line) + len(comma) + len(part) > width:
            break
        line += comma + part
        comma = ", "
    return line


def table(rows: Sequence[Mapping[str, str]], *, left: int = 1, optional: Iterable[str] = ()) -> Table:
    """Build an aligned table that fits the output.

    Where it is too wide, columns first move together, then the optional ones are left out in turn; then texts are
    folded, and numbers last.

    Args:
        rows: header -> text of each row, headers in the same order.
        left: how many columns, the first ones, are text; the others are numbers, which are right-aligned.
        optional: headers of columns that a narrow terminal goes without, the least needed first.
    """
    room, kept = output_width(), list(rows[0])
    rows = [{name: "\n".join(map(printable, text.split("\n"))) for name, text in row.items()} for row in rows]
    lines = [dict(zip(kept, kept, strict=True)), *rows]
    widths = {name: max(len(part) for line in lines for part in line[name].split("\n")) for name in kept}
    texts = kept[:left]

    def total(gap: int) -> int:
        return sum(widths[name] for name in kept) + gap * (len(kept) - 1)

    gap = 2 if total(2) <= room else 1
    for name in optional:
        if total(gap) > room and name in kept:
            kept.remove(name)
    spare = sum(max(0, widths[name] - NARROW_TEXT) for name in texts if name in kept)
    gap, folds = (gap, False) if total(gap) <= room else (2, total(2) - spare > room)
    drawn = Table(show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for name in kept:
        number = name not in texts
        drawn.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number and not folds)
    for row in rows:
        drawn.add_row(*(row[name] for name in kept))
    return drawn


ROWS = 14
LABEL = 11
"""Columns left of the plot."""

LOGARITHMIC = 6.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""


def plot_columns(width: int) -> int:
    """Return the columns of a plot for an output of this width."""
    return max(20, min(width, WIDTH) - LABEL)


def framed(title: str, levels: Sequence[float], rows: Sequence[str], columns: int, ends: tuple[str, str]) -> str:
    """Draw the rows of a plot, lowest first, with their levels, and the ends of the axis below them."""
    digits = next((n for n in range(4, LABEL - 2) if len({f"{level:.{n}g}" for level in levels}) == len(levels)), 4)
    drawn = [f"{level:{LABEL - 2}.{digits}g} |{row}".rstrip() for level, row in zip(levels, rows, strict=True)]
    axis = " " * (LABEL - 2) + " +" + "-" * columns
    low, high = ends
    return "\n".join([title, *reversed(drawn), axis, " " * LABEL + low + high.rjust(columns - len(low))])


Axis = tuple[str, Sequence[float]]
"""Name of an axis, with the unit, and the value of each point."""


def scaled(axis: Axis, count: int) -> tuple[str, list[int], list[float]]:
    """Return the name of an axis with its scale, the cell of each point, 0 to count - 1, and the value at each cell."""
    name, values = axis
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low >= LOGARITHMIC
    at = log(values) if logarithmic else np.array(values)
    cells = np.rint((at - at.min()) / ((at.max() - at.min()) or 1) * (count - 1)).astype(int)
    levels = (np.geomspace if logarithmic else np.linspace)(low, high, count)
    return f"{name}, logarithmic" if logarithmic else name, cells.tolist(), levels.tolist()


def scatter(across: Axis, up: Axis, marks: Sequence[str], width: int) -> str:
    """Plot points, one mark each; where several share a cell, the first one's mark shows."""
    columns = plot_columns(width)
    grid = [[" "] * columns for _ in range(ROWS)]
    (x, at, (low, *_, high)), (y, heights, levels) = scaled(across, columns), scaled(up, ROWS)
    for column, row, mark in reversed(list(zip(at, heights, marks, strict=True))):
        grid[row][column] = mark
    return framed(f"{y}, over {x}", levels, ["".join(row) for row in grid], columns, (f"{low:.4g}", f"{high:.4g}"))
