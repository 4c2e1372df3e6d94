"""Drawing of `gpuscale validate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from gpuscale.render.console import Block, draw, output_width, table
from gpuscale.render.plots import LABEL, framed
from gpuscale.validation.scores import RunScore, Validation

SHOWN_GROUPS = 40
"""Rows of a table; what is beyond is counted in the line below it."""

PLOT_ROWS, PLOT_COLUMNS = 24, 72

NOUNS = {"runs": "runs", "oom": "runs that ran out of memory", "kernels": "kernels", "collectives": "collectives"}


def draw_validation(result: Validation, *, top: int = 0, plot: bool = False) -> None:
    """Print the verdict, the error tables, what else the file tells, the worst rows and the scatter."""
    pairs = _pairs(result)
    blocks: list[Block] = [
        verdict(result),
        *_tables(result.summary),
        "\n".join(_facts(result.summary)),
        *_unsupported(result.summary),
    ]
    if top and pairs:
        blocks.append(_worst_table(pairs, top))
    if plot:
        blocks.append(scatter([(measured, predicted) for _, measured, predicted in pairs], output_width()))
    draw(*blocks)


def verdict(result: Validation) -> str:
    """The result in one line."""
    summary = result.summary
    head = f"{summary['rows']:,} {NOUNS[result.kind]}"
    if result.kind == "oom":
        fits = summary["fits"]
        return f"{head}: {fits['called_out_of_memory']:,} predicted so ({_percent(fits['out_of_memory_right'])})"
    if "balanced" not in summary:
        return f"{head}, {summary['n']:,} predicted: {_errors_text(summary)}"
    best = summary["balanced"]
    if best["median_abs"] is None:
        return f"{head}, {summary['n']:,} comparable: {_errors_text(summary)}"
    return (
        f"{head}, {summary['n']:,} comparable, {_percent(summary['coverage'])} predicted: step time off by "
        f"{_percent(best['median_abs'])} (median), {_percent(best['p90_abs'])} (p90), balanced over "
        f"{best['families']} families"
    )


def _errors_text(numbers: Mapping[str, Any]) -> str:
    if numbers["median_abs"] is None:
        return "no prediction to compare" if numbers["n"] else "no measured time to compare with"
    return (
        f"off by {_percent(numbers['median_abs'])} (median), {_percent(numbers['p90_abs'])} (p90), "
        f"bias {_percent(numbers['bias'], '+')}"
    )


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{100 * share:{sign}.1f} %"


def _tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    runs = "balanced" in summary
    for title, numbers in (
        (("step time", summary), ("peak memory", summary["memory"])) if runs else (("time", summary),)
    ):
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


def _facts(summary: Mapping[str, Any]) -> Iterator[str]:
    """Lines on intervals and on memory limits."""
    interval, fits = summary.get("interval", {}), summary.get("fits", {})
    if interval.get("n"):
        yield (
            f"80 % interval: {_percent(interval['inside'])} of {interval['n']:,} measurements inside, "
            f"median half-width {_percent(interval['median_half_width'])}"
        )
    if fits.get("out_of_memory"):
        yield _share_line("ran out of memory, predicted so", fits["called_out_of_memory"], fits["out_of_memory"])
    if fits.get("fitting"):
        yield _share_line("ran, predicted to fit", fits["called_fitting"], fits["fitting"])


def _share_line(name: str, right: int, count: int) -> str:
    return f"{name}: {right:,} of {count:,} ({_percent(right / count)})"


def _unsupported(summary: Mapping[str, Any]) -> Iterator[Block]:
    """How many rows were not predicted, and why."""
    reasons = summary["unsupported"]
    if reasons:
        yield f"not predicted: {sum(reasons.values()):,} rows"
        yield [(f"{count:6,}", reason) for reason, count in list(reasons.items())[:SHOWN_GROUPS]]


def _pairs(result: Validation) -> list[tuple[str, float, float]]:
    """Id, measured and predicted seconds of the rows that have both; of runs only the comparable ones."""
    found = []
    for row, counts in zip(result.rows, result.comparable, strict=True):
        if isinstance(row, RunScore):
            measured, predicted = row.measured_step_s, row.predicted_step_s
        else:
            measured, predicted = row.measured_time_s, row.predicted_time_s
        if counts and measured is not None and predicted is not None:
            found.append((row.id, measured, predicted))
    return found


def _worst_table(pairs: Sequence[tuple[str, float, float]], top: int) -> Table:
    """The rows that are furthest off, as a factor either way."""
    found = sorted(pairs, key=lambda one: (-abs(math.log(one[2] / one[1])), one[0]))
    rows = [
        {
            "furthest off": name if len(name) <= 64 else name[:61] + "...",
            "measured s": f"{measured:.4g}",
            "predicted s": f"{predicted:.4g}",
            "error %": f"{100 * (predicted / measured - 1):+.0f}",
        }
        for name, measured, predicted in found[:top]
    ]
    return table(rows)


def scatter(pairs: Sequence[tuple[float, float]], width: int) -> str:
    """Predicted against measured seconds on logarithmic axes; `/` marks where they are equal, digits count rows."""
    if not pairs:
        return "nothing to plot"
    columns = max(20, min(width - LABEL - 1, PLOT_COLUMNS))
    low = math.floor(math.log10(min(map(min, pairs))))
    high = max(math.ceil(math.log10(max(map(max, pairs)))), low + 1)
    counts: dict[tuple[int, int], int] = {}
    for measured, predicted in pairs:
        cell = (_cell(predicted, low, high, PLOT_ROWS), _cell(measured, low, high, columns))
        counts[cell] = counts.get(cell, 0) + 1
    rows = [
        "".join(_mark(counts.get((row, column), 0), row, column, columns) for column in range(columns))
        for row in range(PLOT_ROWS)
    ]
    return framed(
        "predicted s against measured s (/: equal; 1-9: rows, *: ten or more)",
        [10 ** (low + (high - low) * row / PLOT_ROWS) for row in range(PLOT_ROWS)],
        rows,
        columns,
        (f"{10**low:.3g}", f"{10**high:.3g}"),
    )


def _cell(value: float, low: int, high: int, cells: int) -> int:
    return min(cells - 1, max(0, int((math.log10(value) - low) / (high - low) * cells)))


def _mark(count: int, row: int, column: int, columns: int) -> str:
    if count:
        return str(count) if count < 10 else "*"
    return "/" if int((column + 0.5) / columns * PLOT_ROWS) == row else " "
