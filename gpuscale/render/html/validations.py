"""The page of `validate`: predictions beside measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuscale.ratios import signed
from gpuscale.render.html.charts import Axis, Bar, Line, Points, points, stacked
from gpuscale.render.html.page import Cell, Chart, Page, Part, Section, Table
from gpuscale.render.measurements import caveat_rows, validation_facts, verdict
from gpuscale.units import format_seconds
from gpuscale.validation.scores import LEAST_OF_FAMILY, Validation

SHOWN_POINTS, SHOWN_ROWS, SHOWN_GROUPS = 4000, 100, 30

PERCENT = Axis("absolute error, %", "{:.1f}".format)


def validation_page(result: Validation) -> Page:
    """Lay out predictions beside measurements."""
    what, summary = "step" if result.kind in {"runs", "oom"} else "time", result.summary
    known = [row for row, counts in zip(result.rows, result.comparable, strict=True) if counts]
    times = [(row.id, getattr(row, f"measured_{what}_s"), getattr(row, f"predicted_{what}_s")) for row in known]
    pairs = [one for one in times if None not in one]
    pairs.sort(key=lambda one: (-abs(math.log(one[2] / one[1])), one[0]))
    groups = {"": summary["groups"]} if pairs else {}
    if summary.get("memory", {}).get("n"):
        groups["memory"] = summary["memory"]["groups"]
    reasons: list[list[Cell]] = [[why, (f"{count:,}", count)] for why, count in summary["unsupported"].items()]
    return Page(
        f"{result.path.name}: predicted and measured",
        verdict(result),
        list(_tiles(summary)),
        [
            Section("Predicted and measured", [_scatter(pairs)] if pairs else []),
            Section("Errors", [part for name, by in groups.items() for part in _errors(name, by)]),
            Section("Coverage", [*validation_facts(summary), *([rows] if (rows := caveat_rows(summary)) else [])]),
            Section("Furthest off", [_furthest(pairs)] if pairs else []),
            Section("Not predicted", [Table("Rows by reason", ("reason", "rows"), reasons)] if reasons else []),
        ],
    )


def _tiles(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if summary["kind"] == "oom":
        yield "Runs that ran out of memory", f"{summary['rows']:,}", ""
        fits = summary["fits"]
        share = fits["out_of_memory_right"]
        yield "Predicted so", f"{fits['called_out_of_memory']:,}", "" if share is None else f"{share:.1%}"
        return
    best = summary.get("balanced") or summary
    yield "Rows", f"{summary['rows']:,}", f"{summary['predicted']:,} predicted and counted"
    if best["median_abs"] is not None:
        balanced = f"balanced over {best['families']} families" if "families" in best else "of all rows"
        yield "Median error", f"{best['median_abs']:.1%}", balanced
        yield "90th percentile", f"{best['p90_abs']:.1%}", balanced
    if summary["bias"] is not None:
        yield "Bias", signed(summary["bias"], same="0.0%"), "median of the signed errors"
    if summary["coverage"] is not None:
        yield "Coverage", f"{summary['coverage']:.1%}", "of measured rows are predicted"
    interval = summary.get("interval", {})
    if interval.get("inside") is not None:
        yield "Inside the 80 % interval", f"{interval['inside']:.1%}", f"of {interval['n']:,} measurements"


def _scatter(pairs: Sequence[tuple[str, float, float]]) -> Chart:
    """Predicted over measured time; the rows that are furthest off stay when there are too many to draw."""
    step = -(-len(pairs) // SHOWN_POINTS)
    shown = list(pairs) if step == 1 else [*pairs[:SHOWN_ROWS], *pairs[SHOWN_ROWS::step]]
    ends = [value for _, *both in shown for value in both]
    low, high = min(ends), max(ends)
    near = sum(abs(predicted / measured - 1) <= 0.1 for _, measured, predicted in pairs) / len(pairs)
    said = f"{near:.0%} of {len(pairs):,} predictions are within 10 % of what was measured."
    if len(shown) < len(pairs):
        said += f" {len(shown):,} of them are drawn."
    names, across, up = zip(*shown, strict=True)
    lines = [
        Line("equal", 9, [low, high], [low, high]),
        Line("20 % more", 3, [low, high], [1.2 * low, 1.2 * high], dashed=True),
        Line("20 % less", 3, [low, high], [low / 1.2, high / 1.2], dashed=True),
    ]
    axes = (Axis("measured", format_seconds, log=True), Axis("predicted", format_seconds, log=True))
    rows = [Points("rows", 0, across, up, names)]
    return points("Predicted over measured time", said, rows, *axes, lines, rows=20)


def _errors(name: str, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[Part]:
    """For each way to group rows, the median and the 90th percentile of the error."""
    for by, found in groups.items():
        known = [(group, one) for group, one in found.items() if one["median_abs"] is not None]
        shown = known[:SHOWN_GROUPS]
        if not shown:
            continue
        title = f"{'Memory errors' if name else 'Errors of the time'} by {by}"
        large = [item for item in shown if item[1]["n"] >= LEAST_OF_FAMILY] or shown
        worst = max(large, key=lambda item: item[1]["median_abs"])
        said = f"Furthest off in the median: {worst[0]} ({worst[1]['median_abs']:.1%} over {worst[1]['n']:,} rows)."
        if len(known) > len(shown):
            said += f" The {len(shown)} largest of {len(known)} groups."
        median = [100 * one["median_abs"] for _, one in shown]
        bars = [
            Bar("median", 0, median),
            Bar("from there to the 90th percentile", 4, [100 * one["p90_abs"] - half for (_, one), half in zip(
                shown, median, strict=True)]),
        ]  # fmt: skip
        yield stacked(title, said, [group for group, _ in shown], bars, PERCENT)
        yield _error_table(title, by, known)


def _error_table(title: str, by: str, known: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    rows: list[list[Cell]] = [
        [
            group,
            (f"{one['n']:,}", one["n"]),
            (f"{one['predicted']:,}", one["predicted"]),
            *((f"{one[key]:.1%}", one[key]) for key in ("median_abs", "p90_abs")),
            (signed(one["bias"], same="0.0%"), one["bias"]),
        ]
        for group, one in known
    ]
    header = (by, "rows", "predicted", "median error", "90th percentile", "bias")
    return Table(f"{title}; a column's header sorts by it", header, rows, sortable=True)


def _furthest(pairs: Sequence[tuple[str, float, float]]) -> Table:
    rows: list[list[Cell]] = [
        [
            (f"{rank}", rank),
            name,
            (format_seconds(measured), measured),
            (format_seconds(predicted), predicted),
            (signed(predicted / measured - 1, 0, "0%"), predicted / measured - 1),
        ]
        for rank, (name, measured, predicted) in enumerate(pairs[:SHOWN_ROWS], start=1)
    ]
    header = ("place", "row", "measured", "predicted", "error")
    return Table(f"The {len(rows)} rows that are furthest off, of {len(pairs):,}", header, rows, sortable=True)
