"""Rules on the ZeRO stage and on the ranks that share one copy of the states."""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.rules.rule import Rule
from gpuscale.specs.job import JobSpec


def _zero_alone(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.zero > 0) & (c.dp * c.cp == 1)


def _shard(c: Candidates, _: JobSpec) -> BoolArray:
    group = c.dp * c.cp
    return np.where(c.zero == 0, c.shard != 1, (c.shard < 1) | (group % np.maximum(c.shard, 1) != 0))


def _not_sharded(c: Candidates, _: JobSpec) -> BoolArray:
    return c.zero != 3


RULES = (
    Rule("zero_without_dp", "ZeRO needs more than one data-parallel rank", "arithmetic: nothing to share", _zero_alone),
    Rule("shard_not_divisible", "the shard size must divide DP x CP", "arithmetic: equal shards", _shard),
    Rule(
        "offloaded_parameters_not_sharded",
        "parameters can be offloaded under ZeRO-3 only",
        "DeepSpeed runtime/zero/config",
        _not_sharded,
        concerns=lambda job: job.offload.parameters,
    ),
)
