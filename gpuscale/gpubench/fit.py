"""Kernel constants of a GPU fitted to a protocol, and the kernels predicted with them (docs/kernels.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, added_up, log
from gpuscale.calibration.gpu_protocol import Measurement, Protocol, label
from gpuscale.calibration.site import solve
from gpuscale.errors import InputError
from gpuscale.specs.gpu import GpuSpec
from gpuscale.steptime.kernels import attention_time_s, gemm_time_s, stream_time_s
from gpuscale.units import plural
from gpuscale.validation.kernels import IN_TRAINING

TILES = ((128, 128), (128, 256), (256, 256))
"""Output tiles that are tried beside the preset's own."""

KNEE = 0.1
"""Relative error from which on a kernel pulls by its sign alone: outliers pull little."""

PRIOR = math.log(4)
"""Spread of a constant around the preset's: what the protocol says nothing of stays there."""

NOISE = 0.02
"""Least relative error that kernels are taken to have."""

STARTS = (1.0, 0.6, 1.6)
"""Times the preset's overheads, from which the fit begins: its surface has several valleys."""

LIMITS = {
    "gemm_fraction": (0.02, 1.1), "tile_overhead_s": (1e-8, 5e-5), "wave_loss_fraction": (0.01, 1.0),
    "kernel_overhead_s": (1e-7, 5e-5), "hbm_fraction": (0.05, 1.0), "attention_forward_fraction": (0.05, 1.0),
    "attention_backward_fraction": (0.05, 1.0), "attention_ramp_keys": (1.0, 4096.0),
    "attention_tail_tiles": (0.05, 8.0), "exp_per_cycle_per_sm": (4.0, 256.0),
}  # fmt: skip

MAX_STEPS = 60

LEAST_KERNELS = 3
"""Kernels of a kind from which on its constants are fitted."""


class Best(NamedTuple):
    """The least squares: the sum, the constants, and their relative standard deviations."""

    loss: float
    values: dict[str, float]
    spreads: dict[str, float]


class Kernels(NamedTuple):
    """Measured kernels of one kind and precision as arrays."""

    kind: str  #: `gemm`, `attention forward`, `attention backward`, `stream`; of GEMMs with the regime.
    precision: str
    columns: Mapping[str, FloatArray]  #: sizes.
    measured_s: FloatArray
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """A kernel constant before and after the fit, in the unit of the GPU file."""

    name: str  #: its key in `[kernels]`.
    before: float  #: what the preset has.
    after: float  #: what the protocol says; the same where it says nothing.
    uncertainty: float | None  #: relative standard deviation of `after`; null where it was not fitted.
    kernels: int  #: measured kernels that it was fitted to.


Found = dict[str, Constant]


@dataclass(frozen=True)
class Errors:
    """How far predictions of one kind of kernel are off, as (predicted - measured) / measured."""

    kind: str  #: what they are.
    precision: str  #: of the operands.
    kernels: int  #: how many were measured.
    before_median_abs: float  #: median size of the error with the preset's constants.
    median_abs: float  #: the same with the fitted ones.
    p90_abs: float  #: 90th percentile of that size.
    bias: float  #: median of the error.


@dataclass(frozen=True)
class Predicted:
    """One measured kernel and its predictions."""

    kernel: str  #: what it is.
    measured_us: float  #: measured time.
    before_us: float  #: predicted with the preset's constants.
    predicted_us: float  #: predicted with the fitted ones.


@dataclass(frozen=True)
class GpuFit:
    """A GPU whose kernel constants are fitted to a protocol."""

    device: str  #: product name of the GPU that was measured.
    base: str  #: preset from which the fit began, and whose other numbers hold.
    gpu: GpuSpec  #: the GPU with the fitted constants.
    constants: tuple[Constant, ...]  #: what was fitted, and what stayed.
    errors: tuple[Errors, ...]  #: how far kernels are off, by kind and precision.
    rows: tuple[Predicted, ...]  #: every measured kernel.
    failed: Mapping[str, str]  #: what the machine could not run, and why.
    software: str  #: versions of what ran.
    notes: tuple[str, ...]  #: what is worth knowing.


