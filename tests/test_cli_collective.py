"""`gpuscale collective` at the terminal: exit code, stdout, stderr."""

import json
import shutil
from pathlib import Path

import pytest
from command import gpuscale


def run(*arguments):
    return gpuscale("collective", *arguments)


def test_verdict_comes_first_and_names_the_answer():
    done = run("allreduce", "--bytes", "32MiB", "--level", "leaf", "--ideal")
    assert (done.code, done.err) == (0, "")
    assert done.lines[:3] == [
        "AllReduce of 33.6 MB over 256 GPUs (leaf of dgx-h100-superpod): 83.9 us, busbw 796.9 GB/s, bound by",
        "the links of the leaf",
        "",
    ]
    assert "ideal 83.9 us: bytes / (egress x m) = 33,554,432 B / (50 GB/s x 8)" in done.out


PRESETS = Path(__file__).parents[1] / "presets" / "clusters"
LONG = "superpod-of-the-second-hall-with-two-to-one-oversubscription-of-its-spine-switches"


@pytest.fixture
def long_cluster(tmp_path):
    """A cluster whose file has a long name."""
    return shutil.copy(PRESETS / "dgx-h100-superpod-2to1.toml", tmp_path / f"{LONG}.toml")


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize(
    "arguments",
    [
        ("allreduce", "--bytes", "123456789"),
        ("alltoall", "--bytes", "123456789", "--gpus", "1024", "--imbalance", "3.25", "--ideal"),
        ("alltoall", "--bytes", "123456789", "--gpus", "64", "--algo", "deepep", "--nodes-per-token", "4"),
        ("sendrecv", "--bytes", "1GB", "--gpus", "16", "--group-stride", "8", "--concurrent", "4", "--channels", "2"),
        ("allgather", "--sweep", "8B..8GB", "--gpus", "16", "--group-stride", "8", "--concurrent", "4"),
    ],
)
def test_all_lines_fit_the_width_and_say_the_same(long_cluster, arguments, columns):
    narrow, wide = (
        gpuscale("collective", *arguments, "--no-plot", "-c", long_cluster, columns=width) for width in (columns, 500)
    )
    assert (narrow.code, narrow.err) == (0, "")
    assert max(map(len, narrow.lines)) <= columns
    verdict = narrow.out.partition("\n\n")[0].split("\n")
    assert len(verdict) > 1
    assert "".join(verdict).replace(" ", "") == wide.lines[0].replace(" ", "")  # a name that is too long is cut


def test_the_cluster_has_the_short_name_of_other_commands():
    short, long = (run("allreduce", "--bytes", "1MB", option, "aws-p5").out for option in ("-c", "--cluster"))
    assert short == long
    assert "of aws-p5)" in short


def test_default_model_stands_beside_the_ideal():
    done = run("allgather", "--bytes", "64MB", "--level", "node")
    assert done.code == 0
    assert "model nccl 2.30: ring" in done.out
    assert "ideal 124 us: bytes x (1 - m/n) / (egress x m) = 64,000,000 B x (1 - 1/8) / 450 GB/s" in done.out


def test_json_keys_are_stable():
    done = run("AllReduce", "--bytes", "33554432", "--level", "leaf", "--ideal", "--json")
    body = json.loads(done.out)
    assert list(body)[:10] == [
        "schema", "op", "bytes", "gpus", "level", "time_s", "algbw_gb_per_s", "busbw_gb_per_s", "bound_by", "levels",
    ]  # fmt: skip
    assert body["schema"] == "gpuscale.collective/1"
    assert (body["op"], body["bytes"], body["gpus"], body["level"]) == ("allreduce", 2**25, 256, "leaf")
    assert body["time_s"] == pytest.approx(2**25 / 400e9)
    assert body["busbw_gb_per_s"] == pytest.approx(body["algbw_gb_per_s"] * 2 * 255 / 256)
    assert list(body["levels"][0]) == [
        "name", "fabric", "gpus", "members", "egress_gb_per_s", "time_s", "ideal_time_s", "binds",
    ]  # fmt: skip


def test_no_sharp_and_gpus():
    fast = json.loads(run("allreduce", "--bytes", "1GB", "--gpus", "64", "--ideal", "--json").out)
    slow = json.loads(run("allreduce", "--bytes", "1GB", "--gpus", "64", "--ideal", "--no-sharp", "--json").out)
    assert fast["level"] == slow["level"] == "leaf"
    assert slow["time_s"] / fast["time_s"] == pytest.approx(2 * (1 - 1 / 64) * 400 / 450, rel=1e-6)


