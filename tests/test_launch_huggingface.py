"""DeepSpeed's JSON and accelerate's YAML under the Hugging Face Trainer: written, and read back as the same plan."""

import csv
import json
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import round_trips

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.export import exported, save_export
from gpuscale.launch.huggingface_models import config_json, hub_id, known_model
from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import Reading
from gpuscale.launch.shapes import same_shape
from gpuscale.launch.sources import launches
from gpuscale.launch.subject import estimate_launch
from gpuscale.launch.targets import targets
from gpuscale.presets.huggingface import Config, read_config
from gpuscale.presets.models import all_models, load_model
from gpuscale.request import JobOptions, declared

TARGETS = ("deepspeed", "accelerate")
DENSE = {"model": "llama3-8b", "gpus": 16, "gbs": 64, "seq": 4096}
EXPERTS = {"model": "mixtral-8x7b", "gpus": 16, "gbs": 64, "seq": 4096}


def read(target, given=None, **texts):
    """What a target reads of files given as texts by name; dots of names are `__`."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, text in texts.items():
            paths.append(Path(folder) / name.replace("__", "."))
            paths[-1].write_text(text)
        reading = Reading(launches(paths[-1:], {})[0].sources, given)
        targets()[target].read(reading)
        return reading.result(target)


def written(target, job, layout, folder):
    estimate = round_trips.predicted({"framework": targets()[target].frameworks[0], **job}, layout)
    made = exported(estimate, target)
    save_export(made, folder, force=True)
    return estimate, made


def fits(target, job, layout):
    try:
        return round_trips.predicted({"framework": targets()[target].frameworks[0], **job}, layout)
    except InputError:
        return None


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("base", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_every_option_changes_the_text_or_the_prediction_not_or_is_refused(target, base, tmp_path):
    usual, layout = fits(target, base, {}), {}
    text = [(one.path, one.text) for one in exported(usual, target).files]
    seen = 0
    for name in declared(JobOptions):
        if name in {*round_trips.BESIDE, "model", "gpus", "framework", "sharp", "nvls", *base}:
            continue
        for value in round_trips.values_of(name):
            estimate = fits(target, {**base, name: value}, layout)
            if estimate is None:
                continue
            seen += 1
            try:
                other = [(one.path, one.text) for one in exported(estimate, target).files]
            except NoAnswerError as error:
                assert name in str(error), (name, value)
                continue
            same = estimate.plan.to_dict() == usual.plan.to_dict()
            assert same or other != text, (name, value)
    assert seen > 15


LAYOUTS = {
    "deepspeed": [{"tp": 2, "zero": 1}, {"cp": 2}, {"zero": 0}, {"zero": 1}, {"zero": 2}, {"micro_batch_size": 2},
                  {"recompute": "full"}],
    "accelerate": [{"tp": 2}, {"cp": 2}, {"zero": 0}, {"zero": 2}, {"shard": 8}, {"micro_batch_size": 2},
                   {"recompute": "full"}],
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_every_axis_of_a_layout_changes_the_text(target, tmp_path):
    texts = {tuple(one.text for one in written(target, DENSE, {}, tmp_path)[1].files)}
    for layout in LAYOUTS[target]:
        texts.add(tuple(one.text for one in written(target, DENSE, layout, tmp_path)[1].files))
    assert len(texts) == 1 + len(LAYOUTS[target])


def test_deepspeed_has_its_own_names():
    layout = {"zero": 3, "recompute": "full"}
    estimate = fits("deepspeed", {**DENSE, "offload": "optimizer+parameters"}, layout)
    made = {one.path: one.text for one in exported(estimate, "deepspeed").files}
    config = json.loads(made["ds_config.json"])
    assert config["zero_optimization"]["stage"] == 3
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert config["bf16"] == {"enabled": True}
    assert "train_batch_size" not in config
    assert "--gradient_checkpointing True" in made["run.sh"]
    assert "--config_name meta-llama/Meta-Llama-3-8B" in made["run.sh"]


def test_accelerate_has_its_own_names(tmp_path):
    made = {one.path: one.text for one in written("accelerate", DENSE, {"shard": 8}, tmp_path)[1].files}
    for line in ('distributed_type: "FSDP"', "num_processes: 16", "num_machines: 2", 'mixed_precision: "bf16"',
                 "  fsdp_version: 2", "  fsdp_reshard_after_forward: true", "  parallelism_config_dp_replicate_size: 2",
                 "  parallelism_config_dp_shard_size: 8"):  # fmt: skip
        assert line in made["accelerate.yaml"].splitlines()
    assert "accelerate launch --config_file=accelerate.yaml" in made["run.sh"]


@pytest.mark.parametrize(
    ("target", "job", "layout", "field"),
    [
        ("deepspeed", {"cuda_graphs": "full"}, {}, "cuda_graphs"),
        ("deepspeed", {"master_dtype": "none"}, {}, "master_dtype"),
        ("deepspeed", {}, {"zero": 3, "shard": 8}, "shard"),
        ("deepspeed", {"precision": "mxfp8"}, {}, "precision"),
        ("accelerate", {"cp_comm": "a2a"}, {"cp": 2}, "cp_comm"),
        ("accelerate", {"grad_dtype": "fp32"}, {}, "grad_dtype"),
        ("accelerate", {"vocab_multiple": 128, "model": "gpt3-13b"}, {}, "vocab_multiple"),
        ("accelerate", {"model": "mpt-13b"}, {}, "model"),
    ],
)
def test_what_a_target_lacks_is_refused_with_the_option(target, job, layout, field, tmp_path):
    cluster = {"cluster": "b200-superpod"} if job.get("precision") == "mxfp8" else {}
    with pytest.raises(NoAnswerError, match=f"`{field}`: "):
        written(target, {**DENSE, **cluster, **job}, layout, tmp_path)


# -- models --


def test_a_shape_without_an_id_gets_a_config_that_means_it():
    made = [model for model in all_models() if hub_id(model) is None]
    found = {model.name: config_json(model, 4096) for model in made}
    missing = {name for name, config in found.items() if config is None}
    for model in made:
        if found[model.name]:
            assert same_shape(read_config(Config("config.json", found[model.name], {}), "x"), model)
    assert len(missing) < 12, missing


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("someone/gpt-oss-120b-dequantized", "gpt-oss-120b"),
        ("hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16", "llama3.1-405b"),
    ],
)
def test_models_are_known_by_their_ids_and_by_names_that_hold_them(name, model):
    assert same_shape(load_model(known_model(name)[0]), load_model(model))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("google/flan-t5-xl", "has an encoder"),
        ("google-bert/bert-base-uncased", "has an encoder"),
        ("Qwen/Qwen-VL-Chat", "sees images"),
        ("llava-hf/llava-1.5-7b-hf", "sees images"),
    ],
)
def test_models_that_are_no_decoders_of_text_are_refused_with_the_reason(name, why):
    with pytest.raises(InputError, match=why):
        read("accelerate", run__sh=f"torchrun train.py --model_name_or_path {name} --bf16 True")


def test_a_model_that_is_not_known_is_asked_for():
    with pytest.raises(InputError, match="acme/secret"):
        read("accelerate", run__sh="torchrun train.py --model_name_or_path acme/secret --bf16 True")


# -- real files --

REAL = Path(__file__).parents[2] / "shared" / "formats" / "launch"
OWN = ("accelerate", "axolotl", "deepspeed", "llamafactory", "gpt-neox", "llm-foundry", "maxtext", "olmo")


def index():
    """Real files that are read here: the name of each and what a reader should make of it."""
    if not (REAL / "index.csv").is_file():
        return []
    with (REAL / "index.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return [
        (row["file"], row["expect"] or "refuse") for row in rows if row["target"] in OWN or "maxtext" in row["file"]
    ]


@pytest.mark.skipif(not index(), reason="the shared files are not here")
@pytest.mark.parametrize(("name", "expect"), index())
def test_real_files_are_predicted_asked_about_or_refused(name, expect):
    if expect != "ok":
        asked = "number of GPUs" if expect == "ask" else "no file states|not modelled"
        with pytest.raises(InputError, match=asked):
            estimate_launch([REAL / name])
    if expect != "refuse":
        found = estimate_launch([REAL / name], {"gpus": 64} if expect == "ask" else {})
        assert found.estimate.plan.step_time_s > 0


# -- jobs of the Trainer, in the manner of real ones --

FLAGS = (
    "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 --gradient_accumulation_steps 2"
    " --model_max_length 2048 --bf16 True --gradient_checkpointing True --optim adamw_torch"
)

RECIPE = """
model_name_or_path: mistralai/Mistral-7B-v0.1
torch_dtype: bfloat16
bf16: true
gradient_accumulation_steps: 1
gradient_checkpointing: true
max_seq_length: 2048
per_device_train_batch_size: 16
"""

ZERO3 = """
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_multinode_launcher: standard
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""

