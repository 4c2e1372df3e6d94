"""Names that options and presets take, and limits of what they may be: plain data, for which nothing else is loaded."""

MAX_GPUS = 1_048_576
"""Largest cluster accepted: ten times the largest training cluster announced."""

MAX_DEGREE = 2**20
"""Largest parallel degree, or microbatch, accepted."""

MAX_SEQUENCE = 2**24
"""Longest sequence, or sample, of a job accepted [tokens]."""

AXES = ("tp", "cp", "ep", "dp", "pp")
"""The parallel axes in the order in which ranks are dealt out, neighbours first (Megatron-LM's default)."""

MEMORY_HEADROOM = 0.05
"""Share of the driver's capacity left free: what PyTorch's caching allocator loses to fragmentation (guesstimate)."""

LOW_PRECISIONS = {
    "fp8": ("fp8", ""),
    "fp8-delayed": ("fp8", "delayed"),
    "fp8-current": ("fp8", "current"),
    "fp8-blockwise": ("fp8", "blockwise"),
    "mxfp8": ("fp8", "mx"),
    "fp4": ("fp4", "nvfp4"),
    "nvfp4": ("fp4", "nvfp4"),
}
"""What users call a precision below 16 bits -> precision of the products, recipe ("": the framework's own)."""

LOSSES = ("standard", "fused", "chunked", "linear")
"""How the cross entropy works: on a copy of the logits in fp32, in one kernel each way, by chunks together with the LM
head, or in one kernel with it."""

TUNES = ("full", "lora", "qlora")
"""What is trained: all weights, or adapters of a low rank beside frozen ones, which qlora stores in 4 bits."""

METHODS = ("sft", "dpo", "kto", "orpo", "reward", "grpo", "distill")
"""What a step learns from: next tokens (also of pre-training), preferences, rewards of answers, or another model."""

TRAINED = ("embeddings", "head", "norms")
"""What can be trained whole beside adapters."""

BASE_DTYPES = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2.5 / 128,
    "nf4": 0.5 + 1 / 64 + 4 / (64 * 256), "nf4-single": 0.5 + 4 / 64,
}  # fmt: skip
"""How frozen matrices are stored -> bytes per weight with their scales. int4: 16-bit scale and 4-bit zero point per
group of 128 (GPTQ, AutoGPTQ's default). nf4: an 8-bit scale per block of 64, which have a 32-bit one per 256 of them
(double quantisation, Dettmers et al. 2023, arXiv 2305.14314, section 3); single: a 32-bit scale per block of 64.
fp8, int8: a scale per row or tensor, next to nothing."""

ATTENTIONS = ("fa2", "fa3", "fa4", "cudnn", "flex", "sdpa", "eager")
"""Attention kernels: FlashAttention-2, -3 and -4, cuDNN, FlexAttention, PyTorch's choice, scores in memory."""

TOWERS = ("trained", "frozen", "none")
"""Towers beside a language model: trained like it, held as weights alone, or left out."""

CP_COMMS = ("p2p", "all_gather", "a2a", "a2a+p2p")
"""Ways in which context-parallel ranks exchange, by their names in Megatron-LM."""

PIPELINE_SPLITS = ("even", "tapered", "cost")
"""How layers are dealt out to stages (`gpuscale.layouts.stages`)."""

RESHARDS = ("always", "never", "default")
"""When fully sharded parameters are given back after the forward pass; `default`: not under pipelines (torchtitan)."""

GRAD_REDUCES = ("each", "last", "default")
"""In which microbatches sharded gradients are reduced; `default`: in the last one under pipelines (PyTorch)."""

DISPATCHERS = ("alltoall", "deepep", "hybridep")
"""How tokens are sent to their experts."""

TRANSPORTS = ("nvshmem", "uccl")
"""What DeepEP sends by across nodes: NVSHMEM, or UCCL's CPU threads."""

ROUTINGS = ("dropless", "dropping")
"""Whether experts take all tokens that choose them, or as many as fit."""

RANKED_BY = (
    "step_time", "tokens_per_s", "mfu", "memory", "memory_headroom", "gpu_hours", "cost", "time_to_train", "energy",
    "carbon",
)  # fmt: skip
"""Objectives of plans, as `gpuscale.search.objectives` works them out."""

TERMS = ("on_demand", "reserved", "spot")
"""What a price holds for: pay as you go, committed to for months or years, or until somebody pays more."""
