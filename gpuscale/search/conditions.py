"""Plans under conditions other than predicted: a slower network, other kernels, uneven experts, one slow GPU.

Each condition (`Knob`) is a factor on times that is log-normal, with one width where it harms and one where it helps.
`SAMPLES` combinations of all of them are fixed: a lattice (Korobov 1959), in which every condition alone takes the
middles of as many equally likely parts of its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, IndexArray, exp, log
from gpuscale.calibration.factors import with_host, with_kernels, with_network
from gpuscale.layouts.arrays import Candidates
from gpuscale.memory.model import fit_probability
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.cluster import INSIDE
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMPONENTS
from gpuscale.uncertainty import NEW_KIND, new_kinds

SAMPLES, GENERATOR = 37, 7
"""Points of the lattice and its generator, chosen for least correlation between any two of the conditions (0.16)."""

WORST = 0.9
"""Share of the samples below the worst decile."""

EXTREME = 2.0
"""Standard deviations beyond which nothing is drawn."""

MOST_LATENCY = 1.5
"""Factor on latencies beyond which the model would take InfiniBand for a network that the CPU drives step by step."""


class Knob(NamedTuple):
    """One condition."""

    name: str  #: key in JSON.
    meaning: str  #: what its factor multiplies.
    harm: float  #: standard deviation of the log of the factor on the harmful side; `help`: on the other.
    help: float
    source: str  #: where these come from.
    most: float = math.inf

    def factor(self, quantile: float) -> float:
        """Return the factor that a share `quantile` of cases does not exceed; above 1 is harmful."""
        deviation = min(max(NormalDist().inv_cdf(quantile), -EXTREME), EXTREME)
        return min(math.exp(deviation * (self.harm if deviation > 0 else self.help)), self.most)


KNOBS = (
    # measured / predicted time, tenth and ninetieth percentile: -12 and +45 %; -9 and +11; -23 and +61; -10 and +11
    Knob("network", "time of a byte between nodes", 0.29, 0.10, "408 measured collectives of 64 MiB and more"),
    Knob("node_links", "time of a byte within a node", 0.084, 0.071, "400 measured collectives of 64 MiB and more"),
    Knob("latency", "latency of every hop", 0.37, 0.21, "417 measured collectives below 64 KiB", MOST_LATENCY),
    Knob("kernels", "time of GEMMs, attention and memory traffic", 0.082, 0.082, "11,257 measured GEMMs"),
    Knob("host", "time of the CPU to launch kernels", 0.2, 0.2, "guesstimate: other CPUs and clocks"),
    Knob("imbalance", "tokens of the busiest expert rank", 0.2, 0.0, "guesstimate: routers balance imperfectly"),
    Knob("slow_gpu", "time of kernels on the slowest GPU, for which all wait", 0.08, 0.0,
         "guesstimate: clocks of GPUs of one type differ"),
)  # fmt: skip
"""The conditions. Widths from collectives and kernels: (log of the percentile) / 1.28; `python benchmarks/fit_ties.py`
prints the percentiles."""

KERNELS = tuple(name for name, one in COMPONENTS.items() if one.limit in {"compute", "hbm"})
"""Components of the step time that a slow GPU slows down. `waiting` is one: the factor is on the slowest GPU, whose lag
behind the others it is."""

BANDS = {"network": (0.25, 4.0), "kernels": (0.5, 2.0), "imbalance": (3.0,)}
"""Conditions of which it is said where another plan would be chosen -> factors up to which that is looked for."""

BISECTIONS = 4
"""Halvings of the part of a band in which the choice changes: it is known to a sixteenth of that, in its log."""


class Spread(NamedTuple):
    """Step times of N plans under the conditions."""

    knobs: tuple[Knob, ...]
    times_s: FloatArray  #: shape (S, N), samples first.
    p10_s: FloatArray  #: shape (N,).
    median_s: FloatArray  #: shape (N,).
    p90_s: FloatArray  #: shape (N,).
    risk: float  #: the share of the samples that `at_risk_s` holds for.
    at_risk_s: FloatArray  #: what that share of the samples stays within, more where no run is of its kind, shape (N,).
    losses: FloatArray  #: step time with one condition at its worst decile over that without, minus 1; shape (K, N).
    fits: FloatArray  #: probability that the plan fits, shape (N,).


def applicable(job: JobSpec) -> tuple[Knob, ...]:
    """Return the conditions that can matter to a job."""
    node = max((level.gpus for level in job.cluster.levels if level.fabric in INSIDE), default=1)
    matters = {"network": job.gpus > node, "imbalance": job.model.is_moe}
    matters |= dict.fromkeys(("node_links", "latency", "slow_gpu"), job.gpus > 1)
    return tuple(knob for knob in KNOBS if matters.get(knob.name, True))


def lattice(dimensions: int) -> FloatArray:
    """Return the fixed sample points in the open unit cube, shape (SAMPLES, dimensions)."""
    steps = np.array([pow(GENERATOR, axis, SAMPLES) for axis in range(dimensions)])
    return (np.outer(np.arange(SAMPLES), steps) % SAMPLES + 0.5) / SAMPLES


def spread(rows: Candidates, job: JobSpec, knobs: Sequence[Knob], risk: float = WORST) -> Spread:
    """Evaluate plans in every sample, and under each condition alone.

    Args:
        risk: share of the samples that what plans are ranked by holds for.
    """
    samples = [
        {knob.name: knob.factor(point[axis]) for axis, knob in enumerate(knobs)} for point in lattice(len(knobs))
    ]
    times = np.stack([perturbed_s(rows, job, sample) for sample in samples])
    evaluation = evaluate(rows, job)
    alone = [perturbed_s(rows, job, {knob.name: knob.factor(WORST)}) for knob in knobs]
    losses = np.stack(alone) / evaluation.step.step_time_s - 1 if alone else np.zeros((0, len(rows)))
    fits = fit_probability(evaluation.memory, job)
    in_order = np.sort(times, axis=0)
    p10_s, median_s, p90_s, at_risk_s = (in_order[int(share * SAMPLES)] for share in (1 - WORST, 0.5, WORST, risk))
    known = log(at_risk_s / median_s)
    new = new_kinds(job, rows.zero, rows.pp)  # independent of the conditions
    of_kind = NormalDist().inv_cdf(risk) * NEW_KIND * new
    at_risk_s = at_risk_s * exp(np.hypot(known, of_kind) - known)
    return Spread(tuple(knobs), times, p10_s, median_s, p90_s, risk, at_risk_s, losses, fits)


def perturbed_s(rows: Candidates, job: JobSpec, factors: Mapping[str, float]) -> FloatArray:
    """Return the step time of each plan under some conditions, shape (N,) [s]."""
    step = evaluate(rows, perturbed(job, factors)).step
    slower = factors.get("slow_gpu", 1.0) - 1
    if not slower:
        return step.step_time_s
    kernels_s = step.components[[list(COMPONENTS).index(name) for name in KERNELS]].sum(axis=0)
    return step.step_time_s + slower * kernels_s


def perturbed(job: JobSpec, factors: Mapping[str, float]) -> JobSpec:
    """Return the job under conditions: name of a knob -> factor on what it multiplies."""
    slower = 1 / factors.get("kernels", 1.0)
    cluster = replace(job.cluster, gpu=with_kernels(job.cluster.gpu, slower, slower))
    slower_bytes = [factors.get("node_links" if level.fabric in INSIDE else "network", 1.0) for level in cluster.levels]
    return replace(
        job,
        cluster=with_network(cluster, slower_bytes, factors.get("latency", 1.0)),
        runtime=with_host(job.runtime, factors.get("host", 1.0)),
        moe_imbalance=job.moe_imbalance * factors.get("imbalance", 1.0),
    )


def turning_points(
    rows: Candidates, job: JobSpec, family: IndexArray, first: int, allowance: float
) -> list[tuple[Knob, float, int | None]]:
    """Find how far each condition of `BANDS` must change before the first choice is no longer near the fastest. It
    holds as long as a plan of its family (`family`: of each plan) is at most `allowance` further behind the fastest
    than where nothing changes. Looked at are the ends of the band, the middles (of the log) of its two sides, and
    between these the halvings.

    Returns:
        Of each band the condition, the factor nearest to 1 at which another plan is ahead, and that plan; where the
            choice holds throughout, the end of the band and None.
    """
    own = family == family[first]
    unchanged_s = perturbed_s(rows, job, {})
    allowed = (1 + allowance) * unchanged_s[own].min() / unchanged_s.min()

    def ahead(knob: Knob, factor: float) -> int | None:
        """The fastest plan, if the first choice and its variants are farther behind than allowed."""
        times = perturbed_s(rows, job, {knob.name: factor})
        fastest = int(times.argmin())
        return fastest if times[own].min() > times[fastest] * allowed else None

    bands = [(knob, end) for knob in applicable(job) for end in BANDS.get(knob.name, ())]
    return [(knob, *_turning_point(end, partial(ahead, knob))) for knob, end in bands]


def _turning_point(end: float, ahead: Callable[[float], int | None]) -> tuple[float, int | None]:
    """The factor between 1 and `end` from which another plan is ahead; between halvings nothing is known."""
    holds, turned = 1.0, math.sqrt(end)
    row = ahead(turned)
    if row is None:
        holds, turned, row = turned, end, ahead(end)
    for _ in range(BISECTIONS if row is not None else 0):
        middle = math.sqrt(holds * turned)
        other = ahead(middle)
        if other is None:
            holds = middle
        else:
            row, turned = other, middle
    return turned, row
