"""The TOML text of a cluster file, with what was read and what was assumed as comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import tomli_w

from gpuscale.importers.assemble import ASSUMED, Draft
from gpuscale.importers.assume import MAX_SOURCE
from gpuscale.importers.facts import Facts, Stated

_WIDTH = 110


def cluster_data(draft: Draft, title: str, gpu: str) -> dict[str, Any]:
    """Return the content of the cluster file."""
    levels = [
        {"name": level.name, "fabric": level.fabric, **_values(level.values), "sources": _sources(level.values)}
        for level in draft.levels
    ]
    data: dict[str, Any] = {"title": title, "gpu": gpu, "extendable": draft.extendable, "levels": levels}
    if draft.host is not None:
        data["host"] = {**_values(draft.host), "sources": _sources(draft.host)}
    if draft.accepted:
        reason = "the level below carries less than the network cards"
        data["guards"] = {"accept": draft.accepted, "reason": reason}
    return data


def _values(values: Mapping[str, Stated[Any]]) -> dict[str, Any]:
    return {key: _plain(stated.value) for key, stated in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int):
        return value
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _sources(values: Mapping[str, Stated[Any]]) -> dict[str, str]:
    return {key: stated.source[:MAX_SOURCE] for key, stated in values.items()}


def assumptions(draft: Draft) -> dict[str, str]:
    """Return every number that no file states, as `level.key` -> source."""
    tables: list[tuple[str, Mapping[str, Stated[Any]]]] = [(level.name, level.values) for level in draft.levels]
    tables += [("host", draft.host)] if draft.host is not None else []
    return {
        f"{name}.{key}": stated.source
        for name, values in tables
        for key, stated in values.items()
        if stated.source.startswith(ASSUMED)
    }


def cluster_text(data: Mapping[str, Any], parts: Sequence[Facts], draft: Draft, gpu_source: str) -> str:
    """Return the TOML file: comments on what was read, noted and assumed, then the data."""
    comments = ["Written by `gpuscale clusters import`; every number names its source.", "", "Read:"]
    comments += [f"  {facts.file}: {facts.kind}" for facts in parts]
    comments += [f"  GPU: {gpu_source}"]
    if draft.notes:
        comments += ["Noted:", *(f"  {note}" for note in draft.notes)]
    assumed = assumptions(draft)
    if assumed:
        comments += ["Assumed, as no file says it (see the sources below): ", f"  {', '.join(assumed)}"]
    lines = [piece for comment in comments for piece in _wrapped(comment)]
    return "\n".join(lines) + "\n\n" + tomli_w.dumps(data)


def _wrapped(comment: str) -> list[str]:
    indent = "  " if comment.startswith("  ") else ""
    pieces = wrap(comment.strip(), _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ") or [""]
    return [f"# {piece}".rstrip() for piece in pieces]
