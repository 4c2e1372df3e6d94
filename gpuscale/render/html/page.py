"""One page that holds all it shows: text, tables that sort, and charts with their numbers."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import NamedTuple

from gpuscale.files import NO_BREAK, printable
from gpuscale.version import __version__

Cell = str | tuple[str, float]
"""Text of a cell, and the number that it is sorted by where it has one."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    caption: str  #: what it shows.
    header: Sequence[str]  #: names of the columns.
    rows: Sequence[Sequence[Cell]]  #: the cells, as many as the header has.
    #: a click on a column sorts by it; where the first is of numbers, the rows come in its order.
    sortable: bool = False
    folded: bool = False  #: only its caption shows until it is opened.


class Chart(NamedTuple):
    """A chart, and what stands for it where it cannot be seen."""

    title: str  #: what it shows.
    summary: str  #: what is to be seen in it, in a sentence.
    drawing: str  #: HTML; colours are classes of the style sheet, from `c1` on.
    numbers: Table  #: what is drawn, as a table.
    legend: Sequence[tuple[str, str]] = ()  #: name and classes of what looks alike.


Part = str | Table | Chart | list[tuple[str, str]]
"""What a section is made of: a paragraph, a table, a chart, or names beside texts."""


class Section(NamedTuple):
    """A section of the page."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A page."""

    title: str  #: what it is about.
    verdict: str  #: the answer in a sentence.
    tiles: Sequence[tuple[str, str, str]] = ()  #: the numbers that matter most: name, number, and what to know of it.
    sections: Sequence[Section] = field(default_factory=list)  #: what else it shows.


def text(said: str) -> str:
    """Return text as HTML that shows it, whatever it holds."""
    return escape(printable(said.replace("\n", " ")).replace(NO_BREAK, "\u00a0"))


def sortable(said: str) -> Cell:
    """Return a cell that is sorted by its number, if it is one."""
    try:
        return said, float(said.replace(",", ""))
    except ValueError:
        return said


def html(page: Page) -> str:
    """Return the page: the same bytes for the same page, no date, nothing fetched from anywhere."""
    script = resource("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; " + (
        "base-uri 'none'; form-action 'none'"
    )
    sections = [one for one in page.sections if one.parts]
    names = [_anchor(one.title) for one in sections]
    links = (f'<li><a href="#{name}">{text(one.title)}</a></li>' for name, one in zip(names, sections, strict=True))
    body = (
        f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{text(one.title)}</h2>\n'
        + "".join(f"{_part(part)}\n" for part in one.parts)
        + "</section>\n"
        for name, one in zip(names, sections, strict=True)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{text(page.title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{resource('charts.css')}{resource('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header>\n<h1>{text(page.title)}</h1>\n<p class="verdict">{text(page.verdict)}</p>\n</header>\n'
        f'<nav aria-label="Sections">\n<ul>\n{"".join(links)}\n</ul>\n</nav>\n'
        f'<main id="main">\n{_tiles(page.tiles)}{"".join(body)}</main>\n'
        f"<footer><p>Made by gpuscale {text(__version__)}. This file needs no network.</p></footer>\n"
        '<div id="said" class="heard" role="status"></div>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def resource(name: str) -> str:
    """Return a style sheet or script of the pages."""
    return files("gpuscale.render.html").joinpath(name).read_text(encoding="utf-8")


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _tiles(tiles: Sequence[tuple[str, str, str]]) -> str:
    shown = (
        f"<div><dt>{text(name)}</dt><dd>{text(number)}{f' <small>{text(said)}</small>' if said else ''}</dd></div>\n"
        for name, number, said in tiles
    )
    return f'<dl class="tiles">\n{"".join(shown)}</dl>\n' if tiles else ""


def _part(part: Part) -> str:
    if isinstance(part, str):
        return f"<p>{text(part)}</p>"
    if isinstance(part, Table) and part.folded:
        return f"<details><summary>{text(part.caption)}</summary>\n{_table(part)}\n</details>"
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Chart):
        return _chart(part)
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(said)}</dd>\n" for name, said in part)
    return f'<dl class="facts">\n{rows}</dl>'


def _chart(chart: Chart) -> str:
    return (
        f'<figure class="chart" aria-label="{text(chart.title)}">\n'
        f"<figcaption><h3>{text(chart.title)}</h3><p>{text(chart.summary)}</p></figcaption>\n{_legend(chart)}"
        f'<div class="plot" role="img" aria-label="{text(chart.title)}. {text(chart.summary)}">'
        f'<div aria-hidden="true">{chart.drawing}</div></div>\n'
        f"<details><summary>The numbers of this chart</summary>\n{_table(chart.numbers)}\n</details>\n</figure>"
    )


def _legend(chart: Chart) -> str:
    keys = (f'<li><span class="key {css}"></span>{text(name)}</li>' for name, css in chart.legend)
    return f'<ul class="legend">{"".join(keys)}</ul>\n' if len(chart.legend) > 1 else ""


def _table(table: Table) -> str:
    kinds = [_kind(column) for column in zip(*table.rows, strict=True)] or [""] * len(table.header)
    sortable = table.sortable and kinds[0] == "number"
    head = "".join(
        f'<th scope="col"{_class(kind)}{SORTED if sortable and not index else ""}>{text(name)}</th>'
        for index, (name, kind) in enumerate(zip(table.header, kinds, strict=True))
    )
    rows = "".join(
        "<tr>"
        + "".join(_cell(cell, kind, first=not at) for at, (cell, kind) in enumerate(zip(row, kinds, strict=True)))
        + "</tr>\n"
        for row in table.rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{text(table.caption)}" tabindex="0">\n'
        f"<table{' class=sortable' if table.sortable else ''}>\n<caption>{text(table.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>"
    )


SORTED = ' aria-sort="ascending"'


LONG_TEXT = 40
"""Characters from which on a cell's column is wide."""


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _kind(column: Sequence[Cell]) -> str:
    """Whether a column is of numbers, or of long texts."""
    if column and all(isinstance(cell, tuple) or cell in {"", "-"} for cell in column):
        return "number"
    return "long" if any(len(cell) > LONG_TEXT for cell in column if isinstance(cell, str)) else ""


def _cell(cell: Cell, kind: str, *, first: bool) -> str:
    said, value = cell if isinstance(cell, tuple) else (cell, None)
    kept = "" if value is None else f' data-value="{value:.10g}"'
    tag = "th" if first else "td"
    scope = ' scope="row"' if first else ""
    return f"<{tag}{scope}{_class(kind)}{kept}>{text(said)}</{tag}>"
