"""The package where it is no folder of files, and under tools that watch a process."""

import ast
import importlib.util
import lzma
import os
import pstats
import shutil
import subprocess
import sys
import tomllib
import zipapp
from pathlib import Path

import pytest
from command import gpuscale
from goldens import COMMANDS as LISTED

ROOT = Path(__file__).parents[1]
COMMANDS = [
    (*LISTED["plan"], "--json"),  # presets, and residuals
    LISTED["hardware-toml"],
    LISTED["skill"],
    (*LISTED["collective-sweep"], "--html", "-"),  # style and script of pages
    LISTED["plan-bad-name"],  # looks through all names
    ("plan", "--model", "llama3-8b", "--gpus", "1", "--cluster", "rtx-4090", "--tune", "qlora"),  # a box made of a GPU
    ("train-time", "--model", "llama3-8b", "--gpus", "64", "--tokens", "1T"),  # rates
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package as a wheel has it."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "packaging" / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    folder = tmp_path_factory.mktemp("packed")
    hook.fill(folder / "app" / "gpuscale", ROOT)
    return folder / "app"


@pytest.fixture(scope="module")
def archive(wheel):
    """The package in a zip file."""
    zipapp.create_archive(wheel, wheel.parent / "gpuscale.pyz", main="gpuscale.__main__:main")
    return wheel.parent / "gpuscale.pyz"


def test_a_wheel_has_all_presets_without_the_comments_that_no_command_prints(wheel):
    """Those of models, GPUs, clusters and frameworks are printed as they are."""
    parts = lzma.decompress((wheel / "gpuscale" / "_presets.xz").read_bytes()).split(b"\0")
    packed = {name.decode(): text for name, _, text in (part.partition(b"\n") for part in parts)}
    written = {path.relative_to(ROOT / "presets").as_posix(): path for path in (ROOT / "presets").rglob("*.*")}
    written["SKILL.md"] = ROOT / "docs" / "SKILL.md"
    assert packed.keys() == written.keys()
    bare = []
    for name, path in written.items():
        text = path.read_bytes()
        if packed[name] != text:
            bare.append(name.partition("/")[0])
            assert path.suffix == ".toml"
            assert not packed[name].startswith(b"#")
            assert b"\n#" not in packed[name]
            assert tomllib.loads(packed[name].decode()) == tomllib.loads(text.decode())
    assert {"known", "rates"} <= set(bare)
    assert not {"models", "gpus", "clusters", "frameworks"} & set(bare)


def documented(tree):
    """Docstrings of what is public, by name, taken out of a tree with all others."""
    found = {}
    for parent in ast.walk(tree):
        for one in (parent, *(one for one in ast.iter_child_nodes(parent) if isinstance(one, ast.FunctionDef))):
            if isinstance(parent, ast.Module | ast.ClassDef) and ast.get_docstring(one) is not None:
                found[getattr(parent, "name", ""), getattr(one, "name", "")] = ast.get_docstring(one)
    for one in ast.walk(tree):
        kind = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(one, kind) and len(one.body) > 1 and ast.get_docstring(one) is not None:
            del one.body[0]
    return {names: text for names, text in found.items() if not any(name.startswith("_") for name in names)}


def test_a_wheel_has_the_code_and_what_help_shows_on_the_same_lines(wheel):
    own = {path.relative_to(ROOT): path for path in (ROOT / "gpuscale").rglob("*.py")}
    assert own.keys() == {path.relative_to(wheel) for path in wheel.rglob("*.py")}
    for name, path in own.items():
        written, held = ast.parse(path.read_text()), ast.parse((wheel / name).read_text())
        assert documented(held) == documented(written), name
        assert ast.dump(held, include_attributes=True) == ast.dump(written, include_attributes=True), name
    reading = (wheel / "gpuscale/launch/read.py").read_text()
    assert '"""Read the launch files of one job.' in reading
    assert '"""Read one job.' not in reading
    assert "#" not in reading.partition("def ")[0]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: "-".join(arguments[:4]))
def test_a_zip_file_answers_as_the_package_does(archive, arguments, tmp_path):
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, archive, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    here = gpuscale(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (here.code, here.out, here.err)


def test_a_profiler_sees_the_whole_run(tmp_path):
    profile, command = tmp_path / "profile", [*COMMANDS[0]]
    watched = [sys.executable, "-m", "cProfile", "-o", profile, "-m", "gpuscale", *command]
    done = subprocess.run(watched, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, gpuscale(*command).out, "")
    assert any(name == "print_json" for _, _, name in pstats.Stats(str(profile)).stats)


def test_without_its_presets_the_package_says_so(tmp_path):
    shutil.copytree(
        ROOT / "gpuscale", tmp_path / "gpuscale", ignore=shutil.ignore_patterns("__pycache__", "_presets.xz")
    )
    command = [sys.executable, "-m", "gpuscale", "models", "list"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: gpuscale: its presets are missing")
