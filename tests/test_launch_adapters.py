"""Fine-tuning in launch files: adapters and quantised weights as tools call them, read and written."""

import pytest
import round_trips
from test_launch_tabled import FILES
from test_launch_tools import AXOLOTL, FACTORY, assert_has, job

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.export import exported
from gpuscale.launch.subject import estimate_launch
from gpuscale.launch.targets import targets
from gpuscale.request import OPTIMIZERS

QLORA = {"adapter": "qlora", "load_in_4bit": "true", "lora_r": 32, "lora_target_linear": "true"}
SWIFT = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --max_length 2048"
TRL = "accelerate launch --num_processes 8 sft.py --model_name_or_path meta-llama/Meta-Llama-3-8B --max_length 2048"
TUNE = """
model: {_component_: torchtune.models.llama3_1.%s, lora_attn_modules: [q_proj, v_proj, output_proj], %s}
tokenizer: {max_seq_len: 2048}
batch_size: 2
gradient_accumulation_steps: 8
dtype: bf16
"""


def peft(lines: dict) -> str:
    return "".join(f" --{name} {value}" for name, value in lines.items())


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (QLORA, {"tune": "qlora", "base_dtype": "nf4", "lora_rank": 32, "lora_targets": "all", "lora_dropout": False}),
        ({"adapter": "lora", "load_in_8bit": "true", "lora_r": 8, "lora_target_modules": "[q_proj, v_proj]"},
         {"tune": "lora", "base_dtype": "int8", "lora_targets": "q,v"}),
        ({"adapter": "lora", "gptq": "true", "lora_r": 8, "lora_target_modules": "[q_proj]"},
         {"tune": "qlora", "base_dtype": "int4"}),
        (QLORA | {"bnb_config_kwargs": "{bnb_4bit_use_double_quant: false}"}, {"base_dtype": "nf4-single"}),
        (QLORA | {"lora_modules_to_save": "[embed_tokens, lm_head]"}, {"train": "embeddings,head"}),
        (QLORA | {"lora_dropout": 0.05, "optimizer": "paged_adamw_8bit"},
         {"lora_dropout": True, "optimizer": "paged-adamw-8bit", "master_dtype": None}),
        ({"lora_r": 8, "lora_alpha": 16}, {"tune": None, "lora_rank": None, "master_dtype": "none"}),
        ({"adapter": "lora", "lora_r": 8,
          "lora_target_modules": r"'model.language_model.layers.[\\d]+.(mlp|self_attn).(up|down|q|o)_proj'"},
         {"lora_targets": "down,o,q,up"}),
    ],
)  # fmt: skip
def test_axolotl(more, expected, tmp_path):
    assert_has(job(tmp_path, a__yaml=AXOLOTL | more), **expected)


LORA = FACTORY | {"finetuning_type": "lora"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"tune": "lora", "lora_rank": 8, "lora_targets": "all", "lora_dropout": False, "base_dtype": None}),
        ({"quantization_bit": 4}, {"tune": "qlora", "base_dtype": "nf4"}),
        ({"quantization_bit": 4, "double_quantization": "false"}, {"base_dtype": "nf4-single"}),
        ({"quantization_bit": 8, "quantization_method": "eetq"}, {"tune": "lora", "base_dtype": "int8"}),
        ({"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4"}, {"model": "qwen2.5-7b", "base_dtype": "int4"}),
        ({"lora_target": "q_proj,v_proj", "lora_rank": 64, "additional_target": "lm_head"},
         {"lora_targets": "q,v", "lora_rank": 64, "train": "head"}),
        ({"pure_bf16": "true"}, {"master_dtype": "none", "moment_dtype": "bf16"}),
        ({"optim": "adamw_bnb_8bit"}, {"optimizer": "adamw-8bit", "moment_dtype": None}),
    ],
)  # fmt: skip
def test_llama_factory(more, expected, tmp_path):
    assert_has(job(tmp_path, a__yaml=LORA | more), **expected)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (SWIFT, {"tune": "lora", "lora_rank": 8, "lora_targets": "all", "lora_dropout": True}),
        (f"{SWIFT} --quant_method bnb --quant_bits 4 --lora_dropout 0", {"base_dtype": "nf4", "lora_dropout": False}),
        (f"{TRL} --use_peft True --dtype bfloat16", {"tune": "lora", "lora_rank": 16, "lora_targets": "q,v",
                                                     "base_dtype": "bf16", "master_dtype": None}),
        (f"{TRL} --use_peft True", {"base_dtype": "fp32"}),
        (f"{TRL} --use_peft True --load_in_4bit True --lora_target_modules all-linear",
         {"tune": "qlora", "base_dtype": "nf4-single", "lora_targets": "all", "master_dtype": "none"}),
        (f"{TRL} --use_peft False --lora_r 8", {"tune": None}),
    ],
)  # fmt: skip
def test_swift_and_trl(command, expected, tmp_path):
    assert_has(job(tmp_path, run__sh=f"{command}\n"), **expected)


