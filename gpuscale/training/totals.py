"""`train-time`: wall time, GPU-hours, money, energy and carbon of a whole training, by one plan or by phases."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arguments import taking
from gpuscale.arrays import exp, log
from gpuscale.choices import TERMS
from gpuscale.display import WithFields, displayed
from gpuscale.energy import power_of
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.subject import Subject, read_subject, refuse_variables, subject_of
from gpuscale.planning.jobs import Job, Presets, build_job
from gpuscale.planning.layouts import layout_text
from gpuscale.planning.planfile import layout_of
from gpuscale.planning.plans import plan
from gpuscale.presets.rates import OLD, USUAL_TERM, Rate, given, load_rates, prices_of
from gpuscale.presets.tables import made
from gpuscale.request import (
    ALL_CLUSTERS,
    COMPARED,
    MAX_TOP,
    PINS,
    SEVERAL_PLANS,
    JobOptions,
    Layout,
    Length,
    Question,
    Range,
    Recovery,
    only_value,
    part,
    read,
    read_several,
    taken,
    with_layout,
    without,
)
from gpuscale.results import PlanRow
from gpuscale.search.objectives import model_flops_per_token
from gpuscale.specs.job import JobSpec
from gpuscale.training.goodput import LEAST_RATIO, goodput_of, node_gpus
from gpuscale.training.phases import Training, is_training, lengths, planned, read_training
from gpuscale.units import DAY_S, HOUR_S, plural
from gpuscale.version import RELEASED


@dataclass(frozen=True)
class Phase:
    """One part of a training."""

    name: str  #: what it is called
    gpus: int  #: GPUs that it takes
    global_batch_size: int  #: sequences per optimizer step
    sequence: int  #: tokens per sequence
    layout: str  #: its plan, in words
    tokens: float  #: tokens that it trains on
    steps: int  #: optimizer steps
    step_time_s: float  #: seconds per step, as predicted
    begins_s: float  #: seconds from the beginning of the training
    begins: str | None  #: day on which it begins; null where the training has no date
    pause_s: float  #: seconds that pass before it begins
    wall_s: float  #: seconds, with failures and restarts
    gpu_hours: float  #: GPU-hours of its steps, without failures and restarts
    cost_usd: float | None  #: money for its GPUs and spare nodes over `pause_s` and `wall_s`; null without a price
    energy_mwh: float  #: energy of the site over `wall_s`
    effective_ratio: float  #: share of its time that trains
    failures: float | None  #: failures to expect; null where they are not modelled
    checkpoints: int | None  #: checkpoints that are written; null where failures are not modelled
    evaluations: int  #: evaluations that are made


@dataclass(frozen=True)
class GpuCount:
    """The same training on one of several numbers of GPUs, by the best plan there."""

    gpus: int  #: GPUs of the job
    cluster: str  #: name of the cluster
    layout: str  #: of the plan, in words
    global_batch_size: int  #: sequences per optimizer step
    tokens: float  #: tokens of the training
    step_time_s: float  #: seconds per step, as predicted
    wall_s: float  #: seconds, with failures and restarts
    gpu_hours: float  #: GPU-hours of the steps, without failures and restarts
    cost_usd: float | None  #: money, as that of the whole answer; null without a price
    energy_mwh: float  #: energy of the site
    effective_ratio: float  #: share of `wall_s` in which steps are made that count


@displayed
@dataclass(frozen=True)
class TrainTime(WithFields):
    """What a whole training takes."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    tokens: float  #: tokens of the training
    plan: PlanRow  #: the layout and its numbers, as in `gpuscale.plan/1`
    steps: int  #: optimizer steps
    wall_s: float  #: seconds from the first step to the last, with failures and restarts
    wall_low_s: float  #: the lower end of its 80 % interval, by those of the step time and of the share that trains
    wall_high_s: float  #: its upper end
    gpu_hours: float  #: GPU-hours of the steps, without failures and restarts
    billed_gpu_hours: float  #: GPU-hours that are paid for: of the job's GPUs and of its spare nodes, over `wall_s`
    #: use -> GPU-hours of `billed_gpu_hours`: `steps`, `failures` (with checkpoints and restarts), `spares`, `pauses`
    #: (between phases)
    billed_by_use: Mapping[str, float]
    cost_usd: float | None  #: money for `billed_gpu_hours`; null where no price is known
    cost_by_term_usd: Mapping[str, float]  #: term -> what the same GPU-hours cost at published prices
    energy_mwh: float  #: energy of the site over `wall_s` without pauses: GPUs of the job, hosts, network and cooling
    energy: Mapping[str, float]  #: part (`gpus`, `hosts`, `network`, `cooling`) -> MWh
    power_mw: float  #: power of the site while it trains [MW]
    gpu_power_w: float  #: mean power of one GPU while it trains [W]
    energy_cost_usd: float  #: what that energy costs
    carbon_t: float  #: tonnes of carbon dioxide that it stands for
    effective_ratio: float  #: share of `wall_s` in which steps are made that count
    effective_ratio_low: float  #: its 10th percentile
    effective_ratio_high: float  #: its 90th percentile
    checkpoint_interval_s: float | None  #: seconds between checkpoints; null where failures are not modelled
    spares: int  #: spare nodes that the share of the time that trains counts on; their power is not counted
    phases: tuple[Phase, ...]  #: the parts of the training
    #: the same on each number of GPUs that was asked for, fewest first; empty where it was one
    over_gpus: tuple[GpuCount, ...]
    assumptions: Mapping[str, Rate]  #: rate -> value, source and date of what the answer takes from elsewhere
    notes: tuple[str, ...] = ()  #: what a reader should know: rates that are old, prices that are not published
    #: options that make the same job again, as in `gpuscale.plan/1`
    job: Mapping[str, str | int | float] = field(default_factory=dict)


