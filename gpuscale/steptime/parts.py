"""What a layer is made of: parts with a forward and a backward pass, and the operators they are priced with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscale.architecture.operators import Linear
from gpuscale.candidates.arrays import Candidates
from gpuscale.candidates.order import strides
from gpuscale.collectives import collective_time_s
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import breakdown
from gpuscale.steptime.kernels import gemm_time_s, stream_time_s
from gpuscale.steptime.overlap import exposed_beside, exposed_pipelined
from gpuscale.steptime.quantise import RECIPES, quantising_bytes

FloatArray = npt.NDArray[np.float64]

ACT_BYTES = 2
"""Bytes of an activation or of its gradient."""

WGRAD_OUTPUT_BYTES = 8
"""Traffic per element of a weight gradient that a GEMM adds onto an fp32 buffer: read 4, write 4."""


ALIGNED_ELEMENTS = 64
"""Width in 16-bit elements, 128 bytes, to a multiple of which the rows of both operands must come for full speed
(NVIDIA, "Matrix Multiplication Background User's Guide", section 2.2, tensor core requirements on A100)."""

THREADS_LOAD = frozenset({"volta", "ampere", "ada"})
"""NVIDIA generations without a tensor memory accelerator."""

MISALIGNED_SLOWDOWN = 1.45
"""GEMM time with rows of another width, but a multiple of 16 bytes, where threads load the operands (fitted to whole
runs, docs/model.md); the tensor memory accelerator of Hopper and later does not mind."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a layer.

    Attributes:
        forward, backward: breakdowns, shape (components, N).
        kernels: kernels launched in the forward pass; the backward pass launches twice as many.
        collectives: collectives issued in the forward pass; the backward pass issues as many.
        modules: bits of the recomputation modules that repeat this part's forward pass.
    """

    forward: FloatArray
    backward: FloatArray
    kernels: float | npt.NDArray[np.int64]
    collectives: npt.NDArray[Any] | float = 0.0
    modules: int = 0


@dataclass(frozen=True, slots=True)
class GemmTimes:
    """Forward, input-gradient and weight-gradient time of one linear operator, and its casts, each (N,) [s]."""

    forward: FloatArray
    dgrad: FloatArray
    wgrad: FloatArray
    stream_forward: FloatArray
    stream_backward: FloatArray

    @property
    def backward(self) -> FloatArray:
        """Both gradients."""
        return self.dgrad + self.wgrad


def stream(job: JobSpec, bytes_moved: FloatArray, kernels: int) -> FloatArray:
    """Time of memory-bound kernels on the job's GPU [s]."""
    return stream_time_s(job.cluster.gpu, bytes_moved, kernels)


def accumulate_bytes(job: JobSpec) -> float:
    """Traffic per element of adding a 16-bit weight gradient onto the accumulated ones by a kernel of its own: read the
    new one, read and write the sum."""
    return ACT_BYTES + 2 * job.reduced_gradient_bytes


def linear_times(linear: Linear, rows: FloatArray, c: Candidates, job: JobSpec, groups: npt.ArrayLike = 1) -> GemmTimes:
    """Price one operator on `rows` tokens (per group, for grouped experts).

    The router runs in 16 bits whatever the job's precision. Under fp8 and fp4 the input (forward) and the output
    gradient (backward) are quantised first, the weights once a step or in every pass. Without gradient fusion every
    microbatch adds its weight gradient onto the accumulated ones with a kernel of its own.
    """
    gpu = job.cluster.gpu
    split = c.etp if linear.module == "experts" else c.tp
    precision = job.attention_precision if linear.module == "router" else job.precision
    inputs, outputs = linear.local_inputs(split), linear.local_outputs(split)
    count = np.asarray(groups, dtype=np.float64)
    cast_forward = cast_backward = np.zeros(len(c))
    if precision in {"fp8", "fp4"}:
        element_bytes, kernels = quantising_bytes(job.recipe, gpu), RECIPES[job.recipe].kernels
        cast_forward = stream(job, rows * inputs * count * element_bytes, kernels)
        cast_backward = stream(job, rows * outputs * count * element_bytes, kernels)
        if job.runtime.casts_weights:
            cast_weights = stream(job, inputs * outputs * count * element_bytes, kernels)
            cast_forward, cast_backward = cast_forward + cast_weights, cast_backward + cast_weights
    slow = misalignment(job, inputs, outputs)
    fused = job.runtime.wgrad_fusion
    accumulate = np.zeros(len(c)) if fused else stream(job, inputs * outputs * count * accumulate_bytes(job), 1)
    wgrad_bytes = WGRAD_OUTPUT_BYTES if fused else ACT_BYTES
    return GemmTimes(
        slow * gemm_time_s(gpu, precision, rows, outputs, inputs, groups),
        slow * gemm_time_s(gpu, precision, rows, inputs, outputs, groups),
        slow * gemm_time_s(gpu, precision, inputs, outputs, rows, groups, wgrad_bytes),
        cast_forward,
        cast_backward + accumulate,
    )


