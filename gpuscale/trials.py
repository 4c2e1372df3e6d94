"""`tune`: the next layout to try, by predictions calibrated to the trials so far; and trials run, where asked.

Log(step time) of an untried layout is normal around its prediction under the calibration by the trials so far. What a
trial may gain is how much faster than the best measured it would be on average, counting nothing where it is slower
(expected improvement: Jones, Schonlau and Welch 1998), times the probability that it fits. Trials end where no layout
is likely to be faster by what matters.

A study is a file (docs/tasks/tune.md); trial 3 of `study.toml` is the folder `study/03`: `plan.toml` is a plan file,
`output.log` what the command printed. They are all that a study remembers.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arguments import public
from gpuscale.arrays import BoolArray, FloatArray, exp, log, normal_cdf
from gpuscale.calibration.site import NORMAL_80
from gpuscale.calibration.traces import read_run_log
from gpuscale.calibration.training_logs import MeasuredRun
from gpuscale.children import end
from gpuscale.display import WithFields, displayed
from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import begin_command, is_there, make_folder, reading, reads, reason
from gpuscale.launch.diagnosis import find_errors
from gpuscale.planning.calibrating import AskedRun, calibrate_runs, save_site
from gpuscale.planning.planfile import checked, from_folder, layout_of, read_plan_file, write_plan_file
from gpuscale.planning.plans import estimate, plan
from gpuscale.presets.files import Document, read_toml
from gpuscale.request import PINS, JobOptions
from gpuscale.results import Estimate, PlanResult, PlanRow
from gpuscale.units import MIB, plural

SCHEMA = "gpuscale.trials/1"
TABLES = ("job", "layout", "trials")
MOST, USUAL_MOST, LONGEST_S = 99, 12, 30 * 24 * 3600.0
"""Trials that a study may have, and has where nothing is said; the longest that one may take [s]."""

MAX_ARGUMENTS = 200
PLAN, OUTPUT = "plan.toml", "output.log"
TAIL_BYTES = MIB
"""How much of the end of a log is searched for what ended the run."""

OUT_OF_MEMORY = ("out_of_memory", "out_of_memory_outside", "out_of_memory_of_jax")

OWN = ("folder", "plan", "log")
"""Names in braces beside those of the layout: the trial's folder, its plan file and its log."""


@dataclass(frozen=True)
class Study:
    """What is to be tuned, and how a trial is run."""

    path: Path
    job: Mapping[str, Any]
    pins: Mapping[str, Any]
    command: tuple[str, ...] = ()  #: arguments of the program that runs a trial, with names in braces; none: by hand.
    log: str = ""  #: where a trial's log is, with names in braces; empty where it is what the command prints.
    most: int = USUAL_MOST
    timeout_s: float = LONGEST_S  #: after which a trial is ended [s].

    def folder(self, number: int) -> Path:
        """Return the folder of a trial."""
        return self.path.with_suffix("") / f"{number:02d}"

    def log_of(self, number: int, layout: Mapping[str, Any]) -> Path:
        """Return the log of a trial."""
        if not self.log:
            return self.folder(number) / OUTPUT
        return Path(_filled(self.log, self._names(number, layout)))

    def arguments(self, number: int, layout: Mapping[str, Any]) -> list[str]:
        """Return the arguments that run a trial, each one whatever is put into it."""
        names = self._names(number, layout) | {"log": str(self.log_of(number, layout))}
        return [_filled(one, names) for one in self.command]

    def _names(self, number: int, layout: Mapping[str, Any]) -> dict[str, str]:
        folder = self.folder(number)
        said = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in layout.items()}
        return said | {"folder": str(folder), "plan": str(folder / PLAN)}


def _filled(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), text)


