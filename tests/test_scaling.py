"""`gpuscale size batch` and `gpuscale size`: laws against the tables of their papers, and plans behind answers."""

import json
import math

import pytest
from command import assert_one_message, gpuscale
from jobs import job

import gpuscale as library
from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.models import load_model
from gpuscale.scaling import batch_laws, laws
from gpuscale.scaling.sizing import _first_true, dense_shape, presets_near

SIZES = (4e8, 1e9, 1e10, 67e9, 175e9, 280e9, 520e9, 1e12, 1e13)
TABLES = {  # Hoffmann et al. 2022, tables 3 and A3: FLOPs and tokens of optimal models of these sizes
    "hoffmann-1": (
        (1.92e19, 1.21e20, 1.23e22, 5.76e23, 3.85e24, 9.90e24, 3.43e25, 1.27e26, 1.30e28),
        (8.0e9, 20.2e9, 205.1e9, 1.5e12, 3.7e12, 5.9e12, 11.0e12, 21.2e12, 216.2e12),
    ),
    "hoffmann-2": (
        (1.84e19, 1.20e20, 1.32e22, 6.88e23, 4.54e24, 1.18e25, 4.19e25, 1.59e26, 1.75e28),
        (7.7e9, 20.0e9, 219.5e9, 1.7e12, 4.3e12, 7.1e12, 13.4e12, 26.5e12, 292.0e12),
    ),
    "hoffmann-3": ((2.21e19, 1.62e20, 2.46e22, 1.71e24), (9.2e9, 27.1e9, 410.1e9, 4.1e12)),
}
OFF = {"hoffmann-1": 0.07, "hoffmann-2": 0.04, "hoffmann-3": 0.07}
"""The tables have two digits; the third law's constants have four."""

SMALL = ("--model", "llama3-8b", "--gpus", "16", "--tp", "1", "--pp", "1", "--cp", "1")


def answer(*arguments):
    done = gpuscale(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("name", TABLES)
def test_chinchillas_tables(name):
    for size, flops, tokens in zip(SIZES, *TABLES[name], strict=False):
        assert laws.LAWS[name].optimal(flops) == pytest.approx((size, tokens), rel=OFF[name])


def test_what_was_trained_by_these_laws():
    """Chinchilla has 70B on 1.4T of 5.76e23 FLOPs; Llama 3's law says 402B on 16.55T of 3.8e25."""
    for name in ("besiroglu", "hoffmann-1"):
        assert laws.LAWS[name].optimal(5.76e23) == pytest.approx((70e9, 1.4e12), rel=0.06)
    assert laws.LAWS["llama3"].optimal(3.8e25) == pytest.approx((402e9, 16.55e12))
    assert laws.LAWS["deepseek"].optimal(1e20)[1] == pytest.approx(5.8316 * 1e20**0.4757)
    parameters, tokens = laws.LAWS["kaplan"].optimal(laws.PF_DAY_FLOPS)
    assert (parameters, tokens) == (1.3e9, 2e10)


@pytest.mark.parametrize("name", [name for name, law in laws.LAWS.items() if name not in {"kaplan", "llama3"}])
@pytest.mark.parametrize("flops", [1e19, 1e22, 1e25])
def test_a_budget_is_spent(name, flops):
    parameters, tokens = laws.LAWS[name].optimal(flops)
    assert 6 * parameters * tokens == pytest.approx(flops, rel=1e-3)


@pytest.mark.parametrize("law", [laws.BESIROGLU, laws.HOFFMANN])
@pytest.mark.parametrize("flops", [1e19, 1e22, 1e25])
def test_the_optimum_is_one(law, flops):
    parameters, tokens = law.optimal(flops)
    best = law.loss(parameters, tokens)
    assert all(law.loss(parameters * off, tokens / off) > best for off in (0.9, 1.1, 0.3, 3.0))
    assert law.least_flops(best) == pytest.approx(flops)
    assert law.overtraining(parameters, tokens) == pytest.approx(1.0)
    assert law.overtraining(parameters / 5, tokens * 5) > 1.3
    with pytest.raises(ValueError, match="no compute"):
        law.least_flops(law.e)


def test_a_model_of_a_fifth_takes_more_compute_for_the_same_loss():
    """Llama 3 8B on 15T: 1,875 tokens per parameter, 5.5 times the compute of the optimum (Besiroglu et al.)."""
    assert laws.BESIROGLU.overtraining(8e9, 15e12) == pytest.approx(5.5, rel=0.01)


def test_how_far_an_answer_is_from_the_range_of_a_law():
    split = {one.law: one for one in laws.splits(1.3e23)}
    assert split["besiroglu"].beyond == pytest.approx(10)
    assert {one.law for one in laws.splits(1e20) if one.beyond == 1.0} >= {"besiroglu", "hoffmann-1", "deepseek"}
    assert laws.beyond(5.0, (10.0, 20.0)) == 0.5
    assert [one.law for one in laws.splits(1e20) if one.outdated] == ["kaplan"]


def test_tokens_against_batch():
    """McCandlish et al. 2018, equation 2.11: at the critical batch tokens and steps are twice the least."""
    assert batch_laws.tokens_factor(3e6, 3e6) == 2.0
    for size in (1e5, 1e6, 1e8):
        steps = batch_laws.tokens_factor(size, 3e6) * 3e6 / size  # over the fewest
        assert (batch_laws.tokens_factor(size, 3e6) - 1) * (steps - 1) == pytest.approx(1.0)
    assert batch_laws.tokens_factor(batch_laws.largest_batch(3e6), 3e6) == pytest.approx(1.2)


@pytest.mark.parametrize("scale", [2e5, 4e6])
def test_the_noise_scale_follows_from_two_norms(scale):
    norms = [batch_laws.Norm(size, math.sqrt(0.3 + 0.3 * scale / size)) for size in (5e5, 4e6)]
    assert batch_laws.noise_scale(*norms) == pytest.approx(scale)
    assert batch_laws.noise_scale(*reversed(norms)) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        (((1e6, 1.0), (1e6, 0.9)), "same batch"),
        (((1e6, 1.0), (4e6, 1.1)), "not above"),
        (((1e6, 1.0), (4e6, 0.4)), "noise"),
    ],
)
def test_norms_that_say_nothing(norms, message):
    with pytest.raises(InputError, match=message):
        batch_laws.noise_scale(*(batch_laws.Norm(*one) for one in norms))


