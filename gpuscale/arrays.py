"""Types of the arrays that physics is computed on, and functions of them whose results are the same everywhere.

The last digit of NumPy's own logarithms, exponentials and powers depends on its version and on the CPU (AVX-512). Here
are those of the C library, and what only takes operations that IEEE 754 defines to the last bit.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
IndexArray = NDArray[np.intp]


def _by_element(function: Callable[[float], float]) -> Callable[[ArrayLike], FloatArray]:
    of_each = np.frompyfunc(function, 1, 1)
    return lambda values: np.asarray(of_each(values), dtype=np.float64)


exp, log, log2, log10 = map(_by_element, (math.exp, math.log, math.log2, math.log10))


@_by_element
def normal_cdf(deviations: float) -> float:
    """Probability that a standard normal variable is below each value (`NormalDist.cdf` is another since 3.12)."""
    return 0.5 * math.erfc(-deviations / math.sqrt(2.0))


def only(value: ArrayLike) -> float:
    """Return the value of the only row."""
    return float(np.ravel(value)[0])


def norm(one: FloatArray, other: FloatArray, order: int) -> FloatArray:
    """Return (one^order + other^order)^(1/order) of what is not negative; the root by Newton's method."""
    larger = np.maximum(one, other)
    share = np.minimum(one, other) / np.maximum(larger, 1e-30)
    total = 1.0 + _power(share, order)
    root = 1.0 + (total - 1.0) * (2 ** (1 / order) - 1.0)  # within 1 %, as 1 <= total <= 2
    for _ in range(3):
        root = root + (total / _power(root, order - 1) - root) / order
    return larger * root


def _power(value: FloatArray, exponent: int) -> FloatArray:
    return functools.reduce(np.multiply, [value] * exponent)


def added_up(numbers: Iterable[Any]) -> Any:
    """Return the sum of numbers or arrays, one after the other; of floats Python's `sum` is another since 3.12."""
    return functools.reduce(lambda total, number: total + number, numbers, 0.0)
