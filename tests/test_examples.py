"""Generated examples are the same in every run: on any worker, alone or after any other test."""

from importlib import import_module

from hypothesis import given
from hypothesis import strategies as st


def drawn():
    found = []

    @given(st.tuples(st.integers(), st.floats(), st.text()))
    def collect(values):
        found.append(repr(values))

    collect()
    return found


def test_examples_do_not_depend_on_what_is_imported(tmp_path, monkeypatch):
    before = drawn()
    assert len(set(before)) > 50
    assert drawn() == before
    numbers = ", ".join(f"{4_000_000 + 1009 * index}, {index}.8125, 'word {index}'" for index in range(200))
    (tmp_path / "full_of_constants.py").write_text(f"CONSTANTS = [{numbers}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(import_module("full_of_constants").CONSTANTS) == 600
    assert drawn() == before
