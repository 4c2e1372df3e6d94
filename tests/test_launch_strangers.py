"""Launch scripts of strangers: small ones of each kind that was misread, or refused without a way on."""

import re
from pathlib import Path

import pytest

from gpuscale import read_launch
from gpuscale.errors import InputError
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


OWN = "torchrun --standalone --nproc_per_node 8 scripts/train.py --model Qwen/Qwen2.5-7B --max-len 2048 --epochs 2"


def asked(error: LackingError) -> str:
    return str(error.hint)


def test_what_a_program_of_ones_own_may_have_otherwise_is_asked_for_in_one_message(tmp_path: Path) -> None:
    path = script(tmp_path, f"{OWN} --batch-size 2 --grad-accum 4\n")
    with pytest.raises(LackingError, match="whether 2 is the batch of each GPU or of all") as caught:
        read_launch([path])
    for way in ("`precision=bf16`", "`zero=0`", "`gbs=64`"):
        assert way in asked(caught.value)
    job = read_launch([path], {}, {"precision": "bf16", "zero": 2, "gbs": 64})
    assert (job.options["seq"], job.layout["micro_batch_size"], job.options["gpus"]) == (2048, 2, 8)
    assert (job.layout.get("zero", 2), job.options["framework"]) == (2, "accelerate")


def test_a_batch_of_all_gpus_makes_smaller_microbatches(tmp_path: Path) -> None:
    path = script(tmp_path, f"{OWN} --batch-size 64 --grad-accum 4 --bf16\n")
    assert read_launch([path], {}, {"zero": 0, "gbs": 64}).layout["micro_batch_size"] == 2


def test_of_one_gpu_a_batch_is_of_all(tmp_path: Path) -> None:
    job = read_launch([script(tmp_path, f"{OWN} --bs 4 --grad-accum 8 --bf16\n".replace("node 8", "node 1"))])
    assert (job.layout["micro_batch_size"], job.options["gbs"]) == (4, 32)


@pytest.mark.parametrize("name", ["--per_device_batch_size", "--micro-bsz", "--train.micro_batch_size", "-mbs"])
def test_names_of_a_microbatch(tmp_path: Path, name: str) -> None:
    job = read_launch([script(tmp_path, f"{OWN} {name} 2 --gradient_accumulation 4 --bf16\n")], {}, {"zero": 0})
    assert (job.layout["micro_batch_size"], job.options["gbs"]) == (2, 64)


def test_a_program_under_deepspeed_is_asked_for_its_stage(tmp_path: Path) -> None:
    path = script(
        tmp_path, "deepspeed --include localhost:0,1 train.py --model_path /m/Llama-2-7b-chat-hf --epochs 3\n"
    )
    with pytest.raises(LackingError, match="how DeepSpeed shards") as caught:
        read_launch([path])
    for way in ("`zero=STAGE`", "`precision=bf16`", "`seq=4096`", "`gbs=2`", "`micro_batch_size=1`"):
        assert way in asked(caught.value)
    given = {"zero": 2, "precision": "bf16", "seq": 1024, "gbs": 16, "micro_batch_size": 4}
    job = read_launch([path], {}, given)
    assert (job.options["framework"], job.layout["zero"], job.options["gpus"]) == ("deepspeed", 2, 2)


def test_stages_are_read_and_no_default_of_the_trainer_is_taken(tmp_path: Path) -> None:
    options = "--model_name llama2-7b --bf16 -m_bsz 1 -bsz 64 --stage 1 -max_len 1024 --deepspeed true"
    path = script(tmp_path, f"deepspeed --num_gpus 4 bench.py {options}")
    with pytest.raises(LackingError, match="whether 64 is the batch") as caught:
        read_launch([path])
    assert "gbs=64" in asked(caught.value)
    job = read_launch([path], {}, {"gbs": 64})
    assert (job.layout["zero"], job.layout["micro_batch_size"], job.options["seq"]) == (1, 1, 1024)


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node 8 train.py --arch resnet50 --batch-size 64",
        "torchrun --nproc_per_node 8 train.py --model vit_base --image_size 224 --batch-size 64",
        "torchrun --nproc_per_node 8 serve.py --model llama2-7b --max_len 2048",
    ],
)
def test_programs_of_other_models_are_not_taken_for_language_models(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match="nothing here is of a known framework"):
        read_launch([script(tmp_path, line)])


