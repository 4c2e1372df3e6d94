"""The answer to `why`: where a layout stands among the plans, how much it lacks, or the rules that reject it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.pins import Pins
from gpuscale.planning.describe import describe
from gpuscale.planning.failures import host_text, most_frequent, rule_text
from gpuscale.planning.layouts import fixed_layout, make_pins
from gpuscale.planning.variants import Variant
from gpuscale.results import Estimate, WhyAnswer
from gpuscale.rules.check import broken_rules
from gpuscale.search import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, Scored, SearchResult, evaluate, score, search
from gpuscale.specs.job import JobSpec

PINNED_OUT = "pinned_out"
"""Reason code of a layout that the user's own pins exclude."""


def wanted(variant: Variant, asked: Mapping[str, str]) -> Pins:
    """Return a layout as pins, under the schedule that is searched unless it names one."""
    pins = make_pins(asked)
    return pins if "schedule" in asked else replace(pins, schedule=variant.pins.schedule)


def search_among_plans(variant: Variant, asked: Mapping[str, str], objective: str) -> SearchResult | None:
    """Search for the variants of a layout among the plans of a job; None where there are none."""
    pins = wanted(variant, asked)
    if pins.schedule != variant.pins.schedule:
        return None
    inside = search(variant.job.spec, variant.pins.narrowed(pins), objective, constraints=variant.constraints)
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
        return score(rows, job, objective), {}
    shared = {code: text for code, text in broken.items() if code in counted}  # not the fault of a default
    return None, shared or broken
