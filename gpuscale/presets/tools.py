"""Training tools: what their files leave to them, and what each setting that is read nowhere has to do with a job.

`presets/tools/*.toml` hold the fields of `Tool` for one each, as facts of a release. A tool may stand on another one
(`as`), whose entries count where it has none of its own; where it is `bare`, all but the defaults. `common.toml` is
what stands below all of them: what the words in a name say, for settings that no table lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.presets.files import files_in, preset_folders, read_toml


class Default(NamedTuple):
    """What a tool takes where its files say nothing."""

    value: Any
    source: str  #: where in its sources this stands.


class Asked(NamedTuple):
    """What a setting does that is not modelled."""

    option: str  #: the option that settles it where it is given beside the files; empty where none can.
    why: str
    likely: str = ""  #: the value of that option that comes nearest to it, where there is one.
    of: str = ""  #: where it is a guess by words in a name: the setting, or the table (`quantize.*`), that has them.


@dataclass(frozen=True)
class ToolOption:
    """How the files of a tool state an option, or a key of a model."""

    of: tuple[str, ...]  #: the settings, of which the first that says something counts.
    #: what it says, in lower case -> the option's value, empty where that is the usual one; nothing said is an empty
    #: word, `*` all others. Where there are no words it says a number.
    words: Mapping[str, Any] = field(default_factory=dict)
    written: bool = True  #: whether an export states it so.


@dataclass(frozen=True)
class AdapterTable:
    """How the files of a tool say that adapters are trained, and which."""

    asked: tuple[str, ...]  #: settings that ask for them where they are on, or above 0.
    rank: tuple[str, ...]
    targets: tuple[str, ...] = ()
    dropout: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()  #: what is trained whole beside them.
    parts: Mapping[str, str] = field(default_factory=dict)  #: switch -> the matrices that it gives adapters to.
    base: ToolOption | None = None  #: how frozen matrices are stored, where a setting of the tool's own says it.


@dataclass(frozen=True)
class JobTable:
    """How the files of a tool state a job; what is empty is not stated by any setting of it."""

    framework: str  #: the framework that it is predicted as.
    #: what its files have, all of it: settings (`name`, `name=beginning of its value`, `table.*`, one or
    #: the other: `a|b`), a kind (`.toml`; a command is of none without it).
    claims: tuple[str, ...]
    model: tuple[str, ...] = ()  #: settings that name the model.
    twists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: key of a model -> what changes it by itself.
    shape: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: key of a model -> settings that state it.
    switches: Mapping[str, ToolOption] = field(default_factory=dict)  #: key of a model -> words that state it.
    kind: tuple[str, ...] = ()  #: settings that say which of `kinds` a model is.
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: kind -> keys of a model that it has.
    width_factor: tuple[str, ...] = ()  #: what a Llama's MLP is widened by.
    width_multiple: tuple[str, ...] = ()  #: what its width is rounded up to a multiple of.
    tokenizer: tuple[str, ...] = ()  #: settings whose value means a vocabulary.
    gpus: tuple[tuple[str, ...], ...] = ()  #: settings whose product is the GPUs, the first group that says so.
    options: Mapping[str, tuple[ToolOption, ...]] = field(default_factory=dict)  #: later rows replace earlier ones.
    trains: ToolOption | None = None  #: what says what is trained, with the words that mean a whole model by itself.
    fixed: Mapping[str, Any] = field(default_factory=dict)  #: options that are always so.
    single: Mapping[str, Any] = field(default_factory=dict)  #: options that are so on one GPU.
    cp_comm: str = ""  #: how context parallelism communicates.
    replicas: tuple[str, ...] = ()  #: settings that say how many copies of the shards there are,
    whole_with: tuple[str, ...] = ()  #: but where one of these is set there is one.
    shards: tuple[str, ...] = ()  #: settings that say over how many ranks shards lie; 1 is over all.
    precision: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    micro: tuple[str, ...] = ()
    accumulation: tuple[str, ...] = ()
    piped_micro: tuple[str, ...] = ()  #: under pipelines, a microbatch: what a rank takes at a time is several of them.
    stage_layers: tuple[str, ...] = ()  #: layers of a stage, of which a rank has several under a looped schedule.
    looped: tuple[str, ...] = ()  #: what names the schedule; without layers of a stage looped ones have two on a rank.
    total: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()  #: what is predicted otherwise than it runs.
    beside: Mapping[str, str] = field(default_factory=dict)  #: setting -> the same, where that setting is there.
    adapters: AdapterTable | None = None


def _row(table: Mapping[str, Any]) -> ToolOption:
    return ToolOption(tuple(table["of"]), table.get("words", {}), table.get("written", True))


@dataclass(frozen=True)
class WrittenTable:
    """How a job of fine-tuning is told to a tool: settings, as arguments or in a document."""

    script: str  #: what starts it.
    #: setting of a number or a text that a job says: `model`, `rank`, `targets`, `dropout`, `saved`, `seq`, `micro`,
    #: `steps`, `optimizer`, `dtype` (the type in which weights are loaded).
    names: Mapping[str, str]
    document: str = ""  #: the YAML that holds the settings; empty where they are arguments.
    joined: bool = False  #: lists are one word with commas.
    always: Mapping[str, Any] = field(default_factory=dict)  #: settings of every job.
    tuned: Mapping[str, Any] = field(default_factory=dict)  #: settings of adapters.
    whole: Mapping[str, Any] = field(default_factory=dict)  #: settings of training of whole models.
    all: Mapping[str, Any] = field(default_factory=dict)  #: settings that ask for adapters of every linear layer.
    #: option -> its value -> the settings that say it.
    words: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


def _job_table(data: Mapping[str, Any]) -> JobTable:
    """Return what the `[job]` table of a tool says."""
    made: dict[str, Any] = {}
    for key, value in data.items():
        if key == "options":
            rows = {name: one if isinstance(one, list) else [one] for name, one in value.items()}
            made[key] = {name: tuple(map(_row, several)) for name, several in rows.items()}
        elif key == "switches":
            made[key] = {name: _row(one) for name, one in value.items()}
        elif key in {"twists", "shape"}:
            made[key] = {name: tuple(one) for name, one in value.items()}
        elif key == "trains":
            made[key] = _row(value)
        elif key == "adapters":
            own: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
            if "base" in own:
                own["base"] = _row(own["base"])
            made[key] = AdapterTable(**own)
        elif isinstance(value, list):
            made[key] = tuple(tuple(one) if isinstance(one, list) else one for one in value)
        else:
            made[key] = value
    return JobTable(**made)


@dataclass(frozen=True)
class Tool:
    """A training tool, at one release."""

    name: str
    title: str  #: name for people.
    basis: str  #: the release or commit, with its date, that its facts were taken from.
    programs: tuple[str, ...] = ()  #: words of a command line that start it, beginnings of modules among them.
    marks: tuple[str, ...] = ()  #: settings that only its files have.
    foreign: tuple[str, ...] = ()  #: settings that it does not have, by which programs with its marks are others.
    documents: bool = False  #: its marks are of documents alone, not of commands.
    defaults: Mapping[str, Default] = field(default_factory=dict)  #: what it takes where its files say nothing.
    #: patterns of settings that are not modelled, with `=` and a pattern of values where only these are not.
    asked: Mapping[str, Asked] = field(default_factory=dict)
    noted: Mapping[str, str] = field(default_factory=dict)  #: of settings that change little -> what is predicted.
    inert: tuple[str, ...] = ()  #: of settings that change neither memory nor time.
    guessed: tuple[str, ...] | None = None  #: options that unlisted names are asked about, by their words; None: all.
    #: files that come with it -> what they state.
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    job: JobTable | None = None
    method: tuple[ToolOption, ...] = ()  #: what its files learn from; later rows count where none before says `sft`.
    started: Mapping[str, str] = field(default_factory=dict)  #: words in names of its programs -> what they learn from.
    written: WrittenTable | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: what programs of one's own call a setting.

    def asks(self, setting: str, value: Any = None) -> Asked | None:
        """Return what a setting does that is not modelled; None where nothing is known, or not of this value."""
        said = "" if value is None else plain(str(value))
        rows = ((pattern.partition("="), one) for pattern, one in self.asked.items())
        return next((one for (name, _, of), one in rows if _fits(setting, name) and fnmatchcase(said, of or "*")), None)

    def notes(self, setting: str) -> str | None:
        """Return what is predicted where a setting changes little; None where nothing is known."""
        return next((text for pattern, text in self.noted.items() if _fits(setting, pattern)), None)

    def ignores(self, setting: str) -> bool:
        """Whether a setting is known to change no prediction."""
        return any(_fits(setting, pattern) for pattern in self.inert)


def plain(setting: str) -> str:
    """Return the name of a setting as patterns have it: `--Moe-Router-Dtype` is `moe_router_dtype`."""
    return setting.lower().replace("--", "").replace("-", "_")


def _fits(setting: str, pattern: str) -> bool:
    name = plain(setting)
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


@cache
def _files() -> dict[str, Path]:
    """Return the file of each tool by its name: those that come with the package alone, unlike presets of users."""
    return files_in(preset_folders("tools")[-1])


COMMON = "common"
STRANGER = "stranger"
"""The tool that programs of no known framework are of."""


@dataclass(frozen=True)
class Words:
    """What the words in the name of a setting say of it, under any tool."""

    closed: re.Pattern[str]  #: names of tables of which nothing matters, whatever stands in them.
    concerns: tuple[tuple[str, re.Pattern[str]], ...]  #: option that settles it -> what changes memory or time.
    harmless: tuple[re.Pattern[str], ...]  #: what changes neither.
    labels: tuple[re.Pattern[str], ...]  #: what changes neither where nothing around it does.

    def concern(self, name: str) -> str | None:
        """Return the option that a name speaks of, `` where none settles it; None of nothing."""
        return next((option for option, pattern in self.concerns if pattern.search(name)), None)


@cache
def words() -> Words:
    """Return what words in names of settings say."""
    data = read_toml(_files()[COMMON]).data
    concerns = tuple((option, re.compile(pattern)) for option, pattern in data["concerns"])
    harmless, labels = (tuple(map(re.compile, data[key].values())) for key in ("harmless", "labels"))
    return Words(re.compile(data["closed"]), concerns, harmless, labels)


@cache
def load_tool(name: str) -> Tool:
    """Return a tool with what it has of those that it stands on; a KeyError where no tool has the name."""
    data = read_toml(_files()[name]).data
    below = load_tool(str(data.get("as", COMMON))) if name != COMMON else Tool("", "", "")
    below = replace(below, defaults={}) if data.get("bare") else below
    return Tool(
        name, str(data["title"]), str(data["basis"]), tuple(data.get("programs", ())), tuple(data.get("marks", ())),
        tuple(data.get("foreign", ())), bool(data.get("documents")),
        {**below.defaults, **{key: Default(*pair) for key, pair in data.get("defaults", {}).items()}},
        {**{key: Asked(*pair) for key, pair in data.get("asked", {}).items()}, **below.asked},
        {**data.get("noted", {}), **below.noted}, (*data.get("inert", ()), *below.inert),
        tuple(data["guessed"]) if "guessed" in data else below.guessed, {**below.configs, **data.get("configs", {})},
        _job_table(data["job"]) if "job" in data else None,
        tuple(map(_row, data["method"])) if "method" in data else below.method,
        {**below.started, **data.get("started", {})},
        WrittenTable(**data["written"]) if "written" in data else None,
        {name: tuple(listed) for name, listed in data.get("names", {}).items()},
    )  # fmt: skip


@cache
def all_tools() -> tuple[Tool, ...]:
    """Return every tool."""
    return tuple(map(load_tool, _files()))
