"""`plan --find`: the longest sequence, the largest microbatch and the fewest GPUs that fit."""

import json
import re

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


def test_a_batch_of_many_long_sequences_is_not_taken_for_one_of_tokens():
    """1,024 sequences of 262,144 tokens are more than anybody trains with: they fit as one of them does."""
    pins = {"cp": 8, "micro_batch_size": 1}
    one, many = (plan("llama3-8b", 8, find="seq", top=1, gbs=gbs, pins=pins).farthest for gbs in (1, 1024))
    assert one == many
    assert many.value > 2**18
    assert plan("llama3-8b", 8, find="seq", top=1, gbs="1024", pins=pins).farthest == many


@pytest.mark.parametrize(("gpus", "value", "beyond"), [(8, 614_400 * 5 // 6, 614_400), (64, 3_072_000, None)])
def test_of_a_batch_in_tokens_the_sequences_that_divide_it_are_tried(gpus, value, beyond):
    found = plan("llama3-8b", gpus, find="seq", top=1, gbs="3000ktok").farthest
    assert (found.value, found.beyond) == (value, beyond)


def test_where_the_whole_batch_is_one_microbatch_nothing_is_beyond():
    found = plan("llama3-8b", 64, find="mbs", top=1, gbs=7).farthest
    assert (found.value, found.beyond) == (7, None)
    assert gpuscale("plan", "-m", "llama3-8b", "-n", 64, "--find", "mbs", "--gbs", 7).lines[0] == (
        "largest microbatch that fits: 7 sequences"
    )


def test_one_gpu_does_not_and_two_do_not():
    done = gpuscale("plan", "-m", "llama3-8b", "-n", 8, "--find", "gpus", "--gbs", 64, "--top", 1)
    assert done.lines[0] == "fewest GPUs that fit: 2 (1 does not)"
    done = gpuscale("plan", "-m", "llama3-70b", "-n", 32, "--find", "gpus", "--gbs", 64, "--top", 1)
    assert re.fullmatch(r"fewest GPUs that fit: \d+ \(\d+ do not\)", done.lines[0])


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
