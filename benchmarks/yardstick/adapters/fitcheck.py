"""`estimate` of fitcheck-llm 0.3.1 for one GPU, its point estimate; sizes of the model are given."""

from typing import Any

from fitcheck import GpuSpec, ModelConfig, TrainingConfig, estimate

from adapters import refuse

NEEDS = (("fitcheck-llm==0.3.1",),)


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Peak memory of the GPU."""
    refuse(case)
    if case["class"] == "experts":
        raise ValueError("does not know experts")
    model = ModelConfig(
        name=case["model"], num_params=case["parameters"], hidden_size=case["hidden"], num_layers=case["layers"],
        num_attention_heads=case["heads"], num_kv_heads=case["kv_heads"], intermediate_size=case["ffn"],
        vocab_size=case["vocab"], head_dim=case["head_dim"], tie_word_embeddings=case["tied_embeddings"],
    )  # fmt: skip
    training = TrainingConfig(
        precision="fp32" if case["precision"] == "fp32" else "bf16",
        quantization="nf4" if case["base_dtype"] == "nf4" else "none", batch_size=case["mbs"], seq_len=case["seq"],
        lora_rank=case["lora_rank"] or None, lora_targets=case["lora_targets"],
        grad_checkpoint=case["recomputed_layers"] > 0.5, flash_attn=case["fused_attention"],
        grad_accum_steps=case["microbatches"],
    )  # fmt: skip
    memory_mib = int(case["memory_bytes"] / 2**20)
    found = estimate(model, training, GpuSpec(case["gpu"], memory_mib, memory_mib))
    return {"mem_gib": found.total_mib / 1024, "fits": found.fits}
