"""`gpuscale calibrate nccl` as a function: logs in, curves with their errors out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.calibration.fit import Fit, Series, calibrated, collect, fit_curve, halves, judge, place_measured
from gpuscale.calibration.logs import Measured, Told, left_out, read_log
from gpuscale.collectives import operation_named
from gpuscale.errors import InputError
from gpuscale.presets.calibration import MAX_TABLES
from gpuscale.presets.files import preset_names
from gpuscale.specs.cluster import MAX_GPUS, ClusterSpec

MAX_LOGS = 1000
_SHOWN_FILES = 4
FASTER_THAN_WIRE = 1.05
"""From this many times the ideal bandwidth on, a measurement is called impossible; what is below may be rounding."""

_GPU_WORD = re.compile(r"[a-z]+[0-9]+[a-z]*")


@dataclass(frozen=True)
class Calibration:
    """What logs say about a cluster.

    Attributes:
        cluster: with the new curves.
        fits: one per level, operation and group, with the errors at all sizes measured.
        held_out: the same fitted on every other size, with the errors at the rest; empty unless asked for.
        logs, rows: files and rows of results used.
        notes: what a reader should know: rows left out, numbers taken for granted.
        left_out: logs of which nothing could be used, with the reason.
    """

    cluster: ClusterSpec
    fits: tuple[Fit, ...]
    held_out: tuple[Fit, ...]
    logs: int
    rows: int
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Usable:
    """What can be used of one log: the tables, at least one, whose groups the cluster has, and what to know of it."""

    path: Path
    tables: tuple[Measured, ...]
    notes: tuple[str, ...]


def told(operation: str | None, gpus: int | None, gpus_per_node: int | None) -> Told:
    """Check what the user says about the logs.

    Raises:
        InputError: no such operation, or a number out of range.
    """
    for name, value, least in (("--gpus", gpus, 2), ("--gpus-per-node", gpus_per_node, 1)):
        if value is not None and not least <= value <= MAX_GPUS:
            raise InputError(f"{value} is out of range", place=name, hint=f"give {least} to {MAX_GPUS:,}")
    return Told(None if operation is None else operation_named(operation), gpus, gpus_per_node)


def calibrate(
    cluster: ClusterSpec, paths: Sequence[Path], told: Told | None = None, *, holdout: bool = False
) -> Calibration:
    """Fit the collectives of `cluster` to logs of nccl-tests, rccl-tests, nccom-test or torch all_reduce_bench.

    Args:
        cluster: the cluster on which they were measured.
        paths: the logs; tables of the same operation and group are fitted together.
        told: what the logs do not say themselves.
        holdout: also fit every other size, and report the errors at the others.

    Raises:
        InputError: no log can be used: the reason of the first; too many logs; unlike pools.
    """
    if cluster.pools:
        names = ", ".join(pool.name for pool in cluster.pools)
        hint = "measure one pool, and calibrate the cluster file that it is made of"
        raise InputError(f"{cluster.name} has unlike pools ({names})", place="--cluster", hint=hint)
    if len(paths) > MAX_LOGS:
        raise InputError(f"{len(paths):,} logs", place="LOG", hint=f"give at most {MAX_LOGS:,}")
    usable, refused = _usable(cluster, paths, told)
    tables = [table for one in usable for table in one.tables]
    series = collect(cluster, tables)
    if len(series) + len(cluster.calibration) > MAX_TABLES:
        raise InputError(f"{len(series)} curves are too many", place="LOG", hint=f"a file holds at most {MAX_TABLES}")
    date = _date([one.path for one in usable])
    curves = [fit_curve(one, _source(one, date)) for one in series]
    fits = tuple(judge(cluster, one, curve, one.points) for one, curve in zip(series, curves, strict=True))
    held_out = [_held_out(cluster, one, date) for one in series if len(one.points) > 1] if holdout else []
    notes = [*_notes(usable), *_other_gpus(cluster, tables), *_too_fast(cluster, fits)]
    if holdout:
        lone = [one.group for one in series if len(one.points) < 2]
        notes += [f"{one.operation} over {one.gpus} GPUs: one size, nothing to hold out" for one in lone]
    return Calibration(
        cluster=calibrated(cluster, curves),
        fits=fits,
        held_out=tuple(held_out),
        logs=len(usable),
        rows=sum(one.rows for one in series),
        notes=tuple(notes),
        left_out=tuple(refused),
    )


def _usable(cluster: ClusterSpec, paths: Sequence[Path], told: Told | None) -> tuple[list[_Usable], list[str]]:
    """Read all logs, and say of those that cannot be used why.

    Raises:
        InputError: of the first log, where none can be used.
    """
    usable, errors = [], []
    for path in paths:
        try:
            usable.append(_used(cluster, path, told))
        except InputError as error:
            errors.append(error)
    if not usable:
        raise errors[0]
    return usable, [f"{error.place}: {error.message}" for error in errors]


def _used(cluster: ClusterSpec, path: Path, told: Told | None) -> _Usable:
    log = read_log(path, told)
    tables, errors = [], []
    for table in log.measured:
        try:
            place_measured(cluster, table)
            tables.append(table)
        except InputError as error:
            errors.append(error)
    if not tables:
        raise errors[0]
    return _Usable(path, tuple(tables), (*log.notes, *(left_out(path, error) for error in errors)))


def _held_out(cluster: ClusterSpec, series: Series, date: str) -> Fit:
    half, rest = halves(series)
    return judge(cluster, half, fit_curve(half, _source(half, date)), rest)


def _source(series: Series, date: str) -> str:
    names = [re.sub(r"[^\x20-\x7e]", "?", name)[:100] for name in series.files]
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return f"{', '.join(names[:_SHOWN_FILES])}{more}, {date}: {series.rows} rows, {len(series.points)} sizes"


def _date(paths: Sequence[Path]) -> str:
    """Return the day on which the newest log was written (UTC)."""
    newest = max(path.stat().st_mtime for path in paths)
    return datetime.fromtimestamp(newest, UTC).date().isoformat()


def _notes(usable: Sequence[_Usable]) -> Iterator[str]:
    for one in usable:
        yield from one.notes
    for table in (table for one in usable for table in one.tables):
        if table.counted:
            yield f"{_where(table)}: {table.ranks} GPUs, as busbw / algbw says; the log does not list them"
        if table.per_host is None:
            yield f"{_where(table)}: does not say how many GPUs of a host took part; all taken (--gpus-per-node)"


def _other_gpus(cluster: ClusterSpec, tables: Sequence[Measured]) -> Iterator[str]:
    """Say once of each GPU named in the logs that it is not the cluster's."""
    others, ours = {name.split("-")[0] for name in preset_names("gpus")}, cluster.gpu.name.split("-")[0]
    found: dict[str, list[Measured]] = defaultdict(list)
    for table in tables:
        words = set(_GPU_WORD.findall(table.gpu.lower()))
        if words & others and ours not in words:
            found[table.gpu].append(table)
    for gpu, where in found.items():
        more = f" and {len(where) - 1} more tables" if len(where) > 1 else ""
        yield f"{_where(where[0])}{more}: measured on {gpu}, but {cluster.name} has {cluster.gpu.name}"


def _too_fast(cluster: ClusterSpec, fits: Sequence[Fit]) -> Iterator[str]:
    """Say of which curves the cluster cannot be the one that was measured: they are faster than its wires."""
    for fit in fits:
        if fit.efficiency > FASTER_THAN_WIRE:
            times = f"{fit.efficiency:.3g} times as fast as {cluster.name} could be without any loss"
            yield f"{fit.curve.operation} over {fit.curve.gpus} GPUs: {times}; was it measured on another cluster?"


def _where(table: Measured) -> str:
    return f"{table.file}:{table.place.rpartition(':')[2]}"
