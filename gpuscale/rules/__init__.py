"""Which candidates are legal, and a reason code for each that is not.

Rules are grouped by the table of `gpuscale.layouts.space` on which they can first be decided. Most of `shapes`,
`experts`, `pipeline`, `sharding` and `recompute` are arithmetic, and hold for every framework; what a framework lacks
follows from its `Abilities` (`available`); what one framework alone asks for is in `frameworks`. A rule is passed over
for frameworks that it does not name: `--framework` decides what the search may offer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.space import Grid, plain
from gpuscale.rules import available, experts, pipeline, recompute, shapes, sharding
from gpuscale.rules.abilities import Abilities, Cite, RuleSet
from gpuscale.rules.frameworks import FRAMEWORKS, deepspeed, megatron, nanotron, torchtitan
from gpuscale.rules.rule import EVERY, Rule
from gpuscale.specs.job import JobSpec

SHAPE_RULES = (
    *available.SHAPE_RULES,
    *shapes.RULES,
    *megatron.SHAPE_RULES,
    *torchtitan.SHAPE_RULES,
    *deepspeed.SHAPE_RULES,
)
LAYOUT_RULES = (
    *available.LAYOUT_RULES,
    *experts.RULES,
    *pipeline.RULES,
    *shapes.CHUNKED_RULES,
    *megatron.LAYOUT_RULES,
    *torchtitan.LAYOUT_RULES,
    *deepspeed.LAYOUT_RULES,
)
SHARDING_RULES = (
    *available.SHARDING_RULES,
    *sharding.RULES,
    *megatron.SHARDING_RULES,
    *torchtitan.SHARDING_RULES,
    *deepspeed.SHARDING_RULES,
    *nanotron.SHARDING_RULES,
)
MICROBATCH_RULES = (*pipeline.MICROBATCH_RULES, *torchtitan.MICROBATCH_RULES, *nanotron.MICROBATCH_RULES)
RECOMPUTE_RULES = (*available.RECOMPUTE_RULES, *recompute.RULES, *megatron.RECOMPUTE_RULES)

ALL_RULES = (*SHAPE_RULES, *LAYOUT_RULES, *SHARDING_RULES, *MICROBATCH_RULES, *RECOMPUTE_RULES)
BY_CODE = {rule.code: rule for rule in ALL_RULES}


def apply(rules: Sequence[Rule], table: Candidates, job: JobSpec, rejected: dict[str, int]) -> Candidates:
    """Drop the rows that break a rule; each is counted in `rejected` under the first rule it breaks."""
    return restrict(rules, plain(table), job, rejected).rows


def restrict(rules: Sequence[Rule], grid: Grid, job: JobSpec, rejected: dict[str, int]) -> Grid:
    """Mark what breaks a rule as illegal, and drop the rows without any legal choice; counts as `mark`."""
    marked = mark(rules, grid, job, rejected)
    legal = np.broadcast_to(marked.legal, np.broadcast_shapes(marked.legal.shape, (len(grid.rows),)))
    kept = np.asarray(legal.any(axis=tuple(range(legal.ndim - 1))))
    return marked if kept.all() else marked.take(kept)


def mark(rules: Sequence[Rule], grid: Grid, job: JobSpec, rejected: dict[str, int]) -> Grid:
    """Mark what breaks a rule as illegal; each candidate is counted in `rejected` under the first rule it breaks."""
    legal: BoolArray = grid.legal
    for rule in rules:
        if not rule.applies(job):
            continue
        broken = rule.breaks(grid.rows, job)
        if not broken.any():
            continue
        count = int(np.count_nonzero(np.broadcast_to(legal & broken, grid.rows.shape)))
        if count:
            rejected[rule.code] = rejected.get(rule.code, 0) + count
            legal = np.asarray(legal & ~broken)
    return Grid(grid.rows, legal)


def broken_rules(table: Candidates, job: JobSpec, among: Sequence[Rule] = ALL_RULES) -> list[Rule]:
    """Return every rule that a single candidate (a table of one row) breaks, in the order they are checked."""
    return [rule for rule in among if rule.applies(job) and np.asarray(rule.test(table, job)).any()]


def rules_of(framework: str) -> tuple[Rule, ...]:
    """Return the rules that hold for one of `gpuscale.specs.job.RULE_SETS`, in the order they are checked."""
    return tuple(rule for rule in ALL_RULES if framework in rule.frameworks)


def cited(rule: Rule, framework: str) -> Cite:
    """Return where one of `RULE_SETS` says a rule; the rule's own source where it does not."""
    return FRAMEWORKS[framework].cited.get(rule.code, Cite(rule.source))


def source_in(rule: Rule, framework: str) -> str:
    """Return where one of `RULE_SETS` says a rule, with the framework's name before it."""
    own = FRAMEWORKS[framework]
    found = own.cited.get(rule.code)
    return f"{own.title}: {found.where}" if found else rule.source


__all__ = [
    "ALL_RULES",
    "BY_CODE",
    "EVERY",
    "FRAMEWORKS",
    "LAYOUT_RULES",
    "MICROBATCH_RULES",
    "RECOMPUTE_RULES",
    "SHAPE_RULES",
    "SHARDING_RULES",
    "Abilities",
    "Cite",
    "Rule",
    "RuleSet",
    "apply",
    "broken_rules",
    "cited",
    "restrict",
    "rules_of",
    "source_in",
]
