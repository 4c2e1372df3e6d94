"""What context-parallel ranks send one another; the kinds are described in `gpuscale.layouts.context`."""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives import collective_time_s
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.context import ContextSplit, context_split
from gpuscale.layouts.order import strides
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import AttentionSpec
from gpuscale.steptime.overlap import contention, exposed_beside

BYTES = 2
"""Bytes of an element of queries, keys, values and of their gradients."""


def context_comm_s(
    attention: AttentionSpec, c: Candidates, job: JobSpec, block_forward_s: FloatArray, block_backward_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Visible time of what travels in the forward and in the backward pass of one layer, each (N,) [s].

    Args:
        block_forward_s, block_backward_s: attention over one block of keys, under which a ring passes on the next.
    """
    split = context_split(c, job)
    kv_heads = np.maximum(attention.kv_heads / c.tp, split.heads)  # fewer are copied
    kv_bytes = tokens(c, job) * kv_heads * (attention.head_dim + attention.value_head_dim) * BYTES
    if job.runtime.cp_comm == "all_gather":
        whole, step = kv_bytes * c.cp, strides(c, job).cp
        gather_s = collective_time_s(job.cluster, "allgather", whole, c.cp, step)
        return gather_s, gather_s + collective_time_s(job.cluster, "reducescatter", whole, c.cp, step)
    forward, backward = _ring(kv_bytes, split, c, job, block_forward_s, block_backward_s)
    if (split.heads > 1).any():
        exchange_s = _exchange_s(attention, kv_bytes, split, c, job)
        forward, backward = forward + exchange_s, backward + exchange_s
    return forward, backward


def _exchange_s(
    attention: AttentionSpec, kv_bytes: FloatArray, split: ContextSplit, c: Candidates, job: JobSpec
) -> FloatArray:
    """Queries, keys and values to the owners of their heads, the output back; backward the gradients the other way."""
    row, step = tokens(c, job) / c.tp * BYTES, strides(c, job).cp
    there = collective_time_s(job.cluster, "alltoall", row * attention.query_width + kv_bytes, split.heads, step)
    back = collective_time_s(job.cluster, "alltoall", row * attention.output_width, split.heads, step)
    return there + back


def _ring(
    kv_bytes: FloatArray,
    split: ContextSplit,
    c: Candidates,
    job: JobSpec,
    block_forward_s: FloatArray,
    block_backward_s: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Keys and values (backward: and their gradients) travel one rank further while the last block is worked on."""
    steps = split.blocks - 1
    pair, distance = np.minimum(split.blocks, 2), strides(c, job).cp * split.heads * np.maximum(steps, 1)
    hop = collective_time_s(job.cluster, "sendrecv", kv_bytes, pair, distance)
    hop_back = collective_time_s(job.cluster, "sendrecv", 2 * kv_bytes, pair, distance)
    sms = job.cluster.gpu.sm_count
    forward, backward = exposed_beside(hop, block_forward_s), exposed_beside(hop_back, block_backward_s)
    return steps * (forward + contention(hop - forward, sms)), steps * (backward + contention(hop_back - backward, sms))
