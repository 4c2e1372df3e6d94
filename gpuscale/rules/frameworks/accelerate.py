"""What Hugging Face accelerate can run: models of transformers under FSDP2 and HSDP, with TP and CP of PyTorch."""

from __future__ import annotations

from gpuscale.layouts.arrays import ONE_F_ONE_B
from gpuscale.rules.rule import Framework
from gpuscale.specs.gpu import WIDE

FRAMEWORKS = {
    "accelerate": Framework("accelerate", "huggingface/accelerate 1.15.0, 2026, under transformers 5", "accelerate",
                            sequence_parallel="never", pipelines=False, interleaving=False, expert_parallel=False,
                            schedules=frozenset({ONE_F_ONE_B}), precisions=frozenset({"bf16", "fp16", "fp8"}) | WIDE,
                            recipes=frozenset({"delayed", "current", "mx"}), zero_stages=(0, 2, 3),
                            hybrid_stages=(2, 3), recompute_modules=0, recompute_layers="all", overlaps_exchange=False)
}  # fmt: skip
