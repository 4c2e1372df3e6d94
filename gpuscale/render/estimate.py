"""One plan by itself: where its time and its memory go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuscale.planning.describe import bound_text
from gpuscale.ratios import share_text
from gpuscale.render.document import Document, Part, Section, Spell, Table, later, plain, table
from gpuscale.render.plan_texts import (
    FIT,
    assumption_rows,
    component_text,
    evidence_text,
    fine_tuning_lines,
    layout_text,
    pipeline_row,
    plan_tiles,
    remedy_rows,
    verdict,
)
from gpuscale.results import Estimate, PlanRow
from gpuscale.units import format_seconds, plural


def row_document(plan: PlanRow) -> Document:
    """Lay out one plan by itself: layout and numbers, and what measurements stand behind them."""
    size = f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"
    numbers = f"{format_seconds(plan.step_time_s)}/step, MFU {plan.mfu:.1%}, {size}"
    return plain(
        f"Plan {plan.rank}", f"#{plan.rank} {layout_text(plan)}: {numbers}", [("evidence", evidence_text(plan))]
    )


def estimate_document(
    result: Estimate, *, verbose: bool = False, spell: Spell = str, more: Iterable[Part] = ()
) -> Document:
    """Lay out the breakdown of step time and of memory, evidence (if `verbose`, all assumptions), what was asked for,
    and `more`."""
    plan = result.plan
    asked = fine_tuning_lines(plan, result.job)
    lost = {"exposed comm": plan.exposed_comm_fraction, "bubble": plan.bubble_fraction}
    beside = ", ".join(f"{name} {share_text(part)}" for name, part in lost.items() if part)
    size = f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}"
    fits = "; ".join(filter(None, (size, f"bound by {bound_text(plan)}", beside)))
    fits = fits if asked else f"{FIT[plan.fit]}: {fits}"
    schedule = "" if plan.schedule == "none" else f", {plan.schedule}"
    stages = ", ".join(f"{gib:.1f}" for gib in result.stage_memory_gib)
    counted = plural(plan.num_microbatches, "microbatch")
    rows = [("layout", f"{layout_text(plan)}; {counted} per step and DP rank{schedule}")]
    if plan.pp > 1:
        rows.append(("stages", f"{stages} GiB at the first, heaviest middle and last stage"))
    if result.total_dp_comm_s:
        rows.append(("DP comm", f"{format_seconds(result.total_dp_comm_s)} per step before overlap"))
    peak = (f"peak, stage {plan.peak_stage}", plan.memory_gib)
    return Document(
        f"{layout_text(plan)}: {result.model} on {plural(result.gpus, 'GPU')}",
        lambda width: "\n".join([
            *asked, verdict(result.model, result.gpus, result.cluster, plan, width), fits,
        ]),
        plan_tiles(result),
        [
            Section("Step time", [
                later("subject.waterfall_parts", result),
                _breakdown_table("time per step", result.breakdown, ("step", plan.step_time_s), "exposed",
                                 format_seconds),
            ]),
            Section("Memory", [
                _breakdown_table("memory per GPU", result.memory, peak, "GiB", "{:.2f}".format),
                remedy_rows(result.remedies, spell),
            ]),
            Section("Assumptions", [
                rows + pipeline_row(plan) + assumption_rows(result, spell, verbose=verbose), *more,
            ]),
        ],
    )  # fmt: skip


def _breakdown_table(
    header: str, parts: Mapping[str, float], total: tuple[str, float], unit: str, text: Callable[[float], str]
) -> Table:
    """One row per component with its share of the total, which stands last; `-` where there is nothing."""
    name, whole = total
    rows = [
        {
            header: component_text(part),
            unit: text(value) if value else "-",
            "share": share_text(value / whole) if value else "-",
        }
        for part, value in parts.items()
    ]
    return table([*rows, {header: name, unit: text(whole), "share": "100.0%"}])
