"""`gpuscale check`: rules, limits, drift and foot-guns, and the formats in which they are said."""

import json
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import tomli_w
from command import assert_one_message, gpuscale

from gpuscale.errors import InputError
from gpuscale.launch.check import CheckResult, Finding, check
from gpuscale.launch.remarks import FOOTGUNS, NOTE_FROM, WARNING_FROM
from gpuscale.launch.subject import estimate_file
from gpuscale.planning.plans import estimate, plan, save_plan
from gpuscale.render.launch import github, junit, sarif
from gpuscale.rules.check import ALL_RULES

GOOD = {"model": "llama3-70b", "gpus": 640, "layout": {"tp": 8, "pp": 4, "vpp": 5}}
"""A job that there is nothing to say against."""


def found(result):
    return {one.rule: one for one in result.findings}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    save_plan(path, plan("llama3-8b", 64), 1)
    return path


# -- limits --


def test_a_good_job_passes_without_a_word():
    result = check(**GOOD)
    assert result.ok
    assert [one for one in result.findings if one.severity != "note"] == []


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        ({"max_memory": "20%"}, "max_memory"), ({"max_memory": "15GiB"}, "max_memory"),
        ({"max_memory": 15}, "max_memory"), ({"min_mfu": "60%"}, "min_mfu"), ({"min_mfu": 60}, "min_mfu"),
        ({"max_step_time": "6s"}, "max_step_time"), ({"max_step_time": "600ms"}, "max_step_time"),
        ({"max_step_time": 6}, "max_step_time"),
    ],
)  # fmt: skip
def test_every_limit_is_held_and_breaks(limits, rule):
    result = check(**GOOD, **limits)
    assert not result.ok
    assert [one.rule for one in result.findings if one.severity == "error"] == [rule]


def test_limits_that_are_met_say_nothing():
    plan_row = estimate("llama3-70b", 640, GOOD["layout"]).plan
    limits = {
        "max_memory": f"{plan_row.memory_gib + 0.1:.3f}GiB",
        "min_mfu": f"{plan_row.mfu * 100 - 0.1:.3f}%",
        "max_step_time": f"{plan_row.step_time_s + 0.01:.3f}s",
    }
    assert check(**GOOD, **limits).ok


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"max_memory": "much"}, "max_memory"), ({"max_memory": "-3"}, "max_memory"),
        ({"max_memory": "0%"}, "max_memory"), ({"max_memory": "101%"}, "max_memory"),
        ({"max_memory": "nan"}, "max_memory"), ({"min_mfu": "good"}, "min_mfu"),
        ({"min_mfu": 0.6}, "min_mfu"),
        ({"max_step_time": "0"}, "max_step_time"), ({"max_step_time": "3 days"}, "max_step_time"),
        ({"max_regression": "5%"}, "max_regression"),
    ],
)  # fmt: skip
def test_limits_that_are_none_are_refused(limits, field):
    with pytest.raises(InputError) as caught:
        check(**GOOD, **limits)
    assert caught.value.field == field


def test_a_share_of_the_memory_has_its_limit_in_the_hint():
    with pytest.raises(InputError, match="150% is out of range") as caught:
        check(**GOOD, max_memory="150%")
    assert caught.value.hint == "give 1 to 100 %"


# -- rules of the framework --


def test_every_rule_names_options_that_it_speaks_of():
    assert [rule.code for rule in ALL_RULES if not rule.options] == []


def test_an_illegal_layout_names_every_broken_rule_and_what_is_legal_next_to_it():
    result = check(model="llama3-8b", gpus=48, gbs=96, layout={"tp": 3, "vpp": 2})
    rules = found(result)
    assert not result.ok
    assert {"heads_not_divisible", "kv_heads_not_divisible", "hidden_not_divisible", "vpp_without_pp"} <= set(rules)
    assert "tp 3, heads 32; legal next to it: tp 2 or 4" in rules["heads_not_divisible"].message
    assert "vpp 1" in rules["vpp_without_pp"].message


