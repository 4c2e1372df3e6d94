"""What the README says holds: its commands run, its outputs are those of now, and it names every command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli_general import WALKED
from update_readme import PAGES, README, blocks, empty_folder, run, without_time

TEXT = README.read_text()
SHOWN = [shown for block in blocks() for shown in block]
EVERYWHERE = [shown for page in PAGES for block in blocks(page) for shown in block]


def fenced(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("shown", EVERYWHERE, ids=[shown.command for shown in EVERYWHERE])
def test_outputs_are_those_of_now(shown):
    with empty_folder():
        code, lines = run(shown)
    assert code == shown.code
    assert without_time(lines) == without_time(shown.lines), "run: python tests/update_readme.py"


def test_every_command_is_named():
    for name in WALKED:
        assert f"`gpuscale {name}`" in TEXT or f"`gpuscale {name} " in TEXT or hasattr(WALKED[name], "commands"), name


def test_main_commands_are_shown_with_output():
    commands = " ".join(shown.command for shown in SHOWN)
    for name in ("plan", "estimate", "collective", "roofline", "clusters show", "models show", "--why"):
        assert name in commands
    assert all(len(line) <= 100 for shown in SHOWN for line in shown.lines if "─" in line)


@pytest.mark.parametrize("block", [text for text in fenced("sh") if "pip" not in text])
def test_shell_examples_run(block, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", fenced("python"))
def test_python_examples_run(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 4


def test_setup_commands_are_what_ci_runs():
    run_it, test_it = (text.strip() for text in fenced("sh")[:2])
    assert run_it.startswith("python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/gpuscale plan ")
    ci = (README.parent / ".ci" / "run").read_text()
    assert run_it in ci
    assert test_it in ci
