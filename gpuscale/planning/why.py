"""Why there is no plan (rules, memory or constraints, and what came closest), and why a layout stands where it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
from gpuscale.layouts.arrays import DUALPIPE, ONE_F_ONE_B, ZB_V, Candidates
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.planning.describe import Chosen, describe
from gpuscale.planning.jobs import CONSTRAINTS, Job, constraints
from gpuscale.planning.layouts import fixed_layout, impossible, layout_text, listed, make_pins, pins_text
from gpuscale.planning.neighbours import Change, jobs_near, of_job, other_jobs, remedies
from gpuscale.planning.variants import Variant
from gpuscale.presets.files import preset_files
from gpuscale.presets.hardware import load_gpu
from gpuscale.request import Question, choice_text, schedule_text
from gpuscale.results import NOTHING_LEGAL, Estimate, PlanRow, WhyAnswer
from gpuscale.rules.check import BY_CODE, broken_rules, source_in
from gpuscale.rules.rule import FRAMEWORKS, Rule
from gpuscale.search import ties
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, SearchResult, anything_fits, legal_rows, search
from gpuscale.search.objectives import Constraint
from gpuscale.search.ordering import Scored, scored
from gpuscale.specs.job import HOST_USABLE, JobSpec
from gpuscale.units import GIB, enumerated, plural

PINNED_OUT = "pinned_out"
"""Reason code of a layout that the user's own pins exclude."""


def _pins_of(asked: Mapping[str, str], variant: Variant) -> Pins:
    """Return a layout as pins, under the schedule that is searched unless it names one."""
    return make_pins({"schedule": schedule_text(variant.pins.schedule), **asked})


def matching(asked: Mapping[str, str], variant: Variant, rows: Candidates) -> BoolArray:
    """Return a mask of the plans of a job that have a layout."""
    return _pins_of(asked, variant).matches(rows, variant.job.spec.model.layers)


def search_layout(variant: Variant, asked: Mapping[str, str], objective: str, *, listed: bool) -> SearchResult | None:
    """Search for the variants of a layout: only among the plans of the job if `listed` (None where it is not among
    these), else whatever is pinned or limited."""
    pins = _pins_of(asked, variant)
    if not listed:
        return search(variant.job.spec, pins, objective)
    both = variant.pins.narrowed(pins)
    if pins.schedule != variant.pins.schedule or both.recompute == ():
        return None
    found = search(variant.job.spec, both, objective, constraints=variant.constraints)
    return found if found.feasible else None


class PlanRank(NamedTuple):
    """Where a layout stands among the plans."""

    rank: int  #: 1 and the plans that a table of any length lists before it.
    rank_of_all: int  #: 1 and the plans that fit and have a better score.
    rows: Candidates | None = None  #: the plan that may be shown, of what was asked; None: the one of the best score.


def place_of(
    chosen: Chosen, found: SearchResult, variant: Variant, asked: Mapping[str, str], least: float, *, unfold: bool
) -> PlanRank:
    """Return where a layout stands among the plans of one job: the first of its variants in the order of plans, beyond
    those near the fastest in that of scores. `least` is the best score of a plan with this layout."""
    plans, families = chosen.plans, found.families.score
    means = matching(asked, variant, plans.rows)
    row = next((int(one) for one in chosen.every if means[one]), None)
    near = plans.score.min() * (1 + ties.NEAR) if chosen.choice else least
    if row is None or (plans.score[row] > max(near, least) and chosen.risk is None):
        listed = found.scores if unfold else families
        rank = int(listed.searchsorted(least)) + _moved_ahead(plans.score[chosen.listed], least)
        return PlanRank(1 + rank, 1 + int(found.scores.searchsorted(least)))
    before = chosen.every[: int(np.flatnonzero(chosen.every == row)[0])]
    rank_of_all = 1 + int(found.scores.searchsorted(plans.score[row]))
    return PlanRank(1 + int(np.isin(chosen.listed, before).sum()), rank_of_all, plans.rows.take(np.array([row])))


def _moved_ahead(scores: FloatArray, least: float) -> int:
    """Count the plans that go before one of this score although theirs are worse: they go before better ones."""
    later = np.minimum.accumulate(scores[::-1])[::-1]
    return int(np.count_nonzero((scores[:-1] > least) & (scores[:-1] > later[1:])))


