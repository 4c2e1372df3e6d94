"""The one breakdown of a step's time, and how much of a transfer shows in it beside the computation that may hide
it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray, IndexArray
from gpuscale.collectives.times import collective_time_s
from gpuscale.layouts.arrays import spread
from gpuscale.specs.job import JobSpec

WAYS = ("forward", "backward")
"""Passes of a microbatch."""


class GroupCall(NamedTuple):
    """One collective of each candidate, each (N,)."""

    operation: str  #: one of `gpuscale.collectives.ideal.OPERATIONS`.
    bytes: npt.NDArray[Any]  #: as nccl-tests counts them; of a transfer between two GPUs what is sent.
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


class Component(NamedTuple):
    """One component of the step time: what limits it, its name in tables, and what it is."""

    limit: str
    text: str
    meaning: str


COMPONENTS = {
    "gemm": Component("compute", "GEMMs", "matrix products of layers and LM head: tiles, waves, memory traffic"),
    "attention": Component("compute", "attention", "fused attention; with context parallelism block by block of keys"),
    "recompute": Component("recompute", "recomputation", "arithmetic of the forward pass that is done again"),
    "elementwise": Component(
        "hbm", "element-wise", "norms, activations, rotary embedding, permutation of tokens, loss: memory traffic"
    ),
    "optimizer": Component("hbm", "optimizer", "gradient clipping and the optimizer's update"),
    "waiting": Component(
        "waiting", "waiting", "for the slowest of all GPUs: clocks differ with the chip and its cooling"
    ),
    "launch": Component("launch", "launches", "time that the GPU waits for the host to launch kernels"),
    "tp_comm": Component(
        "communication",
        "TP comm",
        "AllGather and ReduceScatter (with SP) or AllReduce, less what GEMMs beside them hide",
    ),
    "cp_comm": Component(
        "communication",
        "CP comm",
        "keys and values in a ring, less what attention hides; or gathered; or heads exchanged",
    ),
    "ep_comm": Component(
        "communication", "EP comm", "AllToAll of tokens to their experts and back, and gathers over ETP"
    ),
    "pp_comm": Component("communication", "PP comm", "activations and gradients between stages"),
    "dp_comm": Component(
        "communication", "DP comm", "reduction of gradients and gathers of parameters, less what the passes hide"
    ),
    "offload": Component(
        "host", "offload", "optimizer step on the CPUs; copies to and from host memory, less what the passes hide"
    ),
    "bubble": Component("bubble", "bubble", "stages that wait while the pipeline fills and drains"),
}
"""Of communication only the exposed part is counted."""

INDEX = {name: index for index, name in enumerate(COMPONENTS)}
BOUNDS = {
    "compute": "compute", "recompute": "recomputation", "hbm": "HBM", "waiting": "waiting", "launch": "launches",
    "communication": "communication", "host": "offload", "bubble": "bubble",
}  # fmt: skip
"""Kind of work that a component counts as -> its name for people. The kind that takes most of a step binds it."""


def by_kind(seconds: Mapping[str, float]) -> dict[str, float]:
    """Add up the seconds of a step by kind of work, the most first; equals stand in the order of `BOUNDS`."""
    totals = dict.fromkeys(BOUNDS, 0.0)
    for name, value in seconds.items():
        totals[COMPONENTS[name].limit] += value
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


COMMUNICATION = tuple(name for name in COMPONENTS if name.endswith("_comm"))
IN_LAYERS = ("tp_comm", "cp_comm", "ep_comm")
"""Communication that each layer of each microbatch has; the others are between stages, and of a step."""


Breakdown = dict[str, FloatArray]
"""Component -> seconds, arrays that broadcast against each other; components that are not named are 0."""


class Segment(NamedTuple):
    """A piece of a layer with its forward and its backward pass."""

    forward: Breakdown  #: breakdown of the forward pass, each component of shape (N,).
    backward: Breakdown  #: of the backward pass.
    #: kernels launched in the forward pass; the backward pass launches twice as many.
    kernels: npt.NDArray[Any] | float
    #: collectives issued in the forward pass; the backward pass issues as many.
    collectives: npt.NDArray[Any] | float = 0.0
    modules: int = 0  #: bits of the recomputation modules that repeat its forward pass.
    #: what of the forward pass no gradient needs, if the segment ends its layer: the last product and what follows it.
    tail: Breakdown | None = None
    issue_s: npt.NDArray[Any] | float = 0.0  #: what the CPU takes at least to issue one of its passes [s].
    name: str = ""  #: what it is called; those of a layer differ.
    #: names of its linear operators with their `GemmTimes`, and its collectives: of the rows that it was made for;
    #: `take` leaves both as they are.
    products: tuple[tuple[str, Any], ...] = ()
    sent: tuple[Sent, ...] = ()

    def take(self, index: IndexArray) -> Segment:
        """Give each row the segment of its combination, as `unique_rows` numbers them."""
        kernels, collectives, issue_s = (
            value[index] if isinstance(value, np.ndarray) else value
            for value in (self.kernels, self.collectives, self.issue_s)
        )
        forward, backward, tail = (taken(one or {}, index) for one in (self.forward, self.backward, self.tail))
        own = self._replace(forward=forward, backward=backward, tail=tail or None)
        return own._replace(kernels=kernels, collectives=collectives, issue_s=issue_s)


def added(*breakdowns: Breakdown) -> Breakdown:
    """Add breakdowns up, component by component, in their order."""
    out: Breakdown = {}
    for one in breakdowns:
        for name, value in one.items():
            out[name] = out[name] + value if name in out else value
    return out


def scaled(cost: Breakdown, factor: npt.NDArray[Any] | float) -> Breakdown:
    """Multiply all components."""
    return {name: value * factor for name, value in cost.items()}


def taken(cost: Breakdown, index: IndexArray) -> Breakdown:
    """Give each row the breakdown of its combination, as `unique_rows` numbers them."""
    return {name: spread(value, index) for name, value in cost.items()}


def total_s(cost: Breakdown) -> FloatArray:
    """Sum a breakdown over its components [s].

    In the order of `COMPONENTS`: the same candidate gives the same last digit, however many are summed at once.
    """
    values = [cost[name] for name in COMPONENTS if name in cost]
    return functools.reduce(np.add, values) if values else np.zeros(())


COMMUNICATION_SMS = 16
"""SMs that a collective occupies while it runs: one per channel, of which NCCL opens 16 on A100 and H100 nodes with
networks ("16 coll channels" in its INFO log; NCCL source, src/graph/search.cc)."""


def contention(hidden_s: FloatArray, sm_count: int) -> FloatArray:
    """Time by which a hidden transfer slows the computation above it: the share of the SMs that it occupies [s]."""
    return hidden_s * min(COMMUNICATION_SMS / sm_count, 1.0)


def exposed_beside(communication_s: FloatArray, compute_s: FloatArray) -> FloatArray:
    """Time of a transfer that an independent computation beside it does not hide [s]."""
    return np.maximum(communication_s - compute_s, 0.0)


def exposed_pipelined(communication_s: FloatArray, compute_s: FloatArray, pieces: npt.ArrayLike) -> FloatArray:
    """Time that a collective adds to the GEMM it is pipelined with, cut into `pieces`, of which one shows [s] (Wang et
    al. 2023, "Overlap communication with dependent computation via decomposition", ASPLOS, section 3)."""
    pieces = np.maximum(np.asarray(pieces, dtype=np.float64), 1.0)
    rest = (pieces - 1) / pieces
    return communication_s / pieces + np.maximum(communication_s - compute_s, 0.0) * rest


def exposed_buckets(communication_s: FloatArray, compute_s: FloatArray, bucket_share: FloatArray | float) -> FloatArray:
    """Time of a bucketed reduction or gathering that the pass it runs under does not hide [s].

    The share of the last bucket, which starts when the pass has ended, or of the first gather is always exposed.
    """
    tail = communication_s * np.minimum(bucket_share, 1.0)
    return np.maximum(communication_s - compute_s, tail)
