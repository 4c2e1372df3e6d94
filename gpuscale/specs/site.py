"""What measured runs of a site add to the step time of one job, beyond the factors of its hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuscale.arrays import FloatArray, IntArray, log2

SCALE = 1.5
"""Distance at which a run says 1/e as much of another as of itself. This and the distances below are chosen by hand so
that half of the published runs of a source predict the other half well (benchmarks/calibrate_families.py)."""

DEGREES = {
    "tp": 0.5, "pp": 0.5, "vpp": 0.5, "cp": 0.5, "ep": 0.5, "micro_batch_size": 0.5, "num_microbatches": 0.1,
}  # fmt: skip
"""Distance of two layouts per factor of two between them."""

SWITCHES = {"zero": 0.5, "schedule": 0.5, "recompute_modules": 0.25, "recompute_layers": 0.5}
"""Distance of two layouts that differ in one of these; of `recompute_layers` only whether there are any counts."""

AXES = DEGREES | SWITCHES

MOST = 0.35
"""Most that measured runs may change a step time by, in its log: more is not a remainder."""


def layouts_apart(axis: str, one: IntArray, other: IntArray) -> FloatArray:
    """How far layouts are apart along one of `AXES`: in factors of two, or 1 where a switch differs."""
    if axis in DEGREES:
        return np.abs(log2(np.maximum(one, 1)) - log2(np.maximum(other, 1)))
    if axis == "recompute_layers":
        one, other = np.minimum(one, 1), np.minimum(other, 1)
    return np.asarray(one != other, dtype=np.float64)


@dataclass(frozen=True)
class SiteSpec:
    """What is left of the differences between measured and predicted step times, for one job: that of a layout is
    multiplied by exp(sum over the runs of weight x exp(-distance / SCALE)), with its distance to that of the run."""

    weights: tuple[float, ...]  #: of the runs, for this job.
    layouts: tuple[tuple[int, ...], ...]  #: degrees and switches of the runs, in the order of `AXES`.

    @property
    def least(self) -> float:
        """Least that any step time may be multiplied by."""
        return math.exp(-min(MOST, -math.fsum(min(weight, 0.0) for weight in self.weights)))
