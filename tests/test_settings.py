"""Settings that a plan of a mixture of experts tries by itself, and the measured layout beside it."""

import html
import json
import math

import pytest
from command import gpuscale

from gpuscale.planning import plans
from gpuscale.planning.plans import estimate, plan
from gpuscale.planning.recipes import find_recipe, recipe_near
from gpuscale.planning.variants import settings_to_try
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model
from gpuscale.render.plan_texts import measured_text
from gpuscale.uncertainty import read_residuals

MIXTRAL = ("mixtral-8x7b", 64)
BATCH = {"gbs": 1024}
OWN = {"cuda_graphs": "none", "overlap": "tp+dp", "dispatcher": "deepep"}


def noted(answer):
    return [note for note in answer.notes if "settings" in note]


def test_a_mixture_of_experts_is_planned_with_settings_that_pay():
    chosen, own = plan(*MIXTRAL, **BATCH, top=1), plan(*MIXTRAL, **BATCH, top=1, **OWN)
    (note,) = noted(chosen)
    assert note.startswith("`cuda_graphs=partial`")
    assert chosen.job["cuda_graphs"] == "partial"
    assert chosen.plans[0].step_time_s < 0.97 * own.plans[0].step_time_s
    assert not noted(own)


def test_as_few_settings_are_changed_as_one_per_cent_allows():
    """The overlap brings less than that here."""
    chosen = plan(*MIXTRAL, **BATCH, top=1)
    assert "overlap" not in noted(chosen)[0]
    assert ALL_CHANGED["cuda_graphs"] in noted(chosen)[0]


ALL_CHANGED = {"cuda_graphs": "partial", "overlap": "tp+dp+ep", "dispatcher": "hybridep"}


@pytest.mark.parametrize("batch", [{}, BATCH])
def test_what_fewer_settings_cost_is_one_per_cent_at_most(batch):
    chosen, all_changed = plan(*MIXTRAL, **batch, top=1), plan(*MIXTRAL, **batch, top=1, **ALL_CHANGED)
    assert chosen.choice.fastest.step_time_s <= 1.01 * all_changed.choice.fastest.step_time_s


def test_settings_without_which_nothing_fits_are_said_to_be_so(monkeypatch):
    times_s = [math.inf, *[1.0] * 11]
    monkeypatch.setattr(plans, "_best_times_s", lambda tried: times_s[: len(tried)])
    (note,) = noted(plan(*MIXTRAL, **BATCH, top=1))
    assert note.endswith(": of 12 settings those with the fastest plans, which do not fit without")


def test_what_is_given_stays():
    chosen = plan(*MIXTRAL, **BATCH, top=1, cuda_graphs="none")
    assert chosen.job["cuda_graphs"] == "none"
    assert not any("cuda_graphs" in note for note in noted(chosen))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama3-8b", {}),
        ("mixtral-8x7b", {"framework": "torchtitan"}),
        ("mixtral-8x7b", {"framework": "megatron-lm@2025-01"}),
        ("mixtral-8x7b", {"objective": "memory"}),
    ],
)
def test_dense_models_other_frameworks_and_other_objectives_stay_as_they_are(model, options):
    assert not noted(plan(model, 64, top=1, **options))


def test_whole_iterations_are_replayed_on_racks_and_nowhere_else_without_dropping():
    racks = plan("deepseek-v3", 256, cluster="gb200-nvl72", top=1)
    assert racks.job["cuda_graphs"] == "full"
    assert "dispatcher" not in racks.job or racks.job["dispatcher"] == "hybridep"
    assert not any("dispatcher" in note for note in noted(racks))
    done = gpuscale("estimate", "--model", MIXTRAL[0], "--gpus", MIXTRAL[1], "--ep", 8, "--cuda-graphs", "full")
    assert done.code == 2
    assert "graphs_of_dropless_experts" in done.err


def test_accelerate_reduces_gradients_in_each_microbatch_where_they_would_fill_the_memory():
    job = {"framework": "accelerate", "top": 1}
    chosen, last = plan("llama3-70b", 64, **job), plan("llama3-70b", 64, **job, grad_reduce="last")
    assert chosen.job["grad_reduce"] == "each"
    assert "`grad_reduce=each`" in noted(chosen)[0]
    assert last.plans[0].step_time_s > 1.2 * chosen.plans[0].step_time_s
    stuffed = estimate("llama3-70b", 64, {"zero": 3, "recompute": "full"}, framework="accelerate")
    assert {"grad_reduce": "each"} in [dict(one.change) for one in stuffed.remedies]


