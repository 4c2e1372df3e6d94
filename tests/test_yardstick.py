"""benchmarks/yardstick: how predictions are read and scored. Planners with environments of their own are not asked."""

import ast
import csv
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscale.errors import InputError
from gpuscale.validation.measurements import read_measurements
from gpuscale.validation.scores import score_runs, summarise_runs

ROOT = Path(__file__).parents[1]
YARDSTICK = ROOT / "benchmarks" / "yardstick"
COLUMNS = ("id", "framework", "gpu", "gpus", "gpus_per_node", "model", "precision", "tp", "pp", "cp", "dp", "zero",
           "mbs", "gbs", "seq", "recompute", "lora_rank", "step_s", "mem_gib", "flags")  # fmt: skip
MODULES = ("facts", "scoring", "worker", "adapters")


@pytest.fixture
def yardstick(monkeypatch):
    """Its modules, which are no package."""
    monkeypatch.syspath_prepend(str(YARDSTICK))
    for name in [one for one in sys.modules if one.partition(".")[0] in MODULES]:
        monkeypatch.delitem(sys.modules, name)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES[:3]})
    for name in [one for one in sys.modules if one.partition(".")[0] in MODULES]:
        sys.modules.pop(name)


def row(name, tp=1, step_s="", **changed):
    base = {"id": name, "framework": "megatron-lm", "gpu": "a100-sxm-80gb", "gpus": 8, "gpus_per_node": 8,
            "model": "llama2-7b", "precision": "bf16", "tp": tp, "pp": 1, "cp": 1, "dp": 8 // tp, "zero": 1,
            "mbs": 1, "gbs": 64, "seq": 4096, "recompute": "none", "step_s": step_s}  # fmt: skip
    return base | changed


def written(path, rows, columns=COLUMNS):
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def scores_of(yardstick, tmp_path, rows, **tools):
    """Records of the table by class and planner."""
    found = yardstick.scoring.read_rows([written(tmp_path / "runs.csv", rows)])
    runs = yardstick.scoring.measured(found, yardstick.facts.read_runs(found))
    guesses = {name: {key: yardstick.scoring.Guess(*one) for key, one in some.items()} for name, some in tools.items()}
    records = yardstick.scoring.table(runs, guesses, next(iter(tools)))
    return {(one["class"], one["tool"]): one for one in records}


