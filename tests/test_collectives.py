"""The NCCL-like model: order, limits, properties, and distance from published measurements."""

import csv
import importlib
import pickle
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clusters import superpod_2to1
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.collectives.estimate import Siblings, options, price_collective
from gpuscale.collectives.groups import place
from gpuscale.collectives.ideal import OPERATIONS
from gpuscale.collectives.nccl import step_overhead_s
from gpuscale.collectives.nccl_constants import AUTOMATIC, Tuning
from gpuscale.collectives.network import network_of
from gpuscale.collectives.times import collective_time_s
from gpuscale.collectives.topology import path_share
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.settings import with_settings

MEASURED = Path(__file__).parents[2] / "shared" / "validation" / "collectives.csv"
CLUSTER = superpod_2to1()

operations = st.sampled_from(OPERATIONS)
sizes = st.integers(0, 36).map(lambda power: 2.0**power)
tunings = st.sampled_from([None, AUTOMATIC, Tuning(nccl=(2, 20)), Tuning(channels=8), Tuning(launch="one-process")])
groups = st.sampled_from([(2, 1), (4, 1), (8, 1), (2, 8), (32, 8), (16, 64), (12, 1), (256, 1), (1024, 1), (5, 200)])
switches = st.booleans()


def added(sharp, cluster=CLUSTER):
    return replace(cluster, sharp=sharp, nvls=sharp)


def time_s(cluster, operation, size, group, **options):
    count, stride = group
    return collective_time_s(cluster, operation, size, count, stride, **options).item()


@given(operations, sizes, st.floats(1, 1e3), groups, switches, st.booleans(), tunings)
def test_time_never_falls_with_bytes(operation, size, factor, group, sharp, ideal, tuning):
    options = {"ideal": ideal, "tuning": tuning}
    small = time_s(added(sharp), operation, size, group, **options)
    large = time_s(added(sharp), operation, size * factor, group, **options)
    assert large >= small * (1 - 1e-12) > 0


@given(
    operations, sizes, groups, st.sampled_from(["node", "leaf", "spine"]), st.floats(1, 10), switches, st.booleans(),
    tunings,
)  # fmt: skip
def test_time_never_rises_with_bandwidth(operation, size, group, level, factor, sharp, ideal, tuning):
    old = CLUSTER.levels[CLUSTER.level_index(level)]
    wide = {"link_bytes_per_s": old.link_bytes_per_s * factor, "switch_bytes_per_s": old.switch_bytes_per_s * factor}
    options = {"ideal": ideal, "tuning": tuning}
    before = time_s(added(sharp), operation, size, group, **options)
    assert time_s(added(sharp, superpod_2to1(**{level: wide})), operation, size, group, **options) <= before * (
        1 + 1e-12
    )


@given(operations, sizes, st.sampled_from(["node", "leaf", "spine"]), st.floats(1, 10))
def test_time_never_falls_with_hop_latency(operation, size, level, factor):
    old = CLUSTER.levels[CLUSTER.level_index(level)]
    slow = superpod_2to1(**{level: {"hop_latency_s": old.hop_latency_s * factor}})
    assert time_s(slow, operation, size, (1024, 1)) >= time_s(CLUSTER, operation, size, (1024, 1)) * (1 - 1e-12)


@given(operations, sizes, st.sampled_from([(2, 1), (4, 2), (8, 1)]), st.floats(0.01, 100), st.booleans(), tunings)
def test_a_group_in_a_node_never_touches_the_fabric(operation, size, group, factor, ideal, tuning):
    leaf = {"link_bytes_per_s": 50e9 * factor, "hop_latency_s": 5e-6 * factor, "in_network_reduction": False}
    other = superpod_2to1(leaf=leaf, spine=leaf)
    options = {"ideal": ideal, "tuning": tuning}
    assert time_s(other, operation, size, group, **options) == time_s(CLUSTER, operation, size, group, **options)


