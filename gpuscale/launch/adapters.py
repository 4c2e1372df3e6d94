"""Fine-tuning in launch files: adapters (LoRA) and quantised frozen weights, by the names of PEFT and of tools around
it.

What a tool takes where nothing is said stands in `presets/tools/`. Adapters of matrices that a model fuses (`qkv_proj`
of Phi-3, Megatron's `linear_fc1`) are counted as one for each of the matrices, as models that do not fuse them have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from gpuscale.errors import InputError
from gpuscale.launch.settings import DTYPES, OFF, Reading, Setting, says
from gpuscale.launch.tools import started
from gpuscale.presets.files import known_table
from gpuscale.presets.models import load_model
from gpuscale.request import JobOptions, declared
from gpuscale.specs.tuning import MLP, SPELLINGS, TARGETS, read_targets

_KNOWN = known_table("scripts")["adapters"]


class Names(NamedTuple):
    """Settings that say what adapters are like, as some tool calls them."""

    rank: tuple[str, ...]
    targets: tuple[str, ...]
    dropout: tuple[str, ...]
    saved: tuple[str, ...] = ()  #: modules that are trained whole.
    parameters: tuple[str, ...] = ()  #: parameters of fused experts with adapters.

    @property
    def every(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.rank, *self.targets, *self.dropout, *self.saved, *self.parameters)


def names_below(table: str, rank: str = "r", dropout: str = "lora_dropout") -> Names:
    """Return the settings of a `LoraConfig`, or of a class like it, that stands in a table."""
    return Names((f"{table}{rank}",), (f"{table}target_modules",), (f"{table}{dropout}",), (f"{table}modules_to_save",),
                 (f"{table}target_parameters",))  # fmt: skip


CONFIG = names_below("peft_config.")
"""A `LoraConfig` of PEFT as a Python script or a table of a file has it."""

ARGUMENTS = Names(
    ("lora_r", "lora_rank", "r"), ("lora_target_modules", "lora_target", "target_modules", "lora_modules"),
    ("lora_dropout", "lora_dropout_p"), ("lora_modules_to_save", "additional_target", "modules_to_save"),
    ("lora_target_parameters", "target_parameters"),
)  # fmt: skip
"""Arguments of TRL, axolotl, LLaMA-Factory and ms-swift."""

ALL_LINEAR = ("lora_target_linear", "peft.match_all_linear", "policy.dtensor_cfg.lora_cfg.match_all_linear")
"""Switches for adapters of every linear layer."""

KINDS = tuple(_KNOWN["kinds"])
SWITCHES = tuple(_KNOWN["switches"])

IN_4_BITS = tuple(_KNOWN["in_4_bits"])
IN_8_BITS = tuple(_KNOWN["in_8_bits"])
BITS = ("quantization_bit", "quant_bits", "bits")
METHOD = ("quantization_method", "quant_method")
TYPE_4_BITS = tuple(_KNOWN["type_4_bits"])
NESTED = tuple(_KNOWN["nested"])

STORED = {("hqq", 4): "int4", ("gptq", 4): "int4", ("awq", 4): "int4", ("bnb", 8): "int8", ("hqq", 8): "int8",
          ("eetq", 8): "int8", ("gptq", 8): "int8", ("fp8", 8): "fp8", ("quanto", 8): "int8",
          ("quanto", 4): "int4", ("torchao", 4): "int4"}  # fmt: skip
"""Method and bits of a quantised checkpoint or of quantising it -> how gpuscale has it; bitsandbytes' 4 bits apart."""

QUANTISED = re.compile(r"(gptq|awq)(?:.*?int(\d))?|(bnb[-_]4bit)|(?<![a-z0-9])(fp8)(?![a-z0-9])", re.IGNORECASE)
"""What the name of a checkpoint says of how it is quantised."""

