"""A decoder-only language model as a pattern of layer kinds; its shape alone, widths in elements."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from pydantic import Field

from gpuscale.display import displayed
from gpuscale.specs.fields import Text, among

MAX_LAYERS, MAX_HIDDEN, MAX_FFN, MAX_HEADS, MAX_HEAD_DIM = 4096, 2**20, 2**24, 2**14, 2**16
MAX_EXPERTS, MAX_VOCAB, MAX_SEQUENCE, MAX_MTP = 2**16, 2**24, 2**31, 16
"""Largest shapes accepted from a file: far above any published model, and small enough for exact 64-bit counts."""

Hidden = Annotated[int, Field(ge=1, le=MAX_HIDDEN)]
Heads = Annotated[int, Field(ge=1, le=MAX_HEADS)]
HeadDim = Annotated[int, Field(ge=1, le=MAX_HEAD_DIM)]
Ffn = Annotated[int, Field(ge=1, le=MAX_FFN)]
Experts = Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]
MAX_PARAMS = 10**16
Params = Annotated[int | None, Field(ge=1, le=MAX_PARAMS)]


@dataclass(frozen=True)
class LatentSpec:
    """Low-rank projections of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    #: rank of the query compression; None projects the query directly.
    query_rank: Annotated[int | None, Field(ge=1, le=MAX_HIDDEN)]
    kv_rank: Hidden  #: rank of the joint key-value compression (what is cached at inference).
    nope_dim: HeadDim  #: part of the query/key head dimension without rotary embedding.
    rope_dim: HeadDim  #: part with rotary embedding; its key is shared by all heads.


@dataclass(frozen=True)
class IndexerSpec:
    """Choice of the keys that a query attends to (DeepSeek sparse attention, DeepSeek-V3.2 report, section 2.1)."""

    heads: Heads  #: heads of the small attention that scores all earlier tokens; they share its key.
    head_dim: HeadDim  #: width of one of them.
    top_k: Tokens  #: keys that the main attention then sees.
    shared: bool = False  #: the layer reuses the choice of an earlier one and has no indexer of its own (GLM-5.2).
    weighted: bool = True  #: every token weighs the heads; else their scores are added up (MiniMax-M3).


KEYS = {
    "own": "the layer projects its keys and its values",
    "shared": "they are those of an earlier layer (Gemma 3n)",
    "values": "one projection gives both (DeepSeek-V4, Gemma 4)",
}
"""Where an attention has its keys and values from."""


@dataclass(frozen=True)
class AttentionSpec:
    """Softmax attention: multi-head, grouped-query, multi-query or latent; over all keys, a window, or chosen ones."""

    heads: Heads  #: query heads.
    kv_heads: Heads  #: key and value heads.
    head_dim: HeadDim  #: width of one query and one key head (for latent attention nope_dim + rope_dim).
    value_head_dim: HeadDim  #: width of one value head.
    latent: LatentSpec | None = None  #: low-rank projections of multi-head latent attention; None without.
    window: int | None = None  #: sliding window or chunk length in tokens; None attends to the whole sequence.
    chunked: bool = False  #: the sequence is cut into blocks of `window` tokens that do not see each other (Llama 4).
    qkv_bias: bool = False  #: biases of the query, key and value projections.
    output_bias: bool = False  #: bias of the output projection.
    #: `none`, `head` (one norm weight of head_dim for q and for k) or `full` (weights as wide as the whole q and k
    #: projections, OLMo 2).
    qk_norm: Annotated[str, among("none", "head", "full")] = "none"
    sinks: bool = False  #: one learned logit per head (gpt-oss).
    output_gate: bool = False  #: a second query-wide projection gates the attention output (Qwen3-Next).
    indexer: IndexerSpec | None = None  #: DeepSeek sparse attention; None attends to all keys inside the window.
    keys: Annotated[str, among("own", "shared", "values")] = "own"  #: one of `KEYS`.
    #: width of what the projections read; 0 for that of the residual stream (Zamba joins the embedding to it).
    input_width: Annotated[int, Field(ge=0, le=2 * MAX_HIDDEN)] = 0
    #: rank of a compression of the queries outside latent attention; 0 projects them directly (DeepSeek-V4).
    query_rank: Annotated[int, Field(ge=0, le=MAX_HIDDEN)] = 0
    #: rank to which each of `output_groups` groups of heads is brought before the output projection; 0 without.
    output_rank: Annotated[int, Field(ge=0, le=MAX_HIDDEN)] = 0
    output_groups: Heads = 1  #: groups of heads that are compressed apart.
    #: tokens that make one compressed key, of which a query attends to all, or to those that the indexer chooses,
    #: beside the keys of its window; 0 without (DeepSeek-V4).
    compression: Annotated[int, Field(ge=0, le=65536)] = 0

    @property
    def reach(self) -> int | None:
        """Keys that a query attends to at most: the window or the indexer's choice; None without limit."""
        limits = [limit for limit in (self.window, self.indexer.top_k if self.indexer else None) if limit is not None]
        return min(limits, default=None)

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
    def projected_kv(self) -> tuple[int, int]:
        """Key and value heads whose keys or values the layer projects, and the width of one pair of them."""
        width = {"own": self.head_dim + self.value_head_dim, "values": self.head_dim, "shared": 0}[self.keys]
        return (self.kv_heads if width else 0), width

    @property
    def output_width(self) -> int:
        """Width of the concatenated heads that enter the output projection."""
        return self.heads * self.value_head_dim


