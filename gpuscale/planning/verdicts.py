"""What to say when there is no plan, and the answer to `--why`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
from gpuscale.layouts.arrays import DUALPIPE, ONE_F_ONE_B, SCHEDULES, ZB_V, Candidates
from gpuscale.layouts.pins import Pins, recompute_text
from gpuscale.planning.describe import describe
from gpuscale.planning.jobs import Job
from gpuscale.planning.layouts import fixed_layout, flag_of, make_pins
from gpuscale.planning.legality import illegal, rule_text
from gpuscale.results import Estimate, WhyAnswer
from gpuscale.rules.check import broken_rules
from gpuscale.search import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, Scored, SearchResult, evaluate, score, search
from gpuscale.search.objectives import Constraints
from gpuscale.specs.cluster import MAX_GPUS
from gpuscale.specs.job import JobSpec
from gpuscale.units import GIB

PINNED_OUT = "pinned_out"
"""Reason code of a layout that the user's own pins exclude."""


def nothing_legal(job: JobSpec, pins: Pins, found: SearchResult) -> GpuscaleError:
    """The error when no candidate is legal: which rules cut them, or that the degrees do not multiply."""
    if not found.generated:
        return InputError(
            f"no layout of {job.gpus} GPUs has these values",
            place=pins_text(pins) or "layout",
            hint=_schedule_hint(pins.schedule)
            or "TP x PP x CP x DP must equal --gpus, and EP, ETP and the microbatch must divide what they split",
        )
    rows = _pinned_layout(job, pins)
    broken = broken_rules(rows, job) if rows else []
    hint = "loosen the pinned values" if pins.degrees or pins.recompute else "choose another --framework"
    if rows and broken:
        return illegal(rows, job, broken, pins_text(pins) or job.model.name, hint)
    reasons = "; ".join(f"{rule_text(code, job)}: {count}" for code, count in _most_frequent(found.rejected))
    message = f"none of {found.generated} layouts is legal for {job.model.name} on {job.gpus} GPUs: {reasons}"
    return InputError(message, place=pins_text(pins) or None, hint=hint)


def _schedule_hint(schedule: int) -> str:
    """What layouts a schedule takes; nothing of 1F1B, which takes all."""
    if schedule == ONE_F_ONE_B:
        return ""
    chunks, stages = ("VPP 2" if schedule == ZB_V else "VPP 1"), ("an even" if schedule == DUALPIPE else "a")
    name = next(name for name, code in SCHEDULES.items() if code == schedule)
    return f"{name} takes {stages} PP above 1 with {chunks}; without --schedule all layouts are searched"


def _pinned_layout(job: JobSpec, pins: Pins) -> Candidates | None:
    """The layout of the pinned single values, other degrees at their defaults; None where these do not go together."""
    values = {name: pin.single() for name, pin in pins.degrees.items()}
    try:
        return fixed_layout(job, {name: value for name, value in values.items() if value is not None})
    except InputError:
        return None


