"""Kinds of launch files that people have: folders that scripts go to, adapters of a model, first releases of models."""

import pytest
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch
from gpuscale.presets.models import load_model

# -- where a script goes

TRAIN = "deepspeed --num_gpus 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --max_seq_length 2048 --deepspeed ds.json"
SIZES = " --per_device_train_batch_size 1 --bf16 true\n"
STAGE = '{"zero_optimization": {"stage": %d}, "bf16": {"enabled": true}}'


def _repository(folder):
    for name, stage in (("", 1), ("a", 2), ("a/b", 3)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "ds.json").write_text(STAGE % stage)
    (folder / "a" / "run.sh").write_text(f"#!/bin/bash\n{TRAIN}{SIZES}")


@pytest.mark.parametrize(
    ("script", "zero"),
    [
        (f"{TRAIN}{SIZES}", 1),
        (f"cd a\n{TRAIN}{SIZES}", 2),
        (f"cd a/b && {TRAIN}{SIZES}", 3),
        (f"cd a\ncd b\n{TRAIN}{SIZES}", 3),
        (f"cd a/b; cd ..\n{TRAIN}{SIZES}", 2),
        (f"(cd a/b)\n{TRAIN}{SIZES}", 1),
        (f"pushd a/b\npopd\n{TRAIN}{SIZES}", 1),
        (f"cd $HOME/elsewhere\n{TRAIN}{SIZES}", 1),
        (f"cd /tmp\n{TRAIN}{SIZES}", 1),
        ("cd a\nbash run.sh\n", 2),
        ("cd a\nsource ./run.sh\n", 2),
    ],
)
def test_relative_names_follow_where_a_script_goes(script, zero, tmp_path):
    _repository(tmp_path)
    path = tmp_path / "start.sh"
    path.write_text(f"#!/bin/bash\n{script}")
    assert_has(read_launch([path]), zero=zero, gpus=8)


def test_a_script_that_leaves_its_files_does_not_find_them(tmp_path):
    _repository(tmp_path)
    (tmp_path / "start.sh").write_text(f"cd ..\n{TRAIN}{SIZES}")
    with pytest.raises(InputError, match="is not here"):
        read_launch([tmp_path / "start.sh"])


# -- batches of DeepSpeed's JSON, which say the GPUs

OF_BATCHES = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}"""


@pytest.mark.parametrize(
    ("more", "given", "gpus"), [("", {}, 8), ("--num_gpus 8", {}, 8), ("", {"gpus": 8}, None), ("", {"gpus": 4}, 0),
                                ("--num_gpus 4", {}, 0)],
)  # fmt: skip
def test_all_three_sizes_of_a_batch_say_the_gpus_where_nothing_else_does(more, given, gpus, tmp_path):
    (tmp_path / "ds.json").write_text(OF_BATCHES)
    (tmp_path / "run.sh").write_text(TRAIN.replace("--num_gpus 8", more) + "\n")
    if gpus == 0:
        with pytest.raises(InputError, match="a batch of 64 is not 2 x 4 microbatches x 4 replicas"):
            read_launch([tmp_path / "run.sh"], {}, given)
    else:
        made = read_launch([tmp_path / "run.sh"], {}, given)
        assert (made.options.get("gpus"), made.options["gbs"]) == (gpus, 64)


# -- Python scripts that give a model adapters

SCRIPT = """
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import LoraConfig
held = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", quantization_config=held)
config = LoraConfig(r=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05)
model.add_adapter(config)
args = TrainingArguments(output_dir="x", per_device_train_batch_size=2, bf16=True)
Trainer(model=model, args=args, train_dataset=data).train()
"""


def test_adapters_that_a_script_adds_to_a_model(tmp_path):
    given = {"gpus": 2, "seq": 2048}
    adapters = {"lora_rank": 16, "lora_targets": "q,v", "lora_dropout": True}
    assert_has(job(tmp_path, given, a__py=SCRIPT), tune="qlora", base_dtype="nf4-single", **adapters)
    named = SCRIPT.replace("quantization_config=held", "").replace("(config)", "(adapter_config=config)")
    assert_has(job(tmp_path, given, a__py=named), tune="lora", **adapters)
    assert_has(job(tmp_path, given, a__py=named.replace("model.add_adapter(adapter_config=config)", "")), tune=None)


# -- first releases of models


@pytest.mark.parametrize(
    ("name", "known", "parameters"),
    [
        ("allenai/OLMo-7B-hf", "olmo-7b", 6_888_095_744),
        ("allenai/OLMo-7B-Instruct-hf", "olmo-7b", 6_888_095_744),
        ("allenai/OLMo-1B-0724-hf", "olmo-1b", 1_176_764_416),
        ("allenai/OLMo-2-1124-7B", "olmo2-7b", 7_298_617_344),
    ],
)
def test_olmo_is_not_its_second_release(name, known, parameters, tmp_path):
    made = job(tmp_path, a__yaml={"model_name_or_path": name, "per_device_train_batch_size": 1, "max_length": 2048})
    model = load_model(made.options["model"])
    assert (model.name, model.published_params) == (known, parameters)


# -- reinforcement learning: the trainer's part

PRIME = """seq_len = 16384
[model]
name = "Qwen/Qwen3-30B-A3B"
[deployment]
type = "multi_node"
num_train_nodes = 2
num_infer_nodes = 4
[trainer.model]
attn = "flash_attention_3"
ep = 8
[trainer.model.ac]
freq = 1
[trainer.optim]
type = "muon"
[orchestrator]
batch_size = 512
[inference.parallel]
tp = 8
"""


def test_the_trainer_of_prime_rl(tmp_path):
    made = job(tmp_path, {}, a__toml=PRIME)
    assert_has(made, gpus=16, seq=16384, gbs=512, micro_batch_size=1, ep=8, tp=None, recompute="full", optimizer="muon")
    assert any("rollout, rewards and orchestrator are not" in said.meaning for said in made.assumed)
    one = PRIME.replace('type = "multi_node"\nnum_train_nodes = 2', "num_train_gpus = 4")
    assert_has(job(tmp_path, {}, a__toml=one.replace("ep = 8", "ep = 4")), gpus=4, ep=4)


AREAL = """
allocation_mode: %s
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor:
  path: Qwen/Qwen3-30B-A3B
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer: {type: adam, lr: 1.0e-5}
  ppo_n_minibatches: 2
