"""Which layers land on which pipeline stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import DUALPIPE, ONE_F_ONE_B, ZB_V, Candidates
from gpuscale.specs.model import ModelSpec

FIRST, LAST, MIDDLE = range(3)
"""Columns of the evaluated stages: the first, the last, and from `MIDDLE` on those in between that may bind."""


def chunk_sizes(layers: int, chunks: int) -> IntArray:
    """Layers of each of `chunks` model chunks, as even as possible: the chunks in the middle get one more first, then
    the first chunk (which also holds the embedding), the last one (which also holds the LM head) at the very end."""
    base, extra = divmod(layers, chunks)
    sizes = np.full(chunks, base, dtype=np.int64)
    order = [*range(1, chunks - 1), 0, chunks - 1] if chunks > 1 else [0]
    sizes[order[:extra]] += 1
    return sizes


def tapered_sizes(layers: int, chunks: int) -> IntArray:
    """Layers of each chunk where the end of the pipeline carries more than its layers: the same number for each; what
    is missing is missing in the last chunk first, which also holds the LM head and multi-token prediction, then in the
    first one; evenly where that does not reach. So NVIDIA's recipes lay out DeepSeek-V3 and Kimi K2, 61 layers on 16
    chunks as 4 each, 1 at the end; on 32 as 1, 2 each, none (NVIDIA-NeMo/Megatron-Bridge,
    recipes/deepseek/deepseek_v3.py and recipes/kimi/kimi_k2.py, `map_pp_vp_to_layout`)."""
    full = -(-layers // chunks)
    missing = full * chunks - layers
    last = min(missing, full)
    first = min(missing - last, full - 1)
    if chunks == 1 or last + first < missing:
        return chunk_sizes(layers, chunks)
    sizes = np.full(chunks, full, dtype=np.int64)
    sizes[-1] -= last
    sizes[0] -= first
    return sizes


def starts_dense(model: ModelSpec) -> bool:
    """Whether a mixture of experts begins with dense layers and has none further on."""
    dense = [model.kinds[index].moe is None for index in model.pattern]
    return dense[0] and not all(dense) and dense == sorted(dense, reverse=True)


def splits_evenly_enough(layers: int, chunks: npt.ArrayLike) -> BoolArray:
    """Whether every chunk but the first and the last has at least one layer."""
    chunks = np.asarray(chunks)
    return (chunks <= 1) | (layers >= np.maximum(chunks - 2, 1))


class StageTable(NamedTuple):
    """Layers per kind of the evaluated stages, for each (pp, vpp) pair. The fullest and the slowest stage depend on the
    candidate: where kinds of layers alternate, no single stage in the middle is the heaviest for all. A stage is left
    out when an earlier one, which holds more microbatches, has at least as many layers of each kind."""

    #: shape (pairs, P, kinds): layers of each kind that run at the first stage, the last one, and those of the middle
    #: that may be the fullest or the slowest; P is at least 3, short rows repeat their first middle one. A rank of
    #: DualPipe runs two stages, each for half of the microbatches: the mean of both.
    counts: FloatArray
    position: IntArray  #: shape (pairs, P): index of that stage in the pipeline (0-based).
    weights: FloatArray | None = None  #: layers whose weights the stage holds, shaped like `counts`; None for those.

    def width(self, row: IndexArray) -> int:
        """Columns that tell all evaluated stages of some pairs; those behind repeat one."""
        known = self.position[:, :, None] == self.position[:, None, :]
        new = ~np.tril(known, -1).any(axis=2)
        last = np.where(new, np.arange(new.shape[1]), 0).max(axis=1)
        return int(last[row].max(initial=0)) + 1

    def narrowed(self, width: int) -> StageTable:
        """Return the first columns."""
        weights = None if self.weights is None else self.weights[:, :width]
        return StageTable(self.counts[:, :width], self.position[:, :width], weights)

    def layers(self, row: IndexArray) -> tuple[FloatArray, ...]:
        """Layers that run at each evaluated stage of some pairs, by kind; each (P, *row.shape)."""
        return _by_kind(self.counts, row)

    def held(self, row: IndexArray) -> tuple[FloatArray, ...]:
        """Layers whose weights the stage holds, as `layers`."""
        return _by_kind(self.counts if self.weights is None else self.weights, row)

    def positions(self, row: IndexArray) -> FloatArray:
        """Index of each evaluated stage of some pairs in the pipeline; (P, *row.shape)."""
        return np.take(self.position.T.astype(np.float64), row, axis=-1)


def _by_kind(counts: FloatArray, row: IndexArray) -> tuple[FloatArray, ...]:
    table = counts.transpose(2, 1, 0)
    return tuple(np.take(one, row, axis=-1) for one in table)


def share_of_end(c: Candidates, end: int, place: IndexArray | int) -> FloatArray:
    """Share of the embedding (`FIRST`) or of the LM head (`LAST`) that runs at a column of the evaluated stages. All
    runs on one GPU without a pipeline and on the first rank in ZB-V; in DualPipe the ranks at both ends hold both and
    run half of each (DeepSeek-V3, arXiv 2412.19437, section 3.2.2)."""
    mine = place == np.where(c.schedule == ZB_V, FIRST, end)
    if (c.schedule == DUALPIPE).any():
        mine = np.where(c.schedule == DUALPIPE, 0.5 * ((place == FIRST) | (place == LAST)), mine)
    return np.where(c.pp == 1, 1.0, mine)


def places(by_stage: FloatArray) -> IntArray:
    """Number the columns of the evaluated stages, to broadcast with (P, N)."""
    return np.arange(len(by_stage)).reshape(-1, *[1] * (by_stage.ndim - 1))


def at_place(by_stage: FloatArray, place: IndexArray) -> FloatArray:
    """Choose for each candidate the value of one evaluated stage: (P, N) to (N,)."""
    chosen = by_stage[0]
    for index in range(1, len(by_stage)):  # there are few; NumPy's own gathering takes several times as long
        chosen = np.where(place == index, by_stage[index], chosen)
    return chosen


def largest_place(by_stage: FloatArray) -> IndexArray:
    """Find for each candidate the evaluated stage with the largest value, the first of equals: (P, N) to (N,)."""
    place, largest = np.zeros(by_stage.shape[1:], dtype=np.intp), by_stage[0]
    for index in range(1, len(by_stage)):
        place = np.where(by_stage[index] > largest, index, place)
        largest = np.maximum(largest, by_stage[index])
    return place


def cost_balanced_sizes(costs: tuple[int, ...], pp: int) -> IntArray:
    """Layers of each stage when the cost of the LM head, the last of `costs`, counts, as nanotron deals them out: a
    stage is closed by the first layer that takes the running total beyond its share (models/base.py, build_model). The
    last stages may get no layer."""
    sizes = np.zeros(pp, dtype=np.int64)
    stage, running = 0, 0
    for cost in costs[:-1]:
        sizes[stage] += 1
        running += cost
        if stage < pp - 1 and running * pp >= sum(costs) * (stage + 1):
            stage += 1
    return sizes


def layer_costs(model: ModelSpec) -> tuple[int, ...]:
    """Cost of each layer and of the LM head: 4 x query width x hidden + 3 x ffn x hidden, and vocabulary x hidden."""
    kinds = []
    for kind in model.trained_kinds:
        ffn = kind.mlp.ffn if kind.mlp else kind.moe.ffn * kind.moe.top_k + kind.moe.shared_ffn if kind.moe else 0
        query = kind.attention.query_width if kind.attention else 0
        kinds.append(model.hidden * (4 * query + 3 * ffn))
    return (*(kinds[index] for index in model.trained_pattern), model.vocab * model.hidden)


def split_sizes(
    layers: int, pp: int, vpp: int, costs: tuple[int, ...] | None = None, tail: int | None = None
) -> IntArray:
    """Layers of each of pp x vpp chunks; arguments as those of `chunk_counts`."""
    if costs is not None and vpp == 1:
        return cost_balanced_sizes(costs, pp)
    if tail is None:
        return chunk_sizes(layers, pp * vpp)
    sizes = tapered_sizes(layers - tail, pp * vpp)
    sizes[-1] += tail
    return sizes


def _dealing(model: ModelSpec, split: str) -> tuple[tuple[int, ...] | None, int | None]:
    """Return the costs by which a model's layers are dealt out, and the layers that a tapered split adds at the end."""
    tail = len(model.trained_pattern) - model.layers if split == "tapered" and starts_dense(model) else None
    return layer_costs(model) if split == "cost" else None, tail


