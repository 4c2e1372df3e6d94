"""Typed results of the public functions; tables, CSV and JSON derive their columns from these fields."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuscale.display import WithFields, displayed

NOTHING_LEGAL = "no legal layout"
"""Reason of a job in which every layout breaks a rule, or pins leave none."""

BEATEN = "no plan among the best"
"""Reason of a job that was given up because enough others are better."""


@displayed
@dataclass(frozen=True)
class PlanRow(WithFields):
    """One way to split the work, and what it is predicted to do."""

    #: place among the plans shown, from 1; 0 for a plan that is not among them, in an answer to `why` when it does not
    #: fit
    rank: int
    tp: int  #: tensor-parallel degree
    sp: bool  #: sequence parallelism (norms and residuals split over the TP ranks)
    pp: int  #: pipeline stages
    vpp: int  #: model chunks per pipeline rank; 1 without interleaving
    cp: int  #: context-parallel degree
    ep: int  #: expert-parallel degree
    etp: int  #: tensor-parallel degree inside experts
    dp: int  #: data-parallel degree
    zero: int  #: ZeRO stage: 0, 1, 2 or 3
    sharding: str  #: `none` (ZeRO 0), `distopt` (1), `fsdp` (2 and 3), `hsdp` (3 within `shard_size` ranks)
    shard_size: int  #: GPUs that share one copy of the sharded states
    micro_batch_size: int  #: sequences per microbatch and data-parallel rank
    global_batch_size: int  #: sequences per optimizer step
    num_microbatches: int  #: microbatches per step and data-parallel rank
    sequence: int  #: tokens per sequence
    #: `none`, `selective:<modules>`, `selective` (a way of the framework's own) or `full:<layers per stage>`
    recompute: str
    #: `none` (one stage), `1f1b` or `interleaved`; with `schedule` also `gpipe`, `zb-h1`, `zb-2p`, `zb-v`, `dualpipe`
    schedule: str
    #: what `--pipeline-model-parallel-layout` of Megatron-LM has to be for these stages; null where it deals the layers
    #: out so by itself, and for other frameworks
    pipeline_layout: str | None
    step_time_s: float  #: seconds per optimizer step
    step_time_low_s: float  #: lower end of the 80 % interval (validation)
    step_time_high_s: float  #: its upper end
    similar_runs: int  #: published runs that are much like it
    nearest_run: str  #: id of the one that is most like it
    nearest_run_name: str  #: what that was, in words: model, GPUs, layout, software
    unmeasured: tuple[str, ...]  #: what it has and no published run has
    tokens_per_s: float  #: tokens per second of the whole job
    tokens_per_s_per_gpu: float  #: tokens per second and GPU
    tflops_per_gpu: float  #: model TFLOP/s per GPU (1e12), by `flop_convention`
    mfu: float  #: share of the dense peak, 0 to 1, by `flop_convention`
    memory_gib: float  #: GiB per GPU at the fullest pipeline stage
    memory_low_gib: float  #: lower end of the 80 % interval (validation)
    memory_high_gib: float  #: its upper end
    fit_probability: float  #: probability that a measurement is within the limit, 0 to 1
    memory_limit_gib: float  #: GiB per GPU that may be in use at most
    fits: bool  #: `memory_gib` is within the limit
    fit: str  #: `fits`, `tight` (within the limit, above what fragmentation usually leaves) or `no`
    peak_stage: int  #: the fullest stage, from 0
    #: kind of work that takes most of the step, its components added up: `compute`, `recompute`, `hbm`, `waiting` (for
    #: the slowest GPU), `launch`, `communication` (what shows of it, on all axes), `host` or `bubble`
    bound_by: str
    bound_fraction: float  #: its share of the step
    exposed_comm_fraction: float  #: communication that is not hidden, as a share of the step
    bubble_fraction: float  #: idle time of the pipeline, as a share of the step (idle / total)
    #: feasible plans of its family (planning, "Ranking"), of several jobs all feasible plans of its job, that this one
    #: stands for; 1 with `all`
    variants: int
    flop_convention: str  #: which FLOPs are counted, and against which peak


@dataclass(frozen=True)
class Remedy:
    """A change that makes a layout need less memory."""

    change: Mapping[str, str | int]  #: option -> its new value
    memory_gib: float  #: GiB per GPU with it
    fit: str  #: whether it then `fits`, is `tight` or (`no`) does not
    step_time_s: float  #: seconds per optimizer step with it
    slower: float  #: step time over that without it, less 1


@displayed
@dataclass(frozen=True)
class Estimate(WithFields):
    """One plan with its breakdown of step time and memory."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    plan: PlanRow  #: the layout and its numbers; `rank` and `variants` are 1
    breakdown: Mapping[str, float]  #: component -> seconds; they add up to `step_time_s`
    memory: Mapping[str, float]  #: component -> GiB at the fullest stage; they add up to `memory_gib`
    total_dp_comm_s: float  #: data-parallel communication before overlap, seconds per step
    stage_memory_gib: tuple[float, ...]  #: GiB per GPU at the first, heaviest middle and last stage
    #: GiB as a log says it, by what it reads (`allocated`, `reserved`, `nvidia-smi`), at the fullest stage and at rank
    #: 0
    logged_memory_gib: Mapping[str, float]
    assumptions: Mapping[str, str] = field(default_factory=dict)  #: as in `gpuscale.plan/1`
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`
    job: Mapping[str, str | int | float] = field(default_factory=dict)  #: as in `gpuscale.plan/1`
    #: where it does not fit or is tight, what makes it fit, the fastest first: single changes, else pairs of changes;
    #: where none does, the one that comes nearest
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True)
class SoftwareThen:
    """What a measured run's layout and the first plan's are predicted to take here with the software of the run."""

    framework: str  #: the generation of the job's framework, by its last month
    step_time_s: float | None  #: seconds per step of the run's layout; null where that cannot run
    first_step_time_s: float  #: of the first plan's layout
    first_memory_gib: float  #: what that needs
    first_fits: bool  #: whether that is within the limit


@dataclass(frozen=True)
class MeasuredLayout:
    """The layout of the measured run whose job is the most like this one."""

    run: str  #: id of the run
    name: str  #: what it was, in words
    tokens_per_s_per_gpu: float  #: its measured rate
    predicted_tokens_per_s_per_gpu: float  #: what is predicted of it
    layout: str  #: its layout, as far as it fits this job; empty where its degrees do not divide this job's GPUs
    step_time_s: float | None  #: what is predicted of that here; null where it cannot run
    slower: float | None  #: step time over that of the first plan, less 1; null where it cannot run
    memory_gib: float | None  #: GiB per GPU; null where it cannot run
    fits: bool  #: whether that is within the limit
    reasons: tuple[str, ...]  #: why it cannot run here
    then: SoftwareThen | None = None  #: with its software, where that is an earlier generation of the job's; else null


@dataclass(frozen=True)
class Farthest:
    """How far one number of the job goes before no layout fits."""

    name: str  #: `seq` (longest), `mbs` (largest) or `gpus` (fewest)
    value: int  #: the last that fits: tokens, sequences or GPUs
    beyond: int | None  #: the next that was tried, for which nothing fits; null where there is none


@dataclass(frozen=True)
class SearchSummary:
    """How the search went."""

    #: layouts formed; a branch that a rule cut early counts once. It is `feasible` and all of `rejected`. With
    #: `space=full`: all ways to recompute of a row that is left out (`slower_than_best`, or `out_of_memory` for its
    #: states alone); what a rule cuts, once for all jobs with the same layers
    generated: int
    candidates: int  #: layouts whose memory and step time were computed
    feasible: int  #: candidates that fit in memory
    families: int  #: families of layouts among them, those that are folded under another left out
    rejected: Mapping[str, int]  #: reason code (the rule that cut it) -> layouts
    #: seconds that the search took, the one value that differs from run to run; the command prints it with `timing`
    #: only
    elapsed_s: float | None


@dataclass(frozen=True)
class WhyAnswer:
    """The answer to `why`: where a layout the user expected stands, or why it is not there."""

    asked: str  #: the layout as asked
    status: str  #: `ranked`, `out_of_memory`, `out_of_host_memory` or `illegal`
    #: place in the list of plans, as the table numbers them: 1 and the plans that it lists before this one (of several
    #: jobs the best of each); null unless ranked
    rank: int | None
    rank_of_all: int | None  #: place of `plan` by the objective alone among all feasible candidates; null unless ranked
    #: step time over that of the first plan shown, less 1 (of several jobs: time per token); null when illegal
    slower_than_best: float | None
    plan: PlanRow | None  #: its first variant in the order of plans, or its smallest when none fits; null when illegal
    breakdown: Mapping[str, float]  #: component -> seconds of that plan
    best_breakdown: Mapping[str, float]  #: component -> seconds of the first plan shown
    reasons: Mapping[str, str]  #: code -> the rule that rejects it, or how much memory it lacks
    #: the layout as `estimate` completes what was asked, where that does not fit or is tight; else null
    plain: PlanRow | None = None
    remedies: tuple[Remedy, ...] = ()  #: what makes `plain` fit, as in `gpuscale.estimate/1`


@dataclass(frozen=True)
class RecipeAnswer:
    """The answer to `recipe`: how the layout of experts stands among the plans of their job."""

    name: str  #: of the recipe
    by: str  #: who runs it
    source: str  #: where it is published
    layout: str  #: its layout in a few words
    step_time_s: float | None  #: seconds per optimizer step; null where it cannot run
    memory_gib: float | None  #: GiB per GPU at the fullest stage; null where it cannot run
    fits: bool  #: `memory_gib` is within the limit
    #: place in the list of plans, as `rank` of `why`: 1 and the plans that a table of any length lists before it; null
    #: where it is not one of them
    rank: int | None
    behind: float | None  #: step time over that of the first plan, less 1; null where it cannot run
    differs: str  #: in what its layout differs from the first plan: its value -> that of the plan
    reason: str  #: why it is not one of the plans; empty where it is
    asked: bool = True  #: it was asked for; else it is the one published for a job near this one, and has no rank


@dataclass(frozen=True)
class Standing:
    """How a plan stands to the fastest."""

    rank: int  #: of the plan.
    behind: float  #: step time over the fastest's, minus 1.
    tie_window: float  #: up to which the model cannot tell the two apart: less for plans that are alike.
    tied: bool  #: `behind` is within it.


@dataclass(frozen=True)
class Choice:
    """Why the first plan is the first."""

    rule: str  #: the order of plans, in words
    reason: str  #: what the first plan has over the fastest; empty where it is the fastest
    fastest: PlanRow  #: the plan with the least predicted step time
    standings: tuple[Standing, ...]  #: one per plan shown


@dataclass(frozen=True)
class Condition:
    """Something that may be other than predicted."""

    name: str  #: of a factor, as `calibrate` names it.
    meaning: str  #: what the factor multiplies.
    worst: float  #: the factor that one in ten cases exceeds.
    source: str  #: where that comes from.


@dataclass(frozen=True)
class RiskPlan:
    """What may become of a plan."""

    rank: int  #: of the plan.
    p10_s: float  #: step time that 10 % of the cases stay within [s].
    median_s: float  #: that half of the cases stay within [s].
    p90_s: float  #: that 90 % of the cases stay within [s].
    #: that the share `risk` of the cases stays within, wider where no measured run is of its kind [s].
    at_risk_s: float
    fits: float  #: probability that it fits, as `fit_probability` of the plan.
    losses: Mapping[str, float]  #: condition -> step time at its `worst` over that predicted, minus 1.
    most_hurt_by: str  #: the condition by which it loses most beyond what every plan shown loses.


@dataclass(frozen=True)
class Turn:
    """How far one condition may change before the plan that is predicted to be best no longer is."""

    condition: str  #: name.
    #: from here on another plan is ahead by more than the order allows; the end of what was looked at where the choice
    #: holds.
    factor: float
    plan: PlanRow | None  #: the plan that is ahead there, as predicted without the change; None where the choice holds.


@dataclass(frozen=True)
class RiskAnswer:
    """Plans under other conditions than predicted, ranked by an upper quantile of their step times."""

    risk: float  #: the share of cases that what they are ranked by holds for
    samples: int  #: cases: combinations of all conditions
    scored: int  #: plans that were evaluated in each
    conditions: tuple[Condition, ...]  #: what may be other than predicted
    plans: tuple[RiskPlan, ...]  #: one per plan shown
    predicted: PlanRow  #: the first choice if all is as predicted
    turns: tuple[Turn, ...]  #: how far conditions may change before it is no longer the choice


@dataclass(frozen=True)
class VariantRow:
    """One of the jobs that were compared."""

    choice: Mapping[str, str | int]  #: what sets the job apart: option -> value, of those that are compared
    candidates: int  #: layouts whose memory and step time were computed
    feasible: int  #: those that fit and meet the constraints
    #: what its best plan by the objective has: `step_time_s`, `tokens_per_s`, `mfu`, `memory_gib`, and what `values` of
    #: a plan has; empty without one, of a frontier, and of a job that was given up
    best: Mapping[str, float]
    reason: str | None  #: why it has no plan, or `no plan among the best` where it was given up (`space=full`)


@dataclass(frozen=True)
class Comparison:
    """What is said of plans beyond their own job."""

    objectives: tuple[str, ...]  #: what the plans are ranked by; several name the axes of a Pareto frontier.
    bounds: Mapping[str, float]  #: constraints by name, in the unit of what they bound.
    variants: tuple[VariantRow, ...]  #: the jobs compared, in the order in which they were tried.
    of_plan: tuple[int, ...]  #: for each plan the index of its job in `variants`.
    values: tuple[Mapping[str, float], ...]  #: for each plan what it is worth: name with unit -> value.
    frontier_size: int = 0  #: plans on the frontier; 0 of a ranking.


@displayed
@dataclass(frozen=True)
class PlanResult:
    """What `plan` found."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    plans: tuple[PlanRow, ...]  #: the best plans, by rank; `top` of them at most
    estimates: tuple[Estimate, ...]  #: the same plans with their breakdowns of step time and memory.
    search: SearchSummary  #: how the search went
    assumptions: Mapping[str, str]  #: what was chosen, by a default or by an option, in words
    notes: tuple[str, ...] = ()  #: what a reader should know: an extended fabric, an unusually long sequence
    why: WhyAnswer | None = None  #: the answer to `why`
    #: options that make the same job again: model, cluster, GPUs, precision with its recipe, framework, dtypes,
    #: offload, ..., as a plan file has them
    job: Mapping[str, str | int | float] = field(default_factory=dict)
    #: what several jobs were compared by, or what was asked beside step time and memory; `cluster`, `gpus`,
    #: `assumptions`, `notes` and `job` are then those of the first plan.
    compared: Comparison | None = None
    choice: Choice | None = None  #: why the first plan is the first; left out where plans are ranked by memory
    measured: MeasuredLayout | None = None  #: of one job: the layout that was run for the job nearest to it
    risk: RiskAnswer | None = None  #: with `risk`: what may become of the plans
    #: the answer to `recipe`, or how the layout published for a job near this one stands here
    recipe: RecipeAnswer | None = None
    farthest: Farthest | None = None  #: the answer to `find`

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
        names = ("why", "choice", "measured", "risk", "recipe", "farthest")
        parts = {name: getattr(self, name) for name in names}
        return body | {name: asdict(part) for name, part in parts.items() if part is not None}
