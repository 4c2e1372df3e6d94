"""Drawing of `gpuscale compare`: two plans side by side, and a waterfall of what sets them apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from gpuscale.explain.comparison import ComparedPlan, PlanComparison, Shift
from gpuscale.explain.nodes import Node
from gpuscale.planning.describe import bound_text
from gpuscale.ratios import signed
from gpuscale.render.console import Block, draw, note_rows, table
from gpuscale.render.plan import component_text, layout_text
from gpuscale.units import GIB, format_count, format_seconds

BAR = 26
"""Columns of a waterfall's bars."""

LESS, MORE = "-", "+"
"""What bars of a waterfall are made of."""

DEPTH = 5
"""Levels of the tree that are shown below its root if nothing is said."""

LEAST = 2e-4
"""Share of the larger total below which a component's difference is not shown."""

FOLDED = 0.05
"""Share of the largest difference below which a node is not shown."""


def draw_comparison(
    found: PlanComparison, *, depth: int | None = None, verbose: bool = False, spell: Callable[[str], str] = str
) -> None:
    """Print the verdict, both plans, and where time and memory went.

    Args:
        depth: levels of the tree below its root.
        verbose: show every node that differs.
        spell: from options in backticks to how they are given.
    """
    levels = depth if depth is not None else 99 if verbose else DEPTH
    seconds = f" [{found.unit}]" if found.basis != "step" else ""
    draw(
        found.verdict,
        _both(found),
        _waterfall(f"time{seconds}", (found.a.value, found.b.value), found.waterfall, format_seconds),
        _waterfall("memory per GPU", _memory(found), found.memory_waterfall, _gib),
        _tree(found.difference, found.a.value, levels, 0.0 if verbose else FOLDED, verbose=verbose),
        note_rows(found.notes, spell),
    )


def _both(found: PlanComparison) -> Table:
    return table([{"": name, "A": one, "B": other} for name, one, other in both_rows(found)], left=3)


def both_rows(found: PlanComparison) -> list[tuple[str, str, str]]:
    """What both plans are and reach; of jobs only what sets them apart."""
    a, b = found.a, found.b
    rows = [(name, str(one), str(other)) for name, one, other in _jobs(a, b) if one != other]
    texts = [(_facts(a)[index], _facts(b)[index]) for index in range(len(FACTS))]
    return rows + [(name, *pair) for name, pair in zip(FACTS, texts, strict=True)]


def _jobs(a: ComparedPlan, b: ComparedPlan) -> Iterator[tuple[str, object, object]]:
    """Yield the options of both jobs; what is not given is `-`."""
    for name in dict.fromkeys((*a.job, *b.job)):
        yield name, a.job.get(name, "-"), b.job.get(name, "-")


FACTS = ("layout", "microbatches", "step", "80 % interval", "MFU", "tokens/s", "memory", "bound by", "bubble, comm")


def _facts(side: ComparedPlan) -> tuple[str, ...]:
    plan = side.plan
    fit = {"fits": "", "tight": ", tight", "no": ", DOES NOT FIT"}[plan.fit]
    return (
        layout_text(plan),
        f"{plan.num_microbatches:,}" + (f", {plan.schedule}" if plan.schedule != "none" else ""),
        format_seconds(plan.step_time_s),
        f"{format_seconds(plan.step_time_low_s)} to {format_seconds(plan.step_time_high_s)}",
        f"{plan.mfu:.1%}",
        f"{format_count(plan.tokens_per_s)}, {plan.tokens_per_s_per_gpu:,.0f} per GPU",
        f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}{fit}",
        bound_text(plan),
        f"{plan.bubble_fraction:.1%} idle, {plan.exposed_comm_fraction:.1%} exposed",
    )


def _memory(found: PlanComparison) -> tuple[float, float]:
    """Return the bytes of both plans at their fullest stages."""
    return found.a.plan.memory_gib * GIB, found.b.plan.memory_gib * GIB


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _signed(value: float, text: Callable[[float], str]) -> str:
    return ("-" if value < 0 else "+") + text(abs(value))


def _waterfall(
    title: str, totals: tuple[float, float], changes: Sequence[Shift], text: Callable[[float], str]
) -> Block:
    """What takes the total of A to that of B, the largest difference first, with bars where each begins and ends."""
    changes = [one for one in changes if abs(one.difference) >= LEAST * max(totals)]
    if not changes:
        return ""
    ends = list(itertools.accumulate((one.difference for one in changes), initial=totals[0]))
    low, high = min(ends), max(ends)

    def bar(start: float, end: float) -> str:
        first, last = (round((one - low) / (high - low) * BAR) for one in sorted((start, end)))
        return " " * min(first, BAR - 1) + (LESS if end < start else MORE) * max(last - first, 1)

    rows = [(title, "", text(totals[0]), text(totals[1]), _signed(totals[1] - totals[0], text))]
    for one, (start, end) in zip(changes, itertools.pairwise(ends), strict=True):
        own, other = (text(value) if value else "-" for value in (one.a, one.b))
        rows.append((f"  {component_text(one.component)}", bar(start, end), own, other, _signed(one.difference, text)))
    return table([dict(zip((" ", "from A to B", "A", "B", "B - A"), row, strict=True)) for row in rows], left=2)


def _tree(root: Node, whole: float, depth: int, least: float, *, verbose: bool) -> Block:
    """The parts of the step that differ, within the step of A."""
    largest = max((abs(node.value) for node in root.walk()), default=0.0)
    if not largest:
        return "" if not verbose else "The trees of both steps are the same."
    rows = [
        {
            "where": "  " * level + node.name,
            " ": (LESS if node.value < 0 else MORE) * math.ceil(abs(node.value) / largest * BAR),
            "B - A": _signed(node.value, format_seconds),
            "of A": signed(node.value / whole, same="-"),
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
