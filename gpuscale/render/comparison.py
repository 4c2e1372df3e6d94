"""Two plans side by side, and what sets them apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuscale.explain.choice import ComparedPlan, PlanComparison, Shift
from gpuscale.explain.steps import Node
from gpuscale.planning.describe import bound_text
from gpuscale.ratios import signed
from gpuscale.render.document import (
    Cell,
    Chart,
    Document,
    Part,
    Section,
    Spell,
    Table,
    note_facts,
    page,
    table,
    terminal,
)
from gpuscale.render.html.charts import Bar, stacked, waterfall
from gpuscale.render.plan_page import paths
from gpuscale.render.plan_texts import component_text, degrees_text, layout_text, on_cluster, size_text, step_range
from gpuscale.render.plots import Axis
from gpuscale.units import GIB, format_count, format_seconds

BAR = 26

LESS, MORE = "-", "+"

COLOURS = {LESS: 1, MORE: 3}

DEPTH = 5

LEAST, LEAST_PART = 2e-4, 5e-4
"""Share of the larger total below which a difference is not shown, and of A's below which a part is not listed."""

FOLDED = 0.05
"""Share of the largest difference below which a terminal does not show a node."""


class _Totals(NamedTuple):
    """A quantity of both plans: name, totals, what differs, its unit, and how it is written."""

    name: str
    values: tuple[float, float]
    changes: Sequence[Shift]
    unit: float
    axis: Axis

    def signed(self, value: float) -> str:
        return ("-" if value < 0 else "+") + self.axis.text(abs(value))


def comparison_document(
    found: PlanComparison, *, depth: int | None = None, verbose: bool = False, spell: Spell = str
) -> Document:
    """Lay out both plans, and where time and memory went: so many levels of the tree, if `verbose` every node."""
    a, b = found.a, found.b
    levels = depth if depth is not None else 99 if verbose else DEPTH
    of_time = "" if found.basis == "step" else f" [{found.unit}]"
    (size_a, limit_a), (size_b, limit_b) = ((one.plan.memory_gib, one.plan.memory_limit_gib) for one in (a, b))
    limits = {"limit": limit_a} if limit_a == limit_b else {"limit of A": limit_a, "limit of B": limit_b}
    seconds, gib = Axis(found.unit, format_seconds), Axis("memory per GPU", "{:.2f} GiB".format)
    times = _Totals(f"time{of_time}", (a.value, b.value), found.waterfall, 1.0, seconds)
    sizes = _Totals("memory per GPU", (size_a, size_b), found.memory_waterfall, GIB, gib)
    jobs = [on_cluster(side) for side in (a, b)]
    both = [{"": name, "A": one, "B": other} for name, one, other in _both_rows(found)]
    least, slower = 0.0 if verbose else FOLDED, signed(b.value / a.value - 1)
    return Document(
        f"Two plans of {jobs[0]}" if jobs[0] == jobs[1] else f"{jobs[0]}, and {jobs[1]}",
        found.verdict,
        [
            (f"Time of A{of_time}", format_seconds(a.value), degrees_text(a.plan)),
            (f"Time of B{of_time}", format_seconds(b.value), f"{slower}: {degrees_text(b.plan)}"),
            ("Memory of A", f"{size_a:.1f} GiB", f"of {limit_a:.1f} GiB"),
            ("Memory of B", f"{size_b:.1f} GiB", f"of {limit_b:.1f} GiB"),
        ],
        [
            Section("Both plans", [table(both, caption="What they are and reach", left=3)]),
            Section("Time", [*_apart(found, times, {}), page(_whole_tree(times, found.difference))]),
            Section("Memory", [*_apart(found, sizes, limits), page(_whole_tree(sizes, found.memory_difference))]),
            Section("Where time differs", [terminal(_tree(times, found.difference, levels, least, verbose=verbose))]),
            Section("Notes", [note_facts(found.notes, spell)]),
        ],
    )


def _both_rows(found: PlanComparison) -> list[tuple[str, str, str]]:
    """What both plans are and reach; of jobs only what sets them apart."""
    a, b = found.a, found.b
    jobs = [(name, str(a.job.get(name, "-")), str(b.job.get(name, "-"))) for name in dict.fromkeys((*a.job, *b.job))]
    one, other = _facts(a), _facts(b)
    return [row for row in jobs if row[1] != row[2]] + [(name, one[name], other[name]) for name in one]


def _facts(side: ComparedPlan) -> dict[str, str]:
    plan = side.plan
    fit = {"fits": "", "tight": ", tight", "no": ", DOES NOT FIT"}[plan.fit]
    return {
        "layout": layout_text(plan),
        "microbatches": f"{plan.num_microbatches:,}" + (f", {plan.schedule}" if plan.schedule != "none" else ""),
        "step": format_seconds(plan.step_time_s),
        "80 % interval": step_range(plan),
        "MFU": f"{plan.mfu:.1%}",
        "tokens/s": f"{format_count(plan.tokens_per_s)}, {plan.tokens_per_s_per_gpu:,.0f} per GPU",
        "memory": f"{size_text(plan)} at stage {plan.peak_stage}{fit}",
        "bound by": bound_text(plan),
        "bubble, comm": f"{plan.bubble_fraction:.1%} idle, {plan.exposed_comm_fraction:.1%} exposed",
    }


