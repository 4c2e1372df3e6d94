"""`plan`: search the space and describe the best; `estimate`: price one layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack, cast

import numpy as np

from gpuscale.api.describe import describe
from gpuscale.api.jobs import Job, JobOptions, build_job, check_options, check_range, choice
from gpuscale.api.layouts import fixed_layout, make_pins, parse_layout
from gpuscale.api.legality import illegal
from gpuscale.api.verdicts import answer_why, nothing_fits, nothing_legal
from gpuscale.errors import InputError
from gpuscale.ranking import OBJECTIVES, SearchResult, evaluate, search
from gpuscale.results import Estimate, PlanResult, SearchSummary
from gpuscale.rules import broken_rules

MAX_TOP = 2000


class PlanOptions(JobOptions, total=False):
    """Options of `plan`.

    `pins`: field of a candidate -> values it may take (`8`, `"4..8"`, `"!16"`), and `recompute`;
    `objective`: one of `OBJECTIVES`; `top`: plans to return; `unfold`: rank variants of a layout one by one;
    `why`: a layout such as `tp=4,pp=8` to account for.
    """

    pins: Mapping[str, str | int]
    objective: str
    top: int
    unfold: bool
    why: str


def plan(model: str, gpus: int, **options: Unpack[PlanOptions]) -> PlanResult:
    """Find the best ways to train `model` on `gpus` GPUs.

    Args:
        model: name of a preset, path of a model file, or path of a Hugging Face `config.json` or its folder.
        gpus: GPUs of the job.
        options: see `PlanOptions` and `JobOptions`.

    Raises:
        InputError: unusable input, or pins that contradict each other or every rule.
        NoAnswerError: legal layouts, none of which fits in memory; the message names the nearest miss.
    """
    check_options(options, PlanOptions)
    top = options.get("top", 10)
    check_range("--top", top, 1, MAX_TOP)
    objective = choice("--objective", options.get("objective", "step_time"), OBJECTIVES)
    pins = make_pins(options.get("pins", {}))
    asked = parse_layout(options["why"], "--why") if "why" in options else None
    job = build_job(model, gpus, _job_options(options))
    found = search(job.spec, pins, objective)
    if not found.evaluated:
        raise nothing_legal(job.spec, pins, found)
    if not found.feasible:
        raise nothing_fits(job, pins, found)
    unfold = options.get("unfold", False)
    estimates = _leaders(job, found, top, unfold=unfold)
    why = answer_why(job, asked, pins, found, objective) if asked is not None else None
    return PlanResult(
        model=job.spec.model.name,
        cluster=job.spec.cluster.name,
        gpus=gpus,
        plans=tuple(estimate.plan for estimate in estimates),
        estimates=estimates,
        search=_summary(found),
        assumptions=job.assumptions,
        notes=job.notes,
        why=why,
        job=job.request,
    )


def _job_options(options: PlanOptions) -> JobOptions:
    kept = {key: value for key, value in options.items() if key in JobOptions.__annotations__}
    return cast("JobOptions", kept)


def _leaders(job: Job, found: SearchResult, top: int, *, unfold: bool) -> tuple[Estimate, ...]:
    scored = found.leaders if unfold else found.families
    count = min(top, len(scored.score))
    chosen = scored.rows.take(np.arange(count))
    evaluation = evaluate(chosen, job.spec)
    variants = np.ones(count, dtype=np.int64) if unfold else found.family_variants[:count]
    return tuple(
        describe(job, chosen, evaluation, row, rank=row + 1, variants=int(variants[row])) for row in range(count)
    )


def _summary(found: SearchResult) -> SearchSummary:
    return SearchSummary(
        generated=found.generated,
        candidates=found.evaluated,
        feasible=found.feasible,
        families=len(found.families.score),
        rejected=found.rejected,
        elapsed_s=found.elapsed_s,
    )


def estimate(
    model: str, gpus: int, layout: Mapping[str, int | str | bool] | None = None, **options: Unpack[JobOptions]
) -> Estimate:
    """Price one layout.

    Args:
        layout: degrees by name (`tp`, `pp`, `micro_batch_size`, `recompute`, ...); what is missing takes the default
            that `gpuscale estimate --help` states.

    Raises:
        InputError: unusable input, or a layout that breaks a rule; the message names every rule it breaks.
    """
    job = build_job(model, gpus, options)
    return estimate_layout(job, layout or {})


def estimate_layout(job: Job, layout: Mapping[str, int | str | bool]) -> Estimate:
    """Price one layout of a job that is already built."""
    rows = fixed_layout(job.spec, layout)
    broken = broken_rules(rows, job.spec)
    if broken:
        place = " ".join(f"{name}={value}" for name, value in layout.items()) or "layout"
        hint = f"`gpuscale plan --model {job.spec.model.name} --gpus {job.spec.gpus}` lists layouts that can run"
        raise illegal(rows, job.spec, broken, place, hint)
    return describe(job, rows, evaluate(rows, job.spec), 0, rank=1, variants=1)


def estimate_file(path: str | Path) -> Estimate:
    """Price the layout of a plan file, as `gpuscale plan -o` writes it."""
    return estimate_from(Path(path), None, None, {}, {})


def estimate_from(
    path: Path | None,
    model: str | None,
    gpus: int | None,
    layout: Mapping[str, int | str | bool],
    options: JobOptions,
) -> Estimate:
    """Price a layout from a plan file, from arguments, or from a file with some entries replaced.

    Raises:
        InputError: neither a file nor a model with its GPUs, or unusable input.
    """
    if path is None:
        if model is None or gpus is None:
            missing = "--model" if model is None else "--gpus"
            raise InputError(f"{missing} is missing", hint="give --model and --gpus, or a plan file")
        return estimate_layout(build_job(model, gpus, options), layout)
    from gpuscale.api.planfile import read_plan_file

    stored = read_plan_file(path)
    job = build_job(model or stored[0], gpus or stored[1], cast("JobOptions", {**stored[2], **options}))
    return estimate_layout(job, {**still_meant(stored[3], layout, gpus), **layout})


def still_meant(
    stored: Mapping[str, int | str | bool], layout: Mapping[str, int | str | bool], gpus: int | None
) -> dict[str, int | str | bool]:
    """What of a stored layout holds beside the entries that replace some of it: DP, shard and SP follow others."""
    gone: set[str] = set()
    if {"tp", "pp", "cp"} & set(layout) or gpus is not None:
        gone |= {"dp", "shard"}
    if {"dp", "zero"} & set(layout):
        gone |= {"shard"}
    if "tp" in layout and stored["sp"]:
        gone |= {"sp"}
    return {name: value for name, value in stored.items() if name not in gone}


def save_plan(path: Path, model: str, result: PlanResult, rank: int, options: JobOptions) -> None:
    """Write the plan of a rank as a plan file.

    Raises:
        InputError: there is no plan of that rank, or the file cannot be written.
    """
    if not 1 <= rank <= len(result.plans):
        raise InputError(f"there is no rank {rank}", place="--rank", hint=f"the search kept {len(result.plans)} plans")
    from gpuscale.api.planfile import write_plan_file

    write_plan_file(path, build_job(model, result.gpus, options), result.plans[rank - 1])


__all__ = ["PlanOptions", "estimate", "estimate_file", "estimate_from", "make_pins", "plan", "save_plan"]
