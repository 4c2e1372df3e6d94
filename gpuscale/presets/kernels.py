"""The `[kernels]` table of a GPU preset, checked: what kernels reach of the datasheet."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from gpuscale.presets.fields import Bounds
from gpuscale.specs.gpu import PRECISIONS, KernelSpec

Fraction = Annotated[float, Bounds(gt=0, le=1)]
AchievedFraction = Annotated[float, Bounds(gt=0, le=1.1)]
"""Share of a datasheet peak; a little above 1 is possible where the chip clocks above the datasheet's boost."""
Microseconds = Annotated[float, Bounds(ge=0, le=100)]
TileEdge = Annotated[int, Bounds(ge=16, le=1024)]
Source = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=400)]


class KernelTable(BaseModel):
    """One `[kernels]` table: the fields of `gpuscale.specs.gpu.KernelSpec`, times in microseconds.

    Every key has an entry in `[kernels.sources]`; `"tile_m, tile_n" = "..."` serves several.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    gemm_fraction: dict[str, AchievedFraction] = Field(min_length=1, max_length=len(PRECISIONS))
    sustained_clock_fraction: Annotated[float, Bounds(ge=0.3, le=1)]
    sustained_16bit_fraction: Annotated[float | None, Bounds(ge=0.3, le=1)] = None
    tile_m: TileEdge
    tile_n: TileEdge
    tile_overhead_us: Microseconds
    wave_loss_fraction: Annotated[float, Bounds(ge=0, le=1)]
    kernel_overhead_us: Microseconds
    hbm_fraction: Fraction
    attention_forward_fraction: Fraction
    attention_backward_fraction: Fraction
    attention_ramp_keys: Annotated[float, Bounds(ge=0, le=16384)]
    attention_tail_tiles: Annotated[float, Bounds(ge=0, le=8)]
    exp_per_cycle_per_sm: Annotated[float, Bounds(gt=0, le=1024)]
    launch_us: Microseconds
    sources: dict[str, Source] = Field(max_length=32)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        unknown = sorted(set(self.gemm_fraction) - set(PRECISIONS))
        if unknown:
            raise ValueError(f"gemm_fraction has unknown precisions {unknown}; known are {list(PRECISIONS)}")
        numbers = {name for name, value in self if value is not None} - {"sources"}
        named = set(self._source_by_key())
        if missing := sorted(numbers - named):
            raise ValueError(f"[kernels.sources] lacks {', '.join(missing)}")
        if extra := sorted(named - numbers):
            raise ValueError(f"[kernels.sources] names {', '.join(extra)[:200]}, which [kernels] does not have")
        return self

    def to_spec(self) -> KernelSpec:
        """Return the frozen spec, times in seconds."""
        return KernelSpec(
            gemm_fraction=dict(self.gemm_fraction),
            sustained_clock_fraction=self.sustained_clock_fraction,
            sustained_16bit_fraction=self.sustained_16bit_fraction,
            tile_m=self.tile_m,
            tile_n=self.tile_n,
            tile_overhead_s=self.tile_overhead_us * 1e-6,
            wave_loss_fraction=self.wave_loss_fraction,
            kernel_overhead_s=self.kernel_overhead_us * 1e-6,
            hbm_fraction=self.hbm_fraction,
            attention_forward_fraction=self.attention_forward_fraction,
            attention_backward_fraction=self.attention_backward_fraction,
            attention_ramp_keys=self.attention_ramp_keys,
            attention_tail_tiles=self.attention_tail_tiles,
            exp_per_cycle_per_sm=self.exp_per_cycle_per_sm,
            launch_s=self.launch_us * 1e-6,
        )

    def source_entries(self) -> dict[str, str]:
        """Return `kernels.<key>` -> source, for the `sources` of the GPU's spec."""
        return {f"kernels.{key}": source for key, source in self._source_by_key().items()}

    def _source_by_key(self) -> dict[str, str]:
        return {key.strip(): source for keys, source in self.sources.items() for key in keys.split(",")}
