"""Python scripts that train by the Hugging Face Trainer or TRL's, with PEFT or Unsloth: what they call, as settings.

A script is never run (`gpuscale.launch.python`): what `SFTTrainer(model=..., args=SFTConfig(...), peft_config=...)` is
given gets the names that command lines and YAML have for it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpuscale.errors import InputError
from gpuscale.launch.adapters import IN_4_BITS, IN_8_BITS, LOADED, QUANTISED
from gpuscale.launch.huggingface_models import SHAPE_KEYS, changed_model, configured_model
from gpuscale.launch.launchers import gpus_of
from gpuscale.launch.python import (
    ADAPTERS,
    ASSIGNED,
    ENDS,
    LOST,
    OVERRIDDEN,
    PART,
    TOKENIZED,
    TOUCHES,
    made_from,
    refuse_keywords,
)
from gpuscale.launch.python_loops import TRAINER
from gpuscale.launch.python_run import PATCHING
from gpuscale.launch.python_values import HANDING_OUT, TEXT_METHODS
from gpuscale.launch.settings import OFF, Reading, Setting, Settings, Source, says
from gpuscale.launch.trainer import SEQUENCE
from gpuscale.launch.unread import speaks_of
from gpuscale.presets.files import known_table
from gpuscale.presets.tools import Tool, load_tool

_KNOWN = known_table("scripts")["scripts"]

HELPERS = re.compile(r"(load|get|build|create|make|init)_")
"""Names of a script's own functions that return a model, of whatever they are given: a configuration, a name."""

PREPARING = ("prepare_model_for_kbit_training", "prepare_model_for_int8_training")
"""PEFT's function that makes a quantised model ready, by its name and the earlier one."""

LOADERS = ("from_pretrained",)
NAMES = ("model_name", "pretrained_model_name_or_path", "0")
"""How a loader is told the model's name."""


def claims(source: Source) -> bool:
    """Whether a Python file makes a trainer with arguments."""
    if source.kind != "python":
        return False
    prefix, called = _trainer(source.settings)
    args = _class(source.settings, f"{prefix}args")
    return called.endswith("Trainer") and args.endswith(("Arguments", "Config"))


def _trainer(settings: Settings) -> tuple[str, str]:
    """Return what stands before the names of a trainer's parts, and its class: a call may take it and return it."""
    called = _class(settings, "")
    around = "args" not in settings and "0.args" in settings
    return ("0.", _class(settings, "0")) if around else ("", called)


def _class(settings: Settings, name: str) -> str:
    """Return the class or function that a part is made by; of one of the script's own that which it is made from."""
    found = settings.get(f"{name}.origin".lstrip("."), settings.get(name))
    return "" if found is None else str(found.value).rpartition(".")[2]


def take(reading: Reading) -> Tool | None:
    """Give what a script calls the names of arguments; return the tool that it is of, None where it is no script.

    What the trainer's class learns from is read by `gpuscale.launch.preferences`, as the setting `trainer_class`.
    """
    source = next((one for one in reading.sources if claims(one)), None)
    if source is None:
        return None
    settings, reading.script = reading.settings, True
    prefix, called = _trainer(settings)
    around = _class(settings, "") if prefix else ""
    if around and not reading.given.get("tune"):
        reading.refuse(settings[""], f"what {around[:80]} does to the trainer is not known here", settles="tune")
    _give(reading, prefix, "")
    own = called == TRAINER
    if not own:
        _set(reading, "args", "trainer_class", called)
    _give(reading, "args.", "")
    _give(reading, "model_init_kwargs.", "")  # with which TRL loads a model that it is given the name of
    _take_optimizer(reading)
    loaded, unsloth = _take_model(reading), any("unsloth" in str(one.value) for name, one in settings.items()
                                                if name.endswith("origin"))  # fmt: skip
    for name in ("0", "adapter_config"):
        _give(reading, f"{ADAPTERS}.{name}.", "peft_config.")
    if ADAPTERS in settings:
        _set(reading, ADAPTERS, "peft_config", "LoraConfig")
    _refuse_partly(reading)
    refuse_keywords(reading, DATA)
    _refuse_touched(reading)
    _refuse_helpers(reading, loaded)
    _take_prepared(reading, loaded)
    _take_checkpointing(reading)
    _take_lengths(reading)
    _take_device(reading)
    if unsloth:
        _take_unsloth(reading)
        return load_tool("unsloth")
    if loaded and not {"torch_dtype", "dtype"} & settings.keys():
        _set(reading, "args", "torch_dtype", "auto")
    if own:
        return _take_loop(reading)
    return load_tool("trl" if str(settings["args"].value).endswith("Config") else "transformers")


