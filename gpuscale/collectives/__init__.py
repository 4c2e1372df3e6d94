"""What moving data between GPUs costs: an ideal bytes-over-bandwidth model and an NCCL-like one with latency."""

from gpuscale.collectives.dispatch import Tokens
from gpuscale.collectives.estimate import CollectiveEstimate, LevelEstimate, Siblings
from gpuscale.collectives.groups import Groups, place
from gpuscale.collectives.ideal import ideal_time_s
from gpuscale.collectives.operations import OPERATIONS, TITLES, bus_factor, operation_named
from gpuscale.collectives.pricing import price_collective
from gpuscale.collectives.times import collective_time_s
from gpuscale.collectives.tuning import Tuning

__all__ = [
    "OPERATIONS",
    "TITLES",
    "CollectiveEstimate",
    "Groups",
    "LevelEstimate",
    "Siblings",
    "Tokens",
    "Tuning",
    "bus_factor",
    "collective_time_s",
    "ideal_time_s",
    "operation_named",
    "place",
    "price_collective",
]
