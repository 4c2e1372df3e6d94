"""A cluster fitted to its own measurements: logs of collective benchmarks in, curves with their errors out."""

from __future__ import annotations

import math
import os
import re
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import NamedTuple

import numpy as np

from gpuscale.arguments import public
from gpuscale.arrays import log
from gpuscale.calibration.logs import Measured, read_log
from gpuscale.choices import MAX_GPUS
from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.collectives.groups import shared_by
from gpuscale.collectives.ideal import operation_named
from gpuscale.collectives.nccl_constants import AUTOMATIC, Tuning
from gpuscale.collectives.times import collective_time_s
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.presets.files import MAX_FILE_BYTES, Document, preset_names
from gpuscale.presets.hardware import load_cluster, parse_cluster
from gpuscale.specs.cluster import MAX_CURVES, MAX_POINTS, CalibrationSpec, ClusterSpec
from gpuscale.units import KIB, MIB

MAX_LOGS = 1000
_SHOWN_FILES = 4
FASTER_THAN_WIRE = 1.05
"""From this many times the ideal bandwidth on, a measurement is called impossible."""

LATENCY_BYTES = 4 * KIB
"""Up to here the time is latency: the bytes themselves take below a microsecond."""

SIZE_CLASSES = (
    ("< 64 KiB", 0.0, 64 * KIB),
    ("64 KiB - 1 MiB", 64 * KIB, MIB),
    ("1 - 64 MiB", MIB, 64 * MIB),
    (">= 64 MiB", 64 * MIB, math.inf),
)
"""Name and both ends of the classes in which errors are shown."""

Points = Sequence[tuple[float, float]]
"""(bytes, time [s]) of rising sizes."""


class Group(NamedTuple):
    """What was measured: an operation over `gpus` GPUs, `stride` apart, whose outermost level is `level`."""

    level: str
    operation: str
    gpus: int
    stride: int


class Series(NamedTuple):
    """All measurements of one group: (bytes, time [s]) by size, the median where a size was measured again."""

    group: Group
    points: Points
    rows: int
    files: tuple[str, ...]


class Residual(NamedTuple):
    """One measured size: |predicted / measured - 1| before and after the calibration."""

    bytes: float
    before: float
    after: float


@dataclass(frozen=True)
class ErrorRow:
    """Errors of one class of sizes."""

    size_class: str
    sizes: int
    before_median: float
    before_max: float
    after_median: float
    after_max: float


@dataclass(frozen=True)
class Fit:
    """One curve and what it is worth."""

    curve: CalibrationSpec  #: what goes into the cluster file.
    latency_s: float | None  #: time of the smallest size, where that is at most `LATENCY_BYTES`; None otherwise [s].
    efficiency: float  #: ideal time / measured time at the largest size.
    residuals: tuple[Residual, ...]  #: the sizes it was held to.


@displayed
@dataclass(frozen=True)
class Calibration:
    """What logs say about a cluster."""

    cluster: ClusterSpec  #: with the new curves.
    fits: tuple[Fit, ...]  #: one per level, operation and group, with the errors at all sizes measured.
    #: the same fitted on every other size, with the errors at the rest; empty unless asked for.
    held_out: tuple[Fit, ...]
    logs: int  #: files used.
    rows: int  #: rows of results used.
    notes: tuple[str, ...]  #: what a reader should know: rows left out, numbers taken for granted.
    left_out: tuple[str, ...] = ()  #: logs of which nothing could be used, with the reason.


