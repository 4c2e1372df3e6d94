"""Machines: the GPUs under one operating system, which a launcher counts its slots by.

A machine is neither always the innermost level (GPUs linked in pairs, pairs joined by PCIe) nor always the last level
inside the box (trays of four GPUs in an NVLink rack of 72).
"""

from __future__ import annotations

from gpuscale.collectives.groups import INSIDE
from gpuscale.specs.cluster import ClusterSpec, LevelSpec


def host_gpus(cluster: ClusterSpec) -> int:
    """GPUs of one machine: those of a host, else of the last level inside the box."""
    gpus = max((level.gpus for level in _levels(cluster, inside=True)), default=cluster.node_gpus)
    return cluster.host.gpus if cluster.host and gpus % cluster.host.gpus == 0 else gpus


def cards_per_gpu(cluster: ClusterSpec) -> float:
    """Network cards of one GPU, below 1 where several share one; 1 in a box without a network."""
    network = _levels(cluster, inside=False)
    return network[0].nics_per_gpu if network else 1.0


def neighbour_stride(cluster: ClusterSpec, gpus: int) -> int:
    """GPUs from one of `gpus` neighbouring GPUs to the nearest one of another unit: of the largest unit inside the box
    that they do not fit in."""
    units = [level.gpus for level in _levels(cluster, inside=True) if level.gpus < gpus]
    return max(units, default=1)


def _levels(cluster: ClusterSpec, *, inside: bool) -> list[LevelSpec]:
    return [level for level in cluster.levels if (level.fabric in INSIDE) == inside]


__all__ = ["cards_per_gpu", "host_gpus", "neighbour_stride"]
