"""Failures, checkpoints and goodput: closed forms against simulations of another kind, published rates and results."""

import json
import math
import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from command import assert_one_message, gpuscale

from gpuscale import all_studies, goodput, load_study, read_subject
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.steptime.offload import host_link_bytes_per_s
from gpuscale.training.checkpoints import (
    Checkpoint,
    best_interval_s,
    checkpoint_of,
    downtime_s,
    worked_share,
    young_interval_s,
)
from gpuscale.training.failures import failure_rate, rate_spread
from gpuscale.training.goodput import Conditions, erlang_loss, expected, simulated, worthwhile_spares

LLAMA = {"model": "llama3.1-405b", "gpus": 16384, "gbs": 2048, "seq": 8192}
LLAMA_LAYOUT = {"tp": 8, "pp": 16, "vpp": 8, "cp": 2}
SMALL = {"model": "llama3-8b", "gpus": 64, "gbs": 256}
FLAGS = ("--model", "llama3-8b", "--gpus", 64, "--gbs", 256)


@pytest.fixture(scope="module")
def llama():
    """Llama 3.1 405B at 8k on as many GPUs as it was trained on (arXiv 2407.21783, table 4), by the plan found best."""
    return read_subject(options=LLAMA, layout=LLAMA_LAYOUT)


@pytest.fixture(scope="module")
def small():
    return read_subject(options=SMALL)


def conditions(**changed):
    """A job that fails every three hours."""
    one = Checkpoint("sync", 5.7e12, 3.5e8, blocking_s=60.0, commit_s=0.0, storage_s=60.0)
    usual = {"mtbf_s": 11_000.0, "takes_a_node": 0.8, "detection_s": 120.0, "restart_s": 480.0, "repair_s": 86_400.0}
    return Conditions(**(usual | {"spares": 1000, "checkpoint": one} | changed))


def brute_force(tau, blocking, commit, mtbf, down, runs=400_000):
    """Share of the time that is worked and saved, counted over many times between failures."""
    times = np.random.default_rng(3).exponential(mtbf, runs)
    saved = np.maximum(np.floor((times - commit) / (tau + blocking)), 0)
    return float((saved * tau).sum() / (times + down).sum())


def brute_force_optimum(blocking, commit, mtbf, down):
    """The interval at which `brute_force` is largest: the top of a parabola through its values around there."""
    around = math.sqrt(2 * blocking * mtbf) * np.exp(np.linspace(-0.5, 0.5, 21))
    for _ in range(2):
        values = [brute_force(tau, blocking, commit, mtbf, down) for tau in around]
        bend, slope, _ = np.polyfit(np.log(around), values, 2)
        top = math.exp(-slope / (2 * bend))
        around = top * np.exp(np.linspace(-0.4, 0.4, 21))
    return top


def daly_interval_s(blocking, mtbf):
    """The higher-order estimate of the optimum (Daly 2006, equation 37)."""
    if blocking >= 2 * mtbf:
        return mtbf
    half = blocking / (2 * mtbf)
    return math.sqrt(2 * blocking * mtbf) * (1 + math.sqrt(half) / 3 + half / 9) - blocking


def exact_interval_s(blocking, mtbf):
    """Where `worked_share` is largest: (1 - x) exp(x) = exp(-delta / M), x = tau / M; neither w nor D moves it."""
    low, high, target = 0.0, 1.0, -blocking / mtbf
    for _ in range(200):
        middle = (low + high) / 2
        if middle < 1 and math.log1p(-middle) + middle > target:
            low = middle
        else:
            high = middle
    return low * mtbf


@pytest.mark.parametrize(
    ("blocking", "commit", "mtbf"),
    [(2, 5, 11_000), (6.4, 0, 11_000), (60, 0, 11_000), (300, 0, 10_000), (30, 200, 2_000)],
)
def test_best_interval_equals_brute_force(blocking, commit, mtbf):
    found = exact_interval_s(blocking, mtbf)
    assert found == pytest.approx(brute_force_optimum(blocking, commit, mtbf, 600), rel=0.02)
    searched = best_interval_s(lambda tau: worked_share(tau, blocking, commit, mtbf, 600), 1.0, 2 * mtbf)
    assert searched == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize(("tau", "commit"), [(200, 0), (200, 150), (2_000, 0), (20_000, 500)])
