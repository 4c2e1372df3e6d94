"""`estimate --from`, `plan --from` and `--improve`: from files to an answer, or to what is missing."""

import json
import re
import shutil
from pathlib import Path

import pytest
from command import gpuscale

from gpuscale import InputError, estimate_launch, read_launch
from gpuscale.cli.options import arguments
from gpuscale.launch.settings import LaunchJob, Said
from gpuscale.launch.unread import UNKNOWN
from gpuscale.render.console import show
from gpuscale.render.launch import launch_job_document

DATA = Path(__file__).parent / "data" / "launch"
ARRAYS = DATA / "megatron_arrays.sh"

GPT = """torchrun --nproc_per_node {each} --nnodes {nodes} pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size {mbs} \\
  --global-batch-size 64 --tensor-model-parallel-size {tp} --pipeline-model-parallel-size 1 --bf16 \\
  --tokenizer-type NullTokenizer --vocab-size 50303 --use-distributed-optimizer {more}
"""


def script(tmp_path, each=8, nodes=1, mbs=1, tp=8, more="", before=""):
    path = tmp_path / "run.sh"
    path.write_text(before + GPT.format(each=each, nodes=nodes, mbs=mbs, tp=tp, more=more))
    return path


def test_a_script_is_a_job():
    job = read_launch([ARRAYS])
    assert job.target == "megatron-lm"
    assert {name: job.options[name] for name in ("gpus", "seq", "gbs", "precision")} == {
        "gpus": 8, "seq": 8192, "gbs": 128, "precision": "fp8-delayed",
    }  # fmt: skip
    assert (job.layout["tp"], job.layout["micro_batch_size"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "gpus", "options", "layout"),
    [
        ("slurm_sized_by_nodes.sbatch", 16, {"gbs": 288}, {"tp": 4, "pp": 2, "micro_batch_size": 1}),
        ("table_of_sizes", 32, {"gbs": 512}, {"tp": 1, "pp": 1, "micro_batch_size": 16, "recompute": "full"}),
        ("deepspeed_moe", 64, {"gbs": 512}, {"tp": 1, "ep": 64, "micro_batch_size": 8, "zero": 0}),
        ("long_context.sbatch", 1024, {"seq": 65536}, {"tp": 4, "pp": 8, "vpp": 5, "cp": 8, "sp": True}),
        ("megatron_deepspeed.slurm", 64, {"seq": 2048}, {"tp": 2, "zero": 1}),
        ("bridge_slurm.sh", 32, {"model": "qwen3-30b-a3b"}, {"tp": 1, "pp": 4, "cp": 2, "ep": 8}),
        ("swift_moe.sh", 8, {"seq": 8192, "gbs": 16, "precision": "bf16"}, {"pp": 2, "ep": 4, "recompute": "full"}),
        ("recipes", 8, {"seq": 2048, "gbs": 128}, {"micro_batch_size": 16, "zero": 3, "recompute": "full"}),
    ],
)
def test_scripts_in_the_manner_of_real_ones_are_read(name, gpus, options, layout):
    job = read_launch([DATA / name])
    assert job.options["gpus"] == gpus
    assert {key: job.options[key] for key in options} == options
    assert {key: job.layout[key] for key in layout} == layout
    assert estimate_launch([DATA / name], despite_rules=True).estimate.plan.step_time_s > 0


