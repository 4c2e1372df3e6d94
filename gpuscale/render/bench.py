"""Drawing of `gpuscale bench`."""

from __future__ import annotations

import contextlib
import io

from gpuscale.planning.bench import BenchResult
from gpuscale.render.console import draw, table
from gpuscale.render.plan import draw_plans
from gpuscale.results import PlanResult
from gpuscale.units import format_count

MEANING = {
    "presets": "read model, cluster, GPU and framework",
    "enumerate": "form layouts and their choices",
    "rules": "drop what cannot run",
    "layers": "measure layers, once each",
    "memory": "of every candidate",
    "step time": "of what may lead",
    "ranking": "keep the best in order",
    "output": "describe and draw the plans",
}


def draw_into_nothing(plans: PlanResult) -> None:
    """Draw plans as `gpuscale plan` does, for nobody to see."""
    with contextlib.redirect_stdout(io.StringIO()):
        draw_plans(plans)


def draw_bench(result: BenchResult) -> None:
    """Print the rate, where the time goes, and the peak of memory."""
    memory = "" if result.peak_mib is None else f", {result.peak_mib:,.0f} MiB at the peak"
    times = [(one.stage, MEANING[one.stage], one.first_s, one.best_s) for one in result.stages]
    times.append(("one plan", f"{result.runs} runs", result.first_s, result.best_s))
    rows = [
        {
            "stage": stage,
            "": meaning,
            "first run ms": f"{1e3 * first_s:,.1f}",
            "fastest ms": f"{1e3 * best_s:,.1f}",
            "share": f"{best_s / result.best_s:.0%}",
        }
        for stage, meaning, first_s, best_s in times
    ]
    lines = [f"Python {result.python}, NumPy {result.numpy}, {result.machine}; CPU time of one thread"]
    if result.startup_s is not None:
        whole = result.startup_s + result.first_s
        lines.insert(0, f"process: {whole:.2f} s, of which {result.startup_s:.2f} s until it was ready to plan")
    draw(
        f"{result.model} on {result.gpus:,} GPUs: {result.candidates:,} candidates, "
        f"{format_count(result.candidates_per_s)} per second of CPU time{memory}",
        table(rows, left=2),
        "\n".join(lines),
    )
