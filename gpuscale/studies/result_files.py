"""Results of a study as a file: Parquet, CSV or JSON lines, by its ending, written while they come."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from gpuscale.errors import InputError, shown
from gpuscale.files import csv_cell, is_file, is_stdout, refuse_output, writing
from gpuscale.studies.cases import Row
from gpuscale.version import __version__

SCHEMA = "gpuscale.sweep/1"
"""Name and version of the form of the rows, in the metadata of Parquet and in JSON."""

ROWS_AT_ONCE = 5000
"""Rows of a row group of Parquet, which are in memory together."""

Columns = Mapping[str, type]
"""Column -> type of its values, `bool`, `int`, `float` or `str`; each may also be None."""


def check_output(path: Path) -> None:
    """Refuse a file that results cannot be written to, before the study that fills it.

    Raises:
        InputError: an unknown ending, a library that is not installed, or a file that cannot be written.
    """
    if path.suffix.lower() not in _WRITERS or is_stdout(path):
        hint = f"end its name in {', '.join(_WRITERS)}"
        raise InputError(f"{shown(str(path))} is not a file of results", field="output", hint=hint)
    if path.suffix.lower() == ".parquet":
        needs("pyarrow", "Parquet files")
    refuse_output(path)


def refuse_foreign(path: Path) -> None:
    """Refuse to replace a file that holds something else than results of a study.

    Raises:
        InputError: there is such a file.
    """
    if is_file(path) and path.stat().st_size and not _holds_results(path):
        hint = "write to another file, or say that it may go: `force`"
        raise InputError("holds something else than results of a study", place=repr(str(path)[:300]), hint=hint)


def _holds_results(path: Path) -> bool:
    if path.suffix.lower() == ".parquet":
        import pyarrow  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415

        try:
            return (parquet.read_schema(path).metadata or {}).get(b"schema") == SCHEMA.encode()
        except (OSError, pyarrow.ArrowException):
            return False
    with path.open("rb") as file:  # which does not make it an input that may not be replaced
        return file.read(64).startswith((b"key,task,status,reason", b'{"key":'))


def write_results(path: Path, columns: Columns, rows: Iterator[Row]) -> int:
    """Write the results of a study, whole or not at all, and return how many rows they are.

    At most `ROWS_AT_ONCE` rows are in memory; the same rows give the same bytes.

    Args:
        columns: in their order; a row without one has None there.

    Raises:
        InputError: as `check_output`.
    """
    check_output(path)
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for count, row in enumerate(in_columns(columns, rows), 1):  # noqa: B007 - it is what is returned
            yield row

    with writing(path) as file:
        _WRITERS[path.suffix.lower()](file, columns, counted())
    return count


def in_columns(columns: Columns, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows with a value or None in each column, of its type."""
    for row in rows:
        yield {name: _fitted(row.get(name), kind) for name, kind in columns.items()}


def needs(library: str, what: str) -> None:
    """Refuse what an extra of the package is for where that is not installed.

    Args:
        what: what needs the library, in the plural, for the message.
    """
    try:
        __import__(library)
    except ImportError:
        hint = "pip install 'gpuscale[sweep]'"
        raise InputError(f"{what} need {library}, which is not installed", hint=hint) from None


def _fitted(value: Any, kind: type) -> Any:
    if value is None or kind in {bool, int}:
        return value
    if kind is float:
        return float(value)
    if isinstance(value, list | tuple):
        return "; ".join(_fitted(one, str) for one in value)
    return str(value).encode("utf-8", "replace").decode()


def _parquet(file: IO[bytes], columns: Columns, rows: Iterator[Row]) -> None:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415

    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    about = {"schema": SCHEMA, "gpuscale": __version__}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata=about)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in iter(lambda: list(islice(rows, ROWS_AT_ONCE)), []):
            arrays = [pa.array([row[one.name] for row in group], one.type) for one in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _csv(file: IO[bytes], columns: Columns, rows: Iterator[Row]) -> None:
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(chain([map(csv_cell, columns)], (map(csv_cell, row.values()) for row in rows)))
    text.detach()


_WRITERS: Mapping[str, Callable[[IO[bytes], Columns, Iterator[Row]], None]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".jsonl": lambda file, _, rows: file.writelines(
        json.dumps(row, allow_nan=False, ensure_ascii=False).encode() + b"\n" for row in rows
    ),
}
