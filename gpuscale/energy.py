"""Power of a training job: GPUs by how busy their matrix units are, hosts, the network, and the cooling of it all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.presets.rates import Rate
from gpuscale.specs.cluster import NETWORKS, ClusterSpec
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.kernels import gemm_flops_per_s
from gpuscale.units import GBIT


class Power(NamedTuple):
    """What one GPU of a job and its share of everything else draw."""

    limit_w: float  #: power limit of the GPU [W].
    low_load: float  #: share of it that the GPU draws while no matrix product runs.
    busy_flops_per_s: float  #: model FLOP/s at which its matrix units are busy all the time [FLOP/s].
    host_w: float  #: the rest of the node [W].
    network_w: float  #: switches [W].
    pue: float  #: power of the whole site over that of its computers.
    gpu_w: float | None = None  #: the GPU, where that is stated [W].

    def of_gpu_w(self, flops_per_s: FloatArray | float) -> FloatArray:
        """Return the power of a GPU at a rate of model FLOPs per GPU [W]: at its limit while matrix products run
        (docs/kernels.md), the share of the time that the rate is of the one that GEMMs alone reach; else at `low_load`
        of the limit."""
        if self.gpu_w is not None:
            return np.full(np.shape(flops_per_s), self.gpu_w)
        busy = np.minimum(1.0, np.asarray(flops_per_s) / self.busy_flops_per_s)
        return self.limit_w * (self.low_load + (1.0 - self.low_load) * busy)

    def facility_w(self, flops_per_s: FloatArray | float) -> FloatArray:
        """Return what the site draws for one GPU of the job [W]."""
        return (self.of_gpu_w(flops_per_s) + self.host_w + self.network_w) * self.pue


def power_of(job: JobSpec, rates: Mapping[str, Rate]) -> Power:
    """Return the power of a job, by the rates of `gpuscale.presets.rates`."""

    def stated(name: str) -> float | None:
        return rates[name].value if name in rates else None

    gpu = job.cluster.gpu
    host_w, network_w = stated("host_w"), stated("network_w")
    return Power(
        limit_w=gpu.power_w,
        low_load=min(1.0, rates["gpu_low_load"].value),
        busy_flops_per_s=gemm_flops_per_s(gpu, job.precision),
        host_w=rates["host_share"].value * gpu.power_w if host_w is None else host_w,
        network_w=rates["switch_w_per_gbit_per_s"].value * ports_gbit_per_s(job.cluster)
        if network_w is None
        else network_w,
        pue=rates["pue"].value,
        gpu_w=stated("gpu_w"),
    )


def ports_gbit_per_s(cluster: ClusterSpec) -> float:
    """Return the rate of all switch ports of the network over its GPUs [Gbit/s]: towards them, and of all but the top
    level as much again upwards."""
    rates = [level.link_bytes_per_s / GBIT for level in cluster.levels if level.fabric in NETWORKS and level.switches]
    return sum(rates) + sum(rates[1:])


def power_text(job: JobSpec, rates: Mapping[str, Rate]) -> str:
    """Say what an answer about energy assumes of power."""
    power = power_of(job, rates)
    at_rest, limit = power.of_gpu_w(0.0), power.of_gpu_w(power.busy_flops_per_s)
    gpu = f"{limit:.0f} W per GPU" if power.gpu_w is not None else f"{at_rest:.0f} to {limit:.0f} W per GPU by its load"
    rest = f"host {power.host_w:.0f} W, network {power.network_w:.0f} W, PUE {power.pue:g}"
    return f"{gpu}, {rest}, {rates['carbon_kg_per_kwh'].value:g} kg CO2 per kWh"
