"""The order of candidates: by score, in families, and on the frontier of step time and memory.

A search keeps the best plan of each family (`FAMILY`). Sharded parameters, whole layers recomputed and context
parallelism buy memory with time: a family is folded once more where they buy nothing, under one of the same TP, PP, EP
and ETP that is at least as good with no more of any of the three (docs/planning.md). Within one job every objective
follows step time or memory, so that a frontier of several objectives is on that of these two (`staircase`); the few
hundred plans on it are then compared by the objectives, over all jobs (`undominated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray, FloatArray, IndexArray, IntArray
from gpuscale.layouts.arrays import FIELDS, Candidates, combined_key, concatenate, distinct
from gpuscale.search.evaluation import evaluate
from gpuscale.search.objectives import MEMORY
from gpuscale.specs.job import JobSpec

FAMILY = ("tp", "pp", "cp", "ep", "etp", "parameters_sharded", "layers_recomputed")
"""Layouts that agree in these are variants of one another; the table shows the best of each family."""

ROW_FAMILY = FAMILY[:5]
"""Those of `FAMILY` that do not depend on ZeRO and recomputation."""

SAVES_MEMORY = ("cp", "parameters_sharded", "layers_recomputed")
"""Members of `FAMILY` that a plan does not need where one without them is at least as good."""

TIE_ORDER = (
    "pp", "vpp", "cp", "tp", "ep", "etp", "zero", "shard", "recompute_layers", "recompute_modules",
    "micro_batch_size", "sp",
)  # fmt: skip
"""Among equal scores the candidate with less of these, in this order, comes first: the simpler one."""


class Scored(NamedTuple):
    """Candidates with what they are ordered by, each of shape (N,)."""

    rows: Candidates
    step_time_s: FloatArray
    memory_bytes: FloatArray
    score: FloatArray  #: step time or memory, smaller is better.
    host_bytes: FloatArray  #: what is offloaded, per host.

    def fits(self, job: JobSpec) -> BoolArray:
        """Mark the candidates that fit on the GPUs and, with what is offloaded, in the hosts."""
        return (self.memory_bytes <= job.plans_limit_bytes) & (self.host_bytes <= job.host_limit_bytes)

    def take(self, index: IndexArray | BoolArray | slice) -> Scored:
        """Return the rows chosen by an index array, a mask or a slice."""
        return Scored(self.rows.take(index), *(column[index] for column in self[1:]))


def scored(rows: Candidates, job: JobSpec, basis: str) -> Scored:
    """Compute memory and step time of each candidate, and the score by `step_time` or `memory`."""
    evaluation = evaluate(rows, job)
    step_time_s, memory_bytes = evaluation.step.step_time_s, evaluation.memory_bytes
    score = memory_bytes if basis == MEMORY else step_time_s
    return Scored(rows, step_time_s, memory_bytes, score, evaluation.memory.host_bytes)


def nothing() -> Scored:
    """No candidates."""
    columns: dict[str, Any] = {name: np.zeros(0, dtype=np.int64) for name in FIELDS}
    return Scored(Candidates(**columns), *[np.zeros(0)] * 4)


def joined(parts: Sequence[Scored]) -> Scored:
    """Stack several sets of scored candidates."""
    if not parts:
        return nothing()
    rows, *columns = zip(*parts, strict=True)
    return Scored(concatenate(rows), *(np.concatenate(column) for column in columns))


def rank_order(plans: Scored) -> IndexArray:
    """Return the order by score, then by time and memory, then by `TIE_ORDER`."""
    ties = [getattr(plans.rows, name) for name in reversed(TIE_ORDER)]
    return np.lexsort([*ties, plans.memory_bytes, plans.step_time_s, plans.score])


def ordered(plans: Scored) -> Scored:
    """Sort by score, then by time and memory, then by `TIE_ORDER`."""
    return plans.take(rank_order(plans))


def best_of_each(plans: Scored, group: IntArray) -> IndexArray:
    """Return the index of the first candidate in rank order of each group, by its number."""
    order = rank_order(plans)
    first, _ = distinct(group[order])
    return order[first]


def folded(families: Scored, variants: IntArray) -> tuple[Scored, IntArray]:
    """Fold families, each its best plan, in order, with the feasible candidates that it stands for, under better ones
    that have no more of what saves memory."""
    listed = families.take(_are_listed(families.rows))
    members = np.zeros(len(listed.score), dtype=np.int64)
    np.add.at(members, family_of(families.rows, listed.rows), variants)
    return listed, members


def _are_listed(rows: Candidates) -> BoolArray:
    """Mark the families that are not folded under a better one."""
    kin = combined_key(rows, [name for name in FAMILY if name not in SAVES_MEMORY])
    order = np.argsort(kin, kind="stable")
    most = 1 + int(rows.cp.max(initial=0))
    below = 2 * most * kin[order]  # the least CP so far starts anew with each kin
    cp, saved = rows.cp[order] - below, (rows.parameters_sharded + 2 * rows.layers_recomputed)[order]
    listed = np.ones(len(rows), dtype=bool)
    for one in range(4):
        least = np.minimum.accumulate(np.where(saved & ~one, most - below, cp))
        listed[order[1:]] &= (saved[1:] != one) | (least[:-1] > cp[1:])
    return listed


def family_of(rows: Candidates, listed: Candidates) -> IndexArray:
    """Return for each candidate the index of the `listed` family (its best plan) that stands for it."""
    both = concatenate([rows, listed])
    kin = combined_key(both, [name for name in FAMILY if name not in SAVES_MEMORY])
    own, theirs = kin[: len(rows)], kin[len(rows) :]
    by_kin = np.argsort(theirs, kind="stable")
    start, end = (np.searchsorted(theirs[by_kin], own, side=side) for side in ("left", "right"))
    found = np.full(len(rows), -1)
    for place in range(int((end - start).max(initial=0))):  # the best of each kin first
        family = by_kin[np.minimum(start + place, len(listed) - 1)]
        fits = (found < 0) & (start + place < end)
        for name in SAVES_MEMORY:
            fits &= getattr(listed, name)[family] <= getattr(rows, name)
        found[fits] = family[fits]
    return found


def staircase(plans: Scored) -> Scored:
    """Return the candidates than which none is faster and as small, or smaller and as fast, by time."""
    order = np.lexsort([plans.memory_bytes, plans.step_time_s])
    memory = plans.memory_bytes[order]
    least = np.minimum.accumulate(memory)
    better = np.ones(len(order), dtype=bool)
    better[1:] = memory[1:] < least[:-1]
    steps = order[better]  # one of those that are equal in both; now all of them, in the order of ties
    time_s, size = plans.step_time_s[steps], plans.memory_bytes[steps]
    at = np.minimum(np.searchsorted(time_s, plans.step_time_s), max(len(steps) - 1, 0))
    on = (time_s[at] == plans.step_time_s) & (size[at] == plans.memory_bytes) if len(steps) else better
    ties = ordered(plans.take(on))
    _, first = np.unique(ties.step_time_s, return_index=True)
    return ties.take(first)


def undominated(scores: FloatArray) -> IndexArray:
    """Return the rows than which none is at least as good (smaller) in every column and better in one, by the first
    column, then the second, ...; of equal rows only the first. `scores` has the shape (N, k)."""
    order = np.lexsort([np.arange(len(scores)), *scores.T[::-1]])
    left, out = scores[order], []
    while len(order):  # none of what follows beats the first: it is no better in the first column that differs
        out.append(order[0])
        open_ = (left < left[0]).any(axis=1)
        left, order = left[open_], order[open_]
    return np.array(out, dtype=np.intp)
