"""Calibrated clusters: what was measured is reproduced, time never falls, and nothing changes without measurements."""

import json
import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import nccl_logs as logs
import numpy as np
import pytest
from clusters import superpod_2to1
from command import assert_one_message, gpuscale
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.calibration.calibrate import (
    Group,
    calibrate,
    collect,
    fit_curve,
    group_of,
    halves,
    judge,
    never_falling,
    thinned,
)
from gpuscale.calibration.logs import Measured, read_log
from gpuscale.calibration.tables import Sample
from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.collectives.groups import shared_by
from gpuscale.collectives.ideal import OPERATIONS
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster
from gpuscale.specs import cluster as cluster_specs
from gpuscale.specs.cluster import MAX_POINTS, CalibrationSpec
from gpuscale.units import KIB, MIB

SHARED = Path(__file__).parents[2] / "shared" / "formats" / "nccl_tests"
POD = superpod_2to1()
SIZES = 2.0 ** np.arange(0, 41, 0.5)
POINTS = ((8, 60.0), (2**20, 900.0), (2**30, 90000.0))


def measured(operation="allreduce", count=16, per_host=8, points=((8, 60.0), (2**20, 120.0), (2**30, 5000.0))):
    samples = tuple(Sample(1, size, time_us, 0.0, 0.0) for size, time_us in points)
    return Measured(operation, count, per_host, "", "x.log:1", "x.log", samples)


def curve(operation="allreduce", level="leaf", gpus=16, stride=1, bytes_=(8, 2**20, 2**30), time_us=(60, 120, 5000)):
    return CalibrationSpec(
        operation, level, gpus, stride, tuple(map(float, bytes_)), tuple(one * 1e-6 for one in time_us), "tests: own"
    )


def with_curves(*curves, cluster=POD):
    return replace(cluster, calibration=curves)


@st.composite
def curves(draw):
    gpus, stride = draw(st.sampled_from([(2, 1), (8, 1), (16, 1), (64, 1), (16, 8), (8, 4), (512, 1)]))
    count = draw(st.integers(1, 8))
    powers = sorted(draw(st.lists(st.integers(0, 40), min_size=count, max_size=count, unique=True)))
    times = sorted(draw(st.lists(st.floats(0.1, 1e7), min_size=count, max_size=count)))
    operation = draw(st.sampled_from(OPERATIONS))
    level = POD.level_of_group(gpus, stride).name
    return curve(operation, level, gpus, stride, [2**power for power in powers], times)


@given(st.lists(curves(), min_size=1, max_size=3, unique_by=lambda one: (one.gpus, one.stride)), st.data())
def test_time_never_falls_with_bytes(found, data):
    cluster = with_curves(*found)
    gpus, stride = data.draw(st.sampled_from([(2, 1), (7, 1), (8, 2), (16, 1), (30, 1), (64, 8), (128, 8), (1024, 1)]))
    for operation in {one.operation for one in found}:
        size = 2 if operation == "sendrecv" else gpus
        times = collective_time_s(cluster, operation, SIZES, size, stride)
        assert np.isfinite(times).all()
        assert (times > 0).all()
        assert (np.diff(times) >= -1e-12 * times[1:]).all()


@given(curves())
def test_a_measured_group_alone_takes_what_was_measured(one):
    alone = shared_by(with_curves(one), one.gpus, one.stride, 1)
    found = collective_time_s(alone, one.operation, one.bytes, one.gpus, one.stride)
    assert found == pytest.approx(one.time_s, rel=1e-9)


@given(curves())
def test_one_group_is_priced_as_in_a_batch(one):
    cluster = with_curves(one)
    size = np.array([2, 8, 16, 16, 64, 128] if one.operation != "sendrecv" else [2] * 6)
    stride, data = np.array([1, 1, 1, 8, 8, 1]), np.array([1e3, 1e6, 3e7, 1e8, 5e9, 7.0])
    batch = collective_time_s(cluster, one.operation, data, size, stride)
    single = [float(collective_time_s(cluster, one.operation, *each)) for each in zip(data, size, stride, strict=True)]
    assert batch.tolist() == pytest.approx(single, rel=1e-12)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_a_curve_of_the_operation_and_level_no_digit_changes(operation):
    other = "allgather" if operation != "allgather" else "allreduce"
    cluster = with_curves(curve(other), curve(operation, "node", 2))
    size = 2 if operation == "sendrecv" else 32
    stride = 8
    for options in ({}, {"ideal": True}):
        plain = collective_time_s(POD, operation, SIZES, size, stride, **options)
        assert collective_time_s(cluster, operation, SIZES, size, stride, **options).tolist() == plain.tolist()
    same = price_collective(cluster, operation, MIB, level="leaf")
    assert same == price_collective(POD, operation, MIB, level="leaf")


