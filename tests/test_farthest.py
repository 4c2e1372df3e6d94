"""`plan --find`: the longest sequence, the largest microbatch and the fewest GPUs that fit."""

import json

import pytest
from command import gpuscale

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.planning.plans import plan

JOBS = {"seq": ("llama3-8b", 8, {}), "mbs": ("llama3-8b", 8, {"gbs": 4096}), "gpus": ("llama3-70b", 128, {"gbs": 384})}


@pytest.mark.parametrize("name", JOBS)
def test_what_was_found_fits_and_the_next_does_not(name):
    model, gpus, options = JOBS[name]
    answer = plan(model, gpus, find=name, top=1, **options)
    found = answer.farthest
    assert found.name == name

    def again(value):
        said = {"seq": {"seq": value}, "mbs": {"pins": {"micro_batch_size": value}}, "gpus": {}}[name]
        return plan(model, value if name == "gpus" else gpus, top=1, **options, **said)

    assert again(found.value).plans == answer.plans
    with pytest.raises(NoAnswerError):
        again(found.beyond)


def test_sequences_are_found_to_a_sixteenth_of_a_doubling():
    found = plan("llama3-8b", 8, find="seq", top=1, pins={"cp": 1, "tp": 1}).farthest
    lower = 1 << (found.value.bit_length() - 1)
    assert found.beyond - found.value == lower // 16
    assert found.value % (lower // 16) == 0


def test_where_nothing_fits_at_all_the_answer_is_that_of_the_easiest():
    with pytest.raises(NoAnswerError, match=r"no layout of llama3\.1-405b fits"):
        plan("llama3.1-405b", 8, find="seq")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"find": "seq", "seq": 4096}, "`seq` is looked for and given"),
        ({"find": "mbs", "pins": {"micro_batch_size": 1}}, "`mbs` is looked for and given"),
        ({"find": "seq", "precision": ["bf16", "fp8"]}, "for one job, not for 2"),
        ({"find": "layers"}, "unknown value"),
    ],
)
def test_questions_that_contradict_themselves_are_refused(options, message):
    with pytest.raises(InputError) as caught:
        plan("llama3-8b", 8, **options)
    assert message in caught.value.message
    assert caught.value.field == "find"


def test_the_first_line_says_what_was_found():
    asked = ("plan", "--model", "llama3-8b", "--gpus", "8", "--find", "seq", "--cp", "1")
    answer = json.loads(gpuscale(*asked, "--json").out)
    value, beyond = (answer["farthest"][name] for name in ("value", "beyond"))
    assert gpuscale(*asked).out.startswith(f"longest sequence that fits: {value:,} tokens ({beyond:,} do not)\n")
    assert answer["plans"][0]["sequence"] == value
