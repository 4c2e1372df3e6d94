"""The process of the `gpuscale` command: exit codes, pipes, full disks, terminals."""

import errno
import io
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import pytest
from command import assert_one_message, gpuscale

from gpuscale.cli import run

COMMAND = [sys.executable, "-m", "gpuscale"]
PLAN = ("plan", "--model", "llama3-8b", "--gpus", "8")
MORE = pytest.mark.full


def test_exit_codes_and_streams():
    def command(*arguments):
        return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)

    unusable = command("plan", "--model", "lama", "--gpus", "1")
    assert (unusable.returncode, unusable.stdout) == (2, "")
    assert unusable.stderr.startswith("error: unknown model 'lama'\n\nhint: ")


def test_the_users_own_settings_stay_and_what_runs_at_the_end_does():
    code = (
        "import atexit, os, sys; from gpuscale.__main__ import main; sys.argv = ['gpuscale', '--version']; "
        "atexit.register(lambda: print(os.environ['OPENBLAS_NUM_THREADS'])); main()"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "3"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[0].startswith("gpuscale ")
    assert done.stdout.splitlines()[1:] == ["3"]


@pytest.mark.parametrize(
    "flags",
    [["--csv", "--all", "--top", "500"], pytest.param(["--json"], marks=MORE), pytest.param([], marks=MORE)],
    ids=["csv", "json", "table"],
)
def test_a_reader_that_leaves_ends_the_command_quietly(flags):
    process = subprocess.Popen([*COMMAND, *PLAN, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "list"],
        pytest.param(["--version"], marks=MORE),
        pytest.param(["models", "list", "--json"], marks=MORE),
        pytest.param(["--help"], marks=MORE),
    ],
)
def test_a_full_disk_is_one_message(arguments):
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (process.returncode, process.stderr) == (2, f"error: cannot write the output: {os.strerror(errno.ENOSPC)}\n")


def at_a_terminal(**environment):
    """Run `plan` on a pseudo-terminal, and return what it wrote."""
    controller, terminal = pty.openpty()
    wanted = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    process = subprocess.Popen([*COMMAND, *PLAN, "--top", "2"], stdout=terminal, stderr=terminal, env=wanted)
    os.close(terminal)
    written = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not part:
            break
        written += part
    os.close(controller)
    assert process.wait() == 0
    return written.decode()


def test_colour_only_at_a_terminal_that_wants_it():
    assert "\x1b[3" not in at_a_terminal(NO_COLOR="1")
    assert "\x1b" not in gpuscale(*PLAN).out


def test_headers_are_bold_at_a_terminal_that_can():
    assert "\x1b[1m#" in at_a_terminal()


@pytest.mark.full
def test_a_dumb_terminal_gets_plain_text():
    assert "\x1b" not in at_a_terminal(TERM="dumb")


def test_tables_where_output_is_ascii():
    written = io.BytesIO()
    with mock.patch("sys.argv", ["gpuscale", *PLAN]), mock.patch("sys.stdout", io.TextIOWrapper(written, "ascii")):
        assert run() == 0
        assert b"\n-----" in written.getvalue()


def test_what_a_terminal_would_obey_is_spelled_out():
    done = gpuscale("models", "show", "./\x1b[31m\nred.json")
    assert_one_message(done, r"\u001b[31m\nred.json: no such file", "give a config.json")


DEFECT = (
    "import sys; from unittest import mock; from gpuscale.__main__ import main; import gpuscale.cli.main\n"
    "sys.argv = ['gpuscale', 'plan', '-m', 'llama3-8b', '-n', '8', '--json']\n"
    "with mock.patch('gpuscale.planning.plans.plan', side_effect={}): main()"
)


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("ZeroDivisionError('by \\x1b zero')", "error: ZeroDivisionError at "),
        ("MemoryError()", "error: out of memory\n\nhint: ask for less at a time"),
        ("PermissionError(13, 'Permission denied')", "error: PermissionError at "),
    ],
)
def test_a_defect_is_no_answer(raised, message):
    command = [sys.executable, "-c", DEFECT.format(raised)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    shown = {**os.environ, "GPUSCALE_DEBUG": "1"}
    traced = subprocess.run(command, capture_output=True, text=True, check=False, env=shown)
    assert traced.returncode == 3
    assert ("Traceback" in traced.stderr) == ("out of memory" not in message)


def test_a_signal_that_nohup_ignores_ends_nothing():
    code = (
        "import os, signal, sys; from unittest import mock\n"
        "from gpuscale.__main__ import main; import gpuscale.planning.plans\n"
        "sys.argv, found = ['gpuscale', 'plan', '-m', 'llama3-8b', '-n', '8'], gpuscale.planning.plans.plan\n"
        "hung_up = lambda *given, **more: (os.kill(os.getpid(), signal.SIGHUP), found(*given, **more))[1]\n"
        "with mock.patch('gpuscale.planning.plans.plan', hung_up): main()"
    )
    command = ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:9], done.stderr) == (0, "llama3-8b", "")


def test_nothing_fits_is_an_answer_too():
    done = gpuscale("plan", "--model", "llama3.1-405b", "--gpus", "8", "--json")
    found = json.loads(done.out)
    assert (done.code, found["schema"], found["plans"]) == (1, "gpuscale.plan/1", [])
    assert found["nearest_miss"]["tp"] == 8
    assert found["hint"] in done.err
    bounded = gpuscale("plan", "--model", "llama3-8b", "--gpus", "8", "--max-step-time", "0.001", "--json")
    assert json.loads(bounded.out)["nearest_miss"]["step_time_s"] > 0.001
    assert "--max-step-time" in json.loads(bounded.out)["hint"]


DEADLY = """\
import os, signal, pytest

@pytest.mark.parametrize("number", range(9))
def test_lives(number):
    pass

def test_interrupts_itself():
    os.kill(os.getpid(), signal.SIGINT)

def test_lets_an_interrupt_out():
    raise KeyboardInterrupt

@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_dies(name):
    os.kill(os.getpid(), getattr(signal, name))

@pytest.mark.parametrize("number", range(9))
def test_lives_too(number):
    pass
"""


def test_the_suite_survives_a_test_that_dies(tmp_path):
    """What dies fails alone, and all others run."""
    (tmp_path / "test_deadly.py").write_text(DEADLY)
    (tmp_path / "pytest.ini").touch()
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", "--junitxml=found.xml"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=300)
    cases = ElementTree.parse(tmp_path / "found.xml").getroot().iter("testcase")
    passed = {case.get("name"): len(case) == 0 for case in cases}
    assert {name for name, is_passed in passed.items() if not is_passed} == {
        "test_interrupts_itself", "test_lets_an_interrupt_out", "test_dies[SIGKILL]", "test_dies[SIGTERM]"
    }  # fmt: skip
    assert sum(passed.values()) == 18
