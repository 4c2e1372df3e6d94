"""Presets that the rows of a file name, each loaded once per file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from gpuscale.errors import InputError
from gpuscale.presets.files import preset_aliases, preset_names
from gpuscale.presets.hardware import load_cluster, load_gpu
from gpuscale.presets.models import load_model
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.model import ModelSpec

Spec = TypeVar("Spec")


@dataclass(frozen=True)
class Presets:
    """Presets by name or alias, never by path: a row must not make gpuscale read files of its choice.

    Attributes:
        names: kind of preset -> every spelling of it -> the preset's name.
        loaded: (kind, name) -> the loaded preset, or why it cannot be used.
        made: models and clusters built from the cells of a row, by those cells.
        distinct: one object for all that are equal, which is how `gpuscale.validation.predict` finds rows that can be
            priced together.
    """

    names: dict[str, dict[str, str]] = field(default_factory=dict)
    loaded: dict[tuple[str, str], Any] = field(default_factory=dict)
    made: dict[tuple[object, ...], tuple[Any, tuple[str, ...]]] = field(default_factory=dict)
    distinct: dict[object, Any] = field(default_factory=dict)

    def model(self, name: str) -> ModelSpec | None:
        """Return a model, or None when no preset has the name."""
        return self._find("models", name, load_model)

    def cluster(self, name: str) -> ClusterSpec | None:
        """Return a cluster, or None when no preset has the name."""
        return self._find("clusters", name, load_cluster)

    def gpu(self, name: str) -> GpuSpec | None:
        """Return a GPU, or None when no preset has the name."""
        return self._find("gpus", name, load_gpu)

    def build(self, key: tuple[object, ...], make: Callable[[list[str]], Spec], assumed: list[str]) -> Spec:
        """Return what `make` builds, the same object for all that are equal; what it assumes is added to `assumed`."""
        if key not in self.made:
            own: list[str] = []
            built = make(own)
            self.made[key] = self.distinct.setdefault(_content(built), built), tuple(own)
        value, said = self.made[key]
        assumed.extend(said)
        found: Spec = value
        return found

    def _find(self, kind: str, name: str, load: Callable[[str], Spec]) -> Spec | None:
        if kind not in self.names:
            self.names[kind] = _spellings(kind)
        stem = self.names[kind].get(_bare(name))
        if stem is None:
            return None
        if (kind, stem) not in self.loaded:
            self.loaded[kind, stem] = _loaded_or_error(load, stem)
        found = self.loaded[kind, stem]
        if isinstance(found, InputError):
            raise found
        loaded: Spec = found
        return loaded


def _content(built: object) -> object:
    """What two equal models or clusters have in common; sources are not compared."""
    if isinstance(built, ClusterSpec):
        return built.name, built.levels, built.host, built.rank_overhead_s, built.calibration, id(built.gpu)
    return built


def _loaded_or_error(load: Callable[[str], Spec], stem: str) -> Spec | InputError:
    try:
        return load(stem)
    except InputError as error:  # a preset of the user's that cannot be used: every row that needs it says so
        return error


@cache
def shared_presets() -> Presets:
    """Return the presets loaded so far in this process, for callers that read single rows."""
    return Presets()


def _spellings(kind: str) -> dict[str, str]:
    found = {_bare(alias): path.stem for alias, path in preset_aliases(kind).items()}
    return found | {_bare(stem): stem for stem in preset_names(kind)}


def _bare(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())
