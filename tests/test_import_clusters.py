"""`gpuscale calibrate topology` as a whole: cluster files that load, say their sources, and can be planned on."""

import itertools
import json
import tomllib
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale
from hypothesis import given
from hypothesis import strategies as st
from test_import_formats import TREE, fabric, ibstat, listing, matrix
from test_import_xml import node

from gpuscale.errors import InputError
from gpuscale.importers.assemble import FABRIC_NODES, import_cluster
from gpuscale.importers.facts import MAX_FILE_BYTES
from gpuscale.importers.nccl_xml import MAX_DEPTH, MAX_ELEMENTS
from gpuscale.importers.slurm import MAX_NAMES
from gpuscale.presets.hardware import load_cluster

TOPO = Path(__file__).parents[2] / "shared" / "formats" / "topo"
H100X8 = matrix(8, lambda a, b: "NV18", "x" * 8, lambda g, n: "PXB" if n == g else "NODE")


@pytest.fixture
def files(tmp_path):
    """Write files by name; returns their paths."""

    def write(**texts):
        paths = []
        for name, text in texts.items():
            paths.append(tmp_path / f"{name}.txt")
            paths[-1].write_text(text)
        return paths

    return write


def made(paths, **options):
    return import_cluster(paths, **options)


def test_a_node_alone_gets_an_assumed_fabric(files):
    imported = made(files(topo=node()))
    inner, outer = imported.cluster.levels
    assert (inner.gpus, inner.link_bytes_per_s, inner.switches, inner.in_network_reduction) == (8, 450e9, 4, True)
    assert (outer.gpus, outer.fabric, outer.link_bytes_per_s) == (1024, "infiniband", 50e9)
    assert imported.cluster.gpu.name == "h100-sxm-80gb"
    assert "fabric.gpus" in imported.assumed
    assert "node.gpus" not in imported.assumed
    assert imported.cluster.sources["node.gpus"] == "topo.txt:4: 8 <gpu> elements"
    assert imported.cluster.sources["node.hop_latency_us"].startswith("guesstimate: as the sister preset")
    assert imported.cluster.host.gpus_per_uplink == 1


def test_files_of_one_cluster_add_up(files):
    paths = files(
        topo=node(speed=0), tree=TREE, ports=ibstat([("Active", 200, "Ethernet")] * 8), links=listing(rate="25 GB/s")
    )
    cluster = made(paths).cluster
    assert [(level.name, level.gpus) for level in cluster.levels] == [
        ("node", 8), ("leaf", 128), ("spine", 256), ("core", 512),
    ]  # fmt: skip
    assert {level.fabric for level in cluster.levels[1:]} == {"roce"}
    assert cluster.levels[1].link_bytes_per_s == 25e9
    assert cluster.sources["leaf.nic_gbit_per_s"].startswith("ports.txt:4: Rate: 200")
    assert "non-blocking" in cluster.sources["spine.link_gb_per_s_per_gpu_per_direction"]


def test_the_order_of_files_does_not_change_the_numbers(files):
    paths = files(topo=node(), tree=TREE, ports=ibstat([("Active", 400, "InfiniBand")] * 10), matrix=H100X8)
    seen = {json.dumps(dict(made(order).data["levels"][1])) for order in itertools.permutations(paths)}
    assert len(seen) == 1


def test_a_subnet_brings_switches_and_oversubscription(files):
    paths = files(topo=node(gpus=2, nics=2), net=fabric(uplinks=1))
    leaf, spine = made(paths).cluster.levels[1:]
    assert (leaf.gpus, leaf.switches, leaf.egress_bytes_per_s) == (8, 2, 50e9)
    assert (spine.gpus, spine.switches, spine.egress_bytes_per_s) == (16, 2, 25e9)


def test_a_base_says_what_the_files_leave_open(files):
    paths = files(topo=node(device="ffff", links=(), speed=0))
    cluster = made(paths, base="dgx-h100-superpod-2to1").cluster
    assert [(level.name, level.gpus, level.switches) for level in cluster.levels] == [
        ("node", 8, 4), ("leaf", 256, 8), ("spine", 1024, 16),
    ]  # fmt: skip
    assert cluster.levels[2].egress_bytes_per_s == 25e9
    assert cluster.sources["spine.switches"].startswith("assumed: as the base dgx-h100-superpod-2to1")
    assert made(paths, base="h200-hgx").cluster.gpu.name == "h200-sxm-141gb"


