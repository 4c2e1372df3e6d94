"""Fine-tuning written for the tools that run it, read back, and refused where they run something else."""

import pytest
import round_trips
from test_launch_adapters import PLAN, text_of

from gpuscale.errors import NoAnswerError
from gpuscale.launch import export
from gpuscale.launch.targets import targets
from gpuscale.launch.torchtune import _components
from gpuscale.presets.tools import all_tools

LORA = {"tune": "lora", "lora_rank": 8}
QLORA = {"tune": "qlora", "lora_rank": 32, "lora_targets": "q,v", "lora_dropout": True}
HALF = {"master_dtype": "none", "grad_dtype": "bf16", "moment_dtype": "bf16"}
DDP, FSDP = {"zero": 0}, {"zero": 3}
TUNERS = ("llama-factory", "axolotl", "ms-swift", "trl")
EVERY = [
    *((name, more, layout) for name in TUNERS for more, layout in (
        (LORA, FSDP), ({}, FSDP), (HALF, DDP), ({**QLORA, **HALF}, DDP), ({**LORA, "train": "head"}, DDP),
        ({**LORA, "framework": "deepspeed"}, {"zero": 2}),
    )),
    ("torchtune", LORA, FSDP), ("torchtune", {**QLORA, "gpus": 1}, {"recompute": "full"}), ("torchtune", HALF, FSDP),
    ("automodel", LORA, FSDP), ("automodel", QLORA, FSDP), ("automodel", {}, FSDP),
    ("megatron-bridge", LORA, {"tp": 2}), ("megatron-bridge", {**LORA, "lora_targets": "attention"}, {"tp": 4}),
]  # fmt: skip
SWIFT_CASTS = {"ms-swift", "axolotl", "llama-factory"}
"""Tools whose adapters stay fp32 beside quantised weights."""


@pytest.mark.parametrize(("target", "more", "layout"), EVERY)
def test_what_is_written_is_read_as_the_same_job(target, more, layout, tmp_path):
    options = {"framework": targets()[target].frameworks[0], **PLAN, **more}
    if more == {**QLORA, **HALF} and target in SWIFT_CASTS:
        options = {name: value for name, value in options.items() if name not in HALF}
    assert round_trips.round_trip(target, options, layout, tmp_path) == {}


@pytest.mark.parametrize(
    ("target", "more", "layout", "parts"),
    [
        ("trl", {**QLORA, **HALF}, DDP, ("-m trl.scripts.sft", "--lora_r 32", "--lora_target_modules q_proj v_proj",
                                         "--load_in_4bit True", "--use_bnb_nested_quant True", "--use_peft True")),
        ("axolotl", QLORA, DDP, ("axolotl.yaml", 'adapter: "qlora"', "load_in_4bit: true", '- "q_proj"', "lora_r: 32")),
        ("axolotl", LORA, FSDP, ("fsdp_version: 2", "reshard_after_forward: true", "dp_shard_size: 8",
                                 "lora_target_linear: true")),
        ("ms-swift", QLORA, DDP, ("-m swift.cli.sft", "--tuner_type lora", "--quant_bits 4",
                                  "--target_modules q_proj v_proj")),
        ("torchtune", LORA, FSDP, ("tune run", "lora_finetune_distributed", "torchtune.models.llama3.lora_llama3_8b",
                                   "apply_lora_to_mlp: true")),
        ("torchtune", {**QLORA, "gpus": 1}, {}, ("lora_finetune_single_device", "quantize_base: true")),
        ("automodel", LORA, FSDP, ("automodel finetune llm -c automodel.yaml", "match_all_linear: true", "dim: 8")),
        ("megatron-bridge", LORA, {"tp": 2}, ("--recipe llama3_8b_peft_config", "--peft_scheme lora", "peft.dim=8")),
    ],
)  # fmt: skip
def test_each_tool_is_told_by_its_own_names(target, more, layout, parts):
    text = text_of(target, more, layout)
    for part in parts:
        assert part in text, part
    assert "tokenizer.tokenizer_type" not in text


