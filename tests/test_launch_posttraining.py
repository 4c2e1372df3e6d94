"""LLaMA-Factory v1, OpenRLHF, verl, slime, torchtune, fms-fsdp; experts of llm-foundry and meshes of MaxText."""

import pytest
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError
from gpuscale.files import kind_of
from gpuscale.launch.shapes import same_shape
from gpuscale.launch.subject import estimate_launch
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import load_tool

ROLLOUT = "rollout, rewards, critic and reference model are not"


def says_actor_alone(made) -> bool:
    return any(ROLLOUT in said.meaning for said in made.assumed)


# -- LLaMA-Factory v1

V1 = {
    "model": "Qwen/Qwen3-4B", "model_class": "llm", "dist_config": "{name: fsdp2}", "train_dataset": "data.yaml",
    "micro_batch_size": 1, "global_batch_size": 16, "cutoff_len": 2048,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"zero": 3, "precision": "bf16", "recompute": "full", "gbs": 16, "seq": 2048, "attention": "sdpa"}),
        ({"dist_config": "{name: fsdp2, reshard_after_forward: false}"}, {"zero": 2, "grad_dtype": "fp32"}),
        ({"dist_config": "{name: fsdp2, offload_params: true}"}, {"offload": "optimizer+parameters"}),
        ({"dist_config": "{name: fsdp2, cp_size: 2, cp_mode: ulysses}"}, {"cp": 2, "cp_comm": "a2a"}),
        ({"dist_config": "{name: fsdp2, cp_size: 2, cp_mode: ring}"}, {"cp": 2, "cp_comm": "p2p"}),
        (
            {"dist_config": "{name: deepspeed, config_file: examples/deepspeed/ds_z3_offload_config.json}"},
            {"zero": 3, "offload": "optimizer+parameters", "framework": "deepspeed"},
        ),
        ({"bf16": "false"}, {"precision": "fp32"}),
        ({"optim_config": "{name: muon}"}, {"optimizer": "muon"}),
        ({"enable_activation_checkpointing": "false"}, {"recompute": "none"}),
        ({"global_batch_size": "null"}, {"gbs": 8}),
    ],
)
def test_llama_factory_v1(more, expected, tmp_path):
    made = job(tmp_path, a__yaml=V1 | more)
    assert made.target == "llama-factory-v1"
    assert_has(made, **expected)


def test_adapters_of_llama_factory_v1(tmp_path):
    quantised = {"quant_config": "{name: bnb, quantization_bit: 4}"}
    made = job(tmp_path, a__yaml=V1 | {"peft_config": "{name: lora, r: 16}"} | quantised)
    assert_has(made, tune="qlora", base_dtype="nf4", lora_rank=16, lora_targets="all", lora_dropout=True)
    with pytest.raises(InputError, match="freeze is not modelled"):
        job(tmp_path, a__yaml=V1 | {"peft_config": "{name: freeze}"})


# -- OpenRLHF

SFT = "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft"
OLD = "--pretrain meta-llama/Meta-Llama-3-8B --max_len 2048 --train_batch_size 256 --micro_train_batch_size 2"
NEW = "--model.model_name_or_path meta-llama/Meta-Llama-3-8B --train.batch_size 256 --train.micro_batch_size 2"


@pytest.mark.parametrize("names", [OLD, NEW])
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "--zero_stage 2 --bf16 --gradient_checkpointing",
            {"zero": 2, "recompute": "full", "gbs": 256, "attention": "fa2"},
        ),
        ("--ds.zero_stage 3 --ds.adam_offload", {"zero": 3, "offload": "optimizer", "precision": "bf16"}),
        ("--adam_offload", {"offload": "optimizer", "zero": 2, "recompute": "none", "overlap": "none"}),
        ("--ds.ring_attn_size 4", {"cp": 4, "cp_comm": "p2p"}),
        ("--ds_tensor_parallel_size 2", {"tp": 2}),
        ("--backend fsdp2", {"zero": 3, "framework": "pytorch"}),
        ("--attn_implementation flash_attention_3", {"attention": "fa3"}),
    ],
)
def test_openrlhf_trains(names, more, expected, tmp_path):
    made = job(tmp_path, {}, run__sh=f"{SFT} {names} {more}\n")
    assert made.target == "openrlhf"
    assert_has(made, gpus=8, seq=2048, micro_batch_size=2, **expected)


