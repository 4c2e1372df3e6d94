"""Candidates as a struct of arrays: row i of every array is one way to split the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray

CORE_ATTN, LAYERNORM, MLP, MOE_ACT, MOE, MLA_UP_PROJ, SHARED_EXPERTS = (1 << bit for bit in range(7))
RECOMPUTE_MODULES = {
    "core_attn": CORE_ATTN, "layernorm": LAYERNORM, "mlp": MLP, "moe_act": MOE_ACT, "moe": MOE,
    "mla_up_proj": MLA_UP_PROJ, "shared_experts": SHARED_EXPERTS,
}  # fmt: skip
"""Modules of selective recomputation, by their name in Megatron-LM's `--recompute-modules`, as bits."""

EVERY_OTHER_MATMUL = 1 << 16
"""In `Candidates.recompute_modules`: torchtitan's selective checkpointing by operator, in every layer."""

ONE_F_ONE_B, GPIPE, ZB_H1, ZB_2P, ZB_V, DUALPIPE = range(6)
SCHEDULES = {
    "1f1b": ONE_F_ONE_B, "interleaved": ONE_F_ONE_B, "gpipe": GPIPE, "zb-h1": ZB_H1, "zb-1p": ZB_H1, "zb-2p": ZB_2P,
    "zb-h2": ZB_2P, "zb-v": ZB_V, "dualpipe": DUALPIPE,
}  # fmt: skip
"""Pipeline schedules by name, as codes. 1F1B is interleaved where a rank has several model chunks."""

_MAX_KEY = 2**62


