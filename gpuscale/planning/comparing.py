"""Several jobs searched, and their plans ranked together; or the Pareto frontier of one or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.comparison import BEATEN, Comparison, VariantRow
from gpuscale.errors import InputError
from gpuscale.planning.describe import describe
from gpuscale.planning.misses import no_answer, reason_of
from gpuscale.planning.question import Question
from gpuscale.planning.variants import Variant, Variants
from gpuscale.planning.verdicts import Asked, account_for
from gpuscale.planning.worth import best_values, worth
from gpuscale.results import Estimate, PlanResult, SearchSummary, WhyAnswer
from gpuscale.search import Scored, SearchResult, evaluate_each, search
from gpuscale.search.fastest import Entry, fastest
from gpuscale.search.objectives import MEMORY, OBJECTIVES, Objective
from gpuscale.search.ordering import are_listed
from gpuscale.search.pareto import Collector, undominated
from gpuscale.units import format_count

SHOWN_SKIPPED = 5
"""Combinations that cannot be, of which the notes say why."""


@dataclass(frozen=True)
class Show:
    """What of a ranking is wanted.

    Attributes:
        top: plans at most.
        unfold: variants of a family one by one.
        asked: a layout to account for.
        robust: the order by the worst decile under other conditions.
    """

    top: int
    unfold: bool = False
    asked: Mapping[str, str] | None = None
    robust: bool = False


@dataclass(frozen=True)
class _Part:
    """What is kept of the search of one job.

    Attributes:
        best: its plans that may be shown, in order.
        stands_for: feasible plans that each of them stands for.
        found: how the search went, without its scores.
        families: how many of its families are listed.
        ahead: listed families, and plans, that are better than the layout asked for.
        beaten: its best plan, if it has one, is not among those wanted, and was not looked for any further.
    """

    variant: Variant
    best: Scored
    stands_for: npt.NDArray[np.int64]
    found: SearchResult
    families: int
    ahead: tuple[int, int] = (0, 0)
    beaten: bool = False

    def scores(self, goal: Objective) -> FloatArray:
        """Scores of `best` by an objective that compares between jobs."""
        basis = self.best.memory_bytes if goal.basis == MEMORY else self.best.step_time_s
        return _scores(self.variant, goal, basis)


def _scores(variant: Variant, goal: Objective, basis: FloatArray) -> FloatArray:
    return goal.score(goal.value(basis, variant.job.spec, variant.terms))


def compare(variants: Variants, question: Question, show: Show) -> PlanResult:
    """Search every job, and rank the best plan of each (`show.unfold`: all their plans) by one objective.

    Equal scores: less time per token, less memory, then the job that was tried first.

    Raises:
        GpuscaleError: no job has a plan; the message says what came closest.
    """
    goal = chosen_goal(question, variants.tried)
    asked = None if show.asked is None else _find_asked(variants.tried, question, goal, show.asked)
    if _cuts(variants, goal, show):
        parts = _search_best(variants.tried, question, show)
    else:
        parts = [_search(variant, question, goal, show, asked) for variant in variants.tried]
    _refuse_nothing(parts, question)
    owner = np.repeat(np.arange(len(parts)), [len(part.best.score) for part in parts])
    within = np.concatenate([np.arange(len(part.best.score)) for part in parts])
    memory = np.concatenate([part.best.memory_bytes for part in parts])
    each_s = np.concatenate([part.best.step_time_s / part.variant.job.spec.tokens_per_step for part in parts])
    score = np.concatenate([part.scores(goal) for part in parts])
    order = np.lexsort([within, owner, memory, each_s, score])[: show.top]
    picks = [(int(owner[row]), int(within[row])) for row in order]
    result = _result(variants, question, (goal,), parts, picks)
    if asked is None or show.asked is None:
        return result
    return replace(result, why=_account(asked, show.asked, goal, question, parts, result))


def frontier(variants: Variants, question: Question, top: int) -> PlanResult:
    """Search every job, and return the plans of all that no other beats in one objective without losing in another.

    They are in the order of the first objective; of plans equal in all of them the first is shown.

    Raises:
        GpuscaleError: no job has a plan; the message says what came closest.
    """
    goals = tuple(OBJECTIVES[name] for name in question.pareto)
    for goal in goals:
        _check_comparable(goal, "--pareto", variants.tried)
    parts = [_collect(variant, question) for variant in variants.tried]
    _refuse_nothing(parts, question)
    owner = np.repeat(np.arange(len(parts)), [len(part.best.score) for part in parts])
    within = np.concatenate([np.arange(len(part.best.score)) for part in parts])
    scores = np.stack([np.concatenate([part.scores(goal) for part in parts]) for goal in goals], axis=1)
    best = undominated(scores)
    picks = [(int(owner[row]), int(within[row])) for row in best[:top]]
    return _result(variants, question, goals, parts, picks, len(best))


def chosen_goal(question: Question, tried: Sequence[Variant]) -> Objective:
    """Return the objective: the one asked for, or by what differs.

    One job: step time. Jobs of several GPU counts or clusters with a price: cost. Several GPU counts: GPU-hours per
    token. Else tokens per second.

    Raises:
        InputError: step times of steps of different length.
    """
    if question.objective is not None:
        goal = OBJECTIVES[question.objective]
        _check_comparable(goal, "--objective", tried)
        return goal
    if len(tried) == 1:
        return OBJECTIVES["step_time"]
    apart = tried[0].choice
    if {"gpus", "cluster"} & set(apart) and all(one.terms.usd_per_gpu_hour is not None for one in tried):
        return OBJECTIVES["cost"]
    return OBJECTIVES["gpu_hours" if "gpus" in apart else "tokens_per_s"]


def _check_comparable(goal: Objective, flag: str, tried: Sequence[Variant]) -> None:
    sizes = {variant.job.spec.tokens_per_step for variant in tried}
    if goal.name == "step_time" and len(sizes) > 1:
        raise InputError(
            f"steps of {min(sizes):,} and of {max(sizes):,} tokens do not compare by step_time",
            place=flag,
            hint="take tokens_per_s, gpu_hours or cost, or give one --gbs for all",
        )


def _cuts(variants: Variants, goal: Objective, show: Show) -> bool:
    """Whether what cannot be among the plans to show is left unpriced.

    Only in the full space, where jobs differ in what their plans may use, and only where they compare by step time.
    """
    if not variants.full or show.unfold or show.asked is not None or goal.basis == MEMORY or goal.name == "mfu":
        return False
    first, *others = [(one.job.spec.gpus, one.job.spec.tokens_per_step, one.terms) for one in variants.tried]
    cluster = variants.tried[0].job.spec.cluster
    return all(other == first for other in others) and all(one.job.spec.cluster == cluster for one in variants.tried)


def _search_best(tried: Sequence[Variant], question: Question, show: Show) -> list[_Part]:
    """Search jobs for the best plans of the best of them, and leave the rest unpriced."""
    entries = [Entry(one.job.spec, one.pins, one.limits(question)) for one in tried]
    found = zip(tried, fastest(entries, show.top), strict=True)
    return [replace(_best_part(variant, one.found), beaten=one.beaten) for variant, one in found]


def _search(variant: Variant, question: Question, goal: Objective, show: Show, asked: _Found | None) -> _Part:
    """Search one job and keep what may be shown of it."""
    found = search(variant.job.spec, variant.pins, goal.basis, limits=variant.limits(question))
    part = _best_part(variant, found)
    if show.unfold:
        best = found.leaders.take(np.arange(min(show.top, len(found.leaders.score))))
        part = replace(part, best=best, stands_for=np.ones(len(best.score), dtype=np.int64))
    if asked is not None and asked.score is not None:
        listed = found.families.score[are_listed(found.families.rows)]
        counts = (_scores(variant, goal, scores) < asked.score for scores in (listed, found.scores))
        part = replace(part, ahead=(int(np.count_nonzero(next(counts))), int(np.count_nonzero(next(counts)))))
    return part


def _best_part(variant: Variant, found: SearchResult) -> _Part:
    """Keep the best plan of a search, which stands for all."""
    best = found.families.take(np.arange(min(1, len(found.families.score))))
    stands_for = np.full(len(best.score), found.feasible, dtype=np.int64)
    return _Part(variant, best, stands_for, _light(found), int(np.count_nonzero(are_listed(found.families.rows))))


def _collect(variant: Variant, question: Question) -> _Part:
    """Search one job for its frontier of step time and memory."""
    spec, limits = variant.job.spec, variant.limits(question)
    collector = Collector(spec, limits)
    found = search(spec, variant.pins, limits=limits, collect=collector.add)
    best = found.leaders.take(np.arange(0)) if collector.kept is None else collector.kept
    families = int(np.count_nonzero(are_listed(found.families.rows)))
    return _Part(variant, best, np.ones(len(best.score), dtype=np.int64), _light(found), families)


def _light(found: SearchResult) -> SearchResult:
    """A search without what grows with the space: hundreds of them are kept."""
    none, best = np.arange(0), np.arange(min(1, len(found.families.score)))
    return replace(
        found,
        scores=found.scores[:0],
        leaders=found.leaders.take(none),
        families=found.families.take(best),
        family_variants=found.family_variants[best],
    )


def _refuse_nothing(parts: Sequence[_Part], question: Question) -> None:
    if any(part.found.feasible for part in parts):
        return
    searched = [(part.variant, part.found) for part in parts]
    if not any(part.found.evaluated for part in parts):  # none is legal: say what cuts those of the first job alone
        variant = parts[0].variant
        searched[0] = variant, search(variant.job.spec, variant.pins)
    raise no_answer(searched, question)


def _result(
    variants: Variants,
    question: Question,
    goals: tuple[Objective, ...],
    parts: Sequence[_Part],
    picks: Sequence[tuple[int, int]],
    frontier_size: int = 0,
) -> PlanResult:
    """Describe the plans picked (index of the job, index among its best), and what they were picked from."""
    estimates = _described(parts, picks)
    first = parts[picks[0][0]].variant.job
    compared = Comparison(
        objectives=tuple(goal.name for goal in goals),
        bounds={bound.code: bound.limit for bound in question.bounds},
        variants=tuple(_variant_row(part, ranked=not frontier_size) for part in parts),
        of_plan=tuple(owner for owner, _ in picks),
        values=tuple(_worth(parts[owner], within) for owner, within in picks),
        frontier_size=frontier_size,
    )
    return PlanResult(
        model=first.spec.model.name,
        cluster=first.spec.cluster.name,
        gpus=first.spec.gpus,
        plans=tuple(estimate.plan for estimate in estimates),
        estimates=estimates,
        search=_summary(parts),
        assumptions=first.assumptions,
        notes=(*first.notes, *_unequal_steps([part.variant for part in parts]), *_skipped(variants)),
        job=first.request,
        compared=compared,
    )


def _unequal_steps(tried: Sequence[Variant]) -> tuple[str, ...]:
    """A note where the default batch follows the GPUs, so that steps differ in tokens."""
    sizes = {variant.job.spec.tokens_per_step for variant in tried}
    if len(sizes) < 2 or {"gbs", "seq"} & set(tried[0].choice):
        return ()
    return (
        f"a step has {format_count(min(sizes))} to {format_count(max(sizes))} tokens; --gbs sets one batch for all",
    )


def _skipped(variants: Variants) -> tuple[str, ...]:
    """Notes on combinations that cannot be: the first few."""
    more = len(variants.skipped) - SHOWN_SKIPPED
    shown = tuple(f"not tried: {text}" for text in variants.skipped[:SHOWN_SKIPPED])
    return (*shown, f"not tried: {more} more combinations") if more > 0 else shown


def _worth(part: _Part, within: int) -> dict[str, float]:
    return worth(part.variant, float(part.best.step_time_s[within]), float(part.best.memory_bytes[within]))


def _described(parts: Sequence[_Part], picks: Sequence[tuple[int, int]]) -> tuple[Estimate, ...]:
    """Describe picked plans by rank; those of one job are priced together."""
    out: list[Estimate | None] = [None] * len(picks)
    owners = sorted({owner for owner, _ in picks})
    ranks = [[rank for rank, pick in enumerate(picks) if pick[0] == owner] for owner in owners]
    within = [np.array([picks[rank][1] for rank in own], dtype=np.intp) for own in ranks]
    rows = [parts[owner].best.rows.take(index) for owner, index in zip(owners, within, strict=True)]
    jobs = [parts[owner].variant.job for owner in owners]
    priced = evaluate_each([(one, job.spec) for one, job in zip(rows, jobs, strict=True)])
    for owner, job, own, index, one, evaluation in zip(owners, jobs, ranks, within, rows, priced, strict=True):
        for row, rank in enumerate(own):
            stands_for = int(parts[owner].stands_for[index[row]])
            out[rank] = describe(job, one, evaluation, row, rank=rank + 1, variants=stands_for)
    return tuple(one for one in out if one is not None)


def _variant_row(part: _Part, *, ranked: bool) -> VariantRow:
    best: dict[str, float] = {}
    if part.beaten:
        return VariantRow(part.variant.choice, part.found.evaluated, part.found.feasible, best, BEATEN)
    if ranked and len(part.best.score):
        best = best_values(part.variant, float(part.best.step_time_s[0]), float(part.best.memory_bytes[0]))
    reason = None if part.found.feasible else reason_of(part.variant, part.found)
    return VariantRow(part.variant.choice, part.found.evaluated, part.found.feasible, best, reason)


def _summary(parts: Sequence[_Part]) -> SearchSummary:
    """Add up how the searches went."""
    found = [part.found for part in parts]
    rejected: dict[str, int] = {}
    for one in found:
        for code, count in one.rejected.items():
            rejected[code] = rejected.get(code, 0) + count
    return SearchSummary(
        generated=sum(one.generated for one in found),
        candidates=sum(one.evaluated for one in found),
        feasible=sum(one.feasible for one in found),
        families=sum(part.families for part in parts),
        rejected=dict(sorted(rejected.items())),
        elapsed_s=sum(one.elapsed_s for one in found),
    )


@dataclass(frozen=True)
class _Found:
    """Where a layout asked for is at its best: the job, and its score there; None where it does not fit in any."""

    variant: Variant
    score: float | None


def _find_asked(tried: Sequence[Variant], question: Question, goal: Objective, layout: Mapping[str, str]) -> _Found:
    """Look for a layout in every job: the one in which it is best, or could at least be priced, or the first.

    Plans that are listed go before those that pins or constraints exclude.
    """
    asked = [(one, Asked(one.job, layout, one.pins, goal.basis, one.limits(question))) for one in tried]
    listed = _best_found(((variant, ask.among_plans()) for variant, ask in asked), goal)
    if listed is not None:
        return listed
    anywhere = [(variant, _light(ask.anywhere())) for variant, ask in asked]
    priced = (variant for variant, found in anywhere if found.evaluated)
    return _best_found(anywhere, goal) or _Found(next(priced, tried[0]), None)


def _best_found(searched: Iterable[tuple[Variant, SearchResult | None]], goal: Objective) -> _Found | None:
    """The job in which a layout scores best, the first of equals; None where it fits in none."""
    found = [
        (float(_scores(variant, goal, inside.families.score[:1])[0]), variant)
        for variant, inside in searched
        if inside is not None and inside.feasible
    ]
    score, variant = min(found, key=lambda one: one[0], default=(None, None))
    return None if variant is None else _Found(variant, score)


def _account(
    asked: _Found,
    layout: Mapping[str, str],
    goal: Objective,
    question: Question,
    parts: Sequence[_Part],
    result: PlanResult,
) -> WhyAnswer:
    """Account for a layout in the job in which it is at its best; ranks count the plans of all jobs."""
    variant, best = asked.variant, result.estimates[0]
    families, plans = (1 + sum(part.ahead[index] for part in parts) for index in (0, 1))
    ask = Asked(variant.job, layout, variant.pins, goal.basis, variant.limits(question))
    answer = account_for(ask, best, lambda _own: (families, plans))
    if answer.plan is None:
        return answer
    slower = best.plan.tokens_per_s / answer.plan.tokens_per_s - 1
    return replace(answer, slower_than_best=slower)


__all__ = ["Show", "chosen_goal", "compare", "frontier"]
