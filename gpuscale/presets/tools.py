"""Training tools: what their files leave to them, and what each setting that is read nowhere has to do with a job.

`presets/tools/*.toml` hold, for one tool each, as facts of a release:

    [defaults]   what it takes where its files say nothing: a value and its source
    [asked]      settings that change memory or time in ways that are not modelled: the option that settles it, and why
    [noted]      settings that change them by so little that they are said and left out: what is predicted instead
    inert        patterns of settings that change neither
    guessed      options that unlisted names are asked about, by the words in them; all where it is not there
    [configs]    files that come with it, by what its users call them: what they state

A tool may stand on another one (`as`), whose entries count where it has none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.presets.files import preset_folders, read_toml


class Default(NamedTuple):
    """What a tool takes where its files say nothing."""

    value: Any
    source: str  #: where in its sources this stands.


class Asked(NamedTuple):
    """What a setting does that is not modelled."""

    option: str  #: the option that settles it where it is given beside the files; empty where none can.
    why: str


@dataclass(frozen=True)
class Tool:
    """A training tool, at one release."""

    name: str
    title: str  #: name for people.
    basis: str  #: the release or commit, with its date, that its facts were taken from.
    programs: tuple[str, ...] = ()  #: words of a command line that start it, beginnings of modules among them.
    marks: tuple[str, ...] = ()  #: settings that only its files have.
    documents: bool = False  #: its marks are of documents alone, not of commands.
    defaults: Mapping[str, Default] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)  #: by patterns of names.
    noted: Mapping[str, str] = field(default_factory=dict)  #: by patterns of names.
    inert: tuple[str, ...] = ()  #: patterns of names of settings that change no prediction.
    guessed: tuple[str, ...] | None = None
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: name -> settings.

    def asks(self, setting: str) -> Asked | None:
        """Return what a setting does that is not modelled; None where nothing of the kind is known."""
        return next((one for pattern, one in self.asked.items() if _fits(setting, pattern)), None)

    def notes(self, setting: str) -> str | None:
        """Return what is predicted where a setting changes little; None where nothing of the kind is known."""
        return next((text for pattern, text in self.noted.items() if _fits(setting, pattern)), None)

    def ignores(self, setting: str) -> bool:
        """Whether a setting is known to change no prediction."""
        return any(_fits(setting, pattern) for pattern in self.inert)


def _fits(setting: str, pattern: str) -> bool:
    name = setting.lower().replace("-", "_")
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


@cache
def _files() -> dict[str, Path]:
    """Return the file of each tool by its name: those that come with the package alone, unlike presets of users."""
    return {path.stem: path for path in sorted(preset_folders("tools")[-1].iterdir()) if path.suffix == ".toml"}


@cache
def load_tool(name: str) -> Tool:
    """Return a tool with what it has of those that it stands on.

    Raises:
        KeyError: no tool has the name.
    """
    data = read_toml(_files()[name]).data
    below = load_tool(str(data["as"])) if "as" in data else Tool("", "", "")
    return Tool(
        name, str(data["title"]), str(data["basis"]), tuple(data.get("programs", ())), tuple(data.get("marks", ())),
        bool(data.get("documents")),
        {**below.defaults, **{key: Default(*pair) for key, pair in data.get("defaults", {}).items()}},
        {**{key: Asked(*pair) for key, pair in data.get("asked", {}).items()}, **below.asked},
        {**data.get("noted", {}), **below.noted}, (*data.get("inert", ()), *below.inert),
        tuple(data["guessed"]) if "guessed" in data else below.guessed, {**below.configs, **data.get("configs", {})},
    )  # fmt: skip


@cache
def all_tools() -> tuple[Tool, ...]:
    """Return every tool."""
    return tuple(map(load_tool, _files()))