def test_the_ideal_model_knows_no_measurements():
    cluster = with_curves(curve())
    assert collective_time_s(cluster, "allreduce", SIZES, 16, 1, ideal=True).tolist() == (
        collective_time_s(POD, "allreduce", SIZES, 16, 1, ideal=True).tolist()
    )


def test_beyond_the_sizes_the_model_is_scaled_by_the_nearest_ratio():
    one = curve(bytes_=(2**20, 2**24), time_us=(200, 900))
    cluster = with_curves(one)
    plain = collective_time_s(POD, "allreduce", SIZES, 16)
    found = collective_time_s(cluster, "allreduce", SIZES, 16)
    low, high = SIZES <= 2**20, SIZES >= 2**24
    assert found[low] / plain[low] == pytest.approx(np.full(low.sum(), 200e-6 / plain[SIZES == 2**20][0]))
    assert found[high] / plain[high] == pytest.approx(np.full(high.sum(), 900e-6 / plain[SIZES == 2**24][0]))


def test_other_numbers_of_gpus_are_scaled_and_between_two_the_time_lies_between():
    plain = {n: float(collective_time_s(POD, "allgather", MIB, n)) for n in (16, 32, 64, 256)}
    low = curve("allgather", gpus=16, bytes_=(MIB,), time_us=(plain[16] * 2e6,))
    high = curve("allgather", gpus=64, bytes_=(MIB,), time_us=(plain[64] * 3e6,))
    cluster = with_curves(low, high)
    found = {n: float(collective_time_s(cluster, "allgather", MIB, n)) / plain[n] for n in plain}
    assert found == pytest.approx({16: 2.0, 32: math.sqrt(6.0), 64: 3.0, 256: 3.0})


def test_groups_with_as_many_members_per_node_are_preferred():
    full = curve("allgather", gpus=16, bytes_=(MIB,), time_us=(1000,))
    lone = curve("allgather", gpus=2, stride=8, bytes_=(MIB,), time_us=(2000,))
    cluster = with_curves(full, lone)
    plain = collective_time_s(POD, "allgather", MIB, [32, 16], [1, 8])
    each = [with_curves(one) for one in (full, lone)]
    found = collective_time_s(cluster, "allgather", MIB, [32, 16], [1, 8])
    assert found[0] == pytest.approx(collective_time_s(each[0], "allgather", MIB, 32, 1))
    assert found[1] == pytest.approx(collective_time_s(each[1], "allgather", MIB, 16, 8))
    assert (found != plain).all()


def test_fewer_gpus_per_node_keep_the_measurements_that_fit():
    lone = curve("allgather", gpus=16, stride=8)
    half = curve("allgather", gpus=16, stride=2)
    full = curve("allgather", gpus=16, stride=1)
    inside = curve("allgather", "node", gpus=4)
    kept = with_curves(lone, half, full, inside).with_gpus_per_node(4).calibration
    assert [(one.level, one.gpus, one.stride) for one in kept] == [("leaf", 16, 4), ("leaf", 16, 1), ("node", 4, 1)]


def test_price_of_one_collective_says_that_it_is_measured():
    estimate = price_collective(with_curves(curve()), "allreduce", 2**20, gpus=16)
    assert (estimate.model, estimate.time_s, estimate.bound_by) == ("calibrated", pytest.approx(120e-6), "channels")
    large = price_collective(with_curves(curve()), "allreduce", 2**30, gpus=16)
    plain = price_collective(POD, "allreduce", 2**30, gpus=16)
    assert large.next_best_time_s / large.time_s == pytest.approx(plain.next_best_time_s / plain.time_s)
    assert max(level.time_s for level in large.levels) < large.time_s == pytest.approx(5e-3)
    assert large.latency_s == pytest.approx(60e-6, rel=1e-3)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40))
