"""Which collectives a plan calls in a step, how often and with how many bytes.

They are those that the step-time model prices (`gpuscale.steptime.components`), counted over layers, microbatches and what
is done again.

| axis | what is called | source |
|---|---|---|
| tp | AllReduce of b s h after each block, both passes; with sequence parallelism AllGather and ReduceScatter, and the block's input gathered once more | Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 |
| cp | keys and values around a ring, gathered, or exchanged with the queries over the heads | Liu et al. 2023, arXiv 2310.01889; Jacobs et al. 2023, arXiv 2309.14509 |
| ep | tokens to their experts and back, both passes | Lepikhin et al. 2020, arXiv 2006.16668; DeepSeek-V3, arXiv 2412.19437, section 3.2.2 |
| pp | b s h to the next stage, its gradient back | Narayanan et al. 2021, arXiv 2104.04473, section 3.2 |
| dp, edp | psi parameters: gradients reduced, parameters gathered, 2 psi on the wire up to stage 2 and 3 psi at stage 3 | Rajbhandari et al. 2020, arXiv 1910.02054, section 7 |
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpuscale.arrays import only
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.stages import FIRST, LAST, share_of_end
from gpuscale.search.evaluation import Evaluation, placed
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime.components import IN_LAYERS, GroupCall, Segment, Sent
from gpuscale.steptime.data_parallel import (
    gathered_again,
    gradient_norm,
    reductions,
    shards,
    state_calls,
    teacher_gather,
    tied_embedding,
)  # fmt: skip
from gpuscale.steptime.layer import embedding_sent, layer_segments, lm_head_sent, stops_before
from gpuscale.steptime.step import filling_hops, hop
from gpuscale.steptime.tensor_parallel import TensorParallelTime, tensor_parallel_time

PHASES = ("forward", "backward", "synchronisation", "update")
"""Phases of a step: both passes of all microbatches (recomputation counts as backward), the reduction of gradients
behind them, the optimizer with what follows it."""

ENDS = frozenset({"embedding", "LM head", "loss"})
"""What is called once for each microbatch at both ends of the model, and not in every layer."""

REPLICAS = "gradients of replicas"
"""What the copies of a shard reduce, of hybrid sharding."""

FILLING = "filling and draining the pipeline"
"""Transfers between other stages, for which the stage waits; it sends nothing."""


@dataclass(frozen=True)
class Call:
    """One collective of a plan, called several times in a step by each group of an axis."""

    #: `tp`, `cp`, `ep`, `etp`, `pp`, `dp`, `edp` (data parallelism of the routed experts), `embedding` (tied, on two
    #: stages) or `norm` (of the gradients).
    axis: str
    purpose: str  #: what is sent.
    collective: str  #: one of `gpuscale.collectives.ideal.OPERATIONS`.
    phase: str  #: one of `PHASES`: when it is due.
    bytes_per_call: float  #: as nccl-tests counts [bytes].
    calls: float  #: in a step, of each group.
    group_size: int  #: GPUs of the group; of a ring or a pipeline all that send to a neighbour.
    stride: int  #: Rank stride between members.
    component: str  #: under which the step-time model counts what shows of it.
    ends: bool = False  #: it belongs to the embedding or the LM head.
    pair: int = 0  #: GPUs between the two of a transfer, of which the group is a chain; 0 for collectives.
    time_s: float = 0.0  #: of a call [s].
    hidden: bool = False  #: it runs beside a longer part of the same exchange.


@dataclass(frozen=True)
class StagePlan:
    """One plan as seen from one GPU of its slowest stage."""

    job: JobSpec
    rows: Candidates  #: the plan as the only candidate.
    place: int  #: column of the stage among the evaluated ones.
    stage: int  #: its index in the pipeline.
    layers: tuple[tuple[LayerSpec, float], ...]  #: (kind of layer, how many of them the stage runs).

    def __getattr__(self, name: str) -> int:
        """Return one degree of the layout."""
        if name.startswith("_") or name not in Candidates.__dataclass_fields__:
            raise AttributeError(name)
        return int(getattr(self.rows, name)[0])

    @cached_property
    def recomputed(self) -> float:
        """Share of the stage's layers that are recomputed whole."""
        return min(self.recompute_layers / max(math.fsum(count for _, count in self.layers), 1), 1.0)

    def end(self, place: int) -> float:
        """Return the share of the embedding (`FIRST`) or LM head (`LAST`) that the stage runs."""
        return only(share_of_end(self.rows, place, np.array([self.place])))


