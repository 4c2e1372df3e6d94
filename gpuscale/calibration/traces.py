"""A trace of PyTorch's profiler (Kineto, Chrome trace events): computation, exposed communication and idle time.

Over all streams of one GPU; communication is exposed where nothing else runs beside it. A step lies between the marks
of `torch.profiler.schedule`, `ProfilerStep#12`.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, TypeGuard, cast

from gpuscale.calibration.training_logs import LEAST_ITERATIONS, MOST, MeasuredRun, read_training_log, robust_spread
from gpuscale.errors import InputError
from gpuscale.files import reading, reads, refuse_irregular
from gpuscale.units import GIB, MIB, plural

MAX_TRACE_BYTES = 8 * GIB
"""Of the trace itself, unpacked."""

MAX_EVENT_CHARACTERS = MIB
MAX_KERNELS = 4_000_000
"""Kernels and copies that are kept, of about 100 bytes each."""

LEAST_STEPS = 1

COMMUNICATION = re.compile(r"nccl|rccl|msccl|nvshmem|deep_?ep|all_?reduce_|symm_mem", re.IGNORECASE)
"""Kernels of communication libraries by their names: ncclDevKernel_AllReduce_..., rccl_main_kernel, deep_ep::..."""

ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
"""Categories of what runs on a GPU (Kineto, output_json.cpp; capital letters before PyTorch 1.12)."""

_STEP = re.compile(r"ProfilerStep#(\d{1,12})")
_HEAD = 64 * 1024

Interval = tuple[float, float]
Intervals = list[Interval]


@reads("run", "trace")
def read_run_log(path: Path, run: int | None = None) -> MeasuredRun:
    """Read the log of a training run, or a trace of PyTorch's profiler, plain or compressed by gzip.

    Args:
        run: which run of a log, as `read_training_log` has it.

    Raises:
        InputError: neither, or with too little in it; the message says file and line.
    """
    return read_trace(path) if is_trace(path) else read_training_log(path, run)


def is_trace(path: Path) -> bool:
    """Whether a file begins as traces of PyTorch's profiler do, or is packed as they are."""
    refuse_irregular(path, "a log", hint="save the output in a file, and give that")
    with reading(path) as stream:
        head = stream.read(_HEAD)
    if head.startswith(b"\x1f\x8b"):
        return True
    return head.lstrip().startswith((b"{", b"[")) and (b'"traceEvents"' in head or b'"schemaVersion"' in head)


def read_trace(path: Path) -> MeasuredRun:
    """Read a trace of PyTorch's profiler.

    Raises:
        InputError: not such a trace, cut off, too large, or without steps or kernels.
    """
    kernels, marks = _events(path)
    place = str(path)[:300]
    if not kernels:
        hint = "profile with ProfilerActivity.CUDA"
        raise InputError("no kernels of a GPU in the trace", place=place, hint=hint)
    device = max(kernels, key=lambda one: len(kernels[one]))
    pairs = pairwise(sorted(marks.items()))  # from each step to the next [s]
    windows = [(start, end) for (number, start), (following, end) in pairs if following == number + 1 and end > start]
    if len(windows) < LEAST_STEPS:
        hint = "call prof.step() after every iteration, and profile two or more"
        raise InputError(f"{plural(len(windows), 'step')} of the profiler in the trace", place=place, hint=hint)
    times = [end - start for start, end in windows]
    computing = _union(kernels[device].get(False, []))
    both = _union([*computing, *kernels[device].get(True, [])])
    compute_s, busy_s = ([_inside(some, window) for window in windows] for some in (computing, both))
    compute = median(compute_s)
    exposed = median(busy - own for busy, own in zip(busy_s, compute_s, strict=True))
    idle = median(time - busy for time, busy in zip(times, busy_s, strict=True))
    notes = []
    if len(kernels) > 1:
        notes.append(f"{path.name} has {len(kernels)} GPUs: taken is {device}, which has most kernels")
    if len(times) < LEAST_ITERATIONS:
        notes.append(f"{path.name} has {plural(len(times), 'whole step')}: jitter says little")
    return MeasuredRun(
        file=path.name,
        framework="PyTorch profiler",
        reported=len(times),
        iterations=len(times),
        step_time_s=median(times),
        jitter=robust_spread(times),
        slowest_s=max(times),
        timers_s={"computation": compute, "exposed communication": exposed, "idle": idle},
        notes=tuple(notes),
    )


