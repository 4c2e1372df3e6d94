"""One log of a benchmark, judged: what it measured, or the one reason why it cannot be used.

nccl-tests prints busbw = algbw * f with f = 2(n-1)/n for AllReduce, (n-1)/n for AllGather, ReduceScatter and AllToAll,
and 1 for the others (doc/PERFORMANCE.md), which tells operation and GPUs of a table without a header.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuscale.calibration.gpu_protocol import is_protocol, read_protocol
from gpuscale.calibration.tables import FORMATS, MAX_ROWS, Sample, Table, read_tables
from gpuscale.errors import InputError
from gpuscale.files import reads, refuse_irregular
from gpuscale.units import plural

DISAGREE = 0.1
"""Largest difference of size / time from the printed algbw; nccom-test's GB are 2^30 bytes, which is 7 %."""

OPERATIONS = {
    name: name.replace("_", "")
    for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")
}
"""nccl-tests' name of an operation -> gpuscale's."""

_ROOTED = ("gather", "scatter")
_ALL = (*OPERATIONS, *_ROOTED, "alltoallv", "hypercube")
"""With further tests of nccl-tests and rccl-tests; nothing in a training step stands for them."""

_FACTOR_ONE = ("broadcast", "reduce", "sendrecv", "hypercube")
_HALF_DIGIT = 0.00501
"""Rounding of algbw and busbw, which are printed with two digits [GB/s]."""

Span = tuple[float, float]
"""Least and largest f = busbw / algbw that the printed digits allow."""


@dataclass(frozen=True)
class Measured:
    """One table of a log."""

    operation: str  #: one of `collectives.OPERATIONS`.
    ranks: int
    per_host: int | None  #: GPUs of one host that took part; None where the log does not say.
    gpu: str  #: name of the GPU in the log; may be empty.
    place: str  #: file and line of the table.
    file: str
    samples: tuple[Sample, ...]
    counted: bool = False  #: the ranks are those that busbw / algbw gives; the log does not list them.


class Log(NamedTuple):
    """All usable tables of a log, and what a reader should know about the others."""

    measured: tuple[Measured, ...]
    notes: tuple[str, ...]


@reads("collectives", "protocol")
def read_log(
    path: Path,
    *,
    op: str | None = None,
    gpus: int | None = None,
    per_host: int | None = None,
    check: Callable[[Measured], object] = id,
) -> Log:
    """Read the log of nccl-tests, rccl-tests, nccom-test or a torch all_reduce_bench.

    Args:
        op: the operation that was measured, one of `collectives.OPERATIONS`, where the log does not say it.
        gpus, per_host: GPUs that took part, and of each host.
        check: refuses tables, by an `InputError`, which are then left out.

    Raises:
        InputError: nothing of it can be used; the message says why, with file and line.
    """
    refuse_irregular(path, "a log", FORMATS)
    if is_protocol(path):
        return _of_protocol(path, op, gpus)
    tables, beyond = read_tables(path)
    measured: list[Measured] = []
    notes: list[str] = []
    errors: list[InputError] = []
    for table in tables:
        try:
            found = _measured(path, table, op, gpus, per_host)
            check(found)
        except InputError as error:
            errors.append(error)
        else:
            measured.append(found)
            notes += _notes(path, table)
    if not measured:
        nothing = InputError("no table of results found", place=str(path)[:300], hint=FORMATS)
        raise (errors or [nothing])[0]
    notes += [f"left out: {path.name}:{(one.place or '').rpartition(':')[2]}: {one.message}" for one in errors]
    if beyond is not None:
        notes.append(f"{path.name}: more than {MAX_ROWS:,} rows; those from line {beyond:,} on are left out")
    return Log(tuple(measured), tuple(notes))


def _of_protocol(path: Path, op: str | None, gpus: int | None) -> Log:
    protocol = read_protocol(path)
    samples: dict[tuple[str, int], list[Sample]] = {}
    for one in protocol.measurements:
        sizes = dict(one.case)
        if sizes["kind"] == "collective" and one.time_s and op in {None, sizes["op"]} and gpus in {None, sizes["gpus"]}:
            found = samples.setdefault((sizes["op"], sizes["gpus"]), [])
            found.append(Sample(1, sizes["bytes"], one.time_s * 1e6, 0.0, 0.0))
    if not samples:
        hint = "`gpuscale calibrate gpu` measures them where there are several GPUs"
        raise InputError("holds no collective that was measured", place=str(path)[:300], hint=hint)
    place, gpu = f"{str(path)[:300]}:1", protocol.machine.gpu
    return Log(tuple(Measured(*key, key[1], gpu, place, path.name, tuple(rows)) for key, rows in samples.items()), ())