def test_fitted_times_never_fall_and_keep_what_rises(values):
    found = never_falling(values)
    assert len(found) == len(values)
    assert all(low <= high for low, high in pairwise(found))
    assert min(values) <= found[0]
    assert found[-1] <= max(values)
    assert never_falling(sorted(values)) == sorted(values)


def test_one_slow_run_does_not_lift_its_neighbours():
    assert never_falling([13, 14, 68, 15, 16, 17, 18]) == [13, 14, 16, 16, 16, 17, 18]


def test_a_file_gets_few_points_and_the_ends_among_them():
    points = [(float(size), 60e-6 + size / 1e11) for size in range(2**16, 2**24, 2**14)]
    kept = thinned(points)
    assert len(kept) == MAX_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert thinned(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_repeated_sizes_count_by_their_median():
    (series,) = collect(POD, [measured(points=((8, 60.0), (8, 900.0), (8, 62.0))), measured(points=((8, 61.0),))])
    assert (series.points, series.rows) == (((8.0, pytest.approx(61.5e-6)),), 4)


@pytest.mark.parametrize(
    ("operation", "count", "per_host", "expected"),
    [
        ("allreduce", 16, 8, ("leaf", 16, 1)),
        ("allreduce", 4, 4, ("node", 4, 1)),
        ("allreduce", 10, 1, ("leaf", 10, 8)),
        ("allgather", 16, 4, ("leaf", 16, 2)),
        ("allgather", 512, 8, ("spine", 512, 1)),
        ("allgather", 4096, 8, ("spine", 4096, 1)),
        ("sendrecv", 4, 4, ("node", 4, 1)),
        ("sendrecv", 16, 8, ("leaf", 16, 1)),
        ("allreduce", 72, None, ("leaf", 72, 1)),
    ],
)
def test_groups_on_the_cluster(operation, count, per_host, expected):
    found = group_of(POD, measured(operation, count, per_host))
    assert (found.level, found.gpus, found.stride) == expected


def test_machines_of_linked_pairs():
    pairs = load_cluster("box-a100-pcie-pairs")
    assert group_of(pairs, measured("allreduce", 4, 4)) == Group("node", "allreduce", 4, 1)
    assert group_of(pairs, measured("sendrecv", 4, 4)) == Group("node", "sendrecv", 4, 1)
    assert group_of(pairs, measured("sendrecv", 2, 2)) == Group("pair", "sendrecv", 2, 1)
    assert group_of(load_cluster("box-l40s-sockets"), measured("allreduce", 8, 8)).level == "node"


@pytest.mark.parametrize(("count", "per_host", "message"), [(32, 16, "a host of superpod has 8"), (6, 3, "has 8")])
def test_hosts_that_the_cluster_does_not_have_are_refused(count, per_host, message):
    with pytest.raises(InputError, match=message):
        group_of(POD, measured(count=count, per_host=per_host))


def test_a_box_takes_no_measurement_across_nodes():
    with pytest.raises(InputError, match="cannot be extended") as caught:
        group_of(load_cluster("box-l40s"), measured(count=16, per_host=8))
    assert caught.value.place == "x.log:1"


def test_operations_of_a_cluster_file_are_those_of_the_model():
    assert cluster_specs.OPERATIONS == OPERATIONS


def test_half_of_the_sizes_predict_the_other_half(tmp_path):
    text = logs.log(time_us=lambda size: 61 + 30 * size / (size + 1e6) + size / 1.3e5)
    (series,) = collect(load_cluster("aws-p5"), read_log(logs.write(tmp_path / "x.log", text)).measured)
    half, rest = halves(series)
    fit = judge(load_cluster("aws-p5"), half, fit_curve(half, "x"), rest)
    assert median(one.after for one in fit.residuals) < 0.03 < median(one.before for one in fit.residuals)


def published(name, cluster):
    (series, *_) = collect(load_cluster(cluster), read_log(SHARED / name).measured)
    half, rest = halves(series)
    fit = judge(load_cluster(cluster), half, fit_curve(half, "x"), rest)
    return median(one.before for one in fit.residuals), median(one.after for one in fit.residuals)


@pytest.mark.parametrize(
    ("name", "cluster", "limit"),
    [
        ("dgxc_h100x8_allreduce.log", "dgx-h100-superpod", 0.03),
        ("p5_nccl-test-output-v2.20.3-1.log", "aws-p5", 0.05),
        ("ztan_a3mega_h100_2node.log", "dgx-h100-superpod", 0.03),
        ("bitdeer_h100_2x8_allreduce.log", "dgx-h100-superpod", 0.03),
        ("cluster01_multi-node_nccl_N10_G1.log", "dgx-h100-superpod", 0.03),
        ("coreweave_gb200_1rack_nvl72.log", "gb200-nvl72", 0.03),
        ("alps_gh200_job-n-00004-N-0001-142995.out", "gh200-quad", 0.03),
        ("superbench_allgather.log", "dgx-a100-superpod", 0.03),
        ("superbench_alltoall.log", "dgx-a100-superpod", 0.03),
        ("superbench_broadcast.log", "dgx-a100-superpod", 0.03),
        ("superbench_reducescatter.log", "dgx-a100-superpod", 0.03),
        ("alcf_polaris_nccl_2_18_n2.g4.2024-04-29-18-41-24_all_gather_output.dat.1.log", "dgx-a100-superpod", 0.05),
    ],
)
def test_half_of_a_published_log_predicts_the_other_half(name, cluster, limit):
    if not (SHARED / name).exists():
        pytest.skip("the published logs are not here")
    before, after = published(name, cluster)
    assert after <= limit
    assert after < before


# The command


@pytest.fixture
def log(tmp_path):
    path = logs.write(tmp_path / "all_reduce.log", logs.log())
    os.utime(path, (1.8e9, 1.8e9))
    return path


def run(log, *arguments, cluster="aws-p5"):
    return gpuscale("calibrate", "nccl", log, "--cluster", cluster, *arguments)


def test_command_fits_writes_and_is_used(log, tmp_path):
    target = tmp_path / "mine.toml"
    done = run(log, "-o", target)
    assert (done.code, done.err) == (0, f"wrote {target}: use it with --cluster {target}\n")
    assert done.lines[0].startswith("aws-p5: 1 curve from 1 log (31 rows): median error ")
    assert done.lines[0].endswith(" 0.0 % after, at the sizes measured")
    assert all(len(line) <= 100 for line in done.lines[1:])
    cluster = load_cluster(str(target))
    plain = load_cluster("aws-p5")
    assert replace(cluster, name=plain.name, sources=plain.sources, calibration=()) == plain
    (one,) = cluster.calibration
    assert (one.operation, one.level, one.gpus, one.stride, len(one.bytes)) == ("allreduce", "fabric", 16, 1, 31)
    assert one.source == "all_reduce.log, 2027-01-15: 31 rows, 31 sizes"
    assert cluster.sources["calibration.allreduce-16-1"] == one.source
    priced = gpuscale("collective", "allreduce", "--bytes", 2**24, "--gpus", 16, "--cluster", target, "--json")
    body = json.loads(priced.out)
    assert (body["model"], body["cluster"]) == ("calibrated", "mine")
    assert body["time_s"] == pytest.approx(logs.smooth_us(2**24) * 1e-6, rel=1e-4)
    assert "all_reduce.log" in gpuscale("clusters", "show", target).out
    assert gpuscale("plan", "--model", "llama3-8b", "--gpus", 16, "--cluster", target).code == 0


def test_the_wrong_cluster_is_noticed(tmp_path):
    fast = logs.write(tmp_path / "fast.log", [*logs.log(count=8), *logs.log("all_gather", count=8)])
    notes = [" ".join(note.split()) for note in run(fast, cluster="box-l40s").out.split("note: ")[1:]]
    assert notes[0] == ("fast.log:2 and 1 more tables: measured on NVIDIA H100 80GB HBM3, but box-l40s has l40s")
    assert all("times as fast as box-l40s could be without any loss" in note for note in notes[1:])
    assert len(notes) == 3


def test_a_log_is_not_written_over(log):
    before = log.read_text()
    assert_one_message(run(log, "-o", log), "is also a file to read", "another file")
    assert log.read_text() == before


def test_same_logs_same_bytes(log, tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    out = [run(log, "-o", path).out for path in (first, second)]
    assert first.read_bytes() == second.read_bytes()
    assert out[0] == out[1]


def test_new_measurements_replace_those_of_the_same_group_and_keep_the_others(log, tmp_path):
    one, two, target = (tmp_path / f"{name}.toml" for name in ("one", "two", "three"))
    run(log, "-o", one)
    first = one.read_text()
    gather = logs.write(tmp_path / "gather.log", logs.log("all_gather"))
    again = logs.write(tmp_path / "again.log", logs.log(time_us=lambda size: 2 * logs.smooth_us(size)))
    assert run(gather, "-o", two, cluster=one).code == 0
    assert run(again, "-o", target, cluster=two).code == 0
    cluster = load_cluster(str(target))
    assert [one.operation for one in cluster.calibration] == ["allgather", "allreduce"]
    assert cluster.calibration[1].time_s[0] == pytest.approx(120e-6, rel=1e-4)
    head = first.partition("[[calibration]]")[0]
    assert target.read_text().startswith(head)
    assert target.read_text().count("[[calibration]]") == 2


def test_errors_before_are_those_of_the_cluster_as_it_stands(log, tmp_path):
    target = tmp_path / "mine.toml"
    run(log, "-o", target)
    assert "median error 0.0 % before" in run(log, cluster=target).lines[0]


def test_a_gpu_file_beside_the_cluster_is_found_from_the_new_place(log, tmp_path):
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    folder = Path(__file__).parents[1] / "presets"
    (home / "gpu.toml").write_text((folder / "gpus" / "h100-sxm-80gb.toml").read_text())
    text = (folder / "clusters" / "aws-p5.toml").read_text()
    (home / "c.toml").write_text(text.replace('gpu = "h100-sxm-80gb"', 'gpu = "gpu.toml"'))
    assert run(log, "-o", away / "mine.toml", cluster=home / "c.toml").code == 0
    assert 'gpu = "../home/gpu.toml"' in (away / "mine.toml").read_text()
    assert load_cluster(str(away / "mine.toml")).gpu.name == "gpu"


def test_several_logs_and_the_holdout(log, tmp_path):
    gather = logs.write(tmp_path / "gather.log", logs.log("all_gather", count=8))
    lone = logs.write(tmp_path / "lone.log", logs.log("alltoall", sizes=[2**20]))
    done = gpuscale("calibrate", "nccl", log, gather, lone, "--cluster", "aws-p5", "--holdout", "--json")
    body = json.loads(done.out)
    assert [(one["operation"], one["level"]) for one in body["curves"]] == [
        ("allgather", "node"), ("allreduce", "fabric"), ("alltoall", "fabric"),
    ]  # fmt: skip
    assert [one["errors"][-1]["sizes"] for one in body["held_out"]] == [15, 15]
    assert all(one["errors"][-1]["after_median"] < 0.05 for one in body["held_out"])
    assert body["notes"] == ["alltoall over 16 GPUs: one size, nothing to hold out"]
    text = gpuscale("calibrate", "nccl", log, gather, lone, "--cluster", "aws-p5", "--holdout")
    assert " after, at the sizes held out " in " ".join(text.out.split())


def test_another_gpu_and_unlisted_ranks_are_noted(tmp_path):
    text = logs.log(gpu="NVIDIA A100-SXM4-80GB")
    done = run(logs.write(tmp_path / "a.log", text))
    assert "a.log:2: measured on NVIDIA A100-SXM4-80GB, but aws-p5 has h100-sxm-80gb" in done.out
    text = [line for line in logs.log(count=32) if "Rank" not in line]
    done = run(logs.write(tmp_path / "b.log", text))
    assert "b.log:2: 32 GPUs, as busbw / algbw says; the log does not list them" in done.out
    assert "does not say how many GPUs of a host took part; all taken" in done.out.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--op", "allredcue"], "unknown collective 'allredcue'", "did you mean allreduce?"),
        (["--gpus", "1"], "--gpus: 1 is out of range", "give 2 to 1,048,576"),
        (["--gpus-per-node", "0"], "--gpus-per-node: 0 is out of range", "give 1 to"),
        (["--gpus-per-node", "3"], "3 GPUs on each host, but a host of aws-p5 has 8", "a divisor of 8"),
        (["-o", "/nowhere/mine.toml"], "cannot write: ", "a folder that exists"),
    ],
)
def test_bad_input_is_one_message(log, arguments, message, hint):
    assert_one_message(run(log, *arguments), message, hint)