def answer_why(
    variant: Variant,
    asked: Mapping[str, str],
    objective: str,
    first: Estimate,
    place: Callable[[float], PlanRank],
    called: str = "",
) -> WhyAnswer:
    """Account for a layout: its rank and numbers, how much it lacks, or the rules that reject it.

    Args:
        called: what it is called; by these names and values if not given.
        first: the plan that it is compared with, the first of those shown.
        place: from the best score of the layout to where it stands.
    """
    job = variant.job
    text = called or ",".join(f"{name}={value}" for name, value in asked.items())
    searches = (search_layout(variant, asked, objective, listed=listed) for listed in (True, False))
    inside = next(found for found in searches if found is not None)
    best_time = first.plan.step_time_s
    best, reasons = _asked_variant(job.spec, asked, inside, objective)
    if best is None:
        return WhyAnswer(text, "illegal", None, None, None, None, {}, first.breakdown, reasons)
    fits = bool(best.fits(job.spec)[0])
    rows, rank, rank_of_all = best.rows.take(np.arange(1)), None, None
    if fits:
        rank, rank_of_all, listed = place(float(best.score[0]))
        rows = rows if listed is None else listed
    estimate = describe(job, rows, evaluate(rows, job.spec), variants=max(1, inside.feasible))
    plan = replace(estimate.plan, rank=rank or 0)
    plain = _plain(job, asked, variant.pins.schedule)
    over = plan.memory_gib - plan.memory_limit_gib
    reasons = {} if fits else {OUT_OF_MEMORY: f"its smallest variant is {over:.1f} GiB over the limit"}
    if plan.fit == "tight" and not fits:
        comfortable = job.spec.comfortable_bytes / GIB
        reasons = {"tight": f"fragmentation usually leaves {comfortable:.1f} GiB; with `tight` it is ranked"}
    elif over <= 0 and not fits:
        reasons = {OUT_OF_HOST_MEMORY: host_text(job.spec, float(best.host_bytes[0]))}
    reasons |= left_out(variant, best._replace(rows=rows), fits=fits)
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
        plain=None if plain is None else plain.plan,
        remedies=plain.remedies if plain else (),
    )


def left_out(variant: Variant, plan: Scored, *, fits: bool) -> dict[str, str]:
    """Say why a layout that can run (the first row of `plan`) is not among the plans of a job: code -> reason; nothing
    where it may be. If it `fits`, the question's constraints keep it out."""
    allowed = variant.pins.allowed(plan.rows, variant.job.spec.model.layers)
    excluded = [f"`{name}`" for name, mask in allowed.items() if not mask[0]]
    many = f"{', '.join(excluded)} exclude{'s' * (len(excluded) == 1)} it from the plans"
    reasons = {PINNED_OUT: many} if excluded else {}
    if variant.constraints is not None and fits:
        broken: dict[str, int] = {}
        variant.constraints.keep(plan.step_time_s, plan.memory_bytes, broken)
        reasons |= {code: f"`{code}` excludes it from the plans" for code in broken}
    return reasons


def _plain(job: Job, asked: Mapping[str, str], schedule: int) -> Estimate | None:
    """What was asked as `estimate` completes it, with its remedies, where it can run and does not fit well."""
    layout = {"schedule": schedule_text(schedule), **asked}
    try:
        rows = fixed_layout(job.spec, layout)
    except InputError:  # several values, or another number of data-parallel ranks
        return None
    if broken_rules(rows, job.spec):
        return None
    found = describe(job, rows, evaluate(rows, job.spec))
    found = replace(found, plan=replace(found.plan, rank=0))
    return None if found.plan.fit == "fits" else replace(found, remedies=remedies(job, layout))


def _asked_variant(
    job: JobSpec, asked: Mapping[str, str], inside: SearchResult, objective: str
) -> tuple[Scored | None, dict[str, str]]:
    """The best variant of what was asked (the smallest, when none fits), or the rules that forbid it. A legal layout
    that the search does not try (very uneven chunks, expert-tensor degrees between 1 and TP) is evaluated by itself."""
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
    about = {code: text for code, text in counted.items() if not asked.keys().isdisjoint(BY_CODE[code].options)}
    most = dict(islice(about.items(), MOST_REASONS))
    return None, {code: text for code, text in shared.items() if code in about} or most or shared or broken