def _measured(path: Path, table: Table, op: str | None, gpus: int | None, per_host: int | None) -> Measured:
    place = f"{str(path)[:300]}:{table.line or 1}"
    _refuse_empty(path, table)
    _leave_out_disagreeing(path, table)
    span = _factor(table)
    ranks = gpus if gpus is not None else max(table.ranks) + 1 if table.ranks else table.told_ranks
    if ranks is not None and ranks < 2:
        raise InputError("fewer than two GPUs exchange nothing", place=place, hint="give a log of 2 or more ranks")
    name = _operation(path.name, place, table, op, ranks, span)
    if name not in OPERATIONS:
        known = f"it evaluates {', '.join(OPERATIONS)}"
        raise InputError(f"{name} is not an operation that gpuscale evaluates", place=place, hint=known)
    counted = ranks is None
    if ranks is None:  # the only number that busbw / algbw allows
        low, high = (span and _ranks_by_factor(name, span)) or (0, 0)
        if low != high or low < 2:
            some = f"; busbw / algbw is that of {low:,} to {high:,}" if low else ""
            hint = "say so: `gpus=N`, and `per_host=N`"
            raise InputError(f"does not say how many GPUs took part{some}", place=place, hint=hint)
        ranks = low
    expected = _expected_factor(name, ranks)
    if span is not None and not span[0] <= expected <= span[1]:
        message = f"busbw / algbw is {sum(span) / 2:.4g}, but {name} over {ranks} GPUs has {expected:.4g}"
        raise InputError(message, place=place, hint="say another operation or number of GPUs")
    per_host = per_host if per_host is not None else _per_host(table, place)
    samples = tuple(table.samples)
    return Measured(OPERATIONS[name], ranks, per_host, table.gpu, place, path.name, samples, counted)


def _refuse_empty(path: Path, table: Table) -> None:
    if table.samples:
        return
    line, message, hint = table.line or 1, "the table has no usable row", "the log ends before the first result"
    if table.failure:
        line, message = table.failure[0], f"the run failed before any size was measured: {table.failure[1][:120]!r}"
        hint = "run it again, or leave this log out; a failed run says nothing about speed"
    elif table.wrong:
        line, message = table.wrong[0], f"all {plural(len(table.wrong), 'row')} have wrong results (#wrong is not 0)"
        hint = "find out why first: the speed of wrong results says nothing"
    elif table.unusable:
        line, message = table.unusable[0], f"none of {plural(len(table.unusable), 'row')} has a possible time"
        hint = "times are read as nccl-tests prints them, in us and with a decimal point"
    elif table.cut:
        line, message = table.cut[0], f"none of {plural(len(table.cut), 'row')} is whole"
        hint = "give the log as it was printed"
    raise InputError(message, place=f"{str(path)[:300]}:{line}", hint=hint)


def _leave_out_disagreeing(path: Path, table: Table) -> None:
    """Leave out garbled rows; refuse a table in other units, where most rows contradict themselves."""

    gb_per_s = {one: one.bytes / one.time_us / 1e3 for one in table.samples}
    odd = [one for one in table.samples if one.algbw >= 1 and abs(gb_per_s[one] / one.algbw - 1) > DISAGREE]
    if 2 * len(odd) > len(table.samples):
        first = odd[0]
        rate = f"{first.bytes} bytes in {first.time_us:g} us are {gb_per_s[first]:.4g} GB/s"
        hint = "time is read in us and algbw in 1e9 bytes/s, as nccl-tests prints them"
        raise InputError(f"{rate}, but algbw says {first.algbw:g}", place=f"{str(path)[:300]}:{first.line}", hint=hint)
    if odd:
        table.samples = [one for one in table.samples if one not in odd]
        table.cut = sorted([*table.cut, *(one.line for one in odd)])


def _factor(table: Table) -> Span | None:
    """The range of f on which all rows with enough digits agree."""
    low, high = 0.0, 4.0
    rows = [one for one in table.samples if min(one.algbw, one.busbw) > 0.2]
    for one in rows:
        below = (one.busbw - _HALF_DIGIT) / (one.algbw + _HALF_DIGIT)
        above = (one.busbw + _HALF_DIGIT) / (one.algbw - _HALF_DIGIT)
        if below <= high and above >= low:  # a row that contradicts the others does not count
            low, high = max(low, below), min(high, above)
    return (low, high) if rows else None


def _expected_factor(name: str, ranks: int) -> float:
    if name in _FACTOR_ONE:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if name == "all_reduce" else share


