"""`gpuscale tune`: what is tried next, what counts as evidence, when trials end, and what a study may say."""

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import assert_one_message
from command import gpuscale as command

import gpuscale
from gpuscale import trials as tuning
from gpuscale.calibration.training_logs import MeasuredRun
from gpuscale.trials import (
    LEAST_TRIALS,
    LIKELY,
    MATTERS,
    TAIL_BYTES,
    Believed,
    Trial,
    fitting,
    prospects,
    read_study,
    read_trials,
    run_trials,
    tune,
)

JOB = '[job]\nmodel = "llama3-8b"\ngpus = 16\ngbs = 128\nframework = "megatron-lm"\n'
LOG = """\
 iteration {0:8d}/ 50000 | consumed samples: {1:12d} | elapsed time per iteration (ms): {2:.1f} | \
global batch size:   128 | lm loss: 1.180000E+01 | loss scale: 1.0 | grad norm: 2.001 |
"""
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n"
)
MACHINE = """\
import sys
tp, pp, micro, zero = map(int, sys.argv[1:])
if micro > 1 and tp == 1 and zero < 3:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
step_ms = 4000 * (1 + 0.1 * (tp > 1) + 0.03 * pp + 0.05 / micro)
for step in range(1, 20):
    print(f" iteration {step:8d}/ 50000 | consumed samples: {128 * step:12d} | elapsed time per iteration (ms): "
          f"{step_ms:.1f} | global batch size:   128 | lm loss: 1.180000E+01 | loss scale: 1.0 | grad norm: 2.001 |")
"""


@pytest.fixture
def study(tmp_path):
    """Writes a study; returns its path."""

    def write(more="", job=JOB):
        path = tmp_path / "study.toml"
        path.write_text(f'format = "gpuscale.trials/1"\n{job}{more}')
        return path

    return write


def log_of(seconds):
    return "".join(LOG.format(step, 128 * step, 1e3 * seconds) for step in range(1, 20))


def believed(times, half=0.1, fits=1.0):
    times = np.array(times, dtype=float)
    return Believed(times, np.full(len(times), half), np.full(len(times), fits))


# what to try


def test_what_may_gain_most_is_tried_and_not_what_was():
    seen = prospects(believed([1.0, 0.9, 0.95]), 1.0, np.array([True, True, True]))
    assert seen.best == 1
    assert prospects(believed([1.0, 0.9, 0.95]), 1.0, np.array([True, False, True])).best == 2


def test_the_chance_is_that_of_the_normal_distribution():
    """A layout whose median lies where it starts to matter is as likely to be faster as not, if it fits."""
    seen = prospects(believed([1.0 - MATTERS]), 1.0, np.array([True]))
    assert seen.faster[0] == pytest.approx(0.5)
    half = prospects(believed([1.0 - MATTERS], fits=0.5), 1.0, np.array([True]))
    assert half.faster[0] == pytest.approx(0.25)


def test_the_gain_is_the_mean_of_what_is_faster():
    """Against drawing: E[max(0, log(best / time))]."""
    half, best = 0.2, 1.0
    seen = prospects(believed([1.05], half), best, np.array([True]))
    drawn = math.log(1.05) + np.random.default_rng(0).normal(0, half / 1.2816, 400_000)
    assert seen.gain[0] == pytest.approx(np.maximum(0, -drawn).mean(), rel=0.02)
    assert seen.faster[0] == pytest.approx((drawn < math.log(best * (1 - MATTERS))).mean(), abs=0.003)


def test_nothing_is_tried_that_is_not_likely_to_be_faster():
    assert prospects(believed([1.3, 1.2], half=0.05), 1.0, np.array([True, True])).best is None
    assert LIKELY == 0.1


def test_what_ran_out_rules_out_what_needs_more_and_doubts_what_needs_a_little_less():
    before = np.array([0.90, 0.95, 0.99, 1.0])
    after = fitting(before, before[[1]], before[[]])
    assert after[0] == after[1] == 0
    assert after[2] == pytest.approx(0.8)  # of the 5 % of cases that are left, it fits in 4
    assert after[3] == 1


def test_what_ran_shows_that_what_needs_less_fits():
    after = fitting(np.array([0.6, 0.8, 0.9]), np.array([]), np.array([0.8]))
    assert after.tolist() == pytest.approx([0.75, 1.0, 1.0])


