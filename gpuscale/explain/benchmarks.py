"""What to measure before a launch: each collective of a plan as a line of nccl-tests, and the bandwidth to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.errors import InputError
from gpuscale.explain.traffic import AxisTraffic
from gpuscale.specs.job import JobSpec

PROGRAMS = {
    "allreduce": "all_reduce_perf",
    "allgather": "all_gather_perf",
    "reducescatter": "reduce_scatter_perf",
    "alltoall": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "sendrecv": "sendrecv_perf",
}
"""Collective -> the program of nccl-tests and rccl-tests that measures it."""

LIBRARIES = {"NVIDIA": "NCCL", "AMD": "RCCL"}
"""Vendor -> its library of collectives; others have none of this kind."""

LEAST_SHARE = 0.001
"""Share of the step below which what a collective exposes is not worth a benchmark, unless nothing else does more."""


@dataclass(frozen=True)
class Benchmark:
    """One collective to measure."""

    axis: str  #: the parallel axis that needs it
    collective: str  #: as in `gpuscale.collective/1`
    level: str  #: outermost level that a group crosses
    group_size: int  #: GPUs of a group
    stride: int  #: GPUs from one member to the next
    groups: int  #: groups that the command runs at once
    ranks: int  #: GPUs that the command takes
    bytes: int  #: size, as nccl-tests counts it
    command: str  #: what to run
    time_s: float  #: what a call is predicted to take [s]
    busbw_gb_per_s: float  #: bus bandwidth to expect
    busbw_low_gb_per_s: float  #: what nine of ten healthy systems exceed: the lower end of the 80 % interval
    algorithm: str  #: what NCCL is predicted to choose
    channels: int  #: CTAs that it takes; 0 where the model does not know
    latency_share: float  #: part of the time that does not depend on the bytes, 0 to 1
    exposed_share: float  #: of the step: what of this collective shows in it, 0 to 1


class RankGrid(NamedTuple):
    """How ranks are dealt out so that groups of a size and stride are formed: GPUs, groups, and nccl-tests' split."""

    ranks: int
    groups: int
    split: str


def grid_of(size: int, stride: int, host_gpus: int) -> RankGrid:
    """Return the fewest whole hosts, or part of one, that hold groups of `size` ranks, `stride` apart, and no others.

    nccl-tests puts ranks of one color into one communicator: `NCCL_TESTS_SPLIT="MOD 8"` those 8 apart, `"DIV 8"` eight
    in a row (its README, "Running multiple operations in parallel").
    """
    ranks = size * stride
    if stride > 1:
        return RankGrid(ranks, stride, f"MOD {stride}")
    if size < host_gpus and host_gpus % size == 0:
        return RankGrid(host_gpus, host_gpus // size, f"DIV {size}")
    return RankGrid(ranks, 1, "")


def benchmarks(job: JobSpec, traffic: Sequence[AxisTraffic], step_time_s: float) -> tuple[Benchmark, ...]:
    """Return what to measure: each collective, group and size once, the one that shows most in the step first."""
    if job.cluster.gpu.vendor not in LIBRARIES:
        return ()
    exposed: dict[tuple[str, str, int, int, int], float] = {}
    for row in traffic:
        size, stride = (2, row.stride) if row.collective == "sendrecv" else (row.group_size, row.stride)
        key = (row.axis, row.collective, size, stride, round(row.bytes_per_call))
        exposed[key] = exposed.get(key, 0.0) + row.exposed_s
    found = [
        one
        for (axis, collective, size, stride, data), shown_s in exposed.items()
        if data > 0 and (one := _benchmark(job, axis, collective, (size, stride, data), shown_s / step_time_s))
    ]
    ordered = sorted(found, key=lambda one: -one.exposed_share)
    worth = [one for one in ordered if one.exposed_share >= LEAST_SHARE]
    return tuple(worth or ordered[:1])


def _benchmark(job: JobSpec, axis: str, collective: str, group: tuple[int, int, int], share: float) -> Benchmark | None:
    """Return one benchmark; None where nccl-tests cannot form the groups or the model does not know them."""
    (size, stride, data), cluster = group, job.cluster
    grid = grid_of(size, stride, cluster.host_gpus)
    if grid.ranks > job.gpus:
        grid = RankGrid(size * stride, stride, f"MOD {stride}" if stride > 1 else "")
    try:
        siblings = Siblings(stride, grid.groups)
        expected = price_collective(cluster, collective, data, gpus=size, siblings=siblings)
    except InputError:
        return None
    busbw = expected.busbw_bytes_per_s / 1e9
    return Benchmark(
        axis=axis,
        collective=collective,
        level=expected.level,
        group_size=size,
        stride=stride,
        groups=grid.groups,
        ranks=grid.ranks,
        bytes=data,
        command=command_of(collective, data, grid, cluster.host_gpus),
        time_s=expected.time_s,
        busbw_gb_per_s=busbw,
        busbw_low_gb_per_s=busbw * expected.time_s / (expected.time_high_s or expected.time_s),
        algorithm=expected.algorithm,
        channels=expected.channels,
        latency_share=expected.latency_s / expected.time_s,
        exposed_share=share,
    )


def command_of(collective: str, data: int, grid: RankGrid, host_gpus: int) -> str:
    """Return the line that measures a collective with nccl-tests (built with MPI=1), one process for each GPU."""
    split = f' -x NCCL_TESTS_SPLIT="{grid.split}"' if grid.split else ""
    mpi = f"mpirun -np {grid.ranks} --map-by ppr:{min(grid.ranks, host_gpus)}:node{split}"
    return f"{mpi} ./build/{PROGRAMS[collective]} -b {data} -e {data} -g 1"
