"""The latency-free model: bytes over bandwidth at the level that binds.

Source: Austin et al., "How to Scale Your Model", chapter "How to Think About GPUs" (2025), sections on collectives in a
node, across nodes and with in-network reduction. Its tree form `T = max_i(B * N_sub_i / W_i)` and its strided form
`T = max_i(B * S_i / (max(Y, S_{i-1}) * W_i))` are special cases of the one below; there B is the array before it is
split Y ways, here `bytes_` is the whole tensor of one group.

With m_{i-1} group members in each unit that level i joins, and W_i the egress per GPU:

- AllGather, ReduceScatter  T_i = b (1 - m_{i-1}/n) / (W_i m_{i-1})
- AllReduce                 T_i = twice that, or b / (W_i m_{i-1}) where the switches add (NVLS, SHARP)
- AllToAll                  T_i = b (1 - m_{i-1}/n) / W_i          b = send buffer of one GPU; `imbalance` says what
                                                                   a busier one adds
- Broadcast, Reduce         T_i = b / (W_i m_{i-1})                pipelined
- SendRecv                  T   = b / W_i at the outermost level crossed
- total                     T   = max_i T_i over the levels that the group crosses
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.arrays import FloatArray
from gpuscale.collectives.groups import Groups, place
from gpuscale.collectives.imbalance import busiest_factors
from gpuscale.collectives.terms import Block, Moved, Over
from gpuscale.specs.cluster import ClusterSpec


def level_terms(
    cluster: ClusterSpec, operation: str, groups: Groups, *, in_network_reduction: bool = True, imbalance: float = 1.0
) -> tuple[Over, ...]:
    """Return what each level alone would take, innermost first, for G kinds of groups; 0 s where it is not crossed."""
    leaving = 1 - groups.inner / groups.size
    if operation == "allreduce":
        factor = 2 * leaving
        if in_network_reduction:
            adds = np.array([level.in_network_reduction for level in cluster.levels])[:, None]
            factor = np.where(adds, np.minimum(factor, 1.0), factor)
    elif operation in {"allgather", "reducescatter"}:
        factor = leaving
    elif operation == "alltoall":
        busiest = 1.0 if imbalance == 1 else busiest_factors(cluster, groups, imbalance)
        factor = leaving * groups.inner * busiest
    elif operation in {"broadcast", "reduce"}:
        factor = np.ones_like(leaving)
    else:  # sendrecv: only the outermost level crossed
        above = np.cumsum(groups.crossed[::-1], axis=0)[::-1]
        factor = groups.inner * (above == 1)
    factor, wire = np.where(groups.crossed, factor, 0.0), groups.wire_bytes_per_s
    if operation == "alltoall" and groups.exchange_s_per_byte is not None:
        wired = groups.exchange_s_per_byte > 0
        factor = np.where(wired, busiest, factor)
        wire = np.where(wired, 1 / np.where(wired, groups.exchange_s_per_byte, 1.0), wire)
    return tuple(Over(Moved(top), rate) for top, rate in zip(factor, wire, strict=True))


def level_times_s(
    cluster: ClusterSpec,
    operation: str,
    bytes_: FloatArray,
    groups: Groups,
    *,
    in_network_reduction: bool = True,
    imbalance: float = 1.0,
) -> FloatArray:
    """Return the time that each level alone would take [s], shape (L, N); 0 at levels that are not crossed."""
    block = Block(bytes_, slice(None))
    terms = level_terms(cluster, operation, groups, in_network_reduction=in_network_reduction, imbalance=imbalance)
    return np.array([term.seconds(block) for term in terms])


def ideal_time_s(
    cluster: ClusterSpec,
    operation: str,
    bytes_: ArrayLike,
    group_size: ArrayLike,
    stride: ArrayLike = 1,
    *,
    in_network_reduction: bool = True,
) -> FloatArray:
    """Return the ideal time of one collective per group [s], shape (N,); 0 for a group of one.

    Args:
        cluster: the hierarchy of levels.
        operation: one of `operations.OPERATIONS`.
        bytes_: (N,) whole tensor of the group (gathered, pre-scatter); for alltoall the send buffer of one GPU.
        group_size: (N,) GPUs per group.
        stride: (N,) distance between neighbours.
        in_network_reduction: use NVLS / SHARP at the levels that have it.
    """
    size, step, data = np.broadcast_arrays(np.atleast_1d(group_size), np.atleast_1d(stride), np.atleast_1d(bytes_))
    groups = place(cluster, size, step)
    times = level_times_s(
        cluster, operation, data.astype(np.float64), groups, in_network_reduction=in_network_reduction
    )
    total: FloatArray = times.max(axis=0)
    return total


def allreduce_rates(cluster: ClusterSpec) -> tuple[float, ...]:
    """Return, per level, bytes over time of an ideal AllReduce over all GPUs under it [bytes/s]; 0 under one GPU."""
    times = ideal_time_s(cluster, "allreduce", 1.0, [level.gpus for level in cluster.levels])
    return tuple(1.0 / float(time) if time > 0 else 0.0 for time in times)
