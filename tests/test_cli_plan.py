"""`gpuscale plan` at the terminal: good input and bad, tables, JSON, CSV, plan files."""

import csv
import io
import json
import re

import pytest
from command import assert_one_message, gpuscale

from gpuscale.presets.files import find_preset
from gpuscale.render.plan_texts import first_choices_text
from gpuscale.uncertainty import FIRST_CHOICES

pytestmark = pytest.mark.usefixtures("computed_once")

SMALL = ("plan", "--model", "llama3-8b", "--gpus", "16")
LARGE = ("plan", "--model", "llama3-70b", "--gpus", "640")
EXPERTS = ("plan", "--model", "deepseek-v3", "--gpus", "2048", "--pp", "16", "--tp", "1,2", "--cp", "1")
CONTRACT = [
    "rank", "tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "micro_batch_size", "global_batch_size",
    "num_microbatches", "recompute", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu",
    "memory_gib", "memory_limit_gib", "bound_by", "sharding", "shard_size", "flop_convention",
]  # fmt: skip


def body(*arguments):
    done = gpuscale(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@pytest.mark.parametrize(("arguments", "most"), [(LARGE, 28), (EXPERTS, 37)], ids=["dense", "experts"])
def test_main_job_prints_a_verdict_a_table_and_the_tally(arguments, most):
    done = gpuscale(*arguments)
    assert (done.code, done.err) == (0, "")
    first, *_ = done.lines
    assert re.match(rf"{arguments[2]} on [0-9,]+ GPUs: TP\d+.* DP\d+ .*s/step of [\d.]+M tokens, MFU \d+\.\d%", first)
    assert all(len(line) <= 100 for line in done.lines)
    assert not any(line.endswith(" ") for line in done.lines if "─" not in line)
    header = next(index for index, line in enumerate(done.lines) if line.startswith("#"))
    ranks = [line.split()[0] for line in done.lines[header + 2 : header + 12]]
    assert [rank.rstrip("=") for rank in ranks] == [str(rank) for rank in range(1, 11)]
    for name in ("TP", "PP", "DP", "mb", "recompute", "s/step", "MFU%", "GiB", "bound by %", "comm%"):
        assert name in done.lines[header]
    assert re.search(r"^  searched +[0-9,]+ layouts: [0-9,]+ evaluated, [0-9,]+ fit", done.out, flags=re.MULTILINE)
    assert len(done.lines) <= most
    similar = r"by [0-9]+ similar measured runs?;|no similar measured run"
    assert re.search(rf"^  evidence +80 % within .*, ({similar})", done.out, flags=re.MULTILINE)
    assert re.search(r"^  measured +\S+, [0-9,]+ .* tokens/s/GPU,\n", done.out, flags=re.MULTILINE)
    told = gpuscale(*arguments, "--verbose")
    assert re.search(r"^  rejected  +[0-9,]+ [a-z_]+,", told.out, flags=re.MULTILINE)
    assert told.lines[: header + 12] == done.lines[: header + 12]


def test_what_no_run_has_is_said():
    text = " ".join(gpuscale("plan", "--model", "llama3-8b", "--gpus", "4096", "--top", "1").out.split())
    assert re.search("; NO measured run has (a dense model with ZeRO-[23]|.*) ?o?r? ?more than 2,048 GPUs", text)
    assert "NO measured run" not in gpuscale(*LARGE).out


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
@pytest.mark.parametrize("arguments", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_output_fits_the_terminal(arguments, columns):
    done = gpuscale(*arguments, "--why", "tp=2", columns=columns)
    header = next(index for index, line in enumerate(done.lines) if line.startswith("#"))
    assert all(len(line) <= columns for line in done.lines[header:])
    assert all(len(line) <= max(columns, 80) for line in done.lines)
    assert "MFU%" in done.lines[header]


def test_what_was_chosen_by_default_is_printed():
    done = gpuscale(*LARGE, "--verbose")
    for text in (
        "1280 sequences, 5 Mi tokens (default",
        "4096 tokens (default",
        "bf16 (default)",
        "dgx-h100-superpod (default)",
    ):
        assert text in done.out
    assert "attention causal" in " ".join(done.out.split())
    assert first_choices_text(FIRST_CHOICES) in " ".join(done.out.split())
    given = gpuscale(
        *LARGE, "--gbs", "640", "--seq", "8192", "--precision", "bf16", "--cluster", "dgx-h100-superpod", "-v"
    )
    assert not re.search(r"^  (sequence|global batch|precision|cluster) .*default", given.out, flags=re.MULTILINE)


def test_json_has_the_keys_of_the_contract():
    answer = body(*LARGE)
    assert answer["schema"] == "gpuscale.plan/1"
    assert {"model", "cluster", "gpus", "plans", "search"} <= set(answer)
    assert (answer["model"], answer["gpus"], len(answer["plans"])) == ("llama3-70b", 640, 10)
    for rank, plan in enumerate(answer["plans"], 1):
        assert set(CONTRACT) <= set(plan)
        assert plan["rank"] == rank
        assert plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"] == 640
        assert plan["num_microbatches"] * plan["micro_batch_size"] * plan["dp"] == plan["global_batch_size"] == 1280
        assert 0 < plan["memory_gib"] <= plan["memory_limit_gib"]
        assert plan["tokens_per_s"] == pytest.approx(1280 * 4096 / plan["step_time_s"])
    steps = [plan["step_time_s"] for plan in answer["plans"]]
    early = [step for at, step in enumerate(steps[:-1]) if step > min(steps[at + 1 :])]  # before faster ones
    assert steps[len(early) :] == sorted(steps[len(early) :])
    assert all(step < answer["choice"]["fastest"]["step_time_s"] * 1.03 for step in early)
    search = answer["search"]
    assert search["candidates"] >= search["feasible"] > 0
    assert search["generated"] == search["feasible"] + sum(search["rejected"].values())


def test_csv_has_one_line_per_plan():
    done = gpuscale(*SMALL, "--csv", "--top", "7")
    assert (done.code, done.err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    plans = body(*SMALL, "--top", "7")["plans"]
    assert list(rows[0]) == list(plans[0])
    assert [float(row["step_time_s"]) for row in rows] == [plan["step_time_s"] for plan in plans]
    assert len(done.lines) == 1 + len(plans)


def test_same_input_same_bytes(monkeypatch):
    monkeypatch.undo()  # each time anew
    for flags in ([], ["--json"], ["--csv"]):
        first, second = gpuscale(*SMALL, *flags), gpuscale(*SMALL, *flags)
        assert first == second
        assert first.code == 0


def test_how_long_the_search_took_is_printed_on_demand():
    assert "elapsed_s" not in body(*SMALL)["search"]
    assert body(*SMALL, "--timing")["search"]["elapsed_s"] > 0
    searched = re.compile(r"^  searched .*; [0-9.]+ s$", re.MULTILINE)
    assert searched.search(gpuscale(*SMALL, "--timing").out)
    assert not searched.search(gpuscale(*SMALL).out)


@pytest.mark.parametrize(
    ("flags", "holds"),
    [
        (["--tp", "8"], lambda plan: plan["tp"] == 8),
        (["--pp", "2..4"], lambda plan: 2 <= plan["pp"] <= 4),
        (["--dp", "!16"], lambda plan: plan["dp"] != 16),
        (["--cp", "1,2", "--zero", "1"], lambda plan: plan["cp"] in {1, 2} and plan["zero"] == 1),
        (["--sp", "off", "--tp", "2.."], lambda plan: not plan["sp"] and plan["tp"] > 1),
        (
            ["--mbs", "2", "--recompute", "full"],
            lambda plan: plan["micro_batch_size"] == 2 and ":" in plan["recompute"],
        ),
        (["--recompute", "none,selective:mlp"], lambda plan: plan["recompute"] in {"none", "selective:mlp"}),
        (["--gbs", "64", "--seq", "8192"], lambda plan: (plan["global_batch_size"], plan["sequence"]) == (64, 8192)),
    ],
)
def test_pins_hold_for_every_plan(flags, holds):
    plans = body(*SMALL, *flags)["plans"]
    assert plans
    assert all(holds(plan) for plan in plans)


def test_objective_memory_prefers_the_least():
    least, fastest = (body(*SMALL, "--objective", name)["plans"] for name in ("memory", "step_time"))
    assert least[0]["memory_gib"] == min(plan["memory_gib"] for plan in least)
    assert least[0]["memory_gib"] < fastest[0]["memory_gib"]


def test_all_ranks_variants_one_by_one():
    folded, unfolded = body(*SMALL, "--top", "50")["plans"], body(*SMALL, "--top", "50", "--all")["plans"]
    degrees = [tuple(plan[name] for name in ("tp", "pp", "cp", "ep", "etp")) for plan in folded]
    families = [(*one, p["zero"] == 3, "full" in p["recompute"]) for one, p in zip(degrees, folded, strict=True)]
    assert len(set(families)) == len(families)
    assert all(plan["variants"] == 1 for plan in unfolded)
    assert unfolded[0] == {**folded[0], "variants": 1}
    assert len(unfolded) == 50


@pytest.mark.parametrize(
    ("arguments", "rank"),
    [(LARGE, 1), (LARGE, 3), (SMALL, 12), (EXPERTS, 2)],
    ids=["first", "third", "12th", "experts"],
)
def test_a_saved_plan_is_estimated_to_the_last_digit(arguments, rank, tmp_path):
    path = tmp_path / "plan.toml"
    plans = body(*arguments, "--top", "12", "-o", path, "--rank", str(rank))["plans"]
    done = gpuscale("estimate", path, "--json")
    assert (done.code, done.err) == (0, "")
    again = json.loads(done.out)["plan"]
    assert again == {**plans[rank - 1], "rank": 1, "variants": 1}
    assert repr(again["step_time_s"]) == repr(plans[rank - 1]["step_time_s"])


def test_saved_options_come_back(tmp_path):
    path = tmp_path / "plan.toml"
    flags = ["--cluster", "b200-hgx", "--precision", "fp8", "--seq", "8192", "--gbs", "128", "--grad-dtype", "bf16"]
    flags += ["--optimizer", "muon", "--memory-limit", "150", "--vocab-multiple", "64"]
    plan = body(*SMALL, *flags, "-o", path)["plans"][0]
    again = json.loads(gpuscale("estimate", path, "--json").out)
    assert again["plan"] == {**plan, "rank": 1, "variants": 1}
    assert "16-bit weights, bf16 gradients" in again["assumptions"]["optimizer"]


def test_a_model_file_in_a_plan_is_found_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "plans").mkdir()
    (tmp_path / "models" / "mine.toml").write_text(find_preset("models", "llama3-8b").read_text())
    monkeypatch.chdir(tmp_path)
    plan = body("plan", "--model", "models/mine.toml", "--gpus", "8", "-o", "plans/p.toml")["plans"][0]
    for folder, path in ((tmp_path, "plans/p.toml"), (tmp_path / "plans", "p.toml"), ("/", tmp_path / "plans/p.toml")):
        monkeypatch.chdir(folder)
        done = gpuscale("estimate", path, "--json")
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)["plan"]["step_time_s"] == plan["step_time_s"]


def test_why_accounts_for_a_ranked_layout():
    why = body(*LARGE, "--why", "tp=8,pp=4,dp=20")["why"]
    assert (why["status"], why["plan"]["tp"], why["plan"]["pp"]) == ("ranked", 8, 4)
    assert why["rank"] >= 1
    assert why["rank_of_all"] >= why["rank"]
    assert why["slower_than_best"] >= 0
    done = gpuscale(*LARGE, "--why", "tp=8,pp=4,dp=20")
    assert re.search(r"^tp=8,pp=4,dp=20: #[0-9,]+; by step time alone [0-9,]+ of \d", done.out, flags=re.MULTILINE)
    assert re.search(r"^  against #1 ", done.out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("layout", "code", "text"),
    [
        ("tp=3", "degrees_do_not_multiply", "640 GPUs"),
        ("tp=5", "heads_not_divisible", "TP must divide the attention heads"),
        ("tp=8,pp=4,zero=3", "zero_with_pp", "ZeRO-2 and 3"),
    ],
)
def test_why_names_the_rule_that_forbids_a_layout(layout, code, text):
    done = gpuscale(*LARGE, "--why", layout)
    assert (done.code, done.err) == (0, "")
    assert f"{layout}: cannot run" in done.out
    assert re.search(rf"^  {code} .*{text}", done.out, flags=re.MULTILINE)
    why = body(*LARGE, "--why", layout)["why"]
    assert (why["status"], why["plan"], list(why["reasons"])) == ("illegal", None, [code])


def test_why_says_how_much_too_big_a_layout_is():
    done = gpuscale(*LARGE, "--why", "tp=1,pp=1,cp=1,zero=1")
    assert re.search(r"does not fit: its smallest variant is [0-9.]+ GiB over the limit", done.out)
    assert "smallest variant  TP1 PP1" in done.out
    assert body(*LARGE, "--why", "tp=1,pp=1,cp=1,zero=1")["why"]["status"] == "out_of_memory"


def test_nothing_fits_names_the_nearest_miss_and_a_way_out():
    done = gpuscale("plan", "--model", "llama3-70b", "--gpus", "8")
    assert_one_message(done, "the nearest miss, TP", "it would fit with ", code=1)
    assert re.search(r"needs [0-9.]+ GiB of 7[0-9.]+ GiB", done.err)
    offload, tune, enough = re.search(r"would fit with (--\S+ \S+), or (--tune \S+), or (\d+) GPUs", done.err).groups()
    for change in (offload, tune):
        assert gpuscale("plan", "--model", "llama3-70b", "--gpus", "8", *change.split()).code == 0
    assert gpuscale("plan", "--model", "llama3-70b", "--gpus", enough).code == 0


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--model", "lama3-70b", "--gpus", "8"], "unknown model 'lama3-70b'", "did you mean llama3-70b"),
        (["--model", "llama3-8b", "--gpus", "8", "--cluster", "dgx-h101"], "unknown cluster", "dgx-h100"),
        (["--model", "llama3-8b", "--gpus", "0"], "--gpus: 0 is out of range", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", "-1"], "--gpus: -1 is out of range", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", str(10**9)], "--gpus: 1000000000 is out of range", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", "16", "--cluster", "box-l40s"], "box-l40s has 8 GPUs", "at most 8"),
        (["--model", "llama3-8b", "--gpus", "8", "--tp", "8x"], "--tp: '8x' is not a set of values", "4..8"),
        (["--model", "llama3-8b", "--gpus", "8", "--tp", "8..4"], "--tp: '8..4' allows nothing", "values go from"),
        (["--model", "llama3-8b", "--gpus", "8", "--tp", "9" * 40], "--tp: '9999", "4..8"),
        (
            ["--model", "llama3-8b", "--gpus", "224", "--tp", "8", "--pp", "4", "--dp", "6"],
            "224 GPUs cannot be split by DP 6",
            "--dp may be 1 or 7",
        ),
        (
            ["--model", "llama3-8b", "--gpus", "64", "--tp", "8", "--pp", "4", "--dp", "7"],
            "64 GPUs cannot be split by DP 7",
            "1 or 2",
        ),
        (
            ["--model", "llama3-8b", "--gpus", "16", "--zero", "3", "--pp", "2"],
            "ZeRO-2 and 3 do not",
            "--zero may be 0 or 1",
        ),
        (["--model", "llama3-8b", "--gpus", "8", "--recompute", "half"], "'half' is not a way", "full:10"),
        (["--model", "llama3-8b", "--gpus", "8", "--recompute", "selective:mpl"], "module 'mpl'", "did you mean mlp"),
        (["--model", "llama3-8b", "--gpus", "8", "--objective", "speed"], "--objective: unknown", "choose step_time"),
        (["--model", "llama3-8b", "--gpus", "8", "--precision", "fp12"], "--precision: unknown", "choose bf16"),
        (["--model", "llama3-8b", "--gpus", "8", "--precision", "fp4"], "fp4", "bf16"),
        (["--model", "llama3-8b", "--gpus", "8", "--seq", "0"], "--seq: 0 is out of range", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", "8", "--gbs", "-8"], "--gbs: -8 is out of range", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", "8", "--memory-limit", "nan"], "--memory-limit: nan", "to 10000"),
        (["--model", "llama3-8b", "--gpus", "8", "--moe-imbalance", "0.5"], "--moe-imbalance", "give 1"),
        (["--model", "llama3-8b", "--gpus", "8", "--top", "0"], "--top: 0 is out of range", "give 1 to"),
        (["--model", "llama3-8b", "--gpus", "8", "--why", "tp"], "--why: 'tp' is not name=value", "tp=4,pp=8"),
        (["--model", "llama3-8b", "--gpus", "8", "--why", "tq=4"], "--why: unknown name 'tq'", "did you mean tp"),
        (["--model", "llama3-8b", "--gpus", "8", "--why", "tp=x"], "'x' is not a set of values", "4..8"),
        (["--gpus", "8"], "missing option --model", "gpuscale plan --help"),
        (["--model", "llama3-8b", "--gpus", "eight"], "--gpus: 'eight' is not a whole number", "256..1024"),
        (["--model", "llama3-8b", "--gpus", "8", "--top", "x"], "--top: 'x' is not a whole", "gpuscale plan --help"),
        (["--model", "llama3-8b", "--gpus", "8", "--topp", "3"], "no such option: --topp", "gpuscale plan --help"),
    ],
)
def test_bad_input_is_one_message(arguments, message, hint):
    assert_one_message(gpuscale("plan", *arguments), message, hint)


