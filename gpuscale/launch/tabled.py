"""Tools whose files a table describes: which setting states which option (`[job]` of `presets/tools`); those that
have a table of what is written too (`[written]`) both ways.

One reader serves them all: picotron, litgpt, Levanter, lingua, prime-rl, VeOmni, NeMo AutoModel, NeMo RL, Oumi and
verl's supervised training have no code of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gpuscale.errors import did_you_mean, shown
from gpuscale.launch import adapters, preferences, trainer
from gpuscale.launch.finetuning import adapter_settings, said
from gpuscale.launch.huggingface_models import hub_id, read_model, shaped_model
from gpuscale.launch.launchers import take_gpus
from gpuscale.launch.quoting import yaml_text
from gpuscale.launch.settings import OFF, LackingError, Reading, Source, digits
from gpuscale.launch.shapes import nearest_split, read_attention
from gpuscale.launch.tokenizers import vocabulary_of
from gpuscale.launch.writing import LaunchFile, Program, Target, Writing
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import AdapterTable, JobTable, Tool, ToolOption, all_tools


def claims(job: JobTable, source: Source) -> bool:
    """Whether a source has all settings that a tool is known by, with the values that it wants of them."""
    if source.kind in {"command", "arguments", "python"} and f".{source.kind}" not in job.claims:
        return False
    return all(any(_has(source, *one.partition("=")[::2]) for one in claim.split("|")) for claim in job.claims)


def _has(source: Source, name: str, wanted: str) -> bool:
    if name.startswith("."):
        return source.kind == name[1:]
    if name.endswith(".*"):
        return any(one.startswith(name[:-1]) for one in source.settings)
    found = source.settings.get(name)
    return found is not None and (not wanted or str(found.value).lower().startswith(wanted))


def read(reading: Reading, tool: Tool) -> None:
    """Read a job of a tool by its table.

    Raises:
        InputError: it is not one of training a whole decoder, or something that must be known is not said.
    """
    job = tool.job
    assert job is not None
    reading.run_by(tool)
    _refuse_other(reading, job)
    reading.option("framework", job.framework)
    for text in job.assumed:
        reading.assume(text)
    for name, text in job.beside.items():
        if reading.get(name) is not None:
            reading.assume(text, name)
    if job.shape and (reading.first(*job.shape["layers"]) or not reading.first(*job.model)):
        _read_shape(reading, job)
    else:
        read_model(reading, *job.model)
        _twist(reading, job)
    _read_gpus(reading, job)
    preferences.read(reading)
    _read_adapters(reading, job.adapters)
    for name, row in ((name, row) for name, rows in job.options.items() for row in rows):
        _read_option(reading, name, row)
    one = (reading.given.get("gpus") or reading.options.get("gpus")) == 1
    for name, value in {**job.fixed, **(job.single if one else {})}.items():
        reading.option(name, value)
    if int(reading.layout.get("cp") or 1) > 1 and job.cp_comm:
        reading.option("cp_comm", job.cp_comm)
    _read_replicas(reading, job)
    _read_states(reading, job)
    trainer.read_sequence(reading, *(name for name in job.sequence if _positive(reading, name)))
    micro, steps, total = (_positive(reading, *names) for names in (job.micro, job.accumulation, job.total))
    if job.piped_micro and int(reading.layout.get("pp") or 1) > 1:
        _read_stages(reading, job)
        reading.assume("pipelines are predicted as filled once a step, not for each batch of a rank", *job.micro)
        micro = _positive(reading, *job.piped_micro) or 1
    if steps is None and (micro is None) != (total is None):
        steps = 1
    trainer.read_batch(reading, micro, steps, total, *job.micro, *job.accumulation, *job.total)


def _read_stages(reading: Reading, job: JobTable) -> None:
    """Set the chunks of a rank, and how layers are dealt out, of stages that torch.distributed.pipelining runs."""
    pp, each = int(reading.layout["pp"]), _positive(reading, *job.stage_layers)
    name = str(reading.given.get("model") or reading.options.get("model") or "")
    layers = load_model(name).layers if name else 0
    looped = bool(re.search("interleaved|looped|zbv|dualpipe", (reading.text(*job.looped) or "").lower()))
    vpp = -(-layers // (each * pp)) if each and layers else 2 if looped else 1
    if vpp > 1:
        reading.option("vpp", vpp, *job.stage_layers, *job.looped)
    if layers >= pp * vpp and layers % (pp * vpp):  # the first stages have one layer more
        sizes = [layers // (pp * vpp) + (stage < layers % (pp * vpp)) for stage in range(pp * vpp)]
        split, _, off = nearest_split(load_model(name), sizes, pp, vpp)
        reading.option("pipeline_split", split)
        if off:
            reading.assume(f"stages are predicted of {layers} layers dealt out as `{split}`, up to {off} otherwise")


def _refuse_other(reading: Reading, job: JobTable) -> None:
    """Refuse what is not training of one whole model.

    Raises:
        InputError: the setting that says what is trained says something else.
    """
    if job.trains is None:
        return
    text = (reading.text(*job.trains.of) or "").lower()
    if text not in job.trains.words:
        message = f"{shown(text)} is not modelled: only training of a whole model by itself is"
        reading.refuse(reading.get(*job.trains.of), message, "gpuscale predicts training of whole models")
    reading.means("a whole model is trained by itself", *job.trains.of)


def _read_adapters(reading: Reading, table: AdapterTable | None) -> None:
    """Read adapters, where the tool trains some and its files ask for them."""
    found = reading.stated(*table.asked) if table is not None else None
    if table is None or found is None or str(found.value).lower() in {*OFF, "none"}:
        return
    if reading.given.get("tune") == "full":
        reading.means("replaced by the tune that is given", *table.asked)
        return
    if table.parts:
        on = [part for name, part in table.parts.items() if reading.get(name) is not None and reading.flag(name)]
        reading.means(f"adapters of {', '.join(on)}", *table.parts)
        reading.settings[table.targets[0]] = replace(found, name=table.targets[0], value=on)
    base, by = adapters.quantised(reading, found.name)
    if table.base is not None:
        base, by = table.base.words.get((reading.text(*table.base.of) or "").lower(), base), table.base.of
    names = adapters.Names(table.rank, table.targets, table.dropout, table.saved)
    adapters.take(reading, names, found.name, base=base, by=by)


def _positive(reading: Reading, *names: str) -> int | None:
    """Return a whole number; None where nothing is said, and where 0 or -1 means that nothing is."""
    found = reading.integer(*names)
    return found if found and found > 0 else None


def _read_option(reading: Reading, name: str, row: ToolOption) -> None:
    """Set an option by the setting that states it: a number as it stands, or what its words mean."""
    if not row.words:
        size = _positive(reading, *row.of)
        if size is not None:
            reading.option(name, size, *row.of)
        return
    text = (reading.text(*row.of) or "").lower()
    if not text and any(getattr(reading.settings.get(one), "value", None) == {} for one in row.of):
        text = "{}"  # of TOML, a table with nothing in it: all as usual
    value = row.words.get(text, row.words.get("*") if text else "")
    if value is None:
        reading.refuse(reading.get(*row.of), f"unknown value {shown(text)}", did_you_mean(text, row.words, "known are"))
    model = str(reading.given.get("model") or reading.options.get("model") or "")
    beside = (name == "schedule" and int(reading.layout.get("pp") or 1) == 1) or (
        name == "dispatcher" and model != "" and not load_model(model).is_moe
    )
    if value == "" or beside:
        reading.means("as usual", *row.of)
    else:
        reading.option(name, value, *row.of)


def _read_states(reading: Reading, job: JobTable) -> None:
    """Read precision, optimizer and attention, where no row of options has."""
    if job.precision:
        trainer.read_precision(reading, *job.precision, default="bf16")
    if "optimizer" not in reading.options:
        _read_optimizer(reading, job)
    if job.attention:
        read_attention(reading, *job.attention)


def _read_optimizer(reading: Reading, job: JobTable) -> None:
    """Read the optimizer, which may be a class: `torch.optim.AdamW`."""
    name = reading.first(*job.optimizer)
    if not name and not reading.given.get("optimizer"):
        reading.option("optimizer", "adamw")
        reading.assume(f"the optimizer is AdamW, {reading.tool.title}'s default")
        return
    if name and "." in str(reading.text(name)):
        found = reading.settings[name]
        reading.settings[name] = replace(found, value=str(found.value).rpartition(".")[2])
    trainer.read_optimizer(reading, *job.optimizer)


def _read_gpus(reading: Reading, job: JobTable) -> None:
    """Set the GPUs: the product of the first group of settings whose last one is a number."""
    for group in job.gpus:
        found = reading.get(group[-1])
        if found is None or digits(found.value) is None or reading.given.get("gpus"):
            continue
        reading.option("gpus", math.prod(trainer.count(reading, name) or 1 for name in group), *group)
        return
    take_gpus(reading)


def _read_replicas(reading: Reading, job: JobTable) -> None:
    """Set over how many ranks shards lie, where a setting says how many copies of them there are."""
    size = _positive(reading, *job.shards) if job.shards else None
    if size and size > 1 and reading.layout.get("zero") and not reading.given.get("shard"):
        reading.option("shard", size, *job.shards)
    whole = any(reading.get(name) is not None for name in job.whole_with)
    copies = None if whole or not job.replicas else reading.integer(*job.replicas)
    if copies and copies > 1 and reading.layout.get("zero") and not reading.given.get("shard"):
        ranks = trainer.data_parallel(reading, "the shards") * int(reading.layout.get("cp") or 1)
        reading.option("shard", ranks // copies, *job.replicas)


# --- models by their shape


def _twist(reading: Reading, job: JobTable) -> None:
    """Change a named model by what stands beside its name: `num_hidden_layers` of picotron."""
    model = str(reading.options.get("model") or "")
    keys = {key: reading.integer(*names) for key, names in job.twists.items()}
    said = ",".join(f"{key}={value}" for key, value in keys.items() if value)
    if said and model and not model.endswith(".json"):
        reading.option(
            "model", f"{load_model(model).name},{said}", *(name for names in job.twists.values() for name in names)
        )


def _read_shape(reading: Reading, job: JobTable) -> None:
    """Set the model by its plain sizes, with what its kind has where nothing is said.

    Raises:
        InputError: a kind that is not known, or a vocabulary that nobody says.
    """
    kind = (reading.text(*job.kind) or "").lower() if job.kind else ""
    if job.kind and kind not in job.kinds and not reading.given.get("model"):
        found = reading.get(*job.kind)
        message = f"the kind of model {shown(kind)} is not known here" if found else "no file states the kind of model"
        raise LackingError(message, "model", place=found.place if found else None, hint="add `model=NAME`")
    keys: dict[str, Any] = dict(job.kinds.get(kind, {}))
    scale = keys.pop("ffn_of_hidden", None)
    for key, names in job.shape.items():
        value = reading.integer(*names)
        if value is not None and value > 0:
            keys[key] = value
    for key, row in job.switches.items():
        text = (reading.text(*row.of) or "").lower()
        keys |= {key: row.words[text]} if text in row.words else {}
    of = [name for names in (*job.shape.values(), job.kind) for name in names]
    of += [name for row in job.switches.values() for name in row.of]
    if not reading.given.get("model"):
        lacking = next((key for key in ("layers", "hidden", "heads") if key not in keys), None)
        if lacking:
            raise LackingError("no file states which model is trained", "model", hint="add `model=NAME`")
        if "ffn" not in keys:
            scale = scale or (0 if keys.get("gated", True) else 4)
            keys["ffn"] = int(keys["hidden"] * scale) if scale else _llama_width(reading, job, keys["hidden"])
        keys["vocab"] = keys.get("vocab") or _vocabulary(reading, job, keys)
    keys["sequence"] = keys.get("sequence") or 4096
    shaped_model(reading, keys, *of)


def _llama_width(reading: Reading, job: JobTable, hidden: int) -> int:
    """Return two thirds of 4 x hidden, times a factor, rounded up: as Llama's FeedForward has it (llama/model.py)."""
    width = int(2 * 4 * hidden / 3)
    factor = reading.number(*job.width_factor) if job.width_factor else None
    multiple = (reading.integer(*job.width_multiple) if job.width_multiple else None) or 256
    return multiple * math.ceil(int(width * (factor or 1)) / multiple)


