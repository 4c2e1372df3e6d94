"""Tools of post-training that are read and not written: LLaMA-Factory v1, OpenRLHF, verl, AReaL and fms-fsdp.

Of reinforcement learning the optimizer steps of the actor are predicted, and nothing else of a round. What a tool has
where nothing is said stands in `presets/tools/`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePath

from gpuscale.launch import adapters, deepspeed, trainer
from gpuscale.launch.huggingface import take_configs
from gpuscale.launch.huggingface_models import read_model
from gpuscale.launch.launchers import take_gpus
from gpuscale.launch.megatron import read_job, take_type
from gpuscale.launch.megatron_family import ACTOR_ALONE
from gpuscale.launch.settings import DTYPES, Reading, Source, precision_word, way_to
from gpuscale.launch.shapes import read_attention
from gpuscale.launch.writing import Target
from gpuscale.presets.tools import load_tool


def _gpus(reading: Reading, nodes: str, each: str) -> None:
    """Set the GPUs of nodes and GPUs of each, where nobody gives them beside."""
    per_node = reading.integer(each)
    if per_node and not reading.given.get("gpus"):
        reading.option("gpus", (reading.integer(nodes) or 1) * per_node, nodes, each)


def _context(reading: Reading, kind: str, *names: str, size: int | None = None) -> None:
    size = size or reading.integer(*names)
    if size and size > 1:
        reading.option("cp", size, *names)
        reading.option("cp_comm", kind, *names)


def _batch(reading: Reading, micro: int | None, total: int | None, *of: str) -> None:
    """Set both batches; where no total is stated it is one microbatch of each replica."""
    if total is None and micro is not None and not reading.given.get("gbs"):
        trainer.read_batch(reading, micro, 1, None, *of)
    else:
        trainer.read_batch(reading, micro, None, total, *of)


# --- LLaMA-Factory v1


def _claims_factory(source: Source) -> bool:
    names = source.settings.keys()
    return source.kind != "python" and "model" in names and "model_name_or_path" not in names and bool(
        {"model_class", "dist_config.name", "train_dataset"} & names
    )  # fmt: skip


def _read_factory(reading: Reading) -> None:
    tool = load_tool("llama-factory-v1")
    reading.run_by(tool)
    read_model(reading, "model")
    _factory_adapters(reading)
    take_gpus(reading)
    kind = reading.text("dist_config.name", known=("fsdp2", "fsdpturbo", "deepspeed", "ddp"))
    _context(reading, "p2p" if reading.text("dist_config.cp_mode", "cp_mode") == "ring" else "a2a",
             "dist_config.cp_size", "cp_size")  # fmt: skip
    experts = reading.integer("dist_config.ep_size") or 1
    if kind == "deepspeed":
        take_configs(reading, tool, "dist_config.config_file")
        reading.option("framework", "deepspeed")
        deepspeed.read(reading)
    else:
        reading.option("framework", "pytorch" if experts > 1 else "accelerate")
        kept = reading.flag("dist_config.reshard_after_forward")
        reading.option(
            "zero", (3 if kept else 2) if kind else 0, "dist_config.name", "dist_config.reshard_after_forward"
        )
        reading.option("grad_dtype", "fp32", "dist_config.name")
        reading.switch("offload", "optimizer+parameters", None, "dist_config.offload_params")
    if experts > 1:
        reading.option("ep", experts, "dist_config.ep_size")
    reading.switch("recompute", "full", "none", "enable_activation_checkpointing")
    reading.switch("precision", "bf16", "fp32", "bf16")
    trainer.read_optimizer(reading, "optim_config.name")
    read_attention(reading)
    trainer.read_sequence(reading, "cutoff_len")
    micro, total = trainer.count(reading, "micro_batch_size"), trainer.count(reading, "global_batch_size")
    _batch(reading, micro, total, "micro_batch_size", "global_batch_size")


def _factory_adapters(reading: Reading) -> None:
    kind, quantised = reading.text("peft_config.name"), "quant_config.quantization_bit"
    if kind is None or reading.given.get("tune") == "full":
        reading.means("all of the model is trained", "finetuning_type")
        return
    if kind.lower() != "lora":
        reading.refuse(reading.get("peft_config.name"), f"{kind[:40]} is not modelled: a part of the model is trained")
    nested = reading.flag("quant_config.double_quantization")
    base = {4: "nf4" if nested else "nf4-single", 8: "int8"}.get(reading.integer(quantised) or 0)
    adapters.take(reading, adapters.CONFIG, "peft_config.name", base=base, by=(quantised, "quant_config.name"))


# --- OpenRLHF

_CLI = re.compile(r"openrlhf\.cli\.(train_\w+)|(?:^|[\s/])(train_(?:ppo|ppo_ray|sft|dpo|rm|kto))\.py\b")
"""What starts a trainer; before release 0.3 they were files of its examples."""


def _openrlhf_script(source: Source) -> str:
    """Return the trainer that a command starts, by its name; empty where it is none of OpenRLHF's."""
    found = _CLI.search(" ".join(source.program))
    own = found is not None and (found[1] or "micro_train_batch_size" in source.settings)
    return (found[1] or found[2]) if found is not None and own else ""


