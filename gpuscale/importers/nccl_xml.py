"""NCCL (and RCCL) topology XML: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.

`<system>` holds `<cpu>`s, these PCI devices that nest through bridges, `<gpu>` and `<nic>` inside their device, and the
`<nvlink>`s or `<xgmi>`s of a GPU with the bus id and the PCI class of their far end (NCCL 2.30
src/graph/xml.h, topo.h). Files that a cloud ships leave out what NCCL finds by itself: `<gpu>`, links, often PCI ids.

The parser streams: it keeps no more than `MAX_ELEMENTS` devices, and entities, DTDs and external references are refused
before they are read (defusedxml).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from xml.sax.handler import ContentHandler

from gpuscale.importers.devices import NIC_GBIT_PER_S, gfx_gpu, nic_fabric, pci_gpu, sm_gpu
from gpuscale.importers.facts import Device, Facts, Stated
from gpuscale.importers.source import MAX_NAME, SourceFile, shown

KIND = "an NCCL topology XML"
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


@dataclass
class _Element:
    """One `<pci>` (or the `<cpu>`, `<system>` around it), with what stands inside."""

    tag: str
    line: int
    attributes: dict[str, str]
    parent: _Element | None
    gpu: dict[str, str] | None = None
    gpu_line: int = 0
    links: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    nets: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    has_devices: bool = False

    def path(self) -> list[_Element]:
        """Return the PCI devices above, nearest first."""
        above, element = [], self.parent
        while element is not None and element.tag == "pci":
            above.append(element)
            element = element.parent
        return above

    def top(self) -> _Element:
        """Return the outermost PCI device around (or this one)."""
        above = self.path()
        return above[-1] if above else self


class _Reader(ContentHandler):
    """Collects the devices; refuses what no topology needs."""

    def __init__(self, source: SourceFile) -> None:
        super().__init__()
        self.source = source
        self.stack: list[_Element] = []
        self.devices: list[_Element] = []
        self.cpus: list[_Element] = []
        self.elements = 0
        self.unnamed_nets: list[_Element] = []
        self._locator: Any = None

    def setDocumentLocator(self, locator: Any) -> None:  # noqa: N802 - SAX's name
        self._locator = locator

    @property
    def line(self) -> int:
        """Line of the parser."""
        return int(self._locator.getLineNumber() or 1)

    def startElement(self, name: str, attrs: Any) -> None:  # noqa: N802
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise self.source.error(self.line, f"more than {MAX_ELEMENTS:,} elements, the limit", "give one node")
        if len(self.stack) >= MAX_DEPTH:
            raise self.source.error(self.line, f"elements nested deeper than {MAX_DEPTH}, the limit")
        attributes = dict(attrs.items())
        for key, value in attributes.items():
            if len(value) > MAX_ATTRIBUTE:
                message = f"<{shown(name, 20)} {shown(key, 20)}> of {len(value):,} characters, at most {MAX_ATTRIBUTE}"
                raise self.source.error(self.line, message)
        if not self.stack and name != "system":
            unknown = f"XML with the root <{shown(name, 40)}>; NCCL's topology has <system>"
            raise self.source.error(self.line, _FOREIGN.get(name, unknown), _DUMP)
        self._take(name, attributes)

    def _take(self, name: str, attributes: dict[str, str]) -> None:
        parent = self.stack[-1] if self.stack else None
        element = _Element(name, self.line, attributes, parent)
        self.stack.append(element)
        if parent is None:
            return
        holder = parent.parent if parent.tag == "nic" else parent
        if name == "pci":
            parent.has_devices = True
            self.devices.append(element)
        elif name == "cpu":
            self.cpus.append(element)
        elif name == "gpu" and parent.tag == "pci":
            parent.gpu, parent.gpu_line = attributes, self.line
        elif name in {"nvlink", "xgmi"} and parent.tag == "gpu" and parent.parent is not None:
            parent.parent.links.append((name, attributes))
        elif name == "net" and holder is not None:
            holder.nets.append((self.line, attributes))
            if holder.tag != "pci" and holder not in self.unnamed_nets:
                self.unnamed_nets.append(holder)

    def endElement(self, name: str) -> None:  # noqa: ARG002, N802
        self.stack.pop()


def parse(source: SourceFile) -> Facts:
    """Return what a topology XML states of its node.

    Raises:
        InputError: not well-formed, with a DTD or entities, another tool's XML, beyond a limit, or without GPUs.
    """
    reader = _read(source)
    gpus = _gpus(source, reader)
    links = _link_facts(source, gpus)
    nics = _nic_facts(source, reader, gpus)
    notes = (*links.pop("notes"), *nics.pop("notes"))
    hosts = {element.attributes.get("host_hash", "") for element in reader.cpus}
    host_gpus = len(gpus) // len(hosts) if len(hosts) > 1 and len(gpus) % len(hosts) == 0 else None
    count = f"{len(gpus)} {'<gpu> elements' if gpus[0].gpu is not None else 'PCI devices of a GPU class'}"
    return Facts(
        file=source.name,
        kind=KIND,
        gpus=Stated(len(gpus), f"{source.at(gpus[0].line)}: {count}"),
        host_gpus=None
        if host_gpus is None
        else Stated(host_gpus, f"{source.name}: <cpu> elements of {len(hosts)} hosts"),
        device=_device(source, gpus),
        gpus_per_uplink=_uplink(source, gpus),
        pcie_gb_per_s=_pcie(source, gpus),
        pcie_switch=_behind_switches(source, reader, gpus),
        notes=notes,
        **links,
        **nics,
    )


def _read(source: SourceFile) -> _Reader:
    import xml.sax  # noqa: PLC0415 - only where an XML file is read

    from defusedxml import DefusedXmlException  # noqa: PLC0415
    from defusedxml.sax import parseString  # noqa: PLC0415

    overlong = _line_of(source.text, rf"<[^<>]{{{MAX_TAG}}}")
    if overlong:
        raise source.error(overlong, f"a tag or comment of more than {MAX_TAG:,} characters, the limit", _DUMP)
    reader = _Reader(source)
    try:
        parseString(source.text.lstrip().encode(), reader, forbid_dtd=True)
    except DefusedXmlException:
        line = source.text.count("\n", 0, max(source.text.find("<!"), 0)) + 1
        line = _line_of(source.text, r"<!(?:DOCTYPE|ENTITY)") or line
        message = (
            "a document type declaration (<!DOCTYPE or <!ENTITY>), which is never read: entities can hide anything"
        )
        raise source.error(line, message, "NCCL writes none; remove it if you trust the file") from None
    except xml.sax.SAXParseException as error:
        blank = source.text[: len(source.text) - len(source.text.lstrip())].count("\n")
        line = (error.getLineNumber() or 1) + blank
        message = f"not well-formed XML: {shown(error.getMessage(), 100)}"
        raise source.error(line, message, "the file may be cut off; " + _DUMP) from None
    except (ValueError, LookupError) as error:  # an encoding that the declaration names and Python lacks
        raise source.error(1, f"not readable as XML: {shown(str(error), 100)}", "save the file as UTF-8") from None
    return reader


def _line_of(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return text.count("\n", 0, found.start()) + 1 if found else None


def _gpus(source: SourceFile, reader: _Reader) -> list[_Element]:
    """Return the PCI devices that are GPUs: those with a `<gpu>`, else those of a GPU's PCI class."""
    gpus = [element for element in reader.devices if element.gpu is not None]
    if not gpus:
        gpus = [element for element in reader.devices if _is_gpu_class(element)]
    if not gpus:
        bare = [element for element in reader.devices if not element.attributes.get("class")]
        if bare:
            message = (
                f"no GPUs: {len(bare)} of {len(reader.devices)} <pci> elements have no class, so nothing says which "
                f"are GPUs (the first is busid {shown(bare[0].attributes.get('busid', '?'), 20)!r})"
            )
            raise source.error(bare[0].line, message, "NCCL fills in the class from the machine; " + _DUMP)
        message = "no GPUs: it has no <pci> elements"
        if reader.devices:
            message = f"no GPUs: none of {len(reader.devices)} <pci> elements is of a GPU class or holds a <gpu>"
        raise source.error(None, message, _DUMP)
    if len(gpus) > MAX_GPUS:
        raise source.error(gpus[MAX_GPUS].line, f"{len(gpus):,} GPUs in one node, at most {MAX_GPUS:,}")
    return gpus


