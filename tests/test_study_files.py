"""Study files: values become questions, what cannot be is refused with its place, and keys follow what is asked."""

import dataclasses
import math
import os
import re
import resource
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscale.errors import InputError
from gpuscale.planning.comparing import WORTH
from gpuscale.planning.plans import plan
from gpuscale.presets.files import find_preset
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.settings import CHANGES as SETTINGS
from gpuscale.presets.settings import with_settings
from gpuscale.request import declared
from gpuscale.studies.answers import RESULTS, answer, columns, rows_of
from gpuscale.studies.study import CHANGES, KEYS, MAX_QUESTIONS, TASKS, options_of, read_study

DOCS = Path(__file__).parents[1] / "docs"

SMALL = {"model": "llama3-8b", "gpus": 16}


def questions(**options):
    return [case.options for case in read_study({"study": {**SMALL, **options}}).cases()]


def test_lists_become_axes_in_the_order_of_the_file_and_the_last_varies_first(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('[study]\ngpus = [64, 128]\nmodel = ["llama3-8b", "llama3-70b"]\nseq = 4096\n')
    study = read_study(path)
    assert study.size == 4
    assert list(study.axes) == ["gpus", "model"]
    assert [(one.options["gpus"], one.options["model"]) for one in study.cases()] == [
        (64, "llama3-8b"), (64, "llama3-70b"), (128, "llama3-8b"), (128, "llama3-70b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "given", "values"),
    [
        ("seq", "4k,8k", [4096, 8192]),
        ("seq", "4k..16k", [4096, 8192, 16384]),
        ("gbs", ["4Mtok", 512], ["4Mtok", 512]),
        ("gbs", "64..256", [64, 96, 128, 192, 256]),
        ("gpus", "8..32", [8, 16, 24, 32]),
        ("tp", "1..8", ["1..8"]),
        ("tp", [1, "2,4"], ["1", "2,4"]),
        ("sp", [True, False], ["on", "off"]),
        ("precision", "BF16,fp8", ["bf16", "fp8"]),
        ("model", ["llama3-8b", "meta-llama/Meta-Llama-3-8B"], ["llama3-8b"]),
        ("set", "network=x2,gpu.power_w=500", ["network=x2,gpu.power_w=500"]),
        ("set", ["network=x2", "network=x3"], ["network=x2", "network=x3"]),
        ("min_mfu", "30,40.5", [30.0, 40.5]),
        ("rate", {"pue": 1.3}, ["pue=1.3"]),
        ("pareto", "step_time,memory", ["step_time,memory"]),
        ("max_memory", "70GiB", [70.0]),
        ("gpu_hour_price", [2, 3.5], [2.0, 3.5]),
        ("gpu_hour_price", "2,3", [2.0, 3.0]),
        ("gpu_hour_price", ["h100=2"], [2.0]),
        ("schedule", ["1f1b", "ZB-H1"], ["1f1b", "zb-h1"]),
    ],
)
def test_values_are_read_as_plan_reads_them(option, given, values):
    assert [one[option] for one in questions(**{option: given})] == values


@pytest.mark.parametrize("option", sorted(options_of("plan")))
def test_every_option_of_plan_may_be_a_list(option):
    field = declared(options_of("plan")[option])[option]
    values = {"model": "llama3-8b", "gpus": 8, "cluster": "h100", "framework": "nemo", "set": "network=x2",
              "rate": "pue=1.2", "pareto": "mfu,memory", "offload": "optimizer", "axis_order": "tp-cp-dp-pp",
              "overlap": "tp", "recompute": "full", "schedule": "zb-h1", "train_tokens": "1T", "max_memory": 70,
              "gpu_hour_price": 2, "risk": 0.9, "lengths": "512", "lora_targets": "all", "train": "head",
              "teacher": "llama3-70b"}  # fmt: skip
    said = field.option
    value = values.get(option, said.choices[0] if said.choices else True if bool in field.kinds else 2)
    if option == "calibration":
        pytest.skip("takes a file")
    given = {**SMALL, "train_tokens": "1T", "gpu_hour_price": 2, option: [value]}
    assert option in next(read_study({"study": given}).cases()).options


def test_what_belongs_together_stands_in_questions():
    study = read_study(
        {
            "study": {"gpus": [16, 64], "precision": "bf16"},
            "questions": [
                {"model": "llama3-8b", "cluster": "h100"},
                {"model": "mixtral-8x7b", "cluster": "nvl72", "gpus": 72, "precision": ["bf16", "fp8"]},
                {"model": "llama3-8b", "cluster": "dgx-h100-superpod", "gpus": 16},  # asked before
            ],
        }
    )
    found = [tuple(one.options[name] for name in ("model", "cluster", "gpus", "precision")) for one in study.cases()]
    assert found == [
        ("llama3-8b", "dgx-h100-superpod", 16, "bf16"),
        ("llama3-8b", "dgx-h100-superpod", 64, "bf16"),
        ("mixtral-8x7b", "gb200-nvl72", 72, "bf16"),
        ("mixtral-8x7b", "gb200-nvl72", 72, "fp8"),
    ]
    assert study.fixed == {}


def test_arguments_replace_what_the_file_says(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('[study]\nmodel = "llama3-8b"\ngpus = [8, 16]\n[[questions]]\nseq = 8192\n')
    study = read_study(path, gpus="64,128", seq=None, top=3)
    assert [one.options["gpus"] for one in study.cases()] == [64, 128]
    assert study.fixed["seq"] == 8192
    assert study.fixed["top"] == 3
    assert read_study(None, model="llama3-8b", gpus=8).size == read_study(SMALL).size == 1
    with pytest.raises(InputError, match="is not a whole number") as raised:
        read_study(path, gpus="many")
    assert (raised.value.field, raised.value.place) == ("gpus", None)


def test_paths_are_given_from_the_folder_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    shutil.copy(find_preset("models", "llama3-8b"), tmp_path / "own" / "mine.toml")
    shutil.copy(find_preset("clusters", "aws-p5"), tmp_path / "own" / "site.toml")
    (tmp_path / "own" / "study.toml").write_text(
        '[study]\nmodel = ["mine.toml"]\ngpus = 8\ncluster = ["site.toml", "more"]\n'
        '[[clusters]]\nname = "more"\nbase = "./site.toml"\nnetwork = 2\n'
    )
    monkeypatch.chdir(tmp_path)
    cases = list(read_study("own/study.toml").cases())
    assert [(one.options["model"], one.options["cluster"]) for one in cases] == [("own/mine.toml", "own/site.toml")] * 2
    assert all(row["status"] == "answered" for one in cases for row in rows_of(one))
    shutil.copy(find_preset("models", "llama3-70b"), tmp_path / "mine.toml")
    cases = read_study("own/study.toml", model="mine.toml").cases()  # an argument is given from here
    assert next(cases).options["model"] == "mine.toml"


JOB = '[study]\nmodel = "llama3-8b"\ngpus = 8\n'
CLUSTER = '[[clusters]]\nname = "x"\nbase = "h100"\n'
REFUSED = [
    ('[study]\nmodel = "llama3-8x"\ngpus = 8', 2, "model: unknown model 'llama3-8x'"),
    ('[study]\nmodel = "llama3-8b"\ngpus = [8, 0]', 3, "gpus: 0 is out of range"),
    (f"{JOB}sq = 1", 4, "sq: unknown option 'sq'"),
    (f'{JOB}why = "tp=4"', 4, "why: unknown option"),
    ('[study]\nmodel = "llama3-8b"\n', 1, "gpus is missing"),
    ('[study]\ntask = "plans"\n', 2, "unknown task 'plans'"),
    ("[study]\nmodel = []\ngpus = 8", 2, "model: has no value"),
    (f"{JOB}tp = [[1]]", 4, "tp: "),
    (f'{JOB}seq = [4096, 3000]\ngbs = "5Mtok"', 5, "gbs: 5Mtok is 5,242,880 tokens"),
    (f"{JOB}max_days = [3, 4]", 4, "max_days: it needs `train_tokens`"),
    (f'{JOB}objective = "cost"', 4, "objective: cost needs `gpu_hour_price`"),
    (f"{JOB}gpu_hour_price = {{nvl72 = 3}}", 4, "gpu_hour_price: 'nvl72' is not one"),
    (f'{JOB}set = "spine.colour=2"', 4, "set: "),
    (f'{JOB}task = "train-time"', 1, "how long is the training?"),
    (f"{JOB}[extra]", 4, "unknown table 'extra'"),
    ('[study]\ngpus = 8\n[[questions]]\nmodel = "llama3-8b"\nprecision = "fp7"', 5, "precision: unknown value 'fp7'"),
    (f"{JOB}{CLUSTER}network = [1, -2]", 7, "network = -2 is not a number above 0"),
    (f"{JOB}{CLUSTER}net = 2", 7, "unknown key 'net'"),
    (f"{JOB}{CLUSTER.replace('x', 'nvl72')}network = 2", 5, "'nvl72' is the name of a preset"),
    (f"{JOB}{CLUSTER}network = 2\nnvlink_domain = 12", 8, "no whole hosts of 8"),
    (f"{JOB}{CLUSTER.replace('h100', 'box-l40s')}network = 2", 7, "no level between nodes"),
    (
        f"[study]\nmodel = 'llama3-8b'\ngpus = {list(range(1, 2002))}\ngbs = {list(range(1, 501))}",
        1,
        "1,000,500 questions",
    ),
]


@pytest.mark.parametrize(("text", "line", "message"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_runs_with_its_line(text, line, message, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read_study(path)
    assert message in raised.value.message
    assert raised.value.place == f"{path}:{line}"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
)


@given(st.dictionaries(st.sampled_from([*options_of("plan"), "task", "x"]), VALUES))
@example({"objective": None})
@example({"pareto": [None]})
def test_any_table_is_read_or_refused(table):
    try:
        study = read_study({"study": {**SMALL, **table}})
        assert study.size == len(list(study.cases())) or len(study.axes) == 0
    except InputError as error:
        assert error.message


@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "x"]), VALUES | st.sampled_from(["h100", "nvl72", [8, 16], 2.0]), max_size=4
    ),
    st.one_of(VALUES, st.lists(st.dictionaries(st.sampled_from(["seq", "gbs", "set", "x"]), VALUES), max_size=2)),
    st.booleans(),
)
def test_any_clusters_and_questions_are_read_or_refused(table, listed, named):
    table = {"name": "mine", "base": "nvl72", **table} if named else table
    for data in ({"clusters": [table]}, {"clusters": table}, {"questions": listed}):
        try:
            study = read_study({"study": SMALL, **data})
            assert study.size >= len(list(study.cases())) > 0
        except InputError as error:
            assert error.message


@given(
    st.sampled_from(["h100", "nvl72", "mi300x", "tpu-v5p-pod", "box-l40s", "aws-p5", "leonardo"]),
    st.lists(
        st.builds(
            "{}={}{}".format,
            st.sampled_from([*SETTINGS, "leaf.gpus", "spine.link_gb", "node.hop", "gpu", "leaf.", "."]),
            st.sampled_from(["", "x"]),
            st.floats().map(str) | st.integers().map(str) | st.text(max_size=5),
        ),
        max_size=3,
    ),
)
def test_any_settings_make_a_cluster_or_are_refused(name, items):
    try:
        cluster = with_settings(load_cluster(name), ",".join(items))
        assert all(level.egress_bytes_per_s > 0 for level in cluster.levels)
    except InputError as error:
        assert error.message


def test_a_hundred_thousand_questions_cost_the_driver_little():
    study = read_study(
        {"study": {**SMALL, "gpus": [8 * n for n in range(1, 101)], "gbs": [64 * n for n in range(1, 1001)]}}
    )
    assert study.size == 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in study.cases()) == 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024  # KiB
    assert study.size <= MAX_QUESTIONS


