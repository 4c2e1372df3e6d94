"""What a page of plans shows beside them: which to choose, and all that there is to say of the first."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from gpuscale.launch.subject import Subject, read_subject
from gpuscale.planning.planfile import layout_of
from gpuscale.ratios import TIME, in_words
from gpuscale.render.compared import SHOWN, compared_verdict, three_digits
from gpuscale.render.document import Cell, Chart, Part, Spell, Table, table
from gpuscale.render.html.charts import Bar, Points, points, stacked
from gpuscale.render.plan import SHOWN_PLANS
from gpuscale.render.plan_texts import degrees_text, evidence_text, layout_text
from gpuscale.render.plots import Axis
from gpuscale.render.subject import SECONDS, step_waterfall
from gpuscale.render.trees import memory_chart
from gpuscale.request import choice_text
from gpuscale.results import Comparison, Estimate, PlanResult, PlanRow
from gpuscale.search.objectives import OBJECTIVES
from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.units import format_seconds, plural

DRAWN_PLANS = 8
"""Plans in charts that compare their parts."""


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


def bound_bars(breakdowns: Sequence[Estimate]) -> list[Bar]:
    """Step times by kind of work, communication by axis, in plans side by side."""
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
    parts: list[Part] = [step_waterfall(result.estimates[0])]
    if len(shown) > 1:
        slowest, best = max(one.plan.step_time_s for one in shown), shown[0].plan.step_time_s
        said = f"The slowest of these {len(shown)} takes {in_words(slowest / best, TIME, 'the first')}."
        names = [f"#{plan.rank} {degrees_text(plan)}" for plan in result.plans[: len(shown)]]
        parts.append(stacked("The steps of the first plans", said, names, bound_bars(shown), SECONDS))
    return parts


def memory_parts(result: PlanResult) -> list[Part]:
    """Memory of the first plans, by component, beside the limit."""
    shown = result.estimates[:DRAWN_PLANS]
    plan = shown[0].plan
    limits = {f"limit {one.plan.memory_limit_gib:.1f} GiB": one.plan.memory_limit_gib for one in shown}
    size = f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"
    said = f"#1 needs {size} at its fullest stage ({plan.peak_stage})."
    names = [f"#{one.rank} {degrees_text(one)}" for one in result.plans[: len(shown)]]
    sizes = [{name.replace("_", " "): gib for name, gib in one.memory.items()} for one in shown]
    return [memory_chart("Memory at the fullest stage", said, names, sizes, limits)]


def evidence_parts(result: PlanResult, spell: Spell = str) -> list[Part]:
    """What measured runs stand behind the step times, and the intervals around them."""
    best = result.estimates[0]
    rows = [
        ("evidence", evidence_text(best.plan)),
        *(("note", spell(note)) for note in dict.fromkeys((*best.notes, *result.notes))),
    ]
    plans: list[dict[str, Cell]] = [
        {
            "plan": f"#{plan.rank} {degrees_text(plan)}",
            "predicted": (format_seconds(plan.step_time_s), plan.step_time_s),
            "from": (format_seconds(plan.step_time_low_s), plan.step_time_low_s),
            "to": (format_seconds(plan.step_time_high_s), plan.step_time_high_s),
            "similar measured runs": (f"{plan.similar_runs:,}", plan.similar_runs),
            "nearest measured run": plan.nearest_run_name,
            "never measured": " and ".join(plan.unmeasured) or "nothing",
        }
        for plan in result.plans[:DRAWN_PLANS]
    ]
    return [rows, table(plans, caption="Step times that 80 of 100 measurements of such plans would lie within")]


def search_parts(result: PlanResult) -> list[Part]:
    """How many layouts were looked at, and which rules left out how many."""
    found = result.search
    reasons = sorted(found.rejected.items(), key=lambda item: (-item[1], item[0]))
    rows: list[list[Cell]] = [[code, (f"{count:,}", count)] for code, count in reasons]
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
