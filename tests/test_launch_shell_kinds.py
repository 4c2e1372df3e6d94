"""Kinds of shell scripts that strangers start trainings by: what is matched, how programs of one's own name things."""

from pathlib import Path

import pytest

from gpuscale import estimate, read_launch
from gpuscale.errors import InputError
from gpuscale.launch.settings import LackingError

TRAINED = """torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --num_train_epochs 1 --bf16 \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps $GAS --max_length $LENGTH --fsdp "full_shard auto_wrap"
"""


def script(tmp_path: Path, text: str, name: str = "run.sh") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(("size", "gbs"), [("7b", 16), ("13b", 16), ("70b", 32), ("tiny", 64), ("7bx", 64)])
def test_brackets_of_regular_expressions_are_part_of_them(tmp_path: Path, size: str, gbs: int) -> None:
    text = f"""SIZE={size}; LENGTH=2048
if [[ "$SIZE" =~ ^(7b|13b)$ ]]; then GAS=2; elif [[ $SIZE =~ ^[0-9]+b$ ]]; then GAS=4; else GAS=8; fi
"""
    assert read_launch([script(tmp_path, text + TRAINED)]).options["gbs"] == gbs


def test_alternatives_of_an_argument_are_suggested(tmp_path: Path) -> None:
    path = script(tmp_path, 'GAS=1\nLENGTH=$1\n[[ "$1" =~ ^(2048|4096)$ ]] || exit 1\n' + TRAINED)
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert caught.value.hint is not None and "2048, 4096" in caught.value.hint
    assert read_launch([path], {"1": "4096"}).options["seq"] == 4096


def test_a_regular_expression_that_repeats_groups_is_not_followed(tmp_path: Path) -> None:
    text = "GAS=1; LENGTH=4096\n[[ aaaaaaaaaaaaaaaaaaaaaaaaaaaaab =~ ^(a+)+$ ]] && LENGTH=2048\n"
    with pytest.raises(LackingError, match="max_length"):
        read_launch([script(tmp_path, text + TRAINED)])


OWN = "deepspeed --num_gpus 8 train/train.py --pretrain Qwen/Qwen2.5-7B --max_len 2048 --bf16 --zero_stage 2 "


@pytest.mark.parametrize("name", ["micro_train_batch_size", "train_batch_size_per_gpu_step", "per_device_batch"])
def test_batches_of_programs_of_ones_own_are_known_by_their_words(tmp_path: Path, name: str) -> None:
    job = read_launch([script(tmp_path, f"{OWN} --{name} 16 --micro_eval_batch_size 2 --total_batch_size 512\n")])
    assert job.layout["micro_batch_size"] == 16
    assert job.options["gbs"] == 512
    assert job.options["model"] == "Qwen/Qwen2.5-7B"


def test_a_batch_beside_a_microbatch_is_first_of_all_that_of_all(tmp_path: Path) -> None:
    path = script(tmp_path, f"{OWN} --micro_train_batch_size 16 --train_batch_size 512\n")
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert "`gbs=512` (as it says; or 4096)" in str(caught.value)


FIRST = """deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt2.py --model-parallel-size 4 --num-layers 24 \\
  --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --batch-size 8 --fp16 \\
  --checkpoint-activations --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt {more}
"""


def test_arguments_of_the_first_megatron(tmp_path: Path) -> None:
    job = read_launch([script(tmp_path, FIRST.format(more="--checkpoint-in-cpu"))], {}, {"gbs": 64})
    assert (job.layout["tp"], job.layout["micro_batch_size"], job.layout["recompute"]) == (4, 8, "full")
    assert job.options["gpus"] == 16
    assert "vocab=50257" in str(job.options["model"])
    assert any(one.meaning == "checkpoints are predicted on the GPU" for one in job.assumed)


