"""Settings of configuration files that no reader knows: asked about, left out by their names, or named as unknown."""

import json
from pathlib import Path

import pytest

from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import LackingError
from gpuscale.launch.unread import UNKNOWN, concern, speaks_of
from gpuscale.presets.tools import COMMON, all_tools, load_tool, words

TITAN = """
[job]
dump_folder = "./out"
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 1
seq_len = 8192
steps = 10
[parallelism]
data_parallel_shard_degree = 8
{}
"""
NANOTRON = """
general: {project: own, run: one, seed: 1}
model:
  dtype: bfloat16
  model_config:
    {hidden_size: 1024, intermediate_size: 2816, num_attention_heads: 16, num_hidden_layers: 8, vocab_size: 32000}
optimizer: {accumulate_grad_in_fp32: true, zero_stage: 0, optimizer_factory: {name: adamW, torch_adam_is_fused: true}}
parallelism: {dp: 8, tp: 1, pp: 1}
tokens: {sequence_length: 2048, micro_batch_size: 2, batch_accumulation_per_replica: 4, train_steps: 9}
"""
NEOX = """
{
  "num-layers": 12, "hidden-size": 768, "num-attention-heads": 12, "seq-length": 2048, "max-position-embeddings": 2048,
  "pipe-parallel-size": 1, "model-parallel-size": 1, "train_micro_batch_size_per_gpu": 4, "train-iters": 1000,
  "scaled-upper-triang-masked-softmax-fusion": true, "output_layer_parallelism": "column", "fp16": {"enabled": true}
}
"""
OLMO = """
run_name: own
model: {d_model: 2048, n_heads: 16, n_layers: 16, mlp_ratio: 8, weight_tying: true, rope: true, flash_attention: true,
  attention_dropout: 0.0, max_sequence_length: 2048, vocab_size: 50280, embedding_size: 50304, eos_token_id: 50279}
optimizer: {name: adamw, learning_rate: 4.0e-4, betas: [0.9, 0.95]}
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp: {wrapping_strategy: null, precision: mixed}
speed_monitor: {window_size: 20}
"""


def job(folder: Path, text: str, name: str = "a.yaml", **given):
    """What is read of one file, beside the GPUs."""
    (folder / name).write_text(text)
    variables = {key: given.pop(key) for key in ("ignored",) if key in given}
    return read_launch([folder / name], variables, {"gpus": 8, **given})


def unknown(made) -> set[str]:
    """Texts of settings that are named as not known."""
    return {one.text for one in made.ignored if one.meaning == UNKNOWN}


# -- words


WORDS = {
    "precision": "model.quantizer.bits quantize_my_base",
    "recompute": "x.activation_ckpt",
    "tune": "my_lora_rank freeze_layers freeze-base-model",
    "": "use_triton",
    "method": "teacher_model",
    "zero": "fsdp.policy shard_groups",
    "offload": "offload_states",
    "model": "num_experts_here num_nextn_predict_layers draft_layers",
    "loss": "cross_entropy_impl",
    "seq": "sequence_packing",
    "gbs": "accum_steps batch_size_schedule",
    "attention": "flash_kernel shift_attn",
    "optimizer": "optimizer_type muon",
    "pp": "pipeline_schedule pipeline_split",
    "ep": "expert_parallel_size",
}


@pytest.mark.parametrize(
    ("setting", "option"), [(name, option) for option, names in WORDS.items() for name in names.split()]
)
def test_words_of_names_say_what_a_setting_changes(setting, option):
    found = concern(load_tool(COMMON), setting, 4)
    assert found is not None
    assert found.option == option


@pytest.mark.parametrize(
    ("setting", "option"),
    [("optimizer_name", "optimizer"), ("sharding_name", "zero"), ("data.seq_len", "seq"), ("logits_fp32", "precision"),
     ("data_parallel_size", ""), ("dataset_name", None), ("data.seed", None), ("log_level", None), ("nvme_path", None)],
)  # fmt: skip
def test_no_list_of_a_tool_hides_what_the_words_of_a_name_say(setting, option):
    found = concern(load_tool("transformers"), setting, 4)
    assert (found.option if found else None) == option


