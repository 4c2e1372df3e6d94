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
