"""Tables of a Python program: dictionaries whose entries are attributes too, and the files they come from."""

from __future__ import annotations

import re
from typing import Any

from gpuscale.launch.python_values import Place, Record, Unknown

MAX_DEPTH = 24
"""Tables inside one another."""


def is_table(value: Any) -> bool:
    """Whether it is a dictionary whose entries are attributes too, or what `argparse` makes of a command line."""
    return isinstance(value, Record) and value.kind is None and value.name in {"Namespace", "args"}


def as_table(value: Any, origin: str, place: Place, depth: int) -> Any:
    """Return a dictionary as a record, those in it too."""
    if isinstance(value, dict) and depth < MAX_DEPTH:
        parts = {str(key): as_table(one, origin, place, depth + 1) for key, one in value.items()}
        return Record("Namespace", place, parts, origin=origin)
    return [as_table(one, origin, place, depth + 1) for one in value] if isinstance(value, list) else value


def entries_of(value: Any, made: dict[int, Any]) -> Any:
    """Return a record of a class that is here, or of a table, as the dictionary of its parts, those in it too.

    `made`: what was made of others, by their `id`.
    """
    parts = value.parts if isinstance(value, Record) and (value.kind or is_table(value)) else value
    if id(value) in made or not isinstance(parts, list | dict):
        return made.get(id(value), value)
    if isinstance(parts, list):
        made[id(value)] = every = list[Any]()
        every += [entries_of(one, made) for one in parts]
        return every
    own = made[id(value)] = dict[Any, Any]()
    own.update({key: entries_of(one, made) for key, one in parts.items()})
    return own


def merge(whole: Record, other: Any, depth: int) -> None:
    """Put the parts of a table into another, those of tables in both into each other."""
    for name, one in other.parts.items() if isinstance(other, Record) and depth < MAX_DEPTH else ():
        before = whole.parts.get(name)
        if isinstance(before, Record) and isinstance(one, Record):
            whole.parts[name] = before = before.copy()
            merge(before, one, depth + 1)
        else:
            whole.put(name, one, other.places.get(name, other.place))


def interpolated(value: Any, whole: Any, depth: int) -> Any:
    """Return a document with what stands elsewhere in it for `${model.name}`, as OmegaConf has it."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {key: interpolated(one, whole, depth + 1) for key, one in value.items()}
    if isinstance(value, list):
        return [interpolated(one, whole, depth + 1) for one in value]
    found = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
    for name in found[1].split(".") if found else ():
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole if found and whole is not None and not isinstance(whole, dict | list) else value


def path_of(file: Any) -> Any:
    """Return what names a file that is open, or what it holds: `open(path)`, `open(path).read()`, the path itself."""
    for _ in range(MAX_DEPTH):
        if not isinstance(file, Record):
            break
        file = file.parts.get("of") if file.name.startswith("read") else file.parts.get("0", file.parts.get("file"))
    return file if isinstance(file, str | Unknown) else None