def _take_loop(reading: Reading) -> Tool:
    """Take how many GPUs a loop of the script's own runs on, where it says; return the tool that knows nothing more."""
    engine, given = reading.settings.get("deepspeed"), reading.given
    read = any(name.startswith("deepspeed.") for name in reading.settings)  # beside DeepSpeed's own `--deepspeed`
    if engine is not None and engine.value != "..." and not read:  # a file of the engine's, or what nobody says
        for option in ("precision", "gbs"):
            if not given.get(option):
                reading.refuse(
                    engine, f"DeepSpeed's configuration may say the {option}, and is not here", settles=option
                )
    found = reading.settings.get("loop_gpus")
    if found is not None and not reading.given.get("gpus") and gpus_of(reading) is None:
        reading.option("gpus", int(found.value), "loop_gpus")
        if found.value == 1:
            reading.assume("one GPU: nothing in the script speaks of several")
    reading.assume("a loop of the script's own: what it says is read, and the rest is asked for")
    return load_tool("own")


def _refuse_partly(reading: Reading) -> None:
    """Ask which weights are trained where the script itself sets `requires_grad`.

    Raises:
        LackingError: it freezes some without adapters, or trains some beside them.
    """
    frozen, given, adapted = reading.get("requires_grad"), reading.given, "peft_config" in reading.settings
    if frozen is not None and not adapted and not _adapted(reading) and not given.get("tune"):
        message = "weights are frozen by the script itself, and which of them is not read"
        reading.refuse(frozen, message, "`tune=full` predicts training of all weights", settles="tune")
    thawed = [one for part in ("", PART) if (one := reading.settings.get(f"{TOUCHES}{part}requires_grad"))]
    if thawed and frozen is None and adapted and not given.get("train"):
        found = replace(thawed[0], name="requires_grad")
        reading.refuse(found, "what is trained beside adapters is not read", settles="train")


def _adapted(reading: Reading) -> bool:
    """Whether something makes adapters: the rest of the model is frozen then in any case."""
    return any(
        str(one.value).rpartition(".")[2] in {"get_peft_model", "LoraConfig"} for one in reading.settings.values()
    )


HARMLESS = HANDING_OUT.union(TEXT_METHODS, _KNOWN["harmless"])

SET = frozenset(_KNOWN["set"])

LOOKING = re.compile("|".join(_KNOWN["looking"]))

CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
"""Methods that give weights another type -> the type."""


SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of `device_map` by which accelerate deals layers out over the GPUs of one process."""


def _take_device(reading: Reading) -> None:
    """Take one GPU where the script puts the whole model on a certain one (`device_map={"": 0}`), and say where it
    spreads the layers of one process over several."""
    spread = next((one for name, one in reading.settings.items() if re.search(r"(^|\.)device_map$", name)
                   and str(one.value) in SPREADING), None)  # fmt: skip
    if spread is not None and int(reading.given.get("gpus") or gpus_of(reading) or 1) > 1:
        reading.assume("replicas are predicted: layers that device_map spreads over GPUs are not modelled", spread)
    placed = next((one for name, one in reading.settings.items() if re.search(r"(^|\.)device_map(\.\Z)?$", name)
                   and re.fullmatch(r"0|cuda(:\d)?", str(one.value))), None)  # fmt: skip
    if placed is not None and not reading.given.get("gpus") and gpus_of(reading) is None:
        reading.option("gpus", 1)
        reading.assume("one GPU: device_map puts all of the model on it", placed)


def _take_checkpointing(reading: Reading) -> None:
    """Take that the model itself is told to recompute layers; what the Trainer is told comes after it, and only adds.

    Raises:
        InputError: it is told both, and which comes last is not read.
    """
    settings = reading.settings
    told = {word: [one for part in ("", PART) if (one := f"{TOUCHES}{part}gradient_checkpointing_{word}") in settings]
            for word in ("enable", "disable")}  # fmt: skip
    stated = settings.get("gradient_checkpointing")
    if stated is not None and str(stated.value).lower() not in OFF:
        return
    if all(told.values()) and not reading.given.get("recompute"):
        found = settings[told["disable"][0]]
        reading.refuse(found, "layers are told to be recomputed and not to be", settles="recompute")
    elif told["enable"] and not told["disable"]:
        found = settings[told["enable"][0]]
        settings["gradient_checkpointing"] = replace(found, name="gradient_checkpointing", value=True)


def _take_lengths(reading: Reading) -> None:
    """Take the length to which the script itself pads or cuts samples where the trainer is told none."""
    found = next((one for name in TOKENIZED if (one := reading.settings.get(name))), None)
    if found is not None and not set(SEQUENCE) & reading.settings.keys():
        name = "block_size" if found.name == TOKENIZED[0] else "max_length"
        reading.settings[name] = replace(found, name=name)


def _take_optimizer(reading: Reading) -> None:
    """Take the class of an optimizer that the trainer is given for the name of one: `optimizers=(SGD(...), None)`."""
    for name in ("optimizers", "optimizer_cls_and_kwargs"):
        found = reading.settings.get(name)
        if found is None:
            continue
        first = found.value[0] if isinstance(found.value, list) and found.value else found.value
        if first is not None and first != "None":
            made = str(first).rpartition(".")[2].strip("${}")
            reading.settings["optim"] = replace(found, name="optim", value=made, why="")


DATA = re.compile(_KNOWN["data"])


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
        InputError: one does, and what it decides is not given beside the files; adapters are of another kind than LoRA.
    """
    adapters, given = reading.settings.get("peft_config"), reading.given
    for name in ("load_in_4bit", "model.load_in_4bit"):  # what kind of tuning it is settles that
        if (stored := reading.settings.get(name)) is not None and stored.undecided:
            reading.settings[name] = replace(stored, value=given.get("tune") in {None, "qlora"}, why="")
    open_ = adapters is not None and adapters.undecided and "${" in str(adapters.value)
    open_ = open_ or (adapters is not None and _class(reading.settings, "peft_config") == OPEN_ADAPTERS)
    if adapters is not None and open_ and given.get("tune") != "full":
        if not given.get("tune"):
            what = f"whether adapters are trained hangs on {str(adapters.value).strip('${}')[:80]}, which no file says"
            reading.refuse(adapters, what, "add `tune=lora`, qlora or full", settles="tune")
        adapters = reading.settings["peft_config"] = replace(adapters, value=str(adapters.value).strip("${}"), why="")
    made = "" if adapters is None or not says(adapters.value) else _class(reading.settings, "peft_config")
    if made in OTHER_ADAPTERS and given.get("tune") != "full":
        reading.refuse(adapters, f"adapters of {made} are not modelled", settles="tune")
    if made and not made.endswith("LoraConfig") and given.get("tune") != "full":
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


OPEN_ADAPTERS = "get_peft_config"
"""Function of TRL that returns adapters where a command line asks for them."""

OTHER_ADAPTERS = frozenset(_KNOWN["other_adapters"])


