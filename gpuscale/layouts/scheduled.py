"""Candidates under another pipeline schedule than 1F1B: which layouts it takes, and which orders of the axes do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import DUALPIPE, ONE_F_ONE_B, ZB_V, Candidates
from gpuscale.layouts.order import EXPERT_GRID, grid_strides
from gpuscale.specs.job import JobSpec


def scheduled(table: Candidates, schedule: int) -> Candidates:
    """Give all candidates a schedule; rows that it does not take are left out, those without a pipeline among them."""
    if schedule == ONE_F_ONE_B:
        return table
    table = replace(table, schedule=np.full_like(table.pp, schedule))
    return table.take((table.pp > 1) & ~wrong_chunks(table) & ~odd_stages(table))


def wrong_chunks(c: Candidates) -> BoolArray:
    """Mark rows whose schedule does not take their model chunks per rank.

    ZB-V has two, which go down the ranks and back up (Qi et al. 2024, section 6); DualPipe keeps one of each direction,
    GPipe and ZB-H one. Only 1F1B is interleaved.
    """
    wanted = np.where(c.schedule == ZB_V, 2, 1)
    return (c.schedule != ONE_F_ONE_B) & (c.pp > 1) & (c.vpp != wanted)


def odd_stages(c: Candidates) -> BoolArray:
    """Mark rows of DualPipe with an odd number of stages: two ranks share the stages of both ends."""
    return (c.schedule == DUALPIPE) & (c.pp % 2 != 0)


def dualpipe_microbatches(c: Candidates) -> BoolArray:
    """Mark rows of DualPipe with too few microbatches: both ends feed half of them, at least one per stage each."""
    return (c.schedule == DUALPIPE) & ((c.num_microbatches % 2 != 0) | (c.num_microbatches < 2 * c.pp))


def stages_torn(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark rows whose order of the axes gives the experts other pipeline stages than the other layers.

    With stages outermost both grids agree. Else as many ranks must stand before a stage in one grid as in the other;
    Megatron-LM asks for as many expert-DP as DP ranks, and counts CP among the former in a dense model
    (megatron/core/parallel_state.py, `initialize_model_parallel`).
    """
    torn = [_torn(c, job, order) for order in job.axis_orders]
    return torn[0] if len(torn) == 1 else np.choose(c.order, torn)


def _torn(c: Candidates, job: JobSpec, order: Sequence[str]) -> BoolArray:
    """Mark rows whose stages an order tears, whatever their own order is."""
    if order[-1] == "pp":
        return np.zeros(len(c), dtype=bool)
    routed = c.ep * c.etp > 1
    expert_dp = np.maximum(c.expert_dp, 1)
    sizes = {"etp": c.etp, "ep": c.ep, "edp": expert_dp, "pp": c.pp}
    dense_pp = grid_strides(order, {"tp": c.tp, "cp": c.cp, "dp": c.dp, "pp": c.pp})["pp"]
    torn = routed & (dense_pp != grid_strides(order, sizes, EXPERT_GRID)["pp"])
    if job.runtime.rule_set.startswith("megatron-lm"):
        counted = np.where(routed, expert_dp, c.cp * c.dp)
        torn |= _inside(c, order, expert_dp * routed) & (counted != c.dp)
    return torn & (c.pp > 1)


def _inside(c: Candidates, order: Sequence[str], expert_dp: npt.NDArray[np.int64]) -> BoolArray:
    """Mark rows in which an axis in use stands outside the stages."""
    beyond = np.zeros(len(c), dtype=bool)
    for name in order[order.index("pp") + 1 :]:
        beyond |= getattr(c, name) > 1
        if name == "dp":
            beyond |= expert_dp > 1
    return beyond


__all__ = ["dualpipe_microbatches", "odd_stages", "scheduled", "stages_torn", "wrong_chunks"]