def test_the_batch_of_the_first_megatron_is_that_of_a_replica(tmp_path: Path) -> None:
    assert read_launch([script(tmp_path, FIRST.format(more=""))]).options["gbs"] == 32  # each of 4 replicas takes 8


SWIFT = """NPROC_PER_NODE=4 swift rlhf --rlhf_type gkd --model Qwen/Qwen2.5-7B-Instruct --tuner_type full \\
  --max_length 2048 --torch_dtype bfloat16 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
  --deepspeed zero3 {teacher}
"""


def test_an_option_whose_variable_is_empty_asks_for_the_variable(tmp_path: Path) -> None:
    text = "TP=\n" + FIRST.format(more="").replace("--model-parallel-size 4", "--model-parallel-size ${TP} `# in part`")
    path = script(tmp_path, text)
    with pytest.raises(LackingError, match="the variable TP is empty") as caught:
        read_launch([path], {}, {"gbs": 64})
    assert "`var=TP=" in str(caught.value.hint)
    assert read_launch([path], {"TP": "2"}, {"gbs": 64}).layout["tp"] == 2


def test_a_switch_of_ddp_says_that_nothing_is_sharded(tmp_path: Path) -> None:
    text = OWN.replace("deepspeed --num_gpus 8", "torchrun --nproc_per_node 8").replace("--zero_stage 2", "--ddp")
    job = read_launch([script(tmp_path, f"{text} --micro_batch_size 2 --global_batch_size 64\n")])
    assert job.layout["zero"] == 0


def test_a_teacher_on_a_server_takes_no_memory_here(tmp_path: Path) -> None:
    job = read_launch([script(tmp_path, SWIFT.format(teacher="--teacher_model_server http://localhost:8000"))])
    assert "teacher" not in job.options and job.options.get("method", "sft") == "sft"
    assert any("runs elsewhere" in one.meaning for one in job.assumed)
    with pytest.raises(InputError, match="learns from a model"):
        read_launch([script(tmp_path, SWIFT.format(teacher=""))])


@pytest.mark.parametrize("given", ["- ", ""])
def test_what_python_prints_in_a_script_is_worked_out(tmp_path: Path, given: str) -> None:
    text = 'GPUS=8\nGAS=$(python -c "print(int(512 / ($GPUS * 2)))")\n'
    text += f"LENGTH=$(python3 {given}<<END\nprint(2 ** 11)\nEND\n)\n"
    job = read_launch([script(tmp_path, text + TRAINED)])
    assert (job.options["gbs"], job.options["seq"]) == (256, 2048)


@pytest.mark.parametrize("printed", [
    "json.load(open('x.json'))['n']", "torch.cuda.device_count()", "1, 2", "$X", '2)" "3',
])  # fmt: skip
def test_what_python_prints_of_a_machine_is_asked_for(tmp_path: Path, printed: str) -> None:
    text = f'LENGTH=2048\nGAS=$(python -c "import json, torch; print({printed})")\n'
    with pytest.raises(LackingError, match="GAS is the output of a command"):
        read_launch([script(tmp_path, text + TRAINED)])


@pytest.mark.parametrize("number", ["10**9 * 10**9 + 1", "1 << 61", "8 / 0", "2 - 10**9 * 2 * 10**9"])
def test_numbers_that_bash_would_wrap_or_refuse_are_asked_for(tmp_path: Path, number: str) -> None:
    with pytest.raises(LackingError, match="variable GAS"):
        read_launch([script(tmp_path, f"LENGTH=2048\nGAS=$(( {number} ))\n{TRAINED}")])
    passed = script(tmp_path, f"LENGTH=2048\nGAS=$(( 1 || {number} ))\n{TRAINED}")
    assert read_launch([passed]).options["gbs"] == 8


FRAGMENT = """MODEL_ARGS=(
  --num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 --group-query-attention
  --num-query-groups 4 --swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias --vocab-size 152064
  --untie-embeddings-and-output-weights --position-embedding-type rope
)
PERF="--tensor-model-parallel-size 4 --sequence-parallel --bf16 --micro-batch-size 2 --seq-length 4096"
ALL="${MODEL_ARGS[*]} $PERF"
"""


