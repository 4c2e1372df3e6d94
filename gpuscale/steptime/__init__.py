"""Seconds per optimizer step."""

from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.steptime.step import StepTime, step_time

__all__ = ["BOUNDS", "COMMUNICATION", "COMPONENTS", "StepTime", "step_time"]