SOURCING = """source configs/small.sh
exec "$PYTHON_BIN" -m torch.distributed.run --standalone --nproc-per-node="${GPUS:-8}" pretrain_gpt.py "${shape[@]}" \\
  --tensor-model-parallel-size 1 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --bf16
"""


def test_a_file_that_is_read_first_and_not_here_is_named_and_answers_when_it_is_given(tmp_path: Path) -> None:
    path = script(tmp_path, SOURCING)
    with pytest.raises(LackingError, match="sequences a GPU takes at a time") as caught:
        read_launch([path])
    assert "`launch_files=configs/small.sh`" in asked(caught.value)
    assert "gpus=" not in asked(caught.value)  # $PYTHON_BIN starts torchrun's module
    shape = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --micro-batch-size 2 --global-batch-size 64"
    given = script(tmp_path, f"shape=({shape})\n", "small.sh")
    job = read_launch([path, given])
    assert (job.options["gpus"], job.options["gbs"], job.layout["micro_batch_size"]) == (8, 64, 2)


def test_a_line_that_is_named_still_says_which_file_is_not_here(tmp_path: Path) -> None:
    text = """one() {
  deepspeed --num_gpus=4 train_cpt.py --config configs/cpt.yaml --deepspeed configs/ds_zero3.json
}
two() {
  deepspeed --num_gpus=4 train_sft.py --config configs/sft.yaml --deepspeed configs/ds_zero3.json
}
case "${1:-both}" in first) one;; both) one; two;; esac
"""
    path = script(tmp_path, text)
    with pytest.raises(InputError, match=r"run\.sh:2 .*run\.sh:5 "):
        read_launch([path])
    with pytest.raises(InputError, match=r"configured in configs/cpt\.yaml, which is not here"):
        read_launch([f"{path}:2"])


