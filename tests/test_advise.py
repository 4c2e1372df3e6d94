"""`gpuscale explain checklist`: the reference's tables and checklist with one job's numbers."""

import json
import re
import shlex

import pytest
from command import assert_one_message, gpuscale

from gpuscale import advise, decide, estimate, goodput, load_cluster, price_collective, read_subject
from gpuscale.choices import AXES
from gpuscale.collectives.estimate import Siblings
from gpuscale.explain.checklist import PROGRAMS, grid_of, signs
from gpuscale.placement import Degrees
from gpuscale.planning.placement import place_order

LLAMA = ("--model", "llama3-70b", "--gpus", "640", "--tp", "8", "--pp", "4")
CASES = {
    "70B": ({"model": "llama3-70b", "gpus": 640}, {"tp": 8, "pp": 4}),
    "DeepSeek-V3": ({"model": "deepseek-v3", "gpus": 2048, "gbs": 1024}, {"tp": 2, "etp": 1, "pp": 16, "ep": 64}),
    "FSDP on EFA": ({"model": "llama3-8b", "gpus": 64, "framework": "torchtitan", "cluster": "aws-p4d"}, {"tp": 2}),
    "long context": ({"model": "llama3-8b", "gpus": 64, "seq": 131072, "gbs": 8}, {"tp": 4, "cp": 4}),
}
REFERENCE = {
    "topology", "NVLink", "NCCL", "memory headroom", "groups", "sharding policy", "batch", "NICs", "MTU, PFC, ECN",
    "rail alignment", "benchmarks", "step-time variance", "bubble share", "checkpoint interval",
}  # fmt: skip
"""Its checklist before a launch (reference, "Networks")."""


@pytest.fixture(scope="module")
def advice():
    return {name: advise(read_subject(options=job, layout=layout)) for name, (job, layout) in CASES.items()}


def test_the_whole_checklist_of_the_reference_is_there(advice):
    assert {item.name for item in advice["70B"].checklist} >= REFERENCE
    assert {item.name for item in advice["DeepSeek-V3"].checklist} >= {*REFERENCE, "expert placement"}


def test_every_line_depends_on_the_job(advice):
    """No line says the same of another job: what is not about the job has no place in the answer."""
    one, other = advice["70B"], advice["FSDP on EFA"]
    said = {item.name: item.now for item in other.checklist}
    same = [item.name for item in one.checklist if said.get(item.name) == item.now]
    assert not same
    assert not {sign.step_time_s for sign in one.signs} & {sign.step_time_s for sign in other.signs}
    assert "rail alignment" not in said  # EFA has none
    assert "bubble share" not in said  # no pipeline
    assert "active_mtu" not in " ".join(item.check for item in other.checklist)


