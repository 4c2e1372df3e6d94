"""How far measured memory may be from what is predicted: an 80 % interval by what is known to vary.

Weights, gradients and optimizer states follow from the layout. What varies is what the software keeps of activations,
how many copies of the logits its loss makes, what the driver and NCCL take outside the allocator, and, where a loop of
the user's own stands behind a profile, all of it. Each adds its share of the total in squares. The numbers are fitted
to runs of 19 sources, each source of 8 runs or more counting the same (docs/validation.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpuscale.specs.job import JobSpec

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


def half_width(parts: Mapping[str, float], job: JobSpec, basis: str = "nvidia-smi", *, said: bool = True) -> float:
    """Half the width of the interval in log of measured over predicted memory.

    Args:
        parts: component -> bytes, as `gpuscale.memory.model.Memory.at_peak`.
        basis: what is measured, one of `gpuscale.memory.model.BASES`.
        said: whether the source says what it measured; else `basis` is what is taken for it.
    """
    unsaid = UNSAID * (not said)
    if basis.startswith("allocated") and job.runtime.memory.counter_reset:
        return math.hypot(STATES_ALONE, unsaid)
    total = math.fsum(parts.values())
    shares = [spread * parts[name] / total for name, spread in SPREADS.items()]
    own = OWN_LOOP * (job.runtime.rule_set == "generic")
    return math.hypot(LEAST, own, unsaid, DEVICE * basis.startswith("nvidia-smi"), *shares)
