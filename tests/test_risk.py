"""`plan --risk 0.9`: spread of step times under other conditions, ranking by the worst decile, turning points."""

import json
import math
import re
from dataclasses import fields, replace
from statistics import NormalDist

import numpy as np
import pytest
from command import assert_one_message, gpuscale
from jobs import job, legal, sample

from gpuscale.calibration.factors import HOST_TIMES, with_network
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.layouts.pins import Pins
from gpuscale.planning import describe as gpuscale_describe
from gpuscale.planning import plans as gpuscale_plans
from gpuscale.planning.plans import plan
from gpuscale.presets.hardware import load_cluster
from gpuscale.search import conditions, ties
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import COMPARED_FAMILIES, COMPARED_LEADERS, search
from gpuscale.specs.cluster import CalibrationSpec
from gpuscale.specs.job import RuntimeSpec
from gpuscale.uncertainty import NEW_KIND, new_kinds

SMALL = ("llama3-8b", 16)
EXPERTS = ("mixtral-8x7b", 16)
QUIET = tuple(knob._replace(harm=0.0, help=0.0) for knob in conditions.KNOBS)


@pytest.fixture(scope="module")
def small():
    return plan(*SMALL, risk=0.9)


def spread_of(model, gpus, count=20):
    spec = job(model, gpus)
    rows = sample(legal(model, gpus), count)
    return spec, rows, conditions.spread(rows, spec, conditions.applicable(spec))


# -- samples --


@pytest.mark.parametrize("dimensions", [1, 4, 7])
def test_every_condition_takes_the_middles_of_equal_parts_of_its_range(dimensions):
    points = conditions.lattice(dimensions)
    assert points.shape == (conditions.SAMPLES, dimensions)
    middles = (np.arange(conditions.SAMPLES) + 0.5) / conditions.SAMPLES
    for column in points.T:
        assert np.sort(column) == pytest.approx(middles)
    assert np.abs(np.corrcoef(points.T) - np.eye(dimensions)).max() < 0.2 if dimensions > 1 else True


@pytest.mark.parametrize("knob", conditions.KNOBS, ids=lambda knob: knob.name)
def test_factors_grow_from_help_to_harm_and_are_bounded(knob):
    factors = [knob.factor(share) for share in (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999)]
    assert factors == sorted(factors)
    assert factors[4] == 1.0
    assert factors[6] > 1.0
    assert factors[0] == factors[1] == pytest.approx(math.exp(-conditions.EXTREME * knob.help))
    assert factors[-1] == factors[-2] <= min(math.exp(conditions.EXTREME * knob.harm) + 1e-12, knob.most)


def test_conditions_are_those_that_a_job_can_meet():
    names = {
        jobs: {knob.name for knob in conditions.applicable(job(*jobs))}
        for jobs in (("llama3.2-1b", 1), ("llama3-8b", 8), SMALL, EXPERTS)
    }
    assert names["llama3.2-1b", 1] == {"kernels", "host"}
    assert names[SMALL] - names["llama3-8b", 8] == {"network"}
    assert names[EXPERTS] - names[SMALL] == {"imbalance"}


# -- conditions --


def test_without_change_the_job_is_the_same():
    spec = job(*EXPERTS)
    assert conditions.perturbed(spec, {}) == spec
    assert conditions.perturbed(spec, {knob.name: 1.0 for knob in conditions.KNOBS}) == spec


def test_a_condition_changes_what_it_says():
    spec = job(*EXPERTS)
    changed = conditions.perturbed(
        spec, {"network": 2.0, "node_links": 1.25, "latency": 1.5, "kernels": 1.6, "host": 3.0, "imbalance": 1.4}
    )
    node, leaf = (changed.cluster.levels[index] for index in (0, 1))
    for level, was, factor in ((node, spec.cluster.levels[0], 1.25), (leaf, spec.cluster.levels[1], 2.0)):
        assert level.egress_bytes_per_s == pytest.approx(was.egress_bytes_per_s / factor)
        assert level.hop_latency_s == pytest.approx(was.hop_latency_s * 1.5)
    assert changed.moe_imbalance == pytest.approx(spec.moe_imbalance * 1.4)
    assert changed.runtime.host_layer_s == pytest.approx(spec.runtime.host_layer_s * 3)
    kernels, were = changed.cluster.gpu.kernels, spec.cluster.gpu.kernels
    assert kernels.hbm_fraction == pytest.approx(were.hbm_fraction / 1.6)
    assert kernels.gemm_fraction["bf16"] == pytest.approx(were.gemm_fraction["bf16"] / 1.6)
    assert {item.name for item in fields(RuntimeSpec) if item.name.startswith("host_")} == set(HOST_TIMES)


