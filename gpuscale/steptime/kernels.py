"""Time of one kernel launch: GEMM, grouped GEMM, fused attention, and kernels that only stream memory: rooflines with
the few measured constants of `gpuscale.specs.gpu.KernelSpec` (docs/kernels.md). Arguments broadcast against each other
as NumPy arrays; gaps between launches (`KernelSpec.launch_s`) are the caller's."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.arrays import FloatArray
from gpuscale.errors import InputError
from gpuscale.specs.gpu import BEFORE_HOPPER, BLACKWELL, WIDE, GpuSpec

OPERAND_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes per operand element; fp4 carries one fp8 scale per 16 elements (NVIDIA cuDNN documentation, NVFP4)."""

BACKWARD_FLOPS_RATIO = 2.5
"""Fused attention, FLOPs backward / forward: five matrix products instead of two (Dao 2023, FlashAttention-2)."""

BACKWARD_TAIL_FRACTION = 0.25
"""Tail of the backward relative to the forward pass: its tiles are more even (fitted, docs/kernels.md)."""

HALF_TILE_FRACTION = 0.92
"""Arithmetic rate of an output tile with one edge halved, relative to the full tile."""

EXPOSED_ACCUMULATION = 0.5
"""Share of the traffic of accumulating into 32-bit gradients that is not hidden (fitted, docs/kernels.md)."""

GROUP_ISSUE_S = 9e-6
"""Time to issue one product of a grouped GEMM from the host (fitted to Transformer Engine, which loops over the
experts; docs/kernels.md)."""

GENERATION_SHARE = {
    "flash1": ((0.417, 0.304), (0.230, 0.168)),
    "flash2": ((0.705, 0.529), (0.374, 0.303)),
    "cudnn8": ((1.0, 1.0), (0.485, 0.364)),
}
"""Share of the 16-bit peak that the products of older fused attention kernels reach at best, by generation: Ampere or
earlier, then Hopper (whose asynchronous tensor cores they cannot use); forward, backward.

flash1, and PyTorch's memory-efficient attention: 30-50 % and 25-35 % of A100's peak; flash2: up to 73 % and 55 % (Dao
2023, FlashAttention-2, sections 1 and 4.1), 35-40 % of H100's (Shah et al. 2024, FlashAttention-3, section 1 and figure
5). flash1 on Hopper: A100's times 0.63, what synchronous products reach (Luo et al. 2024, arXiv 2402.13499, section on
tensor cores), and the ratio of the sustained clocks. cudnn8: cuDNN before 9.3, fitted to whole runs (docs/model.md).
"""

SYNCHRONOUS_ON_BLACKWELL = 0.5
"""The same share on Blackwell / on Hopper, whose asynchronous products are half as wide. FlashAttention-2 on B200: 361
TFLOP/s measured (forward, heads of 128; github.com/meta-pytorch/tritonbench pull request 171; predicted 371) and 334
(backward, 64; Dao-AILab/flash-attention issue 1589; 325)."""

SYNCHRONOUS = frozenset({*BEFORE_HOPPER, "blackwell-rtx"})
"""NVIDIA architectures without asynchronous tensor cores, whose own attention kernels are FlashAttention-2's."""

ATTENTION_QUERY_TILE = 128
"""Queries that one SM works on at a time (Shah et al. 2024, FlashAttention-3, section 3)."""


def gemm_time_s(
    gpu: GpuSpec,
    precision: str,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    groups: ArrayLike = 1,
    output_bytes_per_element: ArrayLike | None = None,
    issued_singly: bool = True,
) -> FloatArray:
    """Time of `groups` products of m x k by k x n in one launch [s] (docs/kernels.md).

    Args:
        precision: of the operands, one of `gpuscale.specs.gpu.PRECISIONS` that the GPU has.
        m, n, k: sizes of one product, any shape; where one is 0 there is no work and the time is 0.
        groups: products in the launch; of unequal ones, m is the mean.
        output_bytes_per_element: traffic of the output: 2 = written in 16 bits, 8 = added onto 32-bit gradients; None:
            written once, in 16 bits or in 32 where the operands have so many.
        issued_singly: the host issues one product of a group after the other.

    Raises:
        InputError: the GPU lacks the precision.

    References: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantisation).
    """
    m, n, k, groups = (np.asarray(size, dtype=np.float64) for size in (m, n, k, groups))
    math_s = _gemm_math_s(gpu, precision, m, n, k, groups)
    if output_bytes_per_element is None:
        output_bytes_per_element = max(2.0, OPERAND_BYTES[precision])
    operand_bytes = OPERAND_BYTES[precision] * (m + n) * k
    output_bytes = np.asarray(output_bytes_per_element)
    moved_bytes = groups * (operand_bytes + output_bytes * m * n)
    memory_s = moved_bytes / _hbm_bytes_per_s(gpu)
    accumulated_bytes = groups * np.maximum(output_bytes - 2.0, 0.0) * m * n
    math_s = math_s + EXPOSED_ACCUMULATION * accumulated_bytes / _hbm_bytes_per_s(gpu)
    issue_s = np.where((groups > 1) & issued_singly, groups * GROUP_ISSUE_S, 0.0)
    time_s = np.hypot(np.maximum(math_s, memory_s), issue_s) + gpu.kernels.kernel_overhead_s
    return np.where(groups * m * n * k > 0, time_s, 0.0)