def _is_gpu_class(element: _Element) -> bool:
    pci_class = element.attributes.get("class", "").lower()
    vendor = _hex(element.attributes.get("vendor", ""))
    vga = pci_class.startswith("0x0300") and vendor in {"10de", "1002"}  # others are the console's graphics
    return vga or pci_class.startswith(("0x0302", "0x0380", "0x1200"))


def _hex(text: str) -> str:
    return text.lower().removeprefix("0x")[:8].rjust(4, "0")


def _device(source: SourceFile, gpus: list[_Element]) -> Stated[Device] | None:
    """Return the GPU model: by PCI ids, else by the architecture of `<gpu>`; None where the file has neither."""
    found: list[tuple[Device, int, str]] = []
    for element in gpus:
        vendor, device = (_hex(element.attributes.get(key, "")) for key in ("vendor", "device"))
        known = pci_gpu(vendor, device)
        if known is not None:
            found.append((known, element.line, f"vendor={vendor} device={device}"))
            continue
        gpu = element.gpu or {}
        sm = _integer(source, element.gpu_line, "gpu sm", gpu["sm"], 4096) if gpu.get("sm") else None
        if gpu.get("gcn") and sm is not None:
            found.append((gfx_gpu(shown(gpu["gcn"], 20), sm), element.gpu_line, f"gcn={shown(gpu['gcn'], 20)}"))
        elif sm is not None:
            found.append((sm_gpu(sm), element.gpu_line, f"sm={sm}"))
    found = [one for one in found if one[0].exact] or found
    if not found:
        return None
    first, line, text = found[0]
    for other, other_line, other_text in found:
        if other.label != first.label:
            message = f"GPUs of two kinds: {text} on line {line} and {other_text}"
            raise source.error(other_line, message, "a cluster has one; give a file with those to plan for")
    return Stated(first, f"{source.at(line)}: {text}, {first.label}")


