"""Rules that follow from what a framework lacks: one per axis, for the frameworks whose `Abilities` say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gpuscale.arrays import BoolArray, IntArray
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, Candidates
from gpuscale.rules.abilities import Abilities
from gpuscale.rules.frameworks import FRAMEWORKS
from gpuscale.rules.rule import Rule, all_rows
from gpuscale.specs.job import JobSpec

_ALL = Abilities()
_SOURCE = "docs/frameworks.md"


def _own(job: JobSpec) -> Abilities:
    return FRAMEWORKS[job.runtime.rule_set].abilities


def _where(lacking: Callable[[Abilities], bool]) -> frozenset[str]:
    return frozenset(name for name, one in FRAMEWORKS.items() if lacking(one.abilities))


def _without(name: str) -> frozenset[str]:
    """The frameworks that have less of one ability than a framework that can do all."""
    return _where(lambda own: bool(getattr(own, name) != getattr(_ALL, name)))


def _missing(values: IntArray, allowed: Iterable[int]) -> BoolArray:
    """Mark the small whole numbers that are not among `allowed`."""
    bits = sum(1 << value for value in set(allowed))
    return (np.right_shift(bits, values) & 1) == 0


def _layer_rule(code: str, text: str, layer: str, concerns: Callable[[JobSpec], bool]) -> Rule:
    return Rule(code, text, _SOURCE, all_rows, _where(lambda own: layer not in own.layers), concerns)


def _grouped(job: JobSpec) -> bool:
    return any(one.latent is None and one.kv_heads < one.heads for one in job.model.attentions)


def _lacks_recipe(job: JobSpec) -> bool:
    return job.precision in {"fp8", "fp4"} and job.recipe not in _own(job).recipes


def _lacks_offload(job: JobSpec) -> bool:
    wanted = {"optimizer": job.offload.optimizer, "parameters": job.offload.parameters}
    wanted["activations"] = job.offload.activations > 0
    return any(on and part not in _own(job).offload for part, on in wanted.items())


def _uneven_stages(c: Candidates, job: JobSpec) -> BoolArray:
    return job.model.layers % c.pp != 0


def _uneven_chunks(c: Candidates, job: JobSpec) -> BoolArray:
    return job.model.layers % (c.pp * c.vpp) != 0


def _hybrid(c: Candidates, job: JobSpec) -> BoolArray:
    return (c.zero > 0) & (c.shard < c.dp * c.cp) & _missing(c.zero, _own(job).hybrid_stages)


def _partial(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark the rows that recompute some layers of a stage whole, but not all."""
    by_operator = (c.recompute_modules & EVERY_OTHER_MATMUL) > 0
    return (c.recompute_layers > 0) & (c.recompute_layers < -(-job.model.layers // c.pp)) & ~by_operator


def _uneven_recompute(c: Candidates, job: JobSpec) -> BoolArray:
    return _partial(c, job) & (c.recompute_layers % c.vpp != 0)


def _odd_recompute(c: Candidates, job: JobSpec) -> BoolArray:
    """Every n-th layer: of L layers ceil(L / n) for some n, that is, ceil(L / ceil(L / k)) = k."""
    layers = -(-job.model.layers // c.pp)
    step = -(-layers // np.maximum(c.recompute_layers, 1))
    return _partial(c, job) & (-(-layers // step) != c.recompute_layers)


SHAPE_RULES = (
    _layer_rule("moe_unavailable", "the framework has no experts", "moe", lambda job: job.model.is_moe),
    _layer_rule("gqa_unavailable", "the framework has no grouped-query attention", "gqa", _grouped),
    _layer_rule(
        "latent_attention_unavailable",
        "the framework has no latent attention",
        "latent",
        lambda job: any(one.latent is not None for one in job.model.attentions),
    ),
    _layer_rule(
        "state_space_unavailable",
        "the framework has no state spaces",
        "state_space",
        lambda job: any(kind.state_space is not None for kind in job.model.kinds),
    ),
    Rule(
        "precision_unavailable",
        "the framework does not train in this precision",
        _SOURCE,
        all_rows,
        _without("precisions"),
        lambda job: job.precision not in _own(job).precisions,
    ),
    Rule(
        "fp8_recipe_unavailable",
        "the framework does not scale fp8 or fp4 in this way",
        _SOURCE,
        all_rows,
        _without("recipes"),
        _lacks_recipe,
    ),
    Rule(
        "offload_unavailable",
        "the framework does not keep this in host memory",
        _SOURCE,
        all_rows,
        _without("offload"),
        _lacks_offload,
    ),
    Rule(
        "tp_unavailable",
        "the framework has no tensor parallelism",
        _SOURCE,
        lambda c, _: c.tp > 1,
        _without("tensor_parallel"),
    ),
    Rule("pp_unavailable", "the framework has no pipelines", _SOURCE, lambda c, _: c.pp > 1, _without("pipelines")),
    Rule(
        "cp_unavailable",
        "the framework has no context parallelism",
        _SOURCE,
        lambda c, _: c.cp > 1,
        _without("context_parallel"),
    ),
    Rule("uneven_stages", "PP must divide the layers", _SOURCE, _uneven_stages, _without("even_chunks")),
)

LAYOUT_RULES = (
    Rule(
        "sp_unavailable",
        "the framework has no sequence parallelism",
        _SOURCE,
        lambda c, _: c.sp == 1,
        _where(lambda own: own.sequence_parallel == "never"),
    ),
    Rule(
        "tp_without_sp",
        "tensor parallelism comes with sequence parallelism",
        _SOURCE,
        lambda c, _: (c.tp > 1) & (c.sp == 0),
        _where(lambda own: own.sequence_parallel == "always"),
    ),
    Rule(
        "vpp_unavailable",
        "the framework has no virtual stages",
        _SOURCE,
        lambda c, _: c.vpp > 1,
        _without("interleaving"),
    ),
    Rule(
        "ep_unavailable",
        "the framework has no expert parallelism",
        _SOURCE,
        lambda c, _: c.ep > 1,
        _without("expert_parallel"),
    ),
    Rule("uneven_chunks", "PP x VPP must divide the layers", _SOURCE, _uneven_chunks, _without("even_chunks")),
    Rule(
        "schedule_unavailable",
        "the framework has no such pipeline schedule",
        _SOURCE,
        lambda c, job: (c.pp > 1) & _missing(c.schedule, _own(job).schedules),
        _without("schedules"),
    ),
)

SHARDING_RULES = (
    Rule(
        "zero_stage_unavailable",
        "the framework has no such ZeRO stage",
        _SOURCE,
        lambda c, job: _missing(c.zero, _own(job).zero_stages),
        _without("zero_stages"),
    ),
    Rule(
        "zero_with_pp",
        "ZeRO-2 and 3 do not combine with PP > 1",
        "Megatron-LM arguments; DeepSpeed runtime/pipe/engine",
        lambda c, job: (c.pp > 1) & _missing(c.zero, _own(job).pipelined_stages),
        _without("pipelined_stages"),
    ),
    Rule(
        "hybrid_sharding_unavailable",
        "at this ZeRO stage all data-parallel ranks share one copy of the states",
        _SOURCE,
        _hybrid,
        _without("hybrid_stages"),
    ),
)

RECOMPUTE_RULES = (
    Rule(
        "recompute_modules_unavailable",
        "the framework cannot recompute these modules by themselves",
        _SOURCE,
        lambda c, job: (c.recompute_modules & ~_own(job).recompute_modules) != 0,
        _without("recompute_modules"),
    ),
    Rule(
        "recompute_layers_partial",
        "the framework recomputes all layers or none",
        _SOURCE,
        _partial,
        _where(lambda own: own.recompute_layers == "all"),
    ),
    Rule(
        "recompute_layers_every_nth",
        "the framework recomputes every n-th layer",
        _SOURCE,
        _odd_recompute,
        _where(lambda own: own.recompute_layers == "every n-th"),
    ),
    Rule(
        "recompute_uneven_over_chunks",
        "every model chunk of a stage recomputes the same number of layers",
        _SOURCE,
        _uneven_recompute,
        _where(lambda own: own.recompute_layers == "per chunk"),
    ),
)