def fit_gpu(protocol: Protocol, gpu: GpuSpec) -> GpuFit:
    """Fit the kernel constants of `gpu` to a protocol.

    GEMMs in short bursts and streams of memory give the shares of peak, the tile and the overheads together; attention
    its own constants; GEMMs of seconds the sustained clocks; tiny kernels the gap between launches.

    Raises:
        InputError: the protocol has no kernels to fit to.
    """
    groups = grouped(protocol.measurements, gpu)
    if not groups:
        raise InputError("holds no measured kernel that this GPU has", hint="`gpuscale calibrate gpu` measures them")
    found = {name: Constant(name, value, value, None, 0) for name, value in constants_of(gpu).items()}
    fitted = _fit_gemms(gpu, [one for one in groups if one.kind in {"gemm short", "stream"}], found)
    fitted = _fit_attention(fitted, [one for one in groups if one.kind.startswith("attention")], found)
    fitted = _fit_clocks(fitted, [one for one in groups if one.kind == "gemm sustained"], found)
    fitted = _fit_launch(fitted, protocol.measurements, found)
    rows, errors = [], []
    for group in groups:
        before, after = predict_s(gpu, group), predict_s(fitted, group)
        errors.append(_errors(group, before, after))
        each = zip(group.labels, group.measured_s.tolist(), before.tolist(), after.tolist(), strict=True)
        rows += [Predicted(name, *(_rounded(value * 1e6) for value in times)) for name, *times in each]
    failed = {label(one.case): one.error for one in protocol.measurements if one.time_s is None}
    machine = protocol.machine
    notes = _notes(protocol, gpu, fitted)
    constants = tuple(found.values())
    return GpuFit(machine.gpu, gpu.name, fitted, constants, tuple(errors), tuple(rows), failed, machine.software, notes)


def constants_of(gpu: GpuSpec) -> dict[str, float]:
    """Return the constants that a protocol can tell, by the keys of a GPU file, in their units."""
    kernels = gpu.kernels
    fractions = {f"gemm_fraction.{name}": value for name, value in kernels.gemm_fraction.items()}
    clocks = {
        "sustained_clock_fraction": kernels.sustained_clock_fraction,
        "sustained_16bit_fraction": kernels.sustained("bf16"),
    }
    others = {
        name: _rounded(getattr(kernels, f"{name[:-3]}_s") * 1e6) if name.endswith("_us") else getattr(kernels, name)
        for name in _OTHERS
    }
    return {**fractions, **clocks, **others}


_OTHERS = (
    "tile_m", "tile_n", "tile_overhead_us", "wave_loss_fraction", "kernel_overhead_us", "hbm_fraction",
    "attention_forward_fraction", "attention_backward_fraction", "attention_ramp_keys", "attention_tail_tiles",
    "exp_per_cycle_per_sm", "launch_us",
)  # fmt: skip


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# --- kernels and their predictions


def grouped(measurements: Sequence[Measurement], gpu: GpuSpec) -> list[Kernels]:
    """Return the measured kernels by kind and precision that the GPU has."""
    found: dict[tuple[str, str], list[tuple[dict[str, Any], float, str]]] = {}
    for one in measurements:
        sizes = dict(one.case)
        kind = sizes.pop("kind")
        if one.time_s is None or kind not in {"gemm", "attention", "stream"}:
            continue
        precision = sizes.pop("precision", "bf16" if "bf16" in gpu.peak_flops_per_s else "fp16")
        if kind == "gemm":
            kind += f" {sizes.pop('regime')}"
        if kind == "attention":
            kind += " backward" if sizes.pop("backward") else " forward"
        if precision in gpu.peak_flops_per_s:
            sizes.pop("op", None)
            found.setdefault((kind, precision), []).append((sizes, one.time_s, label(one.case)))
    return [
        Kernels(
            *key,
            {name: np.array([float(sizes[name]) for sizes, *_ in rows]) for name in rows[0][0]},
            np.array([time_s for _, time_s, _ in rows]),
            tuple(name for *_, name in rows),
        )
        for key, rows in sorted(found.items())
    ]


