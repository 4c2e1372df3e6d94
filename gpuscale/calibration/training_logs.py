"""What a training run's own log says of it: seconds per iteration, throughput, memory, and the framework's timers.

Lines of several ranks, of several runs and of a growing batch are told apart; nothing is judged before all is read.
"""

from __future__ import annotations

import calendar
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gpuscale.calibration.site import NORMAL_80
from gpuscale.calibration.tables import COLOURS, open_log
from gpuscale.errors import InputError
from gpuscale.presets.files import known_table
from gpuscale.units import GIB, MIB, plural

# -- How each framework prints an iteration, of `presets/known/logs.toml`: what a line looks like, in which units. --

_NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?)"
_SUFFIXED = _NUMBER + r"([KMBGTP]?)"
"""A number as nanotron (logging `human_format`) and picotron print it: 4.71K, with powers of 1,000."""

_DIGITS = r"([1-9][0-9,]*\.[0-9]{2,20}|[1-9][0-9,]{2,20}|0\.0{0,9}[1-9][0-9]{2,20})"
"""A number that keeps three digits after rounding: OLMo-core's `format_float` prints four decimals."""

_CLOCK = r"(?:(?P<d>\d{1,4}) ?(?:days?,|d) ?)?(?:(?P<h>\d{1,4})(?:h ?|:))?(?:(?P<m>\d{1,2})(?:m ?|:))?(?P<s>\d{1,2})s?"
"""Time as `str(timedelta)` (`1 day, 2:03:04`) and ms-swift's `format_time` (`1d 2h 3m 4s`) print it."""

SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
MS = 1e-3

SAME_LINE = frozenset({"step", "batch", "step_s", "mean_s", "elapsed_s"})
"""Quantities that count in the line that opens an iteration alone, but for formats of several lines."""


class Quantity(NamedTuple):
    """How a format prints one quantity."""

    #: field of `Iteration`, or one of those that are turned into them: `batches_per_s`, `samples_per_s`,
    #: `batches_per_s_since_start`, `microbatch_s` (of the gradient accumulation), `microbatches` (number of this one).
    name: str
    #: with the number in its first group, and a suffix such as K in its second, if there is one; or a clock.
    pattern: re.Pattern[str]
    unit: float = 1.0


class Format(NamedTuple):
    """How a framework prints an iteration."""

    framework: str
    words: tuple[str, ...]  #: of which one is in every line that says something, in lower case.
    opening: re.Pattern[str]  #: a line that opens an iteration; group `step` has its number, if it is there.
    quantities: tuple[Quantity, ...]  #: in that line, or in one that follows before the next iteration.
    hint: str  #: how to have the log say what it lacks.
    means: bool = False  #: whether a line is the mean over the iterations since the last line.
    below: bool = False  #: whether the lines below the opening say all of it.
    note: str = ""  #: what a reader must know of its numbers.
    untrained: str = ""  #: what a reader must know of a run without losses.
    beside: str = ""  #: what else than training a step holds, which no prediction has.
    beside_words: tuple[str, ...] = ()  #: of which one is in a log whose steps hold it, in lower case; of all if empty.
    other: re.Pattern[str] | None = None  #: lines that look alike and are of evaluations or loading.


_WORDS = {
    "BAR": r"\| *STEP/(?P<total>\d{1,12}) \[[0-9:]{1,20}<[^,\]]{1,20}, *[0-9.]{1,12}(?:s/UNIT|UNIT/s)\b",
    "ASIDE": r"(?i:\b(?:eval|valid|sanity|testing|predict|load|map\b|filter|token|download|generat|sav|convert|pack|"
             r"process|fetch|experience|rollout|sampl))[^|%]{0,80}%?\|[^|]{0,300}\| *\d",
    "UNIT": r"(?:it|ba|batch|step|iter)(?:e?s)?",
    "MINUTES": r"(?:(?P<d>\d{1,3}) days?, )?(?:(?P<h>\d{1,4}):)?(?P<m>\d{1,2}):(?P<s>\d\d)",
    "STEP": r"(?P<step>\d{1,12})", "SUFFIXED": _SUFFIXED, "NUM": _NUMBER, "DIGITS": _DIGITS, "CLOCK": _CLOCK,
}  # fmt: skip
"""Words in the table -> patterns that they stand for, those that hold others first; BAR is a progress bar of tqdm,
whose rate is a moving mean, ASIDE one of something else than training."""