@reads("trials")
def read_study(path: Path) -> Study:
    """Read a study.

    Raises:
        InputError: missing, not TOML, of another format, or with unknown or unusable entries; the place says file and
            line. Options of the job and the layout are checked where they are asked.
    """
    document, known = read_toml(path, "`gpuscale tune --help` says what is in it"), ("format", *TABLES)
    if not path.suffix:
        raise InputError("has no ending: trials go into the folder of its name without it", place=str(path),
                         hint="call it NAME.toml")  # fmt: skip
    for name in document.data:
        if name not in known:
            raise document.error((name,), f"unknown key {name[:80]!r}", did_you_mean(name, known, "keys are"))
    if document.data.get("format") != SCHEMA:
        raise document.error(("format",), f"format is not {SCHEMA!r}", f'begin the file with `format = "{SCHEMA}"`')
    job, layout, trials = (_table(document, name) for name in TABLES)
    for name in layout:
        if name not in PINS:
            raise document.error(("layout", name), f"layout.{name}: unknown key", did_you_mean(name, PINS, "keys are"))
    missing = next((name for name in ("model", "gpus") if name not in job), None)
    if missing:
        raise document.error(
            ("job",), f"job.{missing} is missing", "[job] has the options of `gpuscale plan`: model, gpus, ..."
        )
    pinned = next((name for name in job if name in PINS), None)
    if pinned:
        raise document.error(("job", pinned), f"job.{pinned} is of the layout", "write it below [layout]")
    job = checked(document, job, JobOptions, lambda key: ("job", key), "job")
    return Study(path, from_folder(job, path.parent), layout, **_running(document, trials))


def _table(document: Document, name: str) -> dict[str, Any]:
    table = document.data.get(name, {})
    if not isinstance(table, dict):
        raise document.error((name,), f"{name} is not a table", f"write `[{name}]` above its entries")
    return table


def _running(document: Document, table: Mapping[str, Any]) -> dict[str, Any]:
    known = ("command", "log", "most", "timeout_s")
    for name in table:
        if name not in known:
            raise document.error(("trials", name), f"trials.{name}: unknown key", did_you_mean(name, known, "keys are"))
    command, log = table.get("command", []), table.get("log", "")
    texts = isinstance(command, list) and all(isinstance(one, str) for one in command)
    if not texts or len(command) > MAX_ARGUMENTS or any("\0" in one for one in command) or (command and not command[0]):
        hint = 'one text per argument, no shell: ["sbatch", "--wait", "train.sh", "{tp}"]'
        raise document.error(("trials", "command"), f"trials.command: not a list of 1 to {MAX_ARGUMENTS} texts", hint)
    if not isinstance(log, str) or "\0" in log:
        raise document.error(("trials", "log"), "trials.log: not a text", '"{folder}/train.log"')
    for key, said in (("command", command), ("log", [log])):
        names = [*PINS, *(one for one in OWN if one != key)]  # a log is not named after itself
        unknown = {one for text in said for one in re.findall(r"\{(\w+)\}", text)} - {*names}
        if unknown:
            name = min(unknown)
            hint = did_you_mean(name, names, "names are")
            raise document.error(("trials", key), f"trials.{key}: no {{{name}}} is known", hint)
    return {
        "command": tuple(command), "log": log,
        "most": int(_number(document, table, "most", USUAL_MOST, MOST, whole=True)),
        "timeout_s": _number(document, table, "timeout_s", LONGEST_S, LONGEST_S),
    }  # fmt: skip


def _number(
    document: Document, table: Mapping[str, Any], name: str, usual: float, most: float, *, whole: bool = False
) -> float:
    value = table.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not 1 <= value <= most:
        what = "a whole number" if whole else "a number"
        raise document.error(("trials", name), f"trials.{name}: {value!r} is not {what} from 1 to {most:,.0f}")
    return float(value)


@dataclass(frozen=True)
class Trial:
    """A layout that was proposed, and what became of it."""

    number: int  #: from 1.
    options: Mapping[str, Any]
    layout: Mapping[str, Any]  #: as a plan file has it.
    log: Path
    outcome: str  #: `waiting` for its log, `ran`, `out of memory`, or `failed` for another reason.
    measured: MeasuredRun | None = None
    reason: str = ""


def read_trials(study: Study) -> list[Trial]:
    """Read what there is of every trial, in order.

    Raises:
        InputError: a plan file that is unusable.
    """
    found = []
    for number in range(1, MOST + 1):
        path = study.folder(number) / PLAN
        if not is_there(path):
            break
        options, layout = read_plan_file(path)
        log = study.log_of(number, layout)
        found.append(Trial(number, options, layout, log, *_outcome(log)))
    return found


def _outcome(log: Path) -> tuple[str, MeasuredRun | None, str]:
    if not is_there(log):
        return "waiting", None, ""
    with reading(log) as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - TAIL_BYTES))
        end = stream.read(TAIL_BYTES).decode(errors="replace")
    errors = [one.known.code for one in find_errors(end)]
    if any(name in OUT_OF_MEMORY for name in errors):
        return "out of memory", None, ""
    try:
        return "ran", read_run_log(log), ""
    except InputError as error:
        return "failed", None, errors[0] if errors else error.message


