"""The estimate of one collective as text and as a JSON object."""

from __future__ import annotations

from typing import Any

from gpuscale.collectives import TITLES, CollectiveEstimate, LevelEstimate
from gpuscale.render.console import console, print_wrapped, table
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
        "channels": estimate.channels,
        "nccl": estimate.nccl,
        "imbalance": estimate.imbalance,
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
    """Return the answer in one sentence: the time, and in words what sets it."""
    place = f"across the {estimate.level} of" if estimate.op == "sendrecv" else f"{estimate.level} of"
    return (
        f"{TITLES[estimate.op]} of {decimal_size(estimate.bytes)} over {who(estimate)} "
        f"({place} {estimate.cluster}): {format_seconds(estimate.time_s)}, "
        f"busbw {estimate.busbw_bytes_per_s / 1e9:.1f} GB/s, bound by {reason(estimate)}"
    )


def reason(estimate: CollectiveEstimate) -> str:
    """Say in words what sets the time: `the links of the node; ring LL128 with 24 channels, 31 % latency`."""
    if estimate.bound_part in {"latency", "channels"}:
        what = estimate.bound_part
    else:
        what = f"the {estimate.bound_part} of the {estimate.bound_by}"
    if estimate.model == "ideal":
        return what
    unit = "SM" if estimate.model == "deepep" else "channel"
    count = f" with {estimate.channels} {unit}{'s' * (estimate.channels != 1)}" if estimate.channels else ""
    return f"{what}; {estimate.algorithm}{count}, {100 * estimate.latency_s / estimate.time_s:.0f} % latency"


def who(estimate: CollectiveEstimate) -> str:
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


def draw_collective(estimate: CollectiveEstimate, note: str | None = None) -> None:
    """Print the verdict, the level table, the formula and a note on the cluster to stdout."""
    out = console()
    print_wrapped(out, verdict(estimate))
    out.print()
    rows = [_row(one) for one in estimate.levels]
    headers = ["level", "fabric", "GPUs", "in group", "egress GB/s", "bytes take", "at wire rate", ""]
    out.print(table(headers, rows, left=2))
    out.print()
    out.print(f"algbw {estimate.algbw_bytes_per_s / 1e9:.1f} GB/s, model {_model(estimate)}")
    print_wrapped(out, f"ideal {format_seconds(estimate.ideal_time_s)}: {estimate.formula}")
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
    name = f"nccl {estimate.nccl}" if estimate.nccl else "deepep"
    return f"{name}: {estimate.algorithm}, {format_seconds(estimate.latency_s)} of it latency"


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