HARMLESS = """
learning_rate optim.lr optimizer.betas eval_batch_size evaluation.seq_length save_optimizer_state
checkpoint_interval checkpoint.export_dtype log_loss_every wandb.project data.dataset_name
tokenizer_path seed model.attention_dropout callbacks.offload_monitor.window_size lr_scheduler.name
vllm.tensor_parallel_size loss_scale_window initial_scale warmup_steps weight_decay
dataloader.num_workers timeout trust_remote_code max_steps resume_from_checkpoint
"""


@pytest.mark.parametrize("setting", HARMLESS.split())
def test_words_of_names_say_what_changes_nothing(setting):
    assert concern(load_tool(COMMON), setting, 4) is None


@pytest.mark.parametrize("value", [False, "false", None, "none", 0, "off", "disabled", [], "null"])
def test_what_is_off_changes_nothing(value):
    assert concern(load_tool(COMMON), "model.quantizer.bits", value) is None


def test_a_degree_of_one_splits_nothing():
    assert concern(load_tool(COMMON), "my_expert_parallel_size", 1) is None
    assert concern(load_tool(COMMON), "my_expert_parallel_size", 2) is not None


def test_a_table_is_judged_by_its_name_where_nothing_of_it_is_read():
    found = concern(load_tool(COMMON), "quantize.dense.kind", "x")
    assert found is not None
    assert found.of == "quantize.*"
    assert concern(load_tool(COMMON), "quantize.dense.kind", "x", touched={"quantize", "quantize.dense"}) is None


def test_every_word_is_one_of_some_name():
    """No alternative of a pattern is there twice under one option, and each tool stands on the words in the end."""
    assert speaks_of("Activation_Checkpointing") == "recompute"
    assert len(words().concerns) > 15
    assert all(tool.name == COMMON or tool.basis for tool in all_tools())


# -- files


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('[quantize.dense]\nkind = "int8"', "quantize.*"),
        ("[compile_cache]\ndepth = 3", "compile_cache.*"),
        ('[optimizer]\nname = "AdamW"\nmaster_weights_in_int8 = true', "optimizer.master_weights_in_int8"),
    ],
)
def test_torchtitan_asks_about_what_it_does_not_know(more, named, tmp_path):
    with pytest.raises(LackingError, match="not known here") as caught:
        job(tmp_path, TITAN.format(more), "a.toml")
    assert f"`var=ignored={named}`" in str(caught.value.hint)
    assert "a.toml:" in str(caught.value.place)
    made = job(tmp_path, TITAN.format(more), "a.toml", ignored=named)
    assert made.options["gbs"] == 8
    assert any("as given" in said.meaning for said in made.assumed)


def test_torchtitan_says_what_it_leaves_out(tmp_path):
    more = '[metrics]\nenable_wandb = true\n[float8]\nenable_fsdp_float8_all_gather = true\n[fancy]\ncolour = "blue"'
    made = job(tmp_path, TITAN.format(more), "a.toml")
    assert unknown(made) == {'fancy.colour: colour = "blue"'}
    assert any("gathered in 16 bits" in said.meaning for said in made.assumed)


@pytest.mark.parametrize("text", [NANOTRON, NEOX, OLMO], ids=["nanotron", "gpt-neox", "olmo"])
def test_what_tools_have_by_themselves_is_asked_about_under_none(text, tmp_path):
    made = job(tmp_path, text)
    assert made.options["framework"] in {"nanotron", "megatron-deepspeed", "pytorch"}
    assert not unknown(made)


@pytest.mark.parametrize(
    ("text", "before", "more"),
    [
        (NANOTRON, "parallelism: {", "parallelism: {zero_bubble_shards: 4, "),
        (NEOX, '"fp16": {', '"my_activation_offload": true, "fp16": {'),
        (OLMO, "fsdp: {", "fsdp: {shard_policy: odd, "),
    ],
    ids=["nanotron", "gpt-neox", "olmo"],
)
def test_what_tools_do_not_have_is_asked_about(text, before, more, tmp_path):
    with pytest.raises(LackingError, match="not known here"):
        job(tmp_path, text.replace(before, more))


