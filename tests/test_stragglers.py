"""Slow parts: extreme values against simulation, slow parts against the model evaluated anew."""

import json
import math

import numpy as np
import pytest
from command import assert_one_message, gpuscale

from gpuscale import read_subject, stragglers
from gpuscale.errors import InputError
from gpuscale.explain.traffic import traffic_of
from gpuscale.layouts.arrays import concatenate
from gpuscale.search.conditions import perturbed
from gpuscale.search.evaluation import evaluate
from gpuscale.steptime.step import gpu_spread, slowest_of, slowest_share
from gpuscale.training.stragglers import Slowed, go_back_n_share, loss_window

FLAGS = ("--model", "llama3-8b", "--gpus", 64, "--gbs", 256, "--tp", 2)


@pytest.fixture(scope="module")
def subject():
    return read_subject(options={"model": "llama3-70b", "gpus": 640, "gbs": 1280}, layout={"tp": 8, "pp": 4})


@pytest.mark.parametrize("count", [2, 8, 64, 1024, 16384])
def test_slowest_of_many_equals_simulation(count):
    draws = np.random.default_rng(1).standard_normal((max(200, 2_000_000 // count), count)).max(axis=1)
    assert slowest_share(count, 1.0) == pytest.approx(draws.mean(), abs=0.025 + 3 * draws.std() / math.sqrt(len(draws)))
    assert slowest_share(1, 1.0) == 0


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}, {"cp": 2}, {"tp": 2, "pp": 2, "cp": 2}])
def test_ranks_of_every_axis_are_waited_for(layout):
    rows = read_subject(options={"model": "llama3-8b", "gpus": 16, "gbs": 64}, layout=layout).rows
    assert slowest_of(rows, 0.01)[0] == slowest_share(16, 0.01)


def test_layouts_of_different_sizes_wait_for_their_own_gpus():
    sizes = (8, 64, 8, 1)
    rows = [read_subject(options={"model": "llama3.2-1b", "gpus": gpus}, layout={}).rows for gpus in sizes]
    found = slowest_of(concatenate(rows), 0.01)
    assert found.tolist() == [slowest_share(gpus, 0.01) for gpus in sizes]
    assert found[-1] == 0


def test_prediction_waits_for_the_slowest_of_all_gpus(subject):
    spread = gpu_spread(subject.spec.cluster.gpu)
    assert slowest_of(subject.rows, spread)[0] == slowest_share(640, spread)
    found = stragglers(subject)
    assert found.waiting_s == pytest.approx(subject.estimate.breakdown["waiting"])
    assert found.step_time_s == subject.estimate.plan.step_time_s
    predicted = next(one for one in found.variation if one.predicted)
    assert (predicted.count, predicted.spread, predicted.slower) == (640, spread, 0)


@pytest.mark.parametrize(("speed", "count"), [(0.9, 8), (0.95, 8), (0.9, 1), (0.5, 8), (1.0, 8)])
def test_slow_gpus_cost_what_a_simulation_says(subject, speed, count):
    """Each GPU takes its own time for its kernels; the step goes on when the slowest of all is done."""
    times = Slowed(subject)
    random = np.random.default_rng(2)
    usual = 1 + times.spread * random.standard_normal((2_000, 640 - count))
    slow = (1 + times.spread * random.standard_normal((2_000, count))) / speed
    alone_s = times.step_s - times.waiting_s
    others_s = (
        times.waiting_s / slowest_share(640, times.spread) * (usual.max(axis=1) - 1)
    )  # all of a microbatch, not its kernels alone
    simulated_s = alone_s + np.maximum(others_s, times.kernels_s * (slow.max(axis=1) - 1)).mean()
    assert times.with_slow_gpus(speed, count) == pytest.approx(simulated_s, rel=0.004)


def test_a_slow_rail_is_a_slow_network_at_worst(subject):
    found = {one.text: one for one in stragglers(subject, slow_rail=0.5).parts}
    (rail,) = found.values()
    network = evaluate(subject.rows, perturbed(subject.spec, {"network": 2.0})).step.step_time_s[0]
    assert subject.estimate.plan.step_time_s < rail.step_time_s <= network


def test_a_capped_gpu_is_one_of_a_capped_cluster(subject):
    (one,) = stragglers(subject, power_cap=400).parts
    capped = read_subject(
        options={"model": "llama3-70b", "gpus": 640, "gbs": 1280, "set": "gpu.power_w=400"}, layout={"tp": 8, "pp": 4}
    )
    assert subject.estimate.plan.step_time_s < one.step_time_s <= capped.estimate.plan.step_time_s
    (full,) = stragglers(subject, power_cap=700).parts
    assert full.slower == 0
    with pytest.raises(InputError, match="above the 700 W"):
        stragglers(subject, power_cap=800)


def test_slow_hosts_and_losses_are_the_model_evaluated_anew(subject):
    (host,) = stragglers(subject, slow_host=0.1).parts
    slow = evaluate(subject.rows, perturbed(subject.spec, {"host": 10.0})).step.step_time_s[0]
    assert host.step_time_s == slow > subject.estimate.plan.step_time_s
    (loss,) = stragglers(subject, packet_loss=0.01).parts
    window = 50e9 * 2 * 5.5e-6 / 4096  # there and back through the spine
    (rail,) = stragglers(subject, slow_rail=go_back_n_share(0.01, window)).parts
    assert loss.step_time_s == pytest.approx(rail.step_time_s)


