"""Bytes per GPU at the evaluated pipeline stages: what a step holds, what comes and goes, and what a log says of it.

Every array has shape (P, N): the P evaluated stages (`gpuscale.layouts.stages.StageTable`) of N candidates; what is the
same for all may lack those axes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, log, normal_cdf
from gpuscale.collectives.alltoall import units
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, Candidates, Cases, summed, unique_rows
from gpuscale.layouts.ranks import strides
from gpuscale.layouts.stages import FIRST, LAST, StageTable, places, share_of_end
from gpuscale.memory.activations import (
    LAYER_KEY,
    hidden_bytes,
    layer_activation_bytes,
    microbatches_in_flight,
    tokens,
    widest_gradient_bytes,
)
from gpuscale.memory.states import (
    TEACHER_BYTES,
    StageParameters,
    compute_weight_bytes,
    gathered_bytes,
    held_whole,
    largest_layer,
    placeholder_bytes,
    reduced_in_turn,
    teacher_bytes,
    trained_ends,
)
from gpuscale.specs.job import CHUNK_BYTES, JobSpec
from gpuscale.specs.model import MoeSpec

OUTSIDE_ALLOCATOR = ("nccl_buffers", "framework_reserve")
"""Components that PyTorch's allocator does not see."""

COPIED_LAYERS = 2
"""Layers whose offloaded activations are on the device during a pass: one on its way out or back, one in use."""

RARE_FRAGMENTATION = 1.5
"""Multiple of the usual fragmentation (`MemoryProfile.fragmentation`) that hardly any run exceeds (fitted to whole
runs, docs/model.md)."""

LEAST_FRAGMENTATION = 0.25
"""Share of what comes and goes that stays unusable when the allocator, short of memory, has given back its free blocks
(fitted to whole runs, docs/memory.md)."""

LEAST_IN_PAGES = 0.02
"""guesstimate: the same where segments are expandable (PyTorch, c10/cuda/CUDACachingAllocator.cpp,
ExpandableSegment)."""

LAYERS_DONE = 2
"""Layers whose input gradients FSDP1 does not keep at the peak: the one at work, and the first to be done."""

LIBRARY_BYTES = 64 * 2**20
"""Workspaces of cuBLAS and cuBLASLt, inside PyTorch's allocator: 32 MiB each on Hopper (PyTorch, CUDA semantics,
"cuBLAS workspaces")."""