def _integer(source: SourceFile, line: int, what: str, text: str, limit: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) > limit:
        raise source.error(line, f"<{what}={shown(text, 30)!r}> is not a whole number of 0 to {limit:,}")
    return int(text)


@dataclass
class _Links:
    """What the links of all GPUs come to: links of each GPU, the switches, and who is linked to whom."""

    totals: dict[str, int] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    peers: dict[str, set[str]] = field(default_factory=dict)


def _count_links(source: SourceFile, gpus: list[_Element]) -> _Links:
    links = _Links()
    own = {_bus(element) for element in gpus}
    for element in gpus:
        bus = _bus(element)
        links.totals[bus] = 0
        for _, link in element.links:
            target = link.get("target", "").lower()
            if target == bus:
                continue
            links.totals[bus] += _integer(source, element.gpu_line, "nvlink count", link.get("count", "1"), 64)
            if link.get("tclass", "").lower().startswith(NVSWITCH_CLASS):
                links.switches.add(target)
                links.peers.setdefault(bus, set()).add(target)
            elif target in own:
                links.peers.setdefault(bus, set()).add(target)
    return links


def _link_facts(source: SourceFile, gpus: list[_Element]) -> dict[str, Any]:
    """Return links of one GPU, whether through switches, and how many GPUs they join."""
    notes: list[str] = []
    links = _count_links(source, gpus)
    if not any(links.totals.values()):
        return _without_links(source, gpus)
    first = next(element for element in gpus if element.links)
    name = first.links[0][0]
    least, most = min(links.totals.values()), max(links.totals.values())
    if least != most:
        notes.append(f"{source.name}: GPUs have {least} to {most} links; the least is taken")
    sizes = sorted({len(group) for group in _groups([_bus(element) for element in gpus], links.peers)})
    where = source.at(first.gpu_line)
    if len(sizes) > 1 or sizes[0] == 1 or not least:
        notes.append(
            f"{source.name}: its {name} links join groups of {_list(sizes)} GPUs; PCIe joins all, so it counts"
        )
        return {"notes": notes, "link_fabric": Stated("pcie", f"{where}: links do not join all GPUs alike")}
    count = len(links.switches)
    text = f"{count} far ends of class {NVSWITCH_CLASS}" if count else f"<{name}>s lead from GPU to GPU"
    return {
        "notes": notes,
        "link_fabric": Stated(name, f"{where}: <{name}> elements"),
        "links": Stated(least, f"{where}: counts of its <{name}> elements add up to {least}"),
        "island": Stated(sizes[0], f"{source.name}: <{name}> elements join {sizes[0]} GPUs"),
        "switches": Stated(count, f"{source.name}: {text}"),
    }


