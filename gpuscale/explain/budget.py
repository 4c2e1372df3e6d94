"""What a GPU's memory is filled with, for a plan and for the plans around it: ZeRO, recomputation, TP with and without
SP; and what fills and empties one stage over a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.explain.schedule import beside_s, schedule
from gpuscale.launch.subject import Subject
from gpuscale.layouts.arrays import LAYERNORM, MLA_UP_PROJ, MLP, MOE_ACT
from gpuscale.layouts.pins import recompute_text, short_recompute
from gpuscale.memory.model import COMPONENTS, LIBRARY_BYTES, Memory, evaluate_memory, layer_sizes
from gpuscale.planning.neighbours import Change, Neighbour, ladder, neighbours, of_layout
from gpuscale.planning.plans import zero_contradicts
from gpuscale.ratios import signed
from gpuscale.results import PlanRow, Remedy
from gpuscale.rules.check import broken_rules
from gpuscale.search.evaluation import placed
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.pipeline import BACKWARD, FORWARD, WEIGHT
from gpuscale.units import GIB, plural

EVENTS = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weights"}

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
    time_s: float
    event: str
    microbatch: int | None
    in_flight: float
    share: float  # of the most that are ever held


def _slots(subject: Subject, stage: int) -> Iterator[_Slot]:
    """Yield what a rank does in a step, stretched to the predicted step time."""
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
        at = {name: size for name, size in self.peak.items() if name not in COMES_AND_GOES}
        passes, backward = slot.event in {"forward", "backward", "weights"}, slot.event == "backward"
        at["activations"] = self.peak["activations"] * slot.share
        at["logits"] = self.peak["logits"] * backward
        at["workspace"] = self.fixed + (self.peak["workspace"] - self.fixed) * backward
        at["gathered_parameters"] = self.peak["gathered_parameters"] * passes
        at["optimizer_step"] = self.step * (slot.event == "optimizer")
        return {name: at.get(name, 0.0) for name in COMPONENTS}

    def transient(self, at: Mapping[str, float]) -> float:
        return math.fsum(at[name] for name in COMES_AND_GOES if name != "fragmentation") - self.fixed


COMES_AND_GOES = ("activations", "logits", "workspace", "gathered_parameters", "optimizer_step", "fragmentation")


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


GROUPS = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer": ("master_weights", "optimizer_state"),
    "activations": ("activations",),
    "temporary": ("logits", "workspace", "gathered_parameters", "optimizer_step", "communication_buffers"),
    "fragmentation": ("fragmentation",),
    "reserve": ("nccl_buffers", "framework_reserve"),
}
"""Parts of a budget as people draw it up -> components of memory."""


@dataclass(frozen=True)
class BudgetRow:
    """One of the layouts: what its fullest stage holds, and what its step takes."""

    zero: int  #: ZeRO stage
    recompute: str  #: as in `gpuscale.plan/1`
    tp: int  #: tensor-parallel degree
    sp: bool  #: whether sequence parallelism is on
    #: what makes it of the layout asked about: option -> value; empty for that itself
    change: Mapping[str, str | int | bool]
    memory: Mapping[str, float]  #: component -> GiB at the fullest stage; they add up to `memory_gib`
    memory_gib: float  #: GiB per GPU at the fullest stage
    memory_limit_gib: float  #: GiB per GPU that may be in use at most
    fit: str  #: `fits`, `tight` or `no`
    peak_stage: int  #: the fullest stage, from 0
    step_time_s: float  #: seconds per optimizer step
    slower: float  #: step time over that of the layout asked about, less 1

    def groups(self) -> dict[str, float]:
        """Return the parts of the budget, by `GROUPS` [GiB]."""
        return {name: math.fsum(self.memory[part] for part in parts) for name, parts in GROUPS.items()}

    def name(self, asked: BudgetRow) -> str:
        """Name it by what is changed: `ZeRO-2`, `TP4+SP, norm+mlp`."""
        changed = self.differs(asked)
        texts = {
            "tp": f"TP{self.tp}{'+SP' if self.sp else ', no SP' if self.tp > 1 else ''}",
            "zero": f"ZeRO-{self.zero}",
            "recompute": "no recompute" if self.recompute == "none" else short_recompute(self.recompute),
        }
        return ", ".join(text for name, text in texts.items() if name in changed) or "as asked"

    def differs(self, other: BudgetRow) -> set[str]:
        """Return in what it is another layout: `zero`, `recompute`, `tp` (with SP)."""
        pairs = {
            "zero": (self.zero, other.zero),
            "recompute": (self.recompute, other.recompute),
            "tp": ((self.tp, self.sp), (other.tp, other.sp)),
        }
        return {name for name, (mine, its) in pairs.items() if mine != its}


@dataclass(frozen=True)
class Refused:
    """A layout that the framework does not run."""

    zero: int  #: ZeRO stage
    recompute: str  #: as in `gpuscale.plan/1`
    tp: int  #: tensor-parallel degree
    sp: bool  #: whether sequence parallelism is on
    rule: str  #: code of the first rule that it breaks
    reason: str  #: that rule as a sentence


@displayed
@dataclass(frozen=True)
class MemoryBudget:
    """The memory of a plan and of the plans around it."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    plan: PlanRow  #: the layout asked about, as in `gpuscale.estimate/1`
    comfortable_gib: float  #: up to where a layout `fits`: the limit less what fragmentation may take
    #: the layout asked about, then every combination of ZeRO stage, recomputation and TP with or without SP that the
    #: framework runs; all else is as asked
    rows: tuple[BudgetRow, ...]
    refused: tuple[Refused, ...]  #: combinations that it does not run
    facts: tuple[str, ...]  #: what the rows say, in words, the most telling first
    #: of a job of few GPUs, what it can give up to need less memory, the cheapest in time first
    ladder: tuple[Remedy, ...] = ()
    timeline: MemoryTimeline | None = None  #: memory over one step; null where it was not asked for
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`

    @property
    def asked(self) -> BudgetRow:
        """The row of the layout asked about."""
        return self.rows[0]


@public
def memory_budget(subject: Subject, timeline: MemoryTimeline | None = None) -> MemoryBudget:
    """Lay out the memory of a plan by component, beside ZeRO stages, ways to recompute, and TP with and without SP.

    Args:
        subject: the plan, from `gpuscale.read_subject`.
        timeline: its memory over one step (`gpuscale.memory_timeline`), which then goes with the answer.
    """
    spec, estimate = subject.spec, subject.estimate
    every = _distinct(subject)
    broken = ((one, one.broken[0]) for one in every if one.broken)
    found = MemoryBudget(
        model=estimate.model,
        cluster=estimate.cluster,
        gpus=estimate.gpus,
        plan=estimate.plan,
        comfortable_gib=spec.comfortable_bytes / GIB,
        rows=tuple(_row(one, every[0]) for one in every if not one.broken),
        refused=tuple(Refused(**_named(one.row), rule=rule.code, reason=rule.text) for one, rule in broken),
        facts=(),
        ladder=ladder(subject.job, subject.layout),
        timeline=timeline,
        notes=estimate.notes,
    )
    return replace(found, facts=tuple(_facts(found)))


def _distinct(subject: Subject) -> list[Neighbour]:
    """Return the layout asked about and those beside it; rules that it breaks itself do not count."""
    changes, broken = _changes(subject), broken_rules(subject.rows, subject.spec)
    found: dict[tuple[Any, ...], Neighbour] = {}
    for one in neighbours(subject.job, subject.layout, changes, forgiven=broken):
        if not one.change.options or zero_contradicts(subject.job, one.row["zero"]) is None:
            found.setdefault(tuple(_named(one.row).values()), one)
    return list(found.values())


def _changes(subject: Subject) -> Iterator[Change]:
    """Yield what is changed for each layout, nothing for the one asked about."""
    spec, own = subject.spec, subject.rows.row(0)
    now, split = _named(own), own["etp"] == own["tp"]  # experts are split as the rest is
    degrees = [one for one in (own["tp"] // 2, own["tp"], 2 * own["tp"]) if one]
    tensor = [(tp, sp) for tp in degrees for sp in ((False, True) if tp > 1 else (False,))]
    stages = range(4) if spec.gpus > 1 else (own["zero"],)  # one GPU shares with nobody
    yield of_layout()
    for (tp, sp), way, zero in product(tensor, _ways(spec, own), stages):
        wanted = {"zero": zero, "recompute": way, "tp": tp, "sp": sp}
        change = {name: value for name, value in wanted.items() if value != now[name]}
        if "tp" in change:
            change |= {"sp": sp} | ({"etp": tp if split else own["etp"]} if spec.model.is_moe else {})
        yield of_layout(**change)


def _ways(spec: JobSpec, own: Mapping[str, int]) -> list[str]:
    if spec.runtime.selective_share:
        selective = "selective"
    else:
        latent = any(attention.latent is not None for attention in spec.model.attentions)
        selective = recompute_text(LAYERNORM | (MOE_ACT if spec.model.is_moe else MLP) | MLA_UP_PROJ * latent, 0)
    return list(dict.fromkeys((_recompute(own), "none", selective, "full")))


def _recompute(row: Mapping[str, int]) -> str:
    return recompute_text(row["recompute_modules"], row["recompute_layers"])


def _named(row: Mapping[str, int]) -> dict[str, Any]:
    return {"zero": row["zero"], "recompute": _recompute(row), "tp": row["tp"], "sp": bool(row["sp"])}


def _row(one: Neighbour, own: Neighbour) -> BudgetRow:
    done = one.evaluation
    assert done is not None
    place = int(done.memory.by_stage[:, one.at].argmax())
    return BudgetRow(
        **_named(one.row),
        change=one.change.options,
        memory={name: size / GIB for name, size in done.memory.at_peak(one.at).items()},
        memory_gib=one.memory_gib,
        memory_limit_gib=one.spec.memory_limit_bytes / GIB,
        fit=one.fit,
        peak_stage=int(done.stages.position[done.stage_row[one.at], place]),
        step_time_s=one.step_time_s,
        slower=one.step_time_s / own.step_time_s - 1,
    )


WORTH_A_WORD = 0.01
"""Share of the step or of the memory below which a difference is not mentioned (a choice)."""


def _facts(budget: MemoryBudget) -> Iterator[str]:
    asked = budget.asked
    single = [row for row in budget.rows if len(row.differs(asked)) == 1]
    smaller = sorted((row for row in single if row.memory_gib < asked.memory_gib), key=lambda row: row.memory_gib)
    best = min((row for row in budget.rows if row.fit == "fits"), key=lambda row: row.step_time_s, default=None)
    if best is None:
        yield "none of these layouts fits"
    elif asked.fit != "fits":
        yield f"{best.name(asked)} fits: {best.memory_gib:.1f}, {_time(best)}"
    for row in (row for row in single if row.tp == asked.tp and row.sp != asked.sp):
        yield f"with{'' if row.sp else 'out'} SP it would need {row.memory_gib:.1f}"
    for row in [row for row in smaller if row.zero > asked.zero][:1]:
        yield f"ZeRO-{row.zero} {_trade(row, asked)}"
    for row in [row for row in smaller if row.recompute != asked.recompute][:1]:
        yield f"recomputing {short_recompute(row.recompute).partition(' ')[0]} {_trade(row, asked)}"
    for row in (row for row in single if row.recompute == "none" != asked.recompute):
        yield f"without recomputation it would need {row.memory_gib:.1f}, {_time(row)}"
    if best and best is not asked and asked.fit == "fits" and best.slower < -WORTH_A_WORD:
        yield f"fastest here: {best.name(asked)}, {best.memory_gib:.1f}, {_time(best)}"


def _time(row: BudgetRow) -> str:
    return f"{signed(row.slower, 0)} time"


def _trade(row: BudgetRow, asked: BudgetRow) -> str:
    return f"saves {asked.memory_gib - row.memory_gib:.1f}, {_time(row)}"