def test_a_file_of_options_alone_is_read_and_says_so(tmp_path: Path) -> None:
    path = script(tmp_path, FRAGMENT)
    with pytest.raises(LackingError, match="on how many GPUs"):
        read_launch([path])
    job = read_launch([path], {}, {"gpus": 8, "gbs": 64})
    assert (job.options["model"], job.layout["tp"], job.layout["micro_batch_size"]) == ("qwen2-7b", 4, 2)
    assert any("no command is here" in one.meaning for one in job.assumed)
    with pytest.raises(InputError, match="no training command"):
        read_launch([script(tmp_path, "export NCCL_DEBUG=INFO\nOPTS='--a 1 --b 2 --c 3 --d 4 --e 5 --f 6'\n")])


def test_a_comment_that_ends_a_command_too_early_is_said(tmp_path: Path) -> None:
    text = TRAINED.replace("--max_length", "\\\n  # --optim adafactor \\\n  --max_length")
    job = read_launch([script(tmp_path, "GAS=2; LENGTH=512\n" + text)], {}, {"seq": 1024, "zero": 3})
    assert [one.line for one in job.assumed if "the command ends here" in one.meaning] == [4]
    whole = script(tmp_path, "GAS=2; LENGTH=512\n" + TRAINED + "# --optim adafactor\n")
    assert not any("command ends here" in one.meaning for one in read_launch([whole]).assumed)


@pytest.mark.parametrize("end", ["\\ ", "\\  # half of it", "\\\t"])
def test_a_blank_behind_the_backslash_ends_a_command(tmp_path: Path, end: str) -> None:
    text = TRAINED.replace("--gradient_accumulation_steps", f"--optim sgd {end}\n  --gradient_accumulation_steps")
    given = {"seq": 1024, "zero": 3}
    path = script(tmp_path, "GAS=2; LENGTH=512\n" + text)
    job = read_launch([path], {}, given)
    assert (job.options["optimizer"], job.options["gbs"]) == ("sgd", 8)
    assert [one.line for one in job.assumed if "the command ends here" in one.meaning] == [3]
    with pytest.raises(LackingError) as caught:
        read_launch([path], {}, {"zero": 3})
    assert "the command ends on line 3" in str(caught.value.hint)
    listed = script(tmp_path, f"GAS=2; LENGTH=512\nLIST=(--a 1 {end}\n --b 2)\n" + TRAINED)
    assert not any("ends here" in one.meaning for one in read_launch([listed]).assumed)


@pytest.mark.parametrize(
    ("test", "gas"),
    [("[[ $MORE -eq 1 ]]", 8), ("[[ $MORE -eq 0 ]]", 2), ("[ $MORE -eq 0 ]", 8), ("[[ $MORE -gt 0 ]]", 8)],
)
def test_what_nobody_sets_counts_nothing(tmp_path: Path, test: str, gas: int) -> None:
    path = script(tmp_path, f"LENGTH=2048\nif {test}; then GAS=2; else GAS=8; fi\n" + TRAINED)
    assert read_launch([path]).options["gbs"] == 8 * gas
    assert read_launch([path], {"MORE": "1"}).options["gbs"] == 8 * (8 if "eq 0" in test else 2)


def test_adapters_without_quantised_weights_are_adapters(tmp_path: Path) -> None:
    text = "GAS=1; LENGTH=512\n" + TRAINED.rstrip() + " --q_lora {} --lora_r 32 --lora_target_modules q_proj v_proj\n"
    for value, tune in (("False", "lora"), ("True", "qlora")):
        assert read_launch([script(tmp_path, text.format(value))]).options["tune"] == tune


RECIPES = "torchrun --nproc_per_node 4 finetuning.py --enable_fsdp --model_name llama2-7b --low_cpu_fsdp"