STATE_SPACES = {
    "mamba2": "Mamba-2",
    "mamba1": "Mamba",
    "gdn": "gated delta net",
    "kda": "Kimi delta attention",
    "conv": "gated short convolution",
    "rglru": "RG-LRU",
    "rwkv4": "RWKV-4",
    "mlstm": "mLSTM",
    "lightning": "lightning attention",
}
"""Token mixers that take the place of attention in linear time -> their names. Mamba-2 (Dao & Gu 2024, arXiv
2405.21060), Mamba (Gu & Dao 2023, arXiv 2312.00752: a decay per channel and state, from the input), gated delta nets
(Yang et al. 2024, arXiv 2412.06464) and Kimi's (arXiv 2510.26692: a decay per channel), the convolution of LFM2 (arXiv
2511.23404), the RG-LRU (De et al. 2024, arXiv 2402.19427), RWKV-4 (Peng et al. 2023, arXiv 2305.13048), the mLSTM (Beck
et al. 2024, arXiv 2405.04517) and lightning attention (Qin et al. 2024, arXiv 2401.04658)."""

TIMED_STATE_SPACES = ("mamba2", "gdn", "kda")
"""Those whose kernels the time is added up of; that of the others is an estimate from their FLOPs and bytes."""


@dataclass(frozen=True)
class StateSpaceSpec:
    """A linear-time token mixer in the place of attention: a recurrent state of `state` x `head_dim` per head."""

    kind: Annotated[str, among(*STATE_SPACES)]  #: one of `STATE_SPACES`.
    #: heads (of the values, in delta nets); channels where each goes its own way (`mamba1`, `conv`, `rwkv4`).
    heads: Annotated[int, Field(ge=1, le=MAX_HIDDEN)]
    head_dim: HeadDim  #: width of one of them.
    #: sets of input and output maps (B and C) shared by heads; heads of queries and keys in delta nets.
    groups: Annotated[int, Field(ge=1, le=MAX_HIDDEN)]
    state: HeadDim  #: size of the state per channel of a head; width of one query and key head in delta nets.
    conv: Annotated[int, Field(ge=1, le=64)] = 4  #: length of the causal convolution before the recurrence.
    chunk: Annotated[int, Field(ge=1, le=65536)] = 128  #: tokens that the training kernel works on at a time.
    conv_bias: bool = False  #: the convolution has a bias.
    #: rank of what the step size (`mamba1`), or decay and output gate (`kda`: 0 projects them directly), are made of;
    #: None for the usual one, the width of a head in `kda`.
    rank: Annotated[int | None, Field(ge=0, le=MAX_HIDDEN)] = None
    norm: bool = True  #: the usual norms: of the output, or (`mamba1`) of step size, B and C (Jamba).
    bias: bool = False  #: biases of the input and output projections.

    @property
    def width(self) -> int:
        """Width of all heads together, which enters the output projection."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of all B or all C maps together (delta nets: of all queries or all keys)."""
        return self.groups * self.state

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: the values and, where it takes them, both maps; 0 without a convolution."""
        if self.kind in ("mamba2", "gdn", "kda"):
            return self.width + 2 * self.key_width
        return 0 if self.kind in ("rwkv4", "mlstm", "lightning") else self.width


@dataclass(frozen=True)
class MlpSpec:
    """A dense feed-forward block."""

    ffn: Ffn  #: its width.
    gated: bool = True  #: two input projections (SwiGLU, GeGLU).
    bias: Annotated[bool, Field(alias="mlp_bias")] = False  #: biases of its projections.

    @property
    def input_matrices(self) -> int:
        """Input projections: 2 when gated, else 1."""
        return 2 if self.gated else 1


@dataclass(frozen=True)
class MoeSpec:
    """A mixture-of-experts block."""

    experts: Experts  #: routed experts of the layer.
    top_k: Experts  #: routed experts that each token visits.
    ffn: Ffn  #: width of one routed expert.
    gated: bool = True  #: two input projections (SwiGLU, GeGLU).
    shared_ffn: Annotated[int, Field(ge=0, le=MAX_FFN)] = 0  #: width of all shared experts together; 0 without.
    shared_gate: bool = False  #: a learned scalar gate on the shared expert (Qwen2-MoE).
    router_bias: bool = False  #: a learned bias on the router logits (gpt-oss).
    correction_bias: bool = False  #: a per-expert load-balancing bias that takes no gradient (DeepSeek-V3).
    expert_bias: bool = False  #: biases in the expert projections (gpt-oss).
    #: groups of experts, of which the router picks the best and then experts inside them alone (DeepSeek-V3, arXiv
    #: 2412.19437, section 2.1.2); 1 when all are free.
    groups: Experts = 1
    top_groups: Experts = 1  #: groups that a token may visit.
    #: width in which the routed experts work, between two projections that they share (LatentMoE, Nemotron 3); 0 when
    #: they work in the model's own.
    latent: Annotated[int, Field(ge=0, le=MAX_HIDDEN)] = 0

    @property
    def input_matrices(self) -> int:
        """Input projections of one expert: 2 when gated, else 1."""
        return 2 if self.gated else 1

    def expert_width(self, hidden: int) -> int:
        """Width of what enters and leaves a routed expert, in a model of width `hidden`."""
        return self.latent or hidden


@dataclass(frozen=True)
class BesideSpec:
    """Weights beside the usual blocks: a small product on every token, a vector, or a table that is looked up."""

    name: str  #: what it is, for people.
    outputs: Annotated[int, Field(ge=1, le=MAX_PARAMS)]  #: width of the output; weights of a vector.
    inputs: Annotated[int, Field(ge=0, le=MAX_FFN)] = 0  #: width of the input, rows of a table; 0 for a vector.
    bias: bool = False  #: the product has a bias.
    lookup: bool = False  #: it is a table of which each token takes a row.

    @property
    def parameters(self) -> int:
        """Its weights and biases."""
        return max(self.inputs, 1) * self.outputs + self.bias * self.outputs

    @property
    def is_product(self) -> bool:
        """Whether every token is multiplied with it."""
        return self.inputs > 0 and not self.lookup


@dataclass(frozen=True)
class LayerSpec:
    """One kind of layer: a token mixer (attention or a state space, or both side by side) or none, then a feed-forward
    block (a dense MLP or a mixture of experts, or both side by side) or none; at least one of the two."""

    attention: AttentionSpec | None  #: the attention, or None.
    mlp: MlpSpec | None  #: the dense MLP, or None.
    moe: MoeSpec | None  #: the mixture of experts, or None.
    #: norms of width `hidden` (2 pre-norm, 4 with Gemma's sandwich, 1 in parallel blocks and layers of a single block).
    norms: Annotated[int, Field(alias="norms_per_layer", ge=0, le=4)] = 2
    #: LayerNorm with bias, rather than RMSNorm or bias-free; the final norm does as the last layer.
    norm_bias: bool = False
    state_space: StateSpaceSpec | None = None  #: the state space, or None.
    #: the layer begins a multi-token-prediction module: hidden state and next embedding enter through a 2h x h
    #: projection (DeepSeek-V3, arXiv 2412.19437, eq. 21).
    joins_embedding: bool = False
    #: token mixer and feed-forward block read the same hidden state (GPT-J, GPT-NeoX, PaLM, Falcon): tensor parallelism
    #: gathers and reduces once for both.
    parallel_blocks: bool = False
    wide_under: tuple[str, ...] = ()  #: precisions below 16 bits under which the layer stays in 16 bits all the same.
    beside: tuple[BesideSpec, ...] = ()  #: what it has beside its blocks.
    reused: bool = False  #: its weights are those of an earlier layer (Zamba, and models that loop over their layers).

    @property
    def blocks(self) -> int:
        """Residual blocks: token mixer and feed-forward, as far as the layer has them."""
        mixer = self.attention is not None or self.state_space is not None
        return int(mixer) + int(self.mlp is not None or self.moe is not None)


MTP_NORMS = 3
"""Norms of a multi-token-prediction module besides its layers': of hidden state, embedding and output."""