def _ranks_by_factor(name: str, span: Span) -> tuple[int, int] | None:
    """Least and largest number of ranks for which f is in `span`."""
    scale = 2.0 if name == "all_reduce" else 1.0
    if name in _FACTOR_ONE or span[1] >= scale:
        return None
    first, last = max(math.ceil(scale / (scale - span[0])), 2), math.floor(scale / (scale - span[1]))
    return (first, last) if first <= last else None


def _operation(file: str, place: str, table: Table, op: str | None, ranks: int | None, span: Span | None) -> str:
    """Told, named in the log, or the only one that fits."""
    if op is not None:
        return next(name for name, ours in OPERATIONS.items() if ours == op)
    fitting = _candidates(table, ranks, span)
    named = _name_in(file) if table.named is None else table.named
    if named in fitting:
        return str(named)
    if not fitting:
        spans = {name: span and _ranks_by_factor(name, span) for name in _candidates(table, None, span)}
        texts = [f"{name} over {' to '.join(f'{n:,}' for n in sorted({*one}))}" for name, one in spans.items() if one]
        other = f", but {' or '.join(texts)}" if texts else ""
        message = f"busbw / algbw fits no operation over {ranks} GPUs{other}"
        hint = "say how many took part: `gpus=N`, or which operation it is: `op=OP`"
        raise InputError(message, place=place, hint=hint)
    likely = [name for name in fitting if name in OPERATIONS] or fitting
    if table.named in _ALL:
        message = f"the log names {table.named}, but the table has the columns of {' or '.join(likely)}"
        raise InputError(message, place=place, hint="say which: `op=OP`")
    if len(likely) > 1:
        message = f"does not say which operation it measured ({' or '.join(likely)})"
        raise InputError(message, place=place, hint="say so: `op=OP`")
    return likely[0]


def _candidates(table: Table, ranks: int | None, span: Span | None) -> list[str]:
    found = [name for name in _ALL if _columns_fit(table, name)]
    if span is None:
        return found
    low, high = span
    if ranks is not None:
        return [name for name in found if low <= _expected_factor(name, ranks) <= high]
    one = dict.fromkeys(_FACTOR_ONE, low <= 1.0 <= high)
    return [name for name in found if {"all_reduce": high >= 1.0, **one}.get(name, low < 1.0)]


def _columns_fit(table: Table, name: str) -> bool:
    reduces = table.redop not in {"", "none"}
    if table.root is not None and table.root >= 0:
        return name == "reduce" if reduces else name in {"broadcast", *_ROOTED}
    if table.root is not None and name in {"broadcast", "reduce", *_ROOTED}:
        return False
    if table.unchecked and name not in {"alltoall", "alltoallv", "sendrecv", "hypercube"}:
        return False
    if reduces:
        return name in {"all_reduce", "reduce_scatter", "sendrecv"}
    if table.redop == "none" or table.root is not None:
        return name in {"all_gather", "alltoall", "alltoallv", "sendrecv", "hypercube"}
    return name != "reduce"


def _name_in(text: str) -> str | None:
    key = re.sub(r"[^a-z]", "", text.lower())
    known = {name.replace("_", ""): name for name in _ALL} | {"sendreceive": "sendrecv"}
    found = [(key.find(short), key.find(short) + len(short), name) for short, name in known.items() if short in key]

    def inside(start: int, end: int) -> bool:
        """Whether a name is but a part of another: `reduce` in `allreduce`."""
        return any(first <= start and end <= last and end - start < last - first for first, last, _ in found)

    names = {name for start, end, name in found if not inside(start, end)}
    return names.pop() if len(names) == 1 else None


def _per_host(table: Table, place: str) -> int | None:
    counts = sorted(Counter(table.ranks.values()).values())
    if not counts or len(table.ranks) <= max(table.ranks):  # rank lines are missing
        return table.told_per_node
    if counts[0] < counts[-1]:
        message = f"the hosts have between {counts[0]} and {counts[-1]} ranks each"
        raise InputError(message, place=place, hint="measure with as many on each host")
    return counts[0]


def _notes(path: Path, table: Table) -> Iterator[str]:
    where = f"{path.name}:{table.line or 1}"
    lines = (table.wrong, table.unusable, table.cut)
    for what, left in zip(("with wrong results", "without a possible time", "cut off or garbled"), lines, strict=True):
        if left:
            yield f"{where}: {plural(len(left), 'row')} {what} left out (line {left[0]})"
    if table.failure and table.done:
        yield f"{where}: a failure is reported below the table (line {table.failure[0]})"
    elif table.failure:
        yield f"{where}: the run failed (line {table.failure[0]}); what it measured before is used"
    elif not table.done:
        yield f"{where}: the log ends within the table; the {len(table.samples)} rows there are used"
