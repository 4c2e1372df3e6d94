"""Memory of one pipeline stage over a step: forward passes fill it, backward passes empty it, then the update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.explain.schedule import beside_s, schedule
from gpuscale.launch.subject import Subject
from gpuscale.memory.model import COMPONENTS, LIBRARY_BYTES, Memory, evaluate_memory, layer_sizes
from gpuscale.search.evaluation import placed
from gpuscale.steptime.pipeline import BACKWARD, FORWARD, WEIGHT
from gpuscale.units import GIB, plural

EVENTS = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weights"}
"""Kind of slot -> what it is called here."""

AFTER = {"gradients": ("dp_comm",), "optimizer": ("optimizer", "offload")}
"""What follows the pipeline -> components of the step time that it takes; ZeRO-3 reduces and gathers all along."""

GAP = 1e-3
"""Share of the step from which waiting is said."""


@dataclass(frozen=True)
class Moment:
    """What a stage holds from one moment of a step to the next."""

    time_s: float  #: seconds since the step began
    #: what runs from then on: `forward`, `backward`, `weights` (gradients of the weights in a slot of their own),
    #: `waiting`, `gradients` (they are summed and reduced) or `optimizer`
    event: str
    microbatch: int | None  #: which one, from 0; null where it is none
    in_flight: float  #: microbatches whose activations are held, in units of the whole stage
    memory_gib: float  #: GiB in use
    memory: Mapping[str, float]  #: component -> GiB; they add up to `memory_gib`


@displayed
@dataclass(frozen=True)
class MemoryTimeline:
    """The memory of a stage over one step."""

    stage: int  #: the stage, from 0
    schedule: str  #: of the pipeline, as in `gpuscale.plan/1`
    step_time_s: float  #: when the step ends
    peak_gib: float  #: the most that is in use, which is what is predicted for the stage
    peak_event: str  #: what runs when it first is
    peak_time_s: float  #: when that is
    moments: tuple[Moment, ...]  #: what changes when, in order


@public
def memory_timeline(subject: Subject, stage: int | None = None) -> MemoryTimeline:
    """Follow the memory of a stage over one step, by the simulated schedule of the pipeline.

    States, buffers and what the allocator does not see are there all the time. Activations come with each forward pass
    and go with its backward pass; logits, gradients inside a layer and gathered parameters are there during a pass.
    What the allocator loses to fragmentation it keeps from then on.

    Args:
        subject: the plan, from `gpuscale.read_subject`.
        stage: the stage, from 0; the fullest one where none is given.

    Raises:
        InputError: a stage that there is not, or a pipeline that is not simulated.
    """
    plan, (c, job) = subject.estimate.plan, (subject.rows, subject.spec)
    chosen = plan.peak_stage if stage is None else stage
    if not 0 <= chosen < plan.pp:
        message = f"{chosen} is none of {plural(plan.pp, 'stage')}"
        raise InputError(message, field="stage", hint=f"give 0 to {plan.pp - 1}")
    stages, row, parameters = placed(c, job, every=True)
    column = stages.position[row[0]].tolist().index(chosen)
    parts = _parts(subject, evaluate_memory(c, job, stages, row, parameters), column)
    moments: list[Moment] = []
    most = 0.0  # of what comes and goes, so far
    for slot in _slots(subject, chosen):
        at = parts.at(slot)
        most = max(most, parts.transient(at))
        at["fragmentation"] = parts.peak["fragmentation"] * min(1.0, most / parts.most)
        sizes = {name: size / GIB for name, size in at.items()}
        total = math.fsum(sizes.values())
        moments.append(Moment(slot.time_s, slot.event, slot.microbatch, slot.in_flight, total, sizes))
    peak = max(moments, key=lambda one: one.memory_gib)
    at_peak = (peak.memory_gib, peak.event, peak.time_s)
    return MemoryTimeline(chosen, plan.schedule, plan.step_time_s, *at_peak, tuple(moments))


class _Slot(NamedTuple):
    """From when on what runs, and the microbatches that are then held."""

    time_s: float
    event: str
    microbatch: int | None
    in_flight: float
    share: float  # of the most that are ever held


def _slots(subject: Subject, stage: int) -> Iterator[_Slot]:
    """Yield what a rank does in a step, stretched to the step time that is predicted."""
    found, plan = schedule(subject), subject.estimate.plan
    lines, beside = found.timeline, beside_s(subject)
    step_s = plan.step_time_s
    after = {name: math.fsum(beside[one] for one in parts) for name, parts in AFTER.items()}
    if plan.zero == 3:
        del after["gradients"]
    pipeline_s = step_s - math.fsum(after.values())
    stretch = pipeline_s / float((lines.end_s + lines.sending_s).max())
    mine = np.flatnonzero(lines.rank == stage)
    mine = mine[np.argsort(lines.start_s[mine], kind="stable")]
    last = WEIGHT if found.pipeline.splits else BACKWARD
    most, held, until = found.in_flight[stage] or 1.0, 0.0, 0.0

    def slot(time_s: float, event: str, microbatch: int | None = None) -> _Slot:
        return _Slot(time_s, event, microbatch, max(held, 0.0), max(held, 0.0) / most)

    for index in mine.tolist():
        start_s, end_s = float(lines.start_s[index]) * stretch, float(lines.end_s[index]) * stretch
        kind = int(lines.kind[index])
        if start_s > until + GAP * step_s:
            yield slot(until, "waiting")
        if kind == FORWARD:
            held += 1 / found.pipeline.vpp
        yield slot(start_s, EVENTS[kind], int(lines.microbatch[index]))
        if kind == last:
            held -= 1 / found.pipeline.vpp
        until = end_s
    if pipeline_s > until + GAP * step_s:
        yield slot(until, "waiting")
    held, now = 0.0, pipeline_s
    for event, time_s in after.items():
        yield slot(now, event)
        now += time_s


class _Parts(NamedTuple):
    """Memory of a stage at its peak, taken apart by when it is there [bytes]."""

    peak: Mapping[str, float]  #: component -> bytes.
    fixed: float  #: what of `workspace` is there all the time.
    step: float  #: what the optimizer step needs besides the states.
    most: float  #: the most that comes and goes, in the passes or the optimizer step.

    def at(self, slot: _Slot) -> dict[str, float]:
        """Return what is held while a slot runs, but for fragmentation."""
        at = {name: size for name, size in self.peak.items() if name not in COMES_AND_GOES}
        passes, backward = slot.event in {"forward", "backward", "weights"}, slot.event == "backward"
        at["activations"] = self.peak["activations"] * slot.share
        at["logits"] = self.peak["logits"] * backward
        at["workspace"] = self.fixed + (self.peak["workspace"] - self.fixed) * backward
        at["gathered_parameters"] = self.peak["gathered_parameters"] * passes
        at["optimizer_step"] = self.step * (slot.event == "optimizer")
        return {name: at.get(name, 0.0) for name in COMPONENTS}

    def transient(self, at: Mapping[str, float]) -> float:
        """Return what of it comes and goes."""
        return math.fsum(at[name] for name in COMES_AND_GOES if name != "fragmentation") - self.fixed


COMES_AND_GOES = ("activations", "logits", "workspace", "gathered_parameters", "optimizer_step", "fragmentation")
"""Components that are not there all the time."""


def _parts(subject: Subject, memory: Memory, column: int) -> _Parts:
    peak = {name: _of(memory, name, column) for name in COMPONENTS}
    sizes = layer_sizes(subject.rows, subject.spec)
    fixed = float(np.max(sizes.cut.of(sizes.placeholders))) + LIBRARY_BYTES
    states = ("weights", "gradients", "master_weights", "optimizer_state", "communication_buffers")
    held = math.fsum(peak[name] for name in states)
    step = max(_of(memory, "at_optimizer_step", column) - held - fixed, 0.0)
    passes = math.fsum(peak[name] for name in ("activations", "logits", "workspace", "gathered_parameters")) - fixed
    return _Parts(peak, fixed, step, max(passes, step, 1.0))


def _of(memory: Memory, name: str, column: int) -> float:
    return float(np.broadcast_to(getattr(memory, name), memory.by_stage.shape)[column, 0])
