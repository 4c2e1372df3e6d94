"""`estimate_zero2/3_model_states_mem_needs` of DeepSpeed 0.19.8, of the parameters of a TP x PP x EP rank: model
states, no activations."""

from typing import Any

from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

NEEDS = (("torch==2.13.0",), ("deepspeed==0.19.8",))


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Memory of one GPU."""
    if case["zero"] < 2:
        raise ValueError(f"has no estimator of ZeRO stage {case['zero']}")
    if case["class"] == "fine-tuning":
        raise ValueError("takes all weights for trained")
    nodes, parameters = max(1, case["gpus"] // case["gpus_per_node"]), int(case["parameters_of_rank"])
    sizes = {"num_gpus_per_node": max(1, case["dp"] // nodes), "num_nodes": nodes, "cpu_offload": case["offload"]}
    if case["zero"] == 3:
        largest = case["largest_layer_parameters"] // case["tp"]
        _, needed, _ = estimate_zero3_model_states_mem_needs(parameters, largest, cpu_offload_params=False, **sizes)
    else:
        needed = estimate_zero2_model_states_mem_needs(parameters, **sizes)[1]
    return {"mem_gib": needed / 2**30, "fits": needed <= case["memory_bytes"]}
