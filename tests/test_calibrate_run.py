"""Calibration to training runs: known factors come back, what cannot be known stays, and predictions follow."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import assert_one_message, gpuscale
from hypothesis import given
from hypothesis import strategies as st
from jobs import job

import gpuscale as gpuscale_package
from gpuscale import estimate, plan
from gpuscale.calibration.factors import FACTORS, factor_of, names_for, with_factors
from gpuscale.calibration.site import NORMAL_80, product, solve
from gpuscale.calibration.site_file import read_site, site_text
from gpuscale.calibration.training_logs import MeasuredRun
from gpuscale.errors import InputError
from gpuscale.layouts.pins import Pins
from gpuscale.planning.calibrating import AskedRun, calibrate_runs
from gpuscale.planning.jobs import build_job, calibrated, changed_job
from gpuscale.planning.layouts import fixed_layout
from gpuscale.request import JobOptions, read
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import search
from gpuscale.specs.site import MOST, SiteSpec
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS
from gpuscale.steptime.step import site_factor
from gpuscale.units import GIB

DATA = Path(__file__).parent / "data"
LOG = DATA / "example_training.log"
JOB = {"model": "llama3-8b", "gpus": 16, "gbs": 128, "seq": 4096}
OTHERS = (
    (JOB, {"tp": 4}), (JOB, {"tp": 8}), (JOB, {"tp": 1, "zero": 2}), (JOB, {"tp": 2, "pp": 2, "micro_batch_size": 2}),
    ({**JOB, "gpus": 8}, {"tp": 2}), ({**JOB, "gpus": 64, "gbs": 64}, {"tp": 16}), ({**JOB, "gpus": 32}, {"zero": 3}),
    ({**JOB, "gpus": 64, "gbs": 64}, {"zero": 3}),
)  # fmt: skip
TRUE = {"compute": 0.94, "bandwidth.node": 0.8, "bandwidth.leaf": 0.7, "memory": 1.1}


def measured(step_s, memory_bytes=None, **facts):
    memory = {} if memory_bytes is None else {"reserved": memory_bytes}
    none = dict.fromkeys(("tokens_per_s_per_gpu", "batch", "sequence", "gpus"))
    return MeasuredRun(
        file="made.log", framework="Megatron-LM", reported=9, iterations=8, discarded=1, step_time_s=step_s, jitter=0.0,
        stragglers=0, slowest_s=step_s, memory=memory, timers_s={}, notes=(), **{**none, **facts},
    )  # fmt: skip


COMPUTATION = ("gemm", "attention", "recompute", "elementwise", "optimizer", "waiting")


def made(options, layout, factors, *, traced=False):
    """A run as it would be measured where the factors hold, perhaps by a profiler too."""
    job = with_factors(build_job(read(JobOptions, options)).spec, factors)
    found = evaluate(fixed_layout(job, layout), job)
    bytes_ = float(found.memory.logged("reserved", job)[0])
    told = measured(float(found.step.step_time_s[0]), bytes_)
    if traced:
        seconds = dict(zip(COMPONENTS, found.step.components[:, 0].tolist(), strict=True))
        exposed_s = sum(seconds[name] for name in COMMUNICATION)
        parts_s = {"computation": sum(seconds[name] for name in COMPUTATION), "exposed communication": exposed_s}
        told = replace(told, timers_s=parts_s)
    return AskedRun(told, options, layout)


# -- the fit --


def test_known_factors_come_back_within_their_intervals():
    found = calibrate_runs([made(*one, TRUE) for one in OTHERS])
    for name, true in TRUE.items():
        value = found.site.factors[name]
        assert value.low <= true <= value.high, name
    assert found.site.factors["bandwidth.node"].value < 0.95
    assert found.site.factors["memory"].value == pytest.approx(1.1, rel=0.02)
    assert found.after.median_error < 0.01 < found.before.median_error


def test_traces_tell_computation_from_the_network():
    true = {"compute": 0.88, "bandwidth.leaf": 0.7}
    logs, traces = (calibrate_runs([made(*one, true, traced=traced) for one in OTHERS]) for traced in (False, True))
    for name, value in true.items():
        off = [abs(np.log(found.site.factors[name].value / value)) for found in (logs, traces)]
        widths = [np.log(one.high / one.low) for one in (found.site.factors[name] for found in (logs, traces))]
        assert off[1] < off[0]
        assert widths[1] < 0.9 * widths[0]
    assert traces.site.factors["compute"].value == pytest.approx(0.88, rel=0.04)


def test_one_run_moves_what_it_can_know_and_no_more():
    (one,) = [made(JOB, {"tp": 1, "zero": 2}, {"compute": 0.8})]
    factors = calibrate_runs([one]).site.factors
    assert factors["compute"].value < 0.97
    for name in ("bandwidth.node", "bandwidth.leaf", "host"):
        value = factors[name]
        assert value.value == pytest.approx(1.0, abs=0.03)
        assert np.log(value.high / value.low) == pytest.approx(2 * NORMAL_80 * factor_of(name).prior, rel=0.03)


def test_a_run_as_predicted_leaves_all_factors_at_one_and_knows_them_better():
    found = calibrate_runs([made(JOB, {"tp": 4}, {})])
    assert all(value.value == pytest.approx(1.0, abs=1e-6) for value in found.site.factors.values())
    compute = found.site.factors["compute"]
    assert np.log(compute.high / compute.low) < 2 * NORMAL_80 * FACTORS["compute"].prior


def test_a_run_unlike_all_others_counts_less():
    runs = [made(*one, {"compute": 0.9}) for one in OTHERS[:5]]
    odd = replace(runs[0].measured, step_time_s=3 * runs[0].measured.step_time_s)
    alone, beside = (calibrate_runs(some).site for some in (runs, [*runs, runs[0]._replace(measured=odd)]))
    assert beside.factors["compute"].value == pytest.approx(alone.factors["compute"].value, rel=0.05)
    assert beside.runs[-1].noise > 5 * beside.runs[0].noise


def test_runs_are_added_to_an_earlier_calibration(tmp_path):
    first, path = calibrate_runs([made(*OTHERS[0], TRUE)], name=str(tmp_path / "site.toml")), tmp_path / "site.toml"
    path.write_text(site_text(first.site))
    second = calibrate_runs([made(*OTHERS[2], TRUE)], earlier=str(path))
    together = calibrate_runs([made(*one, TRUE) for one in (OTHERS[0], OTHERS[2])])
    assert [run.file for run in second.site.runs] == ["made.log", "made.log"]
    for name, value in together.site.factors.items():
        assert second.site.factors[name].value == pytest.approx(value.value, rel=1e-4)


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_linear_systems_are_solved_as_numpy_does(size, seed):
    rng = np.random.RandomState(seed)
    half, right = rng.randn(size, size), rng.randn(size, 3)
    matrix = half @ half.T + np.eye(size)
    assert solve(matrix, right) == pytest.approx(np.linalg.solve(matrix, right), rel=1e-8, abs=1e-10)
    assert product(half, right) == pytest.approx(half @ right, rel=1e-12, abs=1e-12)


# -- predictions --


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A calibration to runs that were slower than predicted."""
    path = tmp_path_factory.mktemp("site") / "site.toml"
    found = calibrate_runs([made(*one, {"compute": 0.85}) for one in OTHERS[:3]], name=str(path))
    path.write_text(site_text(found.site))
    return path