_UNITS = {"ms": MS, "MB": 1e6, "MiB": MIB, "GB": 1e9, "GiB": GIB}


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern of the table; {{key}} is that of an item as Python or JSON prints it, its value a number or, in
    transformers 5, a text."""
    text = re.sub(r"\{\{(.*?)\}\}", lambda key: rf"['\"]{key[1]}['\"]: ?['\"]?(?:np\.float64\()?", text)
    for word, meant in _WORDS.items():
        text = text.replace(word, meant)
    return re.compile(text)


def _format(row: dict[str, Any]) -> Format:
    quantities = tuple(
        Quantity(name, _pattern(text), *(_UNITS[unit] for unit in units))
        for name, text, *units in row.get("quantities", ())
    )
    read = {"words": tuple(row["words"]), "opening": _pattern(row["opening"]), "quantities": quantities,
            "beside_words": tuple(row.get("beside_words", ()))}  # fmt: skip
    if "other" in row:
        read["other"] = _pattern(row["other"])
    return Format(**{**row, **read})


FORMATS = tuple(map(_format, known_table("logs")["formats"]))
"""In the order in which one is preferred where a log has as many iterations of several."""

KNOWN = ", ".join(dict.fromkeys(one.framework for one in FORMATS))


MAX_LINE_BYTES = 16384
"""Longer lines are cut: no framework prints so much of one iteration."""

MAX_ITERATIONS = 200_000
"""Iterations of one log that are kept; what follows is left out, and said."""

LEAST_ITERATIONS = 3
"""Reports from which on their spread says how well the time of an iteration is known."""

FEW, WARM_UP = 0.05, 10.0
"""Where a log has fewer: standard deviation of the log of one report (guesstimate), and iterations' time that the first
one takes more than the others at most: 0.2 to 6 in published logs of Megatron-LM, NeMo and Megatron-Bridge."""

COARSE_S = 20.0
"""Time between two stamps of whole seconds from which on they say how long iterations took: to 5 % [s]."""

WARM = 1.1
"""Leading iterations that took longer than this many times the median of the second half are warm-up, as is the first
one reported."""

STRAGGLER, DEVIATIONS = 0.1, 5.0
"""An iteration is a straggler if it takes this share longer than the median, and as many robust deviations."""

FADED = 40
"""Iterations after which what was done before a run was resumed is below 1e-6 of a progress bar's moving mean."""

LAG = 2
"""Steps by which the bar of one rank is drawn behind that of another; a run that starts again goes back further."""

SAME_MOMENT_S = 60.0
"""Ranks print the same iteration within this time [s]."""

LONGEST_S, MOST = 1e6, 1e18
"""Longest iteration, and largest number of any other kind, that is believed [s, 1]."""

_FACTS = {
    "gpus": re.compile(r"\b(?:using world size: *|world_size ?\.{3,} ?)(\d{1,7})\b"),
    "sequence": re.compile(r"\b(?:encoder_)?seq_length(?:\"?: *| ?\.{3,} ?)(\d{1,8})\b"),
    "batch": re.compile(r"(?:\bcfg/global_batch_size\"?: *|^.{0,120}\btrain_batch_size ?\.{3,} ?)(\d{1,8})\b"),
}
"""What Megatron-LM, DeepSpeed and DLLogger print of a job before it starts, beside its iterations."""
_FACT_WORDS = ("world", "seq_length", "batch_size")

_STATE = b'"log_history"'
"""In the head of Hugging Face Trainer's trainer_state.json, which has an item per line."""

_STAMP = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_AMERICAN = re.compile(r"\b(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)()")
_LABEL = re.compile(r"\s{0,8}(\[?(?:rank|default)?\d{1,6}\]?:|[A-Za-z][\w.-]{0,60}:|\([\w ]{1,40}, pid=\d{1,9}\))")
"""What launchers put before the lines of a rank: `3:`, `[rank0]:`, `[default5]:`, `vm-07-05:`, `(train, pid=7)`."""

