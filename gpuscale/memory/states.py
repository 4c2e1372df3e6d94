"""Parameters per GPU and stage: what weights, gradients and optimizer states are proportional to.

ZeRO shards the optimizer state (stage 1), also the gradients (2), also the parameters (3) over the data-parallel
ranks (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpuscale.architecture.parameters import (
    Linear,
    adapter_parameters,
    dense_linears,
    expert_linears,
    frozen_bytes,
    model_parameters,
    vector_parameters,
)
from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import ONE_F_ONE_B, Candidates, summed, unique_rows
from gpuscale.layouts.stages import FIRST, LAST, StageTable, share_of_end
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec


@dataclass(frozen=True)
class StageParameters:
    """Parameters that are trained, on one GPU of each stage before ZeRO."""

    dense: FloatArray  #: shape (P, N): all but routed experts; replicated over dp * cp ranks.
    expert: FloatArray  #: shape (P, N): routed experts; replicated over `Candidates.expert_dp` ranks.
    shard: FloatArray  #: shape (N,): ranks that share the dense states.
    expert_shard: FloatArray  #: shape (N,): ranks that share the expert states.
    #: what is frozen beside them, in bytes rather than parameters; None where all is trained.
    frozen: StageParameters | None = None

    def per_gpu(self, sharded: BoolArray) -> FloatArray:
        """Parameters of one GPU when the states of the candidates marked in `sharded` (N,) are sharded; (P, N)."""
        if not sharded.any():
            return self.whole
        return self.split if sharded.all() else np.where(sharded, self.split, self.whole)

    def updated(self, c: Candidates) -> FloatArray:
        """Parameters that one GPU's share of the optimizer step updates, at the fullest stage; shape (N,)."""
        return self.per_gpu(c.zero >= 1).max(axis=0)

    @cached_property
    def whole(self) -> FloatArray:
        """Parameters of one GPU, shape (P, N)."""
        return self.dense + self.expert

    @cached_property
    def shared(self) -> FloatArray:
        """Those of them that several ranks can share, of which a gather makes a copy; shape (P, N)."""
        return self.dense * (self.shard > 1) + self.expert * (self.expert_shard > 1)

    @cached_property
    def split(self) -> FloatArray:
        """What is left of them where they are sharded, shape (P, N)."""
        return self.dense / self.shard + self.expert / self.expert_shard

    def take(self, index: IndexArray | BoolArray | slice) -> StageParameters:
        """Return those of the rows chosen by an index array, a mask or a slice."""
        dense, expert, shard, expert_shard = (
            column[..., index] for column in (self.dense, self.expert, self.shard, self.expert_shard)
        )
        return StageParameters(dense, expert, shard, expert_shard, self.frozen and self.frozen.take(index))

    def each(self, chosen: Callable[[FloatArray], FloatArray]) -> StageParameters:
        """Return them with a function applied to every array of shape (P, N)."""
        frozen = self.frozen and self.frozen.each(chosen)
        return replace(self, dense=chosen(self.dense), expert=chosen(self.expert), frozen=frozen)

    def shared_by(self, c: Candidates) -> StageParameters:
        """Return them as the ranks of candidates share their states."""
        group = (c.dp * c.cp).astype(np.float64)
        shard = np.maximum(c.shard, 1).astype(np.float64)
        expert_shard = np.maximum(c.expert_dp * shard / group, 1.0)
        return replace(self, shard=shard, expert_shard=expert_shard, frozen=self.frozen and self.frozen.shared_by(c))


class Held(NamedTuple):
    """What one GPU holds of some weights, each (N,)."""

    trained: FloatArray  #: parameters.
    frozen: FloatArray  #: bytes.


def dense_held(kind: LayerSpec, job: JobSpec, tp: IntArray) -> Held:
    """What one GPU holds of one layer, routed experts left out; shape of `tp`."""
    nothing = np.zeros(len(tp))
    if kind.reused:
        return Held(nothing, nothing)
    vectors, linears = vector_parameters(job.model.hidden, kind, tp), dense_linears(job.model.hidden, kind)
    held = _held(linears, job, tp)
    if job.tuning is None or job.trains("norms"):
        return Held(held.trained + job.whole_share * vectors, held.frozen + job.reference_bytes * vectors)
    return held._replace(frozen=held.frozen + job.tuning.beside_bytes * vectors)