def test_a_network_alone_needs_a_base(files):
    paths = files(tree=TREE)
    cluster = made(paths, base="gb200-nvl72").cluster
    assert [level.gpus for level in cluster.levels] == [72, 216]  # 64 trays of 4 GPUs: 3 whole domains
    with pytest.raises(InputError, match="describes a network, but no GPUs") as raised:
        made(paths)
    assert "`base=PRESET`" in raised.value.hint


def test_trays_of_one_nvlink_domain_are_its_inner_level(files):
    blocks = "".join(f"BlockName=b{n} Nodes=r{n}-[1-18]\n" for n in range(4))
    cluster = made(files(blocks=blocks), base="gb200-nvl72").cluster
    assert [level.gpus for level in cluster.levels] == [72, 288]
    assert cluster.host.gpus == 4


def test_options_go_before_the_files(files):
    paths = files(topo=H100X8)
    cluster = made(paths, gpu="h200", nics=16, nic_gbit_per_s=200, nodes=4, name="My rack").cluster
    assert (cluster.title, cluster.gpus, cluster.gpu.name) == ("My rack", 32, "h200-sxm-141gb")
    assert (cluster.levels[1].nics_per_gpu, cluster.levels[1].link_bytes_per_s) == (2, 50e9)
    single = made(paths, gpu="h100", nics=0).cluster
    assert (len(single.levels), single.extendable) == (1, False)


def test_cards_faster_than_the_way_out_of_the_node_are_let_through(files):
    text = matrix(8, lambda a, b: "SYS", "x" * 8, lambda g, n: "PIX" if n == g else "SYS")
    imported = made(files(topo=text, tree=TREE), gpu="a100-pcie", nic_gbit_per_s=400)
    assert [level.egress_bytes_per_s for level in imported.cluster.levels] == [31.5e9] * 4
    assert len(imported.data["guards"]["accept"]) == 3


def test_pcie_alone_leaves_the_links_to_the_gpu(files):
    legend = "\n  PIX  = Connection traversing at most a single PCIe bridge\n"
    text = matrix(8, lambda a, b: "NODE") + legend
    imported = made(files(topo=text), gpu="h100")
    assert [(level.fabric, level.link_bytes_per_s) for level in imported.cluster.levels] == [("nvlink", 450e9)]
    with_links = made(files(topo=text + "  NV#  = Connection traversing a bonded set of # NVLinks\n"), gpu="h100")
    assert with_links.cluster.levels[0].fabric == "pcie"
    assert any("without the 18 nvlink links of h100" in note for note in with_links.notes)


def test_switched_links_of_fewer_gpus_are_no_mesh(files):
    (level,) = made(files(topo=matrix(4, lambda a, b: "NV18")), gpu="h100", nics=0).cluster.levels
    assert (level.gpus, level.switches, level.switches * level.switch_bytes_per_s) == (4, 4, 4 * 450e9)
    (mesh,) = made(files(topo=matrix(4, lambda a, b: "NV6")), gpu="h100", nics=0).cluster.levels
    assert (mesh.gpus, mesh.switches) == (4, 0)


def test_fewer_links_than_the_gpu_has_are_noted(files):
    imported = made(files(topo=matrix(8, lambda a, b: "NV12")), gpu="h100")
    assert imported.cluster.levels[0].link_bytes_per_s == 12 * 25e9
    assert any("of the 18 that h100-sxm-80gb has" in note for note in imported.notes)


def test_a_tray_makes_a_rack_of_a_base_of_such_trays(files):
    tray = matrix(4, lambda a, b: "NV18", "x" * 4, lambda g, n: "NODE")
    rack = made(files(topo=tray, tree="SwitchName=s Nodes=n[1-90]"), base="gb200-nvl72").cluster
    assert [(level.gpus, level.nics_per_gpu) for level in rack.levels] == [(72, 1), (360, 1)]
    assert (rack.host.gpus, rack.sources["host.gpus"]) == (4, "topo.txt:1: columns GPU0 to GPU3")
    alone = made(files(topo=tray), gpu="gb200")
    assert alone.cluster.levels[0].gpus == 4
    assert any("a tray of gb200-nvl72?" in note for note in alone.notes)


