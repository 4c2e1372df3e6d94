"""NCCL's channels: how many there are, what they carry, and what forcing them does."""

import json
from itertools import pairwise

import numpy as np
import pytest
from clusters import mesh_box, superpod_2to1
from command import assert_one_message, gpuscale
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscale.collectives.channels import graph_channels, peer_channels
from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.collectives.groups import place
from gpuscale.collectives.ideal import OPERATIONS
from gpuscale.collectives.nccl_constants import AUTOMATIC, NEWEST, Tuning
from gpuscale.collectives.network import network_of
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster

CLUSTER = superpod_2to1()
MIB, GIB = 2**20, 2**30
SIMPLE_RING = {"algorithm": "ring", "protocol": "simple"}


def net_of(name, gpus, stride=1, version=NEWEST):
    cluster = load_cluster(name).sized_for(gpus * stride)[0]
    return network_of(cluster, place(cluster, [gpus], [stride]), tuning=Tuning(nccl=version))


@pytest.mark.parametrize(
    ("name", "gpus", "stride", "channels"),
    [  # NCCL's logs: 24 in a node of A100 or H100, 16 across nodes with eight cards, 4 with one GPU and card per node
        ("dgx-a100-superpod", 8, 1, 24),
        ("dgx-h100-superpod", 8, 1, 24),
        ("b200-hgx", 8, 1, 32),
        ("dgx-h100-superpod", 64, 1, 16),
        ("dgx-h100-superpod", 10, 8, 4),
        ("dgx-h100-superpod", 40, 2, 16),
        ("dgx-a100-superpod", 16, 1, 16),
        ("polaris", 32, 1, 4),
        ("gb200-nvl72", 144, 1, 64),
    ],
)
def test_channels_of_rings(name, gpus, stride, channels):
    assert graph_channels(net_of(name, gpus, stride)).tolist() == [channels]


@pytest.mark.parametrize(
    ("name", "gpus", "stride", "version", "least", "most"),
    [  # paths.cc and enqueue.cc, followed by hand
        ("dgx-h100-superpod", 2, 1, (2, 30), 16, 32),
        ("dgx-h100-superpod", 8, 1, (2, 30), 4, 32),
        ("b200-hgx", 16, 1, (2, 30), 1, 4),
        ("b200-hgx", 64, 1, (2, 30), 1, 2),
        ("b200-hgx", 128, 1, (2, 30), 1, 1),
        ("b200-hgx", 32, 1, (2, 28), 1, 2),
        ("b200-hgx", 64, 1, (2, 28), 1, 1),
        ("dgx-h100-superpod", 10, 8, (2, 29), 1, 2),
        ("dgx-h100-superpod", 2, 8, (2, 30), 2, 4),
    ],
)
def test_channels_of_a_message(name, gpus, stride, version, least, most):
    found = peer_channels(net_of(name, gpus, stride, version))
    assert (found.least.item(), found.most.item()) == (least, most)


CLUSTER01 = "xxrjun/nccl-tests-cluster (2026): sendrecv_perf with NCCL 2.29.2 on H100 with a card of 400 Gbit/s each"


@pytest.mark.parametrize(
    ("source", "gpus", "stride", "size", "measured_us"),
    [
        (CLUSTER01, 8, 1, 32 * MIB, 422.2),  # 4 channels
        (CLUSTER01, 8, 1, 128 * MIB, 825.7),  # 8 channels
        (CLUSTER01, 8, 1, 256 * MIB, 896.4),  # 16 channels, and the links
        (CLUSTER01, 8, 1, 8 * GIB, 23403),  # the links
        (CLUSTER01, 10, 8, GIB, 43154),  # 2 channels of a card
        (CLUSTER01, 40, 2, GIB, 40899),
    ],
)
def test_rings_of_sends_take_what_was_measured(source, gpus, stride, size, measured_us):
    cluster = load_cluster("azure-ndv5").sized_for(gpus * stride)[0]
    predicted_s = collective_time_s(cluster, "sendrecv", size, gpus, stride, tuning=AUTOMATIC).item()
    assert predicted_s == pytest.approx(measured_us * 1e-6, rel=0.15), source
    step_s = collective_time_s(cluster, "sendrecv", size, gpus, stride).item()
    assert step_s == predicted_s  # pipelines send as nccl-tests does, in and across nodes