def _apart(found: PlanComparison, both: _Totals, limits: Mapping[str, float]) -> list[Part]:
    shown = [one for one in both.changes if abs(one.difference) / both.unit >= LEAST * max(both.values)]
    falls = [page(_fall(both, shown)), terminal(_fall_table(both, shown))] if shown else []
    names = [f"{name}: {degrees_text(side.plan)}" for name, side in (("A", found.a), ("B", found.b))]
    bars = [
        Bar(component_text(one.component), index, [one.a / both.unit, one.b / both.unit])
        for index, one in enumerate(both.changes)
    ]
    same = [total - math.fsum(bar.values[index] for bar in bars) for index, total in enumerate(both.values)]
    bars.append(Bar("the same in both", 9, [max(value, 0.0) for value in same]))
    first, second = map(both.axis.text, both.values)
    said = f"A: {first}; B: {second}; the parts that differ most come first."
    return [*falls, page(stacked(f"The {both.name} of both", said, names, bars, both.axis, limits))]


def _fall(both: _Totals, shown: Sequence[Shift]) -> Chart:
    whole = both.values[1] - both.values[0]
    bars = [
        Bar(component_text(one.component), COLOURS[MORE if one.difference > 0 else LESS], [one.difference / both.unit])
        for one in shown
    ]
    rest = whole - math.fsum(bar.values[0] for bar in bars)
    if abs(rest) > LEAST * abs(whole):
        bars.append(Bar("other", 9, [rest]))
    first = shown[0]
    said = (
        f"B - A is {both.signed(whole)}; the largest part of it is {component_text(first.component)}: "
        f"{both.axis.text(abs(first.difference) / both.unit)} {'more' if first.difference > 0 else 'less'}."
    )
    axis = both.axis._replace(title=f"B - A, {both.axis.title}", text=both.signed)
    return waterfall(f"From the {both.name} of A to that of B", said, bars, "B - A", axis)


def _fall_table(both: _Totals, shown: Sequence[Shift]) -> Table:
    changes = [one.difference / both.unit for one in shown]
    ends = list(itertools.accumulate(changes, initial=both.values[0]))
    low, high = min(ends), max(ends)

    def bar(start: float, end: float) -> str:
        first, last = (round((one - low) / (high - low) * BAR) for one in sorted((start, end)))
        return " " * min(first, BAR - 1) + (LESS if end < start else MORE) * max(last - first, 1)

    text = both.axis.text
    rows = [(both.name, "", text(both.values[0]), text(both.values[1]), both.signed(both.values[1] - both.values[0]))]
    for one, change, (start, end) in zip(shown, changes, itertools.pairwise(ends), strict=True):
        own, other = (text(value / both.unit) if value else "-" for value in (one.a, one.b))
        rows.append((f"  {component_text(one.component)}", bar(start, end), own, other, both.signed(change)))
    return Table("", (" ", "from A to B", "A", "B", "B - A"), rows, left=2)


def _whole_tree(both: _Totals, root: Node) -> Table:
    whole = both.values[0] * both.unit
    rows: list[list[Cell]] = [
        [
            one.indented,
            (both.signed(one.node.value / both.unit), one.node.value),
            (signed(one.node.value / whole, same="-"), one.node.value),
        ]
        for one in paths(root)
        if any(abs(part.value) >= LEAST_PART * whole for part in one.node.walk())
    ]
    return Table(f"Where the {both.name} differs: B less A, part by part", ("part", "B - A", "of A"), rows, folded=True)


def _tree(both: _Totals, root: Node, depth: int, least: float, *, verbose: bool) -> Part:
    largest = max((abs(node.value) for node in root.walk()), default=0.0)
    if not largest:
        return "" if not verbose else "The trees of both steps are the same."
    rows = [
        {
            "where": "  " * level + node.name,
            " ": (LESS if node.value < 0 else MORE) * math.ceil(abs(node.value) / largest * BAR),
            "B - A": both.signed(node.value),
            "of A": signed(node.value / both.values[0], same="-"),
        }
        for node, level in _rows(root, depth, least * largest)
    ]
    return table(rows, left=2)


def _rows(node: Node, depth: int, least: float, level: int = 0) -> Iterator[tuple[Node, int]]:
    """Yield a node and those below it in which some part differs by at least `least`."""
    yield node, level
    if level == depth:
        return
    for child in node.children:
        if any(abs(one.value) >= least and one.value for one in child.walk()):
            yield from _rows(child, depth, least, level + 1)
