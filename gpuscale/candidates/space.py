"""Enumeration of the search space, from coarse to fine, so that a rule cuts a whole branch at once.

Five tables, each the legal part of the one before, crossed with more axes:
shapes (tp, pp, cp, dp) -> layouts (+ sp, vpp, ep, etp) -> sharded (+ ZeRO stage and shard size) -> microbatched
(+ microbatch) -> recomputed (+ recomputation). A row that a rule cuts is counted once, in the table where it was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import (
    LAYERNORM,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    Candidates,
    IntArray,
    concatenate,
)
from gpuscale.candidates.pins import Pins, Recompute
from gpuscale.candidates.scheduled import scheduled
from gpuscale.candidates.stages import splits_evenly_enough
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import ModelSpec

MAX_MICRO_BATCH_SIZE = 64
"""Largest microbatch tried; beyond it GEMMs are long saturated and only memory grows."""

CHUNK_ROWS = 1 << 17
"""Candidates handled at a time, so that memory stays bounded whatever the space."""


def divisors(number: int) -> IntArray:
    """Return all divisors, ascending."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return np.array(sorted({*small, *(number // value for value in small)}), dtype=np.int64)


def shapes(job: JobSpec, pins: Pins) -> Candidates:
    """All (tp, pp, cp, dp) whose product is the number of GPUs; the other fields are at their defaults."""
    values = divisors(job.gpus)
    tp, pp, cp = (grid.ravel() for grid in np.meshgrid(values, values, values, indexing="ij"))
    keep = job.gpus % (tp * pp * cp) == 0
    tp, pp, cp = tp[keep], pp[keep], cp[keep]
    dp = job.gpus // (tp * pp * cp)
    keep = pins.allows("tp", tp) & pins.allows("pp", pp) & pins.allows("cp", cp) & pins.allows("dp", dp)
    tp, pp, cp, dp = tp[keep], pp[keep], cp[keep], dp[keep]
    one, zero = np.ones_like(tp), np.zeros_like(tp)
    return Candidates(
        tp=tp, sp=zero, pp=pp, vpp=one, cp=cp, ep=one, etp=one, dp=dp, zero=zero, shard=one,
        micro_batch_size=one, num_microbatches=one, recompute_modules=zero, recompute_layers=zero,
    )  # fmt: skip


def layouts(job: JobSpec, pins: Pins, table: Candidates) -> Candidates:
    """Cross the legal shapes with sequence parallelism, virtual stages, expert and expert-tensor parallelism."""
    table = _cross(table, sp=np.array([0, 1]))
    table = table.take((table.sp == 0) | (table.tp > 1))
    table = table.take(pins.allows("sp", table.sp))
    table = _cross(table, vpp=np.arange(1, max(2, job.model.layers + 1)))
    table = table.take(_interleaving_worth_trying(job.model, table))
    table = scheduled(table.take(pins.allows("vpp", table.vpp)), pins.schedule)
    if job.model.is_moe:
        experts = max(kind.moe.experts for kind in job.model.kinds if kind.moe is not None)
        table = _cross(table, ep=divisors(experts))
        table = table.take(pins.allows("ep", table.ep))
        both = replace(table, etp=table.tp)
        parts = [table, both.take(table.tp > 1)]
        table = concatenate(parts)
        table = table.take(pins.allows("etp", table.etp))
    else:
        keep = pins.allows("ep", table.ep) & pins.allows("etp", table.etp)
        table = table.take(keep)
    return table


def _interleaving_worth_trying(model: ModelSpec, table: Candidates) -> npt.NDArray[np.bool_]:
    """Virtual stages: any count that divides the layers (with or without embedding and head) or a power of two."""
    layers = model.layers
    chunks = table.pp * table.vpp
    even = np.zeros(len(table), dtype=bool)
    for extra in (0, 1, 2):  # Megatron: --account-for-embedding-in-pipeline-split, --account-for-loss-...
        even |= (layers + extra) % chunks == 0
    power_of_two = (table.vpp & (table.vpp - 1)) == 0
    fits = np.array([splits_evenly_enough(layers, int(count)) for count in chunks], dtype=bool)
    interleaved = (table.pp > 1) & (even | power_of_two) & fits & (chunks <= layers + 2)
    return (table.vpp == 1) | interleaved


