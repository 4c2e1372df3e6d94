"""What all commands share: help, usage errors, hostile files, pipes, colours, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale

from gpuscale import __version__
from gpuscale.cli import commands
from gpuscale.cli.main import ALIASES, COMMANDS, COMMON, COMMON_OF, JOBS, MANY, Grouped, named

COMMAND = [sys.executable, "-m", "gpuscale"]
PLAN = ("plan", "--model", "llama3-8b", "--gpus", "8")


WALKED = named()
"""Every command by name, as Click has it."""


def test_the_commands_are_listed_with_what_they_do():
    done = gpuscale("--help")
    assert (done.code, done.err) == (0, "")
    sections = re.findall(r"^([A-Z][^\n]*):\n((?:  .*\n)+)", done.out, re.MULTILINE)
    assert [title for title, _ in sections] == ["Options", *JOBS]
    listed = [line for _, body in sections[1:] for line in body.splitlines()]
    shown = [name for name, one in commands().commands.items() if not one.hidden]
    assert [line.split("  ")[1] for line in listed] == shown
    assert len({name.split()[0] for name in shown}) == 22
    assert all(len(line.split()) > 3 for line in listed)


@pytest.mark.parametrize("old", ALIASES)
def test_a_name_from_before_is_the_same_command(old):
    assert gpuscale(*old.split(), "--help") == gpuscale(*ALIASES[old].split(), "--help")
    assert not {old, old.split()[0]} & {name for name, one in commands().commands.items() if not one.hidden}


def test_one_preset_is_named_where_its_options_are():
    for kind, option in (
        ("models", "--seq=1"),
        ("hardware", "--toml"),
        ("clusters", "--draw"),
        ("frameworks", "--toml"),
    ):
        assert_one_message(gpuscale("show", kind, option), "is about one of them", "give its name")


@pytest.mark.parametrize("name", WALKED)
def test_every_command_and_option_has_help(name):
    command = WALKED[name]
    assert command.help
    assert all(getattr(param, "help", None) for param in command.params), [p.name for p in command.params]
    for columns in (80, 100):
        done = gpuscale(*name.split(), "--help" if hasattr(command, "commands") else "--help-all", columns=columns)
        assert (done.code, done.err) == (0, "")
        assert all(len(line) <= columns for line in done.lines)
        assert done.lines[0].startswith(f"Usage: gpuscale {name} ")
    options = [param for param in command.params if param.param_type_name == "option"]
    short = gpuscale(*name.split(), "-h")
    assert short.code == 0
    if len(options) >= MANY:
        told = [line for line in short.lines if line.startswith("  -")]
        assert 8 <= len(told) <= 26
        left_out = len([one for one in options if one.name not in COMMON_OF.get(name, COMMON)])
        assert "--help-all" in short.out
        assert f"the {left_out} other options" in " ".join(short.out.split())
    elif not getattr(command, "commands", None):
        assert short == gpuscale(*name.split(), "--help-all")


def test_help_of_a_first_plan_is_a_dozen_options_and_the_help_of_all_names_every_command():
    told = [line.split()[0] for line in gpuscale("plan", "--help").lines if line.startswith("  -")]
    assert {"-m,", "-n,", "-c,", "--why", "--json"} <= set(told)
    assert len(told) <= 12 + 3  # and --help-all, --help
    whole = gpuscale("--help-all")
    assert whole.code == 0
    assert [one.name for one in COMMANDS if f"\n  {one.name} " not in whole.out] == []
    assert "bench" not in gpuscale("--help").out


@pytest.mark.parametrize("name", [name for name, one in WALKED.items() if not getattr(one, "commands", None)])
def test_every_command_refuses_what_is_too_much_in_the_same_words(name):
    assert isinstance(WALKED[name], Grouped)


SHORT = {"--model": ["-m"], "--gpus": ["-n"], "--cluster": ["-c"], "--output": ["-o"], "--verbose": ["-v"],
         "--begin": ["-b"], "--end": ["-e"], "--factor": ["-f"]}  # fmt: skip
"""The options that have a short one, in whatever command they are; `-h` is that of --help."""


@pytest.mark.parametrize("name", WALKED)
def test_short_options_are_the_same_in_every_command(name):
    flags = [param.opts for param in WALKED[name].params if param.param_type_name == "option"]
    for long, *others in flags:
        assert [flag for flag in others if not flag.startswith("--")] == SHORT.get(long, [])
    if not (getattr(WALKED[name], "commands", None) or name == "mcp"):  # which speaks to programs alone
        assert ["--json"] in flags


def test_options_are_grouped():
    titles = [line for line in gpuscale("plan", "--help-all").lines if line and not line.startswith(" ")]
    assert titles == ["Usage: gpuscale plan [OPTIONS]", "Job:", "Layout:", "Question:", "Output:", "Options:"]


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], {"numpy", "pydantic"}),
        (["--version"], {"numpy", "pydantic"}),
        (["calibrate", "--help"], {"numpy", "pydantic"}),
    ],
)
def test_help_loads_no_command(arguments, absent):
    code = (
        "import sys; from gpuscale.cli import run\n"
        f"sys.argv = ['gpuscale', *{arguments}]; run(); print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.partition("LOADED")[2].split()
    assert not {*absent, "gpuscale.request", "gpuscale.specs"} & set(loaded)
    assert [one for one in loaded if one.startswith("gpuscale.cli.")] == ["gpuscale.cli.streams", "gpuscale.cli.main"]


def test_help_of_no_command_loads_what_answers_take():
    code = (
        "import sys; from gpuscale.cli import run; from gpuscale.cli.main import COMMANDS\n"
        "for one in COMMANDS:\n"
        "    sys.argv = ['gpuscale', *one.name.split(), '--help-all']; assert run() == 0\n"
        "    heavy = {'numpy', 'pydantic', 'rich', 'gpuscale.specs', 'gpuscale.presets'} & set(sys.modules)\n"
        "    assert not heavy, (one.name, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("gpuscale roof", ["roofline"]),
        ("gpuscale calibrate ", ["nccl", "gpu", "run", "topology"]),
        ("gpuscale plan --ris", ["--risk"]),
        ("gpuscale show models --tom", ["--toml"]),
    ],
)
def test_a_shell_completes_commands_and_options(typed, found):
    shell = {**os.environ, "_GPUSCALE_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    shell["COMP_CWORD"] = str(typed.count(" "))
    code = "import sys; sys.argv = ['gpuscale']; from gpuscale.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=shell)
    assert done.stdout.split() == found


def test_version():
    assert gpuscale("--version").out == f"gpuscale {__version__}\n"


def test_no_command_shows_the_help_page():
    done = gpuscale()
    assert (done.code, done.out) == (2, "")
    assert done.err == gpuscale("--help").out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["estmate"], "no such command 'estmate'", "did you mean estimate? `gpuscale --help` lists"),
        (["--colour"], "no such option: --colour", "`gpuscale --help`"),
        (["show", "model"], "no such command 'model'", "did you mean models? `gpuscale show --help`"),
        (["collective"], "missing", "`gpuscale collective --help`"),
        (["plan", "--model"], "--model", "--help` lists"),
        (["plan", "llama3-8b", "--model", "x", "--gpus", "8"], "llama3-8b", "`gpuscale plan --help`"),
        (["plan", "--tensor-model-parallel-size", "8"], "no such option: --tensor-", "it is --tp here; `gpuscale plan"),
        (["plan", "--micro-batch-size", "1"], "no such option: --micro-batch-size", "it is --mbs here"),
        (["plan", "--global-batch-size=1"], "no such option: --global-batch-size", "it is --gbs here"),
        (["estimate", "--seq-length", "8192"], "no such option: --seq-length", "it is --seq here"),
        (["plan", "--TP", "8"], "no such option: --TP", "it is --tp here"),
        (["models", "list", "--tensor-parallel", "8"], "no such option: --tensor-parallel", "`gpuscale show models"),
        (["estimate", "--gpus", "much"], ": 'much' is not a whole number", "`gpuscale estimate --help`"),
    ],
)
def test_usage_errors_are_one_plain_message(arguments, message, hint):
    done = gpuscale(*arguments)
    assert_one_message(done, message, hint)
    assert "─" not in done.err


HOSTILE = {
    "empty": b"",
    "truncated": b'format = "gpuscale.planfile/1"\n[job]\nmodel = "llama3',
    "nested": b"a = " + b"[" * 100_000,
    "tables": b"[" + b".".join([b"a"] * 5000) + b"]\n",
    "dotted": b".".join([b"a"] * 100_000) + b" = 1\n",
    "huge": (b"# " + b"x" * 60 + b"\n" + b"a = 1\n") * 20_000,
    "long line": b"a = '" + b"x" * 1_000_000 + b"'\n",
    "zero bytes": b"a = 1\x00\n",
    "not text": bytes(range(128, 256)),
    "control characters": b"a = '\x1b[31mred'\n",
    "big number": b"gpus = " + b"9" * 5000 + b"\n",
    "infinite": b"gpus = inf\n",
    "wrong types": b'format = 3\njob = "x"\nlayout = []\n',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "arguments",
    [
        ("estimate", "FILE"),
        ("placement", "FILE"),
        ("plan", "--model", "FILE", "--gpus", "8"),
        ("plan", "--model", "llama3-8b", "--gpus", "8", "--cluster", "FILE"),
        ("models", "show", "FILE"),
        ("clusters", "show", "FILE"),
        ("hardware", "show", "FILE"),
        ("calibrate", "nccl", "FILE", "--cluster", "aws-p5"),
        ("calibrate", "run", "FILE", "--measure"),
    ],
    ids=lambda arguments: " ".join(one for one in arguments[:5] if one != "FILE"),
)
def test_a_hostile_file_is_one_message(arguments, content, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    done = gpuscale(*(str(path) if argument == "FILE" else argument for argument in arguments))
    assert_one_message(done, "mine.toml", "")
    assert done.err.isprintable() or not set(done.err) & {chr(code) for code in range(32)} - {"\n"}


@pytest.mark.parametrize("kind", ["folder", "missing", "unreadable"])
def test_a_file_that_cannot_be_read_is_one_message(kind, tmp_path):
    path = tmp_path / "plan.toml"
    if kind == "folder":
        path.mkdir()
    if kind == "unreadable":
        path.write_text("")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("the superuser reads everything")
    assert_one_message(gpuscale("estimate", path), "plan.toml", "")


@pytest.mark.parametrize(
    "arguments",
    [
        (*PLAN,),
        ("estimate", "--model", "llama3-8b", "--gpus", "8"),
        ("collective", "allreduce", "--bytes", "1MB"),
        ("placement", "--gpus", "640", "--tp", "8", "--pp", "4", "--best"),
        ("roofline",),
        ("models", "list"),
        ("models", "show", "llama3-8b"),
        ("hardware", "list"),
        ("hardware", "show", "h100"),
        ("clusters", "list"),
        ("clusters", "show", "dgx-h100-superpod"),
        ("frameworks", "list"),
        ("frameworks", "show", "torchtitan"),
        ("doctor",),
        ("bench", "--model", "llama3.2-1b", "--gpus", "8", "--runs", "1"),
        ("validate", str(Path(__file__).parent / "data" / "published_kernels.csv")),
        ("calibrate", "nccl", str(Path(__file__).parent / "data" / "example_all_reduce.log"), "--cluster", "aws-p5"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_every_command_answers_in_json_too(arguments):
    done = gpuscale(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["schema"] == f"gpuscale.{arguments[0]}/1"
    table = gpuscale(*arguments)
    assert (table.code, table.err) == (0, "")
    assert all(len(line) <= 100 for line in table.lines if "─" in line)