def test_unknown_clusters_and_logs_that_fail_are_one_message(log, tmp_path):
    assert_one_message(run(log, cluster="aws-p6"), "unknown cluster 'aws-p6'", "did you mean aws-p5")
    assert_one_message(run(tmp_path / "missing.log"), "no such file", "")
    failed = logs.write(tmp_path / "failed.log", [*logs.log()[:23], "host0: Test NCCL failure common.cu:401 'x'"])
    done = gpuscale("calibrate", "nccl", failed, "--cluster", "aws-p5")
    assert_one_message(done, "failed.log:24: the run failed before any size was measured", "run it again")
    assert_one_message(gpuscale("calibrate", "nccl", "--cluster", "aws-p5"), "missing argument", "--help")


def test_logs_that_cannot_be_used_are_named_and_the_others_fitted(log, tmp_path):
    failed = logs.write(tmp_path / "failed.log", [*logs.log()[:23], "host0: Test NCCL failure common.cu:401 'x'"])
    wide = logs.write(tmp_path / "wide.log", logs.log(count=32, per_host=16))
    alone = gpuscale("calibrate", "nccl", log, "--cluster", "aws-p5", "--json")
    done = gpuscale("calibrate", "nccl", failed, log, wide, "--cluster", "aws-p5", "--json")
    body = json.loads(done.out)
    assert (done.code, body["logs"], body["curves"]) == (0, 1, json.loads(alone.out)["curves"])
    warnings = done.err.splitlines()
    assert len(warnings) == len(body["left_out"]) == 2
    assert warnings[0].startswith("warning: left out: ")
    assert "failed.log:24: the run failed before any size was measured" in warnings[0]
    assert "wide.log:2: 16 GPUs on each host, but a host of aws-p5 has 8" in warnings[1]
    assert alone.err == ""
    none = gpuscale("calibrate", "nccl", failed, wide, "--cluster", "aws-p5", "-o", tmp_path / "out.toml")
    assert_one_message(none, "failed.log:24: the run failed", "run it again")
    assert not (tmp_path / "out.toml").exists()