def test_what_an_overlapped_exchange_forbids_is_said_of_it():
    """EP above 1 is not what was asked for: that the exchange is overlapped forbids it."""
    found = plan(*MIXTRAL, **BATCH, top=1, overlap="tp+dp+ep", why="recompute=full").why
    assert found.status == "illegal"
    assert list(found.reasons) == ["recompute_with_ep_overlap"]


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("mixtral-8x7b", {}, "`overlap`, `cuda_graphs` and `dispatcher` are"),
        ("mixtral-8x7b", {"cuda_graphs": "none,partial", "dispatcher": "deepep"}, "`overlap` is"),
        ("mixtral-8x7b", {"framework": "torchtitan"}, ""),
        ("llama3-8b", {}, ""),
    ],
)
def test_jobs_that_are_compared_say_that_one_alone_is_planned_with_other_settings(model, options, names):
    for question in ({"gpus": "32,64"}, {"gpus": 64, "pareto": "tokens_per_s,memory"}):
        notes = [
            note for note in plan(model, **question, gbs=1024, top=2, **options).notes if "framework's own" in note
        ]
        assert notes == [f"{names} the framework's own: others are tried where one job is ranked by time"] * bool(names)


def test_what_is_noted_of_all_jobs_is_printed(tmp_path):
    asked = ("plan", "--model", "mixtral-8x7b", "--gpus", "32,64", "--top", 2)
    text = gpuscale(*asked, "--html", tmp_path / "page.html").out
    said = "--overlap, --cuda-graphs and --dispatcher are the framework's own"
    assert f"note {said}: others are tried where one job is ranked by time" in " ".join(text.split())
    assert said in html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_dense_models_have_no_settings_to_try():
    megatron, cluster = load_framework("megatron-lm"), load_cluster("dgx-h100-superpod")
    assert settings_to_try(megatron, load_model("llama3-8b"), cluster, full=False) == {}
    assert set(settings_to_try(megatron, load_model("mixtral-8x7b"), cluster, full=False)) == set(ALL_CHANGED)
    assert load_framework("primus").space.usual == ()
    assert load_framework("megatron-lm@2024-06").space.usual == ()


def test_a_saved_plan_has_its_settings(tmp_path):
    done = gpuscale("plan", "--model", MIXTRAL[0], "--gpus", MIXTRAL[1], "-o", tmp_path / "plan.toml", "--json")
    again = gpuscale("estimate", tmp_path / "plan.toml", "--json")
    assert json.loads(done.out)["plans"][0]["step_time_s"] == json.loads(again.out)["plan"]["step_time_s"]


@pytest.mark.parametrize(("model", "gpus"), [("llama3-70b", 640), ("llama3.1-405b", 1024)])
def test_the_measured_layout_is_evaluated_here(model, gpus):
    answer = plan(model, gpus, top=1)
    found = answer.measured
    run = next(one for one in read_residuals() if one.id == found.run)
    assert found.predicted_tokens_per_s_per_gpu == pytest.approx(
        found.tokens_per_s_per_gpu * math.exp(run.log_ratio), rel=1e-3
    )
    known = run.features.layout
    names = ("tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch_size")
    here = estimate(model, gpus, {name: known[name] for name in names} | {"recompute": "none"})
    assert found.step_time_s == pytest.approx(here.plan.step_time_s)
    assert found.slower == pytest.approx(here.plan.step_time_s / answer.plans[0].step_time_s - 1)
    assert found.fits == here.plan.fits


def like(run, layout, of="61x7168"):
    """A measured run with another layout."""
    names = " ".join(f"{name}{value}" for name, value in {**run.features.layout, **layout}.items())
    return run._replace(features=run.features._replace(key=f"h100 256 {of} bf16 4096 {names}"))


@pytest.mark.parametrize(
    ("layout", "of", "layers", "said"),
    [
        ({"pp": 4, "vpp": 4, "recompute_layers": 2}, "61x7168", 61, "full:4"),  # as many of each of the four chunks
        ({"pp": 4, "vpp": 4, "recompute_layers": 16}, "61x7168", 61, "full"),
        ({"pp": 4, "vpp": 4, "recompute_layers": 13}, "61x7168", 61, "full"),
        ({"pp": 1, "vpp": 1, "recompute_layers": 16}, "32x4096", 32, "full:16"),
        ({"pp": 1, "vpp": 1, "recompute_layers": 16}, "32x4096", 80, "full:40"),
        ({"pp": 2, "vpp": 1, "recompute_layers": 5}, "40x4096", 33, "full:5"),
        ({"pp": 1, "vpp": 1, "recompute_layers": 0, "recompute_modules": 2}, "32x4096", 80, "selective:layernorm"),
        ({"pp": 1, "vpp": 1, "recompute_layers": 0, "recompute_modules": 0}, "32x4096", 80, "none"),
    ],
)
def test_a_measured_layout_recomputes_the_same_share_of_the_layers(layout, of, layers, said):
    run = like(read_residuals()[0], layout, of)
    assert plans._recompute(run.features, layers) == said


def test_a_measured_layout_keeps_what_its_run_recomputed(monkeypatch):
    run = next(one for one in read_residuals() if one.tokens_per_s_per_gpu and one.features.layout["pp"] > 1)
    own = {"tp": 1, "pp": 2, "vpp": 1, "cp": 1, "ep": 8, "etp": 1, "zero": 1, "micro_batch_size": 1}
    run = like(run, {**own, "recompute_modules": 0, "recompute_layers": 8}, "32x4096")
    monkeypatch.setattr(plans, "nearest_to_job", lambda *_: run)
    answer = plan(*MIXTRAL, **BATCH, top=1, **(OWN | {"overlap": "tp+dp"}))
    here = estimate(*MIXTRAL, {**own, "recompute": "full:8"}, **BATCH, **OWN)
    assert answer.measured.step_time_s == pytest.approx(here.plan.step_time_s)
    assert answer.measured.layout.endswith("recompute full:8")


