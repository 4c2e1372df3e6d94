"""Which candidates are legal, and a reason code for each that is not.

A rule is a code, a sentence for people, its source, and a function that marks the rows that break it. Rules are
grouped by the table of `gpuscale.candidates.space` on which they can first be decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import CORE_ATTN, MLA_UP_PROJ, MLP, MOE, MOE_ACT, SHARED_EXPERTS, Candidates
from gpuscale.candidates.context import context_split
from gpuscale.candidates.space import Grid, plain
from gpuscale.candidates.stages import splits_evenly_enough
from gpuscale.specs.job import JobSpec

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason why a candidate cannot run.

    Attributes:
        code: reason code of the JSON output.
        text: the rule as a sentence, for people.
        source: where it comes from.
        breaks: marks the candidates that break it. In a grid of candidates the marks may have any shape that
            broadcasts with it: what does not depend on a choice is decided once for all choices.
    """

    code: str
    text: str
    source: str
    breaks: Callable[[Candidates, JobSpec], BoolArray]


def _heads(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    for attention in job.model.attentions:
        bad |= attention.heads % c.tp != 0
    for kind in job.model.kinds:
        if kind.state_space is not None:
            bad |= kind.state_space.heads % c.tp != 0
    return bad


def _kv_heads(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    for attention in job.model.attentions:
        if attention.latent is None:
            heads = attention.kv_heads
            bad |= (heads % c.tp != 0) & (c.tp % heads != 0)
    return bad


def _ffn(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    for kind in job.model.kinds:
        widths = [kind.mlp.ffn] if kind.mlp else [kind.moe.shared_ffn] if kind.moe else []
        for width in widths:
            bad |= width % c.tp != 0
    return bad


def _hidden(c: Candidates, job: JobSpec) -> BoolArray:
    return job.model.hidden % c.tp != 0


def _context(c: Candidates, job: JobSpec) -> BoolArray:
    return (c.cp > 1) & (job.sequence % (2 * c.cp) != 0)


def _heads_over_context(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = c.tp * context_split(c, job).heads
    bad = np.zeros(len(c), dtype=bool)
    for attention in job.model.attentions:
        bad |= (attention.heads % ranks != 0) & (ranks > c.tp)
    return bad


def _context_unfused(c: Candidates, job: JobSpec) -> BoolArray:
    return (c.cp > 1) & (job.runtime.attention == "unfused")


def _layers(c: Candidates, job: JobSpec) -> BoolArray:
    chunks = c.pp * c.vpp
    return ~splits_evenly_enough(job.model.layers, chunks)


def _straddles(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    for level in job.cluster.levels:
        bad |= (level.gpus % c.tp != 0) & (c.tp % level.gpus != 0)
    return bad


def _batch_dp(c: Candidates, job: JobSpec) -> BoolArray:
    return job.global_batch_size % c.dp != 0


def _sequence_slice(c: Candidates, job: JobSpec) -> BoolArray:
    return (c.sp == 1) & ((job.sequence // c.cp) % c.tp != 0)


def _sp_alone(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.sp == 1) & (c.tp == 1)


def _ep_needs_sp(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.ep > 1) & (c.tp > 1) & (c.sp == 0)


def _experts(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    if not job.model.is_moe:
        return (c.ep > 1) | (c.etp > 1)
    for kind in job.model.kinds:
        if kind.moe is not None:
            bad |= (kind.moe.experts % c.ep != 0) | (kind.moe.ffn % c.etp != 0)
    return bad


def _expert_grid(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.tp * c.cp * c.dp) % (c.ep * c.etp) != 0


def _interleaved_alone(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.vpp > 1) & (c.pp == 1)


def _micro(c: Candidates, job: JobSpec) -> BoolArray:
    return c.dp * c.micro_batch_size * c.num_microbatches != job.global_batch_size


def _interleaved_microbatches(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.vpp > 1) & (c.num_microbatches % c.pp != 0)


def _zero_pipeline(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.zero >= 2) & (c.pp > 1)


def _shard(c: Candidates, _: JobSpec) -> BoolArray:
    group = c.dp * c.cp
    return np.where(c.zero == 0, c.shard != 1, (c.shard < 1) | (group % np.maximum(c.shard, 1) != 0))


def _offload_whole(c: Candidates, job: JobSpec) -> BoolArray:
    return (c.zero != 3) & job.offload.parameters


def _zero_alone(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.zero > 0) & (c.dp * c.cp == 1)


def _recompute_modules(c: Candidates, job: JobSpec) -> BoolArray:
    kinds = job.model.kinds
    known = CORE_ATTN
    known |= MLP if any(kind.mlp for kind in kinds) else 0
    known |= MOE | MOE_ACT if job.model.is_moe else 0
    known |= SHARED_EXPERTS if any(kind.moe and kind.moe.shared_ffn for kind in kinds) else 0
    known |= MLA_UP_PROJ if any(attention.latent for attention in job.model.attentions) else 0
    known |= 1 << 1  # layernorm
    return (c.recompute_modules & ~known) != 0


def _recompute_layers(c: Candidates, job: JobSpec) -> BoolArray:
    return c.recompute_layers > -(-job.model.layers // c.pp)


SHAPE_RULES = (
    Rule("heads_not_divisible", "TP must divide the attention heads", "Megatron-LM transformer_config", _heads),
    Rule(
        "kv_heads_not_divisible",
        "TP and the key/value heads must divide one another",
        "Megatron-LM attention",
        _kv_heads,
    ),
    Rule("hidden_not_divisible", "TP must divide the hidden size", "Megatron-LM ColumnParallelLinear", _hidden),
    Rule("ffn_not_divisible", "TP must divide the feed-forward width", "Megatron-LM ColumnParallelLinear", _ffn),
    Rule(
        "sequence_not_divisible_by_cp", "the sequence must be a multiple of 2 x CP", "Megatron-LM arguments", _context
    ),
    Rule(
        "cp_without_fused_attention",
        "context parallelism needs fused attention",
        "Megatron-LM transformer_config",
        _context_unfused,
    ),
    Rule(
        "heads_not_divisible_by_cp",
        "where CP exchanges heads, TP x the ranks that do must divide the attention heads",
        "DeepSpeed sequence/layer; Megatron-LM --cp-comm-type a2a",
        _heads_over_context,
    ),
    Rule(
        "too_few_layers",
        "every stage and chunk but the first and last needs a layer",
        "Megatron-LM pipeline layout",
        _layers,
    ),
    Rule(
        "tp_straddles_level", "a TP group must fill whole nodes or fit in one evenly", "gpuscale placement", _straddles
    ),
    Rule(
        "batch_not_divisible_by_dp", "DP must divide the global batch size", "Megatron-LM num_microbatches", _batch_dp
    ),
)

LAYOUT_RULES = (
    Rule("sp_without_tp", "sequence parallelism needs TP > 1", "Megatron-LM model_parallel_config", _sp_alone),
    Rule(
        "sequence_slice_not_divisible", "with SP, TP must divide sequence / CP", "Megatron-LM mappings", _sequence_slice
    ),
    Rule("experts_not_divisible", "EP must divide the experts and ETP their width", "Megatron-LM arguments", _experts),
    Rule("expert_grid", "EP x ETP must divide TP x CP x DP", "Megatron-LM parallel_state", _expert_grid),
    Rule("ep_without_sp", "EP with TP needs sequence parallelism", "Megatron-LM moe_layer", _ep_needs_sp),
    Rule("vpp_without_pp", "virtual stages need PP > 1", "Megatron-LM arguments", _interleaved_alone),
    Rule(
        "too_few_layers_for_chunks",
        "every chunk but the first and last needs a layer",
        "Megatron-LM pipeline layout",
        _layers,
    ),
)

SHARDING_RULES = (
    Rule("zero_without_dp", "ZeRO needs more than one data-parallel rank", "DeepSpeed ZeRO", _zero_alone),
    Rule("shard_not_divisible", "the shard size must divide DP x CP", "PyTorch FSDP device mesh", _shard),
    Rule(
        "offloaded_parameters_not_sharded",
        "parameters can be offloaded under ZeRO-3 only",
        "DeepSpeed runtime/zero/config",
        _offload_whole,
    ),
    Rule("zero_with_pp", "ZeRO-2 and 3 do not combine with PP > 1", "DeepSpeed runtime/pipe/engine", _zero_pipeline),
)

MICROBATCH_RULES = (
    Rule(
        "batch_not_divisible",
        "DP x microbatch must divide the global batch size",
        "Megatron-LM num_microbatches",
        _micro,
    ),
    Rule(
        "interleaving_needs_microbatches",
        "with virtual stages PP must divide the microbatches",
        "Megatron-LM schedules",
        _interleaved_microbatches,
    ),
)

RECOMPUTE_RULES = (
    Rule(
        "recompute_module_absent",
        "the model has no such module to recompute",
        "Megatron-LM transformer_config",
        _recompute_modules,
    ),
    Rule(
        "recompute_layers_too_many",
        "a stage has fewer layers than are to be recomputed",
        "Megatron-LM arguments",
        _recompute_layers,
    ),
)

ALL_RULES = (*SHAPE_RULES, *LAYOUT_RULES, *SHARDING_RULES, *MICROBATCH_RULES, *RECOMPUTE_RULES)


def apply(rules: Sequence[Rule], table: Candidates, job: JobSpec, rejected: dict[str, int]) -> Candidates:
    """Drop the rows that break a rule; each is counted in `rejected` under the first rule it breaks."""
    return restrict(rules, plain(table), job, rejected).rows


def restrict(rules: Sequence[Rule], grid: Grid, job: JobSpec, rejected: dict[str, int]) -> Grid:
    """Mark what breaks a rule as illegal, and drop the rows without any legal choice; counts as `mark`."""
    marked = mark(rules, grid, job, rejected)
    legal = np.broadcast_to(marked.legal, np.broadcast_shapes(marked.legal.shape, (len(grid.rows),)))
    kept = np.asarray(legal.any(axis=tuple(range(legal.ndim - 1))))
    return marked if kept.all() else marked.take(kept)


def mark(rules: Sequence[Rule], grid: Grid, job: JobSpec, rejected: dict[str, int]) -> Grid:
    """Mark what breaks a rule as illegal; each candidate is counted in `rejected` under the first rule it breaks."""
    legal: BoolArray = grid.legal
    for rule in rules:
        bad: BoolArray = np.asarray(legal & rule.breaks(grid.rows, job))
        if bad.any():
            count = int(np.count_nonzero(np.broadcast_to(bad, grid.rows.shape)))
            rejected[rule.code] = rejected.get(rule.code, 0) + count
            legal = np.asarray(legal & ~bad)
    return Grid(grid.rows, legal)


def broken_rules(table: Candidates, job: JobSpec) -> list[Rule]:
    """Return every rule that a single candidate (a table of one row) breaks, in the order they are checked."""
    return [rule for rule in ALL_RULES if bool(np.any(rule.breaks(table, job)))]
