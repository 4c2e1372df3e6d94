"""Drawing of what is measured: `gpuscale validate`, `calibrate`, `clusters import` and `bench`."""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from gpuscale.arrays import log10
from gpuscale.calibration.calibrate import Calibration, Fit, error_rows
from gpuscale.calibration.factors import factor_of
from gpuscale.calibration.site import NORMAL_80
from gpuscale.calibration.training_logs import MeasuredRun
from gpuscale.importers.clusters import ImportedCluster
from gpuscale.planning.bench import BenchResult
from gpuscale.planning.calibrating import CalibratedRun
from gpuscale.render.console import LABEL, draw, framed, note_rows, output_width, table
from gpuscale.render.output import picked
from gpuscale.render.plan import draw_plans, first_choices_text
from gpuscale.render.presets import cluster_json, draw_loaded_cluster
from gpuscale.results import PlanResult
from gpuscale.units import GIB, format_count, format_rate, format_seconds, plural
from gpuscale.validation.scores import Validation

SHOWN_GROUPS = 40
"""Rows of a table; what is beyond is counted in the line below it."""

PLOT_ROWS, PLOT_COLUMNS = 24, 72

NOUNS = {"runs": "runs", "oom": "runs that ran out of memory", "kernels": "kernels", "collectives": "collectives"}


def draw_validation(result: Validation, *, top: int = 0, plot: bool = False) -> None:
    """Print the verdict, the error tables, what else the file tells, the worst rows and the scatter."""
    what, reasons = "step" if result.kind in {"runs", "oom"} else "time", result.summary["unsupported"]
    known = [row for row, counts in zip(result.rows, result.comparable, strict=True) if counts]
    times = [(row.id, getattr(row, f"measured_{what}_s"), getattr(row, f"predicted_{what}_s")) for row in known]
    pairs = [one for one in times if None not in one]
    furthest = sorted(pairs, key=lambda one: (-abs(math.log(one[2] / one[1])), one[0]))[:top] if top else []
    worst = [
        {
            "furthest off": name if len(name) <= 64 else name[:61] + "...",
            "measured s": f"{measured:.4g}",
            "predicted s": f"{predicted:.4g}",
            "error %": f"{100 * (predicted / measured - 1):+.0f}",
        }
        for name, measured, predicted in furthest
    ]
    counts = [(f"{count:6,}", reason) for reason, count in list(reasons.items())[:SHOWN_GROUPS]]
    draw(
        verdict(result),
        *_tables(result.summary),
        "\n".join(validation_facts(result.summary)),
        f"not predicted: {sum(reasons.values()):,} rows" if reasons else "",
        counts,
        caveat_rows(result.summary),
        table(worst) if worst else "",
        scatter([(measured, predicted) for _, measured, predicted in pairs], output_width()) if plot else "",
    )


