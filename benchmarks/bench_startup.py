"""How long `gpuscale --help` and `--version` take to start, against importing what they are built on.

Run: python benchmarks/bench_startup.py [--runs 15] [--max-ratio 1.5] [--max-version-ratio 1.25]

Every command runs once per round, in turn, so that a busy machine slows all of them alike. Medians are compared, of
wall time and of CPU time (user and system); both count. Exits with 1 when `gpuscale --help` takes more than --max-ratio
times as long as `python -c "import typer, rich"`, or `gpuscale --version` more than --max-version-ratio times as long
as `python -c "import typer"`.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from processes import take

TYPER, TYPER_RICH = 'python -c "import typer"', 'python -c "import typer, rich"'
HELP, VERSION = "gpuscale --help", "gpuscale --version"
COMMANDS = {
    TYPER_RICH: [sys.executable, "-c", "import typer, rich"],
    HELP: [sys.executable, "-m", "gpuscale", "--help"],
    TYPER: [sys.executable, "-c", "import typer"],
    VERSION: [sys.executable, "-m", "gpuscale", "--version"],
}
BASE = {TYPER_RICH: TYPER_RICH, HELP: TYPER_RICH, TYPER: TYPER, VERSION: TYPER}


def measure(runs: int) -> dict[str, tuple[float, float]]:
    """Return the medians of wall time and CPU time of each command in seconds."""
    rounds = [{name: take(command) for name, command in COMMANDS.items()} for _ in range(runs + 1)][1:]
    return {  # the first round warmed the caches
        name: (
            statistics.median(taken[name].wall_s for taken in rounds),
            statistics.median(taken[name].cpu_s for taken in rounds),
        )
        for name in COMMANDS
    }


def main() -> int:
    """Print one line per command and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--max-ratio", type=float, default=1.5)
    parser.add_argument("--max-version-ratio", type=float, default=1.25)
    options = parser.parse_args()
    runs = max(1, options.runs)
    medians = measure(runs)
    ratios = {
        name: tuple(s / base for s, base in zip(medians[name], medians[BASE[name]], strict=True)) for name in BASE
    }
    print(f"{'medians of ' + str(runs):32} {'wall ms':>8} {'CPU ms':>8} {'ratios':>12}")
    for name, (wall_s, cpu_s) in medians.items():
        print(f"{name:32} {1e3 * wall_s:8.0f} {1e3 * cpu_s:8.0f} {ratios[name][0]:6.2f} {ratios[name][1]:5.2f}")
    return int(max(ratios[HELP]) > options.max_ratio or max(ratios[VERSION]) > options.max_version_ratio)


if __name__ == "__main__":
    sys.exit(main())