def test_what_a_level_leaves_out_is_noted(files):
    tree = "SwitchName=top Switches=leaf[1-5]\n" + "".join(
        f"SwitchName=leaf{n} Nodes=n{n}-[1-8]\n" for n in range(1, 6)
    )
    imported = made(files(tree=tree), base="gb200-nvl72")
    assert [level.gpus for level in imported.cluster.levels] == [72, 144]
    assert any("32 GPUs, fewer than two of node (72); left out" in note for note in imported.notes)
    assert any("160 GPUs, of which 144 fill whole units of node" in note for note in imported.notes)


def test_a_network_of_one_node_is_a_box(files):
    cluster = made(files(topo=H100X8), gpu="h100", nodes=1).cluster
    assert ([level.name for level in cluster.levels], cluster.extendable) == (["node"], False)


def test_switches_of_a_base_go_where_the_node_binds(files):
    imported = made(files(topo=matrix(8, lambda a, b: "SYS")), gpu="l40s", base="mi300x", nics=8)
    assert [level.egress_bytes_per_s for level in imported.cluster.levels] == [31.5e9] * 3
    assert [level.switches for level in imported.cluster.levels] == [0, 0, 0]


def test_a_network_unlike_that_of_the_sister_is_borrowed_from_another(files):
    xml = node(device="20b2", speed=100000, links=(4, 4, 4)).replace("mlx5_", "rdmap")
    cluster = made(files(topo=xml)).cluster
    p4d = load_cluster("aws-p4d").levels[1]
    assert (cluster.gpu.name, cluster.levels[1].fabric) == ("a100-sxm-80gb", "efa")
    assert (cluster.levels[1].hop_latency_s, cluster.levels[1].link_efficiency) == (
        p4d.hop_latency_s, p4d.link_efficiency,
    )  # fmt: skip
    assert "as the sister preset aws-p4d" in cluster.sources["fabric.hop_latency_us"]


def test_a_gpu_by_its_architecture_alone_is_noted(files):
    imported = made(files(topo=node(device="ffff")))
    assert any(note.startswith("GPU: h100-sxm-80gb, assumed for") for note in imported.notes)
    assert not any(note.startswith("GPU: ") for note in made(files(topo=node())).notes)


def test_a_source_says_nothing_twice(files):
    sources = made(files(tree=TREE), base="gb200-nvl72", name="x").cluster.sources
    wire = sources["core.link_gb_per_s_per_gpu_per_direction"]
    assert wire.count("as the base gb200-nvl72") == 1


def near_pairs(first, second):
    return "PIX" if first // 2 == second // 2 else "SYS"


