"""Which plans the model cannot tell apart, and which of those goes first.

Errors that two layouts of one job share cancel when they are compared: what is left grows with the share of the step
that they spend on different things. Over pairs of measured layouts of one job (same model, GPUs, batch, sequence,
precision and software), both predicted within 25 % of the fastest, the order was right as often as a normal error of

    sigma = hypot(COMPARISON_FLOOR, COMPARISON_PER_SHARE * unlike)

of log(step time) says, where `unlike` is the share of the step spent elsewhere. Two plans are a tie where by that the
odds of their order are below `TIE_ODDS` to 1.

The prediction stays the best guess of which is faster, so ties keep the order of their step times, with two exceptions
(`arranged`): among plans within `SAFETY_MAY_COST` of the fastest those that one would rather bet a cluster on go first,
and of the best of these, within `SIMPLICITY_MAY_COST` of the fastest of them, the simpler. All functions are pure and
work on arrays of N plans.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import BoolArray, FloatArray, IndexArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import strides
from gpuscale.memory.interval import fit_probability
from gpuscale.search.evaluation import Evaluation
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS
from gpuscale.uncertainty import similar_to_measured

COMPARISON_FLOOR, COMPARISON_PER_SHARE = 0.035, 0.5
"""Standard error of log(step time of one layout / step time of another): at least, and per share of the step spent
elsewhere. Maximum likelihood of which was faster in 2,019 pairs of measured layouts, each group of them counting alike;
either half of the groups gives 0.03-0.05 and 0.35-0.55. `python benchmarks/fit_ties.py runs.csv`, 2026-07."""

TIE_ODDS = 2.0
"""Odds that the order of two plans is right, below which they are a tie. By a fit to one half of the groups, the order
was right in 51-60 % of the other half's ties and in 90-91 % of its other pairs."""

SAFETY_MAY_COST = 0.02
"""Share of the fastest step time that a safer plan may take longer and still go first: a choice, less than the model is
off by. A run that is lost for want of memory, or a layout that nobody has run, costs more."""

SIMPLICITY_MAY_COST = 0.01
"""The same of a simpler plan: a choice, well inside every tie. No more, because the faster on paper is still faster on
average."""

SURE_TO_FIT = 0.9
"""Probability of fitting from which on a plan is safe: the upper end of the 80 % interval of its memory fits."""

EXPOSED_STEP = 0.05
"""Exposed communication counts in steps of this share of the step time over the least among the plans compared: less
is within its error."""

UNEVEN = 1_000_000
"""More model chunks than any layout has: unequal ones go after all equal ones."""

ORDER_RULE = (
    f"within {SAFETY_MAY_COST:.0%} of the fastest, first what keeps TP inside the NVLink domain, then what is like "
    f"measured runs, then what fits with a probability of {SURE_TO_FIT:.0%} or more; of these, within "
    f"{SIMPLICITY_MAY_COST:.0%} of their fastest, first what has fewer and equal model chunks, then what exposes less "
    f"communication (by {EXPOSED_STEP:.0%} of the step and more), then what uses fewer features (interleaving, context "
    "parallelism, ZeRO-3, HSDP, recomputation), then the faster; the rest by step time"
)
"""The rule of `arranged` in words."""

SAFETY, SIMPLICITY = ("tp_outside", "unlike_measured", "may_not_fit"), ("chunks", "exposed", "features")
"""Fields of `Traits` in the order in which they count; less goes first, of `exposed` in steps of `EXPOSED_STEP`."""


class Traits(NamedTuple):
    """What makes one of two equally fast plans the better choice; each of shape (N,)."""

    tp_outside: npt.NDArray[np.int64]  #: 1 where tensor parallelism leaves the domain of NVLink or its like, else 0.
    unlike_measured: npt.NDArray[np.int64]  #: 1 where no measured run is similar, else 0.
    may_not_fit: npt.NDArray[np.int64]  #: 1 where it fits with a probability below `SURE_TO_FIT`, else 0.
    chunks: npt.NDArray[np.int64]  #: model chunks of the whole pipeline, and `UNEVEN` more where they cannot be equal.
    exposed: FloatArray  #: exposed communication as a share of the step time.
    #: how many of interleaving, context parallelism, ZeRO-3, HSDP and recomputation it uses: what needs tuning and can
    #: go wrong.
    features: npt.NDArray[np.int64]

    def take(self, index: IndexArray) -> Traits:
        """Return those of some plans."""
        return Traits(*(column[index] for column in self))  # type: ignore[arg-type]


