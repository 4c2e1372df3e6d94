"""Seconds per optimizer step."""

from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.steptime.step import Prices, StepTime, cut_key, price, priced_hops, step_time

__all__ = [
    "BOUNDS",
    "COMMUNICATION",
    "COMPONENTS",
    "Prices",
    "StepTime",
    "cut_key",
    "price",
    "priced_hops",
    "step_time",
]
