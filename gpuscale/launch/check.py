"""`check`: whether a job may launch: the framework's rules, memory, limits of the user's, drift, and foot-guns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.arguments import taking
from gpuscale.choices import MEMORY_HEADROOM
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.files import printable
from gpuscale.launch.read import StatedError
from gpuscale.launch.remarks import SEVERITIES, Plan, Remark, footgun_findings, illegal_settings
from gpuscale.launch.settings import LackingError, LaunchJob
from gpuscale.launch.subject import StatedPlan, stated_plan
from gpuscale.launch.switches import Stated, switch_findings
from gpuscale.planning.jobs import Presets, build_job
from gpuscale.planning.layouts import domain_groups, fixed_layout
from gpuscale.planning.planfile import Predicted, read_document, read_predicted
from gpuscale.planning.plans import estimate_layout
from gpuscale.ratios import signed
from gpuscale.request import LEAST, MEMORY, JobOptions, Layout, Question, read, taken, with_layout
from gpuscale.results import Estimate
from gpuscale.rules.check import FATAL, broken_rules
from gpuscale.units import PERCENT, format_seconds

DRIFT = 0.001
"""Share by which a prediction must have moved from what its plan file says to be noted."""


@displayed
@dataclass(frozen=True)
class Finding:
    """Something that stands against a job, or that it could do better without."""

    rule: str  #: its name, which stays the same
    severity: str  #: `error` (exit code 1), `warning` or `note`
    message: str  #: what is there, against what limit, and what would be right
    file: str | None = None  #: where it stands; null where no file says it
    line: int | None = None  #: its line, from 1; null where it is of no line
    cost_s: float | None = None  #: seconds per step that it costs, by prediction; null where it is not a matter of time
    #: option -> its nearest legal values, the nearest first
    legal: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@displayed
@dataclass(frozen=True)
class CheckResult:
    """What `check` found."""

    ok: bool  #: nothing stands against the job: no finding is an `error`
    findings: tuple[Finding, ...]  #: errors first, then warnings and notes; among each in the order of the rules
    #: what is predicted of the job; None where a rule is broken without which nothing can be predicted.
    estimate: Estimate | None = field(default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale.check/1`."""
        return {"ok": self.ok, "findings": [asdict(one) for one in self.findings]}


class Limits(NamedTuple):
    """What a job is held to."""

    memory: str | None = None  #: GiB of one GPU, or as a share of what it has, as it was given; None: what it has.
    mfu: float | None = None  #: least share of the peak [0-1].
    step_time_s: float | None = None  #: longest step [s].
    #: most time per token and memory over the baseline's, less 1; None: `USUAL_REGRESSION`.
    regression: float | None = None


USUAL_REGRESSION = 0.05
"""By how much a job may be worse than its baseline where nobody says (a choice)."""


class Before(NamedTuple):
    """What is known of a job beside its options."""

    baseline: Predicted | None = None  #: the prediction that it is held against.
    drift: Predicted | None = None  #: what its own plan file says was predicted.
    launch: LaunchJob | None = None  #: the launch files that state it.


Place = tuple[str | None, int | None]
Places = Callable[..., Place]
"""From names of options to where the first of them stands that any file states."""

NOWHERE: Place = (None, None)


@taking(taken(JobOptions, Layout, beside_files=True))
def check(  # noqa: PLR0913 - all that the command takes
    plan_file: str | Path | None = None,
    *,
    launch_files: Sequence[str | Path] = (),
    variables: Mapping[str, str] | None = None,
    layout: Mapping[str, Any] | None = None,
    baseline: str | Path | None = None,
    max_memory: float | str | None = None,
    min_mfu: float | str | None = None,
    max_step_time: float | str | None = None,
    max_regression: float | str | None = None,
    **options: Any,
) -> CheckResult:
    """Say whether a job may launch.

    Args:
        plan_file: a plan file, as `gpuscale plan -o` writes it; without one `model` and `gpus` are needed, or the
            baseline itself is checked.
        launch_files, variables: as `read_launch` takes them; the job that they state is checked.
        layout: `tp`, `pp` and the like in one piece, by name.
        baseline: a plan file whose prediction this one is held against.
        max_memory: of a GPU: `70GiB`, or `90%` of what it has; a number is in GiB.
        min_mfu: `38%`, or 38.
        max_step_time: `12s`, or 12.
        max_regression: by which time per token or memory may exceed the baseline's; `5%` where nothing is said.
        options: they go before those of the file.

    Raises:
        InputError: a file that cannot be read, or unusable input.
    """
    limits = _limits(max_memory, min_mfu, max_step_time, max_regression)
    options, own = with_layout(options, layout)
    if limits.regression is not None and baseline is None:
        raise InputError("it needs something to compare with", field="max_regression", hint="add `baseline=plan.toml`")
    before = None if baseline is None else read_predicted(Path(baseline))
    if before is None and baseline is not None:
        hint = "save it again: `gpuscale plan -o FILE` stores what it predicts"
        raise InputError("has no table 'predicted'", place=str(baseline)[:300], hint=hint)
    if plan_file is None and not launch_files and "model" not in options:
        plan_file = baseline
    path = None if plan_file is None else Path(plan_file)
    stated = _read_or_found(path, options, own, launch_files, variables)
    if isinstance(stated, Finding):
        return CheckResult(ok=False, findings=(stated,))
    drift = read_predicted(path) if path and not options and not own and before is None else None
    places = _places_in(path) if path else _places_of(stated.launch) if stated.launch else _nowhere
    return checked(stated.options, stated.layout, limits, places, Before(before, drift, stated.launch))


