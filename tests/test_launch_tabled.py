"""Tools that one reader reads by their tables, and what their files leave to their defaults."""

import pytest
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch, with_given
from gpuscale.launch.tabled import tabled_targets
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import all_tools
from gpuscale.request import JobOptions, Layout, declared

FILES = {
    "slime-fsdp": """ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --colocate \\
  --train-backend fsdp --gradient-checkpointing --hf-checkpoint /root/Qwen3-8B --rollout-batch-size 4 \\
  --n-samples-per-prompt 4 --rollout-max-response-len 1024 --global-batch-size 16 --advantage-estimator gspo \\
  --kl-loss-coef 0.00 --kl-loss-type low_var_kl --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.85
""",
    "picotron": """
distributed: {tp_size: 2, cp_size: 1, pp_size: 2, dp_size: 4, pp_engine: 1f1b}
model: {name: HuggingFaceTB/SmolLM2-360M, dtype: bfloat16, num_hidden_layers: 16, use_flash_attention: true}
training: {seq_length: 2048, micro_batch_size: 4, gradient_accumulation_steps: 8, learning_rate: 0.001}
dataset: {name: mine}
""",
    "litgpt": """
checkpoint_dir: checkpoints/meta-llama/Llama-3.1-8B
precision: bf16-true
devices: 4
num_nodes: 2
train: {global_batch_size: 64, micro_batch_size: 2, max_seq_length: 1024}
eval: {interval: 10}
""",
    "levanter": """
data: {tokenizer: meta-llama/Llama-2-7b-hf}
model: {type: llama, seq_len: 2048, hidden_dim: 2048, intermediate_dim: 5632, num_layers: 22, num_heads: 32}
trainer: {mp: "p=f32,c=bfloat16", train_batch_size: 256, per_device_parallelism: 4}
optimizer: {type: adam}
""",
    "lingua": """
grad_acc_steps: 2
distributed: {fsdp_type: full_shard, compile: true, model_dtype: bf16, tp_size: 1}
model: {dim: 2048, n_layers: 24, n_heads: 16}
data: {batch_size: 4, seq_len: 4096, tokenizer: {name: sp, path: llama2/tokenizer.model}}
""",
    "prime-rl": """
max_steps = 10
model = { name = "Qwen/Qwen3-0.6B", cp = 2, ac = { freq = 1 }, optimization_dtype = "bfloat16" }
data = { name = "mine", seq_len = 4096, batch_size = 32 }
optim = { lr = 0.00001 }
""",
    "veomni": """
model: {model_path: Qwen/Qwen3-8B}
data: {max_seq_len: 4096, train_path: mine}
train: {data_parallel_mode: fsdp2, micro_batch_size: 2, global_batch_size: 64, data_parallel_replicate_size: 2}
""",
    "automodel": """
step_scheduler: {global_batch_size: 64, local_batch_size: 4}
model: {pretrained_model_name_or_path: meta-llama/Llama-3.2-1B}
distributed: {strategy: fsdp2, tp_size: 2, activation_checkpointing: true}
packed_sequence: {packed_sequence_size: 2048}
optimizer: {_target_: torch.optim.AdamW, lr: 0.00001}
""",
    "nemo-rl": """
policy:
  model_name: Qwen/Qwen3-1.7B
  train_global_batch_size: 64
  train_micro_batch_size: 2
  max_total_sequence_length: 4096
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, activation_checkpointing: true}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 4}
  optimizer: {name: torch.optim.AdamW}
cluster: {gpus_per_node: 8, num_nodes: 2}
""",
    "nemo-rl-megatron": """
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 64
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  precision: bfloat16
  dtensor_cfg: {enabled: false, tensor_parallel_size: 2}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2}
cluster: {gpus_per_node: 8, num_nodes: 2}
""",
    "oumi": """
model: {model_name: meta-llama/Llama-3.1-8B, model_max_length: 2048, torch_dtype_str: bfloat16}
training:
  {trainer_type: TRL_SFT, per_device_train_batch_size: 2, gradient_accumulation_steps: 4,
   enable_gradient_checkpointing: true}
fsdp: {enable_fsdp: true, sharding_strategy: SHARD_GRAD_OP, cpu_offload: true}
""",
}
"""Small files of ours."""

