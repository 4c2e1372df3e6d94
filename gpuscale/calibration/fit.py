"""Measured times fitted: one curve per level, operation and group, and how far off it is before and after."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from gpuscale.calibration.logs import Measured
from gpuscale.collectives import collective_time_s
from gpuscale.collectives.groups import shared_by
from gpuscale.collectives.tuning import AUTOMATIC
from gpuscale.errors import InputError
from gpuscale.presets.calibration import MAX_POINTS
from gpuscale.specs.cluster import CalibrationSpec, ClusterSpec
from gpuscale.units import KIB, MIB

LATENCY_BYTES = 4 * KIB
"""Up to here the bytes themselves take below a microsecond, and the time is latency."""

SIZE_CLASSES = (("< 64 KiB", 64 * KIB), ("64 KiB - 1 MiB", MIB), ("1 - 64 MiB", 64 * MIB), (">= 64 MiB", math.inf))
"""Name and upper end of the classes in which errors are shown."""


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """What was measured: an operation over `gpus` GPUs, `stride` apart, whose outermost level is `level`."""

    level: str
    operation: str
    gpus: int
    stride: int


@dataclass(frozen=True)
class Series:
    """All measurements of one group: (bytes, time [s]) by size, the median where a size was measured again."""

    group: Group
    points: tuple[tuple[float, float], ...]
    rows: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class Residual:
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
    """One curve and what it is worth.

    Attributes:
        curve: what goes into the cluster file.
        latency_s: time of the smallest size, where that is at most `LATENCY_BYTES`; None otherwise [s].
        efficiency: ideal time / measured time at the largest size.
        residuals: the sizes it was held to.
    """

    curve: CalibrationSpec
    latency_s: float | None
    efficiency: float
    residuals: tuple[Residual, ...]


def place_measured(cluster: ClusterSpec, measured: Measured) -> Group:
    """Return the group of the cluster on which a table was measured.

    Raises:
        InputError: the cluster has no such group.
    """
    host = cluster.host_gpus
    held = measured.per_host or min(host, measured.ranks)
    if held > host or host % held:
        raise InputError(
            f"{held} GPUs on each host, but a host of {cluster.name} has {host}",
            place=measured.place,
            hint=f"give the cluster on which it was measured, or --gpus-per-node with a divisor of {host}",
        )
    gpus, stride = measured.ranks, host // held if measured.ranks > held else 1
    try:
        wide = cluster.sized_for((gpus - 1) * stride + 1)[0]
    except InputError as error:
        raise InputError(error.message, place=measured.place, hint=error.hint) from None
    return Group(wide.level_of_group(gpus, stride).name, measured.operation, gpus, stride)


def collect(cluster: ClusterSpec, tables: Iterable[Measured]) -> list[Series]:
    """Put the tables of all logs together by group, in the order of levels and operations."""
    times: dict[Group, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    files: dict[Group, list[str]] = defaultdict(list)
    for table in tables:
        group = place_measured(cluster, table)
        for one in table.samples:
            times[group][one.bytes].append(one.time_us * 1e-6)
        if table.file not in files[group]:
            files[group].append(table.file)
    order = {level.name: index for index, level in enumerate(cluster.levels)}
    found = []
    for group in sorted(times, key=lambda one: (order[one.level], one.operation, one.gpus, one.stride)):
        sizes = times[group]
        points = tuple((float(size), median(sizes[size])) for size in sorted(sizes))
        rows = sum(len(values) for values in sizes.values())
        found.append(Series(group, points, rows, tuple(files[group])))
    return found


def fit_curve(series: Series, source: str) -> CalibrationSpec:
    """Fit one curve: the never falling times that are nearest to the measured ones."""
    group = series.group
    rising = never_falling([time_s for _, time_s in series.points])
    points = thinned([(size, time_s) for (size, _), time_s in zip(series.points, rising, strict=True)])
    return CalibrationSpec(
        operation=group.operation,
        level=group.level,
        gpus=group.gpus,
        stride=group.stride,
        bytes=tuple(size for size, _ in points),
        time_s=tuple(_rounded(time_s) for _, time_s in points),
        source=source,
    )


def _rounded(time_s: float) -> float:
    """Five digits: what a file shows, and far below what a measurement repeats."""
    return float(f"{time_s:.5g}")


def never_falling(values: Sequence[float]) -> list[float]:
    """Return the never falling values with the least sum of |value - measured| (pool adjacent violators, medians).

    Medians, so that one slow run among good ones does not lift its neighbours.
    """
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and median(blocks[-2]) > median(blocks[-1]):
            for one in blocks.pop():
                insort(blocks[-1], one)
    return [median(block) for block in blocks for _ in block]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep at most `MAX_POINTS`: always the one furthest from the line between kept ones, in log time over log bytes.

    Douglas and Peucker 1973, with the distance along the axis of time. Most logs have fewer points and keep all.
    """
    if len(points) <= MAX_POINTS:
        return list(points)
    logs = [(math.log(size), math.log(time_s)) for size, time_s in points]
    kept = {0, len(points) - 1}
    spans = [(0, len(points) - 1)]
    while len(kept) < MAX_POINTS:
        worst = max(spans, key=lambda span: _furthest(logs, *span)[0])
        at = _furthest(logs, *worst)[1]
        spans.remove(worst)
        kept.add(at)
        spans += [(worst[0], at), (at, worst[1])]
    return [points[index] for index in sorted(kept)]