MOST_REASONS = 2
"""Rules that are named where none is broken by whatever has the layout: those that speak of it and reject most."""

TODAY = ("megatron-lm", "torchtitan", "deepspeed", "megatron-deepspeed", "nanotron", "llm-foundry", "generic")
"""Frameworks that a message may point to, by their names."""


def rule_text(code: str, job: JobSpec) -> str:
    """A rule as a sentence, and where the job's framework says it."""
    rule = BY_CODE[code]
    return f"{rule.text} [{source_in(rule, job.runtime.rule_set)}]"


def illegal(layout: Mapping[str, Any], job: Job, broken: Sequence[Rule], place: str, hint: str) -> InputError:
    """Build the error for one layout that breaks rules: each with code and source, and what can run it."""
    runtime = job.spec.runtime
    message = "; ".join(f"{rule.text} ({rule.code}) [{source_in(rule, runtime.rule_set)}]" for rule in broken)
    ways = ways_out(job, lambda other: not broken_rules(fixed_layout(other, layout), other))
    return InputError(message, place=place, hint="; ".join(filter(None, (f"{ways} it can run" if ways else "", hint))))


LEFT_OUT = ("overlap", "offload", "precision", "cp_comm", "axis_order", "grad_dtype")
"""Options of a job that rules concern; a hint names those without which what was asked can run."""


def ways_out(job: Job, runs: Callable[[JobSpec], object]) -> str:
    """Name the frameworks with which, else the options without which, something can run; each is tried."""

    def that_run(changes: Iterable[Change]) -> Iterator[str]:
        for change, spec in jobs_near(job, changes):
            with suppress(InputError):
                if runs(spec):
                    yield change.kind[0]

    own = {"vocab_multiple": None, "grad_dtype": None}  # as each framework has them
    with_names = list(that_run(Change((name,), own | {"framework": name}) for name in TODAY))
    if with_names:
        return f"with `framework` {enumerated(with_names, 'or')}"
    without = next(that_run(of_job(**{name: None}) for name in LEFT_OUT if name in job.request), None)
    return f"without `{without}`" if without else ""


def nothing_legal(job: Job, pins: Pins, found: SearchResult) -> GpuscaleError:
    """The error when no candidate is legal: which rules cut them, or that degrees do not multiply."""
    place, spec = pins_text(pins), job.spec
    contradiction = impossible(spec, pins)
    if contradiction is not None:
        return contradiction
    if not found.generated:
        hint = "TP x PP x CP x DP must equal `gpus`, and EP, ETP and the microbatch must divide what they split"
        if pins.schedule != ONE_F_ONE_B:
            chunks, stages = 2 if pins.schedule == ZB_V else 1, "an even" if pins.schedule == DUALPIPE else "a"
            takes = f"{schedule_text(pins.schedule)} takes {stages} PP above 1 with VPP {chunks}; "
            known = pins.schedule in FRAMEWORKS[spec.runtime.rule_set].schedules
            hint = f"{takes if known else ''}without `schedule` all layouts are searched"
        message = f"no layout of {plural(spec.gpus, 'GPU')} has these values"
        return InputError(message, place=place or "layout", hint=hint)
    free = replace(pins, degrees={}, recompute=None)
    hint = _loosened_pins(spec, pins) if free != pins and search(spec, free, "memory").evaluated else ""
    values = {name: pin.single() for name, pin in pins.degrees.items()}
    layout: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    if layout and pins.schedule != ONE_F_ONE_B:
        layout["schedule"] = schedule_text(pins.schedule)
    most = [code for code, _ in most_frequent(found.rejected)][:1]
    with suppress(InputError):  # the pinned single values, other degrees at their defaults, may not go together
        broken = broken_rules(fixed_layout(spec, layout), spec)
        if broken and (layout or {rule.code for rule in broken} & set(most)):  # else it may be the fault of a default
            return illegal(layout, job, broken, place or spec.model.name, hint)
    ways = ways_out(job, lambda other: search(other, pins, "memory").evaluated)
    reasons = "; ".join(f"{rule_text(code, spec)}: {count}" for code, count in most_frequent(found.rejected))
    where = f"{spec.model.name} on {plural(spec.gpus, 'GPU')}"
    message = f"none of {found.generated:,} layouts is legal for {where}: {reasons}"
    hint = "; or ".join(filter(None, (hint, f"{ways} some are" if ways else "")))
    return InputError(message, place=place or None, hint=hint)


