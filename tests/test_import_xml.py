"""`gpuscale calibrate topology` reads NCCL topology XML: facts, refusals, hostile files."""

import pytest
from command import assert_one_message, gpuscale

from gpuscale.errors import InputError
from gpuscale.importers import nccl_xml
from gpuscale.importers.facts import SourceFile

GPU = (
    '<pci busid="0000:{bus:02x}:00.0" class="0x030200" vendor="0x10de" device="0x{device}" '
    'link_speed="32.0 GT/s PCIe" link_width="16">{gpu}</pci>'
)
SWITCH = '<nvlink target="0000:f{index}:00.0" count="{count}" tclass="0x068000"/>'
NIC = (
    '<pci busid="0000:{bus:02x}:01.0" class="0x020700">'
    '<nic><net name="mlx5_{bus}" speed="{speed}" port="1"/></nic></pci>'
)


def node(gpus=8, nics=8, device="2330", speed=400000, links=(5, 5, 4, 4), per_bridge=1):
    """A node as NCCL dumps it: GPUs behind bridges, NVSwitches, one card per bridge."""
    text = "".join(SWITCH.format(index=index, count=count) for index, count in enumerate(links))
    bridges = []
    for first in range(0, gpus, per_bridge):
        inside = "\n".join(
            GPU.format(bus=bus, device=device, gpu=f'<gpu dev="{bus}" sm="90" rank="{bus}">{text}</gpu>')
            for bus in range(first, first + per_bridge)
        )
        card = NIC.format(bus=first, speed=speed) if first // per_bridge < nics else ""
        bridges.append(f'<pci busid="ffff:{first:02x}:01.0" class="0x060400">\n{inside}\n{card}</pci>')
    return '<system version="1">\n<cpu numaid="0">\n' + "\n".join(bridges) + "\n</cpu>\n</system>\n"


def parse(text):
    return nccl_xml.parse(SourceFile("t.xml", text))


def test_a_dump_states_its_node():
    facts = parse(node())
    assert (facts.gpus.value, facts.links.value, facts.switches.value, facts.island.value) == (8, 18, 4, 8)
    assert (facts.device.value.preset, facts.device.value.exact) == ("h100-sxm-80gb", True)
    assert (facts.nics.value, facts.nic_gbit_per_s.value, facts.nic_fabric.value) == (8, 400, "infiniband")
    assert facts.gpus_per_uplink.value == 1
    assert facts.pcie_gb_per_s.value == pytest.approx(63.0, rel=1e-3)
    assert facts.gpus.source == "t.xml:4: 8 <gpu> elements"


def test_gpus_behind_one_bridge_share_its_uplink():
    facts = parse(node(per_bridge=2, nics=4))
    assert (facts.gpus_per_uplink.value, facts.nics.value) == (2, 4)


def test_direct_links_have_no_switches_and_may_join_groups():
    mesh = node(gpus=4, links=())
    for bus in range(4):
        peer = bus ^ 1
        link = f'<nvlink target="0000:{peer:02x}:00.0" count="4" tclass="0x030200"/>'
        mesh = mesh.replace(f'rank="{bus}"></gpu>', f'rank="{bus}">{link}</gpu>')
    facts = parse(mesh)
    assert (facts.links.value, facts.switches.value, facts.island.value, facts.gpus.value) == (4, 0, 2, 4)


def test_a_cycle_of_links_ends():
    ring = node(gpus=4, links=())
    for bus in range(4):
        links = "".join(
            f'<nvlink target="0000:{peer % 4:02x}:00.0" count="6" tclass="0x030200"/>' for peer in (bus + 1, bus + 3)
        )
        ring = ring.replace(f'rank="{bus}"></gpu>', f'rank="{bus}">{links}</gpu>')
    facts = parse(ring)
    assert (facts.links.value, facts.island.value) == (12, 4)


def test_links_back_to_the_gpu_itself_are_none():
    text = node(gpus=2, links=())
    for bus in range(2):
        link = f'<nvlink target="0000:{bus:02x}:00.0" count="12" tclass="0x030200"/>'
        text = text.replace(f'rank="{bus}"></gpu>', f'rank="{bus}">{link}</gpu>')
    facts = parse(text)
    assert facts.links is None
    assert "virtual machine" in " ".join(facts.notes)


def test_an_architecture_alone_is_an_assumption():
    device = parse(node(device="ffff")).device
    assert (device.value.preset, device.value.exact) == ("h100-sxm-80gb", False)
    assert "sm=90" in device.source


def test_slower_cards_are_left_out():
    slow = NIC.format(bus=99, speed=10000)
    facts = parse(node().replace("</cpu>", slow + "</cpu>"))
    assert (facts.nics.value, facts.nic_gbit_per_s.value) == (8, 400)
    assert "slower" in " ".join(facts.notes)
    alone = parse(node(nics=0).replace("</cpu>", NIC.format(bus=99, speed=1000) + "</cpu>"))
    assert alone.nics.value == 0


def test_cards_that_nccl_uses_go_before_bare_devices():
    bare = '<pci busid="0000:aa:00.0" class="0x020700" link_speed="64.0 GT/s PCIe" link_width="16"/>'
    facts = parse(node().replace("</cpu>", bare + "</cpu>"))
    assert (facts.nics.value, facts.nic_gbit_per_s.value) == (8, 400)


