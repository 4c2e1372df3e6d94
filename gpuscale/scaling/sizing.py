"""`size`: parameters and tokens for GPUs and days or a budget; the fewest GPUs for a deadline; each by a real plan."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from gpuscale.architecture.flops import training_flops_per_token
from gpuscale.architecture.parameters import model_parameters
from gpuscale.arguments import taking
from gpuscale.choices import MAX_GPUS
from gpuscale.display import WithFields, displayed
from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
from gpuscale.launch.subject import Subject
from gpuscale.planning.jobs import Job, Presets, build_job
from gpuscale.planning.variants import gpu_counts
from gpuscale.presets.models import all_models
from gpuscale.presets.rates import Rate
from gpuscale.presets.tables import made
from gpuscale.request import (
    DEFAULT_SEQUENCE,
    OF_ONE_PLAN,
    JobOptions,
    Layout,
    Length,
    Means,
    Question,
    Range,
    Recovery,
    in_sequences,
    only_value,
    part,
    read,
    taken,
)
from gpuscale.scaling.batch_laws import REFERENCE, tokens_factor, usual_batches
from gpuscale.scaling.laws import BESIROGLU, FLOPS_PER_PARAMETER_TOKEN, Split, splits
from gpuscale.scaling.laws import REFERENCE as REFERENCE_LAW
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.training.totals import Stretch, TrainTime, best_plan, gpu_hour_prices, read_asked, totals
from gpuscale.units import DAY_S, HOUR_S, format_count, plural

# -- Dense models in the proportions of Llama 3 by their number of parameters, and presets of about that size. --

VOCAB, HEADS_KV = 128256, 8
WIDTH_PER_LAYER = (64, 160)
"""Width over layers: 64 in Llama 3.2 1B, 107 (3B), 128 (8B), 102 (70B), 130 (405B)."""

USUAL_ASPECT = 128
SMALL_WIDTH, SMALL_HEAD, HEAD = 2560, 64, 128
TIED_WIDTH = 3072
"""Llama 3.2 1B (2,048 wide, heads of 64) and 3B (3,072 wide) share embedding and head; from 8B on they are apart."""

LEAST_PARAMETERS, MOST_PARAMETERS = 7e7, 2e13


class Shape(NamedTuple):
    """A dense model."""

    layers: int  #: depth.
    hidden: int  #: width.
    parameters: int  #: all, embeddings included.
    stated: str  #: the model in a line, as `--model` and `gpuscale.load_model` take it.


def dense_shape(parameters: float) -> Shape:
    """Return the shape whose parameters are nearest to a number, in the proportions of Llama 3 (arXiv 2407.21783, table
    3; docs/which-model.md): of the shapes within 2 % of the nearest the one whose width is nearest to 128 times its
    layers.

    Raises:
        InputError: the number is out of range.
    """
    if not LEAST_PARAMETERS <= parameters <= MOST_PARAMETERS:
        message = f"a model of {parameters:.3g} parameters is out of range"
        raise InputError(message, hint=f"models have {LEAST_PARAMETERS:.0e} to {MOST_PARAMETERS:.0e} here")
    off = {shape: abs(math.log(shape.parameters / parameters)) for shape in _shapes()}
    least = min(off.values()) + 0.02
    aspect = {shape: abs(math.log(shape.hidden / shape.layers / USUAL_ASPECT)) for shape in off if off[shape] <= least}
    return min(aspect, key=lambda shape: (aspect[shape], off[shape]))


@cache
def _shapes() -> tuple[Shape, ...]:
    narrow, wide = WIDTH_PER_LAYER
    return tuple(
        _shape(layers, hidden)
        for hidden in (*range(512, SMALL_WIDTH + 1, 512), *range(TIED_WIDTH, 65537, 1024))
        for layers in range(2, 1025, 2)
        if narrow * layers <= hidden <= wide * layers and (layers <= 32 or layers % 4 == 0)
    )


def _shape(layers: int, hidden: int) -> Shape:
    heads = hidden // (SMALL_HEAD if hidden <= SMALL_WIDTH else HEAD)
    tied, ffn, kv_width = hidden <= TIED_WIDTH, 7 * hidden // 2, HEADS_KV * (hidden // heads)
    matrices = 2 * hidden * hidden + 2 * hidden * kv_width + 3 * hidden * ffn
    total = layers * (matrices + 2 * hidden) + (1 if tied else 2) * VOCAB * hidden + hidden
    stated = f"layers={layers},hidden={hidden},heads={heads},kv_heads={HEADS_KV},ffn={ffn},vocab={VOCAB}"
    return Shape(layers, hidden, total, f"{stated},tied_embeddings=true" if tied else stated)


def presets_near(parameters: float) -> tuple[str, ...]:
    """Return the dense presets whose parameters are within 20 % of a number, the nearest first."""
    near = [(abs(math.log(total / parameters)), name) for name, total in _dense_presets()]
    return tuple(name for off, name in sorted(near) if off <= math.log(1.2))


@cache
def _dense_presets() -> tuple[tuple[str, int], ...]:
    return tuple((one.name, model_parameters(one).total) for one in all_models() if not one.is_moe)


USUAL_RATIO = 20.0
RATIOS = (50, 100, 200, 500, 1000)
"""Tokens per parameter that are looked at beside the optimum of the reference law, which is about `USUAL_RATIO`."""

USUAL_DAYS = 30.0
"""Days of a training of which only the budget is given."""

FIRST_MFU, FIRST_RATIO = 0.45, 0.95
"""Where the search for a size, or for a number of GPUs, begins."""

NEAR = 0.05
"""How far tokens per parameter may be off the ratio asked for; shapes are no finer."""

MAX_TRIES = 4

LOW_MFU = 0.3
"""Below it a larger batch is tried: what a step pays once weighs less then."""

MOST_TOKENS = 40e12
"""The longest published training, Llama 4 Scout (Meta, April 2025); Qwen3 has 36e12 (arXiv 2505.09388)."""


@dataclass(frozen=True)
class SizeRow:
    """One choice: a model on as many tokens as fit, or a number of GPUs."""

    optimal: bool  #: it is that of the reference law: least loss for the compute
    model: str  #: the model in a line, as commands take it, or its name
    parameters: float  #: parameters, of a mixture of experts those that a token uses
    layers: int  #: layers of the model
    hidden: int  #: its width
    presets: tuple[str, ...]  #: dense presets within 20 % of its parameters, the nearest first
    tokens: float  #: tokens that it is trained on
    tokens_per_parameter: float  #: their ratio
    #: after that, by Besiroglu et al. 2024 [nats per token of the data of Hoffmann et al.]; null of a mixture of
    #: experts
    loss: float | None
    loss_in_range: bool  #: parameters and tokens are within the runs behind that law
    #: compute over the least that reaches the same loss, by the same law; null of a mixture of experts
    overtraining: float | None
    gpus: int  #: GPUs of the job
    global_batch_size: int  #: sequences per optimizer step
    batch_tokens: int  #: tokens per optimizer step
    tokens_factor: float  #: tokens for the same loss over those of tiny batches, by Zhang et al. 2024
    layout: str  #: its plan, in words
    step_time_s: float  #: seconds per step, as predicted
    mfu: float  #: share of the dense peak, 0 to 1
    wall_s: float  #: seconds, with failures and restarts
    wall_low_s: float  #: the lower end of its 80 % interval
    wall_high_s: float  #: its upper end
    effective_ratio: float  #: share of the time that trains
    gpu_hours: float  #: GPU-hours of its steps
    cost_usd: float | None  #: money for its GPUs over `wall_s`; null without a price
    meets: bool  #: it is done by the deadline, where there is one


@displayed
@dataclass(frozen=True)
class Size(WithFields):
    """Which model for GPUs and days, or how many GPUs for a model and a deadline."""

    question: str  #: `model` or `gpus`: what was asked for
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs that are given or that the budget pays for; or the fewest that meet the deadline
    days: float  #: days that are given, or that the budget pays for
    budget_usd: float | None  #: money that is given; null where none is
    flops: float  #: compute of the first choice: 6 x parameters x tokens
    laws: tuple[Split, ...]  #: what each scaling law makes of that compute; empty where GPUs are asked for
    choices: tuple[SizeRow, ...]  #: models by tokens per parameter, or GPU counts
    best: int  #: place in `choices` of the model of least loss, or of the fewest GPUs that meet the deadline
    assumptions: Mapping[str, Rate]  #: rate -> value, source and date of what the answer takes from elsewhere
    #: what a reader should know: answers outside the range of a law, choices without a plan
    notes: tuple[str, ...] = ()
    #: options that make the job of the best choice again, as in `gpuscale.plan/1`
    job: Mapping[str, str | int | float] = field(default_factory=dict)


class _Asked(NamedTuple):
    """A question with all that its plans share."""

    options: Mapping[str, Any]
    pins: Mapping[str, Any]
    question: Question
    recovery: Recovery
    sequence: int
    progress: Callable[[int, int, str], None]
    product_per_gpu_s: float = 0.0  #: parameters times tokens that a GPU may train in a second: a first guess.


class _Found(NamedTuple):
    row: SizeRow
    total: TrainTime


@taking(taken(JobOptions, Layout, Question, Length, Means, Recovery, without=OF_ONE_PLAN, pins=True))
def size(
    model: str | None = None,
    gpus: Any = None,
    tokens: Any = None,
    *,
    days: float | str | None = None,
    budget: float | str | None = None,
    layout: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Size:
    """Return which model GPUs train in a time or for a budget; or the fewest GPUs that train a model by a deadline.

    Args:
        model, tokens: what is trained, where GPUs are asked for; `days` is the deadline then, failures included.
        gpus: GPUs that are there, where a model is asked for.
        days: wall time.
        budget: money [USD], in place of the GPUs or of the days.
        layout: `tp`, `pp` and the like in one piece: name -> values that the plans may have.
        progress: told before each plan: how many are done, about how many there are, and what it is of.
        options: without `gbs` the batch is at most the one that costs 20 % more tokens (`batch_size`).

    Raises:
        InputError: unusable input, or none of the combinations above.
        NoAnswerError: nothing fits into the GPUs, the time or the budget.
    """
    given, pins, question, recovery = read_asked(model, gpus, tokens, layout, options)
    for_gpus = "model" in given or question.train_tokens is not None
    days, usd = read(Length, {"days": days}).days, read(Means, {"budget": budget}).budget
    _check(given, days, usd, for_gpus=for_gpus)
    compared = "`gpuscale plan` compares several"
    single = {name: only_value(name, value, "here", compared) for name, value in given.items()}
    sequence = int(single.get("seq") or DEFAULT_SEQUENCE)
    asked = _Asked(single, pins, question, recovery, sequence, progress or (lambda *_: None))
    return _fewest_gpus(asked, days or 0.0) if for_gpus else _model(asked, days, usd)


def _check(given: Mapping[str, Any], days: float | None, budget: float | None, *, for_gpus: bool) -> None:
    if for_gpus:
        missing = next((name for name in ("model", "train_tokens") if given.get(name) is None), None)
        if missing or days is None:
            what = missing or "days"
            hint = "the fewest GPUs follow from `model`, `train_tokens=15T` and the days"
            raise InputError(f"`{what}` is missing", field=None, hint=hint)
        stray = "gpus" if "gpus" in given else "budget" if budget is not None else None
        if stray:
            hint = "leave it out; `gpuscale train-time` shows how long these GPUs take, and the cost"
            raise InputError("cannot be given where the fewest GPUs are asked for", field=stray, hint=hint)
    elif "gpus" in given and days is not None and budget is not None:
        raise InputError("is given beside GPUs and days", field="budget", hint="leave one of the three out")
    elif budget is None and ("gpus" not in given or days is None):
        hint = "give GPUs and days, a budget in USD with one of them or alone, or `model`, `train_tokens` and days"
        if "gpus" not in given and days is None:
            raise InputError("which model, or how many GPUs?", hint=hint)
        raise InputError(f"`{'days' if 'gpus' in given else 'gpus'}` or `budget` is missing", hint=hint)


def _model(asked: _Asked, days: float | None, usd: float | None) -> Size:
    notes: list[str] = []
    gpus, wall_days = _paid_for(asked, days, usd, notes)
    spec = _first_job(asked, gpus).spec
    notes += spec.cluster.caveats
    flops_per_s = spec.cluster.gpu.peak(spec.precision) * FIRST_MFU * FIRST_RATIO
    asked = asked._replace(product_per_gpu_s=flops_per_s / FLOPS_PER_PARAMETER_TOKEN)
    guess = math.sqrt(asked.product_per_gpu_s * gpus * wall_days * DAY_S / USUAL_RATIO)
    if usd is not None:
        gpus, wall_days = _with_spares(asked, gpus, wall_days, days, usd, guess)
    found: list[_Found] = []
    last: GpuscaleError | None = None
    for done, ratio in enumerate((None, *RATIOS)):
        what = f"{'about ' * (ratio is None)}{ratio or USUAL_RATIO:g} tokens per parameter"
        asked.progress(done, 1 + len(RATIOS), what)
        if found:
            guess = math.sqrt(found[-1].row.parameters * found[-1].row.tokens / (ratio or USUAL_RATIO))
        try:
            one = _sized(asked, gpus, wall_days, ratio, guess)
        except GpuscaleError as error:
            notes.append(f"{what}: {error.message}")
            last = error
            continue
        if not found or one.row.model != found[-1].row.model:
            found.append(one)
    if not found and last is not None:
        raise last
    rows = [one.row for one in found]
    best = min(range(len(rows)), key=lambda at: rows[at].loss or math.inf)
    flops = FLOPS_PER_PARAMETER_TOKEN * rows[0].parameters * rows[0].tokens
    answer = splits(flops)
    return Size(
        question="model",
        cluster=found[0].total.cluster,
        gpus=gpus,
        days=wall_days,
        budget_usd=usd,
        flops=flops,
        laws=answer,
        choices=tuple(rows),
        best=best,
        assumptions=_price(found[best].total),
        notes=(*notes, *_law_notes(rows, answer)),
        job=found[best].total.job,
    )


def _first_job(asked: _Asked, gpus: int) -> Job:
    """Of a small model: what is known before any size is."""
    return build_job(read(JobOptions, {**_job_options(asked), "model": dense_shape(1e9).stated, "gpus": gpus}))


def _paid_for(asked: _Asked, days: float | None, usd: float | None, notes: list[str]) -> tuple[int, float]:
    """GPUs and days that are given, or that the budget pays for."""
    gpus = asked.options.get("gpus")
    if usd is None:
        return int(gpus or 0), float(days or 0.0)
    job = _first_job(asked, int(gpus or 1))
    price, _, said = gpu_hour_prices(job, asked.question)
    if price is None:
        raise InputError(said[0], field="budget")
    hours = usd / price.value
    if gpus is not None:
        return int(gpus), min(1e5, hours * HOUR_S / (gpus * DAY_S))
    wall_days = USUAL_DAYS if days is None else days
    afforded = hours * HOUR_S / (wall_days * DAY_S)
    if days is None:
        notes.append(f"GPUs for about {wall_days:g} days, as neither GPUs nor days are given")
    count = max((one for one in _all_counts(_whole(asked)) if one <= afforded), default=0)
    if not count:
        message = f"{usd:,.0f} USD pay for {hours:.3g} GPU-hours, less than one GPU for {wall_days:g} days"
        raise NoAnswerError(message, hint="give fewer days, or a larger budget")
    return count, min(1e5, hours * HOUR_S / (count * DAY_S)) if days is None else days


def _with_spares(
    asked: _Asked, gpus: int, wall_days: float, days: float | None, usd: float, guess: float
) -> tuple[int, float]:
    """The same with the spare nodes that a plan of the job counts on."""
    cost = _trained(asked, gpus, wall_days, dense_shape(_clamped(guess)).stated, optimal=False).total.cost_usd or 0.0
    if cost <= usd:
        return gpus, wall_days
    if days is None:
        return gpus, wall_days * usd / cost
    fewer = [one for one in _all_counts(_whole(asked)) if one * cost <= usd * gpus]
    if not fewer:
        message = f"{usd:,.0f} USD do not pay for one GPU with its spare nodes"
        raise NoAnswerError(message, hint="give fewer days, or `spares=0`")
    return fewer[-1], wall_days


def _whole(asked: _Asked) -> ClusterSpec:
    return Presets().whole(read(JobOptions, {**_job_options(asked), "model": "", "gpus": 1}))


def _clamped(parameters: float) -> float:
    return min(max(parameters, LEAST_PARAMETERS), MOST_PARAMETERS)


def _job_options(asked: _Asked) -> dict[str, Any]:
    return part(asked.options, JobOptions)


def _sized(asked: _Asked, gpus: int, days: float, ratio: float | None, guess: float) -> _Found:
    """The model that is trained on `ratio` tokens per parameter in some days (None: the optimum of the law). The
    product of parameters and tokens depends little on the size, so that its root over the ratio is the next to try."""
    tried: dict[str, _Found] = {}
    off: dict[str, float] = {}
    if guess < LEAST_PARAMETERS:
        message = f"{plural(gpus, 'GPU')} for {days:.3g} days are enough for {format_count(guess)} parameters"
        hint = f"models begin at {format_count(LEAST_PARAMETERS)} here: give more GPUs or days"
        raise NoAnswerError(message, hint=hint)
    while len(tried) < MAX_TRIES:
        model = dense_shape(_clamped(guess)).stated
        if model in tried:
            break
        tried[model] = found = _trained(asked, gpus, days, model, optimal=ratio is None)
        product = found.row.parameters * found.row.tokens
        parameters, tokens = REFERENCE_LAW.optimal(FLOPS_PER_PARAMETER_TOKEN * product)
        wanted = ratio or tokens / parameters
        off[model] = abs(math.log(found.row.tokens_per_parameter / wanted))
        if off[model] <= NEAR:
            break
        guess = math.sqrt(product / wanted)
    return tried[min(off, key=lambda one: off[one])]


def _trained(asked: _Asked, gpus: int, days: float, model: str, *, optimal: bool) -> _Found:
    parameters = float(model_parameters(Presets().model(model)).active)
    tokens = asked.product_per_gpu_s * gpus * days * DAY_S / parameters
    subject = _planned(asked, {"model": model, "gpus": gpus}, tokens)
    total = totals([Stretch("training", subject, None, days)], asked.question, asked.recovery)
    return _Found(_row(subject, total, total.tokens, optimal=optimal, meets=True), total)


def _planned(asked: _Asked, options: Mapping[str, Any], tokens: float) -> Subject:
    """The best plan with the usual batch, or with the largest advisable where that one leaves GPUs idle."""
    job = {**asked.options, **options}
    if job.get("gbs") is not None:
        return best_plan(job, asked.pins)
    usual, *larger = usual_batches(job["gpus"], asked.sequence, tokens)
    first = best_plan({**job, "gbs": in_sequences(usual)}, asked.pins)
    if not larger or first.estimate.plan.mfu >= LOW_MFU:
        return first
    second = best_plan({**job, "gbs": in_sequences(larger[0])}, asked.pins)
    return min(first, second, key=lambda one: _factor(one, tokens) / one.estimate.plan.tokens_per_s)


def _factor(subject: Subject, tokens: float) -> float:
    return tokens_factor(subject.spec.tokens_per_step, REFERENCE.batch(tokens))


def _row(subject: Subject, total: TrainTime, tokens: float, *, optimal: bool, meets: bool) -> SizeRow:
    spec, plan, phase = subject.spec, subject.estimate.plan, total.phases[0]
    model, dense = spec.model, not spec.model.is_moe
    parameters = float(model_parameters(model).active)
    return made(
        SizeRow,
        vars(phase) | vars(plan) | vars(total),  # the same names for the same numbers
        optimal=optimal,
        model=str(subject.job.request["model"]),
        parameters=parameters,
        layers=len(model.pattern),
        hidden=model.hidden,
        presets=presets_near(parameters) if dense else (),
        tokens=tokens,
        tokens_per_parameter=tokens / parameters,
        loss=BESIROGLU.loss(parameters, tokens) if dense else None,
        loss_in_range=dense and BESIROGLU.in_range(parameters, tokens),
        overtraining=BESIROGLU.overtraining(parameters, tokens) if dense else None,
        batch_tokens=spec.tokens_per_step,
        tokens_factor=_factor(subject, tokens),
        meets=meets,
    )


def _price(total: TrainTime) -> dict[str, Rate]:
    return {name: rate for name, rate in total.assumptions.items() if name == "gpu_hour_price"}


def _law_notes(rows: Sequence[SizeRow], answer: Sequence[Split]) -> Iterator[str]:
    reference = next(one for one in answer if one.law == REFERENCE_LAW.name)
    if reference.beyond != 1.0:
        times = f"{reference.beyond:.3g} times that of the largest" if reference.beyond > 1 else "less than that of all"
        yield f"the compute is {times} runs behind {reference.law}: laws that agree there diverge here"
    if not all(one.loss_in_range for one in rows):
        yield "losses marked ~ are beyond the sizes or tokens that the law was fitted to"
    if any(one.tokens > MOST_TOKENS for one in rows):
        yield f"no published training has more than {format_count(MOST_TOKENS)} tokens: data would repeat"


def _fewest_gpus(asked: _Asked, days: float) -> Size:
    """With what half and twice as many give."""
    tokens, presets = float(asked.question.train_tokens or 0.0), Presets()
    base = read(JobOptions, {**_job_options(asked), "gpus": 1, "gbs": None})
    counts = _all_counts(presets.cluster_of(base))
    spec = build_job(base, presets).spec
    flops = training_flops_per_token(spec.model, spec.sequence, "causal", spec.tuning) * tokens
    needed = flops / (spec.cluster.gpu.peak(spec.precision) * FIRST_MFU * FIRST_RATIO * days * DAY_S)
    tried: dict[int, _Found | NoAnswerError] = {}

    def meets(at: int) -> bool:
        count = counts[at]
        if count not in tried:
            asked.progress(len(tried), max(6, len(tried) + 2), plural(count, "GPU"))
            try:
                subject = _planned(asked, {"gpus": count}, tokens)
            except NoAnswerError as error:
                tried[count] = error
            else:
                total = totals([Stretch("training", subject, tokens)], asked.question, asked.recovery)
                row = _row(subject, total, tokens, optimal=False, meets=total.wall_s <= days * DAY_S)
                tried[count] = _Found(row, total)
        found = tried[count]
        return not isinstance(found, NoAnswerError) and found.row.meets

    fewest = _first_true(meets, len(counts), bisect_left(counts, needed))
    if fewest is None:
        raise _never(tried, days)
    best = counts[fewest]
    for count in (best // 2, 2 * best):
        if count and count <= counts[-1] and count not in tried and count in counts:
            meets(counts.index(count))
    found = {count: one for count, one in sorted(tried.items()) if not isinstance(one, NoAnswerError)}
    shown = [count for count in found if best / 2 <= count <= 2 * best]
    chosen = found[best]
    notes = [*spec.caveats]
    notes += [f"{plural(count, 'GPU')}: {one.message}" for count, one in sorted(tried.items())
             if isinstance(one, NoAnswerError) and best / 2 <= count]  # fmt: skip
    if chosen.row.wall_high_s > days * DAY_S:
        late = chosen.row.wall_high_s / DAY_S
        notes.append(f"at the upper end of its 80 % interval it takes {late:.3g} days: plan for more GPUs, or for that")
    below = counts[fewest - 1] if fewest else 0
    if best - below > 1 and below:
        notes.append(f"no count between {below:,} and {best:,} was tried: `plan` with `gpus=N` says what it gives")
    return Size(
        question="gpus",
        cluster=chosen.total.cluster,
        gpus=best,
        days=days,
        budget_usd=None,
        flops=FLOPS_PER_PARAMETER_TOKEN * chosen.row.parameters * tokens,
        laws=(),
        choices=tuple(found[count].row for count in shown),
        best=shown.index(best),
        assumptions=_price(chosen.total),
        notes=tuple(notes),
        job=chosen.total.job,
    )


def _all_counts(whole: ClusterSpec) -> tuple[int, ...]:
    found: list[int] = []
    for low, high in ((1, 1024), (1025, MAX_GPUS)):
        with suppress(InputError):  # the cluster has none of them
            found += gpu_counts(Range(low, high), whole)
    return tuple(found)


def _first_true(holds: Callable[[int], bool], count: int, guess: int) -> int | None:
    """The first place from which on something holds, looking outward from a guess; None if nowhere."""
    low, high, step = -1, min(max(guess, 0), count - 1), 1
    while not holds(high):
        low = high
        if high == count - 1:
            return None
        high, step = min(high + step, count - 1), 2 * step
    step = 1
    while high - low > 1:
        middle = max(low + 1, high - step) if low < 0 else (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
        step *= 2
    return high


def _never(tried: Mapping[int, _Found | NoAnswerError], days: float) -> NoAnswerError:
    found = [one.row for one in tried.values() if not isinstance(one, NoAnswerError)]
    if not found:
        return next(one for one in tried.values() if isinstance(one, NoAnswerError))
    row = min(found, key=lambda one: one.wall_s)
    message = f"no number of GPUs meets {days:g} days: {plural(row.gpus, 'GPU')} take {row.wall_s / DAY_S:.3g}"
    return NoAnswerError(message, hint="give more days, fewer tokens, or a larger batch (`gbs`)")
