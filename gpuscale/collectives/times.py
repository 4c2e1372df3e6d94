"""Time of collectives as arrays of groups, for the step-time model and for whatever prices many at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.collectives.calibrated import Batch, Models, calibrated_time_s
from gpuscale.collectives.channels import check_channels
from gpuscale.collectives.groups import Groups, place
from gpuscale.collectives.ideal import level_terms
from gpuscale.collectives.kinds import kinds, spread
from gpuscale.collectives.network import network
from gpuscale.collectives.operations import OPERATIONS, operation_named
from gpuscale.collectives.realistic import routes
from gpuscale.collectives.terms import BLOCK, Block, Route, Slowest, fastest_s
from gpuscale.collectives.tuning import Tuning
from gpuscale.specs.cluster import ClusterSpec


def collective_time_s(
    cluster: ClusterSpec,
    operation: str,
    bytes_: ArrayLike,
    group_size: ArrayLike,
    stride: ArrayLike = 1,
    *,
    in_network_reduction: bool = True,
    ideal: bool = False,
    tuning: Tuning | None = None,
) -> FloatArray:
    """Return the time of one collective per group [s]; the arguments broadcast, a group of one takes 0 s.

    Args:
        cluster: the hierarchy of levels.
        operation: one of `operations.OPERATIONS`.
        bytes_: whole tensor of each group (gathered, pre-scatter); for alltoall the send buffer of one GPU.
        group_size: GPUs per group; for sendrecv those that send to their neighbours at the same time, 2 for a pair.
        stride: GPUs from one member to the next.
        in_network_reduction: use NVLS / SHARP at the levels that have it.
        ideal: the latency-free model of `ideal` instead of the NCCL-like one of `realistic`.
        tuning: how NCCL is run, as by nccl-tests; None: as part of a training step.

    Returns:
        Seconds, in the broadcast shape of `bytes_`, `group_size` and `stride`.

    Raises:
        InputError: unknown operation, a size or stride below 1, a group that reaches beyond the cluster, channels on
            GPUs whose own number of them is not known.
    """
    if operation not in OPERATIONS:
        operation = operation_named(operation)
    check_channels(cluster, tuning)
    data, size, step = np.broadcast_arrays(bytes_, group_size, stride)
    flat, strides = data.astype(np.float64).ravel(), step.ravel()
    found = kinds(size.ravel(), strides)
    groups = _placed(cluster, found.size, found.stride)
    if not (groups.size > 1).any() or not (flat > 0).any():
        return np.zeros(data.shape)
    asked = _Model(in_network_reduction, ideal, tuning)
    best = asked.time_s(cluster, operation, flat, groups, found.of)
    if cluster.calibration and not ideal:
        models = Models(asked.time_s, _Model(tuning=tuning).time_s)
        best = calibrated_time_s(cluster, operation, Batch(flat, spread(groups, found.of), strides, best), models)
    moves = (groups.size > 1)[found.of] & (flat > 0)
    return np.where(moves, best, 0.0).reshape(data.shape)


@dataclass(frozen=True)
class _Model:
    """What the models say without measurements, as it was asked for."""

    in_network_reduction: bool = True
    ideal: bool = False
    tuning: Tuning | None = None

    def time_s(
        self, cluster: ClusterSpec, operation: str, data: FloatArray, groups: Groups, of: IntArray | slice = slice(None)
    ) -> FloatArray:
        """Return the time of N collectives [s], (N,), over G kinds of groups, of which `of` says which each has."""
        floor, able = self._ways(cluster, operation, groups)
        found = np.empty(data.size)
        for start in range(0, data.size, BLOCK):
            here = slice(start, start + BLOCK)
            block = Block(data[here], here if isinstance(of, slice) else of[here])
            found[here] = block.once(floor)
            if able:
                np.maximum(found[here], fastest_s(able, block), out=found[here])
        return found

    def _ways(self, cluster: ClusterSpec, operation: str, groups: Groups) -> tuple[Slowest, list[Route]]:
        """Return what no algorithm is faster than, and the algorithms; the same ones for groups placed before."""
        known, key = _known(cluster), (self, operation, id(groups))
        kept = known.get(key)
        if kept is not None and kept[0] is groups:
            return kept[1], kept[2]
        adds = self.in_network_reduction
        imbalance = self.tuning.imbalance if self.tuning else 1.0
        floor = Slowest(level_terms(cluster, operation, groups, in_network_reduction=adds, imbalance=imbalance))
        able = []
        if not self.ideal:
            net = network(cluster, groups, in_network_reduction=adds, tuning=self.tuning)
            able = routes(net, operation)
        if groups.size.size <= KEPT_GROUPS:
            known[key] = groups, floor, able
        return floor, able


KEPT, KEPT_GROUPS = 200, 256
"""What a cluster keeps at hand of groups that were priced: so many entries, of sets of at most so many groups. A
search, and the validation of many runs, ask for the same groups again and again."""


def _known(cluster: ClusterSpec) -> dict[Any, Any]:
    """Return what a cluster keeps at hand; not part of what it is compared by."""
    known: dict[Any, Any] = vars(cluster).setdefault("_groups_priced", {})
    if len(known) > KEPT:
        known.clear()
    return known


def _placed(cluster: ClusterSpec, size: NDArray[Any], stride: NDArray[Any]) -> Groups:
    """Place groups, or find them where they were placed before."""
    if size.size > KEPT_GROUPS:
        return place(cluster, size, stride)
    known, key = _known(cluster), (size.dtype.char, size.tobytes(), stride.dtype.char, stride.tobytes())
    groups = known.get(key)
    if groups is None:
        groups = known[key] = place(cluster, size, stride)
    found: Groups = groups
    return found
