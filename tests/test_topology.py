"""Tori, dragonflies and rails: worked numbers, brute force over single links, and properties of the prices."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from clusters import GB, superpod_2to1
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpuscale.collectives.estimate import price_collective
from gpuscale.collectives.groups import SPINE_HOP_S, place, shared_by
from gpuscale.collectives.ideal import OPERATIONS
from gpuscale.collectives.times import collective_time_s
from gpuscale.collectives.topology import (
    dragonfly_share,
    extent,
    on_rails,
    rails_of,
    torus_exchange,
    torus_hops,
    torus_ring,
)
from gpuscale.placement import extents
from gpuscale.presets.hardware import load_cluster, load_gpu
from gpuscale.specs.cluster import ClusterSpec, LevelSpec

TPU = load_cluster("tpu-v5p-pod")
LEONARDO = load_cluster("leonardo")
B = 1e9


def ideal_time_s(*arguments, **options):
    return np.atleast_1d(collective_time_s(*arguments, ideal=True, **options))


def torus(*shape, gpus_per_unit=1):
    """A torus of v5p chips; with several GPUs per unit, of nodes that a switch joins inside."""
    chip = load_gpu("tpu-v5p")
    units = int(np.prod(shape))
    level = LevelSpec("pod", "ici", units * gpus_per_unit, 540 * GB, 0, 0.0, 1e-6, False, 0.9)
    level = replace(level, topology="torus", torus_shape=tuple(shape))
    levels = (level,)
    if gpus_per_unit > 1:
        levels = (LevelSpec("node", "ici", gpus_per_unit, 540 * GB, 1, 1e15, 1e-6, False, 0.9), level)
    return ClusterSpec("torus", "torus", chip, levels, False, {})


def dragonfly(groups=9, group_gpus=32, share=None, per_gpu=10 * GB):
    """Nodes of 8 H100 in groups that global links join."""
    base = superpod_2to1()
    cells = replace(base.levels[1], gpus=group_gpus, switches=0)
    top = replace(base.levels[2], gpus=groups * group_gpus, switches=0, in_network_reduction=False)
    top = replace(top, topology="dragonfly", global_bytes_per_s=per_gpu, minimal_share=share)
    return replace(base, levels=(base.levels[0], cells, top))


def railed(kind="optimised", pxn=True, **changes):
    """The SuperPOD whose leaves are rails under a 2:1 spine."""
    rails = {"rails": kind, "pxn": pxn}
    spine = rails if kind == "only" else {}
    return superpod_2to1(leaf={**rails, **changes}, spine=spine)


# -- tori --


@pytest.mark.parametrize(
    ("size", "stride", "links"),
    [
        (16, 1, 2), (20, 16, 2), (28, 320, 2),  # around one axis: both directions
        (320, 1, 4), (560, 16, 4), (8960, 1, 6),  # two axes, all three
        (8, 1, 1), (2, 1, 1), (10, 16, 1), (14, 320, 1),  # a part of an axis: a line
        (8, 2, 1), (4, 4, 0.5), (2, 8, 0.25),  # all around, every 2nd, 4th, 8th chip
        (2, 2, 0.5), (2, 15, 1), (2, 14, 0.5), (2, 8, 0.25),  # two chips, the shorter way around
        (2, 17, 1), (2, 19, 1 / 3), (2, 272, 1 / 3),  # two chips apart along two axes, one axis after the other
        (32, 1, 3), (160, 1, 3),  # an axis and a part of the next
    ],
)  # fmt: skip
def test_rings_on_tpu_v5p(size, stride, links):
    groups = place(TPU, [size], [stride])
    assert groups.wire_bytes_per_s[0, 0] == pytest.approx(links * 90 * GB)
    time = ideal_time_s(TPU, "allgather", B, size, stride)[0]
    assert time == pytest.approx(B * (1 - 1 / size) / (links * 90 * GB))


def test_alltoall_on_tpu_v5p_is_bound_by_the_bisection():
    """Austin et al., How to Scale Your Model: V / (4 W) on an axis, V all bytes and W both directions of a link."""
    for size, stride in ((16, 1), (20, 16), (28, 320)):
        assert ideal_time_s(TPU, "alltoall", B, size, stride)[0] == pytest.approx(size * B / (4 * 180 * GB))
    assert ideal_time_s(TPU, "alltoall", B, 8960)[0] == pytest.approx(B * 28 / (8 * 90 * GB))
    assert ideal_time_s(TPU, "alltoall", B, 8)[0] == pytest.approx(B * 8 / (4 * 90 * GB))  # a line: twice


def test_the_whole_pod_reduces_at_the_rate_of_all_links():
    assert ideal_time_s(TPU, "allreduce", B, 8960)[0] == pytest.approx(2 * B * (1 - 1 / 8960) / (540 * GB))


def link_loads(shape):
    """Bytes over each directed link when every unit sends a byte to every unit, one axis after the other."""
    loads = {}
    for source, target in product(product(*map(range, shape)), repeat=2):
        at = list(source)
        for axis, length in enumerate(shape):
            ahead = (target[axis] - at[axis]) % length
            ways = {1: ahead, -1: length - ahead}
            least = min(ways.values()) if ahead else 0
            halves = [step for step, hops in ways.items() if hops == least] if ahead else []
            for step in halves:  # half way around: half of the bytes each way
                where = at[axis]
                for _ in range(least):
                    key = (*at[:axis], where, *at[axis + 1 :], axis, step)
                    loads[key] = loads.get(key, 0) + 1 / len(halves)
                    where = (where + step) % length
            at[axis] = target[axis]
    return loads


@pytest.mark.parametrize("shape", [(4,), (5,), (2,), (3, 4), (2, 2, 3), (4, 3, 2)])
def test_alltoall_on_a_torus_is_that_of_a_count_link_by_link(shape):
    units = int(np.prod(shape))
    where = extent(shape, np.array([float(units)]), np.array([1.0]))
    loads = link_loads(shape)
    assert float(torus_exchange(where)[0]) == pytest.approx(max(loads.values()) / units)
    by_axis = [
        sum(min((a - b) % n, (b - a) % n) for a, b in product(range(n), repeat=2)) * (units // n) ** 2 for n in shape
    ]
    assert sum(loads.values()) == pytest.approx(sum(by_axis))  # bytes over links: pairs times links between them


@given(st.permutations([2, 3, 4, 5]), st.sampled_from(["allgather", "allreduce", "alltoall"]), st.integers(1, 10**9))
def test_axes_of_a_torus_are_alike(shape, operation, size):
    whole, other = torus(*sorted(shape)), torus(*shape)
    for ideal in (True, False):
        expected = collective_time_s(whole, operation, size, 120, ideal=ideal)
        assert collective_time_s(other, operation, size, 120, ideal=ideal) == pytest.approx(expected)


def test_a_group_along_any_axis_is_alike():
    cube = torus(4, 4, 4)
    for operation in ("allgather", "alltoall", "allreduce"):
        times = collective_time_s(cube, operation, B, 4, np.array([1, 4, 16]))
        assert times == pytest.approx(times[0])


def test_a_torus_of_nodes_counts_units():
    cluster = torus(4, 4, gpus_per_unit=8)
    groups = place(cluster, [128, 4, 16], [1, 8, 8])
    links = groups.wire_bytes_per_s[1] / (540 * GB / 4)  # of a GPU's share, 4 links
    assert links.tolist() == [4 * 8, 2, 4]
    assert groups.steps[1].tolist() == [4, 2, 4]


@pytest.mark.parametrize(
    ("size", "stride", "hops"), [(16, 1, 8), (8, 1, 7), (8, 2, 8), (2, 15, 1), (320, 1, 18), (2, 19, 4)]
)
def test_steps_of_a_ring_are_links_to_the_furthest(size, stride, hops):
    where = extent((16, 20, 28), np.array([float(size)]), np.array([float(stride)]))
    assert torus_hops(where)[0] == hops
    assert place(TPU, [size], [stride]).steps[0, 0] == hops


@given(st.integers(3, 5000), st.integers(1, 5000))
@example(29, 161)  # less than two strides in a plane, and 29 members in 15 of its 28 planes
@example(6, 3)
def test_extents_hold_the_group(size, stride):
    shape = (16, 20, 28)
    size = min(size, 8959 // stride + 1)
    assume(size > 2)
    where, counted = (
        extent(shape, np.array([float(size)]), np.array([float(stride)])),
        extents(shape, np.arange(size)[None] * stride),
    )
    assert (where.members >= 1).all()
    assert (where.members[:, 0] <= shape).all()
    assert where.members.prod() >= size
    assert (where.members <= counted.members).all()
    assert 0 < torus_ring(where)[0] <= torus_ring(counted)[0]


# -- dragonflies --


def test_shares_of_global_links():
    peers = np.array([1.0, 4.0, 8.0])
    assert dragonfly_share(9, peers, None).tolist() == [0.5, 0.5, 1.0]
    assert dragonfly_share(9, peers, 1.0).tolist() == [1 / 8, 4 / 8, 1.0]  # minimal: a link per peer
    assert dragonfly_share(9, peers, 0.0).tolist() == [0.5, 0.5, 0.5]  # Valiant: two links per byte
    assert dragonfly_share(9, peers, 0.5).tolist() == pytest.approx([1 / 5, 1 / 2, 1 / 1.5])
    assert dragonfly_share(2, peers, 0.5).tolist() == [1, 1, 1]  # no third group to go through


@given(st.integers(3, 40), st.integers(0, 100))
def test_adaptive_routing_is_never_worse_than_a_fixed_share(groups, percent):
    peers = np.arange(1.0, groups)
    fixed = dragonfly_share(groups, peers, percent / 100)
    assert (dragonfly_share(groups, peers, None) >= fixed - 1e-12).all()
    assert (np.diff(fixed) >= -1e-12).all()  # more peers never less


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_uniform_traffic_conserves_bytes_over_global_links(share):
    groups, sent = 7, 1.0
    loads = np.zeros((groups, groups))
    for source, target in permutations(range(groups), 2):
        part = sent / (groups - 1)
        loads[source, target] += share * part
        for middle in set(range(groups)) - {source, target}:
            loads[source, middle] += (1 - share) * part / (groups - 2)
            loads[middle, target] += (1 - share) * part / (groups - 2)
    assert loads.sum() == pytest.approx(groups * sent * (2 - share))
    pair = 1 / (groups - 1)  # of a group's global links
    assert dragonfly_share(groups, np.array([groups - 1.0]), share)[0] == pytest.approx(pair / loads.max())


def test_worked_numbers_of_leonardo():
    top = LEONARDO.levels[-1]
    assert top.egress_bytes_per_s == pytest.approx(8100 * GB / 720)  # 11.25: less than the card's 12.5
    groups = place(LEONARDO, [13680, 13680 // 4, 2], [1, 4, 720])
    assert groups.wire_bytes_per_s[2] == pytest.approx(8100 * GB / 2 / 720 * np.array([720, 180, 1]))
    time = ideal_time_s(LEONARDO, "alltoall", B, 13680)[0]
    assert time == pytest.approx(B * (1 - 720 / 13680) / (11.25 * GB))
    two_cells = ideal_time_s(LEONARDO, "alltoall", B, 1440)[0]
    assert two_cells == pytest.approx(B / 2 / (8100 * GB / 2 / 720))  # one peer: the detour's half


def test_minimal_routing_leaves_a_ring_one_link():
    ring = place(dragonfly(share=1.0), [36], [8]).wire_bytes_per_s[2, 0]
    assert ring == pytest.approx(10 * GB / 8 * 4)  # 1 of 8 links for the group's 4 of 32 members
    assert place(dragonfly(), [36], [8]).wire_bytes_per_s[2, 0] == pytest.approx(10 * GB / 2 * 4)


def test_groups_of_a_dragonfly_are_alike():
    cluster = dragonfly()
    times = [collective_time_s(cluster, "allreduce", B, 2 * 32, 1)]
    times += [collective_time_s(replace(cluster, name=str(n)), "allreduce", B, 2 * 32, 1) for n in range(2)]
    assert len({float(time) for time in times}) == 1


def test_more_gpus_add_groups_with_links_of_their_own():
    wider = dragonfly().sized_for(32 * 20)[0]
    assert wider.levels[-1].global_bytes_per_s == 10 * GB
    assert wider.levels[-1].egress_bytes_per_s == 10 * GB
    assert place(wider, [80], [8]).wire_bytes_per_s[2, 0] == pytest.approx(10 * GB / 2 * 4)


def test_a_part_of_each_node_keeps_the_global_links():
    part = dragonfly().with_gpus_per_node(4)
    assert part.levels[-1].global_bytes_per_s * 16 == 10 * GB * 32
    assert shared_by(dragonfly(), 36, 8, 1).levels[-1].global_bytes_per_s == 10 * GB * 288 / 36


# -- rails --


@pytest.mark.parametrize(
    ("size", "stride", "stays"),
    [
        (32, 8, True), (16, 16, True), (256, 1, True), (64, 2, True), (32, 4, True), (20, 1, True),
        (4, 6, False), (6, 12, False), (40, 3, False), (3, 15, False),
        (2, 6, True), (8, 1, True), (2, 5, True),  # a node can hold them
        (2, 15, True), (2, 63, True),  # two GPUs of something larger
    ],
)  # fmt: skip
def test_groups_that_leave_their_rails_cross_the_spine(size, stride, stays):
    plain, rails = superpod_2to1(), railed()
    before, after = place(plain, [size], [stride]), place(rails, [size], [stride])
    assert after.crossed[2, 0] == (before.crossed[2, 0] or not stays)
    assert after.wire_bytes_per_s[0] == before.wire_bytes_per_s[0]
    for operation in OPERATIONS:
        count = 2 if operation == "sendrecv" else size
        slow = collective_time_s(rails, operation, B, count, stride)
        fast = collective_time_s(plain, operation, B, count, stride)
        if stays and count == size:
            assert slow == fast
        assert slow >= fast
    if not stays:  # the spine is oversubscribed 2:1
        assert collective_time_s(rails, "allgather", B, size, stride, ideal=True) == pytest.approx(
            2 * collective_time_s(plain, "allgather", B, size, stride, ideal=True)
        )


def test_a_non_blocking_spine_costs_strays_its_longer_hop_alone():
    plain = superpod_2to1(spine={"switch_bytes_per_s": 3200 * GB})
    rails = superpod_2to1(spine={"switch_bytes_per_s": 3200 * GB}, leaf={"rails": "optimised", "pxn": False})
    assert place(rails, [2], [15]).steps[:, 0].tolist() == [0, 0, 1]
    assert place(plain, [2], [15]).steps[:, 0].tolist() == [0, 1, 0]
    late = collective_time_s(rails, "sendrecv", 8, 2, 15) - collective_time_s(plain, "sendrecv", 8, 2, 15)
    assert late == pytest.approx(1.25 * 14e-6 * (5.5 - 5.0) / 5.0)
    assert collective_time_s(rails, "sendrecv", B, 2, 15, ideal=True) == collective_time_s(
        plain, "sendrecv", B, 2, 15, ideal=True
    )


def test_without_a_level_above_the_spine_is_a_longer_hop():
    plain = superpod_2to1()
    plain = replace(plain, levels=plain.levels[:2])
    rails = replace(plain, levels=(plain.levels[0], replace(plain.levels[1], rails="optimised", pxn=False)))
    assert place(rails, [2], [15]).steps[1, 0] == pytest.approx(1 + SPINE_HOP_S / 5e-6)
    assert place(rails, [2], [16]).steps[1, 0] == 1


def test_rails_only_pass_strays_on_over_nvlink():
    rails = railed("only")
    stray, kept = place(rails, [4], [6]), place(rails, [4], [8])
    assert stray.steps[:, 0].tolist() == [3, 3, 0]  # a hop of NVLink for each of the network
    assert kept.steps[:, 0].tolist() == [0, 3, 0]
    assert not stray.crossed[2, 0]
    slow = railed("only", link_bytes_per_s=400 * GB, switches=0)
    assert place(slow, [4], [6]).wire_bytes_per_s[1, 0] == 225 * GB  # half of NVLink's 450
    assert place(slow, [4], [8]).wire_bytes_per_s[1, 0] == 400 * GB


@pytest.mark.parametrize(("size", "stride", "rails"), [(64, 1, 8), (32, 2, 4), (16, 4, 2), (8, 8, 1)])
def test_alltoall_without_pxn_passes_the_spine(size, stride, rails):
    leaving = 1 - max(8 // stride, 1) / size
    with_pxn = ideal_time_s(railed(), "alltoall", B, size, stride)[0]
    without = ideal_time_s(railed(pxn=False), "alltoall", B, size, stride)[0]
    assert with_pxn == pytest.approx(max(B * leaving / (50 * GB), B * (1 - 1 / size) / (450 * GB) * (rails > 1)))
    assert without == pytest.approx(max(with_pxn, B * leaving * (1 - 1 / rails) / (25 * GB)))
    for operation in ("allreduce", "allgather"):  # rings stay on their rails
        assert (
            ideal_time_s(railed(pxn=False), operation, B, size, stride)[0]
            == ideal_time_s(railed(), operation, B, size, stride)[0]
        )


def test_trays_of_a_rack_begin_the_rails_anew():
    rack = load_cluster("gb200-nvl72")
    assert (rack.host_gpus, rack.levels[rack.domain_index].gpus) == (4, 72)
    step = np.array([1.0, 4.0, 16.0, 5.0, 10.0])
    assert on_rails(rack, np.array([8.0, 18.0, 4.0, 14.0, 1.0]), step).tolist() == [True, True, True, True, False]
    assert rails_of(rack, np.array([72.0, 18.0, 36.0]), np.array([1.0, 4.0, 2.0]), 1.0).tolist() == [4, 1, 2]
    assert rails_of(rack, np.array([72.0]), np.array([1.0]), 0.5).tolist() == [2]


# -- properties of all of them --

SHAPED = {
    "torus": TPU,
    "torus of nodes": torus(4, 4, 4, gpus_per_unit=8),
    "dragonfly": dragonfly(),
    "minimal dragonfly": dragonfly(share=0.7),
    "rails": railed(),
    "rails without PXN": railed(pxn=False),
    "rails only": railed("only"),
}
groups_ = st.tuples(st.integers(2, 36), st.integers(1, 8))  # the smallest of these clusters has 288 GPUs
operations = st.sampled_from(["allreduce", "allgather", "reducescatter", "alltoall", "broadcast"])


@given(st.sampled_from(sorted(SHAPED)), operations, groups_, st.integers(1, 2**33), st.booleans())
def test_time_never_falls_with_bytes(name, operation, group, size, ideal):
    sizes = np.array([size, size + 1, 2 * size])
    times = collective_time_s(SHAPED[name], operation, sizes, *group, ideal=ideal)
    assert (np.diff(times) >= -1e-15).all()


@given(st.sampled_from(sorted(SHAPED)), operations, groups_, st.integers(1, 2**33), st.floats(1, 10), st.integers(0, 2))
def test_more_bandwidth_is_never_slower(name, operation, group, size, factor, index):
    cluster = SHAPED[name]
    index = min(index, len(cluster.levels) - 1)
    level = cluster.levels[index]
    wider = replace(
        level,
        link_bytes_per_s=level.link_bytes_per_s * factor,
        switch_bytes_per_s=level.switch_bytes_per_s * factor,
        global_bytes_per_s=level.global_bytes_per_s * factor,
    )
    faster = replace(cluster, levels=(*cluster.levels[:index], wider, *cluster.levels[index + 1 :]))
    for ideal in (True, False):
        before = collective_time_s(cluster, operation, size, *group, ideal=ideal)
        assert collective_time_s(faster, operation, size, *group, ideal=ideal) <= before * (1 + 1e-12)


@given(st.sampled_from([*OPERATIONS]), st.integers(2, 8), st.integers(1, 2**33))
def test_a_group_inside_a_node_never_touches_the_fabric(operation, size, data):
    count = 2 if operation == "sendrecv" else size
    times = {
        float(collective_time_s(SHAPED[name], operation, data, count))
        for name in ("dragonfly", "minimal dragonfly", "rails", "rails without PXN", "rails only")
    }
    assert len(times) == 1
    assert not place(SHAPED["rails only"], [size], [1]).crossed[1:].any()


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_element_alone_equals_its_value_in_the_batch(name, operation):
    rng = np.random.default_rng(7)
    size = rng.integers(1, 1e9, 60).astype(float)
    count = np.full(60, 2) if operation == "sendrecv" else rng.integers(1, 30, 60)
    stride = rng.integers(1, 9, 60)
    batch = collective_time_s(SHAPED[name], operation, size, count, stride)
    alone = [float(collective_time_s(SHAPED[name], operation, *row)) for row in zip(size, count, stride, strict=True)]
    assert batch.tolist() == alone


def test_ideal_allreduce_is_reduce_scatter_and_all_gather():
    for cluster in (TPU, dragonfly(), railed()):
        sizes, strides = np.array([16, 36, 64]), np.array([1, 2, 4])
        both = 2 * ideal_time_s(cluster, "allgather", B, sizes, strides)
        reduce = ideal_time_s(replace(cluster, nvls=False, sharp=False), "allreduce", B, sizes, strides)
        assert reduce == pytest.approx(both)


def test_what_binds_is_named():
    found = price_collective(dragonfly(per_gpu=1 * GB), "alltoall", 10**9)
    assert (found.bound_by, found.bound_part) == ("spine", "global links")
    assert "bisection" in found.formula
    assert price_collective(TPU, "allgather", 10**12, gpus=16).bound_part == "links"
