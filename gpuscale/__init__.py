"""gpuscale plans the parallelism of LLM training.

    >>> import gpuscale
    >>> result = gpuscale.plan("llama3-70b", 640)
    >>> result.plans[0].tp, result.plans[0].mfu

Every command of the command line is one of these functions; results are typed and frozen. Importing the package is
instant: each function is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuscale.api import estimate, estimate_file, plan
    from gpuscale.api.bench import bench
    from gpuscale.api.importing import import_cluster
    from gpuscale.api.placing import Placement, place_ranks
    from gpuscale.calibration.calibrate import calibrate
    from gpuscale.collectives import Siblings, price_collective
    from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
    from gpuscale.presets.hardware import all_clusters, all_gpus, load_cluster, load_gpu
    from gpuscale.presets.models import all_models, load_model
    from gpuscale.results import Estimate, PlanResult, PlanRow
    from gpuscale.rooflines import roofline
    from gpuscale.validation.validate import validate

__version__ = "0.1.0"

_HOMES = {
    "plan": "gpuscale.api",
    "estimate": "gpuscale.api",
    "estimate_file": "gpuscale.api",
    "bench": "gpuscale.api.bench",
    "import_cluster": "gpuscale.api.importing",
    "calibrate": "gpuscale.calibration.calibrate",
    "Placement": "gpuscale.api.placing",
    "place_ranks": "gpuscale.api.placing",
    "price_collective": "gpuscale.collectives",
    "Siblings": "gpuscale.collectives",
    "GpuscaleError": "gpuscale.errors",
    "InputError": "gpuscale.errors",
    "NoAnswerError": "gpuscale.errors",
    "all_clusters": "gpuscale.presets.hardware",
    "all_gpus": "gpuscale.presets.hardware",
    "load_cluster": "gpuscale.presets.hardware",
    "load_gpu": "gpuscale.presets.hardware",
    "all_models": "gpuscale.presets.models",
    "load_model": "gpuscale.presets.models",
    "Estimate": "gpuscale.results",
    "PlanResult": "gpuscale.results",
    "PlanRow": "gpuscale.results",
    "roofline": "gpuscale.rooflines",
    "validate": "gpuscale.validation.validate",
}

__all__ = [
    "Estimate",
    "GpuscaleError",
    "InputError",
    "NoAnswerError",
    "Placement",
    "PlanResult",
    "PlanRow",
    "Siblings",
    "all_clusters",
    "all_gpus",
    "all_models",
    "bench",
    "calibrate",
    "estimate",
    "estimate_file",
    "import_cluster",
    "load_cluster",
    "load_gpu",
    "load_model",
    "place_ranks",
    "plan",
    "price_collective",
    "roofline",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gpuscale' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
