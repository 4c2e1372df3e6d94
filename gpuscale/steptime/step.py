"""Seconds per optimizer step: layers on stages, stages in a pipeline, the pipeline beside data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuscale.arrays import FloatArray, IndexArray
from gpuscale.layouts.arrays import Candidates, Cases, summed, unique_rows
from gpuscale.layouts.stages import StageTable, at_place, place_of_end
from gpuscale.memory.states import StageParameters
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMPONENTS, INDEX, Breakdown, added, scaled, taken
from gpuscale.steptime.data_parallel import data_parallel_time
from gpuscale.steptime.offload import exposed_activations_s
from gpuscale.steptime.pipeline import (
    Passes,
    cut_key,
    evaluate_passes,
    exposed_hops_s,
    hop_times,
    pipeline_time,
    recomputed_share,
)


@dataclass(frozen=True)
class StepTime:
    """Step time of N candidates, with what its breakdown is made from; each (N,) unless said otherwise.

    Attributes:
        step_time_s: seconds per optimizer step.
        bottleneck: which of the evaluated stages is the slowest.
        bubble_s, pp_comm_s: idle time and exposed transfers of the pipeline.
        activation_copies_s: what copies of activations to and from host memory add.
        retry_s: waiting for the allocator where memory is short, booked as `launch`.
        dp_total_s, dp_exposed_s: communication of data parallelism before overlap, and what it adds to the step.
        optimizer_s: gradient clipping and optimizer, where they run on the GPU.
        offload_s: the optimizer on the CPU and what copies of states to and from host memory add.
    """

    step_time_s: FloatArray
    bottleneck: IndexArray
    bubble_s: FloatArray
    pp_comm_s: FloatArray
    activation_copies_s: FloatArray
    retry_s: FloatArray
    dp_total_s: FloatArray
    dp_exposed_s: FloatArray
    optimizer_s: FloatArray
    offload_s: FloatArray
    _candidates: Candidates
    _counts: tuple[FloatArray, ...]
    _passes: Passes

    @cached_property
    def components(self) -> FloatArray:
        """`step_time_s` by component, shape (components, N); the second route to the total."""
        c, passes = self._candidates, self._passes
        counts = [at_place(count, self.bottleneck) for count in self._counts]
        share = recomputed_share(c, counts)
        cost: Breakdown = {}
        for layer, number in zip(passes.layers, counts, strict=True):
            both = taken(added(layer.forward, layer.backward), passes.cut.row)
            again = scaled(taken(layer.recompute, passes.cut.row), share)
            cost = added(cost, scaled(added(both, again), number))
        for place, (forward, backward) in passes.ends.items():
            mine = (c.pp == 1) | (self.bottleneck == place_of_end(c, place))
            cost = added(cost, scaled(taken(added(forward, backward), passes.cut.row), mine))
        out = np.zeros((len(COMPONENTS), len(c)))
        for name, value in scaled(cost, c.num_microbatches).items():
            out[INDEX[name]] = value
        out[INDEX["launch"]] += self.retry_s
        out[INDEX["bubble"]] += self.bubble_s
        out[INDEX["pp_comm"]] += self.pp_comm_s
        out[INDEX["dp_comm"]] += self.dp_exposed_s
        out[INDEX["optimizer"]] += self.optimizer_s
        out[INDEX["offload"]] += self.activation_copies_s + self.offload_s
        return out


def step_time(
    c: Candidates,
    job: JobSpec,
    stages: StageTable,
    stage_row: IndexArray,
    parameters: StageParameters,
    passes: Passes | None = None,
    allocator_retries: FloatArray | float = 0.0,
) -> StepTime:
    """Seconds per optimizer step of each candidate.

    Args:
        stages: layers per stage of each (pp, vpp) pair.
        stage_row: for each candidate the row of its pair in `stages`.
        parameters: parameters on one GPU of each stage.
        passes: one microbatch through the model, where it is at hand.
        allocator_retries: how often in a microbatch the allocator starts anew (`Memory.allocator_retries`).
    """
    if passes is None:
        cuts, index = unique_rows(c, cut_key(c, job))
        passes = evaluate_passes(cuts, Cases(index), job)
    pipeline = pipeline_time(c, job, stages, stage_row, passes)
    forward_s, backward_s = pipeline.forward_s, pipeline.backward_s
    nothing = np.zeros(())
    pp_comm_s = exposed_hops_s(c, *hop_times(c, job), pipeline.slowest_s) if (c.pp > 1).any() else nothing
    dp_total_s, dp_exposed_s, optimizer_s, offload_s = data_parallel_time(c, job, parameters, forward_s, backward_s)
    copies_s = retry_s = nothing
    if job.offload.activations:
        each_s = exposed_activations_s(c, job, stages, stage_row, pipeline.bottleneck, forward_s, backward_s)
        copies_s = each_s * c.num_microbatches
    if job.runtime.allocator_retry_s:
        retry_s = np.asarray(allocator_retries * job.runtime.allocator_retry_s * c.num_microbatches)
    total_s = summed(pipeline.step_s(c), pp_comm_s, copies_s, retry_s)
    return StepTime(
        step_time_s=summed(total_s, dp_exposed_s, optimizer_s, offload_s),
        bottleneck=pipeline.bottleneck,
        bubble_s=pipeline.bubble_s,
        pp_comm_s=pp_comm_s,
        activation_copies_s=copies_s,
        retry_s=retry_s,
        dp_total_s=dp_total_s,
        dp_exposed_s=dp_exposed_s,
        optimizer_s=optimizer_s,
        offload_s=offload_s,
        _candidates=c,
        _counts=pipeline.counts,
        _passes=passes,
    )
