"""Fit the `[kernels]` constants of the GPU presets to measured kernels, and report how far the model is off.

    python benchmarks/fit_kernels.py kernels.csv           # error of the shipped presets, per GPU, kind and precision
    python benchmarks/fit_kernels.py kernels.csv --fit     # fit anew and print the constants

The CSV has one measured kernel per row: `id source gpu kind dtype m n k extra tflops notes`, FLOPs counted as 2 m n k
(GEMM) or as the masked half (AIConfigurator attention) or the full square (SimuMax attention) of causal attention.
docs/kernels.md describes the model, what is left out of the fit, and why.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.presets.hardware import load_gpu
from gpuscale.specs.gpu import GpuSpec
from gpuscale.validation.kernels import QUANTISE, Kernels, group_kernels, predict_s
from gpuscale.validation.measurements import read_measurements

Vector = dict[str, float]

GENERATIONS = {
    "Ampere": ("a100-sxm-80gb", "a100-pcie-80gb"),
    "Ada": ("l40s",),
    "Hopper": ("h100-sxm-80gb", "h200-sxm-141gb"),
    "Blackwell": ("b200", "gb200"),
    "Blackwell RTX": ("rtx-pro-6000",),
    "Blackwell Ultra": ("b300", "gb300"),
}
"""GPUs that share tile, overhead, wave-loss and attention constants; each has its own shares of peak."""

TILES = ((128, 128), (128, 256), (256, 256))


def read_rows(path: Path) -> list[Kernels]:
    """Read and group the CSV; rows without sizes or without one of the fitted GPUs are dropped."""
    fitted = {gpu for members in GENERATIONS.values() for gpu in members}
    groups, _ = group_kernels(read_measurements(path)[1])
    return [group for group in groups if group.gpu in fitted]


def robust_loss(error: FloatArray, knee: float = 0.1) -> float:
    """Mean Huber loss of log errors: squares below 10 %, absolute values above, so outliers pull little."""
    size = np.abs(error)
    return float(np.mean(np.where(size < knee, size**2 / (2 * knee), size - knee / 2)))


def compass_search(loss: Callable[[Vector], float], start: Vector, bounds: Mapping[str, tuple[float, float]]) -> Vector:
    """Minimise by scaling one parameter at a time up or down, with ever smaller steps (deterministic)."""
    best, best_loss = dict(start), loss(start)
    for step in (1.5, 1.2, 1.1, 1.05, 1.02, 1.01, 1.005):
        improved = True
        while improved:
            improved = False
            for name in start:
                for factor in (step, 1 / step):
                    value = float(np.clip(best[name] * factor, *bounds[name.split(".")[0]]))
                    trial_loss = loss(best | {name: value})
                    if trial_loss < best_loss - 1e-7:
                        best, best_loss, improved = best | {name: value}, trial_loss, True
    return best


GEMM_BOUNDS = {
    "gemm_fraction": (0.2, 1.1), "sustained_clock_fraction": (0.3, 1.0), "tile_overhead_s": (1e-7, 5e-6),
    "wave_loss_fraction": (0.1, 1.0), "kernel_overhead_s": (1e-6, 1e-5), "quantise_bytes": (1.0, 20.0),
    "quantise_s": (1e-6, 3e-5),
}  # fmt: skip
ATTENTION_BOUNDS = {
    "attention_forward_fraction": (0.3, 0.85), "attention_backward_fraction": (0.3, 0.85),
    "attention_ramp_keys": (32.0, 256.0), "attention_tail_tiles": (0.5, 2.0), "exp_per_cycle_per_sm": (16.0, 64.0),
}  # fmt: skip
"""16 exponentials per cycle and SM is the hardware's rate (CUDA C++ Programming Guide, arithmetic instructions)."""


def with_gemm_constants(gpu: GpuSpec, tile: tuple[int, int], vector: Vector) -> GpuSpec:
    """Return `gpu` with the GEMM constants of `vector`; `gemm_fraction.<gpu>.<precision>` names its own shares."""
    prefix = f"gemm_fraction.{gpu.name}."
    fractions = {name.removeprefix(prefix): value for name, value in vector.items() if name.startswith(prefix)}
    if not fractions and gpu.name == "a100-pcie-80gb":  # measured in long runs only: the same chip at 300 W
        fractions = {"bf16": vector["gemm_fraction.a100-sxm-80gb.bf16"]}
    kernels = replace(
        gpu.kernels,
        tile_m=tile[0],
        tile_n=tile[1],
        gemm_fraction=dict(gpu.kernels.gemm_fraction) | fractions,
        tile_overhead_s=vector["tile_overhead_s"],
        wave_loss_fraction=vector["wave_loss_fraction"],
        kernel_overhead_s=vector["kernel_overhead_s"],
    )
    return replace(gpu, kernels=kernels)


