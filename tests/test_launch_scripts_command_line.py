"""Python scripts whose values come from a command line, a notebook, another script or what they make of their data."""

import ast

import pytest

from gpuscale import read_launch
from gpuscale.errors import InputError

TRAINER = """
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer, TrlParser, ModelConfig, ConstantLengthDataset, get_peft_config
from dataclasses import dataclass, field
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="float32")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
"""
PLAIN = "args = TrainingArguments(output_dir='o', per_device_train_batch_size=2, bf16=True)\n"
START = "Trainer(model=model, args=args).train()\n"


def read(tmp_path, text, variables=None, **given):
    path = tmp_path / "train.py"
    path.write_text(text)
    return read_launch([path], variables or {}, {"gpus": 4, **given})


def asked(tmp_path, text, **given):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, **given)
    return f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("line", ["!pip install -q trl\n", "%cd /content\n", "if True:\n    !nvidia-smi\n"])
def test_lines_of_notebooks_are_passed_over(tmp_path, line):
    assert read(tmp_path, line + TRAINER + PLAIN + START, seq=512).options["gbs"] == 8


def test_fields_of_a_parsed_class_have_their_defaults_and_others_are_asked_for(tmp_path):
    own = "@dataclass\nclass Own:\n    name: str\n    length: int = 640\n"
    parse = "own, args = HfArgumentParser((Own, SFTConfig)).parse_args_into_dataclasses()\n"
    text = TRAINER + own + parse + "SFTTrainer(model=own.name, args=args, max_seq_length=own.length).train()\n"
    said = asked(tmp_path, text)
    assert "command_line" in said
    assert "name" in said
    told = {"name": "gpt2", "command_line": '{"per_device_train_batch_size": 3, "fp16": true, "bf16": false}'}
    job = read(tmp_path, text, told)
    assert (job.options["gbs"], job.options["precision"], job.options["seq"]) == (12, "fp16", 640)


def test_a_class_made_from_arguments_of_the_trainer_says_what_matters(tmp_path):
    own = "@dataclass\nclass Own(TrainingArguments):\n    per_device_train_batch_size: int = 5\n    bf16: bool = True\n"
    parse = "(args,) = HfArgumentParser((Own,)).parse_args_into_dataclasses()\n"
    job = read(tmp_path, TRAINER + own + parse + START, seq=512)
    assert job.layout["micro_batch_size"] == 5
    assert any("5" in one.meaning for one in job.assumed)


def test_a_class_made_from_arguments_of_the_trainer_takes_theirs_of_the_command_line(tmp_path):
    own = "@dataclass\nclass Own(TrainingArguments):\n    extra: int = 1\n"
    parse = "(args,) = HfArgumentParser((Own,)).parse_args_into_dataclasses()\n"
    told = {"command_line": "--per_device_train_batch_size 3 --bf16 true --extra 2"}
    job = read(tmp_path, TRAINER + own + parse + START, told, seq=512)
    assert (job.layout["micro_batch_size"], job.options["precision"]) == (3, "bf16")


def test_adapters_of_a_command_line_are_asked_for(tmp_path):
    parse = "args, of = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
    text = TRAINER + parse + "SFTTrainer(model=model, args=args, peft_config=get_peft_config(of)).train()\n"
    said = asked(tmp_path, text)
    assert "command_line" in said
    assert "tune=" not in said
    assert "tune" not in read(tmp_path, text, {"command_line": "{}"}).options
    line = "--use_peft --lora_r 24 --lora_target_modules q_proj o_proj"
    options = read(tmp_path, text, {"command_line": line}).options
    assert (options["tune"], options["lora_rank"], options["lora_targets"]) == ("lora", 24, "o,q")


STARTED = {
    "fire": "import fire\ndef main(batch=6, length=320):\n    {}\nfire.Fire(main)\n",
    "typer": "import typer\ndef main(batch: int = typer.Option(6), length: int = 320):\n    {}\ntyper.run(main)\n",
    "click": "import click\n@click.command()\n@click.option('--batch', '-b', default=6)\n"
    "@click.option('--length', default=320)\ndef main(batch, length):\n    {}\nmain()\n",
    "tyro": "import tyro\n@dataclass\nclass Own:\n    batch: int = 6\n    length: int = 320\n"
    "def main(batch, length):\n    {}\nown = tyro.cli(Own)\nmain(own.batch, own.length)\n",
}


