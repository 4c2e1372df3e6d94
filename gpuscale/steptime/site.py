"""What measured runs of a site make of a predicted step time (`gpuscale.specs.site`)."""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import FloatArray, IntArray, exp
from gpuscale.layouts.arrays import Candidates, unique_rows
from gpuscale.specs.site import AXES, MOST, SCALE, SiteSpec, layouts_apart


def site_factor(c: Candidates, site: SiteSpec) -> FloatArray:
    """Factor on the step time of each candidate, shape (N,)."""
    rows, index = unique_rows(c, tuple(AXES))
    near = [
        _nearness(axis, getattr(rows, axis), column)
        for axis, column in zip(AXES, zip(*site.layouts, strict=True), strict=True)
    ]
    remainder = np.zeros(len(rows))
    for run, weight in enumerate(site.weights):
        share = np.full(len(rows), weight)
        for table, place in near:
            share *= table[run, place]
        remainder += share
    return exp(np.clip(remainder, -MOST, MOST))[index]


def _nearness(axis: str, value: IntArray, runs: tuple[int, ...]) -> tuple[FloatArray, IntArray]:
    """exp(-distance / SCALE) along an axis between each run and each value that there is, and where each row's is."""
    known, place = np.unique(value, return_inverse=True)
    return exp(-AXES[axis] / SCALE * layouts_apart(axis, np.array(runs)[:, None], known)), place