@given(operations, sizes, groups, switches, tunings)
def test_never_faster_than_ideal(operation, size, group, sharp, tuning):
    ideal = time_s(added(sharp), operation, size, group, ideal=True)
    assert time_s(added(sharp), operation, size, group, tuning=tuning) >= ideal


@given(st.integers(0, 2**32 - 1), operations, switches, st.booleans(), tunings, st.sampled_from([20, 60]))
def test_one_element_alone_equals_its_value_in_the_batch(seed, operation, sharp, ideal, tuning, rows):
    rng = np.random.default_rng(seed)
    size = rng.uniform(1, 1e9, rows)
    count = 2 ** rng.integers(0, 6, rows)
    stride = 2 ** rng.integers(0, 5, rows)
    options = {"ideal": ideal, "tuning": tuning}
    cluster = added(sharp)
    batch = collective_time_s(cluster, operation, size, count, stride, **options)
    alone = [time_s(cluster, operation, *row[:1], row[1:], **options) for row in zip(size, count, stride, strict=True)]
    assert batch.tolist() == alone


def test_arguments_broadcast():
    times = collective_time_s(CLUSTER, "allgather", np.array([[1e6], [1e8]]), np.array([1, 8, 64]), 1)
    assert times.shape == (2, 3)
    assert times[:, 0].tolist() == [0, 0]
    assert (np.diff(times[:, 1:]) > 0).all()


def test_large_messages_approach_bandwidth_and_small_ones_latency():
    large = price_collective(CLUSTER, "allgather", 2**36, level="node")
    assert large.busbw_bytes_per_s == pytest.approx(0.82 * 450e9, rel=0.1)
    assert large.bound_by == "node"
    small = price_collective(CLUSTER, "allgather", 8, level="node")
    assert small.bound_by == "latency"
    assert 8e-6 < small.time_s < 16e-6


def test_switches_help_and_no_sharp_switches_them_off():
    with_switches = price_collective(CLUSTER, "allreduce", 2**33, level="node")
    without = price_collective(added(False), "allreduce", 2**33, level="node")
    assert with_switches.algorithm == "NVLS Simple"
    assert without.algorithm == "ring Simple"
    assert 1.2 < without.time_s / with_switches.time_s < 1.5
    leaf = price_collective(CLUSTER, "allreduce", 2**33, level="leaf")
    sharp = price_collective(replace(CLUSTER, sharp=True), "allreduce", 2**33, level="leaf")
    assert (leaf.algorithm, sharp.algorithm) == ("ring Simple", "SHARP Simple")
    assert sharp.time_s < leaf.time_s
    assert price_collective(replace(CLUSTER, nvls=False), "allreduce", 2**33, level="node").time_s == without.time_s


@pytest.mark.parametrize(
    ("gpus", "size", "measured_us"), [(32, 2**33, 30020), (128, 2**33, 31711), (256, 2**34, 62882)]
)
def test_sharp_as_measured_on_b200(gpus, size, measured_us):
    """AllReduce with CollNet over 8x400G InfiniBand, as nccl-tests measured it."""
    cluster = replace(load_cluster("b200-hgx").sized_for(gpus)[0], sharp=True)
    predicted_s = collective_time_s(cluster, "allreduce", size, gpus, tuning=AUTOMATIC).item()
    assert predicted_s == pytest.approx(measured_us * 1e-6, rel=0.1)
    without_s = collective_time_s(replace(cluster, sharp=None), "allreduce", size, gpus, tuning=AUTOMATIC).item()
    assert without_s > 1.3 * predicted_s


def test_sharp_takes_nodes_without_nvls_and_one_gpu_of_each_node():
    a100 = replace(load_cluster("dgx-a100-superpod"), sharp=True)
    for gpus, stride in ((64, 1), (16, 8)):
        plain_s, sharp_s = (
            collective_time_s(one, "allreduce", 2**30, gpus, stride).item() for one in (replace(a100, sharp=None), a100)
        )
        assert sharp_s < plain_s


