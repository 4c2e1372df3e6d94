"""What it costs in time to train by DiLoCo: sites that work alone for H steps and then exchange how far they moved.

An outer optimizer with Nesterov momentum applies the mean of these outer gradients (Douillard et al. 2023, DiLoCo,
arXiv 2311.08105). Streaming DiLoCo sends fragments of the model one after the other, each every H steps, and merges
what comes back some steps later (Douillard et al. 2025, arXiv 2501.18512). Nothing here says how well the model learns;
`loss_notes` says what was published of that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpuscale.arrays import FloatArray

OUTER_STATE_BYTES = 8.0
"""Bytes per parameter that a site keeps for the outer optimizer: the weights of the last exchange and the momentum, in
fp32. That is 66 % of the 12 bytes of weights and Adam's moments, as in Streaming DiLoCo (arXiv 2501.18512)."""

OUTER_TRAFFIC_BYTES = 26.0
"""Bytes per parameter that an outer step reads and writes: weights in fp32 to send how far they moved from the last
exchange (8); then the mean, momentum and old weights (12) for new momentum, old weights and weights, the latter in bf16
too; each state counted where it is read and written once."""

MOST_EVERY = 100_000
"""Steps between exchanges beyond which none are looked for: a tenth of a training, and 200 times what was tried."""


class Outer(NamedTuple):
    """When sites exchange."""

    every: int  #: steps from one exchange of a parameter to its next (H).
    #: parts of the model that are sent one after the other, `every` / `fragments` steps apart; 1: all at once.
    fragments: int = 1
    delay: int = 0  #: steps that go on while a fragment is under way; 0: the sites wait for it.


def interval_s(
    step_s: ArrayLike, steps: ArrayLike, delay: ArrayLike, busy_s: ArrayLike, latency_s: ArrayLike
) -> FloatArray:
    """Return the time from the sending of one fragment to that of the next, once it no longer changes [s].

    It is the slowest of three loops:

    - the steps in between, `steps x step_s`;
    - the lines, which carry one fragment after the other, `busy_s`;
    - from a fragment that is sent through the lines to the step that needs it, and on to the next step that sends: with
      n = floor(delay / steps) + 1 fragments sent until then, `(busy_s + latency_s + (n steps - delay) step_s) / n`.

    Args:
        step_s: one step of a site by itself.
        steps: steps from one sending to the next.
        delay: steps that go on before what was sent must have come back.
        busy_s: time for which a fragment occupies the lines.
        latency_s: further time until it is there, in which the lines are free.
    """
    values = (step_s, steps, delay, busy_s, latency_s)
    step_s, steps, delay, busy_s, latency_s = (np.asarray(value, dtype=np.float64) for value in values)
    sent = np.floor(delay / steps) + 1.0
    loop_s = (busy_s + latency_s + (sent * steps - delay) * step_s) / sent
    return np.maximum(np.maximum(steps * step_s, busy_s), loop_s)


def mean_step_s(step_s: ArrayLike, outer: Outer, busy_s: ArrayLike, latency_s: ArrayLike) -> FloatArray:
    """Return the mean time of a step with its share of the exchanges [s].

    Args:
        step_s: one step of a site by itself.
        busy_s: time for which the whole model occupies the lines.
        latency_s: further time until a fragment is there.
    """
    steps = outer.every / outer.fragments
    return interval_s(step_s, steps, outer.delay, np.asarray(busy_s) / outer.fragments, latency_s) / steps


def exposed_share(step_s: ArrayLike, outer: Outer, busy_s: ArrayLike, latency_s: ArrayLike) -> FloatArray:
    """Return the share of the time in which sites wait for each other; arguments as those of `mean_step_s`."""
    share = 1.0 - np.asarray(step_s) / mean_step_s(step_s, outer, busy_s, latency_s)
    return np.maximum(share, 0.0)  # a last digit below


