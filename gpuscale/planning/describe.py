"""From arrays to typed results: one row of an evaluation as an `Estimate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def describe(job: Job, rows: Candidates, evaluation: Evaluation, row: int, *, rank: int, variants: int) -> Estimate:
    """Return candidate `row` with its breakdown of step time and memory."""
    return describe_all(job, rows, evaluation, [row], [variants], first_rank=rank)[0]


def describe_all(
    job: Job,
    rows: Candidates,
    evaluation: Evaluation,
    chosen: Sequence[int],
    variants: Sequence[int],
    first_rank: int = 1,
) -> tuple[Estimate, ...]:
    """Return the candidates of some rows in order of rank, with their breakdowns.

    Args:
        variants: for each of them the feasible plans that it stands for.
    """
    spec, found = job.spec, []
    layouts = [rows.row(row) for row in chosen]
    columns = evaluation.step.components[:, list(chosen)].T.tolist()
    seconds = [dict(zip(COMPONENTS, column, strict=True)) for column in columns]
    ranges = intervals([features(spec, *pair) for pair in zip(layouts, seconds, strict=True)])
    for index, row in enumerate(chosen):
        plan = _plan_row(spec, evaluation, row, layouts[index], seconds[index], ranges[index])
        host_bytes = float(evaluation.memory.host_bytes[row])
        offloaded = f"offloaded: {host_bytes / GIB:,.0f} of {spec.host_limit_bytes / GIB:,.0f} GiB of each host"
        stages = evaluation.memory.by_stage[:, row].tolist()  # first, last, and those in between that may be fullest
        found.append(
            Estimate(
                model=spec.model.name,
                cluster=spec.cluster.name,
                gpus=spec.gpus,
                plan=PlanRow(rank=first_rank + index, variants=variants[index], **plan),
                breakdown=seconds[index],
                memory={name: size / GIB for name, size in evaluation.memory.at_peak(row).items()},
                total_dp_comm_s=float(evaluation.step.dp_total_s[row]),
                stage_memory_gib=(stages[FIRST] / GIB, max(stages[MIDDLE:]) / GIB, stages[LAST] / GIB),
                assumptions=job.assumptions,
                notes=(*job.notes, *([offloaded] if host_bytes else [])),
                job=job.request,
            )
        )
    return tuple(found)


def _plan_row(
    spec: JobSpec,
    evaluation: Evaluation,
    row: int,
    layout: dict[str, int],
    seconds: dict[str, float],
    interval: Interval,
) -> dict[str, Any]:
    """Return the fields of a `PlanRow` but its rank and what it stands for."""
    step_time_s = float(evaluation.step.step_time_s[row])
    tokens_per_s = spec.tokens_per_step / step_time_s
    flops_per_s_per_gpu = model_flops_per_token(spec) * tokens_per_s / spec.gpus
    memory_bytes = float(evaluation.memory.peak_bytes[row])
    host_fits = float(evaluation.memory.host_bytes[row]) <= spec.host_limit_bytes
    stage = int(evaluation.memory.by_stage[:, row].argmax())
    degrees = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "micro_batch_size", "num_microbatches")
    return {name: layout[name] for name in degrees} | {
        "sp": bool(layout["sp"]),
        "sharding": sharding_name(layout),
        "shard_size": layout["shard"],
        "global_batch_size": spec.global_batch_size,
        "sequence": spec.sequence,
        "recompute": recompute_text(layout["recompute_modules"], layout["recompute_layers"]),
        "schedule": schedule_name(layout),
        "step_time_s": step_time_s,
        "step_time_low_s": step_time_s * interval.low,
        "step_time_high_s": step_time_s * interval.high,
        "similar_runs": interval.rows,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / spec.gpus,
        "tflops_per_gpu": flops_per_s_per_gpu / 1e12,
        "mfu": flops_per_s_per_gpu / spec.cluster.gpu.peak(spec.precision),
        "memory_gib": memory_bytes / GIB,
        "memory_limit_gib": spec.memory_limit_bytes / GIB,
        "fits": memory_bytes <= spec.memory_limit_bytes and host_fits,
        "peak_stage": int(evaluation.stages.position[evaluation.stage_row[row], stage]),
        "bound_by": bound_by(seconds),
        "exposed_comm_fraction": sum(seconds[name] for name in COMMUNICATION) / step_time_s,
        "bubble_fraction": seconds["bubble"] / step_time_s,
        "flop_convention": FLOP_CONVENTION,
    }


def bound_by(seconds: dict[str, float]) -> str:
    """The kind of work that takes most of the step (ties: the first in the order of `BOUNDS`)."""
    totals = dict.fromkeys(BOUNDS, 0.0)
    for name, value in seconds.items():
        totals[COMPONENTS[name].limit] += value
    return max(totals, key=lambda kind: totals[kind])


def sharding_name(layout: dict[str, int]) -> str:
    """`none`, `distopt`, `fsdp` or `hsdp`, from the ZeRO stage and the shard size."""
    if layout["zero"] <= 1:
        return ("none", "distopt")[layout["zero"]]
    return "hsdp" if layout["shard"] < layout["dp"] * layout["cp"] else "fsdp"
