"""Texts of launch files that remember where each character stands."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpuscale.files import read_text, refuse_irregular
from gpuscale.launch.settings import Span
from gpuscale.units import MIB

MAX_FILE_BYTES = MIB
MAX_LOG_BYTES = 64 * MIB
MAX_LINES = 5000
"""Lines of a file in which what it nearly says is looked for."""
NOWHERE = -1
_FILE = 1 << 32


class OpenFile:
    """A file that was read.

    Attributes:
        path: where it is.
        name: as it was given.
        text: what it holds.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.name, self.text = path, str(path), text

    @cached_property
    def starts(self) -> list[int]:
        """Offsets at which its lines start."""
        found, at = [0], self.text.find("\n")
        while at >= 0:
            found.append(at + 1)
            at = self.text.find("\n", at + 1)
        return found

    def line(self, number: int) -> str:
        """Return a line by its number, from 1, without its end."""
        start = self.starts[number - 1]
        return self.text[start : self.text.find("\n", start) if number < len(self.starts) else None].rstrip("\n\r")


@dataclass(frozen=True, slots=True)
class Traced:
    """A text and, of each of its characters, file and offset as one number; `NOWHERE` for those of no file."""

    text: str
    at: array[int]

    def cut(self, start: int, end: int | None = None) -> Traced:
        """Return a part of it."""
        return Traced(self.text[start:end], self.at[start:end])

    def pick(self, places: Sequence[int]) -> Traced:
        """Return some of its characters."""
        return Traced("".join(self.text[at] for at in places), array("q", (self.at[at] for at in places)))


def untraced(text: str) -> Traced:
    """Return a text that stands in no file."""
    return Traced(text, array("q", [NOWHERE]) * len(text))


def joined(parts: Iterable[Traced], between: str = "") -> Traced:
    """Return texts as one."""
    text: list[str] = []
    at = array("q")
    for part in parts:
        if text and between:
            text.append(between)
            at.extend([NOWHERE] * len(between))
        text.append(part.text)
        at.extend(part.at)
    return Traced("".join(text), at)


class OpenFiles:
    """The files of one question, each read once.

    Args:
        texts: what files are taken to hold instead of what they do, by name.
    """

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self.files: list[OpenFile] = []
        self.texts = texts or {}

    def read(self, path: Path) -> OpenFile:
        """Read a file.

        Raises:
            InputError: it cannot be read, is no text, or too large.
        """
        for one in self.files:
            if one.path == path:
                return one
        refuse_irregular(path, "a launch file")
        kind = ("a log", MAX_LOG_BYTES) if path.suffix in LOGS else ("a launch file", MAX_FILE_BYTES)
        text = self.texts.get(str(path))
        if text is None:
            text = read_text(path, kind[1], kind[0])
        self.files.append(OpenFile(path, text))
        return self.files[-1]

    def traced(self, file: OpenFile, start: int = 0, end: int | None = None) -> Traced:
        """Return what a file holds, with its places."""
        first, text = self.files.index(file) * _FILE, file.text[start:end]
        return Traced(text, array("q", range(first + start, first + start + len(text))))

    def place(self, at: int) -> tuple[OpenFile, int, int] | None:
        """Return file, line (from 1) and column (from 0) of a character."""
        if at < 0:
            return None
        file, offset = self.files[at // _FILE], at % _FILE
        line = bisect_right(file.starts, offset)
        return file, line, offset - file.starts[line - 1]

    def span(self, text: Traced) -> Span | None:
        """Return where a text stands, if it stands in one piece on one line."""
        if not text.at or any(two - one != 1 for one, two in zip(text.at, text.at[1:], strict=False)):
            return None
        place = self.place(text.at[0])
        if place is None or "\n" in text.text:
            return None
        file, line, column = place
        return Span(file.name, line, column, column + len(text.text))


LOGS = (".log", ".out", ".txt", ".err")
"""Ends of names of logs, which may be large."""
