"""Jobs of the Hugging Face Trainer and of what builds on it, read: under DeepSpeed, FSDP or DDP, as the files say."""

from __future__ import annotations

import math

from gpuscale.launch import accelerate, deepspeed, trainer
from gpuscale.launch.huggingface_models import read_model
from gpuscale.launch.launchers import take_gpus
from gpuscale.launch.settings import Reading, Source
from gpuscale.launch.writing import Target

TRAINER_MARKS = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "finetuning_type",
    "base_model", "deepspeed", "num_train_epochs", "distributed_type", "mixed_precision",
)  # fmt: skip
DEEPSPEED_MARKS = (
    "zero_optimization.stage", "deepspeed", "deepspeed.zero_optimization.stage", "deepspeed_config.zero_stage",
    "zero_stage", "train_micro_batch_size_per_gpu",
)  # fmt: skip


def _claims_deepspeed(source: Source) -> bool:
    """Whether a source is DeepSpeed's, or a Trainer's under DeepSpeed."""
    kind = source.settings.get("distributed_type")
    accelerated = kind is not None and str(kind.value).upper() == "DEEPSPEED"
    pipelined = any(name in source.settings for name in ("pipe_parallel_size", "model_parallel_size", "num_layers"))
    launched = "use_deepspeed" in source.launcher or "zero_stage" in source.launcher
    return not pipelined and (accelerated or launched or any(name in source.settings for name in DEEPSPEED_MARKS))


def _claims_accelerate(source: Source) -> bool:
    """Whether a source is accelerate's, or a Trainer's."""
    tables = ("fsdp_config.", "parallelism_config.")
    launched = any(name in source.launcher for name in ("use_fsdp", "mixed_precision"))
    return launched or any(name in TRAINER_MARKS or name.startswith(tables) for name in source.settings)


def read(reading: Reading) -> None:
    """Read a job of the Trainer.

    Raises:
        InputError: it is not one of training a whole decoder, or something that must be known is not said.
    """
    trainer.refuse_partial(reading)
    read_model(reading)
    take_gpus(reading)
    under_deepspeed = deepspeed.stated(reading)
    recomputed = _read_checkpointing(reading)
    if reading.flag("activation_offloading", "activation_checkpoint_cpu_offload"):
        reading.option("offload", "activations", "activation_offloading", "activation_checkpoint_cpu_offload")
        if not recomputed:
            reading.option("recompute", "full", "activation_offloading", "activation_checkpoint_cpu_offload")
    if under_deepspeed:
        reading.option("framework", "deepspeed")
        deepspeed.read(reading)
        if _tool(reading) == "DeepSpeed-Chat" and reading.flag("offload"):
            third = reading.layout["zero"] == 3
            reading.option("offload", "optimizer+parameters" if third else "optimizer", "offload")
    else:
        _read_accelerate(reading)
    trainer.read_experts(reading)
    if reading.flag("tiled_mlp_compute", "use_unsloth", "sequence_tiling"):
        reading.assume("whole sequences at a time: tiled layers are not modelled", "tiled_mlp_compute", "use_unsloth")
    _read_loss(reading, under_deepspeed)
    usual = {"ArcticTraining": "bf16", "DeepSpeed-Chat": "fp16"}.get(_tool(reading), "fp32")
    accelerate.read_precision(reading, usual)
    optimizer = (*deepspeed.OPTIMIZER, "optim", "optimizer.type", "optimizer")
    trainer.read_optimizer(reading, *optimizer)
    if under_deepspeed and reading.first(*deepspeed.OPTIMIZER):
        deepspeed.read_sgd(reading)
    trainer.read_sequence(reading)
    _read_batch(reading, under_deepspeed)


def _read_loss(reading: Reading, under_deepspeed: bool) -> None:
    """Read the cross entropy: Liger's under DeepSpeed, and none of it under FSDP, are what the profiles have."""
    loss = trainer.read_loss(reading)
    if under_deepspeed and loss != "linear":
        reading.option("loss", loss or "standard", "liger_kernel_config")
        if loss is None:
            reading.assume("the loss works on logits in fp32; norms and activations as fused as with Liger's kernels")
    elif not under_deepspeed and loss in {"linear", "fused"}:
        reading.option("loss", loss, "use_liger_kernel", "plugins")