def test_measured_collectives_move_with_the_network():
    spec = job("llama3-8b", 32)
    size = 2.0**30
    times = {gpus: float(collective_time_s(spec.cluster, "allreduce", size, gpus)) for gpus in (8, 32)}
    curves = tuple(
        CalibrationSpec("allreduce", spec.cluster.level_of_group(gpus, 1).name, gpus, 1, (size,), (1.3 * time,), "test")
        for gpus, time in times.items()
    )
    measured = replace(spec, cluster=replace(spec.cluster, calibration=curves))
    slow = conditions.perturbed(measured, {"network": 2.0}).cluster
    plain = conditions.perturbed(spec, {"network": 2.0}).cluster
    for gpus in times:
        expected = 1.3 * float(collective_time_s(plain, "allreduce", size, gpus))
        assert float(collective_time_s(slow, "allreduce", size, gpus)) == pytest.approx(expected)
    assert float(collective_time_s(plain, "allreduce", size, 32)) > 1.2 * times[32]
    assert float(collective_time_s(plain, "allreduce", size, 8)) == pytest.approx(times[8])


def test_a_slow_gpu_costs_its_kernels_and_no_more():
    spec, rows = job(*SMALL), sample(legal(*SMALL), 50)
    alone = conditions.perturbed_s(rows, spec, {})
    step = evaluate(rows, spec).step
    assert (alone == step.step_time_s).all()
    slow = conditions.perturbed_s(rows, spec, {"slow_gpu": 1.1}) - alone
    assert (slow > 0).all()
    assert (slow < 0.1 * step.step_time_s).all()
    bubble = step.components[-1] / step.step_time_s
    assert (slow <= 0.1 * step.step_time_s * (1 - bubble) * (1 + 1e-9)).all()


# -- spread --


