"""NCCL (and RCCL) topology XML: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.

`<system>` holds `<cpu>`s, these PCI devices that nest through bridges, `<gpu>` and `<nic>` inside their device, and the
`<nvlink>`s or `<xgmi>`s of a GPU with the bus id and the PCI class of their far end (NCCL 2.30
src/graph/xml.h, topo.h). Files that a cloud ships leave out what NCCL finds by itself: `<gpu>`, links, often PCI ids.

No more than `MAX_ELEMENTS` elements are kept, and a DTD is refused where it begins: without one there are no entities
and no external references.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from xml.parsers import expat

from gpuscale.importers.facts import (
    MAX_NAME,
    NCCL_XML,
    NIC_GBIT_PER_S,
    PCI_GPUS,
    SM_GPUS,
    Device,
    Facts,
    SourceFile,
    Stated,
    dark,
    dark_notes,
    gfx_gpu,
    nic_fabric,
    root,
    shown,
)

MAX_ELEMENTS = 20_000
"""A host of 16 GPUs has some 300 elements; an NVLink domain of 72 hosts, dumped in one file, some 10,000."""
MAX_DEPTH = 32
MAX_ATTRIBUTE = 1024
MAX_TAG = 65_536
MAX_GPUS = 1024

NVSWITCH_CLASS = "0x068000"
_FOREIGN = {
    "graphs": "NCCL's search result (NCCL_GRAPH_DUMP_FILE), which lists channels and no devices",
    "nvidia_smi_log": "the log of `nvidia-smi -q -x`, which lists no links",
    "topology": "hwloc's topology (lstopo), which lists no GPU links",
}
_DUMP = "write one with NCCL_TOPO_DUMP_FILE=topo.xml on any job of the node"
_GT_PER_S = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,2})?)\s*GT/s")
_LANE_GB_PER_S = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
"""GB/s of one PCIe lane by its GT/s, one direction, after 8b/10b or 128b/130b coding (FLITs at 64 GT/s)."""
_SLOT_GBIT = {8.0: 100, 16.0: 200, 32.0: 400, 64.0: 800}
"""Rate of the card that a slot of 16 lanes is built for."""


@dataclass(eq=False)
class _Element:
    tag: str
    line: int
    attributes: dict[str, str]
    parent: _Element | None
    children: list[_Element] = field(default_factory=list)

    def get(self, key: str) -> str:
        return self.attributes.get(key, "")

    def hex(self, key: str) -> str:
        """Return an attribute such as `0x10de` as four digits."""
        return self.get(key).lower().removeprefix("0x")[:8].rjust(4, "0")

    @property
    def pci_class(self) -> str:
        return self.get("class").lower()

    def inside(self, *tags: str) -> list[_Element]:
        return [child for child in self.children if child.tag in tags]

    @property
    def bus(self) -> str:
        """The bus id, or something as unique."""
        return self.attributes.get("busid", f"line {self.line}").lower()

    @property
    def gpu(self) -> _Element | None:
        return next(reversed(self.inside("gpu")), None)

    @property
    def links(self) -> list[_Element]:
        return [link for gpu in self.inside("gpu") for link in gpu.inside("nvlink", "xgmi")]

    @property
    def top(self) -> _Element:
        """The outermost PCI device around a device, or itself."""
        return self.parent.top if self.parent is not None and self.parent.tag == "pci" else self


def parse(source: SourceFile) -> Facts:
    """Return what a topology XML states of its node.

    Raises:
        InputError: not well-formed, with a DTD or entities, another tool's XML, beyond a limit, or without GPUs.
    """
    elements = _read(source)
    gpus = _gpus(source, [element for element in elements if element.tag == "pci"])
    notes: list[str] = []
    nics = _nics(source, elements)
    hosts = len({element.get("host_hash") for element in elements if element.tag == "cpu"})
    several = hosts > 1 and len(gpus) % hosts == 0
    count = f"{len(gpus)} {'<gpu> elements' if gpus[0].gpu is not None else 'PCI devices of a GPU class'}"
    facts = _link_facts(source, gpus, notes) | _nic_facts(source, gpus, nics, notes) | _bridges(source, gpus, nics)
    slots = [_pcie_link(element) for element in gpus]
    rates = [_LANE_GB_PER_S.get(gt_per_s, 0.0) * lanes for gt_per_s, lanes in slots]
    slowest = gpus[rates.index(min(rates))]
    slot = shown(f"{slowest.get('link_speed')} x {slowest.get('link_width')}", 30)
    return Facts(
        file=source.name,
        kind=NCCL_XML,
        gpus=source.stated(gpus[0].line, len(gpus), count),
        host_gpus=source.stated(None, len(gpus) // hosts, f"<cpu> elements of {hosts} hosts") if several else None,
        device=_device(source, gpus),
        pcie_gb_per_s=source.stated(slowest.line, min(rates), f"PCIe link of {slot}") if min(rates) else None,
        **facts,
        notes=tuple(notes),
    )


def _read(source: SourceFile) -> list[_Element]:
    overlong = re.search(rf"<[^<>]{{{MAX_TAG}}}", source.text)
    if overlong:
        line = source.text.count("\n", 0, overlong.start()) + 1
        raise source.error(line, f"a tag or comment of more than {MAX_TAG:,} characters, the limit", _DUMP)
    text = source.text.lstrip()
    skipped = source.text[: len(source.text) - len(text)].count("\n")
    elements: list[_Element] = []
    around: list[_Element] = []
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = _Element(tag, parser.CurrentLineNumber + skipped, attributes, around[-1] if around else None)
        _check(source, element, len(elements), len(around))
        if element.parent is not None:
            element.parent.children.append(element)
        around.append(element)
        elements.append(element)

    def doctype(*_: object) -> None:
        message = "a document type declaration (<!DOCTYPE or <!ENTITY>), which is never read: entities hide anything"
        hint = "NCCL writes none; remove it if you trust the file"
        raise source.error(parser.CurrentLineNumber + skipped, message, hint)

    parser.StartElementHandler, parser.EndElementHandler = start, lambda _: around.pop()
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        message = f"not well-formed XML: {expat.ErrorString(error.code)}"
        raise source.error(error.lineno + skipped, message, "the file may be cut off; " + _DUMP) from None
    except (ValueError, LookupError) as error:  # an encoding that the declaration names and Python lacks
        message = f"not readable as XML: {shown(str(error), 100)}"
        raise source.error(1, message, "save the file as UTF-8") from None
    return elements


def _check(source: SourceFile, element: _Element, before: int, depth: int) -> None:
    line = element.line
    if before >= MAX_ELEMENTS:
        raise source.error(line, f"more than {MAX_ELEMENTS:,} elements, the limit", "give one node")
    if depth >= MAX_DEPTH:
        raise source.error(line, f"elements nested deeper than {MAX_DEPTH}, the limit")
    if element.parent is None and element.tag != "system":
        unknown = f"XML with the root <{shown(element.tag, 40)}>; NCCL's topology has <system>"
        raise source.error(line, _FOREIGN.get(element.tag, unknown), _DUMP)
    for key, value in element.attributes.items():
        if len(value) > MAX_ATTRIBUTE:
            what = f"<{shown(element.tag, 20)} {shown(key, 20)}>"
            raise source.error(line, f"{what} of {len(value):,} characters, at most {MAX_ATTRIBUTE}")


def _gpus(source: SourceFile, every: list[_Element]) -> list[_Element]:
    """Return the PCI devices that are GPUs: those with a `<gpu>`, else those of a GPU's PCI class."""
    gpus = [one for one in every if one.gpu is not None] or [
        one
        for one in every
        if one.pci_class.startswith(("0x0302", "0x0380", "0x1200"))
        or (one.pci_class.startswith("0x0300") and one.hex("vendor") in {"10de", "1002"})  # not the console's graphics
    ]
    if len(gpus) > MAX_GPUS:
        raise source.error(gpus[MAX_GPUS].line, f"{len(gpus):,} GPUs in one node, at most {MAX_GPUS:,}")
    if gpus:
        return gpus
    bare = [one for one in every if not one.get("class")]
    if bare:
        first = f"(the first is busid {shown(bare[0].attributes.get('busid', '?'), 20)!r})"
        message = f"no GPUs: {len(bare)} of {len(every)} <pci> elements have no class, so nothing says which are GPUs"
        raise source.error(bare[0].line, f"{message} {first}", "NCCL fills in the class from the machine; " + _DUMP)
    none = f"none of {len(every)} <pci> elements is of a GPU class or holds a <gpu>"
    raise source.error(None, f"no GPUs: {none if every else 'it has no <pci> elements'}", _DUMP)