def test_a_plan_that_cannot_be_saved_is_one_message(tmp_path):
    assert_one_message(gpuscale(*SMALL, "-o", tmp_path / "none" / "p.toml"), "cannot write", "a folder that exists")
    done = gpuscale(*SMALL, "-o", tmp_path / "p.toml", "--rank", "1999")
    assert_one_message(done, "--rank: there is no rank 1999", "plans")
    assert list(tmp_path.iterdir()) == []


def test_the_stages_that_megatron_has_to_be_told_are_printed():
    arguments = ("plan", "--model", "deepseek-v3", "--gpus", "1024", "--cluster", "b200-hgx", "--pp", "16")
    arguments = (*arguments, "--vpp", "1", "--ep", "8", "--top", "2")
    text = "Et*4|(t*4|)*14,tmL (--pipeline-model-parallel-layout of Megatron-LM)"
    assert re.search(rf"\n  pipeline +{re.escape(text)}\n", gpuscale(*arguments).out)
    assert re.search(r"\n  pipeline #2 +Et\*4\|", gpuscale(*arguments, "--verbose").out)
    assert ", pipeline Et*4|(t*4|)*14,tmL\n" in gpuscale(*arguments, "--why", "pp=16").out
    other = gpuscale(*arguments, "--framework", "generic", "--json")
    assert {one["pipeline_layout"] for one in json.loads(other.out)["plans"]} == {None}