def test_contradicting_evidence_leaves_what_needs_less_than_what_ran_out():
    after = fitting(np.array([0.6, 0.8, 0.9]), np.array([0.8]), np.array([0.6]))
    assert after.tolist() == [0.0, 0.0, 0.9]


def test_one_that_ran_out_where_another_ran_contradicts_it():
    assert fitting(np.array([0.6, 0.8, 0.9]), np.array([0.8]), np.array([0.8])).tolist() == [0.0, 0.0, 0.9]


def test_trials_do_not_end_before_some_ran(study):
    """One tells how fast the machine is; whether the order of the others holds is not known yet."""
    asked, left = read_study(study()), np.array([True, True])
    seen = prospects(believed([1.3, 1.2], half=0.05), 1.0, left)
    for count in range(1, LEAST_TRIALS):
        trials = [Trial(number, {}, {}, Path(), "ran") for number in range(1, count + 1)]
        assert tuning._next(asked, trials, left, left, seen) == (1, "")
    trials = [Trial(number, {}, {}, Path(), "ran") for number in range(LEAST_TRIALS)]
    pick, stopped = tuning._next(asked, trials, left, left, seen)
    assert pick is None
    assert "no other layout" in stopped
    trials[0] = Trial(0, {}, {}, Path(), "failed")
    assert tuning._next(asked, trials, left, left, seen) == (1, "")


def test_before_any_ran_what_probably_fits_is_tried_first(study):
    asked, left = read_study(study()), np.array([True, True])
    assert tuning._next(asked, [], np.array([False, True]), left, None) == (1, "")
    assert tuning._next(asked, [], np.array([False, False]), left, None) == (0, "")


def test_the_command_refuses_what_it_cannot_run(study):
    assert_one_message(command("tune", study(), "--run"), "no command", "train.sh")
    assert_one_message(command("tune", study().with_name("none.toml")), "none.toml", "")


# a study


def test_the_first_trial_is_the_first_choice_of_plan(study):
    path = study()
    state = tune(path)
    best = gpuscale.plan("llama3-8b", 16, gbs=128, framework="megatron-lm").plans[0]
    assert (state.next, state.plan.tp, state.plan.micro_batch_size) == (1, best.tp, best.micro_batch_size)
    assert state.plan.step_time_s == best.step_time_s
    assert tune(path) == state  # asked again, it proposes the same


def test_a_trial_that_ran_moves_the_predictions_of_the_others(study):
    path = study()
    first = tune(path)
    before = {one.rank: one for one in gpuscale.plan("llama3-8b", 16, gbs=128, framework="megatron-lm", top=5).plans}
    Path(first.log).write_text(log_of(1.5 * first.plan.step_time_s))
    state = tune(path)
    assert state.best == 1
    assert state.next == 2
    assert state.trials[0].step_time_s == pytest.approx(1.5 * first.plan.step_time_s, rel=1e-3)
    assert state.plan.step_time_s > 1.15 * before[1].step_time_s
    assert state.calibration == str(path.with_suffix("") / "site.toml")


def test_running_out_of_memory_is_evidence_and_not_a_measurement(study):
    path = study()
    first = tune(path)
    Path(first.log).write_text(log_of(3.0) + FULL)  # it ran, and then did not
    state = tune(path)
    assert [one.outcome for one in state.trials] == ["out of memory", "waiting"]
    assert state.best is None
    assert state.plan.memory_gib < first.plan.memory_gib


def test_a_run_that_failed_otherwise_is_said_and_not_tried_again(study):
    path = study()
    first = tune(path)
    Path(first.log).write_text("ImportError: no module named megatron\n")
    state = tune(path)
    assert state.trials[0].outcome == "failed"
    assert state.trials[0].reason
    assert state.plan != first.plan


def test_trials_are_run_until_they_end_and_go_on_where_they_were(study, tmp_path):
    machine = tmp_path / "machine.py"
    machine.write_text(MACHINE)
    command = [sys.executable, str(machine), "{tp}", "{pp}", "{micro_batch_size}", "{zero}"]
    path = study(f"[trials]\ncommand = {command}\nmost = 4\n".replace("'", '"'))
    told = []
    state = run_trials(path, told.append)
    assert state.next is None
    assert len(state.trials) == len(told) == 4
    assert {"ran", "out of memory"} == {one.outcome for one in state.trials}
    ran = [one for one in state.trials if one.step_time_s]
    fastest = min(ran, key=lambda one: one.step_time_s)
    assert state.best == fastest.number
    assert "most" in state.stopped
    more = path.read_text().replace("most = 4", "most = 5")
    path.write_text(more)
    assert len(run_trials(path, told.append).trials) == 5


