"""Slurm's hostlist expressions: `node[01-04,7]`, `rack[0-1]n[1-2]-ib`, `a,b`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuscale.importers.source import MAX_NAME, SourceFile, shown

MAX_NAMES = 131_072
"""Most names of one file: a node of 8 GPUs for each of the largest cluster accepted."""

_MAX_BRACKETS = 4
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_LITERAL = re.compile(r"[A-Za-z0-9._:/+-]*")


@dataclass
class Budget:
    """How many names the expressions of a file may mean together; `what` they are, for the message."""

    most: int = MAX_NAMES
    what: str = "names"
    used: int = 0

    def take(self, source: SourceFile, line: int, count: int) -> None:
        """Count names before they are made.

        Raises:
            InputError: more than there may be.
        """
        self.used += count
        if self.used > self.most:
            raise source.error(line, f"more than {self.most:,} {self.what} in this file, the limit", _LIMIT_HINT)


_LIMIT_HINT = "give the network of one cluster; is a range too wide?"


def expand(source: SourceFile, line: int, text: str, budget: Budget | None = None) -> list[str]:
    """Return the names that an expression means, in order.

    Args:
        budget: what the file may still mean; this expression is taken from it.

    Raises:
        InputError: brackets that do not pair, a range that is none, too long a name, or more names than the budget has.
    """
    names: list[str] = []
    for part in _parts(source, line, text):
        for name in _expand_part(source, line, part, budget or Budget()):
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


def _expand_part(source: SourceFile, line: int, part: str, budget: Budget) -> list[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    if not part or not all(_LITERAL.fullmatch(piece) for piece in pieces[::2]):
        raise source.error(line, f"{shown(part, 50)!r} is not a name of a node or a switch")
    if len(pieces) > 2 * _MAX_BRACKETS + 1:
        raise source.error(line, f"more than {_MAX_BRACKETS} brackets in {shown(part, 50)!r}")
    brackets = [_ranges(source, line, text) for text in pieces[1::2]]
    budget.take(source, line, math.prod(sum(len(one) for one, _ in ranges) for ranges in brackets))
    names = [pieces[0]]
    for ranges, literal in zip(brackets, pieces[2::2], strict=True):
        numbers = [f"{number:0{width}d}" for one, width in ranges for number in one]
        names = [name + number + literal for name in names for number in numbers]
    return names


def _ranges(source: SourceFile, line: int, text: str) -> list[tuple[range, int]]:
    """Return the ranges of a bracket, each with the width to which its numbers are filled up with zeros."""
    found: list[tuple[range, int]] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise source.error(line, f"{shown(piece, 30)!r} is not a number or a range such as 01-16")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise source.error(line, f"the range {shown(piece, 30)} runs backwards")
        found.append((range(low, high + 1), len(match[1]) if match[1].startswith("0") else 0))
    return found
