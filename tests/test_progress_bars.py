"""Logs whose progress bars, evaluations and rollouts look like training; and the forms of three more frameworks."""

import pytest

from gpuscale.calibration.training_logs import read_training_log


def bar(step, total, elapsed_s, step_s, name="", after="", unit="it"):
    rate = f"{step_s:.2f}s/{unit}" if step_s > 1 else f"{1 / step_s:.2f}{unit}/s"
    clock = f"{int(elapsed_s) // 60:02d}:{int(elapsed_s) % 60:02d}"
    drawn = f"{100 * step // total:3d}%|{'#' * (10 * step // total):10s}| {step}/{total}"
    return f"\r{name}{drawn} [{clock}<9:59, {rate}{after}]"


def bars(steps, step_s, total=None, name="", after="", unit="it"):
    total = total or steps
    return "".join(bar(step, total, step * step_s, step_s, name, after, unit) for step in range(1, steps + 1))


def trained(steps, step_s=2.0, first=1, total=400, more="", every=1):
    """Bars of the Trainer and, below them, what it prints of a step."""
    lines = []
    for step in range(first, first + steps):
        lines.append(bar(step, total, (step - first + 1) * step_s, step_s))
        if step % every == 0:
            lines.append(f"\n{{'loss': 1.9, 'grad_norm': 1.0, {more}'epoch': 0.1}}\n")
    return "".join(lines)


