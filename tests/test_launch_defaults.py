"""What frameworks do where nothing is said, and options that change what others mean: small files of one's own."""

import pytest
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError

CLM = "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --do_train --block_size 2048"
SFT = "accelerate launch --num_processes 8 trl/scripts/sft.py --model_name_or_path Qwen/Qwen2.5-7B --dataset_name x"
ACCELERATE = "accelerate launch --num_processes 8 {} run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 --do_train"
ACCELERATE += " --output_dir o --block_size 2048 --per_device_train_batch_size 2"
OPEN = "accelerate launch --num_processes 8 --mixed_precision bf16 open_instruct/finetune.py --model_name_or_path"
OPEN += " Qwen/Qwen2.5-7B --dataset_mixer_list x 1.0 --max_seq_length 4096"
MAXTEXT = "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3.1-8b"
VERL = "torchrun --nproc_per_node=8 -m verl.trainer"
XTUNER = """
from transformers import AutoModelForCausalLM
from xtuner.model import SupervisedFinetune
pretrained_model_name_or_path = 'internlm/internlm2-7b'
max_length = 2048
pack_to_max_length = True
batch_size = 1
accumulative_counts = 16
model = dict(type=SupervisedFinetune, llm=dict(
    type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=pretrained_model_name_or_path))
train_dataloader = dict(batch_size=batch_size)
"""
COMMANDS = [
    # the Trainer's batch of 8 and fp32, though no argument that only it has is given
    (CLM, {"micro_batch_size": 8, "gbs": 64, "precision": "fp32", "zero": 0, "recompute": "none"}),
    (f"{CLM} --bf16 --torch_dtype auto", {"master_dtype": "none", "moment_dtype": "bf16"}),
    (f"{CLM} --bf16 --torch_dtype float32", {"precision": "bf16", "master_dtype": None}),
    (f"{CLM} --bf16_full_eval", {"precision": "fp32"}),
    # accelerate's plugin has ZeRO 2 where nothing names a stage
    (ACCELERATE.format("--use_deepspeed"), {"framework": "deepspeed", "zero": 2}),
    (ACCELERATE.format("--use_deepspeed --zero_stage 3"), {"framework": "deepspeed", "zero": 3}),
    # which counts microbatches, as accelerate does under DeepSpeed alone
    (ACCELERATE.format("--use_deepspeed --gradient_accumulation_steps 4"), {"gbs": 64}),
    (ACCELERATE.format("--multi_gpu --gradient_accumulation_steps 4"), {"gbs": 16}),
    (
        f"{CLM} --fsdp full_shard --fsdp_config '{{\"activation_checkpointing\": true}}'",
        {"zero": 3, "recompute": "full"},
    ),
    (f"{CLM} --fsdp_sharding_strategy FULL_SHARD --fsdp 'shard_grad_op auto_wrap'", {"zero": 2}),
    # TRL's script has TRL's defaults, of which each switch that is on has one beside it that turns it off
    (SFT, {"gbs": 64, "seq": 1024, "precision": "bf16", "recompute": "full", "tune": None}),
    (f"{SFT} --no_gradient_checkpointing --no_bf16", {"precision": "fp32", "recompute": "none"}),
    (f"{SFT} --lora_r 32", {"tune": None}),
    (f"{SFT} --lora_r 32 --use_peft", {"tune": "lora", "lora_rank": 32, "base_dtype": "fp32"}),
    ("trl sft --model_name_or_path Qwen/Qwen2.5-7B --accelerate_config zero3", {"gpus": 8, "zero": 3, "gbs": 64}),
    (SFT.replace("sft.py", "dpo.py"), {"method": "dpo", "micro_batch_size": 16, "gbs": 64, "seq": 1024}),
    ("NPROC_PER_NODE=8 swift rlhf --model Qwen/Qwen2.5-7B --max_length 2048", {"method": "dpo", "gbs": 16}),
    (OPEN, {"micro_batch_size": 8, "gbs": 64, "recompute": "none"}),
    (f"{OPEN} --use_lora", {"tune": "lora", "lora_rank": 64, "lora_targets": "all"}),
    (MAXTEXT, {"micro_batch_size": 12, "gbs": 96, "seq": 2048, "recompute": "full", "zero": 3}),
    # microbatches of 8,192 tokens, which older releases count in sequences
    (f"{VERL}.sft_trainer model.path=Qwen/Qwen2.5-7B data.max_length=2048", {"micro_batch_size": 4, "gbs": 256}),
    (
        f"{VERL}.sft_trainer model.path=Qwen/Qwen2.5-7B data.use_dynamic_bsz=False data.micro_batch_size_per_gpu=2",
        {"micro_batch_size": 2, "seq": 1024},
    ),
    (f"{VERL}.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-7B data.max_length=4096", {"micro_batch_size": 4}),
    (f"{MAXTEXT} per_device_batch_size=2 gradient_accumulation_steps=4", {"micro_batch_size": 2, "gbs": 64}),
]


