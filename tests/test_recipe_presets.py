"""Published recipes: what ships can be estimated and names its source; a wrong file is refused with its line."""

import re
from collections import Counter

import pytest
from command import gpuscale

from gpuscale import estimate
from gpuscale.errors import InputError
from gpuscale.planning.plans import job_of, legal_layout
from gpuscale.planning.recipes import FACTS, all_recipes, find_recipe, gpu_of, listed_recipes, recipe_near
from gpuscale.presets.files import preset_files, read_toml
from gpuscale.request import JobOptions, Layout, declared

SHIPPED = all_recipes()
OWN = """title = "Ours"
by = "us"
source = "our wiki"
framework = "torchtitan"

[[group]]
model = "llama3-8b"
cluster = "dgx-h100-superpod"
seq = 4096
[group.recipes]
ours = { gpus = 16, gbs = 64, tp = 2 }
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a file of recipes into the user's folder."""
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    (tmp_path / "recipes").mkdir()

    def write(text):
        (tmp_path / "recipes" / "ours.toml").write_text(text)
        return str(tmp_path)

    return write


def test_many_publishers_have_recipes_and_no_name_is_given_twice():
    by_software = Counter(one.title for one in SHIPPED)
    assert len(SHIPPED) >= 300
    assert len(by_software) >= 6
    stated = sum(len(group["recipes"]) for file in preset_files("recipes").values() for group in _groups(file))
    assert stated == len({one.name for one in SHIPPED}) == len(SHIPPED)


def _groups(file):
    return read_toml(file).data["group"]


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda one: one.name)
def test_a_recipe_can_be_launched_and_says_who_runs_it(recipe):
    """Degrees multiply to the GPUs, and no rule of its framework is broken."""
    _, rows, broken = legal_layout(job_of(recipe.job, recipe.layout), recipe.layout)
    assert len(rows) == 1
    assert not broken
    assert recipe.by
    assert len(recipe.source) > 10
    assert str(recipe.job["gpus"]) in recipe.name


def test_files_hold_facts_and_options_and_no_results():
    known = {"title", "group", "recipes", *FACTS, *declared(JobOptions), *declared(Layout)}
    for file in preset_files("recipes").values():
        data = read_toml(file).data
        for group in data["group"]:
            for table in (data, group, *group["recipes"].values()):
                assert set(table) <= known


def test_famous_jobs_are_as_their_papers_have_them():
    long = find_recipe("llama3.1-405b-16384gpu-h100-128k")
    assert (long.layout["tp"], long.layout["cp"], long.layout["pp"], long.job["seq"]) == (8, 16, 16, 131072)
    for llama in (find_recipe("llama3.1-405b-16384gpu-h100"), long):
        assert estimate(**llama.job, layout=llama.layout).plan.fits
    deepseek = find_recipe("deepseek-v3-2048gpu-h800")
    assert (deepseek.layout["ep"], deepseek.layout["pp"], deepseek.layout["schedule"]) == (64, 16, "dualpipe")
    assert gpu_of(find_recipe("gpt-neox-20b-96gpu-a100")) == "a100-sxm-40gb"


def test_recipes_of_deepseek_v3_have_the_dispatcher_that_their_base_switches_to():
    """Read on a machine without a GPU they seem to stay with alltoall; Kimi K2's, whose base does not switch, do."""
    kimi, deepseek = (
        {
            one.name: one.job["dispatcher"]
            for one in listed_recipes(model)
            if one.job["framework"] == "megatron-bridge-perf"
        }
        for model in ("kimi-k2", "deepseek-v3")
    )
    assert set(kimi.values()) == {"alltoall"}
    deepep = {name for name, dispatcher in deepseek.items() if dispatcher == "deepep"}
    assert deepep == {"deepseek-v3-256gpu-b200-fp8mx", "deepseek-v3-256gpu-b200-nvfp4"}
    assert set(deepseek.values()) == {"deepep", "hybridep"}


@pytest.mark.parametrize(
    "name", ["llama3_70b_pretrain_64gpu_h100_bf16_config", "LLAMA3-70B-64GPU-H100-BF16", " llama3-70b-64gpu-h100-bf16 "]
)
def test_a_recipe_is_found_by_the_name_of_its_function(name):
    assert find_recipe(name).name == "llama3-70b-64gpu-h100-bf16"


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(InputError, match=r"did you mean .*llama3-70b-64gpu-h100-bf16"):
        find_recipe("llama3-70b-64gpu-h100-bf61")


def test_the_nearest_recipe_is_of_the_same_gpu_and_the_nearest_size():
    every, found = listed_recipes("llama3.1-405b"), recipe_near("llama3.1-405b", "h100-sxm-80gb", 512, 8192, "bf16")
    assert {one.job["model"] for one in every} == {"llama3.1-405b"}
    assert {gpu_of(one) for one in every} > {"h100-sxm-80gb"}
    assert gpu_of(found) == "h100-sxm-80gb"
    assert found.job["gpus"] == 512
    assert found.job.get("precision") is None


