"""Drawing of `gpuscale frameworks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuscale.presets.frameworks import FrameworkFile
from gpuscale.render.console import console, print_json, table

SCHEMA = "gpuscale.frameworks/1"


def print_list(files: Mapping[str, FrameworkFile]) -> None:
    """Print one line per profile."""
    out = console()
    out.print(f"{len(files)} framework profiles; plans use megatron-core unless --framework says otherwise")
    out.print()
    rows = [[name, file.title, file.attention, f"{file.host_layer_us:g}"] for name, file in files.items()]
    out.print(table(["name", "framework", "attention", "us/layer"], rows, left=3))


def print_list_json(files: Mapping[str, FrameworkFile]) -> None:
    """Print all profiles as JSON."""
    print_json(SCHEMA, {"frameworks": [_body(name, file) for name, file in files.items()]})


def print_profile(name: str, file: FrameworkFile) -> None:
    """Print every switch and number of a profile, then their sources."""
    out = console()
    out.print(f"{name}: {file.title}")
    out.print()
    body = file.model_dump()
    sources = body.pop("sources")
    memory, space = body.pop("memory"), body.pop("space")
    rows = [[key, _text(value)] for key, value in body.items() if key != "title"]
    rows += [[f"space.{key}", _text(value)] for key, value in space.items() if value]
    rows += [[f"memory.{key}", _text(value)] for key, value in memory.items()]
    out.print(table(["setting", "value"], rows, left=2))
    out.print()
    for keys, source in sources.items():
        out.print(f"  {keys}: {source}")


def print_profile_json(name: str, file: FrameworkFile) -> None:
    """Print one profile as JSON, in the form of the list."""
    print_json(SCHEMA, {"frameworks": [_body(name, file)]})


def _body(name: str, file: FrameworkFile) -> dict[str, Any]:
    return {"name": name, **file.model_dump(mode="json")}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
