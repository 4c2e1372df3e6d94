"""The form of a rule, and the form in which the facts about a framework are written down."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import SCHEDULES, Candidates
from gpuscale.specs.gpu import WIDE
from gpuscale.specs.job import RULE_SETS, JobSpec

EVERY = frozenset(RULE_SETS)
"""Rules of arithmetic, which hold for every framework."""

MEGATRON = frozenset(name for name in RULE_SETS if name.startswith("megatron-lm"))
FOLDED_MEGATRON = frozenset({"megatron-lm", "megatron-lm-2024"})
"""Generations of Megatron-LM with separate expert grids, instances of the distributed optimizer, and FSDP."""

TORCHTITAN = frozenset({"torchtitan", "torchtitan-2024"})
FSDP2 = TORCHTITAN | {"accelerate"}
"""Frameworks that run PyTorch's fully_shard, and its tensor and context parallelism."""

DEEPSPEED = frozenset({"deepspeed", "megatron-deepspeed"})
NANOTRON = frozenset({"nanotron"})


class Rule(NamedTuple):
    """One reason why a candidate cannot run.

    Attributes:
        code: reason code of the JSON output.
        text: the rule as a sentence, for people.
        source: where it comes from; what a framework's own source says is in `gpuscale.rules.frameworks`.
        test: marks the candidates that break it, where it concerns the job; shape (N,).
        frameworks: names of `RULE_SETS` for which it holds.
        concerns: whether any candidate of a job could break it; None where that is not known beforehand. Whatever
            depends on what is offloaded concerns only jobs that offload it.
    """

    code: str
    text: str
    source: str
    test: Callable[[Candidates, JobSpec], BoolArray]
    frameworks: frozenset[str] = EVERY
    concerns: Callable[[JobSpec], bool] | None = None

    def applies(self, job: JobSpec) -> bool:
        """Whether it holds for the job's framework and concerns the job."""
        return job.runtime.rule_set in self.frameworks and (self.concerns is None or self.concerns(job))

    def breaks(self, table: Candidates, job: JobSpec) -> BoolArray:
        """Mark the candidates that break it, shape (N,); none where it does not apply to the job."""
        return self.test(table, job) if self.applies(job) else np.zeros(len(table), dtype=bool)


def any_of(c: Candidates, masks: Iterable[BoolArray]) -> BoolArray:
    """Mark the candidates that at least one mask marks, shape (N,); none where there are no masks."""
    return functools.reduce(np.logical_or, masks, np.zeros(len(c), dtype=bool))


class Cite(NamedTuple):
    """Where a framework states a rule.

    Attributes:
        where: file and line or option, at the commit of `Framework.basis`.
        missed: what the framework's own check of its options does not see: how such a layout fails instead.
    """

    where: str
    missed: str = ""


class Framework(NamedTuple):
    """What one framework can run; the defaults are those of a framework that can do everything.

    Attributes:
        title: the framework's name, for people.
        basis: what was read: the commit, or releases and documentation of that time.
        cited: code of a rule -> where this framework states it.
        tensor_parallel, pipelines, interleaving, context_parallel, expert_parallel: whether it has the axis.
        sequence_parallel: whether tensor parallelism comes with it `always`, `optional`ly or `never`.
        layers: which of `moe`, `gqa`, `latent` (attention) and `state_space` its models may have.
        schedules: codes of `SCHEDULES`.
        precisions: of `fp32`, `tf32`, `bf16`, `fp16`, `fp8` and `fp4`.
        recipes: ways to quantise below 16 bits, as `JobSpec.recipe`.
        offload: what may be kept in host memory.
        zero_stages: ZeRO stages that it has.
        hybrid_stages: those whose shards may be shared by fewer than all data-parallel ranks.
        pipelined_stages: those that go with pipelines.
        recompute_modules: bits of the modules that can be recomputed by themselves.
        recompute_layers: how many layers of a stage can be recomputed whole: `any` number, the same number `per chunk`,
            `every n-th` or `all`.
        overlaps_exchange: whether the exchange of one microbatch's experts can run beside another microbatch.
        even_chunks: whether layers must divide evenly over stages and chunks.
    """

    title: str
    basis: str
    cited: Mapping[str, Cite]
    tensor_parallel: bool = True
    sequence_parallel: str = "optional"
    pipelines: bool = True
    interleaving: bool = True
    context_parallel: bool = True
    expert_parallel: bool = True
    layers: frozenset[str] = frozenset({"moe", "gqa", "latent", "state_space"})
    schedules: frozenset[int] = frozenset(SCHEDULES.values())
    precisions: frozenset[str] = frozenset({"bf16", "fp16", "fp8", "fp4"}) | WIDE
    recipes: frozenset[str] = frozenset({"delayed", "current", "blockwise", "mx", "nvfp4"})
    offload: frozenset[str] = frozenset({"optimizer", "parameters", "activations"})
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    hybrid_stages: tuple[int, ...] = (1, 2, 3)
    pipelined_stages: tuple[int, ...] = (0, 1, 2, 3)
    recompute_modules: int = (1 << 16) - 1
    recompute_layers: str = "any"
    overlaps_exchange: bool = True
    even_chunks: bool = False