PARTS = {
    "embeddings": ("embed_tokens", re.compile(r"embed_?tokens?|wte|((word|tok|token|input)_)?embed(ding)?s?|embed_in")),
    "head": ("lm_head", re.compile(r"(lm_)?head|embed_out|output(_layer)?")),
    "norms": ("", re.compile(r".*norm\d?|ln_\w+")),
}
"""Part of a model, of `TRAINED` -> its module in models of Hugging Face, where all call it alike, and all its names."""

MODULES = {SPELLINGS[name]: name for name in reversed(SPELLINGS) if name.endswith(("_proj", "_mqa"))}
"""Matrix -> the module of a Hugging Face model that it is."""

_WHOLE = re.compile(
    r"(?:fully?_)?(?:fine_?)?(?:tune|train|unfreeze)_(?!output$|.*norm)(\w+)|(\w+)_(?:trainable|unfrozen)"
)
"""Switches by which programs of one's own train a part of the model whole: `finetune_lm_head`, `train_embeddings`."""

ROUTERS = re.compile(r"gate|router|wg|(shared_expert_)?gate\.weight|shared_expert_gate")
"""Modules of Hugging Face models that are small beside any adapter: routers."""


def asked(reading: Reading, names: Names = ARGUMENTS) -> tuple[str, ...]:
    """Return the settings by which adapters are trained; none where the whole model is.

    Raises:
        InputError: some other part of the model is trained.
    """
    against = _against_given(reading, names)
    if against is not None:
        reading.means("replaced by the tune that is given", *against)
        return () if reading.given["tune"] == "full" else against
    kind = reading.first(*KINDS)
    if kind:
        return (kind,) if _of_kind(reading, kind) else ()
    for name in SWITCHES:
        found = reading.needed(name)
        if found is not None and says(found.value) and str(found.value).lower() not in OFF:
            return (name,)
        if found is not None and name in IN_4_BITS:  # off: no weight is quantised, whatever is trained
            reading.means("no weights are quantised", name)
        elif found is not None:
            reading.means("all of the model is trained", name)
            return ()
    trl = reading.tool.name == "trl" and any(started(source, reading.tool) for source in reading.sources)
    if trl or reading.tool.name == "axolotl":  # trl trainer/utils.py, get_peft_config
        return ()
    of_rank = reading.stated(*names.rank, *CONFIG.rank)
    return (of_rank.name,) if of_rank is not None and reading.number_of(of_rank) > 0 else ()


def _of_kind(reading: Reading, name: str) -> bool:
    """Whether adapters are trained, by a setting that names the kind of tuning.

    Raises:
        InputError: it is neither adapters nor the whole model, and no tune is given.
    """
    text = str(getattr(reading.needed(name), "value", "")).strip().lower()
    if text in {"full", "lora", "qlora", "longlora"}:
        reading.means(f"{'all of the model is' if text == 'full' else 'adapters are'} trained", name)
        return text != "full"
    if not reading.given.get("tune"):
        message = f"{text[:40]} is not modelled: only a part of the model is trained"
        hint = "no option states it: `tune=lora` or full predicts adapters, or all of the model, instead"
        reading.refuse(reading.get(name), message, hint)
    reading.means("replaced by the tune that is given", name)
    return True


def _against_given(reading: Reading, names: Names) -> tuple[str, ...] | None:
    """Return the settings that the tune that is given replaces; None where they agree with it, or none is given."""
    tune = reading.given.get("tune")
    if tune == "full":
        return (*KINDS, *SWITCHES, *names.every, *CONFIG.every, *IN_4_BITS, *IN_8_BITS, *BITS)
    return (_off(reading, names) or _quantising(reading) or None) if tune else None


def _off(reading: Reading, names: Names) -> tuple[str, ...]:
    """Return settings that say that there are no adapters: switches that are off, or else a rank of 0."""
    switches = [name for name in SWITCHES if name not in IN_4_BITS]
    stated = {name: str(one.value).lower() for name in (*switches, *names.rank) if (one := reading.settings.get(name))}
    return tuple(name for name, value in stated.items() if value in (OFF if name in switches else ("0",)))