class Stretch(NamedTuple):
    """A part of a training before it is counted."""

    name: str
    subject: Subject  #: the plan that it is trained by.
    tokens: float | None  #: how long it is; or None, where `days` says it.
    days: float | None = None  #: how long it is [days].
    pause_s: float = 0.0  #: what passes before it begins [s].
    data_stall: float = 0.0  #: what steps wait for data, as a share of the step.
    evaluation_s: float = 0.0  #: time of one evaluation [s].
    evaluation_every: int = 0  #: steps from one to the next; 0 for none.


@taking(taken(JobOptions, Layout, Question, Length, Recovery, without=SEVERAL_PLANS, several=COMPARED, pins=True))
def train_time(  # noqa: PLR0913 - all that the command takes
    model: str | None = None,
    gpus: Any = None,
    tokens: Any = None,
    *,
    days: float | str | None = None,
    layout: Mapping[str, Any] | None = None,
    as_given: bool = False,
    plan_file: Path | None = None,
    launch_files: Sequence[str | Path] | None = None,
    variables: Mapping[str, str] | None = None,
    despite_rules: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    presets: Presets | None = None,
    **options: Any,
) -> TrainTime:
    """Return what a whole training takes: time, GPU-hours, money, energy, carbon.

    Args:
        model, gpus: as in `plan`; a plan file or launch files may state them instead.
        tokens: tokens of the training, such as `15e12` or `"15T"`.
        days: the wall time instead, in which as many tokens are trained as fit.
        layout: `tp`, `pp` and the like in one piece, by name; of a search the values that they may have.
        as_given: take the layout as `estimate` does, what is left out at its default, instead of searching.
        plan_file: a plan, or a training of several phases (docs/train-time.md), each of which is searched for.
        launch_files, variables: where job and layout stand; nothing is searched then.
        despite_rules: also a layout that the framework's rules refuse; nothing is searched then.
        progress: told before each phase: how many are done, how many there are, and its name.
        presets: what was read for other searches.

    Raises:
        InputError: unusable input, or neither or both of `tokens` and `days`.
        NoAnswerError: no layout fits, as in `plan`; or the job fails before it gets anywhere.
    """
    asked, pins, question, recovery = read_asked(model, gpus, tokens, layout, options)
    if plan_file and is_training(plan_file):
        if days is not None or launch_files or as_given or despite_rules:
            raise InputError("its phases say how long they are, and are searched for", place=str(plan_file))
        return _by_phases(read_training(plan_file), asked, pins, question, recovery, progress)
    days = read(Length, {"days": days}).days
    if (question.train_tokens is None) == (days is None):
        neither = "how long is the training?"
        message = neither if days is None else "`train_tokens` and `days` are mutually exclusive"
        raise InputError(message, hint="give `train_tokens=15T`, or `days=60`")
    if plan_file or launch_files or as_given or despite_rules:
        own, of_layout = with_layout(asked, pins)
        job = part(own, JobOptions)
        single = {name: only_value(name, value, "for a layout that is given") for name, value in job.items()}
        subject = read_subject(plan_file, single, of_layout, launch_files, variables, despite_rules=despite_rules)
    else:
        refuse_variables(variables, launch_files)
        return _over_gpus(best_plans(asked, pins, presets), question, recovery, days)
    return totals([Stretch("training", subject, question.train_tokens, days)], question, recovery)


