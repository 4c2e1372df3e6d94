"""Memory and step time of a set of candidates: the two questions every candidate is asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, unique_rows
from gpuscale.candidates.stages import StageTable, stage_table
from gpuscale.memory import Memory, memory
from gpuscale.memory.states import stage_parameters
from gpuscale.specs.job import JobSpec
from gpuscale.steptime import StepTime, step_time


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Memory and step time of N candidates, by component."""

    memory: Memory
    step: StepTime
    stages: StageTable
    stage_row: npt.NDArray[np.intp]


def evaluate(candidates: Candidates, job: JobSpec) -> Evaluation:
    """Compute memory and step time of every candidate; a row alone gives the same numbers as in a batch."""
    pairs, row = unique_rows(candidates, ("pp", "vpp", "schedule"))
    tabulated = list(zip(pairs.pp.tolist(), pairs.vpp.tolist(), strict=True))
    stages = stage_table(job.model, tabulated, job.runtime.pipeline_split, pairs.schedule.tolist())
    stage_row = row.reshape(*[1] * (len(candidates.shape) - 1), -1)
    parameters = stage_parameters(candidates, job, stages, stage_row)
    used = memory(candidates, job, stages, stage_row, parameters)
    retries = used.allocator_retries(job.cluster.gpu.memory_bytes) if job.runtime.allocator_retry_s else 0.0
    return Evaluation(used, step_time(candidates, job, stages, stage_row, parameters, retries), stages, stage_row)
