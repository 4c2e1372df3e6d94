"""Which ranks work together: the strides of their groups, and what those that share a sequence split among themselves.

Ranks number the grid of the parallel axes, the first axis of the order fastest. There are two grids over the same
ranks, as in Megatron-LM (megatron/core/parallel_state.py, `RankGenerator`): tp x cp x dp x pp, and for the routed
experts etp x ep x edp x pp, where etp takes the place of tp, and edp, what is left, that of dp. The kinds of context
parallelism are those of Megatron-LM's `--cp-comm-type` (docs/model.md): `p2p` and `all_gather` split the queries over
the ranks, `a2a` the heads, `a2a+p2p` heads inside a node and queries between nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from gpuscale.arrays import BoolArray, IntArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.specs.job import JobSpec

DENSE_GRID = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}
"""Name in the order -> axis, for everything but the routed experts."""

EXPERT_GRID = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
"""Name in the order -> axis, for the routed experts."""

Size = TypeVar("Size", int, IntArray)


class Strides(NamedTuple):
    """Ranks from one member of a group to the next, each (N,). `dp_cp` is the group that shares the dense states. Where
    dp and cp are not neighbours in the order, its members are not evenly spaced, and the mean stands for them."""

    tp: IntArray
    cp: IntArray
    dp: IntArray
    pp: IntArray
    dp_cp: IntArray
    etp: IntArray
    ep: IntArray
    edp: IntArray


def grid_strides(order: Sequence[str], sizes: Mapping[str, Size], grid: Mapping[str, str]) -> dict[str, Size]:
    """Stride of each axis of a grid: the product of the sizes of the axes before it in the order."""
    out: dict[str, Size] = {}
    stride = 0 * next(iter(sizes.values())) + 1
    for name in order:
        if name in grid:
            out[grid[name]] = stride
            stride = stride * sizes[grid[name]]
    return out


def strides(c: Candidates, job: JobSpec) -> Strides:
    """Strides of the groups of each candidate."""
    dense, expert = _both_grids(c, job)
    reach = (c.dp - 1) * dense["dp"] + (c.cp - 1) * dense["cp"]
    dp_cp = np.where(c.dp * c.cp > 1, reach // np.maximum(c.dp * c.cp - 1, 1), 1)
    return Strides(**dense, dp_cp=dp_cp, etp=expert["etp"], ep=expert["ep"], edp=expert["edp"])


def _both_grids(c: Candidates, job: JobSpec) -> tuple[dict[str, IntArray], dict[str, IntArray]]:
    sizes = {name: getattr(c, name) for name in ("tp", "cp", "dp", "pp", "etp", "ep")}
    sizes["edp"] = np.maximum(c.expert_dp, 1)
    return grid_strides(job.axis_order, sizes, DENSE_GRID), grid_strides(job.axis_order, sizes, EXPERT_GRID)


def stride_fields(job: JobSpec) -> tuple[str, ...]:
    """Fields of a candidate on which the strides inside a stage depend beside tp, cp, ep and etp; None where these
    stand before dp and pp, as in the usual order. What measures a layer once for all candidates that cut it alike must
    tell apart those of other orders."""
    return () if {*job.axis_order[:3]} == {"tp", "cp", "ep"} else ("dp", "pp")


def stages_torn(c: Candidates, job: JobSpec) -> BoolArray:
    """Mark rows in which the order of the axes gives the experts other pipeline stages than the other layers. With
    stages outermost both grids agree. Else as many ranks must stand before a stage in one grid as in the other;
    Megatron-LM asks for as many expert-DP as DP ranks, and counts CP among the former in a dense model
    (megatron/core/parallel_state.py, `initialize_model_parallel`)."""
    order = job.axis_order
    if order[-1] == "pp":
        return np.zeros(len(c), dtype=bool)
    routed, expert_dp = c.ep * c.etp > 1, np.maximum(c.expert_dp, 1)
    dense, expert = _both_grids(c, job)
    torn = routed & (dense["pp"] != expert["pp"])
    if job.runtime.rule_set.startswith("megatron-lm"):
        beyond = np.zeros(len(c), dtype=bool)  # an axis in use stands outside the stages
        for name in order[order.index("pp") + 1 :]:
            beyond |= (getattr(c, name) > 1) | ((name == "dp") & (expert_dp * routed > 1))
        torn |= beyond & (np.where(routed, expert_dp, c.cp * c.dp) != c.dp)
    return torn & (c.pp > 1)


class ContextSplit(NamedTuple):
    """What one context-parallel rank works on, each of shape (N,)."""

    heads: IntArray  #: ranks among which the heads are split.
    queries: IntArray  #: ranks among which the queries are split; heads * queries = cp.
    blocks: IntArray  #: blocks of keys that are worked on one after the other.


def context_split(c: Candidates, job: JobSpec, kind: str | None = None) -> ContextSplit:
    """Return how `job.runtime.cp_comm`, or another kind, splits attention over the ranks of each candidate."""
    one = np.ones_like(c.cp)
    kind = kind or job.runtime.cp_comm
    if kind == "all_gather":
        return ContextSplit(one, c.cp, one)
    if kind == "a2a":
        return ContextSplit(c.cp, one, one)
    inside = one if kind == "p2p" else np.gcd(c.cp, np.maximum(job.cluster.node_gpus // c.tp, 1))
    ring = c.cp // inside
    return ContextSplit(inside, ring, ring)


def split_alike(c: Candidates, job: JobSpec, kind: str) -> BoolArray:
    """Mark candidates whose sequences another kind splits in the same way: `a2a+p2p` is `a2a` where one node has all
    ranks of a sequence, and `p2p` where it has one of them."""
    own, other = context_split(c, job), context_split(c, job, kind)
    return (c.cp > 1) & (own.heads == other.heads) & (own.queries == other.queries) & (own.blocks == other.blocks)
