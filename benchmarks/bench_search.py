"""How fast the search is: candidates per second of CPU time, what a whole `gpuscale plan` takes, growth with GPUs.

Run: python benchmarks/bench_search.py [--runs 5] [--jobs llama3-70b/640 deepseek-v3/2048] [--full]
     [--min-rate 100000] [--max-mib 500] [--max-plan-s 3]

A candidate counts only when its memory and step time were computed; layouts that a rule cut do not. Each job is
searched in a process of its own, NumPy on one thread; the fastest run counts (the others measure what else the machine
does). The first search of a process is shown as well: it loads presets and tables. `plan s` and `MiB` are CPU seconds
(user and system) and peak memory of a whole process `python -m gpuscale plan`; `imports s` are those of
`python -c "import typer, pydantic, numpy"`, run in turn with it, and `ratio` is between the two. --full searches with
`--space full`, where bounds leave most unpriced: there all layouts count that are accounted for (`generated`).

Exits with 1 below --min-rate, or when a plan takes more than --max-mib or --max-plan-s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import groupby
from typing import Any

from processes import ONE_THREAD, take

import gpuscale

JOBS = ("llama3-70b/640", "deepseek-v3/2048", "deepseek-v3/16384", "deepseek-v3/131072")
IMPORTS = [sys.executable, "-c", "import typer, pydantic, numpy"]


def search(job: str, runs: int, *, full: bool) -> dict[str, float]:
    """Search `runs` times in this process, and once more before unless the space is the full one."""
    model, gpus = job.rsplit("/", 1)
    seconds, result = [], None
    for _ in range(runs if full else runs + 1):
        start = time.process_time()
        result = gpuscale.plan(model, int(gpus), space="full" if full else "default")
        seconds.append(time.process_time() - start)
    assert result is not None
    found = result.search
    best = min(seconds)
    return {
        "generated": found.generated,
        "candidates": found.candidates,
        "first_s": seconds[0],
        "best_s": best,
        "candidates_per_s": (found.generated if full else found.candidates) / best,
    }


def process(job: str, runs: int, *, full: bool) -> dict[str, float]:
    """Run `gpuscale plan` and the bare imports in turn; the least of each counts."""
    model, gpus = job.rsplit("/", 1)
    command = [sys.executable, "-m", "gpuscale", "plan", "--model", model, "--gpus", gpus]
    command += ["--space", "full"] if full else []
    pairs = [(take(command), take(IMPORTS)) for _ in range(runs)]
    return {
        "plan_s": min(plan.cpu_s for plan, _ in pairs),
        "plan_mib": max(plan.peak_mib for plan, _ in pairs),
        "imports_s": min(imports.cpu_s for _, imports in pairs),
    }


def measure(job: str, runs: int, *, full: bool) -> dict[str, Any]:
    """Measure a job both ways."""
    command = [sys.executable, __file__, "--child", job, "--runs", str(runs), *(["--full"] if full else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE_THREAD})
    return {"job": job, **json.loads(done.stdout), **process(job, runs, full=full)}


def print_row(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    print(
        f"{row['job']:18} {row['generated']:10,} {row['candidates']:10,} {row['candidates_per_s']:9,.0f} "
        f"{row['first_s']:8.2f} {row['best_s']:7.2f} {row['plan_s']:7.2f} {row['plan_mib']:6.0f} "
        f"{row['imports_s']:9.2f} {row['plan_s'] / row['imports_s']:6.1f}",
        flush=True,
    )


def print_growth(rows: list[dict[str, Any]]) -> None:
    """Say, for each model with several GPU counts, how its figures grow with the count."""
    for model, found in groupby(rows, key=lambda row: row["job"].rsplit("/", 1)[0]):
        of_model = sorted(found, key=lambda row: int(row["job"].rsplit("/", 1)[1]))
        for row in of_model[1:]:
            first, last = (int(each["job"].rsplit("/", 1)[1]) for each in (of_model[0], row))
            ratios = {name: row[name] / of_model[0][name] for name in ("candidates", "best_s", "plan_s", "plan_mib")}
            print(
                f"{model}, {last / first:g} x GPUs ({first} -> {last}): {ratios['candidates']:.2f} x candidates, "
                f"{ratios['best_s']:.2f} x CPU s, {ratios['plan_s']:.2f} x plan s, {ratios['plan_mib']:.2f} x MiB"
            )


def main() -> int:
    """Print one line per job, then the growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="5, or 1 with --full")
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--full", action="store_true", help="search with --space full")
    parser.add_argument("--min-rate", type=float, default=100_000)
    parser.add_argument("--max-mib", type=float, default=500)
    parser.add_argument("--max-plan-s", type=float, default=float("inf"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    runs = max(1, options.runs or (1 if options.full else 5))
    if options.child:
        print(json.dumps(search(options.child, runs, full=options.full)))
        return 0
    print(
        f"{'job':18} {'generated':>10} {'candidates':>10} {'cand/s':>9} {'first s':>8} {'CPU s':>7} "
        f"{'plan s':>7} {'MiB':>6} {'imports s':>9} {'ratio':>6}"
    )
    rows = []
    for job in options.jobs:
        rows.append(measure(job, runs, full=options.full))
        print_row(rows[-1])
    print_growth(rows)
    slow = min(row["candidates_per_s"] for row in rows) < options.min_rate
    large = max(row["plan_mib"] for row in rows) > options.max_mib
    long = max(row["plan_s"] for row in rows) > options.max_plan_s
    return int(slow or large or long)


if __name__ == "__main__":
    sys.exit(main())
