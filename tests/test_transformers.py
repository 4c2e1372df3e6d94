"""Configs as transformers saves them, and as people write them, against what its classes build (extra `frameworks`).

Whatever is read has the parameters of the class; what is not modelled is refused, never counted wrong.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

from transformers_judge import MODEL_TYPES, Shape, shapes
from update_transformers import TABLE, written

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.huggingface import read_config
from gpuscale.presets.huggingface_config import STATED, SYNONYMS, Config
from gpuscale.presets.huggingface_families import FAMILIES, TEXT_TYPES

READ = [name for name in MODEL_TYPES if name in FAMILIES]
AT_LEAST = 120
"""Model types of transformers' causal language models that are read."""


def counted(config):
    """The parameters of a config, or None where it is refused or has a tower that is not among them."""
    try:
        model = read_config(Config("config.json", config, {}), "test")
    except InputError:
        return None
    return None if model.towers else model_parameters(model).total


def as_written(shape: Shape, model_type: str):
    """What of a shape differs from the class's defaults, with the keys that a config must state."""
    names = {key: FAMILIES[model_type].keys.get(key, key) for key in STATED}
    spelt = {key: (name, *SYNONYMS.get(key, ())) for key, name in names.items()}
    stated = {name: shape.config[name] for every in spelt.values() for name in every if name in shape.config}
    return {**stated, **shape.given, "model_type": model_type}


def test_enough_model_types_are_read():
    assert len(READ) >= AT_LEAST
    assert len(set(MODEL_TYPES) & {*FAMILIES, *TEXT_TYPES}) >= len(READ)


def test_defaults_of_classes_are_those_of_the_table():
    assert TABLE.read_text(encoding="utf-8") == written()


@pytest.mark.full
@pytest.mark.parametrize("model_type", READ)
def test_every_shape_counts_what_its_class_has_or_is_refused(model_type):
    wrong, right = [], 0
    for shape in shapes(model_type):
        for config in (shape.config, as_written(shape, model_type)):
            found = counted(config)
            right += found == shape.params
            if found not in (None, shape.params):
                wrong.append((shape.given, found, shape.params))
    assert wrong == []
    assert right or model_type in {"dbrx", "phi4_multimodal"}  # not built by default; towers
