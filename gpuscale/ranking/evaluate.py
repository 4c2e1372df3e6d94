"""Memory and step time of a set of candidates: the two questions every candidate is asked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates
from gpuscale.candidates.stages import StageTable
from gpuscale.memory import Memory, memory
from gpuscale.ranking.sharing import Shared, share
from gpuscale.ranking.timing import Stopwatch
from gpuscale.records import record
from gpuscale.specs.job import JobSpec
from gpuscale.steptime import StepTime, step_time

FloatArray = npt.NDArray[np.float64]


@record
class Evaluation:
    """Memory and step time of N candidates, by component.

    Attributes:
        memory_bytes: memory at the fullest stage, shape (N,).
    """

    memory: Memory
    memory_bytes: FloatArray
    step: StepTime
    stages: StageTable
    stage_row: npt.NDArray[np.intp]


def evaluate(c: Candidates, job: JobSpec, shared: Shared | None = None, watch: Stopwatch | None = None) -> Evaluation:
    """Compute memory and step time of every candidate; a row alone gives the same numbers as in a batch or a grid.

    Args:
        shared: what the candidates have in common with others, where it is at hand.
        watch: told when memory and step time have been computed.
    """
    shared, watch = shared or share(c, job), watch or Stopwatch()
    stages, row, parameters = shared.stages, shared.stage_row, shared.parameters
    used = memory(c, job, stages, row, parameters, shared.sizes)
    peak_bytes = used.peak_bytes
    watch.lap("memory")
    retries = used.allocator_retries(job.cluster.gpu.memory_bytes) if job.runtime.allocator_retry_s else 0.0
    step = step_time(c, job, stages, row, parameters, shared.prices, retries)
    watch.lap("step time")
    return Evaluation(used, peak_bytes, step, stages, row)
