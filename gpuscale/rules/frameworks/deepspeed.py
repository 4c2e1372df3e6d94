"""What DeepSpeed can run: ZeRO under Hugging Face models with AutoTP, AutoEP or Ulysses, and Megatron-DeepSpeed."""

from __future__ import annotations

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import CORE_ATTN, ONE_F_ONE_B, Candidates
from gpuscale.layouts.ranks import context_split
from gpuscale.rules.rule import DEEPSPEED, Cite, Framework, Rule, any_of
from gpuscale.specs.gpu import WIDE
from gpuscale.specs.job import JobSpec

HUGGING_FACE = frozenset({"deepspeed"})


def _kv_heads_over_context(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = context_split(c, job).heads
    counts = (attention.kv_heads for attention in job.model.attentions if attention.latent is None)
    return any_of(c, ((heads % ranks != 0) & (ranks % heads != 0) for heads in counts))


RULES = {
    "shape": (
        Rule("ulysses_with_model_parallel", ("cp", "tp", "pp"),
             "DeepSpeed's sequence parallelism (CP) combines with data parallelism only",
             "DeepSpeed runtime/sequence_parallel; Megatron-DeepSpeed core/parallel_state",
             lambda c, _: (c.cp > 1) & ((c.tp > 1) | (c.pp > 1)), DEEPSPEED),
        Rule("kv_heads_against_cp", ("cp", "kv_heads"),
             "where CP exchanges heads, the ranks that do and the key/value heads must divide one another",
             "DeepSpeed runtime/sequence_parallel/ulysses_sp", _kv_heads_over_context, DEEPSPEED),
    ),
    "layout": (
        Rule("etp_with_autoep", ("etp", "ep"), "under EP an expert is not split: ETP 1",
             "DeepSpeed module_inject/auto_ep_config", lambda c, _: (c.ep > 1) & (c.etp > 1), HUGGING_FACE,
             lambda job: job.model.is_moe),
        Rule("offload_with_autoep_and_tp", ("offload", "ep", "tp"), "EP with TP excludes offloading",
             "DeepSpeed module_inject/auto_ep_folding", lambda c, _: (c.ep > 1) & (c.tp > 1), HUGGING_FACE,
             lambda job: job.offload.any and job.model.is_moe),
    ),
    "sharding": (
        Rule("tp_with_zero_3", ("zero", "tp"), "AutoTP goes with ZeRO 0 to 2", "DeepSpeed runtime/engine",
             lambda c, _: (c.tp > 1) & (c.zero == 3), HUGGING_FACE),
        Rule("ep_with_zero_3", ("zero", "ep"), "DeepSpeed's own experts do not go with ZeRO-3",
             "DeepSpeed runtime/engine", lambda c, _: (c.ep > 1) & (c.zero == 3), frozenset({"megatron-deepspeed"}),
             lambda job: job.model.is_moe),
        Rule("ep_with_zero_3_and_cp", ("zero", "cp", "ep"), "EP under ZeRO-3 excludes sequence parallelism (CP)",
             "DeepSpeed runtime/engine", lambda c, _: (c.ep > 1) & (c.zero == 3) & (c.cp > 1), HUGGING_FACE,
             lambda job: job.model.is_moe),
    ),
}  # fmt: skip

_PIPE = "runtime/pipe/engine.py"

CITED = {
    "projection_unavailable": Cite("none in deepspeed/ops, nor in runtime/config.py"),
    "adapters_unavailable": Cite("Megatron-DeepSpeed: none in megatron/model"),
    "pp_unavailable": Cite(f"{_PIPE}: needs the model as a PipelineModule, which Hugging Face models are not"),
    "vpp_unavailable": Cite("runtime/pipe/schedule.py: TrainSchedule is plain 1F1B"),
    "schedule_unavailable": Cite("runtime/pipe/schedule.py TrainSchedule"),
    "sp_unavailable": Cite("runtime/tensor_parallel/config.py: no Megatron-style sequence parallelism"),
    "ep_overlap_unavailable": Cite("moe/sharded_moe.py, module_inject/auto_ep.py: no option"),
    "precision_unavailable": Cite("Megatron-DeepSpeed arguments: --fp16, --bf16"),
    "latent_attention_unavailable": Cite("Megatron-DeepSpeed megatron/model/transformer.py"),
    "state_space_unavailable": Cite("Megatron-DeepSpeed megatron/model/transformer.py"),
    "heads_not_divisible": Cite("module_inject/auto_tp.py; Megatron-DeepSpeed arguments"),
    "kv_heads_not_divisible": Cite("runtime/engine.py:760",
                                   "a warning only: ranks beyond the key/value heads idle in attention"),
    "sequence_slices_uneven": Cite("runtime/sequence_parallel/ulysses_sp.py:697"),
    "heads_not_divisible_by_cp": Cite("runtime/sequence_parallel/ulysses_sp.py:145"),
    "kv_heads_against_cp": Cite("runtime/sequence_parallel/ulysses_sp.py:150"),
    "ulysses_with_model_parallel": Cite(
        "runtime/sequence_parallel/parallel_state_sp.py; Megatron-DeepSpeed megatron/core/parallel_state.py",
        "AutoTP beside sequence_parallel_size is not refused: it has no groups for both",
    ),
    "batch_not_divisible": Cite(
        "runtime/config.py:937 train_batch_size",
        "AutoTP does not divide the world: give micro and accumulation steps, leave train_batch_size out",
    ),
    "batch_not_divisible_by_dp": Cite("runtime/config.py:937 train_batch_size"),
    "experts_not_divisible": Cite("moe/layer.py:59, module_inject/auto_ep_config.py:276"),
    "expert_grid": Cite("module_inject/auto_ep_folding.py:100"),
    "etp_with_autoep": Cite("module_inject/auto_ep_config.py:290 expert_tensor_parallel_size"),
    "offload_with_autoep_and_tp": Cite("module_inject/auto_ep_folding.py:203"),
    "tp_with_zero_3": Cite("runtime/engine.py, _configure_tensor_parallel"),
    "ep_with_zero_3": Cite("runtime/engine.py:1889"),
    "ep_with_zero_3_and_cp": Cite("runtime/engine.py:1894"),
    "zero_with_pp": Cite(f"{_PIPE}:76"),
    "hybrid_sharding_unavailable": Cite("runtime/zero/config.py:341 mics_shard_size, ZeRO-3 only"),
    "offloaded_parameters_not_sharded": Cite("runtime/zero/config.py:157 offload_param"),
    "recompute_modules_unavailable": Cite("gradient checkpointing of whole layers; activation_checkpointing"),
    "recompute_layers_partial": Cite("gradient checkpointing of every layer; pipeline.activation_checkpoint_interval"),
}  # fmt: skip

_BASIS = "deepspeedai/DeepSpeed at edaa72212672, 2026-08"

FRAMEWORKS = {
    "deepspeed": Framework("DeepSpeed", _BASIS, CITED, sequence_parallel="never", pipelines=False, interleaving=False,
                           schedules=frozenset({ONE_F_ONE_B}), hybrid_stages=(3,), pipelined_stages=(0, 1),
                           recompute_modules=0, recompute_layers="all", overlaps_exchange=False),
    "megatron-deepspeed": Framework("Megatron-DeepSpeed", f"{_BASIS}; deepspeedai/Megatron-DeepSpeed", CITED,
                                    interleaving=False, schedules=frozenset({ONE_F_ONE_B}),
                                    layers=frozenset({"moe", "gqa"}), precisions=frozenset({"bf16", "fp16"}) | WIDE,
                                    hybrid_stages=(3,), pipelined_stages=(0, 1), recompute_modules=CORE_ATTN,
                                    recompute_layers="all", overlaps_exchange=False),
}  # fmt: skip
