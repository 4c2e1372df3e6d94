"""The frameworks: for each what it can run, by rules of its own."""

from __future__ import annotations

from functools import partial

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.collectives.alltoall import units
from gpuscale.layouts import arrays
from gpuscale.layouts.arrays import ONE_F_ONE_B, Candidates
from gpuscale.layouts.ranks import context_split, strides
from gpuscale.rules.rule import DEEPSPEED, FOLDED_MEGATRON, FSDP2, MEGATRON, NANOTRON, TORCHTITAN, any_of, every, rule
from gpuscale.specs.gpu import BLACKWELL
from gpuscale.specs.job import JobSpec

# -- What Megatron-LM can run, today and in earlier generations; Megatron-Bridge, NeMo and Primus run it too. --


def _windowed_ring(job: JobSpec) -> bool:
    windows = [one.window for one in job.model.attentions if one.window is not None and not one.chunked]
    return job.runtime.cp_comm in {"p2p", "a2a+p2p"} and any(window < job.sequence for window in windows)


def _kv_heads_over_context(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = context_split(c, job).heads
    counts = (one.heads if one.latent else one.kv_heads for one in job.model.attentions)
    return any_of(c, (np.maximum(heads // c.tp, 1) % ranks != 0 for heads in counts))


def _state_space_groups(c: Candidates, job: JobSpec) -> BoolArray:
    mixers = [kind.state_space for kind in job.model.kinds if kind.state_space is not None]
    cut = any_of(c, ((one.groups % c.tp != 0) | (one.heads % (c.tp * c.cp) != 0) for one in mixers))
    of_rank = (np.maximum(one.groups // c.tp, 1) for one in mixers)  # copied where CP has more ranks than there are
    return cut | any_of(c, ((groups % c.cp != 0) & (c.cp % groups != 0) for groups in of_rank))


def _offloads_whole_layers(job: JobSpec) -> bool:
    """Whether the share of the activations in host memory is a whole number of layers. Any other share is taken of
    every layer, which Megatron-LM did not know before it offloaded by modules; forks do it under any pipeline and with
    recomputation."""
    layers = job.offload.activations * job.model.layers
    return layers > 0 and abs(layers - round(layers)) < 0.02


def _graphs_of_unknown_sizes(job: JobSpec) -> bool:
    """Whether CUDA graphs would replay whole iterations whose experts take a number of tokens that nobody knows before:
    dropless ones do, unless HybridEP leaves the counts on the GPU and activations are stashed by pages, on
    Blackwell."""
    runtime = job.runtime
    if not job.model.is_moe or runtime.cuda_graphs != "full" or runtime.routing == "dropping":
        return False
    return runtime.dispatcher != "hybridep" or job.cluster.gpu.architecture not in BLACKWELL


QUEUE_TOKENS = 21_840
"""Tokens of a microbatch that a rank may send to other NVLink domains by HybridEP: three entries each and one more, in
an InfiniBand queue of 65,535, by multiples of 16 (Megatron-LM core/transformer/moe/fused_a2a.py; DeepEP, branch
hybrid-ep, internode_doca.cu: setup_qp_init_attr)."""


def _queue_too_short(c: Candidates, job: JobSpec) -> BoolArray:
    _, domains = units(job.cluster, c.ep, strides(c, job).ep)
    return (domains > 1) & (c.micro_batch_size * job.sequence > QUEUE_TOKENS * c.cp * c.sequence_split)


_rule = partial(rule, frameworks=MEGATRON)

MEGATRON_RULES = {
    "shape": (
        _rule("window_in_ring", lambda c, _: c.cp > 1, concerns=_windowed_ring),
        _rule("kv_heads_not_divisible_by_cp", _kv_heads_over_context,
              concerns=lambda job: job.runtime.cp_comm in {"a2a", "a2a+p2p"}),
        _rule("state_space_groups_not_divisible", _state_space_groups,
              concerns=lambda job: any(kind.state_space is not None for kind in job.model.kinds)),
    ),
    "layout": (
        _rule("ep_without_sp", lambda c, _: (c.tp > 1) & (c.sp == 0), concerns=lambda job: job.model.is_moe),
        rule("experts_not_folded", lambda c, _: c.etp != c.tp, frozenset({"megatron-lm-2023"}),
             lambda job: job.model.is_moe),
        _rule("etp_with_expert_bias", lambda c, _: c.etp > 1,
              concerns=lambda job: any(kind.moe is not None and kind.moe.expert_bias for kind in job.model.kinds)),
        rule("graphs_of_dropless_experts", every, frozenset({"megatron-lm", "megatron-lm-2025"}),
             _graphs_of_unknown_sizes),
    ),
    "sharding": (
        rule("expert_replicas_not_divisible",
             lambda c, _: (c.zero > 0) & (c.expert_dp % np.maximum(c.dp * c.cp // np.maximum(c.shard, 1), 1) != 0),
             FOLDED_MEGATRON, lambda job: job.model.is_moe),
        rule("offloaded_optimizer_not_sharded", lambda c, _: (c.zero == 0) & (c.dp * c.cp > 1), FOLDED_MEGATRON,
             lambda job: job.offload.optimizer),
        rule("low_moments_not_sharded", lambda c, _: (c.zero == 0) & (c.dp * c.cp > 1), FOLDED_MEGATRON,
             lambda job: job.states.second_moment in {1.0, 2.0} and job.states.master > 0),
    ),
    "microbatch": (
        _rule("exchange_queue_too_short", _queue_too_short, limit=QUEUE_TOKENS,
              concerns=lambda job: job.model.is_moe and job.runtime.dispatcher == "hybridep"),
    ),
    "recompute": (
        rule("recompute_with_delayed_scaling",
             lambda c, _: (c.recompute_modules & (arrays.MOE_ACT | arrays.LAYERNORM)) > 0, FOLDED_MEGATRON,
             lambda job: job.precision == "fp8" and job.recipe == "delayed"),
        _rule("recompute_with_ep_overlap",
              lambda c, _: (c.ep > 1) & ((c.recompute_layers > 0) | ((c.recompute_modules & arrays.MOE) > 0)),
              concerns=lambda job: job.runtime.overlap_ep and job.model.is_moe),
        _rule("recompute_with_partial_graphs", lambda c, _: c.recompute_layers > 0,
              concerns=lambda job: job.runtime.cuda_graphs == "partial"),
        rule("offloaded_activations_with_pp",
             lambda c, _: (c.pp > 1) | (c.recompute_layers > 0) | (c.recompute_modules > 0),
             frozenset({"megatron-lm-2024", "megatron-lm-2023"}), _offloads_whole_layers),
    ),
}  # fmt: skip


# -- What torchtitan can run: FSDP2 and HSDP, TP, PP by torch.distributed.pipelining, CP and EP. --


def _rounds(c: Candidates, _: JobSpec) -> BoolArray:
    rounds = np.maximum(c.num_microbatches // c.pp, 1)
    return (c.vpp > 1) & (c.schedule == ONE_F_ONE_B) & (c.num_microbatches % rounds != 0)


_titan = partial(rule, frameworks=TORCHTITAN)

TORCHTITAN_RULES = {
    "shape": (
        _titan("tied_embeddings_with_pp", lambda c, _: c.pp > 1, concerns=lambda job: job.model.tied_embeddings),
    ),
    "layout": (
        rule("experts_split_otherwise", lambda c, _: np.where(c.ep > 1, c.etp != 1, c.etp != c.tp), FSDP2,
             lambda job: job.model.is_moe),
    ),
    "sharding": (
        rule("ddp_with_model_parallel",
             lambda c, _: (c.zero == 0) & (c.dp * c.cp > 1) & ((c.tp > 1) | (c.pp > 1) | (c.cp > 1)), FSDP2),
        rule("shard_splits_cp", lambda c, _: (c.zero > 0) & (c.shard % c.cp != 0), FSDP2),
        _titan("experts_beyond_shard", lambda c, _: (np.maximum(c.shard, c.cp) * c.tp) % (c.ep * c.etp) != 0,
              concerns=lambda job: job.model.is_moe),
    ),
    "microbatch": (
        _titan("tokens_not_divisible",
              lambda c, job: job.sequence * c.micro_batch_size % (c.sequence_split * c.cp * (1 + (c.cp > 1))) != 0),
        _titan("too_few_microbatches", lambda c, _: (c.pp > 1) & (c.vpp == 1) & (c.num_microbatches < c.pp)),
        _titan("interleaving_rounds", _rounds),
    ),
}  # fmt: skip


# -- What DeepSpeed can run: ZeRO under Hugging Face models with AutoTP, AutoEP or Ulysses, and Megatron-DeepSpeed. --


HUGGING_FACE = frozenset({"deepspeed"})


def _kv_heads_over_ulysses(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = context_split(c, job).heads
    counts = (attention.kv_heads for attention in job.model.attentions if attention.latent is None)
    return any_of(c, ((heads % ranks != 0) & (ranks % heads != 0) for heads in counts))


DEEPSPEED_RULES = {
    "shape": (
        rule("ulysses_with_model_parallel", lambda c, _: (c.cp > 1) & ((c.tp > 1) | (c.pp > 1)), DEEPSPEED),
        rule("kv_heads_against_cp", _kv_heads_over_ulysses, DEEPSPEED),
    ),
    "layout": (
        rule("etp_with_autoep", lambda c, _: (c.ep > 1) & (c.etp > 1), HUGGING_FACE, lambda job: job.model.is_moe),
        rule("offload_with_autoep_and_tp", lambda c, _: (c.ep > 1) & (c.tp > 1), HUGGING_FACE,
             lambda job: job.offload.any and job.model.is_moe),
    ),
    "sharding": (
        rule("tp_with_zero_3", lambda c, _: (c.tp > 1) & (c.zero == 3), HUGGING_FACE),
        rule("ep_with_zero_3", lambda c, _: (c.ep > 1) & (c.zero == 3), frozenset({"megatron-deepspeed"}),
             lambda job: job.model.is_moe),
        rule("ep_with_zero_3_and_cp", lambda c, _: (c.ep > 1) & (c.zero == 3) & (c.cp > 1), HUGGING_FACE,
             lambda job: job.model.is_moe),
    ),
}  # fmt: skip


# -- What nanotron can run: TP, PP by 1F1B or all forward then all backward, CP, ZeRO-1; and how its YAML says it. --


NANOTRON_RULES = {
    "layout": (rule("etp_unavailable", lambda c, _: c.etp > 1, NANOTRON, lambda job: job.model.is_moe),),
    "sharding": (
        rule("cp_with_zero", lambda c, _: (c.cp > 1) & (c.zero > 0), NANOTRON, lambda job: job.states.gradient == 4),
    ),
    "microbatch": (
        rule("too_few_microbatches_for_1f1b",
             lambda c, _: (c.schedule == ONE_F_ONE_B) & (c.num_microbatches < c.pp - 1), NANOTRON),
    ),
}  # fmt: skip
