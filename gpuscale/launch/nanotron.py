"""A job and its layout as nanotron's YAML has them, both ways: what its table of rule sets leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuscale.launch.cluster_files import job_name
from gpuscale.launch.launchers import gpus_of
from gpuscale.launch.quoting import yaml_text
from gpuscale.launch.settings import LackingError, Reading, Source
from gpuscale.launch.shapes import name_left, named_shape
from gpuscale.launch.writing import LaunchFile, Program, Target, Writing, section
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import load_tool
from gpuscale.rules.rule import FRAMEWORKS
from gpuscale.specs.model import ModelSpec, NumericsSpec

CONFIG = "config.yaml"

WHOLE, HALF = ("fp32", "fp32", "fp32"), ("bf16", "none", "bf16")
"""Gradients, master weights and moments with `accumulate_grad_in_fp32` and without."""

HERE = NumericsSpec(
    rotary_base=10000.0, rotary_share=1.0, rotary_scaling="none", norm_epsilon=1e-6, init_std=0.02, activation="silu",
    router_score="softmax", router_normalised=False, router_scale=1.0, router_aux_loss=0.0,
)  # fmt: skip
"""What its models compute where nothing is said (config/models_config.py, nn/moe.py; the deviation of its examples)."""

OPTIONS = FRAMEWORKS["nanotron"].options
DEGREES = {row.ours: row.name for row in OPTIONS if row.ours in {"tp", "pp", "cp", "dp"}}

ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
"""`activation` of a model -> `hidden_act`."""

ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        "1",
        "collectives start in the order they are issued, as nanotron's examples set it",
    )
}


# --- writing


def write(writing: Writing) -> Program:
    """Return what nanotron runs for a plan; what it cannot express is refused."""
    layout, model = writing.layout, writing.model
    lacking = _lacking(model)
    if lacking:
        writing.refuse("model", f"its models (llama, qwen2) have no {lacking} (config/models_config.py)")
    told = writing.told(OPTIONS, {
        "sp": bool(layout.sp) or layout.tp == 1,
        "parallelism.expert_parallel_size": layout.ep,
        "parallelism.tp_linear_async_communication": bool(layout.sp),
        "model.init_method": {"std": model.numerics.init_std or HERE.init_std},
        "model.sequence": max(model.max_sequence, writing.spec.sequence),
        "tokens.train_steps": 100,
        "tokens.batch_accumulation_per_replica": writing.plan.num_microbatches,
    })  # fmt: skip
    if "@" in writing.spec.runtime.name:
        writing.refuse("framework", "today's nanotron is written, which runs otherwise")
    own = {} if lacking else _model_config(writing, section(told, _CONFIG))
    config: dict[str, Any] = {
        "general": {"project": "gpuscale", "run": job_name(writing), "seed": 42, "ignore_sanity_checks": True},
        "parallelism": section(told, "parallelism"),
        "model": {"ddp_bucket_cap_mb": 25, **section(told, "model"), "model_config": own},
        "tokenizer": {"tokenizer_name_or_path": "gpt2"},
        "tokens": section(told, "tokens"),
        "optimizer": {**section(told, "optimizer"), **_optimizer(writing)},
        "data_stages": [
            {"name": "train", "start_training_step": 1, "data": {"dataset": None, "num_loading_workers": 1, "seed": 42}}
        ],
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": 1000},
        "logging": {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"},
    }
    writing.warn(
        "data are random tokens (dataset: null); the tokenizer, the learning rate and the steps are placeholders"
    )
    written = {"rotary_base", "norm_epsilon", "init_std"}
    written |= {"activation"} if model.numerics.activation in ACTIVATIONS else set()
    name_left(writing, written, HERE, "by default")
    writing.leave("learning rate, its schedule, weight decay, Adam's betas, clipping, steps, tokenizer: placeholders")
    if str(writing.asked("optimizer")) == "adam":
        writing.leave("weight decay: decoupled from the gradient, since the only Adam here is adamW")
    files = (LaunchFile(CONFIG, yaml_text(config)),)
    return Program("run_train.py", (("--config-file", CONFIG),), files, ENVIRONMENT)


def _model_config(writing: Writing, shape: Mapping[str, Any]) -> dict[str, Any]:
    numerics, moe, cp = writing.model.numerics, writing.model.kinds[0].moe, writing.layout.cp
    attention = writing.model.attentions[0]
    llama = not (attention.qkv_bias or attention.window or moe or cp > 1)
    found: dict[str, Any] = {"is_llama_config" if llama else "is_qwen2_config": True}
    found["hidden_act"] = ACTIVATIONS.get(numerics.activation or "", "silu")
    found |= {} if numerics.rotary_base is None else {"rope_theta": numerics.rotary_base}
    found |= {} if numerics.norm_epsilon is None else {"rms_norm_eps": numerics.norm_epsilon}
    found |= shape
    if not llama:
        found["attention_bias"] = attention.qkv_bias
        ring = {"_attn_implementation": "llama3_ring_attention", "ring_attn_heads_k_stride": 1}
        found |= ring if cp > 1 else {"_attn_implementation": "flash_attention_2"}
        found |= {"sliding_window_size": attention.window} if attention.window else {}
    if moe:
        experts = {"num_experts": moe.experts, "top_k": moe.top_k, "moe_intermediate_size": moe.ffn}
        found["moe_config"] = {**experts, "token_dispatcher_type": "alltoall"}
    return found


def _lacking(model: ModelSpec) -> str:
    """Name what nanotron's models do not have; empty where they have all of it."""
    kind = model.kinds[0]
    attention, block, moe = kind.attention, kind.mlp or kind.moe, kind.moe
    if model.uncommon:
        return model.uncommon
    if attention is None or block is None or len(model.kinds) > 1:
        return "layers of different kinds"
    checks = {
        "latent attention": attention.latent is not None,
        "norms on queries and keys": attention.qk_norm != "none",
        "heads of such a width": attention.heads * attention.head_dim != model.hidden
        or attention.value_head_dim != attention.head_dim,
        "bias of the output projection, sinks or gates": attention.output_bias
        or attention.sinks
        or attention.output_gate,
        "chunks or choice of keys": attention.chunked or attention.indexer is not None,
        "ungated MLPs": not block.gated,
        "biases of MLPs": bool(kind.mlp and kind.mlp.bias),
        "LayerNorm or such norms": kind.norm_bias or kind.norms != 2 or kind.parallel_blocks,
        "learned positions": bool(model.learned_positions),
        "bias of the LM head": model.head_bias,
        "multi-token prediction": bool(model.mtp_depth),
        "such experts": moe is not None
        and any((moe.shared_ffn, moe.router_bias, moe.expert_bias, moe.correction_bias, moe.latent, moe.groups > 1)),
    }
    return next((what for what, there in checks.items() if there), "")


