"""Finds rows of a table again by some of their fields."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, IntArray, distinct
from gpuscale.records import record


@record(eq=False)
class Numbers:
    """Numbers rows by the values of some fields.

    Attributes:
        names: the fields.
        values: of each the values that occur, ascending.
        keys: number of each known row, ascending; none where there are too many to number.
        places: index of each of them in its table.
    """

    names: tuple[str, ...]
    values: tuple[IntArray, ...]
    keys: IntArray
    places: npt.NDArray[np.intp]

    @classmethod
    def of(cls, table: Candidates, names: Sequence[str]) -> Numbers:
        """Number the rows of a table; of equal ones the first is found."""
        columns = [np.broadcast_to(getattr(table, name), (len(table),)) for name in names]
        values = tuple(column[distinct(column)[0]] for column in columns)
        key = np.zeros(len(table), dtype=np.int64)
        if float(np.prod([float(len(one)) for one in values])) > 2**62:
            return cls(tuple(names), values, key[:0], key[:0])
        for one, column in zip(values, columns, strict=True):
            key = key * len(one) + np.searchsorted(one, column)
        order = np.argsort(key, kind="stable")
        return cls(tuple(names), values, key[order], order)

    def find(self, rows: Candidates) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return where in the table each row stands, and whether it does; shape (rows,) each."""
        key, known = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=bool)
        if not len(self.keys):
            return key, ~known
        for name, values in zip(self.names, self.values, strict=True):
            column = getattr(rows, name)
            place = np.minimum(np.searchsorted(values, column), len(values) - 1)
            known = known & (values[place] == column)
            key = key * len(values) + place
        place = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return self.places[place], known & (self.keys[place] == key)


__all__ = ["Numbers"]
