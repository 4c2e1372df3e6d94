"""The matrices of a layer, how tensor parallelism cuts them, and how many parameters a model has.

One list of `Linear` operators serves parameter counts, FLOPs per token, memory (parameters per GPU) and step time (GEMM
shapes). Column-parallel matrices are cut along their outputs, row-parallel ones along their inputs (Shoeybi et al.
2019, arXiv 1909.08053, section 3). Counted is what training updates: no buffers (rotary tables, DeepSeek-V3's
load-balancing bias); a matrix shared by embedding and LM head once; multi-token-prediction modules apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.specs.model import AttentionSpec, BesideSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, StateSpaceSpec
from gpuscale.specs.tuning import MATRICES, TARGETS, TuningSpec

Split = Literal["column", "row", "replicated"]


@dataclass(frozen=True)
class Linear:
    """One weight matrix (or one of `count` equal ones) of a layer."""

    name: str
    #: `attention`, `indexer`, `state_space`, `mlp`, `router`, `experts`, `shared_experts`, `expert_latent`, `beside` or
    #: `mtp`.
    module: str
    inputs: int  #: width of the input.
    outputs: int  #: width of the output, without the key and value heads below.
    split: Split  #: how it is cut over the tensor-parallel (for experts: expert-tensor-parallel) group.
    #: key/value heads whose projections are fused behind `outputs`; when TP exceeds their number they are replicated.
    kv_heads: int = 0
    kv_width: int = 0  #: width of one key head plus one value head.
    bias: bool = False  #: whether there is a bias as wide as the output.
    count: int = 1
    fused: int = 1  #: equal matrices that `outputs` are fused of: 2 of a gated block, else 1.

    @property
    def weights(self) -> int:
        """Weights of the whole matrix."""
        return self.inputs * (self.outputs + self.kv_heads * self.kv_width)

    @property
    def biases(self) -> int:
        """Biases of the whole matrix."""
        return self.bias * (self.outputs + self.kv_heads * self.kv_width)

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
    """Projections of an attention block: fused QKV (and output gate), or the five of latent attention, and the output
    projection, with those that compress its input or the queries."""
    out = Linear("out_proj", "attention", attention.output_width, hidden, "row", bias=attention.output_bias)
    latent, width = attention.latent, attention.input_width or hidden
    outs: tuple[Linear, ...] = (out,)
    if attention.output_rank:  # each group of heads is compressed apart: a block-diagonal matrix
        rank = attention.output_groups * attention.output_rank
        down = Linear("out_down", "attention", attention.output_width // attention.output_groups, rank, "column")
        outs = (down, Linear("out_proj", "attention", rank, hidden, "row", bias=attention.output_bias))
    if latent is None:
        queries = attention.query_width * (2 if attention.output_gate else 1)
        heads, pair = attention.projected_kv
        if not attention.query_rank:
            return (Linear("qkv", "attention", width, queries, "column", heads, pair, attention.qkv_bias), *outs)
        down = Linear("q_down", "attention", width, attention.query_rank, "replicated")
        up = Linear("q_up", "attention", attention.query_rank, queries, "column")
        return (down, up, Linear("kv", "attention", width, heads * pair, "replicated"), *outs)
    if latent.query_rank is None:
        query: tuple[Linear, ...] = (Linear("q_proj", "attention", width, attention.query_width, "column"),)
    else:
        query = (
            Linear("q_down", "attention", width, latent.query_rank, "replicated", bias=attention.qkv_bias),
            Linear("q_up", "attention", latent.query_rank, attention.query_width, "column"),
        )
    kv_width = attention.heads * (latent.nope_dim + attention.value_head_dim)
    compressed = latent.kv_rank + latent.rope_dim
    kv_down = Linear("kv_down", "attention", width, compressed, "replicated", bias=attention.qkv_bias)
    kv_up = Linear("kv_up", "attention", latent.kv_rank, kv_width, "column")
    return (*query, kv_down, kv_up, out)


def indexer_linears(hidden: int, attention: AttentionSpec) -> tuple[Linear, ...]:
    """Queries, the shared key and the weights of the heads of DeepSeek sparse attention's indexer; not cut by TP
    (transformers, `DeepseekV32Indexer`: queries come from the compressed query)."""
    indexer = attention.indexer
    if indexer is None or indexer.shared:
        return ()
    inputs = (attention.latent.query_rank if attention.latent else None) or hidden
    queries = Linear("index_q", "indexer", inputs, indexer.heads * indexer.head_dim, "replicated")
    keys = Linear("index_k", "indexer", hidden, indexer.head_dim, "replicated")
    weights = Linear("index_weights", "indexer", hidden, indexer.heads, "replicated")
    return (queries, keys, weights) if indexer.weighted else (queries, keys)


def state_space_linears(hidden: int, spec: StateSpaceSpec) -> tuple[Linear, ...]:
    """Projections around a recurrence: fused input, what is made of a low rank, and output. Heads are cut over TP, and
    so are groups while there are enough of them (Megatron-LM `MambaMixer`). What the fused input holds beside the
    values: their gate; B and C (queries and keys); per head a step size (mamba2), decay and learning rate (gdn),
    learning rate (kda) or two gates (mlstm, which have biases of their own)."""
    gates = 0 if spec.kind in ("kda", "lightning") else 1
    per_head = {"mamba2": 1, "gdn": 2, "kda": 1, "mlstm": 2}.get(spec.kind, 0)
    maps = spec.kind in ("mamba2", "gdn", "kda", "mlstm", "lightning", "conv", "rwkv4")
    width = (gates + 1) * spec.width + per_head * spec.heads
    groups, pair = (spec.groups, 2 * spec.state) if maps else (0, 0)
    if spec.kind in ("conv", "rwkv4"):  # input and output gates, or keys and receptances, beside the values
        groups, pair = 0, 0
        width = 3 * spec.width
    inputs = Linear("state_in", "state_space", hidden, width, "column", groups, pair, spec.bias)
    out = Linear("state_out", "state_space", spec.width, hidden, "row", bias=spec.bias)
    return (inputs, *_from_low_rank(hidden, spec), out)


def _from_low_rank(hidden: int, spec: StateSpaceSpec) -> tuple[Linear, ...]:
    """What a state space makes of its input besides the fused projection: step size, decay, gates."""
    keys = spec.groups * spec.state
    if spec.kind == "mamba1":
        rank = spec.rank or -(-hidden // 16)
        maps = Linear("step_down", "state_space", spec.width, rank + 2 * spec.state, "row")
        return (maps, Linear("step_up", "state_space", rank, spec.width, "column", bias=True))
    if spec.kind == "rglru":  # an input and a recurrence gate, each block-diagonal over the heads
        return (Linear("gates", "state_space", spec.head_dim, 2 * spec.width, "column", bias=True),)
    if spec.kind == "lightning":
        return (Linear("output_gate", "state_space", hidden, spec.width, "column"),)
    if spec.kind != "kda":
        return ()
    rank = spec.head_dim if spec.rank is None else spec.rank  # of the decay and of the output gate
    if not rank:
        return (Linear("gates", "state_space", hidden, keys + spec.width, "column"),)
    down = Linear("gates_down", "state_space", hidden, 2 * rank, "replicated")
    decay = Linear("decay_up", "state_space", rank, keys, "column")
    return (down, decay, Linear("gate_up", "state_space", rank, spec.width, "column"))


def state_space_vectors(spec: StateSpaceSpec, tp: IntArray, hidden: int = 0) -> IntArray:
    """Convolution, decays, step sizes, skip and norm of a state-space block on one rank; `hidden`: width of the
    residual stream, which the token shift of RWKV mixes with."""
    heads, groups = -(-spec.heads // tp), -(-spec.groups // tp)
    width, key_width = heads * spec.head_dim, groups * spec.state
    taps = spec.conv + (1 if spec.conv_bias else 0)
    conv = (width + 2 * key_width) * taps
    if spec.kind == "mamba2":
        return conv + 3 * heads + spec.norm * width  # step bias, decay, skip; norm as wide as the heads
    if spec.kind in ("gdn", "kda"):
        steps = key_width if spec.kind == "kda" else heads
        return conv + steps + heads + spec.norm * spec.head_dim  # step bias, decay; one norm for all heads
    if spec.kind == "mamba1":  # decays, skip, and norms of step size, B and C
        return width * (taps + spec.state + 1) + spec.norm * ((spec.rank or -(-hidden // 16)) + 2 * spec.state)
    own = {
        "conv": width * taps,
        "rglru": width * (taps + 1),  # and the decay
        "rwkv4": 2 * width + 3 * hidden,  # decay and bonus; shifts of keys, values and receptances
        "mlstm": 2 * heads + width,  # biases of both gates; norm
        "lightning": width,  # norm
    }
    return np.asarray(own[spec.kind], dtype=np.int64)


def beside_linears(beside: tuple[BesideSpec, ...]) -> tuple[Linear, ...]:
    """Products beside the usual blocks; TP leaves them whole."""
    products = [one for one in beside if one.is_product]
    return tuple(Linear(one.name, "beside", one.inputs, one.outputs, "replicated", bias=one.bias) for one in products)


def beside_vectors(beside: tuple[BesideSpec, ...]) -> int:
    """Weights beside the usual blocks that are no products."""
    return sum(one.parameters for one in beside if not one.is_product)


def joint_linears(hidden: int) -> tuple[Linear, ...]:
    """Projection of hidden state and next embedding at the entry of a multi-token-prediction module; cut by columns
    (Megatron-LM `MultiTokenPredictionLayer.eh_proj`)."""
    return (Linear("eh_proj", "mtp", 2 * hidden, hidden, "column"),)


def mlp_linears(hidden: int, mlp: MlpSpec) -> tuple[Linear, ...]:
    """The input projection(s), fused, and the output projection of a dense feed-forward block."""
    return (
        Linear("fc1", "mlp", hidden, mlp.input_matrices * mlp.ffn, "column", bias=mlp.bias, fused=mlp.input_matrices),
        Linear("fc2", "mlp", mlp.ffn, hidden, "row", bias=mlp.bias),
    )


def moe_dense_linears(hidden: int, moe: MoeSpec) -> tuple[Linear, ...]:
    """Router, latent projections and shared experts: what every rank holds of a mixture of experts like a dense layer.
    The latent projections run on the tokens of one rank and are not cut by TP (Megatron-LM `MoELayer`)."""
    router = Linear("router", "router", hidden, moe.experts, "replicated", bias=moe.router_bias)
    shared: tuple[Linear, ...] = ()
    inputs = moe.input_matrices
    if moe.shared_ffn:
        shared = (
            Linear("shared_fc1", "shared_experts", hidden, inputs * moe.shared_ffn, "column", fused=inputs),
            Linear("shared_fc2", "shared_experts", moe.shared_ffn, hidden, "row"),
            *([Linear("shared_gate", "shared_experts", hidden, 1, "replicated")] if moe.shared_gate else []),
        )
    return (router, *latent_linears(hidden, moe), *shared)


def latent_linears(hidden: int, moe: MoeSpec) -> tuple[Linear, ...]:
    """Projections into and out of the width in which the routed experts work (LatentMoE)."""
    if not moe.latent:
        return ()
    return (
        Linear("latent_down", "expert_latent", hidden, moe.latent, "replicated"),
        Linear("latent_up", "expert_latent", moe.latent, hidden, "replicated"),
    )


def expert_linears(hidden: int, moe: MoeSpec) -> tuple[Linear, ...]:
    """The two grouped projections of the routed experts; cut by expert tensor parallelism, `count` = experts."""
    inputs, width = moe.input_matrices, moe.expert_width(hidden)
    first = Linear("expert_fc1", "experts", width, inputs * moe.ffn, "column", bias=moe.expert_bias, fused=inputs)
    second = Linear("expert_fc2", "experts", moe.ffn, width, "row", bias=moe.expert_bias)
    return replace(first, count=moe.experts), replace(second, count=moe.experts)


def dense_linears(hidden: int, layer: LayerSpec) -> tuple[Linear, ...]:
    """All matrices of a layer except the routed experts."""
    attention, state_space = layer.attention, layer.state_space
    return (
        *(joint_linears(hidden) if layer.joins_embedding else ()),
        *((*attention_linears(hidden, attention), *indexer_linears(hidden, attention)) if attention else ()),
        *(state_space_linears(hidden, state_space) if state_space else ()),
        *(mlp_linears(hidden, layer.mlp) if layer.mlp else ()),
        *(moe_dense_linears(hidden, layer.moe) if layer.moe else ()),
        *beside_linears(layer.beside),
    )


def vector_parameters(hidden: int, layer: LayerSpec, tp: IntArray) -> IntArray:
    """Norm weights, attention sinks and small parameters of a state space of a layer on one rank."""
    total = np.full_like(tp, layer.norms * _norm(hidden, layer) + beside_vectors(layer.beside))
    if layer.state_space is not None:
        total = total + state_space_vectors(layer.state_space, tp, hidden)
    if layer.attention is not None:
        sinks = layer.attention.sinks * (layer.attention.heads // tp)
        total = total + qk_norm_parameters(layer.attention, tp) + sinks + _indexer_norm(layer.attention)
    return total


def qk_norm_parameters(attention: AttentionSpec, tp: IntArray) -> IntArray:
    """Norm weights on queries and keys, or on the compressed vectors of latent attention, on one rank."""
    if attention.latent is not None:
        return np.full_like(tp, (attention.latent.query_rank or 0) + attention.latent.kv_rank)
    own_keys = attention.keys != "shared"
    if attention.qk_norm == "full":
        return attention.query_width // tp + own_keys * (attention.key_width // tp)
    head = (1 + own_keys) * attention.head_dim if attention.qk_norm == "head" else 0
    return np.full_like(tp, attention.query_rank + head)


def _norm(hidden: int, layer: LayerSpec) -> int:
    return hidden * (1 + layer.norm_bias)


def _indexer_norm(attention: AttentionSpec) -> int:
    """Weight and bias of the LayerNorm on the indexer's key, or weights of the norms of its queries and its key."""
    indexer = attention.indexer
    return 0 if indexer is None or indexer.shared else 2 * indexer.head_dim


