"""Jobs of the Hugging Face Trainer and of what builds on it: under DeepSpeed, FSDP or DDP, as the files say.

What each tool has where nothing is said stands in `presets/tools/`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from gpuscale.launch import (
    accelerate,
    adapters,
    deepspeed,
    finetuning,
    own_files,
    own_programs,
    preferences,
    trainer,
    trainer_scripts,
)
from gpuscale.launch.huggingface_models import read_model
from gpuscale.launch.launchers import take_gpus
from gpuscale.launch.settings import OFF, ON, Reading, Setting, Source, digits, precision_word
from gpuscale.launch.shapes import read_attention
from gpuscale.launch.tools import started, tool_of
from gpuscale.launch.writing import Program, Target, Writing
from gpuscale.presets.files import known_table
from gpuscale.presets.tools import Tool, load_tool
from gpuscale.specs.tuning import SFT

_KNOWN = known_table("scripts")["programs"]

TRAINER_MARKS = tuple(_KNOWN["trainer_marks"])
DEEPSPEED_MARKS = tuple(_KNOWN["deepspeed_marks"])


def _claims_deepspeed(source: Source) -> bool:
    """Whether a source is DeepSpeed's, or a Trainer's under DeepSpeed."""
    kind = source.settings.get("distributed_type")
    accelerated = kind is not None and str(kind.value).upper() == "DEEPSPEED"
    pipelined = any(name in source.settings for name in ("pipe_parallel_size", "model_parallel_size", "num_layers"))
    launched = "use_deepspeed" in source.launcher or "zero_stage" in source.launcher
    pipelined |= source.program[:1] == ("colossalai",)
    return not pipelined and (accelerated or launched or any(name in source.settings for name in DEEPSPEED_MARKS))


def _claims_accelerate(source: Source) -> bool:
    """Whether a source is accelerate's, or a Trainer's."""
    if source.kind == "python" and source.called != "module":
        return trainer_scripts.claims(source)  # arguments and a parser of them are parts of what a script trains
    tables = ("fsdp_config.", "parallelism_config.")
    launched = any(name in source.launcher for name in ("use_fsdp", "mixed_precision"))
    trains = any(
        word in _KNOWN["trains"] or (word.endswith(".py") and "tensorflow" not in word) for word in source.program
    )
    launched |= trains and any(started(source, load_tool(name)) for name in TOOLS)
    marked = [name for name in source.settings if name in TRAINER_MARKS or name.startswith(tables)]
    other = source.kind == "command" and (
        marked == ["gradient_accumulation_steps"] or source.program[:1] == ("colossalai",)
    )
    return launched or (bool(marked) and not other) or own_files.claims(source)


def read(reading: Reading) -> None:
    """Read a job of the Trainer.

    Raises:
        InputError: it is not one of training a whole decoder, or something that must be known is not said.
    """
    tabled = own_files.take(reading)
    tool = trainer_scripts.take(reading) or _take_tool(reading, tabled=tabled)
    reading.run_by(tool)
    _take_loading(reading)
    _take_negated(reading)
    if tool.name == "ms-swift":
        _named_by_swift_2(reading)
        task = reading.text("task_type") or "causal_lm"
        if task.lower() != "causal_lm":  # classes, or groups of documents: no cross entropy over tokens
            reading.refuse(reading.get("task_type"), f"{task[:40]} is no language model in training",
                           "gpuscale predicts training of causal language models")  # fmt: skip
    adapters.asked(reading)  # another part of the model is refused before more is asked
    if not (tabled or tool.name == own_programs.NAME) or not own_programs.read_shape(reading):
        read_model(reading, *(("model",) if tool.name == "ms-swift" else ()))
    tuned = trainer.read_tuning(reading, beta=_BETA.get(tool.name, 0.0))
    take_gpus(reading)
    _ask_degrees(reading)
    _ask_olmo_core(reading)
    _say_tasks(reading)
    take_configs(reading, tool)
    accelerate.take_processes(reading)
    accelerate.take_environment(reading)
    under_deepspeed = deepspeed.stated(reading)
    recomputed = _read_checkpointing(reading)
    _read_offloaded_activations(reading, recomputed=recomputed)
    if under_deepspeed:
        reading.option("framework", "deepspeed")
        deepspeed.read(reading)
        if tool.name == "deepspeed-chat":
            _read_chat(reading)
    else:
        _read_accelerate(reading)
    _read_sequence_parallel(reading, tool)
    _solve_gpus(reading, tool)
    trainer.read_experts(reading)
    _say_tiled(reading)
    read_attention(reading)
    _read_loss(reading, under_deepspeed)
    _read_compile(reading, tool)
    _read_precision(reading, tool, tabled=tabled)
    _read_optimizer(reading, tool)
    if under_deepspeed and reading.first(*deepspeed.OPTIMIZER):
        deepspeed.read_sgd(reading)
    if not under_deepspeed and (not tuned or _pure(reading)):
        _read_held(reading, tool)
    if tuned:
        _read_adapters_held(reading, tool)
    elif not under_deepspeed and preferences.spec(reading).reference and _wide(reading):
        reading.assume("the reference model counts in 16 bits; it is loaded in fp32 as the model is")
    packed = ("packing_length",) if tool.name == "ms-swift" and reading.flag("packing") else ()  # of whole samples
    trainer.read_sequence(reading, *(packed if reading.get(*packed) else ()))
    reading.means("the longest sample", *(("max_length",) if reading.get(*packed) else ()))
    _read_batch(reading, tool, under_deepspeed)


def _take_negated(reading: Reading) -> None:
    """Take switches that are turned off, and those of variables.

    HfArgumentParser has `--no_bf16` beside each switch that is on by default.
    """
    for name, one in list(reading.settings.items()):
        own = name.removeprefix("no_")
        if own != name and str(getattr(reading.defaults.get(own), "value", "")) == "True":
            reading.settings[own] = replace(reading.settings.pop(name), name=own, value=str(one.value).lower() in OFF)
    for name, one in reading.environment.items():
        if name.lower() in reading.tool.asked:
            reading.settings.setdefault(name.lower(), replace(one, name=name.lower()))


def _ask_olmo_core(reading: Reading) -> None:
    """Ask how a script of open-instruct that trains by OLMo-core shards, and what it makes of a rank's batch.

    Raises:
        LackingError: it is such a script (`olmo_core_finetune.py`), and neither is given.
    """
    if not re.search(r"\bolmo_core_\w+\.py", " ".join(reading.sources[-1].program)):
        return
    for option, what in (("zero", "how it shards"), ("micro_batch_size", "how many sequences a microbatch holds")):
        if option not in reading.given:
            found = reading.get("per_device_train_batch_size")
            reading.refuse(found, f"{what} is decided by the script itself, with OLMo-core", settles=option)


def _take_loading(reading: Reading) -> None:
    """Take what stands in JSON or tables: what TRL hands to `from_pretrained`, what FSDP and accelerate are told."""
    whole = reading.settings.get("model_init_kwargs")
    table = trainer.dictionary(reading, "model_init_kwargs") if whole is not None else {}
    for key in ("attn_implementation", "dtype", "torch_dtype"):
        found = reading.get(f"model_init_kwargs.{key}")
        if found is None and whole is not None and key in table:
            found = replace(whole, value=table[key])
        if found is not None:
            reading.settings.setdefault(key, replace(found, name=key))
    for held in ("fsdp_config", "accelerator_config"):  # JSON on a command line
        whole = reading.settings.get(held)
        if whole is not None and str(whole.value).lstrip().startswith("{"):
            for key, value in _flat(trainer.dictionary(reading, held), f"{held}.").items():
                reading.settings.setdefault(key, replace(whole, name=key, value=value))
    for name in adapters.LOADED:  # as the checkpoint has it
        loads = reading.tool.name != own_programs.NAME or name.endswith("torch_dtype")  # others may mean autocast
        if loads and (one := reading.settings.get(name)) and str(one.value).lower() == "auto":
            wide = WIDE_CHECKPOINTS.search(str(getattr(reading.get("model_name_or_path"), "value", "")))
            reading.settings[name] = replace(one, value="float32" if wide else "bfloat16")
            kind = "fp32" if wide else "bf16"
            reading.assume(f"weights are loaded as checkpoints have them, in {kind}: from_pretrained of transformers 5")


WIDE_CHECKPOINTS = re.compile(r"(^|[/-])(distil)?gpt2|dialogpt|gpt-neo-", re.IGNORECASE)
"""Names of models whose checkpoints on the hub are fp32 (safetensors of openai-community/gpt2, EleutherAI/gpt-neo)."""


_WITH_TABLES = ("arctic-training", "axolotl")
"""Tools whose marks programs of one's own with tables have too: `model.name_or_path`, `base_model`."""

