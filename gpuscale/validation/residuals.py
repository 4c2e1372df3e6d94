"""Residuals of our table of published runs: computed, written to `residuals.csv`, compared with those on file.

    python -m gpuscale.validation.residuals published_runs.csv    # write the file anew

`benchmarks/update_validation.py` does this and brings the documentation up to date.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from gpuscale.errors import GpuscaleError
from gpuscale.validation.files import read_measurements
from gpuscale.validation.interval import RESIDUALS, Features, Residual
from gpuscale.validation.predict import Prediction, features_of, predict_runs
from gpuscale.validation.summary import balanced, grouped

DIGITS = 4


def compute_residuals(path: Path) -> tuple[Residual, ...]:
    """Predict every run of a table; runs that cannot be predicted are left out.

    Raises:
        InputError: the table cannot be used.
    """
    rows = read_measurements(path).rows
    found = []
    for row, prediction in zip(rows, predict_runs(rows), strict=True):
        if isinstance(prediction, Prediction):
            step_s, mem_gib = row.positive("step_s"), row.positive("mem_gib")
            log_ratio = None if step_s is None else math.log(step_s / prediction.step_s)
            mem_ratio = None if mem_gib is None else mem_gib / prediction.memory_gib
            found.append(Residual(row.raw("id"), features_of(prediction), log_ratio, mem_ratio))
    return tuple(found)


def write_residuals(residuals: Sequence[Residual], path: Path = RESIDUALS) -> None:
    """Write residuals as CSV, numbers with `DIGITS` digits behind the point."""
    names = [item.name for item in fields(Features)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "log_ratio", "mem_ratio", *names])
        for one in residuals:
            values = [one.id, one.log_ratio, one.mem_ratio, *(getattr(one.features, name) for name in names)]
            writer.writerow([_text(value) for value in values])


def _text(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{DIGITS}f}" if isinstance(value, float) else value or ""


def balanced_figures(residuals: Sequence[Residual]) -> dict[str, float]:
    """Family-balanced median and 90th percentile of the errors of step time and memory, and the number of each."""
    step = [(one.family, math.exp(-one.log_ratio) - 1) for one in residuals if one.log_ratio is not None]
    memory = [(one.family, 1 / one.mem_ratio - 1) for one in residuals if one.mem_ratio]
    found: dict[str, float] = {"step_rows": len(step), "mem_rows": len(memory)}
    for name, errors in (("step", step), ("mem", memory)):
        figures = balanced(grouped(errors))
        found |= {f"{name}_{key}": figures[key] or 0.0 for key in ("median_abs", "p90_abs")}
    return found


SLACK = {"step_median_abs": 0.01, "step_p90_abs": 0.04, "mem_median_abs": 0.01, "mem_p90_abs": 0.04}
"""By how much a figure may be worse than on file before it counts as worse."""


def worsened(now: Sequence[Residual], before: Sequence[Residual]) -> list[str]:
    """What is worse now than on file, one line each: figures beyond `SLACK`, or fewer runs predicted."""
    new, old = balanced_figures(now), balanced_figures(before)
    lines = [
        f"{name}: {100 * new[name]:.1f} %, was {100 * old[name]:.1f} % (slack {100 * slack:.0f})"
        for name, slack in SLACK.items()
        if new[name] > old[name] + slack
    ]
    fewer = [name for name in ("step_rows", "mem_rows") if new[name] < old[name]]
    return lines + [f"{name}: {new[name]:.0f}, was {old[name]:.0f}" for name in fewer]


def main() -> None:
    """Write `residuals.csv` from the table named on the command line."""
    try:
        write_residuals(compute_residuals(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data/published_runs.csv")))
    except GpuscaleError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
