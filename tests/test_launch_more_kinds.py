"""What real files say that no file before them said: each kind once, in words of our own."""

import pytest
from test_launch_tools import assert_has, job

from gpuscale import estimate_launch, read_launch
from gpuscale.errors import InputError
from gpuscale.launch.check import check
from gpuscale.launch.sources import launches

FSDP = (
    "torchrun --nproc_per_node 4 train.py --model_name_or_path huggyllama/llama-13b --model_max_length 1024 --bf16 on"
)


@pytest.mark.parametrize(
    ("words", "offload"), [("full_shard auto_wrap offload", "optimizer+parameters"), ("full_shard", None)]
)
def test_offload_among_the_words_of_fsdp(tmp_path, words, offload):
    text = f'{FSDP} --fsdp "{words}" --num_train_epochs 1 --per_device_train_batch_size 2'
    assert_has(job(tmp_path, {}, a__sh=text), zero=3, offload=offload, gbs=8)


MEGATRON = """
tensor_model_parallel_size: 4
pipeline_model_parallel_size: 2
num_layers: 32
hidden_size: 4096
num_attention_heads: 32
ffn_hidden_size: 11008
swiglu: true
micro_batch_size: 2
global_batch_size: 64
seq_length: 2048
vocab_size: 32000
max_position_embeddings: 2048
bf16: true
use_distributed_optimizer: true
recompute_granularity: selective
train_iters: 100
"""


def test_megatron_arguments_in_a_flat_document(tmp_path):
    made = job(tmp_path, {"gpus": 16}, a__yaml=MEGATRON)
    expected = {"framework": "megatron-lm", "tp": 4, "pp": 2, "micro_batch_size": 2, "gbs": 64, "precision": "bf16"}
    assert_has(made, **expected, recompute="selective:core_attn")
    assert "ffn=11008" in made.options["model"]


def test_stages_on_devices_of_several_kinds_are_asked_for(tmp_path):
    text = MEGATRON + "hetero_pipeline_stages: [1, 20, 1, 12]\n"
    with pytest.raises(InputError, match="several kinds") as caught:
        job(tmp_path, {"gpus": 16}, a__yaml=text)
    assert "pipeline_split" in str(caught.value)


ALPACA = (
    "torchrun --nproc_per_node 2 finetune.py --base_model meta-llama/Llama-2-7b-hf --batch_size 96 --val_set_size 200"
)


def test_alpaca_lora(tmp_path):
    made = job(tmp_path, {}, a__sh=ALPACA)
    assert_has(
        made, tune="lora", base_dtype="int8", lora_rank=8, lora_targets="q,v", lora_dropout=True, precision="fp16"
    )
    assert_has(made, recompute="full", seq=256, micro_batch_size=4, gbs=96, gpus=2)
    with pytest.raises(InputError, match="base_dtype"):
        job(tmp_path, {}, a__sh=f"{ALPACA} --adapter_name lora")


@pytest.mark.parametrize("task", ["generative_reranker", "embedding", "seq_cls"])
def test_tasks_of_ms_swift_without_a_language_model(tmp_path, task):
    text = f"NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-7B --max_length 1024 --tuner_type full --task_type {task}"
    with pytest.raises(InputError, match="no language model in training"):
        job(tmp_path, {}, a__sh=text)
    assert_has(job(tmp_path, {}, a__sh=text.replace(task, "causal_lm")), gpus=2, seq=1024)


@pytest.mark.parametrize(
    ("program", "gpus"), [("swift sft --tuner_type lora --model", 1), ("python t.py --model_name_or_path", 1)]
)
def test_one_visible_device(tmp_path, program, gpus):
    text = f"CUDA_VISIBLE_DEVICES=0 {program} Qwen/Qwen2.5-7B --max_length 1024 --per_device_train_batch_size 4"
    assert_has(
        job(tmp_path, {}, a__sh=f"{text} --gradient_accumulation_steps 2 --num_train_epochs 1"), gpus=gpus, gbs=8
    )
    with pytest.raises(InputError, match="2 GPUs, which is not" if program.startswith("swift") else "GPUs"):
        job(tmp_path, {}, a__sh=text.replace("=0", "=0,1"))


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 4096
[experimental]
pipeline_parallel_degree = 1
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
"""


def test_torchtitan_recomputes_every_second_layer_unless_told(tmp_path):
    assert_has(job(tmp_path, {"gpus": 8}, a__toml=TITAN), recompute="full:16")
    assert_has(job(tmp_path, {"gpus": 8}, a__toml=f'{TITAN}selective_ac_option = "op"\n'), recompute="selective")


AXOLOTL = """
base_model: meta-llama/Llama-3.1-8B
sequence_len: 2048
micro_batch_size: 1
plugins: [axolotl.integrations.liger.LigerPlugin]
freeze_mm_modules: true
"""


@pytest.mark.parametrize(
    ("switch", "loss"),
    [("liger_fused_linear_cross_entropy", "linear"), ("liger_cross_entropy", "fused"), ("liger_rms_norm", None)],
)
def test_the_liger_plugin_does_what_its_switches_say(tmp_path, switch, loss):
    assert_has(job(tmp_path, {"gpus": 8}, a__yaml=f"{AXOLOTL}{switch}: true\n"), loss=loss, seq=2048)


SCRIPT = """
import argparse
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--base", required=True)
parser.add_argument("--lora_r", type=int, default=32)
args = parser.parse_args()
stored = BitsAndBytesConfig(load_in_4bit=QUANTISED)
model = AutoModelForCausalLM.from_pretrained(args.base, quantization_config=stored)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=args.lora_r, target_modules=["q_proj"]))
training_args = SFTConfig(output_dir="o", per_device_train_batch_size=2, gradient_accumulation_steps=4, max_length=1024,
                          fp16=True, gradient_checkpointing=False)
