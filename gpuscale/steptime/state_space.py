"""State spaces in the place of attention: projections, convolution, recurrence in chunks, gated norm.

The recurrence runs as a chain of kernels, each of which reads its operands from memory and writes its result there,
with short matrix products, masks and decays between them that hide little of it: traffic and arithmetic add up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscale.architecture.parameters import state_space_linears
from gpuscale.arrays import FloatArray
from gpuscale.collectives import collective_time_s
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import strides
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import StateSpaceSpec
from gpuscale.steptime.components import Segment
from gpuscale.steptime.kernels import gemm_flops_per_s
from gpuscale.steptime.tensor_parallel import (
    ACT_BYTES,
    TensorParallelTime,
    gemm_breakdown,
    linear_times,
    stream,
    tp_block,
    tp_collectives,
)

FORWARD = {
    "mamba2": {"conv": 4, "value": 12, "key": 8, "state": 12, "score": 8, "kernels": 8},
    "gdn": {"conv": 4, "value": 18, "key": 22, "state": 4, "score": 12, "kernels": 11},
    "kda": {"conv": 4, "value": 18, "key": 34, "state": 4, "score": 12, "kernels": 13},
}
"""Bytes that the kernels of the forward pass move per token, and how many kernels there are.

`conv`: per channel of the convolution. `value`: per element of the heads' inputs and outputs. `key`: per element of the
B and C maps (delta nets: of queries and keys, one set per head). `state`: per element of the states kept at chunk
boundaries, width x state / chunk per token. `score`: per score inside a chunk, groups (delta nets: heads) x chunk per
token.

Added up over the operands of the training kernels: for Mamba-2 convolution, chunk states, passing of states, scores,
scan and gated norm (github.com/state-spaces/mamba, ops/triton/ssd_combined.py; scores and new states in fp32), for
delta nets convolution, norms of queries and keys, scores, triangular inverse, its two products, states, outputs and
gated norm (github.com/fla-org/flash-linear-attention, ops/gated_delta_rule and ops/kda, chunk.py).
"""

BACKWARD = {
    "mamba2": {"conv": 10, "value": 34, "key": 30, "state": 30, "score": 24, "kernels": 18},
    "gdn": {"conv": 6, "value": 50, "key": 40, "state": 10, "score": 20, "kernels": 22},
    "kda": {"conv": 6, "value": 50, "key": 64, "state": 10, "score": 20, "kernels": 26},
}
"""Backward pass of the same kernels, which recompute convolution (Mamba-2), states and products first."""

BACKWARD_ARITHMETIC = 3.5
"""Arithmetic backward over forward: two products for each one, and what is recomputed."""

ARITHMETIC_FRACTION = 0.13
"""Share of the rate of a large matrix product that the short products of a chunk reach. Measured for the chunk scan of
Mamba-2 on H200: 0.64 ms for 16384 tokens of 80 heads, 0.94 ms for 32768 tokens of 64 heads (64 wide, state 128, chunk
256), 43 and 69 GFLOPs (github.com/tile-ai/TileOPs, pull request 1608): 80 to 90 TFLOP/s beside its traffic."""


def state_space_segments(spec: StateSpaceSpec, c: Candidates, job: JobSpec, tp: TensorParallelTime) -> list[Segment]:
    """Time the state-space block of one layer: projections with their TP communication, and the recurrence."""
    linears = state_space_linears(job.model.hidden, spec)
    times = {linear.name: linear_times(linear, c, job) for linear in linears}
    first = [times[linear.name] for linear in linears if linear.split == "column"]
    tp_forward, tp_backward = tp_block(first, times["state_out"], c, job, tp)
    every = list(times.values())
    projections = Segment(
        gemm_breakdown(every, "forward", tp_comm=tp_forward),
        gemm_breakdown(every, "backward", tp_comm=tp_backward),
        len(linears),
        tp_collectives(c),
    )
    return [projections, _recurrence(spec, c, job)]


def _recurrence(spec: StateSpaceSpec, c: Candidates, job: JobSpec) -> Segment:
    """Convolution, recurrence and gated norm; under context parallelism on all tokens of 1/cp of the heads."""
    arithmetic_s = _chunk_flops(spec, c, job) / (ARITHMETIC_FRACTION * gemm_flops_per_s(job.cluster.gpu, "bf16"))
    exchange = _head_exchange_s(spec, c, job)
    forward_s = _traffic_s(spec, FORWARD[spec.kind], c, job) + arithmetic_s
    backward_s = _traffic_s(spec, BACKWARD[spec.kind], c, job) + BACKWARD_ARITHMETIC * arithmetic_s
    return Segment(
        {"elementwise": forward_s, "cp_comm": exchange},
        {"elementwise": backward_s, "cp_comm": exchange},
        FORWARD[spec.kind]["kernels"],
        2.0 * (c.cp > 1),
    )


def _traffic_s(spec: StateSpaceSpec, moved: Mapping[str, int], c: Candidates, job: JobSpec) -> FloatArray:
    heads, sets = _local_heads(spec, c)
    width, key = heads * spec.head_dim, sets * spec.state
    conv = width + 2 * np.maximum(spec.groups / c.tp, 1.0) * spec.state
    per_token = moved["conv"] * conv + moved["value"] * width + moved["key"] * key
    per_token = per_token + moved["state"] * width * spec.state / spec.chunk + moved["score"] * sets * spec.chunk
    return stream(job, tokens(c, job) * per_token, moved["kernels"])


def _local_heads(spec: StateSpaceSpec, c: Candidates) -> tuple[FloatArray, FloatArray]:
    """Heads of one rank, and sets of maps that its kernels work with: groups, or one per head in delta nets."""
    heads = spec.heads / c.tp
    return heads, np.maximum(spec.groups / c.tp, 1.0) if spec.kind == "mamba2" else heads


def _chunk_flops(spec: StateSpaceSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """FLOPs of the chunked algorithm: scores and their products inside a chunk, states in and out.

    Mamba-2: 2 Q N per group, Q P (half is masked) + 4 N P per head and token (Dao & Gu 2024, section 6). Delta nets:
    three products with keys, two with values inside the chunk, three with the state (Yang et al. 2024, section 3.3).
    """
    heads, sets = _local_heads(spec, c)
    state, dim, chunk = spec.state, spec.head_dim, spec.chunk
    if spec.kind == "mamba2":
        per_token = 2 * chunk * state * sets + (chunk * dim + 4 * state * dim) * heads
    else:
        per_token = (6 * chunk * state + 4 * chunk * dim + 6 * state * dim) * heads
    return np.asarray(tokens(c, job) * per_token, dtype=np.float64)


def _head_exchange_s(spec: StateSpaceSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """AllToAlls that give each context-parallel rank all tokens of its heads, and back (Megatron-LM
    `MambaContextParallel`)."""
    heads, _ = _local_heads(spec, c)
    into = (2 * heads * spec.head_dim + 2 * np.maximum(spec.groups / c.tp, 1.0) * spec.state) * ACT_BYTES
    out = heads * spec.head_dim * ACT_BYTES
    rows = tokens(c, job)
    there = collective_time_s(job.cluster, "alltoall", rows * into, c.cp, strides(c, job).cp)
    back = collective_time_s(job.cluster, "alltoall", rows * out, c.cp, strides(c, job).cp)
    return np.asarray(there + back, dtype=np.float64)
