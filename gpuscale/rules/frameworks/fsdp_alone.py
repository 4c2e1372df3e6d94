"""What trainers can run that have FSDP of PyTorch, and nothing beside it: torchtune, LitGPT and llm-foundry."""

from __future__ import annotations

from gpuscale.layouts.arrays import LAYERNORM, MLP, ONE_F_ONE_B
from gpuscale.rules.rule import Framework
from gpuscale.specs.gpu import WIDE

_TORCHTUNE = Framework("torchtune", "torchtune 0.6.1, 2025", "torchtune", tensor_parallel=False,
                       sequence_parallel="never", pipelines=False, interleaving=False, context_parallel=False,
                       expert_parallel=False, layers=frozenset({"gqa"}), schedules=frozenset({ONE_F_ONE_B}),
                       precisions=frozenset({"bf16"}) | WIDE, zero_stages=(2, 3), hybrid_stages=(),
                       recompute_modules=0, recompute_layers="all", overlaps_exchange=False)  # fmt: skip
_LITGPT = _TORCHTUNE._replace(title="litgpt", basis="Lightning-AI/litgpt 0.5, 2025-03", citations="litgpt",
                              layers=frozenset({"gqa", "moe"}), precisions=frozenset({"bf16", "fp16"}) | WIDE,
                              zero_stages=(3,), hybrid_stages=(3,))  # fmt: skip
_FOUNDRY = _TORCHTUNE._replace(title="llm-foundry", basis="mosaicml/llm-foundry 0.1 to 0.15, 2023 to 2025",
                               citations="llm-foundry", expert_parallel=True, layers=Framework("", "").layers,
                               precisions=Framework("", "").precisions, offload=frozenset({"activations"}),
                               zero_stages=(0, 2, 3), hybrid_stages=(2, 3), recompute_modules=LAYERNORM | MLP,
                               recompute_layers="any")  # fmt: skip

FRAMEWORKS = {one.title: one for one in (_TORCHTUNE, _LITGPT, _FOUNDRY)}