def run(*arguments):
    command = [sys.executable, str(YARDSTICK), "--tools", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_planner_is_scored_by_what_it_predicts_and_ranked_by_what_it_loses(yardstick, tmp_path):
    rows = [row(f"a-{n}", 2**n, 10, mem_gib=20) for n in range(4)]
    all_of_them = {f"a-{n}": (12.0, 25.0) for n in range(4)}
    one = {"a-0": (10.0, 20.0)}
    found = scores_of(
        yardstick, tmp_path, rows, broad=all_of_them, narrow=one, wild=dict.fromkeys(all_of_them, (90.0,))
    )
    broad, narrow = found["dense", "broad"], found["dense", "narrow"]
    assert broad["off"] == {"step": pytest.approx((0.2, 0.2)), "mem": pytest.approx((0.25, 0.25))}
    assert narrow["off"]["step"] == (0, 0)
    assert narrow["beside"]["step"] == pytest.approx((0.2, 0.2)), "ours on the run that it predicts"
    assert (narrow["step"]["n"], narrow["step"]["predicted"]) == (4, 1)
    assert (broad["rank"], narrow["rank"]) == (1, 2), "three of four are lost"
    assert found["dense", "wild"]["rank"] == 2, "no answer counts as more than a lost run"
    assert (broad["mem_rank"], narrow["mem_rank"]) == (1, 2)


def test_regret_is_what_the_first_choice_loses_to_the_fastest_measured(yardstick, tmp_path):
    rows = [row("a-0", 1, 10), row("a-1", 2, 12), row("a-2", 4, 15), row("a-3", 8, 8)]
    found = scores_of(
        yardstick, tmp_path, rows,
        picks={"a-0": (3.0,), "a-1": (1.0,), "a-2": (2.0,), "a-3": (4.0,)},
        blind=dict.fromkeys(("a-0", "a-1", "a-2", "a-3"), (1.0,)),
        loses={"a-0": (1.0,), "a-1": (2.0,), "a-2": (3.0,)},
    )  # fmt: skip
    regret = {tool: found["dense", tool]["regret"]["median"] for tool in ("picks", "blind", "loses")}
    assert regret == pytest.approx({"picks": 12 / 8 - 1, "blind": 11.25 / 8 - 1, "loses": 10 / 8 - 1})


def test_intervals_and_calls_of_memory_are_counted(yardstick, tmp_path):
    rows = [row("a-0", 1, 10), row("a-1", 2, 10), row("a-2", 4, "", flags="oom"), row("a-3", 8, "", flags="oom")]
    said = {"a-0": (9.0, None, True, 8.0, 11.0), "a-1": (9.0, None, False, 8.0, 9.5), "a-2": (None, None, False)}
    found = scores_of(yardstick, tmp_path, rows, one=said)["all", "one"]
    assert found["interval"]["inside"] == 0.5
    assert found["fits"]["fitting_right"] == 0.5
    assert found["fits"]["out_of_memory_right"] == 0.5, "the lost one is a wrong call"


def test_classes(yardstick, tmp_path):
    rows = [row("a-0", 1, 10), row("b-0", 1, 10, lora_rank=16), row("c-0", 1, 10, model="mixtral-8x7b", gpus=64, dp=64)]
    found = scores_of(yardstick, tmp_path, rows, one={"a-0": (10.0,), "b-0": (11.0,), "c-0": (12.0,)})
    assert [found[kind, "one"]["step"]["predicted"] for kind in ("dense", "fine-tuning", "experts")] == [1, 1, 1]


def test_our_own_figures_are_those_of_validate(yardstick):
    path = ROOT / "tests" / "data" / "published_runs.csv"
    rows = read_measurements(path)[1]
    scored = score_runs(rows)
    guesses = {
        one.id: yardstick.scoring.Guess(
            one.predicted_step_s, one.predicted_mem_gib, one.predicted_fits, one.step_s_low, one.step_s_high
        )
        for one, _ in scored
    }
    runs = yardstick.scoring.measured(rows, yardstick.facts.read_runs(rows))
    pairs = yardstick.scoring.scored(runs, guesses)
    ours, theirs = summarise_runs(scored), summarise_runs(pairs)
    for key in ("balanced", "interval", "fits", "choosing"):
        assert theirs[key] == ours[key]
    assert theirs["memory"]["balanced"] == ours["memory"]["balanced"]


def test_formulas_of_step_time(yardstick):
    """Narayanan et al. 2021, table 1: GPT-3 175B in 1536 sequences on 1024 A100 at 140 TFLOP/s, eq. 3."""
    case = {"id": "x", "class": "dense", "gbs": 1536, "layers": 96, "seq": 2048, "hidden": 12288, "vocab": 51200,
            "gpus": 1024, "peak_flops_per_s": 140e12 / 0.4, "recomputed_layers": 1.0, "active_parameters": 175e9,
            "trained_parameters": 175e9}  # fmt: skip
    (megatron,) = yardstick.worker.answers("megatron_flops", [case])
    flops = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert megatron == {"id": "x", "step_s": pytest.approx(flops / (1024 * 140e12))}
    days = 300e9 / (1536 * 2048) * megatron["step_s"] / 86400
    assert days == pytest.approx(34, rel=0.04), "section 5.1, which leaves out attention scores and logits"
    (plain,) = yardstick.worker.answers("flops_6nd", [case])
    assert plain["step_s"] == pytest.approx(6 * 175e9 * 1536 * 2048 / (1024 * 140e12))


def test_formula_of_memory_is_that_of_the_paper(yardstick):
    """Korthikanti et al. 2022, table 2: with sequence parallelism and selective recomputation 34 s b h / t bytes."""
    case = {"id": "x", "class": "dense", "seq": 2048, "cp": 1, "mbs": 1, "hidden": 12288, "tp": 8, "heads": 96,
            "sp": True, "fused_attention": False, "recomputes_modules": True, "recomputed_layers": 0.0, "pp": 8,
            "vpp": 1, "layers": 96, "microbatches": 64, "vocab": 51200, "zero": 0, "shard": 1,
            "parameters_of_rank": 1e9, "memory_bytes": 80 * 2**30}  # fmt: skip
    (found,) = yardstick.worker.answers("memory_formula", [case])
    assert found["mem_gib"] * 2**30 == pytest.approx(16e9 + 34 * 2048 * 12288 / 8 * 96)
    (refused,) = yardstick.worker.answers("memory_formula", [case | {"class": "experts"}])
    assert refused == {"id": "x", "reason": "its activations are of dense layers, not of experts"}


def test_what_is_no_positive_number_is_no_answer(yardstick, monkeypatch):
    import_module = importlib.import_module
    for value in (0, -1.0, float("nan"), float("inf")):
        fake = SimpleNamespace(predict=lambda _, value=value: {"step_s": value})
        monkeypatch.setattr(importlib, "import_module", lambda name, fake=fake: fake)
        assert list(yardstick.worker.answers("fake", [{"id": "x"}])) == [
            {"id": "x", "reason": "answers with no positive number"}
        ]
    monkeypatch.setattr(importlib, "import_module", import_module)


def test_every_adapter_says_what_it_asks():
    for path in YARDSTICK.glob("adapters/[!_]*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path
        assert [one.name for one in tree.body if isinstance(one, ast.FunctionDef)][-1] == "predict", path


def test_facts_hold_nothing_that_was_measured(yardstick, tmp_path):
    rows = yardstick.scoring.read_rows([written(tmp_path / "runs.csv", [row("a-0", 2, 7.125, mem_gib=33.375)])])
    (known,) = yardstick.facts.read_runs(rows)
    facts = json.dumps(yardstick.facts.facts_of(rows[0], known))
    assert "7.125" not in facts
    assert "33.375" not in facts


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "mine.csv", "is empty"),
        ("name,step_s\na-0,1\n", "mine.csv:1", "not a file of predictions, without id"),
        ("id,step_s\na-0,fast\n", "mine.csv:2", "step_s 'fast' is not a number"),
        ("id,step_s\na-0,-1\n", "mine.csv:2", "step_s '-1' is not above 0"),
        ("id,fits\na-0,maybe\n", "mine.csv:2", "fits 'maybe' is none of yes, no"),
        ("id,step_s\na-0,1\na-0,2\n", "mine.csv:3", "id 'a-0' is given twice"),
        ("id,step_s\na-0,1,2\n", "mine.csv:2", "3 fields, but 2 columns"),
        ("id,step_s_low,step_s_high\na-0,2,1\n", "mine.csv:2", "step_s_low '2' and step_s_high '1' are no interval"),
        ("id,step_s_low,step_s_high\na-0,2,\n", "mine.csv:2", "are no interval"),
        ("id,step_s\nelsewhere,1\n", "mine.csv", "predicts none of the runs"),
    ],
)
def test_predictions_that_cannot_be_used_are_refused_with_their_place(yardstick, tmp_path, text, place, message):
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        yardstick.scoring.read_predictions(path, ["a-0"])
    assert str(caught.value.place).endswith(place)
    assert message in caught.value.message


