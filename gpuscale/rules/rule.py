"""What a rule is: a code, a sentence, a source, a predicate over candidates, and the frameworks that it holds for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.specs.job import RULE_SETS, JobSpec

EVERY = frozenset(RULE_SETS)
"""Rules of arithmetic, which hold for every framework."""

MEGATRON = frozenset(name for name in RULE_SETS if name.startswith("megatron-lm"))
FOLDED_MEGATRON = frozenset({"megatron-lm", "megatron-lm-2024"})
"""Generations of Megatron-LM with expert grids of their own, instances of the distributed optimizer, and FSDP."""

TORCHTITAN = frozenset({"torchtitan", "torchtitan-2024"})
DEEPSPEED = frozenset({"deepspeed", "megatron-deepspeed"})


@dataclass(frozen=True)
class Rule:
    """One reason why a candidate cannot run.

    Attributes:
        code: reason code of the JSON output.
        text: the rule as a sentence, for people.
        source: where it comes from; what a framework's own source says is in `gpuscale.rules.frameworks`.
        test: marks the candidates that break it, where it concerns the job; shape (N,).
        frameworks: names of `RULE_SETS` for which it holds.
        concerns: whether any candidate of a job could break it; None where that is not known beforehand. Whatever
            depends on what is offloaded concerns only jobs that offload it.
        of_order: whether it depends on the order of the axes.
    """

    code: str
    text: str
    source: str
    test: Callable[[Candidates, JobSpec], BoolArray]
    frameworks: frozenset[str] = EVERY
    concerns: Callable[[JobSpec], bool] | None = None
    of_order: bool = False

    def applies(self, job: JobSpec) -> bool:
        """Whether it holds for the job's framework and concerns the job."""
        return job.runtime.rule_set in self.frameworks and (self.concerns is None or self.concerns(job))

    def breaks(self, table: Candidates, job: JobSpec) -> BoolArray:
        """Mark the candidates that break it, shape (N,); none where it does not apply to the job."""
        return self.test(table, job) if self.applies(job) else np.zeros(len(table), dtype=bool)


def all_rows(c: Candidates, _: JobSpec) -> BoolArray:
    """Mark every candidate: the predicate of a rule that the job itself breaks, whatever its layout."""
    return np.ones(len(c), dtype=bool)
