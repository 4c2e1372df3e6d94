"""`gpuscale memory`: the budget of a plan by component, and of the plans around it."""

import json
import math
import re

import pytest
from command import assert_one_message, gpuscale

from gpuscale import InputError, estimate, memory_budget, memory_timeline, read_subject
from gpuscale.explain.budget import GROUPS
from gpuscale.memory.model import COMPONENTS
from gpuscale.render.memory import _windows
from gpuscale.units import GIB

LLAMA = ("--model", "llama3-70b", "--gpus", "640", "--tp", "8", "--pp", "4")
CASES = {
    "70B": ({"model": "llama3-70b", "gpus": 640}, {"tp": 8, "pp": 4}),
    "DeepSeek-V3": ({"model": "deepseek-v3", "gpus": 2048}, {"pp": 16, "ep": 64}),
    "FSDP": ({"model": "llama3-8b", "gpus": 16, "framework": "torchtitan"}, {"dp": 16}),
    "experts split with TP": ({"model": "mixtral-8x7b", "gpus": 64}, {"tp": 4, "etp": 4, "ep": 2}),
}


def budget_of(case):
    job, layout = CASES[case]
    return memory_budget(read_subject(options=job, layout=layout)), job, layout


@pytest.mark.parametrize("case", CASES)
def test_each_row_is_what_estimate_says_of_the_layout(case):
    found, job, layout = budget_of(case)
    assert found.rows[0].change == {}
    assert len(found.rows) > 8
    for row in found.rows:
        left = {name: one for name, one in layout.items() if name != "dp" or "tp" not in row.change}
        plan = (same := estimate(**job, layout=left | row.change)).plan
        assert (row.zero, row.recompute, row.tp, row.sp) == (plan.zero, plan.recompute, plan.tp, plan.sp)
        assert (row.memory_gib, row.step_time_s, row.fit) == (plan.memory_gib, plan.step_time_s, plan.fit)
        assert (row.memory, row.peak_stage) == (same.memory, plan.peak_stage)
        assert math.fsum(row.memory.values()) == pytest.approx(row.memory_gib, rel=1e-12)
        assert row.slower == pytest.approx(row.step_time_s / found.rows[0].step_time_s - 1)


@pytest.mark.parametrize("case", CASES)
def test_combinations_are_there_once_and_those_refused_break_their_rule(case):
    found, job, layout = budget_of(case)
    keys = [(row.zero, row.recompute, row.tp, row.sp) for row in (*found.rows, *found.refused)]
    assert len(keys) == len(set(keys))
    for one in found.refused[::5]:
        change = {"zero": one.zero, "recompute": one.recompute, "tp": one.tp, "sp": one.sp}
        with pytest.raises(InputError, match=one.rule):
            estimate(**job, layout={name: one for name, one in layout.items() if name != "dp"} | change)


def test_groups_hold_every_component_once():
    assert sorted(name for parts in GROUPS.values() for name in parts) == sorted(COMPONENTS)


def test_activations_of_the_reference_with_tp8_and_sp():
    """70B, 4k: about 20 GB -> 2.5-3 GB (reference, "Memory, SP, recomputation"): a stage of PP4, one microbatch.

    The 20 GB are those of an unsplit stage; TP8 alone splits what lies inside its region (Korthikanti et al. 2022,
    section 4.2), which leaves 7.5 GB.
    """
    one_microbatch = {"model": "llama3-70b", "gpus": 640, "gbs": 20}
    rows = memory_budget(read_subject(options=one_microbatch, layout={"tp": 8, "pp": 4})).rows
    held = {row.sp: row.memory["activations"] * GIB for row in rows if row.tp == 8 and not {*row.change} - {"sp"}}
    assert 2.5e9 < held[True] < 3e9
    assert held[False] == pytest.approx(7.5e9, rel=0.01)
    whole = estimate("llama3-70b", 640, {"tp": 1, "pp": 4}, gbs=160).memory["activations"] * GIB
    assert whole == pytest.approx(20e9, rel=0.15)
    assert whole == pytest.approx(8 * held[True], rel=1e-3)


def test_the_first_line_is_the_verdict():
    done = gpuscale("memory", *LLAMA)
    assert (done.code, done.err) == (0, "")
    found, *_ = budget_of("70B")
    off = next(row for row in found.rows if row.change == {"sp": False})
    full = next(row for row in found.rows if row.change == {"recompute": "full"})
    saved = found.rows[0].memory_gib - full.memory_gib
    assert done.lines[0] == (
        f"{found.rows[0].memory_gib:.1f} of 79.6 GiB; without SP it would need {off.memory_gib:.1f}; "
        f"recomputing full saves {saved:.1f}, +{full.slower:.0%} time"
    )
    assert max(map(len, done.lines)) <= 100


