"""Configurations of torchtitan that helpers make, and what they say that is easily overlooked."""

import pytest

from gpuscale import read_launch
from gpuscale.errors import InputError

HEAD = """from torchtitan.components.optimizer import OptimizersContainer, OptimizersInBackwardContainer
from torchtitan.components import lora, quantization
from torchtitan.config import ActivationCheckpointConfig, ParallelismConfig, TrainingConfig
from torchtitan.protocols.model_converter import ModelConvertersContainer as Container
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer
from elsewhere import common, parallel
spec = model_registry("8B")
training = TrainingConfig(local_batch_size=2, seq_len=4096)
"""


def _read(tmp_path, more="", body="    return Trainer.Config(model_spec=spec, training=training{})\n", **options):
    file = tmp_path / "config_registry.py"
    variables = options.pop("variables", {})
    file.write_text(f"{HEAD}\ndef mine():\n{body.format(more)}")
    return read_launch([file], variables, {"gpus": 8, **options})


def test_a_helper_that_is_here_makes_the_configuration(tmp_path):
    body = "    return _base(parallelism=ParallelismConfig(tensor_parallel_degree=2))\n\n"
    body += "def _base(**more):\n    return Trainer.Config(model_spec=spec, training=training, **more)\n"
    job = _read(tmp_path, body=body)
    assert (job.options["model"], job.layout["tp"], job.options["gbs"]) == ("llama3.1-8b", 2, 8)


def test_a_trainer_of_ones_own_is_torchtitan_s(tmp_path):
    body = "    return Own.Config(model_spec=spec, training=training)\n\n"
    body += "class Own(Trainer):\n    class Config(Trainer.Config):\n        extra: int = 3\n"
    assert _read(tmp_path, body=body).options["gbs"] == 16


def test_converters_of_the_whole_model_are_read(tmp_path):
    of = ", model_converters=Container.Config(converters=[{}.Config()])"
    assert _read(tmp_path, of.format("quantization.Float8LinearConverter")).options["precision"] == "fp8-current"


@pytest.mark.parametrize(
    ("more", "settles", "value"),
    [
        (", model_converters=Container.Config(converters=[quantization.Strange.Config()])", "precision", "bf16"),
        (", model_converters=Container.Config(converters=[lora.LoRAConverter.Config()])", "tune", "full"),
        (", optimizer=OptimizersInBackwardContainer.Config(lr=1e-4)", "grad_dtype", "fp32"),
        (", parallelism=parallel(8)", "tp", 1),
    ],
)  # fmt: skip
def test_what_is_not_known_of_a_section_is_asked_for(tmp_path, more, settles, value):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, more)
    assert f"{settles}=" in str(caught.value) and "config_registry.py:" in str(caught.value)
    assert _read(tmp_path, more, **{settles: value}).options["gbs"] == 16


def test_a_model_of_the_registry_that_is_changed_is_asked_for(tmp_path):
    changed = "    spec.model.{}\n    return Trainer.Config(model_spec=spec, training=training)\n"
    with pytest.raises(InputError, match="the model of the registry is changed"):
        _read(tmp_path, body=changed.format("n_layers = 4"))
    assert _read(tmp_path, body=changed.format("attn_backend = 'flex'")).options["model"] == "llama3.1-8b"


def test_keywords_from_elsewhere_are_asked_for(tmp_path):
    with pytest.raises(InputError, match="what common gives as keywords"):
        _read(tmp_path, ", **common()")
    assert _read(tmp_path, ", **common()", variables={"common": "{}"}).options["gbs"] == 16


def test_a_configuration_that_an_absent_helper_returns_is_named(tmp_path):
    body = "    from elsewhere import base_config\n    made = base_config()\n    made.steps = 3\n    return made\n"
    with pytest.raises(InputError, match=r"what elsewhere\.base_config returns is in no file"):
        _read(tmp_path, body=body)
