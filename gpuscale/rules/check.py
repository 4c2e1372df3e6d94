"""All rules, in the order in which they are checked, each on the first table of `gpuscale.layouts.space` that can
decide it; and what checks those that hold for the framework of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuscale.layouts.arrays import Candidates
from gpuscale.rules.frameworks import DEEPSPEED_RULES, MEGATRON_RULES, NANOTRON_RULES, TORCHTITAN_RULES
from gpuscale.rules.general import RULES
from gpuscale.rules.rule import FRAMEWORKS, Cite, Rule
from gpuscale.specs.job import JobSpec

SHAPE_RULES, LAYOUT_RULES, SHARDING_RULES, MICROBATCH_RULES, RECOMPUTE_RULES = (
    tuple(
        rule
        for rules in (RULES, MEGATRON_RULES, TORCHTITAN_RULES, DEEPSPEED_RULES, NANOTRON_RULES)
        for rule in rules.get(table, ())
    )
    for table in ("shape", "layout", "sharding", "microbatch", "recompute")
)
ALL_RULES: tuple[Rule, ...] = (*SHAPE_RULES, *LAYOUT_RULES, *SHARDING_RULES, *MICROBATCH_RULES, *RECOMPUTE_RULES)
BY_CODE = {rule.code: rule for rule in ALL_RULES}

FATAL = (
    "batch_not_divisible_by_dp",
    "batch_not_divisible",
    "experts_not_divisible",
    "expert_grid",
    "too_few_layers",
    "shard_not_divisible",
)
"""Rules without which a prediction has no meaning; a fork may well break the others."""


def restrict(rules: Sequence[Rule], table: Candidates, job: JobSpec, rejected: dict[str, int]) -> Candidates:
    """Mark what breaks a rule as `mark` does, and drop the rows without any legal choice."""
    marked = mark(rules, table, job, rejected)
    legal = np.broadcast_to(marked.legal, np.broadcast_shapes(marked.legal.shape, (len(table),)))
    kept = np.asarray(legal.any(axis=tuple(range(legal.ndim - 1))))
    return marked if kept.all() else marked.take(kept)


def mark(rules: Sequence[Rule], table: Candidates, job: JobSpec, rejected: dict[str, int]) -> Candidates:
    """Mark what breaks a rule as illegal; each candidate is counted in `rejected` under the first rule it breaks."""
    legal = table.legal
    for rule in (rule for rule in rules if rule.applies(job)):
        broken = rule.test(table, job)
        if not broken.any():
            continue
        broken = legal & broken
        count = int(np.count_nonzero(np.broadcast_to(broken, table.shape)))
        if count:
            rejected[rule.code] = rejected.get(rule.code, 0) + count
            legal = legal ^ broken
    return replace(table, legal=legal)


def broken_rules(table: Candidates, job: JobSpec, among: Sequence[Rule] = ALL_RULES) -> list[Rule]:
    """Return every rule that a table of one row breaks, in order."""
    return [rule for rule in among if rule.breaks(table, job).any()]


def rules_of(framework: str) -> tuple[Rule, ...]:
    """Return the rules that hold for one of `RULE_SETS`, in order."""
    return tuple(rule for rule in ALL_RULES if framework in rule.frameworks)


def cited(rule: Rule, framework: str) -> Cite:
    """Return where one of `RULE_SETS` states a rule, else the rule's own source."""
    return FRAMEWORKS[framework].cited.get(rule.code, Cite(rule.source))


def source_in(rule: Rule, framework: str) -> str:
    """Return the same with the framework's name before it."""
    own = FRAMEWORKS[framework]
    found = own.cited.get(rule.code)
    return f"{own.title}: {found.where}" if found else rule.source
