"""Lines of a log, whatever its size: read in blocks, freed of colours and of what launchers put before them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpuscale.errors import InputError
from gpuscale.units import GIB, MIB

MAX_LOG_BYTES = 4 * GIB
MAX_LINE_BYTES = 8192
"""Longer lines are no rows of a table; what follows in them is dropped."""

MAX_SKIPPED_BYTES = 64 * MIB
"""Most that is dropped of one line."""

_WORDS = (
    *(b"float", b"double", b"half", b"fp", b"bf16", b"f8e", b"int", b"char"),  # types in rows
    *(b"nthread", b"rank", b"_perf", b"size", b"bandwidth", b"concluded"),
    *(b"failure", b"error", b"warn", b"fault", b"killed", b"signal", b"memory", b"time limit"),
    *(b"duration", b"gbps", b"comms-res", b"osu", b"performance of"),
)
"""A line without any of them, in lower case, says nothing, unless it is half a row: a message of NCCL cut it in two."""

_NUMBERS = re.compile(rb"[\s\d.eE+\-N/A\x1b\[\];mK,<>:stdou]*$")
_NOISE = b" NCCL INFO "

_COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]{0,200}\x07)")
_LAUNCHERS = re.compile(r"\[(?:[\w.-]{1,100}@)?\d+,\d+\]<std(?:out|err|diag)>:")
_MESSAGE = re.compile(r"\S{0,200}:\d+:\d+ \[\d+\] (?:\S+ \S+ )?NCCL (?:INFO|TRACE|VERSION|ABORT)\b.*$")
_ZIPPED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "zip"}


def relevant_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that may say something, cleaned; memory stays bounded.

    Of a last line that does not end, the last word is dropped: the file may be cut off within it.

    Raises:
        InputError: the file is missing, unreadable, compressed, no text, or larger than `MAX_LOG_BYTES`.
    """
    place = str(path)[:300]
    try:
        if path.is_dir():
            raise InputError("is a folder, not a log", place=place, hint="give the files in it")
        if path.exists() and not path.is_file():
            raise InputError("is not a regular file", place=place, hint="save the output to a file first")
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size > MAX_LOG_BYTES:
                raise InputError(f"larger than {MAX_LOG_BYTES // GIB} GiB, the limit for a log", place=place, hint=_CUT)
            _refuse_binary(stream.peek(4096)[:4096], place)
            for number, raw in enumerate(_raw_lines(stream, place), start=1):
                if _relevant(raw):
                    yield number, _whole_words(raw, cleaned(raw.decode("utf-8", "replace")))
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise InputError(f"cannot be read: {reason}", place=repr(place)) from None


_CUT = "cut the tables out: grep -E 'nThread|Rank|size|float|_perf|Avg' LOG"


def _raw_lines(stream: BinaryIO, place: str) -> Iterator[bytes]:
    """Yield the first `MAX_LINE_BYTES` of each line; refuse lines of `MAX_SKIPPED_BYTES`."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES):
        number += 1
        rest, skipped = raw, 0
        while rest and not rest.endswith(b"\n"):  # the tail of an overlong line
            rest = stream.readline(MAX_LINE_BYTES)
            skipped += len(rest)
            if skipped > MAX_SKIPPED_BYTES:
                limit = f"a line of more than {MAX_SKIPPED_BYTES // MIB} MiB"
                raise InputError(f"{limit}: it is no log", place=f"{place}:{number}", hint=_CUT)
        yield raw


def _whole_words(raw: bytes, text: str) -> str:
    """Return the text without its last word where the line does not end: the word may be cut off."""
    if raw.endswith(b"\n"):
        return text
    words = text.rsplit(None, 1)
    return words[0] if len(words) > 1 else ""


def _relevant(raw: bytes) -> bool:
    """Whether a line may say something; quick, since logs with NCCL_DEBUG=INFO have millions that do not."""
    noise = raw.find(_NOISE)
    said = raw if noise < 0 else raw[:noise]
    if noise >= 0 and b"  " not in said:  # columns are further apart
        return False
    lowered = said.lower()
    return any(word in lowered for word in _WORDS) or _NUMBERS.match(said) is not None


def cleaned(line: str) -> str:
    """Return a line without colours, the prefixes of Open MPI, messages of NCCL and the end of line."""
    text = _COLOURS.sub("", line.rstrip("\r\n").rpartition("\r")[2])
    return _MESSAGE.sub("", _LAUNCHERS.sub(" ", text)).replace("\x00", "")


def _refuse_binary(start: bytes, place: str) -> None:
    packed = next((name for magic, name in _ZIPPED.items() if start.startswith(magic)), None)
    if packed:
        raise InputError(f"is {packed}-compressed", place=place, hint="unpack it first")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError("is UTF-16 text", place=place, hint="save it as UTF-8 (PowerShell: Out-File -Encoding utf8)")
    if start.count(b"\x00") > len(start) // 100:
        raise InputError("is a binary file, not a log", place=place, hint="give the text that the benchmark printed")
