"""FLOPs and bytes of operators, counted by the functions that time them.

On a GPU that takes one second per FLOP and no time for anything else, an operator takes as many seconds as it has
FLOPs; on one that takes a second per byte of memory traffic, as many as it moves bytes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.stages import FIRST, LAST
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import Breakdown, Segment
from gpuscale.steptime.layer import embedding, layer_segments, lm_head, teacher_forward
from gpuscale.steptime.tensor_parallel import tensor_parallel_time

FINE_TILE = 2.0**-10
"""Edge of an output tile that any product fills whole tiles of, that of a mean number of routed tokens too."""


def counting_flops(job: JobSpec) -> JobSpec:
    """Return the job on a GPU that takes one second per FLOP.

    These depend neither on the precision nor on whose kernels run; whether attention is fused stays as it is.
    """
    gpu = _lossless(job.cluster.gpu)
    gpu = replace(
        gpu,
        vendor="",
        architecture="",
        peak_flops_per_s=dict.fromkeys(("fp32", "bf16"), 1.0),
        memory_bandwidth_bytes_per_s=math.inf,
        kernels=replace(gpu.kernels, tile_m=FINE_TILE, tile_n=FINE_TILE),  # type: ignore[arg-type]
    )
    runtime = replace(job.runtime, attention="unfused" if job.attention == "unfused" else "native")
    return replace(job, cluster=replace(job.cluster, gpu=gpu), precision="bf16", runtime=runtime)


def counting_bytes(job: JobSpec) -> JobSpec:
    """Return the job on a GPU that takes one second per byte of memory traffic."""
    peaks = dict.fromkeys(job.cluster.gpu.peak_flops_per_s, math.inf)
    gpu = replace(_lossless(job.cluster.gpu), peak_flops_per_s=peaks, memory_bandwidth_bytes_per_s=1.0)
    return replace(job, cluster=replace(job.cluster, gpu=gpu))


def _lossless(gpu: GpuSpec) -> GpuSpec:
    """Return the GPU with kernels that reach its peaks and take no time beside."""
    kernels = replace(
        gpu.kernels,
        gemm_fraction=dict.fromkeys((*gpu.peak_flops_per_s, "bf16"), 1.0),
        sustained_clock_fraction=1.0,
        sustained_16bit_fraction=None,
        tile_overhead_s=0.0,
        wave_loss_fraction=0.0,
        kernel_overhead_s=0.0,
        hbm_fraction=1.0,
        stream_fraction=None,
        attention_forward_fraction=1.0,
        attention_backward_fraction=1.0,
        attention_ramp_keys=0.0,
        attention_tail_tiles=0.0,
        exp_per_cycle_per_sm=math.inf,
    )
    return replace(gpu, kernels=kernels)


class Microbatch(NamedTuple):
    """One microbatch of one candidate through one layer of each kind and both ends of the model."""

    layers: tuple[list[Segment], ...]  #: by kind, the segments of one layer.
    #: place -> forward and backward pass of the embedding and of the LM head.
    ends: dict[int, tuple[Breakdown, Breakdown]]
    teacher: Breakdown  #: the forward pass of a teacher.


def microbatch(c: Candidates, job: JobSpec) -> Microbatch:
    """Time the parts of one microbatch: in seconds, FLOPs or bytes, by the GPU of the job."""
    tp = tensor_parallel_time(c, job)
    layers = layer_segments(c, job, c, np.arange(len(c)), tp)
    return Microbatch(layers, {FIRST: embedding(c, job, tp), LAST: lm_head(c, job, tp)}, teacher_forward(c, job))
