"""Drawing of what is measured: `gpuscale validate`, `calibrate`, `clusters import` and `bench`."""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from gpuscale.calibration.calibrate import Calibration, Fit, error_rows
from gpuscale.calibration.factors import factor_of
from gpuscale.calibration.site import NORMAL_80
from gpuscale.calibration.training_logs import MeasuredRun
from gpuscale.importers.assemble import ImportedCluster
from gpuscale.planning.calibrating import CalibratedRun
from gpuscale.planning.plans import BenchResult
from gpuscale.render.console import draw, show
from gpuscale.render.document import Document, Part, Section, Spell, note_lines, plain, table
from gpuscale.render.output import picked
from gpuscale.render.plan import plan_document
from gpuscale.render.plan_texts import on_gpus, step_range
from gpuscale.render.presets import cluster_document, cluster_json, level_row
from gpuscale.results import PlanResult
from gpuscale.units import GIB, format_count, format_seconds, plural

MEANING = {
    "presets": "read model, cluster, GPU and framework",
    "enumerate": "form layouts and their choices",
    "rules": "drop what cannot run",
    "layers": "measure layers, once each",
    "memory": "of every candidate",
    "step time": "of what may lead",
    "ranking": "keep the best in order",
    "output": "describe and draw the plans",
}


def draw_into_nothing(plans: PlanResult) -> None:
    """Draw plans as `gpuscale plan` does, for nobody to see."""
    with contextlib.redirect_stdout(io.StringIO()):
        show(plan_document(plans))


def bench_document(result: BenchResult) -> Document:
    """Lay out the rate, where the time goes, and the peak of memory."""
    memory = "" if result.peak_mib is None else f", {result.peak_mib:,.0f} MiB at the peak"
    times = [(one.stage, MEANING[one.stage], one.first_s, one.best_s) for one in result.stages]
    times.append(("one plan", f"{result.runs} runs", result.first_s, result.best_s))
    rows = [
        {
            "stage": stage,
            "": meaning,
            "first run ms": f"{1e3 * first_s:,.1f}",
            "fastest ms": f"{1e3 * best_s:,.1f}",
            "share": f"{best_s / result.best_s:.0%}",
        }
        for stage, meaning, first_s, best_s in times
    ]
    lines = [f"Python {result.python}, NumPy {result.numpy}, {result.machine}; CPU time of one thread"]
    if result.startup_s is not None:
        whole = result.startup_s + result.first_s
        lines.insert(0, f"process: {whole:.2f} s, of which {result.startup_s:.2f} s until it was ready to plan")
    return plain(
        "Planning speed",
        f"{on_gpus(result)}: {result.candidates:,} candidates, "
        f"{format_count(result.candidates_per_s)} per second of CPU time{memory}",
        table(rows, left=2),
        "\n".join(lines),
    )


def calibration_document(result: Calibration) -> Document:
    """Lay out curves and errors."""
    shown = result.held_out or result.fits
    errors = error_rows([one for fit in shown for one in fit.residuals])
    curves = [
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
        for fit in shown
    ]
    sizes = [
        {
            "error by size": row.size_class,
            "sizes": f"{row.sizes:,}",
            "before %\nmedian": f"{100 * row.before_median:.1f}",
            "before %\nworst": f"{100 * row.before_max:.1f}",
            "after %\nmedian": f"{100 * row.after_median:.1f}",
            "after %\nworst": f"{100 * row.after_max:.1f}",
        }
        for row in errors
    ]
    return plain(
        f"Collectives of {result.cluster.name}",
        f"{result.cluster.name}: {plural(len(result.fits), 'curve')} from {plural(result.logs, 'log')} "
        f"({result.rows:,} rows): median error "
        f"{100 * errors[-1].before_median:.1f} % before, {100 * errors[-1].after_median:.1f} % after, "
        f"at the sizes {'held out' if result.held_out else 'measured'}",
        table(curves, left=2, optional=("sizes", "stride")),
        table(sizes),
        note_lines(result.notes),
    )


def calibration_json(result: Calibration, output: Path | None) -> dict[str, Any]:
    """Return what was fitted, with the errors of each curve and of all together."""
    curves = [
        {
            **_group(fit),
            "bytes": [int(size) for size in fit.curve.bytes],
            **picked(fit.curve, "time_us"),
            **picked(fit, "latency_us efficiency"),
            "source": fit.curve.source,
            "errors": error_rows(fit.residuals),
        }
        for fit in result.fits
    ]
    return {
        "cluster": result.cluster.name,
        "output": output,
        **picked(result, "logs rows"),
        "curves": curves,
        "errors": error_rows([one for fit in result.fits for one in fit.residuals]),
        "held_out": [{**_group(fit), "errors": error_rows(fit.residuals)} for fit in result.held_out],
        **picked(result, "notes left_out"),
    }


def _group(fit: Fit) -> dict[str, Any]:
    return picked(fit.curve, "operation level gpus stride")


def measured_json(found: MeasuredRun) -> dict[str, Any]:
    """Return what a log measured, by the keys that scripts rely on."""
    keys = ("iterations", "discarded", "step_time_s", "jitter", "memory_gib", "tokens_per_s_per_gpu")
    return picked(found, (*keys, "step_time_low_s", "step_time_high_s"))


