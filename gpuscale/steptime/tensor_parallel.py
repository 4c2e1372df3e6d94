"""Linear operators cut over tensor-parallel ranks: products, casts, and the collectives around a block of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.architecture.parameters import Linear, adapters
from gpuscale.arrays import BoolArray, FloatArray, IntArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import strides
from gpuscale.memory.activations import tokens
from gpuscale.specs.gpu import BEFORE_HOPPER
from gpuscale.specs.job import JobSpec
from gpuscale.specs.tuning import TuningSpec
from gpuscale.steptime.components import (
    Breakdown,
    GroupCall,
    Sent,
    collective,
    contention,
    exposed_beside,
    exposed_pipelined,
)
from gpuscale.steptime.kernels import (
    OPERAND_BYTES,
    RECIPES,
    elementwise_time_s,
    gemm_time_s,
    quantising_bytes,
    stream_time_s,
)

LINE_BYTES, LOAD_BYTES = 128, 16
"""A line of the caches, and what a thread loads at once: rows of operands that are multiples of a line run at full
speed (NVIDIA, "Matrix Multiplication Background User's Guide", section 2.2, tensor core requirements on A100)."""

MISALIGNED_SLOWDOWN = 1.45
"""What GEMMs take longer where threads load the operands and rows are odd multiples of 16 bytes, so that most lie in
one line more (fitted to whole runs, docs/model.md); the tensor memory accelerator of Hopper and later does not mind."""


class TensorParallelTime(NamedTuple):
    """Collectives of one microbatch's hidden state over TP."""

    #: AllGather of what the products of a block read, of 0 bytes without SP; quantised before, in 8 or 4 bits
    #: (Transformer Engine module/base.py, `grad_output_preprocess`; torchao `Float8ColwiseParallel`).
    gather: GroupCall
    scatter: GroupCall  #: ReduceScatter, of 0 bytes without SP; always wide.
    reduce: GroupCall  #: AllReduce, of 0 bytes with SP.
    wide_gather: GroupCall  #: AllGather in the precision of activations, at both ends of the model.


def tensor_parallel_time(c: Candidates, job: JobSpec) -> TensorParallelTime:
    """Time what TP ranks exchange around each block of a layer, and at both ends of the model."""
    size, with_sp, step = tokens(c, job) * job.model.hidden * job.activation_bytes, c.sp == 1, strides(c, job).tp
    narrow = wide = collective(job, "allgather", size * with_sp, c.tp, step)
    if job.precision in {"fp8", "fp4"}:
        sent = size * with_sp * (OPERAND_BYTES[job.precision] / job.activation_bytes)
        narrow = collective(job, "allgather", sent, c.tp, step)
    scatter = collective(job, "reducescatter", size * with_sp, c.tp, step)
    return TensorParallelTime(narrow, scatter, collective(job, "allreduce", size * ~with_sp, c.tp, step), wide)


class GemmTimes(NamedTuple):
    """Forward, input-gradient and weight-gradient time of one linear operator, and its casts, with those of its
    adapters, each (N,) [s]; `slow` is how much longer products take by their widths (`misalignment`)."""

    forward: FloatArray
    dgrad: FloatArray
    wgrad: FloatArray
    stream_forward: FloatArray
    stream_backward: FloatArray
    slow: FloatArray
    kernels: int = 1  #: that it launches in the forward pass, casts left out.

    @property
    def backward(self) -> FloatArray:
        """Both gradients."""
        return self.dgrad + self.wgrad


def stream(job: JobSpec, bytes_moved: FloatArray, kernels: npt.ArrayLike) -> FloatArray:
    """Time of the kernels between products on the job's GPU [s]."""
    return elementwise_time_s(job.cluster.gpu, bytes_moved, kernels)