for data in ("one", "two"):
    trainer = SFTTrainer(model=model, args=training_args, train_dataset=load_dataset(data))
    trainer.train()
"""


def test_a_script_with_its_arguments_in_variables_is_one_job(tmp_path):
    (tmp_path / "a.py").write_text(SCRIPT.replace("QUANTISED", "True"))
    with pytest.raises(InputError, match="variable base is given no value"):
        read_launch([tmp_path / "a.py"], {}, {"gpus": 1})
    variables = {"base": "mistralai/Mistral-7B-v0.1"}
    made = read_launch([tmp_path / "a.py"], variables, {"gpus": 1})
    expected = {"lora_rank": 32, "lora_targets": "q", "precision": "fp16", "master_dtype": None, "seq": 1024, "gbs": 8}
    assert_has(made, tune="qlora", base_dtype="nf4-single", recompute="full", **expected)
    found = check(None, launch_files=[tmp_path / "a.py"], variables=variables, gpus=1).findings
    assert "deepspeed_precisions" not in {one.rule for one in found}  # bf16 is on in TRL unless fp16 is
    (tmp_path / "a.py").write_text(SCRIPT.replace("QUANTISED", "False"))
    assert_has(
        read_launch([tmp_path / "a.py"], variables, {"gpus": 1}), tune="lora", base_dtype="fp32", recompute="none"
    )


@pytest.mark.parametrize(
    "text",
    [
        "read -r -d '' ARGS <<EOF\nt.py --tp 4\nEOF\n/opt/env/bin/torchrun --nproc_per_node 4 $ARGS",
        'IDS=0,1,2,3\nN=$(($(echo $IDS | grep -o "," | wc -l)+1))\ntorchrun --nproc_per_node $N t.py --tp $N',
        'X=$(printf $"%s" 4)\ntorchrun --nproc_per_node $X t.py --tp $X',
    ],
)
def test_what_shells_print_and_read(tmp_path, text):
    (tmp_path / "a.sh").write_text(text)
    (source,) = launches([tmp_path / "a.sh"], {})[0].sources
    assert str(source.settings["tp"].value) == "4"
    assert str(source.launcher["nproc_per_node"].value) == "4"


@pytest.mark.parametrize(
    ("said", "gpus"), [("on 1,024 H100s", 1024), ("wants about 24x80GB GPUs", 24), ("fits on 40GB GPUs", 8)]
)
def test_gpus_in_a_comment(tmp_path, said, gpus):
    with pytest.raises(InputError, match=f"gpus={gpus}\\b"):
        job(tmp_path, {}, a__yaml=f"# {said}\n{MEGATRON}")


def test_paged_adamw_keeps_moments_in_fp32(tmp_path):
    text = "tokenizer: {max_seq_len: 2048}\nbatch_size: 2\ngradient_accumulation_steps: 1\ndtype: bf16\n"
    text += "model: {_component_: torchtune.models.llama2.llama2_7b}\n"
    text += "optimizer: {_component_: bitsandbytes.optim.%s, lr: 1e-5}\n"
    moments = {}
    for name in ("PagedAdamW", "PagedAdamW8bit"):
        (tmp_path / "a.yaml").write_text(text % name)
        moments[name] = estimate_launch([tmp_path / "a.yaml"], gpus=8).estimate.memory["optimizer_state"]
    assert moments["PagedAdamW"] / moments["PagedAdamW8bit"] == pytest.approx(4 / (1 + 4 / 256), rel=0.02)
