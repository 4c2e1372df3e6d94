"""Slurm's hostlist expressions: `node[01-04,7]`, `rack[0-1]n[1-2]-ib`, `a,b`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuscale.importers.source import MAX_NAME, SourceFile, shown

MAX_NAMES = 131_072
"""Most names of one file: a node of 8 GPUs for each of the largest cluster accepted."""

_MAX_BRACKETS = 4
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_LITERAL = re.compile(r"[A-Za-z0-9._:/+-]*")


def expand(source: SourceFile, line: int, text: str, limit: int = MAX_NAMES) -> list[str]:
    """Return the names that an expression means, in order.

    Args:
        limit: most names; the caller counts down over a file.

    Raises:
        InputError: brackets that do not pair, a range that is none, too long a name, or more than `limit` names.
    """
    names: list[str] = []
    for part in _parts(source, line, text):
        for name in _expand_part(source, line, part, limit - len(names)):
            if len(name) > MAX_NAME:
                raise source.error(line, f"the name {shown(name, 30)!r} has {len(name)} characters, at most {MAX_NAME}")
            names.append(name)
    return names


def _parts(source: SourceFile, line: int, text: str) -> Iterator[str]:
    """Yield the pieces between commas outside brackets."""
    start, inside = 0, False
    for position, letter in enumerate(text):
        if letter in "[]":
            if (letter == "[") == inside:
                raise source.error(line, f"brackets do not pair in {shown(text[start : start + 50])!r}")
            inside = letter == "["
        elif letter == "," and not inside:
            yield text[start:position].strip()
            start = position + 1
    if inside:
        raise source.error(line, f"a bracket is not closed in {shown(text[start:], 50)!r}", "the line may be cut off")
    yield text[start:].strip()


def _expand_part(source: SourceFile, line: int, part: str, limit: int) -> list[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    if not part or not all(_LITERAL.fullmatch(piece) for piece in pieces[::2]):
        raise source.error(line, f"{shown(part, 50)!r} is not a name of a node or a switch")
    if len(pieces) > 2 * _MAX_BRACKETS + 1:
        raise source.error(line, f"more than {_MAX_BRACKETS} brackets in {shown(part, 50)!r}")
    names = [pieces[0]]
    for index in range(1, len(pieces), 2):
        numbers = list(_numbers(source, line, pieces[index], limit))
        if len(names) * len(numbers) > limit:
            raise _too_many(source, line)
        names = [name + number + pieces[index + 1] for name in names for number in numbers]
    if len(names) > limit:
        raise _too_many(source, line)
    return names


def _numbers(source: SourceFile, line: int, text: str, limit: int) -> Iterator[str]:
    """Yield the numbers of a bracket, with leading zeros as written."""
    count = 0
    for piece in text.split(","):
        found = _RANGE.fullmatch(piece.strip())
        if found is None:
            raise source.error(line, f"{shown(piece, 30)!r} is not a number or a range such as 01-16")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise source.error(line, f"the range {piece} runs backwards")
        count += high - low + 1
        if count > limit:
            raise _too_many(source, line)
        width = len(found[1]) if found[1].startswith("0") else 0
        yield from (f"{number:0{width}d}" for number in range(low, high + 1))


def _too_many(source: SourceFile, line: int) -> Exception:
    return source.error(line, f"more than {MAX_NAMES:,} names in this file, the limit")
