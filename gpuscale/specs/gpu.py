"""One GPU: what its datasheet says, and what its kernels reach of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.specs.fields import Name, Sources, Text, among
from gpuscale.units import GB, GIB, MB, MHZ, MIB, TFLOPS, US

WIDE = frozenset({"fp32", "tf32"})
"""Precisions of training whose operands, activations and gradients have 32 bits."""

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")

BLACKWELL = frozenset({"blackwell", "blackwell-ultra", "rubin"})
"""Generations with tensor memory, whose tensor cores work asynchronously; Rubin's SM107 has the instructions of SM103
(NVIDIA cuBLASDx 0.8 release notes, 2026)."""

PRE_AMPERE = frozenset({"volta", "turing"})
"""Generations without bf16, for which flash-attn and Transformer Engine have no fused attention kernels."""

BEFORE_HOPPER = frozenset({*PRE_AMPERE, "ampere", "ampere-rtx", "ada"})
"""NVIDIA generations below compute capability 9.0: without a tensor memory accelerator, and without multicast to peers
(CUDA C++ Programming Guide, compute capabilities)."""

Precision = Annotated[str, among(*PRECISIONS)]
Fraction = Annotated[float, Field(ge=1e-6, le=1)]
AchievedFraction = Annotated[float, Field(ge=1e-6, le=1.1)]
"""Share of a datasheet peak; a little above 1 is possible where the chip clocks above the datasheet's boost."""
PeakFlops = Annotated[float, Field(gt=0.01 * TFLOPS, lt=1e6 * TFLOPS)]


@dataclass(frozen=True)
class KernelSpec:
    """What kernels reach of the datasheet: a few physical constants."""

    #: per precision, share of the dense peak that full output tiles reach in a short run [0-1].
    gemm_fraction: Annotated[Mapping[Precision, AchievedFraction], Field(min_length=1)]
    #: arithmetic speed under the power limit of a long run / that of a short run [0-1].
    sustained_clock_fraction: Annotated[float, Field(ge=0.3, le=1)]
    tile_m: Annotated[int, Field(ge=16, le=1024)]  #: rows of the output tile that one SM works on.
    tile_n: Annotated[int, Field(ge=16, le=1024)]  #: columns of that tile.
    #: pipeline fill and epilogue of one output tile that no other work hides [s].
    tile_overhead_s: Annotated[float, Field(alias="tile_overhead_us", ge=0, le=100 * US)]
    #: share of an incomplete last wave of tiles that is lost (0: stream-K) [0-1].
    wave_loss_fraction: Annotated[float, Field(ge=0, le=1)]
    #: time a kernel of any kind takes beyond its arithmetic or its traffic [s].
    kernel_overhead_s: Annotated[float, Field(alias="kernel_overhead_us", ge=0, le=100 * US)]
    hbm_fraction: Fraction  #: share of the HBM bandwidth that products bound by memory, casts and copies reach [0-1].
    #: share of the 16-bit peak that products of fused attention reach, forward, long sequences, FLOPs that the mask
    #: leaves [0-1].
    attention_forward_fraction: Fraction
    attention_backward_fraction: Fraction  #: the same for the backward pass, at 2.5 times the forward FLOPs [0-1].
    #: keys per query that fused attention loses to masked blocks, fill and epilogue [tokens].
    attention_ramp_keys: Annotated[float, Field(ge=0, le=16384)]
    #: time that the last tile of attention outlasts the others, in average tiles of one SM.
    attention_tail_tiles: Annotated[float, Field(ge=0, le=8)]
    #: exponentials of the softmax per clock cycle and SM, as if none were hidden [1/cycle].
    exp_per_cycle_per_sm: Annotated[float, Field(ge=0.01, le=1024)]
    #: gap between one kernel's end and the next one's start when the queue is full [s].
    launch_s: Annotated[float, Field(alias="launch_us", ge=0, le=100 * US)]
    #: as `sustained_clock_fraction`, for 16-bit GEMMs where they draw more power than narrower ones.
    sustained_16bit_fraction: Annotated[float | None, Field(ge=0.3, le=1)] = None
    #: as `hbm_fraction`, for what stands between the products of a layer where it reaches less.
    stream_fraction: Fraction | None = None

    def sustained(self, precision: str) -> float:
        """Return the speed of GEMMs of `precision` in a long run / that in a short run. 4-bit GEMMs keep the tensor
        cores at most as busy as 8-bit ones do under the same power limit: where they reach less of their peak even in a
        short run, their clock falls less, or not at all."""
        if precision in {"bf16", "fp16"} and self.sustained_16bit_fraction is not None:
            return self.sustained_16bit_fraction
        if precision == "fp4" and {"fp4", "fp8"} <= set(self.gemm_fraction):
            return min(1.0, self.sustained_clock_fraction * self.gemm_fraction["fp8"] / self.gemm_fraction["fp4"])
        return self.sustained_clock_fraction


