"""Tables of results in a log of nccl-tests, rccl-tests or nccom-test: rows, columns, ranks, failures. No judgement yet.

A row is found anywhere in a line (`size count type ...`), so that prefixes of launchers and time stamps do not matter.
A row that a truncated file or another message cut in the middle is left out: what is there of a number may be but its
first digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gpuscale.presets.calibration import LEAST_TIME_US, MOST_TIME_US
from gpuscale.units import MAX_BYTES

MAX_ROWS = 200_000
MAX_RANKS = 200_000

HICCUP = 1.5
"""Where out of place took this many times in place, something else happened, and in place counts: the first size of a
run, which still connects, or a pause of one pass. What the two differ by as such is below 1.3."""

_TYPES = (
    "float|double|half|bfloat16|u?int(?:8|32|64)?|fp8_e4m3|fp8_e5m2|f8e4m3|f8e5m2|fp64|fp32|fp16|bf16|fp8"
    "|float(?:8|16|32|64)\\w*|char"
)
_TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "fp8", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "fp16", "bf16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "fp32", "float32", "int32", "uint32", "int", "uint"), 4),
    **dict.fromkeys(("double", "fp64", "float64", "int64", "uint64"), 8),
}
_COMMA = re.compile(r"\d,\d")
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


@dataclass(frozen=True)
class Sample:
    """One measured size.

    Attributes:
        line: line of the log.
        bytes: as the benchmark prints it.
        time_us: out of place; in place where the log has no other, or where out of place took `HICCUP` times that [us].
        algbw, busbw: as printed [GB/s]; 0 where the log does not say.
    """

    line: int
    bytes: int
    time_us: float
    algbw: float
    busbw: float


@dataclass(slots=True)
class Table:
    """One table of a log, as it stands there.

    Attributes:
        line: its first line.
        named: what the log calls the benchmark (`all_reduce`), where it says so.
        ranks: rank -> host.
        gpu: name of the GPUs by the first rank line.
        redop, root: columns of the first row; `` and None where there are none.
        unchecked: rows whose out-of-place result was checked and the in-place one not (alltoall, sendrecv).
        wrong: lines of rows with wrong results, left out of `samples`.
        unusable: lines of rows without a time or with one that cannot be, left out too.
        cut: lines of rows that are cut off or garbled, left out too.
        failure: line and text of the first message of a failure.
        done: the summary below the table was seen.
        told_ranks, told_per_node: ranks, and ranks of a host, where the log has the numbers but no rank lines.
    """

    line: int
    named: str | None = None
    ranks: dict[int, str] = field(default_factory=dict)
    gpu: str = ""
    redop: str = ""
    root: int | None = None
    unchecked: int = 0
    samples: list[Sample] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    unusable: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    failure: tuple[int, str] | None = None
    done: bool = False
    told_ranks: int | None = None
    told_per_node: int | None = None

    @property
    def empty(self) -> bool:
        """Whether no row was seen."""
        return not (self.samples or self.wrong or self.unusable or self.cut)


@dataclass(frozen=True)
class _Columns:
    """What a row has behind its type: whether a root, passes, columns of each, and what the fourth means."""

    root: bool | None = None
    passes: int = 1
    width: int = 4
    counts_wrong: bool = True


class TableReader:
    """Collects the tables of a log, line by line, up to `MAX_ROWS` rows.

    Attributes:
        beyond: line of the first row that is not read; None where all are.
    """

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.beyond: int | None = None
        self._now = Table(line=0)
        self._columns = _Columns()
        self._head: tuple[int, str] | None = None
        self._last_is_short = False
        self._rows = 0
        self._steps: tuple[tuple[re.Pattern[str], Callable[[int, re.Match[str]], None]], ...] = (
            (_START, self._on_start),
            (_RANK, self._on_rank),
            (_STARTING, self._on_name),
            (_COLUMNS, self._on_columns),
            (_DONE, self._on_done),
            (_FAILURE, self._on_failure),
            (_BINARY, self._on_name),
        )

    def read(self, lines: Iterable[tuple[int, str]]) -> list[Table]:
        """Return the tables of all lines; one without rows only where a run failed or never began."""
        for number, text in lines:
            self.feed(number, text)
        self._flush()
        return self.tables

    def feed(self, number: int, text: str) -> None:
        """Take one line."""
        if self.beyond is not None:
            return
        row = _ROW.search(text)
        if row:
            self._on_row(number, row)
            return
        if self._head is not None and self._continues(text):
            return
        for pattern, act in self._steps:
            match = pattern.search(text)
            if match:
                act(number, match)
                return

    def _continues(self, text: str) -> bool:
        """Join the second half of a row that another message cut in two."""
        stripped = text.strip()
        if not stripped:
            return True
        if not all(_NUMBER.fullmatch(token) for token in stripped.split()):
            return False
        number, head = self._head or (0, "")
        self._head = None
        row = _ROW.search(f"{head} {stripped}")
        if row:
            self._on_row(number, row)
        return True

    def _flush(self) -> None:
        if self._last_is_short and not self._now.done:  # the log ends within its last row
            self._now.cut.append(self._now.samples.pop().line)
        self._last_is_short = False
        if not self._now.empty or self._now.failure or self._now.ranks:
            self.tables.append(self._now)

    def _next(self, number: int) -> None:
        if not self._now.empty or self._now.failure:
            self._flush()
            self._now = Table(line=number)
            self._columns = _Columns()

    def _on_start(self, number: int, _match: re.Match[str]) -> None:
        self._next(number)
        named = self._now.named
        self._now = Table(line=number, named=named)

    def _on_name(self, number: int, match: re.Match[str]) -> None:
        if "concluded" in match.string:
            return
        self._next(number)
        self._now.named = match[1].removesuffix("_perf")

    def _on_rank(self, number: int, match: re.Match[str]) -> None:
        if not self._now.empty:
            self._next(number)
        if len(self._now.ranks) < MAX_RANKS:
            self._now.ranks[int(match[1])] = match[2]
        self._now.gpu = self._now.gpu or match[3].strip()[:80]
        self._now.line = self._now.line or number

    def _on_columns(self, number: int, match: re.Match[str]) -> None:
        if not self._now.empty:  # a second table of the same ranks
            ranks, named, gpu = self._now.ranks, self._now.named, self._now.gpu
            self._next(number)
            self._now = replace(self._now, ranks=dict(ranks), named=named, gpu=gpu)
        names = match[1].lower().split()
        times = [index for index, name in enumerate(names) if name.startswith("time")]
        width = times[1] - times[0] if len(times) > 1 else len(names) - times[0] if times else 4
        counts_wrong = "#wrong" in names or "wrong" in names
        self._columns = _Columns("root" in names, len(times), max(width, 1), counts_wrong)
        self._now.line = self._now.line or number

    def _on_done(self, _number: int, _match: re.Match[str]) -> None:
        self._now.done = True

    def _on_failure(self, number: int, match: re.Match[str]) -> None:
        if self._now.failure is None:
            self._now.failure = (number, match.string.strip()[:160])

    def _on_row(self, number: int, row: re.Match[str]) -> None:
        tokens = (row[4] or "").split()
        redop = ""
        if tokens and tokens[0].isalpha():
            redop = tokens.pop(0).lower()
        count = next((index for index, token in enumerate(tokens) if not _NUMBER.fullmatch(token)), len(tokens))
        values = tokens[:count]
        root = self._take_root(values)
        if not values:
            self._head = (number, row[0])
            if any(_COMMA.search(token) for token in tokens):
                self._now.unusable.append(number)
            return
        self._head = None
        self._rows += 1
        if self._rows > MAX_ROWS:
            self._stop(number)
            return
        if self._now.empty:
            self._now.redop, self._now.root = redop, root
        self._now.line = self._now.line or number
        self._last_is_short = False
        size, elements = int(row[1]), int(row[2])
        if size % (max(elements, 1) * _TYPE_BYTES.get(row[3], 1)):  # of one rank, or of as many as there are
            self._now.cut.append(number)
        elif size > MAX_BYTES:
            self._now.unusable.append(number)
        elif size:
            self._add(number, size, values)

    def _stop(self, number: int) -> None:
        """Leave the rest of the log out; the table that it is in the middle of has not failed for that."""
        self.beyond = number
        self._now.done = True
        if self._now.empty:
            self._now = Table(line=number)

    def _take_root(self, values: list[str]) -> int | None:
        has = self._columns.root
        if has is None:  # no header seen: a whole number before one or two passes
            has = len(values) % self._columns.width == 1 or bool(values and values[0] == "-1")
        if not has or not values or not values[0].lstrip("-").isdigit():
            return None
        return int(values.pop(0))

    def _add(self, number: int, size: int, values: list[str]) -> None:
        width, counts_wrong = self._columns.width, self._columns.counts_wrong
        every = [values[start : start + width] for start in range(0, len(values), width)][:2]
        passes = [one for one in every if len(one) >= min(width, _PASS_VALUES)]
        if not passes:
            self._now.cut.append(number)
            return
        numbers = [[_float(token) for token in one] for one in passes]
        if counts_wrong and any(len(one) > _PASS_VALUES and one[_PASS_VALUES] > 0 for one in numbers):
            self._now.wrong.append(number)
            return
        if len(passes) == 2 and len(passes[0]) > _PASS_VALUES and len(passes[1]) > _PASS_VALUES:
            self._now.unchecked += passes[0][_PASS_VALUES].upper() != "N/A" and passes[1][_PASS_VALUES].upper() == "N/A"
        usable = [one for one in numbers if LEAST_TIME_US <= one[0] <= MOST_TIME_US]
        if not usable:
            self._now.unusable.append(number)
            return
        best = usable[-1] if usable[0][0] > HICCUP * usable[-1][0] else usable[0]
        algbw, busbw = (best[1], best[2]) if len(best) > 2 else (0.0, 0.0)
        self._now.samples.append(Sample(number, size, best[0], algbw, busbw))
        self._last_is_short = len(passes) < max(len(every), self._columns.passes)


def _float(token: str) -> float:
    return math.nan if token.upper() == "N/A" else float(token)
