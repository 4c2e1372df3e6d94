"""Rules on virtual stages and on microbatches."""

from __future__ import annotations

from gpuscale.candidates.arrays import Candidates
from gpuscale.rules.rule import MEGATRON, BoolArray, Rule
from gpuscale.specs.job import JobSpec


def _interleaved_alone(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.vpp > 1) & (c.pp == 1)


def _micro(c: Candidates, job: JobSpec) -> BoolArray:
    return c.dp * c.micro_batch_size * c.num_microbatches != job.global_batch_size


def _interleaved_microbatches(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.vpp > 1) & (c.num_microbatches % c.pp != 0)


RULES = (Rule("vpp_without_pp", "virtual stages need PP > 1", "arithmetic: nothing to interleave", _interleaved_alone),)

MICROBATCH_RULES = (
    Rule(
        "batch_not_divisible",
        "DP x microbatch must divide the global batch size",
        "arithmetic: equal batches",
        _micro,
    ),
    Rule(
        "interleaving_needs_microbatches",
        "with virtual stages PP must divide the microbatches",
        "Megatron-LM schedules",
        _interleaved_microbatches,
        MEGATRON | {"generic"},
    ),
)
