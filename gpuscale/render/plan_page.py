"""What a page shows of plans: which to choose, and one in charts and trees."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from gpuscale.errors import InputError
from gpuscale.explain import steps
from gpuscale.explain.schedule import schedule
from gpuscale.explain.steps import Node, memory_trees, step_tree
from gpuscale.explain.traffic import traffic_of
from gpuscale.launch.subject import Subject, read_subject
from gpuscale.memory.model import COMPONENTS as MEMORY_COMPONENTS
from gpuscale.planning.placement import Placement, axis_name, place_ranks, units_text
from gpuscale.planning.planfile import layout_of
from gpuscale.ratios import TIME, in_words
from gpuscale.render.compared import SHOWN, compared_verdict, three_digits
from gpuscale.render.document import Cell, Chart, Part, Spell, Table, cell, table
from gpuscale.render.html.charts import Bar, Line, Mark, Points, colour, in_rows, points, scale, stacked, waterfall
from gpuscale.render.plan import SHOWN_PLANS
from gpuscale.render.plan_texts import component_text, degrees_text, evidence_text, layout_text, most_first, size_text
from gpuscale.render.plots import Axis
from gpuscale.render.schedule import schedule_parts
from gpuscale.render.traffic import traffic_parts
from gpuscale.request import PLACING, choice_text
from gpuscale.results import Comparison, Estimate, PlanResult, PlanRow
from gpuscale.search.objectives import OBJECTIVES
from gpuscale.specs.gpu import GpuSpec
from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.units import GIB, format_bytes, format_rate, format_seconds, plural

COLOUR_OF = dict(zip(steps.BOUNDS, (0, 1, 3, 8, 2, 9, 7), strict=True))

FLAME_PX = 38

OPERATORS = 24


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


def _step_chart(step: Node) -> Chart:
    every = list(paths(step))
    leaf = max((one for one in every if not one.node.children), key=lambda one: one.node.value)
    said = f"Of {len(every) - 1} parts, {leaf.text} takes most: {leaf.node.share:.1%} of {format_seconds(step.value)}."
    return _flames("The step as a tree", said, step, _tree_table(every))


def _flames(title: str, summary: str, step: Node, numbers: Table) -> Chart:
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
    legend = [(name, f"fill {colour(COLOUR_OF[name])}") for name in COLOUR_OF if name in used]
    return Chart(title, summary, drawing, numbers, legend)


def _tree_table(every: Sequence[Path]) -> Table:
    rows = [
        {
            "part": one.indented,
            "time": cell(node.value, format_seconds),
            "share": cell(node.share, "{:.1%}"),
            "FLOPs": cell(node.flops, "{:.3g}") if node.flops else "",
            "bytes": cell(node.bytes, format_bytes) if node.bytes else "",
            "achieved": (_rate(node), node.rate) if node.rate else "",
            "of its limit": (f"{node.rate / node.limit:.0%}", node.rate / node.limit)
            if node.rate and node.limit
            else "",
            "bound by": node.bound or "",
            "level": node.level or "",
            "hidden": cell(node.hidden_s, format_seconds) if node.hidden_s else "",
            "from": node.source or "",
        }
        for one in every
        for node in [one.node]
    ]
    return table(rows, caption="A step of one GPU on the slowest stage, part by part")


def _rate(node: Node) -> str:
    rate, of_bytes = node.rate or 0.0, node.bound in {"memory", "network"} and not node.children
    return f"{rate / 1e9:,.0f} GB/s" if of_bytes else f"{rate / 1e12:,.0f} TFLOP/s"


def _roofline_parts(step: Node, gpu: GpuSpec, precision: str) -> list[Part]:
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
    shown = rated[:OPERATORS]
    shares = [100 * (one.node.rate or 0.0) / (one.node.limit or 1.0) for one in shown]
    worst = min(range(len(shown)), key=shares.__getitem__)
    names = [_operator_name(one) for one in shown]
    said = f"Of the {len(shown)} longest, {names[worst]} is furthest from its limit: {shares[worst]:.0f} %."
    bars = [
        Bar(name, COLOUR_OF[name], [share if one.node.bound == name else 0.0 for one, share in zip(
            shown, shares, strict=True)])
        for name in COLOUR_OF
    ]  # fmt: skip
    axis = Axis("% of the datasheet's", "{:.0f}".format)
    return stacked("What operators reach of their limits", said, names, bars, axis, {"": 100.0})


def _operator_name(one: Path) -> str:
    name = " / ".join(one.names[-2:]) if one.names[-1] in GRADIENTS else one.names[-1]
    return f"{name}, {one.names[2]}" if len(one.names) > 3 else name


GRADIENTS = ("input gradient", "weight gradient")


def _memory_chart(
    title: str, summary: str, rows: Sequence[str], sizes: Sequence[Mapping[str, float]], limits: Mapping[str, float]
) -> Chart:
    """Draw memories [GiB] by component, each in the same colour on every chart, beside limits."""
    names = [name.replace("_", " ") for name in MEMORY_COMPONENTS]
    bars = [Bar(name, index, [one.get(name, 0.0) for one in sizes]) for index, name in enumerate(names)]
    return stacked(title, summary, rows, bars, Axis("GiB per GPU", "{:.1f}".format), limits)


def _stages_chart(trees: Sequence[Node], limit_gib: float) -> Chart:
    sizes = [{child.name: child.value / GIB for child in tree.children} for tree in trees]
    fullest = max(trees, key=lambda tree: tree.value)
    largest = max(fullest.children, key=lambda child: child.value)
    said = (
        f"The fullest is {fullest.name}: {fullest.value / GIB:.1f} of {limit_gib:.1f} GiB, of which "
        f"{largest.name} take {largest.value / GIB:.1f}."
    )
    limits = {f"limit {limit_gib:.1f} GiB": limit_gib}
    stages = [tree.name for tree in trees]
    rows = [
        {
            "part": one.indented,
            "GiB": (f"{one.node.value / GIB:.2f}", one.node.value),
            "share": cell(one.node.share, "{:.1%}"),
            "from": one.node.source or "",
        }
        for tree in trees
        for one in paths(tree)
    ]
    numbers = table(rows, caption="Memory of one GPU of each stage, part by part")
    return _memory_chart("Memory by pipeline stage", said, stages, sizes, limits)._replace(numbers=numbers)


SECONDS = Axis("seconds per step", format_seconds)
MOST_SLOTS = 60_000
"""Slots of a pipeline that a page simulates."""


def waterfall_parts(found: Estimate) -> list[Part]:
    """How the components of a step add up, as a chart."""
    return [_step_waterfall(found)]


def stage_parts(of: Callable[[], Subject]) -> list[Part]:
    """The memory of a plan by pipeline stage."""
    return [_stages_chart(memory_trees(of()), of().estimate.plan.memory_limit_gib)]


def sent_parts(of: Callable[[], Subject]) -> list[Part]:
    """What a plan sends."""
    return traffic_parts(traffic_of(of()))


def _step_waterfall(found: Estimate) -> Chart:
    plan = found.plan
    bars = [
        Bar(component_text(name), list(BOUNDS).index(COMPONENTS[name].limit), [value], idle=name == "bubble")
        for name, value in found.breakdown.items()
        if value
    ]
    largest = max(bars, key=lambda bar: bar.values[0])
    take = "take" if largest.name.endswith("s") else "takes"
    share = f"{largest.values[0] / plan.step_time_s:.0%} of {format_seconds(plan.step_time_s)}"
    said = f"{largest.name} {take} {share}. Only exposed communication is counted."
    return waterfall(f"Step time of {degrees_text(plan)} by component", said, bars, "step", SECONDS)


def step_parts(of: Callable[[], Subject]) -> list[Part]:
    """The step as a tree, and its operators under the roofline."""
    tree, spec = step_tree(of()), of().spec
    return [_step_chart(tree), *_roofline_parts(tree, spec.cluster.gpu, spec.precision)]


def pipeline_parts(of: Callable[[], Subject]) -> list[Part]:
    """The slots of the pipeline, if not too many."""
    plan = of().estimate.plan
    if plan.pp == 1:
        return []
    slots = 2 * plan.pp * plan.vpp * plan.num_microbatches
    if slots > MOST_SLOTS:
        return [f"{slots:,} slots are too many for a picture; `gpuscale schedule` draws the beginning."]
    return schedule_parts(schedule(of()))


def placement_parts(of: Callable[[], Subject]) -> list[Part]:
    """The cluster's levels, and what of them the groups of each axis span."""
    found = of().estimate
    plan = found.plan
    degrees = {name: getattr(plan, name) for name in ("tp", "pp", "cp", "ep", "etp", "dp")}
    where = {name: found.job[name] for name in PLACING if name in found.job}
    with suppress(InputError):  # nodes that are not alike have no common placement
        return _placed(place_ranks(found.gpus, degrees, **where))  # type: ignore[arg-type]
    return []


