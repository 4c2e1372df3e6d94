"""The groups of each parallel axis: exact sets of ranks for any order of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import IntArray
from gpuscale.errors import InputError, nearest
from gpuscale.layouts.ranks import DENSE_GRID, EXPERT_GRID, grid_strides
from gpuscale.specs.job import AXES


class Degrees(NamedTuple):
    """Parallel degrees; tp * cp * dp * pp ranks, of which etp * ep * edp * pp is another grid."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Data-parallel degree of the routed experts."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    def sizes(self) -> dict[str, int]:
        """Return every axis with its size."""
        return {**self._asdict(), "edp": self.edp}


@dataclass(frozen=True)
class AxisGroups:
    """The groups of one axis: together they hold every rank once.

    Attributes:
        axis: `tp`, `cp`, `dp`, `pp`, `etp`, `ep`, `edp`, or `dp_cp`, over which the dense states are shared.
        factors: (size, stride) of each axis that the group is made of, by ascending stride.
        ranks: ranks of the job.
    """

    axis: str
    factors: tuple[tuple[int, int], ...]
    ranks: int

    @property
    def size(self) -> int:
        """Ranks of one group."""
        return int(np.prod([size for size, _ in self.factors]))

    @property
    def count(self) -> int:
        """Groups of the axis."""
        return self.ranks // self.size

    @property
    def stride(self) -> int | None:
        """Ranks from one member to the next; None where members are not evenly spaced."""
        pairs = zip(self.factors, self.factors[1:], strict=False)
        even = all(inner[0] * inner[1] == outer[1] for inner, outer in pairs)
        return self.factors[0][1] if even else None

    @property
    def reach(self) -> int:
        """Ranks from the first to the last member of a group, both counted."""
        return sum((size - 1) * stride for size, stride in self.factors) + 1

    def offsets(self) -> IntArray:
        """Members of a group relative to its first, ascending, shape (size,)."""
        out = np.zeros(1, dtype=np.int64)
        for size, stride in self.factors:
            out = (np.arange(size, dtype=np.int64)[:, None] * stride + out[None, :]).reshape(-1)
        return out

    def positions(self) -> IntArray:
        """Place of every rank in its group, from 0, shape (ranks,)."""
        ranks, out, inner = np.arange(self.ranks, dtype=np.int64), np.zeros(self.ranks, dtype=np.int64), 1
        for size, stride in self.factors:
            out += ranks // stride % size * inner
            inner *= size
        return out

    def firsts(self) -> IntArray:
        """First member of every group, ascending, shape (count,)."""
        return np.flatnonzero(self.positions() == 0).astype(np.int64)

    def members(self) -> IntArray:
        """Ranks of every group, ascending, shape (count, size)."""
        return self.firsts()[:, None] + self.offsets()[None, :]

    def group_ids(self) -> IntArray:
        """Number of the group of every rank, shape (ranks,); groups count by their first members."""
        first = np.arange(self.ranks, dtype=np.int64) - self.offsets()[self.positions()]
        return np.searchsorted(self.firsts(), first).astype(np.int64)


def parse_order(text: str) -> tuple[str, ...]:
    """Parse `tp-cp-ep-dp-pp`: names of axes, neighbours first; those left out follow in their usual order.

    Raises:
        InputError: an unknown axis, or one given twice.
    """
    names = [part.strip().lower() for part in text[:200].replace(",", "-").split("-")]
    for name in names:
        if name not in AXES:
            close = nearest(name[:40], AXES, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            hint = f"{hint}order {'-'.join(AXES)}, neighbours first"
            raise InputError(f"unknown axis {name[:40]!r}", field="axis_order", hint=hint)
        if names.count(name) > 1:
            message = f"{name} is given {names.count(name)} times"
            raise InputError(message, field="axis_order", hint="give each axis once")
    return (*names, *(name for name in AXES if name not in names))


def axis_groups(degrees: Degrees, order: Sequence[str]) -> dict[str, AxisGroups]:
    """Return the groups of every axis that is used (more than one rank per group), the most talkative first.

    Raises:
        InputError: the pipelines of the experts would not be those of the other layers.
    """
    sizes = degrees.sizes()
    arrays = {name: np.array(size, dtype=np.int64) for name, size in sizes.items()}
    dense = {name: int(stride) for name, stride in grid_strides(order, arrays, DENSE_GRID).items()}
    expert = {name: int(stride) for name, stride in grid_strides(order, arrays, EXPERT_GRID).items()}
    routed = degrees.ep * degrees.etp > 1
    if routed and degrees.pp > 1 and dense["pp"] != expert["pp"]:
        raise InputError(
            f"the pipeline stages of the experts would be {expert['pp']} ranks apart, those of the other layers "
            f"{dense['pp']}",
            field="axis_order",
            hint="put pp last, or choose EP x ETP so that as many ranks stand before pp in both grids",
        )
    wanted = {"tp": dense, "cp": dense, "dp": dense, "pp": dense}
    if routed:
        wanted = {"tp": dense, "etp": expert, "cp": dense, "ep": expert, "dp": dense, "edp": expert, "pp": dense}
    found: dict[str, AxisGroups] = {}
    for name, grid in wanted.items():
        if sizes[name] > 1:
            found[name] = AxisGroups(name, ((sizes[name], grid[name]),), degrees.ranks)
        if name == "dp" and degrees.dp > 1 and degrees.cp > 1:
            pair = sorted(((degrees.dp, dense["dp"]), (degrees.cp, dense["cp"])), key=lambda factor: factor[1])
            found["dp_cp"] = AxisGroups("dp_cp", tuple(pair), degrees.ranks)
    return found


def megatron_accepts(degrees: Degrees, order: Sequence[str]) -> bool:
    """Whether Megatron-LM takes the order: with stages not outermost it wants as many expert-DP as DP ranks, and in a
    dense model counts CP ranks among the former (megatron/core/parallel_state.py, `initialize_model_parallel`)."""
    sizes = degrees.sizes()
    routed = degrees.ep * degrees.etp > 1
    expert_dp = degrees.edp if routed else degrees.cp * degrees.dp
    used = [name for name in order if sizes[name] > 1 or (name == "dp" and routed and degrees.edp > 1)]
    return degrees.pp == 1 or used[-1] == "pp" or expert_dp == degrees.dp


def coordinates(degrees: Degrees, order: Sequence[str]) -> dict[str, IntArray]:
    """Return the coordinate of every rank along each axis, shape (ranks,)."""
    sizes = degrees.sizes()
    arrays = {name: np.array(size, dtype=np.int64) for name, size in sizes.items()}
    apart = {**grid_strides(order, arrays, EXPERT_GRID), **grid_strides(order, arrays, DENSE_GRID)}
    ranks = np.arange(degrees.ranks, dtype=np.int64)
    return {name: ranks // apart[name] % sizes[name] for name in ("tp", "cp", "ep", "etp", "dp", "edp", "pp")}