@pytest.mark.parametrize(
    ("name", "message", "given", "variables", "layout"),
    [
        ("fsdp_heredoc.sh", "'your_own_num_nodes' is not a number", {"gpus": 64}, {}, {"ep": 8, "zero": 3}),
        ("fsdp_heredoc.sh", "'your_own_num_nodes' is not a number", {}, {"NNODES": "8"}, {"ep": 8, "zero": 3}),
        ("positional.sh", "the variable 2 decides on HEADS, HIDDEN_SIZE, NUM_LAYERS", {},
         {"1": "dlc", "2": "8B", "3": "1", "4": "128", "5": "2", "10": "bf16", "WORLD_SIZE": "2"}, {"tp": 2}),
    ],
)  # fmt: skip
def test_what_a_script_leaves_open_is_asked_for_and_taken(name, message, given, variables, layout):
    with pytest.raises(InputError, match=message) as caught:
        read_launch([DATA / name])
    assert caught.value.place.startswith(str(DATA / name))
    assert caught.value.hint
    job = read_launch([DATA / name], variables, given)
    assert {key: job.layout[key] for key in layout} == layout


def test_a_script_that_ends_before_its_command_is_refused():
    with pytest.raises(InputError, match="ends here before any command") as caught:
        read_launch([DATA / "not_ready.sh"])
    assert caught.value.place == f"{DATA / 'not_ready.sh'}:3"


def test_each_call_of_a_function_is_a_job():
    with pytest.raises(InputError, match="2 jobs are here"):
        read_launch([DATA / "sweep.sh"])
    assert [read_launch([f"{DATA / 'sweep.sh'}:{line}"]).layout["tp"] for line in (7, 8)] == [1, 2]


def test_the_answer_is_that_of_the_same_flags(tmp_path):
    found = estimate_launch([script(tmp_path)])
    job = found.job
    answer = json.loads(gpuscale(*arguments("estimate", {**job.options, **job.layout}), "--json").out)
    assert answer["plan"]["step_time_s"] == found.estimate.plan.step_time_s


def test_json_says_what_was_understood_ignored_and_assumed(tmp_path):
    path = script(tmp_path, more="--lr 1e-4")
    answer = json.loads(gpuscale("estimate", "--from", str(path), "--json").out)
    assert answer["schema"] == "gpuscale.estimate/1"
    by_text = {one["text"]: one for one in answer["understood"]}
    assert by_text["--tensor-model-parallel-size 8"] == {
        "file": str(path), "line": 3, "text": "--tensor-model-parallel-size 8", "meaning": "tp = 8",
    }  # fmt: skip
    assert "--lr 1e-4" in {one["text"] for one in answer["ignored"]}
    assert any("cluster" in one["text"] for one in answer["assumed"])
    assert all(
        set(one) == {"file", "line", "text", "meaning"} for name in ("understood", "assumed") for one in answer[name]
    )


def test_flags_beside_replace_the_file_and_are_listed(tmp_path):
    path = script(tmp_path)
    answer = json.loads(gpuscale("estimate", "--from", str(path), "--tp", "4", "--json").out)
    assert answer["plan"]["tp"] == 4
    assert ("tp=4", f"given: replaces 8 ({path}:3)") in {(one["text"], one["meaning"]) for one in answer["assumed"]}


def test_gpus_beside_replace_those_that_the_launcher_says(tmp_path):
    path = script(tmp_path)
    stated = json.loads(gpuscale("estimate", "--from", str(path), "--json").out)["job"]["gpus"]
    answer = json.loads(gpuscale("estimate", "--from", str(path), "--gpus", str(2 * stated), "--json").out)
    (said,) = [one["meaning"] for one in answer["assumed"] if one["text"].startswith("gpus=")]
    assert answer["job"]["gpus"] == 2 * stated
    assert said.startswith(f"given: replaces {stated} ({path}:")


def test_a_degree_that_is_given_is_not_said_to_stand_in_the_file(tmp_path):
    path = script(tmp_path)
    ran = gpuscale("estimate", "--from", str(path), "--tp", "5")
    assert ran.code == 2
    assert "TP 5 take a multiple of 5 GPUs" in ran.err
    assert "--tp stands at" not in ran.err