@dataclass(frozen=True)
class MtpSpec:
    """Multi-token-prediction modules after the last layer (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

    #: modules that a training step runs one after the other, each with logits of its own.
    depth: Annotated[int, Field(ge=1, le=MAX_MTP)]
    #: layers of one module; the first joins the embedding and has the module's own norms.
    layers: tuple[LayerSpec, ...]
    shared: bool = False  #: all modules use one set of weights (Nemotron 3).
    trained: bool = True  #: training runs have the modules; else they are only counted.

    @property
    def copies(self) -> int:
        """Modules that have weights of their own."""
        return 1 if self.shared else self.depth


def mtp_module(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Return the layers of one module made of `layers`: its projection and norms go to the first of them."""
    first = replace(layers[0], norms=layers[0].norms + MTP_NORMS, joins_embedding=True)
    return (first, *layers[1:])


Positive = Annotated[float | None, Field(gt=0, le=1e12)]
ROTARY_SCALINGS = ("none", "linear", "dynamic", "llama3", "yarn", "longrope")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "swigluoai")


@dataclass(frozen=True)
class NumericsSpec:
    """What a model computes beside its shape, for exports alone: it changes what is learned and no time. None is what
    nobody stated."""

    rotary_base: Positive = None  #: base of the angles of rotary positions (`rope_theta`).
    rotary_share: Annotated[float | None, Field(gt=0, le=1)] = None  #: share of a head that rotary positions turn.
    #: how angles change for long sequences: none, linear, dynamic, llama3, yarn or longrope.
    rotary_scaling: Annotated[str | None, among(None, *ROTARY_SCALINGS)] = None
    scaling_factor: Positive = None  #: of it: by how much sequences are longer than
    scaling_sequence: Annotated[int | None, Field(ge=1, le=MAX_SEQUENCE)] = None  #: the positions before it.
    scaling_low: Positive = None  #: of llama3 `low_freq_factor`, of yarn `beta_slow`.
    scaling_high: Positive = None  #: of llama3 `high_freq_factor`, of yarn `beta_fast`.
    scaling_mscale: Annotated[float | None, Field(ge=0, le=100)] = None  #: of yarn in latent attention `mscale`.
    scaling_mscale_all: Annotated[float | None, Field(ge=0, le=100)] = None  #: the same, `mscale_all_dim`.
    norm_epsilon: Annotated[float | None, Field(gt=0, le=1)] = None  #: added to the variance in norms.
    init_std: Annotated[float | None, Field(gt=0, le=10)] = None  #: standard deviation of initial weights.
    #: of MLPs and experts: silu, gelu, gelu_tanh, relu, relu2 (squared) or swigluoai (clamped, gpt-oss).
    activation: Annotated[str | None, among(None, *ACTIVATIONS)] = None
    attention_softcap: Positive = None  #: bound of attention logits by tanh (Gemma 2).
    logit_softcap: Positive = None  #: bound of the LM head's logits by tanh (Gemma 2).
    router_score: Annotated[str | None, among(None, "softmax", "sigmoid")] = None  #: of experts.
    router_normalised: bool | None = None  #: the scores of the chosen experts are made to sum to 1.
    router_scale: Positive = None  #: by which their scores are multiplied (`routed_scaling_factor`).
    router_aux_loss: Annotated[float | None, Field(ge=0, le=100)] = None  #: weight of the loss that balances experts.


