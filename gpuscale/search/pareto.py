"""The exact Pareto frontier of all candidates.

Within one job every objective follows step time or memory (`gpuscale.search.objectives`), so that whatever is on a
frontier of several objectives is on that of these two, or has the same values as a plan that is. A search keeps that
frontier (`staircase`); the few hundred plans on it are then compared by the objectives themselves, over all jobs
(`undominated`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscale.arrays import FloatArray
from gpuscale.search.ordering import Scored, ordered


def staircase(scored: Scored) -> Scored:
    """Return the candidates than which none is faster and as small, or smaller and as fast; the fastest first."""
    order = np.lexsort([scored.memory_bytes, scored.step_time_s])
    memory = scored.memory_bytes[order]
    least = np.minimum.accumulate(memory)
    better = np.ones(len(order), dtype=bool)
    better[1:] = memory[1:] < least[:-1]
    steps = order[better]  # one of those that are equal in both; now all of them, in the order of ties
    time_s, size = scored.step_time_s[steps], scored.memory_bytes[steps]
    at = np.minimum(np.searchsorted(time_s, scored.step_time_s), max(len(steps) - 1, 0))
    on = (time_s[at] == scored.step_time_s) & (size[at] == scored.memory_bytes) if len(steps) else better
    few = scored.take(on)
    ties = ordered(few)
    _, first = np.unique(ties.step_time_s, return_index=True)
    return ties.take(first)


def undominated(scores: FloatArray) -> npt.NDArray[np.intp]:
    """Return the rows than which none is at least as good in every column and better in one.

    Args:
        scores: shape (N, k), smaller is better.

    Returns:
        Their indices, by the first column, then the second, ...; of equal rows only the first.
    """
    order = np.lexsort([np.arange(len(scores)), *scores.T[::-1]])
    left, out = scores[order], []
    while len(order):  # none of what follows beats the first: it is no better in the first column that differs
        out.append(order[0])
        open_ = (left < left[0]).any(axis=1)
        left, order = left[open_], order[open_]
    return np.array(out, dtype=np.intp)