@dataclass(frozen=True)
class Memory:
    """Memory of N candidates by component, each of shape (P, N) or broadcasting with it [bytes].

    The peak of a step is that of its passes or that of its optimizer step; `optimizer_step` is by how much the second
    is higher, so that the components add up to the peak.
    """

    weights: FloatArray  #: parameters in the compute precision, 8-bit copies included.
    gradients: FloatArray  #: gradient buffer of a whole step.
    master_weights: FloatArray  #: fp32 copy of the parameters.
    optimizer_state: FloatArray  #: both moments of Adam.
    activations: FloatArray  #: saved for the backward pass, for all microbatches in flight.
    logits: FloatArray  #: logits of one microbatch, loss and LM head at their peak (last stage).
    #: placeholders of weight gradients, library workspaces, and what the backward pass needs beyond the loss.
    workspace: FloatArray
    gathered_parameters: FloatArray  #: parameters gathered for use under ZeRO-3.
    optimizer_step: FloatArray  #: what the optimizer step, or loading the model, needs beyond the passes.
    communication_buffers: FloatArray  #: gradient buckets and gather buffers.
    fragmentation: FloatArray  #: what the caching allocator holds beyond the tensors that come and go.
    nccl_buffers: FloatArray  #: buffers of the communicators, those of the dispatcher of experts among them.
    framework_reserve: FloatArray  #: CUDA context and loaded kernels.
    #: not a component: what PyTorch's allocator has given out at the peak of the optimizer step.
    at_optimizer_step: FloatArray
    #: not a component: gradients that do not exist yet at the peak of the passes, whose blocks the allocator holds.
    gradients_to_come: FloatArray
    host_bytes: FloatArray  #: not a component: offloaded states and activations of all GPUs of one host, of shape (N,).

    @cached_property
    def by_stage(self) -> FloatArray:
        """All of the device's memory in use, as nvidia-smi shows it, at each evaluated stage; shape (P, N).

        What does not depend on recomputation, in a grid often a small array, is added up first.
        """
        return self._sum(HELD) + self._sum(name for name in COMPONENTS if name not in HELD)

    @property
    def reserved_by_stage(self) -> FloatArray:
        """What PyTorch's caching allocator holds (`torch.cuda.max_memory_reserved`), shape (P, N)."""
        return self._sum(name for name in COMPONENTS if name not in OUTSIDE_ALLOCATOR)

    @property
    def allocated_by_stage(self) -> FloatArray:
        """What PyTorch's allocator has given out (`torch.cuda.max_memory_allocated`), shape (P, N)."""
        return self.reserved_by_stage - self.fragmentation - self.gradients_to_come

    @cached_property
    def peak_bytes(self) -> FloatArray:
        """All of the device's memory in use at the fullest stage, shape (N,): what decides whether a plan fits."""
        return self.by_stage.max(axis=0)

    def allocator_retries(self, capacity_bytes: float) -> FloatArray:
        """How often in a microbatch the allocator gives back its cached blocks and starts anew, shape (N,): always
        where the usual fragmentation does not fit, never where `RARE_FRAGMENTATION` times as much does or the tensors
        alone do not, in proportion between."""
        room = capacity_bytes - self.by_stage + self.fragmentation
        usual = room / np.maximum(self.fragmentation, 1.0)
        share = np.clip((RARE_FRAGMENTATION - usual) / (RARE_FRAGMENTATION - 1.0), 0.0, 1.0)
        return share.max(axis=0) * (room >= 0).all(axis=0)

    def at_peak(self, row: int) -> dict[str, float]:
        """Return the components of one candidate at its fullest stage (ties: the first)."""
        return {name: float(size[row]) for name, size in self.at_peaks().items()}

    def at_peaks(self) -> dict[str, FloatArray]:
        """Return the components of every candidate at its fullest stage (ties: the first), each (N,)."""
        stage = self.by_stage.argmax(axis=0)[None]
        found = {name: np.broadcast_to(getattr(self, name), self.by_stage.shape) for name in COMPONENTS}
        return {name: np.take_along_axis(size, stage, axis=0)[0] for name, size in found.items()}

    def logged(self, basis: str, job: JobSpec) -> FloatArray:
        """Memory as a log reports it, one of `BASES`, shape (N,)."""
        what = basis.partition(" ")[0]
        if what == "reserved":
            by_stage = self.reserved_by_stage
        elif what == "allocated":
            by_stage = self.at_optimizer_step if job.runtime.memory.counter_reset else self.allocated_by_stage
        else:
            by_stage = self.by_stage
        if what != "allocated":  # what does not fit beside the tensors is given back
            room = job.cluster.gpu.memory_bytes - self._sum(OUTSIDE_ALLOCATOR) * (what == "reserved")
            by_stage = np.minimum(by_stage, np.maximum(by_stage - self.fragmentation, room))
        return by_stage[FIRST] if "rank 0" in basis else by_stage.max(axis=0)

    def _sum(self, names: Iterable[str]) -> FloatArray:
        return summed(*(getattr(self, name) for name in names))


APART = ("at_optimizer_step", "gradients_to_come", "host_bytes")
"""Fields of `Memory` that are no components."""

COMPONENTS = tuple(item.name for item in fields(Memory) if item.name not in APART)
"""Fields of `Memory` that add up to the total."""

BASES = tuple(f"{what}{where}" for where in ("", " rank 0") for what in ("allocated", "reserved", "nvidia-smi"))
"""What logs call memory: the fullest stage's, or that of rank 0."""