def test_explain_says_the_same_of_slow_rails_and_losses(subject):
    faults = {one.name: one.step_time_s for one in traffic_of(subject).network_faults}
    found = [stragglers(subject, slow_rail=0.5), stragglers(subject, packet_loss=1e-3)]
    assert [one.parts[0].step_time_s for one in found] == pytest.approx([faults["slow_rail"], faults["loss"]])


def test_other_spreads_change_what_they_are_of(subject):
    cost, found = subject.estimate.breakdown, {(one.part, one.spread): one for one in stragglers(subject).variation}
    base = subject.estimate.plan.step_time_s
    network = math.fsum(cost[name] for name in cost if name.endswith("_comm"))
    links, hosts = found["link", 0.05], found["host", 0.05]
    assert links.step_time_s == pytest.approx(base + network * slowest_share(640, 0.05))
    assert hosts.step_time_s == pytest.approx(base + cost["launch"] * slowest_share(80, 0.05))
    assert found["gpu", 0.02].step_time_s == pytest.approx(
        base + cost["waiting"] * (0.02 / gpu_spread(subject.spec.cluster.gpu) - 1)
    )


def test_go_back_n_equals_simulation():
    """A sender with a window of W packets sends all of it again after each loss."""
    loss, window = 2e-3, 122.0
    lost = np.random.default_rng(4).random(400_000) < loss
    sent = len(lost) + lost.sum() * (window - 1)
    assert go_back_n_share(loss, window) == pytest.approx((~lost).sum() / sent, rel=0.02)
    assert go_back_n_share(0.0, window) == 1
    assert go_back_n_share(1e-3, window) < go_back_n_share(1e-4, window) < go_back_n_share(1e-4, 1.0) < 1


def test_what_is_slower_costs_more(subject):
    for option in ("slow_node", "slow_gpu", "slow_host", "slow_rail"):
        costs = [stragglers(subject, **{option: speed}).parts[0].slower for speed in (1.0, 0.8, 0.5, 0.2)]
        assert costs == sorted(costs)
        assert costs[0] == pytest.approx(0, abs=0.004)
    node, gpu = (stragglers(subject, **{option: 0.8}).parts[0].slower for option in ("slow_node", "slow_gpu"))
    assert gpu <= node < gpu + 0.02  # all wait for one as for eight


def test_advice_follows_from_what_is_cheaper(subject):
    found = stragglers(subject)
    assert found.replicas_left_out == 1
    assert found.without == pytest.approx(1 / 19)  # DP 20
    below = found.worth_leaving_out_below
    (worse,) = stragglers(subject, slow_node=below - 0.01).parts
    (better,) = stragglers(subject, slow_node=below + 0.01).parts
    assert (worse.advice, better.advice) == ("leave out", "keep")
    assert worse.slower > found.without > better.slower
    assert worse.pays_after_s == pytest.approx(420 * (1 + worse.slower) / worse.slower)
    assert stragglers(subject, slow_node=0.8, restart_time=60).parts[0].pays_after_s < worse.pays_after_s
    assert worse.gpu_hours_per_day == pytest.approx(24 * 640 * worse.slower / (1 + worse.slower))


def test_one_replica_can_only_be_replaced():
    one = read_subject(options={"model": "llama3-8b", "gpus": 8, "gbs": 64}, layout={"tp": 8})
    found = stragglers(one)
    assert found.without is None
    assert {part.advice for part in found.parts} <= {"replace", "keep"}
    assert "rail" not in {part.part for part in found.parts}
    with pytest.raises(InputError, match="one node"):
        stragglers(one, slow_rail=0.5)


def test_replicas_within_a_node_go_with_it():
    found = stragglers(read_subject(options={"model": "llama3-8b", "gpus": 64, "gbs": 256}, layout={"tp": 2}))
    assert found.replicas_left_out == 4  # 8 GPUs of 2 each
    moe = read_subject(options={"model": "mixtral-8x7b", "gpus": 64, "gbs": 256}, layout={"tp": 1, "pp": 4, "ep": 8})
    assert stragglers(moe).replicas_left_out == 8


def test_command_says_the_cost_first():
    done = gpuscale("stragglers", *FLAGS, "--slow-node", 0.9)
    assert done.code == 0, done.err
    assert "with one node at 0.9 x its speed a step takes" in " ".join(done.lines[:2])
    assert max(map(len, done.lines)) <= 100
    printed = json.loads(gpuscale("stragglers", *FLAGS, "--json").out)
    assert printed["schema"] == "gpuscale.stragglers/1"
    assert {one["part"] for one in printed["parts"]} == {"node", "gpu", "host", "rail", "link", "power"}
    assert_one_message(gpuscale("stragglers", *FLAGS, "--slow-node", 1.5), "out of range", "0.01 to 1")
    assert_one_message(gpuscale("stragglers", *FLAGS, "--power-cap", 5000), "above the 700 W", "")


def test_a_job_of_one_leaf_notices_a_lost_packet_no_later_than_across_it():
    """Packets sent until then: rate x the way there and back across the level that just holds the job."""
    spec = read_subject(None, {"model": "llama3-8b", "gpus": 256}, {}).spec
    leaf = next(level for level in spec.cluster.levels if level.gpus == 256)
    link = spec.network
    assert loss_window(spec) == pytest.approx(link.link_bytes_per_s * 2 * leaf.hop_latency_s / 4096)
