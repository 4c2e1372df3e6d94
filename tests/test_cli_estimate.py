"""`gpuscale estimate` at the terminal: flags, plan files, breakdowns, bad input."""

import json
import re

import pytest
from command import assert_one_message, gpuscale

JOB = ("estimate", "--model", "llama3-70b", "--gpus", "640")
PLAN = """\
format = "gpuscale.planfile/1"

[job]
model = "llama3-8b"
cluster = "dgx-h100-superpod"
gpus = 16
seq = 4096
gbs = 64
precision = "bf16"

[layout]
tp = 2
sp = true
pp = 2
dp = 4
zero = 1
shard = 4
"""


def body(*arguments):
    done = gpuscale(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_breakdowns_add_up_to_the_totals():
    answer = body(*JOB, "--tp", "8", "--pp", "4")
    assert answer["schema"] == "gpuscale.estimate/1"
    assert {"model", "cluster", "gpus", "plan", "breakdown", "memory"} <= set(answer)
    plan = answer["plan"]
    assert sum(answer["breakdown"].values()) == pytest.approx(plan["step_time_s"], rel=1e-9)
    assert sum(answer["memory"].values()) == pytest.approx(plan["memory_gib"], rel=1e-9)
    assert plan["memory_gib"] == pytest.approx(max(answer["stage_memory_gib"]), rel=1e-9)
    assert all(seconds >= 0 for seconds in answer["breakdown"].values())


def test_defaults_complete_a_layout():
    plan = body(*JOB, "--tp", "8", "--pp", "4")["plan"]
    chosen = {name: plan[name] for name in ("dp", "sp", "vpp", "cp", "ep", "etp", "zero", "micro_batch_size")}
    assert chosen == {"dp": 20, "sp": True, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "zero": 1, "micro_batch_size": 1}
    assert (plan["sharding"], plan["shard_size"], plan["recompute"]) == ("distopt", 20, "none")


def test_table_shows_every_second_and_every_gib():
    done = gpuscale(*JOB, "--tp", "8", "--pp", "4")
    assert (done.code, done.err) == (0, "")
    assert re.match(
        r"llama3-70b on 640 GPUs: TP8\+SP PP4 DP20 ZeRO-1: [0-9.]+ s/step of 5.24M tokens, MFU [0-9.]+%", done.lines[0]
    )
    assert re.match(r"fits: [0-9.]+ of [0-9.]+ GiB at stage \d; bound by ", done.lines[1])
    assert all(len(line) <= 100 for line in done.lines)
    answer = body(*JOB, "--tp", "8", "--pp", "4")
    for name, gib in answer["memory"].items():
        shown = f"{gib:.2f}" if gib else "-"
        assert re.search(rf"^{name.replace('_', ' ')} +{re.escape(shown)} ", done.out, flags=re.MULTILINE)
    for line, seconds in zip(done.lines[5:], answer["breakdown"].values(), strict=False):
        assert (line.split()[-1] == "-") == (seconds == 0)
    assert re.search(r"^step +[0-9.]+ s  100.0%$", done.out, flags=re.MULTILINE)


def test_a_layout_that_does_not_fit_is_priced_and_says_so():
    done = gpuscale(*JOB, "--zero", "0")
    assert done.code == 0
    assert done.lines[1].startswith("DOES NOT FIT: ")
    assert body(*JOB, "--zero", "0")["plan"]["fits"] is False


def test_flags_replace_entries_of_a_plan_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    stored, changed = body("estimate", path)["plan"], body("estimate", path, "--tp", "4", "--mbs", "2")["plan"]
    assert (stored["tp"], stored["dp"], stored["micro_batch_size"]) == (2, 4, 1)
    assert (changed["tp"], changed["dp"], changed["micro_batch_size"]) == (4, 2, 2)
    assert body("estimate", path, "--seq", "8192")["plan"]["sequence"] == 8192
    flags = ["--tp", "2", "--pp", "2", "--gbs", "64"]
    assert body("estimate", "--model", "llama3-8b", "--gpus", "16", *flags)["plan"] == stored


def test_same_input_same_bytes():
    for flags in ([], ["--json"]):
        assert gpuscale(*JOB, "--tp", "8", *flags) == gpuscale(*JOB, "--tp", "8", *flags)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ([], "--model is missing", "a plan file"),
        (["--model", "llama3-8b"], "--gpus is missing", "a plan file"),
        (
            ["--model", "llama3-8b", "--gpus", "8", "--tp", "3"],
            "--tp: 8 GPUs cannot be split by TP 3",
            "1, 2, 4 or 8 can",
        ),
        (
            ["--model", "llama3-8b", "--gpus", "8", "--tp", "2", "--dp", "8"],
            "but the job has 8 GPUs",
            "leave --dp out, or give 4",
        ),
        (
            ["--model", "llama3-70b", "--gpus", "640", "--tp", "5"],
            "TP must divide the attention heads",
            "gpuscale plan",
        ),
        (
            ["--model", "llama3-8b", "--gpus", "8", "--pp", "2", "--zero", "3"],
            "do not combine with PP",
            "gpuscale plan",
        ),
        (["--model", "llama3-8b", "--gpus", "8", "--tp", "0"], "--tp: 0 is out of range", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", "8", "--tp", "4..8"], "--tp: '4..8' is not a whole number", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", "8", "--zero", "4"], "4", "0"),
        (["--model", "llama3-8b", "--gpus", "8", "--recompute", "full:99"], "fewer layers", "gpuscale plan"),
        (["--model", "llama3-8b", "--gpus", "8", "--sp", "maybe"], "--sp: 'maybe' is not on or off", ""),
        (["no-such-file.toml"], "no-such-file.toml", ""),
    ],
)
def test_bad_input_is_one_message(arguments, message, hint):
    assert_one_message(gpuscale("estimate", *arguments), message, hint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("tp = 2", "tp = 2.5"), "tp"),
        (lambda text: text.replace("tp = 2", "tp = 0"), "tp"),
        (lambda text: text.replace("tp = 2", f"tp = {10**12}"), "tp"),
        (lambda text: text.replace("zero = 1", "zero = 7"), "zero"),
        (lambda text: text.replace("dp = 4", "dp = 5"), "but the job has 16 GPUs"),
        (lambda text: text.replace("[layout]", "[layuot]"), "layuot"),
        (lambda text: text.replace('"gpuscale.planfile/1"', '"gpuscale.planfile/9"'), "format"),
        (lambda text: text.replace('"llama3-8b"', '"llama3-8x"'), "unknown model 'llama3-8x'"),
        (lambda text: text.replace('"bf16"', '"bf61"'), "bf61"),
        (lambda text: text.replace("gpus = 16", "gpus = 16\ngpus = 8"), "plan.toml"),
        (lambda text: text + "colour = 'red'\n", "colour"),
    ],
)
def test_a_plan_file_with_a_mistake_is_one_message(change, message, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(change(PLAN))
    assert_one_message(gpuscale("estimate", path), message, "")


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("llama3-8b", ("--transport", "uccl"), "error: --transport: llama3-8b has no experts"),
        ("llama3-8b", ("--routing", "dropping"), "error: --routing: llama3-8b has no experts"),
        ("llama3-8b", ("--dispatcher", "deepep"), "error: --dispatcher: llama3-8b has no experts"),
        ("gpt3-13b", ("--swiglu-input-dtype", "fp8"), "error: --swiglu-input-dtype: gpt3-13b has no gated activation"),
        ("llama3-8b", ("--cluster", "mi300x", "--sharp", "on"), "error: --sharp: no switches between nodes of mi300x"),
    ],
)
def test_options_of_what_a_job_lacks_are_refused(model, options, message):
    refused = gpuscale("estimate", "--model", model, "--gpus", "8", "--tp", "8", *options)
    assert (refused.code, message in refused.err) == (2, True)