def test_llama_recipes_has_defaults_of_its_own(tmp_path: Path) -> None:
    job = read_launch([script(tmp_path, f"{RECIPES} --gradient_accumulation_steps 2\n")])
    assert (job.options["gbs"], job.options["seq"], job.options["master_dtype"]) == (4 * 2 * 4, 4096, "none")
    assert (job.layout["zero"], job.layout["micro_batch_size"], job.layout["recompute"]) == (3, 4, "full")
    more = "--use_peft --lora_config.r 8 --batch_size_training 1 --fsdp_config.sharding_strategy SHARD_GRAD_OP"
    job = read_launch([script(tmp_path, f"{RECIPES} {more} --fsdp_config.fsdp_activation_checkpointing False\n")])
    assert (job.options["lora_rank"], job.options["lora_targets"], job.options["gbs"]) == (8, "q,v", 4)
    assert (job.layout["zero"], job.layout["recompute"]) == (2, "none")
    alone = RECIPES.replace("torchrun --nproc_per_node 4", "CUDA_VISIBLE_DEVICES=0 python").replace("--enable_fsdp", "")
    assert read_launch([script(tmp_path, alone)]).layout["recompute"] == "none"


def test_scripts_of_open_instruct_on_olmo_core_ask_how_they_shard_and_for_the_microbatch(tmp_path: Path) -> None:
    command = (
        "torchrun --nproc_per_node 8 open_instruct/olmo_core_finetune.py --model_name_or_path allenai/OLMo-2-1124-7B"
    )
    more = "--max_seq_length 4096 --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --with_tracking"
    path = script(tmp_path, f"{command} {more}\n")
    with pytest.raises(LackingError, match=r"how it shards is decided .* a microbatch holds is decided"):
        read_launch([path])
    job = read_launch([path], {}, {"zero": 3, "micro_batch_size": 2})
    assert (job.options["gbs"], job.layout["zero"]) == (16, 3)


STEP_3 = """deepspeed --num_gpus 8 main.py --actor_model_name_or_path $1 --critic_model_name_or_path out \\
  --per_device_training_batch_size 4 --per_device_generation_batch_size 4 --ppo_epochs 1 --max_answer_seq_len 512 \\
  --gradient_accumulation_steps 2 --actor_gradient_checkpointing --actor_zero_stage 2 --critic_zero_stage 3 \\
  --enable_hybrid_engine --inference_tp_size 2 --offload_reference_model --deepspeed --actor_lora_dim 8
"""


def test_the_actor_of_deepspeed_chat_asks_once(tmp_path: Path) -> None:
    path = script(tmp_path, STEP_3)
    with pytest.raises(LackingError, match="the variable 1 is an argument"):
        read_launch([path])
    job = read_launch([path], {"1": "facebook/opt-1.3b"})
    assert (job.options["gbs"], job.options["seq"], job.options["method"]) == (4 * 2 * 8, 256 + 512, "grpo")
    assert (job.layout["zero"], job.layout["recompute"], job.options["precision"]) == (2, "full", "fp16")
    assert any("the critic" in one.meaning for one in job.assumed)


def test_settings_that_are_not_known_offer_what_their_names_speak_of(tmp_path: Path) -> None:
    more = " --odd_tensor_parallel 2 --odd_global_batch 64 --odd_lora_thing x\n"
    path = script(tmp_path, "LENGTH=512\n" + TRAINED.rstrip() + more)
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    hint = str(caught.value.hint)
    assert "`tp=2` (or `var=ignored=odd_tensor_parallel`), `gbs=64` (or `var=ignored=odd_global_batch`)" in hint
    assert "`var=ignored=odd_lora_thing` (or `tune=...` (full, lora, qlora))" in hint
    assert read_launch([path], {"GAS": "1"}, {"tp": 2, "gbs": 64, "tune": "full"}).options["gpus"] == 8


