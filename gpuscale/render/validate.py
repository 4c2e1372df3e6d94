"""Drawing of `gpuscale validate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from gpuscale.render.console import Block, draw, output_width, table
from gpuscale.render.plots import LABEL, framed
from gpuscale.validation.scores import RunScore, TimeScore, Validation

SHOWN_GROUPS = 40
"""Rows of a table; what is beyond is counted in the line below it."""

PLOT_ROWS, PLOT_COLUMNS = 24, 72

NOUNS = {"runs": "runs", "oom": "runs that ran out of memory", "kernels": "kernels", "collectives": "collectives"}


def draw_validation(result: Validation, *, top: int = 0, plot: bool = False) -> None:
    """Print the verdict, the error tables, what else the file tells, the worst rows and the scatter."""
    pairs = [(row, pair) for row in _compared(result) if (pair := _measured(row)) is not None]
    blocks: list[Block] = [
        verdict(result),
        *(_run_tables(result) if "balanced" in result.summary else _time_tables(result)),
        "\n".join(_facts(result.summary)),
        *_unsupported(result.summary),
    ]
    if top:
        blocks.append(_worst_table(pairs, top))
    if plot:
        blocks.append(scatter([pair for _, pair in pairs], output_width()))
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
        f"bias {_signed(numbers['bias'])}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"


def _run_tables(result: Validation) -> Iterator[Table]:
    summary = result.summary
    for title, numbers in (("step time", summary), ("peak memory", summary["memory"])):
        for by, groups in numbers["groups"].items():
            if groups:
                yield _error_table(f"{title} by {by}", groups, numbers["balanced"], numbers)
    rows = [
        [f"{one['family']}, {one['where']}", f"{one['groups']:,}", f"{one['median']:.3f}", f"{one['p90']:.3f}"]
        for one in summary.get("choosing", [])
    ]
    if rows:  # measured time of the layout predicted to be the fastest over the fastest measured, by sweep
        yield table(["first choice / best", "choices", "median", "p90"], rows)


def _time_tables(result: Validation) -> Iterator[Table]:
    for name, groups in result.summary["groups"].items():
        if groups:
            yield _error_table(f"time by {name}", groups)


def _error_table(
    title: str,
    groups: Mapping[str, Mapping[str, Any]],
    balanced: Mapping[str, Any] | None = None,
    total: Mapping[str, Any] | None = None,
) -> Table:
    rows = [_error_row(name, numbers) for name, numbers in list(groups.items())[:SHOWN_GROUPS]]
    hidden = list(groups.values())[SHOWN_GROUPS:]
    if hidden:
        rows.append([f"and {len(hidden)} more", f"{sum(one['n'] for one in hidden):,}", "", "", "", ""])
    if total is not None:
        rows.append(_error_row("all rows", total))
    if balanced is not None and balanced["median_abs"] is not None:
        figures = [f"{100 * balanced[name]:.1f}" for name in ("median_abs", "p90_abs")]
        rows.append(["balanced over families", str(balanced["families"]), "", *figures, ""])
    return table([title, "rows", "predicted", "median %", "p90 %", "bias %"], rows)


def _error_row(name: str, numbers: Mapping[str, Any]) -> list[str]:
    shown = name if len(name) <= 40 else name[:37] + "..."
    figures = [("-" if numbers[key] is None else f"{100 * numbers[key]:.1f}") for key in ("median_abs", "p90_abs")]
    bias = "-" if numbers["bias"] is None else f"{100 * numbers['bias']:+.1f}"
    return [shown, f"{numbers['n']:,}", f"{numbers['predicted']:,}", *figures, bias]


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


def _measured(row: RunScore | TimeScore) -> tuple[float, float] | None:
    """Measured and predicted seconds of a row that has both."""
    if isinstance(row, RunScore):
        measured, predicted = row.measured_step_s, row.predicted_step_s
    else:
        measured, predicted = row.measured_time_s, row.predicted_time_s
    return None if measured is None or predicted is None else (measured, predicted)


def _compared(result: Validation) -> list[RunScore | TimeScore]:
    """Rows that count: of runs only the comparable ones."""
    return [row for row, counts in zip(result.rows, result.comparable, strict=True) if counts]


def _worst_table(pairs: Sequence[tuple[RunScore | TimeScore, tuple[float, float]]], top: int) -> Table:
    """The rows that are furthest off, as a factor either way."""
    found = sorted(pairs, key=lambda item: (-abs(math.log(item[1][1] / item[1][0])), item[0].id))
    rows = [
        [row.id if len(row.id) <= 64 else row.id[:61] + "...", f"{measured:.4g}", f"{predicted:.4g}",
         f"{100 * (predicted / measured - 1):+.0f}"]
        for row, (measured, predicted) in found[:top]
    ]  # fmt: skip
    return table(["furthest off", "measured s", "predicted s", "error %"], rows)


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
