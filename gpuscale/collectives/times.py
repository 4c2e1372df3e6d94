"""Time of many collectives at once: by the model, corrected by measurements of the cluster itself.

At each size of a `[[calibration]]` table of a cluster file the model is off by the factor

    r = measured / predicted for that group, alone

and a group that crosses the same level takes `predicted * r` (docs/collectives.md, "Your measurements"). Time never
falls with bytes: it is taken on a grid of sizes, made monotone there, and interpolated in log time over log bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.arrays import FloatArray, IndexArray, IntArray, exp, log
from gpuscale.collectives import ideal as textbook
from gpuscale.collectives.channels import check_channels
from gpuscale.collectives.groups import Groups, place, shared_by
from gpuscale.collectives.nccl import taken_s, timings
from gpuscale.collectives.nccl_constants import Tuning
from gpuscale.collectives.network import network_of
from gpuscale.specs.cluster import CalibrationSpec, ClusterSpec

BLOCK = 8192
"""Collectives that are evaluated at once: some twenty arrays of 64 KiB, which a second-level cache holds."""


def collective_time_s(
    cluster: ClusterSpec,
    operation: str,
    bytes_: ArrayLike,
    group_size: ArrayLike,
    stride: ArrayLike = 1,
    *,
    ideal: bool = False,
    tuning: Tuning | None = None,
) -> FloatArray:
    """Return the time of one collective per group [s]; the arguments broadcast, a group of one takes 0 s.

    Args:
        bytes_: whole tensor of each group (gathered, pre-scatter); for alltoall the send buffer of one GPU.
        group_size: GPUs per group; for sendrecv those that send to their neighbours at the same time, 2 for a pair.
        stride: Rank stride between members.
        ideal: the latency-free model.
        tuning: how NCCL is run, as by nccl-tests; None: as part of a training step.

    Raises:
        InputError: unknown operation, a size or stride below 1, a group that reaches beyond the cluster, channels on
            GPUs for which NCCL's own number of them is not known.
    """
    operation = textbook.operation_named(operation)
    check_channels(cluster, tuning)
    arguments = np.broadcast_arrays(bytes_, group_size, stride)
    data, size, step = (one.ravel() for one in arguments)
    data, found = data.astype(np.float64), np.zeros(data.size)
    if (size == 1).all() and (step > 0).all():  # as most axes of most layouts are
        return found.reshape(arguments[0].shape)
    keys, of_row = np.unique(size.astype(np.int64) << 32 | step.astype(np.int64), return_inverse=True)
    kinds = place(cluster, keys >> 32, keys & 0xFFFFFFFF)  # few, and placed once
    curves = [] if ideal else [one for one in cluster.calibration if one.operation == operation]

    def model(where: ClusterSpec, sizes: FloatArray, groups: Groups) -> FloatArray:
        imbalance = tuning.imbalance if tuning else 1.0
        levels_s = textbook.level_times_s(where, operation, sizes, groups, imbalance=imbalance)
        if ideal:
            return levels_s.max(axis=0)
        net = network_of(where, groups, tuning=tuning)
        return np.maximum(levels_s.max(axis=0), taken_s(timings(net, operation, sizes)))

    for start in range(0, data.size, BLOCK):
        here = slice(start, start + BLOCK)
        groups = kinds.take(of_row[here])
        moves = (groups.size > 1) & (data[here] > 0)
        if moves.any():
            times_s = model(cluster, data[here], groups)
            if curves:
                times_s = _calibrated_s(cluster, curves, data[here], groups, keys[of_row[here]], times_s, model)
            found[here] = np.where(moves, times_s, 0.0)
    return found.reshape(arguments[0].shape)


def _calibrated_s(
    cluster: ClusterSpec,
    curves: list[CalibrationSpec],
    data: FloatArray,
    groups: Groups,
    keys: IntArray,
    predicted_s: FloatArray,
    model: Callable[..., FloatArray],
) -> FloatArray:
    """Return the predictions of `model` (from a cluster, bytes and groups), corrected where the cluster has
    measurements of the outermost level crossed, (N,) [s]; `keys` are the groups, `size << 32 | stride`."""
    result = predicted_s.copy()
    last = len(groups.crossed) - 1
    outermost = np.where(groups.crossed.any(axis=0), last - groups.crossed[::-1].argmax(axis=0), -1)
    for index, level in enumerate(cluster.levels):
        here = [one for one in curves if one.level == level.name]
        rows = (outermost == index) & (data > 0) & (predicted_s > 0)
        if not here or not rows.any():
            continue
        distinct, of_row = np.unique(keys[rows], return_inverse=True)
        log_data, log_predicted = log(data[rows]), log(predicted_s[rows])
        log_time = np.zeros_like(log_data)
        for curve, weight in zip(here, _weights(cluster, here, distinct).T, strict=True):
            users = np.flatnonzero(weight)
            if users.size:
                mine = weight[of_row] != 0
                grid = _corrected_grid(cluster, curve, distinct[users], model)
                kind = np.searchsorted(users, of_row[mine])
                log_time[mine] += weight[of_row[mine]] * _interpolated(grid, kind, log_data[mine], log_predicted[mine])
        result[rows] = exp(log_time)
    return result


def _weights(cluster: ClusterSpec, curves: list[CalibrationSpec], keys: IntArray) -> FloatArray:
    """Return how much each measurement counts for each group, shape (groups, curves); rows add up to 1."""
    groups = place(cluster, keys >> 32, keys & 0xFFFFFFFF)
    gpus = np.array([one.gpus for one in curves], dtype=float)
    local = np.array([float(min(one.gpus, max(cluster.node_gpus // one.stride, 1))) for one in curves])
    found = np.zeros((keys.size, len(curves)))
    for row, (size, members) in enumerate(zip(groups.size, groups.members[0], strict=True)):
        away = np.abs(log(local / members))
        near = np.flatnonzero(away <= away.min() + 1e-9)
        near = near[np.argsort(gpus[near], kind="stable")]
        above = int(np.searchsorted(gpus[near], size))
        if above in {0, near.size}:
            found[row, near[min(above, near.size - 1)]] = 1.0
            continue
        low, high = near[above - 1], near[above]
        share = log(size / gpus[low]) / log(gpus[high] / gpus[low])
        found[row, low], found[row, high] = 1 - share, share
    return found


def _corrected_grid(
    cluster: ClusterSpec, curve: CalibrationSpec, keys: IntArray, model: Callable[..., FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Correct the model for U groups on the grid of sizes of one measurement.

    Returns:
        (G,) log bytes of the grid, (U, G) log times there, (U, G) what the model says of them.
    """
    knots = np.array(curve.bytes)
    first, last = math.ceil(math.log2(knots[0])), math.floor(math.log2(knots[-1]))
    grid = np.union1d(knots, np.ldexp(1.0, np.arange(first, last + 1)))
    log_grid, at = log(grid), np.searchsorted(grid, knots)
    wide = (cluster.whole or cluster).sized_for((curve.gpus - 1) * curve.stride + 1)[0]
    alone = replace(shared_by(wide, curve.gpus, curve.stride, 1), nvls=True)  # as it was measured
    groups = place(alone, np.full(knots.size, curve.gpus), curve.stride)
    log_ratio = log(np.array(curve.time_s) / model(alone, knots, groups))
    groups = place(cluster, np.repeat(keys >> 32, grid.size), np.repeat(keys & 0xFFFFFFFF, grid.size))
    predicted = log(model(cluster, np.tile(grid, keys.size), groups)).reshape(keys.size, -1)
    times = predicted + np.interp(log_grid, log_grid[at], log_ratio)
    ends = np.maximum.accumulate(times[:, at], axis=1)
    segment = np.clip(np.searchsorted(at, np.arange(grid.size), side="right") - 1, 0, max(knots.size - 2, 0))
    times = np.clip(times, ends[:, segment], ends[:, np.minimum(segment + 1, knots.size - 1)])
    times[:, at] = ends
    return log_grid, np.maximum.accumulate(times, axis=1), predicted


def _interpolated(
    grid: tuple[FloatArray, FloatArray, FloatArray], kind: IndexArray, log_data: FloatArray, log_predicted: FloatArray
) -> FloatArray:
    """The log time of each row; beyond the grid the model's own growth is followed."""
    log_bytes, log_times, log_grid_predicted = grid
    last = log_bytes.size - 1
    low = np.clip(np.searchsorted(log_bytes, log_data, side="right") - 1, 0, max(last - 1, 0))
    high = np.minimum(low + 1, last)
    width = np.where(high > low, log_bytes[high] - log_bytes[low], 1.0)
    share = np.clip((log_data - log_bytes[low]) / width, 0.0, 1.0)
    inside = log_times[kind, low] * (1 - share) + log_times[kind, high] * share
    before = np.where(log_data < log_bytes[0], log_predicted - log_grid_predicted[kind, 0], 0.0)
    after = np.where(log_data > log_bytes[last], log_predicted - log_grid_predicted[kind, last], 0.0)
    return inside + before + after
