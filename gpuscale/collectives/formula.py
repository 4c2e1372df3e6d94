"""The ideal model's term of the level that binds, written out with its numbers."""

from __future__ import annotations

from gpuscale.arrays import FloatArray
from gpuscale.collectives.groups import Groups
from gpuscale.specs.cluster import ClusterSpec


def formula(
    cluster: ClusterSpec, groups: Groups, level_times: FloatArray, op: str, bytes_: int, *, in_network_reduction: bool
) -> str:
    """Write `bytes x (1 - m/n) / (egress x m) = ...` for the first of `groups`.

    Args:
        level_times: (L,) what each level takes by the ideal model [s].
    """
    index = int(level_times.argmax())
    inner, size = int(groups.inner[index, 0]), int(groups.size[0])
    rate = f"{float(groups.wire_bytes_per_s[index, 0]) / inner / 1e9:.4g} GB/s"
    shared = f"({rate} x {inner})" if inner > 1 else rate
    data, share = f"{bytes_:,} B", f"(1 - {inner}/{size})"
    if op == "sendrecv":
        return f"bytes / egress = {data} / {rate}"
    exchange_s = 0.0 if groups.exchange_s_per_byte is None else float(groups.exchange_s_per_byte[index, 0])
    if op == "alltoall" and exchange_s:
        busy = float(level_times[index]) / (bytes_ * exchange_s)
        uneven = (f" x {busy:.4g}", " x busiest / mean") if round(busy, 6) != 1 else ("", "")
        return f"bytes{uneven[1]} / exchange = {data}{uneven[0]} / {1e-9 / exchange_s:.4g} GB/s (bisection)"
    if op == "alltoall":
        even = bytes_ * (1 - inner / size) * inner / float(groups.wire_bytes_per_s[index, 0])
        busy = float(level_times[index]) / even
        uneven = (f" x {busy:.4g}", " x busiest / mean") if round(busy, 6) != 1 else ("", "")
        return f"bytes x (1 - m/n){uneven[1]} / egress = {data} x {share}{uneven[0]} / {rate}"
    adds = cluster.levels[index].in_network_reduction and in_network_reduction
    if op in {"broadcast", "reduce"} or (op == "allreduce" and adds):
        return f"bytes / (egress x m) = {data} / {shared}"
    twice = "2 x " if op == "allreduce" else ""
    return f"{twice}bytes x (1 - m/n) / (egress x m) = {twice}{data} x {share} / {shared}"


def deduplicated_formula(bytes_: int, choices: int, targets: float, units: int, egress_bytes_per_s: float) -> str:
    """Write the ideal term of an exchange that sends a token once to each of `targets` of `units` nodes or GPUs."""
    return (
        f"bytes / topk x targets x (1 - 1/k) / egress = {bytes_:,} B / {choices} x {targets:.3g} x (1 - 1/{units}) / "
        f"{egress_bytes_per_s / 1e9:.4g} GB/s"
    )
