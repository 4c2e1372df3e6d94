"""Predictions beside measurements: how far off they are, by group, and which are furthest off."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuscale.arrays import log10
from gpuscale.ratios import signed
from gpuscale.render.document import (
    Cell,
    Chart,
    Document,
    Facts,
    Part,
    Section,
    Table,
    cell,
    note_facts,
    page,
    table,
    terminal,
)
from gpuscale.render.html.charts import Bar, Line, Points, points, stacked
from gpuscale.render.plan_texts import first_choices_text
from gpuscale.render.plots import LABEL, Axis, framed, numbered
from gpuscale.units import format_seconds, plural
from gpuscale.validation.recipes import RecipeScore
from gpuscale.validation.scores import LEAST_OF_FAMILY, NEAR_FIRST, Validation

SHOWN_POINTS, SHOWN_ROWS, SHOWN_GROUPS = 4000, 100, 40

PERCENT = Axis("absolute error, %", "{:.1f}".format)

PLOT_ROWS, PLOT_COLUMNS = 24, 72

NOUNS = {
    "runs": "runs",
    "recipes": "recipes",
    "oom": "runs that ran out of memory",
    "kernels": "kernels",
    "collectives": "collectives",
}

Pairs = Sequence[tuple[str, float, float]]
"""Name, measured and predicted time [s] of rows."""


def validation_document(result: Validation, *, top: int = 0, plot: bool = False) -> Document:
    """Lay out errors, the worst rows (in a terminal the `top` ones) and the scatter (in a terminal if `plot`)."""
    if result.kind == "recipes":
        return recipes_document(result, top)
    what, summary = "step" if result.kind in {"runs", "oom"} else "time", result.summary
    known = [row for row, counts in zip(result.rows, result.comparable, strict=True) if counts]
    times = [(row.id, getattr(row, f"measured_{what}_s"), getattr(row, f"predicted_{what}_s")) for row in known]
    pairs = [one for one in times if None not in one]
    pairs.sort(key=lambda one: (-abs(math.log(one[2] / one[1])), one[0]))
    plain_plot = partial(_plot, [(measured, predicted) for _, measured, predicted in pairs])
    reasons = summary["unsupported"]
    counts = [(f"{count:6,}", reason) for reason, count in list(reasons.items())[:SHOWN_GROUPS]]
    return Document(
        f"{result.path.name}: predicted and measured",
        verdict(result),
        list(_tiles(summary)),
        [
            Section("Predicted and measured", [page(_scatter(pairs))] if pairs else []),
            Section("Errors", [*_errors(summary)]),
            Section("Coverage", ["\n".join(_said(summary))]),
            Section("Not predicted", [f"not predicted: {sum(reasons.values()):,} rows" if reasons else "", counts]),
            Section("Caveats", [_caveats(summary)]),
            Section("Furthest off", [terminal(_furthest(pairs[:top])), page(_furthest(pairs[:SHOWN_ROWS]))]),
            Section("Plot", [terminal(plain_plot if pairs else "nothing to plot")] if plot else []),
        ],
    )


def recipes_document(result: Validation, top: int) -> Document:
    """Lay out how far layouts of experts are from first choices."""
    summary = result.summary
    rows = [one for one in result.rows if isinstance(one, RecipeScore)]
    far = sorted((one for one in rows if one.behind is not None), key=lambda one: (-(one.behind or 0.0), one.id))
    apart = {one.id: one.reason for one in rows if one.status != "unsupported" and one.reason}
    facts = [*apart.items()]
    unknown = [(f"{count:6,}", reason) for reason, count in list(summary["unsupported"].items())[:SHOWN_GROUPS]]
    return Document(
        f"{result.path.name}: layouts of experts and first choices",
        verdict(result),
        [("Recipes", f"{summary['rows']:,}", f"{summary['n']:,} evaluated"),
         ("Predicted to fit", f"{summary['fits']:,}", ""),
         ("Median behind", _percent(summary["median_behind"], "+"), "step time over the first choice's"),
         ("90th percentile", _percent(summary["p90_behind"], "+"), "")],
        [
            Section("By group", [_behind_table(label, groups) for label, groups in summary["groups"].items()]),
            Section("Layouts", [terminal(_layouts(far[:top])), page(_layouts(far))]),
            Section("Measured", [_measured(summary["step"])]),
            Section("Not as they are", ["said of recipes" if facts else "", facts[:SHOWN_ROWS]]),
            Section("Not evaluated", [f"not evaluated: {sum(summary['unsupported'].values()):,}" if unknown else "",
                                      unknown]),
        ],
    )  # fmt: skip


def _behind_table(label: str, groups: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        {
            label: name,
            "recipes": cell(one["n"]),
            "fit": cell(one["fits"]),
            "first choice": cell(one["same"]),
            f"within {NEAR_FIRST:.0%}": cell(one["near"]),
            "median %": _percent(one["median_behind"], "+").removesuffix(" %"),
            "p90 %": _percent(one["p90_behind"], "+").removesuffix(" %"),
        }
        for name, one in list(groups.items())[:SHOWN_GROUPS]
    ]
    return table(rows, caption=f"Layouts of experts behind first choices, by {label}")


def _layouts(scores: Sequence[RecipeScore]) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "recipe": one.id,
            "layout": one.layout,
            "recipe -> first choice": one.differs or "the same",
            "s/step": (f"{one.predicted_step_s:.3g}", one.predicted_step_s or 0.0),
            "behind %": (f"{100 * (one.behind or 0.0):+.1f}", one.behind or 0.0),
        }
        for one in scores
    ]
    optional = ("layout", "s/step")
    return table(rows, caption="Every layout, the furthest behind first", left=3, sortable=True, optional=optional)


def _measured(step: Mapping[str, Any]) -> str:
    return f"step time of {step['n']:,} measured: {_off(step)}" if step["predicted"] else ""


def _caveats(summary: Mapping[str, Any]) -> Facts:
    found = summary.get("caveats", {}).items()
    return note_facts([f"{plural(count, 'row')}: {text}" for text, count in list(found)[:SHOWN_GROUPS]])


def verdict(result: Validation) -> str:
    """The result in one line."""
    summary = result.summary
    head = f"{summary['rows']:,} {NOUNS[result.kind]}"
    if result.kind == "recipes":
        head += f", {summary['n']:,} evaluated, {summary['fits']:,} predicted to fit"
        if summary["median_behind"] is None:
            return f"{head}: no first choice to compare with"
        took = f"{_percent(summary['median_behind'], '+')} (median), {_percent(summary['p90_behind'], '+')} (p90)"
        return f"{head}: {took} of the first choice's step time; {summary['same']:,} are the first choice"
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


def _scatter(pairs: Pairs) -> Chart:
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


def _errors(summary: Mapping[str, Any]) -> Iterator[Part]:
    runs = "balanced" in summary
    measured = {"step time": summary, "peak memory": summary["memory"]} if runs else {"time": summary}
    for title, numbers in measured.items():
        for by, groups in numbers["groups"].items():
            if any(one["median_abs"] is not None for one in groups.values()):
                yield page(_error_chart(title, by, groups))
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
    # measured time of the layout predicted to be the fastest over the fastest measured, by sweep
    yield table(rows, caption="Measured time of first choices over that of the best")


def _error_chart(title: str, by: str, groups: Mapping[str, Mapping[str, Any]]) -> Chart:
    known = [(group, one) for group, one in groups.items() if one["median_abs"] is not None]
    shown = known[:SHOWN_GROUPS]
    large = [item for item in shown if item[1]["n"] >= LEAST_OF_FAMILY] or shown
    worst = max(large, key=lambda item: item[1]["median_abs"])
    said = f"Largest median error: {worst[0]} ({worst[1]['median_abs']:.1%} over {worst[1]['n']:,} rows)."
    if len(known) > len(shown):
        said += f" The {len(shown)} largest of {len(known)} groups."
    median = [100 * one["median_abs"] for _, one in shown]
    beyond = [100 * one["p90_abs"] - half for (_, one), half in zip(shown, median, strict=True)]
    bars = [Bar("median", 0, median), Bar("from there to the 90th percentile", 4, beyond)]
    return stacked(f"Errors of the {title} by {by}", said, [group for group, _ in shown], bars, PERCENT)


def _error_table(title: str, groups: Mapping[str, Mapping[str, Any]], whole: Mapping[str, Any] | None = None) -> Table:
    shown = [*list(groups.items())[:SHOWN_GROUPS], *([("all rows", whole)] if whole else [])]
    rows = [
        {
            title: name if len(name) <= 40 else name[:37] + "...",
            "rows": cell(numbers["n"]),
            "predicted": cell(numbers["predicted"]),
            **_figures(numbers),
            "bias %": _percent(numbers["bias"], "+").removesuffix(" %"),
        }
        for name, numbers in shown
    ]
    blank: dict[str, Cell] = dict.fromkeys(rows[0], "")
    hidden = list(groups.values())[SHOWN_GROUPS:]
    if hidden:
        more: dict[str, Cell] = {title: f"and {len(hidden)} more", "rows": f"{sum(one['n'] for one in hidden):,}"}
        rows.insert(SHOWN_GROUPS, blank | more)
    if whole and whole["balanced"]["median_abs"] is not None:
        best = whole["balanced"]
        rows.append({**blank, title: "balanced over families", "rows": str(best["families"]), **_figures(best)})
    return table(rows, caption=f"Errors of the {title}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _figures(numbers: Mapping[str, Any]) -> dict[str, str]:
    return {f"{name} %": _percent(numbers[f"{name}_abs"]).removesuffix(" %") for name in ("median", "p90")}


def _said(summary: Mapping[str, Any]) -> Iterator[str]:
    fits, memory = summary.get("fits", {}), summary.get("memory", {})
    for of, interval in (("", summary.get("interval", {})), (" of memory", memory.get("interval", {}))):
        if interval.get("n"):
            yield (
                f"80 % interval{of}: {_percent(interval['inside'])} of {interval['n']:,} measurements inside, "
                f"median half-width {_percent(interval['median_half_width'])}, "
                f"rank correlation with the error {_number(interval['rank_correlation'])}"
            )
    for one in summary.get("first_choices", [])[:1]:
        yield f"{first_choices_text(summary['first_choices'])}; {_percent(one['inside'])} inside"
    texts = {"out_of_memory": "ran out of memory, predicted so", "fitting": "ran, predicted to fit"}
    for name, text in texts.items():
        if fits.get(name):
            yield f"{text}: {fits[f'called_{name}']:,} of {fits[name]:,} ({_percent(fits[f'{name}_right'])})"


def _plot(pairs: Sequence[tuple[float, float]], width: int) -> str:
    """Predicted against measured seconds; `/` marks where they are equal, digits count rows."""
    columns = max(20, min(width - LABEL - 1, PLOT_COLUMNS))
    powers, cells = log10(pairs), np.array([columns, PLOT_ROWS])
    low = math.floor(powers.min())
    high = max(math.ceil(powers.max()), low + 1)
    counts = Counter(map(tuple, np.minimum((powers - low) / (high - low) * cells, cells - 1).astype(int).tolist()))
    drawn = {(column, int((column + 0.5) / columns * PLOT_ROWS)): "/" for column in range(columns)}
    drawn |= {cell: str(count) if count < 10 else "*" for cell, count in counts.items()}
    return framed(
        "predicted s against measured s (/: equal; 1-9: rows, *: ten or more)",
        numbered([10 ** (low + (high - low) * row / PLOT_ROWS) for row in range(PLOT_ROWS)]),
        ["".join(drawn.get((column, row), " ") for column in range(columns)) for row in range(PLOT_ROWS)],
        columns,
        (f"{10**low:.3g}", f"{10**high:.3g}"),
    )


def _furthest(pairs: Pairs) -> Table:
    rows = [
        {
            "largest errors": name if len(name) <= 64 else name[:61] + "...",
            "measured s": cell(measured, "{:.4g}"),
            "predicted s": cell(predicted, "{:.4g}"),
            "error %": (f"{100 * (predicted / measured - 1):+.0f}", predicted / measured - 1),
        }
        for name, measured, predicted in pairs
    ]
    return table(rows, caption=f"The {len(rows)} rows with the largest errors", sortable=True)
