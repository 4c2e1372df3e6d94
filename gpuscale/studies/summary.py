"""What the results of a study say: how many questions have an answer, why others have none, the best, and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.studies.answers import ANSWERED
from gpuscale.studies.cases import Row
from gpuscale.studies.query import ORDER, Asked, Goal, Results, quoted

SHOWN, MAX_SHADES, MAX_POINTS, MAX_COUNTS = 15, 40, 1000, 8
"""Rows of a summary if nothing is said; and at most: values of an axis of a heat map, points behind a frontier, and
reasons why there is no answer."""


@dataclass(frozen=True)
class Unanswered:
    """Questions without an answer for one reason; numbers in it may differ."""

    status: str  #: how they ended.
    reason: str  #: why the first of them did.
    questions: int  #: how many they are.


@dataclass(frozen=True)
class Heat:
    """Values over two columns."""

    row: str  #: name of the column down the side.
    column: str  #: name of the column across.
    value: str  #: name of the column in the cells.
    rows: tuple[Any, ...]  #: values down the side, in order.
    columns: tuple[Any, ...]  #: values across, in order.
    #: those of the best row of each pair, one tuple per row; None where there is none.
    values: tuple[tuple[float | None, ...], ...]


class Frontier(NamedTuple):
    """Rows than which none is better by both of two columns."""

    across: Goal  #: column along x.
    up: Goal  #: column along y.
    #: values of both of all rows, those on the frontier first and only there; at most `MAX_POINTS` behind it.
    points: tuple[tuple[float, float], ...]
    size: int  #: how many are on the frontier.


@dataclass(frozen=True)
class Summary:
    """What the results of a study say."""

    source: str  #: name of the file.
    columns: Mapping[str, type]  #: name -> type.
    wanted: tuple[str, ...]  #: columns that were named; empty for the usual ones.
    rows: tuple[Row, ...]  #: the best, or those that were asked for.
    matched: int  #: rows that meet the condition.
    #: how many of them are asked for, of which `rows` may be the first; with an answer if nothing else is said.
    of: int
    questions: int  #: how many there are.
    answered: int  #: those with an answer.
    goal: Goal | None  #: what rows are best by; None where no row has a number.
    best: Row | None  #: the best row by it.
    varying: tuple[str, ...]  #: columns of questions with several values.
    #: column of questions -> its value, where all have the same; without the settings of a named cluster.
    fixed: Mapping[str, Any]
    unanswered: tuple[Unanswered, ...]  #: why questions have no answer, most first.
    heat: Heat | None = None  #: None where not asked for.
    frontier: Frontier | None = None  #: None where not asked for.


def summarise(results: Results, asked: Asked, shown: int = SHOWN) -> Summary:
    """Say what results show.

    Args:
        shown: rows at most where `asked` says nothing of it.

    Raises:
        InputError: an unknown column, a condition that is none, or too many values for a heat map.
    """
    condition = results.condition(asked.where)
    names = [name for name in results.asked_columns() if name != "set" or "what_if" not in results.columns]
    counts = [f"count(DISTINCT {name}) + CAST(count(*) > count({name}) AS INTEGER)" for name in map(quoted, names)]
    answered = f"count(DISTINCT key) FILTER (status = '{ANSWERED}')"
    matched, questions, answers, *found = results.all(
        f"SELECT {', '.join(['count(*)', 'count(DISTINCT key)', answered, *counts])} FROM results WHERE {condition}"
    )[0]
    values = dict(zip(names, found, strict=True))
    fixed = [name for name in names if values[name] == 1]
    first = f"SELECT {', '.join(f'any_value({quoted(name)})' for name in fixed)} FROM results WHERE {condition}"
    if not (asked.best_by or asked.sort or asked.columns):
        asked = replace(asked, answered=True)
    every = replace(asked, top=asked.top or shown, columns=())
    goal = results.best_by(asked)
    best = next(results.rows(Asked(asked.where, by=asked.by, top=1)), None)
    if goal is None or best is None or best[goal.column] is None:
        goal = best = None
    ((of,),) = results.all(f"SELECT count(*) FROM ({results.matching(asked)})")
    unanswered = results.all(
        "SELECT status, arg_min(reason, rowid), count(DISTINCT key) AS questions FROM results "
        f"WHERE {condition} AND status <> '{ANSWERED}' "
        "GROUP BY status, regexp_replace(reason, '[0-9][0-9.,]*', '', 'g') ORDER BY questions DESC, min(rowid)"
    )
    return Summary(
        source=results.path.name,
        columns=results.columns,
        wanted=tuple(results.wanted(asked)) if asked.columns else (),
        rows=tuple(results.rows(every)),
        matched=matched,
        of=of,
        questions=questions,
        answered=answers,
        goal=goal,
        best=best,
        varying=tuple(name for name in names if values[name] > 1),
        fixed=dict(zip(fixed, results.all(first)[0], strict=True)) if fixed else {},
        unanswered=tuple(Unanswered(status, reason or "", count) for status, reason, count in unanswered),
        heat=_heat(results, asked) if asked.heat else None,
        frontier=_frontier(results, asked) if asked.frontier else None,
    )


def _heat(results: Results, asked: Asked) -> Heat:
    if len(asked.heat) != 3:
        raise InputError("a heat map has three columns", field="heat", hint="give `heat=model,gpus,mfu`")
    row, column = (results.column(name, "heat") for name in asked.heat[:2])
    value = results.goal(asked.heat[2], "heat").column
    axes, condition = [], results.condition(asked.where)
    for name in (row, column):
        order = "min(rowid)" if results.columns[name] is str else quoted(name)
        every = f"SELECT {quoted(name)} FROM results WHERE {condition} GROUP BY 1 ORDER BY {order}"
        axes.append([one for (one,) in results.all(every)])
        if len(axes[-1]) > MAX_SHADES:
            message = f"{name} has {len(axes[-1]):,} values, a heat map has {MAX_SHADES} at most"
            raise InputError(message, field="heat", hint="say which by `where`")
    wanted, best = ", ".join(map(quoted, (row, column, value))), replace(asked, best_by=(), frontier=())
    found = {
        (one, other): number for one, other, number in results.all(f"SELECT {wanted} FROM ({results.matching(best)})")
    }
    rows, columns = axes
    values = tuple(tuple(found.get((one, other)) for other in columns) for one in rows)
    return Heat(row, column, value, tuple(rows), tuple(columns), values)


def _frontier(results: Results, asked: Asked) -> Frontier:
    across, up = results.frontier_goals(asked)
    wanted = f"{quoted(across.column)}, {quoted(up.column)}"
    known = f"{quoted(across.column)} IS NOT NULL AND {quoted(up.column)} IS NOT NULL"
    on = results.all(f"SELECT {wanted} FROM ({results.matching(asked)}) ORDER BY {across.order}")
    every = results.matching(replace(asked, frontier=(), heat=()))
    behind = results.all(f'SELECT {wanted} FROM ({every}) WHERE {known} ORDER BY "{ORDER}" LIMIT {MAX_POINTS}')
    first = set(on)
    return Frontier(across, up, (*on, *(one for one in behind if one not in first)), len(on))
