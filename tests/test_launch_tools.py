"""Training tools around Hugging Face models: what each has where its files say nothing, and what is asked about."""

import json
import re
from pathlib import Path

import pytest
import round_trips

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.export import exported, save_export
from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import LackingError
from gpuscale.presets.tools import all_tools, load_tool
from gpuscale.request import JobOptions, Layout, declared

AXOLOTL = {
    "base_model": "Qwen/Qwen2.5-7B",
    "sequence_len": 4096,
    "micro_batch_size": 1,
    "gradient_checkpointing": "true",
}
FACTORY = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B", "stage": "sft", "do_train": "true", "finetuning_type": "full",
    "bf16": "true", "cutoff_len": 2048, "per_device_train_batch_size": 1,
}  # fmt: skip
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --tuner_type full --dataset x --max_length 4096"


def job(folder: Path, given=None, **files):
    """What is read of files given by name (`a__yaml`): a text, or settings of a YAML file."""
    paths = []
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(text if isinstance(text, str) else "".join(f"{key}: {value}\n" for key, value in text.items()))
        paths.append(path)
    return read_launch(paths[-1:], {}, {"gpus": 8} if given is None else given)


def states(made) -> dict:
    """Options and layout of a job in one."""
    return {**made.options, **made.layout}


def assert_has(made, **expected) -> None:
    """Check some options of a job; None of one that must not be there."""
    found = states(made)
    assert {name: found.get(name) for name in expected} == expected


# -- the tables


def test_every_fact_of_a_tool_has_a_source_and_what_is_asked_for_is_an_option():
    options = {*declared(JobOptions), *declared(Layout), ""}
    for tool in all_tools():
        assert re.search(r"20\d\d", tool.basis), tool.name
        assert all(default.source.strip() for default in tool.defaults.values()), tool.name
        assert {asked.option for asked in tool.asked.values()} <= options, tool.name
        assert all(asked.why for asked in tool.asked.values()), tool.name


def test_a_tool_has_what_it_stands_on():
    assert load_tool("trl").ignores("eval_steps")
    assert load_tool("llama-factory").asks("optim_target_modules")


# -- axolotl


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"bf16": "auto", "tf32": "false"}, {"precision": "bf16", "master_dtype": None}),
        ({"tf32": "true"}, {"precision": "bf16"}),
        ({"fp16": "true"}, {"precision": "fp16"}),
        ({"bf16": "false", "fp16": "false"}, {"precision": "fp32"}),
        ({"bf16": "full"}, {"precision": "bf16", "master_dtype": "none", "moment_dtype": "bf16"}),
        ({"bfloat16": "true"}, {"precision": "bf16", "master_dtype": "none", "grad_dtype": "bf16"}),
        ({"activation_offloading": "legacy"}, {"offload": "activations", "recompute": "full"}),
        ({"activation_offloading": "disk"}, {"offload": "activations"}),
        ({"activation_offloading": "hidden_states"}, {"offload": "activations"}),
        ({"activation_offloading": "false"}, {"offload": None}),
        ({"attn_implementation": "flash_attention_3"}, {"attention": "fa3"}),
        ({"flash_attention": "true"}, {"attention": "fa2"}),
        ({"sdp_attention": "true"}, {"attention": "sdpa"}),
        ({"flex_attention": "true"}, {"attention": "flex"}),
        ({"eager_attention": "true"}, {"attention": "eager"}),
        ({"optimizer": "muon"}, {"optimizer": "muon"}),
        ({"optimizer": "ao_adamw_8bit"}, {"optimizer": "adamw-8bit"}),
        ({"gradient_accumulation_steps": 4}, {"gbs": 32, "micro_batch_size": 1}),
        ({"batch_size": 4}, {"gbs": 32, "micro_batch_size": 1}),
        ({"batch_size": 4, "gradient_accumulation_steps": 2}, {"gbs": 16}),
        ({"xformers_attention": "true"}, {"attention": "sdpa"}),
        ({"xformers_attention": "true", "flash_attention": "true"}, {"attention": "fa2"}),
        ({"chunked_cross_entropy": "true"}, {"loss": "chunked"}),
        ({"torch_compile_backend": "inductor"}, {"compile": None}),
        ({"torch_compile_backend": "inductor", "torch_compile": "true"}, {"compile": "on"}),
    ],
)
def test_axolotl_under_fsdp(more, expected, tmp_path):
    fsdp = {"fsdp_version": 2, "fsdp_config": "{reshard_after_forward: true, offload_params: false}"}
    made = job(tmp_path, a__yaml=AXOLOTL | fsdp | more)
    assert_has(made, zero=3, **expected)


