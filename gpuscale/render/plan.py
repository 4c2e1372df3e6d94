"""Drawing of `gpuscale plan`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping

from rich.table import Table

from gpuscale.render.console import console, print_json, table
from gpuscale.results import Estimate, PlanResult, PlanRow, WhyAnswer
from gpuscale.units import format_count, format_seconds

SHORT_MODULES = {"layernorm": "norm", "core_attn": "attn", "mla_up_proj": "mla", "moe_act": "act"}
COMPONENT_TEXT = {
    "gemm": "GEMMs",
    "attention": "attention",
    "recompute": "recomputation",
    "elementwise": "element-wise and norms",
    "optimizer": "optimizer step",
    "launch": "kernel launches",
    "tp_comm": "TP communication",
    "cp_comm": "CP communication",
    "ep_comm": "EP communication",
    "pp_comm": "PP communication",
    "dp_comm": "DP communication",
    "bubble": "pipeline bubble",
}


def layout_text(plan: PlanRow) -> str:
    """One layout in a line: `TP8+SP PP4 DP20 ZeRO-1 mb1`."""
    parts = [f"TP{plan.tp}{'+SP' if plan.sp else ''}", f"PP{plan.pp}"]
    parts += [f"{name.upper()}{getattr(plan, name)}" for name in ("vpp", "cp", "ep", "etp") if getattr(plan, name) > 1]
    sharding = f"HSDP-{plan.shard_size}" if plan.sharding == "hsdp" else f"ZeRO-{plan.zero}"
    parts += [f"DP{plan.dp}", sharding, f"mb{plan.micro_batch_size}"]
    return " ".join([*parts, *([] if plan.recompute == "none" else [f"recompute {plan.recompute}"])])


def print_plans(result: PlanResult) -> None:
    """Print verdict, reasons, table, search summary and the answer to `--why`."""
    out = console()
    best = result.estimates[0]
    out.print(verdict(result.model, result.gpus, best.plan))
    out.print(_where_time_goes(best))
    if len(result.estimates) > 1:
        out.print(_against(best, result.estimates[1]))
    out.print()
    out.print(plan_table(result.plans))
    out.print()
    for name, text in result.assumptions.items():
        out.print(f"  {name.replace('_', ' ')}: {text}")
    for note in result.notes:
        out.print(f"  note: {note}")
    out.print(f"  {best.plan.flop_convention}")
    out.print()
    if result.why is not None:
        _print_why(result.why, best.plan)
        out.print()
    out.print(search_text(result))


def verdict(model: str, gpus: int, plan: PlanRow) -> str:
    """The result in one line."""
    return (
        f"{model} on {gpus:,} GPUs: {layout_text(plan)}: {format_seconds(plan.step_time_s)}/step, "
        f"{format_count(plan.tokens_per_s)} tokens/s, {plan.tflops_per_gpu:.0f} TFLOP/s/GPU, MFU {plan.mfu:.1%}"
    )


def _where_time_goes(best: Estimate) -> str:
    shares = {name: seconds / best.plan.step_time_s for name, seconds in best.breakdown.items()}
    largest = sorted(shares.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{COMPONENT_TEXT[name]} {share:.0%}" for name, share in largest[:5] if share >= 0.005)
    return (
        f"bound by {best.plan.bound_by}: {parts}; "
        f"memory {best.plan.memory_gib:.1f} of {best.plan.memory_limit_gib:.1f} GiB at stage {best.plan.peak_stage}"
    )


def _against(best: Estimate, other: Estimate) -> str:
    """Why the first plan is ahead of the second, by the components that differ most."""
    gap = other.plan.step_time_s / best.plan.step_time_s - 1
    differences = _differences(other.breakdown, best.breakdown)
    return f"{gap:.1%} ahead of #2 ({layout_text(other.plan)}), which has {differences}"


def _differences(one: Mapping[str, float], other: Mapping[str, float], most: int = 3) -> str:
    """The largest differences of two breakdowns, largest first."""
    rows = sorted(((one[name] - other[name], name) for name in one), key=lambda item: (-abs(item[0]), item[1]))
    shown = [
        f"{format_seconds(abs(gap))} {'more' if gap > 0 else 'less'} {COMPONENT_TEXT[name]}"
        for gap, name in rows[:most]
        if abs(gap) > 0
    ]
    return ", ".join(shown) or "the same breakdown"


def recompute_short(text: str) -> str:
    """`selective:layernorm+mlp` as `norm+mlp`, `full:5` as `full 5`."""
    kind, _, detail = text.partition(":")
    if kind == "selective":
        return "+".join(SHORT_MODULES.get(name, name) for name in detail.split("+"))
    return f"{kind} {detail}".strip()


def plan_table(plans: tuple[PlanRow, ...]) -> Table:
    """The ranked plans, at most 100 columns wide; dimensions that no plan uses are left out."""
    optional = [name for name in ("vpp", "cp", "ep", "etp") if any(getattr(plan, name) > 1 for plan in plans)]
    headers = ["#", "TP", "PP", *(name.upper() for name in optional), "DP", "ZeRO", "mb", "recompute"]
    headers += ["s/step", "tok/s", "TF/s", "MFU%", "GiB", "bound", "comm%", "idle%"]
    rows = []
    for plan in plans:
        sharding = f"3/{plan.shard_size}" if plan.sharding == "hsdp" else str(plan.zero)
        row = [str(plan.rank), f"{plan.tp}{'+SP' if plan.sp else ''}", str(plan.pp)]
        row += [str(getattr(plan, name)) for name in optional]
        row += [str(plan.dp), sharding, str(plan.micro_batch_size), recompute_short(plan.recompute)]
        row += [step_text(plan.step_time_s), format_count(plan.tokens_per_s), f"{plan.tflops_per_gpu:.0f}"]
        row += [f"{100 * plan.mfu:.1f}", f"{plan.memory_gib:.1f}", plan.bound_by]
        row += [f"{100 * plan.exposed_comm_fraction:.1f}", f"{100 * plan.bubble_fraction:.1f}"]
        rows.append(row)
    return table(headers, rows, left=1, gap=2 if len(optional) < 3 else 1)


def step_text(step_time_s: float) -> str:
    """Seconds with three digits, for a column whose header says seconds."""
    return f"{step_time_s:.3g}" if step_time_s < 100 else f"{step_time_s:.0f}"


def search_text(result: PlanResult) -> str:
    """How many layouts were generated, priced, kept and rejected, and why."""
    found = result.search
    reasons = sorted(found.rejected.items(), key=lambda item: (-item[1], item[0]))
    rejected = ", ".join(f"{count:,} {code}" for code, count in reasons) or "none"
    return (
        f"{found.generated:,} layouts generated, {found.candidates:,} priced, {found.feasible:,} fit "
        f"({found.families:,} families of TP, PP, CP, EP) in {found.elapsed_s:.2f} s\nrejected: {rejected}"
    )


def _print_why(why: WhyAnswer, best: PlanRow) -> None:
    out = console()
    if why.status == "illegal":
        out.print(f"{why.asked}: cannot run: " + "; ".join(f"{text} ({code})" for code, text in why.reasons.items()))
        return
    assert why.plan is not None and why.slower_than_best is not None  # noqa: S101, PT018 - priced
    if why.status == "ranked":
        head = f"{why.asked}: rank {why.rank:,} among the families, {why.rank_of_all:,} among all that fit"
    else:
        head = f"{why.asked}: does not fit: " + "; ".join(why.reasons.values())
    out.print(head)
    out.print(
        f"  its best variant: {layout_text(why.plan)}: {format_seconds(why.plan.step_time_s)}/step "
        f"({why.slower_than_best:+.1%} against #1), {why.plan.tflops_per_gpu:.0f} TFLOP/s/GPU, "
        f"{why.plan.memory_gib:.1f} of {best.memory_limit_gib:.1f} GiB"
    )
    out.print(f"  against #1 it has {_differences(why.breakdown, why.best_breakdown, 4)}")


def print_plan_json(result: PlanResult) -> None:
    """Print the result as `gpuscale.plan/1`."""
    print_json("gpuscale.plan/1", result.to_dict())


def print_plan_csv(result: PlanResult) -> None:
    """Print the plans as CSV, one column per field of `PlanRow`."""
    rows = [plan.to_dict() for plan in result.plans]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
