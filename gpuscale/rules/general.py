"""Rules of arithmetic, which hold for every framework, and those that follow from what a framework lacks.

What only one framework asks for is in `gpuscale.rules.frameworks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gpuscale.arrays import BoolArray, IntArray
from gpuscale.layouts import arrays
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import context_split, stages_torn, strides
from gpuscale.layouts.space import dualpipe_microbatches, wrong_chunks
from gpuscale.rules.rule import (
    DEEPSPEED,
    EVERY,
    FRAMEWORKS,
    FSDP2,
    MEGATRON,
    NANOTRON,
    TORCHTITAN,
    Framework,
    any_of,
    every,
    rule,
)
from gpuscale.specs.job import JobSpec

_ANY = FRAMEWORKS["generic"]


def _own(job: JobSpec) -> Framework:
    return FRAMEWORKS[job.runtime.rule_set]


def _where(lacking: Callable[[Framework], bool]) -> frozenset[str]:
    return frozenset(name for name, one in FRAMEWORKS.items() if lacking(one))


def _without(ability: str) -> frozenset[str]:
    """The frameworks that have less of one ability than a framework that can do everything."""
    return _where(lambda own: bool(getattr(own, ability) != getattr(_ANY, ability)))


def _missing(values: IntArray, allowed: Iterable[int]) -> BoolArray:
    bits = sum(1 << value for value in set(allowed))
    return (np.right_shift(bits, values) & 1) == 0


def _without_layer(layer: str) -> frozenset[str]:
    return _where(lambda own: layer not in own.layers)


def _heads(c: Candidates, job: JobSpec) -> BoolArray:
    counts = [attention.heads for attention in job.model.attentions]
    counts += [kind.state_space.heads for kind in job.model.kinds if kind.state_space]
    return any_of(c, (heads % c.tp != 0 for heads in counts))


def _kv_heads(c: Candidates, job: JobSpec, *, copied: bool) -> BoolArray:
    counts = (attention.kv_heads for attention in job.model.attentions if attention.latent is None)
    return any_of(c, ((heads % c.tp != 0) & ~(copied & (c.tp % heads == 0)) for heads in counts))


def _feed_forward(c: Candidates, job: JobSpec) -> BoolArray:
    widths = [kind.mlp.ffn for kind in job.model.kinds if kind.mlp]
    widths += [kind.moe.shared_ffn for kind in job.model.kinds if kind.moe and not kind.mlp]
    return any_of(c, (width % c.tp != 0 for width in widths))


def _heads_over_context(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = c.tp * context_split(c, job).heads
    return any_of(c, ((attention.heads % ranks != 0) & (ranks > c.tp) for attention in job.model.attentions))


def _units(job: JobSpec, inside: bool = False) -> list[int]:
    """GPUs under one instance of each level, or each inside a box or rack, that the job has several instances of."""
    levels = job.cluster.levels[: job.cluster.domain_index + 1] if inside else job.cluster.levels
    return [level.gpus for level in levels if level.gpus < job.gpus]


def _experts_straddle(c: Candidates, job: JobSpec) -> BoolArray:
    block = c.ep * strides(c, job).ep
    return (c.ep > 1) & any_of(c, ((block < size) & (size % block != 0) for size in _units(job, inside=True)))


def _too_few_layers(c: Candidates, job: JobSpec) -> BoolArray:
    chunks = c.pp * c.vpp
    return (chunks > 1) & (job.model.layers < np.maximum(chunks - 2, 1))


_SHAPE = (
    rule("adapters_unavailable", every, frozenset({*TORCHTITAN, *NANOTRON, "megatron-deepspeed"}),
         lambda job: job.tuning is not None),
    rule("quantised_base_unavailable", every, MEGATRON, lambda job: job.tuning is not None and job.tuning.quantised),
    rule("moe_unavailable", every, _without_layer("moe"), lambda job: job.model.is_moe),
    rule("gqa_unavailable", every, _without_layer("gqa"),
         lambda job: any(one.latent is None and one.kv_heads < one.heads for one in job.model.attentions)),
    rule("latent_attention_unavailable", every, _without_layer("latent"),
         lambda job: any(one.latent is not None for one in job.model.attentions)),
    rule("state_space_unavailable", every, _without_layer("state_space"),
         lambda job: any(kind.state_space is not None for kind in job.model.kinds)),
    rule("precision_unavailable", every, _without("precisions"), lambda job: job.precision not in _own(job).precisions),
    rule("fp8_recipe_unavailable", every, _without("recipes"),
         lambda job: job.precision in {"fp8", "fp4"} and job.recipe not in _own(job).recipes),
    rule("offload_unavailable", every, _without("offload"),
         lambda job: any(getattr(job.offload, one) for one in _ANY.offload - _own(job).offload)),
    rule("tp_unavailable", lambda c, _: c.tp > 1, _without("tensor_parallel")),
    rule("pp_unavailable", lambda c, _: c.pp > 1, _without("pipelines")),
    rule("cp_unavailable", lambda c, _: c.cp > 1, _without("context_parallel")),
    rule("uneven_stages", lambda c, job: job.model.layers % c.pp != 0, _without("even_chunks")),
    rule("heads_not_divisible", _heads),
    rule("kv_heads_not_divisible", lambda c, job: _kv_heads(c, job, copied=True)),
    rule("kv_heads_not_replicated", lambda c, job: _kv_heads(c, job, copied=False),
         FSDP2 | NANOTRON | (MEGATRON - {"megatron-lm"})),
    rule("hidden_not_divisible", lambda c, job: job.model.hidden % c.tp != 0),
    rule("ffn_not_divisible", _feed_forward),
    rule("sequence_not_divisible_by_cp", lambda c, job: (c.cp > 1) & (job.sequence % (2 * c.cp) != 0),
         MEGATRON | FSDP2 | NANOTRON),
    rule("sequence_slices_uneven", lambda c, job: job.sequence % c.cp != 0, DEEPSPEED | {"generic"}),
    rule("cp_without_fused_attention", lambda c, _: c.cp > 1, concerns=lambda job: job.attention == "unfused"),
    rule("heads_not_divisible_by_cp", _heads_over_context),
    rule("too_few_layers", _too_few_layers),
    rule("tp_straddles_level",
         lambda c, job: any_of(c, ((size % c.tp != 0) & (c.tp % size != 0) for size in _units(job)))),
    rule("batch_not_divisible_by_dp", lambda c, job: job.global_batch_size % c.dp != 0),
)  # fmt: skip


def _experts(c: Candidates, job: JobSpec) -> BoolArray:
    if not job.model.is_moe:
        return (c.ep > 1) | (c.etp > 1)
    experts = (kind.moe for kind in job.model.kinds if kind.moe is not None)
    return any_of(c, ((moe.experts % c.ep != 0) | (moe.ffn % c.etp != 0) for moe in experts))


def _overlaps_exchange(job: JobSpec) -> bool:
    return job.runtime.overlap_ep and job.model.is_moe


_LAYOUT = (
    rule("sp_unavailable", lambda c, _: c.sp == 1, _where(lambda own: own.sequence_parallel == "never")),
    rule("tp_without_sp", lambda c, _: (c.tp > 1) & (c.sp == 0),
         _where(lambda own: own.sequence_parallel == "always")),
    rule("vpp_unavailable", lambda c, _: c.vpp > 1, _without("interleaving")),
    rule("ep_unavailable", lambda c, _: c.ep > 1, _without("expert_parallel")),
    rule("uneven_chunks", lambda c, job: job.model.layers % (c.pp * c.vpp) != 0, _without("even_chunks")),
    rule("schedule_unavailable", lambda c, job: (c.pp > 1) & _missing(c.schedule, _own(job).schedules),
         _without("schedules")),
    rule("sp_without_tp", lambda c, _: (c.sp == 1) & (c.tp == 1)),
    rule("sequence_slice_not_divisible", lambda c, job: (c.sp == 1) & ((job.sequence // c.cp) % c.tp != 0)),
    rule("experts_not_divisible", _experts),
    rule("expert_grid", lambda c, _: (c.tp * c.cp * c.dp) % (c.ep * c.etp) != 0),
    rule("ep_straddles_level", _experts_straddle, concerns=lambda job: job.model.is_moe),
    rule("ep_overlap_unavailable", every, _without("overlaps_exchange"), _overlaps_exchange),
    rule("ep_overlap_without_ep", lambda c, _: c.ep == 1, concerns=_overlaps_exchange),
    rule("ep_overlap_without_vpp",
         lambda c, _: (c.ep > 1) & (c.pp > 1) & (c.vpp == 1) & (c.schedule != arrays.DUALPIPE),
         concerns=_overlaps_exchange),
    rule("vpp_without_pp", lambda c, _: (c.vpp > 1) & (c.pp == 1)),
    rule("schedule_chunks", lambda c, _: wrong_chunks(c)),
    rule("stages_torn", stages_torn),
    rule("too_few_layers_for_chunks", _too_few_layers),
)  # fmt: skip


def _teacher(c: Candidates, job: JobSpec) -> BoolArray:
    own = job.teaching or job
    return any_of(c, (test(c, own) for test in (_heads, _feed_forward, _heads_over_context)))


_SHARDING = (
    rule("zero_stage_unavailable",
         lambda c, job: _missing(c.zero, _own(job).zero_stages) & ((c.zero > 0) | (c.dp * c.cp > 1)),
         _without("zero_stages")),
    rule("zero_with_pp", lambda c, job: (c.pp > 1) & _missing(c.zero, _own(job).pipelined_stages),
         _without("pipelined_stages")),
    rule("hybrid_sharding_unavailable",
         lambda c, job: (c.zero > 0) & (c.shard < c.dp * c.cp) & _missing(c.zero, _own(job).hybrid_stages),
         _without("hybrid_stages")),
    rule("shard_not_divisible",
         lambda c, _: np.where(c.zero == 0, c.shard != 1, (c.shard < 1) | (c.dp * c.cp % np.maximum(c.shard, 1) != 0))),
    rule("offloaded_parameters_not_sharded",
         lambda c, job: c.zero < 2 + (1 in _own(job).zero_stages),  # FSDP shards them between steps under 2 as well
         concerns=lambda job: job.offload.parameters),
)  # fmt: skip

_MICROBATCH = (
    rule("batch_not_divisible", lambda c, job: c.dp * c.micro_batch_size * c.num_microbatches != job.global_batch_size),
    rule("projection_unavailable", every, EVERY - {"generic", "accelerate"}, lambda job: job.projection is not None),
    rule("projection_needs_whole_matrices",
         lambda c, _: (c.tp > 1) | (c.pp > 1) | ((c.zero > 0) & (c.shard > 1)),
         concerns=lambda job: job.projection is not None),
    rule("teacher_split_over_layers", lambda c, _: c.pp > 1, concerns=lambda job: job.teacher is not None),
    rule("teacher_heads_not_divisible", _teacher, concerns=lambda job: job.teacher is not None),
    rule("pair_over_microbatches", lambda c, job: c.micro_batch_size % job.method.sequences != 0,
         concerns=lambda job: job.method.sequences > 1),
    rule("ep_overlap_without_microbatches", lambda c, _: (c.ep > 1) & (c.num_microbatches < 2),
         concerns=_overlaps_exchange),
    rule("interleaving_needs_microbatches",
         lambda c, _: (c.vpp > 1) & (c.schedule == arrays.ONE_F_ONE_B) & (c.num_microbatches % c.pp != 0),
         MEGATRON | {"generic"}),
    rule("dualpipe_microbatches", lambda c, _: dualpipe_microbatches(c)),
)  # fmt: skip


def _stage_layers(c: Candidates, job: JobSpec) -> IntArray:
    return -(-job.model.layers // c.pp)


def _partial(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark the rows that recompute some layers of a stage whole, but not all."""
    by_operator = (c.recompute_modules & arrays.EVERY_OTHER_MATMUL) > 0
    return (c.recompute_layers > 0) & (c.recompute_layers < _stage_layers(c, job)) & ~by_operator


