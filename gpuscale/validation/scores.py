"""`gpuscale validate`: a file of measurements in, predictions beside measurements and their figures out, those of
docs/validation.md, "What is counted"."""

from __future__ import annotations

import bisect
import itertools
import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.architecture.flops import CONVENTIONS, Convention, training_flops_per_token
from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import expecting
from gpuscale.memory.model import CHANCE
from gpuscale.specs.job import JobSpec
from gpuscale.uncertainty import MANY_LAYOUTS, Evidence, evidence, family_of
from gpuscale.units import TFLOPS
from gpuscale.validation.kernels import PRECISION_OF, predict_collectives, predict_kernels, size_class
from gpuscale.validation.measurements import Cells, Row, is_measured, measurements, reason_text
from gpuscale.validation.recipes import Progress, RecipeScore, predict_recipes
from gpuscale.validation.runs import Prediction, predict_runs

BY = ("family", "framework", "gpu", "model", "precision")
"""What runs can be grouped by."""

NOT_COMPARABLE = frozenset({"broken-pp", "per-layer", "digitized", "low-confidence", "untuned", "suspect"})
"""Flags of rows whose measurement says nothing about the model: broken software, charts read off, untuned runs."""

LEAST_OF_FAMILY = 8
"""Comparable rows from which on a family counts in the balanced figures."""

AT_ONCE = 1024
"""Runs that are evaluated together; each takes some 15 kB on the way."""

COUNTED = {
    name: index for index, name in enumerate(
        ("id", "family", "framework", "gpu", "model", "precision", "layers", "gpus", "gpus_per_node", "gbs", "seq",
         "spec", "flags"))
}  # fmt: skip
"""Columns of a run that its figures are counted by."""

LEAST_OF_SWEEP = 3
"""Groups of alternative layouts from which on a family is a sweep, in which choosing is judged."""


@dataclass(frozen=True, slots=True)
class RunScore:
    """One run as `gpuscale validate` answers it; errors are (predicted - measured) / measured."""

    id: str  #: name of the row.
    status: str  #: `ok`; `ok-defaults`, when `reason` names what was assumed; `unsupported`, when it says why.
    reason: str  #: what was assumed, or why there is no prediction; file and line where a cell is at fault.
    measured_step_s: float | None = None  #: measured seconds per step [s].
    predicted_step_s: float | None = None  #: predicted seconds per step [s].
    step_error: float | None = None  #: error of the step time.
    measured_mem_gib: float | None = None  #: measured memory of a GPU [GiB].
    predicted_mem_gib: float | None = None  #: predicted memory, as the row's `mem_basis` counts it [GiB].
    mem_error: float | None = None  #: error of the memory.
    predicted_fits: bool | None = None  #: whether the step finds the memory it needs.
    step_s_low: float | None = None  #: lower end of the 80 % interval [s].
    step_s_high: float | None = None  #: upper end of the 80 % interval [s].
    mem_gib_low: float | None = None  #: lower end of the 80 % interval [GiB].
    mem_gib_high: float | None = None  #: upper end of the 80 % interval [GiB].
    #: all of the device's use at the fullest stage: `memory_gib` of the estimate [GiB].
    predicted_device_gib: float | None = None
    mem_basis: str = ""  #: what the measured memory counts: `logged_memory_gib` of the estimate has it under this name.
    command: tuple[str, ...] = ()  #: arguments of the call of gpuscale that gives the same step time and memory.
    caveats: str = ""  #: what its numbers have to be read with: towers of the model that are not in them.


@dataclass(frozen=True, slots=True)
class TimeScore:
    """One kernel or collective as `gpuscale validate` answers it; the error is (predicted - measured) / measured."""

    id: str  #: name of the row.
    status: str  #: `ok`, or `unsupported` when `reason` says why there is no prediction.
    reason: str  #: why there is no prediction.
    measured_time_s: float | None = None  #: measured seconds of the kernel or collective [s].
    predicted_time_s: float | None = None  #: predicted seconds [s].
    time_error: float | None = None  #: error of the time.


Score = RunScore | TimeScore | RecipeScore
Scored = Sequence[tuple[RunScore, Row]]
Spelling = Callable[[Mapping[str, Any]], tuple[str, ...]]


