"""What an answer shows, laid out once: a terminal, a page and Markdown draw the same document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple

WIDTH = 100
"""Columns that everything drawn fits, unless the output has its own."""

LONG = 10_000
"""Columns of a line that may be as long as it is."""

Cell = str | tuple[str, float]
"""Text of a cell, and the number that it is sorted by where it has one."""

Drawing = Callable[[int], str]
"""Text that depends on the columns there are: from their number to its lines."""

Facts = list[tuple[str, str]]
"""Names beside texts."""

Spell = Callable[[str], str]
"""From options in backticks, such as `grad_dtype=bf16`, to how they are given."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; one without rows is left out."""

    caption: str  #: what it shows; a terminal has the header alone.
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    #: a click on a column sorts by it; where the first is of numbers, the rows come in its order.
    sortable: bool = False
    folded: bool = False  #: on a page, only its caption shows until it is opened.
    left: int = 1  #: how many columns, the first ones, a terminal aligns as text; the others are numbers.
    optional: Sequence[str] = ()  #: columns that a narrow terminal goes without, the least needed first.


def table(
    rows: Sequence[Mapping[str, Cell]],
    *,
    caption: str = "",
    left: int = 1,
    optional: Sequence[str] = (),
    sortable: bool = False,
) -> Table:
    """Make a table of rows that map the headers, the same in each, to cells."""
    header = [*rows[0]] if rows else []
    cells = [[*row.values()] for row in rows]
    return Table(caption, header, cells, left=left, optional=optional, sortable=sortable)


def cell(value: float, text: str | Callable[[float], str] = "{:,}") -> Cell:
    """Return a number as a cell: written by a format or a function, and sorted by itself."""
    return (text if callable(text) else text.format)(value), value


def sortable(said: str) -> Cell:
    """Return a cell that is sorted by its number, if it is one."""
    try:
        return said, float(said.replace(",", ""))
    except ValueError:
        return said


class Chart(NamedTuple):
    """A chart, and what stands for it where it cannot be seen."""

    title: str  #: what it shows.
    summary: str  #: what is to be seen in it, in a sentence.
    draw: Callable[[], str]  #: makes its HTML; colours are classes of the style sheet, from `c1` on.
    numbers: Table
    legend: Sequence[tuple[str, str]] = ()  #: name and classes of what looks alike.
    text: Drawing | None = None  #: what a terminal draws; nothing without.

    @property
    def drawing(self) -> str:
        """Its HTML."""
        return self.draw()


class Checklist(NamedTuple):
    """What is to be ticked off, item by item: its name, and lines of what each says."""

    items: Sequence[tuple[str, Sequence[tuple[str, str]]]]


class Code(NamedTuple):
    """Commands of a shell, to be copied as they are."""

    text: str


class Only(NamedTuple):
    """Parts that one medium alone shows, or what makes them when it does."""

    medium: Medium
    parts: Sequence[Part] | Callable[[], Sequence[Part]]


Medium = Literal["terminal", "page"]
"""What shows a document: Markdown is a page without pictures."""

Shown = str | Drawing | Table | Chart | Facts | Checklist | Code
"""What is drawn in one piece: a paragraph, a drawing of characters, a table, a chart, names and texts, a checklist,
commands."""

Part = Shown | Only
"""What a section is made of."""


class Section(NamedTuple):
    """A section; a page shows its title, a terminal where it is asked to."""

    title: str
    parts: Sequence[Part]
    titled: bool = False


@dataclass(frozen=True)
class Document:
    """What an answer shows."""

    title: str
    verdict: str | Drawing  #: the answer in a sentence; further lines say of what.
    #: the numbers that matter most, which a page shows large: name, number, and what to know of it.
    tiles: Sequence[tuple[str, str, str]] = ()
    sections: Sequence[Section] = field(default_factory=list)  #: what else it shows.


def plain(title: str, verdict: str | Drawing, *parts: Part) -> Document:
    """Return a document of one section without a title."""
    return Document(title, verdict, sections=[Section("", parts)])


def terminal(*parts: Part) -> Only:
    """Show parts in a terminal alone."""
    return Only("terminal", parts)


def page(*parts: Part) -> Only:
    """Show parts on a page alone."""
    return Only("page", parts)


def on_page(make: Callable[[], Sequence[Part]]) -> Only:
    """Show on a page alone what takes long to make."""
    return Only("page", make)


def loaded(function: str, *arguments: object) -> Callable[..., Any]:
    """Return a call of a function of this folder, such as `plan_page.choice`, loaded when it is called."""
    module, _, name = function.rpartition(".")
    return lambda *more: getattr(import_module(f"gpuscale.render.{module}"), name)(*arguments, *more)


def later(function: str, *arguments: object) -> Only:
    """Show on a page alone what a function makes that `loaded` knows."""
    return on_page(loaded(function, *arguments))


def shown(parts: Sequence[Part], medium: Medium) -> Iterator[Shown]:
    """Yield the parts that a medium shows and that are not empty."""
    for part in parts:
        if isinstance(part, Only):
            if part.medium == medium:
                yield from shown(part.parts() if callable(part.parts) else part.parts, medium)
        elif part.rows if isinstance(part, Table) else part[0] if isinstance(part, Checklist | Code) else part:
            yield part


def note_lines(notes: Sequence[str], spell: Spell = str) -> str:
    """Return the notes of an answer, one a line."""
    return "\n".join(f"note: {spell(note)}" for note in notes)


def note_facts(notes: Sequence[str], spell: Spell = str) -> Facts:
    """Return the notes of an answer as names beside texts."""
    return [("note", spell(note)) for note in notes]
