"""Configurations of programs of one's own that hand a table of them to the Trainer: Hydra's, OmegaConf's and the like.

`training.per_device_train_batch_size` beside `model.name_or_path` and `lora.r`: what such tables are called differs,
what stands in them are arguments of the Trainer, of `from_pretrained` and of PEFT's `LoraConfig`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NoReturn

from gpuscale.launch.settings import OFF, Reading, Setting, Source
from gpuscale.launch.unread import is_on

MARK = "per_device_train_batch_size"
"""Argument of the Trainer by which a table of it is known."""

_ADAPTERS = {
    "r": "lora_r", "rank": "lora_r", "lora_rank": "lora_r", "dim": "lora_r", "dropout": "lora_dropout",
    "targets": "lora_target_modules", "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    **dict.fromkeys(("method", "peft_type", "peft_method", "adapter_type"), "adapter"),
    **dict.fromkeys(("enabled", "enable", "use", "use_lora", "use_peft", "lora_enable", "lora_enabled"), "use_peft"),
}  # fmt: skip
_QUANTISED = {
    "use_4bit": "load_in_4bit", "bnb_4bit": "load_in_4bit", "use_8bit": "load_in_8bit",
    "quant_type": "bnb_4bit_quant_type", "use_double_quant": "bnb_4bit_use_double_quant",
    "double_quant": "bnb_4bit_use_double_quant",
}  # fmt: skip
_NAMES = (
    "name", "path", "id", "name_or_path", "model_name", "model_path", "model_id", "base_model", "pretrained",
    "hf_name", "pretrained_model_name_or_path", "pretrained_model", "checkpoint",
)  # fmt: skip
_MODEL = dict.fromkeys(_NAMES, "model_name_or_path") | _QUANTISED
_TRAINING = {"lora": "use_peft", "use_lora": "use_peft"} | _QUANTISED
_WAYS = ("method", "mode", "tuning", "tuning_method", "finetuning_method", "finetune_method", "training_type", "type")
_SWITCH = ("enabled", "enable", "use")
_ADAPTED = re.compile(r"lora|peft|adapter")
_QUANTISER = re.compile(r"quant|bnb|bitsandbytes")
_TABLES: tuple[tuple[re.Pattern[str], dict[str, str]], ...] = (
    (re.compile(r"qlora"), _ADAPTERS | dict.fromkeys(_SWITCH, "load_in_4bit")),
    (re.compile(r"^(peft|adapter)"), _ADAPTERS | {"type": "adapter"}),
    (_ADAPTED, _ADAPTERS),
    (re.compile(r"^(teacher|reward|ref(erence)?|critic)(_model)?$"), dict.fromkeys(_NAMES, "teacher_model")),
    (re.compile(r"^(dpo|kto|orpo|grpo|simpo)(_config|_args)?$"), {}),
    (_QUANTISER, _QUANTISED),
    (re.compile(r"^optim(izer)?$"), dict.fromkeys(("name", "_target_", "class_path"), "optim")),
    (re.compile(r"^(model|llm|base_model|policy|model_args|model_config|model_cfg)$"), _MODEL),
    (re.compile(r"^(data|dataset|tokenizer|data_args|tokenization|sft|sft_config|script_args)$"), {}),
)
"""Words of a table's name -> what its keys are as arguments where they are called otherwise."""

OTHER_MODELS = re.compile(r"image|img|pixel|video|audio|speech|resolution|num_class|diffusion|unet|\bvae|dit_|gan(_|$)")
"""What programs of other models have in their options."""

ELSEWHERE = re.compile(rf"{OTHER_MODELS.pattern}|arch$|tensorflow|zero_stage|pp_size")
"""What they have, or programs of other frameworks."""

_OF_DATA = re.compile(r"max_(seq_)?len(gth)?|max_seq_length|block_size|cutoff_len|packing|model_max_length")
_ONLY = {"data": _OF_DATA, "token": _OF_DATA, "optim": re.compile("name|_target_|class_path")}
_ONLY |= dict.fromkeys(("teacher", "reward", "ref", "critic"), re.compile("|".join(_NAMES)))
"""Beginnings of names of tables that hold much else -> what is read of them."""

