"""What a step needs for a moment: loss, gradients of activations, a recomputed layer, the optimizer step.

Each moment is a peak of its own; a stage needs the largest of them besides what it holds anyway.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, unique_rows
from gpuscale.candidates.stages import FIRST, LAST, place_of_end
from gpuscale.memory.activations import (
    LAYER_KEY,
    hidden_bytes,
    recomputed_layer_bytes,
    routed_tokens,
    tokens,
)
from gpuscale.memory.states import StageParameters, largest_layer, padded_vocabulary
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec

FloatArray = npt.NDArray[np.float64]

GRADIENT_BYTES = 2
"""Gradients of activations, and of weights before they are added up, have 16 bits."""


def loss_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Loss and LM head of one microbatch at their peak, shape (N,).

    Either the cross entropy (`MemoryProfile.loss_bytes` per logit), or the backward pass of the LM head: gradient of
    the logits, weight gradient, gradient of the hidden state before and after it is scattered over TP.
    """
    rows = padded_vocabulary(job.model, job.vocab_multiple, c.tp) / c.tp
    logits = tokens(c, job) * rows
    per_logit = job.runtime.memory.loss_bytes
    gradient = GRADIENT_BYTES * (per_logit > 0) * logits  # without logits the product is fused into the loss, by chunks
    head = gradient + GRADIENT_BYTES * rows * job.model.hidden + 2 * hidden_bytes(c, job)
    return np.asarray(np.maximum((1 + job.model.mtp_depth) * logits * per_logit, head), dtype=np.float64)


def backward_bytes(c: Candidates, job: JobSpec) -> FloatArray:
    """Gradients at the widest point of one layer's backward pass, and the layer itself when recomputed; (N,)."""
    rows, back = unique_rows(c, LAYER_KEY)
    widest = np.zeros(len(rows))
    for kind in job.model.trained_kinds:
        widest = np.maximum(widest, _feed_forward_gradients(kind, rows, job))
        if kind.attention is not None and job.runtime.attention == "unfused":
            scores = tokens(rows, job) * (job.sequence / rows.cp) * kind.attention.heads / rows.tp
            widest = np.maximum(widest, 2 * GRADIENT_BYTES * scores)
    weights = np.where(c.zero == 3, GRADIENT_BYTES * largest_layer(c, job), 0.0)  # of one layer, before it is scattered
    return (widest + hidden_bytes(rows, job))[back] + recomputed_layer_bytes(c, job) + weights


def _feed_forward_gradients(kind: LayerSpec, c: Candidates, job: JobSpec) -> FloatArray:
    """Gradients of the activation function's inputs; eager gating holds those of each of its operations."""
    eager = 2 if "activation" in job.runtime.eager else 0
    if kind.mlp is not None:
        matrices = kind.mlp.input_matrices + (eager if kind.mlp.gated else 0)
        return np.asarray(tokens(c, job) * (GRADIENT_BYTES * matrices) * kind.mlp.ffn / c.tp, dtype=np.float64)
    if kind.moe is not None:
        width = kind.moe.input_matrices * kind.moe.ffn / c.etp + kind.moe.expert_width(job.model.hidden)
        return np.asarray(routed_tokens(kind.moe, c, job) * GRADIENT_BYTES * width, dtype=np.float64)
    return np.zeros(len(c))


def end_of_backward_bytes(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """16-bit weight gradients that exist when a microbatch's activations are gone again; shape (N, P).

    The embedding's gradient is made last and is not fused into the fp32 buffer; nanotron adds up the gradients of all
    parameters only after the whole backward pass (optim/gradient_accumulator.py, backward).
    """
    if job.runtime.memory.transient_gradients:
        return GRADIENT_BYTES * (parameters.dense + parameters.expert)
    out = np.zeros_like(parameters.dense)
    rows = padded_vocabulary(job.model, job.vocab_multiple, c.tp) / c.tp
    out[:, FIRST] = GRADIENT_BYTES * rows * job.model.hidden
    out[c.pp == 1] = out[c.pp == 1, FIRST][:, None]
    return out


def passes_bytes(
    c: Candidates, job: JobSpec, parameters: StageParameters, microbatch: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What forward and backward pass need besides saved activations: (loss, anything else beyond it), each (N, P).

    Args:
        microbatch: activations of one microbatch on each stage.
    """
    backward = backward_bytes(c, job)[:, None]
    last = np.zeros(microbatch.shape, dtype=bool)
    last[np.arange(len(c)), place_of_end(c, LAST)] = True
    last |= (c.pp == 1)[:, None]
    loss = np.where(last, loss_bytes(c, job)[:, None], 0.0)
    other = np.maximum(backward, end_of_backward_bytes(c, job, parameters) - microbatch)
    return loss, np.maximum(other - loss, 0.0)


def optimizer_step_bytes(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """What the optimizer step needs besides the states, shape (N, P); see `MemoryProfile`."""
    profile = job.runtime.memory
    if job.offload.optimizer or not (profile.step_whole_bytes or profile.step_shard_bytes):
        return np.zeros_like(parameters.dense)
    sharded = ((c.zero >= 1) & (c.shard > 1))[:, None]
    whole = profile.step_whole_bytes * (parameters.dense + parameters.expert)
    shard = profile.step_shard_bytes * parameters.spread(np.ones_like(sharded))
    return np.where(sharded, whole + shard, 0.0)