class LayerParameters(NamedTuple):
    """Parameters of one layer."""

    attention: int  #: projection matrices of attention.
    indexer: int  #: indexer of DeepSeek sparse attention, with its norm.
    state_space: int  #: projections, convolution, decays and norm of a state space in the place of attention.
    qk_norm: int  #: norm weights on queries and keys, or on the two compressed vectors of latent attention.
    mlp: int  #: matrices of the dense feed-forward block.
    router: int  #: router matrix and its bias, gate of the shared expert.
    routed_experts: int  #: all routed experts with their biases.
    shared_experts: int  #: experts that every token visits.
    expert_latent: int  #: projections into and out of the latent width of the routed experts.
    beside: int  #: small products, vectors and tables beside the blocks.
    joint: int  #: projection at the entry of a multi-token-prediction module.
    norms: int  #: norm weights of width `hidden`, with their biases.
    biases: int  #: biases of the attention and dense MLP projections, attention sinks.
    routed_experts_per_token: int  #: the part of `routed_experts` that one token uses.
    #: the part of `dense_params` that tensor parallelism leaves whole on every rank: norms, router, output biases,
    #: compressions of latent attention, indexer and latent projections (as Megatron-LM does), and what stands beside.
    tp_replicated: int

    @property
    def dense_params(self) -> int:
        """Everything but the routed experts."""
        mixer = self.attention + self.indexer + self.state_space + self.qk_norm
        feed_forward = self.mlp + self.router + self.shared_experts + self.expert_latent
        return mixer + feed_forward + self.beside + self.joint + self.norms + self.biases

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.dense_params + self.routed_experts

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.dense_params + self.routed_experts_per_token