HELD = (
    "weights", "gradients", "master_weights", "optimizer_state", "communication_buffers", "nccl_buffers",
    "framework_reserve",
)  # fmt: skip
"""Those of `COMPONENTS` that do not depend on recomputation."""


def evaluate_memory(
    c: Candidates,
    job: JobSpec,
    stages: StageTable,
    stage_row: IndexArray,
    parameters: StageParameters,
    sizes: LayerSizes | None = None,
) -> Memory:
    """Memory of each candidate by component and stage; arguments as of `gpuscale.steptime.step.step_time`, and
    `layer_sizes`, where they are at hand."""
    sizes = sizes or layer_sizes(c, job)
    profile = job.runtime.memory
    held = _states(c, job, parameters)
    buffers = _communication_buffers(c, job, parameters)
    microbatch = microbatch_bytes(c, job, stages, stage_row, sizes)
    activations = microbatch * microbatches_in_flight(c, stages.positions(stage_row))
    host_bytes = _host_bytes(c, job, parameters, activations)
    if job.offload.activations:
        layer = microbatch / np.maximum(sum(stages.layers(stage_row)), 1)
        activations = _on_device(c, job.offload.activations, activations, layer)
    logits, beyond = passes_bytes(c, job, parameters, microbatch, sizes)
    if job.transient_factor != 1:
        activations, logits, beyond = (size * job.transient_factor for size in (activations, logits, beyond))
    groups = sum((degree > 1).astype(np.float64) for degree in (c.tp, c.pp, c.cp, c.ep, c.dp * c.cp))
    communicators = np.asarray(groups + profile.extra_communicators)  # one per parallel dimension in use, and more
    cast = parameters.whole if job.states.master else parameters.shared
    if job.whole_share < 1 and job.tuning and job.tuning.trained:  # of 16 bits as they are
        cast = cast - trained_ends(c, job, parameters)
    if parameters.frozen is not None and job.frozen_is_tower:  # cast for use as the trained parameters are
        cast = cast + parameters.frozen.whole * (job.frozen_tower / job.frozen_tower_bytes)
    gathered = gathered_bytes(c, job, sizes.cut.of(sizes.gathered), cast)
    fixed = sizes.cut.of(sizes.placeholders) + LIBRARY_BYTES
    passes = summed(activations, logits, beyond, gathered)
    step = made = optimizer_step_bytes(c, job, parameters)
    if (reduced := held_whole(c, job)).any():  # gradients that were whole are shards by then
        shards = parameters.per_gpu(reduced) * _stored_gradient_bytes(job)
        step = step - np.where(reduced, held[1] - shards, 0.0)
    if profile.loads_whole:
        step = np.maximum(step, np.where(c.zero == 3, loaded_bytes(job, parameters) - sum(held[1:]), 0.0))
    comes_and_goes = np.maximum(passes, step) if step.ndim else passes
    found = Memory(
        weights=held[0],
        gradients=held[1],
        master_weights=held[2],
        optimizer_state=held[3],
        activations=activations,
        logits=logits,
        workspace=beyond + fixed,
        gathered_parameters=gathered,
        optimizer_step=comes_and_goes - passes if step.ndim else step,
        communication_buffers=buffers,
        fragmentation=comes_and_goes * profile.fragmentation if profile.fragmentation else np.zeros(()),
        nccl_buffers=communicators * float(profile.communicator_bytes) + exchange_buffer_bytes(c, job),
        framework_reserve=np.asarray(profile.context_bytes, dtype=np.float64),
        at_optimizer_step=sum(held) + buffers + fixed + step,
        gradients_to_come=_gradients_to_come(c, job, held[1], activations + logits, passes - step),
        host_bytes=host_bytes,
    )
    left = np.zeros(())
    if job.tuning is not None and made.ndim:
        left = np.minimum(made, passes) * adapter_share(c, job, parameters)
    return _as_reserved(found, job, comes_and_goes, left)