def most_busy_s(step_s: float, outer: Outer, latency_s: float, share: float) -> float:
    """Return for how long the whole model may occupy the lines where sites wait for `share` of the time at most [s].

    The inverse of `exposed_share`; negative where the latency alone takes longer.
    """
    steps = outer.every / outer.fragments
    allowed_s = steps * step_s / (1.0 - share)
    sent = math.floor(outer.delay / steps) + 1
    loop_s = sent * allowed_s - latency_s - (sent * steps - outer.delay) * step_s
    return min(allowed_s, loop_s) * outer.fragments


def least_every(step_s: float, outer: Outer, busy_s: float, latency_s: float, share: float) -> int | None:
    """Return the fewest steps between exchanges for which sites wait for less than `share` of the time; None if none.

    `outer.every` does not count; there are no more fragments than steps.
    """
    every = np.arange(1, MOST_EVERY + 1)
    fragments = np.minimum(outer.fragments, every)
    steps = every / fragments
    low = steps * step_s > (1.0 - share) * interval_s(step_s, steps, outer.delay, busy_s / fragments, latency_s)
    first = MOST_EVERY - int(np.argmin(low[::-1])) if not low.all() else 0  # after the last that is not
    return int(every[first]) if first < MOST_EVERY else None


LOSSES = {
    35e6: {2: 0.7, 4: 2.0, 8: 3.9}, 90e6: {2: 0.5, 4: 1.5, 8: 3.1}, 180e6: {2: 0.3, 4: 1.1, 8: 2.3},
    335e6: {2: 0.1, 4: 0.9, 8: 2.0}, 550e6: {2: 0.2, 4: 0.7, 8: 1.7}, 1.3e9: {2: 0.2, 4: 0.5, 8: 1.3},
    2.4e9: {2: -0.1, 4: 0.3, 8: 1.1}, 4e9: {2: -0.18, 4: 0.18}, 10e9: {2: -0.19, 4: 0.29},
}  # fmt: skip
"""Parameters -> replicas -> evaluation loss of DiLoCo with H = 30 less that of data-parallel training on as many
tokens, in percent of the latter: Charles et al. 2025, Scaling Laws for DiLoCo, arXiv 2503.09799, tables 4 and 5.
Learning rates and batches are tuned for each up to 2.4e9, and extrapolated beyond."""

LARGEST_EVERY = 300
"""Most steps between exchanges that Charles et al. 2025 tried (figure 9)."""


def loss_notes(parameters: float, replicas: int, every: int) -> tuple[str, ...]:
    """Return what was published of the loss of DiLoCo with about so many replicas, and how far this job is from that.

    Args:
        parameters: of the model.
        replicas: sites that train by themselves.
        every: steps between exchanges.
    """
    tried = sorted({count for row in LOSSES.values() for count in row})
    near = next((count for count in tried if count >= replicas), tried[-1])
    known = [(size, row[near]) for size, row in sorted(LOSSES.items()) if near in row]
    (least, first), (most, last) = known[0], known[-1]
    table = "Charles et al. 2025, arXiv 2503.09799, tables 4 and 5"
    said = [
        f"the loss differs with DiLoCo: with {near} replicas and H = 30 by {first:+.2g} % ({_billions(least)}) to "
        f"{last:+.2g} % ({_billions(most)}) from that of data-parallel training on as many tokens ({table})"
    ]
    beyond = []
    if parameters > most:
        beyond.append(f"models above {_billions(most)} (this one has {_billions(parameters)})")
    if replicas > near:
        beyond.append(f"more than {near} replicas (here {replicas})")
    if every > LARGEST_EVERY:
        beyond.append(f"H above {LARGEST_EVERY} (here {every})")
    if every > 30:
        tried_h = "H of 1 to 300 tried there, 550M parameters at most"
        said.append(f"the loss rises with H, less for larger models ({tried_h})")
    if beyond:
        said.append(f"those runs do not cover {' or '.join(beyond)}: compare the losses in a small run first")
    return tuple(said)


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e9 else f"{parameters / 1e6:.3g}M"
