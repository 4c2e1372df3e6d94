"""Bytes per GPU at the pipeline stages that may be the fullest.

Every array has shape (N, P): N candidates, P priced stages (`gpuscale.candidates.stages`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates
from gpuscale.candidates.stages import StageTable
from gpuscale.memory.activations import activation_bytes, logits_bytes, workspace_bytes
from gpuscale.memory.states import StageParameters, gathered_bytes, stage_parameters
from gpuscale.specs.job import JobSpec

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of N candidates by component, each of shape (N, P) [bytes].

    Attributes:
        weights: parameters in the compute precision.
        gradients: gradient buffer of a whole step.
        master_weights: fp32 copy of the parameters.
        optimizer_state: both moments of Adam.
        activations: saved for the backward pass, for all microbatches in flight.
        logits: logits of one microbatch with the fp32 copy of the loss (last stage).
        workspace: what the backward pass of one layer needs beside the saved activations.
        gathered_parameters: whole layers gathered for use under ZeRO-3.
        communication_buffers: NCCL buffers and gradient buckets.
        framework_reserve: CUDA context, loaded kernels, library workspaces.
    """

    weights: FloatArray
    gradients: FloatArray
    master_weights: FloatArray
    optimizer_state: FloatArray
    activations: FloatArray
    logits: FloatArray
    workspace: FloatArray
    gathered_parameters: FloatArray
    communication_buffers: FloatArray
    framework_reserve: FloatArray

    @property
    def by_stage(self) -> FloatArray:
        """Total at each of the priced stages, shape (N, P)."""
        parts = (getattr(self, part.name) for part in fields(self))
        return np.asarray(sum(parts), dtype=np.float64)

    @property
    def peak_bytes(self) -> FloatArray:
        """Total at the fullest stage, shape (N,)."""
        return np.asarray(self.by_stage.max(axis=1), dtype=np.float64)

    def at_peak(self, row: int) -> dict[str, float]:
        """Return the components of one candidate at its fullest stage (ties: the first)."""
        stage = int(self.by_stage[row].argmax())
        return {part.name: float(getattr(self, part.name)[row, stage]) for part in fields(self)}


def memory(
    candidates: Candidates,
    job: JobSpec,
    stages: StageTable,
    stage_row: npt.NDArray[np.intp],
    parameters: StageParameters,
) -> Memory:
    """Memory of each candidate by component and stage.

    Args:
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: for each candidate the row of its pair in `stages`.
        parameters: parameters on one GPU of each stage.
    """
    states = job.states
    saved = candidates.zero[:, None]
    weights = parameters.spread(saved >= 3) * states.weight
    gradients = parameters.spread(saved >= 2) * states.gradient
    sharded = parameters.spread(saved >= 1)
    shape = weights.shape
    return Memory(
        weights=weights,
        gradients=gradients,
        master_weights=sharded * states.master,
        optimizer_state=sharded * states.moments,
        activations=activation_bytes(candidates, job, stages, stage_row),
        logits=logits_bytes(candidates, job, shape[1]),
        workspace=np.broadcast_to(workspace_bytes(candidates, job)[:, None], shape),
        gathered_parameters=np.broadcast_to(gathered_bytes(candidates, job)[:, None], shape),
        communication_buffers=np.broadcast_to(_communication_bytes(candidates, job)[:, None], shape),
        framework_reserve=np.full(shape, job.runtime.context_bytes),
    )


def _communication_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Buffers of one communicator per parallel dimension in use, and two gradient buckets when they overlap."""
    groups = sum((degree > 1).astype(np.float64) for degree in (c.tp, c.pp, c.cp, c.ep, c.dp * c.cp))
    bucket = 2 * job.runtime.bucket_bytes * (job.runtime.overlap_grad_reduce & (c.dp * c.cp > 1) & (c.zero > 0))
    return np.asarray(groups * job.runtime.communicator_bytes + bucket, dtype=np.float64)


__all__ = ["Memory", "StageParameters", "memory", "stage_parameters"]
