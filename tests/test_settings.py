"""What is set of a cluster: another machine is what it should be, and more of something is never slower."""

from dataclasses import replace
from itertools import pairwise

import pytest

from gpuscale.errors import InputError
from gpuscale.launch.subject import read_subject
from gpuscale.planning.plans import estimate, plan
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.settings import with_settings
from gpuscale.specs.cluster import CalibrationSpec
from gpuscale.studies.study import read_study
from gpuscale.studies.whatif import CHANGES

GB = 1e9


def changed(name, text):
    return with_settings(load_cluster(name), text)


def sizes(cluster):
    return [(level.name, level.gpus) for level in cluster.levels]


def test_a_network_twice_as_fast_carries_twice_as_much_between_nodes_alone():
    before, after = load_cluster("dgx-h100-superpod-2to1"), changed("dgx-h100-superpod-2to1", "network=x2")
    for one, other in zip(before.levels, after.levels, strict=True):
        times = 1 if one.fabric == "nvlink" else 2
        assert other.egress_bytes_per_s == pytest.approx(times * one.egress_bytes_per_s)
        assert (other.gpus, other.switches) == (one.gpus, one.switches)


def test_a_second_port_has_switches_of_its_own():
    leaf = changed("dgx-h100-superpod", "nics=2").levels[1]
    assert (leaf.nics_per_gpu, leaf.switches) == (2, 16)
    assert leaf.egress_bytes_per_s == pytest.approx(100 * GB)
    shared = changed("polaris", "nics=1").levels[1]  # two GPUs share a card there
    assert shared.link_bytes_per_s == pytest.approx(2 * load_cluster("polaris").levels[1].link_bytes_per_s)


def test_oversubscription_is_links_over_switches_of_the_outermost_level():
    before, after = load_cluster("dgx-h100-superpod"), changed("dgx-h100-superpod", "oversubscription=2")
    assert after.levels[:2] == before.levels[:2]
    assert after.levels[2].egress_bytes_per_s == pytest.approx(25 * GB)
    published = load_cluster("dgx-h100-superpod-2to1").levels[2]
    assert after.levels[2].egress_bytes_per_s == pytest.approx(published.egress_bytes_per_s)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nvl72", "domain=8", [("nvl72", 8), ("leaf", 576), ("spine", 9216)]),
        ("nvl72", "domain=144", [("nvl72", 144), ("leaf", 576), ("spine", 9216)]),
        ("nvl72", "domain=576", [("nvl72", 576), ("spine", 9216)]),  # as gb200-nvl576 has it
        ("h100", "domain=72", [("node", 72), ("leaf", 288), ("spine", 1152)]),
        ("h100", "domain=x0.5", [("node", 4), ("leaf", 256), ("spine", 1024)]),
        ("h100", "leaf.gpus=512", [("node", 8), ("leaf", 512), ("spine", 1024)]),
        ("h100", "spine.gpus=2048", [("node", 8), ("leaf", 256), ("spine", 2048)]),
        ("aws-p5", "domain=16384", [("node", 16384), ("fabric", 32768)]),
    ],
)
def test_levels_around_a_domain_stay_whole_and_carry_as_much(name, text, expected):
    before, after = load_cluster(name), changed(name, text)
    assert sizes(after) == expected
    rates = {level.name: level.egress_bytes_per_s for level in before.levels}
    for below, level in pairwise(after.levels):
        assert level.gpus % below.gpus == 0
        assert level.gpus >= 2 * below.gpus
    for level in after.levels:
        assert level.egress_bytes_per_s == pytest.approx(rates[level.name])


def test_a_domain_smaller_than_a_host_has_its_part_of_the_host():
    before, after = load_cluster("h100").host, changed("h100", "domain=2").host
    assert (after.gpus, after.memory_bytes) == (2, before.memory_bytes / 4)


def test_a_rack_cut_to_eight_is_a_box_of_eight_with_its_links():
    """Against a cluster file that says the same: B200 boxes with the GPU, links and network of the rack."""
    rack = changed("nvl72", "domain=8")
    box = with_settings(load_cluster("b200-hgx"), "gpu=gb200")
    for one, other in ((rack.levels[0], box.levels[0]), (rack.levels[-1], box.levels[-1])):
        assert one.egress_bytes_per_s == pytest.approx(other.egress_bytes_per_s)
    answers = [
        plan("llama3-70b", 64, cluster=name, set=text, gbs=512, top=1, pins={"tp": "1..8"}).plans[0].step_time_s
        for name, text in (("nvl72", "domain=8"), ("b200-hgx", "gpu=gb200"))
    ]
    assert answers[0] == pytest.approx(answers[1], rel=0.03)


def test_memory_bandwidth_and_peaks_of_the_gpu():
    before = load_cluster("h100").gpu
    after = changed("h100", "gpu.memory_gib=x1.5,gpu.memory_gb_per_s=4800,gpu.flops=x2").gpu
    assert after.memory_bytes == pytest.approx(1.5 * before.memory_bytes)
    assert after.memory_bandwidth_bytes_per_s == 4800 * GB
    assert {name: 2 * peak for name, peak in before.peak_flops_per_s.items()} == after.peak_flops_per_s