def _placed(placed: Placement) -> list[Part]:
    spans = list(placed.placed.spans.values())
    names = [axis_name(one.groups.axis) for one in spans]
    rows = []
    for index, level in enumerate(placed.cluster.levels):
        cells: list[Cell] = [level.name, level.fabric, cell(level.gpus)]
        cells.append(cell(level.egress_bytes_per_s, format_rate))
        for one in spans:
            own = one.levels[index]
            rate = f" at {format_rate(own.rate_bytes_per_s)} GB/s" if own.crossing else ""
            cells.append(f"{units_text(own)}{rate}")
        rows.append(cells)
    header = ("level", "fabric", "GPUs in it", "GB/s per GPU", *names)
    groups = Table(
        "Groups of ranks: how many, of how many GPUs, and the bottleneck of the worst placed one",
        ("axis", "groups", "GPUs in each", "busiest level", "GB/s"),
        [
            [
                name,
                cell(one.groups.count),
                cell(one.groups.size),
                one.worst.name,
                cell(one.worst.rate_bytes_per_s, format_rate),
            ]
            for name, one in zip(names, spans, strict=True)
        ],
    )
    said = "Instances of each level that a group has members in; the rate where its members talk across that level"
    return [placed.verdict, Table(said, header, rows), *([groups] if spans else [])]