def test_sharp_over_one_gpu_of_each_node_is_not_bound_inside_the_node():
    rails = price_collective(replace(CLUSTER, sharp=True), "allreduce", 2**30, gpus=64, siblings=Siblings(8))
    assert (rails.algorithm, rails.bound_by) == ("SHARP Simple", "leaf")
    assert rails.levels[0].time_s == 0


def test_level_and_gpus_default_to_each_other():
    assert price_collective(CLUSTER, "allreduce", 1024).gpus == 1024
    assert price_collective(CLUSTER, "allreduce", 1024, level="leaf").gpus == 256
    assert price_collective(CLUSTER, "allreduce", 1024, gpus=16).level == "leaf"
    assert price_collective(CLUSTER, "sendrecv", 1024, level="spine").gpus == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpus": 1}, "1 GPU exchanges nothing"),
        ({"gpus": -3}, "exchange nothing"),
        ({"gpus": 2000}, "do not fit"),
        ({"gpus": 16, "level": "node"}, "do not fit"),
        ({"level": "rack"}, "no level"),
        ({"operation": "gossip"}, "unknown collective"),
        ({"bytes_": 0}, "out of range"),
        ({"bytes_": 2**61}, "out of range"),
        ({"operation": "sendrecv", "gpus": 1}, "1 GPU exchanges nothing"),
    ],
)
def test_bad_questions_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        price_collective(CLUSTER, **{"operation": "allreduce", "bytes_": 1024, **arguments})


def test_every_preset_has_a_time_for_every_operation():
    for name in ("dgx-h100-superpod", "aws-p4d-eni", "gb200-nvl72", "mi300x", "tpu-v5p-pod", "box-l40s", "dgx1-v100"):
        cluster = load_cluster(name)
        for operation in OPERATIONS:
            for level in cluster.levels:
                estimate = price_collective(cluster, operation, 2**20, level=level.name)
                assert 0 < estimate.ideal_time_s <= estimate.time_s < 1
                assert sum(row.binds for row in estimate.levels) == 1


IN_NODE = {
    "a100-sxm-80gb": "dgx-a100-superpod",
    "h100-sxm-80gb": "dgx-h100-superpod",
    "h200-sxm-141gb": "h200-hgx",
    "b200-sxm-180gb": "b200-hgx",
    "b300-sxm-270gb": "b300-hgx",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
}


def preset_of(row):
    """Name the preset that stands for the machine of a row; None where there is none."""
    fabric = row["fabric"]
    if row["gpu"] in {"gb200", "gb300"}:
        return IN_NODE[row["gpu"]] if "20x" not in fabric else None
    if "+" not in fabric and row["gpus_per_node"] == "8" and row["collective"] != "sendrecv":
        return IN_NODE.get(row["gpu"])
    if "8x400G" in fabric and row["gpu"] == "h100-sxm-80gb":
        return "azure-ndv5"
    return "aws-p5" if "EFA" in fabric and row["gpu"] == "h100-sxm-80gb" else None


def relative_errors(ideal=False):
    """Return (bytes, |predicted / measured - 1|) of every measured row with a preset."""
    series = defaultdict(list)
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            if row["time_us"] and row["bytes"] and "TRT" not in row["sharp_or_nvls"] and preset_of(row):
                series[preset_of(row), row["collective"], int(row["gpus"])].append(row)
    size, error = [], []
    for (name, operation, gpus), rows in series.items():
        data = np.array([float(row["bytes"]) for row in rows])
        measured = np.array([float(row["time_us"]) for row in rows]) * 1e-6
        cluster = load_cluster(name)
        wide = cluster.sized_for(gpus)[0]
        predicted = collective_time_s(wide, operation, data, gpus, 1, ideal=ideal, tuning=AUTOMATIC)
        size.append(data)
        error.append(np.abs(predicted / measured - 1))
    return np.concatenate(size), np.concatenate(error)


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured collectives are not here")
@pytest.mark.parametrize(
    ("low", "high", "median", "p90"), [(0, 2**16, 0.10, 0.35), (2**16, 2**26, 0.12, 0.30), (2**26, 2**40, 0.05, 0.15)]
)
def test_close_to_published_measurements(low, high, median, p90):
    size, error = relative_errors()
    here = error[(size >= low) & (size < high)]
    assert here.size > 150
    assert np.median(here) < median
    assert np.percentile(here, 90) < p90


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured collectives are not here")
def test_measurements_tell_the_model_from_the_ideal_one():
    size, error = relative_errors(ideal=True)
    assert np.median(error[size < 2**26]) > 0.5


