"""Configurations of programs of one's own that hold arguments of the Trainer in tables."""

import pytest

from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import LackingError

HYDRA = """
seed: 1
model:
  name_or_path: Qwen/Qwen2.5-7B
  torch_dtype: bfloat16
  attn_implementation: sdpa
%s
training:
  output_dir: out
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 4
  gradient_checkpointing: true
  bf16: true
  optim: adamw_torch
  max_seq_length: 2048
"""
LORA = "lora: {r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}"


def job(folder, more: str = ""):
    """What is read of a configuration with more tables, on 8 GPUs."""
    (folder / "train.yaml").write_text(HYDRA % more)
    return read_launch([folder / "train.yaml"], {}, {"gpus": 8})


def test_tables_are_read_as_arguments(tmp_path):
    made = job(tmp_path)
    expected = {"model": "Qwen/Qwen2.5-7B", "gbs": 64, "seq": 2048, "precision": "bf16", "attention": "sdpa"}
    assert {name: made.options[name] for name in expected} == expected
    assert (made.layout["micro_batch_size"], made.layout["recompute"]) == (2, "full")
    assert made.options.get("tune") is None
    assert any("program of one's own" in said.meaning for said in made.assumed)
    assert made.setting("seq").line == 15


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (LORA, {"tune": "lora", "lora_rank": 16, "lora_targets": "q,v", "lora_dropout": True}),
        (LORA.replace("lora: {", "peft: {enabled: false, "), {"tune": None, "lora_rank": None}),
        (f"{LORA}\nquantization: {{load_in_4bit: true, bnb_4bit_use_double_quant: true}}",
         {"tune": "qlora", "base_dtype": "nf4"}),
        ("data: {max_length: 1024, path: x}", {"seq": 2048}),
    ],
)  # fmt: skip
def test_adapters_and_quantised_weights_of_other_tables(more, expected, tmp_path):
    made = job(tmp_path, more)
    assert {name: made.options.get(name) for name in expected} == expected


def test_what_is_known_in_no_table_is_asked_about(tmp_path):
    with pytest.raises(LackingError, match="not known here") as caught:
        job(tmp_path, "pruning: {keep_heads: 8}")
    assert "ignored=pruning" in str(caught.value.hint)


def test_lightning_is_not_nemo(tmp_path):
    text = "trainer: {devices: 8, precision: bf16-mixed}\nmodel: {pretrained: gpt2-xl}\ndata: {batch_size: 8}\n"
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(LackingError, match="whether 8 is the batch of each GPU or of all"):
        read_launch([tmp_path / "a.yaml"])
    made = read_launch([tmp_path / "a.yaml"], {}, {"seq": 1024, "zero": 0, "gbs": 64})
    assert (made.options["gpus"], made.options["precision"], made.target) == (8, "bf16", "accelerate")


OWN = """
model: {name: Qwen/Qwen2.5-7B, max_length: 1024%s}
lora: {r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}
qlora: {enabled: %s}
training: {batch_size: 4, gradient_accumulation_steps: 2, epochs: 3, learning_rate: 2e-4, fp16: true}
paths: {train_file: data.jsonl}
"""


@pytest.mark.parametrize(
    ("more", "quantised", "expected"),
    [
        ("", "false", {"tune": "lora", "base_dtype": None}),
        ("", "true", {"tune": "qlora"}),
        (", use_4bit: true, quant_type: nf4, use_double_quant: true", "false", {"tune": "qlora", "base_dtype": "nf4"}),
    ],
)
def test_a_program_with_names_of_its_own_is_asked_how_it_counts_its_batch(more, quantised, expected, tmp_path):
    (tmp_path / "sft.yaml").write_text(OWN % (more, quantised))
    with pytest.raises(LackingError, match="whether 4 is the batch of each GPU or of all"):
        read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 8, "zero": 0})
    made = read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 8, "zero": 0, "gbs": 64})
    assert (made.options["model"], made.options["seq"], made.options["precision"]) == ("Qwen/Qwen2.5-7B", 1024, "fp16")
    assert made.layout["micro_batch_size"] == 4
    assert {name: made.options.get(name) for name in expected} == expected


@pytest.mark.parametrize("change", [("max_length: 1024", "image_size: 224")])
def test_tables_without_a_language_model_and_its_batch_are_of_no_known_program(change, tmp_path):
    (tmp_path / "sft.yaml").write_text((OWN % ("", "false")).replace(*change))
    with pytest.raises(InputError, match="nothing here is of a known framework"):
        read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 8})


@pytest.mark.parametrize(("value", "attention"), [("fa2", "fa2"), ("sdpa", "sdpa"), ("true", "fa2")])
def test_a_switch_that_names_kernels_is_read_as_their_name(value, attention, tmp_path):
    text = (OWN % ("", "false")).replace("fp16: true", f"fp16: true, flash_attention: {value}")
    (tmp_path / "sft.yaml").write_text(text)
    made = read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 8, "zero": 0, "gbs": 64})
    assert made.options["attention"] == attention


TABLES = """
model: {name: Qwen/Qwen2.5-7B, max_length: 1024%s}
training: {batch_size: 4, bf16: true%s}
%s
"""
ADAPTERS = "lora: {r: 16, target_modules: [q_proj]}"