def _loosened_pins(job: JobSpec, pins: Pins) -> str:
    """Say which pinned degrees may have which other values, each beside the rest."""
    found = []
    for name in (name for name in pins.degrees if name != "sp"):
        free = {other: pin for other, pin in pins.degrees.items() if other != name}
        rows = legal_rows(job, replace(pins, degrees=free), {})
        values = sorted({int(one) for some in rows for one in np.unique(getattr(some.listed(), name))})
        if pins.recompute is not None:  # rules on which rows are not checked yet
            each = {one: replace(pins, degrees={**free, name: Pin(((one, one),))}) for one in values}
            values = [one for one, pinned in each.items() if search(job, pinned, "memory").evaluated]
        found += [f"`{name}` may be {listed(values)}"] if values else []
    return f"here {'; or '.join(found[:2])}" if found else "loosen the pinned values"


def most_frequent(rejected: Mapping[str, int]) -> list[tuple[str, int]]:
    """Reason codes with their counts, the most frequent first."""
    return sorted(rejected.items(), key=lambda item: (-item[1], item[0]))


def nothing_fits(job: Job, pins: Pins, nearest_miss: Scored) -> NoAnswerError:
    """The error when nothing fits: what came closest, by how much, and what would fit."""
    spec, rows, host_bytes = job.spec, nearest_miss.rows, float(nearest_miss.host_bytes[0])
    what, miss = f"no layout of {spec.model.name} fits", f"the nearest miss, {layout_text(rows.row(0))},"
    closest = describe(job, rows, evaluate(rows, spec))
    plan = closest.plan.to_dict()
    if host_bytes > spec.host_limit_bytes:
        hosts = f"hosts of {math.ceil(host_bytes / HOST_USABLE / GIB):,} GiB"
        return NoAnswerError(
            f"{what}: {miss} {host_text(spec, host_bytes)}",
            hint=lambda: f"it would fit with {', or '.join([*_other_that_fits(job, pins), hosts])}",
            nearest_miss=plan,
        )
    largest = sorted(closest.memory.items(), key=lambda item: -item[1])[:2]
    parts = " and ".join(f"{name.replace('_', ' ')} {gib:.1f} GiB" for name, gib in largest)
    return NoAnswerError(
        f"{what} on {spec.gpus} x {spec.cluster.gpu.title}: {miss} needs {closest.plan.memory_gib:.1f} GiB of "
        f"{spec.plans_limit_bytes / GIB:.1f} GiB ({parts})",
        hint=lambda: f"it would fit with {', or '.join(_would_fit(job, pins, closest.plan))}",
        nearest_miss=plan,
    )


def _would_fit(job: Job, pins: Pins, closest: PlanRow) -> Iterator[str]:
    """Yield what lets a plan fit where none does: every way but the last has been tried."""
    spec = job.spec
    if closest.fit == "tight":
        yield "`tight`"
    others = [*_other_that_fits(job, pins)]
    free = replace(pins, degrees={}, recompute=None)
    if free != pins and anything_fits(spec, free):
        others.append("fewer pinned values")
    yield from others
    needed = closest.memory_gib * GIB * spec.memory_limit_bytes / spec.plans_limit_bytes
    if not others or needed <= max(load_gpu(name).memory_bytes for name in preset_files("gpus")):
        yield f"GPUs of {math.ceil(needed / GIB):,} GiB"


def _other_that_fits(job: Job, pins: Pins) -> Iterator[str]:
    """Yield an option of the job that lets a plan fit, a way to train fewer weights that does, and how many GPUs do."""
    found = []
    for kind in other_jobs(job):
        fitting = (change for change, other in kind if anything_fits(other, pins))
        found += [" ".join(f"`{name}={value}`" for name, value in change.items()) for change in islice(fitting, 1)]
    yield from dict.fromkeys(found)
    gpus = _smallest_fitting(job, pins)
    if gpus is not None:
        yield f"{plural(gpus, 'GPU')} (the global batch kept a multiple of them)"


def host_text(spec: JobSpec, host_bytes: float) -> str:
    """What a host would have to hold, and what it may."""
    room = f"room for {spec.host_limit_bytes / GIB:,.0f} GiB"
    return f"offloads {host_bytes / GIB:,.0f} GiB to each host, which has {room}"


