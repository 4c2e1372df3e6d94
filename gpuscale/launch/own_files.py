"""Configurations of programs of one's own that hand a table of them to the Trainer: Hydra's, OmegaConf's and the like.

`training.per_device_train_batch_size` beside `model.name_or_path` and `lora.r`: what such tables are called differs,
what stands in them are arguments of the Trainer, of `from_pretrained` and of PEFT's `LoraConfig`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NoReturn

from gpuscale.launch.huggingface_models import known_model
from gpuscale.launch.settings import OFF, ON, Reading, Setting, Source, digits
from gpuscale.launch.shapes import SWITCHES
from gpuscale.launch.unread import is_on
from gpuscale.presets.files import known_table
from gpuscale.presets.tools import all_tools, load_tool, words

MARK = "per_device_train_batch_size"
"""Argument of the Trainer by which a table of it is known."""

OWN = "own"
"""The tool that programs of one's own are of."""

_ADAPTERS = {
    "r": "lora_r", "rank": "lora_r", "lora_rank": "lora_r", "dim": "lora_r", "dropout": "lora_dropout",
    "targets": "lora_target_modules", "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "method": "adapter", **dict.fromkeys(("peft_type", "peft_method", "adapter_type"), "adapter"),
    **dict.fromkeys(("enabled", "enable", "use", "use_lora", "use_peft", "lora_enable", "lora_enabled"), "use_peft"),
}  # fmt: skip
_QUANTISED = {
    "use_4bit": "load_in_4bit", "bnb_4bit": "load_in_4bit", "use_8bit": "load_in_8bit",
    "quant_type": "bnb_4bit_quant_type", "use_double_quant": "bnb_4bit_use_double_quant",
    "double_quant": "bnb_4bit_use_double_quant",
}  # fmt: skip
_NAMES = (
    "name", "path", "id", "name_or_path", "model_name", "model_path", "model_id", "base_model", "pretrained",
    "hf_name", "pretrained_model_name_or_path", "pretrained_model", "checkpoint", "base_id", "hf_id", "repo_id", "base",
    "model_name_or_path", "base_model_name", "base_model_id", "base_model_name_or_path", "pretrained_model_path",
)  # fmt: skip
_KINDS = dict.fromkeys(("peft_type", "peft_method", "adapter_type"), "adapter")
_MODEL = dict.fromkeys(_NAMES, "model_name_or_path") | _QUANTISED | _KINDS
_TRAINING = {"lora": "use_peft", "use_lora": "use_peft"} | _QUANTISED | _KINDS
_SHARDED = {"stage": "zero_stage"} | dict.fromkeys(
    ("config", "config_path", "config_file", "path", "file", "ds_config"), "deepspeed"
)
_BATCH = {
    **dict.fromkeys(("micro", "per_device", "per_gpu", "local"), "per_device_train_batch_size"), "size": "batch_size",
    **dict.fromkeys(("global", "total", "effective"), "global_batch_size"),
}  # fmt: skip
_WAYS = re.compile(
    r"((fine_?|full_?)?tun(e|ing)|train(ing)?|peft|adapt(er|ation)?)?_?(method|mode|strategy|type|approach|kind|technique)"
    r"|(fine_?)?tun(e|ing)"
)
"""Names of what says whether all of a model is trained, or adapters, by one of these words."""
_SWITCH = ("enabled", "enable", "use")
_ADAPTED = re.compile(r"lora|peft|adapter")
_QUANTISER = re.compile(r"quant|bnb|bits?_?(and)?_?bytes")
_SUFFIX = re.compile(r"_(params|parameters|settings|options|cfg)$")
_TABLES: tuple[tuple[re.Pattern[str], dict[str, str]], ...] = (
    (re.compile(r"qlora"), _ADAPTERS | dict.fromkeys((*_SWITCH, "use_qlora"), "load_in_4bit")),
    (re.compile(r"^(deepspeed|ds_config|zero|zero_optimization)$"), _SHARDED),
    (re.compile(r"^(peft|adapter)"), _ADAPTERS | {"type": "adapter"}),
    (_ADAPTED, _ADAPTERS),
    (re.compile(r"^(teacher|reward|ref(erence)?|critic)(_model)?$"), dict.fromkeys(_NAMES, "teacher_model")),
    (re.compile(r"^(dpo|kto|orpo|grpo|simpo)(_config|_args)?$"), {}),
    (_QUANTISER, _QUANTISED),
    (re.compile(r"^optim(izer)?$"), dict.fromkeys(("name", "type", "_target_", "class_path"), "optim")),
    (re.compile(r"^(model|llm|lm|base_model|policy|model_args|model_config|model_cfg|architecture|arch)$"), _MODEL),
    (re.compile(r"^(data|dataset|tokenizer|data_args|tokenization|sft|sft_config|script_args)$"), {}),
    (re.compile(r"^batch(ing|_sizes?)?$"), _BATCH),
    (
        re.compile(
            r"^(train|training|trainer|train(ing)?_(args|config)|optimization|hyperparam\w*|hparams|run|params"
            r"|(pre|fine_?)train(ing)?|fine_?tun(e|ing))$"
        ),
        _TRAINING,
    ),
)
"""Words of a table's name -> what its keys are as arguments where they are called otherwise."""