def test_laws_of_batches():
    """Zhang et al. have two that agree at 20 tokens per parameter; Kaplan et al.: 13 % less loss, twice the batch."""
    of = {name: law.batch for name, law in batch_laws.LAWS.items()}
    for parameters in (85e6, 151e6, 1.2e9):
        by_size = 93.20 * (parameters / 1e6) ** 0.47 * 512
        assert batch_laws.largest_batch(of["zhang"](20 * parameters)) == pytest.approx(by_size, rel=0.01)
    assert of["kaplan"](0.87 * 3.0) / of["kaplan"](3.0) == pytest.approx(2.0, rel=0.05)
    assert of["deepseek"](1e17) == pytest.approx(0.11e6, rel=0.05)
    assert of["zhang"](2e10) == pytest.approx(of["bergsma"](2e10), rel=0.25)
    assert of["kaplan"](1.0) == 2.1e8
    assert of["step-law"](1e11) == pytest.approx(1.11e6, rel=0.01)  # 0.58 x 10^(11 x 0.571)
    assert of["bergsma-optimal"](1e11) == pytest.approx(1.02e6, rel=0.01)  # 2,048 x 0.0306 x 10^(11 x 0.383)


PUBLISHED = [
    ("gpt3-175b", 175e9, 300e9, 3.2e6),  # Brown et al. 2020 (arXiv 2005.14165), table 2.1
    ("chinchilla-70b", 70e9, 1.4e12, 3e6),  # Hoffmann et al. 2022, table 4
    ("palm-540b", 540e9, 780e9, 4e6),  # Chowdhery et al. 2022 (arXiv 2204.02311), section 5
    ("bloom-176b", 176e9, 366e9, 4.2e6),  # BigScience 2022 (arXiv 2211.05100), table 3
    ("llama2-70b", 70e9, 2e12, 4e6),  # Touvron et al. 2023 (arXiv 2307.09288), section 2.2
    ("deepseek-llm-67b", 67e9, 2e12, 18.9e6),  # DeepSeek LLM 2024, table 2: 4,608 x 4,096
    ("llama3.1-405b", 405e9, 15.6e12, 16.8e6),  # Llama 3 2024, section 3.4.1
    ("deepseek-v3", 37e9, 14.8e12, 62.9e6),  # DeepSeek-V3 2024 (arXiv 2412.19437), section 4.2
]  # fmt: skip
"""Published runs: parameters (of a mixture of experts those that a token uses), tokens, largest batch [tokens]."""


@pytest.mark.parametrize(("model", "parameters", "tokens", "batch"), PUBLISHED)
def test_published_batches_are_below_the_critical_one(model, parameters, tokens, batch):
    """None of them needs more than half as many tokens again, by the law that is taken; most less than a fifth."""
    said = {one.law: one for one in batch_laws.batches(parameters, tokens)}
    assert 0.02 < batch / said["zhang"].batch_tokens < 0.5, model


