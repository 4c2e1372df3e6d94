"""The layout that was run for the job nearest to this one, evaluated here: a second opinion beside the first plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuscale.errors import InputError
from gpuscale.layouts.pins import recompute_text
from gpuscale.planning.jobs import Job, changed_job
from gpuscale.planning.layouts import fixed_layout, layout_text
from gpuscale.planning.planfile import layout_of
from gpuscale.presets.frameworks import generations, load_framework
from gpuscale.results import Estimate, MeasuredLayout, SoftwareThen
from gpuscale.rules.check import broken_rules
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.job import JobSpec
from gpuscale.uncertainty import Features, Residual, features, nearest_to_job
from gpuscale.units import GIB

TAKEN = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero", "micro_batch_size")
"""What is taken of a layout; DP follows from this job's GPUs, and states are sharded over all of it."""

NOT_OVERLAPPED = "its exchange not overlapped"
"""What is said of a layout that runs without the overlapped exchange of experts, which takes virtual stages."""


def exchange_shown(job: Job) -> Job:
    """Return a job without the overlapped exchange of experts, which some layouts cannot have."""
    return job._replace(spec=replace(job.spec, runtime=replace(job.spec.runtime, overlap_ep=False)))


def nearest_layout(job: Job, first: Estimate) -> tuple[Residual, dict[str, int | str]]:
    """Return the run nearest to a job, and what is taken of its layout for this job."""
    of_plan = {name: int(getattr(first.plan, name)) for name in TAKEN} | {"recompute_modules": 0, "recompute_layers": 0}
    run = nearest_to_job(features(job.spec, of_plan, first.breakdown))
    known = run.features.layout
    return run, {name: known[name] for name in TAKEN} | {"recompute": _recompute(run.features, job.spec.model.layers)}


def measured_layout(job: Job, first: Estimate) -> MeasuredLayout:
    """Evaluate the layout of the run nearest to a job, and compare it with its `first` plan."""
    run, layout = nearest_layout(job, first)
    rate = run.tokens_per_s_per_gpu or 0.0
    here = [_here(one.spec, layout) for one in (job, exchange_shown(job))]
    said, step_time_s, memory_gib, fits, reasons = next((one for one in here if not one[-1]), here[0])
    if here[0][-1] and not reasons:
        said += f", {NOT_OVERLAPPED}"
    return MeasuredLayout(
        run=run.id,
        name=run.name,
        tokens_per_s_per_gpu=rate,
        predicted_tokens_per_s_per_gpu=rate * math.exp(run.log_ratio or 0.0),
        layout=said,
        step_time_s=step_time_s,
        slower=None if step_time_s is None else step_time_s / first.plan.step_time_s - 1,
        memory_gib=memory_gib,
        fits=fits,
        reasons=reasons,
        then=_then(job, run, layout, first),
    )


def _then(job: Job, run: Residual, layout: Mapping[str, Any], first: Estimate) -> SoftwareThen | None:
    """Evaluate the run's layout and the first plan's with the generation of the job's framework that the run had; None
    where that is the job's own or a later one, or another framework, or cannot run the first plan's layout."""
    with suppress(InputError):
        every = generations(str(job.request["framework"]))
        rule_sets = [load_framework(one).runtime.rule_set for one in every]
        if run.features.profile not in rule_sets[rule_sets.index(job.spec.runtime.rule_set) + 1 :]:
            return None
        framework = every[rule_sets.index(run.features.profile)]
        spec = changed_job(job, {"framework": framework})
        _, first_step_time_s, first_memory_gib, fits, _ = _here(spec, layout_of(first.plan))
        if first_step_time_s is not None and first_memory_gib is not None:
            then_s = _here(spec, layout)[1]
            return SoftwareThen(framework, then_s, first_step_time_s, first_memory_gib, fits)
    return None


def _recompute(run: Features, layers: int) -> str:
    """Return what a run recomputes, for a model of so many layers: the same share of a stage's, alike in its chunks."""
    known = run.layout
    if not known["recompute_layers"]:
        return recompute_text(known["recompute_modules"], 0)
    of_chunk = -(-known["recompute_layers"] * layers // (run.layers * known["vpp"]))
    own = of_chunk * known["vpp"]
    every = known["recompute_layers"] * known["pp"] >= run.layers or own * known["pp"] >= layers
    return "full" if every else recompute_text(0, own)


def _here(spec: JobSpec, layout: Mapping[str, Any]) -> tuple[str, float | None, float | None, bool, tuple[str, ...]]:
    """Return a layout in words, its step time [s], its memory [GiB], whether it fits, and why it cannot run."""
    try:
        rows = fixed_layout(spec, layout)
    except InputError as error:
        return "", None, None, False, (error.message,)
    said, broken = layout_text(rows.row(0)), broken_rules(rows, spec)
    if broken:
        return said, None, None, False, tuple(rule.text for rule in broken)
    done = evaluate(rows, spec)
    memory_bytes = float(done.memory_bytes[0])
    fits = spec.fit(memory_bytes, float(done.memory.host_bytes[0])) != "no"
    return said, float(done.step.step_time_s[0]), memory_bytes / GIB, fits, ()