@pytest.mark.parametrize("text", STARTED.values(), ids=STARTED)
def test_defaults_of_what_a_command_line_starts(tmp_path, text):
    args = "SFTConfig(output_dir='o', per_device_train_batch_size=batch, max_length=length)"
    text = TRAINER + text.format(f"SFTTrainer(model='gpt2', args={args}).train()")
    assert read(tmp_path, text).options["gbs"] == 24
    job = read(tmp_path, text, {"batch": "7"})
    assert (job.options["gbs"], job.options["seq"]) == (28, 320)


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ("tokenizer.apply_chat_template([1], truncation=True, padding='max_length', max_length=352)\n", 352),
        ("data = ConstantLengthDataset(tokenizer, [], seq_length=768)\n", 768),
    ],
)  # fmt: skip
def test_lengths_of_data_that_a_script_makes(tmp_path, text, seq):
    assert read(tmp_path, TRAINER + PLAIN + text + START).options["seq"] == seq


def test_arguments_that_only_a_release_decides_on_stay(tmp_path):
    args = "import inspect\nknown = inspect.signature(TrainingArguments).parameters\n"
    args += "all_ = dict(per_device_train_batch_size=3)\n"
    text = TRAINER + args + "args = TrainingArguments(**{k: v for k, v in all_.items() if k in known})\n" + START
    assert read(tmp_path, text, seq=512).options["gbs"] == 12


def test_a_trainer_that_ray_prepares_inside_a_helper_is_one_job(tmp_path):
    text = f"""{TRAINER}
from ray.train.huggingface.transformers import prepare_trainer
def train(config):
    {PLAIN}    trainer = Trainer(model=model, args=args)
    trainer = prepare_trainer(trainer)
    trainer.train()
def worker(raw):
    if raw:
        train(raw)
    else:
        train(None)
"""
    assert read(tmp_path, text, seq=512).options["gbs"] == 8


def test_what_a_python_file_has_a_cluster_run(tmp_path):
    text = "import sky\ntask = sky.Task(run='python train_llm.py', num_nodes=1)\nsky.launch(task)\n"
    path = tmp_path / "launch.py"
    path.write_text(text)
    with pytest.raises(InputError, match=r"train_llm\.py"):
        read_launch([path])


def test_training_of_a_module_that_is_not_here_is_named(tmp_path):
    assert "engine.loop.run" in asked(tmp_path, "from engine.loop import run\nrun(1)\n")


def test_adapters_that_are_loaded_to_stay_as_they_are_are_spoken_of(tmp_path):
    lora = "from peft import PeftModel\nmodel = PeftModel.from_pretrained(model, 'me/lora')\n"
    given = {"lora_rank": 8, "lora_targets": "q,v", "seq": 512}
    said = read(tmp_path, TRAINER + lora + PLAIN + START, **given).assumed
    assert any("is_trainable" in one.meaning for one in said)
    said = read(tmp_path, TRAINER + lora.replace("'me/lora'", "'me/lora', is_trainable=True") + PLAIN + START, **given)
    assert not any("is_trainable" in one.meaning for one in said.assumed)


@pytest.mark.parametrize("start", ["import values\n", "import values as values\n"])
def test_modules_that_are_imported_as_such_are_read(tmp_path, start):
    (tmp_path / "values.py").write_text("NAME = 'gpt2'\nSIZE = 3\n")
    args = "args = TrainingArguments(output_dir='o', per_device_train_batch_size=values.SIZE, bf16=True)\n"
    model = "model = AutoModelForCausalLM.from_pretrained(values.NAME)\n"
    job = read(tmp_path, TRAINER + start + model + args + START, seq=512)
    assert (job.options["model"], job.options["gbs"]) == ("gpt2", 12)


def test_modules_that_are_imported_for_what_they_do_are_gone_through(tmp_path):
    (tmp_path / "quick.py").write_text("import transformers\ntransformers.models.llama.Attention.forward = print\n")
    assert "forward" in asked(tmp_path, "import quick\n" + TRAINER + PLAIN + START, seq=512)
    assert "llama_patch" in asked(tmp_path, "import llama_patch\n" + TRAINER + PLAIN + START, seq=512)