_BETA = {"ms-swift": 0.04}
"""Weight of the divergence of GRPO where nothing is said (ms-swift arguments/rlhf_args.py); TRL has 0."""

_SWIFT_2 = _KNOWN["swift_2"]


def _named_by_swift_2(reading: Reading) -> None:
    """Read arguments of ms-swift 2 by the names of later releases."""
    if not reading.settings.keys() & list(_SWIFT_2)[:2]:
        return
    for old, new in _SWIFT_2.items():
        if old in reading.settings:
            reading.settings.setdefault(new, reading.settings.pop(old))


def _read_chat(reading: Reading) -> None:
    """Read what DeepSpeed-Chat has of its own under DeepSpeed."""
    of_rollout = ("enable_hybrid_engine", "offload_reference_model", "unpin_actor_parameters")
    reading.means("of rollout and of other models, which are not predicted", *of_rollout)
    if reading.flag("offload"):
        third = reading.layout["zero"] == 3
        reading.option("offload", "optimizer+parameters" if third else "optimizer", "offload")


def _take_tool(reading: Reading, *, tabled: bool) -> Tool:
    """Return the tool that files are of, whose settings get the Trainer's names."""
    tool = tool_of(reading.sources, [one for one in TOOLS if not (tabled and one in _WITH_TABLES)])
    if not _renamed(reading, tool):
        return own_programs.take(reading, tool)
    if tool.name == "llama-recipes" and "fsdp" not in reading.settings:  # where layers are recomputed if told alone
        reading.settings.setdefault("gradient_checkpointing", Setting("gradient_checkpointing", False, "", 0, ""))
    return tool


