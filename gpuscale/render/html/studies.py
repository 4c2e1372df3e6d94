"""The page of a study: its best rows, a heat map, a frontier, and why questions have no answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpuscale.render.html.charts import Axis, Points, heat_map, points
from gpuscale.render.html.page import Cell, Page, Part, Section, Table
from gpuscale.render.studies import (
    axis_text,
    cell_text,
    frontier_title,
    goal_text,
    heat_title,
    reason_text,
    shown_columns,
    study_facts,
    study_notes,
    study_verdict,
    value_text,
)
from gpuscale.studies.summary import Frontier, Summary


def study_page(found: Summary) -> Page:
    """Lay out what the results of a study say."""
    return Page(f"Study {found.source}", study_verdict(found), [*_tiles(found)], [
        Section("Rows", [*_rows(found), *study_notes(found)]),
        Section("Heat map", _heat(found)),
        Section("Frontier", _frontier(found.frontier) if found.frontier else []),
        Section("No answer", _unanswered(found)),
        Section("All questions", [facts] if (facts := study_facts(found)) else []),
    ])  # fmt: skip


def _tiles(found: Summary) -> Iterator[tuple[str, str, str]]:
    yield "Questions", f"{found.questions:,}", f"{found.answered:,} answered"
    yield "Rows", f"{found.matched:,}", ""
    if found.goal and found.best:
        yield found.goal.column, value_text(found.goal.column, found.best[found.goal.column]), goal_text(found.goal)


def _rows(found: Summary) -> list[Part]:
    columns = shown_columns(found)
    cells: list[list[Cell]] = [
        [str(at), *(_cell(row, name) for name in columns)] for at, row in enumerate(found.rows, 1)
    ]
    few = f", the first {len(cells):,} of {found.of:,}" if found.of > len(cells) else ""
    numbered = [[(str(row[0]), float(at)), *row[1:]] for at, row in enumerate(cells, 1)]
    return (
        [Table(f"Rows{few}; a column's header sorts by it", ("#", *columns.values()), numbered, sortable=True)]
        if cells
        else []
    )


def _cell(row: dict[str, object], name: str) -> Cell:
    said, value = cell_text(row, name), row.get(name)
    return (said, value) if isinstance(value, int | float) and not isinstance(value, bool) else said


def _heat(found: Summary) -> list[Part]:
    heat = found.heat
    if heat is None or not heat.rows or not heat.columns:
        return []
    names = [*map(axis_text, heat.rows)], [*map(axis_text, heat.columns)]
    axis = Axis(heat.value, partial(value_text, heat.value))
    title = f"{heat.value} over {heat.row} and {heat.column}"
    return [heat_map(title, f"{heat_title(found)}.", (heat.row, heat.column), *names, heat.values, axis)]


def _frontier(frontier: Frontier) -> list[Part]:
    if not frontier.points:
        return []
    across, up = frontier.across.column, frontier.up.column
    groups = []
    for name, colour, some in (
        ("frontier", 0, frontier.points[: frontier.size]),
        ("other rows", 9, frontier.points[frontier.size :]),
    ):
        said = [f"{value_text(across, one)}, {value_text(up, other)}" for one, other in some]
        groups.append(
            Points(name, colour, [one for one, _ in some], [other for _, other in some], said, joined=not colour)
        )
    axes = Axis(across, partial(value_text, across)), Axis(up, partial(value_text, up))
    return [points(f"{up} over {across}", f"{frontier_title(frontier)}.", [one for one in groups if one.said], *axes)]


def _unanswered(found: Summary) -> list[Part]:
    rows: list[list[Cell]] = [
        [one.status.replace("_", " "), reason_text(one.reason), (f"{one.questions:,}", one.questions)]
        for one in found.unanswered
    ]
    return [Table("Why questions have no answer", ("how", "why, such as", "questions"), rows)] if rows else []
