"""How fast times of collectives are computed: (bytes, group, stride) triples per second of CPU time, and peak memory.

Run: python benchmarks/bench_collectives.py [--triples 1000000] [--runs 3] [--cluster NAME] [--powers] [--min-rate 1e6]

Random triples in one call per operation: bytes from 8 to 8 GiB; groups of any size and stride that fit the cluster, or
with --powers of powers of two, as parallel layouts have them. One thread; the fastest run counts. Exits with 1 below
--min-rate.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np

from gpuscale.collectives.ideal import OPERATIONS
from gpuscale.collectives.times import collective_time_s
from gpuscale.presets.hardware import load_cluster


def triples(count: int, gpus: int, *, powers: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bytes, group sizes and strides; the same ones in every run."""
    random = np.random.default_rng(0)
    data = 2.0 ** random.uniform(3, 33, count)
    if powers:
        most = int(np.log2(gpus))
        size = 2 ** random.integers(1, most + 1, count)
        return data, size, np.minimum(2 ** random.integers(0, most, count), gpus // size)
    size = random.integers(2, gpus + 1, count)
    return data, size, np.maximum((random.uniform(0, 1, count) * gpus / size).astype(np.int64), 1)


def main() -> int:
    """Print one line per operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triples", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cluster", default="dgx-h100-superpod")
    parser.add_argument("--powers", action="store_true")
    parser.add_argument("--min-rate", type=float, default=1e6)
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    data, size, stride = triples(options.triples, cluster.gpus, powers=options.powers)
    slowest = float("inf")
    print(f"{'operation':15} {'CPU s':>7} {'triples/s':>12} {'MiB':>6}")
    for operation in OPERATIONS:
        best, count = float("inf"), np.minimum(size, 2) if operation == "sendrecv" else size
        for _ in range(options.runs):
            start = time.process_time()
            collective_time_s(cluster, operation, data, count, stride)
            best = min(best, time.process_time() - start)
        slowest = min(slowest, options.triples / best)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{operation:15} {best:7.3f} {options.triples / best:12,.0f} {peak:6.0f}")
    return int(slowest < options.min_rate)


if __name__ == "__main__":
    sys.exit(main())
