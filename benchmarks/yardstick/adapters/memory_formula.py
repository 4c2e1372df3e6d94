"""2 + 2 + 12 bytes per parameter, divided as ZeRO divides them (Rajbhandari et al. 2020, arXiv 1910.02054, section
3), and s b h (34 + 5 a s / h) bytes of activations per layer (Korthikanti et al. 2022, arXiv 2205.05198, section
4)."""

from typing import Any

GIB = 2.0**30


def states_bytes(case: dict[str, Any]) -> float:
    """Weights, gradients and Adam's states of one GPU."""
    tuned, ranks = case["class"] == "fine-tuning", case["shard"]
    held = case["trained_parameters"] / (case["tp"] * case["pp"]) if tuned else case["parameters_of_rank"]
    weight, gradient, optimizer = (
        size / (ranks if case["zero"] >= stage else 1) for size, stage in ((2, 3), (2, 2), (12, 1))
    )
    frozen = case["parameters_of_rank"] * case["base_bytes"] / (ranks if case["zero"] >= 3 else 1) if tuned else 0.0
    return held * (weight + gradient + optimizer) + frozen


def activation_bytes(case: dict[str, Any]) -> float:
    """Saved for the backward pass by the first stage of the pipeline, and the logits where it has them."""
    if case["class"] == "experts":
        raise ValueError("its activations are of dense layers, not of experts")
    s, b, h, tp = case["seq"] / case["cp"], case["mbs"], case["hidden"], case["tp"]
    scores = 0.0 if case["fused_attention"] or case["recomputes_modules"] else 5 * case["heads"] * s / h
    per_layer = s * b * h * ((34 + scores) / tp if case["sp"] else 10 + (24 + scores) / tp)
    kept = case["recomputed_layers"]
    per_layer = kept * 2 * s * b * h + (1 - kept) * per_layer
    p, m = case["pp"], case["vpp"]
    in_flight = case["layers"] * (1 + (p - 1) / (p * m) if m > 1 else 1)
    stages = min(1.0, case["microbatches"] / p)
    return per_layer * in_flight * stages + (4 * s * b * (h + case["vocab"]) / tp if p == 1 else 0)


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Memory of the fullest GPU, without buffers, fragments and CUDA's own."""
    needed = states_bytes(case) + activation_bytes(case)
    return {"mem_gib": needed / GIB, "fits": needed <= case["memory_bytes"]}