def measured_document(found: MeasuredRun, spell: Spell) -> Document:
    """Lay out what a log measured."""
    step_s, rate = found.step_time_s, found.tokens_per_s_per_gpu
    speed = [f"{format_seconds(step_s)} per iteration"] if step_s else []
    speed += [f"{rate:,.0f} tokens/s per GPU"] if rate else []
    said = {"batch": found.batch, "sequence": found.sequence, "GPUs": found.gpus}
    rows = [
        (
            "iterations",
            f"{found.iterations:,} of {found.reported:,}; {found.discarded:,} left out: warm-up, skipped steps",
        ),
        ("jitter", f"{found.jitter:.2%} {SCATTER}" if found.jitter is not None else "one report says nothing of it"),
        ("stragglers", _stragglers(found)),
        ("memory", "; ".join(f"{basis} {size / GIB:.2f} GiB" for basis, size in found.memory.items()) or "not said"),
        ("the log says", ", ".join(f"{name} {value:,}" for name, value in said.items() if value) or "no configuration"),
    ]
    timers = sorted(found.timers_s.items(), key=lambda one: -one[1])[:SHOWN_TIMERS]
    shares = [
        {"timer": name, "ms": f"{1e3 * seconds:,.1f}", "of the iteration": f"{seconds / step_s:.1%}" if step_s else "-"}
        for name, seconds in timers
    ]
    return plain(
        f"What {found.file} measured",
        f"{found.file}: {' = '.join(speed)}, {found.framework}",
        rows,
        table(shares) if shares else "",
        note_lines(found.notes, spell),
    )


def calibrated_run_document(result: CalibratedRun, spell: Spell = str) -> Document:
    """Lay out factors, runs before and after, and timers beside components."""
    before, after = result.before, result.after
    factors = [
        {
            "factor": name,
            "of what is predicted": declared.meaning,
            "value": f"{value.value:.3f}",
            "80 % within": f"{value.low:.3f} to {value.high:.3f}",
            "known": f"{max(0, 1 - math.log(value.high / value.low) / (2 * NORMAL_80 * declared.prior)):.0%}",
        }
        for name, value in result.site.factors.items()
        if (declared := factor_of(name)) is not None
    ]
    runs = [
        {
            "run": one.file[:40],
            "measured": format_seconds(one.measured_step_time_s),
            "before": format_seconds(one.predicted_step_time_s),
            "error %": f"{100 * one.error:+.1f}",
            "after": format_seconds(new.predicted_step_time_s),
            "error % ": f"{100 * new.error:+.1f}",
            "80 % within": step_range(new),
            "GiB": "-" if one.measured_memory_gib is None else f"{one.measured_memory_gib:.1f}",
            "before ": "-" if one.predicted_memory_gib is None else f"{one.predicted_memory_gib:.1f}",
        }
        for one, new in zip(before.runs, after.runs, strict=True)
    ]
    groups = [
        {
            "measured by": group.name,
            "components": ", ".join(group.components),
            "measured": format_seconds(group.measured_s),
            "predicted": format_seconds(group.predicted_s),
        }
        for of_run in result.groups
        for group in of_run
    ]
    return plain(
        "Predictions fitted to runs",
        f"{plural(len(before.runs), 'run')}: predicted step time off by {before.median_error:.1%} before, "
        f"{after.median_error:.1%} after; 80 % within {before.half_width:.0%} before, {after.half_width:.0%} after",
        table(factors, left=2),
        table(runs, left=1, optional=("GiB", "before ")),
        table(groups, left=2) if groups else "",
        "known: how much the runs narrowed the uncertainty; 0 %: these runs do not determine it",
        note_lines(result.notes, spell),
    )


SHOWN_TIMERS = 12
SCATTER = "(1.4826 x the median distance from the median)"


def _stragglers(found: MeasuredRun) -> str:
    if not found.stragglers:
        return "none"
    slow, most = plural(found.stragglers, "iteration"), found.slowest_s
    return f"{slow} far slower than the rest" + (f", up to {format_seconds(most)}" if most else "")


COLUMNS = ("level", "fabric", "GPUs", "GPU to GPU\nGB/s", "switches", "hop\nus", "link\nefficiency")


def draw_import(imported: ImportedCluster, output: Path | None) -> None:
    """Print the levels of a written file, or the file itself; messages go to stderr."""
    cluster = imported.cluster
    of_level = Counter(key.partition(".")[0] for key in cluster.sources)
    assumed = Counter(key.partition(".")[0] for key in imported.assumed)
    rows = [
        {
            **{name: level_row(level)[name] for name in COLUMNS},
            "assumed": f"{assumed[level.name]} of {of_level[level.name]}",
        }
        for level in cluster.levels
    ]
    if output is None:
        sys.stdout.write(imported.text)
    else:
        draw(
            f"{output}: {cluster.gpus:,} x {cluster.gpu.name}",
            table(rows, left=2),
            "Per GPU and direction, wire rate, all GPUs at once; assumed: numbers that no file states.",
        )
    lines = [f"read {file}: {kind}" for file, kind in imported.read.items()]
    lines += [f"note: {note}" for note in imported.notes]
    if imported.assumed:
        lines.append(f"assumed, as no file states it: {', '.join(imported.assumed)}; the sources in the file say how")
    draw("\n".join(lines), stderr=True)


def imported_document(found: ImportedCluster) -> Document:
    """Lay out a cluster that was imported, and what was read and assumed."""
    made = cluster_document(found.cluster)
    read: list[Part] = [[(file, f"read as {kind}") for file, kind in found.read.items()], "\n".join(found.notes)]
    return replace(made, sections=[*made.sections, Section("Read", read)])


def import_json(imported: ImportedCluster, output: Path | None) -> dict[str, Any]:
    """Return what was read, noted and assumed."""
    return {
        "output": output,
        **picked(imported, "read notes assumed"),
        "cluster": cluster_json(imported.cluster),
        "toml": imported.text,
    }
