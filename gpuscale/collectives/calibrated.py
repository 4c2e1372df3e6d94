"""The model corrected by measurements of the cluster itself (`[[calibration]]` of a cluster file).

A measurement says what one operation took over one group at some sizes. At each of them the model is off by the factor

    r = measured / predicted for that group, alone

and a group that crosses the same level takes `predicted * r`, with log r linear in log bytes between the sizes and
constant beyond them. The measured group therefore takes exactly what was measured; others keep what the model says of
their size. Of several measurements at a level those with as many members per node (or the nearest to it) count, and
between two numbers of GPUs log time is linear in log GPUs.

Time never falls with bytes: for each group the product is taken on a grid of sizes (those measured and the powers of
two between them), made monotone there, and interpolated in log time over log bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IntArray
from gpuscale.collectives.concurrency import shared_by
from gpuscale.collectives.groups import Groups, place
from gpuscale.specs.cluster import CalibrationSpec, ClusterSpec

Model = Callable[[ClusterSpec, str, FloatArray, Groups], FloatArray]


@dataclass(frozen=True)
class Batch:
    """N collectives of one operation: bytes, placement, stride, and what the model predicts; (N,) each."""

    data: FloatArray
    groups: Groups
    stride: IntArray
    predicted_s: FloatArray


@dataclass(frozen=True)
class Models:
    """The model as it is asked about, and as the measurements were taken (with NVLS and SHARP)."""

    asked: Model
    measured: Model


def calibrated_time_s(cluster: ClusterSpec, operation: str, batch: Batch, models: Models) -> FloatArray:
    """Return the predictions of `batch`, corrected where the cluster has measurements of the operation, (N,) [s]."""
    result = batch.predicted_s.copy()
    outermost = outermost_level(batch.groups)
    for index, level in enumerate(cluster.levels):
        curves = [one for one in cluster.calibration if one.operation == operation and one.level == level.name]
        rows = (outermost == index) & (batch.data > 0) & (batch.predicted_s > 0)
        if curves and rows.any():
            result[rows] = _corrected(cluster, curves, batch, rows, models)
    return result


def outermost_level(groups: Groups) -> IntArray:
    """Return the index of the outermost level that each group crosses, (N,); -1 for a group of one."""
    count = len(groups.crossed)
    return np.where(groups.crossed.any(axis=0), count - 1 - groups.crossed[::-1].argmax(axis=0), -1)


def _corrected(
    cluster: ClusterSpec, curves: list[CalibrationSpec], batch: Batch, rows: BoolArray, models: Models
) -> FloatArray:
    size = batch.groups.size[rows].astype(np.int64)
    keys = size << 32 | batch.stride[rows].astype(np.int64)
    unique, of_row = np.unique(keys, return_inverse=True)
    kinds = place(cluster, unique >> 32, unique & 0xFFFFFFFF)
    weights = _weights(cluster, curves, kinds)
    log_data, log_predicted = np.log(batch.data[rows]), np.log(batch.predicted_s[rows])
    log_time = np.zeros_like(log_data)
    for curve, weight in zip(curves, weights.T, strict=True):
        users = np.flatnonzero(weight)
        if not users.size:
            continue
        table = _table(cluster, curve, unique[users], models)
        place_of = np.full(unique.size, -1)
        place_of[users] = np.arange(users.size)
        mine = place_of[of_row]
        taken = mine >= 0
        found = table.log_time(mine[taken], log_data[taken], log_predicted[taken])
        log_time[taken] += weight[of_row[taken]] * found
    corrected: FloatArray = np.exp(log_time)
    return corrected


def _weights(cluster: ClusterSpec, curves: list[CalibrationSpec], kinds: Groups) -> FloatArray:
    """Return how much each measurement counts for each kind of group, shape (kinds, curves); rows add up to 1."""
    gpus = np.array([one.gpus for one in curves], dtype=float)
    local = np.array([_members_of_node(cluster, one) for one in curves])
    found = np.zeros((kinds.size.size, len(curves)))
    for row, (size, members) in enumerate(zip(kinds.size, kinds.members[0], strict=True)):
        away = np.abs(np.log(local / members))
        near = np.flatnonzero(away <= away.min() + 1e-9)
        near = near[np.argsort(gpus[near], kind="stable")]
        above = int(np.searchsorted(gpus[near], size))
        if above in {0, near.size}:
            found[row, near[min(above, near.size - 1)]] = 1.0
            continue
        low, high = near[above - 1], near[above]
        share = np.log(size / gpus[low]) / np.log(gpus[high] / gpus[low])
        found[row, low], found[row, high] = 1 - share, share
    return found


def _members_of_node(cluster: ClusterSpec, one: CalibrationSpec) -> float:
    return float(min(one.gpus, max(cluster.node_gpus // one.stride, 1)))


@dataclass(frozen=True)
class _Table:
    """Corrected log times of U kinds of groups on a grid of G sizes."""

    log_bytes: FloatArray
    log_times: FloatArray
    log_predicted: FloatArray

    def log_time(self, kind: IntArray, log_data: FloatArray, log_predicted: FloatArray) -> FloatArray:
        """Return the log time of each row; beyond the grid the model's own growth is followed."""
        last = self.log_bytes.size - 1
        low = np.clip(np.searchsorted(self.log_bytes, log_data, side="right") - 1, 0, max(last - 1, 0))
        high = np.minimum(low + 1, last)
        width = np.where(high > low, self.log_bytes[high] - self.log_bytes[low], 1.0)
        share = np.clip((log_data - self.log_bytes[low]) / width, 0.0, 1.0)
        inside = self.log_times[kind, low] * (1 - share) + self.log_times[kind, high] * share
        before = np.where(log_data < self.log_bytes[0], log_predicted - self.log_predicted[kind, 0], 0.0)
        after = np.where(log_data > self.log_bytes[last], log_predicted - self.log_predicted[kind, last], 0.0)
        return inside + before + after


