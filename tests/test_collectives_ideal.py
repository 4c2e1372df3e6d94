"""The ideal model reproduces the worked numbers of the scaling book's GPU chapter (errata: docs/collectives.md)."""

from dataclasses import replace

import numpy as np
import pytest
from clusters import mesh_box, superpod_2to1

from gpuscale.collectives.groups import place
from gpuscale.collectives.ideal import OPERATIONS, bus_factor, level_times_s, operation_named
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError

B = 2.0**25
CLUSTER = superpod_2to1()


def one(operation, size, group, stride=1, **options):
    return collective_time_s(CLUSTER, operation, size, group, stride, ideal=True, **options).item()


def test_levels_of_the_reference_cluster():
    node, leaf, spine = CLUSTER.levels
    assert [level.egress_bytes_per_s for level in CLUSTER.levels] == [450e9, 50e9, 25e9]
    assert (node.total_bytes_per_s, leaf.total_bytes_per_s, spine.total_bytes_per_s) == (3.6e12, 12.8e12, 25.6e12)


@pytest.mark.parametrize(
    ("operation", "group", "expected_s"),
    [
        ("allreduce", 256, 83.886e-6),  # leaf binds: 400 GB/s per node
        ("allreduce", 1024, 83.886e-6),  # inherited from the leaf
        ("allreduce", 8, 74.565e-6),  # 450 GB/s
        ("allgather", 8, 65.245e-6),  # B 7/8 / 450e9; the book prints 9 us, an erratum
        ("reducescatter", 8, 65.245e-6),
        ("broadcast", 256, 83.886e-6),
        ("alltoall", 8, 65.245e-6),
        ("alltoall", 1024, B * (1 - 256 / 1024) / 25e9),  # 25 GB/s per GPU at the spine
    ],
)
def test_worked_numbers(operation, group, expected_s):
    assert one(operation, B, group) == pytest.approx(expected_s, rel=1e-4)


def test_without_sharp_allreduce_costs_reducescatter_and_allgather():
    for group in (2, 8, 64, 256, 1024):
        twice = one("reducescatter", B, group) + one("allgather", B, group)
        plain = replace(CLUSTER, nvls=False, sharp=False)
        assert collective_time_s(plain, "allreduce", B, group, ideal=True).item() == pytest.approx(twice)


@pytest.mark.parametrize(("level", "seconds_per_byte"), [(0, 8 / 3.6e12), (1, 32 / 12.8e12), (2, 4 / 25.6e12)])
def test_tree_form_per_level(level, seconds_per_byte):
    """T = max_i(B N_sub_i / W_i), S0: 2.22e-12, 2.5e-12 and 1.56e-13 s/byte."""
    times = level_times_s(CLUSTER, "allreduce", np.array([B]), place(CLUSTER, [1024], [1]))
    assert times[level, 0] == pytest.approx(B * seconds_per_byte)


def test_allgather_at_the_top_switch_moves_m_minus_1_copies():
    times = level_times_s(CLUSTER, "allgather", np.array([B]), place(CLUSTER, [1024], [1]))
    assert times[2, 0] == pytest.approx(B * (4 - 1) / 25.6e12)


@pytest.mark.parametrize(
    ("inner", "effective"), [(64, {1: 3.2e12, 2: 6.4e12}), (256, {2: 6.4e12}), (8, {1: 400e9, 2: 6.4e12})]
)
def test_strided_form_per_level(inner, effective):
    """The array before it is split Y ways, over the time: max(Y, S_{i-1}) W_i / S_i at each level that is crossed."""
    times = level_times_s(CLUSTER, "allreduce", np.array([B / inner]), place(CLUSTER, [1024 // inner], [inner]))
    for level, bytes_per_s in effective.items():
        assert B / times[level, 0] == pytest.approx(bytes_per_s)
    assert times[0, 0] == 0


def test_allreduce_of_a_sharded_array_in_a_node():
    """S0 problem 1: two shards in one node halve the time; across nodes all B bytes still leave the node."""
    assert one("allreduce", B / 2, 4, 2) == pytest.approx(B / 2 / 450e9)
    assert one("allreduce", B / 8, 32, 8) == pytest.approx(B / 400e9)


def test_sendrecv_takes_the_outermost_level_crossed():
    assert one("sendrecv", B, 2, 1) == pytest.approx(B / 450e9)
    assert one("sendrecv", B, 2, 8) == pytest.approx(B / 50e9)
    assert one("sendrecv", B, 2, 256) == pytest.approx(B / 25e9)


def test_uneven_groups_are_bound_by_their_thinnest_part():
    groups = place(CLUSTER, [12, 9, 16], [1, 1, 1])
    assert groups.members[0].tolist() == [8, 8, 8]
    assert groups.inner[1].tolist() == [4, 1, 8]
    assert one("allgather", B, 9) == pytest.approx(B * (8 / 9) / 50e9)


def test_mesh_gives_a_pair_its_own_links_only():
    assert collective_time_s(mesh_box(), "allgather", B, 2, ideal=True).item() == pytest.approx(B / 2 / 64e9)
    assert collective_time_s(mesh_box(), "allgather", B, 8, ideal=True).item() == pytest.approx(B * 7 / 8 / 448e9)


def test_a_group_of_one_takes_no_time():
    for operation in OPERATIONS:
        assert collective_time_s(CLUSTER, operation, B, 1, 1, ideal=True) == 0


@pytest.mark.parametrize(("group", "stride"), [(0, 1), (4, 0), (1025, 1), (128, 16)])
def test_impossible_groups_are_refused(group, stride):
    with pytest.raises(InputError):
        collective_time_s(CLUSTER, "allreduce", B, group, stride, ideal=True)


def test_bus_factors_are_those_of_nccl_tests():
    eight = np.array([8.0])
    factors = {operation: bus_factor(operation, eight).item() for operation in OPERATIONS}
    assert factors == {
        "allreduce": 1.75,
        "allgather": 0.875,
        "reducescatter": 0.875,
        "alltoall": 0.875,
        "broadcast": 1,
        "reduce": 1,
        "sendrecv": 1,
    }


def test_spellings():
    for text in ("allreduce", "AllReduce", "all-reduce", "ALL_REDUCE", "ar"):
        assert operation_named(text) == "allreduce"
    with pytest.raises(InputError, match="unknown collective"):
        operation_named("gossip")