def test_shapes_are_those_of_llama_3():
    assert dense_shape(8e9).parameters == 8_030_261_248
    assert (dense_shape(8e9).layers, dense_shape(8e9).hidden) == (32, 4096)
    assert "llama3-8b" in presets_near(8e9)
    assert presets_near(5e15) == ()


@pytest.mark.parametrize("parameters", [3e8, 1e9, 2.5e9, 3e9, 13e9, 33e9, 70e9, 405e9, 2e12])
def test_shapes_by_size(parameters):
    shape = dense_shape(parameters)
    model = load_model(shape.stated)
    assert model_parameters(model).total == shape.parameters == pytest.approx(parameters, rel=0.1)
    assert shape.hidden % (1024 if shape.hidden > 2560 else 512) == 0
    assert 64 <= shape.hidden / shape.layers <= 160
    with pytest.raises(InputError, match="out of range"):
        dense_shape(1e6)


def test_the_first_place_is_found_from_any_guess():
    for count in (1, 2, 5, 17):
        for first in range(count + 1):
            for guess in (-1, 0, 3, count - 1, count + 4):
                found = _first_true(lambda at, first=first: at >= first, count, guess)
                assert found == (first if first < count else None)


@pytest.fixture(scope="module")
def sizes():
    return answer("batch-size", *SMALL, "--tokens", "1T", "--gbs", "64,256,1024")


def test_a_batch_is_that_of_train_time(sizes):
    """Each row is a training by its own plan on as many tokens as the law asks for."""
    assert sizes["schema"] == "gpuscale.batch-size/1"
    assert [one["global_batch_size"] for one in sizes["batches"]] == [64, 256, 1024]
    row = sizes["batches"][1]
    assert row["tokens_factor"] == pytest.approx(1 + 256 * 4096 / sizes["critical_batch_tokens"])
    spent = answer("train-time", *SMALL, "--gbs", 256, "--tokens", f"{row['tokens']:.0f}")
    assert spent["wall_s"] == pytest.approx(row["wall_s"], rel=1e-6)
    assert spent["cost_usd"] == pytest.approx(row["cost_usd"], rel=1e-6)
    assert spent["plan"]["mfu"] == row["mfu"]


def test_the_best_batch_is_neither_the_smallest_nor_the_largest():
    found = answer("batch-size", "--model", "llama3-8b", "--gpus", "64", "--tokens", "200B")
    times = [one["wall_s"] for one in found["batches"]]
    assert found["fastest"] == found["cheapest"] == times.index(min(times))
    assert 0 < found["fastest"] < len(times) - 1
    assert found["batches"][0]["mfu"] < found["batches"][-1]["mfu"]
    largest = found["largest_batch_tokens"]
    assert any(one["batch_tokens"] <= largest < 2 * one["batch_tokens"] for one in found["batches"])
    assert all(one["global_batch_size"] % 2 == 0 for one in found["batches"])


def test_several_gpu_counts_are_compared():
    found = answer("batch-size", *SMALL[:2], "--gpus", "16,48", *SMALL[4:], "--tokens", "100B", "--gbs", "48,96")
    assert {one["gpus"] for one in found["batches"]} == {16, 48}
    assert found["batches"][found["fastest"]]["gpus"] == 48
    assert found["batches"][found["cheapest"]]["gpus"] == 16
    drawn = gpuscale("batch-size", *SMALL[:2], "--gpus", "16,48", *SMALL[4:], "--tokens", "100B", "--gbs", "48,96")
    assert "fastest:" in drawn.out
    assert "cheapest:" in drawn.out


