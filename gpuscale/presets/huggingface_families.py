"""What a Hugging Face `model_type` leaves out of its config.json: class defaults, biases, norms, windows.

One row per model type. The facts are those of the config and model classes of the transformers library (5.x): a key
that a config.json omits has the class's default, which differs between families (tied embeddings above all).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Setting = bool | str
"""A fact that holds for the whole family, or the config key (default false) that says so per model."""


@dataclass(frozen=True)
class Family:
    """How one model type is built."""

    title: str  #: family name shown to the user.
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: class defaults of keys that a config may omit.
    gated: bool = True  #: the MLP has two input projections.
    qkv_bias: Setting = False  #: biases of queries, keys and values.
    output_bias: Setting = False  #: of the output projection.
    mlp_bias: Setting = False  #: of the MLP.
    head_bias: Setting = False  #: of the LM head.
    qk_norm: str = "none"  #: `none`, `head` or `full`; with `qk_norm_key`, only where that key is true.
    qk_norm_key: str | None = None
    norms: int = 2  #: norms of width hidden per layer.
    norm_bias: bool = False  #: whether they have a bias.
    parallel: bool = False  #: attention and MLP read the same hidden state.
    #: which layers have a window: `none`, `all` (where sliding_window is set), `upper` (Qwen: layers from
    #: max_window_layers on, if use_sliding_window), `chunks` (Llama 4), or `pattern` (all but every n-th).
    windows: str = "none"
    full_every: int = 0  #: the n of `pattern` and `chunks` where the config does not say.
    experts: str = ""  #: layout of the experts: ``, `all`, `qwen`, `deepseek`, `llama4`, `nemotron`.
    router_bias: bool = False
    correction_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    sinks: bool = False
    latent: bool = False  #: multi-head latent attention.
    output_gate: Setting = False  #: a query-wide gate on the attention output.
    indexer: bool = False  #: DeepSeek sparse attention.
    hybrid: str = ""  #: reader of a model with state spaces: ``, `nemotron_h`, `qwen` or `kimi`.
    mtp_key: str | None = None  #: key of the number of multi-token-prediction modules, where it is not DeepSeek's.
    refused: tuple[str, ...] = ()  #: keys that, when true, change the shape in a way that is not modelled.

    def like(self, title: str, defaults: Mapping[str, Any] | None = None, **facts: Any) -> Family:
        """Return a family that differs from this one in the given class defaults and facts."""
        return replace(self, title=title, defaults={**self.defaults, **(defaults or {})}, **facts)


TIED = {"tie_word_embeddings": True}

_BIASED = Family("", qkv_bias="attention_bias", output_bias="attention_bias")
_LLAMA = _BIASED.like(
    "llama",
    {"vocab_size": 32000, "max_position_embeddings": 2048, "hidden_size": 4096, "intermediate_size": 11008,
     "num_hidden_layers": 32, "num_attention_heads": 32},
    mlp_bias="mlp_bias",
)  # fmt: skip
_MISTRAL = Family(
    "mistral",
    {**_LLAMA.defaults, "intermediate_size": 14336, "max_position_embeddings": 131072, "num_key_value_heads": 8,
     "sliding_window": 4096},
    windows="all",
)  # fmt: skip
_QWEN2 = Family(
    "qwen2",
    {"vocab_size": 151936, "max_position_embeddings": 32768, "hidden_size": 4096, "intermediate_size": 22016,
     "num_hidden_layers": 32, "num_attention_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    qkv_bias=True, windows="upper",
)  # fmt: skip
_QWEN3 = _QWEN2.like(
    "qwen3", {"head_dim": 128}, qk_norm="head", qkv_bias="attention_bias", output_bias="attention_bias"
)
_QWEN3_MOE = replace(_QWEN3, defaults=_QWEN2.defaults, experts="qwen").like(
    "qwen3",
    {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
     "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
)  # fmt: skip
_QWEN3_NEXT = _BIASED.like(
    "qwen3-next",
    {"vocab_size": 151936, "max_position_embeddings": 32768, "hidden_size": 2048, "intermediate_size": 5632,
     "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
     "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
     "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
     "shared_expert_intermediate_size": 512},
    qk_norm="head", experts="qwen", shared_gate=True, output_gate=True, hybrid="qwen",
)  # fmt: skip
_QWEN3_5_MOE = _QWEN3_NEXT.like(
    "qwen3.5",
    {"vocab_size": 248320, "num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8},
    mtp_key="mtp_num_hidden_layers",
)
_DEEPSEEK_V2 = Family(
    "deepseek",
    {"vocab_size": 102400, "max_position_embeddings": 2048, "hidden_size": 4096, "intermediate_size": 11008,
     "num_hidden_layers": 32, "num_attention_heads": 32, "first_k_dense_replace": 0, "kv_lora_rank": 512,
     "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2, "qk_nope_head_dim": 128,
     "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 1407},
    latent=True, experts="deepseek", refused=("attention_bias", "mlp_bias"),
)  # fmt: skip
_DEEPSEEK_V3 = _DEEPSEEK_V2.like(
    "deepseek",
    {"vocab_size": 129280, "max_position_embeddings": 4096, "hidden_size": 7168, "intermediate_size": 18432,
     "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
     "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_intermediate_size": 2048},
    correction_bias=True, refused=("attention_bias",),
)  # fmt: skip
_DEEPSEEK = _BIASED.like(
    "deepseek",
    {"vocab_size": 102400, "max_position_embeddings": 2048, "first_k_dense_replace": 0, "n_shared_experts": None},
    experts="deepseek",
)
_GEMMA = _BIASED.like(
    "gemma",
    {**TIED, "vocab_size": 256000, "max_position_embeddings": 8192, "hidden_size": 3072, "intermediate_size": 24576,
     "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
)  # fmt: skip
_GEMMA2 = _GEMMA.like(
    "gemma2",
    {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
     "num_key_value_heads": 4, "sliding_window": 4096},
    norms=4, windows="pattern", full_every=2,
)  # fmt: skip
_OLMO2 = _LLAMA.like("olmo2", {"vocab_size": 50304}, qk_norm="full", mlp_bias=False)
_GLM4 = Family(
    "glm4",
    {"vocab_size": 151552, "max_position_embeddings": 131072, "hidden_size": 4096, "intermediate_size": 13696,
     "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
     "attention_bias": True},
    qkv_bias="attention_bias", norms=4,
)  # fmt: skip
_GPT2 = Family(
    "gpt2",
    {**TIED, "vocab_size": 50257, "max_position_embeddings": 1024, "hidden_size": 768, "num_hidden_layers": 12,
     "num_attention_heads": 12, "intermediate_size": None, "scale_attn_weights": True},
    gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, refused=("add_cross_attention",),
)  # fmt: skip
_PHI = Family(
    "phi",
    {"vocab_size": 51200, "max_position_embeddings": 2048, "intermediate_size": None},
    gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True, norms=1, norm_bias=True,
    parallel=True, refused=("qk_layernorm",),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "arcee": _LLAMA.like("arcee", gated=False),
    "bailing_moe": _DEEPSEEK.like(
        "ling", {"max_position_embeddings": 16384}, qkv_bias="use_qkv_bias", output_bias="use_bias"
    ),
    "chatglm": Family(
        "chatglm", {"max_position_embeddings": 8192}, qkv_bias="add_qkv_bias", refused=("add_bias_linear",)
    ),
    "cohere": _BIASED.like(
        "cohere", {**TIED, "vocab_size": 256000, "max_position_embeddings": 8192}, norms=1, parallel=True,
        refused=("use_qk_norm",),
    ),
    "cohere2": _BIASED.like(
        "cohere2",
        {**TIED, "vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window": 4096},
        norms=1, parallel=True, windows="pattern", full_every=4,
    ),
    "dbrx": Family("dbrx", {"vocab_size": 32000, "max_position_embeddings": 2048}, experts="all"),
    "deepseek": _DEEPSEEK,
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3.like(
        "deepseek",
        {"max_position_embeddings": 163840, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048},
        indexer=True,
    ),
    "dots1": _DEEPSEEK.like(
        "dots1",
        {"vocab_size": 152064, "moe_intermediate_size": 1408, "sliding_window": 4096, "max_window_layers": 62,
         "use_sliding_window": True},
        qk_norm="head", correction_bias=True, windows="upper",
    ),
    "exaone4": Family(
        "exaone4",
        {"vocab_size": 102400, "max_position_embeddings": 2048, "num_key_value_heads": 32, "sliding_window": 4096},
        qk_norm="head", windows="pattern", full_every=4,
    ),
    "falcon": Family(
        "falcon",
        {**TIED, "vocab_size": 65024, "max_position_embeddings": 2048, "multi_query": True, "parallel_attn": True,
         "intermediate_size": None, "num_key_value_heads": None},
        gated=False, qkv_bias="bias", output_bias="bias", mlp_bias="bias", norm_bias=True,
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2.like(
        "gemma3", {"vocab_size": 262208, "max_position_embeddings": 131072}, full_every=6, qk_norm="head"
    ),
    "glm": _GLM4.like("glm", norms=2),
    "glm4": _GLM4,
    "glm4_moe": Family(
        "glm4.5",
        {"vocab_size": 151552, "max_position_embeddings": 131072, "hidden_size": 4096, "intermediate_size": 10944,
         "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8, "moe_intermediate_size": 1408,
         "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "first_k_dense_replace": 1},
        qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm", experts="deepseek", correction_bias=True,
    ),
    "glm_moe_dsa": _DEEPSEEK_V3.like(
        "glm5",
        {"vocab_size": 154880, "max_position_embeddings": 202752, "hidden_size": 6144, "intermediate_size": 12288,
         "num_hidden_layers": 78, "num_attention_heads": 64, "q_lora_rank": 2048, "qk_nope_head_dim": 192,
         "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048},
        indexer=True,
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2.like("gpt_bigcode", {"multi_query": True}),
    "gptj": Family(
        "gptj",
        {"vocab_size": 50400, "max_position_embeddings": 2048, "intermediate_size": None},
        gated=False, mlp_bias=True, head_bias=True, norms=1, norm_bias=True, parallel=True,
    ),
    "gpt_neox": _BIASED.like(
        "gpt-neox",
        {"vocab_size": 50432, "max_position_embeddings": 2048, "attention_bias": True, "use_parallel_residual": True},
        gated=False, mlp_bias=True, norm_bias=True,
    ),
    "gpt_oss": _BIASED.like(
        "gpt-oss",
        {"vocab_size": 201088, "max_position_embeddings": 131072, "head_dim": 64, "num_key_value_heads": 8,
         "sliding_window": 128, "num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": True},
        windows="pattern", full_every=2, experts="all", router_bias=True, expert_bias=True, sinks=True,
    ),
    "granite": _LLAMA.like("granite"),
    "granitemoe": _LLAMA.like(
        "granite", {"num_local_experts": 8, "num_experts_per_tok": 2}, experts="all", mlp_bias=False
    ),
    "internlm2": _LLAMA.like("internlm2", qkv_bias="bias", output_bias="bias", mlp_bias=False),
    "kimi_linear": Family(
        "kimi",
        {"vocab_size": 163840, "max_position_embeddings": 1048576, "intermediate_size": 9216,
         "moe_intermediate_size": 1024, "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8,
         "first_k_dense_replace": 1, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "v_head_dim": 128},
        latent=True, experts="deepseek", correction_bias=True, hybrid="kimi",
        refused=("attention_bias", "mla_use_output_gate"),
    ),
    "kimi_k2": _DEEPSEEK_V3.like("kimi"),
    "llama": _LLAMA,
    "llama4_text": _BIASED.like(
        "llama4",
        {"vocab_size": 202048, "max_position_embeddings": 131072, "hidden_size": 5120, "intermediate_size": 8192,
         "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
         "num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 1, "num_local_experts": 16,
         "interleave_moe_layer_step": 1, "attention_chunk_size": 8192},
        windows="chunks", full_every=4, experts="llama4",
    ),
    "mimo_v2_flash": Family(
        "mimo",
        {"vocab_size": 152576, "max_position_embeddings": 131072, "n_shared_experts": None},
        experts="deepseek", correction_bias=True, refused=("attention_bias",),
    ),
    "minimax_m2": Family(
        "minimax",
        {"vocab_size": 200064, "max_position_embeddings": 196608, "head_dim": 128, "num_key_value_heads": 8,
         "num_local_experts": 256, "num_experts_per_tok": 8},
        qk_norm="full", experts="all", correction_bias=True,
    ),
    "ministral3": _MISTRAL.like(
        "mistral",
        {"vocab_size": 131072, "max_position_embeddings": 262144, "head_dim": 128, "num_hidden_layers": 34,
         "sliding_window": None},
    ),
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL.like(
        "mixtral", {"sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2}, experts="all"
    ),
    "mpt": Family("mpt", {**TIED, "vocab_size": 50368, "max_position_embeddings": 2048, "no_bias": True}, gated=False),
    "nemotron": _BIASED.like(
        "nemotron",
        {"vocab_size": 256000, "max_position_embeddings": 4096},
        gated=False, mlp_bias="mlp_bias", norm_bias=True,
    ),
    "nemotron_h": Family(
        "nemotron-h",
        {"vocab_size": 131072, "max_position_embeddings": 4096, "hidden_size": 4096, "num_key_value_heads": 8,
         "num_attention_heads": 32, "head_dim": 128, "intermediate_size": 21504, "ssm_state_size": 128,
         "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688},
        gated=False, experts="nemotron", correction_bias=True, hybrid="nemotron_h",
        refused=("use_bias", "mamba_proj_bias", "mlp_bias"),
    ),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2.like("olmo3", {"sliding_window": 4096}, windows="pattern", full_every=4),
    "olmoe": _BIASED.like(
        "olmoe",
        {"vocab_size": 50304, "max_position_embeddings": 4096, "num_local_experts": 64, "num_experts_per_tok": 8},
        qk_norm="full", experts="all",
    ),
    "phi": _PHI,
    "phi-msft": _PHI,
    "phi3": Family(
        "phi3", {"vocab_size": 32064, "max_position_embeddings": 4096, "sliding_window": None}, windows="all"
    ),
    "phimoe": _BIASED.like(
        "phimoe",
        {"vocab_size": 32064, "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": None,
         "num_local_experts": 16, "num_experts_per_tok": 2},
        head_bias="lm_head_bias", norm_bias=True, windows="all", experts="all",
    ),
    "qwen2": _QWEN2,
    "qwen2_5_omni_text": replace(_QWEN2, defaults={}),
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": _QWEN2.like(
        "qwen2",
        {"qkv_bias": True, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
         "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
         "shared_expert_intermediate_size": 5632},
        experts="qwen", shared_gate=True, qkv_bias="qkv_bias",
    ),
    "qwen2_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_text": _QWEN3_5_MOE.like(
        "qwen3.5",
        {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_key_value_heads": 4},
        experts="", shared_gate=False,
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_omni_moe_text": replace(_QWEN3_MOE, defaults={}),
    "qwen3_vl_moe_text": _QWEN3_MOE.like(
        "qwen3",
        {"num_experts": 60, "num_experts_per_tok": 4, "head_dim": 128, "moe_intermediate_size": 1408,
         "intermediate_size": 5632, "num_key_value_heads": 16, "num_attention_heads": 16},
    ),
    "qwen3_vl_text": _QWEN3,
    "seed_oss": Family(
        "seed-oss",
        {"vocab_size": 155136, "max_position_embeddings": 524288, "num_key_value_heads": 8, "head_dim": 128,
         "attention_bias": True},
        qkv_bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias",
    ),
    "smollm3": _BIASED.like(
        "smollm3",
        {**TIED, "vocab_size": 128256, "max_position_embeddings": 32768, "num_key_value_heads": 4,
         "sliding_window": None, "max_window_layers": 0},
        mlp_bias="mlp_bias", windows="upper",
    ),
    "stablelm": Family(
        "stablelm",
        {"vocab_size": 50304, "max_position_embeddings": 4096},
        qkv_bias="use_qkv_bias", norm_bias=True, refused=("qk_layernorm",),
    ),
    "starcoder2": Family(
        "starcoder2",
        {**TIED, "vocab_size": 49152, "max_position_embeddings": 4096, "num_key_value_heads": 2,
         "sliding_window": None, "use_bias": True},
        gated=False, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", norm_bias=True, windows="all",
    ),
}  # fmt: skip

TEXT_TYPES = {
    "gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral", "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text", "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text",
    "kimi_k25": "deepseek_v3", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}  # fmt: skip
"""Multimodal model type -> model type of its text backbone, where the nested text config does not say."""

UNSUPPORTED = {
    "state space or linear attention": (
        "mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "zamba", "zamba2", "minimax",
        "granitemoehybrid", "recurrent_gemma", "rwkv", "xlstm", "lfm2", "lfm2_moe", "olmo_hybrid", "bailing_hybrid",
    ),
    "compressed or block-sparse attention": (
        "deepseek_v4", "deepseek_ref", "minimax_m3", "minimax_m3_vl", "phi3small",
    ),
    "cross-attention layers": ("mllama", "mllama_text_model"),
    "attention whose heads differ between layers": ("gemma4", "gemma4_text", "gemma3n", "gemma3n_text", "step3p7"),
    "layers that each have a shape of their own (block_configs)": ("nemotron-nas",),
    "code of its own, without which its config does not tell the shape": ("baichuan", "mimo", "minicpm", "qwen"),
    "an encoder": ("t5", "bart", "bert", "whisper"),
    "a tower for images or sounds alone, and no language model": (
        "siglip", "siglip2", "siglip_vision_model", "siglip2_vision_model", "clip", "clip_vision_model", "pixtral",
        "vit", "dinov2", "dinov3_vit", "intern_vit_6b", "internvl_vision", "llama4_vision_model", "qwen2_vl_vision",
        "qwen2_5_vl_vision", "qwen3_vl_vision", "qwen2_audio_encoder", "wav2vec2", "hubert",
    ),
}  # fmt: skip
"""Why a known model type is not read -> those model types."""
