"""Several jobs searched, and their plans ranked together; or the Pareto frontier of one or several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, IndexArray
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import concatenate
from gpuscale.planning.describe import describe_all
from gpuscale.planning.jobs import PLAIN_OBJECTIVES, Job, constraints
from gpuscale.planning.variants import Variant, Variants, untried_settings
from gpuscale.planning.why import PlanRank, answer_why, matching, no_answer, reason_of, search_layout
from gpuscale.ratios import TIME, in_words
from gpuscale.request import DEFAULT_TOP, MAX_TOP, Question
from gpuscale.results import BEATEN, Comparison, Estimate, PlanResult, PlanRow, SearchSummary, VariantRow
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import (
    COMPARED_FAMILIES,
    TIMES,
    SearchResult,
    Task,
    near_leaders,
    search,
    search_best,
    shortlist,
)
from gpuscale.search.objectives import MEMORY, OBJECTIVES, TOTAL_COST, Objective
from gpuscale.search.ordering import Scored, scored, undominated
from gpuscale.search.ties import SIMPLICITY_MAY_COST
from gpuscale.units import GIB, format_count

SHOWN_SKIPPED = 5


class _Part(NamedTuple):
    variant: Variant
    best: Scored  #: its plans that may be shown, in order.
    stands_for: int  #: feasible plans that each of them stands for.
    found: SearchResult  #: how the search went, without what grows with the space: hundreds of them are kept.
    families: int  #: how many of its families are listed.
    ahead: int = 0  #: plans that are better than the layout asked for.


def _part(variant: Variant, found: SearchResult, best: Scored | None = None) -> _Part:
    """Keep some plans of a search; if none are given the best, which stands for all."""
    families = len(found.families.score)
    none, first = np.arange(0), np.arange(min(1, families))  # indices, not slices: these would keep the whole alive
    light = replace(
        found, scores=found.scores[none], frontier=found.frontier.take(none), leaders=found.leaders.take(none),
        families=found.families.take(first), family_variants=found.family_variants[first],
    )  # fmt: skip
    shown, stands_for = (light.families, found.feasible) if best is None else (best, 1)
    return _Part(variant, shown, stands_for, light, families)


def _scores(variant: Variant, goal: Objective, plans: Scored) -> FloatArray:
    return goal.score(goal.of(plans.step_time_s, plans.memory_bytes, variant.job.spec, variant.economics))


def compare(variants: Variants, question: Question) -> PlanResult:
    """Search every job, and rank the best plan of each (`question.unfold`: all their plans) by one objective; among
    equals by time per token, memory, and which job was tried first."""
    goal = chosen_goal(question, variants.tried)
    asked, asked_score = (None, None) if question.why is None else _find_asked(variants.tried, goal, question.why)
    if asked is not None and asked_score is not None and not question.unfold:  # what is listed of its job may be meant
        own = _search(asked, question, goal, None, full=variants.full).best
        if matching(question.why or {}, asked, own.rows).any():
            asked_score = float(_scores(asked, goal, own)[0])
    if _cuts(variants, goal, question):
        tasks = [Task(one.job.spec, one.pins, one.constraints) for one in variants.tried]
        searched = zip(variants.tried, search_best(tasks, question.top or DEFAULT_TOP), strict=True)
        parts = [_part(variant, found) for variant, found in searched]
    else:
        parts = [_search(variant, question, goal, asked_score, full=variants.full) for variant in variants.tried]
    _refuse_nothing(parts, question)
    plain = _fewest_changed(variants, parts, goal, question)
    memory = np.concatenate([part.best.memory_bytes for part in parts])
    each_s = np.concatenate([part.best.step_time_s / part.variant.job.spec.tokens_per_step for part in parts])
    score = np.concatenate([_scores(part.variant, goal, part.best) for part in parts])
    every = np.lexsort([memory, each_s, score])  # equal ones stay in order
    if plain is not None:
        first = sum(len(part.best.score) for part in parts[: plain.at])
        every = np.concatenate([[first], every[every != first]])
    result = _result(variants, question, (goal,), parts, every[: question.top or DEFAULT_TOP])
    result = replace(result, notes=(*result.notes, *(plain.notes if plain else ())))
    if question.why is None or asked is None:
        return result
    best, place = result.estimates[0], _place(parts, every, score, (asked, asked_score), question)
    why = answer_why(asked, question.why, goal.basis, best, lambda _own: place)
    if why.plan is not None:
        why = replace(why, slower_than_best=best.plan.tokens_per_s / why.plan.tokens_per_s - 1)
    return replace(result, why=why)


class _Plain(NamedTuple):
    at: int  #: its number.
    notes: tuple[str, ...]  #: what its settings take in the precision that was not changed.


PRECISIONS = ("precision", "moment_dtype")
"""Options that change what is learned, not only how fast."""


def _fewest_changed(variants: Variants, parts: list[_Part], goal: Objective, question: Question) -> _Plain | None:
    """Choose among jobs of a full space the one that goes first, and put its first plan into its part: the fastest,
    with each setting brought back to what the framework does by itself, or to what comes before it in the list of
    values, where that costs no more than `SIMPLICITY_MAY_COST` of the step."""
    if not _one_step(variants, goal, question) or question.why is not None:
        return None
    tried = variants.tried
    values = {name: list(dict.fromkeys(one.choice[name] for one in tried)) for name in tried[0].choice}
    numbers = {tuple(one.choice.values()): at for at, one in enumerate(tried)}
    known = {at: _best_s(part) for at, part in enumerate(parts) if not part.found.beaten}

    def time_s(choice: Mapping[str, int | str]) -> float:
        at = numbers.get(tuple(choice.values()))
        if at is None:
            return math.inf
        if at not in known:
            one = tried[at]
            known[at] = _best_s(_part(one, search_best([Task(one.job.spec, one.pins, one.constraints)], 1)[0]))
        return known[at]

    fastest = min(known, key=known.__getitem__)
    choice, limit_s = dict(tried[fastest].choice), known[fastest] * (1 + SIMPLICITY_MAY_COST)
    for name, several in values.items():
        before = ({**choice, name: one} for one in several[: several.index(choice[name])])
        choice = next((one for one in before if time_s(one) <= limit_s), choice)
    at = numbers[tuple(choice.values())]
    parts[at] = _search(tried[at], question, goal, None, full=False)
    usual = {name: several[0] for name, several in values.items() if name in PRECISIONS}
    if all(choice[name] == one for name, one in usual.items()):
        return _Plain(at, ())
    other_s, said = time_s({**choice, **usual}), ", ".join(f"`{name}={one}`" for name, one in usual.items())
    took = "do not fit" if other_s == math.inf else f"take {in_words(other_s / _best_s(parts[at]), TIME, '#1')}"
    return _Plain(at, (f"the settings of #1 with {said} {took}",))


def _best_s(part: _Part) -> float:
    return float(part.best.step_time_s[0]) if len(part.best.score) else math.inf


def _place(
    parts: Sequence[_Part],
    every: IndexArray,
    score: FloatArray,
    asked: tuple[Variant, float | None],
    question: Question,
) -> PlanRank:
    """Return where the best plan of a layout stands among those of all jobs (`every`, in order), and which of those
    listed it is; `asked`: the job in which the layout is best, and its score there."""
    variant, least = asked
    ahead, rows = sum(part.ahead for part in parts), concatenate([part.best.rows for part in parts])
    if least is None:
        return PlanRank(0, 0)
    own = np.repeat([part.variant is variant for part in parts], [len(part.best.score) for part in parts])
    means = own & matching(question.why or {}, variant, rows) & (score <= least)
    at = np.flatnonzero(means[every])
    if len(at):
        return PlanRank(1 + int(at[0]), 1 + ahead, rows.take(every[at[:1]]))
    return PlanRank(1 + (ahead if question.unfold else int(np.count_nonzero(own | (score < least)))), 1 + ahead)


def frontier(variants: Variants, question: Question) -> PlanResult:
    """Search every job, and return the plans of all that no other beats in one objective without losing in another, in
    the order of the first objective; of plans equal in all of them the first."""
    goals = tuple(OBJECTIVES[name] for name in question.pareto)
    for goal in goals:
        _check_comparable(goal, "pareto", variants.tried)
    parts = []
    for variant in variants.tried:
        found = search(variant.job.spec, variant.pins, constraints=variant.constraints, frontier=True)
        parts.append(_part(variant, found, found.frontier))
    _refuse_nothing(parts, question)
    by_goal = [np.concatenate([_scores(part.variant, goal, part.best) for part in parts]) for goal in goals]
    best = undominated(np.stack(by_goal, axis=1))
    return _result(variants, question, goals, parts, best[: question.top or MAX_TOP], len(best))


def chosen_goal(question: Question, tried: Sequence[Variant]) -> Objective:
    """Return the objective that is asked for, or: of one job the step time; of several GPU counts or clusters with a
    price the cost; of several GPU counts GPU-hours per token; else tokens per second.

    Raises:
        InputError: step times of steps of different length.
    """
    if question.objective is not None:
        goal = OBJECTIVES[question.objective]
        _check_comparable(goal, "objective", tried)
        return goal
    if len(tried) == 1:
        return OBJECTIVES["step_time"]
    apart = tried[0].choice
    if {"gpus", "cluster"} & set(apart) and all(one.economics.usd_per_gpu_hour is not None for one in tried):
        return OBJECTIVES["cost"]
    return OBJECTIVES["gpu_hours" if "gpus" in apart else "tokens_per_s"]


def _check_comparable(goal: Objective, field: str, tried: Sequence[Variant]) -> None:
    sizes = {variant.job.spec.tokens_per_step for variant in tried}
    if goal.name == "step_time" and len(sizes) > 1:
        message = f"steps of {min(sizes):,} and of {max(sizes):,} tokens do not compare by step_time"
        hint = "take tokens_per_s, gpu_hours or cost, or give one `gbs` for all"
        raise InputError(message, field=field, hint=hint)


def _cuts(variants: Variants, goal: Objective, question: Question) -> bool:
    """Whether what cannot be shown is not evaluated: of hundreds of jobs, where their plans are not asked about."""
    return question.why is None and _one_step(variants, goal, question)


def _one_step(variants: Variants, goal: Objective, question: Question) -> bool:
    """Whether jobs are those of a full space, which differ in what their plans may use, and compare by step time."""
    if not variants.full or question.unfold or goal.basis == MEMORY or goal.name == "mfu":
        return False
    first, *others = [(one.job.spec.gpus, one.job.spec.tokens_per_step, one.economics) for one in variants.tried]
    cluster = variants.tried[0].job.spec.cluster
    return all(other == first for other in others) and all(one.job.spec.cluster == cluster for one in variants.tried)


def _search(variant: Variant, question: Question, goal: Objective, asked_score: float | None, *, full: bool) -> _Part:
    """Search one job and keep the plan that a question of its own puts first; in the full space, where most jobs are
    not searched to the end, the fastest."""
    every = question.unfold or question.why is not None
    spec = variant.job.spec
    found = search(spec, variant.pins, goal.basis, constraints=variant.constraints, every=every)
    shown = np.arange(min(question.top or DEFAULT_TOP, len(found.leaders.score)))
    part = _part(variant, found, found.leaders.take(shown) if question.unfold else None)
    if goal.basis in TIMES and found.feasible and not (question.unfold or full):
        plans = shortlist(spec, found, near_leaders(found), COMPARED_FAMILIES)
        part = part._replace(best=scored(plans.rows.take(plans.order(goal.basis, 1, unfold=False)), spec, goal.basis))
    if asked_score is None:
        return part
    values = goal.score(goal.value(found.scores, variant.job.spec, variant.economics))
    return part._replace(ahead=int(np.count_nonzero(values < asked_score)))


def _refuse_nothing(parts: Sequence[_Part], question: Question) -> None:
    if any(part.found.feasible for part in parts):
        return
    searched = [(part.variant, part.found) for part in parts]
    if not any(part.found.evaluated for part in parts):  # none is legal: say what cuts those of the first job alone
        variant = parts[0].variant
        searched[0] = variant, search(variant.job.spec, variant.pins)
    raise no_answer(searched, question)


def _notes(variants: Variants) -> Iterator[str]:
    """Say that steps differ in tokens where the default batch follows the GPUs; settings of which one job's plans would
    try others; and combinations that cannot be."""
    sizes = {variant.job.spec.tokens_per_step for variant in variants.tried}
    if len(sizes) > 1 and not {"gbs", "seq"} & set(variants.tried[0].choice):
        least, most = (format_count(size) for size in (min(sizes), max(sizes)))
        yield f"a step has {least} to {most} tokens; `gbs` sets one batch for all"
    if not variants.full:
        yield from untried_settings(one.job for one in variants.tried)
    yield from (f"not tried: {text}" for text in variants.skipped[:SHOWN_SKIPPED])
    if len(variants.skipped) > SHOWN_SKIPPED:
        yield f"not tried: {len(variants.skipped) - SHOWN_SKIPPED} more combinations"


def summary(found: Sequence[SearchResult], families: int) -> SearchSummary:
    """Add up how searches went."""
    rejected: Counter[str] = Counter()
    for one in found:
        rejected.update(one.rejected)
    return SearchSummary(
        generated=sum(one.generated for one in found),
        candidates=sum(one.evaluated for one in found),
        feasible=sum(one.feasible for one in found),
        families=families,
        rejected=dict(sorted(rejected.items())),
        elapsed_s=math.fsum(one.elapsed_s for one in found),
    )


def _result(
    variants: Variants,
    question: Question,
    goals: tuple[Objective, ...],
    parts: Sequence[_Part],
    chosen: IndexArray,
    frontier_size: int = 0,
) -> PlanResult:
    owner = np.repeat(np.arange(len(parts)), [len(part.best.score) for part in parts])
    first_of = np.searchsorted(owner, np.arange(len(parts)))
    described: dict[int, Estimate] = {}
    for index in np.unique(owner[chosen]).tolist():  # plans of one job are evaluated together
        part, ranks = parts[index], np.flatnonzero(owner[chosen] == index)
        rows, job = part.best.rows.take(chosen[ranks] - first_of[index]), part.variant.job
        stands_for = [part.stands_for] * len(ranks)
        own = describe_all(job, rows, evaluate(rows, job.spec), range(len(ranks)), (ranks + 1).tolist(), stands_for)
        described |= {estimate.plan.rank: estimate for estimate in own}
    estimates = tuple(described[rank] for rank in sorted(described))
    plans = tuple(estimate.plan for estimate in estimates)
    tried, owners = [part.variant for part in parts], owner[chosen].tolist()

    def variant_row(part: _Part) -> VariantRow:
        variant, found, best = part.variant, part.found, dict[str, float]()
        if not frontier_size and len(part.best.score) and not found.beaten:
            best = worth(variant, float(part.best.step_time_s[0]), float(part.best.memory_bytes[0]), (*PLAIN, *WORTH))
        reason = BEATEN if found.beaten else None if found.feasible else reason_of(variant, found)
        return VariantRow(variant.choice, found.evaluated, found.feasible, best, reason)

    jobs = tuple(map(variant_row, parts))
    job = tried[owners[0]].job
    search = summary([part.found for part in parts], sum(part.families for part in parts))
    compared = _compared(question, goals, jobs, tried, owners, plans, frontier_size)
    return replace(answer(job, estimates, search), notes=(*job.notes, *_notes(variants)), compared=compared)


def answer(job: Job, estimates: tuple[Estimate, ...], search: SearchSummary) -> PlanResult:
    """Return what was found for a job."""
    return PlanResult(
        model=job.spec.model.name,
        cluster=job.spec.cluster.name,
        gpus=job.spec.gpus,
        plans=tuple(estimate.plan for estimate in estimates),
        estimates=estimates,
        search=search,
        assumptions=job.assumptions,
        notes=job.notes,
        job=job.request,
    )


def _find_asked(tried: Sequence[Variant], goal: Objective, layout: Mapping[str, str]) -> tuple[Variant, float | None]:
    """Return the job in which a layout is best, among listed plans if possible, or could at least be evaluated, or the
    first; and its score there, None where it does not fit in any."""
    evaluated = None
    for listed in (True, False):
        best: tuple[Variant, float] | None = None
        for variant in tried:
            found = search_layout(variant, layout, goal.basis, listed=listed)
            if found is not None and found.evaluated:
                evaluated = evaluated or variant
            if found is not None and found.feasible:
                score = float(_scores(variant, goal, found.families)[0])
                best = best if best is not None and best[1] <= score else (variant, score)
        if best is not None:
            return best
    return evaluated or tried[0], None


PLAIN = tuple(OBJECTIVES[name] for name in PLAIN_OBJECTIVES)
WORTH = (*(OBJECTIVES[name] for name in ("memory_headroom", "gpu_hours", "cost", "time_to_train")), TOTAL_COST,
         OBJECTIVES["energy"], OBJECTIVES["carbon"])  # fmt: skip
"""What is said of every plan where more is asked than step time and memory of one job."""


def worth(
    variant: Variant, step_time_s: float, memory_bytes: float, goals: Sequence[Objective] = WORTH
) -> dict[str, float]:
    """What a plan is worth: name with unit -> value; what needs a price or tokens that were not given is left out."""
    time_s, size, spec, terms = np.array([step_time_s]), np.array([memory_bytes]), variant.job.spec, variant.economics
    return {one.key: float(one.of(time_s, size, spec, terms)[0]) for one in goals if not one.missing(terms)}


def one_compared(
    variant: Variant, question: Question, goal: Objective, found: SearchResult, plans: Sequence[PlanRow]
) -> Comparison:
    """What one job's plans are worth beside what their rows say."""
    best = worth(variant, plans[0].step_time_s, plans[0].memory_gib * GIB, (*PLAIN, *WORTH))
    row = VariantRow(variant.choice, found.evaluated, found.feasible, best, None)
    return _compared(question, (goal,), (row,), [variant], [0] * len(plans), plans)


def _compared(
    question: Question,
    goals: Sequence[Objective],
    jobs: tuple[VariantRow, ...],
    variants: Sequence[Variant],
    of_plan: Sequence[int],
    plans: Sequence[PlanRow],
    frontier_size: int = 0,
) -> Comparison:
    pairs = zip(of_plan, plans, strict=True)
    values = tuple(worth(variants[index], one.step_time_s, one.memory_gib * GIB) for index, one in pairs)
    bounds = {constraint.code: constraint.limit for constraint in constraints(question)}
    return Comparison(tuple(goal.name for goal in goals), bounds, jobs, tuple(of_plan), values, frontier_size)
