"""Configurations of xtuner, which are Python files: those of 0.2, of dictionaries, and those of v1, of classes.

Names and defaults: xtuner 0.2.0 (PyPI), xtuner/configs and model/sft.py; InternLM/xtuner at 253e9e6f23d5 (2026),
xtuner/v1/config/fsdp.py.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpuscale.launch import adapters, preferences, trainer
from gpuscale.launch.huggingface_models import read_model
from gpuscale.launch.launchers import take_gpus
from gpuscale.launch.settings import DTYPES, Reading, Source
from gpuscale.launch.writing import Target
from gpuscale.presets.tools import load_tool

LLM = "model.llm"
HUB = (f"{LLM}.pretrained_model_name_or_path", "pretrained_model_name_or_path")


def claims(source: Source) -> bool:
    """Whether a source is a configuration of xtuner."""
    if source.kind != "python":
        return False
    names = source.settings.keys()
    if source.called == "module":
        return "pretrained_model_name_or_path" in names and bool({"max_length", "accumulative_counts"} & names)
    return source.called == "TrainerConfig" and {"model_cfg", "fsdp_cfg"} <= names


def read(reading: Reading) -> None:
    """Read a configuration of xtuner.

    Raises:
        InputError: a value that makes no sense, or training of a part of the model.
    """
    reading.run_by(load_tool("xtuner"))
    take_gpus(reading)
    if reading.settings.get("model_cfg"):
        _read_classes(reading)
    else:
        _read_dictionaries(reading)


def _read_dictionaries(reading: Reading) -> None:
    read_model(reading, *HUB)
    if (kind := reading.settings.get("model.type")) is not None:
        reading.settings[kind.name] = replace(kind, value=re.split(r"\W", str(kind.value).strip("}"))[-1], why="")
    preferences.read(reading)
    _read_adapters(reading)
    packed = ["max_packed_length"] if reading.flag("use_varlen_attn") and reading.stated("max_packed_length") else []
    trainer.read_sequence(reading, *packed, "max_length")
    ways = reading.integer("sequence_parallel_size") or 1
    if ways > 1:
        reading.option("cp", ways, "sequence_parallel_size")
        reading.option("cp_comm", "a2a", "sequence_parallel_size")
    micro = reading.integer("train_dataloader.batch_size", "batch_size")
    steps = reading.integer("optim_wrapper.accumulative_counts", "accumulative_counts")
    names = ("batch_size", "accumulative_counts", "train_dataloader.batch_size", "optim_wrapper.accumulative_counts")
    trainer.read_batch(reading, micro or 1, steps or 1, None, *names)
    _read_strategy(reading)
    dtype = reading.text("optim_wrapper.dtype")
    words = {**DTYPES, "torch.bfloat16": "bf16", "torch.float16": "fp16"}
    if dtype in words:
        reading.option("precision", words[dtype], "optim_wrapper.dtype")
    else:
        reading.option("precision", "bf16")
        reading.assume("bf16, as GPUs that can have it under DeepSpeed's `auto`")
    kept = reading.flag("model.use_activation_checkpointing", default=True)
    reading.option("recompute", "full" if kept else "none", "model.use_activation_checkpointing")
    name = (reading.text("optim_wrapper.optimizer.type", "optim_type") or "AdamW").rpartition(".")[2].lower()
    if name not in trainer.OPTIMS:
        found = reading.get("optim_wrapper.optimizer.type", "optim_type")
        reading.refuse(found, f"the optimizer {name[:40]} is not modelled", settles="optimizer")
    reading.option("optimizer", trainer.OPTIMS[name], "optim_wrapper.optimizer.type", "optim_type")


def _read_adapters(reading: Reading) -> None:
    """Read adapters: a `LoraConfig` of PEFT beside an LLM that is loaded in 4 bits, or in 16."""
    prefix, lora = f"{LLM}.", reading.get("model.lora")
    if lora is None or reading.given.get("tune") == "full":
        return
    for name, found in list(reading.settings.items()):
        if name.startswith((f"{prefix}quantization_config.", f"{prefix}load_in_")):
            reading.settings.setdefault(name.removeprefix(prefix), found)
    for name, usual in (("r", 8), ("target_modules", "all-linear")):  # of PEFT; model/utils.py, find_all_linear_names
        whole = f"model.lora.{name}"
        reading.settings.setdefault(whole, replace(lora, name=whole, value=usual))
    base, by = adapters.quantised(reading, "model.lora")
    adapters.take(reading, adapters.names_below("model.lora."), "model.lora", base=base, by=by)


def _read_strategy(reading: Reading) -> None:
    """Set the sharding: that of DeepSpeed's file by name, `--deepspeed deepspeed_zero2`, or none."""
    found = reading.get("deepspeed", "strategy.config.zero_optimization.stage")
    stage = re.search(r"(?:zero|^)(\d)", str(found.value)) if found is not None else None
    if found is not None and stage is None:
        reading.refuse(found, "not one of deepspeed_zero1, zero2, zero3", settles="zero")
    if stage is not None and found is not None:
        reading.option("framework", "deepspeed", found.name)
        reading.option("zero", int(stage[1]), found.name)
        if "offload" in str(found.value):
            reading.option("offload", "optimizer+parameters" if stage[1] == "3" else "optimizer", found.name)
        return
    reading.option("framework", "pytorch")
    reading.option("zero", 0)
    reading.assume("no sharding, as xtuner runs without --deepspeed: `zero=2` is that of --deepspeed deepspeed_zero2")


