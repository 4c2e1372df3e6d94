"""What a page shows of one plan: tiles, the step and the memory as charts and trees, pipeline, traffic, placement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from gpuscale.errors import InputError
from gpuscale.explain.memories import memory_trees
from gpuscale.explain.schedule import schedule
from gpuscale.explain.steps import step_tree
from gpuscale.explain.traffic import traffic_of
from gpuscale.launch.subject import Subject
from gpuscale.planning.placement import Placement, axis_name, place_ranks, units_text
from gpuscale.render.document import Cell, Chart, Part, Table
from gpuscale.render.html.charts import Bar, waterfall
from gpuscale.render.plan_texts import component_text, degrees_text
from gpuscale.render.plots import Axis
from gpuscale.render.schedule import schedule_parts
from gpuscale.render.traffic import traffic_parts
from gpuscale.render.trees import roofline_parts, stages_chart, step_chart
from gpuscale.request import PLACING
from gpuscale.results import Estimate
from gpuscale.steptime.components import BOUNDS, COMPONENTS
from gpuscale.units import format_rate, format_seconds

SECONDS = Axis("seconds per step", format_seconds)
MOST_SLOTS = 60_000
"""Slots of a pipeline that a page simulates."""


def waterfall_parts(found: Estimate) -> list[Part]:
    """How the components of a step add up, as a chart."""
    return [step_waterfall(found)]


def memory_parts(of: Callable[[], Subject]) -> list[Part]:
    """The memory of a plan by pipeline stage."""
    return [stages_chart(memory_trees(of()), of().estimate.plan.memory_limit_gib)]


def sent_parts(of: Callable[[], Subject]) -> list[Part]:
    """What a plan sends."""
    return traffic_parts(traffic_of(of()))


def step_waterfall(found: Estimate) -> Chart:
    """How the components of a step add up."""
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
    return [step_chart(tree), *roofline_parts(tree, spec.cluster.gpu, spec.precision)]


def pipeline_parts(of: Callable[[], Subject]) -> list[Part]:
    """The slots of the pipeline, where there is one and it is not too long to draw."""
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
    """A table of levels by axes: how many units of a level a group spans, and at what rate."""
    spans = list(placed.placed.spans.values())
    names = [axis_name(one.groups.axis) for one in spans]
    rows: list[list[Cell]] = []
    for index, level in enumerate(placed.cluster.levels):
        cells: list[Cell] = [level.name, level.fabric, (f"{level.gpus:,}", level.gpus)]
        cells.append((format_rate(level.egress_bytes_per_s), level.egress_bytes_per_s))
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
                (f"{one.groups.count:,}", one.groups.count),
                (f"{one.groups.size:,}", one.groups.size),
                one.worst.name,
                (format_rate(one.worst.rate_bytes_per_s), one.worst.rate_bytes_per_s),
            ]
            for name, one in zip(names, spans, strict=True)
        ],
    )
    said = "Instances of each level that a group has members in; the rate where its members talk across that level"
    return [placed.verdict, Table(said, header, rows), *([groups] if spans else [])]
