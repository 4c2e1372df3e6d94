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
from gpuscale.candidates.stages import FIRST, LAST, MIDDLE, StageTable
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec, ModelSpec

FloatArray = npt.NDArray[np.float64]


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
    kinds = range(len(model.kinds))
    dense_layer = np.stack([layer_parameters(model.kinds[k], model.hidden, shards.tp) for k in kinds], axis=1)[back]
    expert_layer = np.stack(
        [expert_parameters(model.kinds[k], model.hidden, shards.ep, shards.etp) for k in kinds], axis=1
    )[back]
    counts = stages.counts[stage_row]
    dense = np.einsum("nsk,nk->ns", counts, dense_layer)
    expert = np.einsum("nsk,nk->ns", counts, expert_layer)
    rows = padded_vocabulary(model, job.vocab_multiple, candidates.tp) // candidates.tp
    embedding = (rows + model.learned_positions) * model.hidden
    vectors = parameters(model).final_norm + model.head_bias * rows
    dense[:, FIRST] += embedding
    dense[:, LAST] += rows * model.hidden + vectors  # a tied head on a stage of its own holds a copy
    whole = candidates.pp == 1  # one stage: all columns are the same GPU
    head = (0 if model.tied_embeddings else rows * model.hidden) + vectors
    dense[whole] = (dense[:, MIDDLE] + embedding + head)[whole, None]
    group = (candidates.dp * candidates.cp).astype(np.float64)
    shard = np.maximum(candidates.shard, 1).astype(np.float64)
    expert_shard = np.maximum(candidates.expert_dp * shard / group, 1.0)
    return StageParameters(dense, expert, shard, expert_shard)


def gathered_bytes(candidates: Candidates, job: JobSpec) -> FloatArray:
    """Whole layers that ZeRO-3 holds at a time: the one in use and the prefetched one, and one layer's gradients."""
    model = job.model
    largest = np.zeros(len(candidates))
    for kind in model.kinds:
        size = layer_parameters(kind, model.hidden, candidates.tp)
        largest = np.maximum(largest, size + expert_parameters(kind, model.hidden, candidates.ep, candidates.etp))
    held = largest * (2 * job.states.weight + job.states.gradient)
    return np.where(candidates.zero == 3, held, 0.0)
