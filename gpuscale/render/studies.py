"""Drawing of the results of a study: the best, why questions have no answer, a heat map, a frontier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from gpuscale.files import printable
from gpuscale.render.compared import three_digits
from gpuscale.render.console import Block, draw, note_rows, output_width, scatter, table
from gpuscale.studies.answers import ANSWERED, Answered
from gpuscale.studies.cases import Row
from gpuscale.studies.query import Goal
from gpuscale.studies.summary import MAX_COUNTS, Frontier, Heat, Summary
from gpuscale.units import format_bytes, format_count, format_duration, format_rate, plural

MAIN = {
    "usd_to_train": "USD", "cost_usd": "USD", "wall_s": "time", "gpu_hours": "GPU-hours",
    "usd_per_1e9_tokens": "USD/1e9", "tokens_per_s_per_gpu": "tok/s/GPU", "step_time_s": "step", "mfu": "MFU",
    "memory_gib": "GiB", "busbw_bytes_per_s": "busbw GB/s", "time_s": "time", "fit": "fit",
}  # fmt: skip
"""Column that a table shows where it is there -> its header."""

PLAN = "plan"
"""Header of the degrees of a plan."""

DEGREES = {"tp": "TP", "pp": "PP", "vpp": "VPP", "cp": "CP", "ep": "EP", "dp": "DP", "zero": "ZeRO-"}
SHADES = " .:*#"
LONGEST = 40
"""Characters of a text in a table, at most."""


def draw_answered(found: Answered) -> None:
    """Print what one question of a study asks, and how many rows answer it."""
    asked = ", ".join(f"{name}={value}" for name, value in {**found.case.labels, **found.case.options}.items())
    draw(f"{found.case.task} {asked}: {plural(len(found.rows), 'row')}")


def draw_study(found: Summary) -> None:
    """Print what results say."""
    draw(*_blocks(found))


def _blocks(found: Summary) -> Iterator[Block]:
    """Yield the verdict, what all questions share, the rows, pictures, and why questions have no answer."""
    yield study_verdict(found)
    yield study_facts(found)
    yield _rows(found) if found.rows else ""
    if found.of > len(found.rows):
        yield f"{len(found.rows):,} of {plural(found.of, 'row')}; JSON and CSV have all"
    if found.heat is not None:
        yield f"{heat_title(found)}; shaded by {' '.join(SHADES.strip())}"
        yield from _heat(found.heat)
    if found.frontier is not None and found.frontier.points:
        yield f"{frontier_title(found.frontier)} (*; others .)"
        yield _plot(found.frontier)
    yield unanswered_table(found)
    yield note_rows(study_notes(found))


def study_notes(found: Summary) -> list[str]:
    """What a reader should know of the rows that are shown, what holds for most of them first."""
    counts = Counter(row["notes"] for row in found.rows if row.get("notes"))
    said = [
        printable(note if count == len(found.rows) else f"{plural(count, 'row')}: {note}")
        for note, count in counts.most_common(MAX_COUNTS)
    ]
    return said + (["others are in the column `notes`"] if len(counts) > MAX_COUNTS else [])


def study_verdict(found: Summary) -> str:
    """The result in a sentence."""
    if not found.questions:
        return "no rows: there are none, or none meets the condition"
    head = f"{found.answered:,} of {plural(found.questions, 'question')} answered"
    if found.goal is None or found.best is None:
        return head
    value = value_text(found.goal.column, found.best[found.goal.column])
    names = ", ".join(
        f"{name} {value_text(name, found.best[name])}" for name in found.varying if found.best[name] is not None
    )
    return f"{head}; {goal_text(found.goal)}: {value}{f' with {names}' if names else ''}"


def study_facts(found: Summary) -> list[tuple[str, str]]:
    """What all questions share."""
    return [(name, value_text(name, value)) for name, value in found.fixed.items() if value not in {None, "plan"}]


def goal_text(goal: Goal) -> str:
    """Say what rows are best by."""
    return f"best by {goal.column} (the {'most' if goal.rising else 'least'})"


def value_text(name: str, value: Any) -> str:
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


def shown_columns(found: Summary) -> dict[str, str]:
    """Column -> header of those that are shown: what sets questions apart, and the main results; or those asked for."""
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


def cell_text(row: Row, name: str) -> str:
    """Write a value of a row, or its layout."""
    return layout_of(row) if name == PLAN and PLAN not in row else value_text(name, row[name])


def _rows(found: Summary) -> Table:
    columns = shown_columns(found)
    rows = [{header: cell_text(row, name) for name, header in columns.items()} for row in found.rows]
    texts = [not isinstance(found.rows[0].get(name, ""), int | float) or name in found.varying for name in columns]
    left = texts.index(False) if False in texts else len(texts)
    goal = found.goal.column if found.goal else ""
    less = [] if found.wanted else [header for name, header in columns.items() if name in MAIN and name != goal]
    return table(rows, left=left, optional=[*reversed(less), *([PLAN] if less else [])])


def heat_title(found: Summary) -> str:
    """Say what a heat map shows."""
    assert found.heat is not None
    best = (
        f", of the row that is {goal_text(found.goal)}" if found.goal and found.goal.column != found.heat.value else ""
    )
    return f"{found.heat.value} over {found.heat.row} and {found.heat.column}{best}"


def shade(value: float | None, low: float, high: float) -> str:
    """The mark of a value between the least and the most."""
    if value is None:
        return " "
    return SHADES[min(int((value - low) / ((high - low) or 1) * len(SHADES)), len(SHADES) - 1)]


def ends_of(heat: Heat) -> tuple[float, float]:
    """The least and the most of a heat map."""
    known = [value for row in heat.values for value in row if value is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


def axis_text(value: Any) -> str:
    """Write a value of an axis of a heat map, in full: two that differ do not look alike."""
    return "-" if value is None else printable(str(value))


def _heat(heat: Heat) -> Iterator[Table]:
    """Yield the map as tables of as many columns as fit."""
    low, high = ends_of(heat)
    cells = [[f"{value_text(heat.value, one)} {shade(one, low, high)}" for one in row] for row in heat.values]
    names, heads = [*map(axis_text, heat.rows)], [*map(axis_text, heat.columns)]
    corner = f"{heat.row} / {heat.column}"
    room = output_width() - max(map(len, [corner, *names])) - 2
    widths = [2 + max([len(head), *(len(row[at]) for row in cells)]) for at, head in enumerate(heads)]
    at = 0
    while at < len(heads):
        end = at + 1
        while end < len(heads) and sum(widths[at : end + 1]) <= room:
            end += 1
        yield table([
            {corner: name, **dict(zip(heads[at:end], row[at:end], strict=True))}
            for name, row in zip(names, cells, strict=True)
        ])  # fmt: skip
        at = end


def frontier_title(frontier: Frontier) -> str:
    """Say what a frontier shows."""
    words = [f"{'more' if one.rising else 'less'} {one.column}" for one in (frontier.across, frontier.up)]
    return f"{plural(frontier.size, 'row')} on the frontier: none has both {words[0]} and {words[1]}"


def _plot(frontier: Frontier) -> str:
    marks = ["*" if at < frontier.size else "." for at in range(len(frontier.points))]
    across, up = zip(*frontier.points, strict=True)
    return scatter((frontier.across.column, across), (frontier.up.column, up), marks, output_width())


def unanswered_table(found: Summary) -> Block:
    """Why questions have no answer, the most frequent reasons first."""
    if not found.unanswered:
        return ""
    rows = [
        {
            "no answer": one.status.replace("_", " "),
            "why, such as": reason_text(one.reason),
            "questions": f"{one.questions:,}",
        }
        for one in found.unanswered[:MAX_COUNTS]
    ]
    rest = sum(one.questions for one in found.unanswered[MAX_COUNTS:])
    rows += [{"no answer": "", "why, such as": "other reasons", "questions": f"{rest:,}"}] if rest else []
    return table(rows, left=2)


def reason_text(reason: str) -> str:
    """A reason in at most 200 characters."""
    return printable(reason if len(reason) <= 200 else f"{reason[:197]}...")
