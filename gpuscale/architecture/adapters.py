"""Adapters of a low rank beside the frozen matrices of a layer, and how what is frozen is stored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuscale.architecture.parameters import Linear, dense_linears, expert_linears, model_parameters, vector_parameters
from gpuscale.arrays import FloatArray, IntArray
from gpuscale.specs.model import ModelSpec
from gpuscale.specs.tuning import MATRICES, TARGETS, TuningSpec


class Adapter(NamedTuple):
    """One pair A (rank, inputs) and B (outputs, rank) on one rank."""

    rank: int
    inputs: IntArray  #: width of the input, shape (N,).
    outputs: IntArray  #: width of the output, shape (N,).

    @property
    def parameters(self) -> FloatArray:
        """Weights of the pair, shape (N,).

        TP cuts A along the input of a matrix that is cut by rows, B along the output of one that is cut by columns, and
        leaves the other whole (Megatron-Bridge, peft/utils.py, ParallelLinearAdapter).
        """
        return np.asarray(self.rank * (self.inputs + self.outputs), dtype=np.float64)


def adapters(linear: Linear, tuning: TuningSpec, split: IntArray) -> list[Adapter]:
    """Return the adapters beside one matrix, one for each of the matrices fused in it that is a target.

    Args:
        split: ranks that cut the matrix, shape (N,).
    """
    if linear.module == "experts" and not tuning.experts:
        return []
    names = MATRICES.get(linear.name, ())
    names = names[-1:] if linear.name.endswith("fc1") and linear.fused == 1 else names
    pairs = -(-linear.kv_heads // split) * linear.kv_width if linear.name == "qkv" else split * 0
    first = (linear.local_outputs(split) - pairs) // (2 if linear.name == "kv" else linear.fused)
    inputs = linear.local_inputs(split)
    widths = {name: pairs // 2 if name in {"k", "v"} and linear.kv_heads else first for name in names}
    if linear.name in tuning.joined and len(names) > 1:
        return [Adapter(tuning.rank, inputs, linear.local_outputs(split))]
    return [Adapter(tuning.rank, inputs, widths[name]) for name in names if name in tuning.targets]


def adapter_parameters(linear: Linear, tuning: TuningSpec, split: IntArray) -> FloatArray:
    """Weights of all adapters beside one matrix on one rank, shape (N,)."""
    return sum((one.parameters for one in adapters(linear, tuning, split)), np.zeros(len(split)))


def frozen_bytes(linear: Linear, tuning: TuningSpec, split: IntArray) -> FloatArray:
    """Bytes that a frozen matrix takes on one rank, shape (N,): quantised are products of a layer but the router's
    (bitsandbytes and GPTQ replace `nn.Linear`; 16-bit biases stay)."""
    weights = linear.local_inputs(split) * linear.local_outputs(split)
    each = tuning.beside_bytes if linear.module == "router" else tuning.base_bytes
    return weights * each + tuning.beside_bytes * (linear.local_parameters(split) - weights)


def matrices_of(model: ModelSpec) -> list[tuple[float, int, int]]:
    """Return the matrices of all layers but routed experts, apart where operators are fused: how many, and their
    larger and smaller side."""
    one, every = np.ones(1, dtype=np.int64), TuningSpec(1, TARGETS["all"])
    return [
        (float(number), max(sides), min(sides))
        for kind, number in zip(model.trained_kinds, model.trained_counts, strict=True)
        if not kind.reused
        for linear in dense_linears(model.hidden, kind)
        for matrix in adapters(linear, every, one)
        for sides in [(int(matrix.inputs[0]), int(matrix.outputs[0]))]
    ]


class AdapterCount(NamedTuple):
    """Weights of all adapters of a model."""

    total: float
    active: float  #: those that one token uses.


def count_adapters(model: ModelSpec, tuning: TuningSpec) -> AdapterCount:
    """Count the weights of adapters in all layers that a step runs, of which reused layers have none of their own."""
    one, total, active = np.ones(1, dtype=np.int64), 0.0, 0.0
    for kind, number in zip(model.trained_kinds, model.trained_counts, strict=True):
        linears = () if kind.reused else dense_linears(model.hidden, kind)
        dense = number * sum(float(adapter_parameters(linear, tuning, one)[0]) for linear in linears)
        total, active = total + dense, active + dense
        if kind.moe is not None and not kind.reused:
            linears = expert_linears(model.hidden, kind.moe)
            each = sum(float(adapter_parameters(linear, tuning, one)[0]) for linear in linears)
            total, active = total + number * kind.moe.experts * each, active + number * kind.moe.top_k * each
    return AdapterCount(total, active)


def trained_parameters(model: ModelSpec, tuning: TuningSpec | None, whole_share: float = 1.0) -> float:
    """Count what is trained of a model: all of it, or adapters and what is trained whole beside them.

    Args:
        whole_share: what the latter counts for (`JobSpec.whole_share`).
    """
    counted = model_parameters(model)
    if tuning is None:
        return float(counted.total)
    one, layers = np.ones(1, dtype=np.int64), zip(model.trained_kinds, model.trained_counts, strict=True)
    vectors = sum(number * int(vector_parameters(model.hidden, kind, one)[0]) for kind, number in layers)
    at_embedding, at_head = (sum(one.parameters for one in end) for end in (model.at_embedding, model.at_head))
    whole = {
        "embeddings": counted.embedding + counted.positions + at_embedding,
        "head": counted.embedding,  # as wide as the embedding, tied or not
        "norms": vectors + counted.final_norm + model.head_bias * model.vocab + at_head,
    }
    return count_adapters(model, tuning).total + whole_share * sum(whole[part] for part in tuning.trained)