def test_a_shape_that_is_none_is_named_with_its_line(tmp_path):
    path = script(tmp_path)
    text = path.read_text()
    path.write_text(re.sub(r"--num-attention-heads \d+", "--num-attention-heads 63", text))
    line = next(number for number, one in enumerate(text.split("\n"), 1) if "--hidden-size" in one)
    assert f"{path}:{line}: hidden" in gpuscale("estimate", "--from", str(path)).err
    (found,) = json.loads(gpuscale("check", "--from", str(path), "--json").out)["findings"]
    assert (found["rule"], found["file"], found["line"]) == ("impossible_model", str(path), line)


def test_degrees_that_contradict_the_gpus_are_refused_with_both_places(tmp_path):
    path = script(tmp_path)
    ran = gpuscale("estimate", "--from", str(path), "--gpus", "12")
    assert ran.code == 2
    assert "TP 8 take a multiple of 8 GPUs, not 12" in ran.err
    assert f"{path}:3" in ran.err


def test_missing_gpus_are_asked_for_with_the_line_that_nearly_says_them(tmp_path):
    path = script(tmp_path, before="# for 16 nodes of H100\n", nodes="$NODES", each="$EACH")
    with pytest.raises(InputError, match="the variable NODES is given no value") as caught:
        read_launch([path])
    assert "`var=NODES=16` (line 1 of run.sh says: # for 16 nodes of H100)" in caught.value.hint
    assert "`var=EACH=8`" in caught.value.hint
    job = read_launch([path], {"NODES": "16", "EACH": "8"})
    assert job.options["gpus"] == 128
    path.write_text(path.read_text().replace("torchrun --nproc_per_node $EACH --nnodes $NODES", "python"))
    with pytest.raises(InputError, match="on how many GPUs") as caught:
        read_launch([path])
    assert "a multiple of 8" in caught.value.hint
    assert "line 1 of run.sh says: # for 16 nodes of H100" in caught.value.hint
    assert "`assume` takes `gpus=128`" in caught.value.hint
    assert read_launch([path], {}, {"gpus": 64}).layout["tp"] == 8
    job = read_launch([path], {"*": "suggested"})
    assert job.options["gpus"] == 128
    assert [one.meaning for one in job.assumed if one.text == "gpus=128"] == [
        "suggested: line 1 of run.sh says: # for 16 nodes of H100, 8 GPUs each"
    ]


def test_all_that_is_missing_is_asked_for_at_once_and_taken_when_assumed():
    path = DATA / "positional.sh"
    with pytest.raises(InputError) as caught:
        read_launch([path], {"1": "dlc"})
    names = ("2", "3", "4", "5", "10", "WORLD_SIZE")
    assert all(f"the variable {name} " in caught.value.message for name in names)
    assert "`var=2=8B` (the first choice; or 70B)" in caught.value.hint
    assert "`var=10=fp16` (the first choice; or bf16)" in caught.value.hint
    answered = gpuscale("estimate", "--from", path, "--arg", "1=dlc", "--assume", "--json")
    assumed = {one["text"]: one["meaning"] for one in json.loads(answered.out)["assumed"]}
    assert assumed["2=8B"] == "suggested: the first choice"
    assert {name.partition("=")[0] for name in assumed} >= set(names)
    given = gpuscale(
        "estimate", "--from", path, "--args", "dlc 70B 1 128 8 a b c d bf16", "--var", "WORLD_SIZE=2", "--json"
    )
    plan = json.loads(given.out)
    assert (plan["plan"]["tp"], plan["job"]["gpus"]) == (8, 16)
    with pytest.raises(InputError, match="no value of"):
        read_launch([path], {"*": "yes"})


def test_options_are_asked_for_with_the_variables_in_one_message(tmp_path):
    path = tmp_path / "llama3_8b_4nodes.sh"
    path.write_text(
        "deepspeed train.py --model_name_or_path $MODEL --per_device_train_batch_size $MBS --bf16 --deepspeed ds.json\n"
    )
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}')
    with pytest.raises(InputError) as caught:
        read_launch([path])
    assert "`gpus=32` (the file's name says 4nodes, 8 GPUs each)" in caught.value.hint
    assert "`seq=4096`" in caught.value.hint
    job = read_launch([path], {"MODEL": "llama3-8b", "MBS": "2", "*": "suggested"})
    assert (job.options["gpus"], job.options["seq"], job.options["gbs"]) == (32, 4096, 64)


