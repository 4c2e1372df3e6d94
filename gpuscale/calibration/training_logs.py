"""What a training run's own log says of it: seconds per iteration, throughput, memory, and the framework's timers.

Each framework prints an iteration in its own form and its own units; `FORMATS` says which, with sources. A line that
opens an iteration is found anywhere in a line, so that launchers' prefixes, colours, notebooks and progress bars do not
matter. Lines of several ranks, of several runs and of a growing batch are told apart; nothing is judged before all is
read.
"""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from gpuscale.calibration.tables import COLOURS, open_log
from gpuscale.errors import InputError
from gpuscale.units import GIB, MIB, plural

MAX_LINE_BYTES = 16384
"""Longer lines are cut: no framework prints so much of one iteration."""

MAX_ITERATIONS = 200_000
"""Iterations of one log that are kept; what follows is left out, and said."""

LEAST_ITERATIONS = 3
"""Iterations that a log must report at least, the first of which is warm-up."""

WARM = 1.1
"""Leading iterations that took longer than this many times the median of the second half are warm-up: compilation,
tuning, allocation; so is the first one reported, whatever it took."""

STRAGGLER, DEVIATIONS = 0.1, 5.0
"""An iteration is a straggler if it takes this share longer than the median, and as many robust deviations."""

SAME_MOMENT_S = 60.0
"""Ranks print the same iteration within this time; one that comes later is of another run [s]."""

LONGEST_S, MOST = 1e6, 1e18
"""Longest iteration, and largest number of any other kind, that is believed [s, 1]."""

_NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?)"
_ROUNDED = _NUMBER + r"([KMGTP]?)"
"""A number as nanotron prints it: 4.71K, with powers of 1,000 (nanotron logging `human_format`)."""

_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_MS = 1e-3


class Quantity(NamedTuple):
    """How a format prints one quantity."""

    name: str  #: field of `Iteration`, or `batches_per_s`, `samples_per_s`, `tokens_per_s`, `skipped`, `rate`.
    #: with the number in its first group, and a suffix such as K in its second, if there is one.
    pattern: re.Pattern[str]
    unit: float = 1.0  #: what the number is multiplied by.


class Format(NamedTuple):
    """How a framework prints an iteration."""

    framework: str  #: its name in messages.
    words: tuple[str, ...]  #: of which one is in every line that says something, in lower case.
    opening: re.Pattern[str]  #: a line that opens an iteration; group `step` has its number, if it is there.
    quantities: tuple[Quantity, ...]  #: in that line, or in one that follows before the next iteration.
    hint: str  #: how to have the log say what it lacks.


def _said(text: str, name: str, unit: float = 1.0, number: str = _NUMBER) -> Quantity:
    return Quantity(name, re.compile(text.replace("NUM", number)), unit)


