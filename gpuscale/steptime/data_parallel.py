"""Gradient reduction and parameter gathering over the data-parallel ranks, and the optimizer step.

ZeRO 0 AllReduces gradients, bucket by bucket under DDP; 1 ReduceScatters them and AllGathers parameters once a step; 2
ReduceScatters after every microbatch, or after the last (`RuntimeSpec.grad_reduce`); 3 also gathers every layer's
parameters in both passes of every microbatch. Replicas of shards AllReduce them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuscale.architecture.parameters import dense_linears, expert_linears, matrices_of
from gpuscale.arrays import BoolArray, FloatArray, IntArray
from gpuscale.layouts.arrays import Candidates, combined_key, distinct, number_combinations, spread, summed
from gpuscale.layouts.ranks import strides
from gpuscale.layouts.stages import at_place
from gpuscale.memory.states import StageParameters, teacher_bytes, whole_gradients
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.specs.tuning import PROJECTION_STEPS
from gpuscale.steptime import offload
from gpuscale.steptime.components import GroupCall, collective, contention, exposed_buckets
from gpuscale.steptime.kernels import gemm_time_s, stream_time_s


class Transfers(NamedTuple):
    """Data-parallel transfers of a step, each (N,) [s]."""

    reduce_s: FloatArray  #: one reduction of all gradients to their shards.
    gather_s: FloatArray  #: one gathering of all parameters.
    all_reduce_s: FloatArray  #: one AllReduce of all gradients.
    replica_s: FloatArray  #: one AllReduce of the shards over their replicas.
    tied_s: FloatArray  #: one AllReduce of a tied embedding's gradients between first and last stage.
    norm_s: FloatArray  #: AllReduces of the gradient norm over all GPUs.
    parameters: FloatArray  #: trained parameters on the GPUs that have the most (a number, not seconds).
    frozen_bytes: FloatArray  #: what ZeRO-3 gathers beside them (bytes, not seconds).
    teacher_s: FloatArray  #: one gathering of a teacher's shards.
    #: under ZeRO-3 gathers and reductions of a backward pass beside one another, where the host link is in their way.
    backward_s: FloatArray | None = None


class Cover(NamedTuple):
    """What transfers of a microbatch can hide behind on the slowest stage, each (N,) [s]."""

    forward_s: FloatArray  #: the GPU's work in the forward pass.
    backward_s: FloatArray
    #: what the GPU waits in both in any case, for its CPU or, at the same time, for transfers between stages.
    waiting_s: FloatArray


DDP_BUCKET_BYTES = 25 * 2**20
"""16-bit gradients that share one AllReduce under PyTorch's DistributedDataParallel (bucket_cap_mb, default)."""


