"""Candidates as a struct of arrays: row i of every array is one way to split the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

CORE_ATTN, LAYERNORM, MLP, MOE_ACT, MOE, MLA_UP_PROJ, SHARED_EXPERTS = (1 << bit for bit in range(7))
RECOMPUTE_MODULES = {
    "core_attn": CORE_ATTN,
    "layernorm": LAYERNORM,
    "mlp": MLP,
    "moe_act": MOE_ACT,
    "moe": MOE,
    "mla_up_proj": MLA_UP_PROJ,
    "shared_experts": SHARED_EXPERTS,
}
"""Modules of selective recomputation, by their name in Megatron-LM's `--recompute-modules`, as bits."""

EVERY_OTHER_MATMUL = 1 << 16
"""In `Candidates.recompute_modules`: torchtitan's selective checkpointing by operator, in every layer."""

ONE_F_ONE_B, GPIPE, ZB_H1, ZB_2P, ZB_V, DUALPIPE = range(6)
SCHEDULES = {
    "1f1b": ONE_F_ONE_B,
    "interleaved": ONE_F_ONE_B,
    "gpipe": GPIPE,
    "zb-h1": ZB_H1,
    "zb-1p": ZB_H1,
    "zb-2p": ZB_2P,
    "zb-h2": ZB_2P,
    "zb-v": ZB_V,
    "dualpipe": DUALPIPE,
}
"""Pipeline schedules by name, as codes. 1F1B is interleaved where a rank has several model chunks."""

_MAX_KEY = 2**62


@dataclass(frozen=True, slots=True)
class Candidates:
    """N candidates; every field is an int64 array of shape (N,).

    Attributes:
        tp: tensor-parallel degree.
        sp: 1 when sequence parallelism is on, else 0.
        pp: pipeline stages.
        vpp: model chunks per pipeline rank (1 = no interleaving).
        cp: context-parallel degree.
        ep: expert-parallel degree; splits the tp * cp * dp ranks of a stage, not a factor of the world.
        etp: tensor-parallel degree inside each expert.
        dp: data-parallel degree; tp * pp * cp * dp = GPUs.
        zero: ZeRO stage 0-3.
        shard: GPUs that share one copy of the sharded states; dp * cp, or less with hybrid sharding; 1 at stage 0.
        micro_batch_size: sequences per microbatch and data-parallel rank.
        num_microbatches: microbatches per step and data-parallel rank.
        recompute_modules: bit mask of `RECOMPUTE_MODULES` recomputed in every layer; 0 with full recomputation.
        recompute_layers: layers of each pipeline stage that are recomputed whole; 0 without full recomputation.
        schedule: code of the pipeline schedule, one of `SCHEDULES`; 0, 1F1B, when left out.
    """

    tp: IntArray
    sp: IntArray
    pp: IntArray
    vpp: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    dp: IntArray
    zero: IntArray
    shard: IntArray
    micro_batch_size: IntArray
    num_microbatches: IntArray
    recompute_modules: IntArray
    recompute_layers: IntArray
    schedule: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.schedule) != len(self.tp):
            object.__setattr__(self, "schedule", np.zeros_like(self.tp))

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Candidates:
        """Return the rows chosen by an index array or a mask."""
        return Candidates(**{item.name: getattr(self, item.name)[index] for item in fields(self)})

    def row(self, index: int) -> dict[str, int]:
        """Return one candidate as plain integers."""
        return {item.name: int(getattr(self, item.name)[index]) for item in fields(self)}

    @property
    def expert_dp(self) -> IntArray:
        """Data-parallel degree of the routed experts' parameters."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def parameters_sharded(self) -> IntArray:
        """1 under ZeRO-3 (FSDP), where no GPU holds the parameters of its layers whole, else 0."""
        return (self.zero == 3).astype(np.int64)

    @property
    def layers_recomputed(self) -> IntArray:
        """1 where whole layers are recomputed, else 0."""
        return (self.recompute_layers > 0).astype(np.int64)

    @property
    def sequence_split(self) -> IntArray:
        """Ranks that share the norm and residual activations: TP with sequence parallelism, else 1."""
        return np.where(self.sp == 1, self.tp, 1)


def schedule_name(layout: Mapping[str, int]) -> str:
    """Name the schedule of one candidate (`Candidates.row`): `none` without a pipeline."""
    if layout["pp"] == 1:
        return "none"
    if layout["schedule"] == ONE_F_ONE_B:
        return "interleaved" if layout["vpp"] > 1 else "1f1b"
    return next(name for name, code in SCHEDULES.items() if code == layout["schedule"])


def concatenate(parts: Sequence[Candidates]) -> Candidates:
    """Stack several sets of candidates."""
    names = [item.name for item in fields(Candidates)]
    return Candidates(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def single(**values: int) -> Candidates:
    """Return one candidate as a set of one row."""
    return Candidates(**{name: np.array([value], dtype=np.int64) for name, value in values.items()})


def combined_key(candidates: Candidates, names: Sequence[str]) -> IntArray:
    """Number the combinations of some fields: equal keys mean equal fields, and keys order as the fields do."""
    key = np.zeros(len(candidates), dtype=np.int64)
    bound = 1  # keys so far are below it
    for name in names:
        column: IntArray = getattr(candidates, name)
        size = int(column.max(initial=0)) + 1
        if bound * size > _MAX_KEY:  # number the combinations so far without gaps
            distinct, inverse = np.unique(key, return_inverse=True)
            key, bound = inverse.reshape(-1).astype(np.int64), len(distinct)
        key, bound = key * size + column, bound * size
    return key


def unique_rows(candidates: Candidates, names: Sequence[str]) -> tuple[Candidates, npt.NDArray[np.intp]]:
    """Group the candidates by some of their fields.

    Most quantities depend on few of the fields; they are computed once per distinct combination and spread back.

    Returns:
        One candidate per distinct combination of the fields `names` (in ascending order of the fields), and for
        each input row the index of its combination.
    """
    key = combined_key(candidates, names)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return candidates.take(first), inverse.reshape(-1)