def test_the_same_question_has_the_same_key_however_it_is_written():
    keys = [next(read_study({"study": one}).cases()).key for one in (
        {"model": "llama3-8b", "gpus": 16, "seq": 4096, "cluster": "dgx-h100-superpod"},
        {"seq": "4k", "gpus": "16", "model": "meta-llama/Meta-Llama-3-8B", "cluster": "h100"},
        {"seq": [4096], "gpus": [16], "model": ["llama3-8b"]},
    )]  # fmt: skip
    assert len(set(keys)) == 1
    other = [next(read_study({"study": {**SMALL, **one}}).cases()).key for one in ({}, {"seq": 8192}, {"tp": 2})]
    assert len({*keys, *other}) == 4
    more = {one.key for one in read_study({"study": {**SMALL, "seq": [4096, 8192]}}).cases()}
    assert {*keys, other[1]} == more


def test_a_preset_that_changes_asks_only_its_questions_again(tmp_path, monkeypatch):
    def keys():
        study = read_study({"study": {**SMALL, "cluster": ["aws-p5", "h100"]}})
        return [one.key for one in study.cases()]

    before = keys()
    (tmp_path / "clusters").mkdir()
    text = find_preset("clusters", "aws-p5").read_text()
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    (tmp_path / "clusters" / "aws-p5.toml").write_text("# the same\n" + text)
    assert keys() == before
    (tmp_path / "clusters" / "aws-p5.toml").write_text(text.replace("link_efficiency = 0.8", "link_efficiency = 0.7"))
    after = keys()
    assert (after[0] == before[0], after[1] == before[1]) == (False, True)


