"""What the README and the pages say holds: their commands run, outputs look as they do now, every command is named."""

import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from test_cli_general import WALKED
from update_readme import PAGES, README, blocks, empty_folder, run, shape

TEXT = README.read_text()
SHOWN = [shown for block in blocks() for shown in block]
EXAMPLES = [
    pytest.param(shown, marks=() if page == README else pytest.mark.full, id=shown.command)
    for page in PAGES for block in blocks(page) for shown in block
]  # fmt: skip


EXACT = ("gpuscale collective allreduce --bytes 32MiB --level leaf",)
"""Commands whose digits are the subject: a formula with its numbers."""


def fenced(language, text=TEXT):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("shown", EXAMPLES)
def test_outputs_look_as_they_do_now(shown):
    with empty_folder():
        code, lines = run(shown)
    assert code == shown.code
    seen = list if shown.command in EXACT else shape
    assert seen(lines) == seen(shown.lines), "run: python tests/update_readme.py"


def test_the_shape_of_an_output_has_the_verdict_and_the_headers_and_no_digits():
    lines = [
        "llama3-8b on 8 GPUs: TP1 PP4: 45.2 s/step",
        "",
        "#    s/step",
        "──────────",
        "1=    6.78",
        "2    10.2",
        "...",
    ]
    assert shape(lines) == ["llama#-#b on # GPUs: TP# PP#: # s/step", "", "# s/step", "─", "#", "#", "..."]
    assert shape(["llama3-8b on 16 GPUs: TP2 PP1: 9 s/step"]) == shape(lines[:1])
    assert shape(["llama3-8b on 16 GPUs: TP2 PP1 EP2: 9 s/step"]) != shape(lines[:1])


def commands(text):
    """Arguments of every `gpuscale` command of the shell blocks of a page."""
    for block in fenced("sh", text):
        words = shlex.shlex(block.replace("\\\n", " ").replace("\n", ";"), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        found = list(words)
        for index, word in enumerate(found):
            if word == "gpuscale":
                yield list(takewhile(lambda part: not set(part) <= set("<>|&;()"), found[index + 1 :]))


@pytest.mark.parametrize("page", [README, *sorted(README.parent.glob("docs/**/*.md"))], ids=lambda page: page.stem)
def test_commands_of_the_pages_take_their_options(page):
    for arguments in commands(page.read_text()):
        name = " ".join(part for part in arguments[:2] if " ".join(arguments[: arguments.index(part) + 1]) in WALKED)
        own = arguments[len(name.split()) :]
        # Click keeps the names of the first --help that a command is asked for
        assert WALKED[name].make_context(name, own, help_option_names=["-h", "--help"]).params


def test_every_command_is_named():
    for name in WALKED:
        assert f"`gpuscale {name}`" in TEXT or f"`gpuscale {name} " in TEXT or hasattr(WALKED[name], "commands"), name


def test_main_commands_are_shown_with_output():
    commands = " ".join(shown.command for shown in SHOWN)
    for name in ("plan", "estimate", "collective"):
        assert f"gpuscale {name}" in commands
    assert all(len(line) <= 100 for shown in SHOWN for line in shown.lines if "─" in line)


@pytest.mark.full
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