@pytest.mark.parametrize(
    ("ep", "layers", "end"), [(8, 8, "recompute full:8, its exchange not overlapped"), (1, 0, "mb1, its exchange not")]
)
def test_what_an_overlapped_exchange_forbids_is_evaluated_without(monkeypatch, ep, layers, end):
    own = {"tp": 1, "pp": 2, "vpp": 2, "cp": 1, "ep": ep, "etp": 1, "zero": 1, "micro_batch_size": 1}
    run = like(read_residuals()[0], {**own, "recompute_modules": 0, "recompute_layers": layers}, "32x4096")
    monkeypatch.setattr(plans, "nearest_to_job", lambda *_: run._replace(tokens_per_s_per_gpu=1.0))
    job = {**OWN, "overlap": "tp+dp+ep"}
    found = plan(*MIXTRAL, **BATCH, top=1, **job).measured
    layout = {**own, "recompute": f"full:{layers}" if layers else "none"}
    plain = estimate(*MIXTRAL, layout, **BATCH, **OWN)
    assert found.step_time_s == pytest.approx(plain.plan.step_time_s)
    assert end in found.layout
    assert found.reasons == ()


def test_a_measured_layout_that_does_not_fit_is_said_not_to():
    fits, not_fits = plan("llama3-70b", 640, top=1).measured, plan("qwen3-235b-a22b", 256, top=1).measured
    assert (fits.fits, not_fits.fits) == (True, False)
    assert "does not fit" not in measured_text(fits)
    assert f", does not fit ({not_fits.memory_gib:.1f} GiB)" in measured_text(not_fits)


def test_a_measured_layout_that_cannot_run_here_says_why():
    found = plan("llama3.1-405b", 96, top=1).measured
    assert found.step_time_s is None
    assert found.slower is None
    assert found.reasons


def test_probabilities_of_fitting_follow_the_interval_of_memory():
    rows = plan("llama3-70b", 64, top=20, tight=True).plans
    for row in rows:
        assert (row.fit_probability >= 0.9) == (row.memory_high_gib <= row.memory_limit_gib)
        assert (row.fit_probability >= 0.5) == (row.memory_gib <= row.memory_limit_gib)
    in_order = sorted(rows, key=lambda row: row.fit_probability)
    assert in_order[0].fit_probability < in_order[-1].fit_probability <= 1


def test_the_recipe_of_a_job_near_this_one_is_held_to_the_first_choice():
    answer = plan("qwen3-235b-a22b", 256, top=1)
    found = answer.recipe
    assert not found.asked
    assert found.rank is None
    recipe = find_recipe(found.name)
    assert recipe.job["gpus"] == 256
    settings = {name: answer.job[name] for name in ("cuda_graphs", "overlap", "dispatcher") if name in answer.job}
    here = estimate("qwen3-235b-a22b", 256, recipe.layout, **settings)
    assert found.step_time_s == here.plan.step_time_s
    assert found.behind == pytest.approx(here.plan.step_time_s / answer.plans[0].step_time_s - 1)
    text = " ".join(gpuscale("plan", "--model", "qwen3-235b-a22b", "--gpus", 256, "--top", 1).out.split())
    assert f"recipe {found.name} of {recipe.by} ({recipe.text}) here takes" in text


@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "sequence", "name"),
    [
        ("qwen3-235b-a22b", "h100-sxm-80gb", 256, 4096, "qwen3-235b-a22b-256gpu-h100-bf16"),
        ("qwen3-235b-a22b", "h100-sxm-80gb", 2000, 4096, None),
        ("qwen3-235b-a22b", "l40s", 256, 4096, None),
        ("llama2-7b-of-nobody", "h100-sxm-80gb", 8, 4096, None),
        ("mixtral-8x22b", "h100-sxm-80gb", 128, 16384, "mixtral-8x22b-256gpu-h100-bf16-nemo"),  # 65,536 tokens
        ("mixtral-8x22b", "h100-sxm-80gb", 128, 8192, None),
        ("llama3.1-405b", "h100-sxm-80gb", 16384, 8192, "llama3.1-405b-16384gpu-h100"),
        ("llama3.1-405b", "h100-sxm-80gb", 16384, 131072, "llama3.1-405b-16384gpu-h100-128k"),
    ],
)
def test_a_recipe_near_a_job_has_its_model_its_gpu_and_a_like_number_and_length(model, cluster, gpus, sequence, name):
    found = recipe_near(model, cluster, gpus, sequence, "bf16")
    assert (found and found.name) == name


def test_of_equally_near_recipes_the_one_of_the_same_precision_is_taken():
    names = {
        precision: recipe_near("llama3-70b", "h100-sxm-80gb", 64, 8192, precision).name for precision in ("bf16", "fp8")
    }
    assert names["bf16"] != names["fp8"]
