"""What launch files lack is asked for in one message, and what it asks for is enough."""

import json
import re
from pathlib import Path

import pytest

from gpuscale import InputError, estimate_launch, read_launch
from gpuscale.architecture.parameters import model_parameters
from gpuscale.launch.check import check
from gpuscale.launch.settings import LackingError
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.models import load_model

MEGATRON = (
    "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096"
    " --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1"
    " --global-batch-size 128 --tokenizer-type Llama2Tokenizer"
)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> list[Path]:
        Path("run.sh").write_text(text)
        return [Path("run.sh")]

    return write


def asked(error: InputError) -> dict[str, str]:
    """Return what a message asks for, with its values, variables after `var=`."""
    return dict(re.findall(r"(?<!or )`((?:var=)?[^`=]+)=([^`]*)`", f"{error.hint}"))


def test_a_missing_file_of_the_sharding_is_asked_for_with_all_else(script):
    files = script(
        "deepspeed train.py --deepspeed ds_zero3.json --model_name_or_path nobody/knows-me --bf16 True"
        " --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --num_train_epochs 1 --unheard_attn x"
    )
    with pytest.raises(InputError) as error:
        read_launch(files)
    found = asked(error.value)
    assert found.keys() == {"model", "zero", "seq", "gpus", "var=ignored"}
    assert found["zero"] == "3"  # by the file's name
    assert "ds_zero3.json" not in error.value.message
    given = {"model": "llama3-8b", "zero": 3, "seq": 2048, "gpus": 16, "attention": "fa2"}
    job = read_launch(files, {}, given)
    assert job.options["gbs"] == 2 * 4 * 16


@pytest.mark.parametrize(
    ("name", "stage"),
    [("zero_stage1_config.json", "1"), ("ds_z2_config.json", "2"), ("deepspeed_zero3_offload.json", "STAGE"),
     ("stage3_no_offloading.conf", "3"), ("llama_deepspeed.json", "STAGE")],
)  # fmt: skip
def test_the_stage_of_a_missing_file_is_suggested_by_its_name(script, name, stage):
    files = script(f"torchrun --nproc_per_node 8 train.py --deepspeed {name} --model_name_or_path llama2-7b"
                   " --bf16 True --per_device_train_batch_size 2 --max_seq_length 2048")  # fmt: skip
    with pytest.raises(InputError) as error:
        read_launch(files)
    found = re.findall(r"`zero=(\w+)`", str(error.value.hint))
    assert found[-1] == stage


def test_a_precision_that_hangs_on_a_branch_is_asked_for(script):
    files = script(
        "PR=$1\nif [ $PR = fp16 ]; then o=' --fp16'\nelif [ $PR = bf16 ]; then o=' --bf16'\n"
        f"elif [ $PR = fp8 ]; then o=' --bf16 --fp8-format hybrid'\nfi\n{MEGATRON} $o"
    )
    with pytest.raises(InputError, match="variable 1"):
        read_launch(files)
    assert read_launch(files, {"1": "bf16"}).options["precision"] == "bf16"
    assert read_launch(files, {"1": "fp8"}).options["precision"].startswith("fp8")


@pytest.mark.parametrize("option", ["--gradient_checkpointing $X", "--bf16 $X", "--optim $X", "--lora_enable $X"])
def test_a_setting_of_the_trainer_that_hangs_on_a_variable_is_asked_for(script, option):
    files = script("torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf"
                   f" --per_device_train_batch_size 2 --max_seq_length 2048 --num_train_epochs 1 {option}")  # fmt: skip
    with pytest.raises(InputError, match="variable X"):
        read_launch(files)


MAXTEXT = "python3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=4 ici_fsdp_parallelism=8"
TITAN = "torchrun --nproc_per_node 8 -m torchtitan.train --model.name llama3 --model.flavor 8B --training.seq_len 4096"
SWIFT = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2-7B --max_length 4096"
VERL_SFT = (
    "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer"
    " model.partial_pretrain=Qwen/Qwen2.5-7B data.max_length=4096"
)
SHARDED = "if [ $1 = 13b ]; then A=\"$A --fsdp 'full_shard auto_wrap'\"; fi\n"


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        (f"T=$1\n{MAXTEXT} dtype=${{T}}", "float32", {"precision": "fp32"}),
        (f"T=$1\n{MAXTEXT} dtype=${{T}}", "bfloat16", {"precision": "bf16"}),
        (f"{MAXTEXT} weight_dtype=$1", "bfloat16", {"master_dtype": "none"}),
        (f"{MAXTEXT} grad_dtype=$1", "bfloat16", {"grad_dtype": "bf16"}),
        (f"{MAXTEXT} quantization=$1", "fp8", {"precision": "fp8"}),
        (f"{TITAN} --training.local_batch_size 2 --activation_checkpoint.mode $1", "full", {"recompute": "full"}),
        (f"{TITAN} --training.local_batch_size 2 --training.mixed_precision_param $1", "float32",
         {"precision": "fp32"}),
        (f"{SWIFT} --fsdp $1", "full_shard", {"zero": 3}),
        (f"{VERL_SFT} model.fsdp_config.model_dtype=$1", "bf16", {"master_dtype": "none"}),
        (f"{VERL_SFT} model.strategy=$1", "fsdp2", {"zero": 3}),
        (f"A='--bf16 True'\n{SHARDED}{{HF}} $A", "13b", {"zero": 3}),
        (f"A='--bf16 True'\n{SHARDED}{{HF}} $A", "7b", {"zero": 0}),
    ],
)  # fmt: skip
def test_a_word_that_decides_is_asked_for_where_it_is_open(script, text, value, expected):
    files, given = script(text.replace("{HF}", HF)), {"model": "llama2-7b", "gpus": 8}
    with pytest.raises(InputError, match="the variable 1") as error:
        read_launch(files, {}, given)
    assert "var=1" in asked(error.value)
    job = read_launch(files, {"1": value}, given)
    assert {name: {**job.options, **job.layout}.get(name) for name in expected} == expected


