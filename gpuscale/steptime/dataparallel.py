"""Gradient reduction and parameter gathering over the data-parallel ranks, and the optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from gpuscale.architecture.operators import dense_linears
from gpuscale.candidates.arrays import Candidates, unique_rows
from gpuscale.candidates.order import strides
from gpuscale.collectives import collective_time_s
from gpuscale.memory.states import StageParameters, padded_vocabulary
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime import offload
from gpuscale.steptime.kernels import stream_time_s
from gpuscale.steptime.overlap import contention, exposed_beside, exposed_buckets

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DataParallelTime:
    """Per step and GPU, each (N,) [s].

    Attributes:
        total_s: communication before overlap.
        exposed_s: the part that is not hidden, and what the hidden part takes from the computation above it.
        optimizer_s: gradient clipping and optimizer, where they run on the GPU.
        offload_s: the optimizer on the CPU and what copies to and from host memory add.
    """

    total_s: FloatArray
    exposed_s: FloatArray
    optimizer_s: FloatArray
    offload_s: FloatArray


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Times of one reduction of all gradients and one gathering of all parameters, each (N,) [s]."""

    reduce_s: FloatArray
    gather_s: FloatArray
    all_reduce_s: FloatArray
    replica_s: FloatArray

    def take(self, index: npt.NDArray[np.intp]) -> _Transfers:
        return _Transfers(*(getattr(self, item.name)[index] for item in fields(self)))


DDP_BUCKET_BYTES = 25 * 2**20
"""16-bit gradients that share one AllReduce under PyTorch's DistributedDataParallel (bucket_cap_mb, default)."""

TRANSFER_KEY = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard")
"""Fields of a candidate on which data-parallel transfers depend."""


def data_parallel_time(
    c: Candidates, job: JobSpec, parameters: StageParameters, forward_s: FloatArray, backward_s: FloatArray
) -> DataParallelTime:
    """Price the data-parallel side of a step at the stage with the most parameters.

    ZeRO 0 AllReduces gradients, bucket by bucket under DDP; 1 ReduceScatters them and AllGathers parameters once a
    step; 2 ReduceScatters after every microbatch; 3 also gathers every layer's parameters in both passes of every
    microbatch. A shard size below the data-parallel degree adds one AllReduce of the shard over its replicas, at the
    end of the step.

    Args:
        forward_s, backward_s: one microbatch on the slowest stage: what the transfers can hide behind.
    """
    heaviest = (parameters.dense + parameters.expert).argmax(axis=1)
    rows = np.arange(len(c))
    dense, expert = parameters.dense[rows, heaviest], parameters.expert[rows, heaviest]
    distinct, back = unique_rows(c, TRANSFER_KEY)  # what the transfers depend on, and what `dense` and `expert` do
    first = np.zeros(len(distinct), dtype=np.intp)
    first[back] = rows
    transfers = _transfers(distinct, job, dense[first], expert[first]).take(back)
    repeats = np.where(c.zero >= 2, c.num_microbatches, 1)
    gathers = np.select([c.zero == 0, c.zero == 3], [0, 2 * c.num_microbatches], 1)
    total = np.where(c.zero == 0, transfers.all_reduce_s, transfers.reduce_s * repeats + transfers.gather_s * gathers)
    total = total + transfers.replica_s
    unhidden = _exposed(c, job, transfers, forward_s, backward_s)
    exposed = unhidden + contention(np.maximum(total - unhidden, 0.0), job.cluster.gpu.sm_count)
    tied = tied_embedding_s(c, job)
    total = total + tied
    exposed = exposed + tied + _cutting_s(c, job) + shard_copies_s(c, job, dense + expert)
    if not job.offload.any:
        return DataParallelTime(total, exposed, optimizer_time_s(c, job, parameters), np.zeros(len(c)))
    through_host = _through_host(transfers, c, job, parameters)
    waiting = np.maximum(_exposed(c, job, through_host, forward_s, backward_s) - unhidden, 0.0)
    if not job.offload.optimizer:
        if job.offload.parameters:  # the updated weights leave for the host
            waiting = waiting + offload.weight_copy_s(c, job, parameters)
        return DataParallelTime(total, exposed, optimizer_time_s(c, job, parameters), waiting)
    on_cpu = offload.cpu_optimizer_time_s(c, job, parameters)
    if not job.offload.parameters:
        on_cpu = on_cpu + offload.weight_copy_s(c, job, parameters)
    return DataParallelTime(total, exposed, np.zeros(len(c)), waiting + on_cpu)