def test_bars_are_in_proportion_and_the_limit_is_marked():
    done = gpuscale("memory", *LLAMA)
    scale = next(line for line in done.lines if line.endswith("79.6| limit"))
    at, zero = scale.index("|"), scale.index("0")
    bar = next(line for line in done.lines if line.startswith("as asked") and "|" in line)
    assert bar[at] == "|"
    filled = len(bar[zero:at].rstrip())
    assert filled / (at - zero) == pytest.approx(27.4 / 79.6, abs=0.02)
    asked = budget_of("70B")[0].rows[0]
    assert bar.count("A") / filled == pytest.approx(asked.memory["activations"] / asked.memory_gib, abs=0.03)
    beyond = gpuscale("memory", "--model", "llama3.1-405b", "--gpus", "1024", "--tp", "8", "--pp", "8").out
    assert ">" in beyond
    assert max(map(len, beyond.splitlines())) <= 100


def test_json_and_where_nothing_fits():
    done = gpuscale("memory", "--model", "llama3-70b", "--gpus", "8", "--tp", "8", "--json")
    answer = json.loads(done.out)
    assert answer["schema"] == "gpuscale.memory/1"
    assert answer["facts"][0] == "none of these layouts fits"
    keys = {"zero", "recompute", "tp", "sp", "memory", "memory_gib", "memory_limit_gib", "fit", "step_time_s"}
    assert all(keys <= set(row) for row in answer["rows"])
    assert {row["fit"] for row in answer["rows"]} == {"no"}


def test_where_it_does_not_fit_what_fits_comes_first():
    arguments = ("--model", "llama3.1-405b", "--gpus", "1024", "--seq", "8192", "--tp", "8", "--pp", "8")
    first = gpuscale("memory", *arguments, "--vpp", "8", "--cp", "2").lines[0]
    assert first.startswith("DOES NOT FIT: ")
    assert first.split("; ")[1].startswith("norm+mlp fits: ")


def test_unusable_input_is_one_message():
    assert_one_message(gpuscale("memory"), "`model` is missing".replace("`", ""), "")
    assert_one_message(gpuscale("memory", *LLAMA, "--tp", "7"), "", "")


