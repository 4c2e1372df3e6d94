"""Charts of a page, drawn as SVG from the numbers that its table then holds too.

What lies across is in percent of the drawing, so that one drawing fits a desktop, a phone and paper, with text of the
same size on each; a text that needs more room than there is hides by its class (`w400`: from 400 px on).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import log10
from gpuscale.render.document import Chart, Table, cell
from gpuscale.render.html.page import text
from gpuscale.render.plots import Axis, bars_text, heat_text, scatter

COLOURS = 10
"""Colours of the style sheet; the last is a grey."""

BAR_PX, GAP_PX, PLANE_PX, CHARACTER_PX = 28, 4, 300, 7.5
"""Height of a bar's row and of what of it stays empty, height of a plane of points, width of a character."""

WIDTHS_PX = (200, 400, 600, 800, 1000)
"""Widths from which on texts show: the first is a phone's, the last a page's."""

LONGEST_NAME = 60
DECADES = 1000.0
"""Ratio of the ends of a logarithmic axis from which on it names powers of ten alone."""

NAMED_POINTS, NAMED_VALUES = 12, 8
"""Points of which each may have its mark, and values of a logarithmic axis that it names itself, at most."""


class Scale(NamedTuple):
    """Where values lie between two ends, and which of them are named how."""

    least: float
    most: float
    log: bool
    ticks: Sequence[tuple[float, str]]

    def shares(self, values: Iterable[float]) -> list[float]:
        """Return how far along the axis values lie, from 0 to 1."""
        ends, at = np.array([self.least, self.most]), np.array([*values], dtype=float)
        if self.log:
            ends, at = log10(ends), log10(at)
        return [float(one) for one in (at - ends[0]) / (ends[1] - ends[0])]


def scale(axis: Axis, values: Sequence[float], room: float = 0.0, named: Sequence[float] = ()) -> Scale:
    """Return the scale of an axis, with `room` (a share) empty at either end, and `named` values, else round ones."""
    least, most = min(values), max(values)
    if axis.log:
        ratio = (most / least) ** room if most > least else 1.5
        least, most = least / ratio, most * ratio
    else:
        margin = (most - least) * room if most > least else abs(most) / 20 or 1.0
        least, most = least - margin, most + margin
    least = least if axis.least is None else axis.least
    ticks = [one for one in named or _round(axis, least, most) if least <= one <= most]
    names = ["0" if not one else re.sub(r"\.0+(?!\d)|(\.\d*?[1-9])0+(?!\d)", r"\1", axis.text(one)) for one in ticks]
    if len({*names}) < len(names):  # the axis shows a range finer than its text does
        names = [f"{one:.6g}" for one in ticks]
    return Scale(least, most, axis.log, [*zip(ticks, names, strict=True)])


