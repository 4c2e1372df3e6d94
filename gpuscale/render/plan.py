"""Drawing of `gpuscale plan`."""

from __future__ import annotations

import csv
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from gpuscale.render.choice import ahead_text, behind_text, choice_rows, rank_texts
from gpuscale.render.compared import (
    compared_lines,
    csv_rows,
    frontier_plot,
    jobs_rows,
    own_columns,
    worth_parts,
)
from gpuscale.render.plain import WIDTH, aligned, output_width, print_json, write
from gpuscale.results import Choice, Estimate, PlanResult, PlanRow, RobustAnswer, SearchSummary, WhyAnswer
from gpuscale.units import format_count, format_seconds

SHORT_MODULES = {"layernorm": "norm", "core_attn": "attn", "mla_up_proj": "mla", "moe_act": "act"}
COMPONENT_TEXT = {
    "gemm": "GEMMs",
    "attention": "attention",
    "recompute": "recomputation",
    "elementwise": "element-wise",
    "optimizer": "optimizer",
    "launch": "launches",
    "tp_comm": "TP comm",
    "cp_comm": "CP comm",
    "ep_comm": "EP comm",
    "pp_comm": "PP comm",
    "dp_comm": "DP comm",
    "offload": "offload",
    "bubble": "bubble",
}
LEAST_NEEDED = ("idle%", "comm%", "tok/s", "TF/s", "bound", "GiB", "recompute", "mb", "ZeRO")
"""Columns that a narrow terminal goes without, in this order."""

NO_BREAK = "\u00a0"
"""A space at which no line is broken; printed as a plain one."""


def component_text(name: str) -> str:
    """Name a component of the step time for people."""
    return COMPONENT_TEXT.get(name, name.replace("_", " "))


def degrees_text(plan: PlanRow) -> str:
    """The degrees of a layout: `TP8+SP PP4 DP20 ZeRO-1`; of those but TP, PP and DP only what differs from 1."""
    parts = [f"TP{plan.tp}{'+SP' if plan.sp else ''}", f"PP{plan.pp}"]
    parts += [f"{name.upper()}{getattr(plan, name)}" for name in ("vpp", "cp", "ep", "etp") if getattr(plan, name) > 1]
    sharding = f"HSDP-{plan.shard_size}" if plan.sharding == "hsdp" else f"ZeRO-{plan.zero}"
    return " ".join([*parts, f"DP{plan.dp}", sharding])


def layout_text(plan: PlanRow) -> str:
    """One layout in a line: `TP8+SP PP4 DP20 ZeRO-1 mb1`, and what is recomputed."""
    recompute = [] if plan.recompute == "none" else [f"recompute {recompute_short(plan.recompute)}"]
    return " ".join([degrees_text(plan), f"mb{plan.micro_batch_size}", *recompute])


def recompute_short(text: str) -> str:
    """`selective:layernorm+mlp` as `norm+mlp`, `full:5` as `full 5`."""
    kind, _, detail = text.partition(":")
    if kind == "selective":
        return "+".join(SHORT_MODULES.get(name, name) for name in detail.split("+"))
    return f"{kind} {detail}".strip()


def facts(rows: Iterable[tuple[str, str]], width: int) -> str:
    """Names beside texts; a text that needs several lines continues under its own beginning."""
    pairs = list(rows)
    indent = 4 + max((len(name) for name, _ in pairs), default=0)
    lines = []
    for name, text in pairs:
        wrapped = textwrap.wrap(text, max(20, width - indent), break_on_hyphens=False) or [""]
        lines += [f"  {name:{indent - 4}}  {wrapped[0]}", *(" " * indent + line for line in wrapped[1:])]
    return "\n".join(lines).replace(NO_BREAK, " ")


def as_many_as_fit(head: str, parts: Iterable[str], width: int) -> str:
    """Append parts, after commas, for as long as the line has at most `width` columns."""
    line, comma = head, ""
    for part in parts:
        if len(line) + len(comma) + len(part) > width:
            break
        line += comma + part
        comma = ", "
    return line


def assumption_rows(assumptions: Mapping[str, str], notes: Sequence[str], plan: PlanRow) -> list[tuple[str, str]]:
    """What the numbers rest on."""
    rows = [("interval", interval_text(plan))]
    rows += [(name.replace("_", " "), text) for name, text in assumptions.items()]
    rows += [("note", note) for note in notes]
    return [*rows, ("TFLOP/s, MFU", plan.flop_convention)]


def interval_text(plan: PlanRow) -> str:
    """How far a measurement may be from the predicted step time."""
    low, high = format_seconds(plan.step_time_low_s), format_seconds(plan.step_time_high_s)
    runs = f"about {plan.similar_runs} similar published runs" if plan.similar_runs > 1 else "one similar published run"
    return f"{low} to {high} per step holds 80 % of measurements, by the errors on {runs}"


