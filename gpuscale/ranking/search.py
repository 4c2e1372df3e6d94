"""Search: enumerate, cut what is illegal, price the rest, keep what fits, order it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from gpuscale.candidates.arrays import Candidates, combined_key, concatenate
from gpuscale.candidates.pins import Pins
from gpuscale.candidates.space import layouts, microbatched, recomputed, shapes, sharded
from gpuscale.ranking.bounds import Limits
from gpuscale.ranking.evaluate import evaluate
from gpuscale.rules import LAYOUT_RULES, MICROBATCH_RULES, RECOMPUTE_RULES, SHAPE_RULES, SHARDING_RULES, apply
from gpuscale.specs.job import JobSpec

FloatArray = npt.NDArray[np.float64]

OUT_OF_MEMORY, OUT_OF_HOST_MEMORY = "out_of_memory", "out_of_host_memory"

OBJECTIVES = ("step_time", "tokens_per_s", "mfu", "memory")
"""What `--objective` takes. At a fixed batch the first three give the same order; `memory` prefers the least peak."""

FAMILY = ("tp", "pp", "cp", "ep", "etp", "parameters_sharded", "layers_recomputed")
"""Layouts that agree in these are variants of one another; the table shows the best of each family
(`gpuscale.ranking.families` folds more)."""

TIE_ORDER = (
    "pp", "vpp", "cp", "tp", "ep", "etp", "zero", "shard", "recompute_layers", "recompute_modules",
    "micro_batch_size", "sp",
)  # fmt: skip
"""Among equal scores the candidate with less of these, in this order, comes first: the simpler one."""

KEEP_VARIANTS = 2000
"""Leaders kept besides the best of every family, for `--all` and `--rank`."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Candidates with what they are ordered by; arrays of shape (N,).

    Attributes:
        score: the objective, smaller is better.
        host_bytes: what is offloaded, per host.
    """

    rows: Candidates
    step_time_s: FloatArray
    memory_bytes: FloatArray
    score: FloatArray
    host_bytes: FloatArray

    def fits(self, job: JobSpec) -> npt.NDArray[np.bool_]:
        """Mark the rows that fit on the GPUs and, with what is offloaded, in the hosts."""
        return (self.memory_bytes <= job.memory_limit_bytes) & (self.host_bytes <= job.host_limit_bytes)

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Scored:
        """Return the rows chosen by an index array or a mask."""
        return Scored(
            self.rows.take(index),
            self.step_time_s[index],
            self.memory_bytes[index],
            self.score[index],
            self.host_bytes[index],
        )


@dataclass(slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        leaders: the best candidates, in order, at most `KEEP_VARIANTS`.
        families: the best candidate of each family, in order.
        family_variants: how many feasible candidates each of those stands for.
        scores: the scores of all feasible candidates, ascending.
        generated: rows formed, those that a rule cut included; feasible + all rejected.
        evaluated: candidates whose memory and step time were computed.
        rejected: reason code -> rows.
        nearest_miss: the candidate that came closest to fitting, when some did not fit.
    """

    leaders: Scored
    families: Scored
    family_variants: npt.NDArray[np.int64]
    scores: FloatArray
    generated: int
    evaluated: int
    feasible: int
    rejected: dict[str, int] = field(default_factory=dict)
    nearest_miss: Scored | None = None
    elapsed_s: float = 0.0


def search(
    job: JobSpec,
    pins: Pins,
    objective: str = "step_time",
    *,
    limits: Limits | None = None,
    collect: Callable[[Scored], None] | None = None,
) -> SearchResult:
    """Score the whole space, a bounded number of candidates at a time.

    Args:
        limits: constraints beyond memory; what breaks one is rejected under its code, after `OUT_OF_MEMORY`.
        collect: called with every chunk of scored candidates, those that do not fit included. A search that is
            collected from, or has limits, visits all legal candidates: what no objective of its own would choose may be
            on a Pareto frontier.
    """
    start = time.perf_counter()
    rejected: dict[str, int] = {}
    leaders: list[Scored] = []
    families: list[Scored] = []
    variants: list[npt.NDArray[np.int64]] = []
    scores: list[FloatArray] = []
    misses: list[Scored] = []
    evaluated = 0
    for rows in legal_candidates(job, pins, rejected):
        evaluated += len(rows)
        scored = score(rows, job, objective)
        if collect is not None:
            collect(scored)
        fits = scored.fits(job)
        if not fits.all():
            misses.append(_least_memory(scored.take(~fits)))
            too_large = int(np.count_nonzero(scored.memory_bytes > job.memory_limit_bytes))
            on_host = len(rows) - int(np.count_nonzero(fits)) - too_large
            for reason, number in ((OUT_OF_MEMORY, too_large), (OUT_OF_HOST_MEMORY, on_host)):
                if number:
                    rejected[reason] = rejected.get(reason, 0) + number
        good = scored.take(fits)
        good = ordered(good if limits is None else limits.keep(good, rejected))
        scores.append(good.score)
        leaders.append(good.take(np.arange(min(KEEP_VARIANTS, len(good.score)))))
        best, count = best_of_families(good)
        families.append(best)
        variants.append(count)
    merged = _merge(leaders)
    top = merged.take(np.arange(min(KEEP_VARIANTS, len(merged.score))))
    best_families, family_variants = _merge_families(families, variants)
    all_scores = np.sort(np.concatenate(scores)) if scores else np.zeros(0)
    return SearchResult(
        leaders=top,
        families=best_families,
        family_variants=family_variants,
        scores=all_scores,
        generated=len(all_scores) + sum(rejected.values()),
        evaluated=evaluated,
        feasible=len(all_scores),
        rejected=dict(sorted(rejected.items())),
        nearest_miss=_least_memory(_merge(misses)) if misses else None,
        elapsed_s=time.perf_counter() - start,
    )


