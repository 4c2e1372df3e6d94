"""Buffers in which ranks receive the tokens of experts, outside of PyTorch's allocator.

HybridEP takes them for the worst case, that all tokens of its group go to one expert: tokens per rank times ranks, of
the width that experts take, with an fp32 probability for each expert of the NVLink domain and one scale per 128
elements, which it holds also where tokens travel in 16 bits. Inside one domain dispatch and combination share them;
across several each has its own, and for every other domain there are three buffers of a rank's tokens more: what
arrives in the dispatch, what is summed before it is sent back, and what arrives of that (deepseek-ai/DeepEP, branch
hybrid-ep, csrc/hybrid_ep/buffer/intranode.cu and internode_doca.cu: max_num_of_tokens, allocate_dispatch_buffers,
allocate_combine_buffers). Megatron-LM has one set for all layers, for the tokens of a microbatch
(core/transformer/moe/fused_a2a.py: init_hybrid_ep_buffer).
"""

from __future__ import annotations

import functools

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives.alltoall import units
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import strides
from gpuscale.memory.activations import tokens
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import MoeSpec

ELEMENT_BYTES, PROBABILITY_BYTES, SCALE_BYTES, SCALED_ELEMENTS = 2, 4, 4, 128
"""Per element, per probability, per scale, and the elements that share one."""

ACROSS = 3
"""Buffers of a rank's own tokens for every other NVLink domain."""


def exchange_buffer_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Buffers of HybridEP on one GPU, shape (N,) [bytes]; those of NCCL and DeepEP do not grow with a microbatch."""
    if job.runtime.dispatcher != "hybridep":
        return np.zeros(())
    found = (_buffer_bytes(kind.moe, c, job) for kind in job.model.trained_kinds if kind.moe is not None)
    return np.asarray(functools.reduce(np.maximum, found, np.zeros(())), dtype=np.float64)


def _buffer_bytes(moe: MoeSpec, c: Candidates, job: JobSpec) -> FloatArray:
    own, width = tokens(c, job) / c.sequence_split, moe.expert_width(job.model.hidden)
    inside, domains = units(job.cluster, c.ep, strides(c, job).ep)
    row = ELEMENT_BYTES * width + PROBABILITY_BYTES * inside * (moe.experts // c.ep)
    scales = SCALE_BYTES * (width // SCALED_ELEMENTS)
    received = own * c.ep * (row * np.where(domains > 1, 2, 1) + scales)
    sent = own * (domains - 1) * (ACROSS * row + scales)
    return np.where(c.ep > 1, received + sent, 0.0)