def _claims_openrlhf(source: Source) -> bool:
    return bool(_openrlhf_script(source))


def _names(*names: str) -> tuple[str, ...]:
    """Return an argument of OpenRLHF as releases from 0.10 on call it, and as those before did."""
    return (*names, *(name.rpartition(".")[2] for name in names if "." in name))


def _read_openrlhf(reading: Reading) -> None:
    """Read arguments of OpenRLHF, whose trainers run under DeepSpeed.

    Raises:
        InputError: what it trains is no language model by itself.
    """
    script = next(filter(None, map(_openrlhf_script, reading.sources)))
    rl = script.startswith(("train_ppo", "train_grpo", "train_reinforce"))
    tools = {"train_sft": "openrlhf", "train_rm": "openrlhf-rm"}
    reading.run_by(load_tool("openrlhf-ppo" if rl else tools.get(script, "openrlhf-dpo")))
    read_model(reading, *_names("model.model_name_or_path", "actor.model_name_or_path"), "pretrain")
    if rl:
        _refuse_lora(reading, *_OPENRLHF_LORA.rank)
        adapters.read(reading, _OPENRLHF_LORA)  # the actor alone, whatever rewards it
        _gpus(reading, *_openrlhf_actors(reading))
        reading.assume(ACTOR_ALONE)
    else:
        trainer.read_tuning(reading, _OPENRLHF_LORA, beside=True)
    take_gpus(reading)
    sharded = (reading.text("backend") or "").startswith("fsdp")
    stage = ("backend",) if sharded else _names("ds.zero_stage")
    reading.option("framework", "pytorch" if sharded else "deepspeed")
    reading.option("zero", 3 if sharded else reading.integer(*stage) or 0, *stage)
    tp = _names("ds.tensor_parallel_size", "ds_tensor_parallel_size")
    reading.option("tp", reading.integer(*tp) or 1, *tp)
    _context(reading, "p2p", *_names("ds.ring_attn_size"))
    reading.switch("offload", "optimizer", None, *_names("ds.adam_offload"))
    reading.switch("overlap", None, "none", *_names("ds.overlap_comm"))
    gradients = reading.text(*_names("ds.grad_accum_dtype"))
    if gradients:
        reading.option("grad_dtype", gradients, *_names("ds.grad_accum_dtype"))
    checkpointing = _names("model.gradient_checkpointing_enable", "actor.gradient_checkpointing_enable")
    reading.switch("recompute", "full", "none", "gradient_checkpointing", *checkpointing)
    trainer.read_precision(reading, *_names("ds.param_dtype"))
    trainer.read_optimizer(reading, "optim", "optimizer")
    reading.switch("loss", "linear", "standard", *_names("ds.use_liger_kernel"))
    read_attention(reading, *_names("ds.attn_implementation"))
    if "attention" not in reading.options:
        read_attention(reading)
    reading.means("FlashAttention 2, which later releases have by default", "flash_attn")
    _openrlhf_sequence(reading)
    micro, total = (
        trainer.count(reading, *_names(new), old)
        for new, old in (("train.micro_batch_size", "micro_train_batch_size"), ("train.batch_size", "train_batch_size"))
    )
    of = ("train.micro_batch_size", "micro_train_batch_size", "train.batch_size", "train_batch_size")
    _batch(reading, micro, total, *of)
    reading.means("packed sequences are full", *_names("ds.packing_samples"))


