"""Answers as consoles and notebooks show them: the drawings of the commands as one line, and as a fragment of HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from gpuscale.errors import InputError
from gpuscale.files import printable
from gpuscale.render.answers import document
from gpuscale.render.console import console, parts_of, texts
from gpuscale.render.document import WIDTH, Facts, Shown, Table
from gpuscale.render.html.page import text

PAGE_WIDTH = 200
"""Columns of a table in a page, which scrolls."""

LONGEST = 200
"""Characters of a line."""


def line(found: Any) -> str:
    """Return an answer in a line: what it is, and its verdict. It never fails, as debuggers show half an answer too."""
    name = type(found).__name__
    try:
        first = _parts(found)[0]
    except Exception:  # noqa: BLE001
        first = _scalars(found)
    if isinstance(first, list):
        said = ", ".join("=".join(pair) for pair in first)
    else:
        said = "".join(texts([first], console(WIDTH - len(name) - len("< >")))).partition("\n")[0]
    return f"<{name} {textwrap.shorten(printable(said), LONGEST, placeholder=' ...')}>"


def fragment(found: Any) -> str:
    """Return an answer as a piece of HTML without scripts: what its command draws."""
    return f'<div class="gpuscale">{"".join(map(_html, _parts(found)))}</div>'


def _parts(found: Any) -> Sequence[Shown]:
    """Return what is shown of an answer, the verdict first."""
    try:
        made = document(found)
    except InputError:
        return [_scalars(found)]
    return list(parts_of(made))


def _scalars(found: Any) -> Facts:
    """Return the fields of an answer that are one number or text."""
    fields = found._asdict() if hasattr(found, "_asdict") else vars(found)
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in fields.items()
        if isinstance(value, str | int | float)
    ]


def _html(part: Shown) -> str:
    if isinstance(part, list):
        return _table((), [[("left", one) for one in pair] for pair in part])
    if isinstance(part, Table):
        sides = ["left" if at < part.left else "right" for at in range(len(part.header))]
        rows = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in part.rows]
        head, *body = ([*zip(sides, row, strict=True)] for row in [part.header, *rows])
        return _table(head, body)
    return f'<pre style="white-space:pre-wrap">{_lines("".join(texts([part], console(PAGE_WIDTH))))}</pre>'


def _table(header: Sequence[tuple[str, str]], rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a table of cells, each with the side that it stands at."""
    head = f"<thead><tr>{_cells('th', header)}</tr></thead>" if header else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _cells(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<{tag} style="text-align:{side}">{_lines(said)}</{tag}>' for side, said in cells)


def _lines(said: str) -> str:
    return "\n".join(map(text, said.split("\n")))