def _furthest(logs: Sequence[tuple[float, float]], first: int, last: int) -> tuple[float, int]:
    """Return distance and index of the point that is furthest from the line between two others."""
    (start, low), (end, high) = logs[first], logs[last]
    found = (0.0, first)
    for index in range(first + 1, last):
        at, value = logs[index]
        line = low + (high - low) * (at - start) / (end - start)
        found = max(found, (abs(value - line), index))
    return found


def calibrated(cluster: ClusterSpec, curves: Iterable[CalibrationSpec]) -> ClusterSpec:
    """Return the cluster with these curves; they replace earlier ones of the same group."""
    new = list(curves)
    groups = {_group(one) for one in new}
    kept = [one for one in cluster.calibration if _group(one) not in groups]
    order = {level.name: index for index, level in enumerate(cluster.levels)}
    every = sorted([*kept, *new], key=lambda one: (order[one.level], one.operation, one.gpus, one.stride))
    return replace(cluster, calibration=tuple(every))


def _group(one: CalibrationSpec) -> Group:
    return Group(one.level, one.operation, one.gpus, one.stride)


def judge(cluster: ClusterSpec, series: Series, curve: CalibrationSpec, points: Sequence[tuple[float, float]]) -> Fit:
    """Hold a curve to measured points, beside what the cluster predicted before; the group runs alone."""
    group = series.group
    before = _times(cluster, group, points)
    after = _times(calibrated(cluster, [curve]), group, points)
    size, time_s = series.points[-1]
    ideal_s = _times(cluster, group, [(size, time_s)], ideal=True)[0]
    residuals = tuple(
        Residual(bytes_, abs(old / measured - 1), abs(new / measured - 1))
        for (bytes_, measured), old, new in zip(points, before, after, strict=True)
    )
    latency_s = curve.time_s[0] if curve.bytes[0] <= LATENCY_BYTES else None
    return Fit(curve, latency_s, ideal_s / time_s, residuals)


def _times(
    cluster: ClusterSpec, group: Group, points: Sequence[tuple[float, float]], *, ideal: bool = False
) -> list[float]:
    wide = cluster.sized_for((group.gpus - 1) * group.stride + 1)[0]
    alone = shared_by(wide, group.gpus, group.stride, 1)
    sizes = np.array([size for size, _ in points])
    found: list[float] = collective_time_s(
        alone, group.operation, sizes, group.gpus, group.stride, ideal=ideal, tuning=AUTOMATIC
    ).tolist()
    return found


def error_rows(residuals: Sequence[Residual]) -> list[ErrorRow]:
    """Return the errors by class of sizes, then of all; classes without sizes are left out."""
    found, low = [], 0.0
    for name, end in SIZE_CLASSES:
        inside = [one for one in residuals if low <= one.bytes < end]
        low = end
        if inside:
            found.append(_error_row(name, inside))
    return [*found, _error_row("all", residuals)] if residuals else []


def _error_row(name: str, residuals: Sequence[Residual]) -> ErrorRow:
    before, after = [one.before for one in residuals], [one.after for one in residuals]
    return ErrorRow(name, len(residuals), median(before), max(before), median(after), max(after))


def halves(series: Series) -> tuple[Series, list[tuple[float, float]]]:
    """Split the sizes in two: every other one to fit, the rest to test."""
    return replace(series, points=series.points[::2]), list(series.points[1::2])