def data_parallel_time(
    c: Candidates, job: JobSpec, parameters: StageParameters, cover: Cover
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Time the data-parallel side of a step at the stage with the most parameters, per GPU, each (N,) [s].

    Returns:
        Communication before overlap; what of it shows, with what the rest takes from the computation above it; gradient
        clipping and optimizer on the GPU; the optimizer on the CPU and what copies to and from host memory add.
    """
    transfers = state_transfers(c, job, parameters)
    repeats = reductions(c, job)
    passes = 2 + job.method.forwards + gathered_again(c, job)
    gathers = np.select([c.zero == 0, c.zero == 3], [0, passes * c.num_microbatches], 1)
    total = np.where(c.zero == 0, transfers.all_reduce_s, transfers.reduce_s * repeats + transfers.gather_s * gathers)
    total = total + transfers.replica_s + transfers.teacher_s * c.num_microbatches
    shown, waited = unhidden_s(c, job, transfers, cover)
    unhidden = shown - waited
    exposed = unhidden + contention(np.maximum(total - shown, 0.0), job.cluster.gpu.sm_count)
    total = total + transfers.tied_s
    exposed = summed(exposed, transfers.tied_s)
    if job.runtime.host_shard_s:  # the CPU makes one copy per tensor and rank
        sharded = (c.zero > 0) & (c.shard > 1)
        exposed = exposed + np.where(sharded, _tensors(c, job) * c.shard * job.runtime.host_shard_s, 0.0)
    if job.runtime.shard_copy_bytes:  # into and out of ZeRO-3's buffers in all microbatches, beside the computation
        copied = transfers.parameters * job.runtime.shard_copy_bytes + FROZEN_COPIES * transfers.frozen_bytes
        copied = np.where(c.zero == 3, copied, 0.0)
        exposed = exposed + c.num_microbatches * stream_time_s(job.cluster.gpu, copied, 3)
    if not job.offload.any:
        return total, exposed, transfers.norm_s + optimizer_time_s(c, job, parameters), np.zeros(())
    through_host = _through_host(transfers, c, job, parameters)
    shown, waited = unhidden_s(c, job, through_host, cover)
    waiting = np.maximum(shown - waited - unhidden, 0.0)
    if not job.offload.optimizer:
        if job.offload.parameters:  # the updated weights leave for the host
            waiting = waiting + offload.weight_copy_s(c, job, parameters)
        return total, exposed, transfers.norm_s + optimizer_time_s(c, job, parameters), waiting
    on_cpu = offload.cpu_optimizer_time_s(c, job, parameters)
    if not job.offload.parameters:
        on_cpu = on_cpu + offload.weights_return_s(c, job, parameters)
    return total, exposed, np.zeros(()), waiting + on_cpu


FROZEN_COPIES = 4
"""How often a frozen weight is read or written as it is copied out of the buffer of a gathering, in both passes."""


def reductions(c: Candidates, job: JobSpec) -> IntArray:
    """Reductions of all gradients in a step, shape (N,)."""
    return np.where((c.zero >= 2) & ~whole_gradients(c, job), c.num_microbatches, 1)


def gathered_again(c: Candidates, job: JobSpec) -> FloatArray:
    """Share of the parameters that ZeRO-3 gathers for recomputation and once more for the backward pass, shape (N,):
    those of modules that are not used again within `reuse_parameters` (DeepSpeed,
    runtime/zero/partitioned_param_coordinator.py, `__params_to_release`)."""
    if not job.runtime.reuse_parameters or not c.recompute_layers.any():
        return np.zeros(len(c))
    again, whole = np.zeros(len(c)), 0.0
    for kind, count in zip(job.model.trained_kinds, job.model.trained_counts, strict=True):
        later, hidden = 0.0, job.model.hidden
        for one in reversed((*dense_linears(hidden, kind), *(expert_linears(hidden, kind.moe) if kind.moe else ()))):
            held = float(one.weights * one.count)
            again += count * held * (2 * later / c.tp >= job.runtime.reuse_parameters)
            later += held
        whole += count * later
    recomputed = np.minimum(c.recompute_layers * c.pp / job.model.layers, 1.0)
    return again / whole * recomputed


def _through_host(t: Transfers, c: Candidates, job: JobSpec, parameters: StageParameters) -> Transfers:
    """The same transfers where one end is in host memory (docs/model.md, "Offloading to host memory"; DeepSpeed,
    runtime/zero/stage3.py, `reduce_and_partition_stream`; partition_parameters.py, `all_gather_coalesced`)."""
    out_s = back_s = weights_s = np.zeros(())
    if job.offload.optimizer:
        out_s, back_s = offload.gradient_copies(c, job, parameters)
    if job.offload.parameters:
        weights_s = offload.weight_copy_s(c, job, parameters, frozen=True)
    copies_s, gather_s = out_s + back_s, t.gather_s + weights_s
    reduce_s, gathers = t.reduce_s + copies_s, 1 + gathered_again(c, job)
    link_s = np.maximum(gathers * weights_s + back_s, out_s)
    needed_s = (gathers * gather_s, reduce_s, gathers * t.gather_s + t.reduce_s, link_s)
    return t._replace(
        reduce_s=reduce_s, gather_s=gather_s, all_reduce_s=t.all_reduce_s + copies_s,
        backward_s=functools.reduce(np.maximum, needed_s),
    )  # fmt: skip


def tied_embedding_s(c: Candidates, job: JobSpec) -> FloatArray:
    """Time what `tied_embedding` sends [s]."""
    return tied_embedding(c, job).time_s if job.trains_tied_embedding else np.zeros(())


def tied_embedding(c: Candidates, job: JobSpec) -> GroupCall:
    """AllReduce of a tied embedding's gradients between first and last stage, after the last backward pass (Megatron-LM
    core/distributed/finalize_model_grads.py; DeepSpeed runtime/pipe/engine.py, _exec_reduce_tied_grads)."""
    size = job.vocabulary_rows(c.tp) * float(job.model.hidden)
    size = size * job.reduced_gradient_bytes * (c.pp > 1)
    distance = strides(c, job).pp * np.maximum(c.pp - 1, 1)
    return collective(job, "allreduce", size, np.minimum(c.pp, 2), distance)


def teacher_gather(c: Candidates, job: JobSpec) -> GroupCall:
    """AllGather of a frozen teacher's weights, which ZeRO-3 shards: once in a microbatch."""
    size = teacher_bytes(c, job) * (c.zero == 3)
    return collective(job, "allgather", size, np.where(c.zero > 0, c.shard, c.dp * c.cp), strides(c, job).dp_cp)