_TIMERS = re.compile(r"^.{0,80}?\btime \(ms\) ?\|(.*)$")
_TIMER = re.compile(r"([a-z][a-z0-9_/ -]{2,60}?): *([0-9]{1,12}(?:\.[0-9]{1,12})?)")
_TIMER_BLOCK = re.compile(r"\((?:min, max|max)\) time across ranks \(ms\):|\bmax time across ranks \(ms\):")
_BLOCK_ROW = re.compile(
    r"([a-z][a-z0-9_/ -]{2,60}?) ?\.{3,}: *(?:\( *[0-9.]{1,20}, *)?([0-9]{1,12}(?:\.[0-9]{1,12})?)\)?"
)
"""A timer by Megatron-LM: `forward-compute ......: (12.3, 45.6)`, least and most of all ranks, of which the most."""

MAX_TIMERS = 64


@dataclass(slots=True)
class Iteration:
    """What a log says of one iteration, or of the mean of those since the last line; None where it does not."""

    line: int
    step: int | None = None
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    batch: float | None = None
    sequence: float | None = None
    allocated_bytes: float | None = None  #: memory as torch's allocator gives it out [bytes].
    reserved_bytes: float | None = None  #: memory as torch's allocator holds it [bytes].
    device_bytes: float | None = None  #: memory as the driver counts it [bytes].
    skipped: float = 0.0  #: of the iterations since the last line, those that did not update the weights.
    moment_s: float | None = None  #: the line's time stamp [s].
    fine: bool = False  #: whether the time stamp, or the time since the start, has fractions of a second.
    numbered: bool = False  #: whether the log has its number; else it was counted.
    elapsed_s: float | None = None  #: time since the start of the run [s].
    mean_s: float | None = None  #: mean time of an iteration since then [s].
    microbatches: float | None = None  #: of this iteration and those before.
    over: float = 1.0  #: iterations that its time is the mean of.
    timers_s: dict[str, float] = field(default_factory=dict)
    _samples_per_s: float | None = None
    _microbatches_s: list[float] = field(default_factory=list)

    def put(self, name: str, value: float) -> None:
        """Take one quantity; of several ranks the slowest and fullest counts."""
        if name.startswith("batches_per_s"):
            name, value = "step_s" if name == "batches_per_s" else "mean_s", 1.0 / value if value > 0 else 0.0
        if name == "samples_per_s":
            self._samples_per_s = value
        elif name == "microbatch_s":
            self._microbatches_s.append(value)
        elif name.endswith("_s") and not 0 < value < LONGEST_S:
            return
        elif name == "tokens_per_s_per_gpu":
            known = self.tokens_per_s_per_gpu
            self.tokens_per_s_per_gpu = value if known is None else min(known, value)
        else:
            known = getattr(self, name)
            setattr(self, name, value if known is None else max(known, value))

    @property
    def says_time(self) -> bool:
        """Whether anything says how long it took."""
        known = (self.step_s, self.tokens_per_s_per_gpu, self.moment_s, self.elapsed_s, self.mean_s)
        return any(one is not None for one in (*known, self._samples_per_s)) or bool(self._microbatches_s)

    def settle(self, batch: float | None, before: Iteration | None) -> bool:
        """Find the time of an iteration that is not printed: from that since an iteration `before`, that of
        microbatches, or samples/s and a batch. Returns whether the next one is counted from this one."""
        if self.step_s is not None:
            return True
        steps = self.step - before.step if before and self.step is not None and before.step is not None else 0
        apart = self._since(before) if before and steps > 0 else None
        if before and apart is not None and apart[0] > (0.01 if apart[1] else COARSE_S):
            self.put("step_s", apart[0] / steps)
            self.over = float(steps)
        if self.step_s is None and self._microbatches_s:
            per_step = round(self.microbatches / self.step) if self.microbatches and self.step else 1
            self.put("step_s", sum(self._microbatches_s) / len(self._microbatches_s) * max(per_step, 1))
        if self.step_s is None and self._samples_per_s and (self.batch or batch):
            self.put("step_s", (self.batch or batch or 0.0) / self._samples_per_s)
        return self.step_s is not None or apart is None

    def _since(self, before: Iteration) -> tuple[float, bool] | None:
        if self.elapsed_s is not None and before.elapsed_s is not None:
            return self.elapsed_s - before.elapsed_s, self.fine or self.mean_s is not None
        if self.moment_s is not None and before.moment_s is not None:
            return self.moment_s - before.moment_s, self.fine and before.fine
        return None


