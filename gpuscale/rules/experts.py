"""Rules on sequence parallelism and on the split of experts."""

from __future__ import annotations

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.rules.rule import Rule
from gpuscale.specs.job import JobSpec


def _sp_alone(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.sp == 1) & (c.tp == 1)


def _sequence_slice(c: Candidates, job: JobSpec) -> BoolArray:
    return (c.sp == 1) & ((job.sequence // c.cp) % c.tp != 0)


def _experts(c: Candidates, job: JobSpec) -> BoolArray:
    bad = np.zeros(len(c), dtype=bool)
    if not job.model.is_moe:
        return (c.ep > 1) | (c.etp > 1)
    for kind in job.model.kinds:
        if kind.moe is not None:
            bad |= (kind.moe.experts % c.ep != 0) | (kind.moe.ffn % c.etp != 0)
    return bad


def _expert_grid(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.tp * c.cp * c.dp) % (c.ep * c.etp) != 0


RULES = (
    Rule("sp_without_tp", "sequence parallelism needs TP > 1", "arithmetic: nothing to split", _sp_alone),
    Rule(
        "sequence_slice_not_divisible",
        "with SP, TP must divide sequence / CP",
        "arithmetic: equal slices",
        _sequence_slice,
    ),
    Rule(
        "experts_not_divisible",
        "EP must divide the experts and ETP their width",
        "arithmetic: whole experts, equal slices",
        _experts,
    ),
    Rule("expert_grid", "EP x ETP must divide TP x CP x DP", "arithmetic: the ranks of a stage", _expert_grid),
)
