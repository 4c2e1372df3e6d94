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
from gpuscale.rules.rule import DEEPSPEED, FRAMEWORKS, FSDP2, MEGATRON, NANOTRON, Framework, Rule, any_of
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


def _unavailable(
    code: str,
    options: tuple[str, ...],
    text: str,
    frameworks: frozenset[str],
    test: Callable[[Candidates, JobSpec], BoolArray] = lambda c, _: np.ones(len(c), dtype=bool),
    concerns: Callable[[JobSpec], bool] | None = None,
) -> Rule:
    """A rule that follows from what a framework lacks; without a test, every layout of the jobs concerned breaks it."""
    return Rule(code, options, text, "docs/frameworks.md", test, frameworks, concerns)


def _absent(
    code: str, options: tuple[str, ...], what: str, ability: str, test: Callable[[Candidates, JobSpec], BoolArray]
) -> Rule:
    return _unavailable(code, options, f"the framework has no {what}", _without(ability), test)


def _absent_layer(
    code: str, options: tuple[str, ...], what: str, layer: str, concerns: Callable[[JobSpec], bool]
) -> Rule:
    frameworks = _where(lambda own: layer not in own.layers)
    return _unavailable(code, options, f"the framework has no {what}", frameworks, concerns=concerns)


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
    _unavailable("adapters_unavailable", ("tune", "framework"), "the framework trains no adapters",
                 frozenset({"torchtitan", "torchtitan-2024", "nanotron", "megatron-deepspeed"}),
                 concerns=lambda job: job.tuning is not None),
    _unavailable("quantised_base_unavailable", ("tune", "base_dtype", "framework"),
                 "the framework keeps frozen weights in 16 bits", MEGATRON,
                 concerns=lambda job: job.tuning is not None and job.tuning.quantised),
    _absent_layer("moe_unavailable", ("model", "framework"), "experts", "moe", lambda job: job.model.is_moe),
    _absent_layer("gqa_unavailable", ("model", "framework"), "grouped-query attention", "gqa",
                  lambda job: any(one.latent is None and one.kv_heads < one.heads for one in job.model.attentions)),
    _absent_layer("latent_attention_unavailable", ("model", "framework"), "latent attention", "latent",
                  lambda job: any(one.latent is not None for one in job.model.attentions)),
    _absent_layer("state_space_unavailable", ("model", "framework"), "state spaces", "state_space",
                  lambda job: any(kind.state_space is not None for kind in job.model.kinds)),
    _unavailable("precision_unavailable", ("precision",), "the framework does not train in this precision",
                 _without("precisions"), concerns=lambda job: job.precision not in _own(job).precisions),
    _unavailable("fp8_recipe_unavailable", ("precision",), "the framework does not scale fp8 or fp4 in this way",
                 _without("recipes"),
                 concerns=lambda job: job.precision in {"fp8", "fp4"} and job.recipe not in _own(job).recipes),
    _unavailable("offload_unavailable", ("offload",), "the framework does not keep this in host memory",
                 _without("offload"),
                 concerns=lambda job: any(getattr(job.offload, one) for one in _ANY.offload - _own(job).offload)),
    _absent("tp_unavailable", ("tp",), "tensor parallelism", "tensor_parallel", lambda c, _: c.tp > 1),
    _absent("pp_unavailable", ("pp",), "pipelines", "pipelines", lambda c, _: c.pp > 1),
    _absent("cp_unavailable", ("cp",), "context parallelism", "context_parallel", lambda c, _: c.cp > 1),
    _unavailable("uneven_stages", ("pp", "layers"), "PP must divide the layers", _without("even_chunks"),
                 lambda c, job: job.model.layers % c.pp != 0),
    Rule("heads_not_divisible", ("tp", "heads"), "TP must divide the attention heads", "arithmetic: whole heads",
         _heads),
    Rule("kv_heads_not_divisible", ("tp", "kv_heads"), "TP and the key/value heads must divide one another",
         "arithmetic: whole heads, shared or copied", lambda c, job: _kv_heads(c, job, copied=True)),
    Rule("kv_heads_not_replicated", ("tp", "kv_heads"), "TP must divide the key/value heads, which are not replicated",
         "torchtitan models/common/decoder; nanotron models/llama; Megatron-LM transformer_config until core 0.15",
         lambda c, job: _kv_heads(c, job, copied=False), FSDP2 | NANOTRON | (MEGATRON - {"megatron-lm"})),
    Rule("hidden_not_divisible", ("tp", "hidden"), "TP must divide the hidden size", "arithmetic: equal slices",
         lambda c, job: job.model.hidden % c.tp != 0),
    Rule("ffn_not_divisible", ("tp", "ffn"), "TP must divide the feed-forward width", "arithmetic: equal slices",
         _feed_forward),
    Rule("sequence_not_divisible_by_cp", ("cp", "seq"), "the sequence must be a multiple of 2 x CP",
         "Megatron-LM arguments", lambda c, job: (c.cp > 1) & (job.sequence % (2 * c.cp) != 0),
         MEGATRON | FSDP2 | NANOTRON),
    Rule("sequence_slices_uneven", ("cp", "seq"), "CP must divide the sequence", "DeepSpeed runtime/sequence_parallel",
         lambda c, job: job.sequence % c.cp != 0, DEEPSPEED | {"generic"}),
    Rule("cp_without_fused_attention", ("cp",), "context parallelism needs fused attention",
         "Liu et al. 2023: softmax over blocks of keys", lambda c, _: c.cp > 1,
         concerns=lambda job: job.attention == "unfused"),
    Rule("heads_not_divisible_by_cp", ("cp", "tp", "heads"),
         "where CP exchanges heads, TP x the ranks that do must divide the attention heads", "arithmetic: whole heads",
         _heads_over_context),
    Rule("too_few_layers", ("pp", "vpp", "layers"), "every stage and chunk but the first and last needs a layer",
         "gpuscale layouts/stages", _too_few_layers),
    Rule("tp_straddles_level", ("tp", "gpus_per_node"),
         "a TP group must fill whole nodes or fit evenly into one (`gpus_per_node`: how many GPUs of each are used)",
         "gpuscale placement",
         lambda c, job: any_of(c, ((size % c.tp != 0) & (c.tp % size != 0) for size in _units(job)))),
    Rule("batch_not_divisible_by_dp", ("gbs", "dp"), "DP must divide the global batch size",
         "arithmetic: equal batches", lambda c, job: job.global_batch_size % c.dp != 0),
)  # fmt: skip