MEGATRON = """torchrun --nproc_per_node 8 {program} --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 \\
  --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \\
  --global-batch-size 64 --position-embedding-type rope --normalization RMSNorm --vocab-size 32000 --bf16 {more}
"""


def test_adapters_of_mindspeed_are_read(tmp_path: Path) -> None:
    shape = "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights"
    lora = "--lora-r 16 --lora-alpha 32 --lora-target-modules linear_qkv linear_proj"
    job = read_launch([script(tmp_path, MEGATRON.format(program="posttrain_gpt.py", more=f"{shape} {lora}"))])
    assert (job.options["tune"], job.options["lora_rank"], job.options["lora_targets"]) == ("lora", 16, "k,o,q,v")
    other = f"{shape} --adapter-kind x"
    with pytest.raises(LackingError, match="may change memory or time"):
        read_launch([script(tmp_path, MEGATRON.format(program="posttrain_gpt.py", more=other))])


def test_programs_of_a_family_whose_arguments_do_not_say_it_ask_for_the_model(tmp_path: Path) -> None:
    path = script(tmp_path, MEGATRON.format(program="pretrain_llama.py", more=""))
    with pytest.raises(LackingError, match="builds blocks of its own") as caught:
        read_launch([path])
    assert "`model=llama" in str(caught.value.hint)
    assert read_launch([path], {}, {"model": "llama-7b"}).options["gbs"] == 64


def test_an_optimizer_in_host_memory_needs_no_second_replica(tmp_path: Path) -> None:
    more = "--swiglu --tensor-model-parallel-size 8 --optimizer-cpu-offload --use-precision-aware-optimizer"
    path = script(tmp_path, MEGATRON.format(program="pretrain_gpt.py", more=f"{more} --use-distributed-optimizer"))
    job = read_launch([path])
    assert job.options["offload"] == "optimizer"
    assert estimate(**job.options, **job.layout).plan is not None


def test_what_command_prints_is_the_command(tmp_path: Path) -> None:
    text = "GAS=2; LENGTH=512\nRUN=$(command -v torchrun)\nif [[ -z $RUN ]]; then exit 1; fi\n"
    job = read_launch([script(tmp_path, text + TRAINED.replace("torchrun", '"$RUN"'))])
    assert (job.options["gpus"], job.options["gbs"]) == (8, 16)


AXOLOTL = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 2\nmax_memory: 3\nbf16: true\n"


def test_a_configuration_that_is_made_of_another_is_asked_for_by_its_name(tmp_path: Path) -> None:
    text = (
        "sed -e '/^max_memory:/d' -e 's|2048|1024|' conf/a.yml > /tmp/b.yml\npython -m axolotl.cli.train /tmp/b.yml\n"
    )
    path = script(tmp_path, text)
    with pytest.raises(InputError, match=r"configured in conf/a\.yml"):
        read_launch([path])
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/a.yml").write_text(AXOLOTL)
    assert read_launch([path], {}, {"gpus": 1}).options["seq"] == 1024


def test_jobs_on_tpus_are_said_to_be(tmp_path: Path) -> None:
    text = "export PJRT_DEVICE=TPU\nexport XLA_USE_SPMD=1\nGAS=2; LENGTH=512\n" + TRAINED
    path = script(tmp_path, text.replace('--fsdp "full_shard auto_wrap"', ""))
    with pytest.raises(LackingError, match="how PyTorch/XLA shards") as caught:
        read_launch([path])
    assert "it runs on TPUs" in caught.value.message
    assert read_launch([path], {}, {"cluster": "dgx-h100-superpod", "zero": 3}).options["gbs"] == 16


def test_a_variable_of_a_script_may_be_called_ignored(tmp_path: Path) -> None:
    path = script(tmp_path, "LENGTH=512; ignored=4; GAS=$ignored\n" + TRAINED.rstrip() + " --odd_offload x\n")
    assert read_launch([path], {"ignored": "odd_offload"}).options["gbs"] == 32


