"""Kinds of shell scripts that strangers start trainings by: what is matched, how programs of one's own name things."""

from pathlib import Path

import pytest

from gpuscale import read_launch
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
    with pytest.raises(LackingError, match="global batch") as caught:
        read_launch([script(tmp_path, FIRST.format(more=""))])
    assert "`gbs=32`" in str(caught.value)  # 16 GPUs, each replica of 4 takes 8


SWIFT = """NPROC_PER_NODE=4 swift rlhf --rlhf_type gkd --model Qwen/Qwen2.5-7B-Instruct --tuner_type full \\
  --max_length 2048 --torch_dtype bfloat16 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
  --deepspeed zero3 {teacher}
"""


def test_a_teacher_on_a_server_takes_no_memory_here(tmp_path: Path) -> None:
    job = read_launch([script(tmp_path, SWIFT.format(teacher="--teacher_model_server http://localhost:8000"))])
    assert "teacher" not in job.options and job.options.get("method", "sft") == "sft"
    assert any("runs elsewhere" in one.meaning for one in job.assumed)
    with pytest.raises(InputError, match="learns from a model"):
        read_launch([script(tmp_path, SWIFT.format(teacher=""))])


def test_what_python_prints_in_a_script_is_worked_out(tmp_path: Path) -> None:
    text = (
        'GPUS=8\nGAS=$(python -c "print(int(512 / ($GPUS * 2)))")\nLENGTH=$(python3 - <<END\nprint(2 ** 11)\nEND\n)\n'
    )
    job = read_launch([script(tmp_path, text + TRAINED)])
    assert (job.options["gbs"], job.options["seq"]) == (256, 2048)


@pytest.mark.parametrize("printed", ["json.load(open('x.json'))['n']", "torch.cuda.device_count()", "1, 2", "$X"])
def test_what_python_prints_of_a_machine_is_asked_for(tmp_path: Path, printed: str) -> None:
    text = f'LENGTH=2048\nGAS=$(python -c "import json, torch; print({printed})")\n'
    with pytest.raises(LackingError, match="GAS is the output of a command"):
        read_launch([script(tmp_path, text + TRAINED)])


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
