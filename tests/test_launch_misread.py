"""What was once read as another job without a word: each kind in words of our own, with the right answer."""

import json

import pytest
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError
from gpuscale.launch.check import check
from gpuscale.launch.settings import LackingError
from gpuscale.presets.models import load_model

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
    ("ici_fsdp_parallelism=1 ici_pipeline_parallelism=8 per_device_batch_size=4",
     {"pp": 8, "vpp": 4, "micro_batch_size": 4, "gbs": 32}),
    ("ici_fsdp_parallelism=1 ici_pipeline_parallelism=8 per_device_batch_size=4 num_pipeline_microbatches=16 "
     "num_layers_per_pipeline_stage=2", {"vpp": 2, "micro_batch_size": 2, "gbs": 32}),
    ("ici_fsdp_parallelism=4 ici_context_parallelism=2 context_parallel_strategy=ring", {"cp": 2, "cp_comm": "p2p"}),
    ("ici_fsdp_parallelism=8 gradient_accumulation_steps=4", {"micro_batch_size": 1, "gbs": 32}),
    ("ici_fsdp_parallelism=8 attention=dot_product", {"attention": "eager"}),
    ("ici_fsdp_parallelism=8 override_model_config=True base_num_decoder_layers=4", {"model": "mixtral-8x7b,layers=4"}),
])  # fmt: skip
def test_what_maxtext_says_of_states_shards_and_experts(tmp_path, said, expected):
    assert_has(job(tmp_path, {"gpus": 8}, a__sh=MAXTEXT + said), **expected)


@pytest.mark.parametrize(
    "said",
    [
        "sparse_matmul=False",
        "use_dpo=True",
        "mu_dtype=bfloat16",
        "expert_shard_attention_option=context",
        "hardware=tpu",
    ],
)
def test_what_maxtext_says_and_nobody_models_is_asked_for(tmp_path, said):
    with pytest.raises(InputError, match=said.partition("=")[0]):
        job(tmp_path, {"gpus": 8}, a__sh=f"{MAXTEXT} ici_fsdp_parallelism=8 {said}")


SLIME = """ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \\
  --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 --num-layers 36 --hidden-size 2560 \\
  --num-attention-heads 32 --swiglu --vocab-size 151936 --rollout-batch-size 64 --n-samples-per-prompt 8 \\
  --rollout-max-response-len 4096 --num-steps-per-rollout 2"""


def test_batch_of_slime_is_a_rollout_over_its_optimizer_steps(tmp_path):
    assert_has(job(tmp_path, {}, a__sh=SLIME), gbs=256, gpus=8, tp=2, cp=2)
    assert_has(job(tmp_path, {}, a__sh=f"{SLIME} --global-batch-size 128"), gbs=128)


def test_gpus_that_a_reader_counts_are_not_asked_for_beside_the_batch(tmp_path):
    with pytest.raises(InputError, match="how large the global batch is") as caught:
        job(tmp_path, {}, a__sh=SLIME.replace("--num-steps-per-rollout 2", ""))
    assert "`gpus=" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float16", "fp16")])
def test_type_of_weights_in_megatron_swift_is_the_precision(tmp_path, dtype, precision):
    text = f"NPROC_PER_NODE=2 megatron sft --model Qwen/Qwen3-8B --torch_dtype {dtype} --max_length 2048"
    assert_has(job(tmp_path, {}, a__sh=text), precision=precision, gbs=16)


TORCHTITAN = """
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import ActivationCheckpointConfig, TrainingConfig
from torchtitan.models.common import FeedForward, GQAttention, RoPE, compute_ffn_hidden_dim
from torchtitan.models.llama3 import Llama3Model, Llama3TransformerBlock
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

def own():
    layer = Llama3TransformerBlock.Config(
        feed_forward=FeedForward.Config(hidden_dim=compute_ffn_hidden_dim(1024, multiple_of=256)),
        attention=GQAttention.Config(n_heads=16, n_kv_heads=8),
    )
    model = Llama3Model.Config(dim=1024, n_layers=8, vocab_size=32000, layer=layer, rope=RoPE.Config(max_seq_len=4096))
    return Trainer.Config(
        model_spec=ModelSpec(name="llama3", flavor="own", model=model), training=TrainingConfig(
            local_batch_size=4, seq_len=2048, dtype="bfloat16"),
        optimizer=OptimizersContainer.Config(name="AdamW", lr=1e-4),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
    )
"""