_OPENRLHF_LORA = adapters.Names(
    (*_names("ds.lora.rank"), "lora_rank"),
    _names("ds.lora.target_modules"),
    (*_names("ds.lora.dropout"), "lora_dropout"),
)


def _openrlhf_actors(reading: Reading) -> tuple[str, str]:
    new = "actor.num_gpus_per_node" in reading.settings or "actor_num_gpus_per_node" not in reading.settings
    return ("actor.num_nodes", "actor.num_gpus_per_node") if new else ("actor_num_nodes", "actor_num_gpus_per_node")


def _openrlhf_sequence(reading: Reading) -> None:
    parts = [reading.integer(name) for name in ("prompt_max_len", "generate_max_len")]
    if all(parts) and not reading.given.get("seq"):
        reading.option("seq", sum(one or 0 for one in parts), "prompt_max_len", "generate_max_len")
    else:
        trainer.read_sequence(reading, *_names("data.max_len"))


# --- verl

_ACTOR = "actor_rollout_ref.actor."
_ROLES = "actor_rollout_ref.model."


def _claims_verl(source: Source) -> bool:
    program, names = " ".join(source.program), source.settings.keys()
    supervised = {"data.train_batch_size", "data.micro_batch_size_per_gpu", "trainer.n_gpus_per_node"} <= names
    return bool(re.search(r"\bverl\.(trainer|recipe)|main_ppo", program)) or f"{_ROLES}path" in names or supervised


_OF_VERL = re.compile(r"(ppo|sft)(_megatron)?_trainer(_engine)?")
"""Configurations that verl has itself, whose values are its defaults."""


def _need_composed(reading: Reading, decided: Mapping[str, tuple[str, ...]]) -> None:
    """Ask for what a configuration of Hydra may say that is named and not here: option -> settings that decide it.

    Raises:
        LackingError: no setting says it, nor is it given.
    """
    found = reading.settings.get("config_name")
    name = "" if found is None else str(found.value).removesuffix(".yaml")
    if found is None or _OF_VERL.fullmatch(name) or any(PurePath(one.file).stem == name for one in reading.sources):
        return
    for option, names in decided.items():
        if option not in reading.given and not all(one in reading.settings for one in names):
            message = f"{name[:100]}.yaml may say the {option}, and is not here"
            reading.refuse(found, message, f"add {way_to(option)}, or that file by `launch_files`", settles=option)


def _read_verl(reading: Reading) -> None:
    """Read overrides of verl: reinforcement learning under FSDP or Megatron core, supervised training under FSDP.

    Raises:
        InputError: LoRA under Megatron core, or no microbatch.
    """
    if f"{_ROLES}path" not in reading.settings:
        _read_verl_sft(reading)
        return
    megatron = "megatron" in f"{reading.text('config_name')} {reading.text(f'{_ACTOR}strategy', 'model_engine')}"
    megatron |= any(name.startswith(f"{_ACTOR}megatron.") for name in reading.settings)
    reading.run_by(load_tool("verl-megatron" if megatron else "verl"))
    ranks = (f"{_ROLES}lora_rank", f"{_ROLES}lora.rank")
    reading.assume(ACTOR_ALONE)
    _gpus(reading, "trainer.nnodes", "trainer.n_gpus_per_node")
    parts = ("data.max_prompt_length", "data.max_response_length")
    _need_composed(reading, {"seq": parts, "gbs": (f"{_ACTOR}ppo_mini_batch_size",)})
    lengths = [reading.integer(name) or 0 for name in parts]
    sequence = int(reading.given.get("seq") or sum(lengths))
    if not reading.given.get("seq"):
        reading.option("seq", sequence, *parts)
    if megatron:
        _refuse_lora(reading, *ranks)
        _verl_megatron(reading)
    else:
        read_model(reading, f"{_ROLES}path")
        if reading.integer(*ranks):  # fp32, as the shards of all weights are (workers/fsdp_workers.py)
            held = reading.get(f"{_ACTOR}fsdp_config.model_dtype")
            base = "bf16" if held is not None and precision_word(held) == "bf16" else "fp32"
            adapters.take(reading, adapters.Names(ranks, (f"{_ROLES}target_modules",), ()), *ranks, base=base)
        _verl_fsdp(reading, f"{_ACTOR}fsdp_config.", _ROLES, _ACTOR)
    _verl_batch(reading, sequence)


