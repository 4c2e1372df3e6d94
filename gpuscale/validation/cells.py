"""Cells of a CSV row as numbers, with the row and the column in every complaint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.errors import InputError

LIMITS = {
    "gpus": 1 << 20, "gpus_per_node": 1 << 20, "tp": 1 << 20, "pp": 1 << 20, "cp": 1 << 20, "ep": 1 << 20,
    "etp": 1 << 20, "dp": 1 << 20,
    "vp": 1 << 12, "mbs": 1 << 16, "gbs": 1 << 24, "seq": 1 << 24, "layers": 1 << 12, "hidden": 1 << 20,
    "heads": 1 << 12, "kv_heads": 1 << 12, "ffn": 1 << 22, "vocab": 1 << 24, "experts": 1 << 14, "topk": 1 << 10,
    "moe_ffn": 1 << 22,
}  # fmt: skip
"""Largest value of each column that says how much work there is: ten times what was ever trained, or more."""


@dataclass(frozen=True)
class Row:
    """One row of a measurement file.

    Attributes:
        cells: column -> text, stripped; missing columns read as empty.
        place: file and line, for messages.
    """

    cells: Mapping[str, str]
    place: str

    def raw(self, name: str) -> str:
        """The cell as it stands, empty when absent."""
        return self.cells.get(name, "")

    def text(self, name: str) -> str:
        """The cell in lower case, empty when absent."""
        return self.cells.get(name, "").lower()

    @property
    def wording(self) -> str:
        """What the columns `settings` and `notes` say in words, in lower case."""
        return f"{self.text('settings')}; {self.text('notes')}"

    def whole(self, name: str, default: int | None = None) -> int | None:
        """The cell as a whole number of at least 0, or `default` when it is empty."""
        value = self.number(name)
        if value is None:
            return default
        if value < 0 or value != int(value):
            raise self.error(name, "is not a whole number")
        limit = LIMITS.get(name, 10**15)
        if value > limit:
            raise self.error(name, f"is above {limit:,}")
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

    def positive(self, name: str) -> float | None:
        """The cell as a number above 0, or None when it is empty: a measurement."""
        value = self.number(name)
        if value is not None and value < 1e-15:
            raise self.error(name, "is not above 0")
        return value

    def error(self, name: str, problem: str) -> InputError:
        """Build the error for a cell."""
        return InputError(f"{name} {self.cells.get(name, '')[:40]!r} {problem}", place=self.place)
