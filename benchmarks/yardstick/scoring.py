"""Predictions of a planner as a CSV file, and what they are worth beside the measured runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from facts import class_of

from gpuscale.errors import InputError
from gpuscale.uncertainty import family_of
from gpuscale.validation.measurements import Column, Row, measurements, read_measurements
from gpuscale.validation.runs import Run
from gpuscale.validation.scores import (
    LEAST_OF_SWEEP,
    Figures,
    RunScore,
    Scored,
    balanced,
    comparable,
    figures,
    first_choices,
    grouped,
    measured_step_s,
    quantile,
    relative_error,
    summarise_runs,
)

PREDICTIONS = {
    "predictions": {
        "id": Column(required=True),  # the run, as the table of runs has it
        "step_s": Column("number"),  # predicted seconds per step
        "mem_gib": Column("number"),  # predicted memory of the fullest GPU [GiB]
        "fits": Column(("yes", "no")),  # whether the run finds the memory it needs
        "step_s_low": Column("number"),  # lower end of an 80 % interval of the step time [s]
        "step_s_high": Column("number"),  # its upper end [s]
    }
}
"""Columns of a file of predictions; an empty cell is not predicted."""

CLASSES = ("dense", "experts", "fine-tuning")
"""What runs are ranked in; each has mechanisms of its own."""

LOST = 1.0
"""The error that a run counts with in ranks which a planner does not predict, and the largest that counts."""


class Guess(NamedTuple):
    """What a planner says of one run; None where it says nothing."""

    step_s: float | None = None
    mem_gib: float | None = None
    fits: bool | None = None
    step_s_low: float | None = None
    step_s_high: float | None = None


class Measured(NamedTuple):
    """One run to be predicted."""

    row: Row
    run: Run | str  #: as a job and a layout, or why it is none.
    step_s: float | None  #: measured, or as it follows from tokens/s, TFLOP/s or MFU [s].
    mem_gib: float | None
    kind: str  #: one of `CLASSES`.


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Measured runs and runs that ran out of memory of several files; the latter are flagged `oom`.

    Raises:
        InputError: a file cannot be used, or an id is in two of them.
    """
    rows: dict[str, Row] = {}
    for path in paths:
        kind, found = read_measurements(path)
        if kind not in {"runs", "oom"}:
            raise InputError(f"holds {kind}, not runs", place=str(path), hint="docs/validation.md has the columns")
        for row in found:
            name, before = row.raw("id"), rows.get(row.raw("id"))
            if before:
                raise InputError(f"id {name[:60]!r} is also at {before.place}", place=row.place)
            flags = f"{row.raw('flags')} oom" if kind == "oom" else row.raw("flags")
            rows[name] = Row({**row.cells, "flags": flags}, row.place)
    return list(rows.values())


def measured(rows: Sequence[Row], runs: Sequence[Run | str]) -> list[Measured]:
    """Each run with what was measured of it; one whose cells are wrong has nothing."""
    found = []
    for row, run in zip(rows, runs, strict=True):
        known = None if isinstance(run, str) else run
        try:
            step_s, mem_gib = measured_step_s(row, known and known.job)[0], row.number("mem_gib")
            kind = class_of(row, known)
        except InputError:
            step_s, mem_gib, kind = None, None, CLASSES[0]
        found.append(Measured(row, run, step_s, mem_gib, kind))
    return found


def read_predictions(path: Path, known: Iterable[str]) -> dict[str, Guess]:
    """A planner's predictions by the id of the run.

    Args:
        known: ids of the runs; others are left aside, as a planner may have predicted more.

    Raises:
        InputError: the file cannot be used; the place says file and line.
    """
    ids, found = set(known), dict[str, Guess]()
    for _, row in measurements(path, PREDICTIONS):
        row.check(PREDICTIONS["predictions"])
        low, high = row.number("step_s_low"), row.number("step_s_high")
        if (low is None) != (high is None) or (low is not None and high is not None and low > high):
            raise row.error("step_s_low", f"and step_s_high {row.raw('step_s_high')[:40]!r} are no interval")
        fits = {"yes": True, "no": False}.get(row.text("fits"))
        if row.raw("id") in ids:
            found[row.raw("id")] = Guess(row.number("step_s"), row.number("mem_gib"), fits, low, high)
    if not found:
        hint = "ids are those of the table of runs; --facts FILE writes them with what is known of each run"
        raise InputError("predicts none of the runs", place=str(path), hint=hint)
    return found


