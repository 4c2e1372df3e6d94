"""The indexer of DeepSeek sparse attention: its projections, the scores of all earlier tokens, the choice of keys."""

from __future__ import annotations

from gpuscale.architecture.flops import average_keys
from gpuscale.architecture.operators import indexer_linears
from gpuscale.layouts.arrays import Candidates
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import AttentionSpec
from gpuscale.steptime.kernels import gemm_time_s
from gpuscale.steptime.parts import Part, gemm_breakdown, linear_times, stream

SCORE_BYTES = 8
"""Per score summed over heads: written and read once, in fp32 (top-k takes one pass)."""


def indexer_parts(attention: AttentionSpec, c: Candidates, job: JobSpec) -> list[Part]:
    """Price the indexer of one layer; nothing where the layer has none of its own.

    Scores are a matrix product of every head's queries with the shared key, reduced over heads as they are made
    (DeepSeek-V3.2 report, eq. 1). It is trained like the rest, so the backward pass takes two products. TP ranks
    that share the sequence split the queries.
    """
    indexer = attention.indexer
    if indexer is None or indexer.shared:
        return []
    rows = tokens(c, job) / c.sequence_split
    times = [linear_times(linear, rows, c, job) for linear in indexer_linears(job.model.hidden, attention)]
    keys = average_keys(job.sequence, None, "causal")
    gpu, precision = job.cluster.gpu, job.attention_precision
    scores = gemm_time_s(gpu, precision, rows * indexer.heads, keys, indexer.head_dim, 1, 0.0)
    choice = stream(job, rows * keys * SCORE_BYTES, 2)
    return [
        Part(
            gemm_breakdown(times, "forward", choice, attention=scores),
            gemm_breakdown(times, "backward", choice, attention=2 * scores),
            len(times) + 4,
        )
    ]
