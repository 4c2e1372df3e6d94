"""Loops of training of a script's own, as a trainer would be told: PyTorch, accelerate, DeepSpeed, Lightning.

Known by an optimizer over a language model's parameters, or by an engine that is given the model. Nothing is known of
what such a loop has where nothing is said: `gpuscale.launch.own_programs` asks for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuscale.launch.python_run import Program
from gpuscale.launch.python_values import HANDING_OUT, Function, Record, Symbol, owners
from gpuscale.launch.settings import digits

ARGUMENTS, TRAINER = "LoopArguments", "LoopTrainer"
"""What the arguments and the trainer of such a loop are called."""

MODELS = re.compile(r"LM\b|LMHead|LanguageModel|\b\w*(GPT|Llama|Qwen|Mistral|Gemma)")
LANGUAGE = re.compile(rf"{MODELS.pattern}|Tokenizer|tiktoken")
"""Classes of language models, and of what goes with them."""

OTHERS = re.compile(
    r"For(Sequence|Masked|Token|Conditional|Question|Image|Audio|Vision|Speech)|Diffus|UNet|torchvision|Vision"
    r"|Encoder(Model|Decoder)|SentenceTransformer|\bAutoModel\b|Bert|ViT\b|CLIP"
)
OPTIMIZER = re.compile(r"^(DeepSpeed|Paged|Fused|CPU)*(AdamW?|SGD|Lion|Adafactor|Muon)(8bit|32bit)?$")
SEVERAL = re.compile(r"distributed|accelerat|deepspeed|lightning|DataParallel|LOCAL_RANK|WORLD_SIZE|device_map|horovod")
"""What speaks of more than one process or GPU."""

AGAINST = re.compile(
    r"\b(ref|reference|reward|teacher|critic|value)_model\b|\bkl_div\b|\bdpo_loss\b|\bold_log_?probs\b"
)
"""What speaks of learning from pairs, rewards or another model."""

OF_DEEPSPEED = {
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "global_batch_size": "train_batch_size",
}
"""What DeepSpeed's engine counts, by the names that arguments of the Trainer have -> its key."""

SHARDING = ("FullyShardedDataParallel", "FSDP", "fully_shard")
"""FSDP of PyTorch itself, which leaves weights in the type that they have."""

SHARDS = {"FULL_SHARD": "full_shard", "SHARD_GRAD_OP": "shard_grad_op", "NO_SHARD": "no_shard",
          "HYBRID_SHARD": "hybrid_shard", "_HYBRID_SHARD_ZERO2": "hybrid_shard_zero2"}  # fmt: skip
MIXED = {"bf16-mixed": "bf16", "16-mixed": "fp16", "bf16": "bf16", "16": "fp16", "32": "no", "32-true": "no"}
HELD = {"bf16-true": "bfloat16", "16-true": "float16"}
"""Lightning's words for precision -> accelerate's, or the type of the weights."""


def loop(program: Program) -> Record | None:
    """Return the trainer that a loop of a script's own amounts to; None where there is none of a language model."""
    fits = [one for one in program.unfollowed if _last(one) == "fit" and is_lightning(one.parts.get("of"))]
    whole = fits[0].parts.get("0", fits[0].parts.get("model")) if fits else None
    _configure(program, whole)
    calls = program.unfollowed
    optimizers = [one for one in calls if OPTIMIZER.match(_last(one)) and one.parts]
    engine = next((one for one in calls if one.origin == "deepspeed.initialize"), None)
    started = engine or next(iter(fits or optimizers), None)
    names = " ".join(f"{one.name} {one.origin}" for one in calls)
    if started is None or OTHERS.search(names.replace("AutoModel.", "") if _is_causal(calls) else names):
        return None
    models = [*_given(engine), *(one for call in optimizers[:1] for one in _given(call)), *_held(whole)]
    model = next((one for one in models if not is_lightning(one)), None)
    inner = next((one for one in _held(model) if one is not model), None)
    if not LANGUAGE.search(names) and not _of_words(model):
        return None
    if model is not None and model.kind and inner is not None:  # a module of the script's own around the model
        model = inner
    args = Record(ARGUMENTS, started.place, origin=ARGUMENTS)
    _say(args, program, optimizers, engine)
    text = "\n".join(line for one in program.modules.values() if one for line in one.lines)
    if not SEVERAL.search(text):
        args.put("loop_gpus", 1, started.place)
    if AGAINST.search(text):
        args.put("ref_model", True, started.place)
    made = Record(TRAINER, started.place, {"args": args}, origin=TRAINER)
    if model is not None:
        made.put("model", model, model.place)
        if args.parts.get("mixed_precision") == "no" and not re.search(r"from_|load|get_|prepare", model.name):
            args.put("torch_dtype", "float32", model.place)  # as torch makes weights
    return made