INPUTS = {"vision": "images", "audio": "sounds", "speech": "speech"}
"""Kind of tower -> what passes it."""


@dataclass(frozen=True)
class TowerSpec:
    """Part of a multimodal model beside its language model: what passes it is not modelled."""

    kind: str  #: `vision`, `audio`, `speech` (what speaks), or `multimodal` where the model does not say
    parameters: int | None = None  #: its own and of what joins it to the language model; None where not known
    of: str = ""  #: model type of the config that has it

    @property
    def inputs(self) -> str:
        """What passes it, in a word."""
        return INPUTS.get(self.kind, "inputs")

    def __str__(self) -> str:
        unknown = f" (parameters of {self.of} are not counted)" if self.of else ""
        count = f" ({self.parameters / 1e6:,.0f} M parameters)" if self.parameters else unknown
        return f"the {self.kind} tower{count}"


@displayed
@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model."""

    name: str  #: slug, or the file's name.
    title: Text  #: name for people.
    family: Annotated[str, Field(min_length=1, max_length=60)]  #: by which models are grouped.
    hidden: Hidden  #: width of the residual stream.
    vocab: Annotated[int, Field(ge=1, le=MAX_VOCAB)]  #: rows of the embedding, before padding for tensor parallelism.
    kinds: tuple[LayerSpec, ...]  #: the distinct kinds of layers.
    pattern: tuple[int, ...]  #: for each layer, first to last, the index of its kind.
    tied_embeddings: bool  #: input embedding and LM head share one matrix.
    #: longest sequence the model is made for [tokens].
    max_sequence: Annotated[int, Field(alias="sequence", ge=1, le=MAX_SEQUENCE)]
    #: rows of a learned position embedding; 0 with rotary positions.
    learned_positions: Annotated[int, Field(ge=0, le=MAX_VOCAB)] = 0
    mtp: MtpSpec | None = None  #: multi-token-prediction modules; counted apart from `pattern`.
    head_bias: bool = False  #: a learned bias on the logits (Phi).
    numerics: NumericsSpec = NumericsSpec()  #: what it computes beside its shape.
    source: Text = ""  #: where the shape is published.
    published_params: Params = None  #: the published exact parameter count, where there is one.
    #: the published count of parameters that one token uses, as its source counts it.
    published_active_params: Params = None
    #: other names.
    aliases: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=120)], ...], Field(max_length=50)] = ()
    #: what a reader of this model's shape has to know.
    notes: Annotated[tuple[Text, ...], Field(max_length=20)] = ()
    towers: tuple[TowerSpec, ...] = ()  #: what the model has beside its layers; no passes of theirs are modelled.
    final_norm: bool = True  #: a norm with weights stands after the last layer.
    at_embedding: tuple[BesideSpec, ...] = ()  #: what it has beside the embedding.
    at_head: tuple[BesideSpec, ...] = ()  #: what it has beside the LM head.

    @property
    def caveats(self) -> tuple[str, ...]:
        """What every number of this model has to be read with where no tower is counted."""
        return self.caveats_with("none")

    @property
    def counted_tower(self) -> int:
        """Parameters of its towers, and of what joins them to the language model, where they are known."""
        return sum(one.parameters or 0 for one in self.towers)

    def caveats_with(self, tower: str) -> tuple[str, ...]:
        """Return what every number has to be read with, by what is counted of towers (`JobSpec.tower`)."""
        estimated = dict.fromkeys(
            STATE_SPACES[kind.state_space.kind]
            for kind in self.trained_kinds
            if kind.state_space is not None and kind.state_space.kind not in TIMED_STATE_SPACES
        )
        found = [f"time of {name} is estimated from its FLOPs and bytes, not from kernels" for name in estimated]
        counted = [one for one in self.towers if one.parameters and tower != "none"]
        left_out = [f"{one} and its {one.inputs}" for one in self.towers if one not in counted]
        if left_out:
            found.insert(0, f"text only: {', and '.join(left_out)} are not in these numbers")
        if counted:
            names, inputs = ", and ".join(map(str, counted)), " and ".join(one.inputs for one in counted)
            memory = f"{names}: in memory as {tower}, on the first stage and whole on each TP rank"
            found.insert(0, f"{memory}; time and activations of {inputs} are not in these numbers")
        return tuple(found)

    @cached_property
    def uncommon(self) -> str:
        """A part that no framework describes in its own configuration; empty where there is none."""
        attentions = [kind.attention for kind in self.trained_kinds if kind.attention is not None]
        states = [kind.state_space for kind in self.trained_kinds if kind.state_space is not None]
        beside = (*self.at_embedding, *self.at_head, *(one for kind in self.trained_kinds for one in kind.beside))
        parts = {
            beside[0].name if beside else "": bool(beside),
            "weights that several layers use": any(kind.reused for kind in self.trained_kinds),
            "attention and a state space side by side": any(kind.attention and kind.state_space for kind in self.kinds),
            "a dense block beside experts": any(kind.mlp and kind.moe for kind in self.kinds),
            "keys of other layers, compressed keys or keys as values": any(
                one.keys != "own" or one.compression or one.query_rank or one.output_rank or one.input_width
                for one in attentions
            ),
            "an indexer without weights": any(one.indexer and not one.indexer.weighted for one in attentions),
            "state spaces of such a kind": any(
                one.kind not in TIMED_STATE_SPACES or one.rank == 0 or one.bias or not one.norm for one in states
            ),
            "no norm behind the last layer": not self.final_norm,
        }
        return next((part for part, there in parts.items() if there), "")

    @property
    def layers(self) -> int:
        """Number of layers, without multi-token-prediction modules."""
        return len(self.pattern)

    @cached_property
    def layer_counts(self) -> tuple[int, ...]:
        """How many layers there are of each kind, in the order of `kinds`."""
        return tuple(self.pattern.count(index) for index in range(len(self.kinds)))

    @cached_property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return any(kind.moe is not None for kind in self.kinds)

    @property
    def mtp_layers(self) -> int:
        """Multi-token-prediction modules of the model, trained or not."""
        return self.mtp.depth if self.mtp else 0

    @property
    def mtp_depth(self) -> int:
        """Multi-token-prediction modules that a training step runs."""
        return self.mtp.depth if self.mtp and self.mtp.trained else 0

    @cached_property
    def trained_kinds(self) -> tuple[LayerSpec, ...]:
        """`kinds`, then those that only the trained multi-token-prediction modules have."""
        extra = self.mtp.layers if self.mtp and self.mtp.trained else ()
        return (*self.kinds, *dict.fromkeys(kind for kind in extra if kind not in self.kinds))

    @cached_property
    def uneven_heads(self) -> bool:
        """Whether keys are wider than values in some layer, as in multi-head latent attention."""
        blocks = [kind.attention for kind in self.trained_kinds if kind.attention is not None]
        return any(block.head_dim != block.value_head_dim for block in blocks)

    @cached_property
    def trained_pattern(self) -> tuple[int, ...]:
        """For each layer that a training step runs the index of its kind in `trained_kinds`."""
        kinds = self.trained_kinds
        module = self.mtp.layers if self.mtp and self.mtp.trained else ()
        return (*self.pattern, *(kinds.index(kind) for kind in module * self.mtp_depth))

    @cached_property
    def trained_counts(self) -> tuple[int, ...]:
        """How many layers a training step runs of each of `trained_kinds`."""
        pattern = self.trained_pattern
        return tuple(pattern.count(index) for index in range(len(self.trained_kinds)))

    @cached_property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """Attention of each kind of layer that has one."""
        return tuple(kind.attention for kind in self.kinds if kind.attention is not None)
