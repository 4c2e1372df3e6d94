"""Python scripts whose training stands behind a loop, a command line or a module that is not here: what is right."""

import json

import pytest

from gpuscale import read_launch
from gpuscale.errors import InputError

EACH = """
import argparse, sys
from unsloth import FastLanguageModel
from trl import SFTTrainer
from transformers import TrainingArguments
NAMES = ["a", "b"]

def tune(name):
    samples = read(name)
    if not samples:
        return False
    model, tokenizer = FastLanguageModel.from_pretrained(model_name="Qwen/Qwen2.5-1.5B", load_in_4bit=True)
    model = FastLanguageModel.get_peft_model(
        model, r=24, target_modules=["q_proj", "v_proj"], use_gradient_checkpointing="unsloth"
    )
    args = TrainingArguments(output_dir="o/" + name, per_device_train_batch_size=2, gradient_accumulation_steps=8,
                             bf16=True, optim="adamw_8bit")
    SFTTrainer(model=model, tokenizer=tokenizer, max_seq_length=768, args=args).train()
    return True

"""
CHOSEN = """
parser = argparse.ArgumentParser()
parser.add_argument("--one")
parser.add_argument("--all", action="store_true")
args = parser.parse_args()
if args.all:
    chosen = NAMES
elif args.one:
    if args.one not in NAMES:
        print("which?")
        sys.exit(1)
    chosen = [args.one]
else:
    parser.print_help()
    sys.exit(0)
for name in chosen:
    tune(name)
"""


@pytest.mark.parametrize(
    "loop",
    [
        CHOSEN,
        "from elsewhere import chosen\nfor name in chosen:\n    tune(name)",
        "import glob\nfor name in glob.glob('data/*'):\n    if name in NAMES:\n        continue\n    done = tune(name)",
        "from elsewhere import more\nwhile more():\n    tune('a')",
    ],
)
def test_a_loop_that_nobody_knows_around_the_training_hides_nothing(tmp_path, loop):
    (tmp_path / "a.py").write_text(EACH + loop)
    job = read_launch([tmp_path / "a.py"], {}, {})
    options = {**job.layout, **job.options}
    said = {name: options.get(name) for name in ("gbs", "seq", "tune", "lora_rank", "recompute", "precision")}
    assert said == {"gbs": 16, "seq": 768, "tune": "qlora", "lora_rank": 24, "recompute": "full", "precision": "bf16"}
    assert str(job.options["model"]).lower().endswith("qwen2.5-1.5b")


LOOPED = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from elsewhere import runs
size = 2
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype=torch.bfloat16)
for run in runs:
    {body}
args = TrainingArguments(output_dir="o", per_device_train_batch_size=size, bf16=True)
trainer = Trainer(model=model, args=args)
trainer.train()
"""


@pytest.mark.parametrize("body", ["size = size * 2", "size += 2", "size = 8"])
def test_what_rounds_of_a_loop_change_is_not_known_after_it(tmp_path, body):
    (tmp_path / "a.py").write_text(LOOPED.format(body=body))
    with pytest.raises(InputError, match="runs"):
        read_launch([tmp_path / "a.py"], {}, {"gpus": 1, "seq": 512})


REFUSED = """
import argparse, sys
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--size", default="none")
args = parser.parse_args()
if args.size == "small":
    batch = 2
elif args.size == "large":
    batch = 16
else:
    sys.exit("which size?")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype="bfloat16")
Trainer(model=model, args=TrainingArguments("o", per_device_train_batch_size=batch, bf16=True)).train()
"""


def test_an_argument_without_which_a_script_ends_is_asked_for(tmp_path):
    (tmp_path / "a.py").write_text(REFUSED)
    given = {"gpus": 1, "seq": 512}
    with pytest.raises(InputError, match="var=size="):
        read_launch([tmp_path / "a.py"], {}, given)
    for size, batch in (("small", 2), ("large", 16)):
        assert read_launch([tmp_path / "a.py"], {"size": size}, given).options["gbs"] == batch


UNKNOWN = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
from elsewhere import wanted
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype="bfloat16")
if wanted():
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
Trainer(model=model, args=TrainingArguments("o", per_device_train_batch_size=4, bf16=True)).train()
"""


