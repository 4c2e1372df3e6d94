"""One prediction per measured run: rows of the same job are priced together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import concatenate
from gpuscale.search import evaluate
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.components import COMPONENTS
from gpuscale.uncertainty.residuals import Features, features
from gpuscale.units import GIB
from gpuscale.validation.cells import Row
from gpuscale.validation.presets import Presets
from gpuscale.validation.runs import Run, read_run


@dataclass(frozen=True)
class Prediction:
    """What the model says of one run.

    Attributes:
        run: job, layout and what had to be assumed.
        memory_gib: what the row's `mem_basis` counts; where it is not stated, what the framework's log calls memory.
        device_gib: all of the device's use at the fullest stage.
        fits: whether a step finds the memory it needs.
        seconds: component -> seconds, in the order of `COMPONENTS`.
    """

    run: Run
    step_s: float
    memory_gib: float
    device_gib: float
    fits: bool
    seconds: tuple[float, ...]


def predict_runs(rows: Sequence[Row]) -> list[Prediction | str]:
    """Predict every row; where that cannot be done, say why in one line."""
    presets = Presets()
    found: list[Prediction | str] = []
    batches: dict[tuple[object, ...], list[int]] = {}
    runs: dict[int, Run] = {}
    for index, row in enumerate(rows):
        try:
            runs[index] = read_run(row, presets)
        except InputError as error:
            found.append(reason_text(error))
            continue
        found.append("")
        batches.setdefault(job_key(runs[index].job), []).append(index)
    for members in batches.values():
        for index, value in zip(members, _predict([(rows[i], runs[i]) for i in members]), strict=True):
            found[index] = value
    return found


def features_of(prediction: Prediction) -> Features:
    """Describe a predicted run, for its interval."""
    seconds = dict(zip(COMPONENTS, prediction.seconds, strict=True))
    return features(prediction.run.job, prediction.run.layout.row(0), seconds)


def reason_text(error: InputError) -> str:
    """An error as the reason why a row is unsupported: place and message in one line."""
    return " ".join(f"{error.place}: {error.message}".split() if error.place else error.message.split())


NOT_PRICED = frozenset({"gpus", "global_batch_size", "memory_limit_bytes"})
"""Fields of a job that a layout's memory and step time do not depend on: the layout has its own degrees and number of
microbatches. With offloading the GPUs matter: a host may have fewer of the job's than it could."""


def job_key(job: JobSpec) -> tuple[object, ...]:
    """What tells two jobs apart whose layouts cannot be priced together.

    Models and clusters are compared by identity, as `Presets` shares them.
    """
    ignored = NOT_PRICED - {"gpus"} if job.offload.any else NOT_PRICED
    values = ((item.name, getattr(job, item.name)) for item in fields(job) if item.name not in ignored)
    return tuple(id(value) if name in {"model", "cluster"} else value for name, value in values)


def _predict(pairs: Sequence[tuple[Row, Run]]) -> list[Prediction | str]:
    """Price rows of one job; when the batch is refused, each on its own."""
    try:
        return _price(pairs)
    except InputError as error:
        if len(pairs) == 1:
            return [reason_text(error)]
        return [value for pair in pairs for value in _predict([pair])]


def _price(pairs: Sequence[tuple[Row, Run]]) -> list[Prediction | str]:
    job = pairs[0][1].job
    with np.errstate(all="ignore"):  # what is not finite is reported below
        result = evaluate(concatenate([run.layout for _, run in pairs]), job)
        components = result.step.components
    limit_gib = job.cluster.gpu.memory_bytes / GIB
    found: list[Prediction | str] = []
    for index, (row, run) in enumerate(pairs):
        step_s = float(result.step.step_time_s[index])
        device_gib = float(result.memory.peak_bytes[index]) / GIB
        memory_gib = float(result.memory.logged(row.text("mem_basis"), job)[index]) / GIB
        if not (math.isfinite(step_s) and step_s > 0 and math.isfinite(device_gib)):
            found.append("the prediction is not finite")
            continue
        seconds = tuple(components[:, index].tolist())
        found.append(Prediction(run, step_s, memory_gib, device_gib, device_gib <= limit_gib, seconds))
    return found
