"""Trainings whose program no framework here claims: all that decides is asked for, with what names nearly say.

Nothing is taken from such names: what a program that is not known makes of them is not known either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gpuscale.errors import InputError
from gpuscale.files import printable, read_text
from gpuscale.launch import launchers, own_programs
from gpuscale.launch.huggingface_models import known_model
from gpuscale.launch.own_files import OTHER_MODELS
from gpuscale.launch.python_loops import LANGUAGE
from gpuscale.launch.settings import (
    SAYS_LITTLE,
    UNSET,
    LackingError,
    Reading,
    Setting,
    Source,
    Suggestion,
    digits,
    precision_word,
    says,
)
from gpuscale.launch.starters import FILE_TOOLS, LAUNCHERS, NOTHING, STARTERS
from gpuscale.launch.traced import MAX_LINES, MAX_LOG_BYTES
from gpuscale.launch.unread import concern, is_on, speaks_of
from gpuscale.launch.writing import Target
from gpuscale.presets.files import known_table
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import COMMON, STRANGER, load_tool, plain, words
from gpuscale.request import JobOptions, declared
from gpuscale.specs.tuning import read_targets

_KNOWN = known_table("strangers")
_NAMES = {option: re.compile(pattern) for option, pattern in _KNOWN["names"].items()}
_OTHER = {does: re.compile(pattern, re.IGNORECASE) for does, pattern in _KNOWN["other"].items()}
_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp")
"""Asked for, as what `spoken` lists, where something speaks of them."""


# --- what trains


def evaluates(source: Source) -> bool:
    """Whether a program does something beside a training by its name, or is only told to predict."""
    words = [re.sub(r"(^|/)tests?/", "/", word) for word in source.program if not _DOCUMENT.search(word)]
    only = {"do_predict", "do_eval"} & source.settings.keys() and "do_train" not in source.settings
    return bool(only or next(iter(_OTHER.values())).search(" ".join(words)[:2000]))


def does_other(source: Source) -> str:
    """Return what a program does by its words that is no training of a language model; empty where nothing says so."""
    first, *others, of_images = _OTHER
    if evaluates(source):
        return first
    models = [str(one.value) for name, one in source.settings.items() if option_of(name) == "model"]
    text = " ".join([*source.program, *models])[:2000]
    found = next((does for does in (*others, of_images) if _OTHER[does].search(text)), "")
    return found or of_images * any(OTHER_MODELS.search(name) for name in source.settings)


def may_train(source: Source) -> bool:
    """Whether a command that no framework claims may train a language model, by its words or what it is told."""
    if source.kind != "command" or not source.program or sets_up(source) or does_other(source):
        return False
    launched = source.program[0] in LAUNCHERS or (source.program[0] in STARTERS and not source.settings)
    told = {option for name in source.settings if (option := option_of(name))}
    named = (str(one.value) for one in source.settings.values() if own_programs.CONFIGURING.search(str(one.value)))
    text = " ".join([*source.program, *source.settings, *named])[:2000]
    return launched or bool(own_programs.TRAINING.search(text)) or len(told) > 1


_DOCUMENT = re.compile(r"\.(ya?ml|json|toml)$")


def hands_over(source: Source, path: str) -> bool:
    """Whether a command that may do anything trains, by where it stands or the variables that are set before it."""
    near = {option for option in nearly_said([source]) if option in _NAMES}
    told = near & {"gbs", "batch", "micro_batch_size"} and len(near) > 2
    return not sets_up(source) and (bool(told) or bool(own_programs.TRAINING.search(path)))


def sets_up(source: Source) -> bool:
    """Whether a command sets up a machine, prints or moves files."""
    name = PurePosixPath(source.program[0]).name if source.program else ""
    return name in {"", *FILE_TOOLS, *NOTHING} or bool(
        {name, " ".join([name, *source.program[1:2]])} & {*_KNOWN["setup"]}
    )


def trains(sources: Sequence[Source]) -> bool:
    """Whether what no framework claims is a training of a language model, as far as it says anything."""
    last = sources[-1]
    if last.kind == "program":
        return not does_other(last)
    if last.kind == "command":
        return not sets_up(last) and not does_other(last) and (may_train(last) or last.passed)
    told = {option for name, one in last.settings.items() if says(one.value) and (option := option_of(name))}
    batch = told & {"gbs", "batch", "micro_batch_size", "accumulation"}
    learns = any(re.search(r"(^|\.|_)(lr|learning_rate|epochs|max_steps|train_iters)$", name) for name in last.settings)
    says_so = (len(told) > 2 and batch) or (len(told) > 3 and learns)
    return last.kind in {"yaml", "toml"} and bool(says_so) and not any(map(does_other, sources))


def in_python(text: str) -> bool:
    """Whether a Python file that configures nothing which is known trains a language model, by what it calls."""
    of_language = LANGUAGE.search(text) or re.search(r"\bllm\b|language[ _]model|tokenizer", text.lower())
    return bool(_TRAINS.search(text) and of_language and not _NOT_OF_LANGUAGE.search(text))


_TRAINS = re.compile(
    r"\.backward\(|optimizer\.step\(|\.(train|fit|pretrain|finetune|learn)\(|value_and_grad|\b(pre_?|fine_?)?(train|tune)\w*\("
)
_NOT_OF_LANGUAGE = re.compile(
    r"import tensorflow|from tensorflow|torchvision|diffusers|import gym|ForSequenceClass|ForMasked|ForImage|UNet"
)


# --- what names nearly say


class Near(NamedTuple):
    """A value that a setting nearly says, and the setting."""

    value: str  #: empty where it is open, or of no form that is known.
    of: Setting

    @property
    def suggested(self) -> Suggestion:
        """The value with what says it."""
        where = f"{PurePosixPath(self.of.file).name}:{self.of.line}"
        little = self.of.last in SAYS_LITTLE and self.of.last != self.of.name
        text = f"{self.of.name}: {self.of.value}" if little else self.of.text
        return Suggestion(self.value, printable(f"{where} says {text[:60]}"))


def option_of(name: str) -> str:
    """Return the option that a name nearly says; empty where it says none."""
    *tables, last = plain(name).split(".")
    if any(words().closed.search(table) for table in tables):
        return ""
    whole = "_".join([*tables, last])
    found = next((option for option, pattern in _NAMES.items() if pattern.search(whole)), None)
    parts = [last, *tables[::-1]] if last in SAYS_LITTLE else [last]  # `fp16.enabled`, `zero_optimization.stage`
    return found if found is not None else next(filter(None, map(speaks_of, parts)), "")


def nearest(error: LackingError, sources: Sequence[Source]) -> Suggestion | None:
    """Return what names nearly say for an option that is missing, if it is one whose usual value says less."""
    said = error.variable or error.answer or (error.likely and (error.place or error.name == "seq"))
    if said or error.name not in _NEARLY or not sources:
        return None
    near = (one for one in nearly_said(sources).get(error.name, ()) if one.value and "offload" not in str(one.of.value))
    return next((one.suggested for one in near), None)


_NEARLY = ("seq", "precision", "zero", "recompute", "optimizer", "micro_batch_size", "gbs")


def with_programs(sources: Sequence[Source], files: Sequence[Path]) -> tuple[Source, ...]:
    """Return sources after what the lines of the Python files among a job's files say."""
    programs = [path for path in files if path.suffix == ".py"]
    texts = [read_text(path, MAX_LOG_BYTES, "a launch file") for path in programs]
    return (*(_said_in(text, str(path)) for text, path in zip(texts, programs, strict=True)), *sources)


