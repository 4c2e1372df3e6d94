"""Answers for programs: JSON and CSV whose keys are the fields of the results."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from gpuscale.files import csv_cell
from gpuscale.units import unit_of


def print_json(command: str, result: Any, **more: Any) -> None:
    """Write one JSON document to stdout: `{"schema": "gpuscale.<command>/1", ...}`, keys in a fixed order: of a
    mapping, or the fields of a result, and `more`.

    Raises:
        ValueError: a value is not finite (JSON has no NaN or infinity).
    """
    document = {"schema": f"gpuscale.{command}/1", **json_type(result), **more}
    sys.stdout.writelines(json.JSONEncoder(indent=2, allow_nan=False, default=json_type).iterencode(document))
    sys.stdout.write("\n")


def print_csv(rows: Sequence[Any]) -> None:
    """Write rows to stdout as CSV, a column for each field."""
    print_rows_csv(json_type(rows[0]), map(json_type, rows))


def print_rows_json(command: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write many rows as `rows` of one JSON document while they come."""
    rows = _begun(rows)
    sys.stdout.write(f'{{"schema": "gpuscale.{command}/1", "rows": [')
    for index, row in enumerate(rows):
        sys.stdout.write(f"{',' if index else ''}\n{json.dumps(row, allow_nan=False)}")
    sys.stdout.write("\n]}\n")


def print_rows_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write many rows as `print_csv` does, while they come."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    rows = _begun(rows)
    writer.writerow(map(csv_cell, columns))
    writer.writerows(map(csv_cell, row.values()) for row in rows)


def _begun(rows: Iterable[Any]) -> Iterator[Any]:
    """Return coming rows with the first worked out: a wrong question is said before its answer begins."""
    coming = iter(rows)
    return chain(list(islice(coming, 1)), coming)


def json_type(value: Any) -> Any:
    """Turn a result into an object, a path into text, a NumPy scalar into a number."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    item = value.item()
    if isinstance(item, float) and not math.isfinite(item):
        raise ValueError("not finite")
    return item


def picked(item: Any, keys: str | Iterable[str]) -> dict[str, Any]:
    """Return fields by JSON keys, in the units that these name: `clock_mhz` is `clock_hz` / 1e6."""
    found = {}
    for key in keys.split() if isinstance(keys, str) else keys:
        name, unit = (key, None) if hasattr(item, key) else unit_of(key)
        value = getattr(item, name)
        if value is not None and unit is not None:
            value = [one / unit for one in value] if isinstance(value, tuple) else value / unit
        found[key] = value
    return found


def known(item: Any, keys: str) -> dict[str, Any]:
    """Return fields as `picked` does, null where they say nothing."""
    return {key: value or None for key, value in picked(item, keys).items()}