def test_what_fails_twice_in_a_row_ends_the_trials_without_an_answer(study):
    failing = f'["{sys.executable}", "-c", "import sys; sys.exit(7)"]'
    done = command("tune", study(f"[trials]\ncommand = {failing}\n"), "--run")
    assert done.code == 1
    assert "2 trials in a row failed" in done.out
    assert "no layout ran" in done.out
    assert "exit code 7" in (study().with_suffix("") / "02" / "output.log").read_text()
    assert not (study().with_suffix("") / "03").exists()


def test_arguments_stay_apart_whatever_is_put_into_them(study):
    path = study('[trials]\ncommand = ["run", "{recompute}; {tp}", "{plan}", "{unknown_brace", "$HOME"]\n')
    state = tune(path)
    assert len(state.arguments) == 5
    assert state.arguments[1] == f"{state.plan.recompute}; {state.plan.tp}"
    assert state.arguments[2] == state.plan_file
    assert state.arguments[3:] == ("{unknown_brace", "$HOME")


def test_a_trial_that_takes_too_long_is_ended(study):
    path = study(
        f'[trials]\ncommand = ["{sys.executable}", "-c", "import signal; signal.pause()"]\ntimeout_s = 1\nmost = 1\n'
    )
    state = run_trials(path, lambda _: None)
    assert state.trials[0].outcome == "failed"


def test_a_command_that_is_not_there_leaves_no_log(study):
    path = study('[trials]\ncommand = ["no-such-program"]\n')
    with pytest.raises(gpuscale.InputError, match="no-such-program"):
        run_trials(path, lambda _: None)
    assert [one.outcome for one in read_trials(read_study(path))] == ["waiting"]


def test_trials_of_another_job_are_refused(study):
    path = study()
    tune(path)
    study(job=JOB.replace("128", "256"))
    with pytest.raises(gpuscale.InputError, match="gbs=128"):
        tune(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[trials]\ncommand = "run {tp}"\n', "trials.command"),
        ('[trials]\ncommand = ["run", "{tpp}"]\n', "tpp"),
        ('[trials]\nlog = "{log}"\n', "no {log} is known"),
        ("[trials]\nmost = 0\n", "trials.most"),
        ("[trials]\nmost = true\n", "trials.most"),
        ("[trials]\ntimeout_s = 1e12\n", "trials.timeout_s"),
        ("[trials]\nretries = 3\n", "retries"),
        ("[layout]\ntpp = 3\n", "tpp"),
        ("[layouts]\ntp = 3\n", "layouts"),
        ("zero_stage = 3\n", "zero_stage"),
        ("seq = -1\n", "seq"),
        ("tp = 2\n", "[layout]"),
    ],
)
def test_what_a_study_cannot_say_is_refused_with_its_line(study, text, said):
    with pytest.raises(gpuscale.InputError) as refused:
        tune(study(text))
    assert said in str(refused.value)
    assert "study.toml" in str(refused.value)


def test_the_command_says_what_to_do_and_json_has_it(study):
    path = study('[trials]\ncommand = ["bash", "my train.sh", "{tp}"]\n')
    said = command("tune", path)
    assert said.out.startswith("try trial 1: ")
    assert "0 trials so far" in said.out
    told = json.loads(command("tune", path, "--json").out)
    assert told["schema"] == "gpuscale.tune/1"
    assert told["arguments"][:2] == ["bash", "my train.sh"]
    assert shlex.join(told["arguments"]).startswith("bash 'my train.sh'")


