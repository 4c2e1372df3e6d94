"""AllToAll in which one GPU of a group has more to send or to receive than the others.

The imbalance f is the bytes of the busiest GPU over the mean of its group; every group has one such GPU. Its own links
carry f times as much, a network card that c GPUs share (c - 1 + f) / c times. Switches that are narrower than the links
carry (m - 1 + f) / m times as much from the unit that it is in, of m GPUs of the group: from its leaf into the spine.
"""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives.groups import Groups
from gpuscale.errors import InputError
from gpuscale.specs.cluster import ClusterSpec


def busiest_factors(cluster: ClusterSpec, groups: Groups, imbalance: float) -> FloatArray:
    """Return by how much each level takes longer than with even messages, (L, G).

    Raises:
        InputError: an imbalance below 1, or not finite.
    """
    if not 1.0 <= imbalance < np.inf:
        raise InputError(
            f"{imbalance:g} is out of range",
            place="--imbalance",
            hint="it is the busiest GPU's bytes over the mean: 1 where all are even",
        )
    egress = np.array([[level.egress_bytes_per_s / level.link_bytes_per_s] for level in cluster.levels])
    cards = np.array([[max(1.0, 1.0 / level.nics_per_gpu)] for level in cluster.levels])
    own = (cards - 1 + imbalance) / cards
    shared = (groups.inner - 1 + imbalance) / groups.inner
    return np.maximum(own * np.minimum(egress, 1.0), shared)