def test_openrlhf_predicts_the_actor_alone(tmp_path):
    line = (
        "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-7B --actor_num_nodes 2"
        " --actor_num_gpus_per_node 8 --train_batch_size 128 --micro_train_batch_size 4 --prompt_max_len 1024"
        " --generate_max_len 3072 --zero_stage 3 --bf16 --gradient_checkpointing --vllm_num_engines 4"
    )
    made = job(tmp_path, {}, run__sh=f"{line}\n")
    assert says_actor_alone(made)
    assert_has(made, gpus=16, seq=4096, gbs=128, micro_batch_size=4, zero=3)


# -- verl

ACTOR = "actor_rollout_ref.actor"
PPO = (
    "python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=8"
    " actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.train_batch_size=512"
    " data.max_prompt_length=1024 data.max_response_length=3072"
)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
            {"zero": 3, "gbs": 256, "micro_batch_size": 2, "recompute": "full"},
        ),
        (f"{ACTOR}.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8", {"gbs": 512, "grad_dtype": "fp32"}),
        (f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=16384", {"micro_batch_size": 4}),
        (f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=13000", {"micro_batch_size": 2}),
        (f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation=True", {"grad_reduce": None}),
        (f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation=False", {"grad_reduce": "each"}),
        (f"{ACTOR}.ulysses_sequence_parallel_size=2", {"cp": 2, "cp_comm": "a2a"}),
        (f"{ACTOR}.fsdp_config.fsdp_size=8", {"shard": 8}),
        (f"{ACTOR}.fsdp_config.param_offload=True {ACTOR}.fsdp_config.optimizer_offload=True", {"offload": None}),
        (f"{ACTOR}.fsdp_config.offload_policy=True", {"offload": "optimizer+parameters"}),
        ("actor_rollout_ref.model.enable_gradient_checkpointing=False", {"recompute": "none"}),
    ],
)
def test_verl_under_fsdp(more, expected, tmp_path):
    made = job(tmp_path, {}, run__sh=f"{PPO} {more}\n")
    assert made.target == "verl"
    assert says_actor_alone(made)
    assert_has(made, gpus=16, seq=4096, precision="bf16", attention="fa2", **expected)


@pytest.mark.parametrize(
    "folder", ["", "--config-path config ", "--config-path ../config ", "--config-path=verl/trainer/config "]
)
def test_the_yaml_that_hydra_takes_for_verl_lies_beside_its_program(folder, tmp_path):
    (tmp_path / "verl/trainer/config").mkdir(parents=True)
    (tmp_path / "verl/trainer/config/mine.yaml").write_text(
        "data: {train_batch_size: 64, max_prompt_length: 256, max_response_length: 512}\n"
        "actor_rollout_ref: {actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 2}, rollout: {n: 4}}\n"
    )
    line = f"python3 -m verl.trainer.main_ppo {folder}--config-name mine actor_rollout_ref.model.path=Qwen/Qwen3-1.7B"
    made = job(tmp_path, {}, run__sh=f"{line} trainer.n_gpus_per_node=8\n")
    assert_has(made, gpus=8, seq=768, micro_batch_size=2, gbs=256)
    with pytest.raises(InputError, match=r"other\.yaml may say the seq, and is not here.*other\.yaml may say the gbs"):
        job(tmp_path, {}, run__sh=f"{line.replace('mine', 'other')} trainer.n_gpus_per_node=8\n")


def test_verl_on_megatron_core(tmp_path):
    table = f"{ACTOR}.megatron"
    more = (
        f"--config-name=ppo_megatron_trainer.yaml {table}.tensor_model_parallel_size=4 {table}.context_parallel_size=2"
        f" {ACTOR}.ppo_micro_batch_size_per_gpu=1 +{table}.override_transformer_config.recompute_granularity=full"
        f" +{table}.override_transformer_config.recompute_method=uniform {table}.optimizer_offload=%s"
    )
    core = f"True +{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload=True"
    core += f" +{ACTOR}.optim.override_optimizer_config.optimizer_offload_fraction=1"
    assert_has(job(tmp_path, {}, run__sh=f"{PPO} {more % core}\n"), offload="optimizer")
    made = job(tmp_path, {}, run__sh=f"{PPO} {more % True}\n")
    assert_has(
        made, framework="megatron-lm", tp=4, cp=2, sp=True, zero=None, recompute="full", attention="fa2", offload=None
    )
    assert says_actor_alone(made)


def test_a_layout_of_an_actor_that_cannot_be_is_refused_by_its_rule(tmp_path):
    table = f"{ACTOR}.megatron"
    script = tmp_path / "run.sh"
    experts = PPO.replace("Qwen2.5-7B", "Qwen3-235B-A22B").replace("nnodes=2", "nnodes=8")
    degrees = "tensor_model_parallel_size=4 pipeline_model_parallel_size=16 expert_model_parallel_size=4"
    script.write_text(f"{experts} " + " ".join(f"{table}.{one}" for one in degrees.split()) + "\n")
    with pytest.raises(InputError, match="EP x ETP must divide"):
        estimate_launch([script])


def test_supervised_training_of_verl(tmp_path):
    line = (
        "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-7B"
        " data.train_batch_size=64 data.micro_batch_size_per_gpu=2 data.max_length=2048"
    )
    made = job(tmp_path, {}, run__sh=f"{line}\n")
    assert not says_actor_alone(made)
    assert_has(made, gpus=8, gbs=64, micro_batch_size=2, seq=2048, zero=3, recompute="full")


# -- slime

SLIME = (
    "python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --num-layers 48 --hidden-size 2048"
    " --num-attention-heads 32 --group-query-attention --num-query-groups 4 --kv-channels 128 --ffn-hidden-size 6144"
    " --swiglu --vocab-size 151936 --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768"
    " --disable-bias-linear --tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8"
    " --expert-tensor-parallel-size 1"
    " --rollout-batch-size 32 --global-batch-size 256 --micro-batch-size 1"
)


def test_slime(tmp_path):
    made = job(tmp_path, {}, run__sh=f"ray stop\nray job submit --address=http://127.0.0.1:8265 -- {SLIME}\n")
    assert says_actor_alone(made)
    assert_has(made, gpus=16, tp=4, ep=8, etp=1, precision="bf16", seq=4096, zero=None, gbs=256)
    longer = job(tmp_path, {}, run__sh=f"{SLIME} --seq-length 8192\n")
    assert_has(longer, seq=8192)


# -- torchtune

TUNE = "tune run --nproc_per_node 8 full_finetune_distributed --config"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            f"{TUNE} llama3_1/8B_full",
            {"model": "llama3.1-8b", "zero": 3, "recompute": "full", "micro_batch_size": 2, "gbs": 16},
        ),
        (f"{TUNE} llama3_1/8B_full batch_size=4", {"micro_batch_size": 4, "gbs": 32}),
        (f"{TUNE} llama3_1/70B_full", {"model": "llama3.1-70b", "offload": "optimizer+parameters"}),
        (f"{TUNE} llama3_2/1B_full", {"model": "llama3.2-1b", "recompute": "none", "gbs": 256, "loss": "chunked"}),
        (f"{TUNE} qwen2_5/7B_full fsdp_reshard_after_forward=False", {"model": "qwen2.5-7b", "zero": 2}),
        (
            f"{TUNE} llama3/8B_lora model.lora_rank=64 batch_size=4",
            {"tune": "lora", "lora_rank": 64, "lora_targets": "down,gate,o,q,up,v", "gbs": 256, "recompute": "none"},
        ),
        (f"{TUNE} llama3_1/8B_lora_dpo", {"method": "dpo", "tune": "lora", "micro_batch_size": 8, "loss": "standard"}),
        (f"{TUNE} llama3_1/405B_qlora", {"tune": "qlora", "base_dtype": "nf4", "lora_targets": "down,gate,o,q,up,v"}),
    ],
)
def test_torchtune(line, expected, tmp_path):
    made = job(tmp_path, {"seq": 4096}, run__sh=f"{line}\n")
    assert made.target == "torchtune"
    held = {"precision": "bf16", "master_dtype": "none", "grad_dtype": "bf16", "moment_dtype": "bf16"}
    assert_has(made, gpus=8, **held, **expected)