def test_the_list_is_filtered():
    found = listed_recipes("deepseek-v3", "b200")
    assert {(one.job["model"], gpu_of(one)) for one in found} == {("deepseek-v3", "b200")}
    with pytest.raises(InputError, match="no recipe of bloom-560m"):
        listed_recipes("bloom-560m")


def test_names_of_functions_have_no_dots():
    dotted = [one.name for one in SHIPPED if "." in one.name]
    assert dotted
    for name in dotted:
        assert find_recipe(name.replace(".", "").replace("-", "_")).name == name


def test_what_is_nearer_to_a_recipe_goes_first(own):
    own(OWN.replace("seq = 4096", 'seq = 4096\nframework = "megatron-lm"').replace("tp = 2", "seq = 2048"))
    job = find_recipe("ours").job
    assert (job["framework"], job["seq"]) == ("megatron-lm", 2048)


def test_an_unknown_gpu_is_one():
    done = gpuscale("show", "recipes", "--gpu", "h9")
    assert (done.code, done.out) == (2, "")
    assert "unknown GPU 'h9'" in done.err


def test_names_in_the_list_can_be_copied():
    assert {line.split()[0] for line in gpuscale("show", "recipes").lines[4:]} >= {one.name for one in SHIPPED}


def test_a_users_recipe_is_one_and_goes_before_a_shipped_one(own):
    own(OWN)
    assert find_recipe("ours").job == {
        "model": "llama3-8b", "gpus": 16, "cluster": "dgx-h100-superpod", "seq": 4096, "gbs": 64,
        "framework": "torchtitan",
    }  # fmt: skip
    own(OWN.replace("ours = {", "llama3-70b-64gpu-h100-bf16 = {"))
    assert find_recipe("llama3-70b-64gpu-h100-bf16").by == "us"


@pytest.mark.parametrize(
    ("wrong", "line", "message"),
    [
        (OWN.replace("tp = 2", "tp = 0"), 11, "ours.tp: 0 is out of range"),
        (OWN.replace("tp = 2", "tpp = 2"), 11, "unknown key 'tpp'"),
        (OWN.replace("tp = 2", "step_time_s = 2"), 11, "unknown key 'step_time_s'"),
        (OWN.replace("tp = 2", 'tp = "2"'), 11, "ours.tp: '2' is not a whole number"),
        (OWN.replace("seq = 4096", 'seq = "long"'), 9, "'long' is not a whole number"),
        (OWN.replace("gbs = 64, ", ""), 11, "the recipe ours does not state 'gbs'"),
        (OWN.replace('by = "us"\n', ""), 10, "the recipe ours does not state 'by'"),
        (OWN.replace('by = "us"', "by = 7"), 2, "by is not a text"),
        (OWN.replace("ours = {", "Ours = {"), 11, "'Ours' is not a name of a recipe"),
        (OWN.replace("ours = { gpus = 16, gbs = 64, tp = 2 }", "ours = 7"), 11, "ours is not a table"),
        (OWN.replace("[group.recipes]\n", ""), 6, "the group has no table of recipes"),
        (OWN[: OWN.index("[[group]]")] + "group = 7\n", 6, "is not a list of tables"),
        (OWN + OWN[OWN.index("[[group]]") :], 17, "the recipe ours is given twice"),
        (OWN.replace('model = "llama3-8b"', "model = ["), 8, "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(own, wrong, line, message):
    done = gpuscale("show", "recipes", "ours", presets=own(wrong))
    assert done.code == 2
    assert re.search(message, done.err), done.err
    assert f"ours.toml:{line}" in done.err
    assert "Traceback" not in done.err


def test_the_list_and_one_are_shown(own):
    presets = own(OWN)
    listed = gpuscale("show", "recipes", "--gpu", "h100", "--model", "llama3-8b", presets=presets)
    assert listed.code == 0
    assert "16 x h100-sxm-80gb" in listed.out
    one = gpuscale("show", "recipes", "ours", presets=presets)
    assert "ours: TP2" in one.out
    assert "our wiki" in one.out
    assert "gpuscale estimate --recipe ours" in one.out


def test_toml_of_one_is_a_file_of_recipes(own):
    printed = gpuscale("show", "recipes", "llama3-70b-64gpu-h100-bf16", "--toml").out
    shipped = find_recipe("llama3-70b-64gpu-h100-bf16")
    own(printed.replace("llama3-70b-64gpu-h100-bf16", "copy"))
    copy = find_recipe("copy")
    assert (copy.job, copy.layout, copy.source) == (shipped.job, shipped.layout, shipped.source)


@pytest.mark.parametrize(
    "arguments",
    [("--toml",), ("ours", "--model", "llama3-8b"), ("llama3-70b-64gpu-h100-bf16", "--toml", "--json"), ("nothing",)],
)
def test_contradictions_are_refused(arguments):
    done = gpuscale("show", "recipes", *arguments)
    assert done.code == 2
    assert done.out == ""