def caveat_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What predictions have to be read with, and how many."""
    found = summary.get("caveats", {}).items()
    return note_rows(f"{plural(count, 'row')}: {text}" for text, count in list(found)[:SHOWN_GROUPS])


def verdict(result: Validation) -> str:
    """The result in one line."""
    summary = result.summary
    head = f"{summary['rows']:,} {NOUNS[result.kind]}"
    if result.kind == "oom":
        fits = summary["fits"]
        return f"{head}: {fits['called_out_of_memory']:,} predicted so ({_percent(fits['out_of_memory_right'])})"
    best = summary.get("balanced", {})
    head += f", {summary['n']:,} {'comparable' if best else 'predicted'}"
    if best.get("median_abs") is not None:
        head += f", {_percent(summary['coverage'])} predicted"
        return f"{head}: step time {_off(best)}, balanced over {best['families']} families"
    if summary["median_abs"] is None:
        return f"{head}: no {'prediction to compare' if summary['n'] else 'measured time to compare with'}"
    return f"{head}: {_off(summary)}, bias {_percent(summary['bias'], '+')}"


def _off(numbers: Mapping[str, Any]) -> str:
    return f"off by {_percent(numbers['median_abs'])} (median), {_percent(numbers['p90_abs'])} (p90)"


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{100 * share:{sign}.1f} %"


def _tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    runs = "balanced" in summary
    measured = {"step time": summary, "peak memory": summary["memory"]} if runs else {"time": summary}
    for title, numbers in measured.items():
        for by, groups in numbers["groups"].items():
            if groups:
                yield _error_table(f"{title} by {by}", groups, numbers if runs else None)
    rows = [
        {
            "first choice / best": f"{one['family']}, {one['where']}",
            "choices": f"{one['groups']:,}",
            "median": f"{one['median']:.3f}",
            "p90": f"{one['p90']:.3f}",
        }
        for one in summary.get("choosing", [])
    ]
    if rows:  # measured time of the layout predicted to be the fastest over the fastest measured, by sweep
        yield table(rows)


def _error_table(title: str, groups: Mapping[str, Mapping[str, Any]], whole: Mapping[str, Any] | None = None) -> Table:
    """Errors of each group, and of the whole with its families balanced."""
    shown = [*list(groups.items())[:SHOWN_GROUPS], *([("all rows", whole)] if whole else [])]
    rows = [
        {
            title: name if len(name) <= 40 else name[:37] + "...",
            "rows": f"{numbers['n']:,}",
            "predicted": f"{numbers['predicted']:,}",
            **_figures(numbers),
            "bias %": _percent(numbers["bias"], "+").removesuffix(" %"),
        }
        for name, numbers in shown
    ]
    blank = dict.fromkeys(rows[0], "")
    hidden = list(groups.values())[SHOWN_GROUPS:]
    if hidden:
        more = {title: f"and {len(hidden)} more", "rows": f"{sum(one['n'] for one in hidden):,}"}
        rows.insert(SHOWN_GROUPS, blank | more)
    if whole and whole["balanced"]["median_abs"] is not None:
        best = whole["balanced"]
        rows.append({**blank, title: "balanced over families", "rows": str(best["families"]), **_figures(best)})
    return table(rows)


def _figures(numbers: Mapping[str, Any]) -> dict[str, str]:
    return {f"{name} %": _percent(numbers[f"{name}_abs"]).removesuffix(" %") for name in ("median", "p90")}


def validation_facts(summary: Mapping[str, Any]) -> Iterator[str]:
    """Lines on intervals and on memory limits."""
    interval, fits = summary.get("interval", {}), summary.get("fits", {})
    if interval.get("n"):
        yield (
            f"80 % interval: {_percent(interval['inside'])} of {interval['n']:,} measurements inside, "
            f"median half-width {_percent(interval['median_half_width'])}"
        )
    for one in summary.get("first_choices", [])[:1]:
        yield f"{first_choices_text(summary['first_choices'])}; {_percent(one['inside'])} inside"
    texts = {"out_of_memory": "ran out of memory, predicted so", "fitting": "ran, predicted to fit"}
    for name, text in texts.items():
        if fits.get(name):
            yield f"{text}: {fits[f'called_{name}']:,} of {fits[name]:,} ({_percent(fits[f'{name}_right'])})"


def scatter(pairs: Sequence[tuple[float, float]], width: int) -> str:
    """Predicted against measured seconds on logarithmic axes; `/` marks where they are equal, digits count rows."""
    if not pairs:
        return "nothing to plot"
    columns = max(20, min(width - LABEL - 1, PLOT_COLUMNS))
    powers, cells = log10(pairs), np.array([columns, PLOT_ROWS])
    low = math.floor(powers.min())
    high = max(math.ceil(powers.max()), low + 1)
    counts = Counter(map(tuple, np.minimum((powers - low) / (high - low) * cells, cells - 1).astype(int).tolist()))
    drawn = {(column, int((column + 0.5) / columns * PLOT_ROWS)): "/" for column in range(columns)}
    drawn |= {cell: str(count) if count < 10 else "*" for cell, count in counts.items()}
    return framed(
        "predicted s against measured s (/: equal; 1-9: rows, *: ten or more)",
        [10 ** (low + (high - low) * row / PLOT_ROWS) for row in range(PLOT_ROWS)],
        ["".join(drawn.get((column, row), " ") for column in range(columns)) for row in range(PLOT_ROWS)],
        columns,
        (f"{10**low:.3g}", f"{10**high:.3g}"),
    )


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
        draw_plans(plans)


def draw_bench(result: BenchResult) -> None:
    """Print the rate, where the time goes, and the peak of memory."""
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
    draw(
        f"{result.model} on {plural(result.gpus, 'GPU')}: {result.candidates:,} candidates, "
        f"{format_count(result.candidates_per_s)} per second of CPU time{memory}",
        table(rows, left=2),
        "\n".join(lines),
    )


def draw_calibration(result: Calibration) -> None:
    """Print the verdict, the curves, the errors by size, and the notes."""
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
    draw(
        f"{result.cluster.name}: {plural(len(result.fits), 'curve')} from {plural(result.logs, 'log')} "
        f"({result.rows:,} rows): median error "
        f"{_percent(errors[-1].before_median)} before, {_percent(errors[-1].after_median)} after, "
        f"at the sizes {'held out' if result.held_out else 'measured'}",
        table(curves, left=2, optional=("sizes", "stride")),
        table(sizes),
        "\n".join(f"note: {note}" for note in result.notes),
    )


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


def measured_json(found: MeasuredRun) -> dict[str, Any]:
    """Return what a log measured, by the keys that scripts rely on."""
    keys = ("iterations", "discarded", "step_time_s", "jitter", "memory_gib", "tokens_per_s_per_gpu")
    return picked(found, keys)


def draw_measured(found: MeasuredRun, spell: Callable[[str], str]) -> None:
    """Print what a log measured: the verdict, the numbers, the framework's own timers, the notes."""
    step_s, rate = found.step_time_s, found.tokens_per_s_per_gpu
    speed = [f"{format_seconds(step_s)} per iteration"] if step_s else []
    speed += [f"{rate:,.0f} tokens/s per GPU"] if rate else []
    said = {"batch": found.batch, "sequence": found.sequence, "GPUs": found.gpus}
    rows = [
        (
            "iterations",
            f"{found.iterations:,} of {found.reported:,}; {found.discarded:,} left out: warm-up, skipped steps",
        ),
        ("jitter", f"{found.jitter:.2%} (1.4826 x the median distance from the median)"),
        ("stragglers", _stragglers(found)),
        ("memory", "; ".join(f"{basis} {size / GIB:.2f} GiB" for basis, size in found.memory.items()) or "not said"),
        ("the log says", ", ".join(f"{name} {value:,}" for name, value in said.items() if value) or "no configuration"),
    ]
    timers = sorted(found.timers_s.items(), key=lambda one: -one[1])[:SHOWN_TIMERS]
    shares = [
        {"timer": name, "ms": f"{1e3 * seconds:,.1f}", "of the iteration": f"{seconds / step_s:.1%}" if step_s else "-"}
        for name, seconds in timers
    ]
    draw(
        f"{found.file}: {' = '.join(speed)}, {found.framework}",
        rows,
        table(shares) if shares else "",
        "\n".join(f"note: {spell(note)}" for note in found.notes),
    )


