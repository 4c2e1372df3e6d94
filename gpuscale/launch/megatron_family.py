"""Megatron-LM and what is built on it: the same arguments under each framework's names, both ways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import PurePath
from typing import Any

from gpuscale.launch import adapters, preferences, trainer
from gpuscale.launch.cluster_files import job_name, machines
from gpuscale.launch.finetuning import own_targets
from gpuscale.launch.huggingface_models import hub_id, known_model
from gpuscale.launch.huggingface_models import read_model as read_named_model
from gpuscale.launch.launchers import gpus_of, gpus_of_replica
from gpuscale.launch.megatron import connections, job_arguments, read_job, take_type
from gpuscale.launch.megatron_models import EXTRA_TOKEN, OF_NUMERICS, Arguments, here, layer_frequency, model_arguments
from gpuscale.launch.megatron_recipes import (
    MACHINES,
    OF_GPUS,
    Base,
    library,
    machine_of,
    named_recipe,
    nearest_recipe,
    packed_batch,
    take_hub_model,
    take_model,
    take_recipe,
    take_usual,
)
from gpuscale.launch.quoting import hydra_value, yaml_text
from gpuscale.launch.settings import GROWING_BATCH, ON, PRIMUS, TORCH_DTYPES, Reading, Setting, Source, says
from gpuscale.launch.shapes import MEGATRON as ATTENTION
from gpuscale.launch.shapes import name_left
from gpuscale.launch.writing import LaunchFile, Program, Target, Writing
from gpuscale.presets.files import find_preset, known_table, settled
from gpuscale.presets.frameworks import MEGATRON_BRIDGE, MEGATRON_BRIDGE_PERFORMANCE
from gpuscale.presets.tools import load_tool
from gpuscale.specs.model import NumericsSpec
from gpuscale.specs.tuning import TuningSpec, read_targets

PLACEHOLDERS = "data are mock data; the learning rate, the tokenizer and the number of steps are placeholders"

_DECOUPLED = "weight decay: decoupled from the gradient, since Adam is AdamW here (decoupled_weight_decay)"


def _name_left(writing: Writing, arguments: Iterable[str], usual: NumericsSpec, of: str, *training: str) -> None:
    """Name in the script what neither the model nor the job says.

    Args:
        arguments: names of those that are set, as Megatron-LM calls them.
        usual: what is computed where nothing is said.
        of: whose defaults these are.
        training: what of the training is left.
    """
    names = set(arguments)
    name_left(writing, {one for one, of_one in OF_NUMERICS.items() if names.intersection(of_one)}, usual, of)
    for one in training:
        writing.leave(one)
    if writing.model.is_moe:
        writing.leave("precision of routers: that of the weights (moe_router_dtype)")
    if str(writing.asked("optimizer")) in {"adam", "adamw"}:
        writing.leave(_DECOUPLED)


# --- Megatron-LM


def _flags(arguments: Arguments) -> tuple[tuple[str, ...], ...]:
    """Return arguments as flags; what is off or unset has none."""
    found: list[tuple[str, ...]] = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append((flag,))
        elif value is not False and value is not None:
            values = value if isinstance(value, list) else [value]
            found.append((flag, *map(str, values)))
    return tuple(found)


_MEGATRON_TRAINING = (
    "data: --mock-data; tokenizer: NullTokenizer; --train-iters and --lr are placeholders, the schedule is linear",
    "weight decay 0.01, Adam's betas 0.9 and 0.999, its epsilon 1e-08, clipping of gradients at 1: the defaults",
)


def _write_megatron(writing: Writing) -> Program:
    arguments = job_arguments(writing) | {"mock_data": True, "train_iters": 100, "lr": 1e-4}
    writing.warn(PLACEHOLDERS)
    _name_left(writing, arguments, here(writing.model), "by default", *_MEGATRON_TRAINING)
    return Program("pretrain_gpt.py", _flags(arguments), environment=connections(writing))


def _claims_megatron(source: Source) -> bool:
    names = source.settings.keys()
    if source.kind in {"command", "arguments"}:
        swift = source.program[:1] == ("megatron",) and not names.isdisjoint(_OF_SWIFT)
        shaped = {"num_layers", "hidden_size"} <= names and bool({"micro_batch_size", "model_parallel_size"} & names)
        return swift or shaped or "tensor_model_parallel_size" in names
    flat = {"tensor_model_parallel_size", "pipeline_model_parallel_size"} & names and "num_layers" in names
    return bool(flat) or any(map(_OF_MEGATRON.match, names))


_OF_MEGATRON = re.compile(
    r"MODEL_ARGS\.|language_model\.(num_layers|hidden_size|num_att)|(train\.)?system\.(precision\.|\w+_parallel|recompute_)"
)
"""Names that documents of FlagScale, Megatron-LM's tests and its programs for images have."""

_OF_2019 = {"model_parallel_size": "tensor_model_parallel_size", "batch_size": "micro_batch_size"}
"""Arguments of Megatron-LM before version 2 (v1.1.5, megatron/arguments.py), by what they are called since."""

ACTOR_ALONE = "the actor's optimizer steps are predicted: rollout, rewards, critic and reference model are not"
"""What is predicted of reinforcement learning."""


