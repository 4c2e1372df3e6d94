"""`explain` names the bottleneck of well-known runs as their sources do: tests/data/known_bottlenecks.toml."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from command import gpuscale

from gpuscale.steptime.components import COMMUNICATION, COMPONENTS

RUNS = tomllib.loads((Path(__file__).parent / "data" / "known_bottlenecks.toml").read_text(encoding="utf-8"))["run"]
ARITHMETIC = ("gemm", "attention")


def shares(options, than=""):
    """Shares of the step by component, with some options replaced."""
    plan = answer("estimate", options, than)
    return {name: value / plan["plan"]["step_time_s"] for name, value in plan["breakdown"].items()}


def answer(command, options, than=""):
    """What a command says of a run."""
    words = shlex.split(f"{options} {than}")
    own = dict(zip(words[::2], words[1::2], strict=True))
    done = gpuscale(command, *[word for pair in own.items() for word in pair], "--json")
    assert not done.code, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_explain_names_the_bottleneck_that_the_source_names(run):
    found, said = shares(run["options"]), answer("explain", run["options"])["sentences"]
    among = {
        "step": COMPONENTS,
        "losses": [name for name in COMPONENTS if name not in ARITHMETIC],
        "communication": COMMUNICATION,
        "growth": COMPONENTS,
    }[run["among"]]
    before = shares(run["options"], run["than"]) if "than" in run else dict.fromkeys(found, 0.0)
    bottleneck = max(among, key=lambda name: found[name] - before[name])
    assert bottleneck in {run["bottleneck"], run.get("or")}
    assert bottleneck in ARITHMETIC or COMPONENTS[bottleneck].text in " ".join(said[:2])


def test_there_are_ten_runs_with_their_sources():
    assert len({run["name"] for run in RUNS}) >= 10
    assert all(run["source"] and run["says"] for run in RUNS)
