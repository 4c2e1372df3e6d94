"""Configurations that are read and not written: GPT-NeoX, llm-foundry, MaxText (also under Primus) and OLMo.

Names are those of EleutherAI/gpt-neox (neox_arguments), mosaicml/llm-foundry 0.21 with Composer's fsdp_config,
AI-Hypercomputer/maxtext (configs/base.yml) and allenai/OLMo (olmo/config.py). What a file leaves to its framework's
default is set to that default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from gpuscale.errors import InputError
from gpuscale.launch import accelerate, adapters, preferences, trainer
from gpuscale.launch.huggingface_models import read_model, shaped_model
from gpuscale.launch.launchers import gpus_of, take_gpus
from gpuscale.launch.settings import DTYPES, PRIMUS, Reading, Setting, Source
from gpuscale.launch.shapes import read_attention
from gpuscale.launch.tokenizers import vocabulary_of
from gpuscale.launch.writing import Target
from gpuscale.presets.models import MAXTEXT_EXPERTS, MAXTEXT_SIZES, load_model, maxtext_shape
from gpuscale.presets.tools import load_tool

SHAPE = {
    "layers": ("num_layers", "n_layers", "num-layers"),
    "hidden": ("hidden_size", "d_model", "hidden-size"),
    "heads": ("num_attention_heads", "n_heads", "num-attention-heads"),
    "kv_heads": ("num_kv_heads", "n_kv_heads", "attn_config.kv_n_heads", "num-kv-heads"),
    "ffn": ("intermediate_size", "mlp_hidden_size", "intermediate-size"),
}
"""Key of a model file -> names of it."""


def _shape(reading: Reading, table: str = "") -> tuple[dict[str, Any], list[str]]:
    """Read the plain sizes of a model, and the names of the settings that say them.

    Raises:
        InputError: one that a model needs is not said.
    """
    found: dict[str, Any] = {}
    of: list[str] = []
    for key, names in SHAPE.items():
        where = [f"{table}{name}" for name in names]
        value = reading.integer(*where)
        if value is not None:
            found[key] = value
            of += where
    lacking = [key for key in ("layers", "hidden", "heads") if key not in found]
    if lacking and not reading.given.get("model"):
        message = f"no file states how many {lacking[0]} the model has" if lacking[0] != "hidden" else "no hidden size"
        raise InputError(message, field="model", hint="add `model=NAME`")
    return found, of


def _needed(reading: Reading, field: str, message: str, found: Any) -> Any:
    """Return what a file says.

    Raises:
        InputError: it does not, and nobody gives it beside.
    """
    if found is None and not reading.given.get(field):
        raise InputError(message, field=field, hint=f"add `{field}=...`")
    return found


# --- GPT-NeoX

GPT_NEOX_VOCABULARY = {"20B_tokenizer": 50277, "gpt2": 50257, "pythia": 50277, "neox": 50277}
"""Part of a tokenizer's file name -> its tokens."""


GATED_MLPS = ("llama", "gated")
"""`mlp_type` of a gated MLP: GPT-NeoX's, and that of Stability AI's branch (StableLM)."""


def _claims_neox(source: Source) -> bool:
    """Whether a source is a configuration of GPT-NeoX."""
    names = {name.replace("-", "_") for name in source.settings}
    marks = {"pipe_parallel_size", "model_parallel_size", "train_iters", "checkpoint_activations", "seq_length"}
    return (
        source.kind not in {"command", "arguments"}
        and {"num_layers", "num_attention_heads"} <= names
        and bool(marks & names)
        and not {"tensor_model_parallel_size", "pipeline_model_parallel_size"} & names  # Megatron-LM's own arguments
    )