def _vocabulary(reading: Reading, job: JobTable, keys: dict[str, Any]) -> int:
    """Return the vocabulary that the name of a tokenizer means.

    Raises:
        LackingError: it means none that is known.
    """
    for name in job.tokenizer:
        found = reading.get(name)
        size = vocabulary_of(str(found.value)) if found is not None and isinstance(found.value, str) else None
        if size:
            reading.assume(f"vocabulary of {size:,}, by the tokenizer's name", name)
            return size
    line = ",".join(f"{key}={value}" for key, value in keys.items() if value is not None)
    hint = f"give the model: `model={line.lower()},vocab=N`"
    raise LackingError("the size of the vocabulary is not stated", "model", hint=hint)


# --- written


def write(writing: Writing, tool: Tool) -> Program:
    """Write a plan as a document of a tool: its table of options the other way round, and what `[written]` says.

    The export is read again (`gpuscale.launch.export`): what no row says is refused there by name.
    """
    job, table, plan = tool.job, tool.written, writing.plan
    assert job is not None
    assert table is not None
    model, optimizer = hub_id(writing.model), str(writing.asked("optimizer"))
    if model is None:
        writing.refuse("model", f"training begins with weights of the hub, which has none of {writing.model.name}")
    if optimizer not in table.words["optimizer"]:
        writing.refuse("optimizer", f"known are {', '.join(table.words['optimizer'])} (optimizer = {optimizer})")
    settings = {
        **table.always, job.model[0]: model or "", job.sequence[0]: plan.sequence, job.micro[0]: plan.micro_batch_size,
        job.total[0]: plan.global_batch_size, **said(table, "optimizer", optimizer),
        **said(table, "attention", writing.asked("attention")),
    }  # fmt: skip
    for name, row in ((name, row) for name, rows in job.options.items() for row in rows if row.written):
        settings |= _setting(writing, name, row)
    if job.replicas and plan.shard_size < plan.dp * plan.cp:
        settings[job.replicas[0]] = plan.dp * plan.cp // plan.shard_size
    if writing.spec.tuning is not None:
        settings |= {**table.tuned} | adapter_settings(writing, table, writing.spec.tuning, model or "")
    writing.warn(
        f"{table.document} is that of {tool.basis.partition(' (')[0]}: data and learning rate are yours to say"
    )
    trainer.leave_training(writing)
    files = (LaunchFile(table.document, yaml_text(_nested(settings))),)
    return Program(f"--no-python {table.script}", (), files)