def test_adapters_of_a_model_that_is_perhaps_another_are_asked_for(tmp_path):
    (tmp_path / "a.py").write_text(UNKNOWN)
    given = {"gpus": 1, "seq": 512, "model": "qwen2.5-1.5b"}
    with pytest.raises(InputError, match="tune="):
        read_launch([tmp_path / "a.py"], {}, given)
    job = read_launch([tmp_path / "a.py"], {}, {**given, "tune": "full"})
    assert (job.options["gbs"], job.options.get("tune", "full")) == (4, "full")


REWARDED = """
from elsewhere import reward
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
script, training, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
trainer = GRPOTrainer(model=model.model_name_or_path, reward_funcs=reward, args=training, train_dataset=None,
                      peft_config=get_peft_config(model))
trainer.train()
"""
LINE = "--model_name_or_path Qwen/Qwen2.5-1.5B --per_device_train_batch_size=8 --num_generations 4 --bf16"


def rewarded(tmp_path, line, **given):
    (tmp_path / "a.py").write_text(REWARDED)
    return read_launch([tmp_path / "a.py"], {} if line is None else {"command_line": line}, {"gpus": 2, **given})


@pytest.mark.parametrize(
    ("more", "seq"),
    [
        ("--max_prompt_length 300 --max_completion_length 700", 1000),
        ("--max_prompt_length 300", 556),  # releases of TRL that know it make answers of 256
    ],
)
def test_samples_of_grpo_are_prompt_and_answer(tmp_path, more, seq):
    job = rewarded(tmp_path, f"{LINE} {more}")
    assert (job.options["method"], job.options["seq"], job.options["gbs"]) == ("grpo", seq, 16)
    assert "tune" not in job.options


@pytest.mark.parametrize("more", ["", " --max_completion_length 512"])
def test_prompts_of_grpo_that_nothing_cuts_are_asked_for(tmp_path, more):
    with pytest.raises(InputError, match="how long prompts are") as caught:
        rewarded(tmp_path, LINE + more)
    assert "seq=" in str(caught.value.hint)
    assert rewarded(tmp_path, LINE + more, seq=900).options["gbs"] == 16


def test_a_command_line_that_is_not_known_is_asked_for_as_it_is_written(tmp_path):
    with pytest.raises(InputError) as caught:
        rewarded(tmp_path, None)
    said = str(caught.value)
    assert "`var=command_line=--per_device_train_batch_size 4 --bf16 true`" in said
    assert "lora" not in said and "tune" not in said


@pytest.mark.parametrize("line", ["1", "Qwen 4", "--a 'b", "{bad"])
def test_another_form_of_a_command_line_is_refused(tmp_path, line):
    with pytest.raises(InputError, match="no command line") as caught:
        rewarded(tmp_path, line, seq=512)
    assert "--per_device_train_batch_size 4" in str(caught.value.hint)


def test_a_command_line_says_arguments_of_argparse_too(tmp_path):
    (tmp_path / "a.py").write_text(REFUSED)
    job = read_launch([tmp_path / "a.py"], {"command_line": "--size large"}, {"gpus": 1, "seq": 512})
    assert job.options["gbs"] == 16


def test_modules_whose_names_a_script_takes_and_that_are_not_here_are_named(tmp_path):
    text = "import deepspeed\nfrom numpy import *\nfrom own.share import *\nfrom setting import *\n"
    (tmp_path / "a.py").write_text(text + "engine = deepspeed.initialize(config=wanted(), model=made())\n")
    with pytest.raises(InputError, match=r"own/share\.py, setting\.py") as caught:
        read_launch([tmp_path / "a.py"], {}, {})
    assert "numpy" not in str(caught.value)
    assert "give these files too" in str(caught.value.hint)


def test_arguments_of_the_trainer_that_a_file_holds_are_not_said_to_be_nothing(tmp_path):
    text = "import yaml\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    text += "given = yaml.safe_load(open('a.yaml'))['training']\n"
    text += "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-1.5B', torch_dtype='bfloat16')\n"
    text += "Trainer(model=model, args=TrainingArguments(**given)).train()\n"
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(InputError) as caught:
        read_launch([tmp_path / "a.py"], {}, {"gpus": 2, "seq": 512})
    assert "launch_files=a.yaml" in str(caught.value)
    told = {"given": '{"per_device_train_batch_size": 3, "bf16": true}'}
    assert read_launch([tmp_path / "a.py"], told, {"gpus": 2, "seq": 512}).options["gbs"] == 6