@pytest.mark.parametrize(
    ("builder", "more", "expected"),
    [
        ("lora_llama3_1_8b", "lora_rank: 8",
         {"tune": "lora", "lora_targets": "o,q,v", "base_dtype": None, "lora_rank": 8}),
        ("qlora_llama3_1_8b", "apply_lora_to_mlp: True, lora_rank: 16",
         {"tune": "qlora", "base_dtype": "nf4", "lora_targets": "down,gate,o,q,up,v", "lora_rank": 16}),
        ("lora_llama3_1_8b", "quantize_base: True, lora_dropout: 0.1", {"base_dtype": "nf4", "lora_dropout": True}),
        ("llama3_1_8b", "apply_lora_to_output: False", {"tune": None}),
    ],
)  # fmt: skip
def test_torchtune(builder, more, expected, tmp_path):
    assert_has(job(tmp_path, a__yaml=TUNE % (builder, more)), model="llama3.1-8b", gbs=128, **expected)


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("litgpt", "lora_r: 8\nlora_key: true\nquantize: bnb.nf4-dq\nlora_head: true\n",
         {"optimizer": "paged-adamw", "moment_dtype": "fp32", "tune": "qlora",
          "base_dtype": "nf4", "lora_targets": "k,q,v", "lora_rank": 8, "lora_dropout": True}),
        ("automodel", "peft: {match_all_linear: true, dim: 16}\nquantization: {load_in_4bit: true}\n",
         {"tune": "qlora", "base_dtype": "nf4-single", "lora_targets": "all", "lora_rank": 16}),
        ("automodel", "peft: {target_modules: ['*_proj']}\n", {"tune": "lora", "lora_targets": "all", "lora_rank": 8}),
        ("oumi", "peft: {q_lora: true, lora_r: 64, lora_target_modules: [all-linear]}\n",
         {"tune": "qlora", "base_dtype": "nf4-single", "lora_targets": "all", "lora_rank": 64}),
    ],
)  # fmt: skip
def test_tools_of_tables(name, more, expected, tmp_path):
    text = FILES[name].replace("trainer_type: TRL_SFT,", "trainer_type: TRL_SFT, use_peft: true,")
    assert_has(job(tmp_path, a__yaml=text + more), **expected)