AUTO = """{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
 "zero_optimization": {"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "cpu"}}}"""


def test_a_recipe_under_accelerate_and_deepspeed():
    job = read(
        "deepspeed",
        recipe__yaml=RECIPE,
        zero3__yaml=ZERO3,
        run__sh="accelerate launch --config_file zero3.yaml scripts/run_sft.py recipe.yaml\n",
    )
    assert job.options["model"] == "mistralai/Mistral-7B-v0.1"
    assert {name: job.options[name] for name in ("gpus", "gbs", "seq")} == {"gpus": 8, "gbs": 128, "seq": 2048}
    assert {name: job.layout[name] for name in ("zero", "recompute", "micro_batch_size")} == {
        "zero": 3, "recompute": "full", "micro_batch_size": 16,
    }  # fmt: skip


def test_a_command_with_deepspeeds_json_whose_values_are_auto():
    line = f"torchrun --nnodes=2 --nproc_per_node=8 train.py {FLAGS} --deepspeed ds.json\n"
    job = read("deepspeed", ds__json=AUTO, run__sh=line)
    assert job.options["gbs"] == 4 * 2 * 16
    assert job.options["offload"] == "optimizer"
    assert job.options["precision"] == "bf16"
    assert (job.layout["zero"], job.layout["recompute"]) == (2, "full")
    assert "overlap" not in job.options


