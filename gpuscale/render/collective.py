"""The estimate of one collective as text and as a JSON object."""

from __future__ import annotations

from typing import Any

from gpuscale.collectives import TITLES, CollectiveEstimate, LevelEstimate
from gpuscale.render.console import console, table
from gpuscale.units import format_seconds

SCHEMA = "gpuscale.collective/1"


def collective_body(estimate: CollectiveEstimate) -> dict[str, Any]:
    """Return the JSON object of the estimate, without the schema key."""
    return {
        "op": estimate.op,
        "bytes": estimate.bytes,
        "gpus": estimate.gpus,
        "level": estimate.level,
        "time_s": estimate.time_s,
        "algbw_gb_per_s": estimate.algbw_bytes_per_s / 1e9,
        "busbw_gb_per_s": estimate.busbw_bytes_per_s / 1e9,
        "bound_by": estimate.bound_by,
        "levels": [_level(one) for one in estimate.levels],
        "cluster": estimate.cluster,
        "model": estimate.model,
        "algorithm": estimate.algorithm,
        "latency_s": estimate.latency_s,
        "ideal_time_s": estimate.ideal_time_s,
        "formula": estimate.formula,
        "bound_part": estimate.bound_part,
        "group_stride": estimate.stride,
        "concurrent": estimate.concurrent,
        "next_best": estimate.next_best,
        "next_best_time_s": estimate.next_best_time_s,
    }


def _level(one: LevelEstimate) -> dict[str, Any]:
    return {
        "name": one.name,
        "fabric": one.fabric,
        "gpus": one.gpus,
        "members": one.members,
        "egress_gb_per_s": one.egress_bytes_per_s / 1e9,
        "time_s": one.time_s,
        "ideal_time_s": one.ideal_time_s,
        "binds": one.binds,
    }


def verdict(estimate: CollectiveEstimate) -> str:
    """Return the answer in one line."""
    place = f"across the {estimate.level} of" if estimate.op == "sendrecv" else f"{estimate.level} of"
    return (
        f"{TITLES[estimate.op]} of {decimal_size(estimate.bytes)} over {who(estimate)} "
        f"({place} {estimate.cluster}): {format_seconds(estimate.time_s)}, "
        f"busbw {estimate.busbw_bytes_per_s / 1e9:.1f} GB/s, bound by {estimate.bound_by}"
    )


def who(estimate: CollectiveEstimate) -> str:
    """Return which GPUs take part: `16 GPUs, 8 apart, 4 groups at once`."""
    apart = f", {estimate.stride:,} apart" if estimate.stride > 1 and estimate.op != "sendrecv" else ""
    count = estimate.concurrent
    groups = "" if count is None else ", alone" if count == 1 else f", {count:,} groups at once"
    return f"{estimate.gpus:,} GPUs{apart}{groups}"


def draw_collective(estimate: CollectiveEstimate, note: str | None = None) -> None:
    """Print the verdict, the level table, the formula and a note on the cluster to stdout."""
    out = console()
    out.print(verdict(estimate), soft_wrap=True)
    out.print()
    rows = [_row(one) for one in estimate.levels]
    headers = ["level", "fabric", "GPUs", "in group", "egress GB/s", "bytes take", "at wire rate", ""]
    out.print(table(headers, rows, left=2))
    out.print()
    out.print(f"algbw {estimate.algbw_bytes_per_s / 1e9:.1f} GB/s, model {_model(estimate)}")
    out.print(f"ideal {format_seconds(estimate.ideal_time_s)}: {estimate.formula}", soft_wrap=True)
    if estimate.next_best:
        out.print(f"next best {estimate.next_best}: {format_seconds(estimate.next_best_time_s)}")
    if note:
        out.print(f"note: {note}")


def _model(estimate: CollectiveEstimate) -> str:
    if estimate.model == "ideal":
        return "ideal: bytes over wire rate at the level that binds, no latency"
    if estimate.model == "calibrated":
        return (
            f"calibrated: as measured (nccl: {estimate.algorithm}), {format_seconds(estimate.latency_s)} of it latency"
        )
    return f"nccl: {estimate.algorithm}, {format_seconds(estimate.latency_s)} of it latency"


def _row(one: LevelEstimate) -> list[str]:
    crossed = one.time_s > 0
    return [
        one.name,
        one.fabric,
        f"{one.gpus:,}",
        f"{one.members:,}",
        f"{one.egress_bytes_per_s / 1e9:.4g}",
        format_seconds(one.time_s) if crossed else "-",
        format_seconds(one.ideal_time_s) if crossed else "-",
        "binds" if one.binds else "",
    ]


def decimal_size(size: int) -> str:
    """Write a size in decimal units: `33.6 MB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"
