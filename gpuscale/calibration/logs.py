"""One log of a benchmark, read: what it measured, or the one reason why it cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuscale.calibration import identify
from gpuscale.calibration.lines import relevant_lines
from gpuscale.calibration.tables import MAX_ROWS, Sample, Table, TableReader
from gpuscale.calibration.torchbench import TorchBench
from gpuscale.errors import InputError

DISAGREE = 0.1
"""Largest difference of size / time from the printed algbw; nccom-test's GB are 2^30 bytes, which is 7 %."""


@dataclass(frozen=True)
class Told:
    """What the user says about logs that do not say it themselves."""

    operation: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None


@dataclass(frozen=True)
class Measured:
    """One table of a log.

    Attributes:
        operation: one of `collectives.OPERATIONS`.
        ranks: GPUs that took part.
        per_host: GPUs of one host that took part; None where the log does not say.
        gpu: name of the GPU in the log; may be empty.
        place: file and line of the table.
        file: name of the file.
        samples: what was measured.
        counted: the ranks are those that busbw / algbw gives; the log does not list them.
    """

    operation: str
    ranks: int
    per_host: int | None
    gpu: str
    place: str
    file: str
    samples: tuple[Sample, ...]
    counted: bool = False


@dataclass(frozen=True)
class Log:
    """All usable tables of a log, and what a reader should know about the others."""

    measured: tuple[Measured, ...]
    notes: tuple[str, ...]


def read_log(path: Path, told: Told | None = None) -> Log:
    """Read the log of nccl-tests, rccl-tests, nccom-test or a torch all_reduce_bench.

    Raises:
        InputError: nothing of it can be used; the message says why, with file and line.
    """
    told = told or Told()
    tables, beyond = _tables(path)
    measured: list[Measured] = []
    notes: list[str] = []
    reasons: list[InputError] = []
    for table in tables:
        try:
            measured.append(_measured(path, table, told))
            notes.extend(_notes(path, table))
        except InputError as error:
            reasons.append(error)
    if not measured:
        raise reasons[0] if reasons else _nothing(path)
    notes += [left_out(path, error) for error in reasons]
    if beyond is not None:
        notes.append(f"{path.name}: more than {MAX_ROWS:,} rows; those from line {beyond:,} on are left out")
    return Log(tuple(measured), tuple(notes))


def left_out(path: Path, error: InputError) -> str:
    """Say which table of a log is not used, and why."""
    return f"left out: {path.name}:{(error.place or '').rpartition(':')[2]}: {error.message}"


def _tables(path: Path) -> tuple[list[Table], int | None]:
    """Return the tables of a log, and the line from which on it is not read, if it has too many rows."""
    reader, bench, hints = TableReader(), TorchBench(), set[str]()
    for number, text in relevant_lines(path):
        reader.feed(number, text)
        bench.feed(number, text)
        hints.update(name for mark, name in _ELSEWHERE.items() if mark in text)
    tables, torch = reader.read(()), bench.table()
    if torch and all(table.empty for table in tables):
        return [torch], bench.beyond
    if not tables and hints:
        raise InputError(f"is the output of {min(hints)}, which is not read", place=str(path)[:300], hint=_KNOWN)
    return tables, reader.beyond


_ELSEWHERE = {
    "COMMS-RES": "PARAM comms",
    "OSU ": "the OSU micro-benchmarks",
    "---- Performance of ": "DeepSpeed's communication benchmark",
}
_KNOWN = "formats read: nccl-tests, rccl-tests, nccom-test, torch all_reduce_bench"


def _nothing(path: Path) -> InputError:
    return InputError("no table of results found", place=str(path)[:300], hint=_KNOWN)


def _measured(path: Path, table: Table, told: Told) -> Measured:
    place = f"{str(path)[:300]}:{table.line or 1}"
    _refuse_empty(path, table)
    _leave_out_disagreeing(path, table)
    span = identify.factor(table)
    ranks = _told_ranks(table, told)
    name = _operation(path, table, told, ranks, span)
    if name not in identify.PRICED:
        known = ", ".join(identify.PRICED)
        raise InputError(f"{name} is not an operation that gpuscale prices", place=place, hint=f"it prices {known}")
    counted = ranks is None
    if ranks is None:
        ranks = _counted_ranks(name, span, place)
    if span is not None and not span.holds(identify.expected_factor(name, ranks)):
        low, high = span.low, span.high
        raise InputError(
            f"busbw / algbw is {(low + high) / 2:.4g}, but {name} over {ranks} GPUs has "
            f"{identify.expected_factor(name, ranks):.4g}",
            place=place,
            hint="check --op and --gpus",
        )
    if ranks < 2:
        raise InputError("one GPU exchanges nothing", place=place, hint="give a log of 2 or more ranks")
    return Measured(
        operation=identify.PRICED[name],
        ranks=ranks,
        per_host=_per_host(table, told, place),
        gpu=table.gpu,
        place=place,
        file=path.name,
        samples=tuple(table.samples),
        counted=counted,
    )


def _counted_ranks(name: str, span: identify.Span | None, place: str) -> int:
    """Return the only number of ranks that busbw / algbw allows."""
    found = identify.ranks_by_factor(name, span) if span is not None else None
    if found is not None and found[0] == found[1]:
        return found[0]
    some = f"; busbw / algbw is that of {found[0]:,} to {found[1]:,}" if found is not None else ""
    hint = "say so: --gpus N, and --gpus-per-node N"
    raise InputError(f"does not say how many GPUs took part{some}", place=place, hint=hint)


