"""What `gpuscale bench` measured, as text and as a JSON object."""

from __future__ import annotations

import contextlib
import io
from dataclasses import asdict
from typing import Any

from gpuscale.planning.bench import BenchResult
from gpuscale.render.console import console, table
from gpuscale.render.plan import print_plans
from gpuscale.results import PlanResult
from gpuscale.units import format_count

SCHEMA = "gpuscale.bench/1"

MEANING = {
    "presets": "read model, cluster, GPU and framework",
    "enumerate": "form layouts and their choices",
    "rules": "drop what cannot run",
    "prices": "price what recurs, once each",
    "memory": "of every candidate",
    "step time": "of every candidate",
    "ranking": "keep the best in order",
    "output": "describe and draw the plans",
}


def bench_body(result: BenchResult) -> dict[str, Any]:
    """Return the JSON object, without the schema key."""
    return asdict(result)


def draw_into_nothing(plans: PlanResult) -> None:
    """Draw plans as `gpuscale plan` does, for nobody to see."""
    with contextlib.redirect_stdout(io.StringIO()):
        print_plans(plans)


def draw_bench(result: BenchResult) -> None:
    """Print the rate, where the time goes, and the peak of memory to stdout."""
    out = console()
    memory = "" if result.peak_mib is None else f", {result.peak_mib:,.0f} MiB at the peak"
    out.print(
        f"{result.model} on {result.gpus:,} GPUs: {result.candidates:,} candidates, "
        f"{format_count(result.candidates_per_s)} per second of CPU time{memory}",
        soft_wrap=True,
    )
    out.print()
    rows = [
        [one.stage, MEANING[one.stage], _ms(one.first_s), _ms(one.best_s), f"{one.best_s / result.best_s:.0%}"]
        for one in result.stages
    ]
    rows.append(["one plan", f"{result.runs} runs", _ms(result.first_s), _ms(result.best_s), "100%"])
    out.print(table(["stage", "", "first run ms", "fastest ms", "share"], rows, left=2))
    out.print()
    if result.startup_s is not None:
        whole = result.startup_s + result.first_s
        out.print(f"process: {whole:.2f} s, of which {result.startup_s:.2f} s until it was ready to plan")
    out.print(f"Python {result.python}, NumPy {result.numpy}, {result.machine}; CPU time of one thread")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"
