"""What nanotron can run: TP, PP by 1F1B or all forward then all backward, CP, ZeRO-1; and how its YAML says it."""

from __future__ import annotations

from gpuscale.layouts.arrays import ONE_F_ONE_B
from gpuscale.rules.rule import FRAMEWORKS, NANOTRON, rule

OPTIONS = FRAMEWORKS["nanotron"].options

RULES = {
    "layout": (rule("etp_unavailable", lambda c, _: c.etp > 1, NANOTRON, lambda job: job.model.is_moe),),
    "sharding": (
        rule("cp_with_zero", lambda c, _: (c.cp > 1) & (c.zero > 0), NANOTRON, lambda job: job.states.gradient == 4),
    ),
    "microbatch": (
        rule("too_few_microbatches_for_1f1b",
             lambda c, _: (c.schedule == ONE_F_ONE_B) & (c.num_microbatches < c.pp - 1), NANOTRON),
    ),
}  # fmt: skip
