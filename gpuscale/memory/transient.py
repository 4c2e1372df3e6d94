"""What a step needs for a moment: loss, gradients of activations, a recomputed layer, the optimizer step.

Each moment is a peak of its own; a stage needs the largest of them besides what it holds anyway.
"""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, Candidates
from gpuscale.layouts.stages import FIRST, LAST, place_of_end, places
from gpuscale.memory.activations import GRADIENT_BYTES, hidden_bytes, tokens
from gpuscale.memory.sizes import LayerSizes
from gpuscale.memory.states import StageParameters, padded_vocabulary
from gpuscale.specs.job import JobSpec


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


def backward_bytes(c: Candidates, sizes: LayerSizes) -> FloatArray:
    """Gradients at the widest point of one layer's backward pass, and the layer itself when recomputed; (N,)."""
    total = sizes.cut.of(sizes.gradients)
    again = (c.recompute_layers > 0) | (c.recompute_modules & EVERY_OTHER_MATMUL > 0)
    if again.any():
        total = total + np.where(again, sizes.cut.of(sizes.whole), 0.0)
    if (c.zero == 3).any():  # the gradient of one layer, before it is scattered
        total = total + np.where(c.zero == 3, GRADIENT_BYTES * sizes.cut.of(sizes.largest), 0.0)
    return np.asarray(total, dtype=np.float64)


def end_of_backward_bytes(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """16-bit weight gradients that exist when a microbatch's activations are gone again; shape (P, N).

    The embedding's gradient is made last and is not fused into the fp32 buffer; nanotron adds up the gradients of all
    parameters only after the whole backward pass (optim/gradient_accumulator.py, backward).
    """
    if job.runtime.memory.transient_gradients:
        return GRADIENT_BYTES * parameters.whole
    rows = padded_vocabulary(job.model, job.vocab_multiple, c.tp) / c.tp
    here = (places(parameters.dense) == FIRST) | (c.pp == 1)
    return np.where(here, GRADIENT_BYTES * rows * job.model.hidden, 0.0)


def passes_bytes(
    c: Candidates, job: JobSpec, parameters: StageParameters, microbatch: FloatArray, sizes: LayerSizes
) -> tuple[FloatArray, FloatArray]:
    """What forward and backward pass need besides saved activations: (loss, anything else beyond it), each (P, N).

    Args:
        microbatch: activations of one microbatch on each stage.
    """
    last = (places(parameters.dense) == place_of_end(c, LAST)) | (c.pp == 1)
    loss = np.where(last, loss_bytes(c, job), 0.0)
    other = np.maximum(backward_bytes(c, sizes), end_of_backward_bytes(c, job, parameters) - microbatch)
    return loss, np.maximum(other - loss, 0.0)


def optimizer_step_bytes(c: Candidates, job: JobSpec, parameters: StageParameters) -> FloatArray:
    """What the optimizer step needs besides the states, shape (P, N), or one 0 where that is nothing; see
    `MemoryProfile`."""
    profile = job.runtime.memory
    if job.offload.optimizer or not (profile.step_whole_bytes or profile.step_shard_bytes):
        return np.zeros(())
    sharded = (c.zero >= 1) & (c.shard > 1)
    whole = profile.step_whole_bytes * parameters.whole
    shard = profile.step_shard_bytes * parameters.spread(np.ones(1, dtype=bool))
    return np.where(sharded, whole + shard, 0.0)