@pytest.mark.parametrize(
    ("model", "linear", "named"),
    [("mistralai/Mixtral-8x7B-v0.1", "w1,w2,w3", True), ("Qwen/Qwen3-30B-A3B", "q_proj", None)],
)
def test_experts_have_adapters_where_their_modules_are_named(model, linear, named, tmp_path):
    own = LORA | {"model_name_or_path": model}
    assert_has(job(tmp_path, a__yaml=own), lora_targets="all", lora_experts=False)
    assert_has(job(tmp_path, a__yaml=own | {"lora_target": linear}), lora_experts=named)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"adapter": "lora", "lora_target_linear": "true"}, "rank of adapters"),
        ({"adapter": "lora", "lora_r": 8}, "which matrices"),
        ({"adapter": "llama-adapter"}, "only a part of the model"),
        (QLORA | {"peft_layers_to_transform": "[0, 1]"}, "some layers alone"),
        (QLORA | {"optimizer": "lomo"}, "lomo is not modelled"),
        (QLORA | {"rl": "ebft"}, "ebft trains against other models"),
    ],
)
def test_what_is_not_modelled_of_adapters_is_refused_or_asked_for(more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        job(tmp_path, a__yaml=AXOLOTL | more)


def test_what_is_given_settles_what_files_say_of_tuning(tmp_path):
    given = {"gpus": 8, "lora_rank": 8, "lora_targets": "q,v"}
    assert_has(job(tmp_path, given, a__yaml=AXOLOTL | {"adapter": "lora"}), tune="lora", lora_rank=None)
    whole = job(tmp_path, {"gpus": 8, "tune": "full"}, a__yaml=LORA | {"quantization_bit": 4})
    assert_has(whole, tune=None, lora_rank=None, base_dtype=None)


def test_dora_is_noted(tmp_path):
    made = job(tmp_path, a__yaml=LORA | {"use_dora": "true"})
    assert any("DoRA" in said.meaning for said in made.assumed)


def test_a_file_of_qlora_is_predicted(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (AXOLOTL | QLORA).items()))
    plain, whole = (estimate_launch([path], options={"gpus": 1, **more}).estimate for more in ({}, {"tune": "full"}))
    assert plain.plan.memory_gib < whole.plan.memory_gib / 3


# -- written


PLAN = {"model": "llama3-8b", "gpus": 8, "gbs": 16, "seq": 2048}


def text_of(target, more, layout=None):
    options = {"framework": targets()[target].frameworks[0], **PLAN, **more}
    return "".join(one.text for one in exported(round_trips.predicted(options, layout or {}), target).files)


@pytest.mark.parametrize("target", [name for name, one in targets().items() if one.write and not one.adapters])
def test_other_targets_write_no_file_of_whole_training_for_adapters(target):
    with pytest.raises((NoAnswerError, InputError), match=r"`tune`: .*training of whole models|trains no adapters"):
        text_of(target, {"tune": "lora"})


@pytest.mark.parametrize("target", ["accelerate", "deepspeed"])
def test_adapters_are_written_as_llama_factory_calls_them(target):
    more = {"tune": "qlora", "lora_rank": 64, "lora_targets": "q,v", "lora_dropout": True, "train": "head"}
    text = text_of(target, more, {"zero": 2})
    for part in ("-m llamafactory.launcher", "--finetuning_type lora", "--lora_rank 64", "--lora_target q_proj,v_proj",
                 "--quantization_bit 4", "--double_quantization True", "--additional_target lm_head",
                 "--lora_dropout 0.05", "--disable_gradient_checkpointing True", "--cutoff_len 2048"):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"base_dtype": "int4"}, "base_dtype"), ({"train": "norms"}, "train"),
        ({"model": "llama3-8b,layers=31"}, "model"), ({"model": "phi3-mini", "lora_targets": "q"}, "lora_targets"),
        ({"model": "mixtral-8x7b", "lora_targets": "q,up"}, "lora_experts"),
    ],
)  # fmt: skip
def test_what_llama_factory_cannot_say_is_refused(more, option):
    with pytest.raises(NoAnswerError, match=f"`{option}`: "):
        text_of("accelerate", {"tune": "lora", **more})


@pytest.mark.parametrize("optimizer", [name for name, one in OPTIMIZERS.items() if not one.projected])
@pytest.mark.parametrize("target", [name for name, one in targets().items() if one.write])
def test_every_optimizer_is_written_and_read_back_or_refused(target, optimizer, tmp_path):
    options = {"framework": targets()[target].frameworks[0], **PLAN, "optimizer": optimizer}
    options |= {"tune": "lora"} if target == "torchtune" else {}
    layout = {"zero": 3} if target in {"torchtune", "automodel"} else {}
    differs = round_trips.round_trip(target, options, layout, tmp_path)
    assert not differs or "`optimizer`: " in differs


# -- Python


