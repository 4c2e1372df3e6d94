"""`gpuscale validate`: a file of measurements in, predictions beside measurements and their figures out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError, nearest
from gpuscale.validation.cells import Row
from gpuscale.validation.collectives import predict_collectives, size_class
from gpuscale.validation.files import Measurements, read_measurements
from gpuscale.validation.kernels import PRECISION_OF, predict_kernels
from gpuscale.validation.scores import Labels, RunScore, relative_error, score_runs
from gpuscale.validation.summary import BY, figures, grouped, reason_counts, summarise_runs


@dataclass(frozen=True)
class TimeScore:
    """One kernel or collective of `gpuscale validate --json`; the error is (predicted - measured) / measured.

    Attributes:
        status: `ok`, or `unsupported` when `reason` says why there is no prediction.
    """

    id: str
    status: str
    reason: str
    measured_time_s: float | None = None
    predicted_time_s: float | None = None
    time_error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Validation:
    """What `validate` found.

    Attributes:
        kind: `runs`, `oom`, `kernels` or `collectives`.
        rows: in the order of the file.
        labels: what each row is grouped by, for files of runs; empty otherwise.
        summary: figures over the rows, as docs/validation.md describes them.
    """

    path: Path
    kind: str
    rows: tuple[RunScore | TimeScore, ...]
    labels: tuple[Labels, ...]
    summary: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale validate --json`."""
        return {"rows": [row.to_dict() for row in self.rows], "summary": self.summary}


def validate(path: str | Path, by: str = "family") -> Validation:
    """Predict every row of a file of measurements and summarise the errors.

    Args:
        path: a CSV file of runs, of runs that ran out of memory, of kernels or of collectives; its header tells which.
        by: what runs are grouped by in the summary: `family`, `framework`, `gpu`, `model` or `precision`.

    Raises:
        InputError: the file cannot be used, or `by` is none of these.
    """
    if by not in BY:
        close = nearest(by[:40], BY, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"cannot group by {by[:40]!r}", place="--by", hint=f"{hint}give one of {', '.join(BY)}")
    measured = read_measurements(Path(path))
    if not measured.rows:
        raise InputError("has a header and no rows", place=str(path))
    if measured.kind in {"kernels", "collectives"}:
        return _times(measured)
    scored = score_runs(measured.rows, out_of_memory=measured.kind == "oom")
    return Validation(
        path=measured.path,
        kind=measured.kind,
        rows=tuple(score for score, _ in scored),
        labels=tuple(labels for _, labels in scored),
        summary={**summarise_runs(scored, by), "kind": measured.kind},
    )


def _times(measured: Measurements) -> Validation:
    predict = predict_kernels if measured.kind == "kernels" else predict_collectives
    pairs = predict(measured.rows)
    rows = tuple(_time_score(row, pair) for row, pair in zip(measured.rows, pairs, strict=True))
    labels = _kernel_labels if measured.kind == "kernels" else _collective_labels
    return Validation(measured.path, measured.kind, rows, (), _time_summary(measured, rows, labels(measured.rows)))


def _time_score(row: Row, pair: tuple[float, float] | str) -> TimeScore:
    if isinstance(pair, str):
        return TimeScore(row.raw("id"), "unsupported", pair)
    measured_s, predicted_s = pair
    return TimeScore(row.raw("id"), "ok", "", measured_s, predicted_s, relative_error(predicted_s, measured_s))


def _kernel_labels(rows: Sequence[Row]) -> list[dict[str, str]]:
    return [
        {
            "kind": row.text("kind"),
            "gpu": row.text("gpu") or "not stated",
            "precision": PRECISION_OF.get(row.text("dtype"), row.text("dtype") or "not stated"),
        }
        for row in rows
    ]


def _collective_labels(rows: Sequence[Row]) -> list[dict[str, str]]:
    return [
        {"size": _size(row), "collective": row.text("collective"), "gpu": row.text("gpu") or "not stated"}
        for row in rows
    ]


def _size(row: Row) -> str:
    try:
        bytes_ = row.positive("bytes")
    except InputError:
        bytes_ = None
    return "not stated" if bytes_ is None else size_class(bytes_)


def _time_summary(
    measured: Measurements, rows: Sequence[TimeScore], labels: Sequence[dict[str, str]]
) -> dict[str, Any]:
    """Figures over all predicted rows and by each label; rows that cannot be predicted are counted by reason."""
    scored = [(row, label) for row, label in zip(rows, labels, strict=True) if row.time_error is not None]
    return {
        "kind": measured.kind,
        "rows": len(rows),
        **asdict(figures([row.time_error for row, _ in scored])),
        "coverage": len(scored) / len(rows),
        "groups": {
            name: {
                group: asdict(one)
                for group, one in grouped([(label[name], row.time_error) for row, label in scored]).items()
            }
            for name in (labels[0] if labels else ())
        },
        "unsupported": reason_counts([row.reason for row in rows if row.status == "unsupported"]),
    }