def test_plain_ddp_and_fsdp_of_the_first_generation():
    plain = read("accelerate", run__sh=f"torchrun --nproc_per_node=4 train.py {FLAGS}\n")
    assert (plain.layout["zero"], plain.options["gpus"], plain.options["gbs"]) == (0, 4, 32)
    assert any("DDP" in said.meaning for said in plain.assumed)
    flags = f'torchrun --nproc_per_node=8 train.py {FLAGS} --fsdp "full_shard auto_wrap"\n'
    assert read("accelerate", run__sh=flags).layout["zero"] == 3
    hybrid = f'torchrun --nnodes=2 --nproc_per_node=8 train.py {FLAGS} --fsdp "hybrid_shard auto_wrap"\n'
    assert read("accelerate", run__sh=hybrid).layout["shard"] == 8


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--use_peft True --lora_r 8 --lora_target_modules wq_a", "'wq_a' are not known here"),
        ("--load_in_4bit True", "frozen weights in nf4-single"),
        ("--optim galore_adamw_layerwise", "galore_adamw_layerwise is not modelled"),
        ("--use_peft True --lora_r 0", "0 is out of range"),
        ("--use_peft True --lora_r 8 --lora_modules_to_save v_head", "'v_head' trained whole is not modelled"),
        ("--stage ppo --finetuning_type full", "ppo trains against other models"),
        ("--finetuning_type freeze", "freeze is not modelled"),
    ],
)
def test_what_trains_less_or_otherwise_is_refused_with_its_line(more, message):
    with pytest.raises(InputError, match=message) as caught:
        read("accelerate", run__sh=f"# a comment\ntorchrun --nproc_per_node=8 train.py {FLAGS} {more}\n")
    assert "run.sh:2" in caught.value.place


