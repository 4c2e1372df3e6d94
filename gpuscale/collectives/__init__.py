"""How long moving data between GPUs takes: an ideal bytes-over-bandwidth model and an NCCL-like one with latency."""

from gpuscale.collectives.estimate import CollectiveEstimate, LevelEstimate, Siblings, price_collective
from gpuscale.collectives.ideal import OPERATIONS, TITLES, operation_named
from gpuscale.collectives.nccl_constants import Tuning
from gpuscale.collectives.times import collective_time_s

__all__ = [
    "OPERATIONS",
    "TITLES",
    "CollectiveEstimate",
    "LevelEstimate",
    "Siblings",
    "Tuning",
    "collective_time_s",
    "operation_named",
    "price_collective",
]