def test_what_an_expression_is_compared_with_is_no_value_of_its_variables(script):
    files = script(f"rest=$(( 32 % $1 ))\nif [ $rest != 0 ]; then exit 1; fi\n{MEGATRON} --bf16"
                   " --pipeline-model-parallel-size $1")  # fmt: skip
    with pytest.raises(InputError) as error:
        read_launch(files)
    assert "var=1=1" in str(error.value.hint)


@pytest.mark.parametrize(
    "command",
    ["torchrun --nproc_per_node 8 train.py --job.config_file confs/llama.toml",
     "composer scripts/train/train.py confs/7b.yaml precision=amp_bf16",
     "FORCE_TORCHRUN=1 llamafactory-cli train confs/sft.yaml deepspeed=null",
     "python deepy.py train.py confs/1-4B.yml"],
)  # fmt: skip
def test_a_configuration_that_is_not_here_is_named(script, command):
    files = script(command)
    name = re.search(r"confs/\S+", command)[0]
    with pytest.raises(InputError, match=f"{name}, which is not here") as error:
        read_launch(files)
    assert name in str(error.value.hint)


def test_a_configuration_that_is_given_too_is_read(script):
    files = script("composer scripts/train/train.py confs/7b.yaml precision=amp_bf16")
    Path("7b.yaml").write_text("max_seq_len: 2048\n")
    with pytest.raises(InputError) as error:
        read_launch([*files, "7b.yaml"])
    assert "not here" not in error.value.message


# --- names of releases and forks


HF = "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True" \
     " --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_seq_length 2048"  # fmt: skip


def test_a_stage_given_for_a_missing_file_is_that_of_deepspeed(script):
    job = read_launch(script(f"{HF} --deepspeed ds.json"), {}, {"zero": 3})
    assert (job.options["framework"], job.layout["zero"]) == ("deepspeed", 3)
    assert not any("DDP" in said.meaning for said in job.assumed)


def test_a_stage_given_for_a_missing_file_of_accelerate_is_fsdp_unless_it_says_otherwise(script):
    run = "accelerate launch --config_file {} --num_processes 8 train.py" + HF.partition("train.py")[2]
    job = read_launch(script(run.format("fsdp.yaml")), {}, {"zero": 2})
    assert (job.options["framework"], job.layout["zero"]) == ("accelerate", 2)
    job = read_launch(script(run.format("deepspeed.yaml")), {}, {"zero": 2})
    assert (job.options["framework"], job.layout["zero"]) == ("deepspeed", 2)


@pytest.mark.parametrize("switch", ["--grad_checkpoint True", "--use_gradient_checkpointing True"])
def test_scripts_around_the_trainer_call_recomputation_otherwise(script, switch):
    assert read_launch(script(f"{HF} {switch}")).layout["recompute"] == "full"
    assert read_launch(script(HF)).layout["recompute"] == "none"


def test_a_backbone_is_a_tower_where_the_language_model_has_a_switch_of_its_own(script):
    job = read_launch(script(f"{HF} --freeze_llm False --freeze_backbone True"))
    assert job.options["gbs"] == 64
    for frozen in ("--freeze_backbone True", "--freeze_llm True --freeze_backbone False"):
        with pytest.raises(InputError, match="not trained"):
            read_launch(script(f"{HF} {frozen}"))


PPO = "ray job submit -- python3 {} --actor_num_nodes 1 --actor_num_gpus_per_node 4 --pretrain llama2-7b" \
      " --prompt_max_len 1024 --generate_max_len 1024 --zero_stage 2 --bf16 --flash_attn {}"  # fmt: skip


def test_the_microbatch_of_openrlhf_is_that_of_its_trainer(script):
    job = read_launch(script(PPO.format("-m openrlhf.cli.train_ppo_ray", "")))
    assert (job.layout["micro_batch_size"], job.options["gbs"]) == (1, 128)
    sft = "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain meta-llama/Llama-2-7b-hf --max_len 2048"
    assert read_launch(script(sft)).layout["micro_batch_size"] == 8


def test_scripts_of_openrlhfs_examples_are_its_own(script):
    job = read_launch(script(PPO.format("examples/train_ppo_ray.py", "--micro_train_batch_size 4")))
    assert (job.target, job.layout["micro_batch_size"], job.options["attention"]) == ("openrlhf", 4, "fa2")


def test_ms_swift_2_has_other_names(script):
    job = read_launch(script(
        "NPROC_PER_NODE=4 swift sft --model_id_or_path Qwen/Qwen2-7B --sft_type full --batch_size 4 --dtype bf16"
        " --gradient_accumulation_steps 8 --max_length 4096 --deepspeed default-zero3"
    ))  # fmt: skip
    assert (job.layout["micro_batch_size"], job.layout["zero"], job.options["gbs"]) == (4, 3, 4 * 8 * 4)
    lora = "NPROC_PER_NODE=4 swift sft --model_id_or_path Qwen/Qwen2-7B --sft_type lora --max_length 2048"
    assert read_launch(script(f"{lora} --lora_rank 64 --quantization_bit 4")).options["base_dtype"] == "nf4"
    other = script(f"{lora.replace('sft_type lora', 'sft_type ia3')} --lora_rank 8 --target_modules all-linear")
    with pytest.raises(InputError, match="only a part") as caught:
        read_launch(other)
    assert asked(caught.value)["tune"] == "lora"
    assert not isinstance(caught.value, LackingError)  # no option states what it trains
    assert read_launch(other, {}, {"tune": "lora"}).options["lora_rank"] == 8