def gradient_norm(c: Candidates, job: JobSpec) -> GroupCall:
    """AllReduce of the norm of all gradients; that of the experts is apart (Megatron-LM)."""
    world = c.tp * c.pp * c.dp * c.cp
    return collective(job, "allreduce", np.full(len(c), 4.0), world, np.ones_like(world))


class Shards(NamedTuple):
    """Who holds what of some parameters of a stage, each (N,)."""

    held: FloatArray  #: parameters on one GPU, before ZeRO.
    gathered_bytes: FloatArray  #: what one gathering of them all brings together, frozen ones under ZeRO-3 included.
    ranks: IntArray  #: GPUs that share a copy.
    replicas: IntArray
    stride: IntArray  #: ranks between members.
    sharded: BoolArray  #: whether ZeRO shards.
    tensors: FloatArray  #: matrices of a GPU.


def shards(c: Candidates, job: JobSpec, parameters: StageParameters) -> dict[str, Shards]:
    """Return who shares the states on the stage with the most parameters, `edp` those of experts, `dp` all others."""
    heaviest = parameters.whole.argmax(axis=0)
    dense, expert = at_place(parameters.dense, heaviest), at_place(parameters.expert, heaviest)
    gathered = [one * job.states.weight for one in (dense, expert)]
    if parameters.frozen is not None and (job.tuning or job.frozen_is_tower):  # a reference has a pass of its own
        share = 1.0 if job.tuning else job.states.weight * job.frozen_tower / job.frozen_tower_bytes  # cast, then sent
        frozen = (share * at_place(one, heaviest) for one in (parameters.frozen.dense, parameters.frozen.expert))
        gathered = [one + kept * (c.zero == 3) for one, kept in zip(gathered, frozen, strict=True)]
    group, apart = c.dp * c.cp, strides(c, job)
    shard = np.where(c.zero > 0, c.shard, group)
    expert_shard = np.maximum(c.expert_dp * shard // group, 1)
    tensors = np.maximum(_matrices(c, job), 1.0)
    return {
        "dp": Shards(dense, gathered[0], shard, group // shard, apart.dp_cp, c.zero > 0, tensors),
        "edp": Shards(expert, gathered[1], expert_shard, c.expert_dp // expert_shard, apart.edp, c.zero > 0, tensors),
    }


class StateCalls(NamedTuple):
    """Collectives of the states, each with the calls that one of all parameters takes."""

    reduce: tuple[GroupCall, FloatArray]  #: gradients to their shards.
    gather: tuple[GroupCall, FloatArray]  #: parameters.
    all_reduce: tuple[GroupCall, FloatArray]  #: gradients, where nothing is sharded.
    replica: tuple[GroupCall, FloatArray]  #: the shards over their replicas.


def state_calls(job: JobSpec, one: Shards) -> StateCalls:
    """Return what ranks that share parameters call; replicas of shards AllReduce a shard (Rajbhandari et al. 2020,
    section 7)."""
    gradients, single = one.held * job.reduced_gradient_bytes, np.ones(())

    def moved(operation: str, size_bytes: FloatArray, used: BoolArray) -> tuple[GroupCall, FloatArray]:
        calls = single
        if operation == "allreduce" and job.runtime.ddp_without_zero:  # the tensor that fills a bucket closes it
            weights = one.held * used * job.states.weight
            calls = np.maximum(weights / (DDP_BUCKET_BYTES + weights / one.tensors), 1.0)
        found = collective(job, operation, size_bytes * used / calls, one.ranks, one.stride)
        least_s = one.ranks * job.cluster.rank_overhead_s * (found.time_s > 0)
        return found._replace(time_s=np.maximum(found.time_s, least_s)), calls

    shard_bytes = gradients / one.ranks
    return StateCalls(
        moved("allreduce" if job.precision in job.runtime.reduced_whole else "reducescatter", gradients, one.sharded),
        moved("allgather", one.gathered_bytes, one.sharded),
        moved("allreduce", gradients, ~one.sharded),
        (collective(job, "allreduce", shard_bytes, one.replicas, one.stride * one.ranks), single),
    )


TRANSFER_KEY = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard", "schedule")
"""Fields of a candidate on which data-parallel transfers depend."""


def state_transfers(candidates: Candidates, job: JobSpec, parameters: StageParameters) -> Transfers:
    """Time the transfers of the states on the stage with the most parameters."""
    cases, case = distinct(combined_key(candidates, TRANSFER_KEY))
    c, parameters = candidates.take(cases), parameters.take(cases)
    states = tuple(shards(c, job, parameters).values())
    shape = np.broadcast_shapes(*(column.shape for column in states[0]))
    columns = [np.stack([np.broadcast_to(column, shape) for column in pair]) for pair in zip(*states, strict=True)]
    first, index = distinct(number_combinations([column.ravel() for column in columns]))  # many layouts hold the same
    each = state_calls(job, Shards(*(column.ravel()[first] for column in columns)))
    times = ((calls * one.time_s)[index].reshape(columns[0].shape) for one, calls in each)
    norm_s = (1 + job.model.is_moe) * gradient_norm(c, job).time_s
    whole = states[0].held + states[1].held
    frozen = states[0].gathered_bytes + states[1].gathered_bytes - whole * job.states.weight
    of_cases = *(summed(*time_s) for time_s in times), tied_embedding_s(c, job), norm_s, whole, frozen
    of_cases = *of_cases, teacher_gather(c, job).time_s if job.teacher else np.zeros(())
    return Transfers(*(spread(values, case) for values in of_cases))


def unhidden_s(c: Candidates, job: JobSpec, t: Transfers, cover: Cover) -> tuple[FloatArray, FloatArray]:
    """What no computation hides (docs/model.md, "One step"): buckets behind the last backward and the first forward
    pass; under ZeRO-3 layers of every microbatch; replicas.

    Returns:
        All of it; what of it takes no time, as the GPU waits in any case (`Cover.waiting_s`); each (N,) [s].
    """
    runtime, repeats, waits = job.runtime, reductions(c, job).astype(np.float64), cover.waiting_s
    share = 1.0 / np.maximum(job.model.layers / c.pp, 1.0)  # of one layer: the last to be reduced, the first gathered
    reduces, gathers, again = runtime.overlap_grad_reduce, runtime.overlap_param_gather, gathered_again(c, job)

    def beside(
        transfer_s: FloatArray, pass_s: FloatArray, overlaps: BoolArray | bool, last: FloatArray | float = 0.0
    ) -> tuple[FloatArray, FloatArray]:
        """What shows of a transfer, and what of that is late: all but the last bucket."""
        shown = exposed_buckets(transfer_s, pass_s * overlaps, last)
        return shown, (shown - transfer_s * last) * overlaps

    def under(stage: int) -> tuple[FloatArray, FloatArray]:
        if stage == 0:
            shown, late = beside(t.all_reduce_s, cover.backward_s, reduces or runtime.ddp_without_zero, share)
            return shown, np.minimum(late, waits)
        gather_s = t.gather_s * (1 + again)  # of the backward pass
        sent_s = t.reduce_s
        if stage == 3:
            sent_s = gather_s + t.reduce_s if t.backward_s is None else t.backward_s
        replica = replica_late = np.zeros(())
        if t.replica_s.any():
            before_s = sent_s * np.where(c.shard * c.tp <= job.cluster.node_gpus, share, 1.0)
            after_s = np.maximum(cover.backward_s, sent_s) - before_s
            replica, replica_late = beside(t.replica_s, after_s, reduces, share)
        if stage == 3:
            ahead, ahead_late = beside(t.gather_s * (1 + job.method.forwards) + t.teacher_s, cover.forward_s, gathers)
            alone, alone_late = beside(gather_s, cover.backward_s, reduces)
            both, both_late = beside(sent_s, cover.backward_s, reduces)
            both, both_late = both + ahead, both_late + ahead_late
            plain = c.num_microbatches - repeats  # microbatches that reduce nothing
            waited = plain * np.minimum(ahead_late + alone_late, waits) + (repeats - 1) * np.minimum(both_late, waits)
            shown = summed(plain * (ahead + alone), repeats * both, sent_s * share, replica)
            return shown, waited + np.minimum(both_late + replica_late, waits)
        reduce, late = beside(t.reduce_s, cover.backward_s, reduces, share)
        if runtime.gathers_after_step:  # ZeRO-2 with a pipeline is FSDP, which gathers layer by layer
            gather, gather_late = beside(t.gather_s, cover.forward_s, gathers & (c.pp > 1) & (stage == 2), share)
        else:
            gather, gather_late = beside(t.gather_s, cover.forward_s, gathers, share)
        shown, waited = summed(reduce, gather, replica), np.minimum(late + gather_late + replica_late, waits)
        if stage == 2:
            more, more_late = beside(t.reduce_s, cover.backward_s, reduces)
            shown, waited = shown + (repeats - 1) * more, waited + (repeats - 1) * np.minimum(more_late, waits)
        return shown, waited

    stages = [stage for stage in range(4) if (c.zero == stage).any()]
    if len(stages) == 1:
        return under(stages[0])
    each, chosen = [under(stage) for stage in stages], [c.zero == stage for stage in stages]
    return np.select(chosen, [one for one, _ in each]), np.select(chosen, [one for _, one in each])


def _per_gpu(c: Candidates, job: JobSpec, number: Callable[[LayerSpec], int]) -> FloatArray:
    """Mean over the stages of the sum over their layers."""
    kinds = zip(job.model.trained_kinds, job.model.trained_counts, strict=True)
    return sum(count * number(kind) for kind, count in kinds) / c.pp


def _tensors(c: Candidates, job: JobSpec) -> FloatArray:
    """Outside the routed experts."""
    return _per_gpu(c, job, lambda kind: len(dense_linears(job.model.hidden, kind)) + kind.norms)


def _matrices(c: Candidates, job: JobSpec) -> FloatArray:
    return _per_gpu(c, job, lambda kind: len(dense_linears(job.model.hidden, kind)))


def optimizer_issue_s(c: Candidates, job: JobSpec) -> FloatArray:
    """Time that the GPU waits in an optimizer step for loops of its CPU over parameter tensors, shape (N,) [s]."""
    runtime = job.runtime
    if not runtime.host_tensor_s:
        return np.zeros(())
    apart = bool(runtime.host_expert_s)  # every expert has tensors of its own

    def of_experts(kind: LayerSpec) -> int:
        moe = kind.moe
        return len(expert_linears(job.model.hidden, moe)) * (moe.experts if apart else 1) if moe else 0

    experts = _per_gpu(c, job, of_experts) / (c.ep if apart else 1)
    return (_tensors(c, job) + experts) * runtime.host_tensor_s


def gradient_sums_s(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Adding up the weight gradients of a step's microbatches where the products do not do it, shape (N,) [s]: each but
    the first reads a new gradient and the sum and writes the sum (of its shard where every microbatch reduces); the
    first stays, or is cast."""
    if job.runtime.wgrad_fusion:
        return np.zeros(())
    held = parameters.per_gpu((c.zero >= 2) & ~whole_gradients(c, job)).max(axis=0)
    sum_bytes = job.reduced_gradient_bytes
    first_bytes = job.activation_bytes + sum_bytes if sum_bytes > job.activation_bytes else 0.0
    moved = held * (first_bytes + (c.num_microbatches - 1) * (job.activation_bytes + 2 * sum_bytes))
    tensors = _matrices(c, job)
    return stream_time_s(job.cluster.gpu, moved, tensors * c.num_microbatches)


def optimizer_time_s(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Adam and what comes with it: memory traffic over the states that one GPU updates [s].

    Loss scale (fp16) and clipping read and write the gradients (Megatron-LM clip_grads.py, torch.nn.utils.clip_grad);
    Adam reads gradient, master weight and moments and writes the last three; the master weight is read once more and
    written in 16 bits (Megatron-LM optimizer/optimizer.py, `_copy_main_params_to_model_params`). Sums onto which
    products add weight gradients are cleared, whole where ZeRO cuts no more than the optimizer (`zero_grad_buffer`).
    """
    states = job.states
    unscaled = 2 * states.gradient * (job.precision == "fp16")
    traffic = unscaled + 4 * states.gradient + 2 * states.optimizer + states.master + states.weight
    cleared = parameters.whole.max(axis=0) * states.gradient * (c.zero <= 1) * job.runtime.wgrad_fusion
    return stream_time_s(job.cluster.gpu, parameters.updated(c) * traffic + cleared, 6) + projection_time_s(job)


SVD_BYTES = 42
"""Memory traffic that takes as long as the singular value decomposition of an n x m matrix, n the larger, per n m^2
[bytes]: 10 minutes for LLaMA-7B (Zhang et al. 2024, Q-GaLore, arXiv 2407.08296, section 1; guesstimate for the
bandwidth of an A100)."""


def projection_time_s(job: JobSpec) -> float:
    """Time in a step of projecting the gradients of whole matrices to a low rank, updates back, and of the projections
    themselves, spread over the steps that use them [s]."""
    own, gpu, total = job.projection, job.cluster.gpu, 0.0
    if own is None:
        return total
    precision = "fp32" if job.states.gradient == offload.FP32 else job.attention_precision
    for count, larger, smaller in matrices_of(job.model):
        rank = min(own.rank, smaller)
        each = gemm_time_s(gpu, precision, larger, rank, smaller)
        each = each + own.svd * gemm_time_s(gpu, precision, larger, smaller, rank)
        each = each + own.svd * stream_time_s(gpu, SVD_BYTES * larger * float(smaller) ** 2) / PROJECTION_STEPS
        total += count * float(each + stream_time_s(gpu, 2.0 * job.states.gradient * larger * smaller))
    return total
