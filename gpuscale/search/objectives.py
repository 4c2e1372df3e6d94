"""What plans are ranked, limited and compared by: objectives as functions of step time or peak memory. Within one job
every objective follows one of the two; between jobs that differ in GPUs, cluster, batch or precision each is a value
that compares: per token, per GPU or of the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuscale.architecture.flops import training_flops_per_token
from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.energy import Power
from gpuscale.specs.job import JobSpec
from gpuscale.units import GIB, HOUR_S

STEP_TIME, MEMORY = "step_time", "memory"
"""What candidates can be ordered by."""


class Economics(NamedTuple):
    """What a user says of money and of the length of the training."""

    usd_per_gpu_hour: float | None = None  #: price of one GPU for an hour; None when not given.
    train_tokens: float | None = None  #: tokens of the whole training; None when not given.
    power: Power | None = None  #: what the job draws; None where nothing that is asked needs it.
    kg_per_kwh: float | None = None  #: carbon dioxide of a kWh; None where nothing that is asked needs it.


class Objective(NamedTuple):
    """One objective."""

    name: str  #: as users ask for it.
    key: str  #: name of its value in JSON and CSV, with the unit.
    basis: str  #: what it follows within one job: `step_time` or `memory`.
    rising: bool  #: more is better.
    needs: tuple[str, ...]  #: what of `Economics` it cannot do without.
    #: from step times [s] or peak memory [bytes], shape (N,), to the objective in the unit of `key`.
    value: Callable[[FloatArray, JobSpec, Economics], FloatArray]

    def of(self, step_time_s: FloatArray, memory_bytes: FloatArray, job: JobSpec, known: Economics) -> FloatArray:
        """Return its value for plans of a job."""
        return self.value(memory_bytes if self.basis == MEMORY else step_time_s, job, known)

    def score(self, values: FloatArray) -> FloatArray:
        """Values as scores: smaller is better."""
        return -values if self.rising else values

    def missing(self, economics: Economics) -> tuple[str, ...]:
        """What it needs and was not given."""
        return tuple(name for name in self.needs if getattr(economics, name) is None)


def model_flops_per_token(job: JobSpec) -> float:
    """FLOPs of forward and backward pass per token, by `FLOP_CONVENTION`."""
    return float(training_flops_per_token(job.model, job.attended_sequence, "causal", job.tuning))


def _mfu(step_time_s: FloatArray, job: JobSpec, _: Economics) -> FloatArray:
    peak_flops_per_s = job.gpus * job.cluster.gpu.peak(job.precision)
    return model_flops_per_token(job) * (job.tokens_per_step / step_time_s) / peak_flops_per_s


def _gpu_hours(step_time_s: FloatArray, job: JobSpec, _: Economics) -> FloatArray:
    """Per 1e12 tokens."""
    return step_time_s * job.gpus / HOUR_S / job.tokens_per_step * 1e12


def _cost(step_time_s: FloatArray, job: JobSpec, economics: Economics) -> FloatArray:
    """Per 1e9 tokens."""
    return _gpu_hours(step_time_s, job, economics) * (1e9 / 1e12) * (economics.usd_per_gpu_hour or 0.0)


def _energy(step_time_s: FloatArray, job: JobSpec, economics: Economics) -> FloatArray:
    """Per 1e9 tokens."""
    if economics.power is None:
        raise ValueError("energy needs the power of the job")
    flops_per_s = model_flops_per_token(job) * job.tokens_per_step / (step_time_s * job.gpus)
    return economics.power.facility_w(flops_per_s) * 1e-3 * _gpu_hours(step_time_s, job, economics) * (1e9 / 1e12)


def _carbon(step_time_s: FloatArray, job: JobSpec, economics: Economics) -> FloatArray:
    """Per 1e9 tokens."""
    return _energy(step_time_s, job, economics) * (economics.kg_per_kwh or 0.0)


def _time_to_train(step_time_s: FloatArray, job: JobSpec, economics: Economics) -> FloatArray:
    return step_time_s / job.tokens_per_step * (economics.train_tokens or 0.0)


def _total_cost(step_time_s: FloatArray, job: JobSpec, economics: Economics) -> FloatArray:
    return _cost(step_time_s, job, economics) * ((economics.train_tokens or 0.0) / 1e9)


PRICE, TOKENS, POWER, CARBON = Economics._fields

OBJECTIVES = {
    one.name: one
    for one in (
        Objective("step_time", "step_time_s", STEP_TIME, False, (), lambda time_s, _job, _: time_s),
        Objective("tokens_per_s", "tokens_per_s", STEP_TIME, True, (),
                  lambda time_s, job, _: job.tokens_per_step / time_s),
        Objective("mfu", "mfu", STEP_TIME, True, (), _mfu),
        Objective("memory", "memory_gib", MEMORY, False, (), lambda peak_bytes, _job, _: peak_bytes / GIB),
        Objective("memory_headroom", "memory_headroom_gib", MEMORY, True, (),
                  lambda peak_bytes, job, _: (job.memory_limit_bytes - peak_bytes) / GIB),
        Objective("gpu_hours", "gpu_hours_per_1e12_tokens", STEP_TIME, False, (), _gpu_hours),
        Objective("cost", "usd_per_1e9_tokens", STEP_TIME, False, (PRICE,), _cost),
        Objective("time_to_train", "time_to_train_s", STEP_TIME, False, (TOKENS,), _time_to_train),
        Objective("energy", "kwh_per_1e9_tokens", STEP_TIME, False, (POWER,), _energy),
        Objective("carbon", "kg_co2_per_1e9_tokens", STEP_TIME, False, (POWER, CARBON), _carbon),
    )
}  # fmt: skip

TOTAL_COST = Objective("total_cost", "usd_to_train", STEP_TIME, False, (PRICE, TOKENS), _total_cost)
"""Money for the whole training: a constraint and a figure, in the order of `cost`."""


class Constraint(NamedTuple):
    """One constraint."""

    code: str  #: its name as an option; reason code of what it cuts.
    objective: Objective  #: what it limits.
    limit: float  #: the worst value allowed, in the unit of the objective.


class Constraints(NamedTuple):
    """The constraints on the plans of one job."""

    constraints: tuple[Constraint, ...]
    job: JobSpec
    economics: Economics

    def keep(self, step_time_s: FloatArray, memory_bytes: FloatArray, rejected: dict[str, int]) -> BoolArray:
        """Mark the plans that meet all constraints; count others in `rejected` under the first they break."""
        kept = np.ones(len(memory_bytes), dtype=bool)
        for constraint in self.constraints:
            bad = kept & (self._excess(constraint, step_time_s, memory_bytes) > 0)
            if bad.any():
                rejected[constraint.code] = rejected.get(constraint.code, 0) + int(np.count_nonzero(bad))
                kept &= ~bad
        return kept

    def excess(self, step_time_s: FloatArray, memory_bytes: FloatArray) -> FloatArray:
        """By what factor each plan misses the constraint that it misses most, less 1."""
        each = [self._excess(constraint, step_time_s, memory_bytes) for constraint in self.constraints]
        return np.max(each, axis=0, initial=-1.0)

    def _excess(self, constraint: Constraint, step_time_s: FloatArray, memory_bytes: FloatArray) -> FloatArray:
        value = constraint.objective.of(step_time_s, memory_bytes, self.job, self.economics)
        ratio = constraint.limit / value if constraint.objective.rising else value / constraint.limit
        return ratio - 1.0
