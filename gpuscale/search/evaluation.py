"""Memory and step time of a set of candidates: the two questions every candidate is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import Candidates, Cases, concatenate
from gpuscale.layouts.stages import StageTable
from gpuscale.memory.model import Memory, evaluate_memory
from gpuscale.search.job_groups import layers_of
from gpuscale.search.layer_cache import Shared, distinct_layers, share
from gpuscale.search.timing import Stopwatch
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.step import StepTime, step_time


@dataclass(frozen=True)
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
    used = evaluate_memory(c, job, stages, row, parameters, shared.sizes)
    peak_bytes = used.peak_bytes
    watch.lap("memory")
    retries = used.allocator_retries(job.cluster.gpu.memory_bytes) if job.runtime.allocator_retry_s else 0.0
    step = step_time(c, job, stages, row, parameters, shared.times, retries)
    watch.lap("step time")
    return Evaluation(used, peak_bytes, step, stages, row)


def evaluate_each(asked: Sequence[tuple[Candidates, JobSpec]]) -> list[Evaluation]:
    """Evaluate the candidates of several jobs, each as `evaluate` does; layers are priced once for jobs that share
    them."""
    out: dict[int, Evaluation] = {}
    keys = [layers_of(job) for _, job in asked]
    left = list(range(len(asked)))
    while left:
        key = keys[left[0]]
        alike = [index for index in left if keys[index] == key]
        left = [index for index in left if index not in alike]
        sizes, passes = distinct_layers(concatenate([asked[index][0] for index in alike]), key)
        ends = np.cumsum([len(asked[index][0]) for index in alike])
        for index, cut in zip(alike, np.split(passes.cut.row, ends[:-1]), strict=True):
            layers = replace(sizes, cut=Cases(cut)), replace(passes, cut=Cases(cut))
            out[index] = evaluate(*asked[index], share(*asked[index], layers))
    return [out[index] for index in range(len(asked))]