def test_shape_in_a_model_spec_of_torchtitan(tmp_path):
    made = job(tmp_path, {"gpus": 8}, a__py=TORCHTITAN)
    assert "layers=8,hidden=1024,vocab=32000,heads=16,kv_heads=8,sequence=4096,ffn=2816" in made.options["model"]
    assert_has(made, gbs=32, seq=2048, recompute="full", master_dtype="none")


def test_model_that_torchtitan_does_not_know_is_taken_from_outside(tmp_path):
    text = '[job]\nx = 1\n[model]\nname = "own"\nflavor = "small"\n[training]\nlocal_batch_size = 2\nseq_len = 2048\n'
    with pytest.raises(InputError, match="'own small' is not known here") as caught:
        job(tmp_path, {}, a__toml=text + "[parallelism]\ntensor_parallel_degree = 2\n")
    assert "`model=NAME`, `gpus=" in str(caught.value)
    made = job(tmp_path, {"gpus": 8, "model": "llama3-8b"}, a__toml=text)
    assert_has(made, gbs=16, model=None)


TORCHTUNE = """
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj']
  lora_rank: 8
tokenizer: {max_seq_len: 2048}
batch_size: 2
gradient_accumulation_steps: 4
dtype: bf16
"""


def test_a_device_that_is_no_gpu_is_no_h100(tmp_path):
    with pytest.raises(InputError, match="without a GPU") as caught:
        job(tmp_path, {"gpus": 1}, a__yaml=f"{TORCHTUNE}device: mps\n")
    assert "cluster=NAME" in str(caught.value)
    assert_has(job(tmp_path, {"gpus": 1}, a__yaml=f"{TORCHTUNE}device: cuda\n"), gbs=8)
    assert_has(job(tmp_path, {"gpus": 1, "cluster": "a100-hgx"}, a__yaml=f"{TORCHTUNE}device: mps\n"), gbs=8)


def test_one_device_is_suggested_where_a_comment_says_so(tmp_path):
    with pytest.raises(InputError, match="`gpus=1`"):
        job(tmp_path, {}, a__yaml=f"# tune run lora_finetune_single_device --config ours\n{TORCHTUNE}")


SCRIPT = """
from ours import load
from peft import LoraConfig, prepare_model_for_kbit_training
from trl import SFTConfig, SFTTrainer

def main():
    model, tokenizer = load("nf4")
    model = prepare_model_for_kbit_training(model)
    trainer = SFTTrainer(
        model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=512, bf16=True),
        peft_config=LoraConfig(r=8, target_modules=["q_proj"], lora_dropout=0.0),
    )
    result = trainer.train()

main()
"""


def test_storage_of_weights_that_something_else_loads_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="how its frozen weights are stored") as caught:
        job(tmp_path, {"gpus": 1, "model": "qwen3-4b"}, a__py=SCRIPT)
    assert "`tune=qlora`" in str(caught.value)
    made = job(tmp_path, {"gpus": 1, "model": "qwen3-4b", "tune": "qlora"}, a__py=SCRIPT)
    assert_has(made, base_dtype=None, recompute="full", gbs=2)


def test_a_model_that_a_variable_names_is_asked_for_once(tmp_path):
    text = SCRIPT.replace("from ours import load", "import os\nfrom transformers import AutoModelForCausalLM")
    text = text.replace('model, tokenizer = load("nf4")',
                        'model = AutoModelForCausalLM.from_pretrained(os.getenv("BASE"))')  # fmt: skip
    text = text.replace('("BASE"))', '("BASE"), load_in_4bit=True)')
    with pytest.raises(InputError, match="BASE is given no value") as caught:
        job(tmp_path, {"gpus": 1}, a__py=text)
    assert "not known here" not in str(caught.value)