def test_a_shape_of_gpt2_may_be_overridden(script):
    job = read_launch(script(
        "torchrun --nproc_per_node 8 run_clm.py --model_type gpt2 --tokenizer_name gpt2 --fp16 --block_size 1024"
        " --config_overrides n_embd=1024,n_layer=24,n_head=16,gradient_checkpointing=true,use_cache=False"
        " --per_device_train_batch_size 4"
    ))  # fmt: skip
    assert job.options["model"] == "gpt2-medium"
    assert job.layout["recompute"] == "full"


def test_gpt2_is_known_by_its_names_on_the_hub(script):
    job = read_launch(script(HF.replace("meta-llama/Llama-2-7b-hf", "openai-community/gpt2-xl")))
    assert model_parameters(load_model(job.options["model"])).total == 1_557_611_200


def test_key_value_heads_of_megatron_deepspeed(script):
    job = read_launch(script(f"{MEGATRON} --fp16 --num-key-value-heads 8 --deepspeed --zero-stage 1"))
    assert "kv_heads=8" in job.options["model"]


def test_a_shape_that_the_checkpoint_says_is_asked_for(script):
    files = script(f"{MEGATRON} --bf16 --use-checkpoint-args --load ck")
    with pytest.raises(InputError, match="checkpoint says"):
        read_launch(files)
    assert read_launch(files, {}, {"model": "llama2-70b"}).options["gbs"] == 128


def test_open_instructs_starter_multiplies_processes_by_its_nodes(script):
    run = "accelerate launch --num_processes 8 train.py" + HF.partition("train.py")[2]
    files = script(f"python mason.py --cluster here --num_nodes 4 --gpus 8 -- {run}")
    assert read_launch(files).options["gpus"] == 32


def test_nodes_that_grid_engine_gives_are_counted(script):
    run = MEGATRON.replace(
        "torchrun --nnodes 1 --nproc_per_node 8", "mpirun -np $N -x CUDA_DEVICE_MAX_CONNECTIONS=1 python"
    )
    job = read_launch(script(f'#!/bin/bash\n#$ -l rt_AF=4\n[[ "$SGE_RESOURCE_TYPE" == "rt_AF" ]] && E=8 || E=4\n'
                             f"N=$((NHOSTS * E))\n{run} --bf16"))  # fmt: skip
    assert job.options["gpus"] == 32
    assert job.environment["CUDA_DEVICE_MAX_CONNECTIONS"].value == "1"


def test_settings_like_axolotls_in_a_command_are_not_axolotls(script):
    job = read_launch(script("torchrun --nproc_per_node 8 train.py --base-model llama2-7b --seq-length 2048"
                             " --micro-batch-size 2 --global-batch-size 64 --bf16"), {}, {"zero": 0})  # fmt: skip
    assert "master_dtype" not in job.options  # axolotl holds weights in bf16
    assert (job.options["seq"], job.options["gbs"]) == (2048, 64)


def test_a_name_that_goes_on_is_no_model_of_its_beginning(script):
    with pytest.raises(InputError) as error:
        read_launch(script(HF.replace("meta-llama/Llama-2-7b-hf", "me/DeepSeek-R1-Distill-Foo-14B")))
    assert asked(error.value).get("model") in {None, "NAME"}


VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.max_prompt_length=1024"
    " data.max_response_length=3072 data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64"
    " actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.nnodes=2"
)


def test_tokens_of_a_microbatch_of_verl_are_those_of_all_gpus_that_split_sequences(script):
    dynamic = " actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192"
    assert read_launch(script(VERL + dynamic)).layout["micro_batch_size"] == 2
    split = dynamic + " actor_rollout_ref.actor.ulysses_sequence_parallel_size=4"
    job = read_launch(script(VERL + split))
    assert (job.layout["cp"], job.layout["micro_batch_size"], job.options["gbs"]) == (4, 8, 512)
    assert job.options["grad_reduce"] == "each"


def test_programs_for_files_start_nothing(script):
    job = read_launch(
        script(f"sed -i -e 's/a/b/' pretrain_gpt.py\ncp {MEGATRON.split()[5]} x.py --a --b\n{MEGATRON} --bf16")
    )
    assert job.options["gbs"] == 128


def test_what_a_script_checks_and_nobody_gives_is_taken_for_given(script):
    text = (
        'while [[ $# -gt 0 ]]; do case $1 in --m) M="$2"; shift 2;; *) exit 1;; esac; done\n[[ -z "$M" ]] && exit 1\n'
    )
    job = read_launch(script(f"M=''\n{text}{MEGATRON} --bf16"))
    assert job.options["gbs"] == 128
    assert any(one.line == 3 and "taken for given" in one.meaning for one in job.assumed)
    job = read_launch(script(f"M=''\n{text}{MEGATRON} --bf16"), {"@": "--m x"})
    assert not any("taken for given" in one.meaning for one in job.assumed)


def test_a_file_whose_path_is_asked_for_is_not_asked_for_beside_it(script):
    text = f'[ "x$ROOT" = x ] && exit 1\nsource $ROOT/src/own.sh\n. ./other.sh\n{MEGATRON} --bf16'
    with pytest.raises(LackingError, match="ends here before any command") as caught:
        read_launch(script(text))
    assert asked(caught.value).keys() == {"var=ROOT", "launch_files"}
    assert "`launch_files=other.sh`" in caught.value.hint and "own.sh" not in caught.value.hint


def test_xtuners_configuration_is_named_where_it_is_not_here(script):
    with pytest.raises(InputError, match=r"confs/a\.py, which is not here"):
        read_launch(script("NPROC_PER_NODE=8 xtuner train confs/a.py --deepspeed deepspeed_zero2"))


