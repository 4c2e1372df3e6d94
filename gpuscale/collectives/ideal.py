"""The operations, and their textbook times without latency: bytes over bandwidth at the level that limits them.

Source: Austin et al., "How to Scale Your Model", chapter "How to Think About GPUs" (2025; docs/collectives.md). With m
members of the group in each unit that a level joins, and W the egress per GPU, each level takes, for the whole tensor
b,

- AllGather, ReduceScatter  b (1 - m/n) / (W m)
- AllReduce                 twice that, or b / (W m) where the switches add (NVLS, SHARP)
- AllToAll                  b (1 - m/n) / W          b = send buffer of one GPU; `imbalance` says what a busier one adds
- Broadcast, Reduce         b / (W m)                pipelined
- SendRecv                  b / W                    at the outermost level crossed alone

and the collective as long as the slowest level that it crosses.
"""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives.groups import Groups, exchanged, place
from gpuscale.errors import InputError, did_you_mean
from gpuscale.specs.cluster import ClusterSpec

TITLES = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "alltoall": "AllToAll",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "sendrecv": "SendRecv",
}

OPERATIONS = tuple(TITLES)

_ALSO = {
    "ar": "allreduce",
    "ag": "allgather",
    "rs": "reducescatter",
    "a2a": "alltoall",
    "bcast": "broadcast",
    "p2p": "sendrecv",
    "sendreceive": "sendrecv",
}


def operation_named(text: str) -> str:
    """Return the operation that `text` names: `all-reduce`, `AllReduce` and `all_reduce` are `allreduce`.

    Raises:
        InputError: no such operation; the hint lists them, nearest first.
    """
    key = "".join(character for character in text[:100].lower() if character not in "-_ ")
    key = _ALSO.get(key, key)
    if key in TITLES:
        return key
    hint = did_you_mean(key, OPERATIONS, "there are")
    raise InputError(f"unknown collective {text[:40]!r}", field="operation", hint=hint)


def bus_factor(operation: str, group_size: FloatArray) -> FloatArray:
    """Return busbw / algbw for each group size, as nccl-tests defines it (nccl-tests doc/PERFORMANCE.md)."""
    if operation in {"broadcast", "reduce", "sendrecv"}:
        return np.ones_like(group_size)
    share = (group_size - 1) / group_size
    return 2 * share if operation == "allreduce" else share


def level_times_s(
    cluster: ClusterSpec, operation: str, bytes_: FloatArray, groups: Groups, *, imbalance: float = 1.0
) -> FloatArray:
    """Return the time that each level alone would take [s], shape (L, N); 0 at levels that are not crossed;
    `imbalance`: bytes of the busiest GPU of an AllToAll over the mean."""
    n, m, crossed = groups.size, groups.inner, groups.crossed
    wire = groups.wire_bytes_per_s  # W m
    if operation == "allreduce":
        times = 2 * (1 - m / n) * bytes_ / wire
        times = np.where(cluster.adding(ideal=True), np.minimum(times, bytes_ / wire), times)
    elif operation in {"allgather", "reducescatter"}:
        times = (1 - m / n) * bytes_ / wire
    elif operation == "alltoall":
        times = np.where(crossed, (1 - m / n) * bytes_ * m / wire, 0.0)
        return exchanged(bytes_, groups.exchange_s_per_byte, times) * busiest_factors(cluster, groups, imbalance)
    elif operation in {"broadcast", "reduce"}:
        times = bytes_ / wire
    else:
        crossed_from_here = np.cumsum(crossed[::-1], axis=0)[::-1]
        times = np.where(crossed_from_here == 1, bytes_ * m / wire, 0.0)
    return np.where(crossed, times, 0.0)


def busiest_factors(cluster: ClusterSpec, groups: Groups, imbalance: float) -> FloatArray:
    """Return by how much each level takes longer than with even messages, (L, N).

    Links of the busiest GPU carry f (`imbalance`) times as much, a network card that c GPUs share (c - 1 + f) / c
    times, switches that are narrower than the links (m - 1 + f) / m times, for m GPUs of the group in its unit.
    """
    if imbalance == 1:
        return np.ones((1, 1))
    egress = np.array([[level.egress_bytes_per_s / level.link_bytes_per_s] for level in cluster.levels])
    cards = np.array([[max(1.0, 1.0 / level.nics_per_gpu)] for level in cluster.levels])
    own = (cards - 1 + imbalance) / cards
    shared = (groups.inner - 1 + imbalance) / groups.inner
    return np.maximum(own * np.minimum(egress, 1.0), shared)


def allreduce_rates(cluster: ClusterSpec) -> tuple[float, ...]:
    """Return, per level, bytes over time of an ideal AllReduce over all GPUs under it [bytes/s]; 0 under one GPU."""
    groups = place(cluster, [level.gpus for level in cluster.levels], 1)
    times = level_times_s(cluster, "allreduce", np.ones_like(groups.size), groups).max(axis=0)
    return tuple(1.0 / float(time) if time > 0 else 0.0 for time in times)