def test_tasks_of_srun_are_said_to_be_ranks(tmp_path):
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n"
    text = "python run_clm.py --model_type gpt2 --tokenizer_name gpt2 --block_size 1024 --per_device_train_batch_size 8"
    made = job(tmp_path, {}, a__sh=f"{head}srun {text}\n")
    assert_has(made, model="gpt2", gbs=32)
    assert any("LOCAL_RANK" in said.meaning for said in made.assumed)


def test_full_recomputation_of_megatron_deepspeed_has_units_of_one_layer(tmp_path):
    text = """torchrun --nproc_per_node 4 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 8
    --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024
    --micro-batch-size 1 --bf16 --global-batch-size 8 --vocab-size 50000
    --recompute-granularity full --recompute-method uniform"""
    fork = "--deepspeed --deepspeed_config ds.json --zero-stage 1"
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 1}}')
    (tmp_path / "a.sh").write_text(" \\\n".join(text.split("\n")) + f" {fork}\n")
    (tmp_path / "b.sh").write_text(" \\\n".join(text.split("\n")) + "\n")
    broken = {
        name: [one.rule for one in check(None, launch_files=[tmp_path / name]).findings] for name in ("a.sh", "b.sh")
    }
    assert "recompute_settings" not in broken["a.sh"]
    assert "recompute_settings" in broken["b.sh"]


FROZEN = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
for name, weight in model.named_parameters():
    if "layers" in name:
        weight.requires_grad = False
trainer = Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=2, bf16=True))
trainer.train()
"""


def test_weights_that_a_script_freezes_itself_are_asked_about(tmp_path):
    given = {"gpus": 2, "seq": 1024}
    with pytest.raises(InputError, match="frozen by the script itself") as caught:
        job(tmp_path, given, a__py=FROZEN)
    assert "`assume`" not in str(caught.value)
    assert_has(job(tmp_path, given, a__py=FROZEN.replace("False", "True")), gbs=4, tune=None)


def test_a_frozen_language_model_of_tinyllava_is_no_training(tmp_path):
    text = "deepspeed --num_gpus 2 train.py --model_name_or_path Qwen/Qwen2.5-7B --model_max_length 2048 --bf16 True"
    text += " --per_device_train_batch_size 2 --tune_type_llm "
    with pytest.raises(InputError, match="the language model is not trained"):
        job(tmp_path, {}, a__sh=f"{text} frozen")
    assert_has(job(tmp_path, {}, a__sh=f"{text} full"), gbs=4)


def test_layers_of_ones_own_are_asked_for_by_the_model(tmp_path):
    text = f"{SLIME} --spec ours.spec --q-lora-rank 512 --kv-lora-rank 64"
    with pytest.raises(InputError, match="layers of a module of one's own") as caught:
        job(tmp_path, {}, a__sh=text)
    assert "model=NAME" in str(caught.value)
    assert_has(job(tmp_path, {"model": "qwen3-4b"}, a__sh=text), gbs=256)


def test_pyramid_experts_are_not_modelled(tmp_path):
    with pytest.raises(InputError, match=r"pyramid experts.* are not modelled") as caught:
        job(tmp_path, {}, a__sh=f"{SLIME} --mlp-type residual --num-experts 64 64 128 128")
    assert not isinstance(caught.value, LackingError)


def test_mistral_small_of_2024_is_no_24b(tmp_path):
    text = AXOLOTL.replace("NousResearch/Meta-Llama-3.1-8B", "mistralai/Mistral-Small-Instruct-2409")
    made = job(tmp_path, {"gpus": 1}, a__yml=text)
    assert load_model(made.options["model"]).layers == 56


OTHER_RECIPE = """
from nemo.collections import llm
from nemo.collections.llm.recipes import ours_22b

