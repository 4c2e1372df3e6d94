"""Drawing of `gpuscale plan` and `gpuscale estimate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from gpuscale.files import NO_BREAK
from gpuscale.layouts.pins import short_recompute
from gpuscale.planning.describe import LEAST_SAID, bound_parts, bound_text, short_name
from gpuscale.ratios import AMOUNT, TIME, in_words, share_text, signed
from gpuscale.render.compared import compared_verdict, frontier_plot, jobs_rows, own_cells, three_digits, worth_parts
from gpuscale.render.console import Block, as_many_as_fit, draw, output_width, table
from gpuscale.results import Estimate, PlanResult, PlanRow, Remedy, RobustAnswer, WhyAnswer
from gpuscale.specs.job import MEMORY_HEADROOM
from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS, by_kind
from gpuscale.uncertainty import FIRST_CHOICES, MANY_LAYOUTS
from gpuscale.units import format_count, format_seconds, plural

BOUND = "bound by %"

LEAST_NEEDED = ("TF/s", "tok/s", "idle%", "comm%", BOUND, "GiB", "recompute", "mb", "ZeRO")
"""Columns that a narrow terminal goes without, in this order."""

MEMORY = AMOUNT.of(" memory")

TIE_MARK = "="
"""After the rank of a plan that cannot be told from the fastest."""

TIE_TEXT = f"{TIE_MARK} cannot be told from the fastest on paper; plans more alike are told apart by less"
"""What the mark says, and why it may skip a rank: errors that plans share cancel."""

TIE_ODDS = "; of measured pairs this close and this alike, the predicted order was right for fewer than two in three"


def draw_plans(
    result: PlanResult, *, verbose: bool = False, shown: int | None = None, spell: Callable[[str], str] = str
) -> None:
    """Print verdict, reasons, table, evidence, what was asked for, and the answer to `why`.

    Args:
        verbose: print all assumptions, the rules of ties and order, and why layouts were rejected too.
        shown: plans in the table; all of the result if not given.
        spell: from options in backticks, such as `grad_dtype=bf16`, to how they are given.
    """
    width, best, compared = output_width(), result.estimates[0], result.compared
    several = compared is not None and (len(compared.variants) > 1 or compared.frontier_size > 0)
    lines = [
        *([compared_verdict(result, compared)] if compared and several else []),
        ("#1: " if several else "") + verdict(result.model, result.gpus, best.plan, width - 4 * several),
        *([as_many_as_fit("", worth_parts(result, compared), width)] if compared else []),
        *where_it_goes(best, width),
        *(() if result.why and not verbose else why_first(result, several, width)),
    ]
    notes = jobs_rows(compared) if compared else []
    tied = [rank.endswith(TIE_MARK) for rank in rank_texts(result)[:shown]]
    if any(tied) if verbose else tied != sorted(tied, reverse=True):
        notes.append(("ties", TIE_TEXT + TIE_ODDS * verbose))
    if verbose and result.choice is not None and result.choice.reason:
        notes.append(("order", result.choice.rule))
    if verbose:
        notes.append(("bias", first_choices_text(FIRST_CHOICES)))
    told = result.plans[: shown if verbose else 0 if result.why else 1]
    pipelines = [row for plan in told for row in _pipeline_row(plan, f" #{plan.rank}" if verbose else "")]
    reasons = sorted(result.search.rejected.items(), key=lambda item: (-item[1], item[0]))
    found, rejected = result.search, ", ".join(f"{count:,}{NO_BREAK}{code}" for code, count in reasons) or "none"
    kept = f"{found.candidates:,} evaluated, {found.feasible:,} fit in {plural(found.families, 'family')}"
    elapsed = "" if found.elapsed_s is None else f"; {found.elapsed_s:.2f} s"
    searched = f"{found.generated:,} layouts: {kept}{elapsed}"
    search = [("searched", searched), *([("rejected", rejected)] if verbose else [])]
    draw(
        "\n".join(lines),
        plan_table(replace(result, plans=result.plans[:shown])),
        frontier_plot(result, compared, width) if compared and compared.frontier_size > 1 else "",
        *(_robust_blocks(result.robust, rank_texts(result)) if result.robust else ()),
        notes + assumption_rows(best, spell, verbose=verbose) + pipelines + ([] if verbose or result.why else search),
        *(why_blocks(result.why, result, width, spell) if result.why else ()),
        search if verbose else [],
    )


def draw_row(plan: PlanRow) -> None:
    """Print one plan by itself: layout and numbers, and what measurements stand behind them."""
    size = f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"
    numbers = f"{format_seconds(plan.step_time_s)}/step, MFU {plan.mfu:.1%}, {size}"
    draw(f"#{plan.rank} {layout_text(plan)}: {numbers}", [("evidence", evidence_text(plan))])


FIT = {"fits": "fits", "tight": "TIGHT", "no": "DOES NOT FIT"}


def draw_estimate(
    result: Estimate, *, verbose: bool = False, spell: Callable[[str], str] = str, more: Iterable[Block] = ()
) -> None:
    """Print verdict, breakdown of step time and of memory, evidence and what was asked for.

    Args:
        verbose: print all assumptions too.
        spell: as in `draw_plans`.
        more: what to print after it.
    """
    plan, width, fit = result.plan, output_width(), FIT[result.plan.fit]
    lost = {"exposed comm": plan.exposed_comm_fraction, "bubble": plan.bubble_fraction}
    beside = ", ".join(f"{name} {share_text(part)}" for name, part in lost.items() if part)
    fits = (
        f"{fit}: {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}; "
        f"bound by {bound_text(plan)}" + (f"; {beside}" if beside else "")
    )
    schedule = "" if plan.schedule == "none" else f", {plan.schedule}"
    stages = ", ".join(f"{gib:.1f}" for gib in result.stage_memory_gib)
    counted = plural(plan.num_microbatches, "microbatch")
    rows = [("layout", f"{layout_text(plan)}; {counted} per step and DP rank{schedule}")]
    if plan.pp > 1:
        rows.append(("stages", f"{stages} GiB at the first, heaviest middle and last stage"))
    if result.total_dp_comm_s:
        rows.append(("DP comm", f"{format_seconds(result.total_dp_comm_s)} per step before overlap"))
    draw(
        f"{verdict(result.model, result.gpus, plan, width)}\n{fits}",
        _breakdown_table("time per step", result.breakdown, ("step", plan.step_time_s), "exposed", format_seconds),
        _breakdown_table(
            "memory per GPU", result.memory, (f"peak, stage {plan.peak_stage}", plan.memory_gib), "GiB", "{:.2f}".format
        ),
        _remedy_rows(result.remedies, spell),
        rows + _pipeline_row(plan) + assumption_rows(result, spell, verbose=verbose),
        *more,
    )


REMEDIES = 4
"""Remedies that the text answer lists."""


def _remedy_rows(remedies: Sequence[Remedy], spell: Callable[[str], str]) -> list[tuple[str, str]]:
    """What makes a layout fit, what it then needs and what that costs; or what comes nearest."""
    rows: list[tuple[str, str]] = []
    for remedy in remedies[:REMEDIES]:
        change = spell(" ".join(f"`{name}={value}`" for name, value in remedy.change.items()))
        if remedy.fit == "no":
            return [("to fit", f"no change and no pair of changes is enough; nearest: {change}: {_size(remedy)}")]
        cost = f"{format_seconds(remedy.step_time_s)}/step ({signed(remedy.slower)})"
        rows.append(("or" if rows else "to fit", f"{change}: {_size(remedy)}, {remedy.fit}, {cost}"))
    return rows


def _size(remedy: Remedy) -> str:
    return f"{remedy.memory_gib:.1f} GiB"


def degrees_text(plan: PlanRow) -> str:
    """The degrees of a layout: `TP8+SP PP4 DP20 ZeRO-1`; those but TP, PP and DP only where they differ from 1."""
    parts = [f"TP{plan.tp}{'+SP' if plan.sp else ''}", f"PP{plan.pp}"]
    parts += [f"{name.upper()}{getattr(plan, name)}" for name in ("vpp", "cp", "ep", "etp") if getattr(plan, name) > 1]
    sharding = f"HSDP-{plan.shard_size}" if plan.sharding == "hsdp" else f"ZeRO-{plan.zero}"
    return " ".join([*parts, f"DP{plan.dp}", sharding])


def layout_text(plan: PlanRow) -> str:
    """One layout in a line: `TP8+SP PP4 DP20 ZeRO-1 mb1`, and what is recomputed."""
    recompute = [] if plan.recompute == "none" else [f"recompute {short_recompute(plan.recompute)}"]
    return " ".join([degrees_text(plan), f"mb{plan.micro_batch_size}", *recompute])


def verdict(model: str, gpus: int, plan: PlanRow, width: int) -> str:
    """The result in one line: the layout, its step time, and as many other numbers as fit."""
    parts = [
        f"MFU {plan.mfu:.1%}",
        f"{format_count(plan.tokens_per_s)} tokens/s",
        f"{plan.tflops_per_gpu:.0f} TFLOP/s/GPU",
    ]
    head = f"{model} on {plural(gpus, 'GPU')}: {degrees_text(plan)}: {format_seconds(plan.step_time_s)}/step, "
    return as_many_as_fit(head, parts, width).removesuffix(", ")


def fit_text(plan: PlanRow | None) -> str:
    """Say on a line of its own that a plan does not fit; nothing where it does."""
    if plan is None or plan.fits:
        return ""
    return f"\nDOES NOT FIT: {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"


def component_text(name: str) -> str:
    """Name a component of the step time for people."""
    return COMPONENTS[name].text if name in COMPONENTS else name.replace("_", " ")


def where_it_goes(estimate: Estimate, width: int) -> Iterator[str]:
    """What binds the step and what else takes it, by kind of work; then the largest components of its memory."""
    plan = estimate.plan
    yield as_many_as_fit("bound by ", bound_parts(estimate.breakdown), width)
    parts = [f"{name.replace('_', ' ')} {gib:.1f}" for name, gib in _largest(estimate.memory, 0.05)]
    head = f"memory {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}: "
    yield as_many_as_fit(head, parts, width)


def _largest(parts: Mapping[str, float], least: float) -> list[tuple[str, float]]:
    ordered = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    return [(name, value) for name, value in ordered if value >= least]


def _differences(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """The four largest differences between two breakdowns, largest first."""
    gaps = {name: one[name] - other[name] for name in one if one[name] != other[name]}
    largest = sorted(gaps.items(), key=lambda item: (-abs(item[1]), item[0]))[:4]
    shown = [
        f"{format_seconds(abs(gap))} {'more' if gap > 0 else 'less'} {component_text(name)}" for name, gap in largest
    ]
    return shown or ["the same breakdown"]


def rank_texts(result: PlanResult) -> list[str]:
    """The rank of each plan, marked where the plan and others are tied with the fastest."""
    ties = [standing.tied for standing in result.choice.standings] if result.choice else []
    marked = sum(ties) > 1
    return [f"{plan.rank}{TIE_MARK if marked and ties[plan.rank - 1] else ''}" for plan in result.plans]


def why_first(result: PlanResult, several: bool, width: int) -> Iterator[str]:
    """Why the first plan is first although another is faster on paper; else how the second stands to it, and by what
    (where plans are ranked by memory, that too)."""
    choice = result.choice
    ties = [
        f" (a tie: the model resolves {one.tie_window:.1%})" if one.tied else ""
        for one in (choice.standings if choice else ())
    ]
    if choice is not None and choice.reason:
        other = f"#{choice.fastest.rank}" if choice.fastest.rank else layout_text(choice.fastest)
        took = in_words(1 + choice.standings[0].behind, TIME, other)
        yield f"takes {took} on paper{ties[0]}; first because {choice.reason}"
    elif len(result.estimates) > 1 and not several:
        best, second = result.estimates[:2]
        needs = "" if choice else f"needs {in_words(second.plan.memory_gib / best.plan.memory_gib, MEMORY)} and "
        took = in_words(second.plan.step_time_s / best.plan.step_time_s, TIME)
        head = f"ahead of #2, which {needs}takes {took}{ties[1] if choice else ''}: "
        yield as_many_as_fit(head, _differences(second.breakdown, best.breakdown), width)


SHORT = {"communication": "comm", "recompute": "recompute"}
"""Kind of work -> a shorter name, in a table."""


def bound_cell(seconds: Mapping[str, float]) -> str:
    """What binds a step and what else takes most of it, communication by axis: `compute 76, TP 9`."""
    whole = math.fsum(seconds.values())
    (first, first_s), *others = by_kind(seconds).items()
    parts = {SHORT.get(kind, BOUNDS[kind]): value for kind, value in others if kind != "communication"}
    parts |= {short_name(axis): seconds[axis] for axis in COMMUNICATION if first != "communication"}
    name = max(parts, key=lambda one: parts[one])
    beside = f", {name} {100 * parts[name] / whole:.0f}" if parts[name] >= LEAST_SAID * whole else ""
    return f"{SHORT.get(first, BOUNDS[first])} {100 * first_s / whole:.0f}{beside}"


def plan_table(result: PlanResult) -> Table:
    """The ranked plans; dimensions that no plan uses are left out, and on a narrow terminal what is least needed."""
    plans = result.plans
    dimensions = [name for name in ("vpp", "cp", "ep", "etp") if any(getattr(plan, name) > 1 for plan in plans)]
    own = [own_cells(result.compared, index) if result.compared else {} for index in range(len(plans))]
    first = list(dict.fromkeys(name for cells in own for name in cells))
    rows = [
        {
            "#": rank,
            **{name: cells.get(name, "-") for name in first},
            "TP": f"{plan.tp}{'+SP' if plan.sp else ''}",
            "PP": str(plan.pp),
            **{name.upper(): str(getattr(plan, name)) for name in dimensions},
            "DP": str(plan.dp),
            "ZeRO": f"3/{plan.shard_size}" if plan.sharding == "hsdp" else str(plan.zero),
            "mb": str(plan.micro_batch_size),
            "recompute": short_recompute(plan.recompute),
            "s/step": three_digits(plan.step_time_s),
            "tok/s": format_count(plan.tokens_per_s),
            "TF/s": f"{plan.tflops_per_gpu:.0f}",
            "MFU%": f"{100 * plan.mfu:.1f}",
            "GiB": f"{plan.memory_gib:.1f}",
            BOUND: bound_cell(estimate.breakdown),
            "comm%": f"{100 * plan.exposed_comm_fraction:.1f}",
            "idle%": f"{100 * plan.bubble_fraction:.1f}",
        }
        for plan, estimate, rank, cells in zip(plans, result.estimates, rank_texts(result), own, strict=False)
    ]
    same = [name for name in first if len({row[name] for row in rows}) == 1]
    optional = dict.fromkeys((*LEAST_NEEDED[:2], *same, *LEAST_NEEDED, *first[::-1]))
    return table(rows, optional=optional)


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


USUAL = (
    "sequence", "global_batch", "framework", "precision", "optimizer", "memory_limit", "vocabulary", "cluster",
    "dispatcher", "moe_imbalance",
)  # fmt: skip
"""What every answer rests on; a line sums it up where not all is asked for."""


def assumption_rows(found: Estimate, spell: Callable[[str], str], *, verbose: bool) -> list[tuple[str, str]]:
    """What the numbers rest on; first what measurements stand behind the step time."""
    plan, said = found.plan, found.assumptions
    rows = [("evidence", evidence_text(plan)), *(("note", spell(note)) for note in found.notes)]
    if verbose:
        rows += [(name.replace("_", " "), text) for name, text in said.items()]
        return [*rows, ("TFLOP/s, MFU", plan.flop_convention)]
    named = [said[name] for name in ("precision", "framework", "dispatcher", "cluster") if name in said]
    first = [text.partition(" (default")[0].partition(":")[0] for text in named]
    usual = plan.memory_limit_gib * (1 - MEMORY_HEADROOM)  # above it: tight
    limit = f"limits {usual:.1f} and {plan.memory_limit_gib:.1f} GiB"
    rows.append(("job", ", ".join([f"{plan.global_batch_size:,} x {plan.sequence:,} tokens", *first, limit])))
    return rows + [(name.replace("_", " "), text) for name, text in said.items() if name not in USUAL]


def _pipeline_row(plan: PlanRow, number: str = "") -> list[tuple[str, str]]:
    """The stages, where Megatron-LM has to be told them."""
    told = f"{plan.pipeline_layout} (--pipeline-model-parallel-layout of Megatron-LM)"
    return [(f"pipeline{number}", told)] if plan.pipeline_layout else []


def evidence_text(plan: PlanRow) -> str:
    """How far a measurement may be from the predicted step time, by which runs, and what none of them has."""
    low, high = format_seconds(plan.step_time_low_s), format_seconds(plan.step_time_high_s)
    new = f"; NO measured run has {' or '.join(plan.unmeasured)}" if plan.unmeasured else ""
    return f"80 % within {low} to {high}, {similar_text(plan.similar_runs)}, nearest {plan.nearest_run}{new}"


def similar_text(runs: int) -> str:
    """Say how many measured runs an interval is by."""
    return f"by {plural(runs, 'similar measured run')}" if runs else "without any similar measured run"


def first_choices_text(found: Iterable[Mapping[str, Any]]) -> str:
    """How much longer than predicted the first choices of measured sweeps took, beside all of their layouts."""
    words = {
        "groups": "measured over predicted time (median): first choices of {:,} sweeps {}, all of their layouts {}",
        "large groups": f"of the {{:,}} with {MANY_LAYOUTS} layouts or more {{}}, all {{}}",
    }
    return "; ".join(
        words[one["over"]].format(one["n"], signed(one["first"] - 1), signed(one["all"] - 1))
        for one in found
        if one["over"] in words
    )


def _rank_text(why: WhyAnswer, result: PlanResult) -> str:
    """The number of a layout in the table, or that it would have; and its place by the objective alone."""
    compared, number = result.compared, why.rank or 0
    goal = (compared.objectives[0] if compared else "step_time" if result.choice else "memory").replace("_", " ")
    printed = _is_printed(why, result)
    first = f"#{number}{', the first choice' * (number == 1)}" if printed else f"not in the table, would be #{number:,}"
    return f"{first}; by {goal} alone {why.rank_of_all:,} of {result.search.feasible:,}"


def _is_printed(why: WhyAnswer, result: PlanResult) -> bool:
    """Whether the plan that accounts for a layout is one of those in the table."""
    shown = result.plans[why.rank - 1 : why.rank] if why.rank else ()
    return any(why.plan == replace(one, variants=why.plan.variants) for one in shown if why.plan)


def why_blocks(
    why: WhyAnswer, result: PlanResult, width: int, spell: Callable[[str], str]
) -> tuple[str, list[tuple[str, str]]]:
    """Where the layout asked for stands, or why it is not there."""
    plan = why.plan
    if plan is None or why.slower_than_best is None:
        return f"{why.asked}: cannot run", [(code, spell(reason)) for code, reason in why.reasons.items()]
    if why.status == "ranked":
        head = "; ".join([f"{why.asked}: {_rank_text(why, result)}", *why.reasons.values()])
    else:
        head = f"{why.asked}: does not fit: {'; '.join(why.reasons.values())}"
    is_first = why.rank == 1 and _is_printed(why, result)
    against = "" if is_first else f" ({signed(why.slower_than_best)} against #1)"
    numbers = (
        f"{format_seconds(plan.step_time_s)}/step{against}, {plan.tflops_per_gpu:.0f} TFLOP/s/GPU, "
        f"MFU {plan.mfu:.1%}, {plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB"
    )
    variant, plain = "best variant" if why.status == "ranked" else "smallest variant", why.plain
    differences = as_many_as_fit("", _differences(why.breakdown, why.best_breakdown), width - len(variant) - 4)
    stages = f", pipeline {plan.pipeline_layout}" if plan.pipeline_layout else ""
    rows = [(variant, layout_text(plan) + stages), ("", numbers)]
    if not is_first:
        rows.append(("against #1", differences))
    elif result.choice and result.choice.reason:
        rows += [("why first", said) for said in why_first(result, several=True, width=width)]
    if plain is not None:
        size = f"{FIT[plain.fit]}, {plain.memory_gib:.1f} of {plain.memory_limit_gib:.1f} GiB"
        rows.append(("as it stands", f"{layout_text(plain)}: {size}, {format_seconds(plain.step_time_s)}/step"))
    return spell(head), rows + _remedy_rows(why.remedies, spell)


CONDITIONS = {
    "network": ("network", "the network gives {less:.0%} less", "bandwidth of the network"),
    "node_links": ("links", "the links of a node give {less:.0%} less", "bandwidth of the links"),
    "latency": ("latency", "latencies are {more:.0%} higher", "latency"),
    "kernels": ("kernels", "kernels take {more:.0%} longer", "speed of kernels"),
    "host": ("host", "the CPU takes {more:.0%} longer", "speed of the CPU"),
    "imbalance": ("experts", "the busiest expert rank has {more:.0%} more tokens", "tokens of the busiest expert rank"),
    "slow_gpu": ("slow GPU", "one GPU takes {more:.0%} longer", "speed of the slowest GPU"),
}
"""Condition -> header of its column, what its factor means, and what its turning points are factors of."""


def _robust_blocks(answer: RobustAnswer, ranks: Sequence[str]) -> tuple[Table, list[tuple[str, str]]]:
    """Spread of the step time of each plan, and what each condition costs it at its worst decile; then what the cases
    are, what tells the plans apart, and where another would be chosen."""
    rows = [
        {
            "#": rank,
            "p10 s": three_digits(plan.p10_s),
            "median": three_digits(plan.median_s),
            "p90": three_digits(plan.p90_s),
            "fits%": f"{100 * plan.fits:.0f}",
            **{
                CONDITIONS[one.name][0]: signed(plan.losses[one.name], same="-").rstrip("%")
                for one in answer.conditions
            },
            "hurt most by": CONDITIONS[plan.most_hurt_by][0],
        }
        for rank, plan in zip(ranks, answer.plans, strict=True)
    ]
    cases = (
        f"{answer.scored} plans evaluated in {answer.samples} cases, in each of which all conditions differ from what "
        "is predicted; a column says by how many % one condition alone, at its worst decile, lengthens the step"
    )
    conditions = [
        (CONDITIONS[one.name][0], f"{one.meaning} x {one.worst:.2f} ({one.source})") for one in answer.conditions
    ]
    facts = [("robust", cases), *conditions, ("sets apart", _apart(answer)), ("holds for", _holds_text(answer))]
    return table(rows, optional=("hurt most by", "host", "latency", "fits%")), facts


def _apart(answer: RobustAnswer) -> str:
    """The condition whose cost differs most between the plans shown."""
    costs = [[plan.losses[one.name] for plan in answer.plans] for one in answer.conditions]
    losses = max(costs, key=lambda one: max(one) - min(one))
    widest = answer.conditions[costs.index(losses)]
    hurt = max(range(len(losses)), key=losses.__getitem__)
    when = CONDITIONS[widest.name][1].format(less=1 - 1 / widest.worst, more=widest.worst - 1)
    first = f" (#1: {signed(losses[0])})" if hurt else ""
    return f"where {when}, #{hurt + 1} takes {in_words(1 + losses[hurt], TIME)}{first}"


def _holds_text(answer: RobustAnswer) -> str:
    """How far conditions may change before the first choice does, and to which plan."""
    first = answer.predicted
    parts = []
    for condition in dict.fromkeys(turn.condition for turn in answer.turns):
        # a factor as people think of it: on a rate, where the condition is the time that something takes
        turns = {
            turn.factor if condition == "imbalance" else 1 / turn.factor: turn.plan
            for turn in answer.turns
            if turn.condition == condition
        }
        changes = [
            f"{'below' if rate < 1 else 'above'} that {degrees_text(plan)}{f' (#{plan.rank})' if plan.rank else ''}"
            for rate, plan in sorted(turns.items(), key=lambda item: item[0])
            if plan is not None
        ]
        band = f"{min(turns):.2g} to {max(turns):.2g}" if len(turns) > 1 else f"up to {max(turns):.2g}"
        parts.append("; ".join([f"{band} x the {CONDITIONS[condition][2]}", *changes]))
    who = "" if first.rank == 1 else f"{f'#{first.rank}' if first.rank else degrees_text(first)}, best as predicted: "
    return who + ". ".join(parts)