def _union(intervals: Intervals) -> Intervals:
    joined: Intervals = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _inside(intervals: Sequence[tuple[float, ...]], window: Interval) -> float:
    """Seconds of disjoint intervals that lie in a window."""
    first, last = bisect_left(intervals, (window[0],)), bisect_left(intervals, (window[1],))
    some = intervals[max(first - 1, 0) : last]
    return math.fsum(max(0.0, min(end, window[1]) - max(start, window[0])) for start, end in some)


def _events(path: Path) -> tuple[dict[str, dict[bool, Intervals]], dict[int, float]]:
    """Intervals by GPU and by whether they are communication, and where each step begins [s]."""
    kernels: dict[str, dict[bool, Intervals]] = {}
    on_cpu, on_gpu, ends = dict[int, float](), dict[int, float](), dict[int, float]()
    count: Counter[str] = Counter()
    for event in _objects(path):
        if event.get("ph") != "X":
            continue
        category, name, start, length = (event.get(key) for key in ("cat", "name", "ts", "dur"))
        if not isinstance(name, str) or not isinstance(category, str) or not _is_time(start) or not _is_time(length):
            continue
        start_s, end_s = start / 1e6, (start + length) / 1e6
        if category in ON_GPU:
            count["kernels"] += 1
            if count["kernels"] > MAX_KERNELS:
                hint = "profile fewer steps"
                raise InputError(f"more than {MAX_KERNELS:,} kernels", place=str(path)[:300], hint=hint)
            arguments = event.get("args")
            device = arguments.get("device") if isinstance(arguments, dict) else None
            own = kernels.setdefault(f"GPU {device}"[:40], {})
            own.setdefault(COMMUNICATION.search(name) is not None, []).append((start_s, end_s))
        elif step := _STEP.search(name):
            marks, number = on_gpu if category == "gpu_user_annotation" else on_cpu, int(step[1])
            marks[number] = min(start_s, marks.get(number, start_s))
            ends[id(marks)] = max(end_s, ends.get(id(marks), end_s))
    marks = on_gpu if len(on_gpu) > 1 else on_cpu
    if marks:  # the last step ends with its own mark
        marks[max(marks) + 1] = ends[id(marks)]
    return kernels, marks


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    place = str(path)[:300]
    with reading(path) as raw:
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
        buffer = _after_head(stream, place)
        while True:
            events, rest = _whole_events(buffer)
            yield from (event for event in events if isinstance(event, dict))
            if rest.startswith("]"):
                return
            if len(rest) > MAX_EVENT_CHARACTERS:
                hint = "give a trace of torch.profiler"
                raise InputError("an event is not JSON, or too long", place=place, hint=hint)
            block = _block(stream, place)
            if not block:
                hint = "the profiler was stopped while it wrote: profile again"
                raise InputError("ends within its events", place=place, hint=hint)
            buffer = rest + block


def _after_head(stream: BinaryIO, place: str) -> str:
    buffer = block = _block(stream, place)
    while block:
        found = re.search(r'"traceEvents"\s*:\s*\[', buffer)
        if found:
            return buffer[found.end() :]
        block = _block(stream, place)
        buffer = buffer[-_HEAD:] + block
    raise InputError("no traceEvents", place=place, hint="give a trace of torch.profiler")


_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[,\s]*")


def _whole_events(text: str) -> tuple[list[Any], str]:
    found, at = list[Any](), 0
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere
        try:
            event, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):  # the end of the events or of the text, or no JSON
            return found, text[at:]
        found.append(event)


def _block(stream: BinaryIO, place: str) -> str:
    try:
        if stream.tell() > MAX_TRACE_BYTES:
            raise InputError(f"larger than {MAX_TRACE_BYTES // GIB} GiB", place=place, hint="profile fewer steps")
        return stream.read(MIB).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be unpacked: {str(error)[:100]}", place=place, hint="give the whole file") from None