def _touched(reading: Reading, name: str, does: str, given: str) -> None:
    """Read one thing that is done to the model, by its name and its first argument.

    Raises:
        InputError: what it changes is not known, and no option that is given beside the files says it.
    """
    last = does.rpartition(".")[2]
    if does.startswith(LOST):
        if not reading.given.get("tune"):
            what = f"whether the trainer is given what {given[:80]} returns is not known"
            reading.refuse(replace(reading.settings[name], name=last), what, settles="tune")
        return
    cast = CASTS.get(does) or (re.search(r"b?float(16|32)$", given) if does == "to" else None)
    if cast:
        kind = cast if isinstance(cast, str) else cast[0]
        reading.settings["torch_dtype"] = replace(reading.settings[name], name="torch_dtype", value=kind)
    elif said := _said_of_steps(does, given):
        _set(reading, name, *said)
    elif last == "resize_token_embeddings" and given.isdecimal() and "model_name_or_path" in reading.settings:
        model = reading.settings["model_name_or_path"]
        value = changed_model(str(model.value), {"vocab_size": int(given[:9])})
        reading.settings[model.name] = replace(model, value=value)
    elif does.startswith(PART) and (last in CASTS or (last == "to" and re.search(r"float(16|32)$", given))):
        what = "a part of the model is cast to another type, and which is not read"
        if not reading.given.get("precision"):
            reading.refuse(replace(reading.settings[name], name=last), what, settles="precision")
    elif does not in SET if given == ASSIGNED else not (last in HARMLESS or ENDS.match(last) or LOOKING.match(last)):
        _refuse_change(reading, replace(reading.settings[name], name=does.removeprefix(PART)), given)


def _said_of_steps(does: str, given: str) -> tuple[str, bool] | None:
    """Return the Trainer's switch that something done to the model or to PyTorch is; None where it is none."""
    if does.startswith("apply_liger_kernel"):
        return "use_liger_kernel", True
    if does == "allow_tf32" or (does == "set_float32_matmul_precision" and given in {"high", "medium", "highest"}):
        return "tf32", given != "highest"
    return ("torch_compile", True) if does == "compile" else None


def _refuse_change(reading: Reading, found: Setting, given: str) -> None:
    """Ask for what something that is done to the model changes, by its name.

    Raises:
        InputError: no option that is given beside the files says it.
    """
    does, last = found.name, found.name.rpartition(".")[2]
    of_config = (one for one in reading.settings if re.search(r"^(model|0)(\.\w+)*\.(config|0)$", one))
    if does in SHAPE_KEYS and any(_is_config(reading.settings, one) for one in of_config):  # `_take_config` reads it
        return
    changed = given == ASSIGNED or PATCHING.search(does) is not None
    settles = SETTLED.get(last) or speaks_of(does) or ("model" if changed else "tune")
    if reading.given.get(settles):
        return
    of_trainer = f"what the trainer does in {does[:80]} of its own is not read"
    what = of_trainer if last in OVERRIDDEN else f"what {does[:80]} changes of the model is not known here"
    reading.refuse(found, what, settles=settles)


SETTLED = _KNOWN["settled"]


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
    """Follow the model back to what loads or makes it, through what makes adapters; whether a call does."""
    settings, table, merged = reading.settings, "model" if "model" in reading.settings else "0", False
    while table in settings:
        last = str(settings[table].value).rpartition(".")[2]
        if last == "get_peft_model":
            _take_adapters(reading, table)
        elif last in LOADERS and "Peft" in str(settings[table].value):
            trainable = settings.get(f"{table}.is_trainable")
            if not merged and (trainable is None or str(trainable.value).lower() in OFF):
                reading.assume(
                    "adapters are trained: without is_trainable=True, PEFT freezes those that it loads", table
                )
            if not merged:
                _set(reading, table, "peft_config", f"the checkpoint of {settings[table].value}"[:80])
        elif _take_made(reading, table, last):
            return True
        elif last == "merge_and_unload":
            merged = True
        elif last not in PREPARING and not HELPERS.match(last) and _made_from(reading, table):
            given = [str(settings[one].value) for key in ("dtype", "0", "1") if (one := f"{table}.{key}") in settings]
            _touched(reading, table, last, next((one for one in given if "float" in one), "".join(given[:1])))
        elif last not in PREPARING:
            _set(reading, table, "model_name_or_path", settings[table].value)
            return False
        table = next((f"{table}.{key}" for key in made_from(last) if f"{table}.{key}" in settings), "")
    return False


