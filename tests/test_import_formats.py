"""The other formats of `gpuscale calibrate topology`: topology matrix, NVLink listing, Slurm, InfiniBand."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.errors import InputError
from gpuscale.importers.assemble import _read_facts as read_facts
from gpuscale.importers.facts import SourceFile, read_source
from gpuscale.importers.slurm import expand, usual_size


def facts_of(text):
    return read_facts(SourceFile("f.txt", text))


def refused(text):
    with pytest.raises(InputError) as raised:
        facts_of(text)
    assert raised.value.place.startswith("f.txt")
    return raised.value


# nvidia-smi topo -m


def matrix(gpus, cell, nics=(), near=lambda gpu, nic: "SYS"):
    """A matrix; `cell(a, b)` between GPUs, `near(gpu, nic)` to cards."""
    names = [f"GPU{g}" for g in range(gpus)] + [f"NIC{n}" for n in range(len(nics))]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for g in range(gpus):
        row = [" X " if g == other else cell(g, other) for other in range(gpus)]
        row += [near(g, n) for n in range(len(nics))]
        lines.append(f"GPU{g}\t" + "\t".join(row) + "\t0-31\t0")
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


def test_one_entry_per_pair_above_18_links_means_switches():
    facts = facts_of(matrix(8, lambda a, b: "NV18"))
    assert (facts.gpus.value, facts.links.value, facts.switches, facts.nics.value) == (8, 18, None, 0)
    assert facts.links.source == "f.txt:2: NV18 to every GPU"


def test_entries_of_a_mesh_add_up():
    cube = facts_of(matrix(4, lambda a, b: "NV4"))
    assert (cube.links.value, cube.switches.value) == (12, 0)
    pair = facts_of(matrix(2, lambda a, b: "NV2"))
    assert (pair.links.value, pair.island.value) == (2, 2)


def test_pairs_make_islands_and_odd_ones_pcie():
    pairs = facts_of(matrix(4, lambda a, b: "NV4" if a // 2 == b // 2 else "SYS"))
    assert (pairs.links.value, pairs.island.value, pairs.gpus.value) == (4, 2, 4)
    odd = facts_of(matrix(3, lambda a, b: "NV4" if a < 2 and b < 2 else "SYS"))
    assert (odd.link_fabric.value, odd.links, odd.island) == ("pcie", None, None)


def test_cards_count_when_each_gpu_has_its_share():
    near = facts_of(matrix(8, lambda a, b: "NV18", "x" * 12, lambda g, n: "PXB" if n == g else "NODE"))
    assert near.nics.value == 8
    assert "4 of 12 network cards left out" in " ".join(near.notes)
    shared = facts_of(matrix(8, lambda a, b: "NV12", "x" * 4, lambda g, n: "PXB" if n == g // 2 else "SYS"))
    assert (shared.nics.value, shared.gpus_per_uplink.value) == (4, 2)
    far = facts_of(matrix(4, lambda a, b: "SYS", "x", lambda g, n: "SYS"))
    assert far.nics.value == 1


def test_colours_carriage_returns_and_prompts_are_no_matter(tmp_path):
    path = tmp_path / "t.txt"
    text = "$ nvidia-smi topo -m\n" + matrix(2, lambda a, b: "NV12").replace(
        "GPU0\tGPU1", "\x1b[4mGPU0\tGPU1\x1b[0m", 1
    )
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    facts = read_facts(read_source(path, "t.txt"))
    assert (facts.gpus.value, facts.links.value) == (2, 12)


PCIE_LEGEND = "  PIX  = Connection traversing at most a single PCIe bridge\n"
NVLINK_LEGEND = "  NV#  = Connection traversing a bonded set of # NVLinks\n"


def test_a_matrix_of_pcie_alone_says_nothing_of_links():
    text = matrix(4, lambda a, b: "NODE")
    assert facts_of(text + PCIE_LEGEND + NVLINK_LEGEND).link_fabric.value == "pcie"
    alone = facts_of(text + PCIE_LEGEND)
    assert (alone.link_fabric, alone.links) == (None, None)
    assert "leaves NVLinks out" in " ".join(alone.notes)


def test_cards_of_any_name_count():
    text = matrix(2, lambda a, b: "NV12", "xx", lambda g, n: "PIX" if g == n else "SYS")
    named = text.replace("NIC0", "bnxt_re0").replace("NIC1", "rdmap79s0")
    assert facts_of(named).nics.value == 2
    assert "is not the name of a GPU or a network card" in refused(text.replace("NIC1", "|", 1)).message


@pytest.mark.parametrize("cell", ["NV18", "NV1"])
def test_a_gpu_without_the_links_of_the_others_is_broken_and_no_node_of_pcie(cell):
    dark = facts_of(matrix(8, lambda a, b: "NODE" if 2 in {a, b} else cell))
    well = facts_of(matrix(8, lambda a, b: cell))
    assert (dark.gpus.value, dark.link_fabric.value, dark.island.value) == (8, "nvlink", 8)
    assert dark.switched.value == well.switched.value
    assert "GPU2 has no NVLink where 7 GPUs have" in " ".join(dark.notes)
    assert "drain the node" in " ".join(dark.notes)


@pytest.mark.parametrize("prefix", ["[gpu-node-01] ", "[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", "gpu-node-01: "])
def test_what_a_launcher_writes_before_each_line_is_no_matter(tmp_path, prefix):
    path = tmp_path / "t.txt"
    lines = matrix(8, lambda a, b: "NV18").split("\n")
    other = prefix.replace("0", "9", 1)
    path.write_text("\n".join(f"{head}{line}" for line in lines for head in (prefix, other)))
    facts = read_facts(read_source(path, "t.txt"))
    assert (facts.gpus.value, facts.links.value) == (8, 18)
    assert facts.links.source.startswith("t.txt:3:")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NV18\tNV18\t0-31\t0\nGPU3", "NV18\nGPU3", "the row of GPU2 has"),
        ("GPU7\tNV18", "", "the row of GPU7 is missing"),
        ("NV18", "OK", "topo -p2p"),
        ("NV18", "NVLINK", "is not a connection in nvidia-smi's legend"),
        ("GPU0\t X \tNV18", "GPU0\tNV18\tNV18", "X belongs on the diagonal"),
        ("GPU1\tGPU2", "GPU1\tGPU1", "is listed twice in the header"),
    ],
)
def test_a_broken_matrix_is_refused(old, new, message):
    text = matrix(8, lambda a, b: "NV18")
    assert old in text
    assert message in refused(text.replace(old, new, 1)).message


# rocm-smi --showtopo, amd-smi topology


def rocm_tables(gpus=8, cell=lambda a, b: "XGMI", hops=lambda a, b: "1", title="{} between two GPUs", name="GPU{}"):
    names = [name.format(g) for g in range(gpus)]

    def table(what, of):
        rows = [f"{names[a]}  " + "  ".join("0" if a == b else of(a, b) for b in range(gpus)) for a in range(gpus)]
        return "\n".join([f"{'=' * 20} {title.format(what)} {'=' * 20}", "   " + "  ".join(names), *rows, ""])

    return "\n".join([f"{'=' * 10} ROCm System Management Interface {'=' * 10}", table("Hops", hops),
                      table("Link Type", cell)])  # fmt: skip


def test_tables_of_amd_tools_state_the_links_between_gpus():
    facts = facts_of(rocm_tables())
    assert (facts.gpus.value, facts.link_fabric.value, facts.links.value, facts.switches.value) == (8, "xgmi", 7, 0)
    far = facts_of(rocm_tables(hops=lambda a, b: "1" if abs(a - b) == 1 else "2"))
    assert (far.link_fabric.value, far.links) == ("xgmi", None)
    assert facts_of(rocm_tables(4, lambda a, b: "PCIE")).link_fabric.value == "pcie"
    pairs = facts_of(rocm_tables(4, lambda a, b: "XGMI" if a // 2 == b // 2 else "PCIE"))
    assert pairs.link_fabric.value == "pcie"
    dark = facts_of(rocm_tables(cell=lambda a, b: "PCIE" if 3 in {a, b} else "XGMI"))
    assert dark.link_fabric.value == "xgmi"
    assert "GPU3 has no XGMI links" in " ".join(dark.notes)
    amd = "LINK TYPE TABLE:\n  0000:0c:00.0 0000:22:00.0\n0000:0c:00.0 SELF XGMI\n0000:22:00.0 XGMI SELF\n\nNUMA\n"
    assert facts_of(amd).links.value == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU7  XGMI", "GPU9  XGMI", "the row of GPU7 is missing"),
        ("XGMI  0", "0", "the row of GPU1 has 7 of 8 cells"),
        ("XGMI", "CXL", "neither XGMI nor PCIE"),
        ("Link Type", "Weight", "without the kinds of links"),
        ("   GPU0  GPU1", "   $0  GPU1", "'$0' is not the name of a GPU"),
    ],
)
def test_broken_tables_of_amd_tools_are_refused(old, new, message):
    text = rocm_tables()
    assert old in text
    assert message in refused(text.replace(old, new, 1)).message


# nvidia-smi nvlink -s


def listing(gpus=range(8), links=18, rate="26.562 GB/s", name="NVIDIA H100 80GB HBM3"):
    return "".join(
        f"GPU {g}: {name} (UUID: GPU-0)\n" + "".join(f"\t Link {n}: {rate}\n" for n in range(links)) for g in gpus
    )


def test_a_listing_states_model_links_and_rate():
    facts = facts_of(listing())
    assert (facts.gpus.value, facts.links.value, facts.link_gb_per_s.value) == (8, 18, 26.562)
    assert facts.device.value.preset == "h100-sxm-80gb"
    assert facts_of(listing([3])).gpus is None


def test_inactive_links_do_not_count():
    facts = facts_of(listing().replace("Link 3: 26.562 GB/s", "Link 3: <inactive>", 1))
    assert facts.links.value == 17
    assert "inactive" in " ".join(facts.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (listing(rate="<inactive>"), "has no active link"),
        (listing(rate="Replay Errors: 0"), "where `nvlink -s` prints a rate"),
        (listing(rate="2656 GB/s"), "1 to 400 are possible"),
        (listing().replace("Link 3:", "[...]", 1), "link 3 is missing"),
        (listing([0, 0]), "listed twice"),
        (listing([0]) + listing([1], name="NVIDIA H200"), "GPUs of two kinds"),
        (listing([0]) + "NVML: all links are inactive\n", "all NVLinks are inactive"),
        (listing(links=70), "above 63"),
        (listing([0], links=0) + listing([1], links=0, name="NVIDIA H200"), "GPUs of two kinds"),
        (listing(links=0) + "  MIG 3g.40gb     Device  0: (UUID: MIG-0)\n", "split into instances"),
    ],
)
def test_a_listing_that_says_too_little_is_refused(text, message):
    assert message in refused(text).message


OVERVIEW = """| NVIDIA-SMI 560.35.05   Driver Version: 560.35.05   CUDA Version: 12.6     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   28C    P0             61W /  400W |       4MiB /  81920MiB |      0%      Default |
|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:0F:00.0 Off |                    0 |
|    0   N/A  N/A      4711      C   python                                      520MiB |
"""


@pytest.mark.parametrize(
    ("text", "gpus", "preset"),
    [(listing(links=0), 8, "h100-sxm-80gb"), (listing([0], links=0), 1, "h100-sxm-80gb"),
     (OVERVIEW, 2, "a100-sxm-80gb")],
)  # fmt: skip
def test_a_list_of_gpus_states_how_many_of_what_and_no_links(text, gpus, preset):
    facts = facts_of(text)
    assert (facts.gpus.value, facts.device.value.preset, facts.links) == (gpus, preset, None)


# Slurm

TREE = """# halls
SwitchName=root Switches=spine[1-2]
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 Switches=leaf[3,4] LinkSpeed=100
switchname=leaf1 nodes=n[01-16]
SwitchName=leaf2 \\
    Nodes=n[17-32]
