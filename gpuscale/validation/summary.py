"""Figures over many rows: medians and 90th percentiles of errors, balanced over families, and the choice of layouts.

The definitions are those of docs/validation.md, "What is counted".
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuscale.validation.scores import Labels, RunScore

LEAST_OF_FAMILY = 8
"""Comparable rows from which on a family counts in the balanced figures."""

LEAST_OF_SWEEP = 3
"""Groups of alternative layouts from which on a family is a sweep, in which choosing is judged."""

BY = ("family", "framework", "gpu", "model", "precision")
"""What rows can be grouped by."""

_PLACE = re.compile(r"^.{0,300}:\d+: ")

Scored = Sequence[tuple[RunScore, Labels]]


@dataclass(frozen=True)
class Figures:
    """Errors of a set of rows; `n` rows asked for, `predicted` of them answered; None without any.

    Attributes:
        median_abs, p90_abs: of the absolute relative error.
        bias: median of the signed error.
    """

    n: int
    predicted: int
    coverage: float | None
    median_abs: float | None
    p90_abs: float | None
    bias: float | None


def figures(errors: Sequence[float | None]) -> Figures:
    """Figures of the errors of rows with a measurement; None stands for a row that was not predicted."""
    known = [error for error in errors if error is not None]
    if not known:
        return Figures(len(errors), 0, 0.0 if errors else None, None, None, None)
    absolute = [abs(error) for error in known]
    return Figures(
        n=len(errors),
        predicted=len(known),
        coverage=len(known) / len(errors),
        median_abs=statistics.median(absolute),
        p90_abs=quantile(absolute, 0.9),
        bias=statistics.median(known),
    )


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which a share of the values lies: the one at index floor(share n) of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def grouped(errors: Sequence[tuple[str, float | None]]) -> dict[str, Figures]:
    """Figures by group, the largest group first."""
    members: dict[str, list[float | None]] = defaultdict(list)
    for group, error in errors:
        members[group].append(error)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    return {group: figures(values) for group, values in ordered}


def balanced(families: Mapping[str, Figures]) -> dict[str, float | int | None]:
    """Mean of the families' medians and of their 90th percentiles, over families of `LEAST_OF_FAMILY` rows."""
    large = [one for one in families.values() if one.n >= LEAST_OF_FAMILY]
    medians = [one.median_abs for one in large if one.median_abs is not None]
    p90s = [one.p90_abs for one in large if one.p90_abs is not None]
    return {
        "families": len(large),
        "median_abs": statistics.mean(medians) if medians else None,
        "p90_abs": statistics.mean(p90s) if p90s else None,
    }


def summarise_runs(scored: Scored, by: str = "family") -> dict[str, Any]:
    """The summary of `gpuscale validate --json` for a file of runs."""
    step = _errors(scored, by, memory=False)
    memory = _errors(scored, by, memory=True)
    step_families = grouped(_errors(scored, "family", memory=False))
    memory_families = grouped(_errors(scored, "family", memory=True))
    comparable = [score for score, labels in scored if labels.comparable and score.measured_step_s is not None]
    return {
        "kind": "runs",
        "rows": len(scored),
        **asdict(figures([error for _, error in step])),
        "balanced": balanced(step_families),
        "groups": {by: {name: asdict(one) for name, one in grouped(step).items()}},
        "memory": {
            **asdict(figures([error for _, error in memory])),
            "balanced": balanced(memory_families),
            "groups": {by: {name: asdict(one) for name, one in grouped(memory).items()}},
        },
        "interval": interval_figures(comparable),
        "fits": fit_figures(scored),
        "choosing": choosing(scored),
        "status": dict(sorted(Counter(score.status for score, _ in scored).items())),
        "unsupported": reason_counts(score.reason for score, _ in scored if score.status == "unsupported"),
    }


def _errors(scored: Scored, by: str, *, memory: bool) -> list[tuple[str, float | None]]:
    """(group, error) of every comparable row with the measurement; the error is None where nothing was predicted."""
    found: list[tuple[str, float | None]] = []
    for score, labels in scored:
        measured = score.measured_mem_gib if memory else score.measured_step_s
        if labels.comparable and measured is not None:
            found.append((getattr(labels, by), score.mem_error if memory else score.step_error))
    return found


def interval_figures(scores: Sequence[RunScore]) -> dict[str, float | int | None]:
    """Share of measurements inside their interval, and the median of half the interval's width over the prediction."""
    inside, widths = [], []
    for one in scores:
        if one.step_s_low is None or one.step_s_high is None or not one.measured_step_s or not one.predicted_step_s:
            continue
        inside.append(one.step_s_low <= one.measured_step_s <= one.step_s_high)
        widths.append((one.step_s_high - one.step_s_low) / 2 / one.predicted_step_s)
    return {
        "n": len(inside),
        "inside": sum(inside) / len(inside) if inside else None,
        "median_half_width": statistics.median(widths) if widths else None,
    }


def fit_figures(scored: Scored) -> dict[str, float | int | None]:
    """How often a run that found its memory is called fitting, and one that failed for want of it is not."""
    fitting = [score.predicted_fits for score, labels in scored if _ran(score) and not labels.ran_out_of_memory]
    failing = [score.predicted_fits for score, labels in scored if labels.ran_out_of_memory]
    called_fitting = sum(value is True for value in fitting)
    called_failing = sum(value is False for value in failing)
    return {
        "fitting": len(fitting),
        "called_fitting": called_fitting,
        "fitting_right": called_fitting / len(fitting) if fitting else None,
        "out_of_memory": len(failing),
        "called_out_of_memory": called_failing,
        "out_of_memory_right": called_failing / len(failing) if failing else None,
    }


def _ran(score: RunScore) -> bool:
    measured = score.measured_step_s is not None or score.measured_mem_gib is not None
    return measured and score.predicted_fits is not None


def choosing(scored: Scored) -> list[dict[str, Any]]:
    """Measured time of the layout predicted to be the fastest over that of the fastest, in sweeps of layouts.

    Alternatives are comparable rows of the same model, GPUs, batch, sequence, precision and framework.
    """
    groups: dict[tuple[str, ...], list[tuple[RunScore, Labels]]] = defaultdict(list)
    for score, labels in scored:
        if labels.comparable and score.measured_step_s is not None and score.predicted_step_s is not None:
            groups[labels.family, *labels.choice].append((score, labels))
    losses: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for members in groups.values():
        if len(members) > 1:
            labels = members[0][1]
            loss = _loss([score for score, _ in members])
            losses[labels.family]["all"].append(loss)
            losses[labels.family]["one node" if labels.one_node else "several nodes"].append(loss)
    return [
        {"family": family, "where": where, "groups": len(values), "median": statistics.median(values),
         "p90": quantile(values, 0.9)}
        for family, places in sorted(losses.items())
        if len(places["all"]) >= LEAST_OF_SWEEP
        for where, values in places.items()
        if where == "all" or len(places) > 2
    ]  # fmt: skip


def _loss(alternatives: Sequence[RunScore]) -> float:
    measured = {score.id: score.measured_step_s or 0.0 for score in alternatives}
    chosen = min(alternatives, key=lambda score: (score.predicted_step_s, score.id))
    return measured[chosen.id] / min(measured.values())


def reason_counts(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason is given, without file and line, most frequent first."""
    counts = Counter(_PLACE.sub("", reason) for reason in reasons)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
