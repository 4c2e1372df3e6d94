"""The page of `plan`: its plans, why they stand as they do, and what each rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuscale.launch.subject import Subject, read_subject
from gpuscale.planning.describe import bound_text
from gpuscale.planning.planfile import layout_of
from gpuscale.ratios import TIME, in_words, signed
from gpuscale.render.compared import SHOWN, compared_verdict, jobs_rows, own_cells, three_digits, worth_parts
from gpuscale.render.html.charts import Axis, Bar, Points, points, stacked
from gpuscale.render.html.page import Cell, Chart, Page, Part, Section, Table, sortable
from gpuscale.render.html.subjects import (
    LONG,
    SECONDS,
    Spell,
    assumption_parts,
    plan_sections,
    plan_tiles,
    step_parts,
    step_waterfall,
)
from gpuscale.render.html.trees import memory_chart
from gpuscale.render.plan import (
    TIE_MARK,
    TIE_TEXT,
    degrees_text,
    evidence_text,
    layout_text,
    rank_texts,
    verdict,
    where_it_goes,
    why_blocks,
    why_first,
)
from gpuscale.request import choice_text
from gpuscale.results import Comparison, Estimate, PlanResult, PlanRow
from gpuscale.search.objectives import OBJECTIVES
from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.units import format_count, format_seconds, plural

SHOWN_PLANS, DRAWN_PLANS = 300, 8
"""Plans in the table, and in charts that compare their parts."""

COLUMNS = (
    "ZeRO", "micro batch", "step time", "MFU", "GiB", "tokens/s", "TFLOP/s per GPU", "exposed comm", "bubble",
    "bound by", "recompute",
)  # fmt: skip
"""Columns of the table of plans after the degrees."""


def plan_page(result: PlanResult, spell: Spell = str) -> Page:
    """Lay out what `plan` found.

    Args:
        spell: from options in backticks, such as `grad_dtype=bf16`, to how they are given.
    """
    best, compared = result.estimates[0], result.compared
    several = compared is not None and (len(compared.variants) > 1 or compared.frontier_size > 0)
    first = verdict(result.model, result.gpus, best.plan, LONG)
    subject = read_subject(None, best.job, layout_of(best.plan))
    said = compared_verdict(result, compared) if compared and several else first
    return Page(
        f"{result.model} on {plural(result.gpus, 'GPU')} of {result.cluster}",
        said,
        plan_tiles(best),
        [
            Section("Plans", _plans(result, first if several else "", several)),
            Section("Choice", _choice(result, compared)),
            Section("Step time", _step_parts(result, subject)),
            *plan_sections(subject, memory_parts(result)),
            Section("Other conditions", _robust(result)),
            Section("The layout asked about", _why(result, spell)),
            Section("Evidence", evidence_parts(result)),
            Section("Assumptions", [assumption_parts(best, spell)]),
            Section("Search", _search(result)),
        ],
    )


def plan_table(result: PlanResult) -> Table:
    """The ranked plans, to sort by any column."""
    plans, compared = result.plans[:SHOWN_PLANS], result.compared
    own = [own_cells(compared, index) if compared else {} for index in range(len(plans))]
    first = list(dict.fromkeys(name for cells in own for name in cells))
    used = [name for name in ("vpp", "cp", "ep", "etp") if any(getattr(plan, name) > 1 for plan in plans)]
    ranks = rank_texts(result)
    rows = [
        [(ranks[index], plan.rank), *(sortable(own[index].get(name, "-")) for name in first), *_cells(plan, used)]
        for index, plan in enumerate(plans)
    ]
    header = ("rank", *first, *(name.upper() for name in ("tp", "pp", *used, "dp")), *COLUMNS)
    more = f", the first {len(plans):,} of {len(result.plans):,}" if len(plans) < len(result.plans) else ""
    caption = f"{plural(len(plans), 'plan')} by rank{more}; a column's header sorts by it"
    return Table(caption, header, rows, sortable=True)


def _cells(plan: PlanRow, used: Sequence[str]) -> list[Cell]:
    """Cells of a plan that every table has."""
    return [
        (f"{plan.tp}{'+SP' if plan.sp else ''}", plan.tp),
        *((str(value), float(value)) for value in (plan.pp, *(getattr(plan, name) for name in used), plan.dp)),
        (f"3 within {plan.shard_size}" if plan.sharding == "hsdp" else str(plan.zero), plan.zero),
        (str(plan.micro_batch_size), plan.micro_batch_size),
        (format_seconds(plan.step_time_s), plan.step_time_s),
        (f"{plan.mfu:.1%}", plan.mfu),
        (f"{plan.memory_gib:.1f}", plan.memory_gib),
        (format_count(plan.tokens_per_s), plan.tokens_per_s),
        (f"{plan.tflops_per_gpu:.0f}", plan.tflops_per_gpu),
        (f"{plan.exposed_comm_fraction:.1%}", plan.exposed_comm_fraction),
        (f"{plan.bubble_fraction:.1%}", plan.bubble_fraction),
        bound_text(plan),
        plan.recompute.replace(":", ": ").replace("+", " + "),
    ]


def _plans(result: PlanResult, first: str, several: bool) -> list[Part]:
    best = result.estimates[0]
    lines = [f"#1: {first}"] if first else []
    if result.compared:
        lines += [", ".join(worth_parts(result, result.compared))]
    lines += [*where_it_goes(best, LONG), *(() if result.why else why_first(result, several, LONG))]
    ties = [f"{TIE_TEXT}."] if TIE_MARK in "".join(rank_texts(result)) else []
    return [*lines, plan_table(result), *ties]


def _choice(result: PlanResult, compared: Comparison | None) -> list[Part]:
    """Plans as points: the frontier that was asked for, or step time over memory."""
    if len(result.plans) < 2:
        return []
    if compared and compared.frontier_size > 1:
        return [_frontier(result, compared), *([jobs_rows(compared)] if compared else [])]
    plans = result.plans[:SHOWN_PLANS]
    front: list[PlanRow] = []
    rest: list[PlanRow] = []
    least = float("inf")
    for plan in sorted(plans, key=lambda one: (one.step_time_s, one.memory_gib)):
        better = plan.memory_gib < least
        (front if better else rest).append(plan)
        least = min(least, plan.memory_gib)
    groups = [
        Points(
            name,
            index,
            [one.memory_gib for one in some],
            [one.step_time_s for one in some],
            [f"#{one.rank} {layout_text(one)}" for one in some],
            joined=not index,
            ring=bool(index),
            marks=[f"#{one.rank}" for one in some],
        )
        for index, (name, some) in enumerate((("none is both faster and smaller", front), ("other plans", rest)))
        if some
    ]
    ends = f"from {front[0].memory_gib:.1f} GiB and {format_seconds(front[0].step_time_s)} (#{front[0].rank})"
    ends += f" to {front[-1].memory_gib:.1f} GiB and {format_seconds(front[-1].step_time_s)} (#{front[-1].rank})"
    said = f"Of {len(plans)} plans {len(front)} are on the Pareto front of step time and memory, {ends}."
    if len(front) == 1:
        said = f"#{front[0].rank} is both the fastest and the smallest of these {len(plans)} plans."
    chart = points(
        "Step time over memory",
        said,
        groups,
        Axis("GiB per GPU", "{:.1f}".format),
        Axis("seconds per step", three_digits),
    )
    return [chart, *([jobs_rows(compared)] if compared else [])]


def _frontier(result: PlanResult, compared: Comparison) -> Chart:
    """The first two objectives of the frontier, a group of points for each job."""
    values = [{**plan.to_dict(), **own} for plan, own in zip(result.plans, compared.values, strict=True)]
    across, up = ((SHOWN[name][0], SHOWN[name][2], OBJECTIVES[name].key) for name in compared.objectives[:2])
    owners = list(dict.fromkeys(compared.of_plan))
    groups = []
    for number, owner in enumerate(owners):
        mine = [index for index, one in enumerate(compared.of_plan) if one == owner]
        name = choice_text(compared.variants[owner].choice) if len(owners) > 1 else "frontier"
        xs, ys = ([values[index][key] * factor for index in mine] for _, factor, key in (across, up))
        said = [f"#{result.plans[index].rank} {layout_text(result.plans[index])}" for index in mine]
        groups.append(Points(name, number, xs, ys, said, joined=len(owners) == 1))
    summary = compared_verdict(result, compared)
    axes = (Axis(across[0], three_digits), Axis(up[0], three_digits))
    return points(f"{up[0]} over {across[0]}", summary, groups, *axes)


def bound_bars(breakdowns: Sequence[Estimate]) -> list[Bar]:
    """Step times by kind of work, communication by axis, in plans side by side."""
    kinds: dict[str, list[str]] = {}
    for name, component in COMPONENTS.items():
        kinds.setdefault(component.text if name in COMMUNICATION else BOUNDS[component.limit], []).append(name)
    return [
        Bar(kind, index, [math.fsum(one.breakdown[name] for name in names) for one in breakdowns], kind == "bubble")
        for index, (kind, names) in enumerate(kinds.items())
    ]


def _step_parts(result: PlanResult, subject: Subject) -> list[Part]:
    """The step of the first plan, and those of the next beside it."""
    shown = result.estimates[:DRAWN_PLANS]
    parts: list[Part] = [step_waterfall(result.estimates[0])]
    if len(shown) > 1:
        slowest, best = max(one.plan.step_time_s for one in shown), shown[0].plan.step_time_s
        said = f"The slowest of these {len(shown)} takes {in_words(slowest / best, TIME, 'the first')}."
        names = [f"#{plan.rank} {degrees_text(plan)}" for plan in result.plans[: len(shown)]]
        parts.append(stacked("The steps of the first plans", said, names, bound_bars(shown), SECONDS))
    return [*parts, *step_parts(subject)]


def memory_parts(result: PlanResult) -> list[Part]:
    """Memory of the first plans, by component, beside the limit; and how full the stages of the first are."""
    shown = result.estimates[:DRAWN_PLANS]
    plan = shown[0].plan
    limits = {f"limit {one.plan.memory_limit_gib:.1f} GiB": one.plan.memory_limit_gib for one in shown}
    said = (
        f"#1 needs {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at its fullest stage ({plan.peak_stage})."
    )
    names = [f"#{one.rank} {degrees_text(one)}" for one in result.plans[: len(shown)]]
    sizes = [{name.replace("_", " "): gib for name, gib in one.memory.items()} for one in shown]
    return [memory_chart("Memory at the fullest stage", said, names, sizes, limits)]


def evidence_parts(result: PlanResult) -> list[Part]:
    """What measured runs stand behind the step times, and the intervals around them."""
    best = result.estimates[0]
    rows = [("evidence", evidence_text(best.plan)), *(("note", note) for note in best.notes)]
    shown = result.plans[:DRAWN_PLANS]
    table = Table(
        "Step times that 80 of 100 measurements of such plans would lie within",
        ("plan", "predicted", "from", "to", "similar measured runs", "nearest measured run", "never measured"),
        [
            [
                f"#{plan.rank} {degrees_text(plan)}",
                (format_seconds(plan.step_time_s), plan.step_time_s),
                (format_seconds(plan.step_time_low_s), plan.step_time_low_s),
                (format_seconds(plan.step_time_high_s), plan.step_time_high_s),
                (f"{plan.similar_runs:,}", plan.similar_runs),
                plan.nearest_run,
                " and ".join(plan.unmeasured) or "nothing",
            ]
            for plan in shown
        ],
    )
    return [rows, table]


def _robust(result: PlanResult) -> list[Part]:
    answer = result.robust
    if answer is None:
        return []
    rows: list[list[Cell]] = [
        [
            (rank, plan.rank),
            *((format_seconds(value), value) for value in (plan.p10_s, plan.median_s, plan.p90_s)),
            (f"{plan.fits:.0%}", plan.fits),
            *((signed(plan.losses[one.name], same="-"), plan.losses[one.name]) for one in answer.conditions),
        ]
        for rank, plan in zip(rank_texts(result), answer.plans, strict=True)
    ]
    conditions = [one.name.replace("_", " ") for one in answer.conditions]
    header = ("rank", "p10", "median", "p90", "fits", *conditions)
    caption = f"Step times in {answer.samples} cases, and what one condition alone costs at its worst decile"
    meanings = [(name, f"{one.meaning} x {one.worst:.2f} ({one.source})") for name, one in zip(
        conditions, answer.conditions, strict=True)]  # fmt: skip
    return [Table(caption, header, rows, sortable=True), meanings]


def _why(result: PlanResult, spell: Spell) -> list[Part]:
    if result.why is None:
        return []
    head, rows = why_blocks(result.why, result, LONG, spell)
    return [head, *([rows] if rows else [])]


def _search(result: PlanResult) -> list[Part]:
    found = result.search
    reasons = sorted(found.rejected.items(), key=lambda item: (-item[1], item[0]))
    rows: list[list[Cell]] = [[code, (f"{count:,}", count)] for code, count in reasons]
    said = (
        f"{found.generated:,} layouts were looked at: {found.candidates:,} evaluated, {found.feasible:,} fit in "
        f"{plural(found.families, 'family')}."
    )
    return [said, *([Table("Layouts left out, by the rule that did", ("rule", "layouts"), rows)] if rows else [])]