def test_a_calibrated_run_is_predicted_as_measured_in_a_narrower_interval(site):
    options, layout = OTHERS[0]
    truth = made(options, layout, {"compute": 0.85}).measured.step_time_s
    before, after = (estimate(**options, layout=layout, **more).plan for more in ({}, {"calibration": str(site)}))
    assert after.step_time_s == pytest.approx(truth, rel=0.01)
    assert before.step_time_s < 0.92 * truth
    widths = [np.log(one.step_time_high_s / one.step_time_low_s) for one in (before, after)]
    assert widths[1] < 0.6 * widths[0]
    assert after.step_time_low_s <= truth <= after.step_time_high_s


def test_the_evidence_is_named(site):
    found = estimate(**JOB, layout={"tp": 4}, calibration=str(site))
    assert "3 runs (made.log); compute x 0.9" in found.assumptions["calibration"]
    assert sum(found.breakdown.values()) == pytest.approx(found.plan.step_time_s, rel=1e-9)


def test_factors_hold_for_their_gpu_and_framework_alone(site):
    other = estimate(**JOB, layout={"tp": 4}, cluster="b200-hgx", framework="torchtitan", calibration=str(site))
    plain = estimate(**JOB, layout={"tp": 4}, cluster="b200-hgx", framework="torchtitan")
    assert "no factor holds here" in other.assumptions["calibration"]
    assert any("compute" in note and "h100" in note for note in other.notes)
    assert other.plan.step_time_s == pytest.approx(plain.plan.step_time_s, rel=0.03)
    assert (
        other.plan.step_time_high_s / other.plan.step_time_s
        <= plain.plan.step_time_high_s / plain.plan.step_time_s + 1e-9
    )


