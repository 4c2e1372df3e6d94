"""Parameters per GPU and stage: what weights, gradients and optimizer states are proportional to.

ZeRO shards the optimizer state (stage 1), also the gradients (2), also the parameters (3) over the data-parallel
ranks (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.architecture.operators import dense_linears, expert_linears, vector_parameters
from gpuscale.architecture.parameters import parameters
from gpuscale.candidates.arrays import Candidates, IntArray, unique_rows
from gpuscale.candidates.stages import FIRST, LAST, MIDDLE, StageTable, place_of_end
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec, ModelSpec

FloatArray = npt.NDArray[np.float64]

GATHERED_BYTES = 2
"""Parameters are gathered in 16 bits (mixed precision of FSDP and ZeRO-3)."""


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters on one GPU of each stage before ZeRO.

    Attributes:
        dense: shape (N, P): all but routed experts; replicated over dp * cp ranks.
        expert: shape (N, P): routed experts; replicated over `Candidates.expert_dp` ranks.
        shard: shape (N,): ranks that share the dense states.
        expert_shard: shape (N,): ranks that share the expert states.
    """

    dense: FloatArray
    expert: FloatArray
    shard: FloatArray
    expert_shard: FloatArray

    def spread(self, sharded: npt.NDArray[np.bool_]) -> FloatArray:
        """Parameters of one GPU when the states of the candidates marked in `sharded` (N, 1) are sharded."""
        split = self.dense / self.shard[:, None] + self.expert / self.expert_shard[:, None]
        return np.where(sharded, split, self.dense + self.expert)


def padded_vocabulary(model: ModelSpec, multiple: int, tp: IntArray) -> IntArray:
    """Vocabulary rounded up to a multiple of `multiple` x TP (Megatron-LM `--make-vocab-size-divisible-by`)."""
    step = multiple * tp
    return -(-model.vocab // step) * step


def layer_parameters(kind: LayerSpec, hidden: int, tp: IntArray) -> FloatArray:
    """Parameters of one layer on one GPU, routed experts left out; shape of `tp`."""
    total = vector_parameters(hidden, kind, tp)
    for linear in dense_linears(hidden, kind):
        total = total + linear.local_parameters(tp)
    return total.astype(np.float64)


def expert_parameters(kind: LayerSpec, hidden: int, ep: IntArray, etp: IntArray) -> FloatArray:
    """Parameters of one layer's routed experts on one GPU; shape of `ep`."""
    if kind.moe is None:
        return np.zeros(len(ep))
    local_experts = kind.moe.experts // ep
    each = sum(linear.local_parameters(etp) for linear in expert_linears(hidden, kind.moe))
    return np.asarray(local_experts * each, dtype=np.float64)


def stage_parameters(
    candidates: Candidates, job: JobSpec, stages: StageTable, stage_row: npt.NDArray[np.intp]
) -> StageParameters:
    """Parameters on one GPU of each of the P priced stages."""
    model = job.model
    shards, back = unique_rows(candidates, ("tp", "ep", "etp"))
    kinds = model.trained_kinds
    dense_layer = np.stack([layer_parameters(kind, model.hidden, shards.tp) for kind in kinds], axis=1)[back]
    expert_layer = np.stack([expert_parameters(kind, model.hidden, shards.ep, shards.etp) for kind in kinds], axis=1)[
        back
    ]
    counts = stages.held[stage_row]
    dense = np.einsum("nsk,nk->ns", counts, dense_layer)
    expert = np.einsum("nsk,nk->ns", counts, expert_layer)
    rows = padded_vocabulary(model, job.vocab_multiple, candidates.tp) // candidates.tp
    embedding = (rows + model.learned_positions) * model.hidden
    vectors = parameters(model).final_norm + model.head_bias * rows
    dense[:, FIRST] += embedding
    copies = 2 if model.mtp_depth and not model.tied_embeddings else 1  # multi-token prediction embeds once more
    end = (np.arange(len(dense)), place_of_end(candidates, LAST))
    dense[end] += copies * rows * model.hidden + vectors  # a tied head on a stage of its own holds a copy
    whole = candidates.pp == 1  # one stage: all columns are the same GPU
    head = (0 if model.tied_embeddings else rows * model.hidden) + vectors
    dense[whole] = (dense[:, MIDDLE] + embedding + head)[whole, None]
    group = (candidates.dp * candidates.cp).astype(np.float64)
    shard = np.maximum(candidates.shard, 1).astype(np.float64)
    expert_shard = np.maximum(candidates.expert_dp * shard / group, 1.0)
    return StageParameters(dense, expert, shard, expert_shard)


def gathered_bytes(candidates: Candidates, job: JobSpec) -> FloatArray:
    """16-bit parameters that ZeRO-3 holds gathered: the layer in use and the prefetched one, embedding and LM head.

    FSDP2 gathers one module ahead; what belongs to no layer is one group that stays gathered (PyTorch
    `torch.distributed.fsdp.fully_shard`, forward prefetching and `reshard_after_forward`). Shape (N,).
    """
    if not (candidates.zero == 3).any():
        return np.zeros(len(candidates))
    held = 2 * largest_layer(candidates, job)
    if job.runtime.memory.gathered_parameters:
        held = np.maximum(held, job.runtime.memory.gathered_parameters)
    if job.runtime.memory.root_gathered:
        rows = padded_vocabulary(job.model, job.vocab_multiple, candidates.tp) / candidates.tp
        ends = np.where(candidates.pp == 1, 1 if job.model.tied_embeddings else 2, 1)
        held = held + rows * job.model.hidden * ends
    return np.where(candidates.zero == 3, GATHERED_BYTES * held, 0.0)


def largest_layer(candidates: Candidates, job: JobSpec) -> FloatArray:
    """Parameters of the largest layer on one GPU, shape (N,)."""
    rows, back = unique_rows(candidates, ("tp", "ep", "etp"))
    largest = np.zeros(len(rows))
    for kind in job.model.trained_kinds:
        size = layer_parameters(kind, job.model.hidden, rows.tp)
        largest = np.maximum(largest, size + expert_parameters(kind, job.model.hidden, rows.ep, rows.etp))
    return np.asarray(largest[back], dtype=np.float64)


def placeholder_bytes(candidates: Candidates, job: JobSpec) -> FloatArray:
    """One 16-bit placeholder per shape of weight gradient, an expert's once for all experts; shape (N,).

    Transformer Engine keeps them for good (module/base.py, get_dummy_wgrad).
    """
    rows, back = unique_rows(candidates, ("tp", "ep", "etp"))
    total = np.zeros(len(rows))
    for kind in job.model.trained_kinds:
        total = total + layer_parameters(kind, job.model.hidden, rows.tp)
        if kind.moe is not None:
            total = total + expert_parameters(kind, job.model.hidden, rows.ep, rows.etp) * rows.ep / kind.moe.experts
    kept = 2 * total[back]
    return kept if job.runtime.memory.weight_placeholders else np.zeros(len(candidates))
