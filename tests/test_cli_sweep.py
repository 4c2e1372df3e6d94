"""`gpuscale collective --sweep`, strided groups, and groups that run at once."""

import csv
import io
import json
from itertools import pairwise

import pytest
from clusters import superpod_2to1
from command import assert_one_message, gpuscale

from gpuscale.collectives.estimate import Siblings, price_collective, sweep_sizes
from gpuscale.collectives.groups import shared_by
from gpuscale.collectives.nccl_constants import AUTOMATIC
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster

SWEEP = ("collective", "allreduce", "--sweep", "8B..8GiB", "--gpus", "16", "--cluster", "aws-p5")


def test_one_row_per_power_of_two_and_a_plot():
    done = gpuscale(*SWEEP)
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith("AllReduce over 16 GPUs (fabric of aws-p5), model nccl: ")
    table = done.out.partition("─\n")[2].partition("\n\n")[0].splitlines()
    sizes = [int(line.split()[0]) for line in table]
    assert sizes == [2**power for power in range(3, 34)]
    assert "busbw in GB/s, logarithmic, over size, logarithmic (*: predicted, -: ideal)" in done.lines
    assert sum("*" in line for line in done.lines) > 8
    assert all(len(line) <= 100 for line in done.lines[1:])
    plain = gpuscale(*SWEEP, "--no-plot")
    assert "*" not in plain.out
    assert done.out.startswith(plain.out)


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_plot_fits_the_terminal(columns):
    done = gpuscale(*SWEEP, columns=columns)
    plot = done.out[done.out.index("busbw in GB/s, log") :].splitlines()
    assert max(map(len, plot)) <= min(columns, 100)
    assert len({line.index("|") for line in plot if "|" in line}) == 1
    rows = [line.partition("|")[2] for line in plot if "|" in line]
    drawn = [index for index, row in enumerate(rows) if "*" in row]
    assert len(drawn) > 0.9 * len(rows)  # no half of it lies on zero
    assert all(rows[drawn[0]].rindex("*") > row.find("*") for row in rows[drawn[0] + 1 :])
    levels = [float(line.partition("|")[0]) for line in plot if "|" in line]
    ratios = [high / low for high, low in pairwise(levels)]
    assert max(ratios) == pytest.approx(min(ratios), rel=0.01)


def test_a_short_sweep_is_drawn_from_zero():
    done = gpuscale("collective", "allreduce", "--sweep", "64MB..8GB", "--gpus", "16")
    plot = done.out[done.out.index("busbw in GB/s, over size") :].splitlines()
    assert plot[-3].startswith("        0 |")


def test_rows_are_the_single_prices_in_all_formats():
    body = json.loads(gpuscale(*SWEEP, "--factor", "32", "--json").out)
    assert [row["bytes"] for row in body["sizes"]] == [2**power for power in range(3, 34, 5)]
    table = list(csv.DictReader(io.StringIO(gpuscale(*SWEEP, "--factor", "32", "--csv").out)))
    cluster = load_cluster("aws-p5")
    for row, cells in zip(body["sizes"], table, strict=True):
        one = price_collective(cluster, "allreduce", row["bytes"], gpus=16)
        assert (row["time_s"], row["algorithm"]) == (one.time_s, one.algorithm)
        assert row["algbw_gb_per_s"] == pytest.approx(row["bytes"] / row["time_s"] / 1e9)
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * 2 * 15 / 16)
        assert {key: str(value) for key, value in row.items()} == cells
    assert gpuscale(*SWEEP).out == gpuscale(*SWEEP).out


def test_the_reason_names_latency_links_or_switches():
    rows = json.loads(gpuscale(*SWEEP, "--json").out)["sizes"]
    assert (rows[0]["bound_by"], rows[0]["bound_part"]) == ("latency", "latency")
    assert {row["bound_part"] for row in rows} == {"latency", "links", "channels"}
    wide = json.loads(
        gpuscale(
            "collective", "alltoall", "--bytes", "1GB", "--gpus", "1024",
            "--cluster", "dgx-h100-superpod-2to1", "--json",
        ).out
    )  # fmt: skip
    assert (wide["bound_by"], wide["bound_part"]) == ("spine", "switches")


