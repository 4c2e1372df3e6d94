"""`gpuscale plan` with several jobs, frontiers and money at the terminal: verdict, table, plot, JSON, CSV, files."""

import csv
import io
import json
import re

import pytest
from command import assert_one_message, gpuscale

from gpuscale.render.compared import _against
from gpuscale.render.plots import LABEL, ROWS, Axis, scaled, scatter
from gpuscale.results import VariantRow

MODEL = ("plan", "--model", "llama3-8b")
PINS = ("--tp", "1,2", "--cp", "1")
GPUS = (*MODEL, "--gpus", "8..32", "--gbs", "96", *PINS)
PRICED = (*GPUS, "--gpu-hour-price", "2.5", "--train-tokens", "15T")
WHERE = (*MODEL, "--gpus", "16", "-c", "dgx-h100-superpod", "-c", "b200-hgx", *PINS)
KINDS = (*MODEL, "--gpus", "16", "--precision", "bf16,fp8", "--offload", "none,optimizer", *PINS)
FRONTIER = (*MODEL, "--gpus", "8,16,32", "--gbs", "96", "--pareto", "gpu_hours,memory", *PINS)
FULL = (*MODEL, "--gpus", "16", "--space", "full", *PINS)
ONE = (*MODEL, "--gpus", "16", "--objective", "cost", "--gpu-hour-price", "2", *PINS)
ALL = {"gpus": GPUS, "priced": PRICED, "where": WHERE, "kinds": KINDS, "frontier": FRONTIER, "full": FULL, "one": ONE}


