"""What torchtitan can run: FSDP2 and HSDP, TP, PP by torch.distributed.pipelining, CP and EP."""

from __future__ import annotations

from functools import partial

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import ONE_F_ONE_B, Candidates
from gpuscale.rules.rule import FRAMEWORKS, FSDP2, TORCHTITAN, Rule
from gpuscale.specs.job import JobSpec


def _rounds(c: Candidates, _: JobSpec) -> BoolArray:
    rounds = np.maximum(c.num_microbatches // c.pp, 1)
    return (c.vpp > 1) & (c.schedule == ONE_F_ONE_B) & (c.num_microbatches % rounds != 0)


_rule = partial(Rule, frameworks=TORCHTITAN)

RULES = {
    "shape": (
        _rule("tied_embeddings_with_pp", ("pp",), "tied embeddings exclude pipelines",
              "torchtitan models/common/decoder", lambda c, _: c.pp > 1,
              concerns=lambda job: job.model.tied_embeddings),
    ),
    "layout": (
        _rule("experts_split_otherwise", ("etp", "ep", "tp"),
              "experts are split by EP alone, or with EP 1 by TP alone (ETP = TP)",
              "torchtitan distributed/parallel_dims", lambda c, _: np.where(c.ep > 1, c.etp != 1, c.etp != c.tp),
              frameworks=FSDP2, concerns=lambda job: job.model.is_moe),
    ),
    "sharding": (
        _rule("ddp_with_model_parallel", ("zero", "tp", "pp"),
              "replicas without sharding (DDP) combine with no other parallelism",
              "torchtitan models/llama3/parallelize",
              lambda c, _: (c.zero == 0) & (c.dp * c.cp > 1) & ((c.tp > 1) | (c.pp > 1) | (c.cp > 1)),
              frameworks=FSDP2),
        _rule("shard_splits_cp", ("shard", "cp"),
              "the ranks of one sequence share one copy of the states: CP must divide the shard size",
              "torchtitan distributed/parallel_dims", lambda c, _: (c.zero > 0) & (c.shard % c.cp != 0),
              frameworks=FSDP2),
        _rule("experts_beyond_shard", ("ep", "etp", "shard"), "EP x ETP must divide TP x the shard size",
              "torchtitan distributed/parallel_dims",
              lambda c, _: (np.maximum(c.shard, c.cp) * c.tp) % (c.ep * c.etp) != 0,
              concerns=lambda job: job.model.is_moe),
    ),
    "microbatch": (
        _rule("tokens_not_divisible", ("seq", "tp", "cp"),
              "TP (with SP) x 2 CP (with CP) must divide the tokens of a microbatch", "torchtitan trainer",
              lambda c, job: job.sequence * c.micro_batch_size % (c.sequence_split * c.cp * (1 + (c.cp > 1))) != 0),
        _rule("too_few_microbatches", ("gbs", "micro_batch_size", "pp"),
              "a pipeline needs as many microbatches as stages", "PyTorch distributed/pipelining/schedules",
              lambda c, _: (c.pp > 1) & (c.vpp == 1) & (c.num_microbatches < c.pp)),
        _rule("interleaving_rounds", ("gbs", "micro_batch_size", "pp"),
              "with interleaved stages the rounds (microbatches / PP, rounded down) must divide the microbatches",
              "PyTorch distributed/pipelining/schedules", _rounds),
    ),
}  # fmt: skip

OPTIONS = FRAMEWORKS["torchtitan"].options
