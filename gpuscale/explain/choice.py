"""The plan beside the others: the best of its job, what the next family lacks, and which number would flip the choice;
or beside one other plan (`compare`).

One pruned search finds the best plan of every family that is at most `NEAR` slower than the best. Only these are looked
at under other conditions, so that "nothing flips it" means: none of them does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arguments import public
from gpuscale.arrays import BoolArray, FloatArray, IndexArray
from gpuscale.display import displayed
from gpuscale.explain.changes import WORTH_SAYING
from gpuscale.explain.steps import Node, difference, memory_trees, step_tree
from gpuscale.launch.subject import Subject
from gpuscale.layouts.arrays import FIELDS, ONE_F_ONE_B, Candidates, combined_key, concatenate, distinct
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.planning.layouts import layout_text
from gpuscale.ratios import SPEED, in_words
from gpuscale.results import PlanRow
from gpuscale.rules.check import ALL_RULES, broken_rules, mark
from gpuscale.search import ties
from gpuscale.search.conditions import perturbed
from gpuscale.search.evaluation import evaluate, time_of
from gpuscale.search.loop import near_leaders, search, search_near
from gpuscale.search.ordering import FAMILY, ROW_FAMILY
from gpuscale.specs.cluster import INSIDE
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS
from gpuscale.units import GIB, enumerated, format_number, format_seconds, plural

NEAR = 0.3
"""How much slower than the best plan others may be that are compared with it."""

BANDWIDTH, KERNELS, LATENCY, TOKENS, MORE_MEMORY = 4.0, 2.0, 1.5, 2.0, 2.0
"""Factors up to which another choice is looked for, either way: a network, kernels, latencies (beyond which
InfiniBand would be another network), batch and sequence, memory."""

MOST_FAMILIES = 3
"""Families that may be the choice, all of whose variants on the frontier of time and memory are compared too."""

REFINEMENTS = 1
"""Factors tried between one at which the choice holds and one at which it does not."""

JUST = 1e-6
"""By how much memory is above or below what a plan just takes."""


@dataclass(frozen=True)
class Flip:
    """A single number that would make another plan the choice."""

    quantity: str  #: what it is.
    factor: float  #: from which factor on it another plan is ahead by more than 1 %.
    value: str  #: what the quantity then is, in words.
    plan: str  #: the plan that is ahead there, in a line.


@dataclass(frozen=True)
class Position:
    """How a plan stands to the best of its job, and that to the next family."""

    is_best: bool  #: the plan is the best, or a variant of it that the model cannot tell from it.
    best: str
    best_step_time_s: float  #: seconds per optimizer step of that.
    behind: float  #: by how much the plan takes longer than the best; below 0 where it is faster and does not fit.
    tied: bool
    #: what the plan spends more than the best on, the most first, as shares of the step of the best.
    why: tuple[str, ...]
    next_plan: str  #: the best plan of the next family; empty where there is none.
    next_behind: float
    next_tied: bool
    next_lacks: tuple[str, ...]


class Field(NamedTuple):
    """The plans that are compared."""

    job: JobSpec
    rows: Candidates  #: those near the best, and those that are as fast with twice the memory.
    score: FloatArray  #: seconds per step, shape (N,), as all others.
    components: FloatArray  #: seconds by component, shape (components, N).
    memory_bytes: FloatArray
    family: IndexArray  #: number of the family of each.
    order: IndexArray  #: those that fit, the first choice first.

    @property
    def first(self) -> int:
        """The choice."""
        return int(self.order[0])

    @property
    def allowed(self) -> float:
        """Up to how much slower than the fastest of all the choice's family may be and the choice still holds: as it
        is, and as much more as is as good."""
        own = self.family[self.order] == self.family[self.first]
        score = self.score[self.order]
        return (1 + ties.AS_GOOD) * float(score[own].min() / score.min())

    @property
    def fits(self) -> BoolArray:
        """Mark the plans that fit."""
        return self.memory_bytes <= self.job.plans_limit_bytes


def field_of(subject: Subject) -> Field | None:
    """Find the plans that a plan is compared with; None where none fits."""
    job, own = subject.spec, int(subject.rows.schedule[0])
    roomy = replace(job, memory_limit_bytes=MORE_MEMORY * job.memory_limit_bytes)
    pins = [Pins(schedule=code) for code in dict.fromkeys((ONE_F_ONE_B, own))]
    found = [search_near(job, pin, NEAR, MORE_MEMORY) for pin in pins]
    parts = [part for one, _ in found for part in (one.families, one.leaders.take(slice(near_leaders(one))))]
    leaders = concatenate([one.leaders.rows.take(slice(near_leaders(one))) for one, _ in found])
    parts += [faster.families for _, faster in found]
    parts += [search(roomy, pin, frontier=True).frontier for pin in _families(leaders)]
    able = [] if broken_rules(subject.rows, job) else [subject.rows]
    rows = concatenate([*(part.rows for part in parts), *able])
    rows = rows.take(distinct(combined_key(rows, FIELDS))[0])
    if not len(rows):
        return None
    done = evaluate(rows, job)
    score = done.step.step_time_s
    fits = np.flatnonzero(
        (done.memory_bytes <= job.plans_limit_bytes) & (done.memory.host_bytes <= job.host_limit_bytes)
    )
    if not len(fits):
        return None
    fits = fits[np.argsort(score[fits], kind="stable")]
    traits = ties.traits(rows, done, job).take(fits)
    order = ties.arranged(score[fits], traits)
    _, family = distinct(combined_key(rows, FAMILY))
    return Field(job, rows, score, done.step.components, done.memory_bytes, family, fits[order])


def _families(leaders: Candidates) -> Iterator[Pins]:
    """Pin the degrees of the first families of some plans: one is the choice, whose variants count too."""
    first = np.sort(distinct(combined_key(leaders, ROW_FAMILY))[0])[:MOST_FAMILIES]
    for row in map(leaders.row, first.tolist()):
        yield Pins({name: Pin(((row[name], row[name]),)) for name in ROW_FAMILY}, schedule=row["schedule"])


def standing(subject: Subject, field: Field) -> Position:
    """Say how a plan stands to the best, and the best to the next family."""
    first = field.first
    own, own_s = subject.evaluation.step.components[:, 0], subject.estimate.plan.step_time_s
    best, best_s = field.components[:, first], float(field.score[first])
    behind = own_s / best_s - 1
    other = next((int(row) for row in field.order if field.family[row] != field.family[first]), None)
    theirs = None if other is None else field.components[:, other]
    return Position(
        is_best=abs(behind) <= ties.AS_GOOD and subject.estimate.plan.fit != "no",
        best=layout_text(field.rows.row(first)),
        best_step_time_s=best_s,
        behind=behind,
        tied=tied(own, best),
        why=_more_of(own, best),
        next_plan="" if other is None else layout_text(field.rows.row(other)),
        next_behind=0.0 if other is None else float(field.score[other]) / best_s - 1,
        next_tied=theirs is not None and tied(theirs, best),
        next_lacks=() if theirs is None else _more_of(theirs, best),
    )


def tied(one: FloatArray, other: FloatArray) -> bool:
    """Whether the model cannot tell two plans apart, by their seconds by component."""
    apart = ties.unlike(one / one.sum(), other / other.sum())
    return abs(math.log(one.sum() / other.sum())) <= float(ties.tie_window(np.asarray(apart)))


def _more_of(one: FloatArray, other: FloatArray) -> tuple[str, ...]:
    """What one plan spends more on than another, as shares of the other's step."""
    more, named = (one - other) / other.sum(), list(COMPONENTS.values())
    order = [int(index) for index in np.argsort(-more, kind="stable")[:2] if more[index] >= WORTH_SAYING]
    return tuple(f"{named[index].text} +{100 * more[index]:.1f}%" for index in order)


