"""The frameworks: for each its own rules, what it lacks, and where its source says so."""

from __future__ import annotations

from gpuscale.rules.abilities import RuleSet
from gpuscale.rules.frameworks import deepspeed, generic, llm_foundry, megatron, nanotron, torchtitan

FRAMEWORKS: dict[str, RuleSet] = {
    **generic.RULE_SETS,
    **megatron.RULE_SETS,
    **torchtitan.RULE_SETS,
    **deepspeed.RULE_SETS,
    **nanotron.RULE_SETS,
    **llm_foundry.RULE_SETS,
}
"""Name of `gpuscale.specs.job.RULE_SETS` -> what that framework can run."""

__all__ = ["FRAMEWORKS", "deepspeed", "megatron", "nanotron", "torchtitan"]
