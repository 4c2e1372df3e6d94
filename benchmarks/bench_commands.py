"""CPU time and memory of whole commands, against importing the libraries they are built on.

Run: python benchmarks/bench_commands.py [--runs 5] [--slack 1.0]

Every command runs once per round, in turn, so that a busy machine slows all alike; the least of each counts. Exits with
1 when a command takes more than its limit, times --slack, of `python -c "import typer, rich.table, pydantic, numpy"`,
or more than `MAX_MIB`.
"""

from __future__ import annotations

import argparse
import os
import sys

from processes import take

IMPORTS = [sys.executable, "-c", "import typer, rich.table, pydantic, numpy"]
PLAN = ("plan", "--gpus", "2048", "--model", "deepseek-v3")
FULL = (*PLAN, "--space", "full")
LIMITS = {
    ("--help",): 1.0,
    ("plan", "--help"): 1.2,
    ("plan", "--model", "llama3-70b", "--gpus", "640"): 3.6,
    ("plan", "--model", "llama3-70b", "--gpus", "640", "--html", os.devnull): 6.0,
    PLAN: 13.0,  # 12 settings of its framework
    FULL: 240.0,  # all of them, each with optimizer moments of three kinds
}
"""Command -> CPU time over that of the imports."""

MAX_MIB, MAX_FULL_MIB = 350, 450
"""Of a command; of one that searches all settings."""


def main() -> int:
    """Print one line per command and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--slack", type=float, default=1.0)
    options = parser.parse_args()
    commands = {words: [sys.executable, "-m", "gpuscale", *words] for words in LIMITS}
    take(IMPORTS)  # the first run warms the caches
    rounds = [
        {(): take(IMPORTS), **{words: take(command) for words, command in commands.items()}}
        for _ in range(max(1, options.runs))
    ]
    base_s = min(taken[()].cpu_s for taken in rounds)
    print(f"{'imports':58} {base_s:6.2f} s")
    failed = False
    for words, limit in LIMITS.items():
        cpu_s = min(taken[words].cpu_s for taken in rounds)
        peak_mib = max(taken[words].peak_mib for taken in rounds)
        print(f"gpuscale {' '.join(words):49} {cpu_s:6.2f} s {cpu_s / base_s:6.2f} x {peak_mib:5.0f} MiB")
        failed |= cpu_s / base_s > limit * options.slack or peak_mib > (MAX_FULL_MIB if words == FULL else MAX_MIB)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
