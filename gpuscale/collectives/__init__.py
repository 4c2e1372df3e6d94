"""What moving data between GPUs costs: an ideal bytes-over-bandwidth model and an NCCL-like one with latency."""

from gpuscale.collectives.groups import Groups, place
from gpuscale.collectives.ideal import ideal_time_s
from gpuscale.collectives.operations import OPERATIONS, TITLES, bus_factor, operation_named
from gpuscale.collectives.pricing import (
    CollectiveEstimate,
    LevelEstimate,
    Siblings,
    collective_time_s,
    price_collective,
)

__all__ = [
    "OPERATIONS",
    "TITLES",
    "CollectiveEstimate",
    "Groups",
    "LevelEstimate",
    "Siblings",
    "bus_factor",
    "collective_time_s",
    "ideal_time_s",
    "operation_named",
    "place",
    "price_collective",
]
