"""States and activations in host memory: copies over the host link, and the optimizer step on the CPU.

What is offloaded, and when, follows DeepSpeed's ZeRO-Offload and ZeRO-Infinity (Ren et al. 2021, arXiv 2101.06840,
section 4; Rajbhandari et al. 2021, arXiv 2104.07857, section 5) and Megatron-LM's `--optimizer-cpu-offload`.
"""

from __future__ import annotations

import numpy as np

from gpuscale.architecture.parameters import model_parameters
from gpuscale.arrays import FloatArray
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates
from gpuscale.memory.states import StageParameters
from gpuscale.specs.cluster import ClusterSpec, HostSpec
from gpuscale.specs.job import JobSpec

HOST_LINK_FRACTION = 0.8
"""Share of the host link's rate that copies of pinned memory reach: 25 of 31.5 GB/s on PCIe 4.0 x16, 50-55 of 63 on
5.0 (NVIDIA CUDA samples, bandwidthTest; guesstimate for C2C and xGMI)."""

HOST_MEMORY_FRACTION = 0.45
"""Share of the host's DRAM bandwidth that a vectorised Adam on all cores reaches: about 0.24 s for 1e9 parameters,
28 bytes each, on two Xeon 8168 with 256 GB/s (Ren et al. 2021, arXiv 2101.06840, table 4)."""

FP32 = 4
"""Bytes of the fp32 copy of a gradient that the CPU keeps, unscales and clips."""


def host_of(cluster: ClusterSpec) -> HostSpec:
    """Return the cluster's host.

    Raises:
        InputError: the cluster does not say what its hosts are.
    """
    if cluster.host is None:
        hint = "add one to the cluster file (docs/hardware.md), or use a cluster that has it"
        raise InputError(f"{cluster.name} has no [host] table, which offloading needs", field="offload", hint=hint)
    return cluster.host


def host_link_bytes_per_s(job: JobSpec) -> float:
    """Rate at which each GPU copies to or from host memory while all of the job's GPUs do [bytes/s]."""
    host = host_of(job.cluster)
    sharing = min(host.gpus_per_uplink, host.gpus, job.gpus)
    return job.cluster.gpu.host_link_bytes_per_s * HOST_LINK_FRACTION / sharing


def cpu_optimizer_time_s(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Optimizer step on the CPUs of one host, which share its memory's bandwidth; shape (N,) [s].

    Per parameter: the fp32 gradient is written as it arrives, read for its norm, read and written to be clipped, read
    again; master weight and moments are read and written; the 16-bit weight is written.
    """
    return parameters.updated(c) * _cpu_s_per_parameter(job)


def least_cpu_optimizer_time_s(job: JobSpec) -> float:
    """Lower bound of `cpu_optimizer_time_s`: the share of some GPU is at least that of an even split [s]."""
    if not job.offload.optimizer or job.tuning is not None:
        return 0.0
    parameters = (model_parameters(job.model).total + job.trained_tower) / job.gpus
    return parameters * _cpu_s_per_parameter(job)


def _cpu_s_per_parameter(job: JobSpec) -> float:
    """Seconds per parameter that a GPU updates, while all GPUs of its host do."""
    states, host = job.states, host_of(job.cluster)
    traffic = 5 * FP32 + 2 * states.optimizer + states.weight
    return min(host.gpus, job.gpus) * traffic / (host.memory_bytes_per_s * HOST_MEMORY_FRACTION)


def gradient_copies_s(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Copy of the GPU's share of the gradients to the host, per reduction; shape (N,) [s].

    Under ZeRO-2 and 3 gradients accumulate on the host: after the first microbatch they come back, are added to on the
    GPU and go out again (DeepSpeed, runtime/zero/stage3.py, partition_grads).
    """
    once_s = parameters.updated(c) * job.states.gradient / host_link_bytes_per_s(job)
    trips = np.where(c.zero >= 2, 2.0 - 1.0 / c.num_microbatches, 1.0)
    return np.asarray(once_s * trips, dtype=np.float64)


def weight_copy_s(c: Candidates, job: JobSpec, parameters: StageParameters, *, frozen: bool = False) -> FloatArray:
    """Copy of the GPU's share of the 16-bit weights to or from the host; shape (N,) [s].

    Args:
        frozen: with the frozen weights beside adapters, which come from the host and never go back.
    """
    held = parameters.per_gpu(c.zero >= 1) * job.states.weight
    if frozen and job.tuning is not None and parameters.frozen is not None:
        held = held + parameters.frozen.per_gpu(c.zero >= 1)
    return np.asarray(held.max(axis=0), dtype=np.float64) / host_link_bytes_per_s(job)
