"""What stands against a job, whoever finds it: broken rules, settings, memory, limits, foot-guns."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

SEVERITIES = ("error", "warning", "note")


class Remark(NamedTuple):
    """One of it, before it is known where its settings stand."""

    rule: str  #: its name, which stays the same.
    severity: str  #: one of `SEVERITIES`.
    message: str  #: what is there, against what limit, and what would be right.
    #: options or settings that it speaks of, the first that is stated is its place; None where it is of no file.
    settings: tuple[str, ...] | None = ()
    cost_s: float | None = None  #: seconds per step that it costs; None where it is not a matter of time.
    #: option -> its nearest legal values, the nearest first; None leaves it out.
    legal: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
