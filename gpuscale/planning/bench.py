"""How fast plans are found on this machine."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.planning.plans import plan
from gpuscale.results import PlanResult
from gpuscale.search.evaluation import SEARCH_STAGES, STAGES, watched
from gpuscale.units import MIB

MAX_RUNS = 100


@dataclass(frozen=True)
class StageTime:
    """CPU time of one stage of the flow."""

    stage: str  #: one of `gpuscale.search.evaluation.STAGES`.
    first_s: float  #: in the first run, which also loads what is loaded on first use.
    best_s: float  #: in the fastest run.


@displayed
@dataclass(frozen=True)
class BenchResult:
    """What was measured, all of it CPU time of one thread."""

    model: str
    cluster: str
    gpus: int
    runs: int
    generated: int  #: as in `gpuscale.results.SearchSummary`.
    candidates: int  #: as in `gpuscale.results.SearchSummary`.
    feasible: int  #: as in `gpuscale.results.SearchSummary`.
    #: candidates, whose memory and step time were computed, over the time of the search stages.
    candidates_per_s: float
    #: from the start of the process until everything was imported; None where that is not known.
    startup_s: float | None
    first_s: float  #: one plan, without start-up, in the first run.
    best_s: float  #: in the fastest run.
    stages: tuple[StageTime, ...]  #: where it goes.
    peak_mib: float | None  #: most memory that the process has had; None where the system does not say.
    python: str  #: its version.
    numpy: str  #: its version.
    machine: str  #: architecture and system.


@public
def bench(
    model: str = "llama3-70b",
    gpus: int = 640,
    *,
    runs: int = 5,
    startup_s: float | None = None,
    draw: Callable[[PlanResult], object] | None = None,
) -> BenchResult:
    """Find the plans of a job several times and say where the time goes.

    Args:
        model, gpus: as for `plan`; everything else at its default.
        runs: 1 to `MAX_RUNS`; the fastest counts, as the others measure what else the machine does.
        startup_s: CPU time that the process had taken when it was ready to plan.
        draw: draws the plans, as part of the last stage.

    Raises:
        InputError: unusable input.
        NoAnswerError: no layout fits.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or not 1 <= runs <= MAX_RUNS:
        raise InputError(f"{runs} is out of range", field="runs", hint=f"give 1 to {MAX_RUNS}")
    measured = []
    for _ in range(runs):
        with watched() as watch:
            result = plan(model, gpus)
            if draw is not None:
                draw(result)
            watch.lap("output")
        measured.append(watch.seconds)
    first, best = measured[0], min(measured, key=lambda seconds: sum(seconds.values()))
    found = result.search
    return BenchResult(
        model=result.model,
        cluster=result.cluster,
        gpus=gpus,
        runs=runs,
        generated=found.generated,
        candidates=found.candidates,
        feasible=found.feasible,
        candidates_per_s=found.candidates / sum(best.get(stage, 0.0) for stage in SEARCH_STAGES),
        startup_s=startup_s,
        first_s=sum(first.values()),
        best_s=sum(best.values()),
        stages=tuple(StageTime(stage, first.get(stage, 0.0), best.get(stage, 0.0)) for stage in STAGES),
        peak_mib=peak_mib(),
        python=platform.python_version(),
        numpy=np.__version__,
        machine=f"{platform.machine()} {platform.system()}",
    )


def peak_mib() -> float | None:
    """Return the most memory that this process has had resident [MiB], or None where the system does not say."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
