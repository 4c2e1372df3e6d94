"""What launch files lack is asked for in one message, and what it asks for is enough."""

import re
from pathlib import Path

import pytest

from gpuscale import InputError, read_launch

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
    return dict(re.findall(r"`((?:var=)?[^`=]+)=([^`]*)`", f"{error.hint}"))


def test_a_missing_file_of_the_sharding_is_asked_for_with_all_else(script):
    files = script(
        "deepspeed train.py --deepspeed ds_zero3.json --model_name_or_path nobody/knows-me --bf16 True"
        " --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --num_train_epochs 1 --unheard_attn x"
    )
    with pytest.raises(InputError) as error:
        read_launch(files)
    found = asked(error.value)
    assert found.keys() == {"model", "zero", "seq", "gpus", "attention"}
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