OTHER_MODELS = re.compile(
    r"image|img|pixel|\bpatch|video|audio|speech|resolution|num_class|diffusion|unet|\bvae|dit_|gan(_|$)"
)
"""What programs of other models have in their options."""

ELSEWHERE = re.compile(rf"{OTHER_MODELS.pattern}|arch$|tensorflow|zero_stage|pp_size")
"""What they have, or programs of other frameworks."""

_OTHERS = re.compile(rf"{OTHER_MODELS.pattern}|arch$|tensorflow")

_OF_DATA = re.compile(
    r"(max_)?(seq(uence)?_?)?len(gth)?|max_(seq|sequence)_(len|length)|block_size|cutoff_len|packing|model_max_length"
    r"|context_(len(gth)?|size)|ctx_len|vocab(ulary)?_size"
)
_BATCH_OF_DATA = re.compile(rf"{_OF_DATA.pattern}|(train_)?(micro_)?batch_size(_per_\w+)?")
_ONLY = {"data": _BATCH_OF_DATA, "token": _OF_DATA, "optim": re.compile("name|type|_target_|class_path")}
_ONLY |= dict.fromkeys(("teacher", "reward", "ref", "critic"), re.compile("|".join(_NAMES)))
"""Beginnings of names of tables that hold much else -> what is read of them."""

_READ_LENGTHS = tuple(known_table("scripts")["trainer"]["sequence"])
_LENGTHS, _BATCHES = "max_length", ("per_device_train_batch_size", "batch_size", "global_batch_size")
BATCHES = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
"""A batch of all GPUs, and its parts beside them."""
_ONCE = {
    _LENGTHS: "seq", "per_device_train_batch_size": "micro_batch_size",
    **dict.fromkeys(("batch_size", "global_batch_size", "gradient_accumulation_steps"), "gbs"),
}  # fmt: skip
"""What a program has one of -> the option that settles which, where tables state several."""

_ARGUMENTS = (_LENGTHS, "load_in_4bit", "load_in_8bit", "gradient_checkpointing", "gradient_accumulation_steps")
"""Arguments of the Trainer and of loaders that tables beside them call otherwise."""

_OF_MODEL = re.compile(r"(model|tokenizer|architecture)\.")
_OF_STAGES = re.compile(r"(pretrain\w*|sft|dpo|rlhf|ppo|grpo|rm|distill\w*)\.")

_OF_OTHERS = frozenset({
    MARK, "train_micro_batch_size_per_gpu", "finetuning_type", "tuner_type", "train_type", "distributed_type",
    "fsdp_config", "device_train_microbatch_size", "rank_microbatch_size",
})  # fmt: skip
"""Last parts of names by which a document is of a program that is known."""


