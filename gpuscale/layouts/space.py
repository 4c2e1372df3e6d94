"""Enumeration of the search space, from coarse to fine, so that a rule cuts a whole branch at once: five tables, each
the legal part of the one before, crossed with more axes.

shapes (tp, pp, cp, dp) -> layouts (+ sp, vpp, ep, etp) -> sharded (+ ZeRO stage and shard size) -> microbatched (+
microbatch) -> recomputed (+ recomputation)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpuscale.arrays import BoolArray, IndexArray, IntArray
from gpuscale.layouts.arrays import (
    DUALPIPE,
    LAYERNORM,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    ONE_F_ONE_B,
    ZB_V,
    Candidates,
    concatenate,
)
from gpuscale.layouts.pins import Pins, Recompute
from gpuscale.layouts.ranks import split_alike
from gpuscale.layouts.stages import splits_evenly_enough
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import ModelSpec

MAX_MICRO_BATCH_SIZE = 64
"""Largest microbatch tried; beyond it GEMMs are long saturated and only memory grows."""


def odd_factor(number: int) -> int:
    """Return the largest odd divisor of a positive integer."""
    return number // (number & -number)


def divisors(number: int) -> IntArray:
    """Return all divisors, ascending."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return np.array(sorted({*small, *(number // value for value in small)}), dtype=np.int64)