def _renamed(reading: Reading, tool: Tool) -> bool:
    """Give settings that a tool calls otherwise the Trainer's names; whether there are some."""
    found = {ours: name for ours, others in tool.names.items() for name in others[::-1] if name in reading.settings}
    for ours, name in found.items():
        reading.settings.setdefault(ours, reading.settings.pop(name))
    return bool(found)


TOOLS = tuple(_KNOWN["tools"])


def _say_tiled(reading: Reading) -> None:
    tiled = ("tiled_mlp_compute", "tiled_mlp", "use_tiled_mlp", "sequence_tiling")
    if reading.flag(*tiled):
        reading.assume("whole sequences at a time: tiled layers are not modelled", *tiled)
        reading.means("tiled layers are not modelled", "tiled_mlp_num_shards", "tiled_mlp_compute_shards")


def _ask_degrees(reading: Reading) -> None:
    """Ask for a degree that a variable of the program's environment speaks of, where the program is not here.

    Raises:
        LackingError: one does (`export TP_SIZE=2`), and nothing else says the degree.
    """
    for name, one in () if reading.script else reading.environment.items():
        for axis in ("tp", "pp"):
            several = (digits(one.value) or 0) > 1
            if several and own_files.is_called(f"degree.{axis}", name.lower()) and reading.given.get(axis) is None:
                message = f"the program may split its model by the variable {name}"
                reading.refuse(one, message, settles=axis, likely=(str(one.value), "1"))


def _say_tasks(reading: Reading) -> None:
    """Say that tasks of srun are ranks only where something sets LOCAL_RANK, which accelerate's state.py goes by."""
    plain = any(source.program[:1] and source.program[0].startswith("python") for source in reading.sources)
    tasks = next((name for name in ("ntasks_per_node", "ntasks", "n") if name in reading.launcher), "")
    if plain and tasks and int(reading.options.get("gpus") or 1) > 1 and "LOCAL_RANK" not in reading.environment:
        said = "tasks are taken as the ranks of one job: without LOCAL_RANK, which srun does not set, each trains alone"
        reading.assume(said, tasks)


# --- files that come with a tool

_CONFIGS = tuple(_KNOWN["configs"])

_OF_CONFIGS = tuple(_KNOWN["of_configs"])


def take_configs(reading: Reading, tool: Tool, *names: str) -> None:
    """Take what the files say that settings name: those of the tool itself by their names, JSON in the setting.

    Args:
        names: these settings, if not those of the Trainer and its launchers.

    Raises:
        InputError: a file is neither here nor one of the tool's.
    """
    for name in names or _CONFIGS:
        found = reading.get(name)
        if found is None or found.value is True or str(found.value).strip().lower() in ON:
            continue
        text = str(found.value).strip()
        if text.lower() in OFF:  # `fsdp: false`: as if it were not there
            reading.means("switched off", name)
            del reading.settings[name]
            continue
        known = next((tool.configs[key] for key in (text, PurePosixPath(text).name) if key in tool.configs), None)
        if text.startswith("{"):
            known = _flat(trainer.dictionary(reading, name))
        table = text == "..." and any(one.startswith(f"{name}.") for one in reading.settings)  # of a Python script
        if table or _here(reading, text) or (known is None and name == "fsdp"):
            reading.means("says how the job is sharded", name)
        elif known is not None:
            for key, value in known.items():
                text = f"{found.text} ({key}: {str(value).lower()})"
                reading.settings.setdefault(key, replace(found, name=key, value=value, text=text, span=None))
            reading.means(f"a file of {tool.title}", name)
        elif "zero" in reading.given:
            _take_given(reading, found)
        elif name == "config_file" and _said_beside(reading):
            reading.lost.add(name)
            reading.assume(f"{text} is not here: what the options beside it say counts, and nothing else is set", name)
        else:
            hint = "give it too, or add `zero=STAGE` and what else it says"
            message = "says how the job is sharded, and is not here"
            reading.refuse(found, message, hint, settles="zero", likely=_stages(text))