def _read_neox(reading: Reading) -> None:
    """Read a GPT-NeoX configuration, which runs as Megatron-DeepSpeed does."""
    reading.run_by(load_tool("gpt-neox"))
    for name, one in list(reading.settings.items()):  # GPT-NeoX takes `pipe-parallel-size` too
        reading.settings.setdefault(name.replace("-", "_"), one)
    reading.option("framework", "megatron-deepspeed")
    keys, of = _shape(reading)
    activation = reading.text("activation")
    kind = reading.text("mlp_type") or ""
    gated = activation in {"swiglu", "geglu", "reglu", "bilinear", "glu"} or kind in GATED_MLPS
    width = keys.get("ffn") or int((reading.number("expansion_factor") or 4) * keys.get("hidden", 0))
    multiple = reading.integer("mlp_multiple_of")
    if gated and kind not in GATED_MLPS:  # both products together have two thirds (model/transformer.py, ParallelMLP)
        multiple = multiple or 1
        width = multiple * math.ceil((int(width * 2 / 3) // 2) / multiple)
        reading.assume(f"MLP of {width}: a third of {keys.get('ffn') or '4 x hidden'}, as GPT-NeoX scales gated ones")
    elif "ffn" not in keys and gated:
        multiple = multiple or 256
        width = multiple * math.ceil(8 * keys["hidden"] / 3 / multiple)
        reading.assume(f"MLP of {width}: two thirds of 4 x hidden, as gated ones have it")
    positions = reading.text("pos_emb")
    norm = reading.text("norm")
    sequence = trainer.read_sequence(reading, "seq_length")
    longest = reading.integer("max_position_embeddings") or sequence or 2048
    biased = reading.flag("use_bias_in_mlp", default=True)
    attention_bias = reading.flag("use_bias_in_attn_linear", default=True)
    experts = reading.integer("moe_num_experts", "num_experts") or 1
    normed = reading.flag("use_qk_layernorm") or reading.flag("use_qk_norm")
    _gpt_neox_degrees(reading, experts)
    shape = {
        **keys, "ffn": width, "vocab": _gpt_neox_vocabulary(reading), "sequence": longest,
        "tied_embeddings": not reading.flag("no_weight_tying"), "gated": gated, "mlp_bias": biased,
        "qkv_bias": attention_bias, "output_bias": attention_bias, "norm_bias": norm in {"layernorm", "te_layernorm"},
        "parallel_blocks": reading.flag("gpt_j_residual"),
        "learned_positions": longest if positions in {"learned", "sinusoidal"} else None,
        "qk_norm": "full" if normed else None,
    }  # fmt: skip
    if experts > 1:
        shape |= {"moe.experts": experts, "moe.top_k": reading.integer("moe_top_k") or 1, "moe.ffn": width,
                  "moe.every": reading.integer("expert_interval")}  # fmt: skip
        shape["mlp_bias"] = False
        dropping = reading.text("moe_type") == "deepspeed" or reading.flag("moe_token_dropping")
        reading.option("routing", "dropping" if dropping else "dropless", "moe_type", "moe_token_dropping")
    names = ("activation", "mlp_type", "pos_emb", "norm", "no_weight_tying", "gpt_j_residual", "moe_num_experts")
    more = ("moe_top_k", "max_position_embeddings", "use_bias_in_mlp", "use_bias_in_attn_linear", "tokenizer_type",
            "use_qk_layernorm", "use_qk_norm", *(["expert_interval"] if experts > 1 else []))  # fmt: skip
    shaped_model(reading, shape, *of, *names, *more)
    preferences.read(reading)
    _gpt_neox_states(reading)
    micro, steps, total = (
        trainer.count(reading, name)
        for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    )
    take_gpus(reading)
    trainer.read_batch(
        reading, micro, steps, total,
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size",
    )  # fmt: skip


def _gpt_neox_vocabulary(reading: Reading) -> int:
    stated = reading.integer("padded_vocab_size", "vocab_size")
    if stated:
        reading.means(f"{stated} tokens", "padded_vocab_size", "vocab_size")
        return stated
    name = " ".join(reading.text(one) or "" for one in ("vocab_file", "tokenizer_type"))
    found = next((size for part, size in GPT_NEOX_VOCABULARY.items() if part.lower() in name.lower()), None)
    found = found or vocabulary_of(reading.text("vocab_file") or "")
    if found is None and reading.text("tokenizer_type") and not reading.given.get("model"):  # by default GPT-2's
        message = "no file states how many tokens the tokenizer has"
        reading.refuse(reading.get("vocab_file", "tokenizer_type"), message, settles="model")
    found = found or 50257
    multiple = trainer.count(reading, "make_vocab_size_divisible_by") or 1
    multiple *= int(reading.layout["tp"])
    padded = math.ceil(found / multiple) * multiple
    reading.assume(f"the vocabulary has {found} tokens, padded to {padded}", "vocab_file", "tokenizer_type")
    return padded


def _gpt_neox_degrees(reading: Reading, experts: int) -> None:
    degrees = {"tp": "model_parallel_size", "pp": "pipe_parallel_size", "cp": "context_parallel_size"}
    # below 1 each counts as 1 (neox_args.py, calculate_derived)
    for axis, name in degrees.items():
        size = reading.integer(name)
        if size is not None:
            reading.option(axis, max(size, 1), name)
    size = reading.integer("moe_expert_parallel_size")
    if size and experts > 1:
        reading.option("ep", size, "moe_expert_parallel_size")
    elif experts > 1 and int(reading.layout.get("tp") or 1) > 1:
        reading.option("etp", reading.layout["tp"])
    stage = reading.integer("zero_optimization.stage") or 0
    reading.option("zero", stage, "zero_optimization.stage")
    if reading.flag("checkpoint_activations"):
        reading.option("recompute", "full", "checkpoint_activations", "checkpoint_num_layers")
    else:
        reading.option("recompute", "none", "checkpoint_activations")
    if reading.flag("sequence_parallel") and int(reading.layout.get("tp") or 1) > 1:
        reading.option("sp", True, "sequence_parallel")
    else:
        reading.means("nothing to split", "sequence_parallel")
    moved = {
        part: [f"zero_optimization.{old}", f"zero_optimization.{new}.device"]
        for part, old, new in (("optimizer", "cpu_offload", "offload_optimizer"),
                               ("parameters", "cpu_offload_params", "offload_param"))
    }  # fmt: skip
    parts = [part for part, names in moved.items()
             if any((reading.text(name) or "").lower() in {"true", "cpu", "nvme"} for name in names)]  # fmt: skip
    if parts:
        reading.option("offload", "+".join(parts), *(name for names in moved.values() for name in names))
    size = reading.integer("zero_optimization.mics_shard_size") or -1
    if stage == 3 and size > 0:
        reading.option("shard", size, "zero_optimization.mics_shard_size")
    _gpt_neox_attention(reading)


def _gpt_neox_attention(reading: Reading) -> None:
    """Read the kinds of attention.

    Raises:
        InputError: some layers have another kind of mixer.
    """
    mark = next((name for name in reading.settings if name.startswith("attention_config")), None)
    kinds = str([one.value for name, one in reading.settings.items() if name.startswith("attention_config")])
    other = re.search(r"mamba|rwkv|[ag]mlp|local|sparse\w*|bigbird|bslongformer", kinds)
    if mark and other:
        reading.refuse(
            reading.get(mark), f"layers of kind {other[0]} are not read of GPT-NeoX's files", settles="model"
        )
    if mark and "flash" in kinds and "global" not in kinds and not reading.given.get("attention"):
        reading.option("attention", "fa2", mark)
    elif mark:
        reading.assume("attention with its scores in memory is predicted as fast as flash attention", mark)


def _gpt_neox_states(reading: Reading) -> None:
    half = reading.flag("fp16.enabled", "fp16.fp16")
    wide = reading.flag("bf16.enabled")
    chosen = "fp16" if half else "bf16" if wide else None
    if chosen:
        reading.option("precision", chosen, "fp16.enabled", "fp16.fp16", "bf16.enabled")
    else:
        trainer.read_precision(reading)
    summed = "data_types.grad_accum_dtype"
    if reading.text(summed) is not None:
        reading.option("grad_dtype", reading.text(summed, known=("fp32", "bf16", "fp16")), summed)
    types = reading.options.get("precision"), reading.options.get("grad_dtype", "fp32"), reading.layout["zero"]
    if types == ("bf16", "fp32", 0):
        reading.option("zero", 1, "zero_optimization.stage")
        reading.assume("DeepSpeed's bf16 optimizer shards its states as ZeRO-1 does", "zero_optimization.stage")
    trainer.read_optimizer(reading, "optimizer.type")


# --- llm-foundry


def _tables(source_names: Mapping[str, Setting]) -> str:
    return "parameters." if any(name.startswith("parameters.model.") for name in source_names) else ""


def _claims_llm_foundry(source: Source) -> bool:
    """Whether a source is a configuration of llm-foundry, or a run of MosaicML that holds one."""
    table = _tables(source.settings)
    micro = {f"{table}device_train_microbatch_size", "variables.device_train_microbatch_size"}
    return f"{table}model.name" in source.settings and bool(micro & source.settings.keys())


def _read_llm_foundry(reading: Reading) -> None:
    """Read a configuration of llm-foundry."""
    table = _tables(reading.settings)
    reading.run_by(load_tool("llm-foundry"))
    reading.option("framework", "llm-foundry")
    for name in ("device_train_microbatch_size", "global_train_batch_size"):  # of scripts that read them from there
        if f"{table}{name}" not in reading.settings and f"variables.{name}" in reading.settings:
            reading.settings[f"{table}{name}"] = reading.settings[f"variables.{name}"]
    gpus = reading.integer("compute.gpus")
    take_gpus(reading)
    if gpus and "gpus" not in reading.options:
        reading.option("gpus", gpus, "compute.gpus")
    trainer.read_sequence(reading, f"{table}max_seq_len")
    kind = reading.text(f"{table}model.name")
    if kind == "mpt_causal_lm":
        _read_mpt(reading, f"{table}model.")
    else:
        read_model(reading, f"{table}model.pretrained_model_name_or_path", f"{table}model.name")
    mark = next((name for name in reading.settings if name.startswith(f"{table}model.peft_config.")), None)
    if mark and reading.given.get("tune") != "full":
        adapters.take(reading, adapters.names_below(f"{table}model.peft_config."), mark)
    strategy = reading.text(f"{table}fsdp_config.sharding_strategy")
    sharded = any(name.startswith(f"{table}fsdp_config.") for name in reading.settings)
    chosen = (strategy or "FULL_SHARD").upper()
    if chosen not in accelerate.FSDP1:
        reading.refuse(reading.get(f"{table}fsdp_config.sharding_strategy"), f"unknown strategy {chosen[:40]}")
    reading.option("zero", accelerate.FSDP1[chosen] if sharded else 0, f"{table}fsdp_config.sharding_strategy")
    mesh = reading.words(f"{table}fsdp_config.device_mesh")
    if sharded and (len(mesh) == 2 or "HYBRID" in chosen):
        size = int(mesh[1]) if len(mesh) == 2 and mesh[1].isdecimal() else 8
        reading.option("shard", size, f"{table}fsdp_config.device_mesh", f"{table}fsdp_config.sharding_strategy")
        reading.assume(f"shards over {size} GPUs, copies beside", f"{table}fsdp_config.device_mesh")
    reading.switch("grad_dtype", "bf16", None, f"{table}fsdp_config.keep_low_precision_grads")
    ranks = f"{table}fsdp_config.data_parallel_shard_degree"
    if sharded and (size := reading.integer(ranks) or -1) > 0:
        reading.option("shard", size, ranks, f"{table}fsdp_config.data_parallel_replicate_degree")
    trainer.read_checkpointing(reading, f"{table}fsdp_config.activation_checkpointing")
    if reading.flag(f"{table}fsdp_config.activation_cpu_offload"):
        reading.option("offload", "activations", f"{table}fsdp_config.activation_cpu_offload")
    trainer.read_precision(reading, f"{table}precision", default="bf16")
    trainer.read_optimizer(reading, f"{table}optimizer.name")
    _read_foundry_attention(reading, f"{table}model.")
    _read_microbatches(reading, f"{table}device_train_microbatch_size", f"{table}global_train_batch_size")


def _read_foundry_attention(reading: Reading, table: str) -> None:
    """Read the kernels of attention: Triton's are FlashAttention of the first generation, which the profile has."""
    switch, name = f"{table}use_flash_attention_2", f"{table}attn_config.attn_impl"
    if reading.flag(switch):
        reading.option("attention", "fa2", switch)
    elif (reading.text(name) or "triton").lower() != "triton":
        read_attention(reading, name)


def _read_microbatches(reading: Reading, micro: str, total: str) -> None:
    """Read a microbatch per device and a global batch, either of which may be left open."""
    size = _needed(
        reading, "micro_batch_size", f"{micro} is not a number: what fits is tried out", trainer.count(reading, micro)
    )
    batch = _needed(reading, "gbs", "no file states how large the global batch is", trainer.count(reading, total))
    if size is not None and batch is not None and not reading.given.get("gbs"):
        replicas = trainer.data_parallel(reading, "the number of microbatches")
        if batch % replicas:
            reading.refuse(reading.get(total), f"a batch of {batch} does not divide by {replicas} GPUs")
        share = batch // replicas
        fitting = share if share < size else math.gcd(size, share)  # a batch is cut into pieces of at most this
        if fitting != size:
            reading.assume(f"microbatches of {fitting}: {size} does not divide the {share} of a GPU", micro)
        size = fitting
    if size is not None and not reading.given.get("micro_batch_size"):
        reading.option("micro_batch_size", size, micro)
    if batch is not None and not reading.given.get("gbs"):
        reading.option("gbs", batch, total)


def _read_mpt(reading: Reading, table: str) -> None:
    keys, of = _shape(reading, table)
    width = (reading.number(f"{table}expansion_ratio") or 4) * keys.get("hidden", 0)
    longest = reading.integer(f"{table}max_seq_len") or 2048
    alibi, rope = reading.flag(f"{table}attn_config.alibi"), reading.flag(f"{table}attn_config.rope")
    biased = not reading.flag(f"{table}no_bias")
    learned = reading.flag(f"{table}learned_pos_emb", default=not (alibi or rope))
    kind = (reading.text(f"{table}ffn_config.ffn_type") or "mptmlp").lower()
    if kind not in FFNS:
        reading.refuse(
            reading.get(f"{table}ffn_config.ffn_type"), f"the MLP {kind[:40]} is not known here", settles="model"
        )
    experts = FFNS[kind]
    gated = kind == "mptglu" or (experts and (reading.text(f"{table}ffn_config.mlp_type") or "mlp").lower() == "glu")
    if (reading.text(f"{table}attn_config.attn_type") or "").lower() == "multiquery_attention":
        keys["kv_heads"] = 1
    shape = {
        **keys, "ffn": int(keys.get("ffn") or width), "vocab": reading.integer(f"{table}vocab_size") or 50368,
        "sequence": longest, "gated": gated, "learned_positions": longest if learned else None,
        "tied_embeddings": reading.flag(f"{table}tie_word_embeddings", default=True),
        "mlp_bias": biased and not experts, "qkv_bias": biased, "output_bias": biased, "norm_bias": biased,
        "qk_norm": "full" if reading.flag(f"{table}attn_config.qk_ln") else None,
    }  # fmt: skip
    window = reading.integer(f"{table}attn_config.sliding_window_size") or -1
    if window > 0:
        shape["window.length"] = window
    if experts:
        shape |= _mpt_experts(reading, f"{table}ffn_config.", shape["ffn"], dropping=kind == "mb_moe", biased=biased)
    names = ("expansion_ratio", "max_seq_len", "vocab_size", "no_bias", "attn_config.alibi", "learned_pos_emb", "name")
    shaped_model(reading, shape, *of, *(f"{table}{name}" for name in names))


FFNS = {
    **dict.fromkeys(("mptmlp", "mptglu", "te_ln_mlp"), False),
    **dict.fromkeys(("mb_moe", "mb_dmoe", "torch_dmoe"), True),
}
"""`ffn_type` -> whether it has experts (models/layers/ffn.py)."""


def _mpt_experts(reading: Reading, table: str, width: int, *, dropping: bool, biased: bool) -> dict[str, Any]:
    """Read experts of MegaBlocks, or of llm-foundry's own: keys of a model file.

    Raises:
        InputError: how many there are, or how many a token takes, is not stated; they have no default.
    """
    counts = {key: reading.integer(f"{table}{name}") for key, name in _EXPERTS.items()}
    lacking = next((name for key, name in _EXPERTS.items() if counts[key] is None), None)
    if lacking and not reading.given.get("model"):
        found = reading.get(f"{table}ffn_type")
        reading.refuse(found, f"experts without `{lacking}`", settles="model")
    world = reading.integer(f"{table}moe_world_size") or 1
    if world > 1:
        reading.option("ep", world, f"{table}moe_world_size")
    reading.option("routing", "dropping" if dropping else "dropless", f"{table}ffn_type")
    reading.means("shape of the model", *(f"{table}{name}" for name in (*_EXPERTS.values(), "mlp_type", "ffn_type")))
    own = {f"moe.{key}": count for key, count in counts.items() if count}
    return {**own, "moe.ffn": reading.integer(f"{table}ffn_hidden_size") or width, "moe.expert_bias": biased or None}


_EXPERTS = {"experts": "moe_num_experts", "top_k": "moe_top_k"}


# --- MaxText

AXES = {
    "data": "dp", "fsdp": "fsdp", "fsdp_transpose": "fsdp", "tensor": "tp", "tensor_transpose": "tp",
    "tensor_sequence": "tp", "sequence": "cp", "context": "cp", "expert": "ep", "pipeline": "pp",
}  # fmt: skip
"""Mesh axis of MaxText -> what it is here; fsdp shards among the data-parallel ranks, as does expert."""


REMAT = {
    "full": "full", "save_qkv_proj": "full", "save_out_proj": "full", "qkv_proj_offloaded": "full",
    **dict.fromkeys((
        "save_dot_with_context_except_mlp", "save_dot_except_mlp", "save_dot_except_mlpwi",
    ), "selective:layernorm+mlp"),
    **dict.fromkeys(("minimal", "minimal_flash", "minimal_with_context"), "selective:layernorm"),
}  # fmt: skip
"""`remat_policy` -> what comes nearest: products that it saves are not made again, those of an MLP are, or all but one
(MaxText layers/decoders.py, get_remat_policy)."""


def _maxtext_table(names: Mapping[str, Setting]) -> str:
    found = names.get(f"{PRIMUS}.framework")
    return f"{PRIMUS}.overrides." if found and str(found.value) == "maxtext" else ""


def _claims_maxtext(source: Source) -> bool:
    """Whether a source is a configuration of MaxText, or of Primus for MaxText."""
    named = any(name in source.settings for name in ("model_name", "base_emb_dim"))
    degrees = any(name.startswith(("ici_", "dcn_")) for name in source.settings)
    runs = any("maxtext" in word.lower() for word in source.program)
    whole = (runs or "per_device_batch_size" in source.settings) and (named or degrees)
    return whole or bool(_maxtext_table(source.settings))


def _read_maxtext(reading: Reading) -> None:
    """Read a configuration of MaxText."""
    primus = _maxtext_table(reading.settings)
    reading.lift(primus)
    reading.means("MaxText under Primus", f"{PRIMUS}.framework")
    reading.run_by(load_tool(f"{'primus-' * bool(primus)}maxtext"))
    reading.option("framework", "maxtext")
    _maxtext_model(reading)
    trainer.read_sequence(reading, "max_target_length")
    take_gpus(reading)
    sizes, of = _mesh(reading)
    gpus = int(reading.given.get("gpus") or reading.options["gpus"])
    for axis in ("tp", "cp", "pp", "ep"):
        if sizes[axis] > 1:
            reading.option(axis, sizes[axis], *of[axis])
    replicas = sizes["dp"] * sizes["fsdp"] * sizes["ep"]
    shards = sizes["fsdp"] * sizes["ep"] * sizes["cp"]  # base.yml, logical_axis_rules: `embed` is split by all of these
    optimizer = "shard_optimizer_over_data"
    of_optimizer = shards == 1 and reading.flag(optimizer)
    reading.option("zero", 3 if shards > 1 else int(of_optimizer), *of["fsdp"], *([optimizer] if of_optimizer else []))
    reading.means(f"{sizes['dp']} copies", *of["dp"])
    if shards > 1 and sizes["dp"] > 1:
        reading.option("shard", shards, *of["fsdp"])
    if sizes["cp"] > 1 and reading.text("context_parallel_strategy") == "ring":
        reading.option("cp_comm", "p2p", "context_parallel_strategy")
    _maxtext_batch(reading, gpus, replicas, _maxtext_pipeline(reading, sizes["pp"]))
    policy = reading.text("remat_policy") or "full"
    recomputed = REMAT.get(policy, "none")
    if policy not in {*REMAT, "none"} and not reading.given.get("recompute"):
        found = reading.get("remat_policy")
        reading.refuse(found, f"what {policy[:40]} recomputes and moves is not modelled", settles="recompute")
    reading.option("recompute", recomputed, "remat_policy")
    if policy not in {"full", "none"} and not reading.given.get("recompute"):
        reading.assume(f"remat_policy {policy} is predicted as recompute {recomputed}", "remat_policy")
    quantised = (reading.text("quantization") or "").lower()
    if "fp8" in quantised:
        reading.option("precision", "fp8", "quantization", "dtype")
    elif quantised:
        reading.refuse(reading.get("quantization"), f"{quantised[:40]} is not modelled", settles="precision")
    else:
        word = reading.text("dtype") or "bfloat16"
        reading.option("precision", DTYPES.get(word, "fp32"), "dtype")
    _maxtext_states(reading)
    _maxtext_experts(reading)
    if not reading.get("opt_type"):
        reading.option("optimizer", "adamw")
        reading.assume("the optimizer is AdamW, MaxText's default")
    else:
        trainer.read_optimizer(reading, "opt_type")


BASE = {
    "base_emb_dim": "2048", "base_num_query_heads": "16", "base_num_kv_heads": "16", "base_mlp_dim": "7168",
    "base_num_decoder_layers": "16", "head_dim": "128", "vocab_size": "32000",
}  # fmt: skip
"""The model that base.yml has where none is named."""


def _maxtext_model(reading: Reading) -> None:
    """Read the model: by its name, changed where `override_model_config` says so, or by its sizes over base.yml's."""
    stated = {name: str(one.value) for name, one in reading.settings.items() if one.value is not None}
    named = reading.text("model_name", f"{PRIMUS}.model") not in {None, "default"}
    if named and stated.get("global_parameter_scale", "1") != "1":
        found = reading.get("global_parameter_scale")
        reading.refuse(found, "a model that is scaled is not read", settles="model")
    changed = [name for name in MAXTEXT_NAMES if name in stated]
    place = f"{reading.sources[-1].file}: {', '.join(changed[:3])}"
    if named or not changed:
        read_model(reading, "model_name", f"{PRIMUS}.model")
        model = str(reading.options.get("model") or "")
        if changed and model and not model.endswith(".json") and reading.flag("override_model_config"):
            own = {name: stated[name] for name in changed}
            keys = {key: value for key, value in maxtext_shape(own, place).items() if key in _SIZED_BY}
            line = ",".join([load_model(model).name, *(f"{key}={value}" for key, value in keys.items())])
            reading.option("model", line, *changed)
        return
    keys = maxtext_shape(BASE | stated, place)
    sequence = reading.integer("max_target_length")
    shaped_model(reading, {**keys, "sequence": sequence or 2048}, *changed)


_SIZED_BY = {*MAXTEXT_SIZES, *(f"moe.{key}" for key in MAXTEXT_EXPERTS)}
MAXTEXT_NAMES = (*MAXTEXT_SIZES.values(), *MAXTEXT_EXPERTS.values())


def _maxtext_states(reading: Reading) -> None:
    """Read the types of weights, gradients and moments, and what of them is in host memory."""
    if reading.tool.name == "maxtext" and not reading.stated("hardware") and not reading.given.get("cluster"):
        reading.assume("GPUs are predicted; MaxText runs on TPUs where nothing else is said")
    weights, gradients = "weight_dtype", "grad_dtype"
    if DTYPES.get(reading.text(weights) or "float32") == "bf16":
        for option, value in (("master_dtype", "none"), ("moment_dtype", "bf16"), ("grad_dtype", "bf16")):
            reading.option(option, value, weights)
        reading.assume("weights, gradients and moments are bf16, without a copy in fp32", weights)
    elif reading.text(gradients) is not None:
        reading.option("grad_dtype", DTYPES.get(reading.text(gradients) or "", "fp32"), gradients)
    first = reading.get("mu_dtype")
    kept = DTYPES.get(str(getattr(first, "value", "") or reading.text(weights) or "float32"))
    if kept != DTYPES.get(reading.text(weights) or "float32") and "moment_dtype" not in reading.given:
        reading.refuse(first, "first moments of another type than second ones", settles="moment_dtype")
    if reading.text("attention") == "dot_product":
        read_attention(reading, "attention")
    hosts = {"optimizer": "optimizer_memory_host_offload", "parameters": "parameter_memory_host_offload"}
    parts = [part for part, name in hosts.items() if reading.flag(name)]
    if parts:
        reading.option("offload", "+".join(parts), *hosts.values())


def _maxtext_experts(reading: Reading) -> None:
    """Read whether experts, where there are any, drop tokens: with a capacity factor above 0 they do."""
    name, model = "capacity_factor", str(reading.given.get("model") or reading.options.get("model") or "")
    if model and not load_model(model).is_moe:
        reading.means("the model has no experts", name, "sparse_matmul")
        return
    factor = reading.number(name)
    if factor is None or factor <= 0:
        found = reading.get("sparse_matmul")
        if found is not None and not reading.flag(found.name) and "routing" not in reading.given:
            reading.refuse(found, "every expert works on every token, which is not modelled", settles="routing")
        return
    reading.option("routing", "dropping", name, "sparse_matmul")
    if factor != 1:
        reading.assume("experts are predicted at a capacity factor of 1", name)


def _degree(reading: Reading, prefix: str, name: str) -> int:
    """Return a degree of a mesh; -1 means what is left.

    Raises:
        InputError: it is neither.
    """
    where = f"{prefix}_{name}_parallelism"
    size = reading.integer(where)
    size = size if size is not None else {"ici_fsdp": -1, "dcn_data": -1}.get(f"{prefix}_{name}", 1)  # base.yml
    if size == 0 or size < -1:
        reading.refuse(reading.get(where), f"{size} is not a degree", "give 1, or -1 for what is left")
    return size


def _mesh(reading: Reading) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the product of the degrees of each axis inside and between slices, and the settings that say so."""
    sizes = dict.fromkeys(("dp", "fsdp", "tp", "cp", "ep", "pp"), 1)
    of: dict[str, list[str]] = {axis: [] for axis in sizes}
    rest: list[str] = []
    inside = 1
    for prefix in ("ici", "dcn"):
        for name, axis in AXES.items():
            size = _degree(reading, prefix, name)
            of[axis].append(f"{prefix}_{name}_parallelism")
            rest += [axis] if size < 0 else []
            sizes[axis] *= abs(size)
            inside *= abs(size) if prefix == "ici" else 1
    product = math.prod(sizes.values())
    stated = reading.get("ici_fsdp_parallelism", "ici_data_parallelism")
    known = reading.given.get("gpus") or reading.options.get("gpus")
    if rest and not known and not (stated and rest == ["dp"] and reading.get("num_slices")):
        gpus_of(reading, "the remainder for data parallelism")
    gpus = int(known or product)
    if gpus % product:
        raise InputError(f"{gpus} GPUs do not divide by the degrees, {product}", field="gpus", hint="give a multiple")
    if len(rest) == 2:
        node = min(int(reading.given.get("gpus_per_node") or 8), gpus)  # a slice of GPUs is what NVLink joins
        sizes[rest[0]] *= max(1, node // inside)
        sizes[rest[1]] *= gpus // product // max(1, node // inside)
        reading.assume(f"slices of {node} GPUs: degrees of -1 take what is left inside and between them", *of[rest[0]])
    elif rest:
        sizes[rest[-1]] *= gpus // product
        reading.assume(f"degrees of -1 take what is left of {gpus} GPUs", *of[rest[-1]])
    elif gpus != product:
        message = f"{gpus} GPUs are not the product of the degrees, {product}"
        raise InputError(message, field="gpus", hint=f"give {product}, or leave it out")
    if "gpus" not in reading.options:
        reading.option("gpus", gpus)
    return sizes, of


def _maxtext_pipeline(reading: Reading, stages: int) -> int:
    """Return how many pieces a pipeline cuts a batch into, as many as stages if not said; set the chunks of a rank.

    Sources: MaxText configs/base.yml and layers/pipeline.py.
    """
    number = {name: reading.integer(name) or -1 for name in PIPELINE}
    if stages == 1:
        return 1
    if number["pipeline_parallel_layers"] > 0 or reading.flag("pipeline_delay_activation_forwarding"):
        found = reading.get("pipeline_parallel_layers", "pipeline_delay_activation_forwarding")
        reading.refuse(found, "pipelines of some layers, or with delayed sends, are not modelled", settles="pp")
    model = reading.given.get("model") or reading.options["model"]
    each = max(number["num_layers_per_pipeline_stage"], 1)
    repeats = max(number["num_pipeline_repeats"], 1)
    if number["num_pipeline_repeats"] < 1:
        repeats = max(load_model(str(model)).layers // stages // each, 1)
    of = [*PIPELINE]
    reading.option("vpp", repeats, *of)
    reading.assume("a circular pipeline is predicted as an interleaved one", *of)
    return max(number["num_pipeline_microbatches"], stages)


PIPELINE = (
    "num_pipeline_repeats", "num_layers_per_pipeline_stage", "num_pipeline_microbatches", "pipeline_parallel_layers",
)  # fmt: skip


def _maxtext_batch(reading: Reading, gpus: int, replicas: int, pieces: int) -> None:
    each = reading.number("per_device_batch_size")
    added = trainer.count(reading, "gradient_accumulation_steps") or 1  # batches of all devices, one after another
    steps = pieces * added
    if each is None:
        if not reading.given.get("gbs"):
            raise InputError("no file states how large batches are", field="gbs", hint="add `gbs=1024`")
        return
    total = each * gpus * added
    if total != int(total) or int(total) % (replicas * steps):
        place = reading.get("per_device_batch_size")
        reading.refuse(
            place, f"{each:g} x {gpus} GPUs x {added} do not make whole batches for {replicas} replicas x {steps} steps"
        )
    micro = int(total) // replicas // steps
    trainer.read_batch(reading, micro, steps, int(total), "per_device_batch_size")


# --- OLMo


def _claims_olmo(source: Source) -> bool:
    """Whether a source is a configuration of OLMo."""
    names = source.settings
    return "model.d_model" in names and "device_train_microbatch_size" in names and "model.name" not in names


def _read_olmo(reading: Reading) -> None:
    """Read a configuration of OLMo, which runs as a loop of plain PyTorch."""
    reading.run_by(load_tool("olmo"))
    reading.option("framework", "pytorch")
    reading.option("vocab_multiple", 1)
    keys, of = _shape(reading, "model.")
    hidden = keys.get("hidden", 0)
    gated = (reading.text("model.activation_type") or "swiglu") == "swiglu"
    width = keys.get("ffn") or int((reading.number("model.mlp_ratio") or 4) * hidden)
    longest = reading.integer("model.max_sequence_length") or 1024
    biased = reading.flag("model.include_bias", default=True)
    rotary = reading.flag("model.rope") or reading.flag("model.alibi")
    if reading.flag("model.multi_query_attention"):
        keys["kv_heads"] = 1
    shape = {
        **keys, "ffn": width // 2 if gated else width, "gated": gated, "sequence": longest, "mlp_bias": biased,
        "vocab": reading.integer("model.embedding_size", "model.vocab_size") or 50257, "qkv_bias": biased,
        "output_bias": biased, "tied_embeddings": reading.flag("model.weight_tying", default=True),
        "norm_bias": reading.flag("model.bias_for_layer_norm"), "learned_positions": None if rotary else longest,
        "qk_norm": "full" if reading.flag("model.attention_layer_norm") else None,
    }  # fmt: skip
    names = ("activation_type", "mlp_ratio", "max_sequence_length", "include_bias", "rope", "alibi", "embedding_size")
    more = ("vocab_size", "weight_tying", "multi_query_attention", "attention_layer_norm")
    shaped_model(reading, shape, *of, *(f"model.{name}" for name in (*names, *more)))
    trainer.read_sequence(reading, "model.max_sequence_length")
    take_gpus(reading)
    tables = ("fsdp.", "fsdp_config.")  # the latter of the days of Composer
    sharded = any(name.startswith(tables) for name in reading.settings)
    strategy = reading.text("distributed_strategy") or ("fsdp" if sharded else "ddp")
    shards, kinds = ([f"{table}{name}" for table in tables] for name in ("sharding_strategy", "precision"))
    word = (reading.text(*shards) or "FULL_SHARD").upper()
    stage = accelerate.FSDP1.get(word, 3)
    reading.option("zero", stage if strategy == "fsdp" else 0, "distributed_strategy", *shards, *kinds)
    policy = reading.text("activation_checkpointing")
    reading.option("recompute", "full" if policy else "none", "activation_checkpointing")
    if policy and policy != "whole_layer":
        reading.assume(f"every layer is recomputed: {policy} recomputes less", "activation_checkpointing")
    if any(name.startswith("compile.") for name in reading.settings):
        reading.option("compile", "on", "compile.mode")
    trainer.read_precision(reading, "precision")
    trainer.read_optimizer(reading, "optimizer.name")
    _read_microbatches(reading, "device_train_microbatch_size", "global_train_batch_size")


TARGETS = (
    Target("gpt-neox", "GPT-NeoX", "EleutherAI/gpt-neox 2.0", ("megatron-deepspeed",), None, _claims_neox, _read_neox),
    Target(
        "llm-foundry", "llm-foundry", "llm-foundry 0.21", ("llm-foundry",), None, _claims_llm_foundry, _read_llm_foundry
    ),
    Target("maxtext", "MaxText", "maxtext configs/base.yml", ("maxtext",), None, _claims_maxtext, _read_maxtext),
    Target("olmo", "OLMo", "allenai/OLMo olmo/config.py", ("pytorch",), None, _claims_olmo, _read_olmo),
)
"""Read only; asked before those of the Hugging Face Trainer."""
