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