class ModelParameters(NamedTuple):
    """Parameters of a model."""

    embedding: int  #: the token embedding, vocab x hidden.
    positions: int  #: the learned position embedding; 0 with rotary positions.
    kinds: tuple[LayerParameters, ...]  #: one entry per layer kind, in the order of `ModelSpec.kinds`.
    counts: tuple[int, ...]  #: layers of each kind.
    at_ends: int  #: what stands beside the embedding and the LM head.
    final_norm: int  #: norm after the last layer.
    lm_head: int  #: output matrix and bias; the matrix counts 0 when tied to the embedding.
    mtp: int  #: all multi-token-prediction modules, without the embedding and head they share; not part of `total`.

    @property
    def layers(self) -> int:
        """All transformer layers together."""
        return sum(count * kind.total for count, kind in zip(self.counts, self.kinds, strict=True))

    @property
    def total(self) -> int:
        """All parameters of the model, multi-token prediction apart."""
        return self.embedding + self.positions + self.at_ends + self.layers + self.final_norm + self.lm_head

    @property
    def active(self) -> int:
        """Parameters one token uses (embedding included)."""
        idle = (k.routed_experts - k.routed_experts_per_token for k in self.kinds)
        return self.total - sum(count * each for count, each in zip(self.counts, idle, strict=True))

    @property
    def non_embedding(self) -> int:
        """`total` without the token embedding and the LM head."""
        return self.total - self.embedding - self.lm_head

    @property
    def experts(self) -> int:
        """All routed experts of all layers."""
        return sum(count * kind.routed_experts for count, kind in zip(self.counts, self.kinds, strict=True))


