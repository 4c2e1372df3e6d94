"""Compare measured collectives with the ideal model, NCCL's own estimate and gpuscale: a table in docs/collectives.md.

    python benchmarks/compare_collectives.py            # print the table
    python benchmarks/compare_collectives.py --write    # put it into docs/collectives.md
    python benchmarks/compare_collectives.py --intervals MEASURED.csv    # gpuscale/collectives/estimate.py

NCCL's own estimate is its tuning model (src/graph/tuning.cc) on the same levels: gpuscale's without what was fitted.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from unittest import mock

import numpy as np

from gpuscale.collectives import nccl_constants as constants
from gpuscale.collectives.estimate import LARGE_BYTES, MESSAGES, SMALL_BYTES, options, way_of
from gpuscale.collectives.groups import place
from gpuscale.collectives.nccl_constants import AUTOMATIC
from gpuscale.collectives.network import Network, network_of
from gpuscale.collectives.times import collective_time_s
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.units import format_seconds
from gpuscale.validation.kernels import located, predict_collectives
from gpuscale.validation.measurements import read_measurements

ROOT = Path(__file__).parents[1]
POINTS = ROOT / "tests" / "data" / "compared_collectives.csv"
PAGE = ROOT / "docs" / "collectives.md"
START, END = "<!-- compared: benchmarks/compare_collectives.py --write -->\n", "<!-- /compared -->"
NVLS_LATENCY_S = 25e-6
REPEATED = 0.03
"""What a repeated measurement differs by."""
HEADER = """| operation | GPUs | on | size | ideal | NCCL's estimate | gpuscale | its choice | measured | off |
|---|---|---|---|---|---|---|---|---|---|
"""


def tuner_time_s(net: Network, operation: str, data: float) -> float:
    """Return what NCCL's tuner expects of its fastest choice [s]: tables and bandwidths, nothing fitted."""
    generation = net.generation._replace(base_factor=1.0, hop_factor=1.0, nvls_latency_s=NVLS_LATENCY_S)
    plain = net._replace(generation=generation, transport=constants.Transport(), copy_bytes_per_s=np.inf)
    with mock.patch.object(constants, "STEP_OVERHEAD_S", 0.0):
        return options(plain, operation, data)[0].time_s


def line(cluster: ClusterSpec, operation: str, gpus: int, size: float, measured_s: float) -> str:
    """Write one row of the table."""
    wide = cluster.sized_for(gpus)[0]
    groups = place(wide, [gpus], [1])
    ideal_s = collective_time_s(wide, operation, size, gpus, ideal=True).item()
    option = options(network_of(wide, groups, tuning=AUTOMATIC), operation, size)[0]
    own_s = max(option.time_s, ideal_s)
    cells = [
        operation, f"{gpus:,}", cluster.name, _binary(size), format_seconds(ideal_s),
        format_seconds(tuner_time_s(network_of(wide, groups), operation, size)), format_seconds(own_s), option.name,
        format_seconds(measured_s), f"{(own_s / measured_s - 1) * 100:+.0f} %",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _binary(size: float) -> str:
    for unit, text in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {text}"
    return f"{size:g} B"


def table() -> str:
    """Return the table in Markdown."""
    return HEADER + "".join(line(*located(row)) for row in read_measurements(POINTS)[1])


def half_widths(path: Path) -> dict[tuple[str, bool], list[float]]:
    """Return what `intervals.HALF_WIDTHS` is, of measured collectives: 80 % quantiles by way, kind and size."""
    found: dict[tuple[str, bool], list[list[float]]] = {}
    rows = read_measurements(path)[1]
    for row, times in zip(rows, predict_collectives(rows), strict=True):
        if not isinstance(times, str):
            cluster, operation, gpus, size, _ = located(row)
            key = way_of(cluster.level_of_group(gpus, 1)), operation in MESSAGES
            off = found.setdefault(key, [[], [], []])
            off[(size >= SMALL_BYTES) + (size >= LARGE_BYTES)].append(abs(math.log(times[0] / times[1])))
    return {
        key: [max(round(float(np.quantile(one, 0.8)), 2), REPEATED) if len(one) > 7 else 0.0 for one in off]
        for key, off in sorted(found.items())
    }


def main() -> None:
    """Print the table, or write it into the page; or print the intervals that a file of measurements gives."""
    if "--intervals" in sys.argv[1:]:
        print(half_widths(Path(sys.argv[-1])))
        return
    if "--write" not in sys.argv[1:]:
        print(table(), end="")
        return
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    PAGE.write_text(before + START + table() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