SwitchName=leaf3 Nodes=rack[0-1]n[0-7]-ib
SwitchName=leaf4 Nodes=n[49-64]
"""


def tiers(text):
    return [(tier.name, tier.nodes) for tier in facts_of(text).tiers.value]


def test_a_tree_of_switches_makes_levels():
    assert tiers(TREE) == [("leaf", 16), ("spine", 32), ("core", 64)]
    assert facts_of(TREE).tiers.value[1].source.startswith("f.txt:3:")


def test_levels_hold_whole_units_of_the_usual_size():
    facts = facts_of("SwitchName=top Switches=l[1-4]\n" + "".join(
        f"SwitchName=l{n} Nodes=n{n}-[1-{size}]\n" for n, size in zip((1, 2, 3, 4), (16, 16, 16, 14), strict=True)
    ))  # fmt: skip
    assert [tier.nodes for tier in facts.tiers.value] == [16, 48]
    assert "14 to 16 nodes, mostly 16" in " ".join(facts.notes)


def test_trees_without_a_common_switch_are_separate():
    facts = facts_of(TREE.split("\n", 2)[2])
    assert [tier.nodes for tier in facts.tiers.value] == [16, 32]
    assert "2 trees without a common switch" in " ".join(facts.notes)


def test_a_chain_of_single_switches_adds_no_level():
    assert tiers("SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Nodes=n[1-4]") == [("leaf", 4)]


def test_what_scontrol_prints_of_a_topology_is_read_as_topology_conf():
    printed = (
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[001-016]\n"
        "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu[017-032]\n"
        "SwitchName=spine1 Level=1 LinkSpeed=1 Nodes=gpu[001-032] Switches=leaf[1-2]\n"
    )
    assert [(tier.name, tier.nodes) for tier in facts_of(printed).tiers.value] == [("leaf", 16), ("spine", 32)]
    blocks = (
        "BlockName=b1 BlockIndex=0 Nodes=n[01-18] BlockSize=18\n"
        "BlockName=b2 BlockIndex=1 Nodes=n[19-36] BlockSize=18\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[01-36] BlockSize=36\n"
    )
    assert [(tier.name, tier.nodes) for tier in facts_of(blocks).tiers.value] == [("block", 18), ("fabric", 36)]


def test_blocks_make_two_levels():
    facts = facts_of("BlockName=b1 Nodes=n[1-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=16,32\n")
    assert [(tier.name, tier.nodes) for tier in facts.tiers.value] == [("block", 18), ("fabric", 36)]
    assert "[32] group blocks for the scheduler" in " ".join(facts.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "the switches form a cycle"),
        ("SwitchName=a Switches=a\n", "form a cycle"),
        (
            "SwitchName=a Switches=b,c\nSwitchName=d Switches=b\nSwitchName=b Nodes=n1\nSwitchName=c Nodes=n2",
            "not a tree",
        ),
        ("SwitchName=a Switches=zz\n", "which is not defined"),
        ("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n2\n", "node n2 is on a (line 1) and b"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "defined again (first on line 1)"),
        ("SwitchName=a\n", "names neither Nodes nor Switches"),
        ("SwitchName=a Nodes=\n", "names neither Nodes nor Switches"),
        ("SwitchName=a Nodes=n1\n", "a network joins two or more"),
        ("SwitchName=a Nodes=n[1-\n", "a bracket is not closed"),
        ("SwitchName=a Nodes=n[1-2]]\n", "brackets do not pair"),
        ("SwitchName=a Nodes=n[9-1]\n", "runs backwards"),
        ("SwitchName=a Nodes=n[a-b]\n", "not a number or a range"),
        ("SwitchName=a Nodes=n[1-999999999]\n", "131,072 names in this file, the limit"),
        ("SwitchName=a Nodes=n[0-999][0-999]\n", "131,072 names in this file, the limit"),
        ("SwitchName=a Nodes=[0-1][0-1][0-1][0-1][0-1]\n", "more than 4 brackets"),
        ("SwitchName=a Nodes=" + "n" * 70 + "\n", "70 characters, at most 64"),
        ("SwitchName=a Nodes=n;rm\n", "is not a name"),
        ("SwitchName=a Colour=red\n", "is not an entry of topology.conf"),
        ("SwitchName=a Nodes=n[1-2]\nBlockName=b Nodes=m[1-2]\n", "SwitchName and BlockName in one file"),
        ("BlockName=b Nodes=m[1-2]\nBlockSizes=a\n", "BlockSizes=a is not a list"),
        ("SwitchName=s[1-99999] Nodes=n1\n", "more than 20,000 switches in this file, the limit"),
        ("SwitchName=s Switches=t[1-20001]\n", "more than 20,000 switches below others in this file"),
        (
            "".join(f"SwitchName=s{n} Switches=t[0-9999]\n" for n in range(200)),
            "more than 20,000 switches below others in this file",
        ),
        ("SwitchName=s[1-2] Nodes=n[1-4]\n", "node n1 is on s1 (line 1) and s2"),
        (
            "".join(f"SwitchName=s{n} Switches=s{n + 1}\n" for n in range(9)) + "SwitchName=s9 Nodes=n[1-2]\n",
            "more than 6 levels of switches",
        ),
    ],
)
def test_a_broken_topology_conf_is_refused(text, message):
    assert message in refused(text).message


@given(
    low=st.integers(0, 9999), count=st.integers(1, 200), width=st.integers(1, 6), prefix=st.sampled_from(["n", "gpu-a"])
)
def test_a_host_list_expands_to_what_was_contracted(low, count, width, prefix):
    names = [f"{prefix}{number:0{width}d}" for number in range(low, low + count)]
    text = f"{prefix}[{low:0{width}d}-{low + count - 1:0{width}d}]"
    assert expand(SourceFile("f", ""), 1, text, Counter()) == names


YAML = """
- topology: cluster
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - switch: s1
        nodes: node[01-16]
      - switch: s2
        nodes: node[17-32]