def test_axolotl_without_sharding_holds_weights_in_bf16_alone(tmp_path):
    made = job(tmp_path, a__yaml=AXOLOTL)
    assert_has(made, zero=0, precision="bf16", master_dtype="none", grad_dtype="bf16", moment_dtype="bf16")
    assert any(said.text == "bf16: true" and "axolotl's default" in said.meaning for said in made.assumed)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zero1.json", {"zero": 1, "offload": None}),
        ("zero2.json", {"zero": 2, "offload": "optimizer"}),
        ("zero3_bf16.json", {"zero": 3, "offload": None, "precision": "bf16"}),
        ("zero3_bf16_cpuoffload_params.json", {"zero": 3, "offload": "parameters"}),
        ("zero3_bf16_cpuoffload_all.json", {"zero": 3, "offload": "optimizer+parameters"}),
    ],
)
def test_axolotl_knows_its_own_files_of_deepspeed(name, expected, tmp_path):
    made = job(tmp_path, a__yaml=AXOLOTL | {"deepspeed": f"deepspeed_configs/{name}"})
    assert made.target == "deepspeed"
    assert_has(made, framework="deepspeed", **expected)


# -- LLaMA-Factory


@pytest.mark.parametrize("switch", ["use_badam", "use_adam_mini"])
def test_every_optimizer_of_llama_factory_that_is_not_modelled_is_asked_about(switch, tmp_path):
    with pytest.raises(InputError) as caught:
        job(tmp_path, a__yaml=FACTORY | {switch: "true"})
    assert switch in caught.value.place
    assert "`optimizer=...`" in caught.value.hint
    assert_has(job(tmp_path, {"gpus": 8, "optimizer": "adamw"}, a__yaml=FACTORY | {switch: "true"}), zero=0)
    assert_has(job(tmp_path, a__yaml=FACTORY | {switch: "false"}), optimizer="adamw")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"precision": "bf16", "master_dtype": None, "recompute": "full", "gbs": 8}),
        ({"use_muon": "true"}, {"optimizer": "muon"}),
        (
            {"bf16": "false", "pure_bf16": "true"},
            {"master_dtype": "none", "moment_dtype": "bf16", "grad_dtype": "bf16"},
        ),
        ({"disable_gradient_checkpointing": "true"}, {"recompute": "none"}),
        ({"use_unsloth_gc": "true"}, {"offload": "activations"}),
        ({"flash_attn": "fa2"}, {"attention": "fa2"}),
        ({"flash_attn": "disabled"}, {"attention": "eager"}),
        ({"flash_attn": "auto"}, {"attention": None}),
        ({"enable_liger_kernel": "true"}, {"loss": "linear"}),
        ({"use_cce": "true"}, {"loss": "linear"}),
        ({"adafactor": "true"}, {"optimizer": "adafactor"}),
        ({"torch_compile_mode": "default"}, {"compile": "on"}),
        ({"deepspeed": "examples/deepspeed/ds_z0_config.json"}, {"zero": 0, "framework": "deepspeed"}),
        ({"deepspeed": "examples/deepspeed/ds_z2_config.json"}, {"zero": 2, "offload": None, "overlap": None}),
        ({"deepspeed": "examples/deepspeed/ds_z2_offload_config.json"}, {"zero": 2, "offload": "optimizer"}),
        ({"deepspeed": "examples/deepspeed/ds_z3_config.json"}, {"zero": 3, "offload": None}),
        (
            {"deepspeed": "examples/deepspeed/ds_z3_offload_config.json"},
            {"zero": 3, "offload": "optimizer+parameters", "overlap": "none"},
        ),
    ],
)
def test_llama_factory(more, expected, tmp_path):
    assert_has(job(tmp_path, a__yaml=FACTORY | more), **expected)


