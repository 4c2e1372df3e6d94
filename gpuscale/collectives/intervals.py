"""How far measured collectives are from predicted ones: an 80 % interval by way, kind and size.

The numbers are 80 % quantiles of |log(measured / predicted)| over the published nccl-tests results that
docs/collectives.md counts (`benchmarks/compare_collectives.py --intervals`), by the outermost level crossed.
"""

from __future__ import annotations

import math

from gpuscale.specs.cluster import IBVERBS, SCALE_UP, LevelSpec
from gpuscale.units import KIB, MIB

SMALL_BYTES, LARGE_BYTES = 64 * KIB, 64 * MIB
"""Ends of the classes of sizes: below the first latency decides, from the second on bandwidth."""

MESSAGES = frozenset({"alltoall", "sendrecv"})
"""Operations of grouped sends; the others run on rings, trees and switches."""

HALF_WIDTHS = {
    ("links", False): (0.10, 0.13, 0.07), ("links", True): (0.15, 0.13, 0.09),
    ("xgmi", False): (0.64, 0.37, 0.06), ("xgmi", True): (0.64, 0.37, 0.09),
    ("pcie", False): (0.12, 0.24, 0.31), ("pcie", True): (0.25, 0.24, 0.21),
    ("verbs", False): (1.20, 0.42, 0.12), ("verbs", True): (0.20, 0.20, 0.12),
    ("plugin", False): (0.18, 0.28, 0.13), ("plugin", True): (0.18, 0.28, 0.16),
}  # fmt: skip
"""(way, whether grouped sends) -> half width of the interval below `SMALL_BYTES`, between, and from `LARGE_BYTES` on,
in log of the ratio; where fewer than eight, or those of one source, were measured, at least as for the other kind or
the next size."""

CALIBRATED = 0.06
"""The same where the cluster's own curves count: at sizes held out (docs/collectives.md, "Your measurements")."""


def way_of(level: LevelSpec) -> str:
    """Return what a group goes over: `links` of a switched or NVLink domain, `xgmi`, `pcie`, `verbs`, `plugin`."""
    if level.fabric in {"pcie", "xgmi"}:
        return level.fabric
    if level.fabric in SCALE_UP:
        return "links"
    return "verbs" if level.fabric in IBVERBS else "plugin"


def interval(time_s: float, level: LevelSpec, operation: str, size: float, *, calibrated: bool) -> tuple[float, float]:
    """Return both ends of the 80 % interval of a predicted time over `level` [s]."""
    widths = HALF_WIDTHS[way_of(level), operation in MESSAGES]
    width = CALIBRATED if calibrated else widths[(size >= SMALL_BYTES) + (size >= LARGE_BYTES)]
    return time_s * math.exp(-width), time_s * math.exp(width)