- topology: racks
  block:
    block_sizes: [4, 16]
    blocks:
      - {block: b1, nodes: "node[01-04]"}
      - {block: b2, nodes: "node[05-08]"}
- topology: all
  flat: true
"""


def test_yaml_says_the_same_as_conf():
    pytest.importorskip("yaml")
    assert tiers(YAML) == [("leaf", 16), ("spine", 32)]
    assert "3 topologies; cluster is taken" in " ".join(facts_of(YAML).notes)
    assert tiers(YAML.replace("cluster_default: true\n  tree:", "flat: true\n  grove:")) == [
        ("block", 4),
        ("fabric", 8),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- topology: a\n  flat: true\n", "flat ones have no levels"),
        ("- topology: a\n  tree: [\n", "not valid YAML"),
        ("- topology: a\n  tree: &x\n    switches: []\n", "an anchor, alias or tag"),
        ("- topology: a\n  tree: !!python/object:os.system {}\n", "an anchor, alias or tag"),
        ("- topology: a\n  tree: 3\n", "pairs are expected here"),
        ("- topology: a\n  tree:\n    switches: 3\n", "a list is expected"),
        ("- topology: a\n  tree:\n    switches: []\n", "no `switch`"),
        ("- topology: a\n  tree:\n    switches:\n      - switch: s\n", "neither nodes nor children"),
        ("- topology: a\n  tree:\n    switches:\n      - nodes: n1\n", "`switch` with a name is expected"),
        ("- topology: a\n  tree: " + "[" * 50_000, ""),  # PyYAML has a limit of its own
        ("- topology: a\n  tree: " + "[" * 20 + "]" * 20, "nested deeper than 16"),
        ("- topology: a\n" + "# " + "x" * 600_000, "KiB of YAML, at most 512 KiB"),
    ],
)
def test_a_broken_topology_yaml_is_refused(text, message):
    pytest.importorskip("yaml")
    error = refused(text)
    assert message in f"{error.place}: {error.message}"


def test_without_pyyaml_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    error = refused(YAML)
    assert "PyYAML, which is not installed" in error.message
    assert "gpuscale[yaml]" in error.hint


# InfiniBand


def ibstat(ports):
    return "".join(
        f"CA 'mlx5_{n}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: {state}\n"
        f"\t\tPhysical state: LinkUp\n\t\tRate: {rate}\n\t\tBase lid: 1\n\t\tLink layer: {layer}\n"
        for n, (state, rate, layer) in enumerate(ports)
    )


def test_ibstat_counts_the_fast_active_ports():
    facts = facts_of(
        ibstat([("Active", 400, "InfiniBand")] * 8 + [("Down", 400, "InfiniBand"), ("Active", 100, "Ethernet")])
    )
    assert (facts.nics.value, facts.nic_gbit_per_s.value, facts.nic_fabric.value) == (8, 400, "infiniband")
    assert "2 of 10 ports" in " ".join(facts.notes)
    roce = facts_of(ibstat([("Active", 200, "Ethernet")] * 2))
    assert (roce.nics.value, roce.nic_fabric.value) == (2, "roce")


def test_ibstatus_is_read_too():
    facts = facts_of(
        "Infiniband device 'mlx5_0' port 1 status:\n\tdefault gid:\t fe80\n\tstate:\t\t 4: ACTIVE\n"
        "\tphys state:\t 5: LinkUp\n\trate:\t\t 200 Gb/sec (4X HDR)\n\tlink_layer:\t InfiniBand\n"
    )
    assert (facts.nics.value, facts.nic_gbit_per_s.value) == (1, 200)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ibstat([("Down", 400, "InfiniBand")]), "none of 1 ports is active"),
        (ibstat([("Active", "fast", "InfiniBand")]), "is not a number of Gbit/s"),
        (ibstat([("Active", 0, "InfiniBand")]), "active without a rate"),
        (ibstat([("Active", 400, "InfiniBand")] * 2000), "more than 1024 ports"),
    ],
)
def test_a_broken_ibstat_is_refused(text, message):
    assert message in refused(text).message


def fabric(nodes=8, rails=2, spines=2, uplinks=2, pod=4, ring=False):
    """Pods of `pod` hosts on `rails` leaf switches, each leaf with `uplinks` cables to every spine."""
    hosts = [(f"H-{h:04x}{r:04x}", f"S-1{h // pod:03x}{r:04x}") for h in range(nodes) for r in range(rails)]
    leaves = sorted({leaf for _, leaf in hosts})
    tops = [f"S-2{spine:07x}" for spine in range(spines)]
    pairs = hosts + [(leaf, top) for leaf in leaves for top in tops for _ in range(uplinks)]
    pairs += [(top, tops[(index + 1) % spines]) for index, top in enumerate(tops)] if ring else []
    cables = {}
    for a, b in pairs:
        cables.setdefault(a, []).append(b)
        cables.setdefault(b, []).append(a)
    return "#\n# Topology file\n" + "\n".join(device(name, ends) for name, ends in cables.items())


def device(name, ends):
    kind = "Switch" if name.startswith("S") else "Ca"
    called = "MF0;sw:MQM9700/U1" if kind == "Switch" else f"node{int(name[2:6], 16):03d} mlx5_{int(name[6:], 16)}"
    cables = [f'[{n}](abc)\t"{end}"[{n}]\t\t# "x" lid 4 4xNDR\n' for n, end in enumerate(ends, 1)]
    return f'vendid=0x2c9\n{kind}\t64 "{name}"\t\t# "{called}"\n' + "".join(cables)


@pytest.mark.parametrize("ring", [False, True])
def test_a_fat_tree_makes_levels_with_switches_and_oversubscription(ring):
    facts = facts_of(fabric(ring=ring))
    leaf, spine = facts.tiers.value
    assert (leaf.name, leaf.nodes, leaf.switches, leaf.switch_gb_per_s) == ("leaf", 4, 2, 4 * 50)
    assert (spine.name, spine.nodes, spine.switches) == ("spine", 8, 2)
    assert spine.switch_gb_per_s == 4 * 2 * 50
    assert (facts.nics.value, facts.nic_gbit_per_s.value) == (2, 400)
    assert "a level has one size" not in " ".join(facts.notes)
    thin = facts_of(fabric(uplinks=1)).tiers.value[1]
    assert thin.switch_gb_per_s == 4 * 50


def test_aggregation_nodes_are_no_hosts():
    extra = '\nCa\t1 "H-ffff"\t# "Mellanox Technologies Aggregation Node"\n[1](ab) "S-10000000"[65] # "x" lid 1 4xNDR\n'
    facts = facts_of(fabric() + extra)
    assert facts.tiers.value[-1].nodes == 8
    assert "SHARP" in " ".join(facts.notes)


def test_switches_side_by_side_make_a_level():
    text = fabric(nodes=8, rails=1, spines=0)
    for name, peer in (("S-10000000", "S-10010000"), ("S-10010000", "S-10000000")):
        text = text.replace(f'Switch\t64 "{name}"\t\t# "MF0;sw:MQM9700/U1"\n', f'Switch 64 "{name}" # "sw"\n'
                            f'[60] "{peer}"[60] # "x" 4xNDR\n[61] "{peer}"[61] # "x" 4xNDR\n')  # fmt: skip
    leaf, top = facts_of(text).tiers.value
    assert (leaf.nodes, top.nodes, top.switches, top.switch_gb_per_s) == (4, 8, 2, 2 * 50)
    apart = facts_of(fabric(nodes=8, rails=1, spines=0))
    assert [tier.nodes for tier in apart.tiers.value] == [4]
    assert "join 4 of 8 hosts" in " ".join(apart.notes)


def test_hosts_with_fewer_ports_are_no_gpu_nodes():
    login = '\nCa\t1 "H-ffff"\t# "login01 mlx5_0"\n[1](ab) "S-10000000"[65] # "x" lid 1 4xNDR\n'
    facts = facts_of(fabric() + login)
    assert [tier.nodes for tier in facts.tiers.value] == [4, 8]
    assert facts.tiers.value[0].switch_gb_per_s == 4 * 50
    assert "1 host without 2 ports of 400 Gbit/s left out" in " ".join(facts.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (fabric().replace(" 4xNDR", "", 1), "a cable without a rate"),
        (fabric().replace('"[1]', "[1]", 1), "is not a cable of ibnetdiscover"),
        (fabric().replace("node000 mlx5_0", "MT4129 ConnectX7   Mellanox Technologies"), "names no host"),
        ('Ca 1 "H-1" # "a b"\n[1](a) "S-1"[1] # "x" lid 1 4xNDR\n', "no switches"),
        ('Switch 1 "S-1" # "a b"\n[1] "S-2"[1] # "x" lid 1 4xNDR\n', "no hosts"),
        (fabric(nodes=1), "hosts: 1, none joined to another"),
        (fabric() + 'Switch 2 "S-10000000" # "again"\n', "is listed twice"),
    ],
)
def test_a_broken_subnet_is_refused(text, message):
    assert message in refused(text).message


# kinds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\nworld\n", "not a known kind of file; it begins 'hello'"),
        ("VM_hostname a\n0ff0\n", "SuperBench's list"),
        ("+---+\n| NVIDIA-SMI 550.54 |\n", "the overview of `nvidia-smi`"),
        ("NodeName=n[1-4] Gres=gpu:8\n", "Slurm's nodes"),
        (matrix(2, lambda a, b: "NV12") + "\n" + listing(), "holds the matrix of"),
        ("\x00\x01\x02", "not a known kind of file"),
    ],
)
def test_other_files_are_refused_by_name(text, message):
    assert message in refused(text).message


@given(st.text(max_size=300))
def test_no_text_breaks_the_readers(text):
    for start in ("", "SwitchName=a Nodes=", "<system>", "GPU0 GPU1\nGPU0 X ", "CA 'a'\n Port 1:\n", "- topology: a\n"):
        try:
            facts_of(start + text)
        except InputError:
            continue


def test_of_two_equally_common_sizes_the_larger_is_usual():
    assert usual_size([2, 4, 4, 2, 8]) == 4