EXPECTED = {
    "picotron": {
        "gpus": 16,
        "tp": 2,
        "pp": 2,
        "dp": 4,
        "zero": 0,
        "seq": 2048,
        "micro_batch_size": 4,
        "gbs": 128,
        "master_dtype": "none",
        "recompute": "none",
        "model": "smollm2-360m,layers=16",
    },
    "litgpt": {
        "gpus": 8,
        "zero": 3,
        "seq": 1024,
        "micro_batch_size": 2,
        "gbs": 64,
        "recompute": "full",
        "grad_dtype": "bf16",
        "master_dtype": "none",
        "moment_dtype": "bf16",
        "precision": "bf16",
    },
    "levanter": {
        "zero": 3,
        "seq": 2048,
        "micro_batch_size": 4,
        "gbs": 256,
        "recompute": "full",
        "optimizer": "adamw",
        "framework": "maxtext",
        "precision": "bf16",
        "master_dtype": None,
    },
    "lingua": {"zero": 3, "seq": 4096, "micro_batch_size": 4, "gbs": 64, "recompute": "none", "compile": "on"},
    "prime-rl": {
        "zero": 3,
        "seq": 4096,
        "micro_batch_size": 1,
        "gbs": 32,
        "cp": 2,
        "cp_comm": "p2p",
        "recompute": "full",
        "master_dtype": "none",
        "compile": "off",
        "loss": "standard",
        "attention": "fa2",
    },
    "veomni": {
        "zero": 3,
        "shard": 4,
        "seq": 4096,
        "micro_batch_size": 2,
        "gbs": 64,
        "recompute": "full",
        "precision": "bf16",
    },
    "automodel": {
        "zero": 3,
        "tp": 2,
        "seq": 2048,
        "micro_batch_size": 4,
        "gbs": 64,
        "recompute": "full",
        "master_dtype": "none",
        "optimizer": "adamw",
    },
    "slime-fsdp": {
        "gpus": 4,
        "zero": 3,
        "seq": 1024,
        "micro_batch_size": 1,
        "gbs": 16,
        "recompute": "full",
        "method": "grpo",
        "precision": "bf16",
    },
    "nemo-rl": {"gpus": 16, "tp": 2, "zero": 3, "seq": 4096, "micro_batch_size": 2, "gbs": 64, "recompute": "full"},
    "nemo-rl-megatron": {
        "gpus": 16,
        "tp": 4,
        "pp": 2,
        "zero": 1,
        "micro_batch_size": 1,
        "gbs": 64,
        "recompute": "none",
    },
    "oumi": {
        "zero": 2,
        "seq": 2048,
        "micro_batch_size": 2,
        "gbs": 64,
        "recompute": "full",
        "precision": "bf16",
        "master_dtype": "none",
        "offload": "optimizer+parameters",
        "optimizer": "adamw",
    },
}


def _file(name: str) -> str:
    return {"prime-rl": "a__toml", "slime-fsdp": "a__sh"}.get(name, "a__yaml")


@pytest.mark.parametrize("name", FILES)
def test_every_tool_by_its_table(name, tmp_path):
    given = {} if "gpus" in EXPECTED[name] else None
    made = job(tmp_path, given, **{_file(name): FILES[name]})
    assert made.target == name
    assert_has(made, **EXPECTED[name])