def _refuse_empty(path: Path, table: Table) -> None:
    if table.samples:
        return

    def error(line: int, message: str, hint: str) -> InputError:
        return InputError(message, place=f"{str(path)[:300]}:{line}", hint=hint)

    if table.failure:
        line, text = table.failure
        hint = "run it again, or leave this log out; a failed run says nothing about speed"
        raise error(line, f"the run failed before any size was measured: {text[:120]!r}", hint)
    if table.wrong:
        hint = "find out why first: the speed of wrong results says nothing"
        raise error(table.wrong[0], f"all {_rows(table.wrong)} have wrong results (#wrong is not 0)", hint)
    if table.unusable:
        hint = "times are read as nccl-tests prints them, in us and with a decimal point"
        raise error(table.unusable[0], f"none of {_rows(table.unusable)} has a time that can be", hint)
    if table.cut:
        raise error(table.cut[0], f"none of {_rows(table.cut)} is whole", "give the log as it was printed")
    raise error(table.line or 1, "the table has no usable row", "the log ends before the first result")


def _leave_out_disagreeing(path: Path, table: Table) -> None:
    """Leave out garbled rows, whose time and algbw contradict each other; refuse a table where most rows do.

    Raises:
        InputError: the table is in other units.
    """
    odd = [one for one in table.samples if one.algbw >= 1 and abs(_gb_per_s(one) / one.algbw - 1) > DISAGREE]
    if not odd:
        return
    if 2 * len(odd) > len(table.samples):
        first = odd[0]
        raise InputError(
            f"{first.bytes} bytes in {first.time_us:g} us are {_gb_per_s(first):.4g} GB/s, "
            f"but algbw says {first.algbw:g}",
            place=f"{str(path)[:300]}:{first.line}",
            hint="time is read in us and algbw in 1e9 bytes/s, as nccl-tests prints them",
        )
    table.samples = [one for one in table.samples if one not in odd]
    table.cut = sorted([*table.cut, *(one.line for one in odd)])


def _gb_per_s(one: Sample) -> float:
    return one.bytes / one.time_us / 1e3


def _told_ranks(table: Table, told: Told) -> int | None:
    if told.gpus is not None:
        return told.gpus
    if table.ranks:
        return max(table.ranks) + 1
    return table.told_ranks


def _operation(path: Path, table: Table, told: Told, ranks: int | None, span: identify.Span | None) -> str:
    """Return nccl-tests' name of the operation: told, named in the log, or the only one that fits."""
    place = f"{str(path)[:300]}:{table.line or 1}"
    if told.operation is not None:
        return next(name for name, ours in identify.PRICED.items() if ours == told.operation)
    fitting = identify.candidates(table, ranks, span)
    if table.named in fitting:
        return str(table.named)
    by_file = identify.name_in(path.name)
    if table.named is None and by_file in fitting:
        return str(by_file)
    if not fitting:
        raise InputError(
            f"busbw / algbw fits no operation over {ranks} GPUs{_others(table, span)}",
            place=place,
            hint="say how many took part: --gpus N, or which operation it is: --op OP",
        )
    likely = [name for name in fitting if name in identify.PRICED] or fitting
    known = table.named in {*identify.PRICED, *identify.OTHERS}
    if len(likely) == 1 and not known:
        return likely[0]
    shape = " or ".join(likely)
    if known:
        raise InputError(
            f"the log names {table.named}, but the table has the columns of {shape}",
            place=place,
            hint="say which: --op OP",
        )
    raise InputError(f"does not say which operation it measured ({shape})", place=place, hint="say so: --op OP")


def _others(table: Table, span: identify.Span | None) -> str:
    """Say over how many GPUs the ratio would be that of an operation."""
    if span is None:
        return ""
    ranges = [(name, identify.ranks_by_factor(name, span)) for name in identify.candidates(table, None, span)]
    texts = [
        f"{name} over {found[0]:,}" + (f" to {found[1]:,}" if found[1] > found[0] else "")
        for name, found in ranges
        if found is not None
    ]
    return f", but {' or '.join(texts)}" if texts else ""


def _per_host(table: Table, told: Told, place: str) -> int | None:
    if told.gpus_per_node is not None:
        return told.gpus_per_node
    if len(table.ranks) <= max(table.ranks, default=-1):
        return table.told_per_node  # rank lines are missing
    counts = Counter(table.ranks.values())
    if len(set(counts.values())) > 1:
        low, high = min(counts.values()), max(counts.values())
        raise InputError(
            f"the hosts have between {low} and {high} ranks each", place=place, hint="measure with as many on each host"
        )
    return next(iter(counts.values()), table.told_per_node)


def _notes(path: Path, table: Table) -> Iterator[str]:
    where = f"{path.name}:{table.line or 1}"
    if table.wrong:
        yield f"{where}: {_rows(table.wrong)} with wrong results left out (line {table.wrong[0]})"
    if table.unusable:
        yield f"{where}: {_rows(table.unusable)} without a possible time left out (line {table.unusable[0]})"
    if table.cut:
        yield f"{where}: {_rows(table.cut)} cut off or garbled left out (line {table.cut[0]})"
    if table.failure and table.done:
        yield f"{where}: a failure is reported below the table (line {table.failure[0]})"
    elif table.failure:
        yield f"{where}: the run failed (line {table.failure[0]}); what it measured before is used"
    elif not table.done:
        yield f"{where}: the log ends within the table; the {len(table.samples)} rows there are used"


def _rows(lines: Iterable[int]) -> str:
    count = len(list(lines))
    return f"{count} row" if count == 1 else f"{count} rows"