@pytest.mark.parametrize(
    ("text", "factor", "sizes"),
    [
        ("8B..64B", 2, [8, 16, 32, 64]),
        ("8..100", 2, [8, 16, 32, 64]),
        ("1KB..1MB", 32, [2**10, 2**15, 2**20]),
        ("1MiB..1MiB", 2, [2**20]),
    ],
)
def test_sizes_of_a_sweep(text, factor, sizes):
    assert sweep_sizes(text, factor) == sizes
    assert len(sweep_sizes("1..1048576TiB", 2)) == 61


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((), "give either --bytes, --sweep (or its ends) or --against", "8B..8GB"),
        (
            ("--bytes", "1MB", "--sweep", "8B..8GB"),
            "give either --bytes, --sweep (or its ends) or --against",
            "8B..8GB",
        ),
        (("--sweep", "8B-8GB"), "--sweep: '8B-8GB' is not a range of sizes", "write 8B..8GB"),
        (("--sweep", "8GB..8B"), "runs backwards", "smaller size first"),
        (("--sweep", "8B..x"), "--sweep: 'x' is not a size", "a number and a unit"),
        (("--sweep", "0..8B"), "--sweep: '0' is out of range", "1 byte"),
        (("--sweep", "8B..8GB", "--factor", "1"), "--factor: 1 is out of range", "give 2 to"),
        (("--sweep", "8B..8GB", "--csv", "--json"), "two formats of the same answer", "one of them"),
        (("--bytes", "8B", "--csv"), "--csv is for the rows of --sweep", "--json"),
        (("--bytes", "8B", "--group-stride", "0"), "--group-stride: 0 is out of range", "give 1 to"),
        (("--bytes", "8B", "--group-stride", "2048"), "--group-stride: 2048 is out of range", "give 1 to 1,024"),
        (("--bytes", "8B", "--concurrent", "0"), "--concurrent: 0 is out of range", "at least 1"),
        (
            ("--bytes", "8B", "--level", "leaf", "--concurrent", "5"),
            "5 groups of 256 GPUs at once need 1,280",
            "1 to 4",
        ),
        (
            ("--bytes", "8B", "--gpus", "16", "--group-stride", "8", "--level", "node"),
            "16 GPUs, 8 apart, do not fit under one node",
            "--level leaf holds them",
        ),
    ],
)
def test_bad_input_is_one_message(arguments, message, hint):
    assert_one_message(gpuscale("collective", "allreduce", *arguments), message, hint)


def test_strided_groups_are_those_of_the_step_model():
    pod = superpod_2to1()
    for op, gpus, stride in (("allgather", 16, 8), ("allreduce", 32, 4), ("alltoall", 8, 2)):
        one = price_collective(pod, op, 2**26, gpus=gpus, siblings=Siblings(stride))
        batch = collective_time_s(pod, op, 2**26, gpus, stride, tuning=AUTOMATIC)
        assert one.time_s == pytest.approx(float(batch), rel=1e-12)
        assert one.level == pod.level_of_group(gpus, stride).name
    pair = price_collective(pod, "sendrecv", 2**26, siblings=Siblings(8))
    assert (pair.level, pair.stride) == ("leaf", 8)
    batch = collective_time_s(pod, "sendrecv", 2**26, 2, 8, tuning=AUTOMATIC)
    assert pair.time_s == pytest.approx(float(batch), rel=1e-12)


def test_a_group_alone_is_never_slower_and_all_at_once_is_the_default():
    cluster = load_cluster("dgx-h100-superpod-2to1")
    for gpus, stride in ((64, 8), (1024, 1), (16, 64)):
        siblings = [Siblings(stride, count) for count in (1, min(2, 1024 // gpus), 1024 // gpus, None)]
        times = [price_collective(cluster, "alltoall", 2**30, gpus=gpus, siblings=one).time_s for one in siblings]
        assert times == sorted(times)
        assert times[-2] == pytest.approx(times[-1])
    assert price_collective(cluster, "alltoall", 2**30, gpus=64, siblings=Siblings(16, 1)).time_s < (
        price_collective(cluster, "alltoall", 2**30, gpus=64, siblings=Siblings(16)).time_s
    )


def test_a_gpu_whose_neighbours_are_idle_has_their_network_card():
    cluster = load_cluster("aws-p4d")
    network = next(level for level in cluster.levels if level.nics_per_gpu < 1)
    alone = shared_by(cluster, 2, 8, 1)
    gain = alone.levels[1].link_bytes_per_s / network.link_bytes_per_s
    assert gain == pytest.approx(1 / network.nics_per_gpu)
    assert shared_by(cluster, 16, 1, 1).levels[1].link_bytes_per_s == network.link_bytes_per_s


def test_more_groups_at_once_than_gpus_are_refused():
    with pytest.raises(InputError, match="at once need"):
        shared_by(superpod_2to1(), 16, 1, 65)


def test_a_head_line_says_how_the_groups_lie():
    done = gpuscale(
        "collective", "allgather", "--bytes", "1GB", "--gpus", "16", "--group-stride", "8", "--concurrent", "4"
    )
    assert done.lines[0].startswith("AllGather of 1 GB over 16 GPUs, 8 apart, 4 groups at once (leaf of ")


@pytest.mark.parametrize("columns", [45, 60, 80])
def test_rows_stay_one_line_on_narrow_terminals(columns):
    done = gpuscale(*SWEEP, "--no-plot", columns=columns)
    table = done.out.partition("─\n")[2].splitlines()
    assert [int(line.split()[0]) for line in table] == [2**power for power in range(3, 34)]
    assert max(map(len, table)) <= columns