ALONE = """#SBATCH --job-name=tune
#SBATCH {asked}
python train.py --model_name_or_path Qwen/Qwen2.5-7B --num_train_epochs 1 --bf16 --max_length 2048 \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4
"""


@pytest.mark.parametrize("asked", ["--gpus=1", "--gres=gpu:a100:1", "--gpus-per-node=1"])
def test_one_gpu_of_the_scheduler_is_the_gpu_of_a_program(tmp_path: Path, asked: str) -> None:
    assert read_launch([script(tmp_path, ALONE.format(asked=asked))]).options["gpus"] == 1


def test_several_gpus_of_the_scheduler_are_those_of_a_launcher_of_all(tmp_path: Path) -> None:
    text = ALONE.format(asked="--gres=gpu:4")
    with pytest.raises(LackingError, match="number of GPUs"):  # of `python` alone nobody knows
        read_launch([script(tmp_path, text)])
    job = read_launch([script(tmp_path, text.replace("python", "accelerate launch"))])
    assert (job.options["gpus"], job.options["gbs"]) == (4, 32)


VERL = """python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer data.train_batch_size=256 \\
  data.max_prompt_length=512 data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen3-4B \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
  actor_rollout_ref.actor.megatron.{name}_size=4 trainer.n_gpus_per_node=8 trainer.nnodes=4
"""


@pytest.mark.parametrize("name", ["tp", "pp", "ep"])
def test_degrees_by_other_names_are_asked_for(tmp_path: Path, name: str) -> None:
    path = script(tmp_path, VERL.format(name=name))
    with pytest.raises(LackingError, match=f"{name}_size: not known here"):
        read_launch([path])
    assert read_launch([path], {}, {name: 4}).options["gbs"] == 16


def test_types_of_the_actor_of_verl_under_megatron_core(tmp_path: Path) -> None:
    text = VERL.format(name="sequence_parallel=true actor_rollout_ref.actor.megatron.tensor_model_parallel")
    text = text.rstrip() + " actor_rollout_ref.actor.megatron.dtype={half} {more}\n"
    more = "+actor_rollout_ref.actor.megatron.override_ddp_config.grad_reduce_in_fp32=False"
    for half, said, types in (("float16", "", ("fp16", "fp32")), ("bfloat16", more, ("bf16", "bf16"))):
        options = read_launch([script(tmp_path, text.format(half=half, more=said))]).options
        assert (options["precision"], options["grad_dtype"]) == types


def test_programs_named_as_those_of_trl_may_be_ones_own(tmp_path: Path) -> None:
    text = """CUDA_VISIBLE_DEVICES=0 python train_dpo.py --model_name_or_path Qwen/Qwen2.5-0.5B --beta 0.1 \\
  --batch_size 2 --accumulation_steps 8 --max_length 512 --bf16 --epochs 3
"""
    job = read_launch([script(tmp_path, text)])
    assert (job.options["method"], job.options["gbs"], job.layout["micro_batch_size"]) == ("dpo", 16, 4)  # of pairs


def test_the_type_of_a_model_with_its_size_names_it(tmp_path: Path) -> None:
    text = (
        SWIFT.format(teacher="")
        .replace("rlhf --rlhf_type gkd", "sft")
        .replace("--model Qwen/Qwen2.5-7B-Instruct", "--model_type qwen2_5-7b-instruct")
    )
    assert read_launch([script(tmp_path, text)]).options["model"] == "qwen2.5-7b"


def test_a_batch_beside_that_of_all_is_that_of_each_gpu(tmp_path: Path) -> None:
    text = """torchrun --nproc_per_node 4 run_sft.py --model Qwen/Qwen2.5-0.5B --max_length 512 --bf16 --zero_stage 0 \\
  --batch_size {each} --effective_batch_size 128
"""
    job = read_launch([script(tmp_path, text.format(each=8))])
    assert (job.layout["micro_batch_size"], job.options["gbs"]) == (8, 128)
    assert any("that of each GPU" in one.meaning for one in job.assumed)
    with pytest.raises(LackingError, match="at a time"):  # 4 x 48 do not divide 128
        read_launch([script(tmp_path, text.format(each=48))])


