"""A site's calibration: factors fitted to measured runs, and what is left of their differences.

In logs measured over predicted step time is what the factors do, a remainder that runs alike have in common, and noise:

    y = J theta + r + e,    theta ~ N(0, prior^2),    r ~ N(0, K),    e ~ N(0, NOISE^2)
    K_ij = REMAINDER^2 exp(-distance_ij / SCALE)

with J the derivatives of the predicted step time by the factors (Kennedy and O'Hagan 2001, "Bayesian calibration of
computer models"), again under the factors that were found (Gauss-Newton).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, exp, log
from gpuscale.calibration.factors import factor_of
from gpuscale.specs.job import JobSpec
from gpuscale.specs.site import AXES, SCALE, SiteSpec, layouts_apart

REMAINDER, NOISE = 0.15, 0.03
"""Standard deviations of what runs alike have in common beyond the factors, and of what even repetitions differ by:
with these, half of the published runs of a source predict the other half best (benchmarks/calibrate_families.py)."""

NORMAL_80 = 1.2816
"""Standard deviations on each side of the mean that hold 80 % of a normal distribution."""

HELD_80 = 1.0
"""Those that hold 80 % of the published runs that a calibration on others of their source predicts: 0.8, rounded up
(benchmarks/calibrate_families.py)."""

TEXTS = {
    "vendor": 4.0, "architecture": 0.5, "gpu": 1.0, "network": 0.2, "model": 0.5, "moe": 1.0, "precision": 0.7,
    "low_precision": 0.7, "offload": 2.0, "software": 0.75, "profile": 0.75, "framework": 0.5, "dispatcher": 1.0,
    "compile": 1.0, "cluster": 0.0,
}  # fmt: skip
NUMBERS = {"log_size": 0.5, "log_gpus": 0.3, "log_sequence": 0.3}
"""Distance of two jobs that differ in a text, and per unit of a number; `gpuscale.uncertainty` has most of them."""

Like = Mapping[str, str | float]
"""What a job is like: its texts and numbers."""


def likeness(job: JobSpec) -> dict[str, str | float]:
    """Say what a job is like."""
    gpu, model, runtime = job.cluster.gpu, job.model, job.runtime
    low = job.precision in {"fp8", "fp4"}
    stem, _, year = runtime.rule_set.rpartition("-")
    return {
        "vendor": gpu.vendor, "architecture": gpu.architecture, "gpu": gpu.name, "cluster": job.cluster.name,
        "network": job.cluster.level_of_group(job.gpus, 1).fabric,
        "model": model.name, "moe": "yes" if model.is_moe else "no",
        "precision": f"{job.precision} {job.recipe}" if low else job.precision, "low_precision": "yes" if low else "no",
        "offload": "yes" if job.offload.any else "no",
        "software": stem if year.isdecimal() else runtime.rule_set, "profile": runtime.rule_set,
        "framework": runtime.name,
        "dispatcher": f"{runtime.dispatcher} {runtime.transport}" if model.is_moe else "",
        "compile": str(runtime.compile),
        "log_size": math.log10(12 * model.hidden**2 * model.layers), "log_gpus": math.log10(job.gpus),
        "log_sequence": math.log10(job.sequence),
    }  # fmt: skip


def _jobs_apart(one: Like, other: Like) -> float:
    texts = math.fsum(factor for name, factor in TEXTS.items() if one[name] != other[name])
    return texts + math.fsum(factor * abs(float(one[name]) - float(other[name])) for name, factor in NUMBERS.items())


def layout_key(layout: Mapping[str, int]) -> tuple[int, ...]:
    """Return the degrees and switches of a layout by which layouts are told apart."""
    return tuple(int(layout[name]) for name in AXES)


class Known(NamedTuple):
    """One run as the fit sees it."""

    like: Like  #: what its job is like.
    layout: tuple[int, ...]  #: its degrees and switches, as `layout_key` has them.


def remainder_covariance(ones: Sequence[Known], others: Sequence[Known]) -> FloatArray:
    """K of the module's formula between runs, shape (ones, others)."""
    of_jobs: dict[tuple[int, int], float] = {}
    apart = np.zeros((len(ones), len(others)))
    for row, one in enumerate(ones):
        for column, other in enumerate(others):
            pair = id(one.like), id(other.like)
            if pair not in of_jobs:
                of_jobs[pair] = _jobs_apart(one.like, other.like)
            apart[row, column] = of_jobs[pair]
    mine, theirs = (np.array([run.layout for run in runs]).reshape(-1, len(AXES)) for runs in (ones, others))
    for axis, (name, factor) in enumerate(AXES.items()):
        apart += factor * layouts_apart(name, mine[:, axis, None], theirs[:, axis])
    return REMAINDER**2 * exp(-apart / SCALE)


@dataclass(frozen=True)
class Fitted:
    """What measured runs say of the factors, and what is left of them."""

    names: tuple[str, ...]  #: the factors, P of them.
    theta: FloatArray  #: logs of their values, shape (P,).
    covariance: FloatArray  #: of those logs, shape (P, P).
    sensitivity: FloatArray  #: derivative of each run's log of the predicted step time by each, shape (N, P).
    residual: FloatArray  #: log(measured / predicted with the factors), shape (N,).
    noise: FloatArray  #: standard deviation of each run's noise; larger where it is unlike all others, shape (N,).
    weight: FloatArray  #: of each run in the remainder of others, shape (N,).

    @property
    def values(self) -> dict[str, float]:
        """The factors themselves."""
        return dict(zip(self.names, exp(self.theta).tolist(), strict=True))


