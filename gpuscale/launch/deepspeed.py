"""DeepSpeed's JSON beside arguments of the Hugging Face Trainer: written from a plan, read as a job.

Names and rules are those of DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py, runtime/precision_config.py,
runtime/tensor_parallel/config.py, module_inject/auto_ep_config.py), whose configuration class the tests parse with.
"""

from __future__ import annotations

from typing import Any

from gpuscale.launch import trainer
from gpuscale.launch.quoting import json_text
from gpuscale.launch.settings import Reading
from gpuscale.launch.writing import LaunchFile, Program, Writing
from gpuscale.specs.gpu import WIDE

FILE = "ds_config.json"
BASIS = f"DeepSpeed 0.19.8, under {trainer.BASIS}"
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("AdamW", {}), "adamw": ("AdamW", {}), "lion": ("Lion", {}), "muon": ("Muon", {}),
    "sgd": ("SGD", {"momentum": 0.0}), "sgd-momentum": ("SGD", {"momentum": 0.9}),
}  # fmt: skip
"""`optimizer` -> `optimizer.type` and what of `optimizer.params` sets it apart (runtime/engine.py). Adam is AdamW, as
DeepSpeed's own `Adam` is where nothing is said (`adam_w_mode`), and as in every other framework."""

BUCKET = 500_000_000
"""Elements of a bucket: `reduce_bucket_size` by default (runtime/zero/config.py)."""

LIVE_PARAMETERS = 1_000_000_000
"""`stage3_max_live_parameters` by default."""


def write(writing: Writing) -> Program:
    """Write a plan as DeepSpeed's JSON and the command of run_clm.py that reads it."""
    trainer.refuse_beyond(writing)
    told, files = trainer.arguments(writing)
    if trainer.full(writing):
        told.append(("--gradient_checkpointing", "True"))
    if writing.asked("loss") in {None, "linear"}:
        told.append(("--use_liger_kernel", "True"))
    elif writing.asked("loss") != "standard":
        writing.refuse("loss", "no command line turns Liger's cross entropy on without its fused LM head")
    made, optim = config(writing)
    told += [("--optim", optim)] if optim else []
    told.append(("--deepspeed", FILE))
    files.append(LaunchFile(FILE, json_text(made)))
    return Program(trainer.SCRIPT, tuple(told), tuple(files), environment(writing))


def config(writing: Writing) -> tuple[dict[str, Any], str]:
    """Return DeepSpeed's JSON for a plan, and the Trainer's `optim` where DeepSpeed has no such optimizer."""
    optimizer, optim = _optimizer(writing)
    made = {  # not `train_batch_size`: it is held against the world, which AutoTP does not divide
        "train_micro_batch_size_per_gpu": writing.plan.micro_batch_size,
        "gradient_accumulation_steps": writing.plan.num_microbatches,
        "gradient_clipping": "auto",
        **_precision(writing),
        **optimizer,
        "zero_optimization": _zero(writing),
        **_groups(writing),
    }
    return made, optim


def _precision(writing: Writing) -> dict[str, Any]:
    """Precision of products, and of master weights, moments and gradients."""
    precision, recipe = writing.spec.precision, writing.spec.recipe
    if precision == "fp4" or (precision == "fp8" and recipe != "delayed"):
        writing.refuse("precision", "accelerate gives Transformer Engine under DeepSpeed no recipe but delayed scaling")
    if precision in WIDE:
        return {}
    half = precision if precision in {"bf16", "fp16"} else ""
    own: dict[str, Any] = {"enabled": True}
    master, moment = writing.job.request["master_dtype"], writing.job.request["moment_dtype"]
    if master == "none":
        writing.refuse("master_dtype", "ZeRO's optimizers of 16-bit models keep master weights (master_dtype = none)")
    elif master != "fp32" and (master != half or not writing.plan.zero):
        why = f"{half or precision} under ZeRO {writing.plan.zero} keeps master weights in fp32"
        writing.refuse("master_dtype", f"{why} (master_dtype = {master})")
    elif master != "fp32":
        own[f"{half}_master_weights_and_grads"] = True
    if moment == "bf16" == master == half:
        own["bf16_optimizer_states"] = True
    elif moment != "fp32":
        writing.refuse("moment_dtype", "bf16_optimizer_states goes with bf16_master_weights_and_grads alone")
    gradient = _gradients(writing, half)
    config = {half: own} if half else {}
    return {**config, "data_types": {"grad_accum_dtype": gradient}, "communication_data_type": gradient}


