"""What nanotron can run: TP, PP by 1F1B or all forward then all backward, CP, ZeRO-1; and how its YAML says it.

Names: huggingface/nanotron at 2411b022a75f (2026-04), src/nanotron/config; its reader (dacite, strict) takes no others.
"""

from __future__ import annotations

from gpuscale.layouts.arrays import GPIPE, ONE_F_ONE_B
from gpuscale.rules.rule import NANOTRON, Framework, Option, Rule, same
from gpuscale.specs.gpu import WIDE

OPTIONS = (
    Option("tp", "parallelism.tp"),
    Option("pp", "parallelism.pp"),
    Option("cp", "parallelism.context_parallel_size"),
    Option("dp", "parallelism.dp"),
    Option("", "parallelism.expert_parallel_size"),
    Option("schedule", "parallelism.pp_engine", {"1f1b": "1f1b", "gpipe": "afab"}, usual="gpipe", beside="pp",
           assumed="all forward, then all backward passes of a step, nanotron's default"),
    Option("sp", "parallelism.tp_mode", {True: "REDUCE_SCATTER", False: "ALL_REDUCE"}, usual=False, beside="tp",
           assumed="tensor parallelism by AllReduce, nanotron's default"),
    Option("", "parallelism.tp_linear_async_communication"),
    Option("recompute", "parallelism.recompute_layer", {"none": False, "full": True}, usual="none"),
    Option("precision", "model.dtype", {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}, usual="bf16",
           why="model.dtype is bfloat16, float16 or float32"),
    Option("", "model.init_method"),
    Option("vocab_multiple", "model.make_vocab_size_divisible_by", usual=1),
    Option("seq", "tokens.sequence_length", missing="nanotron needs it"),
    Option("", "tokens.train_steps"),
    Option("micro_batch_size", "tokens.micro_batch_size", missing="nanotron needs it"),
    Option("", "tokens.batch_accumulation_per_replica", missing="nanotron needs it"),
    Option("zero", "optimizer.zero_stage", usual=0),
    Option("optimizer", "optimizer.optimizer_factory.name", {"adam": "adamW", "adamw": "adamW", "sgd": "sgd"},
           usual="adamw", why="adamW or sgd (config/config.py, optimizer_factory)"),
    Option("model.layers", "model.model_config.num_hidden_layers", missing="give `model`"),
    Option("model.hidden", "model.model_config.hidden_size", missing="give `model`"),
    Option("model.heads", "model.model_config.num_attention_heads", missing="give `model`"),
    Option("model.kv_heads", "model.model_config.num_key_value_heads"),
    Option("model.ffn", "model.model_config.intermediate_size", missing="give `model`"),
    Option("model.vocab", "model.model_config.vocab_size", missing="give `model`"),
    Option("model.sequence", "model.model_config.max_position_embeddings"),
    Option("model.tied_embeddings", "model.model_config.tie_word_embeddings", same(True, False), usual=False),
    Option("etp", words=same(1), why="no key splits experts by TP"),
    Option("pipeline_split", words=same("cost"), why="blocks are dealt out by their cost (models/base.py)"),
    Option("axis_order", words=same("tp-cp-ep-dp-pp"), why="ranks are ep, pp, dp, cp, tp (parallel/context.py:62)"),
    Option("overlap", words=same("none"), why="no key overlaps more than DistributedDataParallel does by itself"),
    Option("cp_comm", words=same("p2p"), why="context parallelism is ring attention"),
    Option("cuda_graphs", words=same("none"), why="no key captures CUDA graphs"),
    Option("dispatcher", words=same("alltoall"), why="experts exchange by AllToAll or AllGather, all tokens"),
    Option("routing", words=same("dropless"), why="experts exchange by AllToAll or AllGather, all tokens"),
    Option("swiglu_input_dtype", words=same("bf16"), why="no key keeps them in fp8"),
    *(Option(ours, words=same(None), why="nanotron has no key for it")
      for ours in ("loss", "reshard", "grad_reduce", "compile", "transport")),
)  # fmt: skip

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


FRAMEWORKS = {
    "nanotron": Framework("nanotron", "huggingface/nanotron at 2411b022a75f, 2026-04", "nanotron", OPTIONS,
                          interleaving=False, expert_parallel=False, layers=frozenset({"moe", "gqa"}),
                          schedules=frozenset({ONE_F_ONE_B, GPIPE}), precisions=frozenset({"bf16", "fp16"}) | WIDE,
                          offload=frozenset(), zero_stages=(0, 1), hybrid_stages=(), recompute_modules=0,
                          recompute_layers="all", overlaps_exchange=False)
}  # fmt: skip