def stage_plan(rows: Candidates, job: JobSpec, evaluation: Evaluation) -> StagePlan:
    """Return a plan as seen from its slowest stage."""
    place = int(evaluation.step.bottleneck[0])
    counts = (float(count[place, 0]) for count in evaluation.stages.layers(evaluation.stage_row))
    stage = int(evaluation.stages.position[evaluation.stage_row[0], place])
    return StagePlan(job, rows, place, stage, tuple(zip(job.model.trained_kinds, counts, strict=True)))


def inventory(plan: StagePlan) -> tuple[Call, ...]:
    """Return all collectives that a GPU takes part in during one step; groups of one GPU call none."""
    found = (*layer_calls(plan), *pipeline_calls(plan), *state_calls_of(plan), *gradient_calls(plan))
    return tuple(one for one in found if one.group_size > 1 and one.calls > 0 and one.bytes_per_call > 0)


def _call(axis: str, purpose: str, one: GroupCall, phase: str, calls: float, component: str, **more: Any) -> Call:
    """One collective of the only candidate."""
    size, ranks, stride, time_s = map(only, (one.bytes, one.size, one.stride, one.time_s))
    named = f"{purpose}, {one.where}" if one.where else purpose
    call = Call(axis, named, one.operation, phase, size, calls, int(ranks), int(stride), component, time_s=time_s)
    return replace(call, **more)


# -- layers and both ends of the model --


def layer_calls(plan: StagePlan) -> Iterator[Call]:
    """What the blocks of layers send, component by component, and what TP sends at both ends of the model."""
    tp = tensor_parallel_time(plan.rows, plan.job)
    layers = layer_segments(plan.rows, plan.job, plan.rows, np.arange(1), tp)
    for component in IN_LAYERS:
        for (_, count), blocks in zip(plan.layers, layers, strict=True):
            last = stops_before(blocks, plan.job)
            for block in blocks:
                mine = [one for one in block.sent if one.component == component]
                calls = [call for one in mine for call in _sent_calls(plan, one, count, block, stops=block is last)]
                yield from sorted(calls, key=lambda one: PHASES.index(one.phase)) if component == "tp_comm" else calls
        if component == "tp_comm":
            yield from _end_calls(plan, tp)
    if (own := plan.job.teaching) is not None:
        layers_of = zip(own.model.trained_kinds, own.model.trained_counts, strict=True)
        taught = layer_calls(replace(plan, job=own, layers=tuple((kind, float(count)) for kind, count in layers_of)))
        yield from (replace(one, purpose=f"{one.purpose}, teacher") for one in taught if one.phase == "forward")


def _sent_calls(plan: StagePlan, one: Sent, count: float, block: Segment, *, stops: bool) -> Iterator[Call]:
    """Calls of both passes; the backward pass makes those of the forward pass again, as often as it does the block, and
    if it `stops` not those that follow its last product."""
    forward, backward = only(one.forward), only(one.backward)
    whole = 0.0 if stops and one.last else plan.recomputed
    again = forward * (whole + bool(plan.recompute_modules & block.modules))
    longest = int(np.argmax([only(part.time_s) for part in one.parts]))
    ahead = forward * (1 + plan.job.method.forwards)
    counted = [(one.purpose, "forward", ahead), (one.again or one.purpose, "backward", backward + again)]
    for purpose, phase, calls in counted:
        for index, part in enumerate(one.parts):
            times = count * calls * plan.num_microbatches
            yield _call(one.axis, purpose, part, phase, times, one.component, hidden=index != longest)