def linear_times(
    linear: Linear, c: Candidates, job: JobSpec, rows: FloatArray | None = None, groups: npt.ArrayLike = 1
) -> GemmTimes:
    """Time one operator.

    The router runs in 16 bits whatever the job's precision. Under fp8 and fp4 weights are quantised once a step or in
    every pass, inputs of experts one expert after the other, unless grouped products read their sizes from GPU memory
    (Transformer Engine `split_quantize`).

    Args:
        rows: tokens that it works on (per group, for grouped experts), shape (N,); None for those of a microbatch, of
            which an operator that TP does not cut sees only the slice of its own rank.
        groups: products in one launch.
    """
    if rows is None:
        rows = tokens(c, job) / (c.sequence_split if linear.split == "replicated" else 1)
    gpu = job.cluster.gpu
    split = c.etp if linear.module == "experts" else c.tp
    precision = job.attention_precision if linear.module == "router" else job.precision
    inputs, outputs = linear.local_inputs(split), linear.local_outputs(split)
    count = np.asarray(groups, dtype=np.float64)
    by_one = issued_singly(job)
    cast_forward = cast_backward = np.zeros(())
    if precision in {"fp8", "fp4"}:
        (quantise, transpose), kernels = quantising_bytes(job.recipe, gpu), RECIPES[job.recipe][2] * count**by_one
        # of what is gathered each rank quantises its own
        shards = 1 if linear.module == "experts" else c.sequence_split
        each_forward = quantise / (shards if linear.split == "column" else 1) + transpose
        each_backward = quantise / (shards if linear.split == "row" else 1) + transpose
        cast_forward = stream_time_s(gpu, rows * inputs * count * each_forward, kernels)
        cast_backward = stream_time_s(gpu, rows * outputs * count * each_backward, kernels)
        if job.runtime.casts_weights:
            cast_weights = stream_time_s(gpu, inputs * outputs * count * (quantise + transpose), kernels)
            cast_forward, cast_backward = cast_forward + cast_weights, cast_backward + cast_weights
    if linear.bias and linear.module != "experts" and "bias" in job.runtime.unfused:
        added, summed = _bias_s(linear, rows * outputs * job.activation_bytes, c, job)
        cast_forward, cast_backward = cast_forward + added, cast_backward + summed
    slow = misalignment(job, inputs, outputs)
    product_s = functools.partial(gemm_time_s, gpu, precision, groups=groups, issued_singly=by_one)
    whole = GemmTimes(
        slow * product_s(rows, outputs, inputs),
        slow * product_s(rows, inputs, outputs),
        slow * product_s(inputs, outputs, rows, output_bytes_per_element=wgrad_output_bytes(job)),
        cast_forward,
        cast_backward,
        slow,
    )
    return whole if job.tuning is None else _tuned(whole, linear, split, job, job.tuning, rows, count)


class AdapterTraffic(NamedTuple):
    """Element-wise work of one adapter, forward and backward [bytes per element], and the kernels that it launches."""

    inputs: tuple[float, float]  #: per element of the input.
    dropout: float  #: more of it each way, with dropout.
    outputs: tuple[float, float]  #: per element of the output.
    kernels: int  #: of the forward pass, both products included.


ADAPTER_TRAFFIC = {
    "plain": AdapterTraffic((0, 6), 5, (10, 4), 4),
    "peft": AdapterTraffic((12, 18), 9, (10, 4), 8),
    "compiled": AdapterTraffic((0, 6), 0, (6, 0), 3),
    "fused": AdapterTraffic((0, 0), 0, (0, 0), 2),
}
"""By `RuntimeSpec.adapters` (docs/model.md, "Bytes that kernels move"): plain PyTorch, peft tuners/lora/layer.py with
fp32 adapters, one kernel each way, kernels that do all of it beside the products (unsloth, fms-acceleration `foak`,
NeMo AutoModel's Triton LoRA)."""