@public
def calibrate(
    cluster: ClusterSpec | str | Path,
    paths: Sequence[Path],
    *,
    op: str | None = None,
    gpus: int | None = None,
    per_host: int | None = None,
    holdout: bool = False,
) -> Calibration:
    """Fit the collectives of `cluster` to logs of nccl-tests, rccl-tests, nccom-test or torch all_reduce_bench.

    Args:
        cluster: on which they were measured: a preset's name, a file, or what `load_cluster` made of one.
        paths: the logs; tables of the same operation and group are fitted together.
        op: the operation measured, where the logs do not say it.
        gpus: GPUs that took part.
        per_host: of which on each host.
        holdout: also fit every other size, and report the errors at the others.

    Raises:
        InputError: no log can be used: the reason of the first; too many logs; unlike pools; no such operation, or a
            number out of range.
    """
    cluster = load_cluster(cluster)
    for name, value, least in (("gpus", gpus, 2), ("per_host", per_host, 1)):
        if value is not None and not least <= value <= MAX_GPUS:
            raise InputError(f"{value} is out of range", field=name, hint=f"give {least} to {MAX_GPUS:,}")
    operation = None if op is None else operation_named(op)
    if cluster.pools:
        names = ", ".join(pool.name for pool in cluster.pools)
        hint = "measure one pool, and calibrate the cluster file that it is made of"
        raise InputError(f"{cluster.name} has unlike pools ({names})", field="cluster", hint=hint)
    if not 1 <= len(paths) <= MAX_LOGS:
        raise InputError(f"{len(paths):,} logs", place="LOG", hint=f"give 1 to {MAX_LOGS:,}")
    used: list[Path] = []
    tables: list[Measured] = []
    notes: list[str] = []
    errors: list[InputError] = []
    for path in paths:
        try:
            log = read_log(path, op=operation, gpus=gpus, per_host=per_host, check=partial(group_of, cluster))
        except InputError as error:
            errors.append(error)
            continue
        used.append(path)
        tables += log.measured
        notes += log.notes
    if not used:
        raise errors[0]
    every = collect(cluster, tables)
    if len(every) + len(cluster.calibration) > MAX_CURVES:
        raise InputError(f"{len(every)} curves are too many", place="LOG", hint=f"a file holds at most {MAX_CURVES}")
    newest = max(path.stat().st_mtime for path in used)
    date = datetime.fromtimestamp(newest, UTC).date().isoformat()
    fits = [judge(cluster, one, fit_curve(one, _source(one, date)), one.points) for one in every]
    split = {one.group: halves(one) for one in every if holdout}
    held_out = [
        judge(cluster, half, fit_curve(half, _source(half, date)), rest) for half, rest in split.values() if rest
    ]
    notes += _remarks(cluster, tables, fits)
    lone = (group for group, (_, rest) in split.items() if not rest)
    notes += [f"{one.operation} over {one.gpus} GPUs: one size, nothing to hold out" for one in lone]
    return Calibration(
        cluster=calibrated(cluster, [fit.curve for fit in fits]),
        fits=tuple(fits),
        held_out=tuple(held_out),
        logs=len(used),
        rows=sum(one.rows for one in every),
        notes=tuple(notes),
        left_out=tuple(f"{error.place}: {error.message}" for error in errors),
    )


def _source(series: Series, date: str) -> str:
    names = [re.sub(r"[^\x20-\x7e]", "?", name)[:100] for name in series.files]
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return f"{', '.join(names[:_SHOWN_FILES])}{more}, {date}: {series.rows} rows, {len(series.points)} sizes"


def _remarks(cluster: ClusterSpec, tables: Iterable[Measured], fits: Iterable[Fit]) -> Iterator[str]:
    """What logs do not say and was taken for granted, and why another cluster may have been measured."""
    others, ours = {name.split("-")[0] for name in preset_names("gpus")}, cluster.gpu.name.split("-")[0]
    foreign: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        where = f"{table.file}:{table.place.rpartition(':')[2]}"
        if table.counted:
            yield f"{where}: {table.ranks} GPUs, as busbw / algbw says; the log does not list them"
        if table.per_host is None:
            yield f"{where}: does not say how many GPUs of a host took part; all taken (`per_host`)"
        words = set(re.findall(r"[a-z]+[0-9]+[a-z]*", table.gpu.lower()))
        if words & others and ours not in words:
            foreign[table.gpu].append(where)
    for gpu, (where, *rest) in foreign.items():
        more = f" and {len(rest)} more tables" if rest else ""
        yield f"{where}{more}: measured on {gpu}, but {cluster.name} has {cluster.gpu.name}"
    for fit in fits:
        if fit.efficiency > FASTER_THAN_WIRE:
            times = f"{fit.efficiency:.3g} times as fast as {cluster.name} could be without any loss"
            yield f"{fit.curve.operation} over {fit.curve.gpus} GPUs: {times}; was it measured on another cluster?"