def test_folders_of_modelscope_name_their_models(script):
    job = read_launch(script(HF.replace("meta-llama/Llama-2-7b-hf", "/data/Qwen/Qwen2___5-7B-Instruct")))
    assert job.options["model"] == "qwen2.5-7b"


NEMO_1 = "python /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py"
NEMO_YAML = """\
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  global_batch_size: 256
  tensor_model_parallel_size: 2
  encoder_seq_length: 2048
  max_position_embeddings: 2048
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  optim: {name: distributed_fused_adam}
  tokenizer: {library: megatron, type: GPT2BPETokenizer}
"""


def test_hydras_configuration_is_found_or_named(script, tmp_path):
    path = script(f"{NEMO_1} --config-path=conf --config-name=small model.micro_batch_size=2")
    with pytest.raises(InputError, match=r"the job is configured in conf/small\.yaml, which is not here"):
        read_launch(path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/small.yaml").write_text(NEMO_YAML)
    job = read_launch(path)
    assert job.options["gpus"] == 16
    assert job.layout["tp"] == 2
    assert job.layout["micro_batch_size"] == 2
    with pytest.raises(InputError, match=r"conf/megatron_gpt_config\.yaml, which is not here"):
        read_launch(script(f"torchrun --nproc_per_node 8 {NEMO_1.split()[1]} model.tensor_model_parallel_size=2"))


@pytest.mark.parametrize("generation", ["--DDP-impl local", "--use-mcore-models"])
def test_a_distributed_optimizer_is_one_in_each_generation(script, generation):
    shape = (
        "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
    )
    job = read_launch(script(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {shape} --tensor-model-parallel-size 2 --sequence-parallel --bf16"
        f" --micro-batch-size 2 --global-batch-size 64 --vocab-size 50257 --use-distributed-optimizer {generation}"
    ))  # fmt: skip
    own = load_framework(job.options["framework"]).runtime.zero_stage
    assert job.layout.get("zero", own) == 1


def test_torchtunes_configuration_is_named_where_it_is_not_here(script):
    with pytest.raises(InputError, match=r"the job is configured in mine\.yaml, which is not here"):
        read_launch(script("tune run --nproc_per_node 3 full_finetune_distributed --config mine.yaml epochs=1"))


def test_all_missing_configurations_are_named_at_once(script):
    line = "accelerate launch --config_file conf/fsdp.yaml src/train.py conf/full_dpo.yaml"
    with pytest.raises(InputError, match=r"conf/full_dpo\.yaml and conf/fsdp\.yaml, which are not here"):
        read_launch(script(f"CUDA_VISIBLE_DEVICES=1,3 {line}"))


def test_visible_devices_are_the_gpus_of_a_launcher_that_takes_all(script):
    command = HF[HF.index("train.py") :]
    for options, gpus in (("", 3), ("--num_gpus 2 ", 2)):
        path = script(f"CUDA_VISIBLE_DEVICES=0,2,3 deepspeed {options}{command} --deepspeed z.json")
        assert read_launch(path, given={"zero": 2}).options["gpus"] == gpus


SLIME = r"""
ray job submit \
  --runtime-env-json="{\"env_vars\": {\"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\", \"A\": \"$LINKS\"}}" \
  -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --tensor-model-parallel-size 2 \
  --sequence-parallel --global-batch-size 64 --rollout-batch-size 8 --rollout-max-response-len 2048 \
  --use-dynamic-batch-size --max-tokens-per-gpu 8192
"""


def test_slimes_sequences_are_as_long_as_its_responses(script):
    job = read_launch(script(SLIME), given={"model": "qwen3-4b"})
    assert (job.options["seq"], job.layout["micro_batch_size"]) == (2048, 4)
    longer = SLIME.replace("--rollout-max", "--seq-length 4096 --rollout-max")
    job = read_launch(script(longer), given={"model": "qwen3-4b"})
    assert (job.options["seq"], job.layout["micro_batch_size"]) == (4096, 2)
    small = SLIME.replace("--global-batch-size 64", "--global-batch-size 8")  # 2 sequences of each of 4 ranks
    assert read_launch(script(small), given={"model": "qwen3-4b"}).layout["micro_batch_size"] == 2


def test_variables_of_rays_jobs_are_seen(script):
    for text, warned in ((SLIME, False), (SLIME.replace("CUDA_DEVICE_MAX_CONNECTIONS", "OTHER"), True)):
        found = check(None, launch_files=script(text), model="qwen3-4b").findings
        assert ("cuda_connections" in {one.rule for one in found}) == warned


@pytest.mark.parametrize(
    ("batch", "micro"), [("data.micro_batch_size=16", 2), ("data.micro_batch_size_per_gpu=16", 16), ("", 4)]
)
def test_verls_first_releases_state_microbatches_of_all_ranks(script, batch, micro):
    job = read_launch(script(
        "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-7B"
        f" data.train_batch_size=256 data.max_length=1024 {batch}"
    ))  # fmt: skip
    assert job.layout["micro_batch_size"] == micro


def test_mosaicmls_runs_name_their_gpus_and_configuration(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: mine\nimage: pytorch:latest\ngpu_num: 16\ncluster: r1\n"
        "command: |\n  cd scripts\n  composer train/train.py train/yamls/mine.yaml max_duration=10ba\n"
    )
    with pytest.raises(InputError, match=r"train/yamls/mine\.yaml, which is not here"):
        read_launch([path])
    (tmp_path / "train/yamls").mkdir(parents=True)
    (tmp_path / "train/yamls/mine.yaml").write_text(
        "model: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12, vocab_size: 50368}\nmax_seq_len: 2048\n"
        "optimizer: {name: decoupled_adamw}\nglobal_train_batch_size: 256\ndevice_train_microbatch_size: 8\n"
        "precision: amp_bf16\nfsdp_config: {sharding_strategy: FULL_SHARD}\n"
    )
    assert read_launch([path]).options["gpus"] == 16


def test_tiled_layers_are_said_and_not_asked_about(script):
    line = "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen3-4B --train_type full --max_length 2048 --deepspeed zero3"
    job = read_launch(script(f"{line} --use_tiled_mlp true --tiled_mlp_num_shards 4"))
    assert any("tiled" in one.meaning for one in job.assumed)


def test_rewards_are_no_matter_of_openrlhfs_actor(script):
    job = read_launch(script(
        "ray job submit -- python3 examples/train_ppo_ray.py --actor_num_nodes 1 --actor_num_gpus_per_node 4"
        " --pretrain meta-llama/Llama-2-7b-hf --reward_model_path /models/reward.pt --zero_stage 2 --bf16"
        " --train_batch_size 64 --micro_train_batch_size 2 --prompt_max_len 1024 --generate_max_len 1024"
    ))  # fmt: skip
    assert (job.options["gpus"], job.layout["micro_batch_size"]) == (4, 2)


def test_a_part_of_the_model_is_refused_before_more_is_asked(script):
    line = "deepspeed --include localhost:0,1 run.py --deepspeed ds_zero2.json --model_name_or_path mine/model"
    with pytest.raises(InputError, match="use_lora is not modelled"):
        read_launch(script(f"{line} --train_type use_lora --bf16 true --per_device_train_batch_size 2"))


@pytest.mark.parametrize(
    ("more", "gpus"),
    [({}, 8), ({"gradient_accumulation_steps": 4}, 4), ({"gradient_accumulation_steps": "auto"}, None),
     ({"train_batch_size": 65}, None), ({"sequence_parallel_size": 2}, 16),
     ({"tensor_parallel": {"autotp_size": 2}}, None)],
)  # fmt: skip
def test_all_three_sizes_of_deepspeeds_batch_make_the_gpus(monkeypatch, tmp_path, more, gpus):
    monkeypatch.chdir(tmp_path)
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}} | more  # fmt: skip
    Path("ds.json").write_text(json.dumps(config))
    if gpus is None:
        with pytest.raises(InputError, match="GPUs"):
            read_launch(["ds.json"], {}, {"model": "llama3-8b", "seq": 4096})
    else:
        job = read_launch(["ds.json"], {}, {"model": "llama3-8b", "seq": 4096})
        assert (job.options["gpus"], job.options["gbs"]) == (gpus, 64)