def _read_or_found(
    plan_file: Path | None,
    options: Mapping[str, Any],
    layout: Mapping[str, Any],
    launch_files: Sequence[str | Path],
    variables: Mapping[str, str] | None,
) -> StatedPlan | Finding:
    """Read a job; a world or a model that cannot be is a finding where launch files alone say so."""
    try:
        return stated_plan(plan_file, options, layout, launch_files, variables)
    except LackingError as error:
        if error.setting is None:
            raise
        file, line = printable(error.setting.file), error.setting.line or None
        return Finding("contradiction", "error", f"{error.message}; {error.hint}", file, line)
    except StatedError as error:
        if error.rule == "world_size" and ("gpus" in options or layout):
            raise
        nowhere = NOWHERE if error.rule == "world_size" else (printable(str(launch_files[0])), None)
        where = (printable(error.said.file), error.said.line or None) if error.said else nowhere
        return Finding(error.rule, "error", error.message, *where)


def checked(
    options: Mapping[str, Any], layout: Mapping[str, Any], limits: Limits, places: Places, known: Before
) -> CheckResult:
    """Check a job with its layout.

    Args:
        places: where options stand.
    """
    asked, presets = read(JobOptions, options), Presets()
    presets.model(asked.model)  # what cannot be read is no finding
    presets.cluster(asked.cluster)
    try:
        job = build_job(asked, presets, groups=domain_groups(layout))
    except InputError as error:
        if error.field not in CONTRADICTED:
            raise
        found = Remark("contradiction", "error", f"{error.field}: {error.message}", (str(error.field),))
        return _result([found], places)
    rows = fixed_layout(job.spec, layout)
    broken = broken_rules(rows, job.spec)
    findings = [*illegal_settings(job, layout, broken)]
    fatal = any(rule.code in FATAL for rule in broken)
    findings += [Remark("not_modelled", "note", one, ("model",)) for one in job.spec.caveats]
    estimate = None if fatal else estimate_layout(job, layout, despite_rules=True)
    stated = known.launch and Stated(known.launch, job, rows.row(0), estimate.plan.fit if estimate else "")
    findings += switch_findings(stated) if stated else ()
    if estimate is not None:
        findings += _memory_findings(estimate, segments=bool(stated and stated.expandable))
        findings += _broken_limits(estimate, limits)
        findings += _against(estimate, known.baseline, limits) if known.baseline else ()
        findings += _drifted(estimate, known.drift) if known.drift else ()
        findings += footgun_findings(Plan(job, layout, estimate)) if not broken else ()
        longest, sequence = job.spec.model.max_sequence, job.spec.sequence
        if sequence > longest:
            said = f"the sequence of {sequence:,} tokens is longer than the {longest:,} that the model is made for"
            findings.append(Remark("sequence_too_long", "warning", said, ("seq",)))
    return _result(findings, places, estimate)


CONTRADICTED = ("precision", "offload", "overlap", "compile", "sharp", "swiglu_input_dtype")
"""Options that may be well written and yet not go with the others, which is a finding."""


def _result(found: Sequence[Remark], places: Places, estimate: Estimate | None = None) -> CheckResult:
    def placed(one: Remark) -> Finding:
        where = NOWHERE if one.settings is None else places(*one.settings)
        return Finding(one.rule, one.severity, one.message, *where, one.cost_s, dict(one.legal))

    findings = tuple(map(placed, sorted(found, key=lambda one: SEVERITIES.index(one.severity))))
    return CheckResult(not any(one.severity == "error" for one in findings), findings, estimate)


def _nowhere(*_: str) -> Place:
    return NOWHERE


def _places_in(path: Path) -> Places:
    """Return where options stand in a plan file."""
    document = read_document(path)

    def places(*options: str) -> Place:
        for name in options:
            for table in ("layout", "job"):
                if name in document.data[table]:
                    return str(path), document.line_of((table, name))
        return str(path), None

    return places


def _places_of(job: LaunchJob) -> Places:
    """Return where settings of launch files stand, by their own names or by the options that they mean."""
    whole = next((one.file for one in job.settings.values() if not one.usual), None)

    def places(*names: str) -> Place:
        for name in names:
            setting = job.settings.get(name) or job.environment.get(name)
            setting = setting if setting is not None and setting.line else job.setting(name)
            if setting is not None:
                return printable(setting.file), setting.line
        return (printable(whole) if whole else None), None

    return places