def test_settings_hold_in_the_order_in_which_they_are_written():
    assert changed("h100", "leaf.link_gb_per_s=40,network=x2").levels[1].link_bytes_per_s == 80 * GB
    assert changed("h100", "network=x2,leaf.link_gb_per_s=40").levels[1].link_bytes_per_s == 40 * GB
    assert changed("h100", "leaf.link_gb_per_s=x0.5").levels[1].link_bytes_per_s == 25 * GB


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nvl72", "domain=6", "no whole hosts of 4"),
        ("nvl72", "domain=x1.01", "72.72 GPUs"),
        ("nvl72", "domain=2000000", "out of range"),
        ("nvl72", "leaf.gpus=100", "no whole units of 72"),
        ("mi300x", "domain=16", "no switches join"),
        ("tpu-v5p-pod", "domain=16", "no switches join"),
        ("gb200-nvl576", "domain=72", "not by one NVLink level"),
        ("box-l40s-pcie", "network=x2", "no level between nodes"),
        ("leonardo", "oversubscription=2", "no switches join the units"),
        ("h100", "oversubscription=0.5", "out of range"),
        ("h100", "network=x0", "out of range"),
        ("h100", "network=fast", "is not a number"),
        ("h100", "network=", "sets nothing"),
        ("h100", "gpu.flops=1000", "does not say of which precision"),
        ("h100", "gpu.memory_gib=0.1", "out of range"),
        ("h100", "leaf.fabric=x2", "is not a number"),
        ("h100", "leaf.link_gb_per_s=xx", "link_gb_per_s"),
        ("h100", "gpu.power_w=x2", "is above"),
    ],
)
def test_machines_that_cannot_be_are_refused(name, text, message):
    with pytest.raises(InputError, match=message):
        changed(name, text)


def test_pools_are_refused_with_a_hint():
    pools = "tests/data/fleet.toml"
    with pytest.raises(InputError, match="takes no settings") as raised:
        changed(pools, "network=x2")
    assert "one pool" in raised.value.hint


LAYOUTS = [
    ("llama3-70b", "h100", {"tp": 8, "pp": 4}),
    ("llama3-70b", "h100", {"tp": 16, "zero": 3}),
    ("llama3-70b", "dgx-h100-superpod-2to1", {"tp": 8, "pp": 2, "zero": 3}),
    ("mixtral-8x22b", "aws-p5", {"tp": 4, "pp": 2, "ep": 8}),
    ("deepseek-v3", "nvl72", {"pp": 2, "ep": 32}),
    ("mixtral-8x7b", "mi300x", {"tp": 2, "ep": 8}),
    ("llama3-8b", "polaris", {"tp": 4, "pp": 2}),
]
MORE = ["network=x{}", "gpu.memory_gb_per_s=x{}", "gpu.flops=x{}"]


@pytest.mark.parametrize(("model", "cluster", "layout"), LAYOUTS)
@pytest.mark.parametrize("text", MORE)
def test_more_of_anything_never_makes_a_layout_slower(model, cluster, layout, text):
    options = {"model": model, "gpus": 256, "cluster": cluster, "gbs": 256}
    seconds = [
        read_subject(
            None, {**options, "set": text.format(f"{factor:g}")}, layout, despite_rules=True
        ).estimate.plan.step_time_s
        for factor in (0.5, 1, 1.5, 2, 4)
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1]


@pytest.mark.parametrize(("model", "gpus"), [("deepseek-v3", 1152), ("mixtral-8x22b", 1152)])
def test_a_larger_domain_never_slows_the_best_plan_of_a_model_of_experts(model, gpus):
    """Domains that divide each other and the GPUs of the job: others leave GPUs of each domain idle or cut groups."""
    found = [
        plan(model, gpus, cluster="nvl72", set=f"domain={size}", gbs=1152, gpus_per_node=size, top=1).plans[0]
        for size in (4, 8, 24, 72, 144, 576)
    ]
    found = [one.step_time_s for one in found]
    assert all(after <= 1.001 * before for before, after in pairwise(found)), found
    assert found[-1] < found[0]


def test_neutral_settings_change_nothing():
    plain = plan("mixtral-8x7b", 128, top=3).plans
    for text in ("network=x1", "nics=1", "domain=8", "oversubscription=1", "gpu.memory_gib=x1,gpu.flops=x1"):
        assert plan("mixtral-8x7b", 128, top=3, set=text).plans == plain, text


def test_measured_curves_of_what_changes_are_left_out():
    cluster = load_cluster("h100")
    curves = tuple(
        CalibrationSpec("allreduce", name, 8, stride, (1.0,), (1e-5,), "a log")
        for name, stride in (("node", 1), ("leaf", 8))
    )
    measured = replace(cluster, calibration=curves)
    for text, kept in (("gpu.power_w=500", ["node", "leaf"]), ("network=x2", ["node"]), ("domain=16", [])):
        assert [one.level for one in with_settings(measured, text).calibration] == kept


def test_every_change_of_a_study_is_a_setting():
    values = {"gpu": "h200", "nvlink_domain": 16, "network": 2.0, "nics": 2, "oversubscription": 1.5, "memory": 1.5,
              "memory_bandwidth": 1.2, "flops": 1.1, "power_w": 500, "set": "leaf.hop_latency_us=3"}  # fmt: skip
    assert set(values) == set(CHANGES)
    tables = [{"name": "x", "base": "h100", **values}]
    case = next(read_study({"study": {"model": "llama3-8b", "gpus": 16}, "clusters": tables}).cases())
    assert case.options["set"].count("=") == len(CHANGES)
    assert plan("llama3-8b", 16, set=case.options["set"], top=1).plans[0].step_time_s > 0


@pytest.mark.parametrize(
    ("cluster", "text", "noted"),
    [
        ("h100", "nics=2", True),
        ("h100", "network=x1.2", False),
        ("nvl72", "nics=2", False),
        ("b300-hgx", "network=x2", False),
    ],
)
def test_a_network_past_the_link_to_the_host_is_noted(cluster, text, noted):
    """B300 boxes have cards of 800 Gbit/s beside a PCIe 5.0 host from the start."""
    notes = estimate("llama3-8b", 16, {"tp": 2}, cluster=cluster, set=text).notes
    assert any("faster way to the GPU" in note for note in notes) == noted