def test_every_recipe_of_torchtune_has_a_model_that_is_known_or_is_asked_for(tmp_path):
    known = 0
    for name in load_tool("torchtune").configs:
        try:
            made = job(tmp_path, {"seq": 2048}, run__sh=f"{TUNE} {name}\n")
        except InputError as error:
            assert "is not known here" in error.message, (name, error)
            continue
        load_model(made.options["model"])
        known += 1
    assert known > 110


@pytest.mark.parametrize("config", ["llama3/8B_mine", "/tmp/mine.yaml"])
def test_a_recipe_of_torchtune_that_is_not_here_is_asked_for(config, tmp_path):
    with pytest.raises(InputError, match=r"is not here|part of the model|is not known here"):
        job(tmp_path, {"seq": 2048}, run__sh=f"{TUNE} {config}\n")


# -- fms-fsdp

FMS = "torchrun --nnodes=2 --nproc_per_node=8 main_training_llama.py --model_variant=llama2_7b --use_dummy_dataset=True"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "",
            {"zero": 3, "shard": 8, "gbs": 32, "seq": 4096, "recompute": "none", "compile": "on", "precision": "bf16"},
        ),
        ("--sharding_strategy=fsdp --fsdp_activation_checkpointing=True", {"shard": None, "recompute": "full"}),
        ("--sharding_strategy=ddp --batch_size=4", {"zero": 0, "gbs": 64}),
    ],
)
def test_fms_fsdp(more, expected, tmp_path):
    made = job(tmp_path, {}, run__sh=f"{FMS} {more}\n")
    assert_has(made, model="llama2-7b", gpus=16, **expected)