def _end_calls(plan: StagePlan, tp: TensorParallelTime) -> Iterator[Call]:
    """Embedding and LM heads, in the order in which they are due."""
    embedding, first = embedding_sent(tp), plan.end(FIRST)
    heads = plan.end(LAST) * (1 + plan.job.model.mtp_depth)
    due = [(one, first) for one in embedding if one.forward]
    due += [(one, heads) for one in lm_head_sent(plan.rows, plan.job, tp)]
    due += [(one, first) for one in embedding if one.backward]
    for one, count in due:
        for phase, calls in (("forward", one.forward), ("backward", one.backward)):
            times = float(calls) * count * plan.num_microbatches
            times *= 1 + plan.job.method.forwards * (phase == "forward")
            yield _call(one.axis, one.purpose, one.parts[0], phase, times, one.component, ends=True)


# -- pipeline --


def pipeline_calls(plan: StagePlan) -> Iterator[Call]:
    """The hidden state to the next chunk of the model and its gradient back: 2 m v transfers, and filling."""
    sent, gathered = hop(plan.rows, plan.job)
    trips, distance = plan.num_microbatches * float(plan.vpp), int(sent.stride[0])
    ways = [("forward", "hidden state", trips), ("backward", "its gradient", trips)]
    for phase, purpose, calls in (*ways, ("forward", FILLING, only(filling_hops(plan.rows)))):
        yield _call("pp", purpose, sent, phase, calls, "pp_comm", group_size=plan.pp, pair=distance)
        yield _call("pp", purpose, gathered, phase, calls, "pp_comm")


# -- data parallelism --


def state_calls_of(plan: StagePlan) -> Iterator[Call]:
    """Gradients and parameters of the stage that has the most, of the experts apart.

    With psi parameters on a GPU: ZeRO 0 AllReduces psi gradients; 1 and 2 ReduceScatter psi gradients, stage 2 maybe in
    every microbatch, and AllGather psi parameters; stage 3 gathers them in both passes of every microbatch. Replicas of
    the shards AllReduce psi / shard gradients.
    """
    *_, parameters = placed(plan.rows, plan.job)
    for axis, one in shards(plan.rows, plan.job, parameters).items():
        calls = state_calls(plan.job, one)
        repeats = only(reductions(plan.rows, plan.job))
        again = only(gathered_again(plan.rows, plan.job))
        passes = zip(PHASES[:2], (1 + plan.job.method.forwards, 1 + again), strict=True)
        gathers = [("update", 1.0)] if plan.zero < 3 else [(due, float(n * plan.num_microbatches)) for due, n in passes]
        for purpose, (sent, pieces), due in (
            ("gradients", calls.reduce, [("synchronisation", repeats)]),
            ("gradients", calls.all_reduce, [("synchronisation", repeats)]),
            ("parameters", calls.gather, gathers),
            (REPLICAS, calls.replica, [("synchronisation", 1.0)]),
        ):
            for phase, times in due:
                yield _call(axis, purpose, sent, phase, times * only(pieces), "dp_comm")
    if plan.job.teacher is not None and plan.zero == 3:
        taught = teacher_gather(plan.rows, plan.job)
        yield _call("dp", "parameters", taught, "forward", float(plan.num_microbatches), "dp_comm")


def gradient_calls(plan: StagePlan) -> Iterator[Call]:
    """The gradients of a tied embedding, of which first and last stage hold a copy each, and the norm of all gradients,
    that of the experts' apart; on CPUs where the optimizer runs there."""
    model = plan.job.model
    if plan.job.trains_tied_embedding:
        tied = tied_embedding(plan.rows, plan.job)
        yield _call("embedding", "tied embedding", tied, "synchronisation", 1.0, "dp_comm")
    if not plan.job.offload.optimizer:
        norm = gradient_norm(plan.rows, plan.job)
        yield _call("norm", "gradient norm", norm, "update", 1.0 + model.is_moe, "optimizer")