def expert_held(kind: LayerSpec, job: JobSpec, ep: IntArray, etp: IntArray) -> Held:
    """What one GPU holds of one layer's routed experts; shape of `ep`."""
    if kind.moe is None or kind.reused:
        return Held(np.zeros(len(ep)), np.zeros(len(ep)))
    trained, frozen = _held(expert_linears(job.model.hidden, kind.moe), job, etp)
    here = (kind.moe.experts // ep).astype(np.float64)
    return Held(here * trained, here * frozen)


def _held(linears: Sequence[Linear], job: JobSpec, split: IntArray) -> Held:
    tuning, nothing = job.tuning, np.zeros(len(split))
    if tuning is None:
        whole = sum((one.local_parameters(split).astype(np.float64) for one in linears), nothing)
        return Held(whole, job.reference_bytes * whole)
    return Held(
        sum((adapter_parameters(one, tuning, split) for one in linears), nothing),
        sum((frozen_bytes(one, tuning, split) for one in linears), nothing),
    )


def stage_parameters(c: Candidates, job: JobSpec, stages: StageTable, stage_row: IndexArray) -> StageParameters:
    """Parameters on one GPU of each of the P evaluated stages, with what is frozen."""
    cuts, index = unique_rows(c, ("tp", "ep", "etp"))
    dense, expert, kept, kept_experts = (np.zeros((1, 1)) for _ in range(4))
    for kind, number in zip(job.model.trained_kinds, stages.held(stage_row), strict=True):
        trained, frozen = dense_held(kind, job, cuts.tp)
        dense, kept = dense + number * trained[index], kept + number * frozen[index]
        if kind.moe is not None:
            trained, frozen = expert_held(kind, job, cuts.ep, cuts.etp)
            expert, kept_experts = expert + number * trained[index], kept_experts + number * frozen[index]
    dense, kept = _with_ends(dense, kept, c, job)
    alone = np.ones(1)
    beside = None
    if job.tuning or job.frozen_tower or job.reference_bytes:
        beside = StageParameters(kept, np.broadcast_to(kept_experts, kept.shape), alone, alone)
    return StageParameters(dense, np.broadcast_to(expert, dense.shape), alone, alone, beside).shared_by(c)


def _with_ends(trained: FloatArray, frozen: FloatArray, c: Candidates, job: JobSpec) -> tuple[FloatArray, FloatArray]:
    """Add embedding, LM head, final norm and towers, which stand on the stage of the embedding whole on each TP rank,
    to trained parameters and frozen bytes, each (P, N)."""
    model, tuning = job.model, job.tuning
    originals = job.runtime.memory.keeps_originals
    rows = job.vocabulary_rows(c.tp)
    at_embedding, at_head = (sum(one.parameters for one in end) for end in (model.at_embedding, model.at_head))
    embedding = (rows + model.learned_positions) * model.hidden + at_embedding
    vectors = model_parameters(model).final_norm + model.head_bias * rows + at_head
    untied = not model.tied_embeddings
    # what PEFT trains of a tied matrix is no longer tied: each of its two modules is a copy of its own
    apart = tuning is not None and (originals or not job.trains("embeddings"))
    for place in (FIRST, LAST):  # a tied head on a stage without the embedding, and prediction, hold a copy of it
        embeds, heads = (share_of_end(c, end, place) > 0 for end in (FIRST, LAST))
        copies = np.where(embeds, untied, 1 + (model.mtp_depth > 0 and untied))
        matrix = rows * model.hidden * heads
        parts = (("embeddings", embedding * embeds), ("head", copies * matrix), ("norms", vectors * heads))
        for part, size in parts:
            if job.trains(part):
                whole = np.maximum(copies, 1) * matrix if part == "head" and apart else size
                trained[place] += job.whole_share * whole
            if tuning is not None and (originals or not job.trains(part)):
                frozen[place] += tuning.beside_bytes * size
            frozen[place] += job.reference_bytes * size
        trained[place] += job.trained_tower * embeds
        frozen[place] += job.frozen_tower_bytes * embeds
    # one stage: all columns are the same GPU
    return np.where(c.pp == 1, trained[FIRST], trained), np.where(c.pp == 1, frozen[FIRST], frozen)


def trained_ends(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """Trained parameters of embedding, LM head, final norm and towers, as `parameters` count them and in their
    shape."""
    stages, *rows = parameters.whole.shape
    nothing = np.zeros((max(stages, LAST + 1), *rows))
    return _with_ends(nothing, nothing.copy(), c, job)[0][:stages]


TEACHER_BYTES = 2.0
"""Bytes per parameter of a frozen teacher, as of a reference model."""


def teacher_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Weights of a frozen teacher on one GPU before ZeRO, shape (N,) [bytes]; 0 without."""
    own, nothing = job.teaching, np.zeros((LAST + 1, len(c)))
    if own is None:
        return nothing[FIRST]
    layers = zip(own.model.trained_kinds, own.model.trained_counts, strict=True)
    each = summed(*(count * dense_held(kind, own, c.tp).trained for kind, count in layers))
    return TEACHER_BYTES * _with_ends(nothing + each, nothing.copy(), c, own)[0][FIRST]


def whole_gradients(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark candidates of ZeRO-2 and 3 that add up whole gradients and reduce them in the last microbatch, shape (N,).

    So do pipelines of torch.distributed.pipelining (stage.py, `backward_maybe_with_nosync`); FSDP2 holds unsharded
    gradients in the precision in which it reduces them.
    """
    when = job.runtime.grad_reduce
    if when == "each":
        return np.zeros(1, dtype=bool)
    return (c.zero >= 2) & (c.num_microbatches > 1) & ((c.pp > 1) | (when == "last"))


def held_whole(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark those of `whole_gradients` whose gradients are whole in all chunks of the model at once, shape (N,)."""
    return whole_gradients(c, job) & ~reduced_in_turn(c, job)


def reduced_in_turn(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark those of `whole_gradients` whose gradients are whole in one chunk of the model at a time, shape (N,): chunks
    whose last backward passes run in a row, as no more microbatches are interleaved than there are stages (Megatron-LM
    schedules; `last_backward` of each stage of torch.distributed.pipelining)."""
    interleaved = (c.vpp > 1) & (c.schedule == ONE_F_ONE_B)
    return whole_gradients(c, job) & interleaved & (c.num_microbatches <= c.pp)


def compute_weight_bytes(job: JobSpec) -> float:
    """Bytes per parameter of the weights that the matrix products read, 8-bit copies included."""
    profile = job.runtime.memory
    if job.precision not in {"fp8", "fp4"}:
        return job.states.weight
    return dict(profile.recipe_weight_bytes).get(job.recipe, profile.fp8_weight_bytes)


WIDENED_BYTES = 2.0
"""By how much a weight in 32 bits is longer than one in 16."""


def gathered_bytes(c: Candidates, job: JobSpec, largest_bytes: FloatArray, whole: FloatArray) -> FloatArray:
    """Parameters that the passes hold gathered or cast, shape (N,) or (P, N).

    ZeRO-3: the layer in use and the prefetched one, embedding and LM head, or the LM head alone, as one group that
    stays gathered (PyTorch `torch.distributed.fsdp.fully_shard`, forward prefetching and `reshard_after_forward`).
    Where the master weight is the parameter, ZeRO-2 keeps all that was gathered, and autocast its 16-bit copies
    (PyTorch `torch.autocast`, cache_enabled), until the backward pass is over.

    Args:
        largest_bytes: of the largest layer's parameters as they are gathered on one GPU, shape (N,).
        whole: parameters of one GPU before ZeRO, or where they need no cast those that ranks share, shape (P, N).
    """
    profile, copies = job.runtime.memory, np.zeros(())
    ends = job.vocabulary_rows(c.tp) * job.model.hidden
    both = np.where(c.pp == 1, 2 - job.model.tied_embeddings, 1)
    if profile.master_is_weight and (c.zero < 3).any():
        kept = (c.zero == 2) | ((c.zero < 2) & (job.states.master > 0))
        copies = np.where(kept, compute_weight_bytes(job) * whole, 0.0)
    if job.widens:
        copies = copies + np.where(c.zero < 3, WIDENED_BYTES * ends * both, 0.0)
    if not (c.zero == 3).any():
        return copies
    held = 2 * largest_bytes
    if profile.gathered_parameters:
        held = np.maximum(held, job.activation_bytes * profile.gathered_parameters)
    if profile.root_gathered != "none":
        held = held + job.activation_bytes * ends * (both if profile.root_gathered == "ends" else 1)
    return np.where(c.zero == 3, held, copies)


def largest_layer(cuts: Candidates, job: JobSpec) -> Held:
    """What one GPU holds of the layer that has most trained parameters, and of the one that has most frozen bytes."""
    trained, frozen = np.zeros(len(cuts)), np.zeros(len(cuts))
    for kind in job.model.trained_kinds:
        dense, expert = dense_held(kind, job, cuts.tp), expert_held(kind, job, cuts.ep, cuts.etp)
        trained = np.maximum(trained, dense.trained + expert.trained)
        frozen = np.maximum(frozen, dense.frozen + expert.frozen)
    return Held(trained, frozen)


def placeholder_bytes(cuts: Candidates, job: JobSpec) -> FloatArray:
    """One 16-bit placeholder per shape of weight gradient, an expert's once for all experts; shape (N,) (Transformer
    Engine module/base.py, get_dummy_wgrad)."""
    total = np.zeros(len(cuts))
    if not job.runtime.memory.weight_placeholders:
        return total
    for kind in job.model.trained_kinds:
        total = total + dense_held(kind, job, cuts.tp).trained
        if kind.moe is not None:
            total = total + expert_held(kind, job, cuts.ep, cuts.etp).trained * cuts.ep / kind.moe.experts
    return 2 * total
