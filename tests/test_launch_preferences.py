"""Files of training by preferences and rewards: the method, what a batch of samples is, and the reference model."""

import pytest
from test_launch_tabled import FILES
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch
from gpuscale.planning.jobs import build_job
from gpuscale.request import JobOptions, read


def _options(made):
    return read(JobOptions, {"gpus": 8, **made.options})


MODEL = "model_name_or_path: meta-llama/Llama-3.1-8B-Instruct\n"
SIZES = "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: true\n"
FACTORY = f"{MODEL}{SIZES}finetuning_type: lora\nlora_rank: 16\ncutoff_len: 4096\n"
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B-Instruct
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
TRL = f"{MODEL}{SIZES}max_length: 2048\ntorch_dtype: bfloat16\n"
ADAPTERS = {"tune": "lora"}


@pytest.mark.parametrize(
    ("text", "method", "expected"),
    [
        (f"{FACTORY}stage: dpo\npref_beta: 0.1\n", "dpo", {"micro_batch_size": 4, "gbs": 64, "seq": 4096, **ADAPTERS}),
        (f"{FACTORY}stage: dpo\npref_loss: simpo\nsimpo_gamma: 0.5\n", "orpo", {"micro_batch_size": 4, "gbs": 64}),
        (f"{FACTORY}stage: dpo\npref_loss: ipo\n", "dpo", {"micro_batch_size": 4}),
        (f"{FACTORY}stage: kto\n", "kto", {"micro_batch_size": 2, "gbs": 64}),
        (f"{FACTORY}stage: rm\n", "reward", {"micro_batch_size": 4, "gbs": 64}),
        (
            f"{FACTORY}pref_loss: orpo\n",
            None,
            {"micro_batch_size": 2, "gbs": 64},
        ),  # the stage is sft where none is said
        (f"{AXOLOTL}rl: ipo\nrl_beta: 0.1\n", "dpo", {"micro_batch_size": 4, "gbs": 64, "seq": 2048, "tune": None}),
        (f"{AXOLOTL}rl: simpo\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n", "orpo", ADAPTERS),
        (f"{AXOLOTL}reward_model: true\n", "reward", {"micro_batch_size": 4}),
        (f"{AXOLOTL}rl: kto\nkto_desirable_weight: 0.2\n", "kto", {"micro_batch_size": 2}),
    ],
)
def test_yaml_of_llama_factory_and_axolotl(text, method, expected, tmp_path):
    assert_has(job(tmp_path, {"gpus": 8}, a__yaml=text), method=method, **expected)


INSTRUCT = "accelerate launch --use_deepspeed --deepspeed_config_file stage3.conf open_instruct/"
TULU = ("--model_name_or_path allenai/OLMo-2-1124-7B --max_seq_length 2048 --per_device_train_batch_size 1"
        " --gradient_accumulation_steps 8 --with_tracking")  # fmt: skip
SWIFT = "--model Qwen/Qwen2.5-7B-Instruct --per_device_train_batch_size 1 --max_length 4096"


