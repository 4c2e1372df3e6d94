"""Tables of results in a log, read line by line whatever its size: rows, columns, ranks, failures. No judgement yet.

Of nccl-tests, rccl-tests and nccom-test a row is found anywhere in a line (`size count type ...`), but for one that is
cut in the middle. The `all_reduce_bench.py` of BigScience (torch.distributed) prints `7 data size: 4.0 GB` once per
rank and run, then `duration: 0.4507 sec` for every rank and trial. That of "Machine Learning Engineering" prints `The
average bandwidth of all_reduce with a 4.0GB payload (5 trials, 4 ranks):`, below it ` algbw: 86.500 GBps (692.0 Gbps)`,
and in later versions a table of `| payload | busbw | algbw |` in GBps (1e9 bytes/s), payloads in powers of two.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from gpuscale.errors import InputError
from gpuscale.files import reading, refuse_irregular
from gpuscale.specs.cluster import LEAST_TIME_US, MOST_TIME_US
from gpuscale.units import GIB, MAX_BYTES, MIB

MAX_LOG_BYTES = 4 * GIB
MAX_LINE_BYTES = 8192
"""Longer lines are no rows of a table; what follows in them is dropped."""
MAX_SKIPPED_BYTES = 64 * MIB
"""Most that is dropped of one line."""
MAX_ROWS = 200_000
MAX_RANKS = 200_000

HICCUP = 1.5
"""Where out of place took this many times in place, something else happened (a first size still connects, or a pause),
and in place counts; as such the two differ by less than 1.3."""

FORMATS = "formats read: nccl-tests, rccl-tests, nccom-test, torch all_reduce_bench"

_ELSEWHERE = {
    "COMMS-RES": "PARAM comms",
    "OSU ": "the OSU micro-benchmarks",
    "---- Performance of ": "DeepSpeed's communication benchmark",
}
"""Marks of benchmarks that are not read."""

_WORDS = (
    *(b"float", b"double", b"half", b"fp", b"bf16", b"f8e", b"int", b"char"),  # types in rows
    *(b"nthread", b"rank", b"_perf", b"size", b"bandwidth", b"concluded"),
    *(b"failure", b"error", b"warn", b"fault", b"killed", b"signal", b"memory", b"time limit"),
    *(b"duration", b"gbps", b"comms-res", b"osu", b"performance of"),
)
"""A line without any of them, in lower case, says nothing, unless it is half a row: a message of NCCL cut it in two."""

_NUMBERS = re.compile(rb"[\s\d.eE+\-N/A\x1b\[\];mK,<>:stdou]*$")
COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]{0,200}\x07)")
_LAUNCHERS = re.compile(r"\[(?:[\w.-]{1,100}@)?\d+,\d+\]<std(?:out|err|diag)>:")
_MESSAGE = re.compile(r"\S{0,200}:\d+:\d+ \[\d+\] (?:\S+ \S+ )?NCCL (?:INFO|TRACE|VERSION|ABORT)\b.*$")
_ZIPPED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "zip"}
_CUT = "cut the tables out: grep -E 'nThread|Rank|size|float|_perf|Avg' LOG"

_TYPES = (
    "float|double|half|bfloat16|u?int(?:8|32|64)?|fp8_e4m3|fp8_e5m2|f8e4m3|f8e5m2|fp64|fp32|fp16|bf16|fp8"
    "|float(?:8|16|32|64)\\w*|char"
)
_UNNUMBERED_BYTES = {"half": 2, "float": 4, "int": 4, "uint": 4, "double": 8}
"""Types whose names do not say their bits; char has 8."""

_PASS_VALUES = 3
"""Values of a pass that count: time, algbw, busbw; a fourth says how many results are wrong."""

_ROW = re.compile(rf"(?:^|[\s:>|\]#])(\d{{1,19}})\s+(\d{{1,19}})\s+({_TYPES})(?:\s+(.*))?$")
_COLUMNS = re.compile(r"\bsize(?:\(B\))?\s+count(?:\(elems\))?\s+type\s+(.*)$")
_START = re.compile(r"nThreads?:?\s+\d+\s+nGpus:?\s+(\d+)\b")
_STARTING = re.compile(r"Collective test starting:\s*(\w+)")
_BINARY = re.compile(r"\b([a-z_]{4,30})_perf\b")
_RANK = re.compile(r"Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$")
_FAILURE = re.compile(
    r"Test (?:\w+ )?failure|NCCL WARN .*(?:[Ee]rror|[Ff]ail|abort)|srun: error|[Ss]egmentation fault"
    r"|unhandled \w+ error|exited on signal|exited with non-zero|out of memory|DUE TO TIME LIMIT|oom[-_]kill|Killed"
)
_DONE = re.compile(r"Avg bus bandwidth|Collective test concluded")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|N/A|-?nan|-?inf", re.IGNORECASE)

_TORCH_SIZE = re.compile(r"(?:^|\s)(\d{1,7}) data size: ([\d.]{1,12}) GB")
_TORCH_DURATION = re.compile(r"duration: ([\d.]{1,16}) sec")
_TORCH_LOCAL = re.compile(r"local_rank: (\d{1,3})\s*$")
_TORCH_RANKS = re.compile(r"trials, (\d{1,7}) ranks\)")
_TORCH_AVERAGE = re.compile(r"with a ([\d.]{1,8})\s*([KMG]?)B payload \(")
_TORCH_RATE = re.compile(r"^\W*algbw: ([\d.]{1,12}) GBps")
_TORCH_ROW = re.compile(r"\|\s*([\d.]{1,8})\s*([KMGT]?)i?B\s*\|\s*([\d.]{1,12})\s*GBps\s*\|\s*([\d.]{1,12})\s*GBps")
_DECIMAL = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}
_POWERS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Sample(NamedTuple):
    """One measured size."""

    line: int
    bytes: int  #: as the benchmark prints it.
    #: out of place; in place where the log has no other, or where out of place took `HICCUP` times that [us].
    time_us: float
    algbw: float  #: as printed [GB/s].
    busbw: float  #: as printed [GB/s]; 0 where the log does not say.


@dataclass(slots=True)
class Table:
    """One table of a log, as it stands there."""

    line: int  #: its first line.
    named: str | None = None  #: what the log calls the benchmark (`all_reduce`), where it says so.
    ranks: dict[int, str] = field(default_factory=dict)
    gpu: str = ""  #: name of the GPUs by the first rank line.
    redop: str = ""  #: columns of the first row, as the next; `` and None where there are none.
    root: int | None = None
    unchecked: int = 0  #: rows whose out-of-place result was checked and the in-place one not (alltoall, sendrecv).
    samples: list[Sample] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)  #: lines of rows with wrong results, left out of `samples`.
    #: lines of rows without a time or with one that cannot be, left out too.
    unusable: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)  #: lines of rows that are cut off or garbled, left out too.
    failure: tuple[int, str] | None = None  #: line and text of the first message of a failure.
    done: bool = False  #: the summary below the table was seen.
    told_ranks: int | None = None  #: ranks, where the log has their number but no rank lines.
    told_per_node: int | None = None  #: those of a host, likewise.

    @property
    def empty(self) -> bool:
        """Whether no row was seen."""
        return not (self.samples or self.wrong or self.unusable or self.cut)


def read_tables(path: Path) -> tuple[list[Table], int | None]:
    """Return the tables of a log, and the line from which on it is not read, if it has too many rows.

    Raises:
        InputError: the file is unreadable, or the output of another benchmark.
    """
    reader, bench, elsewhere = _Tables(), _TorchBench(), set[str]()
    for number, text in _relevant_lines(path):
        reader.feed(number, text)
        bench.feed(number, text)
        elsewhere.update(name for mark, name in _ELSEWHERE.items() if mark in text)
    reader.flush()
    if bench.samples and all(table.empty for table in reader.tables):
        return [bench.table()], bench.beyond
    if not reader.tables and elsewhere:
        raise InputError(f"is the output of {min(elsewhere)}, which is not read", place=str(path)[:300], hint=FORMATS)
    return reader.tables, reader.beyond


def _relevant_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of the lines that may say something, without the last word of a last line that does not end: the
    file may be cut off within it."""
    with open_log(path, _CUT) as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), start=1):
            rest, skipped = raw, 0
            while rest and not rest.endswith(b"\n"):  # the tail of an overlong line
                rest = stream.readline(MAX_LINE_BYTES)
                skipped += len(rest)
                if skipped > MAX_SKIPPED_BYTES:
                    limit = f"a line of more than {MAX_SKIPPED_BYTES // MIB} MiB"
                    raise InputError(f"{limit}: it is not a log", place=f"{str(path)[:300]}:{number}", hint=_CUT)
            said, noise, _ = raw.partition(b" NCCL INFO ")
            if noise and b"  " not in said:  # columns are further apart
                continue
            lowered = said.lower()  # quick, as logs with NCCL_DEBUG=INFO have millions of lines that say nothing
            if any(word in lowered for word in _WORDS) or _NUMBERS.match(said):
                # what is left out of it: colours, prefixes of Open MPI, messages of NCCL
                text = COLOURS.sub("", raw.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2])
                text = _MESSAGE.sub("", _LAUNCHERS.sub(" ", text)).replace("\x00", "")
                if not raw.endswith(b"\n"):
                    text = "".join(text.rsplit(None, 1)[:-1])
                yield number, text


