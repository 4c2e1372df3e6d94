"""A cluster file with its `[[calibration]]` tables replaced; all other lines stay as they stand."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from gpuscale.calibration.fit import Fit
from gpuscale.errors import InputError
from gpuscale.presets.files import MAX_FILE_BYTES, Document, parse_toml, read_toml
from gpuscale.presets.hardware import parse_cluster
from gpuscale.specs.cluster import CalibrationSpec

_HEADER = re.compile(r"\s*\[")
_OURS = re.compile(r"\s*\[\[\s*calibration\s*\]\]")
_WIDTH = 116


def cluster_file_text(path: Path, output: Path, curves: Iterable[CalibrationSpec], fits: Iterable[Fit]) -> str:
    """Return the text of the cluster file `path` with these curves, as it is to stand at `output`.

    Args:
        path: the cluster file that was calibrated.
        output: where the text will stand; the path of a GPU file beside `path` is rewritten to be found from there.
        curves: all curves of the new file.
        fits: what is known of the new ones; shown as comments.

    Raises:
        InputError: the file writes its calibration in another form than `[[calibration]]`, or would get too large or
            otherwise unusable.
    """
    document = read_toml(path)
    known = {(fit.curve.operation, fit.curve.gpus, fit.curve.stride): fit for fit in fits}
    tables = [_table(one, known.get((one.operation, one.gpus, one.stride))) for one in curves]
    text = "\n".join([_others(document, path, output), *tables])
    if len(text.encode()) > MAX_FILE_BYTES:
        raise InputError("would be larger than 1 MiB, the limit for a preset", place=str(output)[:300])
    _check(document, path, text)
    parse_cluster(text, output)  # through the checks of every cluster file, before it is written
    return text


def _others(document: Document, path: Path, output: Path) -> str:
    """Return all lines but those of `[[calibration]]` tables."""
    kept, inside = [], False
    gpu = str(document.data.get("gpu", ""))
    moved = gpu.lower().endswith(".toml") and path.resolve().parent != output.resolve().parent
    gpu_line = document.line_of(("gpu",)) if moved else None
    for number, line in enumerate(document.text.split("\n"), start=1):
        if _HEADER.match(line):
            inside = _OURS.match(line) is not None
        if inside:
            continue
        if number == gpu_line:
            found = os.path.relpath(path.resolve().parent / gpu, output.resolve().parent)
            line = f"gpu = {json.dumps(found, ensure_ascii=False)}"  # noqa: PLW2901
        kept.append(line)
    return "\n".join(kept).rstrip("\n") + "\n"


def _check(document: Document, path: Path, text: str) -> None:
    """Refuse to write anything but the old file with other curves."""
    try:
        data = parse_toml(path, text).data
    except InputError:
        data = {}
    without = ("calibration", "gpu")
    if any(data.get(key) != value for key, value in document.data.items() if key not in without):
        raise InputError(
            "its calibration cannot be replaced",
            place=str(path)[:300],
            hint="write it as [[calibration]] tables at the end",
        )


def _table(curve: CalibrationSpec, fit: Fit | None) -> str:
    lines = ["[[calibration]]"]
    if fit is not None:
        before, after = (_percent([getattr(one, name) for one in fit.residuals]) for name in ("before", "after"))
        latency = "" if fit.latency_s is None else f"latency {fit.latency_s * 1e6:.4g} us, "
        lines.append(
            f"# {latency}{fit.efficiency:.2f} of the ideal bandwidth at the largest size; "
            f"median error {before} before, {after} after"
        )
    lines += [
        f'operation = "{curve.operation}"',
        f'level = "{curve.level}"',
        f"gpus = {curve.gpus}",
        f"stride = {curve.stride}",
        *_array("bytes", [f"{size:.0f}" for size in curve.bytes]),
        *_array("time_us", [_decimal(time_s * 1e6) for time_s in curve.time_s]),
        f"source = {json.dumps(curve.source, ensure_ascii=False)}",
    ]
    return "\n".join(lines) + "\n"


def _percent(errors: list[float]) -> str:
    middle = sorted(errors)[len(errors) // 2]
    return f"{100 * middle:.1f} %"


def _decimal(value: float) -> str:
    """Write five digits as a TOML float."""
    text = f"{value:.5g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _array(name: str, values: list[str]) -> list[str]:
    lines, row = [f"{name} = ["], "   "
    for value in values:
        if len(row) + len(value) + 2 > _WIDTH:
            lines.append(row)
            row = "   "
        row += f" {value},"
    return [*lines, row, "]"]
