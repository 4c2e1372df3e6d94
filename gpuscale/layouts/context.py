"""Context parallelism: how the ranks that share a sequence bring queries together with all keys and values.

| kind | frameworks | each rank works on | what travels |
|---|---|---|---|
| `p2p` | Megatron-LM `--cp-comm-type p2p`, nanotron | its queries, all heads, one block of keys after the other | keys and values around a ring, under the attention of the previous block (Liu et al. 2023, Ring Attention, arXiv 2310.01889) |
| `all_gather` | Megatron-LM `all_gather`, torchtitan | its queries, all heads, all keys | keys and values gathered before attention, their gradients reduced and scattered after it; nothing hidden |
| `a2a` | Megatron-LM `a2a`, DeepSpeed-Ulysses | all queries, 1/cp of the heads | queries, keys and values to the owners of their heads, the output back (Jacobs et al. 2023, arXiv 2309.14509) |
| `a2a+p2p` | Megatron-LM `a2a+p2p` | both: heads are split inside a node, a ring joins the nodes | as `a2a` inside the node, as `p2p` between nodes |
"""  # noqa: E501 - a table

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import IntArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.specs.job import JobSpec

CP_COMMS = ("p2p", "all_gather", "a2a", "a2a+p2p")
"""Kinds of exchange between context-parallel ranks, by their names in Megatron-LM."""


@dataclass(frozen=True)
class ContextSplit:
    """What one context-parallel rank works on, each of shape (N,).

    Attributes:
        heads: ranks among which the heads are split.
        queries: ranks among which the queries are split; heads * queries = cp.
        blocks: blocks of keys that are worked on one after the other.
    """

    heads: IntArray
    queries: IntArray
    blocks: IntArray


def context_split(c: Candidates, job: JobSpec, kind: str | None = None) -> ContextSplit:
    """Return how `job.runtime.cp_comm`, or another kind, splits attention over the ranks of each candidate."""
    one = np.ones_like(c.cp)
    kind = kind or job.runtime.cp_comm
    if kind == "all_gather":
        return ContextSplit(one, c.cp, one)
    if kind == "a2a":
        return ContextSplit(c.cp, one, one)
    inside = one if kind == "p2p" else np.gcd(c.cp, np.maximum(job.cluster.node_gpus // c.tp, 1))
    ring = c.cp // inside
    return ContextSplit(inside, ring, ring)


def split_alike(c: Candidates, job: JobSpec, kind: str) -> npt.NDArray[np.bool_]:
    """Mark candidates whose sequences another kind splits in the same way.

    `a2a+p2p` is `a2a` where one node has all ranks of a sequence, and `p2p` where it has one of them.
    """
    own, other = context_split(c, job), context_split(c, job, kind)
    return (c.cp > 1) & (own.heads == other.heads) & (own.queries == other.queries) & (own.blocks == other.blocks)
