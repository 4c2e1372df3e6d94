"""Launch scripts of strangers: small ones of each kind that was misread, or refused without a way on."""

from pathlib import Path

import pytest

from gpuscale import read_launch
from gpuscale.launch.settings import LackingError

MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} --hidden-size {hidden} \\
  --num-attention-heads {heads} --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
  --global-batch-size 16 --bf16 --swiglu --normalization RMSNorm --disable-bias-linear \\
  --untie-embeddings-and-output-weights --position-embedding-type rope {more}
"""


def script(tmp_path: Path, text: str, name: str = "run.sh") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def megatron(more: str, layers: int = 32, hidden: int = 4096, heads: int = 32) -> str:
    return MEGATRON.format(layers=layers, hidden=hidden, heads=heads, more=more)


GROUPED = "--ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --tokenizer-type PretrainedFromHF"


def test_a_shape_that_several_models_have_with_other_vocabularies_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LackingError, match="have this shape") as caught:
        read_launch([script(tmp_path, megatron(GROUPED))])
    assert caught.value.name == "model"
    assert {"internlm2-7b", "llama3-8b"} <= set(caught.value.message.replace(",", "").split())


def test_the_family_that_a_file_speaks_of_is_suggested_among_models_of_a_shape(tmp_path: Path) -> None:
    path = script(tmp_path, megatron(GROUPED) + "# internlm2 from scratch\n")
    assert read_launch([path], {"*": "suggested"}).options["model"] == "internlm2-7b"


def test_sliding_windows_of_mindspeed_are_part_of_the_shape(tmp_path: Path) -> None:
    assert (
        read_launch([script(tmp_path, megatron(f"{GROUPED} --sliding-window 4096"))]).options["model"] == "mistral-7b"
    )


def test_multiquery_heads_of_bigcodes_fork_are_counted(tmp_path: Path) -> None:
    path = script(tmp_path, megatron("--attention-head-type multiquery --vocab-size 49152", 24, 2048, 16))
    assert "kv_heads=1," in read_launch([path]).options["model"]


@pytest.mark.parametrize(
    ("algorithm", "way", "said"),
    [("megatron_cp_algo", "p2p", False), ("ulysses_cp_algo", "a2a", False), ("hybrid_cp_algo", "p2p", True)],
)
def test_context_parallelism_of_mindspeed(tmp_path: Path, algorithm: str, way: str, said: bool) -> None:
    more = f"--vocab-size 32000 --context-parallel-size 4 --context-parallel-algo {algorithm}"
    job = read_launch([script(tmp_path, megatron(more))])
    assert job.options["cp_comm"] == way
    assert any(algorithm in one.meaning for one in job.assumed) is said


def test_selective_recomputation_is_of_a_generation_that_has_it(tmp_path: Path) -> None:
    more = "--vocab-size 50257 --DDP-impl local --recompute-activations"
    assert read_launch([script(tmp_path, megatron(more))]).options["framework"] == "megatron-lm@2023-12"
    assert read_launch([script(tmp_path, megatron("--vocab-size 50257 --DDP-impl local"))]).options["framework"] == (
        "megatron-lm@2021-12"
    )


def test_a_model_is_not_suggested_by_the_name_of_data(tmp_path: Path) -> None:
    text = "DATA_PATH=/data/pile/gpt-neox-20b\n" + megatron("--vocab-size 50257 --spec own.mamba.specs stack")
    with pytest.raises(LackingError, match="Mamba layers") as caught:
        read_launch([script(tmp_path, text)])
    assert "neox" not in str(caught.value)


CHOOSING = """ask="deepspeed --num_gpus 8 convert.py"
go="deepspeed --num_gpus 8 finetune.py"
args="--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 \\
 --micro-batch-size 2 --global-batch-size 64 --bf16 --zero-stage 1 --vocab-size 32000 --deepspeed"
if [ "$1" = "convert" ]; then
  task="$ask"
else
  task="$go"{otherwise}
fi
eval "$task $args"
"""


def test_an_else_says_what_runs_without_arguments(tmp_path: Path) -> None:
    job = read_launch([script(tmp_path, CHOOSING.format(otherwise=""))])
    assert job.options["gpus"] == 8
    assert any("$1 is not given" in one.meaning for one in job.assumed)


def test_an_else_that_leaves_the_script_says_nothing(tmp_path: Path) -> None:
    text = """if [ "$1" = "7b" ]; then
  MBS=1
elif [ "$1" = "13b" ]; then
  MBS=2
else
  echo "usage: 7b or 13b"; exit 1
fi
""" + megatron("--vocab-size 32000").replace("--micro-batch-size 1", "--micro-batch-size $MBS")
    with pytest.raises(LackingError) as caught:
        read_launch([script(tmp_path, text)])
    assert caught.value.name == "1"
