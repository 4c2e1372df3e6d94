"""Which plans the model cannot tell apart, and which of those goes first (docs/planning.md).

Over pairs of measured layouts of one job, both predicted within 25 % of the fastest, the order was right as often as a
normal error hypot(COMPARISON_FLOOR, COMPARISON_PER_SHARE * unlike) of log(step time) says, where `unlike` is the share
of the step spent elsewhere: errors that two layouts share cancel. The first choice (`arranged`) is what one would bet a
cluster on; all functions are pure and work on arrays of N plans.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray, exp, log
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import strides
from gpuscale.memory.model import fit_probability
from gpuscale.search.evaluation import Evaluation
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS
from gpuscale.uncertainty import known_of_times

COMPARISON_FLOOR, COMPARISON_PER_SHARE = 0.025, 0.85
"""Standard error of log(step time of one layout / step time of another): at least, and per share of the step spent
elsewhere. Maximum likelihood of which was faster in 2,142 pairs of measured layouts, each group counting alike; either
half of the groups gives 0.015-0.035 and 0.8-0.9. `python benchmarks/fit_ties.py runs.csv`, 2026-11."""

TIE_ODDS = 2.0
"""Odds that the order of two plans is right, below which they are a tie. By a fit to one half of the groups, it was
right in 55-64 % of the other half's ties and in 84-89 % of its other pairs."""

BET_ODDS = 4.0
"""Odds that a plan of an unproven kind is faster, from which on it goes before one of a proven kind: a choice, as the
interval shown holds 80 %."""

NEAR = 0.05
"""Plans within this share of the fastest step time are compared with all their variants; of others the best of a
family."""

AS_GOOD = 0.02
"""Share by which a plan may be slower than the fastest and still be as good: a choice, less than the model is off
by."""

RETRY = 1 / 3
"""Share of a step that a plan takes longer where memory turns out not to suffice: all is recomputed, a forward pass
more on three."""

SIMPLICITY_MAY_COST = 0.01
"""Share by which a simpler plan may be above the least upper end: a choice, well inside every tie; no more, as the
faster on paper is faster on average."""

EXPOSED_STEP = 0.05
"""Exposed communication counts in steps of this share of the step time over the least: less is within its error."""

SHORT_SEQUENCE = 4096
"""Tokens up to which hardly anybody saves memory by splitting sequences (CP): none of `presets/recipes` does, while
from 8,192 tokens on 27 of 333 do."""

UNEVEN = 1_000_000
"""More model chunks than any layout has: unequal ones go after all equal ones."""

ORDER_RULE = (
    "first what is of a kind that was measured on as many GPUs, with a pipeline no deeper than was run with the "
    "framework, and like measured runs where gradients or parameters of experts are sharded, unless "
    f" the odds that another plan is faster are {BET_ODDS:.0f} to 1 or more; of these "
    f"the fastest, a step taking {RETRY:.0%} more time for the chance that it does not fit; within {AS_GOOD:.0%} of "
    "that, first what keeps TP inside the NVLink domain, then what splits no sequences of "
    f"{SHORT_SEQUENCE:,} tokens or fewer, then what is like measured runs; of its ties what has the "
    f"least upper end of its interval, and within {SIMPLICITY_MAY_COST:.0%} of that, first what has fewer and equal "
    f"model chunks, then what exposes less communication (by {EXPOSED_STEP:.0%} of the step and more), then what uses "
    "fewer features (interleaving, context parallelism, ZeRO-3, HSDP, recomputation); the rest by step time"
)

SAFETY, SIMPLICITY = ("unproven", "tp_outside", "cp_short", "unlike_measured"), ("chunks", "exposed", "features")
"""Fields of `Traits` in the order in which they count; less goes first, of `exposed` in steps of `EXPOSED_STEP`."""


class Traits(NamedTuple):
    """What makes one of two plans the better choice; each of shape (N,), but for the first."""

    shares: FloatArray  #: of the step by component, shape (N, components): what two plans have in common.
    high: FloatArray  #: upper end of the 80 % interval of measured / predicted step time.
    retry: FloatArray  #: what the chance that it does not fit costs, as a factor of the step time.
    #: 1 where its kind was measured on fewer GPUs, or never, its pipeline is deeper than any that the framework ran, or
    #: it shards gradients or parameters of experts (nearly all were run with the distributed optimizer) and has no
    #: similar run, else 0.
    unproven: IntArray
    tp_outside: IntArray  #: 1 where tensor parallelism leaves the domain of NVLink or its like, else 0.
    cp_short: IntArray  #: 1 where sequences of `SHORT_SEQUENCE` or fewer tokens are split, else 0.
    unlike_measured: IntArray  #: 1 where no measured run is similar, else 0.
    chunks: IntArray  #: model chunks of the whole pipeline, and `UNEVEN` more where they cannot be equal.
    exposed: FloatArray  #: exposed communication as a share of the step time.
    features: IntArray  #: how many of interleaving, context parallelism, ZeRO-3, HSDP and recomputation it uses.

    def take(self, index: IndexArray) -> Traits:
        """Return those of some plans."""
        return Traits(*(column[index] for column in self))  # type: ignore[arg-type]


