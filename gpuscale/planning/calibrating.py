"""`calibrate_run`: factors of a site from logs of its training runs, and each run beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arguments import public, taking
from gpuscale.arrays import FloatArray, log
from gpuscale.calibration.factors import factor_of, names_for, with_factors
from gpuscale.calibration.site import (
    NOISE,
    NORMAL_80,
    Fitted,
    Known,
    fit,
    layout_key,
    likeness,
    product,
    remainder_covariance,
    sensitivities,
)
from gpuscale.calibration.site_file import MAX_RUNS, EvidenceRun, FactorValue, Site, read_site, site_text
from gpuscale.calibration.traces import read_run_log
from gpuscale.calibration.training_logs import MeasuredRun
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.files import write_text
from gpuscale.layouts.arrays import Candidates
from gpuscale.planning.jobs import Job, Presets, calibrated, half_widths
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.planfile import from_folder, in_folder
from gpuscale.planning.plans import job_of
from gpuscale.request import JobOptions, Layout, read, taken, with_layout
from gpuscale.rules.check import FATAL, broken_rules
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.site import AXES, MOST
from gpuscale.steptime.components import COMMUNICATION, IN_LAYERS, INDEX
from gpuscale.uncertainty import evidence, features
from gpuscale.units import GIB, format_seconds
from gpuscale.version import __version__

MEMORY_NOISE = 0.03
"""Standard deviation of log(measured / predicted memory) that no factor explains: blocks of the allocator, ranks."""


class AskedRun(NamedTuple):
    """A measured run with the job and the layout that it had."""

    measured: MeasuredRun
    options: Mapping[str, Any]  #: of `JobOptions`.
    layout: Mapping[str, Any]  #: of `Layout`.


@dataclass(frozen=True)
class RunBeside:
    """A measured run beside its prediction."""

    file: str  #: the log.
    measured_step_time_s: float  #: median seconds per step [s].
    predicted_step_time_s: float  #: predicted seconds per step [s].
    step_time_low_s: float  #: lower end of the 80 % interval of the prediction [s].
    step_time_high_s: float  #: its upper end [s].
    error: float  #: (predicted - measured) / measured.
    measured_memory_gib: float | None  #: most memory of a GPU; None where the log does not say [GiB].
    predicted_memory_gib: float | None  #: the same predicted, as the log counts it [GiB].
    breakdown: dict[str, float]  #: predicted seconds by component [s].


@dataclass(frozen=True)
class Agreement:
    """Predictions of the measured runs, before or after the calibration."""

    median_error: float  #: median of the absolute errors.
    half_width: float  #: median of half the widths of the 80 % intervals, over the prediction.
    runs: tuple[RunBeside, ...]  #: each of them.


@displayed
@dataclass(frozen=True)
class CalibratedRun:
    """What logs of training runs say of a site."""

    site: Site  #: the calibration.
    before: Agreement  #: the runs as they are predicted without it.
    after: Agreement  #: and with it: of runs that it was fitted to, not of others.
    new: tuple[MeasuredRun, ...]  #: runs that the logs add to those of an earlier calibration.
    #: the framework's own timers beside predicted components, for each new run.
    groups: tuple[tuple[TimerGroup, ...], ...]
    notes: tuple[str, ...]  #: what a reader should know.

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the JSON answer."""
        factors = {name: value.model_dump() for name, value in self.site.factors.items()}
        return {"factors": factors, "before": self.before, "after": self.after, "notes": self.notes}


@dataclass(frozen=True)
class TimerGroup:
    """Timers of the framework beside the components that they enclose."""

    name: str  #: what they measure.
    measured_s: float  #: of the timers together [s].
    predicted_s: float  #: of the components together [s].
    components: tuple[str, ...]  #: the components.


PARTS_NOISE = 0.07
"""The same of a part of a step: where one ends is drawn otherwise in timers and traces than here (guesstimate)."""

LEAST_PART = 0.01
"""Share of the predicted step from which on a part of it is fitted."""

