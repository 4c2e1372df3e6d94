"""What torchtitan can run: FSDP2 and HSDP, TP, PP by torch.distributed.pipelining, CP and EP."""

from __future__ import annotations

from functools import partial

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import ONE_F_ONE_B, Candidates
from gpuscale.rules.rule import FRAMEWORKS, FSDP2, TORCHTITAN, rule
from gpuscale.specs.job import JobSpec


def _rounds(c: Candidates, _: JobSpec) -> BoolArray:
    rounds = np.maximum(c.num_microbatches // c.pp, 1)
    return (c.vpp > 1) & (c.schedule == ONE_F_ONE_B) & (c.num_microbatches % rounds != 0)


_rule = partial(rule, frameworks=TORCHTITAN)

RULES = {
    "shape": (
        _rule("tied_embeddings_with_pp", lambda c, _: c.pp > 1, concerns=lambda job: job.model.tied_embeddings),
    ),
    "layout": (
        rule("experts_split_otherwise", lambda c, _: np.where(c.ep > 1, c.etp != 1, c.etp != c.tp), FSDP2,
             lambda job: job.model.is_moe),
    ),
    "sharding": (
        rule("ddp_with_model_parallel",
             lambda c, _: (c.zero == 0) & (c.dp * c.cp > 1) & ((c.tp > 1) | (c.pp > 1) | (c.cp > 1)), FSDP2),
        rule("shard_splits_cp", lambda c, _: (c.zero > 0) & (c.shard % c.cp != 0), FSDP2),
        _rule("experts_beyond_shard", lambda c, _: (np.maximum(c.shard, c.cp) * c.tp) % (c.ep * c.etp) != 0,
              concerns=lambda job: job.model.is_moe),
    ),
    "microbatch": (
        _rule("tokens_not_divisible",
              lambda c, job: job.sequence * c.micro_batch_size % (c.sequence_split * c.cp * (1 + (c.cp > 1))) != 0),
        _rule("too_few_microbatches", lambda c, _: (c.pp > 1) & (c.vpp == 1) & (c.num_microbatches < c.pp)),
        _rule("interleaving_rounds", _rounds),
    ),
}  # fmt: skip

OPTIONS = FRAMEWORKS["torchtitan"].options
