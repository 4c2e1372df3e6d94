"""Framework profiles: how a training framework runs a step. A profile may take what it does not state from another one
(`as`), and says what was different in earlier generations, `before` a month: `nemo@2024-03` is NeMo of March 2024."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from gpuscale.errors import InputError
from gpuscale.files import reads
from gpuscale.presets.files import Document, named_preset, preset_names, read_unchanged
from gpuscale.presets.tables import Table, made
from gpuscale.specs.job import FrameworkSpec, MemoryProfile, RuntimeSpec, SpaceSpec, StateBytes

MEMORY, SPACE = Table(MemoryProfile), Table(SpaceSpec)
PROFILE = Table(
    FrameworkSpec,
    RuntimeSpec,
    StateBytes,
    without=("name", "weight", "master", "moments", "second_moment", "paged"),
    required=("gradient",),
    inner={"memory": MEMORY, "space": SPACE},
    memory=(dict[str, Any], ...),
    space=(dict[str, Any], {}),
    sources=(dict[str, str], ...),
)

MAX_INHERITED = 4

_MONTH = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])", re.ASCII)

MEGATRON_BRIDGE, MEGATRON_BRIDGE_PERFORMANCE = "megatron-bridge", "megatron-bridge-perf"
"""Profiles of Megatron-Bridge: its recipes as they come, and its performance recipes, which NVIDIA measures."""


def _layers(stem: str, month: str, depth: int = 0) -> tuple[list[dict[str, Any]], set[str]]:
    """Return what a profile is made of at a month (empty: today), later layers over earlier ones, and the months before
    which it was different."""
    document = read_unchanged(named_preset("frameworks", stem))
    before = document.data.get("before", [])
    if not isinstance(before, list) or not all(isinstance(one, dict) for one in before):
        raise document.error(("before",), "is not a list of tables", "write [[before]] above each generation")
    stray = next((index for index, one in enumerate(before) if not _MONTH.fullmatch(str(one.get("month")))), None)
    if stray is not None:
        hint = 'month = "2024-10": what was different before'
        raise document.error(("before", stray), "states no month", hint)
    before = sorted(before, key=lambda one: str(one["month"]), reverse=True)  # the latest first
    own = [document.data, *(one for one in before if month and month < one["month"])]
    ends = {one["month"] for one in before}
    parent = next((str(one["as"]) for one in reversed(own) if "as" in one), None)
    if parent is None:
        return own, ends
    if depth == MAX_INHERITED:
        raise document.error(("as",), f"stands on more than {MAX_INHERITED} other profiles, or on itself")
    name, at, other = parent.partition("@")
    below, more = _layers(name, other or month, depth + 1)
    return [*below, *own], ends if at else ends | more


def _profile(name: str) -> tuple[str, Document]:
    """Return the name of a generation and all that it states: `nemo`, or `nemo@2024-09` by its last month."""
    stem, at, month = name.partition("@")
    if at and not _MONTH.fullmatch(month):
        hint = f"write {stem[:40]}@2024-06, or {stem[:40]} for the newest"
        raise InputError(f"{month[:20]!r} is not a month", field="framework", hint=hint)
    path = named_preset("frameworks", stem)
    layers, ends = _layers(path.stem, month)
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = merged[key] | value if both else value
    document = read_unchanged(path)
    merged["aliases"] = document.data.get("aliases", [])
    own = {key: value for key, value in merged.items() if key not in {"as", "before", "month"}}
    end = min((one for one in ends if month and month < one), default="")
    if end:
        own.pop("launch", None)  # which is of today
    return f"{path.stem}@{_month_before(end)}" if end else path.stem, Document(path, own, document.text)


def _month_before(month: str) -> str:
    year, number = int(month[:4]), int(month[5:])
    return f"{year}-{number - 1:02}" if number > 1 else f"{year - 1}-12"


def generations(name: str) -> list[str]:
    """Return every generation of a profile by its full name, the newest first."""
    stem = named_preset("frameworks", name.partition("@")[0]).stem
    _, ends = _layers(stem, "")
    return [stem, *(f"{stem}@{_month_before(end)}" for end in sorted(ends, reverse=True))]


def framework_file(name: str) -> dict[str, Any]:
    """Return a profile's full name, its generations and every setting, as files have them."""
    full, document = _profile(name)
    tables = {"space": SPACE.shown(document, ("space",)), "memory": MEMORY.shown(document, ("memory",))}
    return {"name": full, **PROFILE.shown(document), **tables, "generations": generations(name)}


def all_framework_files() -> dict[str, dict[str, Any]]:
    """Return the newest generation of every profile by name."""
    return {name: framework_file(name) for name in preset_names("frameworks")}


@cache
@reads("framework")
def load_framework(name: str) -> FrameworkSpec:
    """Return a profile by name or alias, as of today or of a month (`nemo@2024-03`), ready for a job.

    Raises:
        InputError: unknown name, not a month, or an unusable file.
    """
    full, document = _profile(name)
    stated = PROFILE.read(document)
    memory = MemoryProfile(**MEMORY.read(document, ("memory",)))
    return made(
        FrameworkSpec,
        stated,
        name=full,
        runtime=made(RuntimeSpec, stated, name=full, memory=memory),
        states=made(StateBytes, stated),
        space=SpaceSpec(**SPACE.read(document, ("space",))),
    )
