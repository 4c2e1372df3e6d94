"""Drawing of `gpuscale memory`: what fills a GPU, for a plan and the plans around it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from gpuscale.explain.budget import GROUPS, BudgetRow, MemoryBudget, MemoryTimeline, Moment
from gpuscale.layouts.pins import short_recompute
from gpuscale.ratios import signed
from gpuscale.render.console import LEAST_WIDTH
from gpuscale.render.document import WIDTH, Document, Part, Section, Spell, Table, note_facts, plain, table
from gpuscale.render.plan_texts import FIT, change_text, layout_text, memory_range, on_cluster, on_gpus, size_text
from gpuscale.render.plots import LABEL, framed, numbered, plot_columns
from gpuscale.units import format_seconds

MARKS = dict(zip(GROUPS, "WGOATfr", strict=True))
"""Part of the budget -> its character in bars."""

SHORT = dict(zip(GROUPS, ("weights", "grads", "optim", "activ", "temp", "frag", "reserve"), strict=True))
MEANINGS = {
    "optimizer": "optimizer (master weights, moments)",
    "temporary": "temporary (logits, workspace, gathered parameters, buffers, what the optimizer step adds)",
    "reserve": "reserve (NCCL, CUDA context)",
}
FIT_MARKS = {"fits": " ", "tight": "~", "no": "!"}
BEYOND = 1.6
"""Bars end at this multiple of the limit."""


def memory_document(budget: MemoryBudget, *, spell: Spell = str) -> Document:
    """Lay out the budget of single changes, and the sizes of all combinations; or the memory of a stage over a step."""
    if budget.timeline is not None:
        return _timeline(budget, budget.timeline, spell)
    asked = budget.asked
    rows = [asked, *sorted((row for row in budget.rows if len(row.differs(asked)) == 1), key=_order(asked))]
    names = [row.name(asked) for row in rows]
    return Document(
        f"Memory of {on_gpus(budget)}",
        partial(_verdict, budget),
        sections=[
            Section("One change", [_parts_table(rows, names), partial(_bars, rows, names), _legend()]),
            Section("All combinations", _combinations(budget)),
            Section("What can be given up", _ladder(budget, spell)),
            Section("Notes", [[("interval", memory_range(budget.plan)), *note_facts(budget.notes, spell)]]),
        ],
    )


def _verdict(budget: MemoryBudget, width: int) -> str:
    asked = budget.asked
    fit = "" if asked.fit == "fits" else f"{FIT[asked.fit]}: "
    verdict = f"{fit}{size_text(asked)}"
    for fact in budget.facts:
        if len(verdict) + len(fact) + 2 <= max(width, LEAST_WIDTH * 2):
            verdict += f"; {fact}"
    return f"{verdict}\n{_head(budget)}; stage {asked.peak_stage} is the fullest"


def _head(budget: MemoryBudget) -> str:
    return f"{on_cluster(budget)}: {layout_text(budget.plan)}"


def _order(asked: BudgetRow) -> Callable[[BudgetRow], tuple[bool, bool, int, bool]]:
    return lambda row: ("tp" in row.differs(asked), "recompute" in row.differs(asked), row.tp, row.sp)


def _parts_table(rows: Sequence[BudgetRow], names: Sequence[str]) -> Table:
    return table(
        [
            {
                "\none change": name,
                **{f"{SHORT[part]}\n{MARKS[part]}": _gib(size) for part, size in row.groups().items()},
                "total\nGiB": f"{row.memory_gib:.1f}",
                "\nfit": row.fit,
                "\nstep": format_seconds(row.step_time_s),
                "\ntime": signed(row.slower) if row.change else "",
            }
            for row, name in zip(rows, names, strict=True)
        ],
        optional=("\nstep",),
    )


def _gib(size: float) -> str:
    return f"{size:.1f}" if size else "-"


def _legend() -> str:
    return ", ".join(f"{mark}: {MEANINGS.get(name, name)}" for name, mark in MARKS.items())


def _bars(rows: Sequence[BudgetRow], names: Sequence[str], width: int) -> str:
    limit, room, width = rows[0].memory_limit_gib, max(map(len, names)) + 1, min(width, WIDTH)
    most = min(max(limit * 1.05, *(row.memory_gib for row in rows)), BEYOND * limit)
    columns = max(20, width - room - 10)
    at = min(round(limit / most * columns), columns - 1)
    lines = [f"{'':{room}}0{limit:{at - 1}.1f}| limit"]
    for row, name in zip(rows, names, strict=True):
        bar = _bar(row.groups(), most, columns).ljust(at)
        bar = f"{bar[:at]}|{bar[at:]}"
        lines.append(f"{name:{room}}{bar:{columns + 1}}{row.memory_gib:8.1f}{FIT_MARKS[row.fit]}".rstrip())
    return "\n".join(lines)


def _bar(parts: Mapping[str, float], most: float, columns: int) -> str:
    """Draw parts so that each ends where their sum does; what is beyond the scale ends in `>`."""
    drawn, total = "", 0.0
    for name, size in parts.items():
        total += size
        drawn += MARKS[name] * (round(total / most * columns) - len(drawn))
    return drawn if len(drawn) <= columns else drawn[: columns - 1] + ">"


def _ladder(budget: MemoryBudget, spell: Spell) -> list[Part]:
    rows = [
        {
            "give up, each by itself": change_text(one.change, spell),
            "GiB": f"{one.memory_gib:.1f}",
            "fit": one.fit,
            "step": format_seconds(one.step_time_s),
            "time": signed(one.slower),
        }
        for one in budget.ladder
    ]
    return [table(rows)]


def _combinations(budget: MemoryBudget) -> list[Part]:
    found = {(row.tp, row.sp, row.recompute, row.zero): row for row in budget.rows}
    stages = sorted({row.zero for row in budget.rows})
    rows = []
    for tp, sp in sorted({key[:2] for key in found}):
        cells = {"GiB": f"TP{tp}{'+SP' if sp else ''}"}
        for way in dict.fromkeys(row.recompute for row in budget.rows):
            for zero in stages:
                row = found.get((tp, sp, way, zero))
                mark = "" if row is None else "*" * (row is budget.asked) + FIT_MARKS[row.fit].strip()
                cells[short_recompute(way).replace("+", "\n+").replace(" ", "\n") + f"\nZ{zero}"] = (
                    "-" if row is None else f"{row.memory_gib:.0f}{mark}"
                )
        rows.append(cells)
    notes = "*: as asked, ~: tight, !: does not fit, -: not run; Z0 to Z3: ZeRO stages, under what is recomputed"
    return [table(rows), notes, _refusals(budget)]


def _refusals(budget: MemoryBudget) -> list[tuple[str, str]]:
    counts = Counter(one.rule for one in budget.refused)
    reasons = {one.rule: one.reason for one in reversed(budget.refused)}
    return [(f"{count} refused", f"{reasons[code]} ({code})") for code, count in counts.items()]


TIMELINE_ROWS = 18
STEADY = 12
"""Passes that are drawn of the steady state, at either end; what lies between repeats."""

EVENT_MARKS = {"forward": "F", "backward": "B", "weights": "w", "waiting": ".", "gradients": "g", "optimizer": "o"}

GAP_COLUMN = "~"


def _timeline(budget: MemoryBudget, found: MemoryTimeline, spell: Spell) -> Document:
    most_held = max(one.in_flight for one in found.moments)
    at = "at the {} step" if found.peak_event in {"gradients", "optimizer"} else "in the {} pass"
    verdict = (
        f"stage {found.stage}: {found.peak_gib:.1f} of {budget.asked.memory_limit_gib:.1f} GiB at its peak, "
        f"{at.format(found.peak_event)} {format_seconds(found.peak_time_s)} into a step of "
        f"{format_seconds(found.step_time_s)}; holds up to {most_held:.3g} "
        f"microbatch{'es' if most_held != 1 else ''}"
    )
    events = "F: forward, B: backward, w: weight gradients, .: waiting, g: gradients reduced, o: optimizer"
    return plain(
        f"Memory over a step of {on_gpus(budget)}",
        f"{verdict}\n{_head(budget)}",
        partial(_over_the_step, found, budget.asked.memory_limit_gib),
        lambda width: f"{events}{_repeats(found, width)}",
        _legend(),
        note_facts(budget.notes, spell),
    )


def _repeats(found: MemoryTimeline, width: int) -> str:
    parts, _ = _windows(found, plot_columns(width))
    return f"; {GAP_COLUMN}: what lies between repeats" if len(parts) > 1 else ""


def _over_the_step(found: MemoryTimeline, limit: float, width: int) -> str:
    columns = plot_columns(width)
    parts, step_s = _windows(found, columns)
    shown = [GAP_COLUMN if part is None else part for one in parts for part in (*one, None)][:-1]
    top = max(found.peak_gib * 1.02, limit if found.peak_gib > limit / 2 else 0.0)
    rows = [
        "".join(part if isinstance(part, str) else _cell(part, (row + 0.5) * top / TIMELINE_ROWS) for part in shown)
        for row in range(TIMELINE_ROWS)
    ]
    at = round(limit / top * TIMELINE_ROWS) - 1
    if at < TIMELINE_ROWS:
        rows[at] = "".join("-" if mark == " " else mark for mark in rows[at].ljust(columns))
    levels = [(row + 1) * top / TIMELINE_ROWS for row in range(TIMELINE_ROWS)]
    ends = ("0 s", format_seconds(found.step_time_s))
    title = f"GiB in use over one step; a column is {format_seconds(step_s)}"
    title += f"; ---- is the limit of {limit:.1f}" if at < TIMELINE_ROWS else ""
    events = "runs |".rjust(LABEL) + "".join(part if isinstance(part, str) else _event(part) for part in shown)
    return f"{framed(title, numbered(levels), rows, columns, ends)}\n{events}"


def _windows(found: MemoryTimeline, columns: int) -> tuple[list[list[list[tuple[Moment, float]]]], float]:
    """Cut a step into columns, without a long steady state: of each window its columns, each the moments in it with
    their seconds; and what a column takes [s]."""
    starts = [one.time_s for one in found.moments]
    ends = [*starts[1:], found.step_time_s]
    passes = [index for index, one in enumerate(found.moments) if one.microbatch is not None]
    kinds = [found.moments[index].event for index in passes]
    full = kinds.index("backward") + STEADY  # from here on it repeats
    empties = len(kinds) - kinds[::-1].index("forward") - STEADY  # until here
    windows = [(0.0, found.step_time_s)]
    if empties - full > STEADY:
        windows = [(0.0, ends[passes[full]]), (starts[passes[empties]], found.step_time_s)]
    room = columns - len(windows) + 1
    step_s = math.fsum(end - start for start, end in windows) / room
    out = []
    for start, end in windows:
        count = max(1, round((end - start) / step_s))
        edges = [start + (end - start) * index / count for index in range(count + 1)]
        out.append([_within(found, starts, ends, *pair) for pair in pairwise(edges)])
    return out, step_s


def _within(
    found: MemoryTimeline, starts: Sequence[float], ends: Sequence[float], start: float, end: float
) -> list[tuple[Moment, float]]:
    first = max(bisect_right(starts, start) - 1, 0)
    last = max(bisect_left(starts, end), first + 1)
    return [(found.moments[index], min(ends[index], end) - max(starts[index], start)) for index in range(first, last)]


def _cell(part: Sequence[tuple[Moment, float]], level: float) -> str:
    """The part of the budget that reaches a level [GiB], where a column is the fullest."""
    fullest = max((one for one, _ in part), key=lambda one: one.memory_gib)
    total = 0.0
    for name, components in GROUPS.items():
        total += math.fsum(fullest.memory[component] for component in components)
        if total >= level:
            return MARKS[name]
    return " "


def _event(part: Sequence[tuple[Moment, float]]) -> str:
    return EVENT_MARKS[max(part, key=lambda pair: pair[1])[0].event]
