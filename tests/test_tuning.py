"""NCCL's version and how it is launched."""

from itertools import pairwise

import pytest
from clusters import superpod_2to1
from command import assert_one_message, gpuscale

from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.collectives.nccl_constants import AUTOMATIC, NEWEST, Tuning, parse_version
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster

CLUSTER = superpod_2to1()


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.20", (2, 20)), ("2.20.5", (2, 20)), (" 2.12 ", (2, 12)), ("2.99.1", NEWEST), ("2.23.4.1", (2, 23))],
)
def test_versions_are_read(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "2", "22005", "2.x", "2.20-rc1", "2." + "1" * 500, "2.11", "1.3.5"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(InputError, match=r"version of NCCL|older than"):
        parse_version(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("allgather", "--gpus", "4", "--group-stride", "8", "--algo", "pat", "--nccl", "2.18"),
            "pat came with NCCL 2.23",
        ),
        (
            ("allreduce", "--level", "node", "--algo", "nvls", "--nccl", "2.16"),
            "nvls came with NCCL 2.17, this is 2.16",
        ),
        (("allreduce", "--level", "leaf", "--algo", "nvls-tree", "--nccl", "2.17"), "nvls-tree came with NCCL 2.18"),
        (("allreduce", "--nccl", "3"), "--nccl: '3' is not a version of NCCL"),
        (("allreduce", "--nccl", "2.4"), "--nccl: NCCL 2.4 is older than what the model stands for"),
        (("allreduce", "--launch", "mpi"), "--launch: unknown launch 'mpi'"),
    ],
)
def test_what_a_version_does_not_have_is_refused(arguments, message):
    assert_one_message(gpuscale("collective", *arguments, "--bytes", "1MB"), message, "")


def algorithms(name, operation, gpus, version):
    cluster = load_cluster(name).sized_for(64)[0]
    return price_collective(cluster, operation, 2**33, gpus=gpus, tuning=Tuning(nccl=version)).algorithm


@pytest.mark.parametrize(("name", "gpus"), [("h200-hgx", 5), ("b200-hgx", 6)])
def test_before_2_28_nvls_takes_over_where_it_was_measured_to(name, gpus):
    """NCCL 2.27.7 was seen to leave the ring for NVLS at 5 H200 and at 6 B200."""
    assert algorithms(name, "allreduce", gpus - 1, (2, 27)) == "ring Simple"
    assert algorithms(name, "allreduce", gpus, (2, 27)) == "NVLS Simple"


def test_algorithms_come_with_their_versions():
    assert algorithms("h200-hgx", "allreduce", 8, (2, 16)) == "ring Simple"
    assert algorithms("h200-hgx", "allreduce", 8, (2, 17)) == "NVLS Simple"
    assert algorithms("azure-ndv5", "allreduce", 16, (2, 17)) != "NVLS tree Simple"
    assert algorithms("azure-ndv5", "allreduce", 16, (2, 18)) == "NVLS tree Simple"
    pat = {"gpus": 128, "siblings": Siblings(8)}
    found = [
        price_collective(CLUSTER, "allgather", 2**10, tuning=Tuning(nccl=version), algorithm="pat", **pat)
        for version in ((2, 23), (2, 30))
    ]
    assert {one.algorithm for one in found} == {"PAT Simple"}
    with pytest.raises(InputError, match=r"pat came with NCCL 2\.23, this is 2\.22"):
        price_collective(CLUSTER, "allgather", 2**10, tuning=Tuning(nccl=(2, 22)), algorithm="pat", **pat)


def test_an_older_nccl_is_never_faster_with_reductions():
    for gpus in (2, 4, 8, 16, 64):
        times = [
            collective_time_s(CLUSTER, "allreduce", [2.0**20, 2.0**33], gpus, tuning=Tuning(nccl=(2, minor)))
            for minor in (16, 17, 18, 27, 28, 30)
        ]
        for old, new in pairwise(times):
            assert (new <= old * (1 + 1e-12)).all()


SUPERBENCH = "microsoft/superbenchmark tests/data: nccl-tests -g 8 in one process on DGX A100"


@pytest.mark.parametrize(
    ("source", "operation", "measured_us"),
    [
        (SUPERBENCH, "allreduce", 34.9),
        (SUPERBENCH, "broadcast", 34.5),
        (SUPERBENCH, "reduce", 34.8),
        (SUPERBENCH, "alltoall", 87.0),
    ],
)
def test_one_process_launches_one_gpu_after_the_other(source, operation, measured_us):
    cluster = load_cluster("dgx-a100-superpod")
    found = price_collective(cluster, operation, 512, gpus=8, tuning=Tuning(launch="one-process"))
    assert found.time_s == pytest.approx(measured_us * 1e-6, rel=0.05), source
    assert found.time_s > price_collective(cluster, operation, 512, gpus=8).time_s


def test_a_graph_saves_the_launch_where_it_was_measured():
    cluster = load_cluster("mi300x")
    times = [
        price_collective(cluster, "allreduce", 2**14, gpus=8, tuning=Tuning(launch=how)).time_s
        for how in ("processes", "graph")
    ]
    assert times == pytest.approx([13.5e-6, 8.7e-6], rel=0.25)  # AMD ROCm blog on RCCL, one MI300X node
    hopper = [
        collective_time_s(CLUSTER, "allreduce", 2**14, 8, tuning=Tuning(launch=how)).item()
        for how in ("processes", "graph")
    ]
    assert hopper[0] == hopper[1]


def test_a_training_step_knows_of_no_launches_or_channels():
    step = collective_time_s(CLUSTER, "alltoall", 2**28, 8)
    assert step == collective_time_s(CLUSTER, "alltoall", 2**28, 8, tuning=None)
    assert step != collective_time_s(CLUSTER, "alltoall", 2**28, 8, tuning=AUTOMATIC)
