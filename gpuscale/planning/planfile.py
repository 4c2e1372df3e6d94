"""Plan files: a job, one layout and what was predicted of it as TOML, written by `plan -o` and read by `estimate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import is_there, reads, write_text
from gpuscale.presets.files import Document, KeyPath, read_toml
from gpuscale.presets.hardware import split_pool
from gpuscale.request import JobOptions, Layout, Options, declared, read
from gpuscale.results import PlanRow
from gpuscale.version import __version__

SCHEMA = "gpuscale.planfile/1"
REQUIRED = {"job": ("model", "cluster", "gpus", "seq", "gbs", "precision"), "layout": ("dp",)}
IMPLIED_SCHEDULES = ("none", "1f1b", "interleaved")
"""Schedules that PP and VPP imply; a plan file names the others."""

PREDICTED = ("step_time_s", "tokens_per_s_per_gpu", "mfu", "memory_gib")
"""What a plan file keeps of the prediction."""


@dataclass(frozen=True)
class Predicted:
    """What was predicted of a plan when it was saved. `estimate` never reads it; `check` holds it against today's."""

    gpuscale: str  #: the version that predicted it.
    step_time_s: float  #: as in `PlanRow`, like the others [s].
    tokens_per_s_per_gpu: float  #: [1/s].
    mfu: float  #: [0-1].
    memory_gib: float  #: [GiB].


def write_plan_file(path: Path, request: Mapping[str, str | int | float], plan: PlanRow) -> None:
    """Write a plan file whole or not at all; see `plan_file_text`."""
    write_text(path, plan_file_text(path.parent, request, plan))


def plan_file_text(folder: Path, request: Mapping[str, str | int | float], plan: PlanRow) -> str:
    """Return a plan file that is to stand in a folder, from which the paths of its model and cluster are given;
    `request` makes the job again (`Job.request`)."""
    values, layout = plan.to_dict(), layout_of(plan)
    predicted = {"gpuscale": __version__, **{name: values[name] for name in PREDICTED}}
    tables = {"job": in_folder(request, folder), "layout": layout, "predicted": predicted}
    return tomli_w.dumps({"format": SCHEMA, **tables})


def layout_of(plan: PlanRow) -> dict[str, Any]:
    """Return what makes the layout of a plan again, by the names of `Layout`."""
    values = {**plan.to_dict(), "shard": plan.shard_size}
    implied = {"schedule"} if plan.schedule in IMPLIED_SCHEDULES else set()
    return {name: values[name] for name in declared(Layout) if name not in implied}


def in_folder(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return options of a job with the paths of its files as seen from a folder, not the working directory."""

    def move(name: str) -> str:
        if not _is_path(name) or Path(name).is_absolute() or not is_there(Path(name)):
            return name
        relative = Path(os.path.relpath(name, folder)).as_posix()
        return relative if "/" in relative else f"./{relative}"

    return _with_paths(request, move)


def from_folder(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The reverse of `in_folder`."""
    return _with_paths(job, lambda name: str(folder / name) if _is_path(name) and is_there(folder / name) else name)


def _with_paths(job: Mapping[str, Any], move: Callable[[str], str]) -> dict[str, Any]:
    """Move the paths of a job's files; a pool, `fleet.toml:h100`, with its file. Names of presets stay as they are."""
    moved = {}
    for key in ("model", "cluster"):
        if key in job:
            file, pool = split_pool(str(job[key]))
            moved[key] = move(file) + (f":{pool}" if pool else "")
    if "calibration" in job:  # a file, whatever it looks like
        name = str(job["calibration"])
        moved["calibration"] = move(name if _is_path(name) else f"./{name}")
    return {**job, **moved}


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.lower().endswith((".toml", ".json"))


def read_plan_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return job options and layout of a plan file, by the names of `JobOptions` and `Layout`.

    Raises:
        InputError: missing, not TOML, or with unknown or unusable entries; the message names file and line.
    """
    document = read_document(path)
    job, layout = _table(document, "job", JobOptions), _table(document, "layout", Layout)
    return from_folder(job, path.parent), layout


@reads("plan")
def read_document(path: Path) -> Document:
    """Read a plan file as far as its format and the names of its tables."""
    document, known = read_toml(path, "`gpuscale plan -o FILE` writes plan files"), ("format", *REQUIRED, "predicted")
    for name in document.data:
        if name not in known:
            hint = did_you_mean(name, known, "keys are")
            raise document.error((name,), f"unknown key {name[:80]!r}", hint)
    if document.data.get("format") != SCHEMA:
        raise document.error(("format",), f"format is not {SCHEMA!r}", "`gpuscale plan -o FILE` writes such files")
    return document


def read_predicted(path: Path) -> Predicted | None:
    """Read what a plan file says was predicted; None where it does not say."""
    document = read_document(path)
    table = document.data.get("predicted")
    if table is None:
        return None
    if not isinstance(table, dict):
        raise document.error(("predicted",), "is not a table", "`gpuscale plan -o FILE` writes one")
    numbers = {}
    for name in PREDICTED:
        value = table.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST < value < MOST:
            wrong = "is missing" if value is None else f"is not a number from {LEAST:g} to {MOST:g}"
            raise document.error(("predicted", name), f"predicted.{name}: {wrong}")
        numbers[name] = float(value)
    return Predicted(str(table.get("gpuscale", ""))[:40], **numbers)


LEAST, MOST = 1e-30, 1e30


def _table(document: Document, name: str, options: type[Options]) -> dict[str, Any]:
    table = document.data.get(name)
    if not isinstance(table, dict):
        raise document.error((name,), f"table {name!r} is missing", "`gpuscale plan -o FILE` writes such files")
    missing = ", ".join(f"'{name}.{key}'" for key in REQUIRED[name] if key not in table)
    if missing:
        raise document.error((name,), f"missing: {missing}")
    return checked(document, table, options, lambda key: (name, key), name)


def checked(
    document: Document,
    values: Mapping[str, Any],
    options: type[Options],
    place: Callable[[str], KeyPath | None],
    said: str,
) -> dict[str, Any]:
    """Check options that a file states by their declarations; values must have the type of their option. `place` leads
    from an option to where it stands, and `said` is what the options are of, for the message."""
    try:
        return read(options, values, strict=True).stated()
    except InputError as error:
        key = next((key for key in values if key == error.field or repr(key) in error.message), "")
        message = f"{said}.{error.field}: {error.message}" if error.field else error.message
        raise document.error(place(key) or (), message, error.hint) from None


def with_plan_file(
    path: Path, options: Mapping[str, Any], layout: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a plan file's options and layout with some entries replaced: DP, shard and SP follow others."""
    stored_options, stored = read_plan_file(path)
    return {**stored_options, **options}, replaced(stored, layout, gpus="gpus" in options)


def replaced(stored: Mapping[str, Any], layout: Mapping[str, Any], *, gpus: bool = False) -> dict[str, Any]:
    """Return a layout with some entries replaced, without those that follow from them, of which another number of GPUs
    (`gpus`) is one cause: DP, shard and SP."""
    gone: set[str] = set()
    if {"tp", "pp", "cp"} & set(layout) or gpus:
        gone |= {"dp", "shard"}
    if {"dp", "zero"} & set(layout):
        gone |= {"shard"}
    if "tp" in layout and stored.get("sp"):
        gone |= {"sp"}
    return {name: value for name, value in stored.items() if name not in gone} | dict(layout)
