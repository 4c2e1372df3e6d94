"""Data flows one way through the packages, and each third-party library has its place."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpuscale"
HOMES = {
    "typer": ("cli/",),
    "rich": ("render/",),
    "pydantic": ("presets/", "specs/", "calibration/site_file.py"),
    "yaml": ("importers/slurm.py", "launch/documents.py"),
    "tomli_w": ("planning/planfile.py", "planning/recipes.py", "importers/assemble.py", "calibration/site_file.py"),
    "duckdb": ("studies/query.py",),
    "pyarrow": ("studies/answers.py",),
    "distributed": ("studies/dask_cluster.py",),
    "mcp": ("cli/agents.py",),
    "mcp_types": ("cli/agents.py",),
    "anyio": ("cli/agents.py",),
    "torch": ("gpubench/torch_runs.py",),
    "tomlkit": ("gpubench/calibrate.py", "calibration/calibrate.py"),
    "tomllib": ("presets/files.py",),
}
SILENT = ("errors.py", "units.py", "choices.py", "arguments.py", "request.py")
"""Modules that stay free of every third-party library."""


@cache
def imported(path):
    """Names of the packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return frozenset(found)


FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def test_the_layers_of_pyproject_hold(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_only_where_it_belongs(library):
    users = [name for name in FILES if library in imported(PACKAGE / name)]
    assert users
    assert [name for name in users if not name.startswith(HOMES[library])] == []


def test_silent_modules_know_no_library():
    for name in FILES:
        if name.startswith(SILENT):
            assert imported(PACKAGE / name) <= {"gpuscale", *sys.stdlib_module_names}, name


def test_only_the_listed_libraries_are_used():
    used = set().union(*(imported(PACKAGE / name) for name in FILES)) - set(sys.stdlib_module_names)
    assert used == {"gpuscale", "numpy", *HOMES} - {"tomllib"}


def test_libraries_are_loaded_where_they_are_needed():
    """The package needs neither Typer nor Rich, and JSON no Rich."""
    code = "import sys, gpuscale; print('typer' in sys.modules, 'rich' in sys.modules); "
    code += "import gpuscale.render.output; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False", "False"]