def _gradients(writing: Writing, half: str) -> str:
    """Return the type in which gradients are accumulated and reduced."""
    asked = str(writing.job.request["grad_dtype"])
    if asked == "fp32" and not writing.plan.zero:
        writing.refuse("grad_dtype", "without ZeRO gradients are accumulated as the model is (runtime/engine.py)")
    if asked == "fp16" != half:
        writing.refuse("grad_dtype", "fp16 gradients are those of fp16 models")
    return "fp32" if asked == "fp32" else half or "bf16"


def _optimizer(writing: Writing) -> tuple[dict[str, Any], str]:
    """Return the JSON's optimizer, or the Trainer's where DeepSpeed has none of that kind."""
    name = str(writing.asked("optimizer"))
    if name in OPTIMIZERS:
        kind, own = OPTIMIZERS[name]
        params = {"lr": "auto", "weight_decay": "auto", **own}
        untested = {"zero_allow_untested_optimizer": True} if name.startswith("sgd") else {}
        return {"optimizer": {"type": kind, "params": params}, **untested}, ""
    if writing.spec.offload.optimizer:
        writing.refuse("optimizer", "optimizers in host memory are DeepSpeed's own, with moments of 32 bits")
    return {"zero_allow_untested_optimizer": True}, trainer.optimizer(writing)


def _zero(writing: Writing) -> dict[str, Any]:
    plan, runtime, offload = writing.plan, writing.spec.runtime, writing.spec.offload
    overlap = runtime.overlap_grad_reduce and runtime.overlap_param_gather
    zero: dict[str, Any] = {"stage": plan.zero}
    if plan.zero:
        zero |= {
            "overlap_comm": overlap, "contiguous_gradients": True, "reduce_scatter": True,
            "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET,
        }  # fmt: skip
        if plan.shard_size != plan.dp * plan.cp:
            writing.refuse(
                "shard", "ZeRO shards over all replicas: MiCS was removed (runtime/config.py, mics_shard_size)"
            )
    elif writing.asked("overlap") == "none":
        writing.refuse("overlap", "without ZeRO no setting says whether gradients are reduced under the backward pass")
    if plan.zero == 3:
        zero |= {
            "stage3_max_live_parameters": LIVE_PARAMETERS, "stage3_max_reuse_distance": LIVE_PARAMETERS,
            "stage3_prefetch_bucket_size": BUCKET // 10 if overlap else 0,
        }  # fmt: skip
    if offload.optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if offload.parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if offload.activations:
        writing.refuse("offload", "activation_checkpointing.cpu_checkpointing needs a model that calls DeepSpeed's own")
    if runtime.grad_reduce == "last" and plan.zero >= 2 and plan.num_microbatches > 1:
        writing.refuse("grad_reduce", "ZeRO-2 and 3 reduce in each microbatch (runtime/engine.py, no_sync)")
    return zero