def predict_s(gpu: GpuSpec, kernels: Kernels) -> FloatArray:
    """Predict each kernel as it was measured: short bursts see no power limit, GEMMs alone less of it."""
    sizes = kernels.columns
    if kernels.kind == "stream":
        return stream_time_s(gpu, sizes["bytes"], sizes["kernels"])
    if kernels.kind.startswith("attention"):
        keys, dim = sizes["tokens"] / 2, sizes["head_dim"]
        backward = kernels.kind.endswith("backward")
        shape = (sizes["sequences"], sizes["heads"], sizes["tokens"], keys, dim, dim)
        return attention_time_s(gpu, kernels.precision, *shape, backward)
    alone = gpu.kernels.sustained(kernels.precision) / IN_TRAINING if kernels.kind == "gemm sustained" else 1.0
    free = with_constants(gpu, sustained_clock_fraction=min(1.0, alone), sustained_16bit_fraction=None)
    return gemm_time_s(free, kernels.precision, sizes["m"], sizes["n"], sizes["k"])


def with_constants(gpu: GpuSpec, **constants: Any) -> GpuSpec:
    """Return a GPU with other kernel constants, by the fields of `KernelSpec`."""
    return replace(gpu, kernels=replace(gpu.kernels, **constants))


def _errors(group: Kernels, before: FloatArray, after: FloatArray) -> Errors:
    old, new = (sorted(abs(one) for one in (times / group.measured_s - 1).tolist()) for times in (before, after))
    p90 = new[min(len(new) - 1, math.ceil(0.9 * len(new)) - 1)]
    bias = median((after / group.measured_s - 1).tolist())
    shares = (median(old), median(new), p90, bias)
    return Errors(group.kind, group.precision, len(new), *(round(share, 6) for share in shares))


# --- the fit


def _fit_gemms(gpu: GpuSpec, groups: list[Kernels], found: Found) -> GpuSpec:
    """Fit shares of peak, tile and overheads to GEMMs and the memory's share to streams, together."""
    kernels = gpu.kernels
    gemms, streams = ([one for one in groups if (one.kind == "stream") == wanted] for wanted in (False, True))
    start = {f"gemm_fraction.{one.precision}": kernels.gemm_fraction.get(one.precision, 0.7) for one in gemms}
    counts = {f"gemm_fraction.{one.precision}": len(one.labels) for one in gemms}
    for names, of in (
        (("tile_overhead_s", "wave_loss_fraction"), gemms),
        (("kernel_overhead_s",), groups),
        (("hbm_fraction",), streams),
    ):
        if _count(of) >= LEAST_KERNELS:
            start |= {name: getattr(kernels, name) for name in names}
            counts |= dict.fromkeys(names, _count(of))
    own = (kernels.tile_m, kernels.tile_n)
    fits = []
    for tile in dict.fromkeys((own, *TILES)) if gemms else (own,):
        for times in STARTS:
            begin = {name: value * times if name.endswith("_s") else value for name, value in start.items()}
            fits.append((_least_squares(partial(_with_gemms, gpu, tile), groups, begin, start), tile))
    best, tile = min(fits, key=lambda fit: fit[0].loss)
    _take(found, best, counts)
    fitted = _with_gemms(gpu, tile, best.values)
    if gemms:
        twins = {f"gemm_fraction.{name}": _rounded(value) for name, value in fitted.kernels.gemm_fraction.items()}
        for name, value in {"tile_m": tile[0], "tile_n": tile[1], **twins}.items():
            measured = value != found[name].before or name.startswith("tile")
            found[name] = replace(found[name], after=value, kernels=found[name].kernels or _count(gemms) * measured)
    return fitted


def _with_gemms(gpu: GpuSpec, tile: tuple[int, int], values: Mapping[str, float]) -> GpuSpec:
    fractions = {name.partition(".")[2]: value for name, value in values.items() if name.startswith("gemm_fraction.")}
    others = {name: value for name, value in values.items() if "." not in name}
    own = gpu.kernels.gemm_fraction
    if {"bf16", "fp16"} <= set(own) and "bf16" in fractions:  # 16 bits of either kind run alike
        fractions = {"fp16": min(own["fp16"] * fractions["bf16"] / own["bf16"], 1.1)} | fractions
    fractions = dict(own) | fractions
    return with_constants(gpu, gemm_fraction=fractions, tile_m=tile[0], tile_n=tile[1], **others)