@lru_cache(maxsize=64)
def model_parameters(model: ModelSpec) -> ModelParameters:
    """Count the parameters of `model`, for dense models exactly as the class of the transformers library has them."""
    mtp = sum(layer_parameters(layer, model.hidden).total for layer in model.mtp.layers) if model.mtp else 0
    return ModelParameters(
        embedding=model.vocab * model.hidden,
        positions=model.learned_positions * model.hidden,
        kinds=tuple(layer_parameters(kind, model.hidden) for kind in model.kinds),
        counts=model.layer_counts,
        at_ends=sum(one.parameters for one in (*model.at_embedding, *model.at_head)),
        final_norm=model.final_norm * _norm(model.hidden, model.kinds[model.pattern[-1]]),
        lm_head=(0 if model.tied_embeddings else model.vocab * model.hidden) + model.head_bias * model.vocab,
        mtp=mtp * model.mtp.copies if model.mtp else 0,
    )


def layer_parameters(layer: LayerSpec, hidden: int) -> LayerParameters:
    """Count the parameters of one layer; those of an earlier one count there."""
    if layer.reused:
        return LayerParameters(*[0] * len(LayerParameters._fields))
    attention, moe, whole = layer.attention, layer.moe, np.ones(1, dtype=np.int64)
    linears = dense_linears(hidden, layer)

    def weights(module: str) -> int:
        return sum(linear.weights for linear in linears if linear.module == module)

    def biases(module: str) -> int:
        return sum(linear.biases for linear in linears if linear.module == module)

    expert = sum(linear.weights + linear.biases for linear in expert_linears(hidden, moe)) if moe else 0
    gate = sum(linear.weights for linear in linears if linear.name == "shared_gate")
    router = weights("router") + biases("router") + gate
    norms = layer.norms * _norm(hidden, layer)
    qk_norm = int(qk_norm_parameters(attention, whole)[0]) if attention else 0
    indexer = weights("indexer") + _indexer_norm(attention) if attention else 0
    beside = sum(one.parameters for one in layer.beside)
    state_space = sum(one.biases for one in linears if one.module == "state_space")
    state_space += int(state_space_vectors(layer.state_space, whole, hidden)[0]) if layer.state_space else 0
    compressions = sum(one.weights for one in linears if (one.module, one.split) == ("attention", "replicated"))
    output_biases = sum(one.biases for one in linears if one.split == "row")
    return LayerParameters(
        attention=weights("attention"),
        indexer=indexer,
        state_space=weights("state_space") + state_space,
        qk_norm=qk_norm,
        mlp=weights("mlp"),
        router=router,
        routed_experts=moe.experts * expert if moe else 0,
        shared_experts=weights("shared_experts") - gate,
        expert_latent=weights("expert_latent"),
        beside=beside,
        joint=weights("mtp"),
        norms=norms,
        biases=biases("attention") + biases("mlp") + (attention.sinks * attention.heads if attention else 0),
        routed_experts_per_token=moe.top_k * expert if moe else 0,
        tp_replicated=norms
        + router
        + output_biases
        + weights("expert_latent")
        + compressions
        + qk_norm
        + indexer
        + beside,
    )


# -- Adapters of a low rank beside the frozen matrices of a layer, and how what is frozen is stored. --


class Adapter(NamedTuple):
    """One pair A (rank, inputs) and B (outputs, rank) on one rank."""

    rank: int
    inputs: IntArray  #: width of the input, shape (N,).
    outputs: IntArray  #: width of the output, shape (N,).

    @property
    def parameters(self) -> FloatArray:
        """Weights of the pair, shape (N,). TP cuts A along the input of a matrix that is cut by rows, B along the
        output of one that is cut by columns, and leaves the other whole (Megatron-Bridge, peft/utils.py,
        ParallelLinearAdapter)."""
        return np.asarray(self.rank * (self.inputs + self.outputs), dtype=np.float64)


def adapters(linear: Linear, tuning: TuningSpec, split: IntArray) -> list[Adapter]:
    """Return the adapters beside one matrix that `split` ranks, (N,), cut: one for each target fused in it."""
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
    """Count the weights of adapters in all layers that a step runs; reused layers have none."""
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
    """Count what is trained of a model: all of it, or adapters and, for a `whole_share`, what is trained whole beside
    them."""
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
