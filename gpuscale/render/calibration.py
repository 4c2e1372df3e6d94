"""Drawing and JSON of cluster files that were made: `gpuscale calibrate` and `gpuscale clusters import`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from gpuscale.calibration.calibrate import Calibration, Fit, Residual, error_rows
from gpuscale.importers.clusters import ImportedCluster
from gpuscale.render.console import draw, table
from gpuscale.render.output import picked
from gpuscale.render.presets import cluster_json
from gpuscale.specs.cluster import LevelSpec
from gpuscale.units import format_rate, format_seconds, plural


def draw_calibration(result: Calibration) -> None:
    """Print the verdict, the curves, the errors by size, and the notes."""
    shown = result.held_out or result.fits
    residuals = [one for fit in shown for one in fit.residuals]
    notes = "\n".join(f"note: {note}" for note in result.notes)
    draw(_verdict(result, residuals), _curve_table(shown), _error_table(residuals), notes)


def _verdict(result: Calibration, residuals: Sequence[Residual]) -> str:
    """Return the answer in one line."""
    curves, logs = plural(len(result.fits), "curve"), plural(result.logs, "log")
    how = "at the sizes held out" if result.held_out else "at the sizes measured"
    errors = (
        f"median error {_percent([one.before for one in residuals])} before, "
        f"{_percent([one.after for one in residuals])} after, {how}"
    )
    return f"{result.cluster.name}: {curves} from {logs} ({result.rows:,} rows): {errors}"


def _percent(errors: Sequence[float]) -> str:
    return f"{100 * median(errors):.1f} %" if errors else "-"


def _curve_table(fits: Sequence[Fit]) -> Table:
    rows = [
        {
            "level": fit.curve.level,
            "collective": fit.curve.operation,
            "GPUs": f"{fit.curve.gpus:,}",
            "stride": f"{fit.curve.stride:,}",
            "sizes": f"{len(fit.residuals):,}",
            "latency": "-" if fit.latency_s is None else format_seconds(fit.latency_s),
            "of ideal": f"{fit.efficiency:.2f}",
            "before %": f"{100 * median(one.before for one in fit.residuals):.1f}",
            "after %": f"{100 * median(one.after for one in fit.residuals):.1f}",
            "worst %": f"{100 * max(one.after for one in fit.residuals):.1f}",
        }
        for fit in fits
    ]
    return table(rows, left=2, optional=("sizes", "stride"))


def _error_table(residuals: Sequence[Residual]) -> Table:
    rows = [
        {
            "error by size": row.size_class,
            "sizes": f"{row.sizes:,}",
            "before %\nmedian": f"{100 * row.before_median:.1f}",
            "before %\nworst": f"{100 * row.before_max:.1f}",
            "after %\nmedian": f"{100 * row.after_median:.1f}",
            "after %\nworst": f"{100 * row.after_max:.1f}",
        }
        for row in error_rows(residuals)
    ]
    return table(rows)


def calibration_json(result: Calibration, output: Path | None) -> dict[str, Any]:
    """Return what was fitted, with the errors of each curve and of all together."""
    curves = [
        {
            **_group(fit),
            "bytes": [int(size) for size in fit.curve.bytes],
            **picked(fit.curve, ("time_us",)),
            **picked(fit, ("latency_us", "efficiency")),
            "source": fit.curve.source,
            "errors": error_rows(fit.residuals),
        }
        for fit in result.fits
    ]
    return {
        "cluster": result.cluster.name,
        "output": output,
        **picked(result, ("logs", "rows")),
        "curves": curves,
        "errors": error_rows([one for fit in result.fits for one in fit.residuals]),
        "held_out": [{**_group(fit), "errors": error_rows(fit.residuals)} for fit in result.held_out],
        **picked(result, ("notes", "left_out")),
    }


def _group(fit: Fit) -> dict[str, Any]:
    return picked(fit.curve, ("operation", "level", "gpus", "stride"))


# -- imported clusters --


def draw_import(imported: ImportedCluster, output: Path | None) -> None:
    """Print the levels of a file that was written, or the file itself to stdout; the messages go to stderr."""
    cluster = imported.cluster
    if output is None:
        sys.stdout.write(imported.text)
    else:
        draw(
            f"{output}: {cluster.gpus:,} x {cluster.gpu.name}",
            _import_table(imported),
            "Per GPU and direction, wire rate, all GPUs at once; assumed: numbers that no file states.",
        )
    lines = [f"read {file}: {kind}" for file, kind in imported.read.items()]
    lines += [f"note: {note}" for note in imported.notes]
    if imported.assumed:
        lines.append(f"assumed, as no file states it: {', '.join(imported.assumed)}; the sources in the file say how")
    draw("\n".join(lines), stderr=True)


def _import_table(imported: ImportedCluster) -> Table:
    cluster = imported.cluster

    def keys_of(level: LevelSpec, keys: Iterable[str]) -> int:
        return sum(key.startswith(f"{level.name}.") for key in keys)

    rows = [
        {
            "level": level.name,
            "fabric": level.fabric,
            "GPUs": f"{level.gpus:,}",
            "GPU to GPU\nGB/s": format_rate(level.egress_bytes_per_s),
            "switches": str(level.switches) if level.switches else "-",
            "hop\nus": f"{level.hop_latency_s * 1e6:g}",
            "link\nefficiency": f"{level.link_efficiency:g}",
            "assumed": f"{keys_of(level, imported.assumed)} of {keys_of(level, cluster.sources)}",
        }
        for level in cluster.levels
    ]
    return table(rows, left=2)


def import_json(
    imported: ImportedCluster, allreduce_bytes_per_s: Sequence[float], output: Path | None
) -> dict[str, Any]:
    """Return what was read, noted and assumed, the cluster, and the text of its file."""
    return {
        "output": output,
        **picked(imported, ("read", "notes", "assumed")),
        "cluster": cluster_json(imported.cluster, allreduce_bytes_per_s),
        "toml": imported.text,
    }
