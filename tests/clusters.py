"""Clusters built by hand, so that these tests do not move when a preset does."""

from dataclasses import replace

from gpuscale.calibration.factors import with_kernels
from gpuscale.presets.hardware import load_gpu
from gpuscale.specs.cluster import ClusterSpec, LevelSpec

GB = 1e9


def superpod_2to1(**changes) -> ClusterSpec:
    """Return the scaling book's table of the 1024-GPU H100 SuperPOD: 450, 50 and 25 GB/s per GPU.

    `changes` maps a level's name to the fields to replace.
    """
    levels = (
        LevelSpec("node", "nvlink", 8, 450 * GB, 4, 1600 * GB, 1e-6, True, 0.82),
        LevelSpec("leaf", "infiniband", 256, 50 * GB, 8, 1600 * GB, 5e-6, True, 0.96),
        LevelSpec("spine", "infiniband", 1024, 50 * GB, 16, 1600 * GB, 5.5e-6, True, 0.96),
    )
    changed = tuple(replace(level, **changes.get(level.name, {})) for level in levels)
    return ClusterSpec("superpod", "SuperPOD", load_gpu("h100-sxm-80gb"), changed, True, {})


def mesh_box() -> ClusterSpec:
    """Return eight MI300X, each with one 64 GB/s link to every other."""
    level = LevelSpec("node", "xgmi", 8, 448 * GB, 0, 0.0, 1e-6, False, 0.72)
    return ClusterSpec("mesh", "mesh", load_gpu("mi300x"), (level,), False, {})


def instant(gpu):
    """A GPU that computes in no time, so that nothing hides what it sends."""
    faster = with_kernels(gpu, 1e15, 1e15)
    kernels = replace(faster.kernels, kernel_overhead_s=0.0, tile_overhead_s=0.0)
    peaks = {precision: 1e15 * peak for precision, peak in gpu.peak_flops_per_s.items()}
    return replace(faster, kernels=kernels, peak_flops_per_s=peaks)