FORMATS = (
    # Megatron-LM training_log() prints means since its last line, times in ms; memory by report_memory() in units of
    # 2^20 bytes. Megatron-DeepSpeed adds `samples per second` of the whole job and `tokens per gpu per second (tgs)`;
    # GPT-NeoX `samples/sec` in front; Primus `current/mean` and HIP's memory, 191.98 "GB" of an MI300X: 2^30 bytes.
    Format("Megatron-LM", ("iteration", "memory (mb)", "tokens/s/gpu", "mem usage"),
           re.compile(r"\biteration\s+(?P<step>\d{1,12})\s*/\s*\d{1,12} ?\|(?=.*per iteration \(ms\):)"), (
        _said(r"(?:elapsed )?time per iteration \(ms\): *NUM", "step_s", _MS),
        _said(r"global batch size: *NUM", "batch"),
        _said(r"samples(?: per second|/sec): *NUM", "samples_per_s"),
        _said(r"(?:tokens per gpu per second \(tgs\)|tokens per GPU \(tokens/s/GPU\)): *NUM", "tokens_per_s_per_gpu"),
        _said(r"actual seqlen: *NUM", "sequence"),
        _said(r"number of skipped iterations: *NUM", "skipped"),
        _said(r"max allocated: *NUM", "allocated_bytes", MIB),
        _said(r"max reserved: *NUM", "reserved_bytes", MIB),
        _said(r"(?:hip|rocm) mem usage/free/total/usage_ratio: *NUM ?G", "device_bytes", GIB),
    ), "add `--log-interval 1`"),
    # Megatron-Bridge train_utils.py
    Format("Megatron-Bridge", ("step time",), re.compile(r"\bStep Time ?: *(?=[0-9])"), (
        _said(r"\bStep Time ?: *NUM ?s", "step_s"),
    ), "its lines say `Step Time : 8.57s`"),
    # NeMo: Lightning's progress line, its progress bar (which rounds steps: 2e+3) and DLLogger's JSON. The time is a
    # mean over the last steps as far as `NamedTimer(buffer_size)` holds them.
    Format("NeMo", ("train_step_timing", "dlll"), re.compile(r"train_step_timing in s\"? ?[:=] ?(?=[0-9])"), (
        _said(r"train_step_timing in s\"? ?[:=] ?NUM", "step_s"),
        _said(r"\bglobal_step\"? ?[:=] ?NUM", "step"),
        _said(r"\bglobal_batch_size\"? ?[:=] ?NUM", "batch"),
    ), "its lines say `train_step_timing in s`"),
    # torchtitan components/metrics.py: tokens/s per GPU, torch's max reserved memory in 2^30 bytes, means since the
    # last line; time per step follows from the time stamps.
    Format("torchtitan", ("step:",), re.compile(r"\bstep: *(?P<step>\d{1,12}) +loss: "), (
        _said(r"\b(?:tps|wps): *NUM", "tokens_per_s_per_gpu"),
        _said(r"\bmemory: *NUM ?GiB", "reserved_bytes", GIB),
    ), "set `metrics.log_freq=1`, and keep the time stamps"),
    # nanotron trainer.py train_step_logs(): numbers by human_format, memory in bytes
    Format("nanotron", ("iteration:",), re.compile(r"\biteration: (?P<step>\d{1,12}) / \d{1,12} \|"), (
        _said(r"\b(?:elapsed_)?time_per_iteration_ms: NUM", "step_s", _MS, _ROUNDED),
        _said(r"\btokens_per_sec_per_gpu: NUM", "tokens_per_s_per_gpu", 1.0, _ROUNDED),
        _said(r"\bglobal_batch_size: NUM", "batch", 1.0, _ROUNDED),
        _said(r"\bcuda_max_memory_reserved: NUM", "reserved_bytes", 1.0, _ROUNDED),
    ), "set `iteration_step_info_interval: 1`"),
    # DeepSpeed utils/timer.py: samples/s of the whole job; "GB" are 2^30 bytes. Its pipeline engine: `iter time (s)`.
    Format("DeepSpeed", ("global_step=", "iter time (s)", "steps: "),
           re.compile(r"\bglobal_step=(?P<step>\d{1,12})|\bsteps: (?P<steps>\d{1,12}) loss: "), (
        _said(r"\biter time \(s\): NUM", "step_s"),
        _said(r"\bCurrSamplesPerSec=NUM", "samples_per_s"),
        _said(r"\bMaxMemAllocated=NUM ?GB", "allocated_bytes", GIB),
    ), "set `steps_per_print: 1`"),
    # Composer (llm-foundry): SpeedMonitor's means over a window, MemoryMonitor in 1e9 bytes
    Format("Composer", ("[batch=", "][batch=", "throughput/", "memory/"),
           re.compile(r"\[batch=(?P<step>\d{1,12})/\d{1,12}\]"), (
        _said(r"\bthroughput/batches_per_sec: NUM", "batches_per_s"),
        _said(r"\bthroughput/device/tokens_per_sec: NUM", "tokens_per_s_per_gpu"),
        _said(r"\bthroughput/samples_per_sec: NUM", "samples_per_s"),
        _said(r"\bmemory/(?:peak|max)_reserved_mem: NUM", "reserved_bytes", 1e9),
        _said(r"\bmemory/(?:peak|max)_allocated_mem: NUM", "allocated_bytes", 1e9),
    ), "add the callbacks speed_monitor and memory_monitor, and log every batch"),
    # MaxText metric_logger.py
    Format("MaxText", ("completed step",), re.compile(r"\bcompleted step: (?P<step>\d{1,12}), seconds: "), (
        _said(r"\bseconds: NUM", "step_s"),
        _said(r"\bTokens/s/device: NUM", "tokens_per_s_per_gpu"),
    ), "its lines say `completed step: 3, seconds: 5.1`"),
    # NeMo Automodel recipes/llm/train_ft.py: memory in 2^30 bytes; time per step follows from the time stamps
    Format("NeMo Automodel", ("| tps ",), re.compile(r"\bstep (?P<step>\d{1,12}) \| epoch .* \| tps "), (
        _said(r"\bmem NUM GiB", "allocated_bytes", GIB),
        _said(r"\btps NUM *\(NUM/gpu\)".replace("NUM", "[0-9.,]+", 1), "tokens_per_s_per_gpu"),
    ), "keep the time stamps"),
    # Hugging Face Trainer: the progress bar of tqdm, whose rate is a moving mean; axolotl's memory and tokens/s
    Format("Hugging Face Trainer", ("it/s", "s/it", "mem_", "tokens_per_second"),
           re.compile(r"\| *(?P<step>\d{1,12})/(?P<of>\d{1,12}) \[[0-9:]+<[^,\]]{1,20}, *[0-9.]+(?:s/it|it/s)\b"), (
        _said(r", *NUM ?s/it", "step_s"),
        _said(r", *NUM ?it/s", "batches_per_s"),
        _said(r"'?tokens_per_second_per_gpu'?: NUM", "tokens_per_s_per_gpu"),
        _said(r"memory/(?:max_reserved|device_mem_reserved) ?\(gib\)'?: NUM", "reserved_bytes", GIB),
    ), "keep the progress bar in the log: disable_tqdm=False"),
)  # fmt: skip
"""In the order in which one is preferred where a log has as many iterations of several."""