def test_worked_share_equals_brute_force(tau, commit):
    closed = worked_share(tau, 20, commit, 11_000, 600)
    assert closed == pytest.approx(brute_force(tau, 20, commit, 11_000, 600), rel=0.005)


def test_worked_share_is_dalys_at_its_limits():
    """Daly 2006, equation 20: T = M exp(R / M) (exp((tau + delta) / M) - 1) Ts / tau."""
    mtbf, restart, tau, delta = 10_000.0, 500.0, 1_500.0, 60.0
    daly = tau / (mtbf * math.exp(restart / mtbf) * (math.exp((tau + delta) / mtbf) - 1))
    assert worked_share(tau, delta, 0.0, mtbf, downtime_s(mtbf, 0.0, restart)) == pytest.approx(daly, rel=1e-12)
    first_order = 1 - delta / tau - (tau / 2 + restart) / (mtbf * 1e4)
    assert worked_share(tau, delta, 0, mtbf * 1e4, downtime_s(mtbf * 1e4, 0, restart)) == pytest.approx(
        first_order, abs=2e-3
    )


@pytest.mark.parametrize("blocking", [0.01, 1.0, 60.0])
def test_young_and_daly_approach_the_exact_interval(blocking):
    mtbf, exact = 1e5, exact_interval_s(blocking, 1e5)
    assert daly_interval_s(blocking, mtbf) == pytest.approx(exact, rel=1e-4)
    assert young_interval_s(blocking, mtbf) == pytest.approx(exact, rel=0.5 * math.sqrt(blocking / mtbf) + 1e-4)
    assert exact_interval_s(0.0, mtbf) == pytest.approx(0.0, abs=1e-6)


def test_restarts_that_fail_too_are_counted():
    generator, total, count = np.random.default_rng(5), 0.0, 20_000
    for _ in range(count):
        while True:
            total += 100.0
            until = generator.exponential(1_000.0)
            total += min(until, 700.0)
            if until > 700.0:
                break
    assert downtime_s(1_000.0, 100.0, 700.0) == pytest.approx(total / count, rel=0.02)


@pytest.mark.parametrize(
    ("servers", "offered", "loss"), [(1, 1.0, 0.5), (5, 3.0, 0.110054), (10, 5.0, 0.018385), (20, 12.0, 0.009797)]
)
def test_erlang_loss_is_that_of_the_tables(servers, offered, loss):
    assert erlang_loss(servers, offered) == pytest.approx(loss, rel=2e-3)


MEMORY = Checkpoint("memory", 5.7e12, 3.5e8, blocking_s=1.0, commit_s=0.0, storage_s=90.0, survival=0.25)
CASES = {
    "sync": (conditions(), 1_100.0),
    "async": (conditions(checkpoint=replace(MEMORY, kind="async", commit_s=90.0, survival=1.0)), 300.0),
    "memory": (conditions(checkpoint=MEMORY), 150.0),
    "frequent failures": (conditions(mtbf_s=1_500.0), 420.0),
    "one spare": (conditions(spares=1, mtbf_s=50_000.0), 2_400.0),
    "no spare": (conditions(spares=0, mtbf_s=200_000.0), 4_800.0),
    "eight spares": (conditions(spares=8), 1_100.0),
    "elastic": (conditions(spares=2, replicas=128, nodes_per_replica=16.0), 1_100.0),
    "elastic, small replicas": (conditions(spares=0, replicas=64, nodes_per_replica=0.5), 1_100.0),
}


@pytest.mark.parametrize("case", CASES)
def test_monte_carlo_agrees_with_closed_forms(case):
    what, interval_s = CASES[case]
    shares = expected(what, interval_s)
    assert math.fsum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    assert all(share >= 0 for share in shares.values())
    runs = simulated(what, interval_s, 400 * what.mtbf_s)
    tolerance = 4 * float(runs.std()) / math.sqrt(len(runs)) + 0.004
    assert float(runs.mean()) == pytest.approx(shares["effective"], abs=tolerance)


