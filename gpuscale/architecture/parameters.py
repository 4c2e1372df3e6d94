"""Parameter counts of a decoder-only transformer, itemised per kind of layer.

Counted is what training updates: buffers (rotary tables, DeepSeek-V3's load-balancing bias) are left out, a matrix
shared by embedding and LM head counts once. Multi-token-prediction modules are counted apart from the total.
"""

from dataclasses import dataclass

import numpy as np

from gpuscale.architecture.operators import (
    Linear,
    indexer_linears,
    indexer_norm,
    joint_linears,
    latent_linears,
    state_space_linears,
    state_space_vectors,
)
from gpuscale.specs import AttentionSpec, LayerSpec, ModelSpec, MoeSpec, StateSpaceSpec


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer.

    Attributes:
        attention: projection matrices of attention (with latent attention: all five or, without query rank, four).
        indexer: indexer of DeepSeek sparse attention, with its norm.
        state_space: projections, convolution, decays and norm of a state space in the place of attention.
        qk_norm: norm weights on queries and keys, or on the two compressed vectors of latent attention.
        mlp: matrices of the dense feed-forward block.
        router: router matrix and its bias, gate of the shared expert.
        routed_experts: all routed experts with their biases.
        shared_experts: experts that every token visits.
        expert_latent: projections into and out of the latent width of the routed experts.
        joint: projection at the entry of a multi-token-prediction module.
        norms: norm weights of width `hidden`, with their biases.
        biases: biases of the attention and dense MLP projections, attention sinks.
        routed_experts_per_token: the part of `routed_experts` that one token uses.
        tp_replicated: the part of `dense_params` that tensor parallelism leaves whole on every rank: norms, router,
            output biases, the compressions of latent attention, indexer and latent projections (as Megatron-LM does).
    """

    attention: int
    indexer: int
    state_space: int
    qk_norm: int
    mlp: int
    router: int
    routed_experts: int
    shared_experts: int
    expert_latent: int
    joint: int
    norms: int
    biases: int
    routed_experts_per_token: int
    tp_replicated: int

    @property
    def dense_params(self) -> int:
        """Everything but the routed experts: split by tensor parallelism, the same on all expert-parallel ranks."""
        mixer = self.attention + self.indexer + self.state_space + self.qk_norm
        feed_forward = self.mlp + self.router + self.shared_experts + self.expert_latent
        return mixer + feed_forward + self.joint + self.norms + self.biases

    @property
    def expert_params(self) -> int:
        """Routed experts: split by expert parallelism and expert tensor parallelism."""
        return self.routed_experts

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.dense_params + self.expert_params

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.dense_params + self.routed_experts_per_token


@dataclass(frozen=True)
class ModelParameters:
    """Parameters of a model.

    Attributes:
        embedding: the token embedding, vocab x hidden.
        positions: the learned position embedding; 0 with rotary positions.
        kinds: one entry per layer kind, in the order of `ModelSpec.kinds`.
        counts: layers of each kind.
        final_norm: norm after the last layer.
        lm_head: output matrix and bias; the matrix counts 0 when tied to the embedding.
        mtp: all multi-token-prediction modules, without the embedding and head they share; not part of `total`.
    """

    embedding: int
    positions: int
    kinds: tuple[LayerParameters, ...]
    counts: tuple[int, ...]
    final_norm: int
    lm_head: int
    mtp: int

    @property
    def layers(self) -> int:
        """All transformer layers together."""
        return sum(count * kind.total for count, kind in zip(self.counts, self.kinds, strict=True))

    @property
    def total(self) -> int:
        """All parameters of the model, multi-token prediction apart."""
        return self.embedding + self.positions + self.layers + self.final_norm + self.lm_head

    @property
    def active(self) -> int:
        """Parameters one token uses: `total` less the routed experts it does not visit (embedding included)."""
        idle = (k.routed_experts - k.routed_experts_per_token for k in self.kinds)
        return self.total - sum(count * each for count, each in zip(self.counts, idle, strict=True))

    @property
    def non_embedding(self) -> int:
        """`total` without the token embedding and the LM head."""
        return self.total - self.embedding - self.lm_head

    @property
    def experts(self) -> int:
        """All routed experts of all layers."""
        return sum(count * kind.expert_params for count, kind in zip(self.counts, self.kinds, strict=True))


def parameters(model: ModelSpec) -> ModelParameters:
    """Count the parameters of `model`.

    The total agrees to the parameter with the model class of the transformers library (dense models), see
    tests/test_parameters.py for the published exact counts.
    """
    norm = _norm(model.hidden, model.kinds[model.pattern[-1]].norm_bias)
    return ModelParameters(
        embedding=model.vocab * model.hidden,
        positions=model.learned_positions * model.hidden,
        kinds=tuple(layer_parameters(kind, model.hidden) for kind in model.kinds),
        counts=model.layer_counts,
        final_norm=norm,
        lm_head=(0 if model.tied_embeddings else model.vocab * model.hidden) + model.head_bias * model.vocab,
        mtp=sum(layer_parameters(layer, model.hidden).total for layer in model.mtp.layers) * model.mtp.copies
        if model.mtp
        else 0,
    )


def layer_parameters(layer: LayerSpec, hidden: int) -> LayerParameters:
    """Count the parameters of one layer of width `hidden`."""
    attention, state_space, mlp, moe = layer.attention, layer.state_space, layer.mlp, layer.moe
    norms = layer.norms * _norm(hidden, layer.norm_bias)
    expert = _expert(moe, hidden) if moe else 0
    router = moe.experts * (hidden + moe.router_bias) + moe.shared_gate * hidden if moe else 0
    output_biases = (attention.output_bias * hidden if attention else 0) + (mlp.bias * hidden if mlp else 0)
    expert_latent = _weights(latent_linears(hidden, moe)) if moe else 0
    whole = (_compressions(attention, hidden) + _qk_norm(attention) + _indexer(attention, hidden)) if attention else 0
    return LayerParameters(
        attention=_attention(attention, hidden) if attention else 0,
        indexer=_indexer(attention, hidden) if attention else 0,
        state_space=_state_space(state_space, hidden) if state_space else 0,
        qk_norm=_qk_norm(attention) if attention else 0,
        mlp=(mlp.input_matrices + 1) * hidden * mlp.ffn if mlp else 0,
        router=router,
        routed_experts=moe.experts * expert if moe else 0,
        shared_experts=(moe.input_matrices + 1) * hidden * moe.shared_ffn if moe else 0,
        expert_latent=expert_latent,
        joint=_weights(joint_linears(hidden)) if layer.joins_embedding else 0,
        norms=norms,
        biases=_split_biases(layer) + output_biases,
        routed_experts_per_token=moe.top_k * expert if moe else 0,
        tp_replicated=norms + router + output_biases + expert_latent + whole,
    )


def _weights(linears: tuple[Linear, ...]) -> int:
    """Weights of uncut matrices without biases."""
    return sum(linear.inputs * (linear.outputs + linear.kv_heads * linear.kv_width) for linear in linears)


def _state_space(spec: StateSpaceSpec, hidden: int) -> int:
    small = state_space_vectors(spec, np.ones(1, dtype=np.int64))
    return _weights(state_space_linears(hidden, spec)) + int(small[0])


def _indexer(attention: AttentionSpec, hidden: int) -> int:
    if attention.indexer is None:
        return 0
    return _weights(indexer_linears(hidden, attention)) + indexer_norm(attention.indexer)


def _norm(hidden: int, bias: bool) -> int:
    return hidden * (1 + bias)


def _expert(moe: MoeSpec, hidden: int) -> int:
    width = moe.expert_width(hidden)
    weights = (moe.input_matrices + 1) * width * moe.ffn
    return weights + moe.expert_bias * (moe.input_matrices * moe.ffn + width)


def _attention(attention: AttentionSpec, hidden: int) -> int:
    """Projection matrices; latent attention as in DeepSeek-V2, arXiv 2405.04434, eqs. 9-17."""
    output = attention.output_width * hidden
    latent = attention.latent
    if latent is None:
        queries = attention.query_width * (2 if attention.output_gate else 1)
        return hidden * (queries + attention.key_width + attention.value_width) + output
    query_in = hidden if latent.query_rank is None else latent.query_rank
    key_value_up = latent.kv_rank * attention.heads * (latent.nope_dim + attention.value_head_dim)
    return _compressions(attention, hidden) + query_in * attention.query_width + key_value_up + output


def _compressions(attention: AttentionSpec, hidden: int) -> int:
    """Down-projections of latent attention to the query rank and to the key-value rank with the shared rotary key."""
    latent = attention.latent
    return 0 if latent is None else hidden * ((latent.query_rank or 0) + latent.kv_rank + latent.rope_dim)


def _qk_norm(attention: AttentionSpec) -> int:
    if attention.latent is not None:
        return (attention.latent.query_rank or 0) + attention.latent.kv_rank
    return {"none": 0, "head": 2 * attention.head_dim, "full": attention.query_width + attention.key_width}[
        attention.qk_norm
    ]


def _split_biases(layer: LayerSpec) -> int:
    """Biases on outputs that tensor parallelism splits: queries, keys, values, MLP inputs; and the sinks."""
    attention, mlp = layer.attention, layer.mlp
    mlp_inputs = mlp.bias * mlp.input_matrices * mlp.ffn if mlp else 0
    if attention is None:
        return mlp_inputs
    qkv = attention.query_width * (2 if attention.output_gate else 1) + attention.key_width + attention.value_width
    return attention.qkv_bias * qkv + attention.sinks * attention.heads + mlp_inputs