def test_ways_and_pcie_switches_are_written_where_a_matrix_shows_them(files):
    shared = matrix(8, lambda a, b: "NV12", "x" * 4, lambda g, n: "PXB" if g // 2 == n else "SYS")
    cluster = made(files(topo=shared), gpu="a100", nic_gbit_per_s=200).cluster
    node, fabric = cluster.levels
    assert (node.path, node.gpus_per_pcie_switch) == ("nvlink-p2p", 0)
    assert (fabric.path, fabric.gpus_per_pcie_switch, fabric.nics_per_pcie_switch) == ("gdr", 2, 1)
    assert "PIX, PXB" in cluster.sources["fabric.path"]
    pairs = made(files(topo=matrix(4, near_pairs)), gpu="a100-pcie-80gb").cluster
    assert [(one.name, one.gpus, one.path, one.egress_bytes_per_s / 1e9) for one in pairs.levels] == [
        ("node-switch", 2, "pcie-p2p", 31.5), ("node", 4, "pcie-p2p-host", 15.75),
    ]  # fmt: skip
    switch = made(files(topo=matrix(4, lambda a, b: "PXB")), gpu="a100-pcie-80gb").cluster
    assert [(one.gpus, one.path) for one in switch.levels] == [(4, "pcie-p2p")]
    apart = made(files(topo=matrix(4, lambda a, b: "NODE")), gpu="a100-pcie-80gb").cluster
    assert [(one.gpus, one.path) for one in apart.levels] == [(4, "pcie-p2p-host")]


def test_pcie_switches_of_a_topology_xml(files):
    leaf = made(files(topo=node(gpus=8, nics=4, per_bridge=2))).cluster.levels[1]
    assert (leaf.gpus_per_pcie_switch, leaf.nics_per_pcie_switch) == (2, 1)
    uneven = made(files(topo=node(gpus=8, nics=3, per_bridge=2))).cluster.levels[1]
    assert (uneven.gpus_per_pcie_switch, uneven.nics_per_pcie_switch) == (0, 0)


def test_an_own_gpu_file_is_named_from_the_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpus").mkdir()
    shipped = Path(__file__).parents[1] / "presets" / "gpus" / "h100-sxm-80gb.toml"
    (tmp_path / "gpus" / "mine.toml").write_text(shipped.read_text())
    (tmp_path / "topo.txt").write_text(H100X8)
    (tmp_path / "clusters").mkdir()
    done = gpuscale("clusters", "import", "topo.txt", "--gpu", "gpus/mine.toml", "-o", "clusters/c.toml")
    assert done.code == 0
    assert tomllib.loads((tmp_path / "clusters" / "c.toml").read_text())["gpu"] == "../gpus/mine.toml"
    assert load_cluster("clusters/c.toml").gpu.name == "mine"


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ({"topo": H100X8}, {}, "8 GPUs with 18 links each, but no file names their model"),
        ({"topo": H100X8}, {"gpu": "a100"}, "18 links per GPU, but a100-sxm-80gb has 12"),
        ({"topo": H100X8}, {"gpu": "l40s"}, "links of nvlink, but l40s has none"),
        ({"topo": H100X8}, {"gpu": "h1000"}, "unknown GPU 'h1000'"),
        ({"topo": H100X8}, {"base": "nowhere"}, "unknown cluster 'nowhere'"),
        ({"topo": H100X8}, {"gpu": "h100", "nic_gbit_per_s": 3}, "there is no network card of 3 Gbit/s"),
        ({"topo": H100X8}, {"gpu": "h100", "nics": 256}, "nics_per_gpu"),
        ({"topo": H100X8}, {"gpu": "h100", "name": "a\nb"}, "is not a title"),
        ({"topo": H100X8}, {"gpu": "h100", "nodes": 1_000_000}, "at most 1,048,576"),
        ({"topo": H100X8, "tree": TREE}, {"gpu": "h100", "nodes": 4}, "a file states the network"),
        ({"topo": matrix(8, lambda a, b: "SYS")}, {"gpu": "l40s", "nodes": 4}, "4 nodes without a network"),
        ({"tree": TREE}, {"base": "box-l40s"}, "nothing says which cards a node has"),
        ({"topo": matrix(8, lambda a, b: "SYS"), "tree": TREE}, {"gpu": "l40s"}, "nothing says which cards"),
        ({"topo": H100X8, "tree": TREE}, {"gpu": "h100", "nics": 0}, "`nics=0` leaves the nodes without cards"),
        ({"topo": H100X8, "again": H100X8}, {"gpu": "h100"}, "a second file of the same kind"),
        ({"topo": H100X8, "xml": node(gpus=4)}, {}, "8 GPUs per node"),
        ({"topo": H100X8, "links": listing(links=17)}, {}, "18 links per GPU"),
        ({"links": listing(name="NVIDIA H200"), "xml": node()}, {}, "but H100 SXM5"),
        ({"links": listing(name="NVIDIA A800-SXM4-40GB", links=8)}, {}, "no preset of NVIDIA A800"),
        ({"links": listing(rate="53 GB/s")}, {}, "53 GB/s per link, but h100-sxm-80gb has 25"),
        ({"xml": node(device="20f5")}, {}, "no preset of A800 PCIe 80 GB"),
        ({"topo": matrix(4, lambda a, b: "SYS", "x")}, {"gpu": "l40s"}, "no file has the rate of the network cards"),
    ],
)
def test_what_cannot_be_is_refused(files, texts, options, message):
    with pytest.raises(InputError) as raised:
        made(files(**texts), **options)
    assert message in str(raised.value)


def test_every_refusal_has_a_whole_hint(files):
    with pytest.raises(InputError) as raised:
        made(files(topo=H100X8), gpu="h100", nics=256)
    assert raised.value.hint == "`gpu`, `nics` or `base` may say it better"


