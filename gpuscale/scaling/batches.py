"""`batch-size`: up to which batch tokens are not wasted, and what each batch takes with a plan of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuscale.architecture.parameters import model_parameters
from gpuscale.arguments import taking
from gpuscale.display import WithFields, displayed
from gpuscale.errors import InputError, NoAnswerError, shown
from gpuscale.layouts.space import odd_factor
from gpuscale.planning.jobs import Presets, tower_of
from gpuscale.planning.variants import batch_sizes, gpu_counts
from gpuscale.presets.rates import Rate
from gpuscale.presets.tables import made
from gpuscale.request import (
    COMPARED,
    DEFAULT_SEQUENCE,
    MAX_BATCH,
    OF_ONE_PLAN,
    JobOptions,
    Layout,
    Noise,
    Question,
    Range,
    Recovery,
    check_batch,
    first_of,
    in_sequences,
    part,
    read,
    read_several,
    sequences_of,
    taken,
)
from gpuscale.scaling.batch_laws import REFERENCE, BatchAnswer, Norm, batches, largest_batch, tokens_factor
from gpuscale.scaling.batch_laws import noise_scale as _noise_scale
from gpuscale.training.totals import Stretch, TrainTime, best_plan, read_asked, totals
from gpuscale.units import BATCH_TOKENS, MAX_COUNT, NUMBER, format_count, plural

AROUND = (-3, 1)
"""Powers of two around the largest advisable batch that are looked at."""

MAX_PLANS = 64


@dataclass(frozen=True)
class BatchRow:
    """One batch with its plan."""

    gpus: int  #: GPUs of the job
    global_batch_size: int  #: sequences per optimizer step
    batch_tokens: int  #: tokens per optimizer step
    tokens_factor: float  #: tokens for the same loss over those of tiny batches: 1 + batch / critical batch
    tokens: float  #: tokens that it takes
    steps: int  #: optimizer steps that it takes
    layout: str  #: its plan, in words
    step_time_s: float  #: seconds per step, as predicted
    mfu: float  #: share of the dense peak, 0 to 1
    wall_s: float  #: seconds, with failures and restarts
    gpu_hours: float  #: GPU-hours of its steps
    cost_usd: float | None  #: money for its GPUs over `wall_s`; null without a price


@displayed
@dataclass(frozen=True)
class BatchSize(WithFields):
    """Which batch to train with."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    parameters: float  #: parameters that one token uses
    tokens: float  #: tokens of the training, if its batches were tiny
    sequence: int  #: tokens per sequence
    critical_batch_tokens: float  #: the batch with which it needs twice the tokens
    critical_source: str  #: the law that says so, or what was measured
    largest_batch_tokens: float  #: the batch with which it needs 20 % more tokens
    laws: tuple[BatchAnswer, ...]  #: what each law says
    batches: tuple[BatchRow, ...]  #: batches with their plans
    fastest: int  #: place in `batches` of the one that is done first
    cheapest: int  #: place of the one with the fewest GPU-hours paid for
    skipped: tuple[str, ...]  #: batches without a plan, and why
    assumptions: Mapping[str, Rate]  #: rate -> value, source and date of what the answer takes from elsewhere
    notes: tuple[str, ...] = ()  #: what a reader should know: answers outside the range of a law
    #: options that make the job of the fastest batch again, as in `gpuscale.plan/1`
    job: Mapping[str, str | int | float] = field(default_factory=dict)


