"""What moving data between GPUs costs: an ideal bytes-over-bandwidth model and an NCCL-like one with latency."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuscale.collectives.dispatch import Tokens
from gpuscale.collectives.groups import Groups, place
from gpuscale.collectives.ideal import ideal_time_s
from gpuscale.collectives.operations import OPERATIONS, TITLES, bus_factor, operation_named
from gpuscale.collectives.times import collective_time_s
from gpuscale.collectives.tuning import Tuning

if TYPE_CHECKING:
    from gpuscale.collectives.estimate import CollectiveEstimate, LevelEstimate, Siblings
    from gpuscale.collectives.pricing import price_collective

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

_LATER = {"CollectiveEstimate": "estimate", "LevelEstimate": "estimate", "Siblings": "estimate",
          "price_collective": "pricing"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load what prices one operation at a time when it is first used: searches do without it (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