def test_a_batch_that_autotp_does_not_divide_is_refused():
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
              "zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 4}}  # fmt: skip
    line = "deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --max_seq_length 2048"
    with pytest.raises(InputError, match="AutoTP does not divide"):
        read("deepspeed", ds__json=json.dumps(config), run__sh=f"{line} --deepspeed ds.json\n")
    config |= {"train_batch_size": 32}
    job = read("deepspeed", ds__json=json.dumps(config), run__sh=f"{line} --deepspeed ds.json\n")
    assert (job.layout["tp"], job.options["gbs"]) == (4, 8)


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, (4, 64)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, (4, 64)),
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, (4, 64)),
        ({"train_batch_size": 64}, (8, 64)),
    ],
)
def test_two_of_three_sizes_of_a_batch_make_the_third(config, batch):
    config |= {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    job = read("deepspeed", {"gpus": 8, "model": "llama3-8b", "seq": 4096}, ds__json=json.dumps(config))
    assert (job.layout.get("micro_batch_size"), job.options["gbs"]) == batch


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"zero_optimization": {"stage": 3, "cpu_offload": True}}, {"offload": "optimizer"}),
        ({"zero_optimization": {"stage": 3, "cpu_offload": True, "cpu_offload_params": True}},
         {"offload": "optimizer+parameters"}),
        ({"compile": {"enabled": True}}, {"compile": "on"}),
        ({"tensor_parallel": {"tp": {"tp_size": 2}}}, {"tp": 2}),
    ],
)  # fmt: skip
def test_keys_of_deepspeeds_json_as_older_releases_have_them(more, expected):
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": True}}
    config |= {"zero_optimization": {"stage": 3}} | more
    job = read("deepspeed", {"gpus": 8, "model": "llama3-8b", "seq": 4096}, ds__json=json.dumps(config))
    assert {name: {**job.options, **job.layout}.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"elasticity": {"enabled": True}}, "`gbs=N`"), ({"amp": {"enabled": True}}, "`precision=...`"),
        ({"sparse_attention": {"mode": "fixed"}}, "`attention=...`"),
        ({"compile": {"deepcompile": True}}, "`compile=...`"),
    ],
)  # fmt: skip
def test_keys_of_deepspeeds_json_that_are_not_modelled_are_asked_about(more, asked):
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}} | more
    with pytest.raises(InputError) as caught:
        read("deepspeed", {"gpus": 8, "model": "llama3-8b", "seq": 4096}, ds__json=json.dumps(config))
    assert asked in caught.value.hint


def test_deepspeed_chat_has_options_of_its_own():
    text = """#!/bin/bash
ZERO_STAGE=${2:-3}
deepspeed --num_gpus 8 main.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 \\
  --max_seq_len 512 --gradient_accumulation_steps 1 --gradient_checkpointing \\
  --zero_stage $ZERO_STAGE --offload --deepspeed
"""
    job = read("deepspeed", run__sh=text)
    assert (job.options["gpus"], job.options["gbs"], job.options["precision"]) == (8, 32, "fp16")
    assert (job.layout["zero"], job.layout["recompute"]) == (3, "full")
    assert job.options["offload"] == "optimizer+parameters"


@pytest.mark.parametrize(
    ("launcher", "target", "zero", "more"),
    [
        ("--use_deepspeed --zero_stage 2 --mixed_precision bf16", "deepspeed", 2, {"offload": None}),
        ("--use_deepspeed --zero_stage 3 --offload_optimizer_device cpu --offload_param_device nvme"
         " --mixed_precision bf16", "deepspeed", 3, {"offload": "optimizer+parameters"}),
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP --mixed_precision bf16", "accelerate", 2, {}),
        ("--multi_gpu --mixed_precision bf16", "accelerate", 0, {"compile": None}),
        ("--multi_gpu --mixed_precision bf16 --dynamo_backend inductor", "accelerate", 0, {"compile": "on"}),
        ("--multi_gpu --mixed_precision bf16 --dynamo_backend no", "accelerate", 0, {"compile": None}),
    ],
)  # fmt: skip
def test_what_accelerate_launch_is_told_on_its_command_line(launcher, target, zero, more, tmp_path):
    script = tmp_path / "run.sh"
    flags = FLAGS.replace("--bf16 True ", "")
    script.write_text(f"accelerate launch --num_processes 8 {launcher} train.py {flags}\n")
    job = read_launch([script])
    assert (job.target, job.layout["zero"], job.options["precision"]) == (target, zero, "bf16")
    assert (job.options["gpus"], job.options["gbs"]) == (8, 64)
    assert {name: job.options.get(name) for name in more} == more


NASTY = (0, -1, 10**30, "x", None, [], True, 1.5, "1e400", float("nan"), "9" * 400, "{", "${X}")


@pytest.mark.parametrize("given", [{}, {"gpus": 64, "model": "llama3-8b", "seq": 4096}], ids=["alone", "with-options"])
def test_whatever_a_setting_says_is_read_or_refused(given, tmp_path):
    (tmp_path / "ds.json").write_text(AUTO)
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nnodes=2 --nproc_per_node=8 train.py {FLAGS} --deepspeed ds.json\n")
    (source, command) = launches([script], {})[0].sources
    seen = 0
    for place, one in ((0, source), (1, command)):
        for name, setting in one.settings.items():
            for value in NASTY:
                changed = replace(one, settings={**one.settings, name: replace(setting, value=value)})
                reading = Reading((changed, command) if place == 0 else (source, changed), given)
                with suppress(InputError):
                    targets()["deepspeed"].read(reading)
                    seen += 1
    assert seen > 50