def _refuse_lora(reading: Reading, *names: str) -> None:
    for name in names:
        if reading.integer(name):
            message = "adapters of reinforcement learning are not modelled"
            reading.refuse(reading.get(name), message, "gpuscale predicts whole models there")


def _verl_fsdp(reading: Reading, table: str, model: str, own: str) -> None:
    """Read FSDP: weights in fp32 are sharded, gathered in bf16, and gradients reduced in fp32."""
    reading.option("framework", "accelerate")
    reading.switch("zero", 3, 2, f"{table}reshard_after_forward")
    reading.number_from(1, "shard", f"{table}fsdp_size")
    trainer.read_precision(reading, f"{table}dtype")
    reading.option("grad_dtype", "fp32", f"{table}dtype")
    held = reading.get(f"{table}model_dtype")
    if held is not None:
        reading.need(held)
    if held is not None and precision_word(held) == "bf16":
        for name, value in (("master_dtype", "none"), ("moment_dtype", "bf16")):
            reading.option(name, value, f"{table}model_dtype")
    of = f"{table}use_no_sync_for_gradient_accumulation"
    reading.switch("grad_reduce", None, "each", of)  # backward passes stand in no `no_sync` (workers/actor/dp_actor.py)
    reading.switch("offload", "optimizer+parameters", None, f"{table}offload_policy", f"{table}cpu_offload")
    reading.means("on the GPU during the step", f"{table}param_offload", f"{table}optimizer_offload")
    _context(reading, "a2a", f"{own}ulysses_sequence_parallel_size", f"{table}ulysses_sequence_parallel_size")
    reading.switch("recompute", "full", "none", f"{model}enable_gradient_checkpointing")
    reading.switch("offload", "activations", None, f"{model}enable_activation_offload")
    if reading.flag(f"{model}use_fused_kernels") or reading.flag(f"{model}use_liger"):
        reading.option("loss", "linear", f"{model}use_fused_kernels", f"{model}use_liger")
    read_attention(reading, f"{model}override_config.attn_implementation")
    trainer.read_optimizer(reading, f"{own}optim.optimizer", "optim.optimizer")


def _verl_megatron(reading: Reading) -> None:
    """Read Megatron core's settings, by their own names below those of the actor."""
    table = f"{_ACTOR}megatron."
    read_model(reading, f"{_ROLES}path")
    below = ("override_transformer_config.", "override_ddp_config.", "")
    for inner in below:
        for name, found in list(reading.settings.items()):
            if name.startswith(f"{table}{inner}"):
                reading.settings.setdefault(name.removeprefix(f"{table}{inner}"), found)
    for name, found in list(reading.settings.items()):
        if name.startswith(f"{_ACTOR}optim."):
            core = name.removeprefix(f"{_ACTOR}optim.").removeprefix("override_optimizer_config.")
            reading.settings.setdefault(core, found)
    take_type(reading, f"{table}dtype")
    reading.means(
        "on the GPU during the step", f"{table}param_offload", f"{table}optimizer_offload", f"{table}grad_offload"
    )
    read_job(reading, "megatron-lm")