TRL = "model_name_or_path: Qwen/Qwen2.5-7B\ndataset_kwargs: {}\nmax_length: 2048\nper_device_train_batch_size: 1\n"


@pytest.mark.parametrize(
    ("recipe", "config", "precision"),
    [
        ("", {}, "bf16"),  # TRL's default
        ("", {"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, "bf16"),
        ("", {"bf16": {"enabled": False}}, "`precision=fp32` .*or bf16"),
        ("", {"bf16": {"enabled": False}, "fp16": {"enabled": True}}, "`precision=fp16` .*or bf16"),
        ("bf16: true\n", {"bf16": {"enabled": False}}, "`precision=bf16` .*or fp32"),
        ("fp16: true\n", {"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "fp16"),
        ("bf16: false\n", {"bf16": {"enabled": False}}, "fp32"),
        ("bf16: false\n", {"bf16": {"enabled": True}}, "`precision=fp32` .*or bf16"),
        ("bf16: false\n", {"bf16": {"enabled": "auto"}}, "fp32"),
    ],
)
def test_a_precision_at_which_transformers_stops_is_asked_for(monkeypatch, tmp_path, recipe, config, precision):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(TRL + recipe)
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, **config}))
    files = ["recipe.yaml", "ds.json"]
    if precision in {"bf16", "fp16", "fp32"}:
        assert read_launch(files, {}, {"gpus": 8}).options["precision"] == precision
        return
    with pytest.raises(InputError, match="at which transformers stops") as error:
        read_launch(files, {}, {"gpus": 8})
    assert re.search(precision, error.value.hint)
    assert (
        read_launch(files, {"*": "suggested"}, {"gpus": 8}).options["precision"]
        == precision.partition("`precision=")[2][:4]
    )


OWN_BATCH = """\
model: {name: meta-llama/Llama-2-7b-hf}
training: {batch_size_per_gpu: 2, grad_accum: 4, effective_batch_size: 64, seq_len: 2048, bf16: true}
"""


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ("compute: {instance_type: ml.p4d.24xlarge, instance_count: 2}", "16"),
        ("hardware: {instance: a3-megagpu-8g, nodes: 4}", "32"),
        ("resources: {vm_size: Standard_NC48ads_A100_v4}", "2"),
        ("infra: {machine_type: a2-highgpu-4g}", "4"),
        ("cloud: {instance_type: gpu_2x_h100_sxm5}", "2"),
        ("resources: {accelerators: 'A100-80GB:4'}", "4"),
        ("hardware: {gpu_type: 4x H100}", "4"),
        ("hardware: {gpu_type: H100-80g, nodes: 3}", "24"),  # most nodes have eight
        ("compute: {instance_type: g5.2xlarge}", "1"),
        ("gpu_count: 6", "6"),
    ],
)
def test_gpus_are_suggested_by_the_machines_that_are_named(monkeypatch, tmp_path, more, gpus):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN_BATCH.replace(", effective_batch_size: 64", "") + more)
    with pytest.raises(InputError) as error:
        read_launch(["own.yaml"])
    asked_gpus = re.search(r"`gpus=(\d+)`", error.value.hint)
    assert asked_gpus[1] == gpus