recipe = ours_22b.pretrain_recipe(name="x", num_nodes=4, num_gpus_per_node=8)
recipe.trainer = ours_22b.trainer(
    tensor_parallelism=4, pipeline_parallelism=2, virtual_pipeline_parallelism=2, context_parallelism=2,
    sequence_parallelism=True, num_nodes=4, num_gpus_per_node=8,
)
recipe.data.seq_length = 4096
recipe.data.global_batch_size = 64
if recipe.comm is not None:
    recipe.comm.tp_comm_overlap = False
llm.run(recipe)
"""


def test_degrees_that_a_trainer_of_an_unknown_recipe_is_given(tmp_path):
    made = job(tmp_path, {"model": "llama2-13b"}, a__py=OTHER_RECIPE)
    assert_has(made, gpus=32, tp=4, pp=2, vpp=2, cp=2, sp=True, precision="bf16", gbs=64, seq=4096)


MEGATRON = """torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --bf16 \\
  --tokenizer-type NullTokenizer --vocab-size 50256 """


@pytest.mark.parametrize(
    ("said", "expected", "word"),
    [
        ("--use-megatron-fsdp", {"zero": 0}, "shards nothing"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2}, ""),
        ("--data-parallel-sharding-strategy optim_grads_params", {"zero": 0}, ""),
        ("--use-torch-fsdp2", {"zero": 3}, ""),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", {"zero": 2}, ""),
        ("--use-torch-fsdp2 --torch-fsdp2-reshard-after-forward false", {"zero": 2}, ""),
        ("--use-layer-wise-distributed-optimizer --optimizer dist_muon", {"zero": None, "optimizer": "muon"}, ""),
        ("--optimizer-selection fused_ema_adamw", {"optimizer": "adam"}, "fused_ema_adamw"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.0", {"offload": None}, ""),
        (
            "--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16",
            {"moment_dtype": "fp8"},
            "second",
        ),
        ("--recompute-activations --recompute-granularity full", {"recompute": "selective:core_attn"}, ""),
        ("--rampup-batch-size 64 64 1000 --global-batch-size 512", {"gbs": 512}, "grown"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", {"loss": "linear"}, ""),
        ("--transformer-impl local", {"attention": "eager"}, ""),
        ("--fp8-hybrid", {"precision": "fp8-delayed"}, "16 bits that stay"),
        ("--fp8-format hybrid --fp8-param-gather", {"precision": "fp8-delayed"}, ""),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 8", {"recompute": "full:8"}, ""),
        ("--recompute-method uniform --recompute-num-layers 1", {"recompute": "none"}, ""),
    ],
)
def test_what_an_option_of_megatron_means_beside_others(said, expected, word, tmp_path):
    made = job(tmp_path, {}, a__sh=f"{MEGATRON}{said}\n")
    assert_has(made, **expected)
    assert word in " ".join(f"{one.text} {one.meaning}" for one in made.assumed)


@pytest.mark.parametrize(
    ("variables", "kernels"),
    [("NVTE_FLASH_ATTN=0", "cudnn"), ("NVTE_FUSED_ATTN=0", "fa2"), ("NVTE_FUSED_ATTN=0 NVTE_FLASH_ATTN=0", "eager")],
)
def test_kernels_that_variables_leave_to_transformer_engine(variables, kernels, tmp_path):
    assert_has(job(tmp_path, {}, a__sh=f"export {variables}\n{MEGATRON}\n"), attention=kernels)


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        ("--num-query-groups 8", (32, False)),  # nobody groups queries without the switch
        ("--group-query-attention --num-query-groups 8", (8, False)),
        ("--group-query-attention", (1, False)),
        ("--quick-geglu", (32, True)),
    ],
)
def test_switches_of_shapes_that_megatron_wants_beside_numbers(said, shape, tmp_path):
    model = load_model(job(tmp_path, {}, a__sh=f"{MEGATRON}{said}\n").options["model"])
    assert (model.kinds[0].attention.kv_heads, model.kinds[0].mlp.gated) == shape
    assert model.kinds[0].mlp.ffn == 16384


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("--exp-avg-dtype bf16", "moment_dtype"),
        ("--standalone-embedding-stage --pipeline-model-parallel-size 2", "pipeline_split"),
        ("--perform-rl-step", "reinforcement"),
        ("--enable-hyper-connections", "model"),
        ("--experimental-attention-variant gated_delta_net", "model"),
        ("--use-torch-fsdp2 --fsdp2-config-path x.yaml", "zero"),
    ],
)
def test_what_megatron_runs_otherwise_is_asked_for(said, match, tmp_path):
    with pytest.raises(InputError, match=match):
        job(tmp_path, {}, a__sh=f"{MEGATRON}{said}\n")


@pytest.mark.parametrize(
    ("table", "said", "expected"),
    [
        ({}, "--bf16", {"zero": 1, "offload": None}),
        ({}, "--fp16", {"zero": 0}),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, "--fp16", {"zero": 3, "offload": "parameters"}),
        ({"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}, "--fp16",
         {"offload": "optimizer+parameters"}),
        ({"stage": 2}, "--fp16 --zero-stage 1", {"zero": 2}),
    ],
)  # fmt: skip
def test_megatron_deepspeed_shards_as_the_file_of_deepspeed_says(table, said, expected, tmp_path):
    assert_has(job(tmp_path, {}, ds__json=_deepspeed(table), a__sh=f"{FORK} {said}\n"), **expected)


FORK = MEGATRON.replace("--bf16", "") + "--deepspeed --deepspeed_config ds.json"


def _deepspeed(table):
    return json.dumps({"train_micro_batch_size_per_gpu": 2, **({"zero_optimization": table} if table else {})})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "--zero-stage 3"),
        ({"stage": 3, "zero_hpz_partition_size": 8}, ""),
        ({"stage": 3, "mics_shard_size": 8}, ""),
    ],
)
def test_stages_of_deepspeed_that_megatron_deepspeed_has_otherwise_are_asked_for(table, said, tmp_path):
    with pytest.raises(InputError, match=r"zero=|shard="):
        job(tmp_path, {}, ds__json=_deepspeed(table), a__sh=f"{FORK} --fp16 {said}\n")


LARGER = NEMO.replace("llama3_8b", "llama3_70b").replace("configure(options_of_ours())", "configure()")
LARGER = LARGER.replace("def configure(args)", "def configure()").replace(
    '    if args.dtype.lower() == "fp8":\n    ', ""
)
LARGER = LARGER.replace("recipe.trainer.plugins = bf16_with_fp8_mixed()", "CHANGED")
OF_70B = {"tp": 4, "pp": 4, "vpp": 5, "cp": 2, "seq": 8192, "gbs": 512, "micro_batch_size": None}
ALONE = {"pp": 1, "vpp": None, "cp": 1, "sp": False}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("pass", {}),
        (
            "recipe.data = run.Config(llm.MockDataModule, seq_length=4096)",
            {"seq": 4096, "micro_batch_size": 4, "gbs": 8},
        ),
        ("recipe.trainer.strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=8)", {"tp": 8, **ALONE}),
        ("recipe.trainer.strategy.tensor_model_parallel_size = 8", {"tp": 8}),
        ("recipe.trainer.strategy.ddp.grad_reduce_in_fp32 = False", {"grad_dtype": "fp32"}),
        ("recipe.trainer.plugins.grad_reduce_in_fp32 = False", {"grad_dtype": "bf16"}),
        ('recipe.trainer.plugins = nl.MegatronMixedPrecision(precision="16-mixed")', {"precision": "fp16"}),
    ],
)
def test_what_a_script_puts_in_place_of_a_part_of_a_recipe_has_its_own_defaults(changed, expected, tmp_path):
    imports = "import nemo_run as run\nfrom nemo import lightning as nl\n"
    made = job(tmp_path, {"gpus": 64}, a__py=imports + LARGER.replace("CHANGED", changed))
    assert_has(made, **(OF_70B | expected))


OF_BRIDGE = """
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
from megatron.bridge.training.pretrain import pretrain

