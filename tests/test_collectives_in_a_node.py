"""Collectives inside a node, alone: protocols as NCCL's tables have them, small messages, hops behind bytes.

Measured times: nccl-tests in NVIDIA AIConfigurator's kernel database (2025, NCCL 2.27 and 2.29).
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.collectives.estimate import options, price_collective
from gpuscale.collectives.groups import place
from gpuscale.collectives.nccl import planned_bytes_per_s, protocol_ends, taken_s, timings
from gpuscale.collectives.nccl_constants import AUTOMATIC, Tuning
from gpuscale.collectives.network import network_of
from gpuscale.collectives.times import collective_time_s
from gpuscale.presets.hardware import load_cluster
from gpuscale.units import KIB, MIB


def network(cluster, gpus, tuning=AUTOMATIC):
    whole = load_cluster(cluster)
    return network_of(whole, place(whole, [gpus], 1), tuning=tuning)


def time_us(cluster, operation, size, gpus):
    return collective_time_s(load_cluster(cluster), operation, size, gpus, tuning=AUTOMATIC).item() * 1e6


def chosen(cluster, operation, size, gpus):
    return price_collective(cluster, operation, size, gpus=gpus).algorithm


@pytest.mark.parametrize(
    ("cluster", "operation", "gpus", "size", "algorithm"),
    [  # AllGather on 8 B200 takes 44 us for 8 MiB, as LL does, and 104 us for 16 MiB, as Simple does
        ("b200-hgx", "allgather", 8, 8 * MIB, "ring LL"),
        ("b200-hgx", "allgather", 8, 16 * MIB, "ring Simple"),
        ("b200-hgx", "allreduce", 4, 4 * MIB, "ring LL"),
        ("b200-hgx", "allreduce", 4, 8 * MIB, "ring Simple"),
        ("b200-hgx", "allreduce", 8, 8 * MIB, "NVLS Simple"),
        ("h200-hgx", "allgather", 4, 2 * MIB, "ring LL"),
        ("h200-hgx", "allgather", 4, 4 * MIB, "ring Simple"),
        ("dgx-h100-superpod", "allgather", 8, 16 * MIB, "ring LL128"),
        ("dgx-a100-superpod", "allreduce", 8, 4 * MIB, "ring LL128"),
        ("dgx-a100-superpod", "allgather", 8, 16 * MIB, "ring Simple"),
        ("box-rtx-pro-6000", "allgather", 8, 512 * KIB, "ring LL"),
        ("box-rtx-pro-6000", "allgather", 8, 1 * MIB, "ring Simple"),
    ],
)
def test_nccl_changes_its_protocol_where_its_tables_say(cluster, operation, gpus, size, algorithm):
    assert chosen(cluster, operation, size, gpus) == algorithm


def test_ends_of_the_protocols_by_hand():
    """LL 6.6 + 7 x 0.6 us and 282 GB/s, LL128 14 + 7 x 1.9 and 552, Simple 8.4 + 7 x 3.4 and 720 of 8 B200."""
    ll, ll128 = protocol_ends(network("b200-hgx", 8), passes=1)
    assert ll.item() == pytest.approx(16.5e-6 / (7 / 8 * (1 / 282e9 - 1 / 552e9)))
    assert ll128.item() == pytest.approx(4.9e-6 / (7 / 8 * (1 / 552e9 - 1 / 720e9)))
    assert planned_bytes_per_s(network("b200-hgx", 8, tuning=None)) == 0.0
    assert planned_bytes_per_s(network("mi300x", 8)) == 0.0
    assert planned_bytes_per_s(network("box-a100-pcie-pairs", 4)) == 0.0


def test_what_nccl_would_not_choose_can_be_asked_for():
    for algorithm, protocol in (("ring", "ll"), ("ring", "ll128"), ("tree", "simple"), ("nvls", None)):
        asked = price_collective("b200-hgx", "allreduce", 64 * MIB, gpus=4, algorithm=algorithm, protocol=protocol)
        assert asked.algorithm.lower().startswith(f"{algorithm} {protocol or ''}")
    assert price_collective("b200-hgx", "allreduce", 64 * MIB, gpus=4, algorithm="ring").algorithm == "ring Simple"
    able = options(network("b200-hgx", 4), "allreduce", 8.0 * MIB)
    assert [one.name for one in able[:2]] == ["ring Simple", "ring LL128"]  # the second is faster, but not taken
    assert able[1].time_s < able[0].time_s


def test_of_what_nccl_would_choose_nothing_of_the_fastest_counts():
    found = [
        one for one in timings(network("b200-hgx", 4), "allreduce", np.array([8.0 * MIB])) if one.algorithm == "tree"
    ]
    assert not any(one.chosen.any() for one in found)
    assert taken_s(found) == min(one.time_s for one in found)


@pytest.mark.parametrize(
    ("cluster", "gpus", "has"),
    [
        ("b200-hgx", 8, True),
        ("box-l40s", 8, False),
        ("box-a100-pcie-pairs", 2, True),
        ("box-a100-pcie-pairs", 4, False),
    ],
)
def test_ll128_never_crosses_pcie(cluster, gpus, has):
    names = {one.name for one in options(network(cluster, gpus), "allgather", 1.0 * MIB)}
    assert ("ring LL128" in names) == has


@pytest.mark.parametrize(
    ("cluster", "operation", "gpus", "size", "measured_us"),
    [
        # lines of LL: 19 us from 64 to 256 KiB, 15.6 below 4 KiB
        ("dgx-h100-superpod", "allreduce", 8, 512, 15.6),
        ("dgx-h100-superpod", "allreduce", 8, 64 * KIB, 18.7),
        ("h200-hgx", "allgather", 4, 128 * KIB, 9.0),
        ("dgx-a100-superpod", "reducescatter", 8, 128 * KIB, 18.2),
        # hops of Simple behind bytes
        ("b200-hgx", "allgather", 8, 16 * MIB, 103.9),
        ("b200-hgx", "allgather", 8, 32 * MIB, 113.8),
        ("b200-hgx", "allgather", 8, 64 * MIB, 137.5),
        ("b200-hgx", "allgather", 8, 128 * MIB, 206.7),
        ("gb200-nvl72", "allreduce", 2, 4 * MIB, 38.3),
        ("gb200-nvl72", "allreduce", 4, 8 * MIB, 88.1),
        ("h200-hgx", "allgather", 4, 16 * MIB, 63.8),
        # messages: one channel with LL up to 16 KiB per peer, one for each 64 KiB beyond
        ("dgx-h100-superpod", "alltoall", 2, 512, 6.5),
        ("dgx-h100-superpod", "alltoall", 2, 32 * KIB, 9.1),
        ("dgx-h100-superpod", "alltoall", 2, 128 * KIB, 14.0),
        ("dgx-h100-superpod", "alltoall", 2, 1 * MIB, 14.8),
        ("b200-hgx", "alltoall", 4, 256 * KIB, 17.3),
        ("b200-hgx", "alltoall", 4, 2 * MIB, 19.6),
        # hops over PCIe
        ("box-rtx-pro-6000", "allgather", 8, 1 * MIB, 75.3),
        ("box-rtx-pro-6000", "reducescatter", 4, 1 * MIB, 51.3),
    ],
)
def test_small_and_middle_sizes_as_measured(cluster, operation, gpus, size, measured_us):
    assert time_us(cluster, operation, size, gpus) == pytest.approx(measured_us, rel=0.1)


CLUSTERS = ("b200-hgx", "dgx-h100-superpod", "dgx-a100-superpod", "box-l40s-sockets", "box-rtx-pro-6000", "gb200-nvl72")


@given(
    st.sampled_from(CLUSTERS),
    st.sampled_from(["allreduce", "allgather", "reducescatter", "alltoall", "sendrecv", "broadcast"]),
    st.sampled_from([2, 3, 4, 5, 8]),
    st.floats(1, 2.0**32),
    st.floats(1, 4),
    st.sampled_from([AUTOMATIC, Tuning(launch="one-process"), Tuning(launch="graph"), Tuning(channels=4)]),
)
def test_time_never_falls_with_bytes_where_protocols_change(cluster, operation, gpus, size, factor, tuning):
    sizes = np.array([size, size * factor])
    small, large = collective_time_s(load_cluster(cluster), operation, sizes, gpus, tuning=tuning)
    assert large >= small * (1 - 1e-12)