KINDS = {
    "a module of a folder that is not here": (
        "export TP=4 PP=8\nVPP=${VPP:-2}\nGBS=512; MBS=1; SEQ_LEN=8k\nCOMPUTE_DTYPE=fp8\n"
        "srun --nodes=16 --gpus-per-node=8 python -m perf.llm.pretrain_mix --max-steps 50\n",
        "tp=4 pp=8 vpp=2 seq=8192 micro_batch_size=1 gbs=512 precision=fp8 zero=1", {"gpus": 128},
    ),
    "a script that is not here": (
        "MODEL_NAME=llama3\nMODEL_SIZE=8b\nNNODES=2\nGPUS_PER_NODE=8\nbash ./scripts/run_training.sh\n",
        "model=llama3-8b gpus=16 seq=4096 micro_batch_size=1 gbs=16 precision=bf16 zero=0", {},
    ),
    "a command in a variable": (
        "#SBATCH --nodes 4\n#SBATCH --gpus-per-node 8\nBATCH_SIZE=2\nGRAD_ACC=8\nMODEL=Qwen/Qwen3-8B\n"
        "srun --ntasks-per-node 1 ${CMD}\n",
        "model=qwen3-8b micro_batch_size=2 gbs=512 zero=0", {"gpus": 32},
    ),
    "YAML that is here": (
        "torchrun --nproc_per_node 16 main_fsdp2.py sft.yaml --parallel.ep_size 4 --a.grad_accum 2 --a.mbs 3\n",
        "ep=4 seq=4096 micro_batch_size=3 gbs=96 zero=3 recompute=full tune=lora lora_rank=8 lora_targets=k,q",
        {"gpus": 16},
    ),
    "YAML that is not here": (
        "torchrun --nproc_per_node 8 train.py conf/zero2.yaml\n", "seq=4096 gbs=8", {"gpus": 8, "zero": 0}),
    "torchx": (
        "torchx run -s slurm dist.ddp --script pretrain_moe.py -- --ep 8 --seq_len 8192 --global_batch 256\n",
        "ep=8 seq=8192 gbs=256", {"gpus": 8},
    ),
    "helm": (
        "helm install train-7b ./chart --set workload.gpus=64 --set workload.tp=4\n", "tp=4 gpus=64 gbs=16", {}),
    "a container": (
        'docker run --gpus all -e MODEL=qwen3-8b -e SEQ_LENGTH=2048 img bash -c "cd /app && ./train.sh"\n',
        "model=qwen3-8b seq=2048 gpus=8", {},
    ),
    "a program under mpirun": (
        "mpirun -np 32 ./train_lm -i d.bin --tensor-parallel 2 --optimizer lion\n", "tp=2 gbs=16 optimizer=lion",
        {"gpus": 32},
    ),
    "make": ("export TP_SIZE=2 MICRO_BATCH=2\nmake train-7b\n", "tp=2 micro_batch_size=2 gbs=8", {"gpus": 8}),
    "sizes of a model": (
        "export N_LAYERS=12 D_MODEL=768 N_HEADS=12 VOCAB_SIZE=50304 BLOCK_SIZE=1024\npython -m lm.pretrain --lr 1\n",
        "gpus=1 seq=1024 model=layers=12", {},
    ),
    "a launcher of a framework that is not known": (
        "colossalai run --nproc_per_node 8 train.py --zero_stage 1 --pp_size 2\n",
        "pp=2 zero=1 gbs=32", {"gpus": 8},
    ),
    "a script of Python under ray": (
        "ray job submit -- python learn.py --cp_size 2 --max_len 2048 --zero-hpz 1\n", "cp=2 seq=2048", {}),
    "variables of a script that hands over": (
        "export BLOCK_SIZE=${BLOCK_SIZE:-2048}\nexport GLOBAL_BATCH_SIZE=64 MICRO_BATCH_SIZE=2\n"
        "export ACTIVATION_CHECKPOINTING=1\n"
        'exec "${HERE}/submit.sh"\n',
        "seq=2048 gbs=64 micro_batch_size=2 recompute=full", {},
    ),
    "a model in the name of a module": (
        "python -m perf.pretrain_llama31_70b --ulysses_size 2 --dtype fp16\n",
        "model=llama3.1-70b cp=2 precision=fp16", {},
    ),
    "a model in the name of a file, with words behind it": (
        "torchrun --nproc_per_node 8 run_gpt_oss_20b_4k_v2.py --lr 1\n", "model=gpt-oss-20b", {"gpus": 8}),
    "a folder that is called tests": ("torchrun --nproc_per_node 8 tests/lm/train.py --offload_optimizer 1 --accum 2\n",
        "micro_batch_size=1 gbs=16 offload=optimizer", {"gpus": 8}),
    "one of two documents that is here": (
        "./deepy.py train.py sft.yaml conf/zero2.yaml\n",
        "seq=2048 micro_batch_size=4 precision=fp16 zero=1 recompute=full", {"gpus": 8}),
    "options of deepspeed alone": ("deepspeed --num_gpus 4 src/train_ner.py\n", "zero=0 gbs=4", {"gpus": 4}),
}  # fmt: skip
"""Kind of a script -> it, what it suggests, and what is so with all that is suggested."""


OF_NEOX = """{"seq-length": 2048, "fp16": {"enabled": true}, "zero_optimization": {"stage": 1},
"train_micro_batch_size_per_gpu": 4, "checkpoint-activations": true}
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_no_known_framework_is_asked_for_all_that_decides(kind: str, tmp_path: Path) -> None:
    text, suggested, also = KINDS[kind]
    adapter, parallel = "{lora_r: 8, lora_targets: [k, q]}", "{fsdp_modules: [a], recompute: true}"
    yaml = f"adapter: {adapter}\ndata: {{cutoff_len: 4096}}\nparallel: {parallel}\n"
    documents = {"YAML that is here": yaml, "one of two documents that is here": OF_NEOX}
    if kind in documents:
        script(tmp_path, documents[kind], "sft.yaml")
    path = script(tmp_path, text)
    with pytest.raises(
        LackingError, match=r"of no framework that is known here|configured in conf/zero2\.yaml"
    ) as caught:
        read_launch([path])
    assert [one for one in suggested.split() if f"`{one}" not in asked(caught.value)] == []
    job = read_launch([path], {"*": "suggested"}, {} if "model=" in suggested else {"model": "mixtral-8x7b"})
    found = {**job.options, **job.layout}
    told = dict(one.split("=", 1) for one in suggested.split() if not one.startswith("model=layers"))
    assert {name: str(found[name]) for name in told} == told
    assert {name: found[name] for name in also} == also
    assert any("none of its defaults" in one.meaning for one in job.assumed)


OWN_LOOP = """from mylib import build, loader
parser.add_argument("--llm", default="Qwen/Qwen2.5-0.5B")
parser.add_argument("--seq-len", type=int, default=2048)
micro_batch = 4
grad_accum_steps = 8  # {word}
for batch in loader(tokenizer):
    build(args.llm)(batch).{call}()