@pytest.mark.parametrize(("word", "stage"), [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 0)])
@pytest.mark.parametrize("table", ["fsdp", "fsdp_config"])
def test_olmo_shards_by_the_table_of_either_time(table, word, stage, tmp_path):
    made = job(tmp_path, OLMO.replace("fsdp: {", f"{table}: {{sharding_strategy: {word}, "))
    assert made.layout["zero"] == stage


def test_fp8_of_nanotrons_branch_is_asked_about_with_a_precision_that_it_has(tmp_path):
    text = NANOTRON.replace("dtype: bfloat16", "dtype: float8").replace("name: adamW", "name: adam")
    with pytest.raises(LackingError, match="fp8 is not predicted") as caught:
        job(tmp_path, text)
    assert "`assume` takes `precision=bf16`" in str(caught.value.hint)
    made = read_launch([tmp_path / "a.yaml"], {}, {"precision": "bf16"})
    assert (made.options["optimizer"], made.options["gbs"]) == ("adamw", 64)


def test_gpt_neox_knows_its_stage_outside_of_the_table(tmp_path):
    with pytest.raises(LackingError, match="outside of its table") as caught:
        job(tmp_path, NEOX.replace('"fp16": {', '"zero_stage": 2, "fp16": {'))
    assert "zero=STAGE" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ("[odd]\ntensor_parallel = 2", "add `tp=2`; `var=ignored=odd.tensor_parallel` takes it to change neither"),
        ("[odd]\nshard_plan = \"wide\"\noffloader = true",
         "give `zero=STAGE` (0, 2, 3; or `var=ignored=odd.shard_plan`), `var=ignored=odd.offloader` (or"),
    ],
)  # fmt: skip
def test_the_option_that_decides_stands_before_the_way_to_wave_it_through(more, first, tmp_path):
    with pytest.raises(LackingError) as caught:
        job(tmp_path, TITAN.format(more), "a.toml")
    assert first in str(caught.value.hint)


def test_several_are_asked_about_at_once_with_all_else_that_lacks(tmp_path):
    more = "my_moe_plan: 4\nodd_offload: cpu\n"
    text = f"base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 1\n{more}"
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(LackingError) as caught:
        read_launch([tmp_path / "a.yaml"])
    hint = str(caught.value.hint)
    assert "`gpus=8`" in hint
    assert "`var=ignored=my_moe_plan,odd_offload` (or `model=NAME`, `offload=...`)" in hint
    assert "`assume`" not in hint  # nothing speaks for what they change
    made = read_launch([tmp_path / "a.yaml"], {"ignored": "my_moe_plan,odd_offload"}, {"gpus": 8})
    assert made.options["gbs"] == 8
    one = read_launch([tmp_path / "a.yaml"], {"ignored": "my_moe_plan"}, {"gpus": 8, "offload": "none"})
    assert one.options["gbs"] == 8  # an option that is given settles what its words speak of


def test_what_is_given_as_changing_nothing_is_kept_in_the_next_question(tmp_path):
    with pytest.raises(LackingError) as caught:
        job(tmp_path, TITAN.format("[quantize]\nx = 1\n[offloader]\ny = 1"), "a.toml", ignored="quantize.*")
    assert "`var=ignored=quantize.*,offloader.*`" in str(caught.value.hint)


# -- kinds that were misread


def test_ulysses_of_accelerate_splits_sequences(tmp_path):
    accelerate = {
        "distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8, "fsdp_config": {"fsdp_version": 2},
        "parallelism_config": {"parallelism_config_sp_size": 4, "parallelism_config_dp_shard_size": 2},
    }  # fmt: skip
    (tmp_path / "acc.yaml").write_text(json.dumps(accelerate))
    arguments = (
        "--model_name_or_path Qwen/Qwen2.5-7B --max_length 8192 --per_device_train_batch_size 1 --output_dir o --bf16"
    )
    (tmp_path / "run.sh").write_text(f"accelerate launch --config_file acc.yaml sft.py {arguments}\n")
    made = read_launch([tmp_path / "run.sh"])
    assert (made.layout["cp"], made.options["cp_comm"]) == (4, "a2a")