def misalignment(job: JobSpec, inputs: npt.NDArray[Any] | float, outputs: npt.NDArray[Any] | float) -> FloatArray:
    """Slowdown of an operator's GEMMs by the widths of its rows on this GPU."""
    loads = job.cluster.gpu.architecture in THREADS_LOAD and job.precision not in {"fp8", "fp4"}
    aligned = (np.asarray(inputs) % ALIGNED_ELEMENTS == 0) & (np.asarray(outputs) % ALIGNED_ELEMENTS == 0)
    return np.where(loads & ~aligned, MISALIGNED_SLOWDOWN, 1.0)


def total(times: Sequence[GemmTimes], name: str, count: int) -> FloatArray:
    """Sum one attribute over several operators; zeros of length `count` for none."""
    return np.asarray(sum((getattr(item, name) for item in times), np.zeros(count)), dtype=np.float64)


def gemm_breakdown(
    times: Sequence[GemmTimes], direction: str, count: int, elementwise: FloatArray | float = 0.0, **others: FloatArray
) -> FloatArray:
    """Break down one pass, `forward` or `backward`, of several operators and of what runs with them.

    Args:
        elementwise: memory-bound kernels beside the operators' own [s].
        others: further components [s].
    """
    streams = total(times, f"stream_{direction}", count) + elementwise
    return breakdown(count, gemm=total(times, direction, count), elementwise=streams, **others)


def tp_block(first: Sequence[GemmTimes], last: GemmTimes, c: Candidates, job: JobSpec) -> tuple[FloatArray, FloatArray]:
    """Exposed tensor-parallel communication around a block of column- then row-parallel GEMMs, forward and backward.

    With SP: AllGather before, ReduceScatter after; backward AllGathers the output gradient, ReduceScatters the input
    gradient and gathers the block's input again (Korthikanti et al. 2022, section 4.2.2). Without: one AllReduce in
    each pass (Shoeybi et al. 2019). The backward reduction runs beside the weight gradient.
    """
    size = tokens(c, job) * job.model.hidden * ACT_BYTES
    cluster, count, with_sp, step = job.cluster, len(c), c.sp == 1, strides(c, job).tp
    gather = collective_time_s(cluster, "allgather", size * with_sp, c.tp, step)
    scatter = collective_time_s(cluster, "reducescatter", size * with_sp, c.tp, step)
    reduce = collective_time_s(cluster, "allreduce", size * ~with_sp, c.tp, step)
    wgrad = total(first, "wgrad", count)
    if job.runtime.overlap_tp:
        forward = exposed_pipelined(gather, total(first, "forward", count), c.tp)
        forward = forward + exposed_pipelined(scatter, last.forward, c.tp)
        backward = exposed_pipelined(gather, last.dgrad, c.tp)
    else:
        forward, backward = gather + scatter, gather
    backward = backward + exposed_beside(gather, total(first, "dgrad", count)) + exposed_beside(scatter, wgrad)
    without = exposed_beside(reduce, wgrad) if job.runtime.async_tp_reduce else reduce
    return np.where(with_sp, forward, reduce), np.where(with_sp, backward, without)


def tp_collectives(c: Candidates) -> FloatArray:
    """Collectives that one such block issues in one pass."""
    return np.where(c.tp == 1, 0.0, np.where(c.sp == 1, 2.0, 1.0))