def sharded(job: JobSpec, pins: Pins, table: Candidates) -> Candidates:
    """Cross the legal layouts with ZeRO: 0; 1, 2, 3 over all data-parallel ranks; 3 inside one network level (HSDP)."""
    full = table.dp * table.cp
    parts = [replace(table, zero=np.zeros_like(full), shard=np.ones_like(full))]
    parts += [replace(table, zero=np.full_like(full, stage), shard=full).take(full > 1) for stage in (1, 2, 3)]
    for level in job.cluster.levels[:-1]:
        shard = level.gpus // table.tp
        hybrid = replace(table, zero=np.full_like(full, 3), shard=shard)
        parts.append(hybrid.take((shard > 1) & (shard < full) & (full % np.maximum(shard, 1) == 0)))
    every = concatenate(parts)
    return every.take(pins.allows("zero", every.zero) & pins.allows("shard", every.shard))


def microbatched(job: JobSpec, pins: Pins, table: Candidates) -> Iterator[Candidates]:
    """Cross the legal sharded layouts with the microbatch, a bounded number of rows (with recomputation) at a time."""
    micro = micro_batch_sizes(job, pins)
    choices = len(_recompute_choices(job, pins))
    step = max(1, CHUNK_ROWS // max(1, len(micro) * choices))
    for start in range(0, len(table), step):
        part = _cross(table.take(np.arange(start, min(start + step, len(table)))), micro_batch_size=micro)
        yield replace(part, num_microbatches=job.global_batch_size // (part.dp * part.micro_batch_size))


def micro_batch_sizes(job: JobSpec, pins: Pins) -> IntArray:
    """The divisors of the global batch up to `MAX_MICRO_BATCH_SIZE`; what is pinned by number is tried whatever it is,
    so that a rule says what is wrong with it."""
    sizes = divisors(job.global_batch_size)
    sizes = sizes[(sizes <= MAX_MICRO_BATCH_SIZE) & pins.allows("micro_batch_size", sizes)]
    pin = pins.degrees.get("micro_batch_size")
    named = [low for low, high in (pin.ranges if pin else ()) if low == high and low >= 1]
    return np.union1d(sizes, np.array(named, dtype=np.int64))


def recomputed(job: JobSpec, pins: Pins, table: Candidates) -> Candidates:
    """Cross the legal microbatched layouts with recomputation."""
    return _with_recompute(job.model, table, _recompute_choices(job, pins))


def _recompute_choices(job: JobSpec, pins: Pins) -> tuple[Recompute, ...]:
    return pins.recompute if pins.recompute is not None else default_recompute(job.model)


def default_recompute(model: ModelSpec) -> tuple[Recompute, ...]:
    """Recomputation choices of the default space: none, the selective sets that pay, and quarters of the layers.

    With fused attention `core_attn` frees almost nothing, so the sets are built from norms, MLP and expert modules.
    """
    if model.is_moe:
        masks = [LAYERNORM, MOE_ACT, LAYERNORM | MOE_ACT, LAYERNORM | MOE]
    else:
        masks = [LAYERNORM, MLP, LAYERNORM | MLP]
    if any(attention.latent is not None for attention in model.attentions):
        masks += [mask | MLA_UP_PROJ for mask in masks]
    return (Recompute(), *(Recompute(modules=mask) for mask in masks), *_QUARTERS)


_QUARTERS = tuple(Recompute(quarters=quarters) for quarters in (1, 2, 3, 4))


def _with_recompute(model: ModelSpec, table: Candidates, choices: Sequence[Recompute]) -> Candidates:
    per_stage = -(-model.layers // table.pp)
    parts = []
    seen: list[tuple[int, IntArray]] = []
    for choice in choices:
        layers = -(-per_stage * choice.quarters // 4) if choice.quarters else np.full_like(table.tp, choice.layers)
        new = np.ones(len(table), dtype=bool)
        for modules, earlier in seen:  # a stage of 2 layers has fewer than 4 distinct shares
            if modules == choice.modules:
                new &= layers != earlier
        seen.append((choice.modules, layers))
        modules_mask = np.full_like(table.tp, choice.modules)
        parts.append(replace(table, recompute_modules=modules_mask, recompute_layers=layers).take(new))
    return concatenate(parts)


def _cross(table: Candidates, **axis: IntArray) -> Candidates:
    """Repeat every row for every value of one more axis."""
    ((name, values),) = axis.items()
    rows = np.repeat(np.arange(len(table)), len(values))
    return replace(table.take(rows), **{name: np.tile(values, len(table)).astype(np.int64)})