def _said_beside(reading: Reading) -> bool:
    """Whether options of `accelerate launch` say how a job is sharded; they count before those of its file."""
    fsdp = accelerate.names("sharding_strategy", "reshard_after_forward")
    ways = {"use_deepspeed": ("zero_stage",), "use_fsdp": fsdp, "multi_gpu": ("multi_gpu",)}
    return any(reading.flag(switch) and reading.get(*told) is not None for switch, told in ways.items())


def _take_given(reading: Reading, found: Setting) -> None:
    """Take the stage that is given instead of a file that is not here: as DeepSpeed's, or FSDP's where that may be."""
    stage, text = int(reading.given["zero"]), str(found.value).lower()
    deepspeed_is_named = found.name.startswith("deepspeed") or re.search(r"deepspeed|zero|(?:^|[/_-])ds[_-]", text)
    if deepspeed_is_named or stage == 1:
        name, value = "zero_optimization.stage", str(stage)
    else:
        name, value = "fsdp", {3: "full_shard", 2: "shard_grad_op"}.get(stage, "no_shard")
    reading.settings.setdefault(name, replace(found, name=name, value=value, span=None))
    reading.lost.add(found.name)
    reading.means(f"a file that is not here: ZeRO {stage} is given instead", found.name)


def _stages(text: str) -> tuple[str, ...]:
    """Return the stage of ZeRO that the name of a file speaks of (`ds_zero2_no_offload.json`), if it says no more."""
    name = PurePosixPath(text).name.lower()
    stage = re.search(r"(?:z(?:ero)?|stage|_s)_?(?:stage)?_?-?([0-3])(?!\d)", name)
    return (stage[1],) if stage and not re.search(r"(?<!no_)(?<!no-)offload(?!ing_none)", name) else ()


def _here(reading: Reading, text: str) -> bool:
    """Whether a file that a setting names was read: a document of this name, or one that a script wrote."""
    documents = [one for one in reading.sources if one.kind in {"json", "yaml", "toml"}]
    written = {one.file for one in reading.sources if one.kind == "command"}
    return any(
        PurePosixPath(one.file).name == PurePosixPath(text).name
        or (one.file in written and any(name.startswith(_OF_CONFIGS) for name in one.settings))
        or ("$" in text and any(name.startswith(_OF_CONFIGS) for name in one.settings))
        for one in documents
    )


def _flat(table: dict[str, object], above: str = "") -> dict[str, object]:
    """Return a table of tables by dotted names."""
    found: dict[str, object] = {}
    for key, value in table.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


# --- what the tools do otherwise than the Trainer


def _read_optimizer(reading: Reading, tool: Tool) -> None:
    """Read the optimizer: of a switch of its own, of DeepSpeed's file, or of the Trainer's `optim`."""
    for switch, ours in _SWITCHES.items():
        if reading.get(switch) and reading.flag(switch):
            reading.option("optimizer", ours, switch)
            return
    for kind in ("galore", "apollo") if tool.name == "llama-factory" else ():  # hparams/finetuning_args.py: of rank 16
        if reading.get(f"use_{kind}") and reading.flag(f"use_{kind}"):
            reading.option("optimizer", kind, f"use_{kind}", "optim")
            reading.option("optimizer_rank", reading.integer(f"{kind}_rank") or 16, f"{kind}_rank")
            return
    own = reading.text("optimizer") if tool.name == "ms-swift" else None
    if own in {"default", "multimodal"}:
        reading.means("the Trainer's `optim`", "optimizer")
        trainer.read_optimizer(reading, *deepspeed.OPTIMIZER, "optim")
    else:
        first = ("optimizer",) if own else ()
        if not own and reading.first(*deepspeed.OPTIMIZER):  # transformers integrations/deepspeed.py takes that one
            reading.means("replaced by the optimizer of DeepSpeed's configuration", "optim", "optimizer")
        trainer.read_optimizer(reading, *first, *deepspeed.OPTIMIZER, "optim", "optimizer.type", "optimizer")


