"""The pipeline of a plan, or of given durations, simulated slot by slot, beside the closed forms of the search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuscale.arguments import public, refuse_unknown
from gpuscale.arrays import FloatArray
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.launch.subject import Subject
from gpuscale.layouts.arrays import ZB_V, Candidates, schedule_name, single
from gpuscale.memory.activations import microbatches_in_flight
from gpuscale.memory.model import evaluate_memory
from gpuscale.request import Layout, parse_schedule, read
from gpuscale.results import PlanRow
from gpuscale.search.evaluation import placed
from gpuscale.steptime.components import total_s
from gpuscale.steptime.pipeline import KINDS, Durations, Pipeline, Timeline, active_share, held_by_rank, simulate
from gpuscale.steptime.step import ChunkPasses, chunk_passes, exposed_hops_s, hop_times, idle_s, site_factor
from gpuscale.units import NUMBER, SHARE, plural

MAX_STEPS = 1000
"""Time steps of which the active share is told at most."""

MAX_MICROBATCHES, MAX_JITTER, LONGEST_S = 100_000, 10.0, 1e9
"""Largest numbers that may be given."""

DURATIONS = ("forward", "backward", "weight", "transfer")

PIPELINE = ("pp", "vpp", "schedule")
"""Values of a layout that say something of a pipeline without a model."""


@dataclass(frozen=True)
class RankLoad:
    """What one pipeline rank does in a step."""

    rank: int  #: pipeline rank, from 0
    busy_s: float  #: seconds in which it computes
    sending_s: float  #: seconds in which it waits for what it sends
    idle_s: float  #: what is left of the step, in which it waits for others
    in_flight: float  #: microbatches that it holds activations of at its peak, in whole-stage units
    closed_form_in_flight: float  #: the same by the closed form of the memory model


@dataclass(frozen=True)
class SimulationCheck:
    """A quantity by simulation, and by the closed form that the search takes."""

    #: `pipeline` (all of a step's microbatches), `bubble` (idle time of the busiest rank, without transfers) or
    #: `transfers` (what these add)
    quantity: str
    simulated_s: float  #: by simulation, without jitter
    closed_form_s: float  #: by the closed form


@displayed
@dataclass(frozen=True)
class Schedule:
    """A pipeline's step, slot by slot. Times are in seconds where a model says them, else in the given unit."""

    schedule: str  #: `1f1b`, `interleaved`, `gpipe`, `zb-h1`, `zb-2p`, `zb-v` or `dualpipe`; `none` on one rank
    pipeline: Pipeline  #: its numbers.
    durations: Durations  #: what its slots take.
    timeline: Timeline  #: its slots as arrays.
    #: from the first slot of a rank to its last, of the rank with the longest time: what a step takes where each rank
    #: begins the next one when it has done its own
    step_s: float
    bubble_fraction: float  #: idle time of the busiest rank, as a share of `step_s`
    #: share of the ranks that compute, on average over each time step from the first slot on
    active_share: tuple[float, ...]
    time_step_s: float  #: length of such a time step
    in_flight: tuple[float, ...]  #: microbatches that each rank holds activations of at its peak, in whole-stage units
    ranks: tuple[RankLoad, ...]  #: what each rank does
    compared: tuple[SimulationCheck, ...]  #: the simulation beside the closed forms of the search
    jitter: float = 0.0  #: by which share a slot may take longer
    subject: Subject | None = None  #: the plan; None for durations that are given.
    passes: ChunkPasses | None = None  #: its passes by component; None likewise.
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`

    @property
    def plan(self) -> PlanRow | None:
        """The plan whose pipeline it is."""
        return self.subject.estimate.plan if self.subject else None

    def to_dict(self) -> dict[str, Any]:
        """Return what is said of it as JSON types."""
        found, pipeline = self.subject.estimate if self.subject else None, self.pipeline
        named = ("step_s", "bubble_fraction", "time_step_s", "active_share", "in_flight", "ranks", "compared", "jitter")
        return {
            **({name: getattr(found, name) for name in ("model", "cluster", "gpus", "plan")} if found else {}),
            "schedule": self.schedule,
            "pp": pipeline.pp,
            "vpp": pipeline.vpp,
            "num_microbatches": pipeline.microbatches,
            **{name: getattr(self, name) for name in (*named, "notes")},
            "slots": slots(self.timeline),
        }


def slots(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the slots as JSON types, those of a rank one after the other."""
    t = timeline
    columns = (t.rank, t.start_s, t.end_s, t.kind, t.microbatch, t.chunk)
    return [
        {"rank": rank, "start_s": start, "end_s": end, "kind": KINDS[kind], "microbatch": number, "chunk": chunk}
        for rank, start, end, kind, number, chunk in zip(*(column.tolist() for column in columns), strict=True)
    ]


@public
def schedule(subject: Subject, *, jitter: float | str = 0.0, seed: int = 0) -> Schedule:
    """Simulate the pipeline of a plan with the durations that are predicted for it.

    Transfers block the sender without interleaving, and run under its next chunk with it, as the closed form has them.

    Args:
        subject: the plan, of `gpuscale.read_subject`.
        jitter: each slot takes up to this share longer, 0 to 10; 0.5 or 50%.
        seed: of the jitter.

    Raises:
        InputError: a jitter out of range, or more slots than are simulated.
    """
    c, job = subject.rows, subject.spec
    factor = _site_factor(subject)
    passes = chunk_passes(c, job)
    forward, backward = (np.asarray(total_s(cost)) * factor for cost in (passes.forward, passes.backward))
    hop_s, latency_s = (float(part[0]) * factor for part in hop_times(c, job))
    blocking_s = hop_s if int(c.vpp[0]) == 1 else latency_s
    durations = Durations(forward, backward, passes.weight_s * factor, hop_s, blocking_s)
    step = subject.evaluation.step
    bubble_s, transfers_s = (float(np.sum(step.beside[name])) * factor for name in ("bubble", "pp_comm"))
    pipeline_s = float(step.step_time_s[0]) - math.fsum(beside_s(subject).values())
    closed = {"pipeline": pipeline_s, "bubble": bubble_s, "transfers": transfers_s}
    return _described(c, durations, closed, (jitter, seed), subject, passes)


def _site_factor(subject: Subject) -> float:
    site = subject.spec.site
    return float(site_factor(subject.rows, site)[0]) if site else 1.0


def stage_bytes(subject: Subject) -> tuple[FloatArray, FloatArray]:
    """Return what a GPU of each rank holds beside activations, passes at their peak, and a microbatch's activations,
    each (ranks,)."""
    c, job = subject.rows, subject.spec
    stages, row, parameters = placed(c, job, every=True)
    memory = evaluate_memory(c, job, stages, row, parameters)
    held = microbatches_in_flight(c, stages.positions(row))
    places = {int(rank): place for place, rank in enumerate(stages.position[0])}
    order = [places[rank] for rank in range(int(c.pp[0]))]
    activations = np.broadcast_to(memory.activations, memory.by_stage.shape)
    fixed, each = memory.by_stage - activations, activations / held
    return fixed[order, 0], each[order, 0]


def beside_s(subject: Subject) -> dict[str, float]:
    """Return what a step takes beside its pipeline, by component [s]."""
    factor = _site_factor(subject)
    every = {name: float(np.sum(value)) * factor for name, value in subject.evaluation.step.beside.items()}
    return {name: value for name, value in every.items() if name not in {"bubble", "pp_comm"}}


@public
def schedule_of_durations(
    layout: Mapping[str, Any],
    microbatches: int,
    durations: Mapping[str, Any] | None = None,
    *,
    jitter: float | str = 0.0,
    seed: int = 0,
) -> Schedule:
    """Simulate a pipeline of durations that are given, in any unit.

    Args:
        layout: `pp`, `vpp` and `schedule` of `gpuscale.request.Layout`.
        microbatches: of a step.
        durations: `forward`, the forward pass of one microbatch on one rank, all its chunks (1); `backward`, with both
            gradients (twice the forward pass); `weight`, the part of it that is weight gradients (half of it); each a
            number, or one for each rank; `transfer` from one rank to the next (0), which blocks the sender, but with
            interleaving runs under its next chunk.
        jitter, seed: as those of `schedule`.

    Raises:
        InputError: a number out of range, a schedule that does not take these, or more slots than are simulated.
    """
    given = {name: value for name, value in (durations or {}).items() if value is not None}
    refuse_unknown(given, DURATIONS)
    other = next((name for name in layout if name not in PIPELINE), None)
    if other:
        raise InputError("says nothing without a model", field=other, hint="give `pp`, `vpp` and `schedule` alone")
    if not 1 <= microbatches <= MAX_MICROBATCHES:
        hint = f"give 1 to {MAX_MICROBATCHES:,}"
        raise InputError(f"{microbatches} is out of range", field="microbatches", hint=hint)
    asked = read(Layout, layout)
    code = parse_schedule(asked.schedule, asked.pp)
    chunks = asked.vpp or (2 if code == ZB_V else 1)
    pipeline = Pipeline(code, asked.pp, chunks, microbatches).checked()
    forward_s = _by_rank("forward", given.get("forward", 1.0), asked.pp)
    backward_s = _by_rank("backward", given.get("backward", 2.0 * forward_s), asked.pp)
    weight_s = _by_rank("weight", given.get("weight", backward_s / 2.0), asked.pp)
    if (weight_s > backward_s).any():
        hint = "the backward pass has both gradients, of which the weights' is a part"
        raise InputError("longer than the whole backward pass", field="weight", hint=hint)
    ones = dict.fromkeys(("tp", "cp", "ep", "etp", "dp", "shard", "micro_batch_size"), 1)
    none = dict.fromkeys(("sp", "zero", "recompute_modules", "recompute_layers"), 0)
    c = single(pp=asked.pp, vpp=chunks, num_microbatches=microbatches, schedule=code, **ones, **none)
    transfer_s = float(_by_rank("transfer", given.get("transfer", 0.0), 1)[0])
    shape = pipeline.chunks, asked.pp
    forward, backward, weight = (np.broadcast_to(one / chunks, shape) for one in (forward_s, backward_s, weight_s))
    found = Durations(forward, backward, weight, transfer_s, transfer_s if chunks == 1 else 0.0)
    return _described(c, found, _closed_forms(c, forward_s, backward_s, weight_s, found), (jitter, seed))


def _by_rank(name: str, value: Any, pp: int) -> FloatArray:
    parts: Any = value.split(",")[: pp + 1] if isinstance(value, str) else np.atleast_1d(value).tolist()
    each = replace(NUMBER, what="a number, or one for each rank", example=f"`{name}=1`")
    least = 0.0 if name in {"weight", "transfer"} else 1e-9
    found = np.array([each.read(part, name, least, LONGEST_S) for part in parts])
    if len(found) not in {1, pp}:
        hint = "give one, or one for each rank" if pp > 1 else "give one"
        raise InputError(f"{len(found)} numbers for {plural(pp, 'rank')}", field=name, hint=hint)
    return np.broadcast_to(found, (pp,))


def _closed_forms(
    c: Candidates, forward_s: FloatArray, backward_s: FloatArray, weight_s: FloatArray, durations: Durations
) -> dict[str, float]:
    both_s = forward_s + backward_s
    slowest = int(both_s.argmax())
    slowest_s, whole = both_s[[slowest]], [math.fsum(one.tolist()) for one in (both_s, backward_s, weight_s)]
    bubble_s = idle_s(c, whole[0] - slowest_s, whole[1] - backward_s[[slowest]], np.array([whole[2]]))
    transfers_s = exposed_hops_s(c, np.array([durations.transfer_s]), np.zeros(1), slowest_s)
    parts = {"bubble": float(bubble_s[0]), "transfers": float(transfers_s[0])}
    return {"pipeline": math.fsum([*parts.values(), float(slowest_s[0]) * int(c.num_microbatches[0])]), **parts}


def _described(
    c: Candidates,
    durations: Durations,
    closed: Mapping[str, float],
    noise: tuple[float | str, int],
    subject: Subject | None = None,
    passes: ChunkPasses | None = None,
) -> Schedule:
    jitter, seed = SHARE.read(noise[0], "jitter", 0, MAX_JITTER), noise[1]
    row = c.row(0)
    pipeline = Pipeline(row["schedule"], row["pp"], row["vpp"], row["num_microbatches"])
    pp = pipeline.pp
    timeline = simulate(pipeline, durations, jitter, seed)
    step_s, waits_s, loads = _loads(timeline, pp)
    held = tuple(float(levels.max(initial=0)) for _, levels in held_by_rank(timeline, pipeline))
    usual_held = microbatches_in_flight(c, np.arange(pp, dtype=np.float64)[:, None])[:, 0].tolist()
    unit = _time_step(durations, pipeline, float(timeline.spans(pp)[1].max()))
    edges = np.arange(math.ceil(timeline.end_s.max() / unit - 1e-6) + 1) * unit
    return Schedule(
        schedule=schedule_name(row),
        pipeline=pipeline,
        durations=durations,
        timeline=timeline,
        step_s=step_s,
        bubble_fraction=waits_s / step_s,
        active_share=tuple(np.clip(active_share(timeline, pp, edges), 0.0, 1.0).tolist()),
        time_step_s=unit,
        in_flight=held,
        ranks=tuple(RankLoad(rank, *load, held[rank], usual_held[rank]) for rank, load in enumerate(loads)),
        compared=_compared(pipeline, durations, closed, None if jitter else timeline),
        jitter=jitter,
        subject=subject,
        passes=passes,
        notes=subject.estimate.notes if subject else (),
    )


def _loads(timeline: Timeline, pp: int) -> tuple[float, float, list[tuple[float, float, float]]]:
    """Return the step, the busiest rank's idle time, and what each rank computes, sends and waits [s]."""
    start, end = timeline.spans(pp)
    step_s = float((end - start).max())
    busy = timeline.by_rank(timeline.end_s - timeline.start_s, pp)
    sending = timeline.by_rank(timeline.sending_s, pp)
    idle = np.maximum(step_s - busy - sending, 0.0)
    loads = list(zip(busy.tolist(), sending.tolist(), idle.tolist(), strict=True))
    return step_s, loads[int(busy.argmax())][2], loads


def _compared(
    pipeline: Pipeline, durations: Durations, closed: Mapping[str, float], timeline: Timeline | None
) -> tuple[SimulationCheck, ...]:
    """Hold the simulation (`timeline`, if there is one without jitter) against the closed forms."""
    step_s, waits_s, _ = _loads(timeline or simulate(pipeline, durations), pipeline.pp)
    alone_s = step_s
    if durations.transfer_s:
        alone = simulate(pipeline, durations._replace(transfer_s=0.0, blocking_s=0.0))
        alone_s, waits_s, _ = _loads(alone, pipeline.pp)
    found = {"pipeline": step_s, "bubble": waits_s, "transfers": step_s - alone_s}
    return tuple(SimulationCheck(name, value, closed[name]) for name, value in found.items())


def _time_step(durations: Durations, pipeline: Pipeline, span_s: float) -> float:
    """Return a length of which the durations are multiples, else that of a usual short slot."""
    inputs = durations.backward - durations.weight if pipeline.splits else durations.backward
    tables = [durations.forward, inputs, *([durations.weight] if pipeline.splits else [])]
    usual = min(float(np.median(table)) for table in tables if np.median(table) > 0)
    every = np.unique(np.concatenate([*(table.ravel() for table in tables), [durations.transfer_s]]))
    parts = (every / (usual / count) for count in (1, 2, 3, 4))
    fits = (count for count, ratio in enumerate(parts, 1) if (abs(ratio - np.rint(ratio)) < 1e-6).all())
    step = usual / next(fits, 1)
    return step * 2.0 ** max(0, math.ceil(math.log2(span_s / step / MAX_STEPS)))
