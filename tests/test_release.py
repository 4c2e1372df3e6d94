"""A release: the facts of its files agree, every table's source has a licence, the manual has every option."""

import csv
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from gpuscale.cli.main import HIDDEN, named
from gpuscale.version import RELEASED, __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MEASURED = sorted((ROOT / "tests" / "data").glob("*_runs.csv")) + sorted((ROOT / "tests" / "data").glob("*_*s.csv"))
TABLES = [path for path in dict.fromkeys(MEASURED) if "source" in path.read_text(encoding="utf-8").split("\n")[0]]


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert PROJECT["project"]["version"] == __version__
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == __version__
    assert re.search(r"^date-released: (.*)$", citation, re.MULTILINE)[1].startswith(RELEASED)
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert f'version: "{__version__}"' in recipe


def test_the_conda_recipe_needs_what_the_package_needs():
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    run = re.search(r"^  run:\n((?:    - .*\n)+)", recipe, re.MULTILINE)[1]
    wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["yaml"]
    newest = [one for one in wanted if "python_version <" not in one]
    assert {one.split(";")[0].strip().replace(">=", " >=") for one in newest} <= set(re.findall(r"- (.*)", run))


def test_every_source_of_measurements_stands_under_a_licence_and_none_is_left_over():
    listed = re.findall(r"^  (\S.*?) +\| ", (ROOT / "NOTICE").read_text(encoding="utf-8"), re.MULTILINE)
    publishers = {one for one in listed if not one.startswith(("presets/", "gpuscale/", '"source"'))}
    assert len(TABLES) >= 4
    rows = [row for path in TABLES for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())]
    sources = {row["source"] for row in rows}
    sources.discard("made for a test")
    unlicensed = {source for source in sources if not source.startswith(tuple(publishers))}
    assert not unlicensed
    assert not {one for one in publishers if not any(source.startswith(one) for source in sources)}


def test_every_folder_of_presets_stands_in_the_notice():
    said = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert not [path.name for path in (ROOT / "presets").iterdir() if f"presets/{path.name}" not in said]


def test_links_of_the_readme_lead_somewhere_on_an_index_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 10
    assert not [link for link in links if not link.startswith("https://")]
    home = f"{PROJECT['project']['urls']['Source']}/blob/main/"
    inside = [link.removeprefix(home).split("#")[0] for link in links if link.startswith(home)]
    assert inside
    assert "](https://raw.githubusercontent.com/gpuscale/gpuscale/main/docs/plan.svg)" in text  # drawn, not a page
    assert not [path for path in inside if not (ROOT / path).exists()]


@pytest.fixture(scope="module")
def manual():
    spec = importlib.util.spec_from_file_location("manual", ROOT / "docs" / "manual.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_manual_has_every_command_and_option(manual):
    page = manual.manual().replace("\\-", "-")
    hidden = {entry.name for entry in HIDDEN}
    shown = {name: command for name, command in named().items() if name not in hidden}
    groups = {name for name, command in shown.items() if hasattr(command, "commands")}
    for name, command in shown.items():
        assert name in groups or f"\\fB{name}\\fR" in page, name
        flags = [max(one.opts, key=len) for one in command.params if one.param_type_name == "option" and not one.hidden]
        assert not [flag for flag in flags if not re.search(rf"^\\fB.*{re.escape(flag)}\b", page, re.MULTILINE)], name


def test_no_line_of_the_manual_is_a_command_of_roff_by_accident(manual):
    known = (".TH ", ".SH ", ".SS ", ".TP")
    assert not [line for line in manual.manual().splitlines() if line[:1] in {".", "'"} and not line.startswith(known)]
    assert manual.plain(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert manual.plain("a\\b-c") == "a\\eb\\-c"
