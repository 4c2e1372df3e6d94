"""Where output goes: data to stdout, everything else to stderr; 100 columns unless the terminal says otherwise."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDTH = 100
"""Columns that every table fits, used when the output is not a terminal and COLUMNS is not set."""


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout (or stderr) that honours NO_COLOR, COLUMNS and pipes."""
    stream = sys.stderr if stderr else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    fixed = columns.isdigit() and int(columns) > 0
    width = None if stream.isatty() and not fixed else max(40, int(columns)) if fixed else WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, title: str | None = None, gap: int = 2
) -> Table:
    """Build an aligned table; the first `left` columns are text, the others numbers (right-aligned), `gap` apart."""
    drawn = Table(
        box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False, padding=(0, gap - 1, 0, 0)
    )
    for index, header in enumerate(headers):
        drawn.add_column(header, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def print_json(schema: str, body: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout: `{"schema": "gpuscale.<command>/1", ...}`, keys in a fixed order.

    Raises:
        ValueError: a value is not finite (JSON has no NaN or infinity).
    """
    document = {"schema": schema, **body}
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Turn NumPy scalars into Python numbers."""
    item = value.item()
    if isinstance(item, float) and not math.isfinite(item):
        raise ValueError("not finite")
    return item


def report(message: str) -> None:
    """Write a line for the person at the terminal to stderr."""
    console(stderr=True).print(message)
