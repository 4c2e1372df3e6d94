"""One page that holds all it shows: text, tables that sort, and charts with their numbers."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files

from gpuscale.files import NO_BREAK, printable
from gpuscale.render.document import LONG, Cell, Chart, Checklist, Code, Document, Section, Shown, Table, shown
from gpuscale.version import __version__


def text(said: str) -> str:
    """Return text as HTML that shows it, whatever it holds."""
    return escape(printable(said.replace("\n", " ")).replace(NO_BREAK, "\u00a0"))


def _lines(said: str) -> str:
    return "\n".join(map(text, said.split("\n")))


COLUMNS = 120


def html(page: Document) -> str:
    """Return the page of a document: the same bytes for the same page, nothing fetched."""
    sections = [(one, parts) for one in page.sections if (parts := _parts(one))]
    names = [_anchor(one.title) for one, _ in sections]
    links = (
        f'<li><a href="#{name}">{text(one.title)}</a></li>' for name, (one, _) in zip(names, sections, strict=True)
    )
    verdict, *about = (page.verdict if isinstance(page.verdict, str) else page.verdict(LONG)).split("\n")
    body = (
        f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{text(one.title)}</h2>\n'
        + f"{parts}</section>\n"
        for name, (one, parts) in zip(names, sections, strict=True)
    )
    return framed(
        page.title,
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header>\n<h1>{text(page.title)}</h1>\n<p class="verdict">{text(verdict)}</p>\n'
        f"{''.join(f'<p>{text(line)}</p>' for line in about)}</header>\n"
        f'<nav aria-label="Sections">\n<ul>\n{"".join(links)}\n</ul>\n</nav>\n'
        f'<main id="main">\n{_tiles(page.tiles)}{"".join(body)}</main>\n'
        f"<footer><p>Made by gpuscale {text(__version__)}. This file needs no network.</p></footer>\n"
        '<div id="said" class="heard" role="status"></div>\n',
        resource("page.js"),
    )


def framed(title: str, body: str, script: str) -> str:
    """Return a page of a body and a script, which may fetch and run nothing else."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; " + (
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{text(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{resource('charts.css')}{resource('page.css')}</style>\n</head>\n<body>\n"
        f"{body}<script>{script}</script>\n</body>\n</html>\n"
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


def _parts(section: Section) -> str:
    return "".join(f"{_part_html(part, section.title)}\n" for part in shown(section.parts, "page"))


def _part_html(part: Shown, title: str) -> str:
    """Return a part as HTML; a table without a caption has the `title`."""
    if isinstance(part, Table):
        table = _table(part, part.caption or title)
        return f"<details><summary>{text(part.caption)}</summary>\n{table}\n</details>" if part.folded else table
    if isinstance(part, Code):
        return f"<pre>{_lines(part.text)}</pre>"
    if callable(part) or isinstance(part, str):
        said = part if isinstance(part, str) else part(COLUMNS)
        return f"<pre>{_lines(said)}</pre>" if "\n" in said else f"<p>{text(said)}</p>"
    if isinstance(part, Chart):
        return _chart(part)
    if isinstance(part, Checklist):
        items = (
            f"<li>{text(name)}<ul>{''.join(f'<li>{text(key)}: {text(said)}</li>' for key, said in lines)}</ul></li>\n"
            for name, lines in part.items
        )
        return f"<ol>\n{''.join(items)}</ol>"
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(said)}</dd>\n" for name, said in part)
    return f'<dl class="facts">\n{rows}</dl>'


def _chart(chart: Chart) -> str:
    numbers = _table(chart.numbers, chart.numbers.caption)
    return (
        f'<figure class="chart" aria-label="{text(chart.title)}">\n'
        f"<figcaption><h3>{text(chart.title)}</h3><p>{text(chart.summary)}</p></figcaption>\n{_legend(chart)}"
        f'<div class="plot" role="img" aria-label="{text(chart.title)}. {text(chart.summary)}">'
        f'<div aria-hidden="true">{chart.drawing}</div></div>\n'
        f"<details><summary>The numbers of this chart</summary>\n{numbers}\n</details>\n</figure>"
    )


def _legend(chart: Chart) -> str:
    keys = (f'<li><span class="key {css}"></span>{text(name)}</li>' for name, css in chart.legend)
    return f'<ul class="legend">{"".join(keys)}</ul>\n' if len(chart.legend) > 1 else ""


def _table(table: Table, caption: str) -> str:
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
        f'<div class="wide" role="region" aria-label="{text(caption)}" tabindex="0">\n'
        f"<table{' class=sortable' if table.sortable else ''}>\n<caption>{text(caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>"
    )


SORTED = ' aria-sort="ascending"'

LONG_TEXT = 40


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


NUMBER = re.compile(r"|-|[-+<~]?\d[\d.,]*[%kMGTBx!*~=]*(?: [a-zA-Z]{1,3})?")
"""Text of a cell that is a number with its unit, or none."""


def _kind(column: Sequence[Cell]) -> str:
    """Whether a column is of numbers, or of long texts."""
    if column and all(isinstance(cell, tuple) or NUMBER.fullmatch(cell) for cell in column):
        return "number"
    return "long" if any(len(cell) > LONG_TEXT for cell in column if isinstance(cell, str)) else ""


def _cell(cell: Cell, kind: str, *, first: bool) -> str:
    said, value = cell if isinstance(cell, tuple) else (cell, None)
    kept = "" if value is None else f' data-value="{value:.10g}"'
    tag = "th" if first else "td"
    scope = ' scope="row"' if first else ""
    return f"<{tag}{scope}{_class(kind)}{kept}>{text(said)}</{tag}>"
