"""What torchtune's recipes can run: FSDP2 of PyTorch, and nothing beside it."""

from __future__ import annotations

from gpuscale.layouts.arrays import ONE_F_ONE_B
from gpuscale.rules.rule import Framework
from gpuscale.specs.gpu import WIDE

FRAMEWORKS = {
    "torchtune": Framework("torchtune", "torchtune 0.6.1, 2025", "torchtune", tensor_parallel=False,
                           sequence_parallel="never", pipelines=False, interleaving=False, context_parallel=False,
                           expert_parallel=False, layers=frozenset({"gqa"}), schedules=frozenset({ONE_F_ONE_B}),
                           precisions=frozenset({"bf16"}) | WIDE, zero_stages=(2, 3), hybrid_stages=(),
                           recompute_modules=0, recompute_layers="all", overlaps_exchange=False)
}  # fmt: skip