CALLBACK = (
    "from transformers import TrainerCallback\nclass Own(TrainerCallback):\n    def on_step_end(self, *a, **k):\n"
)


@pytest.mark.parametrize(
    ("does", "word"), [("k['model'].freeze()", "tune"), ("k['model'].half()", ""), ("print(k['model'])", None)]
)
def test_callbacks_that_change_the_model_are_asked_about(tmp_path, does, word):
    text = TRAINER + PLAIN + CALLBACK + f"        {does}\n" + START.replace("args=args", "args=args, callbacks=[Own()]")
    if word is None:
        assert read(tmp_path, text, seq=512).options["gbs"] == 8
    else:
        assert f"Own.{'freez' if word else 'half'}" in asked(tmp_path, text, seq=512)


def test_a_trainer_in_a_loop_over_data_that_is_not_here(tmp_path):
    loop = "import sets\nfor name in sets.NAMES:\n    if name in sets.KNOWN:\n"
    loop += "        trainer = Trainer(model=model, args=args)\n"
    assert read(tmp_path, TRAINER + PLAIN + loop + "        trainer.train()\n", seq=512).options["gbs"] == 8


def test_a_model_that_trl_loads_is_loaded_as_it_is_told(tmp_path):
    args = "args = SFTConfig(output_dir='o', max_length=512, model_init_kwargs={'dtype': 'bfloat16'})\n"
    job = read(tmp_path, TRAINER + args + "SFTTrainer(model='Qwen/Qwen2.5-0.5B', args=args).train()\n")
    assert job.options["master_dtype"] == "none"
    usual = args.replace("model_init_kwargs={'dtype': 'bfloat16'}", "")
    job = read(tmp_path, TRAINER + usual + "SFTTrainer(model='Qwen/Qwen2.5-0.5B', args=args).train()\n")
    assert "master_dtype" not in job.options


@pytest.mark.parametrize(
    ("loop", "gbs"),
    [
        ("    size *= 2\n    if size >= 16:\n        break\n", 64),
        ("    size *= 2\n    if size >= 16:\n        break\n    continue\n", 64),
        ("    size *= 2\n    if fits(size):\n        break\n", None),
        ("    size *= 2\n    if len(open(size).read()) > 3:\n        break\n", None),
        ("    size *= 2\n", None),
    ],
)
def test_loops_without_a_condition_end_where_it_is_known(tmp_path, loop, gbs):
    text = f"size = 1\nwhile True:\n{loop}" + TRAINER + PLAIN.replace("batch_size=2", "batch_size=size") + START
    if gbs is None:
        assert "var=size=" in asked(tmp_path, text, seq=512)
        assert read(tmp_path, text, {"size": "8"}, seq=512).options["gbs"] == 32
    else:
        assert read(tmp_path, text, seq=512).options["gbs"] == gbs


def test_samples_of_a_part_of_a_dataset_are_as_long_as_they_are_padded(tmp_path):
    cut = "def cut(one):\n    return tokenizer(one['text'], padding='max_length', truncation=True, max_length=256)\n"
    data = "from datasets import load_dataset\ndata = load_dataset('a')['train'].train_test_split(0.1)['train']\n"
    assert read(tmp_path, TRAINER + PLAIN + cut + data + "data = data.map(cut)\n" + START).options["seq"] == 256


def test_what_a_helper_quantises_is_asked_for_by_the_kind_of_tuning(tmp_path):
    text = TRAINER + "from shared import load, in_4bit\nmodel = load('Qwen/Qwen2.5-0.5B', load_in_4bit=in_4bit('a'))\n"
    assert "tune=qlora" in asked(tmp_path, text + PLAIN + START, seq=512, model="qwen2.5-0.5b")
    given = {"seq": 512, "model": "qwen2.5-0.5b", "tune": "lora", "lora_rank": 8, "lora_targets": "q,v"}
    assert read(tmp_path, text + PLAIN + START, **given).options.get("base_dtype") != "nf4"


