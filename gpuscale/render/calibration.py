"""A calibration as tables and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from gpuscale.calibration.calibrate import Calibration
from gpuscale.calibration.fit import Fit, Residual, error_rows
from gpuscale.render.console import console, table
from gpuscale.render.plain import print_json
from gpuscale.units import format_seconds

SCHEMA = "gpuscale.calibrate/1"


def draw_calibration(result: Calibration) -> None:
    """Print the verdict, the curves, the errors by size, and the notes."""
    out = console()
    out.print(verdict(result), soft_wrap=True)
    out.print()
    out.print(_curves(result.held_out or result.fits))
    out.print()
    out.print(_errors(_residuals(result)))
    for note in result.notes:
        out.print("\n".join(textwrap.wrap(f"note: {note}", out.width, subsequent_indent="  ")), soft_wrap=True)


def verdict(result: Calibration) -> str:
    """Return the answer in one line."""
    residuals = _residuals(result)
    curves = f"{len(result.fits)} curve{'s' * (len(result.fits) > 1)}"
    logs = f"{result.logs} log{'s' * (result.logs > 1)}"
    how = "at the sizes held out" if result.held_out else "at the sizes measured"
    errors = (
        f"median error {_percent([one.before for one in residuals])} before, "
        f"{_percent([one.after for one in residuals])} after, {how}"
    )
    return f"{result.cluster.name}: {curves} from {logs} ({result.rows:,} rows): {errors}"


def _residuals(result: Calibration) -> list[Residual]:
    return [one for fit in result.held_out or result.fits for one in fit.residuals]


def _curves(fits: Sequence[Fit]) -> Table:
    headers = [
        "level",
        "collective",
        "GPUs",
        "stride",
        "sizes",
        "latency",
        "of ideal",
        "before %",
        "after %",
        "worst %",
    ]
    rows = []
    for fit in fits:
        after = [one.after for one in fit.residuals]
        rows.append(
            [
                fit.curve.level,
                fit.curve.operation,
                f"{fit.curve.gpus:,}",
                f"{fit.curve.stride:,}",
                f"{len(fit.residuals):,}",
                "-" if fit.latency_s is None else format_seconds(fit.latency_s),
                f"{fit.efficiency:.2f}",
                f"{100 * median(one.before for one in fit.residuals):.1f}",
                f"{100 * median(after):.1f}",
                f"{100 * max(after):.1f}",
            ]
        )
    return table(headers, rows, left=2)


def _errors(residuals: Sequence[Residual]) -> Table:
    rows = [
        [
            row.size_class,
            f"{row.sizes:,}",
            *(f"{100 * value:.1f}" for value in (row.before_median, row.before_max, row.after_median, row.after_max)),
        ]
        for row in error_rows(residuals)
    ]
    return table(["error by size", "sizes", "before %", "worst %", "after %", "worst %"], rows)


def _percent(errors: Sequence[float]) -> str:
    return f"{100 * median(errors):.1f} %" if errors else "-"


def print_calibration_json(result: Calibration, output: Path | None) -> None:
    """Print the result as `gpuscale.calibrate/1`."""
    body = {
        "cluster": result.cluster.name,
        "output": None if output is None else str(output),
        "logs": result.logs,
        "rows": result.rows,
        "curves": [_curve(fit) for fit in result.fits],
        "errors": [asdict(row) for row in error_rows([one for fit in result.fits for one in fit.residuals])],
        "held_out": [
            {**_group(fit), "errors": [asdict(row) for row in error_rows(fit.residuals)]} for fit in result.held_out
        ],
        "notes": list(result.notes),
        "left_out": list(result.left_out),
    }
    print_json(SCHEMA, body)


def _group(fit: Fit) -> dict[str, Any]:
    curve = fit.curve
    return {"operation": curve.operation, "level": curve.level, "gpus": curve.gpus, "stride": curve.stride}


def _curve(fit: Fit) -> dict[str, Any]:
    return {
        **_group(fit),
        "bytes": [int(size) for size in fit.curve.bytes],
        "time_us": [time_s * 1e6 for time_s in fit.curve.time_s],
        "latency_us": None if fit.latency_s is None else fit.latency_s * 1e6,
        "efficiency": fit.efficiency,
        "source": fit.curve.source,
        "errors": [asdict(row) for row in error_rows(fit.residuals)],
    }
