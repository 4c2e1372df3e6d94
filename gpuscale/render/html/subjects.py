"""Sections of a page on one plan, and the page of `explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from gpuscale.errors import InputError
from gpuscale.explain.explanation import Explanation, explain_subject
from gpuscale.explain.memories import memory_trees
from gpuscale.explain.schedule import schedule
from gpuscale.explain.steps import step_tree
from gpuscale.explain.traffic import traffic_of
from gpuscale.launch.subject import Subject
from gpuscale.planning.describe import bound_text
from gpuscale.planning.layouts import layout_text
from gpuscale.planning.placement import Placement, axis_name, place_ranks, units_text
from gpuscale.ratios import signed
from gpuscale.render.html.charts import Axis, Bar, waterfall
from gpuscale.render.html.page import Cell, Chart, Page, Part, Section, Table
from gpuscale.render.html.schedules import schedule_parts
from gpuscale.render.html.travels import traffic_parts
from gpuscale.render.html.trees import memory_tree_parts, roofline_parts, step_tree_parts
from gpuscale.render.plan import FIT, assumption_rows, component_text, degrees_text, evidence_text, verdict
from gpuscale.request import PLACING
from gpuscale.results import Estimate
from gpuscale.steptime.components import BOUNDS, COMPONENTS
from gpuscale.units import format_count, format_rate, format_seconds, plural

LONG = 10_000
"""Columns of a line that may be as long as it is."""

SECONDS = Axis("seconds per step", format_seconds)
MOST_SLOTS = 60_000
"""Slots of a pipeline that a page simulates."""

Spell = Callable[[str], str]


def explain_page(subject: Subject, said: Explanation | None = None, spell: Spell = str) -> Page:
    """Lay out what there is to say of one plan.

    Args:
        said: its explanation, where it is at hand.
        spell: from options in backticks, such as `grad_dtype=bf16`, to how they are given.
    """
    found = subject.estimate
    said = said or explain_subject(subject)
    return Page(
        f"{layout_text(subject.rows.row(0))}: {found.model} on {plural(found.gpus, 'GPU')}",
        verdict(found.model, found.gpus, found.plan, LONG),
        plan_tiles(found),
        [
            Section("Why", list(said.sentences)),
            Section("Changes", _changes(said)),
            Section("Step time", [step_waterfall(found), *step_parts(subject)]),
            *plan_sections(subject),
            Section("Evidence", [[("evidence", evidence_text(found.plan)), *(("note", note) for note in found.notes)]]),
            Section("Assumptions", [assumption_parts(found, spell)]),
        ],
    )


def plan_sections(subject: Subject, of_memory: Sequence[Part] = ()) -> list[Section]:
    """What a page shows of the memory, the pipeline, the traffic and the placement of one plan.

    Args:
        of_memory: what else it shows of the memory.
    """
    plan = subject.estimate.plan
    memory = memory_tree_parts(memory_trees(subject), plan.memory_limit_gib)
    return [
        Section("Memory", [*of_memory, *memory]),
        Section("Pipeline", pipeline_parts(subject)),
        Section("Traffic", traffic_parts(traffic_of(subject))),
        Section("Placement", placement_parts(subject.estimate)),
    ]


def plan_tiles(found: Estimate) -> list[tuple[str, str, str]]:
    """The numbers of a plan that matter most."""
    plan = found.plan
    low, high = format_seconds(plan.step_time_low_s), format_seconds(plan.step_time_high_s)
    return [
        ("Step time", format_seconds(plan.step_time_s), f"80 % within {low} to {high}"),
        ("MFU", f"{plan.mfu:.1%}", f"{plan.tflops_per_gpu:.0f} TFLOP/s per GPU"),
        ("Throughput", f"{format_count(plan.tokens_per_s)} tokens/s", f"{plan.tokens_per_s_per_gpu:,.0f} per GPU"),
        ("Memory", f"{plan.memory_gib:.1f} GiB", f"of {plan.memory_limit_gib:.1f} GiB: {FIT[plan.fit]}"),
        ("Exposed communication", f"{plan.exposed_comm_fraction:.1%}", "of the step"),
        ("Bubble", f"{plan.bubble_fraction:.1%}", f"of the step; bound by {bound_text(plan)}"),
    ]


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
    said = f"{largest.name} {take} {share}. Of communication only what nothing hides is counted."
    return waterfall(f"Where the step of {degrees_text(plan)} goes", said, bars, "step", SECONDS)


def step_parts(subject: Subject) -> list[Part]:
    """The step as a tree, and its operators under the roofline."""
    tree = step_tree(subject)
    return [*step_tree_parts(tree), *roofline_parts(tree, subject.spec.cluster.gpu, subject.spec.precision)]


def pipeline_parts(subject: Subject) -> list[Part]:
    """The slots of the pipeline, where there is one and it is not too long to draw."""
    plan = subject.estimate.plan
    if plan.pp == 1:
        return []
    slots = 2 * plan.pp * plan.vpp * plan.num_microbatches
    if slots > MOST_SLOTS:
        return [f"{slots:,} slots are too many for a picture; `gpuscale schedule` draws the beginning."]
    return schedule_parts(schedule(subject))


def assumption_parts(found: Estimate, spell: Spell) -> list[tuple[str, str]]:
    """Every assumption; evidence and notes stand elsewhere."""
    return assumption_rows(found, spell, verbose=True)[1 + len(found.notes) :]


def _changes(said: Explanation) -> list[Part]:
    """What would make the step shorter, what would not, where something else would bind, what would flip the choice."""
    tables = [
        Table(
            "The most profitable changes, each evaluated again",
            ("change", "step time", "gain", "GiB", "fit", "to see to"),
            [
                [
                    one.change,
                    (format_seconds(one.step_time_s), one.step_time_s),
                    (signed(one.gain), one.gain),
                    (f"{one.memory_gib:.1f}", one.memory_gib),
                    FIT[one.fit],
                    one.caution,
                ]
                for one in said.suggestions
            ],
        ),
        Table("Changes that are not worth it", ("change", "why not"), [[one.change, one.why] for one in said.rejected]),
        Table(
            "Thresholds: where something else would bind",
            ("quantity", "now", "needed", "holds", "meaning"),
            [
                [
                    one.name,
                    (_number(one.now), one.now),
                    (f"{'at most' if one.at_most else 'at least'} {_number(one.needed)}", one.needed),
                    "yes" if one.holds else "no",
                    one.meaning,
                ]
                for one in said.thresholds
            ],
        ),
        Table(
            "Single numbers that would make another plan the choice",
            ("quantity", "value", "factor", "then"),
            [[one.quantity, one.value, (f"{one.factor:.3g}", one.factor), one.plan] for one in said.flips],
        ),
    ]
    return [table for table in tables if table.rows]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def placement_parts(found: Estimate) -> list[Part]:
    """The cluster's levels, and what of them the groups of each axis span."""
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
        "Groups of ranks: how many, of how many GPUs, and where the worst placed one meets its bottleneck",
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