def test_digests_are_the_same_in_every_process():
    code = (
        "from gpuscale.studies.study import read_study;"
        "print([c.key for c in read_study({'model': ['mixtral-8x7b', 'nemotron-h-8b'], 'gpus': 8, 'train_tokens': '1T',"
        "'task': 'train-time', 'cluster': ['h100', 'tpu-v5p-pod']}).cases()])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_prices_hold_for_what_they_name():
    study = read_study(
        {
            "study": {**SMALL, "cluster": ["h100", "nvl72", "fast"], "gpu_hour_price": {"h100": 2, "nvl72": 4}},
            "clusters": [
                {"name": "fast", "base": "h100", "network": [1.5, 2], "usd_per_gpu_hour": 2.5},
                {"name": "left", "base": "h100", "network": 3},
            ],
        }
    )
    found = [
        (one.labels.get("what_if"), one.options["cluster"], one.options["gpu_hour_price"]) for one in study.cases()
    ]
    assert found == [
        (None, "dgx-h100-superpod", 2.0), (None, "gb200-nvl72", 4.0), ("fast-1.5", "dgx-h100-superpod", 2.5),
        ("fast-2", "dgx-h100-superpod", 2.5),
    ]  # fmt: skip
    with pytest.raises(InputError, match="states its own price"):
        read_study({"study": {**SMALL, "gpu_hour_price": [1, 2]}, "clusters": [
            {"name": "a", "base": "h100", "network": 2, "usd_per_gpu_hour": 1}]})  # fmt: skip
    with pytest.raises(InputError, match="is not in each of the lists"):
        read_study({"study": {**SMALL, "cluster": ["h100", "nvl72"], "gpu_hour_price": [{"h100": 1}, {"nvl72": 2}]}})


STUDIES = {
    "plan": {**SMALL, "train_tokens": "1T", "gpu_hour_price": 2, "tp": "1..4", "top": 2, "max_days": [90, 1e-6]},
    "estimate": {**SMALL, "tp": [1, 16], "despite_rules": [False, True]},
    "train-time": {**SMALL, "train_tokens": "1T", "spares": [1, 2], "zero": 1},
    "collective": {"operation": ["allreduce", "alltoall"], "bytes": "1MB..4MB", "gpus": [8, 4096],
                   "algorithm": "ring"},
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        *({"task": task, **STUDIES[task]} for task in TASKS),
        {**SMALL, "space": "full", "top": 2},
        {**SMALL, "risk": [0.9, 0.5], "top": 2},
        {**SMALL, "gbs": [128, "1Mtok"], "pareto": "step_time,memory", "price_term": "reserved"},
        {**SMALL, "cluster": "fast", "set": "gpu.power_w=600"},
    ],
)
def test_columns_are_known_before_a_study_runs_and_hold_what_they_say(options):
    tables = [{"name": "fast", "base": "h100", "network": 2, "usd_per_gpu_hour": 3}]
    study = read_study({"study": options, "clusters": tables if options.get("cluster") else []})
    kinds = columns(study)
    assert list(kinds)[:4] == ["key", "task", "status", "reason"]
    rows = [row for case in study.cases() for row in answer(case).rows]
    assert {row["status"] for row in rows} <= {"answered", "no_answer", "refused"}
    assert "answered" in {row["status"] for row in rows}
    for row in rows:
        assert set(row) <= set(kinds)
        for name, value in row.items():
            fits = isinstance(value, kinds[name]) or (kinds[name] in {float, str} and type(value) is int)
            assert value is None or fits, name
    empty = [name for name in kinds if all(row.get(name) is None for row in rows)]
    assert set(empty) <= {"reason", "pipeline_layout", "concurrent", *(goal.key for goal in WORTH)}