@pytest.mark.parametrize(
    ("target", "more", "layout", "option"),
    [
        ("trl", QLORA, DDP, "master_dtype"),  # TRL casts adapters beside quantised weights to bf16
        ("axolotl", {}, DDP, "master_dtype"),  # which loads weights in the type of products
        ("ms-swift", {**LORA, "model": "gpt3-13b"}, DDP, "model"),
        ("trl", {**LORA, "base_dtype": "int4"}, DDP, "base_dtype"),
        ("axolotl", LORA, {"tp": 2}, "tp"),
        ("torchtune", {**LORA, "lora_targets": "q,up"}, FSDP, "lora_targets"),
        ("torchtune", {**LORA, "model": "qwen3-8b"}, FSDP, "model"),
        ("torchtune", {**LORA, "optimizer": "muon"}, FSDP, "optimizer"),
        ("automodel", {**LORA, "train": "head"}, FSDP, "train"),
        ("automodel", LORA, {"zero": 2}, "zero"),
        ("megatron-bridge", {**LORA, "lora_targets": "q,v"}, {}, "lora_targets"),
        ("megatron-bridge", {**LORA, "model": "qwen3-8b"}, {}, "model"),
    ],
)
def test_what_a_tool_runs_otherwise_is_refused_by_name(target, more, layout, option):
    with pytest.raises(NoAnswerError, match=rf"cannot express the plan: .*`{option}`: "):
        text_of(target, more, layout)


def test_an_export_that_reads_otherwise_is_refused(monkeypatch):
    """A writer that says another rank than the plan's does not get through."""
    tool = targets()["trl"]
    honest = export.written

    def lying(target, writing):
        program = honest(target, writing)
        words = tuple(("--lora_r", "9") if one[0] == "--lora_r" else one for one in program.arguments)
        return program.__class__(program.script, words, program.files, launcher=program.launcher)

    monkeypatch.setattr(export, "written", lying)
    with pytest.raises(NoAnswerError, match="`lora_rank`: TRL runs 9 by these files, not 8"):
        text_of(tool.name, LORA, FSDP)


def test_every_builder_of_torchtune_that_its_configurations_have_is_some_model():
    assert {"llama3.1-8b", "llama3-70b", "mistral-7b", "gemma2-9b", "qwen2.5-7b"} <= _components().keys()


def test_what_is_written_for_a_tool_has_words_for_options_alone():
    known = {"base_dtype", "recompute", "loss", "attention", "offload", "master_dtype", "optimizer"}
    for tool in all_tools():
        if tool.written is not None:
            assert set(tool.written.words) <= known, tool.name


@pytest.mark.parametrize(
    ("target", "more", "layout", "has", "lacks"),
    [
        # who shards layers recomputes them too: told to both, a layer would be run three times
        ("trl", LORA, {"zero": 3, "recompute": "full"},
         ("fsdp_activation_checkpointing: true", "--gradient_checkpointing False"), "--gradient_checkpointing True"),
        ("trl", LORA, {"zero": 0, "recompute": "full"}, ("--gradient_checkpointing True",), "fsdp_"),
        # `all-linear` would leave experts out of what a plan with adapters in them trains
        ("trl", {**LORA, "model": "mixtral-8x7b", "lora_experts": True}, FSDP,
         ("--lora_target_modules k_proj o_proj q_proj v_proj w1 w2 w3",), "all-linear"),
        ("trl", {**LORA, "base_dtype": "fp32"}, FSDP, ("--dtype float32",), "--dtype bfloat16"),
        ("torchtune", {**LORA, "lora_targets": "q,v"}, FSDP, ("apply_lora_to_mlp: false",), '"k_proj"'),
        ("torchtune", LORA, {"zero": 2}, ("fsdp_reshard_after_forward: false",), "zero"),
        ("automodel", LORA, {"zero": 3, "shard": 4}, ("dp_replicate_size: 2",), "zero"),
        ("automodel", {}, {"zero": 3, "shard": 4, "cp": 2}, ("dp_replicate_size: 2",), "zero"),  # over CP too
    ],
)  # fmt: skip
def test_settings_say_what_the_plan_has_and_nothing_else(target, more, layout, has, lacks):
    text = text_of(target, more, layout)
    assert [part for part in has if part not in text] == []
    assert lacks not in text.partition("jobset")[0]


def test_modules_of_experts_that_have_no_adapters_cannot_be_left_out_by_name():
    more = {**LORA, "model": "mixtral-8x7b", "lora_targets": "q,gate,up,down"}
    with pytest.raises(NoAnswerError, match="where modules are named, those of experts are among them"):
        text_of("trl", more, FSDP)