def test_trials_begin_with_the_calibration_that_the_study_gives(study, tmp_path, monkeypatch):
    first = tune(study())
    Path(first.log).write_text(log_of(1.4 * first.plan.step_time_s))
    tune(study())
    (tmp_path / "study" / "site.toml").rename(tmp_path / "earlier.toml")
    for path in sorted((tmp_path / "study").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    state = tune(study(job=JOB + 'calibration = "earlier.toml"\n'))
    assert state.calibration is None  # by its own trials
    assert state.plan.step_time_s > 1.1 * first.plan.step_time_s
    assert state.trials[0].plan.step_time_s == state.plan.step_time_s
    Path(state.log).write_text(log_of(state.plan.step_time_s))
    fit, given = tuning.calibrate_runs, []
    monkeypatch.setattr(tuning, "calibrate_runs", lambda ran, **more: given.append(more["earlier"]) or fit(ran, **more))
    assert tune(study(job=JOB + 'calibration = "earlier.toml"\n')).calibration is not None
    assert given == [str(tmp_path / "earlier.toml")]


def test_a_log_that_is_there_before_its_trial_is_refused(study, tmp_path):
    """A log that trials share would count as a measurement of each."""
    (tmp_path / "shared.log").write_text(log_of(3.0))
    with pytest.raises(gpuscale.InputError, match="before trial 1 ran"):
        tune(study(f'[trials]\nlog = "{tmp_path}/shared.log"\n'))
    assert not (tmp_path / "study").exists()


def test_what_the_search_refuses_is_said_with_the_study(study):
    for text, said in (("[layout]\ntp = 99\n", "layout.tp"), ('cluster = "nowhere"\n', "unknown cluster")):
        with pytest.raises(gpuscale.InputError, match=said) as refused:
            tune(study(text))
        assert "study.toml" in str(refused.value)


def test_a_study_has_an_ending_for_the_folder_of_its_trials(study):
    path = study()
    plain = path.rename(path.with_suffix(""))
    assert_one_message(command("tune", plain), "no ending", "NAME.toml")


def test_a_log_of_rates_alone_gives_the_step_time():
    """torchtitan prints tokens per second of a GPU: 16 GPUs at 8,192 a second take 4 s for 128 sequences of 4,096."""
    measured = MeasuredRun(
        file="", framework="torchtitan", reported=9, iterations=9, step_time_s=None, jitter=None, slowest_s=None,
        tokens_per_s_per_gpu=8192.0, timers_s={}, notes=(),
    )  # fmt: skip
    trial = Trial(1, {"gbs": 128, "seq": 4096, "gpus": 16}, {}, Path(), "ran", measured)
    assert tuning._step_time_s(trial) == 4.0


def test_a_command_that_leaves_no_log_is_an_error(study, tmp_path):
    path = study(f'[trials]\ncommand = ["{sys.executable}", "-c", "print(1)"]\nlog = "{{folder}}/train.log"\n')
    with pytest.raises(gpuscale.InputError, match=r"trial 1 left no .*train\.log"):
        run_trials(path, lambda _: None)


def test_what_is_interrupted_leaves_no_log_that_would_count(study, monkeypatch):
    path = study('[trials]\ncommand = ["train"]\n')

    class Interrupted:
        def __init__(self, *_, stdout, **__):
            stdout.write(log_of(3.0).encode())

        def wait(self, *_):
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(tuning, "end", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        run_trials(path, lambda _: None)
    assert [one.outcome for one in read_trials(read_study(path))] == ["waiting"]


def test_what_a_trial_is_told_is_what_frameworks_read(study):
    path = study('[trials]\ncommand = ["run", "{sp}", "{folder}"]\n')
    asked = read_study(path)
    folder = str(path.with_suffix("") / "03")
    assert asked.arguments(3, {"sp": True}) == ["run", "true", folder]
    assert asked.arguments(3, {"sp": False}) == ["run", "false", folder]


def test_the_end_of_a_long_log_says_what_ended_the_run(study):
    """What was printed long before is of a run that went on: a full memory that the launcher survived, for example."""
    first = tune(study())
    Path(first.log).write_text(FULL + "x\n" * TAIL_BYTES + log_of(3.0))
    assert tune(study()).trials[0].outcome == "ran"


@pytest.mark.parametrize(
    "line",
    [
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4 bytes.\n",
        "torch.AcceleratorError: CUDA error: out of memory\n",
    ],
)
def test_full_memory_in_other_words_is_evidence_too(study, line):
    Path(tune(study()).log).write_text(line)
    assert tune(study()).trials[0].outcome == "out of memory"


def test_trials_on_other_gpus_or_lengths_are_refused_too(study):
    tune(study())
    for other, said in ((JOB.replace("16", "32"), "gpus=16"), (JOB + "seq = 2048\n", "seq=4096")):
        with pytest.raises(gpuscale.InputError, match=said):
            tune(study(job=other))


def test_a_log_of_another_batch_is_not_compared(study):
    path = study()
    Path(tune(path).log).write_text(log_of(1.0).replace("size:   128", "size:    64"))
    with pytest.raises(gpuscale.InputError, match="64"):
        tune(path)
