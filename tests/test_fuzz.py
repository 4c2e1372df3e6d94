"""What fuzzing found stays mended, a little of it always runs, and it finds what is to be found (`fuzz.py`)."""

import json
from unittest import mock

import fuzz
import fuzz_inputs
import pytest
from command import Done

CASES = [path.parent for path in sorted(fuzz.CORPUS.glob(f"*/{fuzz.COMMAND}"))]


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_what_fuzzing_found_stays_mended(folder):
    found, code = fuzz.problem(fuzz.load(folder))
    assert (found, code in {0, 1, 2}) == ("", True)


@pytest.mark.parametrize(
    "first", [0, 50, 100, *(pytest.param(at, marks=pytest.mark.full) for at in range(150, 400, 50))]
)
def test_mutated_files_and_options_give_answers_or_messages(first):
    outcomes = list(fuzz.outcomes(0, range(first, first + 50)))
    assert [(number, found) for number, _, found, _ in outcomes if found] == []
    assert {code for *_, code in outcomes} >= {0, 2}


def test_an_input_is_known_by_its_seed_and_number():
    assert [fuzz_inputs.case(7, number) for number in range(30)] == [
        fuzz_inputs.case(7, number) for number in range(30)
    ]
    assert fuzz_inputs.case(7, 1) != fuzz_inputs.case(8, 1)


WRONG = {
    "exit 3": Done(3, "", "error: KeyError at gpuscale/units.py:1: 'x'\n"),
    "exit -1": Done(-1, "", ""),
    "message": Done(2, "", "Traceback (most recent call last):\n"),
    "json": Done(0, '{"time_s": NaN}', ""),
    "json: Expecting": Done(0, "", ""),
    "unprintable: stdout": Done(0, '{"title": "\x1b[31m"}', ""),
    "unprintable: stderr": Done(2, "", "error: \x1b[31m\n"),
    "python": Done(0, "{}", "/a/b.py:12: RuntimeWarning: overflow encountered\n"),
}


@pytest.mark.parametrize("found", WRONG)
def test_what_is_wrong_with_an_outcome_is_seen(found):
    one = fuzz.Case(("models", "show", "a.toml", "--json"), {"a.toml": b"x"})
    with mock.patch.object(fuzz, "gpuscale", lambda *_, **__: WRONG[found]):
        assert fuzz.problem(one)[0].startswith(found)


@pytest.mark.parametrize(
    ("code", "path", "found"), [(2, "new.toml", "written"), (0, "a.toml", "destroyed"), (0, "new.toml", "")]
)
def test_files_that_should_not_have_been_written_are_seen(code, path, found):
    def gpuscale(*_, **__):
        fuzz.Path(path).write_text("other", encoding="utf-8")
        return Done(code, "{}", "error: this\n" if code else "")

    with mock.patch.object(fuzz, "gpuscale", gpuscale):
        assert fuzz.problem(fuzz.Case(("models",), {"a.toml": b"x"}))[0].partition(":")[0] == found


def test_an_endless_command_is_stopped(monkeypatch):
    def gpuscale(*_, **__):
        while True:
            pass

    monkeypatch.setattr(fuzz, "MAX_SECONDS", 0.01)
    with mock.patch.object(fuzz, "gpuscale", gpuscale):
        assert fuzz.problem(fuzz.Case(("models",), {}))[0].startswith("slow")


def test_a_finding_is_made_small_and_kept(monkeypatch, tmp_path):
    def gpuscale(*arguments, **_):
        text = fuzz.Path("a.toml").read_bytes()
        return Done(3 if b"bad" in text and "--json" in arguments else 0, "{}", "error: KeyError at a.py:1: x\n")

    monkeypatch.setattr(fuzz, "CORPUS", tmp_path)
    with mock.patch.object(fuzz, "gpuscale", gpuscale):
        one = fuzz.Case(("models", "show", "--json", "a\n\udcffb"), {"a.toml": b"one\ntwo is bad\n" * 3, "b": b"1"})
        found, _ = fuzz.problem(one)
        small = fuzz.minimised(one, found)
    assert small == fuzz.Case(("--json",), {"a.toml": b"bad"})
    assert fuzz.load(fuzz.save(small, found)) == small
    assert fuzz.load(fuzz.save(one, found)) == one
    assert found == "exit 3: KeyError at a.py:1"
    assert json.dumps(found)