def stage_sizes(model: ModelSpec, pp: int, vpp: int, split: str) -> tuple[int, ...]:
    """Layers and modules of multi-token prediction of each of pp x vpp chunks."""
    return tuple(split_sizes(len(model.trained_pattern), pp, vpp, *_dealing(model, split)).tolist())


def pipeline_layout(model: ModelSpec, pp: int, vpp: int, split: str) -> str | None:
    """Return what Megatron-LM's `--pipeline-model-parallel-layout` has to be for the stages that are evaluated: `E` is
    the embedding, `t` a layer, `m` a module of multi-token prediction, `L` the loss; a bar ends a chunk, `x*3` and
    `(x|)*3` repeat (megatron/core/transformer/pipeline_parallel_layer_layout.py). None where Megatron-LM deals the
    layers out so by itself, prediction on top of the last chunk; and for models of Mamba layers, whose stages are bars
    in `--hybrid-layer-pattern`."""
    mamba = any(kind.state_space is not None and kind.state_space.kind == "mamba2" for kind in model.trained_kinds)
    sizes = stage_sizes(model, pp, vpp, split)
    own = np.full(pp * vpp, model.layers // (pp * vpp))
    own[-1] += model.mtp_depth
    if pp == 1 or mamba or np.array_equal(sizes, own):
        return None
    kinds, ends = "t" * model.layers + "m" * model.mtp_depth, np.cumsum(sizes).tolist()
    chunks = [kinds[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
    counted = [re.sub(r"(.)\1{2,}", lambda run: f"{run[1]}*{len(run[0])}", chunk) for chunk in chunks]
    runs = [(chunk, len(list(same))) for chunk, same in groupby(counted[:-1])]
    return "".join(f"{chunk}|" if count == 1 else f"({chunk}|)*{count}," for chunk, count in runs) + counted[-1]


def chunk_counts(
    pattern: tuple[int, ...],
    kinds: int,
    pp: int,
    vpp: int,
    costs: tuple[int, ...] | None = None,
    *,
    folded: bool = False,
    tail: int | None = None,
) -> IntArray:
    """Layers of each kind in each chunk of each pipeline rank, shape (vpp, pp, kinds); chunk c is on rank c mod pp.

    Args:
        pattern: for each layer the index of its kind.
        costs: deal the layers out by these costs, without interleaving; None: evenly.
        folded: every other round of chunks goes down the ranks instead of up.
        tail: taper the split (`tapered_sizes`); so many layers at the end, those of multi-token prediction, come on top
            of what the last chunk gets.
    """
    sizes = split_sizes(len(pattern), pp, vpp, costs, tail)
    ends = np.cumsum(sizes)
    before = np.zeros((len(pattern) + 1, kinds), dtype=np.int64)  # layers of each kind before each layer
    np.cumsum(np.asarray(pattern)[:, None] == np.arange(kinds), axis=0, out=before[1:])
    rounds = (before[ends] - before[ends - sizes]).reshape(vpp, pp, kinds)
    if folded:
        rounds[1::2] = rounds[1::2, ::-1].copy()
    return rounds


def model_chunks(model: ModelSpec, pp: int, vpp: int, split: str, schedule: int) -> IntArray:
    """Return the layers of each kind in each chunk of each rank, shape (chunks, pp, kinds): the chunks that `schedule`
    has in slots of their own, in DualPipe its stages in both directions."""
    costs, tail = _dealing(model, split)
    pattern, kinds = model.trained_pattern, len(model.trained_kinds)
    rounds = chunk_counts(pattern, kinds, pp, vpp, costs, folded=schedule == ZB_V, tail=tail)
    return np.concatenate([rounds, rounds[:, ::-1]]) if schedule == DUALPIPE else rounds


def stage_table(
    model: ModelSpec,
    pairs: list[tuple[int, int]],
    split: str = "even",
    schedules: Sequence[int] = (),
    *,
    every: bool = False,
) -> StageTable:
    """Tabulate the evaluated stages of each (pp, vpp) pair.

    Args:
        split: how layers are dealt out: `even`ly; `tapered`, mixtures of experts that start with dense layers as
            `tapered_sizes` says and other models evenly; by `cost`.
        schedules: of each pair; 1F1B where left out. In ZB-V the chunks go up and down the ranks (Qi et al. 2024,
            section 6); in DualPipe every rank also holds and runs the stage of the rank at the other end (DeepSeek-V3,
            section 3.2.1).
        every: all stages, also those that another is heavier than.
    """
    codes = schedules or [ONE_F_ONE_B] * len(pairs)
    pattern, kinds = model.trained_pattern, len(model.trained_kinds)
    costs, tail = _dealing(model, split)
    chosen = [
        _evaluated_stages(pattern, kinds, pp, vpp, costs, code, tail, every=every)
        for (pp, vpp), code in zip(pairs, codes, strict=True)
    ]
    width = max((len(stages) for stages, _ in chosen), default=3)
    counts = np.zeros((len(pairs), width, kinds))
    position = np.zeros((len(pairs), width), dtype=np.int64)
    for row, (stages, layers) in enumerate(chosen):
        filled = [*stages, *[stages[MIDDLE]] * (width - len(stages))]
        position[row] = filled
        counts[row] = layers[filled]
    code = np.array(codes, dtype=np.int64)[:, None]
    held = counts * np.where(code == DUALPIPE, 2, 1)[..., None]
    runs_last = position == np.where(code == ZB_V, 0, position[:, [LAST]])
    runs_last |= (code == DUALPIPE) & (position == 0)
    return StageTable(counts, position, held - _weightless(model, held, runs_last))


def _weightless(model: ModelSpec, held: FloatArray, runs_last: BoolArray) -> FloatArray:
    """Layers of multi-token-prediction modules that run with the weights of an earlier module, shaped like `held`:
    layers by kind, as if each had its own weights. `runs_last`: which of the columns run the last layers."""
    out = np.zeros_like(held)
    if model.mtp is not None and model.mtp.shared and model.mtp_depth:
        for kind in model.mtp.layers:
            out[runs_last, model.trained_kinds.index(kind)] += model.mtp_depth - 1
    return np.minimum(out, held)


@lru_cache(maxsize=4096)
def _evaluated_stages(
    pattern: tuple[int, ...],
    kinds: int,
    pp: int,
    vpp: int,
    costs: tuple[int, ...] | None,
    schedule: int,
    tail: int | None = None,
    *,
    every: bool = False,
) -> tuple[list[int], FloatArray]:
    """Return the evaluated stages of one pair (first, last, then those of the middle) and the layers of every rank."""
    layers = chunk_counts(pattern, kinds, pp, vpp, costs, folded=schedule == ZB_V, tail=tail).sum(axis=0, dtype=float)
    if schedule == DUALPIPE:
        layers = (layers + layers[::-1]) / 2
    middle: list[int] = []
    for stage in range(1, pp - 1):
        if every or not any((layers[earlier] >= layers[stage]).all() for earlier in middle):
            middle.append(stage)
    return [0, pp - 1, *(middle or [0])], layers
