"""A file to import: its lines, and errors that name file and line. Nothing in it is trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpuscale.errors import InputError
from gpuscale.presets.text import read_text
from gpuscale.units import MIB

MAX_FILE_BYTES = 8 * MIB
"""Largest file read: an ibnetdiscover listing of some 10,000 nodes."""

MAX_LINES = 200_000
"""Most lines read."""

MAX_NAME = 64
"""Longest name of a node, switch or device; as Slurm's."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True)
class SourceFile:
    """A file's name as messages show it, and its text without colour codes and carriage returns."""

    name: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return self.text.split("\n")

    def at(self, line: int | None) -> str:
        """Return `file:line`, or `file` where no line is meant."""
        return f"{self.name}:{line}" if line else self.name

    def error(self, line: int | None, message: str, hint: str | None = None) -> InputError:
        """Build the error for something wrong on a line."""
        return InputError(message, place=self.at(line), hint=hint)


def read_source(path: Path, name: str) -> SourceFile:
    """Read a text file of at most 8 MiB.

    Args:
        name: what sources and messages call it.

    Raises:
        InputError: missing, not a regular file, too large, or not UTF-8.
    """
    place = repr(str(path)[:300])
    try:
        exists, folder, regular = path.exists(), path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long a name, a NUL byte: `read_text` says which
        exists, folder, regular = True, False, True
    if folder or not exists or not regular:
        what = "no such file" if not exists else "is a folder" if folder else "is not a regular file"
        hint = "save the tool's output in a file and name that, such as `nvidia-smi topo -m > topo.txt`"
        raise InputError(what, place=place, hint=hint)
    text = read_text(path, MAX_FILE_BYTES, "a file to import", hint="save the file as UTF-8, not as UTF-16")
    if not text.strip():
        raise InputError("is empty", place=place, hint="save the tool's output in it again")
    lines = text.count("\n")
    if lines > MAX_LINES:
        raise InputError(f"{lines:,} lines, at most {MAX_LINES:,}", place=place, hint="give the listing of one fabric")
    return SourceFile(name, _COLOUR.sub("", text).replace("\r\n", "\n"))


def shown(text: str, length: int = 60) -> str:
    """Return text of a file for a message or a comment: one line, printable, of at most `length` characters."""
    plain = _UNPRINTABLE.sub("?", text)
    return plain if len(plain) <= length else plain[: length - 3] + "..."