FITTED = ("computation of microbatches", "computation", "exposed communication", "optimizer")
"""Of `TIMERS` those whose parts are fitted; the others include waiting for other ranks."""

MICROBATCHES = ("gemm", "attention", "recompute", "elementwise", "waiting", "launch", *IN_LAYERS)
TIMERS = (
    ("forward and backward passes", ("forward-backward",),
     (*MICROBATCHES, "bubble", "pp_comm")),
    ("computation of microbatches", ("forward-compute", "backward-compute"), MICROBATCHES),
    ("computation of microbatches", ("forward", "backward-backward"), MICROBATCHES),
    ("pipeline: transfers and waiting",
     ("forward-recv", "forward-send", "backward-recv", "backward-send", "forward-send-backward-recv",
      "backward-send-forward-recv", "forward-send-forward-recv", "backward-send-backward-recv"),
     ("bubble", "pp_comm")),
    ("gradients and parameters",
     ("all-grads-sync", "params-all-gather", "backward-params-all-reduce", "grads-all-reduce", "grads-reduce-scatter"),
     ("dp_comm",)),
    ("optimizer", ("optimizer",), ("optimizer",)),
    ("computation", ("computation",), ("gemm", "attention", "recompute", "elementwise", "optimizer", "waiting")),
    ("exposed communication", ("exposed communication",), COMMUNICATION),
    ("idle", ("idle",), ("bubble", "launch", "offload")),
)  # fmt: skip
"""What is compared, the timers and the components that add up to it. Timers of Megatron-LM (training.py,
pipeline_parallel/schedules.py) include the waiting for other ranks; the last three are of profiler traces."""


class _Run(NamedTuple):
    file: str
    step_time_s: float
    memory: tuple[str, float] | None
    job: Job
    rows: Candidates
    options: Mapping[str, Any]
    layout: Mapping[str, Any]
    parts_s: Mapping[str, float]
    noise: float = NOISE


class _Part(NamedTuple):
    run: int
    components: tuple[int, ...]
    measured_s: float


@taking(taken(JobOptions, Layout))
def calibrate_run(
    logs: Sequence[Path],
    model: str,
    gpus: int,
    layout: Mapping[str, Any] | None = None,
    *,
    calibration: str | None = None,
    **options: Any,
) -> CalibratedRun:
    """Fit a site's factors to logs of one job; `save_site` writes them.

    Args:
        logs: logs of training runs, or traces of PyTorch's profiler.
        model, gpus, layout, options: what ran, as `estimate` takes it.
        calibration: an earlier calibration, to whose runs these are added.

    Raises:
        InputError: a log that cannot be read or contradicts the job, or unusable options.
    """
    options, layout = with_layout(options, layout)
    job = {"model": model, "gpus": gpus, **options}
    return calibrate_runs([AskedRun(read_run_log(log), job, layout) for log in logs], earlier=calibration)


@public
def save_site(path: Path, result: CalibratedRun) -> None:
    """Write a calibration; the files that its jobs name become relative to its folder.

    Raises:
        InputError: the file cannot be written.
    """
    runs = tuple(run.model_copy(update={"job": in_folder(run.job, path.parent)}) for run in result.site.runs)
    write_text(path, site_text(replace(result.site, runs=runs)))


