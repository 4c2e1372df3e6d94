"""Plain output: JSON, and text and tables that are known to fit, without Rich.

Importing Rich and drawing one table with it takes longer than searching the layouts of a dense model. What has to wrap
inside its cells is drawn by `gpuscale.render.console`.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 100
"""Columns that every table fits, used when the output is not a terminal and COLUMNS is not set."""

BOLD, NORMAL = "\x1b[1m", "\x1b[0m"


def chosen_width() -> int | None:
    """Return the columns that the variable COLUMNS asks for, at least 40; None where it does not."""
    columns = os.environ.get("COLUMNS", "")
    return max(40, int(columns)) if columns.isdigit() and int(columns) > 0 else None


def output_width() -> int:
    """Return the columns of stdout: what COLUMNS says, else those of the terminal, else `WIDTH`."""
    chosen = chosen_width()
    if chosen is None and sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return chosen or WIDTH


def write(text: str = "") -> None:
    """Write a text to stdout, and end the line."""
    sys.stdout.write(text + "\n")


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, gap: int = 2) -> str:
    """Return a table as text; the first `left` columns are text, the others numbers (right-aligned), `gap` apart.

    Headers are bold at a terminal, and stand above a line that is one of hyphens where stdout has no other.
    """
    lines = [headers, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headers))]
    head, *body = (
        (" " * gap).join(
            text.ljust(width) if index < left else text.rjust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    if sys.stdout.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}:
        head = f"{BOLD}{head}{NORMAL}"
    rule = "─" if (sys.stdout.encoding or "utf-8").lower().startswith("utf") else "-"
    return "\n".join([head, rule * (sum(widths) + gap * (len(widths) - 1)), *body])


def print_json(schema: str, body: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout: `{"schema": "gpuscale.<command>/1", ...}`, keys in a fixed order.

    Raises:
        ValueError: a value is not finite (JSON has no NaN or infinity).
    """
    import json  # noqa: PLC0415 - text does without it

    document = {"schema": schema, **body}
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Turn NumPy scalars into Python numbers."""
    item = value.item()
    if isinstance(item, float) and not math.isfinite(item):
        raise ValueError("not finite")
    return item
