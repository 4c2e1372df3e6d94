"""Which layout to try next, by what is predicted of each under what was measured so far, and when to stop.

Log(step time) of an untried layout is normal around its prediction under the calibration by the trials so far. What a
trial may gain is how much faster than the best measured it would be on average, counting nothing where it is slower
(expected improvement: Jones, Schonlau and Welch 1998), times the probability that it fits. Trials end where no layout
is likely to be faster by what matters. Pure functions on arrays of N layouts.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, log
from gpuscale.calibration.site import NORMAL_80

MATTERS = 0.02
"""By how much faster a layout has to be to count: repetitions of one layout differ by as much."""

LIKELY = 0.1
"""Probability of that below which a layout is not worth a trial: a choice, as the interval shown leaves 10 % below it.
"""


LEAST_TRIALS = 3
"""Layouts that have to run before trials may end: one tells how fast the machine is, others whether the order holds;
with fewer, one of ten replayed sweeps ended 10 % behind its best (benchmarks/replay_trials.py)."""


class Believed(NamedTuple):
    """What is predicted of layouts, each of shape (N,)."""

    step_time_s: FloatArray  #: the middle of the prediction [s].
    half_width: FloatArray  #: half of its 80 % interval, in the log.
    fit_probability: FloatArray  #: that it fits in memory.


class Next(NamedTuple):
    """What a trial of each layout may bring; shape (N,)."""

    faster: FloatArray  #: probability that it fits and is faster than the best measured by `MATTERS`.
    gain: FloatArray  #: by how much faster it is on average, counting only what is faster, as a share of the best.

    @property
    def best(self) -> int | None:
        """The layout to try, that which may gain most; None where none is likely to be faster."""
        likely = self.faster >= LIKELY
        return int(np.where(likely, self.gain, -1.0).argmax()) if likely.any() else None


def prospects(believed: Believed, best_s: float, left: BoolArray) -> Next:
    """Work out what a trial of each layout may bring.

    Args:
        best_s: step time of the fastest trial [s].
        left: which layouts may be tried, shape (N,).
    """
    deviation = np.maximum(believed.half_width / NORMAL_80, 1e-6)
    ahead = (math.log(best_s) - log(believed.step_time_s)) / deviation
    enough = ahead + math.log1p(-MATTERS) / deviation
    chance = np.where(left, believed.fit_probability, 0.0)
    normal = NormalDist()
    cdf, pdf = (np.array([of(one) for one in ahead.tolist()]) for of in (normal.cdf, normal.pdf))
    faster = np.array([normal.cdf(one) for one in enough.tolist()])
    return Next(chance * faster, chance * deviation * (ahead * cdf + pdf))


def fitting(fit_probability: FloatArray, ran_out: FloatArray, ran: FloatArray) -> FloatArray:
    """Return the probability that each layout fits, given which others ran out of memory and which did not, shape (N,).

    By how much memory is off is taken as common to the layouts of a job: of the cases in which a layout fits, those are
    left in which what ran out would not have, and what ran would.

    Args:
        fit_probability: before anything was tried, shape (N,).
        ran_out, ran: the same of the layouts that did, any number.
    """
    least, most = float(ran_out.max(initial=0.0)), float(ran.min(initial=1.0))
    if least >= most:  # they contradict each other: what is left is that more memory does not fit better
        return np.where(fit_probability > least, fit_probability, 0.0)
    return np.clip((fit_probability - least) / (most - least), 0.0, 1.0)
