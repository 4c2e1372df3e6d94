"""Python scripts that train by the Hugging Face Trainer or TRL's, with PEFT or Unsloth: what they call, as settings.

A script is never run (`gpuscale.launch.python`): what `SFTTrainer(model=..., args=SFTConfig(...), peft_config=...)` is
given gets the names that command lines and YAML have for it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpuscale.launch.adapters import IN_4_BITS, IN_8_BITS, QUANTISED
from gpuscale.launch.python import ADAPTERS, ASSIGNED, ENDS, MADE_FROM, TOUCHES
from gpuscale.launch.settings import OFF, Reading, Source
from gpuscale.launch.unread import speaks_of
from gpuscale.presets.tools import Tool, load_tool

AROUND = ("train_on_responses_only",)
"""Calls that return the trainer that they are given (Unsloth)."""

HELPERS = re.compile(r"(load|get|build|create|make|init)_")
"""Names of a script's own functions that return a model, of whatever they are given: a configuration, a name."""

PREPARING = "prepare_model_for_kbit_training"
LOADERS = ("from_pretrained",)
NAMES = ("model_name", "pretrained_model_name_or_path", "0")
"""How a loader is told the model's name."""


def claims(source: Source) -> bool:
    """Whether a Python file makes a trainer with arguments."""
    if source.kind != "python":
        return False
    prefix = "0." if source.called in AROUND else ""
    made = source.settings.get("0") if prefix else None
    called = str(made.value) if made is not None else source.called
    args = source.settings.get(f"{prefix}args")
    return called.endswith("Trainer") and args is not None and str(args.value).endswith(("Arguments", "Config"))


def take(reading: Reading) -> Tool | None:
    """Give what a script calls the names of arguments; return the tool that it is of, None where it is no script.

    What the trainer's class learns from is read by `gpuscale.launch.preferences`, as the setting `trainer_class`.
    """
    source = next((one for one in reading.sources if claims(one)), None)
    if source is None:
        return None
    settings, reading.script = reading.settings, True
    if source.called in AROUND:
        _give(reading, "0.", "")
    called = str(settings["0"].value if source.called in AROUND else source.called).rpartition(".")[2]
    _set(reading, "args", "trainer_class", called)
    _give(reading, "args.", "")
    loaded, unsloth = _take_model(reading), any("unsloth" in str(one.value) for name, one in settings.items()
                                                if name.endswith("origin"))  # fmt: skip
    for name in ("0", "adapter_config"):
        _give(reading, f"{ADAPTERS}.{name}.", "peft_config.")
    if ADAPTERS in settings:
        _set(reading, ADAPTERS, "peft_config", "LoraConfig")
    frozen = reading.get("requires_grad")
    if frozen is not None and "peft_config" not in settings and not _adapted(reading) and not reading.given.get("tune"):
        reading.refuse(frozen, PARTLY, "`tune=full` predicts training of all weights", settles="tune")
    _refuse_touched(reading)
    _refuse_helpers(reading, loaded)
    _take_prepared(reading, loaded)
    if "calls.gradient_checkpointing_enable" in settings:
        _set(reading, "calls.gradient_checkpointing_enable", "gradient_checkpointing", True)
    if unsloth:
        _take_unsloth(reading)
        return load_tool("unsloth")
    if loaded and not {"torch_dtype", "dtype"} & settings.keys():
        _set(reading, "args", "torch_dtype", "bfloat16")
        reading.assume("weights are loaded as checkpoints have them, in bf16: from_pretrained of transformers 5")
    return load_tool("trl" if str(settings["args"].value).endswith("Config") else "transformers")


PARTLY = "weights are frozen by the script itself, and which of them is not read"


def _adapted(reading: Reading) -> bool:
    """Whether something makes adapters: the rest of the model is frozen then in any case."""
    return any(
        str(one.value).rpartition(".")[2] in {"get_peft_model", "LoraConfig"} for one in reading.settings.values()
    )


