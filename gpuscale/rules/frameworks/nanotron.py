"""What nanotron can run: TP, PP by 1F1B or all forward then all backward, CP, ZeRO-1."""

from __future__ import annotations

from gpuscale.layouts.arrays import GPIPE, ONE_F_ONE_B
from gpuscale.rules.rule import NANOTRON, Cite, Framework, Rule
from gpuscale.specs.gpu import WIDE

RULES = {
    "sharding": (
        Rule(
            "cp_with_zero",
            "CP needs DDP, which ZeRO with fp32 gradients goes without",
            "nanotron trainer",
            lambda c, _: (c.cp > 1) & (c.zero > 0),
            NANOTRON,
            lambda job: job.states.gradient == 4,  # fp32
        ),
    ),
    "microbatch": (
        Rule(
            "too_few_microbatches_for_1f1b",
            "1F1B needs at least PP - 1 microbatches",
            "nanotron parallel/pipeline_parallel/engine",
            lambda c, _: (c.schedule == ONE_F_ONE_B) & (c.num_microbatches < c.pp - 1),
            NANOTRON,
        ),
    ),
}

_CONFIG, _PARALLEL = "config/config.py", "config/parallelism_config.py"
_FIRST_STEP = "passes the checks of the configuration, fails in the first step"

CITED = {
    "vpp_unavailable": Cite(f"{_PARALLEL}:16 pp_engine: 1f1b or afab"),
    "ep_unavailable": Cite(
        "parallel/context.py:62: ranks are laid out without EP", "expert_parallel_size > 1 passes the configuration"
    ),
    "ep_overlap_unavailable": Cite(f"{_PARALLEL}: no option"),
    "schedule_unavailable": Cite(f"{_PARALLEL}:16 pp_engine"),
    "latent_attention_unavailable": Cite("config/models_config.py:36 models: llama, qwen2, starcoder2"),
    "state_space_unavailable": Cite("config/models_config.py:36 models: llama, qwen2, starcoder2"),
    "precision_unavailable": Cite("config/models_config.py model.dtype"),
    "offload_unavailable": Cite(f"{_CONFIG}: no option"),
    "heads_not_divisible": Cite(f"{_CONFIG}:536"),
    "kv_heads_not_replicated": Cite("models/llama.py:352", "fails when the model is built"),
    "sequence_not_divisible_by_cp": Cite(
        "data/dataloader.py:129, models/qwen.py:777 llama3_ring_attention", "twice CP: fails in the first step"
    ),
    "batch_not_divisible": Cite(f"{_CONFIG}:557 batch_accumulation_per_replica"),
    "batch_not_divisible_by_dp": Cite(f"{_CONFIG}:557 batch_accumulation_per_replica"),
    "zero_stage_unavailable": Cite(f"{_CONFIG}:405 optimizer.zero_stage: 0 or 1"),
    "hybrid_sharding_unavailable": Cite("optim/zero.py: over all data-parallel ranks"),
    "cp_with_zero": Cite("trainer.py:645"),
    "too_few_microbatches_for_1f1b": Cite("parallel/pipeline_parallel/engine.py", _FIRST_STEP),
    "recompute_modules_unavailable": Cite(f"{_PARALLEL}:16 recompute_layer: on or off"),
    "recompute_layers_partial": Cite(f"{_PARALLEL}:16 recompute_layer: on or off"),
}

FRAMEWORKS = {
    "nanotron": Framework(
        "nanotron",
        "huggingface/nanotron at 2411b022a75f, 2026-04",
        CITED,
        interleaving=False,
        expert_parallel=False,
        layers=frozenset({"moe", "gqa"}),
        schedules=frozenset({ONE_F_ONE_B, GPIPE}),
        precisions=frozenset({"bf16", "fp16"}) | WIDE,
        offload=frozenset(),
        zero_stages=(0, 1),
        hybrid_stages=(),
        recompute_modules=0,
        recompute_layers="all",
        overlaps_exchange=False,
    )
}