# -- experts of llm-foundry

MPT = """max_seq_len: 2048
model:
  name: mpt_causal_lm
  d_model: 2048
  n_heads: 16
  n_layers: 24
  expansion_ratio: 4
  max_seq_len: 2048
  vocab_size: 50368
  ffn_config: {%s}
  attn_config: {%s}
global_train_batch_size: 256
device_train_microbatch_size: 4
precision: amp_bf16
optimizer: {name: decoupled_adamw}
fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: false}
"""
EXPERTS = "moe_num_experts: 8, moe_top_k: 2, moe_world_size: 1"


@pytest.mark.parametrize(
    ("kind", "gated", "routing"),
    [
        ("ffn_type: mb_dmoe", False, "dropless"),
        ("ffn_type: mb_moe", False, "dropping"),
        ("ffn_type: torch_dmoe, mlp_type: glu", True, "dropless"),
        ("ffn_type: mb_dmoe, mlp_type: glu, ffn_hidden_size: 1024", True, "dropless"),
    ],
)
def test_every_kind_of_experts_of_llm_foundry(kind, gated, routing, tmp_path):
    made = job(tmp_path, a__yaml=MPT % (f"{kind}, {EXPERTS}", "attn_impl: flash"))
    layer = load_model(made.options["model"]).kinds[0]
    assert (layer.moe.experts, layer.moe.top_k, layer.moe.gated) == (8, 2, gated)
    assert layer.moe.ffn == (1024 if "ffn_hidden_size" in kind else 8192)
    assert_has(made, routing=routing, attention="fa2")


