"""Fine-tuning: which weights of a model are trained, by adapters of a low rank or themselves, and how the others are
stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.choices import BASE_DTYPES
from gpuscale.errors import InputError, did_you_mean

MATRICES = {
    "qkv": ("q", "k", "v"), "kv": ("k", "v"), "q_proj": ("q",), "out_proj": ("o",),
    "q_down": ("q_down",), "q_up": ("q_up",), "kv_down": ("kv_down",), "kv_up": ("kv_up",),
    "fc1": ("gate", "up"), "fc2": ("down",), "shared_fc1": ("gate", "up"), "shared_fc2": ("down",),
    "expert_fc1": ("gate", "up"), "expert_fc2": ("down",), "state_in": ("in",), "state_out": ("out",),
}  # fmt: skip
"""Operator of a layer (`gpuscale.architecture.parameters.Linear`) -> the matrices that are fused in it, by the names
that users give them; without gates `fc1` is `up` alone."""

ATTENTION = frozenset(
    part for name in ("qkv", "out_proj", "q_down", "q_up", "kv_down", "kv_up") for part in MATRICES[name]
)
MLP = frozenset(part for name in ("fc1", "fc2") for part in MATRICES[name])
TARGETS = {
    "all": frozenset(part for parts in MATRICES.values() for part in parts), "attention": ATTENTION, "mlp": MLP,
}  # fmt: skip
"""What names of several matrices stand for."""


class MethodSpec(NamedTuple):
    """What a step of a training method runs beside the forward and backward pass over its sequences."""

    title: str  #: name for people.
    sequences: int = 1  #: sequences of one sample: 2 of a preferred and a rejected answer.
    forwards: int = 0  #: forward passes without gradients over as many tokens.
    reference: bool = False  #: a frozen copy of the model runs some of these, where no adapters can be switched off.
    #: memory traffic of the loss per logit, forward and backward; None where it is the cross entropy [bytes].
    loss_bytes: tuple[float, float] | None = None
    logit_bytes: float = 0.0  #: a logit at the loss's peak, where that is not the cross entropy's [bytes].


SFT = MethodSpec("next tokens")
METHOD_SPECS = {
    "sft": SFT,
    "dpo": MethodSpec("DPO, pairs of answers and a reference model", 2, 1, True),
    "kto": MethodSpec("KTO, answers and a reference model", 1, 3, True),
    "orpo": MethodSpec("ORPO, pairs of answers", 2),
    "reward": MethodSpec("a reward model, pairs of answers", 2),
    "grpo": MethodSpec("the training step of GRPO, without its rollout", 1, 1),
    "distill": MethodSpec("distillation from the logits of a teacher", loss_bytes=(64, 34), logit_bytes=24),
}
"""Method of `gpuscale.choices.METHODS` -> what it is (trl: trainer/dpo_trainer.py, concatenated_forward and
compute_ref_log_probs; kto_trainer.py, forward and _compute_kl_logps: mismatched answers by the model, and both by the
reference; orpo_trainer.py; reward_trainer.py; grpo_trainer.py: log-probabilities before the first update, no reference
as beta is 0). With adapters the reference is the model without them (trl, null_ref_context). distill: KL divergence of
all logits in eager operations (trl: trainer/gkd_trainer.py, generalized_jsd_loss at beta 0; PyTorch,
aten/src/ATen/native/Loss.cpp, kl_div with log_target): log-softmax of both in fp32 14 each, exponential 8, difference
12, product 12, sum 4; backward product 8, sign 8, log-softmax 12, cast 6. At its peak there are the logits of both in
16 bits, the logarithms of both, exponential, difference and product in 32."""

TEACHING = MethodSpec("the forward pass of a teacher", loss_bytes=(0, 0))
"""What a step is for the teacher: there is no loss of its own."""


class ProjectionSpec(NamedTuple):
    """An optimizer that keeps moments of gradients projected to a low rank, of the matrices of layers. Of n x m
    weights, n the larger, moments have n rows of the rank. GaLore keeps the projection too, of m columns, made anew
    every 200 steps by a singular value decomposition (Zhao et al. 2024, arXiv 2403.03507, table 1 and section 4);
    APOLLO's is random, made of a seed (Zhu et al. 2024, arXiv 2412.05270, table 1)."""

    rank: int
    svd: bool  #: GaLore's; else APOLLO's.

    def state_bytes(self, larger: int, smaller: int, moments: float, gradient: float) -> float:
        """Bytes kept for one matrix, with moments and a projection of so many bytes per element [bytes]."""
        rank = min(self.rank, smaller)
        return rank * (larger * moments + smaller * gradient * self.svd)


PROJECTION_RANK, PROJECTION_STEPS = 128, 200
"""Rank, and steps for which a projection is kept, where nothing is said (transformers 5.23, trainer_optimizer.py)."""