def _quantising(reading: Reading) -> tuple[str, ...]:
    """Return the switches that quantise weights where nothing else says whether there are adapters."""
    silent = not any(name in reading.settings for name in (*KINDS, *SWITCHES, *ARGUMENTS.rank, *CONFIG.rank))
    return tuple(name for name in (*IN_4_BITS, *IN_8_BITS) if silent and _on(reading, name))


def read(reading: Reading, names: Names = ARGUMENTS) -> bool:
    """Read what is trained; whether it is adapters. The model must be known.

    Raises:
        InputError: another part of the model is trained, or something of adapters is not known here.
    """
    of = asked(reading, names)
    base, by = quantised(reading, *of)
    if not of:
        if base is not None and reading.given.get("tune") != "full":
            _refuse_alone(reading, base, by, [reading.settings[name] for name in _off(reading, names)])
        return False
    if any(name.startswith("peft_config.") for name in reading.settings):
        names = CONFIG
    if base is None:
        base, by = _plain(reading)
    take(reading, names, *of, base=base, by=by)
    return True


def _refuse_alone(reading: Reading, base: str, by: Iterable[str], off: Iterable[Setting]) -> NoReturn:
    """Refuse quantised weights without adapters, with the settings that say that there are none.

    Raises:
        LackingError: always.
    """
    found = next(one for name in by if (one := reading.get(name)))
    none = ", ".join(f"{one.name} {one.value} ({one.place})" for one in off)
    message = f"frozen weights in {base} are those beside adapters{', and there are none by ' if none else ''}{none}"
    hint = "add `tune=qlora`, or `tune=full` where no weights are quantised"
    reading.refuse(found, message, hint, settles="tune", likely=("full", "qlora") if none else ("qlora", "full"))


def take(reading: Reading, names: Names, *of: str, base: str | None = None, by: Iterable[str] = ()) -> None:
    """Set the options of adapters.

    Args:
        of: settings that ask for them.
        base: how frozen matrices are stored; None: as the framework has them.
        by: settings that say so.

    Raises:
        InputError: nobody says of which rank or where, or a module is not known here.
    """
    reading.option("tune", "qlora" if base in {"nf4", "nf4-single", "int4"} else "lora", *of)
    if base is not None and "tune" in reading.given and "base_dtype" not in reading.given:
        reading.means("replaced by the tune that is given", *by)
    elif base is not None:
        reading.option("base_dtype", base, *by)
    rank = reading.integer(*names.rank)
    rank = None if reading.given.get("tune") and rank == 0 else rank
    if rank is None and not reading.given.get("lora_rank"):
        reading.refuse(reading.get(*of), "no file states the rank of adapters", settles="lora_rank")
    if rank is not None:
        low, high = declared(JobOptions)["lora_rank"].limits
        if not low <= rank <= high:
            reading.refuse(reading.get(*names.rank), f"{rank} is out of range", f"give {low:g} to {high:g}")
        reading.option("lora_rank", rank, *names.rank)
    _read_targets(reading, names)
    if reading.get(*names.dropout) is not None:
        reading.option("lora_dropout", (reading.number(*names.dropout) or 0) > 0, *names.dropout)
    _read_saved(reading, names)