@displayed
@dataclass(frozen=True)
class GpuSpec:
    """One GPU as its datasheet describes it, in SI units; FLOP/s are dense, bandwidths are per direction."""

    name: str  #: slug, such as `h100-sxm-80gb`.
    title: Text  #: name for people.
    vendor: Text  #: who makes it.
    architecture: Name  #: generation, such as `hopper`; one that is not known is checked against physical limits alone.
    sm_count: Annotated[int, Field(ge=1, le=4096)]  #: SMs (compute units, TensorCores).
    cores_per_sm: Annotated[int, Field(ge=1, le=65536)]  #: fp32 lanes of one SM.
    clock_base_hz: Annotated[float, Field(alias="clock_base_mhz", ge=200 * MHZ, le=5000 * MHZ)]  #: base clock [Hz].
    #: clock at which the datasheet states the peaks [Hz].
    clock_boost_hz: Annotated[float, Field(alias="clock_boost_mhz", ge=200 * MHZ, le=5000 * MHZ)]
    #: highest clock the driver allows (fp32 work reaches it, tensor cores at full power do not) [Hz].
    clock_max_hz: Annotated[float, Field(alias="clock_max_mhz", ge=200 * MHZ, le=5000 * MHZ)]
    #: shared memory and L1 cache of one SM [bytes].
    smem_per_sm_bytes: Annotated[int, Field(alias="smem_per_sm_kib", gt=0, le=GIB)]
    #: register file of one SM [bytes].
    registers_per_sm_bytes: Annotated[int, Field(alias="registers_per_sm_kib", gt=0, le=GIB)]
    l2_bytes: Annotated[int, Field(alias="l2_mib", ge=0, le=4096 * MIB)]  #: L2 cache [bytes].
    memory_type: Name  #: such as `hbm3`.
    #: capacity by the datasheet's round number [bytes].
    memory_datasheet_bytes: Annotated[float, Field(alias="memory_datasheet_gb", ge=GB, le=8192 * GB)]
    #: capacity as the driver reports it (nvidia-smi's total), not the datasheet's [bytes].
    memory_bytes: Annotated[float, Field(alias="memory_driver_mib", ge=512 * MIB, le=2**23 * MIB)]
    #: peak bandwidth of that memory [bytes/s].
    memory_bandwidth_bytes_per_s: Annotated[float, Field(alias="memory_bandwidth_gb_per_s", ge=GB, le=1e6 * GB)]
    peak_flops_per_s: Mapping[Precision, PeakFlops]  #: dense FLOP/s per precision; a precision the GPU lacks is absent.
    #: links to other GPUs: nvlink, xgmi, ici or none.
    link_name: Annotated[str, among("nvlink", "xgmi", "ici", "none")]
    link_generation: Annotated[int, Field(ge=0, le=16)]  #: generation of those links; 0 without.
    links: Annotated[int, Field(ge=0, le=64)]  #: their number; 0 without.
    #: NVLink / xGMI / ICI bandwidth of one link, one direction; 0 without links [bytes/s].
    link_bytes_per_s: Annotated[float, Field(alias="link_gb_per_s_per_direction", ge=0, le=1e5 * GB)]
    #: link to the host: pcie3 to pcie6, c2c or xgmi.
    host_link_name: Annotated[str, among("pcie3", "pcie4", "pcie5", "pcie6", "c2c", "xgmi")]
    #: PCIe or C2C bandwidth to the host, one direction, of one GPU [bytes/s].
    host_link_bytes_per_s: Annotated[float, Field(alias="host_link_gb_per_s_per_direction", ge=MB, le=1e5 * GB)]
    power_w: Annotated[float, Field(ge=10, le=10000)]  #: board power limit [W].
    kernels: KernelSpec  #: what its kernels reach of all this.
    sources: Sources  #: key of the GPU's file -> source of the number.
    aliases: Annotated[tuple[Name, ...], Field(max_length=16)] = ()  #: other names.
    #: bandwidth of reads that hit the L2 cache, measured or of its width; 0 where neither is published [bytes/s].
    l2_bytes_per_s: Annotated[float, Field(alias="l2_gb_per_s", ge=GB, le=1e6 * GB)] = 0.0
    #: tensor memory of one SM, from which its tensor cores take operands; 0 without [bytes].
    tmem_per_sm_bytes: Annotated[int, Field(alias="tmem_per_sm_kib", gt=0, le=GIB)] = 0
    #: share of the tensor cores' rate at which products of 8 to 32 bits are added up in fp32: 0.5 on GeForce cards.
    fp32_accumulate_rate: Annotated[float, Field(ge=0.25, le=1)] = 1.0
    #: cards that an NVLink bridge joins; 0 where links go to switches or a board, or there are none.
    bridged_gpus: Annotated[int, Field(ge=2, le=4)] = 0
    #: the driver lets such cards read each other's memory over PCIe; otherwise data takes the memory of the host.
    pcie_peers: bool = True
    announced: Text = ""  #: what of it is announced and not measured; empty where kernels and runs are published.

    @property
    def link_egress_bytes_per_s(self) -> float:
        """All links together, one direction [bytes/s]."""
        return self.links * self.link_bytes_per_s

    def capped(self, power_w: float) -> "GpuSpec":
        """Return the GPU under another power limit: sustained clocks follow the fourth root of the power
        (docs/kernels.md, sustained clocks), up to those of a short run."""
        clocks, kernels = (power_w / self.power_w) ** 0.25, self.kernels
        narrow = kernels.sustained_16bit_fraction
        kernels = replace(
            kernels,
            sustained_clock_fraction=min(1.0, kernels.sustained_clock_fraction * clocks),
            sustained_16bit_fraction=None if narrow is None else min(1.0, narrow * clocks),
        )
        return replace(self, power_w=power_w, kernels=kernels)

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