def test_a_pair_across_nodes_has_the_channels_that_its_card_needs():
    for name in ("dgx-h100-superpod", "dgx-a100-superpod", "b200-hgx", "aws-p5"):
        cluster = load_cluster(name)
        alone, step = (
            collective_time_s(cluster, "sendrecv", GIB, 2, 8, tuning=one).item() for one in (AUTOMATIC, None)
        )
        assert alone == pytest.approx(step, rel=1e-3)


@given(
    st.sampled_from([one for one in OPERATIONS if one != "sendrecv"]),
    st.sampled_from([(8, 1), (4, 2), (16, 1), (64, 1), (32, 8), (256, 1)]),
    st.integers(30, 36),
    st.integers(1, 64),
    st.integers(1, 64),
)
@settings(deadline=None)
def test_more_channels_are_never_slower_with_much_to_move(operation, group, power, one, other):
    times = [
        collective_time_s(CLUSTER, operation, 2.0**power, *group, tuning=Tuning(channels=count)).item()
        for count in sorted((one, other))
    ]
    assert times[1] <= times[0] * (1 + 1e-12)


@given(st.sampled_from(OPERATIONS), st.sampled_from([(8, 1), (16, 1), (64, 1), (32, 8)]), st.integers(1, 64))
@settings(deadline=None)
def test_no_number_of_channels_exceeds_the_wire(operation, group, count):
    size, stride = group
    level = CLUSTER.level_index("leaf" if size > 8 else "node")
    groups = place(CLUSTER, [size], [stride])
    wire = groups.wire_bytes_per_s[level] * CLUSTER.levels[level].link_efficiency
    moved = {"allgather": 1 - 1 / size, "alltoall": (1 - groups.inner[level] / size) * groups.inner[level]}
    least_s = 2.0**34 * np.max(moved.get(operation, 0.0)) / wire.item()
    found = collective_time_s(CLUSTER, operation, 2.0**34, size, stride, tuning=Tuning(channels=count))
    assert found.item() >= least_s * (1 - 1e-12)


SHARED_CARDS = ("polaris", "aws-p4d", "gcp-a3-high", "dgx2-v100", "aws-g6e", "aws-p5-eni")
"""Clusters on which several GPUs share a network card."""


@given(
    st.sampled_from((*SHARED_CARDS, "dgx-h100-superpod-2to1", "leonardo", "gb200-nvl72")),
    st.sampled_from(OPERATIONS),
    st.sampled_from([(4, 2), (8, 2), (16, 4), (12, 1), (6, 3), (10, 16), (24, 8)]),
    st.one_of(st.none(), st.integers(1, 64)),
    st.integers(10, 36),
)
@settings(deadline=None)
def test_a_group_alone_is_never_slower_than_beside_others(name, operation, group, count, power):
    gpus, stride = group
    times = [
        price_collective(
            load_cluster(name),
            operation,
            2**power,
            gpus=gpus,
            siblings=Siblings(stride, concurrent),
            tuning=Tuning(channels=count),
        ).time_s
        for concurrent in (1, 2, 4, None)
    ]
    assert all(fewer <= more * (1 + 1e-12) for fewer, more in pairwise(times))