def calibrate_runs(asked: Sequence[AskedRun], *, earlier: str | None = None, name: str = "") -> CalibratedRun:
    """Fit a site's factors to measured runs, whose own `calibration` does not count, and to those of an `earlier` site
    file; `name` is the file that the calibration will be in.

    Raises:
        InputError: a log that contradicts its job, a layout that cannot be, or too many runs.
    """
    presets, notes = Presets(), list[str]()
    runs = _earlier_runs(earlier, presets) if earlier else []
    fresh = [_run(one, presets, notes) for one in asked]
    runs += fresh
    if len(runs) > MAX_RUNS:
        raise InputError(f"{len(runs)} runs", place="LOG", hint=f"a calibration holds at most {MAX_RUNS}")
    known = [Known(likeness(run.job.spec), layout_key(run.rows.row(0))) for run in runs]
    names = tuple(dict.fromkeys(name for run in runs for name in names_for(run.job.spec)))

    parts = _parts(runs)

    def predict(factors: Mapping[str, float]) -> FloatArray:
        steps = [evaluate(run.rows, with_factors(run.job.spec, factors)).step for run in runs]
        times = [float(step.step_time_s[0]) for step in steps]
        of_parts = (float(steps[part.run].components[list(part.components), 0].sum()) for part in parts)
        return log(np.array([*times, *(max(time, 1e-9) for time in of_parts)]))

    covariance = np.zeros((len(runs) + len(parts),) * 2)
    covariance[: len(runs), : len(runs)] = remainder_covariance(known, known)
    seconds = [*(run.step_time_s for run in runs), *(part.measured_s for part in parts)]
    noise = [run.noise for run in runs] + [PARTS_NOISE] * len(parts)
    fitted = fit(predict, seconds, names, covariance, noise=noise)
    for run, residual in zip(runs, fitted.residual.tolist(), strict=False):  # after the runs come their parts
        if abs(residual) > FARTHEST:
            message = f"a step of {run.step_time_s:g} s is {math.exp(min(abs(residual), 700)):.0e} times off its job"
            raise InputError(message, place=run.file, hint="give the job that was logged, or leave the run out")
    deviations = np.sqrt(np.maximum(np.diag(fitted.covariance), 0.0))
    factors = {
        name: _value(float(theta), float(deviation))
        for name, theta, deviation in zip(fitted.names, fitted.theta, deviations, strict=True)
    } | _memory_factor(runs)
    rest = product(remainder_covariance(known, known), fitted.weight[: len(runs), None])[:, 0]
    unexplained = np.abs(fitted.residual[: len(runs)] - np.clip(rest, -MOST, MOST))
    fitted = replace(fitted, noise=np.maximum(fitted.noise[: len(runs)], unexplained))
    told = tuple(_evidence(index, run, fitted, known[index]) for index, run in enumerate(runs))
    site = Site(name, __version__, factors, told)
    before, after = _side(fresh, None), _side(fresh, site)
    notes += [
        f"{one.file} took {format_seconds(one.measured_step_time_s)}, predicted are "
        f"{format_seconds(one.predicted_step_time_s)}: more than a site explains; is this what ran?"
        for one in before.runs
        if abs(math.log(one.measured_step_time_s / one.predicted_step_time_s)) > MOST
    ]
    groups = tuple(
        tuple(
            TimerGroup(timer, time_s, math.fsum(beside.breakdown[part] for part in components), components)
            for timer, time_s, components in _timed(one.measured)
        )
        for one, beside in zip(asked, before.runs, strict=True)
    )
    measured = tuple(one.measured for one in asked)
    notes += [note for one in measured for note in one.notes]
    return CalibratedRun(site, before, after, measured, groups, tuple(dict.fromkeys(notes)))


def _parts(runs: Sequence[_Run]) -> list[_Part]:
    """Return the parts of steps that were measured by themselves and can be told from noise."""
    found = []
    for index, run in enumerate(runs):
        step = evaluate(run.rows, run.job.spec).step
        seconds = step.seconds()
        for name, _, components in TIMERS:
            predicted_s = math.fsum(seconds[component] for component in components)
            if run.parts_s.get(name) and predicted_s > LEAST_PART * float(step.step_time_s[0]):
                found.append(_Part(index, tuple(map(INDEX.__getitem__, components)), run.parts_s[name]))
    return list({part[:2]: part for part in found}.values())