def test_what_was_measured_takes_the_place_of_a_law(sizes):
    arguments = ("batch-size", *SMALL, "--tokens", "1T", "--gbs", "256")
    found = answer(*arguments, "--noise-scale", "2M")
    assert found["critical_batch_tokens"] == 2e6
    assert found["batches"][0]["wall_s"] > sizes["batches"][1]["wall_s"]
    norms = answer(*arguments, "--gradient-norm", "512k=0.9", "--gradient-norm", "4M=0.5")
    assert norms["critical_batch_tokens"] == pytest.approx(1.96e6, rel=0.01)
    same = library.batch_size("llama3-8b", 16, "1T", gradient_norm={"512k": 0.9, "4M": 0.5}, gbs=256, layout={"tp": 1})
    assert same.critical_batch_tokens == norms["critical_batch_tokens"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--model", "llama3-8b", "--gpus", 8), "--train-tokens is missing", "15T"),
        (("--model", "llama3-8b", "--gpus", 0, "--tokens", "1T"), "--gpus: 0 is out of range", "1 to"),
        ((*SMALL, "--tokens", "1T", "--noise-scale", "0"), "out of range", ""),
        ((*SMALL, "--tokens", "1T", "--gradient-norm", "4M=0.5"), "1 norm, not 2", "512k=0.9"),
        ((*SMALL, "--tokens", "1T", "--gradient-norm", "4M", "--gradient-norm", "1M"), "is not BATCH=NORM", "512k=0.9"),
        ((*SMALL, "--tokens", "1T", "--gradient-norm", "4M=x", "--gradient-norm", "1M=1"), "is not a norm", "512k=0.9"),
        (
            (*SMALL, "--tokens", "1T", "--noise-scale", "1M", "--gradient-norm", "1M=1"),
            "are mutually exclusive",
            "norms",
        ),
        ((*SMALL, "--tokens", "1T", "--gbs", "1..1000000", "--gpus", "8..4096"), "plans, at most 64", "fewer"),
    ],
)
def test_unusable_questions_of_batches(arguments, message, hint):
    assert_one_message(gpuscale("batch-size", *arguments), message, hint)


@pytest.fixture(scope="module")
def model():
    return answer("size", "--gpus", 16, "--days", 3)


def test_a_model_is_trained_in_the_days_that_there_are(model):
    """Each choice is a training of that many days by the plan of a real shape, as `train-time` says it."""
    assert (model["schema"], model["question"], model["gpus"]) == ("gpuscale.size/1", "model", 16)
    for one in model["choices"]:
        assert one["wall_s"] == pytest.approx(3 * 86400, rel=0.01)
        assert model_parameters(load_model(one["model"])).total == one["parameters"]
        assert one["tokens_per_parameter"] == pytest.approx(one["tokens"] / one["parameters"])
    first = model["choices"][0]
    options = ("--gpus", 16, "--gbs", first["global_batch_size"])
    spent = answer("train-time", "--model", first["model"], *options, "--days", 3)
    assert spent["tokens"] == first["tokens"]
    assert spent["cost_usd"] == pytest.approx(first["cost_usd"])


def test_the_choices_go_from_the_optimum_to_small_models(model):
    choices = model["choices"]
    assert model["best"] == 0
    assert choices[0]["optimal"]
    assert choices[0]["overtraining"] < 1.02
    ratios = [one["tokens_per_parameter"] for one in choices]
    assert ratios == pytest.approx([20, 50, 100, 200, 500, 1000], rel=0.3)
    for worse, better in zip(choices[1:], choices, strict=False):
        assert worse["loss"] > better["loss"]
        assert worse["overtraining"] > better["overtraining"]
        assert worse["parameters"] < better["parameters"]
    law = {one["law"]: one for one in model["laws"]}
    assert law["besiroglu"]["parameters"] == pytest.approx(choices[0]["parameters"], rel=0.1)
    assert model["flops"] == pytest.approx(6 * choices[0]["parameters"] * choices[0]["tokens"])


def test_a_budget_pays_for_gpus_and_days(model):
    usd = model["choices"][0]["cost_usd"]
    assert library.size(gpus=16, budget=usd).days == pytest.approx(3, rel=0.01)
    by_days = library.size(days=3, budget=1.01 * usd)
    assert (by_days.gpus, by_days.days) == (16, 3)
    alone = library.size(budget="20k")
    assert alone.choices[0].cost_usd == pytest.approx(20e3, rel=0.01)
    assert 30 <= alone.days < 60
    assert any("neither GPUs nor days" in note for note in alone.notes)
    with_spares = library.size(budget="1M", gpus=512)
    assert with_spares.choices[0].cost_usd == pytest.approx(1e6, rel=0.005)
    assert with_spares.days < 1e6 / 2.65 / 512 / 24
    assert library.size(budget="1M", days=30).choices[0].cost_usd <= 1e6
    cheap = library.size(gpus=16, budget=usd, gpu_hour_price=1.0)
    assert cheap.choices[0].parameters > model["choices"][0]["parameters"]


