"""Drawing of `gpuscale estimate`."""

from __future__ import annotations

from gpuscale.render.plain import aligned, output_width, print_json, write
from gpuscale.render.plan import assumption_rows, component_text, facts, layout_text, verdict
from gpuscale.results import Estimate, PlanRow
from gpuscale.units import format_seconds


def print_estimate(result: Estimate) -> None:
    """Print verdict, step-time breakdown, memory breakdown and assumptions."""
    plan, width = result.plan, output_width()
    write(verdict(result.model, result.gpus, plan, width))
    fit = "fits" if plan.fits else "DOES NOT FIT"
    write(
        f"{fit}: {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}; "
        f"bound by {plan.bound_by}; exposed comm {plan.exposed_comm_fraction:.1%}, bubble {plan.bubble_fraction:.1%}\n"
    )
    write(_time_table(result) + "\n")
    write(_memory_table(result) + "\n")
    stages = ", ".join(f"{gib:.1f}" for gib in result.stage_memory_gib)
    rows = [
        ("layout", _layout(plan)),
        ("stages", f"{stages} GiB at the first, heaviest middle and last stage"),
        ("DP comm", f"{format_seconds(result.total_dp_comm_s)} per step before overlap"),
    ]
    rows += assumption_rows(result.assumptions, result.notes, plan)
    write(facts(rows, width))


def _layout(plan: PlanRow) -> str:
    schedule = "" if plan.schedule == "none" else f", {plan.schedule}"
    return f"{layout_text(plan)}; {plan.num_microbatches:,} microbatches per step and DP rank{schedule}"


def _time_table(result: Estimate) -> str:
    total = result.plan.step_time_s
    rows = [
        [component_text(name), format_seconds(seconds) if seconds else "-", _share(seconds / total)]
        for name, seconds in result.breakdown.items()
    ]
    return aligned(["time per step", "exposed", "share"], [*rows, ["step", format_seconds(total), "100.0%"]])


def _memory_table(result: Estimate) -> str:
    plan = result.plan
    rows = [
        [name.replace("_", " "), f"{gib:.2f}" if gib else "-", _share(gib / plan.memory_gib)]
        for name, gib in result.memory.items()
    ]
    peak = [f"peak, stage {plan.peak_stage}", f"{plan.memory_gib:.2f}", "100.0%"]
    return aligned(["memory per GPU", "GiB", "share"], [*rows, peak])


def _share(fraction: float) -> str:
    """A share in percent; `-` where there is nothing, `<0.1%` where there is little."""
    if not fraction:
        return "-"
    return "<0.1%" if fraction < 0.0005 else f"{fraction:.1%}"


def print_estimate_json(result: Estimate) -> None:
    """Print the result as `gpuscale.estimate/1`."""
    print_json("gpuscale.estimate/1", result.to_dict())
