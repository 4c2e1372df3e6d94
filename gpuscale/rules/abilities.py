"""What a framework has of each axis of the search, as data; and the form in which its facts are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.layouts.arrays import SCHEDULES

ALL_SCHEDULES = frozenset(SCHEDULES.values())
ALL_MODULES = (1 << 16) - 1
"""Every module of `--recompute-modules`."""


@dataclass(frozen=True)
class Abilities:
    """What a framework can do; the defaults are those of a framework that can do all.

    Attributes:
        tensor_parallel, pipelines, interleaving, context_parallel, expert_parallel: whether it has the axis.
        sequence_parallel: whether tensor parallelism comes with it `always`, `optional`ly or `never`.
        layers: which of `moe`, `gqa`, `latent` (attention) and `state_space` its models may have.
        schedules: codes of `SCHEDULES`.
        precisions: of `bf16`, `fp16`, `fp8` and `fp4`.
        recipes: ways to quantise below 16 bits, as `JobSpec.recipe`.
        offload: parts that may be kept in host memory.
        zero_stages: ZeRO stages that it has.
        hybrid_stages: those whose shards may be shared by fewer than all data-parallel ranks.
        pipelined_stages: those that go with pipelines.
        recompute_modules: bits of the modules that can be recomputed by themselves.
        recompute_layers: how many layers of a stage can be recomputed whole: `any` number, the same number `per chunk`,
            `every n-th` or `all`.
        even_chunks: whether layers must divide evenly over stages and chunks.
    """

    tensor_parallel: bool = True
    sequence_parallel: str = "optional"
    pipelines: bool = True
    interleaving: bool = True
    context_parallel: bool = True
    expert_parallel: bool = True
    layers: frozenset[str] = frozenset({"moe", "gqa", "latent", "state_space"})
    schedules: frozenset[int] = ALL_SCHEDULES
    precisions: frozenset[str] = frozenset({"bf16", "fp16", "fp8", "fp4"})
    recipes: frozenset[str] = frozenset({"delayed", "current", "blockwise", "mx", "nvfp4"})
    offload: frozenset[str] = frozenset({"optimizer", "parameters", "activations"})
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    hybrid_stages: tuple[int, ...] = (1, 2, 3)
    pipelined_stages: tuple[int, ...] = (0, 1, 2, 3)
    recompute_modules: int = ALL_MODULES
    recompute_layers: str = "any"
    even_chunks: bool = False


@dataclass(frozen=True)
class Cite:
    """Where a framework says a rule.

    Attributes:
        where: file and line or option, at the commit of `RuleSet.basis`.
        missed: what the framework's own check of its options does not see: how such a layout fails instead.
    """

    where: str
    missed: str = ""


@dataclass(frozen=True)
class RuleSet:
    """What one framework can run.

    Attributes:
        title: the framework's name, for people.
        basis: what was read: the commit, or releases and documentation of that time.
        abilities: what it has of each axis.
        cited: code of a rule -> where this framework says it.
    """

    title: str
    basis: str
    abilities: Abilities
    cited: Mapping[str, Cite]