@pytest.mark.parametrize(
    ("line", "method", "expected"),
    [
        (f"swift rlhf {SWIFT} --tuner_type lora", "dpo", {"micro_batch_size": 2, "gbs": 16, **ADAPTERS}),
        (f"swift rlhf --rlhf_type cpo {SWIFT} --tuner_type full", "orpo", {"tune": None}),
        (f"swift rlhf --rlhf_type rm {SWIFT}", "reward", {"micro_batch_size": 2}),
        (f"swift rlhf --rlhf_type grpo {SWIFT} --max_completion_length 1024 --beta 0", "grpo",
         {"micro_batch_size": 1, "seq": 5120}),
        (f"swift sft {SWIFT}", None, {"micro_batch_size": 1}),
        ("trl dpo --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 4 --beta 0.1", "dpo",
         {"micro_batch_size": 8, "gbs": 32, "seq": 1024, "recompute": "full"}),
        ("accelerate launch scripts/run_orpo.py --model_name_or_path Qwen/Qwen2.5-7B --max_length 512"
         " --per_device_train_batch_size 8", "orpo",
         {"micro_batch_size": 16, "seq": 512}),
        ("torchrun --nproc_per_node 8 examples/reward_modeling.py --model_name_or_path Qwen/Qwen2.5-7B"
         " --per_device_train_batch_size 8 --max_length 512 --center_rewards_coefficient 0.01", "reward",
         {"micro_batch_size": 16}),
        ("deepspeed --module openrlhf.cli.train_dpo --model.model_name_or_path Qwen/Qwen2.5-7B"
         " --train.micro_batch_size 2 --ds.zero_stage 3 --model.beta 0.1", "dpo",
         {"micro_batch_size": 4, "gbs": 128, "zero": 3, "seq": 512}),
        ("deepspeed --module openrlhf.cli.train_rm --model.model_name_or_path Qwen/Qwen2.5-7B", "reward",
         {"micro_batch_size": 2, "gbs": 128, "zero": 2}),
        ("NPROC_PER_NODE=8 megatron rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --micro_batch_size 2"
         " --global_batch_size 64 --max_length 2048 --tensor_model_parallel_size 2", "dpo",
         {"micro_batch_size": 4, "gbs": 64, "tp": 2, "framework": "megatron-lm"}),
        (f"{INSTRUCT}dpo_tune_cache.py {TULU} --dpo_loss_type dpo_norm --use_8bit_optimizer True", "orpo",
         {"micro_batch_size": 2, "gbs": 64, "zero": 3, "optimizer": "adamw-8bit"}),
        (f"{INSTRUCT}dpo_tune.py {TULU} --dpo_loss_type wpo", "dpo", {"micro_batch_size": 2, "optimizer": "adamw"}),
        (f"{INSTRUCT}dpo_tune.py {TULU} --dpo_loss_type simpo", "orpo", {"zero": 3}),
    ],
)  # fmt: skip
def test_command_lines(line, method, expected, tmp_path):
    files = {"stage3__conf": '{"zero_optimization": {"stage": 3}}', "run__sh": f"{line}\n"}
    assert_has(job(tmp_path, {"gpus": 8}, **files), method=method, **expected)


@pytest.mark.parametrize(
    ("loss", "method"), [("DPOLoss", "dpo"), ("SimPOLoss", "orpo"), ("RSOLoss", "dpo")]
)  # fmt: skip
def test_torchtune_says_it_by_its_loss(loss, method, tmp_path):
    text = f"""
model: {{_component_: torchtune.models.llama3_2.llama3_2_3b}}
tokenizer: {{max_seq_len: 1024}}
batch_size: 4
dtype: bf16
loss: {{_component_: torchtune.rlhf.loss.{loss}, beta: 0.1}}
ref_checkpointer: {{checkpoint_dir: /models/base}}
"""
    assert_has(job(tmp_path, {"gpus": 8}, a__yaml=text), method=method, micro_batch_size=8, gbs=32, loss="standard")


@pytest.mark.parametrize(
    ("more", "method"),
    [("dpo: {reference_policy_kl_penalty: 0.05, max_num_steps: 10}", "dpo"), ("rm: {max_num_epochs: 1}", "reward")],
)
def test_nemo_rl_and_oumi(more, method, tmp_path):
    plain = job(tmp_path, a__yaml=FILES["nemo-rl"])
    made = job(tmp_path, a__yaml=f"{more}\n{FILES['nemo-rl']}")
    assert_has(made, method=method, gbs=plain.options["gbs"], micro_batch_size=2 * plain.layout["micro_batch_size"])
    oumi = job(tmp_path, a__yaml=FILES["oumi"].replace("TRL_SFT", "TRL_DPO"))
    assert_has(oumi, method="dpo")


SCRIPT = """
from transformers import AutoModelForCausalLM
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
args = DPOConfig(per_device_train_batch_size=2, max_length=1024, beta=0.1, bf16=True)
trainer = DPOTrainer(model, args=args, train_dataset=data, peft_config=LoraConfig(r=8, target_modules="all-linear"))
trainer.train()
"""


@pytest.mark.parametrize(
    ("name", "method", "micro"), [("DPO", "dpo", 4), ("KTO", "kto", 2), ("ORPO", "orpo", 4), ("Reward", "reward", 4)]
)
def test_python_scripts_say_it_by_their_class(name, method, micro, tmp_path):
    made = job(tmp_path, {"gpus": 4}, a__py=SCRIPT.replace("DPO", name))
    assert_has(made, method=method, micro_batch_size=micro, gbs=8, **ADAPTERS)


# -- the reference model