def test_plans_and_estimates_agree_and_the_search_leaves_nothing_out(site):
    found = plan(**JOB, calibration=str(site), top=3)
    best = found.plans[0]
    again = estimate(**JOB, layout={
        "tp": best.tp, "pp": best.pp, "vpp": best.vpp, "zero": best.zero, "micro_batch_size": best.micro_batch_size,
        "recompute": best.recompute, "cp": best.cp,
    }, calibration=str(site))  # fmt: skip
    assert again.plan.step_time_s == best.step_time_s
    job = build_job(read(JobOptions, {**JOB, "calibration": str(site)})).spec
    pruned, every = search(job, Pins()), search(job, Pins(), every=True)
    assert pruned.families.score[0] == every.scores[0]
    assert pruned.families.score[:20].tolist() == every.families.score[:20].tolist()


def test_a_remainder_is_bounded_and_its_least_is_one():
    job = build_job(read(JobOptions, JOB)).spec
    rows = fixed_layout(job, {"tp": 4})
    key = (4, 1, 1, 1, 1, 1, 32, 1, 0, 0, 0)
    for weights in ((-0.1, 0.05), (-9.0, -9.0), (9.0, 0.0)):
        site = SiteSpec(weights, (key, (8, *key[1:])))
        factor = float(site_factor(rows, site)[0])
        assert site.least <= factor <= np.exp(MOST) * (1 + 1e-12)
    assert float(site_factor(rows, SiteSpec((0.1,), (key,)))[0]) == pytest.approx(np.exp(0.1))


def test_a_job_is_not_calibrated_twice_where_it_is_built_anew(site):
    job = build_job(read(JobOptions, {**JOB, "calibration": str(site)}))
    assert changed_job(job, {}) == job.spec


@pytest.mark.parametrize("name", ["compute", "hbm", "host", "bandwidth.node", "bandwidth.leaf"])
def test_better_hardware_never_slows_a_step(name):
    job = build_job(read(JobOptions, {**JOB, "gpus": 64})).spec
    assert name in names_for(job)
    for layout in ({"tp": 4}, {"tp": 16}, {"zero": 3}, {"pp": 4}):
        rows = fixed_layout(job, layout)
        times = [evaluate(rows, with_factors(job, {name: value})).step.step_time_s[0] for value in (0.7, 1.0, 1.4)]
        assert times == sorted(times, reverse=factor_of(name).speed)


def test_no_factors_change_nothing():
    job = build_job(read(JobOptions, JOB)).spec
    assert with_factors(job, {}) == with_factors(job, dict.fromkeys(names_for(job), 1.0)) == job


# -- files and the command --


def test_a_site_file_reads_as_it_was_written(site):
    text = site.read_text()
    assert site_text(replace(read_site(site), path="")) == text