@pytest.mark.parametrize(
    ("job", "layout", "rule", "legal"),
    [
        ({"gbs": 1010}, {"tp": 8, "pp": 4}, "batch_not_divisible_by_dp", "gbs 1000 or 1020"),
        ({"gbs": 1280, "seq": 4100}, {"tp": 8, "pp": 4, "cp": 4}, "sequence_not_divisible_by_cp", "to it: cp 2"),
        ({}, {"tp": 8, "pp": 4, "zero": 3}, "zero_with_pp", "zero 0 or 1"),
        ({}, {"tp": 8, "pp": 4, "recompute": "full:40"}, "recompute_layers_too_many", "recompute full"),
        ({"framework": "megatron-lm@2023-06"}, {"tp": 8, "pp": 3}, "uneven_stages", "pp 2 or 4"),
    ],
)  # fmt: skip
def test_what_is_legal_next_to_a_layout_is(job, layout, rule, legal):
    one = found(check(model="llama3-70b", gpus=960 if layout.get("pp") == 3 else 640, layout=layout, **job))[rule]
    assert one.severity == "error"
    assert legal in one.message


def test_uneven_stages_are_said_in_the_frameworks_words():
    result = check(
        model="deepseek-v2-lite", gpus=32, framework="megatron-lm@2024-09", layout={"pp": 4, "ep": 8, "etp": 1}
    )
    text = " ".join(one.message for one in result.findings)
    assert "num_layers 27 is not divisible by pp" in text


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": "dgx-a100-superpod", "precision": "fp8-current"},
        {"overlap": "ep"},
        {"sharp": "on", "cluster": "aws-p5"},
    ],
)
def test_options_that_contradict_each_other_are_a_finding(options):
    result = check(**GOOD, **options)
    assert not result.ok
    assert [one.rule for one in result.findings] == ["contradiction"]


# -- memory --


def test_what_does_not_fit_is_an_error_with_what_would():
    one = found(check(model="llama3-70b", gpus=64, gbs=512, layout={"tp": 1, "pp": 1}))["out_of_memory"]
    assert one.severity == "error"
    assert re.search(r"of 79\.6 GiB at stage 0; with .* it takes", one.message)


def test_what_only_just_fits_is_a_warning():
    layout = {"tp": 4, "pp": 4, "vpp": 10, "micro_batch_size": 2}
    needs = estimate("llama3-70b", 640, layout).plan.memory_gib
    result = check(model="llama3-70b", gpus=640, layout=layout, memory_limit_gib=needs * 1.02)
    assert result.ok
    assert found(result)["tight_memory"].severity == "warning"


# -- foot-guns --

PLANTED = {
    "tp_across_nodes": ({}, {"tp": 16, "pp": 2}),
    "zero3_with_pp": ({"framework": "torchtitan", "gbs": 1280}, {"tp": 8, "pp": 4, "zero": 3}),
    "few_microbatches": ({"gbs": 40}, {"tp": 8, "pp": 4}),
    "long_bubble": ({"gbs": 120}, {"tp": 8, "pp": 4}),
    "needless_recompute": ({}, {"tp": 8, "pp": 4, "vpp": 5, "recompute": "full"}),
    "unpadded_vocabulary": ({"vocab_multiple": 1}, {"tp": 8, "pp": 4, "vpp": 5}),
    "tp_without_sp": ({}, {"tp": 8, "pp": 4, "vpp": 5, "sp": False}),
    "dp_overlap_off": ({"overlap": "tp"}, {"tp": 8, "pp": 4, "vpp": 5}),
    "tp_overlap_off": ({"overlap": "dp"}, {"tp": 8, "pp": 4, "vpp": 5}),
    "replicated_optimizer": ({}, {"tp": 8, "pp": 4, "vpp": 5, "zero": 0}),
    "nvls_off": ({"nvls": "off", "overlap": "dp"}, {"tp": 8, "pp": 4, "vpp": 5, "sp": False}),
    "ep_over_slow_links": ({"model": "mixtral-8x7b", "gpus": 64, "gbs": 1024}, {"tp": 4, "ep": 8, "etp": 4}),
    "fp32_gradients": ({"gbs": 640, "overlap": "tp"}, {"tp": 8, "pp": 1, "zero": 1}),
}