@contextmanager
def open_log(path: Path, cut: str) -> Iterator[BufferedReader]:
    """Open a log, whose size and kind are as those of one; `cut`: how to make it smaller, for the hint.

    Raises:
        InputError: no regular file, unreadable, too large, compressed or binary.
    """
    place = str(path)[:300]
    refuse_irregular(path, "a log", hint="save the output in a file, and give that")
    with reading(path) as stream:
        if os.fstat(stream.fileno()).st_size > MAX_LOG_BYTES:
            raise InputError(f"larger than {MAX_LOG_BYTES // GIB} GiB, the limit for a log", place=place, hint=cut)
        start = stream.peek(4096)[:4096]
        packed = next((name for magic, name in _ZIPPED.items() if start.startswith(magic)), None)
        if packed:
            raise InputError(f"is {packed}-compressed", place=place, hint="unpack it first")
        if start.startswith((b"\xff\xfe", b"\xfe\xff")):
            hint = "save it as UTF-8 (PowerShell: Out-File -Encoding utf8)"
            raise InputError("is UTF-16 text", place=place, hint=hint)
        if start.count(b"\x00") > len(start) // 100:
            raise InputError("is a binary file, not a log", place=place, hint="give the text that was printed")
        yield stream


class _Tables:
    """Collects the tables of nccl-tests, rccl-tests or nccom-test, line by line, up to `MAX_ROWS` rows."""

    def __init__(self) -> None:
        self.tables: list[Table] = []  #: one without rows only where a run failed or never began.
        self.beyond: int | None = None  #: line of the first row that is not read; None where all are.
        self._rows = 0
        self._head: tuple[int, str] | None = None  # a row that another message cut before its values
        self._last_is_short = False
        self._begin(Table(line=0))

    def _begin(self, table: Table) -> None:
        """Begin a table; behind the type of its rows one pass of four values, and perhaps a root, till a header."""
        self._now = table
        self._has_root: bool | None = None
        self._passes, self._width, self._counts_wrong = 1, 4, True

    def feed(self, number: int, text: str) -> None:
        if self.beyond is not None:
            return
        if row := _ROW.search(text):
            self._on_row(number, row)
        elif self._head is None or not self._continues(*self._head, text.strip()):
            self._on_words(number, text)

    def _on_words(self, number: int, text: str) -> None:
        if _START.search(text):
            self._next(number)
            self._now = Table(line=number, named=self._now.named)
        elif match := _RANK.search(text):
            if not self._now.empty:
                self._next(number)
            if len(self._now.ranks) < MAX_RANKS:
                self._now.ranks[int(match[1])] = match[2]
            self._now.gpu = self._now.gpu or match[3].strip()[:80]
            self._now.line = self._now.line or number
        elif match := _STARTING.search(text):
            self._on_name(number, match)
        elif match := _COLUMNS.search(text):
            self._on_columns(number, match)
        elif _DONE.search(text):
            self._now.done = True
        elif _FAILURE.search(text):
            self._now.failure = self._now.failure or (number, text.strip()[:160])
        elif match := _BINARY.search(text):
            self._on_name(number, match)

    def _continues(self, number: int, head: str, tail: str) -> bool:
        """Join the second half of a row that another message cut in two."""
        if not all(_NUMBER.fullmatch(token) for token in tail.split()):
            return False
        if tail:
            self._head = None
            if row := _ROW.search(f"{head} {tail}"):
                self._on_row(number, row)
        return True

    def flush(self) -> None:
        if self._last_is_short and not self._now.done:  # the log ends within its last row
            self._now.cut.append(self._now.samples.pop().line)
        self._last_is_short = False
        if not self._now.empty or self._now.failure or self._now.ranks:
            self.tables.append(self._now)

    def _next(self, number: int) -> None:
        if not self._now.empty or self._now.failure:
            self.flush()
            self._begin(Table(line=number))

    def _on_name(self, number: int, match: re.Match[str]) -> None:
        if "concluded" not in match.string:
            self._next(number)
            self._now.named = match[1].removesuffix("_perf")

    def _on_columns(self, number: int, match: re.Match[str]) -> None:
        if not self._now.empty:  # a second table of the same ranks
            before = self._now
            self._next(number)
            self._now = replace(self._now, ranks=dict(before.ranks), named=before.named, gpu=before.gpu)
        names = match[1].lower().split()
        times = [index for index, name in enumerate(names) if name.startswith("time")]
        width = times[1] - times[0] if len(times) > 1 else len(names) - times[0] if times else 4
        self._has_root, self._passes, self._width = "root" in names, len(times), max(width, 1)
        self._counts_wrong = "#wrong" in names or "wrong" in names
        self._now.line = self._now.line or number

    def _on_row(self, number: int, row: re.Match[str]) -> None:
        tokens = (row[4] or "").split()
        redop = tokens.pop(0).lower() if tokens and tokens[0].isalpha() else ""
        values = list(takewhile(_NUMBER.fullmatch, tokens))
        has = self._has_root
        if has is None:  # no header seen: a whole number before one or two passes
            has = len(values) % self._width == 1 or bool(values and values[0] == "-1")
        root = int(values.pop(0)) if has and values and re.fullmatch(r"-?[0-9]{1,9}", values[0]) else None
        if not values:
            self._head = (number, row[0])
            if any(re.search(r"\d,\d", token) for token in tokens):
                self._now.unusable.append(number)
            return
        self._head = None
        self._rows += 1
        if self._rows > MAX_ROWS:  # the table that the log is in the middle of has not failed for that
            self.beyond = number
            self._now.done = True
            if self._now.empty:
                self._now = Table(line=number)
            return
        if self._now.empty:
            self._now.redop, self._now.root = redop, root
        self._now.line = self._now.line or number
        self._last_is_short = False
        size, elements = int(row[1]), int(row[2])
        if size % (max(elements, 1) * _bytes_of(row[3])):  # of one rank, or of as many as there are
            self._now.cut.append(number)
        elif size > MAX_BYTES:
            self._now.unusable.append(number)
        elif size:
            self._add(number, size, values)

    def _add(self, number: int, size: int, values: list[str]) -> None:
        now, width = self._now, self._width
        every = [values[start : start + width] for start in range(0, len(values), width)][:2]
        passes = [one for one in every if len(one) >= min(width, _PASS_VALUES)]
        if not passes:
            now.cut.append(number)
            return
        numbers = [[math.nan if token.upper() == "N/A" else float(token) for token in one] for one in passes]
        checks = [one[_PASS_VALUES].upper() for one in passes if len(one) > _PASS_VALUES]
        if self._counts_wrong and any(len(one) > _PASS_VALUES and one[_PASS_VALUES] > 0 for one in numbers):
            now.wrong.append(number)
            return
        now.unchecked += len(checks) == 2 and checks[0] != "N/A" and checks[1] == "N/A"
        usable = [one for one in numbers if LEAST_TIME_US <= one[0] <= MOST_TIME_US]
        if not usable:
            now.unusable.append(number)
            return
        best = usable[-1] if usable[0][0] > HICCUP * usable[-1][0] else usable[0]
        algbw, busbw = (best[1], best[2]) if len(best) > 2 else (0.0, 0.0)
        now.samples.append(Sample(number, size, best[0], algbw, busbw))
        self._last_is_short = len(passes) < max(len(every), self._passes)


