"""The published runs behind every interval: what each is like, and how far the model was off.

`residuals.csv` is written by `python benchmarks/update_validation.py` whenever the model changes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMMUNICATION

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