"""


def test_a_program_in_python_that_configures_nothing_known_suggests_what_its_lines_say(tmp_path: Path) -> None:
    path = script(tmp_path, OWN_LOOP.format(word="language model", call="backward"), "own.py")
    suggested = ("model=qwen2.5-0.5b", "seq=2048", "micro_batch_size=4", "gbs=64")
    for files, gpus in ([path], 2), ([script(tmp_path, "torchrun --nproc_per_node 2 own.py --lr 1\n")], None):
        with pytest.raises(LackingError, match=r"own\.py is of no framework") as caught:
            read_launch(files, {}, {"gpus": gpus})
        assert [one for one in suggested if f"`{one}" not in asked(caught.value)] == []
        assert read_launch(files, {"*": "suggested"}, {"gpus": gpus}).options["seq"] == 2048
    for word, call in ("import gym", "backward"), ("language model", "forward"):
        with pytest.raises(InputError, match="no configuration of a known framework"):
            read_launch([script(tmp_path, OWN_LOOP.format(word=word, call=call).replace("{", ""), "own.py")])


def test_a_module_that_a_program_in_python_trains_by_is_named(tmp_path: Path) -> None:
    text = "import train\ntokenizer = 1\ntrain.train_sft(model_id='gpt2')\n"
    with pytest.raises(LackingError, match=r"configured in train\.py, which is not here") as caught:
        read_launch([script(tmp_path, text, "pipeline.py")])
    assert asked(caught.value).startswith("give it too: `launch_files=train.py`, or give `model=")


JOB = """kind: Job
apiVersion: batch/v1
spec: {template: {spec: {containers: [{name: a, command: [torchrun, --nproc_per_node, "4", train.py, --tp, "2"]}]}}}
"""


def test_a_manifest_that_a_command_hands_over_is_what_it_starts(tmp_path: Path) -> None:
    path = script(tmp_path, "kubectl apply -f train.yaml\n")
    with pytest.raises(LackingError, match=r"kubectl apply is of no framework"):
        read_launch([path])
    script(tmp_path, JOB, "train.yaml")
    with pytest.raises(LackingError, match=r"torchrun train\.py is of no framework") as caught:
        read_launch([path])
    assert "`tp=2`" in asked(caught.value) and "gpus=" not in asked(caught.value)


def test_jobs_of_a_program_that_is_not_known_are_several_where_they_differ(tmp_path: Path) -> None:
    line = "torchrun --nproc_per_node {} train.py --tp {} --seed {}\n"
    same = script(tmp_path, line.format(4, 2, 1) + line.format(4, 2, 2))
    assert "`tp=2`" in asked(lacking_of(same))
    for other in (line.format(8, 2, 1), line.format(4, 4, 1)):
        with pytest.raises(InputError, match="2 jobs are here") as caught:
            read_launch([script(tmp_path, line.format(4, 2, 1) + other)])
        assert "and with it give it too" in str(caught.value.hint)


def test_the_job_that_is_named_runs_with_the_values_that_are_suggested_with_it(tmp_path: Path) -> None:
    tuned = "finetuning.py --model_name TinyLlama/TinyLlama_v1.1 --batch_size_training 2"
    path = script(
        tmp_path,
        f"if [ $(($1*$2)) -eq 1 ]; then\ntorchrun --nproc_per_node=$2 {tuned}\n"
        f"else\ntorchrun --nnodes=$1 --nproc_per_node=$2 {tuned} --enable_fsdp\nfi\n",
    )
    with pytest.raises(InputError, match="2 jobs are here") as caught:
        read_launch([path])
    hint = str(caught.value.hint)
    assert f"`launch_files={path}:4`" in hint  # of 1 x 8 GPUs: the first would be of one
    assert "`var=1=1`" in hint and "`var=2=8`" in hint
    job = read_launch([f"{path}:4"], {"1": "1", "2": "8"})
    assert (job.options["gpus"], job.layout["zero"]) == (8, 3)


def lacking_of(path: str) -> LackingError:
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    return caught.value


@pytest.mark.parametrize(
    ("command", "message", "framework"),
    [
        ("torchrun --nproc_per_node 8 -m torchtitan.train --module a --config b", "this config function", "torchtitan"),
        ("tune run --nproc_per_node 8 full_finetune_distributed --config own", "recipe's configuration", "torchtune"),
        ("axolotl train conf/own.yaml --launcher torchrun", r"configured in conf/own\.yaml", "accelerate"),
    ],
)  # fmt: skip
def test_a_framework_whose_configuration_is_not_here_is_asked_for_what_decides(
    command: str, message: str, framework: str, tmp_path: Path
) -> None:
    path = script(tmp_path, f"{command}\n")
    error = lacking_of(path)
    assert re.search(f"{message}.*no file states which model is trained", error.message)
    assert re.match("give (it|its .*) too.*, or give `model=NAME`", asked(error))
    job = read_launch([path], {"*": "suggested"}, {"model": "gpt2", "gpus": 8, "zero": 3})
    assert (job.options["framework"], job.options["gbs"], job.layout["micro_batch_size"]) == (framework, 8, 1)


def test_a_program_that_is_not_here_is_named(tmp_path: Path) -> None:
    path = script(tmp_path, "deepspeed --num_gpus 4 src/train_ner.py\n")
    with pytest.raises(LackingError, match=r"deepspeed train_ner\.py is of no framework") as caught:
        read_launch([path])
    assert asked(caught.value).startswith("give it too: `launch_files=src/train_ner.py`, or give `model=NAME`, ")


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("torchrun --nproc_per_node 8 evaluate_lm.py --batch_size 4 --tp 2", "evaluates"),
        ("python -m vllm.entrypoints.api_server --model Qwen/Qwen3-8B --tensor-parallel-size 4", "serves"),
        ("python scripts/preprocess_data.py --seq_len 4096 --workers 8", "prepares"),
        ("torchrun --nproc_per_node 8 train_imagenet.py --batch-size 4 --tp 2", "images"),
        ("accelerate launch train_dreambooth.py --lr 1", "images"),
        ("python -m tensorflow_models.lm.train --batch_size 8 --seq_len 128", "TensorFlow"),
    ],
)
def test_what_is_no_training_of_a_language_model_says_why(line: str, does: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"nothing here is of a known framework .*{does}"):
        read_launch([script(tmp_path, f"pip install x\n{line}\n")])


def test_gpus_that_a_command_counts_are_asked_for_beside_the_rest(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py --model_name_or_path meta-llama/Llama-3.1-8B"
    more = "--bf16 True --num_train_epochs 1 --per_device_train_batch_size 4 --model_max_length 2048"
    path = script(tmp_path, f"{text} {more} --deepspeed conf/zero3.json\n")
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert "`gpus=8`" in asked(caught.value)
    assert "`zero=3`" in asked(caught.value)
    assert read_launch([path], {}, {"gpus": 4, "zero": 3}).options["gbs"] == 16


def test_python_alone_starts_one_process(tmp_path: Path) -> None:
    path = script(tmp_path, "python train.py --model gpt2 --batch_size 8 --max_length 512 --fp16\n")
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert "`gpus=1` (python starts one process)" in asked(caught.value)


def test_settings_of_a_tool_in_another_program_are_not_that_tools(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node 2 sft.py --base_model llama2-7b --bsz 8 --cutoff_len 512 --zero_stage 2\n"
    with pytest.raises(LackingError) as caught:
        read_launch([script(tmp_path, text)])
    for way in ("`precision=bf16`", "`gbs=16`"):
        assert way in asked(caught.value)


def test_shards_of_fsdp_are_proposed_where_a_switch_speaks_of_them(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node 4 finetuning.py --enable_fsdp --model_name llama2-7b --micro_batch_size 2"
    path = script(tmp_path, f"{text} --context_length 4096 --bf16\n")
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert "`zero=3`" in asked(caught.value)
    assert read_launch([path], {}, {"zero": 3}).layout["micro_batch_size"] == 2


WHOLE = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path {model} --bf16 True --per_device_train_batch_size 1"
    " --gradient_accumulation_steps 4 --num_train_epochs 1 --model_max_length 2048"
)


@pytest.mark.parametrize(
    "line",
    [
        'tmux new-session -d -s job "{0}"',
        'tmux send-keys -t job "cd /work && {0}" C-m',
        'script -q -c "{0}" log.txt',
        'bsub -q gpu -W 24:00 -gpu "num=8" "{0}"',
        "rlaunch --cpu=32 --gpu=8 -P 4 -- {0}",
    ],
)
def test_commands_in_a_text_that_something_else_starts(tmp_path: Path, line: str) -> None:
    job = read_launch([script(tmp_path, line.format(WHOLE.format(model="Qwen/Qwen2.5-7B")) + "\n")])
    assert (job.options["gpus"], job.options["gbs"]) == (8, 32)


def test_an_element_of_a_list_that_the_scheduler_chooses_is_asked_for(tmp_path: Path) -> None:
    text = "ALL=(Qwen/Qwen2.5-7B Qwen/Qwen2.5-14B)\n" + WHOLE.format(model="${ALL[$SLURM_ARRAY_TASK_ID]}")
    path = script(tmp_path, text)
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert "var=SLURM_ARRAY_TASK_ID=" in asked(caught.value)
    assert read_launch([path], {"SLURM_ARRAY_TASK_ID": "1"}).options["model"] == "Qwen/Qwen2.5-14B"


def test_a_tokenizer_that_is_not_known_has_no_vocabulary_of_a_model_of_the_shape(tmp_path: Path) -> None:
    path = script(tmp_path, megatron("--tokenizer-type VillageTokenizer", 24, 2048, 16))
    with pytest.raises(LackingError, match="VillageTokenizer is not known here") as caught:
        read_launch([path])
    assert "assume" not in asked(caught.value)


def test_overlapped_optimizers_of_megatron_llama_shard_states(tmp_path: Path) -> None:
    path = script(tmp_path, megatron("--vocab-size 32000 --DDP-impl local --overlapped-distributed-optimizer"))
    job = read_launch([path])
    assert (job.layout["zero"], job.options["overlap"]) == (1, "dp")


@pytest.mark.parametrize(("more", "asks"), [("", True), ("--bf16 True", False)])
def test_a_file_of_accelerate_that_is_not_here_may_say_the_precision(tmp_path: Path, more: str, asks: bool) -> None:
    text = f"accelerate launch --config_file conf/a.yaml --num_processes 8 train.py --model_name_or_path gpt2 {more}"
    path = script(tmp_path, f"{text} --per_device_train_batch_size 1 --num_train_epochs 1 --block_size 512\n")
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert ("`precision=bf16`" in asked(caught.value)) is asks
    assert read_launch([path], {}, {"zero": 0, "precision": "bf16"}).options["gbs"] == 8


def test_arguments_are_suggested_by_the_names_that_the_script_gives_them(tmp_path: Path) -> None:
    text = "NNODES=$1\nNPROC=$2\nGLOBAL=$((NNODES*NPROC*4))\n" + megatron("--vocab-size 32000")
    text = text.replace("nproc_per_node 8", "nnodes $NNODES --nproc_per_node $NPROC").replace("size 16", "size $GLOBAL")
    with pytest.raises(LackingError) as caught:
        read_launch([script(tmp_path, text)])
    assert "`var=1=1` (one node), `var=2=8`" in asked(caught.value)


def test_weights_in_4_bits_by_the_long_name_of_bitsandbytes(tmp_path: Path) -> None:
    text = """model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
