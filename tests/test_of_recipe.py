"""Jobs and layouts of published recipes as commands take them, and where `plan` says that they stand."""

import json
from dataclasses import replace

import pytest
from command import gpuscale

from gpuscale.errors import InputError
from gpuscale.planning.planfile import layout_of
from gpuscale.planning.plans import estimate, layout_differences, plan, ranked_recipe
from gpuscale.planning.recipes import find_recipe
from gpuscale.planning.variants import make_variants
from gpuscale.request import Question

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
    assert all(one.step_time_s >= own.step_time_s for one in found.plans[own.rank - 1 :])
    assert all(one.step_time_s < own.step_time_s * 1.01 for one in found.plans[: own.rank - 1])
    assert own.differs.startswith("PP 4 -> ")
    assert (found.job["model"], found.gpus) == ("llama3-70b", 64)


@pytest.fixture
def own_recipe(tmp_path, monkeypatch):
    """Write a recipe of the layout of a plan for a job; its name."""
    (tmp_path / "recipes").mkdir()
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))

    def write(layout, **job):
        stated = {"by": "us", "source": "here", "cluster": "dgx-h100-superpod", **job, **layout}
        said = (f"{name} = {json.dumps(value)}" for name, value in stated.items())
        text = f"[[group]]\n[group.recipes]\nours = {{ {', '.join(said)} }}\n"
        (tmp_path / "recipes" / "ours.toml").write_text(text, encoding="utf-8")
        return "ours"

    return write


JOB = {"model": "llama3-8b", "gpus": 64, "seq": 4096, "gbs": 1024}


@pytest.mark.parametrize("options", [{}, {"risk": 0.8}, {"unfold": True}])
def test_the_place_of_a_recipe_is_that_of_why(own_recipe, options):
    """The fastest plan on paper is not the first choice here, nor the plan of its family that is listed."""
    layout = layout_of(plan(**JOB).choice.fastest)
    assert layout != layout_of(plan(**JOB).plans[0])
    asked = {name: value for name, value in layout.items() if name != "dp"}
    found = plan(recipe=own_recipe(layout, **JOB), why=asked, **options)
    assert found.recipe.rank == found.why.rank
    assert found.recipe.rank > 1
    assert found.recipe.behind < 0


@pytest.mark.parametrize(
    ("options", "flag"), [({"pp": 4}, "--pp"), ({"max_memory": "60GiB"}, "--max-memory"), ({"find": "mbs"}, "--mbs")]
)
def test_a_recipe_that_the_question_excludes_has_no_place(own_recipe, tmp_path, options, flag):
    own_recipe({"zero": 1}, **JOB)
    found = plan(recipe="ours", top=1, **options)
    assert found.recipe.rank is None
    assert found.recipe.fits
    done = gpuscale("plan", "--recipe", "ours", *words(**options), presets=str(tmp_path))
    line = next(one for one in done.lines if "recipe of us" in one)
    assert f": {flag} excludes it from the plans; takes " in line


def test_a_rule_that_a_recipe_breaks_is_said_in_flags(own_recipe, tmp_path):
    """An overlapped exchange needs EP above 1."""
    own_recipe({"overlap": "tp+dp+ep"}, model="mixtral-8x7b", gpus=64, seq=4096, gbs=1024)
    text = " ".join(gpuscale("plan", "--recipe", "ours", "--top", 1, presets=str(tmp_path)).out.split())
    head, rule = text.split("recipe of us (data parallel): does not fit: ")[1].split("; ")[:2]
    assert head.endswith(" GiB")
    assert rule.startswith("breaks a rule: an overlapped expert exchange (--overlap) needs EP > 1 (")


def test_a_tight_layout_is_held_to_what_fragmentation_leaves(own_recipe):
    job = {"model": "llama3-70b", "gpus": 64, "seq": 4096, "gbs": 1024}
    row = next(row for row in plan(**job, tight=True, top=50).plans if row.fit == "tight")
    found = plan(recipe=own_recipe(layout_of(row), **job), top=1).recipe
    assert found.fits
    assert found.rank is None
    assert found.reason == f"tight: {row.memory_gib:.1f} of {0.95 * row.memory_limit_gib:.1f} GiB"
    ranked = plan(recipe="ours", top=1, tight=True).recipe
    assert ranked.rank >= 1
    assert ranked.reason == ""


