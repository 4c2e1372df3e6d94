"""Which ranks are neighbours along each parallel axis: the order of the axes, and the stride of each in ranks.

Ranks number the grid of the axes, the first axis of the order fastest. There are two grids over the same ranks, as in
Megatron-LM (megatron/core/parallel_state.py, `RankGenerator`): tp x cp x dp x pp for everything but the routed experts,
and etp x ep x edp x pp for those, where etp stands at the place of tp and edp, what is left, at that of dp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.arrays import IntArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.specs.job import JobSpec

DENSE_GRID = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}
"""Name in the order -> axis, for everything but the routed experts."""

EXPERT_GRID = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
"""Name in the order -> axis, for the routed experts."""


@dataclass(frozen=True)
class Strides:
    """Ranks from one member of a group to the next, each (N,).

    `dp_cp` is the group that shares the dense states. Where dp and cp are not neighbours in the order, its members are
    not evenly spaced, and the mean stands for them.
    """

    tp: IntArray
    cp: IntArray
    dp: IntArray
    pp: IntArray
    dp_cp: IntArray
    etp: IntArray
    ep: IntArray
    edp: IntArray


def grid_strides(
    order: Sequence[str], sizes: Mapping[str, IntArray], grid: Mapping[str, str] = DENSE_GRID
) -> dict[str, IntArray]:
    """Stride of each axis of a grid: the product of the sizes of the axes before it in the order."""
    out: dict[str, IntArray] = {}
    stride = np.ones_like(next(iter(sizes.values())))
    for name in order:
        if name in grid:
            out[grid[name]] = stride
            stride = stride * sizes[grid[name]]
    return out


def strides(c: Candidates, job: JobSpec) -> Strides:
    """Strides of the groups of each candidate under its order of the axes."""
    if not c.order.any():
        return _strides(c, job.axis_order)
    each = [vars(_strides(c, order)) for order in job.axis_orders]
    return Strides(**{name: np.choose(c.order, [one[name] for one in each]) for name in each[0]})


def _strides(c: Candidates, order: Sequence[str]) -> Strides:
    dense = grid_strides(order, {"tp": c.tp, "cp": c.cp, "dp": c.dp, "pp": c.pp})
    sizes = {"etp": c.etp, "ep": c.ep, "edp": np.maximum(c.expert_dp, 1), "pp": c.pp}
    expert = grid_strides(order, sizes, EXPERT_GRID)
    reach = (c.dp - 1) * dense["dp"] + (c.cp - 1) * dense["cp"]
    dp_cp = np.where(c.dp * c.cp > 1, reach // np.maximum(c.dp * c.cp - 1, 1), 1)
    return Strides(
        dense["tp"], dense["cp"], dense["dp"], dense["pp"], dp_cp, expert["etp"], expert["ep"], expert["edp"]
    )


def stride_fields(job: JobSpec) -> tuple[str, ...]:
    """Fields of a candidate on which the strides inside a stage depend beside tp, cp, ep and etp.

    None where these stand before dp and pp, as in the usual order. What prices a layer once for all candidates that cut
    it alike must tell apart those of other orders.
    """
    inside = all({*order[:3]} == {"tp", "cp", "ep"} for order in job.axis_orders)
    return () if inside else ("dp", "pp", "order")


__all__ = ["DENSE_GRID", "EXPERT_GRID", "Strides", "grid_strides", "stride_fields", "strides"]