_PLAIN = re.compile(r"(^|.*\.)(train|training|trainer|training_args|optimization|sft)\.(micro_|train_)?batch_size")
_LENGTH = re.compile(r".*\.(max_(seq_)?len(gth)?|max_seq_length|seq_len(gth)?|block_size|cutoff_len|context_length)")


def claims(source: Source) -> bool:
    """Whether a document has a table of the Trainer's arguments in it, or tables of a program with names of its own."""
    document = source.kind in {"yaml", "toml", "json"}
    return document and (any(name.endswith(f".{MARK}") for name in source.settings) or has_own_tables(source))


def has_own_tables(source: Source) -> bool:
    """Whether tables say a language model and its batch, and none has the Trainer's word for a batch.

    `model.name` and `training.batch_size` beside adapters or a length of sequences.
    """
    names = [name.lower() for name in source.settings]
    model = any(re.fullmatch(rf"(model|llm)\.({'|'.join(_NAMES)})", name) for name in names)
    language = any(_LENGTH.fullmatch(name) or re.match(r"(q?lora|peft)\.", name) for name in names)
    other = any(name.endswith(f".{MARK}") or ELSEWHERE.search(name) for name in names)
    return model and language and not other and any(map(_PLAIN.fullmatch, names))


def take(reading: Reading) -> bool:
    """Give settings of such tables the names that arguments have; what stands in others is left as it is.

    Returns:
        Whether there are such tables.

    Raises:
        InputError: two models are named.
    """
    if MARK in reading.settings or not any(claims(source) for source in reading.sources):
        return False
    training = {name.rpartition(".")[0] for name in reading.settings if _is_training(name)}
    _take_switches(reading)
    adapted = next((one for name, one in reading.settings.items() if _describes(name) and is_on(one.value)), None)
    for name, one in list(reading.settings.items()):
        table, _, last = name.rpartition(".")
        last = last.lower()
        if table in training:
            way = last in _WAYS and str(one.value).lower() in {"full", "lora", "qlora"}
            _give(reading, name, one, "finetuning_type" if way else _TRAINING.get(last, last))
            continue
        of = table.rpartition(".")[2].lower()
        known = next((known for words, known in _TABLES if words.search(of)), None)
        only = next((words for begins, words in _ONLY.items() if of.startswith(begins)), None)
        alone = last in _SWITCH and last not in (known or ())  # `quantization.enabled` beside nothing
        if known is _QUANTISED and last in _WAYS and str(one.value).lower() == "nf4":
            _give(reading, name, replace(one, value=True), "load_in_4bit")
        elif known is not None and not alone and (only is None or only.fullmatch(last)):
            _give(reading, name, one, known.get(last, last))
    _take_adapters(reading, adapted)
    reading.assume("a configuration of a program of one's own: its tables are read as arguments of the Trainer")
    return True


def _describes(name: str) -> bool:
    """Whether a setting stands in a table of adapters."""
    return bool(_ADAPTED.search(name.rpartition(".")[0].rpartition(".")[2].lower()))


def _take_adapters(reading: Reading, adapted: Setting | None) -> None:
    """Take whether there are adapters: where a table says what they are like, unless a switch or a word says it."""
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


def _take_switches(reading: Reading) -> None:
    """Take whether tables of quantised weights count: of one that is off nothing does."""
    for name, switch in list(reading.settings.items()):
        table, _, last = name.lower().rpartition(".")
        if last not in _SWITCH or not _QUANTISER.search(table.rpartition(".")[2]):
            continue
        inside = [one for one in reading.settings if one.lower().startswith(f"{table}.") and one != name]
        off = str(switch.value).lower() in OFF
        for one in inside if off else ():
            reading.means("no weights are quantised", one)
            del reading.settings[one]
        if off or inside:
            reading.say(reading.settings.pop(name), "no weights are quantised" if off else "as its table says")


def _is_training(name: str) -> bool:
    return name.endswith(f".{MARK}") or bool(_PLAIN.fullmatch(name.lower()))


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
