"""What plans are worth beside step time and memory: headroom, GPU-hours, money, time to train."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscale.comparison import Comparison, VariantRow
from gpuscale.planning.question import PLAIN_OBJECTIVES, Question
from gpuscale.planning.variants import Variant
from gpuscale.results import PlanRow
from gpuscale.search import SearchResult
from gpuscale.search.objectives import MEMORY, OBJECTIVES, TOTAL_COST, Objective
from gpuscale.units import GIB

WORTH = (
    OBJECTIVES["memory_headroom"],
    OBJECTIVES["gpu_hours"],
    OBJECTIVES["cost"],
    OBJECTIVES["time_to_train"],
    TOTAL_COST,
)
"""What is said of every plan where more is asked than step time and memory of one job."""


def best_values(variant: Variant, step_time_s: float, memory_bytes: float) -> dict[str, float]:
    """What the first choice of a job is worth, with what its row says."""
    out = {}
    for goal in (OBJECTIVES[name] for name in PLAIN_OBJECTIVES):
        basis = memory_bytes if goal.basis == MEMORY else step_time_s
        out[goal.key] = float(goal.value(np.array([basis]), variant.job.spec, variant.terms)[0])
    return out | worth(variant, step_time_s, memory_bytes)


def worth(variant: Variant, step_time_s: float, memory_bytes: float) -> dict[str, float]:
    """What a plan is worth beside what its row says: name with unit -> value; what was not given leaves some out."""
    spec, terms, out = variant.job.spec, variant.terms, {}
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
    bounds = {bound.code: bound.limit for bound in question.bounds}
    values = tuple(worth(variant, plan.step_time_s, plan.memory_gib * GIB) for plan in plans)
    return Comparison((goal.name,), bounds, (row,), (0,) * len(plans), values)


__all__ = ["best_values", "one_compared", "worth"]