_SWITCHES = _KNOWN["optimizer_switches"]

CHECKPOINTING = tuple(_KNOWN["checkpointing"])

PURE = ("pure_bf16", "bf16", "bfloat16")
"""Settings that hold weights, gradients and moments in bf16 without a copy in fp32: LLaMA-Factory's, axolotl's `full`
and `bfloat16`."""

_IN_16_BITS = ("axolotl", "ms-swift")
"""Tools that load weights in the type that products have (axolotl utils/config/__init__.py:198; ms-swift
arguments/base_args/model_args.py)."""


def _pure(reading: Reading) -> bool:
    return reading.flag("pure_bf16") or (reading.text("bf16") or "").lower() == "full" or reading.flag("bfloat16")


def _wide(reading: Reading) -> bool:
    """Whether weights are loaded in fp32."""
    loaded = reading.get(*adapters.LOADED)
    return loaded is not None and precision_word(loaded) == "fp32"


def _read_precision(reading: Reading, tool: Tool, *, tabled: bool) -> None:
    """Read the precision of products, of which a program with tables of its own may say more itself."""
    if _pure(reading):
        reading.option("precision", "bf16", *PURE)
    elif tool.name == "ms-swift" and _wide(reading) and not reading.stated("bf16", "fp16"):
        reading.option("precision", "fp16", *adapters.LOADED)  # arguments/base_args/model_args.py:133
    else:
        left = False
        if tool.name not in {own_programs.NAME, "deepspeed-chat"} and not reading.given.get("precision"):
            _match_precision(reading)
            left = _left_to_arguments(reading) and not (reading.script or reading.stated("bf16", "fp16"))
        accelerate.read_precision(reading, "fp32")
        open_ = left or any(name in reading.lost for name in ("config_file", "accelerate_config"))
        open_ |= (
            (tabled or _is_flat(reading, tool))
            and tool.name != own_programs.NAME
            and not reading.stated("bf16", "fp16")
        )
        if open_ and not reading.given.get("precision") and reading.stated_by("precision") is None:
            told = left and reading.stated("num_train_epochs", "output_dir", "do_train")  # and no switch among them
            reading.refuse(None, "no file that is here states in which precision it trains", settles="precision",
                           likely=("fp32", "bf16") if told else ("bf16",))  # fmt: skip


def _left_to_arguments(reading: Reading) -> bool:
    """Whether DeepSpeed's configuration leaves the precision to arguments (`auto`); it says none itself then."""
    left = [name for half in ("bf16", "fp16") for name in deepspeed.names(f"{half}.enabled")
            if str(getattr(reading.settings.get(name), "value", "")).lower() == "auto"]  # fmt: skip
    for name in left:
        reading.means("as the arguments have it", name)
        del reading.settings[name]
    return bool(left)


def _is_flat(reading: Reading, tool: Tool) -> bool:
    """Whether a document beside no command has arguments of a program of one's own among those of the Trainer."""
    documents = all(one.kind in {"yaml", "toml", "json"} for one in reading.sources)
    own = "model_name_or_path" not in reading.settings or any(name.startswith("lora_") for name in reading.settings)
    return tool.name == "transformers" and documents and own and trainer.MICRO[0] in reading.settings


def _match_precision(reading: Reading) -> None:
    """Ask for the precision where DeepSpeed's configuration says another one than the Trainer's arguments do.

    Raises:
        LackingError: it does: transformers stops there (integrations/deepspeed.py, fill_match).
    """
    words = {half: reading.stated(*deepspeed.names(f"{half}.enabled")) for half in ("bf16", "fp16")}
    on = [half for half, one in words.items() if one and str(one.value).lower() in ON]
    fp16 = reading.stated("fp16")
    for half, own in words.items():
        told = reading.get(half)
        if own is None or told is None or str(own.value).lower() not in (*ON, *OFF):
            continue
        asked, usual = str(told.value).lower() in ON, told.usual
        if (half in on) == asked or (usual and (half in on or (fp16 and str(fp16.value).lower() in ON))):
            continue  # defaults say little, and TRL's bf16 is off beside fp16
        likely = [half if asked else "fp32", *on[:1], *([] if on else ["fp32"])]
        place = told.place or f"{reading.tool.title}'s default"
        message = f"is {str(own.value).lower()} beside {told.text} ({place}), at which transformers stops"
        likely = list(dict.fromkeys(likely[::-1] if usual else likely))
        reading.refuse(own, message, settles="precision", likely=likely)