@pytest.mark.parametrize(
    ("attention", "heads"),
    [
        ("attn_type: multiquery_attention", 1),
        ("attn_type: grouped_query_attention, kv_n_heads: 4", 4),
        ("rope: true", 16),
    ],
)
def test_attention_of_llm_foundry(attention, heads, tmp_path):
    made = job(tmp_path, a__yaml=MPT % ("ffn_type: mptglu", attention))
    assert load_model(made.options["model"]).attentions[0].kv_heads == heads


@pytest.mark.parametrize(
    ("ffn", "message"),
    [
        ("ffn_type: mb_dmoe, moe_num_experts: 8", "experts without `moe_top_k`"),
        ("ffn_type: my_moe", "is not known here"),
    ],
)
def test_experts_that_are_stated_in_part_are_asked_about(ffn, message, tmp_path):
    with pytest.raises(InputError, match=message):
        job(tmp_path, a__yaml=MPT % (ffn, "attn_impl: flash"))


# -- MaxText

MAXTEXT = {"model_name": "llama3.1-70b", "per_device_batch_size": 1, "max_target_length": 4096, "hardware": "gpu"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"zero": 3, "shard": 8}),
        ({"ici_fsdp_parallelism": 8}, {"zero": 3, "shard": 8}),
        ({"ici_tensor_parallelism": 8}, {"zero": 0, "tp": 8}),
        ({"ici_fsdp_parallelism": 8, "dcn_fsdp_parallelism": 4, "dcn_data_parallelism": 1}, {"zero": 3, "shard": None}),
    ],
)
def test_meshes_of_maxtext_fill_what_is_left_inside_nodes_and_between_them(more, expected, tmp_path):
    assert_has(job(tmp_path, {"gpus": 32}, a__yaml=MAXTEXT | more), **expected)


def test_sizes_of_maxtext_over_its_base_are_the_model_where_none_is_named(tmp_path):
    """base.yml: 16 heads of 128, an MLP of 7168, 32,000 tokens and sequences of 2,048."""
    own = {"base_config": "base.yml", "base_emb_dim": 1024, "base_num_decoder_layers": 4, "per_device_batch_size": 2}
    found = job(tmp_path, {"gpus": 8}, a__yml=own)
    shape = dict(part.split("=") for part in found.options["model"].split(","))
    assert [shape[key] for key in ("layers", "hidden", "heads", "ffn", "vocab")] == ["4", "1024", "16", "7168", "32000"]
    assert (found.options["seq"], found.options["gbs"], kind_of(tmp_path / "a.yml")) == (2048, 16, "launch")
    with pytest.raises(InputError, match="scaled by 4"):
        job(tmp_path, {"gpus": 8}, a__yml=own | {"global_parameter_scale": 4})


MODEL = """# a model of MaxText, alone
base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 8
base_mlp_dim: 14336
base_num_decoder_layers: 32
head_dim: 128
mlp_activations: ["silu","linear"]
vocab_size: 128256
logits_via_embedding: False
decoder_block: "llama2"
"""


def test_a_model_file_of_maxtext_is_a_model(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text(MODEL)
    assert same_shape(load_model(str(path)), load_model("llama3-8b"))
    path.write_text(MODEL.replace("llama2", "mixtral") + "num_experts: 8\nnum_experts_per_tok: 2\n")
    assert load_model(str(path)).kinds[0].moe.experts == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL.replace("llama2", "gemma3"), "layers of gemma3"),
        ("a: 1\n", "not a model"),
        (MODEL + "attention_type: mla\n", "mla"),
    ],
)
def test_what_is_no_model_of_maxtext_that_is_known_is_refused(text, message, tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_model(str(path))