DRAWN_PLANS = 8


def choice(result: PlanResult) -> list[Part]:
    """Plans as points: step time over memory."""
    plans = result.plans[:SHOWN_PLANS]
    if len(plans) < 2:
        return []
    front: list[PlanRow] = []
    rest: list[PlanRow] = []
    least = float("inf")
    for plan in sorted(plans, key=lambda one: (one.step_time_s, one.memory_gib)):
        better = plan.memory_gib < least
        (front if better else rest).append(plan)
        least = min(least, plan.memory_gib)
    groups = []
    for index, (name, some) in enumerate((("none is both faster and smaller", front), ("other plans", rest))):
        sizes, times = [one.memory_gib for one in some], [one.step_time_s for one in some]
        said, marks = [f"#{one.rank} {layout_text(one)}" for one in some], [f"#{one.rank}" for one in some]
        if some:
            groups.append(Points(name, index, sizes, times, said, joined=not index, ring=bool(index), marks=marks))
    first, last = (
        f"{one.memory_gib:.1f} GiB and {format_seconds(one.step_time_s)} (#{one.rank})" for one in (front[0], front[-1])
    )
    summary = (
        f"Of {len(plans)} plans {len(front)} are on the Pareto front of step time and memory, from {first} to {last}."
    )
    if len(front) == 1:
        summary = f"#{front[0].rank} is both the fastest and the smallest of these {len(plans)} plans."
    axes = Axis("GiB per GPU", "{:.1f}".format), Axis("seconds per step", three_digits)
    return [points("Step time over memory", summary, groups, *axes)]


def _bound_bars(breakdowns: Sequence[Estimate]) -> list[Bar]:
    kinds: dict[str, list[str]] = {}
    for name, component in COMPONENTS.items():
        kinds.setdefault(component.text if name in COMMUNICATION else BOUNDS[component.limit], []).append(name)
    return [
        Bar(kind, index, [math.fsum(one.breakdown[name] for name in names) for one in breakdowns], kind == "bubble")
        for index, (kind, names) in enumerate(kinds.items())
    ]