def _optimizer(writing: Writing) -> dict[str, Any]:
    asked, wide = writing.asked, writing.spec.precision == "fp32"
    name = str(asked("optimizer"))
    states = tuple(str(asked(one)) for one in ("grad_dtype", "master_dtype", "moment_dtype"))
    if name == "sgd":
        states = (*states[:2], WHOLE[2] if states[0] == "fp32" else HALF[2])
    for one, value, usual in zip(("grad_dtype", "master_dtype", "moment_dtype"), states, WHOLE, strict=True):
        if states not in {WHOLE, HALF} and value != usual:
            why = "gradients, master weights and moments are fp32, or without accumulate_grad_in_fp32 as the weights"
            writing.refuse(one, f"{why} (optim/optimizer_from_gradient_accumulator.py)")
    if wide and states != WHOLE:
        writing.refuse("grad_dtype", "with dtype float32 all is fp32")
    adam = {
        "name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "torch_adam_is_fused": True,
    }  # fmt: skip
    rates = {"learning_rate": 3e-4, "lr_warmup_steps": 10, "lr_warmup_style": "linear", "lr_decay_style": "cosine"}
    return {
        "accumulate_grad_in_fp32": states == WHOLE,
        "weight_decay": 0.01,
        "clip_grad": 1.0,
        "optimizer_factory": {"name": "sgd"} if name == "sgd" else adam,
        "learning_rate_scheduler": {**rates, "min_decay_lr": 3e-5},
    }


# --- reading


def claims(source: Source) -> bool:
    """Whether a source is nanotron's YAML, or the command that runs it."""
    names = source.settings.keys()
    if source.kind == "python":
        return source.called == "Config" and {"parallelism.tp", "tokens.micro_batch_size"} <= names
    if source.kind == "command":
        return "run_train.py" in " ".join(source.program) and "config_file" in names
    return {"parallelism.tp", "parallelism.dp", "tokens.micro_batch_size"} <= names


