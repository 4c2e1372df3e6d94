"""What to say when no job has a plan: which constraint, memory or rule it was, and what came closest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpuscale.comparison import NOTHING_LEGAL, choice_text
from gpuscale.errors import GpuscaleError, NoAnswerError
from gpuscale.planning.question import DAY_S, Question
from gpuscale.planning.variants import Variant
from gpuscale.planning.verdicts import layout_text, nothing_fits, nothing_legal
from gpuscale.search import Scored, SearchResult, search
from gpuscale.search.objectives import Constraint, Constraints
from gpuscale.units import GIB

Searched = Sequence[tuple[Variant, SearchResult]]

SCALES = {
    "max_memory": (1.0, "GiB", "GiB"),
    "min_mfu": (100.0, "% MFU", ""),
    "max_step_time": (1.0, "s per step", ""),
    "max_days": (1 / DAY_S, "days", ""),
    "max_cost": (1.0, "USD", ""),
}
"""Constraint -> from its own unit to that of its option; that unit in words, and as the option takes it."""


def no_answer(searched: Searched, question: Question) -> GpuscaleError:
    """The error when no job has a plan: constraints that none meets, or nothing that fits, or nothing legal."""
    codes = {bound.code for bound in question.bounds}
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
    bounds = [f"--{code.replace('_', '-')}" for code in SCALES if code in found.rejected]
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


class _Nearest:
    """Takes the chunks of a search and keeps the plan that misses the constraints least."""

    def __init__(self, limits: Constraints) -> None:
        self._limits = limits
        self.excess = math.inf
        self.plan: Scored | None = None

    def add(self, scored: Scored) -> None:
        """Look at one chunk."""
        good = scored.take(scored.fits(self._limits.job))
        excess = self._limits.excess(good)
        if len(excess) and excess.min() < self.excess:
            self.excess = float(excess.min())
            self.plan = good.take(np.array([int(excess.argmin())]))


def _nothing_within(variants: Sequence[Variant], question: Question) -> NoAnswerError:
    """The error when plans fit and none meets all constraints: the one that misses them least, over all jobs."""
    best: tuple[Variant, Constraints, _Nearest] | None = None
    for variant in variants:
        limits = Constraints(question.bounds, variant.job.spec, variant.terms)
        nearest = _Nearest(limits)
        search(variant.job.spec, variant.pins, limits=limits, collect=nearest.add)
        if best is None or nearest.excess < best[2].excess:
            best = variant, limits, nearest
    assert best is not None
    variant, limits, nearest = best
    assert nearest.plan is not None
    spec, plan = variant.job.spec, nearest.plan
    values = {bound: float(limits.value(bound, plan)[0]) for bound in question.bounds}
    asked = " and ".join(
        f"{bound.flag} {_number(bound, bound.limit)}{SCALES[bound.code][2]}" for bound in question.bounds
    )
    has = ", ".join(f"{_number(bound, value)} {SCALES[bound.code][1]}" for bound, value in values.items())
    where = choice_text(variant.choice) or f"{spec.gpus:,} GPUs"
    missed = [
        bound
        for bound, value in values.items()
        if (value < bound.limit if bound.objective.rising else value > bound.limit)
    ]
    loosened = " ".join(f"{bound.flag} {_loosened(bound, values[bound])}" for bound in missed)
    more = "--gpus, --cluster" if question.full else "--gpus, --cluster, --precision, --space full"
    return NoAnswerError(
        f"no plan of {spec.model.name} meets {asked}: "
        f"the closest, {layout_text(plan.rows.row(0))} on {where}, has {has}",
        hint=f"there is one with {loosened}, or ask for more at once ({more})",
    )


def _number(bound: Constraint, value: float) -> str:
    shown = value * SCALES[bound.code][0]
    return f"{shown:,.0f}" if shown >= 1000 else f"{shown:.4g}"


def _loosened(bound: Constraint, value: float) -> str:
    """A value of the option that the plan meets, with four digits."""
    shown = value * SCALES[bound.code][0]
    digits = 10.0 ** (math.floor(math.log10(shown)) - 3)
    rounded = math.floor(shown / digits) if bound.objective.rising else math.ceil(shown / digits)
    return f"{rounded * digits:.10g}{SCALES[bound.code][2]}"


__all__ = ["no_answer", "reason_of"]
