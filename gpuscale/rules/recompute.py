"""Rules on what is recomputed."""

from __future__ import annotations

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import (
    CORE_ATTN,
    EVERY_OTHER_MATMUL,
    LAYERNORM,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    SHARED_EXPERTS,
    Candidates,
)
from gpuscale.rules.rule import Rule
from gpuscale.specs.job import JobSpec


def _recompute_modules(c: Candidates, job: JobSpec) -> BoolArray:
    kinds = job.model.kinds
    known = CORE_ATTN | LAYERNORM
    known |= MLP if any(kind.mlp for kind in kinds) else 0
    known |= MOE | MOE_ACT if job.model.is_moe else 0
    known |= SHARED_EXPERTS if any(kind.moe and kind.moe.shared_ffn for kind in kinds) else 0
    known |= MLA_UP_PROJ if any(attention.latent for attention in job.model.attentions) else 0
    known |= EVERY_OTHER_MATMUL  # of any layer
    return (c.recompute_modules & ~known) != 0


def _recompute_layers(c: Candidates, job: JobSpec) -> BoolArray:
    return c.recompute_layers > -(-job.model.layers // c.pp)


RULES = (
    Rule(
        "recompute_module_absent",
        "the model has no such module to recompute",
        "arithmetic: nothing to recompute",
        _recompute_modules,
    ),
    Rule(
        "recompute_layers_too_many",
        "a stage has fewer layers than are to be recomputed",
        "arithmetic: nothing to recompute",
        _recompute_layers,
    ),
)
