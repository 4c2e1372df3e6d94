"""What crosses each level: counted block by block, and as the models have it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from clusters import superpod_2to1

from gpuscale.collectives.alltoall import Routing, distinct_targets
from gpuscale.collectives.groups import place
from gpuscale.collectives.ideal import level_times_s
from gpuscale.collectives.nccl import level_times_s as real_level_times_s
from gpuscale.collectives.network import network_of
from gpuscale.collectives.times import collective_time_s

SMALL = superpod_2to1(node={"gpus": 4}, leaf={"gpus": 16}, spine={"gpus": 64})
GROUPS = [(4, 1), (2, 2), (8, 1), (16, 1), (8, 2), (4, 4), (32, 1), (64, 1), (16, 4), (8, 8)]
BYTES = 2.0**20


def unit(gpu, level):
    """Which unit that a level joins a GPU is in: itself at the first level."""
    return gpu if level == 0 else gpu // SMALL.levels[level - 1].gpus


def counted(operation, gpus, stride, level):
    """Bytes that leave units for good across a level, summed over the group, block by block."""
    members = [index * stride for index in range(gpus)]
    if operation == "alltoall":
        pairs = itertools.permutations(members, 2)
        return sum(BYTES / gpus for one, other in pairs if unit(one, level) != unit(other, level))
    owners = {}
    for one in members:
        owners.setdefault(unit(one, level), set()).add(one)
    # a unit takes in every block that none of its members has (AllGather), or sends out as many partial sums
    return sum(BYTES / gpus * (gpus - len(held)) for held in owners.values())


@pytest.mark.parametrize(("gpus", "stride"), GROUPS)
@pytest.mark.parametrize("operation", ["alltoall", "allgather", "reducescatter"])
def test_bytes_over_all_links_of_a_level_are_those_that_have_to_cross(operation, gpus, stride):
    groups = place(SMALL, [gpus], [stride])
    times = level_times_s(SMALL, operation, np.array([BYTES]), groups)[:, 0]
    for level in range(3):
        units = groups.instances[level, 0]
        moved = times[level] * groups.wire_bytes_per_s[level, 0] * units
        expected = counted(operation, gpus, stride, level) if groups.crossed[level, 0] else 0.0
        assert moved == pytest.approx(expected)


@pytest.mark.parametrize(("gpus", "stride"), GROUPS)
def test_an_exchange_moves_the_same_bytes_at_the_rate_that_links_reach(gpus, stride):
    net = network_of(SMALL, place(SMALL, [gpus], [stride]))
    times = real_level_times_s(net, "alltoall", np.array([BYTES]), "point-to-point")[:, 0]
    for level in np.flatnonzero(net.groups.crossed[:, 0]):
        moved = times[level] * net.level_bytes_per_s[level, 0] * net.groups.instances[level, 0]
        assert moved == pytest.approx(counted("alltoall", gpus, stride, level))


@pytest.mark.parametrize(("gpus", "stride"), GROUPS)
def test_a_flat_ring_moves_n_minus_1_blocks_over_every_hop(gpus, stride):
    """Each of n - 1 steps sends a block over each of the n hops; those into another unit cross the level."""
    members = [index * stride for index in range(gpus)]
    hops = list(zip(members, members[1:] + members[:1], strict=True))
    net = network_of(SMALL, place(SMALL, [gpus], [stride]))
    times = real_level_times_s(net, "allgather", np.array([BYTES]), "ring")[:, 0]
    for level in np.flatnonzero(net.groups.crossed[:, 0]):
        crossing = sum(unit(one, level) != unit(other, level) for one, other in hops)
        moved = times[level] * net.level_bytes_per_s[level, 0] * net.groups.instances[level, 0]
        assert moved == pytest.approx(crossing * (gpus - 1) * BYTES / gpus)


@pytest.mark.parametrize(("gpus", "stride"), GROUPS)
@pytest.mark.parametrize("bytes_", [1.0, 2.0**24])
def test_ideal_allreduce_is_reducescatter_and_allgather_without_reduction_in_switches(gpus, stride, bytes_):
    one = {
        operation: collective_time_s(
            replace(SMALL, nvls=False, sharp=False), operation, bytes_, gpus, stride, ideal=True
        ).item()
        for operation in ("allreduce", "reducescatter", "allgather")
    }
    assert one["allreduce"] == pytest.approx(one["reducescatter"] + one["allgather"])


@pytest.mark.parametrize(("targets", "choices"), [(2, 1), (2, 3), (4, 2), (3, 4)])
def test_copies_of_a_token_are_counted_over_all_choices(targets, choices):
    """Every expert as likely as the others: of countless ones any sequence of targets, of a few any set of experts."""
    drawn = [len(set(chosen)) for chosen in itertools.product(range(targets), repeat=choices)]
    assert distinct_targets(np.array([targets]), Routing(choices)).item() == pytest.approx(np.mean(drawn))
    experts = 2 * targets
    sets = itertools.combinations(range(experts), choices)
    reached = [len({expert * targets // experts for expert in chosen}) for chosen in sets]
    found = distinct_targets(np.array([targets]), Routing(choices, experts=experts)).item()
    assert found == pytest.approx(np.mean(reached))
    assert choices == 1 or found > np.mean(drawn)
