"""The few physical factors by which a site differs from the model, and a job under them.

Values are what a site has over what is predicted: 0.9 of the speed, 1.2 of the time. The prior is log-normal around 1,
as wide as measured kernels and networks differ from their predictions (`gpuscale.search.conditions`, `KNOBS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from gpuscale.collectives.times import collective_time_s
from gpuscale.specs.cluster import CalibrationSpec, ClusterSpec
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.job import JobSpec, RuntimeSpec


class Factor(NamedTuple):
    """One factor."""

    meaning: str  #: what its value is of what is predicted.
    prior: float  #: standard deviation of its log before anything is measured.
    speed: bool  #: times are divided by it, not multiplied.
    holds_for: str  #: `gpu`, `cluster` or `framework`: it holds where that is the same.


FACTORS = {
    "compute": Factor("speed of matrix products and attention", 0.08, True, "gpu"),
    "hbm": Factor("bandwidth of the GPU's memory", 0.10, True, "gpu"),
    "host": Factor("time of the CPU to issue work", 0.20, False, "framework"),
    "memory": Factor("bytes of activations and of what comes and goes", 0.10, False, "framework"),
}
"""Factors that every job has; `prior` of the memory from the errors of predicted memory, 90 % within 7 to 17 %."""

BANDWIDTH = Factor("bandwidth of the level", 0.30, True, "cluster")
LEVEL = "bandwidth."
"""What the factor of a level is called, before the level's name."""


def factor_of(name: str) -> Factor | None:
    """Return the declaration of a factor; None for names that are none."""
    return BANDWIDTH if name.startswith(LEVEL) and len(name) > len(LEVEL) else FACTORS.get(name)


def names_for(job: JobSpec) -> tuple[str, ...]:
    """Return the factors on which the step time of a job can depend."""
    used, below = [], 1
    for level in job.cluster.levels:
        if below < job.gpus:
            used.append(f"{LEVEL}{level.name}")
        below = level.gpus
    return ("compute", "hbm", *used, "host")


def with_factors(job: JobSpec, factors: Mapping[str, float]) -> JobSpec:
    """Return a job whose GPU, network, CPU and memory are those of a site.

    Args:
        factors: name -> value; those that are not given are 1.
    """
    cluster = replace(job.cluster, gpu=with_kernels(job.cluster.gpu, factors.get("compute", 1), factors.get("hbm", 1)))
    slower = [1 / factors.get(f"{LEVEL}{level.name}", 1.0) for level in cluster.levels]
    return replace(
        job,
        cluster=with_network(cluster, slower) if any(one != 1 for one in slower) else cluster,
        runtime=with_host(job.runtime, factors.get("host", 1.0)),
        transient_factor=job.transient_factor * factors.get("memory", 1.0),
    )


def with_kernels(gpu: GpuSpec, compute: float, hbm: float) -> GpuSpec:
    """Return a GPU whose arithmetic and memory are faster by factors."""
    kernels = gpu.kernels
    if compute == hbm == 1:
        return gpu
    faster = replace(
        kernels,
        gemm_fraction={precision: share * compute for precision, share in kernels.gemm_fraction.items()},
        attention_forward_fraction=kernels.attention_forward_fraction * compute,
        attention_backward_fraction=kernels.attention_backward_fraction * compute,
        exp_per_cycle_per_sm=kernels.exp_per_cycle_per_sm * compute,
        hbm_fraction=kernels.hbm_fraction * hbm,
    )
    return replace(gpu, kernels=faster)


HOST_TIMES = tuple(one.name for one in fields(RuntimeSpec) if one.name.startswith("host_"))
"""Times of the CPU in a `RuntimeSpec`."""


def with_host(runtime: RuntimeSpec, slower: float) -> RuntimeSpec:
    """Return a runtime whose CPU takes longer by a factor."""
    return replace(runtime, **{name: getattr(runtime, name) * slower for name in HOST_TIMES})


def with_network(cluster: ClusterSpec, slower_bytes: Sequence[float], slower_hops: float = 1.0) -> ClusterSpec:
    """Return a cluster on whose levels bytes and hops take longer by factors; measured curves move in proportion."""
    levels = (
        replace(
            level,
            link_bytes_per_s=level.link_bytes_per_s / slower,
            switch_bytes_per_s=level.switch_bytes_per_s / slower,
            global_bytes_per_s=level.global_bytes_per_s / slower,
            hop_latency_s=level.hop_latency_s * slower_hops,
        )
        for level, slower in zip(cluster.levels, slower_bytes, strict=True)
    )
    changed = replace(cluster, levels=tuple(levels))
    return replace(changed, calibration=tuple(_moved(one, cluster, changed) for one in cluster.calibration))


def _moved(one: CalibrationSpec, before: ClusterSpec, after: ClusterSpec) -> CalibrationSpec:
    if (one.gpus - 1) * one.stride + 1 > before.gpus:
        return one
    now_s, then_s = (
        collective_time_s(replace(cluster, calibration=()), one.operation, one.bytes, one.gpus, one.stride)
        for cluster in (after, before)
    )
    times = np.maximum.accumulate(np.array(one.time_s) * now_s / then_s)
    return replace(one, time_s=tuple(times.tolist()))
