"""The page of a sweep of `collective`: time and bandwidth over bytes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscale.collectives.estimate import CollectiveEstimate
from gpuscale.collectives.ideal import TITLES
from gpuscale.render.collective import sweep_verdict
from gpuscale.render.html.charts import Axis, Line, curves
from gpuscale.render.html.page import Cell, Page, Section, Table
from gpuscale.units import GB, format_bytes, format_rate, format_seconds

BYTES = Axis("size", format_bytes, log=True, of_bytes=True)


def sweep_page(rows: Sequence[CollectiveEstimate], note: str | None = None) -> Page:
    """Lay out a sweep over sizes."""
    first, last, best = rows[0], rows[-1], max(rows, key=lambda row: row.busbw_bytes_per_s)
    half = next(row for row in rows if row.busbw_bytes_per_s >= best.busbw_bytes_per_s / 2)
    sizes = [row.bytes for row in rows]
    busbw = [row.busbw_bytes_per_s / GB for row in rows]
    ideal = [rate * row.time_s / row.ideal_time_s for rate, row in zip(busbw, rows, strict=True)]
    rates = [Line("predicted", 0, sizes, busbw), Line("wire rate, no latency", 9, sizes, ideal, dashed=True)]
    times = [
        Line("predicted", 0, sizes, [row.time_s for row in rows]),
        Line("wire rate, no latency", 9, sizes, [row.ideal_time_s for row in rows], dashed=True),
    ]
    if all(row.time_high_s for row in rows):
        times[1:1] = [
            Line("80 % interval, low", 4, sizes, [row.time_low_s for row in rows], dashed=True),
            Line("80 % interval, high", 3, sizes, [row.time_high_s for row in rows], dashed=True),
        ]
    half_said = f"Half of the most, {best.busbw_bytes_per_s / GB:.1f} GB/s, is reached at {format_bytes(half.bytes)}."
    latency = f"{first.latency_s / first.time_s:.0%} of the time at {format_bytes(first.bytes)} is latency."
    return Page(
        f"{TITLES[first.op]} over {first.gpus:,} GPUs of {first.cluster}",
        sweep_verdict(rows),
        [
            ("Most bandwidth", f"{best.busbw_bytes_per_s / GB:.1f} GB/s", f"busbw at {format_bytes(best.bytes)}"),
            ("Half of that at", format_bytes(half.bytes), "and above"),
            ("Least time", format_seconds(first.time_s), f"at {format_bytes(first.bytes)}"),
            ("Bound by", last.bound_by, f"at {format_bytes(last.bytes)}: {last.bound_part}"),
        ],
        [
            Section(
                "Bandwidth",
                [
                    curves(
                        "Bus bandwidth over size",
                        half_said,
                        rates,
                        BYTES,
                        Axis("busbw, GB/s", "{:.4g}".format, log=True),
                    )
                ],
            ),
            Section(
                "Time",
                [
                    curves(
                        "Time over size",
                        latency,
                        times,
                        BYTES,
                        Axis("time", format_seconds, log=True, least=first.time_s / 30),
                    )
                ],
            ),
            Section("Sizes", [_sizes(rows)]),
            Section("Levels", [_levels(last)]),
            Section("Assumptions", [_assumptions(first, note)]),
        ],
    )


def _sizes(rows: Sequence[CollectiveEstimate]) -> Table:
    header = ("size", "time", "80 % from", "to", "algbw, GB/s", "busbw, GB/s", "at wire rate", "bound by", "algorithm")
    cells: list[list[Cell]] = [
        [
            (format_bytes(row.bytes), row.bytes),
            (format_seconds(row.time_s), row.time_s),
            *((format_seconds(end), end) if end else "-" for end in (row.time_low_s, row.time_high_s)),
            *((format_rate(rate), rate) for rate in (row.algbw_bytes_per_s, row.busbw_bytes_per_s)),
            (format_seconds(row.ideal_time_s), row.ideal_time_s),
            row.bound_by if row.bound_by == row.bound_part else f"{row.bound_by} {row.bound_part}",
            row.algorithm,
        ]
        for row in rows
    ]
    return Table("Sizes of the sweep; a column's header sorts by it", header, cells, sortable=True)


def _levels(row: CollectiveEstimate) -> Table:
    header = ("level", "fabric", "GPUs", "in the group", "GB/s per GPU", "bytes take", "at wire rate", "binds")
    cells: list[list[Cell]] = [
        [
            one.name,
            one.fabric,
            (f"{one.gpus:,}", one.gpus),
            (f"{one.members:,}", one.members),
            (format_rate(one.egress_bytes_per_s), one.egress_bytes_per_s),
            *((format_seconds(time_s), time_s) if time_s else "-" for time_s in (one.time_s, one.ideal_time_s)),
            "yes" if one.binds else "",
        ]
        for one in row.levels
    ]
    return Table(f"What each level of the cluster takes for {format_bytes(row.bytes)}", header, cells)


def _assumptions(row: CollectiveEstimate, note: str | None) -> list[tuple[str, str]]:
    groups = "all that fit" if row.concurrent is None else f"{row.concurrent:,}"
    said = [
        ("model", f"{row.model}{f', NCCL {row.nccl}' if row.nccl else ''}"),
        ("groups at once", groups),
        ("group", f"{row.gpus:,} GPUs, {row.stride} apart, in one {row.level} of {row.cluster}"),
    ]
    return [*said, *([("note", note)] if note else [])]
