"""Which operation a table measured, over how many GPUs: from names, columns and the ratio of busbw to algbw.

nccl-tests prints busbw = algbw * f with f = 2(n-1)/n for AllReduce, (n-1)/n for AllGather, ReduceScatter and AllToAll,
and 1 for the others (doc/PERFORMANCE.md), so that a table without a header still says much.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpuscale.calibration.tables import Table

PRICED = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "sendrecv",
}
"""nccl-tests' names of the operations that gpuscale prices."""

ROOTED = ("gather", "scatter")
OTHERS = (*ROOTED, "alltoallv", "hypercube")
"""Further tests of nccl-tests and rccl-tests; nothing in a training step stands for them."""

_ALL = (*PRICED, *OTHERS)
_HALF_DIGIT = 0.00501
"""Rounding of algbw and busbw, which are printed with two digits [GB/s]."""


@dataclass(frozen=True)
class Span:
    """Range of f = busbw / algbw that the printed digits allow."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether `value` is possible."""
        return self.low <= value <= self.high


def factor(table: Table) -> Span | None:
    """Return the range of f on which all rows with enough digits agree; None where none has."""
    low, high = 0.0, 4.0
    rows = [one for one in table.samples if one.algbw > 0.2 and one.busbw > 0.2]
    for one in rows:
        below = (one.busbw - _HALF_DIGIT) / (one.algbw + _HALF_DIGIT)
        above = (one.busbw + _HALF_DIGIT) / (one.algbw - _HALF_DIGIT)
        if below <= high and above >= low:  # a row that contradicts the others does not count
            low, high = max(low, below), min(high, above)
    return Span(low, high) if rows else None


def expected_factor(name: str, ranks: int) -> float:
    """Return nccl-tests' f of the test called `name`."""
    if name in {"broadcast", "reduce", "sendrecv", "hypercube"}:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if name == "all_reduce" else share


def ranks_by_factor(name: str, span: Span) -> tuple[int, int] | None:
    """Return the least and the largest number of ranks for which f is in `span`; None where f says nothing of them."""
    if expected_factor(name, 2) == 1.0 and name != "all_reduce":
        return None
    scale = 2.0 if name == "all_reduce" else 1.0
    if span.high >= scale:
        return None
    least, most = (scale / (scale - value) for value in (span.low, span.high))
    first, last = max(math.ceil(least), 2), math.floor(most)
    return (first, last) if first <= last else None


def candidates(table: Table, ranks: int | None, span: Span | None) -> list[str]:
    """Return the tests whose columns and factor are those of the table."""
    found = [name for name in _ALL if _columns_fit(table, name)]
    if span is None:
        return found
    if ranks is not None:
        return [name for name in found if span.holds(expected_factor(name, ranks))]
    fits = {
        "all_reduce": span.high >= 1.0,
        **dict.fromkeys(("broadcast", "reduce", "sendrecv", "hypercube"), span.holds(1.0)),
    }
    return [name for name in found if fits.get(name, span.low < 1.0)]


def _columns_fit(table: Table, name: str) -> bool:
    reduces = table.redop not in {"", "none"}
    if table.root is not None and table.root >= 0:
        return name == "reduce" if reduces else name in {"broadcast", "gather", "scatter"}
    if table.root is not None and name in {"broadcast", "reduce", *ROOTED}:
        return False
    if table.unchecked and name not in {"alltoall", "alltoallv", "sendrecv", "hypercube"}:
        return False
    if reduces:
        return name in {"all_reduce", "reduce_scatter", "sendrecv"}
    if table.redop == "none" or table.root is not None:
        return name in {"all_gather", "alltoall", "alltoallv", "sendrecv", "hypercube"}
    return name != "reduce"


def name_in(text: str) -> str | None:
    """Return the test that a file's name or an option means: `nccl-all-reduce.log`, `allgather_16.txt`."""
    key = re.sub(r"[^a-z]", "", text.lower())
    known = {name.replace("_", ""): name for name in _ALL} | {"sendreceive": "sendrecv", "alltoall": "alltoall"}
    found = [(key.find(short), -len(short), name) for short, name in known.items() if short in key]
    kept = [one for one in found if not any(_inside(one, other) for other in found)]
    names = {name for _, _, name in kept}
    return names.pop() if len(names) == 1 else None


def _inside(one: tuple[int, int, str], other: tuple[int, int, str]) -> bool:
    """Whether the first name is but a part of the second: `reduce` in `allreduce`."""
    start, length = one[0], -one[1]
    return length < -other[1] and other[0] <= start and start + length <= other[0] - other[1]