def read(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_bytes(text.encode())
    return read_training_log(path)


@pytest.mark.parametrize("evaluated", [20, 900])
def test_an_evaluation_between_the_steps_is_no_training(evaluated, tmp_path):
    pieces = [
        trained(100, first=first, every=10) + bars(evaluated, 0.1) + "\n{'eval_loss': 1.8}\n" for first in (1, 101)
    ]
    found = read(tmp_path, "".join(pieces))
    assert (found.reported, found.step_time_s, found.notes) == (200, 2.0, ())


@pytest.mark.parametrize(
    ("name", "framework"),
    [("", "Hugging Face Trainer"), ("Epoch 0: ", "PyTorch Lightning"), ("Train, step 3: ", "Hugging Face Trainer")],
)  # fmt: skip
def test_bars_named_for_something_else_are_left_out(name, framework, tmp_path):
    others = ("Loading checkpoint shards: ", "Validation DataLoader 0: ", "evaluating Epoch: ", "Map (num_proc=8): ")
    text = "".join(bars(60, 0.3, name=one) for one in others)
    found = read(tmp_path, text + bars(30, 2.0, name=name) + text)
    assert (found.framework, found.reported, found.step_time_s, len(found.notes)) == (framework, 30, 2.0, 1)


@pytest.mark.parametrize("unit", ["ba", "batch", "step", "steps", "iter"])
def test_bars_count_in_other_units(unit, tmp_path):
    found = read(tmp_path, bars(10, 2.0, unit=unit, after=", loss=1.2"))
    assert (found.reported, found.step_time_s) == (10, 2.0)
    assert "without losses" in found.notes[0]


@pytest.mark.parametrize(("steps", "reported"), [(30, 1), (200, 160)])
def test_steps_before_a_run_was_resumed_do_not_quicken_it(steps, reported, tmp_path):
    """A bar of tqdm begins with them, in a moving mean (smoothing 0.3) of steps over one of seconds."""
    pieces, done, seconds = [], 1000.0, 2.0
    for step in range(1001, 1001 + steps):
        pieces.append(bar(step, 2000, 2 * (step - 1000), seconds / done) + "\n{'loss': 1.9}\n")
        done, seconds = 0.3 + 0.7 * done, 0.6 + 0.7 * seconds
    found = read(tmp_path, "".join(pieces))
    assert (found.reported, found.step_time_s) == (reported, pytest.approx(2.0, rel=0.01))


def test_bars_of_several_ranks_may_lag(tmp_path):
    """Without a prefix that tells them apart; a run that starts again is another one."""
    drawn = [1, *(step - late for step in range(2, 41) for late in (0, 1))]
    both = [bar(step, 400, 2.0 * step, 2.0) for step in drawn]
    assert read(tmp_path, "".join(both)).reported == 40
    again = read(tmp_path, bars(30, 2.0, total=400) + bars(40, 3.0, total=400))
    assert (again.reported, again.step_time_s) == (40, 3.0)


def test_a_log_that_begins_in_the_middle_is_no_resumed_run(tmp_path):
    text = "".join(bar(step, 400, 2 * step, 2.0) + "\n{'loss': 1.9}\n" for step in range(101, 131))
    assert read(tmp_path, text).reported == 30


@pytest.mark.parametrize(
    ("more", "beside"), [("'completions/mean_length': 120.0, ", "generation and rewards"), ("'kl': 0.1, ", "")]
)
def test_steps_that_hold_generation_say_so(more, beside, tmp_path):
    found = read(tmp_path, trained(20, more=more))
    assert (found.step_time_s, found.beside, len(found.notes)) == (2.0, beside, bool(beside))


def test_an_orchestrator_of_rollouts_is_no_trainer(tmp_path):
    line = "10:00:{:02d} SUCCESS Step {} | Time: 20.00s | {}"
    rollouts = "\n".join(line.format(step, step, "Reward: 0.51 | Throughput: 1.0 tokens/s") for step in range(9))
    steps = "\n".join(line.format(step, step, "Loss: 0.51 | Peak Mem.: 50.0/79.6 GiB") for step in range(9))
    assert read(tmp_path, rollouts).beside == "generation and rewards"
    assert read(tmp_path, steps).beside == ""


def test_the_memory_of_a_validation_is_not_that_of_training(tmp_path):
    line = "[titan] 2026-03-02 10:00:{:02d},500 - root - INFO - {}step: {}  loss:  8.0  memory: {}GiB(60%)  tps: {}\n"
    text = "".join(
        line.format(2 * step, "", step, "50.00", "8,192") + line.format(2 * step, "validate ", step, "60.00", "900")
        for step in range(1, 20)
    )
    found = read(tmp_path, text)
    assert (found.memory_gib, found.tokens_per_s_per_gpu, found.step_time_s) == (50.0, 8192.0, 2.0)


FORMS = {
    "nanochat": "step {step:05d}/00400 (1.00%) | loss: 9.1 | lrm: 1.00 | dt: {ms:.2f}ms | tok/sec: 262,144 | mfu: 48.2",
    "PaddleNLP": "[2026-03-02 10:00:00,000] [ INFO] - loss: 1.9, learning_rate: 1e-05, global_step: {step}, "
    "interval_runtime: 9.9, interval_samples_per_second: 32.0, interval_tokens_per_second_per_device: 8192.0, "
    "interval_steps_per_second: {rate}, progress_or_epoch: 0.1",
    "Megatron-LM": "| Iteration: {step:6d} | Consumed samples: 6 | Elapsed time per iteration (ms): {ms:.1f} |",
    "InternEvo": "2026-03-02 10:00:{second:02d},123\tINFO x.py:9 in f -- tflops=190.1 step={step} loss=11.6 "
    "tgs (tokens/gpu/second)=8192.0 tgs/last_tgs_1=9.0 lr=1e-05",
}


@pytest.mark.parametrize("framework", FORMS)
def test_forms_of_more_frameworks(framework, tmp_path):
    lines = [
        FORMS[framework].format(step=step, ms=2000 if step > 1 else 9000, rate=0.5, second=2 * step)
        for step in range(1, 11)
    ]
    found = read(tmp_path, "\n".join(lines))
    assert (found.framework, found.reported, found.step_time_s) == (framework, 10, pytest.approx(2.0))
    assert found.tokens_per_s_per_gpu == (None if framework in {"nanochat", "Megatron-LM"} else 8192.0)


@pytest.mark.parametrize("late_s", [390, 900])
def test_the_bar_of_a_rank_far_behind_gives_no_negative_time(late_s, tmp_path):
    ahead = [bar(step, 1000, 100 + 10 * (step - 100), 10.0) for step in range(100, 120)]
    text = (
        "".join("[rank0]: " + one.strip() + "\n" for one in ahead) + "[rank1]: " + bar(50, 1000, late_s, 10.0).strip()
    )
    assert read(tmp_path, text).step_time_s == pytest.approx(10.0)
    text = "[rank0]: " + bar(100, 1000, 3, 10.0).strip() + "\n[rank1]: " + bar(99, 1000, 900, 10.0).strip() + "\n"
    text += "[rank2]: " + bar(98, 1000, 901, 10.0).strip()
    assert read(tmp_path, text).step_time_s == pytest.approx(10.0)


def test_a_bar_that_goes_back_further_than_ranks_lag_is_of_another_run(tmp_path):
    text = bars(6, 2.0, total=400) + "".join(bar(step, 400, 3.0 * step, 3.0) for step in range(3, 31))
    found = read(tmp_path, text)
    assert (found.reported, found.step_time_s) == (28, 3.0)
