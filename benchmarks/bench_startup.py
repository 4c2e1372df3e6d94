"""How long `gpuscale --help` and `--version` take to start, against importing what they are built on.

Run: python benchmarks/bench_startup.py [--runs 15] [--max-ratio 1.5]

Every command runs once per round, in turn, so that a busy machine slows all of them alike; medians are compared.
Exits with 1 when `gpuscale --help` takes more than --max-ratio times as long as `python -c "import typer, rich"`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = {
    'python -c "import typer, rich"': [sys.executable, "-c", "import typer, rich"],
    'python -c "import typer"': [sys.executable, "-c", "import typer"],
    "gpuscale --help": [sys.executable, "-m", "gpuscale", "--help"],
    "gpuscale --version": [sys.executable, "-m", "gpuscale", "--version"],
}
BASE = 'python -c "import typer, rich"'


def measure(runs: int) -> dict[str, float]:
    """Return the median wall time of each command in seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs + 1):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first round warms the caches


def main() -> int:
    """Print one line per command and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--max-ratio", type=float, default=1.5)
    options = parser.parse_args()
    medians = measure(max(1, options.runs))
    print(f"{'median of ' + str(options.runs):32} {'ms':>6} {'ratio':>6}")
    for name, seconds in medians.items():
        print(f"{name:32} {1e3 * seconds:6.0f} {seconds / medians[BASE]:6.2f}")
    return int(medians["gpuscale --help"] > options.max_ratio * medians[BASE])


if __name__ == "__main__":
    sys.exit(main())