NEMO = """
trainer: {devices: 8, num_nodes: 2, accelerator: gpu, precision: bf16, gradient_clip_val: 1.0}
exp_manager: {name: own, checkpoint_callback_params: {save_top_k: 2, model_parallel_size: 4}}
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
  global_batch_size: 64
  micro_batch_size: 2
  restore_from_path: /models/llama2-7b.nemo
  megatron_amp_O2: %s
  answer_only_loss: true
  peft:
    peft_scheme: %s
    lora_tuning: {target_modules: [attention_qkv, attention_dense], adapter_dim: 16, adapter_dropout: 0.0}
    p_tuning: {virtual_tokens: 10}
  data:
    train_ds: {file_names: x, max_seq_length: 2048, packed_sequence: false, shuffle: true}
    validation_ds: {file_names: y, global_batch_size: 64, max_seq_length: 4096}
  optim: {name: distributed_fused_adam, lr: 1.0e-4}
"""


def test_finetuning_of_nemo_takes_the_model_of_its_checkpoint(tmp_path):
    (tmp_path / "a.yaml").write_text(NEMO % ("true", "null"))
    made = read_launch([tmp_path / "a.yaml"])
    assert (made.options["model"], made.options["gpus"], made.options.get("tune")) == ("llama2-7b", 16, None)
    assert (made.options["seq"], made.layout["tp"]) == (2048, 4)


@pytest.mark.parametrize(("whole", "base"), [("true", None), ("false", "fp32")])
def test_adapters_of_nemos_yaml_lie_on_weights_as_its_switch_of_precision_has_them(whole, base, tmp_path):
    (tmp_path / "a.yaml").write_text(NEMO % (whole, "lora"))
    made = read_launch([tmp_path / "a.yaml"])
    expected = {"tune": "lora", "lora_rank": 16, "lora_targets": "k,o,q,v", "base_dtype": base}
    assert {name: made.options.get(name) for name in expected} == expected


def test_fsdp_of_nemos_yaml_is_asked_about(tmp_path):
    (tmp_path / "a.yaml").write_text((NEMO % ("true", "null")).replace("  answer_only", "  fsdp: true\n  answer_only"))
    with pytest.raises(InputError, match="FSDP of PyTorch"):
        read_launch([tmp_path / "a.yaml"])


@pytest.mark.parametrize(
    ("more", "named"), [("kd_student: true\n", "kd_student"), ("my_quantizer: {bits: 4}\n", "my_quantizer.bits")]
)
def test_a_key_of_models_makes_no_configuration_a_models(more, named, tmp_path):
    text = f"base_model: Qwen/Qwen2.5-7B\nmodel_type: AutoModelForCausalLM\nmicro_batch_size: 1\n{more}"
    with pytest.raises(LackingError, match="not known here") as caught:
        job(tmp_path, text)
    assert f"ignored={named}" in str(caught.value.hint)


def test_switches_of_different_tables_do_not_stand_for_one_another(tmp_path):
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "weight_quantization": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    line = "--model_name_or_path Qwen/Qwen2.5-7B --max_seq_length 2048 --output_dir o --per_device_train_batch_size 1"
    (tmp_path / "run.sh").write_text(f"deepspeed --num_gpus 8 train.py {line} --bf16 --deepspeed ds.json\n")
    with pytest.raises(LackingError) as caught:
        read_launch([tmp_path / "run.sh"])
    assert "ignored=weight_quantization" in str(caught.value.hint)


def test_deepspeeds_optimizer_replaces_that_of_the_trainer(tmp_path):
    text = (
        "base_model: Qwen/Qwen2.5-7B\nmicro_batch_size: 1\noptimizer: adamw_bnb_8bit\n"
        "deepspeed: deepspeed_configs/zero1.json\n"
    )
    made = job(tmp_path, text)
    assert made.options["optimizer"] == "adamw"
    assert any("DeepSpeed's configuration" in said.meaning for said in made.understood)


