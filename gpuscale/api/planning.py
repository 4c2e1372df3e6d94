"""`plan`: search the space and describe the best; `estimate`: price one layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import numpy as np

from gpuscale.api.describe import describe
from gpuscale.api.jobs import Job, JobOptions, build_job, check_range, choice
from gpuscale.api.layouts import fixed_layout, parse_layout
from gpuscale.api.planfile import read_plan_file
from gpuscale.api.verdicts import answer_why, nothing_fits, nothing_legal
from gpuscale.candidates.pins import DEGREES, MAX_DEGREE, Pin, Pins, parse_pin, parse_recompute
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
    )


def _job_options(options: PlanOptions) -> JobOptions:
    known = JobOptions.__annotations__
    return JobOptions(**{key: value for key, value in options.items() if key in known})  # type: ignore[typeddict-item]


def make_pins(pins: Mapping[str, str | int]) -> Pins:
    """Parse pins given as text or numbers.

    Raises:
        InputError: an unknown dimension or an unusable value.
    """
    degrees: dict[str, Pin] = {}
    recompute = None
    for name, value in pins.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "recompute":
            recompute = tuple(dict.fromkeys(parse_recompute(part, flag) for part in str(value).split(",")))
        elif name in DEGREES:
            degrees[name] = parse_pin(str(value), flag)
        else:
            raise InputError(f"unknown dimension {name[:40]!r}", hint=f"pin {', '.join(DEGREES)} or recompute")
    return Pins(degrees, recompute)


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
        raise InputError(
            "; ".join(f"{rule.text} ({rule.code})" for rule in broken),
            place=" ".join(f"{name}={value}" for name, value in layout.items()) or "layout",
            hint=f"`gpuscale plan --model {job.spec.model.name} --gpus {job.spec.gpus}` lists layouts that can run",
        )
    return describe(job, rows, evaluate(rows, job.spec), 0, rank=1, variants=1)


def estimate_file(path: str | Path) -> Estimate:
    """Price the layout of a plan file, as `gpuscale plan -o` writes it."""
    model, gpus, options, layout = read_plan_file(Path(path))
    return estimate_layout(build_job(model, gpus, options), layout)


__all__ = ["MAX_DEGREE", "PlanOptions", "estimate", "estimate_file", "make_pins", "plan"]