def test_the_command_ends_with_2_and_one_message(tmp_path):
    runs = written(tmp_path / "runs.csv", [row("a-0", 1, 10)])
    mine = tmp_path / "mine.csv"
    mine.write_text("id,step_s\na-0,fast\n", encoding="utf-8")
    done = run("--runs", str(runs), "--", str(mine))
    assert done.returncode == 2
    assert done.stderr == f"error: {mine}:2: step_s 'fast' is not a number\n"
    assert not done.stdout


def test_a_planner_has_a_name_of_its_own_and_files_are_not_written_over_what_was_read(tmp_path):
    runs = written(tmp_path / "runs.csv", [row("a-0", 1, 10)])
    mine = written(tmp_path / "gpuscale.csv", [{"id": "a-0", "step_s": 11}], ("id", "step_s"))
    done = run("--runs", str(runs), "--", str(mine))
    assert (done.returncode, done.stdout) == (2, "")
    assert "another planner is called gpuscale" in done.stderr
    done = run("--runs", str(runs), "--facts", str(runs))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert runs.read_text(encoding="utf-8").startswith("id,")


def test_the_command_prints_a_table_and_says_what_it_could_not_ask(tmp_path):
    runs = written(tmp_path / "runs.csv", [row("a-0", 1, 10), row("a-1", 2, 12)])
    mine = written(tmp_path / "mine.csv", [{"id": "a-0", "step_s": 11}], ("id", "step_s"))
    done = run("flops_6nd", "llm_analysis", "--environments", str(tmp_path), "--runs", str(runs), "--", str(mine))
    assert done.returncode == 0, done.stderr
    assert f"Not asked: llm_analysis (no environment in {tmp_path}: --install makes it)." in done.stdout
    assert "| mine | 1 | 1 | 10 % | 10 % |" in done.stdout
    assert "| flops_6nd | 2 | 0 |" in done.stdout