def _configure(program: Program, whole: Any) -> None:
    """Go through the methods in which a module of Lightning makes its model and its optimizers."""
    for name in ("configure_model", "configure_optimizers"):
        found = whole.kind.find(name) if isinstance(whole, Record) and whole.kind else ()
        if found and isinstance(found[0], Function):
            program.follow(found[0].bound(whole), (), {}, whole.place)


def _is_causal(calls: list[Record]) -> bool:
    """Whether adapters are said to be of a causal language model, which `AutoModel` loads too (ChatGLM)."""
    kinds = (one.parts.get("task_type") for one in calls)
    return any(str(getattr(kind, "name", kind)).endswith("CAUSAL_LM") for kind in kinds)


def _of_words(model: Record | None) -> bool:
    """Whether a module of the script's own is a language model: by its name, or as it is made for a vocabulary."""
    made = model.kind.find("__init__") if model is not None and model.kind else ()
    words = ast.unparse(made[0].node.args) if made and isinstance(made[0], Function) else ""
    return model is not None and bool(LANGUAGE.search(model.name) or "vocab" in words)


def _last(call: Record) -> str:
    return call.name.rpartition(".")[2]


def is_lightning(value: Any) -> bool:
    """Whether it is a trainer of Lightning (not NeMo's, which has readers of its own)."""
    trainer = isinstance(value, Record) and _last(value) in {"Trainer", "Fabric"}
    return trainer and "lightning" in value.origin.lower() and not value.origin.startswith("nemo")


def _given(call: Record | None) -> Iterator[Record]:
    """Yield the models whose parameters a call is given, or that are given as such."""
    parts = () if call is None else (call.parts.get(key) for key in ("model", "0", "params"))
    for part in parts:
        for one in part if isinstance(part, list) else [part]:
            held = one.get("params") if isinstance(one, dict) else one
            yield from (owner for owner in owners(held) if owner.name not in HANDING_OUT)


def _held(whole: Any) -> Iterator[Record]:
    """Yield what an object holds that may be its model."""
    for name, part in whole.parts.items() if isinstance(whole, Record) else ():
        if isinstance(part, Record) and ("model" in name or MODELS.search(part.name)):
            yield part
    if isinstance(whole, Record):
        yield whole


def _say(args: Record, program: Program, optimizers: list[Record], engine: Record | None) -> None:
    """Say what the calls of a loop say, by the names that arguments of the Trainer have."""
    for call in (one for one in program.unfollowed if id(one) not in program.again):
        name = "Trainer" if is_lightning(call) else "" if _last(call) == "Trainer" else _last(call)
        if name in SAYING:
            SAYING[name](args, call)
        if name in SHARDING:
            args.put("loop_shards", True, call.place)
    if program.accumulates is not None:
        args.put("gradient_accumulation_steps", *program.accumulates)
    config: Any = None if engine is None else engine.parts.get("config", engine.parts.get("config_params"))
    if engine is not None:
        args.put("deepspeed", config, engine.place)
    for name, key in OF_DEEPSPEED.items() if isinstance(config, dict) else ():
        if config.get(key, "auto") != "auto":
            args.put(name, config[key], engine.place if engine else args.place)
    for one in optimizers[:1]:
        kind = _last(one).removeprefix("DeepSpeed").lower()
        if kind.startswith("cpu"):
            args.put("deepspeed_config.offload_optimizer_device", "cpu", one.place)
        args.put("optim", "sgd_momentum" if kind == "sgd" and one.parts.get("momentum") else kind, one.place)


def _say_loader(args: Record, call: Record) -> None:
    first = "per_device_train_batch_size" not in args.parts
    if OF_DEEPSPEED["per_device_train_batch_size"] in str(getattr(call.parts.get("batch_size"), "name", "")):
        return  # what the configuration of the engine says
    if "batch_size" in call.parts and (first or call.parts.get("shuffle") is True):
        args.put("per_device_train_batch_size", call.parts["batch_size"], call.place)
    elif first and not {"batch_sampler", "**", "1"} & call.parts.keys():  # torch's default
        args.put("per_device_train_batch_size", 1, call.place)


def _say_mixed(args: Record, call: Record) -> None:
    """Say the type of products: of FSDP's policy, of `autocast`, whose default on GPUs is fp16."""
    said = call.parts.get("param_dtype" if _last(call).startswith("Mixed") else "dtype", "fp16")
    args.put("mixed_precision", said.name.rpartition(".")[2] if isinstance(said, Symbol) else said, call.place)