SPELLINGS = {
    "all-linear": "all", "attn": "attention", "self_attn": "attention", "feed_forward": "mlp",
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "down", "query": "q", "key": "k", "value": "v", "wq": "q", "wk": "k", "wv": "v", "wo": "o",
    "output_proj": "o", "w1": "gate", "w2": "down", "w3": "up", "q_a_proj": "q_down", "q_b_proj": "q_up",
    "kv_a_proj_with_mqa": "kv_down", "kv_b_proj": "kv_up", "linear_proj": "o", "linear_fc2": "down", "fc2": "down",
    "dense_4h_to_h": "down", "c_attn": "q,k,v", "qkv_proj": "q,k,v", "query_key_value": "q,k,v", "wqkv": "q,k,v",
    "qkv": "q,k,v", "linear_qkv": "q,k,v", "gate_up_proj": "gate,up", "linear_fc1": "gate,up", "fc1": "gate,up",
    "dense_h_to_4h": "gate,up", "c_fc": "gate,up", "c_proj": "o,down", "dense": "o", "in_proj": "in",
    "attention_qkv": "q,k,v", "attention_dense": "o", "mlp_fc1": "gate,up", "mlp_fc2": "down",
    "out_proj": "o,out", "x_proj": "in", "dt_proj": "in", "gate_up": "gate,up",
}  # fmt: skip
"""Names of modules in frameworks -> the matrices that they are: PEFT and Hugging Face models, torchtune, Megatron."""

JOINED = {"q,k,v": ("qkv",), "gate,up": ("fc1", "shared_fc1", "expert_fc1")}
"""What names of fused modules stand for -> operators, which have one adapter for all of their matrices then."""

BITSANDBYTES = frozenset({"nf4", "int8"})
"""Data types of frozen weights that bitsandbytes quantises to."""

PLAIN = frozenset({"fp32", "bf16", "fp16"})
"""Data types of frozen weights that are not quantised."""


@dataclass(frozen=True)
class TuningSpec:
    """What is trained of a model that is not trained whole. Beside a frozen matrix W of shape (outputs, inputs) stand A
    (rank, inputs) and B (outputs, rank): y = W x + s B A x (Hu et al. 2021, LoRA, arXiv 2106.09685, section 4.1); under
    QLoRA W is stored in 4 bits and made 16-bit for each product (Dettmers et al. 2023, arXiv 2305.14314, section 3)."""

    rank: int  #: of the adapters.
    targets: frozenset[str]  #: matrices with adapters, of `MATRICES`.
    base: str = "bf16"  #: how frozen matrices are stored, of `BASE_DTYPES`.
    experts: bool = False  #: routed experts have adapters too.
    trained: frozenset[str] = frozenset()  #: what is trained whole, of `TRAINED`.
    dropout: bool = False  #: inputs of adapters go through dropout.
    joined: frozenset[str] = frozenset()  #: operators with one adapter for all matrices that are fused in them.

    @property
    def base_bytes(self) -> float:
        """Bytes per weight of a frozen matrix, with its scales [bytes]."""
        return BASE_DTYPES[self.base]

    @property
    def beside_bytes(self) -> float:
        """Bytes per weight of what is frozen and never quantised: embeddings, LM head, norms, router [bytes]."""
        return BASE_DTYPES[self.base] if self.base in PLAIN else BASE_DTYPES["bf16"]

    @property
    def quantised(self) -> bool:
        """Whether frozen matrices are stored in fewer than 16 bits, and made 16-bit for each product."""
        return self.base not in PLAIN


def _words(text: str) -> list[str]:
    return [name for name in re.split(r"[,+\s]+", text[:1000].strip().lower()) if name]


def read_joined(text: str) -> frozenset[str]:
    """Return the operators that names of fused modules stand for: PEFT puts one adapter beside a `c_attn`. Where single
    matrices of theirs are named too, the names are those of several models, and it is left open which are fused."""
    found = [SPELLINGS.get(name, name) for name in _words(text)]
    single = {name for name in found if name not in JOINED}
    return frozenset(one for name in found if single.isdisjoint(name.split(",")) for one in JOINED.get(name, ()))


def read_targets(text: str) -> frozenset[str]:
    """Return the matrices that names joined by commas, `+` or spaces stand for."""
    found: set[str] = set()
    waiting = _words(text)
    if "c_proj" in waiting:  # Qwen 1: w1 and w2 lead into the MLP, c_proj out of it (modeling_qwen.py, QWenMLP)
        waiting = ["up" if name == "w2" else name for name in waiting]
    while waiting:
        name = waiting.pop()
        if name in SPELLINGS:
            waiting += SPELLINGS[name].split(",")
        elif name in TARGETS:
            found |= TARGETS[name]
        elif name in TARGETS["all"]:
            found.add(name)
        else:
            hint = did_you_mean(name, (*TARGETS, *sorted(TARGETS["all"])), "names are", 12)
            raise InputError(f"unknown matrix {name[:40]!r}", field="lora_targets", hint=hint)
    if not found:
        raise InputError("names no matrix", field="lora_targets", hint="give all, attention, mlp or q,v")
    return frozenset(found)