def attention_time_s(  # noqa: PLR0913, PLR0917 - the sizes of an attention kernel are its arguments
    gpu: GpuSpec,
    precision: str,
    sequences: ArrayLike,
    heads: ArrayLike,
    query_tokens: ArrayLike,
    average_keys: ArrayLike,
    head_dim: ArrayLike,
    value_head_dim: ArrayLike,
    backward: bool,
    generation: str = "native",
) -> FloatArray:
    """Time of fused (flash) attention over all heads and sequences in one launch [s] (docs/kernels.md).

    The constants are those of long runs: `sustained_clock_fraction` applies to FlashAttention-2 alone, whose rates are
    of short ones, and not on Blackwell, of which it uses too little.

    Args:
        precision: of the operands; below 16 bits the products still run in 16 bits.
        average_keys: keys that a query attends to, averaged over queries: half the sequence length if causal.
        head_dim, value_head_dim: of one head's queries and keys, and of its values.
        backward: the backward pass, with the products of the forward pass done again.
        generation: of the kernels, `native` (made for the GPU: cuDNN, FlashAttention-3) or a key of `GENERATION_SHARE`.

    References: Dao 2023, FlashAttention-2; Shah et al. 2024, FlashAttention-3, section 2.2 (exponentials).
    """
    kernels = gpu.kernels
    sequences, heads, queries, keys, qk_dim, v_dim = (
        np.asarray(size, dtype=np.float64)
        for size in (sequences, heads, query_tokens, average_keys, head_dim, value_head_dim)
    )
    rows = sequences * heads * queries
    scores = rows * np.where(keys > 0, keys + kernels.attention_ramp_keys, 0.0)
    unpadded = generation == "native" and not backward and gpu.architecture not in SYNCHRONOUS
    width = (qk_dim + v_dim) / 2 if unpadded else np.maximum(qk_dim, v_dim)
    flops = 2.0 * scores * 2.0 * width * (BACKWARD_FLOPS_RATIO if backward else 1.0)
    fraction = kernels.attention_backward_fraction if backward else kernels.attention_forward_fraction
    if precision not in WIDE:
        precision = next((name for name in ("bf16", "fp16") if name in gpu.peak_flops_per_s), precision)
    peak = gpu.peak(precision)
    if generation != "native":
        blackwell = gpu.architecture in BLACKWELL
        best = GENERATION_SHARE[generation][gpu.architecture not in SYNCHRONOUS][backward]
        if blackwell:
            best *= SYNCHRONOUS_ON_BLACKWELL
        elif generation == "flash2":
            best *= kernels.sustained_clock_fraction
        fraction = min(fraction, best)
    exp_per_s = kernels.exp_per_cycle_per_sm * gpu.sm_count * gpu.clock_boost_hz
    busy_s = flops / (peak * fraction) + scores / exp_per_s
    tiles = sequences * heads * np.ceil(queries / ATTENTION_QUERY_TILE)
    waves = np.maximum(tiles, 1.0) / gpu.sm_count
    tail_tiles = kernels.attention_tail_tiles * (BACKWARD_TAIL_FRACTION if backward else 1.0)
    math_s = busy_s * (1.0 + tail_tiles / waves)
    moved_bytes = OPERAND_BYTES[precision] * rows * (qk_dim + v_dim) * (2.0 if backward else 1.0)
    time_s = np.maximum(math_s, moved_bytes / _hbm_bytes_per_s(gpu)) + kernels.kernel_overhead_s
    return np.where(flops > 0, time_s, 0.0)


def stream_time_s(gpu: GpuSpec, bytes_moved: ArrayLike, kernels: ArrayLike = 1) -> FloatArray:
    """Time of `kernels` launches that read and write `bytes_moved` of HBM in all and compute next to nothing [s]."""
    moved = np.asarray(bytes_moved, dtype=np.float64)
    overhead_s = np.asarray(kernels, dtype=np.float64) * gpu.kernels.kernel_overhead_s
    return np.where(moved > 0, moved / _hbm_bytes_per_s(gpu) + overhead_s, 0.0)


