"""What Hugging Face accelerate can run: models of transformers under FSDP2 and HSDP, with TP and CP of PyTorch."""

from __future__ import annotations

from gpuscale.layouts.arrays import ONE_F_ONE_B
from gpuscale.rules.rule import Cite, Framework
from gpuscale.specs.gpu import WIDE

_CONFIG, _LAUNCH, _FSDP = "parallelism_config.py", "commands/launch.py", "utils/fsdp_utils.py"
_PLUGIN = "utils/dataclasses.py, FullyShardedDataParallelPlugin"

CITED = {
    "pp_unavailable": Cite(f"{_CONFIG}: dp_replicate, dp_shard, cp, sp and tp are all the axes"),
    "vpp_unavailable": Cite(f"{_CONFIG}: no pipelines"),
    "schedule_unavailable": Cite(f"{_CONFIG}: no pipelines"),
    "sp_unavailable": Cite("transformers: the tp_plan of its models splits matrices, not sequences"),
    "ep_unavailable": Cite(f"{_CONFIG}: no axis of experts"),
    "ep_overlap_unavailable": Cite(f"{_CONFIG}: no axis of experts"),
    "precision_unavailable": Cite(f"{_LAUNCH} mixed_precision: no, fp16, bf16 or fp8"),
    "fp8_recipe_unavailable": Cite("utils/dataclasses.py: TERecipeKwargs (delayed, MX), AORecipeKwargs (by tensor)"),
    "heads_not_divisible": Cite("transformers: the tp_plan splits projections by columns"),
    "kv_heads_not_replicated": Cite("transformers: the tp_plan splits projections by columns"),
    "sequence_not_divisible_by_cp": Cite("torch.distributed.tensor.experimental context_parallel, load balancing"),
    "batch_not_divisible": Cite("transformers trainer.py, get_total_train_batch_size"),
    "batch_not_divisible_by_dp": Cite("transformers trainer.py, get_total_train_batch_size"),
    "experts_split_otherwise": Cite("transformers: the tp_plan of its models splits experts as it splits all layers"),
    "zero_stage_unavailable": Cite(f"{_PLUGIN}: reshard_after_forward false is ZeRO-2, true ZeRO-3"),
    "hybrid_sharding_unavailable": Cite(f"{_CONFIG}: dp_shard_size is FSDP's"),
    "ddp_with_model_parallel": Cite(f"{_CONFIG}:336: TP and CP go with dp_shard, not with dp_replicate alone"),
    "shard_splits_cp": Cite(f"{_CONFIG}, dp_shard_cp_dim_names: shards are shared by dp_shard x cp"),
    "recompute_modules_unavailable": Cite(f"{_FSDP}: fsdp_activation_checkpointing wraps whole layers"),
    "recompute_layers_partial": Cite(f"{_FSDP}: fsdp_activation_checkpointing wraps every layer"),
}

FRAMEWORKS = {
    "accelerate": Framework("accelerate", "huggingface/accelerate 1.15.0, 2026, under transformers 5", CITED,
                            sequence_parallel="never", pipelines=False, interleaving=False, expert_parallel=False,
                            schedules=frozenset({ONE_F_ONE_B}), precisions=frozenset({"bf16", "fp16", "fp8"}) | WIDE,
                            recipes=frozenset({"delayed", "current", "mx"}), zero_stages=(0, 2, 3),
                            hybrid_stages=(2, 3), recompute_modules=0, recompute_layers="all", overlaps_exchange=False)
}  # fmt: skip