def _read_held(reading: Reading, tool: Tool) -> None:
    """Read whether weights that are loaded in 16 bits stay so, with gradients and moments in 16 bits as they are.

    FSDP with mixed precision casts them to fp32 (accelerate utils/fsdp_utils.py), and autocast over weights in fp32
    leaves those as they are. Beside a scaler of losses torch refuses gradients in fp16: what trains in it has none.
    """
    half = str(reading.options.get("precision"))
    if half not in {"bf16", "fp16"} or reading.given.get("master_dtype"):
        return
    pure, loaded = _pure(reading), reading.get(*adapters.LOADED)
    word = precision_word(loaded) if loaded is not None else None
    named = [reading.get(name) for name in ("bf16", "fp16", "mixed_precision", "ACCELERATE_MIXED_PRECISION")]
    mixed = any(one and precision_word(one) in {"bf16", "fp16"} for one in named)
    cast = mixed and reading.layout.get("zero") and "loop_shards" not in reading.settings
    held = word == half or tool.name == "axolotl" or (tool.name in _IN_16_BITS and word != "fp32")
    if half == "fp16" and (mixed or tool.name in _IN_16_BITS):
        return
    if not pure and (cast or not held):
        return
    of = PURE if pure else adapters.LOADED
    reading.option("master_dtype", "none", *of)
    reading.option("grad_dtype", half, *of)
    if "moment_dtype" not in reading.options:
        reading.option("moment_dtype", half, *of)
    reading.assume(f"weights, gradients and moments are {half}, without a copy in fp32", *of)


def _read_adapters_held(reading: Reading, tool: Tool) -> None:
    """Read that adapters beside quantised weights are bf16 with their gradients and moments, as TRL casts them.

    PEFT makes adapters fp32, and only TRL casts them back (trl trainer/sft_trainer.py: as QLoRA's authors had them).
    """
    quantised = reading.options.get("base_dtype") in {"nf4", "nf4-single", "int8"}
    if tool.name != "trl" or not quantised or reading.options.get("precision") != "bf16":  # scaled gradients are fp32
        return
    held = {"master_dtype": "none", "grad_dtype": "bf16"}
    if reading.options.get("optimizer") in {"adam", "adamw"}:
        held["moment_dtype"] = "bf16"
    for name, value in held.items():
        reading.options.setdefault(name, value)
    reading.assume("adapters are bf16, without a copy in fp32: TRL casts them beside quantised weights")


def _read_sequence_parallel(reading: Reading, tool: Tool) -> None:
    """Read sequence parallelism: Ulysses of accelerate and ms-swift, a ring of varlen attention in axolotl."""
    names = ("sequence_parallel_size", "sequence_parallel_degree", *accelerate.degree_names("sp_size"))
    size = reading.integer(*names)
    if size and size > 1 and reading.layout.get("cp", 1) == 1:
        reading.option("cp", size, *names)
        reading.option("cp_comm", "all_gather" if tool.name == "axolotl" else "a2a", *names)
    elif size and size > 1:
        reading.means("sequences are split by context parallelism already", *names)


def _read_offloaded_activations(reading: Reading, *, recomputed: bool) -> None:
    """Read whether inputs of checkpointed layers go to host memory, in whichever way."""
    names = ("activation_offloading", "activation_checkpoint_cpu_offload", "use_unsloth_gc")
    how = (reading.text(*names) or "").lower()
    if how in {"legacy", "disk", "hidden_states", "offload_disk"}:
        disk = ", the disk is not modelled" if "disk" in how else ""
        reading.assume(f"inputs of checkpointed layers go to host memory{disk}", *names)
    elif not reading.flag(*names):
        return
    reading.option("offload", "activations", *names)
    if not recomputed:
        reading.option("recompute", "full", *names)


_LIGER_LOSS = ("use_liger_loss", "trl.use_liger_loss", "dpo_use_liger_kernel")
"""Switches of Liger's losses for preferences: TRL's, and axolotl's two."""


def _read_loss(reading: Reading, under_deepspeed: bool) -> None:
    """Read the cross entropy: Liger's under DeepSpeed, and none of it under FSDP, are what the profiles have."""
    loss = trainer.read_loss(reading)
    if preferences.spec(reading) is not SFT:  # log-probabilities are made of logits, or of Liger's loss for them
        loss = "linear" if any(map(reading.flag, _LIGER_LOSS)) else None if loss == "linear" else loss
    if under_deepspeed and loss != "linear":
        reading.option("loss", loss or "standard", "liger_kernel_config")
        if loss is None:
            reading.assume("the loss works on logits in fp32; norms and activations as fused as with Liger's kernels")
    elif not under_deepspeed and loss in {"linear", "fused", "chunked"}:
        reading.option("loss", loss, "use_liger_kernel", "plugins")


