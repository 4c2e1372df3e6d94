"""What a price of one collective says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LevelEstimate:
    """One level of the cluster in the estimate of one collective.

    Attributes:
        gpus: GPUs under one instance of the level.
        members: GPUs of the group in one instance.
        egress_bytes_per_s: per GPU and direction, at wire rate [bytes/s].
        time_s: time of the bytes that cross the level under the chosen algorithm, without latency; 0 when none do.
        ideal_time_s: the same at wire rate by the ideal model.
        binds: whether this level sets the time of the bytes.
    """

    name: str
    fabric: str
    gpus: int
    members: int
    egress_bytes_per_s: float
    time_s: float
    ideal_time_s: float
    binds: bool


@dataclass(frozen=True)
class CollectiveEstimate:
    """The price of one collective.

    Attributes:
        bytes: the whole tensor (gathered, pre-scatter); for alltoall the send buffer of one GPU.
        stride: GPUs from one member of the group to the next.
        concurrent: groups that run at once; None for all that fit.
        level: the level asked about, or the innermost that holds all GPUs.
        algbw_bytes_per_s: bytes / time.
        busbw_bytes_per_s: algbw times nccl-tests' factor.
        bound_by: name of the binding level, `latency`, or `channels`.
        bound_part: what of that level binds: `links`, `switches` or `global links` of a dragonfly; or `latency`,
            or `channels`.
        latency_s: part of the time that does not depend on the bytes.
        ideal_time_s: the latency-free model's time of the same collective.
        model: `ideal`, `nccl`, `deepep`, or `calibrated` where the cluster file has measurements of the level.
        algorithm: `ring LL128`, `NVLS Simple`, ... ; `bytes / bandwidth` for the ideal model.
        next_best: the fastest other algorithm and protocol, empty where there is none.
        next_best_time_s: its time, where calibrated by the same factor; 0 where there is none.
        channels: CTAs that NCCL takes for the chosen algorithm, SMs of DeepEP; 0 where the model does not know, and
            when ideal.
        nccl: version of NCCL that chose, empty for the ideal model and DeepEP.
        imbalance: bytes of the busiest GPU of an AllToAll over the mean.
    """

    op: str
    bytes: int
    gpus: int
    cluster: str
    level: str
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    bound_by: str
    latency_s: float
    ideal_time_s: float
    model: str
    algorithm: str
    formula: str
    levels: tuple[LevelEstimate, ...]
    stride: int = 1
    concurrent: int | None = None
    bound_part: str = "latency"
    next_best: str = ""
    next_best_time_s: float = 0.0
    channels: int = 0
    nccl: str = ""
    imbalance: float = 1.0


@dataclass(frozen=True)
class Siblings:
    """How the groups of a kind lie among each other.

    Attributes:
        stride: GPUs from one member of a group to the next; None for 1, for sendrecv for a unit of the level.
        concurrent: groups that run at once, 1 for a group alone; None for all that fit, as in a training step.
    """

    stride: int | None = None
    concurrent: int | None = None