def _tuned(
    whole: GemmTimes,
    linear: Linear,
    split: IntArray,
    job: JobSpec,
    tuning: TuningSpec,
    rows: FloatArray,
    groups: FloatArray,
) -> GemmTimes:
    """A frozen operator with its adapters: no weight gradient of its own, but those of two narrow matrices; a quantised
    matrix is made 16-bit before its product, in every pass (bitsandbytes, autograd/_functions.py, MatMul4Bit)."""
    gpu, wide = job.cluster.gpu, job.activation_bytes / 2
    forward, dgrad, wgrad = whole.forward, whole.dgrad, np.zeros(())
    streams, streams_back, kernels = whole.stream_forward, whole.stream_backward, whole.kernels
    if tuning.quantised and linear.module != "router":
        weights = linear.local_inputs(split) * linear.local_outputs(split) * groups
        once = tuning.base_bytes + job.activation_bytes
        dequantised_s = stream_time_s(gpu, weights * dict(job.runtime.unpacked_bytes).get(tuning.base, once))
        streams, streams_back, kernels = streams + dequantised_s, streams_back + dequantised_s, kernels + 1
    own = job.runtime.adapters  # fused kernels are none of the compiler's
    how = ADAPTER_TRAFFIC["compiled" if job.runtime.compile and own != "fused" else own]
    product_s = functools.partial(
        gemm_time_s, gpu, job.attention_precision, groups=groups, issued_singly=issued_singly(job)
    )
    for one in adapters(linear, tuning, split):
        sizes = (one.inputs, one.outputs)
        both_s = product_s(rows, one.rank, one.inputs) + product_s(rows, one.outputs, one.rank)  # backward alike
        forward, dgrad = forward + both_s, dgrad + both_s
        for width in sizes:
            wgrad = wgrad + product_s(width, one.rank, rows)
        into, out = (rows * groups * wide * width for width in sizes)
        moved, moved_back = (
            into * (each_in + how.dropout * tuning.dropout) + out * each_out
            for each_in, each_out in zip(how.inputs, how.outputs, strict=True)
        )
        streams = streams + stream(job, moved, how.kernels - 2)
        streams_back = streams_back + stream(job, moved_back, how.kernels - 2)
        kernels += how.kernels + (tuning.dropout and how.dropout > 0)
    return GemmTimes(forward, dgrad, wgrad, streams, streams_back, whole.slow, kernels)


def _bias_s(linear: Linear, output_bytes: FloatArray, c: Candidates, job: JobSpec) -> tuple[FloatArray, FloatArray]:
    """Time that a bias takes beside its product, forward and backward [s] (docs/model.md; Megatron-LM
    tensor_parallel/layers.py, `output + bias` and `skip_bias_add`). Behind a product that is cut by rows comes the
    reduction over TP first."""
    seen = output_bytes / c.sequence_split if linear.split == "row" else output_bytes
    alone = linear.module == "attention" and linear.split == "column"
    return stream(job, 2 * seen * alone, 1), stream(job, seen, 1)


def issued_singly(job: JobSpec) -> bool:
    """Whether the host issues the products of experts, and what quantises their inputs, one expert after the other."""
    return not job.runtime.sizes_on_gpu and job.runtime.cuda_graphs != "full"


def wgrad_output_bytes(job: JobSpec) -> float:
    """Traffic per element of a weight gradient that a product adds onto the sums (read and written as gradients are
    kept: Megatron-LM's `main_grad`, core/distributed/distributed_data_parallel.py), or leaves to `gradient_sums_s`."""
    return 2 * job.states.gradient if job.runtime.wgrad_fusion else job.activation_bytes


def misalignment(job: JobSpec, inputs: npt.NDArray[Any] | float, outputs: npt.NDArray[Any] | float) -> FloatArray:
    """Slowdown of an operator's GEMMs by the widths of its rows on this GPU."""
    if job.cluster.gpu.architecture not in BEFORE_HOPPER or job.precision in {"fp8", "fp4"}:
        return np.ones(())
    widths = np.stack(np.broadcast_arrays(inputs, outputs)).astype(np.int64) * job.activation_bytes
    begins = np.maximum(np.gcd(widths, LINE_BYTES).min(axis=0), LOAD_BYTES)  # rows begin at multiples of this
    return 1 + (MISALIGNED_SLOWDOWN - 1) * (LINE_BYTES - begins) / (LINE_BYTES - LOAD_BYTES)


def total(times: Sequence[GemmTimes], name: str) -> FloatArray:
    """Sum one attribute over several operators; a scalar 0 for none."""
    return functools.reduce(np.add, (getattr(item, name) for item in times)) if times else np.zeros(())