def test_monte_carlo_is_the_same_everywhere():
    runs = simulated(*CASES["eight spares"], 1e6, rate_spread=0.6, recovery_spread=0.5, runs=50)
    again = simulated(*CASES["eight spares"], 1e6, rate_spread=0.6, recovery_spread=0.5, runs=50)
    assert runs.tolist() == again.tolist()
    assert math.fsum(runs.tolist()) == pytest.approx(FROZEN, rel=1e-13)


FROZEN = 35.94771164254956


@pytest.mark.parametrize(("nodes", "mtbf_s"), [(1, 2e7), (8, 2e6), (128, 1.8e5), (2048, 11_000.0), (12_500, 1_800.0)])
def test_spares_save_more_than_they_cost(nodes, mtbf_s):
    """Node-hours for the same work are least with them."""
    what = conditions(mtbf_s=mtbf_s)
    costs = [(nodes + spares) / (1 - erlang_loss(spares + 1, what.in_repair)) for spares in range(150)]
    assert worthwhile_spares(what, nodes) == costs.index(min(costs))


def test_studies_say_what_their_sources_say():
    llama3 = load_study("llama3")
    assert llama3.count == 419
    assert llama3.mtbf_h == pytest.approx(3.1, abs=0.05)  # "one failure every three hours"
    hardware = failure_rate("llama3").takes_a_node
    assert hardware == pytest.approx(0.78, abs=0.02)  # section 3.3.4: about 78 % hardware, confirmed or suspected
    for study in all_studies():
        assert study.source
        assert study.date
        assert 1e-4 < study.per_gpu_day < 3e-3
    assert next(iter(all_studies())).name == "llama3"


@pytest.mark.parametrize(("gpus", "hours"), [(1024, 28.8), (16384, 1.8), (131072, 0.23)])
def test_rsc_1_fails_as_its_study_projects(gpus, hours):
    """Kokolis et al. 2024 (arXiv 2410.21680): 16,384 GPUs 1.8 h and 131,072 GPUs 0.23 h; of 1,024 by its rate."""
    assert failure_rate("rsc-1").mtbf_s(gpus) / 3600 == pytest.approx(hours, rel=0.03)


@pytest.mark.parametrize("checkpoint", ["sync", "async", "memory", "peer"])
def test_llama_3_trains_over_90_percent_of_its_time(llama, checkpoint):
    """Section 3.3.4 of arXiv 2407.21783: 419 interruptions in 54 days on 16,384 GPUs, storage of 2 TB/s: over 90 %."""
    found = goodput(llama, run_days=54, failure_rate="llama3", checkpoint_bandwidth=2000.0, checkpoint=checkpoint)
    assert 0.90 < found.effective_ratio < 0.97
    assert found.effective_ratio_low < found.effective_ratio < found.effective_ratio_high
    assert found.interruptions_per_day * 54 == pytest.approx(419)
    assert math.fsum((found.effective_ratio, *found.lost.values())) == pytest.approx(1.0, abs=1e-12)


def test_checkpoint_holds_weights_and_optimizer(llama):
    found = goodput(llama)
    assert found.checkpoint_bytes == pytest.approx(405.85e9 * 14, rel=0.001)  # bf16 weights, fp32 master and moments
    assert 1e6 < found.checkpoint_bytes_per_gpu < 4e9  # "1 MB to 4 GB per GPU", section 3.3.1
    assert found.checkpoint_bytes_per_gpu > found.checkpoint_bytes / 16384
    assert found.checkpoint_write_s == pytest.approx(found.checkpoint_bytes / (20e9 / 256 * 16384))


def test_taken_interval_is_the_best_of_the_curve(llama):
    for kind in ("sync", "async", "memory", "peer"):
        found = goodput(llama, checkpoint=kind)
        best = max(point.effective_ratio for point in found.curve)
        assert found.effective_ratio == pytest.approx(best, abs=2e-4)
        assert found.checkpoint_interval_s == pytest.approx(found.checkpoint_interval_steps * found.step_time_s)


