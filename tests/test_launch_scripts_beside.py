"""What Python scripts take from elsewhere, start, or say in their data: constants, documents, shells, lengths."""

import pytest

from gpuscale import load_model, read_launch
from gpuscale.errors import InputError

TRAINS = """
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2"{loader})
{between}
args = TrainingArguments("o", per_device_train_batch_size=1{given})
Trainer(model=model, args=args{more}).train()
"""


def _script(tmp_path, between="", name="a.py", **parts):
    file = tmp_path / name
    file.write_text(TRAINS.format(**{"between": between, "loader": "", "given": "", "more": "", **parts}))
    return file


def test_constants_of_a_module_that_is_not_here_are_asked_for_by_its_name(tmp_path):
    file = _script(tmp_path, "from settings import STEPS, BATCH", given=", gradient_accumulation_steps=STEPS")
    with pytest.raises(InputError, match=r"STEPS is of settings.py, which is not here"):
        read_launch([file], {}, {"gpus": 1, "seq": 512})
    beside = tmp_path / "settings"
    beside.mkdir()
    (beside / "settings.py").write_text("STEPS = 6\nBATCH = 2\n")
    for files in ([file, beside / "settings.py"], [beside / "settings.py", file]):
        assert read_launch(files, {}, {"gpus": 1, "seq": 512}).options["gbs"] == 6


def test_a_file_that_no_other_takes_from_is_still_refused(tmp_path):
    other = tmp_path / "other.py"
    other.write_text("X = 1\n")
    with pytest.raises(InputError, match=r"other\.py: no configuration"):
        read_launch([_script(tmp_path), other], {}, {"gpus": 1, "seq": 512})


@pytest.mark.parametrize(
    ("call", "assumed"), [("padding='max_length', max_length=256", False), ("truncation=True, max_length=256", True)]
)
def test_the_length_that_samples_are_made_of_is_read(tmp_path, call, assumed):
    between = f"def tokens(sample):\n    return tokenizer(sample['text'], {call})\ndata = load('x').map(tokens)"
    job = read_launch([_script(tmp_path, between, more=", train_dataset=data")], {}, {"gpus": 1})
    assert job.options["seq"] == 256
    assert any("at most this" in one.meaning for one in job.assumed) == assumed


@pytest.mark.parametrize(
    "call", ["os.system(text)", "subprocess.run(text, shell=True)", "subprocess.call(text.split())"]
)
def test_a_command_that_a_script_starts_is_read(tmp_path, call):
    file = tmp_path / "a.py"
    text = "torchrun --nproc_per_node 4 run_clm.py --config_name gpt2 --block_size 512 --per_device_train_batch_size 2"
    file.write_text(f"import os, subprocess\ntext = '{text} --output_dir o --do_train'\n{call}\n")
    job = read_launch([file], {}, {})
    assert (job.options["gpus"], job.options["gbs"], job.options["seq"]) == (4, 8, 512)


def test_the_document_of_a_program_of_hydra_is_named_and_read(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        "import hydra\n\n@hydra.main(config_path='conf', config_name='job')\ndef main(cfg):\n    run(cfg)\n"
    )
    with pytest.raises(InputError, match=r"configured in conf/job\.yaml, which is not here"):
        read_launch([file], {}, {})
    document = tmp_path / "conf" / "job.yaml"
    document.parent.mkdir()
    document.write_text(
        "trainer: {devices: 8, num_nodes: 1, precision: bf16}\nmodel: {micro_batch_size: 2, global_batch_size: 32, "
        "num_layers: 12, hidden_size: 768, num_attention_heads: 12, encoder_seq_length: 2048, "
        "tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, max_position_embeddings: 2048}\n"
    )
    for files in ([file], [file, document]):
        job = read_launch(files, {}, {"model": "gpt3-125m"})
        assert (job.options["gpus"], job.options["gbs"], job.layout["tp"]) == (8, 32, 2)


def test_a_recipe_of_nemo_that_is_given_a_whole_job_is_read_as_one(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        "from nemo.collections import llm\nfrom nemo import lightning as nl\n"
        "strategy = nl.MegatronStrategy(tensor_model_parallel_size=2, sequence_parallel=True)\n"
        "trainer = nl.Trainer(devices=8, num_nodes=1, precision='bf16-mixed', strategy=strategy)\n"
        "data = llm.SquadDataModule(seq_length=4096, global_batch_size=128, micro_batch_size=1)\n"
        "recipe = llm.finetune_recipe(model=llm.Llama3Config8B(), data=data, trainer=trainer)\n"
    )
    job = read_launch([file], {}, {})
    assert (job.options["model"], job.options["gpus"], job.layout["tp"]) == ("llama3-8b", 8, 2)


