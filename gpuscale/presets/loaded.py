"""Presets as objects in place of their names: jobs, plan files and answers are made again from names alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.model import ModelSpec

Spec = TypeVar("Spec", GpuSpec, ClusterSpec, ModelSpec)

_loaded: WeakValueDictionary[tuple[type, str], GpuSpec | ClusterSpec | ModelSpec] = WeakValueDictionary()
"""What was loaded last by each name."""


def remembered(name: str, spec: Spec) -> Spec:
    """Return what was loaded by a name, which `preset_name` then knows."""
    _loaded[type(spec), name] = spec
    return spec


def preset_name(given: str | Path | Spec | None, load: Callable[[str], Spec], field: str | None = None) -> str | None:
    """Return the name that means a preset, also where the preset itself is given; None of nothing.

    Args:
        load: what loads presets of its kind.
        field: the option that it is given for.

    Raises:
        InputError: it was changed or made in Python, and no name means it.
    """
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    for (_, name), one in _loaded.items():
        if one is given:
            return name
    try:
        same = load(given.name) == given
    except InputError:
        same = False
    if not same:
        hint = "change a cluster with `set`, and for anything else write a file and give its path"
        message = f"this {type(given).__name__} is not what {given.name[:60]!r} means, and answers go by names"
        raise InputError(message, field=field, hint=hint)
    return given.name