def draw_calibrated_run(result: CalibratedRun, spell: Callable[[str], str] = str) -> None:
    """Print the verdict, the factors, the runs before and after, timers beside components, and the notes."""
    before, after = result.before, result.after
    meanings = ((name, factor_of(name)) for name in result.site.factors)
    factors = [
        {
            "factor": name,
            "of what is predicted": declared.meaning,
            "value": f"{value.value:.3f}",
            "80 % within": f"{value.low:.3f} to {value.high:.3f}",
            "known": f"{max(0, 1 - math.log(value.high / value.low) / (2 * NORMAL_80 * declared.prior)):.0%}",
        }
        for (name, declared) in meanings
        if declared is not None
        for value in [result.site.factors[name]]
    ]
    runs = [
        {
            "run": one.file[:40],
            "measured": format_seconds(one.measured_step_time_s),
            "before": format_seconds(one.predicted_step_time_s),
            "error %": f"{100 * one.error:+.1f}",
            "after": format_seconds(new.predicted_step_time_s),
            "error % ": f"{100 * new.error:+.1f}",
            "80 % within": f"{format_seconds(new.step_time_low_s)} to {format_seconds(new.step_time_high_s)}",
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
    draw(
        f"{plural(len(before.runs), 'run')}: predicted step time off by {before.median_error:.1%} before, "
        f"{after.median_error:.1%} after; 80 % within {before.half_width:.0%} before, {after.half_width:.0%} after",
        table(factors, left=2),
        table(runs, left=1, optional=("GiB", "before ")),
        table(groups, left=2) if groups else "",
        "known: how much narrower than before any run was measured; 0 %: these runs say nothing of it",
        "\n".join(f"note: {spell(note)}" for note in result.notes),
    )


SHOWN_TIMERS = 12


def _stragglers(found: MeasuredRun) -> str:
    if not found.stragglers:
        return "none"
    slow, most = plural(found.stragglers, "iteration"), found.slowest_s
    return f"{slow} far slower than the rest" + (f", up to {format_seconds(most)}" if most else "")


def draw_import(imported: ImportedCluster, output: Path | None) -> None:
    """Print the levels of a file that was written, or the file itself to stdout; the messages go to stderr."""
    cluster = imported.cluster
    of_level = Counter(key.partition(".")[0] for key in cluster.sources)
    assumed = Counter(key.partition(".")[0] for key in imported.assumed)
    rows = [
        {
            "level": level.name,
            "fabric": level.fabric,
            "GPUs": f"{level.gpus:,}",
            "GPU to GPU\nGB/s": format_rate(level.egress_bytes_per_s),
            "switches": str(level.switches) if level.switches else "-",
            "hop\nus": f"{level.hop_latency_s * 1e6:g}",
            "link\nefficiency": f"{level.link_efficiency:g}",
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


def draw_imported(found: ImportedCluster) -> None:
    """Print a cluster that was imported, and what was read and assumed."""
    draw_loaded_cluster(found.cluster)
    draw([(file, f"read as {kind}") for file, kind in found.read.items()], "\n".join(found.notes))


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