@pytest.mark.parametrize("name", ["leaf", "spine"])
def test_fabric_without_sharp_costs_allreduce_more(name):
    plain = added(True, superpod_2to1(leaf={"in_network_reduction": False}, spine={"in_network_reduction": False}))
    sharp = price_collective(replace(CLUSTER, sharp=True), "allreduce", 2**30, level=name)
    assert price_collective(plain, "allreduce", 2**30, level=name).time_s > sharp.time_s
    assert replace(sharp, op="x").formula.endswith("(50 GB/s x 8)")


@pytest.mark.parametrize(
    ("operation", "group", "name", "latency_us"),
    [  # by hand from NCCL's tables; Hopper: 0.65 of the base, 1.4 of the hops
        ("allreduce", (16, 1), "ring LL", 0.65 * 6.6 + 1.4 * 2 * (14 * 1.0 + 2.7)),
        ("allreduce", (16, 1), "ring LL128", 0.65 * 14 + 1.4 * 2 * (14 * 1.9 + 4.0)),
        ("allreduce", (16, 1), "ring Simple", 1.4 * (0.65 * 8.4 + 1.4 * 2 * (14 * 3.4 + 14))),
        ("allreduce", (8, 1), "ring Simple", 0.65 * 8.4 + 1.4 * 2 * 7 * 3.4),
        ("allreduce", (16, 1), "tree LL", 0.65 * 6.8 + 2 * (1.4 * 7 * 0.6 + 1.25 * 5.0)),
        ("allreduce", (16, 1), "tree LL128", 0.65 * 14 + 1.4 * 2 * (7 * 1.25 + 8.5)),
        ("allreduce", (64, 1), "tree Simple", 0.65 * 8.4 + 1.4 * 2 * (7 * 4.0 + 3 * 14)),
        ("allreduce", (64, 1), "NVLS tree Simple", 26 + 1.4 * 2 * 3 * 20.9),
        ("allreduce", (64, 1), "SHARP Simple", 26 + 1.4 * 18),
        ("allgather", (16, 1), "ring LL", 0.65 * 6.6 + 1.4 * (14 * 1.0 + 2.7)),
        ("allgather", (8, 1), "NVLS Simple", 26),
        ("allgather", (32, 8), "PAT Simple", 0.65 * 8 + 1.4 * (5 * 14 / 3.5 + 2.8 * 32)),
        ("alltoall", (8, 1), "point-to-point Simple", 0.65 * 8.4 + 1.4 * 0.6),
        ("alltoall", (64, 1), "point-to-point Simple", 0.65 * 8.4 + 1.25 * 14 + 56 * 2.2),
        ("sendrecv", (2, 1), "point-to-point LL", 0.65 * 6.6 + 1.4 * 0.6),
        ("sendrecv", (2, 8), "point-to-point Simple", 0.65 * 8.4 + 1.25 * 14),
        ("broadcast", (8, 1), "ring LL", 0.65 * 6.6 + 1.4 * 7 * 0.6),
    ],
)
def test_latency_of_each_algorithm(operation, group, name, latency_us):
    cluster = replace(CLUSTER, sharp=True)
    net = network_of(cluster, place(cluster, [group[0]], [group[1]]), tuning=AUTOMATIC)
    found = {one.name: one for one in options(net, operation, 8.0)}
    assert found[name].latency_s == pytest.approx(latency_us * 1e-6)