def test_sharp_is_off_but_ideally_and_nvls_is_on():
    def seconds(*arguments):
        return json.loads(run("allreduce", "--bytes", "4GB", "--gpus", "64", "--json", *arguments).out)["time_s"]

    assert seconds() == seconds("--sharp", "off") > seconds("--sharp", "on")
    assert seconds("--ideal", "--sharp", "off") > seconds("--ideal") == seconds("--ideal", "--sharp", "on")
    assert seconds("--sharp", "on", "--nvls", "off") > seconds("--sharp", "on")
    assert seconds("--no-sharp") == seconds("--sharp", "off", "--nvls", "off")
    for options, message in (
        (("--sharp", "yes"), "--sharp: unknown value 'yes'"),
        (("--sharp", "on", "--no-sharp"), "--sharp on and --no-sharp are mutually exclusive"),
        (("--sharp", "on", "--cluster", "mi300x"), "--sharp: no switches between nodes of mi300x add up"),
        (("--begin", "8"), "give either"),
    ):
        refused = run("allreduce", "--bytes", "4GB", *options)
        assert (refused.code, message in refused.err) == (2, True)
    assert run("allreduce", "--sweep", "8B..1GB", "--begin", "1K").code == 2
    ignored = run("allreduce", "--against", "any.log", "--algo", "ring")
    assert (ignored.code, "--against: groups, ways and sizes are those of the log" in ignored.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ((), "tree LL128"),
        (("--no-sharp",), "tree LL128"),
        (("--algo", "ring"), "ring LL128"),
        (("--algo", "NVLS-tree"), "NVLS tree Simple"),
        (("--proto", "ll"), "tree LL"),
        (("--sharp", "on"), "SHARP Simple"),
        (("--algo", "collnet"), "SHARP Simple"),
    ],
)
def test_the_choice_of_algorithm_can_be_forced(options, algorithm):
    forced = json.loads(run("allreduce", "--bytes", "32MB", "--level", "leaf", "--json", *options).out)
    allowed = ("--sharp", "on") if algorithm == "SHARP Simple" else ()
    free = json.loads(run("allreduce", "--bytes", "32MB", "--level", "leaf", "--json", *allowed).out)
    assert forced["algorithm"] == algorithm
    assert forced["time_s"] >= free["time_s"]
    if forced["algorithm"] != free["algorithm"] and "--no-sharp" not in options:
        assert (forced["next_best"], forced["next_best_time_s"]) == (free["algorithm"], free["time_s"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allreduce", "--level", "leaf", "--algo", "pat"), "pat cannot run allreduce over 256 GPUs in 32 nodes"),
        (("allgather", "--level", "leaf", "--algo", "tree"), "tree cannot run allgather over 256 GPUs in 32 nodes"),
        (("allreduce", "--level", "node", "--algo", "nvls", "--proto", "ll"), "nvls with LL cannot run allreduce"),
        (("allreduce", "--level", "node", "--algo", "nvls", "--no-sharp"), "nvls cannot run allreduce"),
        (("reduce", "--level", "node", "--algo", "x"), "unknown name 'x'"),
        (("reduce", "--level", "node", "--proto", "ll64"), "unknown name 'll64'"),
        (("reduce", "--level", "node", "--ideal", "--proto", "ll"), "the ideal model has no algorithms"),
    ],
)
def test_an_impossible_choice_says_what_is_possible(arguments, message):
    done = run(*arguments, "--bytes", "1MB")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "hint: " in done.err


def test_reduce_takes_as_long_as_broadcast():
    for options in (("--level", "leaf"), ("--level", "node", "--ideal")):
        times = [json.loads(run(op, "--bytes", "8MB", "--json", *options).out)["time_s"] for op in ("reduce", "bcast")]
        assert times[0] == times[1] > 0