_FACTS = {
    "gpus": re.compile(r"\b(?:using world size: *|world_size ?\.{3,} ?)(\d{1,7})\b"),
    "sequence": re.compile(r"\b(?:encoder_)?seq_length(?:\"?: *| ?\.{3,} ?)(\d{1,8})\b"),
    "batch": re.compile(r"(?:\bcfg/global_batch_size\"?: *|^.{0,120}\btrain_batch_size ?\.{3,} ?)(\d{1,8})\b"),
}
"""What frameworks print of a job before it starts, beside its iterations: arguments of Megatron-LM and DeepSpeed,
parameters of DLLogger."""
_FACT_WORDS = ("world", "seq_length", "batch_size")

_OVERALL = re.compile(r"'?train_runtime'?['\"]?\s*[:=]")
"""Hugging Face Trainer's summary, which says the mean over a whole run alone."""

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

    line: int  #: of the log.
    step: int | None = None  #: its number.
    step_s: float | None = None  #: its time [s].
    tokens_per_s_per_gpu: float | None = None  #: throughput of one GPU.
    batch: float | None = None  #: sequences of a step.
    sequence: float | None = None  #: tokens of a sequence.
    allocated_bytes: float | None = None  #: memory as torch's allocator gives it out [bytes].
    reserved_bytes: float | None = None  #: memory as torch's allocator holds it [bytes].
    device_bytes: float | None = None  #: memory as the driver counts it [bytes].
    skipped: float = 0.0  #: of the iterations since the last line, those that did not update the weights.
    moment_s: float | None = None  #: the line's time stamp [s].
    fine: bool = False  #: whether the time stamp has fractions of a second.
    timers_s: dict[str, float] = field(default_factory=dict)  #: the framework's own timers [s].
    _samples_per_s: float | None = None

    def put(self, name: str, value: float) -> None:
        """Take one quantity; of several ranks the slowest and fullest counts."""
        if name == "batches_per_s":
            name, value = "step_s", 1.0 / value if value > 0 else 0.0
        if name == "samples_per_s":
            self._samples_per_s = value
        elif name == "step_s" and not 0 < value < LONGEST_S:
            return
        elif name == "tokens_per_s_per_gpu":
            known = self.tokens_per_s_per_gpu
            self.tokens_per_s_per_gpu = value if known is None else min(known, value)
        else:
            known = getattr(self, name)
            setattr(self, name, value if known is None else max(known, value))

    def settle(self, batch: float | None, before: Iteration | None) -> None:
        """Find the time of an iteration that is not printed: by time stamps, or by samples/s and the batch."""
        if self.step_s is not None:
            return
        steps = self.step - before.step if before and self.step is not None and before.step is not None else 0
        if before and steps > 0 and self.moment_s is not None and before.moment_s is not None:
            passed_s = self.moment_s - before.moment_s
            if passed_s > (0.01 if self.fine and before.fine else 20.0):  # whole seconds: 5 %
                self.put("step_s", passed_s / steps)
        if self.step_s is None and self._samples_per_s and (self.batch or batch):
            self.put("step_s", (self.batch or batch or 0.0) / self._samples_per_s)