def _run(asked: AskedRun, presets: Presets, notes: list[str]) -> _Run:
    measured = asked.measured
    if measured.beside:
        message = f"a step of {measured.framework} holds {measured.beside}, which are not predicted"
        raise InputError(message, place=measured.file, hint="give a log of supervised training")
    options = {name: value for name, value in asked.options.items() if name != "calibration"}
    job, rows = _job(options, asked.layout, presets)
    spec = job.spec
    for what, field, said, ours in (
        ("a batch of {:,} sequences", "gbs", measured.batch, spec.global_batch_size),
        ("sequences of {:,} tokens", "seq", measured.sequence, spec.sequence),
        ("{:,} GPUs", "gpus", measured.gpus, spec.gpus),
    ):
        if said and said != ours:
            message = f"the log has {what.format(said)}, the job {ours:,}"
            raise InputError(message, place=measured.file, hint=f"give `{field}={said}`, or the log of this job")
    step_s, rate = measured.step_of(spec.tokens_per_step, spec.gpus), measured.tokens_per_s_per_gpu
    tokens = step_s * (rate or 0.0) * spec.gpus
    if tokens and measured.step_time_s is not None and abs(spec.tokens_per_step / tokens - 1) > DISAGREE:
        made = f"tokens/s and seconds of the log make a step of {tokens:,.0f} tokens"
        hint = "give `gpus`, `gbs` and `seq` of the run that was logged"
        raise InputError(f"{made}, the job has {spec.tokens_per_step:,}", place=measured.file, hint=hint)
    notes += job.notes
    own, profile = RULE_SETS_OF.get(measured.framework), spec.runtime.rule_set
    if own and not profile.startswith((*own, "generic")):
        notes.append(f"{measured.file} is a log of {measured.framework}, predicted is {profile}: give `framework`")
    basis = next((one for one in ("reserved", "nvidia-smi", "allocated") if one in measured.memory), None)
    memory = (basis, measured.memory[basis]) if basis else None
    layout = read(Layout, asked.layout).stated()
    parts_s = {name: time_s for name, time_s, _ in _timed(measured) if name in FITTED}
    return _Run(measured.file, step_s, memory, job, rows, job.request, layout, parts_s, max(measured.spread, NOISE))


RULE_SETS_OF = {
    "Megatron-LM": ("megatron",), "Megatron-Bridge": ("megatron-lm",), "NeMo": ("megatron-lm",),
    "torchtitan": ("torchtitan",), "nanotron": ("nanotron",), "DeepSpeed": ("deepspeed", "megatron-deepspeed"),
    "Composer": ("llm-foundry",),
}  # fmt: skip
"""Whose log it is -> beginnings of the rule sets by which it is predicted."""

FARTHEST = 15.0
"""Largest log(measured / predicted step time): beyond, a run cannot be of this job."""

DISAGREE = 0.1
"""Largest difference between a job's tokens per step and what a log's tokens/s and seconds make."""


def _job(options: Mapping[str, Any], layout: Mapping[str, Any], presets: Presets) -> tuple[Job, Candidates]:
    job = job_of(options, layout, presets)
    rows = fixed_layout(job.spec, layout)
    fatal = [rule.text for rule in broken_rules(rows, job.spec) if rule.code in FATAL]
    if fatal:
        raise InputError("; ".join(fatal), place="layout", hint="give the layout that ran")
    return job, rows


def _earlier_runs(path: str, presets: Presets) -> list[_Run]:
    found = []
    for run in read_site(Path(path)).runs:
        try:
            options = from_folder(run.job, Path(path).parent)
            job, rows = _job(options, run.layout, presets)
        except InputError as error:
            message = f"the run of {run.file[:100]} cannot be predicted again: {error.message}"
            raise InputError(message, place=path, hint="fit again from its log") from None
        memory = (run.memory_basis, run.memory_gib * GIB) if run.memory_gib else None
        found.append(
            _Run(run.file, run.step_time_s, memory, job, rows, options, run.layout, run.parts_s, run.spread or NOISE)
        )
    return found