def _read_checkpointing(reading: Reading) -> bool:
    """Read whether layers are recomputed."""
    off = reading.first("disable_gradient_checkpointing", "model.disable_activation_checkpoint")
    own = (*accelerate.names("activation_checkpointing"), *CHECKPOINTING)
    if off and not reading.stated(*own) and not reading.given.get("recompute"):
        recomputed = not reading.flag(off)
        reading.option("recompute", "full" if recomputed else "none", off)
        return recomputed
    on = [name for name in own if (one := reading.get(name)) and str(one.value).strip().lower() not in OFF]
    return trainer.read_checkpointing(reading, *(on or own))  # FSDP's way and the Trainer's: either one recomputes


_COMPILING = (
    "torch_compile_backend", "torch_compile_mode", "torchdynamo", "dynamo_backend", "dynamo_config.dynamo_backend",
    "compile_model", *deepspeed.names("compile.enabled"),
)  # fmt: skip
"""Settings that compile by being there (transformers training_args.py), but for axolotl's, which wants the switch."""


def _read_compile(reading: Reading, tool: Tool) -> None:
    on = [name for name in _COMPILING if (one := reading.get(name)) and str(one.value).lower() not in OFF]
    if reading.flag("torch_compile", default=bool(on) and tool.name != "axolotl"):
        reading.option("compile", "on", "torch_compile", *on)


def _read_accelerate(reading: Reading) -> None:
    megatron = reading.launcher.get("use_megatron_lm")
    if megatron is not None and reading.given.get("tp") is None:
        reading.refuse(megatron, "accelerate's own Megatron-LM is not modelled", settles="tp")
    degrees = accelerate.read_degrees(reading)
    reading.option("framework", "pytorch" if degrees.get("ep", 1) > 1 else "accelerate")
    if "gpus" not in reading.options and "dp_shard" in degrees:
        product = math.prod(degrees.values())
        reading.option("gpus", product)
        reading.assume(f"GPUs are the product of the degrees, {product}")
    reading.means("nodes", "num_machines")
    if (steps := reading.launcher.pop(trainer.ACCUMULATION[0], None)) is not None:
        reading.say(steps, "of accelerate's plugin for DeepSpeed alone")
    if accelerate.sharded(reading):
        accelerate.read_fsdp(reading, degrees)
    else:
        spmd = reading.get("XLA_USE_SPMD")
        if spmd is not None and reading.flag("XLA_USE_SPMD") and "zero" not in reading.given:
            reading.refuse(spmd, "how PyTorch/XLA shards is said in the program", settles="zero")
        reading.option("zero", int(reading.given.get("zero") or 0), "distributed_type")
        own = reading.tool.name == own_programs.NAME
        if "zero" not in reading.given and not reading.get("distributed_type") and not own:
            reading.assume("replicas without sharding (DDP): neither DeepSpeed nor FSDP is asked for")
    each = ("sync_each_batch", "accelerator_config.gradient_accumulation_kwargs.sync_each_batch")
    if any(map(reading.flag, each)):
        reading.option("grad_reduce", "each", "accelerator_config", *each)