def _through_host(t: _Transfers, c: Candidates, job: JobSpec, parameters: StageParameters) -> _Transfers:
    """The same transfers where one end is in host memory.

    Reduced gradients leave while the next bucket is reduced: the slower of both counts. Gathered parameters come from
    the host first, in the same stream (DeepSpeed, runtime/zero/partition_parameters.py).
    """
    reduce_s, gather_s, all_reduce_s = t.reduce_s, t.gather_s, t.all_reduce_s
    if job.offload.optimizer:
        copies_s = offload.gradient_copies_s(c, job, parameters)
        reduce_s, all_reduce_s = np.maximum(reduce_s, copies_s), np.maximum(all_reduce_s, copies_s)
    if job.offload.parameters:
        gather_s = gather_s + offload.weight_copy_s(c, job, parameters)
    return _Transfers(reduce_s, gather_s, all_reduce_s, t.replica_s)


def tied_embedding_s(c: Candidates, job: JobSpec) -> FloatArray:
    """AllReduce of a tied embedding's gradients between first and last stage, after the last backward pass [s].

    Both hold the same weights (Megatron-LM core/distributed/finalize_model_grads.py; DeepSpeed runtime/pipe/engine.py,
    _exec_reduce_tied_grads).
    """
    if not job.model.tied_embeddings:
        return np.zeros(len(c))
    rows, back = unique_rows(c, ("tp", "pp", "cp", "dp"))
    size = padded_vocabulary(job.model, job.vocab_multiple, rows.tp) / rows.tp * job.model.hidden
    size = size * job.reduced_gradient_bytes * (rows.pp > 1)
    distance = strides(rows, job).pp * np.maximum(rows.pp - 1, 1)
    time_s = collective_time_s(job.cluster, "allreduce", size, np.minimum(rows.pp, 2), distance)
    return np.asarray(time_s[back], dtype=np.float64)


def shard_copies_s(c: Candidates, job: JobSpec, parameters: FloatArray) -> FloatArray:
    """Copies into and out of the buffers of ZeRO-3's collectives in all microbatches of a step, on the stream of the
    computation [s]."""
    copied = np.where(c.zero == 3, parameters * job.runtime.shard_copy_bytes, 0.0)
    return c.num_microbatches * stream_time_s(job.cluster.gpu, copied, 3)


