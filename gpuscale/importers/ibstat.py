"""`ibstat` and `ibstatus`: the ports of one host's InfiniBand and RoCE cards, their rates and link layers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuscale.importers.facts import Facts, Stated
from gpuscale.importers.source import MAX_NAME, SourceFile, shown

KIND = "the ports of `ibstat`"
MAX_PORTS = 1024
START = re.compile(r"\s*(?:CA '|Infiniband device ')([^']{1,200})'(?:.*port (\d{1,3}))?")
_PORT = re.compile(r"\s*Port ([0-9]{1,3}):\s*$")
_FIELD = re.compile(r"\s*(State|state|Rate|rate|Link layer|link_layer):\s+(.{1,100}?)\s*$")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?)(?: Gb/sec.*)?")
_HINT = "save the whole output of one host: ibstat > ibstat.txt"


@dataclass
class _Port:
    card: str
    line: int
    state: str = ""
    gbit_per_s: float | None = None
    layer: str = ""


def parse(source: SourceFile) -> Facts:
    """Return how many active ports have the highest rate, that rate, and their network.

    Raises:
        InputError: no port is active, or a rate is missing.
    """
    ports = _read(source)
    active = [port for port in ports if "active" in port.state.lower()]
    if not active:
        line = ports[0].line if ports else 1
        raise source.error(line, f"none of {len(ports)} ports is active, so no rate can be read", _HINT)
    for port in active:
        if not port.gbit_per_s:
            raise source.error(
                port.line, f"{shown(port.card, MAX_NAME)} is active without a rate: the file is cut", _HINT
            )
    best = max(port.gbit_per_s or 0.0 for port in active)
    fast = [port for port in active if port.gbit_per_s == best]
    notes = []
    if len(fast) < len(ports):
        notes.append(f"{source.name}: {len(ports) - len(fast)} of {len(ports)} ports are down or slower and left out")
    first = fast[0]
    layers = sorted({port.layer for port in fast})
    layer = "roce" if layers == ["Ethernet"] else "infiniband"
    return Facts(
        file=source.name,
        kind=KIND,
        nics=Stated(len(fast), f"{source.at(first.line)}: {len(fast)} active ports of {best:g} Gbit/s"),
        nic_gbit_per_s=Stated(best, f"{source.at(first.line)}: Rate: {best:g} ({shown(first.card, MAX_NAME)})"),
        nic_fabric=Stated(layer, f"{source.at(first.line)}: Link layer: {layers[0] or 'InfiniBand'}"),
        notes=tuple(notes),
    )


def _read(source: SourceFile) -> list[_Port]:
    ports: list[_Port] = []
    card = ""
    for number, line in enumerate(source.lines, 1):
        start, port = START.match(line), _PORT.match(line)
        if start:
            card = start[1]
        if port or (start and start[2]):
            if len(ports) >= MAX_PORTS:
                raise source.error(number, f"more than {MAX_PORTS} ports, the limit for one host")
            ports.append(_Port(card, number))
        found = _FIELD.match(line)
        if found and ports:
            _take(source, ports[-1], number, found[1].lower(), found[2])
    return ports


def _take(source: SourceFile, port: _Port, number: int, key: str, text: str) -> None:
    if key == "state":
        port.state = text
    elif key == "rate":
        rate = _RATE.fullmatch(text)
        if rate is None:
            raise source.error(number, f"Rate {shown(text, 30)!r} is not a number of Gbit/s")
        port.gbit_per_s = float(rate[1])
    else:
        port.layer = "Ethernet" if text.lower() == "ethernet" else "InfiniBand"