def _as_reserved(found: Memory, job: JobSpec, comes_and_goes: FloatArray, left: FloatArray) -> Memory:
    """Return memory with what the caching allocator reserves of what comes and goes, and of what the optimizer step
    leaves of small tensors (`adapter_share`), as far as there is room; paged states give way."""
    profile = job.runtime.memory
    least = LEAST_IN_PAGES if profile.expandable_segments else LEAST_FRAGMENTATION
    if profile.fragmentation > least:
        room = job.cluster.gpu.memory_bytes - found.by_stage + found.fragmentation
        found = replace(found, fragmentation=np.clip(room, comes_and_goes * least, found.fragmentation))
    if left.ndim:  # where memory is short, segments are given back
        kept = np.clip(job.comfortable_bytes - found.by_stage, 0.0, left)
        found = replace(found, fragmentation=found.fragmentation + kept)
    if not job.states.paged:
        return found
    limit = min(job.cluster.gpu.memory_bytes, job.memory_limit_bytes)
    room = limit - found.by_stage + found.optimizer_state
    return replace(found, optimizer_state=np.clip(room, 0.0, found.optimizer_state))


def adapter_share(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Share of adapters in what is trained, shape (P, N): of what the optimizer step leaves of their tensors, cut out
    of segments of 20 MiB (PyTorch, c10/cuda/CUDACachingAllocator.cpp, kLargeBuffer), nothing is of use to
    activations."""
    return 1.0 - trained_ends(c, job, parameters) / np.maximum(parameters.whole, 1.0)


def _on_device(c: Candidates, share: float, activations: FloatArray, layer: FloatArray) -> FloatArray:
    """Activations that stay on the device where a share of them is offloaded, shape (P, N): of a single stage the last
    copy ends with the forward pass (Transformer Engine, cpu_offload.py, layer_window_map); under a pipeline one
    microbatch is copied while others are held."""
    kept, passing = activations * (1 - share), COPIED_LAYERS * layer
    left = np.where(c.pp > 1, kept + share * passing, np.maximum(kept, passing))
    return np.minimum(activations, left)


def _gradients_to_come(
    c: Candidates, job: JobSpec, gradients: FloatArray, saved: FloatArray, above_step: FloatArray
) -> FloatArray:
    """By how much the allocated peak is below states and passes, because gradients come as activations go; (P, N):
    where they are freed behind each step of one microbatch, none exists at the loss, where activations are at their
    peak. `above_step`: by how much the passes, with all gradients, exceed the optimizer step."""
    if not job.runtime.memory.frees_gradients:
        return np.zeros(())
    to_come = np.minimum(np.minimum(gradients, saved), np.maximum(above_step, 0.0))
    return np.where(c.num_microbatches == 1, to_come, 0.0)


HOST_GRADIENT_BYTES = 4
"""Gradients on the host are in fp32, as the CPU's optimizer takes them."""


def _host_bytes(c: Candidates, job: JobSpec, parameters: StageParameters, activations: FloatArray) -> FloatArray:
    """At the fullest stage, shape (N,)."""
    if not job.offload.any or job.cluster.host is None:
        return np.zeros(len(c))
    states = job.states
    held = job.offload.activations * activations
    if job.offload.optimizer:
        held = held + parameters.per_gpu(c.zero >= 1) * (states.optimizer + HOST_GRADIENT_BYTES)
    if job.offload.parameters:
        held = held + parameters.per_gpu(c.zero >= 3) * states.weight
        if parameters.frozen is not None:
            held = held + parameters.frozen.per_gpu(c.zero >= 3)
    return held.max(axis=0) * min(job.cluster.host.gpus, job.gpus)


def states_bytes(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Weights, gradients and optimizer state at the stage that has the most of them, without what may leave the GPU,
    shape (N,): a lower bound of the memory."""
    kept = _states(c, job, parameters)[: 3 if job.states.paged else None]
    return summed(*kept).max(axis=0)


def _stored_gradient_bytes(job: JobSpec) -> float:
    """Bytes per parameter of gradients as they wait for the optimizer; of the type of their parameter where that is the
    master weight (autograd, FSDP)."""
    states, profile = job.states, job.runtime.memory
    stored = states.master or states.gradient if profile.master_is_weight else states.gradient
    return dict(profile.stored_gradient_bytes).get(job.precision, stored)


def weight_stage(job: JobSpec) -> int:
    """The ZeRO stage from which on weights are sharded: that of gradients where shards are the master weights."""
    return 2 if job.runtime.memory.master_is_weight else 3


def _states(c: Candidates, job: JobSpec, parameters: StageParameters) -> tuple[FloatArray, ...]:
    """Weights, gradients, master weights and optimizer state, each (P, N)."""
    states, profile = job.states, job.runtime.memory
    held, from_zero = compute_weight_bytes(job), weight_stage(job)
    if profile.master_is_weight:
        held = 0.0 if states.master else states.weight
    whole = held_whole(c, job)  # in the precision in which they are reduced
    gradient = np.where(whole, states.gradient, _stored_gradient_bytes(job))
    sharded = parameters.per_gpu(c.zero >= 1) * float(not job.offload.optimizer)
    reduced = (c.zero >= 2) & ~whole
    weight = np.where((c.zero >= 3) & job.offload.parameters, 0.0, held)
    weights = parameters.per_gpu(c.zero >= from_zero) * weight
    if parameters.frozen is not None:
        kept = parameters.frozen.per_gpu(c.zero >= (3 if job.tuning else from_zero))
        weights = weights + np.where((c.zero >= 3) & job.offload.parameters, 0.0, kept)
    if job.teacher is not None:
        weights = weights + teacher_bytes(c, job) / np.where(c.zero >= 3, parameters.shard, 1.0)
    gradients = parameters.per_gpu(reduced) * np.where(reduced & job.offload.optimizer, 0.0, gradient)
    if profile.frozen_gradients and job.tuning and parameters.frozen is not None:
        gradients = gradients + np.where(c.zero >= 3, parameters.frozen.per_gpu(reduced), 0.0)
    return (weights, gradients, sharded * states.master, sharded * states.moments)


def _at_work(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark candidates whose states ZeRO shards, or goes about as if it did."""
    return (c.zero > 0) & ((c.shard > 1) | job.runtime.zero_alone)


def loaded_bytes(job: JobSpec, parameters: StageParameters) -> FloatArray:
    """The whole model as one GPU holds it while a state dict is loaded, beside its shards; shape (P, N)."""
    each = job.states.master or job.states.weight if job.runtime.memory.master_is_weight else job.states.weight
    frozen = 0.0 if parameters.frozen is None else parameters.frozen.whole
    return each * parameters.whole + frozen


def _communication_buffers(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """For the gathers of tensor parallelism, the reduction of sharded gradients, and buckets of plain data parallelism
    (PyTorch DDP); shape (P, N)."""
    profile = job.runtime.memory
    gathers = profile.gather_buffers * (c.sequence_split > 1)
    bucket = profile.reduce_bucket_bytes * _at_work(c, job)
    plain = (c.zero == 0) & (c.dp * c.cp > 1)
    buckets = np.where(plain, profile.replica_bucket_bytes * parameters.whole, 0.0)
    return gathers * hidden_bytes(c, job) + bucket + buckets


class LayerSizes(NamedTuple):
    """Sizes by distinct way to cut a layer (`LAYER_KEY`), each of shape (ways,) [bytes]."""

    cut: Cases  #: which of the ways each candidate has.
    #: by kind of layer, what one saves for the backward pass, after selective recomputation.
    saved: tuple[FloatArray, ...]
    whole: FloatArray  #: the largest layer, saved whole.
    gradients: FloatArray  #: gradients at the widest point of a layer's backward pass.
    largest: FloatArray  #: trained parameters of the largest layer on one GPU (a number, not bytes).
    gathered: FloatArray  #: all of the largest layer's weights as ZeRO-3 gathers them.
    placeholders: FloatArray  #: placeholders of weight gradients that are kept for good.


def measure_layers(cuts: Candidates, cut: Cases, job: JobSpec) -> LayerSizes:
    """Measure one layer and one microbatch of candidates that are cut in one of the ways `cuts`."""
    kept = replace(cuts, recompute_modules=np.zeros(1, dtype=np.int64))
    kinds = job.model.trained_kinds
    few, of_cut = unique_rows(cuts, ("tp", "ep", "etp"))
    largest = largest_layer(few, job)
    taught = TEACHER_BYTES * largest_layer(few, job.teaching).trained if job.teaching else 0.0
    return LayerSizes(
        cut=cut,
        saved=tuple(layer_activation_bytes(kind, cuts, job) for kind in kinds),
        whole=functools.reduce(np.maximum, (layer_activation_bytes(kind, kept, job) for kind in kinds)),
        gradients=widest_gradient_bytes(cuts, job) + hidden_bytes(cuts, job),
        largest=largest.trained[of_cut],
        gathered=np.maximum(job.activation_bytes * largest.trained + largest.frozen, taught)[of_cut],
        placeholders=placeholder_bytes(few, job)[of_cut],
    )


def layer_sizes(c: Candidates, job: JobSpec) -> LayerSizes:
    """Measure one layer and one microbatch of each candidate."""
    cuts, index = unique_rows(c, LAYER_KEY)
    return measure_layers(cuts, Cases(index), job)


def microbatch_bytes(
    c: Candidates, job: JobSpec, stages: StageTable, stage_row: IndexArray, sizes: LayerSizes
) -> FloatArray:
    """Activations of one microbatch on each stage, shape (P, N)."""
    counts = stages.layers(stage_row)
    saved = zip(counts, sizes.saved, strict=True)
    stage_bytes = functools.reduce(np.add, (number * sizes.cut.of(size) for number, size in saved))
    if not c.recompute_layers.any():
        return stage_bytes
    layers = functools.reduce(np.add, counts)
    by_operator = c.recompute_modules & EVERY_OTHER_MATMUL > 0
    whole = np.minimum(np.where(by_operator, 0.0, c.recompute_layers), layers)
    share = whole / np.maximum(layers, 1)
    inputs = hidden_bytes(c, job) / c.sequence_split
    if job.widens:
        inputs = inputs * np.where(c.zero < 3, 2.0, 1.0)
    return stage_bytes * (1 - share) + inputs * whole


def loss_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Loss and LM head of one microbatch at their peak, shape (N,).

    Whichever is larger: the cross entropy (`RuntimeSpec.loss_peak_bytes` per logit), or the backward pass of the LM
    head: gradient of the logits (of a chunk, where both are one kernel), weight gradient, gradient of the hidden state
    before and after it is scattered over TP.
    """
    rows = job.vocabulary_rows(c.tp)
    logits = tokens(c, job) * rows
    by_chunks = job.runtime.loss in {"chunked", "linear"}
    per_logit = max(job.runtime.loss_peak_bytes, 0.0 if by_chunks else job.method.logit_bytes)
    gradient = min(job.activation_bytes, per_logit) * logits  # less where head and loss work by chunks
    if job.runtime.loss == "linear":
        gradient = CHUNK_BYTES / job.activation_bytes * hidden_bytes(c, job)
    weights = job.activation_bytes * rows * job.model.hidden if job.trains("head") or job.runtime.logits_again else 0
    head = gradient + weights + 2 * hidden_bytes(c, job)
    peak = np.maximum((1 + job.model.mtp_depth) * logits * per_logit, head)
    taught = logits * job.activation_bytes if by_chunks and job.teacher else 0.0  # the teacher's are there whole
    return peak + taught


def passes_bytes(
    c: Candidates, job: JobSpec, parameters: StageParameters, microbatch: FloatArray, sizes: LayerSizes
) -> tuple[FloatArray, FloatArray]:
    """What forward and backward pass need besides saved activations: (loss, anything else beyond it), each (P, N).

    The second is that of one layer's backward pass: gradients at its widest point, the layer itself when recomputed,
    under ZeRO-3 its weight gradient and the buffer out of which that is reduced, and the LM head's where FSDP holds
    head and embedding as one group. Or it is the 16-bit weight gradients that exist when a microbatch's activations are
    gone: the embedding's; of nanotron all (optim/gradient_accumulator.py, backward); of a chunk that reduces by itself
    its own.

    Args:
        microbatch: activations of one microbatch on each stage.
    """
    place, one_stage = places(parameters.dense), c.pp == 1
    loss = np.where(share_of_end(c, LAST, place) > 0, loss_bytes(c, job), 0.0)
    within = sizes.cut.of(sizes.gradients)
    again = (c.recompute_layers > 0) | (c.recompute_modules & EVERY_OTHER_MATMUL > 0)
    if again.any():
        within = within + np.where(again, sizes.cut.of(sizes.whole), 0.0)
    if job.tuning is not None and job.runtime.memory.keeps_input_gradients:
        kept = np.minimum(c.recompute_layers, job.model.layers / c.pp) - LAYERS_DONE
        within = within + np.where(c.zero == 3, np.maximum(kept, 0.0), 0.0) * hidden_bytes(c, job) / c.sequence_split
    if (c.zero >= 2).any():
        reduced = np.where(c.zero == 3, job.activation_bytes, 0.0) + job.runtime.memory.reduce_input_bytes
        within = within + np.where(c.zero >= 2, reduced, 0.0) * sizes.cut.of(sizes.largest)
        if job.runtime.memory.root_gathered == "ends" and job.runtime.memory.master_is_weight and job.trains("head"):
            head = job.activation_bytes * job.vocabulary_rows(c.tp) * job.model.hidden
            within = within + np.where((c.zero >= 2) & (share_of_end(c, LAST, place) > 0), head, 0.0)
    if job.runtime.memory.transient_gradients:
        at_end = job.activation_bytes * parameters.whole
    else:
        embedding = job.activation_bytes * job.vocabulary_rows(c.tp) * job.model.hidden * job.trains("embeddings")
        at_end = np.where((place == FIRST) | one_stage, embedding, 0.0)
    behind = at_end - microbatch
    in_turn = reduced_in_turn(c, job)
    if in_turn.any():
        behind = np.where(
            in_turn, np.maximum(behind, (job.states.gradient * parameters.whole - microbatch) / c.vpp), behind
        )
    return loss, np.maximum(np.maximum(within, behind) - loss, 0.0)


def optimizer_step_bytes(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """What the optimizer step needs besides the states, shape (P, N), or one 0 where that is nothing; see
    `MemoryProfile`."""
    profile = job.runtime.memory
    foreach = profile.foreach_copies * job.states.second_moment * ((c.zero < 2) | (not profile.flat_parameters))
    if job.offload.optimizer or not (profile.step_whole_bytes or profile.step_shard_bytes or foreach.any()):
        return np.zeros(())
    sharded = _at_work(c, job)
    whole = profile.step_whole_bytes * parameters.whole
    shard = profile.step_shard_bytes * parameters.per_gpu(np.ones(1, dtype=bool))
    return np.where(sharded, whole + shard, 0.0) + foreach * parameters.per_gpu(c.zero >= 1)


# -- Buffers of HybridEP, outside of PyTorch's allocator, for the case that all tokens of its group go to one rank. --
#
# Inside one NVLink domain dispatch and combination share them; across several each has its own, and for every other
# domain there are three buffers of a rank's tokens more (deepseek-ai/DeepEP, branch hybrid-ep,
# csrc/hybrid_ep/buffer/intranode.cu and internode_doca.cu: max_num_of_tokens, allocate_dispatch_buffers,
# allocate_combine_buffers). Megatron-LM has one set for all layers (core/transformer/moe/fused_a2a.py:
# init_hybrid_ep_buffer).

ELEMENT_BYTES, PROBABILITY_BYTES, SCALE_BYTES, SCALED_ELEMENTS = 2, 4, 4, 128
"""Per element, per probability, per scale, and the elements that share one."""

ACROSS = 3
"""Buffers of a rank's own tokens for every other NVLink domain."""


def exchange_buffer_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Buffers of HybridEP on one GPU, shape (N,) [bytes]; those of NCCL and DeepEP do not grow with a microbatch."""
    if job.runtime.dispatcher != "hybridep":
        return np.zeros(())
    found = (_buffer_bytes(kind.moe, c, job) for kind in job.model.trained_kinds if kind.moe is not None)
    return functools.reduce(np.maximum, found, np.zeros(()))


def _buffer_bytes(moe: MoeSpec, c: Candidates, job: JobSpec) -> FloatArray:
    own, width = tokens(c, job) / c.sequence_split, moe.expert_width(job.model.hidden)
    inside, domains = units(job.cluster, c.ep, strides(c, job).ep)
    row = ELEMENT_BYTES * width + PROBABILITY_BYTES * inside * (moe.experts // c.ep)
    scales = SCALE_BYTES * (width // SCALED_ELEMENTS)
    received = own * c.ep * (row * np.where(domains > 1, 2, 1) + scales)
    sent = own * (domains - 1) * (ACROSS * row + scales)
    return np.where(c.ep > 1, received + sent, 0.0)


# -- How far measured memory may be from what is predicted: an 80 % interval, fitted to runs of 19 sources. --
#
# What varies adds its share of the total in squares (docs/validation.md).

CHANCE = 0.8
"""Share of measurements that intervals are meant to hold."""


SPREADS = {"activations": 0.12, "logits": 0.3}
"""Component of memory -> how far it is off, as a share of it, for 80 of 100 runs."""

LEAST = 0.02
"""How far all of it is off in any case, in log of the ratio: steps differ, logs round."""

STATES_ALONE = 0.005
"""The same where the counter of the allocator is set back before the optimizer runs, so that it shows weights,
gradients and optimizer states alone."""

OWN_LOOP = 0.2
"""The same where the profile stands for loops of many users."""

DEVICE = 0.08
"""The same where memory in use on the whole device counts: context, communicators and blocks that the allocator
keeps."""

UNSAID = 0.12
"""The same where a source does not say what it read: the allocator reserves some 5 to 10 % more than it hands out, and
the driver's figure holds a GiB or more beside."""


def half_width(
    parts: Mapping[str, FloatArray], job: JobSpec, basis: str = "nvidia-smi", *, said: bool = True
) -> FloatArray:
    """Half the width of the interval in log of measured over predicted memory, shape (N,).

    Args:
        parts: component -> bytes at the fullest stage, each (N,).
        basis, said: one of `BASES`, and whether the source says that it measured this.
    """
    total = summed(*parts.values())
    if basis.startswith("allocated") and job.runtime.memory.counter_reset:
        return np.full_like(total, math.hypot(STATES_ALONE, UNSAID * (not said)))
    own = OWN_LOOP * (job.runtime.rule_set == "generic")
    every = math.hypot(LEAST, own, UNSAID * (not said), DEVICE * basis.startswith("nvidia-smi"))
    shares = [spread * parts[name] / total for name, spread in SPREADS.items()]
    return np.sqrt(every * every + summed(*(share * share for share in shares)))


def fit_probability(memory: Memory, job: JobSpec) -> FloatArray:
    """Probability that the memory of each candidate is within the limit, shape (N,)."""
    half = half_width(memory.at_peaks(), job)
    deviations = log(job.memory_limit_bytes / memory.peak_bytes) / half * NormalDist().inv_cdf(0.5 + CHANCE / 2)
    return normal_cdf(deviations)