def _cofactors(number: int, factors: IntArray) -> tuple[IndexArray, IntArray]:
    """For each factor all divisors of what is left of the number: index of the factor, and the divisor."""
    values = divisors(number)
    which, column = np.nonzero((number // factors)[:, None] % values == 0)
    return which, values[column]


def shapes(job: JobSpec, pins: Pins) -> Candidates:
    """All (tp, pp, cp, dp) whose product is the number of GPUs; the other fields are at their defaults."""
    values = divisors(job.gpus)
    which, pp = _cofactors(job.gpus, values)
    tp = values[which]
    which, cp = _cofactors(job.gpus, tp * pp)
    tp, pp = tp[which], pp[which]
    dp = job.gpus // (tp * pp * cp)
    keep = pins.allows("tp", tp) & pins.allows("pp", pp) & pins.allows("cp", cp) & pins.allows("dp", dp)
    tp, pp, cp, dp = tp[keep], pp[keep], cp[keep], dp[keep]
    one, zero = np.ones_like(tp), np.zeros_like(tp)
    table = Candidates(
        tp=tp, sp=zero, pp=pp, vpp=one, cp=cp, ep=one, etp=one, dp=dp, zero=zero, shard=one,
        micro_batch_size=one, num_microbatches=one, recompute_modules=zero, recompute_layers=zero,
    )  # fmt: skip
    for kind in pins.cp_elsewhere:
        table = table.take(~split_alike(table, job, kind))
    return table


def layouts(job: JobSpec, pins: Pins, table: Candidates) -> Candidates:
    """Cross the legal shapes with sequence parallelism, virtual stages, expert and expert-tensor parallelism."""
    table = _cross(table, pins, "sp", np.array([0, 1]))
    table = table.take((table.sp == 0) | (table.tp > 1))
    table = _cross(table, pins, "vpp", np.arange(1, max(2, job.model.layers + 1)))
    table = table.take(_interleaving_worth_trying(job.model, table))
    if pins.schedule != ONE_F_ONE_B:  # rows that a schedule does not take are left out, those without a pipeline too
        table = replace(table, schedule=np.full_like(table.pp, pins.schedule))
        odd = (table.schedule == DUALPIPE) & (table.pp % 2 != 0)  # two ranks share the stages of both ends
        table = table.take((table.pp > 1) & ~wrong_chunks(table) & ~odd)
    experts = max((kind.moe.experts for kind in job.model.kinds if kind.moe is not None), default=1)
    table = _cross(table, pins, "ep", divisors(experts))
    if job.model.is_moe:
        table = concatenate([table, replace(table, etp=table.tp).take(table.tp > 1)])
    return table.take(pins.allows("etp", table.etp))


def _interleaving_worth_trying(model: ModelSpec, table: Candidates) -> BoolArray:
    """Virtual stages: any count that divides the layers (with or without embedding and head) or a power of two."""
    layers, chunks = model.layers, table.pp * table.vpp
    with_ends = layers + np.arange(3)[:, None]  # Megatron-LM's --account-for-embedding-in-pipeline-split, ...-loss-...
    even, power_of_two = (with_ends % chunks == 0).any(axis=0), (table.vpp & (table.vpp - 1)) == 0
    fits = splits_evenly_enough(layers, chunks) & (chunks <= layers + 2)
    return (table.vpp == 1) | ((table.pp > 1) & (even | power_of_two) & fits)


def wrong_chunks(c: Candidates) -> BoolArray:
    """Mark rows whose schedule does not take their model chunks per rank. ZB-V has two, which go down the ranks and
    back up (Qi et al. 2024, section 6); DualPipe keeps one of each direction, GPipe and ZB-H one. Only 1F1B is
    interleaved."""
    wanted = np.where(c.schedule == ZB_V, 2, 1)
    return (c.schedule != ONE_F_ONE_B) & (c.pp > 1) & (c.vpp != wanted)


def dualpipe_microbatches(c: Candidates) -> BoolArray:
    """Mark rows of DualPipe with too few microbatches: both ends feed half of them."""
    return (c.schedule == DUALPIPE) & ((c.num_microbatches % 2 != 0) | (c.num_microbatches < 2 * c.pp))


def sharded(job: JobSpec, pins: Pins, table: Candidates) -> Candidates:
    """Try for each layout ZeRO 0; 1, 2, 3 over all data-parallel ranks; 3 inside one network level (HSDP): `zero` and
    `shard` have the axes (choices, 1, rows). On one rank ZeRO shards nothing, and is left to who states a layout, or to
    the framework (`zero_alone`)."""
    full = table.dp * table.cp
    levels = [level.gpus // table.tp for level in job.cluster.levels[:-1]]
    shard = np.stack([np.ones_like(full), full, full, full, *levels])[:, None]
    zero = np.array([0, 1, 2, 3, *[3] * len(levels)])[:, None, None]
    hybrid = (np.arange(len(zero)) > 3)[:, None, None]
    inside = (shard > 1) & (shard < full) & (full % np.maximum(shard, 1) == 0)
    alone = job.runtime.zero_stage * job.runtime.zero_alone
    offered = np.where(hybrid, inside, (zero == alone) | (full > 1))
    allowed = pins.allows("zero", zero) & pins.allows("shard", shard)
    return replace(table, zero=zero, shard=shard, legal=offered & allowed)


def without_zero(rows: Candidates) -> Candidates:
    """Rows for what does not depend on the choice of ZeRO."""
    return replace(rows, zero=np.zeros(1, dtype=np.int64), shard=np.ones(1, dtype=np.int64))


def microbatched(job: JobSpec, pins: Pins, table: Candidates) -> Candidates:
    """Cross rows with the microbatch."""
    sizes = micro_batch_sizes(job, pins)
    rows = table.take(np.repeat(np.arange(len(table)), len(sizes)))
    micro = np.tile(sizes, len(table))
    return replace(rows, micro_batch_size=micro, num_microbatches=job.global_batch_size // (rows.dp * micro))


def micro_batch_sizes(job: JobSpec, pins: Pins) -> IntArray:
    """The divisors of the global batch up to `MAX_MICRO_BATCH_SIZE`; what is pinned by number is tried whatever it is,
    so that a rule says what is wrong with it."""
    sizes = divisors(job.global_batch_size)
    pin = pins.degrees.get("micro_batch_size")
    named = {low for low, high in (pin.ranges if pin else ()) if low == high and low >= 1}
    sizes = np.array(sorted({*sizes[sizes <= MAX_MICRO_BATCH_SIZE].tolist(), *named}), dtype=np.int64)
    return sizes[pins.allows("micro_batch_size", sizes)]


def recomputed(job: JobSpec, pins: Pins, table: Candidates) -> Candidates:
    """Try for each row the ways to recompute, which are the axis before the rows; those that come to the same once: a
    stage of 2 layers has fewer than 4 distinct shares."""
    choices = ways_to_recompute(job, pins)
    modules = np.array([choice.modules for choice in choices], dtype=np.int64)[:, None]
    layers = np.zeros((len(choices), len(table)), dtype=np.int64)
    new = np.ones(layers.shape, dtype=bool)
    per_stage = -(-job.model.layers // table.pp)
    for way, choice in enumerate(choices):
        layers[way] = choice.layers_of(per_stage)
        for earlier in range(way):
            if choices[earlier].modules == choice.modules:
                new[way] &= layers[earlier] != layers[way]
    return replace(table, recompute_modules=modules, recompute_layers=layers, legal=table.legal & new)


def modules_tried(job: JobSpec, pins: Pins) -> IntArray:
    """The selections of modules in all ways to recompute, ascending."""
    return np.array(sorted({choice.modules for choice in ways_to_recompute(job, pins)}), dtype=np.int64)


def ways_to_recompute(job: JobSpec, pins: Pins) -> tuple[Recompute, ...]:
    """What is tried for each row: what is pinned; else none, the selective sets that pay, and quarters of the layers.
    With fused attention `core_attn` frees almost nothing, so the sets are built from norms, MLP and expert modules."""
    if pins.recompute is not None:
        return pins.recompute
    masks = [LAYERNORM, MLP, LAYERNORM | MLP]
    if job.model.is_moe:
        masks = [LAYERNORM, MOE_ACT, LAYERNORM | MOE_ACT, LAYERNORM | MOE]
    if any(attention.latent is not None for attention in job.model.attentions):
        masks += [mask | MLA_UP_PROJ for mask in masks]
    quarters = (Recompute(quarters=count) for count in (1, 2, 3, 4))
    return (Recompute(), *(Recompute(modules=mask) for mask in masks), *quarters)


def _cross(table: Candidates, pins: Pins, name: str, values: IntArray) -> Candidates:
    values = values[pins.allows(name, values)]
    rows = np.repeat(np.arange(len(table)), len(values))
    columns: dict[str, Any] = {name: np.tile(values, len(table)).astype(np.int64)}
    return replace(table.take(rows), **columns)