def test_step_overhead_grows_until_chunks_are_full():
    steps = np.array([14.0])
    assert step_overhead_s(np.array([1e15]), steps) == pytest.approx(14 * 6e-6)
    assert step_overhead_s(14 * 2.5e6 * np.ones(1), steps) == pytest.approx(14 * 3e-6)


ISSUE = "NVIDIA/nccl-tests issue 309, Dell XE9680 with 8 x 400 Gbit/s"
ALCF = "argonne-lcf/alcf-nccl-tests results_sophia, DGX A100 with HDR200"
DGXC = "NVIDIA/dgxc-benchmarking nccl/README.md"
RACK = "coreweave/nccl-tests README.md, GB200 NVL72"


@pytest.mark.parametrize(
    ("source", "cluster", "gpus", "size", "measured_us"),
    [
        (ISSUE, "azure-ndv5", 16, 2**10, 29.8),
        (ISSUE, "azure-ndv5", 16, 2**28, 1282.8),
        (ISSUE, "azure-ndv5", 32, 2**10, 39.8),
        (ISSUE, "azure-ndv5", 32, 2**20, 82.2),
        (ISSUE, "azure-ndv5", 32, 2**24, 259.6),
        (ISSUE, "azure-ndv5", 32, 2**26, 579.1),
        (ISSUE, "azure-ndv5", 32, 2**33, 45606),
        (ALCF, "dgx-a100-superpod", 16, 2**10, 37.9),
        (ALCF, "dgx-a100-superpod", 16, 2**20, 86.0),
        (ALCF, "dgx-a100-superpod", 16, 2**24, 297.7),
        (ALCF, "dgx-a100-superpod", 16, 2**30, 11295),
        (DGXC, "dgx-h100-superpod", 8, 2**10, 16.9),
        (DGXC, "dgx-h100-superpod", 8, 2**22, 54.2),
        (DGXC, "dgx-h100-superpod", 8, 2**26, 324.7),
        (DGXC, "dgx-h100-superpod", 8, 2**33, 31307),
        (RACK, "gb200-nvl72", 72, 2**30, 3108.8),
        (RACK, "gb200-nvl72", 72, 2**33, 20299),
    ],
)
def test_allreduce_within_a_fifth_of_published_points(source, cluster, gpus, size, measured_us):
    predicted = price_collective(load_cluster(cluster), "allreduce", size, gpus=gpus)
    assert predicted.time_s == pytest.approx(measured_us * 1e-6, rel=0.2), source


ALPS = "boeschf/nccl-benchmarks (2025): NCCL 2.23 over Slingshot 11 on Alps"
KERNELS = "NVIDIA AIConfigurator (2025): nccl-tests"


@pytest.mark.parametrize(
    ("source", "cluster", "operation", "gpus", "size", "measured_us"),
    [
        (ALPS, "gh200-quad", "allreduce", 128, 2**14, 247.6),
        (ALPS, "gh200-quad", "allreduce", 512, 2**16, 447.3),
        (ALPS, "gh200-quad", "allreduce", 2048, 2**24, 2607.5),
        (ALPS, "gh200-quad", "allreduce", 256, 2**28, 9949),
        (RACK, "gb200-nvl72", "allreduce", 144, 2**31, 6264.0),
        ("argonne-lcf/alcf-nccl-tests, Polaris", "polaris", "alltoall", 32, 2**24, 3227.7),
        ("aws-samples nccl-tests, 2 x p4de", "aws-p4d", "allreduce", 16, 2**16, 227.4),
        ("a3mega nccl-tests", "gcp-a3-mega", "allreduce", 16, 2**30, 6759.0),
        (KERNELS, "box-rtx-pro-6000", "reducescatter", 8, 2**26, 2536.4),
        (KERNELS, "box-rtx-pro-6000", "alltoall", 4, 2**21, 90.37),
        (KERNELS, "box-l40s-sockets", "reducescatter", 4, 2**23, 1300.7),
    ],
)
def test_networks_unlike_infiniband_within_four_tenths(source, cluster, operation, gpus, size, measured_us):
    wide = load_cluster(cluster).sized_for(gpus)[0]
    predicted_s = collective_time_s(wide, operation, size, gpus, tuning=AUTOMATIC).item()
    assert predicted_s == pytest.approx(measured_us * 1e-6, rel=0.4), source