def traits(rows: Candidates, evaluation: Evaluation, job: JobSpec) -> Traits:
    """Describe evaluated plans for `arranged`."""
    communication = [list(COMPONENTS).index(name) for name in COMMUNICATION]
    layers, slots = job.model.layers, rows.pp * rows.vpp
    uneven = (layers % slots > 0) & ((layers + 2) % slots > 0)  # embedding and loss may stand for a layer each
    seconds = dict(zip(COMPONENTS, evaluation.step.components, strict=True))
    shares, (half, similar, new_kind) = step_shares(evaluation), known_of_times(job, rows, seconds)
    return Traits(
        shares=shares.T,
        high=exp(half),
        retry=1 + RETRY * (1 - fit_probability(evaluation.memory, job)),
        unproven=(new_kind | (~similar & job.model.is_moe & (rows.zero > 1))).astype(np.int64),
        tp_outside=tp_outside(rows, job).astype(np.int64),
        cp_short=cp_short(rows, job).astype(np.int64),
        unlike_measured=(~similar).astype(np.int64),
        chunks=slots + UNEVEN * uneven,
        exposed=shares[communication].sum(axis=0),
        features=features(rows),
    )


def tp_outside(rows: Candidates, job: JobSpec) -> BoolArray:
    """Whether tensor parallelism of each plan leaves the domain of NVLink or its like, shape (N,)."""
    return rows.tp * strides(rows, job).tp > job.cluster.peer_gpus


def cp_short(rows: Candidates, job: JobSpec) -> BoolArray:
    """Whether each plan splits sequences that nobody splits for their length (`SHORT_SEQUENCE`), shape (N,)."""
    return (rows.cp > 1) & (job.sequence <= SHORT_SEQUENCE)


def features(rows: Candidates) -> IntArray:
    """Count the features of each plan that `Traits.features` names, shape (N,)."""
    recomputes = (rows.recompute_layers > 0) | (rows.recompute_modules > 0)
    hybrid = (rows.zero >= 2) & (rows.shard < rows.dp * rows.cp)
    return np.sum([rows.vpp > 1, rows.cp > 1, rows.zero == 3, hybrid, recomputes], axis=0, dtype=np.int64)


def step_shares(evaluation: Evaluation) -> FloatArray:
    """Shares of the step time by component, shape (components, N)."""
    seconds = evaluation.step.components
    return seconds / seconds.sum(axis=0)


def unlike(shares: FloatArray, other: FloatArray) -> FloatArray:
    """Share of the step that plans spend on other things than another plan, 0 to 1 (total variation distance); shares
    of the step by component, shape (components, N), those of the other (components, 1) or N others."""
    return np.abs(shares - other).sum(axis=0) / 2


def tie_window(distance: FloatArray, odds: float = TIE_ODDS) -> FloatArray:
    """Largest log(slower / faster step time) at which the odds that the order of two plans is right are below `odds` (a
    tie), by the share of the step spent elsewhere."""
    error = np.hypot(COMPARISON_FLOOR, COMPARISON_PER_SHARE * distance)
    return NormalDist().inv_cdf(odds / (1 + odds)) * error


class Order(NamedTuple):
    """How `arranged` sees plans, each of shape (N,)."""

    tied: BoolArray  #: as safe as the first choice, and the model cannot tell them from the fastest of these.
    wager: FloatArray  #: what those go by [s].
    simple: BoolArray  #: of these within `SIMPLICITY_MAY_COST` of the least.
    keys: list[IntArray]  #: criteria of simplicity as whole numbers, 0 where they do not count.


def arranged(score: FloatArray, traits: Traits) -> IndexArray:
    """Return the indices of plans by `ORDER_RULE`, the first choice first; equal scores [s], (N,), keep their order."""
    if not len(score):
        return np.zeros(0, dtype=np.intp)
    seen = _order(score, traits)
    by = np.where(seen.tied, seen.wager, score)
    return np.lexsort([by, *reversed(seen.keys), ~seen.simple, ~seen.tied])


def _order(score: FloatArray, traits: Traits) -> Order:
    safety = [getattr(traits, name) for name in SAFETY]
    fastest = int(score.argmin())
    possible = log(score / score[fastest]) <= _window(fastest, traits, BET_ODDS)
    by = score * traits.retry
    best = int(np.lexsort([by, traits.unproven, ~possible])[0])
    near = possible & (traits.unproven == traits.unproven[best]) & (by <= by[best] * (1 + AS_GOOD))
    safest = int(np.lexsort([by, *reversed(safety), ~near])[0])
    tied = np.logical_and.reduce([column == column[safest] for column in safety])
    tied &= possible & (np.abs(log(score / score[safest])) <= _window(safest, traits, TIE_ODDS))
    bets = score * traits.high * traits.retry
    simple = tied & (bets <= bets[tied].min() * (1 + SIMPLICITY_MAY_COST))
    above = np.maximum(traits.exposed - traits.exposed[simple].min(), 0.0)
    columns = traits.chunks, np.floor(above / EXPOSED_STEP).astype(np.int64), traits.features
    return Order(tied, bets, simple, [np.where(simple, one, 0) for one in columns])


def _window(row: int, traits: Traits, odds: float) -> FloatArray:
    """The same at which the order of a plan and each of the others is right, shape (N,)."""
    return tie_window(unlike(traits.shares.T, traits.shares[[row]].T), odds)


def deciding(score: FloatArray, traits: Traits, first: int, other: int) -> str:
    """Name by what plan `first` goes before another: of `SAFETY`, of `SIMPLICITY`, or `wager`."""
    safety = (name for name in SAFETY if getattr(traits, name)[first] != getattr(traits, name)[other])
    found = next(safety, None)
    seen = _order(score, traits)
    if found is None and seen.simple[other]:
        columns = zip(SIMPLICITY, seen.keys, strict=True)
        found = next((name for name, column in columns if column[first] != column[other]), None)
    return found or "wager"
