"""What llm-foundry can run: PyTorch FSDP by Composer, and nothing beside it but expert parallelism."""

from __future__ import annotations

from gpuscale.layouts.arrays import LAYERNORM, MLP, ONE_F_ONE_B
from gpuscale.rules.rule import Framework

FRAMEWORKS = {
    "llm-foundry": Framework("llm-foundry", "mosaicml/llm-foundry 0.1 to 0.15, 2023 to 2025", "llm-foundry",
                             tensor_parallel=False, sequence_parallel="never", pipelines=False, interleaving=False,
                             context_parallel=False, schedules=frozenset({ONE_F_ONE_B}),
                             offload=frozenset({"activations"}), zero_stages=(0, 2, 3), hybrid_stages=(2, 3),
                             recompute_modules=LAYERNORM | MLP, overlaps_exchange=False)
}  # fmt: skip
