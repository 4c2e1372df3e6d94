"""`tune`: the next layout to try, by predictions calibrated to the trials so far; and trials run, where asked."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuscale.arguments import public
from gpuscale.arrays import BoolArray, log
from gpuscale.children import end
from gpuscale.display import WithFields, displayed
from gpuscale.errors import InputError
from gpuscale.files import begin_command, is_there, make_folder, reason
from gpuscale.planning.calibrating import AskedRun, calibrate_runs, save_site
from gpuscale.planning.planfile import layout_of, write_plan_file
from gpuscale.planning.plans import estimate, plan
from gpuscale.results import Estimate, PlanResult, PlanRow
from gpuscale.trials.choosing import LEAST_TRIALS, LIKELY, MATTERS, Believed, Next, fitting, prospects
from gpuscale.trials.files import OUTPUT, PLAN, Study, Trial, read_study, read_trials
from gpuscale.units import plural

CANDIDATES = 200
"""Plans of the search, all variants, from which the next trial is chosen."""

SITE = "site.toml"
SAME_JOB = ("gpus", "seq", "gbs", "framework", "precision", "tune", "method")
"""Options of the job that the plan of a trial and the study have alike; names of files differ by folder."""

LEAST_LIKELY = 0.9
"""Probability that it fits which a layout has at least that is tried before any other ran, if one has it."""

FAILURES = 2
"""Trials in a row that failed for another reason than memory, after which something else is wrong than the layout."""

STOP_RULE = (
    f"trials end where {LEAST_TRIALS} layouts ran and no other has a chance of {LIKELY:.0%} to take {MATTERS:.0%} less "
    "time than the fastest of them, or where there are no more trials"
)
"""The rule in words."""


@dataclass(frozen=True)
class TrialRow:
    """A trial and what became of it."""

    number: int  #: from 1
    plan: PlanRow  #: its layout, and what is predicted of it by all trials
    outcome: str  #: `waiting`, `ran`, `out of memory` or `failed`
    step_time_s: float | None  #: seconds per step, measured; null where it did not run
    memory_gib: float | None  #: GiB that its log says; null where it does not
    reason: str  #: why it failed; empty otherwise


@displayed
@dataclass(frozen=True)
class Tuning(WithFields):
    """How a study stands."""

    study: str  #: its file
    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    trials: tuple[TrialRow, ...]  #: in order
    best: int | None  #: number of the fastest trial; null where none ran
    next: int | None  #: number of the trial to run; null where trials have ended
    plan: PlanRow | None  #: the layout of that trial
    plan_file: str | None  #: where its plan is
    log: str | None  #: where its log is looked for
    arguments: tuple[str, ...]  #: arguments of the program that runs it; empty where the study has no command
    chance: float | None  #: that it fits and is faster than the best by what matters; null before the first that ran
    stopped: str  #: why trials have ended; empty where they have not
    candidates: int  #: layouts that may still be tried
    rule: str  #: when trials end, in words
    calibration: str | None  #: file of the calibration by the trials; null before the first that ran


@public
def tune(study: Path) -> Tuning:
    """Propose the next layout to try, and write its plan file into the study's folder.

    Args:
        study: a file of a study, as `gpuscale tune` takes it.

    Raises:
        InputError: an unusable study, plan file or log.
        NoAnswerError: nothing fits.
    """
    begin_command()  # what an earlier call read may be written again: the calibration
    return _state(read_study(study))


def run_trials(path: Path, told: Callable[[Tuning], object]) -> Tuning:
    """Run trials by the study's command until they end.

    Args:
        told: is given the state before each trial.

    Raises:
        InputError: as `tune`; a study without a command, or a command that cannot be started or leaves no log.
    """
    study = read_study(path)
    if not study.command:
        raise InputError("[trials] has no command", place=str(path), hint='command = ["bash", "train.sh", "{tp}"]')
    while (state := tune(path)).next is not None:
        told(state)
        _run(study, state)
    return state


def _run(study: Study, state: Tuning) -> None:
    """Run one trial; its output is its log where the study names none."""
    assert state.next is not None and state.log is not None
    output = study.folder(state.next) / OUTPUT
    place = f"{study.path}: trials.command"
    try:
        with output.open("wb") as stream:
            process = subprocess.Popen(
                state.arguments, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it starts ends with it
            )  # fmt: skip
            try:
                process.wait(study.timeout_s)
            except subprocess.TimeoutExpired:
                stream.write(f"\ngpuscale: ended after {study.timeout_s:g} s\n".encode())
            finally:
                end(process)
            if process.returncode:
                stream.write(f"\ngpuscale: ended with exit code {process.returncode}\n".encode())
    except (OSError, ValueError) as error:
        output.unlink(missing_ok=True)
        raise InputError(f"{state.arguments[0]!r} cannot be run: {reason(error)}", place=place) from None
    except KeyboardInterrupt:
        output.unlink(missing_ok=True)  # half a log is no measurement
        raise
    if not Path(state.log).is_file():
        hint = f"its output is in {output}; remove the trial's folder to try again"
        raise InputError(f"trial {state.next} left no {state.log}", place=place, hint=hint)


class _Pool:
    """Layouts that may be tried, and what is predicted of them now."""

    def __init__(self, result: PlanResult) -> None:
        self.estimates = result.estimates
        self.rows = result.plans
        self.keys = [_key(layout_of(one)) for one in self.rows]
        low, high = (np.array([getattr(one, f"step_time_{end}_s") for one in self.rows]) for end in ("low", "high"))
        self.believed = Believed(
            np.array([one.step_time_s for one in self.rows]),
            log(high / low) / 2,
            np.array([one.fit_probability for one in self.rows]),
        )

    def index(self, layout: Mapping[str, Any]) -> int | None:
        """Return the place of a layout; None where it is not among these."""
        key = _key(layout)
        return self.keys.index(key) if key in self.keys else None

    def after(self, trials: Sequence[Trial]) -> Believed:
        """Return what is believed where some trials ran out of memory and others ran."""
        fits = self.believed.fit_probability
        places: dict[str, list[int]] = {"out of memory": [], "ran": []}
        for trial in trials:
            at = self.index(trial.layout)
            if at is not None and trial.outcome in places:
                places[trial.outcome].append(at)
        return self.believed._replace(fit_probability=fitting(fits, fits[places["out of memory"]], fits[places["ran"]]))


def _state(study: Study) -> Tuning:
    trials = read_trials(study)
    site = _calibrated(study, trials)
    used = site or study.job.get("calibration")
    result = _planned(study, used)
    _refuse_other_jobs(study, trials, result.estimates[0].job)
    pool = _Pool(result)
    believed = pool.after(trials)
    tried = {_key(one.layout) for one in trials if one.outcome != "waiting"}
    left = np.array([key not in tried for key in pool.keys]) & (believed.fit_probability > 0)
    ran = {one.number: _step_time_s(one) for one in trials if one.measured}
    best = min(ran, key=lambda number: (ran[number], number), default=None)
    seen = prospects(believed, ran[best], left) if best is not None else None
    trial, stopped = next((one for one in trials if one.outcome == "waiting"), None), ""
    if trial is None:
        pick, stopped = _next(study, trials, left & (believed.fit_probability >= LEAST_LIKELY), left, seen)
        trial = _proposed(study, len(trials) + 1, pool.estimates[pick]) if pick is not None else None
        trials += [trial] if trial else []
    rows = tuple(_row(one, used) for one in trials)
    at = pool.index(trial.layout) if trial else None
    return Tuning(
        study=str(study.path), model=result.model, cluster=result.cluster, gpus=result.gpus,
        trials=rows, best=best,
        next=trial.number if trial else None,
        plan=rows[trial.number - 1].plan if trial else None,
        plan_file=str(study.folder(trial.number) / PLAN) if trial else None,
        log=str(trial.log) if trial else None,
        arguments=tuple(study.arguments(trial.number, trial.layout)) if trial else (),
        chance=float(seen.faster[at]) if seen is not None and at is not None else None,
        stopped=stopped, candidates=int(left.sum()), rule=STOP_RULE, calibration=site,
    )  # fmt: skip


def _planned(study: Study, site: str | None) -> PlanResult:
    """Search the layouts of a study; what it asks for and cannot have is refused with its file."""
    try:
        return plan(**{**study.job, "calibration": site}, pins=study.pins, top=CANDIDATES, unfold=True)
    except InputError as error:
        if error.place is None:
            error.place = str(study.path)
            if error.field:
                error.field = f"{'layout' if error.field in study.pins else 'job'}.{error.field}"
        raise


def _next(
    study: Study, trials: Sequence[Trial], likely: BoolArray, left: BoolArray, seen: Next | None
) -> tuple[int | None, str]:
    """Return which layout to try, or why none.

    Args:
        likely: which are left and probably fit.
    """
    last = trials[-FAILURES:]
    if len(last) == FAILURES and all(one.outcome == "failed" for one in last):
        return None, f"{FAILURES} trials in a row failed: {last[-1].reason}; remove their folders to go on"
    if not left.any():
        return None, "every layout that may fit was tried"
    if len(trials) >= study.most:
        return None, f"{plural(study.most, 'trial')} so far, as many as `most` allows"
    if seen is None:
        return int((likely if likely.any() else left).argmax()), ""  # the first in the order of `plan`
    if seen.best is None and sum(one.outcome == "ran" for one in trials) >= LEAST_TRIALS:
        return None, f"no other layout has a chance of {LIKELY:.0%} to take {MATTERS:.0%} less time"
    return seen.best if seen.best is not None else int(np.where(left, seen.gain, -1.0).argmax()), ""


def _proposed(study: Study, number: int, estimate: Estimate) -> Trial:
    folder, layout = study.folder(number), layout_of(estimate.plan)
    log = study.log_of(number, layout)
    if is_there(log):
        hint = 'give each trial a log of its own, "{folder}/train.log", or remove what is there'
        raise InputError(f"{log} is there before trial {number} ran", place=f"{study.path}: trials.log", hint=hint)
    make_folder(folder)
    job = {name: value for name, value in estimate.job.items() if name != "calibration"}
    write_plan_file(folder / PLAN, job, estimate.plan)
    return Trial(number, job, layout, log, "waiting")


def _calibrated(study: Study, trials: Sequence[Trial]) -> str | None:
    """Fit a calibration to the trials that ran, and return its file; None before the first."""
    ran = [AskedRun(one.measured, one.options, one.layout) for one in trials if one.measured]
    if not ran:
        return None
    path = study.path.with_suffix("") / SITE
    earlier = study.job.get("calibration")
    save_site(path, calibrate_runs(ran, earlier=earlier, name=str(path)))
    return str(path)


def _refuse_other_jobs(study: Study, trials: Sequence[Trial], job: Mapping[str, Any]) -> None:
    for trial in trials:
        for name in SAME_JOB:
            if trial.options.get(name) != job.get(name):
                message = f"`{name}={trial.options.get(name)}`, and the study has `{name}={job.get(name)}`"
                hint = "give the study of another job a file of its own"
                raise InputError(message, place=str(study.folder(trial.number) / PLAN), hint=hint)


def _step_time_s(trial: Trial) -> float:
    """Return the measured step time of a trial that ran [s]."""
    assert trial.measured is not None
    batch, sequence, gpus = (float(trial.options[name]) for name in ("gbs", "seq", "gpus"))
    return trial.measured.step_of(batch * sequence, gpus)


def _key(layout: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return what tells layouts apart, from a plan file or from a plan."""
    return tuple(sorted((name, value) for name, value in layout.items() if value is not None))


def _row(trial: Trial, site: str | None) -> TrialRow:
    options = {**trial.options, "calibration": site}
    seen = estimate(layout=trial.layout, despite_rules=True, **options)
    measured = trial.measured
    return TrialRow(
        trial.number, seen.plan, trial.outcome, _step_time_s(trial) if measured else None,
        measured.memory_gib if measured else None, trial.reason,
    )  # fmt: skip
