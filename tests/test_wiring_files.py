"""Cluster files: rails, topologies, NCCL's ways, PCIe switches and pools, and what is refused of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.collectives.groups import place
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.presets.files import find_preset
from gpuscale.presets.hardware import WAYS, all_clusters, load_cluster
from gpuscale.specs.cluster import ClusterSpec, PoolSpec, common_levels, cut, joined

GB = 1e9
DOCS = Path(__file__).parents[1] / "docs" / "hardware.md"
SOURCES = '[levels.sources]\n"*" = "guesstimate: made up for a test"\n'


def write(folder, text, name="mine.toml"):
    path = folder / name
    path.write_text(text)
    return path


def level(name, fabric, gpus, *more):
    lines = [f'name = "{name}"', f'fabric = "{fabric}"', f"gpus = {gpus}", "in_network_reduction = false", *more]
    return "[[levels]]\n" + "\n".join(lines) + "\n" + SOURCES


def cluster(*levels, gpu="h100", extendable="false"):
    return f'title = "T"\ngpu = "{gpu}"\nextendable = {extendable}\n' + "".join(levels)


NUMBERS = ("hop_latency_us = 1", "link_efficiency = 0.8")
NODE = level("node", "nvlink", 8, "link_gb_per_s_per_gpu_per_direction = 450", "switches = 4",
             "switch_gb_per_s_per_direction = 1600", *NUMBERS)  # fmt: skip
CARDS = ("nics_per_gpu = 1", "nic_gbit_per_s = 400", "link_gb_per_s_per_gpu_per_direction = 50", *NUMBERS)
LEAF = level("leaf", "infiniband", 256, *CARDS)


# -- ways of NCCL --


def test_a_way_stands_for_numbers_that_are_left_out(tmp_path):
    text = cluster(
        level("node", "nvlink", 8, 'path = "nvlink-p2p"'),
        level("leaf", "roce", 64, 'path = "gdr"', "nics_per_gpu = 0.5", "nic_gbit_per_s = 200"),
    )
    found = load_cluster(str(write(tmp_path, text)))
    node, leaf = found.levels
    assert (node.link_bytes_per_s, node.hop_latency_s, node.link_efficiency) == (450 * GB, 1e-6, 0.824)
    assert (leaf.link_bytes_per_s, leaf.hop_latency_s, leaf.link_efficiency) == (12.5 * GB, 5.5e-6, 0.93)
    assert found.sources["node.hop_latency_us"].startswith("path nvlink-p2p: guesstimate")
    assert found.sources["leaf.link_gb_per_s_per_gpu_per_direction"] == "path gdr: 0.5 x 200 Gbit/s per GPU"


def test_numbers_of_the_file_go_before_those_of_the_way(tmp_path):
    text = cluster(level("node", "pcie", 8, 'path = "shm"', "hop_latency_us = 7"), gpu="l40s")
    node = load_cluster(str(write(tmp_path, text))).levels[0]
    assert (node.hop_latency_s, node.link_efficiency, node.link_bytes_per_s) == (7e-6, 0.4, 31.5 * GB)


def test_ways_are_ordered_as_they_cost(tmp_path):
    def seconds(path, fabric, *more):
        text = cluster(level("node", fabric, 4, f'path = "{path}"', *more), gpu="a100-pcie-80gb")
        return float(collective_time_s(load_cluster(str(write(tmp_path, text))), "allgather", 1e8, 4))

    times = [seconds(path, "pcie") for path in ("pcie-p2p", "pcie-p2p-host", "shm")]
    assert times == sorted(times)
    cards = ("nics_per_gpu = 1", "nic_gbit_per_s = 200")
    times = [seconds(path, "infiniband", *cards) for path in ("gdr", "net", "sockets")]
    assert times == sorted(times)


def test_staged_ways_share_the_uplink_of_their_switch(tmp_path):
    def rate(path, behind):
        extra = (f"gpus_per_pcie_switch = {behind}", f"nics_per_pcie_switch = {behind}", "nic_gbit_per_s = 200")
        text = cluster(NODE, level("leaf", "infiniband", 64, f'path = "{path}"', *extra))
        return load_cluster(str(write(tmp_path, text))).levels[1].link_bytes_per_s / GB

    assert (rate("gdr", 1), rate("gdr", 4)) == (25, 25)
    assert rate("net", 1) == 25  # PCIe 5.0 carries 63 GB/s, out and back: 31.5
    assert rate("net", 2) == 63 / 2 / 2
    assert rate("sockets", 4) == 63 / 2 / 4


def test_gpus_behind_a_switch_share_its_uplink(tmp_path):
    text = cluster(level("node", "pcie", 8, 'path = "pcie-p2p-host"', "gpus_per_pcie_switch = 4"), gpu="l40s")
    found = load_cluster(str(write(tmp_path, text)))
    assert [(one.name, one.gpus, one.egress_bytes_per_s / GB, one.path) for one in found.levels] == [
        ("node-switch", 4, 31.5, "pcie-p2p"), ("node", 8, 31.5 / 4, "pcie-p2p-host"),
    ]  # fmt: skip
    ring = place(found, [8], [1]).wire_bytes_per_s[:, 0] / GB
    assert ring.tolist() == [31.5, 31.5]  # one way out of each switch: all of its uplink
    inside, across = (collective_time_s(found, "alltoall", 1e8, 4, stride, ideal=True) for stride in (1, 2))
    assert across == pytest.approx(inside * (1 / 2) / (3 / 4) * 4)


def test_affinity_says_the_cards_and_the_uplink_of_the_host(tmp_path):
    host = '[host]\ngpus = 8\nmemory_gib = 1024\nmemory_gb_per_s = 400\n[host.sources]\n"*" = "made up for a test"\n'
    extra = ("gpus_per_pcie_switch = 2", "nics_per_pcie_switch = 1", 'path = "gdr"', "nic_gbit_per_s = 200")
    found = load_cluster(str(write(tmp_path, cluster(NODE, level("leaf", "infiniband", 64, *extra)) + host)))
    assert (found.levels[1].nics_per_gpu, found.levels[1].link_bytes_per_s) == (0.5, 12.5 * GB)
    assert found.host.gpus_per_uplink == 2


def test_docs_have_every_way():
    text = DOCS.read_text()
    for name, way in WAYS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert f"| {way.hop_us:g}" in row
        assert f"{way.efficiency:g}" in row


# -- what is refused --


def torus(*more, gpus=64, extendable="false"):
    link = "link_gb_per_s_per_gpu_per_direction = 540"
    return cluster(level("pod", "ici", gpus, 'topology = "torus"', link, *NUMBERS, *more), gpu="tpu-v5p",
                   extendable=extendable)  # fmt: skip


GLOBAL = "global_gb_per_s_per_group_per_direction = 1000"
REFUSED = [
    (torus("torus_shape = [4, 4, 5]"), "4 x 4 x 5 = 80, but pod joins 64 units", "multiply to"),
    (torus(), "a torus needs torus_shape", "[16, 20, 28]"),
    (torus("torus_shape = [64, 1]"), "torus_shape[1] = 1", "should be at least 2"),
    (torus("torus_shape = [4, 4, 4]", "switches = 2", "switch_gb_per_s_per_direction = 9"), "not 2 switches", "leave"),
    (torus("torus_shape = [4, 4, 4]", extendable="true"), "cannot be widened", "extendable = false"),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, "torus_shape = [8]")), "a torus needs torus_shape", "torus"),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, GLOBAL)), "nothing else has it", "all global links"),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, 'topology = "dragonfly"')), "a dragonfly needs", "global"),
    (cluster(level("leaf", "infiniband", 64, *CARDS, 'topology = "dragonfly"', GLOBAL)), "no level below", "the group"),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, "minimal_share = 0.5")), "takes detours", "leave it out"),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, 'topology = "mesh"')), "joins units", "every other"),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, 'topology = "ring"')), "'ring'", "torus"),
    (cluster(NODE.replace("gpus = 8", 'gpus = 8\nrails = "only"'), LEAF), "nvlink has no network cards", "network"),
    (cluster(NODE, LEAF, level("spine", "infiniband", 512, *CARDS, 'rails = "optimised"')), "joins the rails", "first"),
    (
        cluster(NODE, level("leaf", "infiniband", 64, *CARDS, 'rails = "only"'), LEAF.replace("leaf", "spine")),
        "rails that nothing joins, but spine does", "optimised",
    ),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, "pxn = true")), "none to change", "add rails"),
    (
        cluster(
            level("node", "pcie", 8, 'path = "shm"'),
            level("leaf", "infiniband", 64, 'path = "gdr"', "nics_per_gpu = 0.5", "nic_gbit_per_s = 200",
                  'rails = "optimised"', "pxn = true"), gpu="l40s"),
        "PXN goes over NVLink, but pcie joins", "pxn = false",
    ),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, 'path = "shm"')), "does not go over infiniband", "gdr, net"),
    (cluster(NODE, level("leaf", "infiniband", 64, *CARDS, 'path = "tcp"')), "'tcp'", "sockets"),
    (cluster(NODE, level("leaf", "infiniband", 64, "nics_per_gpu = 1")), "link_efficiency' (or path)", "docs/"),
    (cluster(NODE, level("leaf", "infiniband", 64, 'path = "gdr"')), "'link_gb_per_s_per_gpu_per", "docs/hardware.md"),
    (
        cluster(NODE, level("leaf", "infiniband", 64, *CARDS, "nics_per_pcie_switch = 1")),
        "need a network level with gpus_per_pcie_switch", "both at the first",
    ),
    (
        cluster(NODE, level("leaf", "infiniband", 64, *CARDS, "gpus_per_pcie_switch = 3", "nics_per_pcie_switch = 3")),
        "3 GPUs per switch do not divide the 8", "count",
    ),
    (
        cluster(NODE, level("leaf", "infiniband", 64, *CARDS, "gpus_per_pcie_switch = 2", "nics_per_pcie_switch = 1")),
        "1 cards per GPU, but 1 for 2 GPUs", "leave one",
    ),
    (cluster(NODE.replace("gpus = 8", "gpus = 8\ngpus_per_pcie_switch = 2"), LEAF), "does not pass PCIe", "pcie level"),
    (
        cluster(level("node", "pcie", 8, 'path = "shm"', "gpus_per_pcie_switch = 4", "switches = 2",
                      "switch_gb_per_s_per_direction = 31.5"), gpu="l40s"),
        "4 GPUs per switch, but 2 switches too", "one way",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_impossible_wiring_is_refused_with_file_and_line(tmp_path, text, message, hint):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    said = f"{caught.value.message} {caught.value.hint}"
    assert message in said
    assert hint in said
    assert re.fullmatch(rf"{re.escape(str(path))}:\d+", str(caught.value.place))
    assert_one_message(gpuscale("clusters", "show", path), message, "")


def test_wiring_needs_a_source(tmp_path):
    source = '"gpus, in_network_reduction, hop_latency_us, link_efficiency, link*, nic*" = "made up for a test"'
    text = cluster(NODE, level("leaf", "infiniband", 64, *CARDS, 'rails = "optimised"').replace(
        '"*" = "guesstimate: made up for a test"', source))  # fmt: skip
    with pytest.raises(InputError, match="rails has no source"):
        load_cluster(str(write(tmp_path, text)))


# -- what the presets say --


def test_reference_architectures_are_railed():
    kinds = {one.name: [level.rails for level in one.levels if level.fabric != "nvlink"] for one in all_clusters()}
    for name in ("dgx-h100-superpod", "dgx-a100-superpod", "b200-hgx", "gb200-nvl72"):
        assert kinds[name] == ["optimised", "none"]
    assert kinds["h800-deepseek"] == ["only", "only"]
    assert load_cluster("dgx-h100-superpod").levels[1].pxn


def test_nvl576_is_one_domain_of_eight_racks():
    found = load_cluster("nvl576")
    assert [one.gpus for one in found.levels] == [72, 576, 9216]
    assert found.levels[found.domain_index].name == "nvl576"
    assert found.levels[1].total_bytes_per_s == 576 * 900 * GB
    assert "guesstimate" in found.sources["nvl576.switches"]


def test_clusters_show_says_how_levels_are_wired():
    def lines(name):
        done = gpuscale("clusters", "show", name)
        assert (done.code, done.err) == (0, "")
        assert max(map(len, done.lines)) <= 100
        return " ".join(done.out.split())

    assert "torus of 16 x 20 x 28, the first axis first; around one axis 180 GB/s" in lines("tpu-v5p-pod")
    assert "dragonfly of 19 groups, each with 8,100 GB/s of global links; adaptive routing" in lines("leonardo")
    assert "leaf: rail-optimised: one hop on a rail, to other rails over NVLink first (PXN)" in lines("superpod")
    assert "spine: rails only, no spine joins them" in lines("h800-deepseek")
    assert "path gdr, NET with GPUDirect RDMA" in lines("leonardo")
    level = json.loads(gpuscale("clusters", "show", "tpu-v5p-pod", "--json").out)["clusters"][0]["levels"][0]
    assert (level["topology"], level["torus_shape"], level["rails"]) == ("torus", [16, 20, 28], "none")


# -- pools --


def fleet(*names, gpus=(256, 512), **edits):
    text = DOCS.read_text()
    block = next(part for part in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[[pools]]" in part)
    for old, new in edits.items():
        assert old in block
        block = block.replace(old, new)
    return block


def test_the_fleet_of_the_guide(tmp_path):
    path = write(tmp_path, fleet(), "fleet.toml")
    whole, h100, a100 = (load_cluster(f"{path}{pool}") for pool in ("", ":h100", ":a100"))
    assert (whole.gpus, h100.gpus, a100.gpus) == (768, 256, 512)
    assert [(one.name, one.gpus) for one in whole.levels] == [("node", 8), ("leaf", 32), ("core", 768)]
    assert [one.egress_bytes_per_s / GB for one in whole.levels] == [300, 25, 12.5]
    assert (whole.gpu.name, whole.gpu.memory_bytes) == ("a100-sxm-80gb", h100.gpu.memory_bytes)
    assert whole.gpu.peak("bf16") == a100.gpu.peak("bf16")
    assert (h100.name, h100.levels[-1].gpus) == ("fleet.toml:h100", 256)
    assert [one.egress_bytes_per_s for one in h100.levels] == [450 * GB, 50 * GB]
    assert whole.mixture_note(768) == (
        "every part runs as the slowest: bf16 FLOP/s of a100, 79.6 GiB of h100; "
        "the 256 h100 wait for the 512 a100: 68% of their FLOP/s idle; "
        "`gpuscale fleet` compares this with work split by speed"
    )
    assert whole.mixture_note(300).endswith("a job of 300 GPUs fits into one pool: `cluster=fleet.toml:a100`")
    assert whole.mixture_note(100).endswith(
        "fits into one pool: `cluster=fleet.toml:h100` or `cluster=fleet.toml:a100`"
    )


def test_every_command_takes_pools_and_the_whole(tmp_path):
    path = write(tmp_path, fleet(), "fleet.toml")
    plan = gpuscale("plan", "--model", "llama3-8b", "--gpus", "768", "--cluster", path, "--top", "1")
    assert (plan.code, plan.err) == (0, "")
    assert "68% of their FLOP/s idle" in " ".join(plan.out.split())
    slow = json.loads(gpuscale("estimate", "--model", "llama3-8b", "--gpus", "256", "--cluster", path, "--json").out)
    fast = json.loads(
        gpuscale("estimate", "--model", "llama3-8b", "--gpus", "256", "--cluster", f"{path}:h100", "--json").out
    )
    assert slow["plan"]["step_time_s"] > 2 * fast["plan"]["step_time_s"]
    assert any("fits into one pool" in note for note in slow["notes"])
    assert fast["notes"] == []
    done = gpuscale("collective", "allreduce", "--bytes", "1GB", "--cluster", path)
    assert "note: every part runs as the slowest" in done.out
    assert "wait for" not in gpuscale("collective", "allreduce", "--bytes", "1GB", "--cluster", f"{path}:a100").out
    placed = gpuscale("placement", "--gpus", "768", "--tp", "8", "--cluster", path)
    assert (placed.code, placed.err) == (0, "")
    show = gpuscale("clusters", "show", path)
    assert show.lines[0].startswith("fleet: 256 x h100-sxm-80gb and 512 x a100-sxm-80gb")
    assert ["h100", "h100-sxm-80gb", "256", "node(8)", "leaf(256)", "450", "/", "50"] in map(str.split, show.lines)
    pools = json.loads(gpuscale("clusters", "show", path, "--json").out)["clusters"][0]["pools"]
    assert [(one["name"], one["gpus"], one["cluster"]) for one in pools] == [
        ("h100", 256, "fleet.toml:h100"), ("a100", 512, "fleet.toml:a100"),
    ]  # fmt: skip


def test_a_plan_remembers_its_pool_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "plans").mkdir()
    write(tmp_path, fleet(), "fleet.toml")
    monkeypatch.chdir(tmp_path)
    plan = ("plan", "--model", "llama3-8b", "--gpus", "16", "--tp", "2", "--pp", "2", "--cluster", "fleet.toml:a100")
    assert gpuscale(*plan, "-o", "plans/plan.toml").code == 0
    assert 'cluster = "../fleet.toml:a100"' in (tmp_path / "plans" / "plan.toml").read_text()
    monkeypatch.chdir(tmp_path / "plans")
    placed = json.loads(gpuscale("placement", "plan.toml", "--json").out)
    assert (placed["cluster"], placed["degrees"]["pp"]) == ("fleet.toml:a100", 2)
    assert json.loads(gpuscale("estimate", "plan.toml", "--json").out)["cluster"] == "fleet.toml:a100"


OWN = """[[pools]]
name = "own"
gpu = "gb200"
gpus = 144
sources = { gpus = "two racks of ours, 2026" }
[[pools.levels]]
name = "rack"
fabric = "nvlink"
gpus = 72
path = "nvlink-p2p"
in_network_reduction = false
[pools.levels.sources]
"*" = "guesstimate: made up for a test"
[[pools.levels]]
name = "net"
fabric = "infiniband"
gpus = 144
path = "gdr"
nics_per_gpu = 1
nic_gbit_per_s = 400
in_network_reduction = false
[pools.levels.sources]
"*" = "guesstimate: made up for a test"

