"""What would change the step time: single changes of a plan, each evaluated as `estimate` does it.

All that the framework and the GPU can do is tried, one at a time; what is said of a change is found by comparing the
two breakdowns, nothing is known in advance of what should help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuscale.choices import DISPATCHERS
from gpuscale.errors import InputError
from gpuscale.launch.subject import Subject
from gpuscale.layouts.pins import recompute_text
from gpuscale.layouts.space import divisors
from gpuscale.planning.jobs import Presets, build_job, models_of
from gpuscale.planning.neighbours import Change, Neighbour, neighbours, recomputed
from gpuscale.planning.planfile import replaced
from gpuscale.planning.plans import zero_contradicts
from gpuscale.planning.variants import settings_to_try
from gpuscale.presets.frameworks import load_framework
from gpuscale.ratios import signed
from gpuscale.request import OPTIONS, JobOptions, declared, overlap_name, overlap_of, read, schedule_text
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS

LEAST_GAIN = 0.01
"""Gain below which a change is none to make: well inside what the model can tell apart."""

SHOWN = 3

WORTH_SAYING = 0.005
"""Share of the step by which a component must change to be named as the effect of a change."""

Spelling = Callable[[Mapping[str, Any]], tuple[str, ...]]


def unspelled(_: Mapping[str, Any]) -> tuple[str, ...]:
    """No command: only `gpuscale.cli` knows flags."""
    return ()


CAUTIONS = {
    "gbs": "a different batch size changes training: check that it still converges as fast per token",
    "precision": "different numerics: check the loss against a run in the current precision",
    "grad_dtype": "gradients are summed with fewer bits: check the loss",
    "cuda_graphs": "needs static shapes, and memory that is not counted here",
}
"""Option -> what the step time does not say of changing it."""


@dataclass(frozen=True)
class Suggestion:
    """A change of a plan, evaluated."""

    change: str  #: the change and its effect in words.
    command: tuple[str, ...]  #: arguments of the call of gpuscale that gives the same step time.
    step_time_s: float  #: seconds per optimizer step with it.
    gain: float  #: tokens per second over those without it, less 1.
    memory_gib: float  #: GiB per GPU with it.
    fit: str  #: whether it then `fits`, is `tight` or (`no`) does not.
    caution: str  #: what the step time does not say of it; empty where there is nothing.
    options: Mapping[str, Any]  #: options of `estimate` that ask for it, by name.


@dataclass(frozen=True)
class Rejected:
    """A change that is not worth making."""

    kind: str  #: what is changed: `tp`, `zero`, `microbatch`, ...
    change: str  #: the change in words.
    why: str  #: what it costs, why it does not fit, or which rule forbids it.
    gain: float | None  #: tokens per second over those without it, less 1; null where it cannot run.


class Changes(NamedTuple):
    """All single changes of a plan."""

    subject: Subject
    now: Neighbour
    every: tuple[Neighbour, ...]  #: the changes, evaluated; one that asks for what is there already is left out.

    def gain(self, one: Neighbour) -> float:
        """Tokens per second with a change over those without it, less 1."""
        tokens = one.spec.tokens_per_step / self.now.spec.tokens_per_step
        return tokens * self.now.step_time_s / one.step_time_s - 1

    def may_run(self, one: Neighbour) -> bool:
        """Whether a change is legal, and fits at least as well as the plan."""
        return not one.broken and one.fits_as("tight" if self.now.fit == "no" else self.now.fit)

    def pays(self, one: Neighbour) -> bool:
        """Whether a change may run and gains; of a plan that does not fit, whether it then fits."""
        return self.may_run(one) and (self.now.fit == "no" or self.gain(one) >= LEAST_GAIN)


def changes_of(subject: Subject) -> Changes:
    """Evaluate all single changes of a plan."""
    row = subject.rows.row(0)
    found = neighbours(subject.job, subject.layout, [Change(()), *_of_job(subject), *_of_layout(subject.spec, row)])
    now = next(one for one in found if not one.change.kind)
    if now.broken:  # it was asked for despite the rules
        done, plan = subject.evaluation, subject.estimate.plan
        now = now._replace(fit=plan.fit, memory_gib=plan.memory_gib, step_time_s=plan.step_time_s)
        now = now._replace(seconds=done.step.components[:, 0])
    found = [one for one in found if one.change.kind and zero_contradicts(subject.job, one.row["zero"]) is None]
    others = (one for one in found if one.row != now.row or one.spec != now.spec)
    return Changes(subject, now, tuple(others))


def _of_job(subject: Subject) -> Iterator[Change]:
    """Yield changes of the job, without those that only shorten what is not worth it; some change nothing."""
    spec, request, plan = subject.spec, subject.job.request, subject.estimate.plan
    seconds, worth_s = subject.estimate.breakdown, LEAST_GAIN * plan.step_time_s
    framework = load_framework(str(request["framework"]))
    between_s = math.fsum(seconds[name] for name in COMMUNICATION)
    pays = {"offload": False, "axis_order": between_s >= worth_s, "overlap": between_s >= worth_s}
    pays |= {"dispatcher": False, "cuda_graphs": False}  # below, whatever the framework
    pays |= {"grad_reduce": plan.zero >= 2, "moment_dtype": plan.zero > 0 and seconds["optimizer"] >= worth_s}
    yield Change(("gbs",), {"gbs": 2 * spec.global_batch_size})
    for name, values in settings_to_try(framework, spec.model, spec.cluster).items():
        if name == "schedule":
            yield from (Change((name,), {}, {name: value}) for value in values if plan.pp > 1)
        elif pays.get(name, True) and (not OPTIONS[name].needs or getattr(plan, OPTIONS[name].needs) > 1):
            yield from (Change((name,), {name: value}) for value in values)
    if seconds["ep_comm"] + seconds["launch"] >= worth_s:
        yield from (Change(("dispatcher",), {"dispatcher": name}) for name in DISPATCHERS)
    if seconds["launch"] >= worth_s:
        known = not spec.model.is_moe or spec.runtime.routing == "dropping"  # the CPU need not wait for sizes
        kinds = ("partial", "full") if known else ("partial",)
        yield from (Change(("cuda_graphs",), {"cuda_graphs": name}) for name in kinds)
    if between_s >= worth_s:
        yield from (Change((name,), {name: "on"}) for name in ("sharp", "nvls"))
    if spec.runtime.compile is False:
        yield Change(("compile",), {"compile": "on"})
    wide = spec.states.gradient > 2 and not spec.runtime.memory.master_is_weight
    if wide and seconds["dp_comm"] + seconds["optimizer"] >= worth_s:
        yield Change(("grad_dtype",), {"grad_dtype": "fp16" if spec.precision == "fp16" else "bf16"})


def _of_layout(spec: JobSpec, row: Mapping[str, int]) -> Iterator[Change]:
    """Yield changes of a layout, also such as break a rule or change nothing."""
    per_stage = -(-spec.model.layers // row["pp"])
    halves = {name: {name: row[name] // 2} for name in ("tp", "pp", "cp", "ep") if row[name] % 2 == 0}
    twice = {name: {name: 2 * row[name]} for name in ("tp", "pp", "cp")}
    twice |= {"ep": {"ep": 2 * row["ep"]}} if spec.model.is_moe else {}
    for degrees in (halves, twice):
        yield from (Change((name,), {}, one) for name, one in degrees.items())
    for more, less in (("tp", "pp"), ("pp", "tp"), ("tp", "cp"), ("cp", "tp")):
        if less in halves:  # as many GPUs share a copy of the model as now
            yield Change((more, less), {}, {**twice[more], **halves[less]})
    if row["vpp"] % 2 == 0:
        yield Change(("pp",), {}, {**twice["pp"], "vpp": row["vpp"] // 2})
    if "pp" in halves and row["vpp"] > 1:
        yield Change(("pp",), {}, {**halves["pp"], "vpp": 2 * row["vpp"]})
    for chunks in divisors(per_stage).tolist():
        yield Change(("vpp",), {}, {"vpp": chunks})
    sizes = (2 * row["micro_batch_size"], 4 * row["micro_batch_size"], row["micro_batch_size"] // 2)
    yield from (Change(("microbatch",), {}, {"micro_batch_size": size}) for size in sizes if size)
    yield from (change for change, _ in recomputed(spec, row))
    yield from (Change(("zero",), {}, {"zero": stage}) for stage in range(4))
    if row["tp"] > 1:
        yield Change(("sp",), {}, {"sp": "off" if row["sp"] else "on"})
    if spec.model.is_moe and row["tp"] > 1:
        yield Change(("etp",), {}, {"etp": 1 if row["etp"] > 1 else row["tp"]})


def suggestions(changes: Changes, spelled: Spelling) -> tuple[Suggestion, ...]:
    """Return the most profitable changes, the best of each kind, at most `SHOWN`; of a plan that does not fit those
    with which it does, also slower ones."""
    able = [one for one in changes.every if changes.pays(one)]
    best: dict[tuple[str, ...], Neighbour] = {}
    for one in sorted(able, key=lambda one: (-changes.gain(one), len(one.options))):
        best.setdefault(one.change.kind, one)
    return tuple(_suggestion(changes, one, spelled) for one in list(best.values())[:SHOWN])


def _suggestion(changes: Changes, one: Neighbour, spelled: Spelling) -> Suggestion:
    gain, options = changes.gain(one), _all_options(changes.subject, one)
    effect = ", ".join([*effects(changes.now, one), f"{signed(gain)} tokens/s"])
    caution = next((text for name, text in CAUTIONS.items() if name in one.change.job), "")
    said, command = f"{change_text(changes, one)}: {effect}", spelled(options)
    return Suggestion(said, command, one.step_time_s, gain, one.memory_gib, one.fit, caution, options)


def rejected(changes: Changes, names: Sequence[str]) -> tuple[Rejected, ...]:
    """Say of kinds of changes (`tp`, `zero`, ...), of each the nearest one, why they are not worth making."""

    def order(one: Neighbour) -> tuple[bool, bool, float]:
        return bool(one.broken), not changes.may_run(one), -changes.gain(one) if not one.broken else 0.0

    found: list[Rejected] = []
    for name in names:
        sides: dict[bool, list[Neighbour]] = {}  # with more of it than now, and with less
        for one in changes.every:
            if one.change.kind == (name,):
                sides.setdefault(one.row.get(name, 0) > changes.now.row.get(name, 0), []).append(one)
        nearest = [min(same, key=order) for same in sides.values()]
        against = [one for one in nearest if not changes.pays(one)]
        found += [Rejected(name, change_text(changes, one), *_against(changes, one)) for one in against]
    return tuple(found)


def _against(changes: Changes, one: Neighbour) -> tuple[str, float | None]:
    if one.broken:
        return f"cannot run: {one.broken[0].text}", None
    gain = changes.gain(one)
    if not changes.may_run(one):
        limit = one.spec.memory_limit_bytes / 2**30
        what = "does not fit" if one.fit == "no" else "leaves no room for fragmentation"
        return f"{what}: {one.memory_gib:.1f} of {limit:.1f} GiB (else {signed(gain)} tokens/s)", gain
    said = ", ".join(effects(changes.now, one))
    return f"{signed(gain)} tokens/s" + (f": {said}" if said else ""), gain


def effects(now: Neighbour, one: Neighbour) -> list[str]:
    """Say what a change makes less and more of per token, as shares of both steps, what changes most first."""
    per_token = now.spec.tokens_per_step / one.spec.tokens_per_step
    moved = (one.seconds * per_token - now.seconds) / now.step_time_s
    order = [int(index) for index in np.argsort(-np.abs(moved), kind="stable") if abs(moved[index]) >= WORTH_SAYING]
    found = []
    for index in order[:2]:
        name = list(COMPONENTS.values())[index].text
        before, after = (round(100 * float(each.seconds[index]) / each.step_time_s) for each in (now, one))
        as_shares = (after - before) * moved[index] > 0  # both may rise where others fall
        found.append(f"{name} {before} -> {after}%" if as_shares else f"{name} {signed(moved[index])} of the step")
    return found


def change_text(changes: Changes, one: Neighbour) -> str:
    """A change in words: `tp 8 -> 4`, `gbs 1536 -> 3072`."""
    words = {name: OPTIONS[name].word or name for name in one.change.options}
    return ", ".join(f"{word} {_value(changes.now, name)} -> {_value(one, name)}" for name, word in words.items())


def _value(one: Neighbour, name: str) -> str:
    row, spec = one.row, one.spec
    if name == "recompute":
        return recompute_text(row["recompute_modules"], row["recompute_layers"])
    if name == "schedule":
        return schedule_text(row["schedule"])
    if name == "sp":
        return "on" if row["sp"] else "off"
    if name in row:
        return str(row[name])
    moment = spec.states.second_moment or spec.states.moments
    own: dict[str, Any] = {
        "gbs": spec.global_batch_size,
        "precision": f"{spec.precision}" + (f" ({spec.recipe})" if spec.precision in {"fp8", "fp4"} else ""),
        "overlap": overlap_name(overlap_of(spec.runtime)),
        "axis_order": "-".join(spec.axis_order),
        "grad_dtype": {4.0: "fp32", 2.0: "16 bits"}.get(spec.states.gradient, f"{spec.states.gradient:g} bytes"),
        "moment_dtype": {4.0: "fp32", 2.0: "16 bits", 1.0: "fp8"}.get(moment, f"{moment:g} bytes"),
        "sharp": "on" if spec.cluster.sharp else "off",
        "nvls": "on" if spec.cluster.nvls else "off",
        "compile": "on" if spec.runtime.compile else "off",
    }
    return str(own[name] if name in own else getattr(spec.runtime, name))


def _all_options(subject: Subject, one: Neighbour | None = None) -> dict[str, Any]:
    """Return the fewest options of `estimate` that ask for a plan, or for it with a change."""
    request = dict(subject.job.request)
    own = ("model", "gpus", "cluster", "framework", "set")
    needed: dict[str, Any] = {name: request[name] for name in own if name in request}
    if needed["framework"] == declared(JobOptions)["framework"].default:
        del needed["framework"]
    plain = _request(subject, needed)
    kept = needed | {name: value for name, value in request.items() if plain.get(name) != value}
    if _request(subject, kept) != request:  # one of them decides what another is by default
        kept = request
    layout = dict(subject.layout)
    if one is not None:
        kept |= one.change.job
        layout = replaced(layout, {name: value for name, value in one.options.items() if name not in one.change.job})
    return {**kept, **layout}


def _request(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    presets = Presets(models_of(subject.spec, options))
    try:
        return build_job(read(JobOptions, options), presets).request
    except InputError:
        return {}