def test_llama_factory_trains_adapters_where_nothing_is_said(tmp_path):
    without = {name: value for name, value in FACTORY.items() if name != "finetuning_type"}
    made = job(tmp_path, a__yaml=without)
    assert_has(made, tune="lora", lora_rank=8, lora_targets="all", lora_dropout=False, base_dtype=None)
    assert any(said.text == "finetuning_type: lora" and "LLaMA-Factory's default" in said.meaning
               for said in made.assumed)  # fmt: skip


# -- ms-swift


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zero0", {"zero": 0}),
        ("zero1", {"zero": 1, "overlap": "none"}),
        ("zero2", {"zero": 2, "offload": None}),
        ("zero3", {"zero": 3, "offload": None}),
        ("zero2_offload", {"zero": 2, "offload": "optimizer"}),
        ("zero3_offload", {"zero": 3, "offload": "optimizer+parameters"}),
    ],
)
def test_every_named_config_of_ms_swift(name, expected, tmp_path):
    made = job(tmp_path, {}, train__sh=f"NPROC_PER_NODE=8 {SWIFT} --deepspeed {name}\n")
    assert_has(made, framework="deepspeed", gpus=8, precision="bf16", recompute="full", master_dtype=None, **expected)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"zero": 0, "master_dtype": "none", "gbs": 16, "micro_batch_size": 1}),
        ("--per_device_train_batch_size 4", {"gbs": 32, "micro_batch_size": 4}),
        ("--gradient_accumulation_steps 3", {"gbs": 24}),
        ("--fsdp fsdp2", {"zero": 3, "recompute": "full", "master_dtype": None}),
        ("--torch_dtype float32", {"precision": "fp16", "master_dtype": None}),
        ("--optimizer muon", {"optimizer": "muon"}),
        ("--attn_impl flash_attention_3", {"attention": "fa3"}),
        ("--sequence_parallel_size 4", {"cp": 4, "cp_comm": "a2a", "gbs": 16}),
        ("--gradient_checkpointing false", {"recompute": "none"}),
        ("--packing true --packing_length 16384", {"seq": 16384}),
        ("--packing false --packing_length 16384", {"seq": 4096}),
        ("--deepspeed zero1 --deepspeed_autotp_size 2", {"tp": 2, "zero": 1}),
    ],
)
def test_ms_swift(more, expected, tmp_path):
    assert_has(job(tmp_path, {}, train__sh=f"NPROC_PER_NODE=8 {SWIFT} {more}\n"), **expected)


@pytest.mark.parametrize("more", ["--use_galore true", "--lisa_activated_layers 2", "--freeze_parameters_ratio 0.5"])
def test_what_ms_swift_trains_otherwise_is_asked_about(more, tmp_path):
    with pytest.raises(InputError) as caught:
        job(tmp_path, {}, train__sh=f"NPROC_PER_NODE=8 {SWIFT} {more}\n")
    assert more.split()[0][2:] in caught.value.place


# -- TRL and plain scripts

TRL = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"seq": 1024, "precision": "bf16", "recompute": "full", "master_dtype": None, "zero": 0}),
        ("--dtype bfloat16", {"precision": "bf16", "master_dtype": "none"}),
        ("--fp16", {"precision": "fp16"}),
        ("--accelerate_config zero2", {"zero": 2, "framework": "deepspeed"}),
        ("--accelerate_config fsdp2", {"zero": 3, "framework": "accelerate"}),
        ("--gradient_checkpointing False", {"recompute": "none"}),
        ("--loss_type chunked_nll", {"loss": "chunked"}),
        ("""--model_init_kwargs '{"attn_implementation": "eager", "dtype": "bfloat16"}'""",
         {"attention": "eager", "master_dtype": "none"}),
    ],
)  # fmt: skip
def test_trl(more, expected, tmp_path):
    assert_has(job(tmp_path, {"gpus": 8}, train__sh=f"{TRL} {more}\n"), **expected)


