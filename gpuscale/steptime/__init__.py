"""Seconds per optimizer step."""

from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.steptime.passes import Passes, cut_key, pipeline_time, price_passes
from gpuscale.steptime.step import Hops, Prices, StepTime, price_hops, step_time

__all__ = [
    "BOUNDS",
    "COMMUNICATION",
    "COMPONENTS",
    "Hops",
    "Passes",
    "Prices",
    "StepTime",
    "cut_key",
    "pipeline_time",
    "price_hops",
    "price_passes",
    "step_time",
]