def launched(times: Iterable[GemmTimes]) -> int:
    """Count the kernels that several operators launch in the forward pass, casts left out."""
    return sum(item.kernels for item in times)


def gemm_breakdown(
    times: Sequence[GemmTimes], direction: str, elementwise: FloatArray | float = 0.0, **others: FloatArray
) -> Breakdown:
    """Break down one pass, `forward` or `backward`, of several operators, of element-wise kernels and of what else runs
    with them [s]."""
    streams = total(times, f"stream_{direction}") + elementwise
    return {"gemm": total(times, direction), "elementwise": streams, **others}


def tp_block(
    first: Sequence[GemmTimes], last: GemmTimes, c: Candidates, job: JobSpec, tp: TensorParallelTime
) -> tuple[FloatArray, FloatArray, tuple[Sent, ...]]:
    """Exposed tensor-parallel communication around a block of column- then row-parallel GEMMs, forward and backward;
    then what is sent: with SP AllGather before, ReduceScatter after, and backward the block's input gathered again
    (Korthikanti et al. 2022, section 4.2.2), without one AllReduce in each pass (Shoeybi et al. 2019)."""
    gather, scatter, wgrad = tp.gather.time_s, tp.scatter.time_s, total(first, "wgrad")
    pipelined = pipelines_tp(c, job)
    forward = np.where(
        pipelined,
        exposed_pipelined(gather, total(first, "forward"), c.tp) + exposed_pipelined(scatter, last.forward, c.tp),
        gather + scatter,
    )
    backward = np.where(c.sp == 1, np.where(pipelined, exposed_pipelined(gather, last.dgrad, c.tp), gather), 0.0)
    backward = backward + beside_products(c, job, tp.gather, tp, total(first, "dgrad"), wgrad)
    sent = (  # either with SP or without
        Sent("tp", "block input", (tp.gather,), 1.0, again="block input and gradient"),
        Sent("tp", "block output", (tp.scatter,), 1.0, again="input gradient"),
        Sent("tp", "block input and gradient", (tp.gather,), backward=2.0),
        Sent("tp", "input gradient", (tp.scatter,), backward=1.0),
        Sent("tp", "block output", (tp.reduce,), 1.0, 1.0),
    )
    return np.where(c.sp == 1, forward, tp.reduce.time_s), backward, sent


def beside_products(
    c: Candidates, job: JobSpec, gather: GroupCall, tp: TensorParallelTime, dgrad: FloatArray, wgrad: FloatArray
) -> FloatArray:
    """What shows of the collectives of a column-parallel product's backward pass, (N,) [s].

    With SP its input is gathered again (`gather`) beside the input gradient, which is then scattered beside the weight
    gradient; without, the input gradient is reduced there (Megatron-LM, core/tensor_parallel/layers.py,
    `LinearWithGradAccumulationAndAsyncCommunication`).
    """
    sms, reduce_s = job.cluster.gpu.sm_count, tp.reduce.time_s
    with_sp = _beside(gather.time_s, dgrad, sms) + _beside(tp.scatter.time_s, wgrad, sms)
    return np.where(c.sp == 1, with_sp, _beside(reduce_s, wgrad, sms) if job.runtime.async_tp_reduce else reduce_s)


def _beside(communication_s: FloatArray, compute_s: FloatArray, sm_count: int) -> FloatArray:
    """What outlasts a product beside it, and the SMs that it takes [s]."""
    exposed_s = exposed_beside(communication_s, compute_s)
    return exposed_s + contention(communication_s - exposed_s, sm_count)


def pipelines_tp(c: Candidates, job: JobSpec) -> BoolArray:
    """Whether each candidate's TP collectives are pipelined with the GEMM beside them, shape (N,): inside one NVLink
    domain (Transformer Engine issue #1071 and pull request #1470; torch `SymmetricMemory`)."""
    return job.runtime.overlap_tp & (c.tp * strides(c, job).tp <= job.cluster.peer_gpus)


def tp_collectives(c: Candidates) -> FloatArray:
    """Collectives that one such block issues in one pass."""
    return np.where(c.tp == 1, 0.0, np.where(c.sp == 1, 2.0, 1.0))