@pytest.mark.parametrize(
    ("start", "gpus"),
    [
        ("torchrun --nnodes 4 --nproc_per_node 8", 32),
        ("torchrun --nnodes=2:2 --nproc-per-node=4", 8),
        ("torchrun --standalone --nproc_per_node 8", 8),
        ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node gpu", 32),
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun python", 32),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\nsrun python", 16),
        ("srun -n 64 python", 64),
        ("mpirun -np 16 python", 16),
        ("deepspeed --num_gpus 8 --num_nodes 4", 32),
        ("deepspeed --include localhost:0,1,2,3", 4),
        ("accelerate launch --num_processes 16", 16),
        ("export WORLD_SIZE=24\npython", 24),
        ("NUM_GPUS=40\npython", 40),
        ("NNODES=2 NPROC_PER_NODE=8 python", 16),
        ("flux run -N2 -n16 python", 16),
        ("flux mini run -N 4 --tasks-per-node=4 python", 16),
        ("#BSUB -nnodes 8\njsrun -n 48 -a 1 -g 1 python", 48),
        ("#BSUB -nnodes 8\njsrun --nrs ALL_HOSTS -r 6 -a 1 -g 1 python", 48),
        ("aprun -n 64 -N 4 python", 64),
        ("mpiexec --ppn 4 -n 32 --hostfile $PBS_NODEFILE python", 32),
        ("bcprun -p 8 -n 4 python", 32),
        ("ray job submit --address=http://a --no-wait -- torchrun --nnodes 2 --nproc_per_node 8", 16),
        ("ssh -o A=b $HOST torchrun --nnodes 2 --nproc_per_node 8", 16),
        ("pdsh -w node[1-2] torchrun --nnodes 2 --nproc_per_node 8", 16),
        ("printf 'n1 slots=8\\nn2 slots=8\\n' > hosts\ndeepspeed --hostfile hosts", 16),
        ("composer --world_size 16 -n 8", 16),
        ("lightning run model --accelerator=cuda --devices=8 --num-nodes=2", 16),
        ("#PBS -l nodes=4:ppn=32:gpus=8\nmpirun -np 32 python", 32),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=8\nsrun ./not-here.sh python", 16),
        ("D=0,1,2,3\ntorchrun --nproc_per_node=$(echo $D | tr ',' '\\n' | wc -l)", 4),
        ("D=0,1,2,3\ntorchrun --nproc_per_node=$(echo $D | awk -F, '{print NF}')", 4),
    ],
)
def test_gpus_follow_from_what_starts_the_program(tmp_path, start, gpus):
    path = script(tmp_path, tp=1)
    path.write_text(path.read_text().replace("torchrun --nproc_per_node 8 --nnodes 1", start))
    assert read_launch([path]).options["gpus"] == gpus


@pytest.mark.parametrize(
    "start",
    [
        "bcprun -p 8 -n 4 -c '{}'", "bcprun --nnodes 4 --npernode 8 --cmd '{}'",
        "sbatch -N 4 --ntasks-per-node 8 --wrap='{}'",
        "xpk workload create --cluster c --num-nodes=4 --command 'torchrun --nnodes 4 --nproc_per_node 8 {}'",
        "gcloud compute tpus tpu-vm ssh x --worker=all --command='torchrun --nnodes 4 --nproc_per_node 8 {}'",
        "ngc batch run --replicas 4 --commandline 'torchrun --nnodes 4 --nproc_per_node 8 {}'",
        "cat > j.sh <<E\n#SBATCH -N 4\nsrun -n 32 {}\nE\nsbatch < j.sh",
    ],
)  # fmt: skip
def test_a_launcher_that_takes_a_command_as_a_text_is_followed(tmp_path, start):
    path = script(tmp_path, tp=2)
    command = path.read_text().partition("--nnodes 1 ")[2].replace("\\\n", " ").strip()
    path.write_text(start.format(f"python {command}" if "torchrun" not in start else command))
    job = read_launch([path])
    assert (job.options["gpus"], job.layout["tp"]) == (32, 2)