cfg = llama3_70b_pretrain_config()
CHANGED
pretrain(config=cfg, forward_step_func=forward_step)
"""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("", {"zero": None}),
        ("cfg.model = Llama32ModelProvider1B(tensor_model_parallel_size=2)", {"tp": 2, **ALONE}),
        ("cfg.model = AutoBridge.from_hf_pretrained('meta-llama/Llama-3.2-1B').to_megatron_provider()",
         {"tp": 1, **ALONE, "sp": None}),
        ("cfg.ddp = DistributedDataParallelConfig()", {"overlap": "tp"}),
        ("cfg.ddp = DistributedDataParallelConfig(use_megatron_fsdp=True)", {"zero": 0}),
        ("cfg.ddp.use_megatron_fsdp = True", {"zero": 3}),
        ("cfg.optimizer.use_distributed_optimizer = False", {"zero": None}),
        ("cfg.optimizer.use_distributed_optimizer = cfg.ddp.use_distributed_optimizer = False", {"zero": 0}),
    ],
)  # fmt: skip
def test_what_a_script_puts_in_place_of_a_part_of_a_recipe_of_bridge(changed, expected, tmp_path):
    assert_has(job(tmp_path, {"gpus": 64}, a__py=OF_BRIDGE.replace("CHANGED", changed)), **(OF_70B | expected))


def test_batches_that_a_script_takes_from_a_recipe_are_asked_for(tmp_path):
    text = OF_BRIDGE.replace("CHANGED", "cfg.train = TrainingConfig(micro_batch_size=2)")
    with pytest.raises(InputError, match="gbs"):
        job(tmp_path, {"gpus": 64}, a__py=text)


@pytest.mark.parametrize(
    "program",
    ["pretrain_bert.py", "pretrain_t5.py", "pretrain_mamba.py", "pretrain_retro.py", "pretrain_vlm.py",
     "pretrain_vision_classify.py", "examples/multimodal/train.py", "pretrain_qwen2_vl.py"],
)  # fmt: skip
def test_programs_that_build_no_gpt_from_its_arguments_ask_for_the_model(program, tmp_path):
    with pytest.raises(InputError, match="model=NAME"):
        job(tmp_path, {}, a__sh=MEGATRON.replace("pretrain_gpt.py", program) + "\n")
    made = job(tmp_path, {"model": "llama3-8b"}, a__sh=MEGATRON.replace("pretrain_gpt.py", program) + "\n")
    assert_has(made, precision="bf16", micro_batch_size=2)


SWIFT = "NPROC_PER_NODE=8 megatron sft --max_length 4096 --dataset x "


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("--load Qwen2.5-7B-Instruct-mcore", {"model": "Qwen2.5-7B-Instruct", "seq": 4096, "gbs": 16}),
        ("--model Qwen/Qwen2.5-7B --recompute_granularity full --recompute_method block --recompute_num_layers 8",
         {"recompute": "full:8"}),
        ("--model Qwen/Qwen2.5-7B --pipeline_model_parallel_size 4 --num_layers_per_virtual_pipeline_stage 1",
         {"vpp": 7}),
    ],
)  # fmt: skip
def test_layers_of_a_model_that_megatron_swift_names(said, expected, tmp_path):
    assert_has(job(tmp_path, {}, a__sh=f"{SWIFT}{said}\n"), **expected)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("llama3_8b trainer.devices=8 trainer.num_nodes=2", {"gpus": 16, "model": "llama3-8b"}),
        ("llama3_8b trainer.devices=8 trainer.num_nodes=2 model=llama3_70b", {"model": "llama3-70b", "cp": 2}),
        ("'llama3_8b(num_nodes=2, num_gpus_per_node=8, performance_mode=True)'", {"gpus": 16, "grad_dtype": "bf16"}),
    ],
)
def test_factories_of_nemo_on_a_command_line(said, expected, tmp_path):
    assert_has(job(tmp_path, {}, a__sh=f"nemo llm pretrain --factory {said} --yes\n"), **expected)