def test_every_foot_gun_is_planted_once():
    assert set(PLANTED) == {one.code for one in FOOTGUNS}


def test_every_foot_gun_has_a_row_of_the_page():
    page = (Path(__file__).parents[1] / "docs" / "check.md").read_text()
    for one in FOOTGUNS:
        assert f"| `{one.code}` | {one.text}" in page
    assert f"{WARNING_FROM:.0%} of the step" in page
    assert f"{NOTE_FROM:.1%}" in page


@pytest.mark.parametrize("rule", PLANTED)
def test_every_foot_gun_is_found_and_priced(rule):
    job, layout = PLANTED[rule]
    job = {"model": "llama3-70b", "gpus": 640, **job}
    result = check(**job, layout=layout)
    one = found(result)[rule]
    assert one.severity in {"warning", "note"}
    assert one.cost_s >= 0
    assert result.ok or result.estimate.plan.fit == "no"


def test_the_price_is_the_step_time_over_that_without_it():
    layout = {"tp": 8, "pp": 4, "vpp": 5}
    plain, recomputed = (estimate("llama3-70b", 640, {**layout, **more}) for more in ({}, {"recompute": "full"}))
    one = found(check(model="llama3-70b", gpus=640, layout={**layout, "recompute": "full"}))["needless_recompute"]
    assert one.cost_s == recomputed.plan.step_time_s - plain.plan.step_time_s
    assert "with recompute none" in one.message


def test_recomputation_that_memory_needs_is_no_foot_gun():
    layout = {"tp": 4, "pp": 2, "recompute": "full"}
    job = {"model": "llama3-70b", "gpus": 64, "gbs": 512, "seq": 8192}
    needs = estimate(layout=layout, **job).plan.memory_gib
    result = check(layout=layout, memory_limit_gib=needs * 1.1, **job)
    assert "needless_recompute" not in found(result)


@pytest.mark.parametrize(
    ("model", "gpus"), [("llama3-8b", 64), ("llama3-70b", 640), ("mixtral-8x7b", 64), ("gpt3-175b", 1024)]
)
@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan"])
def test_the_best_plans_raise_no_alarm(model, gpus, framework, tmp_path):
    path = tmp_path / "plan.toml"
    save_plan(path, plan(model, gpus, framework=framework), 1)
    result = check(path)
    assert result.ok
    assert [one for one in result.findings if one.severity != "note"] == []


# -- plan files --


def test_a_plan_file_keeps_what_was_predicted(saved):
    table = tomllib.loads(saved.read_text())["predicted"]
    row = estimate_file(saved).plan
    assert table["gpuscale"] == "0.1.0"
    assert {name: getattr(row, name) for name in table if name != "gpuscale"} == {
        name: value for name, value in table.items() if name != "gpuscale"
    }


def changed(path, tmp_path, **predicted):
    data = tomllib.loads(path.read_text())
    data["predicted"] |= predicted
    other = tmp_path / "other.toml"
    other.write_text(tomli_w.dumps(data))
    return other


def test_a_plan_is_its_own_baseline(saved):
    assert check(baseline=saved).findings == ()
    assert check(saved, baseline=saved, max_regression="0%").ok


def test_a_drift_of_the_prediction_breaks_the_gate(saved, tmp_path):
    now = tomllib.loads(saved.read_text())["predicted"]
    faster = {"step_time_s": now["step_time_s"] / 1.1, "tokens_per_s_per_gpu": now["tokens_per_s_per_gpu"] * 1.1}
    before = changed(saved, tmp_path, **faster, gpuscale="0.0.9")
    result = check(baseline=before)
    assert [one.rule for one in result.findings] == ["time_regression"]
    assert "(gpuscale 0.0.9): +10.0% time per token, at most +5.0%" in result.findings[0].message
    assert check(baseline=before, max_regression="11%").ok
    assert [one.rule for one in check(before).findings] == ["drift"]
    smaller = changed(saved, tmp_path, memory_gib=now["memory_gib"] / 2)
    assert [one.rule for one in check(baseline=smaller).findings] == ["memory_regression"]