def test_a_slot_of_half_the_lanes_is_built_for_half_the_rate():
    def rate(width):
        card = f'<pci class="0x020700" link_speed="32.0 GT/s PCIe" link_width="{width}"/>'
        static = node(nics=0).replace("</cpu>", card + "</cpu>")
        return parse(static).nic_gbit_per_s.value

    assert [rate(width) for width in ("16", "8", "", "x")] == [400, 200, 400, 400]


def test_sockets_on_an_amazon_card_are_no_efa():
    def fabric(name):
        card = f'<pci class="0x020000" vendor="0x1d0f"><nic><net name="{name}" speed="100000"/></nic></pci>'
        return parse(node(nics=0).replace("</cpu>", card + "</cpu>")).nic_fabric.value

    assert [fabric(name) for name in ("rdmap79s0", "efa_0", "eth0", "ens5")] == ["efa", "efa", "eni", "eni"]


def test_a_model_by_its_id_goes_before_an_architecture():
    mixed = node().replace("2330", "ffff", 1)
    assert parse(mixed).device.value.preset == "h100-sxm-80gb"
    assert parse(mixed).device.value.exact


def test_a_domain_of_several_hosts_counts_them():
    text = node(gpus=8).replace("</cpu>", "", 1)
    text = text.replace('numaid="0"', 'numaid="0" host_hash="0xa"').replace(
        "</system>", '</cpu>\n<cpu numaid="0" host_hash="0xb"/></system>'
    )
    facts = parse(text)
    assert (facts.gpus.value, facts.host_gpus.value) == (8, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<graphs version='1'/>", "NCCL's search result"),
        ("<nvidia_smi_log/>", "nvidia-smi -q -x"),
        ("<topology/>", "hwloc"),
        ("<html><body/></html>", "XML with the root <html>"),
        ("<system version='1'><cpu>", "not well-formed XML"),
        ("<system></systen>", "not well-formed XML"),
        ("<system/>", "no GPUs: it has no <pci> elements"),
        ('<system><cpu><pci class="0x060400"/></cpu></system>', "none of 1 <pci> elements is of a GPU class"),
        ("<system><cpu><pci busid='a'/></cpu></system>", "1 of 1 <pci> elements have no class"),
        (node().replace('count="5"', 'count="many"'), "is not a whole number"),
        (node().replace('count="5"', 'count="-5"'), "is not a whole number"),
        (node().replace('count="5"', 'count="99999"'), "0 to 64"),
        (node().replace('speed="400000"', 'speed="1e9"'), "is not a whole number"),
        (node().replace("2330", "2335", 1), "GPUs of two kinds"),
        ("<system name='" + "x" * 5000 + "'/>", "5,000 characters, at most 1024"),
        ('<?xml version="1.0" encoding="utf-16"?><system/>', "not"),
        ('<?xml version="1.0" encoding="klingon"?><system/>', "not"),
    ],
)
def test_what_is_no_topology_is_refused(text, message):
    with pytest.raises(InputError) as raised:
        parse(text)
    assert raised.value.place.startswith("t.xml")
    assert message in raised.value.message


LAUGHS = "<!DOCTYPE system [" + "".join(
    f'<!ENTITY l{n} "{"&l" + str(n - 1) + ";" if n else "lol"}{("&l" + str(n - 1) + ";") * 9 if n else ""}">'
    for n in range(10)
)
HOSTILE = {
    "billion laughs": (LAUGHS + "]><system>&l9;</system>", "document type declaration"),
    "external entity": (
        '<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>',
        "document type declaration",
    ),
    "external DTD": ('<!DOCTYPE system SYSTEM "http://localhost/a.dtd"><system/>', "document type declaration"),
    "parameter entity": ('<!DOCTYPE s [<!ENTITY % p SYSTEM "file:///etc/hosts">%p;]><system/>', "document type"),
    "late DTD": ("\n\n<!-- a -->\n<!DOCTYPE system [<!ENTITY a 'b'>]>\n<system>&a;</system>", "document type"),
    "deep nesting": ("<system>" + "<pci>" * 200_000, "nested deeper than 32"),
    "a million nodes": ("<system>" + "<pci/>" * 1_000_000 + "</system>", "more than 20,000 elements"),
    "a million attributes": ("<system " + " ".join(f"a{n}='1'" for n in range(300_000)) + "/>", "a tag or comment"),
    "one long name": ("<" + "s" * 4_000_000 + "/>", "a tag or comment of more than 65,536 characters"),
    "one long comment": ("<!--" + "s" * 4_000_000 + "--><system/>", "a tag or comment of more than 65,536 characters"),
    "more than 8 MiB": ("<system>" + " " * (8 * 2**20) + "</system>", "larger than 8 MiB"),
    "many GPUs": ("<system><cpu>" + '<pci class="0x030200"/>' * 2000 + "</cpu></system>", "at most 1,024"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_xml_is_refused(name, tmp_path):
    text, message = HOSTILE[name]
    path = tmp_path / "topo.xml"
    path.write_text(text)
    target = tmp_path / "cluster.toml"
    done = gpuscale("clusters", "import", path, "-o", target)
    assert_one_message(done, message, "")
    assert not target.exists()
    assert "root:" not in done.err