def verdict(model: str, gpus: int, plan: PlanRow, width: int = WIDTH) -> str:
    """The result in one line: the layout, its step time, and as many other numbers as fit."""
    parts = [
        f"MFU {plan.mfu:.1%}",
        f"{format_count(plan.tokens_per_s)} tokens/s",
        f"{plan.tflops_per_gpu:.0f} TFLOP/s/GPU",
    ]
    head = f"{model} on {gpus:,} GPUs: {degrees_text(plan)}: {format_seconds(plan.step_time_s)}/step, "
    return as_many_as_fit(head, parts, width).removesuffix(", ")


def print_plans(result: PlanResult) -> None:
    """Print verdict, reasons, table, assumptions, the answer to `--why` and how the search went."""
    width, best, compared = output_width(), result.estimates[0], result.compared
    several = compared is not None and (len(compared.variants) > 1 or compared.frontier_size > 0)
    lines = [
        *(compared_lines(result, compared) if compared else []),
        ("#1: " if several else "") + verdict(result.model, result.gpus, best.plan, width - 4 * several),
        *([as_many_as_fit("", worth_parts(result, compared), width)] if compared else []),
        _where_time_goes(best, width),
        _where_memory_goes(best, width),
    ]
    if result.choice is not None and result.choice.reason:
        lines.append(behind_text(result.choice, layout_text, width))
    elif len(result.estimates) > 1 and not several:
        lines.append(_against(best, result.estimates[1], result.choice, width))
    write("\n".join(lines) + "\n")
    own = own_columns(result, compared) if compared else ()
    write(plan_table(result.plans, width, own, rank_texts(result)) + "\n")
    if compared is not None and compared.frontier_size > 1:
        write(frontier_plot(result, compared, width) + "\n")
    if result.robust is not None:
        _print_robust(result, result.robust)
    asked = jobs_rows(compared) if compared else []
    rows = [*asked, *choice_rows(result.choice), *assumption_rows(result.assumptions, result.notes, best.plan)]
    write(facts(rows, width) + "\n")
    if result.why is not None:
        write(why_text(result.why, width) + "\n")
    write(facts(_search_rows(result.search), width))


def _print_robust(result: PlanResult, answer: RobustAnswer) -> None:
    from gpuscale.render.console import console  # noqa: PLC0415 - only these tables are drawn by Rich
    from gpuscale.render.robust import robust_rows, robust_table  # noqa: PLC0415

    console().print(robust_table(answer, rank_texts(result), step_text))
    write()
    write(facts(robust_rows(answer, degrees_text), output_width()) + "\n")


def _where_time_goes(estimate: Estimate, width: int) -> str:
    """What binds, and the largest parts of the step time."""
    total = estimate.plan.step_time_s
    parts = [f"{component_text(name)} {value / total:.0%}" for name, value in _largest(estimate.breakdown, total / 200)]
    return as_many_as_fit(f"bound by {estimate.plan.bound_by}: ", parts, width)


def _where_memory_goes(estimate: Estimate, width: int) -> str:
    plan = estimate.plan
    parts = [f"{name.replace('_', ' ')} {gib:.1f}" for name, gib in _largest(estimate.memory, 0.05)]
    head = f"memory {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}: "
    return as_many_as_fit(head, parts, width)


def _largest(parts: Mapping[str, float], least: float) -> list[tuple[str, float]]:
    ordered = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    return [(name, value) for name, value in ordered if value >= least]


def _against(best: Estimate, other: Estimate, choice: Choice | None, width: int) -> str:
    """Why the first plan is ahead of the second, by the components that differ most."""
    gap = other.plan.step_time_s / best.plan.step_time_s - 1
    return as_many_as_fit(ahead_text(choice, gap), _differences(other.breakdown, best.breakdown), width)


