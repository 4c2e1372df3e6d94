"""Sections of a page on one plan's trees: its step down to operators, its roofline, and the memory of its stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpuscale.explain.nodes import Node
from gpuscale.explain.steps import BOUNDS
from gpuscale.memory.model import COMPONENTS as MEMORY_COMPONENTS
from gpuscale.render.html.charts import Axis, Bar, Line, Points, colour, label, points, stacked
from gpuscale.render.html.page import Cell, Chart, Part, Table
from gpuscale.specs.gpu import GpuSpec
from gpuscale.steptime.components import COMPONENTS
from gpuscale.units import GIB, format_bytes, format_seconds

COLOUR_OF = dict(zip(BOUNDS, (0, 1, 3, 8, 2, 9, 7), strict=True))
"""What binds a node -> its colour."""

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


def paths(node: Node, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield a node and all below it with the names that lead to each."""
    names = (*above, node.name)
    yield Path(names, node)
    for child in node.children:
        yield from paths(child, names)


def step_tree_parts(step: Node) -> list[Part]:
    """The step as a tree: what each part takes, and by what it is bound."""
    every = list(paths(step))
    leaf = max((one for one in every if not one.node.children), key=lambda one: one.node.value)
    said = f"Of {len(every) - 1} parts, {leaf.text} takes most: {leaf.node.share:.1%} of {format_seconds(step.value)}."
    return [_icicle("The step as a tree", f"{said} A click on a part opens it.", every, _tree_table(every))]


def _icicle(title: str, summary: str, every: Sequence[Path], numbers: Table) -> Chart:
    """Draw a tree as columns that fill each other; what is bound alike has one colour."""
    ids = {one.names: str(index) for index, one in enumerate(every)}
    trace: dict[str, Any] = {
        "type": "icicle", "branchvalues": "total", "ids": list(ids.values()),
        "labels": [label(one.node.name) for one in every],
        "parents": [ids.get(one.names[:-1], "") for one in every],
        "values": _fitting(every),
        "text": [f"{format_seconds(one.node.value)}, {one.node.share:.1%}" for one in every],
        "texttemplate": "%{label}<br>%{text}", "hovertemplate": "%{label}: %{text}<extra></extra>",
        "marker": {
            "colors": [colour(COLOUR_OF[one.node.bound or "waiting"]) for one in every],
            "line": {"color": "var(--back)", "width": 1},
        },
        "tiling": {"orientation": "h"}, "pathbar": {"visible": False}, "maxdepth": 6, "leaf": {"opacity": 1},
        "insidetextfont": {"color": "var(--back)"}, "outsidetextfont": {"color": "var(--back)"},
    }  # fmt: skip
    used = {one.node.bound or "waiting" for one in every}
    legend = [(name, COLOUR_OF[name], "fill") for name in BOUNDS if name in used]
    return Chart(title, summary, [trace], {}, 520, numbers, legend)


def _fitting(every: Sequence[Path]) -> list[float]:
    """The values, so that rounded children never add up to more than their parent."""
    return [float(f"{one.node.value * (1 - 1e-6 * (len(one.names) - 1)):.9g}") for one in every]


def _tree_table(every: Sequence[Path]) -> Table:
    header = (
        "part",
        "time",
        "share",
        "FLOPs",
        "bytes",
        "achieved",
        "of its limit",
        "bound by",
        "level",
        "hidden",
        "from",
    )
    rows: list[list[Cell]] = []
    for one in every:
        node, achieved = one.node, _rate(one.node)
        rows.append(
            [
                "\u00a0\u00a0" * (len(one.names) - 1) + node.name,
                (format_seconds(node.value), node.value),
                (f"{node.share:.1%}", node.share),
                (f"{node.flops:.3g}", node.flops) if node.flops else "",
                (format_bytes(node.bytes), node.bytes) if node.bytes else "",
                (achieved, node.rate or 0.0) if achieved else "",
                (f"{node.rate / node.limit:.0%}", node.rate / node.limit) if node.rate and node.limit else "",
                node.bound or "",
                node.level or "",
                (format_seconds(node.hidden_s), node.hidden_s) if node.hidden_s else "",
                node.source or "",
            ]
        )
    return Table("A step of one GPU on the slowest stage, part by part", header, rows)


def _rate(node: Node) -> str:
    if not node.rate:
        return ""
    of_bytes = node.bound in {"memory", "network"} and not node.children
    return f"{node.rate / 1e9:,.0f} GB/s" if of_bytes else f"{node.rate / 1e12:,.0f} TFLOP/s"


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
        groups.append(Points(name, number + 3, xs, ys, each, symbol="diamond" if number % 2 else "circle"))
    right = math.fsum(one.node.value for one, at in zip(operators, intensity, strict=True) if at >= ridge)
    share = right / math.fsum(one.node.value for one in operators)
    said = (
        f"The ridge is at {ridge:.0f} FLOPs per byte: {share:.0%} of the time of these {len(operators)} operators lies "
        "right of it, where arithmetic binds."
    )
    axes = (
        Axis("FLOPs per byte of memory traffic", "{:.0f}".format, log=True),
        Axis("TFLOP/s", "{:.0f}".format, log=True),
    )
    return points(f"Roofline of {gpu.title}", said, groups, *axes, lines, rows=len(operators))


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
    return stacked(
        "What operators reach of their limits",
        said,
        names,
        bars,
        Axis("% of the datasheet's", "{:.0f}".format),
        {"": 100.0},
    )


def _operator_name(one: Path) -> str:
    """Name an operator by itself and its pass."""
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


def memory_tree_parts(trees: Sequence[Node], limit_gib: float) -> list[Part]:
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
    every = [one for tree in trees for one in paths(tree)]
    rows: list[list[Cell]] = [
        [
            "\u00a0\u00a0" * (len(one.names) - 1) + one.node.name,
            (f"{one.node.value / GIB:.2f}", one.node.value),
            (f"{one.node.share:.1%}", one.node.share),
            one.node.source or "",
        ]
        for one in every
    ]
    table = Table("Memory of one GPU of each stage, part by part", ("part", "GiB", "share", "from"), rows)
    chart = memory_chart("Memory by pipeline stage", said, stages, sizes, limits)
    return [chart._replace(numbers=table)]
