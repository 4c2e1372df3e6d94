"""Settings of programs of one's own that contradict or complete each other."""

import pytest

from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import LackingError

GIVEN = {"gpus": 1, "seq": 1024, "precision": "bf16"}
ADAPTED = """
model: {model_id: Qwen/Qwen3-4B, lora_rank: 8, target_modules: [q_proj, v_proj], %s}
train: {per_device_train_batch_size: 2}
"""


@pytest.mark.parametrize(
    ("switch", "trained"),
    [
        ("finetune_lm_head: true", "head"),
        ("train_embeddings: true", "embeddings"),
        ("tune_embed_and_lm_head: yes", "embeddings,head"),
        ("lm_head_trainable: true", "head"),
        ("finetune_lm_head: false", None),
        ("train_output: true", None),
    ],
)
def test_switches_train_parts_of_the_model_whole_beside_adapters(switch, trained, tmp_path):
    (tmp_path / "run.yaml").write_text(ADAPTED % switch)
    assert read_launch([tmp_path / "run.yaml"], {}, GIVEN).options.get("train") == trained


QUANTISED = """
model_name_or_path: Qwen/Qwen3-4B
load_in_4bit: true
%s
per_device_train_batch_size: 2
max_length: 1024
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "likely"), [("use_peft: false\nlora_r: 0", "full"), ("use_peft: false", "full"), ("", "qlora")]
)
def test_weights_in_4_bits_without_adapters_are_asked_about_with_all_else_and_either_answer_is_taken(
    more, likely, tmp_path
):
    (tmp_path / "sft.yaml").write_text(QUANTISED % more)
    with pytest.raises(LackingError, match="frozen weights") as caught:
        read_launch([tmp_path / "sft.yaml"], {}, {})
    assert f"`tune={likely}`" in caught.value.hint
    assert "`gpus=" in caught.value.hint
    assert ("and there are none by use_peft False" in caught.value.message) is bool(more)
    full = read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 1, "tune": "full"})
    assert "tune" not in full.options
    if "lora_r" in more:
        with pytest.raises(LackingError, match="the rank of adapters"):
            read_launch([tmp_path / "sft.yaml"], {}, {"gpus": 1, "tune": "qlora"})
    answers = {"gpus": 1, "tune": "qlora", "lora_rank": 8, "lora_targets": "all"}
    assert read_launch([tmp_path / "sft.yaml"], {}, answers).options["tune"] == "qlora"


RUNGS = """
shared: {context_len: 256, vocab_size: 9000, tied_embeddings: true, rope: true, activation: swiglu}
rungs:
  low: {sizes: {hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 384}}
  mid: {sizes: {hidden_size: 256, num_hidden_layers: 4, num_attention_heads: 4, intermediate_size: 640}}
"""
CHOSEN = "run: {rung: %s}\ntrain: {per_device_train_batch_size: 2}\ndata: {context_len: 256}\n"


@pytest.mark.parametrize(("rung", "layers"), [("low", 2), ("mid", 4)])
def test_of_tables_side_by_side_the_one_that_is_named_counts(rung, layers, tmp_path):
    (tmp_path / "ladder.yaml").write_text(RUNGS)
    (tmp_path / "run.yaml").write_text(CHOSEN % rung)
    files = [tmp_path / "run.yaml", tmp_path / "ladder.yaml"]
    job = read_launch(files, {}, {"gpus": 1, "precision": "bf16"})
    assert f"layers={layers},hidden={layers * 64}," in str(job.options["model"])
    assert job.options["seq"] == 256


def test_a_name_that_no_table_has_leaves_them_all(tmp_path):
    (tmp_path / "ladder.yaml").write_text(RUNGS)
    (tmp_path / "run.yaml").write_text(CHOSEN % "high")
    with pytest.raises(LackingError, match="several models are stated"):
        read_launch([tmp_path / "run.yaml", tmp_path / "ladder.yaml"], {}, {"gpus": 1, "precision": "bf16"})


TYPED = """
net: {hidden_size: 256, num_layers: 4, tie_word_embeddings: true, vocab_size: 9000, hidden_act: silu, heads: 4}
feedforward: {type: %s, intermediate_size: 640, num_experts: 4, num_experts_per_tok: 1, moe_intermediate_size: 640}
data: {max_seq_len: 256}
train: {batch_size: 2}
"""


@pytest.mark.parametrize(("kind", "experts"), [("swiglu", False), ("dense", False), ("mlp", False), ("moe", True)])
def test_experts_beside_a_type_without_any_are_left_out(kind, experts, tmp_path):
    (tmp_path / "run.yaml").write_text(TYPED % kind)
    given = {"gpus": 1, "precision": "bf16", "gbs": 2, "zero": 0}
    try:
        model = str(read_launch([tmp_path / "run.yaml"], {"*": "suggested"}, given).options["model"])
    except LackingError as error:
        model = str(error)
    assert ("moe.experts=4" in model) is experts
    assert ("ffn=640" in model.replace("moe.ffn", "")) is not experts
