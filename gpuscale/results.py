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
        rank: place among the plans shown, from 1; 0 for a plan that is not among them, in an answer to `why`
            when it does not fit
        tp: tensor-parallel degree
        sp: sequence parallelism (norms and residuals split over the TP ranks)
        pp: pipeline stages
        vpp: model chunks per pipeline rank; 1 without interleaving
        cp: context-parallel degree
        ep: expert-parallel degree
        etp: tensor-parallel degree inside experts
        dp: data-parallel degree
        zero: ZeRO stage: 0, 1, 2 or 3
        sharding: `none` (ZeRO 0), `distopt` (1), `fsdp` (2 and 3), `hsdp` (3 within `shard_size` ranks)
        shard_size: GPUs that share one copy of the sharded states
        micro_batch_size: sequences per microbatch and data-parallel rank
        global_batch_size: sequences per optimizer step
        num_microbatches: microbatches per step and data-parallel rank
        sequence: tokens per sequence
        recompute: `none`, `selective:<modules>`, `selective` (a way of the framework's own) or `full:<layers per
            stage>`
        schedule: `none` (one stage), `1f1b` or `interleaved`; with `schedule` also `gpipe`, `zb-h1`, `zb-2p`,
            `zb-v`, `dualpipe`
        pipeline_layout: what `--pipeline-model-parallel-layout` of Megatron-LM has to be for these stages; null where
            it deals the layers out so by itself, and for other frameworks
        step_time_s: seconds per optimizer step
        step_time_low_s: lower end of the 80 % interval (validation)
        step_time_high_s: its upper end
        similar_runs: published runs that are much like it
        nearest_run: id of the one that is most like it
        unmeasured: what it has and no published run has
        tokens_per_s: tokens per second of the whole job
        tokens_per_s_per_gpu: tokens per second and GPU
        tflops_per_gpu: model TFLOP/s per GPU (1e12), by `flop_convention`
        mfu: share of the dense peak, 0 to 1, by `flop_convention`
        memory_gib: GiB per GPU at the fullest pipeline stage
        memory_limit_gib: GiB per GPU that may be in use at most
        fits: `memory_gib` is within the limit
        fit: `fits`, `tight` (within the limit, above what fragmentation usually leaves) or `no`
        peak_stage: the fullest stage, from 0
        bound_by: kind of work that takes most of the step: what its largest components count as
        exposed_comm_fraction: communication that is not hidden, as a share of the step
        bubble_fraction: idle time of the pipeline, as a share of the step (idle / total)
        variants: feasible plans of its family (planning, "Ranking"), of several jobs all feasible plans of its
            job, that this one stands for; 1 with `all`
        flop_convention: which FLOPs are counted, and against which peak
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
    pipeline_layout: str | None
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    similar_runs: int
    nearest_run: str
    unmeasured: tuple[str, ...]
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float
    memory_gib: float
    memory_limit_gib: float
    fits: bool
    fit: str
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
class Remedy:
    """A change that makes a layout need less memory.

    Attributes:
        change: option -> its new value
        memory_gib: GiB per GPU with it
        fit: whether it then `fits`, is `tight` or (`no`) does not
        step_time_s: seconds per optimizer step with it
        slower: step time over that without it, less 1
    """

    change: Mapping[str, str | int]
    memory_gib: float
    fit: str
    step_time_s: float
    slower: float


@dataclass(frozen=True)
class Estimate:
    """One plan with its breakdown of step time and memory.

    Attributes:
        model: name of the model
        cluster: name of the cluster
        gpus: GPUs of the job
        plan: the layout and its numbers; `rank` and `variants` are 1
        breakdown: component -> seconds; they add up to `step_time_s`
        memory: component -> GiB at the fullest stage; they add up to `memory_gib`
        total_dp_comm_s: data-parallel communication before overlap, seconds per step
        stage_memory_gib: GiB per GPU at the first, heaviest middle and last stage
        logged_memory_gib: GiB as a log says it, by what it reads (`allocated`, `reserved`, `nvidia-smi`), at the
            fullest stage and at rank 0
        assumptions: as in `gpuscale.plan/1`
        notes: as in `gpuscale.plan/1`
        job: as in `gpuscale.plan/1`
        remedies: where it does not fit or is tight, what makes it fit, the fastest first: single changes, else pairs
            of changes; where none does, the one that comes nearest
    """

    model: str
    cluster: str
    gpus: int
    plan: PlanRow
    breakdown: Mapping[str, float]
    memory: Mapping[str, float]
    total_dp_comm_s: float
    stage_memory_gib: tuple[float, ...]
    logged_memory_gib: Mapping[str, float]
    assumptions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    job: Mapping[str, str | int | float] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class SearchSummary:
    """How the search went.

    Attributes:
        generated: layouts formed; a branch that a rule cut early counts once. It is `feasible` and all of
            `rejected`. With `space=full`: all ways to recompute of a row that is left out
            (`slower_than_best`, or `out_of_memory` for its states alone); what a rule cuts, once for all jobs
            with the same layers
        candidates: layouts whose memory and step time were computed
        feasible: candidates that fit in memory
        families: families of layouts among them, those that are folded under another left out
        rejected: reason code (the rule that cut it) -> layouts
        elapsed_s: seconds that the search took, the one value that differs from run to run; the command prints it
            with `timing` only
    """

    generated: int
    candidates: int
    feasible: int
    families: int
    rejected: Mapping[str, int]
    elapsed_s: float | None


@dataclass(frozen=True)
class WhyAnswer:
    """The answer to `why`: where a layout the user expected stands, or why it is not there.

    Attributes:
        asked: the layout as asked
        status: `ranked`, `out_of_memory`, `out_of_host_memory` or `illegal`
        rank: place among the families by the objective; null unless ranked
        rank_of_all: place among all feasible candidates; null unless ranked
        slower_than_best: step time over that of the first plan shown, less 1 (of several jobs: time per token);
            null when illegal
        plan: its fastest variant, or its smallest when none fits; null when illegal
        breakdown: component -> seconds of that plan
        best_breakdown: component -> seconds of the first plan shown
        reasons: code -> the rule that rejects it, or how much memory it lacks
        plain: the layout as `estimate` completes what was asked, where that does not fit or is tight; else null
        remedies: what makes `plain` fit, as in `gpuscale.estimate/1`
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
    plain: PlanRow | None = None
    remedies: tuple[Remedy, ...] = ()


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
        rule: the order of plans, in words
        reason: what the first plan has over the fastest; empty where it is the fastest
        fastest: the plan with the least predicted step time
        standings: one per plan shown
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
        samples: cases: combinations of all conditions
        scored: plans that were evaluated in each
        conditions: what may be other than predicted
        plans: one per plan shown
        predicted: the first choice if all is as predicted
        turns: how far conditions may change before it is no longer the choice
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
        choice: what sets the job apart: option -> value, of those that are compared
        candidates: layouts whose memory and step time were computed
        feasible: those that fit and meet the constraints
        best: what its best plan by the objective has: `step_time_s`, `tokens_per_s`, `mfu`, `memory_gib`, and
            what `values` of a plan has; empty without one, of a frontier, and of a job that was given up
        reason: why it has no plan, or `no plan among the best` where it was given up (`space=full`)
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


@dataclass(frozen=True)
class PlanResult:
    """What `plan` found.

    Attributes:
        model: name of the model
        cluster: name of the cluster
        gpus: GPUs of the job
        plans: the best plans, by rank; `top` of them at most
        estimates: the same plans with their breakdowns of step time and memory.
        search: how the search went
        assumptions: what was chosen, by a default or by an option, in words
        notes: what a reader should know: an extended fabric, an unusually long sequence
        why: the answer to `why`
        job: options that make the same job again: model, cluster, GPUs, precision with its recipe, framework,
            dtypes, offload, ..., as a plan file has them
        compared: what several jobs were compared by, or what was asked beside step time and memory; `cluster`,
            `gpus`, `assumptions`, `notes` and `job` are then those of the first plan.
        choice: why the first plan is the first; left out where plans are ranked by memory
        robust: with `robust`: what may become of the plans
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
        """Return the body of `gpuscale.plan/1`."""
        body: dict[str, Any] = {
            "model": self.model,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "plans": [plan.to_dict() for plan in self.plans],
            "search": {name: value for name, value in asdict(self.search).items() if value is not None},
            "job": dict(self.job),
            "assumptions": dict(self.assumptions),
            "notes": list(self.notes),
        }
        compared = self.compared
        if compared is not None:
            for plan, variant, values in zip(body["plans"], compared.of_plan, compared.values, strict=True):
                plan |= {"variant": variant, "values": dict(values)}
            body |= {"objectives": list(compared.objectives), "constraints": dict(compared.bounds)}
            body["variants"] = [asdict(row) for row in compared.variants]
            if compared.frontier_size:
                body["frontier_size"] = compared.frontier_size
        parts = {"why": self.why, "choice": self.choice, "robust": self.robust}
        return body | {name: asdict(part) for name, part in parts.items() if part is not None}
