"""Text from outside, read within a bound: what every reader of a user's file calls first."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

from gpuscale.errors import InputError
from gpuscale.units import MIB


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
