"""`compare`: two plans beside each other, and where the difference comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Any

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.explain.choice import tied
from gpuscale.explain.memories import memory_trees
from gpuscale.explain.nodes import Node, difference
from gpuscale.explain.steps import step_tree
from gpuscale.launch.subject import Subject
from gpuscale.ratios import SPEED, in_words
from gpuscale.results import PlanRow
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS
from gpuscale.units import enumerated, format_seconds, plural

MILLION = 1e6

BASES = {"step": "s per step", "tokens": "s per million tokens", "gpus": "GPU-seconds per million tokens"}
"""What is compared -> its unit: steps where both plans train as many tokens in one on as many GPUs, else what is left
of the difference when those are divided out."""

NAMED = 3
"""Components that the verdict names, at most."""

LEAST_NAMED = 0.08
"""Share of the largest difference from which on another one is named."""

LESS = {
    "gemm": "spends {} on GEMMs", "attention": "spends {} on attention", "recompute": "recomputes for {}",
    "elementwise": "spends {} on element-wise work", "optimizer": "spends {} on the optimizer",
    "waiting": "waits {} for the slowest GPU", "launch": "waits {} for launches", "offload": "waits {} for offloading",
    "bubble": "pays {} bubble",
} | {name: f"exposes {{}} {COMPONENTS[name].text}" for name in COMMUNICATION}  # fmt: skip
"""Component -> what a plan does, with how much more or less."""


@dataclass(frozen=True)
class ComparedPlan:
    """One of two plans that are compared."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    job: Mapping[str, str | int | float]  #: as in `gpuscale.plan/1`
    plan: PlanRow  #: the layout and its numbers
    value: float  #: what it takes, in the unit of the comparison


@dataclass(frozen=True)
class Shift:
    """One component of two plans."""

    component: str  #: of the step time, or of memory
    a: float  #: of the first plan, in the unit of the comparison; memory in bytes
    b: float  #: of the second
    difference: float  #: the second less the first


@displayed
@dataclass(frozen=True)
class PlanComparison:
    """Two plans, the second against the first."""

    a: ComparedPlan  #: the first plan
    b: ComparedPlan  #: the second plan
    basis: str  #: `step`, or `tokens` where their batches differ, or `gpus` where their GPUs do
    unit: str  #: what the differences of time are in
    verdict: str  #: which is faster, by how much, and what that comes from
    tie: bool  #: whether plans of equal batches and GPUs are so close that the model hardly tells which is faster
    difference: Node  #: seconds of the second less those of the first, as a tree, in `unit`; shares are of the first
    memory_difference: Node  #: bytes at the fullest stage of the second less those at that of the first, as a tree
    waterfall: tuple[Shift, ...]  #: components of the time that differ, the largest difference first
    memory_waterfall: tuple[Shift, ...]  #: components of the memory that differ, likewise
    #: of both plans, as in `gpuscale.plan/1`; one that holds for one of them says for which
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale.compare/1`."""
        sides = {name: vars(side) | {"plan": side.plan.to_dict()} for name, side in (("a", self.a), ("b", self.b))}
        trees = {name: getattr(self, name).to_dict() for name in ("difference", "memory_difference")}
        falls = {name: [vars(one) for one in getattr(self, name)] for name in ("waterfall", "memory_waterfall")}
        return {**vars(self), **sides, **trees, **falls}


@public
def compare(a: Subject, b: Subject) -> PlanComparison:
    """Compare two plans, as `gpuscale.read_subject` reads them: which is faster, and what the difference is made of."""
    basis = "step" if a.spec.tokens_per_step == b.spec.tokens_per_step else "tokens"
    basis = basis if a.spec.gpus == b.spec.gpus else "gpus"
    (tree_a, seconds_a), (tree_b, seconds_b) = (_on(basis, one) for one in (a, b))
    memory_a, memory_b = (max(memory_trees(one), key=lambda stage: stage.value) for one in (a, b))
    sizes_a, sizes_b = (one.evaluation.memory.at_peak(0) for one in (a, b))
    side_a, side_b = _side(a, tree_a.value), _side(b, tree_b.value)
    alike, waterfall = a.spec.model.name == b.spec.model.name, _changes(seconds_a, seconds_b)
    tie = basis == "step" and alike and tied(*(one.evaluation.step.components[:, 0] for one in (b, a)))
    return PlanComparison(
        a=side_a,
        b=side_b,
        basis=basis,
        unit=BASES[basis],
        verdict=_verdict(side_a, side_b, waterfall, basis, tie=tie),
        tie=tie,
        difference=difference(tree_a, tree_b),
        memory_difference=difference(memory_a, replace(memory_b, name="fullest stage")),
        waterfall=waterfall,
        memory_waterfall=_changes(sizes_a, sizes_b),
        notes=tuple(_notes(a.estimate.notes, b.estimate.notes)),
    )


def _notes(a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    """Yield the notes of two plans, and before what holds for one of them its name."""
    for note in dict.fromkeys((*a, *b)):
        yield note if note in a and note in b else f"{'A' if note in a else 'B'}: {note}"


def _on(basis: str, one: Subject) -> tuple[Node, dict[str, float]]:
    """Return the time of a plan in the unit of the comparison, as a tree and by component."""
    scale = 1.0
    if basis != "step":
        scale = MILLION / one.spec.tokens_per_step * (one.spec.gpus if basis == "gpus" else 1)
    return step_tree(one).times(scale), {name: value * scale for name, value in one.estimate.breakdown.items()}


def _side(one: Subject, value: float) -> ComparedPlan:
    found = one.estimate
    return ComparedPlan(found.model, found.cluster, found.gpus, found.job, found.plan, value)


def _changes(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Shift, ...]:
    changes = [Shift(name, a[name], b[name], b[name] - a[name]) for name in a if not isclose(a[name], b[name])]
    return tuple(sorted(changes, key=lambda one: (-abs(one.difference), one.component)))


def _verdict(a: ComparedPlan, b: ComparedPlan, waterfall: tuple[Shift, ...], basis: str, *, tie: bool) -> str:
    """Say which of two plans is faster and why; first what speaks for that, then what speaks against it."""
    per = {"step": "", "tokens": " per token", "gpus": " per token and GPU"}[basis]
    less, said = b.value <= a.value, f"B is {in_words(a.value / b.value, SPEED.of(per), 'A')}"
    if basis == "gpus":
        words = SPEED.of(f" on {plural(b.gpus, 'GPU')}")
        said += f", {in_words(b.plan.tokens_per_s / a.plan.tokens_per_s, words, f'A on {a.gpus:,}')}"
    shown = [one for one in waterfall[:NAMED] if abs(one.difference) >= LEAST_NAMED * abs(waterfall[0].difference)]
    sides = ([_phrase(one) for one in shown if (one.difference <= 0) == side] for side in (less, not less))
    reasons = ", but ".join(enumerated(side, "and") for side in sides if side)
    unit = "" if basis == "step" else f" ({BASES[basis]})"
    said += f": it {reasons}{unit}" if reasons else ""
    said += "; the difference is within the model's resolution" if tie and a.value != b.value else ""
    short = [name for name, side in (("A", a), ("B", b)) if not side.plan.fits]
    fits = f" {' and '.join(short)} {'do' if len(short) > 1 else 'does'} not fit in memory." if short else ""
    return f"{said}.{fits}"


def _phrase(one: Shift) -> str:
    more = f"{format_seconds(abs(one.difference))} {'less' if one.difference < 0 else 'more'}"
    return LESS[one.component].format(more)