def elementwise_time_s(gpu: GpuSpec, bytes_moved: ArrayLike, kernels: ArrayLike = 1) -> FloatArray:
    """The same of what stands between the products of a layer, which reaches `stream_fraction` of the bandwidth (casts
    and the optimizer are copies)."""
    slower = gpu.kernels.hbm_fraction / (gpu.kernels.stream_fraction or gpu.kernels.hbm_fraction)
    return stream_time_s(gpu, np.asarray(bytes_moved, dtype=np.float64) * slower, kernels)


def gemm_flops_per_s(gpu: GpuSpec, precision: str) -> float:
    """Rate of full output tiles in a long run [FLOP/s]: the ceiling of `gemm_time_s`.

    A precision without its own share of the peak takes the 16-bit one (same kernels).
    """
    fractions = gpu.kernels.gemm_fraction
    known = next((name for name in (precision, "bf16", "fp16") if name in fractions), None)
    if known is None:
        raise InputError(f"{gpu.title} states no gemm_fraction for {precision}", place=f"{gpu.name} [kernels]")
    return gpu.peak(precision) * fractions[known] * gpu.kernels.sustained(precision)


def _gemm_math_s(
    gpu: GpuSpec, precision: str, m: FloatArray, n: FloatArray, k: FloatArray, groups: FloatArray
) -> FloatArray:
    kernels = gpu.kernels
    sm_flops_per_s = gemm_flops_per_s(gpu, precision) / gpu.sm_count
    best: FloatArray | float = np.inf
    for halves_m, halves_n in ((0, 0), (1, 0), (0, 1), (1, 1)):
        tile_m, tile_n = kernels.tile_m / 2**halves_m, kernels.tile_n / 2**halves_n
        tile_rate = sm_flops_per_s * HALF_TILE_FRACTION ** (halves_m + halves_n)
        tile_s = 2.0 * tile_m * tile_n * k / tile_rate + kernels.tile_overhead_s
        waves = groups * np.ceil(m / tile_m) * np.ceil(n / tile_n) / gpu.sm_count
        occupied = waves + kernels.wave_loss_fraction * (np.ceil(waves) - waves)  # the incomplete last one loses some
        best = np.minimum(best, occupied * tile_s)
    return np.asarray(best, dtype=np.float64)


def _hbm_bytes_per_s(gpu: GpuSpec) -> float:
    return gpu.memory_bandwidth_bytes_per_s * gpu.kernels.hbm_fraction


RECIPES = {
    # name: bytes read, bytes written per element; kernels per operand
    "delayed": (2, 2, 1),
    "current": (4, 2, 2),
    "blockwise": (2, 2 + 2 * 4 / 128, 1),
    "mx": (2, 2 + 3 * 2 / 32, 2),
    "nvfp4": (4, 1 + 3 * 2 / 16, 3),
}
"""Ways to quantise the operands of 8- and 4-bit products (NVIDIA Transformer Engine, documentation and common/recipe):
inputs and output gradients are read in 16 bits and written twice with their scales, as both products take them.

delayed: one scale per tensor, from earlier steps. current: one from the tensor itself, whose maximum takes a pass of
its own. blockwise: a 4-byte scale per 128 elements. mx: a 1-byte scale per 32 elements, which are then reordered (read
and written once more). nvfp4: half a byte per element, a scale per 16, a pass for the maximum, a Hadamard transform on
the way.
"""

TRANSPOSED_COPY_BYTES = 4
"""Extra traffic of the second copy on Hopper, whose fp8 products take both operands row-major: transposing kernels
reach about half of the bandwidth (Transformer Engine, common/transpose; half: guesstimate)."""

SCALED_IN_HARDWARE = {"mx": ("blackwell", "rubin", "cdna4"), "nvfp4": ("blackwell", "rubin")}
"""Recipes whose block scales the matrix units apply themselves -> beginnings of the architectures that do."""


def available_recipes(gpu: GpuSpec) -> list[str]:
    """Return the recipes that run on a GPU."""
    return [name for name in RECIPES if gpu.architecture.startswith(SCALED_IN_HARDWARE.get(name, ""))]


def quantising_bytes(recipe: str, gpu: GpuSpec) -> tuple[float, float]:
    """Traffic of quantising one element with its second copy, and more for transposing that [bytes]."""
    read, written, _ = RECIPES[recipe]
    return read + written, TRANSPOSED_COPY_BYTES if gpu.architecture == "hopper" else 0