def _memory_findings(estimate: Estimate, *, segments: bool) -> Iterator[Remark]:
    """Say what does not fit, or only just: with expandable `segments` less of it is lost to fragmentation."""
    plan, usual = estimate.plan, estimate.plan.memory_limit_gib * (1 - MEMORY_HEADROOM)
    if plan.fit == "fits":
        return
    remedy = next((one for one in estimate.remedies if one.fit != "no"), None)
    way = ""
    if remedy is not None:
        change = " ".join(f"{name} {value}" for name, value in remedy.change.items())
        way = f"; with {change} it takes {remedy.memory_gib:.1f} GiB ({signed(remedy.slower)} time)"
    needs = f"{plan.memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB at stage {plan.peak_stage}"
    if plan.fit == "tight":
        said = f"{needs}; fragmentation usually leaves {usual:.1f}{way}"
        yield Remark("tight_memory", "note" if segments else "warning", said)
    elif plan.memory_gib > plan.memory_limit_gib:
        yield Remark("out_of_memory", "error", f"{needs}{way}")
    else:
        said = f"the memory of a host does not hold what is offloaded{way}"
        yield Remark("out_of_host_memory", "error", said, ("offload",))


def _broken_limits(estimate: Estimate, limits: Limits) -> Iterator[Remark]:
    plan = estimate.plan
    if limits.memory is not None:
        share = limits.memory.endswith("%")
        most = float(limits.memory.rstrip("%")) * (plan.memory_limit_gib / 100 if share else 1.0)
        text = f"{limits.memory} of {plan.memory_limit_gib:.1f}: " if share else ""
        if plan.memory_gib > most:
            said = f"{plan.memory_gib:.1f} GiB per GPU, at most {text}{most:.1f} GiB"
            yield Remark("max_memory", "error", said)
    if limits.mfu is not None and plan.mfu < limits.mfu:
        said = f"MFU {plan.mfu:.1%}, at least {limits.mfu:.1%}"
        yield Remark("min_mfu", "error", said)
    if limits.step_time_s is not None and plan.step_time_s > limits.step_time_s:
        said = f"{format_seconds(plan.step_time_s)} per step, at most {format_seconds(limits.step_time_s)}"
        over_s = plan.step_time_s - limits.step_time_s
        yield Remark("max_step_time", "error", said, cost_s=over_s)


def _against(estimate: Estimate, before: Predicted, limits: Limits) -> Iterator[Remark]:
    """Hold a job against a baseline: time per token and GPU, and memory."""
    plan, by = estimate.plan, f"gpuscale {before.gpuscale}" if before.gpuscale else "the baseline"
    slower = before.tokens_per_s_per_gpu / plan.tokens_per_s_per_gpu - 1
    larger = plan.memory_gib / before.memory_gib - 1
    most = USUAL_REGRESSION if limits.regression is None else limits.regression
    at_most = f"at most {signed(most, same='+0.0%')}"
    if slower > most:
        was = f"{format_seconds(plan.step_time_s)} per step, was {format_seconds(before.step_time_s)}"
        if not math.isclose(1 + slower, plan.step_time_s / before.step_time_s, rel_tol=1e-6):  # other tokens per step
            was = f"{plan.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, was {before.tokens_per_s_per_gpu:,.0f}"
        cost_s = plan.step_time_s * slower / (1 + slower)
        said = f"{was} ({by}): {signed(slower)} time per token, {at_most}"
        yield Remark("time_regression", "error", said, cost_s=cost_s)
    if larger > most:
        said = f"{plan.memory_gib:.1f} GiB per GPU, was {before.memory_gib:.1f} ({by}): {signed(larger)}, {at_most}"
        yield Remark("memory_regression", "error", said)


def _drifted(estimate: Estimate, before: Predicted) -> Iterator[Remark]:
    """Note where a plan file says other than what is predicted today."""
    plan = estimate.plan
    changes = plan.step_time_s / before.step_time_s - 1, plan.memory_gib / before.memory_gib - 1
    if any(abs(change) > DRIFT for change in changes):
        said = (
            f"{format_seconds(plan.step_time_s)} per step and {plan.memory_gib:.1f} GiB; the file says "
            f"{format_seconds(before.step_time_s)} and {before.memory_gib:.1f} GiB (gpuscale {before.gpuscale})"
        )
        yield Remark("drift", "note", said, None)


def _limits(
    max_memory: float | str | None,
    min_mfu: float | str | None,
    max_step_time: float | str | None,
    regression: float | str | None,
) -> Limits:
    memory = None
    if isinstance(max_memory, str) and max_memory.rstrip().endswith("%"):
        memory = f"{PERCENT.read(max_memory, 'max_memory', 1, 100):g}%"
    elif max_memory is not None:
        memory = repr(OF_MEMORY.read(max_memory, "max_memory", LEAST, 1e4))
    of_plans = read(Question, {"min_mfu": min_mfu, "max_step_time": max_step_time})
    return Limits(
        memory=memory,
        mfu=None if of_plans.min_mfu is None else of_plans.min_mfu / 100,
        step_time_s=of_plans.max_step_time,
        regression=None if regression is None else PERCENT.read(regression, "max_regression", 0, 1e4) / 100,
    )


OF_MEMORY = replace(
    MEMORY, example="70GiB, or 90% of what the GPU has", other=lambda value: PERCENT.written(100 * value)
)