def test_a_reference_model_is_held_beside_a_whole_model_alone(tmp_path):
    whole = build_job(_options(job(tmp_path, {"gpus": 8}, a__yaml=f"{AXOLOTL}rl: dpo\n")))
    assert whole.spec.reference_bytes == 2
    before = job(tmp_path, {"gpus": 8}, a__yaml=f"{AXOLOTL}rl: dpo\nprecompute_ref_log_probs: true\n")
    assert_has(before, method="orpo")
    assert any("without a reference model" in said.meaning for said in before.assumed)
    assert build_job(_options(before)).spec.reference_bytes == 0
    tuned = build_job(_options(job(tmp_path, {"gpus": 8}, a__yaml=f"{FACTORY}stage: dpo\n")))
    assert (tuned.spec.reference_bytes, tuned.spec.method.forwards) == (0, 1)


@pytest.mark.parametrize(
    ("files", "method"),
    [
        ({"a__yaml": f"{FACTORY}stage: dpo\nref_model: mine/base\n"}, "dpo"),
        ({"run__sh": "deepspeed --module openrlhf.cli.train_dpo --model.model_name_or_path Qwen/Qwen2.5-7B"
                     " --ds.lora.rank 16\n"}, "dpo"),
        ({"run__sh": f"swift rlhf --rlhf_type grpo --tuner_type full {SWIFT} --max_completion_length 512\n"}, "grpo"),
    ],
)  # fmt: skip
def test_a_reference_that_is_not_modelled_is_asked_about_and_answered(files, method, tmp_path):
    with pytest.raises(InputError, match="reference model") as caught:
        job(tmp_path, {"gpus": 8}, **files)
    assert f"method={method}" in caught.value.hint
    assert_has(job(tmp_path, {"gpus": 8, "method": method}, **files), method=method)


@pytest.mark.parametrize("more", ["beta: 0.1", "max_prompt_length: 512", "num_generations: 8", "simpo_gamma: 0.5"])
def test_a_method_that_no_file_names_is_asked_for(more, tmp_path):
    (tmp_path / "a.yaml").write_text(f"{TRL}{more}\n")
    with pytest.raises(InputError, match="by pairs, rewards") as caught:
        read_launch([tmp_path / "a.yaml"], {}, {"gpus": 8})
    assert "method" in caught.value.hint
    made = read_launch([tmp_path / "a.yaml"], {}, {"gpus": 8, "method": "dpo"})
    assert_has(made, micro_batch_size=4, gbs=64)


@pytest.mark.parametrize("line", ["trl rloo", "python train_ppo.py", "swift rlhf --rlhf_type ppo"])
def test_other_methods_are_refused(line, tmp_path):
    with pytest.raises(InputError, match="trains against other models"):
        job(tmp_path, {"gpus": 8}, run__sh=f"{line} --model_name_or_path Qwen/Qwen2.5-7B {SWIFT} --bf16 true\n")


def test_ligers_loss_over_logits_is_none_of_pairs(tmp_path):
    text = f"{FACTORY}stage: dpo\nenable_liger_kernel: true\ndeepspeed: examples/deepspeed/ds_z3_config.json\n"
    assert_has(job(tmp_path, {"gpus": 8}, a__yaml=text), loss="standard")
    assert_has(job(tmp_path, {"gpus": 8}, a__yaml=text.replace("stage: dpo\n", "")), loss=None)  # the profile's: linear


def test_a_recipe_of_ppo_is_refused_whatever_is_given(tmp_path):
    """Its configuration is not among the named ones: nothing else says that the recipe holds other models."""
    line = "tune run ppo_full_finetune_single_device --config mistral/7B_full_ppo_low_memory\n"
    with pytest.raises(InputError, match="only training of a whole model"):
        job(tmp_path, {"gpus": 1, "model": "mistral-7b", "zero": 0}, run__sh=line)


def test_log_probabilities_made_before_are_of_dpo_alone(tmp_path):
    """Without its reference KTO is no other method that is known; DPO is one of pairs alone."""
    text = f"{AXOLOTL}rl: {{}}\nprecompute_ref_log_probs: true\n"
    assert [job(tmp_path, a__yaml=text.format(rl)).options["method"] for rl in ("dpo", "kto")] == ["orpo", "kto"]


@pytest.mark.parametrize(("script", "method"), [("sft_after_dpo.py", None), ("after_dpo.py", "dpo")])
def test_a_program_of_supervised_training_is_one_whatever_else_its_name_says(script, method, tmp_path):
    sizes = "--per_device_train_batch_size 2 --max_length 2048 --bf16 true"
    line = f"accelerate launch --num_processes 8 {script} --model_name_or_path meta-llama/Llama-3.1-8B {sizes}\n"
    assert_has(job(tmp_path, {}, run__sh=line), method=method)