def test_what_a_policy_of_maxtext_recomputes_is_asked_where_it_is_the_files_own(tmp_path):
    text = (
        "base_config: base.yml\nmodel_name: llama3-8b\nhardware: gpu\nper_device_batch_size: 1\n"
        "max_target_length: 4096\nici_fsdp_parallelism: 8\nremat_policy: custom\nmlpwi: offload\n"
    )
    with pytest.raises(LackingError, match="what custom recomputes"):
        job(tmp_path, text)
    assert job(tmp_path, text, recompute="full").options["framework"] == "maxtext"


@pytest.mark.parametrize(("reduced", "expected"), [("float32", None), ("bfloat16", "bf16")])
def test_torchtitan_reduces_gradients_in_the_type_that_is_stated(reduced, expected, tmp_path):
    text = TITAN.format("").replace("steps = 10", f'steps = 10\nmixed_precision_reduce = "{reduced}"')
    assert job(tmp_path, text, "a.toml").options.get("grad_dtype") == expected


def test_gpt_neox_splits_sequences_beside_its_matrices(tmp_path):
    text = NEOX.replace('"model-parallel-size": 1', '"model-parallel-size": 2')
    text = text.replace('"fp16": {', '"sequence_parallel": true, "data_types": {"grad_accum_dtype": "fp32"}, "fp16": {')
    made = job(tmp_path, text)
    assert (made.layout["sp"], made.options["grad_dtype"]) == (True, "fp32")


TUNE = """
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
optimizer: {_component_: torch.optim.AdamW, lr: 2e-5}
data_parallel_shard_dim: -1
data_parallel_replicate_dim: 2
batch_size: 2
dtype: bf16
"""


def test_copies_of_torchtune_lie_beside_shards(tmp_path):
    assert job(tmp_path, TUNE).layout["shard"] == 4


def test_copies_of_lingua_lie_beside_shards(tmp_path):
    text = (
        "distributed: {fsdp_type: full_shard, dp_shard: 4, dp_replicate: 2, tp_size: 1}\n"
        "model: {dim: 1024, n_layers: 8, n_heads: 8, vocab_size: 32000}\n"
        "data: {seq_len: 2048, batch_size: 2}\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    made = read_launch([tmp_path / "a.yaml"])
    assert (made.options["gpus"], made.layout["shard"], made.options["gbs"]) == (8, 4, 16)


def test_rewards_suggest_grpo(tmp_path):
    text = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nreward_funcs: [accuracy]\nnum_generations: 8\nbf16: true\n"
        "max_prompt_length: 512\nmax_completion_length: 1024\nper_device_train_batch_size: 8\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(LackingError, match="by which method") as caught:
        read_launch([tmp_path / "a.yaml"])
    assert "`method=grpo`" in str(caught.value.hint)
    made = job(tmp_path, text, method="grpo")
    assert (made.options["method"], made.options["seq"]) == ("grpo", 1536)


AREAL = """
allocation_mode: sglang:d4+fsdp:d4
gconfig: {n_samples: 4, max_new_tokens: 1024}
train_dataset: {batch_size: 256, max_length: 1024}
actor:
  path: Qwen/Qwen2.5-1.5B-Instruct
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer: {type: adam, lr: 1.7e-5%s}
  megatron: {recompute_modules: [core_attn], ddp: {grad_reduce_in_fp32: true}}
"""


def test_a_part_of_areal_that_does_not_run_is_not_asked_about(tmp_path):
    (tmp_path / "a.yaml").write_text(AREAL % "")
    made = read_launch([tmp_path / "a.yaml"], {}, {"precision": "bf16"})
    assert (made.options["gpus"], made.options["master_dtype"]) == (4, "none")


def test_offloading_in_areals_table_of_the_optimizer_is_asked_about(tmp_path):
    (tmp_path / "a.yaml").write_text(AREAL % ", state_offload: true")
    with pytest.raises(LackingError) as caught:
        read_launch([tmp_path / "a.yaml"])
    assert "ignored=actor.optimizer.state_offload" in str(caught.value.hint)