def _setting(writing: Writing, name: str, row: ToolOption) -> dict[str, Any]:
    """Return the setting that states an option; nothing where it has no word for the value."""
    value = writing.value(name)
    value = ("off", "on")[value] if isinstance(value, bool) else value
    if not row.words:
        return {row.of[0]: value}
    switches = {"true": True, "false": False} if len(row.of) == 1 else {}  # of several settings the last is no switch
    words = [word for word, one in row.words.items() if one == value]
    words = [word for word in words if word in switches or word not in {"", "*", "true", "false"}]
    return {row.of[-1]: switches.get(words[0], words[0])} if words else {}


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of dotted names as tables in tables."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *tables, last = name.split(".")
        inner = found
        for one in tables:
            inner = inner.setdefault(one, {})
        inner[last] = value
    return found


def _target(tool: Tool, job: JobTable) -> Target:
    table = tool.written
    return Target(
        tool.name, tool.title, tool.basis, (job.framework.partition("@")[0],),
        partial(write, tool=tool) if table else None,
        partial(claims, job), partial(read, tool=tool), dict.fromkeys(table.words["attention"] if table else (), ""),
        adapters=table is not None and job.adapters is not None, reads_again=True,
    )  # fmt: skip


def tabled_targets() -> tuple[Target, ...]:
    """Return every tool that has a table; those that want more settings are asked first."""
    found = [(tool, tool.job) for tool in all_tools() if tool.job is not None]
    found.sort(key=lambda pair: -len(pair[1].claims))
    return tuple(_target(tool, job) for tool, job in found)
