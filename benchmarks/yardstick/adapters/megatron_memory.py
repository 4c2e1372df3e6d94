"""`compute_weight_and_optimizer_memory` and `compute_activation_memory` of Megatron-Bridge 0.3.1, which are those of
Megatron-LM's `theoretical_memory_usage.py`, where it adds them up: with selective recomputation (or attention that
saves no scores) and sequence parallelism."""

import importlib.metadata
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

NEEDS = (("--no-deps", "megatron-bridge==0.3.1"),)


def _estimator() -> ModuleType:
    """Its file alone: what the package imports beside it needs a GPU's libraries and is not called."""
    path = importlib.metadata.distribution("megatron-bridge").locate_file(
        "megatron/bridge/training/utils/theoretical_memory_utils.py"
    )
    spec = importlib.util.spec_from_file_location("theoretical_memory_utils", str(path))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be read")
    module, bridge = importlib.util.module_from_spec(spec), "megatron.bridge"
    names = ("torch", "torch.nn", "torch.nn.functional", "megatron", bridge, f"{bridge}.training", f"{bridge}.utils")
    absent = (*names, f"{bridge}.training.config", f"{bridge}.utils.vocab_utils")
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in absent}):
        spec.loader.exec_module(module)
    return module


ESTIMATOR = _estimator()


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Memory of the fullest GPU."""
    added_up = (case["sp"] or case["tp"] == 1) and (case["fused_attention"] or case["recomputes_modules"])
    unknown = {
        "adapters": case["class"] == "fine-tuning",
        "ZeRO 2 and 3": case["zero"] > 1,
        "context parallelism": case["cp"] > 1,
        "layers without attention": not case["heads"],
        "activations of such recomputation": case["recomputed_layers"] > 0 or not added_up,
    }
    for what, there in unknown.items():
        if there:
            raise ValueError(f"does not know {what}")
    model = SimpleNamespace(
        num_layers=case["layers"], hidden_size=case["hidden"], num_attention_heads=case["heads"],
        kv_channels=case["head_dim"], num_query_groups=case["kv_heads"], ffn_hidden_size=case["ffn"],
        num_moe_experts=case["experts"] or None, gated_linear_unit=case["gated"], activation_func=ESTIMATOR.F.silu,
        share_embeddings_and_output_weights=case["tied_embeddings"], vocab_size=case["vocab"], should_pad_vocab=False,
        pipeline_model_parallel_size=case["pp"], tensor_model_parallel_size=case["tp"], seq_length=case["seq"],
        virtual_pipeline_model_parallel_size=case["vpp"] if case["vpp"] > 1 else None,
    )  # fmt: skip
    config = SimpleNamespace(
        model=model, train=SimpleNamespace(micro_batch_size=case["mbs"]), data_parallel_size=case["dp"],
        optimizer=SimpleNamespace(use_distributed_optimizer=case["zero"] == 1),
    )  # fmt: skip
    needed = ESTIMATOR.compute_weight_and_optimizer_memory(config)
    needed += ESTIMATOR.compute_activation_memory(config, case["microbatches"])
    return {"mem_gib": needed / 2**30, "fits": needed <= case["memory_bytes"]}
