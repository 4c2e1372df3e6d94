"""Drawing of `gpuscale estimate`."""

from __future__ import annotations

from gpuscale.render.console import console, print_json, table
from gpuscale.render.plan import COMPONENT_TEXT, verdict
from gpuscale.results import Estimate
from gpuscale.units import format_seconds


def print_estimate(result: Estimate) -> None:
    """Print verdict, step-time breakdown, memory breakdown and assumptions."""
    out = console()
    plan = result.plan
    out.print(verdict(result.model, result.gpus, plan))
    fit = "fits" if plan.fits else "DOES NOT FIT"
    out.print(
        f"{fit}: {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}; "
        f"bound by {plan.bound_by}; exposed communication {plan.exposed_comm_fraction:.1%}, "
        f"bubble {plan.bubble_fraction:.1%}; {plan.num_microbatches} microbatches"
    )
    out.print()
    rows = [
        [COMPONENT_TEXT[name], format_seconds(seconds) if seconds else "-", f"{seconds / plan.step_time_s:.1%}"]
        for name, seconds in result.breakdown.items()
    ]
    rows.append(["step", format_seconds(plan.step_time_s), "100.0%"])
    out.print(table(["time per step", "exposed", "share"], rows))
    out.print()
    sizes = [
        [name.replace("_", " "), f"{gib:.2f}" if gib else "-", f"{gib / plan.memory_gib:.1%}"]
        for name, gib in result.memory.items()
    ]
    sizes.append([f"peak, stage {plan.peak_stage}", f"{plan.memory_gib:.2f}", "100.0%"])
    out.print(table(["memory per GPU", "GiB", "share"], sizes))
    out.print()
    stages = ", ".join(f"{gib:.1f}" for gib in result.stage_memory_gib)
    out.print(f"  first, heaviest middle and last stage: {stages} GiB")
    out.print(f"  data-parallel communication before overlap: {format_seconds(result.total_dp_comm_s)}")
    for name, text in result.assumptions.items():
        out.print(f"  {name.replace('_', ' ')}: {text}")
    for note in result.notes:
        out.print(f"  note: {note}")
    out.print(f"  {plan.flop_convention}")


def print_estimate_json(result: Estimate) -> None:
    """Print the result as `gpuscale.estimate/1`."""
    print_json("gpuscale.estimate/1", result.to_dict())