def test_ratio_moves_the_right_way(small):
    def ratio(**changed):
        return goodput(small, **({"spares": 2} | changed)).effective_ratio

    assert ratio(failure_rate=5) < ratio() < ratio(failure_rate=0.01)
    assert ratio(checkpoint="sync", checkpoint_bandwidth=0.5) < ratio(checkpoint="sync") < ratio()
    assert ratio(restart_time=3600) < ratio() < ratio(restart_time=10)
    assert ratio(detection_time=3600) < ratio() < ratio(detection_time=0)
    assert ratio(spares=0) < ratio(spares=1) < ratio()
    assert ratio(checkpoint_interval=30) < ratio() > ratio(checkpoint_interval=30_000)
    assert ratio(spares=0) < ratio(spares=0, repair_time=2)
    assert ratio(spares=0) < ratio(spares=0, elastic=True)


def test_a_stated_rate_leaves_chance_alone(small):
    stated = {"detection_time": 60, "restart_time": 300, "failure_rate": 0.5, "spares": 4}
    sure, usual = goodput(small, **stated), goodput(small)
    assert sure.effective_ratio_high - sure.effective_ratio_low < usual.effective_ratio_high - usual.effective_ratio_low
    given = {name for name, rate in sure.assumptions.items() if rate.source == "given"}
    assert given == {"failures_per_gpu_day", "detection_time_s", "restart_time_s"}
    assert all(rate.date for name, rate in sure.assumptions.items() if name not in given)


def test_what_cannot_be_is_refused(small):
    with pytest.raises(NoAnswerError, match="makes no progress"):
        goodput(small, failure_rate=1e6)
    with pytest.raises(InputError, match="unknown study"):
        goodput(small, failure_rate="llama9")
    one = read_subject(options={"model": "llama3-8b", "gpus": 8, "gbs": 64}, layout={"tp": 8})
    with pytest.raises(InputError, match="one replica only"):
        goodput(one, elastic=True)
    with pytest.raises(InputError, match="no other node"):
        goodput(one, checkpoint="peer")


def test_a_study_of_your_own(tmp_path, small):
    text = 'title = "ours"\naccelerator = "H100"\ngpus = 512\ndays = 30\nsource = "our logs"\ndate = "2026-10"\n'
    path = tmp_path / "ours.toml"
    path.write_text(text + "[interruptions.gpu]\nXID = 12\n[interruptions.software]\nbug = 4\n")
    found = goodput(small, failure_rate=str(path))
    assert found.assumptions["failures_per_gpu_day"].value == pytest.approx(16 / 512 / 30)
    path.write_text(text + "[interruptions.gpus]\nXID = 12\n")
    with pytest.raises(InputError, match=r"ours\.toml"):
        load_study(str(path))


def test_command_says_the_share_first():
    done = gpuscale("goodput", *FLAGS)
    assert done.code == 0, done.err
    assert "goodput" in " ".join(done.lines[:2])
    assert max(map(len, done.lines)) <= 100
    assert "minutes between checkpoints" in done.out
    printed = json.loads(gpuscale("goodput", *FLAGS, "--json").out)
    assert printed["schema"] == "gpuscale.goodput/1"
    assert {"effective_ratio", "effective_ratio_low", "effective_ratio_high", "checkpoint_interval_s"} <= set(printed)
    assert all({"value", "source", "date"} == set(rate) for rate in printed["assumptions"].values())
    assert printed == json.loads(gpuscale("goodput", *FLAGS, "--json").out)


def test_the_first_line_says_how_many_nodes_stand_by():
    for spares, said in ((0, "without spare nodes"), (1, "with 1 spare node"), (2, "with 2 spare nodes")):
        assert f"{said}: " in gpuscale("goodput", *FLAGS, "--spares", spares).out.partition(" of the time")[0]


def test_command_takes_options_and_refuses_others():
    options = ("--failure-rate", "rsc-2", "--checkpoint", "sync", "--checkpoint-bandwidth", 5, "--spares", 2)
    done = gpuscale("goodput", *FLAGS, *options, "--elastic", "--days", 10, "--restart-time", 100)
    assert done.code == 0, done.err
    assert "replicas missing" in done.out
    assert_one_message(gpuscale("goodput", *FLAGS, "--failure-rate", "x"), "unknown study 'x'", "llama3")
    assert_one_message(gpuscale("goodput", *FLAGS, "--checkpoint", "tape"), "unknown value 'tape'", "sync, async")
    assert_one_message(
        gpuscale("goodput", *FLAGS, "--failure-rate", 1e6), "makes no progress", "--failure-rate", code=1
    )