def scored(runs: Iterable[Measured], guesses: Mapping[str, Guess]) -> list[tuple[RunScore, Row]]:
    """Each run with what was predicted of it, as `gpuscale validate` scores its own predictions."""
    pairs = []
    for one in runs:
        name, guess = one.row.raw("id"), guesses.get(one.row.raw("id"), Guess())
        score = RunScore(
            name, "ok" if guess != Guess() else "unsupported", "",
            one.step_s, guess.step_s, guess.step_s and relative_error(guess.step_s, one.step_s),
            one.mem_gib, guess.mem_gib, guess.mem_gib and relative_error(guess.mem_gib, one.mem_gib),
            guess.fits, guess.step_s_low, guess.step_s_high,
        )  # fmt: skip
        pairs.append((score, one.row))
    return pairs


def _balanced(errors: Sequence[tuple[str, float | None]]) -> Figures:
    """Figures balanced over families, or over all runs where no family has enough of them."""
    found = balanced(grouped(errors))
    return found if found["families"] else figures([error for _, error in errors])


def _ranked(pairs: Scored, what: str) -> float | None:
    """The family-balanced median that ranks go by, lost rows as `LOST` and none as more; None where all are lost."""
    rows = [
        (family_of(one.id), getattr(one, f"{what}_error"))
        for one, row in pairs
        if comparable(row) and getattr(one, {"step": "measured_step_s", "mem": "measured_mem_gib"}[what])
    ]
    if all(error is None for _, error in rows):
        return None
    counted = [(family, LOST if error is None else min(abs(error), LOST)) for family, error in rows]
    return _balanced(counted)["median_abs"]


def _regret(pairs: Scored) -> dict[str, Any]:
    """How much longer than the fastest measured the first choice of a sweep takes, over sweeps of three or more."""
    losses = [one.loss - 1 for one in first_choices(pairs, share_ties=True) if one.layouts >= LEAST_OF_SWEEP]
    if not losses:
        return {"sweeps": 0, "median": None, "p90": None}
    return {"sweeps": len(losses), "median": statistics.median(losses), "p90": quantile(losses, 0.9)}


def figures_of(pairs: Scored) -> dict[str, Any]:
    """All figures of a planner over some runs."""
    summary = summarise_runs(pairs)
    shown = ("n", "predicted", "median_abs", "p90_abs", "bias")
    return {
        "step": {name: summary[name] for name in shown},
        "mem": {name: summary["memory"][name] for name in shown},
        "ranked": {what: _ranked(pairs, what) for what in ("step", "mem")},
        "fits": summary["fits"],
        "regret": _regret(pairs),
        "interval": summary["interval"],
        "families": {name: one["median_abs"] for name, one in summary["groups"]["family"].items()},
    }


def off(pairs: Scored, others: Scored, what: str) -> tuple[float, float] | None:
    """Median and 90th percentile of the errors of `others` on the runs that `pairs` predict: balanced over families of
    eight or more such runs, or over all runs where no family has as many."""
    errors = [
        (family_of(other.id), getattr(other, f"{what}_error"))
        for (one, row), (other, _) in zip(pairs, others, strict=True)
        if comparable(row) and getattr(one, f"{what}_error") is not None
    ]
    found = _balanced(errors)
    return None if found["median_abs"] is None or found["p90_abs"] is None else (found["median_abs"], found["p90_abs"])


def table(runs: Sequence[Measured], tools: Mapping[str, Mapping[str, Guess]], own: str) -> list[dict[str, Any]]:
    """Figures of every planner in every class and over all; `off` are its errors on the runs it predicts, `beside`
    those of `own` on the same.

    Returns:
        One record per class and planner, in the order of ranks by step time: `class`, `tool`, `rank` and `mem_rank`
        (1 is the best; None without predictions), and what `figures_of` has.
    """
    found = []
    for kind in (*CLASSES, "all"):
        mine = [one for one in runs if kind in {"all", one.kind}]
        records, reference = [], scored(mine, tools[own])
        for name, guesses in tools.items():
            pairs = scored(mine, guesses)
            of_own = {what: off(pairs, reference, what) for what in ("step", "mem")}
            of_it = {what: off(pairs, pairs, what) for what in ("step", "mem")}
            records.append({"class": kind, "tool": name, **figures_of(pairs), "off": of_it, "beside": of_own})
        for what, rank in (("step", "rank"), ("mem", "mem_rank")):
            errors = sorted(one["ranked"][what] for one in records if one["ranked"][what] is not None)
            for one in records:
                error = one["ranked"][what]
                one[rank] = None if error is None else 1 + errors.index(error)
        found += sorted(records, key=lambda one: (one["rank"] or len(tools) + 1, one["mem_rank"] or len(tools) + 1))
    return found