def _groups(writing: Writing) -> dict[str, Any]:
    plan, runtime = writing.plan, writing.spec.runtime
    config: dict[str, Any] = {}
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp, "tp_overlap_comm": True, "vocab_parallel_lm_head": True}
    if plan.cp > 1:
        config["sequence_parallel_size"] = plan.cp
        if runtime.cp_comm != "a2a":
            writing.refuse("cp_comm", f"DeepSpeed's sequence parallelism is Ulysses, a2a (cp_comm = {runtime.cp_comm})")
    if plan.ep > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": plan.ep, "expert_tensor_parallel_size": 1}
        if runtime.dispatcher == "deepep":
            tokens = plan.micro_batch_size * plan.sequence // plan.cp
            config["expert_parallel"] |= {"comm_backend": "deepep", "comm_max_tokens_per_rank": tokens}
        elif runtime.dispatcher != "alltoall":
            writing.refuse("dispatcher", f"comm_backend is comm or deepep (dispatcher = {runtime.dispatcher})")
    return config


def environment(writing: Writing) -> dict[str, tuple[str, str]]:
    """Return the variables of a Trainer under DeepSpeed, each with the reason for it."""
    told: dict[str, tuple[str, str]] = {}
    if writing.plan.cp > 1:
        told["ACCELERATE_USE_PARALLELISM_CONFIG"] = (
            "true",
            "the Trainer takes its parallel degrees from the environment",
        )
        told["PARALLELISM_CONFIG_SP_SIZE"] = (str(writing.plan.cp), "ranks that share a sequence (DeepSpeed-Ulysses)")
        told["PARALLELISM_CONFIG_SP_BACKEND"] = ("deepspeed", "accelerate has no other")
    if writing.spec.precision == "fp8":
        told["ACCELERATE_MIXED_PRECISION"] = ("fp8", "the Trainer has no argument for fp8")
        told["ACCELERATE_FP8_BACKEND"] = ("TE", "Transformer Engine, whose recipe is delayed scaling")
    return told


# --- read


def names(*keys: str) -> tuple[str, ...]:
    """Return DeepSpeed's keys as they stand in a file of its own, and in a table of other tools' files."""
    return tuple(f"{table}{key}" for key in keys for table in ("", "deepspeed.", "ds_config."))


def stated(reading: Reading) -> bool:
    """Whether settings are DeepSpeed's."""
    marks = (*names("zero_optimization.stage"), "deepspeed_config.zero_stage", "zero_stage")
    engine = reading.settings.keys() & {"train_micro_batch_size_per_gpu", "train_batch_size"} and any(
        name in source.settings for source in reading.sources if source.kind == "json" for name in _OF_ENGINE
    )
    kind = reading.text("distributed_type") or ""
    return kind.upper() == "DEEPSPEED" or reading.flag("use_deepspeed") or bool(engine or reading.first(*marks))


_OF_ENGINE = (
    "steps_per_print",
    "wall_clock_breakdown",
    "train_micro_batch_size_per_gpu",
    "fp16.enabled",
    "bf16.enabled",
)
"""Settings by which a file is DeepSpeed's, though it says nothing of ZeRO."""


_FILES = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "deepspeed_config.deepspeed_config_file")
"""Settings that name a configuration of DeepSpeed's own."""


def read(reading: Reading) -> None:
    """Read DeepSpeed's own settings: everything but model, sequence and batch."""
    _read_groups(reading)
    stages = (*names("zero_optimization.stage"), "deepspeed_config.zero_stage", "zero_stage")
    stage = reading.integer(*stages)
    if stage is None:
        own = any(name in source.settings for source in reading.sources for name in _OF_ENGINE)
        stage = 0 if own or reading.first(*_FILES) else 2  # accelerate utils/dataclasses.py, DeepSpeedPlugin
        reading.assume(f"ZeRO {stage}: nothing else is said")
    reading.option("zero", stage, *stages)
    _read_offload(reading)
    _read_overlap(reading, stage)
    _read_states(reading)
    for name in names("zero_optimization.mics_shard_size", "zero_optimization.zero_hpz_partition_size"):
        size = reading.integer(name)
        if size and size > 1 and stage == 3:
            if "mics" in name:
                reading.option("shard", size, name)
            else:
                reading.assume(
                    "weights are gathered from all ranks: the copy inside a node (hpZ) is not modelled", name
                )
    for name in names("zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_gradients"):
        if reading.flag(name):
            reading.assume("communication in 16 bits: quantised collectives (ZeRO++) are not modelled", name)