@pytest.mark.parametrize(
    ("before", "cluster"),
    [
        ("#SBATCH --gres=gpu:a100:4\n", "dgx-a100-superpod"),
        ("#SBATCH --gres=gpu:tesla_v100-sxm2-32gb:8\n", "dgx1-v100"),
        ("#SBATCH --constraint=a100_40gb\n", "azure-ndv4"), ("#SBATCH -C h200&ib\n", "h200-hgx"),
        ("#SBATCH --gpus-per-node=nvidia_h100_80gb_hbm3:8\n", "dgx-h100-superpod"),
        ("#SBATCH --gpus=gh200:8\n", "gh200"), ("#SBATCH --constraint=a100|h100\n", None),
        ("#SBATCH --gres=gpu:8\n", None),
        ("#SBATCH --partition=a100\n", None), ("#SBATCH --gres=gpu:rtx3090:8\n", "box-rtx-3090"),
        ("#SBATCH --gres=gpu:rtx2080:8\n", None),
    ],
)  # fmt: skip
def test_gpus_that_a_file_names_choose_the_cluster(tmp_path, before, cluster):
    path = script(tmp_path, before=before)
    job = read_launch([path])
    assert job.options.get("cluster") == cluster
    said = " ".join(one.meaning for one in job.assumed)
    assert ("it names" in said) is (cluster is not None or "rtx2080" in before)
    assert ("suggests a100-sxm-80gb" in said) is ("partition" in before)
    assert read_launch([path], {}, {"cluster": "b200-hgx"}).options.get("cluster") is None


def test_a_precision_that_our_usual_gpu_lacks_asks_for_the_gpu(tmp_path):
    path = script(tmp_path, more="--bf16 --fp8-format e4m3 --fp8-recipe mxfp8")
    ran = gpuscale("estimate", "--from", path)
    assert ran.code == 2
    assert "no file names the GPU" in ran.err
    assert "--cluster b200-hgx" in ran.err
    assert json.loads(gpuscale("estimate", "--from", path, "--assume", "--json").out)["job"]["cluster"] == "b200-hgx"
    (found,) = json.loads(gpuscale("check", "--from", path, "--json").out)["findings"]
    assert (found["rule"], found["file"]) == ("contradiction", str(path))
    graphs = (
        "--num-experts 8 --expert-model-parallel-size 8 --cuda-graph-impl full_iteration --bf16 --disable-bias-linear"
    )
    ran = gpuscale("estimate", "--from", script(tmp_path, tp=1, more=graphs))
    assert "the usual one was taken: --cluster NAME names yours" in ran.err


@pytest.mark.parametrize(
    ("tokenizer", "vocab"),
    [
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B", 128256),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model /data/tokenizer.model", 32000),
        ("--tokenizer-model /mnt/Qwen2.5-0.5B", 151936), ("--tokenizer-name-or-path EleutherAI/gpt-neox-20b", 50432),
        ("--vocab-file gpt2-vocab.json", 50257), ("--patch-tokenizer-type DeepSeekV2Tokenizer", 102400),
        ("--tokenizer-model google/gemma-3-4b-it", 262208), ("--tokenizer-model bigscience/bloom", 250880),
        ("--tokenizer-model /data/mine.model", None), ("--tokenizer-type GPTSentencePieceTokenizer", None),
    ],
)  # fmt: skip
def test_the_name_of_a_tokenizer_gives_its_vocabulary(tmp_path, tokenizer, vocab):
    path = script(tmp_path)
    text = path.read_text().replace("--tokenizer-type NullTokenizer --vocab-size 50303", tokenizer)
    path.write_text(re.sub(r"--num-layers \d+", "--num-layers 29", text))  # a shape that no preset has
    if vocab is None:
        with pytest.raises(InputError, match="size of the vocabulary is not stated") as caught:
            read_launch([path])
        assert "vocab=32000" in caught.value.hint
        assert "vocab=32000" in read_launch([path], {"*": "suggested"}).options["model"]
    else:
        assert f"vocab={vocab}" in read_launch([path]).options["model"]


