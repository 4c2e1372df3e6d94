"""Every answer as a document, by its type, and where it goes: a terminal, a page, Markdown."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from gpuscale.arguments import public
from gpuscale.errors import InputError
from gpuscale.files import write_text
from gpuscale.render import console
from gpuscale.render.document import Document, Spell, loaded
from gpuscale.request import one_of

DOCUMENTS = {
    "Advice": "advise.advice_document",
    "Answered": "studies.answered_document",
    "BatchSize": "scaling.batch_size_document",
    "BenchResult": "measurements.bench_document",
    "Calibrated": "gpubench.fit_document",
    "CalibratedRun": "measurements.calibrated_run_document",
    "Calibration": "measurements.calibration_document",
    "CheckResult": "check.check_document",
    "Checkup": "doctor.checkup_document",
    "ClusterSpec": "presets.loaded_cluster_document",
    "CollectiveEstimate": "collective.collective_document",
    "CollectiveEstimates": "collective.sweep_document",
    "Decisions": "advise.decisions_document",
    "Diagnosis": "diagnosis.diagnosis_document",
    "Estimate": "estimate.estimate_document",
    "Explanation": "explain.explanation_document",
    "Export": "launch.files_document",
    "FleetResult": "fleet.fleet_document",
    "Goodput": "reliability.goodput_document",
    "GpuSpec": "presets.gpu_document",
    "ImportedCluster": "measurements.imported_document",
    "LaunchEstimate": "launch.launch_estimate_document",
    "LaunchJob": "launch.launch_job_document",
    "MeasuredRun": "measurements.measured_document",
    "MemoryBudget": "memory.memory_document",
    "ModelSpec": "presets.loaded_model_document",
    "Placement": "placement.placement_document",
    "PlanComparison": "comparison.comparison_document",
    "PlanResult": "plan.plan_document",
    "PlanRow": "estimate.row_document",
    "Recipe": "presets.recipe_document",
    "Recipes": "presets.recipes_document",
    "Roofline": "collective.roofline_document",
    "Schedule": "schedule.schedule_document",
    "Size": "scaling.size_document",
    "Stragglers": "reliability.stragglers_document",
    "Subject": "launch.subject_document",
    "Summary": "studies.study_document",
    "TrafficReport": "traffic.traffic_document",
    "Tuning": "trials.tuning_document",
    "TrainTime": "training.train_time_document",
    "Validation": "validation.validation_document",
}
"""Answer, or several of one kind -> what lays it out; a module is loaded when it is needed."""


def document(found: Any, **view: Any) -> Document:
    """Return what an answer shows; a document is its own. Of the `view` (`verbose`, `depth`, `spell`, ...) it gets what
    it knows.

    Raises:
        InputError: it is no answer.
    """
    if isinstance(found, Document):
        return found
    several = type(found) in {list, tuple} and found  # not records, which are tuples too
    name = f"{type(found[0]).__name__}s" if several else type(found).__name__
    if name not in DOCUMENTS:
        raise InputError(f"{name} has no document", hint="give what a question returned, such as `plan`")
    module, _, function = DOCUMENTS[name].partition(".")
    make: Callable[..., Document] = getattr(import_module(f"gpuscale.render.{module}"), function)
    taken = signature(make).parameters
    return make(found, **{name: value for name, value in view.items() if name in taken})


def show(found: Any, **view: Any) -> None:
    """Print an answer in the terminal."""
    console.show(document(found, **view))


FORMS: dict[str, Callable[[Document], str]] = {
    "html": loaded("html.page.html"),
    "markdown": loaded("markdown.markdown"),
}
"""Forms of a document -> what writes them."""


def written(found: Any, form: str, **view: Any) -> str:
    """Return an answer in one of `FORMS`."""
    return FORMS[form](document(found, **view))


@public
def report(
    result: Any, path: str | Path | None = None, *, form: str = "html", note: str | None = None, spell: Spell = str
) -> str:
    """Return an answer as one HTML page with charts, which needs no network; the same bytes for the same answer.

    Args:
        result: what `plan`, `read_subject`, `compare`, `train_time`, `validate` or another question returned, or a
            list of what `price_collective` did.
        path: a file to write it to as well.
        form: "html" or "markdown".
        note: of a sweep: what to know of its cluster.
        spell: from options in backticks, such as `grad_dtype=bf16`, to how they are given.

    Raises:
        InputError: it is no answer, there is no such form, or the file cannot be written.
    """
    made = written(result, one_of("form", form, tuple(FORMS)), note=note, spell=spell, whole=True)
    if path is not None:
        write_text(Path(path), made)
    return made