def fit_gemm(gpus: Mapping[str, GpuSpec], rows: list[Kernels]) -> tuple[tuple[int, int], Vector]:
    """Fit a generation's tile and overheads, and a share of peak per GPU and precision, to its short runs."""
    short = [group for group in rows if group.kind == "gemm" and group.benchmark == "short"]
    start = {"tile_overhead_s": 1e-6, "wave_loss_fraction": 0.4, "kernel_overhead_s": 3e-6}
    for group in short:
        start[f"gemm_fraction.{group.gpu}.{group.precision}"] = 0.7
        if (quantise := QUANTISE.get((load_gpu(group.gpu).architecture, group.precision))) is not None:
            start[f"quantise_bytes.{group.precision}"], start[f"quantise_s.{group.precision}"] = quantise

    def loss_with(tile: tuple[int, int]) -> Callable[[Vector], float]:
        def loss(vector: Vector) -> float:
            fitted = {name: with_gemm_constants(gpu, tile, vector) for name, gpu in gpus.items()}
            return sum(robust_loss(_log_error(fitted[group.gpu], group, vector)) for group in short) / len(short)

        return loss

    fits = [(tile, compass_search(loss_with(tile), start, GEMM_BOUNDS)) for tile in TILES]
    return min(fits, key=lambda fit: loss_with(fit[0])(fit[1]))


def fit_sustained(gpu: GpuSpec, rows: list[Kernels], quantise: Vector) -> dict[str, float]:
    """Measured speed / short-run model where the power limit acts, by benchmark: the median over dense 16-bit GEMMs.

    It acts in short-run benchmarks on kernels of over 10 ms, and in a long run on kernels of over 0.1 ms.
    """
    free = replace(gpu, kernels=replace(gpu.kernels, sustained_clock_fraction=1.0, sustained_16bit_fraction=None))
    ratios = {}
    for group in rows:
        long = group.measured_s > {"short": 1e-2, "sustained": 1e-4}.get(group.benchmark, np.inf)
        if group.gpu == gpu.name and group.kind == "gemm" and group.precision == "bf16" and long.any():
            ratios[group.benchmark] = float(np.median((predict_s(free, group, quantise) / group.measured_s)[long]))
    return ratios


def fit_attention(gpus: Mapping[str, GpuSpec], rows: list[Kernels]) -> Vector:
    """Fit the attention constants of a generation, training kernels with twice the weight of inference kernels."""
    groups = [group for group in rows if group.kind == "attention"]
    start = {name: getattr(next(iter(gpus.values())).kernels, name) for name in ATTENTION_BOUNDS}
    if not any(group.columns["backward"].any() for group in groups):
        del start["attention_backward_fraction"]  # nothing measured: kept as the preset has it

    def loss(vector: Vector) -> float:
        fitted = {name: replace(gpu, kernels=replace(gpu.kernels, **vector)) for name, gpu in gpus.items()}  # type: ignore[arg-type]
        return sum(
            robust_loss(_log_error(fitted[group.gpu], group)) * (1 if group.benchmark == "short" else 2)
            for group in groups
        )

    return compass_search(loss, start, ATTENTION_BOUNDS)


def _log_error(gpu: GpuSpec, rows: Kernels, quantise: Vector | None = None) -> FloatArray:
    return np.log(predict_s(gpu, rows, quantise) / rows.measured_s)


def print_fit(rows: list[Kernels]) -> None:
    """Fit every generation and print its constants."""
    for generation, members in GENERATIONS.items():
        gpus = {name: load_gpu(name) for name in members}
        own = [group for group in rows if group.gpu in gpus]
        tile, vector = fit_gemm(gpus, own)
        gpus = {name: with_gemm_constants(gpu, tile, vector) for name, gpu in gpus.items()}
        print(f"\n# {generation}: {', '.join(members)}\ntile_m, tile_n = {tile}")
        for name, value in {**vector, **fit_attention(gpus, own)}.items():
            print(f"{name} = {value * 1e6:.2f} us" if name.split(".")[0].endswith("_s") else f"{name} = {value:.3g}")
        for name, gpu in gpus.items():
            for benchmark, ratio in fit_sustained(gpu, own, vector).items():
                print(f"sustained_clock_fraction.{name} = {ratio:.3g} ({benchmark} benchmark)")


def print_errors(rows: list[Kernels]) -> None:
    """Print median and 90th percentile of the relative error of the shipped presets, per group of rows."""
    print(f"{'GPU':18} {'kind':10} {'prec':5} {'benchmark':20} {'rows':>5} {'bias':>7} {'median':>7} {'p90':>7}")
    for group in rows:
        error = predict_s(load_gpu(group.gpu), group) / group.measured_s - 1
        figures = (np.median(error), np.median(np.abs(error)), np.percentile(np.abs(error), 90))
        shown = " ".join(f"{figure:7.1%}" for figure in figures)
        print(f"{group.gpu:18} {group.kind:10} {group.precision:5} {group.benchmark:20} {error.size:5} {shown}")


def main() -> None:
    """Read the CSV named on the command line, then report or fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("csv", type=Path, help="measured kernels")
    parser.add_argument("--fit", action="store_true", help="fit anew and print the constants instead of the errors")
    arguments = parser.parse_args()
    rows = read_rows(arguments.csv)
    print_fit(rows) if arguments.fit else print_errors(rows)


if __name__ == "__main__":
    main()