@dataclass(frozen=True)
class Candidates:
    """N candidates; every field is an int64 array of shape (N,). In a *grid* several choices are tried for each of N
    rows: fields then have further axes in front and broadcast, so that what does not depend on the choices is computed
    once per row. Arrays over pipeline stages have those in front of all: shape (P, N)."""

    tp: IntArray  #: tensor-parallel degree.
    sp: IntArray  #: 1 when sequence parallelism is on, else 0.
    pp: IntArray  #: pipeline stages.
    vpp: IntArray  #: model chunks per pipeline rank (1 = no interleaving).
    cp: IntArray  #: context-parallel degree.
    ep: IntArray  #: expert-parallel degree; splits the tp * cp * dp ranks of a stage, not a factor of the world.
    etp: IntArray  #: tensor-parallel degree inside each expert.
    dp: IntArray  #: data-parallel degree; tp * pp * cp * dp = GPUs.
    zero: IntArray  #: ZeRO stage 0-3.
    #: GPUs that share one copy of the sharded states; dp * cp, or less with hybrid sharding; 1 at stage 0.
    shard: IntArray
    micro_batch_size: IntArray  #: sequences per microbatch and data-parallel rank.
    num_microbatches: IntArray  #: microbatches per step and data-parallel rank.
    #: bit mask of `RECOMPUTE_MODULES` recomputed in every layer; 0 with full recomputation.
    recompute_modules: IntArray
    #: layers of each pipeline stage that are recomputed whole; 0 without full recomputation.
    recompute_layers: IntArray
    #: code of the pipeline schedule, one of `SCHEDULES`; 0, 1F1B, when left out.
    schedule: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: marks those that can run; broadcasts with the others. All of them when left out.
    legal: BoolArray = field(default_factory=lambda: np.ones(1, dtype=bool))

    def __post_init__(self) -> None:
        if len(self.schedule) != len(self.tp):
            object.__setattr__(self, "schedule", np.zeros_like(self.tp))

    def __len__(self) -> int:
        """Rows: candidates, unless several choices are tried for each."""
        return len(self.tp)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N,), with the numbers of choices in front of it in a grid."""
        return np.broadcast_shapes(*(getattr(self, name).shape for name in FIELDS))

    def take(self, index: IndexArray | BoolArray | slice) -> Candidates:
        """Return the rows chosen by an index array, a mask or a slice."""
        rows, columns = len(self), vars(self)
        varying = {name: values for name, values in columns.items() if values.shape[-1] == rows}
        if isinstance(index, slice):
            return Candidates(**columns | {name: values[..., index] for name, values in varying.items()})
        chosen = np.flatnonzero(index) if index.dtype == bool else index  # `take` is the fastest way, of numbers
        return Candidates(**columns | {name: values.take(chosen, axis=-1) for name, values in varying.items()})

    def marked(self) -> BoolArray:
        """Mark the legal candidates in an array of the grid's shape."""
        return np.broadcast_to(self.legal, self.shape)

    def listed(self) -> Candidates:
        """Return the legal candidates of a grid one after the other, as (N,) arrays."""
        return self.picked(np.nonzero(self.marked()))

    def picked(self, where: Sequence[IndexArray]) -> Candidates:
        """Return the candidates of a grid that indices along its axes name, as (N,) arrays."""
        out: dict[str, Any] = {}
        for name in FIELDS:
            values = getattr(self, name)
            axes = zip(where[len(where) - values.ndim :], values.shape, strict=True)
            out[name] = values[tuple(index if size > 1 else 0 * index for index, size in axes)]
        return Candidates(**out)

    def row(self, index: int) -> dict[str, int]:
        """Return one candidate as plain integers."""
        return {name: int(getattr(self, name)[index]) for name in FIELDS}

    @property
    def expert_dp(self) -> IntArray:
        """Data-parallel degree of the routed experts' parameters."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def parameters_sharded(self) -> IntArray:
        """1 under ZeRO-3 (FSDP), else 0."""
        return (self.zero == 3).astype(np.int64)

    @property
    def layers_recomputed(self) -> IntArray:
        """1 where whole layers are recomputed, else 0."""
        return (self.recompute_layers > 0).astype(np.int64)

    @property
    def sequence_split(self) -> IntArray:
        """Ranks that share the norm and residual activations: TP with sequence parallelism, else 1."""
        return np.where(self.sp == 1, self.tp, 1)


FIELDS = tuple(item.name for item in fields(Candidates) if item.name != "legal")
"""Names of the fields of `Candidates` that say what a candidate is."""


def summed(*terms: FloatArray) -> FloatArray:
    """Add terms up, one after the other; one 0 for all candidates takes no time."""
    used = [term for term in terms if term.ndim or term] or [np.zeros(())]
    shape = np.broadcast_shapes(*(term.shape for term in used))
    total, own = used[0], False
    for term in used[1:]:
        own = own and total.shape == shape  # from here on no array is made, which would take longer than the sum
        total = np.add(total, term, out=total) if own else total + term
        own = True
    return total


def schedule_name(layout: Mapping[str, int]) -> str:
    """Name the schedule of one candidate (`Candidates.row`): `none` without a pipeline."""
    if layout["pp"] == 1:
        return "none"
    if layout["schedule"] == ONE_F_ONE_B:
        return "interleaved" if layout["vpp"] > 1 else "1f1b"
    return next(name for name, code in SCHEDULES.items() if code == layout["schedule"])


def concatenate(parts: Sequence[Candidates]) -> Candidates:
    """Stack several sets of candidates, all legal."""
    return Candidates(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS})


def single(**values: int) -> Candidates:
    """Return one candidate as a set of one row."""
    columns: dict[str, Any] = {name: np.array([value], dtype=np.int64) for name, value in values.items()}
    return Candidates(**columns)


def combined_key(candidates: Candidates, names: Sequence[str]) -> IntArray:
    """Number the combinations of some fields: equal keys mean equal fields, and keys order as the fields do. In a grid,
    two rows are equal when all choices tried for them are."""
    rows = len(candidates)
    columns = (getattr(candidates, name) for name in names)
    varying = [column.reshape(column.size // max(rows, 1), rows) for column in columns if column.shape[-1] == rows]
    return number_combinations([np.zeros(rows, dtype=np.int64), *(one for column in varying for one in column)])


def number_combinations(columns: Sequence[npt.NDArray[Any]]) -> IntArray:
    """Number the combinations of several columns, which broadcast against each other, in their order."""
    key = np.zeros((), dtype=np.int64)
    bound = 1  # keys so far are below it
    for column in columns:
        values, size = _without_gaps(column)
        if bound * size > _MAX_KEY:
            key, bound = _without_gaps(key)
        key, bound = key * size + values, bound * size
    return key


def _without_gaps(column: npt.NDArray[Any]) -> tuple[IntArray, int]:
    """Number the distinct values of a column, ascending from 0; and how many there are."""
    top = int(column.max(initial=0)) if column.dtype.kind == "i" else None
    if top is not None and top < 8 * column.size + 1024:  # a table of all values is small: no sorting
        seen = np.zeros(top + 1, dtype=np.int64)
        seen[column] = 1
        numbers = seen.cumsum()
        return (numbers - 1).take(column), int(numbers[-1])
    values, inverse = np.unique(column, return_inverse=True)
    return inverse.reshape(column.shape).astype(np.int64), len(values)


def unique_rows(candidates: Candidates, names: Sequence[str]) -> tuple[Candidates, IndexArray]:
    """Return one candidate per distinct combination of some fields, ascending, and for each row the index of its
    combination: most quantities depend on few of the fields, are computed once for each and spread back."""
    first, index = distinct(combined_key(candidates, names))
    return candidates.take(first), index


def distinct(key: IntArray) -> tuple[IndexArray, IndexArray]:
    """Return where each distinct value of a key, ascending, stands first, and for each key its index."""
    index, count = _without_gaps(key)
    first = np.zeros(count, dtype=np.intp)
    first[index[::-1]] = np.arange(len(key) - 1, -1, -1)  # what is written last stays
    return first, index


class Cases(NamedTuple):
    """Which of several distinct cases each candidate is, as `unique_rows` numbers them."""

    row: IndexArray  #: for each row the number of its case, shape (N,).
    #: in a grid that tries several choices for each row, for each candidate the index of choice and case in a flattened
    #: table of shape (choices, cases); shape (choices of the grid, N).
    both: IndexArray | None = None

    def of(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Look up each candidate's value in a table, (cases,) or (choices, cases); one value is for all."""
        if table.size <= 1:
            return table.reshape(table.shape[-1:])
        if self.both is None:
            return table[..., self.row]
        return table[self.row] if table.ndim == 1 else table.ravel()[self.both]


def spread(table: npt.NDArray[Any], row: IndexArray) -> npt.NDArray[Any]:
    """Look up each row's value in a table by case; one value is for all."""
    return table[..., row] if table.size > 1 else table