def test_each_import_counts_as_work(tmp_path):
    """It looks for a file; the whole text was gone through for each besides."""
    text = "".join(f"import module_{number}\n" for number in range(3000))
    with pytest.raises(InputError, match="steps to work out"):
        read(tmp_path, text + TRAINER + PLAIN + START, seq=512)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("    made = names * 3\n", "steps to work out"),
        ("    made = -5 in names\n", "steps to work out"),
        ("    made = names[1:]\n", "steps to work out"),
        ("    call(*names)\n", "steps to work out"),
        ("    twice = [twice, twice]\n    made = twice == twice\n", ""),
        ("    twice = (twice, twice)\n    made = {twice: 1}\n", ""),
        ("    twice = {'a': twice, 'b': twice}\n    made = copy.deepcopy(twice), str(twice)\n", ""),
        ("    own.append(own)\n    made = str(own), copy.deepcopy(own), own == own\n", "steps to work out"),
        ("    table['own'] = table\n    made = str(table), copy.deepcopy(table)\n", "steps to work out"),
    ],
)
def test_what_is_in_lists_counts_as_work_and_is_bounded(tmp_path, work, said):
    """Lists of sixty lists that each have the last twice have more elements than any machine goes through."""
    start = "import copy\nnames = list(range(9000))\ntwice, own, table = [1], [], {}\ndef call(*all): return 1\n"
    text = f"{start}for number in range({10_000 if 'names' in work else 60}):\n{work}" + TRAINER + PLAIN + START
    if said:
        with pytest.raises(InputError, match=said):
            read(tmp_path, text, seq=512)
    else:
        assert read(tmp_path, text, seq=512).options["gbs"] == 8


def test_copies_of_lists_and_objects_share_what_the_originals_share(tmp_path):
    text = (
        "import copy\nclass Sizes:\n    def __init__(self): self.own, self.sizes = self, [2, 4]\n"
        "a = Sizes()\nb = copy.deepcopy(a)\nb.own.sizes[0] = 16\npair = copy.copy((a.sizes[0], b.sizes[0]))\n"
        "size = 8 if pair == (2, 16) else 1\n"
    )
    text += TRAINER + PLAIN.replace("batch_size=2", "batch_size=size") + START
    assert read(tmp_path, text, seq=512).options["gbs"] == 32


def test_what_stands_below_a_condition_is_written_out_once(tmp_path, monkeypatch):
    written = []
    unparse = ast.unparse
    monkeypatch.setattr(ast, "unparse", lambda node: written.append(node) or unparse(node))
    loop = "for step in range(500):\n    if step % 700 == 3:\n        optimizer.step()\n"
    assert read(tmp_path, loop + TRAINER + PLAIN + START, seq=512).options["gbs"] == 8
    assert len(written) < 50


OF_FILE = """
import os, sys
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Own:
    model_name: str = field(default=None)
parser = HfArgumentParser((Own, TrainingArguments))
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    own, args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
else:
    own, args = parser.parse_args_into_dataclasses()
Trainer(model=AutoModelForCausalLM.from_pretrained(own.model_name), args=args).train()
"""


def test_arguments_of_a_command_or_of_the_file_that_it_names(tmp_path):
    (tmp_path / "train.py").write_text(OF_FILE)
    values = '{"model_name": "Qwen/Qwen2.5-0.5B", "per_device_train_batch_size": 5, "bf16": true}'
    (tmp_path / "a.json").write_text(values)
    options = "--model_name Qwen/Qwen2.5-7B --per_device_train_batch_size 3 --bf16"
    for words, model, batch in (("a.json", "0.5B", 10), (options, "7B", 6)):
        (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 2 train.py {words}\n")
        job = read_launch([tmp_path / "run.sh"], {}, {"seq": 512})
        assert (job.options["model"], job.options["gbs"]) == (f"Qwen/Qwen2.5-{model}", batch)
        assert job.options["precision"] == "bf16"
    job = read_launch([tmp_path / "train.py"], {"sys.argv.1": "a.json"}, {"seq": 512, "gpus": 1})
    assert job.options["gbs"] == 5


def test_a_file_of_arguments_that_a_word_of_the_command_line_must_name_is_asked_for(tmp_path):
    text = "args = HfArgumentParser(TrainingArguments).parse_yaml_file(sys.argv[1])[0]\n"
    text = f"{OF_FILE.partition('@dataclass')[0]}{text}Trainer(model='Qwen/Qwen2.5-0.5B', args=args).train()\n"
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(InputError) as caught:
        read_launch([tmp_path / "train.py"], {}, {"seq": 512})
    assert caught.value.hint == "`var=sys.argv.1=FILE.yaml` gives it"
