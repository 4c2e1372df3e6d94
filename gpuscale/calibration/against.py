"""A log of a collective benchmark laid beside what the model says of the same sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from gpuscale.calibration.calibrate import Series, collect, group_of
from gpuscale.calibration.logs import read_log
from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.collectives.ideal import operation_named
from gpuscale.collectives.nccl_constants import AUTOMATIC, Tuning
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec


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
        cluster: where it was measured.
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