def test_every_table_has_a_file_here_and_states_options():
    tabled = [tool for tool in all_tools() if tool.job is not None]
    assert {tool.name for tool in tabled} == set(FILES) == {target.name for target in tabled_targets()}
    options = {*declared(JobOptions), *declared(Layout)}
    for tool in tabled:
        assert {*tool.job.options, *tool.job.fixed} <= options, tool.name
        assert tool.job.sequence and tool.job.micro and tool.job.claims, tool.name


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("picotron", "1f1b", "afab", {"schedule": "gpipe"}),
        ("picotron", "1f1b", "1f1b", {"schedule": None}),
        ("lingua", "full_shard", "no_shard", {"zero": 0}),
        ("lingua", "compile: true", "selective_activation_checkpointing: true", {"recompute": "selective:layernorm"}),
        (
            "veomni",
            "micro_batch_size: 2,",
            "enable_mixed_precision: false,",
            {"grad_dtype": "bf16", "master_dtype": "none"},
        ),
        ("veomni", "fsdp2", "ddp", {"zero": 0, "shard": None}),
        ("veomni", "micro_batch_size: 2,", "micro_batch_size: 2, enable_full_shard: false,", {"zero": 2}),
        (
            "veomni",
            "micro_batch_size: 2,",
            "micro_batch_size: 2, ulysses_parallel_size: 2,",
            {"cp": 2, "cp_comm": "a2a"},
        ),
        ("oumi", "model_max_length: 2048,", "model_max_length: 2048, enable_liger_kernel: true,", {"loss": "linear"}),
        ("oumi", "enable_fsdp: true", "enable_fsdp: false", {"zero": 0}),
        ("litgpt", "bf16-true", "bf16-mixed", {"master_dtype": None, "precision": "bf16"}),
        ("prime-rl", "ac = { freq = 1 }, ", "", {"recompute": "none"}),
        ("automodel", "lr: 0.00001", "master_weights: true", {"master_dtype": "fp32", "moment_dtype": "fp32"}),
        (
            "automodel",
            "tp_size: 2,",
            "pp_size: 2, pipeline: {pp_schedule: 1f1b, pp_microbatch_size: 2},",
            {"pp": 2, "micro_batch_size": 2, "gbs": 64, "schedule": "1f1b", "vpp": None},
        ),
        (
            "automodel",
            "tp_size: 2,",
            "pp_size: 2, pipeline: {pp_schedule: interleaved1f1b, layers_per_stage: 2},",
            {"pp": 2, "micro_batch_size": 1, "vpp": 4, "schedule": "1f1b"},
        ),
        ("automodel", "tp_size: 2,", "pp_size: 2, pipeline: {pp_schedule: interleaved1f1b},", {"vpp": 2}),
        ("automodel", "tp_size: 2,", "reshard_after_forward: false,", {"zero": 2}),
        (
            "automodel",
            "optimizer:",
            "autopipeline: {_target_: a.AutoPipeline, pp_schedule: gpipe, pp_microbatch_size: 2, round_virtual: down}\n"
            "parallelizer: {_target_: a.parallelize_model, reshard_after_forward: false}\noptimizer:",
            {"zero": 2, "micro_batch_size": 4, "pp": None, "recompute": "full"},
        ),
        (
            "automodel",
            "tp_size: 2,",
            "offload_policy: {_target_: torch.distributed.fsdp.CPUOffloadPolicy},",
            {"offload": "optimizer+parameters"},
        ),
        ("automodel", "tp_size: 2,", "enable_compile: true,", {"compile": "on"}),
        (
            "nemo-rl",
            "dtensor_cfg: {",
            "dtensor_cfg: {lora_cfg: {enabled: true, dim: 16, target_modules: [q_proj]}, ",
            {"tune": "lora", "lora_rank": 16, "lora_targets": "q"},
        ),
        (
            "automodel",
            "optimizer:",
            "loss_fn: {_target_: nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy}\noptimizer:",
            {"loss": "linear"},
        ),
        ("levanter", "per_device_parallelism: 4", "per_device_parallelism: -1", {"micro_batch_size": 32, "gbs": 256}),
    ],
)
def test_words_of_a_setting(name, old, new, expected, tmp_path):
    assert old in FILES[name]
    assert_has(job(tmp_path, **{_file(name): FILES[name].replace(old, new)}), **expected)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("oumi", "TRL_SFT", "TRL_GKD", "trl_gkd"),
        ("veomni", "micro_batch_size: 2,", "micro_batch_size: 2, train_architecture: lora,", "lora"),
        ("levanter", "p=f32,c=bfloat16", "p=f8", "unknown value"),
        ("prime-rl", "cp = 2", "lora = { rank = 8 }", "part of the model"),
    ],
)
def test_what_is_no_training_of_a_whole_model_by_itself_is_refused(name, old, new, message, tmp_path):
    assert old in FILES[name]
    with pytest.raises(InputError, match=message):
        job(tmp_path, **{_file(name): FILES[name].replace(old, new)})