def _say_accelerator(args: Record, call: Record) -> None:
    for name in ("mixed_precision", "gradient_accumulation_steps", "split_batches"):
        if name in call.parts:
            args.put(name, call.parts[name], call.place)
    for one in call.parts.values():
        if isinstance(one, Record) and _last(one) == "DataLoaderConfiguration" and "split_batches" in one.parts:
            args.put("split_batches", one.parts["split_batches"], one.place)
        if isinstance(one, Record) and _last(one) == "FullyShardedDataParallelPlugin":
            _say_fsdp(args, one)
        if isinstance(one, Record) and _last(one) == "DeepSpeedPlugin":
            if one.parts.get("hf_ds_config") is not None:
                args.put("deepspeed", one.parts["hf_ds_config"], one.place)
            args.put("zero_stage", one.parts.get("zero_stage", 2), one.place)
            for name in ("offload_optimizer_device", "offload_param_device"):
                args.put(f"deepspeed_config.{name}", one.parts.get(name), one.place)


def _say_fsdp(args: Record, call: Record) -> None:
    """Say how FSDP shards: `FULL_SHARD` unless a strategy or `reshard_after_forward=False` says else."""
    said = call.parts.get("sharding_strategy", "FULL_SHARD")
    word = said.name.rpartition(".")[2] if isinstance(said, Symbol) else said
    if call.parts.get("reshard_after_forward") is False:
        word = "SHARD_GRAD_OP"
    offload = call.parts.get("cpu_offload", call.parts.get("offload_policy"))
    if isinstance(offload, Record):
        offload = offload.parts.get("offload_params", _last(offload) == "CPUOffloadPolicy")
    word = SHARDS.get(word, word) if isinstance(word, str) else word
    args.put("fsdp", f"{word} offload" if offload is True and isinstance(word, str) else word, call.place)
    if call.parts.get("activation_checkpointing_policy") or call.parts.get("activation_checkpointing"):
        args.put("gradient_checkpointing", True, call.place)


def _say_deepspeed_strategy(args: Record, call: Record) -> None:
    """Say how Lightning's `DeepSpeedStrategy` shards (strategies/deepspeed.py: stage 2 where nothing is said)."""
    own = call.parts.get("config")
    zero = {"stage": call.parts.get("stage", 2)}
    for name in ("offload_optimizer", "offload_parameters"):
        if call.parts.get(name):
            zero[name.replace("parameters", "param")] = {"device": call.parts.get(f"{name}_device", "cpu")}
    args.put("deepspeed", own if own is not None else {"zero_optimization": zero}, call.place)


def _say_lightning(args: Record, call: Record) -> None:
    """Say what Lightning's `Trainer` or `Fabric` is told."""
    parts = call.parts
    precision = str(parts.get("precision", "32-true"))
    if precision in HELD:
        args.put("torch_dtype", HELD[precision], call.places.get("precision", call.place))
    args.put("mixed_precision", MIXED.get(precision, parts.get("precision")), call.places.get("precision", call.place))
    args.put("gradient_accumulation_steps", parts.get("accumulate_grad_batches", 1), call.place)
    strategy, devices, nodes = parts.get("strategy", "auto"), parts.get("devices", "auto"), parts.get("num_nodes", 1)
    if isinstance(devices, str) and "," in devices:  # `"0,1"`
        devices = [one for one in devices.split(",") if one.strip()]
    count = len(devices) if isinstance(devices, list) else digits(devices)
    if count and isinstance(nodes, int):
        args.put("loop_gpus", count * nodes, call.places.get("devices", call.place))
    if isinstance(strategy, str):
        stage = re.search(r"deepspeed(?:_stage_(\d))?(_offload)?", strategy)
        if stage:
            offload = {"offload_optimizer": {"device": "cpu"}} if stage[2] else {}
            zero = {"zero_optimization": {"stage": int(stage[1] or 2), **offload}}
            args.put("deepspeed", zero, call.places.get("strategy", call.place))
        elif strategy.startswith("fsdp"):
            args.put("fsdp", "full_shard", call.places.get("strategy", call.place))
        elif strategy == "auto" or strategy.startswith("ddp"):
            args.put("distributed_type", "MULTI_GPU", call.places.get("strategy", call.place))


SAYING: Mapping[str, Callable[[Record, Record], None]] = {
    "DataLoader": _say_loader, "Accelerator": _say_accelerator, "DeepSpeedStrategy": _say_deepspeed_strategy,
    "Trainer": _say_lightning, "Fabric": _say_lightning,
    **dict.fromkeys((*SHARDING, "FSDPStrategy"), _say_fsdp),
    **dict.fromkeys(("MixedPrecision", "MixedPrecisionPolicy", "autocast"), _say_mixed),
    **dict.fromkeys(("DistributedDataParallel", "DDP", "DDPStrategy"),
                    lambda args, call: args.put("distributed_type", "MULTI_GPU", call.place)),
    "apply_activation_checkpointing": lambda args, call: args.put("gradient_checkpointing", True, call.place),
}  # fmt: skip
"""Class or function -> what says by the names of arguments what a call of it does."""