@pytest.mark.parametrize(("command", "expected"), COMMANDS)
def test_a_command_has_what_its_program_does_where_nothing_is_said(tmp_path, command, expected):
    given = {"gpus": 8} if command.startswith("python3") else {}
    assert_has(job(tmp_path, given, a__sh=command), **expected)


AXOLOTL = "base_model: NousResearch/Meta-Llama-3.1-8B\nsequence_len: 2048\n"
OUMI = """
model: {model_name: meta-llama/Llama-3.1-8B, model_max_length: 2048}
training: {trainer_type: TRL_SFT}
"""
AUTOMODEL = """
step_scheduler: {global_batch_size: 64}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: Qwen/Qwen3-4B}
distributed: {_target_: nemo_automodel.components.distributed.KIND, dp_size: none}
packed_sequence: {packed_sequence_size: 4096}
"""
DOCUMENTS = [
    (AXOLOTL, {"micro_batch_size": 1, "gbs": 8}),
    (f"{AXOLOTL}fsdp: [shard_grad_op, auto_wrap]\n", {"zero": 2}),
    (f"{AXOLOTL}torch_dtype: float32\n", {"precision": "bf16", "master_dtype": "none"}),  # that of `bf16` counts
    (f"{AXOLOTL}gradient_checkpointing: unsloth\n", {"recompute": "full", "offload": "activations"}),
    (f"{OUMI}deepspeed: {{enable_deepspeed: true}}\n", {"zero": 0}),
    (f"{OUMI}deepspeed: {{enable_deepspeed: true, zero_stage: ZERO_3, offload_optimizer: {{device: cpu}}}}\n",
     {"zero": 3, "offload": "optimizer"}),
    (AUTOMODEL.replace("KIND", "ddp.DDPManager"), {"zero": 0, "micro_batch_size": 1}),
    (AUTOMODEL.replace("KIND", "fsdp2.FSDP2Manager"), {"zero": 3, "gbs": 64}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), DOCUMENTS)
def test_a_document_has_what_its_tool_does_where_nothing_is_said(tmp_path, text, expected):
    assert_has(job(tmp_path, a__yaml=text), **expected)


@pytest.mark.parametrize("script", ["dpo_online.py", "nash_md.py", "prm.py"])
def test_scripts_that_learn_otherwise_than_their_names_begin(tmp_path, script):
    command = f"accelerate launch --num_processes 8 examples/scripts/{script} --model_name_or_path Qwen/Qwen2.5-7B"
    with pytest.raises(InputError, match="trains against other models"):
        job(tmp_path, {}, a__sh=f"{command} --per_device_train_batch_size 2")


def test_a_table_of_toml_with_nothing_in_it_is_there(tmp_path):
    text = '[model]\nname = "Qwen/Qwen3-4B"\n\n[data]\nseq_len = 4096\nbatch_size = 64\n'
    assert_has(job(tmp_path, a__toml=text), recompute="none", compile="off")
    assert_has(job(tmp_path, a__toml=f"{text}[model.ac]\n[model.compile]\n"), recompute="full", compile="on")


@pytest.mark.parametrize(("kind", "offload"), [
    ("zero2_offload", "optimizer"), ("zero3_offload", "optimizer+parameters"), ("zero3", None),
])  # fmt: skip
def test_what_files_of_xtuner_offload(tmp_path, kind, offload):
    command = f"NPROC_PER_NODE=8 xtuner train cfg.py --deepspeed deepspeed_{kind}"
    assert_has(job(tmp_path, {}, cfg__py=XTUNER, a__sh=command), zero=int(kind[4]), offload=offload, gbs=128)


def test_a_file_that_fsdp_config_names_is_that_table(tmp_path):
    table = '{"version": 2, "reshard_after_forward": false, "activation_checkpointing": true, "offload_params": true}'
    command = f"{CLM} --bf16 --fsdp full_shard --fsdp_config table.json"
    made = job(tmp_path, {}, table__json=table, a__sh=command)
    assert_has(made, zero=2, recompute="full", offload="optimizer+parameters")


def test_a_variable_that_chooses_another_trainer_is_asked_about(tmp_path):
    (tmp_path / "a.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nfinetuning_type: full\n")
    with pytest.raises(InputError, match="Megatron core"):
        job(tmp_path, {}, a__sh="USE_MCA=1 NPROC_PER_NODE=8 llamafactory-cli train a.yaml")


UNSLOTH = """
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Meta-Llama-3.1-8B"TOLD)
model = FastLanguageModel.get_peft_model(model)
SFTTrainer(model=model, args=SFTConfig(output_dir="o", per_device_train_batch_size=2)).train()
"""


@pytest.mark.parametrize(("told", "tune"), [("", "qlora"), (", load_in_4bit=False", "lora")])
def test_unsloth_trains_adapters_though_nothing_is_said_of_them(tmp_path, told, tune):
    assert_has(job(tmp_path, {}, a__py=UNSLOTH.replace("TOLD", told)), tune=tune, lora_rank=16, gbs=2, seq=2048)
