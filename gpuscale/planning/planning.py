"""`plan`: search the space and describe the best; `estimate`: price one layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack, cast

from gpuscale.errors import InputError
from gpuscale.planning.choosing import choose, wants_robust
from gpuscale.planning.comparing import Show, chosen_goal, compare, frontier
from gpuscale.planning.describe import describe
from gpuscale.planning.jobs import Job, JobOptions, build_job, check_options, check_range
from gpuscale.planning.layouts import fixed_layout, make_pins, parse_layout
from gpuscale.planning.legality import illegal
from gpuscale.planning.misses import no_answer
from gpuscale.planning.question import Numbers, PlanOptions, Question, make_question
from gpuscale.planning.variants import Variant, Variants, make_variants
from gpuscale.planning.verdicts import Asked, answer_why
from gpuscale.planning.worth import one_compared
from gpuscale.results import Estimate, PlanResult, SearchSummary
from gpuscale.rules.check import broken_rules
from gpuscale.search import SearchResult, evaluate, search
from gpuscale.search.listing import TIMES
from gpuscale.search.ordering import listed_families

MAX_TOP = 2000


def plan(model: str, gpus: Numbers, **options: Unpack[PlanOptions]) -> PlanResult:
    """Find the best ways to train `model` on `gpus` GPUs.

    Args:
        model: name of a preset, path of a model file, or path of a Hugging Face `config.json` or its folder.
        gpus: GPUs of the job; a list (`"256,512"`, `[256, 512]`) or a range (`"256..1024"`) compares several.
        options: see `PlanOptions` and `JobOptions`.

    Raises:
        InputError: unusable input, or pins that contradict each other or every rule.
        NoAnswerError: legal layouts, none of which fits in memory or meets the constraints; the message names the
            nearest miss.
    """
    check_options(options, PlanOptions)
    check_range("--top", options.get("top", 10), 1, MAX_TOP)
    question = make_question(options)
    pins = make_pins(options.get("pins", {}))
    asked = parse_layout(options["why"], "--why") if "why" in options else None
    variants = make_variants(model, gpus, options, pins, question)
    show = Show(options.get("top", 10), options.get("unfold", False), asked, wants_robust(options.get("robust", False)))
    _check_robust(show, variants, question)
    if question.pareto:
        return frontier(variants, question, options.get("top", MAX_TOP))
    return (
        _plan_one(variants.tried[0], question, show) if len(variants.tried) == 1 else compare(variants, question, show)
    )


def _check_robust(show: Show, variants: Variants, question: Question) -> None:
    """Refuse to rank by the worst decile what is not one ranking by step time."""
    goal = chosen_goal(question, variants.tried)
    if not show.robust:
        return
    if question.pareto or len(variants.tried) > 1:
        what = "a frontier" if question.pareto else f"{len(variants.tried)} jobs"
        raise InputError(
            f"it ranks the plans of one job, not {what}",
            place="--robust",
            hint="choose the job first, then ask how robust its plans are",
        )
    if goal.basis not in TIMES:
        raise InputError(f"it ranks by step time, not by {goal.name}", place="--robust", hint="leave out --objective")


def _plan_one(variant: Variant, question: Question, show: Show) -> PlanResult:
    """Rank the plans of one job."""
    job, pins, limits = variant.job, variant.pins, variant.limits(question)
    goal = chosen_goal(question, (variant,))
    found = search(job.spec, pins, goal.basis, limits=limits)
    if not found.feasible:
        raise no_answer([(variant, found)], question)
    families = listed_families(found.families, found.family_variants)
    found = replace(found, families=families.best, family_variants=families.variants)
    chosen = choose(job, found, families, goal.basis, show.top, unfold=show.unfold, robust=show.robust)
    ask = None if show.asked is None else Asked(job, show.asked, pins, goal.basis, limits)
    return PlanResult(
        model=job.spec.model.name,
        cluster=job.spec.cluster.name,
        gpus=job.spec.gpus,
        plans=tuple(estimate.plan for estimate in chosen.estimates),
        estimates=chosen.estimates,
        search=_summary(found),
        assumptions=job.assumptions,
        notes=job.notes,
        why=answer_why(ask, found, chosen.first) if ask is not None else None,
        job=job.request,
        compared=None
        if question.plain
        else one_compared(variant, question, goal, found, [estimate.plan for estimate in chosen.estimates]),
        choice=chosen.choice,
        robust=chosen.robust,
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
    from gpuscale.planning.planfile import read_plan_file

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


def save_plan(path: Path, result: PlanResult, rank: int) -> None:
    """Write the plan of a rank as a plan file.

    Raises:
        InputError: there is no plan of that rank, or the file cannot be written.
    """
    if not 1 <= rank <= len(result.plans):
        raise InputError(f"there is no rank {rank}", place="--rank", hint=f"the search kept {len(result.plans)} plans")
    from gpuscale.planning.planfile import write_plan_file

    write_plan_file(path, result.estimates[rank - 1].job, result.plans[rank - 1])


__all__ = ["PlanOptions", "estimate", "estimate_file", "estimate_from", "make_pins", "plan", "save_plan"]