def test_same_input_same_bytes_out():
    assert run("alltoall", "--bytes", "1MB").out == run("alltoall", "--bytes", "1MB").out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["allredcue", "--bytes", "1MB"], "unknown collective 'allredcue'", "did you mean allreduce?"),
        (["allreduce", "--bytes", "32XB"], "error: --bytes: '32XB' is not a size", "32MB"),
        (["allreduce", "--bytes", "1MB", "--level", "rack"], "has no level 'rack'", "its levels are node, leaf, spine"),
        (["allreduce", "--bytes", "1MB", "--gpus", "0"], "error: --gpus: 0 GPUs exchange nothing", "at least 2"),
        (["allreduce", "--bytes", "1MB", "--gpus", "9999999999"], "out of range", "give 1 to"),
        (
            ["allreduce", "--bytes", "1MB", "--group-stride", "0"],
            "--group-stride: 0 is out of range",
            "give 1 to 1,024",
        ),
        (["allreduce", "--bytes", "1MB", "--gpus", "300", "--level", "leaf"], "do not fit", "--level spine"),
        (["allreduce", "--bytes", "1MB", "--nccl", ""], "error: --nccl: '' is not a version of NCCL", "write 2.20"),
        (
            ["allreduce", "--bytes", "1MB", "--ideal", "--channels", "4"],
            "--ideal: the ideal model has no",
            "--channels",
        ),
        (
            ["allreduce", "--bytes", "1MB", "--ideal", "--launch", "graph"],
            "--ideal: the ideal model has no",
            "--launch",
        ),
        (["allreduce", "--bytes", "1MB", "--cluster", "dgx-h10"], "unknown cluster 'dgx-h10'", "dgx-h100"),
    ],
)
def test_bad_input_is_one_message(arguments, message, hint):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    head, _, tail = done.err.partition("\n\nhint: ")
    assert message in head
    assert hint in tail
    assert "Traceback" not in done.err


def test_gpus_beyond_the_preset_widen_its_top_level_and_say_so():
    done = run("allreduce", "--bytes", "1GB", "--gpus", "4096", "--json")
    body = json.loads(done.out)
    assert (body["gpus"], body["level"]) == (4096, "spine")
    assert "widened to 4,096" in body["notes"][0]
    assert json.loads(run("allreduce", "--bytes", "1GB", "--json").out)["notes"] == []


LOG = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor)
# Using devices
#  Rank  0 Group  0 Pid      1 on      host device  0 [0x00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid      2 on      host device  1 [0x00] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    10.00    0.10    0.10      0    10.00    0.10    0.10      0
  1073741824     268435456     float     sum      -1   3400.0  315.81  315.81      0   3400.0  315.81  315.81      0
"""


def test_a_log_is_laid_beside_the_prediction(tmp_path):
    log = tmp_path / "all_reduce.log"
    log.write_text(LOG)
    body = json.loads(run("allreduce", "--against", log, "--json").out)
    [group] = body["groups"]
    assert (group["op"], group["gpus"], group["level"]) == ("allreduce", 2, "node")
    small, large = group["sizes"]
    alone = json.loads(run("allreduce", "--bytes", "1GiB", "--gpus", "2", "--concurrent", "1", "--json").out)
    assert large["measured_time_s"] == pytest.approx(3400e-6)
    assert (large["predicted_time_s"], large["time_low_s"]) == (alone["time_s"], alone["time_low_s"])
    assert large["ratio"] == pytest.approx(alone["time_s"] / 3400e-6)
    shown = run("allreduce", "--against", log).out
    assert all(word in shown for word in ("measured", "predicted", "ratio", f"{small['ratio']:.2f}"))
    other = run("alltoall", "--against", log)
    assert other.code == 2
    assert "the log has no alltoall" in other.err


def test_a_sweep_ends_where_that_of_nccl_tests_does():
    ends = ("--sweep", "..8GB"), ("--sweep", "8B..8GiB"), ("-b", "8", "-e", "8G", "-f", "2")
    sizes = [
        [one["bytes"] for one in json.loads(run("allreduce", *end, "--gpus", "8", "--json").out)["sizes"]]
        for end in ends
    ]
    assert sizes[0] == sizes[1] == sizes[2] == [2**power for power in range(3, 34)]
    few = json.loads(run("allreduce", "-b", "1M", "-e", "64M", "-f", "4", "--json").out)["sizes"]
    assert [one["bytes"] for one in few] == [2**20, 2**22, 2**24, 2**26]


def test_every_time_has_an_interval_that_is_wide_where_published_results_are_far():
    def ends(size, *arguments):
        body = json.loads(run("allreduce", "--bytes", size, "--json", *arguments).out)
        return body["time_low_s"] / body["time_s"], body["time_high_s"] / body["time_s"]

    low, high = ends("8GiB", "--level", "node")
    assert 0.9 < low < 1 < high < 1.1
    assert ends("8GiB", "--gpus", "64")[1] > high
    assert ends("1MiB", "--gpus", "64")[1] > ends("8GiB", "--gpus", "64")[1]
    assert ends("8GiB", "--ideal") == (0, 0)
