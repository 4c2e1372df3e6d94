"""States and activations in host memory: copies over the host link, and the optimizer step on the CPU, as DeepSpeed's
ZeRO-Offload and ZeRO-Infinity (Ren et al. 2021, arXiv 2101.06840, section 4; Rajbhandari et al. 2021, arXiv 2104.07857,
section 5) and Megatron-LM's `--optimizer-cpu-offload` have them."""

from __future__ import annotations

import math

import numpy as np

from gpuscale.architecture.parameters import model_parameters
from gpuscale.arrays import FloatArray
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates
from gpuscale.memory.states import StageParameters
from gpuscale.specs.cluster import ClusterSpec, HostSpec
from gpuscale.specs.job import JobSpec

HOST_LINK_FRACTION = 0.8
"""Share of the host link's rate that copies of pinned memory reach: 25 of 31.5 GB/s on PCIe 4.0 x16, 50-55 of 63 on 5.0
(NVIDIA CUDA samples, bandwidthTest; guesstimate for C2C and xGMI)."""

HOST_MEMORY_FRACTION = 0.45
"""Share of the host's DRAM bandwidth that a vectorised Adam on all cores reaches: about 0.24 s for 1e9 parameters,
28 bytes each, on two Xeon 8168 with 256 GB/s (Ren et al. 2021, arXiv 2101.06840, table 4)."""

THREAD_BYTES_PER_S = 12e9
"""DRAM traffic of one thread that streams, on Intel's Xeons (AnandTech 2017: STREAM Triad with one thread on Skylake-SP
with DDR4-2666). Guesstimate for others: AMD's EPYC 7763 has 31 GB/s."""

PAGEABLE_BYTES_PER_S = THREAD_BYTES_PER_S / 2
"""Rate of copies between a GPU and memory that is not pinned: a thread of the driver reads and writes every byte
(Harris, NVIDIA 2012, "How to optimize data transfers in CUDA C/C++", has 5.4 GB/s)."""

FP32 = 4
"""Bytes of the fp32 copy of a gradient that the CPU keeps and clips."""

OVERFLOW_BYTES = 12
"""Traffic per 16-bit gradient of looking for infinities and NaN under fp16 (DeepSpeed, runtime/zero/stage3.py,
`has_overflow`: `isinf` and `isnan`)."""


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
    host, own = host_of(job.cluster), job.cluster.gpu.host_link_bytes_per_s
    sharing = min(host.gpus_per_uplink, host.gpus, job.gpus)
    return min(own, (host.uplink_bytes_per_s or own) / sharing) * HOST_LINK_FRACTION


def cpu_optimizer_time_s(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Optimizer step on the CPUs of one host, which share its memory's bandwidth; shape (N,) [s]: clipping, Adam and
    cast of the weights, of which lines are fetched and written (DeepSpeed, runtime/zero/stage3.py, `step`)."""
    return parameters.updated(c) * _cpu_s_per_parameter(job)


def least_cpu_optimizer_time_s(job: JobSpec, threads: int | None = None) -> float:
    """Lower bound of `cpu_optimizer_time_s`: the share of some GPU is at least that of an even split [s].

    Args:
        threads: of each GPU, 0 for as many as feed on the memory; as the host says where nothing is said.
    """
    if not job.offload.optimizer or job.tuning is not None:
        return 0.0
    parameters = (model_parameters(job.model).total + job.trained_tower) / job.gpus
    return parameters * _cpu_s_per_parameter(job, threads)


def _cpu_s_per_parameter(job: JobSpec, threads: int | None = None) -> float:
    states, host = job.states, host_of(job.cluster)
    traffic = 3 * FP32 + 2 * states.optimizer + states.master + 2 * states.weight
    traffic += OVERFLOW_BYTES * (job.precision == "fp16")
    shared = host.memory_bytes_per_s * HOST_MEMORY_FRACTION / min(host.gpus, job.gpus)
    threads = host.threads_per_gpu if threads is None else threads
    return traffic / min(shared, (threads or math.inf) * THREAD_BYTES_PER_S)


def gradient_copies(c: Candidates, job: JobSpec, parameters: StageParameters) -> tuple[FloatArray, FloatArray]:
    """Time the copies of a GPU's share of the gradients to the host and from it, per reduction, each (N,) [s]
    (docs/model.md, "Offloading to host memory").

    DeepSpeed, runtime/zero/stage3.py, `partition_grads`; stage_1_and_2.py, `async_accumulate_grad_in_cpu_via_gpu`.
    Without ZeRO-2 and 3, and under FSDP, whose CPU adds up, all go out once.
    """
    once_s = parameters.updated(c) * job.states.gradient / host_link_bytes_per_s(job)
    accumulates = (c.zero >= 2) & (not job.runtime.memory.master_is_weight)
    trips = np.where(c.zero == 3, 1.0, 1.0 - 1.0 / c.num_microbatches)
    wide = FP32 / job.states.gradient / c.num_microbatches
    return once_s * np.where(accumulates, trips + wide, 1.0), once_s * np.where(accumulates, trips, 0.0)


def weights_return_s(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Copy of the updated weights to the GPU, shape (N,) [s].

    ZeRO-3 has PyTorch cast them on the CPU into memory that is not pinned (DeepSpeed, runtime/zero/stage3.py,
    `_reassign_or_swap_out_partitioned_parameters`; PyTorch, aten/src/ATen/native/cuda/Copy.cu); the others copy fp32
    (stage_1_and_2.py, `step`; Megatron-LM, cpu_offloading/hybrid_optimizer.py).
    """
    pageable = (c.zero == 3) & (not job.runtime.memory.master_is_weight)
    link = host_link_bytes_per_s(job)
    rate = np.where(pageable, job.states.weight / min(PAGEABLE_BYTES_PER_S, link), FP32 / link)
    return parameters.updated(c) * rate


def weight_copy_s(c: Candidates, job: JobSpec, parameters: StageParameters, *, frozen: bool = False) -> FloatArray:
    """Copy of the GPU's share of the 16-bit weights to or from the host; shape (N,) [s].

    Args:
        frozen: with the frozen weights beside adapters, which come from the host and never go back.
    """
    held = parameters.per_gpu(c.zero >= 1) * job.states.weight
    if frozen and job.tuning is not None and parameters.frozen is not None:
        held = held + parameters.frozen.per_gpu(c.zero >= 1)
    return held.max(axis=0) / host_link_bytes_per_s(job)