def _said_in(text: str, file: str) -> Source:
    """Return what lines of a Python file say, in names and defaults of arguments, as a source that states nothing."""
    settings: dict[str, Setting] = {}
    for number, line in enumerate(text.split("\n")[:MAX_LINES], start=1):
        found = _SAID.match(line[:300])
        if found:
            name, value = (found[1] or found[3]).replace("-", "_"), found[2] or found[4]
            settings.setdefault(name, Setting(name, value, file, number, line.strip()[:100]))
    return Source(file, "program", settings, (PurePosixPath(file).name,))


_SAID = re.compile(
    r"\s*(?:\w+\.)*(\w+)(?:\s*:\s*\w+)?\s*=\s*[\"']?([\w./-]+)[\"']?\s*[,)]*\s*(?:#.*)?$"
    r"|.{0,40}\([\"']--?([\w-]+)[\"'].*\bdefault\s*=\s*[\"']?([\w./-]+)"
)
"""A line of Python that gives a name a plain value, or an argument its default."""


def nearly_said(sources: Sequence[Source]) -> dict[str, list[Near]]:
    """Return what options, variables and documents nearly say: option -> values, those of the command first."""
    found: dict[str, list[Near]] = {}
    last = sources[-1]
    documents = (one.settings for one in sources[-2::-1])
    for group in (last.settings, last.launcher, last.environment, last.variables, *documents):
        for name, one in group.items():
            option = option_of(name) if says(one.value) and (group is not last.launcher or _named(one)) else ""
            if option not in _NAMES and not concern(load_tool(COMMON), name, one.value):
                option = "zero" if _named(one) else ""
            if not option:
                continue
            value = "" if UNSET.search(str(one.value)) else _value(option, replace(one, name=name.lower()))
            if value is not None and value not in {other.value for other in found.get(option, ())}:
                found.setdefault(option, []).append(Near(value, one))
    return found