@cache
def spellings(ours: str) -> tuple[str, ...]:
    """Return what programs of one's own call a setting, patterns among it, the likeliest first."""
    return (ours, *load_tool(OWN).names[ours])


@cache
def is_spelled(last: str, spelling: str) -> bool:
    """Whether the last part of a name is one of these spellings, which as patterns pass over what is not training."""
    return last == spelling or ("*" in spelling and fnmatchcase(last, spelling) and not _BESIDE_TRAINING.search(last))


@cache
def is_called(ours: str, last: str) -> bool:
    """Whether programs of one's own call a setting so."""
    return any(is_spelled(last, one) for one in spellings(ours))


_BESIDE_TRAINING = re.compile(r"eval|val_|valid|test|infer|gen|rollout|sampl|log_?prob|forward")
"""Words of options of what is beside the training step, which patterns of names pass over."""

_SHORT = ("bias", "batch", "dim", "half", "opt", "depth", "heads", "layers")
_STAGES = ("zero_stage", "ds_stage", "deepspeed_stage")
_IN_TABLES_ALONE = ("model_name_or_path", "zero_stage", "use_peft", "lora_rank", "degree.tp", "degree.pp", "degree.dp")


@cache
def _anywhere(last: str) -> bool:
    """Whether a name means the same in a table of whatever name."""
    names = (ours for ours in load_tool(OWN).names if ours not in _IN_TABLES_ALONE)
    return last not in _SHORT and (
        last in {*SWITCHES, *_STAGES, "attn_implementation", "attn_impl"}
        or any(is_called(ours, last) for ours in names)
    )


