"""`estimate` of canifinetune 0.4.1 for one GPU, without its safety margin; sizes of the model are given."""

from typing import Any

from canifinetune.estimator.memory import EstimateRequest, estimate

from adapters import refuse

NEEDS = (("canifinetune==0.4.1",),)


def _scope(targets: list[str]) -> str:
    """The nearest of the sets of matrices that it knows."""
    if set(targets) & {"up_proj", "down_proj", "gate_proj"}:
        return "all_linear"
    return "conservative" if targets == ["q_proj", "v_proj"] else "attention"


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Peak memory that PyTorch reserves."""
    refuse(case)
    tuned = case["class"] == "fine-tuning"
    sizes = {
        "hidden_size": case["hidden"], "num_hidden_layers": case["layers"], "num_attention_heads": case["heads"],
        "num_key_value_heads": case["kv_heads"], "intermediate_size": case["ffn"], "vocab_size": case["vocab"],
        "total_params": case["parameters"], "tie_word_embeddings": case["tied_embeddings"],
        "num_local_experts": case["experts"] or 1, "num_experts_per_tok": case["topk"] or 1,
        "family": "llama" if case["gated"] else "gpt2",
    }  # fmt: skip
    found = estimate(
        EstimateRequest(
            model_id=case["model"], method="full" if not tuned else "qlora" if case["base_dtype"] == "nf4" else "lora",
            quantization="nf4", seq_len=case["seq"], micro_batch_size=case["mbs"], lora_rank=case["lora_rank"] or 16,
            lora_target_scope=_scope(case["lora_targets"]), optimizer="adamw_torch",
            base_dtype="fp32" if case["precision"] == "fp32" else "bf16",
            gradient_checkpointing=case["recomputed_layers"] > 0.5,
            attention_implementation="flash_attention_2" if case["fused_attention"] else "eager",
            gpu_vram_gb=case["memory_bytes"] / 2**30, override=sizes, use_network=False,
        )
    )  # fmt: skip
    needed = found.memory.total_estimated_gb - found.memory.safety_margin_gb
    return {"mem_gib": needed, "fits": needed <= case["memory_bytes"] / 2**30}
