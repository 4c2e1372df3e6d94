"""What quantising the operands of 8- and 4-bit matrix products costs, by recipe.

Every input (forward pass) and every output gradient (backward pass) is read in 16 bits and written twice: as the
product of its own pass takes it, and as the weight gradient takes it. Recipes differ in where the scale comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscale.specs.gpu import GpuSpec


@dataclass(frozen=True)
class Recipe:
    """Memory traffic of quantising one element, and kernels per operand.

    Attributes:
        reads: bytes read: 2 per pass over the 16-bit operand.
        writes: bytes written: both copies with their scales.
        kernels: launches.
    """

    reads: float
    writes: float
    kernels: int


RECIPES = {
    "delayed": Recipe(reads=2, writes=2, kernels=1),
    "current": Recipe(reads=4, writes=2, kernels=2),
    "blockwise": Recipe(reads=2, writes=2 + 2 * 4 / 128, kernels=1),
    "mx": Recipe(reads=2, writes=2 + 3 * 2 / 32, kernels=2),
    "nvfp4": Recipe(reads=4, writes=1 + 3 * 2 / 16, kernels=3),
}
"""Recipes by name (NVIDIA Transformer Engine, documentation and common/recipe).

delayed: one scale per tensor, from the largest values of earlier steps; the maximum for later ones is taken on the way.
current: one scale per tensor from the tensor itself, whose maximum a pass of its own finds. blockwise: a 4-byte scale
per 128 elements. mx: a 1-byte scale per 32 elements, which are then brought into the order that the products read (read
and written once more). nvfp4: half a byte per element, a scale per 16, a pass for the maximum, a Hadamard transform on
the way.
"""

LOW_PRECISIONS = {
    "fp8": ("fp8", ""),
    "fp8-delayed": ("fp8", "delayed"),
    "fp8-current": ("fp8", "current"),
    "fp8-blockwise": ("fp8", "blockwise"),
    "mxfp8": ("fp8", "mx"),
    "fp4": ("fp4", "nvfp4"),
    "nvfp4": ("fp4", "nvfp4"),
}
"""What users call a precision below 16 bits -> precision of the products, recipe ("": the framework's own)."""

TRANSPOSED_COPY_BYTES = 4
"""What the second copy costs more on Hopper, whose fp8 products take both operands row-major: it is a transposed one,
and transposing kernels reach about half of the bandwidth (Transformer Engine, common/transpose; half: guesstimate)."""


SCALED_IN_HARDWARE = {"mx": ("blackwell", "cdna4"), "nvfp4": ("blackwell",)}
"""Recipes whose block scales the matrix units apply themselves -> beginnings of the architectures that do."""


def available_recipes(gpu: GpuSpec) -> list[str]:
    """Return the recipes that run on a GPU."""
    return [name for name in RECIPES if gpu.architecture.startswith(SCALED_IN_HARDWARE.get(name, ""))]


def quantising_bytes(recipe: str, gpu: GpuSpec) -> float:
    """Traffic of quantising one element with its second copy [bytes]."""
    chosen = RECIPES[recipe]
    return chosen.reads + chosen.writes + (TRANSPOSED_COPY_BYTES if gpu.architecture == "hopper" else 0)
