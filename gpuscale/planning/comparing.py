"""Several jobs searched, and their plans ranked together; or the Pareto frontier of one or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.errors import InputError
from gpuscale.planning.describe import describe
from gpuscale.planning.jobs import PLAIN_OBJECTIVES, constraints
from gpuscale.planning.variants import Variant, Variants
from gpuscale.planning.why import account_for, no_answer, reason_of, search_among_plans, search_anywhere
from gpuscale.request import DEFAULT_TOP, MAX_TOP, Question
from gpuscale.results import BEATEN, Comparison, Estimate, PlanResult, PlanRow, SearchSummary, VariantRow, WhyAnswer
from gpuscale.search.enumeration import Task
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import SearchResult, search, search_best
from gpuscale.search.objectives import MEMORY, OBJECTIVES, TOTAL_COST, Objective
from gpuscale.search.ordering import Scored, undominated
from gpuscale.units import GIB, format_count

SHOWN_SKIPPED = 5
"""Combinations that cannot be, of which the notes say why."""


class _Part(NamedTuple):
    """What is kept of the search of one job.

    Attributes:
        best: its plans that may be shown, in order.
        stands_for: feasible plans that each of them stands for.
        found: how the search went, without its scores.
        families: how many of its families are listed.
        ahead: listed families, and plans, that are better than the layout asked for.
    """

    variant: Variant
    best: Scored
    stands_for: npt.NDArray[np.int64]
    found: SearchResult
    families: int
    ahead: tuple[int, int] = (0, 0)

    def scores(self, goal: Objective) -> FloatArray:
        """Scores of `best` by an objective that compares between jobs."""
        basis = self.best.memory_bytes if goal.basis == MEMORY else self.best.step_time_s
        return _scores(self.variant, goal, basis)


def _scores(variant: Variant, goal: Objective, basis: FloatArray) -> FloatArray:
    return goal.score(goal.value(basis, variant.job.spec, variant.economics))


def compare(variants: Variants, question: Question) -> PlanResult:
    """Search every job, and rank the best plan of each (`question.unfold`: all their plans) by one objective.

    Equal scores: less time per token, less memory, then the job that was tried first.

    Raises:
        GpuscaleError: no job has a plan; the message says what came closest.
    """
    goal = chosen_goal(question, variants.tried)
    asked, asked_score = (None, None) if question.why is None else _find_asked(variants.tried, goal, question.why)
    if _cuts(variants, goal, question):
        parts = _search_best(variants.tried, question)
    else:
        parts = [_search(variant, question, goal, asked_score) for variant in variants.tried]
    _refuse_nothing(parts, question)
    owner = np.repeat(np.arange(len(parts)), [len(part.best.score) for part in parts])
    within = np.concatenate([np.arange(len(part.best.score)) for part in parts])
    memory = np.concatenate([part.best.memory_bytes for part in parts])
    each_s = np.concatenate([part.best.step_time_s / part.variant.job.spec.tokens_per_step for part in parts])
    score = np.concatenate([part.scores(goal) for part in parts])
    order = np.lexsort([within, owner, memory, each_s, score])[: question.top or DEFAULT_TOP]
    picks = [(int(owner[row]), int(within[row])) for row in order]
    result = _result(variants, question, (goal,), parts, picks)
    if question.why is None or asked is None:
        return result
    return replace(result, why=_account(asked, question.why, goal, parts, result))


def frontier(variants: Variants, question: Question) -> PlanResult:
    """Search every job, and return the plans of all that no other beats in one objective without losing in another.

    They are in the order of the first objective; of plans equal in all of them the first is shown.

    Raises:
        GpuscaleError: no job has a plan; the message says what came closest.
    """
    goals = tuple(OBJECTIVES[name] for name in question.pareto)
    for goal in goals:
        _check_comparable(goal, "pareto", variants.tried)
    parts = [_collect(variant) for variant in variants.tried]
    _refuse_nothing(parts, question)
    owner = np.repeat(np.arange(len(parts)), [len(part.best.score) for part in parts])
    within = np.concatenate([np.arange(len(part.best.score)) for part in parts])
    scores = np.stack([np.concatenate([part.scores(goal) for part in parts]) for goal in goals], axis=1)
    best = undominated(scores)
    picks = [(int(owner[row]), int(within[row])) for row in best[: question.top or MAX_TOP]]
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
        raise InputError(
            f"steps of {min(sizes):,} and of {max(sizes):,} tokens do not compare by step_time",
            field=field,
            hint="take tokens_per_s, gpu_hours or cost, or give one `gbs` for all",
        )


def _cuts(variants: Variants, goal: Objective, question: Question) -> bool:
    """Whether what cannot be among the plans to show is not evaluated.

    Only in the full space, where jobs differ in what their plans may use, and only where they compare by step time.
    """
    if not variants.full or question.unfold or question.why is not None or goal.basis == MEMORY or goal.name == "mfu":
        return False
    first, *others = [(one.job.spec.gpus, one.job.spec.tokens_per_step, one.economics) for one in variants.tried]
    cluster = variants.tried[0].job.spec.cluster
    return all(other == first for other in others) and all(one.job.spec.cluster == cluster for one in variants.tried)


def _search_best(tried: Sequence[Variant], question: Question) -> list[_Part]:
    """Search jobs for the best plans of the best of them, and do not evaluate the rest."""
    tasks = [Task(one.job.spec, one.pins, one.constraints) for one in tried]
    found = zip(tried, search_best(tasks, question.top or DEFAULT_TOP), strict=True)
    return [_best_part(variant, one) for variant, one in found]


def _search(variant: Variant, question: Question, goal: Objective, asked_score: float | None) -> _Part:
    """Search one job and keep what may be shown of it."""
    every = question.unfold or question.why is not None
    found = search(variant.job.spec, variant.pins, goal.basis, constraints=variant.constraints, every=every)
    part = _best_part(variant, found)
    if question.unfold:
        best = found.leaders.take(np.arange(min((question.top or DEFAULT_TOP), len(found.leaders.score))))
        part = part._replace(best=best, stands_for=np.ones(len(best.score), dtype=np.int64))
    if asked_score is not None:
        listed = found.families.score
        counts = (_scores(variant, goal, scores) < asked_score for scores in (listed, found.scores))
        part = part._replace(ahead=(int(np.count_nonzero(next(counts))), int(np.count_nonzero(next(counts)))))
    return part


def _best_part(variant: Variant, found: SearchResult) -> _Part:
    """Keep the best plan of a search, which stands for all."""
    best = found.families.take(np.arange(min(1, len(found.families.score))))
    stands_for = np.full(len(best.score), found.feasible, dtype=np.int64)
    return _Part(variant, best, stands_for, _light(found), len(found.families.score))


def _collect(variant: Variant) -> _Part:
    """Search one job for its frontier of step time and memory."""
    found = search(variant.job.spec, variant.pins, constraints=variant.constraints, frontier=True)
    best = found.frontier
    families = len(found.families.score)
    return _Part(variant, best, np.ones(len(best.score), dtype=np.int64), _light(found), families)


def _light(found: SearchResult) -> SearchResult:
    """A search without what grows with the space: hundreds of them are kept."""
    none, best = np.arange(0), np.arange(min(1, len(found.families.score)))
    return replace(
        found,
        scores=found.scores[:0],
        frontier=found.frontier.take(none),
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
        bounds={constraint.code: constraint.limit for constraint in constraints(question)},
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
        f"a step has {format_count(min(sizes))} to {format_count(max(sizes))} tokens; `gbs` sets one batch for all",
    )


def _skipped(variants: Variants) -> tuple[str, ...]:
    """Notes on combinations that cannot be: the first few."""
    more = len(variants.skipped) - SHOWN_SKIPPED
    shown = tuple(f"not tried: {text}" for text in variants.skipped[:SHOWN_SKIPPED])
    return (*shown, f"not tried: {more} more combinations") if more > 0 else shown


def _worth(part: _Part, within: int) -> dict[str, float]:
    return worth(part.variant, float(part.best.step_time_s[within]), float(part.best.memory_bytes[within]))


def _described(parts: Sequence[_Part], picks: Sequence[tuple[int, int]]) -> tuple[Estimate, ...]:
    """Describe picked plans by rank; those of one job are evaluated together."""
    out: list[Estimate | None] = [None] * len(picks)
    owners = sorted({owner for owner, _ in picks})
    ranks = [[rank for rank, pick in enumerate(picks) if pick[0] == owner] for owner in owners]
    within = [np.array([picks[rank][1] for rank in own], dtype=np.intp) for own in ranks]
    rows = [parts[owner].best.rows.take(index) for owner, index in zip(owners, within, strict=True)]
    jobs = [parts[owner].variant.job for owner in owners]
    evaluated = [evaluate(one, job.spec) for one, job in zip(rows, jobs, strict=True)]
    for owner, job, own, index, one, evaluation in zip(owners, jobs, ranks, within, rows, evaluated, strict=True):
        for row, rank in enumerate(own):
            stands_for = int(parts[owner].stands_for[index[row]])
            out[rank] = describe(job, one, evaluation, row, rank=rank + 1, variants=stands_for)
    return tuple(one for one in out if one is not None)


def _variant_row(part: _Part, *, ranked: bool) -> VariantRow:
    best: dict[str, float] = {}
    if part.found.beaten:
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


def _find_asked(tried: Sequence[Variant], goal: Objective, layout: Mapping[str, str]) -> tuple[Variant, float | None]:
    """Look for a layout in every job: the one in which it is best, or could at least be evaluated, or the first.

    Plans that are listed go before those that pins or constraints exclude.

    Returns:
        The job, and the score of the layout there; None where it does not fit in any.
    """
    listed = _best_found([(one, search_among_plans(one, layout, goal.basis)) for one in tried], goal)
    if listed is not None:
        return listed
    anywhere = [(one, _light(search_anywhere(one, layout, goal.basis))) for one in tried]
    evaluated = (variant for variant, found in anywhere if found.evaluated)
    return _best_found(anywhere, goal) or (next(evaluated, tried[0]), None)


def _best_found(
    searched: Iterable[tuple[Variant, SearchResult | None]], goal: Objective
) -> tuple[Variant, float | None] | None:
    """The job in which a layout scores best, the first of equals, and its score; None where it fits in none."""
    found = [
        (variant, float(_scores(variant, goal, inside.families.score[:1])[0]))
        for variant, inside in searched
        if inside is not None and inside.feasible
    ]
    return min(found, key=lambda one: one[1], default=None)


def _account(
    variant: Variant, layout: Mapping[str, str], goal: Objective, parts: Sequence[_Part], result: PlanResult
) -> WhyAnswer:
    """Account for a layout in the job in which it is at its best; ranks count the plans of all jobs."""
    best = result.estimates[0]
    families, plans = (1 + sum(part.ahead[index] for part in parts) for index in (0, 1))
    answer = account_for(variant, layout, goal.basis, best, lambda _own: (families, plans))
    if answer.plan is None:
        return answer
    slower = best.plan.tokens_per_s / answer.plan.tokens_per_s - 1
    return replace(answer, slower_than_best=slower)


# --- what plans are worth ---------------------------------------------------------------------------------------------

WORTH = (*(OBJECTIVES[name] for name in ("memory_headroom", "gpu_hours", "cost", "time_to_train")), TOTAL_COST)
"""What is said of every plan where more is asked than step time and memory of one job."""


def best_values(variant: Variant, step_time_s: float, memory_bytes: float) -> dict[str, float]:
    """What the first choice of a job is worth, with what its row says."""
    out = {}
    for goal in (OBJECTIVES[name] for name in PLAIN_OBJECTIVES):
        basis = memory_bytes if goal.basis == MEMORY else step_time_s
        out[goal.key] = float(goal.value(np.array([basis]), variant.job.spec, variant.economics)[0])
    return out | worth(variant, step_time_s, memory_bytes)


def worth(variant: Variant, step_time_s: float, memory_bytes: float) -> dict[str, float]:
    """What a plan is worth beside what its row says: name with unit -> value; what was not given leaves some out."""
    spec, terms, out = variant.job.spec, variant.economics, {}
    for goal in WORTH:
        if not goal.missing(terms):
            basis = memory_bytes if goal.basis == MEMORY else step_time_s
            out[goal.key] = float(goal.value(np.array([basis]), spec, terms)[0])
    return out


def one_compared(
    variant: Variant, question: Question, goal: Objective, found: SearchResult, plans: Sequence[PlanRow]
) -> Comparison:
    """What one job's plans are worth beside what their rows say."""
    best = best_values(variant, plans[0].step_time_s, plans[0].memory_gib * GIB)
    row = VariantRow(variant.choice, found.evaluated, found.feasible, best, None)
    bounds = {constraint.code: constraint.limit for constraint in constraints(question)}
    values = tuple(worth(variant, plan.step_time_s, plan.memory_gib * GIB) for plan in plans)
    return Comparison((goal.name,), bounds, (row,), (0,) * len(plans), values)