def body(*arguments):
    done = gpuscale(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def said(*arguments):
    """The verdict: all before the line on the first plan."""
    done = gpuscale(*arguments)
    assert (done.code, done.err) == (0, "")
    return " ".join(done.out.partition("#1: ")[0].split())


def header(done):
    return next(line for line in done.lines if line.startswith("# "))


# -- verdicts --


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (GPUS, r"llama3-8b: \d+ GPUs take the fewest GPU-hours: [\d.]+k per 1e12 tokens; \d+ GPUs are [\d.]+"
               r"(x as fast|% faster) and take [\d.]+% (more|fewer) GPU-hours"),
        (PRICED, r"llama3-8b: \d+ GPUs train a token cheapest: [\d.]+ USD per 1e9 tokens; 32 GPUs are [\d.]+"
                 r"(x as fast|% faster) and [\d.]+% more expensive"),
        (WHERE, r"llama3-8b: b200-hgx is fastest: \d+k tokens/s; dgx-h100-superpod is [\d.]+% slower"),
        (KINDS, r"llama3-8b: fp8, offload none is fastest: \d+k tokens/s; fp8, offload optimizer is [\d.]+% slower"),
        (FULL, r"llama3-8b: fp8 is fastest: \d+k tokens/s; .* is ([\d.]+% slower|as fast.*)"),
        ((*PRICED, "--objective", "time_to_train"), r"llama3-8b: 32 GPUs train 15.0T tokens soonest: [\d,]+ days; "
                                                    r"\d+ GPUs are [\d.]+(x as fast|% slower) and [\d.]+% cheaper"),
        ((*GPUS, "--objective", "memory"), r"llama3-8b: 32 GPUs need the least memory: [\d.]+ GiB; .* with [\d.]+ GiB"),
        ((*GPUS, "--objective", "mfu"), r"llama3-8b: \d+ GPUs reach the highest MFU: [\d.]+%; .* at MFU [\d.]+%"),
        ((*GPUS, "--objective", "step_time"), r"llama3-8b: 32 GPUs have the shortest step: [\d.]+ s; .* GPU-hours"),
        ((*WHERE, "--objective", "memory_headroom"), r"llama3-8b: b200-hgx leaves the most memory: \d+ GiB free; .*"),
        (FRONTIER, r"\d+ plans of 3 jobs of llama3-8b are on the frontier of gpu_hours and memory: from [\d.]+k "
                   r"GPU-hours per 1e12 tokens, [\d.]+ GiB to [\d.]+k GPU-hours per 1e12 tokens, [\d.]+ GiB"),
        ((*MODEL, "--gpus", "16", "--tp", "2", "--pareto", "mfu,step_time"),
         r"1 plan of llama3-8b on 16 GPUs is on the frontier of mfu and step_time: MFU [\d.]+%, [\d.]+ s/step"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("computed_once")
def test_the_verdict_answers_the_question(arguments, verdict):
    assert re.fullmatch(verdict, said(*arguments))


@pytest.mark.usefixtures("computed_once")
def test_the_verdict_says_what_the_json_says():
    answer = body(*PRICED)
    best, *_ = [answer["variants"][plan["variant"]] for plan in answer["plans"]]
    fastest = max(answer["variants"], key=lambda one: one["best"]["tokens_per_s"])
    speed = fastest["best"]["tokens_per_s"] / best["best"]["tokens_per_s"]
    dearer = fastest["best"]["usd_per_1e9_tokens"] / best["best"]["usd_per_1e9_tokens"] - 1
    text = said(*PRICED)
    assert f"{best['choice']['gpus']} GPUs train a token cheapest: {best['best']['usd_per_1e9_tokens']:.1f} USD" in text
    faster = f"{speed:#.3g}x as fast" if speed >= 2 else f"{speed - 1:.1%} faster"
    assert f"{fastest['choice']['gpus']} GPUs are {faster} and {dearer:.1%} more expensive" in text


# -- tables --


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.usefixtures("computed_once")
def test_output_fits_the_terminal(name, columns):
    done = gpuscale(*ALL[name], columns=columns)
    assert (done.code, done.err) == (0, "")
    assert all(len(line) <= max(columns, 80) for line in done.lines)
    table = done.lines.index(header(done))
    assert all(len(line) <= columns for line in done.lines[table:])
    assert "\x1b" not in done.out
    assert "MFU%" in header(done)
    assert {"TP", "PP", "DP", "s/step"} <= set(header(done).split())


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        (GPUS, ["GPUs", "GPUh/1e12"]), (PRICED, ["GPUs", "USD/1e9", "days"]), (WHERE, ["cluster"]),
        (KINDS, ["precision", "offload"]), (FRONTIER, ["GPUs"]), (ONE, ["USD/1e9"]),
        ((*MODEL, "--gpus", "16", "--seq", "4096..8192", *PINS), ["seq"]),
        ((*MODEL, "--gpus", "16", "--framework=generic", "--schedule=1f1b,zb-h1", "--objective=memory_headroom"),
         ["schedule", "free", "GiB"]),
        ((*MODEL, "--gpus", "16", "--order", "tp-cp-ep-dp-pp,tp-cp-ep-pp-dp", "--overlap", "tp+dp,none"),
         ["order", "overlap"]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("computed_once")
def test_the_table_has_the_columns_that_differ(arguments, columns):
    done = gpuscale(*arguments)
    names = header(done).split()
    assert names[: len(columns) + 1] == ["#", *columns]
    rows = done.lines[done.lines.index(header(done)) + 2 :]
    assert rows[0].startswith("1 ")


def test_one_row_per_job_and_what_has_no_plan():
    done = gpuscale("plan", "--model", "llama3-70b", "--gpus", "8,16,64", "--tp", "8")
    assert re.search(r"^  compared +3 jobs that differ in GPUs$", done.out, re.MULTILINE)
    assert re.search(r"^  ranked by +gpu_hours$", done.out, re.MULTILINE)
    assert re.search(r"^  no plan +8 GPUs: the smallest layout needs [0-9.]+ of 75.7 GiB$", done.out, re.MULTILINE)
    ranks = re.findall(r"^(\d+)=? +\S+ ", done.out, re.MULTILINE)
    assert ranks == [str(rank + 1) for rank in range(len(ranks))]
    assert 1 <= len(ranks) < 3


# -- plots --


@pytest.mark.usefixtures("computed_once")
def test_the_plot_has_every_plan_of_the_frontier_and_a_legend():
    done, answer = gpuscale(*FRONTIER), body(*FRONTIER)
    start = next(index for index, line in enumerate(done.lines) if line.startswith("GiB") and "over GPU-hours" in line)
    plot, legend = done.lines[start + 1 : start + 1 + ROWS], done.lines[start + ROWS + 3]
    marks = set("".join(line[LABEL:] for line in plot)) - {" "}
    owners = list(dict.fromkeys(plan["variant"] for plan in answer["plans"]))
    letters = "abc"[: len(owners)]
    assert {"a", "b"} <= marks <= set(letters)  # a mark may hide another one
    assert legend == ", ".join(
        f"{letter}: {answer['variants'][owner]['choice']['gpus']} GPUs"
        for letter, owner in zip(letters, owners, strict=True)
    )
    assert plot[0][LABEL:].strip()
    assert plot[-1][LABEL:].strip()


NUMBERS = Axis("y", "{:g}".format)


@pytest.mark.parametrize("width", [40, 60, 100, 300])
def test_a_scatter_plot_puts_points_where_they_belong(width):
    text = scatter(NUMBERS._replace(title="x"), [1.0, 2.0, 3.0], NUMBERS, [10.0, 30.0, 20.0], "abc", width)
    first, *lines = text.splitlines()
    assert first == "y, over x"
    assert len(lines) == ROWS + 2
    assert all(len(line) <= min(width, 100) for line in lines)
    places = {
        mark: (row, line.index(mark, LABEL)) for row, line in enumerate(lines[:ROWS]) for mark in "abc" if mark in line
    }
    assert places["b"][0] == 0
    assert places["a"][0] == ROWS - 1
    assert 0 < places["c"][0] < ROWS - 1
    assert places["a"][1] == LABEL
    assert places["a"][1] < places["b"][1] < places["c"][1] == min(width, 100) - 1
    assert [lines[0].split()[0], lines[ROWS - 1].split()[0]] == ["30", "10"]
    assert lines[-1].split() == ["1", "3"]


def test_far_values_are_drawn_on_a_logarithmic_axis():
    near, cells, _ = scaled([1.0, 2.0, 4.0], 16)
    assert (near, cells) == (False, [0, 5, 15])
    far, cells, levels = scaled([1.0, 10.0, 100.0], 15)
    assert (far, cells, levels[7]) == (True, [0, 7, 14], pytest.approx(10))
    assert scaled([0.0, 100.0], 15)[0] is False
    assert scaled([5.0, 5.0], 15)[1] == [0, 0]
    assert scatter(NUMBERS, [5.0], NUMBERS, [0.0], "*", 80).count("*") == 1


# -- JSON, CSV, files --


@pytest.mark.parametrize("name", ALL)
@pytest.mark.usefixtures("computed_once")
def test_csv_has_what_json_has(name):
    done, answer = gpuscale(*ALL[name], "--csv"), body(*ALL[name])
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert len(rows) == len(answer["plans"])
    for row, plan in zip(rows, answer["plans"], strict=True):
        choice = answer["variants"][plan["variant"]]["choice"]
        assert {key: row[key] for key in choice} == {key: str(value) for key, value in choice.items()}
        for key, value in plan["values"].items():
            assert float(row[key]) == value
        assert float(row["step_time_s"]) == plan["step_time_s"]
    assert len({len(row) for row in rows}) == 1


@pytest.mark.usefixtures("computed_once")
def test_json_of_a_comparison():
    answer = body(*PRICED, "--min-mfu", "50", "--max-memory", "70GiB")
    assert (answer["schema"], answer["objectives"]) == ("gpuscale.plan/1", ["cost"])
    assert answer["constraints"] == {"max_memory": 70.0, "min_mfu": 0.5}
    assert [one["choice"]["gpus"] for one in answer["variants"]] == [8, 16, 24, 32]
    assert (
        answer["gpus"] == answer["variants"][answer["plans"][0]["variant"]]["choice"]["gpus"] == answer["job"]["gpus"]
    )
    assert sum(one["candidates"] for one in answer["variants"]) == answer["search"]["candidates"]
    assert sum(one["feasible"] for one in answer["variants"]) == answer["search"]["feasible"]
    assert "frontier_size" not in answer
    frontier = body(*FRONTIER, "--top", "3")
    assert frontier["frontier_size"] > len(frontier["plans"]) == 3
    assert {len(one["best"]) for one in frontier["variants"]} == {0}


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", ["gpus", "kinds", "frontier"])
@pytest.mark.usefixtures("computed_once")
def test_a_plan_of_any_job_is_saved(name, rank, tmp_path):
    path = tmp_path / "plan.toml"
    plan = body(*ALL[name], "-o", path, "--rank", str(rank))["plans"][rank - 1]
    done = gpuscale("estimate", path, "--json")
    assert (done.code, done.err) == (0, "")
    again = json.loads(done.out)["plan"]
    assert again == {
        **{key: value for key, value in plan.items() if key not in {"variant", "values"}},
        "rank": 1,
        "variants": 1,
    }


def test_estimate_takes_order_split_overlap(tmp_path):
    flags = ["--order", "tp-cp-ep-pp-dp", "--pipeline-split", "even", "--overlap", "dp"]
    done = gpuscale("estimate", "--model", "llama3-8b", "--gpus", "16", "--tp", "2", "--pp", "2", *flags, "--json")
    assert (done.code, done.err) == (0, "")
    job = json.loads(done.out)["job"]
    assert (job["axis_order"], job["pipeline_split"], job["overlap"]) == ("tp-cp-ep-pp-dp", "even", "dp")


def test_same_input_same_bytes():
    for flags in ([], ["--json"], ["--csv"]):
        first, second = (gpuscale(*KINDS, *flags).out for _ in "ab")
        assert first == second


@pytest.mark.parametrize(
    ("speed", "hours", "text"),
    [
        (1.0, 1.0, "is as fast to 0.1%"),
        (1 / 1.0829, 1.0829, "is 7.7% slower"),
        (1 / 1.5, 1.5, "is 33.3% slower"),
        (0.25, 4.0, "is 0.250x as fast"),
        (0.5, 5.4, "is 0.500x as fast and takes 5.40x as many GPU-hours"),
        (0.5, 1.0, "is 0.500x as fast and takes as many GPU-hours"),
    ],
)
def test_a_rival_is_described_without_exponents_and_without_zeros(speed, hours, text):
    best = {"tokens_per_s": 8.0, "gpu_hours_per_1e12_tokens": 2.0}
    rival = {"tokens_per_s": 8.0 * speed, "gpu_hours_per_1e12_tokens": 2.0 * hours}
    assert _against("tokens_per_s", best, VariantRow({"cluster": "b"}, 1, 1, rival, None)) == text


@pytest.mark.parametrize(
    ("arguments", "message", "hint", "code"),
    [
        (["--gpus", "8", "--schedule", "zb-v", "--pp", "1"], "--pp 1: no layout of 8", "zb-v takes a PP above 1", 2),
        (["--gpus", "32..8"], "--gpus: '32..8' is empty", "smaller number first", 2),
        (["--gpus", "8", "--pareto", "speed,memory"], "--pareto: unknown value 'speed'", "choose step_time", 2),
        (["--gpus", "8", "--objective", "cost"], "--objective: cost needs --gpu-hour-price", "2.5", 2),
        (["--gpus", "8", "--max-days", "1"], "--max-days: time_to_train needs --train-tokens", "15T", 2),
        (["--gpus", "8", "--min-mfu", "90"], "meets --min-mfu 90%: the closest, TP", "there is one with --min-mfu", 1),
        (["--gpus", "8,16", "--max-memory", "1GiB"], "meets --max-memory 1GiB: the closest", "--max-memory", 1),
        (["--gpus", "8..2048", "--seq", "1..100000", "--gbs", "1..9999"], "more than 5000 combinations", "fewer", 2),
        (["--gpus", "8", "--schedule", "zb"], "--schedule: unknown value 'zb'", "did you mean", 2),
        (["--gpus", "8", "--gpu-hour-price", "x=2"], "--gpu-hour-price: 'x' is not one of the clusters", "dgx", 2),
        (["--gpus", "8", "--gpu-hour-price", "=2"], "--gpu-hour-price: '=2' is not a price", "CLUSTER=2.5", 2),
        (["--gpus", "8", "--gbs", "0..0"], "--gbs: '0..0' has no value above 0", "1024..4096", 2),
        (["--gpus", "8", "--max-step-time", "1e-310"], "--max-step-time: 1e-310 is out of range", "give 1e-10", 2),
        (["--gpus", "8", "--max-memory", "1e-310"], "--max-memory: 1e-310 is out of range", "give 1e-10 to 10000", 2),
        (["--gpus", "8", "--max-memory", "1B"], "meets --max-memory 9.313e-10GiB: the closest", "--max-memory", 1),
    ],
)  # fmt: skip
def test_bad_questions_are_one_message(arguments, message, hint, code):
    assert_one_message(gpuscale(*MODEL, *arguments), message, hint, code)
