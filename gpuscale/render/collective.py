"""Drawing of `gpuscale collective`, of one size or a sweep over sizes, and of `gpuscale roofline`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscale.arrays import log
from gpuscale.collectives.estimate import CollectiveEstimate
from gpuscale.collectives.ideal import TITLES
from gpuscale.render.document import (
    Chart,
    Document,
    Part,
    Section,
    Table,
    cell,
    note_facts,
    note_lines,
    page,
    plain,
    table,
    terminal,
)
from gpuscale.render.html.charts import Line, curves
from gpuscale.render.output import picked
from gpuscale.render.plots import LOGARITHMIC, ROWS, Axis, framed, numbered, plot_columns, scaled
from gpuscale.rooflines import ClusterRoofline, LevelRoofline, Roofline
from gpuscale.units import GB, format_bytes, format_rate, format_seconds, plural

if TYPE_CHECKING:
    from gpuscale.calibration.calibrate import Against

SWEEP_KEYS = (
    "bytes", "time_s", "algbw_gb_per_s", "busbw_gb_per_s", "ideal_time_s", "latency_s", "bound_by", "bound_part",
    "algorithm", "channels", "time_low_s", "time_high_s",
)  # fmt: skip

COMMON_KEYS = ("op", "gpus", "level", "cluster", "model", "group_stride", "concurrent")


def collective_json(estimate: CollectiveEstimate) -> dict[str, Any]:
    """Return the fields of an estimate with bandwidths in GB/s."""
    body = _in_gb(estimate)
    body["levels"] = [_in_gb(one) for one in estimate.levels]
    body["group_stride"] = body.pop("stride")
    return body


def _in_gb(item: Any) -> dict[str, Any]:
    return picked(item, [field.name.replace("_bytes_per_s", "_gb_per_s") for field in fields(item)])


def sweep_rows(rows: Sequence[CollectiveEstimate]) -> list[dict[str, Any]]:
    """Return what differs between the sizes of a sweep."""
    return [{key: body[key] for key in SWEEP_KEYS} for body in map(collective_json, rows)]


def sweep_json(rows: Sequence[CollectiveEstimate]) -> dict[str, Any]:
    """Return a sweep: what all sizes share, and a list of them."""
    body = collective_json(rows[0])
    return {**{key: body[key] for key in COMMON_KEYS}, "sizes": sweep_rows(rows)}


def _levels(estimate: CollectiveEstimate) -> Table:
    rows = [
        {
            "level": one.name,
            "fabric": one.fabric,
            "GPUs": cell(one.gpus),
            "in group": cell(one.members),
            "egress GB/s": cell(one.egress_bytes_per_s, format_rate),
            "bytes take": cell(one.time_s, format_seconds) if one.time_s > 0 else "-",
            "at wire rate": cell(one.ideal_time_s, format_seconds) if one.time_s > 0 else "-",
            "": "binds" if one.binds else "",
        }
        for one in estimate.levels
    ]
    said = f"Time at each level of the cluster for {format_bytes(estimate.bytes)}"
    return table(rows, caption=said, left=2, optional=("fabric", "GPUs", "egress GB/s"))


def collective_document(estimate: CollectiveEstimate, *, note: str | None = None) -> Document:
    """Lay out one estimate."""
    latency = f"{format_seconds(estimate.latency_s)} of it latency"
    name = f"nccl {estimate.nccl}" if estimate.nccl else "deepep"
    model = {
        "ideal": "ideal: bytes over the wire rate of the binding level, no latency",
        "calibrated": f"calibrated: as measured (nccl: {estimate.algorithm}), {latency}",
    }.get(estimate.model, f"{name}: {estimate.algorithm}, {latency}")
    lines = [
        f"algbw {estimate.algbw_bytes_per_s / 1e9:.1f} GB/s, model {model}",
        f"ideal {format_seconds(estimate.ideal_time_s)}: {estimate.formula}",
    ]
    if estimate.time_high_s:
        ends = f"{format_seconds(estimate.time_low_s)} to {format_seconds(estimate.time_high_s)}"
        lines.append(f"80 % interval {ends}, from the errors against published measurements of this kind")
    if estimate.next_best:
        lines.append(f"next best {estimate.next_best}: {format_seconds(estimate.next_best_time_s)}")
    if note:
        lines.append(f"note: {note}")
    return plain(
        f"{TITLES[estimate.op]} over {estimate.gpus:,} GPUs of {estimate.cluster}",
        verdict(estimate),
        _levels(estimate),
        "\n".join(lines),
    )


def verdict(estimate: CollectiveEstimate) -> str:
    """Return the answer in one sentence."""
    place = f"across the {estimate.level} of" if estimate.op == "sendrecv" else f"{estimate.level} of"
    return (
        f"{TITLES[estimate.op]} of {_decimal_size(estimate.bytes)} over {_members(estimate)} "
        f"({place} {estimate.cluster}): {format_seconds(estimate.time_s)}, "
        f"busbw {estimate.busbw_bytes_per_s / 1e9:.1f} GB/s, bound by {_reason(estimate)}"
    )


def _reason(estimate: CollectiveEstimate) -> str:
    """Say what sets the time: `the links of the node; ring LL128 with 24 channels, 31 % latency`."""
    what = estimate.bound_part
    if what not in {"latency", "channels"}:
        what = f"the {what} of the {estimate.bound_by}"
    if estimate.model == "ideal":
        return what
    unit = "SM" if estimate.model == "deepep" else "channel"
    count = f" with {plural(estimate.channels, unit)}" if estimate.channels else ""
    return f"{what}; {estimate.algorithm}{count}, {100 * estimate.latency_s / estimate.time_s:.0f} % latency"


def _members(estimate: CollectiveEstimate) -> str:
    """Return which GPUs take part: `16 GPUs, 8 apart, 4 groups at once`."""
    parts = [f"{estimate.gpus:,} GPUs"]
    pair = estimate.op == "sendrecv" and estimate.gpus == 2
    if estimate.stride > 1 and not pair:
        parts.append(f"{estimate.stride:,} apart")
    if estimate.op == "sendrecv" and not pair:
        parts.append("each to the next")
    if estimate.imbalance != 1:
        parts.append(f"the busiest with {estimate.imbalance:g} times the mean")
    if estimate.concurrent is not None:
        parts.append("alone" if estimate.concurrent == 1 else f"{estimate.concurrent:,} groups at once")
    return ", ".join(parts)


def _decimal_size(size: int) -> str:
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
    unit, name = next(one for one in units if size >= one[0])
    return f"{size / unit:.3g} {name}"


def _sweep_verdict(rows: Sequence[CollectiveEstimate]) -> str:
    first, best = rows[0], max(rows, key=lambda row: row.busbw_bytes_per_s)
    return (
        f"{TITLES[first.op]} over {_members(first)} ({first.level} of {first.cluster}), model {first.model}: "
        f"{_microseconds(first.time_s)} us at {_size_text(first.bytes)}, "
        f"busbw {best.busbw_bytes_per_s / 1e9:.1f} GB/s at {_size_text(best.bytes)}"
    )


BYTES = Axis("size", format_bytes, log=True, of_bytes=True)


def sweep_document(rows: Sequence[CollectiveEstimate], *, note: str | None = None, plot: bool = False) -> Document:
    """Lay out a sweep over sizes, with a `plot` in a terminal too."""
    first, last, best = rows[0], rows[-1], max(rows, key=lambda row: row.busbw_bytes_per_s)
    half = next(row for row in rows if row.busbw_bytes_per_s >= best.busbw_bytes_per_s / 2)
    drawn = terminal(partial(_bandwidth_plot, rows)) if plot and len(rows) > 1 else ""
    assumed = [
        ("model", f"{first.model}{f', NCCL {first.nccl}' if first.nccl else ''}"),
        ("groups at once", "all that fit" if first.concurrent is None else f"{first.concurrent:,}"),
        ("group", f"{first.gpus:,} GPUs, {first.stride} apart, in one {first.level} of {first.cluster}"),
    ]
    return Document(
        f"{TITLES[first.op]} over {first.gpus:,} GPUs of {first.cluster}",
        _sweep_verdict(rows),
        [
            ("Most bandwidth", f"{best.busbw_bytes_per_s / GB:.1f} GB/s", f"busbw at {format_bytes(best.bytes)}"),
            ("Half of that at", format_bytes(half.bytes), "and above"),
            ("Least time", format_seconds(first.time_s), f"at {format_bytes(first.bytes)}"),
            ("Bound by", last.bound_by, f"at {format_bytes(last.bytes)}: {last.bound_part}"),
        ],
        [
            Section("Sizes", [_sizes(rows)]),
            Section("Bandwidth", [page(_bandwidths(rows, best, half)), f"note: {note}" if note else "", drawn]),
            Section("Time", [page(_times(rows))]),
            Section("Levels", [page(_levels(last))]),
            Section("Assumptions", [page(assumed)]),
        ],
    )


def _bandwidths(rows: Sequence[CollectiveEstimate], best: CollectiveEstimate, half: CollectiveEstimate) -> Chart:
    sizes, busbw = [row.bytes for row in rows], [row.busbw_bytes_per_s / GB for row in rows]
    ideal = [rate * row.time_s / row.ideal_time_s for rate, row in zip(busbw, rows, strict=True)]
    lines = [Line("predicted", 0, sizes, busbw), Line("wire rate, no latency", 9, sizes, ideal, dashed=True)]
    said = f"Half of the maximum, {best.busbw_bytes_per_s / GB:.1f} GB/s, is reached at {format_bytes(half.bytes)}."
    return curves("Bus bandwidth over size", said, lines, BYTES, Axis("busbw, GB/s", "{:.4g}".format, log=True))


def _times(rows: Sequence[CollectiveEstimate]) -> Chart:
    first, sizes = rows[0], [row.bytes for row in rows]
    lines = [Line("predicted", 0, sizes, [row.time_s for row in rows])]
    if all(row.time_high_s for row in rows):
        lines.append(Line("80 % interval, low", 4, sizes, [row.time_low_s for row in rows], dashed=True))
        lines.append(Line("80 % interval, high", 3, sizes, [row.time_high_s for row in rows], dashed=True))
    lines.append(Line("wire rate, no latency", 9, sizes, [row.ideal_time_s for row in rows], dashed=True))
    said = f"{first.latency_s / first.time_s:.0%} of the time at {format_bytes(first.bytes)} is latency."
    up = Axis("time", format_seconds, log=True, least=first.time_s / 30)
    return curves("Time over size", said, lines, BYTES, up)


def _sizes(rows: Sequence[CollectiveEstimate]) -> Table:
    cells = [
        {
            "size\nB": cell(row.bytes, str),
            "time\nus": cell(row.time_s, _microseconds),
            "80 %\nus": f"{_microseconds(row.time_low_s)}-{_microseconds(row.time_high_s)}" if row.time_high_s else "",
            "algbw\nGB/s": (f"{row.algbw_bytes_per_s / GB:.2f}", row.algbw_bytes_per_s),
            "busbw\nGB/s": (f"{row.busbw_bytes_per_s / GB:.2f}", row.busbw_bytes_per_s),
            "ideal\nus": cell(row.ideal_time_s, _microseconds),
            "bound by": row.bound_by if row.bound_by == row.bound_part else f"{row.bound_by} {row.bound_part}",
            "algorithm": row.algorithm,
        }
        for row in rows
    ]
    narrow = ("algorithm", "80 %\nus", "algbw\nGB/s", "ideal\nus", "bound by")
    said = "Sizes of the sweep; a column's header sorts by it"
    return table(cells, caption=said, left=0, optional=narrow, sortable=True)


def against_rows(found: Against) -> list[dict[str, Any]]:
    """Return the sizes of a log beside the prediction, each with its group."""
    group = picked(found, "op gpus group_stride level cluster")
    return [{**group, **picked(one, [field.name for field in fields(one)])} for one in found.sizes]


def against_document(found: Sequence[Against], notes: Sequence[str]) -> Document:
    """Lay out a log beside the prediction."""
    parts: list[Part] = []
    for one in found:
        apart = f", {one.group_stride} apart" if one.group_stride > 1 else ""
        parts.append(
            f"{TITLES[one.op]} over {one.gpus:,} GPUs{apart} ({one.level} of {one.cluster}): predicted "
            f"{100 * one.median_error:.1f} % off (median), {100 * one.inside:.0f} % of {len(one.sizes):,} sizes inside "
            "the 80 % interval"
        )
        rows = [
            {
                "size\nB": str(row.bytes),
                "measured\nus": _microseconds(row.measured_time_s),
                "predicted\nus": _microseconds(row.predicted_time_s),
                "ratio": f"{row.ratio:.2f}",
                "80 %\nus": f"{_microseconds(row.time_low_s)}-{_microseconds(row.time_high_s)}",
                "algorithm": row.algorithm,
            }
            for row in one.sizes
        ]
        parts.append(table(rows, left=0, optional=("algorithm", "80 %\nus")))
    first, *rest = parts
    return plain("Measured and predicted collectives", str(first), *rest, note_lines(notes))


def _microseconds(time_s: float) -> str:
    """Write a time with the digits of nccl-tests."""
    time_us = time_s * 1e6
    return f"{time_us:.{2 if time_us < 100 else 1 if time_us < 1e4 else 0}f}"


def _size_text(size: int) -> str:
    """Write a size in the units in which it is round: `8.00 GiB`, `1 GB`."""
    return _decimal_size(size) if size & (size - 1) else format_bytes(size)


DECADE_ROWS = 20
"""Rows of a plot over several powers of ten."""


def _bandwidth_plot(rows: Sequence[CollectiveEstimate], width: int) -> str:
    """Plot busbw over size: `*` predicted, `-` ideal."""
    columns = plot_columns(width)
    real = np.array([row.busbw_bytes_per_s / 1e9 for row in rows])
    ideal = real * [row.time_s / row.ideal_time_s for row in rows]
    every = [*real, *ideal]
    from_zero = [] if max(every) / min(every) >= LOGARITHMIC else [0.0]
    is_log, cells, levels = scaled([*every, *from_zero], ROWS if from_zero else DECADE_ROWS)
    at = log([row.bytes for row in rows])
    places = np.linspace(at[0], at[-1], columns)
    height, ideal_height = (np.rint(np.interp(places, at, one)) for one in np.split(np.array(cells[: len(every)]), 2))
    drawn = [np.where(height == row, "*", np.where(ideal_height == row, "-", " ")) for row in range(len(levels))]
    return framed(
        f"busbw in GB/s{', logarithmic' * is_log}, over size, logarithmic (*: predicted, -: ideal)",
        numbered(levels),
        ["".join(row) for row in drawn],
        columns,
        (_size_text(rows[0].bytes), _size_text(rows[-1].bytes)),
    )


def roofline_document(result: Roofline) -> Document:
    """Lay out the thresholds per level and the limits of TP."""
    first = result.clusters[0]
    top = first.levels[-1]
    verdict = (
        f"{result.model} on {first.cluster} in {first.precision}: compute-bound from "
        f"{top.moe_fsdp_tokens or top.fsdp_tokens:,.0f} tokens per GPU with FSDP over {top.gpus:,} GPUs, "
        f"and {f'with TP up to {_degree(first)}' if first.tp_divisor else 'without TP: a GPU has no domain'}"
    )
    levels, batches = (
        [
            {"cluster": cluster.cluster if index == 0 else "", **row(level, result.experts is not None)}
            for cluster in result.clusters
            for index, level in enumerate(cluster.levels)
        ]
        for row in (_level_row, _batch_row)
    )
    lines = [
        "DP SHARP: C / 2W, reduction in switches (in brackets: a level without). DP without it, FSDP: C / W.",
        "outside: DP SHARP across this level alone, all below it filled by model parallelism; a unit: of that below.",
        "W: AllReduce bandwidth (AR) of the level that binds. C: dense peak. No latency, full wire rate.",
    ]
    if result.experts is not None:
        spans = ", ".join(f"{one.ep_units} on {one.cluster}" for one in result.clusters)
        lines.append(
            f"MoE: E C / (2 k W), W of an array split EP ways; E = {result.experts}, k = {result.top_k}. "
            f"EP = {first.ep} spans this many domains: {spans}."
        )
    domains = [
        {
            "cluster": one.cluster,
            "GPU": one.gpu,
            "TFLOP/s": f"{one.peak_flops_per_s / 1e12:,.0f}",
            "domain": str(one.node_gpus),
            "GB/s": f"{one.node_egress_bytes_per_s / 1e9:,.4g}",
            "TP bound": f"Y < F / {one.tp_divisor:,.0f}" if one.tp_divisor else "-",
            f"F = {result.ffn:,}": _degree(one),
        }
        for one in result.clusters
    ]
    return plain(
        f"Rooflines of {result.model}",
        verdict,
        "Tokens per GPU and step from which the level is compute-bound",
        table(levels, left=2, optional=("outside", "AR GB/s")),
        "Tokens of a step over all GPUs of the level: whole tokens per GPU x GPUs",
        table(batches, left=2, optional=("a unit outside",)),
        "Tensor parallelism in the innermost domain",
        table(domains, left=2, optional=("TFLOP/s", "GB/s")),
        "\n".join(lines),
        note_facts(result.notes),
    )


def _level_row(level: LevelRoofline, experts: bool) -> dict[str, str]:
    in_switches = f"{level.dp_tokens:,.0f}"
    expert_tokens = {"MoE DP": level.moe_dp_tokens, "MoE FSDP": level.moe_fsdp_tokens} if experts else {}
    tokens = {"outside": level.outer_dp_tokens, **expert_tokens}
    return {
        "level": level.level,
        "GPUs": f"{level.gpus:,}",
        "AR GB/s": f"{level.allreduce_bytes_per_s / 1e9:,.4g}",
        "DP SHARP": in_switches if level.adds else f"({in_switches})",
        "DP, FSDP": f"{level.fsdp_tokens:,.0f}",
        **{name: "-" if value is None else f"{value:,.0f}" for name, value in tokens.items()},
    }


def _batch_row(level: LevelRoofline, experts: bool) -> dict[str, str]:
    of_experts = {"MoE DP": level.moe_dp_batch_tokens, "MoE FSDP": level.moe_fsdp_batch_tokens} if experts else {}
    of_all = {"DP SHARP": level.dp_batch_tokens, "DP, FSDP": level.fsdp_batch_tokens}
    tokens = {**of_all, "a unit outside": level.outer_unit_tokens, **of_experts}
    cells = {name: "-" if value is None else f"{value:,}" for name, value in tokens.items()}
    return {"level": level.level, "GPUs": f"{level.gpus:,}", **cells}


def _degree(one: ClusterRoofline) -> str:
    over = one.max_tp > one.node_gpus
    if not one.tp_divisor:
        return "-"
    return f"{one.node_gpus}-way (F allows {one.max_tp:.1f})" if over else f"{one.max_tp:.1f}-way"