def quantised(reading: Reading, *of: str) -> tuple[str | None, tuple[str, ...]]:
    """Return how frozen matrices are quantised, None where they are not, and the settings that say so."""
    kind = str(getattr(reading.get(*of), "value", "")).lower() if of else ""
    bits, method = reading.integer(*BITS), (reading.text(*METHOD) or "bnb").lower()
    method = "bnb" if method == "bitsandbytes" else method
    by: tuple[str, ...] = (*BITS, *METHOD) if reading.get(*BITS) else ()
    if kind == "qlora" or any(_on(reading, name) for name in IN_4_BITS):
        bits, method, by = 4, "bnb", IN_4_BITS if reading.get(*IN_4_BITS) else of
    elif any(_on(reading, name) for name in IN_8_BITS):
        bits, method, by = 8, "bnb", IN_8_BITS
    elif _on(reading, "gptq"):
        bits, method, by = 4, "gptq", ("gptq",)
    elif bits is None and of and not reading.given.get("model"):
        bits, method, by = _of_checkpoint(reading)
    if bits is None or bits >= 16:
        return None, ()
    if (method, bits) == ("bnb", 4):
        if (reading.text(*TYPE_4_BITS) or "nf4").lower() == "fp4":
            reading.assume("weights in fp4 take as much as in nf4", *TYPE_4_BITS)
        return ("nf4" if reading.flag(*NESTED) else "nf4-single"), (*by, *TYPE_4_BITS, *NESTED)
    if (method, bits) not in STORED and reading.given.get("base_dtype"):
        return str(reading.given["base_dtype"]), by
    if (method, bits) not in STORED:
        reading.refuse(reading.get(*by), f"weights in {bits} bits by {method[:40]} are not modelled",
                       settles="base_dtype")  # fmt: skip
    return STORED[method, bits], by


def _on(reading: Reading, name: str) -> bool:
    return reading.get(name) is not None and reading.flag(name)


def _of_checkpoint(reading: Reading) -> tuple[int | None, str, tuple[str, ...]]:
    """Return bits and method that a checkpoint's name speaks of."""
    found = reading.stated_by("model")
    said = QUANTISED.search(str(found.value)) if found is not None else None
    if found is None or said is None:
        return None, "bnb", ()
    if said[3]:
        reading.settings.setdefault(NESTED[0], Setting(NESTED[0], True, found.file, found.line, found.text))
        return 4, "bnb", (found.name,)
    return (8, "fp8", (found.name,)) if said[4] else (int(said[2] or 4), said[1].lower(), (found.name,))


WITHOUT_MAGNITUDES = "magnitudes of columns, which DoRA trains beside LoRA, and their norms are left out"
"""What is predicted of DoRA."""

LOADED = ("torch_dtype", "dtype", "model.torch_dtype", "model.dtype")
"""Settings that say in what type weights are loaded."""


def _plain(reading: Reading) -> tuple[str | None, tuple[str, ...]]:
    """Return the type of frozen weights that are not quantised, if anything says it."""
    if reading.tool.name in IN_TYPE_OF_PRODUCTS:
        return None, ()
    stated = next((one for name in LOADED if (one := reading.settings.get(name)) is not None), None)
    found = stated or reading.get(*LOADED)
    word = str(found.value).strip().lower().removeprefix("torch.") if found is not None else ""
    kind = DTYPES.get(word, word)
    return (kind, LOADED) if kind in {"fp32", "bf16", "fp16"} else (None, ())


IN_TYPE_OF_PRODUCTS = ("axolotl", "ms-swift", "llama-factory")
"""Tools that load weights in the type that products have (axolotl utils/config/__init__.py:198; ms-swift
arguments/base_args/model_args.py; LLaMA-Factory hparams/parser.py, compute_dtype)."""


def _read_targets(reading: Reading, names: Names) -> None:
    """Set which matrices have adapters, those of experts among them."""
    if reading.given.get("lora_targets"):
        reading.means("replaced by the matrices that are given", *names.targets, *ALL_LINEAR)
        return
    where, experts = (*names.targets, *names.parameters), bool(reading.words(*names.parameters))
    found: set[str] = set()
    if any(_on(reading, name) for name in ALL_LINEAR):
        found, where = set(TARGETS["all"]), (*ALL_LINEAR, *where)
    for word in (*reading.words(*names.targets), *reading.words(*names.parameters)):
        found |= _matrices(reading, word, names)
    named = found & MLP and (found != TARGETS["all"] or reading.tool.name not in FINDS_LINEAR)
    if not found and not reading.given.get("lora_targets"):
        reading.refuse(reading.get(*names.rank, *names.targets), "no file states which matrices have adapters",
                       settles="lora_targets")  # fmt: skip
    reading.option("lora_targets", "all" if found == TARGETS["all"] else ",".join(sorted(found)), *where)
    model = reading.given.get("model") or reading.options.get("model")
    if not model:
        raise InputError("no file states which model is trained", field="model", hint="add `model=NAME`")
    if load_model(str(model)).is_moe and found & MLP:
        on = bool(experts or named)
        reading.option("lora_experts", on, *where)
        why = "named modules are theirs too" if on else "from transformers 5 on they are no linear layers"
        reading.assume(f"experts have {'' if on else 'no '}adapters: {why}", *where)