SCRIPT = "--model_name_or_path Qwen/Qwen2.5-7B --max_seq_length 2048 --output_dir out --per_device_train_batch_size 1"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"torchrun --nproc_per_node 8 train.py {SCRIPT} --bf16 --deepspeed conf/zero3.json", "deepspeed"),
        (f"accelerate launch --num_processes 8 --config_file fsdp.yaml train.py {SCRIPT} --bf16", "config_file"),
    ],
)
def test_a_file_that_says_how_a_job_is_sharded_is_asked_for(line, named, tmp_path):
    with pytest.raises(InputError, match="is not here") as caught:
        job(tmp_path, {}, run__sh=f"{line}\n")
    assert named in caught.value.place
    assert_has(job(tmp_path, {"zero": 2}, run__sh=f"{line}\n"), gpus=8)


@pytest.mark.parametrize("setting", ["--optimizer_offload_ratio 0.5", "--my_attention sparse", "--fp4_training True"])
def test_an_unknown_setting_whose_name_speaks_of_memory_or_time_is_asked_about(setting, tmp_path):
    with pytest.raises(InputError, match="not known here"):
        job(tmp_path, {}, run__sh=f"torchrun --nproc_per_node 8 train.py {SCRIPT} --bf16 {setting}\n")


def test_settings_are_listed_as_known_to_change_nothing_or_as_unknown(tmp_path):
    line = f"torchrun --nproc_per_node 8 train.py {SCRIPT} --bf16 --save_steps 100 --favourite_colour blue\n"
    said = {one.text: one.meaning for one in job(tmp_path, {}, run__sh=line).ignored}
    assert said["--save_steps 100"] == "changes no prediction"
    assert said["--favourite_colour blue"] == "not known here: taken to change no prediction"


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_on_one_gpu_runs_and_is_the_way_to_host_memory(stage, tmp_path):
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    made = job(tmp_path, {}, run__sh=f"deepspeed --num_gpus 1 train.py {SCRIPT} --bf16 --deepspeed ds.json\n")
    assert_has(made, zero=stage, gpus=1, offload="optimizer")


# -- Megatron-LM and its relatives

MEGATRON_SWIFT = (
    "megatron sft --model Qwen/Qwen3-30B-A3B-Base --dataset x --expert_model_parallel_size 8 --max_length 4096"
)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "",
            {
                "dispatcher": "alltoall",
                "etp": 1,
                "recompute": "selective:core_attn",
                "loss": "fused",
                "attention": "fa2",
            },
        ),
        (
            "",
            {
                "gbs": 16,
                "micro_batch_size": 1,
                "zero": None,
                "overlap": "none",
                "precision": "bf16",
                "grad_dtype": "fp32",
            },
        ),
        ("--recompute_granularity none", {"recompute": "none"}),
        ("--moe_token_dispatcher_type flex", {"dispatcher": "deepep"}),
        ("--attention_backend flash_3", {"attention": "fa3"}),
        ("--cross_entropy_loss_fusion false", {"loss": "standard"}),
        ("--use_distributed_optimizer false", {"zero": 0}),
        ("--packing true --packing_length 16384", {"seq": 16384}),
    ],
)
def test_ms_swift_on_megatron(more, expected, tmp_path):
    assert_has(job(tmp_path, {}, train__sh=f"NPROC_PER_NODE=8 {MEGATRON_SWIFT} {more}\n"), **expected)


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --swiglu"
    " --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64"
    " --bf16"
)


@pytest.mark.parametrize(
    ("kind", "learned"), [("none", False), ("rope", False), ("relative", False), ("learned_absolute", True)]
)
def test_positions_of_megatron_lm(kind, learned, tmp_path):
    made = job(tmp_path, {}, run__sh=f"{MEGATRON} --position-embedding-type {kind}\n")
    assert ("learned_positions" in made.options["model"]) is learned