def _without_links(source: SourceFile, gpus: list[_Element]) -> dict[str, Any]:
    """Return what the absence of links means: with RCCL that there are none; NCCL's static files leave them out."""
    notes = []
    if any(element.links for element in gpus):
        notes.append(f"{source.name}: every NVLink leads back to its own GPU (a virtual machine hides the rest)")
    amd = next((element for element in gpus if element.gpu and "gcn" in element.gpu), None)
    if amd is None:
        return {"notes": notes}
    return {"notes": notes, "link_fabric": Stated("pcie", f"{source.at(amd.gpu_line)}: <gpu> without <xgmi>")}


def _list(numbers: list[int]) -> str:
    return " and ".join(str(number) for number in numbers[:4])


def _bus(element: _Element) -> str:
    return element.attributes.get("busid", f"line {element.line}").lower()


def _groups(names: list[str], peers: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of GPUs that links join, directly or through a switch."""
    owner = {name: name for name in names}

    def root(name: str) -> str:
        while owner.setdefault(name, name) != name:
            owner[name] = owner[owner[name]]
            name = owner[name]
        return name

    for name, others in peers.items():
        for other in others:
            owner[root(name)] = root(other)
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(root(name), set()).add(name)
    return list(groups.values())


def _uplink(source: SourceFile, gpus: list[_Element]) -> Stated[int] | None:
    """Return the GPUs behind one PCIe root port; None where the file shows no bridges."""
    if not any(element.path() for element in gpus):
        return None
    counts = Counter(id(element.top()) for element in gpus)
    most = max(counts.values())
    line = next(element.top().line for element in gpus if counts[id(element.top())] == most)
    noun = "GPU" if most == 1 else "GPUs"
    return Stated(most, f"{source.at(line)}: {most} {noun} under this PCIe bridge")


def _behind_switches(source: SourceFile, reader: _Reader, gpus: list[_Element]) -> Stated[tuple[int, int]] | None:
    """Return the GPUs and network ports behind one PCIe bridge of the host; None where they are not alike."""
    if not any(element.path() for element in gpus):
        return None
    tops = Counter(id(element.top()) for element in gpus)
    nics = [nic for element in reader.devices for nic in _nics_of(source, element)]
    best = max((nic.gbit_per_s for nic in nics), default=0.0)
    ports = Counter(id(nic.element.top()) for nic in nics if nic.gbit_per_s == best)
    counts, cards = set(tops.values()), {ports[top] for top in tops}
    behind = min(counts)
    if len(counts) > 1 or len(cards) > 1 or behind == len(gpus) or (behind == 1 and cards == {0}):
        return None
    first = gpus[0].top()
    return Stated((behind, min(cards)), f"{source.at(first.line)}: {behind} GPUs, {min(cards)} ports under this bridge")


def _pcie(source: SourceFile, gpus: list[_Element]) -> Stated[float] | None:
    """Return what the slowest PCIe link of a GPU carries; None where the file leaves it out."""
    rates: list[tuple[float, _Element]] = []
    for element in gpus:
        speed = _GT_PER_S.match(element.attributes.get("link_speed", ""))
        width = element.attributes.get("link_width", "")
        lane = _LANE_GB_PER_S.get(float(speed[1])) if speed else None
        if lane is None or not re.fullmatch(r"[0-9]{1,2}", width) or not int(width):
            return None
        rates.append((lane * int(width), element))
    rate, element = min(rates, key=lambda pair: pair[0])
    text = f"{element.attributes['link_speed']} x {element.attributes['link_width']}"
    return Stated(rate, f"{source.at(element.line)}: PCIe link of {shown(text, 30)}")


@dataclass(frozen=True)
class _Nic:
    """A network port: who it belongs to, its rate (0: unknown) and network.

    Attributes:
        guessed: the rate is that of its slot.
        stated: a `<net>` says so; otherwise it is a PCI device alone.
    """

    element: _Element
    line: int
    name: str
    gbit_per_s: float
    fabric: str | None
    guessed: bool
    stated: bool


def _nic_facts(source: SourceFile, reader: _Reader, gpus: list[_Element]) -> dict[str, Any]:
    """Return the ports that serve GPUs: those of the highest rate; slower ones are for management or storage."""
    nics = [nic for element in reader.devices for nic in _nics_of(source, element)]
    nics += [nic for element in reader.unnamed_nets for nic in _nics_of(source, element)]
    nics = [nic for nic in nics if nic.stated] or nics  # NCCL dumps a <net> for each card that it uses
    notes: list[str] = []
    best = max((nic.gbit_per_s for nic in nics), default=0.0)
    slow = [nic for nic in nics if nic.gbit_per_s < best]
    nics = [nic for nic in nics if nic.gbit_per_s == best]
    if slow:
        notes.append(f"{source.name}: {len(slow)} slower network ports left out, such as {_called(slow[0])}")
    if nics and nics[0].gbit_per_s < 10 and not nics[0].guessed and best:
        notes.append(f"{source.name}: no network: {_called(nics[0])} is taken for management (below 10)")
        nics = []
    if not nics:
        return {"notes": notes, "nics": None if any(g.gpu is None for g in gpus) and not slow else
                Stated(0, f"{source.name}: no network cards for GPUs")}  # fmt: skip
    first = nics[0]
    facts: dict[str, Any] = {"notes": notes, "nics": Stated(len(nics), f"{source.at(first.line)}: {len(nics)} ports")}
    if best:
        prefix = "assumed: " if first.guessed else ""
        text = "what a slot of this speed is built for" if first.guessed else f"{_called(first)}"
        facts["nic_gbit_per_s"] = Stated(best, f"{prefix}{source.at(first.line)}: {text}")
    if first.fabric is not None:
        pci_class = first.element.attributes.get("class", "")
        text = f"PCI class {pci_class}, {_called(first)}" if pci_class else _called(first)
        facts["nic_fabric"] = Stated(first.fabric, f"{source.at(first.line)}: {shown(text, 80)}")
    return facts


def _called(nic: _Nic) -> str:
    return f"<net name={nic.name}> of {nic.gbit_per_s:g} Gbit/s" if nic.name else f"a card of {nic.gbit_per_s:g} Gbit/s"


def _nics_of(source: SourceFile, element: _Element) -> list[_Nic]:
    attributes = element.attributes
    pci_class, vendor = attributes.get("class", "").lower(), _hex(attributes.get("vendor", ""))
    if element.nets:
        nics = []
        for line, net in element.nets:
            name = shown(net.get("name", ""), MAX_NAME)
            speed = _integer(source, line, "net speed", net.get("speed", "0"), 10_000_000) / 1000
            nics.append(
                _Nic(element, line, name, speed, nic_fabric(vendor, pci_class, name), guessed=False, stated=True)
            )
        return nics
    if not pci_class.startswith(("0x0200", "0x0207")) or element.has_devices:
        return []
    known = NIC_GBIT_PER_S.get(f"{vendor}:{_hex(attributes.get('device', ''))}")
    fabric = nic_fabric(vendor, pci_class, "")
    return [
        _Nic(
            element,
            element.line,
            "",
            float(known or _slot_gbit(attributes)),
            fabric,
            guessed=known is None,
            stated=False,
        )
    ]


def _slot_gbit(attributes: dict[str, str]) -> float:
    """Return the rate of the card that a slot is built for; 0 where the file leaves its speed out."""
    speed, width = _GT_PER_S.match(attributes.get("link_speed", "")), attributes.get("link_width", "")
    lanes = int(width) if re.fullmatch(r"[0-9]{1,2}", width) and int(width) else 16
    return _SLOT_GBIT.get(float(speed[1]), 0) * lanes / 16 if speed else 0.0