@pytest.mark.parametrize(
    ("line", "zero"), [("1 node of 8 H100s with DeepSpeed ZeRO-3", "3"), ("8 GPUs", None), ("8 GPUs, no ZeRO-0", None)]
)
def test_shards_are_suggested_by_a_line_that_says_them_of_gpus(monkeypatch, tmp_path, line, zero):
    monkeypatch.chdir(tmp_path)
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nbf16: true\nmax_length: 4096\nper_device_train_batch_size: 2\n"
    Path("sft.yaml").write_text(f"# For {line}\n{text}lr_scheduler_type: cosine\ntorch_dtype: bfloat16\n")
    with pytest.raises(LackingError) as error:
        read_launch(["sft.yaml"])
    assert asked(error.value).get("zero") == zero
    assert read_launch(["sft.yaml"], {"*": "suggested"}).layout["zero"] == int(zero or 0)


def test_gpus_are_suggested_by_a_whole_batch_beside_its_parts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN_BATCH)
    with pytest.raises(InputError) as error:
        read_launch(["own.yaml"])
    assert asked(error.value) == {"gpus": "8", "zero": "0"}
    Path("own.yaml").write_text(OWN_BATCH.replace("64", "63"))  # no number of GPUs makes it
    with pytest.raises(InputError, match="GPUs"):
        read_launch(["own.yaml"])


@pytest.mark.parametrize(
    ("text", "expected", "made"),
    [
        (
            "model: llama3-8b\nn_gpu: 8\nseq: 4096\nbs: 2\nga: 8\nzero: 2\n",
            {"precision": "bf16", "gbs": "128"},
            {"gpus": 8, "seq": 4096, "gbs": 128, "zero": 2, "micro_batch_size": 2},
        ),
        (
            "model_id: mistral-7b\nhardware: {num_gpus: 8, num_nodes: 2}\n"
            "train: {bs: 1, ga: 16, ctx: 2048, sharding: fsdp, dtype: bf16}\n",
            {"zero": "3", "gbs": "256"},
            {"gpus": 16, "gbs": 256, "zero": 3, "micro_batch_size": 1},
        ),
        (
            "model: {name: llama2-7b}\nbatch: {micro: 2, global: 64}\n"
            "run: {ngpu: 16, ctx: 4096, amp: bf16, strategy: ddp}",
            {"zero": "0"},
            {"gpus": 16, "gbs": 64, "seq": 4096, "micro_batch_size": 2},
        ),
        (
            "train_config: {base_model: llama3-8b, max_seq: 8192, mbs: 1, gbs: 128, mixed_precision: bf16,\n"
            "  parallelism: {tensor: 2, pipeline: 2, data: 4}}\n",
            {"zero": "0"},
            {"gpus": 16, "tp": 2, "pp": 2, "gbs": 128, "seq": 8192},
        ),
        (
            "model: llama2-7b\nworld_size: 16\nnodes: 2\nseq: 2048\n"
            "per_gpu_bs: 1\naccum: 2\nbf16: true\nds_zero: stage2\n",
            {},
            {"gpus": 16, "gbs": 32, "zero": 2},
        ),
        (
            "model: llama2-7b\nnum_gpus: 16\nnodes: 2\nseq: 2048\nper_gpu_bs: 1\nbf16: true\nzero: 3\n",
            {"gpus": "16"},
            {"gpus": 16, "gbs": 16, "zero": 3},
        ),
        (
            "model: llama2-7b\nlora: {r: 8}\nnum_gpus: 1\nseq: 2048\nper_gpu_bs: 1\nbf16: true\n",
            {"lora_targets": "q,v"},
            {"gpus": 1, "gbs": 1, "tune": "lora"},
        ),
        (
            "model: {path: Qwen/Qwen3-8B}\nparallel: {fsdp_size: 8, data_parallel_mode: fsdp2}\n"
            "policy: {max_total_sequence_length: 2560, dtype: bf16}\ntrain: {num_gpus: 8, per_gpu_bs: 1}\n",
            {"seq": "2560", "zero": "3"},
            {"gpus": 8, "gbs": 8, "seq": 2560, "zero": 3},
        ),
    ],
)
def test_ordinary_words_of_own_schemas_are_read_and_the_rest_is_asked_at_once(
    monkeypatch, tmp_path, text, expected, made
):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(text)
    if expected:
        with pytest.raises(InputError) as error:
            read_launch(["own.yaml"])
        hint = re.sub(r"^add `[^`]*`[^;]*; ", "", error.value.hint)
        assert {name: value.partition("`")[0] for name, value in asked(InputError("", hint=hint)).items()} == expected
    job = read_launch(["own.yaml"], {"*": "suggested"})
    assert {name: {**job.options, **job.layout}.get(name) for name in made} == made


RANK = "lora: {r: 8, target_modules: [q_proj]}\n"
TABLED = """\
model: {name: Qwen/Qwen2.5-7B}
training: {per_device_train_batch_size: 1, max_length: 1024%s}
%s"""