def test_a_transport_that_carries_nothing_is_noted():
    options = ("estimate", "--model", "mixtral-8x7b", "--gpus", "16", "--ep", "8", "--transport", "uccl")
    assert "changes nothing" in gpuscale(*options, "--dispatcher", "alltoall").out
    assert "changes nothing" not in gpuscale(*options, "--dispatcher", "deepep").out


def test_a_gate_on_memory():
    layout = ("--model", "llama3-70b", "--gpus", "8", "--tp", "8")
    assert gpuscale("estimate", *layout).code == 0
    done = gpuscale("estimate", *layout, "--require-fit", "--json")
    assert (done.code, json.loads(done.out)["plan"]["fits"]) == (1, False)
    assert done.err.startswith("error: the layout does not fit: it needs 161.")
    assert gpuscale("estimate", "--model", "llama3-8b", "--gpus", "8", "--tp", "2", "--require-fit").code == 0


@pytest.mark.parametrize(
    ("framework", "layout", "etp"),
    [
        ("megatron-lm", ("--tp", 4, "--ep", 8), 4),  # training/arguments.py: expert_tensor_parallel_size is TP's
        ("nemo", ("--tp", 4, "--ep", 8), 4),
        ("megatron-lm", ("--tp", 4, "--ep", 8, "--etp", 1), 1),
        ("torchtitan", ("--tp", 4, "--ep", 8), 1),
        ("torchtitan", ("--tp", 4), 4),
        ("deepspeed", ("--ep", 8), 1),
    ],
)
def test_experts_are_split_as_the_framework_splits_them(framework, layout, etp):
    asked = ("estimate", "--model", "mixtral-8x7b", "--gpus", 64, "--framework", framework, *layout, "--json")
    assert json.loads(gpuscale(*asked).out)["plan"]["etp"] == etp