def read(reading: Reading) -> None:
    """Read nanotron's YAML into a job and its layout.

    Raises:
        InputError: a value that makes no sense, a key that is missing, or a model that is not modelled.
    """
    reading.run_by(load_tool("nanotron"))
    reading.options["framework"] = "nanotron"
    if reading.settings.pop("", None) is not None:
        _take_classes(reading)
    _need_shape(reading)
    dtype = reading.settings.get("model.dtype")
    if dtype is not None and str(dtype.value) == "float8":  # of the branch that trains in fp8
        if not reading.given.get("precision"):
            reading.refuse(dtype, "fp8 is not predicted of nanotron", settles="precision", likely=("bf16",))
        reading.say(dtype, "replaced by the precision that is given")
        del reading.settings["model.dtype"]
        name = "optimizer.optimizer_factory.name"
        if str(getattr(reading.settings.get(name), "value", "")) == "adam":  # it has Adam of its own
            reading.settings[name] = replace(reading.settings[name], value="adamW")
            reading.assume("its Adam is predicted as AdamW", name)
    reading.take(OPTIONS)
    _read_model(reading)
    _read_ranks(reading)
    micro, rounds, dp = (
        reading.integer(name) or 1
        for name in ("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica", "parallelism.dp")
    )
    reading.option("gbs", micro * rounds * dp, "tokens.batch_accumulation_per_replica")
    sequence, longest = reading.options["seq"], reading.shape["sequence"]
    if sequence > longest:
        key = f"{_CONFIG}.max_position_embeddings"
        reading.assume(f"sequences of {sequence:,} are longer than the {longest:,} positions of the model", key)
    if reading.layout.get("tp", 1) > 1:
        reading.means("collectives beside the product next to them are part of what is predicted",
                      "parallelism.tp_linear_async_communication")  # fmt: skip
    if reading.flag("parallelism.moe_layer_recompute"):
        reading.assume("recomputing experts alone is not modelled", "parallelism.moe_layer_recompute")
    wide = "optimizer.accumulate_grad_in_fp32"
    if not reading.flag(wide, default=reading.options["precision"] == "fp32"):
        for option, state in zip(("grad_dtype", "master_dtype", "moment_dtype"), HALF, strict=True):
            reading.option(option, state, wide)
    else:
        reading.means("gradients, master weights and moments in fp32", wide)


def _need_shape(reading: Reading) -> None:
    """Ask for the model where its shape is in a file that is not here.

    Raises:
        LackingError: no model is given for it.
    """
    found = reading.settings.pop(f"{_CONFIG}.**", None)
    if found is not None and not reading.given.get("model"):
        message = "the model's shape is in a file that is not here"
        raise LackingError(message, "model", place=found.place, hint="add `model=NAME`")


CLASSES: Mapping[str, Mapping[str, Any]] = {
    "LlamaConfig": (_LIKE_LLAMA := {
        "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048, "num_attention_heads": 32,
        "num_hidden_layers": 32, "vocab_size": 32000,
    }),
    "Qwen2Config": _LIKE_LLAMA,
    "Starcoder2Config": {
        "hidden_size": 2048, "max_position_embeddings": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
        "vocab_size": 49280,
    },
    "MoEConfig": {"num_experts": 8, "top_k": 2},
}  # fmt: skip
"""Class of a model -> its defaults (config/models_config.py)."""

ENGINES = {"OneForwardOneBackwardPipelineEngine": "1f1b", "AllForwardAllBackwardPipelineEngine": "afab"}
"""Class of a pipeline engine -> `pp_engine` (parallel/pipeline_parallel/engine.py)."""


def _take_classes(reading: Reading) -> None:
    """Take a `Config` of Python for the YAML that it saves: constants by their last name, classes by what they mean."""
    settings = reading.settings
    for name in ("parallelism.tp_mode", "parallelism.pp_engine", "model.dtype"):
        found = settings.get(name)
        if found is not None and isinstance(found.value, str):
            last = found.value.rpartition(".")[2]
            settings[name] = replace(found, value=ENGINES.get(last, last))
    for prefix in (_CONFIG, f"{_CONFIG}.moe_config"):
        found = settings.get(prefix)
        kind = str(found.value).rpartition(".")[2] if found is not None else ""
        if found is None or kind not in CLASSES:
            continue
        flag = f"is_{kind.removesuffix('Config').lower()}_config"
        for key, value in {**CLASSES[kind], flag: True}.items():
            settings.setdefault(f"{prefix}.{key}", replace(found, name=key, value=value))
    factory = settings.get("optimizer.optimizer_factory")
    if factory is not None and str(factory.value).endswith("AdamWOptimizerArgs"):
        settings.setdefault("optimizer.optimizer_factory.name", replace(factory, value="adamW"))