finetuning_type: lora
quantization_bit: 4
quantization_method: bitsandbytes
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
bf16: true
"""
    job = read_launch([script(tmp_path, text, "sft.yaml")], {}, {"gpus": 2})
    assert job.options["tune"] == "qlora"


@pytest.mark.parametrize(
    ("more", "stage"), [("--strategy deepspeed_stage_2", "2"), ("--enable_fsdp True", "3"), ("--strategy ddp", "0")]
)
def test_words_of_lightning_are_read_in_programs_of_ones_own(tmp_path: Path, more: str, stage: str) -> None:
    text = "torchrun --nproc_per_node 8 src/fit.py --model_name gpt2 --batch_size 2 --max_length 512 "
    path = script(tmp_path, f"{text}--precision bf16-mixed --optimizer adamw {more}\n")
    with pytest.raises(LackingError) as caught:
        read_launch([path])
    assert f"`zero={stage}`" in asked(caught.value) and "precision=" not in asked(caught.value)


def test_a_program_of_images_under_deepspeed_is_asked_for_no_language_model(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("deepspeed --num_gpus=2 train_amp.py --deepspeed --img_size 456 --batch_size 12 --epochs 2\n")
    with pytest.raises(InputError, match="of other models") as caught:
        read_launch([script], {}, {})
    assert caught.value.place == f"{script}:1: img_size"
    assert read_launch([script], {}, {"model": "gpt2", "zero": 2, "seq": 512, "precision": "bf16", "gbs": 24}).options


def test_forks_of_megatron_that_have_a_switch_for_rmsnorm_have_no_bias_of_norms(tmp_path):
    script = tmp_path / "run.sh"
    shape = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512"
    more = "--vocab-size 32000 --micro-batch-size 1 --global-batch-size 8 --bf16"
    script.write_text(f"torchrun --nproc_per_node=8 pretrain_llama.py {shape} {more} --RMSNorm\n")
    assert ",norm_bias=false," in read_launch([script], {}, {}).options["model"]
    script.write_text(f"torchrun --nproc_per_node=8 pretrain_llama.py {shape} {more}\n")
    assert ",norm_bias=true," in read_launch([script], {}, {}).options["model"]


def test_a_stage_and_an_organisation_make_no_program_one_of_other_models(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("deepspeed --num_gpus 2 train.py --zero_stage 2 --batch_size 4 --wandb_organization mine\n")
    with pytest.raises(LackingError, match="which model is trained"):
        read_launch([script], {}, {})


def test_two_models_that_are_known_are_asked_about(tmp_path):
    script, line = tmp_path / "run.sh", "torchrun --nproc_per_node 2 train.py --batch_size 4 --max_length 512"
    given = {"precision": "bf16", "zero": 0, "gbs": 8}
    script.write_text(f"{line} --model_name gpt2 --model_path meta-llama/Llama-2-7b-hf\n")
    with pytest.raises(LackingError, match="two models are named, 'gpt2' and 'meta-llama/Llama-2-7b-hf'"):
        read_launch([script], {}, given)
    assert "model" not in read_launch([script], {}, {**given, "model": "gpt2"}).options
    script.write_text(f"{line} --model_name gpt2 --model_path openai-community/gpt2\n")
    assert read_launch([script], {}, given).options["model"] == "gpt2"


def test_variables_that_nothing_takes_are_suggested_for_batches(tmp_path):
    options = "--tp-size $TP --seq-length 8192 --model-size 7b"
    text = f"export TP=1 MBS=2 GBS=64\ntorchrun --nproc_per_node 8 --nnodes 4 my_pretrain.py {options}\n"
    with pytest.raises(LackingError) as caught:
        read_launch([script(tmp_path, text)])
    assert "`micro_batch_size=2` (run.sh:1 says MBS=2" in caught.value.hint
    assert "`gbs=64` (run.sh:1 says GBS=64" in caught.value.hint