def _bytes_of(kind: str) -> int:
    bits = re.search(r"\d+", kind)
    return int(bits[0]) // 8 if bits else _UNNUMBERED_BYTES.get(kind, 1)


class _TorchBench:
    """Collects the results of a torch all_reduce_bench, line by line, up to `MAX_ROWS`."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []  #: what was found.
        self.beyond: int | None = None  #: line of the first result that is not read; None where all are.
        self._bytes, self._local, self._ranks = 0, -1, 0

    def feed(self, number: int, text: str) -> None:
        if self.beyond is not None:
            return
        if found := _TORCH_SIZE.search(text):
            self._ranks = max(self._ranks, int(found[1]) + 1)
            self._bytes = round(_decimal(found[2]) * 1e9)
        elif found := _TORCH_DURATION.search(text):
            self._add(Sample(number, self._bytes, _decimal(found[1]) * 1e6, 0.0, 0.0))
        elif found := _TORCH_LOCAL.search(text):
            self._local = max(self._local, int(found[1]))
        elif found := _TORCH_RANKS.search(text):
            self._ranks = int(found[1])
            if payload := _TORCH_AVERAGE.search(text):
                self._bytes = round(_decimal(payload[1]) * _DECIMAL[payload[2]])
        elif found := _TORCH_RATE.search(text):
            self._add_rate(number, self._bytes, _decimal(found[1]), 0.0)
        elif found := _TORCH_ROW.search(text):
            size = round(_decimal(found[1]) * _POWERS[found[2]])
            self._add_rate(number, size, _decimal(found[4]), _decimal(found[3]))

    def _add_rate(self, number: int, size: int, algbw: float, busbw: float) -> None:
        if algbw:
            self._add(Sample(number, size, size / algbw / 1e3, algbw, busbw))

    def _add(self, sample: Sample) -> None:
        if 1 <= sample.bytes <= MAX_BYTES and LEAST_TIME_US <= sample.time_us <= MOST_TIME_US:
            if len(self.samples) < MAX_ROWS:
                self.samples.append(sample)
            else:
                self.beyond = sample.line

    def table(self) -> Table:
        return Table(
            line=self.samples[0].line, named="all_reduce", redop="sum", root=-1, done=True, samples=self.samples,
            told_ranks=self._ranks or None, told_per_node=self._local + 1 or None,
        )  # fmt: skip


def _decimal(text: str) -> float:
    return float(text) if text.count(".") <= 1 and text != "." else 0.0