class Lever(NamedTuple):
    """A number that may be another one."""

    quantity: str  #: what it is.
    ends: tuple[float, ...]  #: factors on it up to which another choice is looked for.
    whole: bool  #: it is a whole number, and memory and rules depend on it: only the ends are tried.
    changed: Callable[[float], JobSpec]
    value: Callable[[float], str]  #: what it then is, in words.


def flips(field: Field) -> tuple[Flip, ...]:
    """Find the single numbers that make a plan of another family the choice (further ahead than 2 %, as for `risk`),
    the smallest changes first."""
    found = [*_memory_flips(field)]
    for lever in _levers(field.job):
        for end in lever.ends:
            turned = _turned(field, lever, end)
            if turned is not None:
                factor, row = turned
                found.append(Flip(lever.quantity, factor, lever.value(factor), layout_text(field.rows.row(row))))
    return tuple(sorted(found, key=lambda flip: abs(math.log(flip.factor))))


def _levers(job: JobSpec) -> Iterator[Lever]:
    def speed(quantity: str, knob: str, most: float, rate: float | None = None) -> Lever:
        def value(factor: float) -> str:
            now = f"{factor:.2g} x"
            return now if rate is None else f"{format_number(rate)} -> {format_number(rate * factor)} GB/s per GPU"

        return Lever(quantity, (1 / most, most), False, lambda factor: perturbed(job, {knob: 1 / factor}), value)

    def whole(quantity: str, field: str, unit: str) -> Lever:
        now: int = getattr(job, field)
        return Lever(
            quantity,
            tuple(factor for factor in (1 / TOKENS, TOKENS) if (now * factor).is_integer()),
            True,
            lambda factor: replace(job, **{field: int(now * factor)}),  # type: ignore[arg-type]
            lambda factor: f"{now:,} -> {int(now * factor):,} {unit}",
        )

    levels = job.cluster.levels
    rates = [(level.fabric in INSIDE, level.egress_bytes_per_s / 1e9) for level in levels]
    node = max((level.gpus for level in levels if level.fabric in INSIDE), default=1)
    if min(node, job.gpus) > 1:
        yield speed("bandwidth within nodes", "node_links", BANDWIDTH, next(rate for inside, rate in rates if inside))
    if job.gpus > node:
        yield speed("bandwidth between nodes", "network", BANDWIDTH, next(rate for inside, rate in rates if not inside))
    if job.gpus > 1:
        latency = speed("latency of the network", "latency", LATENCY)
        yield latency._replace(ends=(LATENCY,), changed=lambda factor: perturbed(job, {"latency": factor}))
    yield speed("speed of kernels", "kernels", KERNELS)
    yield whole("batch", "global_batch_size", "sequences")
    yield whole("sequence", "sequence", "tokens")