def test_slow_links_are_taken_as_they_are(files):
    imported = made(files(links=listing(rate="12.5 GB/s")))
    assert imported.cluster.levels[0].link_bytes_per_s == 18 * 12.5e9
    assert any("below the 25 GB/s" in note for note in imported.notes)


@given(
    gpus=st.sampled_from([2, 4, 8, 16]),
    nics=st.integers(0, 16),
    rate=st.sampled_from([100, 200, 400]),
    per_bridge=st.sampled_from([1, 2]),
)
def test_written_files_give_back_what_was_read(tmp_path_factory, gpus, nics, rate, per_bridge):
    per_bridge = min(per_bridge, gpus)
    path = tmp_path_factory.mktemp("import") / "topo.xml"
    path.write_text(node(gpus=gpus, nics=nics, speed=rate * 1000, per_bridge=per_bridge))
    imported, again = made([path]), made([path])
    assert imported.text == again.text
    out = path.with_name("cluster.toml")
    imported.write(out)
    assert out.read_text() == imported.text
    cluster = load_cluster(str(out))
    assert cluster == imported.cluster
    assert (cluster.levels[0].gpus, cluster.levels[0].egress_bytes_per_s) == (gpus, 450e9)
    cards = min(nics, gpus // per_bridge)
    assert cluster.extendable == bool(cards)
    if cards:
        assert cluster.levels[1].link_bytes_per_s == pytest.approx(cards / gpus * rate / 8 * 1e9, rel=1e-5)
    assert cluster.host.gpus_per_uplink == per_bridge


# the command


def test_toml_goes_to_stdout_and_messages_to_stderr(files):
    done = gpuscale("clusters", "import", *files(topo=node()))
    assert done.code == 0
    assert tomllib.loads(done.out)["gpu"] == "h100-sxm-80gb"
    assert done.err.startswith("read topo.txt: an NCCL topology XML\n")
    assert "assumed, as no file states it: " in done.err
    assert all(len(line) <= 110 for line in done.lines if line.startswith("#"))


def test_a_written_file_is_summed_up_and_can_be_planned_on(files, tmp_path):
    out = tmp_path / "cluster.toml"
    done = gpuscale("clusters", "import", *files(topo=node(), tree=TREE), "-o", out, columns=300)  # room for the path
    assert done.code == 0
    assert done.lines[0] == f"{out}: 512 x h100-sxm-80gb"
    assert [line.split()[0] for line in done.lines if line.startswith(("node", "leaf", "spine", "core"))] == [
        "node", "leaf", "spine", "core",
    ]  # fmt: skip
    planned = gpuscale("plan", "--model", "llama3-8b", "--gpus", "32", "--cluster", out)
    assert planned.code == 0
    shown = gpuscale("clusters", "show", out)
    assert "topo.txt:4: 8 <gpu> elements" in shown.out
    offloaded = gpuscale("plan", "--model", "llama3-8b", "--gpus", "8", "--cluster", out, "--offload", "optimizer")
    assert offloaded.code == 0


def test_json_has_the_content_and_what_was_assumed(files, tmp_path):
    out = tmp_path / "cluster.toml"
    done = gpuscale("clusters", "import", *files(topo=node()), "-o", out, "--json")
    body = json.loads(done.out)
    assert (done.code, done.err, body["schema"], body["output"]) == (0, "", "gpuscale.import/1", str(out))
    assert body["read"] == {"topo.txt": "an NCCL topology XML"}
    assert body["toml"] == out.read_text()
    assert body["cluster"]["gpus"] == 1024
    assert "fabric.gpus" in body["assumed"]


def test_a_refusal_leaves_what_was_there(files, tmp_path):
    out = tmp_path / "cluster.toml"
    out.write_text("mine")
    done = gpuscale("clusters", "import", *files(topo=H100X8), "-o", out)
    assert_one_message(done, "topo.txt:1: 8 GPUs with 18 links each", "--gpu NAME")
    assert out.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.toml", "topo.txt"]


def test_a_file_that_is_read_is_not_written_over(files):
    (path,) = files(topo=node())
    assert_one_message(gpuscale("clusters", "import", path, "-o", path), "is also a file to read", "another file")
    assert path.read_text() == node()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfeG\x00", "not UTF-8"),
        (b"\n" * 300_000, "is empty"),
        (b"a\n" * 300_000, "300,000 lines"),
    ],
)
def test_unusable_files_are_refused(tmp_path, content, message):
    path = tmp_path / "f.txt"
    path.write_bytes(content)
    assert_one_message(gpuscale("clusters", "import", path), message, "")