def _table(cluster: ClusterSpec, curve: CalibrationSpec, keys: IntArray, models: Models) -> _Table:
    """Correct the model for each kind of group (`size << 32 | stride`) on the grid of one measurement."""
    knots = np.array(curve.bytes)
    first, last = np.ceil(np.log2(knots[0])), np.floor(np.log2(knots[-1]))
    grid = np.union1d(knots, 2.0 ** np.arange(first, last + 1))
    log_grid, at = np.log(grid), np.searchsorted(grid, knots)
    log_ratio = np.log(np.array(curve.time_s) / reference_s(cluster, curve, knots, models.measured))
    size, stride = np.repeat(keys >> 32, grid.size), np.repeat(keys & 0xFFFFFFFF, grid.size)
    data = np.tile(grid, keys.size)
    predicted = np.log(models.asked(cluster, curve.operation, data, place(cluster, size, stride))).reshape(
        keys.size, -1
    )
    times = predicted + np.interp(log_grid, log_grid[at], log_ratio)
    ends = np.maximum.accumulate(times[:, at], axis=1)
    segment = np.clip(np.searchsorted(at, np.arange(grid.size), side="right") - 1, 0, max(knots.size - 2, 0))
    times = np.clip(times, ends[:, segment], ends[:, np.minimum(segment + 1, knots.size - 1)])
    times[:, at] = ends
    return _Table(log_grid, np.maximum.accumulate(times, axis=1), predicted)


def reference_s(cluster: ClusterSpec, curve: CalibrationSpec, bytes_: FloatArray, model: Model) -> FloatArray:
    """Return what the model says of the measured group, running alone, at some sizes [s]."""
    wide = (cluster.whole or cluster).sized_for((curve.gpus - 1) * curve.stride + 1)[0]
    alone = shared_by(wide, curve.gpus, curve.stride, 1)
    groups = place(alone, np.full(bytes_.size, curve.gpus), curve.stride)
    return model(alone, curve.operation, bytes_, groups)
