"""A decoder-only transformer as a pattern of layer kinds.

Counting of parameters and FLOPs is in `gpuscale.architecture`; here is only the shape. Widths are in elements.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_LAYERS, MAX_HIDDEN, MAX_FFN, MAX_HEADS, MAX_HEAD_DIM = 4096, 2**20, 2**24, 2**14, 2**16
MAX_EXPERTS, MAX_VOCAB, MAX_SEQUENCE = 2**16, 2**24, 2**31
"""Largest shapes accepted from a file: far above any published model, and small enough for exact 64-bit counts."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Low-rank projections of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Attributes:
        query_rank: rank of the query compression; None projects the query directly.
        kv_rank: rank of the joint key-value compression (what is cached at inference).
        nope_dim: part of the query/key head dimension without rotary embedding.
        rope_dim: part with rotary embedding; its key is shared by all heads.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Softmax attention: multi-head, grouped-query, multi-query or latent.

    Attributes:
        head_dim: width of one query and one key head (for latent attention nope_dim + rope_dim).
        value_head_dim: width of one value head.
        window: sliding window or chunk length in tokens; None attends to the whole sequence.
        chunked: the sequence is cut into blocks of `window` tokens that do not see each other (Llama 4).
        qk_norm: `none`, `head` (one norm weight of head_dim for q and for k) or `full` (weights as wide as the
            whole q and k projections, OLMo 2).
        sinks: one learned logit per head (gpt-oss).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    latent: LatentSpec | None = None
    window: int | None = None
    chunked: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = "none"
    sinks: bool = False

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Width of all value heads together."""
        return self.kv_heads * self.value_head_dim

    @property
    def output_width(self) -> int:
        """Width of the concatenated heads that enter the output projection."""
        return self.heads * self.value_head_dim


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """A dense feed-forward block; `gated` means two input projections (SwiGLU, GeGLU)."""

    ffn: int
    gated: bool
    bias: bool = False

    @property
    def input_matrices(self) -> int:
        """Input projections: 2 when gated, else 1."""
        return 2 if self.gated else 1


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture-of-experts block.

    Attributes:
        experts: routed experts of the layer.
        top_k: routed experts that each token visits.
        ffn: width of one routed expert.
        shared_ffn: width of all shared experts together; 0 without.
        shared_gate: a learned scalar gate on the shared expert (Qwen2-MoE).
        router_bias: a learned bias on the router logits (gpt-oss).
        correction_bias: a per-expert load-balancing bias that takes no gradient (DeepSeek-V3).
        expert_bias: biases in the expert projections (gpt-oss).
    """

    experts: int
    top_k: int
    ffn: int
    gated: bool = True
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    expert_bias: bool = False

    @property
    def input_matrices(self) -> int:
        """Input projections of one expert: 2 when gated, else 1."""
        return 2 if self.gated else 1


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One kind of transformer layer: attention, then exactly one of a dense MLP or a mixture of experts.

    Attributes:
        norms: norms of width `hidden` in the layer (2 pre-norm, 4 with Gemma's sandwich, 1 in parallel blocks).
        norm_bias: LayerNorm with bias, rather than RMSNorm or bias-free; the final norm does as the last layer.
    """

    attention: AttentionSpec
    mlp: MlpSpec | None
    moe: MoeSpec | None
    norms: int = 2
    norm_bias: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer.

    Attributes:
        kinds: the distinct kinds of layers.
        pattern: for each layer, first to last, the index of its kind.
        tied_embeddings: input embedding and LM head share one matrix.
        learned_positions: rows of a learned position embedding; 0 with rotary positions.
        max_sequence: longest sequence the model is made for, in tokens.
        mtp_layers: multi-token-prediction modules after the last layer (DeepSeek-V3); counted apart.
        head_bias: a learned bias on the logits (Phi).
        source: where the shape is published.
        published_params: the published exact parameter count, where there is one.
        published_active_params: the published count of parameters that one token uses, as its source counts it.
        notes: what a reader of this model's numbers has to know (a vision tower left out, say).
    """

    name: str
    title: str
    family: str
    hidden: int
    vocab: int
    kinds: tuple[LayerSpec, ...]
    pattern: tuple[int, ...]
    tied_embeddings: bool
    learned_positions: int
    max_sequence: int
    mtp_layers: int = 0
    head_bias: bool = False
    source: str = ""
    published_params: int | None = None
    published_active_params: int | None = None
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Number of transformer layers, without multi-token-prediction modules."""
        return len(self.pattern)

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """How many layers there are of each kind, in the order of `kinds`."""
        return tuple(self.pattern.count(index) for index in range(len(self.kinds)))

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return any(kind.moe is not None for kind in self.kinds)
