"""Where the time of a search goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

SEARCH_STAGES = ("enumerate", "rules", "layers", "memory", "step time", "ranking")
"""Stages of a search in the order of the flow: rows are formed; those that break a rule are dropped; layers are
measured, once for all candidates that cut them alike; the memory of every candidate, and what its pipeline takes at
least, are combined from them; those that may lead are timed; the best are kept in order."""

STAGES = ("presets", *SEARCH_STAGES, "output")
"""Stages of a plan: a search after its presets have been read, and its best plans described and drawn."""


class Stopwatch:
    """Adds up CPU time between laps by the name of the stage that ends with each.

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


_watch: ContextVar[Stopwatch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def watched() -> Iterator[Stopwatch]:
    """Time all searches inside the `with` block, wherever they are called from."""
    watch = Stopwatch()
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def lap(stage: str) -> None:
    """Book the time since the last lap under a stage, on the stopwatch of the innermost `watched` block."""
    watch = _watch.get()
    if watch is not None:
        watch.lap(stage)