def _over_gpus(subjects: Sequence[Subject], question: Question, recovery: Recovery, days: float | None) -> TrainTime:
    """By the first of some plans, and by each of them where they are of several numbers of GPUs."""
    found: list[TrainTime] = []
    for one in subjects:
        try:
            found.append(totals([Stretch("training", one, question.train_tokens, days)], question, recovery))
        except NoAnswerError as error:
            if not found:
                raise
            notes = (*found[0].notes, error.message)
            found[0] = replace(found[0], notes=notes)
    rows = [
        made(GpuCount, vars(phase) | vars(one))
        for one in sorted(found, key=lambda one: one.gpus)
        for phase in one.phases
    ]
    return replace(found[0], over_gpus=tuple(rows) if len(rows) > 1 else ())


def _by_phases(
    training: Training,
    asked: Mapping[str, Any],
    pins: Mapping[str, Any],
    question: Question,
    recovery: Recovery,
    progress: Callable[[int, int, str], None] | None,
) -> TrainTime:
    tokens = lengths(training, question.train_tokens)
    given = {name: value for name, value in asked.items() if name != "train_tokens"}
    stretches = [
        Stretch(
            name=one.name,
            subject=subject,
            tokens=length,
            pause_s=one.numbers["pause_h"] * HOUR_S,
            data_stall=one.numbers["data_stall"],
            evaluation_s=one.numbers["evaluation_s"],
            evaluation_every=int(one.numbers["evaluation_every"]),
        )
        for one, subject, length in zip(
            training.phases, planned(training, given, pins, best_plan, progress), tokens, strict=True
        )
    ]
    return totals(stretches, question, recovery, training.start)


def read_asked(
    model: str | None, gpus: Any, tokens: Any, layout: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], Question, Recovery]:
    """Return the options that are given, what the layout may have, and the question and recovery, checked; the `tokens`
    may also be among the options, as `train_tokens`."""
    if tokens is not None and options.get("train_tokens") is not None:
        raise InputError("is given twice", field="train_tokens", hint="`tokens` is the same: give one of them")
    given = {name: value for name, value in options.items() if value is not None}
    asked, pins = with_layout({"model": model, "gpus": gpus, "train_tokens": tokens, **given}, layout, PINS)
    question, recovery = read(Question, part(asked, Question)), read(Recovery, part(asked, Recovery))
    return without(asked, Recovery), pins, question, recovery


def best_plan(asked: Mapping[str, Any], pins: Mapping[str, Any]) -> Subject:
    """Search for the best plan, and return it; arguments as of `best_plans`."""
    return best_plans(asked, pins)[0]


