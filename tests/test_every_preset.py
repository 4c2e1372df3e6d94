"""Every shipped preset under every command: an answer or one clear message, never a defect, no number that is none."""

import json
import re
from pathlib import Path

import pytest
from command import gpuscale

from gpuscale.presets.files import preset_names

MODELS, CLUSTERS, GPUS, FRAMEWORKS = (preset_names(kind) for kind in ("models", "clusters", "gpus", "frameworks"))
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv")
FLEET = Path(__file__).parent / "data" / "fleet.toml"
NO_NUMBER = re.compile(r"(?<![\w./-])(?:nan|-?inf)(?![\w./-])", re.IGNORECASE)


def commands():
    """Arguments of one command for every preset of every kind."""
    for name in MODELS:
        yield ("models", "show", name)
        yield ("roofline", "--model", name)
        for gpus in (8, 512):
            yield ("plan", "--model", name, "--gpus", gpus, "--top", 3, "--verbose")
        yield ("estimate", "--model", name, "--gpus", 64, "--tp", 8)
        yield ("explain", "--model", name, "--gpus", 64, "--tp", 8, "--despite-rules")
        yield ("compare", f"--model {name} --gpus 64 --tp 8", f"--model {name} --gpus 128 --tp 4", "--despite-rules")
        yield ("memory", "--model", name, "--gpus", 64)
        yield ("schedule", "--model", name, "--gpus", 64, "--pp", 4)
        yield ("advise", "--model", name, "--gpus", 64)
        yield ("explain", "--traffic", "--model", name, "--gpus", 64)
        yield ("explain", "--model", name, "--gpus", 64, "--tp", 4, "--pp", 2, "--html", "/dev/null")
        yield ("goodput", "--model", name, "--gpus", 64)
        yield ("batch-size", "--model", name, "--gpus", 64, "--tokens", "1T", "--gbs", "256,512")
        yield ("stragglers", "--model", name, "--gpus", 64)
        yield ("fleet", "--model", name, "--cluster", FLEET, "--tp", "4,8", "--cp", 1)
    for name in CLUSTERS:
        cluster = ("--cluster", name)
        yield ("clusters", "show", name)
        yield ("clusters", "show", name, "--gpus", 4096)
        for model in ("llama3-8b", "mixtral-8x7b"):
            yield ("roofline", *cluster, "--model", model)
            yield ("plan", "--model", model, "--gpus", 64, *cluster, "--top", 2, "--why", "tp=2")
        yield ("goodput", "--model", "llama3-8b", "--gpus", 64, *cluster, "--checkpoint", "peer")
        yield ("stragglers", "--model", "llama3-8b", "--gpus", 64, *cluster)
        yield ("train-time", "--model", "llama3-8b", "--gpus", 64, *cluster, "--tokens", "15T")
        yield ("size", "--gpus", 64, "--days", 14, *cluster)
        yield ("advise", "--model", "mixtral-8x7b", "--gpus", 64, "--ep", 8, *cluster)
        yield ("explain", "--traffic", "--model", "mixtral-8x7b", "--gpus", 64, "--ep", 8, *cluster)
        yield ("explain", "--model", "mixtral-8x7b", "--gpus", 64, "--ep", 8, *cluster)
        yield ("plan", "--model", "mixtral-8x7b", "--gpus", 64, *cluster, "--html", "/dev/null")
        yield ("placement", "--gpus", 64, *cluster, "--tp", 2, "--pp", 2, "--best")
        for operation in COLLECTIVES:
            yield ("collective", operation, "--sweep", "8B..8GB", "--factor", 64, *cluster)
            yield ("collective", operation, "--bytes", "1MB", "--ideal", *cluster)
    for name in GPUS:
        yield ("hardware", "show", name)
    for name in FRAMEWORKS:
        yield ("frameworks", "show", name)
        yield ("fleet", "--model", "llama3-8b", "--cluster", FLEET, "--framework", name, "--tp", 8)
        for model in ("llama3-8b", "mixtral-8x7b"):
            yield ("plan", "--model", model, "--gpus", 16, "--framework", name, "--risk", "0.9", "--top", 2)
            yield ("memory", "--model", model, "--gpus", 16, "--framework", name, "--timeline")
            yield ("schedule", "--model", model, "--gpus", 16, "--framework", name, "--pp", 2)
            yield ("explain", "--model", model, "--gpus", 16, "--framework", name)


ALL = list(commands())
STEP = 193
"""Every how many commands one is run by default; a prime, so that all commands and presets have their turn."""


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(one, marks=[] if index % STEP == 0 else pytest.mark.full) for index, one in enumerate(ALL)],
    ids=lambda arguments: " ".join(map(str, arguments)),
)
def test_every_preset_under_every_command(arguments):
    done = gpuscale(*arguments)
    assert done.code in {0, 1, 2}, done.err
    assert not NO_NUMBER.search(done.out), NO_NUMBER.search(done.out)
    assert max(map(len, done.lines), default=0) <= 100
    printed = gpuscale(*arguments, "--json")
    assert printed.code == done.code
    if printed.code == 0:
        assert json.loads(printed.out)["schema"].startswith("gpuscale.")