LOADING = """
import argparse, {module}
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def load(path):
    with open(path) as file:
        return {module}.{load}(file)

parser = argparse.ArgumentParser()
parser.add_argument("--config", default="configs/small.{end}")
config = load(parser.parse_args().config)
training = config["training"]
arguments = TrainingArguments("out", per_device_train_batch_size=training["batch"],
                              bf16=training["precision"] == "bf16",
                              gradient_accumulation_steps=training.get("accumulate", 1),
                              gradient_checkpointing=config["layers"][1]["again"])
Trainer(model=AutoModelForCausalLM.from_pretrained(config["model"]["name"]), args=arguments).train()
"""
TABLES = {
    "model": {"name": "Qwen/Qwen2.5-7B"},
    "training": {"batch": 2, "accumulate": 16, "precision": "bf16"},
    "layers": [{"again": False}, {"again": True}],
}


@pytest.mark.parametrize(("module", "load", "end"), [("yaml", "safe_load", "yaml"), ("json", "load", "json")])
def test_documents_that_a_script_loads_itself_are_read_through_it(tmp_path, module, load, end):
    """As JSON is YAML, one text serves both; the file that the command names counts, else the default."""
    (tmp_path / "configs").mkdir()
    for name, batch in (("small", 2), ("large", 4)):
        tables = TABLES | {"training": TABLES["training"] | {"batch": batch}}
        (tmp_path / "configs" / f"{name}.{end}").write_text(json.dumps(tables))
    (tmp_path / "train.py").write_text(LOADING.format(module=module, load=load, end=end))
    run = tmp_path / "run.sh"
    for told, batch in (("", 2), (f"--config configs/large.{end}", 4)):
        run.write_text(f"torchrun --nproc_per_node 4 train.py {told}\n")
        job = read_launch([str(run)], given={"seq": 2048})
        assert (job.options["gbs"], job.layout["micro_batch_size"]) == (batch * 16 * 4, batch)
        assert (job.options["precision"], job.layout["recompute"]) == ("bf16", "full")
        assert job.options["model"] == "Qwen/Qwen2.5-7B"
    job = read_launch([str(tmp_path / "train.py")], given={"seq": 2048, "gpus": 8})
    assert job.options["gbs"] == 256


def test_documents_that_a_script_loads_and_that_are_not_here_are_asked_for(tmp_path):
    (tmp_path / "train.py").write_text(LOADING.format(module="yaml", load="safe_load", end="yaml"))
    with pytest.raises(InputError) as caught:
        read_launch([str(tmp_path / "train.py")], given={"seq": 2048, "gpus": 8})
    assert "configs/small.yaml, which is not here" in caught.value.message
    assert caught.value.hint.startswith("give it too: `launch_files=configs/small.yaml`, or give `model=NAME`")


def test_a_document_that_an_argument_must_name_is_asked_for_by_its_name(tmp_path):
    text = LOADING.format(module="yaml", load="safe_load", end="yaml")
    (tmp_path / "train.py").write_text(text.replace('default="configs/small.yaml"', "required=True"))
    with pytest.raises(InputError) as caught:
        read_launch([str(tmp_path / "train.py")], given={"seq": 2048})
    assert caught.value.hint == "`var=config=FILE.yaml` gives it"
    (tmp_path / "own.yaml").write_text(json.dumps(TABLES))
    job = read_launch([str(tmp_path / "train.py")], {"config": "own.yaml"}, given={"seq": 2048, "gpus": 2})
    assert (job.options["gbs"], job.options["model"]) == (64, "Qwen/Qwen2.5-7B")


BESIDE = """
import json, os, sys
from pathlib import Path
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
{lines}
args = TrainingArguments("out", per_device_train_batch_size={batch}, deepspeed={deepspeed})
Trainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B"), args=args).train()
"""


@pytest.mark.parametrize(
    "named",
    [
        "str(Path(__file__).resolve().parents[1] / 'ds.json')",
        "os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'ds.json')",
        "json.load(open(Path(__file__).parent.parent / 'ds.json'))",
        "json.loads((Path(__file__).parent.parent / 'ds.json').read_text())",
        "'ds.json'",
    ],
)
def test_files_beside_a_script_are_read_by_its_own_path(tmp_path, named):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(BESIDE.format(lines="", batch=2, deepspeed=named))
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    job = read_launch([tmp_path / "src" / "train.py"], given={"seq": 2048, "gpus": 4})
    assert (job.layout["zero"], job.options["precision"], job.options["offload"]) == (3, "bf16", "optimizer")


