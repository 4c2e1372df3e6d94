"""`gpuscale train-time`: time, money, energy and carbon of a whole training; rates; energy and carbon as objectives."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale

import gpuscale as library
from gpuscale.energy import ports_gbit_per_s, power_of
from gpuscale.errors import InputError
from gpuscale.planning.jobs import build_job
from gpuscale.presets.files import preset_names
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.rates import Rate, load_rates, months, prices_of
from gpuscale.render.training import short_source
from gpuscale.request import JobOptions
from gpuscale.version import RELEASED

SMALL = ("--model", "llama3-8b", "--gpus", "16", "--tp", "1", "--pp", "1")
KEYS = (  # binding: scripts read them
    "schema", "model", "cluster", "gpus", "tokens", "plan", "steps", "wall_s", "gpu_hours", "cost_usd", "energy_mwh",
    "energy_cost_usd", "carbon_t", "effective_ratio", "effective_ratio_low", "effective_ratio_high",
    "checkpoint_interval_s", "phases", "assumptions",
)  # fmt: skip
PRICED = tuple(
    tomllib.loads((Path(__file__).parents[1] / "presets" / "rates" / "prices.toml").read_text(encoding="utf-8"))
)
REFERENCE = (
    "--model", "gpt3-175b", "--gpus", "50000", "--tp", "8", "--pp", "10", "--days", "60", "--rate", "gpu_w=350",
    "--rate", "host_w=0", "--rate", "network_w=0", "--rate", "pue=1", "--rate", "electricity_usd_per_kwh=0.10",
)  # fmt: skip


def answer(*arguments):
    done = gpuscale("train-time", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture(scope="module")
def small():
    return answer(*SMALL, "--tokens", "1T")


def test_the_contract_for_scripts(small):
    assert [key for key in KEYS if key not in small] == []
    assert small["schema"] == "gpuscale.train-time/1"
    assert all(set(rate) == {"value", "source", "date"} for rate in small["assumptions"].values())


def test_the_reference_example_of_power_energy_and_money():
    """50,000 GPUs of 350 W: 17.5 MW, 25.2 GWh in 60 days, 2.52 M USD at 0.10 USD per kWh (docs/train-time.md)."""
    found = answer(*REFERENCE)
    assert found["power_mw"] == pytest.approx(17.5)
    assert found["energy_mwh"] == pytest.approx(25_200, rel=1e-5)  # whole steps
    assert found["energy_cost_usd"] == pytest.approx(2.52e6, rel=1e-5)
    assert found["wall_s"] == pytest.approx(60 * 86400, rel=1e-5)
    assert gpuscale("train-time", *REFERENCE).out.count("25.2 GWh") >= 2


def test_totals_by_hand(small):
    plan, hours = small["plan"], small["gpu_hours"]
    tokens_per_step = plan["global_batch_size"] * plan["sequence"]
    assert small["steps"] == math.ceil(1e12 / tokens_per_step)
    assert hours == pytest.approx(16 * small["steps"] * plan["step_time_s"] / 3600)
    billed = hours / small["effective_ratio"]
    assert 0.99 < small["effective_ratio"] < 1
    assert small["wall_s"] * 16 / 3600 == pytest.approx(billed)
    assert small["billed_gpu_hours"] == pytest.approx(billed)
    assert small["cost_usd"] == pytest.approx(billed * small["assumptions"]["gpu_hour_price"]["value"])
    rates = {name: rate["value"] for name, rate in small["assumptions"].items()}
    assert small["energy_cost_usd"] == pytest.approx(small["energy_mwh"] * 1000 * rates["electricity_usd_per_kwh"])
    assert small["carbon_t"] == pytest.approx(small["energy_mwh"] * rates["carbon_kg_per_kwh"])
    assert sum(small["energy"].values()) == pytest.approx(small["energy_mwh"])
    assert small["energy"]["gpus"] == pytest.approx(billed * small["gpu_power_w"] / 1e6)
    assert small["energy"]["hosts"] == pytest.approx(billed * 350 / 1e6)
    others = sum(small["energy"][name] for name in ("gpus", "hosts", "network"))
    assert small["energy"]["cooling"] == pytest.approx(others * (rates["pue"] - 1))
    assert [one["tokens"] for one in small["phases"]] == [1e12]


def test_failures_lengthen_the_wall_time_and_are_paid_for_but_are_no_gpu_hours(small):
    failing = answer(*SMALL, "--tokens", "1T", "--rate", "effective_ratio=0.8")
    assert failing["gpu_hours"] == small["gpu_hours"]
    for key in ("wall_s", "cost_usd", "energy_mwh", "carbon_t", "billed_gpu_hours"):
        assert failing[key] == pytest.approx(small[key] * small["effective_ratio"] / 0.8), key
    assert failing["effective_ratio"] == failing["effective_ratio_low"] == failing["effective_ratio_high"] == 0.8
    assert failing["checkpoint_interval_s"] is None


def test_one_token_is_one_token():
    done = gpuscale("train-time", *SMALL, "--tokens", "1tok")
    assert done.out.startswith("1 token on 16 GPUs: ")
    assert "1 of 1 token\n" in done.out


def test_spare_nodes_are_paid_for():
    none, two = (answer(*SMALL, "--tokens", "1T", "--spares", spares) for spares in (0, 2))
    assert two["billed_by_use"]["spares"] == pytest.approx(2 * 8 * two["wall_s"] / 3600)
    assert none["billed_by_use"]["spares"] == 0
    for spares, said in ((0, "GPUs: "), (1, "GPUs with 1 spare node: "), (2, "GPUs with 2 spare nodes: ")):
        assert said in gpuscale("train-time", *SMALL, "--tokens", "1T", "--spares", spares).lines[0]
    for one in (none, two):
        assert sum(one["billed_by_use"].values()) == pytest.approx(one["billed_gpu_hours"])
        price = one["assumptions"]["gpu_hour_price"]["value"]
        assert one["cost_usd"] == pytest.approx(one["billed_gpu_hours"] * price)
        assert one["cost_by_term_usd"]["reserved"] == one["cost_usd"]
        assert one["billed_by_use"]["steps"] == one["gpu_hours"]
    assert two["energy_mwh"] < none["energy_mwh"]  # it waits less
    assert "GPU-hours of spare nodes" in gpuscale("train-time", *SMALL, "--tokens", "1T", "--spares", 2).out


def test_failures_are_those_that_goodput_says(small):
    goodput = gpuscale(
        "goodput", "--model", "llama3-8b", "--gpus", "16", "--zero", "2", "--mbs", "2", "--days", "65", "--json"
    )
    share = json.loads(goodput.out)["effective_ratio"]
    assert small["effective_ratio"] == pytest.approx(share, abs=1e-3)
    worse = answer(*SMALL, "--tokens", "1T", "--failure-rate", "50", "--checkpoint", "sync")
    assert worse["effective_ratio_low"] < worse["effective_ratio"] < small["effective_ratio_low"]
    assert worse["checkpoint_interval_s"] < small["checkpoint_interval_s"]
    assert worse["assumptions"]["failures_per_gpu_day"]["source"] == "given"


def test_llama_3_trained_for_over_90_percent_of_its_time():
    """Llama 3 (arXiv 2407.21783), section 3.3.4, from the failures that it counts."""
    found = answer(
        "--model", "llama3.1-405b", "--gpus", "16384", "--seq", "8192", "--gbs", "2048", "--framework", "generic",
        "--tp", "8", "--pp", "16", "--vpp", "8", "--zero", "2", "--as-given", "--tokens", "15.6T",
    )  # fmt: skip
    assert 0.9 < found["effective_ratio"] < 0.97
    assert found["effective_ratio_low"] < found["effective_ratio"] < found["effective_ratio_high"]
    assert found["wall_low_s"] < found["wall_s"] < found["wall_high_s"]


@pytest.mark.parametrize("more", [(), ("--rate", "effective_ratio=0.8"), ("--failure-rate", "50")])
def test_the_ends_of_the_time_are_those_of_the_step_and_of_what_lasts(more):
    """Two independent factors, each at its own end: the logs add up as squares; a given ratio has no ends."""
    found = answer(*SMALL, "--tokens", "1T", *more)
    step_s, ratio = found["plan"]["step_time_s"], found["effective_ratio"]
    for end, lasting, sign in (("low", "high", -1), ("high", "low", 1)):
        of_step = math.log(found["plan"][f"step_time_{end}_s"] / step_s)
        far = math.hypot(of_step, math.log(found[f"effective_ratio_{lasting}"] / ratio))
        assert math.log(found[f"wall_{end}_s"] / found["wall_s"]) == pytest.approx(sign * far)


def test_both_spellings_and_both_ways_to_say_how_long():
    by_tokens, by_train_tokens = (answer(*SMALL, flag, "1T") for flag in ("--tokens", "--train-tokens"))
    assert by_tokens == by_train_tokens
    days = by_tokens["wall_s"] / 86400
    assert answer(*SMALL, "--days", days)["steps"] == pytest.approx(by_tokens["steps"], abs=1)
    plan = gpuscale("plan", *SMALL, "--tokens", "1T", "--json")
    assert json.loads(plan.out)["plans"][0]["values"]["time_to_train_s"] == pytest.approx(
        by_tokens["wall_s"] * by_tokens["effective_ratio"], rel=1e-4
    )


def test_a_plan_file_a_launch_script_and_a_layout_as_given_are_one_plan(tmp_path):
    path = tmp_path / "plan.toml"
    assert gpuscale("plan", *SMALL, "-o", path).code == 0
    searched, stored = answer(*SMALL, "--tokens", "1T"), answer(path, "--tokens", "1T")
    assert stored["plan"] == searched["plan"]
    assert stored["wall_s"] == searched["wall_s"]
    given = answer("--model", "llama3-8b", "--gpus", "16", "--tp", "4", "--as-given", "--tokens", "1T")
    estimate = json.loads(gpuscale("estimate", "--model", "llama3-8b", "--gpus", "16", "--tp", "4", "--json").out)
    assert given["plan"] == estimate["plan"]
    launched = answer("--from", "tests/data/launch/dense.sh", "--tokens", "1T")
    assert (
        launched["plan"]
        == json.loads(gpuscale("estimate", "--from", "tests/data/launch/dense.sh", "--json").out)["plan"]
    )


def test_the_library_answers_as_the_command_does(small):
    found = library.train_time("llama3-8b", 16, "1T", layout={"tp": 1, "pp": 1})
    assert json.loads(json.dumps(found.to_dict())) == {key: value for key, value in small.items() if key != "schema"}
    assert library.train_time("llama3-8b", 16, 1e12, layout={"tp": 1, "pp": 1}).wall_s == found.wall_s


def test_text_begins_with_the_verdict_and_shows_every_rate_with_its_date():
    done = gpuscale("train-time", *SMALL, "--tokens", "1T", "--gpu-hour-price", "2")
    assert done.lines[0].startswith("1T tokens on 16 GPUs: ")
    assert done.lines[0].endswith("% goodput")
    for name in answer(*SMALL, "--tokens", "1T")["assumptions"]:
        assert f"\n{name} " in done.out
    assert re.search(r"^gpu_hour_price +2 +given$", done.out, re.MULTILINE)
    assert "2024-12*" in done.out
    assert "* over a year old" in done.out
    full = gpuscale("train-time", *SMALL, "--tokens", "1T", "--verbose").out
    assert "2024-12, over a year old" in full
    assert "arXiv 2412.08602" in full


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (SMALL, "how long is the training?", "--days 60"),
        ((*SMALL, "--tokens", "1T", "--days", "3"), "--train-tokens and --days are mutually exclusive", "60"),
        ((*SMALL, "--days", "0"), "--days: 0 is out of range", "100000 d"),
        (("--tokens", "1T"), "--model is missing", "plan file"),
        ((*SMALL, "--tokens", "1T", "--rate", "pu=1"), "--rate: unknown rate 'pu'", "did you mean pue"),
        ((*SMALL, "--tokens", "1T", "--rate", "pue=0.5"), "--rate: pue=0.5 is out of range", "1 to 10"),
        ((*SMALL, "--tokens", "1T", "--rate", "pue"), "is not NAME=VALUE", "pue=1.3"),
        ((*SMALL, "--tokens", "1T", "--rate", "host_w=nan"), "is not NAME=VALUE", ""),
        ((*SMALL, "--tokens", "1T", "--price-term", "lease"), "--price-term: unknown value 'lease'", "reserved"),
        ((*SMALL, "--gpus", "8,16", "--as-given", "--tokens", "1T"), "--gpus: takes one value", ""),
    ],
)
def test_what_cannot_be_answered(arguments, message, hint):
    assert_one_message(gpuscale("train-time", *arguments), message, hint)


def test_nothing_fits():
    assert_one_message(gpuscale("train-time", "--model", "llama3-70b", "--gpus", "8", "--tokens", "1T"), "fits", "", 1)


def test_prices_by_cluster_then_gpu_and_term():
    assert prices_of("aws-p5", "h100-sxm-80gb")["on_demand"].value == 6.88
    assert prices_of("dgx-h100-superpod", "h100-sxm-80gb")["reserved"].value == 2.65
    assert prices_of("mine", "nobodys") == {}
    costs = {}
    for term in ("on-demand", "reserved", "spot"):
        found = answer(*SMALL, "--tokens", "1T", "--price-term", term)
        costs[term.replace("-", "_")] = found["cost_usd"]
        assert found["cost_by_term_usd"][term.replace("-", "_")] == found["cost_usd"]
    assert costs["spot"] < costs["reserved"] < costs["on_demand"]
    own = answer(*SMALL, "--tokens", "1T", "--gpu-hour-price", "dgx-h100-superpod=3")
    assert own["cost_usd"] == pytest.approx(own["billed_gpu_hours"] * 3)
    assert own["assumptions"]["gpu_hour_price"] == {"value": 3, "source": "given", "date": ""}


def test_plan_takes_a_published_price_where_it_is_asked_to():
    done = gpuscale("plan", *SMALL[:4], "--objective", "cost", "--price-term", "reserved", "--json", "--top", "1")
    found = json.loads(done.out)
    values = found["plans"][0]["values"]
    assert values["usd_per_1e9_tokens"] == pytest.approx(values["gpu_hours_per_1e12_tokens"] * 2.65 / 1000)
    assert "2026-06" in found["assumptions"]["price"]
    own = gpuscale("plan", *SMALL[:4], "--gpu-hour-price", "2", "--price-term", "reserved", "--json", "--top", "1")
    values = json.loads(own.out)["plans"][0]["values"]
    assert values["usd_per_1e9_tokens"] == pytest.approx(values["gpu_hours_per_1e12_tokens"] * 2 / 1000)
    several = gpuscale("plan", "--model", "llama3-8b", "--gpus", "8,16", "--price-term", "spot")
    assert "train a token cheapest" in several.lines[0]
    none = gpuscale("plan", *SMALL[:4], "--cluster", "mi325x", "--objective", "cost", "--price-term", "spot")
    assert_one_message(none, "cost needs --gpu-hour-price", "2.5")


def test_without_a_price_there_is_no_cost_and_the_answer_says_so():
    found = answer("--model", "llama3-8b", "--gpus", "16", "--cluster", "mi325x", "--tokens", "1T")
    assert found["cost_usd"] is None
    assert any("gpu_hour_price" in note for note in found["notes"])
    assert "USD," not in gpuscale("train-time", *SMALL, "--cluster", "mi325x", "--tokens", "1T").lines[0]


def test_another_term_is_taken_where_the_one_asked_for_is_not_published():
    found = answer(*SMALL, "--cluster", "h200-hgx", "--tokens", "1T")
    assert found["cost_usd"] == found["cost_by_term_usd"]["on_demand"]
    assert any("no reserved price" in note for note in found["notes"])


def test_every_price_belongs_to_a_preset_and_every_rate_has_a_source_and_a_date():
    known = {*preset_names("clusters"), *preset_names("gpus")}
    assert set(PRICED) <= known
    assert all(map(prices_of, PRICED))
    for rate in load_rates().values():
        assert len(rate.source) > 10
        assert months("2020") < months(rate.date) <= months(RELEASED)


def test_every_source_begins_with_what_fits_the_table():
    rates = [*load_rates().values(), *(rate for name in PRICED for rate in prices_of(name).values())]
    assert len(rates) > 30
    assert [rate.source for rate in rates if short_source(rate.source).endswith("...")] == []
    assert [rate.source for rate in rates if len(short_source(rate.source)) < 10] == []


def test_a_rate_is_old_from_thirteen_months_before_the_release():
    year, month = map(int, RELEASED.split("-"))
    assert not Rate(1, "source", f"{year - 1}-{month:02}").old
    assert Rate(1, "source", f"{year - 2}-{month:02}").old
    assert not Rate(1, "given", "").old


def test_files_of_the_user_replace_rates_and_prices(tmp_path):
    folder = tmp_path / "rates"
    folder.mkdir()
    (folder / "mine.toml").write_text('[pue]\nvalue = 1.5\nsource = "our meter"\ndate = "2026-09"\n')
    (folder / "prices.toml").write_text(
        '["h100-sxm-80gb".reserved]\nvalue = 1\nsource = "our contract"\ndate = "2026"\n'
    )
    done = gpuscale("train-time", *SMALL, "--tokens", "1T", "--json", presets=str(tmp_path))
    found = json.loads(done.out)
    assert found["assumptions"]["pue"] == {"value": 1.5, "source": "our meter", "date": "2026-09"}
    assert found["cost_usd"] == found["billed_gpu_hours"]
    assert set(found["cost_by_term_usd"]) == {"on_demand", "reserved", "spot"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pue]\nvalue = 1.5\n", "needs value, source and date"),
        ('[pue]\nvalue = "x"\nsource = "a source"\ndate = "2026"\n', "value is not a number"),
        ('[pue]\nvalue = nan\nsource = "a source"\ndate = "2026"\n', "value is not a number"),
        ('[pue]\nvalue = 1\nsource = "a source"\ndate = "today"\n', "date is not a text"),
        ("pue = 1\n", "needs value, source and date"),
        ("[pue\n", "not valid TOML"),
    ],
)
def test_a_broken_file_of_rates_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "power.toml").write_text(text)
    done = gpuscale("train-time", *SMALL, "--tokens", "1T", presets=str(tmp_path))
    assert_one_message(done, message, "")
    assert "power.toml" in done.err


def power(**options):
    spec = build_job(JobOptions(model="llama3-70b", gpus=64, **options)).spec
    return power_of(spec, load_rates())


def test_a_gpu_draws_more_the_busier_it_is_up_to_its_limit():
    one = power()
    assert one.of_gpu_w(0.0) == pytest.approx(350)
    assert one.of_gpu_w(one.busy_flops_per_s) == pytest.approx(700)
    assert one.of_gpu_w(10 * one.busy_flops_per_s) == pytest.approx(700)
    assert 350 < one.of_gpu_w(400e12) < one.of_gpu_w(500e12) < 700


def test_the_same_rate_of_flops_draws_less_in_fp8_whose_units_wait_longer():
    assert power(precision="fp8").of_gpu_w(400e12) < power().of_gpu_w(400e12)


def test_a_power_limit_of_the_cluster_holds():
    assert power(set="gpu.power_w=500").of_gpu_w(1e18) == pytest.approx(500)


def test_a_busy_hgx_h100_draws_what_was_measured():
    """Newkirk et al. 2025 (arXiv 2506.14551): hard work takes 76 % of the 10.2 kW of eight H100."""
    node_w = 8 * (float(power().of_gpu_w(450e12)) + power().host_w)
    assert node_w == pytest.approx(0.76 * 10_200, rel=0.05)


def test_ports_of_the_network():
    """One 400 Gbit/s port of a leaf down and one up, and one of the spine."""
    assert ports_gbit_per_s(load_cluster("dgx-h100-superpod")) == pytest.approx(1200)
    assert ports_gbit_per_s(load_cluster("box-l40s")) == 0


def test_energy_and_carbon_as_objectives_and_axes():
    done = gpuscale("plan", "--model", "llama3-8b", "--gpus", "8,64", "--objective", "energy", "--json", "--top", "4")
    values = [plan["values"] for plan in json.loads(done.out)["plans"]]
    energies = [one["kwh_per_1e9_tokens"] for one in values]
    assert energies == sorted(energies)
    for one in values:
        assert one["kg_co2_per_1e9_tokens"] == pytest.approx(0.367 * one["kwh_per_1e9_tokens"])
    both = gpuscale("plan", *SMALL[:4], "--pareto", "energy,memory", "--json")
    kwh = [plan["values"]["kwh_per_1e9_tokens"] for plan in json.loads(both.out)["plans"]]
    assert len(kwh) > 1
    assert kwh == sorted(kwh)


def test_the_objective_is_the_energy_that_train_time_says():
    plan = json.loads(gpuscale("plan", *SMALL, "--objective", "energy", "--json", "--top", "1").out)["plans"][0]
    found = answer(*SMALL, "--tokens", "1T", "--objective", "energy")
    assert found["plan"]["step_time_s"] == plan["step_time_s"]
    tokens = found["steps"] * plan["global_batch_size"] * plan["sequence"]
    assert found["energy_mwh"] * found["effective_ratio"] * 1e3 / (tokens / 1e9) == pytest.approx(
        plan["values"]["kwh_per_1e9_tokens"]
    )


def test_cleaner_electricity_changes_the_carbon_alone():
    dirty, clean = (answer(*SMALL, "--tokens", "1T", "--rate", f"carbon_kg_per_kwh={kg}") for kg in (0.367, 0.056))
    assert clean["energy_mwh"] == dirty["energy_mwh"]
    assert clean["carbon_t"] == pytest.approx(dirty["carbon_t"] * 0.056 / 0.367)


def test_plan_says_what_its_energy_stands_on():
    assert "PUE 1.3" in gpuscale("plan", *SMALL, "--objective", "carbon", "--rate", "pue=1.3").out
    assert "PUE" not in gpuscale("plan", *SMALL).out


@pytest.fixture(scope="module")
def over_gpus():
    return answer("--model", "llama3-70b", "--gpus", "8,64,128,256", "--tokens", "1T")


def test_each_number_of_gpus_is_as_if_it_were_asked_for_alone(over_gpus):
    rows = over_gpus["over_gpus"]
    assert [one["gpus"] for one in rows] == [64, 128, 256]
    assert any(note.startswith("8 GPUs: the smallest layout needs") for note in over_gpus["notes"])
    for one in rows:
        alone = answer("--model", "llama3-70b", "--gpus", one["gpus"], "--tokens", "1T")
        assert alone["over_gpus"] == []
        keys = ("gpus", "cluster", "tokens", "wall_s", "gpu_hours", "cost_usd", "energy_mwh", "effective_ratio")
        assert {key: one[key] for key in keys} == {key: alone[key] for key in keys}
        assert one["step_time_s"] == alone["plan"]["step_time_s"]
    assert over_gpus["gpu_hours"] == min(one["gpu_hours"] for one in rows)


def test_a_number_of_gpus_that_never_gets_anywhere_is_left_out():
    options = ("--failure-rate", "9000", "--checkpoint", "sync", "--tokens", "1T", "--detection-time", "600")
    found = answer("--model", "llama3-8b", "--gpus", "8,16,4096", *options)
    assert [one["gpus"] for one in found["over_gpus"]] == [8, 16]
    assert any("4,096 GPUs" in note for note in found["notes"])


def test_cost_and_days_over_gpus_are_drawn(over_gpus):
    done = gpuscale("train-time", "--model", "llama3-70b", "--gpus", "64,128,256", "--tokens", "1T")
    assert "USD, over GPUs" in done.out
    assert re.search(r"^days.*, over GPUs", done.out, re.MULTILINE)
    assert re.search(rf"  {over_gpus['gpus']}\* ", done.out)
    assert max(map(len, done.lines)) <= 100
    two = gpuscale("train-time", *SMALL[:3], "8,16", "--tokens", "1T").out
    assert "over GPUs" not in two
    assert "16 " in two


def test_options_that_ask_for_several_plans_are_none_of_it():
    assert gpuscale("train-time", *SMALL, "--tokens", "1T", "--top", "3").code == 2
    with pytest.raises(InputError, match="unknown option"):
        library.train_time("llama3-8b", 16, "1T", top=3)


def test_of_several_jobs_the_best_is_taken_and_said():
    found = answer("--model", "llama3-8b", "--gpus", "8,16", "--tokens", "1T")
    alone = {gpus: answer("--model", "llama3-8b", "--gpus", str(gpus), "--tokens", "1T") for gpus in (8, 16)}
    hours = {gpus: one["gpu_hours"] for gpus, one in alone.items()}
    assert found["gpus"] == min(hours, key=hours.get)
    assert "the best of 2 jobs by gpu_hours" in found["notes"]
    assert (
        answer("--model", "llama3-8b", "--gpus", "8,16", "--tokens", "1T", "--objective", "time_to_train")["gpus"] == 16
    )


def test_a_job_of_which_one_run_in_ten_gets_nowhere():
    arguments = ("--model", "llama3-8b", "--gpus", "64", "--tp", "1", "--as-given", "--days", "1")
    found = answer(*arguments, "--failure-rate", "30000")
    assert 0 < found["effective_ratio_low"] <= found["effective_ratio"] < 1e-4
    assert math.isfinite(found["wall_high_s"])
