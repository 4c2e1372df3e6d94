"""Real launch files of other projects beside a checkout: what each states is read, what it lacks is asked for."""

import csv
import re
from pathlib import Path

import pytest

from gpuscale import InputError, estimate_launch, read_launch
from gpuscale.launch.read import MISSING
from gpuscale.launch.settings import LaunchJob

REAL = Path(__file__).parents[2] / "shared" / "formats" / "launch"
INDEX = REAL / "index.csv"
ROWS = list(csv.DictReader(INDEX.read_text().splitlines())) if INDEX.is_file() else []

GPUS = 256
"""Given to files that do not state theirs, so that the rest of them is seen."""

OTHERWISE = {
    ("flagscale--FlagOpen--FlagScale--aquila/", "precision"): "fp16",  # `fp16: True` in the file
    ("torchtitan--pytorch--torchtitan--2024-04-debug_model.toml", "recompute"): "full",  # of every second layer
}
"""What the index says in other words."""

REFUSED = re.compile("not modelled|vision|no file states|only a part")

pytestmark = pytest.mark.skipif(not ROWS, reason="the collection of launch files is not here")


def read(row: dict[str, str]) -> tuple[LaunchJob | None, str]:
    """Return what is read of a file, with GPUs where it has none, and what it had to ask for."""
    asked = ""
    for given in ({}, {"gpus": GPUS}):
        try:
            return read_launch([REAL / row["file"]], {}, given), asked
        except InputError as error:
            asked = asked or str(error)
            if not re.search("number of GPUs|how many GPUs", error.message):
                return None, asked
    return None, asked


@pytest.mark.parametrize("row", ROWS, ids=[row["file"][:70] for row in ROWS])
def test_a_real_file_is_read_or_asked_for_what_it_lacks(row):
    job, asked = read(row)
    kind = "ok" if "QLoRA" in row["model"] else row["expect"]  # the index is of a time before adapters were modelled
    if kind == "ok" and "QLoRA" in row["model"]:
        assert job is not None and (job.options["tune"], job.options["base_dtype"]) == ("qlora", "nf4")
    elif kind == "refuse":
        assert job is None
        assert REFUSED.search(asked), asked
    elif kind == "ask":
        assert asked
        assert row["file"].rstrip("/") in asked
        assert "hint:" in asked
    elif kind in {"ok", "warn"}:
        assert job is not None, asked
        assert not asked
    if job is not None:
        assert wrong(row, job) == {}


def wrong(row: dict[str, str], job: LaunchJob) -> dict[str, tuple[str, object]]:
    """Return what was read otherwise than the index says."""
    found = {**job.options, **job.layout, "mbs": job.layout.get("micro_batch_size")}
    differ = {}
    for name in ("gpus", "tp", "pp", "cp", "ep", "mbs", "gbs", "seq"):
        stated = re.match(r"(\d+)(?: derived)?(?: \(Ulysses\))?$", row[name])
        if stated and int(stated[1]) != (found.get(name) or 1):
            differ[name] = (row[name], found.get(name))
    for name in ("precision", "recompute"):
        text = OTHERWISE.get((row["file"], name), row[name])
        stated = re.match(r"(bf16|fp16|fp8|none|full|selective)\b", text)
        if stated and "only in" not in text and "turbo" not in text and not str(found.get(name)).startswith(stated[1]):
            differ[name] = (text, found.get(name))
    return differ


def test_what_is_refused_says_which_option_is_missing():
    assert set(MISSING) == {"model", "gpus", "seq", "gbs"}


ANSWERED = [row for row in ROWS if row["expect"] in {"ok", "warn"}]


@pytest.mark.parametrize("row", ANSWERED, ids=[row["file"][:70] for row in ANSWERED])
def test_a_real_file_is_predicted(row):
    estimate = estimate_launch([REAL / row["file"]], despite_rules=True).estimate
    assert 0 < estimate.plan.step_time_s < 1e4