def test_the_rows_of_every_task_are_those_of_its_command():
    told = {task: {field.name for result in RESULTS[task] for field in dataclasses.fields(result)} for task in TASKS}
    for task in TASKS:
        assert len(told[task] & set(columns(read_study({"study": {"task": task, **STUDIES[task]}})))) > 20


def test_a_question_without_an_answer_is_a_row_that_says_why():
    rows = {row["max_days"]: row for case in read_study(STUDIES["plan"]).cases() for row in answer(case).rows}
    assert rows[90.0]["status"] == "answered"
    assert rows[90.0]["time_to_train_s"] <= 90 * 86400
    assert (rows[1e-6]["status"], rows[1e-6]["layout"]) == ("no_answer", "tp=1..4")
    assert "days" in rows[1e-6]["reason"]


def test_rows_are_what_the_command_answers():
    case = next(read_study({"study": {**SMALL, "cluster": "twice", "tp": 2, "gbs": 256}, "clusters": [
        {"name": "twice", "base": "h100", "network": 2}]}).cases())  # fmt: skip
    row = rows_of(case)[0]
    again = plan(
        row["model"], row["gpus"], cluster=row["cluster"], set=row["set"], gbs=row["gbs"], pins={"tp": 2}
    ).plans[0]
    assert {name: row[name] for name in ("tp", "pp", "dp", "step_time_s", "mfu")} == {
        name: getattr(again, name) for name in ("tp", "pp", "dp", "step_time_s", "mfu")
    }
    assert (row["what_if"], row["set"]) == ("twice", "network=x2")