SMALL_US = {"aws-p5": 60, "aws-p4d": 140, "gcp-a3-mega": 100, "gcp-a3-high": 130}


@pytest.mark.parametrize("name", SMALL_US)
@pytest.mark.parametrize("operation", ["allgather", "reducescatter"])
def test_small_gathers_pay_the_network_once_per_node_and_not_per_gpu(name, operation):
    """Two nodes of 8: 14 hops are NVLink's; over EFA of p6-b300 the least was measured as 49 us."""
    time_s = collective_time_s(load_cluster(name), operation, 8192, 16, tuning=AUTOMATIC).item()
    assert 30e-6 < time_s < SMALL_US[name] * 1e-6


def test_blocks_of_rings_follow_each_other_through_the_card():
    """TCPX takes 0.94 to 1.06 ms for 1 to 16 MiB on two A3 nodes, TCPXO half as long a step."""
    high, mega = (
        collective_time_s(load_cluster(name), "allgather", [2**20, 2**22, 2**24], 16, tuning=AUTOMATIC)
        for name in ("gcp-a3-high", "gcp-a3-mega")
    )
    assert high == pytest.approx([997e-6, 943e-6, 1063e-6], rel=0.2)
    assert (mega < 0.6 * high).all()


def test_blocks_over_efa_are_posted_on_each_card():
    """AllGather of 1 MiB on two nodes of p6-b300, with two cards per GPU, takes 149 us; p5 has four."""
    b300 = with_settings(load_cluster("b300-hgx"), "leaf.fabric=efa,leaf.hop_latency_us=15,leaf.link_gb_per_s=100")
    p5 = load_cluster("aws-p5")
    assert time_s(b300, "allgather", 2**20, (16, 1), tuning=AUTOMATIC) == pytest.approx(149e-6, rel=0.15)
    stripes = [network_of(one, place(one, [16], [1]), tuning=AUTOMATIC).stripes for one in (b300, p5)]
    assert stripes == [2, 4]


@pytest.mark.parametrize(("size", "measured_us"), [(2**12, 29.3), (2**14, 31.5), (2**20, 67.6)])
def test_small_sends_across_nodes_take_simple(size, measured_us):
    """A ring of sends over 64 B200; LL would take half as long."""
    found = time_s(load_cluster("b200-hgx"), "sendrecv", size, (64, 1), tuning=AUTOMATIC)
    assert found == pytest.approx(measured_us * 1e-6, rel=0.2)


@pytest.mark.parametrize(
    ("gpus", "size", "measured_us"),
    [
        (8, 512, 99.4), (8, 2048, 57.0), (32, 1024, 611.6), (32, 2**13, 282.7),
        (1024, 2**17, 23407.0), (1024, 2**18, 10366.0), (2160, 259200, 49269.0), (2160, 518400, 21655.0),
    ],
)  # fmt: skip
def test_tiny_messages_over_slingshot_pass_through_the_cpu(gpus, size, measured_us):
    """Polaris: messages of up to 128 bytes, held by the command of the card, take twice as long as twice as many."""
    wide = load_cluster("polaris").sized_for(gpus)[0]
    found = collective_time_s(wide, "alltoall", size, gpus, tuning=AUTOMATIC).item()
    assert found == pytest.approx(measured_us * 1e-6, rel=0.2)