def _transfers(c: Candidates, job: JobSpec, dense: FloatArray, expert: FloatArray) -> _Transfers:
    states, cluster = job.states, job.cluster
    reduced = job.reduced_gradient_bytes
    group = c.dp * c.cp
    shard = np.where(c.zero > 0, c.shard, group)
    expert_shard = np.maximum(c.expert_dp * shard // group, 1)
    apart = strides(c, job)

    def both(operation: str, bytes_per_parameter: float, used: npt.NDArray[np.bool_]) -> FloatArray:
        total = np.zeros(len(c))
        for parameters, n, step in ((dense * used, shard, apart.dp_cp), (expert * used, expert_shard, apart.edp)):
            calls = _ddp_buckets(c, job, parameters) if operation == "allreduce" else 1.0
            once = collective_time_s(cluster, operation, parameters * bytes_per_parameter / calls, n, step)
            total += calls * np.maximum(once, n * cluster.rank_overhead_s * (once > 0))
        return total

    copies = (
        (dense, shard, group // shard, apart.dp_cp),
        (expert, expert_shard, c.expert_dp // expert_shard, apart.edp),
    )
    replica = np.zeros(len(c))
    for size, split, replicas, step in copies:
        replica += collective_time_s(cluster, "allreduce", size * reduced / split, replicas, step * split)
    sharded = c.zero > 0
    reduction = "allreduce" if job.precision in job.runtime.reduced_whole else "reducescatter"
    return _Transfers(
        both(reduction, reduced, sharded),
        both("allgather", states.weight, sharded),
        both("allreduce", reduced, ~sharded),
        replica,
    )


def _exposed(c: Candidates, job: JobSpec, t: _Transfers, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """What sticks out: buckets behind the last backward and the first forward pass; layers of every microbatch under
    ZeRO-3."""
    layers = np.maximum(job.model.layers / c.pp, 1.0)
    runtime = job.runtime
    behind_backward = backward_s if runtime.overlap_grad_reduce else np.zeros(len(c))
    behind_forward = forward_s if runtime.overlap_param_gather else np.zeros(len(c))
    share = 1.0 / layers
    reduce = exposed_buckets(t.reduce_s, behind_backward, share)
    every = exposed_beside(t.reduce_s, behind_backward) * (c.num_microbatches - 1)
    layered = exposed_beside(t.gather_s, behind_forward) + exposed_beside(t.gather_s + t.reduce_s, behind_backward)
    replica = exposed_buckets(t.replica_s, np.maximum(behind_backward - t.reduce_s, 0.0), share)  # after the shards'
    once = reduce + exposed_buckets(t.gather_s, behind_forward, share) + replica
    behind_ddp = backward_s if runtime.overlap_grad_reduce or runtime.ddp_without_zero else np.zeros(len(c))
    by_stage = [
        exposed_buckets(t.all_reduce_s, behind_ddp, share),
        once,
        once + every,
        c.num_microbatches * layered + (t.gather_s + t.reduce_s) * share + replica,
    ]
    return np.select([c.zero == stage for stage in range(4)], by_stage)


def _ddp_buckets(c: Candidates, job: JobSpec, parameters: FloatArray) -> FloatArray:
    """AllReduces of all gradients: one, or one per bucket under DDP. The tensor that fills a bucket closes it."""
    if not job.runtime.ddp_without_zero:
        return np.ones(len(c))
    matrices = np.maximum(_per_gpu(c, job, lambda kind: len(dense_linears(job.model.hidden, kind))), 1.0)
    size = parameters * job.states.weight
    return np.maximum(size / (DDP_BUCKET_BYTES + size / matrices), 1.0)


def _cutting_s(c: Candidates, job: JobSpec) -> FloatArray:
    """CPU time of a framework that shards each parameter tensor by itself: one copy per tensor and rank [s]."""
    tensors = _per_gpu(c, job, lambda kind: len(dense_linears(job.model.hidden, kind)) + kind.norms)
    sharded = (c.zero > 0) & (c.shard > 1)
    return np.where(sharded, tensors * c.shard * job.runtime.host_shard_s, 0.0)


def _per_gpu(c: Candidates, job: JobSpec, number: Callable[[LayerSpec], int]) -> FloatArray:
    """Sum a number that each kind of layer has over the layers of a GPU; the mean of the stages."""
    kinds = zip(job.model.trained_kinds, job.model.trained_counts, strict=True)
    return np.asarray(sum(count * number(kind) for kind, count in kinds) / c.pp, dtype=np.float64)


def optimizer_time_s(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Adam and gradient clipping: memory traffic over the states that one GPU updates [s].

    Clipping reads the gradients once; Adam reads gradient, master weight and moments and writes the last three and
    the 16-bit weight.
    """
    states = job.states
    updated = parameters.spread((c.zero >= 1)[:, None]).max(axis=1)
    traffic = 2 * states.gradient + 2 * states.optimizer + states.weight
    return stream_time_s(job.cluster.gpu, updated * traffic, 4)
