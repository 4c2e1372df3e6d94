"""Idle time of pipeline schedules.

While a pipeline fills and drains, a stage waits for the others. 1F1B and GPipe wait for the whole forward and backward
pass of one microbatch on each of them; zero-bubble schedules fill part of the wait with weight gradients, which no
other stage needs (Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241; F, B, W: forward pass, input
gradient, weight gradient of one microbatch on one stage, p stages):

| schedule | idle | source |
|---|---|---|
| 1F1B, GPipe | (p-1) (F + B + W) | Narayanan et al. 2021, section 2.2.1 |
| interleaved, v chunks | (p-1) (F + B + W) / v | section 2.2.2 |
| ZB-H1 | (p-1) (F + B - W) | Qi et al. 2024, table 1 |
| ZB-2P (ZB-H2) | (p-1) (F + B - 2W) | table 1 |
| ZB-V | as ZB-H2, at the memory of 1F1B | section 6 |
| DualPipe | (p/2 - 1) (F&B + (B + W) - 3W) | DeepSeek-V3, arXiv 2412.19437, table 2; F&B <= F + B + W |

Stages may be uneven: (p-1) x is the sum over the stages other than the slowest.
"""

from __future__ import annotations

import numpy as np

from gpuscale.architecture.operators import dense_linears, expert_linears
from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import DUALPIPE, GPIPE, ONE_F_ONE_B, ZB_2P, ZB_H1, ZB_V, Candidates, unique_rows
from gpuscale.memory.activations import LAYER_KEY, routed_tokens, tokens
from gpuscale.memory.states import padded_vocabulary
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec
from gpuscale.steptime.kernels import gemm_time_s
from gpuscale.steptime.parts import linear_times


def bubble_s(c: Candidates, job: JobSpec, others_s: FloatArray, backward_share: FloatArray) -> FloatArray:
    """Idle time of the slowest stage per step, shape (N,) [s].

    Args:
        others_s: forward and backward pass of one microbatch on all other stages together.
        backward_share: backward pass, with both gradients, over forward and backward pass together.
    """
    plain = np.where(c.pp > 1, others_s / c.vpp.astype(np.float64), 0.0)
    if not c.schedule.any():
        return plain
    weights_s = weight_gradients_s(c, job) * (c.pp - 1) / c.pp
    pairs = np.maximum(c.pp / 2 - 1, 0.0) / np.maximum(c.pp - 1, 1)
    by_code = {
        ONE_F_ONE_B: plain,
        GPIPE: others_s,
        ZB_H1: others_s - 2 * weights_s,
        ZB_2P: others_s - 3 * weights_s,
        ZB_V: others_s - 3 * weights_s,
        DUALPIPE: pairs * (others_s * (1 + backward_share) - 3 * weights_s),
    }
    idle = np.choose(c.schedule, [by_code[code] for code in range(len(by_code))])
    return np.where(c.pp > 1, np.maximum(idle, 0.0), 0.0)


def weight_gradients_s(c: Candidates, job: JobSpec) -> FloatArray:
    """Weight gradients of one microbatch of the whole model, LM head included, shape (N,) [s]."""
    rows, back = unique_rows(c, LAYER_KEY)
    model = job.model
    total = np.zeros(len(rows))
    for kind, count in zip(model.trained_kinds, model.trained_counts, strict=True):
        total = total + count * _layer_weight_gradients_s(kind, rows, job)
    vocabulary = padded_vocabulary(model, job.vocab_multiple, rows.tp) / rows.tp
    head = gemm_time_s(job.cluster.gpu, job.attention_precision, model.hidden, vocabulary, tokens(rows, job), 1, 8)
    return np.asarray((total + (1 + model.mtp_depth) * head)[back], dtype=np.float64)


def _layer_weight_gradients_s(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    hidden = job.model.hidden
    rows = tokens(c, job)
    total = np.zeros(len(c))
    for linear in dense_linears(hidden, kind):
        local = rows / c.sequence_split if linear.split == "replicated" else rows
        total = total + linear_times(linear, local, c, job).wgrad
    if kind.moe is not None:
        experts = kind.moe.experts // c.ep
        per_expert = routed_tokens(kind.moe, c, job) / experts
        for linear in expert_linears(hidden, kind.moe):
            total = total + linear_times(linear, per_expert, c, job, experts).wgrad
    return np.asarray(total, dtype=np.float64)
