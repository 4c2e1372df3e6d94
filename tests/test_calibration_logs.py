"""Logs of nccl-tests and the like: what is read, and why the rest is refused."""

import gzip
import os
import random
from collections import Counter
from pathlib import Path

import nccl_logs as logs
import pytest

from gpuscale.calibration import logs as calibration_logs
from gpuscale.calibration import tables
from gpuscale.calibration.logs import read_log
from gpuscale.errors import InputError

SHARED = Path(__file__).parents[2] / "shared" / "formats" / "nccl_tests"


def read(tmp_path, text, name="test.log", **told):
    path = logs.write(tmp_path / name, text)
    return read_log(path, **told)


def only(found):
    (measured,) = found.measured
    return measured


def refusal(tmp_path, text, name="test.log", **told):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, name, **told)
    assert str(tmp_path / name) in caught.value.place
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"])
def test_every_priced_operation_is_known_by_its_name(tmp_path, name):
    measured = only(read(tmp_path, logs.log(name)))
    assert (measured.operation, measured.ranks, measured.per_host) == (name.replace("_", ""), 16, 8)
    assert [one.bytes for one in measured.samples] == logs.SIZES
    assert measured.samples[0].time_us == pytest.approx(logs.smooth_us(8), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("all_reduce", "by the factor"),
        ("reduce_scatter", "by the factor and sum"),
        ("alltoall", "in place is not checked"),
        ("broadcast", "by the root, and the file's name"),
    ],
)
def test_without_a_name_columns_and_factor_tell(tmp_path, name, told):
    measured = only(read(tmp_path, logs.log(name)[1:], name="broadcast.log" if name == "broadcast" else "x.log"))
    assert measured.operation == name.replace("_", ""), told


def test_the_name_of_the_file_tells_gather_from_alltoall(tmp_path):
    text = [line.replace("N/A", "0") for line in logs.log("all_gather")[1:]]
    error = refusal(tmp_path, text)
    assert error.message == "does not say which operation it measured (all_gather or alltoall)"
    assert only(read(tmp_path, text, name="nccl-AllGather-16.txt")).operation == "allgather"
    assert only(read(tmp_path, text, op="alltoall")).operation == "alltoall"


def test_a_command_line_names_the_operation(tmp_path):
    text = ["+ mpirun -np 16 /opt/nccl-tests/build/all_gather_perf -b 8 -e 8G -f 2", *logs.log("all_gather")[1:]]
    assert only(read(tmp_path, text)).operation == "allgather"


def test_a_name_that_the_columns_deny_is_refused(tmp_path):
    text = ["./all_gather_perf -b 8", *logs.log("all_reduce")[1:]]
    error = refusal(tmp_path, text)
    assert error.message == "the log names all_gather, but the table has the columns of all_reduce"
    assert error.hint == "say which: `op=OP`"


def test_forced_numbers_that_cannot_be_are_refused(tmp_path):
    error = refusal(tmp_path, logs.log(), gpus=4)
    assert "fits no operation over 4 GPUs, but all_reduce over 16" in error.message
    error = refusal(tmp_path, logs.log(), op="allgather")
    assert error.message == "busbw / algbw is 1.875, but all_gather over 16 GPUs has 0.9375"


def test_ranks_that_are_not_listed_follow_from_the_factor(tmp_path):
    text = [line for line in logs.log(count=72) if "Rank" not in line]
    measured = only(read(tmp_path, text))
    assert (measured.ranks, measured.per_host, measured.counted) == (72, None, True)
    error = refusal(tmp_path, [line for line in logs.log("sendrecv") if "Rank" not in line])
    assert error.message == "does not say how many GPUs took part"
    assert only(read(tmp_path, text, gpus=72, per_host=4)).per_host == 4


def test_hosts_of_unequal_size_are_refused(tmp_path):
    text = [line.replace("on host1 device 7", "on host0 device 7") for line in logs.log()]
    assert refusal(tmp_path, text).message == "the hosts have between 7 and 9 ranks each"