def _fit_attention(gpu: GpuSpec, groups: list[Kernels], found: Found) -> GpuSpec:
    """Fit attention's own constants; the exponentials' rate only to heads of several sizes."""
    if _count(groups) < LEAST_KERNELS:
        return gpu
    counts = {f"{one.kind.replace(' ', '_')}_fraction": len(one.labels) for one in groups}
    dims = {dim for one in groups for dim in one.columns["head_dim"].tolist()}
    exponentials = ("exp_per_cycle_per_sm",) if len(dims) > 1 else ()
    counts |= dict.fromkeys(("attention_ramp_keys", "attention_tail_tiles", *exponentials), _count(groups))
    start = {name: max(getattr(gpu.kernels, name), LIMITS[name][0]) for name in counts}
    best = _least_squares(lambda values: with_constants(gpu, **values), groups, start, start)
    _take(found, best, counts)
    return with_constants(gpu, **best.values)


def _fit_clocks(gpu: GpuSpec, groups: list[Kernels], found: Found) -> GpuSpec:
    """Fit the sustained clocks: how much faster short bursts would have run GEMMs of seconds."""
    clocks = {}
    for group in groups:
        ratios = (predict_s(gpu, group._replace(kind="gemm short")) / group.measured_s).tolist()
        clocks[group.precision] = _rounded(min(1.0, max(0.3, IN_TRAINING * median(ratios))))
    wide = next((clocks[one] for one in ("bf16", "fp16") if one in clocks), None)
    if wide is None:
        return gpu
    # 16-bit GEMMs have a constant of their own only where narrower ones keep another clock
    narrow = clocks.get("fp8", wide)
    narrow = narrow if abs(narrow / wide - 1) > NOISE else wide
    for name, value in (("sustained_clock_fraction", narrow), ("sustained_16bit_fraction", wide)):
        found[name] = replace(found[name], after=value, uncertainty=NOISE, kernels=_count(groups))
    own = None if narrow == wide else wide
    return with_constants(gpu, sustained_clock_fraction=narrow, sustained_16bit_fraction=own)


def _fit_launch(gpu: GpuSpec, measurements: Sequence[Measurement], found: Found) -> GpuSpec:
    """Fit the gap between launches: a tiny kernel in a full queue less the same in a CUDA graph."""
    times = {dict(one.case)["op"]: one.time_s for one in measurements if dict(one.case)["kind"] == "launch"}
    queued, graph = times.get("queued"), times.get("graph")
    if queued is None or graph is None:
        return gpu
    launch_us = _rounded(max(0.0, queued - graph) * 1e6)
    found["launch_us"] = replace(found["launch_us"], after=launch_us, uncertainty=NOISE, kernels=2)
    return with_constants(gpu, launch_s=launch_us * 1e-6)


def _count(groups: Sequence[Kernels]) -> int:
    return sum(len(one.labels) for one in groups)


def _take(found: Found, best: Best, counts: Mapping[str, int]) -> None:
    for name, value in best.values.items():
        key = name.removesuffix("_s") + "_us" if name.endswith("_s") else name
        after = _rounded(value * 1e6 if name.endswith("_s") else value)
        found[key] = Constant(key, found[key].before, after, round(best.spreads[name], 4), counts[name])


def _notes(protocol: Protocol, gpu: GpuSpec, fitted: GpuSpec) -> tuple[str, ...]:
    machine, notes = protocol.machine, []
    if machine.sm_count and machine.sm_count != gpu.sm_count:
        counts = f"{machine.sm_count} SMs, {gpu.name} has {gpu.sm_count}"
        notes.append(f"{machine.gpu} has {counts}: is it the right preset?")
    if machine.power_limit_w and abs(machine.power_limit_w / gpu.power_w - 1) > 0.03:
        limits = f"{machine.power_limit_w:g} W, {gpu.name} of {gpu.power_w:g} W"
        notes.append(f"measured at a power limit of {limits}: the fitted clocks hold at that limit")
    together = sum(dict(one.case)["kind"] == "collective" and one.time_s is not None for one in protocol.measurements)
    if together:
        notes.append(f"{plural(together, 'collective')}, for `gpuscale calibrate nccl` and a cluster file")
    at_limit = [name for name, (_, most) in LIMITS.items() if getattr(fitted.kernels, name, 0.0) == most]
    if at_limit:
        notes.append(f"at the end of what is possible: {', '.join(at_limit)}; other kernels ran than the model is of")
    return tuple(notes)