def _value(theta: float, deviation: float) -> FactorValue:
    ends = (math.exp(theta + NORMAL_80 * step * deviation) for step in (0, -1, 1))
    value, low, high = (_rounded(end) for end in ends)
    return FactorValue(value=value, low=low, high=high)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _memory_factor(runs: Sequence[_Run]) -> dict[str, FactorValue]:
    """Fit the factor of the memory, apart from the others, which do not change it."""
    declared = factor_of("memory")
    told = [run for run in runs if run.memory]
    if not told or declared is None:
        return {}

    def predict(factors: Mapping[str, float]) -> FloatArray:
        jobs = [with_factors(run.job.spec, factors) for run in told]
        logged = (
            evaluate(run.rows, job).memory.logged(run.memory[0], job)[0]
            for run, job in zip(told, jobs, strict=True)
            if run.memory
        )
        return log(np.array([float(size) for size in logged]))

    measured = log(np.array([run.memory[1] for run in told if run.memory]))
    theta, precision = 0.0, 0.0
    for _ in range(5):
        base = predict({"memory": math.exp(theta)})
        slope = sensitivities(predict, ["memory"], {"memory": math.exp(theta)}, base)[:, 0]
        precision = 1 / declared.prior**2 + float((slope**2).sum()) / MEMORY_NOISE**2
        theta = float((slope * (measured - base + slope * theta)).sum()) / MEMORY_NOISE**2 / precision
        theta = min(max(theta, -4 * declared.prior), 4 * declared.prior)
    return {"memory": _value(theta, 1 / math.sqrt(precision))}


def _evidence(index: int, run: _Run, fitted: Fitted, known: Known) -> EvidenceRun:
    return EvidenceRun(
        file=run.file,
        step_time_s=_rounded(run.step_time_s),
        memory_gib=_rounded(run.memory[1] / GIB) if run.memory else None,
        memory_basis=run.memory[0] if run.memory else "reserved",
        residual=_rounded(float(fitted.residual[index])),
        noise=_rounded(float(fitted.noise[index])),
        weight=_rounded(float(fitted.weight[index])),
        sensitivity=dict(zip(fitted.names, map(_rounded, fitted.sensitivity[index].tolist()), strict=True)),
        like={name: value if isinstance(value, str) else _rounded(value) for name, value in known.like.items()},
        place=dict(zip(AXES, known.layout, strict=True)),
        spread=_rounded(run.noise) if run.noise > NOISE else None,
        parts_s={part: _rounded(time_s) for part, time_s in run.parts_s.items()},
        job=dict(run.options),
        layout=dict(run.layout),
    )


def _side(runs: Sequence[_Run], site: Site | None) -> Agreement:
    found = []
    for run in runs:
        spec = run.job.spec if site is None else calibrated(run.job.spec, site)[0]
        done = evaluate(run.rows, spec)
        step_s, layout = float(done.step.step_time_s[0]), run.rows.row(0)
        seconds = done.step.seconds()
        (around,) = evidence([features(spec, layout, seconds)])
        half = math.log(around.high)
        if site is not None:
            half = min(half, float(half_widths(spec, site, run.rows)[0]))
        memory = float(done.memory.logged(run.memory[0], spec)[0]) / GIB if run.memory else None
        found.append(
            RunBeside(
                file=run.file,
                measured_step_time_s=run.step_time_s,
                predicted_step_time_s=step_s,
                step_time_low_s=step_s * math.exp(-half),
                step_time_high_s=step_s * math.exp(half),
                error=(step_s - run.step_time_s) / run.step_time_s,
                measured_memory_gib=run.memory[1] / GIB if run.memory else None,
                predicted_memory_gib=memory,
                breakdown=seconds,
            )
        )
    widths = [(one.step_time_high_s - one.step_time_low_s) / 2 / one.predicted_step_time_s for one in found]
    return Agreement(median(abs(one.error) for one in found), median(widths), tuple(found))


def _timed(measured: MeasuredRun) -> list[tuple[str, float, tuple[str, ...]]]:
    """Return what the timers of a log add up to: name, seconds, components that it encloses."""
    found = list[tuple[str, float, tuple[str, ...]]]()
    for name, timers, components in TIMERS:
        told = [measured.timers_s[timer] for timer in timers if timer in measured.timers_s]
        if math.fsum(told) > 0 and (len(told) == len(timers) or len(timers) > 2):
            found.append((name, math.fsum(told), components))
    return found