@pytest.mark.parametrize(
    ("training", "more", "expected", "made"),
    [
        ("", "", {"precision": "bf16", "gpus": "8"}, {"precision": "bf16"}),  # the program may say it itself
        (", bf16: true", f"quant: 4bit\n{RANK}", {"gpus": "8"}, {"base_dtype": "nf4-single"}),
        (", bf16: true", f"quantization: int8\n{RANK}", {"gpus": "8"}, {"base_dtype": "int8"}),
        (", bf16: true", "dpo: {beta: 0.1}\n", {"method": "dpo", "gpus": "8"}, {"method": "dpo"}),
        (", bf16: true", "method: dpo\ndpo: {beta: 0.1}\n", {"gpus": "8"}, {"method": "dpo"}),
        (", bf16: true", "deepspeed: {config_path: conf/zero2.json}\n", {"zero": "2", "gpus": "8"}, {"zero": 2}),
        (
            ", bf16: true, effective_batch_size: 32", "slurm: {num_nodes: 1, gpus_per_node: 4}\n", {"gpus": "4"},
            {"gbs": 32, "micro_batch_size": 1},
        ),
    ],
)  # fmt: skip
def test_tables_of_own_programs_are_read_and_what_they_lack_is_asked_at_once(
    monkeypatch, tmp_path, training, more, expected, made
):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(TABLED % (training, more))
    with pytest.raises(InputError) as error:
        read_launch(["run.yaml"])
    hint = re.sub(r"^add `[^`]*`[^;]*; ", "", error.value.hint)
    assert asked(InputError("", hint=hint)) == expected
    job = read_launch(["run.yaml"], {"*": "suggested"})
    assert {name: {**job.options, **job.layout}.get(name) for name in made} == made