def test_the_precision_is_asked_for_where_a_file_that_may_say_it_is_not_here(tmp_path: Path) -> None:
    text = megatron_of_numbers("--vocab-size 32000")
    assert read_launch([script(tmp_path, text)]).options["precision"] == "fp32"
    with pytest.raises(LackingError, match="precision"):
        read_launch([script(tmp_path, "source conf/arguments.sh\n" + text)])


def megatron_of_numbers(more: str) -> str:
    return f"""torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \\
  --global-batch-size 16 {more}
"""


def test_the_rank_of_adapters_may_be_called_r(tmp_path: Path) -> None:
    text = """CUDA_VISIBLE_DEVICES=0 python train_sft.py --model_name Qwen/Qwen2.5-7B --bf16 \\
  --per_device_train_batch_size 1 --use_lora --r 64 --target_modules q_proj,v_proj --max_length 1024 \\
  --gradient_accumulation_steps 4
"""
    assert read_launch([script(tmp_path, text)]).options["lora_rank"] == 64


def test_the_actor_of_verl_may_train_adapters(tmp_path: Path) -> None:
    text = VERL.replace("--config-name=ppo_megatron_trainer ", "").replace("actor.megatron.{name}_size=4", "{name}")
    job = read_launch([script(tmp_path, text.format(name="model.lora_rank=32"))])
    assert (job.options["tune"], job.options["lora_rank"], job.options["lora_targets"]) == ("lora", 32, "all")
    assert (job.options["base_dtype"], job.layout["zero"]) == ("fp32", 3)
    assert "tune" not in read_launch([script(tmp_path, text.format(name="model.lora_rank=0"))]).options
    with pytest.raises(InputError, match="adapters of reinforcement learning"):
        read_launch(
            [script(tmp_path, VERL.format(name="tp").rstrip() + " actor_rollout_ref.model.lora.rank=32\n")],
            {},
            {"tp": 4},
        )


BEAKER = """python -m olmo_core.launch.beaker --name job --gpus 4 --nodes 2 --preemptible --env-secret A=B C=D -- """


def test_a_launcher_whose_options_take_several_values_starts_what_stands_behind_its_dashes(tmp_path: Path) -> None:
    own = "train.py --model meta-llama/Llama-3.1-8B --batch-size 4\n"
    with pytest.raises(LackingError, match=r"how long sequences are.* 4 is the batch") as caught:
        read_launch([script(tmp_path, BEAKER + own)])
    assert caught.value.hint is not None and "gbs=32" in caught.value.hint  # 2 nodes of 4 GPUs
    with pytest.raises(InputError, match=r"moe\.py job is of no framework"):
        read_launch([script(tmp_path, BEAKER + "src/moe.py job --model.block.name=moe\n")])


def test_a_degree_in_the_environment_of_a_program_that_is_not_here_is_asked_for(tmp_path: Path) -> None:
    run = "torchrun --nproc_per_node 4 sft_own.py --model_name_or_path Qwen/Qwen3-1.7B --bf16 --max_length 1024"
    run += " --per_device_train_batch_size 4 --gradient_accumulation_steps 8\n"
    path = script(tmp_path, "export TP_SIZE=${TP_SIZE:-2}\n" + run)
    with pytest.raises(LackingError, match="may split its model by the variable TP_SIZE") as caught:
        read_launch([path])
    assert caught.value.hint is not None and "tp=2" in caught.value.hint
    assert read_launch([path], given={"tp": 2}).options["gbs"] == 64  # two replicas
    for nothing in ("", "export TP_SIZE=²\n"):  # four, where nothing speaks of it
        assert read_launch([script(tmp_path, nothing + run)]).options["gbs"] == 128