@dataclass(slots=True)
class Run:
    """One run of a log: iterations whose numbers rise."""

    iterations: list[Iteration] = field(default_factory=list)
    by_step: dict[int, Iteration] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    labels: set[tuple[int, str]] = field(default_factory=set)
    bar: str = ""  #: total of the progress bar that it is of: evaluations between its steps have another.
    trained: bool = False  #: whether a loss is printed beside it.


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What a log measured."""

    file: str  #: its name.
    framework: str  #: whose form it has.
    reported: int  #: iterations that the log reports of the run.
    iterations: int  #: those of them that count.
    discarded: int = 0  #: those that do not: warm-up, and steps that a loss scaler skipped.
    step_time_s: float | None  #: median over the iterations; None where the log does not say [s].
    #: their robust relative spread: 1.4826 x the median distance from the median, over the median.
    jitter: float | None
    spread: float = 0.0  #: standard deviation of the log of the time of an iteration, as the log tells it.
    stragglers: int = 0  #: iterations much slower than the median.
    slowest_s: float | None  #: the slowest of those that count [s].
    tokens_per_s_per_gpu: float | None = None  #: median.
    #: most that was in use, by what the framework counts: `allocated`, `reserved` or `nvidia-smi` [bytes].
    memory: dict[str, float] = field(default_factory=dict)
    batch: int | None = None  #: sequences of a step; None where the log does not say.
    sequence: int | None = None  #: tokens of a sequence; likewise.
    gpus: int | None = None  #: of the job; likewise.
    timers_s: dict[str, float]  #: medians of the framework's own timers [s].
    notes: tuple[str, ...]  #: what a reader should know: other runs of the file, other batches.
    beside: str = ""  #: what else than training a step holds, which no prediction has.

    @property
    def step_time_low_s(self) -> float | None:
        """Lower end of the 80 % interval of the time of an iteration [s]."""
        return None if self.step_time_s is None else self.step_time_s * math.exp(-NORMAL_80 * self.spread)

    @property
    def step_time_high_s(self) -> float | None:
        """Its upper end [s]."""
        return None if self.step_time_s is None else self.step_time_s * math.exp(NORMAL_80 * self.spread)

    def step_of(self, tokens: float, gpus: float) -> float:
        """Return the time of a step of so many tokens [s]; from the rate where the log says no time."""
        if self.step_time_s is not None:
            return self.step_time_s
        return tokens / ((self.tokens_per_s_per_gpu or math.inf) * gpus)

    @property
    def memory_gib(self) -> float | None:
        """What comes nearest to all of the device's use: as the driver counts it, else reserved, else allocated."""
        known = (self.memory.get(basis) for basis in ("nvidia-smi", "reserved", "allocated"))
        return next((size / GIB for size in known if size is not None), None)


