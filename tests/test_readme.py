"""What the README and the pages say holds: their commands run, outputs look as they do now, every command is named."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from test_cli_general import WALKED
from update_readme import DOCS, LEFT_OUT, PAGES, README, Shown, blocks, empty_folder, run, shape

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


FENCES = [
    pytest.param(page, language, block, id=f"{page.stem}-{index}-{language}")
    for page in (README, README.parent / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md")))
    for index, (language, block) in enumerate(
        re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    )
]
NOT_RUN = {
    "three-studies": "takes long: benchmarks/three_studies.py runs them and writes the page",
    "models": "has no output, and a checkpoint of the reader",
    "launch": "reads a plan of the reader; tests of exports know the message",
    "tune": "writes into the folder of a study; tests of trials know the message",
}
"""Pages whose examples have their options checked alone -> why."""

PLAIN = {"code-map": "the stages as a picture", "fleet": "a formula"}
"""Pages with a text that no command prints -> what it is."""


@pytest.mark.parametrize(("page", "language", "block"), FENCES)
def test_every_block_is_checked_or_named(page, language, block):
    """Examples are run, commands have the options given, data and code can be read; the rest is named above."""
    if language in {"console", "text"} and block.startswith("$ "):
        assert page in PAGES or page.stem in NOT_RUN
    elif language == "toml":
        tomllib.loads(block)
    elif language == "json":
        json.loads(block)
    elif language == "yaml":
        assert list(yaml.safe_load_all(block))
    elif language == "python":
        compile(block, page.name, "exec")
    else:
        assert language in {"sh", "dockerfile"} or (language == "text" and page.stem in PLAIN)


def test_what_is_left_out_of_an_output_may_stand_in_its_middle():
    shown = Shown("gpuscale plan --model llama3-8b --gpus 8", ("1", LEFT_OUT, "#  TP  PP", "2", LEFT_OUT))
    code, lines = run(shown)
    whole = run(Shown(shown.command, ("",)))[1]
    assert (code, len(lines), lines[0], lines[1], lines[-1]) == (0, 3, whole[0], LEFT_OUT, LEFT_OUT)
    head = next(line for line in whole if line.startswith("#"))
    at = whole.index(head)
    code, lines = run(Shown(shown.command, ("1", LEFT_OUT, head, "", LEFT_OUT)))
    assert lines == (whole[0], LEFT_OUT, *whole[at : at + 2], LEFT_OUT)


def commands(text):
    """Arguments of every `gpuscale` command of the shell blocks and examples of a page."""
    examples = [block for language in ("console", "text") for block in fenced(language, text)]
    shown = [line[2:] for block in examples for line in block.splitlines() if line.startswith("$ ")]
    for block in (*fenced("sh", text), *shown):
        words = shlex.shlex(block.replace("\\\n", " ").replace("\n", ";"), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        found = list(words)
        for index, word in enumerate(found):
            if Path(word).name == "gpuscale":
                arguments = list(takewhile(lambda part: not set(part) <= set("<>|&;()"), found[index + 1 :]))
                if arguments:  # else it is the name of a folder
                    yield arguments


@pytest.mark.parametrize("page", [README, *sorted(README.parent.glob("docs/**/*.md"))], ids=lambda page: page.stem)
def test_commands_of_the_pages_take_their_options(page):
    for arguments in commands(page.read_text()):
        name = " ".join(part for part in arguments[:2] if " ".join(arguments[: arguments.index(part) + 1]) in WALKED)
        own = arguments[len(name.split()) :]
        # Click keeps the names of the first --help that a command is asked for
        assert WALKED[name].make_context(name, own, help_option_names=["-h", "--help"]).params


def test_every_command_is_named():
    for name in [name for name, one in WALKED.items() if not one.hidden]:
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
