"""Measurement files: bounded reading of a CSV file and what kind of measurements its header says it holds.

Nothing in a file is trusted: its size, its rows, its columns and its fields are bounded.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscale.errors import InputError, nearest
from gpuscale.presets.text import read_text
from gpuscale.units import MIB
from gpuscale.validation.cells import Row

MAX_FILE_BYTES = 128 * MIB
MAX_ROWS = 200_000
MAX_COLUMNS = 200
MAX_FIELD_CHARACTERS = 8192

REQUIRED = {
    "collectives": ("id", "collective", "gpu", "gpus", "bytes", "time_us"),
    "kernels": ("id", "gpu", "kind", "dtype", "m", "n", "k", "tflops"),
    "runs": ("id", "gpu", "gpus", "model", "gbs", "seq"),
}
"""Kind of file -> columns that tell it. More columns may be there, in any order; docs/validation.md describes them."""

OUTCOMES = ("step_s", "tokens_s_gpu", "tflops_gpu", "mfu", "hfu", "mem_gib")
"""Columns of a run that are measured. A file of runs in which none of them is filled lists runs that failed."""


@dataclass(frozen=True)
class Measurements:
    """A file of measurements.

    Attributes:
        kind: `runs`, `oom`, `kernels` or `collectives`.
    """

    path: Path
    kind: str
    rows: tuple[Row, ...]


def read_measurements(path: Path) -> Measurements:
    """Read a CSV file with a header.

    Raises:
        InputError: not readable, not UTF-8, too large, no known kind of header, a row of the wrong length, an id
            missing or given twice; the place says file and line.
    """
    text = read_text(path, MAX_FILE_BYTES, "a file of measurements")
    records = list(_records(path, text))
    if not records:
        raise InputError("is empty", place=str(path), hint="the first line names the columns")
    (line, names), *body = records
    header = _header(names, f"{path}:{line}")
    kind = _kind(header, f"{path}:{line}")
    rows = tuple(_row(header, fields, f"{path}:{number}") for number, fields in body)
    _check_ids(rows)
    if kind == "runs" and rows and not any(row.raw(name) for row in rows for name in OUTCOMES):
        kind = "oom"
    return Measurements(path, kind, rows)


def _records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, fields) of each record that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    count, start = 0, 1
    try:
        for fields in reader:
            if any(fields):
                _check_record(fields, f"{path}:{start}")
                count += 1
                if count > MAX_ROWS + 1:
                    raise InputError(f"more than {MAX_ROWS:,} rows", place=f"{path}:{start}")
                yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"not valid CSV: {error}", place=f"{path}:{reader.line_num}") from None


def _check_record(fields: Sequence[str], place: str) -> None:
    if len(fields) > MAX_COLUMNS:
        raise InputError(f"{len(fields):,} columns, at most {MAX_COLUMNS}", place=place)
    longest = max(map(len, fields))
    if longest > MAX_FIELD_CHARACTERS:
        raise InputError(f"a field of {longest:,} characters, at most {MAX_FIELD_CHARACTERS:,}", place=place)


def _header(names: Sequence[str], place: str) -> tuple[str, ...]:
    header = tuple(name.strip().lower() for name in names)
    for name in header:
        if name and header.count(name) > 1:
            raise InputError(f"column {name[:40]!r} is given twice", place=place)
    return header


def _kind(header: Sequence[str], place: str) -> str:
    for kind, required in REQUIRED.items():
        if set(required) <= set(header):
            return kind
    kind = min(REQUIRED, key=lambda kind: len(set(REQUIRED[kind]) - set(header)))
    missing = [name for name in REQUIRED[kind] if name not in header]
    close = {name: nearest(name, header, 1) for name in missing}
    like = ", ".join(f"{found[0]!r} may be meant as {name}" for name, found in close.items() if found)
    raise InputError(
        f"not a file of runs, kernels or collectives; nearest to {kind}, without {', '.join(missing)}",
        place=place,
        hint=like[:300] or f"a file of {kind} has at least the columns {', '.join(REQUIRED[kind])}",
    )


def _row(header: Sequence[str], fields: Sequence[str], place: str) -> Row:
    if len(fields) != len(header):
        raise InputError(f"{len(fields)} fields, but {len(header)} columns", place=place)
    return Row({name: field.strip() for name, field in zip(header, fields, strict=True)}, place)


def _check_ids(rows: Sequence[Row]) -> None:
    seen: dict[str, str] = {}
    for row in rows:
        name = row.raw("id")
        if not name:
            raise InputError("the row has no id", place=row.place, hint="give every row a name of its own")
        if name in seen:
            line = seen[name].rpartition(":")[2]
            raise InputError(f"id {name[:60]!r} is given twice, first on line {line}", place=row.place)
        seen[name] = row.place
