"""Every command prints what it printed when it was last looked at: `tests/update_goldens.py` after a wanted change."""

import json
import math

import pytest
from goldens import ANSWERS, COMMANDS, FOLDER, TESTS, answer_of, text_of

RESOLUTION = 1e-9


@pytest.fixture(autouse=True)
def _root(monkeypatch):
    monkeypatch.chdir(TESTS.parent)


def differences(new, old, at="$"):
    """Yield where two documents differ by more than the last digits of a number."""
    if isinstance(new, dict) and isinstance(old, dict) and list(new) == list(old):
        for key, value in new.items():
            yield from differences(value, old[key], f"{at}.{key}")
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for index, value in enumerate(new):
            yield from differences(value, old[index], f"{at}[{index}]")
    elif isinstance(new, float) and isinstance(old, float):
        if not math.isclose(new, old, rel_tol=RESOLUTION, abs_tol=1e-300):
            yield f"{at}: {new!r}, was {old!r}"
    elif new != old or type(new) is not type(old):
        yield f"{at}: {str(new)[:200]}, was {str(old)[:200]}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_as_it_was(name):
    assert text_of(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ANSWERS)
def test_the_json_is_as_it_was(name):
    path = FOLDER / f"{name}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    assert list(differences(answer_of(name), old)) == []


def test_no_golden_is_left_over():
    known = {f"{name}.txt" for name in COMMANDS} | {f"{name}.json" for name in ANSWERS}
    assert {path.name for path in FOLDER.iterdir()} <= known
