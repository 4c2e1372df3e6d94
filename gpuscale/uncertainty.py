"""How far a measurement may lie from a prediction: an 80 % interval from the residuals of similar published runs.

A prediction is compared with the runs of `residuals.csv` by its inputs and predicted breakdown alone. Each run counts
with exp(-distance / `SCALE`); half the width of the interval, in log of the ratio, is the weighted quantile of the
runs' absolute residuals that holds for a further run with a chance of 80 %: at 0.8 (n + 1) / n of the weight, as in
conformal prediction (Vovk, Gammerman and Shafer 2005, chapter 2), where n is the number of equally weighted runs that
would say as much (Kish 1965: the squared sum of weights over the sum of their squares).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION

CHANCE = 0.8
"""Share of measurements that intervals are meant to hold."""

SCALE = 0.6
"""Distance at which a run counts 1/e as much as an identical one."""

LEAST_HALF_WIDTH = 0.03
"""In log of the ratio: repeated measurements of one configuration differ by 1-2 %, up to 6 % (NVIDIA's releases)."""

MOST_WEIGHT = 0.97
"""Quantile beyond which residuals are not extrapolated, however few they are."""

DISTANCES = {
    "profile": 0.75, "software": 0.75, "architecture": 0.5, "moe": 1.0, "low_precision": 0.7, "tp_across_nodes": 1.0,
    "log_size": 0.5, "launch": 4.0, "communication": 3.0, "bubble": 2.0,
}  # fmt: skip
"""Distance of two runs: the sum over these features of the number here times the difference (of texts and switches: 1
when they differ). `software` is the profile without its generation: two generations of one framework (`megatron-core`,
`megatron-2024`) are half as far apart as two frameworks. Chosen by hand so that what decides which part of the model is
at work tells runs apart most."""

Columns = dict[str, npt.NDArray[np.generic]]


class Interval(NamedTuple):
    """An interval for measured / predicted step time.

    Attributes:
        rows: how many equally similar published runs would say as much.
    """

    low: float
    high: float
    rows: int


def intervals(wanted: Sequence[Features], *, cross_validate: bool = False) -> list[Interval]:
    """Interval of each prediction.

    Args:
        cross_validate: a run that is in the table itself is judged without its whole family.
    """
    if not wanted:
        return []
    size, families, family_by_key, columns = _known_runs()
    weights = np.exp(-_distances(_columns(wanted), columns) / SCALE)
    found = []
    for one, row in zip(wanted, weights, strict=True):
        own = family_by_key.get(one.key) if cross_validate else None
        kept = slice(None) if own is None else families != own
        found.append(_interval(size[kept], row[kept]))
    return found


@cache
def _known_runs() -> tuple[FloatArray, npt.NDArray[np.str_], dict[str, str], Columns]:
    """Arrange the runs whose step time was measured, K of them.

    Returns:
        The absolute log(measured / predicted step time) and the family of each run, both of shape (K,); key -> family;
        the columns of `DISTANCES`.
    """
    known = [one for one in read_residuals() if one.log_ratio is not None]
    families = [family_of(one.id) for one in known]
    keys = [one.features.key for one in known]
    size = np.abs(np.array([one.log_ratio for one in known], dtype=np.float64))
    return size, np.array(families), dict(zip(keys, families, strict=True)), _columns([one.features for one in known])


def _columns(runs: Sequence[Features]) -> Columns:
    """Arrange what runs are like, each of `DISTANCES` as an array of shape (runs,)."""
    return {name: np.array([getattr(one, name) for one in runs]) for name in DISTANCES}


def _distances(wanted: Columns, known: Columns) -> FloatArray:
    """Distance of every wanted run from every known one, shape (wanted, known)."""
    total = np.zeros((len(wanted["profile"]), len(known["profile"])))
    for name, factor in DISTANCES.items():
        one, other = wanted[name][:, None], known[name]
        differ = one != other if one.dtype.kind != "f" else np.abs(one.astype(np.float64) - other.astype(np.float64))
        total += factor * differ
    return total


def _interval(size: FloatArray, weight: FloatArray) -> Interval:
    rows = float(weight.sum() ** 2 / (weight**2).sum())
    share = min(MOST_WEIGHT, CHANCE * (rows + 1) / rows)
    half = max(weighted_quantile(size, weight, share), LEAST_HALF_WIDTH)
    return Interval(math.exp(-half), math.exp(half), round(rows))


def weighted_quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    """The value with a share of the weight below it, each value's weight centred on it, linear in between."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order]) - weight[order] / 2
    return float(np.interp(share * weight.sum(), below, values[order]))


RESIDUALS = Path(__file__).with_name("residuals.csv")


class Features(NamedTuple):
    """What a run is like, from its inputs and its predicted breakdown.

    Attributes:
        key: job and layout in a line; equal keys are the same run.
        profile: framework profile.
        architecture: of the GPU.
        low_precision: GEMMs below 16 bits.
        tp_across_nodes: tensor parallelism reaches beyond the node.
        log_size: log10 of 12 x hidden^2 x layers, the parameters of a plain dense model of this width and depth.
        launch, communication, bubble: shares of the predicted step.
    """

    key: str
    profile: str
    architecture: str
    moe: bool
    low_precision: bool
    tp_across_nodes: bool
    log_size: float
    launch: float
    communication: float
    bubble: float

    @property
    def software(self) -> str:
        """The software of the profile, whatever its generation: Megatron-LM by year and core are one."""
        stem, _, rest = self.profile.rpartition("-")
        return stem if stem and (rest.isdecimal() or rest == "core") else self.profile


TYPES = get_type_hints(Features)
"""Column of `residuals.csv` -> type of its values."""


class Residual(NamedTuple):
    """A published run and how far the model was off.

    Attributes:
        log_ratio: log(measured / predicted step time), None where the step was not measured.
        mem_ratio: measured over predicted memory, None where memory was not measured.
    """

    id: str
    features: Features
    log_ratio: float | None
    mem_ratio: float | None


def family_of(run: str) -> str:
    """The source of a run by its id: what stands before the first `-`, in `nvidia-...` before the second."""
    parts = run.split("-", 2)
    return "-".join(parts[:2]) if parts[0] == "nvidia" else parts[0]


def features(job: JobSpec, layout: Mapping[str, int], seconds: Mapping[str, float]) -> Features:
    """Describe an evaluated layout.

    Args:
        layout: one row of `gpuscale.layouts.arrays.Candidates`, by name.
        seconds: component -> seconds of the predicted step.
    """
    model, gpu = job.model, job.cluster.gpu
    step_s = sum(seconds.values())
    degrees = " ".join(f"{name}{value}" for name, value in layout.items())
    return Features(
        key=f"{gpu.name} {job.gpus} {model.layers}x{model.hidden} {job.precision} {job.sequence} {degrees}",
        profile=job.runtime.name,
        architecture=gpu.architecture,
        moe=model.is_moe,
        low_precision=job.precision in {"fp8", "fp4"},
        tp_across_nodes=layout["tp"] > job.cluster.node_gpus,
        log_size=math.log10(12 * model.hidden**2 * model.layers),
        launch=seconds["launch"] / step_s,
        communication=sum(seconds[name] for name in COMMUNICATION) / step_s,
        bubble=seconds["bubble"] / step_s,
    )


@cache
def read_residuals() -> tuple[Residual, ...]:
    """Read the shipped residuals."""
    found = []
    with RESIDUALS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values: dict[str, Any] = {
                name: row[name] == "yes" if kind is bool else kind(row[name]) for name, kind in TYPES.items()
            }
            ratios = [float(row[name]) if row[name] else None for name in ("log_ratio", "mem_ratio")]
            found.append(Residual(row["id"], Features(**values), *ratios))
    return tuple(found)
