"""What a Python script does to its model before it trains it: read, asked for, or known to be nothing."""

import pytest

from gpuscale import read_launch
from gpuscale.errors import InputError

SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from helpers import freeze, Wrapped
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype=torch.bfloat16{loader})
{between}
args = TrainingArguments(output_dir="o", per_device_train_batch_size=2, gradient_accumulation_steps=4{given})
trainer = Trainer(model=model, args=args)
{after}
trainer.train()
"""


def _read(tmp_path, between="", after="", given="", loader="", **options):
    file = tmp_path / "a.py"
    file.write_text(SCRIPT.format(between=between, after=after, given=given, loader=loader))
    return read_launch([file], {}, {"gpus": 1, "seq": 512, **options})


@pytest.mark.parametrize(
    ("between", "settles"),
    [
        ("freeze(model)", "tune"),
        ("model = freeze(model, 4)", "tune"),
        ("model.freeze_base()", "tune"),
        ("for p in model.model.layers[:10]:\n    p.requires_grad_(False)", "tune"),
        ("for n, p in model.named_parameters():\n    p.requires_grad = 'head' in n", "tune"),
        ("model.model.layers = model.model.layers[:8]", "model"),
        ("model.config.num_hidden_layers = 4", "model"),
        ("setattr(model.config, 'num_hidden_layers', 4)", "model"),
        ("model = torch.nn.DataParallel(model)", "zero"),
        ("torch.ao.quantize_(model)", "precision"),
    ],
)
def test_what_may_change_the_job_is_asked_for(tmp_path, between, settles):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, between)
    assert f"{settles}=" in str(caught.value) and "a.py:" in str(caught.value)


def test_what_is_done_to_the_model_of_a_trainer_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="freeze_all"):
        _read(tmp_path, after="trainer.model.freeze_all()")


def test_an_answer_settles_it(tmp_path):
    assert _read(tmp_path, "freeze(model)", tune="full").options["gbs"] == 8


def test_harmless_calls_change_nothing(tmp_path):
    calls = "model.cuda()\nmodel.config.use_cache = False\nmodel.print_trainable_parameters()\nmodel.train()"
    assert _read(tmp_path, calls).options == _read(tmp_path).options


def test_casts_and_compilation_are_read(tmp_path):
    half = _read(tmp_path).options
    whole = [_read(tmp_path, text).options for text in ("model.float()", "model = model.to(torch.float32)")]
    assert half["precision"] == "bf16" and [one["precision"] for one in whole] == ["fp32", "fp32"]
    assert _read(tmp_path, "model = model.to('cuda')").options == half
    assert _read(tmp_path, "model = torch.compile(model)").options["compile"] == "on"


def test_arguments_that_are_not_known_are_asked_for(tmp_path):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, given=", fancy_offload=True", loader=", quant_thing=True")
    assert "offload=" in str(caught.value) and "precision=" in str(caught.value)
