"""How far measurements lie from predictions: an 80 % interval from the residuals of similar validated runs.

`residuals.csv` holds, for each published run of our own table, what it is like and log(measured / predicted); it is
written by `python benchmarks/update_validation.py` whenever the model changes. A new prediction is compared with those
runs by its inputs alone. Each run counts with exp(-distance / `SCALE`); half the width of the interval, in log of the
ratio, is the weighted quantile of the runs' absolute residuals that holds for a further run with a chance of 80 %:
at 0.8 (n + 1) / n of the weight, as in conformal prediction (Vovk, Gammerman and Shafer 2005, chapter 2), where n is
the number of equally weighted runs that would say as much (Kish 1965: the squared sum of weights over the sum of their
squares).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.layouts.arrays import SELDOM
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION

RESIDUALS = Path(__file__).with_name("residuals.csv")

CHANCE = 0.8
"""Share of measurements that intervals are meant to hold."""

SCALE = 0.6
"""Distance at which a run counts 1/e as much as an identical one."""

LEAST_HALF_WIDTH = 0.03
"""In log of the ratio: repeated measurements of one configuration differ by 1-2 %, up to 6 % (NVIDIA's releases)."""

MOST_WEIGHT = 0.97
"""Quantile beyond which residuals are not extrapolated, however few they are."""

DISTANCES = {
    "profile": 1.5, "architecture": 0.5, "moe": 1.0, "low_precision": 0.7, "tp_across_nodes": 1.0,
    "log_size": 0.5, "launch": 4.0, "communication": 3.0, "bubble": 2.0,
}  # fmt: skip
"""Distance of two runs: the sum over these of the number here, times the difference (of texts and switches: 1 when they
differ). Chosen by hand so that what decides which part of the model is at work tells runs apart most."""

SAME_SOFTWARE = 0.5
"""Share of the profile's distance between two generations of one framework (`megatron-core`, `megatron-2024`)."""

FACTORS = DISTANCES | {
    "profile": DISTANCES["profile"] * SAME_SOFTWARE,
    "software": DISTANCES["profile"] * (1 - SAME_SOFTWARE),
}
"""`DISTANCES` with that of the profile in two: between generations, and between frameworks."""


@dataclass(frozen=True)
class Features:
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


@dataclass(frozen=True)
class Residual:
    """A published run and how far the model was off.

    Attributes:
        log_ratio: log(measured / predicted step time).
        mem_ratio: measured over predicted memory, where memory was measured.
    """

    id: str
    features: Features
    log_ratio: float | None
    mem_ratio: float | None

    @property
    def family(self) -> str:
        """The source of the run."""
        return family(self.id)


def family(run: str) -> str:
    """The source of a run, as `gpuscale.validation.scores.family_of` tells it by the id."""
    parts = run.split("-", 2)
    return "-".join(parts[:2]) if parts[0] == "nvidia" else parts[0]


@dataclass(frozen=True)
class Interval:
    """An interval for measured / predicted step time.

    Attributes:
        rows: how many equally similar validated runs would say as much.
    """

    low: float
    high: float
    rows: int


def features(job: JobSpec, layout: Mapping[str, int], seconds: Mapping[str, float]) -> Features:
    """Describe a priced layout.

    Args:
        layout: one row of `gpuscale.layouts.arrays.Candidates`, by name.
        seconds: component -> seconds of the predicted step.
    """
    model, gpu = job.model, job.cluster.gpu
    step_s = sum(seconds.values())
    degrees = " ".join(f"{name}{value}" for name, value in layout.items() if name not in SELDOM)
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


def intervals(wanted: Sequence[Features], *, cross_validate: bool = False) -> list[Interval]:
    """Interval of each prediction.

    Args:
        cross_validate: a run that is in the table itself is judged without its whole family.
    """
    if not wanted:
        return []
    known = known_runs()
    weights = np.exp(-_distances(wanted, known.columns) / SCALE)
    found = []
    for one, row in zip(wanted, weights, strict=True):
        if cross_validate and one.key in known.family_of:
            kept = known.families != known.family_of[one.key]
            found.append(_interval(known.size[kept], row[kept]))
        else:
            found.append(_interval(known.size, row))
    return found


@dataclass(frozen=True, eq=False)
class KnownRuns:
    """The runs whose step time was measured, K of them.

    Attributes:
        size: absolute log(measured / predicted step time), shape (K,).
        families: of each run, shape (K,).
        family_of: key -> family.
        columns: what the runs are like, each of `DISTANCES` as an array of shape (K,); `software` is the profile's.
    """

    size: FloatArray
    families: npt.NDArray[np.str_]
    family_of: dict[str, str]
    columns: dict[str, npt.NDArray[np.generic]]


@cache
def known_runs() -> KnownRuns:
    """Arrange the shipped residuals for comparison."""
    texts = _residual_columns()
    measured = [number for number, text in enumerate(texts["log_ratio"]) if text]
    columns = {name: [texts[name][number] for number in measured] for name in texts}
    families = [family(run) for run in columns["id"]]
    return KnownRuns(
        size=np.abs(np.array(columns["log_ratio"], dtype=np.float64)),
        families=np.array(families),
        family_of=dict(zip(columns["key"], families, strict=True)),
        columns=_columns({name: [PARSERS[name](text) for text in columns[name]] for name in DISTANCES}),
    )


def _columns(values: Mapping[str, list[Any]]) -> dict[str, npt.NDArray[np.generic]]:
    """Arrange each of `DISTANCES`, and the software of the profiles."""
    return {"software": np.array([_software(one) for one in values["profile"]])} | {
        name: np.array(values[name]) for name in DISTANCES
    }


def _interval(size: FloatArray, weight: FloatArray) -> Interval:
    rows = float(weight.sum() ** 2 / (weight**2).sum())
    share = min(MOST_WEIGHT, CHANCE * (rows + 1) / rows)
    half = max(_weighted_quantile(size, weight, share), LEAST_HALF_WIDTH)
    return Interval(math.exp(-half), math.exp(half), round(rows))


def _weighted_quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    """The value with a share of the weight below it, each value's weight centred on it, linear in between."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order]) - weight[order] / 2
    return float(np.interp(share * weight.sum(), below, values[order]))


def _distances(wanted: Sequence[Features], known: Mapping[str, npt.NDArray[np.generic]]) -> FloatArray:
    """Distance of every wanted run from every known one, shape (wanted, known)."""
    total = np.zeros((len(wanted), len(known["profile"])))
    asked = {name: [getattr(one, name) for one in wanted] for name in DISTANCES}
    for name, column in _columns(asked).items():
        total += FACTORS[name] * _difference(column[:, None], known[name])
    return total


def _difference(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> FloatArray:
    if one.dtype.kind == "f":
        return np.abs(one.astype(np.float64) - other.astype(np.float64))
    return (one != other).astype(np.float64)


def _software(profile: str) -> str:
    """The software of a profile, whatever its generation: Megatron-LM by year and core are one."""
    stem, _, rest = str(profile).rpartition("-")
    return stem if stem and (rest.isdecimal() or rest == "core") else str(profile)


@cache
def read_residuals() -> tuple[Residual, ...]:
    """Read the shipped residuals."""
    texts = _residual_columns()
    return tuple(_residual(dict(zip(texts, row, strict=True))) for row in zip(*texts.values(), strict=True))


def _residual_columns() -> dict[str, tuple[str, ...]]:
    """Read `residuals.csv`: name of a column -> its texts."""
    with RESIDUALS.open(newline="", encoding="utf-8") as file:
        return {name: tuple(texts) for name, *texts in zip(*csv.reader(file), strict=True)}


def _residual(row: Mapping[str, str]) -> Residual:
    values = {name: parse(row[name]) for name, parse in PARSERS.items()}
    ratios = {name: float(row[name]) if row[name] else None for name in ("log_ratio", "mem_ratio")}
    return Residual(row["id"], Features(**values), **ratios)


def _is_yes(text: str) -> bool:
    return text == "yes"


_OF_TYPE: dict[str, Callable[[str], Any]] = {"bool": _is_yes, "float": float, "str": str}
PARSERS = {item.name: _OF_TYPE[str(item.type)] for item in fields(Features)}
"""Column of `residuals.csv` -> how its texts are read."""
