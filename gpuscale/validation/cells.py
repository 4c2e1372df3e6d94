"""Cells of a CSV row as numbers, with the row and the column in every complaint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.errors import InputError


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a measurement file.

    Attributes:
        cells: column -> text, stripped; missing columns read as empty.
        place: file and line, for messages.
    """

    cells: Mapping[str, str]
    place: str

    def text(self, name: str) -> str:
        """The cell in lower case, empty when absent."""
        return self.cells.get(name, "").lower()

    def whole(self, name: str, default: int | None = None) -> int | None:
        """The cell as a whole number of at least 0, or `default` when it is empty."""
        value = self.number(name)
        if value is None:
            return default
        if value < 0 or value != int(value):
            raise self.error(name, "is not a whole number")
        return int(value)

    def number(self, name: str) -> float | None:
        """The cell as a finite number, or None when it is empty."""
        text = self.cells.get(name, "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, "is not a number") from None
        if not math.isfinite(value) or abs(value) > 1e18:
            raise self.error(name, "is out of range")
        return value

    def error(self, name: str, problem: str) -> InputError:
        """Build the error for a cell."""
        return InputError(f"{name} {self.cells.get(name, '')[:40]!r} {problem}", place=self.place)
