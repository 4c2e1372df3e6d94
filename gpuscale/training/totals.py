"""`train-time`: wall time, GPU-hours, money, energy and carbon of a whole training by one plan."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuscale.arguments import public
from gpuscale.energy import power_of
from gpuscale.errors import InputError
from gpuscale.launch.subject import read_subject
from gpuscale.planning.jobs import Job, build_job
from gpuscale.planning.plans import plan
from gpuscale.presets.rates import TERMS, Rate, given, load_rates, prices_of
from gpuscale.request import ALL_CLUSTERS, COMPARED, JobOptions, Question, Range, read, read_several, refuse_unknown
from gpuscale.results import Estimate, PlanRow
from gpuscale.search.objectives import HOUR_S, model_flops_per_token
from gpuscale.specs.job import JobSpec
from gpuscale.version import RELEASED

DAY_S = 24 * HOUR_S

OLD = "over a year old at the release of this version"
"""How the note on old rates begins."""

NOT_ASKED = ("pareto", "why", "top", "unfold")
"""Options of a question that ask for more than one plan."""


@dataclass(frozen=True)
class Phase:
    """One part of a training.

    Attributes:
        name: what it is called
        gpus: GPUs that it takes
        tokens: tokens that it trains on
        steps: optimizer steps
        step_time_s: seconds per step, as predicted
        wall_s: seconds, with failures and restarts
        gpu_hours: GPU-hours of its steps, without failures and restarts
        cost_usd: money for its GPUs over `wall_s`; null without a price
        energy_mwh: energy of the site over `wall_s`
    """

    name: str
    gpus: int
    tokens: float
    steps: int
    step_time_s: float
    wall_s: float
    gpu_hours: float
    cost_usd: float | None
    energy_mwh: float


@dataclass(frozen=True)
class TrainTime:
    """What a whole training takes.

    Attributes:
        model: name of the model
        cluster: name of the cluster
        gpus: GPUs of the job
        tokens: tokens of the training
        plan: the layout and its numbers, as in `gpuscale.plan/1`
        steps: optimizer steps
        wall_s: seconds from the first step to the last, with failures and restarts
        wall_low_s: the same if steps take as long as the lower end of their 80 % interval says
        wall_high_s: the same for its upper end
        gpu_hours: GPU-hours of the steps, without failures and restarts
        billed_gpu_hours: GPU-hours over `wall_s`, which are paid for
        cost_usd: money for them; null where no price is known
        cost_by_term_usd: term -> what the same GPU-hours cost at published prices
        energy_mwh: energy of the site over `wall_s`: GPUs, hosts, network and cooling
        energy: part (`gpus`, `hosts`, `network`, `cooling`) -> MWh
        power_mw: power of the site while it trains [MW]
        gpu_power_w: mean power of one GPU while it trains [W]
        energy_cost_usd: what that energy costs
        carbon_t: tonnes of carbon dioxide that it stands for
        effective_ratio: share of `wall_s` in which steps are made that count
        effective_ratio_low: its 10th percentile
        effective_ratio_high: its 90th percentile
        checkpoint_interval_s: seconds between checkpoints; null where failures are not modelled
        phases: the parts of the training
        assumptions: rate -> value, source and date of what the answer takes from elsewhere
        notes: what a reader should know: rates that are old, prices that are not published
        job: options that make the same job again, as in `gpuscale.plan/1`
    """

    model: str
    cluster: str
    gpus: int
    tokens: float
    plan: PlanRow
    steps: int
    wall_s: float
    wall_low_s: float
    wall_high_s: float
    gpu_hours: float
    billed_gpu_hours: float
    cost_usd: float | None
    cost_by_term_usd: Mapping[str, float]
    energy_mwh: float
    energy: Mapping[str, float]
    power_mw: float
    gpu_power_w: float
    energy_cost_usd: float
    carbon_t: float
    effective_ratio: float
    effective_ratio_low: float
    effective_ratio_high: float
    checkpoint_interval_s: float | None
    phases: tuple[Phase, ...]
    assumptions: Mapping[str, Rate]
    notes: tuple[str, ...] = ()
    job: Mapping[str, str | int | float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        assumptions = {name: rate._asdict() for name, rate in self.assumptions.items()}
        return {**asdict(self), "assumptions": assumptions}


@public
def train_time(  # noqa: PLR0913 - all that the command takes
    model: str | None = None,
    gpus: Any = None,
    tokens: Any = None,
    *,
    days: float | None = None,
    layout: Mapping[str, Any] | None = None,
    as_given: bool = False,
    plan_file: Path | None = None,
    launch_files: Sequence[str | Path] | None = None,
    variables: Mapping[str, str] | None = None,
    despite_rules: bool = False,
    **options: Any,
) -> TrainTime:
    """Return what a whole training takes: time, GPU-hours, money, energy, carbon.

    Args:
        model, gpus: as in `plan`; a plan file or launch files may state them instead.
        tokens: tokens of the training, such as `15e12` or `"15T"`.
        days: the wall time instead, in which as many tokens are trained as fit.
        layout: values of `gpuscale.request.Layout` by name; of a search the pins.
        as_given: take the layout as `estimate` does, what is left out at its default, instead of searching.
        plan_file, launch_files, variables: where job and layout stand; nothing is searched then.
        despite_rules: also a layout that the framework's rules refuse; nothing is searched then.
        options: those of `gpuscale.request.JobOptions` and `Question`.

    Raises:
        InputError: unusable input, or neither or both of `tokens` and `days`.
        NoAnswerError: no layout fits, as in `plan`.
    """
    refuse_unknown(options, (*JobOptions.model_fields, "schedule", *Question.model_fields))
    asked = {"model": model, "gpus": gpus, **options}
    asked = {name: value for name, value in asked.items() if value is not None}
    stray = next((name for name in NOT_ASKED if asked.get(name)), None)
    if stray:
        raise InputError("asks for more than one plan", field=stray, hint="`gpuscale plan` answers that")
    if tokens is not None:
        asked["train_tokens"] = tokens
    question = read(Question, {name: value for name, value in asked.items() if name in Question.model_fields})
    _check_length(question.train_tokens, days)
    if plan_file or launch_files or as_given or despite_rules:
        single = {name: _single(name, value) for name, value in asked.items() if name in JobOptions.model_fields}
        subject = read_subject(plan_file, single, layout, launch_files, variables, despite_rules=despite_rules)
        job, found = subject.job, subject.estimate
    else:
        missing = next((name for name in ("model", "gpus") if name not in asked), None)
        if missing:
            raise InputError(f"`{missing}` is missing", hint="give `model` and `gpus`, or a plan file")
        found = plan(asked.pop("model"), asked.pop("gpus"), pins=layout or {}, top=1, **asked).estimates[0]
        job = build_job(read(JobOptions, found.job))
    return totals_of(job, found, question, days=days)


def _check_length(tokens: float | None, days: float | None) -> None:
    """Refuse neither and both of the two ways to say how long a training is."""
    if (tokens is None) == (days is None):
        message = "how long is the training?" if tokens is None else "`train_tokens` and `days` exclude each other"
        raise InputError(message, hint="give `train_tokens=15T`, or `days=60`")
    if days is not None and not 0 < days <= 1e5:
        raise InputError(f"{days:g} is out of range", field="days", hint="give above 0 and at most 100,000")


def _single(name: str, value: Any) -> Any:
    """Return the one value of an option; where nothing is searched nothing is compared."""
    if name not in COMPARED:
        return value
    several = read_several(name, value)
    if isinstance(several, Range) or len(several) > 1:
        raise InputError("takes one value for a layout that is given", field=name)
    return several[0]


def totals_of(job: Job, found: Estimate, question: Question, *, days: float | None = None) -> TrainTime:
    """Return what a training by one plan takes.

    Args:
        found: the plan.
        days: the wall time, where that is given instead of `question.train_tokens`.
    """
    spec, step_s, rates = job.spec, found.plan.step_time_s, load_rates(question.rate)
    ratio = rates["effective_ratio"].value
    tokens = question.train_tokens or days_tokens(days or 0.0, ratio, step_s, spec.tokens_per_step)
    steps = max(1, math.ceil(tokens / spec.tokens_per_step))
    train_s = steps * step_s
    wall_s, gpu_hours = train_s / ratio, spec.gpus * train_s / HOUR_S
    billed = gpu_hours / ratio
    price, prices, notes = _prices(job, question)
    power = power_of(spec, rates)
    flops_per_s = model_flops_per_token(spec) * spec.tokens_per_step / (step_s * spec.gpus)
    gpu_w = float(power.of_gpu_w(flops_per_s))
    parts_w = {"gpus": gpu_w, "hosts": power.host_w, "network": power.network_w}
    parts_w["cooling"] = math.fsum(parts_w.values()) * (power.pue - 1.0)
    energy = {name: watts * billed * 1e-6 for name, watts in parts_w.items()}
    energy_mwh = math.fsum(energy.values())
    used = _assumptions(spec, rates, price)
    old = [name for name, rate in used.items() if rate.old]
    if old:
        notes.append(f"{OLD} ({RELEASED}): {', '.join(old)}")
    cost = None if price is None else billed * price.value
    phase = Phase("training", spec.gpus, tokens, steps, step_s, wall_s, gpu_hours, cost, energy_mwh)
    return TrainTime(
        model=found.model,
        cluster=found.cluster,
        gpus=spec.gpus,
        tokens=tokens,
        plan=replace(found.plan, rank=1, variants=1),
        steps=steps,
        wall_s=wall_s,
        wall_low_s=wall_s * found.plan.step_time_low_s / step_s,
        wall_high_s=wall_s * found.plan.step_time_high_s / step_s,
        gpu_hours=gpu_hours,
        billed_gpu_hours=billed,
        cost_usd=cost,
        cost_by_term_usd={term: rate.value * billed for term, rate in prices.items()},
        energy_mwh=energy_mwh,
        energy=energy,
        power_mw=math.fsum(parts_w.values()) * spec.gpus * 1e-6,
        gpu_power_w=gpu_w,
        energy_cost_usd=energy_mwh * 1e3 * rates["electricity_usd_per_kwh"].value,
        carbon_t=energy_mwh * rates["carbon_kg_per_kwh"].value,
        effective_ratio=ratio,
        effective_ratio_low=ratio,
        effective_ratio_high=ratio,
        checkpoint_interval_s=None,
        phases=(phase,),
        assumptions=used,
        notes=(*found.notes, *notes),
        job=found.job,
    )


def days_tokens(days: float, ratio: float, step_time_s: float, tokens_per_step: int) -> float:
    """Return the tokens of the steps that end within some days, of which a share makes steps that count."""
    return float(max(1, math.floor(days * DAY_S * ratio / step_time_s)) * tokens_per_step)


def _prices(job: Job, question: Question) -> tuple[Rate | None, dict[str, Rate], list[str]]:
    """Return the price of a GPU-hour, the published ones by term, and what to say of them."""
    cluster, gpu = job.spec.cluster, job.spec.cluster.gpu
    names = (str(job.request.get("cluster", "")), cluster.name)
    published = prices_of(cluster.name, gpu.name)
    own = next(
        (question.gpu_hour_price[name] for name in (*names, ALL_CLUSTERS) if name in question.gpu_hour_price), None
    )
    if own is not None:
        return given(own), published, []
    if not published:
        return None, {}, [f"no price of {gpu.title} is published here: `gpu_hour_price=2.5` gives one"]
    asked = question.price_term.replace("-", "_")
    term = asked if asked in published else min(published, key=TERMS.index)
    said = f"{cluster.name if prices_of(cluster.name) else gpu.title} has no {asked.replace('_', '-')} price here"
    return published[term], published, [] if term == asked else [f"{said}: {term.replace('_', '-')} taken"]


USED = (
    "effective_ratio", "gpu_low_load", "host_share", "switch_w_per_gbit_per_s", "pue", "electricity_usd_per_kwh",
    "carbon_kg_per_kwh",
)  # fmt: skip
"""Rates that the totals stand on."""

STATED = {"gpu_low_load": "gpu_w", "host_share": "host_w", "switch_w_per_gbit_per_s": "network_w"}
"""Rate of the power of a part -> the one that states this power itself."""


def _assumptions(job: JobSpec, rates: Mapping[str, Rate], price: Rate | None) -> dict[str, Rate]:
    """Return every rate that the answer stands on, by name."""
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