def _device(source: SourceFile, gpus: list[_Element]) -> Stated[Device] | None:
    """Return the GPU model by PCI ids, else by architecture; None where the file has neither."""
    found: list[tuple[Device, int, str]] = []
    for element in gpus:
        vendor, device = element.hex("vendor"), element.hex("device")
        known = PCI_GPUS.get(f"{vendor}:{device}")
        if known is not None:
            model = Device(f"{known[0]} (PCI {vendor}:{device})", known[1], exact=True)
            found.append((model, element.line, f"vendor={vendor} device={device}"))
            continue
        gpu = element.gpu
        if gpu is not None and gpu.get("sm"):
            sm, gcn = _integer(source, gpu, "sm", gpu.get("sm"), 4096), shown(gpu.get("gcn"), 20)
            named = f"a GPU of compute capability {sm // 10}.{sm % 10}"
            capable = Device(named, SM_GPUS.get(sm), exact=False)
            model, text = (gfx_gpu(gcn, sm), f"gcn={gcn}") if gcn else (capable, f"sm={sm}")
            found.append((model, gpu.line, text))
    found = [one for one in found if one[0].exact] or found
    if not found:
        return None
    first, line, text = found[0]
    for other, other_line, other_text in found:
        if other.label != first.label:
            message = f"GPUs of two kinds: {text} on line {line} and {other_text}"
            raise source.error(other_line, message, "a cluster has one; give a file with those to plan for")
    return source.stated(line, first, f"{text}, {first.label}")


