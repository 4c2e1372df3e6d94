"""Plans of a job, ranked: why they stand as they do, and what each rests on; and one plan by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from gpuscale.files import NO_BREAK
from gpuscale.layouts.pins import short_recompute
from gpuscale.planning.describe import LEAST_SAID, bound_text, short_name
from gpuscale.ratios import AMOUNT, TIME, in_words, share_text, signed
from gpuscale.render.compared import compared_verdict, jobs_rows, own_cells, three_digits, worth_parts
from gpuscale.render.console import as_many_as_fit
from gpuscale.render.document import (
    WIDTH,
    Document,
    Facts,
    Part,
    Section,
    Spell,
    Table,
    cell,
    later,
    loaded,
    page,
    plain,
    sortable,
    table,
    terminal,
)
from gpuscale.render.plan_texts import (
    FIT,
    assumption_parts,
    assumption_rows,
    component_text,
    degrees_text,
    differences_text,
    evidence_text,
    fine_tuning_lines,
    first_choices_text,
    layout_text,
    measured_text,
    most_first,
    on_cluster,
    on_gpus,
    pipeline_row,
    plan_sections,
    plan_tiles,
    remedy_rows,
    size_text,
    verdict,
    where_it_goes,
)
from gpuscale.results import Estimate, Farthest, PlanResult, PlanRow, RecipeAnswer, RiskAnswer, WhyAnswer
from gpuscale.steptime.components import BOUNDS, COMMUNICATION, by_kind
from gpuscale.uncertainty import FIRST_CHOICES
from gpuscale.units import format_count, format_seconds, plural

SHOWN_PLANS = 300

BOUND = "bound by %"

LEAST_NEEDED = ("TF/s", "tok/s", "idle%", "comm%", BOUND, "fits%", "GiB", "recompute", "mb", "ZeRO")
"""Columns that a narrow terminal goes without, in this order."""

MEMORY = AMOUNT.of(" memory")

TIE_MARK = "="
"""After the rank of a plan that cannot be told from the fastest."""

TIE_TEXT = f"{TIE_MARK} ties with the fastest within the model's resolution, which is finer for plans that are alike"
"""What the mark says, and why it may skip a rank: errors that plans share cancel."""

TIE_ODDS = "; of measured pairs this close and this alike, the predicted order was right for fewer than two in three"


def plan_document(
    result: PlanResult, *, verbose: bool = False, shown: int | None = None, spell: Spell = str
) -> Document:
    """Lay out the plans (those `shown` in a terminal) and what they stand on; on a page all of the first plan.
    `verbose`: all assumptions and rules too."""
    best, compared = result.estimates[0], result.compared
    frontier = compared is not None and compared.frontier_size > 1
    first = cache(loaded("plan_page.first_plan", result))
    told = terminal(_plan_facts(result, shown, verbose=verbose, spell=spell))
    return Document(
        on_cluster(result),
        partial(_said_first, result, verbose, spell),
        plan_tiles(best),
        [
            Section("Plans", [
                terminal(_plan_table(result, result.plans[:shown])),
                page(_plan_table(result, result.plans[:SHOWN_PLANS])),
                page(f"{TIE_TEXT}." if TIE_MARK in "".join(rank_texts(result)) else ""),
            ]),
            Section("Choice", [
                loaded("plan_page.frontier", result, compared)() if frontier else later("plan_page.choice", result),
                page(jobs_rows(compared) if compared else ""),
            ]),
            Section("Step time", [later("plan_page.step_times", result), later("plan_page.step_parts", first)]),
            *plan_sections(first, later("plan_page.memory_parts", result)),
            Section("Other conditions", _risk(result.risk, rank_texts(result)) if result.risk else []),
            Section("Evidence and assumptions", [told]),
            Section("The requested layout", _why_parts(result.why, result, spell) if result.why else []),
            Section("Evidence", [later("plan_page.evidence_parts", result, spell)]),
            Section("Assumptions", [page(assumption_parts(best, spell))]),
            Section("Search", [
                terminal(_searched(result, verbose=True) if verbose else []), later("plan_page.search_parts", result),
            ]),
        ],
    )  # fmt: skip


def _said_first(result: PlanResult, verbose: bool, spell: Spell, width: int) -> str:
    best, compared = result.estimates[0], result.compared
    several = compared is not None and (len(compared.variants) > 1 or compared.frontier_size > 0)
    lines = [
        *([_farthest_line(result.farthest)] if result.farthest else []),
        *([compared_verdict(result, compared)] if compared and several else []),
        *fine_tuning_lines(best.plan, best.job),
        ("#1: " if several else "") + verdict(result, best.plan, width - 4 * several),
        *([_recipe_line(result.recipe, width, spell)] if result.recipe and result.recipe.asked else []),
        *([as_many_as_fit("", worth_parts(result, compared), width)] if compared else []),
        *where_it_goes(best, width),
        *(() if result.why and not verbose else _why_first(result, several, width)),
    ]
    return "\n".join(lines)


FARTHEST = {
    "seq": ("longest sequence", "tokens"),
    "mbs": ("largest microbatch", "sequences"),
    "gpus": ("fewest GPUs", ""),
}
"""What was looked for -> what it is called, and its unit."""


def _farthest_line(found: Farthest) -> str:
    """Say how far a number goes: `longest sequence that fits: 57,344 tokens (61,440 do not)`."""
    name, unit = FARTHEST[found.name]
    beyond = "" if found.beyond is None else f" ({found.beyond:,} do{'es' * (found.beyond == 1)} not)"
    return f"{name} that fit{'' if found.name == 'gpus' else 's'}: {f'{found.value:,} {unit}'.rstrip()}{beyond}"


def _recipe_line(found: RecipeAnswer, width: int, spell: Spell = str) -> str:
    """Say where a recipe stands: `recipe of NVIDIA (TP2 PP8 VPP4 EP32): #7, takes 2.1% longer: PP 8 -> 4`."""
    head = f"recipe of {found.by} ({found.layout}): "
    if found.behind is None:
        return f"{head}cannot run: {spell(found.reason)}"
    took = f"takes {in_words(1 + found.behind, TIME, '#1')}"
    if found.reason:
        return f"{head}{'' if found.fits else 'does not fit: '}{spell(found.reason)}; {took}"
    if not found.differs:
        return f"{head}the first choice"
    return as_many_as_fit(f"{head}#{found.rank:,}, {took}: ", found.differs.split(", "), width).removesuffix(": ")


def _published_text(found: RecipeAnswer) -> str:
    """Say how a nearby job's layout stands: `NVIDIA's NAME (TP2 PP8 VPP4 EP32): 4.5% longer`."""
    head = f"{found.name} of {found.by} ({found.layout})"
    if found.behind is None:
        return f"{head} cannot run here: {found.reason}"
    took = f"here takes {in_words(1 + found.behind, TIME, '#1')}" if found.differs else "is the first choice"
    return f"{head} {took}{'' if found.fits else ' and does not fit'}{f': {found.reason}' if found.reason else ''}"


def _plan_facts(result: PlanResult, shown: int | None, *, verbose: bool, spell: Spell) -> Facts:
    notes = jobs_rows(result.compared) if result.compared else []
    tied = [rank.endswith(TIE_MARK) for rank in rank_texts(result)[:shown]]
    if any(tied) if verbose else tied != sorted(tied, reverse=True):
        notes.append(("ties", TIE_TEXT + TIE_ODDS * verbose))
    if verbose and result.choice is not None and result.choice.reason:
        notes.append(("order", result.choice.rule))
    if verbose:
        notes.append(("bias", first_choices_text(FIRST_CHOICES)))
    told = result.plans[: shown if verbose else 0 if result.why else 1]
    pipelines = [row for plan in told for row in pipeline_row(plan, f" #{plan.rank}" if verbose else "")]
    run = None if result.why else result.measured
    measured = [("measured", spell(measured_text(run)))] if run else []
    nearest = verbose or not measured
    if result.recipe and not result.recipe.asked and not result.why:
        measured.append(("recipe", spell(_published_text(result.recipe))))
    said = assumption_rows(result.estimates[0], spell, verbose=verbose, nearest=nearest) + pipelines
    of_jobs = [("note", spell(note)) for note in result.notes if note not in result.estimates[0].notes]
    notes += [*said[:1], *measured, *of_jobs, *said[1:]]
    return notes if verbose or result.why else notes + _searched(result, verbose=False)


def _searched(result: PlanResult, *, verbose: bool) -> Facts:
    found = result.search
    kept = f"{found.candidates:,} evaluated, {found.feasible:,} fit in {plural(found.families, 'family')}"
    elapsed = "" if found.elapsed_s is None else f"; {found.elapsed_s:.2f} s"
    reasons = most_first(found.rejected)
    rejected = ", ".join(f"{count:,}{NO_BREAK}{code}" for code, count in reasons) or "none"
    searched = ("searched", f"{found.generated:,} layouts: {kept}{elapsed}")
    return [searched, *([("rejected", rejected)] if verbose else [])]


def rank_texts(result: PlanResult) -> list[str]:
    """The rank of each plan, marked where it ties with the fastest."""
    ties = [standing.tied for standing in result.choice.standings] if result.choice else []
    marked = sum(ties) > 1
    return [f"{plan.rank}{TIE_MARK if marked and ties[plan.rank - 1] else ''}" for plan in result.plans]


def _why_first(result: PlanResult, several: bool, width: int) -> Iterator[str]:
    """Why the first plan is first although another is faster on paper; else how the second stands to it."""
    choice = result.choice
    ties = [
        f" (a tie within the {one.tie_window:.1%} resolution)" if one.tied else ""
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
        yield as_many_as_fit(head, differences_text(second.breakdown, best.breakdown), width)


SHORT = {"communication": "comm", "recompute": "recompute"}


def _bound_cell(seconds: Mapping[str, float]) -> str:
    """What binds a step and what else takes most of it: `compute 76, TP 9`."""
    whole = math.fsum(seconds.values())
    (first, first_s), *others = by_kind(seconds).items()
    parts = {SHORT.get(kind, BOUNDS[kind]): value for kind, value in others if kind != "communication"}
    parts |= {short_name(axis): seconds[axis] for axis in COMMUNICATION if first != "communication"}
    name = max(parts, key=lambda one: parts[one])
    beside = f", {name} {100 * parts[name] / whole:.0f}" if parts[name] >= LEAST_SAID * whole else ""
    return f"{SHORT.get(first, BOUNDS[first])} {100 * first_s / whole:.0f}{beside}"


def _plan_table(result: PlanResult, plans: Sequence[PlanRow]) -> Table:
    dimensions = [name for name in ("vpp", "cp", "ep", "etp") if any(getattr(plan, name) > 1 for plan in plans)]
    own = [own_cells(result.compared, index) if result.compared else {} for index in range(len(plans))]
    first = list(dict.fromkeys(name for cells in own for name in cells))
    unsure = any(plan.fit_probability < CERTAIN for plan in plans)
    rows = [
        {
            "#": (rank, plan.rank),
            **{name: sortable(cells.get(name, "-")) for name in first},
            "TP": (f"{plan.tp}{'+SP' if plan.sp else ''}", plan.tp),
            "PP": cell(plan.pp, str),
            **{name.upper(): cell(getattr(plan, name), str) for name in dimensions},
            "DP": cell(plan.dp, str),
            "ZeRO": (f"3/{plan.shard_size}" if plan.sharding == "hsdp" else str(plan.zero), plan.zero),
            "mb": cell(plan.micro_batch_size, str),
            "recompute": short_recompute(plan.recompute),
            "s/step": cell(plan.step_time_s, three_digits),
            "tok/s": cell(plan.tokens_per_s, format_count),
            "TF/s": cell(plan.tflops_per_gpu, "{:.0f}"),
            "MFU%": (f"{100 * plan.mfu:.1f}", plan.mfu),
            "GiB": cell(plan.memory_gib, "{:.1f}"),
            **({"fits%": cell(plan.fit_probability, _percent_of)} if unsure else {}),
            BOUND: _bound_cell(estimate.breakdown),
            "comm%": (f"{100 * plan.exposed_comm_fraction:.1f}", plan.exposed_comm_fraction),
            "idle%": (f"{100 * plan.bubble_fraction:.1f}", plan.bubble_fraction),
        }
        for plan, estimate, rank, cells in zip(plans, result.estimates, rank_texts(result), own, strict=False)
    ]
    same = [name for name in first if len({row[name] for row in rows}) == 1]
    optional = [*dict.fromkeys((*LEAST_NEEDED[:2], *same, *LEAST_NEEDED, *first[::-1]))]
    more = f", the first {len(plans):,} of {len(result.plans):,}" if len(plans) < len(result.plans) else ""
    caption = f"{plural(len(plans), 'plan')} by rank{more}; a column's header sorts by it"
    return table(rows, caption=caption, optional=optional, sortable=True)


CERTAIN = 0.995
"""Probability from which on a plan fits for certain, to the whole per cent."""


def _percent_of(probability: float) -> str:
    """A probability in whole per cent; 99 and 1 for what is not certain."""
    return f"{100 * probability:.0f}" if probability >= CERTAIN else f"{min(max(round(100 * probability), 1), 99)}"


def _rank_text(why: WhyAnswer, result: PlanResult) -> str:
    compared, number = result.compared, why.rank or 0
    goal = (compared.objectives[0] if compared else "step_time" if result.choice else "memory").replace("_", " ")
    printed = _is_printed(why, result)
    first = f"#{number}{', the first choice' * (number == 1)}" if printed else f"not in the table, would be #{number:,}"
    return f"{first}; by {goal} alone {why.rank_of_all:,} of {result.search.feasible:,}"


def _is_printed(why: WhyAnswer, result: PlanResult) -> bool:
    """Whether the plan that accounts for a layout is one of those in the table."""
    shown = result.plans[why.rank - 1 : why.rank] if why.rank else ()
    return any(why.plan == replace(one, variants=why.plan.variants) for one in shown if why.plan)


def _why_parts(why: WhyAnswer, result: PlanResult, spell: Spell) -> tuple[str, Facts]:
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
        f"MFU {plan.mfu:.1%}, {size_text(plan)}"
    )
    variant, plain = "best variant" if why.status == "ranked" else "smallest variant", why.plain
    differences = as_many_as_fit("", differences_text(why.breakdown, why.best_breakdown), WIDTH - len(variant) - 4)
    stages = f", pipeline {plan.pipeline_layout}" if plan.pipeline_layout else ""
    rows = [(variant, layout_text(plan) + stages), ("", numbers)]
    if not is_first:
        rows.append(("against #1", differences))
    elif result.choice and result.choice.reason:
        rows += [("why first", said) for said in _why_first(result, several=True, width=WIDTH)]
    if plain is not None:
        size = f"{FIT[plain.fit]}, {size_text(plain)}"
        rows.append(("as given", f"{layout_text(plain)}: {size}, {format_seconds(plain.step_time_s)}/step"))
    return spell(head), rows + remedy_rows(why.remedies, spell)


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


def _risk(answer: RiskAnswer, ranks: Sequence[str]) -> list[Part]:
    rows = [
        {
            "#": (rank, plan.rank),
            "p10 s": cell(plan.p10_s, three_digits),
            "median": cell(plan.median_s, three_digits),
            f"at {answer.risk:.0%}": cell(plan.at_risk_s, three_digits),
            "fits%": cell(plan.fits, _percent_of),
            **{
                CONDITIONS[one.name][0]: (signed(plan.losses[one.name], same="-").rstrip("%"), plan.losses[one.name])
                for one in answer.conditions
            },
            "worst factor": CONDITIONS[plan.most_hurt_by][0],
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
    facts = [("risk", cases), *conditions, ("sets apart", _apart(answer)), ("holds for", _holds_text(answer))]
    caption = f"Step times in {answer.samples} cases, and what one condition alone costs at its worst decile"
    narrow = ("worst factor", "host", "latency", "fits%")
    return [table(rows, caption=caption, optional=narrow, sortable=True), facts]


def _apart(answer: RiskAnswer) -> str:
    costs = [[plan.losses[one.name] for plan in answer.plans] for one in answer.conditions]
    losses = max(costs, key=lambda one: max(one) - min(one))
    widest = answer.conditions[costs.index(losses)]
    hurt = max(range(len(losses)), key=losses.__getitem__)
    when = CONDITIONS[widest.name][1].format(less=1 - 1 / widest.worst, more=widest.worst - 1)
    first = f" (#1: {signed(losses[0])})" if hurt else ""
    return f"where {when}, #{hurt + 1} takes {in_words(1 + losses[hurt], TIME)}{first}"


def _holds_text(answer: RiskAnswer) -> str:
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


def row_document(plan: PlanRow) -> Document:
    """Lay out a plan by itself."""
    numbers = f"{format_seconds(plan.step_time_s)}/step, MFU {plan.mfu:.1%}, {size_text(plan)}"
    return plain(
        f"Plan {plan.rank}", f"#{plan.rank} {layout_text(plan)}: {numbers}", [("evidence", evidence_text(plan))]
    )


def estimate_document(
    result: Estimate, *, verbose: bool = False, spell: Spell = str, more: Iterable[Part] = ()
) -> Document:
    """Lay out one plan; `verbose`: all assumptions; `more`: what else there is to say."""
    plan = result.plan
    asked = fine_tuning_lines(plan, result.job)
    lost = {"exposed comm": plan.exposed_comm_fraction, "bubble": plan.bubble_fraction}
    beside = ", ".join(f"{name} {share_text(part)}" for name, part in lost.items() if part)
    size = f"{size_text(plan)} at stage {plan.peak_stage}"
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
        f"{layout_text(plan)}: {on_gpus(result)}",
        lambda width: "\n".join([*asked, verdict(result, plan, width), fits]),
        plan_tiles(result),
        [
            Section("Step time", [
                later("plan_page.waterfall_parts", result),
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