@pytest.mark.parametrize(
    ("line", "kernels"),
    [
        ("--attention-backend fused", "cudnn"),
        ("--attention-backend flash", "fa2"),
        ("--attention-backend unfused", "eager"),
        ("--attention-backend auto", None),
    ],
)
def test_attention_of_megatron_lm(line, kernels, tmp_path):
    assert_has(job(tmp_path, {}, run__sh=f"{MEGATRON} {line}\n"), attention=kernels)
    fused = job(tmp_path, {}, run__sh=f"export NVTE_FUSED_ATTN=0\n{MEGATRON}\n")
    assert_has(fused, attention="fa2")


@pytest.mark.parametrize("kernels", ["fa2", "cudnn", "eager"])
def test_attention_is_written_for_megatron_lm_and_read_back(kernels, tmp_path):
    options = {"model": "llama3-8b", "gpus": 16, "gbs": 64, "framework": "megatron-lm", "attention": kernels}
    save_export(exported(round_trips.predicted(options, {}), "megatron-lm"), tmp_path)
    assert_has(read_launch([tmp_path / "run.sh"]), attention=kernels)


def test_attention_that_no_setting_says_is_refused(tmp_path):
    options = {"model": "llama3-8b", "gpus": 16, "gbs": 64, "framework": "megatron-lm", "attention": "fa3"}
    with pytest.raises(NoAnswerError, match="`attention`"):
        exported(round_trips.predicted(options, {}), "megatron-lm")


@pytest.mark.parametrize(
    "model", ["  mamba_ssm_ngroups: 8", "  hybrid_override_pattern: 'M-M*'", "name: megatron_mamba"]
)
def test_mamba_layers_are_not_read_as_attention(model, tmp_path):
    text = f"""trainer: {{devices: 8, num_nodes: 1, precision: bf16}}
model:
  micro_batch_size: 1
  global_batch_size: 64
  encoder_seq_length: 4096
  num_layers: 8
  hidden_size: 1024
  num_attention_heads: 16
  vocab_size: 32000
{model}
"""
    with pytest.raises(InputError, match="Mamba layers"):
        job(tmp_path, {}, a__yaml=text)


