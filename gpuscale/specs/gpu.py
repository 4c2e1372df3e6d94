"""One GPU: what its datasheet says, and what its kernels reach of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.errors import InputError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")


@dataclass(frozen=True)
class KernelSpec:
    """What kernels reach of the datasheet: a few physical constants, used by `gpuscale.steptime.kernels`.

    Attributes:
        gemm_fraction: per precision, share of the dense peak that full output tiles reach in a short run [0-1].
        sustained_clock_fraction: arithmetic speed under the power limit of a long run / that of a short run [0-1].
        sustained_16bit_fraction: the same for 16-bit GEMMs where they draw more power than narrower ones; None where
            they do not differ.
        tile_m: rows of the output tile that one SM works on.
        tile_n: columns of that tile.
        tile_overhead_s: pipeline fill and epilogue of one output tile that no other work hides [s].
        wave_loss_fraction: share of an incomplete last wave of tiles that is lost (0: stream-K) [0-1].
        kernel_overhead_s: time a kernel of any kind takes beyond its arithmetic or its traffic [s].
        hbm_fraction: share of the HBM bandwidth that a streaming kernel reaches [0-1].
        attention_forward_fraction: share of the 16-bit peak that the matrix products of fused attention reach, forward,
            long sequences, only the FLOPs that the mask leaves counted [0-1].
        attention_backward_fraction: the same for the backward pass, at 2.5 times the forward FLOPs [0-1].
        attention_ramp_keys: keys per query that fused attention loses to masked blocks, fill and epilogue [tokens].
        attention_tail_tiles: time that the last tile of attention outlasts the others, in average tiles of one SM.
        exp_per_cycle_per_sm: exponentials of the softmax per clock cycle and SM, as if none were hidden [1/cycle].
        launch_s: gap between one kernel's end and the next one's start when the queue is full [s].
    """

    gemm_fraction: Mapping[str, float]
    sustained_clock_fraction: float
    tile_m: int
    tile_n: int
    tile_overhead_s: float
    wave_loss_fraction: float
    kernel_overhead_s: float
    hbm_fraction: float
    attention_forward_fraction: float
    attention_backward_fraction: float
    attention_ramp_keys: float
    exp_per_cycle_per_sm: float
    launch_s: float
    attention_tail_tiles: float = 1.0
    sustained_16bit_fraction: float | None = None

    def sustained(self, precision: str) -> float:
        """Return the speed of GEMMs of `precision` in a long run / that in a short run."""
        if precision in {"bf16", "fp16"} and self.sustained_16bit_fraction is not None:
            return self.sustained_16bit_fraction
        return self.sustained_clock_fraction


@dataclass(frozen=True)
class GpuSpec:
    """One GPU as its datasheet describes it, in SI units; FLOP/s are dense, bandwidths are per direction.

    Attributes:
        name: slug, such as `h100-sxm-80gb`.
        memory_bytes: capacity as the driver reports it (nvidia-smi's total), not the datasheet's round number.
        peak_flops_per_s: dense FLOP/s per precision; a precision the GPU lacks is absent.
        link_bytes_per_s: NVLink / xGMI / ICI bandwidth of one link, one direction; 0 without links.
        host_link_bytes_per_s: PCIe or C2C bandwidth to the host, one direction, of one GPU.
        sources: key of the GPU's file -> source of the number.
        clock_max_hz: highest clock the driver allows (fp32 work reaches it, tensor cores at full power do not).
        memory_type: such as `hbm3`.
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
    clock_max_hz: float = 0.0
    memory_type: str = ""

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