def _most_frequent(rejected: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(rejected.items(), key=lambda item: (-item[1], item[0]))


def nothing_fits(job: Job, pins: Pins, found: SearchResult) -> NoAnswerError:
    """The error when nothing fits: the candidate that came closest, by how much, and what would make it fit."""
    assert found.nearest_miss is not None
    rows = found.nearest_miss.rows
    closest = describe(job, rows, evaluate(rows, job.spec), 0, rank=1, variants=1)
    largest = sorted(closest.memory.items(), key=lambda item: -item[1])[:2]
    parts = " and ".join(f"{name.replace('_', ' ')} {gib:.1f} GiB" for name, gib in largest)
    limit = job.spec.memory_limit_bytes / GIB
    message = (
        f"no layout of {job.spec.model.name} fits on {job.spec.gpus} x {job.spec.cluster.gpu.title}: "
        f"the nearest miss, {layout_text(rows.row(0))}, needs {closest.plan.memory_gib:.1f} GiB of {limit:.1f} GiB "
        f"({parts})"
    )
    host_bytes = float(found.nearest_miss.host_bytes[0])
    if host_bytes > job.spec.host_limit_bytes:
        return NoAnswerError(
            f"no layout of {job.spec.model.name} fits: the nearest miss, {layout_text(rows.row(0))}, "
            f"{_host_text(job.spec, host_bytes)}",
            hint="offload less (--offload), take more GPUs, or hosts with more memory",
        )
    return NoAnswerError(message, hint=_what_would_fit(job, pins, closest.plan.memory_gib))


def _host_text(spec: JobSpec, host_bytes: float) -> str:
    """What a host would have to hold, and what it may."""
    return (
        f"offloads {host_bytes / GIB:,.0f} GiB to each host, which has room for {spec.host_limit_bytes / GIB:,.0f} GiB"
    )


def _what_would_fit(job: Job, pins: Pins, needed_gib: float) -> str:
    options = [f"GPUs with {math.ceil(needed_gib):,} GiB usable"]
    gpus = _smallest_fitting(job.spec, pins)
    if gpus is not None:
        options.insert(0, f"{gpus} GPUs (the global batch kept a multiple of them)")
    if pins.degrees or pins.recompute:
        options.append("fewer pinned values")
    options.append("a shorter --seq, or smaller state dtypes (--grad-dtype bf16, --moment-dtype bf16)")
    return "it would fit with " + ", or ".join(options)


def _smallest_fitting(job: JobSpec, pins: Pins) -> int | None:
    """The first of 2, 4, 8, ... times as many GPUs with which something fits."""
    for factor in (2, 4, 8, 16, 32):
        gpus = job.gpus * factor
        if gpus > MAX_GPUS or (gpus > job.cluster.gpus and not job.cluster.extendable):
            return None
        batch = -(-job.global_batch_size // gpus) * gpus
        bigger = replace(job, gpus=gpus, cluster=job.cluster.sized_for(gpus)[0], global_batch_size=batch)
        if search(bigger, pins, "memory").feasible:
            return gpus
    return None


@dataclass(frozen=True)
class Asked:
    """A layout to account for, in the search of one job."""

    job: Job
    layout: Mapping[str, str]
    pins: Pins
    objective: str
    limits: Constraints | None = None

    @property
    def wanted(self) -> Pins:
        """The layout as pins, under the schedule that is searched unless it names one."""
        pins = make_pins(self.layout)
        return pins if "schedule" in self.layout else replace(pins, schedule=self.pins.schedule)

    def among_plans(self) -> SearchResult | None:
        """Search for its variants among the plans of the job; None where there are none."""
        if self.wanted.schedule != self.pins.schedule:
            return None
        inside = search(self.job.spec, self.pins.narrowed(self.wanted), self.objective, limits=self.limits)
        return inside if inside.feasible else None

    def anywhere(self) -> SearchResult:
        """Search for its variants whatever else is pinned or bounded."""
        return search(self.job.spec, self.wanted, self.objective)


def answer_why(ask: Asked, found: SearchResult, first: Estimate) -> WhyAnswer:
    """Account for a layout: its rank and numbers, how much it lacks, or the rules that reject it.

    Args:
        first: the plan that it is compared with, the first of those shown.
    """

    def rank_of(own: float) -> tuple[int, int]:
        families, every = (np.searchsorted(scores, own) for scores in (found.families.score, found.scores))
        return 1 + int(families), 1 + int(every)

    return account_for(ask, first, rank_of)


def account_for(ask: Asked, first: Estimate, rank_of: Callable[[float], tuple[int, int]]) -> WhyAnswer:
    """Account for a layout beside the first plan.

    Args:
        rank_of: from a score to the rank among families, and among all that fit.
    """
    job, asked, objective = ask.job, ask.layout, ask.objective
    text = ",".join(f"{name}={value}" for name, value in asked.items())
    inside = ask.among_plans() or ask.anywhere()
    best_time = first.plan.step_time_s
    scored, reasons = _asked_variant(job.spec, asked, inside, objective)
    if scored is None:
        return WhyAnswer(text, "illegal", None, None, None, None, {}, first.breakdown, reasons)
    fits = bool(scored.fits(job.spec)[0])
    rows = scored.rows.take(np.arange(1))
    estimate = describe(job, rows, evaluate(rows, job.spec), 0, rank=1, variants=max(1, inside.feasible))
    rank, rank_of_all = rank_of(float(scored.score[0])) if fits else (None, None)
    plan = replace(estimate.plan, rank=rank or 0)
    over = plan.memory_gib - plan.memory_limit_gib
    reasons = {} if fits else {OUT_OF_MEMORY: f"its smallest variant is {over:.1f} GiB over the limit"}
    if over <= 0 and not fits:
        reasons = {OUT_OF_HOST_MEMORY: _host_text(job.spec, float(scored.host_bytes[0]))}
    excluded = _excluding(ask, rows)
    if excluded:
        reasons[PINNED_OUT] = f"{', '.join(excluded)} exclude{'s' * (len(excluded) == 1)} it from the plans"
    if ask.limits is not None and fits:
        broken: dict[str, int] = {}
        ask.limits.keep(scored, broken)
        reasons |= {code: f"--{code.replace('_', '-')} excludes it from the plans" for code in broken}
    return WhyAnswer(
        asked=text,
        status="ranked" if fits else next(iter(reasons)),
        rank=rank,
        rank_of_all=rank_of_all,
        slower_than_best=plan.step_time_s / best_time - 1,
        plan=plan,
        breakdown=estimate.breakdown,
        best_breakdown=first.breakdown,
        reasons=reasons,
    )


def _excluding(ask: Asked, rows: Candidates) -> list[str]:
    """The options that keep one layout from the plans of a job."""
    pins, per_stage = ask.pins, -(-ask.job.spec.model.layers // int(rows.pp[0]))
    out = [flag_of(name) for name in pins.degrees if not pins.allows(name, getattr(rows, name))[0]]
    own = int(rows.recompute_modules[0]), int(rows.recompute_layers[0])
    ways = [(way.modules, way.layers_of(per_stage)) for way in pins.recompute or ()]
    out += ["--recompute"] if ways and own not in ways else []
    return [*out, "--schedule"] if int(rows.schedule[0]) != pins.schedule else out


def _asked_variant(
    job: JobSpec, asked: Mapping[str, str], inside: SearchResult, objective: str
) -> tuple[Scored | None, dict[str, str]]:
    """The best variant of what was asked (the smallest, when none fits), or the rules that forbid it.

    The search does not try every legal layout (virtual stages that leave very uneven chunks, expert-tensor degrees
    between 1 and TP): one of those is priced by itself, completed with the defaults of `estimate`.
    """
    if inside.evaluated:
        return (inside.families if inside.feasible else inside.nearest_miss), {}
    counted = {code: rule_text(code, job) for code, _ in _most_frequent(inside.rejected)}
    try:
        rows = fixed_layout(job, asked)
    except InputError as error:
        return None, counted or {"degrees_do_not_multiply": error.message}
    broken = {rule.code: rule_text(rule.code, job) for rule in broken_rules(rows, job)}
    if not broken:
        return score(rows, job, objective), {}
    shared = {code: text for code, text in broken.items() if code in counted}  # not the fault of a default
    return None, shared or broken


def layout_text(layout: Mapping[str, int]) -> str:
    """One layout in a line: `TP8+SP PP4 DP20 ZeRO-1 mb1`, with what differs from 1 or none."""
    parts = [f"TP{layout['tp']}{'+SP' if layout['sp'] else ''}", f"PP{layout['pp']}"]
    parts += [f"{name.upper()}{layout[name]}" for name in ("vpp", "cp", "ep", "etp") if layout[name] > 1]
    parts += [f"DP{layout['dp']}", f"ZeRO-{layout['zero']}", f"mb{layout['micro_batch_size']}"]
    recompute = recompute_text(layout["recompute_modules"], layout["recompute_layers"])
    return " ".join([*parts, *([] if recompute == "none" else [f"recompute {recompute}"])])


def pins_text(pins: Pins) -> str:
    """The pinned dimensions, for a message."""
    return ", ".join([flag_of(name) for name in pins.degrees] + (["--recompute"] if pins.recompute else []))
