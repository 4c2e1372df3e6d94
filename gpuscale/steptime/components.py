"""The one breakdown of a step's time; tables, JSON and the ranking derive their columns from it."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

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


def zeros(count: int) -> FloatArray:
    """An empty breakdown of `count` rows, shape (components, count)."""
    return np.zeros((len(COMPONENTS), count))


def breakdown(count: int, **parts: FloatArray) -> FloatArray:
    """Build a breakdown from named components; those not named are 0."""
    out = zeros(count)
    for name, value in parts.items():
        out[INDEX[name]] = value
    return out


def in_all_s(cost: FloatArray) -> FloatArray:
    """Sum a breakdown over its components, shape (count,) [s].

    Row after row: NumPy's own sum adds the components of a single candidate in another order than those of many,
    and the same candidate would differ in its last digit.
    """
    return functools.reduce(np.add, cost)
