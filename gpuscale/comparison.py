"""Several jobs compared: what a plan's job has of its own, and what a plan is worth beside step time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

LABELS = {
    "cluster": "{}",
    "gpus": "{:,} GPUs",
    "seq": "seq {:,}",
    "gbs": "gbs {:,}",
    "framework": "{}",
    "precision": "{}",
    "offload": "offload {}",
    "cp_comm": "CP by {}",
    "schedule": "{}",
    "axis_order": "order {}",
    "pipeline_split": "{} split",
    "overlap": "overlap {}",
}
"""How one choice is said in a sentence."""

NOTHING_LEGAL = "no legal layout"
"""Reason of a job in which every layout breaks a rule, or pins leave none."""


BEATEN = "no plan among the best"
"""Reason of a job that was given up because enough others are better."""


def choice_text(choice: Mapping[str, str | int]) -> str:
    """Say what sets a job apart: `640 GPUs, fp8-delayed`."""
    return ", ".join(LABELS[name].format(value) for name, value in choice.items())


@dataclass(frozen=True)
class VariantRow:
    """One of the jobs that were compared.

    Attributes:
        choice: what sets it apart: option -> value.
        candidates: layouts whose memory and step time were computed.
        feasible: those that fit and meet the constraints.
        best: what its best plan is worth, step time, tokens per second, MFU and memory included: name with unit ->
            value; empty without a plan, of a frontier, and of a job that was given up.
        reason: why it has no plan, or none that is shown; None with one.
    """

    choice: Mapping[str, str | int]
    candidates: int
    feasible: int
    best: Mapping[str, float]
    reason: str | None


@dataclass(frozen=True)
class Comparison:
    """What is said of plans beyond their own job.

    Attributes:
        objectives: what the plans are ranked by; several name the axes of a Pareto frontier.
        bounds: constraints by name, in the unit of what they bound.
        variants: the jobs compared, in the order in which they were tried.
        of_plan: for each plan the index of its job in `variants`.
        values: for each plan what it is worth: name with unit -> value.
        frontier_size: plans on the frontier; 0 of a ranking.
    """

    objectives: tuple[str, ...]
    bounds: Mapping[str, float]
    variants: tuple[VariantRow, ...]
    of_plan: tuple[int, ...]
    values: tuple[Mapping[str, float], ...]
    frontier_size: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return what it adds to the body of `gpuscale plan --json`."""
        out: dict[str, Any] = {
            "objectives": list(self.objectives),
            "constraints": dict(self.bounds),
            "variants": [asdict(row) for row in self.variants],
        }
        return {**out, "frontier_size": self.frontier_size} if self.frontier_size else out

    def of(self, index: int) -> dict[str, Any]:
        """Return what it adds to one plan."""
        return {"variant": self.of_plan[index], "values": dict(self.values[index])}


__all__ = ["LABELS", "NOTHING_LEGAL", "Comparison", "VariantRow", "choice_text"]