@pytest.mark.parametrize(
    ("gpus", "mib", "algbw"),
    [(16, 128, 73.4), (16, 2048, 84.5), (32, 32, 35.6), (32, 512, 55.6), (64, 32, 29.1), (64, 128, 36.8),
     (64, 2048, 50.4), (128, 64, 26.3), (128, 512, 40.4), (256, 64, 23.0), (256, 256, 30.3), (256, 2048, 40.9)],
)  # fmt: skip
def test_alltoall_over_efa_as_measured_on_p5(gpus, mib, algbw):
    """github.com/crazyguitar/aws-gpu-communication-benchmark, data/nccl_alltoall.csv, out of place."""
    found = time_s(load_cluster("aws-p5"), "alltoall", mib * 2**20, (gpus, 1), tuning=AUTOMATIC)
    assert found == pytest.approx(mib * 2**20 / (algbw * 1e9), rel=0.15)


@pytest.mark.parametrize(
    ("gpus", "mib", "algbw"), [(16, 1024, 232.1), (64, 64, 52.8), (128, 64, 46.6), (128, 256, 74.6), (256, 256, 69.3)]
)
def test_trees_over_efa_wait_beyond_two_nodes(gpus, mib, algbw):
    """The same source, data/nccl_all_reduce.csv."""
    found = time_s(load_cluster("aws-p5"), "allreduce", mib * 2**20, (gpus, 1), tuning=AUTOMATIC)
    assert found == pytest.approx(mib * 2**20 / (algbw * 1e9), rel=0.2)


def test_messages_of_an_alltoall_wait_for_one_hop_together():
    far, near = (with_settings(load_cluster("aws-p4d"), f"fabric.hop_latency_us={one}") for one in (40, 10))
    more = [
        time_s(far, "alltoall", 2**10, (gpus, 1), tuning=AUTOMATIC)
        - time_s(near, "alltoall", 2**10, (gpus, 1), tuning=AUTOMATIC)
        for gpus in (16, 64, 512)
    ]
    assert more == pytest.approx([more[0]] * 3)


@pytest.mark.parametrize(("size", "measured_us"), [(2**13, 24.1), (2**14, 25.7), (2**17, 45.4)])
def test_blocks_that_fit_the_slots_of_a_ring_wait_for_no_handshake(size, measured_us):
    found = time_s(load_cluster("polaris"), "allgather", size, (8, 1), tuning=AUTOMATIC)
    assert found == pytest.approx(measured_us * 1e-6, rel=0.25)


def test_nodes_of_a_tree_wait_for_what_they_pass_on():
    """arXiv 2411.13055: AllReduce of 8 MiB on 64 and 256 H100; A3 Mega has no LL128, and takes 0.98 ms for 16 MiB."""
    pod = load_cluster("dgx-h100-superpod")
    for gpus, size, measured_us in ((64, 2**22, 237.3), (64, 2**23, 315.8), (256, 2**23, 468.1), (256, 2**24, 578.3)):
        found = collective_time_s(pod.sized_for(gpus)[0], "allreduce", size, gpus, tuning=AUTOMATIC).item()
        assert found == pytest.approx(measured_us * 1e-6, rel=0.2)
    mega = load_cluster("gcp-a3-mega")
    assert collective_time_s(mega, "allreduce", 2**24, 16, tuning=AUTOMATIC).item() > 0.55 * 977.6e-6
    net = network_of(mega, place(mega, [16], [1]), tuning=AUTOMATIC)
    assert not any("LL128" in one.name for one in options(net, "allreduce", 2.0**24))


def test_a_little_more_latency_is_a_little_more_time():
    """A card as slow as twice InfiniBand is no other kind of network: 9.5 instead of 7.5 us, for TP over two nodes."""
    times = []
    for hop_us in (7.5, 9.5):
        pod = load_cluster("dgx-h100-superpod")
        levels = [pod.levels[0], *(replace(one, hop_latency_s=hop_us * 1e-6) for one in pod.levels[1:])]
        times.append(collective_time_s(replace(pod, levels=tuple(levels)), "allgather", 2**25, 16).item())
    assert times[0] < times[1] < 1.1 * times[0]