def _not_every_nth(c: Candidates, job: JobSpec) -> BoolArray:
    """Every n-th layer: of L layers ceil(L / n) for some n, that is, ceil(L / ceil(L / k)) = k."""
    layers = _stage_layers(c, job)
    step = -(-layers // np.maximum(c.recompute_layers, 1))
    return _partial(c, job) & (-(-layers // step) != c.recompute_layers)


def _absent_modules(c: Candidates, job: JobSpec) -> BoolArray:
    kinds = job.model.kinds
    known = arrays.CORE_ATTN | arrays.LAYERNORM | arrays.EVERY_OTHER_MATMUL  # of any layer
    known |= arrays.MLP if any(kind.mlp for kind in kinds) else 0
    known |= arrays.MOE | arrays.MOE_ACT if job.model.is_moe else 0
    known |= arrays.SHARED_EXPERTS if any(kind.moe and kind.moe.shared_ffn for kind in kinds) else 0
    known |= arrays.MLA_UP_PROJ if any(attention.latent for attention in job.model.attentions) else 0
    return (c.recompute_modules & ~known) != 0


_RECOMPUTE = (
    rule("recompute_modules_unavailable", lambda c, job: (c.recompute_modules & ~_own(job).recompute_modules) != 0,
         _without("recompute_modules")),
    rule("recompute_layers_partial", _partial, _where(lambda own: own.recompute_layers == "all")),
    rule("recompute_layers_every_nth", _not_every_nth, _where(lambda own: own.recompute_layers == "every n-th")),
    rule("recompute_uneven_over_chunks", lambda c, job: _partial(c, job) & (c.recompute_layers % c.vpp != 0),
         _where(lambda own: own.recompute_layers == "per chunk")),
    rule("recompute_module_absent", _absent_modules),
    rule("recompute_layers_too_many", lambda c, job: c.recompute_layers > _stage_layers(c, job)),
)  # fmt: skip

RULES = {"shape": _SHAPE, "layout": _LAYOUT, "sharding": _SHARDING, "microbatch": _MICROBATCH, "recompute": _RECOMPUTE}
"""Table of the space on which they can first be decided -> rules."""