@pytest.mark.parametrize("jobs", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_deciles_are_in_order_and_worse_conditions_never_help(jobs):
    spec, rows, found = spread_of(*jobs)
    assert found.times_s.shape == (conditions.SAMPLES, len(rows))
    assert (found.p10_s <= found.median_s).all()
    assert (found.median_s <= found.p90_s).all()
    assert (found.p10_s < found.p90_s).all()
    assert (found.losses >= -1e-12).all()
    assert ((found.times_s <= found.p90_s).sum(axis=0) >= 0.9 * conditions.SAMPLES).all()
    assert ((found.fits >= 0) & (found.fits <= 1)).all()
    used = evaluate(rows, spec).memory.peak_bytes
    assert (np.diff(found.fits[np.argsort(used)]) <= 0).all()


def test_a_kind_that_was_run_on_fewer_gpus_adds_its_own_error_in_squares():
    """No dense model was run with ZeRO-2, and none with ZeRO-3 on more than 128 GPUs."""
    spec, rows = job("llama3-70b", 256), sample(legal("llama3-70b", 256), 60)
    new = new_kinds(spec, rows.zero, rows.pp)
    assert (new[rows.zero == 2]).all()
    assert 0 < new.sum() < len(rows)
    for risk in (0.5, 0.8, 0.9):
        found = conditions.spread(rows, spec, conditions.applicable(spec), risk)
        plain_s = np.sort(found.times_s, axis=0)[int(risk * conditions.SAMPLES)]
        assert (found.at_risk_s[~new] == plain_s[~new]).all()
        own, known = NormalDist().inv_cdf(risk) * NEW_KIND, np.log(plain_s / found.median_s)
        assert np.log(found.at_risk_s / found.median_s)[new] == pytest.approx(np.hypot(known, own)[new])


def test_a_plan_alone_has_the_spread_that_it_has_among_others():
    spec, rows, found = spread_of(*SMALL, count=8)
    alone = conditions.spread(rows.take(np.array([3])), spec, conditions.applicable(spec))
    assert alone.times_s[:, 0].tolist() == found.times_s[:, 3].tolist()
    assert alone.losses[:, 0].tolist() == found.losses[:, 3].tolist()


@pytest.mark.parametrize("jobs", [pytest.param(SMALL, marks=pytest.mark.full), EXPERTS], ids=["dense", "experts"])
def test_without_uncertainty_the_ranking_is_the_plain_one(jobs, monkeypatch):
    plain = plan(*jobs, top=25)
    monkeypatch.setattr(conditions, "KNOBS", QUIET)
    monkeypatch.setattr(conditions, "SAMPLES", 11)  # all the same, as nothing changes
    monkeypatch.setattr(conditions, "NEW_KIND", 0.0)
    quiet = plan(*jobs, top=25, risk=0.9)
    assert quiet.plans == plain.plans
    assert quiet.choice.standings == plain.choice.standings
    assert quiet.choice.reason == plain.choice.reason
    for one, row in zip(quiet.risk.plans, quiet.plans, strict=True):
        assert one.p10_s == one.median_s == one.p90_s == row.step_time_s
        assert set(one.losses.values()) == {0.0}


# -- answer --


def test_plans_are_ranked_by_their_worst_decile(small):
    worst = [one.p90_s for one in small.risk.plans]
    allowed = min(worst) * (1 + ties.SIMPLICITY_MAY_COST)
    near = [value for value in worst if value <= allowed]
    assert worst[: len(near)] == near
    assert worst[len(near) :] == sorted(worst[len(near) :])
    assert [one.rank for one in small.risk.plans] == [row.rank for row in small.plans] == list(range(1, 11))
    assert small.risk.samples == conditions.SAMPLES
    assert 10 <= small.risk.scored <= COMPARED_LEADERS + COMPARED_FAMILIES
    names = [one.name for one in small.risk.conditions]
    for one in small.risk.plans:
        assert list(one.losses) == names
        beyond = {name: one.losses[name] - min(p.losses[name] for p in small.risk.plans) for name in names}
        assert beyond[one.most_hurt_by] == max(beyond.values())


UNEVEN = ("mixtral-8x7b", 64, "dgx-h100-superpod")
"""A job whose fastest plan suffers more when tokens are uneven than another."""


def test_what_is_first_by_risk_alone_says_by_how_much():
    found = plan(*UNEVEN[:2], cluster=UNEVEN[2], risk=0.9)
    first, risks = found.plans[0], found.risk.plans
    assert first.step_time_s > found.choice.fastest.step_time_s
    own, other = re.fullmatch(r"90% of cases stay within (\S+) s, not (\S+) s", found.choice.reason).groups()
    assert float(own) == pytest.approx(risks[0].at_risk_s, rel=2e-3)
    assert float(own) < float(other)
    assert found.risk.predicted.step_time_s == plan(*UNEVEN[:2], cluster=UNEVEN[2], top=1).plans[0].step_time_s


def test_what_is_shorter_in_no_shown_digit_is_said_in_per_cent(monkeypatch):
    monkeypatch.setattr(gpuscale_describe, "format_seconds", lambda _: "6 s")
    reason = plan(*UNEVEN[:2], cluster=UNEVEN[2], risk=0.9, top=1).choice.reason
    assert re.fullmatch(r"what 90% of cases stay within is shorter, by \d\.\d%", reason)


@pytest.mark.full
def test_the_same_question_has_the_same_answer(small):
    again = plan(*SMALL, risk=0.9)
    assert (again.plans, again.risk, again.choice) == (small.plans, small.risk, small.choice)


@pytest.fixture(scope="module")
def experts():
    return plan(*EXPERTS, risk=0.9)


def test_an_uneven_router_takes_the_choice_from_wide_expert_parallelism(experts):
    plain, safe = plan(*EXPERTS), experts
    assert safe.risk.predicted.step_time_s == plain.plans[0].step_time_s
    assert safe.plans[0].ep <= plain.plans[0].ep
    loss = {one.rank: one.losses["imbalance"] for one in safe.risk.plans}
    widest = max(safe.plans, key=lambda row: row.ep)
    narrowest = min(safe.plans, key=lambda row: row.ep)
    assert widest.ep > narrowest.ep
    assert loss[widest.rank] > loss[narrowest.rank]


@pytest.mark.parametrize(("model", "gpus"), [("llama3-70b", 256), ("mixtral-8x7b", 64)])
def test_at_a_turning_point_another_family_is_ahead_and_before_it_none_is(model, gpus):
    spec = job(model, gpus)
    rows = search(spec, Pins()).families.rows
    family = np.arange(len(rows))
    first = int(evaluate(rows, spec).step.step_time_s.argmin())
    found = conditions.turning_points(rows, spec, family, first, 0.01)
    assert any(row is not None for _, _, row in found)
    for knob, factor, row in found:
        times = conditions.perturbed_s(rows, spec, {knob.name: factor})
        if row is None:
            assert factor in conditions.BANDS[knob.name]
            assert times[first] <= times.min() * 1.01
            continue
        assert row == times.argmin() != first
        assert times[first] > times.min() * 1.01
        ends = [end for end in conditions.BANDS[knob.name] if (end > 1) == (factor > 1)]
        nearer = factor * math.exp(-math.log(ends[0]) / 2 / 2**conditions.BISECTIONS)
        times = conditions.perturbed_s(rows, spec, {knob.name: nearer})
        assert times[first] <= times.min() * 1.01 * (1 + 1e-9)


# -- terminal --


@pytest.mark.parametrize("jobs", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_output_has_the_spread_and_where_the_choice_changes(jobs, small, experts, monkeypatch):
    monkeypatch.setattr(gpuscale_plans, "plan", lambda *_, **__: small if jobs == SMALL else experts)
    done = gpuscale("plan", "--model", jobs[0], "--gpus", str(jobs[1]), "--risk", "0.9")
    assert (done.code, done.err) == (0, "")
    assert all(len(line) <= 100 for line in done.lines)
    assert not any(line.endswith(" ") for line in done.lines if "─" not in line)
    header = next(line for line in done.lines if " p10 s" in line)
    for name in ("median", "at 90%", "fits%", "network", "links", "latency", "kernels", "host", "slow GPU"):
        assert name in header
    assert ("experts" in header) == (jobs == EXPERTS)
    text = " ".join(done.out.split())
    assert "apart where " in text
    assert "holds for " in text
    assert "x the speed of kernels" in text


def test_json_carries_the_answer(small, monkeypatch):
    monkeypatch.setattr(gpuscale_plans, "plan", lambda *_, **__: small)
    done = gpuscale("plan", "--model", SMALL[0], "--gpus", str(SMALL[1]), "--risk", "0.9", "--json")
    answer = json.loads(done.out)
    assert [one["p90_s"] for one in answer["risk"]["plans"]] == [one.p90_s for one in small.risk.plans]
    assert {turn["condition"] for turn in answer["risk"]["turns"]} == {"network", "kernels"}
    assert answer["choice"]["rule"].startswith("by the step time that 90% of cases stay within")


def test_a_saved_plan_is_the_one_that_is_shown(tmp_path, small, monkeypatch):
    monkeypatch.setattr(gpuscale_plans, "plan", lambda *_, **__: small)
    path = tmp_path / "plan.toml"
    gpuscale("plan", "--model", SMALL[0], "--gpus", str(SMALL[1]), "--risk", "0.9", "-o", path, "--rank", "4")
    again = json.loads(gpuscale("estimate", path, "--json").out)["plan"]
    assert again["step_time_s"] == small.plans[3].step_time_s


def test_a_tie_and_its_reason_are_told(tmp_path):
    job = ("--model", "deepseek-v3", "--gpus", "256", "--cluster", "gb200-nvl72")
    done = gpuscale("plan", *job, "--framework", "megatron-bridge-perf", "--verbose")
    text = " ".join(done.out.split())
    assert re.search(r"takes [\d.]+% longer than TP.* on paper \(a tie within the ", text)
    assert re.search(r"first because it is surer to fit \(\d+% likely, not \d+%\)", text)
    assert "order first what is of a kind that was measured on as many GPUs" in text
    assert any(line.startswith("1= ") for line in done.lines)


def test_only_times_have_a_risk():
    done = gpuscale("plan", "--model", "llama3-8b", "--gpus", "16", "--risk", "0.9", "--objective", "memory")
    assert_one_message(done, "it ranks by step time, not by memory", "leave out --objective")
    with pytest.raises(InputError, match="is not a number"):
        plan(*SMALL, risk="maybe")


@pytest.mark.parametrize("name", ["dgx-h100-superpod", "leonardo", "mi250x"])
def test_on_a_network_of_half_the_speed_an_exchange_takes_twice_as_long(name):
    """Global links of a dragonfly among them."""
    cluster = load_cluster(name)
    slow = with_network(cluster, [2.0] * len(cluster.levels))
    usual_s, slow_s = (float(collective_time_s(one, "alltoall", 1e9, one.gpus, ideal=True)) for one in (cluster, slow))
    assert slow_s == pytest.approx(2 * usual_s)
