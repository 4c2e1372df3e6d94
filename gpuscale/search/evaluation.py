"""Memory and step time of a set of candidates, and the layers that many of them have in common: those cut alike take
the same whatever pipeline they are in, and are measured once for all candidates of a part of the search space, and for
all jobs that share them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import GPIPE, ONE_F_ONE_B, Candidates, Cases, summed, unique_rows
from gpuscale.layouts.stages import StageTable, stage_table
from gpuscale.memory.model import LayerSizes, Memory, evaluate_memory, measure_layers
from gpuscale.memory.states import StageParameters, stage_parameters
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.offload import least_cpu_optimizer_time_s
from gpuscale.steptime.step import Passes, StepTime, cut_key, evaluate_passes, gpu_spread, slowest_of, step_time


class Evaluation(NamedTuple):
    """Memory and step time of N candidates, by component."""

    memory: Memory
    memory_bytes: FloatArray  #: memory at the fullest stage, shape (N,).
    step: StepTime
    stages: StageTable  #: layers per stage of each (pp, vpp) pair.
    stage_row: IndexArray  #: row of each candidate's pair in `stages`, shape (N,).


def evaluate(c: Candidates, job: JobSpec) -> Evaluation:
    """Compute memory and step time of every candidate; a row alone gives the same as in a batch or a grid."""
    stages, row, parameters = placed(c, job)
    cuts, index = unique_rows(c, cut_key(c, job))  # layers are measured once for each distinct way to cut them
    cases = Cases(index)
    used = evaluate_memory(c, job, stages, row, parameters, measure_layers(cuts, cases, job))
    retries = used.allocator_retries(job.cluster.gpu.memory_bytes) if job.runtime.allocator_retry_s else 0.0
    step = step_time(c, job, stages, row, parameters, evaluate_passes(cuts, cases, job), retries)
    return Evaluation(used, used.peak_bytes, step, stages, row)


def memory_of(c: Candidates, job: JobSpec) -> Memory:
    """Compute the memory of every candidate alone."""
    cuts, index = unique_rows(c, cut_key(c, job))
    return evaluate_memory(c, job, *placed(c, job), measure_layers(cuts, Cases(index), job))


def time_of(c: Candidates, job: JobSpec) -> StepTime:
    """Compute the step time of every candidate alone, as if none were short of memory."""
    return step_time(c, job, *placed(c, job))


def placed(c: Candidates, job: JobSpec, *, every: bool = False) -> tuple[StageTable, IndexArray, StageParameters]:
    """Deal layers out to the stages of candidates, or of a grid of them; `every`: also to stages that another
    outweighs.

    Returns:
        Layers per stage of each (pp, vpp) pair; for each row that of its pair; parameters on one GPU of each stage.
    """
    pairs, row = unique_rows(c, ("pp", "vpp", "schedule"))
    names = list(zip(pairs.pp.tolist(), pairs.vpp.tolist(), strict=True))
    stages = stage_table(job.model, names, job.runtime.pipeline_split, pairs.schedule.tolist(), every=every)
    axes = [1] * (len(c.shape) - 1)  # of the choices in a grid
    whole = stage_parameters(c, job, stages, row)
    on_grid = whole.each(lambda part: part.reshape(len(part), *axes, len(c)))
    return stages, row.reshape(*axes, len(c)), on_grid.shared_by(c)


class LayerCache(NamedTuple):
    """Layers of N rows of the search space, measured under each selection of modules to recompute."""

    modules: IntArray  #: the M selections, ascending.
    row: IndexArray  #: for each row the number of its way to cut layers, shape (N,).
    sizes: LayerSizes  #: bytes of one layer and one microbatch, by selection and way.
    passes: Passes  #: seconds of one microbatch, likewise.
    #: one microbatch through all layers and both ends of the model, the least that a site's runs make of it, (M, ways).
    model_s: FloatArray
    again_s: FloatArray  #: the same of the recomputation of all layers.
    spread: float  #: standard deviation of the time of GPUs (`gpu_spread`).

    def of(self, rows: IndexArray, c: Candidates) -> tuple[LayerSizes, Passes]:
        """Return the layers of some rows, of which `c` is a grid; it chooses the modules."""
        cut = self._cut(rows, c)
        return self.sizes._replace(cut=cut), self.passes._replace(cut=cut)

    def _cut(self, rows: IndexArray, c: Candidates) -> Cases:
        row = self.row[rows]
        return Cases(row, np.searchsorted(self.modules, c.recompute_modules) * self.model_s.shape[1] + row)

    def least_step_s(self, rows: IndexArray, c: Candidates, layers: IntArray) -> FloatArray:
        """Return what the steps of candidates take at least, whatever is sharded and offloaded [s], of rows of which
        `c` is a grid, and whose fullest stages have so many layers, (N,): step_time_s >= microbatches * model_s / pp +
        idle * (model_s - model_s / pp) with one microbatch through the whole model in model_s, and idle = 1 / vpp under
        1F1B, 1 under GPipe, and 0 where other schedules may fill all of the wait.

        (The slowest stage takes model_s / pp or more, and what it takes more shortens the bubble by less than it
        lengthens the work.) Of each stage at least the share of the layers is recomputed that is recomputed of the
        longest.
        """
        cut = self._cut(rows, c)
        share = np.minimum(c.recompute_layers / layers, 1.0)
        model_s = cut.of(self.model_s) + (cut.of(self.again_s) * share if share.any() else 0.0)
        return model_s * _least_microbatches(c, self.spread)

    def least_row_s(self, c: Candidates) -> FloatArray:
        """Return what a step of each row takes at least, however it recomputes, (N,) [s]."""
        return np.asarray(self.model_s.min(axis=0)[self.row] * _least_microbatches(c, self.spread))


def _least_microbatches(c: Candidates, spread: float) -> FloatArray:
    """Return how many microbatches through the whole model a step takes at least, on one GPU of a pipeline."""
    idle = np.where(c.schedule == ONE_F_ONE_B, 1.0 / c.vpp, c.schedule == GPIPE)
    share = 1.0 / c.pp
    busy = c.num_microbatches * share * (1 + slowest_of(c, spread))
    return np.asarray((busy + idle * (1.0 - share)) * BELOW)


BELOW = 1 - 1e-9
"""What a lower bound is multiplied by, for the rounding of sums that are formed in another order."""


def measure_distinct_layers(rows: Candidates, modules: IntArray, job: JobSpec) -> LayerCache:
    """Measure the layers of rows, each way to cut them once; `modules`: selections to recompute, ascending."""
    recomputed = replace(rows, recompute_modules=modules[:, None])
    cuts, row = unique_rows(recomputed, [name for name in cut_key(rows, job) if name != "recompute_modules"])
    passes = evaluate_passes(cuts, Cases(row), job)
    ends = (forward_s + backward_s for forward_s, backward_s in passes.ends_s.values())
    whole_s, recompute_s = zip(*passes.whole_s, strict=True)
    shape = len(modules), len(cuts)
    least = job.site.least if job.site else 1.0
    model_s, again_s = (np.broadcast_to(summed(*parts) * least, shape) for parts in ((*whole_s, *ends), recompute_s))
    return LayerCache(
        modules, row, measure_layers(cuts, Cases(row), job), passes, model_s, again_s, gpu_spread(job.cluster.gpu)
    )


def least_beside_s(job: JobSpec) -> float:
    """Return what a step takes at least besides microbatches and bubble [s]."""
    return least_cpu_optimizer_time_s(job) * BELOW * (job.site.least if job.site else 1.0)


SEARCH_STAGES = ("enumerate", "rules", "layers", "memory", "step time", "ranking")
"""Stages of a search in the order of the flow: rows are formed; those that break a rule dropped; layers measured;
memory, and what pipelines take at least, combined from them; those that may lead timed; the best kept in order."""

STAGES = ("presets", *SEARCH_STAGES, "output")
"""Stages of a plan: a search after its presets have been read, and its best plans described and drawn."""


class Stopwatch:
    """Adds up CPU time between laps by the name of the stage that ends with each."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._last = clock()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under a stage."""
        now = self._clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


_watch: ContextVar[Stopwatch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def watched() -> Iterator[Stopwatch]:
    """Time all searches inside the `with` block."""
    watch = Stopwatch()
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def lap(stage: str) -> None:
    """Book the time since the last lap under a stage, if any block is `watched`."""
    watch = _watch.get()
    if watch is not None:
        watch.lap(stage)