Predict = Callable[[Mapping[str, float]], FloatArray]
"""From factors to the logs of the predicted step times, shape (N,)."""

STEP = 1.05
"""By how much a factor is changed to see what it does."""

ITERATIONS = 3
"""Gauss-Newton steps; the derivatives are those at the start."""

TAILS = 4.0
"""Degrees of freedom of the noise, a t distribution: a run that is unlike all others counts less (Lange, Little and
Taylor 1989)."""

FARTHEST = 4.0
"""Standard deviations of the prior beyond which no factor goes."""


def sensitivities(predict: Predict, names: Sequence[str], at: Mapping[str, float], base: FloatArray) -> FloatArray:
    """Derivatives of the logs of predicted step times by the logs of factors, shape (N, P).

    Args:
        base: the logs under the factors `at`.
    """
    columns = []
    for name in names:
        declared = factor_of(name)
        step = 1 / STEP if declared is not None and declared.speed else STEP  # slower: what is hidden shows
        columns.append((predict({**at, name: at.get(name, 1.0) * step}) - base) / math.log(step))
    return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))


def fit(
    predict: Predict,
    measured_s: Sequence[float],
    names: Sequence[str],
    covariance: FloatArray,
    jacobian: FloatArray | None = None,
    noise: Sequence[float] | None = None,
) -> Fitted:
    """Fit the factors to measured step times, and times of parts of steps [s].

    Args:
        covariance: of their remainders, shape (N, N); parts have none.
        jacobian: `sensitivities` at 1, where they are at hand.
        noise: standard deviation of each one's noise; `NOISE` where nothing is said.
    """
    measured = log(np.array(measured_s, dtype=np.float64))
    base = predict({})
    jacobian = sensitivities(predict, names, {}, base) if jacobian is None else jacobian
    prior = variances(names)
    gain = (jacobian * prior).T  # prior covariance of factors and runs
    signal = product(jacobian * prior, jacobian.T) + covariance
    usual = np.full(len(measured), NOISE) if noise is None else np.array(noise)
    theta, now, each = np.zeros(len(prior)), base, usual
    for _ in range(ITERATIONS):
        wanted = measured - now + product(jacobian, theta[:, None])[:, 0]
        explained = solve(signal + np.diag(each**2), wanted[:, None])[:, 0]
        theta = product(gain, explained[:, None])[:, 0]
        theta = np.clip(theta, -FARTHEST * np.sqrt(prior), FARTHEST * np.sqrt(prior))
        now = predict(dict(zip(names, exp(theta).tolist(), strict=True)))
        unlike = (each**2 * explained / usual) ** 2
        each = usual * np.sqrt(np.maximum((TAILS + unlike) / (TAILS + 1), 1.0))
    residual = measured - now
    return Fitted(
        names=tuple(names),
        theta=theta,
        covariance=np.diag(prior) - product(gain, solve(signal + np.diag(each**2), gain.T)),
        sensitivity=jacobian,
        residual=residual,
        noise=each,
        weight=solve(covariance + np.diag(each**2), residual[:, None])[:, 0],
    )


def variances(names: Sequence[str]) -> FloatArray:
    """Variances of the logs of factors before anything is measured."""
    return np.array([declared.prior for name in names if (declared := factor_of(name))], dtype=np.float64) ** 2


def product(one: FloatArray, other: FloatArray) -> FloatArray:
    """Matrix product with the same digits everywhere, which BLAS does not promise."""
    terms = (one[:, index, None] * other[index] for index in range(one.shape[1]))
    return functools.reduce(np.add, terms, np.zeros((one.shape[0], other.shape[1])))


def solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Solve matrix @ x = right (N, M) for a symmetric positive definite matrix, by Cholesky, with the same digits
    everywhere."""
    lower, x = matrix.copy(), right.astype(np.float64)
    for index in range(len(lower)):
        lower[index:, index] /= math.sqrt(lower[index, index])
        below = lower[index + 1 :, index]
        lower[index + 1 :, index + 1 :] -= below[:, None] * below
    for index in range(len(lower)):
        x[index] /= lower[index, index]
        x[index + 1 :] -= lower[index + 1 :, index, None] * x[index]
    for index in reversed(range(len(lower))):
        x[index] /= lower[index, index]
        x[:index] -= lower[index, :index, None] * x[index]
    return x


def site_spec(known: Sequence[Known], weight: Sequence[float], like: Like) -> SiteSpec:
    """Return what runs add to the step time of a job."""
    near = (math.exp(-_jobs_apart(like, one.like) / SCALE) for one in known)
    weights = tuple(value * REMAINDER**2 * share for value, share in zip(weight, near, strict=True))
    return SiteSpec(weights, tuple(one.layout for one in known))


def variance(
    known: Sequence[Known],
    noise: FloatArray,
    sensitivity: FloatArray,
    prior: FloatArray,
    wanted: Sequence[Known],
    theirs: FloatArray,
) -> FloatArray:
    """Variance of log(measured / predicted) of M wanted runs under a calibration, shape (M,).

    Args:
        noise: standard deviation of each known run's noise, shape (N,).
        sensitivity, theirs: of the known and of the wanted runs by the factors, shape (N, P) and (M, P).
        prior: variance of each factor's log before anything was measured, shape (P,).
    """
    whole = product(sensitivity * prior, sensitivity.T) + remainder_covariance(known, known) + np.diag(noise**2)
    cross = product(sensitivity * prior, theirs.T) + remainder_covariance(known, wanted)
    own = (theirs**2 * prior).sum(axis=1) + REMAINDER**2 + NOISE**2
    return np.maximum(own - (cross * solve(whole, cross)).sum(axis=0), NOISE**2)