def traits(rows: Candidates, evaluation: Evaluation, job: JobSpec) -> Traits:
    """Describe evaluated plans for `arranged`."""
    communication = [list(COMPONENTS).index(name) for name in COMMUNICATION]
    layers, slots = job.model.layers, rows.pp * rows.vpp
    uneven = (layers % slots > 0) & ((layers + 2) % slots > 0)  # embedding and loss may stand for a layer each
    seconds = dict(zip(COMPONENTS, evaluation.step.components, strict=True))
    return Traits(
        tp_outside=(rows.tp * strides(rows, job).tp > job.cluster.peer_gpus).astype(np.int64),
        unlike_measured=(~similar_to_measured(job, rows, seconds)).astype(np.int64),
        may_not_fit=(fit_probability(evaluation.memory, job) < SURE_TO_FIT).astype(np.int64),
        chunks=slots + UNEVEN * uneven,
        exposed=step_shares(evaluation)[communication].sum(axis=0),
        features=features(rows),
    )


def features(rows: Candidates) -> npt.NDArray[np.int64]:
    """Count the features of each plan that `Traits.features` names, shape (N,)."""
    recomputes = (rows.recompute_layers > 0) | (rows.recompute_modules > 0)
    hybrid = (rows.zero >= 2) & (rows.shard < rows.dp * rows.cp)
    return np.sum([rows.vpp > 1, rows.cp > 1, rows.zero == 3, hybrid, recomputes], axis=0, dtype=np.int64)


def step_shares(evaluation: Evaluation) -> FloatArray:
    """Shares of the step time by component, shape (components, N)."""
    seconds = evaluation.step.components
    return seconds / seconds.sum(axis=0)


def unlike(shares: FloatArray, other: FloatArray) -> FloatArray:
    """Share of the step that plans spend on other things than another plan, 0 to 1 (total variation distance).

    Args:
        shares: shares of the step by component, shape (components, N).
        other: of the other plan, shape (components, 1), or of N others.
    """
    return np.abs(shares - other).sum(axis=0) / 2


def tie_window(distance: FloatArray) -> FloatArray:
    """Largest log(slower / faster step time) at which two plans are a tie, by the share of the step spent elsewhere."""
    error = np.hypot(COMPARISON_FLOOR, COMPARISON_PER_SHARE * distance)
    return NormalDist().inv_cdf(TIE_ODDS / (1 + TIE_ODDS)) * error


def arranged(score: FloatArray, traits: Traits) -> IndexArray:
    """Order plans by `ORDER_RULE`.

    Args:
        score: seconds, shape (N,); equal ones keep their order.
        traits: of the same plans.

    Returns:
        Indices of all plans, the first choice first.
    """
    if not len(score):
        return np.zeros(0, dtype=np.intp)
    near, _, keys = _keys(score, traits)
    return np.lexsort([score, *reversed(keys), ~near])


def _keys(score: FloatArray, traits: Traits) -> tuple[BoolArray, BoolArray, list[npt.NDArray[np.int64]]]:
    """Return which plans are near the fastest, which of these compare by simplicity, and the criteria as whole numbers
    in the order in which they count, 0 where they do not: those of safety, whether a plan is of the simple, and those
    of simplicity."""
    near = score <= score.min() * (1 + SAFETY_MAY_COST)
    safety = [np.where(near, getattr(traits, name), 0) for name in SAFETY]
    best = np.lexsort([*reversed(safety), ~near])[0]
    safest = near & np.logical_and.reduce([column == column[best] for column in safety])
    simple = safest & (score <= score[safest].min() * (1 + SIMPLICITY_MAY_COST))
    above = np.maximum(traits.exposed - traits.exposed[simple].min(), 0.0)
    columns = traits.chunks, np.floor(above / EXPOSED_STEP).astype(np.int64), traits.features
    return near, simple, [*safety, (safest & ~simple).astype(np.int64), *(np.where(simple, one, 0) for one in columns)]


def deciding(score: FloatArray, traits: Traits, first: int, other: int) -> str | None:
    """Name the criterion by which plan `first` goes before plan `other`; None where it is the score."""
    near, simple, keys = _keys(score, traits)
    if not near[[first, other]].all():
        return None
    names = [*SAFETY, None, *(SIMPLICITY if simple[[first, other]].all() else ())]
    columns = zip(names, keys, strict=False)
    return next((name for name, column in columns if column[first] != column[other]), None)
