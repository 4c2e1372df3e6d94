"""gpuscale plans the parallelism of LLM training.

    >>> import gpuscale
    >>> result = gpuscale.plan("llama3-70b", 640)
    >>> result.plans[0].tp, result.plans[0].mfu

Every command of the command line is one of these functions; results are typed and frozen. A module is imported when
a name of it is first used; what type checkers see is in `__init__.pyi`.
"""

from importlib import import_module
from typing import Any

from gpuscale.version import __version__ as __version__

_NAMES = {
    "calibration.calibrate": "Calibration calibrate",
    "collectives.estimate": "CollectiveEstimate Siblings price_collective",
    "doctor": "Checkup check_up",
    "errors": "GpuscaleError InputError NoAnswerError",
    "explain.advice": "Advice Decisions advise decide",
    "explain.budget": "MemoryBudget MemoryTimeline memory_budget memory_timeline",
    "explain.choice": "PlanComparison compare",
    "explain.explanation": "Explanation explain_plan",
    "explain.schedule": "Schedule schedule schedule_of_durations",
    "explain.traffic": "TrafficReport traffic_of",
    "fleets.comparing": "fleet",
    "fleets.ways": "FleetResult",
    "gpubench.calibrate": "Calibrated calibrate_gpu",
    "importers.assemble": "ImportedCluster import_cluster",
    "launch.check": "CheckResult Finding check",
    "launch.diagnosis": "Diagnosis diagnose",
    "launch.export": "Export export",
    "launch.read": "read_launch",
    "launch.settings": "LaunchJob",
    "launch.subject": "LaunchEstimate Subject estimate_file estimate_launch read_subject",
    "planning.calibrating": "CalibratedRun calibrate_run save_site",
    "planning.placement": "Placement place_ranks",
    "planning.plans": "BenchResult bench estimate plan",
    "planning.recipes": "Recipe all_recipes find_recipe",
    "presets.hardware": "all_clusters all_gpus load_cluster load_gpu",
    "presets.models": "all_models load_model",
    "render.answers": "report",
    "results": "Estimate PlanResult PlanRow",
    "rooflines": "Roofline roofline",
    "scaling.batches": "BatchSize batch_size",
    "scaling.sizing": "Size size",
    "specs.cluster": "ClusterSpec",
    "specs.failures": "Study",
    "specs.gpu": "GpuSpec",
    "specs.model": "ModelSpec",
    "studies.answers": "Answered",
    "studies.query": "read_results",
    "studies.run": "sweep",
    "training.failures": "all_studies load_study",
    "training.goodput": "Goodput goodput",
    "training.stragglers": "Stragglers stragglers",
    "training.totals": "TrainTime train_time",
    "trials": "Tuning tune",
    "validation.scores": "Validation validate",
}
"""Module -> the public names that come from it."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - in `__init__.pyi` it is a list


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