def _tool(reading: Reading) -> str:
    """Return which tool has defaults of its own here: `LLaMA-Factory`, `ArcticTraining`, `DeepSpeed-Chat` or none."""
    if "zero_stage" in reading.settings:
        return "DeepSpeed-Chat"
    if reading.get("finetuning_type", "cutoff_len"):
        return "LLaMA-Factory"
    return "ArcticTraining" if reading.get("model.name_or_path") and not reading.get("base_model") else ""


def _read_checkpointing(reading: Reading) -> bool:
    """Read whether layers are recomputed, which LLaMA-Factory and ArcticTraining do unless told otherwise."""
    off = reading.first("disable_gradient_checkpointing", "model.disable_activation_checkpoint")
    if off and not reading.given.get("recompute"):
        recomputed = not reading.flag(off)
        reading.option("recompute", "full" if recomputed else "none", off)
        return recomputed
    names = (*accelerate.names("activation_checkpointing"), "gradient_checkpointing", "activation_checkpointing")
    return trainer.read_checkpointing(reading, *names, default=_tool(reading) in {"LLaMA-Factory", "ArcticTraining"})


def _read_accelerate(reading: Reading) -> None:
    degrees = accelerate.read_degrees(reading)
    reading.option("framework", "pytorch" if degrees.get("ep", 1) > 1 else "accelerate")
    processes = reading.integer("num_processes")
    if "gpus" not in reading.options and processes:
        reading.option("gpus", processes, "num_processes")
    if "gpus" not in reading.options and "dp_shard" in degrees:
        product = math.prod(degrees.values())
        reading.option("gpus", product)
        reading.assume(f"GPUs are the product of the degrees, {product}")
    reading.means("nodes", "num_machines")
    if accelerate.sharded(reading):
        accelerate.read_fsdp(reading, degrees)
    else:
        reading.option("zero", 0, "distributed_type")
        if not reading.get("distributed_type"):
            reading.assume("replicas without sharding (DDP): neither DeepSpeed nor FSDP is asked for")
    if reading.flag("torch_compile", "dynamo_config.dynamo_backend", default=False):
        reading.option("compile", "on", "torch_compile")
    each = trainer.dictionary(reading, "accelerator_config").get("gradient_accumulation_kwargs")
    if isinstance(each, dict) and each.get("sync_each_batch"):
        reading.option("grad_reduce", "each", "accelerator_config")


def _read_batch(reading: Reading, under_deepspeed: bool) -> None:
    micro_names = (*trainer.MICRO, *deepspeed.names("train_micro_batch_size_per_gpu"))
    steps_names = (*trainer.ACCUMULATION, *deepspeed.names("gradient_accumulation_steps"))
    total_names = deepspeed.names("train_batch_size") if under_deepspeed else ()
    micro, steps, total = (trainer.count(reading, *names) for names in (micro_names, steps_names, total_names))
    if total is not None and under_deepspeed and int(reading.layout.get("tp") or 1) > 1 and micro and steps:
        world = trainer.data_parallel(reading, "the batch") * int(reading.layout["tp"])
        if total != micro * steps * world:
            message = f"train_batch_size {total} is not {micro} x {steps} x {world} GPUs, which AutoTP does not divide"
            found = reading.get(*total_names)
            reading.refuse(found, message, "leave train_batch_size out (runtime/config.py:937)")
        total = None
    if micro is None and total is None and reading.first("num_train_epochs", "output_dir", "do_train"):
        micro = trainer.TRAINER_DEFAULT_MICRO
        reading.assume(f"per_device_train_batch_size is {micro}, the Trainer's default")
    trainer.read_batch(reading, micro, steps, total, *micro_names, *steps_names, *total_names)


DEEPSPEED = Target("deepspeed", "DeepSpeed", deepspeed.BASIS, ("deepspeed",), deepspeed.write, _claims_deepspeed, read)
ACCELERATE = Target(
    "accelerate",
    "Hugging Face accelerate",
    accelerate.BASIS,
    ("accelerate",),
    accelerate.write,
    _claims_accelerate,
    read,
)
TARGETS = (DEEPSPEED, ACCELERATE)
