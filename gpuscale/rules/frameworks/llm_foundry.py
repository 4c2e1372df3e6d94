"""What llm-foundry can run: PyTorch FSDP by Composer, and nothing beside it but expert parallelism."""

from __future__ import annotations

from gpuscale.layouts.arrays import LAYERNORM, MLP, ONE_F_ONE_B
from gpuscale.rules.rule import Cite, Framework

_MODEL = "models/mpt/modeling_mpt.py"
_STRATEGY = "Composer distributed/dist_strategy.py, fsdp_config.sharding_strategy"

CITED = {
    "projection_unavailable": Cite("none in llmfoundry/optim"),
    "tp_unavailable": Cite("llm-foundry issue 1743: FSDP alone"),
    "pp_unavailable": Cite("llm-foundry issue 1743: FSDP alone"),
    "cp_unavailable": Cite("llm-foundry issue 1743: FSDP alone"),
    "sp_unavailable": Cite("llm-foundry issue 1743: FSDP alone"),
    "vpp_unavailable": Cite("llm-foundry issue 1743: FSDP alone"),
    "offload_unavailable": Cite("Composer FSDPConfig.activation_cpu_offload; cpu_offload is not supported"),
    "schedule_unavailable": Cite("llm-foundry issue 1743: FSDP alone"),
    "batch_not_divisible_by_dp": Cite("command_utils/train.py, global_train_batch_size"),
    "batch_not_divisible": Cite("command_utils/train.py, global_train_batch_size"),
    "ep_overlap_unavailable": Cite("MegaBlocks: no option"),
    "experts_not_divisible": Cite("MegaBlocks, ffn_config.moe_world_size"),
    "zero_stage_unavailable": Cite(f"{_STRATEGY}: FULL_SHARD, SHARD_GRAD_OP or NO_SHARD"),
    "hybrid_sharding_unavailable": Cite(f"{_STRATEGY}: HYBRID_SHARD"),
    "shard_not_divisible": Cite(f"{_STRATEGY}: HYBRID_SHARD with a device mesh"),
    "recompute_modules_unavailable": Cite(f"{_MODEL}, activation_checkpointing_target"),
}

FRAMEWORKS = {
    "llm-foundry": Framework("llm-foundry", "mosaicml/llm-foundry 0.1 to 0.15, 2023 to 2025", CITED,
                             tensor_parallel=False, sequence_parallel="never", pipelines=False, interleaving=False,
                             context_parallel=False, schedules=frozenset({ONE_F_ONE_B}),
                             offload=frozenset({"activations"}), zero_stages=(0, 2, 3), hybrid_stages=(2, 3),
                             recompute_modules=LAYERNORM | MLP, overlaps_exchange=False)
}  # fmt: skip
