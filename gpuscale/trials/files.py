"""Trials as files: the study, and in its folder a plan and a log of each trial, which are all that a study remembers.

    format = "gpuscale.trials/1"

    [job]                       # options of `plan`
    model = "llama3-8b"
    gpus = 16
    cluster = "aws-p5"

    [layout]                    # sets of values, as `plan` takes them; optional
    tp = "1..4"

    [trials]                    # optional
    command = ["sbatch", "--wait", "train.sh", "{tp}", "{pp}", "{micro_batch_size}"]
    log = "{folder}/train.log"  # what the command prints, where nothing is said
    most = 12
    timeout_s = 3600

Trial 3 of `study.toml` is the folder `study/03`: `plan.toml` is a plan file, `output.log` what the command printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscale.calibration.traces import read_run_log
from gpuscale.calibration.training_logs import MeasuredRun
from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import is_there, reading, reads
from gpuscale.launch.diagnosis import find_errors
from gpuscale.planning.planfile import checked, from_folder, read_plan_file
from gpuscale.presets.files import Document, read_toml
from gpuscale.request import PINS, JobOptions
from gpuscale.units import MIB

SCHEMA = "gpuscale.trials/1"
TABLES = ("job", "layout", "trials")
MOST, USUAL_MOST, LONGEST_S = 99, 12, 30 * 24 * 3600.0
"""Trials that a study may have, and has where nothing is said; the longest that one may take [s]."""

MAX_ARGUMENTS = 200
PLAN, OUTPUT = "plan.toml", "output.log"
TAIL_BYTES = MIB
"""How much of the end of a log is searched for what ended the run."""

OUT_OF_MEMORY = ("out_of_memory", "out_of_memory_outside", "out_of_memory_of_jax")
"""Errors that say that the memory of a GPU was full."""

OWN = ("folder", "plan", "log")
"""Names in braces beside those of the layout: the trial's folder, its plan file and its log."""


@dataclass(frozen=True)
class Study:
    """What is to be tuned, and how a trial is run."""

    path: Path  #: its file.
    job: Mapping[str, Any]  #: options of `JobOptions`.
    pins: Mapping[str, Any]  #: sets of values of the layout.
    command: tuple[str, ...] = ()  #: arguments of the program that runs a trial, with names in braces; none: by hand.
    log: str = ""  #: where a trial's log is, with names in braces; empty where it is what the command prints.
    most: int = USUAL_MOST  #: trials at most.
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
        """Return the arguments that run a trial: each stays one, whatever is put into it."""
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
    options: Mapping[str, Any]  #: of its job.
    layout: Mapping[str, Any]  #: as a plan file has it.
    log: Path  #: where its log is, or will be.
    outcome: str  #: `waiting` for its log, `ran`, `out of memory`, or `failed` for another reason.
    measured: MeasuredRun | None = None  #: what the log says of a run that ran.
    reason: str = ""  #: why it failed.


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