def test_a_base_model_alone_is_not_axolotls(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(
        "base_model: llama3.1-8b\nlora_rank: 16\ntarget_modules: [q_proj, v_proj]\nmax_seq_len: 2048\n"
    )
    with pytest.raises(InputError) as error:
        read_launch(["run.yaml"])
    assert asked(error.value).keys() == {"precision", "gpus", "zero", "gbs", "micro_batch_size"}
    job = read_launch(["run.yaml"], {"*": "suggested"})
    assert (job.options["tune"], job.options["lora_rank"]) == ("lora", 16)


FLAT = "model_name_or_path: llama2-7b\nper_device_train_batch_size: 1\nmax_length: 1024\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{FLAT}lora_rank: 8\nlora_alpha: 16\n", {"lora_targets": "q,v", "precision": "bf16", "gpus": "8"}),
        (f"{FLAT}lora_rank: 8\nlora_target_modules: [q_proj]\nbf16: true\n", {"gpus": "8"}),
        ("model: llama2-7b\nfine_tune_type: lora\nlora_parameters: {rank: 8, target_modules: [q_proj]}\nbf16: true\n"
         "max_seq_length: 512\nper_gpu_bs: 1\nnum_gpus: 1\n", {}),
        ("model: llama2-7b\nfinetune_strategy: qlora\nlora_r: 8\nlora_target_modules: [q_proj]\nbf16: true\n"
         "max_len: 512\nper_gpu_bs: 1\nnum_gpus: 1\n", {}),
        ("teacher_model: big-1\nbase_model: llama2-7b\nbatch_size: 2\ngrad_accum: 8\nmax_length: 512\nbf16: true\n"
         "# on 4x4090\n", {"method": "sft", "gpus": "4", "zero": "0", "gbs": "64"}),
    ],
)  # fmt: skip
def test_flat_documents_of_own_programs_are_asked_for_what_they_lack(monkeypatch, tmp_path, text, expected):
    monkeypatch.chdir(tmp_path)
    Path("sft.yaml").write_text(text)
    if expected:
        with pytest.raises(InputError) as error:
            read_launch(["sft.yaml"])
        hint = re.sub(r"^add `[^`]*`[^;]*; ", "", error.value.hint)
        assert asked(InputError("", hint=hint)) == expected
    job = read_launch(["sft.yaml"], {"*": "suggested"})
    assert job.options.get("tune", "full") == ("full" if "teacher" in text else "qlora" if "qlora" in text else "lora")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_that_deepspeeds_file_leaves_to_arguments_that_are_not_here_is_asked_for(
    monkeypatch, tmp_path, precision
):
    monkeypatch.chdir(tmp_path)
    config = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 8, precision: {"enabled": "auto"}}
    Path("ds.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="in which precision it trains") as error:
        read_launch(["ds.json"], {}, {"model": "gpt2", "seq": 1024, "gpus": 8})
    assert "`precision=bf16` (usual)" in error.value.hint
    Path("run.sh").write_text("deepspeed --num_gpus 8 train.py --model_name_or_path gpt2 --output_dir o"
                              " --block_size 1024 --per_device_train_batch_size 8 --deepspeed ds.json\n")  # fmt: skip
    with pytest.raises(InputError, match="in which precision it trains") as error:
        read_launch(["run.sh"])
    assert "`precision=fp32`" in error.value.hint  # no switch among the arguments
    Path("run.sh").write_text(f"{Path('run.sh').read_text().rstrip()} --bf16 False\n")
    assert read_launch(["run.sh"]).options["precision"] == "fp32"


OVERRIDES = """\
- model.path=${oc.env:BASE}
- data.train_batch_size=64
- data.micro_batch_size_per_gpu=2
- data.max_length=4096
- model.enable_gradient_checkpointing=True
- trainer.n_gpus_per_node=4
- 'trainer.nnodes=2'
"""


def test_a_list_of_hydras_overrides_is_a_document(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("sft.yaml").write_text(OVERRIDES)
    with pytest.raises(InputError, match="the variable BASE"):
        read_launch(["sft.yaml"])
    job = read_launch(["sft.yaml"], {"BASE": "Qwen/Qwen3-4B"})
    found = {**job.options, **job.layout}
    expected = {"gpus": 8, "gbs": 64, "micro_batch_size": 2, "seq": 4096, "recompute": "full"}
    assert {name: found[name] for name in expected} == expected
    span = job.settings["trainer.nnodes"].span
    assert OVERRIDES.split("\n")[span.line - 1][span.start : span.end] == "2"
    Path("sft.yaml").write_text("- a\n- b=1\n")
    with pytest.raises(InputError):
        read_launch(["sft.yaml"])


MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data:
  run.yaml: |
    model_name_or_path: Qwen/Qwen2.5-7B
    per_device_train_batch_size: 2
    cutoff_len: 1024
    finetuning_type: full
    bf16: true
---
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - name: train
        command: [llamafactory-cli, train, /conf/run.yaml]
        resources: {limits: {nvidia.com/gpu: 4}}
        volumeMounts: [{name: files, mountPath: /conf}]
      volumes: [{name: files, configMap: {name: conf}}]
"""


def test_files_of_a_config_map_are_there_where_they_are_mounted(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(MAP)
    job = read_launch(["job.yaml"])
    assert (job.options["gpus"], job.options["gbs"], job.options["seq"]) == (4, 8, 1024)
    Path("job.yaml").write_text(MAP.replace("mountPath: /conf", "mountPath: /other"))
    with pytest.raises(InputError, match=r"/conf/run\.yaml, which is not here"):
        read_launch(["job.yaml"])


def test_deepspeeds_configuration_without_zero_is_deepspeeds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "steps_per_print": 10,
        "fp16": {"enabled": True},
    }
    Path("ds.json").write_text(json.dumps(config))
    job = read_launch(["ds.json"], {}, {"model": "llama-7b", "seq": 2048, "gpus": 4})
    assert (job.options["framework"], job.layout["zero"], job.options["gbs"]) == ("deepspeed", 0, 32)


EMB = """\
model: {emb_dim: 512, hidden_dim: 1408, n_layers: 4, n_heads: 8, n_kv_groups: 4, vocab_size: 9000, rope_local_base: 1e4}
train: {per_gpu_bs: 4, seq_len: 256, bf16: true, num_gpus: 1}
"""


def test_a_second_width_is_that_of_the_mlp_and_memory_of_a_gpu_counts_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(EMB)
    with pytest.raises(InputError) as error:
        read_launch(["run.yaml"])
    assert "hidden=512,heads=8,kv_heads=4,ffn=1408," in asked(error.value)["model"]
    Path("run.yaml").write_text(
        OWN_BATCH.replace(", effective_batch_size: 64", "") + "# fits a 16GB GPU, or 24GB GPUs\n"
    )
    with pytest.raises(InputError, match="GPUs") as error:
        read_launch(["run.yaml"])
    assert asked(error.value)["gpus"] == "8"


# --- one message by construction

TRAINED = """torchrun --nnodes 2 --nproc_per_node 8 train.py \\
--model_name_or_path meta-llama/Llama-2-7b-hf \\
--per_device_train_batch_size 2 \\
--gradient_accumulation_steps 4 \\
--bf16 True \\
--max_seq_length 2048 \\
--deepspeed ds.json \\
--gradient_checkpointing True \\
--num_train_epochs 1
"""
SHAPED = (
    MEGATRON.replace(" --", " \\\n--").replace(" \\\n--n", " --n", 2)
    + " \\\n--bf16 \\\n--pipeline-model-parallel-size 2\n"
)
PLAUSIBLE = {"model": "llama2-7b", "zero": "2", "tune": "full", "attention": "fa2", "loss": "standard"}


def followed(files: list[Path], own: str) -> dict[str, str] | None:
    """Read files, and once more with all that a message asks for; return what it asks, None where it asks nothing.

    What it asks for and suggests nothing for is usual, of variables their `own` value.
    """
    try:
        estimate_launch(files, despite_rules=False)
        return None
    except LackingError as error:
        found = asked(error)
    chosen = {name: value if value[:1].islower() or value[:1].isdecimal() else "" for name, value in found.items()}
    chosen = {name: value or PLAUSIBLE.get(name, own) for name, value in chosen.items()}
    variables = {name.removeprefix("var="): value for name, value in chosen.items() if name.startswith("var=")}
    given = {name: int(value) if value.isdecimal() else value for name, value in chosen.items() if "=" not in name}
    estimate_launch(files, variables=variables, **given)
    return found


@pytest.mark.parametrize("text", [TRAINED, SHAPED], ids=["trainer", "megatron"])
@pytest.mark.parametrize("how", ["left out", "a variable"])
def test_whatever_is_left_out_is_asked_for_in_one_message_that_answers(script, text, how):
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    lines = text.splitlines()
    for at, line in enumerate(lines):
        name = line.removesuffix(" \\").split()
        if not line.startswith("--") or len(name) < 2:
            continue
        changed = [*lines[:at], *([f"{name[0]} $X \\"] if how == "a variable" else []), *lines[at + 1 :]]
        asks = followed(script("\n".join(changed).removesuffix(" \\") + "\n"), name[1])
        assert asks is None or len(asks) < 4, line


def test_values_of_a_module_that_is_not_here_are_asked_for_by_name(tmp_path):
    (tmp_path / "t.py").write_text(
        "from conf import cfg\nfrom transformers import Trainer, TrainingArguments\n"
        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=cfg.size, bf16=cfg.half,\n"
        "    optim=cfg.optim, max_steps=9)\nTrainer(model='gpt2', args=args).train()\n"
    )
    with pytest.raises(LackingError) as caught:
        read_launch([tmp_path / "t.py"], {}, {"gpus": 8, "seq": 512, "model": "gpt2"})
    assert {"var=cfg.size", "var=cfg.half", "var=cfg.optim"} <= asked(caught.value).keys()
    said = {"cfg.size": "4", "cfg.half": "true", "cfg.optim": "lion_32bit"}
    job = read_launch([tmp_path / "t.py"], said, {"gpus": 8, "seq": 512, "model": "gpt2"})
    assert (job.options["gbs"], job.options["optimizer"], job.options["precision"]) == (32, "lion", "bf16")
