"""What plans are ranked, bounded and compared by: objectives as functions of step time or peak memory.

Within one job every objective follows the order of step time or of memory. Between jobs that differ in GPUs, cluster,
batch or precision they do not, and each is a value that compares: per token, per GPU or of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuscale.architecture.flops import training_flops_per_token
from gpuscale.arrays import BoolArray, FloatArray
from gpuscale.search.ordering import MEMORY, STEP_TIME, Scored
from gpuscale.specs.job import JobSpec
from gpuscale.units import GIB

HOUR_S = 3600.0
PRICED_TOKENS, COUNTED_TOKENS = 1e9, 1e12
"""Tokens that money and GPU-hours are given for."""


class Economics(NamedTuple):
    """What a user says of money and of the length of the training.

    Attributes:
        usd_per_gpu_hour: price of one GPU for an hour; None when not given.
        train_tokens: tokens of the whole training; None when not given.
    """

    usd_per_gpu_hour: float | None = None
    train_tokens: float | None = None


class Objective(NamedTuple):
    """One objective.

    Attributes:
        name: as `--objective` takes it.
        key: name of its value in JSON and CSV, with the unit.
        basis: what it follows within one job: `step_time` or `memory`.
        rising: more is better.
        needs: what of `Economics` it cannot do without.
        value: from step times [s] or peak memory [bytes], shape (N,), to the objective in the unit of `key`.
    """

    name: str
    key: str
    basis: str
    rising: bool
    needs: tuple[str, ...]
    value: Callable[[FloatArray, JobSpec, Economics], FloatArray]

    def score(self, values: FloatArray) -> FloatArray:
        """Values as scores: smaller is better."""
        return -values if self.rising else values

    def missing(self, terms: Economics) -> tuple[str, ...]:
        """What it needs and was not given."""
        return tuple(name for name in self.needs if getattr(terms, name) is None)


def model_flops_per_token(job: JobSpec) -> float:
    """FLOPs of forward and backward pass per token, by `FLOP_CONVENTION`."""
    return float(training_flops_per_token(job.model, job.sequence, "causal"))


def _step_time(step_time_s: FloatArray, _job: JobSpec, _terms: Economics) -> FloatArray:
    return step_time_s


def _tokens_per_s(step_time_s: FloatArray, job: JobSpec, _terms: Economics) -> FloatArray:
    return job.tokens_per_step / step_time_s


def _mfu(step_time_s: FloatArray, job: JobSpec, terms: Economics) -> FloatArray:
    peak = job.gpus * job.cluster.gpu.peak(job.precision)
    return model_flops_per_token(job) * _tokens_per_s(step_time_s, job, terms) / peak


def _memory(memory_bytes: FloatArray, _job: JobSpec, _terms: Economics) -> FloatArray:
    return memory_bytes / GIB


def _headroom(memory_bytes: FloatArray, job: JobSpec, _terms: Economics) -> FloatArray:
    return (job.memory_limit_bytes - memory_bytes) / GIB


def _gpu_hours(step_time_s: FloatArray, job: JobSpec, _terms: Economics) -> FloatArray:
    return step_time_s * job.gpus / HOUR_S / job.tokens_per_step * COUNTED_TOKENS


def _cost(step_time_s: FloatArray, job: JobSpec, terms: Economics) -> FloatArray:
    hours = _gpu_hours(step_time_s, job, terms) * (PRICED_TOKENS / COUNTED_TOKENS)
    return hours * (terms.usd_per_gpu_hour or 0.0)


def _time_to_train(step_time_s: FloatArray, job: JobSpec, terms: Economics) -> FloatArray:
    return step_time_s / job.tokens_per_step * (terms.train_tokens or 0.0)


def _total_cost(step_time_s: FloatArray, job: JobSpec, terms: Economics) -> FloatArray:
    return _cost(step_time_s, job, terms) * ((terms.train_tokens or 0.0) / PRICED_TOKENS)


PRICE, TOKENS = "usd_per_gpu_hour", "train_tokens"

OBJECTIVES = {
    goal.name: goal
    for goal in (
        Objective("step_time", "step_time_s", STEP_TIME, False, (), _step_time),
        Objective("tokens_per_s", "tokens_per_s", STEP_TIME, True, (), _tokens_per_s),
        Objective("mfu", "mfu", STEP_TIME, True, (), _mfu),
        Objective("memory", "memory_gib", MEMORY, False, (), _memory),
        Objective("memory_headroom", "memory_headroom_gib", MEMORY, True, (), _headroom),
        Objective("gpu_hours", "gpu_hours_per_1e12_tokens", STEP_TIME, False, (), _gpu_hours),
        Objective("cost", "usd_per_1e9_tokens", STEP_TIME, False, (PRICE,), _cost),
        Objective("time_to_train", "time_to_train_s", STEP_TIME, False, (TOKENS,), _time_to_train),
    )
}
"""Objectives by name, as `--objective` and `--pareto` take them."""

TOTAL_COST = Objective("total_cost", "usd_to_train", STEP_TIME, False, (PRICE, TOKENS), _total_cost)
"""Money for the whole training: a bound and a figure, in the order of `cost`."""


class Constraint(NamedTuple):
    """One constraint.

    Attributes:
        code: its name as an option, with underscores; reason code of what it cuts.
        objective: what it limits.
        limit: the worst value allowed, in the unit of the objective.
    """

    code: str
    objective: Objective
    limit: float

    @property
    def flag(self) -> str:
        """The option that sets it."""
        return f"--{self.code.replace('_', '-')}"


class Constraints(NamedTuple):
    """The constraints on the plans of one job."""

    constraints: tuple[Constraint, ...]
    job: JobSpec
    economics: Economics

    def meets(self, scored: Scored, among: BoolArray, rejected: dict[str, int]) -> BoolArray:
        """Return which of the candidates marked in `among` meet all constraints.

        Each of the others is counted in `rejected` under the first constraint that it breaks.
        """
        for constraint in self.constraints:
            bad = among & (self._excess(constraint, scored) > 0)
            count = int(np.count_nonzero(bad))
            if count:
                rejected[constraint.code] = rejected.get(constraint.code, 0) + count
                among = among & ~bad
        return among

    def keep(self, scored: Scored, rejected: dict[str, int]) -> Scored:
        """Drop the rows that break a constraint; each is counted in `rejected` under the first that it breaks."""
        return scored.take(self.meets(scored, np.ones(len(scored.score), dtype=bool), rejected))

    def excess(self, scored: Scored) -> FloatArray:
        """By what factor each row misses the constraint that it misses most, less 1; 0 or less where it meets all."""
        worst = np.full(len(scored.score), -1.0)
        for constraint in self.constraints:
            worst = np.maximum(worst, self._excess(constraint, scored))
        return worst

    def value(self, constraint: Constraint, scored: Scored) -> FloatArray:
        """What a constraint limits, of each row, in the unit of its objective."""
        basis = scored.memory_bytes if constraint.objective.basis == MEMORY else scored.step_time_s
        return constraint.objective.value(basis, self.job, self.economics)

    def _excess(self, constraint: Constraint, scored: Scored) -> FloatArray:
        value = self.value(constraint, scored)
        ratio = constraint.limit / value if constraint.objective.rising else value / constraint.limit
        return ratio - 1.0