def test_unusable_paths_are_refused(tmp_path):
    assert_one_message(gpuscale("clusters", "import", tmp_path), "is a folder", "nvidia-smi topo -m")
    assert_one_message(gpuscale("clusters", "import", tmp_path / "none"), "no such file", "nvidia-smi topo -m")
    assert_one_message(gpuscale("clusters", "import", "/dev/zero"), "is not a regular file", "")
    assert_one_message(gpuscale("clusters", "import"), "missing argument", "--help")
    (tmp_path / "t.xml").write_text(node())
    assert_one_message(
        gpuscale("clusters", "import", tmp_path / "t.xml", "-o", tmp_path / "a" / "b"), "cannot write", ""
    )
    assert_one_message(gpuscale("clusters", "import", *[tmp_path / "t.xml"] * 17), "17 files", "1 to 16")


def test_names_with_control_letters_stay_out_of_the_file(tmp_path):
    path = tmp_path / 'a"\n[levels]\x1b[31m.xml'
    path.write_text(node())
    imported = made([path])
    assert "\x1b" not in imported.text
    assert imported.cluster.gpus == 1024


# real files: what each gives, with the options that it needs

H100, A100 = "h100-sxm-80gb", "a100-sxm-80gb"
REAL = {
    "ib/superbench_ib_traffic_topo_aware_ibnetdiscover.txt": (
        {"base": "azure-ndv5"},
        (H100, [(8, 450), (16, 3.125), (48, 1.5625)]),
    ),
    "ib/superbench_ib_traffic_topo_aware_ibstat.txt": ({}, "SuperBench's list of hosts"),
    "nvlink_s/azure_hc_bad_nvlink_status.txt": ({}, ":2: GPU 6: all NVLinks are inactive"),
    "nvlink_s/azure_hc_good_nvlink_status.txt": ({}, (A100, [(8, 300)])),
    "nvlink_s/h100_gpu0_elided.txt": ({}, "link 1 is missing before link 17"),
    "nvlink_s/h100_nvlink_e_errors.txt": ({}, ":3: link 0 has 'Replay Errors: 0'"),
    "nvlink_s/h800x8_elided.txt": ({}, ("h800-sxm-80gb", [(8, 200)])),
    "nvlink_s/p4de_gpu0.txt": ({}, (A100, [(8, 300)])),
    "slurm/schedmd_check_topology.conf": ({"base": "azure-ndv5"}, (H100, [(8, 450), (32, 50), (256, 50)])),
    "slurm/schedmd_man_topology.conf.5": ({}, ":1: a manual page"),
    "slurm/schedmd_man_topology.yaml.5": ({}, ":1: a manual page"),
    "slurm/schedmd_test133_case1_topology.conf": (
        {"base": "azure-ndv5"},
        (H100, [(8, 450), (160, 50), (3200, 50), (38400, 50), (76800, 50)]),
    ),
    "slurm/schedmd_test133_case2_topology.conf": (
        {"base": "azure-ndv5"},
        (H100, [(8, 450), (160, 50), (3200, 50), (38400, 50), (76800, 50)]),
    ),
    "slurm/schedmd_test133_case3_topology.conf": (
        {"base": "azure-ndv5"},
        (H100, [(8, 450), (160, 50), (1600, 50), (3200, 50)]),
    ),
    "slurm/schedmd_test133_case4_topology.conf": ({"base": "azure-ndv5"}, (H100, [(8, 450), (160, 50), (1600, 50)])),
    "slurm/schedmd_test133_case5_topology.conf": ({}, "describes a network, but no GPUs"),
    "slurm/schedmd_test133_case6_topology.conf": ({"base": "azure-ndv5"}, (H100, [(8, 450), (64, 50), (128, 50)])),
    "slurm/schedmd_unit_backfill_topology.conf": ({"base": "azure-ndv5"}, (H100, [(8, 450), (32, 50), (256, 50)])),
    "slurm/topograph_expected.slinky-dra-block.conf": ({"base": "azure-ndv5"}, (H100, [(8, 450), (64, 50), (768, 50)])),
    "slurm/topograph_expected.slinky-oci-sim-tree.conf": (
        {"base": "azure-ndv5"},
        (H100, [(8, 450), (64, 50), (128, 50), (768, 50)]),
    ),
    "topo_m/a100x8_noNIC.txt": ({"gpu": "a100"}, (A100, [(8, 300)])),
    "topo_m/a100x8_sxm_8nic_roce.txt": ({"gpu": "a100"}, (A100, [(8, 300), (1024, 25)])),
    "topo_m/a800x8_nv8_4nic.txt": ({"gpu": "a100"}, (A100, [(8, 200), (1024, 12.5)])),
    "topo_m/dell_h100x8_12nic_topo-mp.txt": (
        {"gpu": "h100-pcie", "nic_gbit_per_s": 400},
        ("h100-pcie-80gb", [(8, 63), (1024, 50)]),
    ),
    "topo_m/dgx_h100_12nic_nic_rows_cut.txt": ({"gpu": "h100"}, (H100, [(8, 450), (1024, 50)])),
    "topo_m/gh200x4_nv6_multi_numa.txt": ({"gpu": "gh200"}, ("gh200-96gb", [(4, 450)])),
    "topo_m/h100x8_noNIC.txt": ({"gpu": "h100"}, (H100, [(8, 450)])),
    "topo_m/h100x8_noNIC_ht.txt": ({}, "8 GPUs with 18 links each, but no file names their model"),
    "topo_m/h100x8_topo_p2p_r.txt": ({"gpu": "h100"}, ":2: 'OK' at GPU0, GPU1: a matrix of `nvidia-smi topo -p2p`"),
    "topo_m/h200x8_hgx_epyc_8nic.txt": ({"gpu": "h200"}, ("h200-sxm-141gb", [(8, 450), (1024, 50)])),
    "topo_m/h800x8_nv8_damaged.txt": ({"gpu": "h800"}, ":10: NIC0 has a row, but no column"),
    "topo_m/l4x2_topo_p2p_r.txt": ({"gpu": "l40s"}, ":2: 'CNS' at GPU0, GPU1"),
    "topo_m/pcie_x4_gpu007_phb.txt": ({"gpu": "l40s", "nic_gbit_per_s": 100}, ("l40s", [(4, 31.5), (512, 3.125)])),
    "topo_m/pcie_x4_gpu008_pix_pairs.txt": ({"gpu": "l40s"}, "no file has the rate of the network cards"),
    "topo_m/pcie_x8_node_sys_no_nic.txt": ({"gpu": "l40s"}, ("l40s", [(8, 31.5)])),
    "topo_m/rtx4090x8_8numa.txt": ({"gpu": "l40s"}, ("l40s", [(8, 31.5)])),
    "topo_m/x2_nvlink2.txt": ({"gpu": "v100"}, ("v100-sxm-32gb", [(2, 50)])),
    "topo_m/x2_phb_consumer.txt": ({"gpu": "l40s"}, ("l40s", [(2, 31.5)])),
    "xml/aws_g5.48xl-topo.xml": ({}, ":14: no GPUs: 9 of 9 <pci> elements have no class"),
    "xml/aws_p4d-24xl-topo.xml": ({}, ("a100-sxm-40gb", [(8, 300), (1024, 6.25)])),
    "xml/aws_p4de-24xl-topo.xml": ({}, (A100, [(8, 300), (1024, 6.25)])),
    "xml/aws_p5.48xl-topo.branch79565c0e.xml": ({}, (H100, [(8, 450), (1024, 50)])),
    "xml/aws_p5.48xl-topo.old_before_f60332c8.xml": ({}, ":17: no GPUs: 40 of 40 <pci> elements have no class"),
    "xml/azure_ncv4-graph.xml": ({}, ":1: NCCL's search result"),
    "xml/azure_ncv4-topo.xml": ({}, ("a100-pcie-80gb", [(4, 31.5), (512, 3.125)])),
    "xml/azure_ndv2-topo.xml": ({"gpu": "v100"}, ("v100-sxm-32gb", [(8, 150), (1024, 3.125)])),
    "xml/azure_ndv4-topo.xml": ({}, ":4: 8 GPUs, but no file names their model"),
    "xml/azure_ndv5-topo.xml": ({"base": "azure-ndv5"}, (H100, [(8, 450), (1024, 50)])),
    "xml/nemo_launcher_aws_topo.xml": ({}, ":33: no GPUs: 40 of 40 <pci> elements have no class"),
    "xml/nemo_launcher_azure_topo.xml": ({"gpu": "a100"}, (A100, [(8, 300), (1024, 25)])),
    "xml/nemo_launcher_oci_topo.xml": ({"gpu": "a100"}, (A100, [(8, 300), (1024, 25)])),
    "xml/oci_H100-topology-kubernetes.xml": ({}, (H100, [(8, 450), (1024, 50)])),
    "xml/oci_H100-topology.xml": ({}, (H100, [(8, 450), (1024, 50)])),
    "xml/oci_topo-flattened-b4.xml": ({"gpu": "a100"}, (A100, [(8, 300), (1024, 25)])),
    "xml/oci_topo-flattened.xml": ({"gpu": "a100"}, (A100, [(8, 300), (1024, 25)])),
    "xml/rocm_topo_3p_pcie.xml": ({}, "gpuscale has no preset of Instinct MI210"),
    "xml/rocm_topo_4p4h.xml": ({}, "gpuscale has no preset of Instinct MI100"),
    "xml/rocm_topo_8p1h.xml": ({}, ("mi250x", [(8, 300), (1024, 12.5)])),
    "xml/rocm_topo_8p_90a.xml": ({}, ("mi250x", [(8, 150)])),
    "xml/rocm_topo_8p_940.xml": ({}, ("mi300x", [(8, 448), (1024, 50)])),
    "xml/rocm_topo_8p_rome.xml": ({"gpu": "mi250x"}, ("mi250x", [(4, 100), (8, 31.504), (1024, 3.125)])),
    "xml/superbench_ndv4-topo.xml": ({"gpu": "a100"}, (A100, [(8, 300), (1024, 25)])),
    "xml/superbench_ndv5-topo.xml": ({"gpu": "h100"}, (H100, [(8, 450), (1024, 50)])),
}
"""File -> options and (GPU, [(GPUs, GB/s per GPU) of each level]), or a part of the refusal."""