TIMELINES = {
    "1F1B": ({"model": "llama3-70b", "gpus": 640}, {"tp": 8, "pp": 4}),
    "interleaved": ({"model": "llama3-70b", "gpus": 64}, {"tp": 4, "pp": 4, "vpp": 5}),
    "ZB-V": ({"model": "llama3-70b", "gpus": 64, "framework": "generic"}, {"tp": 4, "pp": 4, "schedule": "zb-v"}),
    "ZB-2P": ({"model": "llama3-70b", "gpus": 64, "framework": "generic"}, {"tp": 4, "pp": 4, "schedule": "zb-2p"}),
    "DualPipe": (
        {"model": "llama3-70b", "gpus": 64, "framework": "generic"}, {"tp": 4, "pp": 4, "schedule": "dualpipe"}
    ),
    "GPipe": ({"model": "llama3-70b", "gpus": 64, "framework": "generic"}, {"tp": 4, "pp": 4, "schedule": "gpipe"}),
    "experts": ({"model": "deepseek-v3", "gpus": 2048}, {"tp": 2, "etp": 1, "pp": 16, "ep": 64}),
    "FSDP": ({"model": "llama3-8b", "gpus": 16, "framework": "torchtitan"}, {}),
    "nanotron": ({"model": "llama3-8b", "gpus": 16, "framework": "nanotron"}, {"pp": 2}),
    "full recomputation": ({"model": "llama3-70b", "gpus": 64}, {"tp": 4, "pp": 4, "recompute": "full"}),
    "offloaded": (
        {"model": "llama3-8b", "gpus": 8, "framework": "deepspeed", "offload": "optimizer"}, {"zero": 2}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TIMELINES)
def test_the_peak_of_a_timeline_is_the_predicted_peak(case):
    """At every evaluated stage; and every moment is the sum of its components."""
    job, layout = TIMELINES[case]
    subject = read_subject(options=job, layout=layout, despite_rules=True)
    stages = subject.evaluation.stages.position[subject.evaluation.stage_row[0]].tolist()
    by_stage = dict(reversed(list(zip(stages, subject.evaluation.memory.by_stage[:, 0].tolist(), strict=True))))
    for stage, predicted in by_stage.items():
        found = memory_timeline(subject, stage)
        assert found.peak_gib == pytest.approx(predicted / GIB, rel=1e-12)
        assert max(one.memory_gib for one in found.moments) == found.peak_gib
        for one in found.moments:
            assert math.fsum(one.memory.values()) == pytest.approx(one.memory_gib, rel=1e-12)
            assert min(one.memory.values()) >= 0
    fullest = memory_timeline(subject)
    assert (fullest.stage, fullest.step_time_s) == (subject.estimate.plan.peak_stage, subject.estimate.plan.step_time_s)


@pytest.mark.parametrize("case", TIMELINES)
def test_a_timeline_fills_and_empties_in_order(case):
    job, layout = TIMELINES[case]
    subject = read_subject(options=job, layout=layout, despite_rules=True)
    found, plan = memory_timeline(subject), subject.estimate.plan
    times = [one.time_s for one in found.moments]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= plan.step_time_s
    assert found.moments[-1].event == "optimizer"
    assert found.moments[-1].in_flight == found.moments[-1].memory["activations"] == 0
    kinds = [one.event for one in found.moments]
    chunks = 2 if case == "ZB-V" else plan.vpp
    assert kinds.count("forward") == kinds.count("backward") == plan.num_microbatches * chunks
    held = max(one.in_flight for one in found.moments)
    top = max(one.memory["activations"] for one in found.moments)
    for one in found.moments:
        assert one.memory["activations"] == pytest.approx(top * one.in_flight / held)
    fragmented = [one.memory["fragmentation"] for one in found.moments]
    assert fragmented == sorted(fragmented)  # the allocator keeps what it has


def test_1f1b_fills_a_stage_with_as_many_microbatches_as_follow_it():
    subject = read_subject(options=TIMELINES["1F1B"][0], layout=TIMELINES["1F1B"][1])
    for stage in (0, 1, 3):
        moments = memory_timeline(subject, stage).moments
        events = [one for one in moments if one.event != "waiting"]
        warm_up = [one.event for one in events].index("backward")
        assert warm_up == 4 - stage
        assert [one.in_flight for one in events[:warm_up]] == [float(count) for count in range(1, 5 - stage)]


def test_a_timeline_is_drawn():
    done = gpuscale("memory", *LLAMA, "--timeline")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith("stage 0: 27.4 of 79.6 GiB at its peak, in the backward pass 399 ms into a step")
    assert max(map(len, done.lines)) <= 100
    runs = next(line for line in done.lines if line.lstrip().startswith("runs |"))
    assert re.fullmatch(r" +runs \|F+\.+[FB]+~[FB.]+g+o?", runs)
    answer = json.loads(gpuscale("memory", *LLAMA, "--timeline", "--stage", "3", "--json").out)["timeline"]
    assert (answer["stage"], answer["schedule"]) == (3, "1f1b")
    assert answer["peak_gib"] == pytest.approx(estimate("llama3-70b", 640, {"tp": 8, "pp": 4}).stage_memory_gib[2])


@pytest.mark.parametrize("case", ["1F1B", "interleaved", "ZB-V", "GPipe", "experts", "FSDP", "nanotron"])
def test_what_is_left_out_of_a_drawing_has_no_peak(case):
    subject = read_subject(options=TIMELINES[case][0], layout=TIMELINES[case][1], despite_rules=True)
    found = memory_timeline(subject)
    windows, step_s = _windows(found, 80)
    shown = [one for window in windows for column in window for one, _ in column]
    assert max(one.memory_gib for one in shown) == found.peak_gib
    assert len(windows) == 2 or shown[0].time_s == 0
    assert sum(map(len, windows)) + len(windows) - 1 == pytest.approx(80, abs=1)
    assert step_s > 0


def test_every_stage_can_be_followed():
    subject = read_subject(options=TIMELINES["1F1B"][0], layout=TIMELINES["1F1B"][1])
    peaks = [memory_timeline(subject, stage).peak_gib for stage in range(4)]
    assert peaks == sorted(peaks, reverse=True)  # each holds a microbatch less than the one before
    assert_one_message(gpuscale("memory", *LLAMA, "--timeline", "--stage", "4"), "4 is none of 4 stages", "give 0 to 3")
    assert_one_message(gpuscale("memory", *LLAMA, "--stage", "2"), "has no effect without", "--timeline")
