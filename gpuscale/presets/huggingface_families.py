"""What a Hugging Face `model_type` leaves out of its config.json: what its layers are made of, and how it names keys.

One row per model type. The facts are those of the config and model classes of the transformers library (5.24); defaults
of keys that a config.json omits are in `presets/families/transformers.json`, and here where the type is not one of that
library's. tests/test_transformers.py builds every row's class and counts its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Setting = bool | str
"""A fact that holds for the whole family, or the config key (default false) that says so per model; after `!` the
opposite of what the key says."""


@dataclass(frozen=True)
class Pattern:
    """Words of the layers, where the config does not list them: the first word of the cycle for most, the last one for
    some."""

    cycle: tuple[str, ...]  #: repeated over the layers, where no other field says which have the last word.
    every: int = 0  #: the last word in one layer of so many;
    every_key: str = ""  #: key of that number;
    at: int = -1  #: place of that layer among them,
    offset: str = ""  #: and its key.
    listed: str = ""  #: key of a list of the layers that have the last word,
    counted_from: int = 0  #: counted from 0 or 1.
    flags: str = ""  #: key of a list of 0 (last word) and 1;
    otherwise: str = ""  #: word of all layers where that list is missing.
    begin: str = ""  #: key of the first layer that has the last word, as all after it.
    first: tuple[str, ...] = ()  #: words of the first layers, whatever the others have.
    last: str = ""  #: word of the last layer,
    always_last: bool = False  #: also where the words are listed;
    at_least_one: bool = False  #: which has the last word where no other layer has it.
    switch: str = ""  #: key that, when false, gives all layers the first word.
    off_is_last: bool = False  #: it gives them the last word.
    repeats: bool = False  #: a shorter list of the config is repeated.


FULL_, WINDOW_, LINEAR_ = "full_attention", "sliding_attention", "linear_attention"
FULL = Pattern((FULL_,))
WINDOWS = Pattern((WINDOW_,))
INDEXED = Pattern(("indexed_attention",))
UPPER = Pattern((FULL_, WINDOW_), begin="max_window_layers", switch="use_sliding_window")
"""Windows in no layer, in all, none but chosen keys, and windows from layer max_window_layers on (Qwen 2)."""


def every(number: int, key: str = "", **more: Any) -> Pattern:
    """Full attention in one layer of `number`, windows in the others."""
    return Pattern((WINDOW_, FULL_), number, key, **more)


@dataclass(frozen=True)
class Experts:
    """Which layers have routed experts, and how wide these are; a list `mlp_layer_types` goes before."""

    width: str = "moe_intermediate_size"  #: key of the width of one.
    first: int = 0  #: dense layers before the first with experts,
    first_key: str = ""  #: and their key.
    every: str = ""  #: key: experts in the last layer of so many;
    frequency: str = ""  #: in the first of so many, or a list of flags;
    offset: str = ""  #: key of its place among them.
    listed: str = ""  #: key of a list of the layers that have experts.
    dense: str = ""  #: key of a list of those that have none.
    until: str = ""  #: key of the last layer that has them; -1 is the last of all.
    optional: str = ""  #: all layers are dense without a number of experts (`null`) or also with none (`zero`),
    switch: str = ""  #: or where this key is false.
    shared_count: str | int = ""  #: shared experts, as wide as a routed one: their number, or its key;
    shared_least: int = 0  #: fewer than so many are no such model;
    shared_each: str = ""  #: key of the width of one, where it is another.
    shared_width: str = ""  #: key of the width of all shared experts.


@dataclass(frozen=True)
class Family:
    """How one model type is built."""

    title: str  #: family name shown to the user.
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: class defaults beyond those of the transformers class.
    keys: Mapping[str, str] = field(
        default_factory=dict
    )  #: usual name of a key -> this type's, with dots inside tables.
    class_of: str = ""  #: model type whose class defaults hold, where it is another.
    gated: bool = True  #: the MLP has two input projections.
    qkv_bias: Setting = False  #: biases of queries, keys and values.
    output_bias: Setting = False  #: of the output projection.
    mlp_bias: Setting = False  #: of the MLP.
    head_bias: Setting = False  #: of the LM head.
    qk_norm: str = "none"  #: `none`, `head` or `full`; with `qk_norm_key`, only where that key is true.
    qk_norm_key: str | None = None
    #: norms of width hidden per layer, or the key of their number; of two the second counts where blocks are parallel.
    norms: int | tuple[int | str, int | str] = 2
    first_norms: int | None = None  #: those of the first layer, where it has another number.
    norm_bias: Setting = False  #: whether they have a bias.
    norm_switch: str = ""  #: key that, when false, leaves their weights out.
    more_norms: str = ""  #: key that, when true, adds a norm behind each block.
    final_norm: Setting = True  #: a norm with weights stands behind the last layer.
    parallel: Setting = False  #: attention and MLP read the same hidden state.
    layers: Pattern = FULL  #: what mixes tokens in each layer, where `layer_types` does not say.
    words: Mapping[str, str] = field(
        default_factory=dict
    )  #: word of such a list -> what it means, where it is not usual.
    window: str = "sliding_window"  #: key of the length of a window,
    chunks: bool = False  #: which is a chunk that sees no other.
    whole_keys: Mapping[str, str] = field(default_factory=dict)  #: of layers that see all keys: usual name -> own name.
    window_prefix: str = ""  #: of keys of layers with a window, whose heads are their own.
    twice_kv_in_windows: bool = False  #: they have twice the key and value heads.
    multi_head: bool = False  #: as many key and value heads as query heads, whatever a key says.
    one_kv_head: Setting = False  #: a single key and value head.
    value_dim: bool = False  #: values have a width of their own outside latent attention.
    uneven_heads: bool = False  #: heads need not divide the hidden width (which is rounded down).
    shares_keys: bool = False  #: the last `num_kv_shared_layers` layers take keys and values from earlier ones.
    keys_as_values: str = ""  #: key that, when true, makes keys the values where attention is full.
    experts: Experts | None = None
    dense_beside_experts: bool = False  #: layers with experts have a dense block beside them.
    router_bias: bool = False
    correction_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    ffn: str = "intermediate_size"  #: key of the width of the MLP, or `four`, `ratio`, `half`, `lfm2`, `xlstm`, `none`.
    ffn_beside: str = ""  #: the same of a dense block beside experts.
    sinks: str = ""  #: `all`; `window`, where keys say.
    latent: bool = False  #: multi-head latent attention.
    compressed: bool = False  #: attention of DeepSeek-V4.
    square: bool = False  #: the output projection is as wide as the model, so that all heads together must be.
    output_gate: Setting = False  #: a query-wide gate on the attention output.
    state: str = ""  #: reader of the state space, of layers that have one.
    blocks: str = ""  #: `pattern`: every layer is a single block, by a pattern; a letter: all are such blocks.
    mtp_key: str | None = None  #: key of the number of multi-token-prediction modules, where it is not DeepSeek's.
    repeats: str = ""  #: how layers are used more than once: ``, `longcat` or `zamba`.
    beside: tuple[str, ...] = ()  #: what layers have beside their blocks (`huggingface_beside.BESIDE`),
    at_embedding: tuple[str, ...] = ()  #: the embedding,
    at_head: tuple[str, ...] = ()  #: and the LM head (`AT_ENDS`).
    untied: bool = False  #: the class keeps embedding and LM head apart, whatever the config says.
    positions: int | None = None  #: learned positions beyond max_position_embeddings; None without learned ones.
    refused: tuple[str, ...] = ()  #: keys that, when true, change the shape in a way that is not modelled,
    fixed: Mapping[str, int] = field(default_factory=dict)  #: keys that the class takes to have one value,
    equal: Mapping[str, str] = field(default_factory=dict)  #: and keys that must equal another one, or be missing.

    def like(self, title: str, defaults: Mapping[str, Any] | None = None, **facts: Any) -> Family:
        """Return a family that differs from this one in the given class defaults and facts."""
        return replace(self, title=title, defaults={**self.defaults, **(defaults or {})}, **facts)


UNLIMITED = {"max_position_embeddings": 2**20}
"""Sequences of models without positions, whose configs name no longest one."""

TIED = {"tie_word_embeddings": True}

_BIASED = Family("", qkv_bias="attention_bias", output_bias="attention_bias")
_LLAMA = _BIASED.like("llama", mlp_bias="mlp_bias")
_MISTRAL = Family("mistral", layers=WINDOWS)
_QWEN2 = Family("qwen2", qkv_bias=True, layers=UPPER)
_QWEN3 = _QWEN2.like("qwen3", qk_norm="head", qkv_bias="attention_bias", output_bias="attention_bias")
_QWEN_EXPERTS = Experts(every="decoder_sparse_step", dense="mlp_only_layers")
_QWEN3_MOE = _QWEN3.like("qwen3", experts=_QWEN_EXPERTS)
_QWEN3_NEXT = _BIASED.like(
    "qwen3-next", qk_norm="head", shared_gate=True, output_gate=True, state="gdn",
    experts=replace(_QWEN_EXPERTS, shared_width="shared_expert_intermediate_size"),
    layers=Pattern((LINEAR_, FULL_), 4, "full_attention_interval"),
)  # fmt: skip
_QWEN3_5_MOE = _QWEN3_NEXT.like("qwen3.5", mtp_key="mtp_num_hidden_layers")
_DEEPSEEK_EXPERTS = Experts(first_key="first_k_dense_replace", frequency="moe_layer_freq",
                            shared_count="n_shared_experts", optional="null")  # fmt: skip
_DEEPSEEK_V2 = _BIASED.like("deepseek", latent=True, experts=_DEEPSEEK_EXPERTS, refused=("mlp_bias",))
_DEEPSEEK_V3 = _DEEPSEEK_V2.like("deepseek", correction_bias=True, refused=())
_DEEPSEEK = _BIASED.like(
    "deepseek",
    {"vocab_size": 102400, "max_position_embeddings": 2048, "first_k_dense_replace": 0, "n_shared_experts": None},
    experts=_DEEPSEEK_EXPERTS,
)
_GEMMA = _BIASED.like("gemma")
_GEMMA2 = _GEMMA.like("gemma2", norms=4, layers=every(2))
_GEMMA3 = _GEMMA2.like("gemma3", layers=every(6, "sliding_window_pattern"), qk_norm="head")
_GEMMA4 = _GEMMA3.like(
    "gemma4", {"global_head_dim": 512},
    whole_keys={"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"},
    layers=every(6, last=FULL_, always_last=True), shares_keys=True,
    keys_as_values="attention_k_eq_v", ffn="double",
)  # fmt: skip
_OLMO2 = _LLAMA.like("olmo2", qk_norm="full", mlp_bias=False)
_GLM4 = Family("glm4", qkv_bias="attention_bias", norms=4)
_GLM4_MOE = _GLM4.like(
    "glm4.5", norms=2, qk_norm="head", qk_norm_key="use_qk_norm", experts=_DEEPSEEK_EXPERTS, correction_bias=True,
    uneven_heads=True,
)  # fmt: skip
_GPT2 = Family(
    "gpt2",
    gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, ffn="four", multi_head=True,
    positions=0, refused=("add_cross_attention",),
)  # fmt: skip
_GPTJ = _GPT2.like(
    "gptj", qkv_bias=False, output_bias=False, head_bias=True, norms=1, parallel=True, positions=None,
)  # fmt: skip
_PHI = Family(
    "phi",
    gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True, norms=1, norm_bias=True,
    parallel=True, ffn="four", qk_norm="head", qk_norm_key="qk_layernorm", beside=("norm biases",),
)  # fmt: skip
_PERSIMMON = _BIASED.like(
    "persimmon",
    gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, qk_norm="head",
    qk_norm_key="qk_layernorm", beside=("norm biases",), multi_head=True,
)  # fmt: skip
_MAMBA_KEYS = {
    "mamba_num_heads": "mamba_n_heads", "mamba_head_dim": "mamba_d_head", "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state", "conv_kernel": "mamba_d_conv", "chunk_size": "mamba_chunk_size",
    "use_conv_bias": "mamba_conv_bias", "expand": "mamba_expand",
}  # fmt: skip
_BAMBA = _LLAMA.like(
    "bamba", keys=_MAMBA_KEYS, state="mamba2", layers=Pattern((LINEAR_, FULL_), listed="attn_layer_indices"),
)  # fmt: skip
_MAMBA = Family(
    "mamba", UNLIMITED,
    keys={"ssm_state_size": "state_size", "mamba_dt_rank": "time_step_rank", "mamba_proj_bias": "use_bias",
          "mamba_width": "intermediate_size"},
    state="mamba1", blocks="M",
)  # fmt: skip
_GRANITE_MOE = _LLAMA.like("granite", mlp_bias=False, experts=Experts("intermediate_size"))
_MOE_AS_DENSE = Experts("intermediate_size")
_COHERE = _BIASED.like("cohere", norms=1, parallel=True, qk_norm="full", qk_norm_key="use_qk_norm")
_COHERE2 = _COHERE.like("cohere2", qk_norm="none", layers=every(4, "sliding_window_pattern"))
_ERNIE = Family("ernie4.5", qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias")
_EXAONE_MOE_EXPERTS = Experts(first_key="first_k_dense_replace", shared_count="n_shared_experts")
_HUNYUAN = _BIASED.like("hunyuan", qk_norm="head")
_KIMI_EXPERTS = Experts(first=1, first_key="first_k_dense_replace", shared_count="n_shared_experts", optional="null")
_MINIMAX_M3 = Family(
    "minimax",
    keys={"intermediate_size": "dense_intermediate_size", "moe_intermediate_size": "intermediate_size"},
    class_of="minimax_m3_vl_text", qk_norm="head", correction_bias=True,
    experts=Experts(shared_width="shared_intermediate_size", frequency="moe_layer_freq"),
    words={"minimax_m3_sparse": "sparse"},
    layers=Pattern(("minimax_m3_sparse", FULL_), flags="sparse_attention_config.sparse_attention_freq",
                   otherwise=FULL_),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "afmoe": _BIASED.like(
        "afmoe",
        norms=4, qk_norm="head", layers=every(4, "global_attn_every_n_layers"),
        experts=Experts(first=1, first_key="num_dense_layers", shared_count="n_shared_experts"),
        beside=("output gate", "router bias"),
    ),
    "apertus": _BIASED.like("apertus", gated=False, qk_norm="head", beside=("activation",)),
    "apertus1p5_text": _BIASED.like(
        "apertus", gated=False, qk_norm="head", beside=("activation",), equal={"output_vocab_size": "vocab_size"}
    ),
    "arcee": _LLAMA.like("arcee", gated=False),
    "aria_text": _LLAMA.like(
        "aria",
        keys={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_topk",
              "n_shared_experts": "moe_num_shared_experts"},
        mlp_bias=False, experts=Experts("intermediate_size", shared_count="n_shared_experts"), refused=("mlp_bias",),
    ),
    "axk1": _DEEPSEEK_V3.like(
        "a.x", experts=replace(_KIMI_EXPERTS, frequency="moe_layer_freq"), beside=("norm behind experts",)
    ),
    "axk2": _DEEPSEEK_V3.like(
        "a.x", layers=INDEXED, experts=replace(_KIMI_EXPERTS, frequency="moe_layer_freq"),
        beside=("gated queries", "low-rank norms"),
    ),
    "bailing_hybrid": _BIASED.like(
        "ling",
        keys={"head_dim": "qk_rope_head_dim"}, latent=True, correction_bias=True, state="ling",
        experts=_KIMI_EXPERTS, layers=Pattern((LINEAR_, FULL_), 6, "layer_group_size"), beside=("head gate",),
        untied=True,
    ),
    "bailing_moe": _DEEPSEEK.like(
        "ling", {"max_position_embeddings": 16384}, qkv_bias="use_qkv_bias", output_bias="use_bias"
    ),
    "bamba": _BAMBA,
    "beam": _BIASED.like(
        "beam",
        norms=4, qk_norm="head", layers=every(6, last=FULL_), experts=Experts(first=3),
        beside=("output gate", "gate bias"),
    ),
    "biogpt": _GPT2.like("biogpt", positions=2, ffn="intermediate_size"),
    "bitnet": _BIASED.like("bitnet", beside=("inner norms",)),
    "bloom": _GPT2.like("bloom", {"max_position_embeddings": 2048}, positions=None, at_embedding=("layer norm",)),
    "chatglm": Family(
        "chatglm", {"max_position_embeddings": 8192}, qkv_bias="add_qkv_bias", refused=("add_bias_linear",)
    ),
    "codegen": _GPTJ.like("codegen"),
    "cohere": _COHERE,
    "cohere2": _COHERE2,
    "cohere2_moe": _COHERE2.like(
        "cohere2",
        experts=Experts("intermediate_size", first_key="first_k_dense_replace", shared_count="n_shared_experts"),
        refused=("use_qk_norm",),
    ),
    "cohere_compass_text": _COHERE2.like("cohere2", layers=FULL),
    "ctrl": _GPT2.like("ctrl", keys={"intermediate_size": "dff"}, ffn="intermediate_size", head_bias=True,
                       positions=None),
    "cwm": _LLAMA.like("cwm", layers=every(4, at=0), qkv_bias=False, output_bias=False),
    "dbrx": Family(
        "dbrx",
        keys={"num_key_value_heads": "attn_config.kv_n_heads", "intermediate_size": "ffn_config.ffn_hidden_size",
              "num_experts": "ffn_config.moe_num_experts", "num_experts_per_tok": "ffn_config.moe_top_k"},
        defaults={"attn_config": {"kv_n_heads": 1},
                  "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}},
        experts=_MOE_AS_DENSE,
    ),
    "deepseek": _DEEPSEEK,
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3.like("deepseek", layers=INDEXED),
    "deepseek_v4": Family(
        "deepseek",
        {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}},
        sinks="all", correction_bias=True, experts=Experts(shared_count=1), ffn="none", one_kv_head=True,
        compressed=True,
        layers=Pattern(("heavily_compressed_attention", "compressed_sparse_attention"), 2, at=1,
                       first=("heavily_compressed_attention",) * 2),
        beside=("hyper-connections", "compressor"), at_head=("joined streams",), refused=("attention_bias", "mlp_bias"),
    ),
    "diffllama": _BIASED.like("diffllama", beside=("differential",)),
    "dots3_note_text": _DEEPSEEK_V3.like(
        "dots", layers=Pattern((WINDOW_, "indexed_attention"), 4, at=1, first=("indexed_attention",) * 2),
        experts=replace(_KIMI_EXPERTS, frequency="moe_layer_freq", shared_each="shared_experts_intermediate_size"),
        beside=("head gate", "rotary norm"),
    ),
    "doge": _LLAMA.like("doge", qk_norm="head", beside=("dynamic mask",), refused=("is_moe",)),
    "dots1": _DEEPSEEK.like("dots1", qk_norm="head", correction_bias=True,
                            layers=replace(UPPER, switch=""), refused=()),
    "emu3_text_model": _LLAMA.like("emu3"),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE.like(
        "ernie4.5",
        keys={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k",
              "n_shared_experts": "moe_num_shared_experts"},
        experts=Experts(first_key="moe_layer_start_index", until="moe_layer_end_index", every="moe_layer_interval",
                        shared_count="n_shared_experts"),
        beside=("router bias",), refused=("use_bias",),
    ),
    "exaone": _LLAMA.like("exaone"),
    "exaone4": Family("exaone4", qk_norm="head", layers=every(4, "sliding_window_pattern")),
    "exaone_moe": Family(
        "exaone", qk_norm="head", layers=every(4, "sliding_window_pattern"), experts=_EXAONE_MOE_EXPERTS,
        correction_bias=True,
    ),
    "falcon": Family(
        "falcon",
        gated=False, qkv_bias="bias", output_bias="bias", mlp_bias="bias", norm_bias=True, parallel="parallel_attn",
        norms=(2, "num_ln_in_parallel_attn"), ffn="four",
    ),
    "falcon_h1": _BAMBA.like(
        "falcon-h1", layers=Pattern(("hybrid",)), refused=("projectors_bias", "mamba_proj_bias"),
    ),
    "falcon_mamba": _MAMBA.like("falcon-mamba"),
    "flex_olmo": _OLMO2.like("olmo2", experts=_MOE_AS_DENSE),
    "flint": _BIASED.like(
        "flint", {"mlp_only_layers": [0, 1]},
        qk_norm="head", sinks="all", experts=replace(_QWEN_EXPERTS, shared_width="shared_expert_intermediate_size"),
        layers=Pattern((WINDOW_, FULL_), 4, at=1, first=(FULL_, FULL_), last=FULL_),
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gemma3n_text": _GEMMA3.like(
        "gemma3n",
        layers=every(5), shares_keys=True, beside=("altup", "per-layer input"),
        at_embedding=("per-layer tables", "streams"), at_head=("streams",),
    ),
    "gemma4_text": _GEMMA4.like(
        "gemma4",
        keys={"num_experts_per_tok": "top_k_experts"}, experts=Experts(switch="enable_moe_block"),
        dense_beside_experts=True,
        beside=("per-layer input", "experts beside"), at_embedding=("per-layer tables",),
    ),
    "gemma4_unified_text": _GEMMA4,
    "glm": _GLM4.like("glm", norms=2),
    "glm4": _GLM4,
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": _DEEPSEEK_V3.like("glm4.7", experts=_KIMI_EXPERTS),
    "glm4v_moe_text": _GLM4_MOE.like("glm4.5v", qk_norm="none"),
    "glm4v_text": _GLM4.like("glm4.1v", qkv_bias=True),
    "glm_moe_dsa": _DEEPSEEK_V3.like("glm5", layers=INDEXED),
    "gpt-sw3": _GPT2.like("gpt2", class_of="gpt2"),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2.like("gpt_bigcode", one_kv_head="multi_query"),
    "gpt_neo": _GPT2.like(
        "gpt-neo",
        keys={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers", "layer_types": "attention_layers"},
        qkv_bias=False, window="window_size", layers=Pattern(("global", "local")),
    ),
    "gptj": _GPTJ,
    "gpt_neox": _BIASED.like(
        "gpt-neox", gated=False, mlp_bias=True, norm_bias=True, parallel="use_parallel_residual", multi_head=True
    ),
    "gpt_neox_japanese": Family(
        "gpt-neox",
        keys={"expansion_ratio": "intermediate_multiple_size"}, gated=False, norm_bias=True, multi_head=True,
        ffn="ratio", beside=("last output bias",),
    ),
    "gpt_oss": _BIASED.like(
        "gpt-oss", layers=every(2), experts=_MOE_AS_DENSE, router_bias=True, expert_bias=True, sinks="all"
    ),
    "granite": _LLAMA.like("granite"),
    "granite_swa": _LLAMA.like("granite", layers=every(4, at=0), sinks="all"),
    "granitemoe": _GRANITE_MOE,
    "granitemoe_swa": _GRANITE_MOE.like(
        "granite", layers=every(4, at=0), sinks="all",
        experts=Experts("intermediate_size", shared_width="shared_intermediate_size"),
    ),
    "granitemoehybrid": _BAMBA.like(
        "granite",
        mlp_bias=False, layers=Pattern((LINEAR_,)), ffn="shared_intermediate_size",
        experts=Experts("intermediate_size", shared_width="shared_intermediate_size", optional="zero"),
    ),
    "granitemoeshared": _GRANITE_MOE.like(
        "granite", experts=Experts("intermediate_size", shared_width="shared_intermediate_size")
    ),
    "helium": _LLAMA.like("helium", output_bias=False, square=True),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _HUNYUAN.like(
        "hunyuan",
        keys={"num_experts_per_tok": "moe_topk"},
        experts=Experts("intermediate_size", shared_count=1),
    ),
    "hy_v3": _HUNYUAN.like(
        "hunyuan", experts=Experts(first=1, shared_count="n_shared_experts", shared_least=1), correction_bias=True,
        refused=("mlp_bias",),
    ),
    "hy_v4": _DEEPSEEK_V3.like(
        "hunyuan", {"index_topk_freq": 4}, layers=INDEXED, sinks="all", experts=_KIMI_EXPERTS,
        beside=("output gate", "hyper-connections"), at_head=("joined streams",),
    ),
    "hyperclovax": _LLAMA.like("hyperclovax", more_norms="use_post_norm"),
    "inkling_text": Family(
        "inkling",
        keys={"sliding_window": "sliding_window_size"}, qk_norm="head", window_prefix="swa_",
        experts=Experts(shared_count="n_shared_experts"),
        layers=Pattern(("hybrid_sliding", "hybrid"), 6), words={"hybrid_sliding": "window", "hybrid": "full"},
        beside=("relative", "expert sinks"), at_embedding=("norm",),
    ),
    "internlm2": _LLAMA.like("internlm2", class_of="llama", qkv_bias="bias", output_bias="bias", mlp_bias=False),
    "internlm3": _LLAMA.like(
        "internlm3", keys={"attention_bias": "qkv_bias", "mlp_bias": "bias"}, qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "iquestcoder": _LLAMA.like("iquestcoder"),
    "jais2": _LLAMA.like("jais2", gated=False, norm_bias=True),
    "jamba": Family(
        "jamba",
        {"mamba_norms": True}, keys=_MAMBA_KEYS, state="mamba1",
        layers=Pattern((LINEAR_, FULL_), 8, "attn_layer_period", offset="attn_layer_offset"),
        experts=Experts("intermediate_size", frequency="expert_layer_period", offset="expert_layer_offset"),
    ),
    "kimi_linear": Family(
        "kimi",
        latent=True, experts=_KIMI_EXPERTS, correction_bias=True, state="kda",
        layers=Pattern((LINEAR_, FULL_), 4, at=0, first=(LINEAR_,), listed="linear_attn_config.full_attn_layers",
                       counted_from=1),
        untied=True, refused=("attention_bias", "mla_use_output_gate"),
    ),
    "kimi_k2": _DEEPSEEK_V3.like("kimi", class_of="deepseek_v3"),
    "kolibri1": _QWEN3.like(
        "kolibri", norms=4, qkv_bias=False, output_bias=False, layers=every(5),
        experts=Experts(shared_width="shared_expert_intermediate_size"),
    ),
    "laguna": _BIASED.like(
        "laguna",
        keys={"num_attention_heads": "num_attention_heads_per_layer"},
        qk_norm="head",
        experts=Experts(first=1, shared_width="shared_expert_intermediate_size"), beside=("either gate", "router bias"),
    ),
    "lara_mini": _QWEN3_NEXT.like(
        "lara", shared_gate=False, output_gate=False,
        experts=Experts(shared_width="shared_expert_intermediate_size"),
        layers=Pattern((LINEAR_, WINDOW_, LINEAR_, FULL_, WINDOW_)),
    ),
    "lfm2": Family(
        "lfm2", qk_norm="head", ffn="lfm2", state="conv",
        layers=Pattern(("conv", FULL_), listed="full_attn_idxs", otherwise=FULL_),
    ),
    "lfm2_moe": Family(
        "lfm2", qk_norm="head", state="conv", correction_bias=True, layers=Pattern(("conv", FULL_)),
        experts=Experts(first_key="num_dense_layers"),
    ),
    "lfm3": _BIASED.like(
        "lfm3", qk_norm="head", state="conv", more_norms="use_sandwich_norm",
        layers=Pattern((WINDOW_, "conv", FULL_, "conv"), first=("conv",)), beside=("head gate",),
    ),
    "llama": _LLAMA,
    "llama4_text": _BIASED.like(
        "llama4",
        layers=Pattern(("chunked_attention", FULL_), 4, "no_rope_layer_interval", flags="no_rope_layers"),
        window="attention_chunk_size", chunks=True, ffn="intermediate_size_mlp",
        experts=Experts("intermediate_size", every="interleave_moe_layer_step", listed="moe_layers", shared_count=1),
    ),
    "longcat_flash": _DEEPSEEK_V3.like(
        "longcat",
        keys={"num_hidden_layers": "num_layers", "num_experts_per_tok": "moe_topk", "num_experts": "n_routed_experts",
              "intermediate_size": "ffn_hidden_size", "moe_intermediate_size": "expert_ffn_hidden_size"},
        experts=Experts(), repeats="longcat", beside=("zero experts",),
    ),
    "mamba": _MAMBA,
    "mamba2": _MAMBA.like(
        "mamba2",
        keys={"ssm_state_size": "state_size", "mamba_num_heads": "num_heads", "mamba_head_dim": "head_dim",
              "mamba_proj_bias": "use_bias", "mamba_expand": "expand"},
        state="mamba2",
    ),
    "mellum": _QWEN3.like("mellum", layers=FULL, experts=Experts()),
    "mimo_v2_flash": Family(
        "mimo",
        {"n_shared_experts": None}, qkv_bias="attention_bias", value_dim=True,
        window_prefix="swa_", twice_kv_in_windows=True, sinks="window", correction_bias=True,
        experts=replace(_DEEPSEEK_EXPERTS, first=1),
        layers=Pattern((WINDOW_, FULL_), 6, first=(FULL_,), flags="hybrid_layer_pattern"),
    ),
    "minicpm3": _DEEPSEEK_V2.like("minicpm", experts=None),
    "minimax": Family(
        "minimax", experts=_MOE_AS_DENSE, state="lightning", layers=Pattern((FULL_, LINEAR_)),
    ),
    "minimax_m2": Family("minimax_m2", qk_norm="full", experts=_MOE_AS_DENSE, correction_bias=True),
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_vl_text": _MINIMAX_M3,
    "ministral": _MISTRAL.like("mistral"),
    "ministral3": _MISTRAL.like("mistral"),
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL.like("mixtral", experts=_MOE_AS_DENSE),
    "modernbert-decoder": _BIASED.like(
        "modernbert",
        window="local_attention", mlp_bias="mlp_bias", norm_bias="norm_bias", head_bias="decoder_bias",
        layers=every(3, "global_attn_every_n_layers", at=0), at_embedding=("norm",), at_head=("head dense",),
        multi_head=True, first_norms=1,
    ),
    "mpt": Family(
        "mpt", gated=False, ffn="ratio", multi_head=True, defaults={"max_position_embeddings": 2048},
        refused=("!no_bias",), fixed={"expansion_ratio": 4},
    ),
    "nanochat": _BIASED.like("nanochat", gated=False, norms=0, final_norm=False),
    "nemotron": _BIASED.like("nemotron", gated=False, mlp_bias="mlp_bias", norm_bias=True),
    "nemotron_h": Family(
        "nemotron-h",
        gated=False, untied=True, correction_bias=True,
        experts=Experts(shared_width="moe_shared_expert_intermediate_size", shared_least=1),
        state="mamba2", blocks="pattern", mtp_key="num_nextn_predict_layers",
        refused=("use_bias", "mamba_proj_bias", "mlp_bias", "attention_bias"),
    ),
    "olmo": _BIASED.like("olmo", norms=0, final_norm=False),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2.like("olmo3", layers=every(4)),
    "olmo_hybrid": _OLMO2.like(
        "olmo3", state="gdn", layers=Pattern((LINEAR_, FULL_), 4, at_least_one=True),
    ),
    "olmoe": _BIASED.like("olmoe", qk_norm="full", experts=_MOE_AS_DENSE),
    "openai-gpt": _GPT2.like("gpt", final_norm=False),
    "opt": _GPT2.like(
        "opt",
        keys={"intermediate_size": "ffn_dim"}, ffn="intermediate_size", positions=2, qkv_bias="enable_bias",
        output_bias="enable_bias", mlp_bias="enable_bias", norm_switch="layer_norm_elementwise_affine",
        final_norm="do_layer_norm_before", equal={"word_embed_proj_dim": "hidden_size"},
        refused=("_remove_final_layer_norm",),
    ),
    "paddleocr_vl_text": _ERNIE,
    "persimmon": _PERSIMMON,
    "phi": _PHI,
    "phi-msft": _PHI.like("phi", {"intermediate_size": None}, class_of="phi"),
    "phi3": Family("phi3", layers=WINDOWS),
    "phi4_multimodal": Family("phi4", layers=WINDOWS),
    "phimoe": _BIASED.like(
        "phimoe", head_bias="lm_head_bias", norm_bias=True, layers=WINDOWS, experts=_MOE_AS_DENSE
    ),
    "qwen2": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": _QWEN2.like(
        "qwen2",
        shared_gate=True, qkv_bias="qkv_bias",
        experts=replace(_QWEN_EXPERTS, shared_width="shared_expert_intermediate_size"),
        layers=Pattern((WINDOW_, FULL_), begin="max_window_layers", switch="use_sliding_window", off_is_last=True),
    ),
    "qwen2_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_text": _QWEN3_5_MOE.like("qwen3.5", experts=None, shared_gate=False),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_vl_text": _QWEN3,
    "recurrent_gemma": _BIASED.like(
        "recurrentgemma", UNLIMITED,
        keys={"sliding_window": "attention_window_size", "layer_types": "block_types"}, window="sliding_window",
        output_bias=True, mlp_bias=True, ffn="half", state="rglru",
        layers=Pattern(("recurrent", "recurrent", "attention"), repeats=True),
    ),
    "rwkv": Family(
        "rwkv",
        keys={"max_position_embeddings": "context_length"}, gated=False, ffn="four", state="rwkv4", norm_bias=True,
        layers=Pattern((LINEAR_,)), beside=("channel mixing",), at_embedding=("layer norm",),
    ),
    "sarvam_mla": _DEEPSEEK_V3.like("sarvam", keys={"head_dim": "qk_rope_head_dim"}),
    "sarvam_moe": _GLM4_MOE.like("sarvam", keys={}),
    "seed_oss": _BIASED.like("seed-oss", output_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "smollm3": _BIASED.like(
        "smollm3", mlp_bias="mlp_bias",
        layers=Pattern((FULL_, WINDOW_), 4, "no_rope_layer_interval", flags="no_rope_layers",
                       switch="use_sliding_window"),
    ),
    "solar_open": _GLM4_MOE.like("solar", experts=Experts(shared_count="n_shared_experts"), output_bias=False,
                                 qk_norm="none"),
    "stablelm": Family(
        "stablelm", qkv_bias="use_qkv_bias", norm_bias=True, norms=(2, 1), parallel="use_parallel_residual",
        qk_norm="full", qk_norm_key="qk_layernorm",
    ),
    "starcoder2": Family(
        "starcoder2", gated=False, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", norm_bias=True,
        layers=WINDOWS,
    ),
    "vaultgemma": _GEMMA2.like("vaultgemma", norms=2),
    "xglm": _GPT2.like(
        "xglm",
        keys={"num_attention_heads": "attention_heads", "hidden_size": "d_model", "num_hidden_layers": "num_layers",
              "intermediate_size": "ffn_dim"},
        ffn="intermediate_size", positions=None,
    ),
    "xlstm": Family(
        "xlstm", UNLIMITED, ffn="xlstm", untied=True, state="mlstm", layers=Pattern((LINEAR_,)),
        refused=("use_bias", "!add_out_norm"),
        equal={"embedding_dim": "hidden_size", "num_blocks": "num_hidden_layers"},
    ),
    "youtu": _DEEPSEEK_V2.like("youtu", experts=None),
    "zamba": _BIASED.like(
        "zamba",
        keys=_MAMBA_KEYS, state="mamba1", repeats="zamba",
        layers=Pattern((LINEAR_, "hybrid"), 6, "attn_layer_period", offset="attn_layer_offset"),
        refused=("!tie_word_embeddings",),
    ),
    "zamba2": _BIASED.like(
        "zamba2",
        keys={"head_dim": "attention_head_dim", "mamba_num_heads": "n_mamba_heads", "mamba_head_dim": "mamba_headdim",
              "n_groups": "mamba_ngroups",
              "ssm_state_size": "mamba_d_state", "conv_kernel": "mamba_d_conv"},
        state="mamba2", repeats="zamba", layers=Pattern((LINEAR_,)),
        refused=("use_shared_attention_adapter", "add_bias_linear", "!tie_word_embeddings", "!use_conv_bias"),
        fixed={"num_mem_blocks": 1},
    ),
}  # fmt: skip

TEXT_TYPES = {
    "cohere_compass": "cohere_compass_text", "emu3": "emu3_text_model", "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text",
    "inkling": "inkling_text", "dots3_note": "dots3_note_text", "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3_vl_text", "mistral3": "mistral",
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text", "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text", "kimi_k25": "deepseek_v3", "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text", "glm4v": "glm4v_text", "glm46v": "glm4v_text", "glm4v_moe": "glm4v_moe_text",
    "paddleocr_vl": "paddleocr_vl_text", "paligemma": "gemma", "idefics3": "llama", "smolvlm": "llama",
}  # fmt: skip
"""Multimodal model type -> model type of its text backbone, where the nested text config does not say."""

UNSUPPORTED = {
    "compressed or block-sparse attention": ("deepseek_ref", "phi3small"),
    "cross-attention layers": ("mllama", "mllama_text_model", "git"),
    "attention whose heads differ between layers": ("step3p7",),
    "layers that each have a shape of their own (block_configs)": ("nemotron-nas",),
    "code of its own, without which its config does not tell the shape": ("baichuan", "mimo", "minicpm", "qwen"),
    "bidirectional encoding of whole texts (BERT and its kin)": (
        "albert", "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "deberta", "deberta-v2",
        "distilbert", "electra", "ernie", "megatron-bert", "modernbert", "mpnet", "rembert", "roberta",
        "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    ),
    "an encoder beside its decoder (sequence to sequence)": (
        "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "longt5", "m2m_100", "marian",
        "mbart", "mt5", "mvp", "pegasus", "pegasus_x", "plbart", "prophetnet", "speech_to_text", "t5", "t5gemma",
        "trocr", "umt5", "whisper",
    ),
    "permuted or hashed attention": ("reformer", "xlnet"),
    "several streams of sound or bytes": ("blt", "moshi", "musicgen", "musicgen_melody"),
    "layers that are passed in loops": ("dory", "hrm_text", "inkling2_loop_text"),
    "attention over its own residuals": ("inkling2_text",),
    "attention that is a mixture of experts": ("jetmoe",),
    "prompts and segments of its own": ("cpmant",),
    "convolutions inside its attention and a router of several layers": ("zaya",),
    "images cut up by an embedding of its own": ("fuyu",),
    "embeddings of n-grams": ("qwen4_exp", "qwen4_exp_text"),
    "no text of its own to learn, because it drafts for another": ("gemma4_assistant", "gemma4_unified_assistant"),
    "a tower for images or sounds alone, and no language model": (
        "siglip", "siglip2", "siglip_vision_model", "siglip2_vision_model", "clip", "clip_vision_model", "pixtral",
        "vit", "dinov2", "dinov3_vit", "intern_vit_6b", "internvl_vision", "llama4_vision_model", "qwen2_vl_vision",
        "qwen2_5_vl_vision", "qwen3_vl_vision", "qwen2_audio_encoder", "wav2vec2", "hubert",
    ),
}  # fmt: skip
"""Why a known model type is not read -> those model types."""
