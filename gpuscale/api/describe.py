"""From arrays to a typed result: one row of an evaluation as an `Estimate`."""

from __future__ import annotations

from gpuscale.api.jobs import Job
from gpuscale.candidates.arrays import Candidates, schedule_name
from gpuscale.candidates.pins import recompute_text
from gpuscale.candidates.stages import FIRST, LAST, MIDDLE
from gpuscale.ranking import Evaluation
from gpuscale.ranking.goals import model_flops_per_token
from gpuscale.results import Estimate, PlanRow
from gpuscale.specs.job import FLOP_CONVENTION, JobSpec
from gpuscale.steptime import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.units import GIB
from gpuscale.validation.interval import features, interval


def describe(job: Job, rows: Candidates, evaluation: Evaluation, row: int, *, rank: int, variants: int) -> Estimate:
    """Return candidate `row` with its breakdown of step time and memory."""
    spec = job.spec
    seconds = evaluation.step.components()[:, row]
    breakdown = {name: float(value) for name, value in zip(COMPONENTS, seconds, strict=True)}
    memory = {name: size / GIB for name, size in evaluation.memory.at_peak(row).items()}
    host_bytes = float(evaluation.memory.host_bytes[row])
    notes = job.notes
    if host_bytes:
        notes = (*notes, f"offloaded: {host_bytes / GIB:,.0f} of {spec.host_limit_bytes / GIB:,.0f} GiB of each host")
    return Estimate(
        model=spec.model.name,
        cluster=spec.cluster.name,
        gpus=spec.gpus,
        plan=_plan_row(spec, rows.row(row), evaluation, row, rank=rank, variants=variants),
        breakdown=breakdown,
        memory=memory,
        total_dp_comm_s=float(evaluation.step.data.total_s[row]),
        stage_memory_gib=_stage_memory_gib(evaluation.memory.by_stage[:, row].tolist()),
        assumptions=job.assumptions,
        notes=notes,
        job=job.request,
    )


def _stage_memory_gib(by_stage: list[float]) -> tuple[float, ...]:
    """Order the priced stages as the pipeline does: first, fullest in between, last."""
    return by_stage[FIRST] / GIB, max(by_stage[MIDDLE:]) / GIB, by_stage[LAST] / GIB


def _plan_row(
    spec: JobSpec, layout: dict[str, int], evaluation: Evaluation, row: int, *, rank: int, variants: int
) -> PlanRow:
    seconds = dict(zip(COMPONENTS, evaluation.step.components()[:, row].tolist(), strict=True))
    step_time_s = float(evaluation.step.step_time_s[row])
    ratio = interval(features(spec, layout, seconds))
    tokens_per_s = spec.tokens_per_step / step_time_s
    flops_per_s_per_gpu = model_flops_per_token(spec) * tokens_per_s / spec.gpus
    memory_bytes = float(evaluation.memory.peak_bytes[row])
    place = int(evaluation.memory.by_stage[:, row].argmax())
    return PlanRow(
        rank=rank,
        tp=layout["tp"],
        sp=bool(layout["sp"]),
        pp=layout["pp"],
        vpp=layout["vpp"],
        cp=layout["cp"],
        ep=layout["ep"],
        etp=layout["etp"],
        dp=layout["dp"],
        zero=layout["zero"],
        sharding=sharding_name(layout),
        shard_size=layout["shard"],
        micro_batch_size=layout["micro_batch_size"],
        global_batch_size=spec.global_batch_size,
        num_microbatches=layout["num_microbatches"],
        sequence=spec.sequence,
        recompute=recompute_text(layout["recompute_modules"], layout["recompute_layers"]),
        schedule=schedule_name(layout),
        step_time_s=step_time_s,
        step_time_low_s=step_time_s * ratio.low,
        step_time_high_s=step_time_s * ratio.high,
        similar_runs=ratio.rows,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / spec.gpus,
        tflops_per_gpu=flops_per_s_per_gpu / 1e12,
        mfu=flops_per_s_per_gpu / spec.cluster.gpu.peak(spec.precision),
        memory_gib=memory_bytes / GIB,
        memory_limit_gib=spec.memory_limit_bytes / GIB,
        fits=memory_bytes <= spec.memory_limit_bytes
        and float(evaluation.memory.host_bytes[row]) <= spec.host_limit_bytes,
        peak_stage=int(evaluation.stages.position[evaluation.stage_row[row], place]),
        bound_by=bound_by(seconds),
        exposed_comm_fraction=sum(seconds[name] for name in COMMUNICATION) / step_time_s,
        bubble_fraction=seconds["bubble"] / step_time_s,
        variants=variants,
        flop_convention=FLOP_CONVENTION,
    )


def bound_by(seconds: dict[str, float]) -> str:
    """The kind of work that takes most of the step (ties: the first in the order of `BOUNDS`)."""
    totals = dict.fromkeys(BOUNDS, 0.0)
    for name, value in seconds.items():
        totals[COMPONENTS[name]] += value
    return max(totals, key=lambda kind: totals[kind])


def sharding_name(layout: dict[str, int]) -> str:
    """`none`, `distopt`, `fsdp` or `hsdp`, from the ZeRO stage and the shard size."""
    if layout["zero"] <= 1:
        return ("none", "distopt")[layout["zero"]]
    return "hsdp" if layout["shard"] < layout["dp"] * layout["cp"] else "fsdp"