def _read_groups(reading: Reading) -> None:
    tp = (f"tensor_parallel.{key}" for key in ("autotp_size", "tp_size", "tp.tp_size"))
    reading.number_from(2, "tp", *names(*tp), "deepspeed_autotp_size")
    own, accelerates = names("sequence_parallel_size"), "parallelism_config.parallelism_config_sp_size"
    cp = ("PARALLELISM_CONFIG_SP_SIZE", *own, accelerates, "sp_size")
    if reading.number_from(2, "cp", *cp):
        reading.option("cp_comm", "a2a", *cp)
    if reading.number_from(2, "ep", *names("expert_parallel.autoep_size"), "expert_parallel_size", "ep_size"):
        where = names("expert_parallel.comm_backend")
        reading.option("dispatcher", "deepep" if reading.text(*where) == "deepep" else "alltoall", *where)
    reading.means("degrees of accelerate", "ACCELERATE_USE_PARALLELISM_CONFIG", "PARALLELISM_CONFIG_SP_BACKEND")


def _read_offload(reading: Reading) -> None:
    parts, of = [], []
    kinds = (("optimizer", "offload_optimizer"), ("parameters", "offload_param"))
    for part, key in kinds:
        where = (*names(f"zero_optimization.{key}.device"), f"deepspeed_config.{key}_device", f"{key}_device")
        device = reading.text(*where)
        if device in {"cpu", "nvme"}:
            parts.append(part)
            of += [one for one in where if reading.get(one)]
        if device == "nvme":
            reading.assume("offloaded to host memory: NVMe is not modelled", *where)
    for part, key in (("optimizer", "cpu_offload"), ("parameters", "cpu_offload_params")):  # until DeepSpeed 0.4
        where = names(f"zero_optimization.{key}")
        if part not in parts and reading.flag(*where):
            parts, of = [*parts, part], [*of, *where]
    if parts:
        before = [part for part in str(reading.options.get("offload", "")).split("+") if part]
        reading.option("offload", "+".join([*parts, *before]), *of)


def _read_overlap(reading: Reading, stage: int) -> None:
    where = names("zero_optimization.overlap_comm")
    said = reading.first(*where)
    on = reading.flag(said) if said else stage in {0, 3}
    if not said and stage in {1, 2}:
        reading.assume("gradients are reduced after the backward pass: overlap_comm is off by default below ZeRO-3")
    if not on:
        reading.option("overlap", "none", *where)
    else:
        reading.means("communication runs beside computation", *where)


def _read_states(reading: Reading) -> None:
    gradient = (*names("data_types.grad_accum_dtype"), *names("communication_data_type"))
    kind = (reading.text(*gradient) or "").lower()
    if kind in {"fp32", "bf16", "fp16"}:
        reading.option("grad_dtype", "fp32" if kind == "fp32" else "bf16", *gradient)
    for half in ("bf16", "fp16"):
        reading.switch("master_dtype", half, None, *names(f"{half}.{half}_master_weights_and_grads"))
    reading.switch("moment_dtype", "bf16", None, *names("bf16.bf16_optimizer_states"))


OPTIMIZER = names("optimizer.type")


def read_sgd(reading: Reading) -> None:
    """Tell SGD with momentum from SGD without, and Adam from AdamW, which its class is by default."""
    kind = (reading.text(*OPTIMIZER) or "").lower()
    if kind == "sgd" and (reading.number(*names("optimizer.params.momentum")) or 0) > 0:
        reading.option("optimizer", "sgd-momentum", *OPTIMIZER, *names("optimizer.params.momentum"))
    if kind == "adam" and reading.flag(*names("optimizer.params.adam_w_mode"), default=True):
        reading.option("optimizer", "adamw", *OPTIMIZER)
