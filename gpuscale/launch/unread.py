"""Settings that no reader asked for: whether they change memory or time, and which option would settle it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Any

from gpuscale.presets.tools import Asked, Tool, plain, words

IGNORED = "ignored"
"""Variable whose value names settings, with commas between them, that change neither memory nor time."""

UNKNOWN = "not known here: taken to change no prediction"
"""What is said of settings that no table lists and whose names speak of nothing that is known."""

_OFF = ("false", "off", "no", "none", "null", "0", "0.0", "", "auto", "default", "disabled", "disable", "~")
_DEGREES = ("tp", "pp", "cp", "ep", "zero")


def speaks_of(name: str) -> str | None:
    """Return the option that the words of a name speak of, `` where none settles it; None where of nothing."""
    return words().concern(name.lower())


def concern(
    tool: Tool, setting: str, value: Any, *, dumped: bool = False, touched: Collection[str] = ()
) -> Asked | None:
    """Return what a setting that nobody asked for does to memory or time; None where it does nothing.

    What a tool is not known to have and whose name speaks of what changes them counts as doing so. The innermost key
    is asked first, then the tables around it of which no reader took anything.

    Args:
        setting: its name.
        dumped: it is one of all that a program has, printed whether anybody set it or not.
        touched: tables of which a reader took something, and so knows what is in them.
    """
    name = plain(setting)
    asked = tool.asks(name, value)
    if not is_on(value) or (asked is None and (tool.ignores(name) or tool.notes(name))):
        return None
    if asked is None:
        asked = _guess(tool, name, touched)
        if dumped and asked and not (asked.option in _DEGREES and re.fullmatch(r"\d{1,6}", str(value))):
            asked = None  # of all that a program has a degree alone is telling
    if asked is not None and asked.of and asked.option in _DEGREES and re.match(r"[A-Z][a-z]+[A-Z]", str(value)):
        return None  # a class of that name
    one_is_none = asked is not None and (asked.option in _DEGREES or re.search(r"expert|parallel", asked.of or name))
    return None if one_is_none and str(value) == "1" and not name.endswith("stage") else asked


def _guess(tool: Tool, name: str, touched: Collection[str]) -> Asked | None:
    """Return what the innermost key of a name that says anything says of memory or time; None where it is harmless."""
    known, parts = words(), name.split(".")
    if any(known.closed.search(table) for table in parts[:-1]):
        return None
    for depth in range(len(parts), 0, -1):
        key, table = parts[depth - 1], ".".join(parts[:depth])
        if any(pattern.search(key) for pattern in known.harmless):
            return None
        option = None if depth < len(parts) and table in touched else known.concern(key)
        if option is not None and (tool.guessed is None or option in tool.guessed):
            of = name if depth == len(parts) else f"{table}.*"
            return Asked(option, "not known here, and may change memory or time", of=of)
    return None


def tables_of(setting: str) -> Iterator[str]:
    """Yield the tables that a setting stands in: `a` and `a.b` of `a.b.c`."""
    parts = plain(setting).split(".")
    yield from (".".join(parts[:depth]) for depth in range(1, len(parts)))


def ignores(patterns: Collection[str], setting: str) -> bool:
    """Whether a setting is among those that are given as changing nothing: by its name or a table (`quantize.*`)."""
    name = plain(setting)
    return any(fnmatchcase(name, plain(one)) for one in patterns)


def is_on(value: Any) -> bool:
    """Whether a value switches something on, or is more than nothing."""
    if isinstance(value, str):
        return value.strip().lower() not in _OFF
    return bool(value)


def unasked(tool: Tool, setting: str, value: Any) -> str:
    """Say why a setting of this name, that nobody asked for, has no meaning."""
    name, known = plain(setting), words()
    parts = name.split(".")
    closed = any(known.closed.search(table) for table in parts[:-1])
    harmless = any(pattern.search(key) for pattern in (*known.harmless, *known.labels) for key in parts)
    listed = tool.ignores(name) or tool.asks(name, value)
    return "changes no prediction" if listed or closed or harmless or not is_on(value) else UNKNOWN
