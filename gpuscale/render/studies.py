"""Drawing of the results of a study: the best, why questions have no answer, a heat map, a frontier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from gpuscale.files import printable
from gpuscale.render.compared import three_digits
from gpuscale.render.document import Cell, Chart, Document, Facts, Part, Section, Table, cell, note_facts, plain, table
from gpuscale.render.html.charts import Points, heat_map, points
from gpuscale.render.plots import Axis
from gpuscale.studies.answers import ANSWERED, Answered
from gpuscale.studies.query import MAX_COUNTS, Frontier, Goal, Summary
from gpuscale.studies.study import Row
from gpuscale.units import format_bytes, format_count, format_duration, format_rate, plural

MAIN = {
    "usd_to_train": "USD", "cost_usd": "USD", "wall_s": "time", "gpu_hours": "GPU-hours",
    "usd_per_1e9_tokens": "USD/1e9", "tokens_per_s_per_gpu": "tok/s/GPU", "step_time_s": "step", "mfu": "MFU",
    "memory_gib": "GiB", "busbw_bytes_per_s": "busbw GB/s", "time_s": "time", "fit": "fit",
}  # fmt: skip

PLAN = "plan"

DEGREES = {"tp": "TP", "pp": "PP", "vpp": "VPP", "cp": "CP", "ep": "EP", "dp": "DP", "zero": "ZeRO-"}
LONGEST = 40


def answered_document(found: Answered) -> Document:
    """Lay out one question of a study."""
    asked = ", ".join(f"{name}={value}" for name, value in {**found.case.labels, **found.case.options}.items())
    return plain("Question of a study", f"{found.case.task} {asked}: {plural(len(found.rows), 'row')}")


def study_document(found: Summary) -> Document:
    """Lay out what results say."""
    more = f"{len(found.rows):,} of {plural(found.of, 'row')}; JSON and CSV have all"
    return Document(f"Study {found.source}", _verdict(found), [*_tiles(found)], [
        Section("All questions", [_facts(found)]),
        Section("Rows", [_rows(found), more if found.of > len(found.rows) else ""]),
        Section("Heat map", _heat(found)),
        Section("Frontier", [_frontier(found.frontier)] if found.frontier and found.frontier.points else []),
        Section("No answer", [_unanswered(found)]),
        Section("Notes", [note_facts(_notes(found))]),
    ])  # fmt: skip


def _tiles(found: Summary) -> Iterator[tuple[str, str, str]]:
    yield "Questions", f"{found.questions:,}", f"{found.answered:,} answered"
    yield "Rows", f"{found.matched:,}", ""
    if found.goal and found.best:
        yield found.goal.column, _value_text(found.goal.column, found.best[found.goal.column]), _goal_text(found.goal)


def _notes(found: Summary) -> list[str]:
    counts = Counter(row["notes"] for row in found.rows if row.get("notes"))
    said = [
        printable(note if count == len(found.rows) else f"{plural(count, 'row')}: {note}")
        for note, count in counts.most_common(MAX_COUNTS)
    ]
    return said + (["others are in the column `notes`"] if len(counts) > MAX_COUNTS else [])


def _verdict(found: Summary) -> str:
    if not found.questions:
        return "no rows: the file is empty, or no row meets the condition"
    head = f"{found.answered:,} of {plural(found.questions, 'question')} answered"
    if found.goal is None or found.best is None:
        return head
    value = _value_text(found.goal.column, found.best[found.goal.column])
    names = ", ".join(
        f"{name} {_value_text(name, found.best[name])}" for name in found.varying if found.best[name] is not None
    )
    return f"{head}; {_goal_text(found.goal)}: {value}{f' with {names}' if names else ''}"


def _facts(found: Summary) -> Facts:
    return [(name, _value_text(name, value)) for name, value in found.fixed.items() if value not in {None, "plan"}]


def _goal_text(goal: Goal) -> str:
    return f"best by {goal.column} (the {'most' if goal.rising else 'least'})"


def _value_text(name: str, value: Any) -> str:
    """Write a value in the unit that its column's name ends in."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}...")
    if name == "mfu" or name.endswith(("_fraction", "_ratio", "_share")):
        return f"{value:.1%}"
    units = {"_bytes_per_s": format_rate, "_bytes": format_bytes, "_s": format_duration}
    unit = next((units[end] for end in units if name.endswith(end) and not name.endswith("tokens_per_s")), None)
    if unit is not None:
        return unit(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 1e15 else format_count(value)
    return three_digits(value) if abs(value) < 1e6 else format_count(value)


def layout_of(row: Row) -> str:
    """The degrees of a plan's row that differ from 1, as `TP8 PP4 DP20 ZeRO-1`; empty for other rows."""
    return " ".join(f"{said}{row[name]}" for name, said in DEGREES.items() if row.get(name) not in {None, 1})


def _columns(found: Summary) -> dict[str, str]:
    if found.wanted:
        return {name: name for name in found.wanted}
    goals = [goal.column for goal in (found.goal, *(found.frontier or ())[:2]) if goal is not None]
    results = [*goals, *([found.heat.value] if found.heat else []), *MAIN]
    known = [name for name in dict.fromkeys(results) if any(row.get(name) is not None for row in found.rows)]
    apart = [*found.varying, *(["status"] if any(row["status"] != ANSWERED for row in found.rows) else [])]
    plans = any(layout_of(row) for row in found.rows)
    return {
        **{name: name for name in apart},
        **({PLAN: PLAN} if plans else {}),
        **{name: MAIN.get(name, name) for name in known if name not in apart},
    }


def _rows(found: Summary) -> Table:
    columns = _columns(found)
    rows = [{header: _cell(row, name) for name, header in columns.items()} for row in found.rows]
    texts = [not isinstance(found.rows[0].get(name, ""), int | float) or name in found.varying for name in columns
             ] if rows else []  # fmt: skip
    left = texts.index(False) if False in texts else len(texts)
    goal = found.goal.column if found.goal else ""
    less = [] if found.wanted else [header for name, header in columns.items() if name in MAIN and name != goal]
    few = f", the first {len(rows):,} of {found.of:,}" if found.of > len(rows) else ""
    return table(
        rows, caption=f"Rows{few}; a column's header sorts by it", left=left, sortable=True,
        optional=[*reversed(less), *([PLAN] if less else [])],
    )  # fmt: skip


def _cell(row: Row, name: str) -> Cell:
    if name == PLAN and PLAN not in row:
        return layout_of(row)
    said, value = _value_text(name, row[name]), row[name]
    return (said, value) if isinstance(value, int | float) and not isinstance(value, bool) else said


def _heat(found: Summary) -> list[Part]:
    heat = found.heat
    if heat is None or not heat.rows or not heat.columns:
        return []
    over = f"{heat.value} over {heat.row} and {heat.column}"
    best = f", of the row that is {_goal_text(found.goal)}" if found.goal and found.goal.column != heat.value else ""
    # values of an axis in full: two that differ do not look alike
    names = [["-" if one is None else printable(str(one)) for one in axis] for axis in (heat.rows, heat.columns)]
    axis = Axis(heat.value, partial(_value_text, heat.value))
    return [heat_map(over, f"{over}{best}.", (heat.row, heat.column), names[0], names[1], heat.values, axis)]


def _frontier_title(frontier: Frontier) -> str:
    words = [f"{'more' if one.rising else 'less'} {one.column}" for one in (frontier.across, frontier.up)]
    return f"{plural(frontier.size, 'row')} on the frontier: none has both {words[0]} and {words[1]}"


def _frontier(frontier: Frontier) -> Chart:
    across, up = frontier.across.column, frontier.up.column
    groups = []
    for name, sign, colour, some in (
        ("frontier", "*", 0, frontier.points[: frontier.size]),
        ("other rows", ".", 9, frontier.points[frontier.size :]),
    ):
        xs, ys = [one for one, _ in some], [other for _, other in some]
        said = [f"{_value_text(across, one)}, {_value_text(up, other)}" for one, other in some]
        groups.append(Points(name, colour, xs, ys, said, joined=not colour, sign=sign))
    axes = Axis(across, partial(_value_text, across)), Axis(up, partial(_value_text, up))
    return points(f"{up} over {across}", f"{_frontier_title(frontier)}.", [one for one in groups if one.said], *axes)


def _unanswered(found: Summary) -> Table:
    rows = [
        {
            "no answer": one.status.replace("_", " "),
            "why, such as": printable(one.reason if len(one.reason) <= 200 else f"{one.reason[:197]}..."),
            "questions": cell(one.questions),
        }
        for one in found.unanswered[:MAX_COUNTS]
    ]
    rest = sum(one.questions for one in found.unanswered[MAX_COUNTS:])
    rows += [{"no answer": "", "why, such as": "other reasons", "questions": f"{rest:,}"}] if rest else []
    return table(rows, caption="Why questions have no answer", left=2)