HARMLESS = frozenset({
    "_set_static_graph", "add_adapter", "add_callback", "add_special_tokens", "bos_token_id", "clear",
    "clear_device_cache", "convert_tokens_to_ids", "cpu", "create_optimizer_and_scheduler", "cuda", "do_sample",
    "enable_flash_sdp", "enable_input_require_grads", "eos_token_id", "eval", "for_inference", "for_training",
    "generate", "generation_config", "get_chat_template", "get_memory_footprint", "gradient_checkpointing_enable",
    "id2label", "is_parallelizable", "keep_in_memory", "label2id", "load_adapter", "load_state_dict", "log",
    "log_metrics", "max_length", "model_parallel", "name_or_path", "num_parameters", "pad_token_id",
    "padding_side", "pipeline", "parameters", "pretraining_tp", "print_trainable_parameters", "push_to_hub",
    "push_to_hub_merged", "requires_grad", "requires_grad_", "resize_token_embeddings", "set_adapter",
    "setup_chat_format", "temperature", "tie_weights", "to_json_string", "top_p", "unwrap_model", "use_cache",
    "warnings_issued", "watch",
})  # fmt: skip
"""Calls that are given the model, methods and attributes of it, that change neither memory nor time, or are read."""

CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
"""Methods that give weights another type -> the type."""


def _refuse_touched(reading: Reading) -> None:
    """Read what is done to the model after it is loaded; ask for what is not known.

    Raises:
        InputError: a call or an assignment may change which weights are trained, their type or the layers.
    """
    for name, one in list(reading.settings.items()):
        if name.startswith(TOUCHES):
            _touched(reading, name, name.removeprefix(TOUCHES), str(one.value))


def _refuse_helpers(reading: Reading, loaded: bool) -> None:
    """Ask for what functions that are not here decide: which adapters there are, how weights are stored.

    Raises:
        InputError: one does, and what it decides is not given beside the files.
    """
    adapters, given = reading.settings.get("peft_config"), reading.given
    made = "" if adapters is None else str(adapters.value).rpartition(".")[2]
    if made[:1].islower() and given.get("tune") != "full":
        for option in ("lora_rank", "lora_targets"):
            if not given.get(option):
                reading.refuse(adapters, f"what {made[:80]} returns is in no file that is here", settles=option)
    table = next((one for one in ("model", "0") if one in reading.settings), "")
    model = reading.settings.get(table)
    helped = model is not None and f"{table}.0" in reading.settings and str(model.value).islower()
    helped = helped and not str(model.value if model else "").endswith(PREPARING)  # `_take_prepared` asks for more
    if model is not None and helped and not loaded and made and not (given.get("base_dtype") or given.get("tune")):
        what = f"what {str(model.value)[:80]} loads is in no file that is here: how its frozen weights are stored"
        reading.refuse(model, f"{what} is not known", settles="base_dtype", likely=("bf16", "fp32", "nf4"))


def _touched(reading: Reading, name: str, does: str, given: str) -> None:
    """Read one thing that is done to the model, by its name and its first argument.

    Raises:
        InputError: what it changes is not known, and no option that is given beside the files says it.
    """
    cast = CASTS.get(does) or (re.search(r"b?float(16|32)$", given) if does == "to" else None)
    if cast:
        kind = cast if isinstance(cast, str) else cast[0]
        reading.settings["torch_dtype"] = replace(reading.settings[name], name="torch_dtype", value=kind)
    elif does.startswith("apply_liger_kernel"):
        _set(reading, name, "use_liger_kernel", True)
    elif does == "compile":
        _set(reading, name, "torch_compile", True)
    elif does not in HARMLESS and does != "to" and not ENDS.match(does):
        settles = speaks_of(does) or ("model" if given == ASSIGNED else "tune")
        if not reading.given.get(settles):
            what = f"what {does[:80]} changes of the model is not known here"
            reading.refuse(replace(reading.settings[name], name=does), what, settles=settles)


