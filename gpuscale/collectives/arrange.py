"""From what a user says of a group to its GPUs: which level is meant, how many take part, how far apart."""

from __future__ import annotations

from gpuscale.collectives.concurrency import shared_by
from gpuscale.collectives.estimate import Siblings
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec, LevelSpec


def arranged(
    cluster: ClusterSpec, op: str, level: str | None, gpus: int | None, siblings: Siblings
) -> tuple[ClusterSpec, LevelSpec, tuple[int, int]]:
    """Return the cluster as the groups share it, the level that is meant, and size and stride of the group.

    Raises:
        InputError: a level that is not there, fewer than two GPUs, or more than the level has.
    """
    if siblings.stride is not None and not 1 <= siblings.stride <= cluster.gpus:
        raise InputError(
            f"{siblings.stride} is out of range", place="--group-stride", hint=f"give 1 to {cluster.gpus:,}"
        )
    if op == "sendrecv" and gpus in {None, 2}:
        chosen, count = _scope(cluster, level, 2)
        stride = siblings.stride or _unit_below(cluster, chosen)
        if siblings.stride is not None and level is None:
            chosen = cluster.level_of_group(count, stride)
    else:
        stride = siblings.stride or 1
        chosen, count = _scope(cluster, level, gpus, stride)
    if siblings.concurrent is None:
        return cluster, chosen, (count, stride)
    return shared_by(cluster, count, stride, siblings.concurrent), chosen, (count, stride)


def _scope(cluster: ClusterSpec, level: str | None, gpus: int | None, stride: int = 1) -> tuple[LevelSpec, int]:
    """Return the level and the number of GPUs that the user means."""
    if level is not None:
        chosen = cluster.levels[cluster.level_index(level)]
    elif gpus is None:
        chosen = cluster.levels[-1]
    else:
        chosen = cluster.level_of_group(gpus, stride)
    count = chosen.gpus // stride if gpus is None else gpus
    if count < 2:
        raise InputError(f"{count} GPUs exchange nothing", place="--gpus", hint="give at least 2")
    if (count - 1) * stride + 1 > chosen.gpus:
        wider = next((one.name for one in cluster.levels if one.gpus // stride >= count), None)
        hint = f"`--level {wider}` holds them" if wider else f"{cluster.name} has {cluster.gpus:,} in all"
        apart = f", {stride:,} apart," if stride > 1 else ""
        raise InputError(
            f"{count:,} GPUs{apart} do not fit under one {chosen.name} of {cluster.name}, which has {chosen.gpus:,}",
            place="--gpus",
            hint=hint,
        )
    return chosen, count


def _unit_below(cluster: ClusterSpec, level: LevelSpec) -> int:
    index = cluster.levels.index(level)
    return cluster.levels[index - 1].gpus if index else 1