def _read_ranks(reading: Reading) -> None:
    layout = reading.layout
    ep = reading.integer("parallelism.expert_parallel_size") or 1
    if ep > 1:
        layout["dp"] = layout.get("dp", 1) * ep
        reading.option("ep", ep, "parallelism.expert_parallel_size")
        reading.assume(
            f"its {ep} expert-parallel ranks are predicted as data-parallel ones, which share the batch",
            "parallelism.expert_parallel_size",
        )
    else:
        reading.means("no expert parallelism", "parallelism.expert_parallel_size")
    gpus = math.prod(layout.get(name, 1) for name in DEGREES)
    stated = gpus_of(reading)
    if stated is not None and stated != gpus:
        why = f"{gpus:,} GPUs by the degrees, {stated:,} by what launches them"
        reading.refuse(reading.get("parallelism.dp"), why, "dp x tp x pp x context_parallel_size are the GPUs")
    if "gpus" not in reading.given:
        reading.option("gpus", gpus, *DEGREES.values(), "nnodes", "nproc_per_node")
    reading.means(f"{gpus:,} GPUs", *DEGREES.values())
    if load_model(str(reading.options["model"])).is_moe:
        layout["etp"] = 1


_CONFIG = "model.model_config"


def _read_model(reading: Reading) -> None:
    kinds = [name for name in ("llama", "qwen2", "starcoder2", "llamoe") if reading.flag(f"{_CONFIG}.is_{name}_config")]
    reading.means("the kind of model", *(f"{_CONFIG}.is_{name}_config" for name in kinds))
    shape = reading.shape
    shape.setdefault("sequence", 2048)
    bias, window = f"{_CONFIG}.attention_bias", f"{_CONFIG}.sliding_window_size"
    if reading.flag(bias):
        reading.model("qkv_bias", True, bias)
    length, mask = reading.integer(window), reading.text(f"{_CONFIG}.flex_attention_mask")
    if length:
        reading.model("window.length", length, window, *([f"{_CONFIG}.flex_attention_mask"] if mask else []))
    if "starcoder2" in kinds:
        shape |= {"gated": False, "mlp_bias": True, "qkv_bias": True, "output_bias": True, "norm_bias": True}
        shape["kv_heads"] = reading.integer(f"{_CONFIG}.num_kv_heads") or 1
        shape["tied_embeddings"] = True
    if "llamoe" in kinds:
        reading.model("moe.experts", reading.integer(f"{_CONFIG}.moe_num_experts"), f"{_CONFIG}.moe_num_experts")
        reading.model("moe.top_k", reading.integer(f"{_CONFIG}.num_experts_per_tok"), f"{_CONFIG}.num_experts_per_tok")
        shape["moe.ffn"] = shape.pop("ffn")
        reading.means("experts take all tokens", f"{_CONFIG}.moe_capacity_factor")
    elif reading.integer(f"{_CONFIG}.moe_config.num_experts"):
        _read_experts(reading)
    reading.options["model"] = named_shape(shape)


def _read_experts(reading: Reading) -> None:
    prefix, shape = f"{_CONFIG}.moe_config", reading.shape
    width = reading.integer(f"{prefix}.moe_intermediate_size") or shape["ffn"]
    for key, value, name in (
        ("moe.experts", reading.integer(f"{prefix}.num_experts"), "num_experts"),
        ("moe.top_k", reading.integer(f"{prefix}.top_k") or 2, "top_k"),
        ("moe.ffn", width, "moe_intermediate_size"),
    ):
        reading.model(key, value, f"{prefix}.{name}")
    shared = reading.integer(f"{prefix}.shared_expert_intermediate_size")
    if reading.flag(f"{prefix}.enable_shared_expert"):
        reading.model("moe.shared_ffn", shared or shape["ffn"], f"{prefix}.enable_shared_expert")
        shape["moe.shared_gate"] = True
    shape.pop("ffn")
    name = f"{prefix}.token_dispatcher_type"
    if reading.text(name) == "allgather":
        reading.assume("the experts' AllGather is predicted as AllToAll", name)
    reading.option("dispatcher", "alltoall", name)


TARGET = Target(
    "nanotron", "nanotron", "huggingface/nanotron at 2411b022a75f (2026-04-07)", ("nanotron",), write, claims, read
)
