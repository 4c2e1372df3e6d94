"""A sweep of one collective over sizes: a table like that of nccl-tests, a plot, CSV and JSON."""

from __future__ import annotations

import csv
import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gpuscale.collectives import TITLES, CollectiveEstimate
from gpuscale.render.collective import decimal_size, who
from gpuscale.render.console import console, print_wrapped, table
from gpuscale.render.plain import print_json
from gpuscale.units import format_bytes

SCHEMA = "gpuscale.sweep/1"
HEADERS = ("size\nB", "time\nus", "algbw\nGB/s", "busbw\nGB/s", "ideal\nus", "bound by", "algorithm")
DROPPED = (6, 2, 4, 5)
"""Columns that a narrow terminal does without, in this order."""

PLOT_ROWS = 14
LABEL = 11
"""Columns left of the plot."""


def draw_sweep(rows: Sequence[CollectiveEstimate], note: str | None, *, plot: bool) -> None:
    """Print a head line, one row per size, the note on the cluster and the plot."""
    out = console()
    first, best = rows[0], max(rows, key=lambda row: row.busbw_bytes_per_s)
    print_wrapped(
        out,
        f"{TITLES[first.op]} over {who(first)} ({first.level} of {first.cluster}), model {first.model}: "
        f"{_microseconds(first.time_s)} us at {size_text(first.bytes)}, "
        f"busbw {best.busbw_bytes_per_s / 1e9:.1f} GB/s at {size_text(best.bytes)}",
    )
    out.print()
    columns = _fitting([_cells(row) for row in rows], out.width)
    out.print(table([HEADERS[index] for index in columns], [[_cells(row)[i] for i in columns] for row in rows], left=0))
    if note:
        out.print(f"note: {note}")
    if plot and len(rows) > 1:
        out.print()
        out.print(bandwidth_plot(rows, out.width), soft_wrap=True)


def _cells(row: CollectiveEstimate) -> list[str]:
    return [
        str(row.bytes),
        _microseconds(row.time_s),
        f"{row.algbw_bytes_per_s / 1e9:.2f}",
        f"{row.busbw_bytes_per_s / 1e9:.2f}",
        _microseconds(row.ideal_time_s),
        why(row),
        row.algorithm,
    ]


def _fitting(cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the columns that fit side by side."""
    wide = [max(len(row[index]) for row in cells) + 2 for index in range(len(HEADERS))]
    wide = [max(one, 2 + max(map(len, HEADERS[index].split("\n")))) for index, one in enumerate(wide)]
    kept = list(range(len(HEADERS)))
    for index in DROPPED:
        if sum(wide[one] for one in kept) > width:
            kept.remove(index)
    return kept


def why(row: CollectiveEstimate) -> str:
    """Return what sets the time: `latency`, `node links`, `spine switches`."""
    return row.bound_by if row.bound_by == row.bound_part else f"{row.bound_by} {row.bound_part}"


def _microseconds(time_s: float) -> str:
    """Write a time with the digits of nccl-tests."""
    time_us = time_s * 1e6
    return f"{time_us:.{2 if time_us < 100 else 1 if time_us < 1e4 else 0}f}"


def size_text(size: int) -> str:
    """Write a size in the units in which it is round: `8.00 GiB`, `1 GB`."""
    return decimal_size(size) if size & (size - 1) else format_bytes(size)


def bandwidth_plot(rows: Sequence[CollectiveEstimate], width: int) -> str:
    """Plot busbw over the logarithm of size: `*` predicted, `-` ideal."""
    columns = max(20, min(width, 100) - LABEL)
    at = [math.log(row.bytes) for row in rows]
    real = [row.busbw_bytes_per_s / 1e9 for row in rows]
    ideal = [_ideal_busbw(row) / 1e9 for row in rows]
    top = max(*real, *ideal)
    marks = [
        (_height(_between(at, ideal, place), top), _height(_between(at, real, place), top))
        for place in (at[0] + (at[-1] - at[0]) * column / (columns - 1) for column in range(columns))
    ]
    lines = ["busbw in GB/s over size (*: predicted, -: ideal)"]
    for row in reversed(range(PLOT_ROWS)):
        label = f"{top * row / (PLOT_ROWS - 1):{LABEL - 2}.4g} |"
        line = "".join("*" if real_at == row else "-" if ideal_at == row else " " for ideal_at, real_at in marks)
        lines.append((label + line).rstrip())
    lines.append(" " * (LABEL - 2) + " +" + "-" * columns)
    ends = size_text(rows[0].bytes), size_text(rows[-1].bytes)
    lines.append(" " * LABEL + ends[0] + " " * (columns - len(ends[0]) - len(ends[1])) + ends[1])
    return "\n".join(lines)


def _ideal_busbw(row: CollectiveEstimate) -> float:
    return row.busbw_bytes_per_s * row.time_s / row.ideal_time_s


def _between(at: Sequence[float], values: Sequence[float], place: float) -> float:
    low = min(max(bisect_right(at, place) - 1, 0), len(at) - 2)
    share = (place - at[low]) / (at[low + 1] - at[low])
    return values[low] + (values[low + 1] - values[low]) * share


def _height(value: float, top: float) -> int:
    return round(value / top * (PLOT_ROWS - 1))


def _body(row: CollectiveEstimate) -> dict[str, Any]:
    return {
        "bytes": row.bytes,
        "time_s": row.time_s,
        "algbw_gb_per_s": row.algbw_bytes_per_s / 1e9,
        "busbw_gb_per_s": row.busbw_bytes_per_s / 1e9,
        "ideal_time_s": row.ideal_time_s,
        "latency_s": row.latency_s,
        "bound_by": row.bound_by,
        "bound_part": row.bound_part,
        "algorithm": row.algorithm,
        "channels": row.channels,
    }


def print_sweep_json(rows: Sequence[CollectiveEstimate], note: str | None) -> None:
    """Print the sweep as `gpuscale.sweep/1`."""
    first = rows[0]
    body = {
        "op": first.op,
        "gpus": first.gpus,
        "level": first.level,
        "cluster": first.cluster,
        "model": first.model,
        "group_stride": first.stride,
        "concurrent": first.concurrent,
        "sizes": [_body(row) for row in rows],
        "notes": [note] if note else [],
    }
    print_json(SCHEMA, body)


def print_sweep_csv(rows: Sequence[CollectiveEstimate]) -> None:
    """Print one line per size, with the keys of the JSON rows as columns."""
    bodies = [_body(row) for row in rows]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(bodies[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(bodies)