def _at(field: Field, lever: Lever, factor: float) -> FloatArray:
    """Step times of the plans with another number, infinite where they cannot run, (N,) [s]."""
    job, rows = lever.changed(factor), field.rows
    if not lever.whole:  # memory and rules are the same
        times_s = np.full(len(rows), np.inf)
        times_s[field.order] = time_of(rows.take(field.order), job).step_time_s
        return times_s
    share = job.global_batch_size / field.job.global_batch_size
    counts = (rows.num_microbatches * share).astype(np.int64)
    rows = replace(rows, num_microbatches=np.maximum(counts, 1))
    whole = (counts == rows.num_microbatches) & (counts / share == field.rows.num_microbatches)
    done = evaluate(rows, job)
    legal = np.broadcast_to(mark(ALL_RULES, rows, job, {}).legal, whole.shape)
    able = whole & legal & (done.memory_bytes <= job.plans_limit_bytes)
    return np.where(able, done.step.step_time_s, np.inf)


def _ahead(field: Field, times_s: FloatArray) -> tuple[int | None, float]:
    """The fastest plan if the choice's family is too far behind it; and how far that is within the limit, in log."""
    own, fastest = field.family == field.family[field.first], int(times_s.argmin())
    limit = times_s[fastest] * field.allowed
    mine = float(times_s[own].min())
    if not math.isfinite(limit):
        return None, 0.0
    lead = math.log(limit / mine) if math.isfinite(mine) else -1.0
    return (fastest if mine > limit else None), lead


def _turned(field: Field, lever: Lever, end: float) -> tuple[float, int] | None:
    """The factor nearest to 1 that was tried at which another plan is ahead, and that plan."""
    row, lead = _ahead(field, _at(field, lever, end))
    if row is None or lever.whole:
        return None if row is None else (end, row)
    holds, leads, turned = 1.0, (_ahead(field, np.where(field.fits, field.score, np.inf))[1], lead), end
    for _ in range(REFINEMENTS):  # where the lead would be lost if it fell evenly
        share = min(max(leads[0] / (leads[0] - leads[1]), 0.1), 0.9)
        middle = holds * (turned / holds) ** share
        other, lead = _ahead(field, _at(field, lever, middle))
        if other is None:
            holds, leads = middle, (lead, leads[1])
        else:
            row, turned, leads = other, middle, (leads[0], lead)
    return turned, row


def _memory_flips(field: Field) -> Iterator[Flip]:
    limit = field.job.plans_limit_bytes
    sizes = np.unique(field.memory_bytes)
    more = sizes[(sizes > limit) & (sizes <= MORE_MEMORY * limit)] * (1 + JUST)
    fewer = sizes[(sizes <= limit) & (sizes > limit / MORE_MEMORY)][::-1] * (1 - JUST)
    for tried in (fewer, more):
        for size in tried.tolist():
            row, _ = _ahead(field, np.where(field.memory_bytes <= size, field.score, np.inf))
            if row is not None:
                factor, now = size / limit, field.job.memory_limit_bytes / GIB
                value = f"{now:.1f} -> {now * factor:.1f} GiB"
                yield Flip("memory of a GPU", factor, value, layout_text(field.rows.row(row)))
                break


MILLION = 1e6

BASES = {"step": "s per step", "tokens": "s per million tokens", "gpus": "GPU-seconds per million tokens"}
"""What is compared -> its unit: steps of as many tokens on as many GPUs, else with these divided out."""

NAMED = 3

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
    for note in dict.fromkeys((*a, *b)):
        yield note if note in a and note in b else f"{'A' if note in a else 'B'}: {note}"


def _on(basis: str, one: Subject) -> tuple[Node, dict[str, float]]:
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