def test_plan_files_name_the_calibration_from_their_folder(site, tmp_path, monkeypatch):
    (tmp_path / "plans").mkdir()
    (tmp_path / "site.toml").write_text(site.read_text())
    monkeypatch.chdir(tmp_path)
    options = ("--model", "llama3-8b", "--gpus", "16", "--tp", "4", "--calibration", "site.toml")
    assert gpuscale("plan", *options, "-o", "plans/plan.toml").code == 0
    assert 'calibration = "../site.toml"' in (tmp_path / "plans" / "plan.toml").read_text()
    monkeypatch.chdir(tmp_path / "plans")
    assert gpuscale("estimate", "plan.toml").out.splitlines()[-1].strip() != ""


def test_the_contract_of_the_json():
    done = gpuscale("calibrate", "run", LOG, *(f"--{name}={value}" for name, value in JOB.items()), "--tp=4", "--json")
    document = json.loads(done.out)
    assert list(document) == ["schema", "factors", "before", "after", "notes"]
    assert document["schema"] == "gpuscale.calibrate-run/1"
    assert all(list(value) == ["value", "low", "high"] for value in document["factors"].values())
    assert all(value["low"] <= value["value"] <= value["high"] for value in document["factors"].values())
    assert abs(document["after"]["runs"][0]["error"]) < abs(document["before"]["runs"][0]["error"])


def test_the_same_logs_give_the_same_bytes(tmp_path):
    options = (*(f"--{name}={value}" for name, value in JOB.items()), "--tp=4", "-o", "-")
    one, other = (gpuscale("calibrate", "run", LOG, *options) for _ in range(2))
    assert one.out == other.out
    assert one.out == (DATA / "example_site.toml").read_text()


def test_timers_stand_beside_components(tmp_path):
    done = gpuscale("calibrate", "run", LOG, *(f"--{name}={value}" for name, value in JOB.items()), "--tp=4")
    assert "computation of microbatches" in done.out
    assert "optimizer " in done.out
    assert all(len(line) <= 100 for line in done.lines)


def test_one_plan_for_all_logs_or_one_for_each(tmp_path):
    made_plan = tmp_path / "plan.toml"
    gpuscale("plan", *(f"--{name}={value}" for name, value in JOB.items()), "--tp=4", "-o", made_plan)
    assert gpuscale("calibrate", "run", LOG, LOG, "--plan", made_plan, "-o", tmp_path / "a.toml").code == 0
    assert len(read_site(tmp_path / "a.toml").runs) == 2
    done = gpuscale("calibrate", "run", LOG, LOG, LOG, "--plan", made_plan, "--plan", made_plan)
    assert_one_message(done, "2 plans for 3 logs", "one for each")


def test_what_ran_is_read_from_launch_files(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --swiglu "
        "--seq-length 4096 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 "
        "--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer --bf16 "
        "--untie-embeddings-and-output-weights --normalization RMSNorm --disable-bias-linear "
        "--vocab-size 128256 --position-embedding-type rope --use-flash-attn\n"
    )
    done = gpuscale("calibrate", "run", LOG, "--from", script, "-o", tmp_path / "site.toml")
    assert (done.code, "wrote" in done.err) == (0, True), done.err
    (run,) = read_site(tmp_path / "site.toml").runs
    assert (run.layout["tp"], run.place["tp"]) == (4, 4)
    assert gpuscale("estimate", "--from", script, "--calibration", tmp_path / "site.toml").code == 0


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ((), "--model is missing", "a plan file, or --from PATH"),
        (("--model", "llama3-8b"), "--gpus is missing", "a plan file, or --from PATH"),
        (("--model", "llama3-8b", "--gpus", "16"), "the log has a batch of 128 sequences, the job 1,024", "--gbs 128"),
        (("--model", "llama3-8b", "--gpus", "32", "--gbs", "128"), "the log has 16 GPUs", "--gpus 16"),
        (("--model", "llama3-8b", "--gpus", "16", "--gbs", "128", "--seq", "8k"), "sequences of 4,096", "--seq 4096"),
        (("--model", "llama3-8b", "--gpus", "16", "--gbs", "128", "--tp", "3"), "", ""),
    ],
)
def test_a_log_that_contradicts_its_job_is_refused(options, message, hint):
    assert_one_message(gpuscale("calibrate", "run", LOG, *options), message, hint)