def _experts(c: Candidates, job: JobSpec) -> BoolArray:
    if not job.model.is_moe:
        return (c.ep > 1) | (c.etp > 1)
    experts = (kind.moe for kind in job.model.kinds if kind.moe is not None)
    return any_of(c, ((moe.experts % c.ep != 0) | (moe.ffn % c.etp != 0) for moe in experts))


def _overlaps_exchange(job: JobSpec) -> bool:
    return job.runtime.overlap_ep and job.model.is_moe


_LAYOUT = (
    _unavailable("sp_unavailable", ("sp",), "the framework has no sequence parallelism",
                 _where(lambda own: own.sequence_parallel == "never"), lambda c, _: c.sp == 1),
    _unavailable("tp_without_sp", ("sp", "tp"), "tensor parallelism comes with sequence parallelism",
                 _where(lambda own: own.sequence_parallel == "always"), lambda c, _: (c.tp > 1) & (c.sp == 0)),
    _absent("vpp_unavailable", ("vpp",), "virtual stages", "interleaving", lambda c, _: c.vpp > 1),
    _absent("ep_unavailable", ("ep",), "expert parallelism", "expert_parallel", lambda c, _: c.ep > 1),
    _unavailable("uneven_chunks", ("vpp", "pp", "layers"), "PP x VPP must divide the layers", _without("even_chunks"),
                 lambda c, job: job.model.layers % (c.pp * c.vpp) != 0),
    _absent("schedule_unavailable", ("schedule",), "such pipeline schedule", "schedules",
            lambda c, job: (c.pp > 1) & _missing(c.schedule, _own(job).schedules)),
    Rule("sp_without_tp", ("sp", "tp"), "sequence parallelism needs TP > 1", "arithmetic: nothing to split",
         lambda c, _: (c.sp == 1) & (c.tp == 1)),
    Rule("sequence_slice_not_divisible", ("tp", "sp", "seq"), "with SP, TP must divide sequence / CP",
         "arithmetic: equal slices", lambda c, job: (c.sp == 1) & ((job.sequence // c.cp) % c.tp != 0)),
    Rule("experts_not_divisible", ("ep", "etp", "experts"), "EP must divide the experts and ETP their width",
         "arithmetic: whole experts, equal slices", _experts),
    Rule("expert_grid", ("ep", "etp", "tp", "cp", "dp"), "EP x ETP must divide TP x CP x DP",
         "arithmetic: the ranks of a stage", lambda c, _: (c.tp * c.cp * c.dp) % (c.ep * c.etp) != 0),
    Rule("ep_straddles_level", ("ep", "etp", "gpus_per_node"),
         "an EP x ETP group smaller than a node must fit evenly into it (`gpus_per_node`: how many GPUs are taken)",
         "gpuscale placement", _experts_straddle, concerns=lambda job: job.model.is_moe),
    _unavailable("ep_overlap_unavailable", ("overlap",),
                 "the framework has no overlap of the expert exchange (`overlap`)", _without("overlaps_exchange"),
                 concerns=_overlaps_exchange),
    Rule("ep_overlap_without_ep", ("overlap", "ep"), "an overlapped expert exchange (`overlap`) needs EP > 1",
         "arithmetic: nothing to exchange", lambda c, _: c.ep == 1, concerns=_overlaps_exchange),
    Rule("ep_overlap_without_vpp", ("overlap", "vpp", "pp"),
         "an overlapped expert exchange needs virtual stages where PP > 1, or DualPipe",
         "Megatron-LM transformer_config: no other microbatch is at hand",
         lambda c, _: (c.ep > 1) & (c.pp > 1) & (c.vpp == 1) & (c.schedule != arrays.DUALPIPE),
         concerns=_overlaps_exchange),
    Rule("vpp_without_pp", ("vpp", "pp"), "virtual stages need PP > 1", "arithmetic: nothing to interleave",
         lambda c, _: (c.vpp > 1) & (c.pp == 1)),
    Rule("schedule_chunks", ("schedule", "vpp"), "ZB-V has two chunks per rank, GPipe, ZB-H and DualPipe one",
         "Qi et al. 2024, section 6; DeepSeek-V3, section 3.2.1", lambda c, _: wrong_chunks(c)),
    Rule("stages_torn", ("axis_order", "ep", "etp"),
         "where stages are not outermost, experts and other layers need the same stages", "Megatron-LM parallel_state",
         stages_torn),
    Rule("too_few_layers_for_chunks", ("vpp", "pp", "layers"), "every chunk but the first and last needs a layer",
         "gpuscale layouts/stages", _too_few_layers),
)  # fmt: skip

_SHARDING = (
    _absent("zero_stage_unavailable", ("zero",), "such ZeRO stage", "zero_stages",
            lambda c, job: _missing(c.zero, _own(job).zero_stages) & ((c.zero > 0) | (c.dp * c.cp > 1))),
    Rule("zero_with_pp", ("zero", "pp"), "ZeRO-2 and 3 do not combine with PP > 1",
         "Megatron-LM arguments; DeepSpeed runtime/pipe/engine",
         lambda c, job: (c.pp > 1) & _missing(c.zero, _own(job).pipelined_stages), _without("pipelined_stages")),
    _unavailable("hybrid_sharding_unavailable", ("shard", "zero"),
                 "at this ZeRO stage all data-parallel ranks share one copy of the states", _without("hybrid_stages"),
                 lambda c, job: (c.zero > 0) & (c.shard < c.dp * c.cp) & _missing(c.zero, _own(job).hybrid_stages)),
    Rule("shard_not_divisible", ("shard", "dp", "cp"), "the shard size must divide DP x CP", "arithmetic: equal shards",
         lambda c, _: np.where(c.zero == 0, c.shard != 1, (c.shard < 1) | (c.dp * c.cp % np.maximum(c.shard, 1) != 0))),
    Rule("offloaded_parameters_not_sharded", ("offload", "zero"), "parameters can be offloaded under ZeRO-3 only",
         "DeepSpeed runtime/zero/config", lambda c, _: c.zero != 3, concerns=lambda job: job.offload.parameters),
)  # fmt: skip

_MICROBATCH = (
    Rule("batch_not_divisible", ("gbs", "micro_batch_size", "dp"), "DP x microbatch must divide the global batch size",
         "arithmetic: equal batches",
         lambda c, job: c.dp * c.micro_batch_size * c.num_microbatches != job.global_batch_size),
    _unavailable("projection_unavailable", ("optimizer", "framework"), "the framework has neither GaLore nor APOLLO",
                 frozenset(FRAMEWORKS) - {"generic", "accelerate"},
                 concerns=lambda job: job.projection is not None),
    Rule("projection_needs_whole_matrices", ("optimizer", "zero", "tp", "pp"),
         "galore and apollo project whole gradients: without ZeRO, TP or PP",
         "LLaMA-Factory hparams/parser.py: incompatible with DeepSpeed",
         lambda c, _: (c.tp > 1) | (c.pp > 1) | ((c.zero > 0) & (c.shard > 1)),
         concerns=lambda job: job.projection is not None),
    Rule("teacher_split_over_layers", ("teacher", "pp"),
         "a teacher is not split by layers: its forward pass is modelled without PP", "docs/tasks/fine-tune.md",
         lambda c, _: c.pp > 1, concerns=lambda job: job.teacher is not None),
    Rule("teacher_heads_not_divisible",
        ("teacher", "tp"),
        "TP must divide the attention heads and the feed-forward width of the teacher, CP x TP its heads",
        "arithmetic: whole heads",
        lambda c, job: any_of(c, (one(c, job.teaching or job) for one in (_heads, _feed_forward, _heads_over_context))),
        concerns=lambda job: job.teacher is not None),
    Rule("pair_over_microbatches", ("micro_batch_size",), "a microbatch holds whole pairs of answers",
         "arithmetic: a pair's loss compares both", lambda c, job: c.micro_batch_size % job.method.sequences != 0,
         concerns=lambda job: job.method.sequences > 1),
    Rule("ep_overlap_without_microbatches", ("overlap", "gbs", "micro_batch_size"),
         "an overlapped expert exchange needs another microbatch beside it", "arithmetic: two microbatches",
         lambda c, _: (c.ep > 1) & (c.num_microbatches < 2), concerns=_overlaps_exchange),
    Rule("interleaving_needs_microbatches", ("vpp", "pp", "gbs", "micro_batch_size"),
         "with interleaved stages PP must divide the microbatches", "Megatron-LM schedules",
         lambda c, _: (c.vpp > 1) & (c.schedule == arrays.ONE_F_ONE_B) & (c.num_microbatches % c.pp != 0),
         MEGATRON | {"generic"}),
    Rule("dualpipe_microbatches", ("gbs", "micro_batch_size", "pp"),
         "DualPipe needs an even number of microbatches, two per stage at least", "DeepSeek DualPipe dualpipe.py",
         lambda c, _: dualpipe_microbatches(c)),
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
    _unavailable("recompute_modules_unavailable", ("recompute",),
                 "the framework cannot recompute these modules by themselves", _without("recompute_modules"),
                 lambda c, job: (c.recompute_modules & ~_own(job).recompute_modules) != 0),
    _unavailable("recompute_layers_partial", ("recompute",), "the framework recomputes all layers or none",
                 _where(lambda own: own.recompute_layers == "all"), _partial),
    _unavailable("recompute_layers_every_nth", ("recompute",), "the framework recomputes every n-th layer",
                 _where(lambda own: own.recompute_layers == "every n-th"), _not_every_nth),
    _unavailable("recompute_uneven_over_chunks", ("recompute", "vpp"),
                 "every model chunk of a stage recomputes the same number of layers",
                 _where(lambda own: own.recompute_layers == "per chunk"),
                 lambda c, job: _partial(c, job) & (c.recompute_layers % c.vpp != 0)),
    Rule("recompute_module_absent", ("recompute",), "the model has no such module to recompute",
         "arithmetic: nothing to recompute", _absent_modules),
    Rule("recompute_layers_too_many", ("recompute", "pp"), "a stage has fewer layers than are to be recomputed",
         "arithmetic: nothing to recompute", lambda c, job: c.recompute_layers > _stage_layers(c, job)),
)  # fmt: skip

RULES = {"shape": _SHAPE, "layout": _LAYOUT, "sharding": _SHARDING, "microbatch": _MICROBATCH, "recompute": _RECOMPUTE}
"""Table of the space on which they can first be decided -> rules."""