def group_of(cluster: ClusterSpec, measured: Measured) -> Group:
    """Return the group of the cluster on which a table was measured.

    Raises:
        InputError: the cluster has no such group.
    """
    host = cluster.host_gpus
    held = measured.per_host or min(host, measured.ranks)
    if held > host or host % held:
        message = f"{held} GPUs on each host, but a host of {cluster.name} has {host}"
        hint = f"give the cluster on which it was measured, or `per_host` with a divisor of {host}"
        raise InputError(message, place=measured.place, hint=hint)
    gpus, stride = measured.ranks, host // held if measured.ranks > held else 1
    try:
        wide = cluster.sized_for((gpus - 1) * stride + 1)[0]
    except InputError as error:
        raise InputError(error.message, place=measured.place, hint=error.hint) from None
    return Group(wide.level_of_group(gpus, stride).name, measured.operation, gpus, stride)


def collect(cluster: ClusterSpec, tables: Iterable[Measured]) -> list[Series]:
    """Put the tables of all logs together by group, in the order of levels and operations."""
    times: dict[Group, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    files: dict[Group, dict[str, None]] = defaultdict(dict)
    for table in tables:
        group = group_of(cluster, table)
        files[group][table.file] = None
        for one in table.samples:
            times[group][one.bytes].append(one.time_us * 1e-6)
    order = [level.name for level in cluster.levels]
    found = []
    for group in sorted(times, key=lambda one: (order.index(one.level), *one[1:])):
        sizes = times[group]
        points = tuple((float(size), median(sizes[size])) for size in sorted(sizes))
        found.append(Series(group, points, sum(map(len, sizes.values())), tuple(files[group])))
    return found


def fit_curve(series: Series, source: str) -> CalibrationSpec:
    """Fit one curve: the never falling times that are nearest to the measured ones."""
    rising = never_falling([time_s for _, time_s in series.points])
    points = thinned([(size, time_s) for (size, _), time_s in zip(series.points, rising, strict=True)])
    return CalibrationSpec(
        **series.group._asdict(),
        bytes=tuple(size for size, _ in points),
        time_s=tuple(float(f"{time_s:.5g}") for _, time_s in points),  # far below what a measurement repeats
        source=source,
    )


def never_falling(values: Sequence[float]) -> list[float]:
    """Return the never falling values with the least sum of |value - measured| (pool adjacent violators, medians)."""
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and median(blocks[-2]) > median(blocks[-1]):
            for one in blocks.pop():
                insort(blocks[-1], one)
    return [median(block) for block in blocks for _ in block]


def thinned(points: Points) -> Points:
    """Keep at most `MAX_POINTS`: always the one furthest, along the axis of time, from the line between kept ones in
    log time over log bytes (Douglas and Peucker 1973)."""
    sizes, times = log(np.array(points, dtype=np.float64)).T

    def furthest(first: int, last: int) -> tuple[float, int]:
        between = slice(first + 1, last)
        off = np.abs(times[between] - np.interp(sizes[between], sizes[[first, last]], times[[first, last]]))
        return float(off.max()), first + 1 + int(off.argmax())

    kept = [0, len(points) - 1]
    while len(points) > MAX_POINTS > len(kept):
        insort(kept, max(furthest(low, high) for low, high in pairwise(kept) if high - low > 1)[1])
    return [points[index] for index in kept] if len(points) > MAX_POINTS else list(points)


def calibrated(cluster: ClusterSpec, curves: Iterable[CalibrationSpec]) -> ClusterSpec:
    """Return the cluster with these curves; they replace earlier ones of the same group."""
    order = [level.name for level in cluster.levels]

    def group(one: CalibrationSpec) -> tuple[int, str, int, int]:
        return order.index(one.level), one.operation, one.gpus, one.stride

    every = {group(one): one for one in (*cluster.calibration, *curves)}
    return replace(cluster, calibration=tuple(every[key] for key in sorted(every)))


def halves(series: Series) -> tuple[Series, Points]:
    """Split the sizes in two: every other one to fit, the rest to test."""
    return series._replace(points=series.points[::2]), series.points[1::2]


def judge(cluster: ClusterSpec, series: Series, curve: CalibrationSpec, points: Points) -> Fit:
    """Hold a curve to measured points, beside what the cluster predicted before; the group runs alone."""
    before = _times(cluster, series.group, points)
    after = _times(calibrated(cluster, [curve]), series.group, points)
    largest = series.points[-1]
    ideal_s = _times(cluster, series.group, [largest], ideal=True)[0]
    residuals = tuple(
        Residual(bytes_, abs(old / measured - 1), abs(new / measured - 1))
        for (bytes_, measured), old, new in zip(points, before, after, strict=True)
    )
    latency_s = curve.time_s[0] if curve.bytes[0] <= LATENCY_BYTES else None
    return Fit(curve, latency_s, ideal_s / largest[1], residuals)


def _times(cluster: ClusterSpec, group: Group, points: Points, *, ideal: bool = False) -> list[float]:
    _, operation, gpus, stride = group
    alone = shared_by(cluster.sized_for((gpus - 1) * stride + 1)[0], gpus, stride, 1)
    sizes = np.array([size for size, _ in points])
    return list(collective_time_s(alone, operation, sizes, gpus, stride, ideal=ideal, tuning=AUTOMATIC).tolist())


def error_rows(residuals: Sequence[Residual]) -> list[ErrorRow]:
    """Return the errors by class of sizes, then of all; classes without sizes are left out."""
    found = []
    for name, low, high in (*SIZE_CLASSES, ("all", 0.0, math.inf)):
        inside = [one for one in residuals if low <= one.bytes < high]
        if inside:
            _, before, after = zip(*inside, strict=True)
            found.append(ErrorRow(name, len(inside), median(before), max(before), median(after), max(after)))
    return found


def cluster_file_text(result: Calibration, source: Document, output: Path) -> str:
    """Return the text of a cluster file (`source`) with the curves of `result`, as it is to stand at `output`, from
    where the path of a GPU file is rewritten; all other lines stay.

    Raises:
        InputError: the file would get too large or otherwise unusable.
    """
    import tomlkit  # noqa: PLC0415 - only where a file is written

    document, path = tomlkit.parse(source.text), source.path
    gpu = str(document.get("gpu", ""))
    if gpu.lower().endswith(".toml") and path.resolve().parent != output.resolve().parent:
        document["gpu"] = os.path.relpath(path.resolve().parent / gpu, output.resolve().parent)
    document.pop("calibration", None)
    tables = tomlkit.aot()
    fits = {fit.curve: fit for fit in result.fits}
    for curve in result.cluster.calibration:
        table = tomlkit.table()
        if fit := fits.get(curve):
            *_, every = error_rows(fit.residuals)
            latency = "" if fit.latency_s is None else f"latency {fit.latency_s * 1e6:.4g} us, "
            ideal = f"{fit.efficiency:.2f} of the ideal bandwidth at the largest size"
            errors = f"median error {100 * every.before_median:.1f} % before, {100 * every.after_median:.1f} % after"
            table.add(tomlkit.comment(f"{latency}{ideal}; {errors}"))
        for key in ("operation", "level", "gpus", "stride"):
            table.add(key, getattr(curve, key))
        times_us = [f"{time_s * 1e6:.5g}" for time_s in curve.time_s]
        for key, values in (("bytes", [f"{size:.0f}" for size in curve.bytes]), ("time_us", times_us)):
            rows = fill(", ".join(values), 112, break_on_hyphens=False).replace("\n", "\n    ")
            table.add(key, tomlkit.array(f"[\n    {rows},\n]"))
        table.add("source", curve.source)
        tables.append(table)
    document.append("calibration", tables)
    text = tomlkit.dumps(document)
    if len(text.encode()) > MAX_FILE_BYTES:
        raise InputError("would be larger than 1 MiB, the limit for a preset", place=str(output)[:300])
    parse_cluster(text, output)  # through the checks of every cluster file, before it is written
    return text


@dataclass(frozen=True)
class Compared:
    """One size of a log beside its prediction."""

    bytes: int  #: as the benchmark counts them.
    measured_time_s: float  #: the median where a size was measured again [s].
    predicted_time_s: float  #: of that group alone [s].
    ratio: float  #: predicted over measured.
    time_low_s: float  #: lower end of the 80 % interval of the prediction [s].
    time_high_s: float  #: its upper end [s].
    algorithm: str  #: and protocol that the model chooses.


@dataclass(frozen=True)
class Against:
    """What a log measured of one operation over one group, beside the model."""

    op: str  #: the operation.
    gpus: int  #: GPUs of the group.
    group_stride: int  #: Rank stride between members.
    level: str  #: outermost level that the group crosses.
    cluster: str  #: name of the cluster that was predicted.
    median_error: float  #: median of |ratio - 1| over the sizes.
    inside: float  #: share of the sizes whose measured time lies in the interval.
    sizes: tuple[Compared, ...]  #: one per size, rising.


def compare_log(
    cluster: ClusterSpec, path: Path, operation: str, *, gpus: int | None = None, tuning: Tuning = AUTOMATIC
) -> tuple[list[Against], list[str]]:
    """Lay a log of nccl-tests, rccl-tests and the like beside what the model says of it; return it with notes.

    Args:
        operation: which of the log's operations; where the log does not name it, the one it measured.
        gpus: GPUs that took part, where the log does not say it.
        tuning: how NCCL was run.

    Raises:
        InputError: nothing of the log can be used, or it measured other operations.
    """
    asked = operation_named(operation)
    check = partial(group_of, cluster)
    try:
        log = read_log(path, gpus=gpus, check=check)
    except InputError:
        log = read_log(path, op=asked, gpus=gpus, check=check)
    tables = [one for one in log.measured if one.operation == asked]
    if not tables:
        there = ", ".join(dict.fromkeys(one.operation for one in log.measured))
        raise InputError(f"the log has no {asked}", place=str(path)[:300], hint=f"it has {there}")
    return [_compared(cluster, one, tuning) for one in collect(cluster, tables)], list(log.notes)


def _compared(cluster: ClusterSpec, series: Series, tuning: Tuning) -> Against:
    level, operation, gpus, stride = series.group
    wide = cluster.sized_for((gpus - 1) * stride + 1)[0]
    rows = []
    for size, measured_s in series.points:
        found = price_collective(wide, operation, int(size), gpus=gpus, siblings=Siblings(stride, 1), tuning=tuning)
        ratio = found.time_s / measured_s
        ends = found.time_low_s, found.time_high_s
        rows.append(Compared(int(size), measured_s, found.time_s, ratio, *ends, found.algorithm))
    return Against(
        op=operation,
        gpus=gpus,
        group_stride=stride,
        level=level,
        cluster=cluster.name,
        median_error=median(abs(one.ratio - 1) for one in rows),
        inside=sum(one.time_low_s <= one.measured_time_s <= one.time_high_s for one in rows) / len(rows),
        sizes=tuple(rows),
    )