def test_a_changed_job_is_held_against_its_plan(saved):
    row = estimate_file(saved).plan
    result = check(saved, baseline=saved, layout={"recompute": "full"})
    if row.recompute.startswith("full"):
        pytest.skip("the best plan recomputes")
    assert "time_regression" in found(result)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("step_time_s = ", "step_time_s = -", "step_time_s"), ("mfu = ", "mfu = inf # ", "mfu"),
        ("memory_gib = ", "# ", "predicted"), ("[predicted]", "[[predicted]]", "is not a table"),
    ],
)  # fmt: skip
def test_a_baseline_that_says_nothing_usable_is_refused_and_estimated_all_the_same(saved, tmp_path, old, new, line):
    path = tmp_path / "plan.toml"
    path.write_text(saved.read_text().replace(old, new))
    with pytest.raises(InputError) as caught:
        check(baseline=path)
    assert "plan.toml" in caught.value.place
    assert line in str(caught.value)
    assert estimate_file(path) == estimate_file(saved)


def test_a_plan_file_of_before_has_no_prediction(saved, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(saved.read_text().partition("[predicted]")[0])
    assert check(path).ok
    assert_one_message(gpuscale("check", "--baseline", path), "has no table 'predicted'", "gpuscale plan -o FILE")


def test_findings_stand_where_the_file_says_so(saved, tmp_path):
    path = tmp_path / "plan.toml"
    text = re.sub(r"^zero = \d", "zero = 0", saved.read_text(), flags=re.MULTILINE)
    path.write_text(re.sub(r"^shard = \d+", "shard = 1", text, flags=re.MULTILINE))
    one = found(check(path))["replicated_optimizer"]
    assert (one.file, path.read_text().splitlines()[one.line - 1]) == (str(path), "zero = 0")


# -- the command --


def test_the_command_says_the_verdict_first_and_ends_by_it():
    good = gpuscale("check", "-m", "llama3-70b", "-n", "640", "--tp", "8", "--pp", "4", "--vpp", "5")
    assert (good.code, good.err) == (0, "")
    assert good.lines[0].startswith("OK: ")
    bad = gpuscale("check", "-m", "llama3-70b", "-n", "640", "--tp", "16", "--pp", "4", "--max-step-time", "7s")
    assert bad.code == 1
    assert bad.lines[0].startswith("FAILS: 1 error, ")
    assert bad.err == "error: the job fails the check: max_step_time\n"
    assert all(len(line) <= 100 for line in bad.lines)


def test_json_has_the_keys_of_its_contract():
    done = gpuscale("check", "-m", "llama3-70b", "-n", "640", "--tp", "16", "--min-mfu", "60%", "--json")
    document = json.loads(done.out)
    assert list(document) == ["schema", "ok", "findings"]
    assert (document["schema"], document["ok"], done.code) == ("gpuscale.check/1", False, 1)
    assert all(
        list(one) == ["rule", "severity", "message", "file", "line", "cost_s", "legal"] for one in document["findings"]
    )
    assert (
        done.out
        == gpuscale("check", "-m", "llama3-70b", "-n", "640", "--tp", "16", "--min-mfu", "60%", "--format", "json").out
    )


def test_what_cannot_be_read_is_exit_2(tmp_path):
    (tmp_path / "plan.toml").write_text("[job\n")
    assert_one_message(gpuscale("check", tmp_path / "plan.toml"), "not valid TOML", "")
    assert_one_message(gpuscale("check", tmp_path / "none.toml"), "no such file", "")
    assert_one_message(gpuscale("check"), "--model is missing", "--from PATH")
    assert_one_message(gpuscale("check", "-m", "nothing", "-n", "8"), "unknown model", "")
    assert_one_message(gpuscale("check", "-m", "llama3-8b", "-n", "8", "--tp", "3", "--dp", "3"), "TP 3", "2, 4 or 8")
    assert_one_message(
        gpuscale("check", "-m", "llama3-8b", "-n", "8", "--json", "--format", "sarif"), "two formats", ""
    )
    assert_one_message(gpuscale("check", "-m", "llama3-8b", "-n", "8", "--format", "html"), "unknown value", "sarif")


NASTY = Finding(
    "rule", "error", 'a < b & "c" 100%\r\n]]> ::error::x', "dir, with: 100% <odd>/läuft.sh", 7, 0.25
)  # fmt: skip
PLAIN = Finding("other", "note", "no place")
RESULT = CheckResult(False, (NASTY, Finding("warned", "warning", "w", "/abs/a b.sh", None), PLAIN))


def test_workflow_commands_are_escaped():
    first, second, third = github(RESULT).splitlines()
    assert first == (
        "::error file=dir%2C with%3A 100%25 <odd>/läuft.sh,line=7,title=gpuscale rule::"
        'a < b & "c" 100%25%0D%0A]]> ::error::x'
    )
    assert second == "::warning file=/abs/a b.sh,title=gpuscale warned::w"
    assert third == "::notice title=gpuscale other::no place"


def test_junit_is_xml_with_a_failure_for_each_error():
    suite = ET.fromstring(junit(RESULT)).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    failure = suite.find("testcase/failure")
    assert failure.get("type") == "rule"
    assert failure.text.startswith("dir, with: 100% <odd>/läuft.sh:7: a < b")
    assert [one.find("system-out").text for one in suite.findall("testcase")[1:]] == [
        "warning: /abs/a b.sh: w",
        "note: no place",
    ]
    passed = ET.fromstring(junit(CheckResult(True, ()))).find("testsuite")
    assert (passed.get("tests"), passed.get("failures"), len(passed)) == ("1", "0", 1)


def test_sarif_has_the_structure_of_its_standard():
    document = json.loads(sarif(RESULT))
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "gpuscale"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for one, finding in zip(run["results"], RESULT.findings, strict=True):
        assert ids[one["ruleIndex"]] == one["ruleId"] == finding.rule
        assert one["level"] in {"error", "warning", "note"}
        assert one["message"] == {"text": finding.message}
    first, second, third = run["results"]
    location = first["locations"][0]["physicalLocation"]
    assert location == {
        "artifactLocation": {"uri": "dir%2C%20with%3A%20100%25%20%3Codd%3E/l%C3%A4uft.sh"}, "region": {"startLine": 7}
    }  # fmt: skip
    assert second["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "file:///abs/a%20b.sh"}}
    assert "locations" not in third
    assert first["properties"] == {"cost_s": 0.25}


@pytest.mark.parametrize("form", ["github", "junit", "sarif"])
def test_formats_of_ci_leave_stdout_to_their_tool(form):
    done = gpuscale("check", "-m", "llama3-70b", "-n", "640", "--tp", "16", "--pp", "4", "--format", form)
    assert done.code == 0
    assert "tp_across_nodes" in done.out
    assert done.err.startswith("OK: 1 warning")


def test_degrees_of_a_file_that_do_not_multiply_are_a_finding(tmp_path):
    path = tmp_path / "run.sh"
    text = (Path(__file__).parent / "data" / "launch" / "dense.sh").read_text(encoding="utf-8")
    path.write_text(text.replace("TP=4", "TP=3"), encoding="utf-8")
    done = gpuscale("check", "--from", str(path), "--json")
    assert done.code == 1
    (found,) = json.loads(done.out)["findings"]
    assert (found["rule"], found["severity"], found["file"]) == ("world_size", "error", str(path))
    assert gpuscale("check", "--from", str(path), "--gpus", "64").code == 2