def test_a_channel_drives_its_part_of_the_links_whoever_else_uses_them():
    def price(name, stride, concurrent, channels=None):
        siblings, tuning = Siblings(stride, concurrent), Tuning(channels=channels)
        return price_collective(load_cluster(name), "allgather", 2**32, gpus=8, siblings=siblings, tuning=tuning)

    for name in ("aws-g6e", "polaris", "aws-p4d"):  # bound by the node's own links, and by the cards
        alone, both = price(name, 2, 1), price(name, 2, None)
        assert alone.channels == both.channels  # NCCL does not know of the other group when it plans
        alone, both = (price(name, 2, one, alone.channels // 2) for one in (1, None))
        assert alone.bound_by == "channels"
        assert both.time_s == pytest.approx(alone.time_s, rel=0.01)


def test_channels_drive_links_and_not_what_switches_leave_of_them():
    cluster = load_cluster("dgx-h100-superpod-2to1")
    group = {"gpus": 4, "siblings": Siblings(256), **SIMPLE_RING}
    all_four, two, one = (
        price_collective(cluster, "allgather", 2**32, tuning=Tuning(channels=count), **group) for count in (4, 2, 1)
    )
    assert two.time_s == all_four.time_s  # the spine's switches carry half of what the cards do
    assert one.time_s == pytest.approx(2 * two.time_s, rel=0.01)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("gpus", [8, 64])
def test_the_number_that_is_shown_is_the_one_that_runs(operation, gpus):
    size = 3 * MIB
    automatic = price_collective(CLUSTER, operation, size, gpus=gpus)
    assert automatic.channels > 0
    shown = int(graph_channels(network_of(CLUSTER, place(CLUSTER, [gpus], [1])))[0])
    forced = price_collective(CLUSTER, operation, size, gpus=gpus, tuning=Tuning(channels=shown))
    assert forced.time_s == pytest.approx(automatic.time_s, rel=1e-12)


def test_fewer_channels_than_the_graph_has_carry_as_much_less():
    times = [
        price_collective(
            CLUSTER,
            "allgather",
            2**34,
            level="node",
            algorithm="ring",
            protocol="simple",
            tuning=Tuning(channels=count),
        )
        for count in (24, 12, 6)
    ]
    assert times[1].time_s / times[0].time_s == pytest.approx(2, rel=0.1)
    assert times[2].time_s / times[0].time_s == pytest.approx(4, rel=0.1)
    assert [one.bound_by for one in times] == ["node", "channels", "channels"]


def test_the_verdict_names_the_channels():
    options = ("--gpus", "8", "--bytes", "32MiB", "--cluster", "azure-ndv5")
    done = gpuscale("collective", "sendrecv", *options, columns=200)
    assert "bound by channels; point-to-point Simple with 4 channels" in done.lines[0]
    body = json.loads(gpuscale("collective", "allgather", "--bytes", "1GB", "--level", "node", "--json").out)
    assert (body["channels"], body["bound_by"]) == (24, "node")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--channels", "0"), "--channels: 0 channels is out of range", "give 1 to 64"),
        (("--channels", "65"), "--channels: 65 channels is out of range", "give 1 to 64"),
        (("--channels", "8", "--cluster", "mi300x"), "how many channels AMD Instinct MI300X", "NVIDIA GPUs"),
    ],
)
def test_bad_numbers_of_channels_are_refused(arguments, message, hint):
    assert_one_message(gpuscale("collective", "allreduce", "--bytes", "1MB", *arguments), message, hint)


def test_nothing_is_known_of_other_vendors_channels():
    assert price_collective(mesh_box(), "allreduce", MIB).channels == 0
    with pytest.raises(InputError, match="not known"):
        price_collective(mesh_box(), "allreduce", MIB, tuning=Tuning(channels=4))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("group", [(8, 1), (32, 1), (1, 1)])
def test_times_with_channels_that_nobody_knows_are_refused(operation, group):
    cluster = load_cluster("mi300x")
    with pytest.raises(InputError, match=r"how many channels AMD Instinct MI300X.* takes is not known") as refused:
        collective_time_s(cluster, operation, MIB, *group, tuning=Tuning(channels=4))
    assert (refused.value.field, refused.value.hint) == ("channels", "the model has NCCL's numbers, for NVIDIA GPUs")
    assert np.isfinite(collective_time_s(cluster, operation, MIB, *group, tuning=AUTOMATIC))