def test_tables_of_other_nodes_are_left_out_of_a_log(tmp_path):
    both = logs.write(tmp_path / "both.log", [*logs.log(count=32, per_host=16), *logs.log("all_gather", count=8)])
    found = calibrate(load_cluster("aws-p5"), [both])
    assert [fit.curve.operation for fit in found.fits] == ["allgather"]
    assert "left out: both.log:2: 16 GPUs on each host, but a host of aws-p5 has 8" in found.notes
    assert found.left_out == ()


def test_a_group_alone_on_shared_cards_takes_what_was_measured():
    cluster = load_cluster("aws-p4d-eni")  # eight GPUs share a network card
    one = curve("allreduce", "fabric", 8, 2, (8, 2**20, 2**30), (60, 900, 90000))
    cluster = with_curves(one, cluster=cluster)
    priced = price_collective(cluster, "allreduce", 2**30, gpus=8, siblings=Siblings(2, 1))
    assert priced.time_s == pytest.approx(0.09)
    alone = shared_by(cluster, 8, 2, 1)
    assert shared_by(alone, 8, 2, 1) == alone
    (found,) = collect(cluster, [measured(count=8, per_host=4, points=POINTS)])
    fit = judge(cluster, found, fit_curve(found, "tests: own"), found.points)
    assert max(residual.after for residual in fit.residuals) < 1e-9


