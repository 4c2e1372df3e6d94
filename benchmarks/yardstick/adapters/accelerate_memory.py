"""`estimate_training_usage` of accelerate 1.15.0: the largest of its lines, as `accelerate estimate-memory` prints
it."""

from typing import Any

from accelerate.commands.estimate import estimate_training_usage

NEEDS = (("torch==2.13.0",), ("accelerate==1.15.0",))


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Memory of a GPU that holds the whole model."""
    if case["tp"] * case["pp"] * case["ep"] * case["shard"] > 1:
        raise ValueError("knows one device that holds everything")
    if case["class"] == "fine-tuning":
        raise ValueError("takes all weights for trained")
    needed = max(estimate_training_usage(4 * case["parameters"], "bfloat16").values())
    return {"mem_gib": needed / 2**30, "fits": needed <= case["memory_bytes"]}