def test_without_a_cluster_all_changed_ones_are_taken_and_a_name_stands_for_its_family():
    tables = [{"name": "domain", "base": "nvl72", "nvlink_domain": [8, 72], "memory": [1, 1.5]}]
    names = [one.labels["what_if"] for one in read_study({"study": SMALL, "clusters": tables}).cases()]
    assert names == ["domain-8-1", "domain-8-1.5", "domain-72-1", "domain-72-1.5"]
    for asked, count in (("domain", 4), (["domain-8-1.5", "nvl72"], 2)):
        assert read_study({"study": {**SMALL, "cluster": asked}, "clusters": tables}).size == count


def test_gpu_counts_of_a_range_are_those_of_any_cluster():
    assert [one["gpus"] for one in questions(gpus="4..16", cluster="h100")] == [4, 8, 16]
    both = questions(gpus="4..16", cluster=["h100", "nvl72"])  # machines of 8 and of 4 GPUs
    assert [one["gpus"] for one in both] == [4, 4, 8, 8, 12, 12, 16, 16]


def test_the_first_of_a_million_questions_comes_at_once():
    study = read_study({"study": {**SMALL, "gpus": list(range(1, 1001)), "gbs": list(range(1, 1001))}})
    assert study.size == math.prod(len(values) for values in study.axes.values()) == MAX_QUESTIONS
    assert len(list(islice(study.cases(), 3))) == 3


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", (DOCS / "studies.md").read_text(), re.DOTALL))
def test_studies_of_the_page_are_read(text, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(text)
    study = read_study(path)
    assert study.size == len(list(study.cases())) > 1


@pytest.mark.parametrize("key", CHANGES)
def test_the_page_says_what_may_be_changed_of_a_cluster(key):
    assert f"| `{key} = " in (DOCS / "studies.md").read_text()


def test_trainings_on_several_clusters_are_priced_by_one_term():
    def terms(**more):
        options = {"model": "llama3-8b", "gpus": 8, "train_tokens": "1T", "task": "train-time", **more}
        return {case.options.get("price_term") for case in read_study(options).cases()}

    assert terms(cluster="h100") == {None}  # the usual one, reserved, there is
    assert terms(cluster=["h100", "tpu-v5p-pod"]) == {"on-demand"}
    assert terms(cluster=["h100", "tpu-v5p-pod"], price_term="on-demand") == {"on-demand"}
    assert terms(cluster=["h100", "tpu-v5p-pod"], gpu_hour_price=3) == {None}
    for options, message in (
        ({"price_term": "spot"}, "tpu-v5p-pod has no spot price here"),
        ({"gpu_hour_price": {"tpu-v5p-pod": 3}}, "one is given of tpu-v5p-pod, and of"),
    ):
        with pytest.raises(InputError, match=message):
            terms(cluster=["h100", "tpu-v5p-pod"], **options)
