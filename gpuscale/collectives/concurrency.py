"""What a level carries when only some of its groups run at once.

Everywhere else all sibling groups run at the same time: every GPU under a level sends, and has its own link's share of
what the switches forward. With fewer groups the switches have fewer GPUs to serve, and a GPU that shares a network card
has it to itself as far as its neighbours are idle; a GPU's own links stay what they are, those of a torus among them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives.groups import INSIDE, place
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec, LevelSpec


def shared_by(cluster: ClusterSpec, gpus: int, stride: int, concurrent: int) -> ClusterSpec:
    """Return the cluster as `concurrent` groups of `gpus` GPUs, `stride` apart, see it when no other runs.

    The groups are neighbours: they fill an instance of a level before they spread over more.

    Raises:
        InputError: the groups have more GPUs than the cluster.
    """
    cluster = cluster.whole or cluster
    if concurrent < 1:
        raise InputError(f"{concurrent} is out of range", place="--concurrent", hint="give at least 1")
    if concurrent * gpus > cluster.gpus:
        raise InputError(
            f"{concurrent:,} groups of {gpus:,} GPUs at once need {concurrent * gpus:,}, "
            f"{cluster.name} has {cluster.gpus:,}",
            place="--concurrent",
            hint=f"give 1 to {max(cluster.gpus // gpus, 1):,}",
        )
    members = place(cluster, [gpus], [stride]).members[:, 0]
    busy = [min(level.gpus, int(held) * concurrent) for level, held in zip(cluster.levels, members, strict=True)]
    levels = []
    for level, active in zip(cluster.levels, busy, strict=True):
        cards = float(cards_reached(cluster, level, np.array(busy[0])))
        levels.append(
            replace(
                level,
                link_bytes_per_s=level.link_bytes_per_s * cards,
                nics_per_gpu=level.nics_per_gpu * cards,
                switch_bytes_per_s=level.switch_bytes_per_s * level.gpus / active,
                global_bytes_per_s=level.global_bytes_per_s * level.gpus / active,
            )
        )
    return replace(cluster, levels=tuple(levels), whole=cluster)


def cards_reached(cluster: ClusterSpec, level: LevelSpec, busy: FloatArray) -> FloatArray:
    """Return the network cards that a GPU has to itself over those of `level.nics_per_gpu`, shaped as `busy`, >= 1.

    Args:
        cluster: with all of its groups.
        level: where the cards are.
        busy: GPUs of the innermost level that send.
    """
    if level.fabric in INSIDE or level.nics_per_gpu >= 1:
        return np.ones_like(busy, dtype=np.float64)
    return np.minimum(cluster.node_gpus / busy, 1 / level.nics_per_gpu)
