"""Multimodal configs as transformers saves them, and as people write them, against what its classes build (extra
`frameworks`): the language model, its towers and what joins them are all that the class has.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

from test_towers import counted
from transformers_judge import MULTIMODAL, whole_shapes


@pytest.mark.full
@pytest.mark.parametrize("model_type", MULTIMODAL)
def test_towers_and_language_model_are_all_that_the_class_has(model_type):
    shapes = list(whole_shapes(model_type))
    found = [(shape.given, counted(config), shape.params) for shape in shapes for config in (shape.config, shape.given)]
    assert [one for one in found if one[1] != one[2]] == []
    assert len(shapes) >= 5