@pytest.mark.parametrize(
    ("gpus", "layout", "published"),
    [
        (12288, {"tp": 8, "pp": 8}, 0.90),  # MegaScale (arXiv 2402.15627, section 6.3): over 90 %
        (9600, {"tp": 8, "pp": 8}, 0.97),  # ByteRobust (arXiv 2509.16293): 97 % over three months
    ],
)
def test_published_ratios_are_within_the_interval(gpus, layout, published):
    asked = {"model": "gpt3-175b", "gpus": gpus, "gbs": gpus // 64 * 16}
    found = goodput(read_subject(options=asked, layout=layout), run_days=90)
    assert found.effective_ratio_low < published < found.effective_ratio_high
    assert found.effective_ratio == pytest.approx(published, abs=0.06)


def test_a_failure_loses_half_an_interval(small):
    """BLOOM (arXiv 2211.05100): a checkpoint every three hours, 1.5 hours lost by a crash."""
    found = goodput(small, failure_rate="bloom", checkpoint_interval=10_800, checkpoint="sync", spares=9)
    crashes_per_s = (1 - found.lost["detection"] - found.lost["restart"]) / found.mtbf_s
    assert found.lost["lost_work"] / crashes_per_s == pytest.approx(5_400, rel=0.02)


def test_copies_take_the_links_that_they_cross(small):
    found, job = goodput(small), small.spec
    assert found.checkpoint_blocking_s - 2 == pytest.approx(found.checkpoint_bytes_per_gpu / host_link_bytes_per_s(job))
    assert goodput(small, checkpoint="memory").checkpoint_blocking_s == pytest.approx(found.checkpoint_blocking_s - 2)
    peer = checkpoint_of("peer", small.rows, job, 1e9, 0.99)
    network = job.cluster.levels[1]
    assert peer.commit_s == pytest.approx(peer.bytes_per_gpu / network.link_bytes_per_s / network.link_efficiency)
    assert (peer.survival, peer.storage_s) == (0.99, pytest.approx(peer.bytes / 1e9))


def test_a_restart_reads_the_checkpoint(small):
    fast = {"restart_time": 0, "detection_time": 0, "spares": 9, "checkpoint_bandwidth": 0.5}
    found = goodput(small, checkpoint="sync", **fast)
    assert found.lost["restart"] == pytest.approx(found.checkpoint_write_s / found.mtbf_s, rel=0.01)
    peer = goodput(small, checkpoint="peer", **fast)
    read_s = 0.99 * peer.checkpoint_blocking_s + 0.01 * peer.checkpoint_write_s
    assert peer.lost["restart"] == pytest.approx(read_s / peer.mtbf_s, rel=0.01)


def test_the_interval_is_that_of_rates_one_in_ten_machines_exceeds(llama):
    stated = {"detection_time": 120, "restart_time": 420, "spares": 100}
    found = goodput(llama, run_days=200, **stated)
    usual, at = load_study("llama3").per_gpu_day * 1000, {"checkpoint_interval": found.checkpoint_interval_s}
    for factor, end in ((1, found.effective_ratio_low), (-1, found.effective_ratio_high)):
        rate = usual * math.exp(factor * 1.2816 * rate_spread())
        assert goodput(llama, failure_rate=rate, **stated, **at).effective_ratio == pytest.approx(end, abs=0.004)
    assert failure_rate().spread == rate_spread() == pytest.approx(0.646, abs=0.001)
    assert (failure_rate("llama3").spread, failure_rate(0.5).spread) == (419**-0.5, 0)


def test_the_first_line_says_which_spare_nodes_the_share_counts_on():
    """At twice the failures more of the time may count, as more nodes stand by: then the headline says so."""
    job = ("--model", "llama3-8b", "--gpus", "64")
    shares, counts = [], []
    for rate in (2, 5, 10, 20):
        said = " ".join(gpuscale("goodput", *job, "--failure-rate", rate).lines[:2])
        found = re.match(r"llama3-8b on 64 GPUs with(?:out spare nodes| (\d+) spare nodes?): goodput ([\d.]+)%", said)
        counts.append(int(found[1] or 0))
        shares.append(float(found[2]))
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]
    assert shares != sorted(shares, reverse=True), "spares explain what looks like a contradiction"
    spent = gpuscale("train-time", *job, "--tokens", "1T", "--failure-rate", 20).lines[0]
    assert spent.startswith(f"1T tokens on 64 GPUs with {counts[-1]} spare nodes: ")


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_with_as_many_spares_more_failures_leave_less_time(small, spares):
    rates = [0.5, 1, 2, 5, 10, 20, 40]
    shares = [goodput(small, failure_rate=rate, spares=spares).effective_ratio for rate in rates]
    assert shares == sorted(shares, reverse=True)
    more = [goodput(small, failure_rate=rate, spares=spares + 1).effective_ratio for rate in rates]
    assert all(one >= other for one, other in zip(more, shares, strict=True))