PREFIXES = {
    "open mpi": "[1,0]<stdout>:{}",
    "srun -l": " 0: {}",
    "time stamps": "2026-05-04T03:02:01.123456Z {}",
    "time in brackets": "[2026-05-04 03:02:01] {}",
    "prte": "[prterun-gpu-09-2564016@1,10]<stdout>:{}",
    "torchrun": "[rank0]:{}",
    "pods": "launcher-0 | {}",
    "colours": "\x1b[32m{}\x1b[0m",
    "carriage returns": "{}\r",
    "markdown": "> {}",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_what_launchers_put_before_a_line_does_not_matter(tmp_path, prefix):
    plain = only(read(tmp_path, logs.log()))
    found = only(read(tmp_path, [prefix.format(line) for line in logs.log()]))
    assert [(one.bytes, one.time_us) for one in found.samples] == [(one.bytes, one.time_us) for one in plain.samples]
    assert (found.operation, found.ranks, found.per_host) == ("allreduce", 16, 8)


def test_messages_of_nccl_between_and_within_rows_do_not_matter(tmp_path):
    message = "host0:4000:4100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    text = []
    for line in logs.log():
        head, word, tail = line.partition(" sum -1 ")
        cut = [f"{head}{word}{message}", message, f"   {tail}"] if word else [line, message]
        text += cut
    assert len(only(read(tmp_path, text)).samples) == len(logs.SIZES)
    fragments = [line.replace(" sum -1 ", " sum -1[1,0]<stdout>: ") for line in logs.log()]
    assert len(only(read(tmp_path, fragments)).samples) == len(logs.SIZES)


def test_old_columns_without_a_root_and_with_errors(tmp_path):
    text = [*logs.header(), *logs.ranks(16, 8), *logs.columns("error", root=False)]
    text += [logs.row("all_reduce", size, logs.smooth_us(size), 16, wrong="4e-07", root=False) for size in logs.SIZES]
    found = read(tmp_path, text)
    assert only(found).operation == "allreduce"
    assert len(only(found).samples) == len(logs.SIZES)
    assert found.notes == (f"test.log:1: the log ends within the table; the {len(logs.SIZES)} rows there are used",)


def test_headers_of_rccl_tests(tmp_path):
    head = "# nThread: 1 nGpus: 8 nRanks: 1 minBytes: 8 maxBytes: 8589934592 step: 2(factor) warmupIters: 5 iters: 20"
    old = [f"#   Rank {rank:2d} Pid 77 on gpu-box device {rank:2d} [0000:0{rank}:00.0] " for rank in range(8)]
    rows = [logs.row("all_reduce", size, logs.smooth_us(size), 8) for size in logs.SIZES]
    twice = [head, *old, *logs.columns(), *rows, "# Avg bus bandwidth : 1"] * 2
    found = read(tmp_path, twice)
    assert [(one.operation, one.ranks, one.per_host) for one in found.measured] == [("allreduce", 8, 8)] * 2


def test_rows_with_wrong_results_are_left_out(tmp_path):
    text = logs.log()
    at = next(index for index, line in enumerate(text) if " 1048576 " in line)
    text[at] = logs.row("all_reduce", 2**20, 90.0, 16, wrong="12")
    found = read(tmp_path, text)
    assert 2**20 not in [one.bytes for one in only(found).samples]
    assert found.notes == (f"test.log:2: 1 row with wrong results left out (line {at + 1})",)
    every = [line.replace(" 0 ", " 3 ") if " sum -1 " in line else line for line in logs.log()]
    assert refusal(tmp_path, every).message == "all 31 rows have wrong results (#wrong is not 0)"


def test_a_pass_that_did_not_run_and_a_pause_of_one(tmp_path):
    text = [
        *logs.log(sizes=[])[:-3],
        "8 2 float sum -1 N/A N/A N/A N/A 61.5 0.00 0.00 0",
        "16 4 float sum -1 983.2 0.00 0.00 0 62.5 0.00 0.00 0",
        "32 8 float sum -1 63.5 0.00 0.00 0 60.5 0.00 0.00 0",
        "64 16 float sum -1 64.5 0.00 0.00 0",
        "128 32 float sum -1 N/A N/A N/A N/A N/A N/A N/A N/A",
        "0 0 float sum -1 3.5 0.00 0.00 0 3.5 0.00 0.00 0",
    ]
    found = read(tmp_path, text)
    assert [(one.bytes, one.time_us) for one in only(found).samples] == [(8, 61.5), (16, 62.5), (32, 63.5), (64, 64.5)]
    assert "1 row without a possible time left out" in found.notes[0]


@pytest.mark.parametrize("lines_kept", [24, 26, 40])
def test_a_truncated_log_says_so(tmp_path, lines_kept):
    text = "\n".join(logs.log())
    end = len("\n".join(logs.log()[:lines_kept])) + 30
    found = read(tmp_path, text[:end].split("\n"))
    assert "the log ends within the table" in found.notes[0]
    assert len(only(found).samples) in {lines_kept - 23, lines_kept - 22}
    error = refusal(tmp_path, logs.log()[:22])
    assert error.message == "the table has no usable row"


def cut_anywhere(tmp_path, text, first, cut):
    """Read a log cut at every place from `first` on; returns how many sizes were read, or None, how often."""

    def times(found):
        return {(one.operation, one.ranks, row.bytes, row.time_us) for one in found.measured for row in one.samples}

    path = tmp_path / "all_reduce.log"
    path.write_text(text)
    whole = times(read_log(path))
    counts = Counter()
    for at in range(text.index(first), len(text), 3):  # rows are no multiple of 3 long: every column comes up
        path.write_text(cut(text, at))
        try:
            found = times(read_log(path))
        except InputError as error:
            assert error.hint
            counts[None] += 1
        else:
            assert found <= whole, cut(text, at)
            counts[len(found)] += 1
    return counts


@pytest.mark.parametrize("name", ["all_reduce", "alltoall", "broadcast"])
def test_a_log_cut_off_anywhere_gives_no_other_time(tmp_path, name):
    """Of a row cut off within `1061.25`, the time is not 106."""
    text = "\n".join(logs.log(name, sizes=logs.SIZES[:5], time_us=lambda size: 1061.25 + size / 7)) + "\n"
    counts = cut_anywhere(tmp_path, text, "           8 ", lambda text, at: text[:at])
    assert set(counts) == {None, 1, 2, 3, 4, 5}


def test_a_log_that_begins_anywhere_gives_no_other_size(tmp_path):
    """Of a row that begins within `1073741824`, the size is not 3741824."""
    text = "\n".join(logs.log(sizes=logs.SIZES[-5:])) + "\n"
    counts = cut_anywhere(tmp_path, text, "Rank  0", lambda text, at: text[at:])
    assert set(counts) >= {None, 1, 2, 3, 4, 5}


def test_a_last_row_without_a_line_end_counts_where_it_is_whole(tmp_path):
    text = logs.log(sizes=logs.SIZES[:4])[:-3]
    path = tmp_path / "test.log"
    path.write_text("\n".join(text))
    assert [one.bytes for one in only(read_log(path)).samples] == logs.SIZES[:4]
    path.write_text("\n".join(text)[:-12])
    found = read_log(path)
    assert [one.bytes for one in only(found).samples] == logs.SIZES[:3]
    assert "1 row cut off or garbled left out" in found.notes[0]


def test_a_garbled_row_is_left_out(tmp_path):
    text = logs.log()
    at = next(index for index, line in enumerate(text) if " 1073741824 " in line)
    text[at] = text[at].replace(f" {logs.smooth_us(2**30):.6g} ", " 98 ", 1)
    found = read(tmp_path, text)
    assert 2**30 not in [one.bytes for one in only(found).samples]
    assert found.notes == (f"test.log:2: 1 row cut off or garbled left out (line {at + 1})",)


@pytest.mark.parametrize("time_us", ["1e-07", "0.001", "1e+12", "nan", "-nan", "inf", "-5.0", "0.00"])
def test_times_that_cannot_be_are_left_out(tmp_path, time_us):
    text = logs.log(sizes=logs.SIZES[:4])
    at = next(index for index, line in enumerate(text) if line.startswith("           8 "))
    text[at] = f"8 2 float sum -1 {time_us} 0.00 0.00 0 {time_us} 0.00 0.00 0"
    found = read(tmp_path, text)
    assert [one.bytes for one in only(found).samples] == logs.SIZES[1:4]
    assert "1 row without a possible time left out" in found.notes[0]


def test_other_decimals_are_refused_with_the_reason(tmp_path):
    error = refusal(tmp_path, [line.replace(".", ",") for line in logs.log()])
    assert error.message == "none of 31 rows has a possible time"
    assert "decimal point" in error.hint


def test_a_failed_run_says_so(tmp_path):
    failure = "host0: Test NCCL failure common.cu:401 'remote process exited or there was a network error / '"
    error = refusal(tmp_path, [*logs.log()[:23], failure])
    assert error.message.startswith('the run failed before any size was measured: "host0: Test NCCL failure')
    assert error.place.endswith("test.log:24")
    found = read(tmp_path, [*logs.log()[:30], failure])
    assert found.notes == ("test.log:2: the run failed (line 31); what it measured before is used",)
    found = read(tmp_path, [*logs.log()[:23], failure, *logs.log("all_gather")])
    assert only(found).operation == "allgather"
    assert "left out: " in found.notes[0]
    found = read(tmp_path, [*logs.log(), "srun: error: host0: task 3: Exited with exit code 1"])
    assert found.notes == ("test.log:2: a failure is reported below the table (line 58)",)


def test_several_tables_in_one_log(tmp_path):
    text = [*logs.log(), *logs.log("all_gather", count=8), *logs.log("gather")]
    found = read(tmp_path, text)
    assert [(one.operation, one.ranks) for one in found.measured] == [("allreduce", 16), ("allgather", 8)]
    assert "gather is not an operation that gpuscale evaluates" in found.notes[0]
    assert "gather is not an operation" in refusal(tmp_path, logs.log("gather")).message


def test_units_that_disagree_are_refused(tmp_path):
    line = "1048576 262144 float sum -1 0.0905 11.59 21.73 0 0.0905 11.59 21.73 0"
    error = refusal(tmp_path, [*logs.log(sizes=[])[:-3], line])
    assert error.message == "1048576 bytes in 0.0905 us are 1.159e+04 GB/s, but algbw says 11.59"
    assert error.place.endswith(":24")


def test_nccom_test(tmp_path):
    text = ["size(B) count(elems) type time:avg(us) algbw(GB/s) busbw(GB/s)"]
    text += [
        f"{size} {size // 4} fp32 {40 + size / 1e5:.2f} {size / (40 + size / 1e5) / 1e3:.2f} "
        f"{size / (40 + size / 1e5) / 1e3 * 2 * 31 / 32:.2f}"
        for size in logs.SIZES
    ]
    measured = only(read(tmp_path, [*text, "Avg bus bandwidth:  21.0GB/s"]))
    assert (measured.operation, measured.ranks) == ("allreduce", 32)
    assert measured.samples[0].time_us == 40.0
    short = refusal(tmp_path, text[:8])
    assert short.message.startswith("does not say which operation it measured (all_reduce or all_gather or ")
    assert refusal(tmp_path, text[:8], op="allreduce").message == "does not say how many GPUs took part"
    some = refusal(tmp_path, text[:14], op="allreduce").message
    assert some == "does not say how many GPUs took part; busbw / algbw is that of 26 to 46"
    assert refusal(tmp_path, text[:14], gpus=8).message.endswith("8 GPUs, but all_reduce over 26 to 46")


def limited(monkeypatch, rows):
    for module in (calibration_logs, tables):
        monkeypatch.setattr(module, "MAX_ROWS", rows)


@pytest.mark.parametrize(("rows", "kept"), [(31, 1), (40, 2), (61, 2), (62, 2)])
def test_a_log_of_too_many_rows_says_where_it_is_cut(tmp_path, monkeypatch, rows, kept):
    one = logs.log()
    path = tmp_path / "long.txt"
    path.write_text("\n".join([*one, *logs.log("all_gather"), ""]), encoding="utf-8")
    whole = read_log(path)
    assert (len(whole.measured), whole.notes) == (2, ())
    limited(monkeypatch, rows)
    cut = read_log(path)
    assert [len(table.samples) for table in cut.measured] == [31, rows - 31][:kept]
    assert cut.measured[0] == whole.measured[0]
    assert cut.measured[-1].samples == whole.measured[kept - 1].samples[: rows - 31 * (kept - 1)]
    first = [sample.line for table in whole.measured for sample in table.samples][rows:][:1]
    assert cut.notes == tuple(
        f"long.txt: more than {rows} rows; those from line {line} on are left out" for line in first
    )


def test_a_torch_log_of_too_many_rows_says_where_it_is_cut(tmp_path, monkeypatch):
    text = ["local_rank: 7", "7 data size: 4.0 GB", *(f" duration: 0.{number} sec" for number in range(451, 461)), ""]
    path = tmp_path / "torch.txt"
    path.write_text("\n".join(text), encoding="utf-8")
    limited(monkeypatch, 10)
    assert read_log(path).notes == ()
    limited(monkeypatch, 4)
    found = read_log(path)
    assert len(found.measured[0].samples) == 4
    assert found.notes == ("torch.txt: more than 4 rows; those from line 7 on are left out",)


def test_torch_all_reduce_bench(tmp_path):
    text = [f"local_rank: {rank % 4}" for rank in range(8)] + [f"{rank} data size: 4.0 GB" for rank in range(8)]
    for duration in (0.5312, 0.4512, 0.4510):
        text += ["0:", f" duration: {duration} sec", " algo throughput: 142007505620.8443 bps, 142.0 Gbps"]
        text += [" busbw: 124.2566  Gbps", "ignore me 18186434"]
    measured = only(read(tmp_path, text))
    assert (measured.operation, measured.ranks, measured.per_host) == ("allreduce", 8, 4)
    assert [(one.bytes, one.time_us) for one in measured.samples] == [
        (4_000_000_000, pytest.approx(duration * 1e6)) for duration in (0.5312, 0.4512, 0.4510)
    ]
    average = [
        "The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 8 ranks):",
        " algbw: 200.000 GBps (1600.0 Gbps)",
        " busbw: 350.000 GBps (2800.0 Gbps)",
    ]
    (sample,) = only(read(tmp_path, average)).samples
    assert (sample.bytes, sample.time_us) == (4_000_000_000, pytest.approx(20_000))
    newer = [
        "The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 8 ranks):",
        "| payload |    busbw   |    algbw   |",
        "|    32KB |     1.75GBps |     1.00GBps |",
        "|     1GB |   350.00GBps |   200.00GBps |",
    ]
    measured = only(read(tmp_path, newer))
    assert (measured.ranks, [one.bytes for one in measured.samples]) == (8, [2**15, 2**30])
    assert measured.samples[1].time_us == pytest.approx(2**30 / 200e9 * 1e6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no table of results found"),
        (b"hello\nworld\n", "no table of results found"),
        (b"# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8 3.2\n", "the OSU micro-benchmarks"),
        (b"COMMS-RES-all_reduce-float32 ...\n", "is the output of PARAM comms"),
        (b"---- Performance of all_reduce on 16 devices ----\n", "DeepSpeed's communication benchmark"),
        (gzip.compress(b"text", mtime=0), "is gzip-compressed"),
        ("text".encode("utf-16"), "is UTF-16 text"),
        (b"\x7fELF" + b"\x00" * 400 + bytes(range(256)), "is a binary file"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, content, message):
    path = tmp_path / "x.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_log(path)
    assert caught.value.hint


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_log(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_log(tmp_path / "missing.log")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read_log(tmp_path / "pipe")


def test_size_and_line_length_are_bounded(tmp_path, monkeypatch):
    text = logs.log()
    text.insert(30, "x float " * 200_000)
    assert len(only(read(tmp_path, text)).samples) == len(logs.SIZES)
    monkeypatch.setattr(tables, "MAX_SKIPPED_BYTES", 1_000_000)
    assert "a line of more than" in refusal(tmp_path, text).message
    monkeypatch.setattr(tables, "MAX_LOG_BYTES", 2000)
    assert "the limit for a log" in refusal(tmp_path, logs.log()).message


def test_no_noise_breaks_the_reader(tmp_path):
    """Lines cut, doubled, swapped and mixed with others end in a result or in one reason."""
    draw = random.Random(7)
    for turn in range(200):
        text = logs.log(draw.choice(list(logs.FACTORS)))
        for _ in range(draw.randrange(1, 30)):
            at = draw.randrange(len(text))
            cut = draw.randrange(len(text[at]) + 1)
            text[at : at + 1] = draw.choice(
                [[text[at][:cut]], [text[at][cut:]], [text[at]] * 2, [], ["\x00\x1b[3", text[at]], [text[at][::-1]]]
            ) or [""]
        try:
            found = read(tmp_path, text, f"{turn}.log")
        except InputError as error:
            assert error.place
        else:
            assert all(one.time_us > 0 and one.bytes > 0 for table in found.measured for one in table.samples)


EXPECTED = {
    "alcf_polaris_nccl_2_18_n128.g4.2024-04-29-18-31-53_all_gather_output.dat.5.log": [("allgather", 512, 4, 18)],
    "alcf_polaris_nccl_2_18_n128.g4.2024-04-29-18-31-53_all_reduce_output.dat.1.log": [("allreduce", 512, 4, 29)],
    "alcf_polaris_nccl_2_18_n128.g4.2024-04-29-18-31-53_alltoall_output.dat.1.log": [("alltoall", 512, 4, 20)],
    "alcf_polaris_nccl_2_18_n2.g4.2024-04-29-18-41-24_all_gather_output.dat.1.log": [("allgather", 8, 4, 24)],
    "alcf_polaris_nccl_2_18_n2.g4.2024-04-29-18-41-24_all_reduce_output.dat.1.log": [("allreduce", 8, 4, 29)],
    "alcf_polaris_nccl_2_18_n2.g4.2024-04-29-18-41-24_alltoall_output.dat.1.log": [("alltoall", 8, 4, 26)],
    "alcf_polaris_nccl_2_18_n540.g4.2024-04-29-19-43-05_all_reduce_output.dat.5.log": [("allreduce", 2160, 4, 29)],
    "alcf_polaris_nccl_2_18_n540.g4.2024-04-29-19-43-05_alltoall_output.dat.5.log": [("alltoall", 2160, 4, 17)],
    "alcf_sophia_n2.g8_2024-10-15-11-21-15_all_reduce_output.dat.1.log": ":20: the run failed before any size",
    "alcf_sophia_n2.g8_2024-10-15-11-28-16_all_gather_output.dat.1.log": ":20: the run failed before any size",
    "alcf_sophia_n2.g8_2024-10-15-11-28-16_alltoall_output.dat.1.log": ":20: the run failed before any size",
    "alps_gh200_WRONG_aws1.13_job-n-00032-N-0008-146876.out": [("allreduce", 32, 4, 29)],
    "alps_gh200_WRONG_aws1.9_job-n-02048-N-0512-142960.out": [("allreduce", 2048, 4, 29)],
    "alps_gh200_job-n-00004-N-0001-142995.out": [("allreduce", 4, 4, 30)],
    "alps_gh200_job-n-00008-N-0002-142996.out": [("allreduce", 8, 4, 30)],
    "alps_gh200_job-n-00032-N-0008-142998.out": [("allreduce", 32, 4, 29)],
    "aws_batch_mpi_tagged.log": [("allreduce", 8, None, 32)],
    "aws_topology_aware_sample.log": [("allreduce", 128, None, 3)],
    "bigscience_torch_all_reduce_bench-a100-n4.txt": [("allreduce", 32, 8, 160)],
    "bigscience_torch_n1_16gb_all_reduce_bench.txt": [("allreduce", 4, 4, 20)],
    "bitdeer_h100_2x8_allreduce.log": [("allreduce", 16, 8, 6)],
    "cluster00_FAIL_nccl_N2_G4_cnode2-001_cnode2-003.log": [("sendrecv", 8, 4, 10)],
    "cluster01_multi-node_nccl_N10_G1.log": [
        (name, 10, 1, 10) for name in ("allreduce", "allgather", "reducescatter", "alltoall", "sendrecv")
    ],
    "cluster01_multi-node_nccl_N10_G8.log": [
        (name, 80, 8, 10) for name in ("allreduce", "allgather", "reducescatter", "alltoall", "sendrecv")
    ],
    "cluster01_single-node_nccl_N1_G4_cnode3-002.log": [
        (name, 4, 4, 10) for name in ("allreduce", "allgather", "reducescatter", "alltoall", "sendrecv")
    ],
    "cluster01_single-node_nccl_N1_G8_cnode3-002.log": [
        (name, 8, 8, 10) for name in ("allreduce", "allgather", "reducescatter", "alltoall", "sendrecv")
    ],
    "cluster01_smoke_nccl_smoke_N2_G1_cnode3-002_cnode3-003.log": [("allreduce", 2, 1, 5), ("sendrecv", 2, 1, 5)],
    "coreweave_gb200_1rack_nvl72.log": [("allreduce", 72, None, 5)],
    "coreweave_gb200_2racks.log": "fits no operation over 144 GPUs, but all_reduce over 128",
    "coreweave_h100_512gpu_sharp.log": [("allreduce", 96, None, 5)],
    "crickett_4gpu.log": [("allreduce", 8, None, 14)],
    "cscs_gh200_intra.log": [("allreduce", 8, 4, 25)],
    "cscs_gh200_tcp_fallback.log": [("allreduce", 8, 4, 25)],
    "dgxc_h100x8_allreduce.log": [("allreduce", 8, 8, 32)],
    "gke_a3mega_allgather_headless.log": [("allgather", 16, None, 26)],
    "neuron_nccom_test.log": ":3: does not say how many GPUs took part",
    "old2020_2p3dn.2GPUs.infNet.log": "does not say which operation it measured (all_reduce or sendrecv)",
    "old2020_2p3dn.2GPUs.log": "does not say which operation it measured (all_reduce or sendrecv)",
    "old2020_4p3dn.4GPUs.infNet.log": [("allreduce", 4, 1, 12)],
    "old2020_4p3dn.4GPUs.log": [("allreduce", 4, 1, 17)],
    "p5_nccl-test-output-v2.20.3-1.log": [("allreduce", 16, 8, 32)],
    "p5_nccl-test-output-v2.22.3-1-with-tuner.log": [("allreduce", 16, 8, 32)],
    "superbench_allgather.log": [("allgather", 8, 8, 29)],
    "superbench_allreduce.log": [("allreduce", 8, 8, 32)],
    "superbench_alltoall.log": [("alltoall", 8, 8, 29)],
    "superbench_broadcast.log": [("broadcast", 8, 8, 32)],
    "superbench_reduce.log": [("reduce", 8, 8, 32)],
    "superbench_reducescatter.log": [("reducescatter", 8, 8, 29)],
    "ztan_a3mega_h100_2node.log": [("allreduce", 16, 8, 31)],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_published_logs(name):
    path = SHARED / name
    if not path.exists():
        pytest.skip("the published logs are not here")
    expected = EXPECTED[name]
    if isinstance(expected, str):
        with pytest.raises(InputError) as caught:
            read_log(path)
        assert expected in str(caught.value)
        assert caught.value.hint
        return
    found = [(one.operation, one.ranks, one.per_host, len(one.samples)) for one in read_log(path).measured]
    assert found == expected


@pytest.mark.skipif(not SHARED.exists(), reason="the published logs are not here")
def test_every_published_log_has_an_expected_outcome():
    assert {path.name for path in SHARED.iterdir()} == set(EXPECTED)


@pytest.mark.skipif(not SHARED.exists(), reason="the published logs are not here")
def test_every_published_log_ends_in_a_result_or_one_reason():
    for path in sorted(SHARED.iterdir()):
        try:
            assert read_log(path).measured
        except InputError as error:
            assert error.place.startswith(str(path))
            assert error.hint
