"""How far measured memory may be from what is predicted: an 80 % interval by what is known to vary.

Weights, gradients and optimizer states follow from the layout. What varies is what the software keeps of activations,
how many copies of the logits its loss makes, what the driver and NCCL take outside the allocator, and, where a loop of
the user's own stands behind a profile, all of it. Each adds its share of the total in squares. The numbers are fitted
to runs of 19 sources, each source of 8 runs or more counting the same (docs/validation.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from gpuscale.arrays import FloatArray, log
from gpuscale.layouts.arrays import summed
from gpuscale.memory.model import Memory
from gpuscale.specs.job import JobSpec

CHANCE = 0.8
"""Share of measurements that intervals are meant to hold."""


SPREADS = {"activations": 0.12, "logits": 0.3}
"""Component of memory -> how far it is off, as a share of it, for 80 of 100 runs."""

LEAST = 0.02
"""How far all of it is off in any case, in log of the ratio: steps differ, logs round."""

STATES_ALONE = 0.005
"""The same where the counter of the allocator is set back before the optimizer runs, so that weights, gradients and
optimizer states are all that it shows: a sum over the layout, off by what logs round and small tensors take."""

OWN_LOOP = 0.2
"""The same where the profile stands for loops of many users, whose kernels and hooks nobody has said."""

DEVICE = 0.08
"""The same where memory in use on the whole device counts: context, communicators and blocks that the allocator
keeps."""

UNSAID = 0.12
"""The same where a source does not say what it read: the allocator reserves some 5 to 10 % more than it hands out, and
the driver's figure holds a GiB or more beside."""


def half_width(
    parts: Mapping[str, FloatArray], job: JobSpec, basis: str = "nvidia-smi", *, said: bool = True
) -> FloatArray:
    """Half the width of the interval in log of measured over predicted memory, shape (N,).

    Args:
        parts: component -> bytes at the fullest stage, each (N,).
        basis: what is measured, one of `gpuscale.memory.model.BASES`.
        said: whether the source says what it measured; else `basis` is what is taken for it.
    """
    total = summed(*parts.values())
    if basis.startswith("allocated") and job.runtime.memory.counter_reset:
        return np.full_like(total, math.hypot(STATES_ALONE, UNSAID * (not said)))
    own = OWN_LOOP * (job.runtime.rule_set == "generic")
    every = math.hypot(LEAST, own, UNSAID * (not said), DEVICE * basis.startswith("nvidia-smi"))
    shares = [spread * parts[name] / total for name, spread in SPREADS.items()]
    return np.sqrt(every * every + summed(*(share * share for share in shares)))


def fit_probability(memory: Memory, job: JobSpec) -> FloatArray:
    """Probability that the memory of each candidate is within the limit, shape (N,)."""
    half = half_width(memory.at_peaks(), job)
    deviations = log(job.memory_limit_bytes / memory.peak_bytes) / half * NormalDist().inv_cdf(0.5 + CHANCE / 2)
    return np.array([NormalDist().cdf(one) for one in deviations.tolist()])