class _Reader:
    def __init__(self, known: Format) -> None:
        self.format = known
        self.runs: list[Run] = []
        self.now: Iteration | None = None
        self.count = 0
        self.beside = "" if known.beside_words else known.beside
        self._run = Run()
        self._counter = 0

    @property
    def says_time(self) -> bool:
        return any(one.says_time for run in self.runs for one in run.iterations)

    def feed(self, number: int, text: str, lowered: str) -> None:
        if not any(word in lowered for word in self.format.words):
            return
        if self.format.other is not None and self.format.other.search(text):
            return
        if any(word in lowered for word in self.format.beside_words):
            self.beside = self.format.beside
        opening = self.format.opening.search(text)
        if opening is not None:
            self._open(number, text, opening)
        if self.now is None:
            return
        self._run.trained |= "'loss'" in lowered
        for one in self.format.quantities:
            found = one.pattern.search(text)
            if found is not None and (opening is not None or self.format.below or one.name not in SAME_LINE):
                value = _value(found) * one.unit
                if value <= MOST and one.name != "step":  # which was taken with the opening
                    self.now.put(one.name, value)
                    self.now.fine |= one.name == "elapsed_s" and not one.pattern.groupindex  # a number, and no clock

    def _open(self, number: int, text: str, opening: re.Match[str]) -> None:
        """Begin an iteration, or go on with one that another rank has printed."""
        step, moment = self._step(text, opening), _moment(text)
        numbered = step is not None
        labelled = _LABEL.match(text)
        label = labelled[1] if labelled else ""
        bar = opening.groupdict().get("total") or ""
        run = next((one for one in reversed(self.runs) if one.bar == bar), None)
        if step is None:
            self._counter += 1
            step = self._counter
        there = run.by_step.get(step) if run else None
        if run is not None and there is not None and self._same(run, there, step, label, moment):
            self.now = there
        else:
            if run is None or there is not None or step < run.last.get(label, -1):
                run = Run(bar=bar)
                self.runs.append(run)
            self.count += 1
            self.now = Iteration(number, step, numbered=numbered)
            run.iterations.append(self.now)
            run.by_step[step] = self.now
        self._run = run
        if moment is not None and self.now.moment_s is None:
            self.now.moment_s, self.now.fine = moment
        run.last[label] = step
        run.labels.add((step, label))

    def _step(self, text: str, opening: re.Match[str]) -> int | None:
        found = next((one for name, one in opening.groupdict().items() if one and name != "total"), None)
        if found:
            return int(found)
        own = next((one for one in self.format.quantities if one.name == "step"), None)
        match = own.pattern.search(text) if own else None
        value = float(match[1].replace(",", "")) if match else MOST
        return int(value) if value < MOST else None

    @staticmethod
    def _same(run: Run, there: Iteration, step: int, label: str, moment: tuple[float, bool] | None) -> bool:
        """Whether a number that was there before is the same iteration: of another rank, or of a bar drawn again."""
        apart_s = abs(moment[0] - there.moment_s) if moment and there.moment_s is not None else 0.0
        drawn_late = bool(run.bar) and (run.iterations[-1].step or 0) - step <= LAG
        new = drawn_late or there is run.iterations[-1] or (step, label) not in run.labels
        return apart_s <= SAME_MOMENT_S and new


def _value(found: re.Match[str]) -> float:
    """Return the number of a quantity, with the suffix behind it, or the seconds of a clock."""
    clock = found.groupdict()
    if clock:
        days, hours, minutes, seconds = (int(clock[one] or 0) for one in "dhms")
        return 60.0 * (60.0 * (24.0 * days + hours) + minutes) + seconds
    suffix = found[2] if found.re.groups > 1 else ""
    return float(found[1].replace(",", "")) * SUFFIXES[suffix or ""]


def _moment(text: str) -> tuple[float, bool] | None:
    """Return the time stamp of a line in seconds, and whether it has fractions."""
    found = _STAMP.search(text[:300])
    parts = found.groups() if found else None
    if parts is None:
        found = _AMERICAN.search(text[:300])
        parts = (found[3], found[1], found[2], *found.groups()[3:]) if found else None
    if parts is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in parts[:6])
    if not (1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31):
        return None
    whole = calendar.timegm((year, month, 1, hour, minute, second, 0, 0, 0)) + 86400 * (day - 1)
    fraction = parts[6]
    return whole + (float(f"0.{fraction}") if fraction else 0.0), bool(fraction)


class _Timers:
    """Collects the timers that Megatron-LM and DeepSpeed print below an iteration."""

    def __init__(self) -> None:
        self._inside = False

    def feed(self, text: str, into: Sequence[Iteration]) -> None:
        """Take one line, below iterations of any format."""
        rows: list[tuple[str, str]] = []
        if found := _TIMERS.match(text):
            rows, self._inside = _TIMER.findall(found[1]), False
        elif _TIMER_BLOCK.search(text):
            self._inside = True
        elif self._inside:
            rows = _BLOCK_ROW.findall(text)
            self._inside = bool(rows)
        for one in into:
            for name, number in rows[: MAX_TIMERS - len(one.timers_s)]:
                one.timers_s[name.strip().replace(" ", "-")] = float(number) * MS


