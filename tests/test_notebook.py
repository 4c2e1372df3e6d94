"""Answers in consoles and notebooks: a line with the verdict, and a piece of HTML with what their command draws."""

import pickle
import re
from dataclasses import replace
from html.parser import HTMLParser
from inspect import isclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import gpuscale
from gpuscale.planning.plans import save_plan

DATA = Path(__file__).parent / "data"
SCRIPT = DATA / "launch" / "megatron_arrays.sh"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """One answer of each type, by the name of the type."""
    job = {"model": "llama3-8b", "gpus": 16}
    subject = gpuscale.read_subject(None, job, {"tp": 2, "pp": 2})
    plans = gpuscale.plan(**job, top=3)
    cluster, model = gpuscale.load_cluster("aws-p5"), gpuscale.load_model("llama3-8b")
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    save_plan(path, plans, 1)
    check = gpuscale.check(**job, layout={"tp": 16})
    study = {"study": {"task": "estimate", "model": "llama3-8b", "gpus": 8}}
    found = [
        plans, plans.plans[0], plans.estimates[0], subject, check, check.findings[0],
        gpuscale.advise(subject), gpuscale.decide(model="llama3-8b"), gpuscale.explain_plan(path),
        gpuscale.traffic_of(subject),
        gpuscale.memory_budget(subject), gpuscale.memory_timeline(subject), gpuscale.goodput(subject),
        gpuscale.stragglers(subject), gpuscale.schedule(subject), gpuscale.compare(subject, subject),
        gpuscale.train_time(**job, tokens="1T"), gpuscale.batch_size(**job, tokens="1T"),
        gpuscale.size("llama3-8b", tokens="20B", days=1.0), gpuscale.fleet("llama3-8b", str(DATA / "fleet.toml")),
        gpuscale.place_ranks(16, {"tp": 2}), gpuscale.price_collective(cluster, "allreduce", 2**25),
        gpuscale.roofline(model, [cluster]), cluster, model, gpuscale.load_gpu("h100"), gpuscale.load_study("llama3"),
        gpuscale.find_recipe("llama3-70b-64gpu-h100-bf16"),
        gpuscale.validate(DATA / "published_kernels.csv"), gpuscale.bench("llama3.2-1b", 8, runs=1),
        gpuscale.check_up(DATA / "machine" / "here"),
        gpuscale.calibrate(cluster, [DATA / "example_all_reduce.log"]),
        gpuscale.calibrate_gpu(DATA / "made_gpu_protocol.jsonl", fit_only=True),
        gpuscale.calibrate_run([DATA / "example_training.log"], "llama3-8b", 16, {"tp": 4}, gbs=128),
        gpuscale.tune(DATA / "example_trials.toml"),
        gpuscale.diagnose("the text of no error"),
        gpuscale.read_launch([SCRIPT]), gpuscale.estimate_launch([SCRIPT]), gpuscale.export(path, "megatron-lm"),
        gpuscale.import_cluster([DATA / "topo_matrix.txt"], gpu="h100"), *gpuscale.sweep(study),
    ]  # fmt: skip
    return {type(one).__name__: one for one in found}


def returned():
    """The types that public functions return, and those that are public."""
    for name in gpuscale.__all__:
        one = getattr(gpuscale, name)
        if isclass(one):
            yield one
        else:
            hint = get_type_hints(one)["return"]
            yield from (kind for kind in (hint, *get_args(hint)) if isclass(kind))


def test_every_type_of_answers_shows_itself(answers):
    plain = {"GpuscaleError", "InputError", "NoAnswerError", "Siblings", "str", "NoneType", "list", "tuple"}
    kinds = {kind.__name__ for kind in returned() if kind.__module__.startswith("gpuscale")}
    assert kinds - plain == set(answers)


def test_a_repr_is_a_line_with_the_verdict(answers):
    for name, one in answers.items():
        said = repr(one)
        assert re.fullmatch(rf"<{name} [^\n]+>", said), said
        assert len(said) <= 240, said
        assert len(str(one)) > len(said) or name == "Finding", "str says all"
    result = answers["PlanResult"]
    assert repr(result).startswith("<PlanResult llama3-8b on 16 GPUs: TP")
    assert f"{result.plans[0].mfu:.1%}" in repr(result)
    assert repr(result.plans[0]) in repr(result.plans)
    assert str(result).startswith("PlanResult(model='llama3-8b', ")
    assert "plans=(PlanRow(rank=1, tp=" in str(result), "also of the answers inside"


def test_half_an_answer_still_has_a_repr(answers):
    assert repr(replace(answers["PlanResult"], plans=(), estimates=())).startswith("<PlanResult model=llama3-8b")


def test_answers_stay_what_they_were(answers):
    for name in ("PlanResult", "Estimate", "Placement", "ModelSpec"):
        assert pickle.loads(pickle.dumps(answers[name])) == answers[name]


class Tags(HTMLParser):
    """The tags of a piece of HTML, and what stands in them."""

    def __init__(self, said):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(said)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_notebook_shows_tables_without_scripts(answers):
    for name, one in answers.items():
        page = Tags(one._repr_html_())
        assert page.open == [], name
        assert set(page.tags) <= {"div", "pre", "table", "thead", "tbody", "tr", "th", "td"}, name
    result = answers["PlanResult"]
    page = Tags(result._repr_html_())
    assert page.tags.count("tr") >= 1 + len(result.plans)
    assert "TF/s" in page.text, "no column is left out"
    assert result._repr_html_() == result._repr_html_()


def test_every_answer_has_a_page_and_markdown(answers, tmp_path):
    for name, one in answers.items():
        if name in {"Finding", "MemoryTimeline", "Study"}:
            continue
        page, text = gpuscale.report(one), gpuscale.report(one, tmp_path / "said.md", form="markdown")
        body = Tags(page.partition("<body>")[2].partition("<script>")[0])
        assert (body.open, bool(body.text.strip())) == ([], True), name
        assert page.startswith("<!DOCTYPE html>"), name
        assert re.match(r"# \S", text), name
        assert (tmp_path / "said.md").read_text() == text
        tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        for table in tables:
            columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(columns) == 1, (name, table)
        assert text.count("```") % 2 == 0, name
    with pytest.raises(gpuscale.InputError, match="form"):
        gpuscale.report(answers["PlanResult"], form="pdf")


def test_what_is_shown_is_escaped(answers):
    said = "<script>alert(1)</script>\x1b[31m"
    result = replace(answers["PlanResult"], model=said, assumptions={said: said}, notes=(said,))
    result = replace(result, estimates=tuple(replace(one, notes=(said,)) for one in result.estimates))
    assert "<script" not in result._repr_html_()
    assert "&lt;script" in result._repr_html_()
    assert "\x1b" not in result._repr_html_() + repr(result)