ref: {path: Qwen/Qwen3-30B-A3B}
train_dataset: {batch_size: 256, max_length: 1024}
"""


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sglang:d4p1t1+d8p1t1", {"gpus": 8, "framework": "accelerate", "zero": 3, "tp": 1, "master_dtype": "none"}),
        ("sglang.d4+fsdp:d4t2c2", {"gpus": 16, "tp": 2, "cp": 2, "cp_comm": "a2a", "zero": 3}),
        ("vllm:d4+megatron:d2p2t2e4", {"gpus": 8, "framework": "megatron-lm", "pp": 2, "tp": 2, "ep": 4, "etp": 1}),
        ("sglang:d4+d8e4", {"gpus": 8, "framework": "megatron-lm", "ep": 4, "master_dtype": None}),
        ("sglang:d4+megatron:(attn:d1p4t2c2|ffn:d1p4t1e4)", {"gpus": 16, "pp": 4, "tp": 2, "cp": 2, "ep": 4}),
    ],
)
def test_the_actor_of_areal(mode, expected, tmp_path):
    made = job(tmp_path, {}, a__yaml=AREAL % mode)
    assert_has(made, seq=2048, gbs=512, recompute="full", **expected)
    each = 512 // (expected["gpus"] // expected.get("tp", 1) // expected.get("pp", 1) // expected.get("cp", 1))
    assert each % made.layout["micro_batch_size"] == 0
    assert made.layout["micro_batch_size"] * 2048 <= 10240
    assert any("rollout, rewards, critic" in said.meaning for said in made.assumed)


def test_ways_of_areal_that_are_not_known_are_refused(tmp_path):
    for mode in ("sglang:d4+x3", "sglang:d4+fsdp[a]:d4+fsdp[c]:d4", "sglang:d4"):
        with pytest.raises(InputError, match="how the actor is split"):
            job(tmp_path, {}, a__yaml=AREAL % mode)


# -- GPT-NeoX: what it has where nothing is said

NEOX = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "seq_length": 2048, "train_iters": 10,
        "train_micro_batch_size_per_gpu": 4, "vocab_file": "20B_tokenizer.json"}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"train_impl": "kto"}, {"method": "kto"}),
        ({"zero_optimization": {"stage": 3, "cpu_offload_params": True, "mics_shard_size": 4}},
         {"offload": "parameters", "shard": 4}),
        ({"moe_num_experts": 4, "moe_type": "deepspeed"}, {"routing": "dropping"}),
        ({"pipe_parallel_size": -1, "model_parallel_size": 0, "context_parallel_size": -2},
         {"pp": 1, "tp": 1, "cp": 1}),
        ({"bf16": {"enabled": True}}, {"zero": 1}),  # DeepSpeed's BF16_Optimizer
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}, {"zero": 0, "grad_dtype": "bf16"}),
        ({"fp16": {"enabled": True}}, {"zero": 0}),
    ],
)  # fmt: skip
def test_what_gpt_neox_says_of_methods_shards_and_experts(more, expected, tmp_path):
    assert_has(job(tmp_path, a__yaml=NEOX | more), **expected)


def test_every_second_layer_of_gpt_neox_has_experts(tmp_path):
    """neox_args.py: expert_interval 2."""
    for interval, count in (({}, 6), ({"expert_interval": 1}, 12)):
        made = load_model(job(tmp_path, a__yaml=NEOX | {"moe_num_experts": 4} | interval).options["model"])
        assert sum(made.kinds[one].moe is not None for one in made.pattern) == count


def test_defaults_of_gpt_neox_are_said(tmp_path):
    made = job(tmp_path, a__yaml=NEOX)
    model = load_model(made.options["model"])
    assert (model.tied_embeddings, model.learned_positions, model.vocab, model.kinds[0].mlp.gated) == (
        True, 2048, 50304, False)  # fmt: skip
    assert_has(made, tp=1, pp=1, recompute="none", gbs=32)
    said = {one.text for one in made.assumed if one.meaning.endswith("GPT-NeoX's default")}
    assert {"activation: gelu", "pos_emb: learned", "norm: layernorm", "model_parallel_size: 1"} <= said


@pytest.mark.parametrize("on", [True, False])
def test_overlap_that_the_profile_of_gpt_neox_lacks_is_said(on, tmp_path):
    made = job(tmp_path, a__yaml=NEOX | {"zero_optimization": {"stage": 1, "overlap_comm": on}})
    assert any("after the last microbatch" in one.meaning for one in made.assumed) == on


@pytest.mark.parametrize(
    ("more", "vocabulary"),
    [
        ({"vocab_file": "Meta-Llama-3-8B/tokenizer.json", "tokenizer_type": "HFTokenizer"}, 128256),
        ({"vocab_file": "gpt2-vocab.json"}, 50304), ({"vocab_file": None}, 50304),
        ({"model_parallel_size": 8}, 51200), ({"model_parallel_size": -8}, 50304),
        ({"vocab_file": "mine.json", "tokenizer_type": "HFTokenizer"}, None),
    ],
)  # fmt: skip
def test_the_vocabulary_of_gpt_neox_is_that_of_its_tokenizer(more, vocabulary, tmp_path):
    if vocabulary is None:
        with pytest.raises(InputError, match="how many tokens the tokenizer has"):
            job(tmp_path, a__yaml=NEOX | more)
    else:
        assert load_model(job(tmp_path, a__yaml=NEOX | more).options["model"]).vocab == vocabulary


@pytest.mark.parametrize(
    ("kinds", "attention"),
    [("flash", "fa2"), ("global", None), ('flash", "global', None)],
    ids=["flash", "global", "both"],
)
def test_flash_attention_of_gpt_neox_is_no_attention_with_scores_in_memory(kinds, attention, tmp_path):
    made = job(tmp_path, a__yaml=NEOX | {"attention_config": f'[[["{kinds}"], 6]]'})
    assert made.options.get("attention") == attention
    assert any("scores in memory" in one.meaning for one in made.assumed) == (attention is None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"attention_config": '[[["mamba"], 12]]'}, "layers of kind mamba"),
        ({"attention_config": '[[["global", "local"], 6]]'}, "layers of kind local"),
        ({"num_unique_layers": 2}, "share their weights"),
        ({"soft_prompt_tuning": "{enabled: true, num_tokens: 10}"}, "soft prompt"),
        ({"pipe_parallel_size": 1e23}, r"a.yaml:8: pipe_parallel_size: \d{23} is out of range\nhint: give 1 to 1,048"),
        ({"model_parallel_size": 2**20 + 1}, "a.yaml:8: model_parallel_size: 1048577 is out of range"),
    ],
)
def test_what_is_not_modelled_of_gpt_neox_is_refused(more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        job(tmp_path, a__yaml=NEOX | more)
