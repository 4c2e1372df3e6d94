"""The user's files: read within a bound, written whole or not at all, and never one over another."""

from __future__ import annotations

import os
import tempfile
from codecs import BOM_UTF8
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError
from gpuscale.units import MIB


def short(value: Any) -> str:
    """Return a value of a user's file as a message shows it."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "an integer of more than 38 digits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_text(path: Path, max_bytes: int, kind: str, *, hint: str = "save the file as UTF-8") -> str:
    """Read a UTF-8 file, with or without a byte order mark, of at most `max_bytes`.

    Args:
        kind: what the file is, with its article, for messages: `a preset`.
        hint: what to do where the file is not UTF-8.

    Raises:
        InputError: not readable, too large, or not UTF-8 (the place says the line).
    """
    place = str(path)[:300]
    try:
        with path.open("rb") as stream:
            raw = stream.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise InputError(f"cannot be read: {reason}", place=repr(place)) from None
    if len(raw) > max_bytes:
        raise InputError(f"larger than {max_bytes // MIB} MiB, the limit for {kind}", place=place)
    raw = raw.removeprefix(BOM_UTF8)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("not UTF-8 text", place=f"{place}:{line}", hint=hint) from None


def refuse_irregular(path: Path, kind: str, hint: str | None = None) -> None:
    """Refuse what is no file before it is opened: a pipe would wait, a device never end.

    Args:
        kind: what is wanted, with its article, for messages: `a TOML file`.

    Raises:
        InputError: missing, a folder, or not a regular file.
    """
    try:
        exists, folder, regular = path.exists(), path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long a name, a NUL byte: who opens it says which
        return
    if not regular:
        what = "no such file" if not exists else f"is a folder, not {kind}" if folder else "is not a regular file"
        raise InputError(what, place=str(path)[:300], hint=hint)


def write_text(path: Path, text: str) -> None:
    """Write a text file through a temporary one beside it, so that no half-written file is ever seen.

    A symbolic link stays one; devices and pipes (`/dev/stdout`, `/dev/null`) are written to, never replaced.

    Raises:
        InputError: the folder is missing, or the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            _replace_text(path.resolve(), text)
    except (OSError, ValueError, RuntimeError) as error:
        # ValueError: a NUL byte in the path, a lone surrogate in the text; RuntimeError: a circle of links
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path or text"
        raise InputError(
            f"cannot write: {reason}", place=repr(str(path)[:300]), hint="give a file in a folder that exists"
        ) from None


def _replace_text(path: Path, text: str) -> None:
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.", text=True)
        temporary = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def refuse_overwriting(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write over a file that is read: a slip of the command line would cost the user's data.

    Raises:
        InputError: `output` is one of `inputs`.
    """
    for path in inputs:
        with suppress(OSError):
            if output.samefile(path):
                raise InputError("is also a file to read", place=repr(str(output)[:300]), hint="write to another file")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
