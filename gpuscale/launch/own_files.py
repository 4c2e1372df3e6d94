"""Configurations of programs of one's own that hand a table of them to the Trainer: Hydra's, OmegaConf's and the like.

`training.per_device_train_batch_size` beside `model.name_or_path` and `lora.r`: what such tables are called differs,
what stands in them are arguments of the Trainer, of `from_pretrained` and of PEFT's `LoraConfig`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpuscale.launch.settings import OFF, Reading, Setting, Source

MARK = "per_device_train_batch_size"
"""Argument of the Trainer by which a table of it is known."""

_ADAPTERS = {
    "r": "lora_r", "rank": "lora_r", "lora_rank": "lora_r", "dim": "lora_r", "dropout": "lora_dropout",
    "targets": "lora_target_modules", "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    **dict.fromkeys(("enabled", "enable", "use", "use_lora", "use_peft"), "use_peft"),
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
_TABLES: tuple[tuple[re.Pattern[str], dict[str, str]], ...] = (
    (re.compile(r"qlora"), _ADAPTERS | dict.fromkeys(("enabled", "enable", "use"), "load_in_4bit")),
    (re.compile(r"lora|peft|adapter"), _ADAPTERS),
    (re.compile(r"quant|bnb|bitsandbytes"), _QUANTISED),
    (re.compile(r"^(model|llm|base_model|policy|model_args|model_config|model_cfg)$"), _MODEL),
    (re.compile(r"^(data|dataset|tokenizer|data_args|tokenization|sft|sft_config|script_args)$"), {}),
)
"""Words of a table's name -> what its keys are as arguments where they are called otherwise."""

ELSEWHERE = re.compile(
    r"image|img|pixel|video|audio|speech|resolution|num_class|diffusion|unet|\bvae|arch$|tensorflow|dit_|gan|zero_stage|pp_size"
)
"""What programs of other models have in their options, and those of other frameworks."""

_OF_DATA = re.compile(r"max_(seq_)?len(gth)?|max_seq_length|block_size|cutoff_len|packing|model_max_length")


_PLAIN = re.compile(r"(^|.*\.)(train|training|trainer|training_args|optimization|sft)\.(micro_|train_)?batch_size")
_LENGTH = re.compile(r".*\.(max_(seq_)?len(gth)?|max_seq_length|seq_len(gth)?|block_size|cutoff_len|context_length)")


def claims(source: Source) -> bool:
    """Whether a document has a table of the Trainer's arguments in it, or tables of a program with names of its own."""
    document = source.kind in {"yaml", "toml", "json"}
    return document and (any(name.endswith(f".{MARK}") for name in source.settings) or plain(source))


def plain(source: Source) -> bool:
    """Whether tables say a language model and its batch, and none has the Trainer's word for a batch.

    `model.name` and `training.batch_size` beside adapters or a length of sequences.
    """
    names = [name.lower() for name in source.settings]
    model = any(re.fullmatch(rf"(model|llm)\.({'|'.join(_NAMES)})", name) for name in names)
    language = any(_LENGTH.fullmatch(name) or re.match(r"(q?lora|peft)\.", name) for name in names)
    other = any(name.endswith(f".{MARK}") or ELSEWHERE.search(name) for name in names)
    return model and language and not other and any(map(_PLAIN.fullmatch, names))


def take(reading: Reading) -> None:
    """Give settings of such tables the names that arguments have; what stands in others is left as it is."""
    if MARK in reading.settings or not any(claims(source) for source in reading.sources):
        return
    training = {name.rpartition(".")[0] for name in reading.settings if _is_training(name)}
    for name, one in list(reading.settings.items()):
        table, _, last = name.rpartition(".")
        if table in training:
            _give(reading, name, one, _TRAINING.get(last, last))
            continue
        of = table.rpartition(".")[2].lower()
        known = next((known for words, known in _TABLES if words.search(of)), None)
        argument = known is not None and (known or not of.startswith(("data", "token")) or _OF_DATA.fullmatch(last))
        if known is not None and argument:
            _give(reading, name, one, known.get(last, last))
    rank, switch = reading.settings.get("lora_r"), reading.settings.get("use_peft")
    if rank is not None and switch is None and "finetuning_type" not in reading.settings:
        reading.settings["use_peft"] = replace(rank, name="use_peft", value=True)
    elif switch is not None and str(switch.value).lower() in OFF:
        for name in [one for one in reading.settings if one.startswith("lora_")]:
            reading.means("no adapters are asked for", name)
            del reading.settings[name]
    reading.assume("a configuration of a program of one's own: its tables are read as arguments of the Trainer")


def _is_training(name: str) -> bool:
    return name.endswith(f".{MARK}") or bool(_PLAIN.fullmatch(name.lower()))


def _give(reading: Reading, name: str, one: Setting, argument: str) -> None:
    """Call a setting by the argument that it is, unless there is one."""
    if argument not in reading.settings:
        del reading.settings[name]
        reading.settings[argument] = replace(one, name=argument)