def best_plans(asked: Mapping[str, Any], pins: Mapping[str, Any], presets: Presets | None = None) -> list[Subject]:
    """Search for the best plan by options of `plan` and values that the layout may have; of several numbers of GPUs for
    that of each, the best one first. `presets`: what was read for other searches."""
    missing = next((name for name in ("model", "gpus") if name not in asked), None)
    if missing:
        raise InputError(f"`{missing}` is missing", hint="give `model` and `gpus`, or a plan file")
    rest = {name: value for name, value in asked.items() if name not in {"model", "gpus", "top"}}
    counts = read_several("gpus", asked["gpus"])
    several = isinstance(counts, Range) or len(counts) > 1
    result = plan(asked["model"], asked["gpus"], pins=pins, presets=presets, top=MAX_TOP if several else 1, **rest)
    notes: tuple[str, ...] = ()
    if result.compared and len(result.compared.variants) > 1:
        rows = [row for row in result.compared.variants if "gpus" in row.choice]
        reasons = {row.choice["gpus"]: row.reason for row in rows if not row.best}
        for row in rows:
            if row.best:
                reasons.pop(row.choice["gpus"], None)
        notes = (
            f"the best of {len(result.compared.variants)} jobs by {result.compared.objectives[0]}",
            *(f"{plural(int(count), 'GPU')}: {reason}" for count, reason in reasons.items()),
        )
    first = {found.gpus: found for found in reversed(result.estimates)}  # of each number of GPUs the best
    subjects = []
    for found in (one for one in result.estimates if first[one.gpus] is one):
        subject = subject_of(build_job(read(JobOptions, found.job)), layout_of(found.plan), despite_rules=True)
        best = replace(found.plan, rank=1, variants=1)
        subjects.append(replace(subject, estimate=replace(found, plan=best, notes=(*found.notes, *notes))))
    return subjects


class _Lasting(NamedTuple):
    ratio: float
    ends: tuple[float, float]
    interval_s: float | None
    mtbf_s: float | None
    spares: int
    used: dict[str, Rate]


class _Counted(NamedTuple):
    phase: Phase
    train_s: float
    low_s: float
    high_s: float
    lasting: _Lasting
    billed: dict[str, float]
    by_term: dict[str, float]
    energy: dict[str, float]
    power_mw: float
    gpu_w: float
    used: dict[str, Rate]
    notes: list[str]


def totals(
    stretches: Sequence[Stretch], question: Question, recovery: Recovery, start: datetime.date | None = None
) -> TrainTime:
    """Add up the parts of a training, which begins on the day `start`, if that is known."""
    counted: list[_Counted] = []
    begins_s = 0.0
    for one in stretches:
        counted.append(_count(one, question, recovery, begins_s, start))
        begins_s = math.fsum([begins_s, one.pause_s, counted[-1].phase.wall_s])
    phases = tuple(one.phase for one in counted)
    at = max(range(len(phases)), key=lambda index: phases[index].wall_s)
    main, subject = counted[at], stretches[at].subject
    rates = load_rates(_own(question))
    used = {name: rate for one in reversed([*counted, main]) for name, rate in one.used.items()}
    wall_s, train_s = begins_s, math.fsum(one.train_s for one in counted)
    energy = {name: math.fsum(one.energy[name] for one in counted) for name in main.energy}
    billed = {use: math.fsum(one.billed[use] for one in counted) for use in main.billed}
    mwh, costs = math.fsum(energy.values()), [phase.cost_usd for phase in phases]
    old = ", ".join(name for name, rate in used.items() if rate.old)
    notes = [*(note for one in counted for note in one.notes), *([f"{OLD} ({RELEASED}): {old}"] if old else [])]
    return TrainTime(
        model=subject.spec.model.name,
        cluster=subject.spec.cluster.name,
        gpus=subject.spec.gpus,
        tokens=math.fsum(phase.tokens for phase in phases),
        plan=subject.estimate.plan,
        steps=sum(phase.steps for phase in phases),
        wall_s=wall_s,
        wall_low_s=math.fsum(one.low_s for one in counted),
        wall_high_s=math.fsum(one.high_s for one in counted),
        gpu_hours=math.fsum(phase.gpu_hours for phase in phases),
        billed_gpu_hours=math.fsum(billed.values()),
        billed_by_use=billed,
        cost_usd=None if None in costs else math.fsum(cost or 0.0 for cost in costs),
        cost_by_term_usd={
            term: math.fsum(one.by_term[term] for one in counted)
            for term in TERMS
            if all(term in one.by_term for one in counted)
        },
        energy_mwh=mwh,
        energy=energy,
        power_mw=main.power_mw,
        gpu_power_w=main.gpu_w,
        energy_cost_usd=mwh * 1e3 * rates["electricity_usd_per_kwh"].value,
        carbon_t=mwh * rates["carbon_kg_per_kwh"].value,
        effective_ratio=train_s / wall_s,
        effective_ratio_low=_mean(counted, 0, wall_s),
        effective_ratio_high=_mean(counted, 1, wall_s),
        checkpoint_interval_s=main.lasting.interval_s,
        spares=main.lasting.spares,
        phases=phases,
        over_gpus=(),
        assumptions=used,
        notes=tuple(dict.fromkeys(notes)),
        job=subject.estimate.job,
    )