def test_an_inline_calibration_becomes_tables(log, tmp_path):
    text = (Path(__file__).parents[1] / "presets" / "clusters" / "aws-p5.toml").read_text()
    inline = (
        'calibration = [{operation = "alltoall", level = "node", gpus = 8, bytes = [8], time_us = [9.0], '
        'source = "tests: our own"}]\n'
    )
    path = tmp_path / "c.toml"
    path.write_text(inline + text)
    assert load_cluster(str(path)).calibration[0].stride == 1
    assert run(log, "-o", tmp_path / "x.toml", cluster=path).code == 0
    assert [one.operation for one in load_cluster(str(tmp_path / "x.toml")).calibration] == ["alltoall", "allreduce"]


# The cluster file

TABLE = """
[[calibration]]
operation = "allreduce"
level = "fabric"
gpus = 16
stride = 1
bytes = [8, 1024]
time_us = [60.0, 61]
source = "tests: our own"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("time_us = [60.0, 61]", "time_us = [60.0]", "1 times for 2 sizes"),
        ("time_us = [60.0, 61]", "time_us = [62.0, 61]", "a larger size takes less time"),
        ("time_us = [60.0, 61]", "time_us = [60.0, nan]", "finite"),
        ("time_us = [60.0, 61]", "time_us = [60.0, -1.0]", "should be at least 0.01"),
        ("bytes = [8, 1024]", "bytes = [1024, 8]", "sizes must rise"),
        ("bytes = [8, 1024]", "bytes = [8, 8]", "sizes must rise"),
        ("bytes = [8, 1024]", "bytes = []", "at least 1 item"),
        ("bytes = [8, 1024]", "bytes = [0, 8]", "should be at least 1"),
        ("gpus = 16", "gpus = 1", "should be at least 2"),
        ("gpus = 16", "gpus = 8", "8 GPUs 1 apart span node, not fabric"),
        ("stride = 1", "stride = 1048576", "the group reaches over 15,728,641 GPUs"),
        ('level = "fabric"', 'level = "spine"', "no level is called 'spine'"),
        ('operation = "allreduce"', 'operation = "gather"', "should be one of allreduce"),
        ('source = "tests: our own"', 'source = "x"', "at least 8 characters"),
        ('source = "tests: our own"', 'origin = "tests: our own"', "unknown key"),
        ("[[calibration]]", TABLE + "[[calibration]]", "a second curve of allreduce over 16 GPUs"),
    ],
)
def test_mistakes_in_a_cluster_file_are_refused_with_their_line(tmp_path, old, new, message):
    text = (Path(__file__).parents[1] / "presets" / "clusters" / "aws-p5.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text + TABLE)
    assert load_cluster(str(path)).calibration[0].time_s == pytest.approx((60e-6, 61e-6))
    path.write_text(text + TABLE.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    assert message in caught.value.message
    assert caught.value.place.startswith(f"{path}:")


def test_what_is_said_of_logs_is_checked(log):
    found = calibrate(load_cluster("aws-p5"), [log], op="all-reduce", gpus=16, per_host=8)
    assert found.fits[0].curve.operation == "allreduce"
    with pytest.raises(InputError, match="unknown collective"):
        calibrate(load_cluster("aws-p5"), [log], op="x")
    with pytest.raises(InputError) as caught:
        calibrate(load_cluster("aws-p5"), [log], gpus=1)
    assert caught.value.field == "gpus"


def test_too_many_logs_are_refused(tmp_path):
    with pytest.raises(InputError, match="2,000 logs"):
        calibrate(POD, [tmp_path / "x.log"] * 2000)


def test_small_sizes_are_latency_and_large_ones_bandwidth(log):
    fit = calibrate(load_cluster("aws-p5"), [log]).fits[0]
    assert fit.latency_s == pytest.approx(logs.smooth_us(8) * 1e-6, rel=1e-4)
    assert 0 < fit.efficiency < 1
    assert fit.curve.bytes[0] <= 4 * KIB


def test_one_pool_of_a_cluster_is_refused_before_logs_are_read(tmp_path):
    done = gpuscale("calibrate", "nccl", tmp_path / "no.log", "--cluster", "fleet.toml:a100")
    assert_one_message(done, "fleet.toml:a100 is one pool of a cluster file", "name the cluster file")