def test_the_python_function_and_the_command_write_the_same_file(tmp_path):
    found = gpuscale_package.calibrate_run([LOG], "llama3-8b", 16, {"tp": 4}, gbs=128, seq=4096)
    gpuscale_package.save_site(tmp_path / "site.toml", found)
    assert (tmp_path / "site.toml").read_text() == (DATA / "example_site.toml").read_text()


def test_tokens_per_second_stand_for_a_time_that_the_log_does_not_say():
    told = measured(None, tokens_per_s_per_gpu=8000.0)
    found = calibrate_runs([AskedRun(told, JOB, {"tp": 4})]).before.runs[0]
    assert found.measured_step_time_s == pytest.approx(128 * 4096 / 8000 / 16)
    with pytest.raises(InputError, match="make a step of"):
        calibrate_runs([AskedRun(measured(1.0, tokens_per_s_per_gpu=8000.0), JOB, {"tp": 4})])


def test_what_no_site_explains_is_said_and_counts_little():
    found = calibrate_runs([AskedRun(measured(20.0), JOB, {"tp": 4})])
    assert "more than a site explains; is this what ran?" in found.notes[-1]
    assert found.site.runs[0].noise > 0.5


def test_a_log_of_another_framework_is_noted():
    (note,) = calibrate_runs([AskedRun(measured(3.6), {**JOB, "framework": "torchtitan"}, {"zero": 3})]).notes
    assert "made.log is a log of Megatron-LM, predicted is torchtitan" in note


def test_memory_is_compared_as_the_log_counts_it():
    found = calibrate_runs([AskedRun(measured(3.6, 30 * GIB), JOB, {"tp": 4})]).before.runs[0]
    said = estimate(**JOB, layout={"tp": 4}).logged_memory_gib["reserved"]
    assert (found.measured_memory_gib, found.predicted_memory_gib) == (30.0, pytest.approx(said))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("gpuscale.calibration/1", "gpuscale.planfile/1", "this is a plan"),
        ("[factors.compute]", "[factors.speed]", "unknown factor 'speed'"),
        ("value = 0.", "value = nan #", "factors.compute.value"),
        ("noise = 0.03", "noise = -1.0", "runs.0.noise"),
        ('vendor = "NVIDIA"', 'maker = "NVIDIA"', "runs.0.like: missing or unknown: maker, vendor"),
        ("log_gpus = 1.20412", 'log_gpus = "many"', "runs.0.like.log_gpus"),
        ("log_gpus = 1.20412", "log_gpus = inf", "runs.0.like.log_gpus"),
        ("vpp = 1", "vpp = -1", "runs.0.place.vpp"),
        ("[[runs]]", "[[times]]", "unknown key 'times'"),
        ("[[runs]]", "[runs]", "1 to 200 runs"),
    ],
)
def test_a_site_file_with_a_mistake_is_refused_with_its_line(before, after, message, tmp_path):
    text = (DATA / "example_site.toml").read_text()
    assert before in text
    path = tmp_path / "site.toml"
    path.write_text(text.replace(before, after, 1))
    done = gpuscale("estimate", "--model", "llama3-8b", "--gpus", "16", "--calibration", path)
    assert_one_message(done, message, "")
    assert "site.toml" in done.err


def test_calibrated_returns_what_holds(site):
    job = build_job(read(JobOptions, JOB)).spec
    spec, text, notes = calibrated(job, read_site(site))
    assert spec.site is not None
    assert "made.log" in text
    assert notes == []


@pytest.mark.parametrize(("gpus", "levels"), [(1, ()), (8, ("node",)), (16, ("node", "leaf"))])
def test_a_job_depends_on_the_levels_that_it_crosses(gpus, levels):
    named = [
        one.removeprefix("bandwidth.") for one in names_for(job("llama3-8b", gpus)) if one.startswith("bandwidth.")
    ]
    assert tuple(named) == levels