_TELLING = tuple(
    word.encode() for word in dict.fromkeys(
        (*(word for one in FORMATS for word in one.words), *_FACT_WORDS, "ms)", "..:", "train_runtime")
    )
)  # fmt: skip
"""Of which one is in every line that says something; the others, of which huge logs have millions, are passed over."""


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of the lines of a log that may say something, and of the last; carriage returns, by which
    progress bars draw anew, end a line too."""
    with open_log(path, "cut the iterations out of it: grep -E 'iteration|step' LOG") as stream:
        yield from (_entries if _is_state(stream) else _plain_lines)(stream)


def _plain_lines(stream: BufferedReader) -> Iterator[tuple[int, str]]:
    number, rest, cut = 1, b"", False
    while block := stream.read(MIB):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            for part in line.split(b"\r") if not cut else ():
                lowered = part.lower()
                if any(word in lowered for word in _TELLING):
                    yield number, _text(part)
            number, cut = number + 1, False
        *drawn, last = rest.split(b"\r")
        for part in drawn if not cut else ():
            yield number, _text(part)
        rest = last
        if len(rest) > MAX_LINE_BYTES:  # what follows of it is dropped
            if not cut:
                yield number, _text(rest)
            rest, cut = b"", True
    if rest:
        yield number, _text(rest)
    elif number > 1:
        yield number - 1, ""


def _is_state(stream: BufferedReader) -> bool:
    head = stream.peek()
    return head.lstrip().startswith(b"{") and _STATE in head


def _entries(stream: BufferedReader) -> Iterator[tuple[int, str]]:
    """Yield line and text of each entry of a trainer_state.json: the lines between its braces."""
    number, start, entry = 0, 1, ""
    while raw := stream.readline(MAX_LINE_BYTES):
        number, text = number + 1, _text(raw).strip()
        if text.endswith("{"):
            start, entry = number, ""
        elif text.startswith("}"):
            yield start, entry
            entry = ""
        elif len(entry) < MAX_LINE_BYTES:
            entry += f" {text}"
    yield number, ""


def _text(raw: bytes) -> str:
    return COLOURS.sub("", raw[:MAX_LINE_BYTES].decode("utf-8", "replace"))


class _Found(NamedTuple):
    """What was read of a log."""

    reader: _Reader  #: of the format that most iterations have.
    facts: dict[str, int]
    notes: list[str]


def read_training_log(path: Path, run: int | None = None) -> MeasuredRun:
    """Read the log of a training run.

    Args:
        run: which run of the file, from 1; the longest (of equals the last) if not given.

    Raises:
        InputError: not a log of a framework that is known, or one that reports too few iterations; the message says the
            line, the hint what would help.
    """
    found = _read(path)
    every = _chosen(path, found, run).iterations
    _settle(every, found)
    every = _since_resumed(every)
    counts = Counter(one.batch for one in every if one.batch)
    if len(counts) > 1:  # it grows: the batch that most iterations have, of equals the last
        batch = max(counts, key=lambda size: (counts[size], size))
        found.notes.append(f"the batch changes: taken are the {counts[batch]:,} iterations of {batch:,.0f} sequences")
        every = [one for one in every if one.batch == batch]
    told, value = _timed(path, every, found.reader.format)
    kept = _kept(told, value, first=told[0] is every[0])
    return _measured(path, found, every, kept, [float(value(one) or 0.0) for one in kept])


def _settle(every: Sequence[Iteration], found: _Found) -> None:
    """Find the times of iterations that are not printed, and how many iterations each time is the mean of."""
    _count_from_start(every)
    before: Iteration | None = None
    for one in every:
        steps = (one.step or 0) - (before.step or 0 if before else 0)
        if found.reader.format.means and one.numbered and steps > 0:
            one.over = float(steps)
        if one.settle(found.facts.get("batch"), before):
            before = one
    last = every[-1]
    known = last.step if last.numbered or last.mean_s else None
    if last.elapsed_s and known and all(one.step_s is None for one in every):  # no two that are apart enough
        last.put("step_s", last.mean_s or last.elapsed_s / known)
        last.over = float(known)


def _since_resumed(every: list[Iteration]) -> list[Iteration]:
    """The iterations whose moving mean, in which a step's share fades by 0.7, has no steps in it that a resumed run had
    done before."""
    first, last = every[0], max(every, key=lambda one: (one.step or 0, one.elapsed_s or 0.0))
    done, passed_s = first.step or 0, (last.elapsed_s or 0.0) - (first.elapsed_s or 0.0)
    if first.step_s is None or first.elapsed_s is None or done <= 1 or passed_s < COARSE_S or last.mean_s is not None:
        return every
    steps = (last.step or 0) - done
    if steps <= 0:  # the bar of another rank, behind
        return every
    if first.elapsed_s * steps > done * passed_s / 2:
        return every
    if len(every) > 2 * FADED:
        return every[FADED:]
    last.step_s, last.over = passed_s / steps, float(steps)
    return [last]


def _count_from_start(every: Sequence[Iteration]) -> None:
    """Where a log has means since the start of the run, find the time since then; of a resumed run it is not step 0."""
    last = every[-1]
    if last.mean_s is None or last.step is None:
        return
    done = last.elapsed_s / last.mean_s if last.elapsed_s else float(last.step)
    if not last.numbered:  # a summary
        last.step = round(done)
    start = last.step - round(done) if abs(last.step - done) > max(2.0, 0.02 * last.step) else 0
    for one in every:
        if one.mean_s is not None and one.step is not None and one.step > start:
            one.elapsed_s, one.step = one.mean_s * (one.step - start), one.step - start


def _read(path: Path) -> _Found:
    readers, timers, facts = [_Reader(one) for one in FORMATS], _Timers(), dict[str, int]()
    last, notes = 1, list[str]()
    for last, text in _lines(path):
        lowered = text.lower()
        for reader in readers:
            reader.feed(last, text, lowered)
        if "ms)" in lowered or "..:" in lowered:
            timers.feed(text, [reader.now for reader in readers if reader.now])
        elif any(word in lowered for word in _FACT_WORDS):
            for name, pattern in _FACTS.items():
                if found := pattern.search(text):
                    facts[name] = max(int(found[1]), facts.get(name, 0))
        if any(reader.count > MAX_ITERATIONS for reader in readers):
            notes.append(f"more than {MAX_ITERATIONS:,} iterations: those from line {last:,} on are left out")
            break
    reader = max(readers, key=lambda one: (one.says_time, one.count))
    if reader.count:
        note = reader.format.note or (
            reader.beside
            and f"a step of {reader.format.framework} holds {reader.beside} beside training, which are not predicted"
        )
        return _Found(reader, facts, [*notes, note] if note else notes)
    place, message = f"{str(path)[:300]}:{last}", "no iteration of a training run found"
    with open_log(path, "") as stream:
        if _is_state(stream):
            message = "has no time: the state of Hugging Face Trainer says one (train_runtime) when a run has ended"
            raise InputError(message, place=place, hint="give what was printed, or logging.jsonl, trainer_log.jsonl")
    raise InputError(message, place=place, hint=f"logs read: {KNOWN}")


def _chosen(path: Path, found: _Found, run: int | None) -> Run:
    every = found.reader.runs
    runs = [one for one in every if one.trained] or every
    if found.reader.format.untrained and not runs[0].trained:
        found.notes.append(found.reader.format.untrained)
    places = [f"{one.iterations[0].line:,}" for one in runs]
    lines = ", ".join(places[:8]) + (", ..." if len(runs) > len(places[:8]) else "")
    if run is not None:
        if not 1 <= run <= len(runs):
            hint = f"it has {plural(len(runs), 'run')}, from line {lines}"
            raise InputError(f"{path.name} has no run {run}", field="run", hint=hint)
        return runs[run - 1]
    index = max(range(len(runs)), key=lambda one: (len(runs[one].iterations), one))
    if len(runs) > 1:
        taken = f"taken is that from line {places[index]} (`run={index + 1}`)"
        found.notes.append(f"{path.name} has {len(runs)} runs, from lines {lines}: {taken}")
    return runs[index]


Value = Callable[[Iteration], float | None]


def _timed(path: Path, every: Sequence[Iteration], known: Format) -> tuple[list[Iteration], Value]:
    """The iterations that say how long they took, and what says it: their time, or what they take per token."""
    place, more = f"{str(path)[:300]}:{every[0].line}", f"for {known.framework}, {known.hint}"
    timed = any(one.step_s is not None for one in every)

    def value(one: Iteration) -> float | None:
        rate = one.tokens_per_s_per_gpu
        return one.step_s if timed else 1.0 / rate if rate else None

    told = [one for one in every if value(one) is not None]
    if not told:
        message = f"says of none of {plural(len(every), 'iteration')} how long it took"
        raise InputError(message, place=place, hint=more)
    if len(told) == 1 and told[0].over == 1 and (told[0].step or 0) <= 1 and told[0] is every[0]:
        message = f"reports {plural(len(every), 'iteration')}, and the first is warm-up"
        raise InputError(message, place=place, hint=f"give a log of {LEAST_ITERATIONS} or more; {more}")
    return told, value


def _measured(
    path: Path, found: _Found, every: Sequence[Iteration], kept: Sequence[Iteration], times: Sequence[float]
) -> MeasuredRun:
    """`times`: in seconds, or per token of a GPU."""
    timed, middle, jitter = kept[0].step_s is not None, median(times), robust_spread(times)
    limit = middle * (1 + max(STRAGGLER, DEVIATIONS * jitter))
    spread, notes = _spread(kept, jitter, first=kept[0] is every[0] or kept[0].over == kept[0].step), found.notes
    if len(kept) < LEAST_ITERATIONS:
        mean = f", the mean of {kept[-1].over:,.0f}" if kept[-1].over > 1 else ""
        notes = [
            *notes,
            f"{plural(len(kept), 'report')} of an iteration{mean}: known to {math.expm1(NORMAL_80 * spread):.0%}",
        ]
    rate = _median(one.tokens_per_s_per_gpu for one in kept)
    batch = _median(one.batch for one in kept) or found.facts.get("batch")
    sequence = _median(one.sequence for one in kept) or found.facts.get("sequence")
    gpus = found.facts.get("gpus")
    if rate is None and timed and batch and sequence and gpus:
        rate = batch * sequence / middle / gpus
    names = {"allocated": "allocated_bytes", "reserved": "reserved_bytes", "nvidia-smi": "device_bytes"}
    most = {basis: max(getattr(one, name) or 0.0 for one in every) for basis, name in names.items()}
    timers = Counter(name for one in kept for name in one.timers_s)
    return MeasuredRun(
        file=path.name,
        framework=found.reader.format.framework,
        reported=len(every),
        iterations=len(kept),
        discarded=len(every) - len(kept),
        step_time_s=middle if timed else None,
        jitter=jitter if len(kept) > 1 else None,
        spread=spread,
        stragglers=sum(time > limit for time in times),
        slowest_s=max(times) if timed else None,
        tokens_per_s_per_gpu=rate,
        memory={basis: size for basis, size in most.items() if size > 0},
        batch=int(batch) if batch else None,
        sequence=int(sequence) if sequence else None,
        gpus=gpus,
        timers_s={
            name: _median(one.timers_s.get(name) for one in kept) or 0.0
            for name, count in timers.items()
            if 2 * count >= len(kept)
        },
        notes=tuple(notes),
        beside=found.reader.beside,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value]
    return float(f"{median(known):.9g}") if known else None


def robust_spread(values: Sequence[float]) -> float:
    """1.4826 x the median absolute deviation over the median: the standard deviation, were they spread normally."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values) / middle if middle > 0 else 0.0


def _spread(kept: Sequence[Iteration], jitter: float, *, first: bool) -> float:
    """Standard deviation of the log of an iteration's time, as so many reports tell it, of which the `first` has the
    first iteration in it."""
    if len(kept) >= LEAST_ITERATIONS:
        return math.sqrt(math.pi / 2) * jitter / math.sqrt(len(kept))  # of a median
    spread = FEW / math.sqrt(len(kept))
    return math.hypot(spread, math.log1p(WARM_UP / kept[0].over) / NORMAL_80) if first else spread


def _kept(told: list[Iteration], value: Value, *, first: bool) -> list[Iteration]:
    """Leave out warm-up, and steps whose update was skipped, as far as others are left; `first`: the first of them is
    the first that the log reports."""
    usual = median(float(value(one) or 0.0) for one in told[len(told) // 2 :])
    start = 1 if first and len(told) > 1 else 0
    while start < len(told) // 2 and float(value(told[start]) or 0.0) > WARM * usual:
        start += 1
    updated = [one for one in told[start:] if not one.skipped]
    return updated if len(updated) >= LEAST_ITERATIONS else told[start:]