"""


def test_a_pool_may_have_levels_of_its_own(tmp_path):
    text = fleet(**{"[[levels]]": OWN + "[[levels]]", "gpus = 768": f"gpus = {768 + 144}"})
    path = write(tmp_path, text, "fleet.toml")
    own = load_cluster(f"{path}:own")
    assert ([one.gpus for one in own.levels], own.gpu.name) == ([72, 144], "gb200")
    assert [one.gpus for one in load_cluster(str(path)).levels] == [8, 16, 912]
    assert_one_message(
        gpuscale("placement", "--gpus", "912", "--tp", "8", "--cluster", path),
        "the nodes of fleet differ (8 GPUs in h100, 8 GPUs in a100, 72 GPUs in own)",
        "place one pool: --cluster fleet.toml:h100",
    )


SECOND = (
    '[[levels]]\nname = "x"\nfabric = "roce"\ngpus = 768\nin_network_reduction = false\npath = "gdr"\nsources = {}\n'
)
FLEET_REFUSED = [
    ({"gpus = 768": "gpus = 1024"}, "core has 1,024 GPUs, but its pools have 768", "gpus = 768"),
    ({"gpus = 256": "gpus = 260"}, "pool h100: 260 GPUs do not fill whole nodes of 8", "multiple of 8"),
    ({'name = "a100"': 'name = "h100"'}, "a second pool called 'h100'", "its own name"),
    ({"extendable = false": "extendable = true"}, "pools say how many GPUs there are", "extendable = false"),
    ({"extendable = false": 'extendable = false\ngpu = "h100"'}, "gpu belongs to the pools", "[[pools]]"),
    ({'cluster = "dgx-a100-superpod"\n': ""}, "pool a100 needs a cluster, or a gpu and levels", "[[pools.levels]]"),
    ({'cluster = "dgx-a100-superpod"\n': 'gpu = "a100"\n'}, "pool a100 needs a cluster, or a gpu", "cluster ="),
    ({'cluster = "dgx-a100-superpod"': 'cluster = "fleet.toml"'}, "fleet.toml has pools itself", "do not nest"),
    ({'cluster = "dgx-a100-superpod"': 'cluster = "dgx-b100"'}, "unknown cluster 'dgx-b100'", "did you mean"),
    ({'cluster = "dgx-a100-superpod"': 'cluster = "box-l40s"'}, "cannot be extended to 512", "at most 8"),
    ({'{ gpus = "our inventory, 2026" }\n\n[[levels]]': "{}\n[[levels]]"}, "gpus has no source", ""),
    ({"[[levels]]": SECOND + "[[levels]]"}, "2 levels join the pools", "[[pools.levels]]"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "message", "hint"), FLEET_REFUSED, ids=[one[1] for one in FLEET_REFUSED])
def test_impossible_fleets_are_refused(tmp_path, edits, message, hint):
    path = write(tmp_path, fleet(**edits), "fleet.toml")
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_one_pool_alone_is_refused(tmp_path):
    text = fleet(**{"gpus = 768": "gpus = 256"})
    second = text[text.index("[[pools]]", text.index("[[pools]]") + 1) : text.index("[[levels]]")]
    with pytest.raises(InputError, match="one pool is a cluster of alike nodes"):
        load_cluster(str(write(tmp_path, text.replace(second, ""))))


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("fleet.toml:h10", "fleet has no pool 'h10'", "did you mean h100? its pools are h100, a100"),
        ("superpod:h100", "dgx-h100-superpod has no pools", "dgx-h100-superpod"),
        ("fleet.toml:", "fleet.toml:'", ""),
        (":h100", "unknown cluster ':h100'", ""),
        ("nowhere.toml:h100", "no such file", ""),
    ],
)
def test_unknown_pools_are_refused(tmp_path, monkeypatch, name, message, hint):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, fleet(), "fleet.toml")
    done = gpuscale("clusters", "show", name)
    assert done.code == 2
    if message != "fleet.toml:'":
        assert message in done.err
    assert hint in done.err


def test_a_job_over_pools_takes_whole_nodes_and_no_more_than_there_are(tmp_path):
    path = write(tmp_path, fleet(), "fleet.toml")
    plan = ("plan", "--model", "llama3-8b", "--cluster")
    assert_one_message(gpuscale(*plan, path, "--gpus", "1024"), "fleet has 768 GPUs and cannot be extended", "at most")
    assert_one_message(
        gpuscale(*plan, path, "--gpus", "64", "--gpus-per-node", "4"), "the nodes of fleet are not alike", "one pool"
    )
    assert_one_message(gpuscale(*plan, f"{path}:h100", "--gpus", "512"), "fleet.toml:h100 has 256 GPUs", "at most 256")


def test_a_pool_cannot_be_calibrated_in_the_file_of_the_fleet(tmp_path):
    path = write(tmp_path, fleet(), "fleet.toml")
    log = Path(__file__).parent / "data" / "example_all_reduce.log"
    for name in (f"{path}:h100", path):
        done = gpuscale("calibrate", "nccl", log, "--cluster", name, "-o", tmp_path / "out.toml")
        assert_one_message(done, "pool", "cluster file")
        assert not (tmp_path / "out.toml").exists()


PARTS = [one for one in all_clusters() if one.extendable]


@given(st.lists(st.sampled_from(PARTS), min_size=2, max_size=4, unique_by=lambda one: one.name), st.randoms())
def test_the_order_of_pools_does_not_matter(parts, random):
    pools = [PoolSpec(one.name, cut(one, one.node_gpus * 8, one.name)) for one in parts]
    total = sum(one.cluster.gpus for one in pools)
    top = load_cluster("dgx-h100-superpod").levels[-1]
    whole = ClusterSpec("w", "w", pools[0].cluster.gpu, (replace(top, gpus=total),), False, {})
    shuffled = list(pools)
    random.shuffle(shuffled)
    first, second = joined(whole, pools), joined(whole, shuffled)
    assert (first.levels, first.gpu, first.host, first.mixture) == (
        second.levels, second.gpu, second.host, second.mixture,
    )  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), min_size=2, max_size=3, unique_by=lambda one: one.name))
def test_no_pool_is_slower_than_the_whole(parts):
    found = common_levels(parts)
    sizes = [level.gpus for level in found]
    assert sizes == sorted(set(sizes))
    assert all(outer % inner == 0 for inner, outer in pairwise(sizes))
    egress = [level.egress_bytes_per_s for level in found]
    assert egress == sorted(egress, reverse=True)
    for part in parts:
        for level in found:
            own = [one for one in part.levels if one.gpus >= level.gpus]
            assert own
            assert level.egress_bytes_per_s <= own[0].egress_bytes_per_s * (1 + 1e-12) or level.gpus == 1


def test_cutting_keeps_the_bandwidth_per_gpu():
    part = cut(load_cluster("dgx-h100-superpod-2to1"), 512, "part")
    assert [(one.name, one.gpus, one.egress_bytes_per_s / GB) for one in part.levels] == [
        ("node", 8, 450), ("leaf", 256, 50), ("spine", 512, 25),
    ]  # fmt: skip
    assert cut(load_cluster("dgx-h100-superpod"), 2048, "more").gpus == 2048
    pod = load_cluster("tpu-v5p-pod")
    assert cut(pod, 8960, "whole").levels == pod.levels
    boards = replace(
        pod.levels[0], name="board", gpus=4, topology="", torus_shape=(), switches=1, switch_bytes_per_s=1e15
    )
    torus_ = replace(pod.levels[0], torus_shape=(10, 14, 16))
    with pytest.raises(InputError, match="only a part of the torus"):
        cut(replace(pod, levels=(boards, torus_)), 32, "part")


def test_a_shipped_file_is_found_beside_the_fleet(tmp_path):
    source = find_preset("clusters", "dgx-a100-superpod")
    assert source is not None
    (tmp_path / "old.toml").write_text(source.read_text())
    text = fleet(**{'cluster = "dgx-a100-superpod"': 'cluster = "old.toml"'})
    assert load_cluster(f"{write(tmp_path, text, 'fleet.toml')}:a100").gpus == 512
