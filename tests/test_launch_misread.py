"""What was once read as another job without a word: each kind in words of our own, with the right answer."""

import pytest
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError

AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
adapter: qlora
load_in_4bit: true
lora_r: 8
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch
"""


@pytest.mark.parametrize(("said", "zero"), [("fsdp: false", 0), ("fsdp:\n  - full_shard", 3), ("deepspeed: false", 0)])
def test_fsdp_that_is_switched_off_shards_nothing(tmp_path, said, zero):
    assert_has(job(tmp_path, {"gpus": 4}, a__yml=AXOLOTL + said), zero=zero, gbs=32)


NEMO = """
from nemo.collections import llm

def configure(args):
    recipe = llm.llama3_8b.pretrain_recipe(name="x", num_nodes=1, num_gpus_per_node=8)
    if args.dtype.lower() == "fp8":
        recipe.trainer.plugins = bf16_with_fp8_mixed()
    return recipe

if __name__ == "__main__":
    recipe = configure(options_of_ours())
    llm.run(recipe)
"""


def test_precision_in_a_branch_that_nobody_decides_is_asked_for(tmp_path):
    imports = "from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed\n"
    with pytest.raises(InputError, match="dtype"):
        job(tmp_path, {}, a__py=imports + NEMO)


SMALLER = """
from nemo.collections import llm

recipe = llm.llama3_8b.pretrain_recipe(name="x", num_nodes=1, num_gpus_per_node=1)
recipe.model.config.num_layers = 2
recipe.model.config.hidden_size = 256
recipe.model.config.ffn_hidden_size = 512
recipe.model.config.num_attention_heads = 16
recipe.trainer.strategy.context_parallel_size = 1
llm.run(recipe)
"""


def test_shape_changed_in_a_recipe_stays_a_model_of_its_kind(tmp_path):
    made = job(tmp_path, {}, a__py=SMALLER)
    assert made.options["model"] == "llama3-8b,layers=2,hidden=256,ffn=512,heads=16"
    assert_has(made, seq=8192, gbs=512)


OLMO = """
from olmo_core.internal.experiment import main
from olmo_core.nn.attention import SlidingWindowAttentionConfig
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from olmo_core.distributed.parallel import DataParallelType

def build_model(common):
    config = TransformerConfig.olmo2_7B(vocab_size=common.tokenizer.padded_vocab_size())
    BLOCKS
    return config

def build_train_module(common):
    return TransformerTrainModuleConfig(
        rank_microbatch_size=8192, max_sequence_length=common.dataset.effective_sequence_length,
        optim=AdamWConfig(lr=1e-4),
        dp_config=TransformerDataParallelConfig(name=DataParallelType.hsdp, shard_degree=32),
    )

main(global_batch_size=64 * 8192, sequence_length=8192, model_config_builder=build_model,
     train_module_config_builder=build_train_module)
"""
WINDOWS = """config.block.attention.sliding_window = SlidingWindowAttentionConfig(pattern=[2048, 2048, -1])
    config.block.attention.use_flash = True"""


def test_windows_that_a_script_gives_a_model_of_olmo_core(tmp_path):
    made = job(tmp_path, {"gpus": 64}, a__py=OLMO.replace("BLOCKS", WINDOWS))
    assert "window.length=2048,window.full_every=3" in made.options["model"]
    assert_has(made, seq=8192, gbs=64, shard=32)


@pytest.mark.parametrize("blocks", [
    'config.block_pattern = ["linear", "attn"]',
    "config.block.attention.sliding_window = SlidingWindowAttentionConfig(pattern=[-1, 2048, 4096])",
    "config.block.feed_forward_moe = own_experts()",
])  # fmt: skip
def test_blocks_of_olmo_core_that_are_not_read_are_asked_for(tmp_path, blocks):
    with pytest.raises(InputError, match=r"not read|not modelled") as caught:
        job(tmp_path, {"gpus": 64}, a__py=OLMO.replace("BLOCKS", blocks))
    assert "model=NAME" in str(caught.value)


def test_gpus_suggested_are_a_multiple_of_the_shards(tmp_path):
    with pytest.raises(InputError, match="`gpus=32`"):
        job(tmp_path, {}, a__py=OLMO.replace("BLOCKS", "pass"))


TRAINER = (
    "--model_name_or_path Qwen/Qwen2.5-7B --stage sft --finetuning_type full --cutoff_len 2048 --bf16 --template x"
)


def test_commands_that_only_predict_are_no_jobs(tmp_path):
    text = f"deepspeed --num_gpus 4 src/train.py {TRAINER} --do_train --deepspeed ds_z2_config.json\n"
    text += f"deepspeed --num_gpus 4 src/train.py {TRAINER} --do_predict --predict_with_generate\n"
    assert_has(job(tmp_path, {}, a__sh=text), zero=2, gpus=4)


def test_several_jobs_say_at_once_what_the_first_of_them_lacks(tmp_path):
    one = "llamafactory-cli train --model_name_or_path own/thing --stage sft --finetuning_type lora --lora_rank {}"
    with pytest.raises(InputError, match="2 jobs are here") as caught:
        job(tmp_path, {}, a__sh=f"{one.format(8)}\n{one.format(16)}\n")
    assert "launch_files=" in str(caught.value)
    assert "`model=NAME`" in str(caught.value)


MAXTEXT = """python3 -m MaxText.train MaxText/configs/base.yml model_name=mixtral-8x7b max_target_length=4096 \\
  per_device_batch_size=1 remat_policy=full """


@pytest.mark.parametrize(("said", "expected"), [
    ("ici_expert_parallelism=8 ici_fsdp_parallelism=1", {"ep": 8, "zero": 3, "routing": None, "master_dtype": None}),
    ("ici_fsdp_parallelism=8 weight_dtype=bfloat16",
     {"master_dtype": "none", "moment_dtype": "bf16", "grad_dtype": "bf16"}),
    ("ici_fsdp_parallelism=8 grad_dtype=bfloat16", {"grad_dtype": "bf16", "master_dtype": None}),
    ("ici_fsdp_parallelism=8 sparse_matmul=False capacity_factor=1.25", {"routing": "dropping"}),
    ("ici_fsdp_parallelism=8 optimizer_memory_host_offload=True", {"offload": "optimizer"}),
    ("ici_fsdp_parallelism=1 ici_data_parallelism=8 shard_optimizer_over_data=True", {"zero": 1}),
    ("ici_fsdp_parallelism=8 quantization=fp8 dtype=bfloat16", {"precision": "fp8"}),
])  # fmt: skip
def test_what_maxtext_says_of_states_shards_and_experts(tmp_path, said, expected):
    assert_has(job(tmp_path, {"gpus": 8}, a__sh=MAXTEXT + said), **expected)


@pytest.mark.parametrize("said", ["sparse_matmul=False", "use_dpo=True", "expert_shard_attention_option=context"])
def test_what_maxtext_says_and_nobody_models_is_asked_for(tmp_path, said):
    with pytest.raises(InputError, match=said.partition("=")[0]):
        job(tmp_path, {"gpus": 8}, a__sh=f"{MAXTEXT} ici_fsdp_parallelism=8 {said}")
