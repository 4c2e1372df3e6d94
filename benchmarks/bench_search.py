"""How fast the search is: candidates per second of CPU time, and peak memory.

Run: python benchmarks/bench_search.py [--runs 5] [--jobs llama3-70b/640 deepseek-v3/2048] [--min-rate 100000]

A candidate counts only when its memory and step time were computed; layouts that a rule cut do not. Each job runs in
a process of its own, NumPy on one thread; the fastest run counts (the others measure what else the machine does). The
first search of a process is shown as well: it loads presets and tables. Exits with 1 below --min-rate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import gpuscale

JOBS = ("llama3-70b/640", "deepseek-v3/2048")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measure(job: str, runs: int) -> dict[str, float]:
    """Search `runs` times in this process."""
    model, gpus = job.rsplit("/", 1)
    seconds, result = [], None
    for _ in range(runs + 1):
        start = time.process_time()
        result = gpuscale.plan(model, int(gpus))
        seconds.append(time.process_time() - start)
    assert result is not None
    found = result.search
    best = min(seconds[1:])
    return {
        "generated": found.generated,
        "candidates": found.candidates,
        "first_cpu_s": seconds[0],
        "cpu_s": best,
        "candidates_per_s": found.candidates / best,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> int:
    """Print one line per job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--min-rate", type=float, default=100_000)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.runs)))
        return 0
    print(f"{'job':20} {'generated':>10} {'candidates':>10} {'first CPU s':>11} {'CPU s':>7} {'cand/s':>9} {'MiB':>6}")
    slowest = float("inf")
    for job in options.jobs:
        command = [sys.executable, __file__, "--child", job, "--runs", str(options.runs)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **ONE_THREAD})
        row = json.loads(done.stdout)
        slowest = min(slowest, row["candidates_per_s"])
        print(
            f"{job:20} {row['generated']:10,} {row['candidates']:10,} {row['first_cpu_s']:11.2f} {row['cpu_s']:7.2f} "
            f"{row['candidates_per_s']:9,.0f} {row['peak_mib']:6.0f}"
        )
    return int(slowest < options.min_rate)


if __name__ == "__main__":
    sys.exit(main())