@pytest.mark.skipif(not TOPO.is_dir(), reason="no files of other tools beside the project")
def test_every_real_file_has_an_expected_outcome():
    names = {path.relative_to(TOPO).as_posix() for path in TOPO.rglob("*") if path.is_file()}
    assert names == set(REAL)


@pytest.mark.skipif(not TOPO.is_dir(), reason="no files of other tools beside the project")
@pytest.mark.parametrize("name", REAL)
def test_a_real_file_imports_or_is_refused(name, tmp_path):
    options, expected = REAL[name]
    if isinstance(expected, str):
        with pytest.raises(InputError) as raised:
            made([TOPO / name], **options)
        assert expected in f"{raised.value.place}: {raised.value.message}"
        assert Path(name).name in raised.value.place
        assert raised.value.hint
        return
    imported = made([TOPO / name], **options)
    levels = [(level.gpus, pytest.approx(level.egress_bytes_per_s / 1e9)) for level in imported.cluster.levels]
    assert (imported.cluster.gpu.name, levels) == expected
    out = tmp_path / "cluster.toml"
    imported.write(out)
    assert load_cluster(str(out)) == imported.cluster


def test_the_guide_says_what_the_code_does():
    guide = (Path(__file__).parents[1] / "docs" / "hardware.md").read_text()
    section = guide.partition("## Importing a cluster")[2].partition("\n## ")[0]
    limits = f"at most {MAX_FILE_BYTES // 2**20} MiB each, {MAX_ELEMENTS:,} XML elements nested {MAX_DEPTH} deep, "
    assert limits + f"{MAX_NAMES:,} node names" in section
    assert f"else {FABRIC_NODES} nodes" in section
    for option in ("--gpu", "--nics", "--nic-gbit", "--nodes", "--base", "-o"):
        assert f"`{option}" in section


def test_an_unusable_preset_of_the_user_lends_nothing(files, tmp_path, monkeypatch):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "mi250x.toml").write_text("no TOML")
    paths = files(topo=node())
    plain = made(paths)
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    assert made(paths) == plain
