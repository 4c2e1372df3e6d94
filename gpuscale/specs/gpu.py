"""One GPU: what its datasheet says, and what its kernels reach of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.errors import InputError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What kernels reach of the datasheet: measured shares of peak, tile sizes and launch cost.

    Attributes:
        gemm_fraction: per precision, share of the dense peak that a large GEMM sustains [0-1].
        attention_forward_fraction: share of the bf16 peak of fused attention, forward, causal FLOPs counted [0-1].
        attention_backward_fraction: the same for the backward pass [0-1].
        hbm_fraction: share of the HBM bandwidth that a streaming kernel reaches [0-1].
        launch_s: time from one kernel's end to the next one's start when the queue is full [s].
        tile_m: rows of the output tile that one SM (or SM pair) works on.
        tile_n: columns of that tile.
    """

    gemm_fraction: Mapping[str, float]
    attention_forward_fraction: float
    attention_backward_fraction: float
    hbm_fraction: float
    launch_s: float
    tile_m: int
    tile_n: int


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU as its datasheet describes it, in SI units; FLOP/s are dense, bandwidths are per direction.

    Attributes:
        name: slug, such as `h100-sxm-80gb`.
        memory_bytes: capacity as the driver reports it (nvidia-smi's total), not the datasheet's round number.
        peak_flops_per_s: dense FLOP/s per precision; a precision the GPU lacks is absent.
        link_bytes_per_s: NVLink / xGMI / ICI bandwidth of one link, one direction; 0 without links.
        host_link_bytes_per_s: PCIe or C2C bandwidth to the host, one direction, of one GPU.
        sources: field name -> source of the number.
    """

    name: str
    title: str
    vendor: str
    architecture: str
    sm_count: int
    cores_per_sm: int
    clock_base_hz: float
    clock_boost_hz: float
    smem_per_sm_bytes: int
    registers_per_sm_bytes: int
    l2_bytes: int
    memory_datasheet_bytes: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    link_name: str
    link_generation: int
    links: int
    link_bytes_per_s: float
    host_link_bytes_per_s: float
    power_w: float
    kernels: KernelSpec
    sources: Mapping[str, str]
    aliases: tuple[str, ...] = ()

    @property
    def link_egress_bytes_per_s(self) -> float:
        """All links together, one direction [bytes/s]."""
        return self.links * self.link_bytes_per_s

    def peak(self, precision: str) -> float:
        """Return the dense peak of `precision` [FLOP/s], or refuse a precision that the GPU lacks."""
        try:
            return self.peak_flops_per_s[precision]
        except KeyError:
            has = ", ".join(self.peak_flops_per_s)
            raise InputError(f"{self.title} has no {precision} arithmetic", hint=f"it has {has}") from None

    def critical_intensity(self, precision: str) -> float:
        """FLOPs per byte of HBM traffic above which a kernel is compute-bound."""
        return self.peak(precision) / self.memory_bandwidth_bytes_per_s