def _integer(source: SourceFile, element: _Element, key: str, text: str, limit: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) > limit:
        message = f"<{element.tag} {key}={shown(text, 30)!r}> is not a whole number of 0 to {limit:,}"
        raise source.error(element.line, message)
    return int(text)


def _link_facts(source: SourceFile, gpus: list[_Element], notes: list[str]) -> dict[str, Any]:
    totals = {element.bus: 0 for element in gpus}
    switches: set[str] = set()
    owner: dict[str, str] = {}
    for element in gpus:
        totals[element.bus] = 0  # hosts of one dump may share bus ids
        for link in element.links:
            target = link.get("target").lower()
            if target == element.bus:
                continue
            totals[element.bus] += _integer(source, link, "count", link.attributes.get("count", "1"), 64)
            through = link.get("tclass").lower().startswith(NVSWITCH_CLASS)
            if through:
                switches.add(target)
            if through or target in totals:
                owner[root(owner, element.bus)] = root(owner, target)
    linked = next((element for element in gpus if element.links), None)
    if linked is None or not any(totals.values()):
        if linked is not None:
            notes.append(f"{source.name}: every NVLink leads back to its own GPU (a virtual machine hides the rest)")
        # RCCL's dumps list all links that there are; NCCL's static files leave them out
        amd = [one.gpu.line for one in gpus if one.gpu is not None and "gcn" in one.gpu.attributes]
        return {"link_fabric": source.stated(amd[0], "pcie", "<gpu> without <xgmi>")} if amd else {}
    first = linked.links[0]
    name, line = first.tag, first.parent.line if first.parent is not None else first.line
    lost = dark(totals)
    notes += dark_notes(source.name, totals, f"{name} links")
    totals = Counter({bus: own for bus, own in totals.items() if bus not in lost})
    least, most = min(totals.values()), max(totals.values())
    if least != most:
        notes.append(f"{source.name}: GPUs have {least} to {most} links; the least is taken")
    sizes = sorted(set(Counter(root(owner, bus) for bus in totals).values()))
    if len(sizes) > 1 or sizes[0] == 1 or not least:
        groups = " and ".join(str(size) for size in sizes[:4])
        only = f"its {name} links join groups of {groups} GPUs only"
        notes.append(f"{source.name}: {only}, so PCIe counts, which joins all")
        return {"link_fabric": source.stated(line, "pcie", "links do not join all GPUs alike")}
    count = len(switches)
    text = f"{count} far ends of class {NVSWITCH_CLASS}" if count else f"<{name}>s lead from GPU to GPU"
    return {
        "link_fabric": source.stated(line, name, f"<{name}> elements"),
        "links": source.stated(line, least, f"counts of its <{name}> elements add up to {least}"),
        "island": source.stated(None, sizes[0] + len(lost), f"<{name}> elements join {sizes[0]} GPUs"),
        "switches": source.stated(None, count, text),
    }


def _pcie_link(element: _Element) -> tuple[float, int]:
    """Return GT/s and lanes of a device's slot; 0 where the file leaves them out."""
    speed, width = _GT_PER_S.match(element.get("link_speed")), element.get("link_width")
    return float(speed[1]) if speed else 0.0, int(width) if re.fullmatch(r"[0-9]{1,2}", width) else 0


