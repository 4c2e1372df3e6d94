"""What Megatron-LM can run, today and in earlier generations; Megatron-Bridge, NeMo and Primus run it too."""

from __future__ import annotations

from functools import partial

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.collectives.alltoall import units
from gpuscale.layouts import arrays
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import context_split, strides
from gpuscale.rules.rule import FOLDED_MEGATRON, FRAMEWORKS, MEGATRON, Rule, any_of
from gpuscale.specs.gpu import BLACKWELL
from gpuscale.specs.job import JobSpec


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


_rule = partial(Rule, frameworks=MEGATRON)

RULES = {
    "shape": (
        _rule("window_in_ring", ("cp", "cp_comm"),
              "a ring of CP ranks does not run sliding windows: `cp_comm=all_gather` and `cp_comm=a2a` do",
              "Transformer Engine context_parallel", lambda c, _: c.cp > 1, concerns=_windowed_ring),
        _rule("kv_heads_not_divisible_by_cp", ("cp", "tp", "kv_heads"),
              "where CP exchanges heads, the ranks that do must divide the key/value heads of a TP rank",
              "Transformer Engine context_parallel", _kv_heads_over_context,
              concerns=lambda job: job.runtime.cp_comm in {"a2a", "a2a+p2p"}),
        _rule(
            "state_space_groups_not_divisible",
            ("tp", "cp"),
            "TP must divide the groups of a state space, TP x CP its heads, CP and the groups of a TP rank one another",
            "Megatron-LM mamba_mixer, mamba_context_parallel",
            _state_space_groups,
            concerns=lambda job: any(kind.state_space is not None for kind in job.model.kinds),
        ),
    ),
    "layout": (
        _rule("ep_without_sp", ("sp", "tp"), "experts with TP need sequence parallelism", "Megatron-LM moe_layer",
              lambda c, _: (c.tp > 1) & (c.sp == 0), concerns=lambda job: job.model.is_moe),
        Rule("experts_not_folded", ("etp", "tp"), "experts are split by TP as the dense layers are: ETP = TP",
             "Megatron-LM parallel_state", lambda c, _: c.etp != c.tp, frozenset({"megatron-lm-2023"}),
             lambda job: job.model.is_moe),
        _rule("etp_with_expert_bias", ("etp",), "experts with biases need ETP 1", "Megatron-LM transformer_config",
              lambda c, _: c.etp > 1,
              concerns=lambda job: any(kind.moe is not None and kind.moe.expert_bias for kind in job.model.kinds)),
        Rule("graphs_of_dropless_experts", ("cuda_graphs", "dispatcher"),
             "CUDA graphs of whole iterations with dropless experts need `dispatcher=hybridep` and Blackwell",
             "Megatron-LM transformer_config", lambda c, _: np.ones(len(c), dtype=bool),
             frozenset({"megatron-lm", "megatron-lm-2025"}), _graphs_of_unknown_sizes),
    ),
    "sharding": (
        Rule("expert_replicas_not_divisible", ("shard", "ep"),
             "the replicas of hybrid sharding must divide the data-parallel ranks of an expert",
             "Megatron-LM parallel_state",
             lambda c, _: (c.zero > 0) & (c.expert_dp % np.maximum(c.dp * c.cp // np.maximum(c.shard, 1), 1) != 0),
             FOLDED_MEGATRON, lambda job: job.model.is_moe),
        Rule("offloaded_optimizer_not_sharded", ("offload", "zero"),
             "an optimizer in host memory needs the distributed optimizer", "Megatron-LM arguments",
             lambda c, _: c.zero == 0, FOLDED_MEGATRON, lambda job: job.offload.optimizer),
        Rule("low_moments_not_sharded", ("moment_dtype", "zero"), "moments below fp32 need the distributed optimizer",
             "Megatron-LM arguments", lambda c, _: (c.zero == 0) & (c.dp * c.cp > 1), FOLDED_MEGATRON,
             lambda job: job.states.second_moment in {1.0, 2.0} and job.states.master > 0),
    ),
    "microbatch": (
        _rule("exchange_queue_too_short", ("micro_batch_size", "seq", "dispatcher"),
              f"HybridEP sends at most {QUEUE_TOKENS:,} tokens of a rank and microbatch beyond its NVLink domain",
              "Megatron-LM fused_a2a", _queue_too_short,
              concerns=lambda job: job.model.is_moe and job.runtime.dispatcher == "hybridep"),
    ),
    "recompute": (
        Rule("recompute_with_delayed_scaling", ("recompute", "precision"),
             "delayed fp8 scaling forbids recomputing layernorm and moe_act", "Megatron-LM transformer_config",
             lambda c, _: (c.recompute_modules & (arrays.MOE_ACT | arrays.LAYERNORM)) > 0, FOLDED_MEGATRON,
             lambda job: job.precision == "fp8" and job.recipe == "delayed"),
        _rule("recompute_with_ep_overlap", ("recompute", "overlap"),
              "an overlapped expert exchange forbids recomputing whole layers and moe",
              "Megatron-LM transformer_config",
              lambda c, _: (c.ep > 1) & ((c.recompute_layers > 0) | ((c.recompute_modules & arrays.MOE) > 0)),
              concerns=lambda job: job.runtime.overlap_ep and job.model.is_moe),
        _rule("recompute_with_partial_graphs", ("recompute", "cuda_graphs"),
              "recomputing whole layers needs CUDA graphs of whole iterations, or none",
              "Megatron-LM transformer_config", lambda c, _: c.recompute_layers > 0,
              concerns=lambda job: job.runtime.cuda_graphs == "partial"),
        Rule("offloaded_activations_with_pp", ("offload", "pp", "recompute"),
             "offloading the activations of whole layers needs PP 1 and no recomputation",
             "Megatron-LM transformer_config",
             lambda c, _: (c.pp > 1) | (c.recompute_layers > 0) | (c.recompute_modules > 0),
             frozenset({"megatron-lm-2024", "megatron-lm-2023"}), _offloads_whole_layers),
    ),
}  # fmt: skip

OPTIONS = FRAMEWORKS["megatron-lm"].options