def _unspelled(_: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


def _untold(done: int, total: int, what: str) -> None:
    """Tell nobody how far it is."""


@displayed
@dataclass(frozen=True)
class Validation:
    """What `validate` found."""

    path: Path  #: the file.
    kind: str  #: `runs`, `oom`, `recipes`, `kernels` or `collectives`.
    rows: tuple[Score, ...]  #: in the order of the file.
    #: of each row, whether it is one that a model can be held to; all but some runs are.
    comparable: tuple[bool, ...]
    summary: dict[str, Any]  #: figures over the rows, as docs/validation.md describes them.

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the JSON answer."""
        return {"rows": self.rows, "summary": self.summary}


@public
def validate(
    path: str | Path, by: str = "family", *, spelled: Spelling = _unspelled, progress: Progress = _untold
) -> Validation:
    """Predict every row of a file of measurements and summarise the errors.

    Args:
        path: a CSV file of runs, of runs that ran out of memory, of recipes, of kernels or of collectives; its header
            tells which.
        by: what runs are grouped by in the summary: `family`, `framework`, `gpu`, `model` or `precision`.
        spelled: from options of `estimate` to the arguments of a command.
        progress: called with the recipes done and all, and the name of the one that is searched.

    Raises:
        InputError: the file cannot be used, or `by` is none of these.
    """
    if by not in BY:
        hint = did_you_mean(by, BY, "give one of")
        raise InputError(f"cannot group by {by[:40]!r}", field="by", hint=hint)
    path = Path(path)
    found = measurements(path)
    with expecting(path, "measured"):
        kind, first = next(found)
    rows = itertools.chain([first], (row for _, row in found))
    if kind == "runs":
        return _validate_runs(path, rows, by, spelled)
    if kind == "recipes":
        return _validate_recipes(path, tuple(rows), by, spelled, progress)
    return _validate_times(path, kind, tuple(rows))


def _validate_recipes(path: Path, rows: tuple[Row, ...], by: str, spelled: Spelling, progress: Progress) -> Validation:
    scores, labels = [], []
    for row, (score, moe, gpu) in zip(rows, predict_recipes(rows, spelled, progress), strict=True):
        predicted = score.predicted_step_s
        measured = None if predicted is None else measured_step_s(row)[0]
        error = None if predicted is None else relative_error(predicted, measured)
        scores.append(replace(score, measured_step_s=measured, step_error=error))
        own = {} if by in {"family", "gpu"} else {by: _group(row, by)}
        labels.append({"layers": "mixture of experts" if moe else "dense", "gpu": gpu, **own})
    known = [pair for pair in zip(scores, labels, strict=True) if pair[0].behind is not None]  # others have no group
    groups = {label: grouped(((own[label], one) for one, own in known), behind_figures) for label in labels[0]}
    summary = {
        "kind": "recipes",
        "rows": len(rows),
        **behind_figures(scores),
        "groups": groups,
        "step": figures([one.step_error for one in scores if one.measured_step_s is not None]),
        "status": dict(sorted(Counter(one.status for one in scores).items())),
        "unsupported": _reason_counts(scores, NOT_PREDICTED),
    }
    return Validation(path, "recipes", tuple(scores), (True,) * len(scores), summary)


NOT_PREDICTED = ("unsupported", "no-start")
"""What is said of rows that have no prediction."""

NEAR_FIRST = 0.05
"""Up to which an experts' layout is called as fast as the first choice: about twice what ties are apart."""


def behind_figures(scores: Iterable[RecipeScore]) -> Figures:
    """How far layouts of experts are from first choices: `n` compared, how many `fits`, `same` (the first choice) and
    `near` it; `median_behind`, `p90_behind` and `worst_behind` of those that fit. None without any."""
    known = [one for one in scores if one.behind is not None]
    behind = [one.behind for one in known if one.behind is not None and one.predicted_fits]
    return {
        "n": len(known),
        "fits": sum(bool(one.predicted_fits) for one in known),
        "same": sum(not one.differs for one in known),
        "near": sum(one <= NEAR_FIRST for one in behind),
        "median_behind": statistics.median(behind) if behind else None,
        "p90_behind": quantile(behind, 0.9) if behind else None,
        "worst_behind": max(behind, default=None),
    }


def _validate_runs(path: Path, rows: Iterator[Row], by: str, spelled: Spelling) -> Validation:
    scores: list[RunScore] = []
    counted: list[Row] = []  # what a run is counted by: one row for all that agree in it, of whose id the family counts
    measured, kept = False, dict[tuple[str, ...], Row]()
    while part := list(itertools.islice(rows, AT_ONCE)):
        measured |= any(map(is_measured, part))
        scores += (score for score, _ in score_runs(part, spelled))
        for row in part:
            fields = (family_of(row.raw("id")), *(row.raw(name) for name in COUNTED if name != "id"))
            counted.append(kept.setdefault(fields, Row(Cells(COUNTED, fields), "")))
    kind = "runs" if measured else "oom"
    scored = tuple(zip(scores, counted, strict=True))
    summary = {**summarise_runs(scored, by, out_of_memory=kind == "oom"), "kind": kind}
    return Validation(path, kind, tuple(scores), tuple(map(comparable, counted)), summary)


def _validate_times(path: Path, kind: str, rows: tuple[Row, ...]) -> Validation:
    pairs = predict_kernels(rows) if kind == "kernels" else predict_collectives(rows)
    scores = tuple(
        TimeScore(row.raw("id"), "unsupported", pair)
        if isinstance(pair, str)
        else TimeScore(row.raw("id"), "ok", "", *pair, relative_error(pair[1], pair[0]))
        for row, pair in zip(rows, pairs, strict=True)
    )
    labels = [_labels(kind, row) for row in rows]
    scored = [(one, score.time_error) for one, score in zip(labels, scores, strict=True) if score.status == "ok"]
    summary = {
        "kind": kind,
        "rows": len(scores),
        **figures([error for _, error in scored]),
        "coverage": len(scored) / len(scores),
        "groups": {name: grouped((one[name], error) for one, error in scored) for name in labels[0]},
        "unsupported": _reason_counts(scores),
    }
    return Validation(path, kind, scores, (True,) * len(rows), summary)


def score_runs(rows: Sequence[Row], spelled: Spelling = _unspelled) -> list[tuple[RunScore, Row]]:
    """Predict every run and hold it against its measurement."""
    predictions = predict_runs(rows)
    wanted = [value.features for value in predictions if isinstance(value, Prediction)]
    ranges = iter(evidence(wanted, cross_validate=True))
    return [
        (_score(row, value, next(ranges) if isinstance(value, Prediction) else None, spelled), row)
        for row, value in zip(rows, predictions, strict=True)
    ]


def _score(row: Row, prediction: Prediction | str, known: Evidence | None, spelled: Spelling) -> RunScore:
    name = row.raw("id")
    try:
        step_s, derived = measured_step_s(row, None if isinstance(prediction, str) else prediction.run.job)
        mem_gib = row.number("mem_gib")
    except InputError as error:
        return RunScore(name, "unsupported", reason_text(error))
    if isinstance(prediction, str) or known is None:
        return RunScore(name, "unsupported", str(prediction), measured_step_s=step_s, measured_mem_gib=mem_gib)
    return RunScore(
        id=name,
        status="ok-defaults" if prediction.run.assumed else "ok",
        reason=sys.intern("; ".join([*prediction.run.assumed, *derived])),
        measured_step_s=step_s,
        predicted_step_s=prediction.step_s,
        step_error=relative_error(prediction.step_s, step_s),
        measured_mem_gib=mem_gib,
        predicted_mem_gib=prediction.memory_gib,
        mem_error=relative_error(prediction.memory_gib, mem_gib),
        predicted_fits=prediction.fits,
        step_s_low=prediction.step_s * known.low,
        step_s_high=prediction.step_s * known.high,
        mem_gib_low=prediction.memory_gib * math.exp(-prediction.memory_half_width),
        mem_gib_high=prediction.memory_gib * math.exp(prediction.memory_half_width),
        predicted_device_gib=prediction.device_gib,
        mem_basis=prediction.mem_basis,
        command=tuple(map(sys.intern, spelled(prediction.run.options))),
        caveats="; ".join(prediction.run.job.caveats),
    )


FULL_ATTENTION_UNTIL = {"megatron-lm": "2025-05", "megatron-bridge": "", "nemo": "2025-08", "automodel": "",
                        "nanotron": "9999-12", "torchtitan": "9999-12"}  # fmt: skip
"""Framework -> until which month the FLOPs that it prints count all of a causal model's attention scores, then half of
them: Megatron-LM num_floating_point_operations, core 0.12; NeMo utils/flops_formulas.py, pull request 14424;
Megatron-Bridge training/utils/flop_utils.py; AutoModel components/utils/flops_utils.py; nanotron get_flops; torchtitan
6 N + 12 L h s. None counts recomputation."""


TODAY = "9999-01"
"""Month of a row without a date: after all that ended, before what never does."""


def flop_convention(row: Row) -> Convention | None:
    """How `tflops_gpu` and `mfu` of a row count attention: as it says or as its framework did, of which no date means
    today's; None if nobody knows."""
    until, month = FULL_ATTENTION_UNTIL.get(row.text("framework")), row.text("source_date")[:7] or TODAY
    usual = "" if until is None else "full" if month <= until else "causal"
    said = row.text("flop_convention") or usual
    return next((one for one in CONVENTIONS if one == said), None)


def measured_step_s(row: Row, job: JobSpec | None = None) -> tuple[float | None, list[str]]:
    """The measured step time, from tokens/s, TFLOP/s or MFU where only these are stated, and what to say of it.

    An MFU below 16 bits is left alone: of which precision's peak is not known.

    Args:
        job: that of the row, for its FLOPs.
    """
    step_s = row.number("step_s")
    if step_s is not None:
        return step_s, []
    tokens, gpus, batch, sequence = (row.number(name) for name in ("tokens_s_gpu", "gpus", "gbs", "seq"))
    if tokens is not None and gpus is not None and batch is not None and sequence is not None:
        return batch * sequence / (tokens * gpus), ["measured step time from tokens/s"]
    rate, mfu, convention = row.number("tflops_gpu"), row.number("mfu"), flop_convention(row)
    if job is not None and convention is not None and (rate or (mfu and job.precision not in {"fp8", "fp4"})):
        flops_per_s = rate * TFLOPS if rate else (mfu or 0.0) * job.cluster.gpu.peak(job.precision)
        flops = job.tokens_per_step * float(training_flops_per_token(job.model, job.sequence, convention, job.tuning))
        what = f"measured step time from {'TFLOP/s' if rate else 'MFU'}, {convention} attention counted"
        return flops / (flops_per_s * job.gpus), [what]
    rates = [name for name in ("tflops_gpu", "mfu", "hfu") if row.raw(name)]
    if not rates:
        return None, []
    if not rate and not mfu:
        lacking = "what of its FLOPs is recomputation"
    else:
        lacking = "the precision whose peak it is a share of" if convention else "the convention of counting FLOPs"
    return None, [f"only {', '.join(rates)} measured: no step time without {lacking}"]


def relative_error(predicted: float, measured: float | None) -> float | None:
    """(predicted - measured) / measured; None without a measurement."""
    return None if measured is None else (predicted - measured) / measured


def comparable(row: Row) -> bool:
    """Whether a run's measurement is one that a model can be held to."""
    return row.text("spec") != "partial" and not NOT_COMPARABLE & set(row.text("flags").split())


def _group(row: Row, by: str) -> str:
    return family_of(row.raw("id")) if by == "family" else row.text(by) or "not stated"


Figures = dict[str, float | int | None]


def figures(errors: Sequence[float | None]) -> Figures:
    """Figures of the errors of rows with a measurement; None stands for a row that was not predicted.

    Returns:
        `n` rows, `predicted` of them answered, their share `coverage`; `median_abs` and `p90_abs` of the absolute
        error, `bias`: the median of the signed one. None without any.
    """
    known = [error for error in errors if error is not None]
    absolute = [abs(error) for error in known]
    return {
        "n": len(errors),
        "predicted": len(known),
        "coverage": len(known) / len(errors) if errors else None,
        "median_abs": statistics.median(absolute) if known else None,
        "p90_abs": quantile(absolute, 0.9) if known else None,
        "bias": statistics.median(known) if known else None,
    }


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which a share of the values lies: the one at index floor(share n) of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def grouped(pairs: Iterable[tuple[str, Any]], of: Callable[[list[Any]], Figures] = figures) -> dict[str, Figures]:
    """Figures by group, the largest group first."""
    members: dict[str, list[Any]] = defaultdict(list)
    for group, one in pairs:
        members[group].append(one)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    return {group: of(some) for group, some in ordered}


def balanced(families: Mapping[str, Figures]) -> Figures:
    """Mean of the families' medians and of their 90th percentiles, over families of `LEAST_OF_FAMILY` rows."""
    large = [one for one in families.values() if (one["n"] or 0) >= LEAST_OF_FAMILY]
    known = {name: [value for one in large if (value := one[name]) is not None] for name in ("median_abs", "p90_abs")}
    means = {name: statistics.mean(values) if values else None for name, values in known.items()}
    return {"families": len(large), **means}


def summarise_runs(scored: Scored, by: str = "family", *, out_of_memory: bool = False) -> dict[str, Any]:
    """The summary of a file of runs, as JSON has it.

    Args:
        out_of_memory: every row is a run that failed for want of memory.
    """
    return {
        "kind": "runs",
        "rows": len(scored),
        **_errors("step", scored, by),
        "memory": {**_errors("mem", scored, by), "interval": _interval_figures("mem_gib", scored)},
        "interval": _interval_figures("step_s", scored),
        "fits": _fit_figures(scored, out_of_memory),
        "choosing": choosing(scored),
        "first_choices": all_choices(scored),
        "status": dict(sorted(Counter(score.status for score, _ in scored).items())),
        "unsupported": _reason_counts([score for score, _ in scored]),
        "caveats": dict(Counter(score.caveats for score, _ in scored if score.caveats).most_common()),
    }


def _errors(what: str, scored: Scored, by: str) -> dict[str, Any]:
    """Of the comparable rows with the measurement: in all, balanced over families, and by group."""
    measured = {"step": "measured_step_s", "mem": "measured_mem_gib"}[what]
    rows = [
        (row, getattr(score, f"{what}_error"))
        for score, row in scored
        if comparable(row) and getattr(score, measured) is not None
    ]
    return {
        **figures([error for _, error in rows]),
        "balanced": balanced(grouped((_group(row, "family"), error) for row, error in rows)),
        "groups": {by: grouped((_group(row, by), error) for row, error in rows)},
    }


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [(bisect.bisect_left(order, value) + bisect.bisect_right(order, value)) / 2 for value in values]


OUTSIDE = 2 / (1 - CHANCE)
"""What the interval score adds per unit of log by which a measurement lies outside (Winkler 1972)."""


def _interval_figures(what: str, scored: Scored) -> dict[str, float | int | None]:
    """How many of the comparable measurements of `what`, step_s or mem_gib, lie inside their interval, how wide it is,
    whether the wide ones are where the errors are (rank correlation), and the interval score."""
    widths, errors = [], []
    for one, row in scored:
        measured, predicted = getattr(one, f"measured_{what}"), getattr(one, f"predicted_{what}")
        low, high = getattr(one, f"{what}_low"), getattr(one, f"{what}_high")
        if comparable(row) and measured and predicted and low and high:
            widths.append(math.log(high / low) / 2)
            errors.append(abs(math.log(measured / predicted)))
    if not widths:
        return {"n": 0, **dict.fromkeys(("inside", "median_half_width", "rank_correlation", "score"))}
    beyond = [max(error - width, 0.0) for error, width in zip(errors, widths, strict=True)]
    varied = len(set(widths)) > 1 and len(set(errors)) > 1
    return {
        "n": len(widths),
        "inside": statistics.fmean(one == 0 for one in beyond),
        "median_half_width": math.sinh(statistics.median(widths)),
        "rank_correlation": statistics.correlation(_ranks(widths), _ranks(errors)) if varied else None,
        "score": statistics.fmean(2 * width + OUTSIDE * outside for width, outside in zip(widths, beyond, strict=True)),
    }


def _fit_figures(scored: Scored, out_of_memory: bool) -> dict[str, float | int | None]:
    fitting, failing = [], []
    for one, row in scored:
        if out_of_memory or "oom" in row.text("flags").split():
            failing.append(one.predicted_fits)
        elif one.predicted_fits is not None and (one.measured_step_s or one.measured_mem_gib):
            fitting.append(one.predicted_fits)
    out: dict[str, float | int | None] = {}
    for name, calls, right in (("fitting", fitting, True), ("out_of_memory", failing, False)):
        called = calls.count(right)
        out |= {name: len(calls), f"called_{name}": called, f"{name}_right": called / len(calls) if calls else None}
    return out


def alternatives(row: Row) -> tuple[str, ...]:
    """Family and job of a run: runs that agree in it differ in their layout alone."""
    job = ("model", "layers", "gpu", "gpus", "gbs", "seq", "precision", "framework")
    return family_of(row.raw("id")), *(row.text(name) for name in job)


class FirstChoice(NamedTuple):
    """The layout predicted to be the fastest of a sweep: measured runs that differ in their layout alone."""

    family: str
    where: str  #: `one node` or `several nodes`.
    layouts: int  #: of the sweep.
    loss: float  #: its measured time over the fastest measured.
    first: float  #: its measured over its predicted time.
    usual: float  #: the median of that over the sweep.
    inside: bool  #: whether its measured time lies inside its interval.


def first_choices(scored: Scored, *, share_ties: bool = False) -> list[FirstChoice]:
    """The first choice of every sweep; the fastest measured may be a run without a prediction. `share_ties`: of several
    runs predicted to be the fastest, the loss is their mean rather than that of the first by name."""
    sweeps: dict[tuple[str, ...], list[tuple[float, str, float, bool, Row]]] = defaultdict(list)
    fastest_s: dict[tuple[str, ...], float] = {}
    for one, row in scored:
        if not comparable(row) or not one.measured_step_s:
            continue
        job = alternatives(row)
        fastest_s[job] = min(fastest_s.get(job, math.inf), one.measured_step_s)
        if one.predicted_step_s:
            inside = (one.step_s_low or math.inf) <= one.measured_step_s <= (one.step_s_high or 0.0)
            sweeps[job].append((one.predicted_step_s, one.id, one.measured_step_s, inside, row))
    found = []
    for job, runs in sweeps.items():
        if len(runs) > 1:
            predicted_s, _, measured_s, inside, row = min(runs, key=lambda run: run[:2])
            where = "one node" if (row.whole("gpus") or 0) <= (row.whole("gpus_per_node") or 8) else "several nodes"
            usual = statistics.median(run[2] / run[0] for run in runs)
            chosen_s = [run[2] for run in runs if run[0] == predicted_s] if share_ties else [measured_s]
            loss = statistics.fmean(chosen_s) / fastest_s[job]
            found.append(FirstChoice(job[0], where, len(runs), loss, measured_s / predicted_s, usual, inside))
    return found


def choosing(scored: Scored) -> list[dict[str, Any]]:
    """How first choices do in families with several sweeps: what they lose, and how much longer they take."""
    places: dict[tuple[str, str], list[FirstChoice]] = defaultdict(list)
    for one in first_choices(scored):
        for where in ("all", one.where):
            places[one.family, where].append(one)
    return [
        {"family": family, "where": where, "groups": len(mine), "median": statistics.median(one.loss for one in mine),
         "p90": quantile((one.loss for one in mine), 0.9), **optimism(mine)}
        for (family, where), mine in sorted(places.items())
        if len(places[family, "all"]) >= LEAST_OF_SWEEP and (where == "all" or len(mine) < len(places[family, "all"]))
    ]  # fmt: skip


def optimism(choices: Sequence[FirstChoice]) -> dict[str, float]:
    """Medians over sweeps of measured over predicted time, of `first` choices, of `all` layouts, and of one over the
    other (`optimism`); and the share of first choices `inside` their interval."""
    return {
        "first": statistics.median(one.first for one in choices),
        "all": statistics.median(one.usual for one in choices),
        "optimism": statistics.median(one.first / one.usual for one in choices),
        "inside": statistics.fmean(one.inside for one in choices),
    }


def all_choices(scored: Scored) -> list[dict[str, Any]]:
    """The optimism of first choices over all sweeps, over those of many layouts, and balanced over families."""
    choices = first_choices(scored)
    large = [one for one in choices if one.layouts >= MANY_LAYOUTS]
    found: list[dict[str, Any]] = [
        {"over": over, "n": len(some), **optimism(some)}
        for over, some in (("groups", choices), ("large groups", large))
        if some
    ]
    families = [one for one in choosing(scored) if one["where"] == "all"]
    if families:
        means = {name: statistics.fmean(one[name] for one in families) for name in optimism(choices)}
        found.append({"over": "families", "n": len(families), **means})
    return found


def _labels(kind: str, row: Row) -> dict[str, str]:
    gpu = _group(row, "gpu")
    if kind == "collectives":
        return {"size": size_class(row), "collective": row.text("collective"), "gpu": gpu}
    dtype = row.text("dtype")
    return {"kind": row.text("kind"), "gpu": gpu, "precision": PRECISION_OF.get(dtype, dtype or "not stated")}


def _reason_counts(scores: Iterable[Score], statuses: Collection[str] = ("unsupported",)) -> dict[str, int]:
    """Without file and line, most frequent first."""
    place = re.compile(r"^.{0,300}:\d+: ")
    counts = Counter(place.sub("", score.reason) for score in scores if score.status in statuses)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
