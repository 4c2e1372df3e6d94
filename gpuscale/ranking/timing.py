"""Where the time of a search goes."""

from __future__ import annotations

import time
from collections.abc import Callable

STAGES = ("enumerate", "rules", "prices", "memory", "step time", "ranking")
"""Stages of a search in the order of the flow: rows are formed; those that break a rule are dropped; what recurs is
measured and priced once; memory and step time are combined from it for every candidate; the best are kept in order."""


class Stopwatch:
    """Adds up the time between laps by the name of the stage that ends with each.

    Attributes:
        seconds: stage -> seconds, in order of first use.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._last = clock()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under a stage."""
        now = self._clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
