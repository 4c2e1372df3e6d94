"""A training of several phases: reading, planning, totals and the calendar."""

import json
import re
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale

import gpuscale as library
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.training.phases import FORMAT, lengths, read_training

EXAMPLE = Path(__file__).parent / "data" / "example_phases.toml"
HEAD = f'format = "{FORMAT}"\n[job]\nmodel = "llama3-8b"\ngpus = 16\n[layout]\ntp = 1\npp = 1\n'
ONE = HEAD + '[[phase]]\ntokens = "1T"\n'


@pytest.fixture(scope="module")
def example():
    done = gpuscale("train-time", EXAMPLE, "--tokens", "1T", "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def write(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def ask(tmp_path, text, *arguments):
    done = gpuscale("train-time", write(tmp_path, text), *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_training_adds_up_its_phases(example):
    phases = example["phases"]
    assert [one["name"] for one in phases] == [
        "ramp, batch 128", "ramp, batch 256", "main", "long context", "annealing",
    ]  # fmt: skip
    assert sum(one["tokens"] for one in phases) == pytest.approx(1e12)
    assert example["tokens"] == pytest.approx(1e12)
    for key in ("steps", "gpu_hours", "cost_usd", "energy_mwh"):
        assert example[key] == pytest.approx(sum(one[key] for one in phases)), key
    pause_s = 12 * 3600
    assert example["wall_s"] == pytest.approx(sum(one["wall_s"] for one in phases) + pause_s)
    assert sum(example["energy"].values()) == pytest.approx(example["energy_mwh"])
    longest = max(phases, key=lambda one: one["wall_s"])
    assert (example["gpus"], example["plan"]["step_time_s"]) == (longest["gpus"], longest["step_time_s"])


def test_each_phase_is_planned_for_its_own_job(example):
    ramp, _, main, long, annealing = example["phases"]
    assert [ramp["gpus"], main["gpus"]] == [32, 64]
    assert [main["sequence"], long["sequence"]] == [8192, 32768]
    assert ramp["global_batch_size"] == 128
    assert long["step_time_s"] == annealing["step_time_s"]
    plan = gpuscale(
        "plan", "--model", "llama3-8b", "--gpus", "64", "--tp", "1,2", "--seq", "32k", "--gbs", "64", "--json"
    )
    assert long["step_time_s"] == json.loads(plan.out)["plans"][0]["step_time_s"]


def test_the_calendar_begins_on_its_day(example):
    phases = example["phases"]
    assert phases[0]["begins"] == "2026-12-01"
    assert phases[0]["begins_s"] == 0
    assert phases[1]["begins_s"] == pytest.approx(phases[0]["wall_s"])
    assert phases[2]["begins_s"] == pytest.approx(phases[1]["begins_s"] + phases[1]["wall_s"] + 12 * 3600)
    assert [one["begins"] for one in phases] == sorted(one["begins"] for one in phases)
    drawn = gpuscale("train-time", EXAMPLE, "--tokens", "1T").out
    assert "long context" in drawn
    assert "2026-12-01" in drawn


def test_the_timeline_is_a_bar_for_each_phase(example):
    lines = gpuscale("train-time", EXAMPLE, "--tokens", "1T").lines
    at = lines.index("Phases [days]")
    end = next(index for index, line in enumerate(lines) if line.startswith("total "))
    bars = [line for line in lines[at + 1 : end] if "#" in line]
    assert len(bars) == len(example["phases"])
    begins = [line.index("#") for line in bars]
    assert begins == sorted(begins)
    longest = max(bars, key=lambda line: line.count("#"))
    assert longest.startswith("main")
    assert float(longest.split()[-1]) == pytest.approx(example["phases"][2]["wall_s"] / 86400, rel=0.01)
    told = next(line for line in lines[end:] if line.startswith("main"))
    assert told.endswith(f" {example['phases'][2]['evaluations']}")
    narrow = gpuscale("train-time", EXAMPLE, "--tokens", "1T", columns=60).lines
    assert max(map(len, narrow)) <= 60
    assert any(line.startswith("annealing") and "#" in line for line in narrow)


def test_a_timeline_shows_where_nothing_is_trained(tmp_path):
    text = (
        ONE.replace("1T", "10B")
        + 'pause_h = 100\nname = "a\\nb\\u001b[31m"\n[[phase]]\ntokens = "10B"\npause_h = 200\n'
    )
    done = gpuscale("train-time", write(tmp_path, text))
    assert re.search(r"^pause before a b\\u001b\[31m +\.{5,} ", done.out, re.MULTILINE)
    assert re.search(r"^a b\\u001b\[31m +#+ ", done.out, re.MULTILINE)


def test_one_phase_is_the_plain_question(tmp_path):
    plain = json.loads(
        gpuscale(
            "train-time", "--model", "llama3-8b", "--gpus", "16", "--tp", "1", "--pp", "1", "--tokens", "1T", "--json"
        ).out
    )
    phased = ask(tmp_path, ONE)
    assert phased.pop("phases")[0].pop("name") == "phase 1"
    plain.pop("phases")
    assert phased == plain


def test_stalls_and_evaluations_lengthen_the_steps(tmp_path):
    plain, stalled = ask(tmp_path, ONE), ask(tmp_path, ONE + "data_stall = 0.1\n")
    assert stalled["gpu_hours"] == pytest.approx(1.1 * plain["gpu_hours"])
    assert stalled["gpu_power_w"] < plain["gpu_power_w"]
    evaluated = ask(tmp_path, ONE + "evaluation_s = 60\nevaluation_every = 100\n")
    more_s = plain["steps"] / 100 * 60
    assert evaluated["gpu_hours"] == pytest.approx(plain["gpu_hours"] + 16 * more_s / 3600)


def test_gpus_are_paid_while_they_wait(tmp_path):
    plain, paused = ask(tmp_path, ONE), ask(tmp_path, ONE + "pause_h = 10\n")
    assert paused["billed_by_use"] == plain["billed_by_use"] | {"pauses": 160.0}
    assert paused["billed_gpu_hours"] == pytest.approx(plain["billed_gpu_hours"] + 160)
    assert paused["cost_usd"] == pytest.approx(
        paused["billed_gpu_hours"] * plain["cost_usd"] / plain["billed_gpu_hours"]
    )
    assert [paused[key] for key in ("gpu_hours", "energy_mwh")] == [plain[key] for key in ("gpu_hours", "energy_mwh")]
    spared = ask(tmp_path, ONE + "pause_h = 10\n", "--spares", "2")
    assert spared["billed_by_use"]["pauses"] == 320  # 16 GPUs and 2 nodes of 8


def test_each_phase_says_what_to_expect(example, tmp_path):
    for one in example["phases"]:
        assert one["failures"] == pytest.approx(one["wall_s"] / 86400 * one["gpus"] * 0.0004736, rel=1e-3)
        assert one["checkpoints"] > 10
    assert [one["evaluations"] for one in example["phases"]] == [0, 0, example["phases"][2]["steps"] // 2000, 0, 0]
    assert [one["pause_s"] for one in example["phases"]] == [0, 0, 43200, 0, 0]
    stated = ask(tmp_path, ONE, "--rate", "effective_ratio=0.9")["phases"][0]
    assert (stated["failures"], stated["checkpoints"]) == (None, None)


def test_options_replace_those_of_the_file(tmp_path):
    assert ask(tmp_path, ONE, "--gpus", "32")["phases"][0]["gpus"] == 32
    assert ask(tmp_path, ONE, "--tp", "2")["plan"]["tp"] == 2
    free = ask(tmp_path, ONE, "--rate", "effective_ratio=0.5")
    assert free["effective_ratio"] == 0.5


def test_progress_is_told_before_each_phase():
    told = []
    library.train_time(plan_file=EXAMPLE, tokens="1T", progress=lambda *one: told.append(one))
    assert [done for done, _, _ in told] == [0, 1, 2, 3, 4]
    assert {total for _, total, _ in told} == {5}


def test_an_open_phase_takes_the_rest(tmp_path):
    training = read_training(write(tmp_path, ONE + "[[phase]]\n"))
    assert lengths(training, 3e12) == [1e12, 2e12]
    with pytest.raises(InputError, match="without 'phase 2'"):
        lengths(training, 1e12)
    with pytest.raises(InputError, match="has no tokens"):
        lengths(training, None)
    assert lengths(read_training(write(tmp_path, ONE)), None) == [1e12]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "there are no phases"),
        (HEAD + "phase = 3\n", "unknown key 'phase'"),
        (ONE + "batch = 3\n", "unknown key 'batch'"),
        (ONE + "[phase.layout]\nttp = 3\n", "unknown key 'ttp'"),
        (ONE + "gpus = [8, 16]\n", "gpus takes one value"),
        (ONE + "data_stall = -1\n", "data_stall is not a number"),
        (ONE + "evaluation_s = nan\n", "evaluation_s is not a number"),
        (ONE + "name = 3\n", "name"),
        (HEAD + '[[phase]]\ntokens = "many"\n', "tokens: 'many' is not a count"),
        (HEAD + "[[phase]]\ntokens = true\n", "tokens: True is not a count"),
        (HEAD + "[[phase]]\ngbs = [64, 128]\n", "a ramp has 1 to 16 batches"),
        (f'start = "soon"\n{ONE}', "is not a date"),
        (ONE.replace("llama3-8b", "llama9"), "phase 1: unknown model"),
        (ONE + "gbs = 0\n", "phase 1: gbs"),
        (ONE + '[[phase]]\nname = "b"\n', "'b' has no tokens"),
        (HEAD + "[[phase]]\n" * 70, "70 phases, at most 64"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path, text, message):
    done = gpuscale("train-time", write(tmp_path, text))
    assert_one_message(done, message, "")
    assert "run.toml" in done.err


def test_a_phase_that_does_not_fit_is_named(tmp_path):
    path = write(tmp_path, ONE + '[[phase]]\nname = "large"\nmodel = "llama3-70b"\ngpus = 8\ntokens = "1T"\n')
    assert_one_message(gpuscale("train-time", path), "large: no layout of llama3-70b fits", "", 1)
    with pytest.raises(NoAnswerError, match="large"):
        library.train_time(plan_file=path)


@pytest.mark.parametrize("arguments", [("--days", "3"), ("--as-given",), ("--despite-rules",)])
def test_phases_say_how_long_they_are_and_are_searched_for(tmp_path, arguments):
    assert_one_message(gpuscale("train-time", write(tmp_path, ONE), *arguments), "its phases say", "")


def test_the_tokens_of_all_phases_are_those_given(tmp_path):
    done = gpuscale("train-time", write(tmp_path, ONE), "--tokens", "2T")
    assert_one_message(done, "the phases are 1.00T tokens, not 2.00T", "open")


def test_a_ramp_pauses_once_and_shares_its_tokens(tmp_path):
    ramp = HEAD + '[[phase]]\ntokens = "10B"\ngbs = [64, 128]\n'
    plain, paused = ask(tmp_path, ramp), ask(tmp_path, ramp + "pause_h = 10\n")
    assert [one["tokens"] for one in plain["phases"]] == [5e9, 5e9]
    for end in ("wall_s", "wall_low_s", "wall_high_s"):
        assert paused[end] - plain[end] == pytest.approx(36000), end