def _verl_batch(reading: Reading, sequence: int) -> None:
    """Read the batch of one optimizer step: a mini-batch of prompts with all responses of each."""
    mini, whole = f"{_ACTOR}ppo_mini_batch_size", "data.train_batch_size"
    prompts = trainer.count(reading, mini) or 0
    if not reading.stated(mini):
        prompts = min(prompts, trainer.count(reading, whole) or prompts)
        reading.assume(f"optimizer steps of {prompts} prompts", mini, whole)
    responses = trainer.count(reading, "actor_rollout_ref.rollout.n") or 1
    names = (f"{_ACTOR}ppo_micro_batch_size_per_gpu",)
    micro = trainer.count(reading, *names) or _shared(reading, f"{_ACTOR}ppo_micro_batch_size")
    if reading.flag(f"{_ACTOR}use_dynamic_bsz"):
        micro = _packed(reading, sequence, prompts * responses, f"{_ACTOR}ppo_max_token_len_per_gpu")
    elif micro is None and not reading.given.get("micro_batch_size"):
        micro = 1
        reading.assume("microbatches of 1 sequence: ppo_micro_batch_size_per_gpu is not stated, and verl wants it")
    reading.means(f"optimizer steps of {prompts} prompts", whole)
    _batch(reading, micro, prompts * responses, mini, "actor_rollout_ref.rollout.n", *names)


