"""Collectives that a plan calls, messages and groups: the step-time model prices them, `explain` lists them.

Sizes are those of nccl-tests: the whole tensor of the group (gathered, or before it is scattered), of an AllToAll the
send buffer of one GPU, of a transfer between two GPUs what is sent.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.collectives.times import collective_time_s
from gpuscale.specs.job import JobSpec

WAYS = ("forward", "backward")
"""Passes of a microbatch."""


class GroupCall(NamedTuple):
    """One call of each candidate, each (N,)."""

    operation: str  #: one of `gpuscale.collectives.ideal.OPERATIONS`.
    bytes: npt.NDArray[Any]
    size: npt.NDArray[Any]  #: GPUs of the group.
    stride: npt.NDArray[Any]  #: GPUs from one member to the next.
    time_s: FloatArray
    where: str = ""  #: between which of the GPUs, of an exchange in two parts.


def collective(
    job: JobSpec, operation: str, bytes_: npt.ArrayLike, size: npt.ArrayLike, stride: npt.ArrayLike
) -> GroupCall:
    """Return a collective with its time on the job's cluster."""
    time_s = collective_time_s(job.cluster, operation, bytes_, size, stride)
    return GroupCall(operation, np.asarray(bytes_), np.asarray(size), np.asarray(stride), time_s)


class Sent(NamedTuple):
    """What a block of a layer, or one end of the model, sends in the passes of one microbatch."""

    axis: str  #: `tp`, `cp`, `ep` or `etp`.
    purpose: str  #: what is sent.
    parts: tuple[GroupCall, ...]  #: what runs beside one another: the longest counts.
    forward: npt.NDArray[Any] | float = 0.0  #: calls in the forward pass.
    backward: npt.NDArray[Any] | float = 0.0  #: calls in the backward pass, beside a forward pass done again.
    again: str = ""  #: what it is called in a forward pass that is done again, where that differs.
    last: bool = False  #: it follows the last product of the block, as the `tail` of a segment does.

    @property
    def component(self) -> str:
        """The component of the step time that it counts as."""
        return "ep_comm" if self.axis == "etp" else f"{self.axis}_comm"

    @property
    def time_s(self) -> FloatArray:
        """Of one call, (N,) [s]."""
        return functools.reduce(np.maximum, (part.time_s for part in self.parts))


def sent_s(sent: Sequence[Sent], way: str) -> FloatArray:
    """Add up what is sent in one of `WAYS`, before overlap, (N,) [s]."""
    called = ((one.time_s, getattr(one, way)) for one in sent)
    times = (
        time_s if isinstance(calls, float) and calls == 1 else calls * time_s
        for time_s, calls in called
        if np.any(calls)
    )
    return functools.reduce(np.add, times, np.zeros(()))