def _give(reading: Reading, prefix: str, to: str) -> None:
    """Give settings below a prefix the names that they have without it."""
    for name, one in list(reading.settings.items()):
        if name.startswith(prefix):
            own = f"{to}{name.removeprefix(prefix)}"
            reading.settings.setdefault(own, replace(one, name=own))


def _set(reading: Reading, of: str, name: str, value: Any) -> None:
    """Say what another setting means, by a name that readers know."""
    reading.settings.setdefault(name, replace(reading.settings[of], name=name, value=value))


def _take_model(reading: Reading) -> bool:
    """Follow the model back to what loads it, through what makes adapters; whether a call loads it."""
    settings, table = reading.settings, "model" if "model" in reading.settings else "0"
    while table in settings:
        last = str(settings[table].value).rpartition(".")[2]
        if last == "get_peft_model":
            config = next((one for one in (f"{table}.1", f"{table}.peft_config") if one in settings), table)
            _give(reading, f"{config}.", "peft_config.")
        elif last in LOADERS:
            name = next((one for one in NAMES if f"{table}.{one}" in settings), None)
            if name is not None:
                _set(reading, f"{table}.{name}", "model_name_or_path", settings[f"{table}.{name}"].value)
            _give(reading, f"{table}.", "")
            return True
        elif last != PREPARING and not HELPERS.match(last) and _made_from(reading, table):
            _touched(reading, table, last, str(getattr(settings.get(f"{table}.0"), "value", "")))
        elif last != PREPARING:
            _set(reading, table, "model_name_or_path", settings[table].value)
            return False
        table = next((f"{table}.{key}" for key in MADE_FROM if f"{table}.{key}" in settings), "")
    return False


def _made_from(reading: Reading, table: str) -> bool:
    """Whether a call makes a model of what another call returned."""
    starts = tuple(f"{table}.{key}." for key in MADE_FROM)
    return any(name.startswith(starts) for name in reading.settings)


def _take_prepared(reading: Reading, loaded: bool) -> None:
    """Take what `prepare_model_for_kbit_training` does (peft utils/other.py): layers are recomputed, whatever the
    Trainer's arguments say, where weights are quantised; where they are not, they become fp32.

    Raises:
        InputError: what loads the model is not here, and so whether its weights are quantised.
    """
    settings = reading.settings
    of = next((name for name, one in settings.items() if str(one.value).endswith(PREPARING)), "")
    if not of:
        return
    name = settings.get("model_name_or_path")
    flags = (settings[name] for name in (*IN_4_BITS, *IN_8_BITS) if name in settings)
    quantised = any(str(one.value).lower() not in OFF for one in flags)
    if not loaded and not quantised:
        tune = str(reading.given.get("tune") or "")
        if not tune:
            what = "what loads the model is not here: how its frozen weights are stored is not known"
            reading.refuse(settings[of], what, settles="tune", likely=("qlora",))
        quantised = tune == "qlora"
    if not quantised and not (name and QUANTISED.search(str(name.value))):
        settings["torch_dtype"] = replace(settings[of], name="torch_dtype", value="float32")
        reading.assume("frozen weights are fp32: prepare_model_for_kbit_training casts those that are not quantised")
    elif str(getattr(settings.get(f"{of}.use_gradient_checkpointing"), "value", True)) != "False":
        settings["gradient_checkpointing"] = replace(settings[of], name="gradient_checkpointing", value=True)


def _take_unsloth(reading: Reading) -> None:
    """Take what Unsloth does: checkpoints in host memory unless told, one GPU."""
    kept = reading.settings.get("peft_config.use_gradient_checkpointing")
    if kept is None or str(kept.value) == "unsloth":
        _set(reading, "args", "use_unsloth_gc", True)
        _set(reading, "args", "gradient_checkpointing", True)
    else:
        reading.settings["gradient_checkpointing"] = replace(kept, name="gradient_checkpointing")
    reading.assume("kernels of transformers and PEFT: those of Unsloth are faster, and are not modelled")
    if not reading.given.get("gpus"):
        reading.option("gpus", 1)
        reading.assume("one GPU, as Unsloth runs where nothing else is said")
