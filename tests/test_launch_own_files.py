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
    with pytest.raises(InputError, match="nothing here is of a known framework"):
        read_launch([tmp_path / "a.yaml"])


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


@pytest.mark.parametrize(
    "change", [("max_length: 1024", "image_size: 224"), ("batch_size: 4", "batches: 4"), ("model: {name", "net: {name")]
)
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