UNSLOTH = """
from unsloth import FastLanguageModel, is_bfloat16_supported
from trl import SFTTrainer
from transformers import TrainingArguments
length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Meta-Llama-3.1-8B-bnb-4bit", max_seq_length=length, dtype=None, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(
    model, r=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], lora_alpha=16, lora_dropout=0,
    use_gradient_checkpointing="unsloth")
trainer = SFTTrainer(model=model, tokenizer=tokenizer, max_seq_length=length, args=TrainingArguments(
    per_device_train_batch_size=2, gradient_accumulation_steps=4, fp16=not is_bfloat16_supported(),
    bf16=is_bfloat16_supported(), optim="adamw_8bit"))
trainer.train()
"""
SCRIPT = """
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

def main():
    stored = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", quantization_config=stored)
    model = prepare_model_for_kbit_training(model)
    config = LoraConfig(r=64, lora_dropout=0.1, target_modules="all-linear", modules_to_save=["lm_head"])
    args = SFTConfig(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_length=1024, bf16=True)
    SFTTrainer(model=model, train_dataset=data, peft_config=config, args=args).train()

main()
"""


def test_a_script_of_unsloth(tmp_path):
    made = job(tmp_path, {}, a__py=UNSLOTH)
    assert_has(
        made, model="llama3.1-8b", gpus=1, tune="qlora", base_dtype="nf4", lora_rank=32, lora_targets="k,o,q,v",
        optimizer="adamw-8bit", precision="bf16", recompute="full", offload="activations", seq=2048, gbs=8,
        micro_batch_size=2,
    )  # fmt: skip
    assert any("Unsloth" in said.meaning for said in made.assumed)


def test_a_script_of_trl_and_peft(tmp_path):
    made = job(tmp_path, {"gpus": 2}, a__py=SCRIPT)
    assert_has(
        made, model="mistralai/Mistral-7B-v0.1", tune="qlora", base_dtype="nf4", lora_rank=64, lora_targets="all",
        lora_dropout=True, train="head", gbs=16, seq=1024, recompute="full",
    )  # fmt: skip
    old = SCRIPT.replace("kbit_training", "int8_training").replace("load_in_4bit=True", "load_in_8bit=True")
    assert_has(job(tmp_path, {"gpus": 2}, a__py=old), tune="lora", base_dtype="int8", recompute="full")
    whole = SCRIPT.replace("peft_config=config, ", "").replace(", quantization_config=stored", "")
    assert_has(job(tmp_path, {"gpus": 2}, a__py=whole.replace("prepare_model_for_kbit_training", "get_peft_model")
                   .replace("get_peft_model(model)", "model")), tune=None)  # fmt: skip
    with pytest.raises(InputError, match="teachertrainer trains against other models"):
        job(tmp_path, {"gpus": 2}, a__py=SCRIPT.replace("SFTTrainer", "TeacherTrainer"))


BRIDGE = """
from megatron.bridge.recipes.llama import llama3_8b_peft_config
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.training.finetune import finetune
cfg = llama3_8b_peft_config()
{}
finetune(config=cfg, forward_step_func=forward_step)
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"tune": "lora", "lora_rank": 8, "lora_targets": "down,gate,k,o,q,up,v"}),
        ("cfg.peft.dim = 32", {"lora_rank": 32}),
        ("cfg.peft = LoRA(dim=16, target_modules=['linear_qkv'], dropout=0.1)",
         {"lora_rank": 16, "lora_targets": "k,q,v", "lora_dropout": True}),
    ],
)  # fmt: skip
def test_recipes_of_megatron_bridge(more, expected, tmp_path):
    assert_has(job(tmp_path, {"gpus": 8}, a__py=BRIDGE.format(more)), model="llama3-8b", gbs=8, seq=4096, **expected)


@pytest.mark.parametrize(
    ("more", "unsaid"),
    [("", "tp=1, pp=1, cp=1, ep=1"), (" --tensor_model_parallel_size 2", "pp=1, cp=1, ep=1")],
    ids=["nothing", "some"],
)
def test_what_no_file_states_of_the_layout_is_said(more, unsaid, tmp_path):
    path = tmp_path / "run.sh"
    command = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B --max_length 2048 --global_batch_size 8"
    path.write_text(command + more)
    said = {one.text: one.meaning for one in estimate_launch([path]).job.assumed}
    assert said[unsaid] == "no file states it"
    (other,) = (text for text, meaning in said.items() if meaning == "no file states it: as megatron-lm has it")
    assert "moment_dtype" in other
