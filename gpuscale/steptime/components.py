"""The one breakdown of a step's time; tables, JSON and the ranking derive their columns from it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import spread

COMPONENTS = {
    "gemm": "compute",
    "attention": "compute",
    "recompute": "compute",
    "elementwise": "hbm",
    "optimizer": "hbm",
    "launch": "launch",
    "tp_comm": "tp_comm",
    "cp_comm": "cp_comm",
    "ep_comm": "ep_comm",
    "pp_comm": "pp_comm",
    "dp_comm": "dp_comm",
    "offload": "host",
    "bubble": "bubble",
}
"""Component of the step time -> what it is bound by. Communication components are the exposed part only."""

INDEX = {name: index for index, name in enumerate(COMPONENTS)}
BOUNDS = tuple(dict.fromkeys(COMPONENTS.values()))
"""Values of `bound_by`."""

COMMUNICATION = tuple(name for name in COMPONENTS if name.endswith("_comm"))


Breakdown = dict[str, FloatArray]
"""Component -> seconds, arrays that broadcast against each other; components that are not named are 0."""


def added(*breakdowns: Breakdown) -> Breakdown:
    """Add breakdowns up, component by component, in their order."""
    out: Breakdown = {}
    for one in breakdowns:
        for name, value in one.items():
            out[name] = out[name] + value if name in out else value
    return out


def scaled(cost: Breakdown, factor: npt.NDArray[Any] | float) -> Breakdown:
    """Multiply all components."""
    return {name: value * factor for name, value in cost.items()}


def taken(cost: Breakdown, index: npt.NDArray[np.intp]) -> Breakdown:
    """Give each row the breakdown of its combination, as `unique_rows` numbers them."""
    return {name: spread(value, index) for name, value in cost.items()}


def stacked(cost: Breakdown, count: int) -> FloatArray:
    """The breakdown of `count` candidates as one array, shape (components, count)."""
    out = np.zeros((len(COMPONENTS), count))
    for name, value in cost.items():
        out[INDEX[name]] = value
    return out


def in_all_s(cost: Breakdown) -> FloatArray:
    """Sum a breakdown over its components [s].

    In the order of `COMPONENTS`, one after the other: the same candidate gives the same last digit, however many are
    summed at once.
    """
    parts = [cost[name] for name in COMPONENTS if name in cost]
    return functools.reduce(np.add, parts) if parts else np.zeros(())
