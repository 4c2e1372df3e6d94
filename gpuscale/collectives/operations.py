"""The collective operations gpuscale prices, how people spell them, and nccl-tests' bus-bandwidth factors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuscale.errors import InputError, nearest

OPERATIONS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv")

TITLES = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "alltoall": "AllToAll",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "sendrecv": "SendRecv",
}

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
        InputError: no such operation; the hint lists them, nearest first when one looks alike.
    """
    key = "".join(character for character in text[:100].lower() if character not in "-_ ")
    key = _ALSO.get(key, key)
    if key in OPERATIONS:
        return key
    close = nearest(key[:40], OPERATIONS, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InputError(f"unknown collective {text[:40]!r}", place="OP", hint=f"{hint}there are {', '.join(OPERATIONS)}")


def bus_factor(operation: str, group_size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return busbw / algbw for each group size, as nccl-tests defines it (nccl-tests doc/PERFORMANCE.md).

    AllReduce 2(n-1)/n; AllGather, ReduceScatter and AllToAll (n-1)/n; Broadcast, Reduce and SendRecv 1.
    """
    if operation in {"broadcast", "reduce", "sendrecv"}:
        return np.ones_like(group_size)
    share = (group_size - 1) / group_size
    return 2 * share if operation == "allreduce" else share