def _read_megatron(reading: Reading) -> None:
    swift = any(source.program[:1] == ("megatron",) for source in reading.sources)
    rollouts = {"actor_num_nodes", "actor_num_gpus_per_node"} & reading.settings.keys()
    reading.run_by(load_tool("ms-swift-megatron" if swift else "slime" if rollouts else "megatron-lm"))
    if rollouts:
        each = reading.integer("actor_num_gpus_per_node") or 8
        reading.option("gpus", (reading.integer("actor_num_nodes") or 1) * each, *sorted(rollouts))
        reading.assume(ACTOR_ALONE)
        _split_rollouts(reading)
        _packed_responses(reading)
    renamed = {"activation_func": "activation", "num_moe_experts": "num_experts", **_KNOWN["aliases"]}
    renamed |= _OF_2019 if "model_parallel_size" in reading.settings else {}
    _named(reading, ("MODEL_ARGS.", "language_model.", "model_parallel.", *_FLAGSCALE, ""), renamed)
    if swift:
        _named_by_swift(reading)
    elif reading.stated("stage"):  # MindSpeed-LLM's
        preferences.read(reading)
        _count_pairs(reading)
    read_job(reading, _generation(reading))
    if not swift and reading.get("lora_r") and (reading.integer("lora_r") or 0) > 0:  # MindSpeed's, AscendSpeed's
        adapters.take(reading, adapters.ARGUMENTS, "lora_r")
    plain = reading.sources[-1].kind == "command" and not swift and not rollouts
    if plain and not {"micro_batch_size"} & (reading.layout.keys() | reading.given.keys()):
        message = "no file states how many sequences a GPU takes at a time"  # which arguments.py insists on
        reading.refuse(None, message, settles="micro_batch_size", likely=("1",))
    micro = int(reading.given.get("micro_batch_size") or reading.layout.get("micro_batch_size") or 0)
    stated = "gbs" in {**reading.options, **reading.given} or reading.get(*GROWING_BATCH)
    if micro and not (stated or swift or rollouts):
        gpus, each = gpus_of(reading), gpus_of_replica(reading.layout)
        if gpus and gpus % each == 0:
            reading.option("gbs", micro * gpus // each)
            reading.assume("no option states the global batch: one microbatch of each replica, as Megatron-LM has it")


def _packed_responses(reading: Reading) -> None:
    """Take the longest response of slime's rollouts as the sequence, and as many as a microbatch of tokens holds."""
    longest, tokens = reading.get("rollout_max_response_len"), reading.get("max_tokens_per_gpu")
    if longest is not None and not reading.stated("seq_length"):
        length = sum(reading.integer(name) or 0 for name in ("rollout_max_response_len", "rollout_max_prompt_len"))
        reading.settings["seq_length"] = replace(longest, value=length)
        reading.assume(f"sequences of {length:,} tokens, the longest that rollouts give", longest.name)
    sequence = reading.integer("seq_length")
    if tokens is not None and sequence and reading.flag("use_dynamic_batch_size"):
        ranks = reading.integer("context_parallel_size") or 1
        given, gpus = reading.given, reading.given.get("gpus") or reading.options["gpus"]
        names = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size"}
        degrees = [int(given.get(one) or reading.integer(name) or 1) for one, name in names.items()]
        batch = int(given.get("gbs") or reading.integer("global_batch_size") or 0)
        share = batch * prod(degrees) * ranks // int(gpus)  # a rank has no more than this
        micro = max(1, (reading.integer("max_tokens_per_gpu") or 0) * ranks // sequence)
        micro = min(micro, share or micro)
        reading.settings["micro_batch_size"] = replace(tokens, value=micro)
        reading.assume(f"sequences in a microbatch: {micro}; slime packs them by tokens", "use_dynamic_batch_size")


def _split_rollouts(reading: Reading) -> None:
    """Take samples of a rollout over its optimizer steps as the batch, where none is stated (slime's arguments.py)."""
    names = ("rollout_batch_size", "n_samples_per_prompt", "num_steps_per_rollout")
    prompts, samples, steps = (reading.integer(name) for name in names)
    if steps and prompts and not reading.stated("global_batch_size"):
        batch = prompts * (samples or 1) // steps
        reading.settings["global_batch_size"] = replace(reading.settings[names[0]], value=batch)
        reading.assume(f"{batch:,} sequences per optimizer step: {prompts} x {samples or 1} over {steps}", *names)


def _named_by_swift(reading: Reading) -> None:
    """Read what ms-swift (`megatron sft`) calls otherwise."""
    packed = reading.stated("packing_length") if reading.flag("packing") else None
    if length := packed or reading.settings.get("max_length"):
        reading.settings.setdefault("seq_length", length)
    take_type(reading, "torch_dtype")
    if (named := reading.get(*_OF_SWIFT)) is not None and "num_layers" not in reading.settings:
        converted = replace(named, value=str(named.value).rstrip("/").removesuffix("-mcore"))
        reading.settings["model"] = reading.settings[named.name] = converted
        read_named_model(reading, "model")
    if reading.given.get("model") or "model" in reading.options:
        trainer.read_tuning(reading)
    else:
        preferences.read(reading)
    _count_pairs(reading)


_OF_SWIFT = ("model", "mcore_model", "load")
"""What names the model, or a checkpoint converted of it: `--load Qwen2.5-7B-Instruct-mcore` of ms-swift 3."""


def _count_pairs(reading: Reading) -> None:
    """Count both sequences of a pair in a microbatch."""
    pairs, found = preferences.spec(reading).sequences, reading.get("micro_batch_size")
    if pairs > 1 and found is not None:
        reading.settings[found.name] = replace(found, value=pairs * (reading.integer(found.name) or 1))


_SECTIONS = ("system.precision.", "system.", "model.optimizer.", "model.", "data.tokenizer.")
_FLAGSCALE = (*(f"train.{section}" for section in _SECTIONS), *_SECTIONS, "experiment.runner.")
"""Sections of FlagScale's YAML."""


def _generation(reading: Reading) -> str:
    """Return the framework, of an earlier month where the arguments are of an earlier generation."""
    if reading.flag("deepspeed") or reading.get("zero_stage", "deepspeed_config"):
        reading.means("Megatron-DeepSpeed", "deepspeed", "deepspeed_config")
        _deepspeed_states(reading)
        return "megatron-deepspeed@2022-12" if reading.get("checkpoint_activations") else "megatron-deepspeed"
    if reading.get("DDP_impl", "checkpoint_activations") and not reading.get("use_mcore_models", "recompute_method"):
        return "megatron-lm@2023-12" if _SINCE_2022 & reading.settings.keys() else "megatron-lm@2021-12"
    return "megatron-lm"


_SINCE_2022 = frozenset({"sequence_parallel", "recompute_activations", "recompute_granularity"})
"""Arguments that came with selective recomputation, in May 2022 (NVIDIA/Megatron-LM, megatron/arguments.py)."""


def _deepspeed_states(reading: Reading) -> None:
    """Read what Megatron-DeepSpeed has from DeepSpeed's file, and calls otherwise than Megatron-LM."""
    stages = ("zero_optimization.stage", "zero_stage")
    stage = reading.integer(*stages)
    if stage and reading.get(stages[0]) is None and "train_micro_batch_size_per_gpu" in reading.settings:
        message = "DeepSpeed's file states no stage, and counts more"
        reading.refuse(reading.get(stages[1]), message, settles="zero", likely=("0", str(stage)))
    if not stage and reading.flag("bf16"):
        reading.assume("DeepSpeed's bf16 optimizer shards its states as ZeRO-1 does", *stages)
        stage = 1
    if stage is not None:
        reading.option("zero", stage, *stages)
    reading.means("the optimizer of DeepSpeed", "optimizer.type")
    devices = {part: f"zero_optimization.offload_{part[:9]}.device" for part in ("optimizer", "param")}
    moved = [part for part, one in devices.items() if reading.text(one, *["cpu_optimizer"] * (part == "optimizer"))]
    if moved:
        parts = "+".join(moved).replace("param", "parameters")
        reading.option("offload", parts, *devices.values(), "cpu_optimizer")
    if (reading.integer("ds_sequence_parallel_size") or 1) > 1:
        reading.number_from(1, "cp", "ds_sequence_parallel_size")
        reading.option("cp_comm", "a2a", "ds_sequence_parallel_size")  # Ulysses
    wide = reading.get("data_types.grad_accum_dtype")
    if wide is not None:
        name = "accumulate_allreduce_grads_in_fp32" if "32" in str(wide.value) else "grad_reduce_in_bf16"
        reading.settings.setdefault(name, replace(wide, value=True, span=None))
    experts = reading.get("num_experts")
    if experts is not None and "moe_layer_freq" not in reading.settings:
        interval, layers = reading.integer("expert_interval") or 2, reading.integer("num_layers") or 0
        if 1 < interval <= layers and layers % interval == 0:
            pattern = f"([{'0,' * (interval - 1)}1]*{layers // interval})"
            reading.settings["moe_layer_freq"] = replace(experts, value=pattern, span=None)
        reading.settings.setdefault("moe_router_topk", replace(experts, value="1", span=None))
        reading.assume("experts in every second layer and for each token one, as DeepSpeed's MoE where nothing is said")
    if experts is not None and not reading.flag("disable_moe_token_dropping"):
        factor = reading.get("moe_train_capacity_factor") or replace(experts, value="1", span=None)
        reading.settings.setdefault("moe_expert_capacity_factor", factor)


# --- names of the relatives

_KNOWN = known_table("megatron")

INVERTED = _KNOWN["inverted"]

_CORE: Mapping[str, str | None] = dict.fromkeys(_KNOWN["elsewhere"]) | _KNOWN["core"]

_OPTIMIZER = (
    "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
    "optimizer_cpu_offload", "optimizer_offload_fraction",
)  # fmt: skip
_TRAINING = ("micro_batch_size", "global_batch_size")
_DTYPES = {precision: f"torch.{dtype}" for precision, dtype in {**TORCH_DTYPES, "fp8": "uint8"}.items()}


def _core_overrides(arguments: Arguments, prefix: str) -> Arguments:
    """Return fields of the model's configuration by their dotted names."""
    found: Arguments = {}
    for argument, value in arguments.items():
        name = _CORE.get(argument, argument)
        if argument in INVERTED:
            found[f"{prefix}{INVERTED[argument]}"] = not value
        elif name is not None and argument not in (*_OPTIMIZER, *_TRAINING, "use_tp_pp_dp_mapping", "vocab_size"):
            found[f"{prefix}{name}"] = value
    if arguments.get("swiglu"):
        found[f"{prefix}activation_func"] = "silu"
    if "moe_layer_freq" in arguments:  # a class evaluates no expression, as the parser of arguments does
        found[f"{prefix}moe_layer_freq"] = layer_frequency(arguments["moe_layer_freq"], arguments["num_layers"])
    if "cpu_offloading_num_layers" in arguments:
        found[f"{prefix}cpu_offloading"] = True
    return {name: value for name, value in found.items() if value is not None}


def _optimizer_overrides(arguments: Arguments, prefix: str) -> Arguments:
    found: Arguments = {f"{prefix}optimizer": arguments["optimizer"]}
    found[f"{prefix}use_distributed_optimizer"] = bool(arguments.get("use_distributed_optimizer"))
    found |= {f"{prefix}{name}": arguments[name] for name in (*_OPTIMIZER, "sgd_momentum") if name in arguments}
    return {name: _DTYPES.get(value, value) if name.endswith("_dtype") else value for name, value in found.items()}


def _ddp_overrides(arguments: Arguments, prefix: str) -> Arguments:
    found: Arguments = {
        name: bool(arguments.get(name))
        for name in ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")
    }
    found["grad_reduce_in_fp32"] = bool(arguments.get("accumulate_allreduce_grads_in_fp32"))
    for name in ("use_megatron_fsdp", "data_parallel_sharding_strategy", "num_distributed_optimizer_instances"):
        if name in arguments:
            found[name] = arguments[name]
    if "fp8_param_gather" in arguments:
        found["fp8_param_gather"] = True
    return {f"{prefix}{name}": value for name, value in found.items()}


def _refuse_learned_positions(writing: Writing, arguments: Arguments) -> None:
    if arguments.get("position_embedding_type") == "learned_absolute":
        longest = arguments["max_position_embeddings"]
        if longest != arguments["seq_length"]:
            writing.refuse("seq", f"learned positions are as many as the sequence is long, the model has {longest}")


def _words(overrides: Arguments) -> tuple[tuple[str, ...], ...]:
    """Return overrides as Hydra reads them."""
    return tuple((f"{name}={hydra_value(value)}",) for name, value in overrides.items())


def _wide(arguments: Arguments) -> str:
    return "bf16" if "bf16" in arguments else "fp16" if "fp16" in arguments else "fp32"


_ROUTER: Arguments = {
    "moe_layer_freq": 1, "moe_shared_expert_overlap": False, "moe_router_score_function": "softmax",
    "moe_router_pre_softmax": False, "moe_router_enable_expert_bias": False, "moe_router_dtype": None,
    "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.0, "mtp_num_layers": None,
}  # fmt: skip
"""What recipes of DeepSeek-V3 and V2-Lite set, as Megatron core has it: a plan says what it wants otherwise."""


_OF_LLAMA = NumericsSpec(
    rotary_base=500000.0, rotary_share=1.0, rotary_scaling="none", norm_epsilon=1e-5, init_std=0.01, activation="silu",
    router_score="softmax", router_normalised=True, router_scale=1.0, router_aux_loss=0.0,
)  # fmt: skip
"""What NeMo's Llama3Config8B computes (nemo/collections/llm/gpt/model/llama.py); of routers, Megatron core."""

_OF_DEEPSEEK = replace(
    _OF_LLAMA, rotary_base=10000.0, rotary_scaling="yarn", scaling_factor=40.0, scaling_sequence=4096, scaling_low=1.0,
    scaling_high=32.0, scaling_mscale=1.0, scaling_mscale_all=1.0, norm_epsilon=1e-6, init_std=0.006,
)  # fmt: skip
"""What recipes of DeepSeek compute, without their routers (nemo/collections/llm/gpt/model/deepseek.py;
src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py)."""


_WIDE_STATES: Arguments = {
    "use_precision_aware_optimizer": False,
    **{f"{name}_dtype": "torch.float32" for name in ("main_grads", "main_params", "exp_avg", "exp_avg_sq")},
}
"""An optimizer as Megatron core has it: recipes of DeepSeek keep moments in bf16."""


# --- Megatron-Bridge

_BRIDGE_LATENT: Arguments = {
    **{f"model.{name}": value for name, value in _ROUTER.items()},
    **dict.fromkeys((
        "model.q_lora_rank", "model.moe_shared_expert_intermediate_size", "model.moe_router_num_groups",
        "model.moe_router_group_topk", "model.moe_router_topk_scaling_factor", "model.pipeline_model_parallel_layout",
        "model.virtual_pipeline_model_parallel_size",
    )),
    **{f"optimizer.{name}": value for name, value in _WIDE_STATES.items()},
}  # fmt: skip
"""What the recipe `deepseek_v3_pretrain_config` sets otherwise than Megatron core, as core has it
(src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py, models/deepseek/deepseek_v3_bridge.py)."""


def _write_bridge(writing: Writing) -> Program:
    arguments = job_arguments(writing)
    _refuse_learned_positions(writing, arguments)
    tuning = writing.spec.tuning
    if tuning is not None:  # its recipe names the model, with tokenizer and checkpoint of the hub
        own = model_arguments(writing)
        arguments = {name: value for name, value in arguments.items() if name not in own or name == "seq_length"}
    wide, latent = _wide(arguments), bool(arguments.get("multi_latent_attention"))
    recipe = "deepseek_v3_pretrain_config" if latent else "vanilla_gpt_pretrain_config"
    found = (_BRIDGE_LATENT if latent else {}) | _core_overrides(arguments, "model.")
    found |= {f"train.{name}": arguments[name] for name in _TRAINING}
    found |= {"dataset.seq_length": arguments["seq_length"]}
    if tuning is None:
        found |= {"tokenizer.tokenizer_type": "NullTokenizer", "tokenizer.vocab_size": arguments.get("vocab_size")}
    found |= _ddp_overrides(arguments, "ddp.") | _optimizer_overrides(arguments, "optimizer.")
    found |= {"dist.use_tp_pp_dp_mapping": True} if arguments.get("use_tp_pp_dp_mapping") else {}
    found |= {"dist.use_megatron_fsdp": True} if arguments.get("use_megatron_fsdp") else {}
    # a recipe of mixed precision would set gradients to fp32 and some layers to bf16 (training/mixed_precision.py)
    found["mixed_precision"] = "null"
    for section in ("model.", "optimizer."):
        found |= {f"{section}{wide}": True} if wide != "fp32" else {}
        found[f"{section}params_dtype"] = _DTYPES[wide]
    found["model.pipeline_dtype"] = _DTYPES[wide]
    if "fp8_format" in arguments:
        found |= {"model.fp8": "hybrid", "model.fp8_recipe": arguments["fp8_recipe"]}
        found |= {"model.fp8_param": True} if "fp8_param_gather" in arguments else {}
    if "fp4_format" in arguments:
        found |= {"model.fp4": "e2m1", "model.fp4_recipe": arguments["fp4_recipe"]}
    if writing.spec.runtime.name.startswith(MEGATRON_BRIDGE_PERFORMANCE):
        found[f"model.{_NO_TRANSPOSES}"] = True
    training = (
        "data, learning rate and its schedule, weight decay, Adam's betas, clipping, number of steps: the recipe's"
    )
    writing.warn(training)
    said = (name for name in arguments if _CORE.get(name, name))
    usual = writing.model.numerics if tuning else _OF_DEEPSEEK if latent else here(writing.model)
    _name_left(writing, said, usual, "in the recipe", training)
    head: tuple[tuple[str, ...], ...] = (("--recipe", recipe), ("--mode", "pretrain"))
    if tuning is not None:
        recipe, more = _bridge_adapters(writing, tuning)
        head, found = (("--recipe", recipe), ("--mode", "finetune"), ("--peft_scheme", "lora")), found | more
    script = "scripts/training/run_recipe.py"
    return Program(script, (*head, *_words(found)), environment=connections(writing))


def _bridge_adapters(writing: Writing, tuning: TuningSpec) -> tuple[str, Arguments]:
    """Return the recipe of adapters for a model, and what is overridden of its adapters."""
    known = ((name, own) for name, own in library().items() if name.endswith("_peft_config"))
    recipes = {str(own["model"]): name for name, own in known if own.get("tune") == "lora"}
    if writing.model.name not in recipes or hub_id(writing.model) is None:
        why = f"recipes of adapters that are known are for {', '.join(recipes)}"
        writing.refuse("model", f"{why} (model = {writing.model.name})")
    modules = [module for module in _LORA_MODULES if read_targets(module) <= own_targets(writing, tuning)]
    if not modules:
        writing.refuse("lora_targets", f"adapters stand beside whole {', '.join(_LORA_MODULES)}")
    dropout = 0.05 if tuning.dropout else 0.0
    writing.leave("scaling of adapters (peft.alpha), 0.05 for any dropout: yours to say")
    return recipes.get(writing.model.name, ""), {
        "peft.dim": tuning.rank, "peft.target_modules": modules, "peft.dropout": dropout,
        "checkpoint.pretrained_checkpoint": "CHECKPOINT",
    }  # fmt: skip


_LORA_MODULES = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Modules of Megatron core beside which adapters stand (megatron/bridge/peft/lora.py)."""


_NO_TRANSPOSES = "disable_parameter_transpose_cache"


def _claims_bridge(source: Source) -> bool:
    if source.kind == "python":
        called, names = source.called, source.settings.keys()
        sections = any(name.startswith("train.") for name in names) or "model" in names
        return bool(_BRIDGE_RECIPE.search(called)) or (called in _BRIDGE_WHOLE and sections)
    if source.kind == "command":
        said = " ".join(source.program)
        return (
            bool(re.search(r"run_recipe|megatron.bridge|scripts/performance(?!/llm/)", said))
            or "recipe" in source.settings
        )
    names = source.settings.keys()
    batches = {"train.micro_batch_size", "train.global_batch_size"} <= names
    return batches and any(name.startswith(_OF_BRIDGE) for name in names)


_OF_BRIDGE = (
    "model.tensor_model", "model.pipeline_model", "model.expert_model", "model.context_parallel", "model.seq_length",
    "model.num_layers", "model.recompute", "model._target_", "train.train_iters", "ddp.", "comm_overlap", "optimizer.",
)  # fmt: skip
"""Beginnings of settings of Megatron-Bridge, one of which stands beside the batches in its YAML and not in others'."""


_BRIDGE_RECIPE = re.compile(r"_(pretrain|sft|peft|finetune|lora)(_\w+)?_config$")
_BRIDGE_WHOLE = ("ConfigContainer", "_pretrain_common", "_sft_common", "_peft_common")
"""Calls that make a whole configuration: of recipes, by name, and of what they begin with (recipes/common.py)."""

_OF_PRETRAINING = ("overlap_grad_reduce", "overlap_param_gather", "data_parallel_sharding_strategy")
"""What `_pretrain_common` sets and the others do not."""


def _read_bridge(reading: Reading) -> None:
    """Read a recipe's name with what overrides it, or a YAML of nothing but overrides."""
    called = _python_call(reading)
    objects = _objects(reading, MEGATRON_BRIDGE) if called is not None else []
    if called is not None:
        _read_bridge_call(reading, called)
    tool, base = load_tool("megatron-bridge"), str(called.value) if called is not None else ""
    whole = {"model.num_layers", "model.hidden_size", "model.num_attention_heads"} <= reading.settings.keys()
    whole = base == _BRIDGE_WHOLE[0] or (whole and "recipe" not in reading.settings)
    plain = base in _BRIDGE_WHOLE[2:]  # which leave what is exchanged to Megatron core
    kept = {name: one for name, one in tool.defaults.items() if not (plain and name in _OF_PRETRAINING)}
    reading.run_by(replace(tool, defaults={} if whole else kept))
    _one_switch(reading)
    _under_precision(reading, "mixed_precision", not whole, "model.", "ddp.", "optimizer.")
    said = ("mixed_precision", *(f"model.{name}" for name in ("bf16", "fp16", "params_dtype")))
    if whole and base and not any(name.startswith(said) for name in reading.settings):
        reading.refuse(called, "it states no mixed precision: that of the model", settles="precision", likely=("bf16",))
    sections = (
        "model.transformer.", "model.", "train.", "ddp.", "optimizer.", "mixed_precision.", "comm_overlap.", "dist.",
        "dataset.", "tokenizer.",
    )  # fmt: skip
    _named(reading, sections, _FIELDS)
    _take_objects(reading, objects)
    _take_short(reading)
    found = next((one for name, one in reading.settings.items() if "vision" in name), None)
    if found is not None:
        hint = "give a language model: `model=NAME`"
        reading.refuse(found, "vision-language models are not modelled", hint, settles="model")
    _precision_recipe(reading, reading.get("mixed_precision"))
    recipe = reading.get("recipe") or _performance_recipe(reading)
    recipe = recipe or reading.get("model_recipe_name", "model_family_name")
    known = recipe is not None and take_recipe(reading, recipe)
    if recipe is not None and "model" not in reading.options:
        _model_of_recipe(reading, recipe)
    take_hub_model(reading)
    performance = reading.flag(_NO_TRANSPOSES) or known
    reading.means("8-bit weights without a transposed copy, as the performance recipes have them", _NO_TRANSPOSES)
    read_job(reading, MEGATRON_BRIDGE_PERFORMANCE if performance else MEGATRON_BRIDGE)
    _read_adapters(reading, str(recipe.value) if recipe is not None else "")


_PEFT = adapters.Names(("peft.dim",), ("peft.target_modules",), ("peft.dropout",))
"""Fields of LoRA and CanonicalLoRA (megatron/bridge/peft/lora.py; nemo/collections/llm/peft/lora.py)."""


def _read_adapters(reading: Reading, recipe: str = "") -> None:
    """Read adapters of Megatron-Bridge and NeMo: a scheme, or a class with its fields; the model must be known.

    Raises:
        InputError: a scheme that is not one of LoRA.
    """
    found = reading.get("peft_scheme", "peft")
    kind = str(found.value).rpartition(".")[2].lower() if found is not None else ""
    said = {"peft_scheme", "peft"} & reading.settings.keys() or "tune" in reading.given
    if not said and re.search(r"_finetune(_\w+)?_config$", recipe):
        reading.refuse(reading.get("recipe"), "whether it trains adapters is not said", settles="tune",
                       likely=("lora", "full"))  # fmt: skip
    if kind in NO_ADAPTERS and not (found is None and re.search(r"_(peft|lora)(_\w+)?_config$", recipe)):
        return
    if reading.given.get("tune") == "full":
        reading.means("replaced by the tune that is given", "peft_scheme", "peft")
        return
    chosen = kind.endswith(("}", "]"))
    if chosen and not reading.given.get("tune"):
        reading.refuse(found, "which adapters it chooses is not known here", settles="tune", likely=("lora", "full"))
    if not chosen:
        _refuse_parts(reading, found, kind, "", "lora", "canonicallora", "dora")
    if kind == "dora":
        reading.assume(adapters.WITHOUT_MAGNITUDES, found or "")
    adapters.take(reading, _PEFT, *(name for name in ("peft_scheme", "peft", "recipe") if reading.get(name)))


def _refuse_parts(reading: Reading, found: Setting | None, kind: str, *known: str) -> None:
    if kind not in known:
        reading.refuse(found, f"{kind[:40]} is not modelled: only a part of the model is trained",
                       "gpuscale predicts training of whole models, and of LoRA adapters")  # fmt: skip


def _python_call(reading: Reading) -> Setting | None:
    """Return what a Python file calls to make the configuration; None where there is no Python file."""
    found = reading.settings.pop("", None)
    return None if found is None else replace(found, name=str(found.value))


def _read_bridge_call(reading: Reading, called: Setting) -> None:
    """Take a recipe that a Python file calls, its keywords, and what the function's name says of the GPUs."""
    for section in ("optimizer", "model.optimizer"):  # the class of a section is no value of it
        reading.settings.pop(section, None)
    if called.value not in _BRIDGE_WHOLE:
        _take_called_recipe(reading, called)
    for name, argument in _KEYWORDS.items():
        if name in reading.settings:
            reading.settings.setdefault(argument, reading.settings[name])
    function = next(source.program[0] for source in reading.sources if source.kind == "python")
    gpus = OF_GPUS.search(function)
    if gpus:
        reading.settings[_NO_TRANSPOSES] = replace(called, name=_NO_TRANSPOSES, value=True)
    for name, own in (("gpus", gpus and int(gpus[1])), ("cluster", gpus and machine_of(function))):
        if own and name not in reading.given:
            reading.options[name] = own
            reading.assume(f"{name} {own}, by the name of the function {function}", called)


def _objects(reading: Reading, library: str) -> list[tuple[Setting, Mapping[str, Any]]]:
    """Return the sections that a script gives an object of its own, with what the class of each has by itself."""
    found = [(reading.settings.get(name), usual) for name, usual in _KNOWN["objects"][library].items()]
    return [(one, usual) for one, usual in found if one is not None and _OBJECT.search(str(one.value))]


_OBJECT = re.compile(r"(^|\.)[A-Z]\w+$|to_megatron_provider$")


def _take_objects(reading: Reading, objects: Iterable[tuple[Setting, Mapping[str, Any]]]) -> None:
    """Take what objects have by themselves, which recipes beneath them do not change."""
    for one, usual in objects:
        for name, value in usual.items():
            if name not in reading.settings:
                reading.settings[name] = replace(one, name=name, value=value, span=None)
                if type(value) is int and value > 1:
                    reading.assume(f"{name} {value}, as {one.value} has it where nothing is said", one)


def _one_switch(reading: Reading) -> None:
    """Take the distributed optimizer as on where either section has it so: one that is off needs both."""
    stated = [one for section in ("ddp", "optimizer") if (one := reading.settings.get(f"{section}.{_SHARDS}"))]
    on = [one for one in stated if str(one.value).lower() in ON]
    if on:
        reading.settings[_SHARDS] = on[0]
    elif len(stated) == 1:
        reading.say(reading.settings.pop(stated[0].name), "either section switches on both")


def _under_precision(reading: Reading, table: str, usual: bool, *others: str) -> None:
    """Leave out what a recipe of mixed precision replaces, field by field.

    Args:
        table: its section.
        usual: whether there is one where the section says nothing; one that is null replaces nothing.
        others: beginnings of the sections that it is laid over.
    """
    laid = reading.get(table) or any(name.startswith(f"{table}.") for name in reading.settings)
    if not laid and (table in reading.settings or not usual):
        return
    for name in _KNOWN["of_precision"]:
        for one in [own for section in others if (own := reading.settings.pop(f"{section}{name}", None))]:
            reading.say(one, "the recipe of mixed precision counts more")
            if not laid:
                reading.assume("replaced by mixed precision, bf16 with gradients in fp32 where none is stated", one)


def _take_called_recipe(reading: Reading, called: Setting) -> None:
    """Take the recipe that a file calls, under its own name where it was imported under another.

    Raises:
        InputError: nothing is known of it.
    """
    name = settings_text(reading, "origin").rpartition(".")[2] or str(called.value)
    if named_recipe(name) is None:
        hint = "give the file that defines it too; `gpuscale show recipes` lists those that are known"
        reading.refuse(called, f"what the recipe {name[:80]} sets is in no file that is here", hint, elsewhere=True)
    reading.settings["recipe"] = replace(called, name="recipe", value=name)
    if "calls._benchmark_common" in reading.settings:  # perf_recipes/_common.py
        off = reading.settings["calls._benchmark_common"]
        name = "mixed_precision.grad_reduce_in_fp32"
        reading.settings[name] = replace(off, name=name, value=False)


NO_ADAPTERS = {"", "none", "false"}

_KEYWORDS = _KNOWN["keywords"]


def _performance_recipe(reading: Reading) -> Setting | None:
    """Return the recipe that Bridge's `scripts/performance` runs, with the batch that it scales to the GPUs."""
    model, gpu = reading.get("model_recipe_name", "mr", "model_size"), reading.get("gpu", "g")
    gpus, precision = reading.get("num_gpus", "ng"), reading.get("compute_dtype", "c")
    if model is None or gpu is None or gpus is None:
        return None
    for one in (model, gpu, precision):
        if one is not None:
            reading.need(one)
    dtype = reading.text("compute_dtype", "c") or "bf16"
    task = (reading.text("task", "t") or "pretrain").lower()
    count, kind = reading.integer("num_gpus", "ng") or 1, str(gpu.value).lower()
    reading.means("which recipe", "model_recipe_name", "mr", "gpu", "g", "compute_dtype", "c", "task", "t")
    found = nearest_recipe(str(model.value), task, count, kind, dtype)
    if found is None:
        what = f"no recipe of {model.value} for {kind} in {dtype} ({task}) is known here"
        reading.refuse(
            precision or model, what, "`gpuscale show recipes` lists those that are: `recipe=NAME` takes one"
        )
    name, own = found
    if own != count:
        base = named_recipe(f"{name.replace('-', '_')}_config") or Base({})
        batch = int(base.options.get("gbs", 0)) * count // own
        reading.settings.setdefault("gb", replace(gpus, name="gb", value=batch, span=None))
        reading.assume(
            f"the recipe is that for {own} GPUs, its batch scaled to {count}, as scripts/performance does", gpus
        )
    if "gpus" not in reading.given:
        reading.option("gpus", count, gpus.name)
    return replace(model, value=name)


_FIELDS = {"fp8": "fp8_format", "fp4": "fp4_format", "fp8_param": "fp8_param_gather",
           "sequence_length": "seq_length"}  # fmt: skip
"""Field of a configuration -> argument, where the readers of arguments do not know the field."""

_RECIPES = _KNOWN["fp8_recipes"]


def _precision_recipe(reading: Reading, found: Setting | None) -> None:
    """Take what a recipe of mixed precision stands for: `bf16_with_fp8_delayed_scaling_mixed`."""
    if found is None:
        return
    reading.need(found)
    text = str(found.value).lower().replace("-", "_")
    if text.endswith(("_perf_precision", "get_precision_config")):  # a call, whose argument says it
        text = f"bf16_{reading.text(f'{found.name}.0', f'{found.name}.compute_dtype')}"
        reading.settings.setdefault("grad_reduce_in_fp32", replace(found, value=False))
    named = next(
        (wide for wide, start in (("bf16", "bf16"), ("fp16", ("fp16", "16")), ("", "32")) if text.startswith(start)),
        None,
    )
    for wide in ("bf16", "fp16") if named is not None else ():
        reading.settings[wide] = replace(found, value=wide == named)
    if "fp8" in text:
        recipe = next((recipe for word, recipe in _RECIPES.items() if word in text), "delayed")
        reading.settings |= {"fp8_format": replace(found, value="hybrid"), "fp8_recipe": replace(found, value=recipe)}
        keeps = replace(found, value=recipe != "blockwise")  # training/mixed_precision.py
        reading.settings.setdefault("fp8_param_gather", keeps)
    if "fp8_current_scaling" in text and "first_last_layers_bf16" not in reading.settings:
        reading.assume("the first and the last layer, which stay in bf16, are predicted in 8 bits", found)
    if "fp4" in text:
        reading.settings["fp4_format"] = replace(found, value="e2m1")
    if "grad_reduce_in_fp32" not in reading.settings:
        reading.settings["grad_reduce_in_fp32"] = replace(found, value=not text.startswith("fp16"))
    reading.means("precision of the step", found.name)


def _model_of_recipe(reading: Reading, found: Setting | None) -> None:
    """Set the model by the name of a recipe, where the shape is not stated."""
    if (
        {"num_layers", "hidden_size", "num_attention_heads"} <= reading.settings.keys()
        or found is None
        or reading.given.get("model")
    ):
        return
    named = r"(_pretrain|_sft|_peft|_finetune)?(_\d+gpus?)?(_[a-z]*\d+)?(_bf16|_fp8\w*)?(_config)?$"
    reading.option("model", _model_called(reading, found, re.sub(named, "", str(found.value).lower())), found.name)
    reading.assume("what the recipe itself sets is not known here: only what is stated beside it counts", found.name)


def _model_called(reading: Reading, found: Setting, words: str) -> str:
    """Return the model that the library calls so: `llama31_8b`.

    Raises:
        LackingError: nothing is known of it.
    """
    name = words.lower().replace("_", "-").replace("llama31-", "llama3.1-").replace("llama32-", "llama3.2-")
    own, _ = settled("models", name)
    if known_model(own)[0] is None:
        reading.refuse(found, f"the model of the recipe {str(found.value)[:80]} is not known here", settles="model")
    return own


def _named(reading: Reading, prefixes: Iterable[str], names: Mapping[str, str]) -> None:
    """Give settings of sections the names of arguments too; of several sections the first counts."""
    for prefix in prefixes:
        for name, found in list(reading.settings.items()):
            if name.startswith(prefix):
                plain = name.removeprefix(prefix).lstrip("-").replace("-", "_")
                reading.settings.setdefault(names.get(plain, plain), found)


# --- NeMo

_NEMO_LATENT: Arguments = {
    **{f"model.config.{name}": value for name, value in _ROUTER.items()},
    "model.config.moe_router_num_groups": 1, "model.config.moe_router_group_topk": 1,
    "model.config.moe_router_topk_scaling_factor": 1.0, "model.config.moe_enable_deepep": False,
    "model.config.recompute_granularity": None,
    "trainer.strategy.num_layers_in_first_pipeline_stage": None,
    "trainer.strategy.num_layers_in_last_pipeline_stage": None,
    **{f"optim.config.{name}": value for name, value in _WIDE_STATES.items()},
}  # fmt: skip
"""What the factories deepseek_v3 and deepseek_v2_lite set otherwise than Megatron core, as core has it, or as good as
that where NeMo's fields take no null (nemo/collections/llm/gpt/model/deepseek.py, recipes/deepseek_v3.py)."""


def _factory(writing: Writing, arguments: Arguments) -> tuple[str, Arguments]:
    """Return the factory that comes nearest to a model, and what has to be taken back of it."""
    if not arguments.get("multi_latent_attention"):
        heads = arguments.get("num_attention_heads")
        return "llama3_8b", {"model.config.num_query_groups": heads, "model.config.add_qkv_bias": False}
    if not arguments.get("moe_shared_expert_intermediate_size"):
        writing.refuse("model", "its factories of latent attention have shared experts (gpt/model/deepseek.py)")
    # the rank of queries is a whole number there, and of one factory none
    return "deepseek_v3" if arguments.get("q_lora_rank") else "deepseek_v2_lite", _NEMO_LATENT


def _write_nemo(writing: Writing) -> Program:
    arguments = job_arguments(writing)
    _refuse_learned_positions(writing, arguments)
    recipe, found = _factory(writing, arguments)
    nodes, per_node = machines(writing)
    wide, strategy = _wide(arguments), "trainer.strategy."
    core = _core_overrides(arguments, "model.config.")
    split = {
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
        "context_parallel_size", "sequence_parallel", "expert_model_parallel_size", "expert_tensor_parallel_size",
        "pipeline_model_parallel_layout",
    }  # fmt: skip
    found = {"trainer.num_nodes": nodes, "trainer.devices": per_node, **found}
    core.pop("model.config.activation_func", None)  # a function, which no text is; the factories have SiLU
    for name, value in core.items():
        field = name.removeprefix("model.config.")
        found[strategy + field if field in split else name] = value
    found |= {f"data.{name}": arguments[name] for name in (*_TRAINING, "seq_length")}
    found |= {"model.config.vocab_size": arguments.get("vocab_size", 0) + EXTRA_TOKEN}
    found |= _ddp_overrides(arguments, f"{strategy}ddp.") | _optimizer_overrides(arguments, "optim.config.")
    found |= {f"{strategy}use_tp_pp_dp_mapping": True} if arguments.get("use_tp_pp_dp_mapping") else {}
    plugin = "trainer.plugins"
    found |= {plugin: f"{wide}_mixed"} if wide != "fp32" else {}
    if wide != "fp32":
        found[f"{plugin}.grad_reduce_in_fp32"] = bool(arguments.get("accumulate_allreduce_grads_in_fp32"))
    for part in ("fp8", "fp4"):
        if f"{part}_format" in arguments:
            found[f"{plugin}.{part}"] = arguments[f"{part}_format"]
            found[f"{plugin}.{part}_recipe"] = arguments[f"{part}_recipe"]
    if "fp8_param_gather" in arguments:
        found[f"{plugin}.fp8_param_gather"] = True
    training = f"data, learning rate and its schedule, weight decay, Adam's betas, number of steps: those of {recipe}"
    writing.warn(f"{training}; its model is overridden")
    said = (name for name in arguments if _CORE.get(name, name))
    _name_left(writing, said, _OF_LLAMA if recipe == "llama3_8b" else _OF_DEEPSEEK, f"in {recipe}", training)
    head = (("pretrain",), ("--factory", recipe), ("--yes",))
    return Program("--no-python nemo llm", (*head, *_words(found)), environment=connections(writing))


def _claims_nemo(source: Source) -> bool:
    names = source.settings.keys()
    if source.kind == "python":
        called = source.called
        whole = {"trainer.devices", "trainer.strategy", "trainer.num_gpus_per_node"} & names
        return called in {"pretrain_recipe", "finetune_recipe"} or bool(called in _NEMO_CALLS and whole)
    if source.kind == "command":
        started = "nemo" in source.program or any(one.endswith("megatron_gpt_pretraining.py") for one in source.program)
        started |= _OF_PERFORMANCE.search(" ".join(source.program)) is not None
        return started or any(name.startswith("trainer.strategy.") for name in names)
    trained = {"trainer.devices", "training.trainer.devices"} & names
    return bool(trained) and any(_OF_NEMO.search(name) for name in names)


_OF_NEMO = re.compile(
    r"megatron|model_parallel_size|tensor_parallelism|encoder_seq_length|(^|\.)micro_batch_size|exp_manager|"
    r"restore_from_path|^recipe|model\.(config\.)?num_layers$|nemo"
)
"""Names that files of NeMo have, beside those of Lightning's Trainer."""


_OF_PERFORMANCE = re.compile(r"scripts[./]performance[./]llm[./]pretrain_(\w+)")
"""Scripts of NeMo that run a recipe, by its name (scripts/performance/llm)."""


_NEMO_CALLS = ("pretrain", "train", "finetune")
"""Functions of `nemo.collections.llm` that train what they are given."""


def _take_nemo_recipe(reading: Reading, recipe: Setting) -> None:
    """Take what a recipe of the library sets; of one that is not known what all of them set."""
    name = _nemo_recipe(reading, recipe)
    packed = packed_batch(name) if reading.flag("packed_sequence") else {}
    for setting, value in packed.items():
        found = reading.settings["packed_sequence"]
        reading.settings.setdefault(setting, replace(found, name=setting, value=value, span=None))
    take_recipe(reading, replace(recipe, value=name))
    other = reading.get("model")
    if other is not None and reading.sources[-1].kind == "command":  # `model=llama3_70b`, a factory of its own
        take_model(reading, _model_called(reading, other, str(other.value)), "model")
    if "model" not in reading.options and not reading.given.get("model"):
        _model_of_recipe(reading, recipe)
    if named_recipe(name) is None:
        take_usual(reading, recipe)


def _take_performance(reading: Reading) -> None:
    """Take what a script of NeMo's performance says of its recipe: the name, and the short options beside it."""
    named = _OF_PERFORMANCE.search(" ".join(reading.sources[-1].program))
    gpus = reading.get("num_gpus", "ng")
    if named is None or gpus is None:
        return
    reading.settings["recipe"] = replace(gpus, name="recipe", value=named[1], span=None)
    dtype, kind = reading.text("compute_dtype", "c") or "bf16", reading.text("fp8_recipe", "fr") or "ds"
    scaling = {"cs": "current", "mxfp8": "mxfp8", "ss": "subchannel"}.get(kind, "delayed")
    found = reading.get("compute_dtype", "c") or gpus
    text = f"bf16_with_fp8_{scaling}" if dtype == "fp8" else dtype
    reading.settings["trainer.plugins"] = replace(found, value=text)
    reading.means("precision of the step", "compute_dtype", "c", "fp8_recipe", "fr")
    for short, option in (("tp", "tp"), ("pp", "pp"), ("mb", "micro_batch_size")):
        if short not in reading.settings and option not in reading.given:
            reading.refuse(gpus, f"what is recommended for {named[1][:40]} is not known here: {option}", settles=option)
    _take_short(reading)
    tensor = reading.settings.get("tp", gpus)
    split = tensor is not gpus and (reading.integer("tp") or 1) > 1
    reading.settings["sequence_parallel"] = replace(tensor, name="sequence_parallel", value=split, span=None)
    for name in (
        "grad_reduce_in_fp32",
        "accumulate_allreduce_grads_in_fp32",
    ):  # helpers.py: set_perf_optimization_configs
        reading.settings[name] = replace(gpus, name=name, value=False, span=None)
    if "cuda_graphs" in reading.settings:
        reading.settings["enable_cuda_graph"] = reading.settings["cuda_graphs"]
        reading.means("as the model has them", "cuda_graphs")
    count, machine = reading.integer("num_gpus", "ng"), MACHINES.get(reading.text("gpu", "g") or "")
    if "gpus" not in reading.given and count:
        reading.option("gpus", count, gpus.name)
    if machine and "cluster" not in reading.given:
        reading.option("cluster", machine, "gpu" if "gpu" in reading.settings else "g")


def _take_short(reading: Reading) -> None:
    for short, name in {
        "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size", "mb": "micro_batch_size",
        "gb": "global_batch_size", "sl": "seq_length", "vp": "virtual_pipeline_model_parallel_size",
        "et": "expert_tensor_parallel_size",
    }.items():  # fmt: skip
        if short in reading.settings:
            reading.settings[name] = reading.settings[short]


def _read_nemo(reading: Reading) -> None:
    reading.run_by(load_tool("nemo"))
    _take_performance(reading)
    legacy = "trainer.precision" in reading.settings or "model.encoder_seq_length" in reading.settings
    encoder = reading.get("model.encoder.num_layers")
    if encoder:
        reading.refuse(encoder, "encoder-decoder models are not modelled", "give a decoder-only model")
    called = _python_call(reading)
    objects = _objects(reading, "nemo") if called is not None else []
    if called is not None:
        _read_nemo_call(reading, called)
        legacy = False
    _take_keywords(reading)
    tuned = legacy and any(name.startswith(_TUNED) for name in reading.settings)
    sections = (
        *([_TUNED] if tuned else []), "trainer.strategy.ddp.", "trainer.strategy.", "trainer.plugins.", "model.config.",
        "model.0.", "data.", "optim.config.", "model.optim.", "model.tokenizer.", "model.", "trainer.",
    )  # fmt: skip
    recipe = reading.get("recipe", "factory", "f")
    laid_over = ("trainer.strategy.ddp.", "model.config.", "model.0.", "optim.config.")
    _under_precision(reading, "trainer.plugins", recipe is not None, *laid_over)
    _named(reading, sections, _NEMO)
    _take_objects(reading, objects)
    _precision_recipe(reading, reading.get("trainer.plugins", *["trainer.precision"] * (called is not None)))
    nodes, devices = reading.integer("trainer.num_nodes"), reading.integer("trainer.devices")
    if nodes and devices:
        reading.option("gpus", nodes * devices, "trainer.num_nodes", "trainer.devices")
    if legacy:
        _read_legacy_nemo(reading)
    if recipe is not None:
        _take_nemo_recipe(reading, recipe)
    take_hub_model(reading)
    if tuned and "num_layers" not in reading.settings and "model" not in reading.options:
        _take_checkpoint(reading)
    modern = tuned or reading.flag("mcore_gpt") or reading.flag("transformer_engine")
    read_job(reading, "nemo" if not legacy else "nemo@2024-06" if modern else "nemo@2023-07")
    if not legacy:
        _read_adapters(reading)
    elif tuned:
        _read_legacy_adapters(reading)
    if legacy and "seq" in reading.options:
        reading.means("as the model has it", "model.data.seq_length")


_TUNED = "model.data.train_ds."
"""Section of the data of a finetuning in YAML of NeMo and NeMo-Aligner of 2023 and 2024, which ran on Megatron core."""


def _take_checkpoint(reading: Reading) -> None:
    """Take the model by the name of the `.nemo` file that a finetuning begins with."""
    found = reading.get("model.restore_from_path", "model.pretrained_checkpoint.restore_from_path")
    if found is not None:
        value = str(found.value).rstrip("/").removesuffix(".nemo")
        reading.settings[found.name] = replace(found, value=value)
    read_named_model(reading, *([found.name] if found is not None else []))


def _read_legacy_adapters(reading: Reading) -> None:
    """Read the adapters of NeMo's YAML of 2023 and 2024 (examples/nlp/language_modeling/tuning/conf).

    Raises:
        InputError: a scheme that is not LoRA.
    """
    table = "model.peft."
    found = reading.get(f"{table}peft_scheme")
    kind = str(found.value).lower() if found is not None else ""
    if kind in NO_ADAPTERS or reading.given.get("tune") == "full":
        reading.means("the whole model is trained", f"{table}peft_scheme")
        return
    _refuse_parts(reading, found, kind, "lora")
    own = f"{table}lora_tuning."
    names = adapters.Names((f"{own}adapter_dim",), (f"{own}target_modules",), (f"{own}adapter_dropout",))
    wide = "model.megatron_amp_O2"  # off by default: weights stay in fp32, frozen ones too
    base = None if reading.get(wide) is not None and reading.flag(wide) else "fp32"
    adapters.take(reading, names, f"{table}peft_scheme", base=base, by=(wide,))


def _nemo_recipe(reading: Reading, found: Setting) -> str:
    """Return a recipe's name as the library's table has it: `llama3_70b.pretrain_recipe`, `...finetune_recipe:lora`.

    Raises:
        InputError: what it sets for its adapters is not known here, or a mode that changes more than is said.
    """
    parts = re.sub(r"\(.*", "", str(found.value)).split(".")
    tunes = any("finetune" in source.program for source in reading.sources)
    named = parts[-1].endswith("_recipe")
    name = ".".join(parts[-2:]) if named else f"{parts[-1]}.{'finetune' if tunes else 'pretrain'}_recipe"
    if not name.endswith("finetune_recipe"):
        return name
    if reading.flag("performance_mode"):
        reading.refuse(reading.get("performance_mode"), "what it changes of a recipe of fine-tuning is not read",
                       "leave it out, and give what it sets: `recipe.trainer.strategy...`")  # fmt: skip
    said = re.search(r"peft_scheme\s*=\s*['\"]?(\w+)", str(found.value))
    scheme = reading.get("peft_scheme")
    kind = said[1] if said else str(scheme.value) if scheme is not None else "lora"
    kind = "none" if "peft_scheme" in reading.settings and scheme is None else kind.lower()
    if kind in NO_ADAPTERS or reading.given.get("tune") == "full":
        return name
    if f"{name}:lora" not in library():
        hint = "`peft_scheme=None` trains the whole model; a call of `llm.finetune` that states all is read"
        reading.refuse(found, "what this recipe sets for its adapters (LoRA, by default) is not known here", hint)
    return f"{name}:lora"


def _read_nemo_call(reading: Reading, called: Setting) -> None:
    """Take a recipe or a call of NeMo that a Python file makes: its keywords, plugins and callbacks."""
    settings, origin = reading.settings, settings_text(reading, "origin")
    settings.pop("name", None)  # of the run, not of the optimizer
    library = re.fullmatch(r"(nemo\..*)\.trainer", settings_text(reading, "trainer.origin"))
    if library:  # a part of a recipe: `trainer=llama3_8b.trainer(tensor_parallelism=2)`
        whole = f"{library[1]}.{'finetune' if called.value == 'finetune' else 'pretrain'}_recipe"
        settings["recipe"] = replace(settings["trainer"], name="recipe", value=whole)
        for one in [one for one in settings if one.startswith("trainer.")]:
            settings.setdefault(one.removeprefix("trainer."), settings[one])
    recipe = str(called.value).endswith("_recipe")
    if recipe and all(settings_text(reading, name) for name in ("trainer", "trainer.devices", "model", "data")):
        reading.assume(f"{called.value} is given all of a job: read as a call that trains it", called)
    elif recipe:
        name = str(called.value) if "." in str(called.value) else origin
        settings["recipe"] = replace(called, name="recipe", value=name)
    _take_plugins(settings)
    _take_strategy(reading)


def _take_keywords(reading: Reading) -> None:
    """Take keywords of a recipe's call, of a factory too: `--factory "llama3_8b(num_nodes=2)"`."""
    settings, found = reading.settings, reading.get("factory", "f")
    if found is not None:
        for name, value in re.findall(r"(\w+)\s*=\s*['\"]?([\w.]+)", str(found.value)):
            settings.setdefault(name, replace(found, name=name, value=value))
    for keyword, name in {"num_nodes": "trainer.num_nodes", "num_gpus_per_node": "trainer.devices"}.items():
        if keyword in settings:
            settings.setdefault(name, settings[keyword])
    if reading.flag("performance_mode"):
        for name, value in (("tp_comm_overlap", True), ("grad_reduce_in_fp32", False)):
            settings.setdefault(name, replace(settings["performance_mode"], name=name, value=value))


def _take_plugins(settings: dict[str, Setting]) -> None:
    """Give parts of plugins and callbacks of NeMo's trainer the names that they have without them."""
    for name, one in [*settings.items()]:
        part = re.fullmatch(r"trainer\.callbacks\.\d+\.(tp_comm_overlap|overlap_\w+)", name)
        if part:
            settings.setdefault(part[1], one)
        elif name.startswith("trainer.plugins.0"):
            settings[name.replace("trainer.plugins.0", "trainer.plugins")] = one
    plugin = settings.get("trainer.plugins.precision")
    if plugin is not None:
        settings["trainer.plugins"] = plugin
    own = next((settings[name] for name in ("optim", "model") if name in settings and says(settings[name].value)), None)
    factory = own is None or own.name == "model" or "distributed" in str(own.value)
    if own and factory and not any(name.endswith(_SHARDS) for name in settings):  # models too (llm/gpt/model/base.py)
        settings[_SHARDS] = replace(own, name=_SHARDS, value=True, span=None)
    for section in ("optim", "optim.config"):  # the class of a section is no value of it
        settings.pop(section, None)


_SHARDS = "use_distributed_optimizer"


def settings_text(reading: Reading, name: str) -> str:
    """Return the text of a setting; empty where there is none."""
    found = reading.settings.get(name)
    return "" if found is None else str(found.value)


_NEMO = {**_FIELDS, **_KNOWN["nemo"]}


def _take_strategy(reading: Reading) -> None:
    """Take how another strategy than Megatron's shards, by its class or its word.

    Raises:
        InputError: that is not known.
    """
    found = reading.needed("trainer.strategy")
    kind = "" if found is None else str(found.value).rpartition(".")[2]
    if found is None or kind == "MegatronStrategy" or reading.given.get("zero") is not None:
        return
    if kind not in _KNOWN["strategies"]:
        reading.refuse(found, f"how the strategy {kind[:60]} shards is not known here", settles="zero")
    for name, value in _KNOWN["strategies"][kind].items():
        reading.settings[name] = replace(found, name=name, value=value, span=None)


def _read_legacy_nemo(reading: Reading) -> None:
    """Take what NeMo's YAML of 2022 to 2024 says otherwise than Megatron-LM's arguments."""
    settings = reading.settings
    for name in ("encoder_seq_length", "share_embeddings_and_output_weights", "activation"):
        if f"model.{name}" in settings:  # the model's, not those of its data or tokenizer
            settings[{"encoder_seq_length": "seq_length"}.get(name, name)] = settings[f"model.{name}"]
    if f"{_TUNED}max_seq_length" in settings:
        settings["seq_length"] = settings[f"{_TUNED}max_seq_length"]
    precision, fp8 = settings.get("trainer.precision"), settings.get("model.fp8")
    if precision is not None:  # bf16, 16, bf16-mixed
        text = str(precision.value)
        for name, said in (("bf16", "bf16" in text), ("fp16", text.startswith(("16", "fp16")))):
            settings[name] = replace(precision, value=said)
    eight = fp8 is not None and str(fp8.value).lower() in ON
    if fp8 is not None:
        settings["fp8_format"] = replace(fp8, value="hybrid" if eight else None)
    optimizer = settings.get("model.optim.name")
    if optimizer is not None:
        settings["use_distributed_optimizer"] = replace(optimizer, value="distributed" in str(optimizer.value))
        adam = re.search("adam|optim", str(optimizer.value))
        settings["optimizer"] = replace(optimizer, value="adam" if adam else optimizer.value)
    half = "16" in settings_text(reading, "trainer.precision")
    whole = settings.get("model.megatron_amp_O2")  # models/language_modeling/megatron_base_model.py: off by default
    if precision is not None and half and (whole is None or str(whole.value).lower() not in ON) and not eight:
        reading.assume("weights in fp32, cast for each product, take as much as those in 16 bits beside fp32 copies",
                       *([whole] if whole is not None else []))  # fmt: skip
        settings["accumulate_allreduce_grads_in_fp32"] = replace(precision, value=True)
    sync = settings.get("model.optim.grad_sync_dtype")
    if sync is not None and "bf16" in str(sync.value):
        settings["grad_reduce_in_bf16"] = replace(sync, value=True)


# --- Primus


_ON_IN_PRIMUS = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")
"""What Primus' trainer has on, of what a plan may want off."""


def _write_primus(writing: Writing) -> Program:
    arguments = job_arguments(writing) | {"mock_data": True, "train_iters": 50, "lr": 1e-4}
    named = {argument: field for field, argument in _FIELDS.items() if field in {"fp8", "fp4"}}
    overrides: Arguments = {}
    for argument, value in arguments.items():
        if argument in INVERTED and argument != "untie_embeddings_and_output_weights":
            overrides[INVERTED[argument]] = not value
        elif value is not None:
            overrides[named.get(argument, argument)] = value
    overrides = {**dict.fromkeys(_ON_IN_PRIMUS, False), **overrides}
    trainer = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "language_model.yaml"}
    own_names = {"work_group": "gpuscale", "user_name": "gpuscale", "exp_name": job_name(writing)}
    modules = {"pre_trainer": {**trainer, "overrides": overrides}}
    text = yaml_text({**own_names, "workspace": "./output", "modules": modules})
    writing.warn(PLACEHOLDERS)
    training = ("data, learning rate, number of steps: placeholders", "weight decay, Adam's betas, clipping: Primus'")
    _name_left(writing, arguments, here(writing.model), "by default", *training)
    arguments_ = (("--", "train", "pretrain"), ("--config", "plan.yaml"))
    nodes, per_node = machines(writing)
    environment = {
        "NNODES": (str(nodes), "nodes of the job"),
        "GPUS_PER_NODE": (str(per_node), "processes of a node"),
        **connections(writing),
    }
    return Program("primus-cli direct", arguments_, (LaunchFile("plan.yaml", text),), environment, launcher=None)


_PRIMUS_MODULES = (PRIMUS, "modules.post_trainer")


def _claims_primus(source: Source) -> bool:
    kinds = (source.settings.get(f"{module}.framework") for module in _PRIMUS_MODULES)
    return any(kind is not None and str(kind.value) in {"megatron", "megatron_bridge"} for kind in kinds)


def _read_primus(reading: Reading) -> None:
    """Read a YAML of Primus for Megatron-LM, or for Megatron-Bridge."""
    module = next(one for one in _PRIMUS_MODULES if reading.get(f"{one}.framework"))
    bridge = reading.text(f"{module}.framework") == "megatron_bridge"
    reading.run_by(load_tool("primus-bridge" if bridge else "primus"))
    _named(reading, (f"{module}.overrides.",), _FIELDS)
    _precision_recipe(reading, reading.get("precision_config"))
    model = reading.get(f"{module}.model")
    if model is not None and not {"num_layers", "hidden_size", "num_attention_heads"} <= reading.settings.keys():
        name = re.sub(r"\.ya?ml$", "", str(model.value)).lower().replace("_", "-")
        take_model(reading, settled("models", name)[0], model.name)
    reading.means(f"Megatron-{'Bridge' if bridge else 'LM'} under Primus", f"{module}.framework")
    nodes, per_node = reading.integer("NNODES"), reading.integer("GPUS_PER_NODE")
    if per_node:
        reading.option("gpus", (nodes or 1) * per_node, "NNODES", "GPUS_PER_NODE")
    _take_primus_gpu(reading)
    read_job(reading, "primus")
    _read_adapters(reading)


def _take_primus_gpu(reading: Reading) -> None:
    """Take the GPU that the folder of a configuration is called by: `configs/MI325X/llama2_7B.yaml`."""
    folders = (part.lower() for source in reading.sources for part in PurePath(source.file).parts[:-1])
    machine = next(
        (part for part in folders if re.fullmatch(r"mi\d{3}x", part) and find_preset("clusters", part)), None
    )
    if machine and "cluster" not in reading.options and not reading.given.get("cluster"):
        reading.options["cluster"] = machine
        reading.assume(f"the cluster is {machine}, as the folder of the file is called")


_BASIS = "NVIDIA/Megatron-LM at d98e8a64ddf3 (2026-08-22)"
_BRIDGE = "NVIDIA-NeMo/Megatron-Bridge at 067f987df03b (2026-08-22)"
_NEMO2, _PRIMUS = "NVIDIA/NeMo at 8cfedd720346 (2025-09-20)", "AMD-AGI/Primus at fd1eeabbad15 (2026-08-22)"
_AS_BRIDGE = (MEGATRON_BRIDGE, MEGATRON_BRIDGE_PERFORMANCE)

TARGETS = (
    Target(MEGATRON_BRIDGE, "Megatron-Bridge", _BRIDGE, _AS_BRIDGE, _write_bridge, _claims_bridge, _read_bridge,
           adapters=True),
    Target("nemo", "NeMo 2", _NEMO2, ("nemo",), _write_nemo, _claims_nemo, _read_nemo),
    Target("primus", "Primus", _PRIMUS, ("primus",), _write_primus, _claims_primus, _read_primus),
    Target("megatron-lm", "Megatron-LM", _BASIS, ("megatron-lm",), _write_megatron, _claims_megatron, _read_megatron,
           ATTENTION),
)  # fmt: skip
