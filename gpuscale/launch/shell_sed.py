"""What `sed` makes of a text, for its substitutions, deletions and prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from gpuscale.launch.traced import Traced, joined, untraced

MAX_WORK = 10_000_000
"""Characters of a line to the power of the repetitions of a pattern."""
MAX_PATTERN = 300
_ADDRESS = re.compile(r"\s*(?:/((?:\\\\.|[^/\\\\])*)/(I?)|(\d{1,6}|\$)(?:,(\d{1,6}|\$))?)?\s*(!?)\s*")
_REPEATED_GROUP = re.compile(r"\)\s*[+*{?]")


class _Command(NamedTuple):
    """A command: the lines that it takes, and for `s` what becomes what."""

    pattern: re.Pattern[str] | None
    lines: tuple[str, str] | None
    unless: bool
    name: str
    old: re.Pattern[str] | None = None
    new: str = ""
    flags: str = ""


class _UnknownError(Exception):
    """A command that is not followed."""


def edited(text: Traced, scripts: Sequence[str], *, quiet: bool, extended: bool) -> Traced | None:
    """Return what scripts make of a text; None where one is not followed.

    Args:
        quiet: lines are printed by `p` alone (`-n`).
        extended: patterns are extended regular expressions (`-E`).
    """
    try:
        commands = [one for script in scripts for one in _commands(script, extended)]
        ends = [one.span() for one in re.finditer(r"[^\n]*\n|[^\n]+", text.text)]
        kept = [_line(text.cut(*span), commands, number, number == len(ends), quiet)
                for number, span in enumerate(ends, start=1)]  # fmt: skip
    except (_UnknownError, re.error):
        return None
    return joined(part for line in kept for part in line)


def _line(line: Traced, commands: Sequence[_Command], number: int, last: bool, quiet: bool) -> list[Traced]:
    found, after = list[Traced](), list[Traced]()
    end = line.cut(len(line.text.rstrip("\n")))
    line = line.cut(0, len(line.text) - len(end.text))
    for one in commands:
        if _taken(one, line.text, number, last) is one.unless:
            continue
        if one.name == "d":
            return [*found, *after]
        changed = one.name == "p"
        if one.name in {"i", "c"}:
            found.append(untraced(one.new + "\n"))
        if one.name == "c":
            return [*found, *after]
        after += [untraced(one.new + "\n")] if one.name == "a" else []
        if one.old is not None:
            before, line = line, _substituted(line, one)
            changed = before is not line and "p" in one.flags
        found += [line, end] if changed else []
    if after and not end.text:
        end = untraced("\n")
    return [*found, *after] if quiet else [*found, line, end, *after]


def _taken(one: _Command, line: str, number: int, last: bool) -> bool:
    if one.lines is None:
        return one.pattern is None or _searched(one.pattern, line) is not None
    low, high = one.lines
    if not high:
        return last if low == "$" else number == int(low)
    return (number >= int(low) if low != "$" else last) and (high == "$" or number <= int(high))


def _searched(pattern: re.Pattern[str], line: str, at: int = 0) -> re.Match[str] | None:
    if max(len(line), 1) ** (len(re.findall(r"[+*{]", pattern.pattern)) + 1) > MAX_WORK:
        raise _UnknownError
    return pattern.search(line, at)


def _substituted(line: Traced, one: _Command) -> Traced:
    parts: list[Traced] = []
    at = taken = 0
    found = _searched(one.old, line.text) if one.old else None
    while found and (not taken or "g" in one.flags):
        new = re.sub(r"\\(\d|.)|&", partial(_replaced, found), one.new)
        parts += [line.cut(at, found.start()), untraced(new)]
        taken, at = taken + 1, found.end()
        found = _searched(one.old, line.text, at + (found.end() == found.start())) if one.old else None
    return joined([*parts, line.cut(at)]) if taken else line


def _replaced(found: re.Match[str], it: re.Match[str]) -> str:
    if it[1] is None or it[1] == "0":
        return found[0]
    if it[1].isdecimal():
        return (found[int(it[1])] or "") if int(it[1]) <= len(found.groups()) else ""
    return {"n": "\n", "t": "\t"}.get(it[1], it[1])


def _commands(script: str, extended: bool) -> list[_Command]:
    found: list[_Command] = []
    at = 0
    while at < len(script):
        if script[at] in "; \t\n":
            at += 1
            continue
        address = _ADDRESS.match(script, at)
        if address is None:
            raise _UnknownError
        at = address.end()
        name = script[at : at + 1]
        pattern = None if address[1] is None else _pattern(address[1], extended, address[2])
        lines = None if address[3] is None else (address[3], address[4] or "")
        at += 1
        if name == "s":
            old, new, flags, at = _parts(script, at)
            found.append(_Command(pattern, lines, bool(address[5]), "s", _pattern(old, extended, flags), new, flags))
        elif name in {"d", "p"} and re.match(r"\s*(?:[;\n]|$)", script[at:]):
            found.append(_Command(pattern, lines, bool(address[5]), name))
        elif name and name in "aic" and (told := re.match(r"\s*(?:\\\n?)?(.+)", script[at:], re.DOTALL)):
            text = re.sub(r"\\(.)", lambda it: {"n": "\n", "t": "\t"}.get(it[1], it[1]), told[1])
            found.append(_Command(pattern, lines, bool(address[5]), name, new=text))
            break
        else:
            raise _UnknownError
    return found


def _parts(script: str, at: int) -> tuple[str, str, str, int]:
    """Return what stands between the delimiters of `s/old/new/flags`, and where it ends."""
    delimiter, at = script[at : at + 1], at + 1
    parts = [""]
    while at < len(script) and len(parts) < 3:
        letter = script[at]
        if letter == "\\" and at + 1 < len(script):
            escaped = script[at + 1]
            parts[-1] += escaped if escaped == delimiter and delimiter not in ".|" else letter + escaped
            at += 2
            continue
        if letter == delimiter:
            parts.append("")
        else:
            parts[-1] += letter
        at += 1
    flags = re.compile(r"[gIip]*(?=\s*(?:[;\n}]|$))").match(script, at)
    if len(parts) != 3 or flags is None:
        raise _UnknownError
    return parts[0], parts[1], flags[0], flags.end()


def _pattern(text: str, extended: bool, flags: str) -> re.Pattern[str]:
    """Return a regular expression of sed as one of Python."""
    if len(text) > MAX_PATTERN:
        raise _UnknownError
    for name, meant in (("digit", "0-9"), ("space", r"\s"), ("alpha", "A-Za-z"), ("alnum", "A-Za-z0-9")):
        text = text.replace(f"[:{name}:]", meant)
    parts = re.findall(r"\[\^?\]?[^\]]*\]|\\.|.", text, re.DOTALL)
    made = "".join(part if part[0] == "[" and len(part) > 1 else _piece(part, at, len(parts), extended)
                   for at, part in enumerate(parts))  # fmt: skip
    if _REPEATED_GROUP.search(made.replace(r"\)", "")) or "[[" in made:
        raise _UnknownError
    return re.compile(made, re.IGNORECASE if "i" in flags.lower() else 0)


def _piece(part: str, at: int, size: int, extended: bool) -> str:
    special = set("()+?|{}")
    if part[0] == "\\":
        if part[1] in special:
            return re.escape(part[1]) if extended else part[1]
        return part if part[1] in "sSwWbBn" or not part[1].isalnum() else re.escape(part[1])
    if part in special and not extended:
        return re.escape(part)
    if (part == "^" and at) or (part == "$" and at < size - 1) or (part == "*" and not at):
        return re.escape(part) if not extended else part
    return re.escape(part) if part in "#&~- " else part