class _Nic(NamedTuple):
    """A network port: who it belongs to, its rate (0: unknown) and network."""

    element: _Element
    line: int
    name: str
    gbit_per_s: float
    fabric: str | None
    guessed: bool  #: the rate is that of its slot.
    stated: bool  #: a `<net>` says so; otherwise it is a PCI device alone.

    def __str__(self) -> str:
        of = f"<net name={self.name}>" if self.name else "a card"
        return f"{of} of {self.gbit_per_s:g} Gbit/s"


def _nics(source: SourceFile, elements: list[_Element]) -> list[_Nic]:
    found: list[_Nic] = []
    devices = [one for one in elements if one.tag == "pci"]
    for element in (*devices, *(one for one in elements if one.tag not in {"pci", "nic"})):
        pci_class, vendor = element.pci_class, element.hex("vendor")
        nets = [net for part in (element, *element.inside("nic")) for net in part.inside("net")]
        for net in nets:
            name = shown(net.get("name"), MAX_NAME)
            gbit = _integer(source, net, "speed", net.attributes.get("speed", "0"), 10_000_000) / 1000
            found.append(_Nic(element, net.line, name, gbit, nic_fabric(vendor, pci_class, name), False, True))
        bare = element.tag == "pci" and not nets and not element.inside("pci")
        if bare and pci_class.startswith(("0x0200", "0x0207")):
            known = NIC_GBIT_PER_S.get(f"{vendor}:{element.hex('device')}")
            gt_per_s, lanes = _pcie_link(element)
            gbit = float(known or _SLOT_GBIT.get(gt_per_s, 0) * (lanes or 16) / 16)
            fabric = nic_fabric(vendor, pci_class, "")
            found.append(_Nic(element, element.line, "", gbit, fabric, known is None, False))
    return found


def _nic_facts(source: SourceFile, gpus: list[_Element], nics: list[_Nic], notes: list[str]) -> dict[str, Any]:
    """Return the fastest ports, which serve GPUs; slower ones are for management or storage."""
    nics = [nic for nic in nics if nic.stated] or nics  # NCCL dumps a <net> for each card that it uses
    best = max((nic.gbit_per_s for nic in nics), default=0.0)
    slow = [nic for nic in nics if nic.gbit_per_s < best]
    nics = [nic for nic in nics if nic.gbit_per_s == best]
    if slow:
        notes.append(f"{source.name}: {len(slow)} slower network ports left out, such as {slow[0]}")
    if nics and 0 < best < 10 and not nics[0].guessed:
        notes.append(f"{source.name}: no network: {nics[0]} is taken for management (below 10)")
        nics = []
    if not nics:
        silent = any(gpu.gpu is None for gpu in gpus) and not slow
        return {} if silent else {"nics": source.stated(None, 0, "no network cards for GPUs")}
    first = nics[0]
    facts: dict[str, Any] = {"nics": source.stated(first.line, len(nics), f"{len(nics)} ports")}
    if first.guessed and best:
        text = f"assumed: {source.at(first.line)}: what a slot of this speed is built for"
        facts["nic_gbit_per_s"] = Stated(best, text)
    elif best:
        facts["nic_gbit_per_s"] = source.stated(first.line, best, str(first))
    if first.fabric is not None:
        pci_class = first.element.get("class")
        text = f"PCI class {pci_class}, {first}" if pci_class else str(first)
        facts["nic_fabric"] = source.stated(first.line, first.fabric, shown(text, 80))
    return facts


def _bridges(source: SourceFile, gpus: list[_Element], nics: list[_Nic]) -> dict[str, Any]:
    """Return the GPUs behind one PCIe root port, and its ports where all are alike; empty without bridges."""
    tops = Counter(element.top for element in gpus)
    if all(element.top is element for element in gpus):
        return {}
    widest, most = tops.most_common(1)[0]
    under = f"{most} GPU{'s' * (most > 1)} under this PCIe bridge"
    facts: dict[str, Any] = {"gpus_per_uplink": source.stated(widest.line, most, under)}
    nics = [nic for nic in nics if nic.element.tag == "pci"]
    best = max((nic.gbit_per_s for nic in nics), default=0.0)
    ports = Counter(nic.element.top for nic in nics if nic.gbit_per_s == best)
    cards = {ports[top] for top in tops}
    behind = min(tops.values())
    if behind == most and len(cards) == 1 and behind != len(gpus) and (behind > 1 or cards != {0}):
        text = f"{behind} GPUs, {min(cards)} ports under this bridge"
        facts["pcie_switch"] = source.stated(gpus[0].top.line, (behind, min(cards)), text)
    return facts
