"""Typed results of the public functions; tables, CSV and JSON derive their columns from these fields."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

NOTHING_LEGAL = "no legal layout"
"""Reason of a job in which every layout breaks a rule, or pins leave none."""


BEATEN = "no plan among the best"
"""Reason of a job that was given up because enough others are better."""


@dataclass(frozen=True)
class PlanRow:
    """One way to split the work, and what it is predicted to do.

    Attributes:
        rank: place among the plans shown, from 1; 1 for a single estimate.
        sharding: `none` (ZeRO 0), `distopt` (1), `fsdp` (2 and 3) or `hsdp` (3 within `shard_size` of the ranks).
        shard_size: GPUs that share one copy of the sharded states.
        recompute: `none`, `selective:<modules>` or `full:<layers per stage>`.
        step_time_low_s, step_time_high_s: four of five measurements are expected between them (docs/validation.md).
        similar_runs: about how many published runs the interval rests on.
        schedule: `none` (one stage), `1f1b` or `interleaved`.
        tflops_per_gpu: model TFLOP/s per GPU by `flop_convention`.
        mfu: share of the dense peak, by `flop_convention`.
        memory_gib: at the fullest pipeline stage.
        peak_stage: that stage, from 0.
        bound_by: the kind of work that takes most of the step.
        exposed_comm_fraction: communication that is not hidden, as a share of the step.
        bubble_fraction: idle time of the pipeline, as a share of the step (idle / total).
        variants: feasible plans of the same tp, pp, cp, ep and etp that this one stands for (1 when not folded).
    """

    rank: int
    tp: int
    sp: bool
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    dp: int
    zero: int
    sharding: str
    shard_size: int
    micro_batch_size: int
    global_batch_size: int
    num_microbatches: int
    sequence: int
    recompute: str
    schedule: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    similar_runs: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float
    memory_gib: float
    memory_limit_gib: float
    fits: bool
    peak_stage: int
    bound_by: str
    exposed_comm_fraction: float
    bubble_fraction: float
    variants: int
    flop_convention: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Estimate:
    """One plan with its breakdown of step time and memory.

    Attributes:
        breakdown: component -> seconds; they sum to `plan.step_time_s`.
        memory: component -> GiB at the fullest stage; they sum to `plan.memory_gib`.
        total_dp_comm_s: data-parallel communication before overlap.
        stage_memory_gib: total at the first, heaviest middle and last stage.
        notes: what was assumed, one sentence each.
        job: the options that make the same job again, as a plan file has them.
    """

    model: str
    cluster: str
    gpus: int
    plan: PlanRow
    breakdown: Mapping[str, float]
    memory: Mapping[str, float]
    total_dp_comm_s: float
    stage_memory_gib: tuple[float, ...]
    assumptions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    job: Mapping[str, str | int | float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale estimate --json`."""
        return {
            "model": self.model,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "plan": self.plan.to_dict(),
            "breakdown": dict(self.breakdown),
            "memory": dict(self.memory),
            "total_dp_comm_s": self.total_dp_comm_s,
            "stage_memory_gib": list(self.stage_memory_gib),
            "job": dict(self.job),
            "assumptions": dict(self.assumptions),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class SearchSummary:
    """How the search went.

    Attributes:
        generated: rows formed; a branch that a rule cut early counts once. generated = feasible + all rejected.
        candidates: rows whose memory and step time were computed; speed figures count only these.
        feasible: candidates that fit in memory.
        rejected: reason code -> rows.
        families: families of layouts among the feasible ones.
    """

    generated: int
    candidates: int
    feasible: int
    families: int
    rejected: Mapping[str, int]
    elapsed_s: float


@dataclass(frozen=True)
class WhyAnswer:
    """The answer to `--why`: where a layout the user expected stands, or why it is not there.

    Attributes:
        asked: the layout as asked.
        status: `ranked`, `out_of_memory`, `out_of_host_memory` or `illegal`.
        rank: place among all families; None unless ranked.
        rank_of_all: place among all feasible candidates; None unless ranked.
        slower_than_best: step time over the best plan's, minus 1; None unless priced.
        plan: its best (or, when nothing fits, its smallest) variant; None when illegal.
        best_breakdown, breakdown: seconds by component of the best plan and of this one.
        reasons: code -> sentence of the rules that rejected it.
    """

    asked: str
    status: str
    rank: int | None
    rank_of_all: int | None
    slower_than_best: float | None
    plan: PlanRow | None
    breakdown: Mapping[str, float]
    best_breakdown: Mapping[str, float]
    reasons: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Standing:
    """How a plan stands to the fastest.

    Attributes:
        rank: of the plan.
        behind: step time over the fastest's, minus 1.
        tie_window: up to which the model cannot tell the two apart: less for plans that are alike.
        tied: `behind` is within it.
    """

    rank: int
    behind: float
    tie_window: float
    tied: bool


@dataclass(frozen=True)
class Choice:
    """Why the first plan is the first.

    Attributes:
        rule: the order of plans, in words.
        reason: what the first plan has over the fastest; empty where it is the fastest.
        fastest: the plan with the least predicted step time; rank 0 where it is not among those shown.
        standings: one per plan shown.
    """

    rule: str
    reason: str
    fastest: PlanRow
    standings: tuple[Standing, ...]


@dataclass(frozen=True)
class Condition:
    """Something that may be other than predicted.

    Attributes:
        name, meaning: what a factor multiplies.
        worst: the factor that one in ten cases exceeds.
        source: where that comes from.
    """

    name: str
    meaning: str
    worst: float
    source: str


@dataclass(frozen=True)
class RobustPlan:
    """What may become of a plan.

    Attributes:
        rank: of the plan.
        p10_s, median_s, p90_s: step times that 10, 50 and 90 % of the cases stay within.
        fits: chance that it fits, as far as predicted memory is off.
        losses: condition -> step time at its `worst` over that predicted, minus 1.
        most_hurt_by: the condition by which it loses most beyond what every plan shown loses.
    """

    rank: int
    p10_s: float
    median_s: float
    p90_s: float
    fits: float
    losses: Mapping[str, float]
    most_hurt_by: str


@dataclass(frozen=True)
class Turn:
    """How far one condition may change before the plan that is predicted to be best no longer is.

    Attributes:
        condition: name.
        factor: from here on another plan is ahead by more than the order allows; the end of what was looked at where
            the choice holds.
        plan: the plan that is ahead there, as predicted without the change; None where the choice holds.
    """

    condition: str
    factor: float
    plan: PlanRow | None


@dataclass(frozen=True)
class RobustAnswer:
    """Plans under other conditions than predicted, ranked by their worst decile.

    Attributes:
        samples: combinations of conditions.
        scored: plans that were priced in each.
        predicted: the first choice if all is as predicted; rank 0 where it is not among the plans shown.
        turns: how far conditions may change before it is no longer the choice.
    """

    samples: int
    scored: int
    conditions: tuple[Condition, ...]
    plans: tuple[RobustPlan, ...]
    predicted: PlanRow
    turns: tuple[Turn, ...]


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


@dataclass(frozen=True)
class PlanResult:
    """What `plan` found.

    Attributes:
        plans: the best plans, by rank.
        estimates: the same plans with their breakdowns of step time and memory.
        search: how many candidates there were, and why those that are not here were rejected.
        assumptions: what was chosen by default or by rule: name -> text.
        notes: what a reader should know: an extended fabric, say.
        why: the answer to `why`, when it was asked.
        job: the options that make the same job again, as a plan file has them.
        compared: what several jobs were compared by, or what was asked beside step time and memory; `cluster`, `gpus`,
            `assumptions`, `notes` and `job` are then those of the first plan.
        choice: why the first plan is the first; None where plans are not ranked by time.
        robust: what may become of the plans, when it was asked.
    """

    model: str
    cluster: str
    gpus: int
    plans: tuple[PlanRow, ...]
    estimates: tuple[Estimate, ...]
    search: SearchSummary
    assumptions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    why: WhyAnswer | None = None
    job: Mapping[str, str | int | float] = field(default_factory=dict)
    compared: Comparison | None = None
    choice: Choice | None = None
    robust: RobustAnswer | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale plan --json`."""
        body: dict[str, Any] = {
            "model": self.model,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "plans": [plan.to_dict() for plan in self.plans],
            "search": asdict(self.search),
            "job": dict(self.job),
            "assumptions": dict(self.assumptions),
            "notes": list(self.notes),
        }
        if self.compared is not None:
            body["plans"] = [{**plan, **self.compared.of(index)} for index, plan in enumerate(body["plans"])]
            body |= self.compared.to_dict()
        parts = {"why": self.why, "choice": self.choice, "robust": self.robust}
        return body | {name: asdict(part) for name, part in parts.items() if part is not None}
