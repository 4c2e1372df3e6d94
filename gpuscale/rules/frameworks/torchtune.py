"""What torchtune's recipes can run: FSDP2 of PyTorch, and nothing beside it."""

from __future__ import annotations

from gpuscale.layouts.arrays import ONE_F_ONE_B
from gpuscale.rules.rule import Cite, Framework
from gpuscale.specs.gpu import WIDE

_RECIPE, _LORA = "recipes/full_finetune_distributed.py", "recipes/lora_finetune_distributed.py"

CITED = {
    "projection_unavailable": Cite("in none of its recipes or configs"),
    "tp_unavailable": Cite(f"{_RECIPE}: tensor_parallel_plan, which Llama 3 alone has; {_LORA}: none"),
    "pp_unavailable": Cite(f"{_RECIPE}: no pipelines"),
    "vpp_unavailable": Cite(f"{_RECIPE}: no pipelines"),
    "schedule_unavailable": Cite(f"{_RECIPE}: no pipelines"),
    "cp_unavailable": Cite(f"{_RECIPE}: a mesh of dp and tp"),
    "sp_unavailable": Cite(f"{_LORA}: no axis beside dp"),
    "ep_unavailable": Cite("torchtune/models: no mixture of experts"),
    "ep_overlap_unavailable": Cite("torchtune/models: no mixture of experts"),
    "moe_unavailable": Cite("torchtune/models: no mixture of experts"),
    "latent_attention_unavailable": Cite("torchtune/models: no latent attention"),
    "state_space_unavailable": Cite("torchtune/models: attention alone"),
    "precision_unavailable": Cite("torchtune/training/precision.py, get_dtype: bf16 and fp32"),
    "zero_stage_unavailable": Cite(f"{_RECIPE}: fsdp_reshard_after_forward false is ZeRO-2, true ZeRO-3"),
    "hybrid_sharding_unavailable": Cite(f"{_RECIPE}: shards over all ranks of dp"),
    "recompute_modules_unavailable": Cite(f"{_LORA}: enable_activation_checkpointing wraps whole layers"),
    "recompute_layers_partial": Cite(f"{_LORA}: enable_activation_checkpointing wraps every layer"),
}

FRAMEWORKS = {
    "torchtune": Framework("torchtune", "torchtune 0.6.1, 2025", CITED, tensor_parallel=False,
                           sequence_parallel="never", pipelines=False, interleaving=False, context_parallel=False,
                           expert_parallel=False, layers=frozenset({"gqa"}), schedules=frozenset({ONE_F_ONE_B}),
                           precisions=frozenset({"bf16"}) | WIDE, zero_stages=(0, 2, 3), hybrid_stages=(),
                           recompute_modules=0, recompute_layers="all", overlaps_exchange=False)
}  # fmt: skip