def test_a_batch_that_is_not_stated_is_what_megatron_takes(tmp_path):
    path = script(tmp_path, mbs=2, tp=2)
    path.write_text(path.read_text().replace("--global-batch-size 64", ""))
    made = read_launch([path])
    assert made.options["gbs"] == 8
    assert any("one microbatch of each replica" in said.meaning for said in made.assumed)


def test_several_jobs_are_listed_and_a_line_names_one(tmp_path):
    path = script(tmp_path)
    path.write_text(path.read_text() + GPT.format(each=8, nodes=1, mbs=2, tp=4, more=""))
    with pytest.raises(InputError, match="2 jobs are here") as caught:
        read_launch([path])
    assert f"{path}:1" in caught.value.message
    assert "tensor_model_parallel_size '4'" in caught.value.message
    assert read_launch([f"{path}:5"]).layout["tp"] == 4


def test_the_same_job_in_two_branches_is_one(tmp_path):
    line = GPT.format(each=8, nodes=1, mbs=1, tp=2, more="").replace("\\\n", "")
    path = tmp_path / "run.sh"
    path.write_text(f"if [ -f /x ]; then\n{line}else\n{line}fi\n")
    assert read_launch([path]).layout["tp"] == 2


def test_what_no_framework_knows_is_named(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("alpha: 1\nbeta: 2\n")
    with pytest.raises(InputError, match="yaml with alpha, beta"):
        read_launch([path])
    with pytest.raises(InputError, match="contains no training command"):
        empty = tmp_path / "b.sh"
        empty.write_text("ls\n")
        read_launch([empty])


def test_plan_from_a_file_searches_its_job(tmp_path):
    path = script(tmp_path)
    answer = json.loads(gpuscale("plan", "--from", str(path), "--json", "--top", "1").out)
    assert answer["gpus"] == 8
    assert answer["plans"][0]["global_batch_size"] == 64


def test_options_of_launch_files_stand_beside_them(tmp_path):
    for flags in (("--var", "A=1"), ("--improve",), ("x.toml", "--from", "y.sh")):
        ran = gpuscale("estimate", *flags)
        assert ran.code == 2
    path = str(script(tmp_path))
    for text in ("A", "1-2=3", "=4"):
        assert "is not NAME=VALUE" in gpuscale("estimate", "--from", path, "--var", text).err


def test_an_improvement_is_a_patch_of_the_file_that_means_it(tmp_path):
    folder = tmp_path / "job"
    shutil.copytree(DATA, folder)
    path = folder / "slurm_sized_by_nodes.sbatch"
    answer = json.loads(gpuscale("estimate", "--from", str(path), "--improve", "--json").out)
    better = answer["improvements"]
    assert better
    assert [one["step_time_s"] for one in better] == sorted((one["step_time_s"] for one in better), reverse=True)
    first = better[0]
    assert first["step_time_s"] < answer["plan"]["step_time_s"]
    removed = [line[1:] for line in first["diff"].split("\n") if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in first["diff"].split("\n") if line.startswith("+") and not line.startswith("+++")]
    text = path.read_text()
    for old, new in zip(removed, added, strict=True):
        text = text.replace(old, new)
    path.write_text(text)
    changed = estimate_launch([path]).estimate.plan
    assert changed.step_time_s == first["step_time_s"]
    assert {name: getattr(changed, name) for name in first["changes"]} == first["changes"]


def test_text_answers_name_what_was_read(tmp_path):
    ran = gpuscale("estimate", "--from", str(script(tmp_path, more="--lr 1")), "--improve")
    assert ran.code == 0
    assert "understood" in ran.out
    assert "no effect on the prediction. `-v` lists all" in ran.out
    told = gpuscale("estimate", "--from", str(script(tmp_path, more="--lr 1")), "--verbose").out
    assert "lists all" not in told
    assert re.search(r"^--lr 1 +\d+ ", told, re.MULTILINE)


def _said(count, meaning="m", file="a.sh"):
    return tuple(Said(file, at, f"--s{at}", meaning) for at in range(1, count + 1))


@pytest.mark.parametrize(("count", "of_model", "shown"), [(12, 2, 12), (13, 1, 13), (13, 2, 12), (13, 3, 11)])
def test_many_settings_of_a_model_are_one_row(count, of_model, shown, capsys):
    settings = _said(count)
    keys = {one: (f"k{at // 2} = 1",) for at, one in enumerate(settings[:of_model])}
    show(launch_job_document(LaunchJob("t", {"gpus": 8}, {"tp": 1}, settings, (), (), of_model=keys)))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" m") or "model: " in line]
    assert len(lines) == shown
    together = {12: "2 settings  1     model: k0 = 1", 11: "3 settings  1     model: k0 = 1; k1 = 1"}
    assert [line for line in lines[:1] if "model: " in line] == ([together[shown]] if shown < count else [])