def _named(one: Setting) -> bool:
    """Whether a value by itself, as the name of a file or a plugin, says how a job is sharded."""
    return bool(re.search(r"(^|[/_-])((zero|ds_?z|z)_?-?[0-3]|fsdp2?|ddp)([._-]|$)", str(one.value).lower()))


def _value(option: str, one: Setting) -> str | None:
    """Return the value of an option that a setting nearly says: empty where it only speaks of it; None of nothing."""
    text = str(one.value).strip().lower()
    both, thousands = f"{one.name} {text}", re.fullmatch(r"(\d{1,4})k", text)
    if option == "offload":
        return (
            next((part for part in ("optimizer", "parameters", "activations") if part[:5] in both), "")
            if is_on(text)
            else None
        )
    if option in _NAMES and option not in {"model", "lora_targets"}:
        number = digits(text.replace("_", ""))
        return str(1024 * int(thousands[1])) if thousands and option == "seq" else str(number) if number else None
    if option == "zero":
        stage = re.search(r"(?:zero|stage|ds_?z|[/_-]z)\D{0,8}([0-3])(?!\d)", both)
        worded = (str(stage) for word, stage in _KNOWN["shards"].items() if re.search(word, both))
        return stage[1] if stage else next(worded, "")
    if option == "precision":
        return precision_word(one) or ""
    if option == "recompute":
        return "" if "selective" in text else "full"
    if option == "tune":
        return "qlora" if "qlora" in both else "lora" if re.search("lora|peft|adapter", both) else ""
    if option == "optimizer":
        known = known_table("words")[option].items()
        return next((ours for ours, theirs in known if text.replace("-", "_") in theirs), "")
    if option == "lora_targets":  # also as a list: ['q_proj', 'v_proj']
        names = ",".join(re.findall(r"[\w.-]+", text))
        with suppress(InputError):
            return ",".join(sorted(read_targets(names)))
        return ""
    return text if option == "model" or text in declared(JobOptions)[option].option.choices else ""


def content(sources: Sequence[Source]) -> tuple[object, ...]:
    """Return what tells a job from others: its program, its GPUs, and what its names nearly say."""
    said = nearly_said([*sources[:-1], replace(sources[-1], variables={})])
    found = _launched(sources)
    decides = (f"{option} {one.value}" for option, near in sorted(said.items()) for one in near if option not in _NOTED)
    return sources[-1].program, found and found.gpus, tuple(decides)


def _launched(sources: Sequence[Source]) -> launchers.Launched | None:
    """Return the GPUs on which a launcher that is known starts processes."""
    with suppress(InputError):
        return launchers.counted(Reading([replace(one, settings={}, variables={}) for one in sources]))
    return None


_NOTED = ("", "attention", "compile", "loss", "cuda_graphs")
"""What settings may speak of that is not asked for."""


# --- what is asked for


def read(reading: Reading) -> None:
    """Ask for all that decides, with what names nearly say.

    Raises:
        LackingError: something of it is not given beside the files.
    """
    reading.run_by(load_tool(STRANGER))
    said = nearly_said(reading.sources)
    if said.keys() & {"lora_rank", "lora_targets"}:
        said.setdefault("tune", [])
    _need(reading, "model", said, _model(reading, said))
    for degree in _DEGREES:
        if any(one.value != "1" for one in said.get(degree, ())):
            _need(reading, degree, said)
    reading.layout |= {name: reading.given[name] for name in (*_DEGREES, "micro_batch_size") if name in reading.given}
    _take_gpus(reading, said)
    _need(reading, "seq", said)
    plain = next((one for one in said.get("batch", ()) if one.value), None)
    _need(reading, "micro_batch_size", said, plain.suggested if plain else Suggestion("1", "usual"))
    _need(reading, "gbs", said, _batch(reading, said))
    _need(reading, "precision", said, Suggestion("bf16", "usual"))
    split = any(reading.given.get(degree, 1) > 1 for degree in _DEGREES)
    if int(reading.given.get("gpus") or reading.options["gpus"]) > 1:
        usual = ("1", "usual of split models") if split else ("0", "nothing speaks of shards")
        _need(reading, "zero", said, Suggestion(*usual))
    adapted = reading.given.get("tune") in {"lora", "qlora"}
    for option in _KNOWN["spoken"]:
        plain_adam = option == "optimizer" and {one.value for one in said.get(option, ())} <= {"adam", "adamw"}
        if adapted if option.startswith("lora") else option in said and not plain_adam:
            _need(reading, option, said, _USUAL.get(option))
    noted = [one.of.name for option in _NOTED for one in said.get(option, ())]
    if noted:
        names = printable(", ".join(noted[:12]))
        reading.assume(f"not read, though by their names they may change memory or time: {names}")


