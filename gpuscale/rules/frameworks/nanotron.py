"""What nanotron can run: TP, PP by 1F1B or all forward then all backward, CP, ZeRO-1; and how its YAML says it."""

from __future__ import annotations

from gpuscale.layouts.arrays import ONE_F_ONE_B
from gpuscale.rules.rule import FRAMEWORKS, NANOTRON, Rule

OPTIONS = FRAMEWORKS["nanotron"].options

RULES = {
    "layout": (
        Rule("etp_unavailable", ("etp",), "experts are whole on every rank: no key splits them by TP",
             "nanotron nn/moe", lambda c, _: c.etp > 1, NANOTRON, lambda job: job.model.is_moe),
    ),
    "sharding": (
        Rule(
            "cp_with_zero",
            ("zero", "cp"),
            "CP needs DDP, which ZeRO with fp32 gradients goes without",
            "nanotron trainer",
            lambda c, _: (c.cp > 1) & (c.zero > 0),
            NANOTRON,
            lambda job: job.states.gradient == 4,  # fp32
        ),
    ),
    "microbatch": (
        Rule("too_few_microbatches_for_1f1b", ("gbs", "micro_batch_size", "pp"),
             "1F1B needs at least PP - 1 microbatches", "nanotron parallel/pipeline_parallel/engine",
             lambda c, _: (c.schedule == ONE_F_ONE_B) & (c.num_microbatches < c.pp - 1), NANOTRON),
    ),
}  # fmt: skip
