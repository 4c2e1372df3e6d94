"""Charts of one plan's trees: its step down to operators, its roofline, and the memory of its stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from gpuscale.explain.nodes import Node
from gpuscale.explain.steps import BOUNDS
from gpuscale.memory.model import COMPONENTS as MEMORY_COMPONENTS
from gpuscale.render.document import Cell, Chart, Part, Table, table
from gpuscale.render.html.charts import Bar, Line, Mark, Points, colour, in_rows, points, scale, stacked
from gpuscale.render.plots import Axis
from gpuscale.specs.gpu import GpuSpec
from gpuscale.steptime.components import COMPONENTS
from gpuscale.units import GIB, format_bytes, format_seconds

COLOUR_OF = dict(zip(BOUNDS, (0, 1, 3, 8, 2, 9, 7), strict=True))
"""What binds a node -> its colour."""

FLAME_PX = 38
"""Height of a level of the tree."""

OPERATORS = 24
"""Operators that are drawn as bars, those that take most."""


class Path(NamedTuple):
    """A node and the names that lead to it."""

    names: tuple[str, ...]
    node: Node

    @property
    def text(self) -> str:
        """The names that lead to it, without the root's."""
        return " / ".join(self.names[1:]) or self.names[0]

    @property
    def indented(self) -> str:
        """Its name, in a table of a page as far in as it is deep."""
        return "\u00a0\u00a0" * (len(self.names) - 1) + self.node.name