def legal_candidates(job: JobSpec, pins: Pins, rejected: dict[str, int]) -> Iterator[Candidates]:
    """Yield the legal candidates in chunks; rows that a rule cuts are counted in `rejected`."""
    table = apply(SHAPE_RULES, shapes(job, pins), job, rejected)
    table = apply(LAYOUT_RULES, layouts(job, pins, table), job, rejected)
    table = apply(SHARDING_RULES, sharded(job, pins, table), job, rejected)
    for chunk in microbatched(job, pins, table):
        part = apply(MICROBATCH_RULES, chunk, job, rejected)
        legal = apply(RECOMPUTE_RULES, recomputed(job, pins, part), job, rejected)
        if len(legal):
            yield legal


def score(rows: Candidates, job: JobSpec, objective: str) -> Scored:
    """Compute memory and step time of each candidate and the score by `objective`."""
    evaluation = evaluate(rows, job)
    step_time_s, memory_bytes = evaluation.step.step_time_s, evaluation.memory.peak_bytes
    objective_value = memory_bytes if objective == "memory" else step_time_s
    return Scored(rows, step_time_s, memory_bytes, objective_value, evaluation.memory.host_bytes)


def ordered(scored: Scored) -> Scored:
    """Sort by score, then by memory, then by `TIE_ORDER`."""
    ties = [getattr(scored.rows, name) for name in reversed(TIE_ORDER)]
    return scored.take(np.lexsort([*ties, scored.memory_bytes, scored.step_time_s, scored.score]))


def best_of_families(scored: Scored) -> tuple[Scored, npt.NDArray[np.int64]]:
    """Return the first candidate of each family of an ordered set, still in order, and the size of each family."""
    key = combined_key(scored.rows, FAMILY)
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    order = np.argsort(first)
    return scored.take(first[order]), counts[order].astype(np.int64)


def _merge(parts: list[Scored]) -> Scored:
    if not parts:
        none = Candidates(**{item.name: np.zeros(0, dtype=np.int64) for item in fields(Candidates)})
        return Scored(none, *(np.zeros(0) for _ in range(4)))
    names = ("step_time_s", "memory_bytes", "score", "host_bytes")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return ordered(Scored(concatenate([part.rows for part in parts]), **columns))


def _merge_families(parts: list[Scored], counts: list[npt.NDArray[np.int64]]) -> tuple[Scored, npt.NDArray[np.int64]]:
    """Merge the family leaders of all chunks; a family may have members in several."""
    merged = _merge(parts)
    best, _ = best_of_families(merged)
    sizes: dict[tuple[int, ...], int] = {}
    for part, count in zip(parts, counts, strict=True):
        for family, number in zip(_family_keys(part.rows), count.tolist(), strict=True):
            sizes[family] = sizes.get(family, 0) + number
    return best, np.array([sizes[family] for family in _family_keys(best.rows)], dtype=np.int64)


def _family_keys(rows: Candidates) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(rows, name).tolist() for name in FAMILY), strict=True))


def _least_memory(scored: Scored) -> Scored:
    """Return the one candidate with the least memory (ties: the faster, then `TIE_ORDER`)."""
    least = scored.take(scored.memory_bytes == scored.memory_bytes.min())
    ties = [getattr(least.rows, name) for name in reversed(TIE_ORDER)]
    return least.take(np.lexsort([*ties, least.step_time_s])[:1])