def test_a_configuration_that_a_script_writes_itself_is_read(tmp_path):
    own = "{'bf16': {'enabled': True}, 'zero_optimization': {'stage': 2}}"
    lines = f"with open('own.json', 'w') as f:\n    json.dump({own}, f)"
    (tmp_path / "train.py").write_text(BESIDE.format(lines=lines, batch=2, deepspeed="'own.json'"))
    job = read_launch([tmp_path / "train.py"], given={"seq": 2048, "gpus": 4})
    assert (job.layout["zero"], job.options["precision"]) == (2, "bf16")


def test_documents_of_omegaconf_with_what_a_command_line_changes(tmp_path):
    (tmp_path / "c.yaml").write_text("one: {bs: 2, lr: 1}\ntwo: {bs: '${one.bs}'}\nds: {bf16: {enabled: true}}\n")
    lines = "cfg = OmegaConf.merge(OmegaConf.load('c.yaml'), {'one': {'lr': 2}}, OmegaConf.from_cli())"
    script = BESIDE.format(lines=lines, batch="cfg.one.bs * cfg.two.bs", deepspeed="OmegaConf.to_container(cfg.ds)")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 4 train.py one.bs=8\n")
    for file, batch in (("train.py", 16), ("run.sh", 64)):
        job = read_launch([tmp_path / file], given={"seq": 2048, "gpus": 4, "zero": 0})
        assert (job.options["gbs"], job.options["precision"]) == (batch, "bf16")


def test_words_of_a_command_line_by_their_number(tmp_path):
    (tmp_path / "train.py").write_text(BESIDE.format(lines="", batch="int(sys.argv[1])", deepspeed="None"))
    with pytest.raises(InputError, match=r"var=sys\.argv\.1="):
        read_launch([tmp_path / "train.py"], given={"seq": 2048, "gpus": 4})
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 4 train.py 3\n")
    job = read_launch([tmp_path / "run.sh"], given={"seq": 2048, "precision": "bf16"})
    assert job.options["gbs"] == 12


def test_a_key_that_a_document_gives_again_counts_as_it_stands_last(tmp_path):
    (tmp_path / "configs").mkdir()
    text = "model: x\nmodel: {name: Qwen/Qwen2.5-7B}\nlayers: [{again: false}, {again: true}]\n"
    (tmp_path / "configs" / "small.yaml").write_text(f"{text}training: {{batch: 3, precision: fp32}}\ntraining: 7\n")
    (tmp_path / "train.py").write_text(LOADING.format(module="yaml", load="safe_load", end="yaml"))
    with pytest.raises(InputError):  # 7 has no batch
        read_launch([str(tmp_path / "train.py")], given={"seq": 2048, "gpus": 8})
    (tmp_path / "configs" / "small.yaml").write_text(f"training: 7\n{text}training: {{batch: 3, precision: fp32}}\n")
    job = read_launch([str(tmp_path / "train.py")], given={"seq": 2048, "gpus": 8})
    assert job.options["gbs"] == 24


CHOOSING = """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
PRESETS = {"small": {"batch": 2, "name": "Qwen/Qwen2.5-0.5B"}, "large": {"batch": 8, "name": "Qwen/Qwen2.5-7B"}}
parser = argparse.ArgumentParser()
parser.add_argument("--preset", required=True, choices=list(PRESETS))
parser.add_argument("--accumulate", type=int, default="4")
args = parser.parse_args()
chosen = dict(PRESETS[args.preset])
arguments = TrainingArguments("out", per_device_train_batch_size=chosen["batch"], bf16=True,
                              gradient_accumulation_steps=2 * args.accumulate)
Trainer(model=AutoModelForCausalLM.from_pretrained(chosen["name"]), args=arguments).train()
"""


def test_what_chooses_an_entry_of_a_table_is_asked_for_with_its_choices(tmp_path):
    (tmp_path / "train.py").write_text(CHOOSING)
    with pytest.raises(InputError) as caught:
        read_launch([tmp_path / "train.py"], given={"seq": 2048, "gpus": 2})
    assert "the variable preset says which entry" in caught.value.message
    assert "small, large" in str(caught.value.hint) and "batch" not in str(caught.value.hint)
    job = read_launch([tmp_path / "train.py"], {"preset": "large"}, given={"seq": 2048, "gpus": 2})
    assert (job.options["gbs"], job.options["model"]) == (128, "Qwen/Qwen2.5-7B")