@dataclass(slots=True)
class Run:
    """One run of a log: iterations whose numbers rise."""

    iterations: list[Iteration] = field(default_factory=list)
    by_step: dict[int, Iteration] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    labels: set[tuple[int, str]] = field(default_factory=set)


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

    @property
    def memory_gib(self) -> float | None:
        """What comes nearest to all of the device's use: as the driver counts it, else reserved, else allocated."""
        known = (self.memory.get(basis) for basis in ("nvidia-smi", "reserved", "allocated"))
        return next((size / GIB for size in known if size is not None), None)


class _Reader:
    """Collects the iterations of one format."""

    def __init__(self, known: Format) -> None:
        self.format = known
        self.runs: list[Run] = []
        self.now: Iteration | None = None
        self.count = 0
        self._counter = 0

    def feed(self, number: int, text: str, lowered: str) -> None:
        """Take one line."""
        if not any(word in lowered for word in self.format.words):
            return
        opening = self.format.opening.search(text)
        if opening is not None:
            self._open(number, text, opening)
        if self.now is None:
            return
        for one in self.format.quantities:
            found = one.pattern.search(text)
            if found is not None and (opening is not None or one.name not in {"step", "batch", "step_s"}):
                suffix = found[2] if one.pattern.groups > 1 else ""
                value = float(found[1].replace(",", "")) * _SUFFIXES[suffix or ""] * one.unit
                if value <= MOST and one.name != "step":  # which was taken with the opening
                    self.now.put(one.name, value)

    def _open(self, number: int, text: str, opening: re.Match[str]) -> None:
        """Begin an iteration, or go on with one that another rank has printed."""
        step, moment = self._step(text, opening), _moment(text)
        labelled = _LABEL.match(text)
        label = labelled[1] if labelled else ""
        run = self.runs[-1] if self.runs else None
        if step is None:
            self._counter += 1
            step = self._counter
        there = run.by_step.get(step) if run else None
        if run is not None and there is not None and self._same(run, there, step, label, moment):
            self.now = there
        else:
            if run is None or there is not None or step < run.last.get(label, -1):
                run = Run()
                self.runs.append(run)
            self.count += 1
            self.now = Iteration(number, step)
            run.iterations.append(self.now)
            run.by_step[step] = self.now
        if moment is not None and self.now.moment_s is None:
            self.now.moment_s, self.now.fine = moment
        run.last[label] = step
        run.labels.add((step, label))

    def _step(self, text: str, opening: re.Match[str]) -> int | None:
        named = opening.groupdict()
        found = named.get("step") or named.get("steps")
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
        return apart_s <= SAME_MOMENT_S and (there is run.iterations[-1] or (step, label) not in run.labels)


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
                one.timers_s[name.strip().replace(" ", "-")] = float(number) * _MS


