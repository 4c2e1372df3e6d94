"""Everything that is written: whole or not at all, never over what was read, and to this process's streams as such."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import nccl_logs
import pytest
from command import assert_one_message, gpuscale
from test_import_clusters import H100X8

from gpuscale import files
from gpuscale.errors import InputError
from gpuscale.files import printable, read_text, reading, write_text

COMMAND = [sys.executable, "-B", "-m", "gpuscale"]  # a disk that is full would cut bytecode off
PLAN = ["plan", "--model", "llama3-8b", "--gpus", "8", "--seq", "2048"]
STEERING = "\x1b[31mred\x9b2J\u202e\r"


@pytest.fixture
def inputs(tmp_path):
    """Files for every command that reads and writes: name -> path."""
    found = {name: tmp_path / name for name in ("c.toml", "plan.toml", "hosts", "topo.txt", "config.json", "gpu.toml")}
    for kind, name, file in (("clusters", "dgx-h100-superpod", "c.toml"), ("hardware", "h100", "gpu.toml")):
        found[file].write_text(gpuscale(kind, "show", name, "--toml").out)
    assert gpuscale(*PLAN, "-o", tmp_path / "made.toml").code == 0
    found["plan.toml"].write_bytes((tmp_path / "made.toml").read_bytes())
    found["hosts"].write_text("one\ntwo\n")
    found["topo.txt"].write_text(H100X8)
    shape = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "intermediate_size": 4096}
    shape |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000}
    found["config.json"].write_text(json.dumps(shape))
    found["log"] = nccl_logs.write(tmp_path / "log", nccl_logs.log())
    return found


WRITERS = {  # name of the file that is read -> the command up to the path that it writes
    "c.toml": [*PLAN, "--cluster", "c.toml", "-o"],
    "config.json": ["plan", "--model", "config.json", "--gpus", "8", "-o"],
    "plan.toml": ["placement", "plan.toml", "--hostfile"],
    "hosts": ["placement", "--gpus", "16", "--hosts", "hosts", "--rankfile"],
    "gpu.toml": ["clusters", "import", "topo.txt", "--gpu", "./gpu.toml", "-o"],
    "topo.txt": ["clusters", "import", "topo.txt", "--gpu", "h100", "-o"],
    "log": ["calibrate", "nccl", "log", "--cluster", "dgx-h100-superpod", "-o"],
}
MORE_WRITERS = [
    ("c.toml", ["placement", "--gpus", "16", "--cluster", "c.toml", "--ranks"]),
    ("c.toml", ["clusters", "import", "topo.txt", "--gpu", "h100", "--base", "./c.toml", "-o"]),
    ("c.toml", ["calibrate", "nccl", "log", "--cluster", "./c.toml", "-o"]),
    ("plan.toml", ["placement", "plan.toml", "--groups"]),
    ("plan.toml", ["placement", "plan.toml", "--slurm"]),
]


@pytest.mark.parametrize(("read", "command"), [*WRITERS.items(), *MORE_WRITERS])
def test_no_command_writes_over_what_it_read(read, command, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = inputs[read].read_bytes()
    Path("symbolic").symlink_to(read)
    Path("hard").hardlink_to(read)
    Path("folder").mkdir()
    for output in (read, "symbolic", "hard", f"folder/../{read}", tmp_path / read):
        assert_one_message(gpuscale(*command, output), "is also a file to read", "write to another file")
        assert inputs[read].read_bytes() == before
    assert gpuscale(*command, "new").code == 0


@pytest.mark.parametrize("command", WRITERS.values(), ids=WRITERS)
def test_rights_and_names_of_a_file_stay(command, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, other, shut = Path("old"), Path("other"), Path("shut")
    old.write_text("old")
    old.chmod(0o600)
    assert gpuscale(*command, old).code == 0
    written = old.read_text()
    assert (old.stat().st_mode & 0o777, len(written) > 3) == (0o600, True)
    old.write_text("x" * 100_000)
    other.hardlink_to(old)
    assert gpuscale(*command, old).code == 0
    assert (old.samefile(other), other.read_text()) == (True, written)
    shut.write_text("shut")
    shut.chmod(0o444)
    assert_one_message(gpuscale(*command, shut), "is read-only", "make it writable")
    assert shut.read_text() == "shut"
    assert not list(tmp_path.glob(".*"))


def run(command, **more):
    return subprocess.run([*COMMAND, *command], stderr=subprocess.PIPE, text=True, check=False, **more)


@pytest.mark.parametrize("stream", ["/dev/stdout", "/dev/fd/1", "-"])
def test_stdout_is_a_stream_that_is_added_to(stream, tmp_path):
    log = tmp_path / "run.log"
    log.write_text("earlier\n")
    with log.open("a") as out:
        assert run([*PLAN, "-o", stream], stdout=out).returncode == 0
    first, _, rest = log.read_text().partition("\n")
    assert first == "earlier"
    assert tomllib.loads(rest)["format"] == "gpuscale.planfile/1"  # and nothing beside it


def test_stderr_is_a_stream_too(tmp_path):
    done = run([*PLAN, "-o", "/dev/stderr"], stdout=subprocess.PIPE)
    assert tomllib.loads(done.stderr)["layout"]
    assert done.stdout.startswith("llama3-8b on 8 GPUs")


def test_two_documents_do_not_share_a_stream():
    assert_one_message(gpuscale(*PLAN, "-o", "-", "--json"), "--output: two documents on one stream", "give a file")
    placed = ["placement", "--gpus", "16", "--groups", "-"]
    assert_one_message(gpuscale(*placed, "--json"), "--groups: two documents on one stream", "give a file")
    assert_one_message(gpuscale(*placed, "--slurm", "/dev/stdout"), "--slurm: two documents on one", "give a file")


def test_an_export_of_a_placement_fills_stdout_alone(tmp_path):
    placed = ["placement", "--gpus", "16", "--tp", "8", "--groups"]
    assert gpuscale(*placed, tmp_path / "groups.csv").code == 0
    assert gpuscale(*placed, "-").out == (tmp_path / "groups.csv").read_text()


def limited(size=100):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("linked", [False, True])
def test_a_full_disk_leaves_the_old_file(linked, tmp_path):
    old = tmp_path / "old.toml"
    old.write_text("old")
    if linked:
        (tmp_path / "other").hardlink_to(old)
    done = run([*PLAN, "-o", str(old)], stdout=subprocess.PIPE, preexec_fn=limited)
    assert (done.returncode, done.stdout, old.read_text()) == (2, "", "old")
    assert done.stderr == f"error: '{old}': cannot write: {os.strerror(errno.EFBIG)}\n"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_signal_leaves_the_old_file_and_no_other(name, linked, tmp_path):
    old = tmp_path / "old.toml"
    old.write_text("old")
    if linked:
        (tmp_path / "other").hardlink_to(old)
    code = (
        "import os, signal, sys; from gpuscale.__main__ import main; sync = os.fsync\n"
        f"os.fsync = lambda one: (sync(one), os.kill(os.getpid(), signal.{name}))\n"
        f"sys.argv = ['gpuscale', *{PLAN}, '-o', {str(old)!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    wanted = 130 if name == "SIGINT" else -getattr(signal, name)
    assert (done.returncode, done.stdout, done.stderr, old.read_text()) == (wanted, "", "", "old")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_block_gets_everything(unbuffered):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen([*COMMAND, "models", "list", "--json"], stdout=writer, env=environment)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        found = json.load(stream)
    assert (process.wait(), found["schema"]) == (0, "gpuscale.models/1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_written_is_no_success(unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = run(["clusters", "list"], stdout=full, env=environment)
    assert (done.returncode, done.stderr) == (2, f"error: cannot write the output: {os.strerror(errno.ENOSPC)}\n")


def test_closed_streams():
    done = run(["hardware", "list"], preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (2, "error: cannot write the output: Bad file descriptor\n")
    shell = ["sh", "-c", f"{' '.join(COMMAND)} plan -m qwen3-235b -n 64 --cluster gb200 2>&-"]
    noted = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (noted.returncode, noted.stdout[:15], noted.stderr) == (0, "qwen3-235b-a22b", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("second", ["old/x", "/dev/full", "missing/x"])
def test_of_several_files_all_are_written_or_none(second, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old").write_text("old")
    done = gpuscale("placement", "--gpus", "16", "--ranks", "new", "--groups", "old", "--hostfile", second)
    assert (done.code, done.out, Path("old").read_text()) == (2, "", "old")
    assert [one.name for one in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("second", ["one", "./one", "link"])
def test_two_outputs_are_two_files(second, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("old")
    Path("link").symlink_to("one")
    for command in (["schedule", "plan.toml", "--trace", "one", "--svg"], [*PLAN, "-o", "one", "--html"]):
        done = gpuscale(*command, second)
        assert (done.code, done.out, Path("one").read_text()) == (2, "", "old")


# -- what steers a terminal --


def test_what_would_steer_a_terminal_is_spelled_out():
    assert printable(STEERING) == r"\u001b[31mred\u009b2J\u202e\r"
    assert printable("a\tb\n\U000e0001é µ") == r"a\tb\n\U000e0001é µ"


def test_nothing_of_a_file_steers_the_terminal(inputs, tmp_path):
    raw = json.dumps(STEERING)
    cluster, gpu = inputs["c.toml"], inputs["gpu.toml"]
    for path in (cluster, gpu):
        text = re.sub(
            r'(?m)^title = .*|(?<= = )"[^"\n]* [^"\n]*"$', lambda one: one[0][:-1] + raw[1:], path.read_text()
        )
        path.write_text(f"# \x9b \u202e\n{text}")
    for command in (["clusters", "show", cluster], ["hardware", "show", gpu], [*PLAN, "--cluster", cluster, "-v"],
                    ["clusters", "show", cluster, "--toml"], ["collective", "allreduce", "--bytes", "1MB", "--cluster",
                     cluster], ["roofline", "--cluster", cluster], ["placement", "--gpus", "16", "--cluster", cluster],
                    ["clusters", "show", f"{tmp_path}/{STEERING}.toml"]):  # fmt: skip
        done = gpuscale(*command)
        assert "red" in done.out + done.err or command[0] not in {"clusters", "hardware"}
        assert all(one.isprintable() or one in "\n\t\u00a0" for one in done.out + done.err), command


def test_a_spreadsheet_runs_nothing(tmp_path):
    rows = tmp_path / "runs.csv"
    rows.write_text(
        "id,model,gpu,gpus,seq,gbs\n\"=cmd|' /C calc'!A0\",llama3-8b,h100,8,4096,64\n-1,llama3-8b,h100,8,4096,64\n"
    )
    out = gpuscale("validate", rows, "--csv").out.split("\n")
    assert out[1].startswith("'=cmd")
    assert out[2].startswith("-1,")  # a number


# -- the functions --


def test_python_may_save_over_what_it_loaded(tmp_path):
    path = tmp_path / "x"
    path.write_text("one")
    files.begin_command()
    read_text(path, 100, "a test")
    with pytest.raises(InputError, match="also a file to read"):
        write_text(path, "two")
    with mock.patch.object(files, "_read", None):  # as without a command
        read_text(path, 100, "a test")
        write_text(path, "three")
    assert path.read_text() == "three"


def test_what_goes_wrong_while_a_file_is_read_is_not_the_path_s_fault(tmp_path):
    path = tmp_path / "x"
    path.write_text("x")
    with pytest.raises(ValueError, match="of the reader"), reading(path):
        raise ValueError("of the reader")