def test_a_recipe_of_nemo_that_is_changed_afterwards_stays_a_recipe(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        "import nemo_run as run\nfrom nemo.collections import llm\n"
        "recipe = llm.llama3_8b.pretrain_recipe(name='x', num_nodes=1, num_gpus_per_node=2)\n"
        "recipe.model.config.num_layers = 2\nrecipe.trainer.devices = 1\nrecipe.data.seq_length = 128\n"
        "recipe.trainer.strategy.context_parallel_size = 1\nrun.run(recipe)\n"
    )
    model = load_model(read_launch([file], {}, {}).options["model"])
    assert (model.layers, model.hidden, model.vocab) == (2, 4096, 128256)


def test_what_either_branch_gives_as_keywords_is_no_question_where_it_does_not_matter(tmp_path):
    between = "import lib\nmore = {'eval_strategy': 'no'} if lib.new else {'evaluation_strategy': 'no'}"
    assert read_launch([_script(tmp_path, between, given=", **more")], {}, {"gpus": 1, "seq": 64}).options["gbs"] == 1
    between = "import lib\nmore = {'optim': 'sgd'} if lib.new else {'optim': 'adafactor'}"
    with pytest.raises(InputError, match=r"lib\.new"):
        read_launch([_script(tmp_path, between, given=", **more")], {}, {"gpus": 1, "seq": 64})


def test_the_model_itself_is_told_to_recompute(tmp_path):
    options = {"gpus": 1, "seq": 64}
    on, off = "model.gradient_checkpointing_enable()", "model.gradient_checkpointing_disable()"
    wrapped = f"from peft import LoraConfig, get_peft_model\n{on}\nmodel = get_peft_model(model, LoraConfig(r=4))"
    assert read_launch([_script(tmp_path, wrapped)], {}, options).layout["recompute"] == "full"
    assert read_launch([_script(tmp_path, off)], {}, options).layout["recompute"] == "none"
    told = _script(tmp_path, off, given=", gradient_checkpointing=True")
    assert read_launch([told], {}, options).layout["recompute"] == "full"  # the Trainer is told last
    with pytest.raises(InputError, match="recompute="):
        read_launch([_script(tmp_path, f"{on}\n{off}")], {}, options)


def test_one_gpu_where_the_script_says_which(tmp_path):
    placed = _script(tmp_path, loader=', device_map={"": 0}')
    seen = _script(tmp_path, "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'", "b.py")
    for file in (placed, seen):
        assert read_launch([file], {}, {"seq": 64}).options["gpus"] == 1
    with pytest.raises(InputError, match="gpus="):
        read_launch([_script(tmp_path, loader=', device_map="auto"')], {}, {"seq": 64})


def test_a_model_that_no_argument_names_is_asked_for(tmp_path):
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--model_name')\n"
    text += "from unsloth import FastLanguageModel\nmodel, _ = FastLanguageModel.from_pretrained("
    file = _script(tmp_path, f"{text}model_name=parser.parse_args().model_name, max_seq_length=64)")
    with pytest.raises(InputError, match="no file states which model is trained"):
        read_launch([file], {}, {})


def test_helpers_of_torchtitan_s_configurations_are_no_jobs_and_replicas_are_said(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torchtitan.models.llama3.config_registry import llama3_8b\n\n"
        "def _base():\n    config = llama3_8b()\n    config.training.seq_len = 4096\n    return config\n\n"
        "def mine():\n    config = _base()\n    config.training.local_batch_size = 2\n    return config\n"
    )
    assert read_launch([file], {}, {"gpus": 8}).options["gbs"] == 16
    script = tmp_path / "a.sh"
    script.write_text(
        "torchrun --nproc_per_node=4 -m torchtitan.train --module qwen3 --config qwen3_0_6b "
        "--fault_tolerance.enable --fault_tolerance.group_size=2\n"
    )
    assert any("one of 2 replicas" in one.meaning for one in read_launch([script], {}, {}).assumed)