def _mean(counted: Sequence[_Counted], which: int, wall_s: float) -> float:
    """An end of the share of the time that trains, over all parts."""
    return math.fsum(one.lasting.ends[which] * one.phase.wall_s for one in counted) / wall_s


RATIO = "effective_ratio"
"""Name of the rate that states the share of the time that trains."""


def _own(question: Question) -> dict[str, float]:
    """Without the share of the time that trains."""
    return {name: value for name, value in question.rate.items() if name != RATIO}


def _count(
    one: Stretch, question: Question, recovery: Recovery, begins_s: float, start: datetime.date | None
) -> _Counted:
    subject, spec, rates = one.subject, one.subject.spec, load_rates(_own(question))
    found, plan_row = subject.estimate, subject.estimate.plan
    step_s = plan_row.step_time_s
    each_s = step_s * (1.0 + one.data_stall)
    each_s += one.evaluation_s / one.evaluation_every if one.evaluation_every else 0.0
    run_s = (one.days or 0.0) * DAY_S or each_s * max(1.0, (one.tokens or 0.0) / spec.tokens_per_step)
    lasting = _lasting(subject, question, recovery, run_s)
    ratio = lasting.ratio
    tokens = one.tokens or float(max(1, math.floor(run_s * ratio / each_s)) * spec.tokens_per_step)
    steps = max(1, math.ceil(tokens / spec.tokens_per_step))
    train_s = steps * each_s
    wall_s, gpu_hours = train_s / ratio, spec.gpus * train_s / HOUR_S
    paid_gpus = spec.gpus + lasting.spares * node_gpus(spec)
    billed = {
        "steps": gpu_hours,
        "failures": gpu_hours / ratio - gpu_hours,
        "spares": (paid_gpus - spec.gpus) * wall_s / HOUR_S,
        "pauses": paid_gpus * one.pause_s / HOUR_S,
    }
    paid_hours = math.fsum(billed.values())
    price, prices, notes = gpu_hour_prices(subject.job, question)
    power = power_of(spec, rates)
    gpu_w = float(power.of_gpu_w(model_flops_per_token(spec) * spec.tokens_per_step / (each_s * spec.gpus)))
    watts = {"gpus": gpu_w, "hosts": power.host_w, "network": power.network_w}
    watts["cooling"] = math.fsum(watts.values()) * (power.pue - 1.0)
    energy = {name: own * gpu_hours / ratio * 1e-6 for name, own in watts.items()}
    began_s = begins_s + one.pause_s
    phase = Phase(
        name=one.name,
        gpus=spec.gpus,
        global_batch_size=plan_row.global_batch_size,
        sequence=plan_row.sequence,
        layout=layout_text(subject.rows.row(0)),
        tokens=tokens,
        steps=steps,
        step_time_s=step_s,
        begins_s=began_s,
        begins=None if start is None else str(start + datetime.timedelta(days=int(began_s // DAY_S))),
        pause_s=one.pause_s,
        wall_s=wall_s,
        gpu_hours=gpu_hours,
        cost_usd=None if price is None else paid_hours * price.value,
        energy_mwh=math.fsum(energy.values()),
        effective_ratio=ratio,
        failures=None if lasting.mtbf_s is None else wall_s / lasting.mtbf_s,
        checkpoints=None if lasting.interval_s is None else int(train_s // lasting.interval_s),
        evaluations=steps // one.evaluation_every if one.evaluation_every else 0,
    )
    return _Counted(
        phase=phase,
        train_s=train_s,
        low_s=one.pause_s + wall_s / _factor(step_s / plan_row.step_time_low_s, lasting.ends[1] / ratio),
        high_s=one.pause_s + wall_s * _factor(plan_row.step_time_high_s / step_s, ratio / lasting.ends[0]),
        lasting=lasting,
        billed=billed,
        by_term={term: rate.value * paid_hours for term, rate in prices.items()},
        energy=energy,
        power_mw=math.fsum(watts.values()) * spec.gpus * 1e-6,
        gpu_w=gpu_w,
        used=_assumptions(spec, rates, price) | lasting.used,
        notes=[*found.notes, *notes],
    )


def _factor(steps: float, ratio: float) -> float:
    """Of two independent ones that are each as likely to be exceeded."""
    logs = log(np.array([steps, ratio]))
    return float(exp(np.sqrt(logs[:1] * logs[:1] + logs[1:] * logs[1:]))[0])


def _lasting(subject: Subject, question: Question, recovery: Recovery, run_s: float) -> _Lasting:
    """As it is given, or as failures leave it."""
    if RATIO in question.rate:
        load_rates(question.rate)
        ratio = question.rate[RATIO]
        return _Lasting(ratio, (ratio, ratio), None, None, 0, {RATIO: given(ratio)})
    rates, step_s = _own(question), subject.estimate.plan.step_time_s
    found = goodput_of(subject.spec, subject.rows, step_s, recovery, run_s, rates)
    ends = (max(LEAST_RATIO, found.effective_ratio_low), found.effective_ratio_high)  # in one of ten runs nothing lasts
    interval_s = found.checkpoint_interval_s
    return _Lasting(found.effective_ratio, ends, interval_s, found.mtbf_s, found.spares, dict(found.assumptions))


def gpu_hour_prices(job: Job, question: Question) -> tuple[Rate | None, dict[str, Rate], list[str]]:
    """Return the price of a GPU-hour, the published ones by term, and what to say of them."""
    cluster, gpu = job.spec.cluster, job.spec.cluster.gpu
    names = (str(job.request.get("cluster", "")), cluster.name)
    published = prices_of(cluster.name, gpu.name)
    asked_usd = (question.gpu_hour_price.get(name) for name in (*names, ALL_CLUSTERS))
    own = next((usd for usd in asked_usd if usd is not None), None)
    if own is not None:
        return given(own), published, []
    if not published:
        return None, {}, [f"no price of {gpu.title} is published here: `gpu_hour_price=2.5` gives one"]
    asked = (question.price_term or USUAL_TERM).replace("-", "_")
    term = asked if asked in published else min(published, key=TERMS.index)
    said = f"{cluster.name if prices_of(cluster.name) else gpu.title} has no {asked.replace('_', '-')} price here"
    return published[term], published, [] if term == asked else [f"{said}: {term.replace('_', '-')} taken"]


USED = (
    "gpu_low_load", "host_share", "switch_w_per_gbit_per_s", "pue", "electricity_usd_per_kwh",
    "carbon_kg_per_kwh",
)  # fmt: skip
"""Rates that the totals stand on."""

STATED = {"gpu_low_load": "gpu_w", "host_share": "host_w", "switch_w_per_gbit_per_s": "network_w"}
"""Rate of the power of a part -> the one that states this power itself."""


def _assumptions(job: JobSpec, rates: Mapping[str, Rate], price: Rate | None) -> dict[str, Rate]:
    gpu = job.cluster.gpu
    instead = {name: own for name, own in STATED.items() if own in rates}
    used = {} if price is None else {"gpu_hour_price": price}
    source = gpu.sources.get("power_w", "the file of the GPU")
    year = re.search(r"20[0-9]{2}", source)
    if "gpu_w" not in rates:
        used["gpu_limit_w"] = Rate(gpu.power_w, source, year[0] if year else "")
    for name in USED:
        own = instead.get(name, name)
        used[own] = rates[own]
    return used