def _differences(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """The four largest differences of two breakdowns, largest first."""
    rows = sorted(((one[name] - other[name], name) for name in one), key=lambda item: (-abs(item[0]), item[1]))
    shown = [
        f"{format_seconds(abs(gap))} {'more' if gap > 0 else 'less'} {component_text(name)}"
        for gap, name in rows[:4]
        if abs(gap) > 0
    ]
    return shown or ["the same breakdown"]


def plan_table(
    plans: Sequence[PlanRow],
    width: int = WIDTH,
    own: Sequence[Mapping[str, str]] = (),
    ranks: Sequence[str] = (),
) -> str:
    """The ranked plans, at most `width` columns wide; dimensions that no plan uses are left out.

    Where they do not fit, columns move together, and then those of `LEAST_NEEDED` are left out one by one.

    Args:
        own: columns of each plan that come after its rank, header -> text.
        ranks: what stands in the first column, when that is not the plain rank.
    """
    optional = [name for name in ("vpp", "cp", "ep", "etp") if any(getattr(plan, name) > 1 for plan in plans)]
    rows = [_cells(plan, optional) for plan in plans]
    for row, rank in zip(rows, ranks, strict=False):
        row["#"] = rank
    first: list[str] = []
    if own:
        first = list(dict.fromkeys(name for cells in own for name in cells))
        rows = [
            {"#": row["#"], **{name: cells.get(name, "-") for name in first}, **row}
            for row, cells in zip(rows, own, strict=True)
        ]
    headers = list(rows[0])
    gap = 2 if _width(headers, rows, 2) <= width else 1
    same = [name for name in first if len({row[name] for row in rows}) == 1]
    for name in dict.fromkeys((*same, *LEAST_NEEDED, *first[::-1])):
        if _width(headers, rows, gap) <= width:
            break
        headers.remove(name)
    return aligned(headers, [[row[name] for name in headers] for row in rows], gap=gap)


def _cells(plan: PlanRow, optional: Sequence[str]) -> dict[str, str]:
    """One row of the table: header -> text."""
    return {
        "#": str(plan.rank),
        "TP": f"{plan.tp}{'+SP' if plan.sp else ''}",
        "PP": str(plan.pp),
        **{name.upper(): str(getattr(plan, name)) for name in optional},
        "DP": str(plan.dp),
        "ZeRO": f"3/{plan.shard_size}" if plan.sharding == "hsdp" else str(plan.zero),
        "mb": str(plan.micro_batch_size),
        "recompute": recompute_short(plan.recompute),
        "s/step": step_text(plan.step_time_s),
        "tok/s": format_count(plan.tokens_per_s),
        "TF/s": f"{plan.tflops_per_gpu:.0f}",
        "MFU%": f"{100 * plan.mfu:.1f}",
        "GiB": f"{plan.memory_gib:.1f}",
        "bound": plan.bound_by,
        "comm%": f"{100 * plan.exposed_comm_fraction:.1f}",
        "idle%": f"{100 * plan.bubble_fraction:.1f}",
    }


def _width(headers: Sequence[str], rows: Sequence[Mapping[str, str]], gap: int) -> int:
    widths = (max(len(name), *(len(row[name]) for row in rows)) for name in headers)
    return sum(widths) + gap * (len(headers) - 1)


def step_text(step_time_s: float) -> str:
    """Seconds with three digits, for a column whose header says seconds."""
    digits = 0 if step_time_s >= 99.95 else 1 if step_time_s >= 9.995 else 2 if step_time_s >= 0.9995 else 3
    return f"{step_time_s:.{digits}f}"


def _search_rows(found: SearchSummary) -> list[tuple[str, str]]:
    """How many layouts were generated, priced, kept and rejected, and why."""
    reasons = sorted(found.rejected.items(), key=lambda item: (-item[1], item[0]))
    rejected = ", ".join(f"{count:,}{NO_BREAK}{code}" for code, count in reasons) or "none"
    kept = f"{found.candidates:,} priced, {found.feasible:,} fit in {found.families:,} families"
    return [
        ("searched", f"{found.generated:,} layouts: {kept}; {found.elapsed_s:.2f} s"),
        ("rejected", rejected),
    ]


def why_text(why: WhyAnswer, width: int) -> str:
    """Where the layout asked for stands, or why it is not there."""
    plan = why.plan
    if plan is None or why.slower_than_best is None:
        return f"{why.asked}: cannot run\n{facts(why.reasons.items(), width)}"
    if why.status == "ranked":
        head = f"{why.asked}: rank {why.rank:,} among the families, {why.rank_of_all:,} among all that fit"
        head = "; ".join([head, *why.reasons.values()])
    else:
        head = f"{why.asked}: does not fit: {'; '.join(why.reasons.values())}"
    slower = why.slower_than_best
    against = f"{slower:+.1%} against #1" if slower < 1 else f"{1 + slower:.1f} x the time of #1"
    numbers = (
        f"{format_seconds(plan.step_time_s)}/step ({against}), {plan.tflops_per_gpu:.0f} TFLOP/s/GPU, "
        f"MFU {plan.mfu:.1%}, {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"
    )
    rows = [
        ("best variant" if why.status == "ranked" else "smallest variant", layout_text(plan)),
        ("", numbers),
        ("against #1", ", ".join(_differences(why.breakdown, why.best_breakdown))),
    ]
    return f"{head}\n{facts(rows, width)}"


def print_plan_json(result: PlanResult) -> None:
    """Print the result as `gpuscale.plan/1`."""
    print_json("gpuscale.plan/1", result.to_dict())


def print_plan_csv(result: PlanResult) -> None:
    """Print the plans as CSV, one column per field of `PlanRow`."""
    rows = csv_rows(result, result.compared) if result.compared else [plan.to_dict() for plan in result.plans]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
