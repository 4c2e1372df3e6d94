"""A whole training as phases in a TOML file (docs/train-time.md): batch ramps, sequence stages, other GPUs,
evaluations, stalls; a calendar.

Each phase is planned with the options of `[job]` and its own; `[layout]`, and `layout` of a phase, pin degrees.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.errors import GpuscaleError, InputError, NoAnswerError, did_you_mean
from gpuscale.files import reads
from gpuscale.launch.subject import Subject
from gpuscale.planning.planfile import from_folder
from gpuscale.presets.files import Document, read_toml
from gpuscale.request import JobOptions, Layout, declared, part
from gpuscale.units import MAX_COUNT, TOKENS, format_count

FORMAT = "gpuscale.training/1"
TOP = ("format", "start", "job", "layout", "phase")
LIMITS = {"data_stall": 10.0, "evaluation_s": 1e6, "evaluation_every": 1e9, "pause_h": 1e5}
"""Numbers that a phase may have beside the options of its job, and the most they may be."""

OWN = ("name", "tokens", "layout", *LIMITS)
MAX_PHASES, MAX_RAMP = 64, 16

Progress = Callable[[int, int, str], None]


class PhaseFile(NamedTuple):
    """One phase as its file has it, or one batch of a ramp."""

    name: str
    tokens: float | None  #: its length; None where the file leaves it open.
    options: dict[str, Any]
    pins: dict[str, Any]
    numbers: dict[str, float]  #: those of `LIMITS`.
    place: int  #: index in the file.


class Training(NamedTuple):
    """A training as its file has it."""

    document: Document
    start: datetime.date | None
    phases: tuple[PhaseFile, ...]


@reads("plan", "training")
def is_training(path: Path) -> bool:
    """Whether a file is a training, rather than a plan."""
    hint = "`gpuscale plan -o FILE` writes plan files; docs/train-time.md shows one of phases"
    return bool(read_toml(path, hint).data.get("format") == FORMAT)


def read_training(path: Path) -> Training:
    """Read a training.

    Raises:
        InputError: unknown or unusable entries; the message names file and line.
    """
    document = read_toml(path)
    _known(document, (), document.data, TOP)
    job = document.data.get("job", {})
    _known(document, ("job",), job, tuple(declared(JobOptions)))
    job, layout = _options(document, ("job",), job), _layout(document, ("layout",), document.data)
    listed = document.data.get("phase")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise document.error(("phase",), "there are no phases", "write [[phase]] above each")
    if not 1 <= len(listed) <= MAX_PHASES:
        raise document.error(("phase",), f"{len(listed)} phases, at most {MAX_PHASES}")
    phases = tuple(part for at, one in enumerate(listed) for part in _phase(document, at, one, job, layout))
    return Training(document, _start(document), phases)


def _known(document: Document, place: tuple[str | int, ...], table: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(table, dict):
        raise document.error(place, f"{place[-1]!r} is not a table")
    for key in table:
        if key not in keys:
            raise document.error((*place, key), f"unknown key {key[:80]!r}", did_you_mean(key, keys, "keys are", 3))


def _options(document: Document, place: tuple[str | int, ...], table: Mapping[str, Any]) -> dict[str, Any]:
    """Paths of files from the working directory."""
    found = part(table, JobOptions)
    for key, value in found.items():
        if isinstance(value, dict) or (isinstance(value, list) and key != "gbs"):
            raise document.error((*place, key), f"{key} takes one value")
    return from_folder(found, document.path.parent)


def _layout(document: Document, place: tuple[str | int, ...], parent: Mapping[str, Any]) -> dict[str, Any]:
    table = parent.get("layout", {})
    _known(document, place, table, tuple(declared(Layout)))
    return dict(table)


def _start(document: Document) -> datetime.date | None:
    given = document.data.get("start")
    if isinstance(given, datetime.datetime):
        return given.date()
    if isinstance(given, datetime.date | None):
        return given
    try:
        return datetime.date.fromisoformat(str(given))
    except ValueError:
        raise document.error(("start",), f"start = {str(given)[:40]!r} is not a date", 'write "2026-12-01"') from None


def _phase(
    document: Document, at: int, table: dict[str, Any], job: dict[str, Any], layout: dict[str, Any]
) -> Iterator[PhaseFile]:
    """Read one phase: itself, or one of each batch of its ramp."""
    place = ("phase", at)
    _known(document, place, table, (*OWN, *declared(JobOptions)))
    name = table.get("name", f"phase {at + 1}")
    if not isinstance(name, str) or not 1 <= len(name) <= 60:
        raise document.error((*place, "name"), "name must be a text of 1 to 60 characters")
    tokens, numbers = table.get("tokens"), _numbers(document, at, table)
    try:
        tokens = None if tokens is None else TOKENS.read(tokens, "tokens", 1, MAX_COUNT)
    except InputError as error:
        raise document.error((*place, "tokens"), f"tokens: {error.message}", error.hint) from None
    options = job | _options(document, place, table)
    pins = layout | _layout(document, (*place, "layout"), table)
    batches = options.get("gbs")
    if not isinstance(batches, list):
        yield PhaseFile(name, tokens, options, pins, numbers, at)
        return
    if not 1 <= len(batches) <= MAX_RAMP or tokens is None:
        hint = "give tokens, and the phase as many of each batch"
        raise document.error((*place, "gbs"), f"a ramp has 1 to {MAX_RAMP} batches, and its own tokens", hint)
    for index, batch in enumerate(batches):
        own = numbers | ({} if index == 0 else {"pause_h": 0.0})
        yield PhaseFile(f"{name}, batch {batch}", tokens / len(batches), options | {"gbs": batch}, pins, own, at)


def _numbers(document: Document, at: int, table: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, most in LIMITS.items():
        value = table.get(name, 0)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= most:
            raise document.error(("phase", at, name), f"{name} is not a number from 0 to {most:g}")
        found[name] = float(value)
    return found


def lengths(training: Training, tokens: float | None) -> list[float]:
    """Return the tokens of every phase; the one that leaves them open takes the rest of the whole training's.

    Raises:
        InputError: several are open, or the whole is not given or too short.
    """
    open_at = [at for at, one in enumerate(training.phases) if one.tokens is None]
    stated = math.fsum(one.tokens or 0.0 for one in training.phases)
    if not open_at and tokens is not None and abs(tokens / stated - 1.0) > 1e-9:
        message = f"the phases are {format_count(stated)} tokens, not {format_count(tokens)}"
        raise InputError(message, field="train_tokens", hint="leave the tokens of one phase open")
    if open_at:
        phase = training.phases[open_at[-1]]
        if len(open_at) > 1 or tokens is None:
            hint = "one phase may leave them open: it takes the rest of `train_tokens=15T`"
            raise training.document.error(("phase", phase.place), f"{phase.name!r} has no tokens", hint)
        if tokens <= stated:
            message = f"the phases are {format_count(stated)} tokens without {phase.name!r}"
            raise InputError(message, field="train_tokens", hint="give more")
    return [one.tokens if one.tokens is not None else (tokens or 0.0) - stated for one in training.phases]


def planned(
    training: Training,
    given: Mapping[str, Any],
    pins: Mapping[str, Any],
    find: Callable[[Mapping[str, Any], Mapping[str, Any]], Subject],
    progress: Progress | None = None,
) -> list[Subject]:
    """Plan every phase, with options and pins in place of those of the file, as `find` finds the best plan; phases of
    the same job share one. `progress` is told before each."""
    found: dict[str, Subject] = {}
    subjects = []
    for at, one in enumerate(training.phases):
        if progress is not None:
            progress(at, len(training.phases), one.name)
        options, layout = {**one.options, **given}, {**one.pins, **pins}
        key = repr((sorted(options.items()), sorted(layout.items())))
        try:
            found[key] = found.get(key) or find(options, layout)
        except GpuscaleError as error:
            place = training.document.error(("phase", one.place), "").place
            kind = NoAnswerError if isinstance(error, NoAnswerError) else InputError
            where = f"{one.name}: {error.field}: " if error.field else f"{one.name}: "
            raise kind(f"{where}{error.message}", place=place, hint=error.hint) from None
        subjects.append(found[key])
    return subjects