def test_spares_are_for_a_rate_that_one_in_ten_machines_exceeds(llama):
    assert goodput(llama).spares > goodput(llama, failure_rate="llama3").spares > 6


def test_checkpoints_wait_for_the_last_one(small):
    found = goodput(small, failure_rate=400, checkpoint_bandwidth=0.2)
    least = found.checkpoint_write_s - found.checkpoint_blocking_s
    assert found.checkpoint_interval_s == pytest.approx(least, abs=found.step_time_s)
    assert found.checkpoint_interval_s > 2 * found.young_interval_s


def test_missing_nodes_share_a_replica_or_hold_several(llama, small):
    """Of 64 replicas with 32 nodes each, one is missing while 1 to 32 nodes are; of 64 GPUs a node takes 8."""
    found = goodput(llama, elastic=True, spares=0)
    assert found.lost["waiting"] == pytest.approx(1 / 64, rel=0.02)
    found = goodput(small, elastic=True, spares=0)
    away = failure_rate().takes_a_node * found.interruptions_per_day
    assert found.lost["waiting"] == pytest.approx(8 / 64 * away, rel=0.01)


def test_memory_survives_what_leaves_the_node(llama):
    kept = checkpoint_of("memory", llama.rows, llama.spec, 1e12, failure_rate("llama3").keeps_memory).survival
    assert kept == pytest.approx((35 + 56 + 7) / 419)
    slow = {"checkpoint_bandwidth": 100.0, "spares": 50, "restart_time": 0, "detection_time": 0}
    memory, peer = (goodput(llama, checkpoint=kind, **slow) for kind in ("memory", "peer"))
    rolled_back = memory.lost["lost_work"] - peer.lost["lost_work"]
    assert rolled_back == pytest.approx(0.756 * 1.5 * memory.checkpoint_write_s / memory.mtbf_s, rel=0.06)


@pytest.mark.parametrize(("kind", "copies"), [("async", 1), ("memory", 2), ("peer", 4)])
def test_hosts_hold_a_growing_copy_a_finished_one_and_those_of_a_peer(small, kind, copies):
    job = small.spec
    taken = checkpoint_of(kind, small.rows, job, 1e9).bytes_per_gpu * job.cluster.host_gpus * copies
    for room, fits in ((1.01, True), (0.99, False)):
        memory_bytes = job.cluster.host.memory_bytes * room * taken / job.host_limit_bytes
        cluster = replace(job.cluster, host=replace(job.cluster.host, memory_bytes=memory_bytes))
        with nullcontext() if fits else pytest.raises(InputError, match="copies take"):
            checkpoint_of(kind, small.rows, replace(job, cluster=cluster), 1e9)


def test_a_job_that_is_down_unnoticed_breaks_no_further_nodes():
    """Half an hour until a failure is noticed, with one an hour: the nodes in repair are fewer than that."""
    what = conditions(mtbf_s=3600.0, detection_s=1800.0, restart_s=60.0, repair_s=6 * 3600.0, spares=2)
    assert expected(what, 600.0)["effective"] == pytest.approx(float(simulated(what, 600.0, 4e6).mean()), rel=0.12)
