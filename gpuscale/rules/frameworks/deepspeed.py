"""What DeepSpeed can run: ZeRO under Hugging Face models with AutoTP, AutoEP or Ulysses, and Megatron-DeepSpeed."""

from __future__ import annotations

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.ranks import context_split
from gpuscale.rules.rule import DEEPSPEED, any_of, rule
from gpuscale.specs.job import JobSpec

HUGGING_FACE = frozenset({"deepspeed"})


def _kv_heads_over_context(c: Candidates, job: JobSpec) -> BoolArray:
    ranks = context_split(c, job).heads
    counts = (attention.kv_heads for attention in job.model.attentions if attention.latent is None)
    return any_of(c, ((heads % ranks != 0) & (ranks % heads != 0) for heads in counts))


RULES = {
    "shape": (
        rule("ulysses_with_model_parallel", lambda c, _: (c.cp > 1) & ((c.tp > 1) | (c.pp > 1)), DEEPSPEED),
        rule("kv_heads_against_cp", _kv_heads_over_context, DEEPSPEED),
    ),
    "layout": (
        rule("etp_with_autoep", lambda c, _: (c.ep > 1) & (c.etp > 1), HUGGING_FACE, lambda job: job.model.is_moe),
        rule("offload_with_autoep_and_tp", lambda c, _: (c.ep > 1) & (c.tp > 1), HUGGING_FACE,
             lambda job: job.offload.any and job.model.is_moe),
    ),
    "sharding": (
        rule("tp_with_zero_3", lambda c, _: (c.tp > 1) & (c.zero == 3), HUGGING_FACE),
        rule("ep_with_zero_3", lambda c, _: (c.ep > 1) & (c.zero == 3), frozenset({"megatron-deepspeed"}),
             lambda job: job.model.is_moe),
        rule("ep_with_zero_3_and_cp", lambda c, _: (c.ep > 1) & (c.zero == 3) & (c.cp > 1), HUGGING_FACE,
             lambda job: job.model.is_moe),
    ),
}  # fmt: skip
