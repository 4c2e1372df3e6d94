"""What would fit is said of GPUs that there are."""

import pytest

from gpuscale import plan
from gpuscale.errors import NoAnswerError


def test_no_gpu_is_asked_for_that_nobody_makes():
    with pytest.raises(NoAnswerError) as caught:
        plan(model="llama3.1-405b", gpus=8, framework="accelerate", gbs=64)
    assert "it would fit with" in str(caught.value)
    assert "GPUs of" not in str(caught.value).partition("hint")[2]