def _smallest_fitting(job: Job, pins: Pins) -> int | None:
    sizes = [job.spec.gpus * factor for factor in (2, 4, 8, 16, 32)]
    larger = (of_job(gpus=gpus, gbs=-(-job.spec.global_batch_size // gpus) * gpus) for gpus in sizes)
    return next((spec.gpus for _, spec in jobs_near(job, larger) if anything_fits(spec, pins)), None)


def no_answer(searched: Sequence[tuple[Variant, SearchResult]], question: Question) -> GpuscaleError:
    """The error when no job has a plan."""
    codes = {constraint.code for constraint in constraints(question)}
    constrained = [variant for variant, found in searched if codes & set(found.rejected)]
    if constrained:
        return _nothing_within(constrained, question)
    missed = [(variant, found, found.nearest_miss) for variant, found in searched if found.nearest_miss]
    if not missed:
        variant, found = searched[0]
        return nothing_legal(variant.job, variant.pins, found)
    variant, _, miss = min(missed, key=lambda one: one[2].memory_bytes[0] / one[0].job.spec.plans_limit_bytes)
    return nothing_fits(variant.job, variant.pins, miss)


def reason_of(variant: Variant, found: SearchResult) -> str:
    """Why one job has no plan, in a few words."""
    bounds = [f"`{code}`" for code in CONSTRAINTS if code in found.rejected]
    if bounds:
        return f"no plan within {' and '.join(bounds)}"
    if found.nearest_miss is None:
        return NOTHING_LEGAL
    needed, usable = found.nearest_miss.memory_bytes[0] / GIB, variant.job.spec.plans_limit_bytes / GIB
    if needed <= usable:
        return "what is offloaded does not fit in the hosts"
    return f"the smallest layout needs {needed:.1f} of {usable:.1f} GiB"


def _nothing_within(variants: Sequence[Variant], question: Question) -> NoAnswerError:
    """The error when plans fit and none meets all constraints: the one that misses them least, over all jobs."""
    found: list[tuple[float, Variant, Scored]] = []
    for variant in variants:
        assert variant.constraints is not None
        plans = search(variant.job.spec, variant.pins, frontier=True).frontier  # what is worse in both misses by more
        excess = variant.constraints.excess(plans.step_time_s, plans.memory_bytes)
        found.append((float(excess.min()), variant, plans.take(np.array([excess.argmin()]))))
    _, variant, plan = min(found, key=lambda one: one[0])
    spec = variant.job.spec
    asked = constraints(question)
    time_s, size = plan.step_time_s, plan.memory_bytes
    values = {one: float(one.objective.of(time_s, size, spec, variant.economics)[0]) for one in asked}
    wanted = " and ".join(f"`{one.code}={_number(one, one.limit)}{CONSTRAINTS[one.code][3]}`" for one in asked)
    has = ", ".join(f"{_number(one, value)} {CONSTRAINTS[one.code][2]}" for one, value in values.items())
    where = choice_text(variant.choice) or plural(spec.gpus, "GPU")
    missed = [one for one in asked if (values[one] < one.limit if one.objective.rising else values[one] > one.limit)]
    loosened = " ".join(f"`{one.code}={_loosened(one, values[one])}`" for one in missed)
    more = "`gpus`, `cluster`" + ("" if question.space == "full" else ", `precision`, `space=full`")
    return NoAnswerError(
        f"no plan of {spec.model.name} meets {wanted}: "
        f"the closest, {layout_text(plan.rows.row(0))} on {where}, has {has}",
        hint=f"there is one with {loosened}, or ask for more at once ({more})",
        nearest_miss=describe(variant.job, plan.rows, evaluate(plan.rows, spec)).plan.to_dict(),
    )


def _number(constraint: Constraint, value: float) -> str:
    shown = value / CONSTRAINTS[constraint.code][1]
    return f"{shown:,.0f}" if shown >= 1000 else f"{shown:.4g}"


def _loosened(constraint: Constraint, value: float) -> str:
    """A value of the option that the plan meets, with four digits."""
    shown = value / CONSTRAINTS[constraint.code][1]
    digits = 10.0 ** (math.floor(math.log10(shown)) - 3)
    rounded = math.floor(shown / digits) if constraint.objective.rising else math.ceil(shown / digits)
    return f"{rounded * digits:.10g}{CONSTRAINTS[constraint.code][3]}"
