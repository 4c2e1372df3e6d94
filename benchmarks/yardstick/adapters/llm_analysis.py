"""`LLMAnalysis.training` of llm-analysis 0.2.2 with `flops_efficiency` 0.4, as it asks its user for one; gated MLPs are
given as 1.5 times as wide, as it has none."""

from typing import Any

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig, gpu_configs

from adapters.flops_6nd import SHARE

NEEDS = (("--no-deps", "llm-analysis==0.2.2"), ("fire<0.6",))


def _gpu(case: dict[str, Any]) -> GPUConfig:
    """Its own description of the GPU where it ships one, else one of the same kind."""
    return gpu_configs.get(case["gpu"]) or GPUConfig(
        name=case["gpu"],
        mem_per_GPU_in_GB=case["memory_bytes"] / 2**30,
        hbm_bandwidth_in_GB_per_sec=case["memory_bytes_per_s"] / 1e9,
        intra_node_bandwidth_in_GB_per_sec=case["node_bytes_per_s"] / 1e9,
        intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=case["peak_16_bit_flops_per_s"] / 1e12,
        inter_node_bandwidth_in_GB_per_sec=case["network_bytes_per_s"] * case["gpus_per_node"] / 1e9,
    )


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Step time and memory of a run that all its settings can say."""
    unknown = {
        "adapters": case["class"] == "fine-tuning",
        "context parallelism": case["cp"] > 1,
        "latent attention": case["latent_attention"],
        "layers without attention": not case["heads"],
        "4-bit training": case["precision"] == "fp4",
    }
    for what, there in unknown.items():
        if there:
            raise ValueError(f"does not know {what}")
    ffn = case["ffn"] * 3 // 2 if case["gated"] else case["ffn"]  # two matrices as large as the three
    model = ModelConfig(
        name=case["model"], num_layers=case["layers"], n_head=case["heads"], hidden_dim=case["hidden"],
        vocab_size=case["vocab"], max_seq_len=case["seq"], num_key_value_heads=case["kv_heads"],
        ffn_embed_dim=ffn, expansion_ratio=ffn / case["hidden"],
        moe_num_experts=case["experts"] or 1, moe_top_k=case["topk"] or 1,
    )  # fmt: skip
    bits = 8 if case["precision"] == "fp8" else 16
    analysis = LLMAnalysis(
        model, _gpu(case), DtypeConfig(weight_bits=16, activation_bits=bits, embedding_bits=16),
        ParallelismConfig(
            tp_size=case["tp"], pp_size=case["pp"], dp_size=case["dp"], ep_size=case["ep"],
            sp_size=case["tp"] if case["sp"] else 1,
        ),
        flops_efficiency=SHARE,
    )  # fmt: skip
    kept = ActivationRecomputation
    found = analysis.training(
        batch_size_per_gpu=case["mbs"], global_batch_size=case["gbs"], seq_len=case["seq"],
        activation_recomputation=kept.FULL if case["recomputed_layers"] > 0.5
        else kept.SELECTIVE if case["recomputes_modules"] else kept.NONE,
        ds_zero=DSZeRO(case["zero"]), flash_attn=case["fused_attention"],
    )  # fmt: skip
    return {
        "step_s": found["latency_per_iter"],
        "mem_gib": found["(weight+op_state+grad+act)_memory_per_gpu"] / 2**30,
        "fits": found["memory_left_per_gpu"] >= 0,
    }