def step_times(result: PlanResult) -> list[Part]:
    """The step of the first plan, and those of the next beside it."""
    shown = result.estimates[:DRAWN_PLANS]
    parts: list[Part] = [_step_waterfall(result.estimates[0])]
    if len(shown) > 1:
        slowest, best = max(one.plan.step_time_s for one in shown), shown[0].plan.step_time_s
        said = f"The slowest of these {len(shown)} takes {in_words(slowest / best, TIME, 'the first')}."
        names = [f"#{plan.rank} {degrees_text(plan)}" for plan in result.plans[: len(shown)]]
        parts.append(stacked("The steps of the first plans", said, names, _bound_bars(shown), SECONDS))
    return parts


def memory_parts(result: PlanResult) -> list[Part]:
    """Memory of the first plans, by component, beside the limit."""
    shown = result.estimates[:DRAWN_PLANS]
    plan = shown[0].plan
    limits = {f"limit {one.plan.memory_limit_gib:.1f} GiB": one.plan.memory_limit_gib for one in shown}
    said = f"#1 needs {size_text(plan)} at its fullest stage ({plan.peak_stage})."
    names = [f"#{one.rank} {degrees_text(one)}" for one in result.plans[: len(shown)]]
    sizes = [{name.replace("_", " "): gib for name, gib in one.memory.items()} for one in shown]
    return [_memory_chart("Memory at the fullest stage", said, names, sizes, limits)]


def evidence_parts(result: PlanResult, spell: Spell = str) -> list[Part]:
    """What measured runs stand behind the step times."""
    best = result.estimates[0]
    rows = [
        ("evidence", evidence_text(best.plan)),
        *(("note", spell(note)) for note in dict.fromkeys((*best.notes, *result.notes))),
    ]
    plans = [
        {
            "plan": f"#{plan.rank} {degrees_text(plan)}",
            "predicted": cell(plan.step_time_s, format_seconds),
            "from": cell(plan.step_time_low_s, format_seconds),
            "to": cell(plan.step_time_high_s, format_seconds),
            "similar measured runs": cell(plan.similar_runs),
            "nearest measured run": plan.nearest_run_name,
            "never measured": " and ".join(plan.unmeasured) or "nothing",
        }
        for plan in result.plans[:DRAWN_PLANS]
    ]
    return [rows, table(plans, caption="Step times that 80 of 100 measurements of such plans would lie within")]


def search_parts(result: PlanResult) -> list[Part]:
    """How many layouts were looked at, and what left out how many."""
    found = result.search
    reasons = most_first(found.rejected)
    rows = [[code, cell(count)] for code, count in reasons]
    said = (
        f"{found.generated:,} layouts were looked at: {found.candidates:,} evaluated, {found.feasible:,} fit in "
        f"{plural(found.families, 'family')}."
    )
    return [said, *([Table("Layouts left out, by the rule that did", ("rule", "layouts"), rows)] if rows else [])]


def first_plan(result: PlanResult) -> Subject:
    """Return the first plan as what questions are asked about."""
    best = result.estimates[0]
    return read_subject(None, best.job, layout_of(best.plan))


def frontier(result: PlanResult, compared: Comparison) -> Chart:
    """The first two objectives of the frontier, a group of points for each job."""
    values = [{**plan.to_dict(), **own} for plan, own in zip(result.plans, compared.values, strict=True)]
    across, up = ((SHOWN[name][0], SHOWN[name][2], OBJECTIVES[name].key) for name in compared.objectives[:2])
    owners = list(dict.fromkeys(compared.of_plan))
    lettered = 1 < len(owners) <= len(string.ascii_lowercase)
    groups = []
    for number, owner in enumerate(owners):
        mine = [index for index, one in enumerate(compared.of_plan) if one == owner]
        name = choice_text(compared.variants[owner].choice) if len(owners) > 1 else "frontier"
        xs, ys = ([values[index][key] * factor for index in mine] for _, factor, key in (across, up))
        said = [f"#{result.plans[index].rank} {layout_text(result.plans[index])}" for index in mine]
        sign = string.ascii_lowercase[number] if lettered else "*"
        groups.append(Points(name, number, xs, ys, said, joined=len(owners) == 1, sign=sign))
    summary = compared_verdict(result, compared)
    axes = (Axis(across[0], three_digits), Axis(up[0], three_digits))
    return points(f"{up[0]} over {across[0]}", summary, groups, *axes)
