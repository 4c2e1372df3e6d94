"""Questions before fine-tuning have the answers that are publicly known: tests/data/fine_tuning_questions.toml."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from command import gpuscale

FILE = Path(__file__).parent / "data" / "fine_tuning_questions.toml"
QUESTIONS = tomllib.loads(FILE.read_text(encoding="utf-8"))["question"]


def answer(command, question, *more):
    done = gpuscale(command, *shlex.split(question["options"]), *more, "--json")
    assert not done.code, done.err
    return json.loads(done.out)


def is_right(question):
    if "longest" in question:
        found = answer("plan", question, "--find", "seq")["farthest"]["value"]
        return found == pytest.approx(question["longest"], rel=question["within"])
    plan = answer("estimate", question)["plan"]
    if "gib" in question:
        return plan["memory_gib"] == pytest.approx(question["gib"], rel=question["within"])
    return plan["fits"] == question["fits"]


@pytest.mark.parametrize("question", QUESTIONS, ids=[f"{at + 1}" for at in range(len(QUESTIONS))])
def test_the_answer_is_the_known_one_unless_the_file_says_why_not(question):
    assert is_right(question) != ("wrong" in question)


def test_there_are_thirty_with_sources_and_27_are_right():
    assert len({question["options"] for question in QUESTIONS}) == len(QUESTIONS) == 30
    assert all(question["source"] and question["known"] for question in QUESTIONS)
    assert sum("wrong" in question for question in QUESTIONS) <= 3
