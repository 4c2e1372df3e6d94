"""The trees of a plan: they add up to the search's numbers, by two routes, and their operators obey their rooflines."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from command import assert_one_message, gpuscale

import gpuscale as library
from gpuscale.explain.steps import memory_trees, step_tree
from gpuscale.explain.traffic import traffic_of
from gpuscale.launch.subject import read_subject
from gpuscale.memory.model import COMPONENTS as MEMORY
from gpuscale.presets.files import preset_names
from gpuscale.steptime.components import COMPONENTS

LLAMA = {"model": "llama3-70b", "gpus": 640}
DEEPSEEK = {"model": "deepseek-v3", "gpus": 2048, "precision": "fp8"}
GENERIC = LLAMA | {"framework": "generic"}
TP8 = {"tp": 8, "pp": 4}

PLANS = [
    (LLAMA, TP8),
    (LLAMA, TP8 | {"sp": "off"}),
    (LLAMA, TP8 | {"vpp": 5, "recompute": "full:4"}),
    (LLAMA, TP8 | {"recompute": "selective:mlp+layernorm+core_attn"}),
    (LLAMA | {"framework": "torchtitan"}, TP8 | {"recompute": "selective"}),
    (LLAMA | {"precision": "fp8"}, {"tp": 8, "zero": 2}),
    (GENERIC, TP8 | {"recompute": "full"}),
    *((GENERIC, TP8 | {"schedule": name}) for name in ("gpipe", "zb-h1", "zb-2p")),
    *((GENERIC, TP8 | {"schedule": name, "vpp": 2}) for name in ("zb-v", "dualpipe")),
    (DEEPSEEK, {"pp": 16, "ep": 64}),
    (DEEPSEEK | {"framework": "generic"}, {"pp": 16, "ep": 64, "schedule": "dualpipe"}),
    (DEEPSEEK, {"pp": 16, "ep": 64, "vpp": 2, "recompute": "selective:mla_up_proj+moe_act"}),
    ({"model": "mixtral-8x22b", "gpus": 128, "framework": "torchtitan"}, {"ep": 8}),
    ({"model": "llama3-8b", "gpus": 64, "seq": 131072, "gbs": 64}, {"tp": 4, "cp": 8}),
    (
        {"model": "llama3-8b", "gpus": 8, "cluster": "aws-p4d", "framework": "deepspeed", "gbs": 64, "seq": 2048}
        | {"offload": "optimizer+parameters"},
        {"zero": 3, "recompute": "full", "micro_batch_size": 1},
    ),
    *(({"model": name, "gpus": 512}, {"tp": 4}) for name in preset_names("models")[::6]),
]


def subject(options, layout):
    return read_subject(None, options, layout, despite_rules=True)


def assert_adds_up(root, total):
    assert root.value == total
    for node in root.walk():
        assert node.value >= 0
        assert node.share == node.value / root.value
        assert len({child.name for child in node.children}) == len(node.children)
        assert not node.children or math.fsum(child.value for child in node.children) == node.value


def by_component(root, name):
    return math.fsum(leaf.value for leaf in root.leaves() if leaf.component == name)


@pytest.mark.parametrize(("options", "layout"), PLANS)
def test_trees_add_up_to_the_numbers_of_the_search_by_two_routes(options, layout):
    asked = subject(options, layout)
    step, stages = step_tree(asked), memory_trees(asked)
    assert_adds_up(step, float(asked.evaluation.step.step_time_s[0]))
    assert step.value == asked.estimate.plan.step_time_s
    for name, seconds in zip(COMPONENTS, asked.evaluation.step.components[:, 0].tolist(), strict=True):
        assert by_component(step, name) == pytest.approx(seconds, rel=1e-9, abs=1e-9 * step.value), name
    memory = asked.evaluation.memory
    assert max(stage.value for stage in stages) == float(memory.peak_bytes[0])
    for stage in stages:
        place = next(i for i, size in enumerate(memory.by_stage[:, 0]) if size == stage.value)
        assert_adds_up(stage, float(memory.by_stage[place, 0]))
        for name in MEMORY:
            size = float(np.broadcast_to(getattr(memory, name), memory.by_stage.shape)[place, 0])
            assert by_component(stage, name) == pytest.approx(size, rel=1e-9, abs=1)


def test_the_tree_of_rank_1_is_the_searchs_number_to_the_last_digit(tmp_path):
    result = library.plan("mixtral-8x7b", 64)
    path = tmp_path / "plan.toml"
    assert gpuscale("plan", "--model", "mixtral-8x7b", "--gpus", 64, "-o", path).code == 0
    found = library.explain_plan(path)
    assert found.step.value == result.plans[0].step_time_s
    assert_adds_up(found.step, result.plans[0].step_time_s)


def test_operators_obey_their_rooflines_and_do_the_work_of_the_model():
    asked = subject(LLAMA, TP8)
    plan, step = asked.estimate.plan, step_tree(asked)
    for node in step.walk():
        assert node.rate is None or node.rate <= node.limit, node.name
    # 6 FLOPs per parameter and token in matrix products: 20 layers and the LM head on the last of four stages
    gemm = math.fsum(leaf.flops for leaf in step.leaves() if leaf.component == "gemm")
    layer = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
    tokens = plan.global_batch_size * plan.sequence / plan.dp
    head = 8192 * float(asked.spec.vocabulary_rows(np.array([8]))[0])
    assert gemm == pytest.approx(6 * tokens * (20 * layer / 8 + head), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        (LLAMA, TP8),
        (DEEPSEEK, {"pp": 16, "ep": 64}),
        ({"model": "llama3-8b", "gpus": 64, "gbs": 64}, {"tp": 2, "cp": 8}),
    ],
)
def test_collectives_send_the_bytes_of_the_traffic_and_no_faster_than_the_wire(options, layout):
    asked = subject(options, layout)
    step, network = step_tree(asked), traffic_of(asked)
    inside = {level.name for level in asked.spec.cluster.levels[:1]}
    for name in ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm"):
        leaves = [leaf for leaf in step.leaves() if leaf.component == name and leaf.bytes]
        rows = [row for row in network.traffic if row.component == name]
        if not rows:
            continue
        same_side = {leaf.level in inside for leaf in leaves}
        assert len(same_side) == 1
        sent = math.fsum(
            size for row in rows for level, size in row.level_bytes.items() if (level in inside) in same_side
        )
        assert math.fsum(leaf.bytes for leaf in leaves) == pytest.approx(sent, rel=1e-6)
        assert all(leaf.rate <= leaf.limit for leaf in leaves)


def test_attention_counts_causal_flops_forward_once_and_backward_two_and_a_half_times():
    asked = subject({"model": "llama3-8b", "gpus": 8, "seq": 8192}, {"tp": 1})
    core = [leaf for leaf in step_tree(asked).leaves() if leaf.component == "attention"]
    forward = 32 * asked.estimate.plan.global_batch_size / 8 * 4 * 8192 * (8192 + 1) / 2 * 4096
    assert sorted(leaf.flops for leaf in core) == pytest.approx([forward, 2.5 * forward], rel=1e-3)


def test_a_calibrated_plan_adds_up_too():
    options = {"model": "llama3-8b", "gpus": 16}
    plain = subject(options, {})
    step = plain.evaluation.step
    stretched = replace(step, step_time_s=step.step_time_s * 1.25, factor=np.array([1.25]))
    asked = replace(plain, evaluation=plain.evaluation._replace(step=stretched))
    one, other = step_tree(plain), step_tree(asked)
    assert_adds_up(other, float(stretched.step_time_s[0]))
    assert other.value == pytest.approx(1.25 * one.value)
    assert other.flops == one.flops
    for name, seconds in zip(COMPONENTS, stretched.components[:, 0].tolist(), strict=True):
        assert by_component(other, name) == pytest.approx(seconds, rel=1e-9, abs=1e-12)


def test_the_answer_is_stable_for_scripts():
    done = gpuscale("explain", "--model", "llama3-70b", "--gpus", 640, "--tp", 8, "--pp", 4, "--json")
    found = json.loads(done.out)
    assert found["schema"] == "gpuscale.explain/1"
    assert {"plan", "step", "memory", "traffic", "thresholds", "suggestions", "flips"} <= set(found)
    assert {"name", "value", "share", "children"} <= set(found["step"])
    assert [stage["name"] for stage in found["memory"]] == ["stage 0", "stage 1", "stage 3"]


def test_the_text_fits_a_hundred_columns_and_folds_what_is_small():
    plan = ("explain", "--model", "deepseek-v3", "--gpus", 2048, "--pp", 16, "--ep", 64)
    short, usual, whole = (gpuscale(*plan, *more) for more in (("--depth", 1), (), ("--verbose",)))
    assert len(short.lines) < len(usual.lines) < len(whole.lines)
    assert max(len(line) for done in (short, usual, whole) for line in done.lines) <= 100
    assert usual.lines[0].startswith("deepseek-v3 on 2,048 GPUs")
    assert "expert_fc1" in whole.out
    assert not re.search(r"^ +[0-9]+ more  ", whole.out, re.MULTILINE)


LAID_OUT = ("--gpus", 16, "--tp", 2, "--pp", 2)
VIEWS = {
    "--memory": ("memory", "--model", "llama3-8b", *LAID_OUT),
    "--pipeline": ("schedule", "--model", "llama3-8b", *LAID_OUT),
    "--placement": ("placement", *LAID_OUT),
}
"""View of a plan -> the command that shows the same."""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("form", [(), ("--json",), ("--markdown",)])
def test_a_view_shows_what_the_command_of_its_own_does(view, form):
    shown = gpuscale("explain", "--model", "llama3-8b", *LAID_OUT, "--precision", "bf16", view, *form)
    assert shown.code == 0
    assert shown.out == gpuscale(*VIEWS[view], *form).out


def test_the_page_holds_the_view_that_is_asked_for_or_the_whole_plan(tmp_path):
    asked = ("explain", "--model", "llama3-8b", *LAID_OUT)
    pages = {}
    for view in ((), ("--traffic",), ("--memory",)):
        path = tmp_path / f"page{len(pages)}.html"
        assert gpuscale(*asked, *view, "--html", path).code == 0
        pages[view] = set(re.findall("<h2[^>]*>(.*?)</h2>", path.read_text()))
    whole, traffic, memory = pages.values()
    assert len(whole) > len(traffic)
    assert not traffic & memory
    assert gpuscale(*VIEWS["--memory"], "--html", tmp_path / "own.html").code == 0
    assert (tmp_path / "own.html").read_text() == (tmp_path / "page2.html").read_text()


def test_unusable_questions_are_refused():
    two = gpuscale("explain", "--model", "llama3-8b", *LAID_OUT, "--memory", "--traffic")
    assert_one_message(two, "--traffic and --memory are two views of a plan", "give one of them")
    assert_one_message(gpuscale("explain"), "`model` is missing".replace("`model`", "--model"), "plan file")
    two = gpuscale("explain", "plan.toml", "--from", "run.sh")
    assert_one_message(two, "two jobs", "one of them")
