"""Jobs and layouts of published recipes as commands take them, and where `plan` says that they stand."""

import json

import pytest
from command import gpuscale

from gpuscale.errors import InputError
from gpuscale.planning.plans import estimate, plan
from gpuscale.planning.recipes import find_recipe

NAME = "llama3-8b-8gpu-h100-bf16"
RECIPE = find_recipe(NAME)


def words(**options):
    """Options as flags."""
    flags = {"micro_batch_size": "mbs"}
    return [
        word for name, value in options.items() for word in (f"--{flags.get(name, name.replace('_', '-'))}", str(value))
    ]


def test_estimate_of_a_recipe_is_that_of_its_options():
    named = gpuscale("estimate", "--recipe", NAME, "--json")
    written = gpuscale("estimate", *words(**RECIPE.job, **RECIPE.layout), "--json")
    assert named.code == 0
    assert named.out == written.out
    assert json.loads(named.out)["plan"]["step_time_s"] == estimate(**RECIPE.job, layout=RECIPE.layout).plan.step_time_s


def test_options_override_a_recipe():
    changed = json.loads(gpuscale("estimate", "--recipe", NAME, "--gpus", 16, "--tp", 2, "--json").out)
    assert (changed["gpus"], changed["plan"]["tp"]) == (16, 2)
    assert changed["plan"]["global_batch_size"] == RECIPE.job["gbs"]


@pytest.mark.parametrize(
    "command",
    [
        ("explain",), ("explain", "checklist"), ("memory",), ("schedule",), ("placement",), ("placement", "--best"),
        ("check",), ("reliability",), ("reliability", "stragglers"), ("train-time", "--tokens", "1T"),
    ],
)  # fmt: skip
def test_commands_that_read_a_job_from_files_take_a_recipe(command):
    done = gpuscale(*command, "--recipe", "llama3-70b-64gpu-h100-bf16")
    assert done.code == 0, done.err
    assert done.out


def test_two_recipes_are_compared():
    done = gpuscale("compare", f"--recipe {NAME}", f"--recipe {NAME} --tp 2")
    assert done.code == 0, done.err
    assert "A" in done.out


def test_the_place_of_a_recipe_is_that_of_its_step_time():
    found = plan(recipe="llama3-70b-64gpu-h100-bf16", top=12)
    own, first = found.recipe, found.plans[0]
    assert own.step_time_s == pytest.approx(first.step_time_s * (1 + own.behind))
    assert own.fits
    assert own.rank > 1
    better = [one for one in found.plans if one.step_time_s < own.step_time_s]
    assert own.rank == len(better) + 1
    assert own.differs.startswith("PP 4 -> ")
    assert (found.job["model"], found.gpus) == ("llama3-70b", 64)


def test_the_first_choice_itself_is_said_to_be_it():
    first = plan(recipe=NAME, tp=RECIPE.layout.get("tp", 1), recompute=RECIPE.layout.get("recompute", "none"), top=1,
                 **{name: RECIPE.layout.get(name, 1) for name in ("pp", "cp", "micro_batch_size")})  # fmt: skip
    assert first.recipe.rank == 1
    assert first.recipe.behind == pytest.approx(0, abs=1e-12)
    assert first.recipe.differs == ""


def test_a_layout_that_does_not_fit_has_no_rank_and_says_what_it_needs():
    found = plan(recipe="llama3.1-405b-16384gpu-h100", top=1, max_memory="70GiB", cluster="dgx-a100-superpod")
    own = found.recipe
    assert not own.fits
    assert own.rank is None
    assert "GiB" in own.reason
    assert own.step_time_s > 0


def test_a_layout_that_cannot_be_says_why():
    found = plan(recipe="llama3-70b-64gpu-h100-bf16", gpus=48, top=1)
    assert found.recipe.step_time_s is None
    assert found.recipe.behind is None
    assert "48 GPUs cannot be split" in found.recipe.reason
    assert "cannot run" in gpuscale("plan", "--recipe", "llama3-70b-64gpu-h100-bf16", "--gpus", 48, "--top", 1).out


def test_the_verdict_names_who_runs_it_and_json_has_its_source():
    text = gpuscale("plan", "--recipe", NAME, "--top", 2).lines
    assert text[1].startswith(f"recipe of NVIDIA ({RECIPE.text}): ")
    body = json.loads(gpuscale("plan", "--recipe", NAME, "--top", 2, "--json").out)["recipe"]
    assert body["name"] == NAME
    assert body["source"] == RECIPE.source
    assert set(body) == {
        "name", "by", "source", "layout", "step_time_s", "memory_gib", "fits", "rank", "behind", "differs", "reason",
    }  # fmt: skip


def test_a_plan_without_a_recipe_says_nothing_of_one():
    assert "recipe" not in json.loads(gpuscale("plan", "-m", "llama3-8b", "-n", 8, "--top", 1, "--json").out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--recipe", "nothing"), "unknown recipe 'nothing'"),
        (("estimate", "--recipe", "nothing"), "unknown recipe 'nothing'"),
        (("estimate", "--recipe", NAME, "plan.toml"), "a recipe and a plan file are two jobs"),
        (("plan", "--recipe", NAME, "--from", "run.sh"), "a recipe and launch files are two jobs"),
        (("compare", f"--recipe {NAME} plan.toml", f"--recipe {NAME}"), "a recipe and a plan file are two jobs"),
        (("plan", "--recipe", NAME, "--gpus", "8,16"), "ranked among the plans of one job, not 2 jobs"),
        (("plan", "--recipe", NAME, "--pareto", "step_time,memory"), "not a frontier"),
        (("plan", "--gpus", 8), "missing option --model"),
    ],
)
def test_contradictions_are_one_message(arguments, message):
    done = gpuscale(*arguments)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


def test_python_asks_for_a_model_or_a_recipe():
    with pytest.raises(InputError, match="model: is missing"):
        plan(gpus=8)
