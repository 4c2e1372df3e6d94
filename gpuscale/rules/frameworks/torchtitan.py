"""What torchtitan can run: FSDP2 and HSDP, TP, PP by torch.distributed.pipelining, CP and EP."""

from __future__ import annotations

from functools import partial

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, GPIPE, ONE_F_ONE_B, ZB_V, Candidates
from gpuscale.rules.rule import FSDP2, TORCHTITAN, Framework, Option, Rule, same
from gpuscale.specs.gpu import WIDE
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


OPTIONS = (
    Option("tp", "parallelism.tensor_parallel_degree"),
    Option("pp", "parallelism.pipeline_parallel_degree"),
    Option("cp", "parallelism.context_parallel_degree"),
    Option("ep", "parallelism.expert_parallel_degree"),
    Option("axis_order", words=same("tp-cp-ep-dp-pp"),
           why="its mesh is pp, dp_replicate, dp_shard, cp, tp (distributed/parallel_dims.py)"),
    Option("cuda_graphs", words=same("none", "full"),
           why="whole iterations are captured, or nothing (training.disable_cuda_graphs)"),
    Option("precision", words=same("fp32", "bf16", "fp8", "fp4"),
           why="no option lets matrix products of 32 bits run in TF32"),
    Option("overlap", words=same("dp", "tp+dp"), why="FSDP2 gathers and reduces beside the computation, which nothing "
           "turns off; the exchange of experts runs beside another microbatch under DualPipeV alone"),
    Option("vocab_multiple", words=same(1), why="it does not pad vocabularies"),
    Option("optimizer", words=same("adam", "adamw"),
           why="Adam, AdamW, or DistMuon with groups of one's own (components/optimizer)"),
    Option("loss", words=same(None, "fused", "chunked"),
           why="CrossEntropyLoss is compiled, ChunkedLossWrapper runs it in parts (components/loss.py)"),
    Option("cp_comm", words=same("all_gather"),
           why="FlexAttention's context parallelism gathers (distributed/context_parallel)"),
    Option("swiglu_input_dtype", words=same("bf16"), why="no option keeps them in fp8"),
    Option("routing", words=same("dropless"), why="tokens are dropped by no option"),
)  # fmt: skip

_TODAY = Framework("torchtitan", "pytorch/torchtitan at b5bcd76c66d0, 2026-08", "torchtitan", OPTIONS,
                   schedules=frozenset({ONE_F_ONE_B, GPIPE, ZB_V}), precisions=frozenset({"bf16", "fp8", "fp4"}) | WIDE,
                   recipes=frozenset({"current", "mx", "nvfp4"}), offload=frozenset({"optimizer", "parameters"}),
                   zero_stages=(0, 2, 3), recompute_modules=EVERY_OTHER_MATMUL, recompute_layers="all",
                   overlaps_exchange=False)  # fmt: skip

FRAMEWORKS = {
    "torchtitan": _TODAY,
    "torchtitan-2024": _TODAY._replace(
        title="torchtitan of 2024 to mid-2025",
        basis="pytorch/torchtitan, releases to 0.2",
        precisions=frozenset({"bf16", "fp8"}) | WIDE,
        recipes=frozenset({"current", "mx"}),
        sequence_parallel="always",
        expert_parallel=False,
        recompute_layers="every n-th",
    ),
}
