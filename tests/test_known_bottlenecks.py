"""`explain` names the bottleneck of well-known runs as their sources do: tests/data/known_bottlenecks.toml."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from gpuscale.steptime.components import COMMUNICATION, COMPONENTS
from tests.command import gpuscale

RUNS = tomllib.loads((Path(__file__).parent / "data" / "known_bottlenecks.toml").read_text(encoding="utf-8"))["run"]
ARITHMETIC = ("gemm", "attention")


def shares(options, than=""):
    """Shares of the step by component, and what `explain` says first, with some options replaced."""
    words = shlex.split(f"{options} {than}")
    own = dict(zip(words[::2], words[1::2], strict=True))
    done = gpuscale("explain", *[word for pair in own.items() for word in pair], "--json")
    assert not done.code, done.err
    answer = json.loads(done.out)
    plan = answer["plan"]
    breakdown = answer["breakdown"]
    return {name: value / plan["step_time_s"] for name, value in breakdown.items()}, answer["sentences"]


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_explain_names_the_bottleneck_that_the_source_names(run):
    found, said = shares(run["options"])
    among = {
        "step": COMPONENTS,
        "losses": [name for name in COMPONENTS if name not in ARITHMETIC],
        "communication": COMMUNICATION,
        "growth": COMPONENTS,
    }[run["among"]]
    before = shares(run["options"], run["than"])[0] if "than" in run else dict.fromkeys(found, 0.0)
    assert max(among, key=lambda name: found[name] - before[name]) == run["bottleneck"]
    text = COMPONENTS[run["bottleneck"]].text
    named = re.search(rf"\b{re.escape(text)}\b", " ".join(said[:2]))
    assert named or run["bottleneck"] in ARITHMETIC, said[:2]


def test_there_are_ten_runs_with_their_sources():
    assert len({run["name"] for run in RUNS}) >= 10
    assert all(run["source"] and run["says"] for run in RUNS)