_USUAL = {"tune": Suggestion("lora", "its names speak of it"), "lora_rank": Suggestion("8", "PEFT's own"),
          "recompute": Suggestion("full", "its names speak of it")}  # fmt: skip


def _need(reading: Reading, option: str, said: Mapping[str, Sequence[Near]], usual: Suggestion | None = None) -> None:
    """Ask for an option, with what nearly says it, else with what is usual, unless it is given."""
    if reading.given.get(option) is not None:
        return
    near = [one for one in said.get(option, ()) if one.value and option != "model"]
    called = _KNOWN["called"].get(option) or _KNOWN["spoken"].get(option) or option.upper()
    message = launchers.MISSING.get(option, f"no file states {called}")
    error = LackingError(message, option, likely=[one.value for one in near[:4]])
    error.suggested = near[0].suggested if near else usual
    raise error


def _model(reading: Reading, said: Mapping[str, Sequence[Near]]) -> Suggestion | None:
    """Return the model that settings nearly name: by a name, a name and a size, or by its own sizes."""
    near = [one for one in said.get("model", ()) if one.value]
    sizes = [one.value for one in near if re.fullmatch(r"\d+(\.\d+)?[bm]", one.value)]
    pairs = [f"{one.value}{joint}{size}" for one, size, joint in product(near, sizes, ("-", ""))]
    for text in [*pairs, *(str(one.of.value) for one in near)]:
        known = known_model(text)[0]
        if known is not None:
            said_by = next(one for one in near if one.value in text.lower())
            return said_by._replace(value=load_model(known).name).suggested
    variables = {name.lower(): one for name, one in reading.sources[-1].variables.items()}
    own = [*reading.sources[:-1], replace(reading.sources[-1], settings={**variables, **reading.sources[-1].settings})]
    beside = Reading(own)
    try:
        shaped = own_programs.read_shape(beside)
    except InputError as error:
        likely = getattr(error, "likely", ())
        return Suggestion(likely[0], "by its sizes, and what is likely of the rest") if likely else None
    return Suggestion(str(beside.options["model"]), "by its sizes") if shaped else None


def _take_gpus(reading: Reading, said: Mapping[str, Sequence[Near]]) -> None:
    """Take the GPUs that a launcher which is known starts processes on, else ask for them."""
    if reading.given.get("gpus"):
        return
    found = _launched(reading.sources)
    if found and not found.beside:
        reading.options["gpus"] = found.gpus
        for one in found.stated:
            reading.say(one, f"gpus = {found.gpus}")
        reading.state("gpus", found.stated)
        return
    whole, each, nodes = (
        next((one for one in said.get(name, ()) if one.value), None) for name in ("gpus", "each", "nodes")
    )
    if whole is None and each is not None:
        total = prod(int(one.value) for one in (each, nodes) if one is not None)
        why = " and ".join(one.suggested.why for one in (each, nodes) if one is not None)
        _need(reading, "gpus", {}, Suggestion(str(total), why))
    _need(reading, "gpus", said)


def _batch(reading: Reading, said: Mapping[str, Sequence[Near]]) -> Suggestion | None:
    """Return the batch of all GPUs by microbatches and accumulation, where that is nearly said."""
    steps, plain = (next((one for one in said.get(name, ()) if one.value), None) for name in ("accumulation", "batch"))
    gpus = int(reading.given.get("gpus") or reading.options["gpus"])
    replicas = gpus // launchers.gpus_of_replica(reading.given)
    if not (steps or plain) or not replicas:
        return None
    micro, times = int(reading.given["micro_batch_size"]), int(steps.value) if steps else 1
    why = f"{replicas} replica{'s' * (replicas > 1)} of {micro}" + (f"; {steps.suggested.why}" if steps else "")
    whole = (
        f"; or {plain.value} if {plain.of.text[:60]} is of all"
        if plain and micro * replicas * times != int(plain.value)
        else ""
    )
    return Suggestion(str(micro * replicas * times), f"{why}{whole}")


TARGET = Target(STRANGER, "a program of no known framework", "", ("generic",), None, lambda _: False, read)