def tables(folder, model: str = "", training: str = "", more: str = ""):
    """What is read of tables of a program of one's own, on 8 GPUs."""
    (folder / "sft.yaml").write_text(TABLES % (model, training, more))
    return read_launch([folder / "sft.yaml"], {}, {"gpus": 8, "zero": 0, "gbs": 64})


@pytest.mark.parametrize(
    ("training", "more", "tune"),
    [
        ("", f"{ADAPTERS}\nquantization: {{enabled: false, load_in_4bit: true}}", "lora"),
        ("", f"{ADAPTERS}\nquantization: {{enabled: true, load_in_4bit: true}}", "qlora"),
        (", method: full", ADAPTERS, None),
        (", method: sft", ADAPTERS, "lora"),
        ("", ADAPTERS.replace("lora: {", "peft: {enabled: true, method: lora, "), "lora"),
        ("", ADAPTERS.replace("lora: {", "peft: {enabled: false, method: lora, "), None),
        ("", "LoRA: {R: 16, Target_Modules: [q_proj]}", "lora"),
        ("", ADAPTERS.replace("lora: {", "lora: {lora_enable: false, "), None),
        ("", f"{ADAPTERS}\nquantization: {{type: nf4}}", "qlora"),
    ],
)
def test_switches_and_words_of_tables_say_what_is_trained(training, more, tune, tmp_path):
    made = tables(tmp_path, "", training, more)
    assert made.options.get("tune") == tune
    assert made.options.get("lora_rank") == (None if tune is None else 16)


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("", f"{ADAPTERS}\nquantization: {{enabled: true}}", "quantization.enabled: not known here"),
        ("", ADAPTERS.replace("lora: {", "peft: {method: ia3, "), "ia3 is not modelled"),
        ("", ADAPTERS.replace("lora: {", "adapter: {type: prefix, "), "prefix is not modelled"),
        ("", "lora: {alpha: 32}", "no file states the rank of adapters"),
        ("", "teacher: {name_or_path: Qwen/Qwen2.5-72B}", "no file says by which method"),
        ("", "dpo: {beta: 0.1}", "no file says by which method"),
        ("", "optimizer: {_target_: apollo_torch.APOLLOAdamW}", "the optimizer apolloadamw is not modelled"),
        (", base_model: meta-llama/Llama-3.1-70B", "", "two models are named, 'Qwen/Qwen2.5-7B' and 'meta-llama"),
    ],
)
def test_what_tables_leave_open_is_not_passed_over(model, more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        tables(tmp_path, model, "", more)


@pytest.mark.parametrize("same", [", path: /data/qwen2.5-7b/", ", pretrained: true", ", checkpoint: out/step-100"])
def test_another_name_of_the_same_model_is_no_second_one(same, tmp_path):
    assert tables(tmp_path, same).options["model"] == "Qwen/Qwen2.5-7B"


@pytest.mark.parametrize(
    ("said", "optimizer"),
    [
        ("name: adamw_8bit", "adamw-8bit"), ("_target_: torch.optim.SGD", "sgd"),
        ("_target_: bitsandbytes.optim.AdamW8bit", "adamw-8bit"),
    ],
)  # fmt: skip
def test_the_optimizer_of_a_table_is_read(said, optimizer, tmp_path):
    made = tables(tmp_path, more=f"optimizer: {{{said}, lr: 1e-4}}")
    assert made.options["optimizer"] == optimizer


def test_a_table_with_arguments_of_the_trainer_has_its_defaults(tmp_path):
    text = (HYDRA % "").replace("  gradient_checkpointing: true\n", "")
    (tmp_path / "train.yaml").write_text(text)
    made = read_launch([tmp_path / "train.yaml"], {}, {"gpus": 8})
    assert made.layout["recompute"] == "none"
    assert not any("ArcticTraining" in said.meaning for said in made.assumed)


def test_of_a_batch_that_does_not_divide_no_microbatch_is_made(tmp_path):
    with pytest.raises(InputError, match="how many sequences a GPU takes at a time"):
        tables(tmp_path, training=", gradient_accumulation_steps: 3")


def test_tables_without_adapters_or_a_length_are_of_no_known_program(tmp_path):
    (tmp_path / "sft.yaml").write_text("model: {name: resnet50}\ntraining: {batch_size: 4, epochs: 3}\n")
    with pytest.raises(InputError, match="nothing here is of a known framework"):
        read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 8})


def test_nothing_of_adapters_that_are_off_is_read(tmp_path):
    made = tables(tmp_path, more="lora: {enabled: false, r: 16, target_modules: [q_proj], dropout: 0.1}")
    assert {name for name in made.options if name.startswith("lora")} == set()
    off = {said.text for said in made.understood if "no adapters are asked for" in said.meaning}
    assert len(off) == 3


def test_suggestions_of_a_layout_are_taken(tmp_path):
    """`--assume`: the stage of ZeRO is of the layout, the batch of the job."""
    (tmp_path / "sft.yaml").write_text(TABLES % ("", "", ""))
    job = read_launch([tmp_path / "sft.yaml"], {"*": "suggested"}, {"gpus": 8})
    assert "zero" not in job.options
    assert (job.layout["zero"], job.layout["micro_batch_size"], job.options["gbs"]) == (0, 4, 32)
