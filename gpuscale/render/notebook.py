"""Answers as consoles and notebooks show them: the drawings of the commands as one line, and as a fragment of HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from gpuscale.files import printable
from gpuscale.render.console import WIDTH, Block, drawn
from gpuscale.render.html.page import text

DRAWINGS = {
    "Advice": "advise.draw_advice",
    "Answered": "studies.draw_answered",
    "BatchSize": "scaling.draw_batch_size",
    "BenchResult": "measurements.draw_bench",
    "Calibrated": "gpubench.draw_fit",
    "CalibratedRun": "measurements.draw_calibrated_run",
    "Calibration": "measurements.draw_calibration",
    "CheckResult": "check.draw_check",
    "Checkup": "doctor.draw_checkup",
    "ClusterSpec": "presets.draw_loaded_cluster",
    "CollectiveEstimate": "collective.draw_collective",
    "Estimate": "plan.draw_estimate",
    "Explanation": "explain.draw_explanation",
    "Export": "launch.draw_files",
    "FleetResult": "fleet.draw_fleet",
    "Goodput": "reliability.draw_goodput",
    "GpuSpec": "presets.draw_gpu",
    "ImportedCluster": "measurements.draw_imported",
    "LaunchEstimate": "launch.draw_launch_estimate",
    "LaunchJob": "launch.draw_launch_job",
    "MemoryBudget": "memory.draw_memory",
    "ModelSpec": "presets.draw_loaded_model",
    "Placement": "placement.draw_placement",
    "PlanComparison": "comparison.draw_comparison",
    "PlanResult": "plan.draw_plans",
    "PlanRow": "plan.draw_row",
    "Roofline": "collective.draw_roofline",
    "Schedule": "schedule.draw_schedule",
    "Size": "scaling.draw_size",
    "Stragglers": "reliability.draw_stragglers",
    "Subject": "launch.draw_subject",
    "TrafficReport": "traffic.draw_sent",
    "TrainTime": "training.draw_train_time",
    "Validation": "measurements.draw_validation",
}
"""Answer -> what draws it as its command does; a module is loaded when it is needed."""

PAGE_WIDTH = 200
"""Columns of a table in a page, which scrolls."""

LONGEST = 200
"""Characters of a line."""


def line(found: Any) -> str:
    """Return an answer in a line: what it is, and its verdict. It never fails, as debuggers show half an answer too."""
    name = type(found).__name__
    try:
        first = _blocks(found, WIDTH - len(name) - len("< >"))[0]
    except Exception:  # noqa: BLE001
        first = _scalars(found)
    said = ", ".join("=".join(pair) for pair in first) if isinstance(first, list) else str(first).partition("\n")[0]
    return f"<{name} {textwrap.shorten(printable(said), LONGEST, placeholder=' ...')}>"


def fragment(found: Any) -> str:
    """Return an answer as a piece of HTML without scripts: what its command draws."""
    return f'<div class="gpuscale">{"".join(map(_html, _blocks(found, PAGE_WIDTH)))}</div>'


def _blocks(found: Any, width: int) -> list[Block]:
    """Return what is drawn of an answer, the verdict first."""
    module, _, function = DRAWINGS.get(type(found).__name__, "").partition(".")
    if not function:
        return [_scalars(found)]
    return drawn(lambda: getattr(import_module(f"gpuscale.render.{module}"), function)(found), width)


def _scalars(found: Any) -> list[tuple[str, str]]:
    """Return the fields of an answer that are one number or text."""
    fields = found._asdict() if hasattr(found, "_asdict") else vars(found)
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in fields.items()
        if isinstance(value, str | int | float)
    ]


def _html(block: Block) -> str:
    if isinstance(block, str):
        return f'<pre style="white-space:pre-wrap">{_lines(block)}</pre>'
    if isinstance(block, list):
        return _table((), [[("left", one) for one in pair] for pair in block])
    columns = block.columns
    sides = ["right" if column.justify == "right" else "left" for column in columns]
    rows = zip(*(column.cells for column in columns), strict=True)
    named = [list(zip(sides, map(str, cells), strict=True)) for cells in ((one.header for one in columns), *rows)]
    return _table(named[0], named[1:])


def _table(header: Sequence[tuple[str, str]], rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a table of cells, each with the side that it stands at."""
    head = f"<thead><tr>{_cells('th', header)}</tr></thead>" if header else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _cells(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<{tag} style="text-align:{side}">{_lines(said)}</{tag}>' for side, said in cells)


def _lines(said: str) -> str:
    return "\n".join(map(text, said.split("\n")))