def test_options_that_alpaca_lora_does_not_have_are_of_another_program(tmp_path: Path) -> None:
    run = "torchrun --nproc_per_node 2 finetune.py --bf16 --val_set_size 100 --model_max_length 768"
    run += " --gradient_accumulation_steps 8"
    own = f"{run} --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2\n"
    job = read_launch([script(tmp_path, own)])
    assert (job.options["gbs"], job.options.get("tune", "full"), job.options["seq"]) == (32, "full", 768)
    copy = "torchrun --nproc_per_node 2 finetune.py --base_model meta-llama/Llama-2-7b-hf --val_set_size 1"
    job = read_launch([script(tmp_path, copy + "\n")])
    assert (job.options["gbs"], job.options["tune"]) == (128, "lora")


@pytest.mark.parametrize(("pattern", "gbs"), [('"a.b"', 16), ("'a.b'", 16), ("a.b", 8), ('"aXb"', 8)])
def test_quoted_regular_expressions_are_plain_text(tmp_path: Path, pattern: str, gbs: int) -> None:
    text = f"LENGTH=2048; GAS=2; WORD=aXb\nshift ²\nif [[ $WORD =~ {pattern} ]]; then GAS=1; fi\n"
    assert read_launch([script(tmp_path, text + TRAINED)]).options["gbs"] == gbs


ACCELERATED = """accelerate launch --config_file $HOME/accelerate.yaml {options} --num_processes 8 train.py \\
  --bf16 --max_length 512 --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 \\
  --gradient_accumulation_steps 2 {more}
"""


@pytest.mark.parametrize(
    ("options", "stage", "less"),
    [
        ("--use_deepspeed --zero_stage 2", 2, "--use_deepspeed"),
        ("--use_deepspeed --zero_stage 1", 1, "--zero_stage 1"),
        ("--use_fsdp --fsdp_sharding_strategy FULL_SHARD", 3, "--use_fsdp"),
        ("--multi_gpu", 0, "--num_machines 1"),
    ],
)
def test_options_beside_a_configuration_of_accelerate_that_is_not_here_say_enough(
    tmp_path: Path, options: str, stage: int, less: str
) -> None:
    job = read_launch([script(tmp_path, ACCELERATED.format(options=options, more=""))])
    assert int(str(job.layout.get("zero", 0))) == stage and job.options["gbs"] == 16
    assert any("accelerate.yaml is not here" in one.meaning for one in job.assumed)
    with pytest.raises(LackingError, match="says how the job is sharded, and is not here"):
        read_launch([script(tmp_path, ACCELERATED.format(options=less, more=""))])


def test_settings_of_fsdp_in_a_file_that_is_not_here_are_said(tmp_path: Path) -> None:
    text = "torchrun" + TRAINED.replace("$GAS", "2").replace("$LENGTH", "512").removeprefix("torchrun")
    path = script(tmp_path, text.rstrip() + " --fsdp_config fsdp.json\n")
    assert any("fsdp.json is not here" in one.meaning for one in read_launch([path]).assumed)
    (tmp_path / "fsdp.json").write_text('{"fsdp_offload_params": true}')
    job = read_launch([path])
    assert job.options["offload"] == "optimizer+parameters" and not any(
        "not here" in one.meaning for one in job.assumed
    )


def test_dlrover_runs_as_torchrun_does_and_llama_recipes_adapters_have_a_rank(tmp_path: Path) -> None:
    text = """dlrover-run --network-check --nnodes 2 --nproc_per_node 4 examples/finetuning.py --enable_fsdp \\
  --use_fast_kernels --model_name meta-llama/Llama-2-7b-hf --batch_size_training 2 --use_peft --context_length 2048
"""
    job = read_launch([script(tmp_path, text)])
    assert (job.options["gpus"], job.options["gbs"], job.options["lora_rank"]) == (8, 16, 8)