def test_a_layout_that_host_memory_does_not_hold_says_so(own_recipe):
    job = {"model": "llama3.1-405b", "gpus": 16, "seq": 4096, "gbs": 32, "cluster": "b200-hgx", "offload": "optimizer"}
    own_recipe({"tp": 8, "zero": 3, "recompute": "full"}, **job)
    found = ranked_recipe(find_recipe("ours"), make_variants(job, {}, Question()).tried[0], (), "step_time")
    assert not found.fits
    assert found.reason == "host memory does not suffice"


@pytest.mark.parametrize("name", ["seq", "gpus"])
def test_what_is_looked_for_is_not_what_a_recipe_states(name):
    found = plan(recipe=NAME, find=name, top=1)
    assert found.farthest.name == name
    assert (found.farthest.value > RECIPE.job["seq"]) if name == "seq" else (found.gpus < RECIPE.job["gpus"])
    with pytest.raises(InputError, match="`seq` is looked for and given"):
        plan(recipe=NAME, find="seq", seq=4096)


def test_layouts_differ_in_what_says_something_of_them():
    plans = plan(**JOB).plans
    one = replace(plans[0], tp=1, sp=False, zero=1, shard_size=64)
    assert layout_differences(one, one) == ""
    assert layout_differences(one, replace(one, zero=3, shard_size=8)) == "ZeRO 1 -> 3"
    assert layout_differences(one, replace(one, shard_size=8)) == ""
    sharded = replace(one, zero=3)
    assert layout_differences(sharded, replace(sharded, shard_size=8)) == "shard 64 -> 8"
    assert layout_differences(replace(sharded, shard_size=8), replace(sharded, zero=2)) == "ZeRO 3 -> 2"
    split = replace(one, tp=4, sp=True)
    assert layout_differences(one, split) == "TP 1 -> 4"
    assert layout_differences(split, replace(split, sp=False)) == "SP on -> off"
    assert layout_differences(one, replace(one, micro_batch_size=2)) == "microbatch 1 -> 2"


def test_the_first_choice_itself_is_said_to_be_it():
    first = plan(recipe=NAME, tp=RECIPE.layout.get("tp", 1), recompute=RECIPE.layout.get("recompute", "none"), top=1,
                 **{name: RECIPE.layout.get(name, 1) for name in ("pp", "cp", "micro_batch_size")})  # fmt: skip
    assert first.recipe.rank == 1
    assert first.recipe.behind == pytest.approx(0, abs=1e-12)
    assert first.recipe.differs == ""
    text = gpuscale("plan", "--recipe", "llama3.1-8b-8gpu-h100-fp8-256k-torchtitan", "--top", 1).lines[1]
    assert text == "recipe of Meta (CP8 recompute full): the first choice"


def test_a_layout_that_does_not_fit_has_no_rank_and_says_what_it_needs():
    found = plan(recipe="llama3.1-405b-8192gpu-h100", top=1, max_memory="70GiB", cluster="dgx-a100-superpod")
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
        "asked",
    }  # fmt: skip


def test_a_plan_says_how_what_is_published_for_a_job_near_it_stands():
    found = json.loads(gpuscale("plan", "-m", "llama3-8b", "-n", 8, "--top", 1, "--json").out)["recipe"]
    assert not found["asked"]
    assert "recipe" not in json.loads(gpuscale("plan", "-m", "opt-13b", "-n", 8, "--top", 1, "--json").out)


def test_what_is_published_but_breaks_a_rule_of_the_framework_has_no_time():
    job = {"gpus": 16384, "top": 1}
    near, asked = plan("llama3.1-405b", **job).recipe, plan(recipe="llama3.1-405b-16384gpu-h100", **job).recipe
    assert (near.name, near.behind) == ("llama3.1-405b-16384gpu-h100", None)
    assert near.reason.endswith("(zero_with_pp)")
    assert "breaks a rule" not in near.reason
    assert asked.rank is None
    text = " ".join(gpuscale("plan", "-m", "llama3.1-405b", "-n", 16384, "--top", 1).out.split())
    assert f"of Meta ({near.layout}) cannot run here: {near.reason}" in text


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
