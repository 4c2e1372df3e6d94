"""Questions of practitioners, asked by the tools as their descriptions lead to: expected answers are from elsewhere."""

import json
import os
import re
import tomllib
from pathlib import Path
from unittest import mock

import pytest

from gpuscale.cli.agent_tools import TOOLS, schema
from gpuscale.cli.agent_worker import Desk

DATA = Path(__file__).parent / "data"
QUESTIONS = tomllib.loads((DATA / "agent_questions.toml").read_text(encoding="utf-8"))["question"]
LEAST = 45
"""Questions that must be answered right."""


def wrong_with(desk, question):
    """What the answer to a question lacks; nothing where it is right."""
    answer = desk.call(question["tool"], question["call"]).text
    missing = [text for text in question.get("says", ()) if text not in re.sub(r"\s+", " ", answer)]
    if missing:
        return f"does not say {missing}: {answer[:300]}"
    if "low" in question:
        number = json.loads(answer) if not answer.startswith("error: ") else None
        if not isinstance(number, int | float) or not question["low"] <= number <= question["high"]:
            return f"{answer[:300]} is not {question['low']} to {question['high']}"
    return ""


def test_questions_are_asked_as_the_tools_describe():
    assert len(QUESTIONS) == 50
    assert {one["tool"] for one in QUESTIONS} == set(TOOLS)
    for one in QUESTIONS:
        assert one["call"].keys() <= schema(one["tool"])["properties"].keys(), one["asked"]
        assert ("low" in one) != ("says" in one), one["asked"]
        assert ("low" in one) == ("key" in one["call"]), one["asked"]
        assert one["because"]


@pytest.mark.full
def test_questions_have_the_answers_that_are_known():
    with mock.patch.dict("os.environ", XDG_CONFIG_HOME=os.devnull, GPUSCALE_PRESETS=""):
        desk = Desk(DATA, 60)
    try:
        wrong = {one["asked"]: found for one in QUESTIONS if (found := wrong_with(desk, one))}
    finally:
        desk.close()
    assert len(QUESTIONS) - len(wrong) >= LEAST, "\n".join(f"{one}: {why}" for one, why in wrong.items())
