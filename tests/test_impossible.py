"""Degrees that no layout of a job can have are refused by what is wrong with them, and by what can be."""

import re
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale
from hypothesis import given
from hypothesis import strategies as st
from jobs import job

from gpuscale.errors import InputError
from gpuscale.layouts.pins import DEGREES, parse_pin
from gpuscale.planning.layouts import impossible, listed, make_pins, pin_text
from gpuscale.search.loop import legal_rows

DENSE, EXPERTS = ("--model", "llama3-70b", "--gpus", "64"), ("--model", "mixtral-8x7b", "--gpus", "64")
DATA = Path(__file__).parent / "data"
POWERS = "1, 2, 4, 8, 16, 32 or 64 can"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((*DENSE, "--ep", 8), "error: --ep: llama3-70b has no experts: --ep must be 1", "leave it out"),
        ((*DENSE, "--etp", 2), "error: --etp: llama3-70b has no experts: --etp must be 1", "leave it out"),
        ((*DENSE, "--ep", 8, "--tp", 3), "error: --ep: llama3-70b has no experts", "leave it out"),
        ((*DENSE, "--tp", 3), "error: --tp: 64 GPUs cannot be split by TP 3", POWERS),
        ((*DENSE, "--tp", "3,5"), "error: --tp: 64 GPUs cannot be split by TP 3,5", POWERS),
        ((*DENSE, "--pp", 7), "error: --pp: 64 GPUs cannot be split by PP 7", POWERS),
        ((*DENSE, "--dp", 5), "error: --dp: 64 GPUs cannot be split by DP 5", POWERS),
        ((*DENSE, "--tp", 8, "--pp", 16), "--pp: 64 GPUs cannot be split by TP 8 x PP 16 = 128", "may be 1, 2, 4 or 8"),
        ((*DENSE, "--tp", 2, "--dp", 64), "64 GPUs cannot be split by TP 2 x DP 64 = 128", "may be 1, 2, 4, 8, 16 or"),
        ((*DENSE, "--sp", "on", "--tp", 1), "--sp: sequence parallelism needs TP above 1", "leave it out"),
        ((*DENSE, "--vpp", 2, "--pp", 1), "--vpp: virtual stages need PP above 1", "here 1 can"),
        ((*DENSE, "--vpp", 3, "--pp", 4), "--vpp: the 80 layers of llama3-70b cannot be split", "here 1, 2, 4, 5,"),
        ((*DENSE, "--shard", 3), "--shard: states are sharded over all of DP x CP, or", "1, 2, 4, 8, 16, 32 or 64"),
        ((*DENSE, "--tp", 8, "--pp", 8, "--zero", 2), "--zero: nothing is sharded without DP x CP above 1", "0 can"),
        ((*EXPERTS, "--ep", 3), "--ep: the 8 experts of mixtral-8x7b cannot be split by EP 3", "here 1, 2, 4 or 8 can"),
        ((*EXPERTS, "--ep", 16), "--ep: the 8 experts of mixtral-8x7b cannot be split", "here 1, 2, 4 or 8 can"),
        ((*DENSE, "--cp", 8, "--seq", 4), "--cp 8: the sequence must be a multiple of 2 x CP", "--cp may be 1 or 2"),
        ((*DENSE, "--dp", 64, "--gbs", 32), "--dp 64: DP must divide the global batch", "may be 1, 2, 4, 8, 16 or 32"),
        ((*DENSE, "--tp", 16, "--framework", "torchtitan"), "--tp 16: TP must divide the key/value", "1, 2, 4 or 8"),
    ],
)  # fmt: skip
def test_plan_says_what_cannot_be_and_what_can(arguments, message, hint):
    assert_one_message(gpuscale("plan", *arguments), message, hint)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--ep", 8), "--ep: llama3-70b has no experts", "leave it out"),
        (("--tp", 3), "--tp: 64 GPUs cannot be split by TP 3", POWERS),
        (("--tp", 8, "--pp", 16), "64 GPUs cannot be split by TP 8 x PP 16 = 128", "--pp may be 1, 2, 4 or 8"),
        (("--dp", 5), "TP 1 x PP 1 x CP 1 x DP 5 = 5, but the job has 64 GPUs", "leave --dp out, or give 64"),
    ],
)
def test_estimate_says_the_same(arguments, message, hint):
    assert_one_message(gpuscale("estimate", *DENSE, *arguments), message, hint)


def test_trainings_and_fleets_say_the_same():
    assert_one_message(gpuscale("train-time", *DENSE, "--tp", 3, "--tokens", "1T"), "cannot be split by TP 3", POWERS)
    done = gpuscale("fleet", "--model", "llama3-8b", "--cluster", DATA / "fleet.toml", "--tp", 5)
    assert "GPUs cannot be split by TP 5" in done.err


@given(
    model=st.sampled_from(["llama3-8b", "mixtral-8x7b"]),
    pins=st.dictionaries(st.sampled_from(["tp", "pp", "cp", "dp", "ep", "etp", "vpp", "zero", "shard", "sp"]),
                         st.sampled_from(["1", "2", "3", "4", "8", "1,2", "!1", "4..8", "16"]), max_size=3),
)  # fmt: skip
def test_what_is_impossible_has_no_row_and_what_can_be_is_possible(model, pins):
    spec = job(model, 16)
    try:
        made = make_pins(pins)
    except InputError:
        return
    refused = impossible(spec, made)
    if refused is None:
        return
    assert not any(len(rows) for rows in legal_rows(spec, made, {}))
    assert refused.field in pins
    values = re.findall(r"[0-9]+", refused.hint) if "can" in refused.hint.split() or "may be" in refused.hint else []
    if not made.degrees.keys() - {refused.field}:  # alone, each that is named can be
        for value in values:
            assert impossible(spec, make_pins({refused.field: value})) is None


@pytest.mark.parametrize("text", ["8", "4..8", "1,2,4", "!16", "!1..4", "1,!2"])
def test_pins_are_written_as_they_are_read(text):
    for name in DEGREES:
        pin = parse_pin(text, name)
        assert parse_pin(pin_text(pin), name) == pin


def test_lists_end():
    assert [listed(range(1, n + 1)) for n in (1, 2, 8)] == ["1", "1 or 2", "1, 2, 3, 4, 5, 6, 7 or 8"]
    assert listed(range(1, 10)) == "1, 2, 3, 4, 5, 6, 7, 8, ..."
