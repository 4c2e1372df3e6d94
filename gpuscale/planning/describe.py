"""From arrays to a typed result: one row of an evaluation as an `Estimate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuscale.layouts.arrays import Candidates, schedule_name
from gpuscale.layouts.pins import recompute_text
from gpuscale.layouts.stages import FIRST, LAST, MIDDLE
from gpuscale.planning.jobs import Job
from gpuscale.results import Estimate, PlanRow
from gpuscale.search import Evaluation
from gpuscale.search.objectives import model_flops_per_token
from gpuscale.specs.job import FLOP_CONVENTION, JobSpec
from gpuscale.steptime.components import BOUNDS, COMMUNICATION, COMPONENTS
from gpuscale.uncertainty.interval import Interval, intervals
from gpuscale.uncertainty.residuals import features
from gpuscale.units import GIB


@dataclass(frozen=True)
class _Priced:
    """One row of an evaluation: degrees by name, seconds by component, and how far a measurement may be from them.

    Attributes:
        flops_per_token: model FLOPs, as `model_flops_per_token` has them.
    """

    row: int
    layout: dict[str, int]
    seconds: dict[str, float]
    interval: Interval
    flops_per_token: float


def describe(job: Job, rows: Candidates, evaluation: Evaluation, row: int, *, rank: int, variants: int) -> Estimate:
    """Return candidate `row` with its breakdown of step time and memory."""
    priced = _priced(job.spec, rows, evaluation, [row])[0]
    return _estimate(job, evaluation, priced, rank=rank, variants=variants)


def describe_all(
    job: Job, rows: Candidates, evaluation: Evaluation, chosen: Sequence[int], variants: Sequence[int]
) -> tuple[Estimate, ...]:
    """Return the candidates of some rows, the first of which has rank 1, as `describe` does one."""
    priced = enumerate(zip(_priced(job.spec, rows, evaluation, chosen), variants, strict=True), 1)
    return tuple(_estimate(job, evaluation, one, rank=rank, variants=count) for rank, (one, count) in priced)


def _priced(spec: JobSpec, rows: Candidates, evaluation: Evaluation, chosen: Sequence[int]) -> list[_Priced]:
    layouts = [rows.row(row) for row in chosen]
    columns = evaluation.step.components()[:, list(chosen)].T.tolist()
    seconds = [dict(zip(COMPONENTS, column, strict=True)) for column in columns]
    ranges = intervals([features(spec, *pair) for pair in zip(layouts, seconds, strict=True)])
    flops = model_flops_per_token(spec)
    return [_Priced(*one, flops) for one in zip(chosen, layouts, seconds, ranges, strict=True)]


def _estimate(job: Job, evaluation: Evaluation, priced: _Priced, *, rank: int, variants: int) -> Estimate:
    spec, row = job.spec, priced.row
    host_bytes = float(evaluation.memory.host_bytes[row])
    notes = job.notes
    if host_bytes:
        notes = (*notes, f"offloaded: {host_bytes / GIB:,.0f} of {spec.host_limit_bytes / GIB:,.0f} GiB of each host")
    return Estimate(
        model=spec.model.name,
        cluster=spec.cluster.name,
        gpus=spec.gpus,
        plan=_plan_row(spec, evaluation, priced, rank=rank, variants=variants),
        breakdown=priced.seconds,
        memory={name: size / GIB for name, size in evaluation.memory.at_peak(row).items()},
        total_dp_comm_s=float(evaluation.step.data.total_s[row]),
        stage_memory_gib=_stage_memory_gib(evaluation.memory.by_stage[:, row].tolist()),
        assumptions=job.assumptions,
        notes=notes,
        job=job.request,
    )


def _stage_memory_gib(by_stage: list[float]) -> tuple[float, ...]:
    """Order the priced stages as the pipeline does: first, fullest in between, last."""
    return by_stage[FIRST] / GIB, max(by_stage[MIDDLE:]) / GIB, by_stage[LAST] / GIB


def _plan_row(spec: JobSpec, evaluation: Evaluation, priced: _Priced, *, rank: int, variants: int) -> PlanRow:
    row, layout, seconds = priced.row, priced.layout, priced.seconds
    step_time_s = float(evaluation.step.step_time_s[row])
    tokens_per_s = spec.tokens_per_step / step_time_s
    flops_per_s_per_gpu = priced.flops_per_token * tokens_per_s / spec.gpus
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
        step_time_low_s=step_time_s * priced.interval.low,
        step_time_high_s=step_time_s * priced.interval.high,
        similar_runs=priced.interval.rows,
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
