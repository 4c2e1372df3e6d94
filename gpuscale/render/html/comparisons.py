"""The page of `compare`: two plans side by side, and what sets them apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gpuscale.explain.comparison import PlanComparison, Shift
from gpuscale.explain.nodes import Node
from gpuscale.ratios import signed
from gpuscale.render.comparison import both_rows
from gpuscale.render.html.charts import Axis, Bar, stacked, waterfall
from gpuscale.render.html.page import Cell, Chart, Page, Part, Section, Table
from gpuscale.render.html.trees import paths
from gpuscale.render.plan import component_text, degrees_text
from gpuscale.units import GIB, format_seconds, plural

LESS, MORE = 1, 3
"""Colours of what the second plan has less and more of."""

LEAST, LEAST_PART = 2e-4, 5e-4
"""Share of a total below which a difference is not drawn, and of the total of A below which a part is not listed."""


def compare_page(found: PlanComparison) -> Page:
    """Lay out two plans beside each other."""
    a, b = found.a, found.b
    names = [f"{name}: {degrees_text(side.plan)}" for name, side in (("A", a), ("B", b))]
    times = [a.value, b.value]
    sizes = [side.plan.memory_gib for side in (a, b)]
    of_time = "" if found.basis == "step" else f" [{found.unit}]"
    seconds = Axis(found.unit, format_seconds)
    memory = Axis("memory per GPU", "{:.2f} GiB".format)
    most = [side.plan.memory_limit_gib for side in (a, b)]
    limits = {"limit": most[0]} if most[0] == most[1] else dict(zip(("limit of A", "limit of B"), most, strict=True))
    change = signed(b.value / a.value - 1)
    jobs = [f"{side.model} on {plural(side.gpus, 'GPU')} of {side.cluster}" for side in (a, b)]
    return Page(
        f"Two plans of {jobs[0]}" if jobs[0] == jobs[1] else f"{jobs[0]}, and {jobs[1]}",
        found.verdict,
        [
            (f"Time of A{of_time}", format_seconds(a.value), degrees_text(a.plan)),
            (f"Time of B{of_time}", format_seconds(b.value), f"{change}: {degrees_text(b.plan)}"),
            ("Memory of A", f"{sizes[0]:.1f} GiB", f"of {a.plan.memory_limit_gib:.1f} GiB"),
            ("Memory of B", f"{sizes[1]:.1f} GiB", f"of {b.plan.memory_limit_gib:.1f} GiB"),
        ],
        [
            Section("Both plans", [Table("What they are and reach", ("", "A", "B"), both_rows(found)), *found.notes]),
            Section(
                "Time",
                [
                    *_fall("From the time of A to that of B", times, found.waterfall, 1.0, seconds),
                    _side_by_side("Both times", names, times, found.waterfall, 1.0, seconds),
                    _tree("Where time differs", found.difference, a.value, _signed(format_seconds)),
                ],
            ),
            Section(
                "Memory",
                [
                    *_fall("From the memory of A to that of B", sizes, found.memory_waterfall, GIB, memory),
                    _side_by_side("Both memories", names, sizes, found.memory_waterfall, GIB, memory, limits),
                    _tree(
                        "Where memory differs",
                        found.memory_difference,
                        sizes[0] * GIB,
                        _signed(lambda size: f"{size / GIB:.2f} GiB"),
                    ),
                ],
            ),
        ],
    )


def _signed(text: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: ("-" if value < 0 else "+") + text(abs(value))


def _fall(title: str, totals: Sequence[float], changes: Sequence[Shift], unit: float, axis: Axis) -> list[Part]:
    """Draw how the differences of components add up to that of the totals."""
    shown = [one for one in changes if abs(one.difference) / unit >= LEAST * max(totals)]
    if not shown:
        return []
    bars = [
        Bar(component_text(one.component), MORE if one.difference > 0 else LESS, [one.difference / unit])
        for one in shown
    ]
    rest = totals[1] - totals[0] - math.fsum(bar.values[0] for bar in bars)
    if abs(rest) > LEAST * abs(totals[1] - totals[0]):
        bars.append(Bar("all else", 9, [rest]))
    first = shown[0]
    more = "more" if first.difference > 0 else "less"
    said = (
        f"B - A is {_signed(axis.text)(totals[1] - totals[0])}; the largest part of it is "
        f"{component_text(first.component)}: {axis.text(abs(first.difference) / unit)} {more}."
    )
    signed = axis._replace(title=f"B - A, {axis.title}", text=_signed(axis.text))
    return [waterfall(title, said, bars, "B - A", signed)]


def _side_by_side(
    title: str,
    names: Sequence[str],
    totals: Sequence[float],
    changes: Sequence[Shift],
    unit: float,
    axis: Axis,
    limits: Mapping[str, float] | None = None,
) -> Chart:
    """Draw both totals as what differs, and what is the same in both."""
    bars = [
        Bar(component_text(one.component), index, [one.a / unit, one.b / unit]) for index, one in enumerate(changes)
    ]
    same = [total - math.fsum(bar.values[index] for bar in bars) for index, total in enumerate(totals)]
    bars.append(Bar("the same in both", 9, [max(value, 0.0) for value in same]))
    said = f"A: {axis.text(totals[0])}; B: {axis.text(totals[1])}; the parts that differ most come first."
    return stacked(title, said, names, bars, axis, limits)


def _tree(title: str, root: Node, whole: float, text: Callable[[float], str]) -> Table:
    """The parts that differ, within each other."""
    rows: list[list[Cell]] = [
        [
            "\u00a0\u00a0" * (len(one.names) - 1) + one.node.name,
            (text(one.node.value), one.node.value),
            (signed(one.node.value / whole, same="-"), one.node.value),
        ]
        for one in paths(root)
        if any(abs(part.value) >= LEAST_PART * whole for part in one.node.walk())
    ]
    return Table(f"{title}: B less A, part by part", ("part", "B - A", "of A"), rows, folded=True)