def _round(axis: Axis, least: float, most: float) -> list[float]:
    """Return round values of an axis: powers of two or ten, or multiples of 1, 2 or 5 times one."""
    if axis.of_bytes:
        low, high = (int(end).bit_length() for end in (least, most))
        every = next(step for step in (1, 2, 5, 10) if (high - low) // step < NAMED_VALUES)
        return [float(1 << power) for power in range(low - 1, high) if power % every == 0]
    if axis.log:
        powers = range(math.floor(log10(least)), math.ceil(log10(most)) + 1)
        digits = (1,) if most >= DECADES * least else (1, 2, 5)
        return [digit * 10.0**power for power in powers[:: 1 + len(powers) // 10] for digit in digits]
    unit = 10.0 ** math.floor(log10((most - least) / 5))
    step = next(one * unit for one in (1, 2, 5, 10) if one * unit >= (most - least) / 8)
    return [float(f"{at * step:.9g}") for at in range(math.ceil(least / step), math.floor(most / step + 1e-9) + 1)]


def percent(share: float) -> str:
    """Write a share for SVG."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _shows(needed_px: float) -> str | None:
    """Return the class of a text that needs a drawing so wide; None if none is."""
    return next((f" w{width}" for width in WIDTHS_PX if needed_px <= width), None)


class Mark(NamedTuple):
    """A bar of a row: its ends, its classes, what it is, and a text in it, of a line or two, or beside."""

    row: int
    start: float
    end: float
    css: str
    said: str
    text: str = ""
    beside: bool = False
    opacity: float = 1.0


def rows_svg(
    marks: Iterable[Mark], rows: int, across: Scale, title: str, row_px: int = BAR_PX, limits: Mapping[str, float] = {}
) -> tuple[str, int]:
    """Draw bars in rows, limits as lines across; return SVG without its frame, and its height [px]."""
    marks, top = [*marks], _top(limits)
    bottom, out = top + rows * row_px, list[str]()
    starts, ends = across.shares(one.start for one in marks), across.shares(one.end for one in marks)
    for one, start, end in zip(marks, starts, ends, strict=True):
        left, width, y = min(start, end), abs(end - start), top + one.row * row_px
        fade = f' fill-opacity="{one.opacity:.2f}"' if one.opacity < 1 else ""
        out.append(
            f'<rect class="{one.css}" x="{percent(left)}" y="{y}" width="{percent(width)}" height="{row_px - GAP_PX}"'
            f"{fade}><title>{text(one.said)}</title></rect>"
        )
        lines = one.text.split("\n") if one.text else []
        for at, line in enumerate(lines):
            longest = max(map(len, lines[: at + 1]))  # no second line without the first
            shows = "" if one.beside else _shows((longest * CHARACTER_PX + 6) / width) if width else None
            if shows is not None:
                middle, place = (left + width, "beside") if one.beside else (left + width / 2, "in")
                baseline = y + (row_px - GAP_PX) / 2 + 4 + 14 * (at - (len(lines) - 1) / 2)
                out.append(f'<text class="{place}{shows}" x="{percent(middle)}" y="{baseline:.0f}">{text(line)}</text>')
    for index, (name, share) in enumerate(zip(limits, across.shares(limits.values()), strict=True)):
        x, place = percent(share), "end" if share > 0.5 else ""
        out.append(f'<line class="limit" x1="{x}" x2="{x}" y1="{16 * index + 14}" y2="{bottom}"/>')
        out.append(f'<text class="{place}" x="{x}" y="{16 * index + 10}">{text(name)}</text>')
    return _axis(across, title, top, bottom) + "".join(out), bottom + 42


def _top(limits: Mapping[str, float]) -> int:
    return 16 * len(limits) + 4 if any(limits) else 0


def _axis(across: Scale, title: str, top: float, bottom: float) -> str:
    """Draw a horizontal axis; where it is narrow, with every second, fourth ... name."""
    count, longest = len(across.ticks), max((len(name) for _, name in across.ticks), default=0)
    out = [f'<text class="middle soft" x="50%" y="{bottom + 36:.0f}">{text(title)}</text>']
    for index, (at, (_, name)) in enumerate(
        zip(across.shares(value for value, _ in across.ticks), across.ticks, strict=True)
    ):
        every = index & -index or 1 << count  # the largest power of two that divides it
        shows = _shows((longest * CHARACTER_PX + 8) * count / every)
        x = percent(at)
        out.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom:.0f}"/>')
        if shows is not None:
            place = "end" if at > 0.97 else "middle"
            out.append(f'<text class="{place}{shows}" x="{x}" y="{bottom + 16:.0f}">{text(name)}</text>')
    return "".join(out)


def framed(drawn: str, height: float) -> str:
    """Return a drawing as an element of a page."""
    return f'<svg width="100%" height="{height:.0f}">{drawn}</svg>'


def in_rows(
    names: Sequence[str], marks: Iterable[Mark], across: Scale, title: str, row_px: int = BAR_PX,
    limits: Mapping[str, float] = {}, css: str = "",
) -> str:  # fmt: skip
    """Draw bars in rows beside their names."""
    drawn, height = rows_svg(marks, len(names), across, title, row_px, limits)
    spans = []
    for name in names:
        short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
        spans.append(f'<span title="{text(name)}">{text(short)}</span>')
    style = f"--row:{row_px}px;padding-top:{_top(limits)}px"
    column = f'<div class="names" style="{style}">{"".join(spans)}</div>' if any(names) else ""
    return f'{column}<div class="area {css}">{framed(drawn, height)}</div>'


class Bar(NamedTuple):
    """One part of totals: its name, its colour, and its value in each."""

    name: str
    colour: int
    values: Sequence[float]
    idle: bool = False

    @property
    def css(self) -> str:
        """Its classes: a colour, an outline if idle, paler where colours are used again."""
        return f"{colour(self.colour)}{' idle' if self.idle else ' again' if self.colour >= COLOURS else ''}"


def colour(index: int) -> str:
    """Return the class of a colour."""
    return f"c{index % COLOURS + 1}"


def waterfall(title: str, summary: str, parts: Sequence[Bar], total: str, axis: Axis) -> Chart:
    """Draw how parts add up, each beginning where the last one ends."""
    values = [one.values[0] for one in parts]
    ends = list(accumulate(values, initial=0.0))
    whole, names = ends[-1], [*(one.name for one in parts), total]
    drawn = [*zip(ends, ends[1:], (one.css for one in parts), strict=False), (0.0, whole, "whole")]
    texts = [*map(axis.text, [*values, whole])]
    marks = [
        Mark(row, start, end, css, f"{name}: {said}", said, beside=True)
        for row, ((start, end, css), name, said) in enumerate(zip(drawn, names, texts, strict=True))
    ]
    rows = [
        [name, (said, value), (f"{value / whole:.1%}", value / whole) if whole else "-"]
        for name, said, value in zip(names, texts, [*values, whole], strict=True)
    ]
    header = ["part", axis.title, "share"]
    if min(ends) < 0:  # shares of a difference say nothing
        header, rows = header[:2], [row[:2] for row in rows]
    svg = partial(in_rows, names, marks, scale(axis, ends), axis.title, css="room")
    signs = [*("." if one.idle else "-" if one.values[0] < 0 else "#" for one in parts), "#"]
    bars = [(min(start, end), max(start, end), sign) for (start, end, _), sign in zip(drawn, signs, strict=True)]
    plot = partial(bars_text, f"{title} [{axis.title}]", names, bars, texts)
    return Chart(title, summary, svg, Table(title, header, rows), text=plot)


def stacked(
    title: str,
    summary: str,
    rows: Sequence[str],
    bars: Iterable[Bar],
    axis: Axis,
    limits: Mapping[str, float] | None = None,
) -> Chart:
    """Draw totals side by side, each as its parts in a row, with limits across."""
    parts, limits = [one for one in bars if any(one.values)], limits or {}
    totals = [math.fsum(values) for values in zip(*(one.values for one in parts), strict=True)] or [0.0] * len(rows)
    marks = []
    for row in range(len(rows)):
        ends = list(accumulate((one.values[row] for one in parts), initial=0.0))
        for one, start, end in zip(parts, ends, ends[1:], strict=False):
            said = axis.text(one.values[row])
            solid = " " not in one.css
            if end > start:
                marks.append(Mark(row, start, end, one.css, f"{one.name}: {said}", said if solid else ""))
    across = scale(axis, [0.0, 1.02 * max([*totals, *limits.values()]) or 1.0])
    svg = partial(in_rows, rows, marks, across, axis.title, limits=limits)
    every = [*((one.name, one.values) for one in parts), ("total", totals)]
    cells = [[name, *(cell(one, axis.text) for one in values)] for name, values in every]
    header = ["", *rows]
    if len(rows) > len(parts):  # the longer way down
        header, cells = ["", *(name for name, _ in every)], [[row, *column] for row, *column in zip(
            rows, *(one[1:] for one in cells), strict=True)]  # fmt: skip
    numbers = Table(f"{title} ({axis.title})", header, cells)
    return Chart(title, summary, svg, numbers, [(one.name, f"fill {one.css}") for one in parts])


def heat_map(
    title: str,
    summary: str,
    names: tuple[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    axis: Axis,
) -> Chart:
    """Draw values over two lists of names, with `names` of their own; None stays empty."""
    known = [one for row in values for one in row if one is not None]
    least, span = min(known, default=0.0), (max(known, default=0.0) - min(known, default=0.0)) or 1.0
    marks = [
        Mark(at, index, index + 1, f"{colour(0)} cell", f"{rows[at]}, {columns[index]}: {axis.text(one)}",
             axis.text(one), opacity=0.08 + 0.5 * (one - least) / span)
        for at, row in enumerate(values) for index, one in enumerate(row) if one is not None
    ]  # fmt: skip
    across = Scale(0, len(columns), False, [(index + 0.5, name) for index, name in enumerate(columns)])
    cells = [
        [name, *("-" if one is None else cell(one, axis.text) for one in row)]
        for name, row in zip(rows, values, strict=True)
    ]
    numbers = Table(f"{title} ({axis.title})", (" / ".join(names), *columns), cells)
    plot = partial(heat_text, summary, names, rows, columns, values, axis)
    svg = partial(in_rows, rows, marks, across, names[1], css="heat")
    return Chart(title, summary, svg, numbers, text=plot)


class Line(NamedTuple):
    """A curve: its name, its colour, its points, and whether it is dashed."""

    name: str
    colour: int
    across: Sequence[float]
    up: Sequence[float]
    dashed: bool = False

    @property
    def css(self) -> str:
        """Its classes."""
        return f"line {colour(self.colour)}{' dashed' if self.dashed else ''}"


class Points(NamedTuple):
    """Points that are alike: where they lie, what each is, whether joined or rings, marks beside them, and a terminal's
    sign."""

    name: str
    colour: int
    across: Sequence[float]
    up: Sequence[float]
    said: Sequence[str]
    joined: bool = False
    ring: bool = False
    marks: Sequence[str] = ()
    sign: str = "*"

    @property
    def css(self) -> str:
        """Their classes."""
        return f"{'ring' if self.ring else 'dot'} {colour(self.colour)}"


def _plane(
    lines: Sequence[Line], groups: Sequence[Points], x: Scale, y: Scale, axes: tuple[Axis, Axis],
    spans: Sequence[tuple[str, float, float]] = (),
) -> str:  # fmt: skip
    top, bottom = 26, 26 + PLANE_PX
    gutter = max((len(name) for _, name in y.ticks), default=0) * CHARACTER_PX + 10

    def down(values: Iterable[float]) -> list[float]:
        return [bottom - PLANE_PX * share for share in y.shares(values)]

    out = [_axis(x, axes[0].title, top, bottom)]
    out.append(f'<text class="soft" x="-{gutter:.0f}" y="10">{text(axes[1].title)}</text>')
    for at, (_, name) in zip(down(value for value, _ in y.ticks), y.ticks, strict=True):
        out.append(f'<line class="grid" x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text class="end" x="-6" y="{at + 4:.1f}">{text(name)}</text>')
    for name, *ends in spans:
        start, end = x.shares(ends)
        shows = _shows((len(name) * CHARACTER_PX + 8) / (end - start)) if end > start else None
        out.append(f'<line class="border" x1="{percent(end)}" x2="{percent(end)}" y1="{top}" y2="{bottom}"/>')
        if shows is not None:
            out.append(f'<text class="middle{shows}" x="{percent((start + end) / 2)}" y="22">{text(name)}</text>')
    drawn = []
    for one in [*lines, *(Line(one.name, one.colour, one.across, one.up) for one in groups if one.joined)]:
        places = zip(x.shares(one.across), y.shares(one.up), strict=True)
        path = "L".join(f"{1e4 * right:.0f} {1e4 - 1e4 * up:.0f}" for right, up in places)
        drawn.append(f'<path class="{one.css}" d="M{path}"><title>{text(one.name)}</title></path>')
    out.append(f'<svg y="{top}" height="{PLANE_PX}" viewBox="0 0 10000 10000" preserveAspectRatio="none">'
               f"{''.join(drawn)}</svg>")  # fmt: skip
    count = sum(len(one.across) for one in groups)
    radius = 5 if count <= NAMED_POINTS else 4 if count <= 200 else 2.5
    taken: list[tuple[float, float]] = []
    for group in groups:
        places = zip(x.shares(group.across), down(group.up), strict=True)
        for index, ((right, at), said) in enumerate(zip(places, group.said, strict=True)):
            out.append(
                f'<circle class="{group.css}" cx="{percent(right)}" cy="{at:.1f}" r="{radius}">'
                f"<title>{text(said)}</title></circle>"
            )
            free = all(abs(right - other) > 0.05 or abs(at - height) > 12 for other, height in taken)
            if group.marks and count <= NAMED_POINTS and free:
                taken.append((right, at))
                out.append(
                    f'<text class="beside" x="{percent(right)}" y="{at - 8:.1f}">{text(group.marks[index])}</text>'
                )
    return f'<div class="area" style="margin-left:{gutter:.0f}px">{framed("".join(out), bottom + 42)}</div>'


MOST_ROWS = 100
"""Rows of a curve's table, evenly apart where there are more values."""


def curves(
    title: str, summary: str, lines: Sequence[Line], across: Axis, up: Axis, *, marked: bool = True,
    spans: Sequence[tuple[str, float, float]] = (), chosen: float | None = None,
) -> Chart:  # fmt: skip
    """Draw curves over the same values; a terminal has the first of them.

    Args:
        marked: each point is marked.
        spans: parts of the axis across: the name, the start and the end of each.
        chosen: the value across that a terminal marks with `*`.
    """
    first = lines[0]
    dots = [
        Points(one.name, one.colour, one.across, one.up,
               [f"{one.name}, {across.text(x)}: {up.text(y)}" for x, y in zip(one.across, one.up, strict=True)])
        for one in lines if marked and not one.dashed
    ]  # fmt: skip
    named = first.across if across.log and not across.of_bytes and len(first.across) <= NAMED_VALUES else ()
    x = scale(across, first.across, 0.02 if marked else 0.0, named)
    y = scale(up, [value for one in lines for value in one.up], 0.05)
    cells = [
        [cell(at, across.text), *(cell(one.up[index], up.text) for one in lines)]
        for index, at in enumerate(first.across)
        if index % -(-len(first.across) // MOST_ROWS) == 0
    ]
    numbers = Table(f"{title} ({up.title})", (across.title, *(one.name for one in lines)), cells)
    legend = [(one.name, one.css) for one in lines]
    signs = ["*" if at == chosen else "o" for at in first.across]
    plot = partial(scatter, across, first.across, up, first.up, signs)
    return Chart(title, summary, partial(_plane, lines, dots, x, y, (across, up), spans), numbers, legend, plot)


def points(
    title: str,
    summary: str,
    groups: Sequence[Points],
    across: Axis,
    up: Axis,
    lines: Sequence[Line] = (),
    *,
    rows: int = 40,
) -> Chart:
    """Draw points, with lines behind them; the table has the first `rows` of them."""
    every = [(said, x, y) for one in groups for said, x, y in zip(one.said, one.across, one.up, strict=True)]
    full = [
        one._replace(said=[f"{said}\n{across.title}: {across.text(x)}\n{up.title}: {up.text(y)}"
                           for said, x, y in zip(one.said, one.across, one.up, strict=True)])
        for one in groups
    ]  # fmt: skip
    drawn = [*((one.across, one.up) for one in lines), *((one.across, one.up) for one in groups)]
    x, y = (scale(axis, [value for one in drawn for value in one[at]], 0.04) for at, axis in enumerate((across, up)))
    cells = [[said, cell(x, across.text), cell(y, up.text)] for said, x, y in every[:rows]]
    less = f", the first {rows} of {len(every):,}" if len(every) > rows else ""
    numbers = Table(f"{title}{less}", ("", across.title, up.title), cells)
    legend = [*((one.name, one.css) for one in lines), *((one.name, one.css) for one in groups)]
    plot = partial(_points_text, groups, across, up)
    return Chart(title, summary, partial(_plane, lines, full, x, y, (across, up)), numbers, legend, plot)


def _points_text(groups: Sequence[Points], across: Axis, up: Axis, width: int) -> str:
    xs, ys = ([value for one in groups for value in getattr(one, name)] for name in ("across", "up"))
    plot = scatter(across, xs, up, ys, [one.sign for one in groups for _ in one.said], width)
    names = {one.sign: one.name for one in groups}
    return f"{plot}\n{', '.join(f'{sign}: {name}' for sign, name in names.items())}" if len(names) > 1 else plot