@pytest.mark.parametrize("case", CASES)
def test_benchmarks_are_the_groups_of_the_plan(advice, case):
    """What nccl-tests makes of NCCL_TESTS_SPLIT are groups of the same size and stride as the plan's."""
    found, (job, _) = advice[case], CASES[case]
    plan, cluster = found.plan, load_cluster(job.get("cluster", "dgx-h100-superpod"))
    degrees = Degrees(tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=plan.etp, dp=plan.dp, pp=plan.pp)
    spans = place_order(cluster.sized_for(job["gpus"])[0], degrees, AXES).spans
    assert found.benchmarks
    for one in found.benchmarks:
        words = shlex.split(one.command)
        assert f"./build/{PROGRAMS[one.collective]}" in words
        assert words[words.index("-np") + 1] == str(one.ranks)
        assert words[words.index("-b") + 1] == words[words.index("-e") + 1] == str(one.bytes)
        split = re.search(r'NCCL_TESTS_SPLIT="(MOD|DIV) (\d+)"', one.command)
        color = {"MOD": lambda rank, by: rank % by, "DIV": lambda rank, by: rank // by}
        colors = [color[split[1]](rank, int(split[2])) if split else 0 for rank in range(one.ranks)]
        group = [rank for rank in range(one.ranks) if colors[rank] == 0]
        assert len(set(colors)) == one.groups
        assert group == list(range(0, one.group_size * one.stride, one.stride))
        span = spans["dp_cp" if one.axis == "dp" and "dp_cp" in spans else one.axis]
        if one.collective not in {"sendrecv", "alltoall"} and span.groups.stride is not None:
            assert group == span.groups.offsets().tolist()


@pytest.mark.parametrize("case", CASES)
def test_the_bandwidth_to_expect_is_that_of_collective(advice, case):
    found, (job, _) = advice[case], CASES[case]
    cluster = load_cluster(job.get("cluster", "dgx-h100-superpod")).sized_for(job["gpus"])[0]
    for one in found.benchmarks:
        siblings = Siblings(one.stride, one.groups)
        same = price_collective(cluster, one.collective, one.bytes, gpus=one.group_size, siblings=siblings)
        assert (one.time_s, one.busbw_gb_per_s) == (same.time_s, same.busbw_bytes_per_s / 1e9)
        assert 0 < one.busbw_low_gb_per_s < one.busbw_gb_per_s
        assert one.busbw_low_gb_per_s == pytest.approx(one.busbw_gb_per_s * same.time_s / same.time_high_s)


def test_grids_fill_hosts():
    assert grid_of(8, 1, 8) == (8, 1, "")
    assert grid_of(2, 1, 8) == (8, 4, "DIV 2")
    assert grid_of(20, 8, 8) == (160, 8, "MOD 8")
    assert grid_of(16, 1, 8) == (16, 1, "")


def test_signs_are_what_estimate_says_with_the_setting_missed(advice):
    job, layout = CASES["70B"]
    signs = {sign.suspect: sign for sign in advice["70B"].signs}
    for suspect, options, change in (
        ("sequence parallelism is off", {}, {"sp": False}),
        ("all layers are recomputed", {}, {"recompute": "full"}),
        ("TP communication does not overlap", {"overlap": "dp"}, {}),
        ("DP communication does not overlap", {"overlap": "tp"}, {}),
    ):
        plan = estimate(**job | options, layout=layout | change).plan
        assert (signs[suspect].step_time_s, signs[suspect].memory_gib) == (plan.step_time_s, plan.memory_gib)
    step_s = advice["70B"].plan.step_time_s
    times = [sign.step_time_s for sign in advice["70B"].signs]
    assert times == sorted(times)
    for sign in signs.values():
        assert sign.slower == pytest.approx(sign.step_time_s / step_s - 1)
        assert sign.slower >= 0.005 or sign.memory_gib != advice["70B"].plan.memory_gib


@pytest.mark.parametrize("case", CASES)
def test_answers_to_pressures_equal_their_rerun(advice, case):
    job, layout = CASES[case]
    answered = [one for one in advice[case].pressures if one.change]
    for one in answered:
        options = {
            name: value for name, value in one.change.items() if name in {"gbs", "precision", "overlap", "sharp"}
        }
        if set(one.change) - set(options) - {"tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch_size", "zero", "sp"}:
            continue
        rest = {name: value for name, value in one.change.items() if name not in options}
        plan = estimate(**job | options, layout=layout | rest).plan
        assert plan.step_time_s == pytest.approx(one.step_time_s, rel=1e-12)
    assert {one.state for one in advice[case].pressures} <= {"low", "some", "high"}


def test_the_batch_presses_where_the_pipeline_idles(advice):
    first = advice["DeepSeek-V3"].pressures[0]
    assert (first.name, first.state) == ("batch", "high")
    assert first.share == advice["DeepSeek-V3"].plan.bubble_fraction
    assert first.change == {"gbs": 2048}


def test_placement_is_held_against_the_rules(advice):
    assert all(one.kept for one in advice["70B"].placement)
    beyond = advise(read_subject(options={"model": "llama3-70b", "gpus": 64}, layout={"tp": 16})).placement
    assert {one.axis: one.kept for one in beyond}["tp"] is False
    done = gpuscale("advise", "--model", "llama3-70b", "--gpus", "64", "--tp", "16")
    assert re.search(r"^  TP +NOT inside one node", done.out, re.MULTILINE)


def test_settings_are_those_of_an_export(advice, tmp_path):
    plan = tmp_path / "plan.toml"
    pins = ("--tp", "8", "--pp", "4", "--vpp", "1", "--recompute", "none", "--mbs", "1", "--zero", "1")
    assert gpuscale("plan", *LLAMA[:4], *pins, "-o", plan).code == 0
    assert gpuscale("export", plan, "--to", "megatron-lm", "-o", tmp_path / "launch").code == 0
    exported = dict(re.findall(r"^export (\w+)=(.*)$", (tmp_path / "launch" / "run.sh").read_text(), re.MULTILINE))
    settings = {one.variable: shlex.quote(one.value) for one in advice["70B"].settings}
    assert exported.items() <= settings.items()
    assert set(settings) - set(exported) <= {"NCCL_DEBUG", "NCCL_COLLNET_ENABLE"}


def test_more_connections_are_for_rings_over_whole_nodes():
    """What NVIDIA/nccl-tests issue 309 measured is a ring over whole nodes of H100 on InfiniBand, and only that."""

    def variables(**options):
        layout = options.pop("layout", {})
        return {one.variable for one in advise(read_subject(options={"gpus": 128, **options}, layout=layout)).settings}

    more = {"NCCL_MIN_CTAS", "NCCL_IB_QPS_PER_CONNECTION"}
    assert more <= variables(model="llama3-8b", framework="torchtitan")
    assert not more & variables(model="llama3-8b", framework="torchtitan", cluster="aws-p5")
    assert not more & variables(model="llama3-70b", layout={"tp": 8})


def test_text_markdown_and_json_say_the_same(tmp_path):
    text, answer = gpuscale("advise", *LLAMA), json.loads(gpuscale("advise", *LLAMA, "--json").out)
    assert (text.code, text.err, answer["schema"]) == (0, "", "gpuscale.advise/1")
    assert text.lines[0] == answer["verdict"]
    assert max(map(len, text.lines)) <= 100
    page = gpuscale("advise", *LLAMA, "--markdown").out
    path = tmp_path / "advise.md"
    assert gpuscale("advise", *LLAMA, "-o", path).code == 0
    assert path.read_text() == page
    assert page.count("- [ ] **") == len(answer["checklist"])
    assert page.count("mpirun") == len(answer["benchmarks"])
    assert "**9.66 s (+14.4%)**: TP communication does not overlap" in page
    flat = " ".join(text.out.split())
    for item in answer["checklist"]:
        assert " ".join(f"{item['name']}: {item['now']}".split()) in flat


@pytest.mark.parametrize(
    ("arguments", "never"),
    [
        (("--model", "llama3-8b", "--gpus", "1"), r"mpirun|NCCL_DEBUG|nvlink"),
        (("--model", "llama3-8b", "--gpus", "8"), r"ibstat|rail|bubble"),
        (("--model", "llama3-8b", "--gpus", "64", "--cluster", "mi300x"), r"nvidia-smi|NVLink:|NVLS"),
        (("--model", "llama3-8b", "--gpus", "64", "--cluster", "tpu-v5p-pod"), r"nvidia-smi|mpirun|NCCL"),
        (("--model", "llama3-8b", "--gpus", "72", "--cluster", "gb200-nvl72", "--gbs", "72"), r"ibstat|rail"),
    ],
)
def test_what_a_job_has_not_is_left_out(arguments, never):
    done = gpuscale("advise", *arguments)
    assert (done.code, done.err) == (0, "")
    found = re.search(never, done.out)
    assert not found, done.out


def test_the_checkpoint_interval_is_that_of_goodput(advice):
    job, layout = CASES["70B"]
    found = goodput(read_subject(options=job, layout=layout))
    item = next(one for one in advice["70B"].checklist if one.name == "checkpoint interval")
    assert f"({found.checkpoint_interval_steps} steps)" in item.expect
    assert f"{found.effective_ratio:.1%} goodput" in item.expect


@pytest.mark.parametrize(
    ("options", "layout", "least"),
    [
        ({"model": "llama3-8b", "gpus": 1024}, {}, 2472),  # reference, "Rooflines": FSDP, and DP without reduction
        ({"model": "llama3-8b", "gpus": 1024, "framework": "generic"}, {"zero": 3}, 2472),
        ({"model": "llama3-70b", "gpus": 1024}, {"tp": 8, "pp": 4}, 2472 / 4),  # 400 GB/s of a node, 32 ranks of 8
        # E C / (k W), no SHARP: twice its 1236 x 256 / 8 / 8 = 4944
        ({"model": "deepseek-v3", "gpus": 1024}, {"ep": 64}, 2 * 4944),
    ],
)
def test_the_batch_is_held_against_the_reference(options, layout, least):
    found = advise(read_subject(options=options, layout=layout, despite_rules=True))
    item = next(one for one in found.checklist if one.name == "batch")
    assert int(re.search(r" ([\d,]+) needed$", item.now)[1].replace(",", "")) == pytest.approx(least, rel=0.002)


def test_paths_are_those_of_the_fabric():
    box = {"model": "llama3-8b", "gpus": 8, "cluster": "box-h100-pcie-80gb"}
    found = advise(read_subject(options=box))
    assert next(one for one in found.checklist if one.name == "topology").expect.startswith("PIX or PXB")
    assert "NVLink" not in {one.name for one in found.checklist}


def test_unusable_input_is_one_message():
    assert_one_message(gpuscale("advise", *LLAMA, "--json", "--markdown"), "two formats", "one of them")
    assert_one_message(gpuscale("advise", *LLAMA, "-o", "-", "--json"), "two documents", "give a file")


@pytest.mark.parametrize(("cluster", "rdma"), [("dgx-h100-superpod", True), ("aws-g6e-eni", False)])
def test_only_a_network_with_rdma_can_fall_back_to_tcp(cluster, rdma):
    one = read_subject(None, {"model": "llama3-8b", "gpus": 32, "cluster": cluster}, {"tp": 2, "pp": 2})
    assert any("over TCP" in sign.suspect for sign in signs(one, ())) is rdma


# Tables to decide by, without a plan.

HOLDING = {
    "llama3.2-1b": {"optimizer states fill the memory": False, "much data, and a step fits on one GPU": True},
    "llama3-8b": {"much data, and a step fits on one GPU": False, "not even the weights fit": False},
    "llama3-70b": {"not even the weights fit": True, "the layers are too many for one node": True,
                   "a mixture of many experts": False, "a single layer is too large": False},
    "llama3-405b": {"a single layer is too large": True},
    "deepseek-v3": {"a mixture of many experts": True, "a single layer is too large": False},
}  # fmt: skip


@pytest.mark.parametrize("model", HOLDING)
def test_situations_of_a_model_hold_by_its_memory(model):
    found = {one.situation: one for one in decide(model=model).situations}
    assert {name: found[name].holds for name in HOLDING[model]} == HOLDING[model]
    assert found["training over several nodes"].holds is None


def test_what_fits_is_what_estimate_says_of_one_gpu():
    for model in ("llama3.2-1b", "llama3-8b"):
        alone = estimate(model, 1, gbs=1).plan
        (one,) = [one for one in decide(model=model).situations if "fits on one GPU" in one.situation]
        assert f"{alone.memory_gib:,.1f} of {alone.memory_limit_gib:,.1f} GiB" in one.now
        assert one.holds == (alone.memory_gib <= alone.memory_limit_gib)


def test_long_sequences_and_nodes_are_judged_by_what_is_given():
    found = {one.situation: one.holds for one in decide(model="llama3-8b", seq=32768).situations}
    assert (found["sequences are long"], found["activations fill the memory"]) == (True, True)
    for gpus, holds in ((8, False), (16, True)):
        (*others, nodes) = decide(gpus=gpus).situations
        assert (nodes.situation, nodes.holds) == ("training over several nodes", holds)
        assert {one.holds for one in others} == {None}


def test_tables_without_a_job_say_nothing_of_one():
    found = decide()
    assert (found.model, found.cluster, found.gpus) == (None, None, None)
    assert {one.holds for one in found.situations} == {None}
    assert {one.pressure for one in found.pressures} == {"memory", "network", "batch", "sequence", "experts"}
    done = gpuscale("advise")
    assert done.code == 0
    for word in ("--zero 1", "--cp", "AllToAll"):
        assert word in done.out


def test_the_advice_of_a_plan_has_the_same_tables(advice):
    for name, (job, _) in CASES.items():
        same = {one.situation: one for one in decide(**job).situations}
        assert {one.situation: one for one in advice[name].situations} == same
        assert {one.name for one in advice[name].pressures} <= {one.pressure for one in decide().pressures}
    assert {one.splits for one in advice["long context"].strategies} >= {"matrices", "sequences"}


def test_the_tables_need_a_model_for_its_options():
    assert_one_message(gpuscale("advise", "--seq", "8192"), "--seq: has no effect without --model", "add --model")
    assert_one_message(gpuscale("advise", "--tp", "8"), "--model is missing", "give --model")