def test_messages_over_libfabric_pay_for_each_doubling_and_hop():
    """9 us at 4 KiB and 24 us at 64 KiB per hop of a tree over Slingshot, whatever the number of nodes."""
    slingshot = load_cluster("gh200-quad").sized_for(2048)[0]
    verbs = replace(slingshot, levels=(slingshot.levels[0], replace(slingshot.levels[1], fabric="infiniband")))
    for nodes, hops in ((32, 10), (512, 18)):
        extra = [
            time_s(slingshot, "allreduce", size, (4 * nodes, 1)) - time_s(verbs, "allreduce", size, (4 * nodes, 1))
            for size in (2**12, 2**16)
        ]
        assert [one / hops * 1e6 for one in extra] == pytest.approx([5.0 * np.log2(3), 5.0 * np.log2(33)], rel=0.1)


def test_a_copy_is_nothing_beside_pcie_but_shows_behind_nvlink():
    box, node = load_cluster("box-rtx-pro-6000"), load_cluster("b200-hgx")
    for cluster, low, high in ((box, 0.9, 1.0), (node, 0.6, 0.9)):
        first = cluster.levels[0]
        wire = 2**33 / 2 / (first.egress_bytes_per_s * first.link_efficiency)
        assert low < wire / time_s(cluster, "allgather", 2**33, (2, 1)) < high


def test_the_table_of_compared_points_is_that_of_now(monkeypatch):
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    compare = importlib.import_module("compare_collectives")
    lines = compare.table().splitlines()[2:]
    assert len(lines) == 20
    page = (root / "docs" / "collectives.md").read_text()
    assert page.split(compare.START)[1].split(compare.END)[0] == compare.table(), "run compare_collectives.py --write"
    assert np.median([abs(float(one.split("|")[-2].strip(" %"))) for one in lines]) < 15


def test_a_cluster_is_not_changed_by_what_is_asked_of_it():
    cluster = replace(CLUSTER, name="used")
    before = pickle.dumps(cluster)
    for size in (8, 64, 1024):
        collective_time_s(cluster, "allreduce", np.full(300, 1e6), size)
    assert pickle.dumps(cluster) == before


@pytest.mark.parametrize(
    ("gpus", "size", "measured_s", "off"),
    [(16, 2**27, 1449e-6, 0.2), (16, 2**34, 90115e-6, 0.05), (32, 2**34, 94942e-6, 0.05)],
)
def test_rccl_across_nodes_as_measured(gpus, size, measured_s, off):
    """Rings that go on to the next node fill a mesh with as many as it has GPUs; each network hop costs 320 us."""
    cluster = load_cluster("mi300x")
    assert time_s(cluster, "allreduce", size, (gpus, 1), tuning=AUTOMATIC) == pytest.approx(measured_s, rel=off)


@pytest.mark.parametrize(("size", "measured_us"), [(2**10, 53.9), (2**14, 56.7), (2**15, 60.9)])
def test_rccl_has_network_hops_of_its_own(size, measured_us):
    """Two nodes of MI300X, RCCL 2.28 (ROCm/rocm-systems pull request 3272)."""
    found = time_s(load_cluster("mi300x"), "allreduce", size, (16, 1), tuning=AUTOMATIC)
    assert found == pytest.approx(measured_us * 1e-6, rel=0.1)


@pytest.mark.parametrize(("members", "nodes", "share"), [(8, 1, 1), (8, 2, 8 / 7), (2, 4, 2), (1, 4, 1)])
def test_paths_through_a_mesh_use_more_of_its_links_than_rings_in_it(members, nodes, share):
    assert path_share(load_cluster("mi300x"), np.array([members]), np.array([nodes])) == pytest.approx(share)
    assert path_share(load_cluster("dgx-h100-superpod"), np.array([members]), np.array([nodes])) == 1