@pytest.mark.parametrize(
    ("ignored", "text"),
    [
        (_said(1), "1 setting has no effect on the prediction. `-v` lists all."),
        (_said(2), "2 settings have no effect on the prediction. `-v` lists all."),
        (_said(1, UNKNOWN), "Not known, and taken to change nothing: --s1 (line 1). `-v` lists all."),
        (_said(2) + _said(13, UNKNOWN), "--s12 (line 12), 1 more. 2 settings have no effect"),
        ((Said("a.sh", 1, "--" + "x" * 39, UNKNOWN),), "--" + "x" * 38 + " (line 1)"),
    ],
)
def test_what_is_left_out_is_counted_and_what_is_not_known_is_named(ignored, text, capsys):
    show(launch_job_document(LaunchJob("t", {"gpus": 8}, {"tp": 1}, (), ignored, ())))
    out = " ".join(capsys.readouterr().out.split())
    assert text in out
    assert "--s13" not in out


def test_places_name_their_file_where_there_are_several(capsys):
    several = (*_said(1), *_said(1, file="b/c.yaml"), Said("", 0, "", "x"))
    show(launch_job_document(LaunchJob("t", {"gpus": 8, "model": ""}, {"tp": 1}, several, (), _said(1))))
    verdict, *lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert verdict == ["t:", "tp=1,", "gpus=8"]
    assert [line for line in lines if line[0] in {"--s1", "-"}] == [
        ["--s1", "a.sh:1", "m"], ["--s1", "c.yaml:1", "m"], ["-", "x"], ["--s1", "1", "m"]]  # fmt: skip


def test_an_improvement_takes_out_what_it_excludes():
    dense = Path(__file__).parent / "data" / "launch" / "dense.sh"
    answer = json.loads(gpuscale("estimate", "--from", str(dense), "--improve", "--json").out)
    alone = [one for one in answer["improvements"] if one["changes"].get("tp") == 1]
    assert alone
    for one in alone:  # Megatron-LM refuses TP's overlap at TP 1, and chunks at PP 1
        assert "-    --tp-comm-overlap" in one["diff"]
        chunked = "-    --num-layers-per-virtual-pipeline-stage $VPP" in one["diff"]
        assert chunked == (one["changes"].get("pp") == 1)