def _packed(reading: Reading, sequence: int, total: int, most: str) -> int:
    """Return the sequences of a microbatch that holds so many tokens of a GPU times those that split sequences."""
    tokens = (trainer.count(reading, most) or sequence) * int(reading.layout.get("cp") or 1)  # dp_actor.py
    each = total // trainer.data_parallel(reading, "the microbatch")
    micro = next(one for one in range(max(1, tokens // sequence), 0, -1) if each % one == 0)
    reading.assume(f"microbatches of {micro} sequences of {sequence:,} tokens: they are packed by tokens", most)
    return micro


def _shared(reading: Reading, name: str) -> int | None:
    """Return the microbatch of a rank where verl's first releases state that of all ranks together."""
    whole, gpus = trainer.count(reading, name), reading.options.get("gpus") or reading.given.get("gpus")
    if whole is None or not gpus:
        return None
    ranks = max(1, int(gpus) // int(reading.layout.get("tp") or 1) // int(reading.layout.get("cp") or 1))
    reading.assume(f"microbatches of {max(1, whole // ranks)}: {whole} of all {ranks} ranks together", name)
    return max(1, whole // ranks)


def _read_verl_sft(reading: Reading) -> None:
    reading.run_by(load_tool("verl-sft"))
    read_model(reading, "model.partial_pretrain", "model.path")
    if reading.integer("model.lora_rank"):
        adapters.take(reading, adapters.Names(("model.lora_rank",), ("model.target_modules",), ()), "model.lora_rank")
    take_gpus(reading)
    if "gpus" not in reading.options:
        _gpus(reading, "trainer.nnodes", "trainer.n_gpus_per_node")
    table = "engine." if any(name.startswith("engine.") for name in reading.settings) else "model.fsdp_config."
    engine = reading.get("engine.strategy", "engine", "model.strategy")
    if engine is not None:
        reading.need(engine)
        if "megatron" in str(engine.value):
            reading.refuse(engine, "Megatron core of verl's SFT is not read", "give `tp` and the like")
    _verl_fsdp(reading, table, "model.", "")
    sequence = trainer.read_sequence(reading, "data.max_length") or int(reading.given["seq"])
    each, total = "data.micro_batch_size_per_gpu", trainer.count(reading, "data.train_batch_size") or 0
    newer = reading.stated("model.partial_pretrain") is None  # sft_trainer_engine.yaml; before it sft_trainer.yaml
    if reading.flag("data.use_dynamic_bsz", default=newer):
        micro: int | None = _packed(reading, sequence, total, "data.max_token_len_per_gpu")
    else:
        micro = None if reading.stated(each) else _shared(reading, "data.micro_batch_size")
    _batch(reading, micro or trainer.count(reading, each), total, each, "data.train_batch_size")


# --- AReaL

_AREAL_DEGREES = {"d": "dp", "t": "tp", "p": "pp", "c": "cp", "e": "ep"}


def _claims_areal(source: Source) -> bool:
    names = source.settings.keys()
    return source.kind == "yaml" and "actor.path" in names and bool({"allocation_mode", "actor.backend"} & names)


def _read_areal(reading: Reading) -> None:
    """Read the actor of AReaL's reinforcement learning: by FSDP2, or by Megatron core under pipelines and experts.

    Raises:
        InputError: adapters, or no way of splitting the actor that is known.
    """
    reading.run_by(load_tool("areal"))
    if reading.flag("actor.use_lora"):
        _refuse_lora(reading, "actor.lora_rank")
    reading.assume(ACTOR_ALONE)
    read_model(reading, "actor.path")
    degrees, core = _areal_degrees(reading)
    of = ("actor.backend", "allocation_mode")
    if not reading.given.get("gpus"):
        reading.option("gpus", math.prod(degrees.get(name, 1) for name in "dtpc"), *of)
    for letter in "tpe":
        reading.option(_AREAL_DEGREES[letter], degrees.get(letter, 1), *of)
    _context(reading, "p2p" if core else "a2a", *of, size=degrees.get("c", 1))
    reading.switch("recompute", "full", "none", "actor.gradient_checkpointing")
    precision = trainer.read_precision(reading, "actor.dtype")
    reduced = "actor.grad_reduce_dtype"
    reading.option("grad_dtype", DTYPES[reading.text(reduced, known=DTYPES) or "float32"], reduced)
    if core:
        reading.option("framework", "megatron-lm")
        reading.option("zero", 1)
        if degrees["e"] > 1:
            reading.option("etp", degrees["et"], *of)
    else:
        reading.option("framework", "accelerate")
        reading.option("zero", 3)
        other = [name for name in reading.settings if name.startswith("actor.megatron.")]
        reading.means("of Megatron core, which does not run it", *other)
        if precision == "bf16":  # weights are loaded in it (engine/base_hf_engine.py)
            for name, value in (("master_dtype", "none"), ("moment_dtype", "bf16")):
                reading.option(name, value, "actor.dtype")
    reading.switch("offload", "optimizer+parameters", None, "actor.fsdp.offload_params")
    read_attention(reading, "actor.attn_impl")
    trainer.read_optimizer(reading, "actor.optimizer.type")
    _areal_batch(reading, degrees.get("d", 1))


def _areal_degrees(reading: Reading) -> tuple[dict[str, int], bool]:
    """Return the actor's degrees by their letters, and whether Megatron core runs it (api/alloc_mode.py)."""
    found = reading.needed("actor.backend", "allocation_mode")
    text = str(found.value).replace(" ", "") if found is not None else ""
    parts = [one for one in re.split(r"[+]", text) if not re.match(r"(sglang|vllm)", one)]
    attention = re.fullmatch(r"(?:(fsdp|megatron|archon)[\[(]?\w*[\])]?:)?(?:\(attn:)?((?:[dtpce]\d+)+)"
                             r"(?:\|ffn:((?:[dtpce]\d+)+)\))?", parts[-1]) if len(parts) == 1 else None  # fmt: skip
    if attention is None:
        reading.refuse(found, f"how the actor is split is not read of {text[:60]!r}", "give `gpus`, `tp` and the like")
    degrees = {letter: int(size) for letter, size in re.findall(r"([dtpce])(\d+)", attention[2])}
    of_experts = {letter: int(size) for letter, size in re.findall(r"([te])(\d+)", attention[3] or "")}
    degrees |= {"e": of_experts.get("e", degrees.get("e", 1)), "et": of_experts.get("t", 1)}
    split = degrees.get("p", 1) > 1 or degrees.get("e", 1) > 1
    return degrees, attention[1] == "megatron" or (attention[1] is None and split)


def _areal_batch(reading: Reading, replicas: int) -> None:
    """Read the batch of one optimizer step, and sequences as long as prompts and answers may be."""
    lengths = ("train_dataset.max_length", "gconfig.max_new_tokens")
    if not reading.given.get("seq"):
        if reading.integer(lengths[0]) is None:
            reading.refuse(None, "no file states how long prompts are", settles="seq")
        reading.option("seq", sum(reading.integer(name) or 0 for name in lengths), *lengths)
    sequence = int(reading.given.get("seq") or reading.options["seq"])
    answers = (trainer.count(reading, "train_dataset.batch_size") or 1) * (reading.integer("gconfig.n_samples") or 1)
    total = max(1, answers // (reading.integer("actor.ppo_n_minibatches") or 1))
    most = reading.integer("actor.mb_spec.max_tokens_per_mb")
    each = max(1, total // replicas)
    least = (reading.integer("actor.mb_spec.n_mbs") or 1) if not most else -(-each * sequence // most)
    micro = next((each // parts for parts in range(max(1, least), each + 1) if each % parts == 0), 1)
    reading.assume(f"microbatches of {micro} sequences of {sequence:,} tokens: they are packed by tokens",
                   "actor.mb_spec.max_tokens_per_mb")  # fmt: skip
    of = ("train_dataset.batch_size", "gconfig.n_samples", "actor.ppo_n_minibatches", "actor.mb_spec.max_tokens_per_mb")
    _batch(reading, micro, total, *of)


# --- fms-fsdp


def _claims_fms(source: Source) -> bool:
    names = source.settings.keys()
    return any(word.endswith("main_training_llama.py") for word in source.program) or {
        "model_variant", "fsdp_activation_checkpointing"
    } <= names  # fmt: skip


def _read_fms(reading: Reading) -> None:
    reading.run_by(load_tool("fms-fsdp"))
    _fms_model(reading)
    take_gpus(reading)
    reading.option("framework", "pytorch")
    tp = reading.integer("tp_size") or 1
    reading.option("tp", tp, "tp_size")
    kind = reading.text("sharding_strategy", known=("fsdp", "hsdp", "ddp", "tp"))
    reading.option("zero", 0 if kind == "ddp" else 3, "sharding_strategy")
    if kind == "hsdp":
        each = reading.integer("nproc_per_node", "gpus_per_node") or 8
        gpus = int(reading.given.get("gpus") or reading.options.get("gpus") or each)
        if gpus > each:
            reading.option("shard", each, "sharding_strategy")
            reading.assume(f"each node of {each} GPUs holds a copy of the shards: hsdp", "sharding_strategy")
    on, share = reading.flag("fsdp_activation_checkpointing"), reading.text("selective_checkpointing") or "1"
    reading.option("recompute", "full" if on else "none", "fsdp_activation_checkpointing", "selective_checkpointing")
    if on and share not in {"1", "1.0"}:
        reading.assume(f"every layer is recomputed, not {share} of them", "selective_checkpointing")
    reading.switch("precision", "bf16", "fp32", "mixed_precision")
    reading.switch("compile", "on", "off", "use_torch_compile")
    trainer.read_optimizer(reading, "optimizer")
    trainer.read_sequence(reading, "seq_length")
    trainer.read_batch(reading, trainer.count(reading, "batch_size"), 1, None, "batch_size")


FMS_MODELS = {"llama2_70b": "llama2-70b", "llama2_13b": "llama2-13b", "llama2_7b": "llama2-7b", "7b": "llama2-7b",
              "llama3_8b": "llama3-8b", "llama3_70b": "llama3-70b"}  # fmt: skip
"""`model_variant` -> preset (fms_fsdp/utils/config_utils.py, get_model_config)."""


def _fms_model(reading: Reading) -> None:
    found = reading.get("model_variant")
    if reading.given.get("model"):
        reading.means("replaced by the model that is given", "model_variant")
    elif found is None or str(found.value) not in FMS_MODELS:
        reading.refuse(found, f"the variant {str(getattr(found, 'value', ''))[:40]} is not known here", settles="model")
    else:
        reading.option("model", FMS_MODELS[str(found.value)], "model_variant")


TARGETS = tuple(
    Target(name, title, load_tool(name).basis, frameworks, None, claims, read)
    for name, title, frameworks, claims, read in (
        ("llama-factory-v1", "LLaMA-Factory v1", ("accelerate", "deepspeed"), _claims_factory, _read_factory),
        ("openrlhf", "OpenRLHF", ("deepspeed", "pytorch"), _claims_openrlhf, _read_openrlhf),
        ("verl", "verl", ("accelerate", "megatron-lm"), _claims_verl, _read_verl),
        ("areal", "AReaL", ("accelerate", "megatron-lm"), _claims_areal, _read_areal),
        ("fms-fsdp", "fms-fsdp", ("pytorch",), _claims_fms, _read_fms),
    )
)
"""Read only; asked before those of the Hugging Face Trainer."""
