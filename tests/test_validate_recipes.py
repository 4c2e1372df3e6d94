"""`gpuscale validate recipes.csv`: layouts of experts beside our first choices of the same jobs."""

import csv
import json
from pathlib import Path

import pytest
from command import gpuscale

from gpuscale.planning.plans import plan
from gpuscale.validation.scores import validate

SHARED = Path(__file__).parents[2] / "shared" / "validation" / "recipes.csv"
MADE = Path(__file__).parent / "data" / "example_recipes.csv"
HEADER, *ROWS = MADE.read_text().splitlines()


@pytest.fixture(scope="module")
def path():
    return MADE


@pytest.fixture(scope="module")
def found(path):
    return validate(path)


@pytest.fixture(scope="module")
def rows(found):
    return {one.id: one for one in found.rows}


def test_the_header_tells_a_file_of_recipes(found):
    assert found.kind == "recipes"
    assert found.summary["kind"] == "recipes"
    assert found.summary["rows"] == 8


def test_each_row_has_a_status_and_says_why(rows):
    assert {name: one.status for name, one in rows.items()} == {
        "dense": "ok", "tensor": "ok", "experts": "ok", "sharded": "ok", "large": "unfit", "uneven": "no-start",
        "stranger": "unsupported", "nowhere": "unsupported",
    }  # fmt: skip
    assert "EP x ETP must divide" in rows["uneven"].reason
    assert "llama9-8b" in rows["stranger"].reason
    assert "moon" in rows["nowhere"].reason
    assert "GiB" in rows["large"].reason


def test_a_layout_is_held_to_what_plan_puts_first(rows):
    job = {"model": "llama3-8b", "gpus": 8, "seq": 8192, "gbs": 128, "framework": "megatron-bridge-perf",
           "cuda_graphs": "none"}  # fmt: skip
    first = plan(**job, top=1).plans[0]
    own = rows["tensor"]
    assert own.first_choice_step_s == pytest.approx(first.step_time_s)
    assert own.behind == pytest.approx(own.predicted_step_s / first.step_time_s - 1)
    assert own.behind > 0.05
    assert f"TP 8 -> {first.tp}" in own.differs
    assert rows["dense"].first_choice_step_s == own.first_choice_step_s  # the same job


def test_the_command_of_a_row_answers_the_same(path):
    body = json.loads(gpuscale("validate", path, "--json").out)
    row = next(one for one in body["rows"] if one["id"] == "experts")
    answer = json.loads(gpuscale(*row["command"], "--json").out)
    assert answer["plan"]["step_time_s"] == row["predicted_step_s"]
    assert answer["plan"]["memory_gib"] == row["predicted_device_gib"]
    assert answer["job"]["moment_dtype"] == "bf16"


def test_sharding_and_offloaded_layers_are_read(path):
    body = json.loads(gpuscale("validate", path, "--json").out)
    command = " ".join(next(one["command"] for one in body["rows"] if one["id"] == "sharded"))
    assert "--zero 3" in command
    assert "--offload activations:0.5" in command  # 16 of 32 layers


def test_a_measured_rate_is_held_to_the_prediction(found, rows):
    one = rows["dense"]
    assert one.measured_step_s == pytest.approx(128 * 8192 / (9000 * 8))
    assert one.step_error == pytest.approx(one.predicted_step_s / one.measured_step_s - 1)
    assert found.summary["step"]["n"] == 1


def test_figures_are_of_layouts_that_fit(found, rows):
    groups = found.summary["groups"]
    assert set(groups) == {"layers", "gpu"}
    assert groups["layers"]["dense"]["n"] + groups["layers"]["mixture of experts"]["n"] == found.summary["n"]
    fitting = [one.behind for one in found.rows if one.behind is not None and one.predicted_fits]
    assert found.summary["worst_behind"] == max(fitting)
    assert min(fitting) <= found.summary["median_behind"] <= found.summary["p90_behind"] <= max(fitting)
    assert found.summary["status"] == {"no-start": 1, "ok": 4, "unfit": 1, "unsupported": 2}
    assert sum(found.summary["unsupported"].values()) == 3
    assert rows["large"].predicted_fits is False


def test_another_grouping_is_added(path):
    assert set(validate(path, "model").summary["groups"]) == {"layers", "gpu", "model"}


def test_the_answer_is_drawn_in_every_form(path, tmp_path):
    page = tmp_path / "page.html"
    text = gpuscale("validate", path, "--top", 2, "--html", page).out
    assert text.startswith("8 recipes, ")
    assert "mixture of experts" in text
    assert "recipe -> first choice" in text
    assert "not evaluated: 3" in text
    assert "recipe -&gt; first choice" in page.read_text()
    assert "| dense |" in gpuscale("validate", path, "--markdown").out
    lines = list(csv.DictReader(gpuscale("validate", path, "--csv").out.splitlines()))
    assert [one["id"] for one in lines][:3] == ["dense", "tensor", "experts"]
    assert float(next(one["behind"] for one in lines if one["id"] == "tensor")) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER}\n{ROWS[0]}\n{ROWS[0]}\n", "recipe 'dense' is given twice"),
        (f"{HEADER}\n,{ROWS[0].partition(',')[2]}\n", "the row has no recipe"),
        (f"{HEADER.replace('gbs,', 'gps,')}\n{ROWS[0]}\n", "nearest to recipes, without gbs"),
        (f"{HEADER}\n", "has a header and no rows"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "x.csv"
    path.write_text(text)
    done = gpuscale("validate", path)
    assert done.code == 2
    assert message in done.err


def test_a_wrong_cell_is_said_of_its_row(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n{ROWS[0].replace(',2,1,,off', ',2,1,,maybe')}\n")
    done = gpuscale("validate", path)
    assert done.code == 1
    assert "x.csv:2: fsdp 'maybe' is none of on, off" in done.err + done.out


def test_recipes_have_no_plot_of_measurements(path):
    done = gpuscale("validate", path, "--plot")
    assert done.code == 2
    assert "recipes are not measured" in done.err


@pytest.mark.full
@pytest.mark.skipif(not SHARED.is_file(), reason="the shared recipes are not here")
def test_nearly_all_published_recipes_can_start_and_fit():
    found = validate(SHARED)
    assert found.summary["n"] >= 160
    assert found.summary["fits"] >= 0.9 * found.summary["n"]
    assert found.summary["status"].get("unsupported", 0) == 0
    assert found.summary["groups"]["layers"]["dense"]["median_behind"] < 0.05
