"""Why there is no plan (rules, memory or constraints, and what came closest), and why a layout stands where it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
from gpuscale.layouts.arrays import DUALPIPE, ONE_F_ONE_B, ZB_V, Candidates
from gpuscale.layouts.pins import Pins
from gpuscale.planning.describe import describe
from gpuscale.planning.jobs import DAY_S, Job, constraints
from gpuscale.planning.layouts import fixed_layout, layout_text, make_pins, pins_text
from gpuscale.planning.variants import Variant
from gpuscale.presets.frameworks import load_framework
from gpuscale.request import Question, choice_text, schedule_text
from gpuscale.results import NOTHING_LEGAL, Estimate, WhyAnswer
from gpuscale.rules.check import BY_CODE, broken_rules, source_in
from gpuscale.rules.rule import EVERY, Rule
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, SearchResult, search
from gpuscale.search.objectives import Constraint, Constraints
from gpuscale.search.ordering import Scored, scored
from gpuscale.specs.cluster import MAX_GPUS
from gpuscale.specs.job import JobSpec
from gpuscale.units import GIB

PINNED_OUT = "pinned_out"
"""Reason code of a layout that the user's own pins exclude."""


def wanted(variant: Variant, asked: Mapping[str, str]) -> Pins:
    """Return a layout as pins, under the schedule that is searched unless it names one."""
    pins = make_pins(asked)
    return pins if "schedule" in asked else replace(pins, schedule=variant.pins.schedule)


def search_among_plans(variant: Variant, asked: Mapping[str, str], objective: str) -> SearchResult | None:
    """Search for the variants of a layout among the plans of a job; None where there are none."""
    pins = wanted(variant, asked)
    both = variant.pins.narrowed(pins)
    if pins.schedule != variant.pins.schedule or both.recompute == ():
        return None
    inside = search(variant.job.spec, both, objective, constraints=variant.constraints)
    return inside if inside.feasible else None


def search_anywhere(variant: Variant, asked: Mapping[str, str], objective: str) -> SearchResult:
    """Search for the variants of a layout whatever else is pinned or constrained."""
    return search(variant.job.spec, wanted(variant, asked), objective)


def answer_why(
    variant: Variant, asked: Mapping[str, str], objective: str, found: SearchResult, first: Estimate
) -> WhyAnswer:
    """Account for a layout: its rank and numbers, how much it lacks, or the rules that reject it.

    Args:
        asked: names of `gpuscale.request.Layout` -> values.
        first: the plan that it is compared with, the first of those shown.
    """

    def rank_of(own: float) -> tuple[int, int]:
        families, every = (np.searchsorted(scores, own) for scores in (found.families.score, found.scores))
        return 1 + int(families), 1 + int(every)

    return account_for(variant, asked, objective, first, rank_of)


def account_for(
    variant: Variant,
    asked: Mapping[str, str],
    objective: str,
    first: Estimate,
    rank_of: Callable[[float], tuple[int, int]],
) -> WhyAnswer:
    """Account for a layout beside the first plan.

    Args:
        rank_of: from a score to the rank among families, and among all that fit.
    """
    job = variant.job
    text = ",".join(f"{name}={value}" for name, value in asked.items())
    inside = search_among_plans(variant, asked, objective) or search_anywhere(variant, asked, objective)
    best_time = first.plan.step_time_s
    scored, reasons = _asked_variant(job.spec, asked, inside, objective)
    if scored is None:
        return WhyAnswer(text, "illegal", None, None, None, None, {}, first.breakdown, reasons)
    fits = bool(scored.fits(job.spec)[0])
    rows = scored.rows.take(np.arange(1))
    estimate = describe(job, rows, evaluate(rows, job.spec), 0, rank=1, variants=max(1, inside.feasible))
    rank, rank_of_all = rank_of(float(scored.score[0])) if fits else (None, None)
    plan = replace(estimate.plan, rank=rank or 0)
    over = plan.memory_gib - plan.memory_limit_gib
    reasons = {} if fits else {OUT_OF_MEMORY: f"its smallest variant is {over:.1f} GiB over the limit"}
    if over <= 0 and not fits:
        reasons = {OUT_OF_HOST_MEMORY: host_text(job.spec, float(scored.host_bytes[0]))}
    excluded = _excluding(variant, rows)
    if excluded:
        reasons[PINNED_OUT] = f"{', '.join(excluded)} exclude{'s' * (len(excluded) == 1)} it from the plans"
    if variant.constraints is not None and fits:
        broken: dict[str, int] = {}
        variant.constraints.keep(scored, broken)
        reasons |= {code: f"`{code}` excludes it from the plans" for code in broken}
    return WhyAnswer(
        asked=text,
        status="ranked" if fits else next(iter(reasons)),
        rank=rank,
        rank_of_all=rank_of_all,
        slower_than_best=plan.step_time_s / best_time - 1,
        plan=plan,
        breakdown=estimate.breakdown,
        best_breakdown=first.breakdown,
        reasons=reasons,
    )


