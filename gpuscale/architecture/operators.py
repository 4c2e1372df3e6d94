"""The matrices of a layer and how tensor parallelism cuts them.

One list of `Linear` operators serves the memory model (parameters per GPU) and the step-time model (GEMM shapes).
Column-parallel matrices are cut along their outputs, row-parallel ones along their inputs
(Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpuscale.specs.model import AttentionSpec, LayerSpec, MlpSpec, MoeSpec

Split = Literal["column", "row", "replicated"]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix (or one of `count` equal ones) of a layer.

    Attributes:
        inputs: width of the input.
        outputs: width of the output, without the key and value heads below.
        split: how it is cut over the tensor-parallel (for experts: expert-tensor-parallel) group.
        kv_heads: key/value heads whose projections are fused behind `outputs`; when TP exceeds their number they
            are replicated rather than cut.
        kv_width: width of one key head plus one value head.
        bias: whether there is a bias as wide as the output.
        module: `attention`, `mlp`, `router`, `experts` or `shared_experts`.
    """

    name: str
    module: str
    inputs: int
    outputs: int
    split: Split
    kv_heads: int = 0
    kv_width: int = 0
    bias: bool = False
    count: int = 1

    def local_inputs(self, tp: IntArray) -> IntArray:
        """Width of the input on one rank."""
        return -(-self.inputs // tp) if self.split == "row" else np.full_like(tp, self.inputs)

    def local_outputs(self, tp: IntArray) -> IntArray:
        """Width of the output on one rank."""
        if self.split != "column":
            return np.full_like(tp, self.outputs + self.kv_heads * self.kv_width)
        return -(-self.outputs // tp) + -(-self.kv_heads // tp) * self.kv_width

    def local_parameters(self, tp: IntArray) -> IntArray:
        """Weights and biases of one such matrix on one rank."""
        outputs = self.local_outputs(tp)
        return self.local_inputs(tp) * outputs + (outputs if self.bias else 0)


def attention_linears(hidden: int, attention: AttentionSpec) -> tuple[Linear, ...]:
    """Projections of an attention block: fused QKV, or the five of latent attention, and the output projection."""
    out = Linear("out_proj", "attention", attention.output_width, hidden, "row", bias=attention.output_bias)
    latent = attention.latent
    if latent is None:
        width = attention.head_dim + attention.value_head_dim
        qkv = Linear(
            "qkv",
            "attention",
            hidden,
            attention.query_width,
            "column",
            kv_heads=attention.kv_heads,
            kv_width=width,
            bias=attention.qkv_bias,
        )
        return (qkv, out)
    if latent.query_rank is None:
        query: tuple[Linear, ...] = (Linear("q_proj", "attention", hidden, attention.query_width, "column"),)
    else:
        query = (
            Linear("q_down", "attention", hidden, latent.query_rank, "replicated"),
            Linear("q_up", "attention", latent.query_rank, attention.query_width, "column"),
        )
    kv_width = attention.heads * (latent.nope_dim + attention.value_head_dim)
    kv_down = Linear("kv_down", "attention", hidden, latent.kv_rank + latent.rope_dim, "replicated")
    kv_up = Linear("kv_up", "attention", latent.kv_rank, kv_width, "column")
    return (*query, kv_down, kv_up, out)


def mlp_linears(hidden: int, mlp: MlpSpec) -> tuple[Linear, ...]:
    """The input projection(s), fused, and the output projection of a dense feed-forward block."""
    return (
        Linear("fc1", "mlp", hidden, mlp.input_matrices * mlp.ffn, "column", bias=mlp.bias),
        Linear("fc2", "mlp", mlp.ffn, hidden, "row", bias=mlp.bias),
    )


def moe_dense_linears(hidden: int, moe: MoeSpec) -> tuple[Linear, ...]:
    """Router and shared experts: the parts of a mixture of experts that every rank holds like a dense layer."""
    router = Linear("router", "router", hidden, moe.experts, "replicated", bias=moe.router_bias)
    if not moe.shared_ffn:
        return (router,)
    fc1 = Linear("shared_fc1", "shared_experts", hidden, moe.input_matrices * moe.shared_ffn, "column")
    fc2 = Linear("shared_fc2", "shared_experts", moe.shared_ffn, hidden, "row")
    gate = (Linear("shared_gate", "shared_experts", hidden, 1, "replicated"),) if moe.shared_gate else ()
    return (router, fc1, fc2, *gate)


def expert_linears(hidden: int, moe: MoeSpec) -> tuple[Linear, ...]:
    """The two grouped projections of the routed experts; cut by expert tensor parallelism, `count` = experts."""
    fc1_outputs = moe.input_matrices * moe.ffn
    return (
        Linear("expert_fc1", "experts", hidden, fc1_outputs, "column", bias=moe.expert_bias, count=moe.experts),
        Linear("expert_fc2", "experts", moe.ffn, hidden, "row", bias=moe.expert_bias, count=moe.experts),
    )


def dense_linears(hidden: int, layer: LayerSpec) -> tuple[Linear, ...]:
    """All matrices of a layer except the routed experts."""
    attention = attention_linears(hidden, layer.attention)
    if layer.mlp is not None:
        return (*attention, *mlp_linears(hidden, layer.mlp))
    assert layer.moe is not None
    return (*attention, *moe_dense_linears(hidden, layer.moe))


def vector_parameters(hidden: int, layer: LayerSpec, tp: IntArray) -> IntArray:
    """Norm weights and attention sinks of one layer on one rank (replicated unless per head)."""
    attention = layer.attention
    total = np.full_like(tp, layer.norms * hidden * (2 if layer.norm_bias else 1))
    if attention.latent is not None:
        total += (attention.latent.query_rank or 0) + attention.latent.kv_rank
    if attention.qk_norm == "head":
        total += 2 * attention.head_dim
    elif attention.qk_norm == "full":
        total += attention.query_width // tp + attention.key_width // tp
    if attention.sinks:
        total += attention.heads // tp
    return total