BRIDGE = """train: {global_batch_size: 8, micro_batch_size: 1}
model: {seq_length: 4096, tensor_model_parallel_size: 1%s}
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"precision": "bf16", "zero": None, "overlap": "dp"}),
        (", fp16: true, bf16: false", {"precision": "bf16"}),  # what lies over both is bf16_mixed
        (
            "}\nmixed_precision: fp16_mixed\nddp: {grad_reduce_in_fp32: true",
            {"precision": "fp16", "grad_dtype": "fp16"},
        ),
        ("}\nddp: {grad_reduce_in_fp32: false", {"grad_dtype": "fp32"}),
        (
            "}\nmixed_precision: {grad_reduce_in_fp32: false, fp8: hybrid",
            {"grad_dtype": "bf16", "precision": "fp8-current"},
        ),
        (
            ", fp8: hybrid}\nmixed_precision: bf16_mixed\noptimizer: {use_distributed_optimizer: false",
            {"zero": None, "precision": "bf16"},
        ),
        (", cpu_offloading_num_layers: 4}\nddp: {use_megatron_fsdp: true", {"zero": 3, "offload": None}),
        (", num_layers: 8, hidden_size: 1024, num_attention_heads: 16", {"precision": "fp32", "zero": 0}),
    ],
)
def test_a_yaml_of_megatron_bridge_overrides_a_recipe(more, expected, tmp_path):
    made = job(tmp_path, {"gpus": 8, "model": "llama3.2-1b"}, conf__yaml=BRIDGE % more)
    assert made.target == "megatron-bridge"
    assert_has(made, **expected)


@pytest.mark.parametrize("more", ["--fp8-format hybrid", "--fp8-format e4m3 --fp8-recipe delayed"])
def test_fp8_beside_weights_in_fp32_is_asked_for(more, tmp_path):
    line = f"{MEGATRON.removesuffix(' --bf16')} {more}\n"
    with pytest.raises(LackingError, match="weights are in fp32") as caught:
        job(tmp_path, {}, run__sh=line)
    assert caught.value.name == "precision"
    assert "fp8-delayed" in caught.value.hint
    assert_has(job(tmp_path, {"precision": "fp8-delayed"}, run__sh=line), gbs=64)


ASKED = (
    ("--schedules-method dualpipev --pipeline-model-parallel-size 4", "schedule", "zb-v"),
    ("--use-dualpipev --pipeline-model-parallel-size 4", "schedule", "zb-v"),
    ("--enable-zero-bubble --pipeline-model-parallel-size 4", "schedule", "zb-2p"),
    ("--swap-optimizer --use-distributed-optimizer --pipeline-model-parallel-size 4", "offload", "optimizer"),
    ("--o2-optimizer --pipeline-model-parallel-size 4", "moment_dtype", "bf16"),
    ("--retro-add-retriever --pipeline-model-parallel-size 4", "model", "llama3.2-1b"),
    ("--num-experts-switch 16 --pipeline-model-parallel-size 4", "model", "llama3.2-1b"),
    ("--stage ray_grpo --pipeline-model-parallel-size 4", "method", "grpo"),
)


FORKS = (  # of DeepSpeed, BigScience, MindSpeed and Pai-Megatron-Patch, with what they mean
    ("--deepspeed --ds-sequence-parallel-size 4 --zero-stage 3 --use-flash-attn-v2",
     {"cp": 4, "cp_comm": "a2a", "zero": 3, "attention": "fa2"}),
    ("--DDP-impl local --use-flash-attn", {"framework": "megatron-lm@2021-12", "attention": "fa2"}),
    ("--deepspeed --num-experts 8 --expert-interval 1 --zero-stage 1", {"routing": "dropping"}),
    ("--deepspeed --num-experts 8 --expert-interval 1 --disable-moe-token-dropping", {"routing": "dropless"}),
    ("--num-layers 18 --noop-layers 0,17 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
     {"vpp": 3, "pipeline_split": "even"}),
    ("--num-layers 14 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
     "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", {"vpp": 4}),
    ("--use-precision-aware-optimizer --main-grads-dtype bf16 --use-distributed-optimizer", {"grad_dtype": "bf16"}),
    ("--use-precision-aware-optimizer --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32",
     {"grad_dtype": "fp32"}),
    ("--pipeline-model-parallel-size 4 --num-layer-list 3,5,5,3", {"pp": 4, "pipeline_split": "even"}),
    ("--recompute-norm --recompute-activation-function", {"recompute": "selective:layernorm"}),
    ("--recompute-granularity selective --recompute-mla-up-proj", {"recompute": "selective:core_attn+mla_up_proj"}),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers 2 --pipeline-model-parallel-size 2 "
     "--num-layers-per-virtual-pipeline-stage 2 --enable-recompute-layers-per-pp-rank",
     {"recompute": "full:2", "vpp": 4}),
    ("--stage dpo --is-pairwise-dataset", {"method": "dpo", "micro_batch_size": 2}),
    ("--use-bnb-optimizer", {"optimizer": "adamw-8bit"}),
    ("--num-experts 8 --tensor-model-parallel-size 2 --expert-model-parallel-size 2 --moe-tp-extend-ep",
     {"ep": 4, "etp": 1, "tp": 2}),
    ("--optimizer hybridadam --use-distributed-optimizer", {"optimizer": "adam", "offload": "optimizer"}),
    ("--use-ascend-mc2 --tensor-model-parallel-size 2 --sequence-parallel", {"overlap": "tp"}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--curriculum-learning-legacy", "as long as they get"),
        ("--deterministic-mode", "as they are without it"),
        ("--reuse-fp32-param", "beside their fp32 copies"),
    ],
)
def test_what_is_predicted_otherwise_under_an_option_is_said(more, said, tmp_path):
    assert said in str(job(tmp_path, {}, run__sh=f"{MEGATRON} {more}\n").assumed)


@pytest.mark.parametrize(("more", "expected"), FORKS, ids=[more for more, _ in FORKS])
def test_what_megatron_lms_forks_call_otherwise(more, expected, tmp_path):
    assert_has(job(tmp_path, {}, run__sh=f"{MEGATRON} {more}\n"), **expected)


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ("--intermediate-size 5632 --n-head-kv 4", ("ffn=5632", "kv_heads=4")),
        ("--num-experts 64 --n-shared-experts 2 --first-k-dense-replace 1 --moe-intermediate-size 1408",
         ("moe.experts=64", "moe.ffn=1408", "moe.shared_ffn=2816", "moe.dense_layers=1")),
        ("--multi-head-latent-attention --qk-rope-head-dim 64 --qk-nope-head-dim 96 --kv-lora-rank 256",
         ("latent.kv_rank=256", "latent.nope_dim=96", "latent.rope_dim=64")),
        ("--num-layers 18 --noop-layers 0,17", ("layers=16",)),
    ],
)  # fmt: skip
def test_shapes_of_models_as_forks_of_megatron_lm_call_them(more, keys, tmp_path):
    model = job(tmp_path, {}, run__sh=f"{MEGATRON} {more}\n").options["model"]
    assert not set(keys) - set(model.split(",")), model


@pytest.mark.parametrize(("more", "option", "answer"), ASKED)
def test_what_megatron_lms_forks_have_and_nobody_models_is_asked_for(more, option, answer, tmp_path):
    with pytest.raises(LackingError) as caught:
        job(tmp_path, {}, run__sh=f"{MEGATRON} {more}\n")
    assert caught.value.name == option
    assert_has(job(tmp_path, {option: answer}, run__sh=f"{MEGATRON} {more}\n"), pp=4, gbs=64)


def test_what_has_a_small_effect_is_noted(tmp_path):
    made = job(tmp_path, {}, run__sh=f"{MEGATRON} --fp8-format hybrid --first-last-layers-bf16\n")
    assert any(said.meaning == "all layers are predicted in 8 bits" for said in made.assumed)


def test_what_no_argument_of_megatron_lm_is_and_speaks_of_memory_is_asked_about(tmp_path):
    with pytest.raises(InputError, match="not known here"):
        job(tmp_path, {}, run__sh=f"{MEGATRON} --use-my-offloading\n")


PRIMUS = """modules:
  post_trainer:
    framework: megatron_bridge
    config: post_trainer.yaml
    model: qwen3_32b.yaml
    overrides:
      tensor_model_parallel_size: 4
      pipeline_model_parallel_size: 1
      peft: "%s"
      global_batch_size: 128
      micro_batch_size: 1
      seq_length: 2048
      precision_config: bf16_mixed
      recompute_granularity: full
      recompute_method: uniform
      recompute_num_layers: 1
"""


def test_primus_for_megatron_bridge(tmp_path):
    made = job(tmp_path, a__yaml=PRIMUS % "none")
    assert made.target == "primus"
    expected = {
        "model": "qwen3-32b",
        "tp": 4,
        "gbs": 128,
        "precision": "bf16",
        "recompute": "full",
        "sp": False,
        "zero": None,
    }
    assert_has(made, cluster=None, **expected)
    assert_has(job(tmp_path, a__yaml=PRIMUS % "lora"), tune="lora", lora_rank=32, lora_targets="down,gate,k,o,q,up,v")
    with pytest.raises(InputError, match="part of the model"):
        job(tmp_path, a__yaml=PRIMUS % "prefix")


def test_the_folder_of_a_primus_file_names_the_gpu(tmp_path):
    folder = tmp_path / "configs" / "MI325X"
    folder.mkdir(parents=True)
    assert_has(job(folder, a__yaml=PRIMUS % "none"), cluster="mi325x")
    assert_has(job(folder, {"gpus": 8, "cluster": "mi300x"}, a__yaml=PRIMUS % "none"), cluster=None)