def opened(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return settings by their names in lower case, without those of tables of which nothing matters (`eval.*`)."""
    closed = words().closed
    return {name.lower(): one for name, one in settings.items()
            if not any(map(closed.search, name.lower().split(".")[:-1]))}  # fmt: skip


def claims(source: Source) -> bool:
    """Whether a document has a table of the Trainer's arguments in it, or is of a program with names of its own."""
    document = source.kind in {"yaml", "toml", "json"}
    return document and (any(name.endswith(f".{MARK}") for name in source.settings) or is_own(source))


def is_own(source: Source) -> bool:
    """Whether a document says a batch by names of its own, and no more than a language model's training has."""
    if source.kind not in {"yaml", "toml", "json"}:
        return False
    stated = opened(source.settings)
    lasts = {name.rpartition(".")[2]: one for name, one in stated.items()}
    axolotl = {"micro_batch_size", "sequence_len", "datasets.0.path"} & stated.keys()
    marks = {mark for tool in all_tools() for mark in tool.marks} - (set() if axolotl else {"base_model"})
    others = any(name.startswith("zero_optimization.") or _OTHERS.search(name) for name in stated)
    if others or _OF_OTHERS & lasts.keys() or marks & {name for name, one in stated.items() if one.value is not None}:
        return False
    batch = any(digits(one.value) is not None
                and any(is_called(ours, name.rpartition(".")[2]) or _argument(name, one) == ours for ours in _BATCHES)
                for name, one in stated.items())  # fmt: skip
    batch |= not axolotl and known_model(str(getattr(stated.get("base_model"), "value", "")))[0] is not None
    return batch and _of_language(stated, lasts)


def _of_language(stated: Mapping[str, Setting], lasts: Mapping[str, Setting]) -> bool:
    """Whether settings speak of a language model, or of no model at all."""
    named = [one.value for name, one in stated.items() for of, _, last in (name.rpartition("."),)
             if (not of or re.fullmatch(r"(.*\.)?(model|llm)", of))
             and (is_called("model_name_or_path", last) or (of and last in _NAMES))]  # fmt: skip
    model = any(name.partition(".")[0] in {"model", "network", "net", "backbone", "encoder"} for name in stated)
    adapted = any(re.search(r"(^|\.)(q?lora|peft)(\.|_r$)", name) for name in stated)
    tokens = any(
        re.search(r"tokenizer|(^|_)tokens$|chinchilla", last)
        or any(is_called(ours, last) for ours in (_LENGTHS, "shape.vocab"))
        for last in lasts
    )
    sized = all(any(is_called(f"shape.{size}", last) for last in lasts) for size in ("layers", "hidden", "heads"))
    known = any(isinstance(one, str) and known_model(one)[0] for one in named)
    return bool(known or adapted or tokens or sized or not (model or named))


def take(reading: Reading) -> bool:
    """Give settings of such tables the names that arguments have; what stands in others is left as it is.

    Returns:
        Whether there are such tables.

    Raises:
        InputError: two models are named, or two values of what there is one of.
    """
    _take_bits(reading)
    flat = MARK in reading.settings
    if not any(map(_has_adapters if flat else claims, reading.sources)):
        return False
    own = any(map(is_own, reading.sources)) and not any(name.endswith(MARK) for name in reading.settings)
    _say_inherited(reading)
    _take_chosen(reading)
    _leave_experts(reading)
    training = {name.rpartition(".")[0].lower() for name in reading.settings if name.endswith(f".{MARK}")}
    if len(training) > 1:
        _refuse_several(reading, training)
    _take_switches(reading)
    adapted = next((one for name, one in reading.settings.items() if _describes(name) and is_on(one.value)), None)
    if own:
        _take_lightning(reading)
        _choose(reading)
        _take_degrees(reading)
    for name, one in list(reading.settings.items()):
        argument = _argument(name, one, training)
        if not own and argument and argument not in _READ_LENGTHS:  # names that readers of its arguments know
            argument = next((ours for ours in _ARGUMENTS if is_called(ours, argument)), argument)
        if argument is not None and ("." in name or argument == "finetuning_type"):
            nf4 = argument == "load_in_4bit" and str(one.value).lower() == "nf4"
            _give(reading, name, replace(one, value=True) if nf4 else one, argument)
    length = reading.settings.get(_LENGTHS)
    for name, one in reading.settings.items():
        if length is None or one is length:
            continue
        if one.value == length.value and is_called(_LENGTHS, name.lower().rpartition(".")[2]):
            reading.say(one, "the length, once more")
    _take_adapters(reading, adapted)
    reading.assume("a configuration of a program of one's own: its tables are read as arguments of the Trainer")
    return True


def _refuse_several(reading: Reading, tables: Collection[str]) -> None:
    """Refuse several tables of the Trainer's arguments that differ: profiles of which a program takes one.

    Raises:
        InputError: they do.
    """
    stated = {of: {name.rpartition(".")[2]: str(one.value) for name, one in reading.settings.items()
                   if name.rpartition(".")[0].lower() == of} for of in tables}  # fmt: skip
    first, *more = sorted(stated)
    if any(stated[first] != stated[of] for of in more):
        found = next(one for name, one in reading.settings.items() if name.lower() == f"{more[0]}.{MARK}")
        message = f"several tables have arguments of the Trainer: {', '.join(sorted(stated))}"
        reading.refuse(found, message, "leave the one that is trained with in the file")


def _take_degrees(reading: Reading) -> None:
    """Take degrees that stand in a table, and the GPUs as their product where all do and nothing else counts GPUs."""
    sizes: dict[str, int] = {}
    stated = opened(reading.settings)
    for axis in ("tp", "pp", "dp"):
        for name, one in stated.items():
            table, _, last = name.rpartition(".")
            size, inside = digits(one.value), "parallel" in table and is_called(f"degree.{axis}", f"parallel.{last}")
            if size is not None and (inside or is_called(f"degree.{axis}", last)):
                sizes[axis] = max(size, 1)
                if axis != "dp":
                    reading.option(axis, sizes[axis], one.name)
                reading.say(reading.settings.pop(one.name), f"{axis} = {sizes[axis]}")
    counted = any(is_called("num_processes", name.rpartition(".")[2]) for name in stated) or reading.given.get("gpus")
    if {"tp", "dp"} <= sizes.keys() and not counted:
        gpus = math.prod(sizes.values())
        reading.option("gpus", gpus)
        reading.assume(f"GPUs are the product of the degrees, {gpus}")


def _has_adapters(source: Source) -> bool:
    """Whether a document has adapters or quantised weights in a table of its own, beside arguments of the Trainer."""
    document = source.kind in {"yaml", "toml", "json"} and MARK in source.settings
    return document and any(re.match(r"(q?lora|peft|adapter|quantization|bnb)\.", name) for name in source.settings)


_LIGHTNING = re.compile(
    r"accelerator|accumulate_grad_batches|gradient_clip_val|(limit|overfit)_\w+_batches|\w*sanity\w*|\w+_every_n_\w+|"
    r"strategy\.(class_path|_target_)"
)
"""What stands beside the devices of a trainer of Lightning."""


def _take_lightning(reading: Reading) -> None:
    """Give what a table of Lightning's trainer says the names that accelerate and DeepSpeed have for it."""
    for of in {name.rpartition(".")[0] for name in reading.settings if re.search(r"(^|\.)devices$", name)}:
        inside = {
            name.removeprefix(f"{of}."): one for name, one in reading.settings.items() if name.startswith(f"{of}.")
        }
        precision = str(inside["precision"].value) if "precision" in inside else ""
        if not any(map(_LIGHTNING.fullmatch, inside)) and not precision.endswith(("-mixed", "-true")):
            continue
        if precision in {"bf16-true", "16-true"}:
            loaded = "bfloat16" if precision == "bf16-true" else "float16"
            reading.settings["torch_dtype"] = replace(inside["precision"], name="torch_dtype", value=loaded)
        _take_strategy(reading, inside)


_STRATEGY = re.compile(r"(auto|single|ddp|fsdp|deepspeed)", re.IGNORECASE)
_OF_STRATEGY = {
    "sharding_strategy": "fsdp_config.fsdp_sharding_strategy",
    "cpu_offload": "fsdp_config.fsdp_offload_params",
    "activation_checkpointing": "fsdp_config.fsdp_activation_checkpointing",
    "activation_checkpointing_policy": "fsdp_config.fsdp_activation_checkpointing",
    "stage": "zero_optimization.stage",
    "config": "deepspeed",
    "offload_optimizer": "zero_optimization.offload_optimizer.device",
    "offload_parameters": "zero_optimization.offload_param.device",
    "overlap_comm": "zero_optimization.overlap_comm",
}


def _take_strategy(reading: Reading, inside: Mapping[str, Setting]) -> None:
    """Take how Lightning shards: by a word, or by a class with arguments (lightning/pytorch/strategies)."""
    names = ("strategy", "strategy.class_path", "strategy._target_", "strategy.name", "devices")
    found = next(one for name in names if (one := inside.get(name)) is not None and one.value is not None)
    word = "auto" if found is inside.get("devices") else str(found.value).rpartition(".")[2].lower()
    kind = _STRATEGY.match(word)
    if kind is None:
        return  # asked about
    distributed = {"fsdp": "FSDP", "deepspeed": "DEEPSPEED"}.get(kind[1], "MULTI_GPU")
    made: dict[str, Any] = {"distributed_type": distributed}
    if distributed == "FSDP":
        made["fsdp_config.fsdp_sharding_strategy"] = "FULL_SHARD"
    elif distributed == "DEEPSPEED" and "strategy.init_args.config" not in inside:
        made["zero_optimization.stage"] = next(iter(re.findall(r"stage_([123])", word)), 2)
        if "offload" in word:
            made["zero_optimization.offload_optimizer.device"] = "cpu"
    else:
        reading.assume("replicas without sharding (DDP), as Lightning's strategy has it", found)
    if found.name in reading.settings and found is not inside.get("devices"):
        del reading.settings[found.name]
    for name, value in made.items():
        reading.settings[name] = replace(found, name=name, value=value)
    for name, one in inside.items():
        ours = (
            _OF_STRATEGY.get(re.sub(r"strategy\.(init_args\.)?", "", name), "") if name.startswith("strategy.") else ""
        )
        if ours and is_on(one.value):
            on = "cpu" if ours.endswith("device") else True if isinstance(one.value, list) else one.value
            reading.settings[ours] = replace(one, name=ours, value=on)
            reading.settings.pop(one.name, None)


_PARENTS = ("extends", "_base_", "_base", "base", "base_config", "inherits", "inherit_from", "parent")


def _say_inherited(reading: Reading) -> None:
    """Say of a file that a document goes on from, and that is not here, that it is read without it."""
    read = {one.file.rpartition("/")[2] for one in reading.sources}
    for name in _PARENTS:
        found = reading.settings.get(name)
        file = str(getattr(found, "value", "")).rpartition("/")[2]
        if found is not None and re.search(r"\.(ya?ml|json|toml)$", file) and file not in read:
            reading.assume(f"{file} is not here: without it", found)


def _take_chosen(reading: Reading) -> None:
    """Take of tables side by side the one that a setting names: `rung: mid` of `rungs.small` and `rungs.mid`."""
    stated = {name.lower(): one for name, one in reading.settings.items()}
    sides: dict[str, set[str]] = {}
    for name in stated:
        parts = name.split(".")
        for depth in range(1, len(parts) - 1):
            sides.setdefault(".".join(parts[:depth]), set()).add(parts[depth])
    for of, names in sides.items():
        chooser = re.compile(rf"(\w+_)?{re.escape(of.rpartition('.')[2].removesuffix('s'))}(_name)?")
        chosen = [one for name, one in stated.items() if not name.startswith(f"{of}.")
                  and chooser.fullmatch(name.rpartition(".")[2]) and str(one.value).lower() in names]  # fmt: skip
        if len(names) < 2 or len({str(one.value).lower() for one in chosen}) != 1:
            continue
        choice, name = chosen[0], str(chosen[0].value).lower()
        for other, one in stated.items():
            if other.startswith(f"{of}.") and not other.startswith(f"{of}.{name}.") and one.name in reading.settings:
                reading.means(f"not of {name[:60]}, which is chosen", one.name)
                del reading.settings[one.name]
        reading.say(choice, f"its table of {of[:60]} counts")


_FEEDFORWARD = re.compile(r"ffn?|mlp|feed_?forward(_network)?")
_KIND = re.compile(r"type|name|kind|variant")
_DENSE = re.compile(r"dense|(gated_?)?(mlp|ffn)|(swi|ge|re)?glu|gelu(_\w+)?|relu2?|silu|standard|vanilla")
"""What the type of a table of feed-forward layers is where they are no experts."""
_OF_EXPERTS = re.compile(r"moe|expert|rout|top_?k")


def _leave_experts(reading: Reading) -> None:
    """Leave out what is said of experts beside a type that has none: `feedforward.type: swiglu`, `ffn_type: dense`."""
    for name, kind in list(reading.settings.items()):
        table, _, last = name.lower().rpartition(".")
        inside = _KIND.fullmatch(last) and _FEEDFORWARD.fullmatch(table.rpartition(".")[2])
        flat = last.endswith("_type") and _FEEDFORWARD.fullmatch(last.removesuffix("_type"))
        word = str(kind.value).lower()
        if not (inside and _DENSE.fullmatch(word)) and not (flat and word == "dense"):
            continue
        for other in list(reading.settings):
            of, _, key = other.lower().rpartition(".")
            if of == table and _OF_EXPERTS.search(key):
                reading.means(f"no experts beside {kind.name[:60]} {word[:60]}", other)
                del reading.settings[other]
        reading.say(kind, "layers without experts")


def _argument(name: str, one: Setting, training: Collection[str] = ()) -> str | None:
    """Return the argument that a setting is, by the tables around it from the innermost; None where it is none.

    Args:
        training: tables that hold arguments of the Trainer, whatever they are called.
    """
    *tables, last = name.lower().split(".")
    if not tables and _WAYS.fullmatch(last) and str(one.value).lower() in {"full", "lora", "qlora"}:
        return "finetuning_type"
    for depth, whole in enumerate(reversed(tables)):
        of = _SUFFIX.sub("", whole)
        known = next((known for pattern, known in _TABLES if pattern.search(of)), None)
        if not depth and ".".join(tables) in training:
            known = _TRAINING
        if known is None and words().closed.search(whole):
            return None
        only = next((pattern for begins, pattern in _ONLY.items() if of.startswith(begins)), None)
        if only is not None and not only.fullmatch(last):
            return None
        if known is None or (depth and last not in known and not _anywhere(last)):
            continue
        if known is _QUANTISED and _WAYS.fullmatch(last) and str(one.value).lower() == "nf4":
            return "load_in_4bit"
        if known is _TRAINING and _WAYS.fullmatch(last) and str(one.value).lower() in {"full", "lora", "qlora"}:
            return "finetuning_type"
        alone = last in _SWITCH and last not in known  # `quantization.enabled` beside nothing
        return None if alone else known.get(last, last)
    return last if tables and _anywhere(last) else None


def _choose(reading: Reading) -> None:
    """Leave one value of what there is one of: of lengths not that which the model may take.

    Raises:
        LackingError: several are stated.
    """
    stated = opened(reading.settings)
    for ours, option in _ONCE.items():
        found = {
            name: one
            for name, one in stated.items()
            if is_called(ours, name.rpartition(".")[2]) and _argument(name, one) and digits(one.value) is not None
        }
        if ours == _LENGTHS:
            trained = {name: one for name, one in found.items() if not _OF_MODEL.match(name)}
            trained = {} if all(map(_OF_STAGES.match, trained)) else trained  # which may be others than this
            for name in found.keys() - trained.keys() if trained else ():
                reading.settings["shape.sequence"] = reading.settings.pop(found[name].name)
            found = trained or found
        values = list(dict.fromkeys(str(one.value) for one in found.values()))
        if len(values) > 1 and not reading.given.get(option):
            first, *more = found.values()
            also = ", ".join(f"{one.name} {one.value} ({one.place})" for one in more if one.value != first.value)
            reading.refuse(first, f"{first.value} is stated, and so is {also}", settles=option, likely=values)


def _describes(name: str) -> bool:
    """Whether a setting stands in a table of adapters."""
    return bool(_ADAPTED.search(name.rpartition(".")[0].rpartition(".")[2].lower()))


def _take_adapters(reading: Reading, adapted: Setting | None) -> None:
    """Take whether there are adapters: where a table says what they are like, unless a switch or a word says it."""
    for name in [one for one in reading.settings if one != "use_peft" and one in spellings("use_peft")]:
        _give(reading, name, reading.settings[name], "use_peft")
    rank, switch = reading.settings.get("lora_r", adapted), reading.settings.get("use_peft")
    worded = {"adapter", "finetuning_type"} & reading.settings.keys()
    if rank is not None and switch is None and not worded:
        reading.settings["use_peft"] = replace(rank, name="use_peft", value=True)
    elif switch is not None and str(switch.value).lower() in OFF:
        for name in [one for one in reading.settings if one.startswith("lora_") or one == "adapter"]:
            reading.means("no adapters are asked for", name)
            del reading.settings[name]
    elif switch is not None and "adapter" in worded:
        reading.say(reading.settings.pop("use_peft"), "of the kind that its table names")


_QUANTISES = re.compile(r"(use_|enable_|do_)?quanti[sz](e|ation)(_model|_enabled)?")


_BITS = re.compile(r"quant(i[sz](e|ation))?(_mode)?|load_in")
_WIDTHS = {**dict.fromkeys(("4bit", "4-bit", "nf4", "fp4", "int4", "4"), "load_in_4bit"),
           **dict.fromkeys(("8bit", "8-bit", "int8", "8"), "load_in_8bit")}  # fmt: skip


def _take_bits(reading: Reading) -> None:
    """Take words for quantised weights as the switches of their loader: `quant: 4bit`."""
    documents = {one.file for one in reading.sources if one.kind in {"yaml", "toml", "json"}}
    for name, one in list(reading.settings.items()):
        table, _, last = name.lower().rpartition(".")
        switch = _WIDTHS.get(str(one.value).lower()) if _BITS.fullmatch(last) and one.file in documents else None
        if switch and not any(map(words().closed.search, table.split("."))) and switch not in reading.settings:
            reading.settings[switch] = replace(reading.settings.pop(name), name=switch, value=True)


def _take_switches(reading: Reading) -> None:
    """Take whether tables count: of one that is off nothing does, those of adapters apart."""
    loaded = [name for name in reading.settings if re.search(r"load_(in_)?[48]_?bit$", name.lower())]
    for name, switch in list(reading.settings.items()):
        if (
            loaded
            and _QUANTISES.fullmatch(name.lower().rpartition(".")[2])
            and str(switch.value).lower() in {*ON, *OFF}
        ):
            off = str(switch.value).lower() in OFF
            for one in loaded if off else ():
                reading.means("no weights are quantised", one)
                reading.settings.pop(one, None)
            reading.say(reading.settings.pop(name), "no weights are quantised" if off else "as its settings say")
    for name, switch in list(reading.settings.items()):
        table, _, last = name.lower().rpartition(".")
        of = table.rpartition(".")[2]
        quantised = bool(_QUANTISER.search(of)) or of == "qlora"
        if last not in (*_SWITCH, f"use_{of}") or not of or (_ADAPTED.search(of) and not quantised):
            continue
        inside = [one for one in reading.settings if one.lower().startswith(f"{table}.") and one != name]
        off = str(switch.value).lower() in OFF
        for one in inside if off else ():
            reading.means("no weights are quantised" if quantised else "of a table that is switched off", one)
            del reading.settings[one]
        said = inside and (quantised or any(one.lower().endswith(".stage") for one in inside))
        if off or (said and of != "qlora"):
            what = "no weights are quantised" if quantised else "switched off"
            reading.say(reading.settings.pop(name), what if off else "as its table says")


def _give(reading: Reading, name: str, one: Setting, argument: str) -> None:
    """Call a setting by the argument that it is, unless there is one.

    Raises:
        InputError: another model has that place.
    """
    there = reading.settings.get(argument)
    if argument == "optim" and isinstance(one.value, str):  # `torch.optim.AdamW`
        one = replace(one, value=one.value.rpartition(".")[2])
    if argument == "model_name_or_path":
        if isinstance(one.value, bool):  # `pretrained: true`
            return
        two = there is not None and one.value and not name.endswith("checkpoint") and not reading.given.get("model")
        if there is not None and two and _stem(there) != _stem(one):
            refuse_two_models(reading, there, one)
    if there is None:
        del reading.settings[name]
        reading.settings[argument] = replace(one, name=argument)


def refuse_two_models(reading: Reading, first: Setting, second: Setting) -> NoReturn:
    """Ask which of two models is trained.

    Raises:
        LackingError: always.
    """
    models = (str(first.value), str(second.value))
    message = f"two models are named, {models[0][:80]!r} and {models[1][:80]!r}"
    reading.refuse(second, message, settles="model", likely=models)


def _stem(model: Setting) -> str:
    return str(model.value).rstrip("/").rpartition("/")[2].lower()
