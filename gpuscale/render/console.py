"""The terminal: one console, tables that fit it, and names beside texts. What is drawn has `WIDTH` columns where it
is no terminal and COLUMNS is not set."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table as RichTable

from gpuscale.files import NO_BREAK, printable
from gpuscale.render.document import WIDTH, Chart, Checklist, Code, Document, Part, Shown, Table, shown

LEAST_WIDTH = 40
NARROW_TEXT = 8
"""Columns that text may be folded to before numbers are."""

LEAST_TEXT = 20
"""Columns of a text beside its name, at least."""

ASCII_HEAD = Box("    \n    \n -- \n" + "    \n" * 5, ascii=True)
"""`SIMPLE_HEAD` where the output has no line but hyphens."""


def console(columns: int | None = None, *, stderr: bool = False) -> Console:
    """Return a console that honours NO_COLOR, COLUMNS and pipes, of `columns` where it is no terminal."""
    stream, wanted = sys.stderr if stderr else sys.stdout, os.environ.get("COLUMNS", "")
    width = columns or (None if stream.isatty() else WIDTH)
    if columns is None and wanted.isdigit() and int(wanted) > 0:
        width = max(LEAST_WIDTH, int(wanted))
    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def show(document: Document) -> None:
    """Print a document: the verdict, then every part."""
    draw(*parts_of(document))


def parts_of(document: Document) -> Iterator[Shown]:
    """Yield what a terminal shows of a document, the verdict first."""
    yield document.verdict
    for section in document.sections:
        parts = list(shown(section.parts, "terminal"))
        yield from [section.title, *parts] if section.titled and parts else parts


def draw(*parts: Part, stderr: bool = False) -> None:
    """Print parts that are not empty with an empty line between them."""
    out = console(stderr=stderr)
    out.file.write("\n\n".join(texts(parts, out)) + "\n")


def texts(parts: Sequence[Part], out: Console) -> Iterator[str]:
    """Yield the text of each part that a terminal shows."""
    for part in shown(parts, "terminal"):
        text = _text(part, out)
        if text:
            yield text


def _text(part: Shown, out: Console) -> str:
    if isinstance(part, Table):
        return _table(part, out)
    if isinstance(part, list):
        return _facts(part, out.width)
    if isinstance(part, Checklist):
        part = "\n".join(
            "\n".join([f"  {at:2}. {name}", *(f"      {key:<7} {text}".rstrip() for key, text in lines)])
            for at, (name, lines) in enumerate(part.items, 1)
        )
    made = part.text if isinstance(part, Chart | Code) else part
    said = "" if made is None else made if isinstance(made, str) else made(out.width)
    return "\n".join(_wrapped(printable(line), out.width) for line in said.split("\n"))


def _wrapped(line: str, width: int) -> str:
    """Break a long line between words; an indented one goes on two columns further in."""
    indent = len(line) - len(line.lstrip())
    further = " " * (indent + 2 if indent else 0)
    broken = textwrap.wrap(line, width, subsequent_indent=further, break_on_hyphens=False)
    return "\n".join(broken) if len(line) > width else line


def _facts(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Names beside texts, or above them where there is too little room."""
    indent = 4 + max(len(name) for name, _ in rows)
    above = width - indent < LEAST_TEXT
    indent = 4 if above else indent
    lines = []
    for name, text in rows:
        said = textwrap.wrap(printable(text.replace("\n", " ")), width - indent, break_on_hyphens=False) or [""]
        first = "" if above else said.pop(0)
        lines += [f"  {name:{indent - 4}}  {first}".rstrip(), *(" " * indent + line for line in said)]
    return "\n".join(lines).replace(NO_BREAK, " ")


def as_many_as_fit(head: str, parts: Iterable[str], width: int) -> str:
    """Append parts, separated by commas, while the line has at most `width` columns."""
    line, comma = head, ""
    for part in parts:
        if len(line) + len(comma) + len(part) > width:
            break
        line += comma + part
        comma = ", "
    return line


def _table(table: Table, out: Console) -> str:
    """Draw an aligned table that fits: columns first move together, then optional ones are left out, then texts are
    folded, and numbers last."""
    room = out.width
    rows = [{name: _cell(cell) for name, cell in zip(table.header, row, strict=True)} for row in table.rows]
    kept = [*table.header]
    lines = [dict(zip(kept, kept, strict=True)), *rows]
    widths = {name: max(len(part) for line in lines for part in line[name].split("\n")) for name in kept}
    words = kept[: table.left]

    def total(gap: int) -> int:
        return sum(widths[name] for name in kept) + gap * (len(kept) - 1)

    gap = 2 if total(2) <= room else 1
    for name in table.optional:
        if total(gap) > room and name in kept:
            kept.remove(name)
    spare = sum(max(0, widths[name] - NARROW_TEXT) for name in words if name in kept)
    gap, folds = (gap, False) if total(gap) <= room else (2, total(2) - spare > room)
    box = ASCII_HEAD if out.options.ascii_only else SIMPLE_HEAD
    drawn = RichTable(show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), box=box)
    for name in kept:
        number = name not in words
        drawn.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number and not folds)
    for row in rows:
        drawn.add_row(*(row[name] for name in kept))
    with out.capture() as captured:
        out.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _cell(cell: str | tuple[str, float]) -> str:
    return "\n".join(map(printable, (cell if isinstance(cell, str) else cell[0]).split("\n")))
