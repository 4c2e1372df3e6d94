"""Functions of arrays: their last digit depends neither on the version of Python or NumPy nor on the CPU."""

import math
from fractions import Fraction

import numpy as np
import pytest

from gpuscale.arrays import added_up, exp, log, log2, log10, norm

VALUES = np.concatenate([np.linspace(0.001, 20, 500), np.geomspace(1e-9, 1e12, 500)])


@pytest.mark.parametrize(
    ("of_array", "of_number", "values"),
    [(log, math.log, VALUES), (log2, math.log2, VALUES), (log10, math.log10, VALUES), (exp, math.exp, -VALUES)],
)
def test_logarithms_and_exponentials_are_those_of_single_numbers(of_array, of_number, values):
    assert of_array(values).tolist() == [of_number(value) for value in values.tolist()]
    assert of_array(np.zeros((0, 3)) + 1).shape == (0, 3)
    assert of_array([2, 3]).dtype == np.float64


@pytest.mark.parametrize("order", [4, 6])
def test_a_norm_is_right_to_the_last_digits(order):
    ones, others = np.geomspace(1e-9, 1e3, 200), np.geomspace(1e-4, 1e-5, 200)
    for one, other, found in zip(ones, others, norm(ones, others, order).tolist(), strict=True):
        exact = Fraction(one) ** order + Fraction(other) ** order
        assert float(Fraction(found) ** order / exact) == pytest.approx(1, rel=order * 5e-16)
    assert norm(np.zeros(1), np.zeros(1), order).tolist() == [0]
    assert norm(np.zeros(1), np.full(1, 3.0), order).tolist() == [3]


def test_sums_of_floats_are_plain_ones():
    tenths = [0.1] * 10
    assert added_up(tenths) == 0.9999999999999999  # Python's `sum` is 1.0 since 3.12
    assert added_up([np.arange(3.0), 1.0]).tolist() == [1, 2, 3]
    assert added_up([]) == 0