FINDS_LINEAR = ("axolotl", "llama-factory", "ms-swift")
"""Tools that look for linear layers themselves; `all-linear` of PEFT from 0.21 on has fused experts too (peft
utils/transformers_weight_conversion.py)."""


def _matrices(reading: Reading, word: str, names: Names) -> set[str]:
    """Return the matrices that a name of modules, a path or a regular expression of them means."""
    found: set[str] = set()
    for name in _modules(word):
        part = _part(name)
        if name in {"experts", "mlp", "self_attn"} and "." in word:
            continue
        if part is not None and reading.tool.name == "unsloth":
            before = str(reading.options.get("train", "")).split(",")
            reading.option("train", ",".join(filter(None, (*before, part))), *names.targets)
        elif part is not None or ROUTERS.fullmatch(name):
            reading.assume(f"without adapters of {name}, which take little", *names.targets)
        else:
            try:
                found |= read_targets(name)
            except InputError:
                reading.refuse(reading.get(*names.targets, *names.parameters),
                               f"adapters of {name[:60]!r} are not known here", settles="lora_targets")  # fmt: skip
    return found


def _part(name: str) -> str | None:
    """Return the part of a model that a module is, of `TRAINED`; None where it is none."""
    return next((part for part, (_, words) in PARTS.items() if words.fullmatch(name)), None)


PLAIN_MODULE = re.compile(r"[a-z]\w*_proj\w*|\bw[123]\b|linear_\w+|query_key_value|\bdense\w*|wqkv|\bc_\w+|\bfc[12]\b")
"""A module's name inside a regular expression."""


def _modules(word: str) -> list[str]:
    """Return the last parts of names of modules in a path or a regular expression: `.*(q|v)_proj` has two."""
    word = word[:400].lower()
    if word in {"*_proj", "*.proj", "*"}:
        return ["all"]
    if not re.search(r"[\\|*+?^$()\[\]]", word):
        return [word.rpartition(".")[2]] if word else []
    whole = [f"{part}{end}" for parts, end in re.findall(r"\(([\w|]+)\)(_proj)", word) for part in parts.split("|")]
    rest = re.sub(r"\([\w|]+\)_proj", " ", word)
    plain = re.findall(PLAIN_MODULE, rest)
    return [*whole, *plain] or [re.sub(r"\W+", "", word.rpartition(".")[2]) or word]


def _read_saved(reading: Reading, names: Names) -> None:
    """Set what is trained whole beside adapters."""
    parts, switches = [], _switched_whole(reading)
    for word in reading.words(*names.saved):
        name = word.lower().rpartition(".")[2]
        part = _part(name)
        if part is None:
            reading.refuse(reading.get(*names.saved), f"{name[:60]!r} trained whole is not modelled", settles="train")
        parts.append(part)
    parts += [part for found in switches.values() for part in found]
    if parts:
        reading.option("train", ",".join(dict.fromkeys(parts)), *names.saved, *switches)


def _switched_whole(reading: Reading) -> dict[str, list[str]]:
    """Return switches that train parts of the model whole, and the parts of each."""
    found: dict[str, list[str]] = {}
    for name, one in reading.settings.items():
        said = _WHOLE.fullmatch(name.lower().rpartition(".")[2])
        parts = [_part(word) for word in (said[1] or said[2]).split("_and_")] if said else []
        if parts and all(parts) and str(one.value).lower() in {"true", "yes", "1"}:
            found[name] = [part for part in parts if part]
    return found