def _excluding(variant: Variant, rows: Candidates) -> list[str]:
    """The options that keep one layout from the plans of a job."""
    pins, per_stage = variant.pins, -(-variant.job.spec.model.layers // int(rows.pp[0]))
    out = [name for name in pins.degrees if not pins.allows(name, getattr(rows, name))[0]]
    own = int(rows.recompute_modules[0]), int(rows.recompute_layers[0])
    ways = [(way.modules, way.layers_of(per_stage)) for way in pins.recompute or ()]
    out += ["recompute"] if ways and own not in ways else []
    out += ["schedule"] if int(rows.schedule[0]) != pins.schedule else []
    return [f"`{name}`" for name in out]


def _asked_variant(
    job: JobSpec, asked: Mapping[str, str], inside: SearchResult, objective: str
) -> tuple[Scored | None, dict[str, str]]:
    """The best variant of what was asked (the smallest, when none fits), or the rules that forbid it.

    The search does not try every legal layout (virtual stages that leave very uneven chunks, expert-tensor degrees
    between 1 and TP): one of those is evaluated by itself, completed with the defaults of `estimate`.
    """
    if inside.evaluated:
        return (inside.families if inside.feasible else inside.nearest_miss), {}
    counted = {code: rule_text(code, job) for code, _ in most_frequent(inside.rejected)}
    try:
        rows = fixed_layout(job, asked)
    except InputError as error:
        return None, counted or {"degrees_do_not_multiply": error.message}
    broken = {rule.code: rule_text(rule.code, job) for rule in broken_rules(rows, job)}
    if not broken:
        return scored(rows, job, objective), {}
    shared = {code: text for code, text in broken.items() if code in counted}  # not the fault of a default
    return None, shared or broken


TODAY = ("megatron-lm", "torchtitan", "deepspeed", "megatron-deepspeed", "nanotron", "llm-foundry", "generic")
"""Frameworks that a message may point to, by their names."""


def rule_text(code: str, job: JobSpec) -> str:
    """A rule as a sentence, and where the job's framework says it."""
    rule = BY_CODE[code]
    return f"{rule.text} [{source_in(rule, job.runtime.rule_set)}]"


def illegal(rows: Candidates, job: JobSpec, broken: Sequence[Rule], place: str, hint: str) -> InputError:
    """Build the error for one layout that breaks rules: each with code and source, and which frameworks can run it."""
    message = "; ".join(f"{rule.text} ({rule.code}) [{source_in(rule, job.runtime.rule_set)}]" for rule in broken)
    elsewhere = [] if any(rule.frameworks == EVERY for rule in broken) else running_it(rows, job)
    names = " or ".join(filter(None, (", ".join(elsewhere[:-1]), *elsewhere[-1:])))
    return InputError(message, place=place, hint=f"with `framework` {names} it can run; {hint}" if names else hint)


def running_it(rows: Candidates, job: JobSpec) -> list[str]:
    """Return the frameworks of `TODAY` under whose profiles one layout breaks no rule."""
    runtimes = {name: load_framework(name).runtime for name in TODAY}
    return [name for name, runtime in runtimes.items() if not broken_rules(rows, replace(job, runtime=runtime))]


def nothing_legal(job: JobSpec, pins: Pins, found: SearchResult) -> GpuscaleError:
    """The error when no candidate is legal: which rules cut them, or that the degrees do not multiply."""
    if not found.generated:
        return InputError(
            f"no layout of {job.gpus} GPUs has these values",
            place=pins_text(pins) or "layout",
            hint=_schedule_hint(pins.schedule)
            or "TP x PP x CP x DP must equal `gpus`, and EP, ETP and the microbatch must divide what they split",
        )
    rows = _pinned_layout(job, pins)
    broken = broken_rules(rows, job) if rows else []
    hint = "loosen the pinned values" if pins.degrees or pins.recompute else "choose another `framework`"
    if rows and broken:
        return illegal(rows, job, broken, pins_text(pins) or job.model.name, hint)
    reasons = "; ".join(f"{rule_text(code, job)}: {count}" for code, count in most_frequent(found.rejected))
    message = f"none of {found.generated} layouts is legal for {job.model.name} on {job.gpus} GPUs: {reasons}"
    return InputError(message, place=pins_text(pins) or None, hint=hint)


def _schedule_hint(schedule: int) -> str:
    """What layouts a schedule takes; nothing of 1F1B, which takes all."""
    if schedule == ONE_F_ONE_B:
        return ""
    chunks, stages = ("VPP 2" if schedule == ZB_V else "VPP 1"), ("an even" if schedule == DUALPIPE else "a")
    takes = f"{schedule_text(schedule)} takes {stages} PP above 1 with {chunks}"
    return f"{takes}; without `schedule` all layouts are searched"


def _pinned_layout(job: JobSpec, pins: Pins) -> Candidates | None:
    """The layout of the pinned single values, other degrees at their defaults; None where these do not go together."""
    values = {name: pin.single() for name, pin in pins.degrees.items()}
    try:
        return fixed_layout(job, {name: value for name, value in values.items() if value is not None})
    except InputError:
        return None


def most_frequent(rejected: Mapping[str, int]) -> list[tuple[str, int]]:
    """Reason codes with their counts, the most frequent first."""
    return sorted(rejected.items(), key=lambda item: (-item[1], item[0]))


def nothing_fits(job: Job, pins: Pins, found: SearchResult) -> NoAnswerError:
    """The error when nothing fits: the candidate that came closest, by how much, and what would make it fit."""
    assert found.nearest_miss is not None
    rows = found.nearest_miss.rows
    closest = describe(job, rows, evaluate(rows, job.spec), 0, rank=1, variants=1)
    largest = sorted(closest.memory.items(), key=lambda item: -item[1])[:2]
    parts = " and ".join(f"{name.replace('_', ' ')} {gib:.1f} GiB" for name, gib in largest)
    limit = job.spec.memory_limit_bytes / GIB
    message = (
        f"no layout of {job.spec.model.name} fits on {job.spec.gpus} x {job.spec.cluster.gpu.title}: "
        f"the nearest miss, {layout_text(rows.row(0))}, needs {closest.plan.memory_gib:.1f} GiB of {limit:.1f} GiB "
        f"({parts})"
    )
    host_bytes = float(found.nearest_miss.host_bytes[0])
    if host_bytes > job.spec.host_limit_bytes:
        return NoAnswerError(
            f"no layout of {job.spec.model.name} fits: the nearest miss, {layout_text(rows.row(0))}, "
            f"{host_text(job.spec, host_bytes)}",
            hint="offload less (`offload`), take more GPUs, or hosts with more memory",
        )
    return NoAnswerError(message, hint=_what_would_fit(job, pins, closest.plan.memory_gib))


def host_text(spec: JobSpec, host_bytes: float) -> str:
    """What a host would have to hold, and what it may."""
    return (
        f"offloads {host_bytes / GIB:,.0f} GiB to each host, which has room for {spec.host_limit_bytes / GIB:,.0f} GiB"
    )


def _what_would_fit(job: Job, pins: Pins, needed_gib: float) -> str:
    options = [f"GPUs with {math.ceil(needed_gib):,} GiB usable"]
    gpus = _smallest_fitting(job.spec, pins)
    if gpus is not None:
        options.insert(0, f"{gpus} GPUs (the global batch kept a multiple of them)")
    if pins.degrees or pins.recompute:
        options.append("fewer pinned values")
    options.append("a shorter `seq`, or smaller state dtypes (`grad_dtype=bf16`, `moment_dtype=bf16`)")
    return "it would fit with " + ", or ".join(options)


def _smallest_fitting(job: JobSpec, pins: Pins) -> int | None:
    """The first of 2, 4, 8, ... times as many GPUs with which something fits."""
    for factor in (2, 4, 8, 16, 32):
        gpus = job.gpus * factor
        if gpus > MAX_GPUS or (gpus > job.cluster.gpus and not job.cluster.extendable):
            return None
        batch = -(-job.global_batch_size // gpus) * gpus
        bigger = replace(job, gpus=gpus, cluster=job.cluster.sized_for(gpus)[0], global_batch_size=batch)
        if search(bigger, pins, "memory").feasible:
            return gpus
    return None


SCALES = {
    "max_memory": (1.0, "GiB", "GiB"),
    "min_mfu": (100.0, "% MFU", ""),
    "max_step_time": (1.0, "s per step", ""),
    "max_days": (1 / DAY_S, "days", ""),
    "max_cost": (1.0, "USD", ""),
}
"""Constraint -> from its own unit to that of its option; that unit in words, and as the option takes it."""


def no_answer(searched: Sequence[tuple[Variant, SearchResult]], question: Question) -> GpuscaleError:
    """The error when no job has a plan: constraints that none meets, or nothing that fits, or nothing legal."""
    codes = {constraint.code for constraint in constraints(question)}
    constrained = [variant for variant, found in searched if codes & set(found.rejected)]
    if constrained:
        return _nothing_within(constrained, question)
    missed = [(_lack(variant, found), index) for index, (variant, found) in enumerate(searched) if found.nearest_miss]
    variant, found = searched[min(missed)[1] if missed else 0]
    return (
        nothing_fits(variant.job, variant.pins, found)
        if missed
        else nothing_legal(variant.job.spec, variant.pins, found)
    )


def reason_of(variant: Variant, found: SearchResult) -> str:
    """Why one job has no plan, in a few words."""
    bounds = [f"`{code}`" for code in SCALES if code in found.rejected]
    if bounds:
        return f"no plan within {' and '.join(bounds)}"
    if found.nearest_miss is None:
        return NOTHING_LEGAL
    needed, usable = found.nearest_miss.memory_bytes[0] / GIB, variant.job.spec.memory_limit_bytes / GIB
    if needed <= usable:
        return "what is offloaded does not fit in the hosts"
    return f"the smallest layout needs {needed:.1f} of {usable:.1f} GiB"


def _lack(variant: Variant, found: SearchResult) -> float:
    assert found.nearest_miss is not None
    return float(found.nearest_miss.memory_bytes[0]) / variant.job.spec.memory_limit_bytes


def _nothing_within(variants: Sequence[Variant], question: Question) -> NoAnswerError:
    """The error when plans fit and none meets all constraints: the one that misses them least, over all jobs."""
    found: list[tuple[float, Variant, Constraints, Scored]] = []
    for variant in variants:
        assert variant.constraints is not None
        plans = search(variant.job.spec, variant.pins, frontier=True).frontier  # what is worse in both misses by more
        excess = variant.constraints.excess(plans)
        found.append((float(excess.min()), variant, variant.constraints, plans.take(excess.argsort()[:1])))
    _, variant, limits, plan = min(found, key=lambda one: one[0])
    spec = variant.job.spec
    asked = constraints(question)
    values = {one: float(limits.value(one, plan)[0]) for one in asked}
    wanted = " and ".join(f"`{one.code}={_number(one, one.limit)}{SCALES[one.code][2]}`" for one in asked)
    has = ", ".join(f"{_number(one, value)} {SCALES[one.code][1]}" for one, value in values.items())
    where = choice_text(variant.choice) or f"{spec.gpus:,} GPUs"
    missed = [one for one in asked if (values[one] < one.limit if one.objective.rising else values[one] > one.limit)]
    loosened = " ".join(f"`{one.code}={_loosened(one, values[one])}`" for one in missed)
    more = "`gpus`, `cluster`" + ("" if question.space == "full" else ", `precision`, `space=full`")
    return NoAnswerError(
        f"no plan of {spec.model.name} meets {wanted}: "
        f"the closest, {layout_text(plan.rows.row(0))} on {where}, has {has}",
        hint=f"there is one with {loosened}, or ask for more at once ({more})",
    )


def _number(constraint: Constraint, value: float) -> str:
    shown = value * SCALES[constraint.code][0]
    return f"{shown:,.0f}" if shown >= 1000 else f"{shown:.4g}"


def _loosened(constraint: Constraint, value: float) -> str:
    """A value of the option that the plan meets, with four digits."""
    shown = value * SCALES[constraint.code][0]
    digits = 10.0 ** (math.floor(math.log10(shown)) - 3)
    rounded = math.floor(shown / digits) if constraint.objective.rising else math.ceil(shown / digits)
    return f"{rounded * digits:.10g}{SCALES[constraint.code][2]}"