def _read_batch(reading: Reading, tool: Tool, under_deepspeed: bool) -> None:
    if tool.name == own_programs.NAME:
        own_programs.need(reading)
        own_programs.read_batch(reading)
        return
    total_names = _TOTAL if under_deepspeed else ("global_batch_size",)
    micro, steps, total = (
        trainer.count(reading, *names) if reading.stated(*names) else None for names in (_MICRO, _STEPS, total_names)
    )
    if total is not None and under_deepspeed and int(reading.layout.get("tp") or 1) > 1 and micro and steps:
        world = trainer.data_parallel(reading, "the batch") * int(reading.layout["tp"])
        if total != micro * steps * world:
            message = f"train_batch_size {total} is not {micro} x {steps} x {world} GPUs, which AutoTP does not divide"
            found = reading.get(*total_names)
            reading.refuse(found, message, "leave train_batch_size out (runtime/config.py:937)")
        total = None
    if tool.name == "axolotl" and micro and (whole := trainer.count(reading, "batch_size")) and steps is None:
        steps = max(1, whole // micro)  # utils/config/__init__.py: of one GPU
        reading.means(f"{steps} accumulation steps", "batch_size")
    if total is None and steps is None and micro and not reading.given.get("gbs"):
        steps = _steps_to(reading, micro)
    told = reading.script or reading.first("num_train_epochs", "output_dir", "do_train")
    trained = tool.name != "transformers" or told
    if micro is None and total is None and trained:
        micro = trainer.count(reading, *_MICRO)
    if tool.name == "ms-swift" and steps is None and micro and not reading.given.get("gbs"):
        steps = max(1, math.ceil(16 / (micro * trainer.data_parallel(reading, "the accumulation steps"))))
        reading.assume(f"{steps} accumulation steps: 16 sequences or more, ms-swift's default")
    if tool.name == "alpaca-lora" and micro and not reading.given.get("gbs"):
        replicas = trainer.data_parallel(reading, "the accumulation steps")
        steps = max(1, (trainer.count(reading, "batch_size") or micro) // micro // replicas)
        reading.means(f"{steps} accumulation steps: that many sequences of all replicas", "batch_size")
    trainer.read_batch(reading, micro, steps, total, *_MICRO, *_STEPS, *total_names)


def _solve_gpus(reading: Reading, tool: Tool) -> None:
    """Take the GPUs with which DeepSpeed's batches agree (runtime/config.py, _batch_assertion)."""
    split = reading.options["framework"] != "deepspeed" or int(reading.layout.get("tp") or 1) > 1
    if split or reading.given.get("gpus") or reading.options.get("gpus"):
        return
    usual = tool.name != own_programs.NAME and reading.first("num_train_epochs", "output_dir", "do_train")
    found = [(reading.get if usual and of is _STEPS else reading.stated)(*of) for of in (_MICRO, _STEPS, _TOTAL)]
    micro, steps, total = (digits(one.value) if one else None for one in found)
    if micro and steps and total and total % (micro * steps) == 0:
        replicas = total // (micro * steps)
        reading.option("gpus", replicas * int(reading.layout.get("cp") or 1), *_TOTAL)
        reading.assume(f"GPUs by DeepSpeed's batches: {total} = {micro} x {steps} steps x {replicas}", *_TOTAL)


_MICRO = (*trainer.MICRO, *deepspeed.names("train_micro_batch_size_per_gpu"))
_STEPS = (*trainer.ACCUMULATION, *deepspeed.names("gradient_accumulation_steps"))
_TOTAL = deepspeed.names("train_batch_size")


def _steps_to(reading: Reading, micro: int) -> int | None:
    """Return the accumulation steps that make a batch of all replicas, where a document states that one instead."""
    documents = {one.file for one in reading.sources if one.kind in {"yaml", "toml", "json"}}
    found = next((one for one in reading.settings.values() if one.file in documents and digits(one.value)
                  and own_files.is_called("global_batch_size", one.name.rpartition(".")[2])), None)  # fmt: skip
    if found is None or found.name == "global_batch_size":
        return None
    total, each = int(str(found.value)), micro * trainer.data_parallel(reading, "the accumulation steps")
    if total % each:
        message = f"a batch of {total} is stated, which microbatches of {each} on all replicas do not make"
        reading.refuse(found, message, settles="gbs", likely=(str(total),))
    reading.say(found, "the batch of all replicas")
    reading.assume(f"{total // each} accumulation steps: they make the batch that is stated", found)
    return total // each


def _write(writing: Writing, whole: Callable[[Writing], Program]) -> Program:
    """Write whole models for run_clm.py, and adapters for LLaMA-Factory."""
    tuned = writing.spec.tuning is not None
    return finetuning.write(writing, load_tool("llama-factory")) if tuned else whole(writing)


DEEPSPEED = Target(
    "deepspeed", "DeepSpeed", deepspeed.BASIS, ("deepspeed",), partial(_write, whole=deepspeed.write),
    _claims_deepspeed, read, adapters=True,
)  # fmt: skip
ACCELERATE = Target(
    "accelerate", "Hugging Face accelerate", accelerate.BASIS, ("accelerate",), partial(_write, whole=accelerate.write),
    _claims_accelerate, read, adapters=True,
)  # fmt: skip


def _tuner(tool: Tool) -> Target:
    """Return the target of a tool around the Trainer; its files are read as those of accelerate or DeepSpeed."""
    assert tool.written is not None
    return Target(
        tool.name, tool.title, tool.basis, ("accelerate", "deepspeed"), partial(finetuning.write, tool=tool),
        _claims_accelerate, read, dict.fromkeys(tool.written.words["attention"], ""), adapters=True, reads_again=True,
    )  # fmt: skip


TARGETS = (DEEPSPEED, ACCELERATE, *(_tuner(tool) for tool in map(load_tool, TOOLS) if tool.written is not None))
