"""How much of a transfer stays visible beside the computation that may hide it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray

COMMUNICATION_SMS = 16
"""SMs that a collective occupies while it runs: one per channel, and NCCL opens 16 on A100 and H100 nodes with networks
("16 coll channels" in its INFO log; NCCL source, src/graph/search.cc)."""


def contention(hidden_s: FloatArray, sm_count: int) -> FloatArray:
    """Time by which a hidden transfer slows the computation above it: the share of the SMs that it occupies [s]."""
    return hidden_s * min(COMMUNICATION_SMS / sm_count, 1.0)


def exposed_beside(communication_s: FloatArray, compute_s: FloatArray) -> FloatArray:
    """Time of a transfer that sticks out beside an independent computation [s]."""
    return np.maximum(communication_s - compute_s, 0.0)


def exposed_pipelined(communication_s: FloatArray, compute_s: FloatArray, pieces: npt.ArrayLike) -> FloatArray:
    """Time that a collective adds to the GEMM it is pipelined with, cut into `pieces` [s].

    The first (or last) piece has nothing to hide behind; of the others the longer of transfer and GEMM counts
    (Wang et al. 2023, "Overlap communication with dependent computation via decomposition", ASPLOS, section 3).
    """
    pieces = np.maximum(np.asarray(pieces, dtype=np.float64), 1.0)
    rest = (pieces - 1) / pieces
    return communication_s / pieces + np.maximum(communication_s - compute_s, 0.0) * rest


def exposed_buckets(communication_s: FloatArray, compute_s: FloatArray, bucket_share: FloatArray) -> FloatArray:
    """Time of a bucketed reduction or gathering that sticks out of the pass it runs under [s].

    The last bucket starts when the pass has ended (and the first gather before it begins), so its share is always
    visible.
    """
    tail = communication_s * np.minimum(bucket_share, 1.0)
    return np.maximum(communication_s - compute_s, tail)
