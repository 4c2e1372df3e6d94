"""Rules on virtual stages and on microbatches."""

from __future__ import annotations

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import ONE_F_ONE_B, Candidates
from gpuscale.layouts.scheduled import dualpipe_microbatches, stages_torn, wrong_chunks
from gpuscale.rules.rule import MEGATRON, Rule
from gpuscale.specs.job import JobSpec


def _interleaved_alone(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.vpp > 1) & (c.pp == 1)


def _micro(c: Candidates, job: JobSpec) -> BoolArray:
    return c.dp * c.micro_batch_size * c.num_microbatches != job.global_batch_size


def _interleaved_microbatches(c: Candidates, _: JobSpec) -> BoolArray:
    return (c.vpp > 1) & (c.schedule == ONE_F_ONE_B) & (c.num_microbatches % c.pp != 0)


def _wrong_chunks(c: Candidates, _: JobSpec) -> BoolArray:
    return wrong_chunks(c)


def _few_for_dualpipe(c: Candidates, _: JobSpec) -> BoolArray:
    return dualpipe_microbatches(c)


RULES = (
    Rule("vpp_without_pp", "virtual stages need PP > 1", "arithmetic: nothing to interleave", _interleaved_alone),
    Rule(
        "schedule_chunks",
        "ZB-V has two chunks per rank, GPipe, ZB-H and DualPipe one",
        "Qi et al. 2024, section 6; DeepSeek-V3, section 3.2.1",
        _wrong_chunks,
    ),
    Rule(
        "stages_torn",
        "where stages are not outermost, experts and other layers need the same stages",
        "Megatron-LM parallel_state",
        stages_torn,
        of_order=True,
    ),
)

MICROBATCH_RULES = (
    Rule(
        "batch_not_divisible",
        "DP x microbatch must divide the global batch size",
        "arithmetic: equal batches",
        _micro,
    ),
    Rule(
        "interleaving_needs_microbatches",
        "with interleaved stages PP must divide the microbatches",
        "Megatron-LM schedules",
        _interleaved_microbatches,
        MEGATRON | {"generic"},
    ),
    Rule(
        "dualpipe_microbatches",
        "DualPipe needs an even number of microbatches, two per stage at least",
        "DeepSeek DualPipe dualpipe.py",
        _few_for_dualpipe,
    ),
)
