"""Time of collectives as arrays of groups, for the step-time model and for whatever prices many at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.collectives.calibrated import Batch, Models, calibrated_time_s
from gpuscale.collectives.channels import check_channels
from gpuscale.collectives.groups import Floats, Groups, place
from gpuscale.collectives.ideal import level_terms
from gpuscale.collectives.kinds import kinds, spread
from gpuscale.collectives.network import network
from gpuscale.collectives.operations import OPERATIONS, operation_named
from gpuscale.collectives.realistic import routes
from gpuscale.collectives.terms import BLOCK, Block, Ints, Slowest, fastest_s
from gpuscale.collectives.tuning import Tuning
from gpuscale.records import record
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
) -> Floats:
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
    groups = place(cluster, found.size, found.stride)
    if not (groups.size > 1).any() or not (flat > 0).any():
        return np.zeros(data.shape)
    asked = _Model(in_network_reduction, ideal, tuning)
    best = asked.time_s(cluster, operation, flat, groups, found.of)
    if cluster.calibration and not ideal:
        models = Models(asked.time_s, _Model(tuning=tuning).time_s)
        best = calibrated_time_s(cluster, operation, Batch(flat, spread(groups, found.of), strides, best), models)
    moves = (groups.size > 1)[found.of] & (flat > 0)
    return np.where(moves, best, 0.0).reshape(data.shape)


@record
class _Model:
    """What the models say without measurements, as it was asked for."""

    in_network_reduction: bool = True
    ideal: bool = False
    tuning: Tuning | None = None

    def time_s(
        self, cluster: ClusterSpec, operation: str, data: Floats, groups: Groups, of: Ints | slice = slice(None)
    ) -> Floats:
        """Return the time of N collectives [s], (N,), over G kinds of groups, of which `of` says which each has."""
        adds = self.in_network_reduction
        imbalance = self.tuning.imbalance if self.tuning else 1.0
        floor = Slowest(level_terms(cluster, operation, groups, in_network_reduction=adds, imbalance=imbalance))
        able = []
        if not self.ideal:
            net = network(cluster, groups, in_network_reduction=adds, tuning=self.tuning)
            able = routes(net, operation)
        found = np.empty(data.size)
        for start in range(0, data.size, BLOCK):
            here = slice(start, start + BLOCK)
            block = Block(data[here], here if isinstance(of, slice) else of[here])
            found[here] = block.once(floor)
            if able:
                np.maximum(found[here], fastest_s(able, block), out=found[here])
        return found