def _take_adapters(reading: Reading, table: str) -> None:
    """Take the adapters that `get_peft_model` puts in: of a configuration, or of keywords (Unsloth)."""
    settings = reading.settings
    adapters = next((one for one in (f"{table}.1", f"{table}.peft_config") if one in settings), table)
    _give(reading, f"{adapters}.", "peft_config.")
    if adapters != table:
        _set(reading, adapters, "peft_config", _class(settings, adapters))
    else:  # of keywords, which may be none
        settings.pop("peft_config.origin", None)
        settings.setdefault("peft_config", replace(settings[table], name="peft_config", value="LoraConfig", why=""))


def _take_made(reading: Reading, table: str, last: str) -> bool:
    """Take the model that a call loads, or makes of a configuration; whether it does."""
    settings = reading.settings
    config = next((one for one in (f"{table}.config", f"{table}.0") if _is_config(settings, one)), "")
    loads, makes = last in LOADERS, bool(config) and (last == "from_config" or DECODERS.search(last) is not None)
    name = next((one for one in NAMES if f"{table}.{one}" in settings), None)
    if loads and name is not None:
        _set(reading, f"{table}.{name}", "model_name_or_path", settings[f"{table}.{name}"].value)
    if config and (loads or makes):
        _take_config(reading, config)
    if loads or makes:
        _give(reading, f"{table}.", "")
    if makes and not set(LOADED) & settings.keys():
        _set(reading, table, "torch_dtype", "float32")
    return loads or makes


DECODERS = re.compile(r"(ForCausalLM|LMHeadModel)$")
"""Classes of transformers that are made of a configuration, with weights in fp32."""


def _is_config(settings: Settings, name: str) -> bool:
    """Whether a part is a configuration of a model: of a class, or loaded."""
    found = str(settings[name].value) if name in settings else ""
    return found.endswith("Config") or bool(re.search(r"Config\.from_pretrained$", found))


def _take_config(reading: Reading, table: str) -> None:
    """Take a model from its configuration: keywords of a class, or those by which one that is loaded is changed.

    Raises:
        InputError: what it says hangs on what nobody gives, or is not modelled.
    """
    settings, called = reading.settings, _class(reading.settings, table)
    if reading.given.get("model"):
        return
    keys: dict[str, Any] = {}
    for name, one in settings.items():
        key = name.removeprefix(f"{table}.")
        if key != name and "." not in key and not key.isdigit() and key not in {"origin", "of", "**"}:
            shapes = key in SHAPE_KEYS or called != "from_pretrained"
            if shapes and one.undecided and "${" in str(one.value):
                reading.refuse(one, f"the model's {key} is {one.value}, which no file says", settles="model")
            if shapes:
                reading.means("shape of the model", name)
            keys[key] = one.value
    loaded = next((one for one in NAMES if f"{table}.{one}" in settings), None)
    if called == "from_pretrained" and loaded is not None:
        reading.need(settings[f"{table}.{loaded}"])
        model = changed_model(str(settings[f"{table}.{loaded}"].value), keys)
    else:
        try:
            model = configured_model(called, keys, settings[table].place) or called
        except InputError as error:
            reading.refuse(settings[table], error.message, error.hint, settles="model")
    settings["model_name_or_path"] = replace(settings[table], name="model_name_or_path", value=model)


def _made_from(reading: Reading, table: str) -> bool:
    """Whether a call makes a model of what another call returned."""
    starts = tuple(f"{table}.{key}." for key in made_from(table))
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