_TELLING = tuple(
    word.encode() for word in dict.fromkeys(
        (*(word for one in FORMATS for word in one.words), *_FACT_WORDS, "ms)", "..:", "train_runtime")
    )
)  # fmt: skip
"""Of which one is in every line that says something; the others, of which huge logs have millions, are passed over."""


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of a log that may say something, and of the last.

    Carriage returns, by which progress bars draw anew, end a line too.
    """
    with open_log(path, "cut the iterations out of it: grep -E 'iteration|step' LOG") as stream:
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


def _text(raw: bytes) -> str:
    return COLOURS.sub("", raw[:MAX_LINE_BYTES].decode("utf-8", "replace"))


class _Found(NamedTuple):
    """What was read of a log."""

    reader: _Reader  #: of the format that most iterations have.
    facts: dict[str, int]  #: what the log says of the job.
    notes: list[str]  #: what a reader should know.


def read_training_log(path: Path, run: int | None = None) -> MeasuredRun:
    """Read the log of a training run.

    Args:
        run: which run of the file, from 1; the longest (of equals the last) if not given.

    Raises:
        InputError: not a log of a framework that is known, or one that reports too few iterations; the message says
            the line, the hint what would help.
    """
    found = _read(path)
    every = _chosen(path, found, run).iterations
    before: Iteration | None = None
    for one in every:
        one.settle(found.facts.get("batch"), before)
        before = one
    counts = Counter(one.batch for one in every if one.batch)
    if len(counts) > 1:  # it grows: the batch that most iterations have, of equals the last
        batch = max(counts, key=lambda size: (counts[size], size))
        found.notes.append(f"the batch changes: taken are the {counts[batch]:,} iterations of {batch:,.0f} sequences")
        every = [one for one in every if one.batch == batch]
    told, value = _timed(path, every, found.reader.format)
    kept = _settled(told, value, first=told[0] is every[0])
    return _measured(path, found, every, kept, [float(value(one) or 0.0) for one in kept])


def _read(path: Path) -> _Found:
    readers, timers, facts = [_Reader(one) for one in FORMATS], _Timers(), dict[str, int]()
    overall, last, notes = 0, 1, list[str]()
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
        overall = overall or (last if _OVERALL.search(text) else 0)
        if any(reader.count > MAX_ITERATIONS for reader in readers):
            notes.append(f"more than {MAX_ITERATIONS:,} iterations: those from line {last:,} on are left out")
            break
    reader = max(readers, key=lambda one: one.count)
    if reader.count:
        return _Found(reader, facts, notes)
    place = f"{str(path)[:300]}:{overall or last}"
    if overall:
        message = "says the mean over the whole run alone (train_runtime), start-up included"
        raise InputError(message, place=place, hint=FORMATS[-1].hint)
    raise InputError("no iteration of a training run found", place=place, hint=f"logs read: {KNOWN}")


KNOWN = ", ".join(one.framework for one in FORMATS)


def _chosen(path: Path, found: _Found, run: int | None) -> Run:
    """Return the run that was asked for, or the longest one."""
    runs = found.reader.runs
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
    """Return the iterations that say how long they took, and what says it: their time, or what they take per token."""
    place, more = f"{str(path)[:300]}:{every[0].line}", f"for {known.framework}, {known.hint}"
    if len(every) < LEAST_ITERATIONS:
        message = f"reports {plural(len(every), 'iteration')}, and the first is warm-up"
        raise InputError(message, place=place, hint=f"give a log of {LEAST_ITERATIONS} or more; {more}")
    timed = any(one.step_s is not None for one in every)

    def value(one: Iteration) -> float | None:
        rate = one.tokens_per_s_per_gpu
        return one.step_s if timed else 1.0 / rate if rate else None

    told = [one for one in every if value(one) is not None]
    first = told[:1] == every[:1]  # by time stamps the first iteration has no time
    if len(told) < LEAST_ITERATIONS - (not first):
        message = f"says of {len(told)} of {len(every)} iterations how long they took"
        raise InputError(message, place=place, hint=f"it takes {LEAST_ITERATIONS} or more; {more}")
    return told, value


def _measured(
    path: Path, found: _Found, every: Sequence[Iteration], kept: Sequence[Iteration], times: Sequence[float]
) -> MeasuredRun:
    """Sum up the iterations that count; `times` of them in seconds, or per token of a GPU."""
    timed, middle, jitter = kept[0].step_s is not None, median(times), robust_spread(times)
    limit = middle * (1 + max(STRAGGLER, DEVIATIONS * jitter))
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
        jitter=jitter,
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
        notes=tuple(found.notes),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value]
    return float(f"{median(known):.9g}") if known else None


def robust_spread(values: Sequence[float]) -> float:
    """1.4826 x the median absolute deviation over the median: the standard deviation, were they spread normally."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values) / middle if middle > 0 else 0.0


def _settled(told: list[Iteration], value: Value, *, first: bool) -> list[Iteration]:
    """Leave out warm-up, and steps whose update was skipped, as far as others are left.

    Args:
        first: the first of them is the first that the log reports.
    """
    usual = median(float(value(one) or 0.0) for one in told[len(told) // 2 :])
    start = 1 if first else 0
    while start < len(told) // 2 and float(value(told[start]) or 0.0) > WARM * usual:
        start += 1
    updated = [one for one in told[start:] if not one.skipped]
    return updated if len(updated) >= LEAST_ITERATIONS else told[start:]
