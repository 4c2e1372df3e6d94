"""Predictions beside measurements: one `RunScore` per row, and what the row is grouped by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuscale.errors import InputError
from gpuscale.uncertainty.interval import Interval, intervals
from gpuscale.uncertainty.residuals import family_of
from gpuscale.validation.cells import Row
from gpuscale.validation.predict import Prediction, features_of, predict_runs, reason_text

NOT_COMPARABLE = frozenset(
    {"broken-pp", "per-layer", "digitized", "low-confidence", "untuned", "suspect"}
)  # fmt: skip
"""Flags of rows whose measurement says nothing about the model: broken software, charts read off, untuned runs."""

COMPARABLE_SPECS = ("full", "recompute-unstated", "")
"""Values of `spec` of rows that state what a prediction needs; a user's file need not have the column."""


@dataclass(frozen=True)
class RunScore:
    """One row of `gpuscale validate --json`; errors are (predicted - measured) / measured.

    Attributes:
        status: `ok`; `ok-defaults`, when `reason` names what was assumed; `unsupported`, when it says why.
        predicted_fits: whether the step finds the memory it needs.
        step_s_low, step_s_high: between them four of five measurements are expected.
    """

    id: str
    status: str
    reason: str
    measured_step_s: float | None = None
    predicted_step_s: float | None = None
    step_error: float | None = None
    measured_mem_gib: float | None = None
    predicted_mem_gib: float | None = None
    mem_error: float | None = None
    predicted_fits: bool | None = None
    step_s_low: float | None = None
    step_s_high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Labels:
    """What rows are grouped by.

    Attributes:
        family: the source: the id up to its first `-`, the second for `nvidia-...`.
        comparable: the measurement is one that a model can be held to.
        one_node: all GPUs sit in one node.
        choice: runs that agree in it differ in their layout alone.
        ran_out_of_memory: the run failed for want of memory.
    """

    family: str
    framework: str
    gpu: str
    model: str
    precision: str
    comparable: bool
    one_node: bool
    choice: tuple[str, ...]
    ran_out_of_memory: bool


def score_runs(rows: Sequence[Row], *, out_of_memory: bool = False) -> list[tuple[RunScore, Labels]]:
    """Predict every row and hold it against its measurement.

    Args:
        out_of_memory: every row is a run that failed for want of memory.
    """
    predictions = predict_runs(rows)
    known = [value for value in predictions if isinstance(value, Prediction)]
    ranges = iter(intervals([features_of(value) for value in known], cross_validate=True))
    return [
        (_score(row, value, next(ranges) if isinstance(value, Prediction) else None), _labels(row, out_of_memory))
        for row, value in zip(rows, predictions, strict=True)
    ]


def _score(row: Row, prediction: Prediction | str, interval: Interval | None) -> RunScore:
    name = row.raw("id")
    try:
        step_s, derived = _measured_step_s(row)
        mem_gib = row.positive("mem_gib")
    except InputError as error:
        return RunScore(name, "unsupported", reason_text(error))
    if isinstance(prediction, str) or interval is None:
        reason = prediction if isinstance(prediction, str) else "no interval"
        return RunScore(name, "unsupported", reason, measured_step_s=step_s, measured_mem_gib=mem_gib)
    notes = [*prediction.run.assumed, *derived]
    return RunScore(
        id=name,
        status="ok-defaults" if prediction.run.assumed else "ok",
        reason="; ".join(notes),
        measured_step_s=step_s,
        predicted_step_s=prediction.step_s,
        step_error=relative_error(prediction.step_s, step_s),
        measured_mem_gib=mem_gib,
        predicted_mem_gib=prediction.memory_gib,
        mem_error=relative_error(prediction.memory_gib, mem_gib),
        predicted_fits=prediction.fits,
        step_s_low=prediction.step_s * interval.low,
        step_s_high=prediction.step_s * interval.high,
    )


def _measured_step_s(row: Row) -> tuple[float | None, list[str]]:
    """The measured step time, from tokens/s where only these are stated, and what to say of it."""
    step_s = row.positive("step_s")
    if step_s is not None:
        return step_s, []
    tokens, gpus, batch, sequence = (row.positive(name) for name in ("tokens_s_gpu", "gpus", "gbs", "seq"))
    if tokens is not None and gpus is not None and batch is not None and sequence is not None:
        return batch * sequence / (tokens * gpus), ["measured step time from tokens/s"]
    rates = [name for name in ("tflops_gpu", "mfu", "hfu") if row.raw(name)]
    if rates:
        return None, [f"only {', '.join(rates)} measured: no step time without the convention of counting FLOPs"]
    return None, []


def relative_error(predicted: float, measured: float | None) -> float | None:
    """(predicted - measured) / measured; None without a measurement."""
    return None if measured is None else (predicted - measured) / measured


def _labels(row: Row, out_of_memory: bool) -> Labels:
    flags = set(row.text("flags").split())
    choice = ("model", "layers", "gpu", "gpus", "gbs", "seq", "precision", "framework")
    return Labels(
        family=family_of(row.raw("id")),
        framework=row.text("framework") or "not stated",
        gpu=row.text("gpu") or "not stated",
        model=row.text("model") or "not stated",
        precision=row.text("precision") or "not stated",
        comparable=row.text("spec") in COMPARABLE_SPECS and not flags & NOT_COMPARABLE,
        one_node=_small(row),
        choice=tuple(row.text(name) for name in choice),
        ran_out_of_memory=out_of_memory or "out of memory" in row.text("notes") or "oom" in flags,
    )


def _small(row: Row) -> bool:
    gpus, node = row.raw("gpus"), row.raw("gpus_per_node") or "8"
    return gpus.isdecimal() and node.isdecimal() and int(gpus[:9]) <= int(node[:9])
