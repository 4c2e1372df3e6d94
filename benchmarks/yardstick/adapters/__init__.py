"""One module per planner: `predict` from the facts of a run (facts.py) to `step_s` [s], `mem_gib` [GiB] and `fits`.

A planner that does not know such a run raises ValueError with the reason: the row is lost, and counted as lost. The
module's own text says what is asked; `NEEDS` are calls of pip, where a planner has an environment of its own.
"""

from typing import Any


def refuse(case: dict[str, Any]) -> None:
    """Leave out what tools for fine-tuning on one GPU cannot be told."""
    if case["tp"] * case["pp"] * case["cp"] * case["ep"] * case["shard"] > 1:
        raise ValueError("knows one GPU that holds everything")
    if not case["heads"] or case["latent_attention"]:
        raise ValueError("does not know such attention")
    if case["base_dtype"] not in {"", "bf16", "fp16", "nf4"}:
        raise ValueError(f"does not know weights in {case['base_dtype']}")