MATTERS = 0.02
"""By how much faster a layout has to be to count: repetitions of one layout differ by as much."""

LIKELY = 0.1
"""Probability of that below which a layout is not worth a trial (a choice)."""


LEAST_TRIALS = 3
"""Layouts that have to run before trials may end; with fewer, one of ten replayed sweeps ended 10 % behind its best
(benchmarks/replay_trials.py)."""


class Believed(NamedTuple):
    """What is predicted of layouts, each of shape (N,)."""

    step_time_s: FloatArray  #: the middle of the prediction [s].
    half_width: FloatArray  #: half of its 80 % interval, in the log.
    fit_probability: FloatArray


class Next(NamedTuple):
    """What a trial of each layout may bring; shape (N,)."""

    faster: FloatArray  #: probability that it fits and is faster than the best measured by `MATTERS`.
    gain: FloatArray  #: by how much faster it is on average, counting only what is faster, as a share of the best.

    @property
    def best(self) -> int | None:
        """The layout to try, that which may gain most; None where none is likely to be faster."""
        likely = self.faster >= LIKELY
        return int(np.where(likely, self.gain, -1.0).argmax()) if likely.any() else None


def prospects(believed: Believed, best_s: float, left: BoolArray) -> Next:
    """Work out what a trial of each layout may bring.

    Args:
        best_s: step time of the fastest trial [s].
        left: which layouts may be tried, shape (N,).
    """
    deviation = np.maximum(believed.half_width / NORMAL_80, 1e-6)
    ahead = (math.log(best_s) - log(believed.step_time_s)) / deviation
    enough = ahead + math.log1p(-MATTERS) / deviation
    chance = np.where(left, believed.fit_probability, 0.0)
    density = exp(-0.5 * ahead * ahead) / math.sqrt(2 * math.pi)
    return Next(chance * normal_cdf(enough), chance * deviation * (ahead * normal_cdf(ahead) + density))


def fitting(fit_probability: FloatArray, ran_out: FloatArray, ran: FloatArray) -> FloatArray:
    """Return the probability that each layout fits, given which others ran out of memory and which did not, shape (N,).

    By how much memory is off is taken as common to the layouts of a job: of the cases in which a layout fits, those are
    left in which what ran out would not have, and what ran would.

    Args:
        fit_probability: before anything was tried, shape (N,).
        ran_out, ran: the same of the layouts that did, any number.
    """
    least, most = float(ran_out.max(initial=0.0)), float(ran.min(initial=1.0))
    if least >= most:  # they contradict each other: what is left is that more memory does not fit better
        return np.where(fit_probability > least, fit_probability, 0.0)
    return np.clip((fit_probability - least) / (most - least), 0.0, 1.0)


CANDIDATES = 200
"""Plans of the search, all variants, from which the next trial is chosen."""

SITE = "site.toml"
SAME_JOB = ("gpus", "seq", "gbs", "framework", "precision", "tune", "method")
"""Options that a trial's plan and the study have alike; names of files differ by folder."""

LEAST_LIKELY = 0.9
"""Probability to fit of what is tried before any other ran, if one has it."""

FAILURES = 2
"""Trials in a row that failed but for memory, after which something else than the layout is wrong."""

STOP_RULE = (
    f"trials end where {LEAST_TRIALS} layouts ran and no other has a chance of {LIKELY:.0%} to take {MATTERS:.0%} less "
    "time than the fastest of them, or where there are no more trials"
)


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
        key = _key(layout)
        return self.keys.index(key) if key in self.keys else None

    def after(self, trials: Sequence[Trial]) -> Believed:
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
    """Search the layouts of a study; refusals name its file."""
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
    """Return which layout to try (first of those that are `likely` to fit), or why none."""
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
    assert trial.measured is not None
    batch, sequence, gpus = (float(trial.options[name]) for name in ("gbs", "seq", "gpus"))
    return trial.measured.step_of(batch * sequence, gpus)


def _key(layout: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, value) for name, value in layout.items() if value is not None))


def _row(trial: Trial, site: str | None) -> TrialRow:
    options = {**trial.options, "calibration": site}
    seen = estimate(layout=trial.layout, despite_rules=True, **options)
    measured = trial.measured
    return TrialRow(
        trial.number, seen.plan, trial.outcome, _step_time_s(trial) if measured else None,
        measured.memory_gib if measured else None, trial.reason,
    )  # fmt: skip
