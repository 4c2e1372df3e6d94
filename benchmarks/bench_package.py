"""Sizes of what is released, and how long its command takes to start.

Run: python benchmarks/bench_package.py DIST [GPUSCALE] [--max-mb 1.5]

DIST holds a wheel and an sdist, GPUSCALE is an installed command. Exits with 1 where the wheel is larger than --max-mb
(of 1e6 bytes), which is what everyone downloads who has the dependencies; a release is built with ZOPFLI=1 in the
environment.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path


def start_s(command: Path, runs: int = 5) -> float:
    """The least time of several that `--version` takes [s]: the interpreter, and what every command imports."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([command, "--version"], check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> int:
    """Print one line per file, and the start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("command", type=Path, nargs="?")
    parser.add_argument("--max-mb", type=float, default=1.5)
    given = parser.parse_args()
    sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(given.dist.iterdir()) if path.is_file()}
    for name, size_mb in sizes.items():
        print(f"{name:48} {size_mb:6.2f} MB")
    if given.command:
        print(f"{'gpuscale --version':48} {start_s(given.command):6.2f} s")
    wheels = [size_mb for name, size_mb in sizes.items() if name.endswith(".whl")]
    return int(len(wheels) != 1 or wheels[0] > given.max_mb)


if __name__ == "__main__":
    sys.exit(main())
