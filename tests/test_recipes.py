"""Recipes for CI: every one runs as it stands, as do the GitHub Action and the pre-commit hook."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from command import gpuscale

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tasks" / "gate-ci.md").read_text()
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


def fenced(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.partition("## Recipes")[2], re.MULTILINE | re.DOTALL)


GPUSCALE = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m gpuscale "$@"\n'


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of someone's with a plan, and the tools that recipes call."""
    folder = tmp_path_factory.mktemp("recipes")
    tools = {
        "gpuscale": GPUSCALE,
        "sbatch": '#!/bin/sh\necho "submitted $1"\n',
        "git": '#!/bin/sh\ntest "$1" = diff || cat plan.toml\n',
    }
    (folder / "bin").mkdir()
    for name, text in tools.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "plans").mkdir()
    for path, gpus in (("plan.toml", 64), ("plans/small.toml", 16)):
        assert gpuscale("plan", "--model", "llama3-8b", "--gpus", gpus, "-o", folder / path).code == 0
    assert gpuscale("export", folder / "plan.toml", "--to", "megatron-lm", "-o", folder / "launch").code == 0
    return folder


def run(folder, script, **environment):
    """Run a script in bash as CI does: it ends at the first command that fails."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    everything = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=everything, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("recipe", fenced("sh"), ids=lambda recipe: recipe.split("\n")[0][:40])
def test_a_recipe_runs_as_it_stands(recipe, repository):
    done = run(repository, recipe)
    assert done.returncode == 0, done.stderr
    assert done.stdout or ">" in recipe or "diff" in recipe


def test_there_are_recipes_and_one_that_fails_is_told():
    assert len(fenced("sh")) >= 6


def test_what_does_not_fit_is_not_launched(repository):
    (recipe,) = (one for one in fenced("sh") if "sbatch" in one)
    assert run(repository, recipe).stdout.endswith("submitted launch/job.sbatch\n")
    done = run(repository, recipe.replace("95%", "5%"))
    assert done.returncode == 1
    assert "submitted" not in done.stdout


def test_a_folder_with_one_plan_over_the_limit_fails_at_the_end(repository):
    (recipe,) = (one for one in fenced("sh") if "plans/*" in one)
    done = run(repository, recipe.replace("--min-mfu 30%", "--max-step-time 15s"))
    assert done.returncode == 1
    assert done.stdout.count("s/step") == 2  # both were looked at


def test_the_recipe_of_what_fits_nowhere_tells_what_would_help(repository):
    (recipe,) = (one for one in fenced("sh") if "it fits" in one)
    done = run(repository, recipe)
    assert (done.returncode, done.stdout) == (0, json.loads((repository / "plan.json").read_text())["hint"] + "\n")
    unusable = run(repository, recipe.replace("llama3-70b", "llama3-700b"))
    assert unusable.returncode == 2


# --- the action


def action(folder, **given):
    """Run the last step of the action with its inputs put in, as GitHub would."""
    inputs = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | given
    step = ACTION["runs"]["steps"][-1]
    values = {key: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: inputs[found[1]], text)
              for key, text in step["env"].items()}  # fmt: skip
    (folder / "gpuscale" / "bin").mkdir(parents=True, exist_ok=True)
    for name, text in (("gpuscale", GPUSCALE), ("python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')):
        (folder / "gpuscale" / "bin" / name).write_text(text)
        (folder / "gpuscale" / "bin" / name).chmod(0o755)
    return run(folder, step["run"], RUNNER_TEMP=str(folder), **values)


def test_the_action_passes_a_good_plan_and_fails_a_broken_limit(repository):
    good = action(repository, args="plan.toml --max-memory 95%")
    assert (good.returncode, good.stdout) == (0, "")
    bad = action(repository, args="plan.toml --max-step-time 1s")
    assert bad.returncode == 1
    assert bad.stdout.startswith("::error file=plan.toml,")
    assert action(repository, args="missing.toml").returncode == 2


def test_the_action_runs_no_module_of_the_folder(repository):
    (repository / "shlex.py").write_text("raise SystemExit(99)\n")
    try:
        assert action(repository, args="plan.toml --max-memory 95%").returncode == 0
    finally:
        (repository / "shlex.py").unlink()


def test_the_action_writes_a_report(repository):
    done = action(repository, args="'plan.toml' --max-step-time 1s", format="sarif", output="gpuscale.sarif")
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads((repository / "gpuscale.sarif").read_text())["runs"][0]["results"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"args": "'plan.toml --max-step-time 1s"}, "a quote is not closed"),
        ({"args": "plan.toml \\"}, "a quote is not closed, or a backslash"),
        ({"args": "plan.toml", "output": "plan.toml"}, "is also a file to read"),
        ({"args": "plan.toml", "output": "./there/../plan.toml"}, "give a file in a folder that exists"),
        ({"args": "plan.toml", "output": "nowhere/report"}, "give a file in a folder that exists"),
        ({"args": "plan.toml", "format": "word"}, "unknown value"),
        ({"args": "$(touch ran) \n; touch ran"}, "error: "),
        ({"args": "plan.toml", "format": "json --output=plan.toml"}, "unknown value"),
    ],
)
def test_the_action_says_what_it_cannot_use_and_touches_nothing(repository, given, message):
    before = {path.name: path.read_bytes() for path in repository.iterdir() if path.is_file()}
    done = action(repository, **given)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in repository.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("output", ["-report", "a report", "$(touch ran)", "a'b"])
def test_the_action_writes_files_of_any_name(repository, output):
    done = action(repository, args="plan.toml --max-memory 95%", format="json", output=output)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((repository / output).read_text())["schema"] == "gpuscale.check/1"
    assert not (repository / "ran").exists()


def test_arguments_of_the_action_are_never_run_by_a_shell(repository):
    action(repository, args="plan.toml; touch ran $(touch ran) `touch ran`")
    assert not (repository / "ran").exists()


def test_the_action_declares_what_it_uses_and_puts_no_input_into_a_script():
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([a-z-]+)", text)) == set(ACTION["inputs"])
    assert all(one["description"] for one in ACTION["inputs"].values())
    assert all("${{" not in step.get("run", "") for step in ACTION["runs"]["steps"])
    assert all(step.get("shell") == "bash" for step in ACTION["runs"]["steps"] if "run" in step)


@pytest.mark.full
def test_the_action_installs_itself(tmp_path):
    step = next(one for one in ACTION["runs"]["steps"] if "Install" in one.get("name", ""))
    done = run(tmp_path, step["run"], RUNNER_TEMP=str(tmp_path), FOLDER=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gpuscale" / "bin" / "gpuscale").is_file()


def test_the_workflow_of_the_page_runs(repository):
    (workflow,) = (yaml.safe_load(one) for one in fenced("yaml") if one.startswith("jobs:"))
    (own,) = (step for step in workflow["jobs"]["gpuscale"]["steps"] if "gpuscale" in step["uses"])
    assert set(own["with"]) <= set(ACTION["inputs"])
    assert action(repository, **own["with"]).returncode == 0


# --- pre-commit


def test_the_hook_of_the_page_runs(repository):
    (config,) = (yaml.safe_load(one) for one in fenced("yaml") if one.startswith("repos:"))
    (used,) = config["repos"][0]["hooks"]
    assert used["id"] == HOOK["id"]
    assert (HOOK["language"], HOOK["pass_filenames"]) == ("python", False)
    command = shlex.join([*shlex.split(HOOK["entry"]), *used["args"]])
    assert run(repository, command).returncode == 0
    assert run(repository, f"{command} --max-step-time 1s").returncode == 1
    assert re.search(used["files"], "launch/run.sh")
    assert re.search(HOOK["files"], "launch/run.sh")
    assert not re.search(HOOK["files"], "README.md")


def test_the_hook_installs_what_reading_yaml_needs():
    declared = textwrap.dedent((ROOT / "pyproject.toml").read_text())
    assert f"yaml = {json.dumps(HOOK['additional_dependencies'])}" in declared
