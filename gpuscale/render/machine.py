"""Drawing of one machine: what `gpuscale doctor` found, and fitted kernel constants of its GPU with their progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gpuscale.doctor import Checkup, Found, Topology
from gpuscale.gpubench.calibrate import Calibrated
from gpuscale.ratios import signed
from gpuscale.render.console import console
from gpuscale.render.document import Document, Part, note_lines, plain, table
from gpuscale.render.output import json_type, picked
from gpuscale.units import GIB, format_duration, format_seconds, plural

LISTED = 8

GPU_KEYS = ("index", "name", "memory_gib", "driver", "power_limit_w", "preset", "mig")


def checkup_json(found: Checkup) -> dict[str, Any]:
    """Return what was found, in the units of its keys."""
    return {**json_type(found), "gpus": [picked(gpu, GPU_KEYS) for gpu in found.gpus]}


def checkup_document(found: Checkup, steps: Sequence[tuple[str, str]] = ()) -> Document:
    """Lay out what was found, and what to do next."""
    return plain(
        "What this machine offers for planning",
        found.verdict,
        _gpus(found),
        _clusters(found),
        _facts(found),
        note_lines(found.notes),
        "\n".join(["next:", *(f"  {command}\n      {why}" for why, command in steps)]) if steps else "",
    )


def _gpus(found: Checkup) -> Part:
    rows = [
        {
            "GPU": str(gpu.index),
            "name": gpu.name,
            "preset": gpu.preset or "none",
            "driver": gpu.driver or "-",
            "GiB": f"{gpu.memory_bytes / GIB:.1f}" if gpu.memory_bytes else "-",
            "limit W": f"{gpu.power_limit_w:g}" if gpu.power_limit_w else "-",
        }
        for gpu in found.gpus[: 2 * LISTED]
    ]
    return table(rows, left=4)


def _clusters(found: Checkup) -> Part:
    rows = [
        {"cluster preset": one.name, "agrees": ", ".join(one.agrees), "differs": ", ".join(one.differs) or "-"}
        for one in found.clusters[:LISTED]
    ]
    return table(rows, left=3)


def _facts(found: Checkup) -> list[tuple[str, str]]:
    own = [f"{', '.join(names[:LISTED])} ({kind})" for kind, names in found.own_presets.items()]
    models = [f"{one} (cannot be planned: {found.unread_models[one]})" if one in found.unread_models else one
              for one in found.models[:LISTED]]  # fmt: skip
    more = len(found.models) - LISTED
    extras = [
        f"{name} ({', '.join(f'{one} {at}' if at else f'{one} is not installed' for one, at in needs.items())})"
        for name, needs in found.extras.items()
    ]
    return [
        *([("topology", _topology(found.topology))] if found.topology else []),
        ("presets", ", ".join(f"{count} {kind}" for kind, count in found.presets.items())),
        ("your own", "; ".join(own) or "none"),
        ("models", (", ".join(models) or "none") + (f" and {more} more" if more > 0 else "") + f" in {found.hub}"),
        ("files here", ", ".join(map(_file, found.files[: 2 * LISTED])) or "none"),
        ("versions", ", ".join(f"{name} {at}" for name, at in found.versions.items() if at)),
        ("extras", ", ".join(extras)),
    ]


def _file(found: Found) -> str:
    return f"{found.file} ({found.kind}{f': {found.detail}' if found.kind == 'calibration' else ''})"


def _topology(found: Topology) -> str:
    joined = found.fabric or "unknown links"
    links = f", {plural(found.links, 'link')} per GPU" if found.links else ""
    nics = f", {plural(found.nics, 'network card')} for them" if found.nics else ""
    return f"{joined}{links}{nics}{' (efa)' if found.nic_fabric == 'efa' else ''}, by {found.source}"


LEAST_SHOWN = 4


def fit_json(found: Calibrated, output: Path | None) -> dict[str, Any]:
    """Return constants, errors and every kernel."""
    fit = found.fit
    return {
        "device": fit.device, "base": fit.base, "software": fit.software, "output": output, "missing": found.missing,
        "constants": fit.constants, "errors": fit.errors, "kernels": fit.rows, "failed": fit.failed, "notes": fit.notes,
    }  # fmt: skip


def fit_document(found: Calibrated, *, verbose: bool = False) -> Document:
    """Lay out constants, how far kernels are off, and times predicted and measured."""
    fit = found.fit
    constants = [
        {
            "constant": one.name,
            "preset": f"{one.before:g}",
            "fitted": f"{one.after:g}" if one.kernels else "as preset",
            "+-": f"{100 * one.uncertainty:.1f}%" if one.uncertainty is not None else "-",
            "kernels": str(one.kernels) if one.kernels else "-",
        }
        for one in fit.constants
    ]
    errors = [
        {
            "predicted / measured": f"{one.kind}, {one.precision}",
            "kernels": str(one.kernels),
            "preset median": f"{100 * one.before_median_abs:.1f}%",
            "median": f"{100 * one.median_abs:.1f}%",
            "p90": f"{100 * one.p90_abs:.1f}%",
            "bias": signed(one.bias, same="0.0%"),
        }
        for one in fit.errors
    ]
    failed = [
        f"not measured: {name}: {why}" for name, why in list(fit.failed.items())[: None if verbose else LEAST_SHOWN]
    ]
    more = len(fit.failed) - len(failed)
    return plain(
        f"Kernel constants of {found.fit.device}",
        _verdict(found),
        table(constants),
        table(errors),
        _rows(found, verbose=verbose),
        "\n".join(failed + ([f"and {more} more; JSON has them all"] if more > 0 else [])),
        note_lines(fit.notes),
    )


def _verdict(found: Calibrated) -> str:
    fit = found.fit
    count = sum(one.kernels for one in fit.errors)
    before, after = (
        median(abs(time_us / row.measured_us - 1) for time_us, row in zip(times, fit.rows, strict=True))
        for times in ([row.before_us for row in fit.rows], [row.predicted_us for row in fit.rows])
    )
    off = f"off by {100 * after:.1f} % (median) with fitted constants, {100 * before:.1f} % with those of {fit.base}"
    return f"{fit.device}: {plural(count, 'kernel')}, {off}"


def _rows(found: Calibrated, *, verbose: bool) -> Any:
    """Every kernel, or some of each kind, the shortest to the longest."""
    shown: list[dict[str, str]] = []
    rows = iter(found.fit.rows)
    for one in found.fit.errors:
        same = sorted((next(rows) for _ in range(one.kernels)), key=lambda row: (row.measured_us, row.kernel))
        step = 1 if verbose or len(same) <= LEAST_SHOWN else (len(same) - 1) / (LEAST_SHOWN - 1)
        for index in range(len(same) if step == 1 else LEAST_SHOWN):
            row = same[round(index * step)]
            shown.append(
                {
                    "kernel": row.kernel,
                    "measured": format_seconds(row.measured_us * 1e-6),
                    "preset": format_seconds(row.before_us * 1e-6),
                    "predicted": format_seconds(row.predicted_us * 1e-6),
                    "error": signed(row.predicted_us / row.measured_us - 1, same="0.0%"),
                }
            )
    return table(shown)


LINE_EVERY_S = 60.0
"""Between two lines that say how far it is, where stderr is no terminal."""


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar on stderr, or now and then a line; yield what is told how far it is."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield _lines()
        return
    columns = (
        BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("left"),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=out, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _lines() -> Callable[[int, int, str], None]:
    """Return what writes a line with the time that is left, if the last one is old."""
    begun = said = time.monotonic()

    def tell(done: int, total: int, _: str) -> None:
        nonlocal said
        now = time.monotonic()
        if done and now - said >= LINE_EVERY_S:
            said, left_s = now, (now - begun) * (total - done) / done
            sys.stderr.write(f"{done:,} of {total:,}, about {format_duration(left_s)} left\n")

    return tell
