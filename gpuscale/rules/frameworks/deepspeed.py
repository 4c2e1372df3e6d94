"""What DeepSpeed can run: ZeRO under Hugging Face models with AutoTP, AutoEP or Ulysses, and Megatron-DeepSpeed."""

from __future__ import annotations

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import context_split
from gpuscale.rules.rule import DEEPSPEED, Rule, any_of
from gpuscale.specs.job import JobSpec

HUGGING_FACE = frozenset({"deepspeed"})


def _kv_heads_over_context(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = context_split(c, job).heads
    counts = (attention.kv_heads for attention in job.model.attentions if attention.latent is None)
    return any_of(c, ((heads % ranks != 0) & (ranks % heads != 0) for heads in counts))


RULES = {
    "shape": (
        Rule("ulysses_with_model_parallel", ("cp", "tp", "pp"),
             "DeepSpeed's sequence parallelism (CP) combines with data parallelism only",
             "DeepSpeed runtime/sequence_parallel; Megatron-DeepSpeed core/parallel_state",
             lambda c, _: (c.cp > 1) & ((c.tp > 1) | (c.pp > 1)), DEEPSPEED),
        Rule("kv_heads_against_cp", ("cp", "kv_heads"),
             "where CP exchanges heads, the ranks that do and the key/value heads must divide one another",
             "DeepSpeed runtime/sequence_parallel/ulysses_sp", _kv_heads_over_context, DEEPSPEED),
    ),
    "layout": (
        Rule("etp_with_autoep", ("etp", "ep"), "under EP an expert is not split: ETP 1",
             "DeepSpeed module_inject/auto_ep_config", lambda c, _: (c.ep > 1) & (c.etp > 1), HUGGING_FACE,
             lambda job: job.model.is_moe),
        Rule("offload_with_autoep_and_tp", ("offload", "ep", "tp"), "EP with TP excludes offloading",
             "DeepSpeed module_inject/auto_ep_folding", lambda c, _: (c.ep > 1) & (c.tp > 1), HUGGING_FACE,
             lambda job: job.offload.any and job.model.is_moe),
    ),
    "sharding": (
        Rule("tp_with_zero_3", ("zero", "tp"), "AutoTP goes with ZeRO 0 to 2", "DeepSpeed runtime/engine",
             lambda c, _: (c.tp > 1) & (c.zero == 3), HUGGING_FACE),
        Rule("ep_with_zero_3", ("zero", "ep"), "DeepSpeed's own experts do not go with ZeRO-3",
             "DeepSpeed runtime/engine", lambda c, _: (c.ep > 1) & (c.zero == 3), frozenset({"megatron-deepspeed"}),
             lambda job: job.model.is_moe),
        Rule("ep_with_zero_3_and_cp", ("zero", "cp", "ep"), "EP under ZeRO-3 excludes sequence parallelism (CP)",
             "DeepSpeed runtime/engine", lambda c, _: (c.ep > 1) & (c.zero == 3) & (c.cp > 1), HUGGING_FACE,
             lambda job: job.model.is_moe),
    ),
}  # fmt: skip