PREFIX = "fsdp_cfg."


def _read_classes(reading: Reading) -> None:
    """Read a `TrainerConfig` of v1: FSDP2 in plain PyTorch."""
    reading.option("framework", "pytorch")
    _read_class_model(reading)
    trainer.read_sequence(reading, "dataloader_cfg.pack_max_length", "sequence_length", "pack_max_length")
    for axis, name in (("tp", f"{PREFIX}tp_size"), ("ep", f"{PREFIX}ep_size"), ("cp", "sp_size")):
        if (size := reading.integer(name)) is not None:
            reading.option(axis, size, name)
    if reading.layout.get("cp", 1) > 1:
        reading.option("cp_comm", "a2a", "sp_size")
    if batch := reading.integer("global_batch_size"):
        reading.option("gbs", batch, "global_batch_size")
    reading.option("micro_batch_size", 1)
    reading.assume("one packed sequence per microbatch")
    _read_fsdp(reading)
    eight = reading.get("model_cfg.float8_cfg")
    reading.option("precision", "fp8-current" if eight else "bf16", "model_cfg.float8_cfg", f"{PREFIX}param_dtype")
    name = (reading.text("optim_cfg") or "AdamWConfig").rpartition(".")[2].removesuffix("Config").lower()
    if name not in {"adamw", "muon"}:
        reading.refuse(reading.get("optim_cfg"), f"the optimizer {name[:40]} is not modelled", settles="optimizer")
    reading.option("optimizer", name, "optim_cfg")


def _read_class_model(reading: Reading) -> None:
    """Set the model of a class: `Qwen3Dense8BConfig`, `Qwen3MoE30BA3Config`."""
    if reading.given.get("model"):
        reading.means("replaced by the model that is given", "model_cfg")
        return
    found = reading.settings["model_cfg"]
    name = str(found.value).rpartition(".")[2]
    parts = re.fullmatch(r"([A-Za-z]+\d*)(?:Dense|MoE)?(\d\w*?)Config", name)
    if parts is None:
        reading.refuse(found, f"the model {name[:60]} is not known here", settles="model")
    size = re.sub(r"(\d)p(\d)", r"\1.\2", re.sub(r"ba(\d+)$", r"b-a\1b", parts[2].lower()))
    reading.settings["model_cfg"] = replace(found, value=f"{parts[1]}-{size}".lower())
    read_model(reading, "model_cfg")


def _read_fsdp(reading: Reading) -> None:
    """Read `FSDPConfig`: sharding, recomputation, offload, compilation."""
    reading.option("zero", 3 if reading.flag(f"{PREFIX}reshard_after_forward", default=True) else 2, "fsdp_cfg")
    if shard := reading.integer(f"{PREFIX}hsdp_sharding_size"):
        reading.option("shard", shard, f"{PREFIX}hsdp_sharding_size")
    ratio = reading.number(f"{PREFIX}recompute_ratio")
    if ratio is not None and 0 < ratio < 1:
        reading.assume("all layers are predicted as recomputed", f"{PREFIX}recompute_ratio")
    reading.option("recompute", "none" if ratio == 0 else "full", f"{PREFIX}recompute_ratio")
    reading.switch("offload", "optimizer+parameters", None, f"{PREFIX}cpu_offload")
    reading.switch("compile", "on", "off", f"{PREFIX}torch_compile")


TARGET = Target(
    "xtuner", "xtuner", "xtuner 0.2.0 (PyPI), v1 at 253e9e6f23d5", ("pytorch", "deepspeed"), None, claims, read
)