def test_the_fewest_gpus_for_a_deadline():
    """They meet it, the next smaller number does not; half and double are there; as `train-time` says."""
    found = answer("size", "--model", "llama3-8b", "--tokens", "200B", "--days", 3)
    counts = [one["gpus"] for one in found["choices"]]
    best = found["choices"][found["best"]]
    assert found["gpus"] == best["gpus"]
    assert [one["meets"] for one in found["choices"]] == [one["wall_s"] <= 3 * 86400 for one in found["choices"]]
    assert best["meets"]
    assert not found["choices"][found["best"] - 1]["meets"]
    assert {best["gpus"] // 2, 2 * best["gpus"]} <= set(counts)
    options = ("--gpus", best["gpus"], "--gbs", best["global_batch_size"])
    spent = answer("train-time", "--model", "llama3-8b", *options, "--tokens", "200B")
    assert spent["wall_s"] == pytest.approx(best["wall_s"])
    sooner = library.size("llama3-8b", tokens="200B", days=1)
    assert sooner.gpus > found["gpus"]
    drawn = gpuscale("size", "--model", "llama3-8b", "--tokens", "200B", "--days", 3)
    assert f"days: {best['gpus']} GPUs: " in drawn.lines[0]
    assert f"no count between {counts[found['best'] - 1]} and {best['gpus']} was tried" in drawn.out
    assert "too late" in drawn.out


def test_a_batch_that_is_given_stays():
    found = library.size("llama3-8b", tokens="20B", days=1, gbs=192, layout={"tp": 1})
    assert {one.global_batch_size for one in found.choices} == {192}


@pytest.mark.parametrize(
    ("arguments", "message", "hint", "code"),
    [
        ((), "which model, or how many GPUs?", "budget", 2),
        (("--gpus", 8), "--days or --budget is missing", "days", 2),
        (("--days", 8), "--gpus or --budget is missing", "days", 2),
        (("--days", "2w"), "--days: '2w' is not a time", "30d", 2),
        (("--budget", "1 M$"), "is not an amount of money", "250k or 1.5M", 2),
        (("--model", "llama3-8b", "--tokens", "1T"), "--days is missing", "fewest GPUs", 2),
        (("--model", "llama3-8b", "--days", 3), "--train-tokens is missing", "fewest", 2),
        (("--model", "llama3-8b", "--tokens", "1T", "--days", 3, "--gpus", 8), "the fewest GPUs", "train-time", 2),
        (("--gpus", 8, "--days", 3, "--budget", "1k"), "beside GPUs and days", "one of the three", 2),
        (("--gpus", 8, "--days", 0), "out of range", "give 0.0001 to 100000 d", 2),
        (("--gpus", 8, "--budget", "x"), "is not an amount of money", "", 2),
        (("--budget", "1e17"), "out of range", "1e+15 USD", 2),
        (("--budget", 5), "less than one GPU", "fewer days", 1),
        (("--gpus", 8, "--days", 0.0001), "are enough for", "70.0M", 1),
        (("--budget", "1M", "--cluster", "box-l40s", "--set", "gpu=mi325x"), "no price", "", 2),
        (("--gpus", 8, "--days", 3, "--seq", "4096,8192"), "takes one value", "plan", 2),
        (("--model", "llama3-70b", "--tokens", "15T", "--days", 0.01), "no number of GPUs meets", "more days", 1),
    ],
)
def test_unusable_questions_of_size(arguments, message, hint, code):
    assert_one_message(gpuscale("size", *arguments), message, hint, code)


def test_a_noise_scale_beyond_all_batches_is_looked_at_too():
    found = library.batch_size("llama3-8b", 8, "1T", noise_scale=1e18, layout={"tp": 1, "pp": 1, "cp": 1})
    assert found.batches[-1].tokens_factor == pytest.approx(1.0)


def test_progress_is_told():
    told = []
    library.size(gpus=8, days=1, progress=lambda *one: told.append(one))
    assert [done for done, *_ in told] == list(range(6))
    told.clear()
    library.batch_size("llama3-8b", 8, "1T", gbs="64,128", layout={"tp": 1}, progress=lambda *one: told.append(one))
    assert [(done, all_) for done, all_, _ in told] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("size", "--gpus", 64, "--days", 14, "-v"),
        ("size", "--model", "llama3-8b", "--tokens", "1T", "--days", 9),
        ("batch-size", "--model", "llama3-8b", "--gpus", "64,96", "--tokens", "1T", "-v"),
    ],
)
def test_tables_fit(arguments):
    done = gpuscale(*arguments)
    assert done.code == 0
    assert max(map(len, done.lines)) <= 100


@pytest.mark.parametrize("gpus", [256, 1024, 4096, 16384])
def test_the_usual_batch_is_that_of_a_plan(gpus):
    usual, *_ = batch_laws.usual_batches(gpus, 4096, 1e16)
    assert usual == job("llama3-70b", gpus).global_batch_size