# --- least squares


@dataclass(frozen=True)
class _Problem:
    """Squared logarithms of predicted over measured times, over the logarithms of the constants."""

    make: Callable[[dict[str, float]], GpuSpec]  #: constants -> the GPU that has them.
    groups: Sequence[Kernels]  #: what was measured.
    prior: Mapping[str, float]  #: where constants stay of which the kernels say nothing.

    def values(self, point: Sequence[float]) -> dict[str, float]:
        return dict(zip(self.prior, map(math.exp, point), strict=True))

    def point(self, values: Mapping[str, float]) -> list[float]:
        limits = (LIMITS[name.partition(".")[0]] for name in values)
        return [math.log(min(max(one, low), high)) for one, (low, high) in zip(values.values(), limits, strict=True)]

    def errors(self, point: Sequence[float]) -> FloatArray:
        gpu = self.make(self.values(point))
        return log(np.concatenate([predict_s(gpu, group) / group.measured_s for group in self.groups]))

    def away(self, point: Sequence[float]) -> list[float]:
        """Return how far constants are from where they would stay, against the noise of the kernels."""
        return [(one - math.log(mean)) * NOISE / PRIOR for one, mean in zip(point, self.prior.values(), strict=True)]

    def loss(self, errors: FloatArray, point: Sequence[float]) -> float:
        """Return Huber's loss: errors beyond `KNEE` count by their size alone."""
        sizes = np.abs(errors)
        pulls = np.where(sizes < KNEE, sizes * sizes, 2 * KNEE * sizes - KNEE * KNEE).tolist()
        return float(added_up(pulls) + added_up(one * one for one in self.away(point)))

    def curvature(self, point: list[float], errors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the products of the derivatives by every two of P constants, (P, P), and the gradient, (P, 1)."""
        step = 1e-5
        slopes = [
            (self.errors([one + step * (other == index) for other, one in enumerate(point)]) - errors) / step
            for index in range(len(point))
        ]
        weights = np.minimum(1.0, KNEE / np.maximum(np.abs(errors), 1e-12))
        products = np.diag(np.full(len(point), (NOISE / PRIOR) ** 2))
        gradient = np.array(self.away(point)).reshape(-1, 1) * NOISE / PRIOR
        for row, one in enumerate(slopes):
            gradient[row] += added_up((one * errors * weights).tolist())
            products[row] += [added_up((one * other * weights).tolist()) for other in slopes]
        return products, gradient


def _least_squares(
    make: Callable[[dict[str, float]], GpuSpec],
    groups: Sequence[Kernels],
    begin: Mapping[str, float],
    prior: Mapping[str, float],
) -> Best:
    """Find the constants that fit best near `begin` (Levenberg and Marquardt)."""
    problem = _Problem(make, groups, prior)
    point = problem.point(begin)
    errors, damping, moved = problem.errors(point), 1e-2, 1.0
    for _ in range(MAX_STEPS):
        if moved < 1e-6 or damping > 1e8:
            break
        products, gradient = problem.curvature(point, errors)
        loss, moved = problem.loss(errors, point), 0.0
        while not moved and damping <= 1e8:
            damped = products + np.diag(damping * np.diagonal(products))
            further = np.array(point) - solve(damped, gradient)[:, 0]
            trial = problem.point(problem.values(further.tolist()))
            trial_errors = problem.errors(trial)
            if problem.loss(trial_errors, trial) < loss:
                moved = max(abs(one - other) for one, other in zip(point, trial, strict=True))
                point, errors, damping = trial, trial_errors, damping / 5
            else:
                damping *= 4
    products, _ = problem.curvature(point, errors)
    typical = max(NOISE, 1.5 * median(np.abs(errors).tolist()))
    spreads = typical * np.sqrt(np.diagonal(solve(products, np.eye(len(point)))))
    return Best(problem.loss(errors, point), problem.values(point), dict(zip(prior, spreads.tolist(), strict=True)))
