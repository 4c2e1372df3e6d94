"""Rules on (TP, PP, CP, DP): what the shape of the model, the sequence and the cluster must divide into."""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.context import context_split
from gpuscale.rules.rule import DEEPSPEED, MEGATRON, TORCHTITAN, Rule
from gpuscale.specs.job import JobSpec


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


def _kv_heads_whole(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    for attention in job.model.attentions:
        if attention.latent is None:
            bad |= attention.kv_heads % c.tp != 0
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
    return job.sequence % c.cp != 0


def _context_halves(c: Candidates, job: JobSpec) -> BoolArray:
    return (c.cp > 1) & (job.sequence % (2 * c.cp) != 0)


def _heads_over_context(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = c.tp * context_split(c, job).heads
    bad = np.zeros(len(c), dtype=bool)
    for attention in job.model.attentions:
        bad |= (attention.heads % ranks != 0) & (ranks > c.tp)
    return bad


def _context_unfused(c: Candidates, _: JobSpec) -> BoolArray:
    return c.cp > 1


def _layers(c: Candidates, job: JobSpec) -> BoolArray:
    chunks = c.pp * c.vpp
    return (chunks > 1) & (job.model.layers < np.maximum(chunks - 2, 1))


def _straddles(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    for level in job.cluster.levels:
        bad |= (level.gpus % c.tp != 0) & (c.tp % level.gpus != 0)
    return bad


def _batch_dp(c: Candidates, job: JobSpec) -> BoolArray:
    return job.global_batch_size % c.dp != 0


RULES = (
    Rule("heads_not_divisible", "TP must divide the attention heads", "arithmetic: whole heads", _heads),
    Rule(
        "kv_heads_not_divisible",
        "TP and the key/value heads must divide one another",
        "arithmetic: whole heads, shared or copied",
        _kv_heads,
    ),
    Rule(
        "kv_heads_not_replicated",
        "TP must divide the key/value heads, which are not replicated",
        "torchtitan models/common/decoder; nanotron models/llama",
        _kv_heads_whole,
        TORCHTITAN | {"nanotron"},
    ),
    Rule("hidden_not_divisible", "TP must divide the hidden size", "arithmetic: equal slices", _hidden),
    Rule("ffn_not_divisible", "TP must divide the feed-forward width", "arithmetic: equal slices", _ffn),
    Rule(
        "sequence_not_divisible_by_cp",
        "the sequence must be a multiple of 2 x CP",
        "Megatron-LM arguments",
        _context_halves,
        MEGATRON | TORCHTITAN | {"nanotron"},
    ),
    Rule(
        "sequence_slices_uneven",
        "CP must divide the sequence",
        "DeepSpeed runtime/sequence_parallel",
        _context,
        DEEPSPEED | {"generic"},
    ),
    Rule(
        "cp_without_fused_attention",
        "context parallelism needs fused attention",
        "Liu et al. 2023: softmax over blocks of keys",
        _context_unfused,
        concerns=lambda job: job.runtime.attention == "unfused",
    ),
    Rule(
        "heads_not_divisible_by_cp",
        "where CP exchanges heads, TP x the ranks that do must divide the attention heads",
        "arithmetic: whole heads",
        _heads_over_context,
    ),
    Rule(
        "too_few_layers",
        "every stage and chunk but the first and last needs a layer",
        "gpuscale candidates/stages",
        _layers,
    ),
    Rule(
        "tp_straddles_level", "a TP group must fill whole nodes or fit in one evenly", "gpuscale placement", _straddles
    ),
    Rule("batch_not_divisible_by_dp", "DP must divide the global batch size", "arithmetic: equal batches", _batch_dp),
)

CHUNKED_RULES = (
    Rule(
        "too_few_layers_for_chunks",
        "every chunk but the first and last needs a layer",
        "gpuscale candidates/stages",
        _layers,
    ),
)
"""Rules on shapes that the number of model chunks decides."""