def paths(node: Node, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield a node and all below it with the names that lead to each."""
    names = (*above, node.name)
    yield Path(names, node)
    for child in node.children:
        yield from paths(child, names)


def step_chart(step: Node) -> Chart:
    """The step as a tree: what each part takes, and by what it is bound."""
    every = list(paths(step))
    leaf = max((one for one in every if not one.node.children), key=lambda one: one.node.value)
    said = f"Of {len(every) - 1} parts, {leaf.text} takes most: {leaf.node.share:.1%} of {format_seconds(step.value)}."
    return _flames("The step as a tree", said, step, _tree_table(every))


def _flames(title: str, summary: str, step: Node, numbers: Table) -> Chart:
    """Draw a tree from the top down, each part as wide as it takes; what is bound alike has one colour."""
    every: list[Mark] = []
    used = set()

    def draw(one: Node, depth: int, start: float) -> None:
        bound = one.bound or "waiting"
        used.add(bound)
        said = f"{format_seconds(one.value)}, {one.share:.1%}"
        css = f"{colour(COLOUR_OF[bound])} part"
        every.append(Mark(depth, start, start + one.value, css, f"{one.name}: {said}", f"{one.name}\n{said}"))
        for child in one.children:
            draw(child, depth + 1, start)
            start += child.value

    draw(step, 0, 0.0)
    depths = 1 + max(one.row for one in every)
    across = scale(Axis("", format_seconds), [0.0, step.value])
    drawing = partial(in_rows, [""] * depths, every, across, "of the step", FLAME_PX)
    legend = [(name, f"fill {colour(COLOUR_OF[name])}") for name in BOUNDS if name in used]
    return Chart(title, summary, drawing, numbers, legend)


def _tree_table(every: Sequence[Path]) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "part": one.indented,
            "time": (format_seconds(node.value), node.value),
            "share": (f"{node.share:.1%}", node.share),
            "FLOPs": (f"{node.flops:.3g}", node.flops) if node.flops else "",
            "bytes": (format_bytes(node.bytes), node.bytes) if node.bytes else "",
            "achieved": (_rate(node), node.rate) if node.rate else "",
            "of its limit": (f"{node.rate / node.limit:.0%}", node.rate / node.limit)
            if node.rate and node.limit
            else "",
            "bound by": node.bound or "",
            "level": node.level or "",
            "hidden": (format_seconds(node.hidden_s), node.hidden_s) if node.hidden_s else "",
            "from": node.source or "",
        }
        for one in every
        for node in [one.node]
    ]
    return table(rows, caption="A step of one GPU on the slowest stage, part by part")


def _rate(node: Node) -> str:
    rate, of_bytes = node.rate or 0.0, node.bound in {"memory", "network"} and not node.children
    return f"{rate / 1e9:,.0f} GB/s" if of_bytes else f"{rate / 1e12:,.0f} TFLOP/s"


def roofline_parts(step: Node, gpu: GpuSpec, precision: str) -> list[Part]:
    """Every operator under the roofline of its GPU, and how much of its limit each reaches."""
    leaves = [one for one in paths(step) if not one.node.children and one.node.value]
    both = [one for one in leaves if one.node.flops and one.node.bytes]
    parts: list[Part] = [_roofline(both, gpu, precision)] if both else []
    rated = sorted((one for one in leaves if one.node.rate and one.node.limit), key=lambda one: -one.node.value)
    return [*parts, *([_reached(rated)] if rated else [])]


def _roofline(operators: Sequence[Path], gpu: GpuSpec, precision: str) -> Chart:
    peak, bandwidth = gpu.peak(precision), gpu.memory_bandwidth_bytes_per_s
    ridge = peak / bandwidth
    intensity = [(one.node.flops or 0.0) / (one.node.bytes or 1.0) for one in operators]
    rate = [(one.node.flops or 0.0) / one.node.value for one in operators]
    low, high = min(*intensity, ridge) / 4, max(*intensity, ridge) * 4
    lines = [
        Line("memory bandwidth", 1, [low, ridge], [low * bandwidth / 1e12, peak / 1e12]),
        Line(f"peak in {precision}", 0, [ridge, high], [peak / 1e12, peak / 1e12]),
    ]
    groups = []
    for number, component in enumerate(dict.fromkeys(one.node.component for one in operators)):
        mine = [index for index, one in enumerate(operators) if one.node.component == component]
        name = COMPONENTS[component].text if component in COMPONENTS else "operators"
        xs, ys = [intensity[index] for index in mine], [rate[index] / 1e12 for index in mine]
        each = [f"{operators[index].text} ({operators[index].node.share:.1%})" for index in mine]
        groups.append(Points(name, number + 3, xs, ys, each, ring=number % 2 == 1))
    right = math.fsum(one.node.value for one, at in zip(operators, intensity, strict=True) if at >= ridge)
    share = right / math.fsum(one.node.value for one in operators)
    said = (
        f"The ridge is at {ridge:.0f} FLOPs per byte: {share:.0%} of the time of these {len(operators)} operators lies "
        "right of it, where arithmetic binds."
    )
    titles = ("FLOPs per byte of memory traffic", "TFLOP/s")
    across, up = (Axis(title, "{:.0f}".format, log=True) for title in titles)
    return points(f"Roofline of {gpu.title}", said, groups, across, up, lines, rows=len(operators))


def _reached(rated: Sequence[Path]) -> Chart:
    """Bars of what each operator reaches of what its datasheet allows."""
    shown = rated[:OPERATORS]
    shares = [100 * (one.node.rate or 0.0) / (one.node.limit or 1.0) for one in shown]
    worst = min(range(len(shown)), key=shares.__getitem__)
    names = [_operator_name(one) for one in shown]
    said = f"Of the {len(shown)} longest, {names[worst]} is furthest from its limit: {shares[worst]:.0f} %."
    bars = [
        Bar(name, COLOUR_OF[name], [share if one.node.bound == name else 0.0 for one, share in zip(
            shown, shares, strict=True)])
        for name in BOUNDS
    ]  # fmt: skip
    axis = Axis("% of the datasheet's", "{:.0f}".format)
    return stacked("What operators reach of their limits", said, names, bars, axis, {"": 100.0})


def _operator_name(one: Path) -> str:
    name = " / ".join(one.names[-2:]) if one.names[-1] in GRADIENTS else one.names[-1]
    return f"{name}, {one.names[2]}" if len(one.names) > 3 else name


GRADIENTS = ("input gradient", "weight gradient")


def memory_chart(
    title: str, summary: str, rows: Sequence[str], sizes: Sequence[Mapping[str, float]], limits: Mapping[str, float]
) -> Chart:
    """Draw memories [GiB] by component, each in the same colour on every chart, beside limits."""
    names = [name.replace("_", " ") for name in MEMORY_COMPONENTS]
    bars = [Bar(name, index, [one.get(name, 0.0) for one in sizes]) for index, name in enumerate(names)]
    return stacked(title, summary, rows, bars, Axis("GiB per GPU", "{:.1f}".format), limits)


def stages_chart(trees: Sequence[Node], limit_gib: float) -> Chart:
    """The memory of stages side by side, by component, beside the limit."""
    sizes = [{child.name: child.value / GIB for child in tree.children} for tree in trees]
    fullest = max(trees, key=lambda tree: tree.value)
    largest = max(fullest.children, key=lambda child: child.value)
    said = (
        f"The fullest is {fullest.name}: {fullest.value / GIB:.1f} of {limit_gib:.1f} GiB, of which "
        f"{largest.name} take {largest.value / GIB:.1f}."
    )
    limits = {f"limit {limit_gib:.1f} GiB": limit_gib}
    stages = [tree.name for tree in trees]
    rows: list[dict[str, Cell]] = [
        {
            "part": one.indented,
            "GiB": (f"{one.node.value / GIB:.2f}", one.node.value),
            "share": (f"{one.node.share:.1%}", one.node.share),
            "from": one.node.source or "",
        }
        for tree in trees
        for one in paths(tree)
    ]
    numbers = table(rows, caption="Memory of one GPU of each stage, part by part")
    return memory_chart("Memory by pipeline stage", said, stages, sizes, limits)._replace(numbers=numbers)