def test_a_kind_of_model_that_is_not_known_is_asked_for_with_the_rest(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(FILES["levanter"].replace("type: llama", "type: mamba"))
    with pytest.raises(InputError, match=r"kind of model 'mamba' is not known here; .* GPUs"):
        read_launch([path])


def test_shards_that_a_file_states_stay_with_the_gpus_that_are_given(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(FILES["veomni"])
    made = with_given(read_launch([path], {}, {"gpus": 8}), {"gpus": 8}, {})
    assert made.layout["shard"] == 4


# -- other kinds of files beside

SFT = """model_name_or_path: Qwen/Qwen2.5-7B
max_length: 2048
per_device_train_batch_size: 2
bf16: true
num_train_epochs: 1
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, fsdp_activation_checkpointing: false}
mixed_precision: bf16
num_processes: 8
"""


def test_the_file_of_accelerate_in_a_folder_belongs_to_the_training(tmp_path):
    (tmp_path / "fsdp.yaml").write_text(ACCELERATE)
    (tmp_path / "sft.yaml").write_text(SFT + "gradient_checkpointing: true\n")
    made = read_launch([tmp_path])
    assert_has(made, gpus=8, zero=3, gbs=16, recompute="full", model="Qwen/Qwen2.5-7B")


def test_a_switch_of_fsdp_that_is_off_leaves_the_trainers_own(tmp_path):
    for more, expected in (("", "none"), ("gradient_checkpointing: true\n", "full")):
        (tmp_path / "sft.yaml").write_text(SFT + more)
        (tmp_path / "fsdp.yaml").write_text(ACCELERATE)
        made = read_launch([tmp_path / "fsdp.yaml", tmp_path / "sft.yaml"])
        assert_has(made, recompute=expected)


def test_open_instruct_loads_weights_in_bf16(tmp_path):
    text = SFT.replace("bf16: true\n", "").replace("max_length", "max_seq_length") + "with_tracking: true\n"
    made = job(tmp_path, a__yaml=text)
    assert_has(made, precision="bf16", master_dtype="none", recompute="none")


def test_verls_supervised_yaml_is_known_without_its_command(tmp_path):
    text = """
data: {train_batch_size: 256, micro_batch_size_per_gpu: 4, max_length: 1024}
model:
  {partial_pretrain: google/gemma-1.1-7b-it, fsdp_config: {model_dtype: fp32}, lora_rank: 0,
   enable_gradient_checkpointing: false}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""
    made = job(tmp_path, {}, a__yaml=text)
    assert made.target == "verl"
    assert_has(made, model="google/gemma-1.1-7b-it", gpus=8, gbs=256, micro_batch_size=4, recompute="none")


def test_finetuning_of_nemo_aligner_takes_the_batch_of_its_data(tmp_path):
    text = """
trainer: {num_nodes: 2, devices: 8, precision: bf16}
model:
  tensor_model_parallel_size: 4
  encoder_seq_length: 4096
  restore_from_path: mine.nemo
  peft: {peft_scheme: "none", lora_tuning: {adapter_dim: 32}}
  data: {train_ds: {global_batch_size: 128, micro_batch_size: 2, max_seq_length: 2048}}
  optim: {name: distributed_fused_adam}
"""
    made = job(tmp_path, {"model": "llama3-8b"}, a__yaml=text)
    assert made.target == "nemo"
    assert_has(made, gpus=16, tp=4, seq=2048, gbs=128, micro_batch_size=2)
    with pytest.raises(InputError, match="part of the model"):
        job(tmp_path, {"model": "llama3-8b"}, a__yaml=text.replace('"none"', "ptuning"))
    lora = job(tmp_path, {"model": "llama3-8b"}, a__yaml=text.replace('"none"', "lora"))
    assert_has(lora, tune="lora", lora_rank=32, lora_targets="k,q,v", base_dtype="fp32")


def test_primus_torchtitan_has_defaults_of_its_own(tmp_path):
    text = """
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides: {training: {local_batch_size: 4}}
"""
    made = job(tmp_path, a__yaml=text)
    assert_has(made, compile="on", recompute="none", seq=2048, micro_batch_size=4)


@pytest.mark.parametrize(
    ("model", "overrides", "expected"),
    [
        ("llama3_8B", "", {"master_dtype": "none", "moment_dtype": "bf16", "recompute": "full", "seq": 2048}),
        ("llama3_8B", ", weight_dtype: float32, remat_policy: minimal", {"recompute": "selective:layernorm"}),
        ("mixtral_8x7B", "", {"routing": "dropping", "master_dtype": "none"}),
        ("mixtral_8x7B", ", sparse_matmul: true, capacity_factor: -1", {"master_dtype": "none"}),
    ],
)
def test_primus_maxtext_has_defaults_of_its_own(model, overrides, expected, tmp_path):
    text = f"""
modules:
  pre_trainer:
    framework: maxtext
    config: pre_trainer.yaml
    model: {model}.yaml
    overrides: {{per_device_batch_size: 4, ici_fsdp_parallelism: 8{overrides}}}
"""
    found = job(tmp_path, a__yaml=text)
    assert_has(found, zero=3, micro_batch_size=4, precision="bf16", **expected)
    assert {"master_dtype", "routing"} & found.options.keys() == {"master_dtype", "routing"} & expected.keys()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("full", "full"), ("save_dot_except_mlp", "selective:layernorm+mlp"), ("minimal", "selective:layernorm")],
)
def test_what_maxtext_keeps_is_the_nearest_recomputation(policy, expected, tmp_path):
    text = "model_name: llama2-7b\nper_device_batch_size: 2\nmax_target_length: 4096\nici_fsdp_parallelism: 8\n"
    assert_has(job(tmp_path, a__yaml=f"{text}remat_policy: {policy}\n"), recompute=expected)


@pytest.mark.parametrize("said", ["device_mesh: [2, 4]", "data_parallel_shard_degree: 4"])
def test_a_mesh_of_llm_foundry_says_how_many_gpus_hold_the_shards(said, tmp_path):
    text = """
max_seq_len: 2048
model: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12, vocab_size: 50368}
global_train_batch_size: 64
device_train_microbatch_size: 4
fsdp_config: {sharding_strategy: FULL_SHARD, SAID, keep_low_precision_grads: true}
"""
    assert_has(job(tmp_path, a__yaml=text.replace("SAID", said)), zero=3, shard=4, grad_dtype="bf16")


@pytest.mark.parametrize(("gpus", "micro"), [(8, 6), (4, 4), (6, 8)])
def test_composer_cuts_the_batch_of_a_gpu_into_pieces_of_at_most_a_microbatch(gpus, micro, tmp_path):
    text = """
max_seq_len: 2048
model: {name: hf_causal_lm, pretrained_model_name_or_path: mosaicml/mpt-7b}
global_train_batch_size: 48
device_train_microbatch_size: 8
fsdp_config: {sharding_strategy: FULL_SHARD}
"""
    assert_has(job(tmp_path, {"gpus": gpus}, a__yaml=text), micro_batch_size=micro, gbs=48)


NEOX = """
num_layers: 32
hidden_size: 4096
num_attention_heads: 32
seq_length: 4096
pipe_parallel_size: 1
norm: rmsnorm
pos_emb: rotary
train_micro_batch_size_per_gpu: 1
bf16: {enabled: true}
"""


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ("activation: swiglu\nintermediate_size: 32768\nmlp_multiple_of: 256\n", 11008),
        ("activation: swiglu\nmlp_multiple_of: 256\n", 5632),
        ("activation: silu\nmlp_type: llama\n", 11008),
        ("activation: silu\nmlp_type: gated\nmlp_multiple_of: 512\n", 11264),
        ("activation: gelu\n", 16384),
        ("activation: gelu\nexpansion_factor: 8\n", 32768),
    ],
)
def test_the_width_of_a_gated_mlp_of_gpt_neox(more, width, tmp_path):
    assert load_model(job(tmp_path, a__yaml=NEOX + more).options["model"]).kinds[0].mlp.ffn == width


def test_bytes_have_a_vocabulary_of_their_own_whatever_lies_beside(tmp_path):
    text = FILES["lingua"].replace("name: sp", "name: bytes").replace("llama2/tokenizer.model", "Llama-3.2-3B")
    assert load_model(job(tmp_path, a__yaml=text).options["model"]).vocab == 258


@pytest.mark.parametrize(
    ("model", "suggested"),
    [("mine/Seed-9b", None), ("Qwen3-30B-A3B-merged", "qwen3-30b-a3b"), ("micro-llama-300M", None)],
)
def test_no_other_line_suggests_a_model_where_one_is_named(model, suggested, tmp_path):
    path = tmp_path / "a.yaml"
    text = FILES["veomni"].replace("Qwen/Qwen3-8B", model)
    path.write_text(f"{text}tokenizer: meta-llama/Llama-2-7b-hf\nname: llama3-8b\n")
    with pytest.raises(InputError) as caught:
        read_launch([path])
    hint = str(caught.value.hint)
    assert "model=NAME" in hint if suggested is None else f"model={suggested}" in hint


@pytest.mark.parametrize(
    "text",
    [
        "model: {name: resnet18}\ndata: {batch_size: 8}\n",
        "model: {name: Qwen/Qwen3-0.6B}\ntrain: {steps: 100, warmup: 8}\n",
    ],
)
def test_yaml_of_nobody_known_is_nobodys(text, tmp_path):
    with pytest.raises(InputError, match="of a known framework"):
        job(tmp_path, a__yaml=text)


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("lingua", "tp_size: 1", "tp_size: 2, num_nodes: 2, gpus_per_node: 8", {"gpus": 16, "tp": 2, "gbs": 64}),
        ("lingua", "tp_size: 1", "dp_shard: 1, dp_replicate: 8, tp_size: 1", {"gpus": 8, "zero": 3, "shard": None}),
        ("litgpt", "devices: 4\nnum_nodes: 2", "devices: 1", {"gpus": 1, "recompute": "none", "zero": 0}),
        ("levanter", "mp:", "replica_ici_axis_size: 2, mp:", {"zero": 3, "shard": 4}),
        ("levanter", "type: llama,", "type: llama, use_flash_attention: false,", {"attention": "eager"}),
    ],
)
def test_gpus_that_a_file_states(name, old, new, expected, tmp_path):
    """litgpt/finetune/full.py: FSDP, which recomputes, is for more than one device."""
    given = {} if "gpus" in expected else {"gpus": 8}
    assert_has(job(tmp_path, given, a__yaml=FILES[name].replace(old, new)), **expected)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("levanter", "mp:", "mesh: {axes: {context: 2}}, mp:", "sequences split over ranks"),
        ("litgpt", "eval:", "model_config: {n_expert: 8}\neval:", "experts are not read"),
    ],
)
def test_what_decides_and_is_not_read_is_asked_for_by_its_option(name, old, new, message, tmp_path):
    with pytest.raises(InputError, match=message):
        job(tmp_path, a__yaml=FILES[name].replace(old, new))


def test_models_of_litgpt_by_their_configuration(tmp_path):
    """litgpt/pretrain.py: `model_config` replaces what `model_name` names; GptNeoxMLP has 4 x hidden."""
    own = "model_config: {n_layer: 4, n_embd: 512, n_head: 8, head_size: 32, padded_vocab_size: 64, block_size: 256}\n"
    text = "model_name: pythia-14m\n" + own + FILES["litgpt"].partition("precision")[2].replace(":", "precision:", 1)
    shape = dict(part.split("=") for part in job(tmp_path, a__yaml=text).options["model"].split(","))
    assert [shape[key] for key in ("layers", "hidden", "head_dim", "ffn", "vocab")] == ["4", "512", "32", "2048", "64"]


def test_litgpt_pretrains_with_shards_over_a_node_and_finetunes_with_shards_over_all(tmp_path):
    """litgpt/pretrain.py: HYBRID_SHARD; finetune/full.py: FSDP's own FULL_SHARD."""
    train = "train: {global_batch_size: 64, micro_batch_size: 2, max_seq_length: 2048}\neval: {interval: 100}\n"
    machines = "devices: 8\nnum_nodes: 2\n"
    for name, text, shard in (("pretrain", "model_name: Llama-2-7b-hf\n", 8),
                              ("full", "checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf\n", None)):  # fmt: skip
        file = tmp_path / f"{name}.yaml"
        file.write_text(text + machines + train)
        job = read_launch([str(file)])
        assert (job.options["framework"], job.layout["zero"], job.layout.get("shard")) == ("litgpt", 3, shard)
    file.write_text(text + machines.replace("2", "0") + train)
    with pytest.raises(InputError, match="0 is not 1 or more"):
        read_launch([str(file)])