@taking(taken(JobOptions, Layout, Question, Noise, Recovery, without=OF_ONE_PLAN, several=COMPARED, pins=True))
def batch_size(
    model: str | None = None,
    gpus: Any = None,
    tokens: Any = None,
    *,
    noise_scale: float | str | None = None,
    gradient_norm: Any = None,
    layout: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> BatchSize:
    """Return up to which batch a training wastes few tokens, and what batches around it take, each with its best plan.

    Args:
        model, gpus: as in `plan`; several GPU counts are compared.
        tokens: tokens that the training takes with tiny batches, such as `15e12` or `"15T"`.
        noise_scale: the gradient noise scale that was measured, in tokens, in place of a law.
        gradient_norm: two pairs of a batch in tokens and the norm of its gradient, `{"512k": 0.9, "4M": 0.5}` or
            `["512k=0.9", "4M=0.5"]`, of which it is worked out.
        layout: `tp`, `pp` and the like in one piece: name -> values that the plans may have.
        progress: told before each plan: how many are done, how many there are, and its batch.
        options: `gbs` names the batches to look at.

    Raises:
        InputError: unusable input.
        NoAnswerError: no batch has a plan.
    """
    asked, pins, question, recovery = read_asked(model, gpus, tokens, layout, options)
    missing = next((name for name in ("model", "gpus", "train_tokens") if name not in asked), None)
    if missing:
        raise InputError(f"`{missing}` is missing", hint="give `model`, `gpus` and `train_tokens=15T`")
    presets, length = Presets(), float(question.train_tokens or 0.0)
    base = _base(asked)
    spec = presets.model(base.model)
    parameters = float(model_parameters(spec).active)
    said = batches(parameters, length)
    critical, source = _critical(said, read(Noise, {"noise_scale": noise_scale}).noise_scale, gradient_norm)
    sequence = base.seq or min(DEFAULT_SEQUENCE, spec.max_sequence)
    wanted = [
        (count, size)
        for count in _counts(asked["gpus"], base, presets)
        for size in _sizes(asked.get("gbs"), count, sequence, largest_batch(critical))
    ]
    if len(wanted) > MAX_PLANS:
        message = f"{len(wanted)} plans, at most {MAX_PLANS}"
        raise InputError(message, field="gbs", hint="give fewer GPU counts or batches")
    rows, skipped, found = [], [], []
    for done, (count, size) in enumerate(wanted):
        what = f"batches of {format_count(size * sequence)} tokens on {plural(count, 'GPU')}"
        if progress is not None:
            progress(done, len(wanted), what)
        one = {**asked, "gpus": count, "gbs": in_sequences(size)}
        try:
            row, result = _row(one, pins, length, critical, question, recovery)
        except NoAnswerError as error:
            skipped.append(f"{what}: {error.message}")
            continue
        rows.append(row)
        found.append(result)
    if not rows:
        raise NoAnswerError(f"no batch size has a plan: {skipped[0]}", hint="`gpuscale plan` of one shows the reason")
    fastest = min(range(len(rows)), key=lambda at: rows[at].wall_s)
    best = found[fastest]
    return BatchSize(
        model=best.model,
        cluster=best.cluster,
        parameters=parameters,
        tokens=length,
        sequence=sequence,
        critical_batch_tokens=critical,
        critical_source=source,
        largest_batch_tokens=largest_batch(critical),
        laws=said,
        batches=tuple(rows),
        fastest=fastest,
        cheapest=min(range(len(rows)), key=lambda at: found[at].billed_gpu_hours),
        skipped=tuple(skipped),
        assumptions={name: rate for name, rate in best.assumptions.items() if name == "gpu_hour_price"},
        notes=(*spec.caveats_with(tower_of(base, spec)), *presets.whole(base).caveats, *_notes(said, source)),
        job=best.job,
    )


def _base(asked: Mapping[str, Any]) -> JobOptions:
    single = {name: first_of(name, value) for name, value in part(asked, JobOptions).items()}
    return read(JobOptions, {**single, "gpus": 1, "gbs": None})


def _counts(given: Any, base: JobOptions, presets: Presets) -> tuple[int, ...]:
    several = read_several("gpus", given)
    if isinstance(several, Range):
        return gpu_counts(several, presets.cluster_of(base))
    return tuple(read(JobOptions, {"model": base.model, "gpus": count}).gpus for count in several)


def _sizes(given: Any, gpus: int, sequence: int, largest: float) -> tuple[int, ...]:
    """Batches [sequences]: those given, or powers of two around the largest advisable one, times the odd number that
    the GPUs are a multiple of, which data parallelism may be."""
    if given is not None:
        several = read_several("gbs", given)
        for one in several if isinstance(several, tuple) else ():
            check_batch(one if isinstance(one, int) else 0, sequence)
        listed = batch_sizes(several, gpus) if isinstance(several, Range) else several
        return tuple(dict.fromkeys(sequences_of(one, sequence) if isinstance(one, str) else one for one in listed))
    odd = odd_factor(gpus)
    middle = math.floor(math.log2(min(max(1.0, largest / sequence / odd), MAX_BATCH / odd)))
    low, high = (middle + step for step in AROUND)
    return tuple(odd << power for power in range(max(0, low), max(0, high) + 1) if odd << power <= MAX_BATCH)


def _critical(said: tuple[BatchAnswer, ...], scale: float | None, norms: Any) -> tuple[float, str]:
    """The critical batch [tokens] and where it comes from."""
    if scale is not None and norms is not None:
        raise InputError("`noise_scale` and `gradient_norm` are mutually exclusive", hint="the norms give the scale")
    if scale is not None:
        return scale, "the noise scale that was measured"
    if norms is not None:
        return _noise_scale(*_norms(norms)), "the noise scale of the gradients that were measured"
    law = next(one for one in said if one.law == REFERENCE.name)
    return law.batch_tokens, law.law


def _norms(given: Any) -> tuple[Norm, Norm]:
    hint = "give two: 512k=0.9 and 4M=0.5, tokens of a batch and the norm of its gradient"
    if isinstance(given, str):
        given = given[:1024].split(",")
    pairs: list[tuple[Any, Any]] = []
    if isinstance(given, Mapping):
        pairs += given.items()
    else:
        for one in given if isinstance(given, list | tuple) else [given]:
            batch, equals, value = str(one)[:200].partition("=")
            if not equals:
                raise InputError(f"{shown(one)} is not BATCH=NORM", field="gradient_norm", hint=hint)
            pairs.append((batch.strip(), value.strip()))
    if len(pairs) != 2:
        raise InputError(f"{plural(len(pairs), 'norm')}, not 2", field="gradient_norm", hint=hint)
    norm = replace(NUMBER, what="a norm", example=hint)
    first, second = (
        Norm(BATCH_TOKENS.read(batch, "gradient_norm", 1, MAX_COUNT), norm.read(value, "gradient_norm", 1e-30, 1e30))
        for batch, value in pairs
    )
    return first, second


def _row(
    asked: Mapping[str, Any],
    pins: Mapping[str, Any],
    length: float,
    critical: float,
    question: Question,
    recovery: Recovery,
) -> tuple[BatchRow, TrainTime]:
    subject = best_plan(asked, pins)
    each = subject.spec.tokens_per_step
    factor = tokens_factor(each, critical)
    found = totals([Stretch("training", subject, length * factor)], question, recovery)
    alike = vars(found.phases[0]) | vars(subject.estimate.plan) | vars(found)  # the same names for the same numbers
    return made(BatchRow, alike, batch_tokens=each, tokens_factor=factor), found


def _notes(said: tuple[BatchAnswer, ...], source: str) -> Iterator[str]:
    law = next((one for one in said if one.law == source), None)
    if law is not None and law.beyond != 1.0:
        where = f"{law.beyond:.3g} times the longest" if law.beyond > 1.0 else f"{law.beyond:.2g} of the shortest"
        yield f"the training is {where} of those that {law.law} was fitted to: `gradient_norm` takes your measurements"
    yield (
        "the critical batch is that of the whole training: it grows with the tokens seen, so published runs ramp "
        "the batch size up; learning rate and weight decay must be tuned for each batch"
    )
